"""The house has a budget: `pytest tests/test_budget.py -s` prints the sums. These numbers stand here alone; raising one
takes a line in docs/ARCHITECTURE.md, under "Budget", that says what the lines bought."""

import ast

import pytest
from test_architecture import FILES, ROOT, module_name

LINES = {"cardkge.py": 1000, "kernels.py": 1055, "cli.py": 640}  # files at the top
ROOM, ROOMS = 450, 41  # lines of a room at most, and how many rooms
PRODUCT = 15_490  # cardkge.py, kernels.py, cli.py and cardkge_tools together
DOCS = 1565  # lines of docs/*.md, the walkthrough apart
ARGUMENTS = 7  # of a function, outside kernels and click commands


def lines(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def rooms():
    return [path for path in FILES if path.parent.name not in (ROOT.name, "cardkge_tools") and path.stem != "__init__"]


def docs():
    return [path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "WALKTHROUGH.md"]


def test_the_files_at_the_top_can_be_read_in_an_evening():
    for name, most in LINES.items():
        found = lines(ROOT / name)
        print(f"{name}: {found} lines of {most}")
        assert found <= most, name


def test_rooms_are_few_and_small():
    print(f"{len(rooms())} rooms of {ROOMS}, the largest {max(map(lines, rooms()))} lines of {ROOM}")
    assert [path.name for path in rooms() if lines(path) > ROOM] == []
    assert len(rooms()) <= ROOMS


@pytest.mark.parametrize(("what", "paths", "most"), [("product", FILES, PRODUCT), ("docs", docs(), DOCS)])
def test_the_whole_is_within_its_budget(what, paths, most):
    found = sum(map(lines, paths))
    for folder in sorted({path.parent for path in paths}):
        print(f"  {folder.relative_to(ROOT)}: {sum(lines(path) for path in paths if path.parent == folder):,}")
    print(f"{what}: {found:,} lines of {most:,}")
    assert found <= most


def arguments(function):
    """How many arguments it takes, self and cls apart."""
    names = [a.arg for a in function.args.posonlyargs + function.args.args + function.args.kwonlyargs]
    return len([name for name in names if name not in ("self", "cls")])


def test_no_function_takes_many_arguments():
    """A click command has an argument for each of its options."""
    found = []
    for path in FILES:
        if path.name in ("kernels.py", "cli.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and arguments(node) > ARGUMENTS:
                found.append(f"{module_name(path)}.{node.name}: {arguments(node)}")
    assert found == []


def test_a_function_with_eight_arguments_would_be_found():
    (function,) = ast.parse("def f(self, a, b, c, d, /, e, f, *, g, h): ...").body
    assert arguments(function) == 8
