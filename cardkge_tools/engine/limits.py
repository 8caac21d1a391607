"""Bounds as the engine asks for them: of which relations, and of which subjects."""

import numpy as np

from cardkge import CardkgeError, is_bounded


class PlainBounds:
    """Bounds (R, 2) of every subject, with the questions that Constraints (of cardkge_tools.graph.bounds) answer
    too, which know bounds of classes and of inverses besides."""

    def __init__(self, bounds, n_relations):
        self.plain = np.asarray(bounds, np.float64)
        if self.plain.shape != (n_relations, 2):
            raise CardkgeError(f"bounds must have shape ({n_relations}, 2), found {self.plain.shape}")

    def is_bounded(self, inverse=False):
        """(R,) bool: relations with a bound other than (0, inf), of some subject."""
        return np.zeros(len(self.plain), bool) if inverse else is_bounded(self.plain)

    def of(self, relations, subjects, inverse=False):
        """(n, 2) float64: lower and upper bound of each subject in its relation (or the one relation of all)."""
        relations = np.broadcast_to(np.asarray(relations, np.int64), np.shape(subjects))
        return np.tile([0.0, np.inf], (len(relations), 1)) if inverse else self.plain[relations]
