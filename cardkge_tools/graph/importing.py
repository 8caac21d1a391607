"""`import`: a user's own files (RDF, tables, OpenKE) become a folder with `triples.tsv` and what goes with it.

Files are read as streams. What is kept is the names, each once, and twelve bytes a triple; `triples.tsv` is written
when all is read, because a triple may stand in a file more than once.
"""

import codecs
import collections
import csv
import itertools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cardkge import CardkgeError, triple_keys
from cardkge_tools import SPLITS
from cardkge_tools.graph import bound_files, rdf, shacl
from cardkge_tools.graph.bounds import Vocabulary, read_tsv, read_types
from cardkge_tools.graph.graphs import (
    first_lines_warnings,
    later_occurrences,
    load_triples,
    refuse_inverse_names,
    refuse_statements,
)
from cardkge_tools.graph.names import Names, packed, triple_lines
from cardkge_tools.graph.spelling import look_alike_warnings, plain_form
from cardkge_tools.shell.files import make_folder, read_blocks, replace_file, without_gz
from kernels import split_lines

TRIPLES, TYPES, PREFIXES, BOUNDS = "triples.tsv", "types.tsv", "prefixes.tsv", "bounds.tsv"
TABLES = {".tsv": "\t", ".txt": "\t", ".csv": ","}  # ending -> delimiter
OPENKE = ("entity2id.txt", "relation2id.txt", "train2id.txt")
LINES = 1 << 17  # written or read at a time
SCHEMA = {rdf.RDFS + name for name in ("domain", "range", "subPropertyOf")} | {rdf.RDF + "first", rdf.RDF + "rest"}


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


class Triples:
    """Triples as ids while files are read; the names are bytes: terms of RDF, or fields of tables."""

    def __init__(self):
        self.entities, self.relations = Names(), Names()
        self.ids = bytearray()  # of int32 triples; grows where it is
        self.counts = collections.Counter()

    def __len__(self):
        return len(self.ids) // 12

    def first_lines(self, tables):
        """Sentences about first lines that look like headers. tables: file -> (its first triple, the one after it)."""
        if not tables:
            return []
        triples = np.frombuffer(self.ids, np.int32).reshape(-1, 3)
        firsts = triples[[first for first, _ in tables.values()]]
        entities = {i: self.entities[i].decode() for i in firsts[:, ::2].ravel().tolist()}
        relations = {i: self.relations[i].decode() for i in firsts[:, 1].tolist()}
        others = np.split(triples, sorted(limit for part in tables.values() for limit in part))[::2]
        parts = {path: triples[first:last] for path, (first, last) in tables.items()}
        return first_lines_warnings(parts, (entities, relations), others)

    def add_lines(self, block, separator=b"\t", ending=b""):
        """Take lines of three fields in; returns the number of those at the beginning that have this form (see
        `split_lines`), which are taken, and the number of all."""
        codes, number = np.frombuffer(block, np.uint8), block.count(b"\n")
        starts, ends = np.empty((2, 3 * number), np.int64)
        lines, _ = split_lines(codes, separator[0], np.frombuffer(ending, np.uint8), starts, ends)
        starts, ends = starts[: 3 * lines].reshape(-1, 3), ends[: 3 * lines].reshape(-1, 3)
        triples = np.empty((lines, 3), np.int32)
        both = starts[:, ::2].ravel(), ends[:, ::2].ravel()
        triples[:, ::2] = self.entities.ids(codes, *both).reshape(-1, 2)
        triples[:, 1] = self.relations.ids(codes, starts[:, 1].copy(), ends[:, 1].copy())
        self.ids += triples.tobytes()
        return lines, number

    def add(self, rows):
        """Take triples of names, bytes without a tab or a line's end, in."""
        self.add_lines(b"".join(b"%s\t%s\t%s\n" % row for row in rows))

    def distinct(self, entity_ids, relation_ids):
        """(n, 3) int32: each triple once, where it came first, with other ids for the ids; counts what is dropped."""
        triples = np.frombuffer(self.ids, np.int32).reshape(-1, 3)
        if any(len(ids) and ids[-1] + 1 < len(ids) for ids in (entity_ids, relation_ids)):
            triples = np.stack([entity_ids[triples[:, 0]], relation_ids[triples[:, 1]], entity_ids[triples[:, 2]]], 1)
        keys = triple_keys(*triples.T, len(entity_ids), max(len(relation_ids), 1))
        repeated = later_occurrences(keys)
        if repeated.size:
            self.counts["duplicates dropped"] += repeated.size
            triples = np.delete(triples, repeated, axis=0)
        return triples


