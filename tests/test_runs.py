"""Saved runs: what is written is read back bit by bit, and every damage is one clear error."""

import dataclasses
import json
import math
import os
import shutil
import struct
import zipfile

import numpy as np
import pytest
from conftest import invoke, one_error, snapshot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cardkge
import cardkge_tools.shell.files


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a data set (a ring of 12 entities, 3 relations) and a run two epochs old."""
    home = tmp_path_factory.mktemp("saved")
    lines = [f"e{i}\tr{r}\te{(i + r + 1) % 12}\n" for i in range(12) for r in range(3)]
    data = home / "data"
    data.mkdir()
    for split, part in (("train", lines[:30]), ("valid", lines[30:33]), ("test", lines[33:])):
        (data / f"{split}.tsv").write_text("".join(part))
    result = invoke("train", "--data", data, "--dim", 4, "--epochs", 2, "--out", home / "run")
    assert result.exit_code == 0, result.output
    return home


@pytest.fixture
def run_folder(saved, tmp_path):
    """A copy of that run and its data set to be damaged."""
    shutil.copytree(saved, tmp_path / "copy")
    rewrite(
        tmp_path / "copy" / "run" / "config.json",
        lambda config: config["settings"].update(data=str(tmp_path / "copy" / "data")),
    )
    return tmp_path / "copy" / "run"


def assert_same_run(first, second):
    for name in ("entities", "relations", "epoch", "step", "partial", "history", "metrics", "data"):
        assert getattr(first, name) == getattr(second, name), name
    np.testing.assert_array_equal(first.bounds.tables, second.bounds.tables)
    assert_same_arrays(first.model.params, second.model.params)
    assert_same_arrays(first.accumulators, second.accumulators)
    assert (first.best is None) == (second.best is None)
    if first.best:
        assert_same_arrays(first.best["params"], second.best["params"])
        for name in ("epoch", "mrr", "hits@10"):
            assert first.best[name] == second.best[name]


def assert_same_arrays(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].dtype == second[name].dtype
        assert first[name].shape == second[name].shape
        assert first[name].tobytes() == second[name].tobytes()


# --- round trip

# what a triple file can hold: anything but tab, LF, and CR at the end of a line
NAMES = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), min_size=1, max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def runs(draw):
    entities = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    relations = draw(st.lists(NAMES.filter(str.strip), min_size=1, max_size=3, unique=True))
    relations = [name.lstrip("\ufeff") or "r" for name in relations]
    relations = list(dict.fromkeys(relations))
    chosen = cardkge.Settings(
        model=draw(st.sampled_from(sorted(cardkge.MODELS))),
        data=draw(NAMES),
        dim=draw(st.integers(1, 3)),
        hidden=draw(st.integers(1, 3)),
        epochs=draw(st.integers(0, 5)),
        dtype=draw(st.sampled_from(["float32", "float64"])),
        optimizer=draw(st.sampled_from(["adagrad", "sgd"])),
        seed=draw(st.integers(0, 2**32 - 1)),
        learning_rate=draw(st.floats(1e-9, 1e9)),
    )
    triples = np.zeros((1, 3), np.int32)
    dataset = cardkge.Dataset("x", None, entities, relations, triples, triples, triples, ())
    run = cardkge.new_run(chosen, dataset)
    for array in (*run.model.params.values(), *run.accumulators.values()):
        kind = st.floats(width=8 * array.itemsize, allow_nan=False, allow_infinity=False)
        array.flat = draw(st.lists(kind, min_size=array.size, max_size=array.size))
    lowers = draw(st.lists(st.floats(0, 1e300), min_size=len(relations), max_size=len(relations)))
    table = [(low, draw(st.floats(math.ceil(low)))) for low in lowers]
    run.bounds = cardkge.new_run(chosen, dataset, table).bounds
    run.epoch, run.step = draw(st.integers(0, 3)), draw(st.integers(0, 99))
    run.partial = draw(st.dictionaries(st.sampled_from(["loss", "l2"]), FLOATS))
    columns = ("objective", "loss", "l2", "penalty", "seconds")
    run.history = [{"epoch": epoch, **{name: draw(FLOATS) for name in columns}} for epoch in range(1, run.epoch + 1)]
    if run.history and draw(st.booleans()):
        run.history[-1]["valid_mrr"] = draw(FLOATS)
        params = {name: array + 1 for name, array in run.model.params.items()}
        params = {name: np.where(np.isfinite(a), a, 0) for name, a in params.items()}
        run.best = {"epoch": run.epoch, "mrr": draw(FLOATS), "hits@10": 0.5, "params": params}
    run.metrics = draw(st.none() | st.just({"filtered": {"both": {"mrr": 0.1}}}))
    run.data = cardkge.describe_data(dataset)
    return run


@given(run=runs())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_run_comes_back_bit_by_bit(run, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda number: None)
    cardkge.save_run(run, tmp_path / "run")
    loaded = cardkge.load_run(tmp_path / "run")
    assert_same_run(run, loaded)
    assert loaded.settings == run.settings
    first = snapshot(tmp_path / "run")
    cardkge.save_run(loaded, tmp_path / "again")
    assert snapshot(tmp_path / "again") == first


def test_the_files_of_a_run(run_folder):
    assert sorted(snapshot(run_folder)) == sorted(
        {*cardkge_tools.shell.files.RUN_FILES} - {"calibration.json", "prefixes.tsv", "types.tsv"}
    )
    config = json.loads((run_folder / "config.json").read_text())
    assert config["format_version"] == 1
    assert config["epoch"] == 2
    assert config["settings"]["lambda"] == cardkge.Settings().penalty_weight
    assert config["settings"]["learning-rate"] == cardkge.Settings().learning_rate
    assert config["settings"]["dim"] == 4
    assert [config["data"][k] for k in ("entities", "relations", "train")] == [12, 3, 30]
    metrics = json.loads((run_folder / "metrics.json").read_text())
    names = ["mrr", "hits@1", "hits@3", "hits@5", "hits@10", "mean_rank"]
    assert list(metrics) == ["filtered", "raw"]
    for sides in metrics.values():
        assert list(sides) == ["both", "head", "tail"]
        for values in sides.values():
            assert sorted(values) == sorted(names)
            assert all(0 <= values[name] <= 1 for name in names[:-1])
    history = (run_folder / "history.csv").read_text().splitlines()
    assert history[0].startswith("epoch,")
    assert set(history[0].split(",")) == {"epoch", "objective", "loss", "l2", "penalty", "seconds"}
    assert [line.split(",")[0] for line in history[1:]] == ["1", "2"]


def test_data_is_described_by_what_it_holds(make_dataset):
    triples = [(0, 0, 1), (1, 1, 2), (2, 0, 0)]
    base = cardkge.describe_data(make_dataset(triples, triples[:1], triples[1:]))
    assert cardkge.describe_data(make_dataset(triples, triples[:1], triples[1:])) == base
    moved = cardkge.describe_data(make_dataset(triples[::-1], triples[:1], triples[1:]))
    other_split = cardkge.describe_data(make_dataset(triples, triples[:2], triples[2:]))
    assert len({base["sha256"], moved["sha256"], other_split["sha256"]}) == 3


# --- faults


def rewrite(path, change):
    """Apply a change to the dict of a JSON file."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def rewrite_npz(path, change):
    """Apply a change to the dict of the members of an npz file."""
    with np.load(path) as stored:
        arrays = dict(stored)
    change(arrays)
    np.savez(path, **arrays)


