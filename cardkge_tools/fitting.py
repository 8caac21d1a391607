"""A run from its first step to its saved metrics, as `train` does it: checkpoints, signals, progress."""

import contextlib
import shlex
import signal
import sys
import time

import click

from cardkge import CardkgeError, option_name, without_loops
from cardkge_tools.engine.ranking import evaluate
from cardkge_tools.engine.trainer import NonFinite
from cardkge_tools.engine.training import train
from cardkge_tools.facts import calibrate_run
from cardkge_tools.files import in_use, made_folder, sole_use
from cardkge_tools.graphs import describe_data
from cardkge_tools.opening import run_data
from cardkge_tools.reports import show_metrics
from cardkge_tools.runs import STAGE, is_run, load_run, save_metrics, save_run
from cardkge_tools.terminal import Progress, counter, held_signals, say, warn

CHECKPOINT_SECONDS = 60.0  # between two saved states while training ...
CHECKPOINT_SHARE = 0.05  # ... or longer, so that no more than this share of the time goes to saving


@contextlib.contextmanager
def new_folder(out, force):
    """A folder for a new run, writable and for sole use; folders made here and left empty vanish."""
    with made_folder(out) as (out, made), sole_use(out) as alone:
        if not alone:
            made.clear()
            raise in_use(out)
        if not is_run(out):
            if any(not entry.name.startswith(STAGE) for entry in out.iterdir()):
                raise CardkgeError(f"{out} is not empty and holds no run; choose another folder with --out")
        elif not force:
            raise CardkgeError(f"{out} already holds a run; --resume goes on with it, --force replaces it")
        yield out


def resume_run(folder, given, threads, calibrated=True):
    """Goes on with a saved run, with what a resumed run may change."""
    run = load_run(folder)
    update_settings(run, given)
    dataset = run_data(run)
    if describe_data(dataset) != run.data:
        raise CardkgeError(
            f"{dataset.folder}: the data has changed since {folder} was trained on it; "
            "give the old data with --data, or train anew"
        )
    if run.epoch >= run.settings.epochs:
        say(f"{folder} has finished its {run.epoch} epochs; --epochs may be raised")
    fit(run, dataset, folder, threads, calibrated)


def update_settings(run, given):
    """Take over what a resumed run may change; a usage error for what it may not."""
    for name, value in given.items():
        saved = getattr(run.settings, name)
        if name == "data" or (name == "epochs" and value >= saved):
            setattr(run.settings, name, value)
        elif value != saved:
            option = "--" + option_name(name)
            hint = "may only be raised" if name == "epochs" else "cannot change"
            raise click.UsageError(f"{option} {hint} when a run is resumed: saved {saved}, given {value}.")


def show_rule(settings, given):
    """A line with what is not given and so follows from the loss and the sizes of the graph, under softmax."""
    names = ["model", "dim", "epochs", "batch_size", "learning_rate", "schedule", "n3", "reciprocal"]
    names += ["softmax_candidates", "exact_epochs"]
    chosen = [f"{option_name(name)} {getattr(settings, name)}" for name in names if name not in given]
    if settings.loss == "softmax" and chosen:
        say(f"by the loss and the sizes of the graph: {', '.join(chosen)}")


def fit(run, dataset, folder, threads, calibrated=True):
    """Train and save the run, evaluate it on the test split, show and save the metrics; then calibrate it, if asked."""
    progress = Progress(run, len(dataset.train))
    due = 0.0  # when to save the next time

    def save():
        nonlocal due
        start = time.monotonic()
        save_run(run, folder)
        end = time.monotonic()
        due = end + max(CHECKPOINT_SECONDS, (end - start) / CHECKPOINT_SHARE)

    def on_step(run, step, steps):
        progress.on_step(run, step, steps)
        if step < steps and time.monotonic() > due:
            save()

    def on_epoch(run, record):
        progress.on_epoch(run, record)
        if time.monotonic() > due:
            save()

    outcome = "finished"
    with held_signals() as caught:
        unfinished = run.epoch < run.settings.epochs
        if unfinished:
            run.metrics = run.calibration = None
        save()
        try:
            if unfinished:
                outcome = train(run, dataset, threads, on_epoch, on_step, stop=lambda: bool(caught))
                save()
        except NonFinite as error:
            with contextlib.suppress(CardkgeError):  # then the state saved before stays
                save()
            raise CardkgeError(f"{error} ({folder} keeps the last good state; --force replaces it)") from error
        finally:
            progress.close()
    again = f"python cli.py train --resume --out {shlex.quote(str(folder))}"
    if caught:
        click.echo(f"stopped at epoch {run.epoch}; resume with: {again}", err=True)
        sys.exit(128 + caught[0])
    if outcome == "patience":
        say(f"validation is no longer better: stopped at epoch {run.epoch}")
    if run.best:
        found = f"hits@10 {100 * run.best['hits@10']:.2f} %, MRR {100 * run.best['mrr']:.2f} %"
        say(f"best on valid: {found} at epoch {run.best['epoch']}, which is kept")
    take_metrics(run, dataset, folder, threads, again)
    if calibrated:
        calibrate_or_say(run, dataset, folder, threads)
    click.echo(f"saved in {folder}")


def take_metrics(run, dataset, folder, threads, again):
    """Evaluate the run on the test split, save and show the metrics; `again` is the command that goes on."""
    loopless = without_loops(dataset.train, dataset.n_relations) if run.settings.no_loops else None
    say(f"evaluating {len(dataset.test):,} test triples{' (loops are no answers)' * run.settings.no_loops}")
    try:
        with counter("ranked") as progress:
            run.metrics = evaluate(
                run.best_model(), dataset.test, known=dataset.known, threads=threads, progress=progress,
                loopless=loopless,
            )  # fmt: skip
    except KeyboardInterrupt:
        click.echo(f"stopped while evaluating; {folder} is trained, evaluate with: {again}", err=True)
        sys.exit(128 + signal.SIGINT)
    save_metrics(run, folder)
    show_metrics([([setting], sides["both"]) for setting, sides in run.metrics.items()], ["test"])


def calibrate_or_say(run, dataset, folder, threads):
    """Calibrate the run; where it cannot be, a warning, for the run is whole without."""
    try:
        calibrate_run(run, dataset, folder, threads)
    except CardkgeError as error:
        warn(f"not calibrated: {error}")
    except KeyboardInterrupt:
        again = f"python cli.py calibrate {shlex.quote(str(folder))}"
        click.echo(f"stopped while calibrating; go on with: {again}", err=True)
        sys.exit(128 + signal.SIGINT)
