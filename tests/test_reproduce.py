"""`reproduce`: the paper's values as printed there, ours as the runs have them; runs are shared and resumed."""

import csv
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from conftest import ROOT, children, finish, invoke, ok, one_error, start, usage_error, wait_for, write_ring

import cardkge
import cardkge_tools.experiments.reproduction
import cardkge_tools.shell.options
import cardkge_tools.shell.workers

FACTS = json.loads((ROOT / "data" / "reproduction.json").read_text())
PAPER, SHOWN = FACTS["paper"], ("hits@1", "hits@3", "hits@5", "hits@10", "mrr")
LAMBDAS = [0, 0.001, 0.1]  # fewer than the figure has, to save time
QUICK = ("--quick", "--models", "complex", "--seeds", 2, "--threads", 1)


# --- the paper


def test_the_papers_tables_are_copied_right():
    """Some values by hand from each table, and the sum of each."""
    assert PAPER["datasets"] == {
        "fb13": [13, 81065, 350517, 5000, 5000],
        "wn18": [18, 40943, 141442, 5000, 5000],
        "wn18rr": [11, 40943, 86835, 3034, 3134],
        "yago3-10": [37, 123182, 1079040, 5000, 5000],
    }
    assert PAPER["constraints"]["fb13"] == {"place_of_birth": [0, 2], "parents": [0, 2], "gender": [1, 1]}
    assert PAPER["constraints"]["wn18"] == {"_hyponym": [0, 380], "_has_part": [0, 73], "_hypernym": [0, 4]}
    assert PAPER["constraints"]["yago3-10"] == {"livesIn": [0, 12], "hasGender": [0, 1], "hasChild": [0, 19]}
    links = PAPER["link-prediction"]
    assert list(links["fb13"]["ermlp"]["plain"].values()) == [4.40, 7.55, 9.14, 11.82, 6.94]
    assert list(links["wn18"]["ermlp"]["bounded"].values()) == [32.01, 51.54, 60.54, 70.85, 45.01]
    assert list(links["wn18"]["complex"]["bounded"].values()) == [88.66, 93.27, 94.21, 95.21, 91.20]
    assert list(links["wn18rr"]["distmult"]["plain"].values()) == [38.93, 43.49, 45.93, 49.63, 42.46]
    assert list(links["yago3-10"]["complex"]["plain"].values()) == [7.12, 15.61, 20.76, 29.11, 14.33]
    samplings = PAPER["sampling"]
    assert list(samplings["wn18rr"]["bernoulli"].values()) == [41.54, 46.79, 48.68, 51.42, 45.04]
    assert list(samplings["yago3-10"]["uniform"].values()) == [8.32, 15.52, 20.92, 29.29, 15.30]

    def total(tables):
        found = [row for table in tables for row in table.values()]
        assert all(tuple(row) == SHOWN for row in found)
        return len(found), round(sum(sum(row.values()) for row in found), 2)

    small = [
        links[data][model] for data in ("fb13", "wn18", "wn18rr") for model in cardkge_tools.shell.options.MODEL_TITLES
    ]
    assert total(small) == (18, 3832.91)
    assert total(links["yago3-10"][model] for model in cardkge_tools.shell.options.MODEL_TITLES) == (6, 416.45)
    assert total(samplings.values()) == (12, 2836.59)
    poe = PAPER["poe"]
    assert poe["plain"][0] == ["edgar", 0.989] and poe["plain_likely"] == 24 and len(poe["plain"]) == 5
    assert poe["bounded"] == [["eliza_poe", 0.861], ["maria_poe", 0.854], ["david_poe_jr", 0.815]]
    assert poe["bounded_likely"] == 3 and round(sum(p for _, p in poe["plain"]), 3) == 4.721