def state_of(arrays):
    return json.loads(arrays["state"].tobytes())


def set_state(arrays, **changes):
    text = json.dumps({**state_of(arrays), **changes})
    arrays["state"] = np.frombuffer(text.encode(), np.uint8)


CONFIG_FAULTS = {
    "not JSON": lambda p: p.write_text("{"),
    "not JSON (": lambda p: p.write_bytes(b"\xff\xfe{}"),
    "not a JSON object": lambda p: p.write_text("[1]"),
    "not JSON (max": lambda p: p.write_text("[" * 100_000),
    "format_version": lambda p: rewrite(p, lambda c: c.pop("format_version")),
    "format version 2 is later": lambda p: rewrite(p, lambda c: c.update(format_version=2)),
    "format_version is '1'": lambda p: rewrite(p, lambda c: c.update(format_version="1")),
    "'settings'": lambda p: rewrite(p, lambda c: c.pop("settings")),
    "'learning-rate' in 'settings' is missing": lambda p: rewrite(p, lambda c: c["settings"].pop("learning-rate")),
    "'speed' in 'settings' is unknown": lambda p: rewrite(p, lambda c: c["settings"].update(speed=1)),
    "'epochs' is '2', expected int": lambda p: rewrite(p, lambda c: c["settings"].update(epochs="2")),
    "'epochs' is True, expected int": lambda p: rewrite(p, lambda c: c["settings"].update(epochs=True)),
    "model": lambda p: rewrite(p, lambda c: c["settings"].update(model="transe")),
    "trained with dim = 4": lambda p: rewrite(p, lambda c: c["settings"].update(dim=2)),
    "trained with seed = 0": lambda p: rewrite(p, lambda c: c["settings"].update(seed=1)),
    "names 12 entities, config.json counts 11": lambda p: rewrite(p, lambda c: c["data"].update(entities=11)),
}


