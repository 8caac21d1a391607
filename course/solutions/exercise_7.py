"""The answer to course/exercise_7.py, which has the question and the tests."""

import numpy as np

import cardkge

# --- your part


class RESCAL(cardkge.Model):
    """phi = h' W_r t. params: entity (N, k), relation (R, k * k), a matrix W_r a row, line by line."""

    name = "rescal"

    @property
    def shapes(self):
        return {"entity": (self.n_entities, self.dim), "relation": (self.n_relations, self.dim**2)}

    def matrix(self, r):
        """Given: rows (..., k * k) as matrices (..., k, k)."""
        return r.reshape(*r.shape[:-1], self.dim, self.dim)

    def phi(self, h, r, t):
        return (self.query_tails(h, r) * t).sum(-1)

    def d_phi(self, h, r, t, upstream, gradients):
        u = upstream[..., None]
        d_w = u[..., None] * h[..., :, None] * t[..., None, :]
        return u * self.query_heads(r, t), d_w.reshape(*d_w.shape[:-2], -1), u * self.query_tails(h, r)

    def query_tails(self, h, r):
        return np.einsum("...i,...ij->...j", h, self.matrix(r))

    def query_heads(self, r, t):
        return np.einsum("...ij,...j->...i", self.matrix(r), t)

    def match(self, query, rows):
        return query @ rows.T


# --- the tests