# --- ours


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The folder that all tables share."""
    return tmp_path_factory.mktemp("reproduction") / "out"


@pytest.fixture(autouse=True)
def fewer_lambdas(monkeypatch):
    real = cardkge.read_json

    def read_json(path):
        value = real(path)
        return value | {"lambdas": LAMBDAS} if path.name == "reproduction.json" else value

    monkeypatch.setattr(cardkge_tools.experiments.reproduction, "read_json", read_json)


def reproduce(*arguments):
    """The rows of the table (--markdown), a dict each but for columns of the same name, which are a list."""
    text = ok("reproduce", *arguments, "--markdown").stdout
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    assert all(set(cell) <= set(":-") for cell in lines[1]) and len({len(line) for line in lines}) == 1
    return lines[0], lines[2:]


def number(text):
    return float(text.replace(",", ""))


def parsed(cell):
    """(mean, half width of the interval) of a cell."""
    mean, _, width = cell.partition(" ± ")
    return number(mean), number(width) if width else None


def expected(first, second):
    """Of two values, by hand: s / sqrt 2 = |difference| / 2, and t = 12.7062 for one degree of freedom."""
    return (first + second) / 2, 12.7062 * abs(first - second) / 2


def near(value):
    """As many digits as are shown: two after the point in percent; three of a sum, or those before the point."""
    return pytest.approx(value, rel=5.1e-3, abs=5.1e-3)


def runs_of(out, **wanted):
    """The folders of the runs with these settings, by seed."""
    found = {}
    for path in out.glob("*/config.json"):
        settings = json.loads(path.read_text())["settings"]
        if all(settings[name.replace("_", "-")] == value for name, value in wanted.items()):
            assert settings["seed"] not in found
            found[settings["seed"]] = path.parent
    return [found[seed] for seed in sorted(found)]


def regulariser(variant="bounded"):
    """The settings of the recipe's regulariser, or of a way of sampling."""
    recipe = FACTS["recipes"]["families"]["complex"]
    sampling = {} if variant == "bounded" else {"sampling": variant}
    return recipe["regulariser"] | sampling | recipe.get(variant, {}) | FACTS["quick"]


def pair(out):
    """Two runs without and two with the regulariser of the recipe."""
    found = runs_of(out, bounds="none"), runs_of(out, **regulariser())
    assert [len(runs) for runs in found] == [2, 2]
    return found


def metrics_of(folder, tmp_path):
    """Filtered, both sides, in percent, by `evaluate`."""
    ok("evaluate", folder, "--json", tmp_path / "metrics.json", "--threads", 1)
    both = json.loads((tmp_path / "metrics.json").read_text())["filtered"]["both"]
    return [100 * both[name] for name in SHOWN]


def violations_of(folder, tmp_path):
    ok("violations", folder, "--bounds", "mined", "--json", tmp_path / "violations.json", "--threads", 1)
    (found,) = json.loads((tmp_path / "violations.json").read_text()).values()
    return found


def share_of(folder):
    """The cell that says the regulariser's part of the gradient."""
    run = cardkge.load_run(folder)
    share = cardkge_tools.experiments.reproduction.gradient_share(run, cardkge.load_dataset(run.settings.data))
    return f"{100 * share:.1f}"


