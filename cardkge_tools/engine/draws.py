"""Samples as `draw_objects` and `draw_subjects` of cardkge.py draw them, of the same distribution, for all relations of
a step at once."""

import numpy as np

import kernels
from cardkge import INCLUSIONS, POOLS, SAMPLINGS, CardkgeError, chosen, object_probabilities


class ObjectSampler:
    """Draws the objects over which X_hr is summed, as `draw_objects` does: the same in distribution.

    The work of a draw grows with the sample, not with N, and the memory with the triples, not with R x N.
    """

    def __init__(self, kind, triples, n_entities, n_relations, objects=100, inclusion="frequency"):
        chosen("sampling", kind, SAMPLINGS)
        chosen("inclusion", inclusion, INCLUSIONS)
        if objects < 1:
            raise CardkgeError(f"objects must be at least 1, found {objects}")
        self.kind, self.inclusion, self.n_entities, self.triples = kind, inclusion, n_entities, triples
        self.omega = objects if kind == "importance" else min(objects, n_entities)
        # the distinct (relation, tail) pairs of train as relation * N + tail, sorted, and how often each stands there
        keys = triples[:, 1].astype(np.int64) * n_entities + triples[:, 2]
        pairs, counts = np.unique(keys, return_counts=True)
        self.pairs, self.counts = np.append(pairs, -1), np.append(counts, 0)  # place -1 is none of them
        self.starts = np.searchsorted(pairs, np.arange(n_relations + 1) * n_entities)
        self.triples_before = np.cumsum(self.counts) - self.counts
        self.marks = np.zeros(n_entities, np.uint8)
        self.tables = {}

    def _tails(self, relation):
        """The distinct tails of the relation in train, sorted, and their counts."""
        part = slice(self.starts[relation], self.starts[relation + 1])
        return self.pairs[part] - relation * self.n_entities, self.counts[part]

    def probabilities(self, relation):
        """(N,) float64: `object_probabilities` of this sampler."""
        sizes = self.n_entities, self.omega
        return object_probabilities(self.kind, self.triples, relation, *sizes, self.inclusion)

    def draw(self, rng, relations):
        """One sample for each relation: (objects (B, width) int32, weights (B, width) float64). A sample smaller than
        the widest is filled up with object 0 at weight 0. rng a numpy Generator, relations (B,) ids."""
        relations = np.asarray(relations, np.int64)
        n, size = self.n_entities, len(relations)
        if self.kind == "exact":
            return np.tile(np.arange(n, dtype=np.int32), (size, 1)), np.ones((size, n))
        if self.kind == "uniform":
            takes = np.full(size, self.omega)
            objects = distinct(rng, np.full(size, n), takes, self.marks)
            return objects.reshape(size, -1), np.ones((size, self.omega))
        if self.kind == "importance":
            return self._draw_importance(rng, relations[:, None])
        return self._draw_bernoulli(rng, relations)

    def _draw_importance(self, rng, relations):
        """Importance sampling of all relations at once."""
        # q_r is a mixture: one of N entities, or the tail of one of the n_r train triples of r, each with equal chance
        n = self.n_entities
        before = self.triples_before[self.starts[relations]]
        n_r = self.triples_before[self.starts[relations + 1]] - before
        pick = rng.integers(0, n + n_r, size=(len(relations), self.omega))
        from_train, parts = pick >= n, (self.starts, np.broadcast_to(relations, pick.shape))
        pair = np.where(
            from_train,
            last_at_most(self.triples_before, *parts, before + pick - n),
            last_at_most(self.pairs, *parts, relations * n + pick),
        )
        keys = np.where(from_train, self.pairs[pair], relations * n + pick)
        frequency = 1 + self.counts[pair] * (self.pairs[pair] == keys)
        return (keys - relations * n).astype(np.int32), (n + n_r) / (self.omega * frequency)

    def _bernoulli_table(self, relations):
        """The classes of equal b, relation by relation: first the entities that are not tails of r in train, then its
        tails by count. Columns: b, size, row of the relation, start in `members` (-1 for a first class); then the
        members, and what `_draw_bernoulli` needs to find the i-th entity that is not a tail."""
        key = relations.tobytes()
        if key not in self.tables:
            columns, members, gaps = [], [], []
            for row, r in enumerate(relations):
                tails, counts = self._tails(r)
                if self.inclusion == "uniform":
                    tails, counts = tails[:0], counts[:0]
                values, sizes = np.unique(counts, return_counts=True)
                sizes = np.concatenate(([self.n_entities - len(tails)], sizes))
                b = class_probabilities(np.concatenate(([1.0], 1.0 + values)), self.omega, sizes)
                start = sum(map(len, members)) + np.cumsum(sizes) - sizes - sizes[0]
                start[0] = -1
                columns.append((b, sizes, np.full(len(b), row), start))
                members.append(tails[np.argsort(counts, kind="stable")])
                gaps.append(tails - np.arange(len(tails)))
            gap_starts = np.cumsum([0] + [len(g) for g in gaps])
            members = np.concatenate([*members, [0]])
            table = [np.concatenate(column) for column in zip(*columns)]
            self.tables[key] = (*table, members, np.concatenate(gaps), gap_starts)
        return self.tables[key]

    def _draw_bernoulli(self, rng, relations):
        """Bernoulli sampling of all relations at once: how many of a class of equal b are in a sample is binomial, and
        every subset of that size is as likely."""
        b, sizes, row, start, members, gaps, gap_starts = self._bernoulli_table(relations)
        takes = rng.binomial(sizes, b)  # how many of each class; every subset of that size is as likely
        draws = distinct(rng, sizes, takes, self.marks)
        part = np.repeat(np.arange(len(b)), takes)
        row, start = row[part], start[part]
        skipped = last_at_most(gaps, gap_starts, row, draws) + 1 - gap_starts[row]
        objects = np.where(start < 0, draws + skipped, members[np.maximum(start, 0) + draws * (start >= 0)])
        lengths = np.bincount(row, minlength=len(relations))
        return padded(objects.astype(np.int32), lengths), padded(1 / b[part], lengths)


