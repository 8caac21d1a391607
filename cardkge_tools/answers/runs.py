"""Saved runs. A run is a folder.

model.npz is the state from which training continues, bit for bit. config.json holds settings and data; bounds.tsv and
history.csv hold what their names say. metrics.json holds the test metrics and calibration.json the calibration
(calibration.Calibration) of exactly the state in model.npz; either may be absent."""

import contextlib
import copy
import csv
import hashlib
import json
import os
import typing
import zipfile
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

import cardkge
from cardkge import MODELS, CardkgeError, Model, as_bounds, project_rows
from cardkge_tools import SPLITS
from cardkge_tools.answers.calibration import ANEW, Calibration, calibration_bytes, read_calibration
from cardkge_tools.definitions.settings import DIMS, OWN_DIM, Settings, fits, option_name
from cardkge_tools.engine.ranking import check_finite
from cardkge_tools.graph.bound_files import find_bounds
from cardkge_tools.graph.bounds import Bound, GraphBounds, Types, Vocabulary, read_tsv, read_types, tsv_text, types_text
from cardkge_tools.graph.graphs import describe_data, join_names, vocabulary_digest
from cardkge_tools.graph.rdf import Prefixes, prefixes_text, read_prefixes
from cardkge_tools.shell import files
from cardkge_tools.shell.files import REMEDY, json_bytes, read_json, replace_file

SINCE_1_0 = ["schedule", "n3", "reciprocal", "softmax_candidates", "no_loops", "final", "extra_negatives"]
SINCE_1_0 += ["relation_weight", "joined"]
FINAL_ANEW = "`train --final` with the run that it was made of, calibrated anew, makes it again"
OF_1_0 = {option_name(name): getattr(Settings(), name) for name in SINCE_1_0}  # settings absent from a run of 1.0.0


@dataclass
class Run:
    """A model in training, which `train` continues and `save_run` saves. `step` counts within an unfinished epoch."""

    settings: Settings
    entities: list[str]
    relations: list[str]
    model: Model
    accumulators: dict  # AdaGrad's, by parameter name; empty for SGD
    bounds: GraphBounds
    epoch: int = 0  # epochs completed
    step: int = 0  # steps completed of the next epoch
    partial: dict = field(default_factory=dict)  # sums over those steps
    history: list = field(default_factory=list)  # a dict for each epoch
    best: dict | None = None  # with validation: epoch, mrr, hits@10, params
    metrics: dict | None = None  # on test: {"filtered": metrics_by_side, "raw": metrics_by_side}
    data: dict = field(default_factory=dict)  # `describe_data` of its training data
    calibration: Calibration | None = None  # how its scores become probabilities
    types: Types = field(default_factory=Types)  # classes of the entities
    prefixes: Prefixes = field(default_factory=Prefixes)  # of the IRIs that the names stand for
    notes: tuple = ()  # remarks on the bounds of a new run

    def best_model(self):
        """The model at its best validation, or in its present state without validations."""
        if self.best is None:
            return self.model
        model = copy.copy(self.model)
        model.params = self.best["params"]
        return model


def new_model(settings, n_entities, n_relations, initialise=True):
    """The model that the settings name, initialised from their seed, or without parameters. Under softmax the rows of
    DistMult and ComplEx begin as 1e-3 N(0, 1) (Lacroix et al. 2018)."""
    options = {"hidden": settings.hidden} if settings.model == "ermlp" else {}
    own = settings.model not in DIMS
    options |= {"dim": settings.dim or DIMS.get(settings.model, OWN_DIM), "dtype": settings.dtype}
    options |= {"reciprocal": True} if settings.reciprocal else {}  # a user's own class need not take it
    rng = np.random.default_rng([settings.seed, 0]) if initialise else None
    small = settings.loss == "softmax" and settings.model != "ermlp" and not own
    model = MODELS[settings.model](n_entities, n_relations, seed=None if small else rng, **options)
    if own and model.shapes["relation"][0] != (1 + bool(settings.reciprocal)) * n_relations:
        raise CardkgeError(f"{settings.model[1:]}.shapes has no rows for reciprocal relations: use --no-reciprocal")
    if small and initialise:
        for name, shape in model.shapes.items():
            model.params[name] = (1e-3 * rng.standard_normal(shape)).astype(model.dtype)
    return model


