"""A million heads with numbers: `python bench/million.py FOLDER` makes the graph, and prints time and peak memory of
each command: import (facts and numbers), split, mine, train, calibrate, complete.

Each head has one to four tails among 2,000, drawn with a power law; the number of them is known, and a third of the
facts is left out.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
TAILS, LEFT_OUT = 2000, 1 / 3


def make(folder, heads, seed=0):
    """Write facts.tsv, head, relation, tail, with a row `number` for each head."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, TAILS + 1) ** 0.8
    head = np.repeat(np.arange(heads), rng.integers(1, 5, heads))
    tail = rng.choice(TAILS, len(head), p=weights / weights.sum())
    head, tail = np.unique(np.column_stack((head, tail)), axis=0).T
    number = np.bincount(head, minlength=heads)
    first = np.append(True, head[1:] != head[:-1])
    kept = first | (rng.random(len(head)) > LEFT_OUT)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "facts.tsv", "w") as file:
        file.writelines(f"h{h}\tr\tt{t}\n" for h, t in zip(head[kept].tolist(), tail[kept].tolist(), strict=True))
        file.writelines(f"h{h}\tnumber\t{n}\n" for h, n in enumerate(number.tolist()))
    return int(np.count_nonzero(kept)), int(np.count_nonzero(~kept))


def run(words):
    """(seconds, peak memory in MiB, last line) of a command of cardkge."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, ROOT / "cli.py", *map(str, words)], stdout=subprocess.PIPE, text=True)
    said = process.stdout.read().strip().split("\n")
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{words[0]} failed")
    return time.perf_counter() - began, usage.ru_maxrss / 1024, said[-1]


def main(arguments=None):
    """Go through the commands."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--heads", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    folder = options.folder
    kept, gone = make(folder, options.heads)
    print(f"{options.heads:,} heads, {kept:,} facts, {gone:,} left out", flush=True)
    graph, data, model = folder / "graph", folder / "split", folder / "run"
    settings = ["--model", "distmult", "--dim", 16, "--epochs", 2, "--batches", 100, "--lambda", 0]
    commands = [
        ["import", folder / "facts.tsv", "--number", "number=r", "--out", graph],
        ["split", graph, "--valid", 0.005, "--test", 0.005, "--out", data],
        ["mine", "--data", data, "--out", folder / "mined.tsv"],
        ["train", "--data", data, *settings, "--bounds", data / "bounds.tsv", "--no-calibrate", "--out", model],
        ["calibrate", model],
        ["complete", model, "--out", folder / "new.tsv"],
    ]
    rows = []
    for words in commands:
        seconds, memory, said = run(words)
        rows.append([words[0], f"{seconds:.0f}", f"{memory:,.0f}", said[:80]])
        print(rows[-1], flush=True)
    print(tabulate(rows, ["command", "seconds", "MiB", "says"], "github"))


if __name__ == "__main__":
    main()
