"""Formats of other programs: `import` makes a folder with `triples.tsv` from files of RDF, tables and OpenKE; `export`
writes the embeddings of a run (docs/FORMATS.md describes the files)."""

import codecs
import collections
import contextlib
import itertools
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np

from cardkge import CardkgeError
from cardkge_tools import SPLITS
from cardkge_tools.graph import bound_files, rdf, shacl, sources
from cardkge_tools.graph.bounds import Bound, Vocabulary, read_tsv, read_types
from cardkge_tools.graph.graphs import refuse_inverse_names
from cardkge_tools.graph.spelling import id_of, look_alike_warnings
from cardkge_tools.shell.files import folder_of_graph, replace_file, without_gz, write_report
from cardkge_tools.shell.terminal import counted, counter, tell_replaced, warn

EXPORTS = ("word2vec", "tsv", "npz", "tensorboard")
ROWS = 1 << 12  # of embeddings turned to text at a time
TRIPLES, TYPES, PREFIXES, BOUNDS = "triples.tsv", "types.tsv", "prefixes.tsv", "bounds.tsv"
FIRST, REST = rdf.RDF + "first", rdf.RDF + "rest"
SCHEMA = {rdf.RDFS + name for name in ("subClassOf", "domain", "range", "subPropertyOf")} | {FIRST, REST}


@dataclass
class Imported:
    """What an import wrote into a folder, in numbers.

    triples, entities, relations: of triples.tsv. typed, classes: entities and classes of types.tsv. bounds: lines of
    bounds.tsv. counts: what was left out or merged -> its number. notes: warnings."""

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
    """How files are read, as the command's help says.

    prefixes: a dict prefix -> namespace. form: the ending, without its full stop, of the format of every file. base:
    the IRI that relative IRIs are relative to. numbers: (property, relation, at_least) of literals that are numbers of
    tails of their subjects (of ^relation: of heads)."""

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
    numbers: tuple = ()


def import_graph(files, out, options=None, bounds=(), force=False, progress=None):
    """Read files into the new folder `out`; returns Imported.

    files: RDF, TSV and CSV, by the endings of their names (`.gz` too), and OpenKE folders. bounds: files of bounds for
    `bounds.tsv`. progress(done, total, file) is called with bytes of a file of RDF.
    Raises CardkgeError for a file that cannot be read, and for a folder that has triples unless force is true."""
    options = options or ImportOptions()
    kinds = [_kind(path, options) for path in files]
    for path in bounds:  # a fault in them is found before hours of reading
        shacl.read_rdf(shacl.Index(path, options.base)) if rdf.format_of(path) else read_tsv(path)
    out = Path(out)
    if not force and (found := next((name for name in (TRIPLES, "train.tsv") if (out / name).exists()), None)):
        raise CardkgeError(f"{out} has a {found}; choose another --out, or --force replaces it")
    prefixes = rdf.Prefixes(options.prefixes)
    for path in (path for path, kind in zip(files, kinds, strict=True) if kind == "table"):
        _take_prefixes(prefixes, Path(path).parent / PREFIXES)
    triples, splits, tables, numbers = sources.Triples(), [], {}, sources.Numbers(options.numbers)
    delimiter = options.delimiter or sources.TABLES.get(f".{options.form}")
    is_rdf = [kind not in ("openke", "table") for kind in kinds]
    for number, (path, kind) in enumerate(zip(files, kinds, strict=True), 1):
        report = progress and (lambda done, total, path=path: progress(done, total, str(path)))
        if kind == "openke":
            splits.append(sources.read_openke(path, triples))
        elif kind == "table":
            first = len(triples)
            sources.read_table(path, triples, options, delimiter, numbers)
            tables[str(path)] = first, len(triples)
        else:
            scope = "" if number == 1 and all(is_rdf) else f"f{number}-"
            keep, numbered = options.literals == "keep", kind not in rdf.LINE_FORMATS
            reader = sources.RdfReader(triples, keep, scope, numbered, numbers)
            found = rdf.read_statements(path, reader.consume, kind, report, options.base)
            for prefix, namespace in found.items():
                prefixes.add(prefix, namespace)
    if not triples.ids:
        literals = triples.counts["literals left out"]
        left = f" ({literals:,} literals left out)" if literals else ""
        raise CardkgeError(f"{', '.join(map(str, files))}: no triples between entities{left}")
    result = Imported(out, notes=[] if options.header else triples.first_lines(tables))
    if not options.base:
        result.notes += rdf.relative_notes(triples.entities, triples.relations)
    folder_of_graph(out)
    names = [_final_names(each, prefixes, any(is_rdf)) for each in (triples.entities, triples.relations)]
    graph, schema = _write_graph(result, triples, names, prefixes, options)
    as_split = len(files) == len(splits) == 1 and len(splits[0]) == 3 and result.triples == len(triples)
    if as_split:
        _write_splits(result, splits[0], triples, names)
    hint = "" if any(is_rdf) else " (--normalise makes those of tables one)"
    result.notes += [note + hint for note in look_alike_warnings(graph.entities, graph.relations)]
    rdf.write_prefixes(out / PREFIXES, prefixes)
    if bounds or options.numbers:
        try:
            own, said = _number_bounds(numbers, graph, names, prefixes, triples.counts, options.literals)
            found, notes = bound_files.read_files(bounds, graph, prefixes, schema, options.base, own)
            bound_files.write_bounds_file(out / BOUNDS, found.listed())
            notes = said + notes
        except CardkgeError:
            for name in (TRIPLES, TYPES, PREFIXES, *(f"{split}.tsv" for split in SPLITS)):
                (out / name).unlink(missing_ok=True)
            raise
        result.bounds, result.notes = len(found), result.notes + notes
    written = {f"{split}.tsv": as_split for split in SPLITS} | {BOUNDS: bounds or options.numbers}
    stay = [name for name, anew in written.items() if not anew and (out / name).exists()]
    if stay:
        result.notes.append(f"{out}: {', '.join(stay)} stood there before: delete what is not of this graph")
    result.counts = {what: number for what, number in triples.counts.items() if number}
    return result


