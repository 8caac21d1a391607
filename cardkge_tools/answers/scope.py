"""Which (h, r) there are, and what is known of them."""

import numpy as np

from cardkge import triple_keys
from cardkge_tools.engine.draws import sorted_distinct


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