def new_run(settings, dataset, bounds=None):
    """A run before its first step: parameters initialised, entity rows projected. bounds: Bounds, or (R, 2); None: as
    the settings name them. The settings not given follow from the loss and the sizes of the graph."""
    settings = settings.resolved(dataset.n_entities, dataset.n_relations, len(dataset.train))
    model = new_model(settings, dataset.n_entities, dataset.n_relations)
    model.vocabulary = vocabulary_digest(dataset.entities, dataset.relations)
    if settings.project == "unit":
        project_rows(model.params["entity"])
    accumulators = {}
    if settings.optimizer == "adagrad":
        accumulators = {name: np.full_like(array, settings.accumulator) for name, array in model.params.items()}
    notes, graph = (), Vocabulary.of(dataset)
    if bounds is None:
        bounds, notes = find_bounds(settings.bounds, dataset)
    elif not isinstance(bounds, GraphBounds):
        bounds = GraphBounds.named(as_bounds(bounds, dataset.n_relations), graph)
    names = dataset.entities, dataset.relations
    more = {"types": graph.types, "prefixes": graph.prefixes, "notes": tuple(notes)}
    return Run(settings, *names, model, accumulators, bounds, data=describe_data(dataset), **more)


def is_run(folder):
    """Whether the folder holds a run, perhaps a damaged one: its config.json or model.npz is one of ours."""
    with contextlib.suppress(CardkgeError):
        config = read_json(Path(folder) / "config.json")
        return "format_version" in config and "settings" in config
    with contextlib.suppress(CardkgeError):
        return "state" in _read_arrays(Path(folder) / "model.npz")
    return False


def save_run(run, folder):
    """Writes the run to its folder, which is made if need be; other files there stay as they are.

    Either all files are written or none (`replace_files`): a full disk leaves the old state whole. The bytes of
    model.npz depend on the settings and the state alone, not on time or place (in mid-epoch they hold the seconds that
    the epoch took so far). CardkgeError where a parameter is not finite."""
    check_finite(run.model.params)
    folder = Path(folder)
    contents = {"history.csv": _history_text(run.history).encode(), "config.json": json_bytes(_config(run))}
    if run.metrics is not None:
        contents["metrics.json"] = json_bytes(run.metrics)
    if run.calibration is not None:
        contents["calibration.json"] = calibration_bytes(run.calibration, run.relations, _kept_epoch(run))
    contents |= _texts(run)
    writes = {name: lambda file, content=content: file.write(content) for name, content in contents.items()}

    def check(stage):
        *_, bounds = _read_texts(stage, run.entities, run.relations)
        if bounds_digest(bounds) != bounds_digest(run.bounds):
            raise CardkgeError(f"{folder}: the run is not saved, for its bounds are not read back as they were written")

    # not compressed: trained parameters barely shrink
    files.replace_files(folder, {"model.npz": lambda file: np.savez(file, **_arrays(run))} | writes, check)


def save_metrics(run, folder):
    """Writes metrics.json of a run whose other files are saved."""
    replace_file(Path(folder) / "metrics.json", lambda file: file.write(json_bytes(run.metrics)))


def save_calibration(run, folder):
    """Writes calibration.json of a run whose other files are saved."""
    content = calibration_bytes(run.calibration, run.relations, _kept_epoch(run))
    replace_file(Path(folder) / "calibration.json", lambda file: file.write(content))


def _kept_epoch(run):
    """The epoch of `best_model`."""
    return run.best["epoch"] if run.best else run.epoch


