"""Every command of course/README.md is run, each block in a copy of the project."""

import importlib.util
import os
import re
import resource
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import cardkge

ROOT = Path(__file__).resolve().parent.parent
COURSE = ROOT / "course"
README = (COURSE / "README.md").read_text(encoding="utf-8")
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "tune", "reproduction")

# what is added to a command to make it short: the last of two equal options counts
SHORTER = {"python cli.py train": "--epochs 1 --dim 4", "python bench/own_models.py": "--epochs 1 --seeds 1 --dim 4"}
NOT_A_READERS = {"PYTHONPATH", "PYTEST_ADDOPTS", "MPLBACKEND"}  # settings: of tests, or made by course/render.py
NEEDS = {"jupytext": "jupytext", "jupyter": "nbclient", "python bench/own_models.py": "pykeen"}
NEEDS |= {"python course/render.py": "matplotlib", "python bench/own_models.py --controls": None}
EXIT = {"python -m pytest course/exercise_1.py": 1, "python -m pytest -p course.conftest": 1}


def blocks():
    """The blocks of commands: a list of lines each, without what is said of them."""
    found = re.findall(r"```sh\n(.*?)```", README, re.S)
    return [[re.sub(r"\s+#.*", "", line) for line in block.splitlines()] for block in found]


def of(table, command, default=None):
    """The entry of the longest beginning of the command that the table has."""
    keys = [key for key in table if command.startswith(key)]
    return table[max(keys, key=len)] if keys else default


@pytest.fixture
def project(tmp_path):
    """A copy of the project under version control, and two students."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    copy = tmp_path / "project"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    shutil.copy(ROOT / ".gitignore", copy)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "course"]):
        subprocess.run([*git, *arguments], cwd=copy, check=True)
    for student, source in (("anna", COURSE / "solutions"), ("otto", COURSE)):
        (copy / "handed-in" / student).mkdir(parents=True)
        shutil.copy(source / "exercise_1.py", copy / "handed-in" / student)
    return copy


def run(command, project):
    """Runs a command of the page; returns what came of it, and its seconds of computing."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_A_READERS}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    line = ["bash", "-c", f"{command} {of(SHORTER, command, '')}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    found = subprocess.run(line, cwd=project, env=environment, capture_output=True, text=True, timeout=1500)
    return found, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


@pytest.mark.thorough
@pytest.mark.parametrize("block", blocks(), ids=lambda block: " ".join(block[0].split()[:3]))
def test_commands(project, block):
    for command in block:
        module = of(NEEDS, command)
        if module and importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")
        name = re.search(r"--data (\S+)", command)
        if name and cardkge.locate_dataset(name[1]) is None:
            pytest.skip(f"{name[1]} is not on this machine")
        found, seconds = run(command, project)
        assert found.returncode == of(EXIT, command, 0), found.stdout + found.stderr
        check = of(CHECKS, command)
        if check:
            check(project, found, seconds)


# --- what a command has to have done


def check_notebook(project, found, seconds):
    text = (project / "walkthrough.ipynb").read_text(encoding="utf-8")
    assert '"output_type": "stream"' in text and "image/png" in text and "Traceback" not in text
    assert seconds < 120


def check_page(project, found, seconds):
    """The page in docs/ is what the program gives now."""
    sys.path.insert(0, str(COURSE))
    import render

    page = (project / "docs" / "WALKTHROUGH.md").read_text(encoding="utf-8")
    figures = {path.name: path.read_bytes() for path in (project / "docs").glob("walkthrough-*.png")}
    assert len(figures) == page.count("](walkthrough-") >= 5
    assert render.faults(page, figures, ROOT / "docs") == [], "run `python course/render.py`"
    assert seconds < 120


