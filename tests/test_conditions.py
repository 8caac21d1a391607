"""What answers are given and measured against: bounds at use, what is missing, parts, whole answers."""

import itertools
import json
import math
import shutil
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import invoke, ok, one_error, usage_error

import cardkge
from cardkge_tools.answers import decoding, showing
from cardkge_tools.answers.answers import Answers
from cardkge_tools.answers.calibration import calibrate
from cardkge_tools.answers.decoding import Decoder, KnownAndLoops, KnownTails
from cardkge_tools.answers.facts import fact_decoder, known_triples, run_bounds
from cardkge_tools.answers.measures import Truth, evaluate_sets, read_truth
from cardkge_tools.answers.opening import open_run
from cardkge_tools.definitions import measures
from cardkge_tools.graph.rdf import Prefixes

N, KINDS = 9, {"a": "blue", "b": "blue", "c": "red"}
NAMES = "abcdefghi"


def write(folder):
    """Nine entities, two relations, of each some 14 facts in train, 5 in valid, 5 in test; a class `blue`."""
    folder.mkdir()
    rng = np.random.default_rng(2)
    triples = [(h, r, t) for h in range(N) for r in range(2) for t in range(N) if h != t]
    chosen = [triples[i] for i in rng.permutation(len(triples))[:48]]
    for split, part in (("train", chosen[:28]), ("valid", chosen[28:38]), ("test", chosen[38:])):
        lines = (f"{NAMES[h]}\tr{r}\t{NAMES[t]}\n" for h, r, t in part)
        (folder / f"{split}.txt").write_text("".join(lines))
    (folder / "types.tsv").write_text("".join(f"{name}\t{kind}\n" for name, kind in KINDS.items()))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A calibrated run without bounds, of random parameters. Not to be written to."""
    home = tmp_path_factory.mktemp("conditions")
    data = write(home / "data")
    run = cardkge.new_run(cardkge.Settings(data=str(data), model="distmult", dim=3), cardkge.load_dataset(data))
    rng = np.random.default_rng(5)
    for array in run.model.params.values():
        array[...] = rng.normal(0, 1, array.shape)
    run.epoch, run.history = 1, [{"epoch": 1, "objective": 1.0, "loss": 1.0, "penalty": 0.0, "seconds": 1.0}]
    cardkge.save_run(run, home / "run")
    ok("calibrate", home / "run", "--share", 0.2)
    return home / "run"


@pytest.fixture
def run(made, tmp_path):
    """A copy of it."""
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def predicted(run, head, relation, *more):
    """{tail: p} of the new ones, and the report."""
    report = json.loads(
        ok("predict", run, "--head", head, "--relation", relation, "--top", 99, "--json", "-", *more).stdout
    )
    return {each["entity"]: each["probability"] for each in report["answers"] if not each["known"]}, report


def given_number(p, least, most):
    """{tail: p} of independent tails given that least to most of them are facts: by all sets."""
    inside, total = dict.fromkeys(p, 0.0), 0.0
    for chosen in itertools.chain.from_iterable(itertools.combinations(p, k) for k in range(len(p) + 1)):
        if least <= len(chosen) <= most:
            weight = math.prod(p[t] if t in chosen else 1 - p[t] for t in p)
            total += weight
            for t in chosen:
                inside[t] += weight
    return {t: x / total for t, x in inside.items()}


# --- bounds at use


def test_one_number_more_needs_no_training(made, tmp_path):
    """Bounds of all heads, of a class and of a head: p is what enumeration says, of what it is without bounds."""
    path = tmp_path / "bounds.tsv"
    text = "r0\t0\t5\nr0\t4\t4\tblue\nr1\t0\t6\nr1\t7\t7\t\tc\n"
    limits = {"r0": {"a": (4, 4), "b": (4, 4), "h": (0, 5)}, "r1": {"a": (0, 6), "c": (7, 7)}}
    for line, changed in (("", {}), ("r0\t5\t5\t\th\n", {"h": (5, 5)})):
        path.write_text(text + line)
        limits["r0"] |= changed
        for relation, heads in limits.items():
            for head, (lower, upper) in heads.items():
                free, report = predicted(made, head, relation, "--bounds", "none")
                known = sum(each["known"] is not None for each in report["answers"])
                free.pop(head)  # no loop is a candidate
                found, report = predicted(made, head, relation, "--bounds", path)
                assert found.pop(head) == 0 and report["bounds"] == [lower, upper]
                expected = given_number(free, lower - known, upper - known)
                assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)
                assert report["expected"] == pytest.approx(known + sum(expected.values()))
    assert found != pytest.approx(free, rel=1e-3)


def test_without_a_lower_bound_p_has_no_scale_where_all_heads_had_one_at_the_fit(run, tmp_path):
    """At least 8 tails of every head of r1 at the fit; other bounds that ask for tails of r1 too are taken."""
    path, other = tmp_path / "bounds.tsv", tmp_path / "other.tsv"
    path.write_text("r1\t8\t20\n")
    ok("calibrate", run, "--bounds", path)
    other.write_text("r0\t0\t9\n")
    query = "predict", run, "--head", "a", "--relation", "r1", "--bounds"
    for bounds in ("none", "mined", other):
        line = one_error(invoke(*query, bounds))
        assert f"--bounds {bounds}: no lower bound in r1, and the calibration was fitted where" in line
        assert line.endswith(f"calibrate {run} --bounds {bounds}")
    other.write_text("r1\t8\t9\n")
    assert "p is more reliable after" in ok(*query, other).stderr
    ok("calibrate", run, "--bounds", "none")
    ok(*query, "none")


def facts_of(*arguments):
    result = ok("complete", *arguments, "--known", "valid")
    return [line.rsplit("\t", 1) for line in result.stdout.splitlines()], result.stderr


def test_a_calibration_keeps_the_bounds_that_it_is_fitted_through(run, tmp_path):
    path = tmp_path / "bounds.tsv"
    path.write_text("r1\t0\t6\nr0\t4\t4\tblue\nr1\t7\t7\t\tc\n^r0\t0\t6\nr0\t0\t5\n")
    ok("calibrate", run, "--bounds", path)
    same = tmp_path / "same.tsv"
    same.write_text("".join(sorted(path.read_text().splitlines(keepends=True))) + "^r1\t0\tinf\n")
    path.unlink()  # the run's folder needs nothing else
    assert (run / "bounds.tsv").read_text() == "r0\t0\tinf\nr1\t0\tinf\n"
    for head in "ah":
        by_default, given = predicted(run, head, "r0"), predicted(run, head, "r0", "--bounds", same)
        assert by_default == given and by_default[1]["bounds"] == ([4, 4] if head == "a" else [0, 5])
    for command in (
        ["predict", run, "--head", "a", "--relation", "r0"],
        ["complete", run, "--min-probability", 0],
        ["evaluate", "--sets", run],
    ):
        default, given = ok(*command), ok(*command, "--bounds", same)
        assert default.stdout == given.stdout and "--bounds" not in default.stderr + given.stderr
        assert default.stdout != ok(*command, "--bounds", "none").stdout
    ok("calibrate", run)
    assert json.loads((run / "calibration.json").read_text())["bounds"] is None
    assert not run_bounds(cardkge.load_run(run)).any()


def test_fit_and_use_go_through_the_same_bounds(run, tmp_path):
    """Another calibration, not only other answers."""
    path = tmp_path / "bounds.tsv"
    path.write_text("r0\t0\t5\n")
    before = json.loads((run / "calibration.json").read_text())["relations"]
    ok("calibrate", run, "--bounds", path, "--share", 0.2)
    after = json.loads((run / "calibration.json").read_text())["relations"]
    assert after["r0"] != before["r0"]


@pytest.mark.parametrize(
    "command",
    [["predict", "--head", "a", "--relation", "r0"], ["complete"], ["evaluate", "--sets"]],
    ids=lambda x: x[0],
)
def test_other_bounds_than_those_of_the_calibration_are_used_and_said(run, tmp_path, command):
    path, (name, *more) = tmp_path / "bounds.tsv", command
    path.write_text("r0\t0\t5\n")
    ok("calibrate", run, "--bounds", path)
    for other in ("none", "mined", tmp_path / "other.tsv"):
        (tmp_path / "other.tsv").write_text("r0\t0\t6\n")
        result = ok(name, run, *more, "--bounds", other)
        lines = [line for line in result.stderr.splitlines() if "fitted through other bounds" in line]
        assert len(lines) == 1 and f"calibrate {run} --bounds {other}" in lines[0]
    path.write_text("r0\t0\t5\nr0\tmany\t5\n")
    assert f"{path}:2: expected two numbers" in one_error(invoke(name, run, *more, "--bounds", path))
    assert "expected mined, none or a file" in one_error(invoke(name, run, *more, "--bounds", tmp_path / "no"))
    assert f"{path}:2: " in one_error(invoke("calibrate", run, "--bounds", path))


def test_mined_bounds_at_use_are_no_limits(run):
    ok("calibrate", run, "--bounds", "mined")
    stated = cardkge.load_run(run)
    assert stated.calibration.prior is not None and run_bounds(stated) is stated.calibration.prior
    shown = ok("predict", run, "--head", "a", "--relation", "r0", "--bounds", "mined")
    assert "for which it is no limit" in shown.stdout and "other bounds" not in shown.stderr
    ok("calibrate", run)
    again = ok("predict", run, "--head", "a", "--relation", "r0", "--bounds", "mined")
    assert "for which it is no limit" in again.stdout and "other bounds" in again.stderr
    assert "not conditioned" in ok("predict", run, "--head", "a", "--relation", "r0").stdout


# --- (h, r) that are asked for, and how complete they are


def test_some_queries_in_the_place_of_the_scope(made, tmp_path):
    path = tmp_path / "queries.tsv"
    path.write_text("c\tr1\na\tr0\nc\tr1\n")
    least = "--min-probability", 0.05
    lines = ok("complete", made, *least).stdout.splitlines()
    wanted = [line for line in lines if line.startswith(("c\tr1\t", "a\tr0\t"))]
    assert ok("complete", made, *least, "--queries", path).stdout.splitlines() == wanted and len(wanted) > 3
    assert "exclude each other" in usage_error(invoke("complete", made, "--queries", path, "--relation", "r0"))
    for text, message in (
        ("a\tr0\n?\tr0\ta\n", ":2: a query for heads"),
        ("a\tr0\nzz\tr0\n", ":2: "),
        ("a\n", ":1: not a query"),
        ("", ": no query in it"),
    ):
        path.write_text(text)
        assert f"{path}{message}" in one_error(invoke("complete", made, "--queries", path))


def test_how_complete_answers_are(made, tmp_path, monkeypatch):
    """By all sets: no set but the empty one, of those that the bounds allow."""
    monkeypatch.setattr(decoding, "LEFT_OUT", 1e-200)
    bounds, path = tmp_path / "bounds.tsv", tmp_path / "completeness.tsv"
    for text in ("", "r0\t0\t5\nr1\t0\t2\nr0\t4\t7\t\tc\nr1\t8\t8\t\td\n"):
        bounds.write_text(text or "r0\t0\tinf\n")
        ok("complete", made, "--bounds", bounds, "--completeness", path, "--out", tmp_path / "new.tsv")
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        assert len(rows) == len({tuple(row[:2]) for row in rows}) > 14 and all(len(row) == 5 for row in rows)
        for head, relation, known, expected, none in rows:
            free, report = predicted(made, head, relation, "--bounds", "none")
            _, given = predicted(made, head, relation, "--bounds", bounds)
            lower, upper = given["bounds"] if text else (0, None)
            lower, upper = max(lower - int(known), 0), (upper or math.inf) - int(known)
            free.pop(head)
            assert int(known) == sum(each["known"] is not None for each in report["answers"])
            if upper < 0:
                assert expected == none == ""
                continue
            chances = {}
            for chosen in itertools.chain.from_iterable(itertools.combinations(free, k) for k in range(len(free) + 1)):
                if lower <= len(chosen) <= upper:
                    chances[chosen] = math.prod(free[t] if t in chosen else 1 - free[t] for t in free)
            assert float(none) == pytest.approx(chances.get((), 0.0) / sum(chances.values()), rel=1e-4, abs=1e-9)
            assert float(expected) == pytest.approx(given["expected"], rel=1e-4)
    assert any(row[3] == "" for row in rows) and any(row[4] == "0" for row in rows)


# --- what is missing


def test_calibrate_says_what_is_missing(run, tmp_path):
    path = tmp_path / "missing.tsv"
    path.write_text("r1\t12\n")
    result = ok("calibrate", run, "--missing", path)
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.startswith("r")}
    data = open_run(run)[1]
    held = {s: np.bincount(getattr(data, s)[:, 1], minlength=2).tolist() for s in ("valid", "test")}
    r = data.relations.index("r1")
    assert rows["r1"][1:5] == [str(held["valid"][r]), str(held["test"][r]), "12", "given"]
    assert rows["r0"][3:5] == ["0", "assumed"] and "p speaks of facts like those of test" in result.stdout
    kept = json.loads((run / "calibration.json").read_text())["relations"]["r1"]
    assert (kept["valid"], kept["test"], kept["missing"]) == (held["valid"][r], held["test"][r], 12)
    # 20 facts or more are missing in it, and so its share is its own
    assert held["valid"][r] + held["test"][r] + 12 >= 20
    share = held["valid"][r] / (held["valid"][r] + held["test"][r] + 12)
    assert kept["share"] == pytest.approx(share)


def test_what_is_known_lowers_the_odds_of_the_rest(run, tmp_path):
    """s of each relation, by what is known; the odds of the same candidate are in the ratio of 1 - s."""
    path = tmp_path / "missing.tsv"
    path.write_text("r1\t12\nr0\t30\n")
    ok("calibrate", run, "--missing", path)
    stated, data = open_run(run)
    held = [np.bincount(getattr(data, split)[:, 1], minlength=2) for split in ("valid", "test")]
    beside = np.array([{"r0": 30, "r1": 12}[name] for name in stated.relations])
    shares = {"train": 0 * beside, "valid": held[0] / (sum(held) + beside), "all": sum(held) / (sum(held) + beside)}
    heads, relations = np.repeat(np.arange(N), 2), np.tile([0, 1], N)
    scores = stated.model.score_tails(heads, relations)
    index = KnownTails(data.known, N, 2)
    reference = None
    for known, share in shares.items():
        decoder = fact_decoder(stated, data, run, known, None)
        np.testing.assert_allclose(decoder.calibration.known_share, share)
        decoder.known, decoder.excluded, decoder.floor = index, index, 1e-300
        p = decoder.decode(heads, relations, scores)
        odds = p.p / (1 - p.p) / (1 - share[relations[p.row]])
        reference = odds if reference is None else reference
        np.testing.assert_allclose(odds, reference, rtol=1e-9)
    assert Answers(run).decoder.calibration.known_share == pytest.approx(shares["all"])


def test_a_share_of_all_relations(run):
    ok("calibrate", run, "--share", 0.125)
    stated, _ = open_run(run)
    np.testing.assert_array_equal(stated.calibration.share, [0.125, 0.125])
    # valid and test have 10 facts each: 80 are missing from train, and 20 are known where all splits are
    np.testing.assert_allclose(stated.calibration.knowing("all").known_share, 0.25)
    ok("calibrate", run, "--share", 0.9)  # more than valid's part of the splits: nothing is left for elsewhere
    assert open_run(run)[0].calibration.missing.source == ["assumed", "assumed"]


def test_bad_input_of_calibrate(run, tmp_path):
    path = tmp_path / "missing.tsv"
    for text, message in (
        ("r0\t1\nr9\t3\n", ":2: unknown relation 'r9'"),
        ("r0\t-1\n", ":1: expected how many facts are missing"),
        ("r0\t1\nr1\t2\nr0\t1\n", ":3: relation 'r0' for the second time, after line 1"),
    ):
        path.write_text(text)
        assert f"{path}{message}" in one_error(invoke("calibrate", run, "--missing", path))
    assert "no relation has exact numbers" in one_error(invoke("calibrate", run, "--missing-elsewhere", "pooled"))
    assert usage_error(invoke("calibrate", run, "--share", "1"))
    both = usage_error(invoke("calibrate", run, "--share", "0.5", "--missing", path))
    assert "--share excludes --missing" in both


def test_a_final_run_takes_what_is_missing_with_it(tmp_path):
    data = write(tmp_path / "data")
    (tmp_path / "bounds.tsv").write_text("r0\t0\t5\n")
    (tmp_path / "missing.tsv").write_text("r1\t12\n")
    small = "--dim", 3, "--epochs", 1, "--batches", 1
    ok("train", "--data", data, *small, "--out", tmp_path / "run")
    ok("calibrate", tmp_path / "run", "--bounds", tmp_path / "bounds.tsv", "--missing", tmp_path / "missing.tsv")
    ok("train", "--final", tmp_path / "run", "--out", tmp_path / "final")
    first, final = (cardkge.load_run(tmp_path / name) for name in ("run", "final"))
    assert first.calibration.bounds == final.calibration.bounds == "r0\t0\t5"
    assert run_bounds(final).of(final.relations.index("r0"), [0]).tolist() == [[0, 5]]
    assert final.calibration.missing.rows() == first.calibration.missing.rows()


# --- parts


def test_promised_and_kept_by_hand():
    """Three parts; in the first 2 of 3 that are accepted are facts, in the second none of 1, in the third none is."""
    accepted = np.array([0, 1, 0, 0]), np.array([0.9, 0.6, 0.8, 0.7]), np.array([True, False, False, True])
    found = measures.promised_and_kept(3, np.array([0, 0, 1, 2, 2]), accepted, np.array([0, 0, 2]))
    assert [found[key].tolist() for key in ("pairs", "accepted", "facts")] == [[2, 1, 2], [3, 1, 0], [2, 0, 1]]
    np.testing.assert_allclose(found["promised"], [0.8, 0.6, np.nan])
    np.testing.assert_allclose(found["kept"], [2 / 3, 0, np.nan])


def test_broken_promises_by_hand():
    promised, kept = np.array([0.9, 0.9, 0.5, np.nan, 0.7]), np.array([0.83, 0.81, 0.7, np.nan, 0.1])
    assert measures.broken_promises([100, 100, 200, 0, 99], promised, kept).tolist() == [2, 1]


def test_the_parts_are_told_and_the_worst_are_named(monkeypatch, capsys):
    parts = {
        "relation": {"accepted": [100, 500, 300], "promised": [0.9, 0.8, 0.9], "kept": [0.5, 0.79, 0.6]},
        "known": {"accepted": [100, 200, 99, 500], "promised": [0.9, 0.8, 0.9, 0.6], "kept": [0.7, 0.9, 0.1, 0.73]},
    }
    parts = {by: {key: np.array(x) for key, x in of.items()} for by, of in parts.items()}
    missing = SimpleNamespace(elsewhere=np.array([5.0, 0, 0]))
    run = SimpleNamespace(relations=["p", "q", "s"], calibration=SimpleNamespace(missing=missing))
    said = []
    monkeypatch.setattr(showing, "warn", said.append)
    showing.warn_of_parts(run, parts, None)
    assert said == [
        "promised and kept differ by more than 8 points: p (promised 90.0 %, kept 50.0 % of 100, a floor), s (promised"
        " 90.0 %, kept 60.0 % of 300), 0 known tails (promised 90.0 %, kept 70.0 % of 100), and 2 more"
    ]
    showing.warn_of_parts(run, parts, object())
    assert "a floor" not in said[1]
    parts = {by: of | {"kept": of["promised"] - 0.07} for by, of in parts.items()}
    showing.warn_of_parts(run, parts, None)
    assert len(said) == 2


def test_parts_are_those_of_complete(made):
    """By relation and number of known tails: counted from what `complete` writes."""
    report = json.loads(
        ok(
            "evaluate", made, "--sets", "--min-probability", 0.2, "--by", "relation", "--by", "known", "--json", "-"
        ).stdout
    )
    stated, data = open_run(made)
    lines, _ = facts_of(made, "--min-probability", 0.2)
    known = KnownTails(known_triples(data, "valid"), N, 2)
    ids = {name: i for i, name in enumerate(stated.entities)}
    test = {tuple(fact) for fact in data.test.tolist()}
    found = []
    for names, p in lines:
        h, name, t = names.split("\t")
        r = stated.relations.index(name)
        count = int(known.count([ids[h]], [r])[0])
        found.append((name, str(count) if count < 3 else "3 or more", float(p), (ids[h], r, ids[t]) in test))
    assert len(found) == report["accepted"] > 20
    pairs = [(h, r) for r in range(2) for h in np.unique(data.train[:, 0])]  # all heads of r0 or r1: each has both
    for place, by in enumerate(("relation", "known")):
        parts = report["by"][by]
        assert sum(part["facts"] for part in parts.values()) == report["facts"] == len(test)
        assert sum(part["pairs"] for part in parts.values()) == report["pairs"] <= len(pairs)
        for name, part in parts.items():
            own = [each for each in found if each[place] == name]
            assert part["accepted"] == len(own)
            if own:
                assert part["promised"] == pytest.approx(np.mean([each[2] for each in own]), rel=1e-5)
                assert part["kept"] == pytest.approx(np.mean([each[3] for each in own]))
    shown = ok("evaluate", made, "--sets", "--by", "known").stdout
    assert "known tails" in shown and "a floor where more than test is missing" in shown
    assert "by" not in json.loads(ok("evaluate", made, "--sets", "--json", "-").stdout)
    assert "--by side is not for --sets" in usage_error(invoke("evaluate", made, "--sets", "--by", "side"))
    assert "--by known is for --sets" in usage_error(invoke("evaluate", made, "--by", "known"))


def test_a_world_that_is_closed_has_no_floor(run, tmp_path):
    (tmp_path / "missing.tsv").write_text("r0\t0\nr1\t0\n")
    ok("calibrate", run, "--missing", tmp_path / "missing.tsv")
    assert "test alone counts as true, and is all that is missing" in ok("evaluate", run, "--sets").stdout


# --- whole answers


def test_loops_are_measured_by_a_calibration_that_has_seen_them(run):
    """It is fitted for these figures alone; a final run has nothing to fit it on."""
    before = (run / "calibration.json").read_bytes()
    found = json.loads(ok("evaluate", run, "--sets", "--loops", "--json", "-").stdout)
    opened, data = open_run(run)
    model, splits, share = opened.best_model(), (data.train, data.valid), np.full(2, 0.2)
    of = {loops: calibrate(model, splits, share, types=opened.types, loops=loops) for loops in (False, True)}
    log_loss = {
        loops: evaluate_sets(model, of[loops], None, data, types=opened.types, loops=True)[0]["log_loss"]
        for loops in of
    }
    assert found["log_loss"] == pytest.approx(log_loss[True]) != pytest.approx(log_loss[False], rel=1e-3)
    assert (run / "calibration.json").read_bytes() == before
    ok("train", "--final", run, "--out", run.parent / "final")
    assert "--loops fits anew on valid" in one_error(invoke("evaluate", run.parent / "final", "--sets", "--loops"))


def test_measured_against_whole_answers(made, tmp_path, monkeypatch):
    """The definitions over all candidates of the (h, r) in the file, by hand: of facts of test that it lacks, of empty
    answers, and of tails that no candidate can be."""
    monkeypatch.setattr(decoding, "LEFT_OUT", 1e-200)
    run, data = open_run(made)
    names, known = run.entities, KnownTails(known_triples(data, "valid"), N, 2)
    rng, true, empty = np.random.default_rng(1), {}, (names.index("c"), 0)
    recorded = {tuple(fact) for fact in data.known.tolist()}
    test = {tuple(fact) for fact in data.test.tolist()}
    for h in range(7):
        for r in range(2):
            tails = {t for t in range(N) if (h, r, t) in recorded and rng.random() < 0.6}
            true[h, r] = tails | set(rng.integers(0, N, 2).tolist())  # loops among them, which cannot be answered
    true[empty] = set()
    assert any((h, r, h) in {(h, r, t) for t in true[h, r]} for h, r in true)
    assert any(fact not in {(h, r, t) for h, r in true for t in true[h, r]} for fact in test if fact[:2] in true)
    lines = [
        f"{names[h]}\t{run.relations[r]}\t{len(tails) + 1}\t{' '.join(names[t] for t in tails)}\t1\n"
        for (h, r), tails in true.items()
    ]
    (tmp_path / "truth.tsv").write_text("".join(lines) + "nobody\tr0\t0\t\t0\na\tr7\t0\t\t0\n")
    result = ok("evaluate", made, "--sets", "--truth", tmp_path / "truth.tsv", "--json", "-", "--min-probability", 0.3)
    assert f"left out 2 lines of unknown heads or relations, the first line {len(lines) + 1}, 'nobody'" in result.stderr
    found = json.loads(result.stdout)
    rows, pairs = [], []  # p, is a fact, of an empty answer, of all candidates; known, expected, true of each pair
    index = KnownAndLoops(known, np.ones(2, bool))
    decoder = Decoder(run.best_model(), run.calibration, None, known, index)
    for (h, r), tails in true.items():
        of = np.array([h]), np.array([r])
        decoded = decoder.decode(*of, run.model.score_tails(*of))
        count, facts = int(decoded.known[0]), 0
        for t, p in zip(decoded.ids.tolist(), decoded.p.tolist(), strict=True):
            facts += t in tails
            if t in tails or (h, r, t) not in test:
                rows.append((p, t in tails, (h, r) == empty))
        pairs.append((count, float(decoded.expected()[0]), count + facts, (h, r) == empty))
    p, fact, of_empty = (np.array(x) for x in zip(*rows))
    _, expected, whole, none = (np.array(x) for x in zip(*pairs))
    total, here, taken = int(fact.sum()), ~of_empty, p > 0.3
    assert found["facts"] == total and found["pairs"] == len(true) and found["empty"] == 1
    assert found["ap"] == pytest.approx(measures.average_precision(p[here], fact[here], total), rel=1e-4)
    assert found["log_loss"] == pytest.approx(measures.log_loss(p[here], fact[here], total))
    assert found["brier"] == pytest.approx(measures.brier_score(p[here], fact[here], total))
    assert found["ece"] == pytest.approx(measures.calibration_error(p[here], fact[here]))
    assert found["accepted"] == taken.sum() and (taken & of_empty).any()
    assert found["precision"] == pytest.approx(fact[taken].mean())
    assert found["recall"] == pytest.approx(fact[taken].sum() / total)
    assert found["f1"] == pytest.approx(2 * fact[taken].sum() / ((taken & here).sum() + total))
    assert found["count_mae"] == pytest.approx(measures.count_error(expected[~none], whole[~none]))
    monkeypatch.setattr(
        decoding, "LEFT_OUT", 0.25 * N
    )  # what is not looked at is a tie, of the answers that are measured alone
    floor = decoding.LEFT_OUT / N
    assert (fact & here & (p <= floor)).any()
    found = json.loads(ok("evaluate", made, "--sets", "--truth", tmp_path / "truth.tsv", "--json", "-").stdout)
    tied = measures.average_precision(np.where(p > floor, p, 0)[here], fact[here], total)
    assert found["ap"] == pytest.approx(tied, rel=1e-5)
    assert "the whole answers are known" in ok("evaluate", made, "--sets", "--truth", tmp_path / "truth.tsv").stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tr0\t1\tb\n", ":1: expected head, relation, number of tails"),
        ("a\tr0\t1\tb\tx\n", ":1: expected head, relation, number of tails"),
        ("a\tr0\t1\tb\t0\na\tr1\t2\tb zz\t0\n", ":2: unknown entity 'zz'"),
        ("a\tr0\t3\tb c\t0\n", ":1: the number is 3, but 2 tails and 0 others stand there"),
        ("a\tr0\t2\tb b\t0\n", ":1: the number is 2, but 1 tail and 0 others stand there"),
        ("a\tr0\t1\tb\t0\na\tr1\t0\t\t0\na\tr0\t1\tb\t0\n", ":3: 'a', 'r0' for the second time, after line 1"),
        ("zz\tr0\t0\t\t0\n", ": no line is of a head and a relation of the graph"),
        ("a\tr0\t1\t\t1\n", "no facts in the whole answers are new"),
    ],
)
def test_whole_answers_that_are_none(made, tmp_path, text, message):
    path = tmp_path / "truth.tsv"
    path.write_text(text)
    assert message in one_error(invoke("evaluate", made, "--sets", "--truth", path))
    assert "--truth needs --sets" in usage_error(invoke("evaluate", made, "--truth", path))


def test_names_with_spaces_are_read_as_long_as_can_be(tmp_path):
    names = ["Ada Bly", "Ada", "Bly", "Cy"]
    run = SimpleNamespace(entities=names, relations=["r"], prefixes=Prefixes())
    path = tmp_path / "truth.tsv"
    path.write_text("Cy\tr\t4\tAda Bly Bly Ada Cy\t0\n")
    truth, note = read_truth(path, run)
    assert note is None and sorted(truth.triples.tolist()) == [[3, 0, 0], [3, 0, 1], [3, 0, 2], [3, 0, 3]]
    assert isinstance(truth, Truth) and truth.heads.tolist() == [3]


def test_whole_answers_that_disown_what_is_known_are_told(made, tmp_path):
    run, data = open_run(made)
    (h, r, _), names = data.train[0].tolist(), run.entities
    free = next(x for x in range(N) if x != h and not (data.known == (h, r, x)).all(1).any())
    path = tmp_path / "truth.tsv"
    path.write_text(f"{names[h]}\t{run.relations[r]}\t1\t{names[free]}\t0\n")
    result = ok("evaluate", made, "--sets", "--truth", path)
    assert f"of train and valid not among its tails, the first {names[h]} {run.relations[r]} " in result.stderr
    assert "against 1 fact that are missing" not in result.stdout and "1 fact that is missing" in result.stdout
    tails = {x for _, _, x in data.known.tolist() if (data.known == (h, r, x)).all(1).any()} | {free}
    path.write_text(f"{names[h]}\t{run.relations[r]}\t{len(tails)}\t{' '.join(names[x] for x in tails)}\t0\n")
    assert "not among its tails" not in ok("evaluate", made, "--sets", "--truth", path).stderr


def test_a_bound_that_the_known_tails_contradict_is_said_to_be_ignored(made, tmp_path):
    run, data = open_run(made)
    counts = Counter(tuple(fact[:2]) for fact in data.known.tolist())
    (h, r), count = max(counts.items(), key=lambda each: (each[1], each[0]))
    path, query = tmp_path / "bounds.tsv", ("predict", made, "--head", run.entities[h], "--relation", run.relations[r])
    for upper, said in ((count - 1, True), (count, False)):
        path.write_text(f"{run.relations[r]}\t0\t{upper}\n")
        shown = ok(*query, "--bounds", path).stdout
        line = f"the data contradicts this bound ({count} are known): it is ignored, and nothing new is predicted"
        assert (line in shown) == said and f"expected count = {count:.2f}, {count} known" in shown
    path.write_text(f"{run.relations[r]}\t99\t100\n")
    assert "contradicts this bound (too few can be answered)" in ok(*query, "--bounds", path).stdout
    for top in (1, 99):
        report = ok(*query, "--top", top).stdout
        rows = [line.split() for line in report.splitlines() if line.strip()[0].isdigit()]
        hidden = count - sum(row[2] != "-" for row in rows)
        assert (f"{count} known, {hidden} of them not shown" in report) == (hidden > 0) == (top == 1)


def test_what_is_read_is_not_overwritten_and_what_is_there_is_named(run, tmp_path):
    queries, out = tmp_path / "queries.tsv", tmp_path / "new.tsv"
    queries.write_text("a\tr0\n")
    for target in ("--out", "--completeness"):
        assert "is the file that is read" in one_error(invoke("complete", run, "--queries", queries, target, queries))
    for command in (("complete", run, "--queries", queries), ("predict", run, "--queries", queries)):
        out.unlink(missing_ok=True)
        assert "is replaced" not in ok(*command, "--out", out).stderr
        assert f"{out}: the file that was there is replaced" in ok(*command, "--out", out).stderr
    assert queries.read_text() == "a\tr0\n"
    for command in (["complete", run], ["evaluate", run, "--sets"]):
        assert "--precision" in usage_error(invoke(*command, "--precision", 0.9, "--min-probability", 0.2))


def test_a_calibration_that_rests_on_few_facts_says_how_sure_it_is(run):
    """A share measured on n facts has a standard error of 0.5 / sqrt(n) at most: 16 points for the ten of valid."""
    said = ok("calibrate", run).stderr
    assert "10 new facts of valid: a share measured on them has a standard error of up to 16 points" in said
