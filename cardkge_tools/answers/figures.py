"""Figures, by matplotlib (extra: plot)."""

import contextlib
import io
import math
import os
import re
import textwrap
import warnings
from pathlib import Path

import click

from cardkge import CardkgeError
from cardkge_tools.answers.runs import valid_times
from cardkge_tools.shell.files import missing_extra, replace_file
from cardkge_tools.shell.terminal import warn

STYLE = {  # to be read on a projector: no letter below 11 points
    "font.size": 12, "axes.titlesize": 12, "legend.fontsize": 11, "xtick.labelsize": 11, "ytick.labelsize": 11,
    "lines.linewidth": 2, "lines.markersize": 7, "axes.grid": True, "grid.color": "0.9", "axes.axisbelow": True,
    "legend.handlelength": 3,
    "savefig.dpi": 150, "svg.hashsalt": "cardkge",  # without a salt the names within an SVG are random
}  # fmt: skip
FIRST, SECOND, THIRD = (  # dark, light and in between, so that they differ in grey too
    {"color": "#08519c", "linestyle": "-", "marker": "o"},
    {"color": "#e6781e", "linestyle": "--", "marker": "s", "markerfacecolor": "white"},
    {"color": "0.35", "linestyle": ":", "marker": "^"},
)
CURVES = FIRST, SECOND, THIRD, *({**style, "color": "black", "marker": "d"} for style in (FIRST, SECOND, THIRD))
VIOLINS = ("#9ecae1", "#e6781e")  # black lines show on both
PANELS = 48  # panels of a figure; more cannot be read


def import_pyplot(path):
    """matplotlib.pyplot without a display; an error if it is missing or cannot write the file."""
    try:
        import matplotlib
    except ImportError as error:
        raise missing_extra("--plot", error, "plot") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    known = matplotlib.figure.Figure().canvas.get_supported_filetypes()
    if Path(path).suffix[1:].lower() not in known:
        raise click.UsageError(f"--plot {path}: the name must end in one of {', '.join(known)}.")
    if not Path(path).absolute().parent.is_dir():
        raise CardkgeError(f"--plot {path}: there is no folder {Path(path).parent}")
    return pyplot


@contextlib.contextmanager
def drawing(pyplot, path, lines, columns, size):
    """A figure and the flat array of its lines * columns panels; saved at `path` once it is drawn."""
    with pyplot.style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about letters that the font lacks: each is drawn as a box
        os.environ.setdefault("SOURCE_DATE_EPOCH", "0")  # some formats hold a date: equal runs, equal bytes
        figure, axes = pyplot.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
        try:
            yield figure, axes.ravel()
            kind = Path(path).suffix[1:].lower()
            content = io.BytesIO()
            figure.savefig(content, format=kind)
            content = small_png(content.getvalue()) if kind == "png" else content.getvalue()
            replace_file(path, lambda file: file.write(content))
        finally:
            pyplot.close(figure)


def small_png(content):
    """The same picture, bytes of a PNG file, in 64 colours: a third of the bytes. (matplotlib depends on Pillow.)"""
    from PIL import Image

    small = io.BytesIO()
    Image.open(io.BytesIO(content)).convert("RGB").quantize(64).save(small, format="png", optimize=True)
    return small.getvalue()


def shortened(name, width, line=100):
    """A name as lines for matplotlib, dollar signs escaped (they begin a formula); a long one loses its middle."""
    # a path may hold bytes of other encodings
    name = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    text = name if len(name) <= width else f"{name[: width // 2]}…{name[1 + width // 2 - width :]}"
    wrapper = textwrap.TextWrapper(line)
    wrapper.wordsep_re = re.compile(r"(\s+|[_/.,][^\s_/.,]*)")  # a line may end before an underscore, say
    return "\n".join(wrapper.wrap(text)).replace("$", r"\$")


def set_scale(axis, values, label, span=100, ends=()):
    """The y axis for the values and the ends of their error bars: logarithmic, as its label says, where the largest
    value is more than `span` times the least. If some are 0 or below 1e-5 of the largest, it is linear from 0 up to
    the power of ten below the others."""
    low, top = min(values), max(values)
    least = min((value for value in values if value > 1e-5 * top), default=top)
    if top > span * least:
        label += " (log scale)"
        piece = {"linthresh": 10 ** math.floor(math.log10(least)), "linscale": 0.6}
        axis.set_yscale("log") if low >= least else axis.set_yscale("symlog", **piece)
        axis.yaxis.set_major_formatter("{x:,.10g}")
    axis.set_ylabel(label)
    scale = axis.yaxis.get_transform()
    low, top = scale.transform([min([low, *ends]), max([top, *ends])])
    axis.set_ylim(scale.inverted().transform([low - 0.06 * (top - low or 1), top + 0.06 * (top - low or 1)]))
    return scale


def folder_names(runs):
    """The names of the folders, without their parents where the names alone differ."""
    names = [Path(folder).resolve().name for folder in runs]
    return names if len(set(names)) == len(names) else list(runs)


