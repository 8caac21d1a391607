"""The regulariser under softmax, where nothing teaches the level of the scores: `python bench/softmax_offsets.py`.

Softmax sees differences of scores within a row. X_hr, the sum of sigma(score) over all tails, sees their level too, so
that a penalty on X moves what ranks. Four ways to train, from the same seeds:

    plain              softmax alone
    as it is           with the penalty of `train --loss softmax --bounds FILE --lambda 1`
    bias per relation  the penalty sees score + b_r; b_r is a parameter, which the softmax does not see
    gradient stopped   the penalty sees score + b_r, and moves b_r alone: the embeddings are those of plain, bit by bit

on `families` with its true bounds, and, for the last of --lambdas, with the wrong ones of `reproduce controls`; all
other settings are those of `train --loss softmax`. A run takes about 80 s of one core, and there are 17 for each seed.
"""

import argparse
import copy
import dataclasses
import os
import sys
from pathlib import Path
from unittest import mock

for _variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"
sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import numpy as np  # noqa: E402

import cardkge  # noqa: E402
from cardkge_tools.answers.calibration import Calibration, calibrate  # noqa: E402
from cardkge_tools.answers.measures import evaluate_sets  # noqa: E402
from cardkge_tools.engine import softmax, training  # noqa: E402
from cardkge_tools.experiments.controls import wrong_bounds  # noqa: E402
from cardkge_tools.experiments.statistics import amount, estimate, percent  # noqa: E402
from cardkge_tools.shell.terminal import table  # noqa: E402

VIOLATIONS = softmax.violations
PLAIN, AS_IT_IS, BIAS, STOPPED = "plain", "as it is", "bias per relation", "gradient stopped"
RATE = 0.2  # of AdaGrad for the biases: that of the embeddings, but constant
FIGURES = "MRR %", "hits@10 %", "outside %", "mean X", "AP % raw", "raw, true", "calibrated, true"
LEGEND = """
Means over the seeds, with 95 % intervals where there are several. MRR, hits@10: filtered, test; minus plain: of MRR,
paired by seed. outside: the share of the (h, r) of train whose X_hr is out of the true bounds; mean X: the mean of that
X_hr; both are averaged over the relations, and a bias counts in X. AP: average precision of new facts, all candidates
in scope, against test. raw: p = sigma(score + bias); raw, true: the same, conditioned on the true bounds; calibrated,
true: p fitted on valid, without a bias, conditioned on them. lambda any: where the biases are all that the penalty
moves, AdaGrad divides lambda out of their steps."""


class BiasGradients(softmax.SoftmaxGradients):
    """Learns a bias of each relation from the penalty, by AdaGrad, beside the embeddings; stopped: these learn nothing
    from it. The penalty is of score + b_r. The bias gets no other gradient: softmax does not change where a number is
    added to a whole row."""

    def __init__(self, model, *arguments, stopped):
        super().__init__(model, *arguments)
        self.stopped = stopped
        # the scores begin near 0, and N sigma(-log N) is about 1: a count of the right order
        self.bias = np.full(model.n_relations, -np.log(model.n_entities))
        self.squares, self.found = np.zeros(model.n_relations), []

    def bounds_of(self, given, relations, inverse):
        """As SoftmaxGradients', with the relation in a third column, for `violations`."""
        bounds = super().bounds_of(given, relations, inverse)
        return None if bounds is None else np.column_stack((bounds, relations))

    def violations(self, scores, log_weights, bounds, penalty_weight):
        """As softmax's, of score + b_r, whose gradient by b_r is kept."""
        if bounds is None:
            return VIOLATIONS(scores, log_weights, bounds, penalty_weight)
        relations = bounds[:, 2].astype(int)
        shifted = scores + self.bias[relations, None].astype(scores.dtype)  # a copy: the softmax keeps its bits
        penalties, rows, d_scores = VIOLATIONS(shifted, log_weights, bounds[:, :2], penalty_weight)
        self.found.append((relations[rows], d_scores.sum(1, dtype=np.float64)))
        return (penalties, rows[:0], d_scores[:0]) if self.stopped else (penalties, rows, d_scores)

    def __call__(self, batch):
        """As SoftmaxGradients'; then the biases are updated."""
        self.found.clear()
        parts = super().__call__(batch)
        gradient = np.zeros(len(self.bias))
        for relations, d_bias in self.found:
            np.add.at(gradient, relations, d_bias)
        pushed = gradient != 0
        self.squares[pushed] += gradient[pushed] ** 2
        self.bias[pushed] -= RATE * gradient[pushed] / np.sqrt(self.squares[pushed])
        return parts


def trained(kind, settings, dataset, bounds, threads):
    """(run, biases (R,) at its best validation, None where it has none)."""
    run = cardkge.new_run(settings, dataset, bounds)
    if kind in (PLAIN, AS_IT_IS):
        cardkge.train(run, dataset, threads)
        return run, None
    made, kept = [], []

    def make(*arguments):
        made.append(BiasGradients(*arguments, stopped=kind == STOPPED))
        return made[0]

    def violations(*arguments):
        return made[0].violations(*arguments)

    def keep(run, _):
        if run.best is None or run.best["epoch"] == run.epoch:
            kept[:] = [made[0].bias.copy()]

    with mock.patch.object(training, "SoftmaxGradients", make), mock.patch.object(softmax, "violations", violations):
        cardkge.train(run, dataset, threads, on_epoch=keep)
    return run, kept[0]


