"""The options that several commands share, with those of `train`; they need NumPy only to be checked."""

import math
import re
from pathlib import Path

import click

from cardkge_tools.shell.terminal import OutputName, PathName, Real, choice, option, options, was_given

AT_LEAST_0, AT_LEAST_1, SEED = click.IntRange(0, 10**9), click.IntRange(1, 10**9), click.IntRange(0, 2**32 - 1)
SHARE, PROBABILITY = Real(0, 1, min_open=True, max_open=True), Real(0, 1)
FILE, FOLDER = PathName(dir_okay=False), PathName(path_type=Path)
OUTPUT, BOUNDS_OUTPUT = OutputName(), OutputName("bounds.tsv")
columns_option = option(
    "--columns", choice("hrt", "htr", "rht", "rth", "thr", "trh"), "hrt", "Order of the fields in a line."
)
data_options = options(
    option("--data", str, "families", "A data set of the table `data`, or the folder of one."), columns_option
)


class ModelName(click.Choice):
    """One of the three models, or PATH.py:CLASS: executes that file, and checks the class and its gradients."""

    def convert(self, value, param, ctx):
        if ":" not in value and not value.endswith(".py"):
            return super().convert(value, param, ctx)
        from cardkge_tools.engine.own import trusted_model

        return trusted_model(value)


def use_models(ctx, param, values):
    """Loads each class of PATH.py:CLASS, so that the command itself need not."""
    from cardkge_tools.engine.own import use_model

    for value in values:
        use_model(value)
    ctx.meta["read"] = [value.rpartition(":")[0] for value in values]


run_argument = options(
    click.argument("folder", metavar="RUN", type=FOLDER),
    click.option(
        "--model",
        metavar="PATH.py:CLASS",
        multiple=True,
        expose_value=False,
        callback=use_models,
        help="The class of a run that was trained with --model PATH.py:CLASS.",
    ),
)
moved_data = option("--data", str, None, "Where the data of the run is now, if it has moved.")
json_option = option("--json json_file", OUTPUT, None, "Also write the figures there; - for stdout, without the table.")
threads_option = option(
    "--threads", AT_LEAST_1, None, "How many threads; they change the time, not the result.  [default: all cores]"
)
report_options = options(moved_data, json_option, threads_option)
acceptance_options = options(
    option("--min-probability", PROBABILITY, 0.5, "Accept what is more probable than this."),
    option("--precision", Real(0, 1, min_open=True), None, "In place of that: the least mean p of the accepted."),
)
conditions_option = option("--bounds", str, None, "mined, none or a file.  [default: those of the calibration]")
fitting_options = options(
    option("--bounds", str, None, "mined, none or a file.  [default: those of the run's training]"),
    option(
        "--missing",
        FILE,
        None,
        "`relation TAB number` a line: true facts between entities of the graph that no file has.  [default: as exact"
        " bounds say, else none]",
    ),
    option(
        "--missing-elsewhere elsewhere",
        choice("none", "pooled"),
        "none",
        "Missing from relations without exact bounds: none, or the same part as from those with exact bounds.",
    ),
    option("--share", SHARE, None, "Part of what train lacks that valid holds.  [default: by what is missing]"),
)
cluster_option = option(
    "--cluster",
    str,
    None,
    "Address of a Dask scheduler, whose workers share these files and do the work, with one thread each if --threads is"
    " not given (extra: cluster).",
)
jobs_option = option("--jobs", AT_LEAST_1, 1, "Runs side by side, each in a process of its own.")
trial_threads_option = option("--threads", AT_LEAST_1, None, "Threads of each run.  [default: cores / jobs]")
SAMPLINGS = "exact", "uniform", "importance", "bernoulli"
BY_LOSS = "default: by the sizes under softmax, else "
training_options = options(  # the fields of Settings
    option(
        "--model",
        ModelName(["distmult", "complex", "ermlp"]),
        None,
        "Scoring function; or PATH.py:CLASS, a subclass of cardkge.Model, which the plain Algorithm 1 trains."
        f"  [{BY_LOSS}distmult]",
    ),
    option("--dim", AT_LEAST_1, None, f"Size k of an embedding.  [{BY_LOSS}200 distmult, 150 complex, 100 others]"),
    option("--hidden", AT_LEAST_1, 100, "Hidden units (ermlp)."),
    option("--epochs", AT_LEAST_0, None, f"Passes over the train split.  [{BY_LOSS}200]"),
    option("--batches", AT_LEAST_1, None, f"Mini-batches per epoch.  [{BY_LOSS}10]"),
    option("--batch-size", AT_LEAST_1, None, "Triples (softmax: queries) per mini-batch, in place of --batches."),
    option("--negatives", AT_LEAST_1, 2, "Corruptions of a train triple: of its tail, its head, ..."),
    option("--filter-negatives", bool, False, "Exclude train triples from the corruptions."),
    option("--loss", choice("logistic", "hinge", "softmax"), "logistic", "Loss; softmax: over all entities."),
    option("--margin", Real(min=0), 0.5, "Margin between probabilities (hinge)."),
    option("--optimizer", choice("adagrad", "sgd"), "adagrad", "Update rule."),
    option("--learning-rate", Real(min=0, min_open=True), None, f"Step size.  [{BY_LOSS}0.1]"),
    option("--schedule", choice("constant", "late"), None, f"late: to 0 from half of the run.  [{BY_LOSS}constant]"),
    option("--decay", Real(min=0), 0.0, "Divide the learning rate by 1 + decay * epoch (sgd)."),
    option("--accumulator", Real(min=0), None, f"Where sums of squared gradients start (adagrad).  [{BY_LOSS}0.1]"),
    option("--l2", Real(min=0), 0.0, "Weight of l2/2 ||row||^2 for the rows of each example."),
    option("--n3", Real(min=0), None, "Weight of the cubed moduli of the rows of each query (softmax)."),
    option("--relation-weight", Real(min=0), None, "Weight of the loss of (h, ?, t) (softmax).  [default: by sizes]"),
    option("--project", choice("unit", "none"), None, f"unit: entity rows to norm 1 after each step.  [{BY_LOSS}unit]"),
    click.option("--reciprocal/--no-reciprocal", default=None, help="Own relation rows for (?, r, t) (softmax)."),
    option("--softmax-candidates", AT_LEAST_0, None, "Entities drawn for a batch, beside its own. 0: all (softmax)."),
    option("--no-loops", bool, False, "No (x, r, x) as an answer if train has none: another protocol (softmax)."),
    option("--bounds", str, "none", "Cardinality bounds: mined (from train), none, or a bounds file."),
    option("--lambda penalty_weight", Real(min=0), None, f"Weight of the cardinality penalty.  [{BY_LOSS}0.01]"),
    option("--extra-negatives", bool, False, "A control: the regulariser's draws, for every relation, as negatives."),
    option("--sampling", choice(*SAMPLINGS), "uniform", "How the objects of a sum X_hr are drawn."),
    option("--inclusion", choice("frequency", "uniform"), "frequency", "Chance of an object (bernoulli)."),
    option("--subjects", AT_LEAST_1, 10, "Subjects (mu) per bounded relation and step."),
    option("--objects", AT_LEAST_1, 100, "Objects (omega) per bounded relation and step."),
    option("--subject-pool", choice("relation", "entities"), "relation", "Heads of the relation, or all."),
    option("--seed", SEED, 0, "Seed of everything random."),
    option("--dtype", choice("float32", "float64"), "float32", "Precision of the parameters."),
    option("--validate-every", AT_LEAST_0, None, f"Epochs between validations; 0: none.  [{BY_LOSS}0]"),
    option("--patience", AT_LEAST_0, 0, "Stop after that many validations without a better hits@10 (softmax: MRR)."),
)


