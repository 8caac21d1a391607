"""Exercise 7: RESCAL, where a relation is a matrix.

DistMult multiplies three rows number by number. RESCAL (Nickel, Tresp, Kriegel, ICML 2011) lets every number of the
head meet every number of the tail: a relation is a matrix W_r of k x k numbers, and

    phi(h, r, t) = h' W_r t = sum_ij h_i (W_r)_ij t_j.

DistMult is the special case where all W_r are diagonal, and ComplEx too is one in disguise. The price: k^2 numbers a
relation.

In `cardkge.Model` a relation is a row of a table. So keep the matrix as a row of k * k numbers, line by line
(row.reshape(k, k) is the matrix, matrix.reshape(k * k) the row). As the row is not k long you also say what the tables
look like:

    shapes                  a property: a dict of the shapes, {"entity": (N, k), "relation": (R, k * k)}

and then the methods of Exercise 6, on rows h (..., k), r (..., k * k), t (..., k). The dots are any number of axes,
which may broadcast: the regulariser asks for one head (k,) and one relation (k * k,) with many tails (m, k). np.einsum
and np.matmul both know about that: np.einsum("...i,...ij->...j", h, w), or (h[..., None, :] @ w)[..., 0, :].

    d phi / d h = W t          d phi / d t = W' h          d phi / d W = h t'  (a matrix: make it a row again)

phi is linear in t: phi(h, r, t) = (W' h) . t, and in h: (W t) . h. So `query_tails` is W' h, `query_heads` is W t, and
`match` is the dot product of each query with each row, one matrix product.

    python -m pytest course/exercise_7.py

Afterwards: how many numbers has RESCAL on WN18RR (40,943 entities, 11 relations) with k = 200, how many has DistMult?
On FB15k-237 (14,541 and 237)? Where would you expect it to overfit?
"""

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


def new_model(n_entities=5, n_relations=2, dim=3, seed=0):
    return RESCAL(n_entities, n_relations, dim=dim, seed=seed, dtype="float64")


def test_shapes(hint):
    model = new_model(5, 2, dim=3)
    found = {name: array.shape for name, array in model.params.items()}
    hint(found.get("entity") == (5, 3), f"entity rows have k = 3 numbers: (5, 3), yours {found.get('entity')}")
    hint(found.get("relation") == (2, 9), f"relation rows have k * k = 9: (2, 9), yours {found.get('relation')}")


def test_phi_by_hand(hint):
    # W = [[1, 2], [3, 4]], h = (1, 0), t = (0, 1): h' W t is the number in line 0, column 1
    h, r, t = np.array([[1.0, 0]]), np.array([[1.0, 2, 3, 4]]), np.array([[0.0, 1]])
    model = new_model(dim=2)
    found = model.phi(h, r, t)
    hint(np.shape(found) == (1,), f"one triple, one score: shape (1,), yours {np.shape(found)}")
    hint(found[0] != 3, "that is t' W h: head on the left, and the matrix is kept line by line")
    hint(found[0] == 2, f"h' W t = 2, yours {found[0]}")
    hint(model.phi(t, r, h)[0] == 3, "the other way about it is 3: RESCAL knows a direction")


def test_a_diagonal_matrix_is_distmult(hint):
    rng = np.random.default_rng(0)
    model, other = new_model(dim=4), cardkge.DistMult(5, 2, dim=4, dtype="float64")
    model.params["entity"][...] = other.params["entity"]
    for r in range(2):
        model.params["relation"][r] = np.diag(other.params["relation"][r]).ravel()
    h, r, t = (rng.integers(n, size=10) for n in (5, 2, 5))
    hint(np.allclose(model.score(h, r, t), other.score(h, r, t)), "diagonal matrices must give DistMult's scores")
    found, expected = model.gradients(h, r, t, np.ones(10)), other.gradients(h, r, t, np.ones(10))
    hint(np.allclose(found["entity"], expected["entity"]), "and its gradient of the entities")
    diagonal = found["relation"].reshape(2, 4, 4)[:, range(4), range(4)]
    hint(np.allclose(diagonal, expected["relation"]), "and, on the diagonal, its gradient of the relations")


