"""What bounds are worth at prediction: `python bench/counts.py RUN...`, runs of one data set, of different seeds.

Each run is calibrated anew on its valid split, and its answers are measured against test (as `evaluate --sets` does)
given the true bounds (bounds.tsv of the data set), those of classes beside them (shapes.ttl), none, and the controls:
no conditioning, but cut at the bound; the true bounds permuted over the relations, uppers three times as large, and
those mined from train; and calibrations that know of the score alone, or of it and of the known tails. --valid SHARE
calibrates on a part of valid, of several draws; the rest of valid then counts as missing. --halves trains each run
anew, its epoch chosen on a half of valid, and calibrates on that half and on the other. --soft compares mined bounds
with the counts of train and valid as a prior. Prints means and 95 % intervals.
"""

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from unittest import mock

for _variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"
sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import numpy as np  # noqa: E402
from tabulate import tabulate  # noqa: E402

import cardkge  # noqa: E402
from cardkge import N_KNOWN, CardkgeError, fit_calibration  # noqa: E402
from cardkge_tools.answers import calibration as fitting  # noqa: E402
from cardkge_tools.answers import measures as measuring  # noqa: E402
from cardkge_tools.answers.calibration import Calibration, calibrate  # noqa: E402
from cardkge_tools.answers.decoding import Decoder, acceptable, room_left  # noqa: E402
from cardkge_tools.answers.measures import evaluate_sets  # noqa: E402
from cardkge_tools.experiments.reproduction import estimate, percent  # noqa: E402

SHOWN = ("ap", "best_f1", "f1", "precision", "mean_probability", "ece")


def kinds_of_bounds(dataset):
    """Name -> bounds (R, 2), None for no conditioning."""
    true = cardkge.read_bounds(dataset.folder / "bounds.tsv", dataset.relations)
    kinds = {
        "true": true,
        "none": None,
        "permuted": np.roll(true, 1, axis=0),
        "uppers x 3": true * [1, 3],
        "mined": cardkge.find_bounds("mined", dataset)[0],
    }
    shapes = dataset.folder / "shapes.ttl"
    if shapes.exists():
        try:
            files = f"{dataset.folder / 'bounds.tsv'},{shapes}"
            kinds["true, of classes too"] = cardkge.find_bounds(files, dataset)[0]
        except CardkgeError as error:  # without pyoxigraph
            print(error, file=sys.stderr)
    return kinds


class CutDecoder(Decoder):
    """Unconditioned probabilities, 0 for what is not among the best that the bound of its (h, r) has room for."""

    def __init__(self, model, calibration, bounds, *answers):
        super().__init__(model, calibration, bounds, *answers)
        self.plain = Decoder(model, calibration, None, *answers)

    def decode(self, heads, relations, scores, need=0.0):
        """As Decoder's."""
        found = self.plain.decode(heads, relations, scores, need)
        room = room_left(self.bounds.of(relations, heads), found.known)
        kept = np.zeros(len(found.p), bool)
        kept[acceptable(found, room, 0.0)] = True
        return dataclasses.replace(found, p=np.where(kept, found.p, 0.0))


def share_of(valid, missing):
    """v: the part of what train lacks that valid holds, where so many facts are missing besides."""
    return len(valid) / (len(valid) + missing)


