"""`import`: a user's own files (RDF, tables, OpenKE) become a folder with `triples.tsv` and what goes with it.

`triples.tsv` is written when all files are read, because a triple may stand in a file more than once.
"""

import codecs
import collections
import contextlib
import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np

from cardkge import CardkgeError
from cardkge_tools import SPLITS
from cardkge_tools.graph import bound_files, rdf, shacl
from cardkge_tools.graph.bounds import Vocabulary, read_tsv, read_types
from cardkge_tools.graph.graphs import load_triples, refuse_inverse_names
from cardkge_tools.graph.sources import LINES, OPENKE, TABLES, RdfReader, Triples, is_openke, read_openke, read_table
from cardkge_tools.graph.spelling import look_alike_warnings
from cardkge_tools.shell.files import is_stdout, make_folder, replace_file, without_gz, write_json
from cardkge_tools.shell.terminal import counter, warn

TRIPLES, TYPES, PREFIXES, BOUNDS = "triples.tsv", "types.tsv", "prefixes.tsv", "bounds.tsv"
FIRST, REST = rdf.RDF + "first", rdf.RDF + "rest"
SCHEMA = {rdf.RDFS + name for name in ("domain", "range", "subPropertyOf")} | {FIRST, REST}


@dataclass
class Imported:
    """What an import wrote, in numbers.

    triples, entities, relations: of triples.tsv. counts: what was left out or merged, a sentence part -> a number.
    classes, typed: of types.tsv. bounds: lines of bounds.tsv. notes: sentences. folder: where it is.
    """

    folder: Path
    triples: int = 0
    entities: int = 0
    relations: int = 0
    typed: int = 0
    classes: int = 0
    bounds: int = 0
    counts: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)


@dataclass(frozen=True)
class ImportOptions:
    """How files are read: see the command's help. prefixes: a dict prefix -> namespace. form: the ending, without its
    full stop, by which every file is read. base: the IRI that relative IRIs are resolved against."""

    columns: str = "hrt"
    header: bool = False
    delimiter: str | None = None
    normalise: bool = False
    literals: str = "drop"
    type_relation: str = "rdf:type"
    keep_schema: bool = False
    prefixes: dict = field(default_factory=dict)
    form: str | None = None
    base: str | None = None


def import_graph(files, out, options=None, bounds=(), force=False, progress=None):
    """Read files into the new folder `out`; returns Imported.

    files: RDF, TSV, CSV (by the endings of their names, `.gz` too), OpenKE folders. bounds: files of bounds, TSV, SHACL
    or OWL, for `bounds.tsv`. progress(done, total, what), if given, is called with bytes of the file.
    Raises CardkgeError for a file that cannot be read or a folder that holds an imported graph already.
    """
    options = options or ImportOptions()
    kinds = [_kind(path, options) for path in files]
    for path in bounds:  # what is wrong with them is known before hours of reading
        shacl.read_rdf(shacl.Index(path, options.base)) if rdf.format_of(path) else read_tsv(path)
    out = Path(out)
    if not force and (found := next((name for name in (TRIPLES, "train.tsv") if (out / name).exists()), None)):
        raise CardkgeError(f"{out} has a {found}; choose another --out, or --force replaces it")
    prefixes = rdf.Prefixes(options.prefixes)
    for path in (path for path, kind in zip(files, kinds, strict=True) if kind == "table"):
        _take_prefixes(prefixes, Path(path).parent / PREFIXES)
    triples, splits, tables = Triples(), [], {}
    delimiter = options.delimiter or TABLES.get(f".{options.form}")
    rdf_alone = not any(kind in ("openke", "table") for kind in kinds)
    for number, (path, kind) in enumerate(zip(files, kinds, strict=True), 1):
        report = progress and (lambda done, total, path=path: progress(done, total, str(path)))
        if kind == "openke":
            splits.append(read_openke(path, triples))
        elif kind == "table":
            first = len(triples)
            read_table(path, triples, options.columns, options.header, delimiter, options.normalise)
            tables[str(path)] = first, len(triples)
        else:
            scope = "" if number == 1 and rdf_alone else f"f{number}-"
            reader = RdfReader(triples, options.literals == "keep", scope, kind not in rdf.LINE_FORMATS)
            found = rdf.read_statements(path, reader.consume, kind, report, options.base)
            for prefix, namespace in found.items():
                prefixes.add(prefix, namespace)
    if not triples.ids:
        left = f" ({triples.counts['literals left out']:,} literals left out)" if triples.counts else ""
        raise CardkgeError(f"{', '.join(map(str, files))}: no triples between entities{left}")
    result = Imported(out, notes=[] if options.header else triples.first_lines(tables))
    if not options.base:
        result.notes += rdf.relative_notes(triples.entities, triples.relations)
    make_folder(out, [])
    is_rdf = any(kind not in ("openke", "table") for kind in kinds)
    schema = _write_graph(result, triples, prefixes, options, splits if len(files) == 1 else [], is_rdf)
    rdf.write_prefixes(out / PREFIXES, prefixes)
    if bounds:
        try:
            _write_bounds(result, bounds, prefixes, schema, options.base)
        except CardkgeError:
            for name in (TRIPLES, TYPES, PREFIXES, *(f"{split}.tsv" for split in SPLITS)):
                (out / name).unlink(missing_ok=True)
            raise
    result.counts = {what: number for what, number in triples.counts.items() if number}
    return result


