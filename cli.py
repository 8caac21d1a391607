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
