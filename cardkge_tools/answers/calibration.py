"""The fit of a calibration on valid, and of prior counts: `definitions/counting` over a graph."""

import dataclasses
import functools
import itertools
from dataclasses import dataclass

import numpy as np

import kernels
from cardkge import Bounds, CardkgeError, as_bounds, checked_triples
from cardkge_tools.answers.decoding import (
    Decoder,
    KnownAndLoops,
    KnownTails,
    Scope,
    block_of,
    ranks_within,
    scope_pairs,
    spread,
)
from cardkge_tools.answers.missing import Missing
from cardkge_tools.answers.odds import FREE, FullTails, log_sums_of, most_tails, nth_best, open_to, without_lower
from cardkge_tools.definitions.counting import N_FEATURES, count_weights, fit_counts, minimise, pair_features
from cardkge_tools.definitions.softmax import without_loops
from cardkge_tools.engine.batches import Threads, sorted_distinct
from cardkge_tools.engine.ranking import Queries, scored_blocks
from cardkge_tools.shell.files import check_version, json_bytes, read_json

BEST = 30  # best candidates of each (h, r), all seen by the fit
DRAWN = 8  # candidates drawn from the rest, each standing for many
PAIRS = 20_000  # (h, r) without an answer in valid that the fit sees, spread over the relations
MOST_PAIRS = 240_000  # at most so many, 1000 of each relation: with 100, p is far over-confident on fb15k-237
FOLDS = 5  # parts of valid; one at a time is to be predicted while the others are known
COMMON = 0.3  # precision of the prior, around 0, of the parameters common to all relations
PRIOR = 0.05  # precision of a relation's calibration around the common one; like the next, checked on folds of heads
CEILING = 4.0, 0.15  # mean and precision of the logit of a relation's ceiling
UNSEEN = 0.1  # precision of the logarithm of a mean number of unseen tails around the number that u_r gives
MOST_KNOWN = 1000  # tails; a CountPrior does not cover heads with more
GROUPS = 13  # of numbers of known tails that a CountPrior tells apart
SIZES = 16  # numbers of new tails that a CountPrior tells apart, the last with all above it
VERSION = 2  # of calibration.json; 1 was that of other features
COLUMNS = "parameters", "share", "known_share", "unseen", "others", "free"  # of each relation there; the first 3 always
ANEW = "`calibrate` writes it anew"  # the remedy of a calibration.json


@dataclass(frozen=True, eq=False)
class Calibration:
    """How the scores of a model become probabilities.

    parameters (R, 1 + F + 1) float64 as `calibrated_log_odds` takes them; centre, scale: of `pair_features`; share
    (R,): v_r, the part of the facts missing from train that valid holds; known_share (R,): s_r, the part that is known
    where it is used (v_r where valid is); bounds: the text of the bounds file that it is fitted through, None where
    that is the run's own; prior: a CountPrior, where they are mined; missing: what share is of, a Missing, or None;
    unseen (R,): mu_r, the mean number of new tails of (h, r) that are no entities of the graph (None: 0 throughout);
    others (R,): s_r of the (h, r) without an exact number, where v_r is by numbers (None: the same);
    free (R,): `without_lower` of the fit (None: 1).
    """

    parameters: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    share: np.ndarray
    known_share: np.ndarray
    bounds: str | None = None
    prior: "CountPrior | None" = None
    missing: Missing | None = None
    unseen: np.ndarray | None = None
    others: np.ndarray | None = None
    free: np.ndarray | None = None

    def known_of(self, relations, numbered):
        """(n,): s_r of (h, r); numbered (bool): whether they have an exact number."""
        others = self.known_share if self.others is None else self.others
        return np.where(numbered, self.known_share[relations], others[relations])

    def unseen_of(self, relations):
        """(n,): mu_r of these relations."""
        return np.zeros(len(relations)) if self.unseen is None else self.unseen[relations]

    def has_scale(self, relations):
        """(n,) bool: whether the fit of these relations says how many tails there would be without a lower bound."""
        return np.ones(len(relations), bool) if self.free is None else self.free[relations] >= FREE

    def knowing(self, known):
        """The same Calibration for train known ("train"), train and valid ("valid") or all splits ("all")."""
        if self.missing is None:
            return self
        others, share = self.missing.others, self.missing.known_share(known)
        if others is not None:
            by_numbers = np.array([source == "numbers" for source in self.missing.source])
            others = np.where(by_numbers, others * (known != "train"), share)
        return dataclasses.replace(self, known_share=share, others=others)


