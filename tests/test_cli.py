"""The commands, driven as a user drives them: output, files, exit codes, and every way to fail."""

import contextlib
import gzip
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import numpy as np
import pytest
from conftest import finish, invoke, ok, one_error, snapshot, start, usage_error

import cardkge
import cardkge_tools.answers.runs
import cardkge_tools.experiments.fitting
import cardkge_tools.graph.graphs
import cardkge_tools.shell.files
import cardkge_tools.shell.terminal
import cli

ROOT = Path(cli.__file__).resolve().parent
PEOPLE = ("Zoë Ågren", "Šimon", "李白", "a b", "e4", "e5", "e6", "e7", "e8", "e9", "1_000", "1e5")


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """A data set of 12 entities, whose names are not all ASCII, in a ring with 3 relations."""
    folder = tmp_path_factory.mktemp("graph")
    triples = [(i, r, (i + r + 1) % 12) for i in range(12) for r in range(3)]
    triples += [(0, 0, 5), (0, 0, 6)]  # so that r0 has the mined bounds (1, 3), the others (0, 1)
    held_out = [triples[i] for i in (1, 5, 10, 14, 19, 23, 28, 32)]
    splits = {"train": [t for t in triples if t not in held_out]}
    splits["valid"], splits["test"] = held_out[:3], held_out[3:]
    for split, part in splits.items():
        lines = [f"{PEOPLE[h]}\tr{r}\t{PEOPLE[t]}\n" for h, r, t in part]
        (folder / f"{split}.txt").write_text("".join(lines), encoding="utf-8")
    return folder


SMALL = ("--dim", 4, "--epochs", 3, "--batches", 3)


@pytest.fixture(scope="module")
def trained(graph, tmp_path_factory):
    """Two runs on the graph, without and with bounds. Not to be written to."""
    home = tmp_path_factory.mktemp("trained")
    ok("train", "--data", graph, *SMALL, "--out", home / "plain")
    ok("train", "--data", graph, *SMALL, "--bounds", "mined", "--lambda", 0.1, "--sampling",
       "exact", "--objects", 12, "--subjects", 3, "--out", home / "bound")  # fmt: skip
    return home


