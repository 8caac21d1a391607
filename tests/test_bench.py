"""The benchmark: its measuring, its graphs, and that its quick form runs. No time is judged."""

import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

import cardkge

BENCH = ROOT / "bench"
SECTIONS = {"train", "softmax", "roofline", "threads", "evaluate", "regulariser", "loading", "start", "graph"}


@pytest.fixture
def bench(monkeypatch):
    """bench/ on the path, its modules forgotten afterwards."""
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    yield
    for name in ("compare", "make_graph", "scaling", "peers"):
        sys.modules.pop(name, None)


def test_tasks_alternate_after_a_warm_up(bench):
    from compare import alternate

    calls = []

    def task(name, figures):
        def call():
            calls.append(name)
            return next(figures)

        return call

    found = alternate(2, {"a": task("a", iter([9, 1, 2])), "b": task("b", iter([9, 3, 4]))})
    assert calls == list("ababab")
    assert found == {"a": [1, 2], "b": [3, 4]}


def test_ratio_is_taken_within_rounds(bench):
    from compare import Row, ratio

    # the machine halves its speed for the second round: both are slower, the ratio stays
    slow, fast = [4.0, 8.0, 4.0], [1.0, 2.0, 1.0]
    assert ratio(slow, fast) == 4
    assert ratio([1, 2, 90], [1, 1, 1]) == 2
    row = Row("train", fast, slow, "peer", 4.0, 4, True, "examples")
    assert row.holds
    assert row.cells(True) == ["train", "1 examples/s", "peer 0.25 examples/s", "4", ">= 4", "yes"]
    assert row.cells(False)[-1] == ""  # not judged
    assert not Row("memory", [1], [1], "", 1.7, 1.6, False, "MiB").holds


def test_rows_per_example(bench, make_dataset):
    from compare import rows_per_example

    # with 2 negatives a triple has 4 distinct rows for its 3 examples; then each end of each example gathers the other
    data = make_dataset([(0, 0, 1)] * 6, n_entities=2)
    updated, gathered = rows_per_example(data, cardkge.Settings(batches=1))
    assert updated == pytest.approx(2 / 18)  # both entities, over 6 * 3 examples
    assert gathered == pytest.approx(4 / 3 + 2)


def test_graphs_are_seeded_distinct_and_skewed(bench):
    from make_graph import draw_triples

    triples = draw_triples(500, 10, 6000, seed=3)
    assert triples.shape == (6000, 3) and triples.dtype == np.int32
    assert np.array_equal(triples, draw_triples(500, 10, 6000, seed=3))
    assert not np.array_equal(triples, draw_triples(500, 10, 6000, seed=4))
    assert len(np.unique(triples, axis=0)) == 6000
    assert np.array_equal(np.unique(triples[:, 0]), np.arange(500))  # every entity occurs
    for column, n in ((0, 500), (1, 10), (2, 500)):
        degrees = np.sort(np.bincount(triples[:, column], minlength=n))
        assert degrees[-1] > 2.5 * 6000 / n  # one drawn evenly stays below twice its share
    with pytest.raises(SystemExit, match="10 triples"):
        draw_triples(500, 10, 10)


def test_a_power_law_keeps_its_order_from_draw_to_draw(bench):
    from make_graph import Zipf

    draws, n = Zipf(np.random.default_rng(0), 30, 0.9), 200_000
    expected = np.arange(1.0, 31) ** -0.9
    expected /= expected.sum()
    for _ in range(3):
        shares = np.bincount(draws.draw(n), minlength=30)[draws.order] / n
        assert np.all(np.abs(shares - expected) < 5 * np.sqrt(expected / n))
    assert sorted(draws.order) == list(range(30))


@pytest.mark.parametrize(
    "arguments, part",
    [
        (("--rounds", "0"), "--rounds must be at least 1"),
        (("--scaling", "--only", "train"), "leave one out"),
        (("--json", "/no such folder/x.json"), "there is no folder /no such folder"),
        (("--only", "foo"), "no section foo"),
        (("--data", "nowhere"), "no data set 'nowhere'"),
    ],
)
def test_what_cannot_be_measured_is_said_before_the_first_round(bench, capsys, arguments, part):
    import compare

    with pytest.raises(SystemExit):
        compare.main(["--quick", *arguments])
    out, errors = capsys.readouterr()
    assert part in errors.splitlines()[-1] and not out


def test_graph_files_hold_the_graph(bench, tmp_path):
    from make_graph import draw_triples, split, write

    triples = draw_triples(40, 3, 200)
    write(tmp_path, triples)
    data = cardkge.load_dataset(str(tmp_path))
    for name, part in split(triples).items():
        read = [(data.entities[h], data.relations[r], data.entities[t]) for h, r, t in getattr(data, name)]
        assert read == [(f"e{h}", f"r{r}", f"e{t}") for h, r, t in part]
    assert [len(part) for part in split(triples).values()] == [160, 20, 20]


def program(*arguments):
    command = [sys.executable, str(BENCH / "compare.py"), "--quick", "--rounds", "1", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_the_quick_form_runs(tmp_path):
    out = program("--json", str(tmp_path / "figures.json"))
    assert out.returncode == 0, out.stderr
    report = json.loads((tmp_path / "figures.json").read_text())
    missing = {"train"} if "no peer" in out.stdout else set()
    missing |= {"threads"} if "one core only" in out.stdout else set()
    assert {row["section"] for row in report["rows"]} == SECTIONS - missing
    for row in report["rows"]:
        assert all(np.isfinite(figure) and figure > 0 for figure in row["ours"] + row["other"]), row
        assert np.isfinite(row["ratio"])
        assert row["what"] in out.stdout
    assert report["machine"]["versions"]["cardkge"] == cardkge.__version__
    table = out.stdout[out.stdout.index("holds") :]
    assert not any(line.rstrip().endswith(("yes", " no")) for line in table.splitlines())  # nothing is judged


def test_the_quick_tables_run(tmp_path):
    out = program("--scaling", "--json", str(tmp_path / "figures.json"))
    assert out.returncode == 0, out.stderr
    tables = json.loads((tmp_path / "figures.json").read_text())["scaling"]
    assert {"threads", "dim", "entities", "triples"} <= set(tables)
    for model in ("distmult", "complex", "ermlp"):
        _, whole, *passes = tables[f"a step of {model} 16"]
        assert "loss_units" in {line[0] for line in passes}
        nanoseconds = [float(line[1]) for line in passes if "beside" not in line[0]]
        assert sum(nanoseconds) == pytest.approx(float(whole[1]), abs=len(passes))  # they add up to all of it


def test_wrong_use_is_explained():
    out = program("--only", "train,speed")
    assert out.returncode == 2
    assert "no section speed; there are train, softmax, roofline" in out.stderr
