"""What `calibrate`, `evaluate --sets` and `predict` print: tables, and JSON; no mathematics."""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from cardkge import probability
from cardkge_tools.answers.answers import Answers
from cardkge_tools.answers.calibration import CountPrior
from cardkge_tools.answers.facts import bounds_in_use, calibrate_run, calibrated_run, fitted_with_loops, known_triples
from cardkge_tools.answers.figures import import_pyplot, plot_facts
from cardkge_tools.answers.measures import MOST_TAILS, evaluate_sets, read_truth
from cardkge_tools.answers.opening import open_run, open_to_measure, read_queries
from cardkge_tools.definitions.measures import broken_promises
from cardkge_tools.graph.spelling import id_of
from cardkge_tools.shell.files import is_stdout, read_json, replace_file, write_report
from cardkge_tools.shell.terminal import counted, counter, interval, shown, table, warn


def calibrate_command(folder, data, how, threads, json_file):
    """`calibrate`, with a Fitting: the result as a table, or calibration.json as JSON."""
    run, dataset = open_run(folder, data, calibrated=False)
    missing = calibrate_run(run, dataset, folder, threads, how, quiet=is_stdout(json_file))
    if write_report(json_file, read_json(Path(folder) / "calibration.json")):
        show_calibration(run, missing)


def show_calibration(run, missing):
    """A line for each relation: how many facts are missing, and what a score means."""
    parameters = run.calibration.parameters
    columns = {
        "relation": run.relations,
        "valid": [f"{x:,}" for x in missing.valid.tolist()],
        "test": [f"{x:,}" for x in missing.test.tolist()],
        "elsewhere": [f"{x:,.0f}" for x in missing.elsewhere.tolist()],
        "from": missing.source,
        "at most": [_most_missing(*each) for each in zip(missing.source, missing.limit.tolist(), strict=True)],
        "share": [f"{x:.3f}" for x in missing.share.tolist()],
        "slope": [f"{x:.2f}" for x in np.exp(parameters[:, 0]).tolist()],
        "ceiling": [f"{x:.2f}" for x in probability(parameters[:, -1]).tolist()],
    }
    table([list(row) for row in zip(*columns.values(), strict=True)], list(columns), "lrrrlrrrr")
    for note in missing.notes:
        click.echo(note)
    click.echo("valid, test, elsewhere (in no file): facts that train lacks; share: the part of them that valid holds")
    if any(columns["at most"]):
        click.echo("at most: so many upper bounds leave for elsewhere")
    click.echo("probability of a fact = ceiling * sigma(slope * log softmax + what is known of head and relation)")


def _most_missing(source, limit):
    """How many facts upper bounds leave for elsewhere; "" where there is no such limit, or numbers tell more."""
    return "" if source == "numbers" or math.isinf(limit) else f"{limit:,.0f}"


# --- evaluate --sets

KNOWN_TAILS = [str(k) for k in range(MOST_TAILS)] + [f"{MOST_TAILS} or more"]
SHARES = "ap", "best_f1", "f1", "precision", "mean_probability", "recall", "ece", "out_of_bounds"  # shown in percent


@dataclass(frozen=True)
class Measuring:
    """The options of `evaluate --sets`: those of `SetOptions`; bounds as in `bounds_in_use`; truth: a file of whole
    answers; by: the parts to show, of "relation" and "known"; plot: a file for the figure."""

    min_probability: float = 0.5
    precision: float | None = None
    loops: bool = False
    bounds: str | None = None
    truth: str | None = None
    by: tuple[str, ...] = ()
    plot: str | None = None


def evaluate_command(folder, data, how, threads, json_file):
    """`evaluate --sets` (how: Measuring): tables; JSON and figures on request."""
    pyplot = import_pyplot(how.plot) if how.plot else None
    run, dataset = open_to_measure(folder, data)
    calibration, truth = calibrated_run(run, folder), None
    bounds = bounds_in_use(run, dataset, folder, how.bounds, threads)
    if how.truth:
        truth, note = read_truth(how.truth, run)
        for each in filter(None, (note, disowned(how.truth, truth, run, dataset))):
            warn(each)
    if how.loops:
        calibration = fitted_with_loops(run, dataset, folder, bounds, threads)
    options = {"least": how.min_probability, "precision": how.precision, "loops": how.loops, "truth": truth}
    with counter("looked at: (h, r)") as progress:
        measures, details = evaluate_sets(
            run.best_model(), calibration, bounds, dataset, threads, progress, types=run.types, **options
        )
    names = {"relation": run.relations, "known": KNOWN_TAILS}
    parts = {by: named_parts(names[by], details["parts"][by]) for by in names}
    if write_report(json_file, measures | ({"by": {by: parts[by] for by in how.by}} if how.by else {})):
        conditioned = bounds.any() or isinstance(bounds, CountPrior)
        show_facts(measures, conditioned, truth, what_is_true(calibration.missing, truth))
        for by in dict.fromkeys(how.by):
            show_parts(by, parts[by])
    warn_of_parts(run, details["parts"], truth)
    if how.plot:
        plot_facts(pyplot, measures, details, how.plot)


