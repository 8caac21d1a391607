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
TRIALS = ((5, 2, 4), "float64"), ((6, 3, 4), "float32")  # entities, relations, dim of what a class is tried as
FILES = set()  # that have been executed, as they were named
LOADED = {}  # ":CLASS" -> PATH.py:CLASS, the path from the root: what another process has to be told


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
    MODELS[f":{class_name}"], LOADED[f":{class_name}"] = found, f"{os.path.abspath(path)}:{class_name}"
    return f":{class_name}"


def run_file(path):
    """The module that a file makes; CardkgeError with the line where it fails."""
    if not os.path.isfile(path):
        raise CardkgeError(f"{path}: no such file; --model takes distmult, complex, ermlp or PATH.py:CLASS")
    module = types.ModuleType(os.path.basename(path).removesuffix(".py"))
    module.__file__ = os.path.abspath(path)
    FILES.add(path)
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
    except (Exception, SystemExit) as error:
        lines = [line for file, line, _ in own_frames(error)]
        raise CardkgeError(f"{where}: {described(error, lines[-1] if lines else None)}") from error


def own_frames(error):
    """[(file, line, the method, or None at the level of the file)] where the code of FILES was when it raised."""
    found = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_filename in FILES:
            owner = f"{type(frame.f_locals['self']).__name__}." if "self" in frame.f_locals else ""
            found.append((code.co_filename, line, None if code.co_name == "<module>" else owner + code.co_name))
    return found


def described(error, line):
    """What was raised, in which line, and why: on one line."""
    words = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        line, words = error.lineno, error.msg
    elif isinstance(error, SystemExit):
        words = "the program must not end here"
    return type(error).__name__ + (f" in line {line}" if line else "") + (f": {words}" if words else "")


def fault_of(error):
    """The line for an exception that left the code of a class of one's own; None for any other."""
    if frames := own_frames(error):
        file, line, method = frames[-1]
        return f"{file}: {method or 'the file'}: {described(error, line)}"
    return None


@np.errstate(all="ignore")
def check_class(found, where):
    """CardkgeError unless `found` is a subclass of Model with the five methods, whose results are finite and have the
    right shapes and dtypes."""
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise CardkgeError(f"{where} is no subclass of cardkge.Model; write class NAME(cardkge.Model)")
    missing = [name for name in METHODS if not callable(getattr(found, name, None))]
    if missing:
        raise CardkgeError(f"{where} has no method {', '.join(missing)}; a model needs {', '.join(METHODS)}")
    for (n_entities, n_relations, dim), dtype in TRIALS:
        call = f"({n_entities}, {n_relations}, dim={dim}, seed=0, dtype={dtype!r})"
        with told_apart(f"{where}{call}, as every model is made"):
            model = found(n_entities, n_relations, dim=dim, seed=0, dtype=dtype)
        with told_apart(where):
            check_tables(model, (n_entities, n_relations), dtype)
        check_results(model, where)


def check_tables(model, sizes, dtype):
    """CardkgeError unless params are arrays of the dtype, as `shapes` has them, a row for each entity and relation."""
    missing = [name for name in ("params", "n_entities", "n_relations", "dim", "dtype") if not hasattr(model, name)]
    if missing:
        raise CardkgeError(f"it has no {', '.join(missing)}; call super().__init__ in __init__")
    for name, count in zip(("entity", "relation"), sizes):
        shape = model.shapes.get(name, ())
        if len(shape) != 2 or shape[0] != count:
            raise CardkgeError(f"shapes[{name!r}] is {shape}, expected ({count}, row length) for {count} of them")
    found = {name: np.shape(array) for name, array in model.params.items()}
    if found != dict(model.shapes):
        raise CardkgeError(f"params have the shapes {found}, `shapes` says {dict(model.shapes)}")
    for name, array in model.params.items():
        fault = unlike(array, np.shape(array), dtype)
        if fault:
            raise CardkgeError(f"params[{name!r}] {fault}, expected an array of {dtype}")


def unlike(got, shape, dtype):
    """What a result is, where it is not a finite array of this shape and dtype; else None."""
    if not isinstance(got, (np.ndarray, np.generic)):
        return f"is {'None' if got is None else 'a ' + type(got).__name__}"
    if got.shape != shape:
        return f"has shape {got.shape}"
    if got.dtype != dtype:
        return f"has dtype {got.dtype}"
    if not np.isfinite(got).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(got))[0])
        return f"is {got[place]} at {list(place)}"
    return None


def check_results(model, where):
    """CardkgeError that names the first of the methods whose result has another shape or dtype than it should have, or
    is not finite."""
    n, m, dtype = 3, model.n_entities, model.dtype
    ids = np.arange(n) % model.n_relations

    def call(name, *arguments):
        with told_apart(f"{where}.{name}"):
            return getattr(model, name)(*arguments)

    def expect(name, got, shape, of):
        fault = unlike(got, shape, dtype)
        if fault:
            raise CardkgeError(f"{where}.{name} of {of} {fault}, expected {dtype} of shape {shape}")

    def three(name, got, what):
        if not isinstance(got, tuple) or len(got) != 3:
            raise CardkgeError(f"{where}.{name} gives {type(got).__name__}, expected three arrays: {what}")
        return got

    e = three("encode", call("encode", *model.rows(np.arange(n), ids, np.arange(n))), "h, r, t")
    *_, everyone = call("encode", *model.rows(np.arange(n), ids), model.params["entity"])
    (h, r, t), one = e, e[1][:1]
    rows = f"rows {h.shape}, {r.shape}, {t.shape}"
    expect("phi", call("phi", h, r, t), (n,), rows)
    for name, given, other in (("query_tails", (h, r), everyone), ("query_heads", (r, t), everyone)):
        query = call(name, *given)
        if np.ndim(query) != 2 or len(query) != n:
            raise CardkgeError(f"{where}.{name} of {rows} has shape {np.shape(query)}, expected ({n}, row length)")
        expect("match", call("match", query, other), (n, m), f"queries {np.shape(query)} with {m} rows")
    expect("query_tails", call("query_tails", h, one), np.shape(call("query_tails", h, r)), "one relation row")
    for of, given, upstream in (
        (rows, (h, r, t), np.ones(n, dtype)),
        ("one head, one relation and many tails", (h[0], r[0], everyone), np.ones(m, dtype)),
        ("one head, many relations and one tail", (h[0], r, t[0]), np.ones(n, dtype)),
    ):
        d_rows = three("d_phi", call("d_phi", *given, upstream, model.zero_gradients()), "d_h, d_r, d_t")
        for letter, d, row in zip("hrt", d_rows, (h, r, t)):
            expect("d_phi", d, (len(upstream), row.shape[-1]), f"{of}: d_{letter}")
