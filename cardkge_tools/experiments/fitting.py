"""A run from its first step to its saved metrics, as `train` does it: checkpoints, signals, progress; and its curve."""

import contextlib
import math
import os
import shlex
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from cardkge import CardkgeError, batch_limits, triple_keys
from cardkge_tools import SPLITS
from cardkge_tools.answers.facts import calibrate_run
from cardkge_tools.answers.figures import import_pyplot, plot_history, plot_times
from cardkge_tools.answers.opening import align_dataset, open_histories, open_run, run_data
from cardkge_tools.answers.runs import is_run, load_calibration, load_run, new_run, save_metrics, save_run, valid_times
from cardkge_tools.definitions.settings import option_name
from cardkge_tools.definitions.softmax import without_loops
from cardkge_tools.engine.ranking import Candidates, evaluate
from cardkge_tools.engine.training import NonFinite, train
from cardkge_tools.experiments.reports import show_few, show_metrics
from cardkge_tools.graph.graphs import describe_data, later_occurrences, same_facts
from cardkge_tools.shell.files import STAGE, in_use, made_folder, remove_stages, sole_use, write_report
from cardkge_tools.shell.terminal import Progress, counter, going_on, held_signals, say, table, this_command, warn

CHECKPOINT_SECONDS = 60.0  # between two saved states while training ...
CHECKPOINT_SHARE = 0.05  # ... or longer, so that no more than this share of the time goes to saving


@contextlib.contextmanager
def new_folder(out, force):
    """A folder for a new run, writable and locked; folders made here are removed if they stay empty."""
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
    """Resumes a saved run, with the given settings that a resumed run may change."""
    run = load_run(folder, calibrated=False)
    refuse_joined(run, folder)
    update_settings(run, given)
    replaced = not run.settings.final and (calibrated or run.epoch < run.settings.epochs)
    with contextlib.suppress(*[CardkgeError] * replaced):  # whatever it is
        load_calibration(run, folder)
    dataset, same = data_of(run, folder)
    if not same:
        warn(f"{dataset.folder}: the lines are in another order now; the steps to come draw other batches")
    if run.epoch >= run.settings.epochs:
        say(f"{folder} has finished its {run.epoch} epochs; --epochs may be raised")
    fit(run, dataset, folder, threads, calibrated)


def data_of(run, folder):
    """The Dataset of a run with its ids, and whether the lines have kept their order. CardkgeError for other facts."""
    dataset = run_data(run)
    found = describe_data(dataset)
    if not same_facts(found, run.data):
        remedy = "give the old data with --data, or train anew"
        raise CardkgeError(f"{dataset.folder}: the data has changed since {folder} was trained on it; {remedy}")
    same = found["sha256"] == run.data["sha256"]
    return dataset if same else align_dataset(dataset, run), same


def whole(dataset):
    """The data set with every known triple in train, for a final run; valid and test stay as they are."""
    keys = triple_keys(*np.asarray(dataset.known).T, dataset.n_entities, dataset.n_relations)
    return replace(dataset, train=np.delete(dataset.known, later_occurrences(keys), axis=0))


def train_final(source, out, force, threads, data, model):
    """`train --final`: the settings of a run up to its best epoch, on all the triples of its data; data and model None
    for the run's. A given model must be the run's: naming it loads a class of one's own."""
    run, dataset = open_run(source, data)
    refuse_joined(run, source)
    if model not in (None, run.settings.model):
        found = f"{source} has {run.settings.model}, given {model}"
        raise click.UsageError(f"--model cannot change in a final run: {found}.")
    if run.settings.final:
        raise CardkgeError(f"{source} is a final run already; give the run that it was made of")
    epochs = run.best["epoch"] if run.best else run.epoch
    settings = replace(run.settings, epochs=epochs, validate_every=0, patience=0, final=True)
    settings = replace(settings, data=data or settings.data)
    with new_folder(out, force) as folder:
        if Path(folder).resolve() == Path(source).resolve():
            raise CardkgeError(f"{source}: the final run needs a folder of its own")
        say(f"{len(dataset.known):,} triples of train, valid and test, {epochs} epochs", err=True)
        final = new_run(settings, dataset, run.bounds)
        final.calibration = run.calibration  # of the run that could be calibrated
        fit(final, dataset, folder, threads)


def refuse_joined(run, folder):
    """CardkgeError for the mean of several runs, which no step would improve."""
    if run.settings.joined:
        mean = f"the mean of {run.settings.joined} runs"
        raise CardkgeError(f"{folder} is {mean}, and not trained; train these, and join them")


