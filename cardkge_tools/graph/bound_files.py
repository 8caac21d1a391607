"""Bounds as a setting or a command names them: files of either kind, mined ones, none."""

import math
import os
from pathlib import Path

import numpy as np

from cardkge import CardkgeError, as_bounds, mine_bounds
from cardkge_tools.graph import rdf
from cardkge_tools.graph.bounds import Bound, GraphBounds, Vocabulary, read_tsv, tightest, tsv_text, vocabulary
from cardkge_tools.graph.shacl import Index, named, of_graph, read_rdf
from cardkge_tools.graph.turtle import turtle_text
from cardkge_tools.shell.files import replace_file


def read_files(files, graph, prefixes=None, schema=(), base=None):
    """Bounds of a graph from files: TSV, or RDF by the endings of their names. Returns (GraphBounds, notes).

    In TSV a relation, or a class, that the graph does not have is an error that names the line; in RDF, which may
    describe more than this graph, the bound is dropped and counted in the notes (sentences). schema: (subject,
    property, object) terms of the graph's own schema; what it and each of the RDF files say of ranges, domains and
    subclasses holds for all of these. base: the IRI that relative IRIs are resolved against.
    """
    prefixes = prefixes or graph.prefixes
    indices = {path: Index(path, base) for path in files if rdf.format_of(path)}
    schema = [*schema, *(triple for index in indices.values() for triple in index.schema)]
    found, notes = [], []
    for path in files:
        if path in indices:
            indices[path].learn(schema)
            bounds, own = read_rdf(indices[path])
            bounds, dropped = of_graph(bounds, graph, prefixes)
            notes += own + [f"{path}: {what}" for what in dropped]
            found = both(found, bounds)
        else:
            bounds = read_tsv(path, graph, notes)
            found += bounds
        if not bounds:
            notes.append(f"{path}: no bound in it for this graph")
    return GraphBounds(found, graph.relations, graph.types, graph.entities), notes


def both(known, more):
    """Bounds of shapes beside others: of the same relation and class the tightest of both."""
    found = {bound.key: bound for bound in known}
    for bound in more:
        found[bound.key] = tightest(found.get(bound.key, bound), bound)
    return list(found.values())


def find_bounds(what, dataset):
    """(GraphBounds, notes) as a setting names them: "none", "mined" (from train), or files with commas between. The
    notes are sentences that a user should read."""
    graph = vocabulary(dataset)
    if what in ("none", "mined"):
        table = None
        if what == "mined":
            table = mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations)
        return GraphBounds.named(as_bounds(table, dataset.n_relations), graph, what), list(graph.types.notes)
    text = os.fspath(what)
    files = [text] if os.path.exists(text) else [part.strip() for part in text.split(",")]
    for path in files:
        if not os.path.exists(path):
            raise CardkgeError(f"bounds {path!r}: neither mined, nor none, nor a file")
    found, notes = read_files(files, graph)
    return found, graph.types.notes + notes + notes_on(found, dataset)


def notes_on(bounds, dataset):
    """What a user should know of GraphBounds beside the train split: sentences on those that it contradicts, and on
    those that change nothing."""
    notes, ends = [], ("heads", "tails")
    for inverse in (False, True):
        pairs, counts = np.unique(dataset.train[:, [1, 2 if inverse else 0]], axis=0, return_counts=True)
        relations, subjects = np.asarray(pairs).T
        beyond = counts > bounds.of(relations, subjects, inverse)[:, 1]
        for r in np.unique(relations[beyond]).tolist():
            here, name = relations == r, "^" * inverse + dataset.relations[r]
            number = f"{np.count_nonzero(beyond & here):,} of {np.count_nonzero(here):,} {ends[inverse]}"
            notes.append(f"{name}: {number} have more {ends[not inverse]} in train than their bounds allow")
    if bounds.overruled:
        notes.append(f"{bounds.overruled:,} bounds of single entities contradict wider ones, and hold in their place")
    n, types = dataset.n_entities, bounds.types
    filled = {types.classes[kind] for kind in np.unique(types.pairs[:, 1]).tolist()}
    alike = {
        "change nothing, for their classes have no member here": [
            b for b in bounds.stated if b.kind is not None and b.kind not in filled
        ],
        f"change nothing, for the graph has {n:,} entities": [
            b for b in bounds.stated if b.lower == 0 and n <= b.upper < math.inf
        ],
        f"cannot be met, for the graph has {n:,} entities": [b for b in bounds.stated if b.lower > n],
    }
    return notes + [f"bounds that {what}: {len(some):,}, the first {some[0]}" for what, some in alike.items() if some]


def read_bounds(path, relations):
    """Read a TSV file of bounds that speaks of every subject alone, as (R, 2) float64, columns lower and upper.

    (0, inf) for a relation that the file leaves out. relations: the R names of the graph.

    Raises CardkgeError, naming file and line, for all that `read_tsv` does, and for a bound of a class or an inverse.
    """
    bounds = read_tsv(path, Vocabulary(None, list(relations)))
    for bound in bounds:
        if bound.inverse or bound.kind is not None or bound.subject is not None:
            raise CardkgeError(
                f"{bound.where}: a bound of a class, an entity or an inverse, found {bound.name!r}; read_files reads it"
            )
    return GraphBounds(bounds, relations).tables[0]


def write_tsv(path, bounds):
    """Write a list of Bound as `read_tsv` reads it."""
    text = tsv_text(bounds)
    replace_file(path, lambda file: file.write(text.encode()))


def write_bounds(path, bounds, relations):
    """Write (R, 2) bounds of the R named relations as read_bounds reads them, every relation."""
    rows = np.asarray(bounds, np.float64).tolist()
    write_tsv(path, [Bound(name, *row) for name, row in zip(relations, rows, strict=True)])


def write_bounds_file(path, bounds, prefixes=None, standard="shacl"):
    """Write a list of Bound as TSV, or as Turtle where the name of the file ends in .ttl."""
    if rdf.format_of(path) not in (None, "TURTLE"):
        raise CardkgeError(f"{path}: bounds are written as TSV or Turtle; end the name in .tsv or .ttl")
    if rdf.format_of(path) and (own := [bound for bound in bounds if bound.subject is not None]):
        raise CardkgeError(f"{path}: {len(own):,} bounds are of single entities, the first {own[0]}; write TSV")
    text = turtle_text(bounds, prefixes, standard) if rdf.format_of(path) else tsv_text(bounds)
    replace_file(path, lambda file: file.write(text.encode()))


def convert(source, target, prefixes=None, standard="shacl"):
    """Convert a file of bounds, TSV or RDF, to another; returns (the bounds, notes).

    prefixes: of the names in TSV; None takes `prefixes.tsv` beside the TSV file (the source, or else the target) and
    those that an RDF source declares.
    """
    if rdf.format_of(source):
        bounds, notes = read_rdf(source)
        if prefixes is None:
            prefixes = rdf.read_prefixes(Path(target).parent / "prefixes.tsv")
        if not prefixes.namespaces:
            prefixes = rdf.Prefixes(Index(source).prefixes)
        bounds = named(bounds, prefixes)
    else:
        bounds, notes = read_tsv(source), []
        prefixes = prefixes or rdf.read_prefixes(Path(source).parent / "prefixes.tsv")
    write_bounds_file(target, bounds, prefixes, standard)
    if rdf.format_of(target) and any(b.lower % 1 or (b.upper < math.inf and b.upper % 1) for b in bounds):
        notes.append("bounds that are no whole numbers were rounded inwards")
    return bounds, notes
