"""Knowledge graph embeddings with cardinality constraints: the mathematics, in plain NumPy.

The paper: E. Munoz, P. Minervini, M. Nickles, *Embedding Cardinality Constraints in Neural Link Predictors*, SAC 2019,
doi:10.1145/3297280.3297502. The file follows its order:

1. Bounds                        2. Scoring functions (Table 2, Eq. 1)   3. Losses (Eq. 2)
4. The regulariser (Eqs. 3-7)    5. Sampling its sums                    6. Objective (Eq. 6) and optimisers
7. Training (Algorithm 1)        8. Evaluation                       9. Softmax over all entities (beyond it)
10. Counts (beyond it)

Letters: N entities, R relations, k dim, k' hidden units, n examples or triples, m corruptions of each positive triple,
mu subjects and omega objects of a sample. h, r, t: head, relation, tail; d_x: the gradient with respect to x. Ids are
int32 or int64, triples (n, 3) with columns head, relation, tail.

What is written here is the definition. `kernels.py` and `cardkge_tools/engine` compute the same, fast, and the tests
hold them equal. What stands around the paper (files, runs, commands) has a room each in `cardkge_tools`; the last
lines hand on its names, so that `import cardkge` is all that a user needs. docs/ARCHITECTURE.md is the map.
"""

import importlib
import itertools
import math
import typing
from dataclasses import dataclass, replace

import numpy as np

__version__ = "1.1.0"


class CardkgeError(Exception):
    """What the program found wrong: a one-line message that says what, where and what to do."""


def checked_ids(ids, count, what):
    """`ids` as a flat integer array; CardkgeError where it is not, or where an id is outside 0..count - 1."""
    ids = np.asarray(ids)
    if ids.size == 0:
        ids = ids.astype(np.int32)
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise CardkgeError(f"{what} ids must be a flat array of integers, found shape {ids.shape}, dtype {ids.dtype}")
    if ids.size and (ids.min() < 0 or ids.max() >= count):
        bad = ids.min() if ids.min() < 0 else ids.max()
        raise CardkgeError(f"{what} id {bad} is out of range: ids are 0..{count - 1}")
    return ids.astype(np.int64) if ids.dtype.kind == "u" else ids  # an unsigned id has no place in a kernel


def checked_triples(triples, n_entities, n_relations):
    """`triples` as an array (n, 3); CardkgeError for another shape or dtype, or an id out of range."""
    triples = np.asarray(triples)
    limits = np.array([n_entities, n_relations, n_entities])
    if triples.ndim != 2 or triples.shape[1] != 3 or (triples.size and triples.dtype.kind not in "iu"):
        raise CardkgeError(f"triples: found {triples.dtype} {triples.shape}, expected integers of shape (n, 3)")
    if triples.size and ((triples.min(0) < 0) | (triples.max(0) >= limits)).any():
        found = f"{triples.min(0).tolist()} to {triples.max(0).tolist()}"
        raise CardkgeError(f"triples: ids from {found}, out of range: expected 0 to below {limits.tolist()}")
    return triples.astype(np.int64) if triples.dtype.kind == "u" else triples  # uint64 and int64 would make floats


def triple_keys(heads, relations, tails, n_entities, n_relations):
    """One int64 for each triple, ordered by relation, head, tail, of id arrays that broadcast. CardkgeError where
    N * N * R is too large for that."""
    if int(n_entities) ** 2 * int(n_relations) >= 1 << 63:
        found = f"{n_entities} entities and {n_relations} relations"
        raise CardkgeError(f"triples: {found}; entities * entities * relations must be below 2**63")
    return (np.asarray(relations, np.int64) * n_entities + heads) * n_entities + tails


# ------------------------------------------------------------------------------------------------------------------
# 1. Bounds (paper, Relation Cardinalities)
# ------------------------------------------------------------------------------------------------------------------