def check_metrics(cells, folders, tmp_path, minus=None):
    columns = zip(*(metrics_of(folder, tmp_path) for folder in folders), strict=True)
    if minus:
        other = zip(*(metrics_of(folder, tmp_path) for folder in minus), strict=True)
        columns = [[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(columns, other, strict=True)]
        assert all(cell[0] in "+-" for cell in cells)
    for cell, values in zip(cells, columns, strict=True):
        mean, width = expected(*values)
        assert parsed(cell) == (pytest.approx(mean, abs=5.1e-3), pytest.approx(width, abs=5.1e-3))


@pytest.mark.thorough
def test_link_prediction(out, tmp_path):
    headers, rows = reproduce("link-prediction", *QUICK, "--jobs", 2, "--out", out)
    assert headers == [
        "data",
        "model",
        "",
        "",
        "hits@1 %",
        "hits@3 %",
        "hits@5 %",
        "hits@10 %",
        "MRR %",
        "gradient %",
        "seeds",
    ]
    assert [row[:4] for row in rows] == [
        ["families", "ComplEx", "plain", "here"], ["", "", "bounded", "here"], ["", "", "bounded - plain", "here"],
    ]  # fmt: skip
    assert [row[-1] for row in rows] == ["2"] * 3
    plain, bounded = pair(out)
    assert len(list(out.iterdir())) == 4
    assert [bool(row[9]) for row in rows] == [False, True, False] and 0 < float(rows[1][9]) < 100
    check_metrics(rows[0][4:9], plain, tmp_path)
    check_metrics(rows[1][4:9], bounded, tmp_path)
    check_metrics(rows[2][4:9], bounded, tmp_path, minus=plain)


@pytest.mark.thorough
def test_sampling(out, tmp_path):
    _, rows = reproduce("sampling", *QUICK, "--jobs", 2, "--out", out)
    kinds = ["plain", "uniform", "importance", "bernoulli"]
    assert [row[2] for row in rows] == [*kinds, *(f"{kind} - plain" for kind in kinds[1:])]
    plain = runs_of(out, bounds="none")
    check_metrics(rows[0][4:9], plain, tmp_path)
    for i, kind in enumerate(kinds[1:], 1):
        runs = runs_of(out, **regulariser(kind))
        check_metrics(rows[i][4:9], runs, tmp_path)
        check_metrics(rows[i + 3][4:9], runs, tmp_path, minus=plain)


@pytest.mark.thorough
def test_violations(out, tmp_path):
    headers, rows = reproduce("violations", *QUICK, "--jobs", 2, "--out", out)
    assert headers[2:7] == ["relation", "bound", "heads", "outside %: plain", "bounded"]
    assert headers[7:] == ["mean X: plain", "bounded", "change", "change %", "paper", "gradient %"]
    plain, bounded = ([violations_of(folder, tmp_path) for folder in runs] for runs in pair(out))
    assert [row[2] for row in rows] == list(plain[0]) and "parent" in plain[0]
    for row in rows:
        before, after = ([found[row[2]] for found in side] for side in (plain, bounded))
        assert row[3] == f"[{before[0]['lower']:g}, {before[0]['upper']:g}]"
        assert number(row[4]) == before[0]["subjects"]
        for cell, side in zip(row[5:7], (before, after), strict=True):
            assert parsed(cell) == near(expected(*(100 * v["outside"] for v in side)))
        for cell, side in zip(row[7:9], (before, after), strict=True):
            assert parsed(cell) == near(expected(*(v["mean"] for v in side)))
        changes = [b["mean"] - a["mean"] for a, b in zip(before, after, strict=True)]
        assert parsed(row[9]) == near(expected(*changes)) and row[9][0] in "+-"
        shares = [100 * change / a["mean"] for change, a in zip(changes, before, strict=True)]
        assert parsed(row[10]) == near(expected(*shares)) and row[10][0] in "+-"
        assert row[11] == ""
    assert rows[0][12] == share_of(pair(out)[1][0]) and not any(row[12] for row in rows[1:])


@pytest.mark.thorough
def test_lambda(out, tmp_path):
    headers, rows = reproduce("lambda", *QUICK, "--jobs", 2, "--out", out)
    assert headers[:7] == ["data", "model", "lambda", "mean X", "hits@10 %", "change of mean X", "of hits@10"]
    assert headers[7:] == ["gradient %", "seeds"]
    assert [float(row[2]) for row in rows] == LAMBDAS and [row[-1] for row in rows] == ["2"] * 3
    sums, hits, shares = {}, {}, {}
    for weight in LAMBDAS:
        runs = runs_of(out, **(regulariser() | {"lambda": weight} if weight else {"bounds": "none"}))
        assert len(runs) == 2
        shares[weight] = share_of(runs[0]) if weight else ""
        parts = [violations_of(run, tmp_path).values() for run in runs]
        sums[weight] = [sum(v["mean"] for v in part) / len(part) for part in parts]
        hits[weight] = [metrics_of(run, tmp_path)[3] for run in runs]
    for row, weight in zip(rows, LAMBDAS, strict=True):
        assert row[7] == shares[weight]
        assert parsed(row[3]) == near(expected(*sums[weight]))
        assert parsed(row[4]) == near(expected(*hits[weight]))
        if weight:
            assert parsed(row[5]) == near(expected(*(a - b for a, b in zip(sums[weight], sums[0], strict=True))))
            assert parsed(row[6]) == near(expected(*(a - b for a, b in zip(hits[weight], hits[0], strict=True))))
        else:
            assert row[5:7] == ["", ""]


@pytest.mark.thorough
def test_poe(out):
    headers, rows = reproduce("poe", *QUICK, "--jobs", 2, "--out", out)
    assert headers == ["data", "model", "", "query", "tail", "known", "p", "paper"]
    head, relation = FACTS["people"]["families"]
    assert rows[0][:4] == ["families", "ComplEx", "plain", f"{head}, {relation}, ?"]
    starts = [i for i, row in enumerate(rows) if row[0]] + [len(rows)]
    assert [rows[i][2] for i in starts[:-1]] == ["plain", "bounded", "[0, 0]"]
    useless = {"bounds": str(out / "bounds" / "families-0-0.tsv")}
    variants = [{"bounds": "none"}, regulariser(), regulariser() | useless]
    for variant, begin, stop in zip(variants, starts[:-1], starts[1:], strict=True):
        (folder, *_) = runs_of(out, **variant)
        predicted = ok("predict", folder, "--head", head, "--relation", relation, "--top", 5000).stdout.splitlines()
        table = [line.split() for line in predicted[2:-1]]
        likely = sum(float(line[3]) > 0.8 for line in table)
        shown = rows[begin : stop - 1]
        assert len(shown) == max(5, min(likely, 10))
        for row, line in zip(shown, table, strict=False):
            assert row[4:6] == line[1:3] and float(row[6]) == pytest.approx(float(line[3]), abs=6e-4)
        said = re.fullmatch(r"(\d+) with p > 0\.8; X = (\S+?)(?:; gradient (\S+) %)?", rows[stop - 1][4])
        count, total, share = said.groups()
        assert share == (share_of(folder) if variant["bounds"] != "none" else None)
        assert int(count) == likely
        assert number(total) == near(float(re.match(r"X_hr = (\S+),", predicted[-1])[1]))


@pytest.mark.thorough
def test_nothing_is_run_twice_and_a_document_has_the_same_figures(out, monkeypatch):
    """After the tables above, or by itself."""
    _, rows = reproduce("link-prediction", *QUICK, "--jobs", 2, "--out", out)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.glob("*/*")}
    monkeypatch.setattr(cardkge_tools.shell.workers, "perform", None)
    result = ok("reproduce", "link-prediction", *QUICK, "--out", out)
    text = result.stdout.splitlines()
    assert set(text[1]) == {"-", " "} and [line.split() for line in text[2:]] == [" ".join(row).split() for row in rows]
    notes = result.stderr.splitlines()
    assert notes[0] == f"4 of 4 runs are in {out} already"
    seconds = sum(cardkge.read_outcome(folder)["seconds"] for side in pair(out) for folder in side)
    assert notes[1] == f"4 runs trained for {seconds / 60:,.1f} minutes. Their settings, without the seed:"
    assert notes[2:] == [side[0].name.removesuffix(",seed=0") for side in pair(out)]
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.glob("*/*")} == before


