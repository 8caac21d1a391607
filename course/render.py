"""Runs course/walkthrough.py cell by cell and writes docs/WALKTHROUGH.md with what it prints and draws.

    python course/render.py            # about half a minute; needs matplotlib: pip install -e '.[plot]'
    python course/render.py --check    # writes nothing; exit code 1 where the page and the program differ

The program is in the percent format: `# %% [markdown]` begins a cell of text, each line behind "# "; `# %%` a cell of
code. Jupyter opens it as a notebook with jupytext. Code cells run in one namespace; a figure that is open after a cell
becomes docs/walkthrough-N.png. On one machine the page is the same to the byte at each run. Elsewhere the last digits
of trained models may differ: `--check` compares text exactly, numbers within 2 %, figures by how much ink has moved.
"""

import argparse
import contextlib
import io
import os
import re
import sys
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy: sums in one order
os.environ["MPLBACKEND"] = "agg"

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PROGRAM = ROOT / "course" / "walkthrough.py"
PAGE = ROOT / "docs" / "WALKTHROUGH.md"
HEADER = (
    "<!-- Written by `python course/render.py` from course/walkthrough.py: change that, then run the command. -->\n"
)
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
RELATIVE, ABSOLUTE = 0.02, 0.02  # what numbers of the output may differ by
INK = 0.02  # and figures, in the mean over pixels of 0 (black) to 1 (white)


def cells(text):
    """[(kind, first line number, text)] of a program in the percent format; kind "markdown" or "code"."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("# %%"):
            kind = "markdown" if "[markdown]" in line else "code"
            found.append((kind, number + 1, []))
        elif found:
            found[-1][2].append(line)
    return [(kind, number, "\n".join(lines).strip("\n")) for kind, number, lines in found]


def prose(text):
    """The Markdown of a text cell: its lines without the comment sign."""
    return "\n".join(re.sub(r"^# ?", "", line) for line in text.splitlines())


def run(program=PROGRAM):
    """Returns (page, figures): the Markdown text, and the PNG files, bytes by name."""
    import matplotlib
    import matplotlib.pyplot as plt

    from cardkge_tools.answers.figures import small_png

    parts, figures, namespace = [HEADER], {}, {"__name__": "__main__"}
    with matplotlib.rc_context({"figure.dpi": 100, "savefig.bbox": "tight", "svg.hashsalt": "walkthrough"}):
        for kind, line, text in cells(program.read_text(encoding="utf-8")):
            if kind == "markdown":
                parts.append(prose(text) + "\n")
                continue
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):  # the empty lines make a traceback name the right line
                exec(compile("\n" * (line - 1) + text, str(program), "exec"), namespace)
            parts.append(f"```python\n{text.strip()}\n```\n")
            if printed.getvalue():
                lines = "\n".join(line.rstrip() for line in printed.getvalue().rstrip().splitlines())
                parts.append(f"```text\n{lines}\n```\n")
            for number in plt.get_fignums():
                name, file = f"walkthrough-{len(figures) + 1}.png", io.BytesIO()
                plt.figure(number).savefig(file, format="png", metadata={"Software": None})
                figures[name] = small_png(file.getvalue())
                parts.append(f"![{name.removesuffix('.png').replace('-', ', figure ')}]({name})\n")
            plt.close("all")
    return "\n".join(parts), figures


def value(number):
    return float(number.replace(",", ""))


def difference(page, kept):
    """The first line of a new page that is not that of the page kept, as a sentence; None where they agree."""
    new, old = page.splitlines(), kept.splitlines()
    for number, (a, b) in enumerate(zip(new, old), 1):
        numbers = list(zip(NUMBER.findall(a), NUMBER.findall(b)))
        near = all(abs(value(x) - value(y)) <= ABSOLUTE + RELATIVE * abs(value(y)) for x, y in numbers)
        if a != b and not (near and " ".join(NUMBER.sub("#", a).split()) == " ".join(NUMBER.sub("#", b).split())):
            return f"line {number}: the program gives {a!r}, the page has {b!r}"
    return None if len(new) == len(old) else f"the program gives {len(new)} lines, the page has {len(old)}"


def moved_ink(figure, kept):
    """The mean difference of two PNG files, in grey values from 0 to 1; 1 where their sizes differ by more than 2 %."""
    import matplotlib.image
    import numpy as np

    a, b = (matplotlib.image.imread(io.BytesIO(file), format="png")[..., :3].mean(-1) for file in (figure, kept))
    if any(abs(x - y) > 0.02 * y for x, y in zip(a.shape, b.shape)):
        return 1.0
    height, width = (min(sizes) for sizes in zip(a.shape, b.shape))
    return float(np.abs(a[:height, :width] - b[:height, :width]).mean())


def faults(page, figures, folder=PAGE.parent):
    """What of the page and the figures in the folder is not what the program gives: sentences."""
    kept = folder / PAGE.name
    found = [difference(page, kept.read_text(encoding="utf-8") if kept.exists() else "")]
    found = [f"{PAGE.name}: {text}" for text in found if text]
    there = {path.name for path in folder.glob("walkthrough-*.png")}
    found += [f"{name}: not drawn by the program any more" for name in sorted(there - set(figures))]
    for name, figure in figures.items():
        if name not in there:
            found.append(f"{name}: is not there")
        elif moved_ink(figure, (folder / name).read_bytes()) > INK:
            found.append(f"{name}: the program draws another figure")
    return found


def main():
    parser = argparse.ArgumentParser(description="Runs the walkthrough and writes docs/WALKTHROUGH.md.")
    parser.add_argument("--check", action="store_true", help="compare with the page that is there; write nothing")
    arguments = parser.parse_args()
    try:
        page, figures = run()
    except ImportError as error:
        sys.exit(f"error: {error}; the walkthrough draws: pip install -e '.[plot]'")
    if arguments.check:
        found = faults(page, figures)
        sys.exit("\n".join([*found, "run `python course/render.py`"]) if found else 0)
    for path in PAGE.parent.glob("walkthrough-*.png"):
        path.unlink()
    for name, figure in figures.items():
        (PAGE.parent / name).write_bytes(figure)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
