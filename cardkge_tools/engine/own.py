"""A user's own model: a class in a file, PATH.py:CLASS on the command line, which is checked before it is used.

A loaded class stands in `cardkge.MODELS` under ":CLASS", the name in its run's settings too: a run folder never names a
file to execute, and is opened only after the class has been loaded. This room also checks any model: its gradients
against central differences, its ways of scoring against each other."""

import contextlib
import itertools
import os
import traceback
import types

import numpy as np

from cardkge import MODELS, CardkgeError, Model, cardinality_penalty, logistic_loss

METHODS = ("phi", "d_phi", "query_tails", "query_heads", "match")  # the methods that a subclass of Model defines
TRIALS = ((5, 2, 4), "float64"), ((6, 3, 4), "float32")  # (entities, relations, dim), dtype of trial models
FILES = set()  # the executed files, as the user named them
LOADED = {}  # ":CLASS" -> PATH.py:CLASS with an absolute path, for other processes


def use_model(name):
    """Load the class that PATH.py:CLASS names, executing that file, check it, and make it a model: returns ":CLASS",
    its name in settings. CardkgeError, one line, for any fault of file or class."""
    path, separator, class_name = name.rpartition(":")
    if not separator or not path.endswith(".py") or not class_name.isidentifier():
        expected = "PATH.py:CLASS, such as models/transe.py:TransE"
        raise CardkgeError(f"{name!r} names no class in a file: expected {expected}")
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
    with told_apart(path), open(path, "rb") as file:  # the cache of the import system may be older than the file
        exec(compile(file.read(), path, "exec"), vars(module))
    return module