def with_biases(model, bias):
    """The ComplEx model whose score of a tail is phi(h, r, t) + b_r: one coordinate more, 1 of every entity, b_r of a
    relation (0 of a reciprocal one, whose X has no bounds)."""
    wider = copy.copy(model)
    wider.dim, wider.params = model.dim + 1, {}
    for name, rows in model.params.items():
        added = np.ones(len(rows)) if name == "entity" else np.append(bias, np.zeros(len(rows) - len(bias)))
        real, imaginary = np.split(rows, 2, axis=1)
        wider.params[name] = np.column_stack((real, added, imaginary, 0 * added)).astype(model.dtype)
    return wider


def measured(run, bias, dataset, true, threads):
    """The FIGURES of a run, as shares; true: the bounds (R, 2)."""
    model, types = run.best_model(), run.types
    biased = model if bias is None else with_biases(model, bias)
    ranks = cardkge.evaluate(model, dataset.test, dataset.known, threads=threads)["filtered"]["both"]
    relations = cardkge.cardinality_violations(biased, true, dataset.train, threads)
    r = model.n_relations
    parameters = np.tile([0.0, 0, 0, 0, 1, 0, 0, 50], (r, 1))  # log odds: the score itself, of which valid has no share
    raw = Calibration(parameters, np.zeros(3), np.ones(3), np.full(r, 0.5), np.zeros(r))
    share = len(dataset.valid) / (len(dataset.valid) + len(dataset.test))
    fitted = calibrate(model, (dataset.train, dataset.valid), share, true, types, threads)
    answers = (biased, raw, None), (biased, raw, true), (model, fitted, true)
    precisions = [evaluate_sets(*how, dataset, threads=threads, types=types)[0]["ap"] for how in answers]
    of_relations = [np.mean([one[name] for one in relations]) for name in ("outside", "mean")]
    return [ranks["mrr"], ranks["hits@10"], *of_relations, *precisions]


def cells(found, plain):
    """A row's figures as text, MRR minus that of plain after MRR; found, plain: `measured` of each seed."""
    mrr, *others = zip(*found, strict=True)
    minus = "" if found is plain else percent(estimate(mrr, [one[0] for one in plain]), True)
    shown = [(amount if name == "mean X" else percent)(estimate(of)) for name, of in zip(FIGURES[1:], others)]
    return [percent(estimate(mrr)), minus, *shown]


def plans(weights, wrong):
    """(kind, bounds in training, lambda, lambda as the table shows it) of each row."""
    yield PLAIN, "none", 0.0, ""
    for kind in (AS_IT_IS, BIAS, STOPPED):
        for weight in weights[-1:] if kind == STOPPED else weights:
            for name in ("true", *wrong) if weight == weights[-1] else ["true"]:
                yield kind, name, weight, "any" if kind == STOPPED else f"{weight:g}"


def numbers(text):
    """The numbers of a list with commas."""
    return [float(part) for part in text.split(",")]


def main(arguments=None):
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many: 0, 1, ...")
    parser.add_argument("--dim", type=int, help="by default the one that train chooses")
    parser.add_argument("--lambdas", type=numbers, default="0.01,0.1,1", help="wrong bounds are given with the last")
    parser.add_argument("--threads", type=int, help="by default all cores")
    parser.add_argument("--quick", action="store_true", help="that it runs: few heads, dim 8, one seed and lambda")
    options = parser.parse_args(arguments)
    weights = options.lambdas
    if options.seeds < 1 or not min(weights) > 0:
        parser.error("--seeds must be at least 1, and all --lambdas above 0")
    dataset, seeds, sizes = cardkge.load_dataset("families"), options.seeds, {"dim": options.dim}
    true = cardkge.read_bounds(dataset.folder / "bounds.tsv", dataset.relations)
    wrong = wrong_bounds(cardkge.mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations))
    bounds = {"none": np.tile([0.0, np.inf], (len(true), 1)), "true": true} | wrong
    if options.quick:
        splits = {name: getattr(dataset, name) for name in ("train", "valid", "test")}
        few = {name: triples[triples[:, 0] % 20 == 0] for name, triples in splits.items()}
        dataset, seeds, weights, sizes = dataclasses.replace(dataset, **few), 1, weights[-1:], {"dim": 8, "epochs": 5}
    rows, plain = [], None
    for kind, name, weight, shown in plans(weights, wrong):
        found = []
        for seed in range(seeds):
            chosen = {"model": "complex", "loss": "softmax", "penalty_weight": weight, "seed": seed}
            run, bias = trained(kind, cardkge.Settings(**chosen, **sizes), dataset, bounds[name], options.threads)
            if options.quick:
                run.types = None  # of a class all members would be in scope, not the few heads
            found.append(measured(run, bias, dataset, true, options.threads))
            print(f"{kind}, bounds {name}, lambda {shown or 0}, seed {seed}: done", file=sys.stderr, flush=True)
        plain = plain or found
        rows.append([kind, name, shown, *cells(found, plain)])
    headers = ["penalty", "bounds in training", "lambda", FIGURES[0], "minus plain", *FIGURES[1:]]
    table(rows, headers, "ll", "github")
    print(LEGEND)


if __name__ == "__main__":
    try:
        main()
    except cardkge.CardkgeError as error:
        sys.exit(f"error: {error}")
