"""Graphs: triple files, data sets, vocabularies, bounds files."""

import difflib
import hashlib
import itertools
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cardkge import CardkgeError, mine_bounds, triple_keys
from cardkge_tools import SPLITS
from cardkge_tools.download import fetch_dataset, locate_dataset, read_table, where_to_put
from cardkge_tools.files import read_blocks, replace_file


@dataclass(frozen=True, eq=False)
class Dataset:
    """A graph in three splits. N entities, R relations; the position of a name is its id.

    entities, relations: names in order of first appearance over train, valid and test, line by
        line, the head before the tail.
    train, valid, test: (n, 3) int32, C-contiguous, columns head, relation, tail; no duplicates.
    warnings: one line each, with counts: what a user should know of this data.
    """

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
            return whole
        return np.concatenate(splits)


def _without_blank_lines(path, number, text):
    """The same text without blank lines; CardkgeError at a line that is not three names."""
    lines = text[:-1].split("\n")
    for at, line in enumerate(lines, number):
        fields = line.split("\t")
        if line.strip(" ") and (len(fields) != 3 or "" in fields):
            found = "an empty name" if len(fields) == 3 else len(fields)
            line = repr(line if len(line) <= 80 else line[:77] + "...")
            raise CardkgeError(f"{path}:{at}: expected 3 names with tabs between, found {found}: {line}")
    return "".join(line + "\n" for line in lines if line.strip(" "))


def _read_triple_blocks(path, columns):
    """Yield (heads, relations, tails), lists of names, a block of lines at a time.

    No bytecode runs per triple: a block is checked by comparing the separators of all its lines
    with tab, tab, LF; only a block with a blank or a faulty line is looked at line by line.
    """
    if sorted(str(columns)) != ["h", "r", "t"]:
        raise CardkgeError(f"columns: found {columns!r}, expected an order of h, r, t such as hrt")
    order = [columns.index(letter) for letter in "hrt"]
    for number, text in read_blocks(path):
        codes = np.frombuffer(text.encode("utf-8"), np.uint8)
        at = np.flatnonzero((codes == ord("\t")) | (codes == ord("\n")))
        regular = (
            at.size % 3 == 0
            and (codes[at].reshape(-1, 3) == list(b"\t\t\n")).all()
            and (np.diff(at, prepend=-1) > 1).all()  # no empty name
        )
        if not regular:
            text = _without_blank_lines(path, number, text)
        if text:
            names = text[:-1].replace("\n", "\t").split("\t")
            yield [names[column::3] for column in order]


def read_triples(path, columns="hrt"):
    """Read a triple file: UTF-8, one `head<TAB>relation<TAB>tail` a line, `.gz` or not.

    columns: what the three columns are, a permutation of "hrt" (head, relation, tail).
    Returns three lists of names, heads, relations and tails, of one length; names are verbatim
    (anything but tab, LF, and CR at the end of a line). Blank lines, a byte order mark, CRLF and
    a missing last newline are fine. Raises CardkgeError, naming file and line, for bytes that are
    not UTF-8, a line with other than three fields, an empty name; and for an unreadable file.
    """
    triples = [], [], []
    for block in _read_triple_blocks(path, columns):
        for names, more in zip(triples, block, strict=True):
            names.extend(more)
    return triples


def _read_split(path, columns, entities, relations):
    """(n, 3) int32 ids; the vocabularies (name -> id, giving the next id to a new name) grow."""
    ids = bytearray()  # grows where it is; arrays of the blocks would leave holes between the names
    for heads, names, tails in _read_triple_blocks(path, columns):
        ends = [None] * (2 * len(heads))
        ends[0::2], ends[1::2] = heads, tails
        block = np.empty((len(heads), 3), np.int32)
        block[:, ::2].flat = np.fromiter(map(entities.__getitem__, ends), np.int32, len(ends))
        block[:, 1] = np.fromiter(map(relations.__getitem__, names), np.int32, len(names))
        ids += block.tobytes()
    if not ids:
        raise CardkgeError(f"{path}: no triples; train, valid and test need one at least")
    return np.frombuffer(ids, np.int32).reshape(-1, 3)