def _take_prefixes(prefixes, path):
    """Take in what short names mean in the tables of a folder that `import` wrote."""
    for prefix, namespace in rdf.read_prefixes(path).namespaces.items():
        if prefixes.namespaces.get(prefix, namespace) != namespace or prefixes.add(prefix, namespace) != prefix:
            raise CardkgeError(f"{path}: the prefix {prefix!r} means something else in another file; rename it in one")


def _kind(path, options):
    """How a file is read; CardkgeError where nothing is known of it."""
    if is_openke(path):
        return "openke"
    if os.path.isdir(path):
        missing = [name for name in OPENKE if not os.path.isfile(os.path.join(path, name))]
        raise CardkgeError(f"{path}: a folder is read in OpenKE's format, and this one has no {', '.join(missing)}")
    if not os.path.exists(path):
        raise CardkgeError(f"{path}: no such file")
    ending = os.path.splitext(without_gz(path).lower())[1] if options.form is None else f".{options.form}"
    kind = rdf.FORMATS.get(ending)
    if kind:
        rdf.load_pyoxigraph()
        return kind
    if ending in TABLES or options.delimiter:
        return "table"
    known = ", ".join([*rdf.FORMATS, *TABLES])
    raise CardkgeError(
        f"{path}: its format is not known by the ending {ending or '(none)'}; known are {known}, .gz too;"
        " or say --format"
    )


def _write_graph(result, triples, prefixes, options, splits, is_rdf):
    """Write triples.tsv and types.tsv, and the splits of an OpenKE folder. Returns what the graph says of ranges,
    domains and subclasses: (subject, property, object) terms."""
    entities, entity_ids = _final_names(triples.entities, prefixes, is_rdf)
    relations, relation_ids = _final_names(triples.relations, prefixes, is_rdf)
    refuse_inverse_names(result.folder, relations)
    table = triples.distinct(entity_ids, relation_ids)
    known = rdf.Prefixes(
        prefixes.namespaces | {p: n for p, n in rdf.WELL_KNOWN.items() if p not in prefixes.namespaces}
    )
    iris = [known.expand(name) or name for name in relations]
    type_iri = known.expand(options.type_relation)
    types = np.array([options.type_relation in (name, iri) or iri == type_iri for name, iri in zip(relations, iris)])
    subclass = np.array([iri == rdf.SUBCLASS for iri in iris])
    schema = types | subclass | np.array([_is_schema(iri) for iri in iris])
    column = table[:, 1]
    facts = table
    if not options.keep_schema:
        facts = _with_members(table[~schema[column]], _lists(table, iris), triples.counts)
    if not len(facts):
        raise CardkgeError("no facts are left beside types and schema statements; --keep-schema takes them as facts")
    dropped = int(np.count_nonzero((schema & ~types)[column]))
    if dropped and not options.keep_schema:
        triples.counts["schema statements (subclasses, domains, restrictions, shapes) left out of the facts"] += dropped
    if splits and len(splits[0]) == 3 and len(facts) == len(triples):
        limits = np.cumsum(list(splits[0].values()))
        for split, part in zip(splits[0], np.split(facts, limits[:-1])):
            write_triples(result.folder / f"{split}.tsv", part, entities, relations)
        result.notes.append("the folder's splits are kept as train.tsv, valid.tsv and test.tsv")
    write_triples(result.folder / TRIPLES, facts, entities, relations)
    used = np.zeros(len(entities), bool)
    used[facts[:, ::2]] = True
    result.triples, result.entities = len(facts), int(np.count_nonzero(used))
    result.relations = len(np.unique(facts[:, 1]))
    alike = look_alike_warnings(itertools.compress(entities, used.tolist()), relations)
    result.notes += [f"{note} (--normalise makes those of tables one)" if not is_rdf else note for note in alike]
    _write_types(result, table[types[column]], table[subclass[column]], used, entities, triples.counts)
    of_classes = table[np.array([iri in shacl.SCHEMA for iri in iris])[column]]
    return [(known.term(entities[s]), f"<{iris[p]}>", known.term(entities[o])) for s, p, o in of_classes.tolist()]


def _lists(table, iris):
    """The RDF lists of a table of ids: node -> its own members (one, as a rule) and the nodes that follow it."""
    lists = collections.defaultdict(lambda: ([], []))
    for place, iri in enumerate((FIRST, REST)):
        for node, _, value in table[np.array([iri == name for name in iris])[table[:, 1]]].tolist():
            lists[node][place].append(value)
    return lists