def test_gradients_against_differences(hint, differences):
    model, rng = new_model(), np.random.default_rng(1)
    ids = [rng.integers(n, size=9) for n in (5, 2, 5)]
    upstream = rng.normal(size=9)
    found = model.gradients(*ids, upstream)
    names = {"entity": "W t for the head, W' h for the tail", "relation": "h t', as a row: h_i t_j is number i k + j"}
    for name, text in names.items():
        expected = differences(lambda: upstream @ model.score(*ids), model.params[name])
        hint(np.allclose(found[name], expected, rtol=1e-6, atol=1e-8), f"the gradient of {name} is wrong: {text}")


def test_three_ways_to_score(hint):
    model, rng = new_model(), np.random.default_rng(2)
    h, r, t = (rng.integers(n, size=8) for n in (5, 2, 5))
    scores, line = model.score(h, r, t), np.arange(8)
    by_tail, by_head = model.score_tails(h, r), model.score_heads(r, t)
    hint(by_tail.shape == (8, 5), f"8 queries, 5 entities: (8, 5), yours {by_tail.shape}")
    hint(np.allclose(by_tail[line, t], scores), "query_tails(h, r) . t is not phi(h, r, t): it is W' h, not W h")
    hint(np.allclose(by_head[line, h], scores), "query_heads(r, t) . h is not phi(h, r, t): it is W t, not W' t")


def test_one_relation_row_for_many_heads(hint):
    """h (n, k) with r (1, k * k), as X_hr is computed."""
    model = new_model()
    everyone = model.params["entity"]
    query = model.query_tails(everyone, model.params["relation"][:1])
    hint(query.shape == (5, 3), f"five heads and one relation row make five queries, (5, 3), yours {query.shape}")
    expected = everyone @ model.params["relation"][0].reshape(3, 3)
    hint(np.allclose(query, expected), "each head with the one matrix: let it broadcast")
    sums = cardkge.cardinality_sums(model, 1, np.arange(5))
    by_hand = 1 / (1 + np.exp(-model.score_tails(np.arange(5), np.ones(5, int))))
    hint(np.allclose(sums, by_hand.sum(1)), "X_hr, the sum of p over all tails, does not come out right")


def test_one_head_with_many_tails(hint):
    """h (k,), r (k * k,), t (m, k), as the gradient of X_hr is computed, a head at a time."""
    model, rng = new_model(), np.random.default_rng(3)
    h, r, t = rng.normal(size=3), rng.normal(size=9), rng.normal(size=(5, 3))
    scores = model.phi(h, r, t)
    hint(scores.shape == (5,), f"phi of (3,), (9,), (5, 3) is (5,), yours {scores.shape}")
    d_h, d_r, d_t = model.d_phi(h, r, t, np.ones(5), {})
    shapes = d_h.shape, d_r.shape, d_t.shape
    hint(shapes == ((5, 3), (5, 9), (5, 3)), f"d_phi: a line for each tail, (5, 3), (5, 9), (5, 3), yours {shapes}")
    w = r.reshape(3, 3)
    hint(np.allclose(d_h[2], w @ t[2]) and np.allclose(d_t[2], w.T @ h), "the values do not fit")


def test_gradients_of_the_regulariser(hint, differences):
    """X of two heads lies above a bound of 0: the gradient of G_hr, through your d_phi."""
    model, given = new_model(), (np.zeros((2, 2)), 1, [0, 2], [1, 3, 4])
    _, found, _ = cardkge.cardinality_penalty(model, *given)
    for name in ("entity", "relation"):
        expected = differences(lambda: cardkge.cardinality_penalty(model, *given)[0], model.params[name])
        hint(np.allclose(found[name], expected, rtol=1e-6, atol=1e-8), f"the regulariser's gradient of {name} is wrong")