def _split_file(folder, split):
    """The path of a split in its folder; CardkgeError for none or several."""
    names = [split + kind + zipped for kind in (".txt", ".tsv") for zipped in ("", ".gz")]
    found = [name for name in names if os.path.isfile(folder / name)]
    if len(found) != 1:
        what = f"found {' and '.join(found)}, keep one" if found else f"no {' or '.join(names)}"
        raise CardkgeError(f"{folder}: {what}; a data set is a folder with train, valid and test")
    return folder / found[0]


def load_dataset(data="families", columns="hrt", download=True):
    """Load a data set by its name in the table (see dataset_table) or from a path to a folder.

    A name wins over a folder of the same name (say ./NAME for that). If it is found nowhere it is
    downloaded, unless download is false. The folder holds train, valid and test, `.txt` or `.tsv`,
    optionally `.gz`, as read_triples reads them. Duplicates within a split are dropped, their first
    occurrence stays; triples of valid and test that are in train too are kept; both are counted in
    the warnings, as are entities and relations that train does not have.
    Returns a Dataset; raises CardkgeError (see read_triples; a split missing, ambiguous or empty;
    N * N * R of 2**63 or more).
    """
    data = os.fspath(data)
    table = read_table()
    folder = locate_dataset(data) if data in table else Path(data)
    if folder is None and not download:
        raise CardkgeError(f"{data} is not on this machine; {where_to_put(data)}")
    folder = folder or fetch_dataset(data)
    if not os.path.isdir(folder):
        names = ", ".join(table)
        raise CardkgeError(f"no data set {data!r}: neither a folder nor one of {names}")
    paths = [_split_file(folder, split) for split in SPLITS]
    entities = defaultdict(itertools.count().__next__)  # a new name gets the next id
    relations = defaultdict(itertools.count().__next__)
    ids = [_read_split(path, columns, entities, relations) for path in paths]
    splits, warnings = _clean_splits(ids, len(entities), len(relations))
    if len(relations) > len(entities):
        warnings.append(
            f"more relations ({len(relations)}) than entities ({len(entities)}): the columns, read"
            f" as {columns}, look swapped; try --columns {'hrt' if columns == 'htr' else 'htr'}"
        )
    known = {split: table.get(data, {}).get(split) for split in SPLITS}
    for split, triples in zip(SPLITS, splits):
        if known[split] not in (None, len(triples)):
            warnings.append(
                f"{folder} is another {data} than the table's: {len(triples)} {split} triples, there {known[split]}"
            )
            break
    limits = np.cumsum([len(split) for split in splits])
    splits = np.split(np.concatenate(splits), limits[:-1])  # see Dataset.known
    return Dataset(data, folder, list(entities), list(relations), *splits, tuple(warnings))


def _clean_splits(splits, n_entities, n_relations):
    """Returns the splits without duplicates, and what there is to warn of, counted."""
    notes = defaultdict(list)
    train_keys, clean = None, []
    for split, triples in zip(SPLITS, splits, strict=True):
        keys = triple_keys(*triples.T, n_entities, n_relations)
        order = np.argsort(keys, kind="stable")  # of equal triples the first comes first
        ordered = keys[order]
        repeated = order[1:][ordered[1:] == ordered[:-1]]
        if repeated.size:
            notes["duplicates dropped"].append(f"{repeated.size} of {keys.size} {split} triples")
            triples, keys = np.delete(triples, repeated, axis=0), np.delete(keys, repeated)
        of_all = f"of {keys.size} {split} triples"
        clean.append(triples)
        if split == "train":
            train_keys = ordered
            continue
        first, last = (np.searchsorted(train_keys, keys, side) for side in ("left", "right"))
        if shared := np.count_nonzero(first < last):
            notes["kept though in train too"].append(f"{shared} {of_all}")
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
    digest = hashlib.sha256()
    for names in (dataset.entities, dataset.relations):
        digest.update(join_names(names).tobytes() + b"\n\n")
    splits = {name: getattr(dataset, name) for name in SPLITS}
    for triples in splits.values():
        digest.update(np.ascontiguousarray(triples, dtype="<i4"))
        digest.update(b"\n\n")
    sizes = {"entities": dataset.n_entities, "relations": dataset.n_relations}
    sizes.update((name, len(triples)) for name, triples in splits.items())
    return {"sha256": digest.hexdigest(), **sizes}


