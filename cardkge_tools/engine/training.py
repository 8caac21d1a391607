"""Training: one step, the gradients of a batch and an update of the parameters; and around it `algorithm_1` of
cardkge.py, fast, and able to resume."""

import math
import time

import numpy as np

import cardkge
import kernels
from cardkge import CardkgeError, checked_triples, chosen
from cardkge_tools.definitions.softmax import without_loops
from cardkge_tools.engine.batches import Batches, QueryBatches, Threads, TripleBatches
from cardkge_tools.engine.gradients import OWN, PlainGradients, SampledGradients, kind_of
from cardkge_tools.engine.ranking import Candidates, rank_triples
from cardkge_tools.engine.softmax import SoftmaxGradients


class NonFinite(CardkgeError):
    """The objective or a parameter became NaN or infinite."""


class Trainer:
    """One training step at a time: the gradients of a batch, then one update.

    settings.loss and the model's class choose the gradients. `TripleBatches` draws the batches of the paper's losses,
    `QueryBatches` those of softmax."""

    def __init__(self, model, accumulators, settings, bounds, triples, threads):
        self.model, self.accumulators, self.settings, self.threads = model, accumulators, settings, threads
        self.bounds = cardkge.training_bounds(bounds, settings, model.n_relations)
        loopless = without_loops(triples, model.n_relations) if settings.no_loops else None
        if kind_of(model) is OWN:
            self.gradients = PlainGradients(model, settings, self.bounds, loopless)
        elif settings.loss == "softmax":
            self.gradients = SoftmaxGradients(model, settings, self.bounds, loopless, threads)
        else:
            self.gradients = SampledGradients(model, settings, self.bounds, threads)

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # a value that is not finite raises NonFinite
    def step(self, batch, rate=None):
        """One update of the parameters, in place, at this learning rate (None: settings.learning_rate).

        Returns the objective and its parts, the dict of `objective` or `softmax_objective`. Raises NonFinite, and
        changes no parameter, if the objective or a parameter after the step is not finite."""
        parts, gradients = self.gradients(batch)
        if not math.isfinite(parts["objective"]):
            raise NonFinite(f"the objective is {parts['objective']}")
        self.update(gradients, self.settings.learning_rate if rate is None else rate)
        return parts

    def update(self, gradients, rate):
        """One step of the optimiser, and the projection, on the rows that have a gradient: name -> `Rows`."""
        settings, own, taken = self.settings, kind_of(self.model) is OWN, []
        adagrad = chosen("optimizer", settings.optimizer, cardkge.OPTIMIZERS) is cardkge.adagrad_step
        # AdaGrad moves a number by at most the rate if the gradient is finite. Other steps may have to be undone.
        largest = max(rate, settings.l2, settings.penalty_weight)
        if own or not adagrad or largest > np.finfo(self.model.dtype).max ** 0.25:
            for name, rows in gradients.items():
                for arrays in (self.model.params, self.accumulators) if adagrad else (self.model.params,):
                    table = np.atleast_2d(arrays[name])
                    taken.append((table, rows.ids, table[rows.ids]))
        if not (self.update_by_definition if own else self.update_rows)(gradients, rate, adagrad):
            for table, ids, rows in taken:
                table[ids] = rows
            raise NonFinite("a parameter is not finite")

    def update_by_definition(self, gradients, rate, adagrad):
        """`update_params`; returns whether all parameters are finite."""
        params = self.model.params
        dense = {name: rows.values.reshape(params[name].shape) for name, rows in gradients.items()}
        cardkge.update_params(self.model, self.accumulators, dense, self.settings, rate)
        return all(np.isfinite(array).all() for array in params.values())

    def update_rows(self, gradients, rate, adagrad):
        """The same by `kernels.update_rows`; returns whether all rows are finite."""
        dtype, faults = self.model.dtype, np.zeros(1, np.uint8)
        unit = chosen("project", self.settings.project, cardkge.PROJECTIONS) is cardkge.project_rows
        for name, rows in gradients.items():
            table = np.atleast_2d(self.model.params[name])  # `output` is one row
            accumulator = np.atleast_2d(self.accumulators[name]) if adagrad else table  # SGD's kernel leaves it alone
            self.threads.run(
                kernels.update_rows, len(rows.ids), table, accumulator, rows.ids, rows.values, rows.l2.astype(dtype),
                dtype.type(rate), adagrad, unit and name == "entity", faults, size=max(512, -(-len(rows.ids) // 32)),
            )  # fmt: skip
        return not faults[0]


def train(run, dataset, threads=None, on_epoch=None, on_step=None, stop=None):
    """Continues a run up to run.settings.epochs (paper, Algorithm 1). Returns "finished", "patience" or "stopped".

    on_epoch(run, record) is called after each epoch, on_step(run, step, steps) after each step. stop() is called after
    each step, and true ends the call with "stopped": the run then has the state that an uninterrupted one has at that
    step. Every generator is seeded by (seed, epoch, step), so the same settings give the same bits, stopped or not, on
    any number of threads. A record, kept in run.history too, has the epoch, the means over its steps of objective,
    loss, l2, penalty and, under softmax, n3 (each a sum over the step's examples or pairs), and the seconds. Every
    settings.validate_every epochs the filtered metrics on valid are computed; the parameters with the best hits@10
    (then MRR), under softmax the best MRR (then hits@10), are kept, and training ends after `patience` validations
    without a better one. Raises NonFinite, which names epoch and step; run.step then counts the steps before it."""
    settings = run.settings
    check_sizes(run, dataset)
    with Threads(threads) as threads:
        triples = np.asarray(dataset.train)
        trainer = Trainer(run.model, run.accumulators, settings, run.bounds, triples, threads)
        batches = Batches(batches_of(trainer, triples), settings.epochs, threads)
        while run.epoch < settings.epochs:
            if out_of_patience(run):
                return "patience"
            began = time.perf_counter()
            while run.step < batches.steps:
                rate = cardkge.learning_rate(settings, run.epoch, run.step / batches.steps)
                take_step(run, trainer, batches.take(run.epoch, run.step), rate)
                if on_step:
                    on_step(run, run.step, batches.steps)
                if run.step < batches.steps and stop and stop():
                    run.partial["seconds"] = run.partial.get("seconds", 0.0) + time.perf_counter() - began
                    return "stopped"
            seconds = run.partial.get("seconds", 0.0) + time.perf_counter() - began
            sums = {name: value / batches.steps for name, value in run.partial.items() if name != "seconds"}
            record = {"epoch": run.epoch + 1} | sums | {"seconds": seconds}
            found, best = validate(run, dataset, threads)
            run.epoch, run.step, run.partial, run.best = run.epoch + 1, 0, {}, best
            run.history.append(record | found)
            if on_epoch:
                on_epoch(run, record | found)
            if run.epoch < settings.epochs and stop and stop():
                return "stopped"
    return "patience" if out_of_patience(run) and run.epoch < settings.epochs else "finished"


def batches_of(trainer, triples):
    """The source of the batches that a `Trainer` takes, of train triples (n, 3)."""
    if trainer.settings.loss == "softmax":
        return QueryBatches(trainer.model, trainer.settings, triples)
    return TripleBatches(trainer.model, trainer.settings, trainer.bounds, triples)


def check_sizes(run, dataset):
    """CardkgeError unless the data has as many entities and relations as the run, and its ids are among them."""
    sizes = dataset.n_entities, dataset.n_relations
    if sizes != (run.model.n_entities, run.model.n_relations):
        found = f"the data has {sizes[0]} entities and {sizes[1]} relations"
        expected = f"the run {run.model.n_entities} and {run.model.n_relations}"
        raise CardkgeError(f"{found}, {expected}: train on the data of the run")
    checked_triples(dataset.train, *sizes)


def take_step(run, trainer, batch, rate):
    """One step of the run, which adds its sums to run.partial; NonFinite names the step and the remedy."""
    settings = run.settings
    try:
        parts = trainer.step(batch, rate)
    except NonFinite as error:
        hint = " or --project unit" if settings.project == "none" else ""
        hint = ", --relation-weight" * bool(settings.relation_weight) + hint
        where = f"{error} at epoch {run.epoch + 1}, step {run.step + 1}"
        smaller = f"a smaller learning rate (it is {settings.learning_rate:g}), l2 or lambda"
        raise NonFinite(f"{where}; use {smaller}{hint}") from None
    for name, value in parts.items():
        run.partial[name] = run.partial.get(name, 0.0) + value
    run.step += 1


def validate(run, dataset, threads):
    """After an epoch: (the metrics on valid for its record, none if no validation is due; the best state so far)."""
    epoch, best = run.epoch + 1, run.best
    if not run.settings.validate_every or epoch % run.settings.validate_every:
        return {}, best
    loopless = without_loops(dataset.train, dataset.n_relations) if run.settings.no_loops else None
    ranks = rank_triples(run.model, dataset.valid, dataset.known, threads=threads, candidates=Candidates(loopless))
    found, order = cardkge.metrics(ranks["filtered"]), best_first(run.settings.loss)
    if best is None or order(found) > order(best):
        params = {name: array.copy() for name, array in run.model.params.items()}
        best = {"epoch": epoch, "mrr": found["mrr"], "hits@10": found["hits@10"], "params": params}
    return {"valid_mrr": found["mrr"], "valid_hits@10": found["hits@10"]}, best


def best_first(loss):
    """The order of validations: a function from metrics to a tuple, larger for better ones."""
    names = ("mrr", "hits@10") if loss == "softmax" else ("hits@10", "mrr")
    return lambda found: tuple(found[name] for name in names)


def out_of_patience(run):
    """Whether the last `patience` validations all failed to improve on the best one."""
    settings = run.settings
    if not (settings.patience and settings.validate_every and run.best):
        return False
    return run.epoch - run.best["epoch"] >= settings.patience * settings.validate_every