def update_settings(run, given):
    """Takes the given settings that a resumed run may change; a usage error for any other."""
    taken = {}
    for name, value in given.items():
        saved = getattr(run.settings, name)
        if name in ("data", "patience") or (name == "epochs" and value >= saved):
            taken[name] = value
        elif value != saved:
            option = "--" + option_name(name)
            hint = "may only be raised" if name == "epochs" else "cannot change"
            raise click.UsageError(f"{option} {hint} when a run is resumed: saved {saved}, given {value}.")
        if name == "epochs" and value > saved and run.settings.schedule == "late":
            warn(f"the steps depend on the number of epochs: a new run with --epochs {value} would take other steps")
    try:
        run.settings = replace(run.settings, **taken)
    except CardkgeError as error:
        raise click.UsageError(f"{error}.") from None


def show_rule(settings, given):
    """Under softmax, a line with the settings that follow from the loss and the sizes of the graph."""
    names = ["model", "dim", "epochs", "batch_size", "learning_rate", "schedule", "n3", "reciprocal"]
    names += ["relation_weight", "softmax_candidates"]
    chosen = [f"{option_name(name)} {getattr(settings, name)}" for name in names if name not in given]
    if settings.loss == "softmax" and chosen:
        say(f"by the loss and the sizes of the graph: {', '.join(chosen)}")


def fit(run, dataset, folder, threads, calibrated=True):
    """Trains and saves the run, evaluates it on test, shows and saves the metrics; then calibrates it, if
    `calibrated`. A final run is trained on all splits, so it is neither evaluated nor calibrated."""
    if dataset.folder == Path(run.settings.data):  # no name of the table: another command may stand elsewhere
        run.settings = replace(run.settings, data=os.path.abspath(run.settings.data))
    dataset = whole(dataset) if run.settings.final else dataset
    again = f"{this_command()} train --resume --out {shlex.quote(str(folder))}"
    warn(*run.notes)
    progress = Progress(run, len(dataset.train), examples_per_step(run.settings, len(dataset.train)))
    remove_stages(folder, age=0)
    due = 0.0  # when to save the next time

    def save():
        nonlocal due
        start = time.monotonic()
        try:
            save_run(run, folder)
        except CardkgeError as error:
            how = "make room, or choose another folder with --out: nothing is saved yet"
            if is_run(folder):
                how = f"what was saved before stays, and {again} goes on from there"
            raise CardkgeError(f"{error}; {how}") from error
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
            run.metrics = None
            run.calibration = run.calibration if run.settings.final else None  # a final run keeps its source's
        save()
        try:
            if unfinished:
                outcome = train(run, dataset, threads, on_epoch, on_step, stop=lambda: bool(caught))
                save()
        except NonFinite as error:
            with contextlib.suppress(CardkgeError):  # if that fails, the state saved before stays
                save()
            raise CardkgeError(f"{error} ({folder} keeps the last good state; --force replaces it)") from error
        finally:
            progress.close()
    if caught:
        click.echo(f"stopped at epoch {run.epoch}; resume with: {again}", err=True)
        sys.exit(128 + caught[0])
    if outcome == "patience":
        say(f"validation stopped improving at epoch {run.epoch}; to go on raise --patience: {again}")
    if message := at_chance(run):
        warn(message)
    if run.best:
        found = f"hits@10 {100 * run.best['hits@10']:.2f} %, MRR {100 * run.best['mrr']:.2f} %"
        say(f"best on valid: {found} at epoch {run.best['epoch']}, which is kept")
    if run.settings.final:
        say(f"saved in {folder}; trained on every triple: no triple is left to evaluate it on")
        return
    take_metrics(run, dataset, folder, threads, again)
    if calibrated and run.calibration is None:  # else it had finished, and may be calibrated in another way
        calibrate_or_say(run, dataset, folder, threads)
    say(f"saved in {folder}")


def take_metrics(run, dataset, folder, threads, again):
    """Evaluates the run on test, saves and shows the metrics; `again` is the command that goes on."""
    loopless = without_loops(dataset.train, dataset.n_relations) if run.settings.no_loops else None
    say(f"evaluating {len(dataset.test):,} test triples{' (loops are no answers)' * run.settings.no_loops}", err=True)
    try:
        with counter("ranked") as progress:
            run.metrics = evaluate(
                run.best_model(), dataset.test, known=dataset.known, threads=threads, progress=progress,
                candidates=Candidates(loopless),
            )  # fmt: skip
    except KeyboardInterrupt:
        click.echo(f"stopped while evaluating; {folder} is trained, evaluate with: {again}", err=True)
        sys.exit(128 + signal.SIGINT)
    save_metrics(run, folder)
    with going_on():
        show_metrics([([setting], sides["both"]) for setting, sides in run.metrics.items()], ["test"])
        show_few(len(run.entities))


def calibrate_or_say(run, dataset, folder, threads):
    """Calibrates the run; a warning where that fails, for a run is complete without."""
    try:
        calibrate_run(run, dataset, folder, threads)
    except CardkgeError as error:
        warn(f"not calibrated: {error}")
    except KeyboardInterrupt:
        again = f"{this_command()} calibrate {shlex.quote(str(folder))}"
        click.echo(f"stopped while calibrating; go on with: {again}", err=True)
        sys.exit(128 + signal.SIGINT)


