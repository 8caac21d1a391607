"""Where bounds come from and where they go: files of TSV and RDF, and the train split, from which they are mined."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from cardkge import CardkgeError, as_bounds, mine_bounds
from cardkge_tools.graph import rdf, shacl
from cardkge_tools.graph.bounds import Bound, GraphBounds, Vocabulary, read_tsv, tightest, tsv_text
from cardkge_tools.graph.graphs import open_data
from cardkge_tools.shell.files import replace_file, without_gz, write_report
from cardkge_tools.shell.terminal import counted, table, warn


def read_files(files, graph, prefixes=None, schema=(), base=None, beside=()):
    """Read the bounds of a graph from files: RDF by the endings of their names, else TSV. Returns (GraphBounds, notes).

    A relation or class that the graph lacks is an error in TSV. In RDF, which may describe more than this graph, its
    bound is dropped and counted in the notes. What the RDF files and `schema` (terms of the graph's own subject,
    property, object) say of ranges, domains and subclasses holds for all files.
    base: the IRI that relative IRIs are relative to. beside: further ones, a list of Bound."""
    prefixes = prefixes or graph.prefixes
    indices = {path: shacl.Index(path, base) for path in files if rdf.format_of(path)}
    schema = [*schema, *(triple for index in indices.values() for triple in index.schema)]
    found, shapes, notes = [], {}, []
    for path in files:
        if path in indices:
            indices[path].learn(schema)
            bounds, own = shacl.read_rdf(indices[path])
            bounds, dropped = shacl.of_graph(bounds, graph, prefixes)
            notes += own + [f"{path}: {what}" for what in dropped]
            for bound in bounds:
                shapes[bound.key] = tightest(shapes.get(bound.key, bound), bound)
        else:
            bounds = read_tsv(path, graph, notes)
            found += bounds
        if not bounds:
            notes.append(f"{path}: no bound in it for this graph")
    found = [tightest(bound, shapes.pop(bound.key, bound)) for bound in found]
    return GraphBounds([*found, *shapes.values(), *beside], graph.relations, graph.types, graph.entities), notes


def find_bounds(what, dataset):
    """The bounds that a setting names: "none", "mined" (from train), or files with commas between.

    Returns (GraphBounds, notes). The notes are warnings for the user."""
    graph = Vocabulary.of(dataset)
    if what in ("none", "mined"):
        mined = mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations) if what == "mined" else None
        return GraphBounds.named(as_bounds(mined, dataset.n_relations), graph, what), list(graph.types.notes)
    text = os.fspath(what)
    files = [text] if os.path.exists(text) else [part.strip() for part in text.split(",")]
    for path in files:
        if not os.path.exists(path):
            raise CardkgeError(f"bounds {path!r}: expected mined, none or a file")
    found, notes = read_files(files, graph)
    return found, graph.types.notes + notes + notes_on(found, dataset)


def notes_on(bounds, dataset):
    """Warnings of bounds that train contradicts, and of bounds that change nothing or cannot be met."""
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
    empty = [b for b in bounds.stated if b.kind is not None and b.kind not in filled]
    wide = [b for b in bounds.stated if b.lower == 0 and n <= b.upper < math.inf]
    alike = {
        "change nothing, for their classes have no member here": empty,
        f"change nothing, for the graph has {n:,} entities": wide,
        f"cannot be met, for the graph has {n:,} entities": [b for b in bounds.stated if b.lower > n],
    }
    return notes + [f"bounds that {what}: {len(some):,}, the first {some[0]}" for what, some in alike.items() if some]


def read_bounds(path, relations):
    """Read a TSV file of bounds of whole relations as (R, 2) float64, columns lower and upper.

    relations: the R names of the graph; one that the file leaves out has (0, inf). Raises CardkgeError, naming file and
    line, as `read_tsv` does, and for a bound of a class, an entity or an inverse."""
    bounds = read_tsv(path, Vocabulary(None, list(relations)))
    for bound in bounds:
        if bound.inverse or bound.kind is not None or bound.subject is not None:
            what = "a bound of a class, an entity or an inverse"
            raise CardkgeError(f"{bound.where}: {what}, found {bound.name!r}; read_files reads it")
    return GraphBounds(bounds, relations).tables[0]


def write_bounds(path, bounds, relations):
    """Write (R, 2) bounds of the R named relations as `read_bounds` reads them."""
    rows = np.asarray(bounds, np.float64).tolist()
    write_bounds_file(path, [Bound(name, *row) for name, row in zip(relations, rows, strict=True)])


def write_bounds_file(path, bounds, prefixes=None, standard="shacl"):
    """Write a list of Bound as Turtle where the name of the file ends in .ttl, else as TSV."""
    form = rdf.format_of(path)
    if form not in (None, "TURTLE"):
        raise CardkgeError(f"{path}: bounds are written as TSV or Turtle; end the name in .tsv or .ttl")
    if form and standard == "owl" and (own := [bound for bound in bounds if bound.subject is not None]):
        raise CardkgeError(f"{path}: OWL has no bounds of single entities, such as {own[0]}; write SHACL or TSV")
    text = shacl.turtle_text(bounds, prefixes, standard) if form else tsv_text(bounds)
    replace_file(path, lambda file: file.write(text.encode()))


def convert(source, target, prefixes=None, standard="shacl"):
    """Convert a file of bounds, TSV or RDF, to another. Returns (list of Bound, notes).

    prefixes: of names in TSV; None takes `prefixes.tsv` beside the TSV file, or those that an RDF source declares."""
    table = target if rdf.format_of(source) else source
    if prefixes is None:
        prefixes = rdf.read_prefixes(Path(table).parent / "prefixes.tsv")
    if rdf.format_of(source):
        index = shacl.Index(source)
        prefixes = prefixes if prefixes.namespaces else rdf.Prefixes(index.prefixes)
        bounds, notes = shacl.read_rdf(index)
        bounds = shacl.renamed(bounds, prefixes.name)
    else:
        bounds, notes = read_tsv(source), []
    if not bounds:
        raise CardkgeError(f"{source}: no bound in it; nothing has been written")
    write_bounds_file(target, bounds, prefixes, standard)
    if rdf.format_of(target) and any(b.lower % 1 or (b.upper < math.inf and b.upper % 1) for b in bounds):
        notes.append("bounds that are not whole numbers were rounded inwards")
    return bounds, notes


def run_convert(source, target, prefix, standard):
    """`bounds convert`: convert a file of bounds and report the result."""
    tabular = without_gz(target).endswith((".tsv", ".txt"))
    if rdf.format_of(source) is None and rdf.format_of(target) is None and not tabular:
        raise CardkgeError(f"{target}: bounds are written as TSV or Turtle; end the name in .tsv or .ttl")
    prefixes = rdf.Prefixes(rdf.given_prefixes(prefix)) if prefix else None
    bounds, notes = convert(source, target, prefixes, standard)
    warn(*notes)
    click.echo(f"{target}: {counted(len(bounds), 'bound')}")


# --- mining


@dataclass(frozen=True)
class Maximum:
    """A significant maximum of a relation (or of its inverse), for all subjects or for a class.

    kind: class id, or None. upper: the maximum. subjects: the subjects that have the relation. support: those with at
    least `upper` tails. likelihood: the share of the support with exactly `upper`. bound: the lower confidence bound of
    that share. largest: the largest number of tails of a subject. (Of an inverse read heads for tails.)"""

    relation: int
    inverse: bool
    kind: int | None
    upper: int
    subjects: int
    support: int
    likelihood: float
    bound: float
    largest: int


def significant_maxima(triples, n_entities, n_relations, types=None, min_support=1, confidence=0.95, likelihood=0.9):
    """Maxima that the data supports, of each relation, its inverse, and of the subjects of each class (Giacometti,
    Markhoff, Soulet, ISWC 2019).

    With n_i subjects that have exactly i tails and n_{>=i} that have i or more, the chance that a subject with i has no
    more is estimated by n_i / n_{>=i}; it is at least n_i / n_{>=i} - sqrt(log(1 / (1 - confidence)) / (2 n_{>=i}))
    with that confidence (Hoeffding's bound). The maximum is the smallest i where this lower bound reaches `likelihood`
    and n_{>=i} >= min_support; a relation may have no such i. A class needs a maximum below the relation's.
    triples: (n, 3) ids, distinct. types: Types. Returns a list of Maximum by relation, direction, class."""
    for name, value in (("confidence", confidence), ("likelihood", likelihood)):
        if not 0 < value < 1:
            raise CardkgeError(f"{name} must lie between 0 and 1, found {value:g}")
    found = []
    for inverse in (False, True):
        subjects = triples[:, 2 if inverse else 0].astype(np.int64)
        pairs, counts = np.unique(triples[:, 1].astype(np.int64) * n_entities + subjects, return_counts=True)
        relations, subjects = np.divmod(pairs, n_entities)
        contexts = [(np.zeros(len(pairs), np.int64), relations, counts)]
        if types is not None and types.classes:
            of_types = types.pairs
            first = np.searchsorted(of_types[:, 0], subjects, "left")
            number = np.searchsorted(of_types[:, 0], subjects, "right") - first
            rows = np.repeat(np.arange(len(pairs)), number)
            at = np.arange(len(rows)) + np.repeat(first - np.cumsum(number) + number, number)
            contexts.append((1 + of_types[at, 1], relations[rows], counts[rows]))
        context, relation, count = (np.concatenate(part) for part in zip(*contexts))
        key = context * n_relations + relation
        found += _maxima(key, count, n_relations, inverse, min_support, confidence, likelihood)
    whole = {(each.relation, each.inverse): each.upper for each in found if each.kind is None}
    tighter = [m for m in found if m.kind is None or m.upper < whole.get((m.relation, m.inverse), math.inf)]
    return sorted(tighter, key=lambda m: (m.relation, m.inverse, -1 if m.kind is None else m.kind))


def _maxima(key, count, n_relations, inverse, min_support, confidence, likelihood):
    """The Maximum of each key, context (0: all subjects, 1 + c: class c) times R + relation; arrays by subject."""
    most = count.max(initial=0) + 1
    values, exactly = np.unique(key * most - count, return_counts=True)  # by key, the largest count first
    key_of = -(-values // most)
    count_of = key_of * most - values
    start, until = np.searchsorted(key_of, key_of), np.cumsum(exactly)
    at_least = until - (until - exactly)[start]
    share = exactly / at_least
    bound = share - np.sqrt(math.log(1 / (1 - confidence)) / (2 * at_least))
    good = np.flatnonzero((bound >= likelihood) & (at_least >= min_support))[::-1]
    keys, position = np.unique(key_of[good], return_index=True)  # the smallest count of a key is its last
    i = good[position]
    kinds, relations = np.divmod(keys, n_relations)
    numbers = count_of[i], np.bincount(key)[keys], at_least[i], share[i], bound[i], count_of[start[i]]
    rows = zip(*(column.tolist() for column in (relations, kinds, *numbers)), strict=True)
    return [Maximum(r, inverse, kind - 1 if kind else None, *row) for r, kind, *row in rows]


def maxima_as_bounds(maxima, relations, types=None):
    """Bounds (0, maximum) with names."""
    kinds = [None if m.kind is None else types.classes[m.kind] for m in maxima]
    return [Bound(relations[m.relation], 0.0, float(m.upper), m.inverse, k, "mined") for m, k in zip(maxima, kinds)]


def run_mine(data, columns, population, level, out, json_file):
    """`mine`: show and write the smallest and the largest numbers of tails, or, at a level (min_support, confidence,
    likelihood), significant maxima."""
    dataset = open_data(data, columns)
    graph, sizes = Vocabulary.of(dataset), (dataset.n_entities, dataset.n_relations)
    if level is None:
        mined = mine_bounds(dataset.train, *sizes, population).tolist()
        bounds = [Bound(name, *row) for name, row in zip(dataset.relations, mined, strict=True)]
        records = list(map(bound_record, bounds))
        rows, headers = [[b.relation, f"{b.lower:g}", f"{b.upper:g}"] for b in bounds], ["relation", "lower", "upper"]
    else:
        warn(*graph.types.notes)
        maxima = significant_maxima(dataset.train, *sizes, graph.types, *level)
        bounds, records, rows = maxima_as_bounds(maxima, dataset.relations, graph.types), [], []
        for b, m in zip(bounds, maxima):
            numbers = {"subjects": m.subjects, "support": m.support, "likelihood": m.likelihood, "bound": m.bound}
            records.append(bound_record(b) | numbers | {"largest": m.largest})
            shares = [f"{100 * share:.1f}" for share in (m.likelihood, m.bound)]
            counts = [f"{number:,}" for number in (m.largest, m.subjects, m.support)]
            rows.append([b.name, b.kind or "", f"{b.upper:g}", *counts, *shares])
        headers = ["relation", "class", "maximum", "largest", "subjects", "support", "likelihood %", "at least %"]
    if out:
        write_bounds_file(out, bounds, graph.prefixes)
    if not write_report(json_file, records):
        return
    if level is not None and not bounds:
        click.echo("the data supports no maximum; a lower --confidence, --likelihood or --min-support asks for less")
        return
    table(rows, headers, "l" if level is None else "ll")


def bound_record(bound):
    """A bound for JSON, where null stands for no upper bound."""
    numbers = {"lower": bound.lower, "upper": None if math.isinf(bound.upper) else bound.upper}
    return {"relation": bound.relation, "inverse": bound.inverse, "class": bound.kind, **numbers}