def run_labels(runs):
    """A line for the legend for each folder: its name, and whether the run was trained with the regulariser."""
    labels = []
    for i, (name, run) in enumerate(zip(folder_names(runs), runs.values(), strict=True), 1):
        weight = run.settings.penalty_weight if run.bounds.any() else 0
        how = f"with the regulariser, λ = {weight:.15g}" if weight else "without the regulariser"
        labels.append(f"({i}) {shortened(name, 40)}, {how}")
    return labels


def plot_violations(pyplot, found, path, labels):
    """The paper's Figure 2: a panel per relation with a violin of X_hr and its quartiles for each of one or two runs,
    whose labels the legend shows; dashed lines are the bounds."""
    parts = [(relation, [part[relation] for part in found.values()]) for relation in next(iter(found.values()))]
    if not parts:
        raise CardkgeError("no relation is bounded: there is nothing to plot")
    if len(parts) > PANELS:
        warn(f"{path} shows {PANELS} of {len(parts)} relations, those with the most heads")
        parts = sorted(parts, key=lambda part: -part[1][0]["subjects"])[:PANELS]
    columns = math.ceil(math.sqrt(len(parts)))
    lines = math.ceil(len(parts) / columns)
    labels = [*labels, "median", "quartiles", "bound"]
    fits = sum(len(label) + 8 for label in labels) < 37 * columns  # into one line: some 12 letters are an inch
    size = max(3 * columns, 6), 3.2 * lines + (0.6 if fits else 1.5)
    with drawing(pyplot, path, lines, columns, size) as (figure, axes):
        for axis in axes[len(parts) :]:
            axis.remove()
        for axis, part in zip(axes, parts, strict=False):
            handles = draw_violins(axis, *part)
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels) if fits else 1)


def draw_violins(axis, relation, parts):
    """One panel; returns its legend entries for the runs, a median, the quartiles and a bound."""
    lower, upper = parts[0]["lower"], parts[0]["upper"]
    bounds = [bound for bound in (lower, upper) if math.isfinite(bound)]
    # from a span of some 50 on, the quartiles of the lower of two violins could not be told apart on a linear scale
    scale = set_scale(axis, [x for v in parts for x in v["sums"].tolist()] + bounds, "$X_{hr}$", span=50)
    low, top = scale.transform(axis.get_ylim())
    seen = [(scale.transform(v["sums"]) - low) / (top - low) for v in parts]  # places of the density, 0 to 1
    bodies = axis.violinplot(seen, widths=0.85, showextrema=False)["bodies"]
    for place, (body, colour, v) in enumerate(zip(bodies, VIOLINS, parts, strict=False), 1):
        corners = body.get_paths()[0].vertices
        corners[:, 1] = scale.inverted().transform(low + (top - low) * corners[:, 1])
        body.set(facecolor=colour, edgecolor="black", alpha=1, linewidth=1)
        first, median, third = v["quartiles"]
        thick = axis.hlines(median, place - 0.3, place + 0.3, color="black", linewidth=2.5)
        thin = axis.hlines([first, third], place - 0.2, place + 0.2, color="black", linewidth=1)
    for bound in bounds:
        dashed = axis.axhline(bound, color="black", linestyle="--", linewidth=1.5)
    bound = f"({lower:g}, {upper:g})".replace("inf", "∞")
    below = " " if len(relation) < 15 else "\n"
    axis.set_title(f"{shortened(relation, 42, 21)}{below}{bound}, {parts[0]['subjects']:,} heads")
    axis.set_xticks(range(1, len(parts) + 1), [f"({i})" for i in range(1, len(parts) + 1)])
    axis.set_xlim(0.4, len(parts) + 0.6)
    axis.grid(False, axis="x")
    return [*bodies, thick, thin, dashed]


def draw_curve(axis, run, name, label, style, unit=1):
    """A line over the epochs whose record has this number."""
    points = [(record["epoch"], unit * record[name]) for record in run.history if name in record]
    axis.plot(*zip(*points, strict=True), label=label, markevery=max(1, len(points) // 12), **style)
    return [y for _, y in points]


def plot_history(pyplot, run, path, title):
    """Two panels over the epochs: the objective and its parts; MRR and hits@10 on valid, where there are any."""
    validated = run.best is not None
    with drawing(pyplot, path, 1 + validated, 1, (8, 4 + 3 * validated)) as (figure, axes):
        values = draw_curve(axes[0], run, "objective", "objective", FIRST)
        if any(record["loss"] != record["objective"] for record in run.history):
            values += draw_curve(axes[0], run, "loss", "loss", SECOND)
        if any(record["penalty"] for record in run.history):
            values += draw_curve(axes[0], run, "penalty", "penalty", THIRD)
        set_scale(axes[0], values, "mean per step")
        if validated:
            values = draw_curve(axes[1], run, "valid_hits@10", "hits@10", FIRST, 100)
            values += draw_curve(axes[1], run, "valid_mrr", "MRR", SECOND, 100)
            axes[1].set(ylabel="on valid, filtered [%]", ylim=(0, 1.1 * max(*values, 1)))
        for axis in axes:
            if validated:
                best = run.best["epoch"]
                axis.axvline(best, color="black", linestyle="-.", linewidth=1.5, label=f"chosen: epoch {best}")
            axis.set_xlim(0, run.epoch + 1)
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))  # beside, not over, the curves
        axes[-1].set_xlabel("epoch")
        figure.suptitle(shortened(title, 60))


