"""course/render.py: cells to a page, and what makes a page differ from its program. (test_course_readme.py runs it on
the walkthrough.)"""

import io
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "course"))
import render  # noqa: E402

PROGRAM = """# ---
# jupyter: a header
# ---

# %% [markdown]
# ## A title
#
# Words of $x$.

# %%
x = 3


# %%
print("x is", x, " ")
print(-1.5)

# %%
import matplotlib.pyplot as plt

plt.plot([0, x])
"""


def drawn(values, size=(2, 2)):
    """A PNG file, bytes."""
    plt = pytest.importorskip("matplotlib.pyplot", reason="needs matplotlib: pip install .[plot]")
    figure, axes = plt.subplots(figsize=size)
    axes.bar(range(len(values)), values)
    axes.set_ylim(0, 10)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    plt.close(figure)
    return file.getvalue()


def test_a_program_becomes_a_page(tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install .[plot]")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    page, figures = render.run(tmp_path / "program.py")
    assert page == render.HEADER + "\n".join([
        "", "## A title", "", "Words of $x$.", "", "```python", "x = 3", "```", "",
        "```python", 'print("x is", x, " ")', "print(-1.5)", "```", "", "```text", "x is 3", "-1.5", "```", "",
        "```python", "import matplotlib.pyplot as plt", "", "plt.plot([0, x])", "```", "",
        "![walkthrough, figure 1](walkthrough-1.png)", "",
    ])  # fmt: skip
    assert list(figures) == ["walkthrough-1.png"] and figures["walkthrough-1.png"].startswith(b"\x89PNG")
    assert render.run(tmp_path / "program.py") == (page, figures)  # the same bytes again


def test_an_error_names_its_line(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM.replace("print(-1.5)", "1 / 0"), encoding="utf-8")
    code = "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import render; render.run(pathlib.Path(sys.argv[2]))"
    command = [sys.executable, "-c", code, ROOT / "course", tmp_path / "program.py"]
    found = subprocess.run(command, capture_output=True, text=True)
    if "matplotlib" in found.stderr:
        pytest.skip("needs matplotlib: pip install .[plot]")
    assert f'program.py", line {PROGRAM.splitlines().index("print(-1.5)") + 1}' in found.stderr


@pytest.mark.parametrize("new, same", [
    ("MRR 0.376 of 1,830", True),
    ("MRR 0.379 of 1,820", True),  # within 2 %
    ("MRR  0.376  of 1,830", True),
    ("MRR 0.476 of 1,830", False),
    ("MRR 0.376 of 2,830", False),
    ("MRR -0.376 of 1,830", False),
    ("MRR 0.376 in 1,830", False),
    ("MRR 0.376 of 1,830 9", False),
    ("MRR 0.376 of 1,830\nmore", False),
    ("MRR nan of 1,830", False),
])  # fmt: skip
def test_what_differs(new, same):
    assert (render.difference(new, "MRR 0.376 of 1,830") is None) == same


def test_faults_of_a_folder(tmp_path):
    figures = {"walkthrough-1.png": drawn([1, 5, 9])}
    (tmp_path / "WALKTHROUGH.md").write_text("page", encoding="utf-8")
    (tmp_path / "walkthrough-1.png").write_bytes(drawn([1, 5.05, 9]))
    assert render.faults("page", figures, tmp_path) == []
    assert "line 1" in render.faults("another", figures, tmp_path)[0]
    for other in (drawn([9, 5, 1]), drawn([1, 5, 9], (3, 2))):
        (tmp_path / "walkthrough-1.png").write_bytes(other)
        assert render.faults("page", figures, tmp_path) == ["walkthrough-1.png: the program draws another figure"]
    assert render.faults("page", {}, tmp_path) == ["walkthrough-1.png: not drawn by the program any more"]
    (tmp_path / "walkthrough-1.png").unlink()
    assert render.faults("page", figures, tmp_path) == ["walkthrough-1.png: is not there"]