def calibrate_by_score(model, dataset, known_too, seed, types):
    """A Calibration fitted as `calibrate` does, of log odds a score + c; known_too: for 0, 1, more known tails each."""
    n, r, missing = model.n_entities, model.n_relations, len(dataset.test)
    share = len(dataset.valid) / (len(dataset.valid) + missing)
    scope = cardkge.scope_pairs(dataset.train, n, r, types=types)
    rng = np.random.default_rng([seed, 5])
    pairs = fitting._fitting_pairs(*scope, dataset.valid, n, r, rng)
    rows = fitting._fitting_rows(model, dataset.train, dataset.valid, *pairs, seed, None, None)
    relation, scores, _, known, found, weight = rows
    centre, spread = np.average(scores, weights=weight), float(np.std(scores))
    x, ones = np.column_stack(((scores - centre) / spread, np.ones(len(scores)))), np.ones(2)
    coefficients, state = np.zeros((r, N_KNOWN, 3)), np.minimum(known, N_KNOWN - 1) if known_too else 0 * known

    def fit(part, prior, precision):
        return fit_calibration(x[part], found[part], weight[part], share, prior, precision * ones)

    of_all = fit(slice(None), 0 * ones, 1e-3)
    for k in range(N_KNOWN):
        chosen = state == (k if known_too else 0)
        common = fit(chosen, of_all, fitting.PRIOR)
        for i in range(r):
            u, c = fit(chosen & (relation == i), common, fitting.PRIOR)
            a = np.exp(u) / spread
            coefficients[i, k] = a, 0, c - a * centre
    return Calibration(coefficients, share, len(dataset.valid), missing)


def facts(model, calibration, bounds, dataset, types):
    """The measures of `evaluate_sets`, and the error of the expected count rounded, for counts are whole."""
    measures, details = evaluate_sets(model, calibration, bounds, dataset, types=types)
    return measures | {"rounded_mae": np.abs(np.round(details["expected"]) - details["true"]).mean()}


def measured(run, whole, dataset):
    """Yield (name, measures) of a run calibrated on this part of the data."""
    model, seed, types = run.best_model(), run.settings.seed, run.types
    calibration = calibrate(
        model, (dataset.train, dataset.valid), share_of(dataset.valid, len(dataset.test)), None, types
    )
    kinds = kinds_of_bounds(whole)
    for name, bounds in kinds.items():
        yield name, facts(model, calibration, bounds, dataset, types)
    with mock.patch.object(measuring, "Decoder", CutDecoder):
        yield "none, cut at the true bound", facts(model, calibration, kinds["true"], dataset, types)
    for title, known_too in (("score alone", False), ("score and known", True)):
        calibration = calibrate_by_score(model, dataset, known_too, seed, types)
        for name in ("true", "none"):
            yield f"{title}: {name}", facts(model, calibration, kinds[name], dataset, types)


@dataclasses.dataclass(eq=False)
class WithinBounds(fitting.CountPrior):
    """A prior over counts, and hard Bounds beside it."""

    hard: cardkge.Bounds = None

    def of(self, relations, subjects, inverse=False):
        """(n, 2) the hard bounds."""
        return self.hard.of(relations, subjects, inverse)


def softened(run, dataset, every=1):
    """Yield (name, measures) of mined bounds, hard and soft; measured on one in `every` of the heads."""
    model, seed, types = run.best_model(), run.settings.seed, run.types
    calibration = calibrate(
        model, (dataset.train, dataset.valid), share_of(dataset.valid, len(dataset.test)), None, types
    )
    prior = fitting.learn_counts(model, calibration, dataset.train, dataset.valid, seed, types=types)
    mined = cardkge.find_bounds("mined", dataset)[0]
    both = WithinBounds(prior.counts, prior.usual, prior.heads, prior.share, mined)
    alone = dataclasses.replace(prior, usual=np.full_like(prior.usual, 1), heads=np.full_like(prior.heads, 10**9))
    kinds = {"none": None, "mined": mined, "counts": prior, "counts, within mined": both, "Q alone": alone}
    if (dataset.folder / "bounds.tsv").exists():
        true = cardkge.read_bounds(dataset.folder / "bounds.tsv", dataset.relations)
        kinds["counts, within true"] = dataclasses.replace(both, hard=cardkge.Bounds(true))
    some = dataclasses.replace(dataset, test=dataset.test[dataset.test[:, 0] % every == 0])

    in_scope = measuring.scope_pairs

    def few(*arguments, **options):
        heads, relations = in_scope(*arguments, **options)
        return heads[heads % every == 0], relations[heads % every == 0]

    with mock.patch.object(measuring, "scope_pairs", few):
        for name, bounds in kinds.items():
            yield name, facts(model, calibration, bounds, some, types)


