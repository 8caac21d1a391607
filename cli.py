"""The commands of cardkge: `python cli.py --help`.

No mathematics here. The library is imported inside the commands, so that help needs neither
NumPy nor Numba. What the program finds wrong is one line on stderr and exit code 1.
"""

import contextlib
import difflib
import itertools
import json
import logging
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import warnings
import zlib
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import click

# The library has its own threads; BLAS threads below them would get in their way, and change the bits of a result.
# BLAS reads these when NumPy is imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

METRICS = ("hits@1", "hits@3", "hits@5", "hits@10", "mrr")  # shown in percent
CHECKPOINT_SECONDS = 60.0  # between two saved states while training ...
CHECKPOINT_SHARE = 0.05  # ... or longer, so that no more than this share of the time goes to saving
PLAIN_LINES = 15  # of progress, where the output is no terminal
IN_USE = "another process trains into it"
VIOLATIONS = "violations.json"  # beside the files of a run
LONGEST_NAME = 240  # of a run's folder in bytes of UTF-8, before a checksum; file systems take 255


class Program(click.Group):
    """Turns what the library and the user raise into one line and an exit code."""

    def invoke(self, ctx):
        # names are UTF-8 whatever the locale; where it cannot show a letter, show its code
        sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        try:
            with warnings.catch_warnings():  # NumPy's of an overflow: the library reports its effect itself
                warnings.simplefilter("ignore", RuntimeWarning)
                result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            click.echo("stopped", err=True)
            ctx.exit(128 + signal.SIGINT)
        except MemoryError:
            self.fail(
                ctx,
                "not enough memory for these sizes; try smaller ones (--dim, --hidden, --negatives), or smaller data",
            )
        except BrokenPipeError:
            raise  # nobody reads on: click ends quietly
        except OSError as error:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what is left in the old buffer cannot be written
            gone = isinstance(error, FileNotFoundError)  # of os.getcwd(), which names no file
            where = error.filename or ("the working directory" if gone else "cannot write the output")
            self.fail(ctx, f"{where}: {error.strerror or error}")
        except Exception as error:
            library = sys.modules.get("cardkge")
            if library is None or not isinstance(error, library.CardkgeError):
                raise
            self.fail(ctx, error)

    @staticmethod
    def fail(ctx, error):
        click.echo("error: " + " ".join(str(error).splitlines()), err=True)
        ctx.exit(1)


class Real(click.FloatRange):
    """A finite number in a range; click's own lets NaN and infinity pass."""

    def convert(self, value, param, ctx):
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def choice(*values):
    return click.Choice(values)


class NotEmpty:
    """A kind of text that is there: as a path, "" is the working directory, which nobody has asked for."""

    def convert(self, value, param, ctx):
        if value == "":
            self.fail("it is empty.", param, ctx)
        return super().convert(value, param, ctx)


class Text(NotEmpty, type(click.STRING)):
    pass


class PathName(NotEmpty, click.Path):
    pass


def option(names, kind, default, text):
    """A click option; its default, if it has one, is shown beside its help."""
    kinds = {"is_flag": True} if kind is bool else {"type": Text() if kind is str else kind}
    return click.option(*names.split(), default=default, show_default=default is not None, help=text, **kinds)


def options(*several):
    """Several click options as one decorator, in the order of the help."""

    def decorate(command):
        for each in reversed(several):
            command = each(command)
        return command

    return decorate


AT_LEAST_0, AT_LEAST_1 = click.IntRange(0, 10**9), click.IntRange(1, 10**9)
FILE, FOLDER = PathName(dir_okay=False), PathName(path_type=Path)
SPLITS = ("train", "valid", "test")


def was_given(context, name):
    """Whether the option stands on the command line."""
    return context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE


columns_option = option(
    "--columns", choice("hrt", "htr", "rht", "rth", "thr", "trh"), "hrt", "Order of the fields in a line."
)
data_options = options(
    option("--data", str, "families", "A data set of the table `data`, or the folder of one."), columns_option
)
run_argument = click.argument("folder", metavar="RUN", type=FOLDER)
moved_data = option("--data", str, None, "Where the data of the run is now, if it has moved.")
json_option = option("--json json_file", FILE, None, "Also write the figures there.")
threads_option = option(
    "--threads", AT_LEAST_1, None, "Threads; they change the time, not the result.  [default: all cores]"
)


def library():
    """The library, imported at the last moment."""
    import cardkge

    return cardkge


def warn(message):
    click.echo(f"warning: {message}", err=True)


def table(rows, headers, align="l", style="simple"):
    """Print a table of text; `align` has an l or r per column, r for those after its end; style as in tabulate."""
    from tabulate import tabulate

    sides = [{"l": "left", "r": "right"}[side] for side in align.ljust(len(headers), "r")]
    click.echo(tabulate(rows, headers, style, disable_numparse=True, colalign=sides if rows else None))


def interval(lower, upper):
    return f"[{lower:.15g}, {upper:.15g}" + (")" if math.isinf(upper) else "]")


def short(value):
    """Three digits or more of a sum."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write_json(path, value):
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    library().replace_file(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def open_data(name, columns, **options):
    """Load a data set and print its warnings."""
    dataset = library().load_dataset(name, columns, **options)
    for message in dataset.warnings:
        warn(message)
    return dataset


def run_data(run, data=None, **where):
    """The data set of a run, from where it is now."""
    try:
        return open_data(data or run.settings.data, run.settings.columns, **where)
    except library().CardkgeError as error:
        if data:
            raise
        raise library().CardkgeError(f"{error} (--data says where the run's data is now)") from error


def open_run(folder, data=None):
    """A saved run and its data set, with the ids of the run."""
    run = library().load_run(folder)
    return run, aligned_data(run, folder, data)


def aligned_data(run, folder, data, **where):
    """`run_data` with the ids of the run; a warning where the triples are others than the run's, or it has learnt
    nothing yet."""
    if run.epoch == 0:
        warn(f"{folder} has completed no epoch: its parameters are still random")
    dataset = run_data(run, data, **where)
    if library().describe_data(dataset) == run.data:
        return dataset
    warn(f"{dataset.folder}: these are not the triples that {folder} was trained on")
    return library().align_dataset(dataset, run)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
def main():
    """Knowledge graph embeddings with cardinality constraints.

    Train a link predictor that knows how many tails a head may have in each relation, and see
    what it makes of it. Start with: python cli.py train --epochs 50
    """


# --- data and bounds


@main.group(invoke_without_command=True)
@click.pass_context
def data(ctx):
    """The data sets: their sizes, and where they were found."""
    if ctx.invoked_subcommand:
        return
    rows = []
    for entry in library().dataset_table():
        sizes = [entry[k] for k in ("entities", "relations", *SPLITS)]
        found = str(entry["folder"] or f"not on this machine; {entry['source']}")
        rows.append([entry["name"], *(f"{n:,}" if n else "-" for n in sizes), found])
    table(rows, ["name", "entities", "relations", *SPLITS, "found in"], "lrrrrrl")


@data.command()
@click.argument("name")
def fetch(name):
    """Download the data set NAME, check it, and keep it in the user's cache."""

    def progress(done, total):
        of = f" of {total / 1e6:.1f}" if total else ""
        click.echo(f"\r{name}: {done / 1e6:.1f}{of} MB\x1b[K", nl=False)

    folder = library().fetch_dataset(name, progress=progress if sys.stdout.isatty() else None)
    click.echo(f"\r\x1b[K{folder}" if sys.stdout.isatty() else folder)


@data.command()
@click.argument("name")
@columns_option
def show(name, columns):
    """Sizes of the data set NAME (or of the folder NAME), and a triple of each relation."""
    dataset = open_data(name, columns)
    splits = [getattr(dataset, split) for split in SPLITS]
    click.echo(f"{dataset.folder}: {dataset.n_entities:,} entities, {dataset.n_relations:,} relations\n")
    rows = []
    for relation, relation_name in enumerate(dataset.relations):
        chosen = [triples[triples[:, 1] == relation] for triples in splits]
        h, _, t = next(triples[0] for triples in chosen if len(triples))
        counts = [f"{len(triples):,}" for triples in chosen]
        rows.append([relation_name, dataset.entities[h], dataset.entities[t], *counts])
    rows.append(["(all)", "", "", *(f"{len(triples):,}" for triples in splits)])
    table(rows, ["relation", "for example, head", "tail", *SPLITS], "lll")


@main.command()
@data_options
@option(
    "--population",
    choice("subjects", "relation", "entities"),
    "subjects",
    "Over whom the lower bound is taken: heads of any train triple, heads of the relation, all entities.",
)
@option("--out", FILE, None, "Write a bounds file there.")
def mine(data, columns, population, out):
    """Bounds on the number of tails per head, mined from the train split."""
    dataset = open_data(data, columns)
    bounds = library().mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations, population)
    if out:
        library().write_bounds(out, bounds, dataset.relations)
    rows = [[name, f"{low:g}", f"{up:g}"] for name, (low, up) in zip(dataset.relations, bounds, strict=True)]
    table(rows, ["relation", "lower", "upper"])


# --- training

