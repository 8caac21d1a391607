"""The library, called as it should not be, or broken off half-way: one clear error, and nothing lost."""

import inspect
import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT, invoke, ok, usage_error, write_ring

import cardkge
import cardkge_tools.engine.training


def settings(**changes):
    return cardkge.Settings(**{"model": "distmult", "dim": 4, "epochs": 3, "batches": 2, **changes})


def copies(run):
    return [{name: array.copy() for name, array in part.items()} for part in (run.model.params, run.accumulators)]


def same(run, kept):
    return all(
        np.array_equal(now[name], before[name])
        for now, before in zip((run.model.params, run.accumulators), kept)
        for name in before
    )


def test_defaults_are_those_of_the_specification():
    for model, names in (
        (cardkge.DistMult, ("dim", "seed", "dtype", "reciprocal")),
        (cardkge.ComplEx, ("dim", "seed", "dtype", "reciprocal")),
        (cardkge.ERMLP, ("dim", "seed", "dtype", "hidden", "reciprocal")),
    ):
        parameters = inspect.signature(model).parameters
        assert tuple(parameters)[2:] == names
        wanted = {"dim": 200, "seed": 0, "dtype": "float32", "hidden": 200, "reciprocal": False}
        assert all(parameters[name].default == wanted[name] for name in names)


def test_a_run_is_not_trained_on_data_of_another_size(toy, make_dataset):
    run = cardkge.new_run(settings(), toy)
    kept = copies(run)
    larger = make_dataset([(0, 0, 40)], [(0, 0, 1)], [(0, 0, 2)], 41, 3)
    with pytest.raises(cardkge.CardkgeError, match=r"41 entities .* the run 12"):
        cardkge.train(run, larger)
    assert same(run, kept)


@pytest.mark.parametrize("bad", [(12, 0, 1), (-1, 0, 1), (0, 3, 1), (0, 0, 12)])
def test_a_train_triple_out_of_range_is_refused_before_any_step(toy, bad):
    run = cardkge.new_run(settings(), toy)
    broken = replace(toy, train=np.concatenate((toy.train, np.array([bad], np.int32))))
    with pytest.raises(cardkge.CardkgeError, match="out of range"):
        cardkge.train(run, broken)


@pytest.mark.parametrize("changes", [{"l2": 1e39}, {"l2": 1e39, "project": "none"}, {"penalty_weight": 1e39}])
def test_a_step_that_overflows_changes_nothing_with_adagrad_too(toy, changes):
    bounds = np.array([(0, 0.1), (0, np.inf), (0, np.inf)])
    run = cardkge.new_run(settings(**changes), toy, bounds)
    kept = copies(run)
    with pytest.raises(cardkge.NonFinite, match="epoch 1, step"):
        cardkge.train(run, toy)
    assert all(np.isfinite(array).all() for array in run.model.params.values())
    if run.step == 0:
        assert same(run, kept)


def test_a_callback_that_raises_after_the_last_step_of_an_epoch_loses_nothing(toy, tmp_path):
    whole, broken = (cardkge.new_run(settings(), toy) for _ in range(2))
    cardkge.train(whole, toy)

    def fail(run, step, steps):
        if run.epoch == 1 and step == steps:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        cardkge.train(broken, toy, on_step=fail)
    cardkge.save_run(broken, tmp_path / "run")
    broken = cardkge.load_run(tmp_path / "run")
    assert cardkge.train(broken, toy) == "finished"
    assert same(broken, copies(whole))
    assert [r["objective"] for r in broken.history] == [r["objective"] for r in whole.history]


