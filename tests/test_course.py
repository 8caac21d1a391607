"""The course: stubs fail, solutions pass, and the mistakes that people make get the hint that they need."""

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COURSE = ROOT / "course"
NUMBERS = range(1, 9)

sys.path.insert(0, str(COURSE))
import stubs  # noqa: E402

# exercise, what of the solution is replaced by what, and the words that the student must see
MISTAKES = [
    (1, "u * r * t)", "r * t)", "left out the factor upstream"),
    (1, "np.add.at(d_entity, heads, u * r * t)", "d_entity[heads] += u * r * t", "Use np.add.at"),
    (1, "np.add.at(d_entity, tails, u * h * r)", "d_entity[tails] = u * h * r", "*and* what the tail does"),
    (1, "np.zeros_like(entity), np.zeros_like(relation)", "entity, relation", "must not change"),
    (1, "u * h * t)", "u * h * r)", "d phi / d r = h * t"),
    (2, "(up - down) / (2 * step)", "(up - down) / step", "these gradients are right"),
    (2, "array[place] = kept - step\n", "array[place] = kept\n", "called wrong"),
    (2, "array[place] = kept\n", "array[place] += step\n", "write it back, not x + e - e"),
    (2, "not abs(gradients[name][place] - expected) <=", "abs(gradients[name][place] - expected) >", "a NaN passed"),
    (2, "1e-5, 1e-4, 1e-8", "1e-5, 1e-2, 1e-8", "allow less"),
    (2, "1e-5, 1e-4, 1e-8", "1e-5, 1e-4, 1e-4", "the absolute part is too large"),
    (2, "1e-5, 1e-4, 1e-8", "1e-5, 1e-4, 0", "allow an absolute part too"),
    (2, "1e-5, 1e-4, 1e-8", "1e-2, 1e-4, 1e-8", "called wrong"),
    (3, "np.add.at(gradient, place, values)", "gradient[place] += values", "writes each row once"),
    (3, "+ gradient**2", "+ np.bincount(place, (values**2)[:, 0])[:, None]", "squared apart"),
    (3, "    squares =", "    gradient /= np.bincount(place)[:, None]\n    squares =", "averaged"),
    (3, "np.sqrt(np.where(squares > 0, squares, 1))", "np.sqrt(squares)", "0 / sqrt(0) is NaN"),
    (3, "np.sqrt(np.where(squares > 0, squares, 1))", "np.sqrt(squares) + 1e-7", "without eps"),
    (3, "np.sqrt(np.where(squares > 0, squares, 1))", "np.sqrt(squares - gradient**2)", "old accumulator"),
    (3, "accumulator[distinct] + ", "(np.sqrt(accumulator) ** 2)[distinct] + ", "index first, then compute"),
    (4, "competes[list(true_answers)] = False\n", "pass\n", "must not count"),
    (4, "    competes[answer] = False\n", "", "never competes with itself"),
    (4, "np.isnan(scores).any()", "np.isnan(scores[answer])", "wherever a NaN is"),
    (4, 'ties="realistic"', 'ties="optimistic"', "without `ties`, realistic"),
    (4, "1 + better + share[ties] * equal", "1 + better", "E = 2"),
    (4, "competes[list(true_answers)] =", "scores[list({*true_answers} - {answer})] = -np.inf #", "scores were ch"),
    (5, "1 / (omega * q[objects])", "1 / q[objects]", "1 / omega belongs to the weights"),
    (5, "rng.choice(len(q), size=omega, p=q)", "rng.choice(len(q), size=min(omega, len(q)), p=q, replace=False)",
     "with repetition"),
    (5, "rng.choice(len(q), size=omega, p=q)", "rng.integers(len(q), size=omega)", "biased"),
    (5, "rng.choice(", "np.random.default_rng().choice(", "take all random numbers from rng"),
    (5, " / omega)\n", ")\n", "variance of one term"),
    (5, "weights @ p[objects]", "sum({t: w * p[t] for t, w in zip(objects, weights)}.values())", "counts twice"),
    (6, "return -np.linalg.norm(h + r - t, axis=-1)", "return np.linalg.norm(h + r - t, axis=-1)", "near is good"),
    (6, "return -np.linalg.norm(h + r - t, axis=-1)", "return -((h + r - t) ** 2).sum(-1)", "not its square"),
    (6, "np.where(norm > 0, norm, 1)", "norm", "0 / 0 gave NaN"),
    (6, "return t - r", "return t + r", "for which q"),
    (6, "return d, d, -d", "return d, d, d", "opposite gradient"),
    (6, "better + equal / 2", "better", "ties count half"),
    (6, "[1, -1, -1]", "[1, 1, 1]", "comes below 3"),
    (7, '"relation": (self.n_relations, self.dim**2)', '"relation": (self.n_relations, self.dim)', "k * k"),
    (7, '"...i,...ij->...j", h', '"...j,...ij->...i", h', "t' W h"),
    (7, "h[..., :, None] * t[..., None, :]", "t[..., :, None] * h[..., None, :]", "h_i t_j is number i k + j"),
    (7, '"...ij,...j->...i", self', '"...ij,...i->...j", self', "it is W t, not W' t"),
    (8, "f[1:] = f[1:] * (1 - chance) + f[:-1] * chance\n        f[0] *= 1 - chance",
     "f[0] *= 1 - chance\n        f[1:] = f[1:] * (1 - chance) + f[:-1] * chance", "before it was used"),
    (8, "max(lower - 1, 0) : upper", "lower - 1 : upper", "the sum of g starts at 0"),
    (8, "    if not total > 0:\n        raise ValueError(f\"no set has between {lower} and {upper} members\")\n", "",
     "so ValueError"),
    (8, "np.delete(p, t)", "p", "exactly one"),
    (8, "    return found\n", "    return p * upper / p.sum()\n", "exactly one: 1/17"),
]  # fmt: skip