training_options = options(  # the fields of Settings
    option("--model", choice("distmult", "complex", "ermlp"), "distmult", "Scoring function."),
    option("--dim", AT_LEAST_1, None, "Size k of an embedding: 200 distmult, 150 complex, 100 ermlp."),
    option("--hidden", AT_LEAST_1, 100, "Hidden units (ermlp)."),
    option("--epochs", AT_LEAST_0, 200, "Passes over the train split."),
    option("--batches", AT_LEAST_1, 10, "Mini-batches per epoch."),
    option("--batch-size", AT_LEAST_1, None, "Train triples per mini-batch, in place of --batches."),
    option("--negatives", AT_LEAST_1, 2, "Corruptions of a train triple: of its tail, its head, ..."),
    option("--filter-negatives", bool, False, "Exclude train triples from the corruptions."),
    option("--loss", choice("logistic", "hinge"), "logistic", "Loss."),
    option("--margin", Real(min=0), 0.5, "Margin between probabilities (hinge)."),
    option("--optimizer", choice("adagrad", "sgd"), "adagrad", "Update rule."),
    option("--learning-rate", Real(min=0, min_open=True), 0.1, "Step size."),
    option("--decay", Real(min=0), 0.0, "Divide the learning rate by 1 + decay * epoch (sgd)."),
    option("--accumulator", Real(min=0), 0.1, "Where sums of squared gradients start (adagrad)."),
    option("--l2", Real(min=0), 0.0, "Weight of l2/2 ||row||^2 for the rows of each example."),
    option("--project", choice("unit", "none"), "unit", "Entity rows to norm 1 after each step, or not."),
    option("--bounds", str, "none", "Cardinality bounds: mined (from train), none, or a bounds file."),
    option("--lambda penalty_weight", Real(min=0), 0.01, "Weight of the cardinality penalty, where there are bounds."),
    option(
        "--sampling",
        choice("exact", "uniform", "importance", "bernoulli"),
        "uniform",
        "How the objects of a sum X_hr are drawn.",
    ),
    option("--inclusion", choice("frequency", "uniform"), "frequency", "Chance of an object (bernoulli)."),
    option("--subjects", AT_LEAST_1, 10, "Subjects (mu) per bounded relation and step."),
    option("--objects", AT_LEAST_1, 100, "Objects (omega) per bounded relation and step."),
    option("--subject-pool", choice("relation", "entities"), "relation", "Heads of the relation, or all."),
    option("--seed", click.IntRange(0, 2**32 - 1), 0, "Seed of everything random."),
    option("--dtype", choice("float32", "float64"), "float32", "Precision of the parameters."),
    option("--validate-every", AT_LEAST_0, 0, "Epochs between validations; the best (hits@10) is kept. 0: none."),
    option("--patience", AT_LEAST_0, 0, "Stop after so many validations with no better one. 0: never."),
)


@main.command()
@data_options
@training_options
@threads_option
@option("--out", FOLDER, None, "Folder of the run.  [default: the next free number under runs/]")
@option("--resume", bool, False, "Go on with the run at --out, with its settings. --epochs may be raised.")
@option("--force", bool, False, "Replace the run at --out.")
@click.pass_context
def train(ctx, out, resume, force, threads, **options):
    """Train a model, evaluate it on the test split, save the run.

    Ctrl-C saves the state and says how to go on. The same seed and settings give the same
    parameters, bit by bit, whatever the threads and however often the run was resumed.
    """
    given = {name for name in ctx.params if was_given(ctx, name)}
    if resume and (force or out is None):
        raise click.UsageError("--resume needs --out RUN, and excludes --force.")
    if resume:
        with sole_use(out) as alone:
            if not alone:
                raise in_use(out)
            resume_run(out, {name: options[name] for name in given & options.keys()}, threads)
        return
    with new_folder(out, force) as folder:
        settings = checked_settings(ctx)
        for message in idle_options(settings, {library().option_name(name) for name in given & options.keys()}):
            warn(message)
        dataset = open_data(settings.data, settings.columns)
        fit(library().new_run(settings, dataset), dataset, folder, threads)


def checked_settings(context):
    """The Settings on a command line of `train`; a usage error for what is out of range or does not go together."""
    cardkge = library()
    if was_given(context, "batches") and was_given(context, "batch_size"):
        raise click.UsageError("--batches and --batch-size exclude each other.")
    settings = cardkge.Settings(**{name: context.params[name] for name in cardkge.Settings.__dataclass_fields__})
    try:
        settings.check()
    except cardkge.CardkgeError as error:
        text = re.sub(r"\b[a-z]+(_[a-z]+)+\b", lambda name: "--" + cardkge.option_name(name[0]), str(error))
        raise click.UsageError(f"{text}.") from None
    return settings


def idle_options(settings, given):
    """A line for each of the given options that changes nothing with these settings."""
    of_bounds = ("lambda", "sampling", "inclusion", "subjects", "objects", "subject-pool")
    needs = [
        (("hidden",), "without --model ermlp", settings.model == "ermlp"),
        (("margin",), "without --loss hinge", settings.loss == "hinge"),
        (("accumulator",), "without --optimizer adagrad", settings.optimizer == "adagrad"),
        (of_bounds, "without --bounds", settings.bounds != "none"),
        (("inclusion",), "without --sampling bernoulli", settings.sampling == "bernoulli" or settings.bounds == "none"),
        (("objects",), "with --sampling exact", settings.sampling != "exact" or settings.bounds == "none"),
    ]
    return [
        f"--{name} makes no difference {where}"
        for names, where, met in needs
        for name in names
        if name in given and not met
    ]


def resume_run(folder, given, threads):
    run = library().load_run(folder)
    update_settings(run, given)
    dataset = run_data(run)
    if library().describe_data(dataset) != run.data:
        raise library().CardkgeError(
            f"{dataset.folder}: the data has changed since {folder} was trained on it; "
            "give the old data with --data, or train anew"
        )
    if run.epoch >= run.settings.epochs:
        say(f"{folder} has finished its {run.epoch} epochs; --epochs may be raised")
    fit(run, dataset, folder, threads)


def update_settings(run, given):
    """Take over what a resumed run may change; a usage error for what it may not."""
    for name, value in given.items():
        saved = getattr(run.settings, name)
        if name == "data" or (name == "epochs" and value >= saved):
            setattr(run.settings, name, value)
        elif value != saved:
            option = "--" + library().option_name(name)
            hint = "may only be raised" if name == "epochs" else "cannot change"
            raise click.UsageError(f"{option} {hint} when a run is resumed: saved {saved}, given {value}.")


@contextlib.contextmanager
def new_folder(out, force):
    """A folder for a new run, writable and for sole use; folders made here and left empty vanish."""
    cardkge = library()
    with made_folder(out) as (out, made), sole_use(out) as alone:
        if not alone:
            made.clear()
            raise in_use(out)
        if not cardkge.is_run(out):
            if any(not entry.name.startswith(cardkge.STAGE) for entry in out.iterdir()):
                raise cardkge.CardkgeError(f"{out} is not empty and holds no run; choose another folder with --out")
        elif not force:
            raise cardkge.CardkgeError(f"{out} already holds a run; --resume goes on with it, --force replaces it")
        yield out


@contextlib.contextmanager
def made_folder(out):
    """The folder, made if need be, and those that were made, the innermost first: at the end they vanish if they are
    empty and still listed."""
    made = []
    try:
        yield make_folder(out, made), made
    finally:
        with contextlib.suppress(OSError):
            for folder in made:
                folder.rmdir()


def make_folder(out, made):
    """Make the folder, None: the next free number under runs/, and what is missing above it; what was made is entered
    in `made`, the innermost first. An error if no file can be written there."""
    cardkge = library()
    if out and os.path.isfile(out):
        raise cardkge.CardkgeError(f"{out} is a file; choose another folder with --out")
    try:
        goal = out or Path("runs")
        for folder in reversed([goal, *goal.parents]):
            with contextlib.suppress(FileExistsError):  # another process was quicker
                if not folder.is_dir():
                    folder.mkdir()
                    made.insert(0, folder)
        out = out or numbered_folder(goal, made)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise cardkge.CardkgeError(
            f"{error.filename or out}: cannot be written ({error.strerror}); choose another folder with --out"
        ) from error
    return out


def numbered_folder(parent, made):
    """Make the next free number under `parent`."""
    taken = [int(entry.name) for entry in parent.iterdir() if entry.name.isdecimal()]
    following = max(taken, default=0) + 1
    while True:
        folder = parent / f"{following:04d}"
        with contextlib.suppress(FileExistsError):  # another process was quicker
            folder.mkdir()
            made.insert(0, folder)
            return folder
        following += 1


def in_use(folder):
    return library().CardkgeError(f"{folder}: {IN_USE}; wait for it, or choose another folder with --out")


@contextlib.contextmanager
def sole_use(folder):
    """Takes the folder for this process, among those of this machine, and says whether it could: not while another has
    it. The system gives it back when the process ends, however that ends. What cannot be locked, for it is not there
    or the system has no locks of folders, counts as taken."""
    with contextlib.ExitStack() as held:
        try:
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            alone = False
        except (ImportError, OSError):
            alone = True
        yield alone


@contextlib.contextmanager
def held_signals():
    """Collect SIGINT, SIGTERM and SIGHUP (unless it is ignored, as under nohup) instead of dying of them."""
    caught = []
    signals = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    before = {s: signal.signal(s, lambda number, frame: caught.append(number)) for s in signals}
    try:
        yield caught
    finally:
        for s in signals:
            signal.signal(s, before[s])


def say(text="", **options):
    """click.echo of progress: where nobody reads on (`| head`), the work still goes on."""
    try:
        click.echo(text, **options)
    except BrokenPipeError:
        setattr(sys, "stderr" if options.get("err") else "stdout", open(os.devnull, "w"))  # noqa: SIM115


class Progress:
    """Shows training: one line redrawn on a terminal, at most about PLAIN_LINES lines elsewhere."""

    def __init__(self, run, n_triples):
        self.first, self.last, self.n_triples = run.epoch, run.settings.epochs, n_triples
        self.every = max(1, math.ceil((self.last - self.first) / PLAIN_LINES))
        self.terminal = sys.stdout.isatty()
        self.start = self.drawn = time.monotonic()
        self.text = ""

    def on_epoch(self, run, record):
        self.text = f"  objective {record['objective']:.4f}"
        if record["penalty"]:
            self.text += f" (penalty {record['penalty']:.4f})"
        if "valid_mrr" in record:
            self.text += f"  valid MRR {100 * record['valid_mrr']:.2f}"
        self.text += f"  {self.n_triples / max(record['seconds'], 1e-9):,.0f} triples/s"
        if self.terminal:
            self.draw(run.epoch)
        elif run.epoch in (self.first + 1, self.last) or run.epoch % self.every == 0:
            say(f"epoch {run.epoch}/{self.last}{self.text}{self.left(run.epoch)}")

    def on_step(self, run, step, steps):
        if self.terminal and time.monotonic() - self.drawn > 0.1:
            self.draw(run.epoch + step / steps)

    def draw(self, done):
        filled = int(20 * done / max(self.last, 1))
        bar = "#" * filled + "-" * (20 - filled)
        line = f"[{bar}] epoch {math.ceil(done)}/{self.last}{self.text}{self.left(done)}"
        width = shutil.get_terminal_size().columns - 1
        say(f"\r{line[:width]}\x1b[K", nl=False)
        self.drawn = time.monotonic()

    def left(self, done):
        if done <= self.first:
            return ""
        seconds = (time.monotonic() - self.start) / (done - self.first) * (self.last - done)
        return f"  {int(seconds) // 60}:{int(seconds) % 60:02d} left"

    def close(self):
        if self.terminal and self.drawn > self.start:
            say()


