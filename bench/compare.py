"""The cost of cardkge beside its peers and the machine: `python bench/compare.py`.

Prints a row for each target of docs/PERFORMANCE.md (figure, its comparison, ratio, target, whether it holds) and writes
everything, with each round, as JSON. All compared figures are measured in this run, in turn: A B A B (`alternate`). A
figure is the median of its rounds; a ratio is the median of the ratios within the rounds, so that a machine whose speed
drifts does not change it.

An example is a positive triple or a corruption of one. Training is the paper's recipe (float32, 2 negatives, 10 batches
an epoch, AdaGrad) unless said otherwise; times are of whole epochs, sampling included. A query is (?, r, t) or
(h, r, ?).

--quick takes small sizes and the embedded data set: it shows that all of this runs, and judges nothing.
"""

import os

# as the commands of cardkge do: its kernels have their own threads (PyKEEN's are set by torch.set_num_threads)
for _variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import argparse  # noqa: E402
import collections  # noqa: E402
import contextlib  # noqa: E402
import dataclasses  # noqa: E402
import importlib.metadata  # noqa: E402
import json  # noqa: E402
import multiprocessing  # noqa: E402
import platform  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from concurrent.futures import ProcessPoolExecutor  # noqa: E402
from pathlib import Path  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import numpy as np  # noqa: E402
from tabulate import tabulate  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import make_graph  # noqa: E402
import scaling  # noqa: E402
from measure import MODELS, alternate, timed  # noqa: E402
from numba import njit  # noqa: E402

import cardkge  # noqa: E402
import kernels  # noqa: E402
from cardkge_tools.engine.batches import group_queries  # noqa: E402
from cardkge_tools.engine.softmax import BLOCK, COLUMNS  # noqa: E402


@dataclasses.dataclass
class Sizes:
    """The sizes of a run: the full form, and by QUICK the small one."""

    data: str = "wn18rr"
    rounds: int = 5
    dims: dict = dataclasses.field(default_factory=lambda: dict(cardkge.DIMS))
    hidden: int = 100
    epochs: int = 4  # timed together, in each round
    peer_epochs: int = 1
    peer_triples: int = 128  # of test; all of it would take PyKEEN minutes in each round
    trained: int = 20  # epochs before an evaluation
    samples: tuple = ((10, 100, 1.10), (100, 1000, 2.0))  # mu, omega, target
    loaded: tuple = ("wn18rr", "wn18", "fb13")
    softmax: tuple = ((100, 500), (500, 500))  # complex rank, queries of a batch
    peer_batches: int = 4  # of PyKEEN's softmax, a round
    graph: tuple = (10**6, 1000, 10**7)  # entities, relations, triples
    graph_dim: int = 100
    graph_batches: int = 100  # an epoch; with 10, the gradients of a batch are nearly as large as the table
    graph_triples: int = 1000  # ranked
    scaling: dict = dataclasses.field(
        default_factory=lambda: {
            "dim": (50, 100, 200, 400),
            "entities": (10**4, 10**5, 10**6),  # with 10**6 triples
            "triples": (10**5, 10**6, 10**7),  # with 10**5 entities
        }
    )


QUICK = {
    "data": "families",
    "rounds": 2,
    "dims": dict.fromkeys(MODELS, 16),
    "hidden": 16,
    "epochs": 1,
    "peer_triples": 16,
    "trained": 1,
    "samples": ((4, 20, 1.10), (10, 50, 2.0)),
    "loaded": ("families",),
    "softmax": ((8, 32),),
    "graph": (2000, 20, 20000),
    "graph_dim": 8,
    "graph_batches": 10,
    "graph_triples": 100,
    "scaling": {"dim": (8, 16), "entities": (200, 2000), "triples": (2000, 10000)},
}


# ------------------------------------------------------------------------------------------------------------------
# Measuring
# ------------------------------------------------------------------------------------------------------------------


def ratio(upper, lower):
    """The median over the rounds of upper / lower."""
    return statistics.median(a / b for a, b in zip(upper, lower))


