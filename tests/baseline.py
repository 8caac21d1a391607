"""A frequency baseline for link prediction: how far one gets without learning anything.

    python tests/baseline.py [data/families]

The tails of (h, r, ?) are scored by how often they are a tail of r in train, the heads of (?, r, t)
by how often they are a head of r. Filtered ranks over both sides; ties get the mean of the best and
the worst rank.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

FAMILIES = Path(__file__).parent.parent / "data" / "families"
SPLITS = ("train", "valid", "test")


def read(folder=FAMILIES):
    """Split name -> list of (head, relation, tail)."""
    return {
        name: [
            tuple(line.split("\t")) for line in (Path(folder) / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        ]
        for name in SPLITS
    }


def frequency_ranks(splits):
    """Filtered realistic ranks of the test triples: list of (rank of head, rank of tail)."""
    known = [t for name in SPLITS for t in splits[name]]
    ids = {e: i for i, e in enumerate(dict.fromkeys(e for h, _, t in known for e in (h, t)))}
    scores = defaultdict(lambda: np.zeros(len(ids), int))
    answers = defaultdict(list)
    for h, r, t in splits["train"]:
        scores["head", r][ids[h]] += 1
        scores["tail", r][ids[t]] += 1
    for h, r, t in known:
        answers["head", r, t].append(ids[h])
        answers["tail", r, h].append(ids[t])
    ranks = []
    for h, r, t in splits["test"]:
        pair = []
        for side, true, given in (("head", h, t), ("tail", t, h)):
            score = scores[side, r][ids[true]]
            others = np.delete(scores[side, r], answers[side, r, given])
            pair.append(1 + float(np.sum(others > score) + np.sum(others == score) / 2))
        ranks.append(tuple(pair))
    return ranks


def summary(ranks):
    """(MRR, hits@10) of an iterable of ranks."""
    ranks = list(ranks)
    return sum(1 / r for r in ranks) / len(ranks), sum(r <= 10 for r in ranks) / len(ranks)


if __name__ == "__main__":
    pairs = frequency_ranks(read(*sys.argv[1:]))
    heads, tails = zip(*pairs, strict=True)
    for label, ranks in (("both", heads + tails), ("head", heads), ("tail", tails)):
        print("{}  MRR {:.3f}  hits@10 {:.3f}".format(label, *summary(ranks)))