def disowned(path, truth, run, dataset):
    """A sentence on the facts of train and valid that whole answers lack, or None."""
    pairs, facts = set(zip(truth.heads.tolist(), truth.relations.tolist())), set(map(tuple, truth.triples.tolist()))
    lacking = [f for f in map(tuple, known_triples(dataset, "valid").tolist()) if f[:2] in pairs and f not in facts]
    if not lacking:
        return None
    h, r, t = lacking[0]
    first = f"{shown(run.entities[h])} {shown(run.relations[r])} {shown(run.entities[t])}"
    return f"{path}: {counted(len(lacking), 'fact')} of train and valid not among its tails, the first {first}"


def what_is_true(missing, truth):
    """The remark beside the precision: which facts count as true."""
    if truth is not None:
        return "the whole answers are known"
    if missing is not None and "assumed" not in missing.source and not (missing.elsewhere > 0).any():
        return "test alone counts as true, and is all that is missing"
    return "test alone counts as true: a floor where more than test is missing"


def named_parts(names, parts):
    """{name: {"pairs", "accepted", "promised", "kept", "facts"}} of `promised_and_kept`, fractions, None for NaN."""
    keys = "pairs", "accepted", "promised", "kept", "facts"
    rows = zip(*([None if x != x else x for x in parts[key].tolist()] for key in keys), strict=True)
    return {name: dict(zip(keys, row, strict=True)) for name, row in zip(names, rows, strict=True)}


def show_parts(by, parts):
    """The table of `named_parts`."""
    rows = []
    for name, part in parts.items():
        counts = [f"{part[key]:,}" for key in ("pairs", "accepted", "facts")]
        rows.append([name, *counts, _percent(part["promised"]), _percent(part["kept"])])
    click.echo()
    table(rows, [{"known": "known tails"}.get(by, by), "(h, r)", "accepted", "facts", "promised", "kept"])


def warn_of_parts(run, parts, truth):
    """Warns in one line of the parts in which promised and kept are far apart, the three worst by name."""
    missing, far = run.calibration.missing, []
    for by, of in parts.items():
        for i in broken_promises(of["accepted"], of["promised"], of["kept"]).tolist():
            name = run.relations[i] if by == "relation" else f"{KNOWN_TAILS[i]} known tails"
            promised, kept, accepted = (of[key][i] for key in ("promised", "kept", "accepted"))
            floor = truth is None and by == "relation" and missing is not None and missing.elsewhere[i] > 0
            said = f"{shown(name)} (promised {100 * promised:.1f} %, kept {100 * kept:.1f} % of {accepted:,}"
            far.append((abs(promised - kept), f"{said}{', a floor' if floor else ''})"))
    far = [text for _, text in sorted(far, key=lambda each: -each[0])]
    if far:
        more = f", and {len(far) - 3:,} more" if len(far) > 3 else ""
        warn(f"promised and kept differ by more than 8 points: {', '.join(far[:3])}{more}")


def show_facts(measures, conditioned, truth, what_counts):
    """The measures of `evaluate_sets` as a table, with an explanation of each."""
    names = ("fact of test", "facts of test") if truth is None else ("fact that is missing", "facts that are missing")
    percent = {name: _percent(measures[name]) for name in SHARES}
    threshold = measures["threshold"]
    rows = [
        ["average precision", percent["ap"], f"of all candidates of {measures['pairs']:,} (h, r)"],
        ["best F1", percent["best_f1"], f"at the threshold that suits {'test' if truth is None else 'them'} best"],
        ["F1", percent["f1"], f"of {measures['accepted']:,} accepted, against {counted(measures['facts'], *names)}"],
        ["precision", percent["precision"], what_counts],
        ["mean probability", percent["mean_probability"], "of the accepted: the precision that is promised"],
        ["recall", percent["recall"], "" if threshold is None else f"accepted down to p = {threshold:.3f}"],
        ["calibration error", percent["ece"], "15 bins of the candidates with p >= 0.1"],
        ["Brier score", f"{measures['brier']:.4f}", f"sum over candidates, per {names[0]}"],
        ["log loss", f"{measures['log_loss']:.4f}", "the same"],
        ["count error", f"{measures['count_mae']:.4f}", f"known facts alone: {measures['known_count_mae']:.4f}"],
        ["out of bounds", percent["out_of_bounds"], "expected counts" if conditioned else "no bounds"],
        ["contradicted", f"{measures['contradicted']:,}", "(h, r) with more known tails than their bound allows"],
    ]
    table(rows, ["", "", ""], "lrl", "plain")


