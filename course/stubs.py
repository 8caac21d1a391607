"""Exercises and answers: course/exercise_N.py has question, stubs and tests, course/solutions/exercise_N.py the answer.

    python course/stubs.py [--out FOLDER] [--force]

writes each exercise with the stubs of its answer: of each function between "your part" and "the tests" the body is
taken away, the docstring stays; functions whose docstring begins with "Given" stay whole. A file that is there and says
something else (somebody may have solved it) is kept unless --force is given.
"""

import argparse
import ast
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BEGIN, END = "# --- your part\n", "# --- the tests\n"


def with_part(exercise, part):
    """The text of an exercise, with what stands between "your part" and "the tests" in the text `part`."""
    return (
        exercise[: exercise.index(BEGIN)] + part[part.index(BEGIN) : part.index(END)] + exercise[exercise.index(END) :]
    )


def stub(answer):
    """The text of an answer without the bodies of its functions."""
    lines, first = answer.splitlines(keepends=True), answer[: answer.index(BEGIN)].count("\n")
    functions = [node for node in ast.walk(ast.parse(answer)) if isinstance(node, ast.FunctionDef)]
    for function in sorted(functions, key=lambda node: -node.lineno):  # from the end, so that line numbers stay true
        docstring = ast.get_docstring(function)
        if function.lineno <= first or (docstring or "").startswith("Given"):
            continue
        start = function.body[1 if docstring else 0].lineno - 1
        indent = " " * function.body[0].col_offset
        lines[start : function.end_lineno] = [f'{indent}raise NotImplementedError("{function.name}")\n']
    return "".join(lines)


def main():
    parser = argparse.ArgumentParser(description="Writes the exercises with the stubs of their answers.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the exercises (default: course)")
    parser.add_argument("--force", action="store_true", help="write over exercises that somebody has changed")
    arguments = parser.parse_args()
    for path in sorted((HERE / "solutions").glob("exercise_*.py")):
        exercise, target = (HERE / path.name).read_text(encoding="utf-8"), arguments.out / path.name
        text = with_part(exercise, stub(path.read_text(encoding="utf-8")))
        if target.exists() and target.read_text(encoding="utf-8") != text and not arguments.force:
            sys.exit(f"error: {target} is there and is not the stub; --force writes over it")
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
