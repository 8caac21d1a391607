"""Answers: the likeliest completions of a triple, with what is known of them."""

import itertools
import math

import click
import numpy as np

from cardkge import CardkgeError, cardinality_sums, is_bounded, probability, without_loops
from cardkge_tools.constraints import bounds_of, find_bounds
from cardkge_tools.engine.ranking import completions, exact_scores, exact_sums, rank_triples
from cardkge_tools.engine.threads import Threads
from cardkge_tools.files import is_stdout, write_json
from cardkge_tools.graphs import known_answers
from cardkge_tools.opening import aligned_data, found, open_run
from cardkge_tools.runs import load_run
from cardkge_tools.terminal import interval, table, warn


def show_completions(folder, head, relation, tail, top, min_probability, hide_known, data, json_file=None):
    """The likeliest tails of (head, relation, ?), or heads of (?, relation, tail), as a table; and X_hr beside its
    bound. json_file: also as JSON, a list of the answers with what the table says of each."""
    run = load_run(folder)
    model, bounds, source = run.best_model(), run.bounds, ""
    r = found(run.relations, relation, "relation")
    given = 0 if tail is None else 2  # the column of a triple
    entity = found(run.entities, head if tail is None else tail, "entity")
    known, no_answer = {}, set()
    try:
        dataset = aligned_data(run, folder, data, download=False)
        known = known_answers(dataset, given, entity, r)
        if run.settings.no_loops and without_loops(dataset.train, dataset.n_relations)[r]:
            no_answer = {entity} - known.keys()
        if not is_bounded(bounds).any():
            bounds, source = find_bounds("mined", dataset), " (mined)"
    except CardkgeError as error:
        if hide_known or data:
            raise
        warn(f"known triples are not marked: {error}")
    likeliest = zip(*completions(model, r, **{"head" if tail is None else "tail": entity}), strict=True)
    hidden = no_answer | (known.keys() if hide_known else set())
    shown = (each for each in likeliest if each[1] >= min_probability and each[0] not in hidden)
    chosen, rows = [], []
    for rank, (e, p, score) in enumerate(itertools.islice(shown, top), 1):
        chosen.append(e)
        rows.append([str(rank), run.entities[e], known.get(e, "-"), f"{p:.4f}", f"{score:.4f}"])
    headers = ["rank", "entity", "known", "probability", "score"]
    sums = cardinality_sums(model, r, [entity] if tail is None else chosen)
    bound = f"bound {interval(*bounds[r])}{source}"
    if json_file:
        names = ("rank", "entity", "known", "probability", "score")
        kinds = (int, str, lambda text: None if text == "-" else text, float, float)
        answers = [{n: kind(cell) for n, kind, cell in zip(names, kinds, row)} for row in rows]
        query = {"head": head, "relation": relation, "tail": tail}
        limits = [None if math.isinf(limit) else limit for limit in bounds[r].tolist()]
        write_json(json_file, {"query": query, "bounds": limits, "x": sums.tolist(), "answers": answers})
    if is_stdout(json_file):
        return
    if tail is None:
        table(rows, headers, "rll")
        click.echo(f"X_hr = {sums[0]:.2f}, {bound}")
    else:
        table([[*row, f"{x:.2f}"] for row, x in zip(rows, sums, strict=True)], [*headers, "X_hr"], "rll")
        click.echo(f"X_hr of each head, {bound}")


def show_triple(folder, head, relation, tail, data, json_file=None):
    """The score and the probability of one triple, and its ranks as a tail and as a head, raw and filtered."""
    run, dataset = open_run(folder, data)
    h, t = (found(run.entities, name, "entity") for name in (head, tail))
    r = found(run.relations, relation, "relation")
    model, triple = run.best_model(), np.array([[h, r, t]], np.int32)
    score = float(exact_scores(model, r, head=h)[t])
    ranks = rank_triples(model, triple, dataset.known)
    x = {"x_hr": exact_sums_of(model, False, r, h), "x_rt": exact_sums_of(model, True, r, t)}
    report = {
        "head": head, "relation": relation, "tail": tail, "score": score, "probability": float(probability(score)),
        "known": known_answers(dataset, 0, h, r).get(t),
        **{setting: {"head": ranks[setting][0, 0], "tail": ranks[setting][0, 1]} for setting in ("raw", "filtered")},
        **x,
    }  # fmt: skip
    if json_file:
        write_json(json_file, report)
    if is_stdout(json_file):
        return
    click.echo(f"score {score:.4f}, probability {report['probability']:.4f}, known: {report['known'] or 'no'}\n")
    rows = [
        [f"as {side}", *(f"{report[setting][side]:g}" for setting in ("raw", "filtered"))] for side in ("tail", "head")
    ]
    table(rows, ["rank", "raw", "filtered"])
    for key, subject, inverse, what in (
        ("x_hr", h, False, "tails of the head"),
        ("x_rt", t, True, "heads of the tail"),
    ):
        (limits,) = bounds_of(run, r, [subject], inverse)
        click.echo(f"{what}: X = {x[key]:.2f}, bound {interval(*limits)}")


def exact_sums_of(model, inverse, relation, subject):
    with Threads(1) as threads:
        return float(exact_sums(model, inverse, np.array([relation]), np.array([subject]), threads)[0])
