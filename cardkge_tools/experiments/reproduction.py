"""The paper's tables and figures, its values beside ours; controls of the regulariser; means over seeds."""

import math
import re
from dataclasses import replace

import click
import numpy as np

import cardkge
from cardkge import CardkgeError, mine_bounds
from cardkge_tools import SPLITS
from cardkge_tools.answers.figures import import_pyplot, plot_lambda
from cardkge_tools.answers.opening import open_run
from cardkge_tools.engine.ranking import completions
from cardkge_tools.experiments.reports import METRICS
from cardkge_tools.experiments.trials import Place, average_sum, make_trial, run_trials, trial_name
from cardkge_tools.graph.bound_files import write_bounds
from cardkge_tools.graph.graphs import known_answers, open_data
from cardkge_tools.graph.spelling import id_of
from cardkge_tools.shell.download import PROJECT_DATA, dataset_table
from cardkge_tools.shell.files import made_folder, read_json, write_report
from cardkge_tools.shell.options import MODEL_TITLES, PAPER_TABLES
from cardkge_tools.shell.terminal import interval, listed, say, short, table, warn


class Reproduction:
    """The options of `reproduce`, and for each table of PAPER_TABLES a method that returns headers and rows."""

    def __init__(self, data, models, seeds, project, quick, place):
        facts = read_json(PROJECT_DATA / "reproduction.json")
        self.paper, self.people, self.lambdas = (facts[name] for name in ("paper", "people", "lambdas"))
        self.recipes, self.unprojected, self.quick_train = facts["recipes"], facts["unprojected"], facts["quick"]
        self.project, self.data, self.models, self.seeds, self.quick = project, data, models, range(seeds), quick
        self.place, self.notes, self.points = place, [], {}

    def pairs(self):
        """The (data set, model) pairs of the table."""
        return [(data, model) for data in self.data for model in self.models]

    def recipe(self, data, model):
        """The options of a run and of the regulariser, for a data set and a model."""
        recipe = self.recipes.get(data, self.recipes["default"])[model]
        if self.project:
            recipe = recipe | {"train": recipe["train"] | {"project": self.project}}
        return recipe if self.project != "none" else {"train": recipe["train"], "regulariser": self.unprojected}

    def trial(self, data, model, variant, seed, more=None):
        """The trial of a variant: "plain", or, regularised, "bounded", a sampling or a lambda; more: other options."""
        recipe = self.recipe(data, model)
        options = {"data": data, "model": model, **recipe["train"], "seed": seed, **(more or {})}
        if variant not in ("plain", 0):
            changed = {} if variant == "bounded" else {"lambda": variant}
            if variant in cardkge.SAMPLINGS:
                changed = {"sampling": variant, **recipe.get(variant, {})}
            options |= recipe["regulariser"] | changed
        if self.quick:
            options |= self.quick_train
        return make_trial(options, f"the recipe of {model} for {data}")

    def run(self, variants, violations=False):
        """(data, model) -> variant -> the outcomes of the seeds."""

        def bounds(trial):  # the same for a run without the regulariser
            return self.recipe(trial["data"], trial["model"])["regulariser"]["bounds"]

        keys = [(*pair, variant, seed) for pair in self.pairs() for variant in variants for seed in self.seeds]
        found = self.outcomes({key: self.trial(*key) for key in keys}, bounds if violations else None)
        return {
            (data, model): {variant: [found[data, model, variant, seed] for seed in self.seeds] for variant in variants}
            for data, model in self.pairs()
        }

    def outcomes(self, trials, bounds=None):
        """The outcomes of trials, under the same keys; notes what was run."""
        outcomes, failed = run_trials(list(trials.values()), self.place, bounds)
        for name, error in failed.items():
            raise CardkgeError(f"{len(failed)} of {len(trials)} runs failed; {name}: {error}")
        minutes = sum(outcome["seconds"] for outcome in outcomes) / 60
        self.notes.append(f"{len(outcomes)} runs trained for {minutes:,.1f} minutes. Their settings, without the seed:")
        self.notes += dict.fromkeys(trial_name(trial).rpartition(",seed=")[0] for trial in trials.values())
        return dict(zip(trials, outcomes, strict=True))

    def found(self, name):
        """The data set, or None where it is not on this machine."""
        folders = {entry["name"]: entry["folder"] for entry in dataset_table()}
        return open_data(name, "hrt") if folders.get(name, name) else None

    def datasets(self):
        """Table 3: sizes of the data sets."""
        names, rows = ("relations", "entities", *SPLITS), []
        for name in self.data:
            where, sizes = f"not on this machine; see `data fetch {name}`", [""] * 5
            if dataset := self.found(name):
                sizes = [dataset.n_relations, dataset.n_entities, *(len(getattr(dataset, split)) for split in SPLITS)]
                where, sizes = "here", [f"{size:,}" for size in sizes]
            rows.append([name, where, *sizes])
            if name in self.paper["datasets"]:
                rows.append(["", "paper", *(f"{size:,}" for size in self.paper["datasets"][name])])
        return ["data", "", *names], rows

    def constraints(self):
        """Table 4: mined bounds."""
        rows = []
        for name in self.data:
            paper = {relation: interval(*bound) for relation, bound in self.paper["constraints"].get(name, {}).items()}
            ours = dict.fromkeys(paper, f"not on this machine; see `data fetch {name}`")
            if dataset := self.found(name):
                bounds = mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations).tolist()
                ours = {relation: interval(*bound) for relation, bound in zip(dataset.relations, bounds, strict=True)}
            for relation in paper or ours:
                rows.append([name, relation, ours.get(relation, "no such relation"), paper.get(relation, "-")])
        return ["data", "relation", "here", "paper"], rows

    def metric_rows(self, start, found, paper, minus=None, paper_minus=None, share=""):
        """A row of our metrics, then the paper's; with `minus`, outcomes to subtract, rows of differences. share: the
        regulariser's share of the gradient, a cell of our row."""

        signed = minus is not None
        ours = [percent(estimate(tested(found, name), tested(minus, name)), signed) for name in METRICS]
        rows = [[*start, "here", *ours, share, str(len(found))]]
        if paper and (paper_minus or not signed):
            theirs = [paper[name] - paper_minus[name] if signed else paper[name] for name in METRICS]
            theirs = [f"{x:+.2f}" if signed else f"{x:.2f}" for x in theirs]
            rows.append([*[""] * len(start), "paper", *theirs, "", ""])
        return rows

    def comparison(self, first, *others):
        """Rows of the variants' metrics, and of the others' differences to the first."""
        rows = []
        for (data, model), found in self.run((first, *others)).items():
            paper = self.paper["link-prediction"].get(data, {}).get(model, {})
            paper = paper | (self.paper["sampling"].get(data, {}) if model == "complex" else {})
            start = [data, MODEL_TITLES[model]]
            for variant in found:
                share = share_cell(self, self.trial(data, model, variant, self.seeds[0])) if variant != first else ""
                rows += self.metric_rows([*start, variant], found[variant], paper.get(variant), share=share)
                start = ["", ""]
            for variant in others:
                against = found[first], paper.get(first)
                title = f"{variant} - {first}"
                rows += self.metric_rows(["", "", title], found[variant], paper.get(variant), *against)
        headers = [*(f"{name.upper() if name == 'mrr' else name} %" for name in METRICS), "gradient %", "seeds"]
        return ["data", "model", "", "", *headers], rows

    def link_prediction(self):
        """Tables 5 and 6."""
        return self.comparison("plain", "bounded")

    def sampling(self):
        """Table 7."""
        return self.comparison("plain", "uniform", "importance", "bernoulli")

    def violations(self):
        """Figure 2 as a table."""
        rows = []
        for (data, model), found in self.run(("plain", "bounded"), violations=True).items():
            start, paper = [data, MODEL_TITLES[model]], self.paper["violations"].get(data, {}).get(model, {})
            share = share_cell(self, self.trial(data, model, "bounded", self.seeds[0]))
            for relation, first in found["plain"][0]["violations"].items():
                parts = [[outcome["violations"][relation] for outcome in outcomes] for outcomes in found.values()]
                plain, bounded = ([v["mean"] for v in part] for part in parts)
                row = [*start, relation, interval(first["lower"], first["upper"]), f"{first['subjects']:,.0f}"]
                row += [percent(estimate([v["outside"] for v in part])) for part in parts]
                row += [amount(estimate(plain)), amount(estimate(bounded)), amount(estimate(bounded, plain), True)]
                row += [percent(estimate(bounded, plain, relative=True), True)]
                rows.append([*row, f"{paper[relation]:+d}" if relation in paper else "", share])
                start, share = ["", ""], ""
        headers = ["data", "model", "relation", "bound", "heads", "outside %: plain", "bounded"]
        return [*headers, "mean X: plain", "bounded", "change", "change %", "paper", "gradient %"], rows

    def weight(self):
        """Figure 3 as a table; keeps the points of the figure in self.points: (data, model) -> list of dicts."""
        rows, first = [], self.lambdas[0]
        for (data, model), found in self.run(self.lambdas, violations=True).items():
            hits = {w: tested(part, "hits@10") for w, part in found.items()}
            sums = {w: [average_sum(o["violations"]) for o in part] for w, part in found.items()}
            start, points = [data, MODEL_TITLES[model]], []
            for weight in self.lambdas:
                x, h = estimate(sums[weight]), estimate(hits[weight])
                changes, share = ["", ""], ""
                if weight != first:
                    share = share_cell(self, self.trial(data, model, weight, self.seeds[0]))
                    changes = [amount(estimate(sums[weight], sums[first]), True)]
                    changes += [percent(estimate(hits[weight], hits[first]), True)]
                rows.append([*start, f"{weight:g}", amount(x), percent(h), *changes, share, str(len(self.seeds))])
                start = ["", ""]
                point = {"lambda": weight, "x_mean": x["mean"], "x_interval": x["interval"]}
                points.append(point | {"hits@10": h["mean"], "hits@10_interval": h["interval"]})
            self.points[data, model] = points
        headers = ["data", "model", "lambda", "mean X", "hits@10 %", "change of mean X", "of hits@10"]
        return [*headers, "gradient %", "seeds"], rows

    def controls(self):
        """The regulariser with right, wrong and no bounds."""
        for data in self.data:  # all of them before the first run
            open_data(data, "hrt")
        rows = [row for pair in self.pairs() for row in control_rows(self, *pair)]
        headers = ["MRR %", "minus none", "hits@10 %", "outside %", "mean X", "gradient %", "seeds"]
        return ["data", "model", "bounds in training", *headers], rows

    def poe(self):
        """The tails with p > 0.8 by seed 0, five to ten of them; as a control with bounds of [0, 0] too."""
        for data in self.data:
            if data not in self.people:
                raise CardkgeError(f"data/reproduction.json names no person of {data}")
        trials = {}
        for data, model in self.pairs():
            bounded = self.recipe(data, model)["regulariser"]
            useless = bounded | {"bounds": control_bounds(self, data)["[0, 0]"]}
            for variant, options in {"plain": {}, "bounded": bounded, "[0, 0]": useless}.items():
                trials[data, model, variant] = self.trial(data, model, "plain", 0, options)
        self.outcomes(trials)
        rows = []
        for (data, model, variant), trial in trials.items():
            run, dataset = open_run(self.place.out / trial_name(trial), data)
            head, relation = self.people[data]
            h, r = id_of(run.entities, head, "entity"), id_of(run.relations, relation, "relation")
            ids, probabilities, _ = completions(run.best_model(), r, head=h)
            likely, total = sum(p > 0.8 for p in probabilities), cardkge.cardinality_sums(run.best_model(), r, [h])[0]
            known = known_answers(dataset, 0, h, r)
            theirs = self.paper["poe"] if (data, model) == ("fb13", "distmult") else {}
            paper = [f"{name} {p:.3f}" for name, p in theirs.get(variant, [])]
            start = [data, MODEL_TITLES[model], variant, f"{head}, {relation}, ?"]
            for rank, (e, p) in enumerate(zip(ids[: max(5, min(likely, 10))], probabilities)):
                row = [run.entities[e], known.get(e, "-"), f"{p:.3f}"]
                rows.append([*start, *row, paper[rank] if rank < len(paper) else ""])
                start = ["", "", "", ""]
            count = f"{theirs[f'{variant}_likely']} with p > 0.8" if f"{variant}_likely" in theirs else ""
            share = f"; gradient {share_cell(self, trial)} %" if variant != "plain" else ""
            rows.append([*start, f"{likely} with p > 0.8; X = {short(total)}{share}", "", "", count])
        return ["data", "model", "", "query", "tail", "known", "p", "paper"], rows


