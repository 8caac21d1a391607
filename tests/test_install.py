"""`pip install .`, not -e: a wheel has all that a run needs, and works from any directory."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "tests", "docs")


def run(*command, cwd, **more):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CARDKGE_DATA")}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment | more, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    home = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, home / "source", ignore=LEFT_OUT)
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", home, home / "source")
    built = run(*pip, cwd=home)
    if built.returncode and "setuptools" in built.stderr:  # no package index to take it from
        pytest.skip("setuptools cannot be had here")
    assert built.returncode == 0, built.stderr
    (found,) = home.glob("*.whl")
    return found


def test_a_wheel_has_code_and_data_and_nothing_else(wheel):
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert {"cardkge.py", "kernels.py", "cli.py", "cardkge_tools/engine/training.py"} <= set(names)
    data = {"datasets.json", "reproduction.json", "oracle-1.json"} | {
        f"families/{name}" for name in ("train.tsv", "valid.tsv", "test.tsv", "bounds.tsv")
    }
    assert {f"cardkge_tools/data/{name}" for name in data} <= set(names)
    assert {name.partition("/")[0] for name in names} == {"cardkge.py", "kernels.py", "cli.py", "cardkge_tools"}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "cardkge_tools").rglob("*.py")}
    assert modules <= set(names)  # no room is forgotten in setup.cfg


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The python of a new environment with the wheel, which has NumPy and the like from this one."""
    place = tmp_path_factory.mktemp("home") / "environment"
    assert run(sys.executable, "-m", "venv", "--without-pip", place, cwd=place.parent).returncode == 0
    site = next(place.glob("lib*/python*/site-packages"))
    zipfile.ZipFile(wheel).extractall(site)  # what pip does with a wheel of Python files, but for the script
    numpy = subprocess.check_output([sys.executable, "-c", "import numpy; print(numpy.__path__[0])"], text=True)
    (site / "others.pth").write_text(str(Path(numpy.strip()).parent))
    return place / "bin" / "python", site


SCRIPT = "import sys, cli; sys.argv[0] = 'cardkge'; sys.exit(cli.main())"


@pytest.mark.thorough
def test_an_installed_wheel_trains(wheel, installed, tmp_path):
    python, site = installed
    where = run(python, "-c", "import cardkge; print(cardkge.__file__, cardkge.load_dataset().folder)", cwd=tmp_path)
    assert where.stdout.split() == [str(site / "cardkge.py"), str(site / "cardkge_tools/data/families")], where.stderr
    trained = run(python, "-c", SCRIPT, "train", "--dim", 4, "--epochs", 1, "--out", "run", cwd=tmp_path)
    assert trained.returncode == 0 and "saved in run" in trained.stdout, trained.stderr
    assert (tmp_path / "run" / "metrics.json").is_file()
    assert "cardkge = cli:main" in next(
        zipfile.ZipFile(wheel).read(name).decode()
        for name in zipfile.ZipFile(wheel).namelist()
        if name.endswith("entry_points.txt")
    )


@pytest.mark.thorough
def test_the_page_of_a_users_own_graph(installed, tmp_path):
    """docs/OWN-GRAPH.md: its five commands, in a new environment and folder, give facts that the graph takes in."""
    oxigraph = pytest.importorskip("pyoxigraph")
    page = (ROOT / "docs" / "OWN-GRAPH.md").read_text(encoding="utf-8")
    commands = re.search(r"```sh\n(.*?)```", page, re.DOTALL)[1].splitlines()
    assert len(commands) == 5 and all(command.startswith("cardkge ") for command in commands)
    assert run(sys.executable, ROOT / "bench" / "make_museum.py", "--whole", tmp_path, cwd=tmp_path).returncode == 0
    found = [run(installed[0], "-c", SCRIPT, *shlex.split(command)[1:], cwd=tmp_path) for command in commands]
    assert [one.returncode for one in found] == [0] * 5, [one.stderr for one in found]
    blocks = [text for language, text in re.findall(r"```(\w*)\n(.*?)```\n", page, re.DOTALL) if not language]
    assert found[0].stdout == blocks[0]

    def statements(name):
        triples = [tuple(map(str, triple)) for triple in oxigraph.parse(path=str(tmp_path / name))]
        return {triple[:3] for triple in triples}

    graph, new = statements("graph.ttl"), statements("new.nt")
    assert abs(len(new) - 246) < 15 and not graph & new  # another machine's BLAS may round otherwise
    assert {name for h, _, t in new for name in (h, t)} <= {name for h, _, t in graph for name in (h, t)}
    whole = {tuple(line.split("\t")) for line in (tmp_path / "whole.tsv").read_text(encoding="utf-8").splitlines()}
    assert len(new & whole) > 0.65 * len(new)
    v = "<http://museum.example/vocabulary#{}>".format
    kind = {h: t for h, p, t in graph if p.endswith("22-rdf-syntax-ns#type>")}
    for h, p, _ in new:  # at most what the shapes allow a person and a work
        most = {v("bornIn"): 1, v("movement"): 2, v("keptBy"): 1, v("creator"): 1, v("town"): 1, v("marriedTo"): 1}.get(
            p, 2
        )
        assert sum((h, p) == fact[:2] for fact in graph | new) <= most
        assert p != v("creator") or kind[h] == v("Painting")
    again = run(installed[0], "-c", SCRIPT, "import", "graph.ttl", "new.nt", "--out", "museum-2", cwd=tmp_path)
    assert f"museum-2: {5515 + len(new):,} triples, 2,384 entities, 8 relations" in again.stdout, again.stderr
    left = [path.name for path in (installed[1] / "cardkge_tools").rglob("*.nb?")]
    assert not left  # pip would not remove Numba's files, and their folder would hide a later `pip install -e`