@contextlib.contextmanager
def counter(what):
    """A function (done, total) that shows how far something long has come: one line redrawn on a terminal; elsewhere a
    line at each further tenth, once it has taken some seconds."""
    terminal, shown, tenth = sys.stdout.isatty(), time.monotonic(), 0

    def show(done, total):
        nonlocal shown, tenth
        if terminal and time.monotonic() - shown > 0.1:
            say(f"\r{what}: {done:,} of {total:,}\x1b[K", nl=False)
            shown = time.monotonic()
        elif not terminal and 10 * done // total > tenth:
            if time.monotonic() - shown > 5:
                say(f"{what}: {done:,} of {total:,}", err=True)
            tenth = 10 * done // total

    yield show
    if terminal:
        say("\r\x1b[K", nl=False)


def fit(run, dataset, folder, threads):
    """Train and save the run, evaluate it on the test split, show and save the metrics."""
    cardkge = library()
    progress = Progress(run, len(dataset.train))
    due = 0.0  # when to save the next time

    def save():
        nonlocal due
        start = time.monotonic()
        cardkge.save_run(run, folder)
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
        save()
        try:
            if unfinished:
                outcome = cardkge.train(run, dataset, threads, on_epoch, on_step, stop=lambda: bool(caught))
                save()
        except cardkge.NonFinite as error:
            with contextlib.suppress(cardkge.CardkgeError):  # then the state saved before stays
                save()
            raise cardkge.CardkgeError(f"{error} ({folder} keeps the last good state; --force replaces it)") from error
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
    say(f"evaluating {len(dataset.test):,} test triples")
    try:
        with counter("ranked") as progress:
            run.metrics = cardkge.evaluate(
                run.best_model(), dataset.test, known=dataset.known, threads=threads, progress=progress
            )
    except KeyboardInterrupt:
        click.echo(f"stopped while evaluating; {folder} is trained, evaluate with: {again}", err=True)
        sys.exit(128 + signal.SIGINT)
    cardkge.save_metrics(run, folder)
    show_metrics([([setting], sides["both"]) for setting, sides in run.metrics.items()], ["test"])
    click.echo(f"saved in {folder}")


# --- what a run has learnt


def show_metrics(rows, headers):
    """Print metrics, in percent: a row for each pair of a list, its first columns, and a dict."""
    lines = [[*start, *(f"{100 * m[name]:.2f}" for name in METRICS), f"{m['mean_rank']:,.1f}"] for start, m in rows]
    names = [f"{name.upper() if name == 'mrr' else name} %" for name in METRICS]
    table(lines, [*headers, *names, "mean rank"], "l" * len(headers))


@main.command()
@run_argument
@option("--split", choice("test", "valid", "train"), "test", "Triples to rank.")
@option(
    "--setting", choice("filtered", "raw", "both"), "both", "Leave other true answers out (filtered), or not (raw)."
)
@option(
    "--ties", choice("realistic", "optimistic", "pessimistic"), "realistic", "Rank among equals: mean, best, worst."
)
@option("--by", choice("side", "relation"), None, "Show the parts too: head and tail, or the relations.")
@moved_data
@json_option
@threads_option
def evaluate(folder, split, setting, ties, by, data, json_file, threads):
    """Rank the test triples of RUN and print its metrics, in percent."""
    cardkge = library()
    run, dataset = open_run(folder, data)
    triples = getattr(dataset, split)
    known = dataset.known if setting != "raw" else None
    with counter("ranked") as progress:
        ranks = cardkge.rank_triples(run.best_model(), triples, known, ties=ties, threads=threads, progress=progress)
    rows, report = [], {}
    for name in ("filtered", "raw") if setting == "both" else (setting,):
        report[name] = cardkge.metrics_by_side(ranks[name])
        if by == "side":
            rows += [([name, side], report[name][side]) for side in ("both", "head", "tail")]
        else:
            rows.append(([name, "(all)" if by else "both"], report[name]["both"]))
        if by == "relation":
            parts = cardkge.metrics_by_relation(ranks[name], triples)
            report[name]["relations"] = {run.relations[relation]: part for relation, part in parts.items()}
            rows += [([name, relation], part) for relation, part in report[name]["relations"].items()]
    if json_file:
        write_json(json_file, report)
    show_metrics(rows, [split, by or "side"])


def find(names, name, kind):
    """The id of a name, or an error with names near to it."""
    # where the locale is not UTF-8, Python has read the argument's bytes in another way
    name = os.fsencode(name).decode("utf-8", "replace")
    if name in names:
        return names.index(name)
    near = difflib.get_close_matches(name, names, 3)
    hint = f"did you mean {', '.join(near)}?" if near else "`data show NAME` lists the relations, with examples"
    raise library().CardkgeError(f"{kind} {name!r} is unknown to the run; {hint}")


def known_answers(dataset, column, entity, relation):
    """What completes a triple that has the entity in the column (0 head, 2 tail): id -> the split it stands in."""
    known = {}
    for split in reversed(SPLITS):
        triples = getattr(dataset, split)
        rows = triples[(triples[:, column] == entity) & (triples[:, 1] == relation)]
        known.update((int(e), split) for e in rows[:, 2 - column])
    return known


@main.command()
@run_argument
@option("--head", str, None, "Name of the head: complete (head, relation, ?).")
@click.option("--relation", required=True, help="Name of the relation.")
@option("--tail", str, None, "Name of the tail: complete (?, relation, tail).")
@option("--top", AT_LEAST_1, 10, "Completions to show.")
@option("--min-probability", Real(0, 1), 0.0, "Show none that is less probable.")
@option("--hide-known", bool, False, "Leave out the triples of the data.")
@moved_data
def predict(folder, head, relation, tail, top, min_probability, hide_known, data):
    """The likeliest completions of a triple, and X_hr beside its bound.

    X_hr is the sum of the probabilities of (h, r, t) over all entities t: the number of tails that
    the model expects. With --tail it is shown for each head in the table. A run without bounds is
    shown beside those mined from its train split.
    """
    if (head is None) == (tail is None):
        raise click.UsageError("Give --head or --tail, and not both.")
    cardkge = library()
    run = cardkge.load_run(folder)
    model, bounds, source = run.best_model(), run.bounds, ""
    r = find(run.relations, relation, "relation")
    given = 0 if tail is None else 2  # the column of a triple
    entity = find(run.entities, head if tail is None else tail, "entity")
    known = {}
    try:
        dataset = aligned_data(run, folder, data, download=False)
        known = known_answers(dataset, given, entity, r)
        if not cardkge.is_bounded(bounds).any():
            bounds, source = cardkge.find_bounds("mined", dataset), " (mined)"
    except cardkge.CardkgeError as error:
        if hide_known or data:
            raise
        warn(f"known triples are not marked: {error}")
    likeliest = zip(*cardkge.completions(model, r, **{"head" if tail is None else "tail": entity}), strict=True)
    shown = (each for each in likeliest if each[1] >= min_probability and not (hide_known and each[0] in known))
    chosen, rows = [], []
    for rank, (e, p, score) in enumerate(itertools.islice(shown, top), 1):
        chosen.append(e)
        rows.append([str(rank), run.entities[e], known.get(e, "-"), f"{p:.4f}", f"{score:.4f}"])
    headers = ["rank", "entity", "known", "probability", "score"]
    sums = cardkge.cardinality_sums(model, r, [entity] if tail is None else chosen)
    bound = f"bound {interval(*bounds[r])}{source}"
    if tail is None:
        table(rows, headers, "rll")
        click.echo(f"X_hr = {sums[0]:.2f}, {bound}")
    else:
        table([[*row, f"{x:.2f}"] for row, x in zip(rows, sums, strict=True)], [*headers, "X_hr"], "rll")
        click.echo(f"X_hr of each head, {bound}")


@main.command()
@run_argument
@click.argument("other", metavar="[OTHER]", required=False, type=FOLDER)
@option(
    "--bounds", str, None, "mined (from train), or a bounds file.  [default: those of RUN, else of OTHER, else mined]"
)
@moved_data
@json_option
@option("--plot", FILE, None, "Draw X_hr there (.png, .pdf, ...); needs matplotlib.")
@threads_option
def violations(folder, other, bounds, data, json_file, plot, threads):
    """X_hr of all heads of each bounded relation of RUN, and of OTHER beside it.

    outside: the share of heads whose X_hr is out of bounds, in percent; then the mean and the
    quartiles of X_hr.
    """
    cardkge = library()
    if plot:
        pyplot = import_pyplot(plot)
    run, dataset = open_run(folder, data)
    runs = {str(folder): (run, dataset)}
    if other:
        second = cardkge.load_run(other)
        if str(other) == str(folder):
            raise click.UsageError("RUN and OTHER are the same folder.")
        if second.data != run.data:
            warn(f"{other} was trained on other data than {folder}")
        runs[str(other)] = (second, cardkge.align_dataset(dataset, second))
    limits = choose_bounds(bounds, [run for run, _ in runs.values()], dataset)
    found = {}  # folder -> relation name -> dict
    for name, (each, its_data) in runs.items():
        its_bounds = [limits.get(relation, (0.0, math.inf)) for relation in each.relations]
        with counter(f"{name}: sums") as progress:
            parts = cardkge.cardinality_violations(each.best_model(), its_bounds, its_data.train, threads, progress)
        found[name] = {each.relations[v["relation"]]: v for v in parts}
    if json_file:
        write_json(json_file, {name: violations_json(part) for name, part in found.items()})
    show_violations(found)
    if plot:
        plot_violations(pyplot, found, plot, run_labels({name: each for name, (each, _) in runs.items()}))


def run_labels(runs):
    """A line for the legend for each folder: its name, and whether the run was trained with the regulariser."""
    names = [Path(folder).resolve().name for folder in runs]
    names = names if len(set(names)) == len(names) else list(runs)
    labels = []
    for i, (name, run) in enumerate(zip(names, runs.values(), strict=True), 1):
        weight = run.settings.penalty_weight if library().is_bounded(run.bounds).any() else 0
        how = f"with the regulariser, λ = {weight:.15g}" if weight else "without the regulariser"
        labels.append(f"({i}) {shortened(name, 40)}, {how}")
    return labels


