"""RESCAL (Nickel, Tresp, Kriegel, ICML 2011): a relation is a matrix.

Train it with

    python cli.py train --model course/solutions/rescal.py:RESCAL --data families --dim 50
"""

import cardkge


class RESCAL(cardkge.Model):
    """phi = h' W_r t. params: entity (N, k), relation (R, k * k), a matrix W_r a row, line by line."""

    name = "rescal"

    @property
    def shapes(self):
        rows = super().shapes["relation"][0]  # R, or 2R where (?, r, t) has rows of its own
        return {"entity": (self.n_entities, self.dim), "relation": (rows, self.dim**2)}

    def matrix(self, r):
        """Rows (..., k * k) as matrices (..., k, k)."""
        return r.reshape(*r.shape[:-1], self.dim, self.dim)

    def phi(self, h, r, t):
        return (self.query_tails(h, r) * t).sum(-1)

    def d_phi(self, h, r, t, upstream, gradients):
        u = upstream[..., None]
        d_w = (u * h)[..., :, None] * t[..., None, :]
        return u * self.query_heads(r, t), d_w.reshape(*d_w.shape[:-2], -1), u * self.query_tails(h, r)

    # phi = (W' h) . t = (W t) . h: the scores of all queries with all rows are a matrix product

    def query_tails(self, h, r):
        return (h[..., None, :] @ self.matrix(r))[..., 0, :]

    def query_heads(self, r, t):
        return (self.matrix(r) @ t[..., :, None])[..., 0]

    def match(self, query, rows):
        return query @ rows.T
