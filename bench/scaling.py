"""For docs/PERFORMANCE.md: where the time goes, and how it grows (`python bench/compare.py --scaling`)."""

import collections
import statistics
import time
from pathlib import Path

import make_graph
from measure import MODELS, alternate, timed

import cardkge
import kernels
from cardkge_tools.engine import batches


def passes(bench, model):
    """{pass of a step: nanoseconds per example}, by a clock around each kernel's call; "rest" is all between them. The
    corruptions are those of the next batch: with several threads, they are drawn beside the passes."""
    spent = collections.Counter()

    def clocked(function, name=None):
        def call(*arguments, **options):
            began = time.perf_counter()
            result = function(*arguments, **options)
            label = name or arguments[1].__name__
            spent[label.replace("<lambda>", "matrix products")] += time.perf_counter() - began
            return result

        return call

    run = bench.run(model)
    bench.training(run)()
    changed = [(cardkge.Threads, "run", None), (batches, "corruptions", "corruptions")]
    changed += [(kernels, name, name) for name in ("number_entities", "list_occurrences")]
    before = [getattr(owner, name) for owner, name, _ in changed]
    try:
        for owner, name, label in changed:
            setattr(owner, name, clocked(getattr(owner, name), label))
        total = bench.training(run, dropped=0)() * 1e9
    finally:
        for (owner, name, _), function in zip(changed, before):
            setattr(owner, name, function)
    examples = bench.sizes.epochs * len(bench.dataset.train) * (1 + run.settings.negatives)
    found = {name: 1e9 * seconds / examples for name, seconds in spent.most_common()}
    beside = {"corruptions, beside the others": found.pop("corruptions")} if bench.threads > 1 else {}
    return {"all": total} | found | {"rest": total - sum(found.values())} | beside


def random_dataset(n_entities, n_relations, n_triples):
    """A graph of `make_graph.py` as a Dataset, without files."""
    parts = make_graph.split(make_graph.draw_triples(n_entities, n_relations, n_triples))
    names = [str(i) for i in range(n_entities)], [str(i) for i in range(n_relations)]
    return cardkge.Dataset("graph", Path(), *names, *parts.values(), ())


def tables(bench):
    """Yields (title, headers, lines): DistMult's examples/s and queries/s along each axis, the passes of a step."""
    sizes, axes = bench.sizes, []
    axes += [("threads", n, bench.dataset, None, n) for n in range(1, bench.threads + 1)]
    axes += [("dim", dim, bench.dataset, dim, bench.threads) for dim in sizes.scaling["dim"]]
    entities, triples = sizes.scaling["entities"], sizes.scaling["triples"]
    for axis, graphs in (
        ("entities", [(n, triples[1]) for n in entities]),
        ("triples", [(entities[1], n) for n in triples]),
    ):
        axes += [(axis, pair[axis == "triples"], pair, sizes.graph_dim, bench.threads) for pair in graphs]
    lines = collections.defaultdict(list)
    for axis, value, data, dim, count in axes:
        if isinstance(data, tuple):
            data = random_dataset(data[0], 20, data[1])
        run, asked = bench.run(dim=dim, dataset=data), data.test[:500]
        rank = timed(lambda: cardkge.rank_triples(run.model, asked, data.known, threads=count), 2 * len(asked))
        tasks = {"train": bench.training(run, data, count, epochs=1), "rank": rank}
        found = alternate(min(sizes.rounds, 3), tasks)
        rates = [f"{1 / statistics.median(found[name]):,.0f}" for name in tasks]
        lines[axis].append([f"{value:,}", *rates])
    for axis in lines:
        yield axis, [axis, "examples/s", "queries/s"], lines[axis]
    for model in MODELS:
        found = passes(bench, model)
        shares = [[name, f"{ns:.0f}", f"{100 * ns / found['all']:.0f} %"] for name, ns in found.items()]
        yield f"a step of {bench.model_name(model)}", ["pass", "ns per example", "share"], shares