def load_run(folder, calibrated=True):
    """The Run that save_run wrote; calibrated=False: without its calibration, which may be damaged. CardkgeError, which
    names the file, for every fault.

    Nothing is unpickled. Arrays keep their dtype and every bit."""
    folder = Path(folder)
    if not os.path.isdir(folder):  # unlike Path's, these take an unreadable path for an absent one
        found = "is a file, not the folder of a run" if os.path.exists(folder) else "no such run"
        raise CardkgeError(f"{folder}: {found}; give a folder that train has written")
    if not os.path.exists(folder / "config.json"):
        raise CardkgeError(f"{folder}: not a run, for it has no config.json; give a folder that train has written")
    files.remove_stages(folder)
    settings, data = read_config(folder)
    path = folder / "model.npz"
    arrays = _read_arrays(path)
    state = _parse_state(path, arrays, settings)
    if state.get("data", data["sha256"]) != data["sha256"]:
        raise CardkgeError(f"{path}: of other data than config.json says; a save was cut short; {REMEDY}")
    entities, relations = (_split_names(path, arrays, kind, data[kind]) for kind in ("entities", "relations"))
    groups = {"params": {}, "accumulators": {}, "best": {}}
    for name, array in arrays.items():
        group, _, key = name.partition(".")
        if group in groups:
            groups[group][key] = array
    model = new_model(settings, len(entities), len(relations), initialise=False)
    wanted = {"params": True, "accumulators": settings.optimizer == "adagrad", "best": state["best"]}
    for group, there in wanted.items():
        _check_arrays(path, group, groups[group], model.shapes if there else {}, model.dtype)
    model.params, model.vocabulary = groups["params"], vocabulary_digest(entities, relations)
    best = {**state["best"], "params": groups["best"]} if state["best"] else None
    try:
        types, prefixes, bounds = _read_texts(folder, entities, relations)
    except CardkgeError as error:
        raise CardkgeError(f"{error}; {REMEDY}") from error
    if bounds_digest(bounds) != state.get("bounds"):
        raise CardkgeError(f"{folder / 'bounds.tsv'}: not the bounds that the run was trained with; {REMEDY}")
    more = {"data": data, "best": best, "types": types, "prefixes": prefixes}
    run = Run(settings, entities, relations, model, groups["accumulators"], bounds, **more)
    run.epoch, run.step, run.partial = (state[name] for name in ("epoch", "step", "partial"))
    run.history = read_history(folder / "history.csv", run.epoch)
    if (folder / "metrics.json").exists():
        run.metrics = read_json(folder / "metrics.json")
    if calibrated:
        load_calibration(run, folder)
    return run


def load_calibration(run, folder):
    """Reads the calibration of a run that was loaded without it; CardkgeError as in `load_run`."""
    try:
        run.calibration = read_calibration(Path(folder) / "calibration.json", run.relations, _kept_epoch(run))
    except CardkgeError as error:  # `calibrate` refuses a final run
        raise CardkgeError(str(error).replace(ANEW, FINAL_ANEW) if run.settings.final else str(error)) from error


def valid_times(run):
    """For each validation: epoch, seconds of training until then, and filtered MRR and hits@10 on valid."""
    seconds = np.cumsum([record["seconds"] for record in run.history])
    return [
        (record["epoch"], float(second), record["valid_mrr"], record["valid_hits@10"])
        for record, second in zip(run.history, seconds, strict=True)
        if "valid_mrr" in record
    ]


def _settings_dict(run):
    """The settings under their command-line names, dim resolved."""
    return {option_name(f.name): getattr(run.settings, f.name) for f in fields(Settings)} | {"dim": run.model.dim}


def _config(run):
    """The content of config.json."""
    made_by = {"format_version": files.FORMAT_VERSION, "program": f"cardkge {cardkge.__version__}"}
    return made_by | {"settings": _settings_dict(run), "data": run.data, "epoch": run.epoch}


