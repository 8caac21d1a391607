"""course/points.py: reports of pytest to a table of points."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import wait_for

ROOT = Path(__file__).resolve().parent.parent
COURSE = ROOT / "course"
RULE = "# --- the tests\n"


def begin(*arguments):
    """points.py, a real process."""
    command = [sys.executable, COURSE / "points.py", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([str(part) for part in command], cwd=ROOT, **pipes)


def points(*arguments, timeout=500):
    with begin(*arguments) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:  # too late, or Ctrl-C: not killed, so that it can end what it has started
            process.terminate()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def rows(found):
    """{student: cells} of a table between tabs."""
    head, *lines = [line.split("\t") for line in found.stdout.splitlines()]
    assert head == ["student", *"12345678", "of 80"]
    return {line[0]: line[1:] for line in lines}


def report(folder, name, *passed, tag="failure", text=None):
    """A report as pytest writes it."""
    cases = "".join(
        f'<testcase classname="handed.in.{name}" name="test_{i}">{"" if good else f"<{tag}/>"}</testcase>'
        for i, good in enumerate(passed)
    )
    folder.mkdir(exist_ok=True)
    text = f'<?xml version="1.0"?><testsuites><testsuite>{cases}</testsuite></testsuites>' if text is None else text
    (folder / f"{name}.xml").write_text(text, encoding="utf-8")
    return folder


def test_reports_by_hand(tmp_path):
    anna = report(tmp_path / "anna", "exercise_1", True, True, False, True)
    report(anna, "exercise_3", True, tag="error")
    report(anna, "exercise_8", False, False, tag="error")
    otto = report(tmp_path / "otto", "exercise_2", True, True, False, tag="skipped")
    found = points("--tsv", anna, otto)
    assert (found.returncode, found.stderr) == (0, "")
    assert rows(found) == {
        "anna": ["7.5", "-", "10.0", "-", "-", "-", "-", "0.0", "17.5"],
        "otto": ["-", "6.7", *"------", "6.7"],
    }
    table = points(anna, otto).stdout.splitlines()
    assert [line.split() for line in table] == [line.split() for line in found.stdout.splitlines()]
    assert len({len(line) for line in table}) == 1  # columns below each other


@pytest.mark.thorough
def test_what_students_hand_in(tmp_path):
    """Solved, half solved, broken in several ways, and with tests that were made easier."""
    anna, otto = tmp_path / "anna", tmp_path / "otto"
    for folder in (anna, otto):
        folder.mkdir()
    solved = (COURSE / "solutions" / "exercise_1.py").read_text(encoding="utf-8")
    shutil.copy(COURSE / "solutions" / "exercise_8.py", anna)
    (anna / "exercise_1.py").write_text(solved, encoding="utf-8")
    other = (COURSE / "solutions" / "exercise_3.py").read_text(encoding="utf-8")
    other = other.replace(
        "import numpy as np\n", "import numpy\nimport numpy as np\nnumpy.sqrt = None\n", 1
    )  # not kept
    other = other.replace("np.sqrt(", "numpy.sqrt(")
    (anna / "exercise_3.py").write_text(other, encoding="utf-8")
    shutil.copy(COURSE / "exercise_2.py", anna)

    mistake = solved.replace("np.add.at(d_entity, heads, u * r * t)", "d_entity[heads] += u * r * t")
    assert mistake != solved
    made_easy = mistake[: mistake.index(RULE)] + RULE + "\n\ndef test_nothing():\n    pass\n"
    (otto / "exercise_1.py").write_text(made_easy, encoding="utf-8")
    for number, line in ((3, "def f(:\n"), (4, "import sys\n\nsys.exit(0)\n"), (5, "while True:\n    pass\n")):
        text = (COURSE / f"exercise_{number}.py").read_text(encoding="utf-8")
        (otto / f"exercise_{number}.py").write_text(text.replace(RULE, line + RULE), encoding="utf-8")
    text = (COURSE / "exercise_6.py").read_text(encoding="utf-8")
    (otto / "exercise_6.py").write_text(text.replace(RULE, ""), encoding="utf-8")

    found = points("--run", "--seconds", 45, "--tsv", anna, otto)
    fault = f"error: {otto / 'exercise_6.py'}: 0 lines '# --- the tests', expected one; put it back"
    assert (found.returncode, found.stderr.strip()) == (1, fault)
    assert rows(found) == {
        "anna": ["10.0", "0.0", "10.0", *"----", "10.0", "30.0"],
        "otto": ["6.0", "-", "0.0", "0.0", "0.0", "-", "-", "-", "6.0"],  # two of five tests see the mistake
    }
    again = points("--tsv", anna, otto)  # from the reports that are there now
    assert (again.returncode, again.stderr, again.stdout) == (0, "", found.stdout)


@pytest.mark.parametrize("text, words", [
    ("", "exercise_1.xml: not XML (no element found"),
    ("<html/>", "<html> is no report of pytest"),
    ('<testsuite><testcase classname="tests.test_other" name="x"/></testsuite>', "no test of an exercise in it"),
])  # fmt: skip
def test_a_wrong_report_is_one_line(tmp_path, text, words):
    found = points(
        "--tsv", report(tmp_path / "anna", "exercise_1", text=text), report(tmp_path / "o", "exercise_2", True)
    )
    assert found.returncode == 1 and found.stderr.startswith("error: ") and found.stderr.count("\n") == 1
    assert words in found.stderr and list(rows(found)) == ["o"]  # the others are counted


def test_a_wrong_folder_is_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    twice = report(tmp_path / "twice", "exercise_1", True)
    shutil.copy(twice / "exercise_1.xml", twice / "report.xml")
    latin = report(tmp_path / "latin", "exercise_1", True)
    (latin / "exercise_1.xml").write_bytes(b"<?xml version='1.0' encoding='latin-1'?><a b='\xe9'/>")
    handed_in = tmp_path / "not-run"
    handed_in.mkdir()
    shutil.copy(COURSE / "exercise_1.py", handed_in)
    for folder, words in (
        (tmp_path / "absent", "no such folder"),
        (tmp_path / "empty", "no exercise in it; expected exercise_1.py to exercise_8.py"),
        (twice, "exercise_1 is in exercise_1.xml too; keep one of them"),
        (latin, "not UTF-8"),
        (handed_in, "no report (*.xml) in it; give --run"),
    ):
        found = points(folder)
        assert (found.returncode, found.stdout) == (1, "") and found.stderr.count("\n") == 1
        assert found.stderr.startswith("error: ") and words in found.stderr


ENDLESS = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({place!r}).write_text(f"{{os.getpid()}} {{child.pid}} .")
while True:
    time.sleep(1)
"""


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def endless(tmp_path):
    """The folder of a student whose program waits for ever, deaf to Ctrl-C, and has started another; and a function
    that gives the numbers of both processes once they are there."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc")
    folder, place = tmp_path / "otto", tmp_path / "pids"
    folder.mkdir()
    text = (COURSE / "exercise_1.py").read_text(encoding="utf-8")
    text = text.replace(RULE, ENDLESS.format(place=str(place)) + RULE)
    (folder / "exercise_1.py").write_text(text, encoding="utf-8")

    def started(process=None):
        wait_for(lambda: place.exists() and place.read_text().endswith("."), process=process)
        return list(map(int, place.read_text().split()[:2]))

    return folder, started


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_ends_what_students_have_started(endless, number):
    folder, started = endless
    process = begin("--run", "--seconds", 100, folder)
    pids = started(process)
    assert all(map(is_running, pids))
    time.sleep(0.05)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (128 + number, "", "")
    wait_for(lambda: not any(map(is_running, pids)), 10)


@pytest.mark.parametrize("timeout", [100, 4])
def test_too_late_ends_what_students_have_started(endless, timeout):
    """After --seconds, and where it is the test that has waited too long."""
    folder, started = endless
    if timeout == 4:
        with pytest.raises(subprocess.TimeoutExpired):
            points("--run", "--seconds", 100, folder, timeout=timeout)
    else:
        assert rows(points("--run", "--seconds", 4, "--tsv", folder)) == {"otto": ["0.0", *"-------", "0.0"]}
    pids = started()
    wait_for(lambda: not any(map(is_running, pids)), 10)