# --- reading RDF


class RdfReader:
    """Adds the statements of one file to Triples.

    keep_literals: literals become entities. scope: what is put before the labels of blank nodes, which hold in one file
    only; in formats that can leave a blank node without a label they are numbered in order of appearance, for the
    parser's labels are random.
    """

    def __init__(self, triples, keep_literals, scope, numbered):
        self.triples, self.keep_literals = triples, keep_literals
        self.scope, self.numbered = scope.encode(), numbered
        self.blanks = {}
        self.plain = True  # whether there was nothing but IRIs and labels with one space between

    def consume(self, block):
        """Takes whole lines of N-Quads. No bytecode runs per line where all terms are IRIs, in no named graph."""
        renames = self.scope or self.numbered
        if renames and b"_:" in block:
            return self.consume_lines(block)
        taken, number = self.triples.add_lines(block, b" ", b" .")
        if taken < number:
            at = 0
            for _ in range(taken):
                at = block.index(b"\n", at) + 1
            self.consume_lines(block[at:])
        return None

    def consume_lines(self, block):
        self.plain = False
        kept, counts = [], self.triples.counts
        for line in block[:-1].split(b"\n"):
            subject, predicate, value, graph = rdf.terms_of(line)
            counts["statements in named graphs, taken without the graph"] += bool(graph)
            if value[:1] == b'"' and not self.keep_literals:
                counts["literals left out"] += 1
            elif value[:2] == b"<<":
                counts["statements about statements left out"] += 1
            else:
                kept.append((self.blank(subject), predicate, self.blank(value)))
        self.triples.add(kept)

    def blank(self, term):
        if term[:2] != b"_:" or not (self.scope or self.numbered):
            return term
        if self.numbered:
            return self.blanks.setdefault(term, b"_:%sb%d" % (self.scope, len(self.blanks) + 1))
        return b"_:" + self.scope + term[2:]


class Beside:
    """Calls a function on blocks in their order, in a thread beside the caller's, a few blocks behind it."""

    def __init__(self, function, ahead=8):
        self.function, self.ahead = function, ahead
        self.pool, self.pending = ThreadPoolExecutor(1), collections.deque()

    def __call__(self, block):
        while len(self.pending) >= self.ahead:
            self.pending.popleft().result()
        self.pending.append(self.pool.submit(self.function, block))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.pool.shutdown(cancel_futures=error is not None)
        if error is None:
            for future in self.pending:
                future.result()


# --- reading tables


def chosen_columns(columns, header, path, found):
    """The positions of head, relation and tail among the fields of a line.

    columns: an order such as "hrt"; or three, with commas between: names of the header, or numbers from 1.
    header: the names, or None. found: the number of fields of the first line.
    """
    if sorted(columns) == ["h", "r", "t"]:
        if found != 3:
            names = "--header and three names" if header is None else f"three of {', '.join(header)}"
            raise CardkgeError(
                f"{path}: {found} columns; say which are head, relation and tail: --columns, with {names}"
            )
        return [columns.index(letter) for letter in "hrt"]
    parts = [part.strip() for part in columns.split(",")]
    if len(parts) != 3 or len(set(parts)) != 3:
        raise CardkgeError(f"--columns {columns}: expected an order such as hrt, or three columns with commas between")
    if header is not None and all(part in header for part in parts):
        if twice := next((part for part in parts if header.count(part) > 1), None):
            raise CardkgeError(f"{path}: two columns are called {twice!r}; choose by number")
        return [header.index(part) for part in parts]
    if all(re.fullmatch("[0-9]{1,4}", part) and 1 <= int(part) <= found for part in parts):
        return [int(part) - 1 for part in parts]
    known = "no --header" if header is None else f"the header {', '.join(header)}"
    raise CardkgeError(f"{path}: --columns {columns} does not fit its {found} columns and {known}")