def choose_bounds(bounds, runs, dataset):
    """Bounds by relation name: those asked for, else the first run's that has any, else mined."""
    cardkge = library()
    if bounds is None:
        for run in runs:
            if cardkge.is_bounded(run.bounds).any():
                return dict(zip(run.relations, run.bounds.tolist(), strict=True))
    array = library().find_bounds(bounds or "mined", dataset)
    return dict(zip(dataset.relations, array.tolist(), strict=True))


def violations_json(part):
    """What `violations --json` holds of a run; an upper bound of null is none."""
    names = ("lower", "upper", "subjects", "outside", "mean", "quartiles")
    return {relation: {n: None if v[n] == math.inf else v[n] for n in names} for relation, v in part.items()}


def show_violations(found):
    click.echo("\n".join(f"({i}) {name}" for i, name in enumerate(found, 1)) + "\n")
    headers = ["relation", "bound", "heads"]
    for i in range(1, len(found) + 1):
        headers += [f"({i}) outside %", "mean", "quartiles"]
    headers += ["change outside %", "mean"] if len(found) > 1 else []
    rows = []
    for relation in next(iter(found.values())):
        parts = [part[relation] for part in found.values()]
        first, last = parts[0], parts[-1]
        row = [relation, interval(first["lower"], first["upper"]), f"{first['subjects']:,}"]
        for v in parts:
            row += [f"{100 * v['outside']:.1f}", short(v["mean"]), " ".join(map(short, v["quartiles"]))]
        if len(parts) > 1:
            row += [f"{100 * (last['outside'] - first['outside']):+.1f}", f"{last['mean'] - first['mean']:+,.1f}"]
        rows.append(row)
    if rows:
        table(rows, headers)
    else:
        click.echo("no relation is bounded")


@main.command()
@run_argument
@option("--plot", FILE, None, "Draw the curves there (.png, .pdf, ...); needs matplotlib.")
def history(folder, plot):
    """The training curve of RUN: a table of some 20 epochs, or with --plot a figure of all.

    objective, loss and penalty are means over the steps of an epoch; valid MRR and hits@10 are
    filtered. The first, the last and the best epoch on valid, which is the one kept, are always shown.
    """
    pyplot = import_pyplot(plot) if plot else None
    run = library().load_run(folder)
    if not run.history:
        raise library().CardkgeError(f"{folder} has completed no epoch yet: there is no history to show")
    if plot:
        plot_history(pyplot, run, plot, Path(folder).resolve().name)
        return
    last, best = run.epoch, run.best["epoch"] if run.best else 0
    every = run.settings.validate_every or 1  # whose epochs are to be among those shown
    step = next(n for n in range(math.ceil(last / 20), last + every + 1) if n % every == 0 or every % n == 0)
    columns = dict.fromkeys(("objective", "loss", "penalty"), lambda x: f"{x:,.1f}" if x >= 1000 else f"{x:.4g}")
    columns |= dict.fromkeys(("valid_mrr", "valid_hits@10") if best else (), lambda share: f"{100 * share:.2f}")
    columns["seconds"] = "{:.2f}".format
    rows = []
    for record in run.history:
        if record["epoch"] in (1, best, last) or record["epoch"] % step == 0:
            cells = [show(record[name]) if name in record else "" for name, show in columns.items()]
            rows.append([str(record["epoch"]), *cells, "best" if record["epoch"] == best else ""])
    names = {"valid_mrr": "valid MRR %", "valid_hits@10": "valid hits@10 %"}
    headers = ["epoch", *(names.get(name, name) for name in columns), *[""] * bool(best)]
    table([row[: len(headers)] for row in rows], headers, "r" * (len(columns) + 1) + "l" * bool(best))


# --- plots


def missing_extra(option, error, extra):
    return library().CardkgeError(f"{option} needs {error.name}, which is not installed: pip install -e '.[{extra}]'")


def import_pyplot(path):
    """matplotlib.pyplot without a display; an error if it is missing or cannot write the file."""
    try:
        import matplotlib
    except ImportError as error:
        raise missing_extra("--plot", error, "plot") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    known = matplotlib.figure.Figure().canvas.get_supported_filetypes()
    if Path(path).suffix[1:].lower() not in known:
        raise click.UsageError(f"--plot {path}: the name must end in one of {', '.join(known)}.")
    if not Path(path).absolute().parent.is_dir():
        raise library().CardkgeError(f"--plot {path}: there is no folder {Path(path).parent}")
    return pyplot


STYLE = {  # to be read on a projector: no letter below 11 points
    "font.size": 12, "axes.titlesize": 12, "legend.fontsize": 11, "xtick.labelsize": 11, "ytick.labelsize": 11,
    "lines.linewidth": 2, "lines.markersize": 7, "axes.grid": True, "grid.color": "0.9", "axes.axisbelow": True,
    "legend.handlelength": 3,
    "savefig.dpi": 150, "svg.hashsalt": "cardkge",  # without a salt the names within an SVG are random
}  # fmt: skip
FIRST, SECOND, THIRD = (  # dark, light and in between, so that they differ in grey too
    {"color": "#08519c", "linestyle": "-", "marker": "o"},
    {"color": "#e6781e", "linestyle": "--", "marker": "s", "markerfacecolor": "white"},
    {"color": "0.35", "linestyle": ":", "marker": "^"},
)
VIOLINS = ("#9ecae1", "#e6781e")  # black lines are seen on both
PANELS = 48  # of a figure; more cannot be read


@contextlib.contextmanager
def drawing(pyplot, path, lines, columns, size):
    """A figure and the flat array of its lines * columns panels, saved at `path` when all is drawn."""
    with pyplot.style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that the font lacks: a box is drawn for each
        os.environ.setdefault("SOURCE_DATE_EPOCH", "0")  # some formats hold a date: equal runs, equal bytes
        figure, axes = pyplot.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
        try:
            yield figure, axes.ravel()
            kind = Path(path).suffix[1:].lower()
            library().replace_file(path, lambda file: figure.savefig(file, format=kind))
        finally:
            pyplot.close(figure)


def shortened(name, width, line=100):
    """A name in lines of text for matplotlib, where dollars begin a formula; without its middle if it is too long."""
    text = name if len(name) <= width else f"{name[: width // 2]}…{name[1 + width // 2 - width :]}"
    wrapper = textwrap.TextWrapper(line)
    wrapper.wordsep_re = re.compile(r"(\s+|[_/.,][^\s_/.,]*)")  # a line may end before an underscore, say
    return "\n".join(wrapper.wrap(text)).replace("$", r"\$")


def set_scale(axis, values, label, span=100, ends=()):
    """The y axis for the values and the ends of their error bars: logarithmic, as its label says, where the largest
    value is more than `span` times the least. If some are 0 or below 1e-5 of the largest, it is linear from 0 up to
    the power of ten below the others."""
    low, top = min(values), max(values)
    least = min((value for value in values if value > 1e-5 * top), default=top)
    if top > span * least:
        label += " (log scale)"
        piece = {"linthresh": 10 ** math.floor(math.log10(least)), "linscale": 0.6}
        axis.set_yscale("log") if low >= least else axis.set_yscale("symlog", **piece)
        axis.yaxis.set_major_formatter("{x:,.10g}")
    axis.set_ylabel(label)
    scale = axis.yaxis.get_transform()
    low, top = scale.transform([min([low, *ends]), max([top, *ends])])
    axis.set_ylim(scale.inverted().transform([low - 0.06 * (top - low or 1), top + 0.06 * (top - low or 1)]))
    return scale


def plot_violations(pyplot, found, path, labels):
    """The paper's Figure 2: a panel per relation with a violin of X_hr and its quartiles for each of one or two runs,
    whose labels the legend shows; dashed lines are the bounds."""
    parts = [(relation, [part[relation] for part in found.values()]) for relation in next(iter(found.values()))]
    if not parts:
        raise library().CardkgeError("no relation is bounded: there is nothing to plot")
    if len(parts) > PANELS:
        warn(f"{path} shows {PANELS} of {len(parts)} relations, those with the most heads")
        parts = sorted(parts, key=lambda part: -part[1][0]["subjects"])[:PANELS]
    columns = math.ceil(math.sqrt(len(parts)))
    lines = math.ceil(len(parts) / columns)
    labels = [*labels, "median", "quartiles", "bound"]
    fits = sum(len(label) + 8 for label in labels) < 37 * columns  # into one line: some 12 letters are an inch
    size = max(3 * columns, 6), 3.2 * lines + (0.6 if fits else 1.5)
    with drawing(pyplot, path, lines, columns, size) as (figure, axes):
        for axis in axes[len(parts) :]:
            axis.remove()
        for axis, part in zip(axes, parts, strict=False):
            handles = draw_violins(axis, *part)
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels) if fits else 1)


def draw_violins(axis, relation, parts):
    """One panel; returns what stands in the legend for the runs, a median, the quartiles and a bound."""
    lower, upper = parts[0]["lower"], parts[0]["upper"]
    bounds = [bound for bound in (lower, upper) if math.isfinite(bound)]
    # from a span of some 50 on, the quartiles of the lower of two violins could not be told apart on a linear scale
    scale = set_scale(axis, [x for v in parts for x in v["sums"].tolist()] + bounds, "$X_{hr}$", span=50)
    low, top = scale.transform(axis.get_ylim())
    seen = [(scale.transform(v["sums"]) - low) / (top - low) for v in parts]  # whose density is drawn: places, 0 to 1
    bodies = axis.violinplot(seen, widths=0.85, showextrema=False)["bodies"]
    for place, (body, colour, v) in enumerate(zip(bodies, VIOLINS, parts, strict=False), 1):
        corners = body.get_paths()[0].vertices
        corners[:, 1] = scale.inverted().transform(low + (top - low) * corners[:, 1])
        body.set(facecolor=colour, edgecolor="black", alpha=1, linewidth=1)
        first, median, third = v["quartiles"]
        thick = axis.hlines(median, place - 0.3, place + 0.3, color="black", linewidth=2.5)
        thin = axis.hlines([first, third], place - 0.2, place + 0.2, color="black", linewidth=1)
    for bound in bounds:
        dashed = axis.axhline(bound, color="black", linestyle="--", linewidth=1.5)
    bound = f"({lower:g}, {upper:g})".replace("inf", "∞")
    axis.set_title(shortened(relation, 42, 21) + (" " if len(relation) < 15 else "\n") + bound)
    axis.set_xticks(range(1, len(parts) + 1), [f"({i})" for i in range(1, len(parts) + 1)])
    axis.set_xlim(0.4, len(parts) + 0.6)
    axis.grid(False, axis="x")
    return [*bodies, thick, thin, dashed]