def _number_bounds(numbers, graph, names, prefixes, counts, literals):
    """(a list of Bound of single heads, notes) of Numbers, given the Vocabulary that was written; names: (names, new
    ids) of the entities that were read, as of the relations. Of several numbers of one head the largest holds. Heads
    without facts, and literals that say no number, are left out and counted. CardkgeError for an unknown relation."""
    (entities, new_ids), _ = names
    well_known, notes, known = rdf.Prefixes(rdf.WELL_KNOWN), [], set(graph.entities)
    found, others = collections.defaultdict(list), set(numbers.found)
    for name, relation, at_least in numbers.asked:
        option = f"--number{'-at-least' * at_least} {name}={relation}"
        inverse = relation.startswith("^") and relation not in graph.relations
        try:
            relation = graph.relations[id_of(graph.relations, relation[inverse:], "relation", prefixes)]
        except CardkgeError as error:
            raise CardkgeError(f"{option}: {error}") from None
        iri = (prefixes if name.partition(":")[0] in prefixes.namespaces else well_known).expand(name)
        called = {name, iri and f"<{iri}>"}
        others -= called
        heads, values, faults, read = numbers.of(called.__contains__)
        if not read:
            notes.append(f"{option}: no literal of this property, and no column of this name")
        counts["literals of --number that are no whole number from 0 to 2^31 left out"] += faults
        found[relation, inverse].append((new_ids[heads], values, np.full(len(heads), not at_least)))
    bounds, twice, lost = [], 0, 0
    for (relation, inverse), parts in found.items():
        heads, values, exact = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.lexsort((exact, values, heads))  # of equal numbers an exact one says more
        heads, values, exact = heads[order], values[order], exact[order]
        first, last = (np.flatnonzero(np.diff(heads, **{end: -1})) for end in ("prepend", "append"))
        twice += int(np.count_nonzero(values[first] != values[last]))
        for head, value, is_exact in zip(*(each[last].tolist() for each in (heads, values, exact)), strict=True):
            if (name := entities[head]) not in known:
                lost += 1
                continue
            bounds.append(Bound(relation, value, value if is_exact else np.inf, inverse, None, "--number", name))
    counts["numbers of heads that have no facts left out"] += lost
    if literals == "drop":  # those of properties whose names end alike
        counts["literals left out"] += sum(len(numbers.found[name][0]) + numbers.found[name][2][0] for name in others)
    if twice:
        notes.append(f"{twice:,} heads have several numbers in one relation; of each the largest holds")
    return bounds, notes