def test_a_validation_that_is_broken_off_is_done_again(toy, tmp_path, monkeypatch):
    changes = settings(validate_every=1)
    whole, broken = (cardkge.new_run(changes, toy) for _ in range(2))
    cardkge.train(whole, toy)
    with monkeypatch.context() as patch:
        patch.setattr(
            cardkge_tools.engine.training, "rank_triples", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            cardkge.train(broken, toy)
    cardkge.save_run(broken, tmp_path / "run")
    broken = cardkge.load_run(tmp_path / "run")
    cardkge.train(broken, toy)
    assert same(broken, copies(whole)) and broken.best["epoch"] == whole.best["epoch"]
    assert [r["valid_mrr"] for r in broken.history] == [r["valid_mrr"] for r in whole.history]


def test_the_bounds_that_the_settings_name_are_used(toy, tmp_path):
    mined = cardkge.mine_bounds(toy.train, 12, 3)
    assert np.array_equal(cardkge.new_run(settings(bounds="mined"), toy).bounds.tables[0], mined)
    cardkge.write_bounds(tmp_path / "b.tsv", mined + 1, toy.relations)
    run = cardkge.new_run(settings(bounds=str(tmp_path / "b.tsv")), toy)
    assert np.array_equal(run.bounds.tables[0], mined + 1)
    assert not cardkge.new_run(settings(), toy).bounds.any()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"decay": 0.1}, "decay is for sgd"),
        ({"patience": 2}, "give validate_every"),
        ({"seed": 2**32}, "seed must be below"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(changes, message):
    with pytest.raises(cardkge.CardkgeError, match=message):
        settings(**changes)


def test_threads_stop_at_an_exception():
    done = []

    def work(first, last):
        done.append(first)
        if first == 0:
            raise ValueError("at 0")
        time.sleep(0.001)

    with cardkge.Threads(2) as threads, pytest.raises(ValueError, match="at 0"):
        threads.run(work, 1000, size=1)
    assert len(done) < 1000


def test_nothing_to_rank(make_model):
    model = make_model("distmult")
    nothing = np.zeros((0, 3), int)
    assert cardkge.rank_triples(model, nothing, nothing)["filtered"].shape == (0, 2)
    with pytest.raises(cardkge.CardkgeError, match="metrics need at least one rank, found none"):
        cardkge.evaluate(model, nothing)


@pytest.mark.parametrize("triples, bounds", [([(9, 0, 1)], 3), ([(-1, 0, 1)], 3), ([(0, 0, 1)], 2)])
def test_violations_check_what_they_get(make_model, triples, bounds):
    with pytest.raises(cardkge.CardkgeError, match=r"out of range|must have shape"):
        cardkge.cardinality_violations(make_model("distmult"), np.tile([0.0, 1.0], (bounds, 1)), np.array(triples))


def test_unsigned_ids_are_ids(make_model):
    model, triples = make_model("complex"), np.array([(0, 1, 2), (3, 0, 6)])
    found = cardkge.rank_triples(model, triples.astype(np.uint64), triples)
    assert np.array_equal(found["filtered"], cardkge.rank_triples(model, triples, triples)["filtered"])
    unsigned = cardkge.rank_triples(model, triples.astype(np.uint64), triples.astype(np.uint64))
    assert np.array_equal(found["filtered"], unsigned["filtered"])
    mined = cardkge.mine_bounds(triples.astype(np.uint64), 7, 3)
    assert np.array_equal(mined, cardkge.mine_bounds(triples, 7, 3))


@pytest.mark.thorough
def test_the_bits_of_a_run_do_not_depend_on_blas_threads(tmp_path):
    """The command line keeps the BLAS library to one thread, whatever the environment says."""
    found = []
    for threads in ("1", "2"):
        out = tmp_path / threads
        command = [sys.executable, "cli.py", "train", "--model", "ermlp", "--dim", "64", "--hidden", "64"]
        command += ["--epochs", "1", "--batches", "1", "--threads", threads, "--out", str(out)]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
        found.append((out / "model.npz").read_bytes())
    assert found[0] == found[1]


def command(*arguments, **options):
    return subprocess.run([sys.executable, "cli.py", *map(str, arguments)], cwd=ROOT, text=True, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("model", [("complex", "--dim", 32), ("ermlp", "--dim", 8, "--bounds", "mined")])
def test_the_bits_of_a_run_do_not_depend_on_numbas_cache(tmp_path, model):
    """A kernel that is compiled now, and one that is loaded, round alike."""
    found = []
    for name in ("cold", "warm"):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        arguments = ("train", "--model", *model, "--epochs", 1, "--out", tmp_path / name)
        command(*arguments, env=environment, check=True, capture_output=True)
        found.append((tmp_path / name / "model.npz").read_bytes())
    assert found[0] == found[1]


def test_bounds_that_changed_are_refused(toy, tmp_path):
    bounds = np.array([(0, 1), (0, 2), (0, np.inf)])
    cardkge.save_run(cardkge.new_run(settings(), toy, bounds), tmp_path / "run")
    for text in ("", "r0\t0\t1\n"):
        (tmp_path / "run" / "bounds.tsv").write_text(text)
        with pytest.raises(cardkge.CardkgeError, match="not the bounds that the run was trained with"):
            cardkge.load_run(tmp_path / "run")


@pytest.mark.parametrize("bounds", [[(0, 1)], [(0, 1), (2, 1), (0, 1)], [(0, 1), (np.nan, 1), (0, 1)], [(-1, 1)] * 3])
def test_bounds_are_checked_before_training(toy, bounds):
    with pytest.raises(cardkge.CardkgeError, match="bounds must"):
        cardkge.new_run(settings(), toy, np.array(bounds, float))


@pytest.mark.parametrize(
    "name, value", [("dim", 2.5), ("dim", "2"), ("batches", 2.5), ("seed", np.int64(3)), ("l2", None)]
)
def test_settings_have_their_types(name, value):
    with pytest.raises(cardkge.CardkgeError, match=f"{name} must be"):
        settings(**{name: value})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [("data",), ("--help",), ("train", "--help")])
def test_a_full_standard_output_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        result = command(*arguments, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1 and result.stderr == "error: cannot write the output: No space left on device\n"


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="no /dev/stdout")
def test_a_file_may_be_the_standard_output(tmp_path):
    piped = command("mine", "--out", "/dev/stdout", capture_output=True, check=True).stdout
    assert "parent\t0\t2\n" in piped
    with open(tmp_path / "f", "w") as file:
        file.write("before\n")
        file.flush()
        command("mine", "--out", "/dev/stdout", stdout=file, check=True)
    text = (tmp_path / "f").read_text()
    assert text.startswith("before\n") and "parent\t0\t2\n" in text


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="no /dev/stdout")
def test_a_file_that_is_a_pipe_which_nobody_reads_ends_quietly():
    arguments = [sys.executable, "cli.py", "oracle", "write", "/dev/stdout"]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.thorough