def _fixed(settings):
    """The settings that a resumed run must keep. epochs may grow, and the data may move."""
    return {name: value for name, value in settings.items() if name not in ("epochs", "data", "patience")}


def _arrays(run):
    """The members of model.npz."""
    best = dict(run.best or {})
    at_best = best.pop("params", {})
    state = {"format_version": files.FORMAT_VERSION, "settings": _fixed(_settings_dict(run))}
    state |= {"epoch": run.epoch, "step": run.step, "partial": run.partial, "best": best or None}
    state |= {"data": run.data.get("sha256"), "bounds": bounds_digest(run.bounds)}
    arrays = {"state": np.frombuffer(json_bytes(state), dtype=np.uint8)}
    arrays |= {"entities": join_names(run.entities), "relations": join_names(run.relations)}
    groups = {"params": run.model.params, "accumulators": run.accumulators, "best": at_best}
    for group, members in groups.items():
        for name, array in sorted(members.items()):
            arrays[f"{group}.{name}"] = np.ascontiguousarray(array)
    return arrays


def bounds_digest(bounds):
    """A digest of the bounds (R, 2) of every head, and of those of classes and inverses."""
    digest = hashlib.sha256(np.ascontiguousarray(bounds.tables[0], "<f8"))
    digest.update(tsv_text(bounds.special).encode())
    return digest.hexdigest()


def _texts(run):
    """The files of a run about its graph, name -> bytes: bounds, and classes and prefixes if any."""
    plain = [Bound(name, *row) for name, row in zip(run.relations, run.bounds.tables[0].tolist(), strict=True)]
    texts = {"bounds.tsv": tsv_text([*plain, *run.bounds.special])}
    if run.types.classes:
        texts["types.tsv"] = types_text(run.types, run.entities)
    if run.prefixes.namespaces:
        texts["prefixes.tsv"] = prefixes_text(run.prefixes)
    return {name: text.encode() for name, text in texts.items()}


def _read_texts(folder, entities, relations):
    """(Types, Prefixes, GraphBounds) of the files that `_texts` makes. A class that is not in types.tsv has no member
    among the entities, but may have bounds."""
    types, prefixes = read_types(folder / "types.tsv", entities), read_prefixes(folder / "prefixes.tsv")
    stated = read_tsv(folder / "bounds.tsv", Vocabulary(entities, relations, None))
    return types, prefixes, GraphBounds(stated, relations, types, entities)


def _split_names(path, arrays, kind, count):
    """The names that `join_names` joined; CardkgeError where their number is not the expected one."""
    try:
        names = arrays[kind].tobytes().decode().split("\n")
    except (KeyError, UnicodeDecodeError) as error:
        raise CardkgeError(f"{path}: it holds no readable {kind}; {REMEDY}") from error
    if len(names) != count or len(set(names)) != count:
        raise CardkgeError(f"{path}: it names {len(set(names))} {kind}, config.json counts {count}; {REMEDY}")
    return names


def read_config(folder):
    """The Settings of a saved run, and the `describe_data` of its data. CardkgeError as `load_run`."""
    path = Path(folder) / "config.json"
    config = read_json(path)
    files.check_version(path, config.get("format_version"))
    parts = [config.get("settings"), config.get("data")]
    kinds = typing.get_type_hints(Settings)
    sizes = dict.fromkeys(("entities", "relations", *SPLITS), int)
    wanted = [{option_name(name): kinds[name] for name in kinds}, {"sha256": str, **sizes}]
    if isinstance(parts[0], dict):
        parts[0] = OF_1_0 | parts[0]
    for part, found, expected in zip(("settings", "data"), parts, wanted, strict=True):
        if not isinstance(found, dict):
            raise CardkgeError(f"{path}: it has no object {part!r}; {REMEDY}")
        for name in sorted((found.keys() ^ expected.keys()) - {"facts"}):  # absent from runs of version 1.0
            fault = "unknown" if name in found else "missing"
            raise CardkgeError(f"{path}: {name!r} in {part!r} is {fault}; {REMEDY}")
        for name, kind in expected.items():
            if not fits(found[name], kind):
                kind = getattr(kind, "__name__", kind)
                raise CardkgeError(f"{path}: {name!r} is {found[name]!r}, expected {kind}; {REMEDY}")
    try:
        settings = Settings(**{name: parts[0][option_name(name)] for name in kinds})
    except CardkgeError as error:
        raise CardkgeError(f"{path}: {error}") from error
    return settings, parts[1]


