"""`pip install .`, not -e: a wheel has all that a run needs, and works from any directory."""

import os
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


def test_an_installed_wheel_trains(wheel, tmp_path):
    """In an environment of its own, which has NumPy and the like from this one."""
    place = tmp_path / "environment"
    assert run(sys.executable, "-m", "venv", "--without-pip", place, cwd=tmp_path).returncode == 0
    site = next(place.glob("lib*/python*/site-packages"))
    zipfile.ZipFile(wheel).extractall(site)  # what pip does with a wheel of Python files, but for the script
    numpy = subprocess.check_output([sys.executable, "-c", "import numpy; print(numpy.__path__[0])"], text=True)
    (site / "others.pth").write_text(str(Path(numpy.strip()).parent))
    python = place / "bin" / "python"
    where = run(python, "-c", "import cardkge; print(cardkge.__file__, cardkge.load_dataset().folder)", cwd=tmp_path)
    assert where.stdout.split() == [str(site / "cardkge.py"), str(site / "cardkge_tools/data/families")], where.stderr
    script = "import sys, cli; sys.argv[0] = 'cardkge'; sys.exit(cli.main())"
    trained = run(python, "-c", script, "train", "--dim", 4, "--epochs", 1, "--out", "run", cwd=tmp_path)
    assert trained.returncode == 0 and "saved in run" in trained.stdout, trained.stderr
    assert (tmp_path / "run" / "metrics.json").is_file()
    assert "cardkge = cli:main" in next(
        zipfile.ZipFile(wheel).read(name).decode()
        for name in zipfile.ZipFile(wheel).namelist()
        if name.endswith("entry_points.txt")
    )
