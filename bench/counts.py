"""Promised and kept precision: `python bench/counts.py GRAPH RUN...`, runs of one graph with different seeds.

Each run is calibrated anew through several bounds with several v, and its new facts are compared with the truth: test,
or with --truth the facts of a file of the whole graph. A run of `train --final` keeps its calibration. Prints AP, log
loss and Brier score; for the facts accepted at p > 0.5 and by `--precision 0.9` their number, the promised and the kept
precision, the 95 % interval of promised - kept (bootstrap over heads, of all runs together) and how many are true; the
same for the relations with 100 or more accepted; and how settings differ, run by run with the same seed."""

import argparse
import dataclasses
import os
import sys
from pathlib import Path

for _variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"
sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import numpy as np  # noqa: E402
from tabulate import tabulate  # noqa: E402

import cardkge  # noqa: E402
from cardkge import triple_keys  # noqa: E402
from cardkge_tools.answers import decoding  # noqa: E402
from cardkge_tools.answers.calibration import calibrate, learn_counts  # noqa: E402
from cardkge_tools.answers.decoding import KnownAndLoops, KnownTails  # noqa: E402
from cardkge_tools.answers.facts import run_bounds  # noqa: E402
from cardkge_tools.answers.measures import evaluate_sets  # noqa: E402
from cardkge_tools.answers.missing import missing_facts  # noqa: E402
from cardkge_tools.answers.opening import align_dataset  # noqa: E402
from cardkge_tools.definitions.softmax import without_loops  # noqa: E402
from cardkge_tools.experiments.reproduction import estimate  # noqa: E402
from cardkge_tools.graph.bounds import GraphBounds  # noqa: E402
from cardkge_tools.graph.spelling import Known  # noqa: E402
from cardkge_tools.shell.files import read_fields  # noqa: E402

FEWEST, DRAWS = 100, 1000  # accepted in a relation that is shown; of the bootstrap
RULES = {"p > 0.5": None, "precision 0.9": 0.9}
NAMES = {"bounds.tsv": "true"}


@dataclasses.dataclass(frozen=True, eq=False)
class Accepted:
    """The facts that one run accepts: triples (m, 3), their p, which are true (m,); facts (k, 3) that could be
    found."""

    triples: np.ndarray
    p: np.ndarray
    true: np.ndarray
    facts: np.ndarray


def whole_truth(path, run, dataset):
    """The facts (n, 3) of a file of triples that train and valid lack; those with names that the run lacks left out."""
    known = [Known(names, run.prefixes, "name") for names in (run.entities, run.relations)]
    ids = [{name: i for i, name in enumerate(names)} for names in (run.entities, run.relations)]
    rows = []
    for _, fields in read_fields(path):
        names = [known[place].find(name)[0] for place, name in zip((0, 1, 0), fields, strict=True)]
        if None not in names:
            rows.append([ids[place][name] for place, name in zip((0, 1, 0), names, strict=True)])
    sizes, rows = (len(run.entities), len(run.relations)), np.unique(np.array(rows, np.int32), axis=0)
    recorded = triple_keys(*np.concatenate((dataset.train, dataset.valid)).T, *sizes)
    return np.ascontiguousarray(rows[~np.isin(triple_keys(*rows.T, *sizes), recorded)])


def controls(bounds):
    """{name: GraphBounds}: the bounds of each relation given to the next, and uppers three times as large."""
    next_of = dict(zip(bounds.relations, [*bounds.relations[1:], bounds.relations[0]], strict=True))
    changed = {
        "permuted": [dataclasses.replace(bound, relation=next_of[bound.relation]) for bound in bounds.listed()],
        "uppers x 3": [dataclasses.replace(bound, upper=3 * bound.upper) for bound in bounds.listed()],
    }
    return {name: GraphBounds(each, bounds.relations, bounds.types, bounds.entities) for name, each in changed.items()}


def v_of(dataset, recorded, bounds, types):
    """{name: Missing}: with v from the truth, from exact numbers, from the sizes of the splits."""
    none = GraphBounds([], dataset.relations)
    return {
        "fits": missing_facts(dataset, none, types=types),
        "numbers": missing_facts(recorded, bounds, types=types),
        "sizes": missing_facts(recorded, none, types=types),
    }


