"""The commands of cardkge: `python cli.py --help`.

Each command calls a room of cardkge_tools, imported inside the command, so that help needs neither NumPy nor Numba. An
error is one line on stderr and exit code 1."""

import os
import sys
from pathlib import Path

import click

from cardkge_tools.shell import options as shared
from cardkge_tools.shell.options import AT_LEAST_1, BOUNDS_OUTPUT, FILE, FOLDER, OUTPUT, PROBABILITY, SEED, SHARE
from cardkge_tools.shell.terminal import OutputName, PathName, Program, Real, choice, option, warn, was_given

# The library has its own threads. BLAS threads would get in their way, and change the bits of a result. BLAS reads
# these variables when NumPy is imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
def main():
    """Knowledge graph embeddings with cardinality constraints.

    Train a link predictor, find new triples with their probabilities, and see how well it keeps to the
    number of tails that a head may have. Start with: cardkge train --epochs 50"""


@main.group(invoke_without_command=True)
@shared.json_option
@click.pass_context
def data(ctx, json_file):
    """The data sets: their sizes, and where they were found."""
    if ctx.invoked_subcommand:
        return
    from cardkge_tools.experiments.reports import show_data_sets

    show_data_sets(json_file)


@data.command()
@click.argument("name")
def fetch(name):
    """Download the data set NAME, check it, and keep it in the user's cache."""
    from cardkge_tools.shell.download import fetch_dataset

    def progress(done, total):
        of = f" of {total / 1e6:.1f}" if total else ""
        click.echo(f"\r{name}: {done / 1e6:.1f}{of} MB\x1b[K", nl=False)

    folder = fetch_dataset(name, progress=progress if sys.stdout.isatty() else None)
    click.echo(f"\r\x1b[K{folder}" if sys.stdout.isatty() else folder)


@data.command()
@click.argument("name")
@shared.columns_option
@shared.json_option
def show(name, columns, json_file):
    """Sizes of the data set NAME (or of the folder NAME), a triple of each relation, and what train gives away of test:
    facts that are in train too, turned round or under the name of another relation."""
    from cardkge_tools.graph.splitting import show_data

    show_data(name, columns, json_file)


@main.command()
@shared.data_options
@option(
    "--population",
    choice("subjects", "relation", "entities"),
    "subjects",
    "Whose smallest number is the lower bound: heads of any train triple, heads of the relation, all entities.",
)
@option("--confidence", SHARE, None, "Report only significant maxima, at this level.")
@option("--likelihood", SHARE, 0.9, "Share of subjects that a maximum must hold for.")
@option("--min-support", AT_LEAST_1, 1, "Least number of subjects with as many objects as the maximum.")
@option("--out", BOUNDS_OUTPUT, None, "Write a bounds file there: TSV, or SHACL where the name ends in .ttl.")
@shared.json_option
@click.pass_context
def mine(ctx, data, columns, population, confidence, likelihood, min_support, out, json_file):
    """Bounds on the number of tails per head, mined from the train split.

    With --confidence (or --min-support) only maxima M that the data supports: for a relation, for its inverse (written
    ^relation), and for a class whose subjects have fewer. Of the subjects with M objects or more, the share with just M
    is at least --likelihood, at the level --confidence (by default 0.95; Hoeffding's bound)."""
    from cardkge_tools.graph.bound_files import run_mine

    level = None
    if any(was_given(ctx, name) for name in ("confidence", "min_support", "likelihood")):
        level = min_support, confidence or 0.95, likelihood
        if was_given(ctx, "population"):
            raise click.UsageError("--population is for lower bounds; --confidence reports only maxima.")
    run_mine(data, columns, population, level, out, json_file)


