"""Measures of labels, probabilities and counts, in plain NumPy.

`answers/measures` adds up the same block by block."""

import numpy as np


def auc(scores, labels):
    """The area below the ROC curve: the chance that a true triple scores above a false one, ties counting half.

    scores (n,), labels (n,) bool. None where all labels are alike."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    true, n = np.asarray(labels, bool), np.count_nonzero(labels)
    if not 0 < n < len(true):
        return None
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # from 1, the mean for ties (Mann and Whitney 1947)
    return float((ranks[true].sum() - n * (n + 1) / 2) / (n * (len(true) - n)))


def label_metrics(p, labels):
    """How good probabilities p (n,) are of labels (n,) bool, n > 0: {"accuracy", "f1", "auc", "brier"}.

    A triple is taken for true where p > 0.5; f1 is that of the true ones, 0 where none is true or taken for true."""
    p, labels = np.asarray(p, np.float64), np.asarray(labels, bool)
    said = p > 0.5
    right = np.count_nonzero(said & labels)
    return {
        "accuracy": float((said == labels).mean()),
        "f1": 2 * right / max(np.count_nonzero(said) + np.count_nonzero(labels), 1),
        "auc": auc(p, labels),
        "brier": float(((p - labels) ** 2).mean()),
    }


# ------------------------------------------------------------------------------------------------------------------
# Answer sets. p (n,) are the probabilities of all candidates of all (h, r), facts (n,) bool marks the facts of test
# among them, and `total` > 0 is the number of facts of test, including those that are not candidates.
# ------------------------------------------------------------------------------------------------------------------


def found_and_taken(p, facts):
    """(facts, candidates), (m,) each: their numbers down to each of the m distinct p, the greatest first. All
    candidates with the same p come together, whatever their order."""
    values, place = np.unique(-np.asarray(p, np.float64), return_inverse=True)
    found = np.cumsum(np.bincount(place, np.asarray(facts, bool), len(values)))
    return found, np.cumsum(np.bincount(place, minlength=len(values)))


def average_precision(p, facts, total):
    """The sum over the distinct p, from the greatest, of the recall gained there times the precision down to there:
    candidates with the same p are one step. Facts that are not candidates are never found."""
    found, taken = found_and_taken(p, facts)
    return float((np.diff(found, prepend=0) / total * (found / taken)).sum())


def best_f1(p, facts, total):
    """The largest F1 of the candidates from the greatest p down to any: 2 found / (taken + total)."""
    found, taken = found_and_taken(p, facts)
    return float((2 * found / (taken + total)).max(initial=0.0))


def accepted_measures(p, facts, total):
    """{"accepted", "precision", "mean_probability", "recall", "f1"} of the accepted candidates, whose p and facts are
    given: their number, the precision kept, the precision promised (both None where none is accepted), recall, F1."""
    right, n = int(np.count_nonzero(facts)), len(p)
    return {
        "accepted": n,
        "precision": right / n if n else None,
        "mean_probability": float(np.mean(p)) if n else None,
        "recall": right / total,
        "f1": 2 * right / (n + total),
    }


def threshold_of(p, precision):
    """The smallest of p such that the candidates with that p or more have a mean p of at least `precision`; infinity
    where even the greatest is too small."""
    p = np.asarray(p, np.float64)
    return min((float(t) for t in np.unique(p) if p[p >= t].mean() >= precision), default=np.inf)


def calibration_error(p, facts, least=0.1, bins=15):
    """The expected calibration error of the candidates with p >= least: in bins of equal numbers by p (the first bins
    have one more where need be; of equal p the earlier come first), the distance between the mean p and the share of
    facts, averaged over the candidates. 0 without candidates."""
    p, facts = np.asarray(p, np.float64), np.asarray(facts, bool)
    order = np.argsort(p, kind="stable")
    order = order[p[order] >= least]
    parts = [part for part in np.array_split(order, bins) if len(part)]
    distances = [len(part) * abs(p[part].mean() - facts[part].mean()) for part in parts]
    return float(sum(distances) / max(len(order), 1))


def brier_score(p, facts, total):
    """The sum over the candidates of (p - fact)^2, divided by the number of facts of test."""
    return float(((np.asarray(p, np.float64) - facts) ** 2).sum() / total)


def log_loss(p, facts, total, tiny=1e-15):
    """The sum over the candidates of -log of the probability (at least `tiny`) of the truth, per fact of test."""
    p = np.asarray(p, np.float64)
    return float(-np.log(np.maximum(np.where(facts, p, 1 - p), tiny)).sum() / total)


def count_error(expected, true):
    """The mean over (h, r) of the distance between expected and true numbers of tails, (n,) each."""
    return float(np.abs(np.asarray(expected, np.float64) - true).mean())


def is_contradicted(known, candidates, bounds):
    """(n,) bool: (h, r) with more known tails (n,) than their upper bound, or too few candidates (n,) for the lower
    one; bounds (n, 2), of all tails."""
    lower, upper = np.asarray(bounds, np.float64).T
    return (known > upper) | (known + np.asarray(candidates) < lower)


def out_of_bounds(expected, bounds, contradicted, tolerance=1e-9):
    """The share of all (h, r) that are not contradicted (n,) and whose expected number of tails (n,) lies outside
    their bounds (n, 2) by more than the tolerance."""
    lower, upper = np.asarray(bounds, np.float64).T
    outside = (expected < lower - tolerance) | (expected > upper + tolerance)
    return float((outside & ~np.asarray(contradicted, bool)).mean())


def promised_and_kept(n_parts, pairs, accepted, facts):
    """Promised and kept precision in each part: a dict of arrays (n_parts,): "pairs", the number of (h, r); "accepted",
    the number of accepted candidates; "promised", their mean p; "kept", their share of facts (both NaN where none is
    accepted); "facts", the number of facts of test.

    pairs (n,) int: the part of each (h, r); accepted: for each accepted candidate its part, its p and whether it is a
    fact, (m,) each; facts (k,) int: the part of each fact of test."""
    part, p, is_fact = accepted
    count = np.bincount(part, minlength=n_parts)
    with np.errstate(invalid="ignore"):
        promised, kept = (np.bincount(part, weights, n_parts) / count for weights in (p, is_fact))
    numbers = (np.bincount(each, minlength=n_parts) for each in (pairs, facts))
    return dict(zip(("pairs", "facts"), numbers), accepted=count, promised=promised, kept=kept)


def broken_promises(accepted, promised, kept, fewest=100, points=0.08):
    """The parts with at least `fewest` accepted whose promised and kept, (n,), differ by over `points`; worst first."""
    distance = np.where(np.asarray(accepted) >= fewest, np.abs(np.asarray(promised, float) - kept), 0)
    order = np.argsort(-distance, kind="stable")
    return order[distance[order] > points]
