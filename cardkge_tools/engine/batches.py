"""The parts of a training step: threads; batches, whose order and draws are seeded by (seed, epoch, step); and the
regulariser's samples for all relations at once, distributed as those of `draw_objects` and `draw_subjects`."""

import collections
import functools
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

import cardkge
import kernels
from cardkge import CardkgeError, batch_limits, bounded_relations, chosen, corruptions, triple_keys
from cardkge_tools.definitions.softmax import queries_of, rows_of, shuffle_queries, step_candidates


class Threads:
    """Runs a function over ranges of work on `count` threads (None: as many as this process may use).

    The ranges do not depend on the number of threads, and no two of them write the same element. BLAS, which computes
    NumPy's matrix products, rounds differently on one thread and on several: for the same bits everywhere set
    OPENBLAS_NUM_THREADS=1 before NumPy is imported, as cli.py does."""

    def __init__(self, count=None):
        self.count = count_cores() if count is None else count
        if self.count < 1:
            raise CardkgeError(f"threads must be at least 1, found {count}")
        self.pool = ThreadPoolExecutor(self.count - 1) if self.count > 1 else None

    def start(self, function, *arguments):
        """Runs function(*arguments) on another thread, if there is one; returns a function that awaits the result."""
        if self.pool:
            return self.pool.submit(function, *arguments).result
        return lambda: function(*arguments)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.pool:
            self.pool.shutdown()

    def run(self, function, total, *arguments, size, beside=()):
        """Calls function(first, last, *arguments) for ranges of range(total) of `size`, the last perhaps shorter.

        beside: functions without arguments, called halfway: earlier, a `start`ed function may hold Python's lock;
        later, a thread would have no other work."""
        tasks = [functools.partial(function, i, min(i + size, total), *arguments) for i in range(0, total, size)]
        tasks = collections.deque(tasks[: len(tasks) // 2] + list(beside) + tasks[len(tasks) // 2 :])

        def work():
            while True:
                try:
                    task = tasks.popleft()
                except IndexError:
                    return
                try:
                    task()
                except BaseException:  # the other threads finish their present task
                    tasks.clear()
                    raise

        others = [self.pool.submit(work) for _ in range(min(self.count, len(tasks)) - 1)] if self.pool else []
        try:
            work()
        finally:
            for other in others:
                other.result()


def count_cores():
    """The processor cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, math.ceil(min(cpu_quota(), cores))))


def cpu_quota(root="/sys/fs/cgroup", own="/proc/self/cgroup"):
    """The number of cores that the control groups of this process (a container's, say) allow; infinity for no limit.

    root: the mount point of the groups; own: the file that names those of this process (cgroups(7), versions 1, 2)."""
    try:
        with open(own, encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return math.inf
    quota = math.inf
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = os.path.join(root, controllers) if controllers else root
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):  # a group gets at most as much as the groups above it
            quota = min(quota, _quota_of(os.path.join(base, *parts[:depth])))
    return quota


def _quota_of(folder):
    """The quota of one control group, of either version."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            words = []
            for name in names:
                with open(os.path.join(folder, name), encoding="ascii") as file:
                    words += file.read().split()
            limit, period = float(words[0]), float(words[1])  # "max" is not a number, and -1 is no limit
        except (OSError, ValueError, IndexError):
            continue
        if limit > 0 and period > 0:
            return limit / period
    return math.inf


class Batches:
    """The batches of a run, each drawn beside the step before it.

    source: `TripleBatches` or `QueryBatches`, whose `steps` is the number of batches of an epoch, order(epoch) the
    order from which its batches are cut, and draw(order, epoch, step) one batch."""

    def __init__(self, source, epochs, threads):
        self.source, self.steps, self.epochs, self.threads = source, source.steps, epochs, threads
        self.order, self.following = None, None

    def draw(self, epoch, step):
        """The batch of this step."""
        if self.order is None or self.order[0] != epoch:
            self.order = epoch, self.source.order(epoch)
        return self.source.draw(self.order[1], epoch, step)

    def take(self, epoch, step):
        """The batch of this step; drawing of the next one begins. Call it for one step after the other."""
        batch = (self.following or self.threads.start(self.draw, epoch, step))()
        after = (epoch, step + 1) if step + 1 < self.steps else (epoch + 1, 0)
        self.following = self.threads.start(self.draw, *after) if after[0] < self.epochs else None
        return batch


# --- the paper's losses: triples, their corruptions, and the regulariser's samples


@dataclass(frozen=True)
class Sample:
    """The regulariser's sample of a step, a row for each of B relations: subjects (B, mu) int32, the first counts[b] of
    each row, then padding; objects (B, omega) int32 with their weights (B, omega) float64, 0 for padding, which is
    last. The subjects are heads and the objects tails; for bounds on the heads of a tail (`inverse`) they swap."""

    relations: np.ndarray
    subjects: np.ndarray
    counts: np.ndarray
    objects: np.ndarray
    weights: np.ndarray
    inverse: bool = False

    @property
    def ends(self):
        """(heads, tails)."""
        return (self.objects, self.subjects) if self.inverse else (self.subjects, self.objects)

    def by_relation(self):
        """[(relation, subjects, objects, weights, inverse)] without padding, as `objective` takes them."""
        rows = zip(self.relations, self.subjects, self.counts, self.objects, self.weights)
        return [(r, heads[:n], drawn[w > 0], w[w > 0], self.inverse) for r, heads, n, drawn, w in rows]


class TripleBatches:
    """Batches (ends (n, 1 + m, 2), relations (n,), [Sample]) of train triples, sorted by relation, with corruptions."""

    def __init__(self, model, settings, bounds, triples):
        self.triples, self.settings, self.sizes = triples, settings, (model.n_entities, model.n_relations)
        self.limits = batch_limits(len(triples), settings)
        self.steps = len(self.limits) - 1
        self.known = np.sort(triple_keys(*triples.T, *self.sizes)) if settings.filter_negatives else None
        self.samplers = []  # (relations, samplers of subjects and objects, inverse), for each bounded direction
        for inverse, relations in enumerate(bounded_relations(bounds) if settings.penalty_weight > 0 else ()):
            if len(relations):
                directed = np.ascontiguousarray(triples[:, ::-1]) if inverse else triples
                self.samplers.append((relations, samplers_of(directed, self.sizes, settings), bool(inverse)))

    def order(self, epoch):
        """The places of an epoch's triples, shuffled."""
        order = np.arange(len(self.triples), dtype=np.int32)
        np.random.default_rng([self.settings.seed, 1, epoch]).shuffle(order)
        return order

    def draw(self, order, epoch, step):
        """The batch of a step."""
        rng = np.random.default_rng([self.settings.seed, 2, epoch, step])
        batch = self.triples[order[self.limits[step] : self.limits[step + 1]]]
        relations = batch[:, 1].astype(np.uint16) if self.sizes[1] < 2**16 else batch[:, 1]  # a radix sort
        batch = batch[np.argsort(relations, kind="stable")]
        ends = corruptions(rng, batch, self.settings.negatives, self.sizes[0], self.known, self.sizes[1])
        return ends, np.ascontiguousarray(batch[:, 1]), self.samples(rng)

    def samples(self, rng):
        """The regulariser's samples for one step: a `Sample` for each bounded direction."""
        return [
            Sample(relations, *subjects.draw(rng, relations), *objects.draw(rng, relations), inverse)
            for relations, (subjects, objects), inverse in self.samplers
        ]


# --- softmax: queries, and the candidates that answer them


@dataclass(frozen=True)
class Queries:
    """Rows of scores, sorted by side, relation and given entity, so the rows of one query stand together: given,
    relations (rows of the table), sides (n,) int32, side 1 where the tail is open. The answers of row i, sorted, are
    answers[limits[i] : limits[i + 1]]."""

    given: np.ndarray
    relations: np.ndarray
    sides: np.ndarray
    limits: np.ndarray
    answers: np.ndarray

    def take(self, which):
        """The rows at these places, in this order."""
        lengths = np.diff(self.limits)[which]
        limits = np.append(0, np.cumsum(lengths))
        places = np.arange(limits[-1]) + np.repeat(self.limits[which] - limits[:-1], lengths)
        return Queries(self.given[which], self.relations[which], self.sides[which], limits, self.answers[places])

    def rows(self):
        """(number of answers,): the row of each answer."""
        return np.repeat(np.arange(len(self.given)), np.diff(self.limits))

    def triples(self, n_relations):
        """(triples (x, 3), sides (x,)), one for each answer, as `softmax_objective` takes them."""
        rows = self.rows()
        given, sides = self.given[rows], self.sides[rows]
        ends = [np.where(sides == 1, *pair) for pair in ((given, self.answers), (self.answers, given))]
        # the row r + R of a reciprocal model scores heads of r
        return np.stack([ends[0], self.relations[rows] % n_relations, ends[1]], 1), sides


def group_queries(model, triples, sides):
    """The queries of triples (n, 3) with their head (sides (n,) 0) or tail (1) open, in the rows of `rows_of`."""
    rows, (given, relations, answers, sides) = rows_of(model, triples, sides), queries_of(model, triples, sides)
    order = np.lexsort((answers, rows))
    limits = np.append(0, np.cumsum(np.bincount(rows)))
    first = order[limits[:-1]]
    parts = given[first], relations[first], sides[first]
    return Queries(*(part.astype(np.int32) for part in parts), limits, answers[order].astype(np.int32))


class QueryBatches:
    """Batches (Queries, candidates or None) of the train triples, as `softmax_loop` draws them."""

    def __init__(self, model, settings, triples):
        self.settings, self.n_entities = settings, model.n_entities
        both = np.concatenate((triples, triples))
        self.queries = group_queries(model, both, np.repeat([0, 1], len(triples)))
        self.steps = -(-len(both) // settings.batch_size)

    def order(self, epoch):
        """(order, limits) of `shuffle_queries`."""
        return shuffle_queries(self.settings, epoch, np.diff(self.queries.limits), self.settings.batch_size)

    def draw(self, order, epoch, step):
        """The batch of a step."""
        places, limits = order
        batch = self.queries.take(np.sort(places[limits[step] : limits[step + 1]]))
        needed = np.concatenate((batch.given, batch.answers))
        return batch, step_candidates(self.settings, epoch, step, self.n_entities, needed)


class ObjectSampler:
    """Draws the objects over which X_hr is summed, with the distribution of `draw_objects`. A draw takes time that
    grows with the sample, not with N; the memory grows with the triples, not with R x N."""

    def __init__(self, kind, triples, n_entities, n_relations, objects=100, inclusion="frequency"):
        chosen("sampling", kind, cardkge.SAMPLINGS)
        chosen("inclusion", inclusion, cardkge.INCLUSIONS)
        if objects < 1:
            raise CardkgeError(f"objects must be at least 1, found {objects}")
        self.kind, self.inclusion, self.n_entities, self.triples = kind, inclusion, n_entities, triples
        self.omega = objects if kind == "importance" else min(objects, n_entities)
        # (relation, tail) of every train triple as relation * N + tail, sorted; the distinct ones, and how often each
        keys, starts = np.sort(triples[:, 1].astype(np.int64) * n_entities + triples[:, 2]), np.arange(n_relations + 1)
        pairs, counts = np.unique(keys, return_counts=True)
        ends = (keys, -1), (pairs, -1), (counts, 0)
        self.keys, self.pairs, self.counts = (np.append(part, end) for part, end in ends)
        self.triple_starts, self.starts = (np.searchsorted(part, starts * n_entities) for part in (keys, pairs))
        self.marks = np.zeros(n_entities, np.uint8)
        self.tables = {}

    def probabilities(self, relation):
        """(N,) float64: `object_probabilities` of this sampler."""
        sizes = self.n_entities, self.omega
        return cardkge.object_probabilities(self.kind, self.triples, relation, *sizes, self.inclusion)

    def draw(self, rng, relations):
        """One sample for each relation: (objects (B, width) int32, weights (B, width) float64). A shorter sample is
        padded with object 0 at weight 0. rng a numpy Generator, relations (B,) ids."""
        relations = np.asarray(relations, np.int64)
        n, size = self.n_entities, len(relations)
        if self.kind == "exact":
            return np.tile(np.arange(n, dtype=np.int32), (size, 1)), np.ones((size, n))
        if self.kind == "uniform":
            objects = distinct(rng, np.full(size, n), np.full(size, self.omega), self.marks)
            return objects.reshape(size, -1), np.ones((size, self.omega))
        if self.kind == "importance":
            return self._draw_importance(rng, relations[:, None])
        return self._draw_bernoulli(rng, relations)

    def _draw_importance(self, rng, relations):
        """Importance sampling of all relations at once. q_r is a mixture: one of N entities, or the tail of one of the
        n_r train triples of r, each with equal chance."""
        n, before = self.n_entities, self.triple_starts[relations]
        n_r = self.triple_starts[relations + 1] - before
        pick = rng.integers(0, n + n_r, size=(len(relations), self.omega))
        keys = np.where(pick >= n, self.keys[np.maximum(before + pick - n, 0)], relations * n + pick)
        pair = np.searchsorted(self.pairs[:-1], keys)  # the place of -1, for a key beyond all pairs
        frequency = 1 + self.counts[pair] * (self.pairs[pair] == keys)
        return (keys - relations * n).astype(np.int32), (n + n_r) / (self.omega * frequency)

    def _bernoulli_table(self, relations):
        """The classes of equal b, relation by relation: first the entities that are not tails of r in train, then its
        tails by count. Columns: b, size, row of the relation, start in `members` (-1 for a first class); then the
        members, and the numbers by which `_draw_bernoulli` finds the i-th entity that is not a tail."""
        key = relations.tobytes()
        if key not in self.tables:
            columns, members, gaps = [], [], []
            for row, r in enumerate(relations):
                part = slice(*self.starts[[r, r + 1]]) if self.inclusion == "frequency" else slice(0)
                tails, counts = self.pairs[part] - r * self.n_entities, self.counts[part]
                values, sizes = np.unique(counts, return_counts=True)
                sizes = np.concatenate(([self.n_entities - len(tails)], sizes))
                b = class_probabilities(np.concatenate(([1.0], 1.0 + values)), self.omega, sizes)
                start = sum(map(len, members)) + np.cumsum(sizes) - sizes - sizes[0]
                start[0] = -1
                columns.append((b, sizes, np.full(len(b), row), start))
                members.append(tails[np.argsort(counts, kind="stable")])
                gaps.append(row * self.n_entities + tails - np.arange(len(tails)))
            gap_starts = np.cumsum([0] + [len(g) for g in gaps])
            members = np.concatenate([*members, [0]])
            table = [np.concatenate(column) for column in zip(*columns)]
            self.tables[key] = (*table, members, np.concatenate(gaps), gap_starts)
        return self.tables[key]

    def _draw_bernoulli(self, rng, relations):
        """Bernoulli sampling of all relations at once."""
        b, sizes, row, start, members, gaps, gap_starts = self._bernoulli_table(relations)
        takes = rng.binomial(sizes, b)  # how many entities of each class; all subsets of that size are equally likely
        draws = distinct(rng, sizes, takes, self.marks)
        part = np.repeat(np.arange(len(b)), takes)
        row, start = row[part], start[part]
        skipped = np.searchsorted(gaps, row * self.n_entities + draws, "right") - gap_starts[row]
        objects = np.where(start < 0, draws + skipped, members[np.maximum(start, 0) + draws * (start >= 0)])
        lengths = np.bincount(row, minlength=len(relations))
        return padded(objects.astype(np.int32), lengths), padded(1 / b[part], lengths)


class SubjectSampler:
    """Draws mu subjects of a relation uniformly without repetition, from the heads of the relation in train
    (pool="relation") or from all entities ("entities")."""

    def __init__(self, pool, triples, n_entities, n_relations, subjects=10):
        chosen("subject_pool", pool, cardkge.POOLS)
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
        """(subjects (B, width) int32, how many of them count (B,)). A smaller pool is drawn whole, and its row is
        padded with its first subject."""
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
    while True:  # the last round caps no further class
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


def distinct(rng, sizes, takes, marks):
    """For each b takes[b] distinct integers below sizes[b], subsets equally likely: int32, one b after the other."""
    draws = np.empty(takes.sum(), np.int32)
    kernels.distinct_draws(rng.random(len(draws)), sizes, takes, marks, draws)
    return draws


def padded(flat, lengths):
    """Rows of the given lengths, one after the other in `flat`, as a matrix padded with zeros (at least 1 wide)."""
    matrix = np.zeros((len(lengths), max(lengths.max(initial=0), 1)), flat.dtype)
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = flat
    return matrix