@pytest.fixture
def run_copy(trained, tmp_path):
    shutil.copytree(trained / "plain", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def uncalibrated(trained, tmp_path):
    """Copies of both runs, whose probabilities are sigma of the score."""
    for name in ("plain", "bound"):
        shutil.copytree(trained / name, tmp_path / "runs" / name)
        (tmp_path / "runs" / name / "calibration.json").unlink()
    return tmp_path / "runs"


# --- help


def test_help_needs_neither_numpy_nor_numba():
    code = (
        "import sys, cli\n"
        "for arguments in [['--help'], *([c, '--help'] for c in cli.main.commands)]:\n"
        "    cli.main(arguments, standalone_mode=False)\n"
        "sys.exit(len({'numpy', 'numba', 'cardkge', 'kernels'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_defaults_are_those_of_the_library():
    defaults = {option.name: option.default for option in cli.main.commands["train"].params}
    texts = {option.name: option.help for option in cli.main.commands["train"].params}
    defaults["final"] = defaults["final"] or False  # --final names the run that it is made from
    defaults["joined"] = 0  # `join` alone sets it
    for field in fields(cardkge.Settings):
        assert defaults[field.name] == field.default, field.name
        usual = getattr(cardkge.Settings(), field.name)
        if usual != field.default and usual not in (0, False):  # by the loss: the help says what the paper's are
            assert f"else {usual}" in texts[field.name], field.name


def test_every_option_is_explained():
    def options(command):
        yield from (p for p in command.params if isinstance(p, click.Option))
        for child in getattr(command, "commands", {}).values():
            yield from options(child)

    assert all(option.help for option in options(cli.main))


# --- train


def test_train_shows_progress_and_the_metrics_and_saves_the_run(graph, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = ok("train", "--data", graph, *SMALL)
    lines = result.stdout.splitlines()
    assert [x for x in result.stderr.splitlines() if x.startswith("epoch 3/3")]
    assert lines[-1] == f"saved in {Path('runs', '0001')}"
    start = next(i for i, line in enumerate(lines) if line.startswith("test "))
    header, _, filtered, raw = lines[start : start + 4]
    assert re.split(r"  +", header) == [
        "test", "hits@1 %", "hits@3 %", "hits@5 %", "hits@10 %", "MRR %", "mean rank",
    ]  # fmt: skip
    saved = json.loads(Path("runs/0001/metrics.json").read_text())
    for line, setting in ((filtered, "filtered"), (raw, "raw")):
        name, *values = line.split()
        assert name == setting
        both = saved[setting]["both"]
        expected = [100 * both[k] for k in ("hits@1", "hits@3", "hits@5", "hits@10", "mrr")]
        assert [float(v) for v in values] == pytest.approx([*expected, both["mean_rank"]], abs=0.05)


def test_progress_is_a_few_lines_however_many_epochs(graph, tmp_path):
    result = ok("train", "--data", graph, "--dim", 2, "--epochs", 123, "--out", tmp_path / "run")
    assert len(result.stderr.splitlines()) <= 25


def test_runs_are_numbered(graph, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "0007").mkdir(parents=True)
    (tmp_path / "runs" / "mine").mkdir()
    for number in ("0008", "0009"):
        assert f"saved in {Path('runs', number)}\n" in ok("train", "--data", graph, *SMALL).stdout


def test_two_processes_take_two_numbers(tmp_path, monkeypatch):
    """Another process makes the folder between the look and the making."""
    real, rivals = Path.mkdir, iter(["0001"])

    def mkdir(self, *arguments, **options):
        if self.name == next(rivals, None):
            real(self)
        real(self, *arguments, **options)

    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(Path, "mkdir", mkdir)
    made = []
    assert cardkge_tools.shell.files.numbered_folder(tmp_path / "runs", made).name == "0002"
    assert [folder.name for folder in made] == ["0002"]


def test_a_failed_start_leaves_no_folder(graph, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one_error(invoke("train", "--data", "nowhere"))
    one_error(invoke("train", "--data", graph, "--bounds", "nowhere", "--out", "a/b/c"))
    assert list(tmp_path.iterdir()) == []


def test_an_existing_run_is_refused_before_any_work(run_copy):
    before = snapshot(run_copy)
    # data that does not exist: the run is looked at first
    line = one_error(invoke("train", "--data", "nowhere", "--out", run_copy))
    assert "already holds a run" in line and "--force" in line
    assert snapshot(run_copy) == before


def test_force_replaces_a_run_but_not_before_the_new_one_is_there(graph, run_copy):
    (run_copy / "notes.txt").write_text("mine")
    before = snapshot(run_copy)
    one_error(invoke("train", "--data", "nowhere", "--force", "--out", run_copy))
    one_error(invoke("train", "--data", graph, "--bounds", "nowhere", "--force", "--out", run_copy))
    assert snapshot(run_copy) == before
    ok("train", "--data", graph, *SMALL, "--seed", 5, "--force", "--out", run_copy)
    assert cardkge.load_run(run_copy).settings.seed == 5
    assert (run_copy / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("content", ["notes.txt", "config.json"])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_folder_that_is_no_run_is_never_touched(graph, tmp_path, content, force):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / content).write_text("{}")
    line = one_error(invoke("train", "--data", graph, *SMALL, "--out", folder, *force))
    assert "holds no run" in line
    assert snapshot(folder) == {content: b"{}"}


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_file_at_out_is_never_touched(graph, tmp_path, force):
    (tmp_path / "file").write_text("mine")
    line = one_error(invoke("train", "--data", graph, *SMALL, "--out", tmp_path / "file", *force))
    assert "is a file" in line
    assert (tmp_path / "file").read_text() == "mine"
    line = one_error(invoke("train", "--data", graph, "--out", tmp_path / "file" / "run", *force))
    assert "cannot be written" in line


def test_an_empty_folder_at_out_is_used(graph, tmp_path):
    ok("train", "--data", graph, *SMALL, "--out", tmp_path)
    assert cardkge.load_run(tmp_path).epoch == 3


def test_a_run_of_no_epochs_is_the_model_before_its_first_step(graph, tmp_path):
    run = tmp_path / "run"
    ok("train", "--data", graph, "--dim", 4, "--epochs", 0, "--out", run)
    assert cardkge.load_run(run).epoch == 0
    ok("evaluate", run)
    ok("train", "--data", graph, "--dim", 5, "--epochs", 0, "--force", "--out", run)
    assert cardkge.load_run(run).model.dim == 5


def test_validation_keeps_the_best_parameters(graph, tmp_path):
    result = ok("train", "--data", graph, *SMALL, "--validate-every", 1, "--out", tmp_path / "run")
    run = cardkge.load_run(tmp_path / "run")
    best = max(run.history, key=lambda record: (record["valid_hits@10"], record["valid_mrr"]))
    assert (run.best["mrr"], run.best["epoch"]) == (best["valid_mrr"], best["epoch"])
    assert f"MRR {100 * run.best['mrr']:.2f} % at epoch {best['epoch']}" in result.stdout


def test_patience_ends_training(graph, tmp_path):
    result = ok("train", "--data", graph, "--dim", 2, "--epochs", 500, "--validate-every", 1,
                "--patience", 2, "--out", tmp_path / "run")  # fmt: skip
    run = cardkge.load_run(tmp_path / "run")
    assert run.epoch == run.best["epoch"] + 2 < 500
    assert f"stopped improving at epoch {run.epoch}" in result.stdout


# --- resume


def test_a_resumed_run_has_the_bits_of_one_without_a_break(graph, tmp_path):
    options = ("--data", graph, "--dim", 3, "--validate-every", 2)
    ok("train", *options, "--epochs", 6, "--out", tmp_path / "whole")
    ok("train", *options, "--epochs", 3, "--out", tmp_path / "parts")
    ok("train", "--resume", "--epochs", 6, "--threads", 1, "--out", tmp_path / "parts")
    for name in ("model.npz", "metrics.json", "bounds.tsv", "config.json"):
        whole, parts = ((tmp_path / run / name).read_bytes() for run in ("whole", "parts"))
        assert whole == parts, name


def test_resume_of_a_finished_run_evaluates_it_again(run_copy):
    before = snapshot(run_copy)
    (run_copy / "metrics.json").unlink()
    result = ok("train", "--resume", "--out", run_copy)
    assert "has finished its 3 epochs" in result.stdout and "filtered" in result.stdout
    assert snapshot(run_copy) == before


@pytest.mark.parametrize(
    ("option", "saved", "given"),
    [
        ("--dim", 4, 5),
        ("--seed", 0, 1),
        ("--lambda", 0.01, 0.5),
        ("--model", "distmult", "complex"),
        ("--bounds", "none", "mined"),
        ("--epochs", 3, 2),
    ],
)
def test_resume_refuses_another_setting(run_copy, option, saved, given):
    before = snapshot(run_copy)
    message = usage_error(invoke("train", "--resume", "--out", run_copy, option, given))
    assert f"{option} " in message and f"saved {saved}, given {given}" in message
    ok("train", "--resume", "--out", run_copy, option, saved)  # the same value is fine
    assert snapshot(run_copy).keys() == before.keys()


def test_resume_refuses_patience_without_validations_and_leaves_the_run_alone(run_copy):
    before = {path: path.read_bytes() for path in run_copy.iterdir()}
    message = usage_error(invoke("train", "--resume", "--out", run_copy, "--epochs", 5, "--patience", 1))
    assert "patience counts validations" in message
    assert {path: path.read_bytes() for path in run_copy.iterdir()} == before


def test_more_epochs_where_the_steps_depend_on_their_number_are_said(graph, tmp_path):
    options = ("--data", graph, "--loss", "softmax", "--dim", 2, "--out", tmp_path / "run")
    ok("train", *options, "--epochs", 2)
    resume = ("train", "--resume", "--out", tmp_path / "run", "--epochs")
    assert "depend on the number" not in ok(*resume, 2).stderr
    assert "a new run with --epochs 3 would take other steps" in ok(*resume, 3).stderr
    ok("train", *options, "--force", "--schedule", "constant", "--epochs", 2)
    assert "depend on the number" not in ok(*resume, 3).stderr


def test_resume_of_a_finished_run_leaves_its_calibration(graph, tmp_path):
    ok("train", "--data", graph, "--dim", 2, "--epochs", 2, "--out", tmp_path / "run")
    ok("calibrate", tmp_path / "run", "--share", 0.2)
    found = cardkge.load_run(tmp_path / "run").calibration
    assert (found.share == 0.2).all()
    ok("train", "--resume", "--out", tmp_path / "run")
    again = cardkge.load_run(tmp_path / "run").calibration
    assert (again.share == 0.2).all() and (again.parameters == found.parameters).all()
    ok("train", "--resume", "--epochs", 3, "--out", tmp_path / "run")
    assert cardkge.load_run(tmp_path / "run").calibration.share[0] != 0.2  # of another model


def test_resume_refuses_data_that_changed(graph, run_copy, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(graph, data)
    before = snapshot(run_copy)
    ok("train", "--resume", "--out", run_copy, "--data", data)  # moved, but the same
    with open(data / "train.txt", "a") as file:
        file.write("e4\tr0\te9\n")
    line = one_error(invoke("train", "--resume", "--epochs", 9, "--out", run_copy, "--data", data))
    assert "has changed" in line
    assert snapshot(run_copy).keys() == before.keys()
    assert cardkge.load_run(run_copy).epoch == 3


def test_resume_uses_the_saved_bounds(graph, tmp_path):
    bounds = tmp_path / "bounds.tsv"
    bounds.write_text("r0\t1\t2.5\n")
    options = ("--data", graph, *SMALL, "--bounds", bounds)
    ok("train", *options, "--out", tmp_path / "run")
    bounds.unlink()
    ok("train", "--resume", "--epochs", 4, "--out", tmp_path / "run")
    expected = [[1, 2.5] if name == "r0" else [0, math.inf] for name in ("r0", "r1", "r2")]
    run = cardkge.load_run(tmp_path / "run")
    assert dict(zip(run.relations, run.bounds.tables[0].tolist(), strict=True)) == dict(
        zip(("r0", "r1", "r2"), expected, strict=True)
    )


# --- interruptions


def interrupted(signals, *arguments):
    """Run a long training, send the signals after a progress line, return what finish() gives."""
    process = start("train", *arguments)
    try:
        for line in process.stderr:
            if line.startswith("epoch"):
                break
        for number in signals:
            process.send_signal(number)
        return finish(process)
    finally:
        process.kill()


@pytest.mark.parametrize(("signals", "code"), [([signal.SIGINT, signal.SIGINT], 130), ([signal.SIGTERM], 143)])
def test_a_signal_saves_the_state_and_the_run_goes_on_to_the_same_bits(graph, tmp_path, signals, code):
    options = ("--data", graph, "--dim", 4, "--batches", 30)
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    found, _, errors = interrupted(signals, *options, "--epochs", 10**7, "--out", parts)
    assert found == code
    run = cardkge.load_run(parts)
    message = f"stopped at epoch {run.epoch}; resume with: python {ROOT / 'cli.py'} train --resume --out"
    assert errors.splitlines()[-1] == f"{message} {parts}"
    assert "metrics.json" not in os.listdir(parts)
    # bring the end within reach, which the command line does not allow
    config = json.loads((parts / "config.json").read_text())
    config["settings"]["epochs"] = run.epoch + 3
    (parts / "config.json").write_text(json.dumps(config))
    ok("train", "--resume", "--out", parts)
    ok("train", *options, "--epochs", run.epoch + 3, "--out", whole)
    for name in ("model.npz", "metrics.json"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_signal_in_the_middle_of_an_epoch_loses_no_step(graph, tmp_path, monkeypatch):
    """The signal comes after the second of three steps."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    ok("train", "--data", graph, *SMALL, "--out", whole)
    real = cardkge_tools.shell.terminal.Progress.on_step

    def on_step(self, run, step, steps):
        real(self, run, step, steps)
        if (run.epoch, step) == (1, 2):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(cardkge_tools.shell.terminal.Progress, "on_step", on_step)
    result = invoke("train", "--data", graph, *SMALL, "--out", parts)
    monkeypatch.undo()
    assert result.exit_code == 130
    run = cardkge.load_run(parts)
    assert (run.epoch, run.step) == (1, 2) and run.partial
    ok("train", "--resume", "--out", parts)
    assert (parts / "model.npz").read_bytes() == (whole / "model.npz").read_bytes()
    columns = [
        [line.rsplit(",", 1)[0] for line in (folder / "history.csv").read_text().splitlines()]
        for folder in (whole, parts)
    ]
    assert columns[0] == columns[1]  # all but the seconds


def test_metrics_of_another_state_do_not_stay(run_copy, monkeypatch):
    monkeypatch.setattr(
        cardkge_tools.shell.terminal.Progress, "on_epoch", lambda *arguments: os.kill(os.getpid(), signal.SIGINT)
    )
    assert "metrics.json" in os.listdir(run_copy)
    assert invoke("train", "--resume", "--epochs", 9, "--out", run_copy).exit_code == 130
    assert cardkge.load_run(run_copy).epoch == 4
    assert "metrics.json" not in os.listdir(run_copy)


def test_the_state_is_saved_from_time_to_time(graph, tmp_path, monkeypatch):
    """A process killed at once loses what came after its last checkpoint, and no more."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    ok("train", "--data", graph, *SMALL, "--out", whole)
    monkeypatch.setattr(cardkge_tools.experiments.fitting, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(cardkge_tools.experiments.fitting, "CHECKPOINT_SHARE", math.inf)
    real, saved = cardkge.save_run, []

    class Killed(BaseException):
        pass

    def save_run(run, folder):
        real(run, folder)
        saved.append((run.epoch, run.step))
        if saved[-1] == (1, 2):
            raise Killed

    monkeypatch.setattr(cardkge_tools.experiments.fitting, "save_run", save_run)
    with pytest.raises(Killed):
        invoke("train", "--data", graph, *SMALL, "--out", parts)
    assert saved == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    monkeypatch.undo()
    ok("train", "--resume", "--out", parts)
    assert (parts / "model.npz").read_bytes() == (whole / "model.npz").read_bytes()


@pytest.mark.parametrize("phase", ["load_dataset", "evaluate"])
def test_control_c_outside_of_training_ends_without_a_traceback(graph, tmp_path, monkeypatch, phase):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    room = {"load_dataset": cardkge_tools.graph.graphs, "evaluate": cardkge_tools.experiments.fitting}[phase]
    monkeypatch.setattr(room, phase, interrupt)
    result = invoke("train", "--data", graph, *SMALL, "--out", tmp_path / "run")
    assert result.exit_code == 130 and "Traceback" not in result.output
    monkeypatch.undo()
    if phase == "evaluate":  # trained, but without metrics
        assert cardkge.load_run(tmp_path / "run").epoch == 3
        assert "metrics.json" not in os.listdir(tmp_path / "run")
    else:
        assert not (tmp_path / "run").exists()


# --- training that fails


def test_an_infinite_loss_keeps_the_last_good_state(graph, tmp_path):
    folder = tmp_path / "run"
    line = one_error(
        invoke("train", "--data", graph, *SMALL, "--learning-rate", 1e30, "--optimizer", "sgd",
               "--project", "none", "--out", folder)
    )  # fmt: skip
    assert re.search(r"epoch \d+\b.*step \d+\b", line) and str(folder) in line
    run = cardkge.load_run(folder)  # which refuses what is not finite
    assert run.epoch < 3
    assert "metrics.json" not in os.listdir(folder)


def test_parameters_that_became_infinite_are_not_saved(graph, tmp_path, monkeypatch):
    def train(run, *arguments, **options):
        run.model.params["entity"][3, 1] = np.inf
        raise cardkge.NonFinite("infinite at epoch 1, step 1")

    monkeypatch.setattr(cardkge_tools.experiments.fitting, "train", train)
    assert "epoch 1, step 1" in one_error(invoke("train", "--data", graph, *SMALL, "--out", tmp_path / "run"))
    assert cardkge.load_run(tmp_path / "run").epoch == 0


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of a file")
@pytest.mark.skipif(np.__version__ < "2", reason="NumPy 1 leaves its zip file to __del__, which complains on stderr")
def test_a_full_disk_keeps_the_old_state(run_copy):
    """A write that fails in the middle, as on a full disk: files are limited to 1,000 bytes."""
    import resource

    before = snapshot(run_copy)
    process = start(
        "train", "--resume", "--epochs", 5, "--out", run_copy,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},  # not to spoil Numba's cache
    )  # fmt: skip
    code, _, errors = finish(process)
    assert code == 1
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert snapshot(run_copy) == before


def test_too_little_memory_is_one_error(graph, tmp_path, monkeypatch):
    def new_run(*arguments):
        raise MemoryError

    monkeypatch.setattr(cardkge_tools.answers.runs, "new_run", new_run)
    assert "memory" in one_error(invoke("train", "--data", graph, "--out", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


# --- wrong usage


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--dim", "0"],
        ["train", "--dim", "x"],
        ["train", "--dim", "9" * 20],
        ["train", "--epochs", "-1"],
        ["train", "--learning-rate", "0"],
        ["train", "--learning-rate", "nan"],
        ["train", "--learning-rate", "inf"],
        ["train", "--lambda", "-1"],
        ["train", "--lambda", "nan"],
        ["train", "--margin", "nan"],
        ["train", "--model", "transe"],
        ["train", "--columns", "hhr"],
        ["train", "--threads", "0"],
        ["train", "--resume"],
        ["train", "--resume", "--force", "--out", "x"],
        ["train", "--batches", "2", "--batch-size", "2"],
        ["train", "--unknown"],
        ["mine", "--population", "all"],
        ["evaluate"],
        ["evaluate", "run", "--split", "dev"],
        ["predict", "run", "--head", "x"],
        ["predict", "run", "--relation", "x"],
        ["predict", "run", "--relation", "x", "--head", "x", "--out", "x"],
        ["predict", "run", "--relation", "x", "--head", "x", "--min-probability", "1.5"],
        ["predict", "run", "--relation", "x", "--head", "x", "--min-probability", "nan"],
        ["predict", "run", "--relation", "x", "--head", "x", "--top", "0"],
        ["violations"],
        ["nothing"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    usage_error(invoke(*arguments))
    assert list(tmp_path.iterdir()) == []


# --- bad data


def spoil(folder, split, content):
    (folder / f"{split}.txt").write_bytes(content)


@pytest.mark.parametrize("command", ["train", "mine", "data show"])
@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"a\tb\n", "train.txt:1: expected 3"),
        (b"a\tr\tb\n\na\tr\tb\tc\n", "train.txt:3: expected 3"),
        (b"a\tr\t\n", "train.txt:1: "),
        (b"a\tr\tb\n\xff\tr\tb\n", "train.txt:2: not UTF-8"),
        (b"", "train.txt: no triples"),
    ],
)
def test_bad_triples_are_one_error(graph, tmp_path, monkeypatch, command, content, found):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(graph, "data")
    spoil(tmp_path / "data", "train", content)
    arguments = ["data", "show", "data"] if command == "data show" else [command, "--data", "data"]
    assert found in one_error(invoke(*arguments))
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("r9\t0\t1\n", ":1: unknown relation 'r9'"),
        ("r0\t0\t1\nr0\t0\t1\n", ":2: relation 'r0'"),
        ("r0\t-1\t1\n", ":1: "),
        ("r0\t2\t1\n", ":1: "),
        ("r0\tnan\t1\n", ":1: "),
        ("r0\t1\n", ":1: expected"),
    ],
)
def test_a_bad_bounds_file_is_one_error(graph, trained, tmp_path, content, found):
    path = tmp_path / "bounds.tsv"
    path.write_text(content)
    for arguments in (["train", "--data", graph, "--out", tmp_path / "run"], ["violations", trained / "plain"]):
        assert f"{path}{found}" in one_error(invoke(*arguments, "--bounds", path))
    assert os.listdir(tmp_path) == ["bounds.tsv"]


def test_warnings_are_printed_once(graph, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(graph, data)
    content = (data / "train.txt").read_bytes()
    spoil(data, "train", content + content.splitlines(keepends=True)[0])
    spoil(data, "test", content.splitlines(keepends=True)[0] + b"new\tr0\te4\n")
    run = tmp_path / "run"
    for arguments in (
        ["train", "--data", data, *SMALL, "--out", run],
        ["train", "--resume", "--out", run],
        ["evaluate", run],
        ["predict", run, "--head", "e4", "--relation", "r0"],
        ["violations", run],
        ["mine", "--data", data],
        ["data", "show", data],
    ):
        warnings = [line for line in ok(*arguments).stderr.splitlines() if line.startswith("warning: ")]
        of_the_run = "not calibrated", "chance", "hold out"
        warnings = [line for line in warnings if not any(words in line for words in of_the_run)]
        assert len(warnings) == 3
        assert "1 of 31 train" in warnings[0] and "unseen" in warnings[2]
    # the triple that is in train and test counts as one of train
    rows = completions(ok("predict", run, "--head", "Zoë Ågren", "--relation", "r0"))
    assert ["Šimon", "train"] in [row[1:3] for row in rows]


def test_swapped_columns(tmp_path):
    rows = [("Ann", "knows", f"friend {i}") for i in range(9)]
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "valid", "test"):
        lines = [f"{h}\t{t}\t{r}\n" for h, r, t in rows]
        (data / f"{split}.txt").write_text("".join(lines))
    assert "--columns htr" in invoke("mine", "--data", data).stderr
    result = ok("mine", "--data", data, "--columns", "htr")
    assert "--columns" not in result.stderr
    assert result.stdout.splitlines()[-1].split() == ["knows", "9", "9"]


# --- data and mine


def test_data_lists_and_shows(monkeypatch):
    monkeypatch.delenv("CARDKGE_DATA", raising=False)
    listed = ok("data").stdout
    assert re.search(r"^families ", listed, re.M) and re.search(r"^wn18rr +40,943 +11 ", listed, re.M)
    shown = ok("data", "show", "families").stdout
    assert re.search(r"^parent ", shown, re.M) and re.search(r"^\(all\) ", shown, re.M)


def test_data_fetch_of_an_unknown_name_is_one_error():
    assert "no data set named 'nope'" in one_error(invoke("data", "fetch", "nope"))


def test_mine_prints_and_writes_bounds(graph, tmp_path):
    out = tmp_path / "bounds.tsv"
    result = ok("mine", "--data", graph, "--population", "relation", "--out", out)
    rows = [line.split() for line in result.stdout.splitlines()[2:]]
    assert sorted(rows) == [["r0", "1", "3"], ["r1", "1", "1"], ["r2", "1", "1"]]
    assert [line.split("\t") for line in out.read_text().splitlines()] == rows


# --- evaluate


def test_evaluate_repeats_the_metrics_of_train(trained, tmp_path):
    ok("evaluate", trained / "plain", "--json", tmp_path / "m.json")
    saved = (trained / "plain" / "metrics.json").read_text()
    found = json.loads((tmp_path / "m.json").read_text())
    for setting, sides in json.loads(saved).items():
        assert {side: found[setting][side] for side in sides} == sides


def test_a_relation_with_the_name_of_the_total_is_shown_too(tmp_path):
    for split in cardkge_tools.SPLITS:
        (tmp_path / f"{split}.txt").write_text("a\t(all)\tb\nb\tboth\tc\nc\tboth\ta\n")
    ok("train", "--data", tmp_path, "--dim", 2, "--epochs", 1, "--out", tmp_path / "run")
    lines = ok("evaluate", tmp_path / "run", "--by", "relation", "--setting", "raw").stdout.splitlines()[2:]
    names = [line.split()[1] for line in lines if line.startswith("raw")]
    assert names.count("(all)") == 2 and names.count("both") == 1  # the total and a relation, and the other


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "--data", ""),
        ("train", "--out", ""),
        ("train", "--bounds", ""),
        ("mine", "--out", ""),
        ("evaluate", "{}", "--json", ""),
        ("evaluate", "{}", "--data", ""),
        ("evaluate", ""),
        ("history", "{}", "--plot", ""),
        ("violations", "{}", ""),
        ("violations", "{}", "--bounds", ""),
        ("tune", "--grid", "dim=2", "--cluster", ""),
        ("tune", "--grid", "dim=2", "--out", ""),
        ("reproduce", "poe", "--data", ""),
        ("reproduce", "poe", "--models", ""),
        ("oracle", "write", ""),
    ],
)
def test_empty_values_are_wrong_usage(trained, tmp_path, monkeypatch, arguments):
    """Of a variable of the shell that is not set, say."""
    monkeypatch.chdir(tmp_path)
    assert "it is empty" in usage_error(invoke(*(a.format(trained / "plain") for a in arguments)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options, lines",
    [
        (("--lambda", 1, "--sampling", "exact", "--subjects", 3, "--objects", 4, "--subject-pool", "entities"),
         ["lambda", "sampling", "subjects", "objects", "subject-pool"]),
        (("--inclusion", "uniform", "--bounds", "mined"), ["inclusion"]),
        (("--inclusion", "uniform", "--bounds", "mined", "--sampling", "bernoulli"), []),
        (("--objects", 3, "--bounds", "mined", "--sampling", "exact"), ["objects"]),
        (("--hidden", 3, "--margin", 0.1, "--optimizer", "sgd", "--accumulator", 1),
         ["hidden", "margin", "accumulator"]),
        (("--hidden", 3, "--model", "ermlp", "--margin", 0.1, "--loss", "hinge", "--accumulator", 1), []),
        (("--bounds", "mined", "--lambda", 0, "--subjects", 3), ["subjects"]),
        (("--epochs", 1, "--validate-every", 2, "--patience", 1), ["validate-every", "patience"]),
        (("--epochs", 1, "--validate-every", 1, "--patience", 1), []),
    ],
)  # fmt: skip
def test_options_that_change_nothing_are_said(graph, tmp_path, options, lines):
    command = ("train", "--data", graph, "--dim", 2, "--epochs", 0, "--threads", 1, *options, "--out", tmp_path / "run")
    said = [line for line in ok(*command).stderr.splitlines() if "makes no difference" in line]
    found = [line.split()[1].removeprefix("--") for line in said]
    assert sorted(found) == sorted(lines)


def test_a_run_without_an_epoch_is_said(graph, tmp_path):
    ok("train", "--data", graph, "--dim", 2, "--epochs", 0, "--out", tmp_path / "run")
    for command in (("evaluate",), ("violations",), ("predict", "--relation", "r0", "--head", "e4")):
        result = ok(command[0], tmp_path / "run", *command[1:])
        assert "run has completed no epoch: its parameters are random" in result.stderr


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="a system without SIGHUP")
@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_closed_terminal_is_held_as_well_unless_it_is_ignored(handler):
    outside = signal.signal(signal.SIGHUP, handler)
    try:
        with cardkge_tools.shell.terminal.held_signals() as caught:
            signal.raise_signal(signal.SIGHUP)
            assert caught == ([] if handler == signal.SIG_IGN else [signal.SIGHUP])
        assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, outside)


