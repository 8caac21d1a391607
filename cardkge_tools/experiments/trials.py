"""Trials: from settings to folders to outcomes; and grids of trials."""

import contextlib
import functools
import itertools
import os
import re
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from cardkge import HITS, CardkgeError, is_bounded
from cardkge_tools.answers.runs import read_config, read_history
from cardkge_tools.definitions.settings import DIMS, Settings, fits, option_name
from cardkge_tools.engine.batches import count_cores
from cardkge_tools.engine.training import best_first
from cardkge_tools.experiments.reports import show_metrics
from cardkge_tools.graph.bound_files import find_bounds
from cardkge_tools.graph.bounds import Vocabulary, read_tsv
from cardkge_tools.graph.graphs import describe_data, facts_digest, load_dataset, open_data, same_facts
from cardkge_tools.shell.download import dataset_table
from cardkge_tools.shell.files import REMEDY, csv_text, made_folder, read_json, read_toml, replace_file, write_report
from cardkge_tools.shell.options import checked_settings, idle_options, train_context
from cardkge_tools.shell.terminal import say, table, warn
from cardkge_tools.shell.workers import VIOLATIONS, carry_out, commands_of, this_program

LONGEST_NAME = 240  # bytes of UTF-8 of a folder's name, before a checksum; file systems take 255


@dataclass(frozen=True)
class Place:
    """Where runs take place: in folders under `out`, `jobs` at a time with `threads` each (None: they share the cores),
    or on the workers of a Dask `cluster`, an address."""

    out: Path
    jobs: int = 1
    threads: int | None = None
    cluster: str | None = None


def make_trial(options, where):
    """The settings of a run that differ from `train`'s defaults, and data, model and seed: parameter name -> value,
    checked and typed as by `train`. options: option name without dashes -> value; `where` begins a usage error."""
    with located(where):
        settings = vars(checked_settings(train_context(options)))
    softmax = settings["loss"] == "softmax"
    if settings["dim"] == DIMS[settings["model"]] and not softmax:
        settings["dim"] = None
    usual = vars(Settings(loss=settings["loss"])) | {"loss": Settings().loss}  # softmax has defaults of its own
    always = "data", "model", "seed"
    return {name: value for name, value in settings.items() if name in always or value != usual[name]}


@contextlib.contextmanager
def located(where):
    """Puts `where` before usage errors."""
    try:
        yield
    except click.UsageError as error:
        raise click.UsageError(f"{where}: {error.format_message()}") from None


def trial_name(trial):
    """The name of a trial's folder: data, model, the settings that differ from the defaults, and the seed."""
    words = {"data": [entry["name"] for entry in dataset_table()], "bounds": ["none", "mined"]}

    def text(name):
        value = trial[name]
        if isinstance(value, float):
            value += 0.0  # not -0
            return short if float(short := f"{value:.15g}") == value else repr(value)
        if value in words.get(name, [value]):
            return str(value)
        path = Path(value).resolve()  # a path's last part, and a checksum of what is there
        return re.sub(r"[^\w.-]", "_", path.name) + f"~{content_checksum(str(path), trial.get('columns', 'hrt'))}"

    others = [name for name in trial if name not in ("data", "model", "seed")]
    settings = [f"{option_name(name)}={text(name)}" for name in (*others, "seed")]
    name = ",".join([text("data"), text("model"), *settings])
    if len(name.encode()) > LONGEST_NAME:
        name = f"{name.encode()[:LONGEST_NAME].decode(errors='ignore')}~{checksum(name)}"
    return name


def checksum(text):
    """Eight hexadecimal digits that tell one text from another."""
    return f"{zlib.crc32(os.fsencode(text)):08x}"


@functools.lru_cache(maxsize=64)
def content_checksum(path, columns):
    """Eight hexadecimal digits of a data set's triples or a file's bytes; of the path where nothing can be read."""
    try:
        if os.path.isdir(path):
            return facts_digest(load_dataset(path, columns, download=False))[:8]
        return f"{zlib.crc32(Path(path).read_bytes()):08x}"
    except (OSError, CardkgeError):
        return checksum(path)