# --- curves


def examples_per_step(settings, n_triples):
    """The mean number of examples of a step: positive triples and corruptions, or queries (softmax)."""
    if settings.loss == "softmax":
        return 2 * n_triples / -(-2 * n_triples // settings.batch_size)
    return n_triples * (1 + settings.negatives) / (len(batch_limits(n_triples, settings)) - 1)


def trained_on(run):
    """How many triples a run is trained on."""
    return sum(run.data.get(split, 0) for split in (SPLITS if run.settings.final else SPLITS[:1]))


def at_chance(run):
    """A sentence where the loss of the last epoch is still that of chance; else None."""
    settings, n = run.settings, trained_on(run)
    if not run.history or not n:
        return None
    share = settings.negatives / (1 + settings.negatives)  # a hinge loss counts only corruptions
    chance = {"logistic": math.log(2), "hinge": settings.margin * share}.get(settings.loss)
    if chance is None:  # softmax
        of_relations = settings.relation_weight * math.log(len(run.model.params["relation"]))
        chance = math.log(run.model.n_entities) + of_relations
    loss = run.history[-1]["loss"] / examples_per_step(settings, n)
    if loss < 0.98 * chance or chance == 0:
        return None
    found = f"the loss is {loss:.4f} an example after {run.epoch} epochs, {chance:.4f} is chance"
    return f"{found}: the model has learnt nothing yet; try more epochs, smaller batches, or another learning rate"


def curve(run):
    """The training curve: a record for each epoch, with objective, loss and penalty as means per example."""
    examples, best = examples_per_step(run.settings, trained_on(run)), run.best["epoch"] if run.best else None
    scale = dict.fromkeys(("objective", "loss", "penalty"), examples)
    return [
        {name: value / scale[name] if name in scale else value for name, value in record.items()}
        | {"best": record["epoch"] == best}
        for record in run.history
    ]


def show_history(run):
    """A table of some 20 epochs of the `curve`, the first, the last and the best on valid among them."""
    last, best = run.epoch, run.best["epoch"] if run.best else 0
    every = run.settings.validate_every or 1  # validated epochs are to be among those shown
    step = next(n for n in range(math.ceil(last / 20), last + every + 1) if n % every == 0 or every % n == 0)
    columns = dict.fromkeys(("objective", "loss", "penalty"), lambda x: f"{x:,.1f}" if x >= 1000 else f"{x:.4g}")
    columns |= dict.fromkeys(("valid_mrr", "valid_hits@10") if best else (), lambda share: f"{100 * share:.2f}")
    columns["seconds"] = "{:.2f}".format
    rows = []
    for record in curve(run):
        if record["epoch"] in (1, best, last) or record["epoch"] % step == 0:
            cells = [show(record[n]) if n in record else "" for n, show in columns.items()]
            rows.append([str(record["epoch"]), *cells, "best" if record["epoch"] == best else ""])
    names = {"valid_mrr": "valid MRR %", "valid_hits@10": "valid hits@10 %"}
    headers = ["epoch", *(names.get(name, name) for name in columns), *[""] * bool(best)]
    table([row[: len(headers)] for row in rows], headers, "r" * (len(columns) + 1) + "l" * bool(best))


def report_history(folder, others, plot, json_file):
    """`history`: shows, writes or draws the curve of a run, or of several over the seconds of training."""
    pyplot = import_pyplot(plot) if plot else None
    runs = open_histories([folder, *others])
    curves = {name: curve(run) for name, run in runs.items()}
    if plot and others:
        plot_times(pyplot, runs, plot)
    elif plot:
        plot_history(pyplot, *runs.values(), plot, Path(folder).resolve().name)
    if write_report(json_file, curves if others else curves[str(folder)]) and not plot:
        show_times(runs) if others else show_history(*runs.values())


def show_times(runs):
    """A table of MRR and hits@10 on valid over the seconds of training: some 12 validations of each of several runs."""
    rows = []
    for i, run in enumerate(runs.values(), 1):
        points = valid_times(run)
        shown = {*np.linspace(0, len(points) - 1, 12).round().astype(int).tolist()}
        shown.add(next(k for k, point in enumerate(points) if point[0] == run.best["epoch"]))
        for k in sorted(shown):
            epoch, second, *metrics = points[k]
            best = "best" if epoch == run.best["epoch"] else ""
            rows.append([f"({i})", str(epoch), f"{second:,.1f}", *(f"{100 * x:.2f}" for x in metrics), best])
    click.echo("\n".join(f"({i}) {name}" for i, name in enumerate(runs, 1)) + "\n")
    table(rows, ["run", "epoch", "seconds", "valid MRR %", "valid hits@10 %", ""], "lrrrrl")
