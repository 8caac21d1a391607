"""What .ci/run runs, and what runs without being asked for."""

import configparser
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RUN = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_two_commands_of_the_readme_are_run():
    """As they stand there, each alone in a function, and each function in a clone of its own."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)[:2]
    assert [command.count("\n") for command in commands] == [1, 1]
    assert "cli.py train" in commands[0] and "pytest" in commands[1]
    bodies = dict(re.findall(r"^(\w+)\(\) \{\n(.*?)^\}", RUN, re.DOTALL | re.MULTILINE))
    assert [bodies[name] for name in ("train", "tests")] == [f"    {command}" for command in commands]
    (loop,) = re.findall(r"^for part in (.*); do\n(.*?)^done", RUN, re.DOTALL | re.MULTILINE)
    assert {"train", "tests"} <= set(loop[0].split()) <= set(bodies)
    assert 'git clone -q "$here" "$work/$part"' in loop[1] and '        "$part"\n' in loop[1]


def test_what_is_thorough_is_run_too():
    """-m '' takes all tests, with every extra that there is."""
    everything = re.search(r"^everything\(\) \{\n(.*?)^\}", RUN, re.DOTALL | re.MULTILINE)[1]
    assert re.search(r"^    python -m pytest -m '' ", everything, re.MULTILINE)
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    (installed,) = re.findall(r"-e '\.\[(.*?)\]'", everything)
    assert set(installed.split(",")) == set(setup["options.extras_require"])


def test_the_oldest_versions_are_those_of_setup_cfg():
    oldest = runpy.run_path(str(ROOT / ".ci" / "oldest.py"))["oldest"]
    found = dict(line.split("==") for line in oldest(["rdf"]))
    assert found.keys() == {"numpy", "numba", "click", "tabulate", "pyoxigraph"}
    text = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    assert all(f"    {name}>={version}\n" in text for name, version in found.items())


TESTS = """
import pytest

def test_small():
    pass

@pytest.mark.thorough
def test_long():
    pass
"""


@pytest.mark.parametrize("options, names", [
    ([], ["test_small"]),
    (["-m", "thorough"], ["test_long"]),
    (["-m", ""], ["test_small", "test_long"]),
])  # fmt: skip
def test_what_is_thorough_runs_when_asked_for(tmp_path, options, names):
    """And setup.cfg asks for no plugin: students have pytest alone."""
    (tmp_path / "test_two.py").write_text(TESTS, encoding="utf-8")
    no_plugins = ["-p", "no:xdist", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "setup.cfg", *no_plugins, "--collect-only", "-q", *options]
    found = subprocess.run([*command, tmp_path / "test_two.py"], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert re.findall(r"::(\w+)$", found.stdout, re.MULTILINE) == names
