"""Models of one's own: a class in a file, named PATH.py:CLASS on the command line, checked before it is trusted.

A class that has been loaded stands in `cardkge.MODELS` under ":CLASS", which is also what the settings of its run say:
a run folder never names a file to execute, and is opened only where the class has been loaded before.
"""

import contextlib
import os
import traceback
import types

import numpy as np

from cardkge import MODELS, CardkgeError, Model

METHODS = ("phi", "d_phi", "query_tails", "query_heads", "match")  # what a subclass of Model gives
SIZES = 5, 2, 4  # entities, relations and dim of the model that a class is tried with


def use_model(name):
    """Load the class that PATH.py:CLASS names, executing that file, check it, and make it a model: returns ":CLASS",
    its name in settings. CardkgeError, one line, for whatever is wrong with file or class."""
    path, separator, class_name = name.rpartition(":")
    if not separator or not path.endswith(".py") or not class_name.isidentifier():
        raise CardkgeError(
            f"{name!r} names no class in a file: expected PATH.py:CLASS, such as models/transe.py:TransE"
        )
    found = getattr(run_file(path), class_name, None)
    if found is None:
        raise CardkgeError(f"{path}: it has no class {class_name}")
    check_class(found, f"{path}: {class_name}")
    MODELS[f":{class_name}"] = found
    return f":{class_name}"


def run_file(path):
    """The module that a file makes; CardkgeError with the line where it fails."""
    if not os.path.isfile(path):
        raise CardkgeError(f"{path}: no such file; --model takes distmult, complex, ermlp or PATH.py:CLASS")
    module = types.ModuleType(os.path.basename(path).removesuffix(".py"))
    module.__file__ = os.path.abspath(path)
    with told_apart(path), open(path, "rb") as file:  # not by the import system: its cache may be older than the file
        exec(compile(file.read(), path, "exec"), vars(module))
    return module


@contextlib.contextmanager
def told_apart(where):
    """Whatever the user's own code raises as a CardkgeError: where, in which line, and what."""
    try:
        yield
    except CardkgeError as error:
        raise CardkgeError(f"{where}: {error}") from error
    except Exception as error:
        line = ""
        if isinstance(error, SyntaxError):
            line = f" in line {error.lineno}"
        else:
            file = where.partition(": ")[0]
            lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename.endswith(file)]
            line = f" in line {lines[-1]}" if lines else ""
        raise CardkgeError(f"{where}: {type(error).__name__}{line}: {' '.join(str(error).split())}") from error


def check_class(found, where):
    """CardkgeError unless `found` is a subclass of Model with the five methods, whose results have the right shapes."""
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise CardkgeError(f"{where} is no subclass of cardkge.Model; write class NAME(cardkge.Model)")
    missing = [name for name in METHODS if not callable(getattr(found, name, None))]
    if missing:
        raise CardkgeError(f"{where} has no method {', '.join(missing)}; a model needs {', '.join(METHODS)}")
    with told_apart(where):
        model = found(SIZES[0], SIZES[1], dim=SIZES[2], seed=0, dtype="float64")
        check_tables(model, where)
    check_shapes(model, where)


def check_tables(model, where):
    """CardkgeError unless params are those of `shapes`, with a table of entities and one of relations."""
    for name, count in (("entity", model.n_entities), ("relation", model.n_relations)):
        shape = model.shapes.get(name, ())
        if len(shape) != 2 or shape[0] != count:
            raise CardkgeError(f"shapes[{name!r}] is {shape}, expected (number of {name} rows, row length)")
    found = {name: np.shape(array) for name, array in model.params.items()}
    if found != dict(model.shapes):
        raise CardkgeError(f"params have the shapes {found}, `shapes` says {dict(model.shapes)}")


def check_shapes(model, where):
    """CardkgeError that names the first of the methods whose result has another shape than it should have."""
    n, m = 3, model.n_entities
    ids = np.arange(n) % SIZES[1]
    e = model.encode(*model.rows(np.arange(n), ids, np.arange(n)))
    _, _, everyone = model.encode(*model.rows(np.arange(n), ids), model.params["entity"])
    (h, r, t), one = e, e[1][:1]

    def call(name, *arguments):
        with told_apart(f"{where}.{name}"):
            return getattr(model, name)(*arguments)

    def expect(name, got, shape, of):
        if np.shape(got) != shape:
            raise CardkgeError(f"{where}.{name} of {of} has shape {np.shape(got)}, expected {shape}")

    rows = f"rows {h.shape}, {r.shape}, {t.shape}"
    expect("phi", call("phi", h, r, t), (n,), rows)
    for name, given, other in (("query_tails", (h, r), everyone), ("query_heads", (r, t), everyone)):
        query = call(name, *given)
        if np.ndim(query) != 2 or len(query) != n:
            raise CardkgeError(f"{where}.{name} of {rows} has shape {np.shape(query)}, expected ({n}, row length)")
        expect("match", call("match", query, other), (n, m), f"queries {np.shape(query)} with {m} rows")
    expect("query_tails", call("query_tails", h, one), np.shape(call("query_tails", h, r)), "one relation row")
    for of, given, upstream in (
        (rows, (h, r, t), np.ones(n)),
        ("one head, one relation and many tails", (h[0], r[0], everyone), np.ones(m)),
    ):
        d_rows = call("d_phi", *given, upstream, model.zero_gradients())
        if not isinstance(d_rows, tuple) or len(d_rows) != 3:
            raise CardkgeError(f"{where}.d_phi gives {type(d_rows).__name__}, expected three arrays: d_h, d_r, d_t")
        for letter, d, row in zip("hrt", d_rows, (h, r, t)):
            expect("d_phi", d, (len(upstream), row.shape[-1]), f"{of}: d_{letter}")
