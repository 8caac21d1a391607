"""Data sets, metrics, violations and histories as tables of text."""

import math
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from cardkge import HITS, MODELS, CardkgeError, batch_limits, metrics_by_side, triple_keys
from cardkge_tools import SPLITS
from cardkge_tools.answers.figures import import_pyplot, plot_history, plot_times, plot_violations, run_labels
from cardkge_tools.answers.opening import open_beside, open_histories, open_to_measure
from cardkge_tools.answers.runs import valid_times
from cardkge_tools.definitions.softmax import without_loops
from cardkge_tools.engine.own import check_model, use_model
from cardkge_tools.engine.ranking import Candidates, cardinality_violations, ranges, rank_triples
from cardkge_tools.graph.graphs import open_data
from cardkge_tools.graph.spelling import counted_look_alikes
from cardkge_tools.graph.splitting import leaks, related_record, related_relations
from cardkge_tools.shell.download import dataset_table
from cardkge_tools.shell.files import write_report
from cardkge_tools.shell.terminal import brief, counter, interval, short, table

METRICS = ("hits@1", "hits@3", "hits@5", "hits@10", "mrr")  # shown in percent


def show_metrics(rows, headers):
    """Prints metrics, in percent. rows: (first columns, metrics) of each row."""
    lines = [[*start, *(f"{100 * m[name]:.2f}" for name in METRICS), f"{m['mean_rank']:,.1f}"] for start, m in rows]
    names = [f"{name.upper() if name == 'mrr' else name} %" for name in METRICS]
    table(lines, [*headers, *names, "mean rank"], "l" * len(headers))


def show_few(candidates):
    """A line where so few candidates are ranked that some hits@n say nothing."""
    certain = [n for n in HITS if n >= candidates]
    if certain:
        names = ", ".join(f"hits@{n}" for n in certain)
        click.echo(f"with no more than {candidates} candidates any model has 100 % for {names}")


def show_violations(found):
    """Prints the violations of one run, or of two with the change between them."""
    click.echo("\n".join(f"({i}) {name}" for i, name in enumerate(found, 1)) + "\n")
    headers = ["relation", "bound", "heads"]
    for i in range(1, len(found) + 1):
        headers += [f"({i}) outside %", "mean", "quartiles"]
    headers += ["change outside %", "mean"] if len(found) > 1 else []
    rows = []
    for relation in (name for name in next(iter(found.values())) if all(name in part for part in found.values())):
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


def show_data_sets(json_file=None):
    """The table of the data sets known by name."""
    rows, entries = [], dataset_table()
    if not write_report(json_file, [each | {"folder": each["folder"] and str(each["folder"])} for each in entries]):
        return
    for entry in entries:
        sizes = [entry[k] for k in ("entities", "relations", *SPLITS)]
        found = str(entry["folder"] or f"not on this machine; {entry['source']}")
        rows.append([entry["name"], *(f"{n:,}" if n else "-" for n in sizes), found])
    table(rows, ["name", "entities", "relations", *SPLITS, "found in"], "lrrrrrl")


def show_data_set(dataset, report):
    """Prints a `data_report`: the sizes of a data set, a triple of each relation, and what train gives away of test."""
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
    show_related(report["related"])
    show_leakage(report["leakage"], len(dataset.test))
    show_look_alikes(report["look_alikes"])


def show_look_alikes(look_alikes):
    """A table of names that look the same but are spelt differently."""
    rows = [
        [what, f"{found['names']:,}", f"{found['forms']:,}", *(brief(ascii(name)) for name in found["example"][:2])]
        for what, found in look_alikes.items()
        if found["names"]
    ]
    if rows:
        click.echo("\nnames that differ only in Unicode form (NFC) or in spaces at their ends:\n")
        table(rows, ["", "names", "when written alike", "for example", "and"], "lrrll")


def show_related(related):
    """A table of relations that say the same."""
    if related:
        click.echo("\nrelations that say the same (the share of each one's triples that have a twin in the other):\n")
        rows = [
            [e["kind"], e["relation"], e["other"], f"{e['pairs']:,}", *(f"{100 * s:.1f}" for s in e["shares"])]
            for e in related
        ]
        table(rows, ["", "relation", "other", "pairs", "of relation %", "of other %"], "lll")


LEAKS = {
    "in_train": "in train too",
    "in_valid": "in valid too",
    "inverse_in_train": "turned round in train, by any relation",
    "duplicate_in_train": "in train by another relation",
    "unseen_entities": "with an entity that train does not have",
}