def _with_members(facts, lists, counts):
    """The facts, where the tail is a list one for each of its members in its place; those of lists within it too. The
    end of a list, rdf:nil, is no member."""
    at = np.flatnonzero(np.isin(facts[:, 2], list(lists))) if lists else ()
    if not len(at):
        return facts
    rows, before = [], 0
    for i in at.tolist():
        rows.append(facts[before:i])
        before = i + 1
        members, stack, seen = {}, [facts[i, 2].item()], set()
        while stack:
            node = stack.pop()
            if node not in lists:
                members[node] = None
            elif node not in seen:
                seen.add(node)
                own, following = lists[node]
                stack += [each for each in following if each in lists] + own[::-1]
        rows.append(np.array([(*facts[i, :2], member) for member in members], np.int32).reshape(-1, 3))
        counts["facts whose tail is a member of a list"] += len(members)
    facts = np.concatenate([*rows, facts[before:]])
    _, first = np.unique(facts, axis=0, return_index=True)
    return facts[np.sort(first)]


def _final_names(names, prefixes, is_rdf):
    """(names, ids): the names as they are written, each once, and for each of the old ids the new one. A field of a
    table and a term of an RDF file may spell the same name."""
    final = prefixes.names(names) if is_rdf else list(names)
    distinct = dict.fromkeys(final)
    if len(distinct) == len(final):
        return final, np.arange(len(final), dtype=np.int32)
    place = {name: i for i, name in enumerate(distinct)}
    return list(distinct), np.array([place[name] for name in final], np.int32)


def _is_schema(iri):
    if iri.startswith((rdf.SHACL, rdf.OWL)):
        return iri != rdf.OWL + "sameAs"
    return iri in SCHEMA


def write_triples(path, triples, entities, relations):
    """Write (n, 3) ids as a triple file, in blocks."""

    def write(file):
        for start in range(0, len(triples), LINES):
            part = triples[start : start + LINES]
            words = ["", "\t", "", "\t", "", "\n"] * len(part)
            for column, names in enumerate((entities, relations, entities)):
                words[2 * column :: 6] = map(names.__getitem__, part[:, column].tolist())
            text = "".join(words).encode()
            if start == 0 and text.startswith(codecs.BOM_UTF8):  # a name begins so: it is no byte order mark
                file.write(codecs.BOM_UTF8)
            file.write(text)

    replace_file(path, write)


def _write_types(result, typed, subclass, used, entities, counts):
    """Write types.tsv, `entity<TAB>class`, for the entities of triples.tsv, with the classes above."""
    closed = rdf.superclasses(subclass[:, ::2].tolist())
    outside = ~used[typed[:, 0]]
    if outside.any():
        counts["types of things that have no facts left out"] += int(np.count_nonzero(outside))
    classes = collections.defaultdict(dict)  # entity -> its classes, in order
    for entity, kind in typed[~outside][:, ::2].tolist():
        classes[entity].update(dict.fromkeys(closed.get(kind, (kind,))))
    if not classes:
        if os.path.exists(result.folder / TYPES):
            os.unlink(result.folder / TYPES)  # of the graph that --force replaces
        return
    text = "".join(f"{entities[entity]}\t{entities[kind]}\n" for entity in sorted(classes) for kind in classes[entity])
    replace_file(result.folder / TYPES, lambda file: file.write(text.encode()))
    result.typed, result.classes = len(classes), len({kind for kinds in classes.values() for kind in kinds})


def _write_bounds(result, files, prefixes, schema, base):
    """Read bounds for the graph just written, and write them as one bounds.tsv."""
    _, entities, relations, _ = load_triples(result.folder)
    types = read_types(result.folder / TYPES, entities)
    graph = Vocabulary(entities, relations, types, prefixes)
    found, notes = bound_files.read_files(files, graph, prefixes, schema, base)
    bound_files.write_bounds_file(result.folder / BOUNDS, found.listed())
    result.bounds = len(found)
    result.notes += notes


def run_import(files, out, bounds, prefix, force, json_file, options):
    """Import, with progress on stderr, and say what came of it."""
    options = ImportOptions(prefixes=rdf.given_prefixes(prefix), **options)
    with contextlib.ExitStack() as open_counters:
        shown = {}

        def progress(done, total, path):
            if path not in shown:
                shown[path] = open_counters.enter_context(counter(f"{path}: bytes"))
            shown[path](done, total)

        result = import_graph(files, out, options, bounds, force, progress)
    for note in result.notes:
        warn(note)
    if json_file:
        write_json(json_file, vars(result) | {"folder": str(out)})
    if is_stdout(json_file):
        return
    click.echo(f"{out}: {result.triples:,} triples, {result.entities:,} entities, {result.relations:,} relations")
    if result.typed:
        click.echo(f"{result.typed:,} entities have one of {result.classes:,} classes")
    if bounds:
        click.echo(f"{result.bounds:,} bounds")
    for what, number in result.counts.items():
        click.echo(f"{number:,} {what}")
