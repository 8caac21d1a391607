"""How fast answers are conditioned on bounds, and new facts found: `python bench/conditioning.py [RUN...]`.

Prints (h, r) a second of 200 live candidates each, given a bound of 10, on one and on all cores (the better of five
rounds); and for each calibrated run the cost of `complete RUN`: wall time, CPU time of all threads, and peak memory. On
a busy machine, half the CPU time is the least that two idle cores would need."""

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
from tabulate import tabulate  # noqa: E402

import kernels  # noqa: E402
from cardkge_tools.engine.batches import Threads, count_cores  # noqa: E402


def sets(pairs, live, seed=0):
    """(starts, log odds) of so many (h, r) with so many candidates each: a few likely, most improbable."""
    log_odds = np.random.default_rng(seed).normal(-3, 2, pairs * live)
    return np.arange(0, pairs * live + 1, live), log_odds


def rate(pairs, live, lower, upper, threads, rounds=5):
    """(h, r) a second, and a second of CPU time, by the best of some rounds after a warm-up."""
    starts, log_odds = sets(pairs, live)
    lower, upper, answers = np.full(pairs, float(lower)), np.full(pairs, float(upper)), np.empty(len(log_odds))
    given = starts, log_odds, lower, upper, np.ones((1, 1)), np.zeros(1), answers
    seconds, cpu = [], []
    with Threads(threads) as pool:
        for _ in range(rounds + 1):
            began, used = time.perf_counter(), time.process_time()
            pool.run(kernels.condition_sets, pairs, *given, size=128)
            seconds.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
    return pairs / min(seconds[1:]), pairs / min(cpu[1:])


def completed(run):
    """[(h, r) as `complete` says, wall seconds, CPU seconds, peak MiB] of `complete RUN`, in a process of its own."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, ROOT / "cli.py", "complete", run, "--known", "valid", "--out", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    what = done.stdout.splitlines()[-1].partition(": ")[2].partition(", of which")[0]
    return [run, what, f"{wall:.0f} s", f"{cpu:.0f} s", f"{after.ru_maxrss / 1024:,.0f} MiB"]


def main(arguments=None):
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--pairs", type=int, default=20_000, help="(h, r) of a round")
    options = parser.parse_args(arguments)
    rows = []
    for lower, upper in ((0, 10), (10, 10), (5, np.inf)):
        (one, of_cpu), (several, _) = (rate(options.pairs, 200, lower, upper, n) for n in (1, count_cores()))
        rows.append([f"{lower} to {upper}", *(f"{figure:,.0f}" for figure in (one, several, of_cpu))])
    headers = ["bounds", "(h, r) / s, one thread", f"{count_cores()} threads", "one thread, / s of CPU"]
    print(tabulate(rows, headers, "github"))
    if options.runs:
        rows = [completed(run) for run in options.runs]  # peak memory is of the largest child so far
        print("\n" + tabulate(rows, ["run", "", "wall", "CPU", "peak memory"], "github"))


if __name__ == "__main__":
    main()