@dataclasses.dataclass
class Row:
    """A line of the table. ours and other: a figure for each round; with `rate` these are seconds per unit, shown as
    units a second."""

    what: str
    ours: list
    other: list
    against: str
    ratio: float
    target: float
    least: bool  # the target is a least ratio, or a greatest
    unit: str
    rate: bool = True
    note: str = ""

    @property
    def holds(self):
        return bool(self.ratio >= self.target if self.least else self.ratio <= self.target)

    def figure(self, rounds):
        if not rounds:
            return ""
        value = statistics.median(rounds)
        value, unit = (1 / value, f"{self.unit}/s") if self.rate else (value, self.unit)
        return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"

    def cells(self, judged):
        beside = f"{self.against} {self.figure(self.other)}"
        target = f"{'>=' if self.least else '<='} {self.target:g}"
        return [
            self.what,
            self.figure(self.ours),
            beside,
            f"{self.ratio:,.0f}" if self.ratio >= 100 else f"{self.ratio:.3g}",
            target,
            judged * ("no", "yes")[self.holds],
        ]


class Bench:
    """The state that the sections share: sizes, the data set, peers, and results."""

    def __init__(self, sizes, threads, log=print):
        self.sizes, self.threads, self.log = sizes, threads, log
        self.dataset = cardkge.load_dataset(sizes.data)
        try:
            import peers
        except ImportError as error:
            self.peers = None
            log(f"no peer: {error}")
        else:
            self.peers = peers

    def run(self, model="distmult", dim=None, dataset=None, **settings):
        """A fresh run of the paper's recipe, epochs to be raised by whoever trains it."""
        sizes, dataset = self.sizes, dataset or self.dataset
        options = {"dim": dim or sizes.dims[model], "hidden": sizes.hidden, "epochs": 0}
        settings = cardkge.Settings(model=model, data=dataset.name, **options | settings)
        bounds = None
        if settings.bounds == "mined":
            bounds = cardkge.mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations)
        return cardkge.new_run(settings, dataset, bounds)

    def training(self, run, dataset=None, threads=None, epochs=None, dropped=1):
        """A task: seconds per example over some epochs, after `dropped` (workspaces, caches), which are not counted."""
        dataset, threads, epochs = dataset or self.dataset, threads or self.threads, epochs or self.sizes.epochs
        examples = epochs * len(dataset.train) * (1 + run.settings.negatives)

        def task():
            run.settings = dataclasses.replace(run.settings, epochs=run.epoch + dropped + epochs)
            cardkge.train(run, dataset, threads)
            return sum(record["seconds"] for record in run.history[-epochs:]) / examples

        return task

    def peer(self, model):
        sizes, settings = self.sizes, cardkge.Settings()
        return self.peers.Peer(
            model, self.dataset, sizes.dims[model], sizes.hidden, settings.negatives, settings.batches, self.threads
        )

    def model_name(self, model):
        return f"{model} {self.sizes.dims[model]}"


# ------------------------------------------------------------------------------------------------------------------
# The sections: each yields rows
# ------------------------------------------------------------------------------------------------------------------


def train(bench):
    """Training, examples a second against PyKEEN's, for each model."""
    if bench.peers is None:
        return
    examples = len(bench.dataset.train) * (1 + cardkge.Settings().negatives)
    for model, target in zip(MODELS, (4, 4, 2)):
        peer = bench.peer(model)

        def pykeen(peer=peer):
            return peer.train(bench.sizes.peer_epochs) / examples

        found = alternate(bench.sizes.rounds, {"ours": bench.training(bench.run(model)), "pykeen": pykeen})
        yield Row(
            f"train {bench.model_name(model)}", found["ours"], found["pykeen"], "PyKEEN",
            ratio(found["pykeen"], found["ours"]), target, True, "examples",
        )  # fmt: skip


@njit(nogil=True, fastmath=True)
def update_rows(first, last, ids, table, accumulator):
    """The memory traffic of AdaGrad alone: rows ids[s] of two tables are read and written."""
    one = table.dtype.type(1)
    for s in range(first, last):
        if s + 2 < last:
            kernels.prefetch_row(table, ids[s + 2])
            kernels.prefetch_row(accumulator, ids[s + 2])
        for i in range(table.shape[1]):
            accumulator[ids[s], i] += one
            table[ids[s], i] -= accumulator[ids[s], i]


@njit(nogil=True, fastmath=True)
def read_rows(first, last, ids, table, out):
    """The sum of rows ids[s] of a table: they are read."""
    total = table.dtype.type(0)
    for s in range(first, last):
        if s + 4 < last:
            kernels.prefetch_row(table, ids[s + 4])
        for i in range(table.shape[1]):
            total += table[ids[s], i]
    out[first] = total