def draw_curve(axis, run, name, label, style, unit=1):
    """A line over the epochs whose record has this number."""
    points = [(record["epoch"], unit * record[name]) for record in run.history if name in record]
    axis.plot(*zip(*points, strict=True), label=label, markevery=max(1, len(points) // 12), **style)
    return [y for _, y in points]


def plot_history(pyplot, run, path, title):
    """Two panels over the epochs: the objective and its parts; MRR and hits@10 on valid, where there are any."""
    validated = run.best is not None
    with drawing(pyplot, path, 1 + validated, 1, (8, 4 + 3 * validated)) as (figure, axes):
        values = draw_curve(axes[0], run, "objective", "objective", FIRST)
        if any(record["loss"] != record["objective"] for record in run.history):
            values += draw_curve(axes[0], run, "loss", "loss", SECOND)
        if any(record["penalty"] for record in run.history):
            values += draw_curve(axes[0], run, "penalty", "penalty", THIRD)
        set_scale(axes[0], values, "mean per step")
        if validated:
            values = draw_curve(axes[1], run, "valid_hits@10", "hits@10", FIRST, 100)
            values += draw_curve(axes[1], run, "valid_mrr", "MRR", SECOND, 100)
            axes[1].set(ylabel="on valid, filtered [%]", ylim=(0, 1.1 * max(*values, 1)))
        for axis in axes:
            if validated:
                best = run.best["epoch"]
                axis.axvline(best, color="black", linestyle="-.", linewidth=1.5, label=f"chosen: epoch {best}")
            axis.set_xlim(0, run.epoch + 1)
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))  # beside, not over, the curves
        axes[-1].set_xlabel("epoch")
        figure.suptitle(shortened(title, 60))


def plot_lambda(pyplot, points, path, title):
    """The paper's Figure 3: the average mean of X_hr (left axis) and hits@10 (right axis) over the weight lambda.

    points: dicts of lambda, x_mean, hits@10 (a fraction), and x_interval and hits@10_interval, the half lengths of the
    error bars or None; ascending in lambda.
    """
    with drawing(pyplot, path, 1, 1, (8, 5)) as (figure, axes):
        left, right = axes[0], axes[0].twinx()
        handles = []
        for axis, name, interval, unit, label, span, style in (
            (left, "x_mean", "x_interval", 1, "Avg. mean of $X_{hr}$", 100, FIRST),
            (right, "hits@10", "hits@10_interval", 100, "Hits@10 [%]", math.inf, SECOND),
        ):
            values = [unit * point[name] for point in points]
            errors = [
                math.nan if point[interval] is None else unit * point[interval] for point in points
            ]  # NaN: no bar
            handles.append(axis.errorbar(range(len(points)), values, errors, capsize=5, **style))
            ends = [value + sign * error for value, error in zip(values, errors, strict=True) for sign in (-1, 1)]
            ends = [end for end in ends if end > 0.1 * min(values)]  # a bar to near 0 may run out of a log scale
            set_scale(axis, values, label, span, ends)
            if axis.get_yscale() == "linear":
                axis.set_ylim(0, 1.1 * max([*values, *ends]) or 1)
        right.grid(False)  # whose lines would lie between those of the left axis
        left.set_xticks(range(len(points)), [f"{point['lambda']:.15g}" for point in points])
        left.set(xlabel="Regularisation parameter λ", xlim=(-0.3, len(points) - 0.7))
        figure.suptitle(shortened(title, 60))
        labels = ["Avg. mean of $X_{hr}$ (left)", "Hits@10 (right)"]
        figure.legend(handles, labels, loc="outside lower center", ncols=2)


# --- many runs


def make_trial(options, where):
    """The settings of a run of `train` that are not its defaults, and data, model and seed: parameter name -> value,
    checked and typed as on its command line.

    options: option name without its dashes -> value; `where` begins the message of a usage error.
    """
    with located(where):
        settings = vars(checked_settings(train_context(options)))
    if settings["dim"] == library().DIMS[settings["model"]]:
        settings["dim"] = None
    always, usual = ("data", "model", "seed"), vars(library().Settings())
    return {name: value for name, value in settings.items() if name in always or value != usual[name]}


@contextlib.contextmanager
def located(where):
    """Usage errors begin with this."""
    try:
        yield
    except click.UsageError as error:
        raise click.UsageError(f"{where}: {error.format_message()}") from None


def train_context(options):
    """What the command line of `train` with these options comes to."""
    flags = [parameter.opts[0].removeprefix("--") for parameter in train.params if getattr(parameter, "is_flag", False)]
    arguments = []
    for name, value in options.items():
        if name in ("out", "resume", "force", "threads", "help", "jobs", "cluster", "grid", "file"):
            raise click.UsageError(f"{name} is no setting that runs may differ in.")
        if name not in flags:
            arguments += [f"--{name}", str(value)]
        else:
            arguments += [f"--{name}"] * is_true(name, value)
    return train.make_context("train", arguments)


def is_true(name, value):
    try:
        return click.BOOL(str(value))
    except click.BadParameter:
        raise click.UsageError(f"{name} is true or false, not {value!r}.") from None


def trial_name(trial):
    """The name of a trial's folder: data, model, what of the other settings is not the default, and the seed."""
    words = {"data": [entry["name"] for entry in library().dataset_table()], "bounds": ["none", "mined"]}

    def text(name):
        value = trial[name]
        if isinstance(value, float):
            value += 0.0  # not -0
            return short if float(short := f"{value:.15g}") == value else repr(value)
        if value in words.get(name, [value]):
            return str(value)
        path = Path(value).resolve()  # of a path the last part, and what tells it from others
        return re.sub(r"[^\w.-]", "_", path.name) + f"~{checksum(path)}"

    others = [name for name in trial if name not in ("data", "model", "seed")]
    settings = [f"{library().option_name(name)}={text(name)}" for name in (*others, "seed")]
    name = ",".join([text("data"), text("model"), *settings])
    if len(name.encode()) > LONGEST_NAME:
        name = f"{name.encode()[:LONGEST_NAME].decode(errors='ignore')}~{checksum(name)}"
    return name


def checksum(text):
    return f"{zlib.crc32(os.fsencode(text)):08x}"


def trial_task(trial, out, bounds=None):
    """What `perform` needs, as plain values, for it may run in another process or on another machine that shares the
    files. With `bounds` the violations of these are taken too."""
    folder, settings, data = os.path.join(os.path.abspath(out), trial_name(trial)), [], ["--data", trial["data"]]
    for name, value in trial.items():
        if value is not False:
            flag = f"--{library().option_name(name)}"
            settings += [flag] if value is True else [flag, str(value)]
    file = os.path.join(folder, VIOLATIONS)
    return {
        "folder": folder,
        "train": ["train", *settings, "--out", folder],
        "resume": ["train", "--resume", *data, "--out", folder],
        "violations": bounds and ["violations", folder, *data, "--bounds", bounds, "--json", file],
        "program": [sys.executable, os.path.abspath(__file__)],
        "directory": os.getcwd(),
        "environment": {name: value for name, value in os.environ.items() if name.startswith("CARDKGE_")},
    }


def commands_of(task):
    """What is missing of a trial: to train it, or to go on with its training; then to write its violations."""

    def there(name):
        return os.path.exists(os.path.join(task["folder"], name))

    commands = []
    if not there("metrics.json"):
        broken = there("config.json") and not there("model.npz")  # killed while it saved for the first time
        commands.append(task["resume"] if there("model.npz") else task["train"] + ["--force"] * broken)
    if task["violations"] and not there(VIOLATIONS):
        commands.append(task["violations"])
    return commands


def perform(task, threads, processes):
    """Do what is missing of a trial, in processes of their own. Returns the line of an error, or None.

    A process of this machine that is at the trial already is waited for: another command's, or one whose worker died.
    """
    while commands := commands_of(task):
        with sole_use(task["folder"]) as free:
            pass
        if not free:
            if processes.stopped:
                return "stopped"
            time.sleep(0.2)
            continue
        code, errors = processes.run(
            [*task["program"], *commands[0], "--threads", str(threads)],
            cwd=task["directory"], env={**os.environ, **task["environment"]},
        )  # fmt: skip
        lines = [line for line in errors.split("\n") if line.strip() and not line.startswith("warning: ")]
        ended = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        error = lines[-1] if lines else ended
        # else another process has been at it between the look and the start
        if code and IN_USE not in error and commands_of(task) == commands:
            return error
    return None


class Processes:
    """Processes that can be stopped together."""

    def __init__(self):
        self.running, self.stopped, self.lock = set(), False, threading.Lock()

    def run(self, command, **options):
        """Runs a command to its end; returns its exit code and what it wrote to stderr. For several threads."""
        with self.lock:
            if self.stopped:
                return 1, "stopped"
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
            try:
                process = subprocess.Popen(command, **quiet, **options)
            except OSError as error:
                return 1, f"a process cannot be started: {error.filename or command[0]}: {error.strerror}"
            self.running.add(process)
        errors = process.communicate()[1]
        with self.lock:
            self.running.discard(process)
        return process.returncode, errors.decode("utf-8", "replace")

    def stop(self):
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.terminate()


