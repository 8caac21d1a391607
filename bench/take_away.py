"""Take facts out of a graph, to see later which are found: `python bench/take_away.py DATA SHARE FOLDER`.

Writes to FOLDER the remaining facts of all splits together, triples.tsv; all facts, whole.tsv; how many of each
relation are gone between remaining entities, missing.tsv, for `calibrate --missing`; and the files beside the splits:
bounds, classes, prefixes. SHARE of all facts are taken away, at random (--seed), but none that is the only one of its
relation."""

import argparse
import shutil
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import numpy as np  # noqa: E402

import cardkge  # noqa: E402

BESIDE = "bounds.tsv", "types.tsv", "prefixes.tsv"


def take_away(triples, share, rng):
    """(kept, gone): distinct triples (n, 3), SHARE of them gone, in their order."""
    gone = np.zeros(len(triples), bool)
    gone[rng.permutation(len(triples))[: round(share * len(triples))]] = True
    left = np.bincount(triples[~gone, 1], minlength=triples[:, 1].max() + 1)
    gone &= left[triples[:, 1]] > 0
    return triples[~gone], triples[gone]


def main(arguments=None):
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("share", type=float, metavar="SHARE")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    data = cardkge.load_dataset(options.data)
    triples = np.unique(data.known, axis=0)
    kept, gone = take_away(triples, options.share, np.random.default_rng(options.seed))
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("triples.tsv", kept), ("whole.tsv", triples)):
        lines = (f"{data.entities[h]}\t{data.relations[r]}\t{data.entities[t]}\n" for h, r, t in part.tolist())
        (options.folder / name).write_text("".join(lines), encoding="utf-8")
    answerable = gone[np.isin(gone[:, [0, 2]], kept[:, [0, 2]]).all(1)]
    numbers = np.bincount(answerable[:, 1], minlength=data.n_relations).tolist()
    lines = (f"{name}\t{number}\n" for name, number in zip(data.relations, numbers, strict=True))
    (options.folder / "missing.tsv").write_text("".join(lines), encoding="utf-8")
    for name in BESIDE:
        if (Path(data.folder) / name).exists():
            shutil.copy(Path(data.folder) / name, options.folder / name)
    print(f"{options.folder}: {len(kept):,} facts, {len(gone):,} taken away ({len(answerable):,} between its entities)")


if __name__ == "__main__":
    try:
        main()
    except cardkge.CardkgeError as error:
        sys.exit(f"error: {error}")
