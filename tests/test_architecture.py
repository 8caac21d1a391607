"""The rooms and what each may import (docs/ARCHITECTURE.md): one way, in no circle."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import cardkge

ROOT = Path(cardkge.__file__).resolve().parent
FILES = [ROOT / "cardkge.py", ROOT / "kernels.py", ROOT / "cli.py", *sorted((ROOT / "cardkge_tools").rglob("*.py"))]
LAZY = {"cli", "cardkge_tools.shell.options"}  # whose help needs no NumPy: they import rooms inside functions


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FOLDERS = ("definitions", "engine", "shell", "graph", "answers", "experiments")  # one floor each, from below


def floor(name):
    """0 the ground; then a floor for each folder of cardkge_tools; at the top the commands."""
    if name in ("cardkge", "kernels"):
        return 0
    return len(FOLDERS) + 1 if name == "cli" else 1 + FOLDERS.index(name.split(".")[1])


OURS = {module_name(path): path for path in FILES}


def imports(path):
    """(imported module, whether inside a function) for each import of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(node) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for node in ast.walk(f)}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [part if part in OURS else node.module for part in parts]
        for name in names:
            yield name, id(node) in inside


def graph():
    """module -> the modules of ours that it imports, anywhere in it."""
    return {name: {other for other, _ in imports(path) if other in OURS} - {name} for name, path in OURS.items()}


def test_no_import_goes_up():
    for name, others in graph().items():
        if name == "cardkge_tools":
            continue
        upward = [other for other in others - {"cardkge_tools"} if floor(other) > floor(name)]
        assert not upward, f"{name} imports {upward}"


def test_there_is_no_circle():
    order = list(graphlib.TopologicalSorter(graph()).static_order())  # CycleError names the circle
    assert len(order) == len(OURS) and order[-1] == "cli"


def test_a_circle_and_an_upward_import_would_be_found():
    with pytest.raises(graphlib.CycleError):
        list(
            graphlib.TopologicalSorter(
                graph() | {"cardkge_tools.shell.files": {"cardkge_tools.answers.runs"}}
            ).static_order()
        )
    assert floor("cardkge_tools.answers.runs") > floor("cardkge_tools.engine.ranking") > floor("kernels") < floor("cli")


def test_the_ground_stands_on_numpy_alone():
    standard = sys.stdlib_module_names
    for name, allowed in (("cardkge", {"numpy"}), ("kernels", {"numpy", "numba", "llvmlite"})):
        found = {other.partition(".")[0] for other, _ in imports(OURS[name])} - standard
        assert found == allowed


def test_kernels_stand_in_one_file():
    """Numba keeps its files beside the source, where pip does not remove them (docs/ARCHITECTURE.md)."""
    found = [path.name for path in FILES if "@compiled\n" in path.read_text(encoding="utf-8")]
    assert found == ["kernels.py"]


def test_no_import_of_ours_hides_in_a_function():
    hidden = {name for name, path in OURS.items() for other, inside in imports(path) if inside and other in OURS}
    assert hidden <= LAZY


def test_the_rooms_do_not_need_the_commands():
    for name, others in graph().items():
        assert "cli" not in others, name


def test_the_face_hands_on_what_the_rooms_have():
    """Each name of the table is found, in the room that it names; and dir() shows it."""
    for name, room in cardkge._ROOM_OF.items():
        assert getattr(getattr(cardkge, name), "__module__", room) == room, name
        assert name in dir(cardkge)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cardkge.nothing


def test_importing_the_mathematics_brings_numpy_and_nothing_more():
    code = "import sys, cardkge; print([m for m in ('numba', 'click', 'kernels', 'cardkge_tools') if m in sys.modules])"
    found = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert found == "[]\n"


def test_no_function_is_long():
    """Some 60 lines, docstring and signature included."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                lines = node.end_lineno - node.lineno + 1
                assert lines <= 70, f"{path.name}: {node.name} has {lines} lines"
