"""The benchmark: its measuring, its graphs, and that its quick form runs. No time is judged."""

import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, ok, plain_calibration, write_ring

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
    for name in ("compare", "make_graph", "scaling", "peers", "counts", "baselines"):
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


# ------------------------------------------------------------------------------------------------------------------
# bench/baselines.py, bench/counts.py
# ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    """A run of a ring, with its bounds: every entity has one tail of each relation."""
    folder = tmp_path_factory.mktemp("bench")
    data = write_ring(folder / "ring", 80)
    (data / "bounds.tsv").write_text("r0\t1\t1\nr1\t1\t1\nr2\t1\t1\n", encoding="utf-8")
    ok("train", "--data", data, "--loss", "softmax", "--dim", 24, "--epochs", 40, "--out", folder / "run")
    return folder / "run"


def table_of(text, number):
    """The cells of a table of several, by the first of each row."""
    lines = [line for line in text.split("\n\n")[number].splitlines() if line.startswith("|")]
    return {cells[0]: cells[1:] for cells in ([c.strip() for c in line.strip("|").split("|")] for line in lines[2:])}


@pytest.mark.thorough
def test_baselines_side_by_side(bench, ring, capsys):
    import baselines

    baselines.main([str(ring)])
    out = capsys.readouterr().out
    labels, facts, sets = (table_of(out, number) for number in range(3))
    assert {"frequency of the tail alone", "threshold per relation", "Platt per relation"} < set(labels)
    assert {"ours, bounds: none", "ours, bounds: mined", "ours, bounds: true"} < set(labels)
    assert set(facts) == {"threshold per relation", "Platt per relation", "ours", "ours, given the bounds"}
    assert {"softmax score (Zhu et al.)", "p, given the bounds"} < set(sets)
    shares = [float(x) for row in (*labels.values(), *facts.values()) for x in row[1:5] if x != "-"]
    assert all(0 <= share <= 100 for share in shares)


def test_conformal_sets_cover_what_they_promise(bench):
    """Exchangeable questions, of a conformity known in advance: a set of the best (1 - share) quantile and above."""
    from baselines import answer_sets, conformal_threshold

    table = np.random.default_rng(0).random((4000, 50))
    triples = np.column_stack((np.arange(4000), np.zeros(4000, int), np.zeros(4000, int)))

    def conformity(heads, relations):
        return table[heads]

    limit = conformal_threshold(conformity, triples[:99], 0.9)
    assert limit == np.sort(table[:99, 0])[9]  # the tenth of (99 + 1) from below
    held, size, everywhere, right = answer_sets(conformity, limit, triples[99:], triples[99:, :2].T)
    assert abs(held - 0.9) < 0.08 and held == pytest.approx((table[99:, 0] >= limit).mean())
    assert size == everywhere == pytest.approx((table[99:] >= limit).sum(1).mean())
    assert right == pytest.approx(held / size)
    assert conformal_threshold(conformity, triples[:5], 0.9) == -np.inf  # too few to promise it


def test_false_triples_are_of_no_split(bench, make_dataset):
    from baselines import labelled

    data = make_dataset([(0, 0, 1), (0, 0, 2), (3, 0, 4), (3, 1, 1)], [(3, 0, 1)], [(3, 0, 2)])
    found, labels = labelled(data, data.valid, np.random.default_rng(0))
    assert found.tolist() == [[3, 0, 1]] and labels.tolist() == [True]  # 3 has every tail of 0 in some split
    found, labels = labelled(data, data.train, np.random.default_rng(0))
    assert labels.tolist() == [True, False, True, False, True, True]
    assert found[1].tolist() == found[3].tolist() == [0, 0, 4]


@pytest.mark.thorough
def test_controls_of_bounds(bench, ring, capsys):
    import counts

    counts.main([str(ring)])
    rows = table_of(capsys.readouterr().out, 0)
    assert {
        "true",
        "none",
        "permuted",
        "none, cut at the true bound",
        "score alone: true",
        "score and known: none",
    } <= set(rows)
    assert rows["true"] == rows["permuted"]  # they are all alike here
    assert rows["true"][-1] == "0.00%"
    counts.main([str(ring), "--valid", "0.5", "--draws", "2"])
    assert "±" in table_of(capsys.readouterr().out, 0)["true"][0]
    counts.main([str(ring), "--halves"])
    rows = table_of(capsys.readouterr().out, 0)
    assert set(rows) == {
        f"on the {half}: {name}" for half in ("half that chose", "other half") for name in ("true", "none")
    }
    for options in (["--within-valid"], ["--every", "3"]):
        counts.main([str(ring), "--soft", *options])
        kinds = {"none", "mined", "counts", "counts, within mined", "counts, within true", "Q alone"}
        assert set(table_of(capsys.readouterr().out, 0)) == kinds


def test_what_is_cut_is_beyond_the_bound(bench, make_model):
    """The best of each (h, r) keep their probabilities, as many as there is room for; the others have none."""
    from counts import CutDecoder

    model, calibration = make_model("distmult", 9, 2), plain_calibration([0.5, 0.5], 0.5, 0.0, 0.5)
    known = cardkge.KnownTails(np.array([(0, 0, 1), (0, 1, 2)]), 9, 2)
    heads, relations = np.array([0, 0, 1]), np.array([0, 1, 0])
    scores = model.score_tails(heads, relations)
    plain = cardkge.Decoder(model, calibration, None, known).decode(heads, relations, scores)
    cut = CutDecoder(model, calibration, np.array([(0, 3.0), (0, 1.0)]), known).decode(heads, relations, scores)
    for row, room in enumerate((2, 0, 3)):
        before, after = (found.p[found.row == row] for found in (plain, cut))
        best = np.argsort(-before)[:room]
        assert len(before) > room and np.flatnonzero(after).tolist() == sorted(best.tolist())
        np.testing.assert_array_equal(after[best], before[best])


@pytest.mark.parametrize("script", ["counts.py", "baselines.py"])
def test_a_run_that_is_not_there_is_one_line(script, tmp_path):
    command = [sys.executable, BENCH / script, tmp_path / "none"]
    result = subprocess.run(command, capture_output=True, text=True)
    line = f"error: {tmp_path / 'none'}: no such run; give a folder that train has written\n"
    assert (result.returncode, result.stderr) == (1, line)
