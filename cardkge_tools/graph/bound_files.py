"""Where bounds come from, and where they go: files (TSV, Turtle), the train split (significant maxima), or none."""

import collections
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cardkge import CardkgeError, as_bounds, mine_bounds
from cardkge_tools.graph import rdf
from cardkge_tools.graph.bounds import Bound, GraphBounds, Vocabulary, read_tsv, tightest, tsv_text, vocabulary
from cardkge_tools.graph.graphs import open_data
from cardkge_tools.graph.shacl import Index, named, of_graph, read_rdf
from cardkge_tools.shell.files import is_stdout, replace_file, write_json
from cardkge_tools.shell.terminal import table, warn


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


def turtle_text(bounds, prefixes=None, standard="shacl"):
    """SHACL shapes, or OWL axioms (standard="owl"), of Bounds with names of a graph, as Turtle.

    A bound of every subject is a shape whose target is the subjects (objects, if inverse) of the property itself, or a
    restriction of owl:Thing. Bounds that are no whole numbers are rounded inwards. Read back they are the same.
    """
    prefixes = prefixes or rdf.Prefixes()
    namespaces = {**prefixes.namespaces}
    ours = rdf.Prefixes(namespaces)
    for prefix in ("sh",) if standard == "shacl" else ("owl", "rdfs"):
        ours.add(prefix, rdf.WELL_KNOWN[prefix])
    if any(name is not None and prefixes.expand(name) is None for b in bounds for name in (b.relation, b.kind)):
        ours.add("name", rdf.NAME_OF_NOTHING)
    lines = [f"@prefix {prefix}: <{namespace}> .\n" for prefix, namespace in ours.namespaces.items()]
    write = _shacl_blocks if standard == "shacl" else _owl_blocks
    blocks = write(bounds, lambda name: _turtle(prefixes.term(name), ours), lambda term: _turtle(term, ours))
    return "".join([*lines, *blocks])


def _turtle(term, prefixes):
    """A term as Turtle writes it, by a prefix where its last part is plain."""
    if term.startswith("<"):
        prefix, colon, rest = prefixes.shorten(term[1:-1]).partition(":")
        if colon and prefix in prefixes.namespaces and re.fullmatch(r"[^\W.-][\w-]*|", rest):
            return f"{prefix}:{rest}"
    return term


def _whole(bound):
    """(lower, upper) as whole numbers, upper None for infinity."""
    return math.ceil(bound.lower), None if bound.upper == math.inf else math.floor(bound.upper)


def _shacl_blocks(bounds, name, term):
    groups = collections.defaultdict(list)  # the target, written out -> bounds
    for bound in bounds:
        if bound.kind is not None:
            target = f"{term('<' + rdf.SHACL + 'targetClass>')} {name(bound.kind)}"
        else:
            of = "targetObjectsOf" if bound.inverse else "targetSubjectsOf"
            target = f"{term('<' + rdf.SHACL + of + '>')} {name(bound.relation)}"
        groups[target].append(bound)
    sh = term(f"<{rdf.SHACL}NodeShape>").removesuffix("NodeShape")
    for target, members in groups.items():
        parts = [f"\n[] a {sh}NodeShape ;\n    {target}"]
        for bound in members:
            lower, upper = _whole(bound)
            path = f"[ {sh}inversePath {name(bound.relation)} ]" if bound.inverse else name(bound.relation)
            counts = f" ; {sh}minCount {lower}" * (lower > 0) + (
                f" ; {sh}maxCount {upper}" if upper is not None else ""
            )
            parts.append(f" ;\n    {sh}property [ {sh}path {path}{counts} ]")
        yield "".join([*parts, " .\n"])


def _owl_blocks(bounds, name, term):
    owl = term(f"<{rdf.OWL}Thing>").removesuffix("Thing")
    subclass = term(f"<{rdf.SUBCLASS}>")
    integer = "<http://www.w3.org/2001/XMLSchema#nonNegativeInteger>"
    for bound in bounds:
        lower, upper = _whole(bound)
        kind = f"{owl}Thing" if bound.kind is None else name(bound.kind)
        path = f"[ {owl}inverseOf {name(bound.relation)} ]" if bound.inverse else name(bound.relation)
        if lower == upper:
            counts = [("cardinality", lower)]
        else:
            counts = [("minCardinality", lower)] * (lower > 0) + [("maxCardinality", upper)] * (upper is not None)
        for what, number in counts:
            restriction = f'[ a {owl}Restriction ; {owl}onProperty {path} ; {owl}{what} "{number}"^^{integer} ]'
            yield f"\n{kind} {subclass} {restriction} .\n"


