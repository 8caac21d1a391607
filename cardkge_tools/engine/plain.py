"""Steps of a model that the kernels do not know: the definitions of cardkge.py as they are written, used as the fast
trainers are."""

import functools
import math

import numpy as np

from cardkge import bounded_relations, objective, training_bounds, update_params
from cardkge_tools.definitions.softmax import softmax_objective, without_loops
from cardkge_tools.engine.draws import samplers_of, samples_of
from cardkge_tools.engine.trainer import NonFinite


class PlainTrainer:
    """One step at a time, with the batches of `Batches`: a run is `algorithm_1` with these, to the bit."""

    def __init__(self, model, accumulators, settings, bounds, triples, threads):
        self.model, self.settings, self.threads, self.accumulators = model, settings, threads, accumulators
        self.bounds, self.triples = training_bounds(bounds, settings, model.n_relations), triples
        self.bounded = bounded_relations(self.bounds) if settings.penalty_weight > 0 else ([], [])
        self.regularised = any(len(relations) for relations in self.bounded)

    @functools.cached_property
    def samplers(self):
        """Of subjects and objects, for bounds of the tails of heads and of the heads of tails."""
        sizes = self.model.n_entities, self.model.n_relations
        return [samplers_of(ends, sizes, self.settings) for ends in (self.triples, self.triples[:, ::-1])]

    def draw(self, rng):
        """The regulariser's sample for one step, as `objective` takes it."""
        drawn = enumerate(zip(self.bounded, self.samplers))
        return [one for i, (ids, samplers) in drawn if len(ids) for one in samples_of(samplers, rng, ids, bool(i))]

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def step(self, ends, relations, samples=None, learning_rate=None):
        """As `Trainer.step`, with the samples of `draw`, or None."""
        relations = np.repeat(relations[:, None], ends.shape[1], axis=1)
        batch = ends[..., 0], relations, ends[..., 1]
        return self.update(*objective(self.model, *batch, self.settings, self.bounds, samples or ()), learning_rate)

    def update(self, sums, gradients, rate):
        """The step itself; returns the sums. NonFinite, with nothing changed, if one of them or a parameter after the
        step is not finite."""
        if not math.isfinite(sums["objective"]):
            raise NonFinite(f"the objective is {sums['objective']}")
        changed = self.model.params, self.accumulators
        before = [{name: array.copy() for name, array in part.items()} for part in changed]
        rate = self.settings.learning_rate if rate is None else rate
        update_params(self.model, self.accumulators, gradients, self.settings, rate)
        if not all(np.isfinite(array).all() for array in self.model.params.values()):
            for part, kept in zip(changed, before):
                for name, array in kept.items():
                    part[name][...] = array
            raise NonFinite("a parameter is no longer finite")
        return sums


class PlainSoftmaxTrainer(PlainTrainer):
    """The same with the batches of `SoftmaxBatches`: `softmax_objective`, a query at a time."""

    def __init__(self, model, accumulators, settings, bounds, triples, threads):
        super().__init__(model, accumulators, settings, bounds, triples, threads)
        self.loopless = without_loops(triples, model.n_relations) if settings.no_loops else None

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def step(self, queries, candidates=None, learning_rate=None):
        """As `SoftmaxTrainer.step`."""
        counts = np.diff(queries.limits)
        given, relations, sides = (np.repeat(x, counts) for x in (queries.given, queries.relations, queries.sides))
        relations = relations % self.model.n_relations  # of a reciprocal model the row r + R asks for heads of r
        ends = (queries.answers, given), (given, queries.answers)
        heads, tails = (np.where(sides == 1, tail_open, head_open) for head_open, tail_open in zip(*ends))
        batch = np.stack([heads, relations, tails], 1), sides, self.settings, self.bounds, self.loopless, candidates
        return self.update(*softmax_objective(self.model, *batch), learning_rate)
