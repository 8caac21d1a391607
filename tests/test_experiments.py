"""What `tune` and `reproduce` are made of: estimates over seeds, outcomes of runs, trials, grids, the folders' lock."""

import contextlib
import itertools
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

import click
import numpy as np
import pytest
from conftest import invoke, ok, one_error, snapshot, start, thorough, usage_error, wait_for, write_ring

import cardkge
import cardkge_tools.experiments.fitting
import cardkge_tools.experiments.reproduction
import cardkge_tools.experiments.trials
import cardkge_tools.shell.files
import cardkge_tools.shell.terminal
import cardkge_tools.shell.workers

# --- estimates

T_TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
T_TABLE |= {15: 2.131, 20: 2.086, 29: 2.045}  # as printed in textbooks: degrees of freedom -> t


def test_quantiles_of_t_are_those_of_printed_tables():
    for freedom, expected in T_TABLE.items():
        assert cardkge_tools.experiments.reproduction.T_95[freedom - 1] == pytest.approx(expected, abs=5.01e-4), freedom


@pytest.mark.parametrize("freedom", range(1, 30))
def test_quantiles_of_t_by_integration_of_its_density(freedom):
    """By Simpson's rule from -t to t."""
    t = cardkge_tools.experiments.reproduction.T_95[freedom - 1]
    x = np.linspace(0, t, 20001)
    log_density = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    density = np.exp(log_density - (freedom + 1) / 2 * np.log1p(x * x / freedom))
    weights = np.tile([2.0, 4.0], 10001)[:20001]
    weights[[0, -1]] = 1
    assert 2 * (weights @ density) * t / 20000 / 3 == pytest.approx(0.95, abs=1e-9)


def test_the_interval_of_many_values_is_not_too_narrow():
    """31 and more take the quantile of 30 values."""
    values = np.tile([-1.0, 1.0], 50)
    found = cardkge_tools.experiments.reproduction.estimate(values)["interval"]
    exact = 1.98422 * values.std(ddof=1) / 10  # 99 degrees of freedom
    assert exact < found < 1.04 * exact


@pytest.mark.parametrize(
    "values, minus, relative, mean, interval",
    [
        ([4.0], None, False, 4.0, None),
        ([1.0, 3.0], None, False, 2.0, 12.706),  # s = sqrt 2, s / sqrt n = 1
        ([1.0, 2.0, 3.0], None, False, 2.0, 4.303 / math.sqrt(3)),  # s = 1
        ([5.0, 5.0, 5.0], None, False, 5.0, 0.0),
        # differences 1, 2, 3, though the values of each side spread far more
        ([11.0, 102.0, 1003.0], [10.0, 100.0, 1000.0], False, 2.0, 4.303 / math.sqrt(3)),
        ([2.0], [3.0], False, -1.0, None),
        # shares of minus: -1/2 and +1/4: s / sqrt n = 3/8
        ([1.0, 10.0], [2.0, 8.0], True, -0.125, 12.706 * 0.375),
    ],
)
def test_estimates_by_hand(values, minus, relative, mean, interval):
    found = cardkge_tools.experiments.reproduction.estimate(values, minus, relative)
    assert found.keys() == {"mean", "interval"} and type(found["mean"]) is float
    assert found["mean"] == pytest.approx(mean)
    assert found["interval"] == (interval and pytest.approx(interval, rel=1e-4))


def test_a_share_of_nothing_is_not_finite():
    assert cardkge_tools.experiments.reproduction.estimate([1.0, 2.0], [0.0, 1.0], relative=True)["mean"] == math.inf
    assert math.isnan(cardkge_tools.experiments.reproduction.estimate([0.0], [0.0], relative=True)["mean"])


@pytest.mark.parametrize("values, minus", [([], None), ([], []), ([1.0, 2.0], [1.0]), ([1.0], [1.0, 2.0]), ([1.0], [])])
def test_estimates_of_nothing_and_of_unequal_sides_are_errors(values, minus):
    with pytest.raises(cardkge.CardkgeError, match="found"):
        cardkge_tools.experiments.reproduction.estimate(values, minus)


# --- outcomes