@dataclass(frozen=True)
class Maximum:
    """A significant maximum cardinality. relation, inverse: whose. kind: class id, or None. upper: the maximum.

    subjects: heads (tails, if inverse) of the relation, of that class. support: those with at least `upper`.
    likelihood: the share of the support with exactly `upper`; bound: its lower confidence bound. largest: the most any
    subject has.
    """

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
    and n_{>=i} >= min_support; a relation may have none. A class's is left out where it is not below the relation's.
    triples: (n, 3) ids, distinct. types: Types. Returns a list of Maximum by relation, direction, class.
    """
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
        found += _maxima(context, relation, count, n_relations, inverse, min_support, confidence, likelihood)
    whole = {(each.relation, each.inverse): each.upper for each in found if each.kind is None}
    tighter = [m for m in found if m.kind is None or m.upper < whole.get((m.relation, m.inverse), math.inf)]
    return sorted(tighter, key=lambda m: (m.relation, m.inverse, -1 if m.kind is None else m.kind))


def _maxima(context, relation, count, n_relations, inverse, min_support, confidence, likelihood):
    """The Maximum of each context (0: all subjects, 1 + c: class c) and relation; arrays by subject."""
    order = np.lexsort((-count, context * n_relations + relation))
    key, count = (context * n_relations + relation)[order], count[order]
    last = np.flatnonzero(np.append((key[1:] != key[:-1]) | (count[1:] != count[:-1]), len(key) > 0))
    exactly = np.diff(last, prepend=-1)  # subjects with this key and count
    key_of, count_of = key[last], count[last]
    start = np.searchsorted(key, key_of, "left")
    at_least = last + 1 - start  # counts fall within a key
    share = exactly / at_least
    bound = share - np.sqrt(math.log(1 / (1 - confidence)) / (2 * at_least))
    good = np.flatnonzero((bound >= likelihood) & (at_least >= min_support))
    keys, position = np.unique(key_of[good][::-1], return_index=True)  # the smallest count is the last of its key
    found = []
    for k, i in zip(keys.tolist(), good[::-1][position].tolist()):
        kind, r = divmod(k, n_relations)
        subjects = int(np.searchsorted(key, k, "right") - start[i])
        found.append(
            Maximum(
                r,
                inverse,
                kind - 1 if kind else None,
                int(count_of[i]),
                subjects,
                int(at_least[i]),
                float(share[i]),
                float(bound[i]),
                int(count[start[i]]),
            )
        )
    return found


def maxima_as_bounds(maxima, relations, types=None):
    """Bounds (0, maximum) with names."""
    classes = types.classes if types is not None else []
    return [
        Bound(
            relations[m.relation], 0.0, float(m.upper), m.inverse, None if m.kind is None else classes[m.kind], "mined"
        )
        for m in maxima
    ]


def mine_plain(data, columns, population, out, json_file):
    """The least and the largest number of tails, shown and written."""
    dataset = open_data(data, columns)
    table_of = mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations, population)
    bounds = [Bound(name, *row) for name, row in zip(dataset.relations, table_of.tolist(), strict=True)]
    if out:
        write_bounds_file(out, bounds, vocabulary(dataset).prefixes)
    if json_file:
        write_json(json_file, [described(bound) for bound in bounds])
    if not is_stdout(json_file):
        table([[b.relation, f"{b.lower:g}", f"{b.upper:g}"] for b in bounds], ["relation", "lower", "upper"])


def mine_maxima(data, columns, confidence, likelihood, min_support, out, json_file):
    """Maxima that the data supports, of relations, inverses and classes, shown and written."""
    dataset = open_data(data, columns)
    graph = vocabulary(dataset)
    for note in graph.types.notes:
        warn(note)
    sizes = dataset.n_entities, dataset.n_relations
    maxima = significant_maxima(dataset.train, *sizes, graph.types, min_support, confidence, likelihood)
    bounds = maxima_as_bounds(maxima, dataset.relations, graph.types)
    if out:
        write_bounds_file(out, bounds, graph.prefixes)
    numbers = ("subjects", "support", "likelihood", "bound", "largest")
    if json_file:
        write_json(json_file, [described(b) | {n: getattr(m, n) for n in numbers} for b, m in zip(bounds, maxima)])
    if is_stdout(json_file):
        return
    rows = [
        [b.name, b.kind or "", f"{b.upper:g}", f"{m.largest:,}", f"{m.subjects:,}", f"{m.support:,}"]
        + [f"{100 * share:.1f}" for share in (m.likelihood, m.bound)]
        for b, m in zip(bounds, maxima)
    ]
    headers = ["relation", "class", "maximum", "largest", "subjects", "support", "likelihood %", "at least %"]
    table(rows, headers, "ll")


def described(bound):
    """A bound for JSON; an upper bound of null is none."""
    upper = None if math.isinf(bound.upper) else bound.upper
    return {
        "relation": bound.relation,
        "inverse": bound.inverse,
        "class": bound.kind,
        "lower": bound.lower,
        "upper": upper,
    }