@pytest.mark.thorough
def test_what_was_killed_goes_on_to_the_same_table(out, tmp_path):
    _, rows = reproduce("link-prediction", *QUICK, "--jobs", 2, "--out", out)
    process = start("reproduce", "link-prediction", *QUICK, "--out", tmp_path / "out")
    try:
        wait_for(lambda: list(tmp_path.glob("out/*/metrics.json")), process=process)
        (trial, *_) = wait_for(lambda: children(process.pid), process=process)
    finally:
        process.kill()
        os.kill(trial, signal.SIGKILL)
        process.communicate()
    assert len(list(tmp_path.glob("out/*/metrics.json"))) < 4
    code, output, errors = finish(start("reproduce", "link-prediction", *QUICK, "--out", tmp_path / "out", "--jobs", 2))
    assert code == 0 and re.match(r"[123] of 4 runs are in ", errors) and " runs" not in output
    assert [line.split() for line in output.splitlines()[-3:]] == [" ".join(row).split() for row in rows]
    for path in tmp_path.glob("out/*/model.npz"):
        assert path.read_bytes() == (out / path.parent.name / "model.npz").read_bytes()


# --- other data


@pytest.fixture
def ring(tmp_path, monkeypatch):
    """A small data set that is also found under the names wn18rr and wn18."""
    for name in ("wn18rr", "wn18"):
        write_ring(tmp_path / "sets" / name)
    monkeypatch.setenv("CARDKGE_DATA", str(tmp_path / "sets"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_ring(tmp_path / "a folder, named oddly")


@pytest.mark.thorough
def test_the_papers_figures_and_their_differences_stand_beside_ours(ring, tmp_path):
    options = ("--quick", "--data", "wn18rr", "--seeds", 1, "--jobs", 2, "--threads", 1, "--out", tmp_path / "out")
    _, rows = reproduce("link-prediction", *options, "--models", "distmult")
    assert [row[2] for row in rows] == ["plain", "", "bounded", "", "bounded - plain", ""]
    assert [row[3] for row in rows] == ["here", "paper"] * 3
    assert rows[1][4:] == ["38.93", "43.49", "45.93", "49.63", "42.46", "", ""]
    assert rows[3][4:] == ["39.10", "44.13", "46.30", "49.81", "42.84", "", ""]
    assert rows[5][4:] == ["+0.17", "+0.64", "+0.37", "+0.18", "+0.38", "", ""]
    assert not any("±" in cell for row in rows for cell in row)  # one seed: no interval
    _, rows = reproduce("sampling", *options)
    paper = {row[2]: theirs[4:9] for row, theirs in itertools.pairwise(rows) if theirs[3] == "paper"}
    assert paper["plain"] == ["40.87", "46.25", "48.55", "51.15", "44.52"]
    assert paper["bernoulli"] == ["41.54", "46.79", "48.68", "51.42", "45.04"]
    assert paper["importance - plain"] == ["+0.22", "+0.43", "+0.26", "+0.35", "+0.26"]


def test_a_folder_without_a_recipe_takes_the_default_one(ring, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--quick", "--models", "complex", "--seeds", 1, "--threads", 1, "--data", f"./{ring.name}")
    _, rows = reproduce("violations", *options)
    assert sorted(row[2] for row in rows) == ["r0", "r1", "r2"] and rows[0][0] == f"./{ring.name}"
    default = FACTS["recipes"]["default"]["complex"]
    found = [json.loads(path.read_text())["settings"] for path in tmp_path.glob("reproduction/*/config.json")]
    assert sorted(settings["bounds"] for settings in found) == ["mined", "none"]
    for name, value in (default["train"] | FACTS["quick"]).items():
        assert all(settings[name] == value for settings in found), name
    assert "data/reproduction.json names no person of" in one_error(invoke("reproduce", "poe", *options))


@pytest.mark.thorough
def test_what_makes_no_difference_is_said(ring, tmp_path):
    data = ("--data", ring, "--out", tmp_path / "out")
    result = ok("reproduce", "datasets", *data, "--seeds", 7, "--project", "none", "--models", "complex")
    lines = [f"warning: --{name} makes no difference to the table datasets" for name in ("models", "seeds", "project")]
    assert result.stderr.splitlines() == lines
    options = ("--out", tmp_path / "out", "--quick", "--threads", 1, "--models", "distmult", "--seeds", 2)
    assert "warning: --seeds makes no difference to the table poe" in ok("reproduce", "poe", *options).stderr
    assert len(list((tmp_path / "out").glob("*/metrics.json"))) == 3


def test_a_data_set_without_a_recipe_is_said(ring, monkeypatch):
    warnings = []
    monkeypatch.setattr(cardkge_tools.experiments.reproduction, "warn", warnings.append)
    monkeypatch.setattr(cardkge_tools.experiments.reproduction.Reproduction, "link_prediction", lambda self: ([], []))
    for data in (ring, "wn18rr"):
        ok("reproduce", "link-prediction", "--data", data)
    assert warnings == [f"data/reproduction.json has no recipe for {ring}; the one named default is used"]


@pytest.mark.parametrize("data", ["families", "wn18rr"])
def test_projection_is_the_recipes_unless_it_is_given(data, tmp_path):
    def bounded(project):
        place = cardkge_tools.experiments.trials.Place(tmp_path)
        plan = cardkge_tools.experiments.reproduction.Reproduction([data], ["complex"], 1, project, False, place)
        return plan.trial(data, "complex", "bounded", 0)

    own, unit, free = map(bounded, (None, "unit", "none"))
    assert own.get("project", "unit") == ("none" if data == "families" else "unit")
    assert unit.get("project", "unit") == "unit" and free["project"] == "none"
    assert (unit if data == "wn18rr" else free) == own
    assert (free["penalty_weight"], free["objects"]) == (FACTS["unprojected"]["lambda"], 1000)


def set_facts(monkeypatch, **changes):
    """Change data/reproduction.json as `reproduce` reads it."""
    real = cardkge.read_json
    monkeypatch.setattr(
        cardkge_tools.experiments.reproduction,
        "read_json",
        lambda path: real(path) | (changes if path.name == "reproduction.json" else {}),
    )


def test_tables_share_the_runs_that_they_can_share(ring, tmp_path, monkeypatch):
    """With the default recipe "bounded" is sampling=uniform and lambda=0.01; plain is lambda=0."""
    set_facts(monkeypatch, lambdas=[0, 0.01, 0.1])
    out = tmp_path / "out"
    options = ("--quick", "--models", "complex", "--seeds", 1, "--jobs", 2, "--threads", 1, "--out", out)
    counts = []
    for name in ("link-prediction", "sampling", "lambda", "violations"):
        reproduce(name, *options, "--data", "wn18rr")
        counts.append(len(list(out.iterdir())))
    assert counts == [2, 4, 5, 5]
    before = {path: path.read_bytes() for path in out.glob("*/violations.json")}
    assert len(before) == 3
    reproduce("link-prediction", *options, "--data", "wn18rr")  # has no use for them, and leaves them
    assert {path: path.read_bytes() for path in out.glob("*/violations.json")} == before


@pytest.mark.thorough
def test_violations_of_other_bounds_are_taken_anew(ring, tmp_path, monkeypatch):
    """The bounds of the recipe change, first those of r0, then there is one of r1 too: the plain run stays, and in each
    table the bounds are the same for both runs."""
    out, models = tmp_path / "out", set()
    options = ("--quick", "--models", "distmult", "--seeds", 1, "--threads", 1, "--out", out, "--data", ring)
    for name, text in (("mined", None), ("a", "r0\t0\t3\n"), ("b", "r0\t0\t3\nr1\t1\t5\n"), ("mined", None)):
        bounds, limits = "mined", {f"r{i}": [0, 1] for i in range(3)}
        if text:
            bounds = tmp_path / f"{name}.tsv"
            bounds.write_text(text)
            limits = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in text.splitlines()}
        recipe = {"train": {"validate-every": 1}, "regulariser": {"bounds": str(bounds)}}
        set_facts(monkeypatch, recipes={"default": {"distmult": recipe}})
        _, rows = reproduce("violations", *options)
        runs = runs_of(out, bounds="none") + runs_of(out, bounds=str(bounds))
        assert len(runs) == 2 and sorted(row[2] for row in rows) == sorted(limits)
        models.add((runs[0] / "model.npz").stat().st_mtime_ns)
        for run in runs:
            ok("violations", run, "--bounds", bounds, "--json", tmp_path / "found.json", "--threads", 1)
            (expected,) = json.loads((tmp_path / "found.json").read_text()).values()
            assert {relation: [v["lower"], v["upper"]] for relation, v in expected.items()} == limits
            (found,) = json.loads((run / "violations.json").read_text()).values()
            assert found == expected
    assert len(models) == 1


@pytest.mark.thorough
def test_damaged_violations_and_metrics_are_one_line(ring, tmp_path):
    out = tmp_path / "out"
    options = ("violations", "--quick", "--data", ring, "--models", "distmult", "--seeds", 1, "--threads", 1)
    options = (*options, "--out", out)
    _, rows = reproduce(*options)
    file = next(out.glob("*,bounds=mined,*/violations.json"))
    content = json.loads(file.read_text())
    (found,) = content.values()
    for damaged in (
        json.dumps({"one": found, "two": found}),
        json.dumps({"one": {**found, "r1": {name: v for name, v in found["r1"].items() if name != "upper"}}}),
        "{",
    ):
        file.write_text(damaged)
        assert str(file) in one_error(invoke("reproduce", *options))
    file.unlink()
    assert reproduce(*options)[1] == rows  # as the error says
    (file.parent / "metrics.json").write_text("{}")
    result = invoke("reproduce", *options)
    assert str(file.parent / "metrics.json") in result.stderr.splitlines()[-1]
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert [line.split(":")[0] for line in result.stderr.splitlines()[1:]] == ["warning", "error"]


def test_sizes_and_bounds_of_data_here_and_not_here(ring, tmp_path):
    shutil.rmtree(tmp_path / "sets" / "wn18")
    headers, rows = reproduce("datasets")
    assert headers == ["data", "", "relations", "entities", "train", "valid", "test"]
    assert [row[0] for row in rows[::2]] == ["fb13", "wn18", "wn18rr", "yago3-10"]
    assert rows[4] == ["wn18rr", "here", "3", "60", "144", "18", "18"]
    assert rows[5] == ["", "paper", "11", "40,943", "86,835", "3,034", "3,134"]
    assert rows[2] == ["wn18", "not on this machine; see `data fetch wn18`", *[""] * 5]
    assert rows[7] == ["", "paper", "37", "123,182", "1,079,040", "5,000", "5,000"]
    _, rows = reproduce("datasets", "--data", ring)
    assert rows[0] == [str(ring), "here", "3", "60", "144", "18", "18"]
    headers, rows = reproduce("constraints", "--data", "wn18rr,wn18,yago3-10,wn18")
    assert rows == [
        ["wn18rr", "_has_part", "no such relation", "[0, 73]"],
        ["wn18rr", "_hypernym", "no such relation", "[0, 4]"],
        ["wn18", "_hyponym", "not on this machine; see `data fetch wn18`", "[0, 380]"],
        ["wn18", "_has_part", "not on this machine; see `data fetch wn18`", "[0, 73]"],
        ["wn18", "_hypernym", "not on this machine; see `data fetch wn18`", "[0, 4]"],
        ["yago3-10", "livesIn", "not on this machine; see `data fetch yago3-10`", "[0, 12]"],
        ["yago3-10", "hasGender", "not on this machine; see `data fetch yago3-10`", "[0, 1]"],
        ["yago3-10", "hasChild", "not on this machine; see `data fetch yago3-10`", "[0, 19]"],
    ]
    _, rows = reproduce("constraints", "--quick")
    mined = [line.split() for line in ok("mine").stdout.splitlines()[2:]]
    assert [row[1:] for row in rows] == [[name, f"[{low}, {up}]", "-"] for name, low, up in mined]


def test_this_file_is_collected_with_several_data_folders_some_of_them_missing(tmp_path):
    folders = os.pathsep.join(str(tmp_path / name) for name in ("missing", "", "missing too"))
    options = ("--collect-only", "-q", "-p", "no:cacheprovider", __file__)
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", *options], env={**os.environ, "CARDKGE_DATA": folders}, capture_output=True
    )
    assert collected.returncode == 0 and b"test_bounds_of_wn18_are_the_papers" in collected.stdout


@pytest.mark.skipif(
    not any(entry["name"] == "wn18" and entry["folder"] for entry in cardkge.dataset_table()),
    reason="wn18 is not at hand",
)
def test_bounds_of_wn18_are_the_papers():
    _, rows = reproduce("constraints", "--data", "wn18")
    assert [row[1:] for row in rows] == [
        ["_hyponym", "[0, 380]", "[0, 380]"], ["_has_part", "[0, 73]", "[0, 73]"], ["_hypernym", "[0, 4]", "[0, 4]"],
    ]  # fmt: skip


# --- errors


@pytest.mark.parametrize(
    "arguments, part",
    [
        ([], "Missing argument"),
        (["tables"], "'tables' is not one of"),
        (["sampling", "--models", "complex,transe"], "--models: 'transe' is unknown; take ermlp, distmult, complex"),
        (["sampling", "--models", ","], "need at least one name"),
        (["datasets", "--data", ","], "need at least one name"),
        (["sampling", "--seeds", "0"], "--seeds"),
        (["sampling", "--jobs", "0"], "--jobs"),
        *(
            ([name, "--plot", "x.png"], "--plot is for")
            for name in cardkge_tools.shell.options.PAPER_TABLES
            if name != "lambda"
        ),
    ],
)
def test_wrong_usage(tmp_path, monkeypatch, arguments, part):
    monkeypatch.chdir(tmp_path)
    assert part in usage_error(invoke("reproduce", *arguments))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", cardkge_tools.shell.options.PAPER_TABLES)
def test_unknown_data_is_one_line_and_nothing_is_run(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    line = one_error(invoke("reproduce", name, "--quick", "--data", "families,nowhere"))
    assert ("names no person of nowhere" if name == "poe" else "no data set 'nowhere'") in line
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_is_named(tmp_path, monkeypatch):
    def perform(task, threads, processes):
        return "error: what happened" if "bounds=mined" in task["folder"] else "error: other"

    monkeypatch.setattr(cardkge_tools.shell.workers, "perform", perform)
    options = ("--quick", "--models", "complex", "--seeds", 1, "--out", tmp_path / "out")
    result = invoke("reproduce", "link-prediction", *options)
    *progress, line = result.stderr.splitlines()
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit) and result.stdout == ""
    assert [text[:5] for text in progress] == ["[1/2]", "[2/2]"] and "failed: what happened" in progress[1]
    assert line.startswith("error: 2 of 2 runs failed; families,complex,") and line.endswith(": other")


@pytest.mark.thorough
def test_controls(tmp_path):
    """Every row is of the runs that it says, chosen on valid where it says so; the bounds are those of its name."""
    out = tmp_path / "out"
    headers, rows = reproduce("controls", *QUICK, "--jobs", 2, "--out", out)
    assert headers[2:] == [
        "bounds in training",
        "MRR %",
        "minus none",
        "hits@10 %",
        "outside %",
        "mean X",
        "gradient %",
        "seeds",
    ]
    by_name = {row[2]: row[3:] for row in rows}
    bounds = {path.name: path.read_text().splitlines() for path in (out / "bounds").iterdir()}
    data = cardkge.load_dataset("families")
    mined = cardkge.mine_bounds(data.train, data.n_entities, data.n_relations)
    first, last = data.relations[0], mined[-1]
    shown = [f"{x:g}" if x < math.inf else "inf" for x in last]
    assert f"{first}\t{shown[0]}\t{shown[1]}" in bounds["families-mined-permuted.tsv"]
    assert all(line.split("\t")[1:] == ["0", "0"] for line in bounds["families-0-0.tsv"] if line[0] != "#")
    shown = [f"{mined[0, 0]:g}", f"{3 * mined[0, 1]:g}"]
    assert "\t".join([first, *shown]) in bounds["families-mined-uppers-x-3.tsv"]
    recipe = FACTS["recipes"]["families"]["complex"]["regulariser"]
    sampled = {name: value for name, value in recipe.items() if name != "bounds"} | FACTS["quick"]
    wanted = {
        "true": sampled | {"bounds": str(data.folder / "bounds.tsv")},
        "mined": sampled | {"bounds": "mined"},
        "[0, 0]": sampled | {"bounds": str(out / "bounds" / "families-0-0.tsv")},
        "none; extra negatives": sampled | {"bounds": "none", "extra-negatives": True},
        "none": {"bounds": "none", "l2": 0.0, "extra-negatives": False},
    }
    plain = runs_of(out, **wanted["none"])
    for name, settings in wanted.items():
        runs, cells = runs_of(out, **settings), by_name[name]
        assert len(runs) == 2 == int(cells[-1])
        hits, mrr = (list(map(by_metric, map_runs(runs, tmp_path))) for by_metric in (lambda m: m[3], lambda m: m[4]))
        assert parsed(cells[0]) == near(expected(*mrr)) and parsed(cells[2]) == near(expected(*hits))
        assert (cells[1] == "") == (name == "none") == (cells[5] == "") and (not cells[5] or 0 < float(cells[5]) < 100)
        if name != "none":
            base = [m[4] for m in map_runs(plain, tmp_path)]
            assert parsed(cells[1]) == near(expected(*(a - b for a, b in zip(mrr, base, strict=True))))
    valid = {}
    for weight in (0.0001, 0.001, 0.01):
        records = [read_csv(run / "history.csv") for run in runs_of(out, l2=weight)]
        valid[weight] = sum(max(float(r["valid_hits@10"]) for r in record if r["valid_hits@10"]) for record in records)
    assert [name for name in by_name if "L2" in name] == [f"none; L2 {max(valid, key=valid.get):g}"]


def map_runs(runs, tmp_path):
    return [metrics_of(run, tmp_path) for run in runs]


def read_csv(path):
    with open(path, newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("extra", [False, True])
def test_the_share_of_the_gradient_is_of_its_two_norms(tmp_path, extra):
    """|lambda d sum G| : |d loss| grows as lambda does, and is nothing at lambda 0."""
    ring = write_ring(tmp_path / "ring")
    options = ["--data", ring, "--dim", 4, "--epochs", 1, "--batches", 1, "--threads", 1, "--dtype", "float64"]
    options += ["--sampling", "importance"] + (["--extra-negatives"] if extra else ["--bounds", "mined"])
    ok("train", *options, "--lambda", 0.5, "--out", tmp_path / "run")
    run, data = cardkge.load_run(tmp_path / "run"), cardkge.load_dataset(ring)
    shares = {}
    for weight in (0.0, 0.01, 0.5):
        run.settings = replace(run.settings, penalty_weight=weight)
        shares[weight] = cardkge_tools.experiments.reproduction.gradient_share(run, data)
    odds = {weight: share / (1 - share) for weight, share in shares.items()}
    assert odds[0.0] == 0 < odds[0.01] and odds[0.5] / odds[0.01] == pytest.approx(50, rel=1e-9)
