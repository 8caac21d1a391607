"""Counts that can be trusted: a model's scores as probabilities, fitted on valid and conditioned on the bounds.

The mathematics stands in cardkge.py (section Counts). Here are the passes over a graph: which (h, r) there are, which
candidates are worth looking at, the fit, the new facts, and how good they are against test.
"""

import itertools
import threading
from dataclasses import dataclass

import numpy as np

import kernels
from cardkge import (
    N_KNOWN,
    CardkgeError,
    calibration_logits,
    checked_triples,
    count_weights,
    fit_calibration,
    fit_counts,
    triple_keys,
)
from cardkge_tools.engine.draws import sorted_distinct
from cardkge_tools.engine.limits import PlainBounds
from cardkge_tools.engine.ranking import scored_blocks
from cardkge_tools.engine.threads import Threads

LEFT_OUT = 0.01  # candidates are not looked at whose probabilities cannot add up to more than this, for any (h, r)
BEST = 30  # candidates of each (h, r) that the fit sees all of
DRAWN = 8  # and those drawn from the rest, each standing for many
PAIRS = 20_000  # (h, r) without an answer in valid that the fit sees, spread over the relations
MOST_PAIRS = 240_000  # as long as no more than these, 1000 of each: with 100, p is far over-confident on fb15k-237
PRIOR = 0.1  # precision, in log odds, of a relation's calibration around that of all; chosen within valid
MOST_KNOWN = 1000  # tails; a CountPrior says nothing of heads with more
GROUPS = 13  # of numbers of known tails, which a CountPrior tells apart
SIZES = 16  # numbers of new tails that a CountPrior tells apart, the last with all above it
NO_WEIGHTS = np.ones((1, 1))
MOST_GAIN = np.log(100)  # candidates are looked for further down, by at most this in log odds, where counts favour more
BLOCK, BLOCK_SCORES = 128, 2**24  # (h, r) scored at once, and scores: see `block_of`


@dataclass(frozen=True, eq=False)
class Calibration:
    """How the scores of a model become probabilities.

    coefficients (R, 3, 3) float64 as `calibration_logits` takes them; share: v, the part of the facts missing from
    train that valid holds; valid, missing: the counts behind it; prior: a CountPrior, of a run with mined bounds.
    """

    coefficients: np.ndarray
    share: float
    valid: int = 0
    missing: int = 0
    prior: "CountPrior | None" = None


@dataclass(frozen=True, eq=False)
class CountPrior:
    """What the known counts of a relation say of how many tails a head has, in the place of bounds: the weights of step
    4 in cardkge.py. counts: P(c) of each relation, of `fit_counts`; usual (R, GROUPS, SIZES): M(j) by `group_of` the
    known tails; heads (R, GROUPS): how many heads it is the average of; share: s, the part of all facts that is known.
    """

    counts: list
    usual: np.ndarray
    heads: np.ndarray
    share: float

    def is_bounded(self, inverse=False):
        """(R,) bool: no relation has a bound."""
        return np.zeros(len(self.counts), bool)

    def of(self, relations, subjects, inverse=False):
        """(n, 2): no bound."""
        return np.tile([0.0, np.inf], (len(subjects), 1))

    def weights(self, relations, known):
        """(n, SIZES) float64: the weights of (h, r) with so many known tails (n,)."""
        pairs, which = np.unique(np.column_stack((relations, known)), axis=0, return_inverse=True)
        rows = np.ones((len(pairs), SIZES))
        for row, (r, k) in zip(rows, pairs.tolist(), strict=True):
            of = r, int(group_of(k))
            if k <= MOST_KNOWN and self.heads[of]:
                row[:] = count_weights(self.counts[r], self.share, k, self.usual[of], self.heads[of])
        return rows[which.ravel()]


