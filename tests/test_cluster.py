"""`tune` and `complete --cluster`: a real Dask scheduler, two worker processes, one of them killed meanwhile."""

import contextlib
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import children, finish, invoke, ok, one_error, start, wait_for, write_ring

import cardkge_tools.experiments.trials
import cardkge_tools.shell.files
import cardkge_tools.shell.workers

pytest.importorskip("joblib")
pytest.importorskip("distributed")

pytestmark = pytest.mark.thorough

SEEDS, EPOCHS = (0, 1, 2), 1000
OPTIONS = ("--dim", 4, "--batches", 4, "--epochs", EPOCHS, "--threads", 1)


@contextlib.contextmanager
def dask(role, log, *arguments):
    """A process of Dask's command line, ended at the end."""
    command = [sys.executable, "-m", f"distributed.cli.dask_{role}", "--no-dashboard", *map(str, arguments)]
    with open(log, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=Path(log).parent)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def running_scheduler(tmp_path):
    """(address, file with it, process) of a scheduler."""
    file = tmp_path / "scheduler.json"

    def address():
        with contextlib.suppress(OSError, ValueError):  # not yet, or half written
            return json.loads(file.read_text())["address"]

    options = ("--host", "127.0.0.1", "--port", 0, "--scheduler-file", file)
    with dask("scheduler", tmp_path / "scheduler.log", *options) as process:
        yield wait_for(address, process=process), file, process


@pytest.fixture
def scheduler(tmp_path):
    with running_scheduler(tmp_path) as (address, file, _):
        yield address, file


def worker(tmp_path, name, file):
    options = ("--scheduler-file", file, "--host", "127.0.0.1", "--nthreads", 1, "--no-nanny", "--name", name)
    return dask("worker", tmp_path / f"{name}.log", *options, "--local-directory", tmp_path / "scratch")


def trained_by(pid):
    """The pid and folder of the trial that the worker is at, begun and not finished."""
    for child, arguments in children(pid).items():
        if "--out" in arguments:
            folder = Path(arguments[arguments.index("--out") + 1])
            if (folder / "model.npz").exists() and not (folder / "metrics.json").exists():
                return child, folder


def trial_of(pid):
    """The pid of that trial, or None."""
    found = trained_by(pid)
    return found and found[0]


def stopped_at_work(command, work_of, worker, number):
    """What finish() gives of a command that is sent a signal while work_of(worker), a process, is held."""
    try:
        held = wait_for(lambda: work_of(worker), process=command)
        os.kill(held, signal.SIGSTOP)
        command.send_signal(number)
        found = finish(command)
        os.kill(held, signal.SIGCONT)
        return found
    finally:
        command.kill()