def results(folder):
    """{file name: [(test, message)]}; message is None where the test passed. All files of a folder in one pytest."""
    shutil.copy(COURSE / "conftest.py", folder)
    report = folder / "report.xml"
    files = sorted(str(path) for path in folder.glob("*.py") if path.name != "conftest.py")
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-p", "no:cacheprovider", *files]
    subprocess.run(command, cwd=ROOT, capture_output=True)
    found = {Path(file).stem: [] for file in files}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        faults = [part.get("message", "") for part in case if part.tag in ("failure", "error")]
        found[case.get("classname").rpartition(".")[2]].append((case.get("name"), faults[0] if faults else None))
    return found


def exercise(number):
    return (COURSE / f"exercise_{number}.py").read_text(encoding="utf-8")


def answer(number):
    return (COURSE / "solutions" / f"exercise_{number}.py").read_text(encoding="utf-8")


def solution(number):
    """The exercise with its answer."""
    return stubs.with_part(exercise(number), answer(number))


@pytest.mark.parametrize("number", NUMBERS)
def test_the_stub_is_the_solution_with_its_bodies_taken_away(number):
    found = exercise(number)
    assert found == stubs.with_part(found, stubs.stub(answer(number))), "run `python course/stubs.py --force`"
    part = re.search(r"# --- your part\n(.*)# --- the tests\n", found, re.S)[1]
    assert part.count("raise NotImplementedError(") == part.count("    def ") + part.count("\ndef ") - part.count(
        "Given"
    )


def test_stubs_fail_and_solutions_pass(tmp_path):
    for number in NUMBERS:
        (tmp_path / f"solved_{number}.py").write_text(solution(number), encoding="utf-8")
        shutil.copy(COURSE / f"exercise_{number}.py", tmp_path / f"stub_{number}.py")
    found = results(tmp_path)
    for number in NUMBERS:
        solved, stub = found[f"solved_{number}"], found[f"stub_{number}"]
        assert len(solved) == len(stub) >= 5
        assert all(message is None for _, message in solved), solved
        assert all("not written yet: " in (message or "") for _, message in stub), stub


@pytest.mark.thorough
def test_mistakes_get_their_hints(tmp_path):
    for place, (number, old, new, _) in enumerate(MISTAKES):
        text = solution(number)
        at = text.index(old, text.index(stubs.BEGIN))
        assert at < text.index(stubs.END), (number, old)
        (tmp_path / f"mistake_{place}.py").write_text(text[:at] + new + text[at + len(old) :], encoding="utf-8")
    found = results(tmp_path)
    silent = []
    for place, (number, old, new, words) in enumerate(MISTAKES):
        messages = [" ".join(message.split()) for _, message in found[f"mistake_{place}"] if message]
        if not any(words in message for message in messages):
            silent.append((number, old, new, words, messages))
    assert not silent, "\n".join(map(str, silent))


@pytest.mark.parametrize("folder", [".", "course"])
@pytest.mark.parametrize("program", [(sys.executable, "-m", "pytest"), (Path(sys.executable).with_name("pytest"),)])
def test_what_a_student_types(program, folder):
    """The command of the page, also without python -m, and in the folder itself; hints come without a traceback."""
    path = os.path.relpath(COURSE / "exercise_1.py", ROOT / folder)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    command = [*program, "-p", "no:cacheprovider", path]
    found = subprocess.run(command, cwd=ROOT / folder, env=environment, capture_output=True, text=True)
    assert found.returncode == 1 and "not written yet: score_gradients" in found.stdout, found.stdout + found.stderr
    assert "Traceback" not in found.stdout and "During handling" not in found.stdout


@pytest.mark.parametrize("number", NUMBERS)
def test_the_page_says_what_to_type(number):
    assert f"    python -m pytest course/exercise_{number}.py\n" in solution(number)


def test_stubs_do_not_write_over_a_students_work(tmp_path):
    command = [sys.executable, COURSE / "stubs.py", "--out", tmp_path]
    assert subprocess.run(command).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"exercise_{number}.py" for number in NUMBERS]
    (tmp_path / "exercise_3.py").write_text("solved", encoding="utf-8")
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 1 and "exercise_3.py" in found.stderr and found.stderr.count("\n") == 1
    assert (tmp_path / "exercise_3.py").read_text(encoding="utf-8") == "solved"
    assert subprocess.run([*command, "--force"]).returncode == 0
    assert (tmp_path / "exercise_3.py").read_text(encoding="utf-8") == exercise(3)