# what `evaluate` and `predict` refuse, by whether --sets, --queries is given: (parameters, why)
EVALUATE_REFUSES = {
    True: (
        ("split", "setting", "ties", "candidates", "skip_unknown", "no_loops"),
        "is for ranks, and --sets measures sets.",
    ),
    False: (("min_probability", "precision", "loops", "plot", "bounds", "truth"), "needs --sets."),
}
PREDICT_REFUSES = {
    True: (("head", "relation", "tail", "x", "json_file"), "is for one query, and --queries has its own."),
    False: (("out",), "needs --queries."),
}


def refuse_given(context, refused):
    """A usage error for the first of the parameters, refused (names, why), that stands on the command line."""
    names, why = refused
    for parameter in context.command.params:
        if parameter.name in names and was_given(context, parameter.name):
            raise click.UsageError(f"{parameter.opts[0]} {why}")


def refuse_both_thresholds(context):
    """A usage error for two rules of acceptance."""
    if was_given(context, "precision"):
        refuse_given(context, (("min_probability",), "and --precision exclude each other."))


def train_context(options):
    """The context of `train` with these options, name -> value; a usage error for one that is no setting."""
    if ":" in str(options.get("model", "")):
        only = "only distmult, complex and ermlp can run side by side"
        raise click.UsageError(f"{only}; use train for a model of your own.")
    command = data_options(training_options(click.command("train")(lambda **_: None)))
    names = {parameter.opts[0].removeprefix("--"): parameter for parameter in command.params}
    arguments = []
    for name, value in options.items():
        if name in ("out", "resume", "force", "threads", "help", "jobs", "cluster", "grid", "file"):
            raise click.UsageError(f"{name} is not a setting, so runs cannot differ in it.")
        if not getattr(names.get(name), "is_flag", False):
            arguments += [f"--{name}", str(value)]
        elif is_true(name, value):
            arguments += [f"--{name}"]
        else:
            arguments += names[name].secondary_opts
    return command.make_context("train", arguments)


