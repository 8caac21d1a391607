"""The C++ program of the course computes the whole oracle, as docs/ORACLE.md says it can be done."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMPILER = shlex.split(os.environ.get("CXX", "g++"))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if shutil.which(COMPILER[0]) is None:
        pytest.skip(f"no C++ compiler: {COMPILER[0]} is not installed")
    path = tmp_path_factory.mktemp("oracle") / "oracle"
    flags = ["-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*COMPILER, *flags, "-o", path, ROOT / "course/oracle/oracle.cpp"], check=True)
    return path


def run(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)


def test_every_case_agrees(program, tmp_path):
    """The inputs alone are given: it cannot hand back our outputs."""
    content = json.loads((ROOT / "data/oracle-1.json").read_text(encoding="utf-8"))
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


def test_the_readme_has_the_build_command():
    text = (ROOT / "course/oracle/README.md").read_text(encoding="utf-8")
    assert "g++ -O2 -std=c++17 -o /tmp/oracle course/oracle/oracle.cpp" in text
