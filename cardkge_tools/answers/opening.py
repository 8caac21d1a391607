"""Data sets and runs as a command names them, with warnings that a user should read."""

from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from cardkge import CardkgeError
from cardkge_tools import SPLITS
from cardkge_tools.answers.runs import load_run
from cardkge_tools.graph.bound_files import find_bounds
from cardkge_tools.graph.graphs import Triples, describe_data, open_data, same_facts, vocabulary_digest
from cardkge_tools.graph.spelling import id_of
from cardkge_tools.shell.files import read_fields
from cardkge_tools.shell.terminal import shown, warn


def run_data(run, data=None, **where):
    """The data set of a run, from `data` if given."""
    try:
        return open_data(data or run.settings.data, run.settings.columns, **where)
    except CardkgeError as error:
        if data:
            raise
        raise CardkgeError(f"{error} (--data says where the run's data is now)") from error


def align_dataset(dataset, run, skip_unknown=False):
    """The Dataset with the ids of `run`, whose vocabulary may be larger or in another order.

    CardkgeError counts the names that the run does not know and gives the first three; with skip_unknown their triples
    are left out instead, and a warning of the data set counts them."""
    columns, strangers = [], []
    kinds = (("entity", "entities"), ("relation", "relations"))
    for kind, names, known in zip(kinds, (dataset.entities, dataset.relations), (run.entities, run.relations)):
        ids = {name: i for i, name in enumerate(known)}
        unknown = [name for name in names if name not in ids]
        if unknown:
            some = ", ".join([*(shown(name, quoted=True) for name in unknown[:3]), *["..."] * (len(unknown) > 3)])
            strangers.append(f"{len(unknown)} {kind[int(len(unknown) > 1)]} ({some})")
        columns.append(np.array([ids.get(name, -1) for name in names], dtype=np.int32))
    if strangers and not skip_unknown:
        remedy = "give the data that it was trained on, train on this data, or leave out the triples that have them"
        unknown = f"unknown to the run: {' and '.join(strangers)}"
        raise CardkgeError(f"{dataset.folder}: {unknown}; {remedy} (`evaluate --skip-unknown`)")
    (entity, relation), vocabulary = columns, vocabulary_digest(run.entities, run.relations)
    aligned, left = {}, []
    for split in SPLITS:
        h, r, t = np.asarray(getattr(dataset, split)).T
        triples = np.column_stack((entity[h], relation[r], entity[t]))
        kept = triples[(triples >= 0).all(1)]
        if len(kept) < len(triples):
            left.append(f"{len(triples) - len(kept)} of {len(triples)} {split} triples")
        aligned[split] = Triples.of(kept, vocabulary)
    warnings = dataset.warnings
    if left:
        warnings += (f"left out, for the run does not know {' and '.join(strangers)}: {', '.join(left)}",)
    return replace(dataset, entities=run.entities, relations=run.relations, warnings=warnings, **aligned)


def open_run(folder, data=None, skip_unknown=False, calibrated=True):
    """A saved run and its data set, with the ids of the run; calibrated as in `load_run`."""
    run = load_run(folder, calibrated)
    return run, aligned_data(run, folder, data, skip_unknown)


def aligned_data(run, folder, data, skip_unknown=False, **where):
    """`run_data` with the ids of the run; a warning for triples other than the run's, or if it has learnt nothing."""
    if run.epoch == 0 and not run.settings.joined:
        warn(f"{folder} has completed no epoch: its parameters are random")
    dataset = run_data(run, data, **where)
    if not same_facts(describe_data(dataset), run.data):
        warn(f"{dataset.folder}: these are not the triples that {folder} was trained on")
    elif (dataset.entities, dataset.relations) == (run.entities, run.relations):
        return dataset
    said = len(dataset.warnings)
    aligned = align_dataset(dataset, run, skip_unknown)
    warn(*aligned.warnings[said:])
    return aligned


def open_to_measure(folder, data=None, skip_unknown=False, calibrated=True):
    """`open_run`, with a warning where the run was trained on the facts that it is to be measured on."""
    run, dataset = open_run(folder, data, skip_unknown, calibrated)
    if run.settings.final and same_facts(describe_data(dataset), run.data):
        warn(f"{folder} was trained on the facts of valid and test too: the figures show what it remembers")
    return run, dataset


def choose_bounds(bounds, runs, dataset):
    """GraphBounds: those named, else those of the first run that has any, else mined ones."""
    own = [run.bounds for run in runs if run.bounds.any()]
    if bounds is None and own:
        return own[0]
    found, notes = find_bounds(bounds or "mined", dataset)
    warn(*notes)
    return found


def open_beside(folder, other, data, bounds):
    """A run, and another beside it: (folder -> run and its data set with the run's ids, GraphBounds)."""
    run, dataset = open_run(folder, data, calibrated=False)
    runs = {str(folder): (run, dataset)}
    if other:
        second = load_run(other, calibrated=False)
        if Path(other).resolve() == Path(folder).resolve():
            raise click.UsageError("RUN and OTHER are the same folder.")
        if not same_facts(second.data, run.data):
            warn(f"{other} was trained on other data than {folder}")
        runs[str(other)] = (second, align_dataset(dataset, second))
    return runs, choose_bounds(bounds, [run for run, _ in runs.values()], dataset)


def open_histories(folders):
    """Runs with a history, and with validations if there are several runs: name of the folder -> run."""
    runs, places = {}, set()
    for folder in folders:
        if Path(folder).resolve() in places:
            raise click.UsageError(f"{folder} is given twice.")
        places.add(Path(folder).resolve())
        runs[str(folder)] = run = load_run(folder, calibrated=False)
        if not run.history:
            raise CardkgeError(f"{folder} has completed no epoch yet: there is no history to show")
        if len(folders) > 1 and run.best is None:
            raise CardkgeError(f"{folder} was never validated: train it with --validate-every to lay it beside others")
    first = next(iter(runs))
    for folder, run in runs.items():
        if not same_facts(run.data, runs[first].data):
            warn(f"{folder} was trained on other data than {first}")
    return runs


def read_queries(path, entities, relations, prefixes=None):
    """Yield (line number, head, relation, None) or (line number, None, relation, tail) of a file of queries;
    CardkgeError where a line is not a query, a name is unknown, or there is no line."""
    at, expected = None, "head<TAB>relation, or ?<TAB>relation<TAB>tail"
    for at, fields in read_fields(path):
        head, relation, tail = [*fields, "?", "?"][:3] if len(fields) in (2, 3) else ("", "", "")
        if (head == "?") == (tail == "?"):
            line = "\t".join(fields)
            raise CardkgeError(f"{path}:{at}: not a query, {line[:80]!r}; expected {expected}")
        given = _known_name(entities, tail if head == "?" else head, "entity", f"{path}:{at}", prefixes)
        relation = _known_name(relations, relation, "relation", f"{path}:{at}", prefixes)
        yield at, *((None, relation, given) if head == "?" else (given, relation, None))
    if at is None:
        raise CardkgeError(f"{path}: no query in it; expected lines of {expected}")


def _known_name(names, name, kind, where, prefixes):
    """The name as the run spells it, with a warning where the spelling differs."""
    if name in names:
        return name
    try:
        spelt = list(names)
        return spelt[id_of(spelt, name, kind, prefixes)]
    except CardkgeError as error:
        raise CardkgeError(f"{where}: {error}") from error