L2 = (0.0001, 0.001, 0.01)  # valid chooses one
NO_BOUNDS, EXTRA = "none", "none; extra negatives"


def wrong_bounds(mined):
    """Controls in place of mined bounds (R, 2): name of the control -> (R, 2) float64."""
    return {
        "mined, permuted": np.roll(mined, 1, axis=0),  # each relation has those of the one before
        "[0, 0]": np.zeros_like(mined),
        "mined, uppers x 3": mined * [1, 3],
    }


def control_bounds(plan, data):
    """Name of the control -> what --bounds takes; writes their files into the folder of the runs. "true": bounds.tsv of
    the data's folder, where it has one."""
    dataset, folder = open_data(data, "hrt"), plan.place.out / "bounds"
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
    """Name of the row -> the options that its runs have beside those of a plain run."""
    sampled = {name: value for name, value in regulariser.items() if name != "bounds"}
    options = {NO_BOUNDS: {}} | {f"none; L2 {weight:g}": {"l2": weight} for weight in L2}
    options |= {name: regulariser | {"bounds": bounds} for name, bounds in given.items()}
    return options | {EXTRA: sampled | {"extra-negatives": True}}


def gradient_share(run, dataset):
    """|lambda d sum G| / (|d loss| + |lambda d sum G|), norms over all parameters of the kept model, for one batch of
    its training; the extra negatives take the place of G where the run has them."""
    settings, model, rng = run.settings, run.best_model(), np.random.default_rng(run.settings.seed)
    limits = cardkge.training_bounds(run.bounds, settings, model.n_relations)
    last = cardkge.batch_limits(len(dataset.train), settings)[1]
    triples = dataset.train[rng.permutation(len(dataset.train))[:last]]
    ends = cardkge.corruptions(rng, triples, settings.negatives, model.n_entities)
    relations = np.repeat(triples[:, 1:2], ends.shape[1], axis=1)
    batch = model, ends[..., 0], relations, ends[..., 1]
    samples = cardkge.draw_samples(rng, dataset.train, cardkge.bounded_relations(limits), model.n_entities, settings)
    plain = replace(settings, l2=0.0)
    _, without = cardkge.objective(*batch, plain)
    _, with_penalty = cardkge.objective(*batch, plain, limits, samples)
    loss = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in without.values()))
    added = (g - without[name] for name, g in with_penalty.items())
    penalty = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in added))
    return penalty / (loss + penalty)