def test_evaluate_by_side_and_relation(trained, tmp_path):
    path = tmp_path / "m.json"
    side = ok("evaluate", trained / "plain", "--by", "side", "--setting", "raw").stdout
    assert [line.split()[:2] for line in side.splitlines()[2:] if line.startswith("raw")] == [
        ["raw", "both"], ["raw", "head"], ["raw", "tail"],
    ]  # fmt: skip
    result = ok("evaluate", trained / "plain", "--split", "train", "--setting", "filtered", "--by",
                "relation", "--json", path)  # fmt: skip
    names = [line.split()[:2] for line in result.stdout.splitlines()[2:] if line.startswith("filtered")]
    assert names[0] == ["filtered", "(all)"]
    assert [name for name in sorted(names) if name[1] in ("r0", "r1", "r2")] == [
        ["filtered", r] for r in ("r0", "r1", "r2")
    ]
    parts = json.loads(path.read_text())["filtered"]
    run = cardkge.load_run(trained / "plain")
    data = cardkge.load_dataset(run.settings.data)
    counts = dict(zip(*np.unique(data.train[:, 1], return_counts=True), strict=True))
    mean = sum(counts[r] * parts["relations"][name]["mrr"] for r, name in enumerate(run.relations))
    assert mean / len(data.train) == pytest.approx(parts["both"]["mrr"], rel=1e-12)


