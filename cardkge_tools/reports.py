"""What there is and what was found, as tables of text."""

import math

import click

from cardkge import MODELS, CardkgeError, metrics_by_relation, metrics_by_side, without_loops
from cardkge_tools import SPLITS
from cardkge_tools.checking import check_model
from cardkge_tools.download import dataset_table
from cardkge_tools.engine.ranking import cardinality_violations, rank_triples
from cardkge_tools.own import use_model
from cardkge_tools.terminal import counter, interval, short, table

METRICS = ("hits@1", "hits@3", "hits@5", "hits@10", "mrr")  # shown in percent


def show_metrics(rows, headers):
    """Print metrics, in percent: a row for each pair of a list, its first columns, and a dict."""
    lines = [[*start, *(f"{100 * m[name]:.2f}" for name in METRICS), f"{m['mean_rank']:,.1f}"] for start, m in rows]
    names = [f"{name.upper() if name == 'mrr' else name} %" for name in METRICS]
    table(lines, [*headers, *names, "mean rank"], "l" * len(headers))


def show_violations(found):
    """Print the violations of one run, or of two and the change between them."""
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


def show_data_sets():
    """The table of the data sets known by name."""
    rows = []
    for entry in dataset_table():
        sizes = [entry[k] for k in ("entities", "relations", *SPLITS)]
        found = str(entry["folder"] or f"not on this machine; {entry['source']}")
        rows.append([entry["name"], *(f"{n:,}" if n else "-" for n in sizes), found])
    table(rows, ["name", "entities", "relations", *SPLITS, "found in"], "lrrrrrl")


def show_data_set(dataset):
    """Sizes of a data set, and a triple of each relation."""
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


def evaluation(run, dataset, split, setting, ties, by, no_loops, threads, progress):
    """Ranks a split; returns (a function that prints the metrics as a table, the same as a dict for JSON)."""
    triples = getattr(dataset, split)
    known = dataset.known if setting != "raw" else None
    no_loops = no_loops or run.settings.no_loops
    loopless = without_loops(dataset.train, dataset.n_relations) if no_loops else None
    ranks = rank_triples(
        run.best_model(), triples, known, ties=ties, threads=threads, progress=progress, loopless=loopless
    )
    rows, report = [], {}
    for name in ("filtered", "raw") if setting == "both" else (setting,):
        report[name] = metrics_by_side(ranks[name])
        if by == "side":
            rows += [([name, side], report[name][side]) for side in ("both", "head", "tail")]
        else:
            rows.append(([name, "(all)" if by else "both"], report[name]["both"]))
        if by == "relation":
            parts = metrics_by_relation(ranks[name], triples)
            report[name]["relations"] = {run.relations[relation]: part for relation, part in parts.items()}
            rows += [([name, relation], part) for relation, part in report[name]["relations"].items()]
    return lambda: show_metrics(rows, [split, by or "side"]), report


def take_violations(runs, limits, threads):
    """folder -> relation name -> dict of `cardinality_violations`, of runs (folder -> run, data set with its ids) and
    limits (relation name -> bounds)."""
    found = {}
    for name, (each, its_data) in runs.items():
        its_bounds = [limits.get(relation, (0.0, math.inf)) for relation in each.relations]
        with counter(f"{name}: sums") as progress:
            parts = cardinality_violations(each.best_model(), its_bounds, its_data.train, threads, progress)
        found[name] = {each.relations[v["relation"]]: v for v in parts}
    return found


def show_history(run):
    """The training curve: some 20 epochs, the first, the last and the best on valid among them."""
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


def show_verdicts(file, verdicts, rtol, atol):
    """The verdicts of `check_oracle`, a line each, and their sum; CardkgeError where a value differs."""
    for name, verdict, text in verdicts:
        click.echo(f"{verdict:8} {name}  {text}".rstrip())
    counts = {verdict: sum(found == verdict for _, found, _ in verdicts) for verdict in ("ok", "differs", "skipped")}
    summary = f"{counts['ok']} ok, {counts['differs']} differ, {counts['skipped']} skipped"
    click.echo(f"\n{summary} (rtol {rtol:g}, atol {atol:g})")
    if counts["differs"]:
        raise CardkgeError(f"{file}: {counts['differs']} of {counts['ok'] + counts['differs']} cases differ")


def show_check(name):
    """Check a model, a line for each part; exit code 1 where one fails."""
    known = name in MODELS
    found = list(check_model(name if known else use_model(name)))
    for what, fault in found:
        click.echo(f"{'ok' if fault is None else 'wrong':7}{what}{'' if fault is None else ': ' + fault}")
    if any(fault for _, fault in found):
        raise CardkgeError(f"{name}: {sum(fault is not None for _, fault in found)} of {len(found)} checks failed")