@contextlib.contextmanager
def told_apart(where):
    """Turns an exception of the user's own code into a CardkgeError that names file, line and fault."""
    try:
        yield
    except CardkgeError as error:
        raise CardkgeError(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:
        lines = [line for file, line, _ in own_frames(error)]
        raise CardkgeError(f"{where}: {one_line(error, lines[-1] if lines else None)}") from error


def own_frames(error):
    """[(file, line, method; None outside methods)] of the code of FILES that raised."""
    found = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_filename in FILES:
            owner = f"{type(frame.f_locals['self']).__name__}." if "self" in frame.f_locals else ""
            found.append((code.co_filename, line, None if code.co_name == "<module>" else owner + code.co_name))
    return found


def one_line(error, line):
    """One line on the exception: its kind, its line and its message."""
    words = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        line, words = error.lineno, error.msg
    elif isinstance(error, SystemExit):
        words = "the program must not end here"
    return type(error).__name__ + (f" in line {line}" if line else "") + (f": {words}" if words else "")


def fault_of(error):
    """The line for an exception from the code of a user's own class; None for any other exception."""
    if frames := own_frames(error):
        file, line, method = frames[-1]
        return f"{file}: {method or 'the file'}: {one_line(error, line)}"
    return None


@np.errstate(all="ignore")
def check_class(found, where):
    """CardkgeError unless `found` is a Model whose five methods give finite arrays of the right shapes and dtypes."""
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
    """CardkgeError unless params are arrays of the dtype with the `shapes`, a row for each entity and relation."""
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
    """None for a finite array of this shape and dtype; for any other result a text that describes it."""
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
    """CardkgeError that names the first method whose result has a wrong shape or dtype, or is not finite."""
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


STEP = 1e-4  # of a difference, whose error is of the order STEP^4
RTOL, ATOL = 1e-6, 1e-9  # a gradient may be off by ATOL max(1, |f|) + RTOL |slope|
SCORES_RTOL = 1e-9  # two ways of scoring may differ by this part of the largest score


def slope(function, array, place=..., direction=1.0):
    """d function() / d array[place], along `direction` where the place holds more than a number, from four values:

        (8 (f(x + e) - f(x - e)) - (f(x + 2e) - f(x - 2e))) / 12 e

    The array is float64; it is moved in place and restored."""
    kept, values = np.copy(array[place]), []
    for move in (STEP, -STEP, 2 * STEP, -2 * STEP):
        array[place] = kept + move * direction
        values.append(float(function()))
    array[place] = kept
    return (8 * (values[0] - values[1]) - (values[2] - values[3])) / (12 * STEP)


def wrong_gradients(function, params, gradients):
    """[(name, index, given, expected)] of every coordinate whose gradient is wrong for the function; params float64."""
    wrong, scale = [], max(1.0, abs(float(function())))
    for name, array in params.items():
        for place in np.ndindex(array.shape):
            given, expected = float(gradients[name][place]), slope(function, array, place)
            if not abs(given - expected) <= ATOL * scale + RTOL * abs(expected):  # a NaN is wrong
                wrong.append((name, place, given, expected))
    return wrong


def trial_model(name, seed=0):
    """A small float64 model of the kind, and twelve triples without loops, some rows repeated: (model, h, r, t)."""
    model = MODELS[name](6, 3, dim=4, seed=seed, dtype="float64")
    rng = np.random.default_rng(seed)
    for array in model.params.values():  # away from values that an initialisation may repeat, such as zeros
        array += 0.3 * rng.normal(size=array.shape)
    h, r = rng.integers(6, size=12), rng.integers(3, size=12)
    return model, h, r, (h + rng.integers(1, 6, size=12)) % 6


def check_scoring(name):
    """A sentence about the first difference between phi, score_tails and score_heads, or None."""
    model, h, r, t = trial_model(name)
    scores, by_tail, by_head = model.score(h, r, t), model.score_tails(h, r), model.score_heads(r, t)
    allowed = SCORES_RTOL * max(1.0, float(np.abs(scores).max()))
    for i, e in itertools.product(range(len(h)), range(model.n_entities)):
        for way, found, triple in (
            ("match(query_tails(h, r), t)", by_tail[i, e], (h[i], r[i], e)),
            ("match(query_heads(r, t), h)", by_head[i, e], (e, r[i], t[i])),
        ):
            expected = float(model.score(*np.array([triple]).T)[0])
            if not abs(found - expected) <= allowed:
                ids = tuple(int(x) for x in triple)
                return f"{way} gives {found:.9g} for the triple {ids}, phi gives {expected:.9g}"
    return None


def check_gradients(name, what):
    """A sentence about the first wrong gradient, or None; what: "loss" (logistic, of twelve triples) or "penalty" (of
    G_hr, by d_pairs)."""
    model, h, r, t = trial_model(name)
    if what == "loss":
        labels = np.where(np.arange(len(h)) % 3, -1, 1)
        gradients = model.gradients(h, r, t, logistic_loss(model.score(h, r, t), labels)[1])

        def function():
            return logistic_loss(model.score(h, r, t), labels)[0]
    else:
        # X lies above a bound of 0, and no pair is (e, r, e), where a norm may have a kink
        given = model, np.zeros((3, 2)), 1, [0, 2], [1, 3, 4], [1.0, 2.0, 0.5]
        gradients = cardinality_penalty(*given)[1]

        def function():
            return cardinality_penalty(*given)[0]

    for key, array in model.params.items():
        if gradients[key].shape != array.shape:
            return f"the gradient of {key} has shape {gradients[key].shape}, {key} has {array.shape}"
    wrong = wrong_gradients(function, model.params, gradients)
    if not wrong:
        return None
    key, place, given, expected = wrong[0]
    total = sum(array.size for array in model.params.values())
    return f"d {key}{list(place)} is {given:.9g}, differences give {expected:.9g} ({len(wrong)} of {total} are wrong)"


def check_model(name):
    """Yields (the name of a check, None or the fault) for a model of MODELS."""
    parts = {
        "the three ways of scoring agree": lambda: check_scoring(name),
        "d_phi: gradients of the loss": lambda: check_gradients(name, "loss"),
        "d_pairs: gradients of the regulariser": lambda: check_gradients(name, "penalty"),
    }
    for what, check in parts.items():
        try:
            yield what, check()
        except Exception as error:
            yield what, fault_of(error) or f"{type(error).__name__}: {' '.join(str(error).split())}"


def trusted_model(name):
    """`use_model` for training: CardkgeError also where a check fails."""
    found, path = use_model(name), name.rpartition(":")[0]
    for what, fault in check_model(found):
        if fault:
            method, _, text = what.partition(": ")
            where = f"{path}: {found[1:]}{f'.{method}, {text}' if text else ''}: "
            raise CardkgeError(fault if fault.startswith(path) else where + fault)
    return found