def share_cell(plan, trial):
    """`gradient_share` of a finished run, in percent, for a table."""
    return f"{100 * gradient_share(*open_run(plan.place.out / trial_name(trial), trial['data'])):.1f}"


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
    of_bounds = f"violations are of the {'true' if 'true' in given else 'mined'} bounds"
    hits = ", ".join(f"{name} {100 * valid(name):.2f}" for name in options)
    plan.notes.append(f"{data}, {MODEL_TITLES[model]}: {of_bounds}; hits@10 % on valid: {hits}")
    rows, start = [], [data, MODEL_TITLES[model]]
    for name in options:
        if name in decayed and name != chosen:
            continue
        share = "" if name in (NO_BOUNDS, *decayed) else share_cell(plan, trials[name, 0])
        figures = cells(of[name], of[NO_BOUNDS] if name != NO_BOUNDS else None)
        rows.append([*start, name, *figures, share, str(len(plan.seeds))])
        start = ["", ""]
    return rows


def tested(outcomes, name):
    """A filtered metric on test of each outcome; None for None."""
    return outcomes and [outcome["test"]["filtered"]["both"][name] for outcome in outcomes]


def cells(outcomes, plain):
    """The figures of a row; plain: the outcomes without bounds, to subtract, or None."""

    def over_relations(name):
        return [float(np.mean([v[name] for v in outcome["violations"].values()])) for outcome in outcomes]

    return [
        percent(estimate(tested(outcomes, "mrr"))),
        percent(estimate(tested(outcomes, "mrr"), tested(plain, "mrr")), True) if plain else "",
        percent(estimate(tested(outcomes, "hits@10"))),
        percent(estimate(over_relations("outside"))),
        amount(estimate(over_relations("mean"))),
    ]


