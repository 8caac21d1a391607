"""The commands of cardkge: `python cli.py --help`.

No mathematics, no formats, no drawing here: each command calls a room of cardkge_tools, imported inside the command, so
that help needs neither NumPy nor Numba. What the program finds wrong is one line on stderr and exit code 1.
"""

import os
import sys
from pathlib import Path

import click

from cardkge_tools.options import (
    MODEL_TITLES,
    PAPER_TABLES,
    acceptance_options,
    checked_settings,
    columns_option,
    data_options,
    idle_options,
    jobs_option,
    json_option,
    moved_data,
    run_argument,
    threads_option,
    training_options,
    trial_threads_option,
)
from cardkge_tools.terminal import (
    AT_LEAST_1,
    FILE,
    FOLDER,
    Program,
    Real,
    choice,
    counter,
    listed,
    option,
    say,
    table,
    warn,
    was_given,
)

# The library has its own threads; BLAS threads below them would get in their way, and change the bits of a result.
# BLAS reads these when NumPy is imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
def main():
    """Knowledge graph embeddings with cardinality constraints.

    Train a link predictor that knows how many tails a head may have in each relation, and see
    what it makes of it. Start with: python cli.py train --epochs 50
    """


@main.group(invoke_without_command=True)
@click.pass_context
def data(ctx):
    """The data sets: their sizes, and where they were found."""
    if ctx.invoked_subcommand:
        return
    from cardkge_tools.reports import show_data_sets

    show_data_sets()


@data.command()
@click.argument("name")
def fetch(name):
    """Download the data set NAME, check it, and keep it in the user's cache."""
    from cardkge_tools.download import fetch_dataset

    def progress(done, total):
        of = f" of {total / 1e6:.1f}" if total else ""
        click.echo(f"\r{name}: {done / 1e6:.1f}{of} MB\x1b[K", nl=False)

    folder = fetch_dataset(name, progress=progress if sys.stdout.isatty() else None)
    click.echo(f"\r\x1b[K{folder}" if sys.stdout.isatty() else folder)


@data.command()
@click.argument("name")
@columns_option
def show(name, columns):
    """Sizes of the data set NAME (or of the folder NAME), and a triple of each relation."""
    from cardkge_tools.opening import open_data
    from cardkge_tools.reports import show_data_set

    show_data_set(open_data(name, columns))


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
    from cardkge import mine_bounds
    from cardkge_tools.graphs import write_bounds
    from cardkge_tools.opening import open_data

    dataset = open_data(data, columns)
    bounds = mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations, population)
    if out:
        write_bounds(out, bounds, dataset.relations)
    rows = [[name, f"{low:g}", f"{up:g}"] for name, (low, up) in zip(dataset.relations, bounds, strict=True)]
    table(rows, ["relation", "lower", "upper"])


