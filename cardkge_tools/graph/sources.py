"""Sources of a graph: files of RDF, tables and OpenKE folders, read as streams into triples of ids.

What is kept is the names, each once, and twelve bytes a triple.
"""

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
from cardkge_tools.graph.graphs import first_lines_warnings, later_occurrences, refuse_statements
from cardkge_tools.graph.spelling import plain_form
from cardkge_tools.shell.files import read_blocks, without_gz

TABLES = {".tsv": "\t", ".txt": "\t", ".csv": ","}  # ending -> delimiter
OPENKE = ("entity2id.txt", "relation2id.txt", "train2id.txt")
LINES = 1 << 17  # read at a time
_SCOPED = re.compile("f[0-9]+-")


class Names(dict):
    """name -> id, in order of first appearance: a name that is looked up gets the next id where it has none."""

    def __missing__(self, name):
        self[name] = number = len(self)
        return number


class Triples:
    """Triples as ids while files are read; the names are text: terms of RDF, or fields of tables."""

    def __init__(self):
        self.entities, self.relations = Names(), Names()
        self.ids = array.array("i")  # head, relation, tail, one triple after the other
        self.counts = collections.Counter()

    def __len__(self):
        return len(self.ids) // 3

    @property
    def table(self):
        """(n, 3) int32 of the ids."""
        return np.frombuffer(self.ids, np.int32).reshape(-1, 3)

    def add(self, rows):
        """Take triples of names in."""
        self.add_fields([name for row in rows for name in row])

    def add_fields(self, fields):
        """Take triples in, of names one after the other: head, relation, tail, head, ..."""
        ids = np.empty((len(fields) // 3, 3), np.int32)
        ids[:, 1] = np.fromiter(map(self.relations.__getitem__, fields[1::3]), np.int32, len(ids))
        ends = fields[:]
        del ends[1::3]
        ids[:, ::2] = np.fromiter(map(self.entities.__getitem__, ends), np.int32, len(ends)).reshape(-1, 2)
        self.ids.frombytes(ids.tobytes())

    def first_lines(self, tables):
        """Sentences about first lines that look like headers. tables: file -> (its first triple, the one after it)."""
        if not tables:
            return []
        triples = self.table
        entities, relations = list(self.entities), list(self.relations)
        others = np.split(triples, sorted(limit for part in tables.values() for limit in part))[::2]
        parts = {path: triples[first:last] for path, (first, last) in tables.items()}
        return first_lines_warnings(parts, (entities, relations), others)

    def distinct(self, entity_ids, relation_ids):
        """(n, 3) int32: each triple once, where it came first, with other ids for the ids; counts what is dropped."""
        triples = self.table
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
        self.scope, self.numbered = scope, numbered
        self.blanks = {}

    def consume(self, block):
        """Takes whole lines of N-Quads in."""
        fields = block.replace(" .\n", " ").split(" ")[:-1]
        if '"' in block or "_:" in block or len(fields) != 3 * block.count("\n"):
            self.triples.add(self.kept(block))
        else:  # nothing but IRIs, three a line
            self.triples.add_fields(fields)

    def kept(self, block):
        """The (subject, predicate, object) that are facts; the others are counted."""
        counts, kept, blank = self.triples.counts, [], self.blank
        for line in block[:-1].split("\n"):
            subject, predicate, value, rest = line.split(" ", 3)
            if rest != ".":  # a literal with spaces, a named graph, a statement about a statement
                subject, predicate, value, graph = rdf.terms_of(line)
                counts["statements in named graphs, taken without the graph"] += bool(graph)
            if value[0] == '"' and not self.keep_literals:
                counts["literals left out"] += 1
            elif value[:2] == "<<":
                counts["statements about statements left out"] += 1
            elif subject[0] == "_" or value[0] == "_":
                kept.append((blank(subject), predicate, blank(value)))
            else:
                kept.append((subject, predicate, value))
        return kept

    def blank(self, term):
        """A term; a blank node by the label that it has here."""
        if term[0] != "_":
            return term
        label = self.blanks.setdefault(term, f"b{len(self.blanks) + 1}") if self.numbered else term[2:]
        scope = self.scope or ("f1-" if _SCOPED.match(label) else "")  # else it might be one of a later file
        return f"_:{scope}{label}"


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
    """Yields (line number, fields) of a table: CSV with quotes, or fields between tabs, verbatim. A first line `sep=;`,
    as spreadsheets write it, names the delimiter of the others."""

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
        what = (
            "a carriage return inside a line; save it with lines that end in LF"
            if str(error).startswith("new-line")
            else f"not CSV: {error}"
        )
        raise CardkgeError(f"{path}:{before + reader.line_num}: {what}") from error


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
            chosen.append(triple)
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
        names[int(fields[1])] = fields[0]
    if sorted(names) != list(range(len(names))):
        from_1 = sorted(names) == list(range(1, 1 + len(names)))
        hint = "; they begin at 1: take 1 from each id, here and in the triple files" if from_1 else ""
        raise CardkgeError(f"{path}: its ids are not 0 to {len(names) - 1}{hint}")
    if len(set(names.values())) != len(names):
        raise CardkgeError(f"{path}: two ids have the same name")
    return [names[i] for i in range(len(names))]


def is_openke(path):
    return os.path.isdir(path) and all(os.path.isfile(os.path.join(path, name)) for name in OPENKE)