# t with P(|T| <= t) = 0.95, for Student's distribution with 1, 2, ... 29 degrees of freedom
T_95 = (
    12.70620474, 4.30265273, 3.182446305, 2.776445105, 2.570581836, 2.446911851, 2.364624252, 2.306004135,
    2.262157163, 2.228138852, 2.20098516, 2.17881283, 2.160368656, 2.144786688, 2.131449546, 2.119905299,
    2.109815578, 2.10092204, 2.093024054, 2.085963447, 2.079613845, 2.073873068, 2.06865761, 2.063898562,
    2.059538553, 2.055529439, 2.051830516, 2.048407142, 2.045229642,
)  # fmt: skip


def estimate(values, minus=None, relative=False):
    """{"mean", "interval"}: the mean of values (n,), one for each seed, and the half width of its 95 % confidence
    interval, by Student's t with n - 1 degrees of freedom, at most 29 (a little too wide then); None for one value.

    With `minus` (n,), the same of the paired differences values - minus; relative: as shares of minus, not finite where
    minus is 0. CardkgeError for no values, or for pairs that lack one."""
    values = np.asarray(values, np.float64)
    if minus is not None:
        minus = np.asarray(minus, np.float64)
        if len(minus) != len(values):
            raise CardkgeError(f"pairs need as many values on both sides, found {len(values)} and {len(minus)}")
        with np.errstate(divide="ignore", invalid="ignore"):
            values = (values - minus) / (minus if relative else 1)
    n = len(values)
    if n == 0:
        raise CardkgeError("an estimate needs a value, found none")
    with np.errstate(invalid="ignore"):
        interval = float(T_95[min(n - 1, len(T_95)) - 1] * values.std(ddof=1) / math.sqrt(n)) if n > 1 else None
    return {"mean": float(values.mean()), "interval": interval}