def _percent(value):
    return "-" if value is None else f"{100 * value:.2f} %"


# --- predict


@dataclass(frozen=True)
class Shown:
    """Which completions `predict` shows: the first `top` with p of at least min_probability, without known ones if
    hide_known; x: X_hr even under softmax; bounds as in `bounds_in_use`."""

    top: int = 10
    min_probability: float = 0.0
    hide_known: bool = False
    x: bool = False
    bounds: str | None = None

    def of(self, completions):
        """An iterator over the completions to show."""

        def is_shown(each):
            return each.probability >= self.min_probability and not (self.hide_known and each.known_in)

        return itertools.islice(filter(is_shown, completions), self.top)


def show_completions(folder, query, shown, data, json_file=None):
    """The likeliest tails of (head, relation, None), or heads of (None, relation, tail), as a table; and how many are
    expected, beside the bound. query: the three names; json_file: a file for the same as JSON."""
    answers, (head, relation, tail) = Answers(folder, data, shown.hide_known, shown.bounds), query
    run, with_x = answers.run, shown.x or not answers.softmax
    r = id_of(run.relations, relation, "relation", run.prefixes)
    entity = id_of(run.entities, head if tail is None else tail, "entity", run.prefixes)
    answer = answers.tails(r, entity) if tail is None else answers.heads(r, entity, with_x)
    chosen = list(shown.of(answer.completions))
    if not write_report(json_file, report_of(answers, query, answer, chosen, with_x)):
        return
    headers = ["rank", "entity", "known", "probability", "score", *["accepted"] * answers.calibrated]
    rows = [
        [str(place), run.entities[each.entity], each.known_in or "-", f"{each.probability:.4f}", f"{each.score:.4f}"]
        + ["yes" if each.accepted else "-"] * answers.calibrated
        for place, each in enumerate(chosen, 1)
    ]
    if tail is None:
        table(rows, headers, "rll")
        show_count(answers, answer, sum(each.known_in is not None for each in chosen), with_x)
    else:
        show_heads(answers, answer, chosen, (headers, rows), with_x)


def show_count(answers, answer, n_shown, with_x):
    """The lines below the tails of a head; n_shown of the known tails are in the table."""
    count, bound = answer.count, f"bound {interval(*answer.count.bound)}{answers.source}"
    if answers.calibrated:
        none = f"; {'no bounds are in use' if answers.run.bounds.any() else 'the run has no bounds'}"
        given = answers.soft if answers.conditioned else f"{none}, and is not conditioned"
        click.echo(f"{_expected('count', count, count.known - n_shown)}, {bound}{given}{count.said}")
        say_contradicted(count)
    if with_x:
        click.echo(f"X_hr = {answer.x:.2f}, {bound}")
    elif not answers.calibrated:
        click.echo(bound)


def _expected(what, count, hidden=0):
    """The words for how many tails (or heads) are expected, and how many of them are known."""
    beyond = f", {hidden} of them not shown" if hidden else ""
    return f"expected {what} = {count.expected:.2f}, {count.known} known{beyond}"


def say_contradicted(count):
    """A line where the bound of a Count cannot hold: it is left out of account, and nothing new is expected."""
    if count.contradicted:
        known = f"{counted(count.known, 'is', 'are')} known"
        why = known if count.known > count.bound[1] else "too few can be answered"
        click.echo(f"the data contradicts this bound ({why}): it is ignored, and nothing new is predicted")


def show_heads(answers, answer, chosen, found, with_x):
    """The table of heads, from found (headers, rows) and the Count of each, and the line on the number of heads."""
    headers, rows = found
    columns = {}
    if answers.calibrated:
        columns["expected"] = [f"{each.count.expected:.2f}" for each in chosen]
    if with_x and (not answers.calibrated or answers.softmax):
        columns["X_hr"] = [f"{each.x:.2f}" for each in chosen]
    columns["bound"] = [interval(*each.count.bound) for each in chosen]
    rows = [row + [column[i] for column in columns.values()] for i, row in enumerate(rows)]
    table(rows, [*headers, *columns], "rll")
    names = {"expected": "expected tails", "X_hr": "X_hr"}
    what = " and ".join(names[name] for name in columns if name in names)
    beside = f"{what} of each head, beside its bound" if what else "the bound is of each head"
    click.echo(f"{beside}{answers.source}{answers.soft}")
    if answer.count:
        hidden = answer.count.known - sum(each.known_in is not None for each in chosen)
        click.echo(f"{_expected('heads of the tail', answer.count, hidden)}, bound {interval(*answer.count.bound)}")
        say_contradicted(answer.count)