def settings_of(run, dataset, recorded, missing, options):
    """Yield (name, calibration, bounds, known, loops) of a run; missing: of `v_of`; known: triples that are not new
    facts."""
    splits = dataset.train, dataset.valid
    if run.settings.final:
        yield "final", run.calibration.knowing("all"), run_bounds(run), np.concatenate((*splits, recorded.test)), False
        return
    model, given, known = run.best_model(), {}, np.concatenate(splits)
    for file in options.bounds:
        given[NAMES.get(Path(file).name, file)] = cardkge.find_bounds(file, recorded)[0]
    exact = given[list(given)[-1]]
    if options.controls:
        given |= controls(exact)
    for name, bounds in given.items():
        for share in options.share.split(","):
            limits = None if name == "mined" else bounds  # which are no limits: `learn_counts`
            found = calibrate(
                model,
                splits,
                missing[share] if share == "numbers" else missing[share].share,
                limits,
                options.threads,
                types=run.types,
            )
            if name == "mined":
                bounds = learn_counts(model, found, *splits, run.settings.seed, options.threads, run.types)
            yield f"{name}, v {share}" if "," in options.share else name, found, bounds, known, False
    if options.loops:
        found = calibrate(model, splits, missing["fits"].share, None, options.threads, types=run.types, loops=True)
        yield "none, loops too", found, None, known, True


def measured(run, dataset, setting, threads):
    """(measures, {rule: Accepted}) of a run under a setting."""
    _, calibration, bounds, known, loops = setting
    model, types = run.best_model(), run.types
    n, r = model.n_entities, model.n_relations
    seen = dataclasses.replace(dataset, valid=known[len(dataset.train) :])
    measures, _ = evaluate_sets(model, calibration, bounds, seen, threads, types=types, loops=loops)
    heads, relations = decoding.scope_pairs(dataset.train, n, r, types=types)
    index, truth = KnownTails(known, n, r), KnownTails(dataset.test, n, r)
    left_out = KnownAndLoops(index, without_loops(dataset.train, r) & (not loops))
    decoder = decoding.Decoder(model, calibration, bounds, index, left_out)
    pairs, tails, p, _ = decoding.probable(decoder, heads, relations, decoding.start_of(0.9), threads)
    triples, found = np.column_stack((heads[pairs], relations[pairs], tails)), {}
    facts = dataset.test[~index.has(*dataset.test.T)]
    for rule, precision in RULES.items():
        some = np.flatnonzero(p > (0.5 if precision is None else 0))
        kept = some[decoding.accepted(decoder, triples[some], p[some], precision)]
        found[rule] = Accepted(triples[kept], p[kept], truth.has(*triples[kept].T), facts)
    return measures, found


def gap_interval(runs, chosen=None, draws=DRAWS):
    """{"n", "promised", "kept", "low", "high", "true", "facts"} of the Accepted of some runs together, per run where it
    is a number; the 95 % interval of promised - kept, heads drawn anew with all their facts. chosen: (R,) bool."""
    masks = [np.ones(len(run.p), bool) if chosen is None else chosen[run.triples[:, 1]] for run in runs]
    p, true, head = (
        np.concatenate([of(run)[mask] for run, mask in zip(runs, masks, strict=True)])
        for of in (lambda run: run.p, lambda run: run.true, lambda run: run.triples[:, 0])
    )
    facts = sum(len(run.facts) if chosen is None else np.count_nonzero(chosen[run.facts[:, 1]]) for run in runs)
    found = {"n": len(p) / len(runs), "true": true.sum() / len(runs), "facts": facts / len(runs)}
    if not len(p):
        return found | dict.fromkeys(("promised", "kept", "low", "high"), float("nan"))
    _, head = np.unique(head, return_inverse=True)
    sums = np.stack((np.bincount(head), np.bincount(head, p - true)), 1)
    drawn = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), draws) @ sums
    low, high = np.percentile(drawn[:, 1] / drawn[:, 0], [2.5, 97.5])
    return found | {"promised": p.mean(), "kept": true.mean(), "low": low, "high": high}


def cells(found):
    """The cells of a table's row."""
    shares = (f"{100 * found[key]:.1f}" for key in ("promised", "kept"))
    interval = f"{100 * (found['promised'] - found['kept']):+.1f} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]"
    return [f"{found['n']:,.0f}", *shares, interval, f"{found['true']:,.0f}", f"{found['facts']:,.0f}"]


