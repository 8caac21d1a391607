"""The files of a user's own graph: RDF, tables and OpenKE folders, read as streams into triples of ids.

What stays in memory is each name once and twelve bytes a triple."""

import array
import collections
import csv
import itertools
import os
import re
from pathlib import Path

import numpy as np

from cardkge import CardkgeError, triple_keys
from cardkge_tools import SPLITS
from cardkge_tools.graph import rdf
from cardkge_tools.graph.graphs import ids_of, later_occurrences, new_vocabularies, quoted, refuse_statements
from cardkge_tools.graph.spelling import first_lines_warnings, plain_form
from cardkge_tools.shell.files import read_blocks, without_gz

TABLES = {".tsv": "\t", ".txt": "\t", ".csv": ","}  # ending -> delimiter
OPENKE = ("entity2id.txt", "relation2id.txt", "train2id.txt")
LINES = 1 << 17  # read at a time
_SCOPED = re.compile("f[0-9]+-")


class Triples:
    """Triples as ids while files are read. The names are terms of RDF, or fields of tables."""

    def __init__(self):
        self.entities, self.relations = new_vocabularies()
        self.ids = array.array("i")  # head, relation, tail, head, ...
        self.counts = collections.Counter()

    def __len__(self):
        return len(self.ids) // 3

    @property
    def table(self):
        """(n, 3) int32 of the ids."""
        return np.frombuffer(self.ids, np.int32).reshape(-1, 3)

    def add(self, names):
        """Add triples, a list of names: head, relation, tail, head, ..."""
        self.ids.frombytes(ids_of((names[::3], names[1::3], names[2::3]), self.entities, self.relations).tobytes())

    def first_lines(self, tables):
        """Warnings of first lines that look like headers. tables: file -> (its first triple, the one after it)."""
        if not tables:
            return []
        others = np.split(self.table, sorted(limit for part in tables.values() for limit in part))[::2]
        parts = {path: self.table[first:last] for path, (first, last) in tables.items()}
        return first_lines_warnings(parts, (list(self.entities), list(self.relations)), others)

    def distinct(self, entity_ids, relation_ids):
        """(n, 3) int32: each triple once, in order, with new ids for the ids. Duplicates are counted."""
        heads, relations, tails = self.table.T
        triples = np.stack([entity_ids[heads], relation_ids[relations], entity_ids[tails]], 1)
        repeated = later_occurrences(triple_keys(*triples.T, len(entity_ids), max(len(relation_ids), 1)))
        self.counts["duplicates dropped"] += repeated.size
        return np.delete(triples, repeated, axis=0)


MOST_TAILS = 2**31  # of a head, by its number: no graph has more entities, and what says more is a mistake
_WHOLE = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_TYPED = re.compile(r'"([^"\\]*)"(?:\^\^<http://www\.w3\.org/2001/XMLSchema#(\w+)>)?')
_NUMERIC = re.compile(
    "integer|decimal|double|float|(unsigned)?(Int|int|Long|long|Short|short|Byte|byte)"
    "|(nonNegative|positive|nonPositive|negative)Integer"
)


def whole_number(text):
    """The whole number from 0 to MOST_TAILS that a field or a literal in N-Triples form says (`3`, `3.0`,
    `"3"^^<...#integer>`); None where it says none."""
    if text.startswith('"'):
        literal = _TYPED.fullmatch(text)
        if literal is None or not (literal[2] is None or _NUMERIC.fullmatch(literal[2])):
            return None
        text = literal[1]
    value = float(text) if _WHOLE.fullmatch(text := text.strip()) else -1.0
    return value if 0 <= value <= MOST_TAILS and value.is_integer() else None


class Numbers:
    """Numbers of tails of single heads, while files are read: literals of certain properties, or columns of tables.

    asked: (property, relation, at_least) of each `--number`, `--number-at-least`. A property is named by its IRI, by a
    short name, the prefix of which is known only when the file has been read, or by a column."""

    def __init__(self, asked=()):
        self.asked = list(asked)
        self._ends = tuple(name.rpartition(":")[2] for name, *_ in self.asked)
        self.found = {}  # property, as the file has it -> (ids of heads, numbers, how many say no number)

    def may_be(self, predicate):
        """Whether a term of RDF may be one of the properties."""
        return bool(self._ends) and predicate[1:-1].endswith(self._ends)

    def in_table(self, columns):
        """(the properties that no column of a table has as its name, (property, place of its column) of the others)."""
        properties = dict.fromkeys(name for name, *_ in self.asked)
        return properties.keys() - set(columns), [(name, columns.index(name)) for name in properties if name in columns]

    def add(self, name, head, text):
        """Take one literal or field of a property; head: its id."""
        heads, numbers, faults = self.found.setdefault(name, (array.array("q"), array.array("d"), [0]))
        number = whole_number(text)
        if number is None:
            faults[0] += 1
        else:
            heads.append(head)
            numbers.append(number)

    def of(self, is_named):
        """(heads, numbers, how many said none, whether there were any) of the properties that files call so."""
        parts = [part for name, part in self.found.items() if is_named(name)]
        heads = np.concatenate([np.empty(0, np.int64), *(np.frombuffer(part[0], np.int64) for part in parts)])
        numbers = np.concatenate([np.empty(0), *(np.frombuffer(part[1], np.float64) for part in parts)])
        return heads, numbers, sum(part[2][0] for part in parts), bool(parts)