def end(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The data set, and model.npz by seed of runs without a cluster."""
    folder = tmp_path_factory.mktemp("local")
    ring, models = write_ring(folder / "ring"), {}
    for seed in SEEDS:
        ok("train", "--data", ring, *OPTIONS, "--validate-every", EPOCHS, "--seed", seed, "--out", folder / str(seed))
        models[seed] = (folder / str(seed) / "model.npz").read_bytes()
    return ring, models


@pytest.mark.parametrize("orphan_lives", [True, False])
def test_a_worker_killed_during_the_search_loses_nothing(local, scheduler, tmp_path, orphan_lives):
    """Its trial is given to the other worker. That waits for the process that the first has left behind, if there is
    one (kept from going on for a while, to see it), else it goes on from the checkpoint."""
    (ring, models), (address, file), out = local, scheduler, tmp_path / "out"
    with contextlib.ExitStack() as running:
        first, second = (running.enter_context(worker(tmp_path, name, file)) for name in ("first", "second"))
        grid = ("--grid", f"seed={','.join(map(str, SEEDS))}")
        command = start("tune", "--data", ring, *OPTIONS, *grid, "--out", out, "--cluster", address)
        running.callback(command.kill)
        orphan, folder = wait_for(lambda: trained_by(first.pid), process=command)
        running.callback(end, orphan)
        os.kill(orphan, signal.SIGSTOP)
        _, other = wait_for(lambda: trained_by(second.pid), process=command)
        if not orphan_lives:
            end(orphan)
        first.kill()
        first.wait()
        if orphan_lives:
            wait_for((other / "metrics.json").exists, process=command)
            idle = time.monotonic()
            while time.monotonic() < idle + 2:  # the second worker has come to the trial that is held, or soon will
                at_work = children(second.pid).values()
                assert not any(str(folder) in arguments for arguments in at_work)
                assert command.poll() is None
                idle = time.monotonic() if at_work else idle
                time.sleep(0.02)
            with cardkge_tools.shell.files.sole_use(folder) as alone:
                assert not alone
            os.kill(orphan, signal.SIGCONT)
        code, output, errors = finish(command)
    assert code == 0, errors
    assert [line[:5] for line in errors.splitlines() if line[:1] == "["] == [
        "[1/3]",
        "[2/3]",
        "[3/3]",
    ] and "failed" not in errors
    assert "failed" not in output
    assert sorted(line[0] for line in output.splitlines() if line[1:3] == "  ") == ["0", "1", "2"]  # the table
    with open(out / "trials.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert sorted((row["seed"], row["failure"]) for row in rows) == [("0", ""), ("1", ""), ("2", "")]
    assert len(list(out.glob("*/model.npz"))) == 3
    for row in rows:
        assert (out / row["run"] / "model.npz").read_bytes() == models[int(row["seed"])]


def test_a_worker_that_comes_later_takes_part(local, scheduler, tmp_path):
    """While the only thread of the first is at a run."""
    (ring, models), (address, file), out = local, scheduler, tmp_path / "out"
    with contextlib.ExitStack() as running:
        first = running.enter_context(worker(tmp_path, "first", file))
        command = start("tune", "--data", ring, *OPTIONS, "--grid", "seed=0,1,2", "--out", out, "--cluster", address)
        running.callback(command.kill)
        held, _ = wait_for(lambda: trained_by(first.pid), process=command)
        running.callback(end, held)
        os.kill(held, signal.SIGSTOP)
        running.enter_context(worker(tmp_path, "second", file))
        wait_for(lambda: len(list(out.glob("*/metrics.json"))) == 2, process=command)
        os.kill(held, signal.SIGCONT)
        code, _, errors = finish(command)
    assert code == 0 and "failed" not in errors
    assert sorted(path.read_bytes() for path in out.glob("*/model.npz")) == sorted(models.values())


def test_no_worker_left_is_said_and_a_scheduler_that_ends_is_one_line(local, tmp_path):
    (ring, _), out = local, tmp_path / "out"
    with contextlib.ExitStack() as running:
        address, file, process = running.enter_context(running_scheduler(tmp_path))
        first = running.enter_context(worker(tmp_path, "first", file))
        options = ("--data", ring, *OPTIONS, "--grid", "seed=0,1,2", "--out", out, "--cluster", address)
        with open(tmp_path / "errors", "w") as errors:
            command = start("tune", *options, stderr=errors)
        running.callback(command.kill)
        held, _ = wait_for(lambda: trained_by(first.pid), process=command)
        running.callback(end, held)
        os.kill(held, signal.SIGSTOP)
        first.kill()
        first.wait()
        line = f"{address}: no worker is left; waiting for one: `dask worker {address}`\n"
        wait_for(lambda: (tmp_path / "errors").read_text().endswith(line), process=command)
        process.kill()
        code, output, _ = finish(command)
    text = (tmp_path / "errors").read_text()
    assert (code, output) == (1, "") and text.count("\n") == 2, text
    assert text.partition("\n")[2].startswith(f"error: {address}: the cluster failed (")


def test_a_trial_that_fails_on_a_worker_is_reported(local, scheduler, tmp_path):
    address, file = scheduler
    options = ("--data", local[0], "--dim", 4, "--epochs", 1, "--optimizer", "sgd", "--project", "none")
    with worker(tmp_path, "first", file):
        command = start(
            "tune", *options, "--grid", "learning-rate=0.1,1e30", "--out", tmp_path / "out", "--cluster", address
        )
        code, output, errors = finish(command)
    lines = errors.splitlines()
    assert code == 1 and [line[:5] for line in lines] == ["[1/2]", "[2/2]", "error"], errors
    assert ["use a smaller learning rate" in line for line in lines].count(True) == 2 and "[2/2]" not in output
    with open(tmp_path / "out" / "trials.csv", newline="") as lines:
        good, bad = csv.DictReader(lines)
    assert good["hits@10"] and not good["failure"] and "use a smaller learning rate" in bad["failure"]


def test_clusters_that_are_none_are_one_line_each(local, scheduler, tmp_path):
    """No scheduler at the address (it is asked for some seconds), none that could be, and one without workers."""
    reasons = dict.fromkeys(("tcp://127.0.0.1:1", "foo://bar", "127.0.0.1:port"), "no Dask scheduler answers there")
    reasons[scheduler[0]] = f"the scheduler has no workers; start some with `dask worker {scheduler[0]}`"
    options = ("tune", "--data", local[0], "--dim", 4, "--grid", "seed=1")
    outs = {address: tmp_path / f"out{i}" for i, address in enumerate(reasons)}  # they run side by side
    started = [(a, start(*options, "--out", outs[a], "--cluster", a)) for a in reasons]
    for address, process in started:
        code, output, errors = finish(process)
        assert (code, output) == (1, "") and errors.count("\n") == 1
        assert errors.startswith(f"error: {address}: {reasons[address]}")
        assert not outs[address].exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_search_that_is_stopped_goes_on(local, scheduler, tmp_path, number):
    (ring, models), (address, file), out = local, scheduler, tmp_path / "out"
    command = ("tune", "--data", ring, *OPTIONS, "--grid", "seed=0,1", "--out", out, "--cluster", address)
    with worker(tmp_path, "first", file) as process:
        code, output, errors = stopped_at_work(start(*command), trial_of, process.pid, number)
        assert (code, output) == (128 + number, "") and not (out / "trials.csv").exists()
        assert errors == "stopped; the same command goes on from here, once what runs on the workers has ended\n"
        code, _, errors = finish(start(*command))
    assert code == 0 and "failed" not in errors
    assert sorted(path.read_bytes() for path in out.glob("*/model.npz")) == sorted([models[0], models[1]])


def test_a_run_on_a_cluster_has_one_thread_unless_more_are_wanted(local, tmp_path, monkeypatch):
    """For a worker has as many runs at once as it has threads."""
    seen = []

    def carry_out(tasks, work, address, report, nothing):
        seen.append((address, work.keywords["threads"]))
        for task in tasks:
            report(task, "error: no")

    monkeypatch.setattr(cardkge_tools.shell.workers, "carry_out_on_cluster", carry_out)
    monkeypatch.setattr(cardkge_tools.experiments.trials, "count_cores", lambda: 8)
    options = ("tune", "--data", local[0], "--grid", "seed=0,1", "--out", tmp_path / "out", "--cluster", "there")
    for more in ((), ("--threads", 3)):
        assert invoke(*options, *more).exit_code == 1
    assert seen == [("there", 1), ("there", 3)]


@pytest.mark.parametrize("missing", ["joblib", "distributed"])
def test_the_extra_that_is_missing_is_named(local, tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    options = ("--data", local[0], "--dim", 4, "--grid", "seed=1", "--out", tmp_path / "out")
    line = one_error(invoke("tune", *options, "--cluster", "tcp://127.0.0.1:1"))
    assert line == f"error: --cluster needs {missing}, which is not installed: pip install -e '.[cluster]'"
    assert not (tmp_path / "out").exists()


# --- complete


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A run with bounds, the options of `complete`, and the bytes that it writes without a cluster."""
    folder = tmp_path_factory.mktemp("calibrated")
    ring = write_ring(folder / "ring", n=300)
    run, options = folder / "run", ("--known", "train", "--min-probability", 0.001)
    ok("train", "--data", ring, "--bounds", "mined", "--dim", 8, "--batches", 4, "--epochs", 20, "--out", run)
    ok("complete", run, *options, "--out", folder / "local.tsv")
    content = (folder / "local.tsv").read_bytes()
    assert content.count(b"\n") > 100 and len(set(content.splitlines())) == content.count(b"\n")
    return run, options, content


def part_of(pid):
    """The process of the worker that is at a part."""
    return next((child for child, arguments in children(pid).items() if "--part" in arguments), None)


def test_what_counts_teach_is_not_learnt_by_each_worker(calibrated, tmp_path):
    run, options, _ = calibrated
    shutil.copytree(run, tmp_path / "run")
    ok("calibrate", tmp_path / "run", "--bounds", "none")
    failed = invoke("complete", tmp_path / "run", *options, "--bounds", "mined", "--cluster", "tcp://127.0.0.1:1")
    assert f"calibrate {tmp_path / 'run'} --bounds mined" in one_error(failed)


@pytest.mark.parametrize("name", ["new.tsv", "new.nt"])
def test_a_worker_killed_while_it_completes_loses_nothing(calibrated, scheduler, tmp_path, name):
    (run, options, content), (address, file), out = calibrated, scheduler, tmp_path / name
    with contextlib.ExitStack() as running:
        first, second = (running.enter_context(worker(tmp_path, name, file)) for name in ("first", "second"))
        command = start("complete", run, *options, "--out", out, "--cluster", address)
        running.callback(command.kill)
        held = wait_for(lambda: part_of(first.pid), process=command)
        running.callback(end, held)
        os.kill(held, signal.SIGSTOP)
        wait_for(lambda: part_of(second.pid), process=command)
        first.kill()
        first.wait()
        code, output, errors = finish(command)
    assert code == 0 and output.startswith(f"{out}: "), errors
    if name == "new.nt":
        ok("complete", run, *options, "--out", tmp_path / "local.nt")
        content = (tmp_path / "local.nt").read_bytes()
    assert out.read_bytes() == content


def test_precision_and_one_relation_on_a_cluster(calibrated, scheduler, tmp_path):
    """--precision looks again, further down; TSV to the terminal."""
    (run, _, _), (address, file) = calibrated, scheduler
    with worker(tmp_path, "first", file):
        for options in (("--precision", 0.01), ("--relation", "r1", "--min-probability", 0)):
            options += "--known", "train"
            expected = ok("complete", run, *options)
            code, output, _ = finish(start("complete", run, *options, "--cluster", address))
            assert code == 0 and output == expected.stdout and output.count("\n") > 10


def test_a_model_of_ones_own_completes_on_a_cluster(calibrated, scheduler, tmp_path):
    """The workers are told where its class is, from the root."""
    (_, options, _), (address, file) = calibrated, scheduler
    model = ("--model", os.path.relpath(Path(__file__).parents[1] / "course/solutions/transe.py") + ":TransE")
    ring = write_ring(tmp_path / "ring", n=40)
    ok("train", "--data", ring, *model, "--dim", 4, "--epochs", 5, "--out", tmp_path / "run")
    expected = ok("complete", tmp_path / "run", *options, *model)
    with worker(tmp_path, "first", file):
        code, output, errors = finish(start("complete", tmp_path / "run", *options, *model, "--cluster", address))
    assert code == 0 and output == expected.stdout and output.count("\n") > 10, errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_completion_that_is_stopped_writes_nothing(calibrated, scheduler, tmp_path, number):
    (run, options, _), (address, file), out = calibrated, scheduler, tmp_path / "new.tsv"
    out.write_text("older")
    with worker(tmp_path, "first", file) as process:
        command = start("complete", run, *options, "--out", out, "--cluster", address)
        code, output, errors = stopped_at_work(command, part_of, process.pid, number)
    assert (code, output, errors) == (128 + number, "", "stopped; nothing has been written\n")
    assert out.read_text() == "older" and not list(tmp_path.glob("*.tmp"))


def test_a_part_that_fails_is_one_line(calibrated, tmp_path):
    (run, options, _), out = calibrated, tmp_path / "new.tsv"
    command = ("complete", run, *options, "--out", out, "--cluster")
    with running_scheduler(tmp_path) as (address, file, _), worker(tmp_path, "first", file) as first:
        moved = run.with_name("moved")
        completion = start(*command, address)
        try:
            held = wait_for(lambda: part_of(first.pid), process=completion)
            os.kill(held, signal.SIGSTOP)
            run.rename(moved)  # the next part does not find it
            os.kill(held, signal.SIGCONT)
            code, output, errors = finish(completion)
        finally:
            completion.kill()
            moved.rename(run)
        lines = [line for line in errors.splitlines() if not line.startswith("completed: ")]
        assert (code, output, len(lines)) == (1, "", 1), errors
        assert lines[0].startswith("error: a worker: ") and str(run) in lines[0]
    assert not out.exists()


def test_a_scheduler_that_is_lost_or_none_is_one_line(calibrated, tmp_path):
    (run, options, _), out = calibrated, tmp_path / "new.tsv"
    command = ("complete", run, *options, "--out", out, "--cluster")
    code, output, errors = finish(start(*command, "tcp://127.0.0.1:1"))
    assert (code, output, errors.count("\n")) == (1, "", 1) and "no Dask scheduler answers there" in errors
    with running_scheduler(tmp_path) as (address, file, process), worker(tmp_path, "first", file) as first:
        completion = start(*command, address)
        try:
            held = wait_for(lambda: part_of(first.pid), process=completion)
            os.kill(held, signal.SIGSTOP)
            process.kill()
            code, output, errors = finish(completion)
        finally:
            completion.kill()
            end(held)
        assert (code, output, errors.count("\n")) == (1, "", 1), errors
        assert errors.startswith(f"error: {address}: the cluster failed (") and "nothing has been written" in errors
    assert not out.exists()