def trial_task(trial, out, bounds=None):
    """The task for `perform`, of plain values, as another machine may do it; with `bounds` it takes violations too."""
    folder, settings, data = os.path.join(os.path.abspath(out), trial_name(trial)), [], ["--data", trial["data"]]
    for name, value in trial.items():
        flag = f"--{option_name(name)}"
        if value is False:
            settings += ["--no-reciprocal"] if name == "reciprocal" else []
        else:
            settings += [flag] if value is True else [flag, str(value)]
    file = os.path.join(folder, VIOLATIONS)
    return {
        "folder": folder,
        "train": ["train", *settings, "--no-calibrate", "--out", folder],
        "resume": ["train", "--resume", *data, "--no-calibrate", "--out", folder],
        "violations": bounds and ["violations", folder, *data, "--bounds", bounds, "--json", file],
        **this_program(),
    }


def read_outcome(folder):
    """The outcome of a finished run, its parameters unread: {"epoch": the kept one, "valid": {"mrr", "hits@10"} there,
    or None without validation, "test": as in metrics.json, "seconds": of training}. CardkgeError as `load_run` raises
    it, and for a run that has not finished."""
    folder = Path(folder)
    test, epochs = read_json(folder / "metrics.json"), read_json(folder / "config.json").get("epoch")
    if type(epochs) is not int:
        raise CardkgeError(f"{folder / 'config.json'}: 'epoch' is {epochs!r}, expected int; {REMEDY}")
    history = read_history(folder / "history.csv", epochs)
    wanted, file = {"mrr", "mean_rank", *(f"hits@{n}" for n in HITS)}, "metrics.json"
    try:
        for setting in ("filtered", "raw"):
            if not all(fits(test[setting]["both"][name], float) for name in wanted):
                raise TypeError(f"{setting} metrics are no numbers")
        file = "history.csv"
        seconds = sum(record["seconds"] for record in history)
        validated = [record for record in history if "valid_hits@10" in record]
        order = best_first(read_json(folder / "config.json")["settings"]["loss"])
        both = "mrr", "hits@10"
        best = max(validated, key=lambda record: order({m: record[f"valid_{m}"] for m in both}), default=None)
    except (KeyError, TypeError) as error:
        raise CardkgeError(f"{folder / file}: damaged ({error}); {REMEDY}") from error
    epoch, valid = best["epoch"] if best else len(history), best and {m: best[f"valid_{m}"] for m in both}
    return {"epoch": epoch, "valid": valid, "test": test, "seconds": seconds}


