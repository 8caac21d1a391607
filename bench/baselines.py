"""Calibrated counts beside what else there is: `python bench/baselines.py RUN [--labels VALID TEST]`.

One run, one table for each question. Labelled triples: is it true? New facts: which of all candidates of the (h, r) in
scope are? Answer sets: a set for each question of test that holds the answer with 90 %. The methods: a threshold per
relation on the score (Socher et al. 2013), Platt scaling per relation on true and false triples (Tabacof, Costabello,
ICLR 2020), split-conformal answer sets by softmax score (Zhu et al., NAACL 2025), and ours, with and without features.
Without --labels each triple of valid and test gets a false one beside it, of a tail of its relation that is drawn
evenly (--seed). All that is learnt is learnt on valid.
"""

import argparse
import os
import sys
from pathlib import Path

for _variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"
sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import numpy as np  # noqa: E402
from tabulate import tabulate  # noqa: E402

import cardkge  # noqa: E402
from cardkge import as_bounds, label_metrics, triple_keys  # noqa: E402
from cardkge_tools.answers.calibration import Calibration, calibrate  # noqa: E402
from cardkge_tools.answers.classification import (  # noqa: E402
    METRICS,
    PRECISIONS,
    best_thresholds,
    cross_validated,
    features,
    fit_labels,
    full_bounds,
    hard_false,
    read_labelled,
    without,
)
from cardkge_tools.answers.decoding import Decoder, KnownTails, loops_to_leave_out  # noqa: E402
from cardkge_tools.answers.measures import evaluate_sets  # noqa: E402
from cardkge_tools.graph.bound_files import maxima_as_bounds, significant_maxima  # noqa: E402
from cardkge_tools.graph.bounds import GraphBounds, vocabulary  # noqa: E402

NEIGHBOURS, FULL = slice(8, 12), 7  # columns of Features


def labelled(dataset, triples, rng):
    """(triples (n, 3), labels (n,)): these, and for each one of the same head and relation, with a tail of the relation
    drawn evenly among those with which no split has it; none where there is no such tail."""
    n, r = dataset.n_entities, dataset.n_relations
    known, rows, labels = set(triple_keys(*np.asarray(dataset.known).T, n, r).tolist()), [], []
    tails = {i: np.unique(dataset.train[dataset.train[:, 1] == i, 2]) for i in range(r)}
    for h, relation, t in np.asarray(triples).tolist():
        others = [e for e in tails[relation].tolist() if int(triple_keys(h, relation, e, n, r)) not in known]
        rows.append((h, relation, t))
        rows += [(h, relation, rng.choice(others))] if others else []
        labels += [True] + [False] * bool(others)
    return np.array(rows, np.int32), np.array(labels)


def kinds_of_bounds(dataset):
    """Name -> bounds: none; mined from train, and maxima that train supports; and of the data set's own files."""
    sizes, graph = (dataset.n_entities, dataset.n_relations), vocabulary(dataset)
    maxima = maxima_as_bounds(significant_maxima(dataset.train, *sizes, graph.types), graph.relations, graph.types)
    kinds = {
        "none": None,
        "mined": cardkge.find_bounds("mined", dataset)[0],
        "significant maxima": GraphBounds(maxima, graph.relations, graph.types, graph.entities),
    }
    if (dataset.folder / "bounds.tsv").exists():
        kinds["true"] = cardkge.find_bounds(dataset.folder / "bounds.tsv", dataset)[0]
    if (dataset.folder / "shapes.ttl").exists():
        kinds["shapes.ttl"] = cardkge.find_bounds(dataset.folder / "shapes.ttl", dataset)[0]
    return kinds


def chosen_precision(columns, triples, labels, n_relations):
    """The precision that cross-validation within valid chooses."""
    return min(PRECISIONS, key=lambda each: cross_validated(columns, triples, labels, n_relations, each))