def carry_out(tasks, jobs, threads, cluster=None):
    """Perform the tasks side by side, here or on a Dask cluster, and say of each when it is done. Returns the errors of
    those that failed: name of the folder -> line."""
    began, failed, done = time.monotonic(), {}, 0

    def report(task, error):
        nonlocal done
        done += 1
        name, outcome = os.path.basename(task["folder"]), "done"
        if error:
            failed[name] = error.removeprefix("error: ")
            outcome = f"failed: {failed[name]}"
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        say(f"[{done}/{len(tasks)}] {minutes}:{seconds:02d}  {name}: {outcome}", err=True)

    if cluster:
        carry_out_on_cluster(tasks, threads, cluster, report)
        return failed
    processes = Processes()
    with held_signals() as caught, ThreadPoolExecutor(jobs) as pool:
        try:
            pending = {pool.submit(perform, task, threads, processes): task for task in tasks}
            while pending and not caught:
                for each in wait(pending, timeout=0.2, return_when=FIRST_COMPLETED).done:
                    task, error = pending.pop(each), each.result()
                    if not (error and caught):  # then it has been stopped
                        report(task, error)
        finally:
            processes.stop()
    if caught:
        click.echo("stopped; the same command goes on from here", err=True)
        sys.exit(128 + caught[0])
    return failed


def carry_out_on_cluster(tasks, threads, address, report):
    """`carry_out` on the workers of a Dask scheduler, by joblib. A trial whose worker dies is given to another."""
    cardkge = library()
    try:
        import joblib
        from distributed import Client, TimeoutError
    except ImportError as error:
        raise missing_extra("--cluster", error, "cluster") from error

    def one(number, task):
        return number, perform(task, threads, Processes())

    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise cardkge.CardkgeError(
            f"{address}: no Dask scheduler answers there; start one with `dask scheduler`"
        ) from error
    caught, ended = [], threading.Event()

    def stop(number, frame):
        caught.append(number)
        raise KeyboardInterrupt

    def watch(alone=False):
        with contextlib.suppress(Exception):  # what goes wrong here, goes wrong in the main thread too
            while not ended.wait(5):
                was_alone, alone = alone, not client.ncores()
                if alone and not was_alone:
                    say(f"{address}: no worker is left; waiting for one: `dask worker {address}`", err=True)

    logging.disable()  # errors are raised too
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with client, joblib.parallel_config("dask"):
            try:
                client.wait_for_workers(1, timeout=10)
            except TimeoutError as error:
                raise cardkge.CardkgeError(
                    f"{address}: the scheduler has no workers; start some with `dask worker {address}`"
                ) from error
            threading.Thread(target=watch, daemon=True).start()
            backend, _ = joblib.parallel.get_active_backend()
            # else joblib counts the threads that the workers have now: with one, it does the runs in this process,
            # and what it hands out later, it hands out to no more at once
            backend.effective_n_jobs = lambda n_jobs: 1 + len(tasks)
            parallel = joblib.Parallel(n_jobs=-1, batch_size=1, return_as="generator_unordered")
            for number, error in parallel(joblib.delayed(one)(*each) for each in enumerate(tasks)):
                report(tasks[number], error)
    except KeyboardInterrupt:
        click.echo("stopped; the same command goes on from here, once what runs on the workers has ended", err=True)
        sys.exit(128 + (caught or [signal.SIGINT])[0])
    except cardkge.CardkgeError:
        raise
    except Exception as error:  # of Dask or joblib, of many classes
        raise cardkge.CardkgeError(
            f"{address}: the cluster failed ({type(error).__name__}: {error}); the same command goes on from here"
        ) from error
    finally:
        ended.set()
        logging.disable(logging.NOTSET)
        signal.signal(signal.SIGTERM, before)


jobs_option = option("--jobs", AT_LEAST_1, 1, "Runs side by side, each in a process of its own.")
trial_threads_option = option("--threads", AT_LEAST_1, None, "Threads of each run.  [default: cores / jobs]")