@pytest.mark.parametrize("found", CONFIG_FAULTS)
def test_a_damaged_config_is_one_error(run_folder, found):
    CONFIG_FAULTS[found](run_folder / "config.json")
    before = snapshot(run_folder)
    line = one_error(invoke("evaluate", run_folder))
    assert str(run_folder) in line and found in line
    assert snapshot(run_folder) == before


NPZ_FAULTS = {
    "No such file": lambda p: p.unlink(),
    "not a zip": lambda p: p.write_bytes(b""),
    "not a zip file": lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]),
    "cannot be read (": lambda p: np.save(p.open("wb"), np.arange(3)),
    "Object arrays cannot be loaded": lambda p: rewrite_npz(
        p, lambda a: a.update({"params.entity": np.array([print, {}], dtype=object)})
    ),
    "params.entity is missing": lambda p: rewrite_npz(p, lambda a: a.pop("params.entity")),
    "params.more is unexpected": lambda p: rewrite_npz(p, lambda a: a.update({"params.more": np.zeros(3)})),
    "params.entity is float32 (11, 4), expected float32 (12, 4)": lambda p: rewrite_npz(
        p, lambda a: a.update({"params.entity": a["params.entity"][1:]})
    ),
    "params.relation is float64 (3, 4), expected float32 (3, 4)": lambda p: rewrite_npz(
        p, lambda a: a.update({"params.relation": a["params.relation"].astype("f8")})
    ),
    "accumulators.entity is missing": lambda p: rewrite_npz(p, lambda a: a.pop("accumulators.entity")),
    "no readable entities": lambda p: rewrite_npz(p, lambda a: a.pop("entities")),
    "no readable relations": lambda p: rewrite_npz(p, lambda a: a.update(relations=a["relations"] + 128)),
    "names 11 entities": lambda p: rewrite_npz(p, lambda a: a.update(entities=a["entities"][:-4])),
    "names 11 entities,": lambda p: rewrite_npz(
        p, lambda a: a.update(entities=np.frombuffer(a["entities"].tobytes().replace(b"e1\n", b"e0\n"), np.uint8))
    ),
    "state is damaged": lambda p: rewrite_npz(p, lambda a: a.pop("state")),
    "state is damaged (a count": lambda p: rewrite_npz(p, lambda a: set_state(a, epoch=-1)),
    "state is damaged (a sum": lambda p: rewrite_npz(p, lambda a: set_state(a, partial={"loss": "x"})),
    "format version 7": lambda p: rewrite_npz(p, lambda a: set_state(a, format_version=7)),
    "1 of the 48 values of entity are NaN or infinite": lambda p: rewrite_npz(
        p, lambda a: a["params.entity"].__setitem__((0, 0), np.nan)
    ),
    "2 of the 12 values of relation are NaN or infinite": lambda p: rewrite_npz(
        p, lambda a: a["params.relation"].__setitem__((0, slice(2)), np.inf)
    ),
}