def of_labels(run, dataset, kinds, valid, test):
    """Rows of the table of labelled triples: name, log loss cross-validated within valid, METRICS of test, and the
    share of hard false tails that are refused. kinds: name -> bounds; valid, test: (triples, labels)."""
    n, r, train = len(run.entities), len(run.relations), dataset.train
    of, on = (features(run.best_model(), None, train, triples) for triples, _ in (test, valid))
    hard = hard_false(*test, KnownTails(train, n, r).count_heads(test[0][:, 1], test[0][:, 2]))

    def given(bounds):
        for part, (triples, _) in ((of, test), (on, valid)):
            columns = part.columns.copy()
            columns[:, FULL] = full_bounds(
                as_bounds(bounds, r), KnownTails(without(train, triples, n, r), n, r), triples
            )
            yield columns

    def row(name, p, loss=None, brier=True):
        found = label_metrics(p, test[1])
        cells = [f"{100 * found[m]:.2f}" if m != "brier" else f"{found[m]:.4f}" if brier else "-" for m in METRICS]
        return [name, "-" if loss is None else f"{loss:.4f}", *cells, f"{100 * (p[hard] <= 0.5).mean():.1f}"]

    def fitted(name, mine, its, precision=None):
        precision = precision or chosen_precision(its, *valid, r)
        loss = cross_validated(its, *valid, r, precision)
        return row(name, fit_labels(its, valid[0][:, 1], valid[1], r, precision)(mine, of.relations), loss)

    yield fitted("frequency of the tail alone", of.frequency[:, None], on.frequency[:, None], 0.1)
    limits = best_thresholds(on.score, on.relations, valid[1], r)
    yield row("threshold per relation", (of.score > limits[of.relations]) * 1.0, brier=False)
    yield fitted("Platt per relation", of.score[:, None], on.score[:, None], 0.1)
    yield fitted("score and frequency", *(np.column_stack((x.score, x.frequency)) for x in (of, on)), 0.1)
    yield fitted("frequency and neighbours, no model", *(x.columns[:, [3, *range(8, 12)]] for x in (of, on)))
    yield fitted("ours, without neighbours", *(np.delete(x.columns, NEIGHBOURS, axis=1) for x in (of, on)))
    for name, bounds in kinds.items():
        yield fitted(f"ours, bounds: {name}", *given(bounds))


def of_facts(run, dataset, bounds, valid):
    """Rows of the table of new facts: name, AP, F1, precision, mean p of what is accepted, their number, ECE: `evaluate
    --sets` with the log odds of each method."""
    r, model, types = len(run.relations), run.best_model(), run.types
    on = features(model, None, dataset.train, valid[0])
    limits = best_thresholds(on.score, on.relations, valid[1], r)
    limits[np.isinf(limits)] = np.sign(limits[np.isinf(limits)]) * 1e4  # no score is that far
    x = on.score[:, None]
    platt = fit_labels(x, on.relations, valid[1], r, 0.1)
    ends = [platt(np.full((r, 1), value), np.arange(r)) for value in (0.0, 1.0)]
    low, high = (np.log(p) - np.log1p(-p) for p in ends)  # linear in the score
    found = {
        "threshold per relation": by_score(np.ones(r), -limits),
        "Platt per relation": by_score(high - low, low),
        "ours": calibrated(run, dataset.train, dataset.valid, dataset.test),
    }
    for name, calibration in found.items():
        for title, limit in (("", None), (", given the bounds", bounds)) if name == "ours" else (("", None),):
            m, _ = evaluate_sets(model, calibration, limit, dataset, types=types)
            shares = [m[key] or 0.0 for key in ("ap", "f1", "precision", "mean_probability", "ece")]
            cells = [f"{100 * share:.2f}" for share in shares]
            if name.startswith("threshold"):
                cells[3:] = "-", "-"
            yield [name + title, *cells, f"{m['accepted']:,}"]


def calibrated(run, train, valid, test):
    """The Calibration that `train` gives a run."""
    share = len(valid) / (len(valid) + len(test))
    return calibrate(run.best_model(), (train, valid), share, run.bounds, run.types)


def by_score(slopes, offsets):
    """A Calibration that takes slopes (R,) score + offsets (R,) for the log odds, whatever is known."""
    zero = np.zeros(len(slopes))
    parameters = np.column_stack((np.log(slopes), offsets, zero, zero, slopes, zero, zero, zero + 50))
    return Calibration(parameters, np.zeros(3), np.ones(3), zero + 1e-12, zero)


# ------------------------------------------------------------------------------------------------------------------
# Answer sets
# ------------------------------------------------------------------------------------------------------------------


class BySoftmax:
    """Conformity of every tail of (h, r): log softmax of its score over all entities; -inf where it is excluded."""

    def __init__(self, run, excluded):
        self.model, self.excluded = run.best_model(), excluded

    def __call__(self, heads, relations):
        scores = self.model.score_tails(heads, relations).astype(np.float64)
        scores -= cardkge.log_sum_exp(scores)[:, None]
        starts, ids = self.excluded.of(heads, relations)
        scores[np.repeat(np.arange(len(heads)), np.diff(starts)), ids] = -np.inf
        return scores


class ByProbability:
    """The same by the calibrated probability, given bounds; what is too improbable to be looked at has -inf too."""

    def __init__(self, run, known, loops, calibration, bounds):
        self.decoder = Decoder(run.best_model(), calibration, bounds, known, known.joined(loops))

    def __call__(self, heads, relations):
        scores = np.ascontiguousarray(self.decoder.model.score_tails(heads, relations))
        found, p = self.decoder.decode(heads, relations, scores), np.full(scores.shape, -np.inf)
        p[found.row, found.ids] = found.p
        return p