@dataclass(eq=False)
class CountPrior(Bounds):
    """Prior counts: how many tails a head has, learnt from the known counts of its relation, in place of bounds; the
    weights of step 4 in definitions/counting.py. counts: P(c) of each relation, of `fit_counts`; usual (R, GROUPS,
    SIZES): M(j) by `group_of` the known tails; heads (R, GROUPS): how many heads M(j) averages over; share: s, the
    part of all facts that is known."""

    counts: list
    usual: np.ndarray
    heads: np.ndarray
    share: float

    def __post_init__(self):
        super().__init__(np.tile([0.0, np.inf], (len(self.counts), 1)))  # it excludes no number

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
    """The group, 0 to GROUPS - 1, of numbers of known tails: 0 to 4, up to 8, up to 16, each group twice as wide."""
    known = np.asarray(known)
    return np.where(known <= 4, known, np.minimum(np.ceil(np.log2(np.maximum(known, 1))) + 2, GROUPS - 1)).astype(int)


def calibrate(model, splits, share, bounds=None, threads=None, progress=None, **options):
    """The Calibration of a model trained on train, fitted through the bounds.

    splits: (train, valid), triples (n, 3). share: v, or v_r (R,), in (0, 1): the part of the facts missing from train
    that valid holds; or a Missing, which also gives u_r, so that mean numbers of unseen tails are fitted with the rest.
    bounds: Bounds, (R, 2) or None. options: those of Scope. The valid facts of each relation are dealt into FOLDS
    parts; each part in turn is to be predicted while the others are known, so that the fit sees (h, r) as prediction
    does, with valid known. The fit sees each (h, r) in scope that has a fact in valid, and a weighted sample of the
    others; for each (h, r) its BEST best candidates, a weighted sample of DRAWN of the rest, and its facts in valid.
    CardkgeError where valid has no fact in scope, or a share is not between 0 and 1."""
    n, r, how = model.n_entities, model.n_relations, Scope(**options)
    train, valid = splits = [checked_triples(x, n, r) for x in splits]
    missing, share = (share, share.share) if isinstance(share, Missing) else (None, share)
    bounds, share = as_bounds(bounds, r), np.broadcast_to(np.asarray(share, np.float64), (r,))
    if not ((share > 0) & (share < 1)).all():
        raise CardkgeError(
            f"calibration: the share of missing facts that valid holds must be in (0, 1), found {share.min():g} to "
            f"{share.max():g}"
        )
    scope = scope_pairs(train, n, r, types=how.types)
    heads, relations, weights = _fitting_pairs(*scope, valid, (n, r), bounds, np.random.default_rng(5))
    irreflexive = without_loops(train, r) & (not how.loops)
    candidates = _candidates(model, splits, (heads, relations), bounds, irreflexive, threads, progress)
    if not candidates.found.any():
        raise CardkgeError("calibration: there is nothing to fit on: no fact of valid has a head in scope")
    limits, of_pairs, others = bounds.of(relations, heads), share[relations], missing and missing.others
    if others is not None:
        of_pairs = np.where(limits[:, 0] == limits[:, 1], of_pairs, others[relations])
    unseen = np.zeros(r) if missing is None else missing.unseen_before(scope[1], relations[limits[:, 0] > 0])
    queries = _in_turn(candidates, relations, weights, of_pairs, limits, unseen[relations])
    if not len(queries.relations):
        raise CardkgeError("calibration: there is nothing to fit on: the bounds leave no room for new tails")
    found = fit(queries, r, threads)
    counts = {"unseen": unseen * np.exp(found[:, -1]), "others": others, "free": without_lower(queries, r)}
    return Calibration(found[:, :-1], queries.centre, queries.scale, np.array(share), np.array(share), **counts)


