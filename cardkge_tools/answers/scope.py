"""Which (h, r) there are, and what is known of them."""

import functools

import numpy as np

from cardkge import triple_keys
from cardkge_tools.engine.batches import sorted_distinct


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


class KnownTails:
    """An index of triples (n, 3): the tails of each (h, r) and the heads of each (r, t), each once.

    keys (m,) int64: the `triple_keys` of the distinct triples, ascending.
    """

    def __init__(self, triples, n_entities, n_relations):
        self.n_entities = n_entities
        self.keys = sorted_distinct(triple_keys(*np.asarray(triples).T, n_entities, n_relations))

    @functools.cached_property
    def turned(self):
        """(m,) int64: the same triples as keys of (relation, tail, head), ascending."""
        n = self.n_entities
        return np.sort((self.keys // n // n * n + self.keys % n) * n + self.keys // n % n)

    def of(self, heads, relations):
        """(starts (n + 1,), tails): the tails of pair i are tails[starts[i] : starts[i + 1]], ascending."""
        return self._under(self.keys, relations, heads)

    def heads_of(self, relations, tails):
        """(starts (n + 1,), heads): the heads of (relations[i], tails[i]), as in `of`."""
        return self._under(self.turned, relations, tails)

    def count(self, heads, relations):
        """(n,): how many tails each (h, r) has."""
        return np.diff(self._limits(self.keys, relations, heads), axis=0)[0]

    def count_heads(self, relations, tails):
        """(n,): how many heads each (r, t) has."""
        return np.diff(self._limits(self.turned, relations, tails), axis=0)[0]

    def has(self, heads, relations, tails):
        """(n,) bool: which triples are in the index."""
        keys = (np.asarray(relations, np.int64) * self.n_entities + heads) * self.n_entities + tails
        return np.append(self.keys, -1)[np.searchsorted(self.keys, keys)] == keys

    def without(self, other):
        """The same but for the triples of `other`."""
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
    """What is no candidate of (h, r): its known tails, and h itself where r is irreflexive, which (R,) bool says."""

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
        """(n,) bool: which triples are no candidates."""
        loops = self.irreflexive[relations] & (np.asarray(heads) == tails)
        return self.known.has(heads, relations, tails) | loops


def loops_to_leave_out(train, heads, relations, n_relations):
    """(h, r, h), as triples, for the pairs whose relation has no loop in train."""
    has_loop = np.zeros(n_relations, bool)
    has_loop[train[train[:, 0] == train[:, 2], 1]] = True
    without = ~has_loop[relations]
    return np.column_stack((heads, relations, heads))[without]
