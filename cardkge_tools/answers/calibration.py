"""The fit of a calibration on valid, and of what known counts teach: `definitions/counting` over a graph."""

import dataclasses
import functools
import itertools
from dataclasses import dataclass

import numpy as np

import kernels
from cardkge import Bounds, CardkgeError, as_bounds, checked_triples
from cardkge_tools.answers.decoding import Decoder, KnownTails, block_of, loops_to_leave_out, scope_pairs, spread
from cardkge_tools.answers.missing import Missing
from cardkge_tools.definitions.counting import N_FEATURES, count_weights, fit_counts, pair_features
from cardkge_tools.engine.batches import Threads
from cardkge_tools.engine.ranking import Queries, scored_blocks
from cardkge_tools.shell.files import FORMAT_VERSION, check_version, json_bytes, read_json

BEST = 30  # candidates of each (h, r) that the fit sees all of
DRAWN = 8  # and those drawn from the rest, each standing for many
PAIRS = 20_000  # (h, r) without an answer in valid that the fit sees, spread over the relations
MOST_PAIRS = 240_000  # as long as no more than these, 1000 of each: with 100, p is far over-confident on fb15k-237
FOLDS = 5  # parts of valid, of which one at a time is asked while the others are known
COMMON = 0.3  # precision of the prior, around 0, of what all relations have in common
PRIOR = 0.05  # precision of a relation's calibration around that of all; as the next, chosen by folds within valid
CEILING = 4.0, 0.15  # mean and precision of the logit of a relation's ceiling
MOST_KNOWN = 1000  # tails; a CountPrior says nothing of heads with more
GROUPS = 13  # of numbers of known tails, which a CountPrior tells apart
SIZES = 16  # numbers of new tails that a CountPrior tells apart, the last with all above it


ANEW = "`calibrate` writes it anew"  # the remedy of a calibration.json


@dataclass(frozen=True, eq=False)
class Calibration:
    """How the scores of a model become probabilities.

    parameters (R, 1 + F + 1) float64 as `calibrated_log_odds` takes them; centre, scale: of `pair_features`; share
    (R,): v_r, the part of the facts missing from train that valid holds; known_share (R,): s_r, the part that is known
    where it is used (v_r where valid is); bounds: the text of the bounds file that it is fitted through, None where
    that is the run's own; prior: a CountPrior, where they are mined; missing: what share is of, a Missing, or None.
    """

    parameters: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    share: np.ndarray
    known_share: np.ndarray
    bounds: str | None = None
    prior: "CountPrior | None" = None
    missing: Missing | None = None

    def knowing(self, known):
        """The same Calibration where train ("train"), valid too ("valid") or all splits ("all") are known."""
        if self.missing is None:
            return self
        return dataclasses.replace(self, known_share=self.missing.known_share(known))


@dataclass(eq=False)
class CountPrior(Bounds):
    """What the known counts of a relation say of how many tails a head has, in the place of bounds: the weights of step
    4 in cardkge.py. counts: P(c) of each relation, of `fit_counts`; usual (R, GROUPS, SIZES): M(j) by `group_of` the
    known tails; heads (R, GROUPS): how many heads it is the average of; share: s, the part of all facts that is known.
    """

    counts: list
    usual: np.ndarray
    heads: np.ndarray
    share: float

    def __post_init__(self):
        super().__init__(np.tile([0.0, np.inf], (len(self.counts), 1)))  # no number is forbidden

    def weights(self, relations, known):
        """(n, SIZES) float64: the weights of (h, r) with so many known tails (n,)."""
        pairs, which = np.unique(np.column_stack((relations, known)), axis=0, return_inverse=True)
        rows = np.ones((len(pairs), SIZES))
        for row, (r, k) in zip(rows, pairs.tolist(), strict=True):
            of = r, int(group_of(k))
            if k <= MOST_KNOWN and self.heads[of]:
                row[:] = count_weights(self.counts[r], self.share, k, self.usual[of], self.heads[of])
        return rows[which.ravel()]


def group_of(known):
    """The group, 0 to GROUPS - 1, of numbers of known tails: 0 to 4, to 8, to 16, and so on, twice as many each."""
    known = np.asarray(known)
    return np.where(known <= 4, known, np.minimum(np.ceil(np.log2(np.maximum(known, 1))) + 2, GROUPS - 1)).astype(int)