def run_trials(trials, out, jobs, threads, cluster=None, bounds=None):
    """Run what is missing of the trials under `out`. Returns their outcomes, None for one that failed, and the errors:
    name of the trial -> line.

    An outcome is `read_outcome`; where bounds(trial) names bounds, with "violations", as `read_violations` gives them.
    """
    cardkge = library()
    tasks, expected, datasets = {}, {}, {}
    for trial in trials:
        source = trial["data"], trial.get("columns", "hrt")
        if source not in datasets:
            dataset = open_data(*source)
            datasets[source] = dataset, cardkge.describe_data(dataset)
        dataset, data = datasets[source]
        task = tasks[trial_name(trial)] = trial_task(trial, out, bounds and bounds(trial))
        its_bounds = cardkge.find_bounds(trial.get("bounds", "none"), dataset)
        reported = bounds and reported_bounds(bounds(trial), dataset)
        expected[task["folder"]] = trial, dataset.relations, data, its_bounds, reported
    del datasets, dataset  # their memory is for the runs
    with made_folder(out):
        for folder, its in expected.items():
            if os.path.exists(os.path.join(folder, "config.json")):
                check_trial(Path(folder), *its)
        missing = [task for task in tasks.values() if commands_of(task)]
        if len(missing) < len(tasks):
            say(f"{len(tasks) - len(missing)} of {len(tasks)} runs are in {out} already", err=True)
        failed = {}
        if missing:
            jobs = min(jobs, len(missing))
            threads = threads or (1 if cluster else max(1, cardkge.count_cores() // jobs))
            failed = carry_out(missing, jobs, threads, cluster)
    outcomes = {}
    for name in tasks.keys() - failed.keys():
        folder = Path(tasks[name]["folder"])
        if not folder.is_dir():
            failed[name] = f"a worker has done it, but {folder} is not here: do the workers share these files?"
            continue
        try:
            outcomes[name] = cardkge.read_outcome(folder)
            if bounds:
                outcomes[name]["violations"] = cardkge.read_violations(folder / VIOLATIONS)
        except cardkge.CardkgeError as error:
            failed[name] = str(error)
            warn(error)
    return [outcomes.get(trial_name(trial)) for trial in trials], failed


def reported_bounds(name, dataset):
    """The bounds that `violations` reports on: relation -> [lower, upper] of the bounded ones that have heads."""
    limits, of_train = library().find_bounds(name, dataset), dataset.train[:, 1]
    bounded = library().is_bounded(limits).nonzero()[0]
    return {dataset.relations[r]: limits[r].tolist() for r in bounded if (of_train == r).any()}


def check_trial(folder, trial, relations, data, bounds, reported):
    """An error if the run in the folder, begun or finished, is of other settings, data or bounds than the trial would
    be now. Violations of other bounds than those to be `reported`, if any are, are removed, to be taken anew."""
    cardkge = library()
    settings, its_data = cardkge.read_config(folder)
    if its_data != data:
        raise cardkge.CardkgeError(f"{folder}: trained on other data than {trial['data']} is now; remove this folder")
    wanted = cardkge.Settings(**trial)
    wanted.dim = wanted.dim or cardkge.DIMS[wanted.model]
    for name, value in vars(wanted).items():
        found = getattr(settings, name)
        if name not in ("data", "bounds") and found != value:
            option = "--" + cardkge.option_name(name)
            raise cardkge.CardkgeError(f"{folder}: trained with {option} {found}, not {value}; remove this folder")
    file = folder / "bounds.tsv"
    if file.exists() and (cardkge.read_bounds(file, relations) != bounds).any():
        now = trial.get("bounds", "none")
        raise cardkge.CardkgeError(f"{folder}: trained with other bounds than {now} now; remove this folder")
    if reported is not None and (folder / VIOLATIONS).exists():
        found = cardkge.read_violations(folder / VIOLATIONS)
        if {relation: [v["lower"], v["upper"]] for relation, v in found.items()} != reported:
            (folder / VIOLATIONS).unlink()


def read_grid(path, grid):
    """The fixed options and the grid, each name -> value or values, of a TOML file and of NAME=V,V,... given."""
    fixed, axes = {}, {}
    if path:
        fixed = read_toml(path)
        axes = fixed.pop("grid", {})
        if not isinstance(axes, dict):
            raise library().CardkgeError(f"{path}: grid must be one table [grid], of lists of values")
        for name, values in axes.items():
            if not isinstance(values, list) or not values:
                raise library().CardkgeError(f"{path}: {name} must be a list of values, in the table [grid]")
        for name, value in fixed.items():
            if isinstance(value, dict):
                raise library().CardkgeError(f"{path}: [{name}] is unknown; the one table of the file is [grid]")
            if isinstance(value, list):
                raise library().CardkgeError(f"{path}: {name} has several values; put it into the table [grid]")
    for text in grid:
        name, equals, values = text.partition("=")
        if not (name and equals and all(values.split(","))):
            raise click.UsageError(f"--grid {text}: expected NAME=VALUE,VALUE,...")
        if name in axes:
            raise click.UsageError(f"--grid {text}: {name} is in the grid twice.")
        axes[name] = values.split(",")
    if not axes:
        raise click.UsageError("Nothing to try: give --grid NAME=V,V,... or --file with a table [grid].")
    return fixed, axes


def read_toml(path):
    try:
        import tomllib
    except ImportError:  # Python 3.10
        try:
            import tomli as tomllib
        except ImportError as error:
            raise library().CardkgeError(
                f"{path}: TOML needs Python 3.11, or `pip install tomli`; --grid needs neither"
            ) from error
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:
        raise library().CardkgeError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


@main.command()
@data_options
@training_options
@click.option("--grid", metavar="NAME=V,V,...", multiple=True, help="An option of train and its values; repeatable.")
@option(
    "--file grid_file", FILE, None, "TOML: options of train for all runs (an --option wins); a table [grid] of lists."
)
@option("--out", FOLDER, Path("tune"), "Folder of the runs, and of trials.csv, the table of the latest grid.")
@jobs_option
@trial_threads_option
@option(
    "--cluster",
    str,
    None,
    "Address of a Dask scheduler, whose workers share these files and do the runs, of one thread each if --threads is"
    " not given (extra: cluster).",
)
@click.pass_context
def tune(ctx, grid, grid_file, out, jobs, threads, cluster, **options):
    """Try every combination of a grid; choose by filtered hits@10 on the valid split.

    Takes the options of train, for all runs alike; without a validation there is one after the last epoch. What is
    finished in the folder --out is not done again, what was interrupted goes on. Results on the test split never
    decide; how the chosen run does there is shown last. A seed in the grid is an option like any other: the best single
    run is chosen.

    Example: python cli.py tune --model complex --bounds mined --grid lambda=0,0.001,0.01 --grid objects=10,100

    \b
    The same as a file for --file:
        model = "complex"
        bounds = "mined"
        [grid]
        lambda = [0, 0.001, 0.01]
        objects = [10, 100]

    For --cluster start `dask scheduler` on one machine and `dask worker SCHEDULER` on each, where files and
    installation have the same paths; a worker does as many runs at once as it has threads. Where a worker is killed and
    its machine is not, end the `cli.py train` that it leaves behind: another machine does not see it, and takes its run
    over.
    """
    if cluster and was_given(ctx, "jobs"):
        raise click.UsageError("--jobs is for this machine; on a cluster, each thread of a worker does a run.")
    fixed, axes = read_grid(grid_file, grid)
    if grid_file:
        with located(grid_file):
            train_context(fixed)
    fixed |= {library().option_name(name): value for name, value in options.items() if was_given(ctx, name)}
    for name in axes.keys() & {"data", "columns"}:
        raise click.UsageError(f"{name} is in the grid, but runs on different data cannot be compared.")
    for name in fixed.keys() & axes.keys():
        raise click.UsageError(f"{name} is in the grid and fixed too; leave one of them out.")
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    trials = {}  # name -> combination, trial
    for combination in combinations:
        where = f"{grid_file}: " if grid_file else ""
        where += ", ".join(f"{name}={value}" for name, value in combination.items())
        trial = validated_trial(fixed | combination, where)
        name = trial_name(trial)
        if name in trials:
            raise click.UsageError(f"{where}: the same run is in the grid twice.")
        trials[name] = combination, trial
    idle = [idle_options(library().Settings(**trial), fixed | axes) for _, trial in trials.values()]
    for message in idle[0]:
        if all(message in messages for messages in idle):
            warn(message)
    outcomes, failed = run_trials([trial for _, trial in trials.values()], out, jobs, threads, cluster)
    outcomes = dict(zip(trials, outcomes, strict=True))

    def valid(name):  # nothing else decides, and of equals the first in the grid leads
        return (outcomes[name]["valid"]["hits@10"], outcomes[name]["valid"]["mrr"]) if outcomes[name] else (-1, -1)

    rows, lines = [], []
    ranked = sorted(trials, key=valid, reverse=True)
    for name in ranked:
        combination, found, shown = trials[name][0], {}, ["failed", "", "", ""]
        if outcome := outcomes[name]:
            found = outcome["valid"] | {"epoch": outcome["epoch"], "seconds": round(outcome["seconds"], 3)}
            shown = [f"{100 * x:.2f}" for x in valid(name)] + [str(found["epoch"]), f"{found['seconds']:.1f}"]
        rows.append({**combination, **found, "run": name, "failure": failed.get(name, "")})
        lines.append([*map(str, combination.values()), *shown])
    text = library().csv_text([*axes, "hits@10", "mrr", "epoch", "seconds", "run", "failure"], rows)
    content = text.encode(errors="backslashreplace")
    make_folder(out, [])  # it is gone where no run has come to write anything
    library().replace_file(out / "trials.csv", lambda file: file.write(content))
    table(lines, [*axes, "valid hits@10 %", "MRR %", "epoch", "seconds"], "l" * len(axes))
    best = ranked[0]
    if not outcomes[best]:
        raise library().CardkgeError(f"all {len(trials)} runs failed; {best}: {failed[best]}")
    click.echo(f"\nchosen: {out / best}")
    show_metrics([([setting], sides["both"]) for setting, sides in outcomes[best]["test"].items()], ["test"])


def validated_trial(options, where):
    """`make_trial`, with a validation after the last epoch where none is asked for; a usage error if there is none."""
    trial = make_trial(options, where)
    epochs = library().Settings(**trial).epochs
    if not trial.get("validate_every"):
        trial = make_trial(options | {"validate-every": epochs}, where)
    every = trial.get("validate_every", 0)
    if not 0 < every <= epochs:
        raise click.UsageError(
            f"{where}: no validation in {epochs} epochs, so nothing to choose by; raise --epochs"
            f" or lower --validate-every ({every})."
        )
    return trial


# --- the paper's tables and figures

PAPER_TABLES = {  # name: method, what it is, data sets and models unless they are given
    "datasets": ("datasets", "Table 3: sizes of the data sets", "fb13,wn18,wn18rr,yago3-10", ""),
    "constraints": ("constraints", "Table 4: mined bounds", "fb13,wn18,wn18rr,yago3-10", ""),
    "link-prediction": (
        "link_prediction", "Tables 5 and 6: without and with the regulariser", "wn18rr", "ermlp,distmult,complex"
    ),
    "sampling": ("sampling", "Table 7: the ways to draw the objects of a sum", "wn18rr", "complex"),
    "violations": ("violations", "Figure 2 as a table: X_hr without and with the regulariser", "wn18rr", "complex"),
    "lambda": ("weight", "Figure 3: mean X_hr and hits@10 as lambda grows", "wn18rr", "complex"),
    "poe": ("poe", "Tables 1 and 8: likely parents of Edgar Allan Poe, seed 0", "fb13", "distmult"),
}  # fmt: skip
MODEL_TITLES = {"ermlp": "ER-MLP", "distmult": "DistMult", "complex": "ComplEx"}


class Reproduction:
    """What `reproduce` was asked for, and a method for each table of PAPER_TABLES that returns headers and rows."""

    def __init__(self, data, models, seeds, project, quick, out, jobs, threads):
        facts = library().read_json(Path(__file__).resolve().parent / "data" / "reproduction.json")
        self.paper, self.people, self.lambdas = (facts[name] for name in ("paper", "people", "lambdas"))
        self.recipes, self.unprojected, self.quick_train = facts["recipes"], facts["unprojected"], facts["quick"]
        self.project, self.data, self.models, self.seeds, self.quick = project, data, models, range(seeds), quick
        self.run_options = {"out": out, "jobs": jobs, "threads": threads}
        self.notes, self.points = [], {}

    def pairs(self):
        return [(data, model) for data in self.data for model in self.models]

    def recipe(self, data, model):
        recipe = self.recipes.get(data, self.recipes["default"])[model]
        if self.project:
            recipe = recipe | {"train": recipe["train"] | {"project": self.project}}
        return recipe if self.project != "none" else {"train": recipe["train"], "regulariser": self.unprojected}

    def trial(self, data, model, variant, seed):
        """A run of the recipe: "plain", or with the regulariser as "bounded", a sampling or a lambda says."""
        recipe = self.recipe(data, model)
        options = {"data": data, "model": model, **recipe["train"], "seed": seed}
        if variant not in ("plain", 0):
            changed = {} if variant == "bounded" else {"lambda": variant}
            if variant in library().SAMPLINGS:
                changed = {"sampling": variant, **recipe.get(variant, {})}
            options |= recipe["regulariser"] | changed
        if self.quick:
            options |= self.quick_train
        return make_trial(options, f"the recipe of {model} for {data}")

    def run(self, variants, violations=False, seeds=None):
        """(data, model) -> variant -> the outcomes of its seeds."""

        def bounds(trial):  # the same for a run without the regulariser
            return self.recipe(trial["data"], trial["model"])["regulariser"]["bounds"]

        seeds = seeds or self.seeds
        keys = [(*pair, variant, seed) for pair in self.pairs() for variant in variants for seed in seeds]
        trials = [self.trial(*key) for key in keys]
        outcomes, failed = run_trials(trials, **self.run_options, bounds=bounds if violations else None)
        for name, error in failed.items():
            raise library().CardkgeError(f"{len(failed)} of {len(trials)} runs failed; {name}: {error}")
        seconds = sum(outcome["seconds"] for outcome in outcomes)
        self.notes = [
            f"{len(outcomes)} runs, which trained for {seconds / 60:,.1f} minutes. Their settings, but the seed:"
        ]
        self.notes += dict.fromkeys(trial_name(trial).rpartition(",seed=")[0] for trial in trials)
        found = dict(zip(keys, outcomes, strict=True))
        return {
            (data, model): {variant: [found[data, model, variant, seed] for seed in seeds] for variant in variants}
            for data, model in self.pairs()
        }

    def found(self, name):
        """The data set; None for one of the table `data` that is not on this machine."""
        folders = {entry["name"]: entry["folder"] for entry in library().dataset_table()}
        return open_data(name, "hrt") if folders.get(name, name) else None

    def datasets(self):
        names, rows = ("relations", "entities", *SPLITS), []
        for name in self.data:
            where, sizes = f"not on this machine; see `data fetch {name}`", [""] * 5
            if dataset := self.found(name):
                sizes = [dataset.n_relations, dataset.n_entities, *(len(getattr(dataset, split)) for split in SPLITS)]
                where, sizes = "here", [f"{size:,}" for size in sizes]
            rows.append([name, where, *sizes])
            if name in self.paper["datasets"]:
                rows.append(["", "paper", *(f"{size:,}" for size in self.paper["datasets"][name])])
        return ["data", "", *names], rows

    def constraints(self):
        rows = []
        for name in self.data:
            paper = {relation: interval(*bound) for relation, bound in self.paper["constraints"].get(name, {}).items()}
            ours = dict.fromkeys(paper, f"not on this machine; see `data fetch {name}`")
            if dataset := self.found(name):
                bounds = library().find_bounds("mined", dataset).tolist()
                ours = {relation: interval(*bound) for relation, bound in zip(dataset.relations, bounds, strict=True)}
            for relation in paper or ours:
                rows.append([name, relation, ours.get(relation, "no such relation"), paper.get(relation, "-")])
        return ["data", "relation", "here", "paper"], rows

    def metric_rows(self, start, found, paper, minus=None, paper_minus=None):
        """A row of our metrics, then the paper's; of the differences, if `minus` has the outcomes to subtract."""

        def test(outcomes, name):
            return outcomes and [outcome["test"]["filtered"]["both"][name] for outcome in outcomes]

        signed = minus is not None
        ours = [percent(library().estimate(test(found, name), test(minus, name)), signed) for name in METRICS]
        rows = [[*start, "here", *ours, str(len(found))]]
        if paper and (paper_minus or not signed):
            theirs = [paper[name] - paper_minus[name] if signed else paper[name] for name in METRICS]
            rows.append([*("" for _ in start), "paper", *(f"{x:+.2f}" if signed else f"{x:.2f}" for x in theirs), ""])
        return rows

    def comparison(self, first, *others):
        """Rows of the metrics of the variants, and of the differences of the others to the first."""
        rows = []
        for (data, model), found in self.run((first, *others)).items():
            paper = self.paper["link-prediction"].get(data, {}).get(model, {})
            paper = paper | (self.paper["sampling"].get(data, {}) if model == "complex" else {})
            start = [data, MODEL_TITLES[model]]
            for variant in found:
                rows += self.metric_rows([*start, variant], found[variant], paper.get(variant))
                start = ["", ""]
            for variant in others:
                against = found[first], paper.get(first)
                title = f"{variant} - {first}"
                rows += self.metric_rows(["", "", title], found[variant], paper.get(variant), *against)
        headers = [*(f"{name.upper() if name == 'mrr' else name} %" for name in METRICS), "seeds"]
        return ["data", "model", "", "", *headers], rows

    def link_prediction(self):
        return self.comparison("plain", "bounded")

    def sampling(self):
        return self.comparison("plain", "uniform", "importance", "bernoulli")

    def violations(self):
        rows, estimate = [], library().estimate
        for (data, model), found in self.run(("plain", "bounded"), violations=True).items():
            start, paper = [data, MODEL_TITLES[model]], self.paper["violations"].get(data, {}).get(model, {})
            for relation, first in found["plain"][0]["violations"].items():
                parts = [[outcome["violations"][relation] for outcome in outcomes] for outcomes in found.values()]
                plain, bounded = ([v["mean"] for v in part] for part in parts)
                row = [*start, relation, interval(first["lower"], first["upper"]), f"{first['subjects']:,.0f}"]
                row += [percent(estimate([v["outside"] for v in part])) for part in parts]
                row += [amount(estimate(plain)), amount(estimate(bounded)), amount(estimate(bounded, plain), True)]
                row += [percent(estimate(bounded, plain, relative=True), True)]
                rows.append([*row, f"{paper[relation]:+d}" if relation in paper else ""])
                start = ["", ""]
        headers = ["data", "model", "relation", "bound", "heads", "outside %: plain", "bounded"]
        return [*headers, "mean X: plain", "bounded", "change", "change %", "paper"], rows

    def weight(self):
        """The points of the figure are kept in self.points: (data, model) -> list of dicts."""
        rows, estimate, first = [], library().estimate, self.lambdas[0]
        for (data, model), found in self.run(self.lambdas, violations=True).items():
            hits = {w: [o["test"]["filtered"]["both"]["hits@10"] for o in part] for w, part in found.items()}
            sums = {w: [library().average_sum(o["violations"]) for o in part] for w, part in found.items()}
            start, points = [data, MODEL_TITLES[model]], []
            for weight in self.lambdas:
                x, h = estimate(sums[weight]), estimate(hits[weight])
                changes = ["", ""]
                if weight != first:
                    changes = [amount(estimate(sums[weight], sums[first]), True)]
                    changes += [percent(estimate(hits[weight], hits[first]), True)]
                rows.append([*start, f"{weight:g}", amount(x), percent(h), *changes, str(len(self.seeds))])
                start = ["", ""]
                point = {"lambda": weight, "x_mean": x["mean"], "x_interval": x["interval"]}
                points.append(point | {"hits@10": h["mean"], "hits@10_interval": h["interval"]})
            self.points[data, model] = points
        return ["data", "model", "lambda", "mean X", "hits@10 %", "change of mean X", "of hits@10", "seeds"], rows

    def poe(self):
        """The tails that seed 0 finds likely, p > 0.8, and at least five."""
        cardkge, rows = library(), []
        for data in self.data:
            if data not in self.people:
                raise cardkge.CardkgeError(f"no person of {data} is named in data/reproduction.json")
        variants = ("plain", "bounded")
        self.run(variants, seeds=[0])
        for (data, model), variant in itertools.product(self.pairs(), variants):
            folder = self.run_options["out"] / trial_name(self.trial(data, model, variant, 0))
            run, dataset = open_run(folder, data)
            head, relation = self.people[data]
            h, r = find(run.entities, head, "entity"), find(run.relations, relation, "relation")
            ids, probabilities, _ = cardkge.completions(run.best_model(), r, head=h)
            likely, total = sum(p > 0.8 for p in probabilities), cardkge.cardinality_sums(run.best_model(), r, [h])[0]
            known = known_answers(dataset, 0, h, r)
            theirs = self.paper["poe"] if (data, model) == ("fb13", "distmult") else {}
            paper = [f"{name} {p:.3f}" for name, p in theirs.get(variant, [])]
            start = [data, MODEL_TITLES[model], variant, f"{head}, {relation}, ?"]
            for rank, (e, p) in enumerate(zip(ids[: max(5, min(likely, 10))], probabilities)):
                row = [run.entities[e], known.get(e, "-"), f"{p:.3f}"]
                rows.append([*start, *row, paper[rank] if rank < len(paper) else ""])
                start = ["", "", "", ""]
            count = f"{theirs[f'{variant}_likely']} with p > 0.8" if theirs else ""
            rows.append([*start, f"{likely} with p > 0.8; X = {short(total)}", "", "", count])
        return ["data", "model", "", "query", "tail", "known", "p", "paper"], rows


def percent(value, signed=False):
    """An estimate in percent, with its interval."""
    sign = "+" if signed else ""
    text = f"{100 * value['mean']:{sign}.2f}"
    return text if value["interval"] is None else f"{text} ± {100 * value['interval']:.2f}"


def amount(value, signed=False):
    """An estimate of a sum, with its interval."""
    text = ("+" if signed and value["mean"] >= 0 else "") + short(value["mean"])
    return text if value["interval"] is None else f"{text} ± {short(value['interval'])}"


def listed(text):
    """The names in a text, which has commas between them or is the path of a folder; each once."""
    names = (name.strip() for name in text.split(","))
    return [text] if os.path.isdir(text) else list(dict.fromkeys(name for name in names if name))


REPRODUCE_HELP = """Make a table or figure of the paper; where the paper has values, they stand beside ours.

\b
{}

Runs what is missing in the folder --out, with the recipes in data/reproduction.json. Intervals (±) are 95 % confidence
intervals over the seeds; differences are paired, run by run with the same seed. `violations --plot` draws Figure 2, of
two of the runs. Of Figure 3 the paper's text and caption name different data sets; the default is the text's."""


@main.command(help=REPRODUCE_HELP.format("\n".join(f"{n:16} {about[1]}" for n, about in PAPER_TABLES.items())))
@click.argument("table_name", metavar="TABLE", type=choice(*PAPER_TABLES))
@option("--data", str, None, "Data sets, separated by commas.  [default: those of the table]")
@option("--models", str, None, "Models, separated by commas.  [default: those of the table]")
@option("--seeds", AT_LEAST_1, 3, "Runs of each, with the seeds 0, 1, ...")
@jobs_option
@trial_threads_option
@option("--out", FOLDER, Path("reproduction"), "Folder of the runs.")
@option("--project", choice("unit", "none"), None, "Entity rows of norm 1, or free.  [default: unit, on families none]")
@option("--quick", bool, False, "A small form, by default on families: shows that it works, no results.")
@option("--markdown", bool, False, "Print the table for a document.")
@option("--plot", FILE, None, "For lambda: draw the figure there (.png, .pdf, ...); needs matplotlib.")
@click.pass_context
def reproduce(ctx, table_name, data, models, seeds, jobs, threads, out, project, quick, markdown, plot):
    method, _, its_data, its_models = PAPER_TABLES[table_name]
    chosen = listed(models or its_models)
    for name in chosen:
        if name not in MODEL_TITLES:
            raise click.UsageError(f"--models: {name!r} is none of {', '.join(MODEL_TITLES)}.")
    folders = listed(data or ("families" if quick else its_data))
    plan = Reproduction(folders, chosen, seeds, project, quick, out, jobs, threads)
    if not plan.data or (its_models and not chosen):
        raise click.UsageError("--data and --models need a name each.")
    if plot and (table_name != "lambda" or len(plan.pairs()) != 1):
        raise click.UsageError("--plot is for `reproduce lambda` of one data set and one model.")
    pyplot = import_pyplot(plot) if plot else None
    unused = ["seeds"] if method == "poe" else [] if its_models else ["models", "seeds", "jobs", "threads", "project"]
    for name in unused:
        if was_given(ctx, name):
            warn(f"--{name} makes no difference to the table {table_name}")
    for name in folders:
        if its_models and not quick and name not in plan.recipes:
            warn(f"{name} has no recipe of its own in data/reproduction.json; the one named default is used")
    headers, rows = getattr(plan, method)()
    table(rows, headers, "l" * len(headers), "github" if markdown else "simple")
    for note in plan.notes:
        say(note, err=True)
    if plot:
        (((data, model), points),) = plan.points.items()
        plot_lambda(pyplot, points, plot, f"{data}, {MODEL_TITLES[model]}")


# --- oracle


@main.group()
def oracle():
    """Reference values for other implementations; docs/ORACLE.md explains them."""


@oracle.command()
@click.argument("file", type=FILE)
def write(file):
    """Write the reference values, inputs and outputs, to FILE (JSON)."""
    library().write_oracle(file)
    click.echo(file)


@oracle.command()
@click.argument("file", type=FILE)
@option("--rtol", Real(min=0), 1e-9, "A value may differ by atol + rtol * |expected|.")
@option("--atol", Real(min=0), 1e-12, "See --rtol.")
def check(file, rtol, atol):
    """Compare the outputs in FILE with the reference values, and show the first that differs in each case.

    FILE may hold any of the cases, and of a case any of its outputs.
    """
    verdicts = library().check_oracle(file, rtol, atol)
    for name, verdict, text in verdicts:
        click.echo(f"{verdict:8} {name}  {text}".rstrip())
    counts = {verdict: sum(found == verdict for _, found, _ in verdicts) for verdict in ("ok", "differs", "skipped")}
    summary = f"{counts['ok']} ok, {counts['differs']} differ, {counts['skipped']} skipped"
    click.echo(f"\n{summary} (rtol {rtol:g}, atol {atol:g})")
    if counts["differs"]:
        raise library().CardkgeError(f"{file}: {counts['differs']} of {counts['ok'] + counts['differs']} cases differ")


if __name__ == "__main__":
    main(prog_name="cli.py")
