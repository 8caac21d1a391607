"""The options that several commands share, those of `train` among them; nothing of NumPy until they are checked."""

import re

import click

from cardkge_tools.terminal import AT_LEAST_0, AT_LEAST_1, FILE, FOLDER, Real, choice, option, options, was_given

columns_option = option(
    "--columns", choice("hrt", "htr", "rht", "rth", "thr", "trh"), "hrt", "Order of the fields in a line."
)
data_options = options(
    option("--data", str, "families", "A data set of the table `data`, or the folder of one."), columns_option
)
run_argument = click.argument("folder", metavar="RUN", type=FOLDER)
moved_data = option("--data", str, None, "Where the data of the run is now, if it has moved.")
json_option = option("--json json_file", FILE, None, "Also write the figures there.")
threads_option = option(
    "--threads", AT_LEAST_1, None, "Threads; they change the time, not the result.  [default: all cores]"
)
acceptance_options = options(
    option("--min-probability", Real(0, 1), 0.5, "Accept what is more probable than this."),
    option(
        "--precision",
        Real(0, 1, min_open=True),
        None,
        "Accept as much, best first, as is true with at least this probability on average, in place of that.",
    ),
)
jobs_option = option("--jobs", AT_LEAST_1, 1, "Runs side by side, each in a process of its own.")
trial_threads_option = option("--threads", AT_LEAST_1, None, "Threads of each run.  [default: cores / jobs]")
training_options = options(  # the fields of Settings
    option("--model", choice("distmult", "complex", "ermlp"), "distmult", "Scoring function."),
    option("--dim", AT_LEAST_1, None, "Size k of an embedding: 200 distmult, 150 complex, 100 ermlp."),
    option("--hidden", AT_LEAST_1, 100, "Hidden units (ermlp)."),
    option("--epochs", AT_LEAST_0, 200, "Passes over the train split."),
    option("--batches", AT_LEAST_1, 10, "Mini-batches per epoch."),
    option("--batch-size", AT_LEAST_1, None, "Train triples per mini-batch, in place of --batches."),
    option("--negatives", AT_LEAST_1, 2, "Corruptions of a train triple: of its tail, its head, ..."),
    option("--filter-negatives", bool, False, "Exclude train triples from the corruptions."),
    option("--loss", choice("logistic", "hinge"), "logistic", "Loss."),
    option("--margin", Real(min=0), 0.5, "Margin between probabilities (hinge)."),
    option("--optimizer", choice("adagrad", "sgd"), "adagrad", "Update rule."),
    option("--learning-rate", Real(min=0, min_open=True), 0.1, "Step size."),
    option("--decay", Real(min=0), 0.0, "Divide the learning rate by 1 + decay * epoch (sgd)."),
    option("--accumulator", Real(min=0), 0.1, "Where sums of squared gradients start (adagrad)."),
    option("--l2", Real(min=0), 0.0, "Weight of l2/2 ||row||^2 for the rows of each example."),
    option("--project", choice("unit", "none"), "unit", "Entity rows to norm 1 after each step, or not."),
    option("--bounds", str, "none", "Cardinality bounds: mined (from train), none, or a bounds file."),
    option("--lambda penalty_weight", Real(min=0), 0.01, "Weight of the cardinality penalty, where there are bounds."),
    option(
        "--sampling",
        choice("exact", "uniform", "importance", "bernoulli"),
        "uniform",
        "How the objects of a sum X_hr are drawn.",
    ),
    option("--inclusion", choice("frequency", "uniform"), "frequency", "Chance of an object (bernoulli)."),
    option("--subjects", AT_LEAST_1, 10, "Subjects (mu) per bounded relation and step."),
    option("--objects", AT_LEAST_1, 100, "Objects (omega) per bounded relation and step."),
    option("--subject-pool", choice("relation", "entities"), "relation", "Heads of the relation, or all."),
    option("--seed", click.IntRange(0, 2**32 - 1), 0, "Seed of everything random."),
    option("--dtype", choice("float32", "float64"), "float32", "Precision of the parameters."),
    option("--validate-every", AT_LEAST_0, 0, "Epochs between validations; the best (hits@10) is kept. 0: none."),
    option("--patience", AT_LEAST_0, 0, "Stop after so many validations with no better one. 0: never."),
)


