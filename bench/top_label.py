"""The calibration error of KGE-Calibrator (Yang et al., EMNLP 2025), for a run: `python bench/top_label.py RUN`.

Their protocol: each triple of test gives two queries, (h, r, ?) and (?, r, t). Every other known answer, from any
split, gets the score of the right answer less 1. The confidence is the probability of the best entity; the error is,
over ten equal bins of confidence, |share of best entities that are the right answer - mean confidence|, weighted by
size.

Rows: softmax of the scores; of scores over a temperature, fitted to valid by the log loss; one constant for all, the
share of best entities in valid that are the right answer; and p of the best entity as `predict` gives it, which knows
train and valid alone. A constant has an error of almost 0 and distinguishes nothing: so AUC, of the right best entities
against the others, stands beside it."""

import argparse
import os
import sys
from pathlib import Path

for _variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"
sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import numpy as np  # noqa: E402
from tabulate import tabulate  # noqa: E402

from cardkge_tools.answers.decoding import Decoder, KnownTails  # noqa: E402
from cardkge_tools.answers.facts import run_bounds  # noqa: E402
from cardkge_tools.answers.opening import open_run  # noqa: E402
from cardkge_tools.definitions.measures import auc  # noqa: E402
from cardkge_tools.engine.batches import Threads  # noqa: E402
from cardkge_tools.engine.ranking import Queries, as_scored, scored_blocks, true_answers  # noqa: E402

BINS, TEMPERATURES = 10, np.geomspace(0.1, 10, 21)


def best_entities(model, triples, known, side, temperatures, threads):
    """(best (n,), its probability (n, T), log loss (T,)) of the entities in the tail's place (side 1) or the head's (0)
    of triples (n, 3), at T temperatures."""
    asked, (starts, stops, answers) = triples[:, 2 * side], true_answers(triples, known, side, model)
    best, top = np.empty(len(triples), int), np.empty((len(triples), len(temperatures)))
    losses = np.empty_like(top)
    scored, open_side = as_scored(model, triples, side)

    def consume(first, last, scores):
        for i, row in zip(range(first, last), scores.astype(np.float64), strict=True):
            right = row[asked[i]]
            row[answers[starts[i] : stops[i]]] = right - 1
            row[asked[i]] = right
            best[i] = row.argmax()
            for j, temperature in enumerate(temperatures):
                x = (row - row[best[i]]) / temperature
                total = np.log(np.exp(x).sum())
                top[i, j], losses[i, j] = np.exp(-total), total - x[asked[i]]

    with Threads(threads) as pool:
        scored_blocks(model, Queries(scored[:, 2 - 2 * open_side], scored[:, 1], open_side), pool, consume)
    return best, top, losses.mean(0)


def error(confidence, right):
    """Their measure: BINS bins of equal width."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, confidence - right, BINS)
    return np.abs(gaps).sum() / len(right)


def p_of(run, known, triples, threads):
    """(n,): the calibrated probabilities of triples (n, 3), the known ones left out."""
    order = np.lexsort(triples[:, 1::-1].T)
    wanted, p = KnownTails(triples, len(run.entities), len(run.relations)), np.zeros(len(triples))
    decoder = Decoder(run.best_model(), run.calibration, run_bounds(run), known, wanted=wanted.without(known))
    heads, relations, tails = triples[order].T

    def consume(first, last, decoded):
        keys = decoded.row * decoder.model.n_entities + decoded.ids
        asked = np.arange(last - first) * decoder.model.n_entities + tails[first:last]
        place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
        p[order[first:last]] = np.where(keys[place] == asked, decoded.p[place], 0)

    decoder.run(heads, relations, threads, consume)
    return p


def main(arguments=None):
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--data", help="where the run's data is, if it has moved")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)
    run, data = open_run(options.run, options.data)
    model, sides, valid, found = run.best_model(), (0, 1), [], []
    for side in sides:
        best, _, losses = best_entities(model, data.valid, data.known, side, TEMPERATURES, options.threads)
        valid.append((best == data.valid[:, 2 * side], losses))
    constant = np.concatenate([right for right, _ in valid]).mean()
    temperature = TEMPERATURES[sum(losses for _, losses in valid).argmin()]
    known = KnownTails(np.concatenate((data.train, data.valid)), model.n_entities, model.n_relations)
    for side in sides:
        best, top, _ = best_entities(model, data.test, data.known, side, (1, temperature), options.threads)
        answered = np.array(data.test)
        answered[:, 2 * side] = best
        found.append((best == data.test[:, 2 * side], *top.T, p_of(run, known, answered, options.threads)))
    right, plain, scaled, p = (np.concatenate(parts) for parts in zip(*found, strict=True))
    names = "softmax", f"softmax, temperature {temperature:.2f}", "one constant", "p"
    rows = []
    for name, confidence in zip(names, (plain, scaled, np.full(len(right), constant), p), strict=True):
        sure = confidence > 0.5
        kept = (100 * confidence[sure].mean(), 100 * right[sure].mean(), sure.sum()) if sure.any() else ("", "", 0)
        rows.append((name, error(confidence, right), confidence.mean(), auc(confidence, right), *kept))
    print(f"{options.run}: {len(right):,} queries of test, hits@1 {right.mean():.3f}")
    columns = "confidence", "error", "mean", "AUC", "above 0.5: promised", "kept", "number"
    print(tabulate(rows, columns, floatfmt=("", ".3f", ".3f", ".3f", ".1f", ".1f", ",.0f")))


if __name__ == "__main__":
    main()