class RdfReader:
    """Adds the statements of one file to Triples.

    keep_literals: literals become entities. numbers: a Numbers that takes its own. scope: goes before the labels of
    blank nodes, which hold in one file only. numbered: blank nodes are numbered in order of appearance, for formats in
    which a blank node needs no label and the parser makes a random one."""

    def __init__(self, triples, keep_literals, scope, numbered, numbers=None):
        self.triples, self.keep_literals, self.numbers = triples, keep_literals, numbers or Numbers()
        self.scope, self.numbered = scope, numbered
        self.blanks = {}

    def consume(self, block):
        """Add whole lines of N-Quads."""
        fields = block.replace(" .\n", " ").split(" ")[:-1]
        if '"' in block or "_:" in block or len(fields) != 3 * block.count("\n"):
            fields = [name for triple in self.facts(block) for name in triple]
        self.triples.add(fields)  # or else every line is three IRIs

    def facts(self, block):
        """Yield the (subject, predicate, object) that are facts; the other statements are counted."""
        counts = self.triples.counts
        for line in block[:-1].split("\n"):
            subject, predicate, value, rest = line.split(" ", 3)
            if rest != ".":  # a literal with spaces, a named graph, a statement about a statement
                subject, predicate, value, graph = rdf.terms_of(line)
                counts["statements in named graphs, taken without the graph"] += bool(graph)
            if taken := value[0] == '"' and self.numbers.may_be(predicate):
                self.numbers.add(predicate, self.triples.entities[self.blank(subject)], value)
            if value[0] == '"' and not self.keep_literals:
                counts["literals left out"] += not taken
            elif value[:2] == "<<":
                counts["statements about statements left out"] += 1
            else:
                yield self.blank(subject), predicate, self.blank(value)

    def blank(self, term):
        """The term, a blank node with the label that it has here."""
        if term[0] != "_":
            return term
        label = self.blanks.setdefault(term, f"b{len(self.blanks) + 1}") if self.numbered else term[2:]
        scope = self.scope or ("f1-" if _SCOPED.match(label) else "")  # else it might be one of a later file
        return f"_:{scope}{label}"


# --- tables


def chosen_columns(columns, header, path, found):
    """The positions of head, relation and tail among the `found` fields of a line.

    columns: an order such as "hrt", or three columns with commas between, by number from 1 or by a name of the header.
    header: these names, or None."""
    if sorted(columns) == ["h", "r", "t"]:
        if found != 3:
            names = "--header and three names" if header is None else f"three of {', '.join(header)}"
            which = "say which are head, relation and tail"
            raise CardkgeError(f"{path}: {found} columns; {which}: --columns, with {names}")
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
    """Yield (line number, fields) of a table: CSV with quotes, or verbatim fields between tabs. A first line `sep=;`,
    as spreadsheets write it, names the delimiter."""

    def lines():
        for number, text in read_blocks(path):
            refuse_statements(path, number, text)
            yield from text[:-1].split("\n")

    if delimiter == "\t":
        for at, line in enumerate(lines(), 1):
            yield at, line.split("\t")
        return
    following, before = lines(), 0
    first = next(following, "")
    if said := re.fullmatch('"?sep=(.)"?', first, re.IGNORECASE):
        delimiter, before = said[1], 1
    else:
        following = itertools.chain([first], following)
    reader, last = csv.reader((line + "\n" for line in following), delimiter=delimiter, strict=True), 0
    try:
        for row in reader:
            yield before + last + 1, row
            last = reader.line_num
    except csv.Error as error:
        what = f"not CSV: {error}"
        if str(error).startswith("new-line"):
            what = "a carriage return inside a line; save it with lines that end in LF"
        raise CardkgeError(f"{path}:{before + reader.line_num}: {what}") from error


