"""Graphs: triple files, data sets, vocabularies."""

import functools
import hashlib
import itertools
import os
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cardkge import CardkgeError, triple_keys
from cardkge_tools import SPLIT_FILES, SPLITS, TRIPLE_FILES
from cardkge_tools.graph import rdf
from cardkge_tools.graph.spelling import first_lines_warnings, look_alike_warnings
from cardkge_tools.shell.download import fetch_dataset, locate_dataset, read_table, where_to_put
from cardkge_tools.shell.files import is_packed, read_blocks, without_gz
from cardkge_tools.shell.terminal import brief, warn


class Triples(np.ndarray):
    """Triples (n, 3) that remember whose ids they hold: `vocabulary`, a checksum of the names, goes with every part."""

    def __array_finalize__(self, source):
        self.vocabulary = getattr(source, "vocabulary", None)

    @classmethod
    def of(cls, array, vocabulary):
        """The same array as Triples of a vocabulary, its `vocabulary_digest`."""
        found = array.view(cls)
        found.vocabulary = vocabulary
        return found


def vocabulary_digest(entities, relations):
    """A checksum of names in their order."""
    return _digest((entities, relations))


def _digest(names, arrays=()):
    """The SHA-256 of lists of names and of arrays, in hexadecimal."""
    digest = hashlib.sha256()
    for part in (*map(join_names, names), *arrays):
        digest.update(np.ascontiguousarray(part).tobytes() + b"\n\n")
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Dataset:
    """A graph in three splits. N entities, R relations; the position of a name is its id.

    entities, relations: names by first appearance over train, valid and test, line by line, the head before the tail.
    train, valid, test: (n, 3) int32, C-contiguous, columns head, relation, tail; no duplicates.
    warnings: one line each, with counts: what a user should know of this data."""

    name: str
    folder: Path
    entities: list[str]
    relations: list[str]
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    warnings: tuple[str, ...] = ()

    @property
    def n_entities(self):
        """N."""
        return len(self.entities)

    @property
    def n_relations(self):
        """R."""
        return len(self.relations)

    @property
    def known(self):
        """(n, 3) int32: train, valid and test, one after the other."""
        splits = self.train, self.valid, self.test
        whole = self.train.base  # of a loaded data set the three are parts of one array
        if whole is not None and all(part.base is whole for part in splits) and len(whole) == sum(map(len, splits)):
            return Triples.of(whole, self.train.vocabulary) if isinstance(self.train, Triples) else whole
        return np.concatenate(splits)


def _checked_lines(path, number, text, skipped):
    """The text without blank lines, which skipped["blank lines"] counts; CardkgeError at a line without three names."""
    lines = text[:-1].split("\n")
    kept = []
    for at, line in enumerate(lines, number):
        if not line.strip(" \t\r"):
            skipped["blank lines"] += 1
            continue
        fields = line.split("\t")
        if "\r" in line:
            raise CardkgeError(f"{path}:{at}: a carriage return inside the line {quoted(fields)}; remove it")
        if len(fields) != 3 or "" in fields:
            found = "an empty name" if len(fields) == 3 else len(fields)
            what = f"expected 3 names with tabs between, found {found}: {quoted(fields)}{other_format(path, lines)}"
            raise CardkgeError(f"{path}:{at}: {what}")
        kept.append(line)
    return "".join(line + "\n" for line in kept)


def quoted(fields):
    """The beginning of a line, for a message, from its fields."""
    return repr(brief("\t".join(fields), 80))


def _read_triple_blocks(path, columns, skipped):
    """Yield (heads, relations, tails), lists of names, a block of lines at a time; counts in `skipped`.

    No bytecode runs per triple: a block is checked by comparing the separators of all its lines with tab, tab, LF; only
    a block with a blank or a faulty line is looked at line by line."""
    if sorted(str(columns)) != ["h", "r", "t"]:
        raise CardkgeError(f"columns: found {columns!r}, expected an order of h, r, t such as hrt")
    order = [columns.index(letter) for letter in "hrt"]
    for number, text in read_blocks(path):
        refuse_statements(path, number, text)
        codes = np.frombuffer(text.encode("utf-8"), np.uint8)
        at = np.flatnonzero((codes == ord("\t")) | (codes == ord("\n")))
        regular = (
            at.size % 3 == 0
            and (codes[at].reshape(-1, 3) == list(b"\t\t\n")).all()
            and (np.diff(at, prepend=-1) > 1).all()  # no empty name
            and "\r" not in text
        )
        if not regular:
            text = _checked_lines(path, number, text, skipped)
        if text:
            names = text[:-1].replace("\n", "\t").split("\t")
            if number == 1 and all(name.endswith(" .") for name in names[2::3]):
                how = as_format(path, ".nt")
                raise CardkgeError(f"{path}:1: the last field of every line ends in ' .', as in N-Triples: {how}")
            yield [names[column::3] for column in order]