@pytest.mark.parametrize("command", ["evaluate", "predict", "violations", "resume"])
@pytest.mark.parametrize("found", NPZ_FAULTS)
def test_a_damaged_model_is_one_error(run_folder, found, command):
    path = run_folder / "model.npz"
    NPZ_FAULTS[found](path)
    before = snapshot(run_folder)
    arguments = {
        "evaluate": ["evaluate", run_folder],
        "predict": ["predict", run_folder, "--head", "e0", "--relation", "r0"],
        "violations": ["violations", run_folder],
        "resume": ["train", "--resume", "--out", run_folder],
    }
    result = invoke(*arguments[command])
    line = one_error(result)
    assert str(path) in line and found in line
    assert result.stdout == ""
    assert snapshot(run_folder) == before


def test_objects_are_never_unpickled(run_folder, tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "trapped"),)

    path = run_folder / "model.npz"
    rewrite_npz(path, lambda a: a.update(entities=np.array([Trap()], dtype=object)))
    assert "allow_pickle=False" in one_error(invoke("evaluate", run_folder))
    assert not (tmp_path / "trapped").exists()


OTHER_FAULTS = {
    "no such run": lambda folder: shutil.rmtree(folder),
    "is a file": lambda folder: (shutil.rmtree(folder), folder.write_text("x")),
    "no config.json": lambda folder: (folder / "config.json").unlink(),
    "bounds.tsv": lambda folder: (folder / "bounds.tsv").unlink(),
    "bounds.tsv:1": lambda folder: (folder / "bounds.tsv").write_text("r9\t0\t1\n"),
    "types.tsv:1": lambda folder: (folder / "types.tsv").write_text("e0\n"),
    "prefixes.tsv:1": lambda folder: (folder / "prefixes.tsv").write_text("x\n"),
    "prefixes.tsv:2": lambda folder: (folder / "prefixes.tsv").write_text("\nex\tno iri\n"),
    "history.csv: cannot be read (line 3 is cut short)": lambda folder: (folder / "history.csv").write_text(
        "epoch,objective\n1,0.5\n2\n"
    ),
    "history.csv": lambda folder: (folder / "history.csv").unlink(),
    "history.csv: cannot be read (expected": lambda folder: (folder / "history.csv").write_text(
        "epoch,objective\n1,0.5\n"
    ),
    "history.csv: cannot be read (could not convert": lambda folder: (folder / "history.csv").write_text(
        "epoch,objective\n1,x\n2,0.5\n"
    ),
    "metrics.json: not JSON": lambda folder: (folder / "metrics.json").write_text("{"),
}


@pytest.mark.parametrize("found", OTHER_FAULTS)
def test_a_damaged_folder_is_one_error(run_folder, found):
    OTHER_FAULTS[found](run_folder)
    line = one_error(invoke("evaluate", run_folder))
    assert str(run_folder) in line and found in line
    assert "; give a folder that train has written" in line or "restore it from a copy, or remove" in line


def test_an_empty_folder_is_no_run(tmp_path):
    assert "not a run" in one_error(invoke("evaluate", tmp_path))


def test_no_flipped_byte_passes_unseen(run_folder):
    """Every byte of model.npz inverted in turn: refused, or without effect on what is loaded."""
    path = run_folder / "model.npz"
    whole = path.read_bytes()
    intact = cardkge.load_run(run_folder)
    refused = 0
    for position in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            loaded = cardkge.load_run(run_folder)
        except cardkge.CardkgeError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            refused += 1
        else:
            assert_same_run(intact, loaded)
    assert refused > len(whole) / 7 / 2


def test_no_truncation_passes_unseen(run_folder):
    path = run_folder / "model.npz"
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(cardkge.CardkgeError, match="cannot be read"):
            cardkge.load_run(run_folder)