@main.command(name="import")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PathName())
@click.option("--out", required=True, type=FOLDER, help="The folder to make.")
@click.option("--bounds", multiple=True, type=FILE, help="Bounds: TSV, or SHACL or OWL in RDF; repeatable.")
@click.option("--prefix", metavar="NAME=IRI", multiple=True, help="A prefix to shorten IRIs by; repeatable.")
@option("--literals", choice("drop", "keep"), "drop", "Facts whose object is a literal.")
@option("--type-relation", str, "rdf:type", "The relation that gives classes, by its short name or IRI.")
@shared.number_options
@option("--keep-schema", bool, False, "Keep types, subclasses and other statements of schemas among the facts too.")
@option("--columns", str, "hrt", "Tables: an order, or head, relation, tail by header names or numbers, with commas.")
@option("--header", bool, False, "Tables: the first line names the columns.")
@option("--delimiter", str, None, "Tables: between fields.  [default: tab, or a comma in .csv]")
@option("--normalise", bool, False, "Tables: names in NFC, without spaces at their ends.")
@click.option(
    "--format",
    "form",
    type=choice("nt", "nq", "ttl", "trig", "rdf", "jsonld", "tsv", "csv"),
    help="Format of every FILE, whatever its name ends in.",
)
@option("--base", str, None, "RDF: the IRI that relative IRIs start from.  [default: the place of the file]")
@option("--force", bool, False, "Replace an imported graph at --out.")
@shared.json_option
def import_(files, out, bounds, prefix, force, json_file, **options):
    """Make a folder of triples from FILEs: N-Triples, N-Quads, Turtle, TriG, RDF/XML, JSON-LD (extra: rdf), TSV, CSV,
    all of them .gz too, or an OpenKE folder.

    \b
    triples.tsv    the facts; `split` makes train, valid and test of them
    types.tsv      entity, class
    prefixes.tsv   what the short names stand for
    bounds.tsv     of --bounds, --number and --number-at-least"""
    from cardkge_tools.graph.exchange import run_import

    run_import(files, out, bounds, prefix, force, json_file, options)


@main.command()
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--out", required=True, type=FOLDER, help="The folder to make.")
@option("--valid", SHARE, 0.05, "Share of the triples for valid.")
@option("--test", SHARE, 0.1, "Share of the triples for test.")
@option("--seed", SEED, 0, "Seed of the choice.")
@option("--no-group", bool, False, "Let a triple and its inverse, or near-duplicate, go to different splits.")
@shared.columns_option
@option("--force", bool, False, "Replace the splits at --out.")
@shared.json_option
def split(folder, out, no_group, json_file, **options):
    """Split the triples of DIR (triples.tsv, or train, valid and test merged) into train, valid and test.

    Every entity and relation stays in train. A triple and its twin in an inverse, symmetric or nearly equal relation
    stay in one split, so that train does not give test away. The other files of DIR are copied."""
    from cardkge_tools.graph.splitting import run_split

    run_split(folder, out, not no_group, json_file, options)


@main.group()
def bounds():
    """Files of bounds."""


@bounds.command()
@click.argument("source", metavar="IN", type=FILE)
@click.argument("target", metavar="OUT", type=BOUNDS_OUTPUT)
@click.option("--prefix", metavar="NAME=IRI", multiple=True, help="A prefix of names; repeatable.")
@option("--as standard", choice("shacl", "owl"), "shacl", "What Turtle is written in.")
def convert(source, target, prefix, standard):
    """Convert bounds between TSV and RDF (SHACL, OWL), by the endings of the names IN and OUT.

    Short names are those of a prefixes.tsv beside the TSV file, if there is one."""
    from cardkge_tools.graph.bound_files import run_convert

    run_convert(source, target, prefix, standard)


@main.command()
@shared.run_argument
@click.option("--format", "form", required=True, type=choice("word2vec", "tsv", "npz", "tensorboard"), help="Format.")
@click.option("--out", required=True, type=OutputName(dir_okay=True), help="File, or folder (tsv, tensorboard).")
def export(folder, form, out):
    """Write the embeddings of RUN for other programs; docs/FORMATS.md describes the files."""
    from cardkge_tools.answers.runs import load_run
    from cardkge_tools.graph.exchange import export as write

    for path in write(load_run(folder, calibrated=False), form, out):
        click.echo(path)