def report_of(answers, query, answer, chosen, with_x):
    """Answers as JSON: the query, its bounds, X_hr where asked for, what the table says of each; where the run is
    calibrated, expected counts, whether the data contradicts a bound, and whether new names are guesses."""
    head, relation, tail = query
    counts = [answer.count] if tail is None else [each.count for each in chosen]
    bounds = [_in_json(count.bound) for count in counts]
    report = {
        "query": {"head": head, "relation": relation, "tail": tail},
        "bounds": bounds[0] if tail is None else bounds,
        **({"x": [answer.x] if tail is None else [each.x for each in chosen]} if with_x else {}),
        "answers": [
            {"rank": place, "entity": answers.run.entities[each.entity], "known": each.known_in}
            | {"probability": each.probability, "score": each.score, "accepted": each.accepted}
            for place, each in enumerate(chosen, 1)
        ],
    }
    if answers.calibrated:
        for key in ("expected", "contradicted", "guesses"):
            values = [getattr(count, key) for count in counts]
            report[key] = values[0] if tail is None else values
    if tail is not None and answer.count:
        known, count, bound, *_ = answer.count
        report["heads"] = {"known": known, "expected": count, "bounds": _in_json(bound)}
    return report


def _in_json(bound):
    """[lower, upper], upper None where there is none."""
    return [None if math.isinf(x) else float(x) for x in bound]


def show_triple(folder, query, shown, data, json_file=None):
    """The score and the probability of one triple, and its ranks as a tail and as a head, raw and filtered."""
    answers, (head, relation, tail) = Answers(folder, data, True, shown.bounds), query
    run, with_x = answers.run, shown.x or not answers.softmax
    h, t = (id_of(run.entities, name, "entity", run.prefixes) for name in (head, tail))
    found = answers.triple(h, id_of(run.relations, relation, "relation", run.prefixes), t)
    completion = found.completion
    report = {
        "head": head, "relation": relation, "tail": tail, "score": completion.score,
        "probability": completion.probability, "accepted": completion.accepted, "known": completion.known_in,
        **found.ranks, **(dict(zip(("x_hr", "x_rt"), found.sums)) if with_x else {}),
    }  # fmt: skip
    if not write_report(json_file, report):
        return
    known = completion.known_in or "no"
    click.echo(f"score {completion.score:.4f}, probability {completion.probability:.4f}, known: {known}\n")
    rows = [
        [f"as {side}", *(f"{found.ranks[setting][side]:g}" for setting in ("raw", "filtered"))]
        for side in ("tail", "head")
    ]
    table(rows, ["rank", "raw", "filtered"])
    names, sources = ("tails of the head", "heads of the tail"), (answers.source, "")
    for name, x, bound, source in zip(names, found.sums, found.bounds, sources, strict=True):
        click.echo(f"{name}: {f'X = {x:.2f}, ' * with_x}bound {interval(*bound)}{source}")


def answer_queries(folder, queries, shown, data, out):
    """Answers to the queries in a file, `head<TAB>relation` or `?<TAB>relation<TAB>tail` a line: lines of head,
    relation, tail, probability, score and the split it is known from (- for none), best first in each."""
    answers, guesses = Answers(folder, data, shown.hide_known, shown.bounds), 0
    run = answers.run
    entities, relations = ({name: i for i, name in enumerate(names)} for names in (run.entities, run.relations))

    def lines():
        nonlocal guesses
        for _, head, relation, tail in read_queries(queries, entities, relations, run.prefixes):
            r = relations[relation]
            answer = answers.tails(r, entities[head]) if tail is None else answers.heads(r, entities[tail])
            guesses += answer.count is not None and answer.count.guesses
            for each in shown.of(answer.completions):
                name = run.entities[each.entity]
                names = (head, relation, name) if tail is None else (name, relation, tail)
                yield "\t".join([*names, f"{each.probability:.6g}", f"{each.score:.6g}", each.known_in or "-"]) + "\n"

    if out is None:
        for line in lines():
            click.echo(line, nl=False)
    else:
        replace_file(out, lambda file: file.writelines(line.encode("utf-8") for line in lines()))
    if guesses:
        asked = counted(guesses, "query", "queries")
        warn(f"{asked}: a lower bound asks for more than the model expects, so that new names are guesses")