@dataclass(eq=False)
class Candidates:
    """Candidates of (h, r); those of pair i are at starts[i] : starts[i + 1]. scores, found (bool: in valid) and
    weights (how many each stands for), (rows,); rest (n,): the log of the sum of exp(score) over all candidates not in
    valid; known, total (n,): numbers of tails in train, and of candidates."""

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
    (rows,); features (n, F); lower, upper, bounds less the known tails, known_share, share, weight, relations (n,);
    centre, scale (3,), of `pair_features`; unseen, mean numbers of unseen tails, (n,) or one."""

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
    unseen: np.ndarray | float = 0.0

    def __post_init__(self):
        self.unseen = np.broadcast_to(np.asarray(self.unseen, np.float64), self.share.shape)


def _in_turn(candidates, relations, weights, share, limits, unseen):
    """The Turns of the fit. Of a pair with facts in valid there is one for each part that has some of them, in which
    these are found and the others known; and one in which all are known, for the other parts. A pair with none counts
    FOLDS times."""
    starts, found, n = candidates.starts, candidates.found, len(relations)
    pair = np.repeat(np.arange(n), np.diff(starts))
    part = np.full(len(found), -1)
    rows = np.random.default_rng(6).permutation(np.flatnonzero(found))
    rows = rows[np.argsort(relations[pair[rows]], kind="stable")]
    part[rows] = np.arange(len(rows)) % FOLDS  # dealt out evenly within each relation
    asked = np.unique(pair[rows] * FOLDS + part[rows])
    times = FOLDS - np.bincount(asked // FOLDS, minlength=n)  # turns in which no fact of the pair is to be predicted
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
    # else no candidate is left, bounds leave nothing to learn, or facts contradict them
    sound = (total > 0) & (upper > 0) & (sizes <= upper) & (lower <= most_tails(total, unseen[of]))
    v, weight = share[of], weights[of] * times
    features = pair_features(np.where(total > 0, sums, 0), counts, np.where(total > 0, best, 0))
    centre = np.average(features[:, 3:], axis=0, weights=weight * (total > 0))
    scale = np.sqrt(np.average((features[:, 3:] - centre) ** 2, axis=0, weights=weight * (total > 0)))
    scale = np.maximum(scale, 1e-6)
    features[:, 3:] = (features[:, 3:] - centre) / scale
    chosen = sound[query]
    rows = candidates.scores[places] - sums[query], found[places], candidates.weights[places]
    known_share, share = v * (FOLDS - 1) / FOLDS, v / FOLDS / (1 - v * (FOLDS - 1) / FOLDS)
    columns = features, lower, upper, known_share, share, weight, relations[of], unseen[of]
    starts = np.append(0, np.cumsum(np.bincount(query[chosen], minlength=len(of))[sound]))
    *columns, unseen = (np.ascontiguousarray(column[sound]) for column in columns)
    return Turns(starts, tuple(row[chosen] for row in rows), *columns, centre, scale, unseen)


def fit(queries, n_relations, threads=None, precision=PRIOR, chosen=None):
    """The parameters (R, 1 + F + 2) that minimise `calibration_objective`: first common ones for all relations, with
    the ceiling and the numbers of unseen tails fixed at their prior means; then those of each relation, under a prior
    of that precision around the common ones (the last two parameters keep their own priors). chosen: places of the
    queries to fit on, ascending; None: all."""
    chosen = np.arange(len(queries.relations)) if chosen is None else chosen
    width = queries.features.shape[1] + 1
    centre = np.append(np.zeros(width), [CEILING[0], 0.0])
    with Threads(threads) as pool:
        strength = np.append(np.full(width, COMMON), [1e9, 1e9])  # these two stay fixed
        common = minimise(functools.partial(_objective, queries, chosen, (centre, strength), pool), centre)
        strength = np.append(np.full(width, precision), [CEILING[1], UNSEEN])
        limits = np.searchsorted(queries.relations[chosen], np.arange(n_relations + 1))
        own = [
            minimise(functools.partial(_objective, queries, chosen[first:last], (common, strength), pool), common)
            for first, last in itertools.pairwise(limits)
        ]
    return np.array(own)


def _objective(queries, chosen, prior, pool, parameters):
    """(value, gradient, curvature) of `calibration_objective` over the chosen queries. The curvature is the sum of the
    outer products of each query's gradient, plus the prior's: near the minimum its mean is the true one."""
    values, gradients = np.empty(len(chosen)), np.empty((len(chosen), len(parameters)))
    unseen = queries.unseen * np.exp(parameters[-1])
    of = queries.features, queries.lower, queries.upper, queries.known_share, queries.share, unseen
    pool.run(
        kernels.thinned_sets, len(chosen), chosen, queries.starts, queries.rows, of, parameters[:-1], values, gradients,
        size=1024,
    )  # fmt: skip
    weight, (centre, precision) = queries.weight[chosen], prior
    away = parameters - centre
    value = 0.5 * (precision * away * away).sum() - (weight * values).sum()
    weighted = weight[:, None] * gradients
    return value, precision * away - weighted.sum(0), weighted.T @ gradients + np.diag(precision)


def learn_counts(model, calibration, train, valid, seed=0, threads=None, types=None):
    """The CountPrior of a calibrated model, from the tails in train and valid of all (h, r) in scope; the numbers that
    the model expects come from a sample."""
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
    chosen = np.sort(shuffled[ranks_within(groups[shuffled]) < max(PAIRS // r, 100)])
    heads, relations, groups = heads[chosen], relations[chosen], groups[chosen]
    excluded = KnownAndLoops(known, without_loops(train, r))
    sizes = np.empty((len(chosen), SIZES))

    def collect(first, last, decoded):
        kernels.size_chances(decoded.starts, decoded.p, sizes[first:last])

    Decoder(model, calibration, None, known, excluded).run(heads, relations, threads, collect)
    usual, of = np.zeros((r * GROUPS, SIZES)), np.bincount(groups, minlength=r * GROUPS)
    np.add.at(usual, groups, sizes)
    usual /= np.maximum(of, 1)[:, None]
    return CountPrior(counts, usual.reshape(r, GROUPS, SIZES), of.reshape(r, GROUPS), float(share))


def _fitting_pairs(heads, relations, valid, sizes, bounds, rng):
    """(heads, relations, weights) of the pairs in scope that the fit sees, by relation, head; sizes are N and R. Among
    pairs without a fact in valid, those with a lower bound are drawn separately, for they may be few."""
    answered = KnownTails(valid, *sizes).count(heads, relations) > 0
    kept, weights = answered.copy(), np.ones(len(heads))
    most = max(PAIRS // sizes[1], min(1000, MOST_PAIRS // sizes[1]), 100)
    parts = np.where(answered, -1, 2 * relations + (bounds.of(relations, heads)[:, 0] > 0))
    order = np.argsort(parts, kind="stable")
    limits = np.searchsorted(parts[order], np.arange(2 * sizes[1] + 1))
    for first, last in itertools.pairwise(limits):
        others = order[first:last]
        chosen = others if len(others) <= most else rng.choice(others, most, replace=False)
        kept[chosen] = True
        weights[chosen] = len(others) / max(len(chosen), 1)
    return heads[kept], relations[kept], weights[kept]


def _candidates(model, splits, pairs, bounds, irreflexive, threads, progress):
    """The Candidates of the pairs (heads, relations): those of a Decoder that knows train and valid, and the facts of
    valid that have room beside the others."""
    (train, valid), (heads, relations), (n, r) = splits, pairs, (model.n_entities, model.n_relations)
    known = KnownTails(train, n, r)
    excluded, full = KnownAndLoops(known, irreflexive), FullTails(bounds, known.joined(KnownTails(valid, n, r)))
    sound = ~excluded.has(*valid.T) & (full.room(*valid.T[1:], less=1) > 0)
    answers = KnownTails(valid[sound], n, r)
    draws = np.random.default_rng(7).integers(n, size=(len(heads), DRAWN))
    blocks = {}
    lowest = np.finfo(model.dtype).min / 2  # above -inf, the score of an excluded entity

    def collect(first, last, scores):
        part, row = slice(first, last), np.arange(last - first)
        of = heads[part], relations[part]
        closed, (found_starts, found) = excluded.of(*of), answers.of(*of)
        found_row = np.repeat(row, np.diff(found_starts))
        others = open_to(scores, relations[part], closed, full)
        others[found_row, found] = -np.inf
        sums, _ = log_sums_of(others, "train again, say with a smaller learning rate", -np.inf)
        others[found_row, found] = scores[found_row, found]
        least = np.maximum(nth_best(others, BEST), lowest)
        tied = np.count_nonzero(others == least[:, None], axis=1) > 4 * BEST  # too many to take: they are drawn from
        least[tied] = np.nextafter(np.nextafter(least[tied], np.inf), np.inf)  # twice, for `live` rounds it down
        drawn, pairs = np.take_along_axis(others, draws[part], 1), (np.repeat(each, DRAWN) for each in of)
        fresh = (-np.inf < drawn) & (drawn < least[:, None])
        fresh &= ~answers.has(*pairs, draws[part].ravel()).reshape(fresh.shape)
        least[~fresh.any(1)] = lowest  # hardly more candidates are left: all are taken
        fresh_keys, found_keys = (row[:, None] * n + draws[part])[fresh], found_row * n + found
        wanted = sorted_distinct(np.concatenate((found_keys, fresh_keys)))
        limits = np.searchsorted(wanted, np.arange(len(row) + 1) * n)
        starts, ids = Decoder.live(others, least, *closed, limits, (wanted % n).astype(np.int32))
        i = np.repeat(row, np.diff(starts))
        keys, totals = i * n + ids, np.count_nonzero(others > -np.inf, axis=1)
        is_found = np.isin(keys, found_keys)
        sure = is_found | (others[i, ids] >= least[i])
        weight = sure.astype(float)
        each = (totals - np.bincount(i, sure, len(row))) / np.maximum(fresh.sum(1), 1)
        np.add.at(weight, np.searchsorted(keys, fresh_keys), each[fresh_keys // n])
        blocks[first] = np.diff(starts), scores[i, ids].astype(float), is_found, weight, sums, totals

    with Threads(threads) as pool:
        scored_blocks(model, Queries(heads, relations), pool, collect, block_of(n), progress)
    if not blocks:
        raise CardkgeError("calibration: train has no triples, so no (h, r) is in scope")
    lengths, *columns, total = (np.concatenate([blocks[first][i] for first in sorted(blocks)]) for i in range(6))
    return Candidates(np.append(0, np.cumsum(lengths)), *columns, known.count(heads, relations), total)


def calibration_bytes(found, relations, epoch):
    """calibration.json of a Calibration: of each of the relations, names, its parameters and share; epoch: of the model
    that it is fitted to."""
    columns = {name: getattr(found, name) for name in COLUMNS if getattr(found, name) is not None}
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    of_relations = {name: dict(zip(columns, row, strict=True)) for name, row in zip(relations, rows, strict=True)}
    if found.missing is not None:
        for row, of in zip(of_relations.values(), found.missing.rows(), strict=True):
            row.update(of)
    content = {
        "format_version": VERSION, "epoch": epoch, "bounds": found.bounds, "centre": found.centre.tolist(),
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
    """The CountPrior of a calibration, or None; ValueError and the like where it is damaged."""
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
    """The Calibration that `calibration_bytes` wrote, None without a file. CardkgeError where it is damaged, or belongs
    to other relations or another epoch."""
    if not path.exists():
        return None
    value = read_json(path, ANEW)
    check_version(path, value.get("format_version"), ANEW, VERSION, VERSION)
    try:
        rows = [value["relations"][relation] for relation in relations]
        of = {x: np.array([row[x] for row in rows], np.float64) for x in COLUMNS if x in rows[0] or x in COLUMNS[:3]}
        centre, scale = (np.array(value[name], np.float64) for name in ("centre", "scale"))
        missing = Missing.of_rows(rows, of["share"])
        missing = missing and dataclasses.replace(missing, others=of.get("others"))
        more = {"bounds": value["bounds"], "prior": _read_prior(value.get("prior"), relations), "missing": missing}
        calibration = Calibration(centre=centre, scale=scale, **of, **more)
        sound = of["parameters"].shape == (len(relations), N_FEATURES + 2) and centre.shape == scale.shape == (3,)
        sound = sound and isinstance(value["bounds"], str | None)
        sound = sound and all(np.isfinite(x).all() for x in (centre, scale, *of.values())) and (scale > 0).all()
        sound = sound and all((x >= 0).all() for name, x in of.items() if name != "parameters")
        if not sound or not all((of[name] < 1).all() for name in ("share", "known_share", "others") if name in of):
            raise ValueError("a number is out of range")
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CardkgeError(f"{path}: not a calibration of this run ({error}); {ANEW}") from error
    if value.get("epoch") != epoch:
        raise CardkgeError(f"{path}: of epoch {value.get('epoch')}, and the run has gone on; {ANEW}")
    return calibration
