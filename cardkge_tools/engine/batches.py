"""What the steps of a run are made of: its batches, in an order and with draws seeded by (seed, epoch, step)."""

from dataclasses import dataclass

import numpy as np

from cardkge import batch_limits, bounded_relations, corruptions, triple_keys
from cardkge_tools.definitions.softmax import group_keys, queries_of, shuffle_queries, step_candidates
from cardkge_tools.engine.draws import samplers_of


class Batches:
    """The batches of a run, each drawn beside the step before it.

    source: `TripleBatches` or `QueryBatches`, whose `steps` is the number of batches of an epoch, order(epoch) what an
    epoch's batches are cut from, and draw(order, epoch, step) one batch.
    """

    def __init__(self, source, epochs, threads):
        self.source, self.steps, self.epochs, self.threads = source, source.steps, epochs, threads
        self.order, self.following = None, None

    def draw(self, epoch, step):
        """The batch of this step."""
        if self.order is None or self.order[0] != epoch:
            self.order = epoch, self.source.order(epoch)
        return self.source.draw(self.order[1], epoch, step)

    def take(self, epoch, step):
        """The batch of this step; the next one is begun beside it. Call it for one step after the other."""
        batch = (self.following or self.threads.start(self.draw, epoch, step))()
        after = (epoch, step + 1) if step + 1 < self.steps else (epoch + 1, 0)
        self.following = self.threads.start(self.draw, *after) if after[0] < self.epochs else None
        return batch


# ------------------------------------------------------------------------------------------------------------------
# The paper's losses: triples, their corruptions, and the regulariser's samples
# ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """The regulariser's sample of a step, a row for each of B relations: subjects (B, mu) int32, the first counts (B,)
    of them; objects (B, omega) int32 with their weights (B, omega) float64, those of weight 0 last, as padding. The
    subjects are heads and the objects tails, or, of bounds on the heads of tails (`inverse`), the other way round."""

    relations: np.ndarray
    subjects: np.ndarray
    counts: np.ndarray
    objects: np.ndarray
    weights: np.ndarray
    inverse: bool = False

    @property
    def ends(self):
        """(heads, tails): the subjects and the objects, in the order of a triple."""
        return (self.objects, self.subjects) if self.inverse else (self.subjects, self.objects)

    def by_relation(self):
        """A list of (relation, subjects, objects, weights, inverse), without padding, as `objective` takes them."""
        rows = zip(self.relations, self.subjects, self.counts, self.objects, self.weights)
        return [(r, heads[:n], drawn[w > 0], w[w > 0], self.inverse) for r, heads, n, drawn, w in rows]


class TripleBatches:
    """Batches (ends (n, 1 + m, 2), relations (n,), [Sample]) of train triples, sorted by relation, with corruptions."""

    def __init__(self, model, settings, bounds, triples):
        self.triples, self.settings, self.sizes = triples, settings, (model.n_entities, model.n_relations)
        self.limits = batch_limits(len(triples), settings)
        self.steps = len(self.limits) - 1
        self.known = np.sort(triple_keys(*triples.T, *self.sizes)) if settings.filter_negatives else None
        self.samplers = []  # (relations, samplers of subjects and objects, inverse), for each direction that is bounded
        for inverse, relations in enumerate(bounded_relations(bounds) if settings.penalty_weight > 0 else ()):
            if len(relations):
                turned = np.ascontiguousarray(triples[:, ::-1]) if inverse else triples
                self.samplers.append((relations, samplers_of(turned, self.sizes, settings), bool(inverse)))

    def order(self, epoch):
        """The triples of an epoch, shuffled: their places."""
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
        """The regulariser's samples for one step: a list of at most two, for the tails of heads and for the heads of
        tails."""
        found = []
        for relations, (subjects, objects), inverse in self.samplers:
            found.append(Sample(relations, *subjects.draw(rng, relations), *objects.draw(rng, relations), inverse))
        return found


# ------------------------------------------------------------------------------------------------------------------
# Softmax: queries, and the candidates that answer them
# ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Queries:
    """Distinct queries with their answers, sorted by side, relation and given entity: given, relations (rows of the
    table), sides (n,) int32, 1 where the tail is open; the answers of query i, sorted, are answers[limits[i] :
    limits[i + 1]]."""

    given: np.ndarray
    relations: np.ndarray
    sides: np.ndarray
    limits: np.ndarray
    answers: np.ndarray

    def take(self, which):
        """The queries with these numbers, in this order."""
        lengths = np.diff(self.limits)[which]
        limits = np.append(0, np.cumsum(lengths))
        places = np.arange(limits[-1]) + np.repeat(self.limits[which] - limits[:-1], lengths)
        return Queries(self.given[which], self.relations[which], self.sides[which], limits, self.answers[places])

    def rows(self):
        """(number of answers,): the query of each answer."""
        return np.repeat(np.arange(len(self.given)), np.diff(self.limits))

    def triples(self, n_relations):
        """(triples (x, 3), sides (x,)), one for each answer, as `softmax_objective` takes them."""
        rows = self.rows()
        given, sides = self.given[rows], self.sides[rows]
        ends = [np.where(sides == 1, *pair) for pair in ((given, self.answers), (self.answers, given))]
        # of a reciprocal model the row r + R asks for heads of r
        return np.stack([ends[0], self.relations[rows] % n_relations, ends[1]], 1), sides


def group_queries(model, triples, sides):
    """The queries of triples (n, 3) with their head (sides (n,) 0) or tail (1) open, those with the same given entity,
    relation and side as one."""
    keys = group_keys(model, triples, sides)
    given, relations, answers, sides = queries_of(model, triples, sides)
    order = np.lexsort((answers, keys))
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    first = order[starts]
    limits = np.append(starts, len(keys)).astype(np.int64)
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