def check_archive(project, found, seconds):
    """Without solutions, and an exercise in it says what it says here."""
    place = project.parent / "handed-out"
    with zipfile.ZipFile(project / "course.zip") as archive:
        archive.extractall(place)
    names = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert {"README.md", "cardkge.py", "course/exercise_8.py", "course/conftest.py", "docs/WALKTHROUGH.md"} <= names
    assert not [name for name in names if "solution" in name or name.startswith("tests/")]
    texts = {name: (place / name).read_text(encoding="utf-8") for name in names if name.endswith((".py", ".md"))}
    elsewhere = re.compile("cardkge|(course|docs)/walkthrough", re.IGNORECASE)  # as the page says of them
    texts = {name: text for name, text in texts.items() if not elsewhere.match(name)}
    for path in COURSE.glob("solutions/exercise_*.py"):
        given = (COURSE / path.name).read_text(encoding="utf-8").splitlines()
        answer = [x for x in path.read_text(encoding="utf-8").splitlines() if x not in given and len(x.strip()) > 40]
        assert answer
        found = {(name, x.strip()) for x in answer for name, text in texts.items() if x.strip() in text}
        assert not found, path.name
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "course/exercise_1.py"]
    asked = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert asked.returncode == 1 and "not written yet: score_gradients" in asked.stdout


def check_points(project, found, seconds):
    assert [line.split() for line in found.stdout.splitlines()] == [
        ["student", *"12345678", "of", "80"],
        ["anna", "10.0", *"-------", "10.0"],
        ["otto", "0.0", *"-------", "0.0"],
    ]


def check_report(project, found, seconds):
    assert "not written yet: score_gradients" in (project / "handed-in/otto/exercise_1.xml").read_text(encoding="utf-8")


def says(*words):
    def check(project, found, seconds):
        assert all(word in found.stdout for word in words), found.stdout

    return check


CHECKS = {
    "jupyter execute": check_notebook,
    "python -m pytest course/exercise_1.py": says("not written yet: score_gradients"),
    "python course/render.py": check_page,
    "python cli.py check": says("ok", "d_phi"),
    "python cli.py train": says("filtered", "saved in runs/transe"),
    "python cli.py evaluate": says("filtered"),
    "python bench/own_models.py": says("PyKEEN", "cardkge"),
    "python bench/own_models.py --controls": says("HolE", "none; L2", "mined, permuted", "[0, 0]"),
    "git archive": check_archive,
    "python course/points.py --run": check_points,
    "python -m pytest -p": check_report,
}


# --- the page itself


def test_commands_stand_in_blocks():
    """So that the test above sees them; an installation alone is named in the text."""
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", README, flags=re.S))
    assert len(blocks()) >= 8 and sum(map(len, blocks())) >= 14
    assert [text for text in inline if re.match(r"(python|pytest|jupy\w+|git|pip) ", text)] == [
        "pip install -e '.[test,course]'"
    ]
    extras = (ROOT / "setup.cfg").read_text(encoding="utf-8").partition("[options.extras_require]")[2]
    assert all(f"\n{name} =\n" in extras for name in ("test", "course", "peers"))


def test_the_parts_are_those_of_the_walkthrough():
    walkthrough = (COURSE / "walkthrough.py").read_text(encoding="utf-8").replace("# |", "|")
    rows = re.findall(r"^\| \d+\. .*$", walkthrough, re.M)
    assert len(rows) == 11 and rows == re.findall(r"^\| \d+\. .*$", README, re.M)
    titles = re.findall(r"^\| (\d+\. .*?) \|", walkthrough, re.M)
    assert re.findall(r"^# ## (\d+\. .*)$", walkthrough, re.M) == titles
    assert 165 <= sum(int(row.split("|")[2]) for row in rows) <= 195  # "about three hours"


def test_the_table_of_exercises_names_what_is_there():
    import cardkge

    rows = re.findall(r"^\| \[(\d)\]\(exercise_\1\.py\) .*$", README, re.M)
    assert rows == list("12345678")
    for line in re.findall(r"^\| \[\d\]\(exercise.*$", README, re.M):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 5 and int(cells[1]) >= 15 and cells[2]
        for name in re.findall(r"`([\w.]+)`", cells[4]):
            thing = cardkge
            for part in name.split("."):
                thing = getattr(thing, part)