def is_true(name, value):
    """The value of a flag, as TOML or a text has it; a usage error for any other."""
    try:
        return click.BOOL(str(value))
    except click.BadParameter:
        raise click.UsageError(f"{name} is true or false, not {value!r}.") from None


def checked_settings(context):
    """The Settings on a command line of `train`; a usage error where one is out of range or excludes another."""
    from cardkge import CardkgeError
    from cardkge_tools.definitions.settings import Settings, option_name

    if was_given(context, "batches") and was_given(context, "batch_size"):
        raise click.UsageError("--batches and --batch-size exclude each other.")
    others = "final", "joined"  # on the command line the former names a run
    names = [name for name in Settings.__dataclass_fields__ if name not in others]
    try:
        return Settings(**{name: context.params[name] for name in names})
    except CardkgeError as error:
        text = re.sub(r"\b[a-z]+(_[a-z]+)+\b", lambda name: "--" + option_name(name[0]), str(error))
        raise click.UsageError(f"{text}.") from None


def idle_options(settings, given):
    """A line for each of the given options that changes nothing with these settings."""
    of_bounds = ("lambda", "sampling", "inclusion", "subjects", "objects", "subject-pool")
    softmax = settings.loss == "softmax"
    regularised = settings.bounds != "none" or settings.extra_negatives
    sampled = regularised and not softmax
    validated = (settings.validate_every or 0) <= (settings.epochs or math.inf)
    needs = [
        (("negatives", "filter-negatives"), "with --loss softmax", not softmax),
        (("sampling", "inclusion", "subjects", "objects", "subject-pool"), "with --loss softmax", not softmax),
        (("validate-every", "patience"), "where the epochs end before a validation", validated),
        (("hidden",), "without --model ermlp", settings.model == "ermlp"),
        (("margin",), "without --loss hinge", settings.loss == "hinge"),
        (("accumulator",), "without --optimizer adagrad", settings.optimizer == "adagrad"),
        (of_bounds[: 1 if softmax else None], "without --bounds", regularised),
        (of_bounds[1:], "with --lambda 0", settings.penalty_weight != 0 or not sampled),
        (("inclusion",), "without --sampling bernoulli", settings.sampling == "bernoulli" or not sampled),
        (("objects",), "with --sampling exact", settings.sampling != "exact" or not sampled),
    ]
    idle = [(name, where) for names, where, met in needs for name in names if name in given and not met]
    messages = [f"--{name} makes no difference {where}" for name, where in idle]
    if settings.negatives == 1 and not softmax:
        why = "heads are never told apart, and (?, r, t) is ranked badly"
        messages.insert(0, f"--negatives 1 corrupts tails alone: {why}; 2 do both")
    return messages


PAPER_TABLES = {  # name: method, what it is, data sets and models unless they are given
    "datasets": ("datasets", "Table 3: sizes of the data sets", "fb13,wn18,wn18rr,yago3-10", ""),
    "constraints": ("constraints", "Table 4: mined bounds", "fb13,wn18,wn18rr,yago3-10", ""),
    "link-prediction": ("link_prediction", "Tables 5 and 6: without and with the regulariser",
                        "wn18rr", "ermlp,distmult,complex"),
    "sampling": ("sampling", "Table 7: the ways to draw the objects of a sum", "wn18rr", "complex"),
    "controls": ("controls", "Not in the paper: the regulariser with right, wrong and no bounds",
                 "families", "complex"),
    "violations": ("violations", "Figure 2 as a table: X_hr without and with the regulariser", "wn18rr", "complex"),
    "lambda": ("weight", "Figure 3: mean X_hr and hits@10 as lambda grows", "wn18rr", "complex"),
    "poe": ("poe", "Tables 1 and 8: likely parents of Edgar Allan Poe, seed 0, with a control", "fb13", "distmult"),
}  # fmt: skip
MODEL_TITLES = {"ermlp": "ER-MLP", "distmult": "DistMult", "complex": "ComplEx"}


def _numbers(ctx, param, values):
    """(property, relation, at_least) of each PROPERTY=RELATION."""
    pairs = [value.rpartition("=")[::2] for value in values]
    for value, pair in zip(values, pairs, strict=True):
        if not all(pair) or pair[0].endswith(":"):  # a prefix alone is no name
            raise click.BadParameter(f"{value}: expected PROPERTY=RELATION.")
    return tuple((*pair, param.name == "number_at_least") for pair in pairs)


number_options = options(
    *(
        click.option(f"--number{end}", metavar="PROPERTY=RELATION", multiple=True, callback=_numbers, help=text)
        for end, text in (
            ("", "Literals of PROPERTY, or a table's column, say how many tails of RELATION a head has; repeatable."),
            ("-at-least", "The same, of how many tails it has at least."),
        )
    )
)
