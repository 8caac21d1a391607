"""Write a synthetic N-Triples file: `python bench/make_ntriples.py 10000000 big.nt`.

Entities are drawn with frequencies that fall as 1 / rank, as in real graphs; an entity has about 10 triples as head.
"""

import argparse

import numpy as np

BLOCK = 1 << 18


def write(path, triples, relations=100, seed=0):
    """Write `triples` lines, some of which may be the same."""
    rng = np.random.default_rng(seed)
    entities = max(triples // 10, 10)
    names = [f"<http://example.org/entity/E{number}>" for number in range(entities)]
    properties = [f"<http://example.org/property/P{number}>" for number in range(relations)]
    with open(path, "w", encoding="utf-8") as file:
        for start in range(0, triples, BLOCK):
            size = min(BLOCK, triples - start)
            heads = rng.integers(entities, size=size).tolist()
            tails = (entities ** rng.random(size)).astype(np.int64).tolist()  # density proportional to 1 / rank
            middles = rng.integers(relations, size=size).tolist()
            lines = [
                f"{names[h]} {properties[r]} {names[min(t, entities) - 1]} .\n"
                for h, r, t in zip(heads, middles, tails)
            ]
            file.write("".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("triples", type=int)
    parser.add_argument("path")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write(options.path, options.triples, seed=options.seed)
