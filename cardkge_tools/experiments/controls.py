"""Controls of the regulariser: what it gains with the right bounds, with wrong ones, and with none."""

import re
from dataclasses import replace

import numpy as np

from cardkge import batch_limits, bounded_relations, corruptions, draw_samples, mine_bounds, objective, training_bounds
from cardkge_tools.answers.opening import open_run
from cardkge_tools.experiments.statistics import amount, estimate, percent
from cardkge_tools.experiments.trials import trial_name
from cardkge_tools.graph.bound_files import write_bounds
from cardkge_tools.graph.graphs import open_data
from cardkge_tools.shell.files import made_folder
from cardkge_tools.shell.options import MODEL_TITLES

L2 = (0.0001, 0.001, 0.01)  # of which valid chooses
NO_BOUNDS, EXTRA = "none", "none; extra negatives"


def wrong_bounds(mined):
    """Bounds (R, 2) to give in place of the mined ones: name of the control -> (R, 2) float64."""
    return {
        "mined, permuted": np.roll(mined, 1, axis=0),  # each relation has those of the one before
        "[0, 0]": np.zeros_like(mined),
        "mined, uppers x 3": mined * [1, 3],
    }


def control_bounds(plan, data):
    """Name of the control -> what --bounds takes; the files are written into the folder of the runs. "true" is
    bounds.tsv of the data's folder, where there is one."""
    dataset, folder = open_data(data, "hrt"), plan.run_options["out"] / "bounds"
    true = dataset.folder / "bounds.tsv"
    given = {"true": str(true)} if true.is_file() else {}
    given["mined"] = "mined"
    mined = mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations)
    with made_folder(folder):
        for name, bounds in wrong_bounds(mined).items():
            path = folder / (re.sub(r"\W+", "-", f"{data} {name}").strip("-") + ".tsv")
            write_bounds(path, bounds, dataset.relations)
            given[name] = str(path)
    return given


def control_options(given, regulariser):
    """Name of the row -> the options that a run has beside those of a plain one."""
    sampled = {name: value for name, value in regulariser.items() if name != "bounds"}
    options = {NO_BOUNDS: {}} | {f"none; L2 {weight:g}": {"l2": weight} for weight in L2}
    options |= {name: regulariser | {"bounds": bounds} for name, bounds in given.items()}
    return options | {EXTRA: sampled | {"extra-negatives": True}}


def gradient_share(run, dataset):
    """|lambda d sum G| / (|d loss| + |lambda d sum G|), norms over all parameters of the kept model, for a batch of its
    training; the extra negatives stand in place of G where the run has these."""
    settings, model, rng = run.settings, run.best_model(), np.random.default_rng(run.settings.seed)
    limits = training_bounds(run.bounds, settings, model.n_relations)
    last = batch_limits(len(dataset.train), settings)[1]
    triples = dataset.train[rng.permutation(len(dataset.train))[:last]]
    ends = corruptions(rng, triples, settings.negatives, model.n_entities)
    relations = np.repeat(triples[:, 1:2], ends.shape[1], axis=1)
    batch = model, ends[..., 0], relations, ends[..., 1]
    samples = draw_samples(rng, dataset.train, bounded_relations(limits), model.n_entities, settings)
    plain = replace(settings, l2=0.0)
    _, without = objective(*batch, plain)
    _, with_penalty = objective(*batch, plain, limits, samples)
    loss = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in without.values()))
    penalty = np.sqrt(
        sum(float(((g - without[name]).astype(np.float64) ** 2).sum()) for name, g in with_penalty.items())
    )
    return penalty / (loss + penalty)


def share_cell(plan, trial):
    """`gradient_share` of a finished run, in percent, for a table."""
    return f"{100 * gradient_share(*open_run(plan.run_options['out'] / trial_name(trial), trial['data'])):.1f}"


def control_rows(plan, data, model):
    """The rows of one data set and one model."""
    given = control_bounds(plan, data)
    true = given.get("true", "mined")
    options = control_options(given, plan.recipe(data, model)["regulariser"])
    keys = [(name, seed) for name in options for seed in plan.seeds]
    trials = {key: plan.trial(data, model, "plain", key[1], options[key[0]]) for key in keys}
    found = plan.outcomes(trials, lambda trial: true)
    of = {name: [found[name, seed] for seed in plan.seeds] for name in options}

    def valid(name):
        return float(np.mean([outcome["valid"]["hits@10"] for outcome in of[name]]))

    decayed = [name for name in options if "L2" in name]
    chosen = max(decayed, key=valid)
    plan.notes.append(
        f"{data}, {MODEL_TITLES[model]}: violations are of the {'true' if 'true' in given else 'mined'} bounds; "
        "hits@10 % on valid: " + ", ".join(f"{name} {100 * valid(name):.2f}" for name in options)
    )
    rows, start = [], [data, MODEL_TITLES[model]]
    for name in options:
        if name in decayed and name != chosen:
            continue
        share = ""
        if name not in (NO_BOUNDS, *decayed):
            share = share_cell(plan, trials[name, 0])
        rows.append(
            [*start, name, *cells(of[name], of[NO_BOUNDS] if name != NO_BOUNDS else None), share, str(len(plan.seeds))]
        )
        start = ["", ""]
    return rows


def cells(outcomes, plain):
    """The figures of a row; plain: the outcomes without bounds, to subtract."""

    def test(name, outcomes):
        return [outcome["test"]["filtered"]["both"][name] for outcome in outcomes]

    def over_relations(name):
        return [float(np.mean([v[name] for v in outcome["violations"].values()])) for outcome in outcomes]

    return [
        percent(estimate(test("mrr", outcomes))),
        percent(estimate(test("mrr", outcomes), test("mrr", plain)), True) if plain else "",
        percent(estimate(test("hits@10", outcomes))),
        percent(estimate(over_relations("outside"))),
        amount(estimate(over_relations("mean"))),
    ]


def control_table(plan):
    """Headers and rows of `reproduce controls`."""
    for data in plan.data:  # all of them before the first run
        open_data(data, "hrt")
    rows = [row for pair in plan.pairs() for row in control_rows(plan, *pair)]
    headers = ["MRR %", "minus none", "hits@10 %", "outside %", "mean X", "gradient %", "seeds"]
    return ["data", "model", "bounds in training", *headers], rows
