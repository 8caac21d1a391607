"""The C++ program of the course computes the whole oracle, as docs/ORACLE.md says it can be done."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EARLIER = (1, 129), (2, 153), (3, 188), (4, 205)
COMPILER = shlex.split(os.environ.get("CXX", "g++"))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if shutil.which(COMPILER[0]) is None:
        pytest.skip(f"no C++ compiler: {COMPILER[0]} is not installed")
    path = tmp_path_factory.mktemp("oracle") / "oracle"
    flags = ["-O0", "-std=c++17", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*COMPILER, *flags, "-o", path, ROOT / "course/oracle/oracle.cpp"], check=True)
    return path


def run(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "version, cases", [*(pytest.param(*each, marks=pytest.mark.thorough) for each in EARLIER), (5, 238)]
)
def test_every_case_agrees(program, tmp_path, version, cases):
    """The inputs alone are given: it cannot hand back our outputs."""
    content = json.loads((ROOT / f"data/oracle-{version}.json").read_text(encoding="utf-8"))
    assert len(content["cases"]) == cases
    for case in content["cases"]:
        del case["outputs"]
    (tmp_path / "inputs.json").write_text(json.dumps(content), encoding="utf-8")
    found = run(program, tmp_path / "inputs.json", tmp_path / "mine.json")
    assert (found.returncode, found.stderr) == (0, "")
    check = [sys.executable, ROOT / "cli.py", "oracle", "check", tmp_path / "mine.json"]
    found = subprocess.run(check, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.splitlines()[-1].startswith(f"{len(content['cases'])} ok, 0 differ, 0 skipped")


def test_a_wrong_file_is_one_line(program, tmp_path):
    (tmp_path / "cut.json").write_text('{"cases": [{"name": "distmult/x", "kind": "scores"', encoding="utf-8")
    for name in ("cut.json", "absent.json"):
        found = run(program, tmp_path / name, tmp_path / "mine.json")
        assert found.returncode == 1 and found.stderr.startswith("error: ") and found.stderr.count("\n") == 1
        assert not (tmp_path / "mine.json").exists()
    assert run(program).returncode == 2


@pytest.mark.thorough
def test_the_lines_of_the_readme(tmp_path):
    """As they stand there, but for the folder, and the compiler where it is another."""
    if shutil.which(COMPILER[0]) is None:
        pytest.skip(f"no C++ compiler: {COMPILER[0]} is not installed")
    text = (ROOT / "course/oracle/README.md").read_text(encoding="utf-8")
    lines = re.search(r"```sh\n(.*?)```", text, re.S)[1]
    assert lines.startswith("g++ -O2 -std=c++17 ") and lines.count("\n") == 4
    lines = lines.replace("g++", shlex.join(COMPILER), 1).replace("/tmp/", f"{shlex.quote(str(tmp_path))}/")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["bash", "-ec", lines]
    found = subprocess.run(command, cwd=ROOT, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")
    last = re.search(r"The last line says `([^`]*)`", text)[1]
    newest = max((ROOT / "data").glob("oracle-*.json"), key=lambda file: int(file.stem.rpartition("-")[2]))
    cases = len(json.loads(newest.read_text(encoding="utf-8"))["cases"])
    assert last == f"{cases} ok, 0 differ, 0 skipped" and f"all {cases} cases" in text
    assert found.stdout.splitlines()[-1].startswith(last)
