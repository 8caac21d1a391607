"""Reference values for other implementations (docs/ORACLE.md), made by data/make_oracle.py: read, copied, compared."""

import difflib
import gzip
import json
import math
import zlib

import numpy as np

from cardkge import CardkgeError
from cardkge_tools.shell.download import PROJECT_DATA
from cardkge_tools.shell.files import is_packed, replace_file

ORACLE_FORMAT, ORACLE_VERSION = "cardkge-oracle", 5
ORACLE_RTOL, ORACLE_ATOL = 1e-9, 1e-12


def oracle_file(version=ORACLE_VERSION):
    """The path of the reference values of a version; CardkgeError for an unknown one."""
    if version not in range(1, ORACLE_VERSION + 1):
        raise CardkgeError(f"oracle: version {version}; this program has the values of versions 1 to {ORACLE_VERSION}")
    return PROJECT_DATA / f"oracle-{version}.json"


def oracle(version=ORACLE_VERSION):
    """The reference values: {"format", "version", "tolerance", "cases"}, of numbers, lists and dicts alone.

    A case is {"name", "kind", "what", "inputs", "outputs"}. An upper bound of None is infinity.
    """
    return _read_oracle(oracle_file(version))


def write_oracle(path, version=ORACLE_VERSION):
    """Copies the reference values of a version to `path`, packed by gzip where that ends in .gz."""
    source = oracle_file(version)
    try:
        content = source.read_bytes()
    except OSError as error:
        raise CardkgeError(f"{source}: cannot be read ({error.strerror}); install cardkge anew") from error
    replace_file(path, lambda file: file.write(content))


def check_oracle(path, rtol=ORACLE_RTOL, atol=ORACLE_ATOL):
    """Compares the outputs in a file with the oracle's structure with ours of its version, value by value.

    The file may leave out cases, and in a case "kind", "what", "inputs" and some outputs. A value agrees where
    |found - expected| <= atol + rtol |expected|. Returns (case name, verdict, text) for each of our cases, in order:
    verdict "ok", "skipped" (not in the file) or "differs", with the first value that does. CardkgeError for a file that
    is not JSON, has another structure or version, an unknown case or output, or nothing to compare.
    """
    given = _read_oracle(path)
    cases = {case["name"]: case for case in oracle(given["version"])["cases"]}
    found = {}
    for case in given["cases"]:
        name = case["name"]
        _known_name(path, "case", name, cases)
        if name in found:
            raise CardkgeError(f"{path}: case {name!r} stands there twice; keep one of them")
        for key in case["outputs"]:
            _known_name(path, f"output of {name}", key, cases[name]["outputs"])
        found[name] = case["outputs"]
    if not any(found.values()):
        raise CardkgeError(f"{path}: no case has outputs, so there is nothing to compare")
    return [(name, *_compare(case["outputs"], found.get(name), rtol, atol)) for name, case in cases.items()]


def _compare(expected, found, rtol, atol):
    """Verdict and text of one case."""
    if not found:
        return "skipped", ""
    missing = [key for key in expected if key not in found]
    for key in expected:
        fault = None if key in missing else difference(found[key], expected[key], rtol, atol)
        if fault:
            return "differs", key + fault
    return "ok", f"without {', '.join(missing)}" if missing else ""


def difference(found, expected, rtol, atol):
    """None where two nested lists of numbers agree, else where they first differ, and by how much."""
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
    """The content of a file with the oracle's structure and a known version, or CardkgeError."""
    try:
        with (gzip.open if is_packed(path) else open)(path, "rt", encoding="utf-8-sig") as file:
            content = json.load(file)
    except (OSError, EOFError, zlib.error) as error:  # EOFError, zlib: a damaged .gz
        raise CardkgeError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    except (ValueError, RecursionError) as error:
        raise CardkgeError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != ORACLE_FORMAT:
        raise CardkgeError(f'{path}: expected an object with "format": "{ORACLE_FORMAT}" (docs/ORACLE.md)')
    if type(content.get("version")) is not int or not 1 <= content["version"] <= ORACLE_VERSION:
        found = json.dumps(content.get("version"))[:40]
        raise CardkgeError(f"{path}: version {found}; this program has the values of versions 1 to {ORACLE_VERSION}")
    cases = content.get("cases")
    if not isinstance(cases, list):
        raise CardkgeError(f'{path}: expected a list "cases"')
    for i, case in enumerate(cases):
        if not (isinstance(case, dict) and isinstance(case.get("name"), str) and isinstance(case.get("outputs"), dict)):
            raise CardkgeError(f'{path}: cases[{i}]: expected an object with a "name" and an object "outputs"')
    return content


def _known_name(path, what, name, names):
    """CardkgeError, with the nearest name, unless the name is among the names."""
    if name not in names:
        near = difflib.get_close_matches(name, names, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {len(names)}, such as {next(iter(names))!r}"
        raise CardkgeError(f"{path}: unknown {what} {name!r}; {hint}")