def rows_per_example(dataset, settings):
    """(rows updated, rows gathered) per example, in a batch of the first epoch's size.

    updated   each distinct entity of the batch once, parameter and accumulator (counted on a batch as `train` draws);
    gathered  a triple and its m corruptions have m + 2 distinct rows among them, which the scores need; then the
              gradient of each end of each example needs the row of its other end: ((m + 2) + 2 (m + 1)) / (m + 1).
    Rows of relations stay in the cache, and are not counted; nor are ids, coefficients and gradients.
    """
    m, rng = settings.negatives, np.random.default_rng(0)
    batch = rng.permutation(dataset.train)[: -(-len(dataset.train) // settings.batches)]
    ends = cardkge.corruptions(rng, batch, m, dataset.n_entities)
    return len(np.unique(ends)) / (len(batch) * (m + 1)), (m + 2) / (m + 1) + 2


def softmax(bench):
    """A step of softmax over all entities, ComplEx with reciprocal relations and N3, rows of one answer each:
    queries a second against a plain loop of PyTorch, and against the three matrix products that it needs."""
    for rank, size in bench.sizes.softmax:
        rng, dataset = np.random.default_rng(0), bench.dataset
        run = bench.run("complex", rank, loss="softmax", softmax_candidates=0, relation_weight=0.0)
        model = run.model
        sides = np.repeat([0, 1], len(dataset.train))
        every = group_queries(model, np.concatenate((dataset.train, dataset.train)), sides)
        with cardkge.Threads(bench.threads) as threads:
            trainer = cardkge.Trainer(model, run.accumulators, run.settings, run.bounds, dataset.train, threads)
            batch = every.take(np.sort(rng.choice(len(every.given), min(size, len(every.given)), replace=False)))
            batch = dataclasses.replace(
                batch, limits=np.arange(len(batch.given) + 1), answers=batch.answers[batch.limits[:-1]]
            )
            n = len(batch.given)
            tasks = {"ours": timed(lambda: trainer.step((batch, None)), n)}
            tasks["products"] = timed(three_products(batch, model, threads), n)
            if bench.peers:
                step = bench.peers.softmax_step(model, batch, run.settings, bench.threads)
                tasks["torch"] = timed(step, n)
                tasks["pykeen"] = bench.peers.lcwa_epoch(dataset, rank, n, bench.sizes.peer_batches, bench.threads)
            found = alternate(bench.sizes.rounds, tasks)
        what = f"softmax: complex {rank}, {n} queries"
        if bench.peers:
            part, least = ratio(found["torch"], found["ours"]), 1.5 if rank <= 100 else 1.05
            yield Row(what, found["ours"], found["torch"], "torch", part, least, True, "queries")
            part = ratio(found["pykeen"], found["ours"])
            yield Row(what, found["ours"], found["pykeen"], "PyKEEN LCWA", part, 1, True, "queries")
        part = ratio(found["products"], found["ours"])
        yield Row(what, found["ours"], found["products"], "three products", part, 0.75, True, "queries")


def three_products(batch, model, threads):
    """A function that makes the scores of a batch and the two products of their backward pass, by the trainer's blocks,
    in reused memory."""
    entity, n = model.params["entity"], len(batch.given)
    queries, scores = entity[batch.given], np.empty((n, model.n_entities), model.dtype)
    d_queries, d_entity = np.empty_like(queries), np.empty_like(entity)

    def products():
        threads.run(lambda i, j: np.matmul(queries[i:j], entity.T, out=scores[i:j]), n, size=BLOCK)
        threads.run(lambda i, j: np.matmul(scores[i:j], entity, out=d_queries[i:j]), n, size=BLOCK)
        threads.run(lambda i, j: np.matmul(scores[:, i:j].T, queries, out=d_entity[i:j]), len(entity), size=COLUMNS)

    return products


def roofline(bench):
    """DistMult's training against the time that its memory traffic alone takes on this machine, for an example

        seconds = updated / (row updates a second) + gathered / (row reads a second)

    with the rows of `rows_per_example` and both rates measured here: random distinct rows of tables of the model's
    size, on as many threads. The ratio is of rates: 1 would be a training that only waits for the memory.
    """
    run, rng = bench.run("distmult"), np.random.default_rng(0)
    table = run.model.params["entity"].copy()
    accumulator, out = np.zeros_like(table), np.zeros(len(table), table.dtype)
    ids = rng.permutation(np.arange(len(table), dtype=np.int32))
    passes = max(1, 10**6 // len(table)) if bench.sizes.epochs > 1 else 1
    updated, gathered = rows_per_example(bench.dataset, run.settings)
    with cardkge.Threads(bench.threads) as threads:

        def pass_over(kernel, other):
            def passes_over():
                for _ in range(passes):
                    threads.run(kernel, len(ids), ids, table, other, size=-(-len(ids) // 32))

            return timed(passes_over, passes * len(ids))

        tasks = {"update": pass_over(update_rows, accumulator), "read": pass_over(read_rows, out)}
        found = alternate(bench.sizes.rounds, {"ours": bench.training(run)} | tasks)
    limit = [updated * u + gathered * r for u, r in zip(found["update"], found["read"])]
    rates = {name: 1e-6 / statistics.median(found[name]) for name in tasks}
    width = table.shape[1] * table.itemsize
    note = (
        f"an example updates {updated:.3f} rows of 2 x {width} bytes and gathers {gathered:.3f}, in all "
        f"{width * (4 * updated + gathered):,.0f} bytes; the machine updates {rates['update']:.1f} million rows/s and "
        f"reads {rates['read']:.1f} million"
    )
    what, part = f"train {bench.model_name('distmult')}", ratio(limit, found["ours"])
    yield Row(what, found["ours"], limit, "roofline", part, 0.6, True, "examples", note=note)


def threads(bench):
    """DistMult's training on 2 threads against 1."""
    if bench.threads < 2:
        bench.log("one core only: threads are not compared")
        return
    found = alternate(bench.sizes.rounds, {n: bench.training(bench.run(), threads=n) for n in (2, 1)})
    yield Row(
        f"train {bench.model_name('distmult')}, 2 threads", found[2], found[1], "1 thread",
        ratio(found[1], found[2]), 1.7, True, "examples",
    )  # fmt: skip


def product(queries, model, threads, block):
    """queries @ entity.T, the least that a ranking by DistMult or ComplEx must compute, in reused memory."""
    candidates = model.params["entity"].T
    scores = np.empty((threads.count, block, model.n_entities), model.dtype)
    free = collections.deque(scores)

    def multiply(first, last):
        out = free.pop()
        np.matmul(queries[first:last], candidates, out=out[: last - first])
        free.append(out)

    threads.run(multiply, len(queries), size=block)


def evaluate(bench):
    """Filtered ranking of the whole test split, its filter built anew, against PyKEEN's (of the first `peer_triples` of
    test only) and against the bare matrix product of that size, on as many threads, in blocks of the best size."""
    data, sizes = bench.dataset, bench.sizes
    for model, target in zip(MODELS, (50, 50, 20)):
        run = bench.run(model, epochs=sizes.trained)
        cardkge.train(run, data, bench.threads)
        queries = 2 * len(data.test)
        ours = timed(lambda: cardkge.rank_triples(run.model, data.test, data.known, threads=bench.threads), queries)
        tasks = {"ours": ours}
        if bench.peers:
            peer, asked = bench.peer(model), data.test[: sizes.peer_triples]
            tasks["pykeen"] = lambda: peer.evaluate(asked) / (2 * len(asked))
        with cardkge.Threads(bench.threads) as threads:
            if model != "ermlp":
                entity = run.model.params["entity"]
                rows = np.concatenate((entity[data.test[:, 0]], entity[data.test[:, 2]]))
                for block in (32, 128, 512):
                    tasks[block] = timed(lambda block=block: product(rows, run.model, threads, block), queries)
            found = alternate(sizes.rounds, tasks)
        what = f"rank {bench.model_name(model)}"
        if bench.peers:
            speedup = ratio(found["pykeen"], found["ours"])
            yield Row(what, found["ours"], found["pykeen"], "PyKEEN", speedup, target, True, "queries")
        if products := [found[name] for name in found if isinstance(name, int)]:
            bare = min(products, key=statistics.median)
            slower = ratio(found["ours"], bare)
            yield Row(what, found["ours"], bare, "bare product", slower, 2, False, "queries")


def regulariser(bench):
    """An epoch of DistMult with mined bounds on all relations that have some, against one without the regulariser."""
    tasks = {("off", None): bench.training(bench.run())}
    for mu, omega, target in bench.sizes.samples:
        for sampling in ("uniform", "importance", "bernoulli"):
            run = bench.run(bounds="mined", sampling=sampling, subjects=mu, objects=omega)
            tasks[f"{sampling}, mu={mu}, omega={omega}", target] = bench.training(run)
    found = alternate(bench.sizes.rounds, tasks)
    off = found.pop(("off", None))
    for (name, target), rounds in found.items():
        yield Row(f"train, {name}", rounds, off, "off", ratio(rounds, off), target, False, "examples")


def loading(bench):
    """Reading a data set from its files (in the system's cache) and building the filter of both sides of its test
    split: seconds per 100,000 triples."""
    for name in bench.sizes.loaded:
        if cardkge.locate_dataset(name) is None:
            bench.log(f"{name} is not on this machine: its loading is not measured")
            continue

        def load(name=name):
            data = cardkge.load_dataset(name)
            sizes = SimpleNamespace(n_entities=data.n_entities, n_relations=data.n_relations)
            for side in range(2):
                cardkge.true_answers(data.test, data.known, side, sizes)

        found = alternate(bench.sizes.rounds, {"ours": timed(load, len(cardkge.load_dataset(name).known) / 1e5)})
        cost = statistics.median(found["ours"])
        yield Row(f"load {name}", found["ours"], [], "", cost, 1, False, "s/100,000 triples", rate=False)


FIRST_STEP = """
import os, sys
import cardkge, cli
step = cardkge.Trainer.step
def leave_after(*arguments):
    step(*arguments)
    os._exit(0)
cardkge.Trainer.step = leave_after
cli.main(["train", "--data", sys.argv[1], "--out", sys.argv[2]])
"""


def start(bench):
    """From the start of `python cli.py train` to the end of its first step, loading included, the kernels in Numba's
    cache (the warm-up sees to that); beside it a Python that imports only numpy. The "ratio" is the difference in
    seconds."""

    def python(code, *arguments):
        done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the subprocess failed: {done.stderr}")

    def first_step():
        with tempfile.TemporaryDirectory() as folder:
            python(FIRST_STEP, bench.sizes.data, str(Path(folder, "run")))

    tasks = {"ours": timed(first_step, 1), "numpy": timed(lambda: python("import numpy"), 1)}
    found = alternate(bench.sizes.rounds, tasks)
    more = statistics.median(a - b for a, b in zip(found["ours"], found["numpy"]))
    yield Row("first step of `train`", found["ours"], found["numpy"], "import numpy", more, 2, False, "s", rate=False)


def peak_memory():
    """The most bytes that this process has held. (ru_maxrss would count what its parent held before it, on Linux.)"""
    try:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def graph_figures(folder, sizes, count):
    """The figures of `graph`, a dict, from a process of its own."""
    began = time.perf_counter()
    dataset = cardkge.load_dataset(str(folder))
    found = {"load seconds": time.perf_counter() - began}
    bench = SimpleNamespace(dataset=None, sizes=sizes, threads=count)  # a Bench would load more into this memory
    run = Bench.run(bench, dim=sizes.graph_dim, dataset=dataset, batches=sizes.graph_batches)
    epoch = Bench.training(bench, run, dataset, epochs=1, dropped=0)
    found["first epoch"] = epoch()
    asked = np.concatenate((dataset.test, dataset.valid))[: sizes.graph_triples]
    rank = timed(lambda: cardkge.rank_triples(run.model, asked, dataset.known, threads=count), 2 * len(asked))
    found["seconds per query"] = rank()
    found["peak bytes"] = peak_memory()
    arrays = [*run.model.params.values(), *run.accumulators.values(), dataset.train, dataset.valid, dataset.test]
    found["least bytes"] = sum(array.nbytes for array in arrays)
    with cardkge.Threads(count) as threads:
        given = run.model.params["entity"][np.concatenate((asked[:, 0], asked[:, 2]))]
        tasks = {"rank": rank}
        for block in (64, 128):  # of more, the scores of all entities would need gigabytes
            tasks[block] = timed(lambda block=block: product(given, run.model, threads, block), len(given))
        found |= {f"product {name}" if name in (64, 128) else name: part for name, part in alternate(2, tasks).items()}
    bench.dataset = cardkge.load_dataset(sizes.data)
    small = Bench.run(bench, dim=sizes.graph_dim)
    found |= alternate(sizes.rounds, {"graph": epoch, "small": Bench.training(bench, small)})
    return found


def graph(bench):
    """A large graph of `make_graph.py`, read from its files, DistMult: the time of an epoch per example against that of
    the data set at the same dim, and the peak memory of a process that loads it, trains an epoch and ranks some
    triples, against parameters, accumulators and triples. An epoch has `graph_batches` batches: 100,000 triples each,
    in the full form; that of the data set 10, as everywhere."""
    sizes = bench.sizes
    with tempfile.TemporaryDirectory() as folder:
        make_graph.write(folder, make_graph.draw_triples(*sizes.graph))
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            found = process.submit(graph_figures, folder, sizes, bench.threads).result()
    what = f"{sizes.graph[0]:,} entities, {sizes.graph[2]:,} triples, dim {sizes.graph_dim}"
    slower = ratio(found["graph"], found["small"])
    note = f"loaded in {found['load seconds']:.1f} s; ranks {1 / found['seconds per query']:,.0f} queries/s"
    yield Row(f"train: {what}", found["graph"], found["small"], sizes.data, slower, 2, False, "examples", note=note)
    bare = min((found["product 64"], found["product 128"]), key=statistics.median)
    what, part = f"rank: {sizes.graph[0]:,} entities, dim {sizes.graph_dim}", ratio(bare, found["rank"])
    yield Row(what, found["rank"], bare, "bare product", part, 0.6, True, "queries")
    peak, least = found["peak bytes"] / 2**20, found["least bytes"] / 2**20
    against = "parameters, accumulators, triples"
    yield Row("peak memory", [peak], [least], against, peak / least, 1.6, False, "MiB", rate=False)


SECTIONS = {f.__name__: f for f in (train, softmax, roofline, threads, evaluate, regulariser, loading, start, graph)}


# ------------------------------------------------------------------------------------------------------------------
# The program
# ------------------------------------------------------------------------------------------------------------------


def machine(bench):
    """The facts about the machine that a figure needs."""
    cpu = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    packages = {name: importlib.metadata.version(name) for name in ("numpy", "numba", "llvmlite")}
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cpu": cpu,
        "threads": bench.threads,
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "platform": platform.platform(),
        "versions": {"cardkge": cardkge.__version__, "python": platform.python_version()}
        | packages
        | (bench.peers.versions() if bench.peers else {}),
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="data set of the rows that name none [wn18rr; --quick: families]")
    parser.add_argument("--rounds", type=int, help="alternating rounds [5; --quick: 2]")
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing judged")
    parser.add_argument("--only", metavar="NAME,...", help=f"sections: {', '.join(SECTIONS)}")
    parser.add_argument("--scaling", action="store_true", help="the tables of docs/PERFORMANCE.md instead")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args(arguments)
    chosen = options.only.split(",") if options.only else list(SECTIONS)
    if unknown := set(chosen) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds must be at least 1, found {options.rounds}")
    if options.scaling and options.only:
        parser.error("--only chooses among the rows of the table, --scaling prints other tables; leave one out")
    if options.json and not options.json.absolute().parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.absolute().parent}")
    given = {name: value for name in ("data", "rounds") if (value := getattr(options, name)) is not None}
    sizes = Sizes(**(QUICK if options.quick else {}) | given)
    try:
        bench = Bench(sizes, cardkge.Threads().count)
    except cardkge.CardkgeError as error:
        parser.error(str(error))
    report = {"machine": machine(bench), "sizes": dataclasses.asdict(sizes), "rows": [], "scaling": {}}
    if options.scaling:
        for title, headers, lines in scaling.tables(bench):
            report["scaling"][title] = [headers, *lines]
            print(f"\n{title}\n{tabulate(lines, headers, disable_numparse=True)}", flush=True)
    else:
        rows = []
        for name in chosen:
            for row in SECTIONS[name](bench):
                print(" | ".join(row.cells(not options.quick)), flush=True)
                rows.append(row)
                report["rows"].append({"section": name} | dataclasses.asdict(row) | {"holds": row.holds})
        headers = ["what", "cardkge", "beside", "ratio", "target", "holds"]
        print("\n" + tabulate([row.cells(not options.quick) for row in rows], headers, disable_numparse=True))
        print("\n".join(f"{row.what}: {row.note}" for row in rows if row.note))
    report["machine"]["load after"] = os.getloadavg() if hasattr(os, "getloadavg") else None
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