def calibrate(model, splits, share, bounds=None, types=None, threads=None, progress=None):
    """The Calibration of a model trained on train, fitted through the bounds.

    splits: (train, valid), triples (n, 3). share: v, or v_r (R,), in (0, 1): the part of the facts missing from train
    that valid holds. bounds: Bounds, (R, 2) or None. Valid is dealt out in FOLDS parts of each relation; what is asked
    in turn is one part while the others are known, so that (h, r) look at the fit as they will look at use, where valid
    is known. (h, r) of the scope with a fact in valid take part, and of the others a sample, weighted: of each its BEST
    best candidates, DRAWN of the rest, weighted, and its facts of valid. CardkgeError where valid has no fact in scope,
    or a share is not between 0 and 1.
    """
    n, r = model.n_entities, model.n_relations
    train, valid = (checked_triples(x, n, r) for x in splits)
    share = np.broadcast_to(np.asarray(share, np.float64), (r,))
    if not ((share > 0) & (share < 1)).all():
        raise CardkgeError(
            f"calibration: the share of missing facts that valid holds must be in (0, 1), found {share.min():g} to "
            f"{share.max():g}"
        )
    scope = scope_pairs(train, n, r, types=types)
    heads, relations, weights = _fitting_pairs(*scope, valid, n, r, np.random.default_rng(5))
    candidates = _candidates(model, train, valid, (heads, relations), threads, progress)
    if not candidates.found.any():
        raise CardkgeError("calibration: no fact of valid has a head in the scope of its relation; nothing to fit on")
    limits = as_bounds(bounds, r).of(relations, heads)
    queries = _in_turn(candidates, relations, weights, share, limits)
    return Calibration(fit(queries, r, threads), queries.centre, queries.scale, *2 * [np.array(share)])


@dataclass(eq=False)
class Candidates:
    """Candidates of (h, r), those of pair i being starts[i] to starts[i + 1]: scores, found (bool, in valid) and
    weights (how many each stands for), (rows,); rest (n,): the log of the sum of exp(score) over all candidates but
    those of valid; known, total (n,): numbers of tails in train, and of candidates."""

    starts: np.ndarray
    scores: np.ndarray
    found: np.ndarray
    weights: np.ndarray
    rest: np.ndarray
    known: np.ndarray
    total: np.ndarray


@dataclass(eq=False)
class Turns:
    """(h, r) as `kernels.thinned_sets` takes them, ordered by relation: starts (n + 1,); log_softmax, found, weights
    (rows,); features (n, F); lower, upper: bounds less the known tails, known_share, share, weight, relations (n,). centre, scale (3,):
    of `pair_features`."""

    starts: np.ndarray
    rows: tuple
    features: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    known_share: np.ndarray
    share: np.ndarray
    weight: np.ndarray
    relations: np.ndarray
    centre: np.ndarray
    scale: np.ndarray