def plot_times(pyplot, runs, path):
    """MRR on valid over the seconds of training, a curve for each of some runs, folder -> run."""
    if len(runs) > len(CURVES):
        raise CardkgeError(f"--plot: {len(runs)} runs; more than {len(CURVES)} curves cannot be told apart; give fewer")
    with drawing(pyplot, path, 1, 1, (8, 5 + 0.3 * len(runs))) as (figure, axes):
        for name, run, style in zip(folder_names(runs), runs.values(), CURVES):
            _, seconds, mrr, _ = zip(*valid_times(run), strict=True)
            axes[0].plot(seconds, [100 * x for x in mrr], label=shortened(name, 80), **style)
        axes[0].set(xlabel="seconds of training", ylabel="MRR on valid, filtered [%]")
        axes[0].set_xlim(0)
        figure.legend(loc="outside lower center")


def plot_lambda(pyplot, points, path, title):
    """The paper's Figure 3: the average mean of X_hr (left axis) and hits@10 (right axis) over the weight lambda.

    points: dicts of lambda, x_mean, hits@10 (a fraction), and x_interval and hits@10_interval, the half lengths of the
    error bars or None; ascending in lambda."""
    with drawing(pyplot, path, 1, 1, (8, 5)) as (figure, axes):
        left, right = axes[0], axes[0].twinx()
        handles = []
        for axis, name, interval, unit, label, span, style in (
            (left, "x_mean", "x_interval", 1, "Avg. mean of $X_{hr}$", 100, FIRST),
            (right, "hits@10", "hits@10_interval", 100, "Hits@10 [%]", math.inf, SECOND),
        ):
            values = [unit * point[name] for point in points]
            errors = [math.nan if p[interval] is None else unit * p[interval] for p in points]  # NaN: no bar
            handles.append(axis.errorbar(range(len(points)), values, errors, capsize=5, **style))
            ends = [value + sign * error for value, error in zip(values, errors, strict=True) for sign in (-1, 1)]
            ends = [end for end in ends if end > 0.1 * min(values)]  # a bar to near 0 may run out of a log scale
            set_scale(axis, values, label, span, ends)
            if axis.get_yscale() == "linear":
                axis.set_ylim(0, 1.1 * max([*values, *ends]) or 1)
        right.grid(False)  # whose lines would lie between those of the left axis
        left.set_xticks(range(len(points)), [f"{point['lambda']:.15g}" for point in points])
        left.set(xlabel="Regularisation parameter λ", xlim=(-0.3, len(points) - 0.7))
        figure.suptitle(shortened(title, 60))
        labels = ["Avg. mean of $X_{hr}$ (left)", "Hits@10 (right)"]
        figure.legend(handles, labels, loc="outside lower center", ncols=2)


def plot_facts(pyplot, measures, details, path):
    """How far the probabilities of `evaluate_sets` can be trusted: promised and kept precision in bins; precision
    against recall, with the accepted point; expected counts against true ones."""
    with drawing(pyplot, path, 1, 3, (13, 4.4)) as (_, axes):
        reliability, curve, counts = axes
        mean_p, share, _ = details["bins"]
        reliability.plot([0, 1], [0, 1], label="perfect", **{**THIRD, "marker": ""})
        reliability.plot(mean_p, share, label="15 bins", **FIRST)
        reliability.set(xlabel="probability", ylabel="share of facts", xlim=(0, 1), ylim=(0, 1.02))
        reliability.set_title(f"calibration error {100 * measures['ece']:.1f} %")
        curve.plot(details["recall"], details["precision"], **{**FIRST, "marker": ""})
        if measures["accepted"]:
            label = f"accepted: {measures['accepted']:,}"
            curve.plot(measures["recall"], measures["precision"], label=label, **{**SECOND, "linestyle": ""})
            curve.legend()
        curve.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
        curve.set_title(f"average precision {100 * measures['ap']:.1f} %")
        true, expected, known = (details[name] for name in ("true", "expected", "known"))
        values = sorted(set(true.tolist()))
        for y, label, style in ((known, "known", SECOND), (expected, "expected", FIRST)):
            counts.plot(values, [y[true == value].mean() for value in values], label=label, **style)
        counts.plot([0, values[-1]], [0, values[-1]], label="perfect", **{**THIRD, "marker": ""})
        counts.set(xlabel="true count", ylabel="mean count")
        counts.set_title(f"error {measures['count_mae']:.3f}, of known alone {measures['known_count_mae']:.3f}")
        reliability.legend()
        counts.legend()