@main.command()
@data_options
@training_options
@threads_option
@option("--out", FOLDER, None, "Folder of the run.  [default: the next free number under runs/]")
@option("--resume", bool, False, "Go on with the run at --out, with its settings. --epochs may be raised.")
@option("--force", bool, False, "Replace the run at --out.")
@option("--no-calibrate", bool, False, "Leave out the calibration at the end, see `calibrate`.")
@click.pass_context
def train(ctx, out, resume, force, no_calibrate, threads, **options):
    """Train a model, evaluate it on the test split, save the run; then calibrate it.

    Ctrl-C saves the state and says how to go on. The same seed and settings give the same
    parameters, bit by bit, whatever the threads and however often the run was resumed.
    """
    from cardkge import option_name
    from cardkge_tools.files import in_use, sole_use
    from cardkge_tools.fitting import fit, new_folder, resume_run, show_rule
    from cardkge_tools.opening import open_data
    from cardkge_tools.runs import new_run

    given = {name for name in ctx.params if was_given(ctx, name)}
    if resume and (force or out is None):
        raise click.UsageError("--resume needs --out RUN, and excludes --force.")
    if resume:
        with sole_use(out) as alone:
            if not alone:
                raise in_use(out)
            resume_run(out, {name: options[name] for name in given & options.keys()}, threads, not no_calibrate)
        return
    with new_folder(out, force) as folder:
        settings = checked_settings(ctx)
        for message in idle_options(settings, {option_name(name) for name in given & options.keys()}):
            warn(message)
        dataset = open_data(settings.data, settings.columns)
        run = new_run(settings, dataset)
        show_rule(run.settings, given)
        fit(run, dataset, folder, threads, not no_calibrate)


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
@option("--no-loops", bool, False, "No (x, r, x) as an answer where train has none; always so for a run trained so.")
@option("--sets", bool, False, "Measure the new facts that `complete` finds, against test, instead of ranks.")
@acceptance_options
@option("--loops", bool, False, "With --sets: (x, r, x) is a candidate even where train has no such fact of r.")
@option("--plot", FILE, None, "With --sets: draw calibration, precision and counts there; needs matplotlib.")
@moved_data
@json_option
@threads_option
@click.pass_context
def evaluate(
    ctx,
    folder,
    split,
    setting,
    ties,
    by,
    no_loops,
    sets,
    min_probability,
    precision,
    loops,
    plot,
    data,
    json_file,
    threads,
):
    """Rank the test triples of RUN and print its metrics, in percent; or, with --sets, measure its answers as sets.

    --sets knows train and valid. Of all (h, r) in scope it takes the calibrated probabilities, given the bounds of the
    run, that (h, r, t) is a fact, and compares them with test; facts that test lacks count as false.
    """
    if sets:
        for name in ("split", "setting", "ties", "by", "no_loops"):
            if was_given(ctx, name):
                raise click.UsageError(f"--{name.replace('_', '-')} is for ranks, and --sets measures sets.")
        from cardkge_tools.facts import evaluate_command

        evaluate_command(folder, data, min_probability, precision, loops, threads, json_file, plot)
        return
    for name in ("min_probability", "precision", "loops", "plot"):
        if was_given(ctx, name):
            raise click.UsageError(f"--{name.replace('_', '-')} needs --sets.")
    from cardkge_tools.files import write_json
    from cardkge_tools.opening import open_run
    from cardkge_tools.reports import evaluation

    run, dataset = open_run(folder, data)
    with counter("ranked") as progress:
        show, report = evaluation(run, dataset, split, setting, ties, by, no_loops, threads, progress)
    if json_file:
        write_json(json_file, report)
    show()


@main.command()
@run_argument
@option(
    "--share",
    Real(0, 1, min_open=True, max_open=True),
    None,
    "The part of the facts missing from train that valid holds.  [default: |valid| / (|valid| + |test|)]",
)
@moved_data
@threads_option
def calibrate(folder, share, data, threads):
    """Fit how probable it is that a triple of a score is a fact, for RUN, on its valid split (as `train` does)."""
    from cardkge_tools.facts import calibrate_run, show_calibration
    from cardkge_tools.opening import open_run

    run, dataset = open_run(folder, data)
    calibrate_run(run, dataset, folder, threads, share)
    show_calibration(run, dataset)


