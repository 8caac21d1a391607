"""Knowledge graph embeddings with cardinality constraints: the mathematics, in plain NumPy.

The paper: E. Munoz, P. Minervini, M. Nickles, *Embedding Cardinality Constraints in Neural Link Predictors*, SAC 2019,
doi:10.1145/3297280.3297502. The file follows its order:

1. Bounds                        2. Scoring functions (Table 2, Eq. 1)   3. Losses (Eq. 2)
4. The regulariser (Eqs. 3-7)    5. Sampling its sums                    6. Objective (Eq. 6) and optimisers
7. Training (Algorithm 1)        8. Evaluation

Letters: N entities, R relations, k dim, k' hidden units, n examples or triples, m corruptions of each positive triple,
mu subjects and omega objects of a sample. h, r, t: head, relation, tail; d_x: the gradient with respect to x. Ids are
int32 or int64, triples (n, 3) with columns head, relation, tail.

This file is the definition. `kernels.py` and `cardkge_tools/engine` compute the same, fast, and the tests hold them
equal. Files, runs and commands have rooms in `cardkge_tools`; the last lines pass their names on, so that a user needs
only `import cardkge`. docs/ARCHITECTURE.md is the map."""

import copy
import importlib
import itertools
import math

import numpy as np

__version__ = "1.1.0"


class CardkgeError(Exception):
    """An error as one line: what was found, where, and what to do."""


def chosen(what, name, choices):
    """choices[name]; CardkgeError that lists the names of the dict where it lacks this one."""
    if name not in tuple(choices):
        raise CardkgeError(f"{what} must be one of {', '.join(choices)}; found {name}")
    return choices[name]


def checked_ids(ids, count, what):
    """`ids` as a flat integer array; CardkgeError for anything else, or an id outside 0..count - 1."""
    ids = np.asarray(ids)
    if ids.size == 0:
        ids = ids.astype(np.int32)
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise CardkgeError(f"{what} ids must be a flat array of integers, found shape {ids.shape}, dtype {ids.dtype}")
    if ids.size and (ids.min() < 0 or ids.max() >= count):
        bad = ids.min() if ids.min() < 0 else ids.max()
        raise CardkgeError(f"{what} id {bad} is out of range: ids are 0..{count - 1}")
    return ids.astype(np.int64) if ids.dtype.kind == "u" else ids  # kernels take no unsigned ids


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
    """One int64 for each triple, ordered by relation, head, tail, from id arrays that broadcast. CardkgeError where N *
    N * R is too large for int64."""
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
        # An entity of the population that is not a head of r has count 0.
        bounds[mined, 0] = np.where(heads == size, np.minimum.reduceat(counts, first), 0)
        bounds[mined, 1] = np.maximum.reduceat(counts, first)
    return bounds


def is_bounded(bounds):
    """(...,) bool: which bounds (..., 2), lower and upper, differ from (0, inf)."""
    bounds = np.asarray(bounds)
    return (bounds[..., 0] != 0) | (bounds[..., 1] != np.inf)