def show_leakage(leakage, test):
    """Tables of what train gives away of test."""
    click.echo("\nwhat train gives away of test:\n")
    rows = [[title, f"{leakage[name]:,}", f"{100 * leakage[name] / max(test, 1):.2f}"] for name, title in LEAKS.items()]
    table(rows, [f"of {test:,} test triples", "", "%"])
    rows = []
    for pair in leakage["pairs"][:20]:
        other, share = "turned round, " * pair["inverse"] + pair["other"], 100 * pair["count"] / pair["triples"]
        rows.append([pair["relation"], other, f"{pair['count']:,}", f"{pair['triples']:,}", f"{share:.1f}"])
    if rows:
        click.echo("")
        table(rows, ["test triples of", "are in train as", "", "of", "%"], "ll")


def show_data(name, columns, json_file):
    """`data show`: shows and writes the report of a data set."""
    dataset = open_data(name, columns)
    report = data_report(dataset)
    if write_report(json_file, report):
        show_data_set(dataset, report)


def data_report(dataset):
    """Sizes and leakage of a data set, a dict for JSON."""
    sizes, names = (dataset.n_entities, dataset.n_relations), dataset.relations
    splits = {split: np.asarray(getattr(dataset, split)) for split in SPLITS}
    related = related_relations(np.unique(dataset.known, axis=0), *sizes)
    found, (inverse, same) = leaks(dataset)
    keys = {split: triple_keys(*triples.T, *sizes) for split, triples in splits.items()}
    seen = np.zeros(sizes[0], bool)
    seen[splits["train"][:, ::2]] = True
    leakage = {f"in_{split}": int(np.isin(keys["test"], keys[split]).sum()) for split in ("train", "valid")}
    leakage |= {"inverse_in_train": inverse, "duplicate_in_train": same}
    leakage["unseen_entities"] = int((~seen[splits["test"][:, ::2]]).any(1).sum())
    leakage["pairs"] = [
        {"relation": names[e.relation], "other": names[e.other], "inverse": e.inverse, "count": e.count}
        | {"triples": e.total}
        for e in found
    ]
    counts = {split: np.bincount(triples[:, 1], minlength=sizes[1]).tolist() for split, triples in splits.items()}
    return {
        "folder": str(dataset.folder),
        "entities": sizes[0],
        "relations": {name: {split: counts[split][r] for split in SPLITS} for r, name in enumerate(names)},
        **{split: len(triples) for split, triples in splits.items()},
        "warnings": list(dataset.warnings),
        "related": [related_record(each, names) for each in related],
        "leakage": leakage,
        "look_alikes": counted_look_alikes(dataset.entities, names),
    }


@dataclass(frozen=True)
class Ranking:
    """What `evaluate` ranks and shows. by: of "side" and "relation", those that get rows of their own; candidates:
    "all", or "range", the entities that train has on that side of the relation."""

    split: str = "test"
    setting: str = "both"
    ties: str = "realistic"
    by: tuple[str, ...] = ()
    no_loops: bool = False
    candidates: str = "all"


def rank_command(folder, data, how, skip_unknown, threads, json_file):
    """`evaluate` without --sets: a table of ranks, and the same as JSON."""
    run, dataset = open_to_measure(folder, data, skip_unknown, calibrated=False)
    with counter("ranked") as progress:
        show, report = evaluation(run, dataset, how, threads, progress)
    if write_report(json_file, report):
        show()


def evaluation(run, dataset, how, threads, progress):
    """Ranks a split (how: Ranking). Returns a function that prints the metrics as a table, and a dict of them."""
    split, setting, by, candidates = how.split, how.setting, how.by, how.candidates
    triples = getattr(dataset, split)
    if not len(triples):
        raise CardkgeError(f"{dataset.folder}: {split} has no triple to rank")
    known = dataset.known if setting != "raw" else None
    among = ranges(dataset) if candidates == "range" else None
    no_loops = how.no_loops or run.settings.no_loops
    loopless = without_loops(dataset.train, dataset.n_relations) if no_loops else None
    given = {"threads": threads, "progress": progress, "candidates": Candidates(loopless, among)}
    ranks = rank_triples(run.best_model(), triples, known, how.ties, **given)
    rows, report = [], {}
    sizes = {"triples": len(triples), "candidates": among_sizes(triples, among, dataset)}
    for name in ("filtered", "raw") if setting == "both" else (setting,):
        part = report[name] = metrics_by_side(ranks[name]) | sizes
        sides = ("both", "head", "tail") if "side" in by else ("both",)
        rows += [([name, "(all)", side, f"{len(triples):,}"], part[side]) for side in sides]
        part["macro"] = macro_average(ranks[name], triples)
        rows += [([name, "(mean of relations)", side, ""], part["macro"][side]) for side in sides if "relation" in by]
        if "relation" in by:
            part["relations"] = relation_metrics(ranks[name], triples, run.relations)
            for relation, its in part["relations"].items():
                rows += [
                    ([name, relation, side, f"{its['triples']:,}"], its if side == "both" else its[side])
                    for side in sides
                ]
    headers = [split, "relation", "side", "triples"]
    kept = [0, *([1] if "relation" in by else []), *([2] if "side" in by else []), 3]
    lines = [([start[i] for i in kept], m) for start, m in rows]

    def show():
        show_metrics(lines, [headers[i] for i in kept])
        count = sizes["candidates"]
        click.echo(f"{count['mean']:,.0f} candidates" + (f" on average ({candidates})" if among is not None else ""))
        show_few(count["most"])

    return show, report