@main.command()
@run_argument
@option("--relation", str, None, "Name of a relation.  [default: all]")
@option("--known", choice("train", "valid", "all"), "all", "What is no new fact: train, with valid, with test too.")
@acceptance_options
@option("--out", FILE, None, "TSV, or N-Triples where the name ends in .nt.  [default: TSV to the terminal]")
@moved_data
@threads_option
def complete(folder, relation, known, min_probability, precision, out, data, threads):
    """The new facts of RUN: head, relation, tail, probability, best first.

    For each relation all heads are asked that train has in it, or in a relation that shares a head with it. The
    probabilities are calibrated, and hold given the bounds that the run was trained with.
    """
    from cardkge_tools.facts import complete_run
    from cardkge_tools.opening import open_run

    run, dataset = open_run(folder, data)
    complete_run(run, dataset, folder, relation, known, min_probability, precision, out, threads)


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
    from cardkge_tools.answers import show_completions

    show_completions(folder, head, relation, tail, top, min_probability, hide_known, data)


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
    from cardkge_tools.figures import import_pyplot, plot_violations, run_labels
    from cardkge_tools.files import write_json
    from cardkge_tools.opening import open_beside
    from cardkge_tools.reports import show_violations, take_violations
    from cardkge_tools.runs import violations_json

    if plot:
        pyplot = import_pyplot(plot)
    runs, limits = open_beside(folder, other, data, bounds)
    found = take_violations(runs, limits, threads)
    if json_file:
        write_json(json_file, {name: violations_json(part) for name, part in found.items()})
    show_violations(found)
    if plot:
        plot_violations(pyplot, found, plot, run_labels({name: each for name, (each, _) in runs.items()}))


@main.command()
@run_argument
@option("--plot", FILE, None, "Draw the curves there (.png, .pdf, ...); needs matplotlib.")
def history(folder, plot):
    """The training curve of RUN: a table of some 20 epochs, or with --plot a figure of all.

    objective, loss and penalty are means over the steps of an epoch; valid MRR and hits@10 are
    filtered. The first, the last and the best epoch on valid, which is the one kept, are always shown.
    """
    from cardkge import CardkgeError
    from cardkge_tools.figures import import_pyplot, plot_history
    from cardkge_tools.reports import show_history
    from cardkge_tools.runs import load_run

    pyplot = import_pyplot(plot) if plot else None
    run = load_run(folder)
    if not run.history:
        raise CardkgeError(f"{folder} has completed no epoch yet: there is no history to show")
    if plot:
        plot_history(pyplot, run, plot, Path(folder).resolve().name)
    else:
        show_history(run)


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
    from cardkge import option_name
    from cardkge_tools.trials import search

    if cluster and was_given(ctx, "jobs"):
        raise click.UsageError("--jobs is for this machine; on a cluster, each thread of a worker does a run.")
    given = {option_name(name): value for name, value in options.items() if was_given(ctx, name)}
    search(grid, grid_file, given, out, jobs, threads, cluster)


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
    from cardkge_tools.figures import import_pyplot, plot_lambda
    from cardkge_tools.reproduction import Reproduction

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


@main.command("check")
@click.argument("name", metavar="MODEL")
def check_command(name):
    """Check MODEL, PATH.py:CLASS or one of the three: its gradients and its ways of scoring.

    Gradients are compared with central differences, number by number, in float64, on a small model: those of
    the loss (d_phi) and those of the regulariser (d_pairs, by default d_phi a head at a time). phi and
    match with query_tails and query_heads must give the same scores.
    """
    from cardkge_tools.reports import show_check

    show_check(name)


@main.group()
def oracle():
    """Reference values for other implementations; docs/ORACLE.md explains them."""


@oracle.command()
@click.argument("file", type=FILE)
@option("--version", click.IntRange(1, 2), 2, "Of the values; version 2 adds softmax, N3 and reciprocal relations.")
def write(file, version):
    """Write the reference values, inputs and outputs, to FILE (JSON)."""
    from cardkge_tools.oracle import write_oracle

    write_oracle(file, version)
    click.echo(file)


@oracle.command()
@click.argument("file", type=FILE)
@option("--rtol", Real(min=0), 1e-9, "A value may differ by atol + rtol * |expected|.")
@option("--atol", Real(min=0), 1e-12, "See --rtol.")
def check(file, rtol, atol):
    """Compare the outputs in FILE with the reference values, and show the first that differs in each case.

    FILE may hold any of the cases, and of a case any of its outputs.
    """
    from cardkge_tools.oracle import check_oracle
    from cardkge_tools.reports import show_verdicts

    show_verdicts(file, check_oracle(file, rtol, atol), rtol, atol)


if __name__ == "__main__":
    main(prog_name="cli.py")