class Bounds:
    """Bounds on the number of tails of every head in each relation; and, inverse, on the heads of every tail.

    tables: (2, R, 2) float64, of tails and of heads, columns lower and upper, (0, inf) for none. A subclass may bound
    only some subjects (`cardkge_tools.graph.bounds`): `of` gives each subject its own bounds."""

    def __init__(self, tails, heads=None):
        """tails, heads: (R, 2); heads None for none. Raises CardkgeError unless 0 <= lower <= upper, lower finite."""
        tails = np.asarray(tails, np.float64)
        if tails.ndim != 2 or tails.shape[1] != 2:
            raise CardkgeError(f"bounds must have shape (R, 2), found {tails.shape}")
        self.tables = np.stack((tails, np.tile([0.0, np.inf], (len(tails), 1)) if heads is None else heads))
        lower, upper = self.tables[..., 0], self.tables[..., 1]
        if not ((lower >= 0) & (lower <= upper) & (lower < np.inf)).all():
            raise CardkgeError("bounds must be 0 <= lower <= upper, lower finite")

    def is_bounded(self, inverse=False):
        """(R,) bool: the relations in which some subject has a bound other than (0, inf)."""
        return is_bounded(self.tables[int(inverse)])

    def any(self):
        """Whether some relation is bounded, in its tails or its heads."""
        return bool(self.is_bounded().any() or self.is_bounded(inverse=True).any())

    def of(self, relations, subjects, inverse=False):
        """(n, 2) float64: lower and upper bound of each subject, a head (a tail if inverse), in its relation.

        subjects (n,) ids; relations (n,) ids, or the one id of all.
        """
        return self.tables[int(inverse), np.broadcast_to(relations, np.shape(subjects))]

    def without_lower(self):
        """The same Bounds with lower bounds of 0."""
        other = copy.copy(self)
        other.tables = self.tables * [0, 1]
        return other

    def weights(self, relations, known):
        """(n, sizes) float64: a factor for each number of new tails of heads with `known` (n,) tails; the last also
        holds for all larger numbers. Bounds weigh every number that they allow alike: (1, 1), all 1."""
        return np.ones((1, 1))