def table_rows(path, delimiter):
    """Yields (line number, fields) of a table: CSV with quotes, or fields between tabs, verbatim."""

    def lines():
        for number, text in read_blocks(path):
            refuse_statements(path, number, text)
            yield from text[:-1].split("\n")

    if delimiter == "\t":
        for at, line in enumerate(lines(), 1):
            yield at, line.split("\t")
        return
    reader, last = csv.reader((line + "\n" for line in lines()), delimiter=delimiter, strict=True), 0
    try:
        for row in reader:
            yield last + 1, row
            last = reader.line_num
    except csv.Error as error:
        what = (
            "a carriage return inside a line; save it with lines that end in LF"
            if str(error).startswith("new-line")
            else f"not CSV: {error}"
        )
        raise CardkgeError(f"{path}:{reader.line_num}: {what}") from error


def read_table(path, triples, columns="hrt", header=False, delimiter=None, normalise=False):
    """Add the rows of a TSV or CSV file to Triples. Blank lines are passed over; an empty name, a line with another
    number of fields, and a name that holds a tab or a line's end are errors that name file and line. normalise: names
    in their `plain_form`."""
    delimiter = delimiter or TABLES[os.path.splitext(without_gz(path))[1].lower()]
    if len(delimiter) != 1:
        raise CardkgeError(f"--delimiter {delimiter!r}: expected one character")
    rows = _not_blank(table_rows(path, delimiter), triples.counts)
    first_at, first = next(rows, (0, None))
    if first is None:
        raise CardkgeError(f"{path}: no triples")
    if len(first) == 1 and (other := next((d for d in ";,\t" if d != delimiter and d in first[0]), None)):
        raise CardkgeError(f"{path}:{first_at}: one field, no {delimiter!r} in it; try --delimiter {other!r}")
    names = [name.strip() for name in first] if header else None
    order, width = chosen_columns(columns, names, path, len(first)), len(first)
    if not header:
        rows = itertools.chain([(first_at, first)], rows)
    taken = 0
    while part := list(itertools.islice(rows, LINES)):
        chosen = []
        for at, row in part:
            if len(row) != width:
                raise CardkgeError(f"{path}:{at}: expected {width} fields, found {len(row)}: {brief(row)}")
            triple = [plain_form(row[column]) if normalise else row[column] for column in order]
            if "" in triple:
                raise CardkgeError(f"{path}:{at}: an empty name: {brief(row)}")
            if any(character in name for name in triple for character in "\t\n\r"):
                raise CardkgeError(f"{path}:{at}: a tab or a line's end inside a name: {brief(row)}")
            chosen.append(tuple(name.encode() for name in triple))
        triples.add(chosen)
        taken += len(part)
    if not taken:
        raise CardkgeError(f"{path}: a header and no triples")


def _not_blank(rows, counts):
    """The (line number, fields) of a table that has something in it; the others are counted."""
    for at, row in rows:
        if any(row):
            yield at, row
        else:
            counts["blank lines skipped"] += 1


def brief(row):
    """The beginning of a line, for a message."""
    line = repr("\t".join(row))
    return line if len(line) <= 80 else line[:76] + "..." + line[0]


# --- reading an OpenKE folder


def read_openke(folder, triples):
    """Add the triples of an OpenKE folder; returns the number of triples of each split (train, valid, test), those that
    there are. Its id files begin with a count, then `name<TAB>id`; its triple files, then `head tail relation` ids."""
    folder = Path(folder)
    entities, relations = (_openke_names(folder / file) for file in OPENKE[:2])
    sizes = {}
    for split in SPLITS:
        path = folder / f"{split}2id.txt"
        if split != "train" and not path.is_file():
            continue
        sizes[split] = 0
        rows = _openke_rows(path)
        while part := list(itertools.islice(rows, LINES)):
            ids = []
            for at, fields in part:
                known = [field for field in fields if re.fullmatch("[0-9]{1,9}", field)]
                ids.append([int(field) for field in known])
                limits = (len(entities), len(entities), len(relations))
                if len(ids[-1]) != 3 or len(fields) != 3 or any(i >= n for i, n in zip(ids[-1], limits)):
                    raise CardkgeError(f"{path}:{at}: expected ids of head, tail and relation, found {brief(fields)}")
            triples.add((entities[head], relations[relation], entities[tail]) for head, tail, relation in ids)
            sizes[split] += len(part)
    return sizes


