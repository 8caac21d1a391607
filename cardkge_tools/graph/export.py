"""`export`: the embeddings of a run in formats that other programs read. docs/FORMATS.md describes the files."""

import io
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


def write_rows(file, names, rows, separator):
    """Lines of a name (unless names is None) and its row, with all digits of the numbers, between separators."""
    for start in range(0, len(rows), LINES):
        part = rows[start : start + LINES]
        texts = [separator.join(map(repr, row)) for row in _shortest(part)]
        if names is not None:
            texts = [name + separator + text for name, text in zip(names[start : start + LINES], texts)]
        file.write("".join(text + "\n" for text in texts).encode())


def _shortest(rows):
    """Rows as lists of Python floats whose repr has the fewest digits that give the number back in its own dtype."""
    if rows.dtype == np.float64:
        return rows.tolist()
    return [[float(str(number)) for number in row] for row in rows]


def tables(run):
    """(model, {"entity": (names, rows), "relation": (names, rows)}) of a run; `run.best_model()` is what is exported.

    Rows are those of the parameters: of ComplEx real parts, then imaginary parts. With reciprocal relations there are
    2 R relation rows; those of (?, r, t) are named r and `^` before it.
    """
    model = run.best_model()
    relations, rows = list(run.relations), model.params["relation"]
    if len(rows) == 2 * len(relations):
        relations += [f"^{name}" for name in relations]
    return model, {"entity": (run.entities, model.params["entity"]), "relation": (relations, rows)}


def export(run, form, path):
    """Write the embeddings of a run; returns the paths of the files.

    word2vec: text, `N k`, then a line for each entity. tsv: a folder with entities.tsv and relations.tsv, a name
    and its row a line. npz: entity and relation names and every parameter, in one file without pickle. tensorboard: a
    folder with tensors.tsv and metadata.tsv of the entities, for the embedding projector.
    Raises CardkgeError for another format, and where a file cannot be written.
    """
    if form not in FORMATS:
        raise CardkgeError(f"format {form!r}: expected one of {', '.join(FORMATS)}")
    model, parts = tables(run)
    path = os.fspath(path)
    if form == "npz":
        return [_write_npz(path, model, parts)]
    names, rows = parts["entity"]
    if form == "word2vec":

        def write(file):
            file.write(f"{len(rows)} {rows.shape[1]}\n".encode())
            write_rows(file, [word2vec_name(name) for name in names], rows, " ")

        replace_file(path, write)
        return [path]
    _made(path)
    written = []
    if form == "tsv":
        for what, (of_part, table) in parts.items():
            written.append(os.path.join(path, {"entity": "entities.tsv", "relation": "relations.tsv"}[what]))
            replace_file(written[-1], lambda file: write_rows(file, of_part, table, "\t"))
        return written
    for name, content in (
        ("tensors.tsv", lambda file: write_rows(file, None, rows, "\t")),
        ("metadata.tsv", _lines(names)),
    ):
        written.append(os.path.join(path, name))
        replace_file(written[-1], content)
    return written


def _lines(names):
    return lambda file: file.write("".join(name + "\n" for name in names).encode())


def _made(folder):
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise CardkgeError(f"cannot make {folder}: {error.strerror or error}") from error


def _write_npz(path, model, parts):
    """Names as UTF-8 bytes with LF after each, so that no letter is lost and no pickle is needed."""
    arrays = {
        f"{what}_names": np.frombuffer("".join(n + "\n" for n in names).encode(), np.uint8)
        for what, (names, _) in parts.items()
    }
    arrays |= model.params
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    replace_file(path, lambda file: file.write(buffer.getbuffer()))
    return path