@main.command()
@shared.data_options
@shared.training_options
@shared.threads_option
@option("--out", FOLDER, None, "Folder of the run.  [default: the next free number under runs/]")
@option("--resume", bool, False, "Go on with the run at --out, with its settings. --epochs may be raised.")
@option("--force", bool, False, "Replace the run at --out.")
@option("--no-calibrate", bool, False, "Do not calibrate at the end (see `calibrate`).")
@option("--final", FOLDER, None, "A run: train with its settings, up to its best epoch, on all three splits.")
@click.pass_context
def train(ctx, out, resume, force, no_calibrate, threads, final, **options):
    """Train a model, keep its best validation, evaluate it on the test split, save the run; then calibrate it.

    Ctrl-C saves the state and says how to go on. The same seed and settings give the same parameters, bit for bit, with
    any number of threads, resumed or not."""
    from cardkge_tools.answers.runs import new_run
    from cardkge_tools.definitions.settings import option_name
    from cardkge_tools.experiments.fitting import fit, new_folder, resume_run, show_rule, train_final
    from cardkge_tools.graph.graphs import open_data
    from cardkge_tools.shell.files import in_use, sole_use

    given = {name for name in ctx.params if was_given(ctx, name)}
    if final is not None:
        if resume or not given <= {"final", "out", "force", "threads", "data", "model"}:
            allowed = "--out, --data, --force, --threads, and --model for a class of your own"
            raise click.UsageError(f"--final takes the settings of its RUN; it allows only {allowed}.")
        data, model = (options[name] if name in given else None for name in ("data", "model"))
        train_final(final, out, force, threads, data, model)
        return
    if resume and (force or out is None):
        raise click.UsageError("--resume needs --out RUN, and excludes --force.")
    if resume:
        with sole_use(out) as alone:
            if not alone:
                raise in_use(out)
            resume_run(out, {name: options[name] for name in given & options.keys()}, threads, not no_calibrate)
        return
    with new_folder(out, force) as folder:
        settings = shared.checked_settings(ctx)
        warn(*shared.idle_options(settings, {option_name(name) for name in given & options.keys()}))
        dataset = open_data(settings.data, settings.columns)
        run = new_run(settings, dataset)
        show_rule(run.settings, given)
        fit(run, dataset, folder, threads, not no_calibrate)


@main.command()
@click.argument("folders", metavar="RUN RUN...", nargs=-1, type=FOLDER, required=True)
@click.option("--out", type=FOLDER, required=True, help="Folder of the joined run.")
@option("--force", bool, False, "Replace the run at --out.")
@shared.moved_data
@shared.threads_option
def join(folders, out, force, data, threads):
    """Make one run of several of the same graph, say of other seeds: its scores are the means of theirs, and it is
    evaluated and calibrated as one. DistMult and ComplEx; the parameters of all of them are in it."""
    from cardkge_tools.experiments.joining import join_runs

    join_runs(folders, out, force, data, threads)


@main.command()
@shared.run_argument
@option("--split", choice("test", "valid", "train"), "test", "Triples to rank.")
@option("--setting", choice("filtered", "raw", "both"), "both", "filtered: leave other true answers out.")
@option("--ties", choice("realistic", "optimistic", "pessimistic"), "realistic", "Rank of equals: mean, best, worst.")
@click.option(
    "--by",
    multiple=True,
    type=choice("side", "relation", "known"),
    help="Show the parts too: side or relation; with --sets relation, or known, the number of known tails; repeatable.",
)
@option("--candidates", choice("all", "range"), "all", "Among whom: all entities, or those on that side in train.")
@option("--skip-unknown", bool, False, "Leave out triples with names that the run does not know.")
@option("--no-loops", bool, False, "No (x, r, x) as an answer where train has no loop of r, as a run trained so.")
@option("--sets", bool, False, "Measure the new facts that `complete` finds, against test, instead of ranks.")
@shared.acceptance_options
@shared.conditions_option
@option("--loops", bool, False, "With --sets: (x, r, x) is a candidate even if train has no loop of r.")
@option(
    "--truth",
    FILE,
    None,
    "With --sets: whole answers, `head TAB relation TAB number TAB tails TAB number of others`, to measure against.",
)
@option("--plot", OUTPUT, None, "With --sets: draw calibration, precision and counts there; needs matplotlib.")
@shared.report_options
@click.pass_context
def evaluate(ctx, folder, sets, skip_unknown, plot, data, json_file, threads, **options):
    """Rank the test triples of RUN and print its metrics, in percent; or, with --sets, measure its answers as sets.

    --sets knows train and valid. Of all (h, r) in scope it takes the calibrated probabilities, given the bounds of the
    run, that (h, r, t) is a fact, and compares them with test; facts that test lacks count as false. With --truth it
    takes the (h, r) in that file, and what the file says is true: their tails in the graph, with spaces between, and
    how many others they have."""
    shared.refuse_given(ctx, shared.EVALUATE_REFUSES[sets])
    shared.refuse_both_thresholds(ctx)
    of_sets = {name: options.pop(name) for name in ("min_probability", "precision", "loops", "bounds", "truth")}
    if (other := "side" if sets else "known") in options["by"]:
        raise click.UsageError(f"--by {other} is {'not for' if sets else 'for'} --sets.")
    if sets:
        from cardkge_tools.answers.showing import Measuring, evaluate_command

        evaluate_command(folder, data, Measuring(by=options["by"], plot=plot, **of_sets), threads, json_file)
        return
    from cardkge_tools.experiments.reports import Ranking, rank_command

    rank_command(folder, data, Ranking(**options), skip_unknown, threads, json_file)