def blocks(conformity, heads, relations, size=128):
    """Yield (places, conformities) of pairs, some at a time."""
    for first in range(0, len(heads), size):
        part = np.arange(first, min(first + size, len(heads)))
        yield part, conformity(heads[part], relations[part])


def conformal_threshold(conformity, triples, share):
    """Split conformal: of n triples' conformities the floor((n + 1) (1 - share))-th smallest; a set of what is at least
    as conforming holds the answer of a further question with at least this share, where questions are exchangeable."""
    each = np.concatenate([c[np.arange(len(p)), triples[p, 2]] for p, c in blocks(conformity, *triples[:, :2].T)])
    place = int((len(each) + 1) * (1 - share) + 1e-9)  # 1 - 0.9 is a little less than a tenth
    return np.sort(each)[place - 1] if place else -np.inf


def answer_sets(conformity, threshold, triples, scope):
    """(share of triples whose set holds their tail, mean size of their sets, mean size over scope (heads, relations),
    share of the members of these that are among the triples)."""
    held, size = 0, 0
    for part, c in blocks(conformity, *triples[:, :2].T):
        held += np.count_nonzero(c[np.arange(len(part)), triples[part, 2]] >= threshold)
        size += np.count_nonzero((c >= threshold) & (c > -np.inf))
    everywhere = sum(np.count_nonzero((c >= threshold) & (c > -np.inf)) for _, c in blocks(conformity, *scope))
    return held / len(triples), size / len(triples), everywhere / len(scope[0]), held / max(everywhere, 1)


def of_sets(run, dataset, bounds, share):
    """Rows of the table of answer sets, calibrated on valid, measured on test: a question (h, r, ?) for each fact."""
    n, r, train = len(run.entities), len(run.relations), np.asarray(dataset.train)
    valid = without(dataset.valid, train, n, r)
    test = without(dataset.test, np.concatenate((train, valid)), n, r)
    scope = cardkge.scope_pairs(train, n, r, types=run.types)
    loops = KnownTails(loops_to_leave_out(train, *scope, r), n, r)
    known = [KnownTails(facts, n, r) for facts in (train, np.concatenate((train, valid)))]
    found = calibrated(run, train, valid, test)
    methods = {
        "softmax score (Zhu et al.)": [BySoftmax(run, each.joined(loops)) for each in known],
        "p, no bounds": [ByProbability(run, each, loops, found, None) for each in known],
        "p, given the bounds": [ByProbability(run, each, loops, found, bounds) for each in known],
    }
    for name, (on, of) in methods.items():
        limits = {f"{share:.0%} by split conformal": conformal_threshold(on, valid, share)}
        if name.startswith("p"):
            limits["p > 0.5"] = np.nextafter(0.5, 1)
        for title, threshold in limits.items():
            coverage, size, everywhere, right = answer_sets(of, threshold, test, scope)
            cells = f"{100 * coverage:.2f}", f"{size:.2f}", f"{everywhere:.2f}", f"{100 * right:.2f}"
            yield [name, title, *cells]


def main(arguments=None):
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--labels", nargs=2, type=Path, metavar=("VALID", "TEST"), help="labelled triples")
    parser.add_argument(
        "--bounds", default=None, help="mined, a file: [default: bounds.tsv of the data set, else mined]"
    )
    parser.add_argument("--only", default="labels,facts,sets", help="of these tables")
    parser.add_argument("--coverage", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0, help="of the false triples")
    options = parser.parse_args(arguments)
    run = cardkge.load_run(options.run)
    dataset, tables = cardkge.load_dataset(run.settings.data), options.only.split(",")
    kinds = kinds_of_bounds(dataset)
    bounds = kinds.get("true", kinds["mined"])
    if options.labels:
        valid, test = (read_labelled(path, run.entities, run.relations) for path in options.labels)
    else:
        rng = np.random.default_rng(options.seed)
        valid, test = (labelled(dataset, part, rng) for part in (dataset.valid, dataset.test))
    headers = {
        "labels": ["", "log loss in valid", "accuracy %", "F1 %", "AUC %", "Brier", "hard false refused %"],
        "facts": ["", "AP %", "F1 %", "precision %", "mean p %", "ECE %", "accepted"],
        "sets": ["conformity", "threshold", "coverage %", "mean size", "mean size, all (h, r)", "of these in test %"],
    }
    rows = {
        "labels": lambda: of_labels(run, dataset, kinds, valid, test),
        "facts": lambda: of_facts(run, dataset, bounds, valid),
        "sets": lambda: of_sets(run, dataset, bounds, options.coverage),
    }
    for name in tables:
        print(tabulate(list(rows[name]()), headers[name], "github", disable_numparse=True), end="\n\n", flush=True)


if __name__ == "__main__":
    try:
        main()
    except cardkge.CardkgeError as error:
        sys.exit(f"error: {error}")