def _openke_rows(path):
    """Yields (line number, fields) after the first line, whose count is checked at the end."""
    expected, found = None, 0
    for number, text in read_blocks(path):
        for at, line in enumerate(text[:-1].split("\n"), number):
            if expected is None:
                if not re.fullmatch(" *[0-9]{1,10} *", line):
                    raise CardkgeError(f"{path}:{at}: expected the number of lines, found {line[:40]!r}")
                expected = int(line)
            elif line.strip():
                found += 1
                yield at, line.rsplit("\t", 1) if path.name in OPENKE[:2] else line.split()
    if found != expected:
        raise CardkgeError(f"{path}: its first line says {expected} lines, it has {found}")


def _openke_names(path):
    names = {}
    for at, fields in _openke_rows(path):
        if len(fields) == 1:
            fields = fields[0].rsplit(None, 1)  # some files have a space in place of the tab
        if len(fields) != 2 or not re.fullmatch("[0-9]{1,9}", fields[1].strip()) or int(fields[1]) in names:
            raise CardkgeError(f"{path}:{at}: expected a name, a tab and a new id, found {brief(fields)}")
        if not fields[0] or any(character in fields[0] for character in "\t\r"):
            raise CardkgeError(f"{path}:{at}: a name that is empty, or has a tab or a carriage return: {brief(fields)}")
        names[int(fields[1])] = fields[0].encode()
    if sorted(names) != list(range(len(names))):
        raise CardkgeError(f"{path}: its ids are not 0 to {len(names) - 1}")
    if len(set(names.values())) != len(names):
        raise CardkgeError(f"{path}: two ids have the same name")
    return [names[i] for i in range(len(names))]


def is_openke(path):
    return os.path.isdir(path) and all(os.path.isfile(os.path.join(path, name)) for name in OPENKE)


# --- the command


@dataclass(frozen=True)
class ImportOptions:
    """How files are read: see the command's help. prefixes: a dict prefix -> namespace."""

    columns: str = "hrt"
    header: bool = False
    delimiter: str | None = None
    normalise: bool = False
    literals: str = "drop"
    type_relation: str = "rdf:type"
    keep_schema: bool = False
    prefixes: dict = field(default_factory=dict)


def import_graph(files, out, options=None, bounds=(), force=False, progress=None):
    """Read files into the new folder `out`; returns Imported.

    files: RDF, TSV, CSV (by the endings of their names, `.gz` too), OpenKE folders. bounds: files of bounds, TSV, SHACL
    or OWL, for `bounds.tsv`. progress(done, total, what), if given, is called with bytes of the file.
    Raises CardkgeError for a file that cannot be read or a folder that holds an imported graph already.
    """
    options = options or ImportOptions()
    kinds = [_kind(path, options) for path in files]
    for path in bounds:  # what is wrong with them is known before hours of reading
        shacl.read_rdf(path) if rdf.format_of(path) else read_tsv(path)
    out = Path(out)
    if not force and (found := next((name for name in (TRIPLES, "train.tsv") if (out / name).exists()), None)):
        raise CardkgeError(f"{out} has a {found}; choose another --out, or --force replaces it")
    prefixes = rdf.Prefixes(options.prefixes)
    for path in (path for path, kind in zip(files, kinds, strict=True) if kind == "table"):
        _take_prefixes(prefixes, Path(path).parent / PREFIXES)
    triples, splits, tables, counts = Triples(), [], {}, collections.Counter()
    for number, (path, kind) in enumerate(zip(files, kinds, strict=True), 1):
        report = progress and (lambda done, total, path=path: progress(done, total, str(path)))
        if kind == "openke":
            splits.append(read_openke(path, triples))
        elif kind == "table":
            first = len(triples)
            read_table(path, triples, options.columns, options.header, options.delimiter, options.normalise)
            tables[str(path)] = first, len(triples)
        else:
            scope = f"f{number}-" if len(files) > 1 else ""
            reader = RdfReader(triples, options.literals == "keep", scope, kind not in rdf.LINE_FORMATS)
            found = _read_rdf(path, kind, reader, report)
            for prefix, namespace in found.items():
                name = prefixes.add(prefix, namespace)
                counts["prefixes with another name here"] += name != prefix and prefix not in prefixes.namespaces
    if not triples.ids:
        left = f" ({triples.counts['literals left out']:,} literals left out)" if triples.counts else ""
        raise CardkgeError(f"{', '.join(map(str, files))}: no triples between entities{left}")
    result = Imported(out, notes=[] if options.header else triples.first_lines(tables))
    make_folder(out, [])
    is_rdf = any(kind not in ("openke", "table") for kind in kinds)
    schema = _write_graph(result, triples, prefixes, options, splits if len(files) == 1 else [], is_rdf)
    rdf.write_prefixes(out / PREFIXES, prefixes)
    if bounds:
        try:
            _write_bounds(result, bounds, prefixes, schema)
        except CardkgeError:
            for name in (TRIPLES, TYPES, PREFIXES, *(f"{split}.tsv" for split in SPLITS)):
                (out / name).unlink(missing_ok=True)
            raise
    result.counts = {what: number for what, number in triples.counts.items() if number}
    return result