# --- files in another format


_NODE = r"(?:<[^<>\s]*>|_:[^\s<>\"]+)"
_LITERAL = r'"(?:[^"\\]|\\.)*"(?:@[\w-]+|\^\^<[^<>\s]*>)?'
_STATEMENT = re.compile(rf"[ \t]*{_NODE}\s*<[^<>\s]*>\s*(?:{_NODE}|{_LITERAL})\s*(?:{_NODE}\s*)?\.\s*(?:#.*)?")


def as_format(path, ending):
    """What to do with a file that is in the format of this ending of names."""
    name = os.path.basename(without_gz(path))
    new = f"{os.path.splitext(name)[0]}{ending}{'.gz' * is_packed(path)}"
    return f"name it {new}, and `cardkge import {new} --out DIR` reads it"


def refuse_statements(path, number, text):
    """CardkgeError where a line of the text, whose first is line `number` of the file, is a statement of N-Triples or
    N-Quads: as three names its full stop would be a part of the last one."""
    if not (text.startswith(("<", "_:", " ", "\t")) or "\n<" in text or "\n_:" in text):
        return
    for found in re.finditer(r"\.[ \t]*(?:#[^\n]*)?\n", text):
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.end() - 1]
        if _STATEMENT.fullmatch(line):
            at = number + text.count("\n", 0, found.start())
            raise CardkgeError(f"{path}:{at}: a statement of N-Triples, {quoted([line])}: {as_format(path, '.nt')}")


def other_format(path, lines):
    """The end of the message about lines that are not three names: the format that they look like, what reads it."""
    lines = [line for line in lines if line.strip()][:1000]
    if like := rdf.format_like("\n".join(lines), functools.partial(as_format, path)):
        return like
    for delimiter in ",;| ":
        if lines and all("\t" not in line and line.count(delimiter) == 2 for line in lines):
            return f"; with {delimiter!r} between: `cardkge import {path} --delimiter {delimiter!r} --out DIR` reads it"
    return ""


def read_triples(path, columns="hrt"):
    """Read a triple file: UTF-8, one `head<TAB>relation<TAB>tail` a line, `.gz` or not.

    columns: what the three columns are, a permutation of "hrt" (head, relation, tail). Returns three lists of names,
    heads, relations and tails, of one length; names are verbatim (anything but tab, LF, and CR at the end of a line).
    Blank lines, a byte order mark, CRLF and a missing last newline are fine. Raises CardkgeError, naming file and line,
    for bytes that are not UTF-8, a line with other than three fields, an empty name; and for an unreadable file."""
    triples = [], [], []
    for block in _read_triple_blocks(path, columns, Counter()):
        for names, more in zip(triples, block, strict=True):
            names.extend(more)
    return triples


def new_vocabularies():
    """Of entities and of relations: name -> id, where a new name that is looked up gets the next id."""
    return defaultdict(itertools.count().__next__), defaultdict(itertools.count().__next__)


def ids_of(triples, entities, relations):
    """(n, 3) int32 of three lists of names, heads, relations and tails; the vocabularies grow."""
    heads, names, tails = triples
    ends = [None] * (2 * len(heads))
    ends[0::2], ends[1::2] = heads, tails
    ids = np.empty((len(heads), 3), np.int32)
    ids[:, ::2].flat = np.fromiter(map(entities.__getitem__, ends), np.int32, len(ends))
    ids[:, 1] = np.fromiter(map(relations.__getitem__, names), np.int32, len(names))
    return ids


def _read_files(folder, paths, columns):
    """(ids, names, warnings) of the triple files of a folder, a dict of a file's or split's name to its path.

    ids: that name -> (n, 3) int32. names: (entities, relations), in order of first appearance."""
    entities, relations = new_vocabularies()
    parts, blank = {}, []
    for what, path in paths.items():
        skipped, ids = Counter(), bytearray()  # grows where it is; arrays would leave holes between the names
        for block in _read_triple_blocks(path, columns, skipped):
            ids += ids_of(block, entities, relations).tobytes()
        if not ids:
            raise CardkgeError(f"{path}: no triples; train, valid and test need one at least")
        parts[what] = np.frombuffer(ids, np.int32).reshape(-1, 3)
        blank += [f"{number} of {what}" for number in skipped.values()]
    names = list(entities), list(relations)
    refuse_inverse_names(folder, relations)
    warnings = [f"blank lines skipped: {', '.join(blank)}"] if blank else []
    return parts, names, warnings + first_lines_warnings(parts, names) + look_alike_warnings(*names)