def show(headers, rows):
    """Print a table for a document."""
    print(tabulate(rows, headers, "github", disable_numparse=True) + "\n")


def show_tables(results, relations, numbered):
    """results: {setting: [(measures, {rule: Accepted}) of each run]}; numbered: (R,) bool, relations with numbers."""
    columns = ["accepted", "promised", "kept", "promised - kept", "true", "facts"]
    rows, parts, differences = [], [], []
    mean = {name: {key: np.array([m[key] for m, _ in of]) for key in ("ap", "log_loss", "brier")}
            for name, of in results.items()}  # fmt: skip
    groups = {"with numbers": numbered, "without": ~numbered} if numbered.any() and not numbered.all() else {}
    for name, of in results.items():
        figures = [
            f"{100 * mean[name]['ap'].mean():.2f}",
            *(f"{mean[name][x].mean():.3f}" for x in ("log_loss", "brier")),
        ]
        for rule in RULES:
            runs = [each[rule] for _, each in of]
            rows.append([name, *figures, rule, *cells(gap_interval(runs))])
            single = {relations[r]: np.arange(len(relations)) == r for r in range(len(relations))}
            for part, chosen in (groups | single).items():
                found = gap_interval(runs, chosen)
                if found["n"] * len(runs) >= FEWEST:
                    wide = "" if found["low"] <= 0.08 and found["high"] >= -0.08 else "off"
                    parts.append([name, rule, part, *cells(found), wide])
    show(["", "AP", "log loss", "Brier", "", *columns], rows)
    show(["", "", "relation", *columns, "beyond 8 points"], parts)
    first, *others = results
    for name in others:
        row = [
            _with_interval(estimate(of, mean[first][key]), 100 if key == "ap" else 1) for key, of in mean[name].items()
        ]
        for rule in RULES:
            true = ([each[rule].true.sum() for _, each in results[which]] for which in (name, first))
            row.append(_with_interval(estimate(*true), 1, 0))
        differences.append([f"{name} - {first}", *row])
    if others:
        show(["difference", "AP", "log loss", "Brier", *(f"true, {rule}" for rule in RULES)], differences)


def _with_interval(found, unit=1, places=None):
    """An estimate with its interval."""
    places = (2 if unit == 100 else 3) if places is None else places
    text = f"{unit * found['mean']:+.{places}f}"
    return text if found["interval"] is None else f"{text} ± {unit * found['interval']:.{places}f}"


def main(arguments=None):
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("graph", metavar="GRAPH")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument(
        "--truth", type=Path, help="triples of the whole graph; without it, test is all that is missing"
    )
    parser.add_argument("--bounds", action="append", help="a file or none; repeatable (none, and GRAPH/bounds.tsv)")
    parser.add_argument("--share", default="fits", help="v: fits, numbers, sizes; several with commas between")
    parser.add_argument("--controls", action="store_true", help="useless bounds too")
    parser.add_argument("--loops", action="store_true", help="without bounds, with loops as candidates too")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    results = {}
    for folder in options.runs:
        run = cardkge.load_run(folder)
        recorded = align_dataset(cardkge.load_dataset(options.graph), run)
        options.bounds = options.bounds or ["none", str(Path(recorded.folder) / "bounds.tsv")]
        facts = recorded.test if options.truth is None else whole_truth(options.truth, run, recorded)
        dataset = dataclasses.replace(recorded, test=facts)
        numbers = cardkge.find_bounds(options.bounds[-1], recorded)[0]
        missing = v_of(dataset, recorded, numbers, run.types)
        if not results:
            columns = [missing["fits"].valid, missing["fits"].test, *(missing[x].share.round(3) for x in missing)]
            rows = zip(run.relations, *(c.tolist() for c in columns), missing["numbers"].source, strict=True)
            show(["relation", "valid", "missing besides", "v that fits", "by numbers", "by sizes", "from"], rows)
        for setting in settings_of(run, dataset, recorded, missing, options):
            results.setdefault(setting[0], []).append(measured(run, dataset, setting, options.threads))
    numbered = np.array([source == "numbers" for source in missing["numbers"].source])
    show_tables(results, run.relations, numbered)


if __name__ == "__main__":
    try:
        main()
    except cardkge.CardkgeError as error:
        sys.exit(f"error: {error}")