def test_a_header_that_claims_too_much_is_refused(run_folder):
    path = run_folder / "model.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999,), }"
    header += b" " * (118 - len(header) - 1) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("state.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header)
    assert "cannot be read" in one_error(invoke("evaluate", run_folder))


# --- saving


class Crash(BaseException):
    """The process dies here."""


def advanced(folder):
    """The run in a folder, one epoch further."""
    run = cardkge.load_run(folder)
    run.epoch += 1
    run.history.append({**run.history[-1], "epoch": run.epoch})
    run.model.params["entity"] += 1
    run.metrics = None
    return run


@pytest.mark.parametrize("renames", range(4))
def test_a_crash_while_saving_leaves_the_old_or_the_new_state(run_folder, monkeypatch, renames):
    old, new = cardkge.load_run(run_folder), advanced(run_folder)
    real = os.replace
    done = []

    def replace(source, target):
        if os.path.dirname(target) == str(run_folder):
            if len(done) == renames:
                raise Crash
            done.append(target)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Crash):
        cardkge.save_run(new, run_folder)
    monkeypatch.undo()
    found = cardkge.load_run(run_folder)
    if done:
        old.metrics = None  # removed before the others move, so that they never stand beside another state
    assert_same_run(found, new if str(run_folder / "model.npz") in map(str, done) else old)


@pytest.mark.parametrize("written", range(4))
def test_a_full_disk_while_saving_leaves_the_old_state(run_folder, monkeypatch, written):
    before = snapshot(run_folder)
    real, count = os.fsync, iter(range(99))

    def fsync(number):
        if next(count) == written:
            raise OSError(28, "No space left on device")
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(cardkge.CardkgeError, match="No space left on device"):
        cardkge.save_run(advanced(run_folder), run_folder)
    assert snapshot(run_folder) == before


def test_parameters_that_are_not_finite_do_not_replace_good_ones(run_folder):
    before = snapshot(run_folder)
    run = advanced(run_folder)
    run.model.params["entity"][0, 0] = np.inf
    with pytest.raises(cardkge.CardkgeError, match="1 of the 48 values of entity"):
        cardkge.save_run(run, run_folder)
    assert snapshot(run_folder) == before


def test_what_was_left_by_a_crash_is_swept(run_folder):
    left = run_folder / f"{cardkge_tools.shell.files.STAGE}1"
    left.mkdir()
    (left / "model.npz").write_text("half")
    cardkge.save_run(cardkge.load_run(run_folder), run_folder)
    assert left.exists()  # perhaps another program is at work there
    os.utime(left, (0, 0))
    cardkge.save_run(cardkge.load_run(run_folder), run_folder)
    assert sorted(snapshot(run_folder)) == sorted(
        {*cardkge_tools.shell.files.RUN_FILES} - {"calibration.json", "prefixes.tsv", "types.tsv"}
    )


class Killed(BaseException):
    """What no handler of the program catches."""


@pytest.mark.parametrize("renames", range(1, 5))
def test_a_save_that_was_killed_between_two_renames_is_finished(run_folder, monkeypatch, renames):
    """The first rename says that all files are complete; config.json, history.csv, bounds.tsv, model.npz follow."""
    later, done, replace = advanced(run_folder), [], os.replace
    later.metrics = None

    def killed(source, target):
        if os.path.basename(target) in cardkge_tools.shell.files.RUN_FILES or os.path.isdir(source):
            if len(done) == renames:
                raise Killed
            done.append(target)
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(cardkge_tools.shell.files.shutil, "rmtree", lambda *_, **__: None)  # a kill leaves it there
        patch.setattr(cardkge_tools.shell.files.os, "replace", lambda source, target: killed(source, target))
        save_within_stage(patch, later, run_folder)
    (left,) = run_folder.glob(".saving*")
    os.utime(left, (0, 0))
    assert_same_run(cardkge.load_run(run_folder), later)
    assert not list(run_folder.glob(".saving*"))


