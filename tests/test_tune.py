"""`tune`: every combination, the best on valid, and nothing done twice however it was stopped."""

import contextlib
import csv
import itertools
import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from conftest import children, finish, invoke, ok, one_error, start, thorough, usage_error, wait_for, write_ring

import cardkge
import cardkge_tools.experiments.trials
import cardkge_tools.shell.files
import cardkge_tools.shell.workers
import cli
from cardkge_tools.shell.options import checked_settings, train_context

COMMON = ("--dim", 4, "--batches", 4, "--epochs", 6, "--validate-every", 2)
AXES = {"model": ["distmult", "complex"], "learning-rate": ["0.1", "0.5"], "filter-negatives": ["true", "false"]}
GRID = tuple(x for name, values in AXES.items() for x in ("--grid", f"{name}={','.join(values)}"))


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    return write_ring(tmp_path_factory.mktemp("data") / "ring", n=150)


def read_trials(out):
    with open(out / "trials.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def progress(errors):
    """The lines on standard error, each of which must be one of the search's progress."""
    lines = [line for line in errors.splitlines() if " runs failed; " not in line]
    for line in lines:
        assert re.fullmatch(r"\[\d+/\d+\] \d+:\d\d  .*: (done|failed: .*)|\d+ of \d+ runs are in .* already", line), (
            line
        )
    return lines


def state(out):
    """Of every file of the runs: its bytes and when it was written."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.glob("*/*")}


@pytest.fixture(scope="module")
def tuned(ring, tmp_path_factory):
    """A grid of 8 runs: (folder, standard output)."""
    out = tmp_path_factory.mktemp("tuned") / "out"
    return out, ok("tune", "--data", ring, *COMMON, *GRID, "--jobs", 2, "--threads", 1, "--out", out).stdout


@pytest.fixture
def copy(tuned, tmp_path):
    shutil.copytree(tuned[0], tmp_path / "copy")
    return tmp_path / "copy"


def test_the_grid_is_exhaustive_and_the_best_on_valid_is_chosen(ring, tuned, tmp_path):
    """Against runs of `train`, one by one."""
    out, output = tuned
    rows = read_trials(out)
    expected = []
    for combination in itertools.product(*AXES.values()):
        model, rate, flag = combination
        folder = tmp_path / ",".join(combination)
        options = ["--filter-negatives"] if flag == "true" else []
        ok("train", "--data", ring, *COMMON, "--model", model, "--learning-rate", rate, *options, "--out", folder)
        with open(folder / "history.csv", newline="") as file:
            validated = [record for record in csv.DictReader(file) if record["valid_mrr"]]
        best = max((float(r["valid_hits@10"]), float(r["valid_mrr"]), -int(r["epoch"])) for r in validated)
        expected.append((best, combination, folder))
    expected.sort(reverse=True)
    assert len({best[:2] for best, _, _ in expected}) == 8  # the order is not left to chance
    assert [tuple(row[name] for name in AXES) for row in rows] == [combination for _, combination, _ in expected]
    for row, (best, combination, folder) in zip(rows, expected, strict=True):
        assert (float(row["hits@10"]), float(row["mrr"]), -int(row["epoch"])) == best
        assert row["failure"] == "" and float(row["seconds"]) > 0
        for name in ("model.npz", "metrics.json", "bounds.tsv"):
            assert (out / row["run"] / name).read_bytes() == (folder / name).read_bytes(), combination
    assert f"\nchosen: {out / rows[0]['run']}\n" in output
    both = json.loads((expected[0][2] / "metrics.json").read_text())["filtered"]["both"]
    shown = output.splitlines()[-2].split()
    assert shown[:5] == ["filtered", *(f"{100 * both[name]:.2f}" for name in ("hits@1", "hits@3", "hits@5", "hits@10"))]
    lines = [line.split() for line in output.splitlines()]
    percent = [f"{100 * best[0]:.2f}" for best, _, _ in expected]
    assert [line[3] for line in lines if line[:1] in (["distmult"], ["complex"])] == percent


def test_nothing_finished_is_run_again(ring, tuned, monkeypatch):
    out, output = tuned
    before = state(out)
    monkeypatch.setattr(cardkge_tools.shell.workers, "perform", None)
    again = ok("tune", "--data", ring, *COMMON, *GRID, "--jobs", 2, "--out", out)
    assert again.stderr == f"8 of 8 runs are in {out} already\n"
    assert again.stdout == output
    assert state(out) == before


def test_a_larger_grid_runs_what_is_new_alone(ring, copy):
    before = state(copy)
    grid = [text.replace("0.5", "0.5,1") for text in GRID if "filter" not in text and text != "--grid"]
    grid = [x for text in grid for x in ("--grid", text)]
    result = ok("tune", "--data", ring, *COMMON, *grid, "--jobs", 50, "--threads", 1, "--out", copy)
    lines = progress(result.stderr)
    assert lines[0] == f"4 of 6 runs are in {copy} already" and [line[:5] for line in lines[1:]] == ["[1/2]", "[2/2]"]
    assert len(read_trials(copy)) == 6
    assert {line.rpartition(",learning-rate=")[2] for line in lines[1:]} == {"1,validate-every=2,seed=0: done"}
    after = state(copy)
    assert {path: after[path] for path in before} == before and len(after) > len(before)


def test_toml_and_the_command_line_agree(ring, tuned, copy, tmp_path, monkeypatch):
    (tmp_path / "grid.toml").write_text(
        f"data = {json.dumps(str(ring))}\ndim = 99\nbatches = 4\nepochs = 6\nvalidate-every = 2\n"
        '[grid]\nmodel = ["distmult", "complex"]\nlearning-rate = [1e-1, 0.5]\n'
    )
    rows = read_trials(copy)
    monkeypatch.setattr(cardkge_tools.shell.workers, "perform", None)  # no run is missing
    options = ("--dim", 4, "--grid", "filter-negatives=true,false")  # of both places, the command line wins
    found = ok("tune", "--file", tmp_path / "grid.toml", *options, "--out", copy)
    assert found.stderr == f"8 of 8 runs are in {copy} already\n"
    assert found.stdout.splitlines()[-3:] == tuned[1].splitlines()[-3:]
    for row in rows:
        row["learning-rate"] = str(float(row["learning-rate"]))
    assert read_trials(copy) == rows


def doctor(folder, hits=None, mrr=None, test=None):
    """Change what a run's files say of valid (at its last validation, no other) and test."""
    if test is not None:
        metrics = json.loads((folder / "metrics.json").read_text())
        for sides in metrics.values():
            for side in sides.values():
                side.update(dict.fromkeys(side, test))
        (folder / "metrics.json").write_text(json.dumps(metrics))
    if hits is not None:
        with open(folder / "history.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            row.update({"valid_hits@10": "", "valid_mrr": ""})
        rows[-1].update({"valid_hits@10": hits, "valid_mrr": mrr})
        with open(folder / "history.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def test_test_metrics_never_decide(ring, copy):
    """The worst on valid is made perfect on test, and the best a failure."""
    arguments = ("tune", "--data", ring, *COMMON, *GRID, "--out", copy)
    rows = read_trials(copy)
    for rank, row in enumerate(rows):
        doctor(copy / row["run"], test=rank / 8)
    result = ok(*arguments)
    assert read_trials(copy) == rows
    assert f"chosen: {copy / rows[0]['run']}\n" in result.stdout


def test_hits_decide_before_mrr_and_mrr_before_the_order_of_the_grid(ring, copy):
    arguments = ("tune", "--data", ring, *COMMON, *GRID, "--out", copy)
    in_grid = [",".join(combination) for combination in itertools.product(*AXES.values())]
    runs = {",".join(row[name] for name in AXES): copy / row["run"] for row in read_trials(copy)}
    values = [(0.5, 0.3), (0.5, 0.3), (0.5, 0.4), (0.5000001, 0.1), (0.4, 0.9), *[(0.1, 0.1)] * 3]
    for name, (hits, mrr) in zip(in_grid, values, strict=True):
        doctor(runs[name], hits, mrr)
    result = ok(*arguments)
    order = [in_grid[i] for i in (3, 2, 0, 1, 4, *range(5, 8))]
    assert [",".join(row[name] for name in AXES) for row in read_trials(copy)] == order
    assert f"chosen: {runs[order[0]]}\n" in result.stdout


# --- interruption

SLOW = ("--dim", 4, "--batches", 4, "--epochs", 1500, "--validate-every", 500)


@pytest.fixture(scope="module")
def whole(ring, tmp_path_factory):
    """model.npz by seed of two uninterrupted runs."""
    folder = tmp_path_factory.mktemp("whole")
    for seed in (0, 1):
        ok("train", "--data", ring, *SLOW, "--seed", seed, "--threads", 1, "--out", folder / str(seed))
    return {seed: (folder / str(seed) / "model.npz").read_bytes() for seed in (0, 1)}


def slow_tune(ring, out, seeds="0,1"):
    options = ("--data", ring, *SLOW, "--grid", f"seed={seeds}", "--jobs", len(seeds.split(",")), "--threads", 1)
    return start("tune", *options, "--out", out)


def check_whole(out, whole, seeds="0,1"):
    models = {seed: (run / "model.npz").read_bytes() for seed in (0, 1) for run in out.glob(f"*,seed={seed}")}
    assert models == whole
    rows = read_trials(out)
    assert sorted((row["seed"], row["failure"]) for row in rows) == [(seed, "") for seed in seeds.split(",")]


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_search_goes_on_to_the_same_bits(ring, whole, tmp_path, number):
    """With SIGKILL the trials are killed too, so that they start again from their last checkpoint."""
    out = tmp_path / "out"
    process = slow_tune(ring, out)
    try:
        wait_for(lambda: len(list(out.glob("*/model.npz"))) == 2, process=process)
        trials = children(process.pid)
        assert len(trials) == 2
        process.send_signal(number)
        for pid in trials if number == signal.SIGKILL else ():
            os.kill(pid, signal.SIGKILL)
        code, _, errors = finish(process)
    finally:
        process.kill()
    if number == signal.SIGKILL:
        assert code == -number
    else:
        assert code == 128 + number and errors == "stopped; the same command goes on from here\n"
        assert all(cardkge.load_run(path.parent).epoch < 1500 for path in out.glob("*/model.npz"))
    assert not list(out.glob("*/metrics.json")) and not (out / "trials.csv").exists()
    code, output, errors = finish(slow_tune(ring, out))
    assert code == 0 and [line[:5] for line in progress(errors)] == ["[1/2]", "[2/2]"] and "[2/2]" not in output
    check_whole(out, whole)


@pytest.mark.thorough
def test_trials_that_outlive_a_killed_search_are_waited_for(ring, whole, tmp_path):
    """Never do two processes train into one folder."""
    out, began = tmp_path / "out", {}

    def look():  # a process that begins or ends may have no arguments yet, or no longer
        began.update({pid: a for pid, a in children(second.pid).items() if "train" in a})

    process = slow_tune(ring, out)
    wait_for(lambda: len(list(out.glob("*/model.npz"))) == 2, process=process)
    orphans = children(process.pid)
    try:
        for pid in orphans:
            os.kill(pid, signal.SIGSTOP)
        process.kill()
        process.communicate()
        assert len(orphans) == 2 and not list(out.glob("*/metrics.json"))
        second = slow_tune(ring, out, "0,1,2")
        while not list(out.glob("*,seed=2/metrics.json")):  # a trial of its own, while both orphans have their folders
            assert second.poll() is None, second.communicate()
            look()
            time.sleep(0.01)
        for folder in out.glob("*,seed=[01]"):
            with cardkge_tools.shell.files.sole_use(folder) as free:
                assert not free and not (folder / "metrics.json").exists()
        for pid in orphans:
            os.kill(pid, signal.SIGCONT)
        while second.poll() is None:
            look()
            time.sleep(0.01)
        code, _, errors = finish(second)
    finally:
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert code == 0 and len(progress(errors)) == 3
    assert len(began) == 1 and next(iter(began.values()))[-3].endswith(",seed=2")  # --out FOLDER --threads 1
    check_whole(out, whole, "0,1,2")


def test_a_search_that_waits_can_be_stopped(ring, tmp_path):
    """A folder is held here: its trial waits, the other is done, and a signal ends the waiting."""
    out = tmp_path / "out"
    options = ("--data", ring, *COMMON, "--grid", "seed=0,1", "--jobs", 2, "--threads", 1, "--out", out)
    trial = {
        "data": str(ring),
        "model": "distmult",
        "dim": 4,
        "epochs": 6,
        "batches": 4,
        "validate_every": 2,
        "seed": 0,
    }
    held = Path(cardkge_tools.experiments.trials.trial_task(trial, out)["folder"])
    held.mkdir(parents=True)
    with cardkge_tools.shell.files.sole_use(held):
        process = start("tune", *options)
        try:
            wait_for(lambda: list(out.glob("*/metrics.json")), process=process)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            code, _, errors = finish(process)
        finally:
            process.kill()
    *lines, last = errors.splitlines()
    assert code == 143 and last == "stopped; the same command goes on from here"
    assert len(lines) <= 1 and all(line[:5] == "[1/2]" and line.endswith(",seed=1: done") for line in lines)
    assert list(held.iterdir()) == []
    assert ok("tune", *options).stderr.startswith(f"1 of 2 runs are in {out} already\n")


# --- failures


@pytest.mark.thorough
def test_a_trial_that_diverges_is_reported_and_the_others_are_ranked(ring, tmp_path):
    out = tmp_path / "out"
    options = ("--data", ring, *COMMON, "--optimizer", "sgd", "--project", "none", "--threads", 1, "--out", out)
    for _ in range(2):  # it fails the second time as it did the first
        result = invoke("tune", *options, "--grid", "learning-rate=1e30,0.01", "--jobs", 2)
        assert result.exit_code == 1 and "1 of 2 runs failed" in result.stderr
        good, bad = read_trials(out)
        assert (good["learning-rate"], good["failure"]) == ("0.01", "")
        assert bad["failure"].startswith("the objective is") and "use a smaller learning rate" in bad["failure"]
        assert [bad[name] for name in ("learning-rate", "hits@10", "mrr", "epoch", "seconds")] == [
            "1e30",
            "",
            "",
            "",
            "",
        ]
        assert any(f"{bad['run']}: failed: the objective is" in line for line in progress(result.stderr))
        assert f"chosen: {out / good['run']}\n" in result.stdout
    result = invoke("tune", *options, "--grid", "learning-rate=1e30")
    shown, line = result.stderr.splitlines()
    assert progress(shown) and line == f"error: all 1 runs failed; {bad['run']}: {bad['failure']}"
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("name, content", [
    ("history.csv", None), thorough("metrics.json", "{}"), thorough("metrics.json", "["),
])  # fmt: skip
def test_a_trial_that_cannot_be_read_afterwards_fails_and_the_others_are_ranked(
    ring, tmp_path, monkeypatch, name, content
):
    real, out = cardkge_tools.shell.workers.perform, tmp_path / "out"

    def perform(task, threads, processes):
        error, folder = real(task, threads, processes), Path(task["folder"])
        if folder.name.endswith("seed=0"):
            (folder / name).unlink() if content is None else (folder / name).write_text(content)
        return error

    monkeypatch.setattr(cardkge_tools.shell.workers, "perform", perform)
    result = invoke("tune", "--data", ring, *COMMON, "--grid", "seed=0,1", "--threads", 1, "--out", out)
    assert result.exit_code == 1 and "1 of 2 runs failed" in result.stderr
    good, bad = read_trials(out)
    assert (good["seed"], good["failure"], bad["seed"], bad["hits@10"]) == ("1", "", "0", "")
    assert bad["failure"].startswith(f"{out / bad['run'] / name}: ")
    assert f"chosen: {out / good['run']}\n" in result.stdout


@pytest.mark.parametrize("done", [False, True])
def test_runs_that_leave_nothing_here_fail(ring, tmp_path, monkeypatch, done):
    """As on workers that share no files with this machine; or where no process can be started."""
    monkeypatch.setattr(cardkge_tools.shell.workers, "perform", lambda *_: None if done else "error: no process")
    out = tmp_path / "out"
    result = invoke("tune", "--data", ring, *COMMON, "--grid", "seed=0,1", "--out", out)
    line = result.stderr.splitlines()[-1]
    assert result.exit_code == 1 and line.startswith("error: all 2 runs failed; ring")
    assert ("is not here: do the workers share these files?" if done else "no process") in line
    assert [bool(row["failure"]) for row in read_trials(out)] == [True, True]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_goes_away_loses_its_own_stream_only(ring, copy, tmp_path, stream):
    """And no file: the search goes on."""
    (copy / "trials.csv").unlink()
    other = "stderr" if stream == "stdout" else "stdout"
    read, written = os.pipe()
    os.close(read)
    with open(tmp_path / "kept", "w") as kept, os.fdopen(written, "w") as broken:
        options = ("--data", ring, *COMMON, *GRID, "--out", copy)
        process = start("tune", *options, **{stream: broken, other: kept})
    process.wait()
    assert (copy / "trials.csv").exists()
    kept = (tmp_path / "kept").read_text()
    assert ("runs are in" if other == "stderr" else "chosen: ") in kept


def test_what_changes_nothing_in_any_trial_is_said(ring, tmp_path):
    options = ("--data", ring, *COMMON, "--threads", 1, "--out", tmp_path / "out")
    result = ok("tune", *options, "--epochs", 2, "--grid", "lambda=0.1,0.2", "--grid", "hidden=3", "--model", "ermlp")
    said = [line for line in result.stderr.splitlines() if line.startswith("warning")]
    assert said[1:] == ["warning: --lambda makes no difference without --bounds"]
    assert "the same run as lambda=0.1, hidden=3; it is done once" in said[0]
    result = ok("tune", *options, "--epochs", 2, "--hidden", 3, "--grid", "model=ermlp,distmult")
    assert "warning" not in result.stderr


def test_a_process_that_cannot_be_started_is_the_failure_of_its_trial(ring, tmp_path, monkeypatch):
    real, out = cardkge_tools.shell.workers.subprocess.Popen, tmp_path / "out"

    def popen(command, **options):
        if any("seed=0" in part for part in command):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return real(command, **options)

    monkeypatch.setattr(cardkge_tools.shell.workers.subprocess, "Popen", popen)
    result = invoke("tune", "--data", ring, *COMMON, "--grid", "seed=0,1", "--threads", 1, "--out", out)
    assert result.exit_code == 1 and "1 of 2 runs failed" in result.stderr
    good, bad = read_trials(out)
    assert (good["seed"], good["failure"], bad["seed"]) == ("1", "", "0")
    assert bad["failure"] == f"a process cannot be started: {sys.executable}: Resource temporarily unavailable"
    assert len(progress(result.stderr)) == 2


@pytest.mark.thorough
def test_a_run_killed_while_it_saved_for_the_first_time_is_trained_anew(ring, tmp_path):
    """Between config.json and model.npz."""
    options = ("tune", "--data", ring, *COMMON, "--grid", "seed=0,1", "--threads", 1, "--out", tmp_path / "out")
    ok(*options)
    rows, folder = read_trials(tmp_path / "out"), next((tmp_path / "out").glob("*,seed=1"))
    model = (folder / "model.npz").read_bytes()
    for name in ("model.npz", "metrics.json"):
        (folder / name).unlink()
    assert (folder / "config.json").exists()
    lines = progress(ok(*options).stderr)
    assert lines[0].startswith("1 of 2 runs are in") and lines[1].endswith(",seed=1: done")
    assert (folder / "model.npz").read_bytes() == model
    assert [row | {"seconds": ""} for row in read_trials(tmp_path / "out")] == [row | {"seconds": ""} for row in rows]


@pytest.fixture
def small(ring, tmp_path):
    """Data that may be changed, and a function that tunes on it, two runs of one epoch."""
    data = shutil.copytree(ring, tmp_path / "data")
    (tmp_path / "bounds.tsv").write_text("r0\t0\t1\n")

    def run(seeds="0,1"):
        options = ("--data", data, "--dim", 4, "--epochs", 1, "--bounds", tmp_path / "bounds.tsv", "--threads", 1)
        return invoke("tune", *options, "--grid", f"seed={seeds}", "--out", tmp_path / "out")

    return data, run


def test_runs_on_data_or_bounds_that_have_changed_are_errors(small, tmp_path, monkeypatch):
    data, run = small
    assert run().exit_code == 0
    before = state(tmp_path / "out")
    monkeypatch.setattr(cardkge_tools.shell.workers, "perform", None)  # told before anything is run
    text = (data / "train.txt").read_text()
    (data / "train.txt").write_text(text + "e0\tr0\te9\n")
    line = one_error(run("0,1,2"))
    assert "trained on other data than" in line and "remove this folder" in line
    (data / "train.txt").write_text(text)
    (tmp_path / "bounds.tsv").write_text("r0\t0\t2\n")
    assert "trained with other bounds than" in one_error(run("0,1,2"))
    (tmp_path / "bounds.tsv").write_text("r0\t0\t1\n")
    assert run().exit_code == 0
    (tmp_path / "bounds.tsv").write_text("r9\t0\t1\n")
    assert "unknown relation" in one_error(run())
    assert state(tmp_path / "out") == before


@pytest.mark.thorough
def test_a_run_with_other_settings_than_its_name_says_is_an_error(small, ring, tmp_path):
    _, run = small
    assert run().exit_code == 0
    folder = next((tmp_path / "out").glob("*,seed=1"))
    ok("train", "--resume", "--epochs", 2, "--out", folder)
    assert f"{folder}: trained with --epochs 2, not 1; remove this folder" in one_error(run())
    shutil.rmtree(folder)
    assert run().exit_code == 0
    options = ("--data", ring, "--dim", 4, "--epochs", 1)
    arguments = ("tune", *options, "--grid", "seed=0", "--threads", 1, "--out", tmp_path / "free")
    (row,) = ok(*arguments) and read_trials(tmp_path / "free")
    ok(
        "train",
        *options,
        "--bounds",
        "mined",
        "--validate-every",
        1,
        "--out",
        tmp_path / "free" / row["run"],
        "--force",
    )
    assert "trained with other bounds than none now" in one_error(invoke(*arguments))


def set_setting(name, value):
    def change(data, folder):
        config = json.loads((folder / "config.json").read_text())
        config["settings"][name] = value
        (folder / "config.json").write_text(json.dumps(config))

    return change


def add_triple(data, folder):
    with open(data / "train.txt", "a") as file:
        file.write("e0\tr0\te9\n")


def widen_bounds(data, folder):
    (data.parent / "bounds.tsv").write_text("r0\t0\t2\n")


@pytest.mark.parametrize(
    "change, part",
    [
        (add_triple, "trained on other data than"),
        thorough(widen_bounds, "trained with other bounds than"),
        thorough(set_setting("epochs", 9), "trained with --epochs 9, not 1; remove this folder"),
        thorough(set_setting("learning-rate", 0.5), "trained with --learning-rate 0.5, not 0.1; remove this folder"),
        (set_setting("dim", 5), "trained with --dim 5, not 4; remove this folder"),
    ],
)
@pytest.mark.parametrize("saved", [("model.npz",), thorough(())])
def test_a_begun_run_of_other_data_bounds_or_settings_is_found_before_any_run(
    small, tmp_path, monkeypatch, change, part, saved
):
    """Interrupted after its first save, or during it."""
    data, run = small
    assert run().exit_code == 0
    folder = next((tmp_path / "out").glob("*,seed=1"))
    for name in {"model.npz", "metrics.json"} - set(saved):
        (folder / name).unlink()
    shutil.rmtree(next((tmp_path / "out").glob("*,seed=0")))
    change(data, folder)
    before = state(tmp_path / "out")
    monkeypatch.setattr(cardkge_tools.shell.workers, "perform", None)
    line = one_error(run())
    assert line.startswith(f"error: {folder}: ") and part in line
    assert state(tmp_path / "out") == before


def test_a_run_of_another_dim_than_the_models_own_is_found(ring, tmp_path):
    options = ("--data", ring, "--epochs", 1)
    arguments = ("tune", *options, "--grid", "model=ermlp", "--threads", 1, "--out", tmp_path / "out")
    ok(*arguments)
    (row,) = read_trials(tmp_path / "out")
    assert ok(*arguments, "--dim", cardkge.DIMS["ermlp"]).stderr.startswith("1 of 1 runs are in")  # given or not
    folder = tmp_path / "out" / row["run"]
    ok("train", *options, "--model", "ermlp", "--dim", 3, "--validate-every", 1, "--out", folder, "--force")
    assert f"trained with --dim 3, not {cardkge.DIMS['ermlp']}; remove this folder" in one_error(invoke(*arguments))


@pytest.mark.parametrize(
    "options, part",
    [
        ([], "Nothing to try"),
        (["--grid", "lambda"], "expected NAME=VALUE,VALUE,..."),
        (["--grid", "lambda="], "expected NAME=VALUE,VALUE,..."),
        (["--grid", "=1"], "expected NAME=VALUE,VALUE,..."),
        (["--grid", "lambda=1,,2"], "expected NAME=VALUE,VALUE,..."),
        (["--grid", "foo=1"], "No such option"),
        (["--grid", "lambda=0.1,-1"], "lambda=-1: Invalid value for '--lambda'"),
        (["--grid", "dim=2,x"], "dim=x: Invalid value for '--dim'"),
        (["--grid", "out=a"], "out is not a setting"),
        (["--grid", "threads=1"], "threads is not a setting"),
        (["--grid", "resume=true"], "resume is not a setting"),
        (["--grid", "lambda=1", "--grid", "lambda=2"], "lambda is in the grid twice"),
        (["--lambda", "1", "--grid", "lambda=1,2"], "lambda is in the grid and fixed too"),
        (["--grid", "lambda=0.01,1e-2"], "lambda=1e-2: the same run is in the grid twice"),
        (["--batches", "2", "--grid", "batch-size=10"], "--batches and --batch-size exclude each other"),
        (["--grid", "batches=2", "--grid", "batch-size=10"], "--batches and --batch-size exclude each other"),
        (["--grid", "epochs=1,0"], "epochs=0: no validation in 0 epochs"),
        (["--epochs", "9", "--grid", "validate-every=3,10"], "validate-every=10: no validation in 9 epochs"),
        (["--grid", "lambda=0.01", "--grid", "data=families,wn18"], "data is in the grid, but runs on different data"),
        (["--grid", "columns=hrt"], "columns is in the grid, but runs on different data"),
        (["--grid", "dim=2", "--jobs", "0"], "--jobs"),
        (["--grid", "dim=2", "--jobs", "2", "--cluster", "tcp://127.0.0.1:1"], "--jobs is for this machine"),
    ],
)  # fmt: skip
def test_a_grid_that_makes_no_sense_is_a_usage_error_before_any_run(ring, tmp_path, options, part):
    assert part in usage_error(invoke("tune", "--data", ring, *options, "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_toml_file_is_held_to_the_same(ring, tmp_path):
    for text, part in (
        ("foo = 1\n[grid]\ndim = [2]", "No such option"),
        ("out = 'x'\n[grid]\ndim = [2]", "out is not a setting"),
        ("dim = 3\n[grid]\ndim = [2]", "dim is in the grid and fixed too"),
        ("[grid]\ndata = ['families']", "data is in the grid, but runs on different data cannot be compared"),
        ("[grid]\ncolumns = ['hrt']", "columns is in the grid, but runs on different data cannot be compared"),
        ("[grid]\ndim = [2.5]", "Invalid value for '--dim'"),
        ("dim = 2", "Nothing to try"),
        ("[grid]", "Nothing to try"),
        ("", "Nothing to try"),
    ):
        (tmp_path / "grid.toml").write_text(text)
        result = invoke("tune", "--data", ring, "--file", tmp_path / "grid.toml", "--out", tmp_path / "out")
        line = usage_error(result)
        assert part in line, text
        assert part.startswith(("No", "data", "columns", "dim")) or str(tmp_path / "grid.toml") in line
    (tmp_path / "grid.toml").write_text("[grid]\ndim = [2]")
    result = invoke("tune", "--data", ring, "--file", tmp_path / "grid.toml", "--grid", "dim=3")
    assert "dim is in the grid twice" in usage_error(result)


def test_data_that_is_nowhere_and_folders_that_cannot_be_written_are_errors(ring, tmp_path):
    (tmp_path / "file").write_text("mine")
    options = ("--data", ring, "--grid", "dim=2")
    assert "is a file" in one_error(invoke("tune", *options, "--out", tmp_path / "file"))
    assert "cannot be written" in one_error(invoke("tune", *options, "--out", tmp_path / "file" / "out"))
    assert "no data set 'nowhere'" in one_error(
        invoke("tune", "--data", "nowhere", *options[2:], "--out", tmp_path / "out")
    )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_is_read_only_is_found_before_any_run(ring, tmp_path, monkeypatch):
    def refuse(dir):
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr(cardkge_tools.shell.files.tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(cardkge_tools.shell.workers, "perform", None)
    line = one_error(invoke("tune", "--data", ring, "--grid", "dim=2", "--out", tmp_path / "out"))
    assert f"{tmp_path / 'out'}: cannot be written (Permission denied)" in line


@pytest.mark.thorough
def test_odd_names_and_other_working_directories(ring, tmp_path, monkeypatch):
    """Data with spaces, commas and letters of all kinds, by a relative path; then from elsewhere."""
    name = "my, dätä = 'x'"
    shutil.copytree(ring, tmp_path / name / "李 白")
    (tmp_path / name / "bounds.tsv").write_text("r0\t0\t1\n")
    (tmp_path / "below").mkdir()

    def run(up, *more):
        options = ("--data", f"{up}{name}/李 白", "--bounds", f"{up}{name}/bounds.tsv", "--dim", 4, "--epochs", 1)
        return ok("tune", *options, "--grid", "seed=0,1", "--threads", 1, "--out", f"{up}out", *more).stderr

    monkeypatch.chdir(tmp_path)
    run("./")
    before = state(tmp_path / "out")
    monkeypatch.chdir("below")
    assert run("../") == "2 of 2 runs are in ../out already\n"
    next((tmp_path / "out").glob("*,seed=1/metrics.json")).unlink()  # it goes on, with the data from here
    assert "1 of 2 runs are in ../out already" in run("../")
    after = state(tmp_path / "out")
    assert {path: content for path, (content, _) in after.items() if path.name in ("model.npz", "metrics.json")} == {
        path: content for path, (content, _) in before.items() if path.name in ("model.npz", "metrics.json")
    }


def test_a_path_whose_bytes_are_not_utf8(ring, tmp_path):
    data = shutil.copytree(ring, tmp_path / os.fsdecode(b"b\xff"))
    (tmp_path / "bounds.tsv").write_text("r0\t0\t1\n")
    bounds = shutil.copy(tmp_path / "bounds.tsv", tmp_path / os.fsdecode(b"\xfe.tsv"))
    options = ("--data", data, "--grid", f"bounds={bounds}", "--dim", 4, "--epochs", 1, "--threads", 1)
    options = (*options, "--out", tmp_path / "out")
    assert progress(ok("tune", *options).stderr)[0].startswith("[1/1]")
    assert ok("tune", *options).stderr.startswith("1 of 1 runs are in")
    (row,) = read_trials(tmp_path / "out")
    assert row["bounds"] == f"{tmp_path}/\\udcfe.tsv" and row["hits@10"]
    assert cardkge.load_run(tmp_path / "out" / row["run"]).settings.data == str(data)


def test_data_sets_given_by_name_are_found_by_the_runs(ring, tmp_path, monkeypatch):
    """Where $CARDKGE_DATA has relative folders, too."""
    shutil.copytree(ring, tmp_path / "sets" / "wn18")
    monkeypatch.setenv("CARDKGE_DATA", "sets")
    monkeypatch.chdir(tmp_path)
    ok("tune", "--data", "wn18", "--dim", 4, "--epochs", 1, "--grid", "seed=3", "--threads", 1)
    assert [row["run"] for row in read_trials(Path("tune"))] == ["wn18,distmult,dim=4,epochs=1,validate-every=1,seed=3"]


def test_cores_are_shared_among_the_runs_that_there_are(ring, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        cardkge_tools.shell.workers, "perform", lambda task, threads, processes: seen.append(threads) or "no"
    )
    monkeypatch.setattr(cardkge_tools.experiments.trials, "count_cores", lambda: 8)
    for jobs, runs, expected in ((1, 4, 8), (2, 4, 4), (8, 2, 4), (50, 50, 1)):
        seeds = ",".join(map(str, range(runs)))
        invoke("tune", "--data", ring, "--grid", f"seed={seeds}", "--jobs", jobs, "--out", tmp_path / "out")
        assert seen == [expected] * runs
        seen.clear()


def test_a_fault_in_one_trial_stops_the_others_at_once(ring, tmp_path, monkeypatch):
    """A fault of the program, say, or no more processes: no waiting for runs that take hours."""

    def perform(task, threads, processes):
        if task["folder"].endswith("=0"):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        deadline = time.monotonic() + 60
        while not processes.stopped and time.monotonic() < deadline:
            time.sleep(0.01)
        return "stopped" if processes.stopped else "late"

    monkeypatch.setattr(cardkge_tools.shell.workers, "perform", perform)
    began = time.monotonic()
    result = invoke("tune", "--data", ring, "--grid", "seed=0,1", "--jobs", 2, "--out", tmp_path / "out")
    assert "Resource temporarily unavailable" in one_error(result)
    assert time.monotonic() - began < 30


def other_values():
    """(name of an option, a value that is not its default), of all options of `train` that are settings."""
    ready = {"data": "wn18rr", "bounds": "mined", "model": "complex"}
    for option in cli.main.commands["train"].params:
        name = option.opts[0].removeprefix("--")
        if name in ready:
            yield name, ready[name]
        elif option.name in vars(cardkge.Settings()) and name != "final":
            values = getattr(option.type, "choices", None) or [True if option.is_flag else 3]
            values = [False, True] if name == "reciprocal" else values
            yield from ((name, value) for value in values if value != option.default)


@pytest.mark.parametrize(
    "every, expected", [(0, "no validation to choose by"), (500, "no validation in all of its epochs")]
)
def test_softmax_without_a_validation_is_one_line(ring, tmp_path, every, expected):
    """Where the sizes decide how many epochs there are."""
    options = ("--data", ring, "--loss", "softmax", "--dim", 2, "--validate-every", every, "--out", tmp_path / "out")
    result = invoke("tune", *options, "--grid", "n3=0.01,0.1", "--threads", 1)
    assert result.exit_code in (1, 2) and expected in result.stderr.splitlines()[-1], result.output


def test_a_run_with_lambda_0_is_done_once(ring, tmp_path):
    grid = ("--grid", "subjects=5,10", "--grid", "lambda=0,0.1")
    options = ("--data", ring, *COMMON, "--bounds", "mined", "--threads", 1, "--out", tmp_path / "out")
    result = ok("tune", *options, *grid)
    assert "lambda=0: the same run as" in result.stderr and len(read_trials(tmp_path / "out")) == 3


def option_name(name):
    """The name of the field of Settings."""
    return "penalty_weight" if name == "lambda" else name.replace("-", "_")


@pytest.mark.parametrize("loss", ["logistic", "hinge", "softmax"])
@pytest.mark.parametrize("name, value", list(other_values()), ids=str)
def test_each_option_reaches_the_run(loss, name, value):
    """The command line of a trial sets what its options say."""
    of_softmax = ("n3", "reciprocal", "relation-weight", "softmax-candidates", "no-loops")
    if (name in of_softmax and loss != "softmax") or (name == "extra-negatives" and loss != "logistic"):
        pytest.skip("train does not take them together")
    needs = {"patience": {"validate-every": 1}, "decay": {"optimizer": "sgd"}}
    options = {"loss": loss, name: value} | needs.get(name, {})
    command = cardkge_tools.experiments.trials.trial_task(
        cardkge_tools.experiments.trials.make_trial(options, ""), "out"
    )["train"]
    context = cli.main.commands["train"].make_context("train", command[1:])
    given = vars(checked_settings(train_context(options)))
    assert given[option_name(name)] == value
    assert vars(checked_settings(context)) == given