@pytest.fixture
def finished(toy, tmp_path):
    """A function that trains, evaluates and saves a run on `toy`, and returns its folder."""

    def make(**settings):
        run = cardkge.new_run(cardkge.Settings(dim=4, batches=3, **settings), toy)
        cardkge.train(run, toy, 1)
        run.metrics = cardkge.evaluate(run.best_model(), toy.test, toy.known, threads=1)
        cardkge.save_run(run, tmp_path / "run")
        return tmp_path / "run"

    return make


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 12, "validate_every": 1},
        {"epochs": 20, "validate_every": 3, "patience": 1, "learning_rate": 0.5},
        {"epochs": 7, "validate_every": 4},
        {"epochs": 3},
        {"epochs": 0},
    ],
)
def test_an_outcome_is_that_of_the_run(finished, settings):
    folder = finished(**settings)
    run, found = cardkge.load_run(folder), cardkge.read_outcome(folder)
    assert found.keys() == {"epoch", "valid", "test", "seconds"} and found["test"] == run.metrics
    assert cardkge.read_config(folder) == (run.settings, run.data)
    assert found["seconds"] == sum(record["seconds"] for record in run.history)
    if run.best:
        assert found["epoch"] == run.best["epoch"]
        assert found["valid"] == {name: run.best[name] for name in ("mrr", "hits@10")}
    else:
        assert found["epoch"] == run.epoch and found["valid"] is None


def test_an_outcome_has_the_best_hits_then_mrr_then_the_first(finished):
    folder = finished(epochs=5)
    rows = [(0.5, 0.2), (0.5, 0.3), (0.4, 0.9), (0.5, 0.3), (0.5, 0.1)]
    lines = [f"{epoch},1.5,{hits},{mrr}\n" for epoch, (hits, mrr) in enumerate(rows, 1)]
    (folder / "history.csv").write_text("epoch,seconds,valid_hits@10,valid_mrr\n" + "".join(lines))
    found = cardkge.read_outcome(folder)
    assert (found["epoch"], found["valid"], found["seconds"]) == (2, {"mrr": 0.3, "hits@10": 0.5}, 7.5)


def damage_epoch(folder, value):
    config = json.loads((folder / "config.json").read_text())
    config.pop("epoch") if value is None else config.update(epoch=value)
    (folder / "config.json").write_text(json.dumps(config))


def damage_metrics(folder, change):
    metrics = json.loads((folder / "metrics.json").read_text())
    change(metrics)
    (folder / "metrics.json").write_text(json.dumps(metrics))


def damage_history(folder, column):
    text = (folder / "history.csv").read_text()
    (folder / "history.csv").write_text(text.replace(column, "other", 1))


@pytest.mark.parametrize(
    "damage, file",
    [
        (lambda folder: (folder / "metrics.json").unlink(), "metrics.json"),
        (lambda folder: (folder / "metrics.json").write_text("["), "metrics.json"),
        (lambda folder: (folder / "metrics.json").write_text("{}"), "metrics.json"),
        (lambda folder: (folder / "metrics.json").write_text("[]"), "metrics.json"),
        (lambda folder: damage_metrics(folder, lambda found: found.pop("raw")), "metrics.json"),
        (lambda folder: damage_metrics(folder, lambda found: found["raw"].update(both=[])), "metrics.json"),
        (lambda folder: damage_metrics(folder, lambda found: found["filtered"]["both"].pop("mrr")), "metrics.json"),
        (lambda folder: damage_metrics(folder, lambda found: found["raw"]["both"].update(mrr="1")), "metrics.json"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: damage_epoch(folder, None), "config.json"),
        (lambda folder: damage_epoch(folder, "6"), "config.json"),
        (lambda folder: damage_epoch(folder, 7), "history.csv"),
        (lambda folder: (folder / "history.csv").unlink(), "history.csv"),
        (lambda folder: damage_history(folder, "seconds"), "history.csv"),
        (lambda folder: damage_history(folder, "valid_mrr"), "history.csv"),
    ],
)
def test_an_outcome_of_a_damaged_run_is_an_error(finished, damage, file):
    folder = finished(epochs=6, validate_every=2)
    damage(folder)
    with pytest.raises(cardkge.CardkgeError) as error:
        cardkge.read_outcome(folder)
    assert str(folder / file) in str(error.value) and "\n" not in str(error.value)


VIOLATIONS = {"r": {"lower": 0.0, "upper": None, "subjects": 3, "outside": 0.5, "mean": 2.0, "quartiles": [1, 2, 3]}}


