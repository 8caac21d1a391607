"""`mine`: bounds of a data set, found in its train split."""

import math

from cardkge import mine_bounds
from cardkge_tools.constraints import Bound, maxima_as_bounds, significant_maxima, vocabulary, write_bounds_file
from cardkge_tools.files import is_stdout, write_json
from cardkge_tools.opening import open_data
from cardkge_tools.terminal import table


def mine_plain(data, columns, population, out, json_file):
    """The least and the largest number of tails, shown and written."""
    dataset = open_data(data, columns)
    table_of = mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations, population)
    bounds = [Bound(name, *row) for name, row in zip(dataset.relations, table_of.tolist(), strict=True)]
    if out:
        write_bounds_file(out, bounds, vocabulary(dataset).prefixes)
    if json_file:
        write_json(json_file, [described(bound) for bound in bounds])
    if not is_stdout(json_file):
        table([[b.relation, f"{b.lower:g}", f"{b.upper:g}"] for b in bounds], ["relation", "lower", "upper"])


def mine_maxima(data, columns, confidence, likelihood, min_support, out, json_file):
    """Maxima that the data supports, of relations, inverses and classes, shown and written."""
    dataset = open_data(data, columns)
    graph = vocabulary(dataset)
    sizes = dataset.n_entities, dataset.n_relations
    maxima = significant_maxima(dataset.train, *sizes, graph.types, min_support, confidence, likelihood)
    bounds = maxima_as_bounds(maxima, dataset.relations, graph.types)
    if out:
        write_bounds_file(out, bounds, graph.prefixes)
    numbers = ("subjects", "support", "likelihood", "bound", "largest")
    if json_file:
        write_json(json_file, [described(b) | {n: getattr(m, n) for n in numbers} for b, m in zip(bounds, maxima)])
    if is_stdout(json_file):
        return
    rows = [
        [b.name, b.kind or "", f"{b.upper:g}", f"{m.largest:,}", f"{m.subjects:,}", f"{m.support:,}"]
        + [f"{100 * share:.1f}" for share in (m.likelihood, m.bound)]
        for b, m in zip(bounds, maxima)
    ]
    headers = ["relation", "class", "maximum", "largest", "subjects", "support", "likelihood %", "at least %"]
    table(rows, headers, "ll")


def described(bound):
    """A bound for JSON; an upper bound of null is none."""
    upper = None if math.isinf(bound.upper) else bound.upper
    return {
        "relation": bound.relation,
        "inverse": bound.inverse,
        "class": bound.kind,
        "lower": bound.lower,
        "upper": upper,
    }