def test_evaluate_on_data_in_another_order(trained, graph, tmp_path):
    """Ids are those of the run, whatever the order of the files."""
    data = tmp_path / "data"
    data.mkdir()
    for path in graph.iterdir():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        (data / path.name).write_text("".join(lines[::-1]), encoding="utf-8")
    first = ok("evaluate", trained / "plain")
    second = ok("evaluate", trained / "plain", "--data", data)
    assert first.stdout == second.stdout
    assert "not the triples" not in second.stderr  # they are the same, in another order


def test_data_that_moved_is_an_error_that_says_how_to_find_it(run_copy, graph):
    config = json.loads((run_copy / "config.json").read_text())
    config["settings"]["data"] = "gone"
    (run_copy / "config.json").write_text(json.dumps(config))
    assert "--data" in one_error(invoke("evaluate", run_copy))
    ok("evaluate", run_copy, "--data", graph)


# --- predict


def completions(result):
    """The rows of the table as lists of cells."""
    lines = result.stdout.splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith(("X_hr", "expected ")))
    return [re.split(r"  +", line.strip()) for line in lines[2:end]]


def test_predict_shows_the_likeliest_tails_and_x_beside_its_bound(uncalibrated):
    folder = uncalibrated / "bound"
    result = ok("predict", folder, "--head", "Zoë Ågren", "--relation", "r0", "--top", 12)
    run = cardkge.load_run(folder)
    h, r = run.entities.index("Zoë Ågren"), run.relations.index("r0")
    scores = (run.model.params["entity"] * run.model.params["entity"][h]).astype("f8") @ (
        run.model.params["relation"][r]
    )
    rows = completions(result)
    assert [row[1] for row in rows] == [run.entities[e] for e in np.argsort(-scores)]
    assert [float(row[4]) for row in rows] == pytest.approx(sorted(scores)[::-1], abs=2e-4)
    p = 1 / (1 + np.exp(-scores))
    assert [float(row[3]) for row in rows] == pytest.approx(sorted(p)[::-1], abs=2e-4)
    assert result.stdout.splitlines()[-1] == f"X_hr = {p.sum():.2f}, bound [1, 3]"
    known = {row[1]: row[2] for row in rows}
    assert known["Šimon"] == known["e5"] == known["e6"] == "train"
    assert known["e9"] == "-" and len(rows) == 12


