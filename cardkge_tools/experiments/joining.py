"""Several runs of one graph as one run, whose scores are the means of theirs.

The softmax of mean scores is the mean of the log softmaxes, normalised again. A mean of ComplEx models is a ComplEx
model: its rows are theirs side by side, its relation rows divided by their number; DistMult is ComplEx with rows
without imaginary parts. So every command takes it, and it is calibrated as one."""

import dataclasses
from pathlib import Path

import numpy as np

from cardkge import CardkgeError, ComplEx
from cardkge_tools.answers.runs import Run, bounds_digest, load_run, new_model
from cardkge_tools.experiments.fitting import data_of, fit, new_folder
from cardkge_tools.shell.terminal import warn


def join_runs(folders, out, force=False, data=None, threads=None):
    """Writes the run of the mean scores of two or more saved runs, DistMult or ComplEx, to a folder of its own, with
    its metrics on test and its calibration. CardkgeError where their data, bounds or kinds differ."""
    if len({Path(folder).resolve() for folder in (*folders, out)}) <= len(folders) or len(folders) < 2:
        raise CardkgeError("join takes two runs or more, and a folder for the joined one, all different")
    runs = [load_run(folder, calibrated=False) for folder in folders]
    common = _of_graph(runs[0])
    for folder, run in zip(folders, runs, strict=True):
        if run.settings.model not in ("distmult", "complex"):
            raise CardkgeError(f"{folder}: join takes distmult and complex runs, its model is {run.settings.model}")
        if run.settings.joined or not run.epoch:
            fault = f"the mean of {run.settings.joined} runs" if run.settings.joined else "of no epoch yet"
            raise CardkgeError(f"{folder}: {fault}; join trained runs")
        if run.epoch < run.settings.epochs and not run.settings.patience:
            warn(f"{folder} stands at epoch {run.epoch} of {run.settings.epochs}")
        if run.settings.final:
            raise CardkgeError(f"{folder}: trained on valid too, so nothing is left to calibrate by; join those before")
        for what, value in _of_graph(run).items():
            if value != common[what]:
                fault = f"its {what} are not those of {folders[0]}"
                raise CardkgeError(f"{folder}: {fault}; join runs of one graph and one form")
    with new_folder(out, force) as folder:
        joined = _joined(runs)
        joined.settings = dataclasses.replace(joined.settings, data=data or joined.settings.data)
        fit(joined, data_of(joined, folders[0])[0], folder, threads)


def _of_graph(run):
    """What the runs to be joined have in common, by the words of a message."""
    return {
        "data": (run.entities, run.relations, run.data.get("facts", run.data["sha256"])),
        "bounds": bounds_digest(run.bounds),
        "reciprocal rows": bool(run.settings.reciprocal),
        "loops (--no-loops)": bool(run.settings.no_loops),
        "kinds of number (--dtype)": run.settings.dtype,
        "losses": run.settings.loss,
    }


def _joined(runs):
    """The Run of the mean scores: of ComplEx, or of DistMult where all are."""
    first, models = runs[0], [run.best_model() for run in runs]
    name = "complex" if any(isinstance(model, ComplEx) for model in models) else "distmult"
    tables = {}
    for table in ("entity", "relation"):
        parts = [_parts(model, table) for model in models]
        parts = [np.concatenate([part[i] for part in parts], axis=1) for i in range(2 if name == "complex" else 1)]
        tables[table] = np.concatenate(parts, axis=1)
    tables["relation"] /= len(models)
    changed = {"model": name, "dim": parts[0].shape[1], "joined": len(runs), "optimizer": "sgd"}
    settings = dataclasses.replace(first.settings, **changed, epochs=0, validate_every=0, patience=0)
    model = new_model(settings, len(first.entities), len(first.relations), initialise=False)
    model.params, model.vocabulary = tables, first.model.vocabulary
    of_graph = {"data": first.data, "types": first.types, "prefixes": first.prefixes}
    return Run(settings, first.entities, first.relations, model, {}, first.bounds, **of_graph)


def _parts(model, table):
    """The real and the imaginary parts (n, k) of a table's rows; those of DistMult are real."""
    rows = model.params[table]
    return np.split(rows, 2, axis=1) if isinstance(model, ComplEx) else (rows, np.zeros_like(rows))