def _take_prefixes(prefixes, path):
    """Add the prefixes of the short names in tables of a folder that `import` wrote."""
    for prefix, namespace in rdf.read_prefixes(path).namespaces.items():
        if prefixes.namespaces.get(prefix, namespace) != namespace or prefixes.add(prefix, namespace) != prefix:
            raise CardkgeError(f"{path}: the prefix {prefix!r} means something else in another file; rename it in one")


def _kind(path, options):
    """How a file is read: "openke", "table", or a value of rdf.FORMATS."""
    if sources.is_openke(path):
        return "openke"
    if os.path.isdir(path):
        missing = [name for name in sources.OPENKE if not os.path.isfile(os.path.join(path, name))]
        raise CardkgeError(f"{path}: a folder is read in OpenKE's format, and this one has no {', '.join(missing)}")
    if not os.path.exists(path):
        raise CardkgeError(f"{path}: no such file")
    ending = os.path.splitext(without_gz(path).lower())[1] if options.form is None else f".{options.form}"
    kind = rdf.FORMATS.get(ending)
    if kind:
        rdf.load_pyoxigraph()
        return kind
    if ending in sources.TABLES or options.delimiter:
        return "table"
    known = ", ".join([*rdf.FORMATS, *sources.TABLES])
    what = f"unknown ending {ending or '(none)'}; known are {known}, .gz too"
    raise CardkgeError(f"{path}: {what}; or say --format")


def _write_graph(result, triples, names, prefixes, options):
    """Write triples.tsv and types.tsv.

    names: (names, new ids) of entities and of relations. Returns the Vocabulary of what was written, and what the graph
    says of ranges, domains and subclasses, as (subject, property, object) terms."""
    (entities, entity_ids), (relations, relation_ids) = names
    refuse_inverse_names(result.folder, relations)
    table = triples.distinct(entity_ids, relation_ids)
    well_known = rdf.Prefixes(rdf.WELL_KNOWN)  # where the files do not give these prefixes another meaning

    def known(name):
        return prefixes if name.partition(":")[0] in prefixes.namespaces else well_known

    iris = [known(name).expand(name) or name for name in relations]
    type_iri = known(options.type_relation).expand(options.type_relation)
    types = {iri for name, iri in zip(relations, iris) if options.type_relation in (name, iri) or iri == type_iri}
    schema = {iri for iri in iris if iri.startswith((rdf.SHACL, rdf.OWL)) or iri in SCHEMA} - {rdf.OWL + "sameAs"}

    def of(chosen):
        """(n,) bool: the triples whose relation has one of these IRIs."""
        return np.array([iri in chosen for iri in iris], bool)[table[:, 1]]

    facts = table
    if not options.keep_schema:
        left_out = "schema statements (subclasses, domains, restrictions, shapes) left out of the facts"
        triples.counts[left_out] += int(np.count_nonzero(of(schema - types)))
        lists = table[of({FIRST})], table[of({REST})]
        facts = _with_members(table[~of(schema | types)], *lists, triples.counts)
    if not len(facts):
        raise CardkgeError("no facts are left beside types and schema statements; --keep-schema takes them as facts")
    write_triples(result.folder / TRIPLES, facts, entities, relations)
    used = np.zeros(len(entities), bool)
    used[facts[:, ::2]] = True
    _write_types(result, table[of(types)], table[of({rdf.SUBCLASS})], used, entities, triples.counts)
    entities_of, relations_of = np.flatnonzero(used).tolist(), np.unique(facts[:, 1]).tolist()
    result.triples, result.entities, result.relations = len(facts), len(entities_of), len(relations_of)
    entities_of = [entities[e] for e in entities_of]
    graph_types = read_types(result.folder / TYPES, entities_of)
    graph = Vocabulary(entities_of, [relations[r] for r in relations_of], graph_types, prefixes)
    terms = ((entities[s], iris[p], entities[o]) for s, p, o in table[of(shacl.SCHEMA)].tolist())
    return graph, [(known(s).term(s), f"<{p}>", known(o).term(o)) for s, p, o in terms]