def relation_metrics(ranks, triples, relations):
    """relation name -> metrics of both sides, with "head", "tail" and the number of triples."""
    found = {}
    for relation in np.unique(triples[:, 1]).tolist():
        of_relation = ranks[triples[:, 1] == relation]
        sides = metrics_by_side(of_relation)
        found[relations[relation]] = sides.pop("both") | sides | {"triples": len(of_relation)}
    return found


def macro_average(ranks, triples):
    """Metrics by side, each the mean of the relations' own."""
    parts = [metrics_by_side(ranks[triples[:, 1] == relation]) for relation in np.unique(triples[:, 1])]
    return {
        side: {name: float(np.mean([part[side][name] for part in parts])) for name in parts[0][side]}
        for side in parts[0]
    }


def among_sizes(triples, among, dataset):
    """{"mean", "least", "most"}: how many candidates a triple is ranked among, over both sides."""
    if among is None:
        return dict.fromkeys(("mean", "least", "most"), dataset.n_entities)
    sizes = np.array([[len(among[side][r]) for side in (0, 1)] for r in triples[:, 1].tolist()])
    return {"mean": float(sizes.mean()), "least": int(sizes.min()), "most": int(sizes.max())}


def take_violations(runs, bounds, threads):
    """folder -> relation name (`^` before it for the inverse) -> dict of `cardinality_violations`, for runs (folder ->
    run, data set with its ids) and GraphBounds."""
    found = {}
    for name, (each, its_data) in runs.items():
        its_bounds = bounds.for_names(each.entities, each.relations)
        with counter(f"{name}: sums") as progress:
            parts = cardinality_violations(each.best_model(), its_bounds, its_data.train, threads, progress)
        found[name] = {"^" * v["inverse"] + each.relations[v["relation"]]: v for v in parts}
    return found


def violations_json(part):
    """What `violations --json` writes of a run; an upper bound of null is infinity."""
    names = ("lower", "upper", "subjects", "outside", "mean", "quartiles")
    return {relation: {n: None if v[n] == math.inf else v[n] for n in names} for relation, v in part.items()}


def report_violations(folder, other, bounds, data, json_file, plot, threads):
    """`violations`: shows, writes and draws those of a run, and of another (or None) beside it."""
    pyplot = import_pyplot(plot) if plot else None
    runs, limits = open_beside(folder, other, data, bounds)
    found = take_violations(runs, limits, threads)
    if write_report(json_file, {name: violations_json(part) for name, part in found.items()}):
        show_violations(found)
    if plot:
        plot_violations(pyplot, found, plot, run_labels({name: each for name, (each, _) in runs.items()}))


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
    return (
        f"the loss is {loss:.4f} an example after {run.epoch} epochs, {chance:.4f} is chance: the model has learnt"
        " nothing yet; try more epochs, smaller batches, or another learning rate"
    )


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


def show_verdicts(file, verdicts, rtol, atol, json_file=None):
    """Prints the verdicts of `check_oracle`, a line each, and how many; CardkgeError where a value differs."""
    report = [{"case": name, "verdict": verdict, "text": text} for name, verdict, text in verdicts]
    lines = write_report(json_file, report)
    for name, verdict, text in verdicts if lines else ():
        click.echo(f"{verdict:8} {name}  {text}".rstrip())
    counts = {verdict: sum(found == verdict for _, found, _ in verdicts) for verdict in ("ok", "differs", "skipped")}
    summary = f"{counts['ok']} ok, {counts['differs']} differ, {counts['skipped']} skipped"
    if lines:
        click.echo(f"\n{summary} (rtol {rtol:g}, atol {atol:g})")
    if counts["differs"]:
        raise CardkgeError(f"{file}: {counts['differs']} of {counts['ok'] + counts['differs']} cases differ")


def show_check(name, json_file=None):
    """`check`: a line for each part of a model; CardkgeError where one fails."""
    found = list(check_model(name if name in MODELS else use_model(name)))
    lines = write_report(json_file, [{"checked": what, "fault": fault} for what, fault in found])
    for what, fault in found if lines else ():
        click.echo(f"{'ok' if fault is None else 'wrong':7}{what}{'' if fault is None else ': ' + fault}")
    if any(fault for _, fault in found):
        raise CardkgeError(f"{name}: {sum(fault is not None for _, fault in found)} of {len(found)} checks failed")