def read_violations(path):
    """The violations of one run, as `violations RUN --json` writes them: relation -> {"lower", "upper" (inf for null),
    "subjects", "outside", "mean"}."""
    try:
        (found,) = read_json(Path(path)).values()
        parts = {relation: dict(v, upper=np.inf if v["upper"] is None else v["upper"]) for relation, v in found.items()}
        names = "lower", "upper", "subjects", "outside", "mean"
        return {relation: {name: float(v[name]) for name in names} for relation, v in parts.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CardkgeError(f"{path}: not the violations of one run; remove this file") from error


def average_sum(violations):
    """The mean over the relations of the mean X_hr of each (the paper's Figure 3)."""
    return float(np.mean([v["mean"] for v in violations.values()]))


def run_trials(trials, place, bounds=None):
    """Does at a Place what the trials still need. Returns their outcomes, None for a trial that failed, and the errors:
    name of the trial -> line. An outcome is that of `read_outcome`; where bounds(trial) names bounds it has
    "violations" too, those of `read_violations`."""
    tasks, expected, datasets = {}, {}, {}
    for trial in trials:
        source = trial["data"], trial.get("columns", "hrt")
        if source not in datasets:
            dataset = open_data(*source)
            datasets[source] = dataset, describe_data(dataset)
        dataset, data = datasets[source]
        task = tasks[trial_name(trial)] = trial_task(trial, place.out, bounds and bounds(trial))
        its_bounds, _ = find_bounds(trial.get("bounds", "none"), dataset)
        reported = bounds and reported_bounds(bounds(trial), dataset)
        expected[task["folder"]] = trial, dataset.relations, data, its_bounds, reported
    del datasets, dataset  # their memory is for the runs
    with made_folder(place.out):
        for folder, its in expected.items():
            if os.path.exists(os.path.join(folder, "config.json")):
                check_trial(Path(folder), *its)
        missing = [task for task in tasks.values() if commands_of(task)]
        if len(missing) < len(tasks):
            say(f"{len(tasks) - len(missing)} of {len(tasks)} runs are in {place.out} already", err=True)
        failed = {}
        if missing:
            jobs = min(place.jobs, len(missing))
            threads = place.threads or (1 if place.cluster else max(1, count_cores() // jobs))
            failed = carry_out(missing, jobs, threads, place.cluster)
    outcomes = {}
    for name in tasks.keys() - failed.keys():
        folder = Path(tasks[name]["folder"])
        if not folder.is_dir():
            failed[name] = f"a worker has run it, but {folder} is not here: do the workers share these files?"
            continue
        try:
            outcomes[name] = read_outcome(folder)
            if bounds:
                outcomes[name]["violations"] = read_violations(folder / VIOLATIONS)
        except CardkgeError as error:
            failed[name] = str(error)
            warn(error)
    failed = {name: text.replace("--force replaces it", "remove it to try again") for name, text in failed.items()}
    return [outcomes.get(trial_name(trial)) for trial in trials], failed


def reported_bounds(name, dataset):
    """The bounds that `violations` reports on: relation -> [lower, upper], of bounded relations that have heads."""
    limits, of_train = find_bounds(name, dataset)[0].tables[0], dataset.train[:, 1]
    bounded = is_bounded(limits).nonzero()[0]
    return {dataset.relations[r]: limits[r].tolist() for r in bounded if (of_train == r).any()}


def said(bounds):
    """The set of (*key, lower, upper) of the bounds that exclude some number."""
    return {(*b.key, b.lower, b.upper) for b in bounds if b.lower > 0 or b.upper < float("inf")}


def check_trial(folder, trial, relations, data, bounds, reported):
    """CardkgeError if the run in the folder, finished or not, has other settings, data or bounds than the trial would
    have. Removes violations of other bounds than the `reported` ones (None: keeps them), to be taken again."""
    settings, its_data = read_config(folder)
    if not same_facts(its_data, data):
        raise CardkgeError(f"{folder}: trained on other data than {trial['data']} is now; remove this folder")
    wanted = Settings(**trial).resolved(its_data["entities"], its_data["relations"], its_data["train"])
    wanted = replace(wanted, dim=wanted.dim or DIMS[wanted.model])
    for name, value in vars(wanted).items():
        found = getattr(settings, name)
        if name not in ("data", "bounds") and found != value:
            option = "--" + option_name(name)
            raise CardkgeError(f"{folder}: trained with {option} {found}, not {value}; remove this folder")
    file = folder / "bounds.tsv"
    if file.exists() and said(read_tsv(file, Vocabulary(None, relations, None))) != said(bounds.listed()):
        now = trial.get("bounds", "none")
        raise CardkgeError(f"{folder}: trained with other bounds than {now} now; remove this folder")
    if reported is not None and (folder / VIOLATIONS).exists():
        found = read_violations(folder / VIOLATIONS)
        if {relation: [v["lower"], v["upper"]] for relation, v in found.items()} != reported:
            (folder / VIOLATIONS).unlink()


def read_grid(path, grid):
    """(fixed options, name -> value; the grid, name -> values) of a TOML file and of texts NAME=V,V,..."""
    fixed, axes = {}, {}
    if path:
        fixed = read_toml(path)
        axes = fixed.pop("grid", {})
        if not isinstance(axes, dict):
            raise CardkgeError(f"{path}: grid must be one table [grid], of lists of values")
        for name, values in axes.items():
            if not isinstance(values, list) or not values:
                raise CardkgeError(f"{path}: {name} must be a list of values, in the table [grid]")
        for name, value in fixed.items():
            if isinstance(value, dict):
                raise CardkgeError(f"{path}: [{name}] is unknown; the one table of the file is [grid]")
            if isinstance(value, list):
                raise CardkgeError(f"{path}: {name} has several values; put it into the table [grid]")
    for text in grid:
        name, equals, values = text.partition("=")
        if not (name and equals and all(values.split(","))):
            raise click.UsageError(f"--grid {text}: expected NAME=VALUE,VALUE,...")
        if name in axes:
            raise click.UsageError(f"--grid {text}: {name} is in the grid twice.")
        axes[name] = values.split(",")
    if not axes:
        raise click.UsageError("Nothing to try: give --grid NAME=V,V,... or --file with a table [grid].")
    return fixed, axes


def validated_trial(options, where):
    """`make_trial`, with a validation after the last epoch unless the options ask for others; a usage error where no
    validation would be left."""
    trial = make_trial(options, where)
    epochs = Settings(**trial).epochs
    if trial.get("loss") == "softmax" and trial.get("validate_every") is None:
        return trial  # the sizes of the graph decide when, and always give one
    if epochs is None:  # the sizes of the graph decide how many
        if trial["validate_every"] == 0:
            raise click.UsageError(f"{where}: --validate-every 0 leaves no validation to choose by.")
        return trial
    if not trial.get("validate_every"):
        trial = make_trial(options | {"validate-every": epochs}, where)
    every = trial.get("validate_every", 0)
    if not 0 < every <= epochs:
        remedy = f"raise --epochs or lower --validate-every ({every})"
        raise click.UsageError(f"{where}: no validation in {epochs} epochs to choose by; {remedy}.")
    return trial


def search(grid, grid_file, given, place, json_file=None):
    """`tune`: every combination of a grid, the best on valid shown first; trials.csv in the Place's folder has all.

    grid: texts NAME=V,V,...; grid_file: a TOML file or None; given: options of the command line, name -> value."""
    out, (fixed, axes) = place.out, read_grid(grid_file, grid)
    if grid_file:
        with located(grid_file):
            train_context(fixed)
    fixed |= given
    for name in axes.keys() & {"data", "columns"}:
        raise click.UsageError(f"{name} is in the grid, but runs on different data cannot be compared.")
    for name in fixed.keys() & axes.keys():
        raise click.UsageError(f"{name} is in the grid and fixed too; leave one of them out.")
    trials = plan_trials(grid_file, fixed, axes)
    outcomes, failed = run_trials([trial for _, trial in trials.values()], place)
    outcomes = dict(zip(trials, outcomes, strict=True))
    for name, outcome in outcomes.items():
        if outcome and outcome["valid"] is None:
            failed[name], outcomes[name] = "no validation in all of its epochs; lower --validate-every", None

    def valid(name):  # this alone decides; the first in the grid wins a tie
        return (outcomes[name]["valid"]["hits@10"], outcomes[name]["valid"]["mrr"]) if outcomes[name] else (-1, -1)

    rows, lines = [], []
    ranked = sorted(trials, key=valid, reverse=True)
    for name in ranked:
        combination, found, shown = trials[name][0], {}, ["failed", "", "", ""]
        if outcome := outcomes[name]:
            found = outcome["valid"] | {"epoch": outcome["epoch"], "seconds": round(outcome["seconds"], 3)}
            shown = [f"{100 * x:.2f}" for x in valid(name)] + [str(found["epoch"]), f"{found['seconds']:.1f}"]
        rows.append({**combination, **found, "run": name, "failure": failed.get(name, "")})
        lines.append([*map(str, combination.values()), *shown])
    text = csv_text([*axes, "hits@10", "mrr", "epoch", "seconds", "run", "failure"], rows)
    content = text.encode(errors="backslashreplace")
    with made_folder(out):  # again, for it was removed if no run wrote anything
        replace_file(out / "trials.csv", lambda file: file.write(content))
    best = ranked[0]
    test = outcomes[best]["test"] if outcomes[best] else None
    report = {"trials": rows, "chosen": str(out / best) if test else None, "test": test}
    if print_tables := write_report(json_file, report):
        table(lines, [*axes, "valid hits@10 %", "MRR %", "epoch", "seconds"], "l" * len(axes))
    if test is None:
        raise CardkgeError(f"all {len(trials)} runs failed; {best}: {failed[best]}")
    if print_tables:
        click.echo(f"\nchosen: {out / best}")
        show_metrics([([setting], sides["both"]) for setting, sides in test.items()], ["test"])
    if failed:
        name, text = next(iter(failed.items()))
        raise CardkgeError(f"{len(failed)} of {len(trials)} runs failed; {name}: {text}")


def plan_trials(grid_file, fixed, axes):
    """Every combination of the axes (name -> values) with the fixed options: name of the trial -> (combination, trial).
    Warns of options that make no difference to any of them."""
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    trials, different = {}, {}
    for combination in combinations:
        where = f"{grid_file}: " if grid_file else ""
        where += ", ".join(f"{name}={value}" for name, value in combination.items())
        trial = validated_trial(fixed | combination, where)
        name = trial_name(trial)
        if name in trials:
            raise click.UsageError(f"{where}: the same run is in the grid twice.")
        settings = Settings(**trial)
        messages = idle_options(settings, fixed | axes)
        idle = {message.split()[0] for message in messages if "makes no difference" in message}
        effective = tuple((key, value) for key, value in vars(settings).items() if f"--{option_name(key)}" not in idle)
        if effective in different:
            warn(f"{where}: the same run as {different[effective]}; it is done once")
            continue
        different[effective] = where
        trials[name] = combination, trial
    idle = [idle_options(Settings(**trial), fixed | axes) for _, trial in trials.values()]
    warn(*(message for message in idle[0] if all(message in messages for messages in idle)))
    return trials