def _write_splits(result, sizes, triples, names):
    """Write the splits of an OpenKE folder. sizes: a dict split -> number of triples."""
    (entities, entity_ids), (relations, relation_ids) = names
    parts = np.split(triples.distinct(entity_ids, relation_ids), np.cumsum(list(sizes.values()))[:-1])
    for split, part in zip(sizes, parts):
        write_triples(result.folder / f"{split}.tsv", part, entities, relations)
    result.notes.append("the folder's splits are kept as train.tsv, valid.tsv and test.tsv")


def _with_members(facts, first, rest, counts):
    """The facts, where a tail that is an RDF list gives one fact for each of its members, those of lists within it too.

    first, rest: the triples (n, 3) that make the lists. Facts that are then the same are one."""
    lists = collections.defaultdict(lambda: ([], []))  # node -> its own members (one, as a rule), the nodes after it
    for place, statements in enumerate((first, rest)):
        for node, _, value in statements.tolist():
            lists[node][place].append(value)
    is_list = np.isin(facts[:, 2], list(lists))
    if not is_list.any():
        return facts
    members = [_members(tail, lists) for tail in facts[is_list, 2].tolist()]
    number = np.ones(len(facts), np.int64)
    number[is_list] = [len(each) for each in members]
    facts = np.repeat(facts, number, axis=0)
    facts[np.repeat(is_list, number), 2] = list(itertools.chain(*members))
    counts["facts whose tail is a member of a list"] += sum(map(len, members))
    _, first = np.unique(facts, axis=0, return_index=True)
    return facts[np.sort(first)]


def _members(node, lists):
    """The members of a list, each once, in order. Its end, rdf:nil, is not one of them."""
    members, stack, seen = {}, [node], set()
    while stack:
        node = stack.pop()
        if node not in lists:
            members[node] = None
        elif node not in seen:
            seen.add(node)
            own, following = lists[node]
            stack += [each for each in following if each in lists] + own[::-1]
    return list(members)


def _final_names(names, prefixes, is_rdf):
    """(the names as written, each once; the new id of each old id). A field and a term may stand for the same name."""
    final = map(prefixes.name, names) if is_rdf else names
    place = collections.defaultdict(itertools.count().__next__)
    ids = np.fromiter((place[name] for name in final), np.int32, len(names))
    return list(place), ids


def write_triples(path, triples, entities, relations):
    """Write (n, 3) ids as a triple file, in blocks."""

    def write(file):
        for start in range(0, len(triples), sources.LINES):
            part = triples[start : start + sources.LINES]
            words = ["", "\t", "", "\t", "", "\n"] * len(part)
            for column, names in enumerate((entities, relations, entities)):
                words[2 * column :: 6] = map(names.__getitem__, part[:, column].tolist())
            text = "".join(words).encode()
            if start == 0 and text.startswith(codecs.BOM_UTF8):  # of a name, not a byte order mark
                file.write(codecs.BOM_UTF8)
            file.write(text)

    replace_file(path, write)


def _write_types(result, typed, subclass, used, entities, counts):
    """Write types.tsv (`entity<TAB>class` a line) for the entities of triples.tsv, with the classes above theirs."""
    closed = rdf.superclasses(subclass[:, ::2].tolist())
    outside = ~used[typed[:, 0]]
    counts["types of things that have no facts left out"] += int(np.count_nonzero(outside))
    classes = collections.defaultdict(dict)  # entity -> its classes, in order
    for entity, kind in typed[~outside][:, ::2].tolist():
        classes[entity].update(dict.fromkeys(closed.get(kind, (kind,))))
    if not classes:
        (result.folder / TYPES).unlink(missing_ok=True)  # of the graph that --force replaces
        return
    text = "".join(f"{entities[entity]}\t{entities[kind]}\n" for entity in sorted(classes) for kind in classes[entity])
    replace_file(result.folder / TYPES, lambda file: file.write(text.encode()))
    result.typed, result.classes = len(classes), len({kind for kinds in classes.values() for kind in kinds})