@main.command()
@shared.run_argument
@shared.fitting_options
@shared.report_options
def calibrate(folder, data, json_file, threads, **options):
    """Fit the probabilities of RUN on its valid split (as `train` does), through the bounds of its answers.

    What p promises depends on how much is missing from train. Valid and test are part of it; what no file has follows
    from bounds that are exact numbers (3, 3), or --missing gives it; else it is assumed to be nothing."""
    from cardkge_tools.answers.facts import Fitting
    from cardkge_tools.answers.showing import calibrate_command

    if options["share"] is not None and (options["missing"] or options["elsewhere"] != "none"):
        raise click.UsageError("--share excludes --missing and --missing-elsewhere.")
    calibrate_command(folder, data, Fitting(**options), threads, json_file)


@main.command()
@shared.run_argument
@option("--relation", str, None, "Name of a relation.  [default: all]")
@option("--queries", FILE, None, "The (h, r) to complete, `head TAB relation` a line.  [default: all in scope]")
@option(
    "--known", choice("train", "valid", "all"), "all", "What is not new: facts of train; of train and valid; of all."
)
@shared.acceptance_options
@option("--guess", bool, False, "Names too that only a lower bound asks for, far beyond what the model expects.")
@shared.conditions_option
@option("--out", OUTPUT, None, "TSV, or N-Triples (.nt); .gz packs either.  [default: TSV to the terminal]")
@option(
    "--completeness",
    OUTPUT,
    None,
    "Write there, for each (h, r): head, relation, known tails, expected number, probability that no tail is missing.",
)
@shared.cluster_option
@click.option("--part", type=click.IntRange(0), nargs=2, hidden=True, help="A worker's: a range of (h, r), as .npz.")
@shared.moved_data
@shared.threads_option
@click.pass_context
def complete(ctx, folder, min_probability, out, completeness, cluster, part, data, threads, **options):
    """The new facts of RUN: head, relation, tail, probability, best first.

    In scope are, for each relation, its heads in train and those of relations that share a head with it; where the
    graph has classes, also the members of the smallest class with these heads. The probabilities are calibrated, and
    hold given the bounds.

    For --cluster start `dask scheduler` on one machine and `dask worker SCHEDULER` on each, where files and
    installation have the same paths; the file that is written is the same."""
    shared.refuse_both_thresholds(ctx)
    if part and out is None:
        raise click.UsageError("--part needs --out.")
    from cardkge_tools.answers.facts import Completing, complete_part, complete_run

    if options["queries"] and options["relation"]:
        raise click.UsageError("--queries and --relation exclude each other.")
    what = Completing(least=min_probability, **options)
    if part:
        complete_part(folder, what, part, out, data, threads)
    else:
        complete_run(folder, what, out, data, threads, cluster, completeness)


@main.command()
@shared.run_argument
@click.argument("file", metavar="FILE", type=FILE)
@option("--valid", FILE, None, "Labelled triples to learn from.  [default: none; p says what is true]")
@option("--skip-unknown", bool, False, "Leave out triples with names that the run does not know.")
@shared.report_options
def classify(folder, file, valid, skip_unknown, data, json_file, threads):
    """Tell true triples from false: how well RUN does on the labelled triples in FILE.

    A line of FILE is head, relation, tail, label with tabs between, label 1, 0 or -1. With --valid a logistic model for
    each relation learns from labels: the score, its softmax over tails and over heads, how frequent the tail and how
    well known the head is, how many tails are known, whether a bound is full, and what else the graph says of the head.
    It is shown beside a threshold per relation, Platt scaling, and the frequency of the tail alone. AUC is of p."""
    from cardkge_tools.answers.classification import classify_command

    classify_command(folder, file, valid, skip_unknown, data, json_file, threads)