def find(names, name, kind):
    """The id of a name, or an error with names near to it."""
    # where the locale is not UTF-8, Python has read the argument's bytes in another way
    name = os.fsencode(name).decode("utf-8", "replace")
    if name in names:
        return names.index(name)
    near = difflib.get_close_matches(name, names, 3)
    hint = f"did you mean {', '.join(near)}?" if near else "`data show NAME` lists the relations, with examples"
    raise CardkgeError(f"{kind} {name!r} is unknown to the run; {hint}")


def known_answers(dataset, column, entity, relation):
    """What completes a triple that has the entity in the column (0 head, 2 tail): id -> the split it stands in."""
    known = {}
    for split in reversed(SPLITS):
        triples = getattr(dataset, split)
        rows = triples[(triples[:, column] == entity) & (triples[:, 1] == relation)]
        known.update((int(e), split) for e in rows[:, 2 - column])
    return known


def read_bounds(path, relations):
    """Read a bounds file: `relation<TAB>lower<TAB>upper` a line, `inf` for no upper bound.

    relations: the R names of the graph. Returns (R, 2) float64, columns lower and upper, finite
    0 <= lower <= upper; (0, inf) for a relation that the file leaves out. Blank lines are fine.
    Raises CardkgeError, naming file and line, for anything else: an unknown relation, one given
    twice, other than three fields, not a number, NaN, negative, lower above upper or infinite.
    """
    ids = {name: r for r, name in enumerate(relations)}
    bounds = np.full((len(relations), 2), np.nan)  # NaN: not given yet
    for number, text in read_blocks(path):
        for at, line in enumerate(text[:-1].split("\n"), number):
            if line.strip(" "):
                fault = _enter_bounds(line.split("\t"), ids, bounds)
                if fault:
                    raise CardkgeError(f"{path}:{at}: {fault}")
    return np.where(np.isnan(bounds), [0.0, np.inf], bounds)


def _enter_bounds(fields, ids, bounds):
    """Enter the fields of a line; returns what is wrong with them, or None."""
    if len(fields) != 3:
        return f"expected relation, lower, upper with tabs between, found {len(fields)} fields"
    name, *numbers = fields
    if name not in ids:
        return f"unknown relation {name!r}; expected one of the data set's {len(ids)}"
    if not np.isnan(bounds[ids[name], 0]):
        return f"relation {name!r} for the second time; keep one of the lines"
    found = " and ".join(map(repr, numbers))
    try:
        lower, upper = map(float, numbers)
    except ValueError:
        return f"expected two numbers, found {found}"
    if not 0 <= lower <= upper or lower == np.inf:  # NaN fails every comparison
        return f"expected 0 <= lower <= upper, lower finite, found {found}"
    bounds[ids[name]] = lower, upper
    return None


def write_bounds(path, bounds, relations):
    """Write (R, 2) bounds of the R named relations as read_bounds reads them, every relation."""
    rows = np.asarray(bounds, np.float64).tolist()
    text = "".join(
        "\t".join([name, *(repr(number).removesuffix(".0") for number in row)]) + "\n"
        for name, row in zip(relations, rows, strict=True)
    )
    # A name that begins with U+FEFF would be taken for a byte order mark: write one before it.
    encoding = "utf-8-sig" if text.startswith("\ufeff") else "utf-8"
    replace_file(path, lambda file: file.write(text.encode(encoding)))


def find_bounds(bounds, dataset):
    """Bounds (R, 2) as a setting names them: "none", "mined" (from train), or the path of a file."""
    if bounds == "none":
        return np.tile([0.0, np.inf], (dataset.n_relations, 1))
    if bounds == "mined":
        return mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations)
    if not os.path.exists(bounds):
        raise CardkgeError(f"bounds {os.fspath(bounds)!r}: neither mined, nor none, nor a file")
    return read_bounds(bounds, dataset.relations)