def test_violations_are_read(tmp_path):
    (tmp_path / "found.json").write_text(json.dumps({"run": VIOLATIONS}))
    expected = {"lower": 0.0, "upper": math.inf, "subjects": 3.0, "outside": 0.5, "mean": 2.0}
    assert cardkge_tools.experiments.trials.read_violations(tmp_path / "found.json") == {"r": expected}
    assert cardkge_tools.experiments.trials.average_sum({"a": {"mean": 1.0}, "b": {"mean": 4.0}}) == 2.5


@pytest.mark.parametrize(
    "content",
    [
        {"run": VIOLATIONS, "other": VIOLATIONS},
        {},
        [],
        3,
        {"run": 3},
        {"run": {"r": 3}},
        {"run": {"r": "lower"}},
        {"run": {"r": {name: v for name, v in VIOLATIONS["r"].items() if name != "upper"}}},
        {"run": {"r": {name: v for name, v in VIOLATIONS["r"].items() if name != "mean"}}},
        {"run": {"r": VIOLATIONS["r"] | {"mean": "much"}}},
        {"run": {"r": VIOLATIONS["r"] | {"outside": None}}},
        None,
    ],
)  # fmt: skip
def test_damaged_violations_are_one_line(tmp_path, content):
    file = tmp_path / "violations.json"
    file.write_text("{" if content is None else json.dumps(content))
    with pytest.raises(cardkge.CardkgeError) as error:
        cardkge_tools.experiments.trials.read_violations(file)
    assert str(file) in str(error.value) and "\n" not in str(error.value)


# --- sums as they are shown


@pytest.mark.parametrize(
    "value, text",
    [
        (0.0, "0"), (2.345, "2.35"), (-2.345, "-2.35"), (99.4, "99.4"), (100.4, "100"), (-100.4, "-100"),
        (4321.6, "4,322"), (-4321.6, "-4,322"), (-4321.5, "-4,322"), (-1234567.0, "-1,234,567"),
    ],
)  # fmt: skip
def test_sums_have_three_digits_or_more_and_no_exponent(value, text):
    assert cardkge_tools.shell.terminal.short(value) == text


def test_amounts_of_large_changes_have_no_exponent():
    assert (
        cardkge_tools.experiments.reproduction.amount({"mean": -43215000.0, "interval": 12345.6}, True)
        == "-43,215,000 ± 12,346"
    )
    assert cardkge_tools.experiments.reproduction.amount({"mean": 43215000.0, "interval": None}, True) == "+43,215,000"


# --- trials


def trial(*given, **options):
    """Of pairs and keywords, `batch_size` for batch-size."""
    options = {name.replace("_", "-"): value for name, value in options.items()}
    return cardkge_tools.experiments.trials.make_trial(dict(given) | options, "here")


def name_of(*given, **options):
    return cardkge_tools.experiments.trials.trial_name(trial(*given, **options))


def test_a_trial_has_what_is_no_default_and_three_settings_always():
    assert trial() == {"data": "families", "model": "distmult", "seed": 0}
    found = trial(("lambda", "2e-2"), ("filter-negatives", "yes"), batch_size=8, model="complex", seed=3)
    assert found == {
        "data": "families", "model": "complex", "seed": 3,
        "penalty_weight": 0.02, "filter_negatives": True, "batch_size": 8,
    }  # fmt: skip
    cardkge.Settings(**found)


def test_names_are_readable():
    assert name_of(("lambda", 0.02), bounds="mined", dim=8, seed=1) == (
        "families,distmult,dim=8,bounds=mined,lambda=0.02,seed=1"
    )
    assert name_of(("lambda", 0.01), bounds="mined", subjects=10) == "families,distmult,bounds=mined,seed=0"
    assert name_of(("lambda", 1e-5), learning_rate=2) == "families,distmult,learning-rate=2,lambda=1e-05,seed=0"


SOFTMAX = {"schedule", "n3", "reciprocal", "relation-weight", "softmax-candidates", "no-loops"}


