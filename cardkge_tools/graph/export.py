"""`export`: the embeddings of a run in formats that other programs read. docs/FORMATS.md describes the files."""

import itertools
import os
import re

import numpy as np

from cardkge import CardkgeError
from cardkge_tools.shell.files import replace_file

FORMATS = ("word2vec", "tsv", "npz", "tensorboard")
LINES = 1 << 12  # rows turned to text at a time


def word2vec_name(name):
    """A name without white space: `%` is `%25`, a space `%20`, other white space likewise, by its UTF-8 bytes."""
    return re.sub(r"[%\s\x1c-\x1f\x85]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


def _rows(names, rows, separator="\t"):
    """Yield, in blocks, a line for each row: its name, if there are names, and its numbers with all their digits."""
    for start in range(0, len(rows), LINES):
        part = rows[start : start + LINES]
        # of a float32 the fewest digits that give it back, not those of the float64 equal to it
        numbers = part.tolist() if part.dtype == np.float64 else [[float(str(each)) for each in row] for row in part]
        texts = [separator.join(map(repr, row)) for row in numbers]
        if names is not None:
            texts = [name + separator + text for name, text in zip(names[start : start + LINES], texts)]
        yield _names(texts)


def _names(names):
    """A line for each name, as bytes."""
    return "".join(name + "\n" for name in names).encode()


def export(run, form, path):
    """Write the embeddings of a run; returns the paths of the files.

    word2vec: text, `N k`, then a line for each entity. tsv: a folder with entities.tsv and relations.tsv, a name and
    its row a line. npz: the names of entities and relations as bytes, an LF after each, and every parameter.
    tensorboard: a folder with tensors.tsv and metadata.tsv of the entities, for the embedding projector.
    A row of ComplEx has its real parts first, then the imaginary parts. Of 2 R reciprocal relation rows, those of
    (?, r, t) have the name ^r.
    Raises CardkgeError for another format, and where a file cannot be written.
    """
    if form not in FORMATS:
        raise CardkgeError(f"format {form!r}: expected one of {', '.join(FORMATS)}")
    params, path = run.best_model().params, os.fspath(path)
    entities, relations, rows = list(run.entities), list(run.relations), params["entity"]
    if len(params["relation"]) == 2 * len(relations):
        relations += [f"^{name}" for name in relations]
    if form == "npz":
        names = {"entity_names": _names(entities), "relation_names": _names(relations)}
        arrays = {name: np.frombuffer(text, np.uint8) for name, text in names.items()} | params
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
    for name, blocks in files.items():
        replace_file(name, lambda file, blocks=blocks: file.writelines(blocks))
    return list(files)