def mine_bounds(triples, n_entities, n_relations, population="subjects"):
    """Cardinality bounds of each relation as the triples show them.

    With count(r, h) the number of distinct tails of subject h under relation r, upper is the
    maximum over h of count(r, h) and lower the minimum over the population: "subjects", every
    entity that is a head of any triple; "relation", the heads of r; "entities", all.
    triples: (n, 3) integers, head, relation, tail; duplicates do not matter.
    Returns (R, 2) float64, columns lower and upper; (0, inf) for a relation without a triple.
    Raises CardkgeError for ids out of range or another population.
    """
    if population not in ("subjects", "relation", "entities"):
        raise CardkgeError(f"population: found {population!r}, expected subjects, relation or entities")
    keys = triple_keys(*checked_triples(triples, n_entities, n_relations).T, n_entities, n_relations)
    keys.sort()
    keys = keys[np.diff(keys, prepend=-1) > 0]  # distinct, by relation and head
    bounds = np.tile([0.0, np.inf], (n_relations, 1))
    if keys.size:
        pairs, counts = np.unique(keys // n_entities, return_counts=True)  # r * N + h
        mined, first, heads = np.unique(pairs // n_entities, return_index=True, return_counts=True)
        subjects = np.count_nonzero(np.bincount(pairs % n_entities))
        size = {"subjects": subjects, "relation": heads, "entities": n_entities}[population]
        # An entity of the population that is no head of r has count 0.
        bounds[mined, 0] = np.where(heads == size, np.minimum.reduceat(counts, first), 0)
        bounds[mined, 1] = np.maximum.reduceat(counts, first)
    return bounds


def is_bounded(bounds):
    """(R,) bool: the relations whose bounds (R, 2) are other than (0, inf)."""
    bounds = np.asarray(bounds)
    return (bounds[:, 0] != 0) | (bounds[:, 1] != np.inf)


# ------------------------------------------------------------------------------------------------------------------
# 2. Scoring functions (paper, Table 2 and Eq. 1)
# ------------------------------------------------------------------------------------------------------------------


def glorot(rng, shape, fan_in, fan_out, dtype):
    """Uniform on +-sqrt(6 / (fan_in + fan_out)) (Glorot & Bengio 2010, Eq. 16), drawn in float64."""
    limit = np.sqrt(6.0 / (fan_in + fan_out))
    values = np.empty(math.prod(shape), dtype)
    for part in np.array_split(values, len(values) // 2**20 + 1):  # not all of them in float64 at once
        part[:] = rng.uniform(-limit, limit, len(part))
    return values.reshape(shape)


class Model:
    """What the three scoring functions share: `params` (a dict of plain arrays), sizes, checks, and scoring by id.

    n_entities N, n_relations R, dim k; `seed` an int, or a numpy Generator (None: params stays empty); dtype float32
    or float64. Ids are (n,) arrays of int32 or int64; an id out of range, or arrays of unequal length, raise
    CardkgeError before anything is computed. A `reciprocal` model has 2R relation rows: (?, r, t) is scored as the
    tails of (t, r + R), so `score_heads` and `score` are of different rows.

    A subclass gives, on *rows* (arrays whose last axis is the row), and in their dtype:
    phi           the score of aligned rows h, r, t: (..., w) three times -> (...), and `d_phi`, its backward pass;
    query_tails, query_heads, match   match(query_tails(h, r), t) scores every h, with its r, with every t;
                  match(query_heads(r, t), h) every t, with its r, with every h: (n, w), (m, w) -> (n, m);
    and, where it has more parameters than embeddings, `shapes`, and `encode` with its backward pass `d_encode`, from
    embedding rows to the rows that are scored.
    """

    row_length = 1  # reals in an embedding row, as a multiple of k

    def __init__(self, n_entities, n_relations, dim=200, seed=0, dtype="float32", reciprocal=False):
        for what, value in (("n_entities", n_entities), ("n_relations", n_relations), ("dim", dim)):
            if value < 1:
                raise CardkgeError(f"{what} must be at least 1, found {value}")
        if dtype not in ("float32", "float64", np.float32, np.float64):
            raise CardkgeError(f"dtype must be float32 or float64, found {dtype}")
        self.n_entities, self.n_relations, self.dim = int(n_entities), int(n_relations), int(dim)
        self.dtype, self.reciprocal = np.dtype(dtype), bool(reciprocal)
        self.params = {}
        if seed is not None:
            rng = np.random.default_rng(seed)
            for name, shape in self.shapes.items():
                fans = (shape[1], shape[1]) if name in ("entity", "relation") else (*shape, 1)[:2]
                self.params[name] = glorot(rng, shape, *fans, self.dtype)

    @property
    def shapes(self):
        """The shape of each array of params."""
        width = self.row_length * self.dim
        return {"entity": (self.n_entities, width), "relation": ((1 + self.reciprocal) * self.n_relations, width)}

    def rows(self, heads=None, relations=None, tails=None):
        """The embedding rows of the ids that are given, in the order h, r, t."""
        found = []
        for ids, table, what in (
            (heads, "entity", "head"),
            (relations, "relation", "relation"),
            (tails, "entity", "tail"),
        ):
            if ids is not None:
                ids = checked_ids(ids, len(self.params[table]), what)
                if found and len(ids) != len(found[0]):
                    raise CardkgeError(f"ids must be as many: {len(ids)} {what} ids beside {len(found[0])} others")
                found.append(self.params[table][ids])
        return found

    def score(self, heads, relations, tails):
        """phi(h, r, t) of n triples: ids (n,) three times -> (n,)."""
        return self.phi(*self.encode(*self.rows(heads, relations, tails)))

    def score_tails(self, heads, relations):
        """phi(h, r, t) for every entity t: ids (n,) twice -> (n, N)."""
        h, r, t = self.encode(*self.rows(heads, relations), self.params["entity"])
        return self.match(self.query_tails(h, r), t)

    def score_heads(self, relations, tails):
        """phi(h, r, t) for every entity h, phi(t, r + R, h) of a reciprocal model: ids (n,) twice -> (n, N)."""
        if self.reciprocal:
            return self.score_tails(tails, checked_ids(relations, self.n_relations, "relation") + self.n_relations)
        h, r, t = self.encode(self.params["entity"], *self.rows(None, relations, tails))
        return self.match(self.query_heads(r, t), h)

    def gradients(self, heads, relations, tails, upstream):
        """d sum(upstream * score) / d params: ids (n,) three times, upstream (n,) -> dict of dense arrays like
        params."""
        rows = self.rows(heads, relations, tails)
        upstream = np.asarray(upstream, self.dtype)
        if upstream.shape != (len(rows[0]),):
            raise CardkgeError(f"upstream must have shape {(len(rows[0]),)}, found {upstream.shape}")
        gradients = self.zero_gradients()
        d_rows = self.d_phi(*self.encode(*rows), upstream, gradients)
        d_h, d_r, d_t = self.d_encode(*rows, *d_rows, gradients)
        for name, ids, d in (("entity", heads, d_h), ("relation", relations, d_r), ("entity", tails, d_t)):
            np.add.at(gradients[name], np.asarray(ids, np.intp), d)  # repeated ids are summed
        return gradients

    def zero_gradients(self):
        """A dict of zeros like params."""
        return {name: np.zeros_like(array) for name, array in self.params.items()}

    def moduli(self, rows):
        """The size of each number of embedding rows, in the place of each of its reals: of the same shape."""
        return np.abs(rows)

    def encode(self, h, r, t):
        return h, r, t

    def d_encode(self, h, r, t, d_h, d_r, d_t, gradients):
        return d_h, d_r, d_t

    def d_pairs(self, h, r, t, upstream, gradients):
        """Backward pass of match(query_tails(h, r), t), every head (n, w) with one relation (1, w) and every tail
        (m, w), for upstream (n, m): by `d_phi`, a head at a time."""
        d_h, d_r, d_t = np.empty_like(h), np.zeros_like(r), np.zeros_like(t)
        for i in range(len(h)):
            of_h, of_r, of_t = self.d_phi(h[i], r[0], t, upstream[i], gradients)
            d_h[i] = of_h.sum(0)
            d_r += of_r.sum(0)
            d_t += of_t
        return d_h, d_r, d_t


class Bilinear(Model):
    """A score that is linear in each row and in which h and r enter alike: phi(h, r, t) = query_tails(h, r) . t.

    So the scores of n heads with m tails are one matrix product; and sum_t u_t phi(h, r, t) = phi(h, r, sum_t u_t t),
    which gives its backward pass.
    """

    def match(self, query, rows):
        return query @ np.swapaxes(rows, -1, -2)

    def d_pairs(self, h, r, t, upstream, gradients, out=None):
        """As in `Model`, for any number of relations at once: upstream (..., n, m), r (..., 1, w); d_t is written to
        `out`, if that is given."""
        u_t = upstream @ t
        d_t = np.matmul(np.swapaxes(upstream, -1, -2), self.query_tails(h, r), out=out)
        return self.query_heads(r, u_t), self.query_heads(h, u_t).sum(-2, keepdims=True), d_t


class DistMult(Bilinear):
    """phi = <h, r, t> = sum_i h_i r_i t_i (Yang et al. 2015). params: entity (N, k), relation (R, k)."""

    name = "distmult"

    def phi(self, h, r, t):
        return (h * r * t).sum(-1)

    def d_phi(self, h, r, t, upstream, gradients):
        u = upstream[..., None]
        return u * r * t, u * h * t, u * h * r

    def query_tails(self, h, r):
        return h * r

    def query_heads(self, r, t):
        return r * t


class ComplEx(Bilinear):
    """phi = Re(sum_i h_i r_i conj(t_i)) (Trouillon et al. 2016). params: entity (N, 2k), relation (R, 2k): the first k
    columns are the real parts, the last k the imaginary ones."""

    name, row_length = "complex", 2

    def moduli(self, rows):
        sizes = np.hypot(*np.split(rows, 2, -1))
        return np.concatenate((sizes, sizes), -1)

    def phi(self, h, r, t):
        return (self.query_tails(h, r) * t).sum(-1)

    def d_phi(self, h, r, t, upstream, gradients):
        u = upstream[..., None]
        d_h = u * self.query_heads(r, t)
        d_r = u * self.query_heads(h, t)  # h and r enter alike
        return d_h, d_r, u * self.query_tails(h, r)

    def query_tails(self, h, r):
        """h r as [real, imaginary]: phi = Re(h r) . Re(t) + Im(h r) . Im(t)."""
        (a, b), (c, d) = np.split(h, 2, -1), np.split(r, 2, -1)
        return np.concatenate((a * c - b * d, a * d + b * c), -1)

    def query_heads(self, r, t):
        """conj(r) t as [real, imaginary]: phi = Re(conj(r) t) . Re(h) + Im(conj(r) t) . Im(h)."""
        (c, d), (e, f) = np.split(r, 2, -1), np.split(t, 2, -1)
        return np.concatenate((c * e + d * f, c * f - d * e), -1)


class ERMLP(Model):
    """phi = w . tanh(W' [h; t; r]), in this order, no bias (Dong et al. 2014). params: entity (N, k), relation (R, k),
    hidden W (3k, k'), output w (k',).

    W' [h; t; r] = W_h' h + W_t' t + W_r' r with W_h, W_t, W_r the three blocks of k rows of W: `encode` computes these
    hidden rows, once for each row, and phi is w . tanh of their sum.
    """

    name = "ermlp"

    def __init__(self, n_entities, n_relations, dim=200, seed=0, dtype="float32", hidden=200, reciprocal=False):
        if hidden < 1:
            raise CardkgeError(f"hidden must be at least 1, found {hidden}")
        self.hidden = int(hidden)
        super().__init__(n_entities, n_relations, dim, seed, dtype, reciprocal)

    @property
    def shapes(self):
        return super().shapes | {"hidden": (3 * self.dim, self.hidden), "output": (self.hidden,)}

    def encode(self, h, r, t):
        w_h, w_t, w_r = np.split(self.params["hidden"], 3)
        return h @ w_h, r @ w_r, t @ w_t

    def d_encode(self, h, r, t, d_h, d_r, d_t, gradients):
        w_h, w_t, w_r = np.split(self.params["hidden"], 3)
        gradients["hidden"] += np.concatenate((h.T @ d_h, t.T @ d_t, r.T @ d_r))
        return d_h @ w_h.T, d_r @ w_r.T, d_t @ w_t.T

    def phi(self, h, r, t):
        return np.tanh(h + r + t) @ self.params["output"]

    def d_phi(self, h, r, t, upstream, gradients):
        z = np.tanh(h + r + t)
        gradients["output"] += np.tensordot(upstream, z, upstream.ndim)
        d = upstream[..., None] * self.params["output"] * (1 - z * z)
        return d, d, d

    def query_tails(self, h, r):
        return h + r

    def query_heads(self, r, t):
        return r + t

    def match(self, query, rows):
        w = self.params["output"]  # one query at a time: (m, k') numbers at once, not (n, m, k')
        return np.array([np.tanh(q + rows) @ w for q in query], self.dtype).reshape(len(query), len(rows))


MODELS = {model.name: model for model in (DistMult, ComplEx, ERMLP)}


def probability(scores):
    """Eq. 1: p = sigma(score) = 1 / (1 + exp(-score)), of any shape and float dtype, without overflow."""
    e = np.exp(-np.abs(scores))
    return np.where(scores >= 0, 1, e) / (1 + e)


# ------------------------------------------------------------------------------------------------------------------
# 3. Losses (paper, Eq. 2 and the logistic loss below it)
# ------------------------------------------------------------------------------------------------------------------


def logistic_loss(scores, labels):
    """sum log(1 + exp(-y score)). scores of any shape, labels y of the same shape in {-1, +1}.

    Returns (value, d value / d scores). No overflow for any finite score. CardkgeError for another label.
    """
    scores, labels = np.asarray(scores), np.asarray(labels)
    if scores.shape != labels.shape or not np.isin(labels, (-1, 1)).all():
        raise CardkgeError("labels must be -1 or +1, one for each score")
    x = labels.astype(scores.dtype) * scores
    value = (np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, 0)).sum(dtype=np.float64)
    return float(value), -labels.astype(scores.dtype) * probability(-x)


def hinge_loss(positive, negative, margin):
    """Eq. 2: sum [margin + sigma(negative) - sigma(positive)]_+ over each positive (n,) with its own negatives (n, m).

    Returns (value, d value / d positive (n,), d value / d negative (n, m)); the subgradient at the kink is 0.
    """
    positive, negative = np.asarray(positive), np.asarray(negative)
    if negative.ndim != 2 or positive.shape != negative.shape[:1]:
        raise CardkgeError(f"positive (n,) and negative (n, m) scores do not fit: {positive.shape}, {negative.shape}")
    p, q = probability(positive)[:, None], probability(negative)
    excess = margin + q - p
    active = excess > 0
    value = np.where(active, excess, 0).sum(dtype=np.float64)
    return float(value), -(active * p * (1 - p)).sum(1), active * q * (1 - q)


# ------------------------------------------------------------------------------------------------------------------
# 4. The regulariser (paper, Eqs. 3-5)
# ------------------------------------------------------------------------------------------------------------------


def violation(sums, lower, upper):
    """Eq. 5: G = max(0, lower - X) + max(0, X - upper), and its slope d G / d X in {-1, 0, 1} (0 at the bounds)."""
    g = np.maximum(0, lower - sums) + np.maximum(0, sums - upper)
    return g, 1.0 * (sums > upper) - 1.0 * (sums < lower)


def cardinality_sums(model, relation, subjects, objects=None, weights=None, inverse=False):
    """Eq. 4: X_hr = sum over objects t of weight_t p(h, r, t), for the subjects h. Returns (n,) float64.

    relation an id, subjects (n,) ids; objects (m,) ids, or None for all entities, exactly; weights (m,), 1 if None.
    inverse: X_rt = sum over objects h of weight_h p(h, r, t), for the subjects t, scored as `score_heads` does.
    """
    relation, inverse = _as_scored(model, relation, inverse)
    rows = _pair_rows(model, relation, subjects, objects)
    h, r, t = model.encode(*(rows[::-1] if inverse else rows))
    size, others = (len(t), len(h)) if inverse else (len(h), len(t))
    weights, sums = _weights_of(others, weights), np.empty(size)
    for i in range(0, size, 64):  # not all pairs at once
        part = slice(i, i + 64)
        heads, tails = (h, t[part]) if inverse else (h[part], t)
        scores = model.match(model.query_tails(heads, r), tails)
        scores = scores.T if inverse else scores  # of subjects by objects
        sums[part] = probability(scores).astype(np.float64, copy=False) @ weights
    return sums


def cardinality_penalty(model, bounds, relation, subjects, objects=None, weights=None, inverse=False):
    """sum of G_hr (Eq. 5) over the subjects h, with X_hr (or X_rt) as in `cardinality_sums`.

    bounds: (R, 2), or an object whose of(relation, subjects, inverse) gives (n, 2), a bound for each subject.
    Returns (sum of G, its gradients as a dict like params, X (n,)). With sampled objects X may be unbiased; G is not,
    since max(0, .) is convex: E[G(X)] >= G(E[X]).
    """
    bounded, side = relation, inverse
    relation, inverse = _as_scored(model, relation, inverse)
    rows = _pair_rows(model, relation, subjects, objects)  # which checks the ids
    rows = rows[::-1] if inverse else rows
    if hasattr(bounds, "of"):
        lower, upper = bounds.of(bounded, subjects, side).T
    else:
        lower, upper = np.asarray(bounds, np.float64)[bounded]
    h, r, t = model.encode(*rows)
    p = probability(model.match(model.query_tails(h, r), t))
    p = p.T if inverse else p  # of subjects by objects
    weights = _weights_of(p.shape[1], weights)
    sums = p.astype(np.float64, copy=False) @ weights
    g, slope = violation(sums, lower, upper)
    upstream = (slope[:, None] * weights * p * (1 - p)).astype(model.dtype)
    objects = np.arange(model.n_entities) if objects is None else objects
    heads, tails, upstream = (objects, subjects, upstream.T) if inverse else (subjects, objects, upstream)
    return float(g.sum()), _pair_gradients(model, relation, heads, tails, rows, upstream), sums


def sampled_negatives(model, relation, subjects, objects, weights):
    """A control for the regulariser that knows nothing of bounds: the pairs of its sample as negatives, the sum over
    h and t of weight_t log(1 + exp(phi(h, r, t))). Arguments as for `cardinality_penalty`. Returns (value, gradients).
    """
    rows = _pair_rows(model, relation, subjects, objects)
    h, r, t = model.encode(*rows)
    scores = model.match(model.query_tails(h, r), t)
    softplus = np.log1p(np.exp(-np.abs(scores))) + np.maximum(scores, 0)
    weights = _weights_of(scores.shape[1], weights)
    upstream = (weights * probability(scores)).astype(model.dtype)
    value = float((softplus.astype(np.float64, copy=False) @ weights).sum())
    objects = np.arange(model.n_entities) if objects is None else objects
    return value, _pair_gradients(model, relation, subjects, objects, rows, upstream)


def _pair_gradients(model, relation, heads, tails, rows, upstream):
    """d sum(upstream * phi) / d params, as a dict like params; upstream (n, m) of heads and tails, whose embedding rows
    (and the relation's between them) are `rows`."""
    gradients = model.zero_gradients()
    d_rows = model.d_pairs(*model.encode(*rows), upstream, gradients)
    d_h, d_r, d_t = model.d_encode(*rows, *d_rows, gradients)
    np.add.at(gradients["entity"], np.asarray(heads, np.intp), d_h)
    np.add.at(gradients["entity"], np.asarray(tails, np.intp), d_t)
    gradients["relation"][relation] += d_r[0]
    return gradients


class UpperBounds:
    """Bounds of subjects (an object with `of` and `is_bounded`) with lower bounds of 0."""

    def __init__(self, bounds):
        self.bounds, self.is_bounded = bounds, bounds.is_bounded

    def of(self, relations, subjects, inverse=False):
        """(n, 2) float64, as of the bounds, but for the lower ones."""
        return self.bounds.of(relations, subjects, inverse) * [0, 1]


def training_bounds(bounds, settings, n_relations):
    """The bounds that the regulariser is trained with, of those that a run has, (R, 2) or an object with `of`.

    A uniform sample's X_S is at most X (Eq. 7), so max(0, lower - X_S) fires where X is far too large, and pushes it
    further up: with uniform sampling the lower bounds are 0. Extra negatives are drawn for every relation: [0, 0].
    """
    if settings.extra_negatives:
        return np.zeros((n_relations, 2))
    if settings.sampling != "uniform" or settings.loss == "softmax" or bounds is None:  # softmax's sums are exact
        return bounds
    return UpperBounds(bounds) if hasattr(bounds, "of") else np.asarray(bounds, np.float64) * [0, 1]


def _as_scored(model, relation, inverse):
    """(row of the relation, whether subjects stand as tails): a reciprocal model scores (?, r, t) as (t, r + R, ?)."""
    return (relation + model.n_relations, False) if inverse and model.reciprocal else (relation, inverse)


def _weights_of(count, weights):
    return np.ones(count) if weights is None else np.asarray(weights, np.float64)


def _pair_rows(model, relation, subjects, objects):
    """Embedding rows (n, w), (1, w), (m, w) of subjects, relation and objects (None: every entity), ids checked."""
    (h,) = model.rows(heads=subjects)
    (r,) = model.rows(relations=np.array([relation]))
    (t,) = (model.params["entity"],) if objects is None else model.rows(tails=objects)
    return h, r, t


# ------------------------------------------------------------------------------------------------------------------
# 5. Sampling its sums (paper, Lower Bound Estimation, Eq. 7, and Sum Estimation)
# ------------------------------------------------------------------------------------------------------------------

SAMPLINGS = ("exact", "uniform", "importance", "bernoulli")


def tail_frequency(triples, relation, n_entities):
    """1 + how often each entity is a tail of the relation in `triples`, (N,) float64: q_r before it is normed."""
    return 1.0 + np.bincount(triples[triples[:, 1] == relation, 2], minlength=n_entities)


def inclusion_probabilities(frequency, omega, sizes=1.0):
    """b = min(1, c frequency), with c such that the sum of sizes * b is omega: of classes of `sizes` entities each, or
    of single ones. (n,) float64 in (0, 1]."""
    sizes = np.broadcast_to(sizes, frequency.shape)
    capped = np.zeros(len(frequency), bool)
    while True:  # a round that caps no further class is the last
        total = (sizes * frequency)[~capped].sum()
        c = (omega - sizes[capped].sum()) / total if total else 0.0
        more = ~capped & (c * frequency > 1)
        if not more.any():
            return np.where(capped, 1.0, c * frequency)
        capped |= more


def object_probabilities(kind, triples, relation, n_entities, omega, inclusion="frequency"):
    """(N,) float64: q_r(t) for importance sampling; for the others the probability that t is in a sample (b_t)."""
    omega = omega if kind == "importance" else min(omega, n_entities)
    frequency = tail_frequency(triples, relation, n_entities)
    if kind == "exact":
        return np.ones(n_entities)
    if kind == "importance":
        return frequency / frequency.sum()
    if kind == "bernoulli" and inclusion == "frequency":
        return inclusion_probabilities(frequency, omega)
    return np.full(n_entities, omega / n_entities)


def draw_objects(rng, kind, triples, relations, n_entities, omega, inclusion="frequency"):
    """The objects over which X_hr is summed (paper, Lower Bound Estimation and Sum Estimation): an (objects, weights)
    for each of the relations, to be shared by its subjects.

    kind         objects                                                weight            X estimate
    exact        all N                                                  1                 the sum itself
    uniform      omega distinct, uniform                                1                 a lower bound, not rescaled
    importance   omega draws with repetition from q_r                   1 / (omega q)     unbiased
    bernoulli    each t independently with probability b_t, sum omega   1 / b_t           unbiased

    q_r(t) = (1 + count of t as a tail of r in train) / (N + triples of r). b_t is omega / N (inclusion="uniform") or
    min(1, c q_r(t)) with c such that they add up to omega ("frequency").
    """
    everyone, omega = np.arange(n_entities), omega if kind == "importance" else min(omega, n_entities)
    if kind == "exact":
        return [(everyone, np.ones(n_entities)) for _ in relations]
    if kind == "uniform":
        drawn = choose_distinct(rng, [everyone] * len(relations), [omega] * len(relations))
        return [(objects, np.ones(omega)) for objects in drawn]
    if kind == "importance":  # q_r: one of the N entities, or the tail of one of the n_r triples, each as likely
        urns = [np.append(everyone, np.sort(triples[triples[:, 1] == r, 2])) for r in relations]
        picks = rng.integers(0, [[len(urn)] for urn in urns], size=(len(relations), omega))
        q = [object_probabilities(kind, triples, r, n_entities, omega) for r in relations]
        return [(urn[pick], 1 / (omega * q_r[urn[pick]])) for urn, pick, q_r in zip(urns, picks, q)]
    return draw_bernoulli(rng, triples, relations, n_entities, omega, inclusion)


def draw_bernoulli(rng, triples, relations, n_entities, omega, inclusion):
    """`draw_objects` where each entity t is in the sample independently, with probability b_t.

    Entities with the same b are a class. How many of a class are in the sample is binomial, and every subset of that
    size is as likely.
    """
    members, chances = [], []
    for r in relations:
        frequency = tail_frequency(triples, r, n_entities) if inclusion == "frequency" else np.ones(n_entities)
        values, sizes = np.unique(frequency, return_counts=True)
        members.append([np.flatnonzero(frequency == value) for value in values])
        chances.append(inclusion_probabilities(values, omega, sizes))
    classes = [one for of_relation in members for one in of_relation]
    takes = rng.binomial([len(one) for one in classes], np.concatenate(chances))
    chosen, last = choose_distinct(rng, classes, takes), np.cumsum([len(b) for b in chances])
    parts = [slice(end - len(b), end) for b, end in zip(chances, last)]
    return [(np.concatenate(chosen[part]), 1 / np.repeat(b, takes[part])) for b, part in zip(chances, parts)]


def draw_subjects(rng, pool, triples, relations, n_entities, mu):
    """mu subjects of each relation, uniformly without repetition, all where there are fewer: of the relation's heads in
    train (pool="relation") or of all entities ("entities"). A list of id arrays."""
    heads = [
        np.unique(triples[triples[:, 1] == r, 0]) if pool == "relation" else np.arange(n_entities) for r in relations
    ]
    return choose_distinct(rng, heads, [min(mu, len(ids)) for ids in heads])


def choose_distinct(rng, pools, takes):
    """takes[i] distinct members of each pool, every subset as likely: Floyd's algorithm, one random number a member."""
    uniforms, chosen = iter(rng.random(int(sum(takes)))), []
    for pool, take in zip(pools, takes):
        places = []
        for last in range(len(pool) - take, len(pool)):
            place = int(next(uniforms) * (last + 1))
            places.append(last if place in places else place)
        chosen.append(pool[np.array(places, int)])
    return chosen


# ------------------------------------------------------------------------------------------------------------------
# 6. Objective and optimisers (paper, Eq. 6 and Algorithm 1)
# ------------------------------------------------------------------------------------------------------------------

PAPER = {  # what a setting is that is not given, with the paper's losses
    "model": "distmult",
    "epochs": 200,
    "batches": 10,
    "learning_rate": 0.1,
    "schedule": "constant",
    "accumulator": 0.1,  # as in TensorFlow, which the paper used
    "n3": 0.0,
    "relation_weight": 0.0,
    "project": "unit",
    "reciprocal": False,
    "softmax_candidates": 0,
    "penalty_weight": 0.01,
    "validate_every": 0,
}
DIMS = {"distmult": 200, "complex": 150, "ermlp": 100}  # where no dim is given: sizes that reach the paper's figures
OWN_DIM = 100  # and of a model of one's own


@dataclass
class Settings:
    """Everything that determines the bits of a run; the names are those of the command line, where they are
    explained. Defaults are the paper's recipe, or, where it is silent, what was measured (docs/REPRODUCTION.md).

    What is None depends on the loss. Of the paper's losses it is PAPER's; under softmax it follows from the sizes of
    the graph, and stays None until `resolved`."""

    model: str | None = None
    data: str = "families"
    columns: str = "hrt"
    dim: int | None = None  # None, with the paper's losses: DIMS[model]
    hidden: int = 100
    epochs: int | None = None
    batches: int | None = None
    batch_size: int | None = None  # instead of `batches`
    negatives: int = 2
    filter_negatives: bool = False
    loss: str = "logistic"
    margin: float = 0.5
    optimizer: str = "adagrad"
    learning_rate: float | None = None
    decay: float = 0.0
    schedule: str | None = None
    accumulator: float | None = None  # where AdaGrad's accumulators start
    l2: float = 0.0
    n3: float | None = None
    relation_weight: float | None = None
    project: str | None = None
    reciprocal: bool | None = None
    softmax_candidates: int | None = None
    no_loops: bool = False
    bounds: str = "none"  # none, mined, or a file
    penalty_weight: float | None = None  # lambda
    extra_negatives: bool = False  # a control: the regulariser's sample as negatives, whatever the bounds
    sampling: str = "uniform"
    inclusion: str = "frequency"
    subjects: int = 10  # mu
    objects: int = 100  # omega
    subject_pool: str = "relation"
    seed: int = 0
    dtype: str = "float32"
    validate_every: int | None = None
    patience: int = 0
    final: bool = False  # trained on train, valid and test together

    def __post_init__(self):
        if self.loss == "softmax":
            self.model = self.model or "complex"
            return
        for name, value in PAPER.items():
            if getattr(self, name) is None:
                setattr(self, name, value)

    def resolved(self, n_entities, n_relations, n_triples):
        """A copy in which nothing is left to the sizes of the graph."""
        if self.loss != "softmax":
            return replace(self)
        rule = softmax_defaults(self, n_entities, n_relations, n_triples)
        return replace(self, **{name: value for name, value in rule.items() if getattr(self, name) is None})

    def check(self):
        """CardkgeError that names the first setting out of its range, what was found and what is allowed."""
        choices = {
            "model": tuple(MODELS),
            "loss": ("logistic", "hinge", "softmax"),
            "optimizer": ("adagrad", "sgd"),
            "schedule": ("constant", "late", None),
            "project": ("unit", "none", None),
            "sampling": SAMPLINGS,
            "inclusion": ("frequency", "uniform"),
            "subject_pool": ("relation", "entities"),
            "dtype": ("float32", "float64"),
        }
        if str(self.model).startswith(":") and self.model not in MODELS:
            name = self.model[1:]
            raise CardkgeError(f"the model is {name}, a class of one's own: load it with --model PATH.py:{name}")
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                allowed = ", ".join(value for value in allowed if value)
                raise CardkgeError(f"{name} must be one of {allowed}; found {getattr(self, name)}")
        for name, kind in typing.get_type_hints(Settings).items():
            if not fits(getattr(self, name), kind):
                wanted = getattr(kind, "__name__", kind)
                raise CardkgeError(f"{name} must be {wanted}, found {getattr(self, name)!r}")
        least = dict.fromkeys(("dim", "hidden", "batches", "batch_size", "negatives", "subjects", "objects"), 1)
        least |= dict.fromkeys(("epochs", "margin", "decay", "accumulator", "l2", "n3", "penalty_weight"), 0)
        least |= dict.fromkeys(("relation_weight", "softmax_candidates", "learning_rate", "seed"), 0)
        least |= dict.fromkeys(("validate_every", "patience"), 0)
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and not low <= value < np.inf:
                raise CardkgeError(f"{name} must be a finite number, at least {low}; found {value}")
        if self.seed >= 2**32:
            raise CardkgeError(f"seed must be below 2^32, found {self.seed}")
        if self.decay and self.optimizer != "sgd":
            raise CardkgeError("decay is for sgd: AdaGrad lowers its steps itself; leave one of them out")
        if self.loss != "softmax":
            for name in ("reciprocal", "n3", "relation_weight", "softmax_candidates", "no_loops"):
                if getattr(self, name):
                    raise CardkgeError(f"{name} is for the softmax loss: leave it out, or give loss softmax")
        elif self.extra_negatives:
            raise CardkgeError("extra_negatives is for losses with negatives: leave it out, or give loss logistic")
        if self.patience and self.validate_every == 0:
            raise CardkgeError("patience counts validations: give validate_every too")


def fits(value, kind):
    """Whether a JSON value has the type of a field; a bool is no int, an int is a float."""
    kinds = typing.get_args(kind) or (kind,)
    return type(value) in kinds or (float in kinds and type(value) is int)


def option_name(field_name):
    """The command-line name of a field of Settings, as in config.json: penalty_weight is lambda."""
    return "lambda" if field_name == "penalty_weight" else field_name.replace("_", "-")


def objective(model, heads, relations, tails, settings, bounds=None, samples=()):
    """Eq. 6, L^C = L + lambda sum G_hr, of one step, with all its gradients: the definition of what `Trainer.step`
    does.

    heads, relations, tails: (n, 1 + m) ids; column 0 is the positive triple, the others its corruptions. samples: a
    (relation, subjects, objects, weights) each, as `cardinality_penalty` takes them, with bounds (R, 2).
    The L2 penalty is settings.l2 / 2 ||row||^2 for the head's, relation's and tail's row of every example.

    Returns ({"objective", "loss", "l2", "penalty"}, gradients): objective = loss + l2 + lambda * penalty, all sums.
    """
    ids = [np.asarray(part) for part in (heads, relations, tails)]
    flat = [part.ravel() for part in ids]
    scores = model.score(*flat).reshape(ids[0].shape)
    if settings.loss == "logistic":
        labels = np.where(np.arange(scores.shape[1]) == 0, 1, -1) * np.ones(scores.shape, int)
        loss, upstream = logistic_loss(scores, labels)
    else:
        loss, d_positive, d_negative = hinge_loss(scores[:, 0], scores[:, 1:], settings.margin)
        upstream = np.concatenate((d_positive[:, None], d_negative), 1)
    gradients = model.gradients(*flat, upstream.ravel())

    l2 = 0.0
    for name, part in zip(("entity", "relation", "entity"), flat):
        rows = model.params[name][part]
        l2 += settings.l2 / 2 * float((rows.astype(np.float64) ** 2).sum())
        np.add.at(gradients[name], part, model.dtype.type(settings.l2) * rows)

    penalty = 0.0
    for sample in samples:
        if settings.extra_negatives:
            g, d_g = sampled_negatives(model, *sample[:4])
        else:
            g, d_g, _ = cardinality_penalty(model, bounds, *sample)
        penalty += g
        for name in gradients:
            gradients[name] += model.dtype.type(settings.penalty_weight) * d_g[name]
    total = loss + l2 + settings.penalty_weight * penalty
    return {"objective": total, "loss": loss, "l2": l2, "penalty": penalty}, gradients


def sgd_step(param, gradient, learning_rate):
    """param -= learning_rate * gradient, in place."""
    param -= param.dtype.type(learning_rate) * gradient


def adagrad_step(param, accumulator, gradient, learning_rate):
    """accumulator += gradient^2, then param -= learning_rate * gradient / sqrt(accumulator), in place (Duchi et al.
    2011, diagonal). No eps: where accumulator and gradient are 0, nothing changes."""
    accumulator += gradient * gradient
    moved = accumulator != 0
    root = np.sqrt(accumulator, where=moved, out=np.ones_like(accumulator))
    param -= np.where(moved, param.dtype.type(learning_rate) * gradient / root, 0)


def project_rows(array, rows=None):
    """Each row (or the distinct rows given) to L2 norm 1, in place; a row of zeros stays one."""
    rows = slice(None) if rows is None else rows
    norms = np.sqrt((array[rows] ** 2).sum(-1, keepdims=True))
    array[rows] /= np.where(norms > 0, norms, 1)


# ------------------------------------------------------------------------------------------------------------------
# 7. Training (paper, Algorithm 1)
# ------------------------------------------------------------------------------------------------------------------


def corruptions(rng, triples, negatives, n_entities, known=None, n_relations=None):
    """C(h, r, t) (paper, Background): heads and tails of each positive triple and its corruptions, (n, 1 + m, 2) int32.

    triples (n, 3). The odd columns replace the tail, the even ones (from 2) the head, by an entity drawn uniformly. A
    corruption may be a true triple (LCWA), unless `known` (sorted `triple_keys`) is given: then one that is known is
    drawn again, and stays known only where every entity in its place gives a known triple.
    """
    ends = np.repeat(triples[:, None, ::2], 1 + negatives, axis=1)
    sides = 1 - np.arange(negatives) % 2  # 1: the tail, as in ends
    for side in range(2):
        shape = len(triples), int((sides == side).sum())
        ends[:, 1:][:, sides == side, side] = rng.integers(0, n_entities, shape, np.int32)
    if known is None or len(known) == 0:
        return ends

    def is_known(where, heads, tails):
        keys = triple_keys(heads, triples[where, 1], tails, n_entities, n_relations)
        return known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] == keys

    where, column = np.divmod(np.arange(len(triples) * negatives), negatives)
    for _ in range(20):
        again = is_known(where, *ends[where, 1 + column].T)
        where, column = where[again], column[again]
        ends[where, 1 + column, sides[column]] = rng.integers(0, n_entities, len(where), np.int32)
    everyone = np.arange(n_entities)
    for i, j in zip(where, column):  # hardly any entity is free: draw among those that are
        pair = [ends[i, 1 + j, 0], ends[i, 1 + j, 1]]
        pair[sides[j]] = everyone
        free = everyone[~is_known(i, *pair)]
        if len(free):
            ends[i, 1 + j, sides[j]] = rng.choice(free)
    return ends


def batch_limits(n, settings):
    """The mini-batches of an epoch of n triples: batch i is [limits[i], limits[i + 1]) of their shuffled order."""
    if settings.batch_size:
        return [*range(0, n, settings.batch_size), n]
    batches = min(settings.batches, n)
    return [n * i // batches for i in range(batches + 1)]


def algorithm_1(model, triples, settings, bounds=None):
    """Trains any Model in place, as the paper's Algorithm 1 says: draw, corrupt, objective, step, project.

    triples (n, 3), train; settings a `Settings`; bounds as for `cardinality_penalty`, None for none. What
    is drawn depends on the seed alone,
    and is what `train`, the fast form, draws. Returns for each epoch a dict of means over its steps: objective, loss,
    l2, penalty. The softmax loss has a loop of its own, `softmax_loop`.
    """
    if settings.loss == "softmax":
        return softmax_loop(model, triples, settings, bounds)
    sizes = model.n_entities, model.n_relations
    bounds = training_bounds(bounds, settings, sizes[1])
    bounded = bounded_relations(bounds) if bounds is not None and settings.penalty_weight > 0 else ([], [])
    accumulators = {name: np.full_like(array, settings.accumulator) for name, array in model.params.items()}
    known = np.sort(triple_keys(*triples.T, *sizes)) if settings.filter_negatives else None
    limits, history = batch_limits(len(triples), settings), []
    if settings.project == "unit":
        project_rows(model.params["entity"])
    for epoch in range(settings.epochs):
        order = np.random.default_rng([settings.seed, 1, epoch]).permutation(len(triples))
        totals = dict.fromkeys(("objective", "loss", "l2", "penalty"), 0.0)
        for step, (first, last) in enumerate(itertools.pairwise(limits)):
            rng = np.random.default_rng([settings.seed, 2, epoch, step])
            batch = triples[order[first:last]]
            batch = batch[np.argsort(batch[:, 1], kind="stable")]  # the order in a batch is the fast form's
            ends = corruptions(rng, batch, settings.negatives, sizes[0], known, sizes[1])
            relations = np.repeat(batch[:, 1:2], ends.shape[1], axis=1)
            samples = draw_samples(rng, triples, bounded, sizes[0], settings)
            parts, gradients = objective(model, ends[..., 0], relations, ends[..., 1], settings, bounds, samples)
            rate = learning_rate(settings, epoch, step / (len(limits) - 1))
            update_params(model, accumulators, gradients, settings, rate)
            totals = {name: totals[name] + parts[name] for name in totals}
        history.append({name: total / (len(limits) - 1) for name, total in totals.items()})
    return history


def learning_rate(settings, epoch, share):
    """The rate of a step, `share` of its epoch's steps being done. Schedule "late": as given in the first half of the
    run, then linearly down to 0 (and of SGD divided by 1 + decay * epoch, as always)."""
    rate = settings.learning_rate / (1 + settings.decay * epoch)  # decay is 0 for AdaGrad
    return rate * min(1.0, 2 - 2 * (epoch + share) / settings.epochs) if settings.schedule == "late" else rate


def update_params(model, accumulators, gradients, settings, rate):
    """One step of the optimiser on all parameters, and the projection."""
    for name, gradient in gradients.items():
        if settings.optimizer == "adagrad":
            adagrad_step(model.params[name], accumulators[name], gradient, rate)
        else:
            sgd_step(model.params[name], gradient, rate)
    if settings.project == "unit":
        project_rows(model.params["entity"])


def bounded_relations(bounds):
    """Ids of the relations that bound the tails of heads, and of those that bound the heads of tails."""
    if hasattr(bounds, "of"):
        return np.flatnonzero(bounds.is_bounded()), np.flatnonzero(bounds.is_bounded(inverse=True))
    return np.flatnonzero(is_bounded(bounds)), []


def draw_samples(rng, triples, bounded, n_entities, settings):
    """The regulariser's sample for one step: a (relation, subjects, objects, weights, inverse) for each of the
    relations that are `bounded`, two lists; where inverse, subjects are tails, drawn like heads of triples turned
    round."""
    samples = []
    for inverse, relations in enumerate(bounded):
        if len(relations) == 0:
            continue
        ends = triples[:, ::-1] if inverse else triples
        subjects = draw_subjects(rng, settings.subject_pool, ends, relations, n_entities, settings.subjects)
        what = settings.sampling, ends, relations, n_entities, settings.objects, settings.inclusion
        drawn = zip(relations, subjects, draw_objects(rng, *what))
        samples += [(r, heads, *objects, bool(inverse)) for r, heads, objects in drawn]
    return samples


# ------------------------------------------------------------------------------------------------------------------
# 8. Evaluation (paper, Evaluation Protocol)
# ------------------------------------------------------------------------------------------------------------------

TIES = ("realistic", "optimistic", "pessimistic")
HITS = (1, 3, 5, 10)


def filtered_ranks(model, triples, known=(), ties="realistic"):
    """The rank of the right head among all entities for (?, r, t), and of the right tail for (h, r, ?), the other true
    answers in `known` left out: (n, 2) float64, column 0 the head's rank, column 1 the tail's. Without known: raw.

    triples (n, 3), known (m, 3) ids. Ties: "optimistic" the best rank among equal scores, "pessimistic" the worst,
    "realistic" their mean. Raises CardkgeError where a score is NaN. `rank_triples` is the fast form.
    """
    share = {"optimistic": 0.0, "realistic": 0.5, "pessimistic": 1.0}[ties]
    true, ranks = {tuple(triple) for triple in np.asarray(known).tolist()}, np.empty((len(triples), 2))
    for i, triple in enumerate(np.asarray(triples)):
        for side, column in enumerate((0, 2)):
            candidates = np.tile(triple, (model.n_entities, 1))
            candidates[:, column] = np.arange(model.n_entities)
            h, r, t = candidates.T
            scored = (t, r + model.n_relations, h) if model.reciprocal and side == 0 else (h, r, t)
            scores, right = model.score(*scored), triple[column]
            if np.isnan(scores).any():
                raise CardkgeError(f"a score of {triple.tolist()} is NaN; no rank can be taken")
            others = np.array([e != right and tuple(c) not in true for e, c in enumerate(candidates.tolist())])
            above, equal = scores > scores[right], scores == scores[right]
            ranks[i, side] = 1 + np.sum(above & others) + share * np.sum(equal & others)
    return ranks


def metrics(ranks):
    """MRR, hits@1, 3, 5, 10 (fractions) and mean rank of ranks of any shape, at least one of them."""
    ranks = np.asarray(ranks, np.float64).ravel()
    if len(ranks) == 0:
        raise CardkgeError("no triples to take metrics of")
    found = {"mrr": float((1 / ranks).mean())}
    found |= {f"hits@{n}": float((ranks <= n).mean()) for n in HITS}
    return found | {"mean_rank": float(ranks.mean())}


def metrics_by_side(ranks):
    """`metrics` of ranks (n, 2) over both sides, of the heads and of the tails."""
    return {"both": metrics(ranks), "head": metrics(ranks[:, 0]), "tail": metrics(ranks[:, 1])}


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


# ------------------------------------------------------------------------------------------------------------------
# 9. Softmax over all entities (beyond the paper: Lacroix et al. 2018, Ruffinelli et al. 2020)
# ------------------------------------------------------------------------------------------------------------------


def softmax_loss(scores, answers, log_weights=0.0):
    """-log softmax(scores + log_weights) at the answers, summed. scores (n, m), -inf where a column is no candidate;
    answers (n,) columns; log_weights (m,) or a number.

    Returns (value, d value / d scores (n, m)), the gradient being softmax - one-hot(answer).
    """
    z = scores + log_weights
    z = z - z.max(1, keepdims=True)
    e = np.exp(z)
    total = e.sum(1, keepdims=True)
    rows = np.arange(len(z))
    value = (np.log(total[:, 0]) - z[rows, answers]).sum(dtype=np.float64)
    gradient = e / total
    gradient[rows, answers] -= 1
    return float(value), gradient.astype(scores.dtype, copy=False)


def draw_candidates(rng, n_entities, needed, count):
    """Candidates that a batch shares: the entities `needed` (its answers and given entities, a set), and `count` of the
    others, drawn uniformly without repetition; simply all entities where there are no more.

    Returns (ids (m,), the needed ones first, both parts sorted; log_weights (m,), -log of the probability that a
    candidate is one). With these weights the sum over candidates of exp(score + log weight) is an unbiased estimate of
    the softmax's denominator, the sum over all entities of exp(score).
    """
    needed = np.unique(needed)
    others = n_entities - len(needed)
    if count >= others:
        return np.arange(n_entities), np.zeros(n_entities)
    places = np.sort(rng.choice(others, count, replace=False, shuffle=False))  # among the others, in order of ids
    drawn = places + np.searchsorted(needed - np.arange(len(needed)), places, side="right")
    log_weights = np.zeros(len(needed) + count)
    log_weights[len(needed) :] = np.log(others / count)
    return np.concatenate((needed, drawn)), log_weights


def queries_of(model, triples, sides):
    """The queries that triples (n, 3) ask with their head (sides (n,) 0) or tail (1) open, as they are scored: (given,
    relations, answers, sides), (n,) each. Of a reciprocal model (?, r, t) is the tails of (t, r + R), of side 1."""
    heads, relations, tails = np.asarray(triples, np.int64).T
    tail_open = np.asarray(sides) == 1
    given, answers = np.where(tail_open, heads, tails), np.where(tail_open, tails, heads)
    if model.reciprocal:
        relations, tail_open = np.where(tail_open, relations, relations + model.n_relations), tail_open | True
    return given, relations, answers, tail_open.astype(np.int64)


def without_loops(triples, n_relations):
    """(R,) bool: the relations with no triple (x, r, x)."""
    triples = np.asarray(triples)
    loops = triples[triples[:, 0] == triples[:, 2], 1]
    return np.bincount(loops, minlength=n_relations) == 0


def softmax_objective(model, triples, sides, settings, bounds=None, loopless=None, candidates=None):
    """The objective of a batch of queries under softmax, and its gradients: the definition of `SoftmaxTrainer.step`.

    triples (n, 3), each with its head (sides (n,) 0) or its tail (1) open; loopless (R,) bool: where true, the given
    entity is no candidate; candidates (ids (m,), log_weights (m,)) as `draw_candidates` gives them, None: all entities.

    objective = loss + l2 + n3 + lambda * penalty, all sums over the queries, of their own three rows h, r, t:
    loss   -log softmax of the scores of all candidates, at the answer (`softmax_loss`), and settings.relation_weight
           times that of the scores of (h, ?, t) with all relation rows, at the query's own (Chen et al. 2021). A
           query for a head of a reciprocal model is (t, r + R, ?), and all 2R rows are asked;
    l2     settings.l2 / 2 (||h||^2 + ||r||^2 + ||t||^2);
    n3     settings.n3 (||h||_3^3 + ||r||_3^3 + ||t||_3^3), of ComplEx the moduli (Lacroix et al. 2018, Eq. 7);
    penalty the sum of G_hr over the distinct (h, r) of the queries (h, r, ?) whose relation has a bound, with X_hr the
           sum over all candidates, weighted (exact where these are all entities); of G_rt for bounds of the inverse.
    Returns ({"objective", "loss", "l2", "n3", "penalty"}, gradients, a dict like params).
    """
    ids, log_weights = (np.arange(model.n_entities), np.zeros(model.n_entities)) if candidates is None else candidates
    column = np.full(model.n_entities, -1)
    column[ids] = np.arange(len(ids))
    entity, relation = model.params["entity"], model.params["relation"]
    h, r, t = model.encode(entity, relation, entity)
    gradients, d_h, d_r, d_t = model.zero_gradients(), np.zeros_like(h), np.zeros_like(r), np.zeros_like(t)
    parts = dict.fromkeys(("objective", "loss", "l2", "n3", "penalty"), 0.0)

    for given, k, answer, tail_open in zip(*queries_of(model, triples, sides)):
        rows = (h[given], r[k], t[ids]) if tail_open else (h[ids], r[k], t[given])
        scores = model.phi(*rows)
        if loopless is not None and loopless[k % model.n_relations] and given != answer and column[given] >= 0:
            scores[column[given]] = -np.inf
        loss, upstream = softmax_loss(scores[None], column[[answer]], log_weights)
        parts["loss"] += loss
        d_head, d_relation, d_tail = model.d_phi(*rows, upstream[0], gradients)
        d_r[k] += d_relation.sum(0)
        if tail_open:
            d_h[given] += d_head.sum(0)
            d_t[ids] += d_tail
        else:
            d_h[ids] += d_head
            d_t[given] += d_tail.sum(0)
        if settings.relation_weight:
            head, tail = (given, answer) if tail_open else (answer, given)
            rows = h[head], r, t[tail]
            loss, upstream = softmax_loss(model.phi(*rows)[None], np.array([k]))
            parts["loss"] += settings.relation_weight * loss
            d_head, d_relation, d_tail = model.d_phi(*rows, settings.relation_weight * upstream[0], gradients)
            d_h[head] += d_head.sum(0)
            d_r += d_relation
            d_t[tail] += d_tail.sum(0)
        for name, i in (("entity", given), ("relation", k), ("entity", answer)):
            row = model.params[name][i]
            size = model.moduli(row)
            parts["l2"] += settings.l2 / 2 * float((row.astype(np.float64) ** 2).sum())
            parts["n3"] += settings.n3 * float((size.astype(np.float64) * row * row).sum())
            gradients[name][i] += settings.l2 * row + 3 * settings.n3 * size * row
    d_entity, d_relation, d_tails = model.d_encode(entity, relation, entity, d_h, d_r, d_t, gradients)
    gradients["entity"] += d_entity + d_tails
    gradients["relation"] += d_relation

    if bounds is not None and settings.penalty_weight:
        for inverse, bounded in enumerate(bounded_relations(bounds)):
            asked = np.asarray(triples)[np.asarray(sides) == 1 - inverse]
            for k in np.intersect1d(asked[:, 1], bounded).tolist():
                subjects = np.unique(asked[asked[:, 1] == k, 2 * inverse])
                sample = subjects, ids, np.exp(log_weights), bool(inverse)
                penalty, d, _ = cardinality_penalty(model, bounds, k, *sample)
                parts["penalty"] += penalty
                for name in gradients:
                    gradients[name] += model.dtype.type(settings.penalty_weight) * d[name]
    parts["objective"] = parts["loss"] + parts["l2"] + parts["n3"] + settings.penalty_weight * parts["penalty"]
    return parts, gradients


def group_keys(model, triples, sides):
    """(n,) int64: equal where the queries of triples (n, 3) with their head (sides (n,) 0) or tail (1) open have the
    same given entity, relation and side: one row of scores answers them all. Ordered by side, relation, entity."""
    given, relations, _, sides = queries_of(model, triples, sides)
    return (sides * len(model.params["relation"]) + relations) * model.n_entities + given


def shuffle_queries(settings, epoch, lengths, size):
    """The batches of an epoch under softmax: (order, limits). order is a permutation of the distinct queries, of which
    query i stands for lengths[i]; batch b is order[limits[b] : limits[b + 1]]: it counts `size` queries, and has a
    distinct one whole where the first it stands for falls, so that a batch may be empty after a long one."""
    order = np.random.default_rng([settings.seed, 1, epoch]).permutation(len(lengths)).astype(np.int32)
    ends = np.cumsum(lengths[order])
    batches = -(-int(ends[-1]) // size)
    return order, np.searchsorted(ends - lengths[order], np.arange(batches + 1) * size)


def step_candidates(settings, epoch, step, n_entities, needed):
    """The candidates of a step (`draw_candidates`), or None for all entities."""
    if not settings.softmax_candidates:
        return None
    rng = np.random.default_rng([settings.seed, 2, epoch, step])
    return draw_candidates(rng, n_entities, needed, settings.softmax_candidates)


def softmax_loop(model, triples, settings, bounds=None):
    """Trains any Model in place under softmax: `algorithm_1` with batches of queries for triples and corruptions."""
    settings = settings.resolved(model.n_entities, model.n_relations, len(triples))
    both, sides = np.concatenate((triples, triples)), np.repeat([0, 1], len(triples))
    _, query, lengths = np.unique(group_keys(model, both, sides), return_inverse=True, return_counts=True)
    loopless = without_loops(triples, model.n_relations) if settings.no_loops else None
    accumulators = {name: np.full_like(array, settings.accumulator) for name, array in model.params.items()}
    history = []
    if settings.project == "unit":
        project_rows(model.params["entity"])
    for epoch in range(settings.epochs):
        order, limits = shuffle_queries(settings, epoch, lengths, settings.batch_size)
        totals, steps = dict.fromkeys(("objective", "loss", "l2", "n3", "penalty"), 0.0), len(limits) - 1
        for step, (first, last) in enumerate(itertools.pairwise(limits)):
            batch = np.isin(query, order[first:last])
            if not batch.any():
                continue
            candidates = step_candidates(settings, epoch, step, model.n_entities, both[batch][:, ::2])
            parts, gradients = softmax_objective(
                model, both[batch], sides[batch], settings, bounds, loopless, candidates
            )
            update_params(model, accumulators, gradients, settings, learning_rate(settings, epoch, step / steps))
            totals = {name: totals[name] + parts[name] for name in totals}
        history.append({name: total / steps for name, total in totals.items()})
    return history


def softmax_defaults(settings, n_entities, n_relations, n_triples):
    """What follows from the sizes of a graph for a run under softmax, name -> value (docs/SOFTMAX.md has what was
    measured): N3 from 0.01 to 0.1, more in a large graph and where an entity has few triples; about 2,500 steps over
    all entities, or, above 8,192 entities, 5,000 over a sixteenth of them (2,048 to 16,384); 10 to 60 epochs. DistMult
    and ComplEx learn to tell the relation too, where there are a hundred or more and above 8,192 entities."""
    queries, mlp, large = 2 * max(n_triples, 1), settings.model == "ermlp", n_entities > 8192
    batch_size = int(np.clip(round(2.5 * math.sqrt(queries)), 64, 4096))
    if settings.batch_size or settings.batches:
        batch_size = settings.batch_size or -(-queries // settings.batches)
    n3 = max(5e-4 * math.sqrt(n_entities), 0.2 * n_entities / max(n_triples, 1))
    epochs = settings.epochs
    if epochs is None:
        epochs = int(np.clip(round((5000 if large else 2500) / math.ceil(queries / batch_size)), 10, 60))
    return {
        "dim": DIMS["ermlp"] if mlp else 128 if n_entities <= 10_000 else 256 if n_entities <= 100_000 else 100,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": 0.05 if mlp else 0.2,
        "schedule": "late",
        "accumulator": 0.0,
        "project": "none",
        "relation_weight": 1.0 if settings.model in ("distmult", "complex") and large and n_relations >= 100 else 0.0,
        "n3": 0.0 if mlp else float(f"{np.clip(n3, 0.01, 0.1):.2g}"),
        "reciprocal": settings.model in DIMS,  # a class of one's own need not know of it
        "softmax_candidates": int(np.clip(n_entities // 16, 2**11, 2**14)) if large else 0,
        "penalty_weight": 0.0,
        "validate_every": max(1, -(-epochs // 5)),
    }


# ------------------------------------------------------------------------------------------------------------------
# 10. Counts (beyond the paper): calibrated answers, conditioned on the bounds
# ------------------------------------------------------------------------------------------------------------------

# A candidate (h, r, t) is a triple that is not known. Three steps lead from its score to an answer; a fourth takes in
# what is known of counts.
#
# 1. pi, the probability that a candidate outside train is a fact, is logistic in what the model says of it: z = logit
#    pi = a score + b log_softmax + c, with a + b > 0. Each relation has its own a, b, c where 0, 1 or more tails of
#    (h, r) are known.
# 2. It is fitted on valid. A share v of the facts that train lacks got into valid, whichever they are; a candidate is
#    in valid with probability v pi, or not, with 1 - v pi (Elkan and Noto, KDD 2008). One that is not in valid is a
#    fact with p = pi (1 - v) / (1 - v pi) (Bayes), so the log of its odds o = p / (1 - p) is z + log(1 - v).
# 3. Facts are independent given the scores: P(S) is proportional to the product of the odds of S's members, for any set
#    S of candidates, and P(|S| = j) to e_j(o), the elementary symmetric polynomial. Given lower <= |S| <= upper,
#    P(t in S) = o_t sum_{j=L-1}^{U-1} e_j(o without t) / sum_{j=L}^{U} e_j(o) (Chen, Dempster, Liu, Biometrika 1994).
# 4. What is known of counts may be softer than a bound: P(|S| = j) is proportional to w_j e_j(o), for any weights w_j,
#    and bounds are weights of 0 and 1. Let Q(j) be the probability of j new tails that the known counts of a relation
#    teach, and M(j) that of step 2, on the average over its heads with (about) as many known tails: w_j = Q(j) / M(j).
#    Where both agree nothing changes. (Q alone would count twice what the odds hold already; Q over the head's own M
#    would forget what they say of this head.) Q comes from P(c), the probability that a head has c tails in all, each
#    known with probability s: k of c are with C(c, k) s^k (1 - s)^(c - k), P is fitted to the k by EM, and Q(j) is
#    proportional to P(k + j) C(k + j, k) (1 - s)^j.

N_KNOWN = 3  # 0, 1, or more known tails


def calibration_logits(coefficients, scores, log_sums, known):
    """z = a score + b log_softmax + c of candidates, as (a + b) log_softmax + a log_sum + c: where a + b > 0 the order
    of the tails of one (h, r) is that of their scores, ties included.

    coefficients (..., 3, 3): of each candidate's relation, for 0, 1 and more known tails: a, b, c. scores (...);
    log_sums (...): the log of the sum of exp(score) over the tails of its (h, r); known (...): its known tails.
    Float64 throughout.
    """
    place = np.minimum(known, N_KNOWN - 1)[..., None, None]
    a, b, c = np.moveaxis(np.take_along_axis(np.asarray(coefficients, np.float64), place, -2)[..., 0, :], -1, 0)
    return (a + b) * (np.asarray(scores, np.float64) - log_sums) + a * log_sums + c


def log_sum_exp(scores):
    """log of the sum of exp(scores) over the last axis, float64."""
    scores = np.asarray(scores, np.float64)
    largest = scores.max(-1, keepdims=True)
    return np.log(np.exp(scores - largest).sum(-1)) + largest[..., 0]


def calibration_loss(parameters, features, found, weights, share, centre, precision):
    """The negative log-likelihood of step 2 with a Gaussian prior, its gradient, and its expected curvature.

    parameters (3,): u, a, c, where a + b = exp(u) keeps the order; features (n, 3): log_softmax, log_sum, 1; found (n,)
    bool: in valid; weights (n,): how many candidates a row stands for; share v in (0, 1]; centre, precision (3,): of
    the prior. Returns (value, d value (3,), Fisher information (3, 3)). Of d features it is the same with d for 3, and
    at v = 1, where what is not found is false, plain logistic regression whose first slope is positive.

        value = -sum w [found log(v pi) + (1 - found) log(1 - v pi)] + 1/2 sum precision (parameters - centre)^2
    """
    slopes = np.append(np.exp(parameters[0]), parameters[1:])
    z = features @ slopes
    pi, none = probability(z), np.maximum(probability(-z), 1e-300)  # never 0, for at v = 1 rest is none
    q, rest = share * pi, 1 - share + share * none  # 1 - q, without cancellation
    small = np.log1p(np.exp(-np.abs(z)))
    log_q = math.log(share) + np.minimum(z, 0) - small
    log_rest = np.log(rest) if share < 1 else np.minimum(-z, 0) - small
    away = parameters - centre
    value = -(weights * np.where(found, log_q, log_rest)).sum() + 0.5 * (precision * away * away).sum()
    d_z = weights * np.where(found, -none, q * none / rest)
    scale = np.append(slopes[0], np.ones(len(parameters) - 1))  # d slopes / d parameters
    gradient = (d_z @ features) * scale + precision * away
    information = (features.T * (weights * q * none**2 / rest)) @ features
    return float(value), gradient, information * scale * scale[:, None] + np.diag(precision)


def fit_calibration(features, found, weights, share, centre, precision, steps=100):
    """The parameters (3,) at a minimum of `calibration_loss`: Fisher scoring from `centre`, a step halved until the
    value falls. CardkgeError where features are not finite."""
    if not np.isfinite(features).all():
        raise CardkgeError("calibration: a score is not finite; train again, with a smaller learning rate say")
    parameters = np.array(centre, np.float64)
    arguments = features, found, weights, share, centre, precision
    value, gradient, information = calibration_loss(parameters, *arguments)
    for _ in range(steps):
        step = np.linalg.solve(information, gradient)
        step *= min(1.0, 3.0 / np.abs(step).max(initial=1e-300))  # far out the curvature says little
        tried = calibration_loss(parameters - step, *arguments)
        while not tried[0] <= value and np.abs(step).max() > 1e-12:
            step /= 2
            tried = calibration_loss(parameters - step, *arguments)
        if not tried[0] <= value:
            break
        parameters, done = parameters - step, value - tried[0] <= 1e-9 * abs(value)
        value, gradient, information = tried
        if done:
            break
    return parameters


def mean_count(log_odds, tilt=0.0):
    """Sum of p and of p (1 - p) over candidates with these log odds (n,), each moved by `tilt`."""
    p = probability(log_odds + tilt)
    return p.sum(), (p * probability(-log_odds - tilt)).sum()


def tilt_to(log_odds, target):
    """A tilt that brings the mean count of candidates (n,) within 1/4 of `target` in 1..n - 1, by bisection; every
    log odds finite."""
    margin = math.log(len(log_odds)) + 1
    low, high = -log_odds.max() - margin, -log_odds.min() + margin
    while True:
        tilt = (low + high) / 2
        mean, _ = mean_count(log_odds, tilt)
        if abs(mean - target) <= 0.25:
            return tilt
        low, high = (tilt, high) if mean < target else (low, tilt)


def size_probabilities(p, most):
    """(most + 1,) P(|S| = j) of independent candidates with probabilities p (n,); the last is of `most` and more."""
    sizes = np.zeros(most + 1)
    sizes[0] = 1
    for each in p:
        grown = np.append(0, sizes[:-1] * each)
        grown[-1] += sizes[-1] * each
        sizes = sizes * (1 - each) + grown
    return sizes


def fit_counts(known, share, steps=200):
    """P(c) (m + 1,), the probability that a head has c tails, of heads with known (n,) tails, each known with
    probability `share` in (0, 1): step 4's EM, from equal probabilities. m is ceil(most known / share); a thousandth
    of a head is spread evenly over the counts."""
    k, heads = np.unique(known, return_counts=True)
    counts = np.arange(math.ceil(k[-1] / share) + 1)
    seen = np.minimum(k[:, None], counts)
    chances = np.exp(log_choose(counts, seen) + seen * math.log(share) + (counts - seen) * math.log1p(-share))
    chances *= counts >= k[:, None]
    found = np.full(len(counts), 1 / len(counts))
    for _ in range(steps):
        shares = chances * found
        found = (heads / shares.sum(1)) @ shares + 1e-3 / len(counts)
        found /= found.sum()
    return found


def log_choose(n, k):
    """log of the binomial coefficients of integers 0 <= k <= n."""
    logs = np.append(0, np.cumsum(np.log(np.arange(1, np.max(n, initial=0) + 1))))
    return logs[n] - logs[k] - logs[n - k]


def count_weights(counts, share, known, usual, heads=math.inf):
    """w_j (m + 1,) of step 4 for a head with `known` tails: counts (c,) of `fit_counts`; usual (m + 1,): M(j), the last
    of m and more, an average over so many heads. Ten heads with Q are added to these, so that few teach little, and
    1e-6 to both, so that what neither expects is left as it is. Where `known` is more than was ever seen, nothing is
    known of the count, and every weight is 1."""
    sizes = np.arange(len(counts) - known)
    if not len(sizes):
        return np.ones(len(usual))
    logs = log_choose(known + sizes, np.full(len(sizes), known)) + sizes * math.log1p(-share)
    new = counts[known:] * np.exp(logs - logs.max())
    new = np.bincount(np.minimum(sizes, len(usual) - 1), new / new.sum(), len(usual))
    usual = usual + (new - usual) * 10 / (heads + 10)
    weights = (new + 1e-6) / (usual + 1e-6)
    return weights / weights.max()


def conditioned(log_odds, lower, upper, weights=(1.0,)):
    """P(t in S | lower <= |S| <= upper) (n,) of independent candidates with log odds (n,): step 3, exactly. weights
    (m + 1,): those of step 4, not negative, for sizes from 0; the last is that of all sizes from m on.

    A set's odds change by a factor exp(tilt |S|) where every candidate's change by exp(tilt); given its size, nothing
    changes. So the log odds are moved until the mean count lies at the nearer bound, if it lies outside them, and sizes
    are weighted by exp(-tilt size) in return: then the sum over sizes is neither huge nor tiny, whatever the odds.
    forward[i, j] = P(j of the first i in S) and backward[j] = P(bounds hold | j so far) are sums of positive terms
    only, as is P(t in S, bounds hold) = sum_j forward[t, j] p_t backward[j + 1]: no rounding error is ever enlarged.

    An upper bound further than 30 + 10 standard deviations above the mean excludes less than 1e-16, and is taken for
    infinite; where a lower bound is not met on the average, so is what is further above it. Equal odds get equal
    answers, and greater ones no smaller ones. CardkgeError where no set of candidates has such a size.
    """
    log_odds = np.clip(np.asarray(log_odds, np.float64), -1e6, 1e6)
    weights, (positive,) = np.asarray(weights, np.float64), np.nonzero(weights)
    n, m = len(log_odds), len(weights) - 1
    least = max(math.ceil(lower), 0, positive.min(initial=n + 1))
    most = min(math.floor(min(upper, n)), n, positive.max(initial=-1) if not weights[m] else n)
    if least > most:
        raise CardkgeError(f"no set of {n} candidates has a size from {lower:g} to {upper:g}")
    if most == 0 or least == n:
        return np.full(n, float(most > 0))
    mean, variance = mean_count(log_odds)
    tilt = 0.0
    if not least <= mean <= most:
        end = least if mean < least else most
        tilt = tilt_to(log_odds, end)
        mean, variance = mean_count(log_odds, tilt)
    reach = math.ceil(mean + 30 + 10 * math.sqrt(variance))
    more = most == n or most > reach  # the last state is `that many or more`
    if tilt > 0:
        most, more = min(most, reach), False
    elif more:
        most = max(least, min(m, n))
    if more and most == 0:
        return probability(log_odds)
    order = np.argsort(log_odds, kind="stable")
    p, q = probability(log_odds[order] + tilt), probability(-log_odds[order] - tilt)
    sizes = np.arange(most + 1)
    backward = (
        weights[np.minimum(sizes, m)]
        * (sizes >= least)
        * np.exp(np.minimum(-tilt * (sizes - (least if tilt > 0 else most)), 0))
    )
    forward = np.zeros((n + 1, most + 1))
    forward[0, 0] = 1
    for i in range(n):
        forward[i + 1] = forward[i] * q[i]
        forward[i + 1, 1:] += forward[i, :-1] * p[i]
        forward[i + 1, -1] += forward[i, -1] * p[i] * more
    answers = np.empty(n)
    for i in reversed(range(n)):
        shifted = np.append(backward[1:], backward[-1] * more)
        member, other = p[i] * (forward[i] @ shifted), q[i] * (forward[i] @ backward)
        answers[i] = member / (member + other)
        backward = q[i] * backward + p[i] * shifted
    answers = np.maximum.accumulate(answers)  # what rounding may have turned round
    _, first, which = np.unique(log_odds[order], return_index=True, return_inverse=True)
    result = np.empty(n)
    result[order] = answers[first][which]
    return result


# ------------------------------------------------------------------------------------------------------------------
# What the rooms of cardkge_tools hand on (PEP 562): the one place that knows what stands above this file
# ------------------------------------------------------------------------------------------------------------------

ROOMS = {
    "files": "read_json replace_file",
    "download": "dataset_table fetch_dataset locate_dataset",
    "graphs": "Dataset Triples describe_data load_dataset load_triples read_triples",
    "constraints": "Bound Constraints Types bounds_of find_bounds find_constraints read_bounds significant_maxima"
    " write_bounds",
    "splitting": "leaks related_relations split_triples",
    "engine.threads": "Threads count_cores",
    "engine.draws": "ObjectSampler SubjectSampler",
    "engine.trainer": "NonFinite Trainer",
    "engine.softmax": "SoftmaxTrainer",
    "engine.training": "train",
    "counts": "Answers Calibration CountPrior Decoder calibrate complete evaluate_sets learn_counts scope_pairs",
    "own": "use_model",
    "engine.ranking": "cardinality_violations completions evaluate rank_triples true_answers",
    "runs": "Run align_dataset is_run load_run new_model new_run read_config read_outcome save_metrics save_run",
    "oracle": "check_oracle oracle write_oracle",
}
_ROOM_OF = {name: f"cardkge_tools.{room}" for room, names in ROOMS.items() for name in names.split()}


def __getattr__(name):
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ROOM_OF[name]), name)


def __dir__():
    return sorted([*globals(), *_ROOM_OF])