def percent(value, signed=False):
    """An estimate in percent, with its interval."""
    sign = "+" if signed else ""
    text = f"{100 * value['mean']:{sign}.2f}"
    return text if value["interval"] is None else f"{text} ± {100 * value['interval']:.2f}"


def amount(value, signed=False):
    """An estimate of a sum, with its interval."""
    text = ("+" if signed and value["mean"] >= 0 else "") + short(value["mean"])
    return text if value["interval"] is None else f"{text} ± {short(value['interval'])}"


def reproduce_table(table_name, options, given, markdown, plot, json_file):
    """`reproduce TABLE`: shows and writes the table. options: those of `Reproduction` and `Place` by name; given: the
    names of those on the command line."""
    method, _, its_data, its_models = PAPER_TABLES[table_name]
    chosen = listed(options["models"] or its_models)
    for name in chosen:
        if name not in MODEL_TITLES:
            raise click.UsageError(f"--models: {name!r} is unknown; take {', '.join(MODEL_TITLES)}.")
    data, quick = listed(options["data"] or ("families" if options["quick"] else its_data)), options["quick"]
    place = Place(options["out"], options["jobs"], options["threads"])
    plan = Reproduction(data, chosen, options["seeds"], options["project"], quick, place)
    if not plan.data or (its_models and not chosen):
        raise click.UsageError("--data and --models need at least one name each.")
    if plot and (table_name != "lambda" or len(plan.pairs()) != 1):
        raise click.UsageError("--plot is for `reproduce lambda` of one data set and one model.")
    pyplot = import_pyplot(plot) if plot else None
    unused = ["seeds"] if method == "poe" else [] if its_models else ["models", "seeds", "jobs", "threads", "project"]
    for name in unused:
        if name in given:
            warn(f"--{name} makes no difference to the table {table_name}")
    for name in data:
        if its_models and not quick and name not in plan.recipes:
            warn(f"data/reproduction.json has no recipe for {name}; the one named default is used")
    headers, rows = getattr(plan, method)()
    if write_report(json_file, {"columns": headers, "rows": rows, "notes": plan.notes}):
        table(rows, headers, "l" * len(headers), "github" if markdown else "simple")
    for note in plan.notes:
        say(note, err=True)
    if plot:
        (((name, model), points),) = plan.points.items()
        plot_lambda(pyplot, points, plot, f"{name}, {MODEL_TITLES[model]}")
