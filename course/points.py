"""Points of the exercises: the folder of each student -> a table, one row a student.

    python course/points.py --run handed-in/*    # runs each exercise_N.py, keeps the report beside it as exercise_N.xml
    python course/points.py handed-in/*          # the reports that are there: *.xml, of `pytest --junitxml`

An exercise is ten points, 10 k / n where k of its n tests pass. A file that does not import, or runs for more than
--seconds, has 0; one that was not handed in "-". --run takes from a student's file what stands between "your part"
and "the tests", and the imports above it; all else from the exercise as it was given, so that every student has the
same tests. It executes what students wrote: do that where it can harm nothing. Whatever ends it, Ctrl-C too, ends the
programs that it runs and all that they have started.

What is wrong with a folder is one line on stderr, the others are counted; exit code 1 then.
"""

import argparse
import ast
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from stubs import BEGIN, END

COURSE = Path(__file__).resolve().parent
POINTS = 10
NAMES = [path.stem for path in sorted(COURSE.glob("exercise_*.py"))]


class Fault(Exception):
    """What is wrong with what was handed in: one line."""


def read(path):
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise Fault(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise Fault(f"{path}: not UTF-8 (byte {error.start})") from None


def parts(text, path):
    """The text before, within and after the student's part."""
    for line in (BEGIN, END):
        if text.count(line) != 1:
            raise Fault(f"{path}: {text.count(line)} lines {line.strip()!r}, expected one; put it back")
    begin, end = text.index(BEGIN), text.index(END)
    if end < begin:
        raise Fault(f"{path}: {END.strip()!r} stands before {BEGIN.strip()!r}; put them back")
    return text[:begin], text[begin:end], text[end:]


def exercises(folder):
    """The exercises in a student's folder."""
    if not folder.is_dir():
        raise Fault(f"{folder}: no such folder; give the folder of each student")
    found = [folder / f"{name}.py" for name in NAMES if (folder / f"{name}.py").exists()]
    if not found and not any(folder.glob("*.xml")):
        raise Fault(f"{folder}: no exercise in it; expected {NAMES[0]}.py to {NAMES[-1]}.py")
    return found


def imports(text):
    """The import statements of a program, which a student may have added above the answer."""
    try:
        nodes = ast.parse(text).body
    except SyntaxError:
        return ""
    kept = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return "".join(f"{ast.unparse(node)}\n" for node in kept if getattr(node, "module", "") != "__future__")


def call(command, seconds, **options):
    """Runs a program of a student's. However it ends, by itself, after so many seconds (subprocess.TimeoutExpired) or
    because this program is to stop, all that it has started ends with it."""
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, start_new_session=True, **silent, **options)  # a process group of its own
    try:
        process.wait(seconds)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody of the group is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(path, seconds):
    """Runs the exercise that was handed in as `path` with the tests as they were given; writes its report beside it."""
    report = path.with_suffix(".xml")
    report.unlink(missing_ok=True)
    before, _, after = parts(read(COURSE / path.name), COURSE / path.name)
    head, answer, _ = parts(read(path), path)
    whole = before + imports(head) + answer + after
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(COURSE / "conftest.py", folder)
        (Path(folder) / path.name).write_text(whole, encoding="utf-8")
        arguments = [f"--rootdir={folder}", "-p", "no:cacheprovider", f"--junitxml={report.resolve()}"]
        command = [sys.executable, "-m", "pytest", "-q", *arguments, str(Path(folder) / path.name)]
        settings = {"OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": ""}
        try:
            call(command, seconds, cwd=COURSE.parent, env=os.environ | settings)
            fault = "the program ended before the tests did" if not has_tests(report) else None
        except subprocess.TimeoutExpired:
            fault = f"stopped after {seconds:g} seconds"
    if fault:
        suite = ElementTree.Element("testsuite", name="pytest")
        case = ElementTree.SubElement(suite, "testcase", classname=path.stem, name=path.stem)
        ElementTree.SubElement(case, "error", message=fault)
        ElementTree.ElementTree(suite).write(report, encoding="utf-8")


def results(path):
    """{exercise: [whether each of its tests passed]} of a report."""
    read(path)
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise Fault(f"{path}: not XML ({error})") from None
    if root.tag not in ("testsuites", "testsuite"):
        raise Fault(f"{path}: <{root.tag}> is no report of pytest; write one with --junitxml")
    found = {}
    for case in root.iter("testcase"):
        name = re.search(r"(?:^|\.)(exercise_\d+)$", case.get("classname") or case.get("name") or "")
        if name and name[1] in NAMES:
            passed = not any(part.tag in ("failure", "error", "skipped") for part in case)
            found.setdefault(name[1], []).append(passed)
    if not found:
        raise Fault(f"{path}: no test of an exercise in it")
    return found


def has_tests(report):
    try:
        return bool(results(report))
    except Fault:
        return False


def points(folder):
    """{exercise: points, of POINTS} of a student's folder."""
    reports = sorted(folder.glob("*.xml"))
    if not reports:
        raise Fault(f"{folder}: no report (*.xml) in it; give --run, or run pytest with --junitxml")
    found, source = {}, {}
    for path in reports:
        for name, passed in results(path).items():
            if name in found:
                raise Fault(f"{path}: {name} is in {source[name].name} too; keep one of them")
            found[name], source[name] = POINTS * sum(passed) / len(passed), path
    return found


def table(rows, tsv):
    """The lines of the table: rows are (student, {exercise: points})."""
    cells = [["student", *(name.removeprefix("exercise_") for name in NAMES), f"of {POINTS * len(NAMES)}"]]
    for student, found in rows:
        each = [f"{found[name]:.1f}" if name in found else "-" for name in NAMES]
        cells.append([student, *each, f"{sum(found.values()):.1f}"])
    if tsv:
        return ["\t".join(row) for row in cells]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells]


def stop(number, frame):
    """Ctrl-C and the like: through every `finally`, then the exit code that the shell expects."""
    sys.exit(128 + number)


def main():
    for name in {"SIGINT", "SIGTERM", "SIGHUP"} & set(vars(signal)):
        signal.signal(getattr(signal, name), stop)
    parser = argparse.ArgumentParser(description="Points of the exercises: one row for each student's folder.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of one student, whose name it has")
    parser.add_argument("--run", action="store_true", help="run the exercises first, with the tests as they were given")
    parser.add_argument("--seconds", type=float, default=60, help="that one exercise may run (default 60)")
    parser.add_argument("--tsv", action="store_true", help="columns between tabs, for a spreadsheet")
    arguments = parser.parse_args()
    rows, faults = [], []
    for folder in arguments.folders:
        try:
            handed_in = exercises(folder)
            for path in handed_in if arguments.run else ():
                try:
                    run(path, arguments.seconds)
                except Fault as error:
                    faults.append(f"error: {error}")
            rows.append((folder.resolve().name, points(folder)))
        except Fault as error:
            faults.append(f"error: {error}")
    if rows:
        print("\n".join(table(rows, arguments.tsv)), flush=True)
    sys.exit("\n".join(faults) if faults else 0)


if __name__ == "__main__":
    main()
