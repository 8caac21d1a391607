"""TransE (Bordes, Usunier, Garcia-Duran, Weston, Yakhnenko, NIPS 2013): a relation is a translation.

Train it with

    python cli.py train --model course/solutions/transe.py:TransE --data families
"""

import numpy as np

import cardkge


class TransE(cardkge.Model):
    """phi = -||h + r - t||, the Euclidean norm. params: entity (N, k), relation (R, k).

    The gradient is 0 where h + r = t, at which the norm has none. phi is at most 0, so p is at most 1/2.
    """

    name = "transe"

    def phi(self, h, r, t):
        return -np.linalg.norm(h + r - t, axis=-1)

    def d_phi(self, h, r, t, upstream, gradients):
        x = h + r - t
        norm = np.linalg.norm(x, axis=-1, keepdims=True)
        d = -upstream[..., None] * x / np.where(norm > 0, norm, 1)
        return d, d, -d

    # ||h + r - t|| is the distance of h + r from t, and that of t - r from h

    def query_tails(self, h, r):
        return h + r

    def query_heads(self, r, t):
        return t - r

    def match(self, query, rows):
        scores = np.empty((len(query), len(rows)), self.dtype)
        for i, q in enumerate(query):  # (m, k) numbers at once, not (n, m, k)
            scores[i] = -np.linalg.norm(q - rows, axis=-1)
        return scores
