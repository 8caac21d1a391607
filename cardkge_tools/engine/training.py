"""Training: `algorithm_1` of cardkge.py around the steps of `trainer` or `softmax`, fast, and able to go on."""

import time

import numpy as np

from cardkge import CardkgeError, checked_triples, learning_rate, metrics
from cardkge_tools.definitions.softmax import without_loops
from cardkge_tools.engine.plain import PlainSoftmaxTrainer, PlainTrainer
from cardkge_tools.engine.ranking import rank_triples
from cardkge_tools.engine.softmax import SoftmaxBatches, SoftmaxTrainer
from cardkge_tools.engine.tables import OWN, kind_of
from cardkge_tools.engine.threads import Threads
from cardkge_tools.engine.trainer import Batches, NonFinite, Trainer


def train(run, dataset, threads=None, on_epoch=None, on_step=None, stop=None):
    """Continues a run up to run.settings.epochs (paper, Algorithm 1). Returns "finished", "patience" or "stopped".

    on_epoch(run, record) is called after each epoch, on_step(run, step, steps) after each step; stop() is asked after
    each step, and true ends the call with "stopped": the run then holds what an uninterrupted one would have held
    there. All random numbers are drawn from generators seeded by (seed, epoch, step), so the same settings give the
    same bits, stopped or not, on any number of threads. A record, kept in run.history too, has the epoch, the means
    over its steps of objective, loss, l2 and penalty, under softmax n3 (each a sum over the step's examples or pairs),
    and the seconds. With settings.validate_every the filtered metrics on valid are taken every so many epochs and the
    parameters with the best hits@10 (then MRR), under softmax the best MRR (then hits@10), are kept;
    `patience` validations without a better one end the training. Raises NonFinite, which names epoch and step; run then
    counts the steps before that one.
    """
    settings = run.settings
    check_sizes(run, dataset)
    with Threads(threads) as threads:
        softmax = settings.loss == "softmax"
        triples = np.asarray(dataset.train)
        kinds = (PlainTrainer, PlainSoftmaxTrainer) if kind_of(run.model) is OWN else (Trainer, SoftmaxTrainer)
        trainer = kinds[softmax](run.model, run.accumulators, settings, run.bounds, triples, threads)
        batches = (SoftmaxBatches if softmax else Batches)(trainer, triples)
        while run.epoch < settings.epochs:
            if out_of_patience(run):
                return "patience"
            began = time.perf_counter()
            while run.step < batches.steps:
                rate = learning_rate(settings, run.epoch, run.step / batches.steps)
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


def check_sizes(run, dataset):
    """CardkgeError unless the data has the run's numbers of entities and relations, and ids within them."""
    sizes = dataset.n_entities, dataset.n_relations
    if sizes != (run.model.n_entities, run.model.n_relations):
        raise CardkgeError(
            f"the data has {sizes[0]} entities and {sizes[1]} relations, the run {run.model.n_entities} and"
            f" {run.model.n_relations}: train on the data that the run was made for"
        )
    checked_triples(dataset.train, *sizes)


def take_step(run, trainer, batch, rate):
    """One step of the run, its sums added to run.partial; NonFinite that says where, and what to do."""
    settings = run.settings
    try:
        sums = trainer.step(*batch, rate)
    except NonFinite as error:
        hint = " or --project unit" if settings.project == "none" else ""
        hint = ", --relation-weight" * bool(settings.relation_weight) + hint
        raise NonFinite(
            f"{error} at epoch {run.epoch + 1}, step {run.step + 1}; use a smaller learning rate (it is"
            f" {settings.learning_rate:g}), l2 or lambda{hint}"
        ) from None
    for name, value in sums.items():
        run.partial[name] = run.partial.get(name, 0.0) + value
    run.step += 1


def validate(run, dataset, threads):
    """After an epoch: (what a record of it says of valid, the best state so far); nothing new where no validation is
    due."""
    epoch, best = run.epoch + 1, run.best
    if not run.settings.validate_every or epoch % run.settings.validate_every:
        return {}, best
    loopless = without_loops(dataset.train, dataset.n_relations) if run.settings.no_loops else None
    ranks = rank_triples(run.model, dataset.valid, dataset.known, threads=threads, loopless=loopless)
    found, order = metrics(ranks["filtered"]), best_first(run.settings.loss)
    if best is None or order(found) > order(best):
        params = {name: array.copy() for name, array in run.model.params.items()}
        best = {"epoch": epoch, "mrr": found["mrr"], "hits@10": found["hits@10"], "params": params}
    return {"valid_mrr": found["mrr"], "valid_hits@10": found["hits@10"]}, best


def best_first(loss):
    """By what validations are compared: a function from metrics to what is larger for the better ones."""
    names = ("mrr", "hits@10") if loss == "softmax" else ("hits@10", "mrr")
    return lambda found: tuple(found[name] for name in names)


def out_of_patience(run):
    """Whether the last `patience` validations all failed to improve on the best one."""
    settings = run.settings
    if not (settings.patience and settings.validate_every and run.best):
        return False
    return run.epoch - run.best["epoch"] >= settings.patience * settings.validate_every
