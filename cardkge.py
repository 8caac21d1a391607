"""Knowledge graph embeddings with cardinality constraints.

The paper: E. Munoz, P. Minervini, M. Nickles, *Embedding Cardinality Constraints in Neural Link Predictors*, SAC 2019,
doi:10.1145/3297280.3297502. The file follows its order:

1. Triples and vocabularies   2. Bounds                    3. Scoring functions (Table 2, Eq. 1)
4. Losses (Eq. 2)             5. The regulariser (Eqs. 3-7, sampling)   6. Objective (Eq. 6) and optimisers
7. Training (Algorithm 1)     8. Evaluation                9. Saved runs          10. Oracle

Letters: N entities, R relations, k dim, k' hidden units, n examples or triples, m corruptions of each positive triple,
mu subjects and omega objects of a sample. h, r, t: head, relation, tail; d_x: the gradient with respect to x. Ids are
int32 or int64, triples (n, 3) with columns head, relation, tail. What is written here in NumPy is the definition;
`kernels.py` repeats parts of it, compiled, for speed.
"""

import codecs
import collections
import contextlib
import copy
import csv
import difflib
import functools
import gzip
import hashlib
import http.client
import io
import itertools
import json
import math
import os
import shutil
import sys
import tarfile
import tempfile
import threading
import time
import typing
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePosixPath

import numpy as np

import kernels

__version__ = "1.0.0"

SPLITS = ("train", "valid", "test")
PROJECT_DATA = Path(__file__).resolve().parent / "data"


class CardkgeError(Exception):
    """What the program found wrong: a one-line message that says what, where and what to do."""


