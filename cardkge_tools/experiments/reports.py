"""What is measured, as tables of text: data sets, ranks, violations; models, and the values of other implementations
against the oracle, the reference values that data/make_oracle.py made (docs/ORACLE.md)."""

import difflib
import gzip
import json
import math
import zlib
from dataclasses import dataclass

import click
import numpy as np

from cardkge import HITS, MODELS, CardkgeError, metrics_by_side
from cardkge_tools import SPLITS
from cardkge_tools.answers.figures import import_pyplot, plot_violations, run_labels
from cardkge_tools.answers.opening import open_beside, open_to_measure
from cardkge_tools.definitions.softmax import without_loops
from cardkge_tools.engine.own import check_model, use_model
from cardkge_tools.engine.ranking import Candidates, cardinality_violations, ranges, rank_triples
from cardkge_tools.shell.download import PROJECT_DATA, dataset_table
from cardkge_tools.shell.files import is_packed, replace_file, write_report
from cardkge_tools.shell.terminal import counter, interval, short, table

ORACLE_FORMAT, ORACLE_VERSION = "cardkge-oracle", 5
ORACLE_RTOL, ORACLE_ATOL = 1e-9, 1e-12
METRICS = ("hits@1", "hits@3", "hits@5", "hits@10", "mrr")  # shown in percent


def show_metrics(rows, headers):
    """Prints metrics, in percent. rows: (first columns, metrics) of each row."""
    lines = [[*start, *(f"{100 * m[name]:.2f}" for name in METRICS), f"{m['mean_rank']:,.1f}"] for start, m in rows]
    names = [f"{name.upper() if name == 'mrr' else name} %" for name in METRICS]
    table(lines, [*headers, *names, "mean rank"], "l" * len(headers))


def show_few(candidates):
    """Prints a line where some hits@n are certain, for there are so few candidates."""
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
    loopless = without_loops(dataset.train, dataset.n_relations) if how.no_loops or run.settings.no_loops else None
    given = {"threads": threads, "progress": progress, "candidates": Candidates(loopless, among)}
    ranks = rank_triples(run.best_model(), triples, known, how.ties, **given)
    rows, report, sides = [], {}, ("both", "head", "tail") if "side" in by else ("both",)
    sizes = {"triples": len(triples), "candidates": among_sizes(triples, among, dataset)}
    for name in ("filtered", "raw") if setting == "both" else (setting,):
        part = report[name] = metrics_by_side(ranks[name]) | sizes
        relations = relation_metrics(ranks[name], triples, run.relations)
        part["macro"] = macro_average(relations.values())
        parts = [("(all)", part, f"{len(triples):,}")]
        if "relation" in by:
            part["relations"] = relations
            parts.append(("(mean of relations)", part["macro"], ""))
            parts += [(relation, its | {"both": its}, f"{its['triples']:,}") for relation, its in relations.items()]
        for title, metrics, number in parts:
            rows += [([name, title, side, number], metrics[side]) for side in sides]
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


def macro_average(parts):
    """Metrics by side, each the mean over the relations of `relation_metrics`."""
    sides = {side: [part[side] if side != "both" else part for part in parts] for side in ("both", "head", "tail")}
    names = sides["head"][0]
    return {side: {name: float(np.mean([m[name] for m in each])) for name in names} for side, each in sides.items()}


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


# --- checks


def oracle_file(version=ORACLE_VERSION):
    """The path of the reference values of a version; CardkgeError for an unknown one."""
    if version not in range(1, ORACLE_VERSION + 1):
        raise CardkgeError(f"oracle: version {version}; this program has the values of versions 1 to {ORACLE_VERSION}")
    return PROJECT_DATA / f"oracle-{version}.json"


def oracle(version=ORACLE_VERSION):
    """The reference values: {"format", "version", "tolerance", "cases"}, of numbers, lists and dicts alone.

    A case is {"name", "kind", "what", "inputs", "outputs"}. An upper bound of None is infinity."""
    return _read_oracle(oracle_file(version))


def write_oracle(path, version=ORACLE_VERSION):
    """Copies the reference values of a version to `path`, packed by gzip where that ends in .gz."""
    source = oracle_file(version)
    try:
        content = source.read_bytes()
    except OSError as error:
        raise CardkgeError(f"{source}: cannot be read ({error.strerror}); install cardkge anew") from error
    replace_file(path, lambda file: file.write(content))