def halved(run, whole):
    """Yield (name, measures) of a run trained anew, its epoch chosen on a half of valid, and calibrated on that half,
    and on the other. Both know train and all of valid when they are measured."""
    settings = dataclasses.replace(run.settings, bounds="none")
    order = np.random.default_rng([8, settings.seed]).permutation(len(whole.valid))
    halves = [whole.valid[np.sort(part)] for part in np.array_split(order, 2)]
    chosen_on = dataclasses.replace(whole, valid=halves[0])
    new = cardkge.new_run(settings, chosen_on)
    cardkge.train(new, chosen_on)
    true = kinds_of_bounds(whole)["true"]
    for title, valid in zip(("on the half that chose", "on the other half"), halves):
        missing = len(whole.valid) - len(valid) + len(whole.test)
        fitted = calibrate(new.best_model(), (whole.train, valid), share_of(valid, missing), None, new.types)
        fitted = dataclasses.replace(fitted, share=len(whole.valid) / (len(whole.valid) + len(whole.test)))
        for name, bounds in (("true", true), ("none", None)):
            yield f"{title}: {name}", facts(new.best_model(), fitted, bounds, whole, new.types)
    print(f"seed {settings.seed}: epoch {new.best['epoch']} of {settings.epochs} chosen", file=sys.stderr)


def parts_of_valid(dataset, share, draws):
    """The data set with a part of valid, several draws of it; what is left out of valid is in test."""
    if share == 1:
        yield dataset
        return
    for seed in range(draws):
        order = np.random.default_rng([7, seed]).permutation(len(dataset.valid))
        cut = round(share * len(order))
        kept, missing = dataset.valid[np.sort(order[:cut])], dataset.valid[np.sort(order[cut:])]
        yield dataclasses.replace(dataset, valid=kept, test=np.concatenate((dataset.test, missing)))


def within_valid(dataset, seed):
    """The data set with a half of valid as valid, and the other as test: what is to be chosen is chosen so."""
    parts = np.array_split(np.random.default_rng([9, seed]).permutation(len(dataset.valid)), 2)
    valid, test = (dataset.valid[np.sort(part)] for part in parts)
    return dataclasses.replace(dataset, valid=valid, test=test)


def main(arguments=None):
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--valid", type=float, default=1.0, metavar="SHARE", help="of valid, to calibrate on")
    parser.add_argument("--draws", type=int, default=5, help="of that part")
    parser.add_argument("--soft", action="store_true", help="mined bounds, hard, and as a prior over counts")
    parser.add_argument("--every", type=int, default=1, help="with --soft: measure on one head in so many")
    parser.add_argument("--within-valid", action="store_true", help="calibrate on half of valid, measure on the other")
    parser.add_argument("--halves", action="store_true", help="what choosing the epoch on valid costs")
    options = parser.parse_args(arguments)
    found = {}
    for folder in options.runs:
        run = cardkge.load_run(folder)
        whole = cardkge.load_dataset(run.settings.data)
        parts = [whole] if options.halves else parts_of_valid(whole, options.valid, options.draws)
        for dataset in [within_valid(whole, run.settings.seed)] if options.within_valid else parts:
            several = halved(run, whole) if options.halves else measured(run, whole, dataset)
            for name, measures in softened(run, dataset, options.every) if options.soft else several:
                found.setdefault(name, []).append(measures)
    rows = [[name, *(percent(estimate([one[key] for one in part])) for key in SHOWN)] for name, part in found.items()]
    for row, part in zip(rows, found.values()):
        row += [f"{np.mean([one[key] for one in part]):.4f}" for key in ("log_loss", "count_mae", "rounded_mae")]
        row += [f"{np.mean([one['out_of_bounds'] for one in part]):.2%}"]
    known = np.mean([one["known_count_mae"] for one in next(iter(found.values()))])
    headers = ["bounds", *SHOWN, "log loss", "count MAE", "rounded", "out of bounds"]
    print(tabulate(rows, headers, "github", disable_numparse=True))
    print(f"count MAE of the known facts alone: {known:.4f}")


if __name__ == "__main__":
    try:
        main()
    except cardkge.CardkgeError as error:
        sys.exit(f"error: {error}")