def as_bounds(bounds, n_relations):
    """An argument as Bounds of R = n_relations: Bounds, a table (R, 2) for every head, or None for no bounds.

    Raises CardkgeError for another number of relations.
    """
    if bounds is None:
        bounds = np.tile([0.0, np.inf], (n_relations, 1))
    bounds = bounds if isinstance(bounds, Bounds) else Bounds(bounds)
    if bounds.tables.shape[1] != n_relations:
        raise CardkgeError(f"bounds must have shape ({n_relations}, 2), found {bounds.tables.shape[1:]}")
    return bounds


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
    """The common part of the three scoring functions: `params` (a dict of plain arrays), sizes, checks, and scoring by
    id.

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

    row_length = 1  # reals of an embedding row, as a multiple of k

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
        """The embedding rows of the given ids, in the order h, r, t."""
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

    def score_pairs(self, heads, relation, tails):
        """phi(h, r, t) of every head with every tail, under one relation: ids (n,), an id, ids (m,) -> (n, m). None for
        heads or tails: every entity."""
        h, r, t = self.encode(*self._pair_rows(heads, relation, tails))
        return self.match(self.query_tails(h, r), t)

    def pair_gradients(self, heads, relation, tails, upstream):
        """d sum(upstream * score_pairs) / d params: upstream (n, m) -> dict of dense arrays like params."""
        rows = self._pair_rows(heads, relation, tails)
        gradients = self.zero_gradients()
        d_rows = self.d_pairs(*self.encode(*rows), upstream, gradients)
        d_h, d_r, d_t = self.d_encode(*rows, *d_rows, gradients)
        for ids, d in ((heads, d_h), (tails, d_t)):
            np.add.at(gradients["entity"], slice(None) if ids is None else np.asarray(ids, np.intp), d)
        gradients["relation"][relation] += d_r[0]
        return gradients

    def _pair_rows(self, heads, relation, tails):
        """Embedding rows (n, w), (1, w), (m, w), ids checked."""
        (r,) = self.rows(relations=np.array([relation]))
        h, t = (self.params["entity"] if ids is None else self.rows(ids)[0] for ids in (heads, tails))
        return h, r, t

    def zero_gradients(self):
        """A dict of zeros like params."""
        return {name: np.zeros_like(array) for name, array in self.params.items()}

    def moduli(self, rows):
        """The modulus of each number of embedding rows, repeated for each of its reals: an array of the same shape."""
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


# of scores (n, 1 + m), each positive triple's before those of its corruptions: (value, d value / d scores)


def _logistic(scores, settings):
    return logistic_loss(scores, np.where(np.arange(scores.shape[1]) == 0, 1, -1) * np.ones(scores.shape, int))


def _hinge(scores, settings):
    value, d_positive, d_negative = hinge_loss(scores[:, 0], scores[:, 1:], settings.margin)
    return value, np.concatenate((d_positive[:, None], d_negative), 1)


LOSSES = {"logistic": _logistic, "hinge": _hinge}


# ------------------------------------------------------------------------------------------------------------------
# 4. The regulariser (paper, Eqs. 3-5)
# ------------------------------------------------------------------------------------------------------------------


def violation(sums, lower, upper):
    """Eq. 5: G = max(0, lower - X) + max(0, X - upper), which is 0 where lower <= X <= upper (Eqs. 3, 4); and the slope
    d G / d X in {-1, 0, 1} (0 at the bounds)."""
    g = np.maximum(0, lower - sums) + np.maximum(0, sums - upper)
    return g, 1.0 * (sums > upper) - 1.0 * (sums < lower)


def subject_scores(model, relation, subjects, objects, inverse=False):
    """phi of each subject with each object (None: every entity), (n, m): of h with t, or where inverse of t with h,
    which a reciprocal model scores as (t, r + R, h)."""
    if inverse and not model.reciprocal:
        return model.score_pairs(objects, relation, subjects).T
    return model.score_pairs(subjects, relation + inverse * model.n_relations, objects)


def d_subject_scores(model, relation, subjects, objects, inverse, upstream):
    """d sum(upstream * subject_scores) / d params, a dict like params, for upstream (n, m)."""
    upstream = upstream.astype(model.dtype)
    if inverse and not model.reciprocal:
        return model.pair_gradients(objects, relation, subjects, upstream.T)
    return model.pair_gradients(subjects, relation + inverse * model.n_relations, objects, upstream)


def cardinality_sums(model, relation, subjects, objects=None, weights=None, inverse=False):
    """Eq. 4: X_hr = sum over objects t of weight_t p(h, r, t), for the subjects h. Returns (n,) float64.

    relation an id, subjects (n,) ids; objects (m,) ids, or None for all entities, exactly; weights (m,), 1 if None.
    inverse: X_rt = sum over objects h of weight_h p(h, r, t), for the subjects t, scored as `score_heads` does.
    """
    weights = _weights(model, objects, weights)
    sums = np.empty(len(subjects))
    for i in range(0, len(subjects), 64):  # all pairs at once would need too much memory
        scores = subject_scores(model, relation, subjects[i : i + 64], objects, inverse)
        sums[i : i + 64] = probability(scores) @ weights
    return sums


def cardinality_penalty(model, bounds, relation, subjects, objects=None, weights=None, inverse=False):
    """sum of G_hr (Eq. 5) over the subjects h, with X_hr (or X_rt) as in `cardinality_sums`.

    bounds: Bounds, or (R, 2). Returns (sum of G, its gradients as a dict like params, X (n,)). With sampled objects X
    may be unbiased; G is not, since max(0, .) is convex: E[G(X)] >= G(E[X]).
    """
    p = probability(subject_scores(model, relation, subjects, objects, inverse))
    lower, upper = as_bounds(bounds, model.n_relations).of(relation, subjects, inverse).T
    weights = _weights(model, objects, weights)
    sums = p @ weights  # Eq. 4
    g, slope = violation(sums, lower, upper)  # Eq. 5
    d_scores = slope[:, None] * weights * p * (1 - p)
    return float(g.sum()), d_subject_scores(model, relation, subjects, objects, inverse, d_scores), sums


def sampled_negatives(model, relation, subjects, objects, weights):
    """A control for the regulariser, without bounds: the pairs of its sample as corruptions, the sum over h and t of
    weight_t log(1 + exp(phi(h, r, t))). Arguments as for `cardinality_penalty`. Returns (value, gradients)."""
    scores = subject_scores(model, relation, subjects, objects)
    softplus = np.log1p(np.exp(-np.abs(scores))) + np.maximum(scores, 0)
    weights = _weights(model, objects, weights)
    d_scores = weights * probability(scores)
    return float((softplus @ weights).sum()), d_subject_scores(model, relation, subjects, objects, False, d_scores)


def training_bounds(bounds, settings, n_relations):
    """The Bounds for the regulariser, from those of a run (Bounds, (R, 2) or None).

    A uniform sample's X_S is at most X (Eq. 7), so max(0, lower - X_S) fires where X is far too large, and pushes it
    further up: with uniform sampling the lower bounds are 0. Extra negatives are drawn for every relation: [0, 0].
    """
    bounds = as_bounds(bounds, n_relations)
    if settings.extra_negatives:
        return Bounds(np.zeros((n_relations, 2)))
    uniform = settings.sampling == "uniform" and settings.loss != "softmax"  # whose sums are exact
    return bounds.without_lower() if uniform else bounds


def _weights(model, objects, weights):
    """(m,) float64 weights, 1 if None, of m objects, all entities if None."""
    count = model.n_entities if objects is None else len(objects)
    return np.ones(count) if weights is None else np.asarray(weights, np.float64)


# ------------------------------------------------------------------------------------------------------------------
# 5. Sampling its sums (paper, Lower Bound Estimation, Eq. 7, and Sum Estimation)
# ------------------------------------------------------------------------------------------------------------------


def tail_frequency(triples, relation, n_entities):
    """1 + how often each entity is a tail of the relation in `triples`, (N,) float64: q_r before it is normed."""
    return 1.0 + np.bincount(triples[triples[:, 1] == relation, 2], minlength=n_entities)


def inclusion_probabilities(frequency, omega):
    """b = min(1, c frequency), with c such that b adds up to omega, at most N. frequency (N,) > 0; (N,) float64 in
    (0, 1]."""
    f = np.sort(frequency)[::-1]
    rest = np.cumsum(f[::-1])[::-1]  # of f[j:]
    c = (omega - np.arange(len(f))) / rest  # where b is 1 for f[:j], and c f for f[j:]
    return np.minimum(1, c[np.argmax(c * f <= 1)] * frequency)


INCLUSIONS = {
    "frequency": inclusion_probabilities,
    "uniform": lambda frequency, omega: np.full(len(frequency), omega / len(frequency)),
}


def object_probabilities(kind, triples, relation, n_entities, omega, inclusion="frequency"):
    """(N,) float64: q_r(t) for importance sampling; for the others b_t, the probability that t is in a sample."""
    chosen("sampling", kind, SAMPLINGS)
    b = chosen("inclusion", inclusion, INCLUSIONS)
    frequency = tail_frequency(triples, relation, n_entities)
    if kind == "exact":
        return np.ones(n_entities)
    if kind == "importance":
        return frequency / frequency.sum()
    return (b if kind == "bernoulli" else INCLUSIONS["uniform"])(frequency, min(omega, n_entities))


def draw_exact(rng, b, omega):
    """All entities, each with weight 1."""
    return np.arange(len(b)), np.ones(len(b))


def draw_uniform(rng, b, omega):
    """Eq. 7: omega distinct entities, each with weight 1."""
    objects = rng.choice(len(b), min(omega, len(b)), replace=False)
    return objects, np.ones(len(objects))


def draw_importance(rng, q, omega):
    """omega entities, with repetition, each with weight 1 / (omega q)."""
    objects = rng.choice(len(q), omega, p=q)
    return objects, 1 / (omega * q[objects])


def draw_bernoulli(rng, b, omega):
    """Each entity independently with probability b, with weight 1 / b."""
    objects = np.flatnonzero(rng.random(len(b)) < b)
    return objects, 1 / b[objects]


SAMPLINGS = {"exact": draw_exact, "uniform": draw_uniform, "importance": draw_importance, "bernoulli": draw_bernoulli}


def draw_objects(rng, kind, triples, relation, n_entities, omega, inclusion="frequency"):
    """The objects over which X_hr is summed (paper, Lower Bound Estimation and Sum Estimation), to be shared by the
    subjects of the relation, and their weights: (ids (m,), (m,) float64).

    kind         objects                                                weight            X estimate
    exact        all N                                                  1                 the sum itself
    uniform      omega distinct, uniform                                1                 a lower bound, not rescaled
    importance   omega draws with repetition from q_r                   1 / (omega q)     unbiased
    bernoulli    each t independently with probability b_t, sum omega   1 / b_t           unbiased

    q_r(t) = (1 + count of t as a tail of r in train) / (N + triples of r). b_t is omega / N (inclusion="uniform") or
    min(1, c q_r(t)) with c such that they add up to omega ("frequency"). CardkgeError for another kind or inclusion.
    """
    chances = object_probabilities(kind, triples, relation, n_entities, omega, inclusion)
    return SAMPLINGS[kind](rng, chances, omega)


POOLS = {
    "relation": lambda triples, relation, n_entities: np.unique(triples[triples[:, 1] == relation, 0]),
    "entities": lambda triples, relation, n_entities: np.arange(n_entities),
}


def draw_subjects(rng, pool, triples, relation, n_entities, mu):
    """mu subjects of the relation, uniformly without repetition, all where there are fewer: of the relation's heads in
    train (pool="relation") or of all entities ("entities"). Ids (at most mu,)."""
    heads = chosen("subject_pool", pool, POOLS)(triples, relation, n_entities)
    return rng.choice(heads, min(mu, len(heads)), replace=False)


def bounded_relations(bounds):
    """Ids of the relations that bound the tails of heads, and of those that bound the heads of tails."""
    return tuple(np.flatnonzero(bounds.is_bounded(inverse)) for inverse in (False, True))


def draw_samples(rng, triples, bounded, n_entities, settings):
    """The regulariser's sample for one step: (relation, subjects, objects, weights, inverse) for each of the relations
    that are `bounded`, two lists as `bounded_relations` gives them; where inverse, subjects are tails, drawn like the
    heads of inverse triples."""
    samples = []
    for inverse, relations in enumerate(bounded):
        ends = triples[:, ::-1] if inverse else triples
        for r in relations:
            subjects = draw_subjects(rng, settings.subject_pool, ends, r, n_entities, settings.subjects)
            what = settings.sampling, ends, r, n_entities, settings.objects, settings.inclusion
            samples.append((r, subjects, *draw_objects(rng, *what), bool(inverse)))
    return samples


# ------------------------------------------------------------------------------------------------------------------
# 6. Objective and optimisers (paper, Eq. 6 and Algorithm 1)
# ------------------------------------------------------------------------------------------------------------------


def objective(model, heads, relations, tails, settings, bounds=None, samples=()):
    """Eq. 6, L^C = L + lambda sum G_hr, of one step, with all its gradients: the definition of what `Trainer.step`
    does.

    heads, relations, tails: (n, 1 + m) ids; column 0 is the positive triple, the others its corruptions. samples: a
    (relation, subjects, objects, weights) each, as `cardinality_penalty` takes them, with its bounds unchanged: only
    `training_bounds` changes lower bounds under uniform sampling. The L2 penalty is settings.l2 / 2 ||row||^2 for the
    head's, relation's and tail's row of every example.

    Returns ({"objective", "loss", "l2", "penalty"}, gradients): objective = loss + l2 + lambda * penalty, all sums.
    """
    if settings.loss == "softmax":
        raise CardkgeError("softmax has an objective of its own: cardkge.softmax_objective, trained by softmax_loop")
    ids = [np.asarray(part) for part in (heads, relations, tails)]
    flat = [part.ravel() for part in ids]
    scores = model.score(*flat).reshape(ids[0].shape)
    loss, upstream = chosen("loss", settings.loss, LOSSES)(scores, settings)
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


OPTIMIZERS = {
    "adagrad": adagrad_step,
    "sgd": lambda param, accumulator, gradient, learning_rate: sgd_step(param, gradient, learning_rate),
}


def project_rows(array, rows=None):
    """Each row (or the distinct rows given) to L2 norm 1, in place; a row of zeros stays one."""
    rows = slice(None) if rows is None else rows
    norms = np.sqrt((array[rows] ** 2).sum(-1, keepdims=True))
    array[rows] /= np.where(norms > 0, norms, 1)


PROJECTIONS = {"unit": project_rows, "none": lambda array: None}  # of the entities' rows


def update_params(model, accumulators, gradients, settings, rate):
    """One step of the optimiser on all parameters, and the projection."""
    step = chosen("optimizer", settings.optimizer, OPTIMIZERS)
    project = chosen("project", settings.project, PROJECTIONS)
    for name, gradient in gradients.items():
        step(model.params[name], accumulators.get(name), gradient, rate)
    project(model.params["entity"])


SCHEDULES = {  # a factor of the rate, after a share of the run's epochs
    "constant": lambda done: 1.0,
    "late": lambda done: min(1.0, 2 - 2 * done),
}


def learning_rate(settings, epoch, share):
    """The rate of a step after a share of its epoch's steps. Schedule "late": settings.learning_rate in the first half
    of the run, then linearly down to 0 (and, as always for SGD, divided by 1 + decay * epoch)."""
    rate = settings.learning_rate / (1 + settings.decay * epoch)  # decay is 0 for AdaGrad
    return rate * chosen("schedule", settings.schedule, SCHEDULES)((epoch + share) / settings.epochs)


# ------------------------------------------------------------------------------------------------------------------
# 7. Training (paper, Algorithm 1)
# ------------------------------------------------------------------------------------------------------------------


def corruptions(rng, triples, negatives, n_entities, known=None, n_relations=None):
    """C(h, r, t) (paper, Background): heads and tails of each positive triple and its corruptions, (n, 1 + m, 2) int32.

    triples (n, 3). The odd columns replace the tail, the even ones (from 2) the head, by an entity drawn uniformly. A
    corruption may be a true triple (LCWA), unless `known` (sorted `triple_keys`) is given: then a known one is drawn
    again, and remains only where every entity in its place gives a known triple."""
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
    for i, j in zip(where, column):  # hardly any entity is free: draw among the free ones
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


def draw_epoch(rng, triples, bounded, sizes, settings):
    """The draws of Algorithm 1 in an epoch. Yields for each step the heads, relations and tails of its examples, ids
    (n, 1 + m) each, and the regulariser's samples, as `objective` takes them. sizes: (N, R); bounded: as for
    `draw_samples`."""
    known = np.sort(triple_keys(*triples.T, *sizes)) if settings.filter_negatives else None
    shuffled = triples[rng.permutation(len(triples))]
    for first, last in itertools.pairwise(batch_limits(len(triples), settings)):
        batch = shuffled[first:last]
        ends = corruptions(rng, batch, settings.negatives, sizes[0], known, sizes[1])
        relations = np.repeat(batch[:, 1:2], ends.shape[1], axis=1)
        yield ends[..., 0], relations, ends[..., 1], draw_samples(rng, triples, bounded, sizes[0], settings)


def algorithm_1(model, triples, settings, bounds=None, draws=None):
    """The paper's Algorithm 1, which trains any Model in place: draw, corrupt, objective, step, project.

    triples (n, 3), train; settings a `Settings`; bounds as for `cardinality_penalty`, None for none: `training_bounds`
    makes lower bounds 0 under uniform sampling. draws(epoch) yields what `draw_epoch` does, None: `draw_epoch`, from
    the seed and the epoch. The fast form, `train`, draws differently: given its draws, this loop makes the same steps.

    Returns for each epoch a dict of means over its steps: objective, loss, l2, penalty. The softmax loss has a loop of
    its own, `softmax_loop`.
    """
    if settings.loss == "softmax":
        raise CardkgeError("softmax has a loop of its own: cardkge.softmax_loop")
    sizes = model.n_entities, model.n_relations
    bounds = training_bounds(bounds, settings, sizes[1])
    bounded = bounded_relations(bounds) if settings.penalty_weight > 0 else ([], [])
    accumulators = {name: np.full_like(array, settings.accumulator) for name, array in model.params.items()}
    steps, history = len(batch_limits(len(triples), settings)) - 1, []
    chosen("project", settings.project, PROJECTIONS)(model.params["entity"])
    for epoch in range(settings.epochs):
        rng = np.random.default_rng([settings.seed, epoch])
        drawn = draws(epoch) if draws else draw_epoch(rng, triples, bounded, sizes, settings)
        totals = dict.fromkeys(("objective", "loss", "l2", "penalty"), 0.0)
        for step, (heads, relations, tails, samples) in enumerate(drawn):
            parts, gradients = objective(model, heads, relations, tails, settings, bounds, samples)
            update_params(model, accumulators, gradients, settings, learning_rate(settings, epoch, step / steps))
            totals = {name: totals[name] + parts[name] for name in totals}
        history.append({name: total / steps for name, total in totals.items()})
    return history


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
    share = chosen("ties", ties, {"realistic": 0.5, "optimistic": 0.0, "pessimistic": 1.0})
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
        raise CardkgeError("metrics need at least one rank, found none")
    found = {"mrr": float((1 / ranks).mean())}
    found |= {f"hits@{n}": float((ranks <= n).mean()) for n in HITS}
    return found | {"mean_rank": float(ranks.mean())}


def metrics_by_side(ranks):
    """`metrics` of ranks (n, 2) over both sides, of the heads and of the tails."""
    return {"both": metrics(ranks), "head": metrics(ranks[:, 0]), "tail": metrics(ranks[:, 1])}


# ------------------------------------------------------------------------------------------------------------------
# The names that cardkge_tools passes on (PEP 562): the one place that knows the rooms above this file
# ------------------------------------------------------------------------------------------------------------------

ROOMS = {
    "definitions.settings": "PAPER DIMS OWN_DIM Settings fits option_name softmax_defaults",
    "definitions.softmax": "softmax_loss draw_candidates queries_of without_loops softmax_objective rows_of"
    " shuffle_queries step_candidates softmax_loop",
    "definitions.counting": "log_sum_exp size_probabilities fit_counts log_choose count_weights conditioned"
    " pair_features calibrated_log_odds log_size_sums log_partition thinned_likelihood calibration_objective",
    "definitions.measures": "auc label_metrics average_precision best_f1 accepted_measures"
    " threshold_of calibration_error brier_score log_loss count_error is_contradicted out_of_bounds",
    "engine.batches": "Threads count_cores ObjectSampler SubjectSampler",
    "engine.training": "NonFinite Trainer train",
    "engine.own": "use_model",
    "engine.ranking": "Candidates cardinality_violations completions evaluate rank_triples true_answers",
    "shell.files": "read_json replace_file",
    "shell.download": "dataset_table fetch_dataset locate_dataset",
    "graph.graphs": "Dataset Triples describe_data load_dataset load_triples read_triples",
    "graph.bounds": "Bound GraphBounds Types",
    "graph.bound_files": "find_bounds read_bounds significant_maxima write_bounds",
    "graph.splitting": "leaks related_relations split_triples",
    "answers.runs": "Run is_run load_run new_model new_run read_config save_metrics save_run",
    "answers.opening": "align_dataset",
    "answers.calibration": "Calibration CountPrior calibrate learn_counts",
    "answers.decoding": "Decoded Decoder KnownTails complete scope_pairs",
    "answers.measures": "evaluate_sets",
    "experiments.trials": "read_outcome",
    "experiments.reports": "check_oracle oracle write_oracle",
}
_ROOM_OF = {name: f"cardkge_tools.{room}" for room, names in ROOMS.items() for name in names.split()}


def __getattr__(name):
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ROOM_OF[name]), name)


def __dir__():
    return sorted([*globals(), *_ROOM_OF])