def _read_arrays(path):
    """The arrays of an npz file, by name; CardkgeError for any fault."""
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as stored:  # np.load alone takes more than zip
            return {name: stored[name] for name in stored.files}
    # zip, zlib, header, memory and object faults raise a dozen unrelated classes
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise CardkgeError(f"{path}: cannot be read ({reason}); {REMEDY}") from error


def _parse_state(path, arrays, settings):
    """The member `state` of model.npz, its types checked."""
    try:
        state = json.loads(arrays["state"].tobytes().decode())
        files.check_version(path, state["format_version"])
        best = state["best"]
        counts = [state["epoch"], state["step"], *([best["epoch"]] if best else [])]
        floats = [*state["partial"].values(), *(best.values() if best else [])]
        if not all(type(n) is int and n >= 0 for n in counts):
            raise ValueError("a count is no whole number")
        if not all(fits(x, float) for x in floats):
            raise ValueError("a sum is no number")
        stored = OF_1_0 | state["settings"]
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CardkgeError(f"{path}: its state is damaged ({' '.join(str(error).split())}); {REMEDY}") from error
    given = {option_name(f.name): getattr(settings, f.name) for f in fields(Settings)}
    for name, value in _fixed(given).items():
        if stored.get(name) != value:
            differs = f"trained with {name} = {stored.get(name)!r}, but config.json says {value!r}"
            raise CardkgeError(f"{path}: {differs}; correct config.json, or remove its folder and train again")
    return state


def _check_arrays(path, group, arrays, shapes, dtype):
    """Refuse arrays that are not those of the model: names, shapes, dtype, finite parameters."""
    for name in sorted(arrays.keys() | shapes.keys()):
        found = arrays.get(name)
        if found is None or name not in shapes:
            fault = "missing" if found is None else "unexpected"
        elif found.shape != shapes[name] or found.dtype != dtype:
            fault = f"{found.dtype} {found.shape}, expected {np.dtype(dtype)} {shapes[name]}"
        else:
            continue
        raise CardkgeError(f"{path}: {group}.{name} is {fault}; {REMEDY}")
    if group != "accumulators":  # an overflow may have left these infinite, which does no other harm
        check_finite(arrays, f"{path}: {group}")


def _history_text(history):
    """history.csv: a line for each epoch; columns in order of first appearance, empty where absent."""
    columns = list(dict.fromkeys(["epoch", *(name for record in history for name in record)]))
    rows = [{name: int(x) if name == "epoch" else float(x) for name, x in record.items()} for record in history]
    return files.csv_text(columns, rows)


def read_history(path, epochs):
    """The records of the first `epochs` epochs: the file may be ahead of model.npz, see save_run."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
        for at, row in enumerate(rows, 2):
            if None in row.values():
                raise ValueError(f"line {at} is cut short")
        rows = [{name: float(x) for name, x in row.items() if x != ""} for row in rows]
        history = [{**row, "epoch": int(row["epoch"])} for row in rows if row["epoch"] <= epochs]
        if [record["epoch"] for record in history] != list(range(1, epochs + 1)):
            raise ValueError(f"expected the epochs 1 to {epochs}")
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise CardkgeError(f"{path}: cannot be read ({reason}); {REMEDY}") from error
    return history