def test_predict_heads_shows_x_of_each(uncalibrated):
    folder = uncalibrated / "bound"
    result = ok("predict", folder, "--tail", "李白", "--relation", "r1", "--top", 3)
    run = cardkge.load_run(folder)
    r = run.relations.index("r1")
    rows = completions(result)
    assert len(rows) == 3
    for row in rows:
        total = cardkge.cardinality_sums(run.model, r, [run.entities.index(row[1])])[0]
        assert float(row[5]) == pytest.approx(total, abs=0.006)
        assert row[6] == "[0, 1]"
    assert result.stdout.splitlines()[-1] == "X_hr of each head, beside its bound"


def test_predict_shows_calibrated_probabilities_and_the_expected_count(trained):
    """They are those of `complete`: known triples 1, the others p given the bounds, and the count is their sum."""
    folder = trained / "bound"
    result = ok("predict", folder, "--head", "Zoë Ågren", "--relation", "r0", "--top", 12, "--json", "-")
    report = json.loads(result.stdout)
    answers = report["answers"]
    assert all(answer["probability"] == 1 and answer["accepted"] for answer in answers if answer["known"])
    assert report["expected"] == pytest.approx(sum(answer["probability"] for answer in answers), abs=1e-9)
    known = sum(answer["known"] is not None for answer in answers)
    assert known <= report["expected"] <= 12
    shown = ok("predict", folder, "--head", "Zoë Ågren", "--relation", "r0").stdout.splitlines()
    line = f"expected count = {report['expected']:.2f}, {known} known, bound [1, 3] (mined); given the counts"
    assert shown[-2].startswith(line)
    scores = [answer["score"] for answer in answers]
    assert scores == sorted(scores, reverse=True)


