"""Bounds as a setting or a command names them: files of either kind, mined ones, none."""

import math
import os
from pathlib import Path

import numpy as np

from cardkge import CardkgeError, mine_bounds
from cardkge_tools.graph import rdf
from cardkge_tools.graph.bounds import (
    Bound,
    Constraints,
    Vocabulary,
    read_tsv,
    tightest,
    tsv_text,
    vocabulary,
    write_tsv,
)
from cardkge_tools.graph.shacl import Index, named, of_graph, read_rdf, turtle_text
from cardkge_tools.shell.files import replace_file


def read_files(files, graph, prefixes=None, schema=(), base=None):
    """Bounds of a graph from files: TSV, or RDF by the endings of their names. Returns (Constraints, notes).

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
    return Constraints(found, graph.relations, graph.types, graph.entities), notes


def both(known, more):
    """Bounds of shapes beside others: of the same relation and class the tightest of both."""
    found = {bound.key: bound for bound in known}
    for bound in more:
        found[bound.key] = tightest(found.get(bound.key, bound), bound)
    return list(found.values())


def find_constraints(bounds, dataset):
    """(Constraints, notes) as a setting names them: "none", "mined" (from train), or files with commas between."""
    if bounds in ("none", "mined"):
        table = np.tile([0.0, np.inf], (dataset.n_relations, 1))
        if bounds == "mined":
            table = mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations)
        graph = vocabulary(dataset)
        plain = [Bound(name, *row, where=bounds) for name, row in zip(dataset.relations, table.tolist(), strict=True)]
        return Constraints(plain, graph.relations, graph.types, graph.entities), []
    text = os.fspath(bounds)
    files = [text] if os.path.exists(text) else [part.strip() for part in text.split(",")]
    for path in files:
        if not os.path.exists(path):
            raise CardkgeError(f"bounds {path!r}: neither mined, nor none, nor a file")
    return read_files(files, vocabulary(dataset))


def find_bounds(bounds, dataset):
    """Bounds (R, 2) of every subject, as `find_constraints` finds them; those of classes and inverses left out."""
    return find_constraints(bounds, dataset)[0].plain


def read_bounds(path, relations):
    """Read a TSV file of bounds that speaks of every subject alone, as (R, 2) float64, columns lower and upper.

    (0, inf) for a relation that the file leaves out. relations: the R names of the graph.

    Raises CardkgeError, naming file and line, for all that `read_tsv` does, and for a bound of a class or an inverse.
    """
    bounds = read_tsv(path, Vocabulary([], list(relations)))
    for bound in bounds:
        if bound.inverse or bound.kind is not None:
            raise CardkgeError(
                f"{bound.where}: a bound of a class or an inverse, found {bound.name!r}; read_files reads it"
            )
    return Constraints(bounds, relations).plain


def write_bounds(path, bounds, relations):
    """Write (R, 2) bounds of the R named relations as read_bounds reads them, every relation."""
    rows = np.asarray(bounds, np.float64).tolist()
    write_tsv(path, [Bound(name, *row) for name, row in zip(relations, rows, strict=True)])


def write_bounds_file(path, bounds, prefixes=None, standard="shacl"):
    """Write Bounds as TSV, or as Turtle where the name of the file ends in .ttl."""
    if rdf.format_of(path) not in (None, "TURTLE"):
        raise CardkgeError(f"{path}: bounds are written as TSV or Turtle; end the name in .tsv or .ttl")
    bounds = getattr(bounds, "bounds", bounds)
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
