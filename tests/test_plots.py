"""The training curve as a table, and what the figures show: read from the figures themselves."""

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from conftest import invoke, ok, one_error, write_ring

import cardkge
import cardkge_tools.answers.figures
import cardkge_tools.answers.opening

N = 12  # entities of the graph


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A ring of 12 entities with 3 relations, and runs on it. Not to be written to."""
    home = tmp_path_factory.mktemp("plots")
    triples = [(i, r, (i + r + 1) % N) for i in range(N) for r in range(3)] + [(0, 0, 5), (0, 0, 6)]
    splits = {"train": triples[:28] + triples[-2:], "valid": triples[28:32], "test": triples[32:-2]}
    (home / "data").mkdir()
    for split, part in splits.items():
        (home / "data" / f"{split}.txt").write_text("".join(f"e{h}\tr{r}\te{t}\n" for h, r, t in part))

    def train(name, *arguments):
        small = ("--data", home / "data", "--dim", 4, "--batches", 3, "--threads", 1)
        ok("train", *small, *arguments, "--out", home / name)

    regularised = ("--bounds", "mined", "--lambda", 0.1, "--sampling", "exact", "--objects", N, "--subjects", 3)
    train("plain", "--epochs", 3)
    train("bound", "--epochs", 61, "--validate-every", 4, *regularised)
    train("unweighted", "--epochs", 1, *regularised, "--lambda", 0)
    train("untrained", "--epochs", 0)
    return home


@pytest.fixture
def figures(monkeypatch):
    """The figures drawn, left open to be looked at."""
    pytest.importorskip("matplotlib")
    pyplot = cardkge_tools.answers.figures.import_pyplot("x.png")
    drawn, close = [], pyplot.close
    monkeypatch.setattr(pyplot, "close", drawn.append)
    yield drawn
    for figure in drawn:
        close(figure)


@pytest.fixture
def pyplot(figures):
    return cardkge_tools.answers.figures.import_pyplot("x.png")


def violations_of(sums, lower=0.0, upper=2.0):
    """What cardinality_violations returns for these sums X_hr."""
    x = np.asarray(sums, float)
    return {"lower": lower, "upper": upper, "subjects": len(x), "sums": x,
            "quartiles": np.percentile(x, (25, 50, 75)).tolist()}  # fmt: skip


def flat_lines(axis):
    """Heights of the lines in a panel: (medians, first and third quartiles, bounds)."""
    groups = [[y for (_, y), _ in lines.get_segments()] for lines in axis.collections if hasattr(lines, "get_segments")]
    bounds = [line.get_ydata()[0] for line in axis.lines if line.get_linestyle() == "--"]
    return [group[0] for group in groups[::2]], groups[1::2], bounds


def sizes_of_letters(figure):
    figure.canvas.draw()
    from matplotlib.text import Text

    return [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]


# --- violations


def test_a_panel_per_relation_shows_bounds_and_quartiles_of_both_runs(runs, figures, tmp_path):
    ok("violations", runs / "plain", runs / "bound", "--plot", tmp_path / "x.png")
    (figure,) = figures
    titles = [axis.get_title() for axis in figure.axes]
    assert [title.rpartition(", ")[0] for title in titles] == ["r0 (1, 3)", "r1 (0, 1)", "r2 (0, 1)"]
    train = cardkge.load_dataset(cardkge.load_run(runs / "plain").settings.data).train
    heads = [len(np.unique(train[train[:, 1] == r, 0])) for r in range(3)]
    assert [title.rpartition(", ")[2] for title in titles] == [f"{n} heads" for n in heads]
    expected = []
    for name in ("plain", "bound"):
        run = cardkge.load_run(runs / name)
        train = cardkge.load_dataset(run.settings.data).train
        heads = [np.unique(train[train[:, 1] == r, 0]) for r in range(3)]
        expected.append([cardkge.cardinality_sums(run.best_model(), r, heads[r]) for r in range(3)])
    for r, (axis, upper) in enumerate(zip(figure.axes, (3, 1, 1), strict=True)):
        medians, quartiles, bounds = flat_lines(axis)
        assert bounds == [axis is figure.axes[0], upper]
        assert medians == pytest.approx([np.median(sums[r]) for sums in expected], rel=1e-6)
        assert quartiles == [pytest.approx(np.quantile(sums[r], (0.25, 0.75)), rel=1e-6) for sums in expected]
        bodies = [body.get_paths()[0].vertices[:, 1] for body in axis.collections if not hasattr(body, "get_segments")]
        for body, sums in zip(bodies, expected, strict=True):
            assert (body.min(), body.max()) == pytest.approx((sums[r].min(), sums[r].max()), rel=1e-4)
        low, top = axis.get_ylim()
        assert low < bounds[0] and top > max(upper, *(sums[r].max() for sums in expected))
        assert axis.get_ylabel() == "$X_{hr}$" and axis.get_yscale() == "linear"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["(1) plain, without the regulariser", "(2) bound, with the regulariser, λ = 0.1",
                      "median", "quartiles", "bound"]  # fmt: skip
    assert min(sizes_of_letters(figure)) >= 11


def test_relations_are_paired_by_name(runs, figures, tmp_path):
    """The second run knows the same triples, with other ids."""
    for split in ("train", "valid", "test"):
        lines = sorted((runs / "data" / f"{split}.txt").read_text().splitlines(), key=lambda x: x.split()[1])
        (tmp_path / f"{split}.txt").write_text("\n".join(reversed(lines)) + "\n")
    ok("train", "--data", tmp_path, "--dim", 4, "--epochs", 9, "--out", tmp_path / "other")
    result = ok("violations", runs / "plain", tmp_path / "other", "--bounds", "mined", "--plot", tmp_path / "x.png")
    assert "was trained on other data" not in result.stderr  # the order of lines and ids is no matter
    names, run = ["r0", "r1", "r2"], cardkge.load_run(tmp_path / "other")
    train = cardkge.load_dataset(tmp_path).train
    assert run.relations == names[::-1]
    titles = [axis.get_title().rpartition(", ")[0] for axis in figures[0].axes]
    assert titles == ["r0 (1, 3)", "r1 (0, 1)", "r2 (0, 1)"]
    for axis, r in zip(figures[0].axes, (2, 1, 0), strict=True):
        sums = cardkge.cardinality_sums(run.best_model(), r, np.unique(train[train[:, 1] == r, 0]))
        assert flat_lines(axis)[0][1] == pytest.approx(np.median(sums), rel=1e-6)


@pytest.mark.parametrize(
    "name, text",
    [
        ("_member_of_domain_region", "_member_of_domain\n_region"),
        ("a b", "a b"),
        ("", ""),
        ("$x$", r"\$x\$"),
        ("x" * 50, "x" * 21 + "\n…" + "x" * 20),
        ("/one/two three/four five six", "/one/two three/four\nfive six"),
    ],
)
def test_long_names_are_cut_and_broken_between_their_words(name, text):
    assert cardkge_tools.answers.figures.shortened(name, 42, 21) == text


def test_one_run_and_a_weight_of_zero(runs, figures, tmp_path):
    ok("violations", runs / "unweighted", "--plot", tmp_path / "x.pdf")
    legend = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert legend == ["(1) unweighted, without the regulariser", "median", "quartiles", "bound"]
    assert [label.get_text() for label in figures[0].axes[0].get_xticklabels()] == ["(1)"]


def test_folders_of_one_name_are_told_apart(runs):
    run = cardkge.load_run(runs / "plain")
    labels = cardkge_tools.answers.figures.run_labels({"a/run": run, "b/run": run})
    assert labels == ["(1) a/run, without the regulariser", "(2) b/run, without the regulariser"]


@pytest.mark.parametrize(
    ("sums", "bounds", "scale"),
    [
        ([1.0, 5.0, 30.0], (0, 2), "linear"),
        ([1000.0, 2000.0, 4000.0], (0, 2), "symlog"),  # for the bound must be seen
        ([1000.0, 2000.0, 4000.0], (900, np.inf), "linear"),
        ([0.01, 1.0, 4.0], (1, np.inf), "log"),
        ([0.0, 1.0, 400.0], (1, np.inf), "symlog"),
    ],
)
def test_a_wide_span_is_on_a_logarithmic_scale(figures, pyplot, tmp_path, sums, bounds, scale):
    cardkge_tools.answers.figures.plot_violations(
        pyplot, {"a": {"r": violations_of(sums, *bounds)}}, tmp_path / "x.png", ["a"]
    )
    (axis,) = figures[0].axes
    assert axis.get_yscale() == scale
    assert axis.get_ylabel() == ("$X_{hr}$" if scale == "linear" else "$X_{hr}$ (log scale)")
    assert flat_lines(axis)[0] == [np.median(sums)]
    body = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (body.min(), body.max()) == pytest.approx((min(sums), max(sums)), rel=1e-4, abs=1e-4)


def test_the_density_is_that_of_the_scale_that_is_seen(figures, pyplot, tmp_path):
    sums = 10 ** np.random.default_rng(0).normal(2, 0.7, 500)  # symmetric in the logarithm
    cardkge_tools.answers.figures.plot_violations(
        pyplot, {"a": {"r": violations_of(sums, 1, 7)}}, tmp_path / "x.png", ["a"]
    )
    x, y = figures[0].axes[0].collections[0].get_paths()[0].vertices.T
    assert 50 < y[x.argmax()] < 200  # of the sums themselves the density is highest near 20


@pytest.mark.parametrize(
    "sums", [[3.0], [4.0] * 9, [0.0] * 9, [0.0, 1e-200, 3e-200], [5.0, 5.0 + 1e-15], [0.0, 1e-9, 1e7], [1e-300, 1e5]]
)
@pytest.mark.parametrize("bounds", [(0, 2), (0, 0), (1, np.inf)])
def test_degenerate_sums_are_drawn(figures, pyplot, tmp_path, sums, bounds):
    cardkge_tools.answers.figures.plot_violations(
        pyplot, {"a": {"r": violations_of(sums, *bounds)}}, tmp_path / "x.png", ["a"]
    )
    (axis,) = figures[0].axes
    vertices = axis.collections[0].get_paths()[0].vertices
    low, top = axis.get_ylim()
    assert np.isfinite(vertices).all() and np.ptp(vertices[:, 0]) > 0.5
    assert all(low < y < top for y in (*sums, *filter(np.isfinite, bounds)))


@pytest.mark.parametrize(("n", "panels"), [(1, 1), (13, 13), (40, 40), (60, cardkge_tools.answers.figures.PANELS)])
def test_many_relations(figures, pyplot, tmp_path, capsys, n, panels):
    found = {"a": {f"r{i}": violations_of(np.arange(1.0, i + 2)) for i in range(n)}}
    cardkge_tools.answers.figures.plot_violations(pyplot, found, tmp_path / "x.svg", ["a"])
    assert len(figures[0].axes) == panels
    assert ("most heads" in capsys.readouterr().err) == (n > panels)
    width, height = figures[0].get_size_inches()
    assert 0.6 < width / height < 1.7
    if n > panels:  # the relations left out have the fewest heads
        assert "r0 (0, 2)" not in [axis.get_title() for axis in figures[0].axes]


def test_names_are_text_whatever_is_in_them(figures, pyplot, tmp_path):
    names = [
        "/film/film/release_date_s./film/film_regional_release_date/film_release_region",
        "a $_{ $b \\frac",
        "李白",
    ]
    found = {"a": {name: violations_of([1.0, 2.0], 1, np.inf) for name in names}}
    cardkge_tools.answers.figures.plot_violations(
        pyplot, found, tmp_path / "x.png", [cardkge_tools.answers.figures.shortened("$_{ $", 40)]
    )
    long, dollars, han = (axis.get_title() for axis in figures[0].axes)
    assert long.startswith("/film/film") and long.endswith("film_release\n_region\n(1, ∞), 2 heads")
    assert max(map(len, long.split("\n"))) <= 21
    assert dollars == r"a \$_{ \$b \frac (1, ∞), 2 heads" and han == "李白 (1, ∞), 2 heads"


def test_no_bounded_relation_is_one_error(runs, figures, tmp_path):
    (tmp_path / "none.tsv").write_text("\n")
    path = tmp_path / "x.png"
    line = one_error(invoke("violations", runs / "plain", "--bounds", tmp_path / "none.tsv", "--plot", path))
    assert "no relation is bounded" in line and not path.exists()


@pytest.mark.parametrize("kind", ["png", "pdf", "svg", "eps"])
def test_equal_runs_equal_bytes(runs, figures, tmp_path, kind):
    for name in ("a", "b"):
        ok("history", runs / "bound", "--plot", tmp_path / f"{name}.{kind}")
    content = (tmp_path / f"a.{kind}").read_bytes()
    assert content == (tmp_path / f"b.{kind}").read_bytes()
    if kind == "png":
        from matplotlib import image

        height, width = image.imread(tmp_path / "a.png").shape[:2]
        assert (width, height) == (8 * 150, 7 * 150)
    else:
        from datetime import datetime

        assert str(datetime.now().year).encode() not in content  # nor does another day change them


# --- history


def test_history_is_a_table_of_some_epochs(runs):
    run = cardkge.load_run(runs / "bound")
    lines = ok("history", runs / "bound").stdout.splitlines()
    names = ["epoch", "objective", "loss", "penalty", "valid MRR %", "valid hits@10 %", "seconds"]
    assert [name.strip() for name in lines[0].split("  ") if name] == names
    rows = [line.split() for line in lines[2:]]
    epochs = [int(row[0]) for row in rows]
    assert epochs == sorted({1, *range(4, 61, 4), 61, run.best["epoch"]})
    for row in rows:
        record = run.history[int(row[0]) - 1]
        best = record["epoch"] == run.best["epoch"]
        assert (row[-1] == "best") == best
        numbers = [float(cell.replace(",", "")) for cell in row if cell != "best"]
        train = cardkge.load_dataset(run.settings.data).train  # shown: means per example, kept: sums per step
        examples = len(train) * (1 + run.settings.negatives) / (len(cardkge.batch_limits(len(train), run.settings)) - 1)
        expected = [record["epoch"], *(record[name] / examples for name in ("objective", "loss", "penalty"))]
        assert numbers[:4] == pytest.approx(expected, rel=1e-3)
        if "valid_mrr" in record:
            shares = [100 * record["valid_mrr"], 100 * record["valid_hits@10"]]
            assert numbers[4:6] == pytest.approx(shares, abs=0.006)
        assert len(numbers) == (7 if "valid_mrr" in record else 5)


@pytest.mark.parametrize(("last", "every"), [(1, 0), (20, 0), (21, 0), (1000, 0), (500, 50), (1000, 7), (997, 400)])
def test_history_shows_at_most_some_20_epochs_and_the_best(runs, monkeypatch, last, every):
    run = cardkge.load_run(runs / "plain")
    run.epoch, run.settings = last, replace(run.settings, validate_every=every)
    run.history = [{**run.history[0], "epoch": epoch} for epoch in range(1, last + 1)]
    if every:
        run.best = {"epoch": every, "mrr": 0.1, "hits@10": 0.2}
        for record in run.history[every - 1 :: every]:
            record |= {"valid_mrr": 0.1, "valid_hits@10": 0.2}
    monkeypatch.setattr(cardkge_tools.answers.opening, "load_run", lambda folder, **_: run)
    lines = ok("history", "x").stdout.splitlines()
    epochs = [int(line.split()[0]) for line in lines[2:]]
    assert len(epochs) <= 23 and epochs[0] == 1 and epochs[-1] == last
    assert len(epochs) >= min(last, 10)
    assert ("valid" in lines[0]) == bool(every)
    assert [line.split()[0] for line in lines if line.endswith("best")] == ([str(every)] if every else [])
    if every:
        validated = range(every, last + 1, every)
        assert len(set(validated) & set(epochs)) >= min(len(validated), 10)


def test_history_draws_the_curves_and_marks_the_best_epoch(runs, figures, tmp_path):
    ok("history", runs / "bound", "--plot", tmp_path / "x.png")
    run = cardkge.load_run(runs / "bound")
    (figure,) = figures
    upper, lower = figure.axes
    curves = {line.get_label(): line.get_xydata().tolist() for axis in figure.axes for line in axis.lines}
    for label in ("objective", "loss", "penalty"):
        assert curves[label] == [[record["epoch"], record[label]] for record in run.history]
    for label, name in (("hits@10", "valid_hits@10"), ("MRR", "valid_mrr")):
        assert curves[label] == [[x["epoch"], 100 * x[name]] for x in run.history if name in x]
    best = run.best["epoch"]
    for axis in (upper, lower):
        assert [(x, _) for x, _ in axis.lines[-1].get_xydata()] == [(best, 0), (best, 1)]
        assert axis.get_legend().get_texts()[-1].get_text() == f"chosen: epoch {best}"
    styles = [(line.get_linestyle(), line.get_marker()) for line in upper.lines]
    assert len(set(styles)) == len(styles) == 4
    assert lower.get_ylim()[0] == 0 and lower.get_xlabel() == "epoch"
    assert min(sizes_of_letters(figure)) >= 11


def test_history_without_validation_and_penalty_is_one_curve(runs, figures, tmp_path):
    ok("history", runs / "plain", "--plot", tmp_path / "x.png")
    (axis,) = figures[0].axes
    assert [line.get_label() for line in axis.lines] == ["objective"]
    run = cardkge.load_run(runs / "plain")
    run.history = [{**record, "loss": 0.5 * record["loss"]} for record in run.history]  # the rest is L2
    cardkge_tools.answers.figures.plot_history(
        cardkge_tools.answers.figures.import_pyplot("x.png"), run, tmp_path / "x.png", "plain"
    )
    assert [line.get_label() for line in figures[1].axes[0].lines] == ["objective", "loss"]
    headers, dashes, *rows = ok("history", runs / "plain").stdout.splitlines()
    assert headers.split() == ["epoch", "objective", "loss", "penalty", "seconds"] and len(rows) == 3
    assert all(len(line.split()) == 5 for line in (dashes, *rows))


@pytest.mark.parametrize("plot", [(), ("--plot", "x.png")])
def test_history_of_an_untrained_run_is_one_error(runs, tmp_path, monkeypatch, plot):
    if plot:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert "no epoch" in one_error(invoke("history", runs / "untrained", *plot))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def other(runs, tmp_path):
    """A run with softmax on the graph of `runs`, beside which these are laid."""
    more = "--dim", 4, "--loss", "softmax", "--epochs", 30, "--validate-every", 3, "--batches", 3
    ok("train", "--data", runs / "data", *more, "--out", tmp_path / "other")
    return tmp_path / "other"


def points_of(folder):
    """Epoch, seconds until then, MRR and hits@10 in percent of each validation, added up here."""
    total, points = 0.0, []
    for record in cardkge.load_run(folder).history:
        total += record["seconds"]
        if "valid_mrr" in record:
            points.append([record["epoch"], total, 100 * record["valid_mrr"], 100 * record["valid_hits@10"]])
    return points


def test_histories_of_several_runs_are_over_the_seconds(runs, other, figures, tmp_path):
    result = ok("history", runs / "bound", other)
    assert f"(1) {runs / 'bound'}\n(2) {other}\n" in result.stdout and result.stderr == ""
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("(") and "/" not in line]
    for i, folder in enumerate((runs / "bound", other), 1):
        shown, points = [row[1:] for row in rows if row[0] == f"({i})"], points_of(folder)
        expected = {point[0]: point[1:] for point in points}
        for epoch, *numbers in shown:
            numbers = [float(x.replace(",", "")) for x in numbers if x != "best"]
            assert numbers[0] == pytest.approx(expected[int(epoch)][0], abs=0.051)
            assert numbers[1:] == pytest.approx(expected[int(epoch)][1:], abs=0.0051)
        epochs = [int(row[0]) for row in shown]
        assert epochs[0] == points[0][0] and epochs[-1] == points[-1][0] and 10 <= len(shown) <= 13
        assert [int(row[0]) for row in shown if row[-1] == "best"] == [cardkge.load_run(folder).best["epoch"]]

    ok("history", runs / "bound", other, "--plot", tmp_path / "x.png", "--json", tmp_path / "x.json")
    (axis,) = figures[0].axes
    for line, folder in zip(axis.lines, (runs / "bound", other), strict=True):
        assert line.get_label() == folder.name
        assert line.get_xydata() == pytest.approx(np.array(points_of(folder))[:, 1:3])
    heights = [y for line in axis.lines for y in line.get_ydata()]
    assert axis.get_ylim()[0] < min(heights) and axis.get_ylim()[1] > max(heights)  # no point on the edge
    assert axis.get_xlim()[0] == 0 and "seconds" in axis.get_xlabel()
    assert min(sizes_of_letters(figures[0])) >= 11
    written = json.loads((tmp_path / "x.json").read_text())
    assert [len(each) for each in written.values()] == [61, 30] and list(written)[1] == str(other)


def test_histories_that_cannot_be_laid_side_by_side(runs, other, tmp_path):
    line = one_error(invoke("history", other, runs / "plain"))
    assert "plain was never validated" in line and "--validate-every" in line
    assert "no epoch" in one_error(invoke("history", other, runs / "untrained"))
    result = invoke("history", other, other)
    assert result.exit_code == 2 and "is given twice" in result.stderr
    (tmp_path / "link").symlink_to(other)
    assert "is given twice" in invoke("history", other, tmp_path / "link").stderr
    many = [tmp_path / str(i) for i in range(6)]
    for folder in many:
        shutil.copytree(other, folder)
    pytest.importorskip("matplotlib")
    assert "give fewer" in one_error(invoke("history", other, *many, "--plot", tmp_path / "x.png"))
    small = "--dim", 4, "--epochs", 2, "--validate-every", 1
    ok("train", "--data", write_ring(tmp_path / "ring"), *small, "--out", tmp_path / "families")
    assert "was trained on other data" in ok("history", other, tmp_path / "families").stderr


# --- lambda

POINTS = [
    {"lambda": 0, "x_mean": 18.0, "x_interval": 2.0, "hits@10": 0.61, "hits@10_interval": 0.02},
    {"lambda": 0.0001, "x_mean": 12.0, "x_interval": None, "hits@10": 0.66, "hits@10_interval": None},
    {"lambda": 1.0, "x_mean": 2.0, "x_interval": 0.5, "hits@10": 0.5, "hits@10_interval": 0.01},
]


def bars(container):
    """(lower, upper) ends of the error bars that are drawn."""
    segments = [[y for _, y in segment] for segment in container.lines[2][0].get_segments()]
    return [ends for ends in segments if len(ends) and np.isfinite(ends).all()]


def test_lambda(figures, pyplot, tmp_path):
    cardkge_tools.answers.figures.plot_lambda(pyplot, POINTS, tmp_path / "x.png", "WN18RR")
    left, right = figures[0].axes
    assert [label.get_text() for label in left.get_xticklabels()] == ["0", "0.0001", "1"]
    assert left.get_xticks().tolist() == [0, 1, 2]
    for axis, y, ends in ((left, [18, 12, 2], [[16, 20], [1.5, 2.5]]), (right, [61, 66, 50], [[59, 63], [49, 51]])):
        (container,) = axis.containers
        assert container.lines[0].get_xydata()[:, 0].tolist() == [0, 1, 2]
        assert container.lines[0].get_ydata() == pytest.approx(y)
        assert bars(container) == [pytest.approx(each) for each in ends]
        assert axis.get_yscale() == "linear" and axis.get_ylim()[0] == 0
        assert axis.get_ylim()[1] > np.max(ends) and axis.get_ylim()[1] > max(y)
    solid, dashed = (axis.containers[0].lines[0] for axis in (left, right))
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert solid.get_markerfacecolor() != dashed.get_markerfacecolor() == "white"
    assert left.get_ylabel() == "Avg. mean of $X_{hr}$" and right.get_ylabel() == "Hits@10 [%]"
    assert left.get_xlabel() == "Regularisation parameter λ"
    legend = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert legend == ["Avg. mean of $X_{hr}$ (left)", "Hits@10 (right)"]
    assert min(sizes_of_letters(figures[0])) >= 11 and "WN18RR" in [text.get_text() for text in figures[0].texts]


def test_lambda_over_a_wide_span_is_on_a_logarithmic_scale(figures, pyplot, tmp_path):
    points = [{**POINTS[0], "x_mean": 4000.0, "x_interval": 4100.0}, POINTS[1], {**POINTS[2], "x_interval": 1.5}]
    cardkge_tools.answers.figures.plot_lambda(pyplot, points, tmp_path / "x.png", "WN18RR")
    left, right = figures[0].axes
    assert left.get_yscale() == "log" and left.get_ylabel().endswith("(log scale)")
    assert right.get_yscale() == "linear"
    assert 0.1 < left.get_ylim()[0] < 0.5 and 8100 < left.get_ylim()[1] < 40000


def test_lambda_without_intervals(figures, pyplot, tmp_path):
    points = [{**point, "x_interval": None, "hits@10_interval": None} for point in POINTS]
    cardkge_tools.answers.figures.plot_lambda(pyplot, points, tmp_path / "x.png", "WN18RR")
    assert [bars(axis.containers[0]) for axis in figures[0].axes] == [[], []]
    assert [axis.get_ylim()[0] for axis in figures[0].axes] == [0, 0]
    assert [axis.get_ylim()[1] > top for axis, top in zip(figures[0].axes, (18.5, 68), strict=True)] == [True, True]


# --- all


@pytest.mark.parametrize("command", ["violations", "history"])
def test_without_matplotlib_is_one_error(runs, tmp_path, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = one_error(invoke(command, runs / "bound", "--plot", tmp_path / "x.png"))
    assert "pip install -e '.[plot]'" in line and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["violations", "history"])
@pytest.mark.parametrize("name", ["x.xyz", "x", "x.pn"])
def test_an_unknown_ending_is_wrong_usage(runs, tmp_path, command, name):
    pytest.importorskip("matplotlib")
    result = invoke(command, runs / "bound", "--plot", tmp_path / name)
    assert result.exit_code == 2 and "must end in" in result.stderr and list(tmp_path.iterdir()) == []


def test_a_figure_that_cannot_be_written_is_one_error(runs, tmp_path):
    pytest.importorskip("matplotlib")
    assert "x.png" in one_error(invoke("history", runs / "bound", "--plot", tmp_path / "gone" / "x.png"))


def test_figures_are_closed_and_know_no_settings_but_their_own(runs, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    pyplot = cardkge_tools.answers.figures.import_pyplot("x.png")
    for name, colour in (("a", "white"), ("b", "yellow")):
        with matplotlib.rc_context({"font.size": 7, "axes.facecolor": colour}):
            before = dict(matplotlib.rcParams)
            ok("history", runs / "bound", "--plot", tmp_path / f"{name}.png")
            assert pyplot.get_fignums() == [] and dict(matplotlib.rcParams) == before
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