def test_many_queries_are_answered_as_single_ones(trained, tmp_path):
    folder, queries = trained / "bound", tmp_path / "queries.tsv"
    queries.write_text("Zoë Ågren\tr0\n?\tr1\t李白\n", encoding="utf-8")
    ok("predict", folder, "--queries", queries, "--top", 3, "--out", tmp_path / "out.tsv")
    lines = [line.split("\t") for line in (tmp_path / "out.tsv").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 6 and [line[1] for line in lines] == ["r0"] * 3 + ["r1"] * 3
    for part, given in ((lines[:3], ("--head", "Zoë Ågren")), (lines[3:], ("--tail", "李白"))):
        single = ok("predict", folder, *given, "--relation", part[0][1], "--top", 3, "--json", "-")
        for line, answer in zip(part, json.loads(single.stdout)["answers"], strict=True):
            assert line[2 if given[0] == "--head" else 0] == answer["entity"]
            assert float(line[3]) == pytest.approx(answer["probability"], rel=1e-5)
            assert line[5] == (answer["known"] or "-")
    for wrong in ("a\n", "?\tr0\t?\n", "nobody\tr0\n", "e4\tr9\n"):
        queries.write_text(wrong, encoding="utf-8")
        assert f"{queries}:1: " in one_error(invoke("predict", folder, "--queries", queries))


def test_predict_can_hide_what_is_known_or_unlikely(uncalibrated):
    arguments = ("predict", uncalibrated / "plain", "--head", "Zoë Ågren", "--relation", "r0")
    rows = completions(ok(*arguments, "--top", 12))
    hidden = completions(ok(*arguments, "--top", 12, "--hide-known"))
    assert [row[1] for row in hidden] == [row[1] for row in rows if row[2] == "-"]
    assert len(hidden) == 9
    limit = float(rows[4][3]) - 5e-5
    likely = completions(ok(*arguments, "--min-probability", limit))
    assert [row[1] for row in likely][:5] == [row[1] for row in rows][:5]
    assert completions(ok(*arguments, "--min-probability", 1)) == []


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--head", "Zoe Ågren", "--relation", "r0"], "did you mean 'Zoë Ågren'?"),
        (["--tail", "qqqqq", "--relation", "r0"], "unknown entity 'qqqqq'"),
        (["--head", "e4", "--relation", "r00"], "did you mean 'r0'"),
    ],
)
def test_an_unknown_name_is_one_error_with_a_hint(trained, arguments, found):
    assert found in one_error(invoke("predict", trained / "plain", *arguments))


