"""What is measured of labels and probabilities, in plain NumPy."""

import numpy as np

from cardkge import metrics


def auc(scores, labels):
    """The chance that a true one's score is above a false one's, ties counting half: the area below the ROC curve.

    scores (n,), labels (n,) bool. None where all labels are alike.
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    true, n = np.asarray(labels, bool), np.count_nonzero(labels)
    if not 0 < n < len(true):
        return None
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # from 1, of ties the mean (Mann and Whitney 1947)
    return float((ranks[true].sum() - n * (n + 1) / 2) / (n * (len(true) - n)))


def label_metrics(p, labels):
    """How good probabilities p (n,) are of labels (n,) bool, n > 0: {"accuracy", "f1", "auc", "brier"}.

    A triple is taken for true where p > 0.5; f1 is of the true ones, 0 where none is true nor taken for true.
    """
    p, labels = np.asarray(p, np.float64), np.asarray(labels, bool)
    said = p > 0.5
    right = np.count_nonzero(said & labels)
    return {
        "accuracy": float((said == labels).mean()),
        "f1": 2 * right / max(np.count_nonzero(said) + np.count_nonzero(labels), 1),
        "auc": auc(p, labels),
        "brier": float(((p - labels) ** 2).mean()),
    }


def metrics_by_relation(ranks, triples):
    """relation id -> `metrics` of the ranks (n, 2) of its triples, for each relation of triples (n, 3)."""
    relations = np.asarray(triples)[:, 1]
    return {int(relation): metrics(ranks[relations == relation]) for relation in np.unique(relations)}