def save_within_stage(patch, run, folder):
    """save_run, whose files inside the stage are written without a rename."""
    write = cardkge_tools.shell.files.replace_file

    def plain(path, content):
        if os.path.dirname(path) == str(folder):
            return write(path, content)
        with open(path, "wb") as file:
            content(file)
        return None

    patch.setattr(cardkge_tools.shell.files, "replace_file", plain)
    cardkge.save_run(run, folder)


def test_an_older_save_is_not_finished_after_a_newer_one(run_folder):
    left = run_folder / ".saving-complete-1"
    left.mkdir()
    shutil.copy(run_folder / "model.npz", left)
    later = advanced(run_folder)
    cardkge.save_run(later, run_folder)
    assert not left.exists()
    assert_same_run(cardkge.load_run(run_folder), later)


def test_a_save_that_cannot_be_finished_says_what_to_do(run_folder, monkeypatch):
    left = run_folder / ".saving-complete-1"
    left.mkdir()
    os.utime(left, (0, 0))

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cardkge_tools.shell.files, "_move_into_place", refused)
    with pytest.raises(
        cardkge.CardkgeError, match=r"was cut short \(Permission denied\); move the files of .*-1 into it"
    ):
        cardkge.load_run(run_folder)


def test_a_link_to_a_file_of_a_run_is_followed(run_folder, tmp_path):
    """Of model.npz on another disk, say."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("model.npz", "metrics.json"):
        shutil.move(run_folder / name, elsewhere / name)
        (run_folder / name).symlink_to(elsewhere / name)
    later = advanced(run_folder)
    cardkge.save_run(later, run_folder)
    assert (run_folder / "model.npz").is_symlink()
    assert_same_run(cardkge.load_run(run_folder), later)
    assert (elsewhere / "model.npz").read_bytes() == (run_folder / "model.npz").read_bytes()


def test_other_files_in_a_run_are_left_alone(run_folder):
    (run_folder / "notes.txt").write_text("mine")
    cardkge.save_run(advanced(run_folder), run_folder)
    assert (run_folder / "notes.txt").read_text() == "mine"


def test_a_run_of_version_1_0_is_read_as_it_was_trained(run_folder):
    """Its config.json and its model.npz know nothing of the settings that came later."""
    run, later = cardkge.load_run(run_folder), ("schedule", "n3", "reciprocal", "softmax-candidates", "no-loops")
    later += ("final", "extra-negatives", "relation-weight")

    def without(settings):
        return {name: value for name, value in settings.items() if name not in later}

    rewrite(run_folder / "config.json", lambda config: config.update(settings=without(config["settings"])))
    with np.load(run_folder / "model.npz") as stored:
        arrays = dict(stored)
    state = json.loads(arrays["state"].tobytes())
    assert state["settings"].keys() > set(later)
    state["settings"] = without(state["settings"])
    np.savez(run_folder / "model.npz", **arrays | {"state": np.frombuffer(json.dumps(state).encode(), np.uint8)})
    assert_same_run(cardkge.load_run(run_folder), run)
    assert cardkge.load_run(run_folder).settings == run.settings


# --- another data set


def test_alignment_gives_the_ids_of_the_run(toy, run_folder):
    run = cardkge.load_run(run_folder)
    toy = dataclasses.replace(toy, entities=toy.entities[::-1], relations=["r2", "r0", "r1"])
    aligned = cardkge.align_dataset(toy, run)
    for (h, r, t), (a, b, c) in zip(toy.train, aligned.train, strict=True):
        assert run.entities[a] == toy.entities[h]
        assert run.relations[b] == toy.relations[r]
        assert run.entities[c] == toy.entities[t]


@pytest.mark.parametrize(("line", "named"), [("e0\tr0\tnew\n", "'new'"), ("e0\tq\te1\n", "'q'")])
def test_a_name_unknown_to_the_run_is_an_error(run_folder, line, named):
    data = run_folder.parent / "data"
    with open(data / "test.tsv", "a") as file:
        file.write(line)
    error = one_error(invoke("evaluate", run_folder))
    assert "unknown to the run: 1 " in error and f"({named})" in error
