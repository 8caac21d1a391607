"""Answers: the likeliest completions of a triple, with what is known of them."""

import itertools

import click

from cardkge import CardkgeError, cardinality_sums, is_bounded, without_loops
from cardkge_tools.engine.ranking import completions
from cardkge_tools.graphs import find, find_bounds, known_answers
from cardkge_tools.opening import aligned_data
from cardkge_tools.runs import load_run
from cardkge_tools.terminal import interval, table, warn


def show_completions(folder, head, relation, tail, top, min_probability, hide_known, data):
    """The likeliest tails of (head, relation, ?), or heads of (?, relation, tail), as a table; and X_hr beside its
    bound."""
    run = load_run(folder)
    model, bounds, source = run.best_model(), run.bounds, ""
    r = find(run.relations, relation, "relation")
    given = 0 if tail is None else 2  # the column of a triple
    entity = find(run.entities, head if tail is None else tail, "entity")
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
    if tail is None:
        table(rows, headers, "rll")
        click.echo(f"X_hr = {sums[0]:.2f}, {bound}")
    else:
        table([[*row, f"{x:.2f}"] for row, x in zip(rows, sums, strict=True)], [*headers, "X_hr"], "rll")
        click.echo(f"X_hr of each head, {bound}")