def _split_file(folder, split):
    """The path of a split in its folder; CardkgeError unless one file is there."""
    names = SPLIT_FILES[split]
    found = [name for name in names if os.path.isfile(folder / name)]
    if len(found) != 1:
        what = f"found {' and '.join(found)}, keep one" if found else f"no {' or '.join(names)}"
        raise CardkgeError(f"{folder}: {what}; a data set is a folder with train, valid and test{_remedy(folder)}")
    return folder / found[0]


def _remedy(folder):
    """What makes a data set of a folder."""
    if os.path.isfile(folder / "train2id.txt"):
        return f"; train2id.txt is OpenKE's format: `cardkge import {folder} --out DIR` reads it"
    names = sorted(os.listdir(folder))
    if any(name in names for name in TRIPLE_FILES):
        return f"; `cardkge split {folder} --out DIR` makes them"
    tables = [name for name in names if name.removesuffix(".gz").endswith((".txt", ".tsv"))]
    if len(tables) == 1:
        return f"; `cardkge import {folder / tables[0]} --out DIR`, then `cardkge split`, make them"
    return ""


def refuse_inverse_names(where, relations):
    """CardkgeError where a relation has the name of another's inverse, ^ and its name: no file tells the two apart."""
    names = set(relations)
    for name in relations:
        if name.startswith("^") and name[1:] in names:
            found = f"relations {name[1:]!a:.80} and {name!a:.80}; ^ before a relation's name stands for its inverse"
            raise CardkgeError(f"{where}: {found}: rename one of them")


def load_triples(folder, columns="hrt"):
    """(triples, entities, relations, warnings) of a folder with `triples.tsv`, or else with splits, which are merged.

    triples: (n, 3) int32, each once. Entities and relations have ids in order of first appearance. Raises CardkgeError
    where there is neither, and for a file that is no triple file."""
    folder = Path(folder)
    paths = [folder / name for name in TRIPLE_FILES if (folder / name).is_file()][:1]
    if not paths:
        names = itertools.chain(*SPLIT_FILES.values())
        paths = [folder / name for name in names if (folder / name).is_file()]
    if not paths:
        what = f"no {TRIPLE_FILES[0]} and no train" if folder.is_dir() else "no such folder"
        raise CardkgeError(f"{folder}: {what}; `import` makes a folder from files in other formats")
    parts, names, warnings = _read_files(folder, {path.name: path for path in paths}, columns)
    triples = np.concatenate(list(parts.values()))
    repeated = later_occurrences(triple_keys(*triples.T, *map(len, names)))
    duplicates = [f"duplicates dropped: {repeated.size} of {len(triples)} triples"] if repeated.size else []
    return np.delete(triples, repeated, axis=0), *names, duplicates + warnings