class SubjectSampler:
    """Draws mu subjects of a relation uniformly without repetition, from the heads of the relation in train
    (pool="relation") or from all entities ("entities")."""

    def __init__(self, pool, triples, n_entities, n_relations, subjects=10):
        chosen("subject_pool", pool, POOLS)
        if subjects < 1:
            raise CardkgeError(f"subjects must be at least 1, found {subjects}")
        self.mu = subjects
        if pool == "relation":
            pairs = sorted_distinct(triples[:, 1].astype(np.int64) * n_entities + triples[:, 0])
            self.heads = pairs % n_entities
            self.starts = np.searchsorted(pairs, np.arange(n_relations + 1) * n_entities)
            self.sizes = np.diff(self.starts)
        else:
            self.heads = np.arange(n_entities)
            self.starts = np.zeros(n_relations, int)
            self.sizes = np.full(n_relations, n_entities)
        self.marks = np.zeros(n_entities, np.uint8)

    def draw(self, rng, relations):
        """(subjects (B, width) int32, how many of them count (B,)). A smaller pool is drawn whole, and its row
        filled up with repetitions of its first subject."""
        takes = np.minimum(self.sizes[relations], self.mu)
        draws = distinct(rng, self.sizes[relations], takes, self.marks)
        subjects = self.heads[np.repeat(self.starts[relations], takes) + draws]
        subjects = padded(subjects.astype(np.int32), takes)
        counted = np.arange(subjects.shape[1]) < takes[:, None]
        return np.where(counted, subjects, subjects[:, :1]), takes


def samplers_of(triples, sizes, settings):
    """Samplers of subjects, the heads, and of objects, the tails of these triples, by the settings; sizes (N, R)."""
    return (
        SubjectSampler(settings.subject_pool, triples, *sizes, settings.subjects),
        ObjectSampler(settings.sampling, triples, *sizes, settings.objects, settings.inclusion),
    )


def class_probabilities(frequency, omega, sizes):
    """`cardkge.inclusion_probabilities` of classes of entities, `sizes` of them with each frequency: (n,) float64."""
    capped = np.zeros(len(frequency), bool)
    while True:  # a round that caps no further class is the last
        total = (sizes * frequency)[~capped].sum()
        c = (omega - sizes[capped].sum()) / total if total else 0.0
        more = ~capped & (c * frequency > 1)
        if not more.any():
            return np.where(capped, 1.0, c * frequency)
        capped |= more


def sorted_distinct(keys):
    """The distinct integers of a flat array, sorted (np.unique, without counts, is many times slower on int64 keys)."""
    keys = np.sort(keys)
    return keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys


def last_at_most(table, limits, parts, keys):
    """For each key the last place of table[limits[part] : limits[part + 1]], which is sorted, that holds no more than
    the key; limits[part] - 1 if there is none. Ids of parts and keys of one shape, which is the result's too."""
    places = np.empty(keys.shape, np.int64)
    kernels.last_at_most(table, limits, parts.ravel(), keys.ravel(), places.reshape(-1))
    return places


def distinct(rng, sizes, takes, marks):
    """For each b takes[b] distinct integers below sizes[b], every subset as likely: flat int32, one b after the
    other."""
    draws = np.empty(takes.sum(), np.int32)
    kernels.distinct_draws(rng.random(len(draws)), sizes, takes, marks, draws)
    return draws


def padded(flat, lengths):
    """Rows of the given lengths, one after the other in `flat`, as a matrix filled up with zeros (at least 1 wide)."""
    matrix = np.zeros((len(lengths), max(lengths.max(initial=0), 1)), flat.dtype)
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = flat
    return matrix