def train_context(options):
    """The context of a command line of `train` with these options, name -> value; a usage error for one that is not of
    the settings."""
    command = data_options(training_options(click.command("train")(lambda **_: None)))
    names = {parameter.opts[0].removeprefix("--"): parameter for parameter in command.params}
    arguments = []
    for name, value in options.items():
        if name in ("out", "resume", "force", "threads", "help", "jobs", "cluster", "grid", "file"):
            raise click.UsageError(f"{name} is no setting that runs may differ in.")
        if not getattr(names.get(name), "is_flag", False):
            arguments += [f"--{name}", str(value)]
        else:
            arguments += [f"--{name}"] * is_true(name, value)
    return command.make_context("train", arguments)


def is_true(name, value):
    """A flag's value, however it is written; a usage error for another."""
    try:
        return click.BOOL(str(value))
    except click.BadParameter:
        raise click.UsageError(f"{name} is true or false, not {value!r}.") from None


def checked_settings(context):
    """The Settings on a command line of `train`; a usage error for what is out of range or does not go together."""
    from cardkge import CardkgeError, Settings, option_name

    if was_given(context, "batches") and was_given(context, "batch_size"):
        raise click.UsageError("--batches and --batch-size exclude each other.")
    settings = Settings(**{name: context.params[name] for name in Settings.__dataclass_fields__})
    try:
        settings.check()
    except CardkgeError as error:
        text = re.sub(r"\b[a-z]+(_[a-z]+)+\b", lambda name: "--" + option_name(name[0]), str(error))
        raise click.UsageError(f"{text}.") from None
    return settings


def idle_options(settings, given):
    """A line for each of the given options that changes nothing with these settings."""
    of_bounds = ("lambda", "sampling", "inclusion", "subjects", "objects", "subject-pool")
    needs = [
        (("hidden",), "without --model ermlp", settings.model == "ermlp"),
        (("margin",), "without --loss hinge", settings.loss == "hinge"),
        (("accumulator",), "without --optimizer adagrad", settings.optimizer == "adagrad"),
        (of_bounds, "without --bounds", settings.bounds != "none"),
        (("inclusion",), "without --sampling bernoulli", settings.sampling == "bernoulli" or settings.bounds == "none"),
        (("objects",), "with --sampling exact", settings.sampling != "exact" or settings.bounds == "none"),
    ]
    return [
        f"--{name} makes no difference {where}"
        for names, where, met in needs
        for name in names
        if name in given and not met
    ]


PAPER_TABLES = {  # name: method, what it is, data sets and models unless they are given
    "datasets": ("datasets", "Table 3: sizes of the data sets", "fb13,wn18,wn18rr,yago3-10", ""),
    "constraints": ("constraints", "Table 4: mined bounds", "fb13,wn18,wn18rr,yago3-10", ""),
    "link-prediction": (
        "link_prediction", "Tables 5 and 6: without and with the regulariser", "wn18rr", "ermlp,distmult,complex"
    ),
    "sampling": ("sampling", "Table 7: the ways to draw the objects of a sum", "wn18rr", "complex"),
    "violations": ("violations", "Figure 2 as a table: X_hr without and with the regulariser", "wn18rr", "complex"),
    "lambda": ("weight", "Figure 3: mean X_hr and hits@10 as lambda grows", "wn18rr", "complex"),
    "poe": ("poe", "Tables 1 and 8: likely parents of Edgar Allan Poe, seed 0", "fb13", "distmult"),
}  # fmt: skip
MODEL_TITLES = {"ermlp": "ER-MLP", "distmult": "DistMult", "complex": "ComplEx"}
