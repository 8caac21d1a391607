"""`mine`: bounds of a data set, found in its train split; and maxima that the data supports."""

import math
from dataclasses import dataclass

import numpy as np

from cardkge import CardkgeError, mine_bounds
from cardkge_tools.graph.bound_files import write_bounds_file
from cardkge_tools.graph.bounds import Bound, vocabulary
from cardkge_tools.graph.graphs import open_data
from cardkge_tools.shell.files import is_stdout, write_json
from cardkge_tools.shell.terminal import table, warn


@dataclass(frozen=True)
class Maximum:
    """A significant maximum cardinality. relation, inverse: whose. kind: class id, or None. upper: the maximum.

    subjects: heads (tails, if inverse) of the relation, of that class. support: those with at least `upper`.
    likelihood: the share of the support with exactly `upper`; bound: its lower confidence bound. largest: the most any
    subject has.
    """

    relation: int
    inverse: bool
    kind: int | None
    upper: int
    subjects: int
    support: int
    likelihood: float
    bound: float
    largest: int


def significant_maxima(triples, n_entities, n_relations, types=None, min_support=1, confidence=0.95, likelihood=0.9):
    """Maxima that the data supports, of each relation, its inverse, and of the subjects of each class (Giacometti,
    Markhoff, Soulet, ISWC 2019).

    With n_i subjects that have exactly i tails and n_{>=i} that have i or more, the chance that a subject with i has no
    more is estimated by n_i / n_{>=i}; it is at least n_i / n_{>=i} - sqrt(log(1 / (1 - confidence)) / (2 n_{>=i}))
    with that confidence (Hoeffding's bound). The maximum is the smallest i where this lower bound reaches `likelihood`
    and n_{>=i} >= min_support; a relation may have none. A class's is left out where it is not below the relation's.
    triples: (n, 3) ids, distinct. types: Types. Returns a list of Maximum by relation, direction, class.
    """
    for name, value in (("confidence", confidence), ("likelihood", likelihood)):
        if not 0 < value < 1:
            raise CardkgeError(f"{name} must lie between 0 and 1, found {value:g}")
    found = []
    for inverse in (False, True):
        subjects = triples[:, 2 if inverse else 0].astype(np.int64)
        pairs, counts = np.unique(triples[:, 1].astype(np.int64) * n_entities + subjects, return_counts=True)
        relations, subjects = np.divmod(pairs, n_entities)
        contexts = [(np.zeros(len(pairs), np.int64), relations, counts)]
        if types is not None and types.classes:
            of_types = types.pairs
            first = np.searchsorted(of_types[:, 0], subjects, "left")
            number = np.searchsorted(of_types[:, 0], subjects, "right") - first
            rows = np.repeat(np.arange(len(pairs)), number)
            at = np.arange(len(rows)) + np.repeat(first - np.cumsum(number) + number, number)
            contexts.append((1 + of_types[at, 1], relations[rows], counts[rows]))
        context, relation, count = (np.concatenate(part) for part in zip(*contexts))
        found += _maxima(context, relation, count, n_relations, inverse, min_support, confidence, likelihood)
    whole = {(each.relation, each.inverse): each.upper for each in found if each.kind is None}
    tighter = [m for m in found if m.kind is None or m.upper < whole.get((m.relation, m.inverse), math.inf)]
    return sorted(tighter, key=lambda m: (m.relation, m.inverse, -1 if m.kind is None else m.kind))


def _maxima(context, relation, count, n_relations, inverse, min_support, confidence, likelihood):
    """The Maximum of each context (0: all subjects, 1 + c: class c) and relation; arrays by subject."""
    order = np.lexsort((-count, context * n_relations + relation))
    key, count = (context * n_relations + relation)[order], count[order]
    last = np.flatnonzero(np.append((key[1:] != key[:-1]) | (count[1:] != count[:-1]), len(key) > 0))
    exactly = np.diff(last, prepend=-1)  # subjects with this key and count
    key_of, count_of = key[last], count[last]
    start = np.searchsorted(key, key_of, "left")
    at_least = last + 1 - start  # counts fall within a key
    share = exactly / at_least
    bound = share - np.sqrt(math.log(1 / (1 - confidence)) / (2 * at_least))
    good = np.flatnonzero((bound >= likelihood) & (at_least >= min_support))
    keys, position = np.unique(key_of[good][::-1], return_index=True)  # the smallest count is the last of its key
    found = []
    for k, i in zip(keys.tolist(), good[::-1][position].tolist()):
        kind, r = divmod(k, n_relations)
        subjects = int(np.searchsorted(key, k, "right") - start[i])
        found.append(
            Maximum(
                r,
                inverse,
                kind - 1 if kind else None,
                int(count_of[i]),
                subjects,
                int(at_least[i]),
                float(share[i]),
                float(bound[i]),
                int(count[start[i]]),
            )
        )
    return found


def maxima_as_bounds(maxima, relations, types=None):
    """Bounds (0, maximum) with names."""
    classes = types.classes if types is not None else []
    return [
        Bound(
            relations[m.relation], 0.0, float(m.upper), m.inverse, None if m.kind is None else classes[m.kind], "mined"
        )
        for m in maxima
    ]


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
    for note in graph.types.notes:
        warn(note)
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
