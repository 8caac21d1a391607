"""Cuts the exercises out of their solutions: course/solutions/exercise_N.py -> course/exercise_N.py.

    python course/stubs.py [--out FOLDER] [--force]

Of each function between "your part" and "the tests" the body is taken away, the docstring stays; functions whose
docstring begins with "Given" stay whole. All else, the question and the tests, is the same in both. A file that is
there and says something else (somebody may have solved it) is kept unless --force is given.
"""

import argparse
import ast
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BEGIN, END = "# --- your part\n", "# --- the tests\n"


def stub(solution):
    """The text of an exercise, from the text of its solution."""
    head, part, tests = solution[: solution.index(BEGIN)], solution[solution.index(BEGIN) :], ""
    part, tests = part[: part.index(END)], part[part.index(END) :]
    lines, first = part.splitlines(keepends=True), head.count("\n")
    functions = [node for node in ast.walk(ast.parse(head + part)) if isinstance(node, ast.FunctionDef)]
    for function in sorted(functions, key=lambda node: -node.lineno):  # from the end, so that line numbers stay true
        docstring = ast.get_docstring(function)
        if function.lineno <= first or (docstring or "").startswith("Given"):
            continue
        start = function.body[1 if docstring else 0].lineno - 1 - first
        indent = " " * function.body[0].col_offset
        lines[start : function.end_lineno - first] = [f'{indent}raise NotImplementedError("{function.name}")\n']
    return head + "".join(lines) + tests


def main():
    parser = argparse.ArgumentParser(description="Cuts the exercises out of their solutions.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the exercises (default: course)")
    parser.add_argument("--force", action="store_true", help="write over exercises that somebody has changed")
    arguments = parser.parse_args()
    for path in sorted((HERE / "solutions").glob("exercise_*.py")):
        text, target = stub(path.read_text(encoding="utf-8")), arguments.out / path.name
        if target.exists() and target.read_text(encoding="utf-8") != text and not arguments.force:
            sys.exit(f"error: {target} is there and is not the stub; --force writes over it")
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