def block_of(n_entities):
    """(h, r) scored at once, however many threads and machines: scores may depend on it in their last bit. A block is
    64 MiB of float32 at most."""
    return max(1, min(BLOCK, BLOCK_SCORES // n_entities))


def group_of(known):
    """The group, 0 to GROUPS - 1, of numbers of known tails: 0 to 4, to 8, to 16, and so on, twice as many each."""
    known = np.asarray(known)
    return np.where(known <= 4, known, np.minimum(np.ceil(np.log2(np.maximum(known, 1))) + 2, GROUPS - 1)).astype(int)


# ------------------------------------------------------------------------------------------------------------------
# Which (h, r), and what is known of them
# ------------------------------------------------------------------------------------------------------------------


def spread(starts, lengths):
    """The places start, start + 1, ... of each of several runs, one after the other, and which run each is of."""
    which = np.repeat(np.arange(len(lengths)), lengths)
    return np.repeat(starts - np.append(0, np.cumsum(lengths)[:-1]), lengths) + np.arange(lengths.sum()), which


def scope_pairs(train, n_entities, n_relations, relations=None, types=None):
    """The (h, r) that may have tails: h is in train a head of r, or of a relation that shares a head with r; or where
    the graph has classes, a member of the smallest that has all heads of r in it (but for those of no class).

    train (n, 3); relations: ids to keep, None for all; types: constraints.Types, or None. Returns (heads, relations),
    int32, ordered by relation, head.
    """
    pairs = sorted_distinct(train[:, 1].astype(np.int64) * n_entities + train[:, 0])
    of, head = pairs // n_entities, pairs % n_entities
    limits = np.searchsorted(of, np.arange(n_relations + 1))
    by_head = np.argsort(head, kind="stable")
    head_limits = np.searchsorted(head[by_head], np.arange(n_entities + 1))
    relations_of = of[by_head]
    heads, names = [], []
    marked, in_train = np.zeros((2, n_entities), bool)
    in_train[train[:, ::2]] = True
    for relation in range(n_relations) if relations is None else sorted(relations):
        own = head[limits[relation] : limits[relation + 1]]
        sharing = np.zeros(n_relations, bool)
        for start in range(0, len(own), 4096):  # the relations of a head stand side by side
            part = own[start : start + 4096]
            places, _ = spread(head_limits[part], head_limits[part + 1] - head_limits[part])
            sharing[relations_of[places]] = True
        marked[:] = False
        for other in np.flatnonzero(sharing):
            marked[head[limits[other] : limits[other + 1]]] = True
        if types is not None and types.classes:
            marked[_their_class(own, types)] = True
            marked &= in_train
        heads.append(np.flatnonzero(marked).astype(np.int32))
        names.append(np.full(len(heads[-1]), relation, np.int32))
    empty = np.empty(0, np.int32)
    return np.concatenate([empty, *heads]), np.concatenate([empty, *names])


def _their_class(entities, types):
    """The members of the smallest class that has all of these entities, but for those of no class; none where there is
    no such class."""
    pairs = types.pairs
    of_these = pairs[np.isin(pairs[:, 0], entities)]
    having = np.bincount(of_these[:, 1], minlength=len(types.classes)) == len(np.unique(of_these[:, 0]))
    sizes = np.where(having, np.bincount(pairs[:, 1], minlength=len(types.classes)), len(pairs) + 1)
    smallest = int(np.argmin(sizes))
    return types.members(types.classes[smallest]) if having[smallest] and len(of_these) else np.empty(0, np.int64)


class Answers:
    """The tails of each (h, r) in some triples (n, 3): `of(heads, relations)` gives (starts, tails), the tails of pair
    i being tails[starts[i] : starts[i + 1]], ascending, each once."""

    def __init__(self, triples, n_entities, n_relations):
        self.n_entities = n_entities
        self.keys = sorted_distinct(triple_keys(*np.asarray(triples).T, n_entities, n_relations))

    def of(self, heads, relations):
        pairs = (np.asarray(relations, np.int64) * self.n_entities + heads) * self.n_entities
        first = np.searchsorted(self.keys, pairs)
        lengths = np.searchsorted(self.keys, pairs + self.n_entities) - first
        places, _ = spread(first, lengths)
        return np.append(0, np.cumsum(lengths)), (self.keys[places] % self.n_entities).astype(np.int32)

    def count(self, heads, relations):
        """How many tails each pair has."""
        return np.diff(self.of(heads, relations)[0])

    def heads_of(self, relations, tails):
        """How many heads each (r, t) has, (n,)."""
        n = self.n_entities
        turned = np.sort((self.keys // n // n) * n + self.keys % n)
        wanted = np.asarray(relations, np.int64) * n + tails
        return np.searchsorted(turned, wanted, "right") - np.searchsorted(turned, wanted, "left")

    def without(self, other):
        """The same but for the triples of `other`."""
        return self._like(self.keys[~np.isin(self.keys, other.keys)])

    def joined(self, other):
        """The triples of either."""
        return self._like(sorted_distinct(np.concatenate((self.keys, other.keys))))

    def _like(self, keys):
        answers = object.__new__(Answers)
        answers.n_entities, answers.keys = self.n_entities, keys
        return answers


def loops_to_leave_out(train, heads, relations, n_relations):
    """(h, r, h), as triples, for the pairs whose relation has no loop in train."""
    has_loop = np.zeros(n_relations, bool)
    has_loop[train[train[:, 0] == train[:, 2], 1]] = True
    without = ~has_loop[relations]
    return np.column_stack((heads, relations, heads))[without]


# ------------------------------------------------------------------------------------------------------------------
# The fit
# ------------------------------------------------------------------------------------------------------------------


def calibrate(model, train, valid, missing, share=None, seed=0, threads=None, progress=None, prior=PRIOR, types=None):
    """The Calibration of a model trained on `train` (n, 3), fitted on `valid` (m, 3).

    missing: how many facts are in neither, so that share v = m / (m + missing), unless v is given. Every (h, r) in
    scope with an answer in valid takes part, and a sample, weighted, of the others: of each its BEST best candidates
    and DRAWN of the rest, weighted too. Loops are no candidates where train has none. Relations are fitted together,
    then each alone, held by a Gaussian prior of precision `prior` (of standardised features) at what all have in
    common. CardkgeError where valid has no fact in scope, or v is not between 0 and 1.
    """
    n, r = model.n_entities, model.n_relations
    train, valid = checked_triples(train, n, r), checked_triples(valid, n, r)
    share = len(valid) / (len(valid) + missing) if share is None and len(valid) else share
    if share is None or not 0 < share < 1:
        raise CardkgeError(f"calibration: the share of missing facts that valid holds must be in (0, 1), found {share}")
    scope = scope_pairs(train, n, r, types=types)
    heads, relations, weights = _fitting_pairs(*scope, valid, n, r, np.random.default_rng([seed, 5]))
    rows = _fitting_rows(model, train, valid, heads, relations, weights, seed, threads, progress)
    relation, scores, sums, known, found, weight = rows
    if not found.any():
        raise CardkgeError("calibration: no fact of valid has a head in the scope of its relation; nothing to fit on")
    centre, spread = np.average(sums, weights=weight), max(float(np.std(sums)), 1e-6)
    features = np.column_stack((scores - sums, (sums - centre) / spread, np.ones(len(sums))))
    coefficients, ones = np.empty((r, N_KNOWN, 3)), np.ones(3)
    of_all = fit_calibration(features, found, weight, share, 0 * ones, 1e-3 * ones)
    limits = np.searchsorted(relation, np.arange(r + 1))  # rows are ordered by relation
    for k in range(N_KNOWN):
        chosen = np.minimum(known, N_KNOWN - 1) == k
        common = fit_calibration(features[chosen], found[chosen], weight[chosen], share, of_all, prior * ones)
        for i in range(r):
            part = limits[i] + np.flatnonzero(chosen[limits[i] : limits[i + 1]])
            u, a, c = fit_calibration(features[part], found[part], weight[part], share, common, prior * ones)
            a /= spread
            coefficients[i, k] = a, np.exp(u) - a, c - a * centre
    return Calibration(coefficients, float(share), len(valid), int(missing))


def learn_counts(model, calibration, train, valid, seed=0, threads=None, types=None):
    """The CountPrior of a calibrated model, from the tails in train and valid of all (h, r) in scope; what the model
    expects of them is taken from a sample."""
    n, r = model.n_entities, model.n_relations
    train, valid = checked_triples(train, n, r), checked_triples(valid, n, r)
    known = Answers(np.concatenate((train, valid)), n, r)
    heads, relations = scope_pairs(train, n, r, types=types)
    share = len(known.keys) / (len(known.keys) + len(valid) * (1 / calibration.share - 1))
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
    excluded = known.joined(Answers(loops_to_leave_out(train, heads, relations, r), n, r))
    sizes = np.empty((len(chosen), SIZES))

    def collect(first, last, decoded):
        kernels.size_chances(decoded["starts"], decoded["p"], sizes[first:last])

    Decoder(model, calibration, None, known, excluded).run(heads, relations, threads, collect)
    usual, of = np.zeros((r * GROUPS, SIZES)), np.bincount(groups, minlength=r * GROUPS)
    np.add.at(usual, groups, sizes)
    usual /= np.maximum(of, 1)[:, None]
    return CountPrior(counts, usual.reshape(r, GROUPS, SIZES), of.reshape(r, GROUPS), float(share))


def _fitting_pairs(heads, relations, valid, n_entities, n_relations, rng):
    """(heads, relations, weights) of those of the pairs in scope that the fit sees, ordered by relation, head."""
    answered = Answers(valid, n_entities, n_relations).count(heads, relations) > 0
    kept, weights = answered.copy(), np.ones(len(heads))
    most = max(PAIRS // n_relations, min(1000, MOST_PAIRS // n_relations), 100)
    limits = np.searchsorted(relations, np.arange(n_relations + 1))
    for first, last in itertools.pairwise(limits):
        others = first + np.flatnonzero(~answered[first:last])
        chosen = others if len(others) <= most else rng.choice(others, most, replace=False)
        kept[chosen] = True
        weights[chosen] = len(others) / max(len(chosen), 1)
    return heads[kept], relations[kept], weights[kept]


def _fitting_rows(model, train, valid, heads, relations, pair_weights, seed, threads, progress):
    """The candidates of these pairs that the fit sees: relation, score, log sum, known tails, whether in valid, and
    weight, arrays (rows,) each, ordered by pair."""
    n = model.n_entities
    known = Answers(train, n, model.n_relations)
    excluded = known.joined(
        Answers(loops_to_leave_out(train, heads, relations, model.n_relations), n, model.n_relations)
    )
    answers = Answers(valid, n, model.n_relations).without(excluded)
    draws = np.random.default_rng([seed, 6]).integers(n, size=(len(heads), DRAWN))
    best, blocks = min(BEST, n), {}

    def collect(first, last, scores):
        part = slice(first, last)
        size, row = last - first, np.arange(last - first)
        sums, largest = np.empty(size), np.empty(size, scores.dtype)
        kernels.log_sums(scores, largest, sums)
        starts, taken = excluded.of(heads[part], relations[part])
        found_starts, found = answers.of(heads[part], relations[part])
        taken_row, found_row = np.repeat(row, np.diff(starts)), np.repeat(row, np.diff(found_starts))
        ranked, weight = scores.copy(), np.zeros(scores.shape)
        ranked[taken_row, taken] = -np.inf
        top = np.argpartition(ranked, n - best, axis=1)[:, n - best :]
        weight[row[:, None], top], weight[found_row, found], weight[taken_row, taken] = 1, 1, -1
        fresh = weight[row[:, None], draws[part]] == 0
        each = (weight == 0).sum(1) / np.maximum(fresh.sum(1), 1)
        drawn_row = np.repeat(row, fresh.sum(1))
        np.add.at(weight, (drawn_row, draws[part][fresh]), each[drawn_row])
        i, t = np.nonzero(weight > 0)
        is_in = np.zeros(scores.shape, bool)
        is_in[found_row, found] = True
        count = known.count(heads[part], relations[part])[i]
        blocks[first] = (
            relations[part][i],
            scores[i, t],
            sums[i],
            count,
            is_in[i, t],
            weight[i, t] * pair_weights[part][i],
        )

    with Threads(threads) as pool:
        scored_blocks(model, 1, heads, relations, pool, collect, block_of(n), progress)
    if not blocks:
        raise CardkgeError("calibration: train has no triples, so no (h, r) is in scope")
    return [np.concatenate([blocks[first][i] for first in sorted(blocks)]) for i in range(6)]


# ------------------------------------------------------------------------------------------------------------------
# Candidates with their probabilities, block by block
# ------------------------------------------------------------------------------------------------------------------


class Decoder:
    """The candidates of (h, r) worth looking at, with the probabilities that they are facts.

    known, excluded, wanted: Answers; excluded (the known ones among them) are no candidates, wanted are looked at
    however improbable. bounds (R, 2), Constraints or a CountPrior, or None: not conditioned.
    """

    def __init__(self, model, calibration, bounds, known, excluded=None, wanted=None):
        self.model, self.calibration, self.floor = model, calibration, LEFT_OUT / model.n_entities
        bounds = np.tile([0.0, np.inf], (model.n_relations, 1)) if bounds is None else bounds
        self.bounds = bounds if hasattr(bounds, "of") else PlainBounds(bounds, model.n_relations)
        self.known, self.excluded, self.wanted = known, known if excluded is None else excluded, wanted

    def decode(self, heads, relations, scores, need=0.0):
        """Of scores (n, N) of n pairs: dict of starts (n + 1,), ids, p, scores (flat: the candidates of pair i are
        ids[starts[i] : starts[i + 1]]), known (n,) and candidates (n,) counts, contradicted (n,) bool. Candidates whose
        p is at most `need` may be missing."""
        n, calibration = len(heads), self.calibration
        sums, largest = np.empty(n), np.empty(n, scores.dtype)
        kernels.log_sums(scores, largest, sums)
        if not np.isfinite(sums).all():
            raise CardkgeError("a score is not finite: the parameters are too large for their dtype")
        count = self.known.count(heads, relations)
        excluded_starts, excluded = self.excluded.of(heads, relations)
        wanted_starts, wanted = (np.zeros(n + 1, np.int64), excluded[:0])
        if self.wanted is not None:
            wanted_starts, wanted = self.wanted.of(heads, relations)
        lower, upper = (self.bounds.of(relations, heads) - count[:, None]).T
        of_all, shift = calibration.coefficients[relations], np.log1p(-calibration.share)
        at_sum = calibration_logits(of_all, sums, sums, count) + shift  # log odds of a score as large as the log sum
        slope = of_all[np.arange(n), np.minimum(count, N_KNOWN - 1), :2].sum(1)
        candidates = self.model.n_entities - np.diff(excluded_starts)
        lists = excluded_starts, excluded, wanted_starts, wanted

        weights, gain = NO_WEIGHTS, 0.0  # gain: of a candidate's log odds, at most
        if hasattr(self.bounds, "weights"):
            weights = self.bounds.weights(relations, count)
            gain = np.log((weights[:, 1:] / weights[:, :-1]).max(1, initial=1.0))

        def least(log_odds):  # scores; given a lower bound every candidate counts
            found = np.where(lower > 0, -np.inf, sums + (log_odds - at_sum) / slope)
            return np.nextafter(found.astype(scores.dtype), scores.dtype.type(-np.inf))

        lowest = least(np.log(self.floor) - np.minimum(gain, MOST_GAIN))
        if need > self.floor:
            enough = least(np.log(need) - np.log1p(-need) - gain - 1e-6 if need < 1 else np.inf)
            starts, ids = self._live(scores, enough, *lists)
            # an upper bound makes no candidate likelier
            conditioned = ((upper < candidates) | (weights.shape[1] > 1)) & (np.diff(starts) > 0)
            if conditioned.any():
                starts, ids = self._live(scores, np.where(conditioned, lowest, enough), *lists)
        else:
            starts, ids = self._live(scores, lowest, *lists)
        row = np.repeat(np.arange(n), np.diff(starts))
        live = scores[row, ids]
        log_odds = calibration_logits(of_all[row], live, sums[row], count[row]) + shift
        p = np.empty(len(ids))
        kernels.condition_sets(0, n, starts, np.clip(log_odds, -1e6, 1e6), lower, upper, weights, p)
        contradicted = (upper < 0) | (np.ceil(lower) > candidates)
        found = {"starts": starts, "ids": ids, "p": p, "scores": live, "row": row}
        return found | {"known": count, "candidates": candidates, "contradicted": contradicted}

    @staticmethod
    def _live(scores, least, *lists):
        starts, ids = np.empty(len(scores) + 1, np.int64), np.empty(64 * len(scores), np.int32)
        needed = kernels.live_candidates(scores, least, *lists, starts, ids)
        if needed > len(ids):
            ids = np.empty(needed, np.int32)
            kernels.live_candidates(scores, least, *lists, starts, ids)
        return starts, ids[:needed]

    def run(self, heads, relations, threads, consume, progress=None, need=0.0):
        """consume(first, last, decode(...)) for every block of pairs, from any thread."""

        def each(first, last, scores):
            part = slice(first, last)
            consume(first, last, self.decode(heads[part], relations[part], scores, need))

        with Threads(threads) as pool:
            scored_blocks(self.model, 1, heads, relations, pool, each, block_of(self.model.n_entities), progress)


def acceptable(found, room, least):
    """Places, in `ids` of a decoded block, of the candidates with p > least that are among the room[i] (n,) best of
    their pair, best first within each; equals by score, then by id."""
    places = np.flatnonzero(found["p"] > least)
    row = found["row"][places]
    order = np.lexsort((found["ids"][places], -found["scores"][places], -found["p"][places], row))
    places, row = places[order], row[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    return places[rank < room[row]]


def room_left(limits, known):
    """How many new tails each (h, r) may get, limits (n, 2) their bounds: floor(upper) less the known ones, at least 0
    (N at most is meant by inf)."""
    upper = np.minimum(np.floor(limits[:, 1]), 2.0**62)
    return np.maximum(upper - known, 0)


def with_room_of_tails(decoder, triples):
    """(m,) bool: which of new facts (m, 3), best first, are kept where each (r, t) has room for so many heads more, by
    bounds of the inverse; the known heads count."""
    kept, bounded = np.ones(len(triples), bool), decoder.bounds.is_bounded(inverse=True)
    rows = np.flatnonzero(bounded[triples[:, 1]])
    if not len(rows):
        return kept
    _, relations, tails = triples[rows].T
    known = decoder.known.heads_of(relations, tails)
    room = room_left(decoder.bounds.of(relations, tails, inverse=True), known)
    _, pair = np.unique(relations.astype(np.int64) * decoder.model.n_entities + tails, return_inverse=True)
    order = np.argsort(pair, kind="stable")
    ordered = pair[order]
    rank = np.empty(len(rows), np.int64)
    rank[order] = np.arange(len(rows)) - np.searchsorted(ordered, ordered)
    kept[rows] = rank < room
    return kept


# ------------------------------------------------------------------------------------------------------------------
# How good the answers are
# ------------------------------------------------------------------------------------------------------------------

STEPS, EDGE = 5000, 40.0  # bins of log odds from -EDGE to EDGE, this many for each unit


def log_odds_bins(p, floor):
    """The bin (int) of each p in [0, 1], by its log odds; bins grow with p, that of p <= floor is 0."""
    with np.errstate(divide="ignore"):
        x = np.clip(np.log(p) - np.log1p(-p), -EDGE, EDGE)
    return np.where(p > floor, np.ceil((x + EDGE) * STEPS), 0).astype(np.int64)


def average_precision(hits, others):
    """AP and the best F1 of candidates in bins, worst first: hits (m,) facts and others (m,) in each bin; and the facts
    that no bin holds. A bin's candidates are a tie."""
    hits, others = hits[::-1], others[::-1]
    held = np.flatnonzero(hits + others)
    hits, others = hits[held], others[held]
    found, taken = np.cumsum(hits), np.cumsum(hits + others)
    return found, taken, hits


class Tally:
    """What `evaluate_sets` adds up, block by block in any order; only integers and values kept by pair, so that no
    figure depends on the order."""

    def __init__(self, pairs):
        bins = int(2 * EDGE * STEPS) + 1
        self.hits, self.others, self.lock = np.zeros(bins, np.int64), np.zeros(bins, np.int64), threading.Lock()
        self.expected, self.squares, self.log_loss = np.zeros(pairs), np.zeros(pairs), np.zeros(pairs)
        self.known, self.contradicted = np.zeros(pairs, np.int64), np.zeros(pairs, bool)
        self.likely = {}  # first pair of a block -> (p, is a fact) of the candidates with p >= 0.1
        self.accepted = {}  # the same of the candidates that there is room for

    def add(self, first, last, found, facts, room, least, floor):
        p, row, n = found["p"], found["row"], last - first
        bins = log_odds_bins(p, floor)
        hits = np.bincount(bins[facts], minlength=len(self.hits))
        others = np.bincount(bins[~facts], minlength=len(self.hits))
        others[0] += found["candidates"].sum() - len(p)  # those not looked at
        with self.lock:
            self.hits += hits
            self.others += others
        part = slice(first, last)
        self.expected[part] = np.bincount(row, p, n)
        self.squares[part] = np.bincount(row, (p - facts) ** 2, n)
        tiny = 1e-15
        loss = -np.where(facts, np.log(np.maximum(p, tiny)), np.log1p(-np.minimum(p, 1 - tiny)))
        self.log_loss[part] = np.bincount(row, loss, n)
        self.known[part], self.contradicted[part] = found["known"], found["contradicted"]
        likely = p >= 0.1
        self.likely[first] = p[likely], facts[likely]
        places = acceptable(found, room, least)
        self.accepted[first] = p[places], facts[places]

    def joined(self, blocks):
        """Both arrays of all blocks, in the order of the pairs."""
        return [np.concatenate([blocks[first][i] for first in sorted(blocks)] or [np.empty(0)]) for i in range(2)]


def calibration_bins(p, facts, bins=15):
    """Bins of as equal numbers as may be, by p: (mean p, share of facts, number) of each, arrays (bins,)."""
    order = np.argsort(p, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    rows = [(p[part].mean(), facts[part].mean(), len(part)) for part in parts]
    return np.array(rows).reshape(-1, 3).T


def threshold_for(p, precision):
    """How many of p (n,), best first, may be accepted so that their mean is at least `precision`; ties stand or fall
    together. p sorted, descending."""
    mean = np.cumsum(p) / np.arange(1, len(p) + 1)
    ends = np.append(p[1:] != p[:-1], True) if len(p) else np.empty(0, bool)
    good = np.flatnonzero(ends & (mean >= precision))
    return int(good[-1]) + 1 if len(good) else 0


def evaluate_sets(model, calibration, bounds, dataset, least=0.5, precision=None, loops=False, threads=None,
                  progress=None, types=None):  # fmt: skip
    """How good the answers to all (h, ?) in scope are, against test; train and valid are known.

    bounds (R, 2), Constraints or None. types: as `scope_pairs` takes them. loops: (h, r, h) is a candidate even where
    train has no loop of r. Accepted are candidates with p > least, or as many, best first, as have a mean p of at least
    `precision`; at most as many for each (h, r) as its upper bound leaves room for. Returns (measures, details): a dict
    of numbers, and what the figures show.
    """
    n, r = model.n_entities, model.n_relations
    train, valid, test = (checked_triples(x, n, r) for x in (dataset.train, dataset.valid, dataset.test))
    heads, relations = scope_pairs(train, n, r, types=types)
    known = Answers(np.concatenate((train, valid)), n, r)
    facts = Answers(test, n, r).without(known)
    excluded = known
    if not loops:
        excluded = known.joined(Answers(loops_to_leave_out(train, heads, relations, r), n, r))
    wanted = facts.without(excluded)
    decoder = Decoder(model, calibration, bounds, known, excluded, wanted)
    tally, limit = Tally(len(heads)), least if precision is None else min(0.01, precision / 10)

    def consume(first, last, found):
        pairs = heads[first:last], relations[first:last]
        keys = triple_keys(pairs[0][found["row"]], pairs[1][found["row"]], found["ids"], n, r)
        place = np.minimum(np.searchsorted(facts.keys, keys), max(len(facts.keys) - 1, 0))
        is_fact = facts.keys[place] == keys if len(facts.keys) else np.zeros(len(keys), bool)
        room = room_left(decoder.bounds.of(pairs[1], pairs[0]), found["known"])
        tally.add(first, last, found, is_fact, room, limit, decoder.floor)

    decoder.run(heads, relations, threads, consume, progress)
    true_counts = known.joined(facts).count(heads, relations)
    return _measures(tally, len(facts.keys), decoder.bounds.of(relations, heads), true_counts, precision)


def _measures(tally, n_facts, bounds, true_counts, precision):
    """The dict of measures and the details behind the figures, of a finished Tally."""
    found, taken, hits = average_precision(tally.hits, tally.others)
    if not n_facts:
        raise CardkgeError("no facts of test are new, so there is nothing to measure against")
    p, is_fact = tally.joined(tally.accepted)
    order = np.argsort(-p, kind="stable")
    p, is_fact = p[order], is_fact[order]
    if precision is not None:
        count = threshold_for(p, precision)
        p, is_fact = p[:count], is_fact[:count]
    right, likely = float(is_fact.sum()), tally.joined(tally.likely)
    mean_p, share, size = calibration_bins(*likely)
    expected = tally.known + tally.expected
    outside = (expected < bounds[:, 0] - 1e-9) | (expected > bounds[:, 1] + 1e-9)
    measures = {
        "ap": float((hits * found / taken).sum() / n_facts),
        "best_f1": float((2 * found / (taken + n_facts)).max(initial=0)),
        "f1": float(2 * right / (len(p) + n_facts)),
        "precision": float(right / len(p)) if len(p) else None,
        "recall": float(right / n_facts),
        "accepted": len(p),
        "mean_probability": float(p.mean()) if len(p) else None,
        "threshold": float(p[-1]) if len(p) else None,
        "ece": float((size * np.abs(mean_p - share)).sum() / max(size.sum(), 1)),
        "brier": float(tally.squares.sum() / n_facts),
        "log_loss": float(tally.log_loss.sum() / n_facts),
        "count_mae": float(np.abs(expected - true_counts).mean()),
        "known_count_mae": float(np.abs(tally.known - true_counts).mean()),
        "out_of_bounds": float((outside & ~tally.contradicted).mean()),
        "contradicted": int(tally.contradicted.sum()),
        "pairs": len(expected),
        "facts": n_facts,
    }
    details = {
        "recall": found / n_facts, "precision": found / taken, "bins": (mean_p, share, size),
        "expected": expected, "true": true_counts, "known": tally.known,
    }  # fmt: skip
    return measures, details


# ------------------------------------------------------------------------------------------------------------------
# New facts
# ------------------------------------------------------------------------------------------------------------------


def probable(decoder, heads, relations, least, threads=None, progress=None):
    """(pairs (m,) places in heads, tails (m,), p (m,)) of the acceptable candidates with p > least, in the order of the
    pairs, best first within each; and the number of contradicted pairs."""
    blocks = {}

    def consume(first, last, found):
        limits = decoder.bounds.of(relations[first:last], heads[first:last])
        places = acceptable(found, room_left(limits, found["known"]), least)
        contradicted = int(np.count_nonzero(found["contradicted"]))
        blocks[first] = found["row"][places], found["ids"][places], found["p"][places], contradicted

    decoder.run(heads, relations, threads, consume, progress, need=least)
    return joined_parts(blocks)


def joined_parts(parts):
    """What `probable` returns, of parts of the pairs: {the first pair: the same of those from there on}."""
    found = [(first + pairs, *others) for first, (pairs, *others) in sorted(parts.items())]
    empty = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0)
    columns = [np.concatenate([none, *(part[i] for part in found)]) for i, none in enumerate(empty)]
    return *columns, sum(part[3] for part in found)


def complete(decoder, heads, relations, least=0.5, precision=None, threads=None, progress=None, look=None):
    """The new facts of these (h, r), best first (equals by relation, head, score, tail): (triples (m, 3), p (m,), the
    number of contradicted pairs). Accepted as `evaluate_sets` accepts, and then as far as each (r, t) has room, by
    bounds of the inverse. look(least): `probable`, done elsewhere."""
    floor = least if precision is None else min(0.01, precision / 10)
    while True:
        found = look(floor) if look else probable(decoder, heads, relations, floor, threads, progress)
        pairs, tails, p, contradicted = found
        order = np.argsort(-p, kind="stable")  # ordered by pair already
        count = len(order)
        if precision is not None:
            count = threshold_for(p[order], precision)
            if count == len(order) and floor > decoder.floor:  # perhaps there is more
                floor = max(floor / 100, decoder.floor)
                continue
        order = order[:count]
        triples = np.column_stack((heads[pairs[order]], relations[pairs[order]], tails[order]))
        kept = with_room_of_tails(decoder, triples)
        return triples[kept], p[order][kept], contradicted