def run_import(files, out, bounds, prefix, force, json_file, options):
    """`import`, with progress on stderr and a report of the result."""
    numbers = options.pop("number") + options.pop("number_at_least")
    options = ImportOptions(prefixes=rdf.given_prefixes(prefix), numbers=numbers, **options)
    with contextlib.ExitStack() as open_counters:
        shown = {}

        def progress(done, total, path):
            if path not in shown:
                shown[path] = open_counters.enter_context(counter(f"{path}: bytes"))
            shown[path](done, total)

        result = import_graph(files, out, options, bounds, force, progress)
    warn(*result.notes)
    if not write_report(json_file, vars(result) | {"folder": str(out)}):
        return
    sizes = counted(result.triples, "triple"), counted(result.entities, "entity", "entities")
    sizes += (counted(result.relations, "relation"),)
    click.echo(f"{out}: {', '.join(sizes)}")
    if result.typed:
        click.echo(f"{result.typed:,} entities have one of {result.classes:,} classes")
    if bounds or options.numbers:
        click.echo(f"{result.bounds:,} bounds")
    for what, number in result.counts.items():
        click.echo(f"{number:,} {what}")


# --- export


def word2vec_name(name):
    """A name without white space: `%` is `%25`, a space `%20`, other white space likewise, by its UTF-8 bytes."""
    return re.sub(r"[%\s\x1c-\x1f\x85]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


def _rows(names, rows, separator="\t"):
    """Yield, in blocks, a line for each row: its name, if there are names, and its numbers with all their digits."""
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        # of a float32 the fewest digits that give it back, not those of the float64 equal to it
        numbers = part.tolist() if part.dtype == np.float64 else [[float(str(each)) for each in row] for row in part]
        texts = [separator.join(map(repr, row)) for row in numbers]
        if names is not None:
            texts = [name + separator + text for name, text in zip(names[start : start + ROWS], texts)]
        yield _names(texts)


def _names(names):
    """A line for each name, as bytes."""
    return "".join(name + "\n" for name in names).encode()


def export(run, form, path):
    """Write the embeddings of a run; returns the paths of the files.

    word2vec: text, `N k`, then a line for each entity. tsv: a folder with entities.tsv and relations.tsv, a name and
    its row a line. npz: the names of entities and relations as bytes, an LF after each, and every parameter.
    tensorboard: a folder with tensors.tsv and metadata.tsv of the entities, for the embedding projector. A row of
    ComplEx has its real parts first, then the imaginary parts. Of 2 R reciprocal relation rows, those of (?, r, t) have
    the name ^r. Raises CardkgeError for another format, and where a file cannot be written."""
    if form not in EXPORTS:
        raise CardkgeError(f"format {form!r}: expected one of {', '.join(EXPORTS)}")
    params, path = run.best_model().params, os.fspath(path)
    entities, relations, rows = list(run.entities), list(run.relations), params["entity"]
    if len(params["relation"]) == 2 * len(relations):
        relations += [f"^{name}" for name in relations]
    if form == "npz":
        names = {"entity_names": _names(entities), "relation_names": _names(relations)}
        arrays = {name: np.frombuffer(text, np.uint8) for name, text in names.items()} | params
        tell_replaced(path)
        replace_file(path, lambda file: np.savez(file, **arrays))
        return [path]
    if form == "word2vec":
        head = f"{len(rows)} {rows.shape[1]}\n".encode()
        blocks = itertools.chain([head], _rows(list(map(word2vec_name, entities)), rows, " "))
        files = {path: blocks}
    else:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise CardkgeError(f"cannot make {path}: {error.strerror or error}") from error
        parts = {"entities.tsv": _rows(entities, rows), "relations.tsv": _rows(relations, params["relation"])}
        if form == "tensorboard":
            parts = {"tensors.tsv": _rows(None, rows), "metadata.tsv": [_names(entities)]}
        files = {os.path.join(path, name): blocks for name, blocks in parts.items()}
    tell_replaced(*files)
    for name, blocks in files.items():
        replace_file(name, lambda file, blocks=blocks: file.writelines(blocks))
    return list(files)