def test_predict_goes_without_the_data(run_copy):
    config = json.loads((run_copy / "config.json").read_text())
    config["settings"]["data"] = "gone"
    (run_copy / "config.json").write_text(json.dumps(config))
    arguments = ("predict", run_copy, "--head", "e4", "--relation", "r0")
    result = ok(*arguments)
    assert "known triples are not marked" in result.stderr
    assert {row[2] for row in completions(result)} == {"-"}
    one_error(invoke(*arguments, "--hide-known"))


def test_a_run_finds_its_data_from_another_folder(graph, tmp_path, monkeypatch):
    monkeypatch.chdir(graph.parent)
    few = "--dim", 2, "--epochs", 1, "--no-calibrate"
    ok("train", "--data", graph.name, *few, "--out", tmp_path / "run")
    ok("train", "--data", "families", *few[:3], 0, *few[4:], "--out", tmp_path / "named")
    saved = [cardkge.load_run(tmp_path / name).settings.data for name in ("run", "named")]
    assert saved == [str(graph), "families"]
    monkeypatch.chdir(tmp_path)
    ok("evaluate", "run")


# --- violations


def test_violations_against_sums_by_hand(trained, tmp_path):
    path = tmp_path / "v.json"
    result = ok("violations", trained / "bound", trained / "plain", "--json", path)
    report = json.loads(path.read_text())
    assert list(report) == [str(trained / "bound"), str(trained / "plain")]
    for folder, part in report.items():
        run = cardkge.load_run(folder)
        data = cardkge.load_dataset(run.settings.data)
        entity = run.model.params["entity"].astype("f8")
        for r, name in enumerate(run.relations):
            heads = np.unique(data.train[data.train[:, 1] == r, 0])
            scores = (entity[heads] * run.model.params["relation"][r]) @ entity.T
            sums = (1 / (1 + np.exp(-scores))).sum(1)
            found = part[name]
            assert [found["lower"], found["upper"]] == ([1, 3] if name == "r0" else [0, 1])
            assert found["subjects"] == len(heads)
            assert found["mean"] == pytest.approx(sums.mean(), rel=1e-5)
            assert found["quartiles"] == pytest.approx(np.quantile(sums, [0.25, 0.5, 0.75]), rel=1e-5)
            assert found["outside"] == np.mean((sums < found["lower"]) | (sums > found["upper"]))
    r0 = next(line for line in result.stdout.splitlines() if line.startswith("r0"))
    change = report[str(trained / "plain")]["r0"]["mean"] - report[str(trained / "bound")]["r0"]["mean"]
    assert r0.split()[-1] == f"{change:+.1f}"


def test_violations_takes_its_bounds_from_a_run_or_the_command_line(trained, tmp_path):
    def relations(*arguments):
        path = tmp_path / "v.json"
        ok("violations", *arguments, "--json", path)
        return next(iter(json.loads(path.read_text()).values()))

    mined = relations(trained / "plain")
    assert {name: (v["lower"], v["upper"]) for name, v in mined.items()} == {
        "r0": (1, 3), "r1": (0, 1), "r2": (0, 1),
    }  # fmt: skip
    assert relations(trained / "plain", trained / "bound").keys() == mined.keys()
    path = tmp_path / "bounds.tsv"
    path.write_text("r1\t2\tinf\n")
    given = relations(trained / "bound", "--bounds", path)
    assert [(name, v["lower"], v["upper"]) for name, v in given.items()] == [("r1", 2, None)]
    path.write_text("\n")
    assert "no relation is bounded" in ok("violations", trained / "bound", "--bounds", path).stdout


def test_violations_of_one_run_with_itself_is_wrong_usage(trained):
    usage_error(invoke("violations", trained / "plain", trained / "plain"))