def test_distinct_trials_have_distinct_names_that_are_safe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = ["a b", "a,b", "a_b", "a/b", "c/b", "ä", "李白", "a=1", ",seed=0", "..", ".", "families", "mined", "-a"]
    folders += ["a\nb", "a:b", 'a"b', "a'b", "%s", "~", "*", "a\\b", "é", "e\u0301", "\udcff", ".a", "a."]
    folders += ["x" * 250, "y" * 250, "ä" * 100]
    paths = ["/", *(f"./{folder}" for folder in folders)]
    chosen = [{}, {"bounds": "mined"}]
    chosen += [{name: path} for name in ("data", "bounds") for path in paths]
    chosen += [{"bounds": "./a b", "data": "./a b"}, {"columns": "htr"}, {"data": "wn18"}, {"seed": 1}, {"seed": 11}]
    chosen += [{"model": name} for name in ("complex", "ermlp")] + [
        {"filter-negatives": True},
        {"extra-negatives": True},
    ]
    weights = (0, 1, 0.1, np.nextafter(0.1, 1), 1e-5, 1e-300, 1e30, 1e300, 1 / 3, 0.333333333333333)
    chosen += [{"lambda": float(weight)} for weight in weights] + [{"l2": 0.1}, {"margin": 0.1}]
    chosen += [{"batches": 3}, {"batch-size": 3}, {"dim": 3}, {"hidden": 3}, {"dim": 3, "hidden": 3}, {"dim": 33}]
    everything = {
        "model": "ermlp", "data": "./" + "z" * 200, "columns": "rht", "dim": 1234, "hidden": 1234, "epochs": 12345,
        "batch-size": 12345, "negatives": 12, "filter-negatives": True, "extra-negatives": True,
        "loss": "logistic", "margin": 1 / 7,
        "optimizer": "sgd", "learning-rate": 1 / 7, "decay": 1 / 7, "accumulator": 1 / 7, "l2": 1 / 7,
        "project": "none", "bounds": "./" + "z" * 200, "lambda": 1 / 7, "sampling": "bernoulli",
        "inclusion": "uniform", "subjects": 1234, "objects": 1234, "subject-pool": "entities", "dtype": "float64",
        "validate-every": 12345, "patience": 12345,
    }  # fmt: skip
    assert {name.replace("_", "-") for name in cardkge.Settings.__dataclass_fields__} - everything.keys() == {
        "batches", "final", "joined", "penalty-weight", "seed", *SOFTMAX,
    }  # fmt: skip
    softmax = {"loss": "softmax"}
    chosen += [softmax] + [softmax | {name: 3} for name in ("softmax-candidates", "n3", "relation-weight")]
    chosen += [softmax | {name: True} for name in ("reciprocal", "no-loops")]
    chosen += [softmax | {"softmax-candidates": 1}, softmax | {"schedule": "constant"}]
    chosen += [everything | {"seed": seed} for seed in (0, 1)]
    names = [cardkge_tools.experiments.trials.trial_name(trial(*options.items())) for options in chosen]
    for (i, first), (j, second) in itertools.combinations(enumerate(names), 2):
        assert first.casefold() != second.casefold(), (chosen[i], chosen[j])
    for name in names:
        (tmp_path / "out" / name).mkdir(parents=True)  # a part of a path, short enough
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(names)


def test_equal_trials_have_one_name_whatever_the_way_they_are_written(tmp_path, monkeypatch):
    (tmp_path / "toy").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    def same(name, *values):
        assert len({name_of((name, value)) for value in values}) == 1, values

    same("lambda", 0.01, "0.01", "1e-2", ".01", " 0.010")
    same("lambda", 0, "0", "0.0", "-0", -0.0)
    same("seed", 1, "1", "01", "+1")
    usual = dict(vars(cardkge.Settings()))
    del usual["final"], usual["joined"]  # no options of a trial
    for name, value in usual.items():  # at its default, or left out
        if value is not None:
            assert name_of((cardkge.option_name(name), value)) == name_of(), name
    for model, dim in cardkge.DIMS.items():
        assert name_of(model=model, dim=dim) == name_of(model=model) != name_of(model=model, dim=dim + 1)
    assert trial(("sampling", "uniform"), ("lambda", "1e-2"), bounds="mined") == trial(bounds="mined")
    same("filter-negatives", True, "true", "True", "yes", 1)
    same("filter-negatives", False, "false", "no", 0)
    for name in ("data", "bounds"):
        same(name, "toy", "./toy", "toy/", f"{tmp_path}/toy", "elsewhere/../toy")
        here = name_of((name, "toy"))
        monkeypatch.chdir("elsewhere")
        assert here == name_of((name, "../toy")) != name_of((name, "toy"))
        monkeypatch.chdir("..")
    assert name_of(dim=3, l2=1) == name_of(l2=1, dim=3)


