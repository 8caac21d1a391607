"""What bounds are worth at prediction: `python bench/counts.py RUN...`, runs of one data set, of different seeds.

Each run is calibrated anew on its valid split, and its answers are measured against test (as `evaluate --sets` does it)
given the true bounds (bounds.tsv of the data set), none, and the controls: the true bounds permuted over the relations,
uppers three times as large, and those mined from train. --valid SHARE calibrates on a part of valid, of several draws;
the rest of valid then counts as missing. Prints means and 95 % intervals.
"""

import argparse
import dataclasses
import os
import sys
from pathlib import Path

for _variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"
sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import numpy as np  # noqa: E402
from tabulate import tabulate  # noqa: E402

import cardkge  # noqa: E402
from cardkge_tools.counts import calibrate, evaluate_sets  # noqa: E402
from cardkge_tools.statistics import estimate, percent  # noqa: E402

SHOWN = ("ap", "best_f1", "f1", "precision", "mean_probability", "ece")


def kinds_of_bounds(dataset):
    """Name -> bounds (R, 2), None for no conditioning."""
    true = cardkge.read_bounds(dataset.folder / "bounds.tsv", dataset.relations)
    return {
        "true": true,
        "none": None,
        "permuted": np.roll(true, 1, axis=0),
        "uppers x 3": true * [1, 3],
        "mined": cardkge.find_bounds("mined", dataset),
    }


def parts_of_valid(dataset, share, draws):
    """The data set with a part of valid, several draws of it; what is left out of valid is in test."""
    if share == 1:
        yield dataset
        return
    for seed in range(draws):
        order = np.random.default_rng([7, seed]).permutation(len(dataset.valid))
        cut = round(share * len(order))
        kept, missing = dataset.valid[np.sort(order[:cut])], dataset.valid[np.sort(order[cut:])]
        yield dataclasses.replace(dataset, valid=kept, test=np.concatenate((dataset.test, missing)))


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--valid", type=float, default=1.0, metavar="SHARE", help="of valid, to calibrate on")
    parser.add_argument("--draws", type=int, default=5, help="of that part")
    options = parser.parse_args()
    found = {}
    for folder in options.runs:
        run = cardkge.load_run(folder)
        whole = cardkge.load_dataset(run.settings.data)
        for dataset in parts_of_valid(whole, options.valid, options.draws):
            calibration = calibrate(run.best_model(), dataset.train, dataset.valid, len(dataset.test))
            for name, bounds in kinds_of_bounds(whole).items():
                measures, _ = evaluate_sets(run.best_model(), calibration, bounds, dataset)
                found.setdefault(name, []).append(measures)
    rows = [[name, *(percent(estimate([one[key] for one in part])) for key in SHOWN)] for name, part in found.items()]
    for row, part in zip(rows, found.values()):
        row += [
            f"{np.mean([one['count_mae'] for one in part]):.4f}",
            f"{np.mean([one['out_of_bounds'] for one in part]):.2%}",
        ]
    known = np.mean([one["known_count_mae"] for one in found["true"]])
    print(tabulate(rows, ["bounds", *SHOWN, "count MAE", "out of bounds"], "github", disable_numparse=True))
    print(f"count MAE of the known facts alone: {known:.4f}")


if __name__ == "__main__":
    main()