def check_oracle(path, rtol=ORACLE_RTOL, atol=ORACLE_ATOL):
    """Compares the outputs in a file with the oracle's structure with ours of its version, value by value.

    The file may leave out cases, and in a case "kind", "what", "inputs" and some outputs. A value agrees where
    |found - expected| <= atol + rtol |expected|. Returns (case name, verdict, text) for each of our cases, in order:
    verdict "ok", "skipped" (not in the file) or "differs", with the first value that does. CardkgeError for a file that
    is not JSON, has another structure or version, an unknown case or output, or nothing to compare."""
    given = _read_oracle(path)
    cases = {case["name"]: case for case in oracle(given["version"])["cases"]}
    found = {}
    for case in given["cases"]:
        name = case["name"]
        _known_name(path, "case", name, cases)
        if name in found:
            raise CardkgeError(f"{path}: case {name!r} stands there twice; keep one of them")
        for key in case["outputs"]:
            _known_name(path, f"output of {name}", key, cases[name]["outputs"])
        found[name] = case["outputs"]
    if not any(found.values()):
        raise CardkgeError(f"{path}: no case has outputs, so there is nothing to compare")
    return [(name, *_compare(case["outputs"], found.get(name), rtol, atol)) for name, case in cases.items()]


def _compare(expected, found, rtol, atol):
    """Verdict and text of one case."""
    if not found:
        return "skipped", ""
    missing = [key for key in expected if key not in found]
    for key in expected:
        fault = None if key in missing else difference(found[key], expected[key], rtol, atol)
        if fault:
            return "differs", key + fault
    return "ok", f"without {', '.join(missing)}" if missing else ""


def difference(found, expected, rtol, atol):
    """None where two nested lists of numbers agree, else where they first differ, and by how much."""
    try:
        (shape, values), (expected_shape, expected_values) = _flat(found), _flat(expected)
    except CardkgeError as error:
        return f": {error}"
    if shape != expected_shape:
        return f": expected shape {expected_shape}, found {shape}"
    faults = []
    for i, (a, b) in enumerate(zip(values, expected_values)):
        if not (a == b or (math.isfinite(b) and abs(a - b) <= atol + rtol * abs(b))):  # a NaN fails both
            faults.append((i, a, b))
    if not faults:
        return None
    i, a, b = faults[0]
    place = "".join(f"[{int(j)}]" for j in np.unravel_index(i, shape)) if shape else ""
    text = f"{place}: expected {b!r}, found {a!r}, difference {a - b:.3g}"
    return text + (f" ({len(faults)} of {len(values)} values differ)" if len(values) > 1 else "")


def _flat(value):
    """(shape, numbers row by row) of nested lists; None (no upper bound) is infinity."""
    if not isinstance(value, list):
        if value is not None and type(value) is not float and not (type(value) is int and abs(value) < 2**1023):
            raise CardkgeError(f"expected a number, found {json.dumps(value)[:40]}")
        return (), [math.inf if value is None else float(value)]
    parts = [_flat(part) for part in value]
    shapes = {shape for shape, _ in parts}
    if len(shapes) > 1:
        raise CardkgeError("expected rows of equal length, found " + " and ".join(map(str, sorted(shapes))))
    return (len(value), *(shapes.pop() if shapes else ())), [number for _, numbers in parts for number in numbers]


def _read_oracle(path):
    """The content of a file with the oracle's structure and a known version, or CardkgeError."""
    try:
        with (gzip.open if is_packed(path) else open)(path, "rt", encoding="utf-8-sig") as file:
            content = json.load(file)
    except (OSError, EOFError, zlib.error) as error:  # EOFError, zlib: a damaged .gz
        raise CardkgeError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    except (ValueError, RecursionError) as error:
        raise CardkgeError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != ORACLE_FORMAT:
        raise CardkgeError(f'{path}: expected an object with "format": "{ORACLE_FORMAT}" (docs/ORACLE.md)')
    if type(content.get("version")) is not int or not 1 <= content["version"] <= ORACLE_VERSION:
        found = json.dumps(content.get("version"))[:40]
        raise CardkgeError(f"{path}: version {found}; this program has the values of versions 1 to {ORACLE_VERSION}")
    cases = content.get("cases")
    if not isinstance(cases, list):
        raise CardkgeError(f'{path}: expected a list "cases"')
    for i, case in enumerate(cases):
        if not (isinstance(case, dict) and isinstance(case.get("name"), str) and isinstance(case.get("outputs"), dict)):
            raise CardkgeError(f'{path}: cases[{i}]: expected an object with a "name" and an object "outputs"')
    return content


def _known_name(path, what, name, names):
    """CardkgeError, with the nearest name, unless the name is among the names."""
    if name not in names:
        near = difflib.get_close_matches(name, names, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {len(names)}, such as {next(iter(names))!r}"
        raise CardkgeError(f"{path}: unknown {what} {name!r}; {hint}")


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