def test_plot_without_matplotlib_is_one_error(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = one_error(invoke("violations", trained / "plain", "--plot", tmp_path / "x.png"))
    assert "pip install -e '.[plot]'" in line
    assert os.listdir(tmp_path) == []


def test_plot(trained, tmp_path):
    pytest.importorskip("matplotlib")
    runs = (trained / "plain", trained / "bound")
    ok("violations", *runs, "--plot", tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert "must end in" in usage_error(invoke("violations", *runs, "--plot", tmp_path / "x.xyz"))


# --- the world around


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["evaluate", "violations", "mine"])
def test_a_full_disk_is_one_error(trained, graph, command):
    arguments = {
        "evaluate": ["evaluate", trained / "plain", "--json", "/dev/full"],
        "violations": ["violations", trained / "plain", "--json", "/dev/full"],
        "mine": ["mine", "--data", graph, "--out", "/dev/full"],
    }
    assert "No space left" in one_error(invoke(*arguments[command]))


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX locales")
@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "李白"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}, "\\u674e\\u767d"),
    ],
)
def test_any_locale_will_do(trained, settings, shown):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG"))}
    process = start(
        "predict", trained / "plain", "--head", "Zoë Ågren", "--relation", "r0", "--top", "12",
        env=environment | settings, encoding="utf-8", errors="replace",
    )  # fmt: skip
    code, output, errors = finish(process)
    assert code == 0, errors
    assert shown in output


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX shell")
@pytest.mark.parametrize("closing", ["<&-", "2>&-", "| head -1"])
def test_closed_streams(graph, tmp_path, closing):
    line = f"{sys.executable} {ROOT / 'cli.py'} train --data {graph} --dim 2 --epochs 1 --out run "
    result = subprocess.run(line + closing, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0
    assert "Traceback" not in result.stderr and "Error" not in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX terminals")
def test_a_terminal_sees_one_line_redrawn(graph, tmp_path):
    import pty

    parent, child = pty.openpty()
    process = start("train", "--data", graph, "--dim", 2, "--epochs", 5, "--out", tmp_path / "run", stderr=child)
    os.close(child)
    output = b""
    with contextlib.suppress(OSError):  # EIO at the end
        while block := os.read(parent, 4096):
            output += block
    assert process.wait(timeout=300) == 0
    os.close(parent)
    assert output.count(b"\r[") >= 5 and b"epoch 5/5" in output
    assert b"\nepoch" not in output


# --- names of files that are written


def test_a_name_that_ends_in_gz_is_packed_and_read_again(trained, graph, tmp_path):
    def content(name):
        return gzip.decompress((tmp_path / name).read_bytes()).decode()

    plain, packed = tmp_path / "bounds.tsv", tmp_path / "bounds.TSV.GZ"
    for path in (plain, packed):
        ok("mine", "--data", graph, "--out", path)
    assert content("bounds.TSV.GZ") == plain.read_text()
    ok("violations", trained / "plain", "--bounds", packed)
    ok("bounds", "convert", packed, tmp_path / "again.tsv.gz")
    assert content("again.tsv.gz") == plain.read_text()
    facts = ("complete", trained / "plain", "--known", "train", "--min-probability", 0)
    for name in ("new.tsv", "new.tsv.gz", "new.nt", "new.nt.gz"):
        ok(*facts, "--out", tmp_path / name)
    assert content("new.tsv.gz") == (tmp_path / "new.tsv").read_text(encoding="utf-8") != ""
    assert content("new.nt.gz") == (tmp_path / "new.nt").read_text(encoding="utf-8")
    ok("oracle", "write", tmp_path / "o.json.gz", "--version", 1)
    ok("oracle", "check", tmp_path / "o.json.gz")
    (tmp_path / "o.json.gz").write_text("{}")
    assert "cannot be read (Not a gzipped file" in one_error(invoke("oracle", "check", tmp_path / "o.json.gz"))


def test_split_copies_what_is_packed_as_it_is(graph, tmp_path):
    shutil.copytree(graph, tmp_path / "in")
    notes = gzip.compress(b"notes")
    (tmp_path / "in" / "notes.gz").write_bytes(notes)
    ok("split", tmp_path / "in", "--valid", 0.1, "--test", 0.1, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "notes.gz").read_bytes() == notes


def test_new_facts_are_rdf_where_the_name_says_so(trained, tmp_path):
    facts = ("complete", trained / "plain", "--known", "train", "--min-probability", 0, "--out")
    ok(*facts, tmp_path / "new.nt")
    for name in ("new.NT", "new.ttl", "new.nq", "new.trig"):
        ok(*facts, tmp_path / name)
        assert (tmp_path / name).read_bytes() == (tmp_path / "new.nt").read_bytes()
    for name in ("new.rdf", "new.jsonld"):
        assert "written as TSV or N-Triples; end the name in .tsv or .nt" in one_error(invoke(*facts, tmp_path / name))
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    "command",
    [
        *["bounds convert FILE FILE", "classify RUN FILE --json FILE", "check FILE:Mine --json FILE"],
        *["classify RUN other --valid FILE --json FILE", "evaluate RUN --sets --truth FILE --json FILE"],
        *["calibrate RUN --missing FILE --json FILE", "calibrate RUN --bounds FILE --json FILE"],
        *["complete RUN --bounds FILE --out FILE", "complete RUN --bounds other,FILE --completeness FILE"],
        *["complete RUN --queries FILE --out FILE", "predict RUN --queries FILE --out FILE"],
        *["evaluate RUN --sets --bounds FILE --plot FILE", "predict RUN --relation r0 --bounds FILE --json FILE"],
        *["violations RUN --bounds FILE --plot FILE", "violations RUN --bounds FILE --json FILE"],
        *["import FILE --out new --json FILE", "import other --bounds other --bounds FILE --out new --json FILE"],
        *["tune --file FILE --json FILE", "oracle check FILE --json FILE", "history RUN --model FILE:Mine --json FILE"],
    ],
)
def test_a_file_is_not_written_over_the_one_it_is_made_from(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cardkge_tools.engine.own.use_model", str)  # a class that is loaded
    for name in ("other", "file.py"):
        (tmp_path / name).write_text("as it was", encoding="utf-8")
    os.link("file.py", "link.py")
    start, _, _ = command.rpartition("FILE")
    for out in ("file.py", "./file.py", "link.py"):
        line = one_error(invoke(*start.replace("FILE", "file.py").split(), out))
        assert line == f"error: {out} is the file that is read; choose another name for what is written"
    assert (tmp_path / "file.py").read_text(encoding="utf-8") == "as it was"


@pytest.mark.parametrize(
    "command",
    [
        *["mine --out a --json a", "complete RUN --out a --completeness ./a", "history RUN --plot a --json a"],
        *["evaluate RUN --sets --plot a --json a", "violations RUN --plot a --json a"],
    ],
)
def test_no_file_is_written_twice(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    for there in (False, True):
        assert "a is written twice; choose another name" in one_error(invoke(*command.split()))
        assert (tmp_path / "a").exists() == there
        (tmp_path / "a").write_text("")


def test_a_result_that_is_replaced_is_named(trained, tmp_path):
    pytest.importorskip("matplotlib")
    run = trained / "plain"
    for name, *command in (
        ("bounds.tsv", "mine", "--out"), ("values.json", "oracle", "write"), ("curve.png", "history", run, "--plot"),
        ("new.tsv", "complete", run, "--out"),
    ):  # fmt: skip
        for said in (False, True):
            errors = ok(*command, tmp_path / name).stderr
            assert errors.count(f"{tmp_path / name}: the file that was there is replaced") == said
    for _ in range(2):  # --json is for programs
        assert "replaced" not in ok("data", "--json", tmp_path / "data.json").stderr


def test_a_file_is_no_folder_to_write_into(graph, tmp_path):
    file = tmp_path / "file"
    file.write_text("a\tr\tb\n")
    for command in (("split", graph), ("import", graph / "train.txt", "--force")):
        line = one_error(invoke(*command, "--out", file))
        assert line == f"error: {file} is a file; choose another folder with --out"
    assert file.read_text() == "a\tr\tb\n"


@pytest.mark.parametrize("name", ["--valid", "--test"])
def test_a_split_of_nothing_is_wrong_usage(graph, tmp_path, name):
    assert "is not in the range 0<x<1" in usage_error(invoke("split", graph, name, 0, "--out", tmp_path / "out"))


def test_messages_name_the_program_as_it_was_called(monkeypatch):
    for called, name in (
        ("cli.py", "python cli.py"),
        ("/a b/cli.py", "python '/a b/cli.py'"),
        ("/venv/bin/cardkge", "cardkge"),
    ):
        monkeypatch.setattr(sys, "argv", [called, "train"])
        assert cardkge_tools.shell.terminal.this_command() == name


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_does_not_go_back(monkeypatch, terminal):
    said, clock = [], iter(range(0, 1000, 10))
    monkeypatch.setattr(cardkge_tools.shell.terminal, "say", lambda text, **_: said.append(text))
    monkeypatch.setattr(cardkge_tools.shell.terminal.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys, "stderr", type("Stream", (), {"isatty": lambda self: terminal})())
    with cardkge_tools.shell.terminal.counter("done") as progress:
        for done in (11, 35, 22, 31, 90, 80):
            progress(done, 100)
    assert [int(number) for number in re.findall(r"done: (\d+) of 100", "".join(said))] == [11, 35, 90]