@pytest.mark.parametrize(
    "options, part",
    [
        *(({name: "x"}, f"{name} is not a setting") for name in ("out", "resume", "force", "threads", "help")),
        ({"foo": 1}, "No such option"),
        ({"": 1}, "extra argument"),
        ({"-lambda": 1}, "No such option"),
        ({"penalty-weight": 1}, "No such option"),
        ({"lambda=2": 1}, "extra argument"),
        ({"lambda": -1}, "--lambda"),
        ({"lambda": "nan"}, "finite"),
        ({"lambda": True}, "--lambda"),
        ({"lambda": [1]}, "--lambda"),
        ({"dim": 2.5}, "--dim"),
        ({"dim": 0}, "--dim"),
        ({"model": "foo"}, "--model"),
        ({"filter-negatives": "perhaps"}, "filter-negatives is true or false, not 'perhaps'"),
        ({"epochs": 10**9 + 1}, "--epochs"),
        ({"seed": -1}, "--seed"),
        ({"seed": 2**32}, "4294967296 is not in the range 0<=x<=4294967295"),
        ({"batches": 2, "batch-size": 3}, "--batches and --batch-size exclude each other"),
        ({"patience": 3}, "patience counts validations"),
        ({"decay": 1}, "decay is for sgd"),
    ],
)
def test_options_that_are_none_of_a_run_are_usage_errors(options, part):
    with pytest.raises(click.UsageError) as error:
        cardkge_tools.experiments.trials.make_trial(options, "here")
    message = error.value.format_message()
    assert message.startswith("here: ") and part in message and "\n" not in message


# --- grids