def test_training_goes_on_when_nobody_reads_its_progress(tmp_path):
    arguments = [sys.executable, "cli.py", "train", "--dim", "4", "--epochs", "40", "--out", str(tmp_path / "run")]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        process.stderr.readline()
        process.stderr.close()
    assert cardkge.load_run(tmp_path / "run").epoch == 40


OUTPUTS = [
    "evaluate RUN --json",
    "complete RUN --out",
    "predict RUN --head e0 --relation r0 --json",
    "predict RUN --queries QUERIES --out",
    "export RUN --format npz --out",
    "history RUN --json",
    "violations RUN --json",
    "calibrate RUN --json",
    "mine --data DATA --out",
    "mine --data DATA --json",
    "oracle write",
    "bounds convert BOUNDS",
]


@pytest.fixture(scope="module")
def ring_run(tmp_path_factory):
    """(data set, calibrated run of it)"""
    folder = tmp_path_factory.mktemp("misuse")
    data, run = write_ring(folder / "ring"), folder / "run"
    ok("train", "--data", data, "--dim", 4, "--epochs", 1, "--validate-every", 1, "--threads", 1, "--out", run)
    return data, run


@pytest.mark.parametrize("words", OUTPUTS)
def test_no_output_replaces_a_file_of_a_run_or_a_data_set(words, ring_run, tmp_path):
    data, run = ring_run
    (tmp_path / "queries.tsv").write_text("e0\tr0\n")
    (tmp_path / "bounds.tsv").write_text("r0\t0\t1\n")
    places = {"RUN": run, "DATA": data, "QUERIES": tmp_path / "queries.tsv", "BOUNDS": tmp_path / "bounds.tsv"}
    words = [places.get(word, word) for word in words.split()]
    (tmp_path / "link").symlink_to(run / "config.json")
    kinds = dict.fromkeys((run / "model.npz", run / "metrics.json", tmp_path / "link"), "run")
    for target in (tmp_path / "triples.tsv", data / "train.tsv", data / "valid.txt.gz", data / "types.tsv"):
        assert "is the name of a file of a data set" in usage_error(invoke(*words, target))
        assert not target.exists()
    for target, kind in (kinds | dict.fromkeys((data / "train.txt", data / "test.txt"), "data set")).items():
        before = target.read_bytes()
        assert f"is the name of a file of a {kind};" in usage_error(invoke(*words, target))
        assert target.read_bytes() == before


def test_files_that_only_have_such_names_are_written_again(ring_run, tmp_path):
    """test.tsv is a usual name, and a file of a data set only beside a train split."""
    data, _ = ring_run
    for option, name in (("--out", "test.tsv"), ("--json", "metrics.json"), ("--out", "bounds.tsv")):
        for _ in range(2):
            ok("mine", "--data", data, option, tmp_path / name)
    for _ in range(2):
        ok("mine", "--data", data, "--out", data / "bounds.tsv")
    before = (data / "bounds.tsv").read_bytes()
    assert "is the name of a file of a data set" in usage_error(
        invoke("mine", "--data", data, "--json", data / "bounds.tsv")
    )
    assert (data / "bounds.tsv").read_bytes() == before