def _in_turn(candidates, relations, weights, share, limits):
    """The Turns of the fit. Of a pair with facts in valid there is one for each part that has some of them, in which
    these are found and the others known; and one in which all are known, for the other parts. A pair with none counts
    FOLDS times."""
    starts, found, n = candidates.starts, candidates.found, len(relations)
    pair = np.repeat(np.arange(n), np.diff(starts))
    part = np.full(len(found), -1)
    rows = np.flatnonzero(found)
    rows = rows[np.random.default_rng(6).permutation(len(rows))]
    rows = rows[np.argsort(relations[pair[rows]], kind="stable")]
    part[rows] = np.arange(len(rows)) % FOLDS  # dealt out evenly within each relation
    asked = np.unique(pair[rows] * FOLDS + part[rows])
    times = FOLDS - np.bincount(asked // FOLDS, minlength=n)  # in which nothing of the pair is asked
    others = np.flatnonzero(times)
    of, turn = np.append(asked // FOLDS, others), np.append(asked % FOLDS, np.full(len(others), -2))
    times = np.append(np.ones(len(asked)), times[others])
    order = np.lexsort((turn, of))
    of, turn, times = of[order], turn[order], times[order]
    places, query = spread(starts[of], np.diff(starts)[of])
    known = found[places] & (part[places] != turn[query])
    counts = candidates.known[of] + np.bincount(query[known], minlength=len(of))
    places, query = places[~known], query[~known]
    sums = candidates.rest[of].copy()
    np.logaddexp.at(sums, query[found[places]], candidates.scores[places[found[places]]])
    best = np.full(len(of), -np.inf)
    np.maximum.at(best, query, candidates.scores[places])
    sizes = np.bincount(query[found[places]], minlength=len(of))
    lower, upper = np.ceil(limits[of, 0]) - counts, np.floor(limits[of, 1]) - counts
    total = candidates.total[of] - (counts - candidates.known[of])
    sound = (
        (upper > 0) & (sizes <= upper) & (lower <= total)
    )  # else bounds leave nothing to learn, or facts contradict them
    chosen = sound[query]
    v = share[relations[of]]
    weight, features = weights[of] * times, pair_features(sums, counts, best)
    centre = np.average(features[:, 3:], axis=0, weights=weight)
    scale = np.sqrt(np.average((features[:, 3:] - centre) ** 2, axis=0, weights=weight))
    scale = np.maximum(scale, 1e-6)
    features[:, 3:] = (features[:, 3:] - centre) / scale
    return Turns(
        np.append(0, np.cumsum(np.bincount(query[chosen], minlength=len(of))[sound])),
        (
            candidates.scores[places[chosen]] - sums[query[chosen]],
            found[places[chosen]],
            candidates.weights[places[chosen]],
        ),
        np.ascontiguousarray(features[sound]),
        lower[sound],
        upper[sound],
        (v * (FOLDS - 1) / FOLDS)[sound],
        (v / FOLDS / (1 - v * (FOLDS - 1) / FOLDS))[sound],
        weight[sound],
        relations[of][sound],
        centre,
        scale,
    )


def fit(queries, n_relations, threads=None, precision=PRIOR, chosen=None):
    """The parameters (R, 1 + F + 1) of `calibrated_log_odds` that make `calibration_objective` least: of all relations
    together, with the ceiling that its prior expects, and then of each, held at the former by a prior of that
    precision, but for its ceiling. chosen: places of the queries to fit on, ascending; None: all."""
    chosen = np.arange(len(queries.relations)) if chosen is None else chosen
    width = queries.features.shape[1] + 2
    centre = np.append(np.zeros(width - 1), CEILING[0])
    with Threads(threads) as pool:
        strength = np.append(np.full(width - 1, COMMON), 1e9)  # the ceiling stays
        common = minimise(functools.partial(_objective, queries, chosen, (centre, strength), pool), centre)
        strength = np.append(np.full(width - 1, precision), CEILING[1])
        limits = np.searchsorted(queries.relations[chosen], np.arange(n_relations + 1))
        own = [
            minimise(functools.partial(_objective, queries, chosen[first:last], (common, strength), pool), common)
            for first, last in itertools.pairwise(limits)
        ]
    return np.array(own)


def _objective(queries, chosen, prior, pool, parameters):
    """(value, gradient, curvature) of `calibration_objective` over the chosen queries. The curvature is the sum of the
    outer products of the gradients of each, and the prior's: near the least value its mean is the true one."""
    values, gradients = np.empty(len(chosen)), np.empty((len(chosen), len(parameters)))
    of = queries.features, queries.lower, queries.upper, queries.known_share, queries.share
    pool.run(
        kernels.thinned_sets, len(chosen), chosen, queries.starts, queries.rows, of, parameters, values, gradients,
        size=1024,
    )  # fmt: skip
    weight, (centre, precision) = queries.weight[chosen], prior
    away = parameters - centre
    value = 0.5 * (precision * away * away).sum() - (weight * values).sum()
    weighted = weight[:, None] * gradients
    return value, precision * away - weighted.sum(0), weighted.T @ gradients + np.diag(precision)


def minimise(function, start, steps=100, tolerance=1e-8):
    """Where function(x) -> (value, gradient, curvature) is least, from `start`: BFGS, which begins with the inverse of
    the curvature there; a step is halved until the value falls as the gradient promises. CardkgeError where value or
    gradient is not finite at the start."""
    x = np.array(start, np.float64)
    value, gradient, curvature = function(x)
    if not np.isfinite([value, *gradient]).all():
        raise CardkgeError("calibration: the likelihood is not finite; train again, with a smaller learning rate say")
    inverse = np.linalg.inv(curvature)
    for _ in range(steps):
        step = -inverse @ gradient
        step *= min(1.0, 2.0 / np.abs(step).max(initial=1e-300))
        slope, size = step @ gradient, 1.0
        while True:
            tried = function(x + size * step)
            if tried[0] <= value + 1e-4 * size * slope or size < 1e-6:
                break
            size /= 2
        if not tried[0] < value:
            break
        moved, turned, fallen = size * step, tried[1] - gradient, value - tried[0]
        x, value, gradient = x + moved, *tried[:2]
        if moved @ turned > 1e-12:
            mixed = np.eye(len(x)) - np.outer(moved, turned) / (moved @ turned)
            inverse = mixed @ inverse @ mixed.T + np.outer(moved, moved) / (moved @ turned)
        if fallen <= tolerance * max(abs(value), 1.0):
            break
    return x


def learn_counts(model, calibration, train, valid, seed=0, threads=None, types=None):
    """The CountPrior of a calibrated model, from the tails in train and valid of all (h, r) in scope; what the model
    expects of them is taken from a sample."""
    n, r = model.n_entities, model.n_relations
    train, valid = checked_triples(train, n, r), checked_triples(valid, n, r)
    known = KnownTails(np.concatenate((train, valid)), n, r)
    heads, relations = scope_pairs(train, n, r, types=types)
    held = np.bincount(valid[:, 1], minlength=r)
    share = len(known.keys) / (len(known.keys) + (held * (1 / calibration.share - 1)).sum())
    found = known.count(heads, relations)
    groups, rng = relations.astype(np.int64) * GROUPS + group_of(found), np.random.default_rng([seed, 8])
    counts = []
    for first, last in itertools.pairwise(np.searchsorted(relations, np.arange(r + 1))):
        own = found[first:last][found[first:last] <= MOST_KNOWN]
        counts.append(fit_counts(own, share) if len(own) else np.ones(1))
    shuffled = rng.permutation(len(heads))
    shuffled = shuffled[np.argsort(groups[shuffled], kind="stable")]
    rank = np.arange(len(heads)) - np.searchsorted(groups[shuffled], groups[shuffled])
    chosen = np.sort(shuffled[rank < max(PAIRS // r, 100)])
    heads, relations, groups = heads[chosen], relations[chosen], groups[chosen]
    excluded = known.joined(KnownTails(loops_to_leave_out(train, heads, relations, r), n, r))
    sizes = np.empty((len(chosen), SIZES))

    def collect(first, last, decoded):
        kernels.size_chances(decoded.starts, decoded.p, sizes[first:last])

    Decoder(model, calibration, None, known, excluded).run(heads, relations, threads, collect)
    usual, of = np.zeros((r * GROUPS, SIZES)), np.bincount(groups, minlength=r * GROUPS)
    np.add.at(usual, groups, sizes)
    usual /= np.maximum(of, 1)[:, None]
    return CountPrior(counts, usual.reshape(r, GROUPS, SIZES), of.reshape(r, GROUPS), float(share))


def _fitting_pairs(heads, relations, valid, n_entities, n_relations, rng):
    """(heads, relations, weights) of those of the pairs in scope that the fit sees, ordered by relation, head."""
    answered = KnownTails(valid, n_entities, n_relations).count(heads, relations) > 0
    kept, weights = answered.copy(), np.ones(len(heads))
    most = max(PAIRS // n_relations, min(1000, MOST_PAIRS // n_relations), 100)
    limits = np.searchsorted(relations, np.arange(n_relations + 1))
    for first, last in itertools.pairwise(limits):
        others = first + np.flatnonzero(~answered[first:last])
        chosen = others if len(others) <= most else rng.choice(others, most, replace=False)
        kept[chosen] = True
        weights[chosen] = len(others) / max(len(chosen), 1)
    return heads[kept], relations[kept], weights[kept]


def _candidates(model, train, valid, pairs, threads, progress):
    """The Candidates of the pairs (heads, relations). Known tails of train are none, nor are loops where train has
    none."""
    heads, relations = pairs
    n, r = model.n_entities, model.n_relations
    known = KnownTails(train, n, r)
    excluded = known.joined(KnownTails(loops_to_leave_out(train, heads, relations, r), n, r))
    answers = KnownTails(valid, n, r).without(excluded)
    draws = np.random.default_rng(7).integers(n, size=(len(heads), DRAWN))
    best, blocks = min(BEST, n), {}

    def collect(first, last, scores):
        part, row = slice(first, last), np.arange(last - first)
        starts, taken = excluded.of(heads[part], relations[part])
        found_starts, found = answers.of(heads[part], relations[part])
        taken_row, found_row = np.repeat(row, np.diff(starts)), np.repeat(row, np.diff(found_starts))
        scores = scores.copy()
        scores[taken_row, taken] = -np.inf
        weight, is_found = np.zeros(scores.shape), np.zeros(scores.shape, bool)
        top = np.argpartition(scores, n - best, axis=1)[:, n - best :]
        weight[row[:, None], top], weight[found_row, found], weight[taken_row, taken] = 1, 1, -1
        fresh = weight[row[:, None], draws[part]] == 0
        each = (weight == 0).sum(1) / np.maximum(fresh.sum(1), 1)
        drawn_row = np.repeat(row, fresh.sum(1))
        np.add.at(weight, (drawn_row, draws[part][fresh]), each[drawn_row])
        is_found[found_row, found] = True
        i, t = np.nonzero(weight > 0)
        others, sums = scores.copy(), np.empty(len(row))
        others[found_row, found] = -np.inf
        highest = others.max(1)
        kernels.log_sums(others, highest, sums)
        sums[highest == -np.inf] = -np.inf  # valid has all candidates
        if np.isnan(sums).any() or not np.isfinite(scores[i, t]).all():
            raise CardkgeError("calibration: a score is not finite; train again, with a smaller learning rate say")
        blocks[first] = (
            np.bincount(i, minlength=len(row)),
            scores[i, t].astype(float),
            is_found[i, t],
            weight[i, t],
            sums,
        )

    with Threads(threads) as pool:
        scored_blocks(model, Queries(heads, relations), pool, collect, block_of(n), progress)
    if not blocks:
        raise CardkgeError("calibration: train has no triples, so no (h, r) is in scope")
    lengths, *rows = (np.concatenate([blocks[first][i] for first in sorted(blocks)]) for i in range(5))
    total = n - np.diff(excluded.of(heads, relations)[0])
    return Candidates(np.append(0, np.cumsum(lengths)), *rows, known.count(heads, relations), total)


def calibration_bytes(found, relations, epoch):
    """calibration.json of a Calibration: of each of the relations, names, its parameters and share; epoch: of the model
    that it is fitted to."""
    of_relations = {
        name: {"parameters": parameters, "share": share, "known_share": known}
        for name, parameters, share, known in zip(
            relations, found.parameters.tolist(), found.share.tolist(), found.known_share.tolist(), strict=True
        )
    }
    if found.missing is not None:
        for row, of in zip(of_relations.values(), found.missing.rows(), strict=True):
            row.update(of)
    content = {
        "format_version": FORMAT_VERSION, "epoch": epoch, "bounds": found.bounds, "centre": found.centre.tolist(),
        "scale": found.scale.tolist(), "relations": of_relations,
    }  # fmt: skip
    if found.prior is not None:
        prior, of = found.prior, {}
        for name, own, usual, heads in zip(relations, prior.counts, prior.usual, prior.heads, strict=True):
            groups = {str(i): {"heads": int(heads[i]), "sizes": usual[i].tolist()} for i in np.flatnonzero(heads)}
            of[name] = {"counts": own.tolist(), "groups": groups}
        content["prior"] = {"share": prior.share, "relations": of}
    return json_bytes(content)


def _read_prior(value, relations):
    """The CountPrior in a calibration, or None; ValueError and the like where it is none."""
    if value is None:
        return None
    rows = [value["relations"][relation] for relation in relations]
    counts = [np.array(row["counts"], float) for row in rows]
    usual, heads = np.zeros((len(rows), GROUPS, SIZES)), np.zeros((len(rows), GROUPS), int)
    for i, row in enumerate(rows):
        for group, of in row["groups"].items():
            usual[i, int(group)], heads[i, int(group)] = of["sizes"], of["heads"]
    if any(x.ndim != 1 or not len(x) for x in counts):
        raise ValueError("its counts have another shape")
    if not all(np.isfinite(x).all() and (x >= 0).all() for x in [usual, heads, *counts]) or not 0 < value["share"] < 1:
        raise ValueError("a count is out of range")
    return CountPrior(counts, usual, heads, float(value["share"]))


def read_calibration(path, relations, epoch):
    """The Calibration that `calibration_bytes` wrote, None where there is no file. CardkgeError where it is damaged, or
    of other relations or another epoch."""
    if not path.exists():
        return None
    value = read_json(path, ANEW)
    check_version(path, value.get("format_version"), ANEW)
    try:
        rows = [value["relations"][relation] for relation in relations]
        parameters = np.array([row["parameters"] for row in rows], np.float64)
        centre, scale = (np.array(value[name], np.float64) for name in ("centre", "scale"))
        shares = [np.array([row[name] for row in rows], np.float64) for name in ("share", "known_share")]
        prior = _read_prior(value.get("prior"), relations)
        calibration = Calibration(parameters, centre, scale, *shares, value["bounds"], prior)
        calibration = dataclasses.replace(calibration, missing=Missing.of_rows(rows, calibration.share))
        sound = parameters.shape == (len(relations), N_FEATURES + 2) and centre.shape == scale.shape == (3,)
        sound = sound and isinstance(value["bounds"], str | None)
        sound = sound and all(np.isfinite(x).all() for x in (parameters, centre, scale)) and (scale > 0).all()
        if not sound or not all((share >= 0).all() and (share < 1).all() for share in shares):
            raise ValueError("a number is out of range")
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CardkgeError(f"{path}: not a calibration of this run ({error}); {ANEW}") from error
    if value.get("epoch") != epoch:
        raise CardkgeError(f"{path}: of epoch {value.get('epoch')}, and the run has gone on; {ANEW}")
    return calibration
