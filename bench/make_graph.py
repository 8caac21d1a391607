"""A large graph as files: `python bench/make_graph.py FOLDER [--entities N] [--relations R] [--triples T] [--seed S]`.

Degrees are skewed as in real knowledge graphs: the i-th relation, head and tail (each in an order of its own) are drawn
with a probability proportional to i ** -exponent, by EXPONENTS. Before that every entity is a head once, so that all N
occur. Triples are distinct. The same arguments give the same graph.
"""

import argparse
from pathlib import Path

import numpy as np

EXPONENTS = {"relation": 1.0, "head": 0.6, "tail": 0.9}  # the tail of 10 million triples that is drawn most: 3 in 100
HELD_OUT = 1000  # triples of valid, and of test


class Zipf:
    """Ids of range(n), the i-th of a random order with probability proportional to i ** -exponent."""

    def __init__(self, rng, n, exponent):
        self.rng, self.order, self.total = rng, rng.permutation(n), np.cumsum(np.arange(1.0, n + 1) ** -exponent)

    def draw(self, size):
        places = np.searchsorted(self.total, self.rng.random(size) * self.total[-1], "right")
        return self.order[np.minimum(places, len(self.order) - 1)]


def draw_triples(n_entities, n_relations, n_triples, seed=0):
    """(n_triples, 3) int32: distinct triples in random order; each entity is the head of at least one of them."""
    if not n_entities <= n_triples <= n_entities**2 * n_relations // 4:
        raise SystemExit(f"make_graph: {n_triples} triples do not suit {n_entities} entities, {n_relations} relations")
    rng = np.random.default_rng(seed)
    sizes = {"head": n_entities, "relation": n_relations, "tail": n_entities}
    draws = {name: Zipf(rng, n, EXPONENTS[name]) for name, n in sizes.items()}
    heads, keys = rng.permutation(n_entities), np.empty(0, np.int64)  # more are drawn until there are enough
    while len(keys) < n_triples:
        heads = np.concatenate((heads, draws["head"].draw(n_triples - len(keys))))
        tails, relations = draws["tail"].draw(len(heads)), draws["relation"].draw(len(heads))
        keys = np.concatenate((keys, (heads * n_relations + relations) * n_entities + tails))
        keys = keys[np.sort(np.unique(keys, return_index=True)[1])]  # the first of equal triples stays
        heads = np.empty(0, np.int64)
    keys = rng.permutation(keys[:n_triples])
    pairs, tails = np.divmod(keys, n_entities)
    return np.stack((*np.divmod(pairs, n_relations), tails), 1).astype(np.int32)


def split(triples):
    """{"train", "valid", "test"}: the last triples are held out, HELD_OUT each, or a tenth where there are few."""
    held = min(HELD_OUT, len(triples) // 10)
    parts = np.split(triples, [len(triples) - 2 * held, len(triples) - held])
    return dict(zip(("train", "valid", "test"), parts))


def write(folder, triples):
    """The three split files of a data set, in `folder`; entity i is named e<i>, relation i r<i>."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in split(triples).items():
        with open(folder / f"{name}.tsv", "w", encoding="utf-8", newline="\n") as file:
            for start in range(0, len(part), 1 << 16):
                lines = part[start : start + (1 << 16)].tolist()
                file.write("".join(f"e{h}\tr{r}\te{t}\n" for h, r, t in lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    for name, default in (("entities", 10**6), ("relations", 1000), ("triples", 10**7), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    write(options.folder, draw_triples(options.entities, options.relations, options.triples, options.seed))


if __name__ == "__main__":
    main()