def test_a_grid_in_toml_and_on_the_command_line(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text('model = "complex"\nfilter-negatives = true\n[grid]\nlambda = [0, 1e-3]\nproject = ["unit"]\n')
    fixed, axes = cardkge_tools.experiments.trials.read_grid(file, ("objects=10,100", "seed=1"))
    assert fixed == {"model": "complex", "filter-negatives": True}
    expected = {"lambda": [0, 1e-3], "project": ["unit"], "objects": ["10", "100"], "seed": ["1"]}
    assert list(axes.items()) == list(expected.items())
    assert cardkge_tools.experiments.trials.read_grid(None, ("a==b",)) == ({}, {"a": ["=b"]})


@pytest.mark.parametrize(
    "text, part",
    [
        ("grid = 3", "grid must be one table [grid]"),
        ("grid = [1, 2]", "grid must be one table [grid]"),
        ("[[grid]]\nlambda = [1]", "grid must be one table [grid]"),
        ("[grid]\nlambda = 3", "lambda must be a list"),
        ("[grid]\nlambda = []", "lambda must be a list"),
        ("lambda = [1, 2]", "lambda has several values"),
        ("[axes]\nlambda = [1, 2]", "[axes] is unknown; the one table of the file is [grid]"),
        ("lambda = ", "cannot be read"),
        ("[grid]\nlambda = [1]\nlambda = [2]", "cannot be read"),
        (b"model = '\xff'", "cannot be read"),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_a_faulty_grid_file_is_one_line(tmp_path, text, part):
    file = tmp_path / "grid.toml"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    line = one_error(invoke("tune", "--file", file, "--grid", "dim=2", "--out", tmp_path / "out"))
    assert part in line and str(file) in line
    assert not (tmp_path / "out").exists()


# --- the lock


@pytest.fixture
def training(tmp_path):
    """A process of `train` that holds its folder and would take hours: (process, folder, options)."""
    options = ("--data", write_ring(tmp_path / "ring"), "--dim", 4, "--threads", 1)
    with open(tmp_path / "log", "w") as log:
        process = start("train", *options, "--epochs", 10**8, "--out", tmp_path / "run", stdout=log, stderr=log)
    try:
        wait_for(lambda: (tmp_path / "run" / "model.npz").exists(), process=process)
        yield process, tmp_path / "run", options
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("more", [[], thorough(["--force"]), thorough(["--resume"])])
def test_a_second_process_on_a_folder_is_told_so_and_the_first_is_unharmed(training, more):
    process, folder, options = training
    before = snapshot(folder)
    for out in (folder, Path(os.path.relpath(folder))):
        arguments = ["--epochs", 10**8] if "--resume" in more else [*options, "--epochs", 1]
        line = one_error(invoke("train", *arguments, "--out", out, *more))
        assert line == f"error: {out}: another process trains into it; wait for it, or choose another folder with --out"
    assert snapshot(folder) == before and process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    run = cardkge.load_run(folder)
    assert run.epoch + run.step > 0
    ended = invoke("train", "--resume", "--epochs", 10**8, "--out", folder, "--data", "nowhere")
    assert "no data set 'nowhere'" in one_error(ended)  # past the lock


def test_the_lock_goes_with_a_process_that_is_killed(training):
    process, folder, options = training
    with cardkge_tools.shell.files.sole_use(folder) as alone:
        assert not alone
    process.kill()
    process.wait()
    with cardkge_tools.shell.files.sole_use(folder) as alone:
        assert alone
        with cardkge_tools.shell.files.sole_use(folder) as again:
            assert not again
    ok("train", *options, "--epochs", 1, "--out", folder, "--force")
    assert cardkge.load_run(folder).epoch == 1


def test_a_run_that_another_process_has_just_finished_is_not_overwritten(tmp_path, monkeypatch):
    """It was begun and finished between the making of the folder and the lock."""
    options = ("--data", write_ring(tmp_path / "ring"), "--dim", 4, "--epochs", 1, "--out", tmp_path / "run")
    real = cardkge_tools.shell.files.sole_use

    def sole_use(folder):
        monkeypatch.undo()
        ok("train", *options)
        return real(folder)

    monkeypatch.setattr(cardkge_tools.experiments.fitting, "sole_use", sole_use)
    assert "already holds a run" in one_error(invoke("train", *options, "--seed", 1))
    assert cardkge.load_run(tmp_path / "run").settings.seed == 0


def test_an_empty_folder_that_another_process_took_stays(tmp_path, monkeypatch):
    """The other takes it between the making and the lock."""
    real, folder, held = Path.mkdir, tmp_path / "run", contextlib.ExitStack()

    def mkdir(self, *arguments, **options):
        real(self, *arguments, **options)
        if self == folder:
            assert held.enter_context(cardkge_tools.shell.files.sole_use(folder))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with held:
        line = one_error(invoke("train", "--data", "nowhere", "--out", folder))
    assert cardkge_tools.shell.files.IN_USE in line and folder.is_dir()


def test_a_folder_that_is_not_there_needs_no_lock(tmp_path):
    with cardkge_tools.shell.files.sole_use(tmp_path / "none") as alone:
        assert alone
    assert "no such run" in one_error(invoke("train", "--resume", "--out", tmp_path / "none"))


def test_a_trial_waits_for_whoever_is_at_it_and_is_then_done(tmp_path):
    """By `perform`, with the folder held here; what the other has finished is not done again."""
    task = cardkge_tools.experiments.trials.trial_task(
        trial(data=write_ring(tmp_path / "ring"), dim=4, epochs=1), tmp_path
    )
    folder = Path(task["folder"])
    folder.mkdir()

    class Never(cardkge_tools.shell.workers.Processes):
        def run(self, task, arguments, threads):
            raise AssertionError(arguments)

    processes = Never()
    with cardkge_tools.shell.files.sole_use(folder), cardkge_tools.shell.workers.ThreadPoolExecutor(2) as pool:
        ended = pool.submit(cardkge_tools.shell.workers.perform, task, 1, processes)
        time.sleep(0.5)
        assert not ended.done()
        (folder / "metrics.json").write_text("{}")
        assert ended.result(30) is None
        (folder / "metrics.json").unlink()
        ended = pool.submit(cardkge_tools.shell.workers.perform, task, 1, processes)
        time.sleep(0.3)
        assert not ended.done()
        processes.stop()
        assert ended.result(30) == "stopped"


def test_a_trial_begun_by_another_in_the_same_moment_is_waited_for(tmp_path):
    """The other begins after the look, so `train` finds the folder in use: tried again."""
    task = cardkge_tools.experiments.trials.trial_task(
        trial(data=write_ring(tmp_path / "ring"), dim=4, epochs=1), tmp_path
    )
    folder, held, calls = Path(task["folder"]), contextlib.ExitStack(), []

    class Late(cardkge_tools.shell.workers.Processes):
        def run(self, task, arguments, threads):
            calls.append(arguments)
            if len(calls) == 1:
                folder.mkdir()
                held.enter_context(cardkge_tools.shell.files.sole_use(folder))
                ended = super().run(task, arguments, threads)
                held.close()
                assert ended[0] is None and cardkge_tools.shell.files.IN_USE in ended[1]
                return ended
            return super().run(task, arguments, threads)

    assert cardkge_tools.shell.workers.perform(task, 1, Late()) is None
    assert len(calls) == 2 and cardkge.load_run(folder).metrics


@pytest.mark.parametrize("finishes", [True, False])
def test_a_trial_that_another_saves_between_the_look_and_the_start_is_no_error(tmp_path, finishes):
    """The process then finds a run in the folder; what that lacks is done, and nothing where it is finished."""
    task = cardkge_tools.experiments.trials.trial_task(
        trial(data=write_ring(tmp_path / "ring"), dim=4, epochs=2), tmp_path
    )
    folder, calls = Path(task["folder"]), []

    class Late(cardkge_tools.shell.workers.Processes):
        def run(self, task, arguments, threads):
            calls.append(arguments)
            if len(calls) == 1:
                ok(*task["train"])
                if not finishes:
                    (folder / "metrics.json").unlink()
                ended = super().run(task, arguments, threads)
                assert ended[0] is None and "already holds a run" in ended[1]
                return ended
            return super().run(task, arguments, threads)

    assert cardkge_tools.shell.workers.perform(task, 1, Late()) is None
    assert ["--resume" in command for command in calls] == [False] + [True] * (not finishes)
    assert cardkge.load_run(folder).metrics and cardkge.load_run(folder).epoch == 2


def test_a_process_that_cannot_be_started_is_a_line(tmp_path):
    task = cardkge_tools.experiments.trials.trial_task(trial(), tmp_path) | {"program": [str(tmp_path / "no python")]}
    line = f"a process cannot be started: {tmp_path / 'no python'}: No such file or directory"
    assert cardkge_tools.shell.workers.perform(task, 1, cardkge_tools.shell.workers.Processes()) == line
    gone = {"directory": str(tmp_path / "gone"), "program": [sys.executable]}
    assert cardkge_tools.shell.workers.perform(task | gone, 1, cardkge_tools.shell.workers.Processes()) == line.replace(
        "no python", "gone"
    )


def test_processes_are_run_to_their_end_and_stopped_together():
    processes, code = cardkge_tools.shell.workers.Processes(), "import os; os.write(1, b'1'); os.write(2, b'\\xff!')"
    task = {"program": [sys.executable, "-c"], "directory": None, "environment": {}}
    assert processes.run(task, [code], 1) == (b"1", None) and not processes.running
    assert processes.run(task, [f"{code}; os._exit(3)"], 1) == (None, "\ufffd!") and not processes.running
    processes.stop()
    assert processes.run({}, ["nothing"], 1) == (None, "stopped")


@pytest.mark.parametrize(
    "code, errors, line",
    [
        (1, "warning: w\nerror: what\n\n", "error: what"),
        (-9, "warning: w\n", "killed by signal 9"),
        (-9, "", "killed by signal 9"),
        (3, "", "exit code 3"),
        (1, "Traceback\nValueError: \ufffd\n", "ValueError: \ufffd"),
    ],
)
def test_the_reason_of_a_failed_trial(tmp_path, code, errors, line):
    class Failing(cardkge_tools.shell.workers.Processes):
        def run(self, task, arguments, threads):
            return None, cardkge_tools.shell.workers.error_line(code, errors)

    assert (
        cardkge_tools.shell.workers.perform(
            cardkge_tools.experiments.trials.trial_task(trial(), tmp_path), 1, Failing()
        )
        == line
    )


def test_batches_exclude_a_batch_size(tmp_path):
    arguments = ("--batches", 2, "--batch-size", 3, "--out", tmp_path / "run")
    assert "exclude each other" in usage_error(invoke("train", *arguments))
    assert not (tmp_path / "run").exists()
