"""PyKEEN on the CPU, set up to do the work of cardkge's recipe: the peer of `compare.py`. Needs the `peers` extra.

The same triples, batch size, number of negatives, loss (softplus, summed) and AdaGrad (rate 0.1, accumulators from 0.1,
torch's fused form), on all cores, without regulariser. Where the two differ, PyKEEN does less: it has no unit
projection here (its own, of DistMult, treats all N rows after each step, so it is switched off), and its ER-MLP is used
as it is, with ReLU, which is cheaper than tanh. PyKEEN's gradients and AdaGrad are dense: each step passes over all
rows.
"""

import logging
import time

import numpy as np

for _name in ("pykeen", "torch_max_mem"):  # they warn that this is not a GPU, and of seeds
    logging.getLogger(_name).setLevel(logging.ERROR)
try:
    import pykeen
    import torch
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.losses import CrossEntropyLoss, SoftplusLoss
    from pykeen.models import ERMLP, ComplEx, DistMult
    from pykeen.training import LCWATrainingLoop, SLCWATrainingLoop
    from pykeen.training.callbacks import TrainingCallback
    from pykeen.triples import CoreTriplesFactory
except ImportError as error:
    raise ImportError(f"{error}; install the `peers` extra: pip install .[peers]") from error


def versions():
    return {"torch": torch.__version__, "pykeen": pykeen.get_version()}


def tensor(triples):
    return torch.as_tensor(np.asarray(triples, np.int64))


def softmax_step(model, batch, settings, threads):
    """A plain step of softmax over all entities for ComplEx with reciprocal relations and N3, row by row of a batch of
    `Queries` with one answer each: dense gradients, cross-entropy, torch's fused AdaGrad. Returns a function."""
    torch.set_num_threads(threads)
    entity, relation = (torch.tensor(model.params[name]).requires_grad_() for name in ("entity", "relation"))
    optimizer = torch.optim.Adagrad([entity, relation], lr=settings.learning_rate, fused=True)
    given, relations, answers = (tensor(part) for part in (batch.given, batch.relations, batch.answers))

    def step():
        torch.set_num_threads(threads)
        h, r, t = entity[given], relation[relations], entity[answers]
        (a, b), (c, d) = h.chunk(2, 1), r.chunk(2, 1)
        scores = torch.cat((a * c - b * d, a * d + b * c), 1) @ entity.T
        loss = torch.nn.functional.cross_entropy(scores, answers, reduction="sum")
        for rows in (h, r, t):
            re, im = rows.chunk(2, 1)
            loss = loss + settings.n3 * ((re * re + im * im + 1e-30) ** 1.5).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def lcwa_epoch(dataset, rank, size, batches, threads):
    """PyKEEN's own softmax over all entities: ComplEx with inverse triples, its LCWA loop with cross-entropy and fused
    AdaGrad, on so many triples that an epoch has about `batches` batches. Returns a function: seconds per query, one
    row of scores over all entities, over an epoch, after one that does not count."""
    torch.set_num_threads(threads)
    some = np.random.default_rng(0).permutation(dataset.train)[: max(1, size * batches // 2)]
    names = {"num_entities": dataset.n_entities, "num_relations": dataset.n_relations, "create_inverse_triples": True}
    factory = CoreTriplesFactory(tensor(some), **names)
    loss = CrossEntropyLoss(reduction="mean")
    model = ComplEx(triples_factory=factory, embedding_dim=rank, loss=loss, regularizer=None, random_seed=0)
    loop = LCWATrainingLoop(
        model=model,
        triples_factory=factory,
        optimizer="adagrad",
        optimizer_kwargs={"lr": 0.1, "fused": True},
        automatic_memory_optimization=False,
    )
    pairs = np.concatenate((some[:, :2], some[:, :0:-1] + [0, dataset.n_relations]))  # (h, r) and (t, r inverted)
    rows, epochs = len(np.unique(pairs, axis=0)), [0]

    def task():
        torch.set_num_threads(threads)
        clock = Clock()
        epochs[0] += 2
        loop.train(
            factory,
            num_epochs=epochs[0],
            batch_size=size,
            continue_training=epochs[0] > 2,
            callbacks=clock,
            num_workers=0,
            pin_memory=False,
            use_tqdm=False,
        )
        return (clock.ends[-1] - clock.ends[-2]) / rows

    return task


class Clock(TrainingCallback):
    """When each epoch ended."""

    def __init__(self):
        super().__init__()
        self.ends = []

    def post_epoch(self, epoch, epoch_loss, **kwargs):
        self.ends.append(time.perf_counter())


class Peer:
    """One of PyKEEN's models and its training loop, for a `cardkge.Dataset`."""

    def __init__(self, name, dataset, dim, hidden, negatives, batches, threads):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.dataset, self.threads, self.epochs = dataset, threads, 0
        self.batch_size = -(-len(dataset.train) // batches)
        sizes = {"num_entities": dataset.n_entities, "num_relations": dataset.n_relations}
        self.factory = CoreTriplesFactory(tensor(dataset.train), **sizes)
        make, options = {
            "distmult": (DistMult, {"regularizer": None, "entity_constrainer": None}),
            "complex": (ComplEx, {"regularizer": None}),
            "ermlp": (ERMLP, {"hidden_dim": hidden}),
        }[name]
        loss = SoftplusLoss(reduction="sum")
        self.model = make(triples_factory=self.factory, embedding_dim=dim, loss=loss, random_seed=0, **options)
        self.loop = SLCWATrainingLoop(
            model=self.model,
            triples_factory=self.factory,
            optimizer="adagrad",
            optimizer_kwargs={"lr": 0.1, "initial_accumulator_value": 0.1, "fused": True},
            negative_sampler="basic",
            negative_sampler_kwargs={"num_negs_per_pos": negatives},
            automatic_memory_optimization=False,
        )

    def train(self, epochs):
        """Seconds per epoch, over `epochs` whole ones; one more comes before them and is not counted."""
        torch.set_num_threads(self.threads)
        clock = Clock()
        self.loop.train(
            self.factory,
            num_epochs=self.epochs + epochs + 1,
            batch_size=self.batch_size,
            continue_training=self.epochs > 0,
            callbacks=clock,
            num_workers=0,
            pin_memory=False,
            use_tqdm=False,
        )
        self.epochs += epochs + 1
        return (clock.ends[-1] - clock.ends[0]) / epochs

    def evaluate(self, triples, batch_size=32):
        """Filtered ranks of both sides of some test triples: seconds in all."""
        torch.set_num_threads(self.threads)
        splits = [tensor(getattr(self.dataset, split)) for split in ("train", "valid", "test")]
        start = time.perf_counter()
        RankBasedEvaluator(filtered=True).evaluate(
            self.model, tensor(triples), batch_size=batch_size, additional_filter_triples=splits, use_tqdm=False
        )
        return time.perf_counter() - start