def _read_rdf(path, kind, reader, report):
    """Read an RDF file; returns its prefixes. What is read trusting is checked name by name, each once, and where there
    is a doubt the file is read again, which finds the fault."""
    trusting = rdf.may_be_trusted(path, kind)
    before = [(names, len(names)) for names in (reader.triples.entities, reader.triples.relations)]
    with Beside(reader.consume) as beside:
        found = rdf.read_statements(path, beside, kind, report, trusting)
    if trusting and not (reader.plain and all(rdf.are_terms(names.texts()[first:]) for names, first in before)):
        rdf.read_statements(path, lambda block: None, kind, report)
    return found


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
    kind = rdf.format_of(path)
    if kind:
        rdf.load_pyoxigraph()
        return kind
    ending = os.path.splitext(without_gz(path).lower())[1]
    if ending in TABLES or options.delimiter:
        return "table"
    known = ", ".join([*rdf.FORMATS, *TABLES])
    raise CardkgeError(
        f"{path}: its format is not known by the ending {ending or '(none)'}; known are {known}, .gz too"
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
    facts = table if options.keep_schema else table[~schema[column]]
    if not len(facts):
        raise CardkgeError("no facts are left beside types and schema statements; --keep-schema takes them as facts")
    dropped = int(np.count_nonzero((schema & ~types)[column]))
    if dropped and not options.keep_schema:
        triples.counts["schema statements (subclasses, domains, restrictions, shapes) left out of the facts"] += dropped
    if splits and len(splits[0]) == 3 and len(facts) * 12 == len(triples.ids):
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


def _final_names(names, prefixes, is_rdf):
    """(names, ids): the names as they are written, each once, and for each of the old ids the new one. A field of a
    table and a term of an RDF file may spell the same name."""
    final = prefixes.names(names.texts()) if is_rdf else names.texts()
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
    """Write (n, 3) ids as a triple file, in blocks, which two threads put together beside the writing."""
    tables = [packed([name.encode() for name in names]) for names in (entities, relations)]
    starts = range(0, len(triples), LINES)

    def lines(start):
        return triple_lines(triples[start : start + LINES], *tables)

    def write(file):
        with ThreadPoolExecutor(2) as pool:
            ahead = collections.deque(pool.submit(lines, start) for start in starts[:4])
            for number, _ in enumerate(starts):
                text = ahead.popleft().result()
                if number + 4 < len(starts):
                    ahead.append(pool.submit(lines, starts[number + 4]))
                if number == 0 and bytes(text[:3]) == codecs.BOM_UTF8:  # a name begins so: it is no byte order mark
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


def _write_bounds(result, files, prefixes, schema):
    """Read bounds for the graph just written, and write them as one bounds.tsv."""
    _, entities, relations, _ = load_triples(result.folder)
    types = read_types(result.folder / TYPES, entities)
    graph = Vocabulary(entities, relations, types, prefixes)
    found, notes = bound_files.read_files(files, graph, prefixes, schema)
    bound_files.write_tsv(result.folder / BOUNDS, found.listed())
    result.bounds = len(found)
    result.notes += notes
