"""Candidates with their probabilities, block by block, and the new facts among them."""

import numpy as np

import kernels
from cardkge import CardkgeError, as_bounds
from cardkge_tools.definitions.counting import N_KNOWN, calibration_logits
from cardkge_tools.engine.ranking import scored_blocks
from cardkge_tools.engine.threads import Threads

LEFT_OUT = 0.01  # candidates are not looked at whose probabilities cannot add up to more than this, for any (h, r)
MOST_GAIN = np.log(100)  # candidates are looked for further down, by at most this in log odds, where counts favour more
BLOCK, BLOCK_SCORES = 128, 2**24  # (h, r) scored at once, and scores: see `block_of`


def block_of(n_entities):
    """(h, r) scored at once, however many threads and machines: scores may depend on it in their last bit. A block is
    64 MiB of float32 at most."""
    return max(1, min(BLOCK, BLOCK_SCORES // n_entities))


class Decoder:
    """The candidates of (h, r) worth looking at, with the probabilities that they are facts.

    known, excluded, wanted: Answers; excluded (the known ones among them) are no candidates, wanted are looked at
    however improbable. bounds: Bounds (a CountPrior too), (R, 2), or None: not conditioned.
    """

    def __init__(self, model, calibration, bounds, known, excluded=None, wanted=None):
        self.model, self.calibration, self.floor = model, calibration, LEFT_OUT / model.n_entities
        self.bounds = as_bounds(bounds, model.n_relations)
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

        weights = self.bounds.weights(relations, count)
        gain = np.log((weights[:, 1:] / weights[:, :-1]).max(1, initial=1.0))  # of a candidate's log odds, at most

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


def threshold_for(p, precision):
    """How many of p (n,), best first, may be accepted so that their mean is at least `precision`; ties stand or fall
    together. p sorted, descending."""
    mean = np.cumsum(p) / np.arange(1, len(p) + 1)
    ends = np.append(p[1:] != p[:-1], True) if len(p) else np.empty(0, bool)
    good = np.flatnonzero(ends & (mean >= precision))
    return int(good[-1]) + 1 if len(good) else 0