def replace_file(path, write):
    """Write a file completely or not at all.

    `write(file)` gets a binary file under a temporary name beside `path`, which is renamed to
    `path` when all is on the disk. If that fails (the disk is full, say) CardkgeError is raised,
    the temporary file is removed and an old file at `path` is untouched. A symbolic link is
    followed; a device or a pipe, and what /dev/stdout stands for, is written to directly. The mode
    is the umask's.
    """
    try:
        own = {"/dev/stdout": sys.stdout, "/dev/stderr": sys.stderr}.get(os.fspath(path))
        if own is not None or (os.path.exists(path) and not os.path.isfile(path)):
            if own is not None:  # the stream itself: opened anew, a file would be written over
                own.flush()
            with open(path if own is None else os.dup(own.fileno()), "wb") as file:
                write(file)
            return
        path = os.path.realpath(path)
        temporary = f"{path}.{os.urandom(4).hex()}.tmp"
        try:
            with open(temporary, "xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:  # Ctrl-C too
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        reason = error.strerror or error
        raise CardkgeError(f"cannot write {path}: {reason}; an older file is unchanged") from error


# ==================================================================================================
# 1. Triples and vocabularies
# ==================================================================================================

BLOCK = 1 << 18  # bytes read at a time: the strings of one block are in memory, never the file's
DOWNLOAD_TIMEOUT = 30.0  # seconds without an answer
DOWNLOAD_LIMIT = 1 << 28  # bytes of a download, and of what an archive unpacks to
_FETCH_ERRORS = (
    *(OSError, http.client.HTTPException),  # the network and the disk
    *(tarfile.TarError, EOFError, zlib.error, ValueError),  # a damaged archive
)


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


def _read_blocks(path):
    """Yield (line number, text of that line and of some after it) through a whole UTF-8 file.

    Every line ends in LF: a byte order mark and the CR of a CRLF are dropped, a last LF added.
    """
    number = 1
    try:
        with (gzip.open if str(path).endswith(".gz") else open)(path, "rb") as file:
            while block := file.read(BLOCK) + file.readline():
                if number == 1:
                    block = block.removeprefix(codecs.BOM_UTF8)
                if not block.endswith(b"\n"):
                    block += b"\n"
                block = block.replace(b"\r\n", b"\n")
                yield number, block.decode("utf-8")
                number += block.count(b"\n")
    except UnicodeDecodeError as error:
        number += block.count(b"\n", 0, error.start)
        found = f"byte 0x{block[error.start]:02x}, {error.reason}"
        raise CardkgeError(f"{path}:{number}: not UTF-8 ({found}); convert the file") from None
    except (OSError, EOFError, zlib.error) as error:  # EOFError, zlib: a damaged .gz
        reason = getattr(error, "strerror", None) or error
        raise CardkgeError(f"{path}: cannot be read: {reason}") from error


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
    for number, text in _read_blocks(path):
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
    names = [split + kind + zipped for kind in (".txt", ".tsv") for zipped in ("", ".gz")]
    found = [name for name in names if os.path.isfile(folder / name)]
    if len(found) != 1:
        what = f"found {' and '.join(found)}, keep one" if found else f"no {' or '.join(names)}"
        raise CardkgeError(f"{folder}: {what}; a data set is a folder with train, valid and test")
    return folder / found[0]


def checked_triples(triples, n_entities, n_relations):
    """`triples` as an array (n, 3); CardkgeError for another shape or dtype, or an id out of range."""
    triples = np.asarray(triples)
    limits = np.array([n_entities, n_relations, n_entities])
    if triples.ndim != 2 or triples.shape[1] != 3 or (triples.size and triples.dtype.kind not in "iu"):
        raise CardkgeError(f"triples: found {triples.dtype} {triples.shape}, expected integers of shape (n, 3)")
    if triples.size and ((triples.min(0) < 0) | (triples.max(0) >= limits)).any():
        found = f"{triples.min(0).tolist()} to {triples.max(0).tolist()}"
        raise CardkgeError(f"triples: ids from {found}, out of range: expected 0 to below {limits.tolist()}")
    return triples.astype(np.int64) if triples.dtype.kind == "u" else triples  # uint64 and int64 would make floats


def triple_keys(heads, relations, tails, n_entities, n_relations):
    """One int64 for each triple, ordered by relation, head, tail, of id arrays that broadcast. CardkgeError where
    N * N * R is too large for that."""
    if int(n_entities) ** 2 * int(n_relations) >= 1 << 63:
        found = f"{n_entities} entities and {n_relations} relations"
        raise CardkgeError(f"triples: {found}; entities * entities * relations must be below 2**63")
    return (np.asarray(relations, np.int64) * n_entities + heads) * n_entities + tails


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
    table = _table()
    folder = locate_dataset(data) if data in table else Path(data)
    if folder is None and not download:
        raise CardkgeError(f"{data} is not on this machine; {_where_to_put(data)}")
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


def _table():
    """data/datasets.json, name -> entry: files (name -> MD5), download (urls; SHA-256), sizes."""
    path = PROJECT_DATA / "datasets.json"
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CardkgeError(f"{path}: the table of data sets cannot be read: {error}") from error


def _entry(name):
    table = _table()
    if name not in table:
        raise CardkgeError(f"no data set named {name!r} in the table: it has {', '.join(table)}")
    return table[name]


def _user_cache():
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "cardkge"


def _data_folders():
    """Where a name is looked for, in this order."""
    own = [Path(part) for part in os.environ.get("CARDKGE_DATA", "").split(os.pathsep) if part]
    return [*own, PROJECT_DATA, _user_cache()]


def _where_to_put(name):
    folders = " or ".join(str(folder / name) for folder in _data_folders())
    return (
        f"put its train.txt, valid.txt and test.txt into {folders} (folders are looked for in"
        " $CARDKGE_DATA first), or use the embedded data set families"
    )


def dataset_table():
    """The data sets known by name, a dict each.

    Keys: name, folder (where it is found, or None), entities, relations, train, valid, test
    (numbers, or None where the table does not give them), source (a line of text).
    """
    keys = ("entities", "relations", *SPLITS, "source")
    return [
        {"name": name, "folder": locate_dataset(name), **{key: entry.get(key) for key in keys}}
        for name, entry in _table().items()
    ]


def locate_dataset(name):
    """The folder of a data set of the table, or None; never downloads.

    Looked for: NAME in each folder of $CARDKGE_DATA (os.pathsep between), in the project's data/,
    in the user cache. Raises CardkgeError for a name that the table does not have.
    """
    _entry(name)
    folders = (folder / name for folder in _data_folders())
    return next((folder for folder in folders if os.path.isdir(folder)), None)


def fetch_dataset(name, progress=None):
    """Download a data set of the table into the user cache and return its folder there.

    progress(done, total), if given, is called with bytes, total None if the server does not say.
    The archive must have the SHA-256 of the table, where it has one, and each file its MD5;
    nothing is kept otherwise, and what is kept appears at once, complete. Raises CardkgeError for
    a name that the table does not have, no network, a download that is not what was expected.
    """
    entry = _entry(name)
    folder = _user_cache() / name
    if os.path.isdir(folder):
        return folder
    if not entry.get("download"):
        if found := locate_dataset(name):
            return found
        raise CardkgeError(f"{name} has no public direct download; {_where_to_put(name)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as work:
            ready = Path(work) / name
            ready.mkdir()
            for item in entry["download"]:
                file = item["url"].rpartition("/")[2]
                if file in entry["files"]:
                    _download(item["url"], ready / file, progress)
                    continue
                archive = Path(work) / file
                _download(item["url"], archive, progress)
                if "sha256" in item:
                    _check(archive, "sha256", item["sha256"])
                _unpack(archive, ready, entry["files"])
            for file, md5 in entry["files"].items():
                _check(ready / file, "md5", md5)
            try:
                os.rename(ready, folder)
            except OSError:
                if not folder.is_dir():  # else it was fetched by someone else meanwhile
                    raise
    except (*_FETCH_ERRORS, CardkgeError) as error:
        reason = error.reason if type(error) is urllib.error.URLError else error
        reason = " ".join(str(reason).split())  # some have several lines
        source, where = entry["download"][0]["url"], _where_to_put(name)
        raise CardkgeError(f"cannot fetch {name} from {source}: {reason}; {where}") from error
    return folder


def _require_https(url):
    """Plain HTTP can be changed on its way, so it is for this machine itself (a mirror, a test)."""
    parts = urllib.parse.urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
    if parts.scheme != "https" and not local:
        raise CardkgeError(f"refused {url}: not an https address")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections as long as they stay with HTTPS."""

    def redirect_request(self, request, response, code, message, headers, url):
        _require_https(url)
        return super().redirect_request(request, response, code, message, headers, url)


def _download(url, path, progress):
    """Stream a url to a new file; CardkgeError if it is too long or ends too early."""
    _require_https(url)
    request = urllib.request.Request(url, headers={"User-Agent": "cardkge"})
    opener = urllib.request.build_opener(_Redirects)
    with opener.open(request, timeout=DOWNLOAD_TIMEOUT) as response, open(path, "xb") as file:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        done = 0
        while block := response.read(1 << 16):
            done += len(block)
            if done > DOWNLOAD_LIMIT:
                raise CardkgeError(f"longer than {DOWNLOAD_LIMIT} bytes")
            file.write(block)
            if progress:
                progress(done, total)
        if total is not None and done != total:  # http.client lets this pass
            raise CardkgeError(f"it ended after {done} of {total} bytes; try again")


def _unpack(archive, folder, files):
    """Write the members named as one of files (base name -> MD5) into folder.

    A member's path is used for nothing but its last part, and one that has no place in a data set
    (a link, a device, a path that leaves its folder) makes the archive suspect as a whole. Of
    several members with one base name the one with the right MD5 stays.
    """
    total = 0
    with tarfile.open(archive, "r:gz") as members:
        for member in members:
            path = PurePosixPath(member.name.replace("\\", "/"))
            safe = (member.isreg() or member.isdir()) and not path.is_absolute()
            if not safe or ".." in path.parts:
                raise CardkgeError(
                    f"refused the archive: its member {member.name!r} is a link, a device or has"
                    " a path that leaves the archive's folder"
                )
            total += member.size
            if total > DOWNLOAD_LIMIT:
                raise CardkgeError(f"the archive unpacks to more than {DOWNLOAD_LIMIT} bytes")
            target = folder / path.name
            if not member.isreg() or path.name not in files:
                continue
            if not target.exists() or _digest(target, "md5") != files[path.name]:
                with members.extractfile(member) as source, open(target, "wb") as file:
                    shutil.copyfileobj(source, file)


def _digest(path, algorithm):
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _check(path, algorithm, expected):
    found = _digest(path, algorithm) if path.exists() else "no such file"
    if found != expected:
        raise CardkgeError(f"wrong {algorithm} of {path.name}: expected {expected}, found {found}")


# ==================================================================================================
# 2. Bounds (paper, Relation Cardinalities)
# ==================================================================================================


def mine_bounds(triples, n_entities, n_relations, population="subjects"):
    """Cardinality bounds of each relation as the triples show them.

    With count(r, h) the number of distinct tails of subject h under relation r, upper is the
    maximum over h of count(r, h) and lower the minimum over the population: "subjects", every
    entity that is a head of any triple; "relation", the heads of r; "entities", all.
    triples: (n, 3) integers, head, relation, tail; duplicates do not matter.
    Returns (R, 2) float64, columns lower and upper; (0, inf) for a relation without a triple.
    Raises CardkgeError for ids out of range or another population.
    """
    if population not in ("subjects", "relation", "entities"):
        raise CardkgeError(f"population: found {population!r}, expected subjects, relation or entities")
    keys = triple_keys(*checked_triples(triples, n_entities, n_relations).T, n_entities, n_relations)
    keys.sort()
    keys = keys[np.diff(keys, prepend=-1) > 0]  # distinct, by relation and head
    bounds = np.tile([0.0, np.inf], (n_relations, 1))
    if keys.size:
        pairs, counts = np.unique(keys // n_entities, return_counts=True)  # r * N + h
        mined, first, heads = np.unique(pairs // n_entities, return_index=True, return_counts=True)
        subjects = np.count_nonzero(np.bincount(pairs % n_entities))
        size = {"subjects": subjects, "relation": heads, "entities": n_entities}[population]
        # An entity of the population that is no head of r has count 0.
        bounds[mined, 0] = np.where(heads == size, np.minimum.reduceat(counts, first), 0)
        bounds[mined, 1] = np.maximum.reduceat(counts, first)
    return bounds


def is_bounded(bounds):
    """(R,) bool: the relations whose bounds (R, 2) are other than (0, inf)."""
    bounds = np.asarray(bounds)
    return (bounds[:, 0] != 0) | (bounds[:, 1] != np.inf)


def read_bounds(path, relations):
    """Read a bounds file: `relation<TAB>lower<TAB>upper` a line, `inf` for no upper bound.

    relations: the R names of the graph. Returns (R, 2) float64, columns lower and upper, finite
    0 <= lower <= upper; (0, inf) for a relation that the file leaves out. Blank lines are fine.
    Raises CardkgeError, naming file and line, for anything else: an unknown relation, one given
    twice, other than three fields, not a number, NaN, negative, lower above upper or infinite.
    """
    ids = {name: r for r, name in enumerate(relations)}
    bounds = np.full((len(relations), 2), np.nan)  # NaN: not given yet
    for number, text in _read_blocks(path):
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


# ------------------------------------------------------------------------------------------------------------------
# 3. Scoring functions (paper, Table 2)
# ------------------------------------------------------------------------------------------------------------------


def glorot(rng, shape, fan_in, fan_out, dtype):
    """Uniform on +-sqrt(6 / (fan_in + fan_out)) (Glorot & Bengio 2010, Eq. 16), drawn in float64."""
    limit = np.sqrt(6.0 / (fan_in + fan_out))
    values = np.empty(math.prod(shape), dtype)
    for part in np.array_split(values, len(values) // 2**20 + 1):  # not all of them in float64 at once
        part[:] = rng.uniform(-limit, limit, len(part))
    return values.reshape(shape)


def checked_ids(ids, count, what):
    """`ids` as a flat integer array; CardkgeError where it is not, or where an id is outside 0..count - 1."""
    ids = np.asarray(ids)
    if ids.size == 0:
        ids = ids.astype(np.int32)
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise CardkgeError(f"{what} ids must be a flat array of integers, found shape {ids.shape}, dtype {ids.dtype}")
    if ids.size and (ids.min() < 0 or ids.max() >= count):
        bad = ids.min() if ids.min() < 0 else ids.max()
        raise CardkgeError(f"{what} id {bad} is out of range: ids are 0..{count - 1}")
    return ids.astype(np.int64) if ids.dtype.kind == "u" else ids  # an unsigned id has no place in a kernel


class Model:
    """What the three scoring functions share: `params` (a dict of plain arrays), sizes, checks, and scoring by id.

    n_entities N, n_relations R, dim k; `seed` an int, or a numpy Generator (None: params stays empty); dtype float32
    or float64. Ids are (n,) arrays of int32 or int64; an id out of range, or arrays of unequal length, raise
    CardkgeError before anything is computed.

    A subclass gives, on *rows* (arrays whose last axis is the row), each with its backward pass:
    encode        embedding rows to the rows that are scored (the identity, but for ER-MLP);
    phi           the score of aligned rows h, r, t: (..., w) three times -> (...);
    query_tails, query_heads, match   match(query_tails(h, r), t) scores every h, with its r, with every t;
                  match(query_heads(r, t), h) every t, with its r, with every h: (n, w), (m, w) -> (n, m).
    """

    row_length = 1  # reals in an embedding row, as a multiple of k

    def __init__(self, n_entities, n_relations, dim=200, seed=0, dtype="float32"):
        for what, value in (("n_entities", n_entities), ("n_relations", n_relations), ("dim", dim)):
            if value < 1:
                raise CardkgeError(f"{what} must be at least 1, found {value}")
        if dtype not in ("float32", "float64", np.float32, np.float64):
            raise CardkgeError(f"dtype must be float32 or float64, found {dtype}")
        self.n_entities, self.n_relations, self.dim = int(n_entities), int(n_relations), int(dim)
        self.dtype = np.dtype(dtype)
        self.params = {}
        if seed is not None:
            rng = np.random.default_rng(seed)
            for name, shape in self.shapes.items():
                fans = (shape[1], shape[1]) if name in ("entity", "relation") else (*shape, 1)[:2]
                self.params[name] = glorot(rng, shape, *fans, self.dtype)

    @property
    def shapes(self):
        """The shape of each array of params."""
        width = self.row_length * self.dim
        return {"entity": (self.n_entities, width), "relation": (self.n_relations, width)}

    @property
    def output(self):
        """ER-MLP's w (k',); for the others an empty array."""
        return self.params.get("output", np.empty(0, self.dtype))

    def rows(self, heads=None, relations=None, tails=None):
        """The embedding rows of the ids that are given, in the order h, r, t."""
        found = []
        for ids, table, what in (
            (heads, "entity", "head"),
            (relations, "relation", "relation"),
            (tails, "entity", "tail"),
        ):
            if ids is not None:
                ids = checked_ids(ids, len(self.params[table]), what)
                if found and len(ids) != len(found[0]):
                    raise CardkgeError(f"ids must be as many: {len(ids)} {what} ids beside {len(found[0])} others")
                found.append(self.params[table][ids])
        return found

    def score(self, heads, relations, tails):
        """phi(h, r, t) of n triples: ids (n,) three times -> (n,)."""
        return self.phi(*self.encode(*self.rows(heads, relations, tails)))

    def score_tails(self, heads, relations):
        """phi(h, r, t) for every entity t: ids (n,) twice -> (n, N)."""
        h, r, t = self.encode(*self.rows(heads, relations), self.params["entity"])
        return self.match(self.query_tails(h, r), t)

    def score_heads(self, relations, tails):
        """phi(h, r, t) for every entity h: ids (n,) twice -> (n, N)."""
        h, r, t = self.encode(self.params["entity"], *self.rows(None, relations, tails))
        return self.match(self.query_heads(r, t), h)

    def gradients(self, heads, relations, tails, upstream):
        """d sum(upstream * score) / d params: ids (n,) three times, upstream (n,) -> dict of dense arrays like
        params."""
        rows = self.rows(heads, relations, tails)
        upstream = np.asarray(upstream, self.dtype)
        if upstream.shape != (len(rows[0]),):
            raise CardkgeError(f"upstream must have shape {(len(rows[0]),)}, found {upstream.shape}")
        gradients = self.zero_gradients()
        d_rows = self.d_phi(*self.encode(*rows), upstream, gradients)
        d_h, d_r, d_t = self.d_encode(*rows, *d_rows, gradients)
        for name, ids, d in (("entity", heads, d_h), ("relation", relations, d_r), ("entity", tails, d_t)):
            np.add.at(gradients[name], np.asarray(ids, np.intp), d)  # repeated ids are summed
        return gradients

    def zero_gradients(self):
        """A dict of zeros like params."""
        return {name: np.zeros_like(array) for name, array in self.params.items()}

    def encode(self, h, r, t):
        return h, r, t

    def d_encode(self, h, r, t, d_h, d_r, d_t, gradients):
        return d_h, d_r, d_t

    # DistMult and ComplEx are linear in each row, phi(h, r, t) = query_tails(h, r) . t, so the scores of n heads with m
    # tails are one matrix product; and sum_t u_t phi(h, r, t) = phi(h, r, sum_t u_t t), which gives its backward pass.

    def match(self, query, rows):
        return query @ np.swapaxes(rows, -1, -2)

    def d_pairs(self, h, r, t, upstream, gradients, out=None):
        """Backward pass of match(query_tails(h, r), t) for upstream (..., n, m) and one r (..., 1, w); d_t is
        written to `out`, if that is given. For scores in which h and r enter alike; ERMLP has its own."""
        u_t = upstream @ t
        d_t = np.matmul(np.swapaxes(upstream, -1, -2), self.query_tails(h, r), out=out)
        return self.query_heads(r, u_t), self.query_heads(h, u_t).sum(-2, keepdims=True), d_t


class DistMult(Model):
    """phi = <h, r, t> = sum_i h_i r_i t_i (Yang et al. 2015). params: entity (N, k), relation (R, k)."""

    name, kind = "distmult", kernels.DISTMULT

    def phi(self, h, r, t):
        return (h * r * t).sum(-1)

    def d_phi(self, h, r, t, upstream, gradients):
        u = upstream[..., None]
        return u * r * t, u * h * t, u * h * r

    def query_tails(self, h, r):
        return h * r

    def query_heads(self, r, t):
        return r * t


class ComplEx(Model):
    """phi = Re(sum_i h_i r_i conj(t_i)) (Trouillon et al. 2016). params: entity (N, 2k), relation (R, 2k): the first k
    columns are the real parts, the last k the imaginary ones."""

    name, kind, row_length = "complex", kernels.COMPLEX, 2

    def phi(self, h, r, t):
        return (self.query_tails(h, r) * t).sum(-1)

    def d_phi(self, h, r, t, upstream, gradients):
        u = upstream[..., None]
        d_h = u * self.query_heads(r, t)
        d_r = u * self.query_heads(h, t)  # h and r enter alike
        return d_h, d_r, u * self.query_tails(h, r)

    def query_tails(self, h, r):
        """h r as [real, imaginary]: phi = Re(h r) . Re(t) + Im(h r) . Im(t)."""
        (a, b), (c, d) = np.split(h, 2, -1), np.split(r, 2, -1)
        return np.concatenate((a * c - b * d, a * d + b * c), -1)

    def query_heads(self, r, t):
        """conj(r) t as [real, imaginary]: phi = Re(conj(r) t) . Re(h) + Im(conj(r) t) . Im(h)."""
        (c, d), (e, f) = np.split(r, 2, -1), np.split(t, 2, -1)
        return np.concatenate((c * e + d * f, c * f - d * e), -1)


class ERMLP(Model):
    """phi = w . tanh(W' [h; t; r]), in this order, no bias (Dong et al. 2014). params: entity (N, k), relation (R, k),
    hidden W (3k, k'), output w (k',).

    W' [h; t; r] = W_h' h + W_t' t + W_r' r with W_h, W_t, W_r the three blocks of k rows of W: `encode` computes these
    hidden rows, once for each row, and phi is w . tanh of their sum.
    """

    name, kind = "ermlp", kernels.ERMLP

    def __init__(self, n_entities, n_relations, dim=200, seed=0, dtype="float32", hidden=200):
        if hidden < 1:
            raise CardkgeError(f"hidden must be at least 1, found {hidden}")
        self.hidden = int(hidden)
        super().__init__(n_entities, n_relations, dim, seed, dtype)

    @property
    def shapes(self):
        return super().shapes | {"hidden": (3 * self.dim, self.hidden), "output": (self.hidden,)}

    def encode(self, h, r, t):
        w_h, w_t, w_r = np.split(self.params["hidden"], 3)
        return h @ w_h, r @ w_r, t @ w_t

    def d_encode(self, h, r, t, d_h, d_r, d_t, gradients):
        w_h, w_t, w_r = np.split(self.params["hidden"], 3)
        gradients["hidden"] += np.concatenate((h.T @ d_h, t.T @ d_t, r.T @ d_r))
        return d_h @ w_h.T, d_r @ w_r.T, d_t @ w_t.T

    def phi(self, h, r, t):
        return np.tanh(h + r + t) @ self.params["output"]

    def d_phi(self, h, r, t, upstream, gradients):
        z = np.tanh(h + r + t)
        gradients["output"] += np.tensordot(upstream, z, upstream.ndim)
        d = upstream[..., None] * self.params["output"] * (1 - z * z)
        return d, d, d

    def query_tails(self, h, r):
        return h + r

    def query_heads(self, r, t):
        return r + t

    def match(self, query, rows):
        w = self.params["output"]  # one query at a time: (m, k') numbers at once, not (n, m, k')
        return np.array([np.tanh(q + rows) @ w for q in query], self.dtype).reshape(len(query), len(rows))

    def d_pairs(self, h, r, t, upstream, gradients):
        d_h, d_t = np.empty_like(h), np.zeros_like(t)
        for i in range(len(h)):
            d, _, _ = self.d_phi(h[i], r[0], t, upstream[i], gradients)
            d_h[i] = d.sum(0)
            d_t += d
        return d_h, d_h.sum(0, keepdims=True), d_t


MODELS = {model.name: model for model in (DistMult, ComplEx, ERMLP)}


def probability(scores):
    """Eq. 1: p = sigma(score) = 1 / (1 + exp(-score)), of any shape and float dtype, without overflow."""
    e = np.exp(-np.abs(scores))
    return np.where(scores >= 0, 1, e) / (1 + e)


# ------------------------------------------------------------------------------------------------------------------
# 4. Losses (paper, Eq. 2 and the logistic loss below it)
# ------------------------------------------------------------------------------------------------------------------


def logistic_loss(scores, labels):
    """sum log(1 + exp(-y score)). scores of any shape, labels y of the same shape in {-1, +1}.

    Returns (value, d value / d scores). No overflow for any finite score. CardkgeError for another label.
    """
    scores, labels = np.asarray(scores), np.asarray(labels)
    if scores.shape != labels.shape or not np.isin(labels, (-1, 1)).all():
        raise CardkgeError("labels must be -1 or +1, one for each score")
    x = labels.astype(scores.dtype) * scores
    value = (np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, 0)).sum(dtype=np.float64)
    return float(value), -labels.astype(scores.dtype) * probability(-x)


def hinge_loss(positive, negative, margin):
    """Eq. 2: sum [margin + sigma(negative) - sigma(positive)]_+ over each positive (n,) with its own negatives (n, m).

    Returns (value, d value / d positive (n,), d value / d negative (n, m)); the subgradient at the kink is 0.
    """
    positive, negative = np.asarray(positive), np.asarray(negative)
    if negative.ndim != 2 or positive.shape != negative.shape[:1]:
        raise CardkgeError(f"positive (n,) and negative (n, m) scores do not fit: {positive.shape}, {negative.shape}")
    p, q = probability(positive)[:, None], probability(negative)
    excess = margin + q - p
    active = excess > 0
    value = np.where(active, excess, 0).sum(dtype=np.float64)
    return float(value), -(active * p * (1 - p)).sum(1), active * q * (1 - q)


# ------------------------------------------------------------------------------------------------------------------
# 5. The regulariser (paper, Eqs. 3-7, and the sampling of its sums)
# ------------------------------------------------------------------------------------------------------------------


def violation(sums, lower, upper):
    """Eq. 5: G = max(0, lower - X) + max(0, X - upper), and its slope d G / d X in {-1, 0, 1} (0 at the bounds)."""
    g = np.maximum(0, lower - sums) + np.maximum(0, sums - upper)
    return g, 1.0 * (sums > upper) - 1.0 * (sums < lower)


def cardinality_sums(model, relation, subjects, objects=None, weights=None):
    """Eq. 4: X_hr = sum over objects t of weight_t p(h, r, t), for the subjects h. Returns (n,) float64.

    relation an id, subjects (n,) ids; objects (m,) ids, or None for all entities, exactly; weights (m,), 1 if None.
    """
    h, r, t = model.encode(*_pair_rows(model, relation, subjects, objects))
    weights = np.ones(len(t)) if weights is None else np.asarray(weights, np.float64)
    sums = np.empty(len(h))
    for i in range(0, len(h), 64):  # not all pairs at once
        p = probability(model.match(model.query_tails(h[i : i + 64], r), t))
        sums[i : i + 64] = p.astype(np.float64, copy=False) @ weights
    return sums


def cardinality_penalty(model, bounds, relation, subjects, objects=None, weights=None):
    """sum of G_hr (Eq. 5) over the subjects h, with X_hr as in `cardinality_sums`; bounds (R, 2).

    Returns (sum of G, its gradients as a dict like params, X (n,)). With sampled objects X may be unbiased; G is not,
    since max(0, .) is convex: E[G(X)] >= G(E[X]).
    """
    rows = _pair_rows(model, relation, subjects, objects)
    h, r, t = model.encode(*rows)
    p = probability(model.match(model.query_tails(h, r), t))
    weights = np.ones(p.shape[1]) if weights is None else np.asarray(weights, np.float64)
    sums = p.astype(np.float64, copy=False) @ weights
    g, slope = violation(sums, *np.asarray(bounds, np.float64)[relation])
    upstream = (slope[:, None] * weights * p * (1 - p)).astype(model.dtype)

    gradients = model.zero_gradients()
    d_rows = model.d_pairs(h, r, t, upstream, gradients)
    d_h, d_r, d_t = model.d_encode(*rows, *d_rows, gradients)
    everyone = np.arange(model.n_entities) if objects is None else np.asarray(objects, np.intp)
    np.add.at(gradients["entity"], np.asarray(subjects, np.intp), d_h)
    np.add.at(gradients["entity"], everyone, d_t)
    gradients["relation"][relation] += d_r[0]
    return float(g.sum()), gradients, sums


def _pair_rows(model, relation, subjects, objects):
    """Embedding rows (n, w), (1, w), (m, w) of subjects, relation and objects (None: every entity), ids checked."""
    (h,) = model.rows(heads=subjects)
    (r,) = model.rows(relations=np.array([relation]))
    (t,) = (model.params["entity"],) if objects is None else model.rows(tails=objects)
    return h, r, t


SAMPLINGS = ("exact", "uniform", "importance", "bernoulli")


class ObjectSampler:
    """Draws the objects over which X_hr is summed (paper, Lower Bound Estimation and Sum Estimation).

    kind         objects                                                weight            X estimate
    exact        all N                                                  1                 the sum itself
    uniform      omega distinct, uniform                                1                 a lower bound, not rescaled
    importance   omega draws with repetition from q_r                   1 / (omega q)     unbiased
    bernoulli    each t independently with probability b_t, sum omega   1 / b_t           unbiased

    q_r(t) = (1 + count of t as a tail of r in train) / (N + triples of r). b_t is omega / N (inclusion="uniform") or
    min(1, c q_r(t)) with c such that they add up to omega ("frequency"). The work of a draw grows with the sample, not
    with N, and the memory with the triples, not with R x N.
    """

    def __init__(self, kind, triples, n_entities, n_relations, objects=100, inclusion="frequency"):
        if kind not in SAMPLINGS:
            raise CardkgeError(f"sampling must be one of {', '.join(SAMPLINGS)}; found {kind}")
        if inclusion not in ("frequency", "uniform"):
            raise CardkgeError(f"inclusion must be frequency or uniform, found {inclusion}")
        if objects < 1:
            raise CardkgeError(f"objects must be at least 1, found {objects}")
        self.kind, self.inclusion, self.n_entities = kind, inclusion, n_entities
        self.omega = objects if kind == "importance" else min(objects, n_entities)
        # the distinct (relation, tail) pairs of train as relation * N + tail, sorted, and how often each stands there
        keys = triples[:, 1].astype(np.int64) * n_entities + triples[:, 2]
        pairs, counts = np.unique(keys, return_counts=True)
        self.pairs, self.counts = np.append(pairs, -1), np.append(counts, 0)  # place -1 is none of them
        self.starts = np.searchsorted(pairs, np.arange(n_relations + 1) * n_entities)
        self.triples_before = np.cumsum(self.counts) - self.counts
        self.marks = np.zeros(n_entities, np.uint8)
        self.tables = {}

    def _tails(self, relation):
        """The distinct tails of the relation in train, sorted, and their counts."""
        part = slice(self.starts[relation], self.starts[relation + 1])
        return self.pairs[part] - relation * self.n_entities, self.counts[part]

    def probabilities(self, relation):
        """(N,) float64: q_r(t) for importance; for the others the probability that t is in a sample."""
        if self.kind == "exact":
            return np.ones(self.n_entities)
        if self.kind == "uniform" or (self.kind == "bernoulli" and self.inclusion == "uniform"):
            return np.full(self.n_entities, self.omega / self.n_entities)
        frequency = np.ones(self.n_entities)
        tails, counts = self._tails(relation)
        frequency[tails] += counts
        if self.kind == "importance":
            return frequency / frequency.sum()
        return self._capped(frequency, np.ones(self.n_entities))

    def _capped(self, frequency, sizes):
        """b = min(1, c frequency) of classes of `sizes` entities each, with c such that sum sizes * b = omega."""
        capped = np.zeros(len(frequency), bool)
        while True:  # a round that caps no further class is the last
            total = (sizes * frequency)[~capped].sum()
            c = (self.omega - sizes[capped].sum()) / total if total else 0.0
            more = ~capped & (c * frequency > 1)
            if not more.any():
                return np.where(capped, 1.0, c * frequency)
            capped |= more

    def draw(self, rng, relations):
        """One sample for each relation: (objects (B, width) int32, weights (B, width) float64). A sample smaller than
        the widest is filled up with object 0 at weight 0. rng a numpy Generator, relations (B,) ids."""
        relations = np.asarray(relations, np.int64)
        n, size = self.n_entities, len(relations)
        if self.kind == "exact":
            return np.tile(np.arange(n, dtype=np.int32), (size, 1)), np.ones((size, n))
        if self.kind == "uniform":
            takes = np.full(size, self.omega)
            objects = distinct(rng, np.full(size, n), takes, self.marks)
            return objects.reshape(size, -1), np.ones((size, self.omega))
        if self.kind == "importance":
            return self._draw_importance(rng, relations[:, None])
        return self._draw_bernoulli(rng, relations)

    def _draw_importance(self, rng, relations):
        # q_r is a mixture: one of N entities, or the tail of one of the n_r train triples of r, each with equal chance
        n = self.n_entities
        before = self.triples_before[self.starts[relations]]
        n_r = self.triples_before[self.starts[relations + 1]] - before
        pick = rng.integers(0, n + n_r, size=(len(relations), self.omega))
        from_train, parts = pick >= n, (self.starts, np.broadcast_to(relations, pick.shape))
        pair = np.where(
            from_train,
            last_at_most(self.triples_before, *parts, before + pick - n),
            last_at_most(self.pairs, *parts, relations * n + pick),
        )
        keys = np.where(from_train, self.pairs[pair], relations * n + pick)
        frequency = 1 + self.counts[pair] * (self.pairs[pair] == keys)
        return (keys - relations * n).astype(np.int32), (n + n_r) / (self.omega * frequency)

    def _bernoulli_table(self, relations):
        """The classes of equal b, relation by relation: first the entities that are not tails of r in train, then its
        tails by count. Columns: b, size, row of the relation, start in `members` (-1 for a first class); then the
        members, and what `_draw_bernoulli` needs to find the i-th entity that is not a tail."""
        key = relations.tobytes()
        if key not in self.tables:
            columns, members, gaps = [], [], []
            for row, r in enumerate(relations):
                tails, counts = self._tails(r)
                if self.inclusion == "uniform":
                    tails, counts = tails[:0], counts[:0]
                values, sizes = np.unique(counts, return_counts=True)
                sizes = np.concatenate(([self.n_entities - len(tails)], sizes))
                b = self._capped(np.concatenate(([1.0], 1.0 + values)), sizes)
                start = sum(map(len, members)) + np.cumsum(sizes) - sizes - sizes[0]
                start[0] = -1
                columns.append((b, sizes, np.full(len(b), row), start))
                members.append(tails[np.argsort(counts, kind="stable")])
                gaps.append(tails - np.arange(len(tails)))
            gap_starts = np.cumsum([0] + [len(g) for g in gaps])
            members = np.concatenate([*members, [0]])
            table = [np.concatenate(column) for column in zip(*columns)]
            self.tables[key] = (*table, members, np.concatenate(gaps), gap_starts)
        return self.tables[key]

    def _draw_bernoulli(self, rng, relations):
        b, sizes, row, start, members, gaps, gap_starts = self._bernoulli_table(relations)
        takes = rng.binomial(sizes, b)  # how many of each class; every subset of that size is as likely
        draws = distinct(rng, sizes, takes, self.marks)
        part = np.repeat(np.arange(len(b)), takes)
        row, start = row[part], start[part]
        skipped = last_at_most(gaps, gap_starts, row, draws) + 1 - gap_starts[row]
        objects = np.where(start < 0, draws + skipped, members[np.maximum(start, 0) + draws * (start >= 0)])
        lengths = np.bincount(row, minlength=len(relations))
        return padded(objects.astype(np.int32), lengths), padded(1 / b[part], lengths)


class SubjectSampler:
    """Draws mu subjects of a relation uniformly without repetition, from the heads of the relation in train
    (pool="relation") or from all entities ("entities")."""

    def __init__(self, pool, triples, n_entities, n_relations, subjects=10):
        if pool not in ("relation", "entities"):
            raise CardkgeError(f"subject pool must be relation or entities, found {pool}")
        if subjects < 1:
            raise CardkgeError(f"subjects must be at least 1, found {subjects}")
        self.mu = subjects
        if pool == "relation":
            pairs = sorted_distinct(triples[:, 1].astype(np.int64) * n_entities + triples[:, 0])
            self.heads = pairs % n_entities
            self.starts = np.searchsorted(pairs, np.arange(n_relations + 1) * n_entities)
            self.sizes = np.diff(self.starts)
        else:
            self.heads = np.arange(n_entities)
            self.starts = np.zeros(n_relations, int)
            self.sizes = np.full(n_relations, n_entities)
        self.marks = np.zeros(n_entities, np.uint8)

    def draw(self, rng, relations):
        """(subjects (B, width) int32, how many of them count (B,)). A smaller pool is drawn whole, and its row
        filled up with repetitions of its first subject."""
        takes = np.minimum(self.sizes[relations], self.mu)
        draws = distinct(rng, self.sizes[relations], takes, self.marks)
        subjects = self.heads[np.repeat(self.starts[relations], takes) + draws]
        subjects = padded(subjects.astype(np.int32), takes)
        counted = np.arange(subjects.shape[1]) < takes[:, None]
        return np.where(counted, subjects, subjects[:, :1]), takes


def sorted_distinct(keys):
    """The distinct integers of a flat array, sorted (np.unique, without counts, is many times slower on int64 keys)."""
    keys = np.sort(keys)
    return keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys


def last_at_most(table, limits, parts, keys):
    """For each key the last place of table[limits[part] : limits[part + 1]], which is sorted, that holds no more than
    the key; limits[part] - 1 if there is none. Ids of parts and keys of one shape, which is the result's too."""
    places = np.empty(keys.shape, np.int64)
    kernels.last_at_most(table, limits, parts.ravel(), keys.ravel(), places.reshape(-1))
    return places


def distinct(rng, sizes, takes, marks):
    """For each b takes[b] distinct integers below sizes[b], every subset as likely: flat int32, one b after the
    other."""
    draws = np.empty(takes.sum(), np.int32)
    kernels.distinct_draws(rng.random(len(draws)), sizes, takes, marks, draws)
    return draws


def padded(flat, lengths):
    """Rows of the given lengths, one after the other in `flat`, as a matrix filled up with zeros (at least 1 wide)."""
    matrix = np.zeros((len(lengths), max(lengths.max(initial=0), 1)), flat.dtype)
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = flat
    return matrix


# ------------------------------------------------------------------------------------------------------------------
# 6. Objective and optimisers (paper, Eq. 6 and Algorithm 1): the definitions
# ------------------------------------------------------------------------------------------------------------------


def objective(model, heads, relations, tails, settings, bounds=None, samples=()):
    """Eq. 6, L^C = L + lambda sum G_hr, of one step, with all its gradients: the definition of what `Trainer.step`
    does.

    heads, relations, tails: (n, 1 + m) ids; column 0 is the positive triple, the others its corruptions. samples: a
    (relation, subjects, objects, weights) each, as `cardinality_penalty` takes them, with bounds (R, 2).
    The L2 penalty is settings.l2 / 2 ||row||^2 for the head's, relation's and tail's row of every example.

    Returns ({"objective", "loss", "l2", "penalty"}, gradients): objective = loss + l2 + lambda * penalty, all sums.
    """
    ids = [np.asarray(part) for part in (heads, relations, tails)]
    flat = [part.ravel() for part in ids]
    scores = model.score(*flat).reshape(ids[0].shape)
    if settings.loss == "logistic":
        labels = np.where(np.arange(scores.shape[1]) == 0, 1, -1) * np.ones(scores.shape, int)
        loss, upstream = logistic_loss(scores, labels)
    else:
        loss, d_positive, d_negative = hinge_loss(scores[:, 0], scores[:, 1:], settings.margin)
        upstream = np.concatenate((d_positive[:, None], d_negative), 1)
    gradients = model.gradients(*flat, upstream.ravel())

    l2 = 0.0
    for name, part in zip(("entity", "relation", "entity"), flat):
        rows = model.params[name][part]
        l2 += settings.l2 / 2 * float((rows.astype(np.float64) ** 2).sum())
        np.add.at(gradients[name], part, model.dtype.type(settings.l2) * rows)

    penalty = 0.0
    for sample in samples:
        g, d_g, _ = cardinality_penalty(model, bounds, *sample)
        penalty += g
        for name in gradients:
            gradients[name] += model.dtype.type(settings.penalty_weight) * d_g[name]
    total = loss + l2 + settings.penalty_weight * penalty
    return {"objective": total, "loss": loss, "l2": l2, "penalty": penalty}, gradients


def sgd_step(param, gradient, learning_rate):
    """param -= learning_rate * gradient, in place."""
    param -= param.dtype.type(learning_rate) * gradient


def adagrad_step(param, accumulator, gradient, learning_rate):
    """accumulator += gradient^2, then param -= learning_rate * gradient / sqrt(accumulator), in place (Duchi et al.
    2011, diagonal). No eps: where accumulator and gradient are 0, nothing changes."""
    accumulator += gradient * gradient
    moved = accumulator != 0
    root = np.sqrt(accumulator, where=moved, out=np.ones_like(accumulator))
    param -= np.where(moved, param.dtype.type(learning_rate) * gradient / root, 0)


def project_rows(array, rows=None):
    """Each row (or the distinct rows given) to L2 norm 1, in place; a row of zeros stays one."""
    rows = slice(None) if rows is None else rows
    norms = np.sqrt((array[rows] ** 2).sum(-1, keepdims=True))
    array[rows] /= np.where(norms > 0, norms, 1)


# ------------------------------------------------------------------------------------------------------------------
# 7. Training (paper, Algorithm 1)
# ------------------------------------------------------------------------------------------------------------------

DIMS = {"distmult": 200, "complex": 150, "ermlp": 100}  # where no dim is given: sizes that reach the paper's figures


@dataclass
class Settings:
    """Everything that determines the bits of a run; the names are those of the command line, where they are
    explained. Defaults are the paper's recipe, or, where it is silent, what was measured (docs/RESULTS.md)."""

    model: str = "distmult"
    data: str = "families"
    columns: str = "hrt"
    dim: int | None = None  # None: DIMS[model]
    hidden: int = 100
    epochs: int = 200
    batches: int = 10
    batch_size: int | None = None  # instead of `batches`
    negatives: int = 2
    filter_negatives: bool = False
    loss: str = "logistic"
    margin: float = 0.5
    optimizer: str = "adagrad"
    learning_rate: float = 0.1
    decay: float = 0.0
    accumulator: float = 0.1  # where AdaGrad's accumulators start, as in TensorFlow, which the paper used
    l2: float = 0.0
    project: str = "unit"
    bounds: str = "none"  # none, mined, or a file
    penalty_weight: float = 0.01  # lambda
    sampling: str = "uniform"
    inclusion: str = "frequency"
    subjects: int = 10  # mu
    objects: int = 100  # omega
    subject_pool: str = "relation"
    seed: int = 0
    dtype: str = "float32"
    validate_every: int = 0
    patience: int = 0

    def check(self):
        """CardkgeError that names the first setting out of its range, what was found and what is allowed."""
        choices = {
            "model": tuple(MODELS),
            "loss": ("logistic", "hinge"),
            "optimizer": ("adagrad", "sgd"),
            "project": ("unit", "none"),
            "sampling": SAMPLINGS,
            "inclusion": ("frequency", "uniform"),
            "subject_pool": ("relation", "entities"),
            "dtype": ("float32", "float64"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise CardkgeError(f"{name} must be one of {', '.join(allowed)}; found {getattr(self, name)}")
        for name, kind in typing.get_type_hints(Settings).items():
            if not _fits(getattr(self, name), kind):
                wanted = getattr(kind, "__name__", kind)
                raise CardkgeError(f"{name} must be {wanted}, found {getattr(self, name)!r}")
        least = dict.fromkeys(("dim", "hidden", "batches", "batch_size", "negatives", "subjects", "objects"), 1)
        least |= dict.fromkeys(("epochs", "margin", "decay", "accumulator", "l2", "penalty_weight"), 0)
        least |= dict.fromkeys(("learning_rate", "seed", "validate_every", "patience"), 0)
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and not low <= value < np.inf:
                raise CardkgeError(f"{name} must be a finite number, at least {low}; found {value}")
        if self.seed >= 2**32:
            raise CardkgeError(f"seed must be below 2^32, found {self.seed}")
        if self.decay and self.optimizer != "sgd":
            raise CardkgeError("decay is for sgd: AdaGrad lowers its steps itself; leave one of them out")
        if self.patience and not self.validate_every:
            raise CardkgeError("patience counts validations: give validate_every too")


class NonFinite(CardkgeError):
    """The objective or a parameter became NaN or infinite."""


@dataclass
class Run:
    """A model in training: what `train` continues and `save_run` saves. An epoch under way is counted in `step`."""

    settings: Settings
    entities: list[str]
    relations: list[str]
    model: Model
    accumulators: dict  # AdaGrad's, by parameter name; empty for SGD
    bounds: np.ndarray  # (R, 2)
    epoch: int = 0  # epochs completed
    step: int = 0  # steps completed of the next one
    partial: dict = field(default_factory=dict)  # sums over those steps
    history: list = field(default_factory=list)  # a dict for each epoch
    best: dict | None = None  # with validation: epoch, mrr, hits@10, params
    metrics: dict | None = None  # on test: {"filtered": metrics_by_side, "raw": metrics_by_side}
    data: dict = field(default_factory=dict)  # `describe_data` of the data it is trained on

    def best_model(self):
        """The model at its best validation, or as it is now where there was none."""
        if self.best is None:
            return self.model
        model = copy.copy(self.model)
        model.params = self.best["params"]
        return model


def new_model(settings, n_entities, n_relations, initialise=True):
    """The model that the settings name, initialised from their seed, or with no parameters yet."""
    options = {"hidden": settings.hidden} if settings.model == "ermlp" else {}
    dim = settings.dim or DIMS[settings.model]
    seed = np.random.default_rng([settings.seed, 0]) if initialise else None
    return MODELS[settings.model](n_entities, n_relations, dim=dim, seed=seed, dtype=settings.dtype, **options)


def find_bounds(bounds, dataset):
    """Bounds (R, 2) as a setting names them: "none", "mined" (from train), or the path of a file."""
    if bounds == "none":
        return np.tile([0.0, np.inf], (dataset.n_relations, 1))
    if bounds == "mined":
        return mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations)
    if not os.path.exists(bounds):
        raise CardkgeError(f"bounds {os.fspath(bounds)!r}: neither mined, nor none, nor a file")
    return read_bounds(bounds, dataset.relations)


def new_run(settings, dataset, bounds=None):
    """A run before its first step: parameters initialised, entity rows projected. bounds (R, 2); None: as the settings
    name them."""
    settings.check()
    model = new_model(settings, dataset.n_entities, dataset.n_relations)
    if settings.project == "unit":
        project_rows(model.params["entity"])
    accumulators = {}
    if settings.optimizer == "adagrad":
        accumulators = {name: np.full_like(array, settings.accumulator) for name, array in model.params.items()}
    if bounds is None:
        bounds = find_bounds(settings.bounds, dataset)
    bounds = np.array(bounds, np.float64)
    if bounds.shape != (dataset.n_relations, 2):
        raise CardkgeError(f"bounds must have shape ({dataset.n_relations}, 2), found {bounds.shape}")
    if not ((bounds[:, 0] >= 0) & (bounds[:, 0] <= bounds[:, 1]) & (bounds[:, 0] < np.inf)).all():
        raise CardkgeError("bounds must be 0 <= lower <= upper, lower finite")
    names = dataset.entities, dataset.relations
    return Run(settings, *names, model, accumulators, bounds, data=describe_data(dataset))


def count_cores():
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Threads:
    """Runs a function over ranges of work on `count` threads (None: as many as this process may use).

    The ranges are the same for any number of threads, and no two of them write the same element. Matrix products go
    to the BLAS library below NumPy, which rounds differently on one thread and on several of its own: for the same bits
    everywhere keep it to one (OPENBLAS_NUM_THREADS=1 before NumPy is imported; cli.py does so).
    """

    def __init__(self, count=None):
        if count is None:
            count = count_cores()
        if count < 1:
            raise CardkgeError(f"threads must be at least 1, found {count}")
        self.count = count
        self.pool = ThreadPoolExecutor(count - 1) if count > 1 else None

    def start(self, function, *arguments):
        """Runs function(*arguments) beside what follows, on another thread if there is one. Returns a function without
        arguments that waits for its result."""
        if self.pool:
            return self.pool.submit(function, *arguments).result
        return lambda: function(*arguments)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.pool:
            self.pool.shutdown()

    def run(self, function, total, *arguments, size, beside=()):
        """function(first, last, *arguments) over ranges of range(total) of `size` each, the last perhaps shorter;
        in their midst the functions without arguments in `beside`, which so neither begin while another thread still
        holds Python's lock for something `start`ed, nor end when there is nothing else left to do."""
        tasks = [functools.partial(function, i, min(i + size, total), *arguments) for i in range(0, total, size)]
        tasks = collections.deque(tasks[: len(tasks) // 2] + list(beside) + tasks[len(tasks) // 2 :])

        def work():
            while True:
                try:
                    task = tasks.popleft()
                except IndexError:
                    return
                try:
                    task()
                except BaseException:  # the others end with the task that they are at
                    tasks.clear()
                    raise

        others = [self.pool.submit(work) for _ in range(min(self.count, len(tasks)) - 1)] if self.pool else []
        try:
            work()
        finally:
            for other in others:
                other.result()


UNIT = 256  # triples of one relation whose relation gradient is summed in one go
GEMM_ROWS = 1024  # rows of a matrix product given to one thread: fixed, so that its bits do not depend on the threads


def relation_units(relations):
    """For sorted relations (n,): where each relation's segment starts, and the limits of its units of UNIT triples."""
    segments = np.flatnonzero(np.diff(relations, prepend=-1))
    place = np.arange(len(relations)) - np.repeat(segments, np.diff(segments, append=len(relations)))
    return segments, np.append(np.flatnonzero(place % UNIT == 0), len(relations))


def matmul_rows(threads, a, b, out):
    """out[...] = a @ b for a (n, k), by ranges of rows."""
    threads.run(lambda i, j: np.matmul(a[i:j], b, out=out[i:j]), len(a), size=GEMM_ROWS)


def matmul_sum(threads, a, b):
    """a.T @ b for a (n, k), b (n, l): partial sums over fixed ranges of rows, added in order."""
    parts = np.zeros((max(-(-len(a) // GEMM_ROWS), 1), a.shape[1], b.shape[1]), a.dtype)
    threads.run(lambda i, j: np.matmul(a[i:j].T, b[i:j], out=parts[i // GEMM_ROWS]), len(a), size=GEMM_ROWS)
    return parts.sum(0)


NO_SAMPLE = np.empty(0, int), *[np.empty((0, 0), np.int32)] * 4  # a `Trainer.draw` of no relation


class Trainer:
    """One training step at a time, as `objective` and the optimisers above define it, fast and on several threads.

    A step has four passes: number the distinct entities of the batch; score, and find the loss and the coefficient
    d loss / d score of every example (`kernels.loss_units`), and the regulariser's gradients; add up the gradient of
    each distinct entity over its occurrences in both (`kernels.entity_gradients`); update each row, once
    (`kernels.update_rows`). All gradients are taken at the parameters before the step.
    """

    def __init__(self, model, accumulators, settings, bounds, triples, threads):
        self.model, self.settings, self.threads, self.accumulators = model, settings, threads, accumulators
        self.bounds = np.asarray(bounds, np.float64)
        self.bounded = np.flatnonzero(is_bounded(self.bounds))
        sizes = model.n_entities, model.n_relations
        self.regularised = len(self.bounded) > 0 and settings.penalty_weight > 0
        if self.regularised:
            self.subjects = SubjectSampler(settings.subject_pool, triples, *sizes, settings.subjects)
            self.objects = ObjectSampler(settings.sampling, triples, *sizes, settings.objects, settings.inclusion)
        self.slot_of = np.full(model.n_entities, -1, np.int32)
        self.buffers = {}

    def buffer(self, name, *shape, dtype=None):
        """An array of this shape, uninitialised, in memory that is kept from step to step."""
        dtype = dtype or self.model.dtype
        size = math.prod(shape)
        if name not in self.buffers or self.buffers[name].size < size:
            self.buffers[name] = np.empty(size + size // 64, dtype)
        return self.buffers[name][:size].reshape(shape)

    def draw(self, rng):
        """The regulariser's sample for one step: relations (B,), subjects (B, mu), counts (B,), objects, weights (B,
        w)."""
        return self.bounded, *self.subjects.draw(rng, self.bounded), *self.objects.draw(rng, self.bounded)

    @np.errstate(over="ignore", invalid="ignore")  # what is not finite is found, and raised as NonFinite
    def step(self, ends, relations, sample=None, learning_rate=None):
        """One update of the parameters, in place.

        ends (n, 1 + m, 2) int32: head and tail of each positive triple (column 0) and its corruptions; relations (n,)
        int32, sorted; sample as `draw` returns it, or None. Returns {"objective", "loss", "l2", "penalty"} as
        `objective` does. Raises NonFinite, before any parameter is changed, if one of these, or a parameter after the
        step, is not finite.
        """
        model, settings, threads, params = self.model, self.settings, self.threads, self.model.params
        mlp = model.kind == kernels.ERMLP

        # 1. the distinct entities, and the rows to score
        bounded, subjects, _, objects, _ = sample = sample or NO_SAMPLE
        ids = np.concatenate((ends.ravel(), subjects.ravel(), objects.ravel()))
        slots = self.buffer("slots", len(ids), dtype=np.int32)
        entities = self.buffer("entities", min(len(ids), model.n_entities), dtype=np.int32)
        uses = self.buffer("uses", len(entities), dtype=np.int32)
        count, a, b = kernels.number_entities(ids, ends.size, subjects.size, mlp, self.slot_of, entities, uses, slots)
        entities, uses, n_rows = entities[:count], uses[:count], count
        tables = params["entity"], params["relation"], model.output
        if mlp:  # hidden rows: those of heads, of slots [0, b), then those of tails, of slots [a, count)
            embeddings = np.take(params["entity"], entities, 0, self.buffer("embeddings", count, model.dim), "clip")
            tables, n_rows = self.hidden_tables(embeddings[:b], embeddings[a:]), b + count - a
            slots[1 : ends.size : 2] += b - a
            slots[ends.size + subjects.size :] += b - a
            ids = slots
        batch, subjects, objects = np.split(ids, [ends.size, ends.size + subjects.size])
        ends, width = batch.reshape(ends.shape), tables[0].shape[1]

        # 2. scores, losses, coefficients, relation gradients; beside them the penalty and its gradients
        segments, units = relation_units(relations)
        tasks, penalties, values, d_r, d_w = self.penalty_parts(sample, tables, subjects, objects)
        coefficients = self.buffer("coefficients", *ends.shape[:2])
        losses = np.empty(len(units) - 1)
        of_units = self.buffer("of_units", len(losses), width)
        d_outputs = np.empty((len(losses), len(tables[2])), model.dtype)
        loss = kernels.LOGISTIC if settings.loss == "logistic" else kernels.HINGE
        threads.run(
            kernels.loss_units, len(losses), model.kind, loss, settings.margin, ends, relations, units, tables,
            coefficients, losses, of_units, d_outputs, size=-(-len(losses) // min(16, 1 + len(relations) // UNIT)),
            beside=tasks,
        )  # fmt: skip
        d_relation, d_output = np.zeros((model.n_relations, width), model.dtype), d_outputs.sum(0)
        d_relation[relations[segments]] = np.add.reduceat(of_units, np.searchsorted(units, segments))
        d_relation[bounded] += d_r
        d_output += d_w.sum(0)
        penalty = math.fsum(penalties) if np.isfinite(penalties).all() else math.nan
        sums = {"loss": float(losses.sum()), "l2": 0.0, "penalty": penalty}

        # 3. entity gradients
        starts = self.buffer("starts", n_rows + 1, dtype=np.int32)
        occurrences = self.buffer("occurrences", len(slots), dtype=np.int32)
        kernels.list_occurrences(slots, n_rows, starts, occurrences)
        d_rows = self.buffer("d_rows", n_rows, width)
        threads.run(
            kernels.entity_gradients, n_rows, model.kind, ends, relations, starts, occurrences, tables,
            coefficients, values, d_rows, size=max(256, -(-n_rows // 32)),
        )  # fmt: skip

        # 4. L2, and the update
        uses_of_relations = ends.shape[1] * np.bincount(relations, minlength=model.n_relations)
        l2 = {"entity": settings.l2 * uses, "relation": settings.l2 * uses_of_relations}
        if settings.l2:
            for name, rows in (("entity", params["entity"][entities]), ("relation", params["relation"])):
                sums["l2"] += float(l2[name] @ np.einsum("ij,ij->i", rows, rows, dtype=np.float64)) / 2
        sums["objective"] = sums["loss"] + sums["l2"] + settings.penalty_weight * sums["penalty"]
        if not math.isfinite(sums["objective"]):
            raise NonFinite(f"the objective is {sums['objective']}")
        gradients = {"entity": d_rows, "relation": d_relation}
        if mlp:
            gradients = self.d_hidden_tables(embeddings, a, b, d_rows, d_relation, d_output)
        self.update(gradients, entities, l2, settings.learning_rate if learning_rate is None else learning_rate)
        return sums

    def hidden_tables(self, heads, tails):
        """ER-MLP's `encode`: hidden rows of heads and tails, one table, hidden rows of all relations, and w. All have
        columns of zeros up to a multiple of 16: they change no score (w is 0 there), and the innermost loops then have
        no remainder."""
        model = self.model
        width = -(-model.hidden // 16) * 16
        layers = np.zeros((3 * model.dim, width), model.dtype)
        layers[:, : model.hidden] = model.params["hidden"]
        output = np.zeros(width, model.dtype)
        output[: model.hidden] = model.params["output"]
        self.layers = w_h, w_t, w_r = np.split(layers, 3)
        rows = self.buffer("rows", len(heads) + len(tails), width)
        matmul_rows(self.threads, heads, w_h, rows[: len(heads)])
        matmul_rows(self.threads, tails, w_t, rows[len(heads) :])
        return rows, model.params["relation"] @ w_r, output

    def d_hidden_tables(self, embeddings, a, b, d_rows, d_relation, d_output):
        """ER-MLP's `d_encode`: all gradients, from those of the tables; heads are slots [0, b), tails slots [a,
        ...)."""
        model, (w_h, w_t, w_r) = self.model, self.layers
        d_heads, d_tails = d_rows[:b], d_rows[b:]
        d_entity = self.buffer("d_entity", len(embeddings), model.dim)
        from_tails = self.buffer("from_tails", len(d_tails), model.dim)
        matmul_rows(self.threads, d_heads, w_h.T, d_entity[:b])
        matmul_rows(self.threads, d_tails, w_t.T, from_tails)
        d_entity[b:] = 0
        d_entity[a:] += from_tails
        d_hidden = (
            matmul_sum(self.threads, embeddings[:b], d_heads),
            matmul_sum(self.threads, embeddings[a:], d_tails),
            model.params["relation"].T @ d_relation,
        )
        return {
            "entity": d_entity,
            "relation": d_relation @ w_r.T,
            "hidden": np.concatenate(d_hidden)[:, : model.hidden],
            "output": d_output[: model.hidden],
        }

    def update(self, gradients, entities, l2, rate):
        """One step of the optimiser, and the projection, on the rows that have a gradient; NonFinite, with nothing
        changed, if a parameter would no longer be finite."""
        settings, dtype = self.settings, self.model.dtype
        adagrad = settings.optimizer == "adagrad"
        # AdaGrad moves a number by at most the rate, if the gradient is finite. Other steps are tried on copies first.
        largest = max(rate, settings.l2, settings.penalty_weight)
        trial = not adagrad or largest > np.finfo(dtype).max ** 0.25
        faults, tried = np.zeros(1, np.uint8), []
        for name, gradient in gradients.items():
            table = np.atleast_2d(self.model.params[name])  # `output` is one row
            accumulator = np.atleast_2d(self.accumulators[name]) if adagrad else table  # SGD's kernel leaves it alone
            ids = entities if name == "entity" else np.arange(len(table), dtype=np.int32)
            if trial:
                tried.append((table, accumulator, ids, table[ids], accumulator[ids]))
                table, accumulator, ids = *tried[-1][3:], np.arange(len(ids), dtype=np.int32)
            weights = np.asarray(l2.get(name, np.zeros(len(ids))), dtype)
            project = name == "entity" and settings.project == "unit"
            self.threads.run(
                kernels.update_rows, len(ids), table, accumulator, ids, np.atleast_2d(gradient), weights,
                dtype.type(rate), adagrad, project, faults, size=max(512, -(-len(ids) // 32)),
            )  # fmt: skip
        if faults[0]:
            raise NonFinite("a parameter is no longer finite")
        for table, accumulator, ids, rows, squares in tried:
            if adagrad:
                accumulator[ids] = squares
            table[ids] = rows

    def penalty_parts(self, sample, tables, subjects, objects):
        """The regulariser's part of a step; subjects and objects of the sample as rows of `tables` (flat). The weights
        that are not 0 stand first in each row of the sample's weights.

        Returns (tasks, sum of G_hr for each relation (B,), and lambda times its gradients: of the subjects' and then
        the objects' rows, of the relations' rows (B, w), of w (B, k')); the arrays are filled by the tasks.
        """
        relations, shape, counts, _, weights = sample[0], sample[1].shape, *sample[2:]
        subjects, objects = subjects.reshape(shape), objects.reshape(weights.shape)
        width, dtype, size = tables[0].shape[1], self.model.dtype, len(relations)
        values = self.buffer("values", subjects.size + objects.size, width)
        d_h = values[: subjects.size].reshape(*subjects.shape, width)
        d_t = values[subjects.size :].reshape(*objects.shape, width)
        penalties, d_r, d_w = np.zeros(size), np.zeros((size, 1, width), dtype), np.zeros((size, len(tables[2])), dtype)
        some = max(1, 2**14 // max(1, shape[1] * weights.shape[1]))  # of small blocks several relations at once
        tasks = [
            functools.partial(
                self.penalty_of_relations, slice(i, i + some), relations, subjects, counts, objects, weights, tables,
                penalties, d_h, d_r, d_t, d_w,
            )
            for i in range(0, size, some)
        ]  # fmt: skip
        return tasks, penalties, values, d_r[:, 0], d_w

    @np.errstate(over="ignore", invalid="ignore")
    def penalty_of_relations(
        self, part, relations, subjects, counts, objects, weights, tables, penalties, d_h, d_r, d_t, d_w
    ):
        """sum of G_hr, and lambda times its gradients, of a part of the relations: `cardinality_penalty` on rows.

        In each row of `weights` those that are not 0 stand first, so that the columns after the last of them are left
        out for all of the part."""
        rows, relation_rows, output = tables
        model, mlp = self.model, self.model.kind == kernels.ERMLP
        m = max(1, np.count_nonzero(weights[part].any(0)))  # a smaller sample is filled up with weights of 0
        d_t[part, m:] = 0
        d_t = d_t[part, :m]
        h, r, t = take(rows, subjects[part]), relation_rows[relations[part], None], take(rows, objects[part, :m])
        # of objects by subjects: BLAS finds this product faster than its transpose
        if mlp:
            scores = np.empty((len(h), m, h.shape[1]), rows.dtype)
            for i in range(len(h)):
                kernels.hidden_scores(h[i] + r[i], np.ascontiguousarray(t[i].T), output, scores[i].T)
        else:
            scores = model.match(t, model.query_tails(h, r))
        sums, scale = np.empty(h.shape[1]), model.dtype.type(self.settings.penalty_weight)
        for i, (x, w, n, relation) in enumerate(zip(scores, weights[part, :m], counts[part], relations[part])):
            penalties[part.start + i] = kernels.bounded_sums(x, w, n, *self.bounds[relation], scale, sums)
        upstream = np.swapaxes(scores, 1, 2)
        if mlp or not penalties[part].any():
            d_h[part] = d_t[:] = 0
        if not penalties[part].any():
            return
        if mlp:
            for u, one_h, one_r, one_t, *out in zip(upstream, h, r, t, d_h[part], d_t, d_w[part]):
                kernels.hidden_gradients(u, one_h + one_r, one_t, output, *out)
            d_r[part] = d_h[part].sum(1, keepdims=True)
        else:
            d_h[part], d_r[part], _ = model.d_pairs(h, r, t, upstream, None, d_t)


def take(table, ids):
    """table[ids], for ids of any shape."""
    out = np.empty((*ids.shape, table.shape[1]), table.dtype)
    kernels.take_rows(table, ids.ravel(), out.reshape(-1, table.shape[1]))
    return out


def corruptions(rng, triples, negatives, n_entities, known=None, n_relations=None):
    """C(h, r, t) (paper, Background): heads and tails of each positive triple and its corruptions, (n, 1 + m, 2) int32.

    triples (n, 3). The odd columns replace the tail, the even ones (from 2) the head, by an entity drawn uniformly. A
    corruption may be a true triple (LCWA), unless `known` (sorted `triple_keys`) is given: then one that is known is
    drawn again, and stays known only where every entity in its place gives a known triple.
    """
    ends = np.repeat(triples[:, None, ::2], 1 + negatives, axis=1)
    sides = 1 - np.arange(negatives) % 2  # 1: the tail, as in ends
    for side in range(2):
        shape = len(triples), int((sides == side).sum())
        ends[:, 1:][:, sides == side, side] = rng.integers(0, n_entities, shape, np.int32)
    if known is None or len(known) == 0:
        return ends

    def is_known(where, heads, tails):
        keys = triple_keys(heads, triples[where, 1], tails, n_entities, n_relations)
        return known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] == keys

    where, column = np.divmod(np.arange(len(triples) * negatives), negatives)
    for _ in range(20):
        again = is_known(where, *ends[where, 1 + column].T)
        where, column = where[again], column[again]
        ends[where, 1 + column, sides[column]] = rng.integers(0, n_entities, len(where), np.int32)
    everyone = np.arange(n_entities)
    for i, j in zip(where, column):  # hardly any entity is free: draw among those that are
        pair = [ends[i, 1 + j, 0], ends[i, 1 + j, 1]]
        pair[sides[j]] = everyone
        free = everyone[~is_known(i, *pair)]
        if len(free):
            ends[i, 1 + j, sides[j]] = rng.choice(free)
    return ends


def train(run, dataset, threads=None, on_epoch=None, on_step=None, stop=None):
    """Continues a run up to run.settings.epochs (paper, Algorithm 1). Returns "finished", "patience" or "stopped".

    on_epoch(run, record) is called after each epoch, on_step(run, step, steps) after each step; stop() is asked after
    each step, and true ends the call with "stopped": the run then holds what an uninterrupted one would have held
    there. All random numbers are drawn from generators seeded by (seed, epoch, step), so the same settings give the
    same bits, stopped or not, on any number of threads. A record, kept in run.history too, has the epoch, the means
    over its steps of objective, loss, l2 and penalty (each a sum over the step's examples or pairs), and the seconds.
    With settings.validate_every the filtered metrics on valid are taken every so many epochs and the parameters with
    the best hits@10 (then MRR) are kept; `patience` validations without a better one end the training. Raises
    NonFinite, which names epoch and step; run then counts the steps before that one.
    """
    settings, triples = run.settings, dataset.train
    settings.check()
    sizes = dataset.n_entities, dataset.n_relations
    if sizes != (run.model.n_entities, run.model.n_relations):
        raise CardkgeError(
            f"the data has {sizes[0]} entities and {sizes[1]} relations, the run {run.model.n_entities} and"
            f" {run.model.n_relations}: train on the data that the run was made for"
        )
    checked_triples(triples, *sizes)
    n = len(triples)
    steps = -(-n // settings.batch_size) if settings.batch_size else min(settings.batches, n)
    cuts = [n * i // steps for i in range(steps + 1)]
    if settings.batch_size:
        cuts = [min(settings.batch_size * i, n) for i in range(steps + 1)]
    known = np.sort(triple_keys(*triples.T, *sizes)) if settings.filter_negatives else None
    with Threads(threads) as threads:
        trainer = Trainer(run.model, run.accumulators, settings, run.bounds, triples, threads)
        orders, drawn = {}, None

        def draw(epoch, step):
            """A step's ends and relations, sorted by relation, and the regulariser's sample."""
            if epoch not in orders:
                orders.clear()
                orders[epoch] = np.arange(n, dtype=np.int32)
                np.random.default_rng([settings.seed, 1, epoch]).shuffle(orders[epoch])
            rng = np.random.default_rng([settings.seed, 2, epoch, step])
            batch = triples[orders[epoch][cuts[step] : cuts[step + 1]]]
            relations = batch[:, 1].astype(np.uint16) if sizes[1] < 2**16 else batch[:, 1]  # a radix sort
            batch = batch[np.argsort(relations, kind="stable")]
            ends = corruptions(rng, batch, settings.negatives, sizes[0], known, sizes[1])
            return ends, np.ascontiguousarray(batch[:, 1]), trainer.draw(rng) if trainer.regularised else None

        while run.epoch < settings.epochs:
            if out_of_patience(run):
                return "patience"
            epoch, began = run.epoch, time.perf_counter()
            rate = settings.learning_rate / (1 + settings.decay * epoch)  # decay is 0 for AdaGrad
            while run.step < steps:
                batch = (drawn or threads.start(draw, epoch, run.step))()
                after = (epoch, run.step + 1) if run.step + 1 < steps else (epoch + 1, 0)
                drawn = threads.start(draw, *after) if after[0] < settings.epochs else None  # beside this step
                try:
                    sums = trainer.step(*batch, rate)
                except NonFinite as error:
                    hint = " or --project unit" if settings.project == "none" else ""
                    raise NonFinite(
                        f"{error} at epoch {epoch + 1}, step {run.step + 1}; use a smaller learning rate (it is"
                        f" {settings.learning_rate:g}), l2 or lambda{hint}"
                    ) from None
                for name, value in sums.items():
                    run.partial[name] = run.partial.get(name, 0.0) + value
                run.step += 1
                if on_step:
                    on_step(run, run.step, steps)
                if run.step < steps and stop and stop():
                    run.partial["seconds"] = run.partial.get("seconds", 0.0) + time.perf_counter() - began
                    return "stopped"
            seconds = run.partial.get("seconds", 0.0) + time.perf_counter() - began
            sums = {name: value / steps for name, value in run.partial.items() if name != "seconds"}
            record, best = {"epoch": epoch + 1} | sums | {"seconds": seconds}, run.best
            if settings.validate_every and (epoch + 1) % settings.validate_every == 0:
                found = metrics(rank_triples(run.model, dataset.valid, dataset.known, threads=threads)["filtered"])
                record |= {"valid_mrr": found["mrr"], "valid_hits@10": found["hits@10"]}
                if best is None or (found["hits@10"], found["mrr"]) > (best["hits@10"], best["mrr"]):
                    params = {name: array.copy() for name, array in run.model.params.items()}
                    best = {"epoch": epoch + 1, "mrr": found["mrr"], "hits@10": found["hits@10"], "params": params}
            run.epoch, run.step, run.partial, run.best = epoch + 1, 0, {}, best
            run.history.append(record)
            if on_epoch:
                on_epoch(run, record)
            if run.epoch < settings.epochs and stop and stop():
                return "stopped"
    return "patience" if out_of_patience(run) and run.epoch < settings.epochs else "finished"


def out_of_patience(run):
    """Whether the last `patience` validations all failed to improve on the best one."""
    settings = run.settings
    if not (settings.patience and settings.validate_every and run.best):
        return False
    return run.epoch - run.best["epoch"] >= settings.patience * settings.validate_every


# ------------------------------------------------------------------------------------------------------------------
# 8. Evaluation (paper, Evaluation Protocol)
# ------------------------------------------------------------------------------------------------------------------

TIES = ("realistic", "optimistic", "pessimistic")
HITS = (1, 3, 5, 10)


def check_finite(arrays, where="the model"):
    """CardkgeError that names the first of the arrays (a dict) with a NaN or an infinity, and how many there are."""
    for name, array in arrays.items():
        parts = np.array_split(array.ravel(), array.size // 2**20 + 1)  # a mask of all would be as large as a table
        bad = array.size - sum(np.count_nonzero(np.isfinite(part)) for part in parts)
        if bad:
            raise CardkgeError(
                f"{where}: {bad} of the {array.size} values of {name} are NaN or infinite; "
                "train again, for instance with a smaller learning rate"
            )


def scored_blocks(model, open_side, ids, relations, threads, consume, batch_size=None, progress=None):
    """Scores of every entity in the open place, block by block: consume(first, last, scores (last - first, N)).

    open_side 1: ids (n,) are heads and tails are open; 0: the other way round. relations (n,). Memory is bounded by one
    block for each thread: `batch_size` queries, by default 64, or fewer where N is large.
    """
    n, entity, relation = model.n_entities, model.params["entity"], model.params["relation"]
    block = batch_size or max(1, min(64, 2**24 // n))
    mlp = model.kind == kernels.ERMLP
    candidates = entity
    if mlp:
        h, _, t = model.encode(entity, relation[:1], entity)
        candidates = (h, t)[open_side]
    candidates = np.ascontiguousarray(candidates.T) if mlp else candidates.T
    local, done = threading.local(), []

    def score(first, last):
        if not hasattr(local, "scores"):
            local.scores = np.empty((block, n), model.dtype)
        scores = local.scores[: last - first]
        given = entity[ids[first:last]]
        h, r, t = model.encode(given, relation[relations[first:last]], given)
        queries = model.query_tails(h, r) if open_side else model.query_heads(r, t)
        if mlp:
            kernels.hidden_scores(queries, candidates, model.output, scores)
        else:
            np.matmul(queries, candidates, out=scores)
        consume(first, last, scores)
        if progress:
            done.append(last - first)
            progress(sum(done), len(ids))

    threads.run(score, len(ids), size=block)


def rounding_bounds(model, tables, triples, side):
    """For each triple with its head (side 0) or tail (1) open, how far two computations of one score may be apart: each
    is within (w + 4) u sum |terms| of the true sum, in any order of summation (Higham 2002, Section 3.1; u = eps / 2),
    and sum |terms| <= || |given row| |r| || times the longest row."""
    rows, relation_rows, output = tables
    eps = float(np.finfo(model.dtype).eps)
    if model.kind == kernels.ERMLP:  # terms below |w_i|, of a tanh within 4e-7 (float32) whose argument is rounded too
        argument = 2 * float(np.abs(rows).max(initial=0)) + float(np.abs(relation_rows).max())
        error = (len(output) + 8) * max(eps, 4e-7 if model.dtype == np.float32 else 0) + 4 * eps * argument
        return np.full(len(triples), 2 * error * np.abs(output).sum(dtype=np.float64))
    longest = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64).max(initial=0.0))
    norms = np.empty(len(triples))
    for i in range(0, len(triples), 1024):
        given, r = rows[triples[i : i + 1024, 2 - 2 * side]], relation_rows[triples[i : i + 1024, 1]]
        if model.kind == kernels.COMPLEX:  # of moduli; the four terms of x y times the two of z: <= sqrt(2) |x| |y| |z|
            given, r = (2**0.25 * np.hypot(*np.split(x, 2, -1)) for x in (given, r))
        norms[i : i + 1024] = np.linalg.norm(given.astype(np.float64) * r, axis=1)
    return (rows.shape[1] + 8) * eps * longest * norms


def rank_triples(model, triples, known=None, ties="realistic", batch_size=None, threads=None, progress=None):
    """The rank of the right head among all entities for (?, r, t), and of the right tail for (h, r, ?).

    triples (n, 3) ids; known (m, 3): all true triples, of train, valid and test. Returns {"raw": ranks} and, with
    known, {"filtered": ranks}, (n, 2) float64 each, column 0 the head's rank, column 1 the tail's. Filtered: other true
    answers do not count. Ties: "optimistic" the best rank among equal scores, "pessimistic" the worst, "realistic"
    their mean. threads: a number, None for all, or a `Threads`. progress(done, total) is called, from any thread, as
    ranks are found. CardkgeError for ids out of range, or a score that is NaN.

    Scores come from a matrix product, whose rounding depends on the place of an element. Where one is so near to the
    right answer's that this could matter, both are computed again by `kernels.triple_score`: so equal rows tie, and no
    rank depends on the batch size, the threads or the BLAS library.
    """
    if ties not in TIES:
        raise CardkgeError(f"ties must be one of {', '.join(TIES)}; found {ties}")
    if batch_size is not None and batch_size < 1:
        raise CardkgeError(f"batch size must be at least 1, found {batch_size}")
    check_finite(model.params)
    sizes = model.n_entities, model.n_relations
    triples = checked_triples(triples, *sizes)
    known_triples = triples[:0] if known is None else checked_triples(known, *sizes)
    tables, tail_offset = (model.params["entity"], model.params["relation"], model.output), 0
    if model.kind == kernels.ERMLP:
        tail_offset = model.n_entities  # hidden rows of heads, then those of tails, each of equal rows with equal bits
        w_h, w_t, w_r = np.split(model.params["hidden"], 3)
        rows = np.empty((2 * model.n_entities, model.hidden), model.dtype)
        kernels.product_of_rows(tables[0], w_h, rows[:tail_offset])
        kernels.product_of_rows(tables[0], w_t, rows[tail_offset:])
        tables = rows, tables[1] @ w_r, model.output
    counts = np.empty((2, len(triples), 4), np.int64)
    with contextlib.nullcontext(threads) if isinstance(threads, Threads) else Threads(threads) as threads:
        for side in range(2):  # 0: the head is open
            answers = true_answers(triples, known_triples, side, model)
            tolerances = rounding_bounds(model, tables, triples, side)

            def report(done, n):
                progress(side * n + done, 2 * n)

            def count(first, last, scores):
                part = slice(first, last)
                kernels.count_better(
                    scores, tolerances[part], side, triples[part], model.kind, tables, tail_offset,
                    answers[0][part], answers[1][part], answers[2], counts[side, part],
                )  # fmt: skip

            # BLAS packs the table for each block; two of them for each thread, for these are not equally fast
            block = batch_size or min(max(16, -(-len(triples) // (2 * threads.count))), 256, max(1, 2**24 // sizes[0]))
            scored_blocks(
                model, side, triples[:, 2 - 2 * side], triples[:, 1], threads, count, block, progress and report
            )
    if (counts[:, :, 1] < 0).any():
        raise CardkgeError("a score is NaN: the parameters are too large for their dtype; no rank can be taken")
    share = {"optimistic": 0.0, "realistic": 0.5, "pessimistic": 1.0}[ties]
    ranks = {"raw": (1 + counts[:, :, 0] + share * counts[:, :, 1]).T}
    if known is not None:
        ranks["filtered"] = (1 + counts[:, :, 2] + share * counts[:, :, 3]).T
    return ranks


def true_answers(triples, known, side, model):
    """The filter: the known answers to the question that each triple asks with its head (side 0) or tail (1) open.

    Returns (starts, stops, ids): those of triple i, each once, its own answer among them, are ids[starts[i] :
    stops[i]].
    """
    n = model.n_entities

    def questions(of):
        return of[:, 2 - 2 * side].astype(np.int64) * model.n_relations + of[:, 1]

    asked, which = np.unique(questions(triples), return_inverse=True)
    pairs = []
    for start in range(0, len(known), 2**20):  # `known` may be much larger than `triples`
        part = known[start : start + 2**20]
        keys = questions(part)
        place = np.searchsorted(asked, keys)
        relevant = np.append(asked, -1)[place] == keys
        pairs.append(place[relevant] * n + part[relevant, 2 * side])
    pairs = sorted_distinct(np.concatenate([np.zeros(0, np.int64), *pairs]))
    limits = np.searchsorted(pairs, np.arange(len(asked) + 1) * n)
    return limits[which], limits[which + 1], (pairs % n).astype(np.int32)


def metrics(ranks):
    """MRR, hits@1, 3, 5, 10 (fractions) and mean rank of ranks of any shape, at least one of them."""
    ranks = np.asarray(ranks, np.float64).ravel()
    if len(ranks) == 0:
        raise CardkgeError("no triples to take metrics of")
    found = {"mrr": float((1 / ranks).mean())}
    found |= {f"hits@{n}": float((ranks <= n).mean()) for n in HITS}
    return found | {"mean_rank": float(ranks.mean())}


def metrics_by_side(ranks):
    """`metrics` of ranks (n, 2) over both sides, of the heads and of the tails."""
    return {"both": metrics(ranks), "head": metrics(ranks[:, 0]), "tail": metrics(ranks[:, 1])}


def metrics_by_relation(ranks, triples):
    """relation id -> `metrics` of the ranks (n, 2) of its triples, for each relation of triples (n, 3)."""
    relations = np.asarray(triples)[:, 1]
    return {int(relation): metrics(ranks[relations == relation]) for relation in np.unique(relations)}


def evaluate(model, triples, known=None, ties="realistic", batch_size=None, threads=None, progress=None):
    """{"filtered": metrics_by_side, "raw": metrics_by_side} of `rank_triples`; without known only "raw"."""
    ranks = rank_triples(model, triples, known, ties, batch_size, threads, progress)
    return {setting: metrics_by_side(ranks[setting]) for setting in sorted(ranks)}


def completions(model, relation, head=None, tail=None):
    """All entities as the tail of (head, relation, ?), or as the head of (?, relation, tail), likeliest first, equals
    by id: (ids, probabilities, scores), a list of N each. Raises CardkgeError for ids out of range, or unless there is
    either a head or a tail."""
    if (head is None) == (tail is None):
        raise CardkgeError("a completion needs a head or a tail, and not both")
    scores = (model.score_tails([head], [relation]) if tail is None else model.score_heads([relation], [tail]))[0]
    order = np.argsort(-scores, kind="stable")
    return order.tolist(), probability(scores[order]).tolist(), scores[order].tolist()


def estimate(values, minus=None, relative=False):
    """Mean of values (n,), one for each seed, and the half width of its 95 % confidence interval, by Student's t with
    n - 1 degrees of freedom: {"mean", "interval"}. The interval of one value is None, for it is unknown.

    With `minus` (n,), of the paired differences values - minus; relative: as shares of minus, not finite where minus
    is 0. Raises CardkgeError for no values, or for pairs that lack one.
    """
    values = np.asarray(values, np.float64)
    if minus is not None:
        minus = np.asarray(minus, np.float64)
        if len(minus) != len(values):
            raise CardkgeError(f"pairs need as many values on both sides, found {len(values)} and {len(minus)}")
        with np.errstate(divide="ignore", invalid="ignore"):
            values = (values - minus) / (minus if relative else 1)
    n = len(values)
    if n == 0:
        raise CardkgeError("an estimate needs a value, found none")
    with np.errstate(invalid="ignore"):
        interval = float(t_quantile(n - 1) * values.std(ddof=1) / math.sqrt(n)) if n > 1 else None
    return {"mean": float(values.mean()), "interval": interval}


def t_quantile(freedom, confidence=0.95):
    """t such that |T| <= t with that probability, T of Student's distribution with a whole number of degrees of freedom
    (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4).

    Raises CardkgeError unless freedom >= 1 and 0 < confidence < 1.
    """
    if freedom < 1 or freedom % 1 or not 0 < confidence < 1:
        raise CardkgeError(
            "Student's t needs a whole number of degrees of freedom, at least 1, and a confidence between 0 and 1;"
            f" found {freedom}, {confidence}"
        )
    odd = freedom % 2

    def within(angle):  # P(|T| <= tan(angle) sqrt(freedom))
        cosines = np.array([math.cos(angle) ** (i + odd) for i in range(0, freedom - 1, 2)])
        steps = np.array([(i - 1 + odd) / (i + odd) for i in range(2, freedom - 1, 2)])
        series = math.sin(angle) * (cosines @ np.cumprod([1, *steps]) if len(cosines) else 0.0)
        return 2 / math.pi * (angle + series) if odd else series

    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:  # until no number lies between
        low, high = (middle, high) if within(middle) < confidence else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def cardinality_violations(model, bounds, triples, threads=None, progress=None):
    """Exact X_hr (Eq. 4) of all subjects of each bounded relation, the heads of r in `triples` (train).

    Returns a dict for each: relation (id), lower, upper, subjects (how many), outside (share of X outside the bounds),
    mean, quartiles (3,), heads (n,) ids and sums (n,) their X_hr, float64. A relation without heads is left out.
    """
    check_finite(model.params)
    triples = checked_triples(triples, model.n_entities, model.n_relations)
    if np.shape(bounds) != (model.n_relations, 2):
        raise CardkgeError(f"bounds must have shape ({model.n_relations}, 2), found {np.shape(bounds)}")
    n, lower_upper = model.n_entities, np.asarray(bounds, np.float64)
    of_bounded = triples[is_bounded(lower_upper)[triples[:, 1]]]
    pairs = sorted_distinct(of_bounded[:, 1].astype(np.int64) * n + of_bounded[:, 0])
    relations, heads, sums = pairs // n, pairs % n, np.empty(len(pairs))

    def add_up(first, last, scores):
        sums[first:last] = probability(scores).sum(1, dtype=np.float64)

    with Threads(threads) as threads:
        scored_blocks(model, 1, heads, relations, threads, add_up, progress=progress)
    found = []
    for relation in np.unique(relations):
        of_relation, (lower, upper) = relations == relation, lower_upper[relation].tolist()
        x = sums[of_relation]
        one = {"relation": int(relation), "lower": lower, "upper": upper, "subjects": len(x)}
        one |= {"outside": float(((x < lower) | (x > upper)).mean()), "mean": float(x.mean())}
        one |= {"quartiles": np.percentile(x, (25, 50, 75)).tolist(), "heads": heads[of_relation], "sums": x}
        found.append(one)
    return found


# ------------------------------------------------------------------------------------------------------------------
# 9. Saved runs
# ------------------------------------------------------------------------------------------------------------------
# A run is a folder. model.npz is the state: what training needs to go on, bit by bit. config.json
# says what the run is (settings, data), bounds.tsv and history.csv what their names say, and
# metrics.json holds the test metrics of exactly the state in model.npz, or is absent.

FORMAT_VERSION = 1
RUN_FILES = ("config.json", "history.csv", "bounds.tsv", "model.npz", "metrics.json")
STAGE = ".saving"  # begins the name of a folder inside the run that holds the new files until all are complete
_REMEDY = "restore it from a copy, or remove its folder and train again"


def option_name(field_name):
    """The command-line name of a field of Settings, as in config.json: penalty_weight is lambda."""
    return "lambda" if field_name == "penalty_weight" else field_name.replace("_", "-")


def describe_data(dataset):
    """The sizes of a Dataset and the SHA-256 of its names and id triples: equal for equal data."""
    digest = hashlib.sha256()
    for names in (dataset.entities, dataset.relations):
        digest.update(_join_names(names).tobytes() + b"\n\n")
    splits = {name: getattr(dataset, name) for name in SPLITS}
    for triples in splits.values():
        digest.update(np.ascontiguousarray(triples, dtype="<i4"))
        digest.update(b"\n\n")
    sizes = {"entities": dataset.n_entities, "relations": dataset.n_relations}
    sizes.update((name, len(triples)) for name, triples in splits.items())
    return {"sha256": digest.hexdigest(), **sizes}


def align_dataset(dataset, run):
    """The same Dataset with the ids of `run`, whose vocabulary may be larger or in another order.

    Raises CardkgeError naming the first entity or relation that the run does not know.
    """
    columns = []
    for kind, names, known in (
        ("entity", dataset.entities, run.entities),
        ("relation", dataset.relations, run.relations),
    ):
        ids = {name: i for i, name in enumerate(known)}
        for name in names:
            if name not in ids:
                raise CardkgeError(
                    f"{dataset.folder}: {kind} {name!r} is unknown to the run, which knows "
                    f"{len(ids)}; give the data that it was trained on, or train on this data"
                )
        columns.append(np.array([ids[name] for name in names], dtype=np.int32))
    entity, relation = columns
    aligned = {}
    for split in SPLITS:
        h, r, t = getattr(dataset, split).T
        aligned[split] = np.column_stack((entity[h], relation[r], entity[t]))
    return replace(dataset, entities=run.entities, relations=run.relations, **aligned)


def is_run(folder):
    """Whether the folder holds a run, perhaps a damaged one: its config.json or model.npz is one of ours."""
    with contextlib.suppress(CardkgeError):
        config = read_json(Path(folder) / "config.json")
        return "format_version" in config and "settings" in config
    with contextlib.suppress(CardkgeError):
        return "state" in _read_arrays(Path(folder) / "model.npz")
    return False


def save_run(run, folder):
    """Write the run to its folder, which is made if need be; files not of a run are left alone.

    All files are completed in a folder inside it before the first is renamed into place, so a
    full disk leaves the old state whole. model.npz is the last renamed (before metrics.json, which
    belongs to it): cut short between two renames, the text files are at most ahead of it, and
    load_run drops what is. Parameters that are not finite are refused.

    The bytes of model.npz depend on the settings and the state alone, not on time or place (in
    mid-epoch they hold the seconds that the epoch took so far).
    """
    check_finite(run.model.params)
    folder = Path(folder)
    contents = {"history.csv": _history_text(run.history).encode(), "config.json": _json_bytes(_config(run))}
    if run.metrics is not None:
        contents["metrics.json"] = _json_bytes(run.metrics)
    stage = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{STAGE}*"):  # by a program that was killed; one at work is younger
            if time.time() - left.stat().st_mtime > 3600:
                shutil.rmtree(left, ignore_errors=True)
        stage = Path(tempfile.mkdtemp(prefix=STAGE, dir=folder))
        # not compressed: trained parameters barely shrink
        replace_file(stage / "model.npz", lambda file: np.savez(file, **_arrays(run)))
        write_bounds(stage / "bounds.tsv", run.bounds, run.relations)
        for name, content in contents.items():
            replace_file(stage / name, lambda file, content=content: file.write(content))
        (folder / "metrics.json").unlink(missing_ok=True)
        for name in RUN_FILES:
            if name in contents or name in ("bounds.tsv", "model.npz"):
                os.replace(stage / name, folder / name)
    except OSError as error:
        raise CardkgeError(
            f"{folder}: the run cannot be saved here ({error.strerror or error}); "
            "make room, or choose another folder with --out"
        ) from error
    finally:
        if stage:
            shutil.rmtree(stage, ignore_errors=True)


def save_metrics(run, folder):
    """Write metrics.json of a run that is saved but for its metrics."""
    replace_file(Path(folder) / "metrics.json", lambda file: file.write(_json_bytes(run.metrics)))


def load_run(folder):
    """The Run that save_run wrote. Every fault is a CardkgeError that names the file.

    Nothing is unpickled. Arrays keep their dtype and every bit.
    """
    folder = Path(folder)
    if not os.path.isdir(folder):  # unlike Path's, these take what is unreadable for absent
        found = "is a file, not the folder of a run" if os.path.exists(folder) else "no such run"
        raise CardkgeError(f"{folder}: {found}; give a folder that train has written")
    if not os.path.exists(folder / "config.json"):
        raise CardkgeError(f"{folder}: not a run, for it has no config.json; give a folder that train has written")
    settings, data = _parse_config(folder / "config.json")
    path = folder / "model.npz"
    arrays = _read_arrays(path)
    state = _parse_state(path, arrays, settings)
    entities, relations = (_split_names(path, arrays, kind, data[kind]) for kind in ("entities", "relations"))
    groups = {"params": {}, "accumulators": {}, "best": {}}
    for name, array in arrays.items():
        group, _, key = name.partition(".")
        if group in groups:
            groups[group][key] = array
    model = new_model(settings, len(entities), len(relations), initialise=False)
    wanted = {"params": True, "accumulators": settings.optimizer == "adagrad", "best": state["best"]}
    for group, there in wanted.items():
        _check_arrays(path, group, groups[group], model.shapes if there else {}, model.dtype)
    model.params = groups["params"]
    best = {**state["best"], "params": groups["best"]} if state["best"] else None
    bounds = read_bounds(folder / "bounds.tsv", relations)
    if _bounds_digest(bounds) != state.get("bounds"):
        raise CardkgeError(f"{folder / 'bounds.tsv'}: not the bounds that the run was trained with; {_REMEDY}")
    metrics_path = folder / "metrics.json"
    return Run(
        settings=settings,
        entities=entities,
        relations=relations,
        model=model,
        accumulators=groups["accumulators"],
        bounds=bounds,
        epoch=state["epoch"],
        step=state["step"],
        partial=state["partial"],
        history=_read_history(folder / "history.csv", state["epoch"]),
        best=best,
        metrics=read_json(metrics_path) if metrics_path.exists() else None,
        data=data,
    )


def read_config(folder):
    """The Settings of a saved run and the `describe_data` of its data; CardkgeError as `load_run`."""
    return _parse_config(Path(folder) / "config.json")


def read_outcome(folder):
    """What a finished run came to, without reading its parameters.

    Returns {"epoch": the one kept, "valid": {"mrr", "hits@10"} there, or None where nothing was validated, "test": as
    in metrics.json, "seconds": of training}. Raises CardkgeError as `load_run` does, and where the run is not finished.
    """
    folder = Path(folder)
    test, epochs = read_json(folder / "metrics.json"), read_json(folder / "config.json").get("epoch")
    if type(epochs) is not int:
        raise CardkgeError(f"{folder / 'config.json'}: 'epoch' is {epochs!r}, expected int; {_REMEDY}")
    history = _read_history(folder / "history.csv", epochs)
    wanted, file = {"mrr", "mean_rank", *(f"hits@{n}" for n in HITS)}, "metrics.json"
    try:
        for setting in ("filtered", "raw"):
            if not all(_fits(test[setting]["both"][name], float) for name in wanted):
                raise TypeError(f"{setting} metrics are no numbers")
        file = "history.csv"
        seconds = sum(record["seconds"] for record in history)
        validated = [record for record in history if "valid_hits@10" in record]
        best = max(validated, key=lambda record: (record["valid_hits@10"], record["valid_mrr"]), default=None)
    except (KeyError, TypeError) as error:
        raise CardkgeError(f"{folder / file}: damaged ({error}); {_REMEDY}") from error
    return {
        "epoch": best["epoch"] if best else len(history),
        "valid": {name: best[f"valid_{name}"] for name in ("mrr", "hits@10")} if best else None,
        "test": test,
        "seconds": seconds,
    }


def read_violations(path):
    """The violations of one run, as `violations RUN --json` writes them: relation -> {"lower", "upper" (inf for null),
    "subjects", "outside", "mean"}."""
    try:
        (found,) = read_json(Path(path)).values()
        parts = {relation: dict(v, upper=np.inf if v["upper"] is None else v["upper"]) for relation, v in found.items()}
        return {
            r: {n: float(v[n]) for n in ("lower", "upper", "subjects", "outside", "mean")} for r, v in parts.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CardkgeError(f"{path}: not the violations of one run; remove this file") from error


def average_sum(violations):
    """The mean over the relations of the mean X_hr of each (the paper's Figure 3)."""
    return float(np.mean([v["mean"] for v in violations.values()]))


def _settings_dict(run):
    """The settings under their command-line names, dim resolved."""
    settings = {option_name(f.name): getattr(run.settings, f.name) for f in fields(Settings)}
    return {**settings, "dim": run.model.dim}


def _config(run):
    return {
        "format_version": FORMAT_VERSION,
        "program": f"cardkge {__version__}",
        "settings": _settings_dict(run),
        "data": run.data,
        "epoch": run.epoch,
    }


def _fixed(settings):
    """The settings that no resumed run may change. epochs may grow and the data may move."""
    return {name: value for name, value in settings.items() if name not in ("epochs", "data")}


def _arrays(run):
    """The members of model.npz."""
    best = {k: v for k, v in run.best.items() if k != "params"} if run.best else None
    state = {
        "format_version": FORMAT_VERSION,
        "settings": _fixed(_settings_dict(run)),
        "epoch": run.epoch,
        "step": run.step,
        "partial": run.partial,
        "best": best,
        "bounds": _bounds_digest(run.bounds),
    }
    arrays = {
        "state": np.frombuffer(_json_bytes(state), dtype=np.uint8),
        "entities": _join_names(run.entities),
        "relations": _join_names(run.relations),
    }
    groups = {
        "params": run.model.params,
        "accumulators": run.accumulators,
        "best": run.best["params"] if run.best else {},
    }
    for group, members in groups.items():
        for name, array in sorted(members.items()):
            arrays[f"{group}.{name}"] = np.ascontiguousarray(array)
    return arrays


def _bounds_digest(bounds):
    return hashlib.sha256(np.ascontiguousarray(bounds, "<f8")).hexdigest()


def _join_names(names):
    return np.frombuffer("\n".join(names).encode(), dtype=np.uint8)


def _split_names(path, arrays, kind, count):
    try:
        names = arrays[kind].tobytes().decode().split("\n")
    except (KeyError, UnicodeDecodeError) as error:
        raise CardkgeError(f"{path}: it holds no readable {kind}; {_REMEDY}") from error
    if len(names) != count or len(set(names)) != count:
        raise CardkgeError(f"{path}: it names {len(set(names))} {kind}, config.json counts {count}; {_REMEDY}")
    return names


def _json_bytes(value):
    # floats are written by repr, which every reader of IEEE doubles turns back into the same bits
    # half letters, of a path that is not UTF-8, become escapes, which JSON has too
    return (json.dumps(value, indent=2, ensure_ascii=False, default=float) + "\n").encode(errors="backslashreplace")


def read_json(path):
    """The JSON object in a file, or a CardkgeError."""
    try:
        value = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise CardkgeError(f"{path}: cannot be read ({error.strerror}); {_REMEDY}") from error
    except (ValueError, RecursionError) as error:
        raise CardkgeError(f"{path}: not JSON ({error}); {_REMEDY}") from error
    if not isinstance(value, dict):
        raise CardkgeError(f"{path}: not a JSON object; {_REMEDY}")
    return value


def _fits(value, kind):
    """Whether a JSON value has the type of a field; a bool is no int, an int is a float."""
    kinds = typing.get_args(kind) or (kind,)
    return type(value) in kinds or (float in kinds and type(value) is int)


def _check_version(path, version):
    if type(version) is not int or version < 1:
        raise CardkgeError(f"{path}: format_version is {version!r}, not a number; {_REMEDY}")
    if version > FORMAT_VERSION:
        raise CardkgeError(
            f"{path}: format version {version} is later than {FORMAT_VERSION}, the last that this "
            "program reads; use the newer program that wrote it"
        )


def _parse_config(path):
    """Settings and the description of the data in config.json."""
    config = read_json(path)
    _check_version(path, config.get("format_version"))
    parts = [config.get("settings"), config.get("data")]
    kinds = typing.get_type_hints(Settings)
    sizes = dict.fromkeys(("entities", "relations", *SPLITS), int)
    wanted = [{option_name(name): kinds[name] for name in kinds}, {"sha256": str, **sizes}]
    for part, found, expected in zip(("settings", "data"), parts, wanted, strict=True):
        if not isinstance(found, dict):
            raise CardkgeError(f"{path}: it has no object {part!r}; {_REMEDY}")
        for name in sorted(found.keys() ^ expected.keys()):
            fault = "unknown" if name in found else "missing"
            raise CardkgeError(f"{path}: {name!r} in {part!r} is {fault}; {_REMEDY}")
        for name, kind in expected.items():
            if not _fits(found[name], kind):
                raise CardkgeError(
                    f"{path}: {name!r} is {found[name]!r}, expected {getattr(kind, '__name__', kind)}; {_REMEDY}"
                )
    settings = Settings(**{name: parts[0][option_name(name)] for name in kinds})
    try:
        settings.check()
    except CardkgeError as error:
        raise CardkgeError(f"{path}: {error}") from error
    return settings, parts[1]


def _read_arrays(path):
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as stored:  # np.load alone takes more than zip
            return {name: stored[name] for name in stored.files}
    # zip, zlib, header, memory and object faults come as a dozen unrelated classes
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise CardkgeError(f"{path}: cannot be read ({reason}); {_REMEDY}") from error


def _parse_state(path, arrays, settings):
    """The member `state` of model.npz, its types checked."""
    try:
        state = json.loads(arrays["state"].tobytes().decode())
        _check_version(path, state["format_version"])
        best = state["best"]
        counts = [state["epoch"], state["step"], *([best["epoch"]] if best else [])]
        floats = [*state["partial"].values(), *(best.values() if best else [])]
        if not all(type(n) is int and n >= 0 for n in counts):
            raise ValueError("a count is no whole number")
        if not all(_fits(x, float) for x in floats):
            raise ValueError("a sum is no number")
        stored = dict(state["settings"])
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise CardkgeError(f"{path}: its state is damaged ({reason}); {_REMEDY}") from error
    given = {option_name(f.name): getattr(settings, f.name) for f in fields(Settings)}
    for name, value in _fixed(given).items():
        if stored.get(name) != value:
            raise CardkgeError(
                f"{path}: trained with {name} = {stored.get(name)!r}, but config.json says "
                f"{value!r}; correct config.json, or remove its folder and train again"
            )
    return state


def _check_arrays(path, group, arrays, shapes, dtype):
    """Refuse arrays that are not those of the model: names, shapes, dtype, finite parameters."""
    for name in sorted(arrays.keys() | shapes.keys()):
        found = arrays.get(name)
        if found is None or name not in shapes:
            fault = "missing" if found is None else "unexpected"
        elif found.shape != shapes[name] or found.dtype != dtype:
            fault = f"{found.dtype} {found.shape}, expected {np.dtype(dtype)} {shapes[name]}"
        else:
            continue
        raise CardkgeError(f"{path}: {group}.{name} is {fault}; {_REMEDY}")
    if group != "accumulators":  # which an overflow may have left infinite, to no other harm
        check_finite(arrays, f"{path}: {group}")


def _history_text(history):
    """history.csv: a line per epoch; columns in order of first appearance, empty where absent."""
    columns = list(dict.fromkeys(["epoch", *(name for record in history for name in record)]))
    rows = [{name: int(x) if name == "epoch" else float(x) for name, x in record.items()} for record in history]
    return csv_text(columns, rows)


def csv_text(columns, rows):
    """The text of a CSV file with these columns, of dicts that may lack some."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _read_history(path, epochs):
    """The records of the first `epochs` epochs: the file may be ahead of model.npz, see save_run."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = [{name: float(x) for name, x in row.items() if x != ""} for row in csv.DictReader(file, strict=True)]
        history = [{**row, "epoch": int(row["epoch"])} for row in rows if row["epoch"] <= epochs]
        if [record["epoch"] for record in history] != list(range(1, epochs + 1)):
            raise ValueError(f"expected the epochs 1 to {epochs}")
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise CardkgeError(f"{path}: cannot be read ({reason}); {_REMEDY}") from error
    return history


# ------------------------------------------------------------------------------------------------------------------
# 10. Oracle: reference values for other implementations (docs/ORACLE.md)
# ------------------------------------------------------------------------------------------------------------------

ORACLE_FORMAT, ORACLE_VERSION = "cardkge-oracle", 1  # a value that changes is a new version, with a file of its own
ORACLE_RTOL, ORACLE_ATOL = 1e-9, 1e-12
_ROUNDING = {"rtol": 1e-13, "atol": 1e-14}  # by which two processors may differ (exp, tanh, order of a sum)


def oracle():
    """The reference values: {"format", "version", "tolerance", "cases"}, of numbers, lists and dicts alone.

    A case is {"name", "kind", "what", "inputs", "outputs"}; its outputs are what the function of its kind, below, makes
    of its inputs, with the definitions of sections 2 to 8 in float64. An upper bound of None is infinity. A value that
    agrees with the one in data/oracle-VERSION.json but for rounding is given as it stands there: the same bits on every
    machine.
    """
    path = PROJECT_DATA / f"oracle-{ORACLE_VERSION}.json"
    kept = {case["name"]: case for case in _read_oracle(path)["cases"]} if path.exists() else {}
    cases = []
    for name, kind, what, inputs in _oracle_inputs():
        outputs = {key: _plain(value) for key, value in _ORACLE_KINDS[kind](**_arguments(inputs)).items()}
        same = kept.get(name, {}).get("outputs", {})
        for key, value in outputs.items():
            if _first_difference(same.get(key), value, **_ROUNDING) is None:
                outputs[key] = same[key]
        cases.append({"name": name, "kind": kind, "what": what, "inputs": inputs, "outputs": outputs})
    tolerance = {"rtol": ORACLE_RTOL, "atol": ORACLE_ATOL}
    return {"format": ORACLE_FORMAT, "version": ORACLE_VERSION, "tolerance": tolerance, "cases": cases}


def write_oracle(path):
    """Write `oracle()` as JSON, an input or output a line, floats by repr. The same bytes on every run and machine."""

    def block(values, indent):
        lines = [f"{indent} {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"

    content = oracle()
    cases = [
        "  {\n"
        + "".join(f"   {json.dumps(key)}: {json.dumps(case[key])},\n" for key in ("name", "kind", "what"))
        + f'   "inputs": {block(case["inputs"], "   ")},\n   "outputs": {block(case["outputs"], "   ")}\n  }}'
        for case in content.pop("cases")
    ]
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in content.items())
    text = "{\n" + head + ' "cases": [\n' + ",\n".join(cases) + "\n ]\n}\n"
    replace_file(path, lambda file: file.write(text.encode()))


def check_oracle(path, rtol=ORACLE_RTOL, atol=ORACLE_ATOL):
    """Compare the outputs in a file of the oracle's structure with ours, value by value.

    The file may leave out cases, and of a case "kind", "what", "inputs" and some outputs. A value agrees where
    |found - expected| <= atol + rtol |expected|. Returns a (case name, verdict, text) for each of our cases, in order:
    verdict "ok", "skipped" (not in the file) or "differs", with the first value that does. CardkgeError for a file that
    is not JSON, of another structure or version, with a case or output of an unknown name, or with nothing to compare.
    """
    given = _read_oracle(path)
    cases = {case["name"]: case for case in oracle()["cases"]}
    found = {}
    for case in given["cases"]:
        name = case["name"]
        _known_name(path, "case", name, cases)
        if name in found:
            raise CardkgeError(f"{path}: case {name!r} for the second time; keep one of them")
        for key in case["outputs"]:
            _known_name(path, f"output of {name}", key, cases[name]["outputs"])
        found[name] = case["outputs"]
    if not any(found.values()):
        raise CardkgeError(f"{path}: no case with outputs, nothing to compare")
    return [(name, *_compare(case["outputs"], found.get(name), rtol, atol)) for name, case in cases.items()]


def _compare(expected, found, rtol, atol):
    """Verdict and text of one case."""
    if not found:
        return "skipped", ""
    missing = [key for key in expected if key not in found]
    for key in expected:
        fault = None if key in missing else _first_difference(found[key], expected[key], rtol, atol)
        if fault:
            return "differs", key + fault
    return "ok", f"without {', '.join(missing)}" if missing else ""


def _first_difference(found, expected, rtol, atol):
    """None where two nested lists of numbers agree, else the first place where they do not, and how."""
    try:
        (shape, values), (expected_shape, expected_values) = _flat(found), _flat(expected)
    except CardkgeError as error:
        return f": {error}"
    if shape != expected_shape:
        return f": expected shape {expected_shape}, found {shape}"
    faults = []
    for i, (a, b) in enumerate(zip(values, expected_values)):
        if not (a == b or (math.isfinite(b) and abs(a - b) <= atol + rtol * abs(b))):  # a NaN fails both
            faults.append((i, a, b))
    if not faults:
        return None
    i, a, b = faults[0]
    place = "".join(f"[{int(j)}]" for j in np.unravel_index(i, shape)) if shape else ""
    text = f"{place}: expected {b!r}, found {a!r}, difference {a - b:.3g}"
    return text + (f" ({len(faults)} of {len(values)} values differ)" if len(values) > 1 else "")


def _flat(value):
    """Shape and numbers, row by row, of nested lists; None (no upper bound) is infinity."""
    if not isinstance(value, list):
        if value is not None and type(value) is not float and not (type(value) is int and abs(value) < 2**1023):
            raise CardkgeError(f"expected a number, found {json.dumps(value)[:40]}")
        return (), [math.inf if value is None else float(value)]
    parts = [_flat(part) for part in value]
    shapes = {shape for shape, _ in parts}
    if len(shapes) > 1:
        raise CardkgeError("expected rows of equal length, found " + " and ".join(map(str, sorted(shapes))))
    return (len(value), *(shapes.pop() if shapes else ())), [number for _, numbers in parts for number in numbers]


def _read_oracle(path):
    """The content of a file of the oracle's structure and version, or CardkgeError."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            content = json.load(file)
    except OSError as error:
        raise CardkgeError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise CardkgeError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != ORACLE_FORMAT:
        raise CardkgeError(f'{path}: expected an object with "format": "{ORACLE_FORMAT}" (docs/ORACLE.md)')
    if content.get("version") != ORACLE_VERSION:
        found = json.dumps(content.get("version"))[:40]
        raise CardkgeError(f"{path}: version {found}; this program has the values of version {ORACLE_VERSION}")
    cases = content.get("cases")
    if not isinstance(cases, list):
        raise CardkgeError(f'{path}: expected a list "cases"')
    for i, case in enumerate(cases):
        if not (isinstance(case, dict) and isinstance(case.get("name"), str) and isinstance(case.get("outputs"), dict)):
            raise CardkgeError(f'{path}: cases[{i}]: expected an object with a "name" and an object "outputs"')
    return content


def _known_name(path, what, name, names):
    if name not in names:
        near = difflib.get_close_matches(name, names, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {len(names)}, such as {next(iter(names))!r}"
        raise CardkgeError(f"{path}: unknown {what} {name!r}; {hint}")


def _plain(value):
    """An array or number as JSON has it: -0.0 as 0.0 (its sign may depend on the machine), infinity as None."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    return None if value == math.inf else value + 0.0


def _arguments(inputs):
    """The inputs of a case as its function takes them: floats as arrays, a model and its parameters as a model."""
    inputs = dict(inputs)
    if "model" in inputs:
        params = {name: np.array(value, np.float64) for name, value in inputs.pop("parameters").items()}
        kind, extra = MODELS[inputs["model"]], {"hidden": len(params["output"])} if "output" in params else {}
        dim = params["entity"].shape[1] // kind.row_length
        model = kind(len(params["entity"]), len(params["relation"]), dim, dtype="float64", **extra)
        model.params = params
        inputs["model"] = model
    if "bounds" in inputs:
        inputs["bounds"] = np.array(inputs["bounds"], np.float64)  # None becomes NaN
        inputs["bounds"][np.isnan(inputs["bounds"])] = np.inf
    return inputs


# --- the kinds of cases: inputs -> outputs


def _prefixed(prefix, arrays):
    return {f"{prefix}_{name}": array for name, array in arrays.items()}


def _oracle_scores(model, heads, relations, tails):
    scores = model.score(heads, relations, tails)
    every_tail, every_head = model.score_tails(heads, relations), model.score_heads(relations, tails)
    return {"score": scores, "score_tails": every_tail, "score_heads": every_head, "probability": probability(scores)}


def _oracle_score_gradients(model, heads, relations, tails, upstream):
    return _prefixed("d", model.gradients(heads, relations, tails, upstream))


def _oracle_probability(scores):
    return {"probability": probability(np.array(scores))}


def _oracle_logistic_loss(scores, labels):
    loss, d_scores = logistic_loss(np.array(scores), labels)
    return {"loss": loss, "d_scores": d_scores}


def _oracle_hinge_loss(positive, negative, margin):
    loss, d_positive, d_negative = hinge_loss(positive, negative, margin)
    return {"loss": loss, "d_positive": d_positive, "d_negative": d_negative}


def _oracle_cardinality(model, bounds, relation, subjects, objects, weights):
    penalty, gradients, sums = cardinality_penalty(model, bounds, relation, subjects, objects, weights)
    g, _ = violation(sums, *bounds[relation])
    return {"X": sums, "G": g, "penalty": penalty, **_prefixed("d", gradients)}


def _oracle_objective(model, heads, relations, tails, loss, margin, l2, penalty_weight, bounds, samples):
    settings = Settings(loss=loss, margin=margin, l2=l2, penalty_weight=penalty_weight)
    samples = [tuple(sample[key] for key in ("relation", "subjects", "objects", "weights")) for sample in samples]
    return objective(model, heads, relations, tails, settings, bounds, samples)


def _oracle_gradients(**batch):
    parts, gradients = _oracle_objective(**batch)
    return parts | _prefixed("d", gradients)


def _oracle_step(model, accumulators, optimizer, learning_rate, project, **batch):
    _, gradients = _oracle_objective(model, **batch)
    accumulators = {name: np.array(value) for name, value in accumulators.items()}
    for name, param in model.params.items():
        if optimizer == "adagrad":
            adagrad_step(param, accumulators[name], gradients[name], learning_rate)
        else:
            sgd_step(param, gradients[name], learning_rate)
    if project == "unit":
        project_rows(model.params["entity"])
    return model.params | _prefixed("accumulator", accumulators)


def _oracle_update(optimizer, learning_rate, parameter, accumulator, gradient):
    parameter, accumulator, gradient = np.array(parameter), np.array(accumulator), np.array(gradient)
    if optimizer == "sgd":
        sgd_step(parameter, gradient, learning_rate)
        return {"parameter": parameter}
    adagrad_step(parameter, accumulator, gradient, learning_rate)
    return {"parameter": parameter, "accumulator": accumulator}


def _oracle_projection(rows):
    rows = np.array(rows)
    project_rows(rows)
    return {"rows": rows}


def _oracle_sampling(triples, n_entities, n_relations, objects):
    def probabilities(kind, inclusion="uniform"):
        sampler = ObjectSampler(kind, np.array(triples), n_entities, n_relations, objects, inclusion)
        return np.array([sampler.probabilities(relation) for relation in range(n_relations)])

    q = probabilities("importance")
    return {
        "importance_q": q,
        "importance_weight": 1 / (objects * q),
        "bernoulli_uniform_b": probabilities("bernoulli"),
        "bernoulli_frequency_b": probabilities("bernoulli", "frequency"),
    }


def _oracle_mined_bounds(triples, n_entities, n_relations, population):
    return {"bounds": mine_bounds(np.array(triples), n_entities, n_relations, population)}


def _oracle_ranks(model, train, valid, test):
    ranks = {ties: rank_triples(model, test, np.array(train + valid + test), ties, threads=1) for ties in TIES}
    return {f"{setting}_{ties}": ranks[ties][setting] for setting in ("raw", "filtered") for ties in TIES}


def _oracle_metrics(ranks):
    by_side = metrics_by_side(np.array(ranks))
    return {f"{side}_{metric}": value for side, values in by_side.items() for metric, value in values.items()}


_ORACLE_KINDS = {
    "scores": _oracle_scores,
    "score_gradients": _oracle_score_gradients,
    "probability": _oracle_probability,
    "logistic_loss": _oracle_logistic_loss,
    "hinge_loss": _oracle_hinge_loss,
    "cardinality": _oracle_cardinality,
    "objective": _oracle_gradients,
    "step": _oracle_step,
    "update": _oracle_update,
    "projection": _oracle_projection,
    "sampling": _oracle_sampling,
    "mined_bounds": _oracle_mined_bounds,
    "ranks": _oracle_ranks,
    "metrics": _oracle_metrics,
}


# --- the cases


def _oracle_numbers(seed, *shape, unit=1 / 32):
    """Odd multiples of `unit`, -63 to 63 of it, by a linear congruential generator: short decimals, exact in binary."""
    numbers = np.empty(shape)
    for i in range(numbers.size):
        seed = (1103515245 * seed + 12345) % 2**31
        numbers.flat[i] = unit * (2 * (seed >> 16) % 128 - 63)
    return numbers.tolist()


def _oracle_model(name, seed, n_entities, n_relations, dim, hidden):
    """Inputs "model" and "parameters"."""
    width = dim * MODELS[name].row_length
    parameters = {
        "entity": _oracle_numbers(seed, n_entities, width),
        "relation": _oracle_numbers(seed + 1, n_relations, width),
    }
    if name == "ermlp":  # a smaller W, so that tanh does not saturate
        parameters["hidden"] = _oracle_numbers(seed + 2, 3 * dim, hidden, unit=1 / 128)
        parameters["output"] = _oracle_numbers(seed + 3, hidden)
    return {"model": name, "parameters": parameters}


# 8 entities, 2 relations. Triples of `test` have other true answers in train, in valid and in test; some stand twice.
_ORACLE_TRAIN = [
    *([0, 0, 1], [0, 0, 3], [0, 0, 6], [2, 0, 3], [4, 0, 3], [5, 0, 1], [0, 0, 3], [6, 0, 6]),
    *([1, 1, 0], [2, 1, 0], [3, 1, 0], [3, 1, 5], [5, 1, 7], [6, 1, 7], [7, 1, 2]),
]
_ORACLE_VALID = [[0, 0, 5], [0, 0, 1], [4, 1, 0], [3, 1, 4], [2, 0, 2], [7, 0, 3]]
_ORACLE_TEST = [[0, 0, 2], [3, 1, 0], [0, 0, 4], [3, 1, 1], [6, 1, 0], [1, 0, 3], [0, 0, 2]]


def _oracle_inputs():
    """Yields (name, kind, what, inputs) of each case."""
    for name in MODELS:
        for case, kind, what, inputs in _oracle_model_cases(name):
            yield f"{name}/{case}", kind, what, inputs

    extremes = [-1000.0, -745.5, -40.0, -1.0, -1e-9, 0.0, 1e-9, 1.0, 40.0, 745.5, 1000.0]
    yield "probability/extremes", "probability", "Large scores of both signs.", {"scores": extremes}
    for case, label in (("positive", 1), ("negative", -1)):
        inputs = {"scores": extremes, "labels": [label] * len(extremes)}
        yield f"logistic-loss/{case}", "logistic_loss", "Large scores of both signs.", inputs
    positive, negative = _oracle_numbers(31, 3), _oracle_numbers(32, 3, 2)
    for case, what, inputs in (
        ("margin-1", "Every pair counts.", (positive, negative, 1.0)),
        ("margin-0.25", "Some pairs count, others are far enough apart.", (positive, negative, 0.25)),
        ("kink", "Every pair is exactly at the kink: loss and gradients are 0.", ([0.0, 0.0], [[0.0], [0.0]], 0.0)),
        ("extremes", "Large scores of both signs.", ([-1000.0, 1000.0, 40.0], [[0.0], [1000.0], [-745.5]], 0.5)),
    ):
        yield f"hinge-loss/{case}", "hinge_loss", what, dict(zip(("positive", "negative", "margin"), inputs))

    parameter, accumulator = _oracle_numbers(33, 3, 4), [[0.0, 0.0, 0.25, 0.0], [0.1] * 4, [2.5, 0.0, 1.0, 0.5]]
    gradient = [[0.0, -0.5, 0.0, 1e-6], _oracle_numbers(34, 4), [1.5, 0.0, -1e-3, 1e3]]
    for optimizer in ("sgd", "adagrad"):
        inputs = {"parameter": parameter, "accumulator": accumulator, "gradient": gradient}
        what = "Where gradient and accumulator are 0, AdaGrad changes nothing; an eps would show at the gradient 1e-6."
        yield f"update/{optimizer}", "update", what, {"optimizer": optimizer, "learning_rate": 0.1, **inputs}
    rows = [[3.0, 4.0], [0.0, 0.0], [-1e-3, 0.0], [0.6, -0.8], *_oracle_numbers(35, 2, 2)]
    yield "projection/rows", "projection", "A row of zeros stays one.", {"rows": rows}

    sizes = {"n_entities": 8, "n_relations": 3}
    for omega in (1, 3, 6, 8):
        inputs = {"triples": _ORACLE_TRAIN, **sizes, "objects": omega}
        what = f"Relation 2 has no triple; omega = {omega} of 8 entities{', more than some b allows' * (omega > 3)}."
        yield f"sampling/omega-{omega}", "sampling", what, inputs
    for population in ("subjects", "relation", "entities"):
        inputs = {"triples": _ORACLE_TRAIN[:-1], **sizes, "population": population}
        what = "A triple stands there twice, entity 7 heads nothing, relation 2 has no triple."
        yield f"mined-bounds/{population}", "mined_bounds", what, inputs
        inputs = inputs | {"triples": [[0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 1, 0]], "n_entities": 3, "n_relations": 2}
        what = "Both subjects head relation 0, one of them relation 1; entity 2 heads nothing."
        yield f"mined-bounds/{population}-2", "mined_bounds", what, inputs
    ranks = [[1.0, 2.0], [3.0, 10.5], [5.0, 100.0], [1.5, 10.0], [1.0, 3.5], [4.0, 1.0]]
    yield "metrics/ranks", "metrics", "Half ranks come from ties.", {"ranks": ranks}


def _oracle_model_cases(name):
    """The cases of one model, without its name."""
    large, small = _oracle_model(name, 1, 8, 2, 3, 5), _oracle_model(name, 11, 4, 2, 1, 1)

    ids = {"heads": [0, 5, 2, 7, 3, 0], "relations": [0, 0, 1, 1, 1, 0], "tails": [1, 4, 6, 0, 3, 1]}
    small_ids = {"heads": [0, 2, 3], "relations": [1, 0, 1], "tails": [1, 2, 0]}
    for case, inputs in (("k3", large | ids), ("k1", small | small_ids)):
        yield f"scores-{case}", "scores", "Triples by id; once head and tail are the same entity.", inputs
        upstream = _oracle_numbers(41, len(inputs["heads"]))
        what = "Entities in several triples, as head and as tail; their gradients add up."
        yield f"score-gradients-{case}", "score_gradients", what, inputs | {"upstream": upstream}

    # samples as the four samplings draw them, omega = 3; importance repeats an object, Bernoulli's sample is larger
    everyone, omega = list(range(8)), 3
    frequency = [1.0] * 8
    for _, relation, tail in _ORACLE_TRAIN:
        frequency[tail] += relation == 0
    q = [f / sum(frequency) for f in frequency]
    samples = {
        "exact": (everyone, [1.0] * 8),
        "uniform": ([6, 1, 4], [1.0] * 3),
        "importance": ([3, 6, 3], [1 / (omega * q[t]) for t in (3, 6, 3)]),
        "bernoulli": ([1, 3, 4, 6], [1 / (omega * q[t]) for t in (1, 3, 4, 6)]),
    }
    subjects = [0, 5, 3]
    for sampling, (objects, weights) in samples.items():
        model = _arguments(large)["model"]
        low, middle, high = sorted(cardinality_sums(model, 0, subjects, objects, weights))
        between = math.floor(32 * (low + middle)) / 64, math.ceil(32 * (middle + high)) / 64
        for case, bounds in (
            ("below", [20.0, None]),
            ("inside", [0.0, 20.0]),
            ("above", [0.0, math.floor(32 * low) / 64]),
            ("around", list(between)),
        ):
            inputs = {"bounds": [bounds, [0.0, None]], "relation": 0, "subjects": subjects}
            what = {
                "below": "Every X is below the lower bound.",
                "inside": "Every X is inside the bounds: G and its gradients are 0.",
                "above": "Every X is above the upper bound.",
                "around": "One X is below the lower bound, one inside, one above the upper bound.",
            }[case]
            inputs |= {"objects": objects, "weights": weights}
            yield f"cardinality-{sampling}-{case}", "cardinality", what, large | inputs
    zeros = "output" if name == "ermlp" else "relation"
    parameters = large["parameters"] | {zeros: np.zeros(np.shape(large["parameters"][zeros])).tolist()}
    for case, bounds in (("lower", [4.0, None]), ("upper", [0.0, 4.0]), ("both", [4.0, 4.0])):
        inputs = {"model": name, "parameters": parameters, "bounds": [[0.0, None], bounds], "relation": 1}
        inputs |= {"subjects": subjects, "objects": everyone, "weights": [1.0] * 8}
        what = "Every score is 0, every X exactly 4, at a bound: G and its gradients are 0."
        yield f"cardinality-at-{case}", "cardinality", what, inputs
    inputs = {"bounds": [[0.0, None], [0.0, 0.5]], "relation": 1, "subjects": [2, 0]}
    inputs |= {"objects": [0, 1, 2, 3], "weights": [1.0] * 4}
    yield "cardinality-k1", "cardinality", "Every X is above the upper bound.", small | inputs

    batch = {
        "heads": [[0, 0, 4], [0, 0, 1], [2, 2, 0], [3, 3, 2]],
        "relations": [[0] * 3, [0] * 3, [1] * 3, [1] * 3],
        "tails": [[1, 3, 1], [2, 1, 2], [0, 4, 0], [3, 0, 3]],
    }
    plain = {"margin": 1.0, "l2": 0.0, "penalty_weight": 0.0, "bounds": [[0.0, None]] * 2, "samples": []}
    sampled = [
        {"relation": 0, "subjects": [0, 2], "objects": [3, 6, 3], "weights": samples["importance"][1]},
        {"relation": 1, "subjects": [1, 3], "objects": [0, 2, 4], "weights": [1.0] * 3},
    ]
    regularised = {"margin": 0.75, "l2": 0.125, "penalty_weight": 0.5, "bounds": [[0.0, 0.25], [6.0, None]]}
    regularised["samples"] = sampled
    for loss in ("logistic", "hinge"):
        what = "The loss alone: column 0 the positive triples, then two corruptions of each."
        yield f"loss-{loss}", "objective", what, large | batch | {"loss": loss} | plain
        what = "Loss, L2 penalty and both relations' G, one above its upper and one below its lower bound."
        yield f"objective-{loss}", "objective", what, large | batch | {"loss": loss} | regularised
        inputs = {"heads": [[0, 0], [2, 2]], "relations": [[0, 0], [1, 1]], "tails": [[1, 3], [0, 1]], "loss": loss}
        inputs |= regularised | {"bounds": [[3.0, 3.5], [0.0, 1.0]]}
        inputs["samples"] = [{"relation": 1, "subjects": [3, 0], "objects": [2, 1], "weights": [2.0, 2.0]}]
        yield f"objective-{loss}-k1", "objective", "One corruption, one sample.", small | inputs

    # In the steps, entity 0 occurs often, 6 as a sampled object only, 5 and 7 not at all.
    parameters = dict(large["parameters"], entity=[list(row) for row in large["parameters"]["entity"]])
    width = len(parameters["entity"][0])
    parameters["entity"][5], parameters["entity"][7] = [0.0, 1.0] + [0.0] * (width - 2), [0.0] * width
    accumulators = {key: np.full(np.shape(value), 0.1) for key, value in parameters.items()}
    accumulators["entity"][[4, 5, 7]] = 0
    accumulators["entity"][2] = 1.5
    accumulators["relation"][1] = 0
    accumulators = {key: value.tolist() for key, value in accumulators.items()}
    for optimizer, loss in (("sgd", "hinge"), ("adagrad", "logistic")):
        for project in ("none", "unit"):
            inputs = {"model": name, "parameters": parameters, **batch, "loss": loss, **regularised}
            inputs["accumulators"] = accumulators if optimizer == "adagrad" else {}
            inputs |= {"optimizer": optimizer, "learning_rate": 0.1, "project": project}
            what = "One step on the whole objective. Entities 5 (of norm 1) and 7 (zeros) have no gradient."
            yield f"step-{optimizer}-{project}", "step", what, inputs

    splits = {"train": _ORACLE_TRAIN, "valid": _ORACLE_VALID, "test": _ORACLE_TEST}
    yield "ranks", "ranks", "No two scores are the same.", large | splits
    integers = _oracle_model(name, 21, 8, 2, 2, 2)["parameters"]
    integers = {key: np.sign(value) * (np.abs(value) > 0.6) for key, value in integers.items()}
    integers["entity"][[1, 6]] = integers["entity"][2]
    if name == "ermlp":
        integers["hidden"][...] = [[1, 0], [0, 1], [1, 1], [-1, 0], [0, -1], [1, 0]]
        integers["output"][...] = [2, 0]  # one term: the same sum in every order
    integers = {key: (value + 0.0).tolist() for key, value in integers.items()}
    what = "Integer parameters, so that equal scores are exactly equal; entities 1, 2 and 6 have the same row."
    yield "ranks-ties", "ranks", what, {"model": name, "parameters": integers, **splits}