@main.command()
@shared.run_argument
@option("--head", str, None, "Name of the head: complete (head, relation, ?).")
@option("--relation", str, None, "Name of the relation.")
@option("--tail", str, None, "Name of the tail: complete (?, relation, tail).")
@option("--queries", FILE, None, "A file of queries, `head TAB relation` or `? TAB relation TAB tail` a line.")
@option("--out", OUTPUT, None, "With --queries: write the answers there.  [default: to the terminal]")
@option("--top", AT_LEAST_1, 10, "Completions to show.")
@option("--min-probability", PROBABILITY, 0.0, "Show no completion that is less probable.")
@option("--hide-known", bool, False, "Leave out the triples of the data.")
@option("--x", bool, False, "Show X_hr under softmax too, where it is no count.")
@shared.conditions_option
@shared.moved_data
@shared.json_option
@click.pass_context
def predict(ctx, folder, head, relation, tail, queries, out, data, json_file, **options):
    """The likeliest completions of a triple, and how many there are, beside the bound.

    The probabilities of a calibrated run are those of a fact, given the data and the bounds of the run: known triples
    have 1, and the expected count is the sum over all tails. Accepted is what `complete` writes: what has more than
    0.5, best first, as far as the bounds of (h, r) and of (r, t) have room.

    X_hr, the paper's count, is the sum of sigma(score) of (h, r, t) over all entities t. With --tail the counts are of
    each head in the table, and where the run has bounds of the inverse, the probabilities of heads hold given the
    number that t may have: for that each of the N entities is scored with each of the N. A run without bounds is shown
    beside those mined from its train split. With --head and --tail: the score, the probability and the ranks of that
    triple.

    The answers to --queries are lines of head, relation, tail, probability, score, and the split that knows the triple.
    """
    from cardkge_tools.answers.showing import Shown, answer_queries, show_completions, show_triple

    shown = Shown(**options)
    shared.refuse_given(ctx, shared.PREDICT_REFUSES[bool(queries)])
    if queries:
        answer_queries(folder, queries, shown, data, out)
        return
    if relation is None:
        raise click.UsageError("Missing option '--relation'.")
    if head is None and tail is None:
        raise click.UsageError("Give --head or --tail, or both for one triple.")
    show = show_completions if None in (head, tail) else show_triple
    show(folder, (head, relation, tail), shown, data, json_file)


@main.command()
@shared.run_argument
@click.argument("other", metavar="[OTHER]", required=False, type=FOLDER)
@option("--bounds", str, None, "mined, or a bounds file.  [default: those of RUN, else of OTHER, else mined]")
@shared.moved_data
@shared.json_option
@option("--plot", OUTPUT, None, "Draw X_hr there (.png, .pdf, ...); needs matplotlib.")
@shared.threads_option
def violations(folder, other, bounds, data, json_file, plot, threads):
    """X_hr of all heads of each bounded relation of RUN, and of OTHER beside it.

    outside: the share of heads whose X_hr is out of bounds, in percent; then come the mean and the quartiles of X_hr.
    """
    from cardkge_tools.experiments.reports import report_violations

    report_violations(folder, other, bounds, data, json_file, plot, threads)


@main.command()
@shared.run_argument
@click.argument("others", metavar="[OTHER]...", nargs=-1, type=FOLDER)
@option("--plot", OUTPUT, None, "Draw the curves there (.png, .pdf, ...); needs matplotlib.")
@shared.json_option
def history(folder, others, plot, json_file):
    """The training curve of RUN: a table of some 20 epochs, or with --plot a figure of all. With OTHER runs: MRR and
    hits@10 on valid of all runs, over the seconds of training (without validation, with compilation); --json then
    writes an object, folder -> curve.

    objective, loss and penalty are means per example, a positive triple or a corruption; valid MRR and hits@10 are
    filtered. The first, the last and the best epoch on valid, which is kept, are always shown."""
    from cardkge_tools.experiments.fitting import report_history

    report_history(folder, others, plot, json_file)


@main.command()
@shared.data_options
@shared.training_options
@click.option("--grid", metavar="NAME=V,V,...", multiple=True, help="An option of train and its values; repeatable.")
@option("--file grid_file", FILE, None, "TOML: options of train for all runs (an --option wins), and a table [grid].")
@option("--out", FOLDER, Path("tune"), "Folder of the runs, and of trials.csv, the table of the latest grid.")
@shared.jobs_option
@shared.trial_threads_option
@shared.cluster_option
@shared.json_option
@click.pass_context
def tune(ctx, grid, grid_file, out, jobs, threads, cluster, json_file, **options):
    """Try every combination of a grid; choose by filtered hits@10 on the valid split.

    The options of train hold for all runs; without a validation among them there is one after the last epoch. Runs
    that have finished in the folder --out are not repeated, interrupted ones go on. The test split never decides; the
    last table shows how the chosen run does there. A seed in the grid is an option like any other: the best single run
    is chosen.

    Example: cardkge tune --model complex --bounds mined --grid lambda=0,0.001,0.01 --grid objects=10,100

    \b
    The same as a file for --file:
        model = "complex"
        bounds = "mined"
        [grid]
        lambda = [0, 0.001, 0.01]
        objects = [10, 100]

    For --cluster start `dask scheduler` on one machine and `dask worker SCHEDULER` on each, where files and
    installation have the same paths; a worker does as many runs at once as it has threads. If a worker is killed but
    its machine lives, end the `cli.py train` that it leaves behind: another machine does not see it, and takes over its
    run."""
    from cardkge_tools.definitions.settings import option_name
    from cardkge_tools.experiments.trials import Place, search

    if cluster and was_given(ctx, "jobs"):
        raise click.UsageError("--jobs is for this machine; on a cluster, each thread of a worker does a run.")
    given = {option_name(name): value for name, value in options.items() if was_given(ctx, name)}
    search(grid, grid_file, given, Place(out, jobs, threads, cluster), json_file)


