"""The (h, r) in scope, their known tails, their candidates with probabilities, and the new facts among these."""

import functools
from dataclasses import dataclass, replace

import numpy as np

import kernels
from cardkge import as_bounds, probability, triple_keys
from cardkge_tools.answers import odds as candidate_odds
from cardkge_tools.answers.odds import FOLDED, LISTED, FullTails, log_odds, log_sums_of, most_tails, open_to, room_left
from cardkge_tools.definitions.counting import pair_features
from cardkge_tools.engine.batches import Threads, sorted_distinct
from cardkge_tools.engine.ranking import Queries, scored_blocks

LEFT_OUT = 0.01  # candidates may be skipped whose probabilities add up to at most this for each (h, r)
MOST_GAIN = np.log(100)  # how far below, at most, in log odds, candidates are sought where prior counts favour more
BLOCK, BLOCK_SCORES = 384, 2**24  # (h, r) scored at once, and scores: see `block_of`
WHOLE = 128  # (h, r) at once whose candidates may all be listed


def block_of(n_entities, most=BLOCK):
    """How many (h, r) are scored at once, at most `most`. It depends on neither threads nor machines, for the last bit
    of a score may depend on it. A block is 64 MiB of float32 at most."""
    return max(1, min(most, BLOCK_SCORES // n_entities))


@dataclass(frozen=True, eq=False)
class Decoded:
    """The candidates of n pairs (h, r), those of pair i at starts[i] : starts[i + 1], ascending by id.

    starts (n + 1,) int64; for each candidate its pair (row), id, score, and the probability p that it is a fact; for
    each pair (n,) its number of known tails, its number of candidates in all, whether the data contradicts its bounds,
    the probability that it has no new tail (if the Decoder's with_none is set), and whether its completions are
    guesses, to be left out."""

    starts: np.ndarray
    row: np.ndarray
    ids: np.ndarray
    scores: np.ndarray
    p: np.ndarray
    known: np.ndarray
    candidates: np.ndarray
    contradicted: np.ndarray
    none: np.ndarray | None = None
    guesses: np.ndarray | None = None

    def replaced(self, rows, other):
        """The same, with the pairs `rows` (m,) as in another Decoded, which has them alone."""
        kept = ~np.isin(self.row, rows)
        row = np.concatenate((self.row[kept], rows[other.row]))
        order, found = np.argsort(row, kind="stable"), {}
        for name in ("ids", "scores", "p"):
            found[name] = np.concatenate((getattr(self, name)[kept], getattr(other, name)))[order]
        for name in ("contradicted", "guesses"):
            found[name] = getattr(self, name).copy()
            found[name][rows] = getattr(other, name)
        row = row[order]
        return replace(self, starts=np.searchsorted(row, np.arange(len(self.known) + 1)), row=row, **found)

    def expected(self):
        """(n,): the expected number of tails of each pair, known ones included."""
        return self.known + np.bincount(self.row, self.p, len(self.known))

    def of_tail(self, tail):
        """(n,): the p of one tail in each pair, 0 where it is not a candidate."""
        p, here = np.zeros(len(self.known)), self.ids == tail
        p[self.row[here]] = self.p[here]
        return p


class Decoder:
    """The candidates of (h, r) that matter, with the probabilities that they are facts.

    known: KnownTails. excluded: entities that are not candidates, including the known tails; wanted: candidates kept
    however improbable; both have `of` as KnownTails does. bounds: Bounds (or a CountPrior), (R, 2), or None: p is not
    conditioned. Candidates left out have p below `floor`."""

    def __init__(self, model, calibration, bounds, known, excluded=None, wanted=None):
        self.model, self.calibration, self.floor = model, calibration, LEFT_OUT / model.n_entities
        self.bounds = as_bounds(bounds, model.n_relations)
        self.known, self.excluded = known, known if excluded is None else excluded
        self.wanted = known.without(known) if wanted is None else wanted
        self.with_none = self.with_guesses = False
        self.full = FullTails(self.bounds, known)

    def decode(self, heads, relations, scores, need=0.0, listed=LISTED):
        """The Decoded of n pairs with scores (n, N). Candidates whose p is at most `need` may be missing. Where a lower
        bound asks for tails, `need` is above the floor and there is neither with_none nor any wanted candidate, about
        `listed` candidates are listed and the others folded (`fold`), if they prove to have p of FOLDED at most; p is
        then right to FOLDED.

        With bounds of the inverse, p is 0 where (r, t) has as many known heads as they allow (`FullTails`)."""
        n = len(heads)
        count, numbered, lower, upper = self._limits_of(heads, relations)
        lists = *self.excluded.of(heads, relations), *self.wanted.of(heads, relations)
        candidates = self.model.n_entities - np.diff(lists[0])
        open_scores = open_to(scores, relations, lists[:2], self.full)
        sums, best = log_sums_of(open_scores, "the parameters are too large for their dtype")
        features = pair_features(sums, count, best, self.calibration.centre, self.calibration.scale)
        weights = self.bounds.weights(relations, count)
        gain = np.log((weights[:, 1:] / weights[:, :-1]).max(1, initial=1.0))  # in a candidate's log odds, at most
        unseen = self.calibration.unseen_of(relations) * (weights.shape[1] == 1)  # a CountPrior is of candidates alone
        may_guess = self.calibration.has_scale(relations) & (not self.with_guesses)
        folded = (need > self.floor) & (lower > 0) & (np.diff(lists[2]) == 0) & (not self.with_none)
        of = relations, sums, features, numbered
        cut, rest, near = candidate_odds.fold(self.calibration, open_scores, folded, listed, may_guess, of)
        folded = cut > -np.inf
        cut = np.nextafter(cut.astype(scores.dtype), scores.dtype.type(np.inf))  # for `live` rounds it down

        def least(odds):  # scores of candidates with these log odds; with a lower bound all matter
            of_odds = sums + candidate_odds.log_softmax_of(self.calibration, relations, odds, features, numbered)
            return np.where(folded, cut, np.where(lower > 0, -np.inf, of_odds))

        lowest, conditioned = least(np.log(self.floor) - np.minimum(gain, MOST_GAIN)), np.ones(n, bool)
        if need > self.floor:
            enough = least(np.log(need) - np.log1p(-need) - gain - 1e-6 if need < 1 else np.inf)
            starts, ids = self.live(scores, enough, *lists)
            # an upper bound makes no candidate likelier
            conditioned = ((upper < candidates) | (weights.shape[1] > 1)) & (np.diff(starts) > 0) & ~folded
            lowest = np.where(conditioned, lowest, enough)
        if conditioned.any():
            starts, ids = self.live(scores, lowest, *lists)
        row = np.repeat(np.arange(n), np.diff(starts))
        found = scores[row, ids]
        odds = log_odds(self.calibration, relations[row], found - sums[row], features[row], numbered[row])
        full = open_scores[row, ids] == -np.inf
        odds, open_starts = np.clip(odds, -1e6, 1e6)[~full], np.searchsorted(row[~full], np.arange(n + 1))
        most = most_tails(candidates - np.bincount(row[full], minlength=n), unseen)
        contradicted = (upper < 0) | (np.ceil(lower) > most)
        limits = np.where(contradicted, 0, lower), np.where(contradicted, -1, upper)  # -1: there is no such set
        p, open_p = np.zeros(len(ids)), np.empty(len(odds))
        kernels.condition_sets(0, n, open_starts, odds, *limits, weights, unseen + rest, open_p)
        p[~full] = open_p
        none = candidate_odds.chances_of_none(open_starts, odds, limits, weights, unseen) if self.with_none else None
        guesses = (limits[0] > 0) & may_guess
        if guesses.any():
            guesses &= candidate_odds.are_guesses(open_starts, odds, limits[0], unseen + rest)
        decoded = Decoded(starts, row, ids, found, p, count, candidates, contradicted, none, guesses)
        least_p = np.full(n, -1.0)
        if folded.any():
            filled = np.flatnonzero(np.diff(open_starts))
            least_p[filled] = np.minimum.reduceat(open_p, open_starts[filled]) if len(filled) else []
        failed = np.flatnonzero(near | folded & ~guesses & (least_p > min(need, FOLDED)))
        for start in range(0, len(failed), WHOLE):
            rows = failed[start : start + WHOLE]
            longer = self.decode(heads[rows], relations[rows], scores[rows], need, 4 * listed)
            decoded = decoded.replaced(rows, longer)
        return decoded

    def _limits_of(self, heads, relations):
        """(n,) each: the number of known tails, whether there is an exact number, the bounds less the known tails."""
        known, limits = self.known.count(heads, relations), self.bounds.of(relations, heads)
        return known, limits[:, 0] == limits[:, 1], *(limits - known[:, None]).T

    def open_pairs(self, heads, relations, least):
        """(places, number): the (h, r) that may have room for a candidate with p > least, as far as bounds and ceilings
        tell without a score; and how many have more known tails than their bounds allow."""
        places, number = [], 0
        for first in range(0, len(heads), 2**20):
            h, r = (x[first : first + 2**20] for x in (heads, relations))
            known, numbered, lower, upper = self._limits_of(h, r)
            share = self.calibration.known_of(r, numbered)
            ceiling = probability(self.calibration.parameters[r, -1] + np.log1p(-share))
            plain = self.bounds.weights(r[:1], known[:1]).shape[1] == 1  # else counts may make candidates likelier
            hopeless = (upper < 1) | ((ceiling <= least) & (lower <= 0) & plain)
            places.append(first + np.flatnonzero(~hopeless))
            number += int(np.count_nonzero(upper < 0))
        return np.concatenate([np.empty(0, np.int64), *places]), number

    @staticmethod
    def live(scores, least, *lists):
        """(starts, ids) of `kernels.live_candidates`; least (n,) is rounded down to the scores' precision."""
        least = np.nextafter(least.astype(scores.dtype), scores.dtype.type(-np.inf))
        starts, ids = np.empty(len(scores) + 1, np.int64), np.empty(2 * LISTED * len(scores), np.int32)
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
            block = block_of(self.model.n_entities, BLOCK if need > self.floor else WHOLE)
            scored_blocks(self.model, Queries(heads, relations), pool, each, block, progress)


def acceptable(decoded, room, least):
    """The places of the candidates of a Decoded that have p > least, are among the room[i] (n,) best of their pair, and
    are not guesses; best first within each pair, equals by score, then by id."""
    room = room if decoded.guesses is None else np.where(decoded.guesses, 0, room)
    places = np.flatnonzero(decoded.p > least)
    keys = decoded.ids, -decoded.scores, -decoded.p, decoded.row
    places = places[np.lexsort([key[places] for key in keys])]
    return places[ranks_within(decoded.row[places]) < room[decoded.row[places]]]


def accepted(decoder, triples, p, precision=None):
    """The rule of acceptance for facts (m, 3), ordered by pair, for which (h, r) has room: their places, best first
    (equals in their order), while each (r, t) has room under bounds of the inverse; of these as many as have a mean p
    of at least `precision` (None: all)."""
    order = np.argsort(-p, kind="stable")
    order = order[_with_room_of_tails(decoder, triples[order])]
    return order if precision is None else order[: threshold_for(p[order], precision)]


def _with_room_of_tails(decoder, triples):
    """(m,) bool: which of the facts (m, 3), best first, have room beside the known heads and the facts before them."""
    kept, (_, relations, tails) = np.ones(len(triples), bool), triples.T
    rows = np.flatnonzero(decoder.full.inverse[relations])
    if not len(rows):
        return kept
    relations, tails = relations[rows], tails[rows]
    kept[rows] = ranks_within(relations.astype(np.int64) * decoder.model.n_entities + tails) < decoder.full.room(
        relations, tails
    )
    return kept


def ranks_within(groups):
    """(n,) int64: how many earlier elements are of the same group (n,)."""
    order, ranks = np.argsort(groups, kind="stable"), np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - np.searchsorted(groups[order], groups[order])
    return ranks


def probable(decoder, heads, relations, least, threads=None, progress=None):
    """(pairs (m,) places in heads, tails (m,), p (m,)) of the `acceptable` candidates with p > least, in the order of
    the pairs, best first within each; and (2,) the numbers of contradicted pairs and of pairs with guesses alone."""
    places, contradicted = decoder.open_pairs(heads, relations, least)
    heads, relations, blocks = heads[places], relations[places], {}

    def consume(first, last, decoded):
        limits = decoder.bounds.of(relations[first:last], heads[first:last])
        kept = acceptable(decoded, room_left(limits, decoded.known), least)
        left_out = [np.count_nonzero(each) for each in (decoded.contradicted, decoded.guesses)]
        blocks[first] = decoded.row[kept], decoded.ids[kept], decoded.p[kept], np.array(left_out)

    decoder.run(heads, relations, threads, consume, progress, need=least)
    pairs, tails, p, left_out = joined_parts(blocks)
    return places[pairs], tails, p, left_out + np.array([contradicted, 0])


def joined_parts(parts):
    """What `probable` returns for all pairs, joined from parts: {first pair of a part: what it returned for that
    part}."""
    found = [(first + pairs, *others) for first, (pairs, *others) in sorted(parts.items())]
    empty = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0)
    columns = [np.concatenate([none, *(part[i] for part in found)]) for i, none in enumerate(empty)]
    return *columns, sum((part[3] for part in found), np.zeros(2, int))


def complete(decoder, heads, relations, least=0.5, precision=None, look=None):
    """The new facts of these (h, r), best first (equals by relation, head, score, tail): (triples (m, 3), p (m,), the
    numbers of `probable`). They are the `accepted` ones among the candidates with p > least for which (h, r) has room;
    with a precision, as far down as it allows. look(least): `probable` of these pairs, computed in another way."""
    look = look or functools.partial(probable, decoder, heads, relations)
    floor = least if precision is None else start_of(precision)
    while True:
        pairs, tails, p, left_out = look(floor)
        triples = np.column_stack((heads[pairs], relations[pairs], tails))
        kept, everything = (accepted(decoder, triples, p, limit) for limit in (precision, None))
        if precision is None or floor <= decoder.floor or len(kept) < len(everything):
            return triples[kept], p[kept], left_out
        floor = max(floor / 100, decoder.floor)  # perhaps there is more


def start_of(precision):
    """The p down to which candidates are sought at first, given a precision."""
    return min(0.01, precision / 10)


def threshold_for(p, precision):
    """How many of p (n,), in descending order, may be accepted so that their mean is at least `precision`; ties are
    accepted together or not at all."""
    mean = np.cumsum(p) / np.arange(1, len(p) + 1)
    ends = np.append(p[1:] != p[:-1], True) if len(p) else np.empty(0, bool)
    good = np.flatnonzero(ends & (mean >= precision))
    return int(good[-1]) + 1 if len(good) else 0


@dataclass(frozen=True)
class Scope:
    """What is in scope. loops: (h, r, h) is a candidate even where train has no loop of r; types: as in
    `scope_pairs`."""

    loops: bool = False
    types: object = None


def spread(starts, lengths):
    """The places start, start + 1, ... of several stretches, one after the other, and the stretch of each."""
    which = np.repeat(np.arange(len(lengths)), lengths)
    return np.repeat(starts - np.append(0, np.cumsum(lengths)[:-1]), lengths) + np.arange(lengths.sum()), which


def scope_pairs(train, n_entities, n_relations, relations=None, types=None):
    """The (h, r) that may have tails: in train h is a head of r, or of a relation that shares a head with r. Where the
    graph has classes, h may also be a member of the smallest class that has all heads of r, those of no class aside.

    train (n, 3); relations: ids to keep, None for all; types: bounds.Types, or None. Returns (heads, relations),
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
    """The members of the smallest class that has all of these entities, those of no class aside; none where there is no
    such class."""
    pairs = types.pairs
    of_these = pairs[np.isin(pairs[:, 0], entities)]
    having = np.bincount(of_these[:, 1], minlength=len(types.classes)) == len(np.unique(of_these[:, 0]))
    sizes = np.where(having, np.bincount(pairs[:, 1], minlength=len(types.classes)), len(pairs) + 1)
    smallest = int(np.argmin(sizes))
    return types.members(types.classes[smallest]) if having[smallest] and len(of_these) else np.empty(0, np.int64)


class KnownTails:
    """An index of triples (n, 3): the tails of each (h, r) and the heads of each (r, t), each once.

    keys (m,) int64: the `triple_keys` of the distinct triples, ascending.
    """

    def __init__(self, triples, n_entities, n_relations):
        self.n_entities = n_entities
        self.keys = sorted_distinct(triple_keys(*np.asarray(triples).T, n_entities, n_relations))

    @functools.cached_property
    def inverse(self):
        """(m,) int64: the same triples as keys of (relation, tail, head), ascending."""
        n = self.n_entities
        return np.sort((self.keys // n // n * n + self.keys % n) * n + self.keys // n % n)

    def of(self, heads, relations):
        """(starts (n + 1,), tails): the tails of pair i are tails[starts[i] : starts[i + 1]], ascending."""
        return self._under(self.keys, relations, heads)

    def heads_of(self, relations, tails):
        """(starts (n + 1,), heads): the heads of (relations[i], tails[i]), as in `of`."""
        return self._under(self.inverse, relations, tails)

    def count(self, heads, relations):
        """(n,): how many tails each (h, r) has."""
        return np.diff(self._limits(self.keys, relations, heads), axis=0)[0]

    def count_heads(self, relations, tails):
        """(n,): how many heads each (r, t) has."""
        return np.diff(self._limits(self.inverse, relations, tails), axis=0)[0]

    def has(self, heads, relations, tails):
        """(n,) bool: which triples are in the index."""
        keys = (np.asarray(relations, np.int64) * self.n_entities + heads) * self.n_entities + tails
        return np.append(self.keys, -1)[np.searchsorted(self.keys, keys)] == keys

    def without(self, other):
        """The index without the triples of `other`."""
        return self._like(self.keys[~np.isin(self.keys, other.keys)])

    def joined(self, other):
        """The triples of either."""
        return self._like(sorted_distinct(np.concatenate((self.keys, other.keys))))

    def _limits(self, keys, relations, entities):
        """(2, n): where the keys of each (relation, entity) begin, and where they end."""
        first = (np.asarray(relations, np.int64) * self.n_entities + entities) * self.n_entities
        return np.stack((np.searchsorted(keys, first), np.searchsorted(keys, first + self.n_entities)))

    def _under(self, keys, relations, entities):
        first, last = self._limits(keys, relations, entities)
        places, _ = spread(first, last - first)
        return np.append(0, np.cumsum(last - first)), (keys[places] % self.n_entities).astype(np.int32)

    def _like(self, keys):
        known = object.__new__(KnownTails)
        known.n_entities, known.keys = self.n_entities, keys
        return known


class KnownAndLoops:
    """The entities that are not candidates of (h, r): its known tails, and h itself where r is irreflexive ((R,)
    bool)."""

    def __init__(self, known, irreflexive):
        self.known, self.irreflexive = known, irreflexive

    def of(self, heads, relations):
        """As `KnownTails.of`."""
        n, (starts, tails) = self.known.n_entities, self.known.of(heads, relations)
        rows = np.flatnonzero(self.irreflexive[relations])
        known = np.repeat(np.arange(len(heads)), np.diff(starts)) * n + tails
        keys = sorted_distinct(np.concatenate((known, rows * n + np.asarray(heads)[rows])))
        return np.searchsorted(keys, np.arange(len(heads) + 1) * n), (keys % n).astype(np.int32)

    def has(self, heads, relations, tails):
        """(n,) bool: which triples are not candidates."""
        loops = self.irreflexive[relations] & (np.asarray(heads) == tails)
        return self.known.has(heads, relations, tails) | loops