def later_occurrences(keys):
    """Positions of the keys that stand before in the array too."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    return order[1:][ordered[1:] == ordered[:-1]]


def load_dataset(data="families", columns="hrt", download=True):
    """Load a data set by its name in the table (see dataset_table) or from a path to a folder.

    A name wins over a folder of the same name (say ./NAME for that). If it is found nowhere it is downloaded, unless
    download is false. The folder holds train, valid and test, `.txt` or `.tsv`, optionally `.gz`, as read_triples reads
    them. Duplicates within a split are dropped, their first occurrence stays; triples of valid and test that are in
    train too are kept; both are counted in the warnings, as are entities and relations that train does not have.
    Returns a Dataset; CardkgeError as read_triples, for a split missing, ambiguous or empty, and N * N * R >= 2**63."""
    data = os.fspath(data)
    table = read_table()
    folder = locate_dataset(data) if data in table else Path(data)
    if folder is None and not download:
        raise CardkgeError(f"{data} is not on this machine; {where_to_put(data)}")
    folder = folder or fetch_dataset(data)
    if not os.path.isdir(folder):
        raise CardkgeError(f"no data set {data!r}: neither a folder nor one of {', '.join(table)}")
    paths = {split: _split_file(folder, split) for split in SPLITS}
    ids, (entities, relations), notes = _read_files(folder, paths, columns)
    splits, warnings = _clean_splits(ids, len(entities), len(relations))
    warnings += notes
    if len(relations) > len(entities):
        found, other = f"({len(relations)}) than entities ({len(entities)})", "hrt" if columns == "htr" else "htr"
        warnings.append(f"more relations {found}: the columns, read as {columns}, look swapped; try --columns {other}")
    known = {split: table.get(data, {}).get(split) for split in SPLITS}
    for split, triples in zip(SPLITS, splits):
        if known[split] not in (None, len(triples)):
            sizes = f"{len(triples)} {split} triples, there {known[split]}"
            warnings.append(f"{folder} is another {data} than the table's: {sizes}")
            break
    limits = np.cumsum([len(split) for split in splits])
    whole = Triples.of(np.concatenate(splits), vocabulary_digest(entities, relations))
    splits = [whole[i:j] for i, j in zip([0, *limits], limits)]  # see Dataset.known
    return Dataset(data, folder, entities, relations, *splits, tuple(warnings))


def _clean_splits(splits, n_entities, n_relations):
    """Returns the splits without duplicates, and what there is to warn of, counted."""
    notes, before, clean = defaultdict(list), {}, []
    in_before = {"train": "kept though in train too", "valid": "in both valid, which chooses the epoch, and test"}
    for split, triples in splits.items():
        keys = triple_keys(*triples.T, n_entities, n_relations)
        repeated = later_occurrences(keys)
        if repeated.size:
            notes["duplicates dropped"].append(f"{repeated.size} of {keys.size} {split} triples")
            triples, keys = np.delete(triples, repeated, axis=0), np.delete(keys, repeated)
        of_all = f"of {keys.size} {split} triples"
        clean.append(triples)
        for earlier in reversed(before):
            first, last = (np.searchsorted(before[earlier], keys, side) for side in ("left", "right"))
            if shared := np.count_nonzero(first < last):
                notes[in_before[earlier]].append(f"{shared} {of_all}")
        before[split] = np.sort(keys)
        if split == "train":
            continue
        for what, part in (("entities", slice(0, 3, 2)), ("relations", slice(1, 2))):
            seen = np.zeros(max(n_entities, n_relations), bool)
            seen[clean[0][:, part]] = True
            unseen = ~seen[triples[:, part]]
            if unseen.any():
                names = np.unique(triples[:, part][unseen]).size
                counts = f"{names} in {np.count_nonzero(unseen.any(axis=1))} {of_all}"
                notes[f"{what} unseen in train"].append(counts)
    return clean, [f"{what}: {', '.join(counts)}" for what, counts in notes.items()]


def join_names(names):
    """Names as the bytes of one text, a line each: (n,) uint8."""
    return np.frombuffer("\n".join(names).encode(), dtype=np.uint8)


def describe_data(dataset):
    """The sizes of a Dataset and the SHA-256 of its names and id triples: equal for equal data."""
    splits = {name: np.asarray(getattr(dataset, name), "<i4") for name in SPLITS}
    sizes = {"entities": dataset.n_entities, "relations": dataset.n_relations}
    sizes |= {name: len(triples) for name, triples in splits.items()}
    digest = _digest((dataset.entities, dataset.relations), splits.values())
    return {"sha256": digest, "facts": facts_digest(dataset), **sizes}


def facts_digest(dataset):
    """The SHA-256 of the named triples of each split as sets: equal for files whose lines are in another order."""
    names, keys = (dataset.entities, dataset.relations), []
    entity, relation = (np.argsort(sorted(range(len(each)), key=each.__getitem__)) for each in names)
    for name in SPLITS:
        h, r, t = np.asarray(getattr(dataset, name)).T
        of_split = triple_keys(entity[h], relation[r], entity[t], dataset.n_entities, dataset.n_relations)
        keys.append(np.sort(of_split).astype("<i8"))
    return _digest(map(sorted, names), keys)


def same_facts(one, other):
    """Whether two `describe_data` are of the same facts in each split, in whatever order."""
    if "facts" in one and "facts" in other:
        return one["facts"] == other["facts"]
    return one["sha256"] == other["sha256"]


def known_answers(dataset, column, entity, relation):
    """What completes a triple that has the entity in the column (0 head, 2 tail): id -> the split it stands in."""
    known = {}
    for split in reversed(SPLITS):
        triples = getattr(dataset, split)
        rows = triples[(triples[:, column] == entity) & (triples[:, 1] == relation)]
        known.update((int(e), split) for e in rows[:, 2 - column])
    return known


def open_data(name, columns, **options):
    """Load a data set and print its warnings."""
    dataset = load_dataset(name, columns, **options)
    warn(*dataset.warnings)
    return dataset
