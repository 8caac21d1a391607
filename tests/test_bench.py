"""The benchmark: its measuring, its graphs, and that its quick form runs. No time is judged."""

import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, ok, write_ring

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
    for name in ("compare", "make_graph", "scaling", "peers", "counts", "take_away", "conditioning"):
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
# bench/counts.py, bench/take_away.py
# ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    """Two runs of a ring, with its bounds: every entity has one tail of each relation."""
    folder = tmp_path_factory.mktemp("bench")
    data = write_ring(folder / "ring", 80)
    (data / "bounds.tsv").write_text("r0\t1\t1\nr1\t1\t1\nr2\t1\t1\n", encoding="utf-8")
    options = "--loss", "softmax", "--dim", 24, "--epochs", 40, "--threads", 1
    for seed in (0, 1):
        ok("train", "--data", data, *options, "--seed", seed, "--out", folder / f"run-{seed}")
    return folder


def tables_of(text):
    """Of each table the cells, row by row."""
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in row] for row in rows]
    rules = [i for i, row in enumerate(rows) if set(row[0]) <= set("-:") and row[0]]
    return [rows[i - 1 : j - 1] for i, j in zip(rules, [*rules[1:], len(rows) + 1], strict=True)]


@pytest.mark.thorough
def test_what_is_promised_and_kept_with_controls(bench, ring, capsys):
    import counts

    runs = [str(ring / f"run-{seed}") for seed in (0, 1)]
    counts.main([str(ring / "ring"), *runs, "--controls", "--loops"])
    shares, settings, _, differences = tables_of(capsys.readouterr().out)
    assert sorted(row[0] for row in shares[2:]) == ["r0", "r1", "r2"]
    found = {(row[0], row[4]): row for row in settings[2:]}
    names = {"none", "true", "permuted", "uppers x 3", "none, loops too"}
    assert set(found) == {(name, rule) for name in names for rule in counts.RULES}
    assert found["true", "p > 0.5"][1:] == found["permuted", "p > 0.5"][1:]  # all relations are alike here
    assert float(found["true", "p > 0.5"][7]) > 80 and "±" in differences[2][1]
    # given test as the truth, what a file says of test says the same
    whole = ring / "whole.tsv"
    whole.write_text("".join((ring / "ring" / f"{name}.txt").read_text() for name in ("train", "valid", "test")))
    counts.main([str(ring / "ring"), *runs, "--truth", str(whole)])
    assert {tuple(row) for row in tables_of(capsys.readouterr().out)[1][2:]} < {tuple(row) for row in settings}


@pytest.mark.thorough
def test_numbers_of_single_heads(bench, ring, capsys):
    """The whole answers of the eighty heads of the ring: each has its next, and e0 none that is said to be true."""
    import wikicount

    folder = ring / "ring"
    lines = [f"e{i}\tr0\t{'1' if i else '0'}\t{f'e{(i + 1) % 80}' if i else ''}\t0\n" for i in range(80)]
    (folder / "complete-sets.tsv").write_text("".join(lines))
    (folder / "numbers.tsv").write_text("e50\tr1\t1\texact\ne51\tr1\t1\tat least\nstranger\tr1\t3\texact\n")
    wikicount.main([str(folder), "--run", str(ring / "run-0"), "--settings", "none,numbers,closed,permuted"])
    answers, counts, numbers, complete = tables_of(capsys.readouterr().out)
    found = {tuple(row[:2]): row for row in answers[2:]}
    assert len(found) == 8 and float(found["true numbers of half", "given"][2]) > 80
    assert [row[:4] for row in numbers[2:]] == [["r1", "2", "2", numbers[2][3]]]
    assert {row[0] for row in counts[2:]} > {"known tails alone", "mean of the relation"}
    assert [row[:2] for row in complete[2:] if row[0].startswith("card_0")] == [["card_0: 0 or more", "40"]]


@pytest.mark.thorough
def test_a_graph_with_facts_taken_away(bench, ring, capsys):
    """From the taking away to the final run: what it promises is held against what was taken away."""
    import counts
    import take_away

    part = ring / "part"
    take_away.main([str(ring / "ring"), "0.2", str(part)])
    capsys.readouterr()
    ok("split", part, "--valid", 0.1, "--test", 0.1, "--no-group", "--out", ring / "part-split")
    options = "--loss", "softmax", "--dim", 24, "--epochs", 40, "--threads", 1, "--no-calibrate"
    ok("train", "--data", ring / "part-split", *options, "--out", ring / "part-run")
    ok("calibrate", ring / "part-run", "--missing", part / "missing.tsv")
    ok("train", "--final", ring / "part-run", "--threads", 1, "--out", ring / "part-final")
    command = [str(ring / "part-split"), "RUN", "--truth", str(part / "whole.tsv")]
    command[1] = str(ring / "part-final")
    counts.main(command)
    shares, settings, *_ = tables_of(capsys.readouterr().out)
    gone = sum(int(line.split("\t")[1]) for line in (part / "missing.tsv").read_text().splitlines())
    assert settings[2][0] == "final" and settings[2][-1] == f"{gone}"
    command[1] = str(ring / "part-run")
    counts.main([*command, "--bounds", "none", "--bounds", "mined", "--share", "fits,sizes"])
    found = {row[0]: row for row in tables_of(capsys.readouterr().out)[1][2:]}
    assert set(found) == {f"{name}, v {share}" for name in ("none", "mined") for share in ("fits", "sizes")}
    assert sum(int(row[1]) + int(row[2]) for row in shares[2:]) == gone + 2 * round(0.1 * 192)


def test_the_interval_of_what_is_promised(bench):
    """Two runs; heads are drawn, not facts: one head with all its facts false weighs as one."""
    from counts import Accepted, gap_interval

    def run(heads, p, true, facts):
        triples = np.column_stack((heads, np.zeros((len(heads), 2), int)))
        return Accepted(triples, np.array(p), np.array(true), np.zeros((facts, 3), int))

    runs = [run([0, 1, 1], [0.9, 0.8, 0.7], [True, False, False], 4), run([2], [0.6], [True], 2)]
    found = gap_interval(runs)
    assert (found["n"], found["true"], found["facts"]) == (2, 1, 3)
    assert found["promised"] == pytest.approx(0.75) and found["kept"] == 0.5
    assert found["low"] == pytest.approx(-0.4) and found["high"] == pytest.approx(0.75)  # head 2 alone, head 1 alone
    assert gap_interval(runs, np.array([False]))["n"] == 0


def test_facts_are_taken_away_at_random(bench):
    from take_away import take_away

    triples = np.array([(h, h == 0, t) for h in range(10) for t in range(10)])
    triples[0, 1] = 2  # the only fact of its relation
    for seed in range(20):
        kept, gone = take_away(triples, 0.5, np.random.default_rng(seed))
        assert len(gone) in (49, 50) and (kept[:, 1] == 2).sum() == 1
        np.testing.assert_array_equal(np.unique(np.concatenate((kept, gone)), axis=0), np.unique(triples, axis=0))


def test_conditioning_is_measured(bench):
    import conditioning

    assert all(figure > 0 for figure in conditioning.rate(20, 5, 0, 2, threads=1, rounds=1))


def test_a_run_that_is_not_there_is_one_line(tmp_path):
    command = [sys.executable, BENCH / "counts.py", tmp_path, tmp_path / "none"]
    result = subprocess.run(command, capture_output=True, text=True)
    line = f"error: {tmp_path / 'none'}: no such run; give a folder that train has written\n"
    assert (result.returncode, result.stderr) == (1, line)