REPRODUCE_HELP = """Make a table or figure of the paper, with the paper's values, where it has them, beside ours.

\b
{}

Runs what is missing in the folder --out, with the recipes in data/reproduction.json. Intervals (±) are 95 % confidence
intervals over the seeds; differences are paired, run by run with the same seed. `violations RUN OTHER --plot` draws
Figure 2. The paper's text and caption name different data sets for Figure 3; the default is the text's."""


@main.command(help=REPRODUCE_HELP.format("\n".join(f"{n:16} {about[1]}" for n, about in shared.PAPER_TABLES.items())))
@click.argument("table_name", metavar="TABLE", type=choice(*shared.PAPER_TABLES))
@option("--data", str, None, "Data sets, separated by commas.  [default: those of the table]")
@option("--models", str, None, "Models, separated by commas.  [default: those of the table]")
@option("--seeds", AT_LEAST_1, 3, "How many runs of each, with the seeds 0, 1, ...")
@shared.jobs_option
@shared.trial_threads_option
@option("--out", FOLDER, Path("reproduction"), "Folder of the runs.")
@option("--project", choice("unit", "none"), None, "Entity rows of norm 1, or free.  [default: unit, on families none]")
@option("--quick", bool, False, "Short runs, by default on families: they show that it works, not what it finds.")
@option("--markdown", bool, False, "Print the table for a document.")
@option("--plot", OUTPUT, None, "For lambda: draw the figure there (.png, .pdf, ...); needs matplotlib.")
@shared.json_option
@click.pass_context
def reproduce(ctx, table_name, markdown, plot, json_file, **options):
    from cardkge_tools.experiments.reproduction import reproduce_table

    reproduce_table(table_name, options, {name for name in options if was_given(ctx, name)}, markdown, plot, json_file)


@main.command("check")
@click.argument("name", metavar="MODEL")
@shared.json_option
def check_command(name, json_file):
    """Check MODEL, PATH.py:CLASS or one of the three: its gradients and its ways of scoring.

    Gradients are compared with central differences, number by number, in float64, on a small model: those of
    the loss (d_phi) and those of the regulariser (d_pairs, by default d_phi a head at a time). phi and
    match with query_tails and query_heads must give the same scores."""
    from cardkge_tools.experiments.reports import show_check

    show_check(name, json_file)


@main.group()
def oracle():
    """Reference values for other implementations; docs/ORACLE.md explains them."""


@oracle.command()
@click.argument("file", type=OUTPUT)
@option("--version", click.IntRange(1, 5), 5, "Version of the values; 2 adds softmax, N3, reciprocals; 3 to 5 counts.")
def write(file, version):
    """Write the reference values, inputs and outputs, to FILE (JSON)."""
    from cardkge_tools.experiments.reports import write_oracle

    write_oracle(file, version)
    click.echo(file)


@oracle.command()
@click.argument("file", type=FILE)
@option("--rtol", Real(min=0), 1e-9, "A value may differ by atol + rtol * |expected|.")
@option("--atol", Real(min=0), 1e-12, "See --rtol.")
@shared.json_option
def check(file, rtol, atol, json_file):
    """Compare the outputs in FILE with the reference values, and show the first that differs in each case.

    FILE may have some of the cases, and some of a case's outputs."""
    from cardkge_tools.experiments.reports import check_oracle, show_verdicts

    show_verdicts(file, check_oracle(file, rtol, atol), rtol, atol, json_file)


if __name__ == "__main__":
    main(prog_name="cli.py")