def read_table(path, triples, options, delimiter=None, numbers=None):
    """Add the rows of a TSV or CSV file to Triples.

    options: columns, header, and normalise, names in their `plain_form`. numbers: a Numbers, that takes the rows
    whose relation is one of its properties, and the columns that are: by a name of the header, or without a header by
    their number; an empty field there says nothing.

    Blank lines are skipped. Raises CardkgeError, naming file and line, for an empty name, for a line with another
    number of fields than the first, and for a name with a tab or the end of a line in it."""
    numbers, header = numbers or Numbers(), options.header
    delimiter = delimiter or TABLES[os.path.splitext(without_gz(path))[1].lower()]
    if len(delimiter) != 1:
        raise CardkgeError(f"--delimiter {delimiter!r}: expected one character")
    rows = _not_blank(table_rows(path, delimiter), triples.counts)
    first_at, first = next(rows, (0, None))
    if first is None:
        raise CardkgeError(f"{path}: no triples")
    if len(first) == 1 and (other := next((d for d in ";,\t" if d != delimiter and d in first[0]), None)):
        raise CardkgeError(f"{path}:{first_at}: one field, no {delimiter!r} in it; try --delimiter {other!r}")
    names_of = [name.strip() for name in first] if header else None
    order = chosen_columns(options.columns, names_of, path, len(first))
    properties, columns = numbers.in_table(names_of or list(map(str, range(1, len(first) + 1))))
    if not header:
        rows = itertools.chain([(first_at, first)], rows)
    taken = 0
    while part := list(itertools.islice(rows, LINES)):
        names = []
        for at, row in part:
            triple = [row[column] for column in order] if len(row) == len(first) else ()
            if options.normalise:
                triple = list(map(plain_form, triple))
            fault = None
            if not triple:
                fault = f"expected {len(first)} fields, found {len(row)}"
            elif "" in triple:
                fault = "an empty name"
            elif any(character in name for name in triple for character in "\t\n\r"):
                fault = "a tab or a line's end inside a name"
            if fault:
                raise CardkgeError(f"{path}:{at}: {fault}: {quoted(row)}")
            for name, column in columns:
                if row[column].strip():
                    numbers.add(name, triples.entities[triple[0]], row[column])
            if triple[1] in properties:
                numbers.add(triple[1], triples.entities[triple[0]], triple[2])
            else:
                names += triple
        triples.add(names)
        taken += len(part)
    if not taken:
        raise CardkgeError(f"{path}: a header and no triples")


def _not_blank(rows, counts):
    """The (line number, fields) of a table without blank lines, which are counted."""
    for at, row in rows:
        if any(row):
            yield at, row
        else:
            counts["blank lines skipped"] += 1


# --- OpenKE folders


def is_openke(path):
    return os.path.isdir(path) and all(os.path.isfile(os.path.join(path, name)) for name in OPENKE)


def read_openke(folder, triples):
    """Add the triples of an OpenKE folder; returns a dict split -> number of triples, of the splits that it has.

    The first line of each file is the number of the others: `name<TAB>id`, or the ids of head, tail and relation."""
    folder, sizes = Path(folder), {}
    entities, relations = (_openke_names(folder / file) for file in OPENKE[:2])
    limits = len(entities), len(entities), len(relations)
    for split in SPLITS:
        path = folder / f"{split}2id.txt"
        if split != "train" and not path.is_file():
            continue
        before, rows = len(triples), _openke_rows(path)
        while part := list(itertools.islice(rows, LINES)):
            names = []
            for at, line in part:
                fields = line.split()
                ids = [int(field) for field in fields if re.fullmatch("[0-9]{1,9}", field)]
                if len(ids) != 3 or len(fields) != 3 or any(i >= n for i, n in zip(ids, limits)):
                    raise CardkgeError(f"{path}:{at}: expected ids of head, tail and relation, found {quoted(fields)}")
                names += entities[ids[0]], relations[ids[2]], entities[ids[1]]
            triples.add(names)
        sizes[split] = len(triples) - before
    return sizes


def _openke_rows(path):
    """Yield (line number, line) after the first line, which must be the number of the others."""
    expected, found = None, 0
    for number, text in read_blocks(path):
        for at, line in enumerate(text[:-1].split("\n"), number):
            if expected is None:
                if not re.fullmatch(" *[0-9]{1,10} *", line):
                    raise CardkgeError(f"{path}:{at}: expected the number of lines, found {line[:40]!r}")
                expected = int(line)
            elif line.strip():
                found += 1
                yield at, line
    if found != expected:
        raise CardkgeError(f"{path}: its first line says {expected} lines, it has {found}")


def _openke_names(path):
    """The names in an id file, in the order of their ids."""
    names = {}
    for at, line in _openke_rows(path):
        fields = line.rsplit("\t" if "\t" in line else None, 1)  # some files have a space in place of the tab
        if len(fields) != 2 or not re.fullmatch("[0-9]{1,9}", fields[1].strip()) or int(fields[1]) in names:
            raise CardkgeError(f"{path}:{at}: expected a name, a tab and a new id, found {quoted(fields)}")
        if not fields[0] or any(character in fields[0] for character in "\t\r"):
            fault = "expected a name without tabs and carriage returns, found"
            raise CardkgeError(f"{path}:{at}: {fault} {quoted(fields)}")
        names[int(fields[1])] = fields[0]
    if sorted(names) != list(range(len(names))):
        from_1 = sorted(names) == list(range(1, 1 + len(names)))
        hint = "; they begin at 1: take 1 from each id, here and in the triple files" if from_1 else ""
        raise CardkgeError(f"{path}: its ids are not 0 to {len(names) - 1}{hint}")
    if len(set(names.values())) != len(names):
        raise CardkgeError(f"{path}: two ids have the same name")
    return [names[i] for i in range(len(names))]
