"""Softmax over all entities (beyond the paper: Lacroix et al. 2018, Ruffinelli et al. 2020), in plain NumPy.

Letters as in cardkge.py. `cardkge_tools/engine/softmax` is the fast form."""

import itertools

import numpy as np

from cardkge import (
    CardkgeError,
    as_bounds,
    bounded_relations,
    cardinality_penalty,
    learning_rate,
    project_rows,
    update_params,
)

ANSWERS = 8  # of a row of scores, at most (measured in docs/SOFTMAX.md)


def softmax_loss(scores, answers, log_weights=0.0):
    """-log softmax(scores + log_weights) at the answers, summed. scores (n, m), -inf where a column is not a candidate;
    answers (n,) columns; log_weights (m,) or a number.

    Returns (value, d value / d scores (n, m)), the gradient being softmax - one-hot(answer).
    """
    z = scores + log_weights
    z = z - z.max(1, keepdims=True)
    e = np.exp(z)
    total = e.sum(1, keepdims=True)
    rows = np.arange(len(z))
    value = (np.log(total[:, 0]) - z[rows, answers]).sum(dtype=np.float64)
    gradient = e / total
    gradient[rows, answers] -= 1
    return float(value), gradient.astype(scores.dtype, copy=False)


def draw_candidates(rng, n_entities, needed, count):
    """The candidates that a batch shares: the entities `needed` (its answers and given entities), and `count` of the
    others, drawn uniformly without repetition; all entities where fewer others exist.

    Returns (ids (m,), the needed ones first, both parts sorted; log_weights (m,), -log of the probability that an
    entity is a candidate). With these weights the sum over candidates of exp(score + log weight) is an unbiased
    estimate of the softmax's denominator, the sum over all entities of exp(score).
    """
    needed = np.unique(needed)
    others = n_entities - len(needed)
    if count >= others:
        return np.arange(n_entities), np.zeros(n_entities)
    places = np.sort(rng.choice(others, count, replace=False, shuffle=False))  # among the others, in order of ids
    drawn = places + np.searchsorted(needed - np.arange(len(needed)), places, side="right")
    log_weights = np.zeros(len(needed) + count)
    log_weights[len(needed) :] = np.log(others / count)
    return np.concatenate((needed, drawn)), log_weights


def queries_of(model, triples, sides):
    """The queries of triples (n, 3) with their head (sides (n,) 0) or tail (1) open, as they are scored: (given,
    relations, answers, sides), (n,) each. A reciprocal model scores (?, r, t) as (t, r + R, ?), whose side is 1."""
    heads, relations, tails = np.asarray(triples, np.int64).T
    tail_open = np.asarray(sides) == 1
    given, answers = np.where(tail_open, heads, tails), np.where(tail_open, tails, heads)
    if model.reciprocal:
        relations, tail_open = np.where(tail_open, relations, relations + model.n_relations), tail_open | True
    return given, relations, answers, tail_open.astype(np.int64)


def without_loops(triples, n_relations):
    """(R,) bool: the relations with no triple (x, r, x)."""
    triples = np.asarray(triples)
    loops = triples[triples[:, 0] == triples[:, 2], 1]
    return np.bincount(loops, minlength=n_relations) == 0


def check_resolved(settings):
    """CardkgeError where the weight of a term is None, for the settings are not resolved."""
    if None in (settings.n3, settings.penalty_weight):
        raise CardkgeError("settings of softmax follow from the graph: give settings.resolved(N, R, train triples)")


def softmax_objective(model, triples, sides, settings, bounds=None, loopless=None, candidates=None):
    """The objective of a batch of queries under softmax, and its gradients: the definition of `SoftmaxGradients`.

    triples (n, 3), each with its head (sides (n,) 0) or its tail (1) open; loopless (R,) bool: irreflexive relations,
    where the given entity is not a candidate; candidates (ids (m,), log_weights (m,)) of `draw_candidates`, None: all.

    objective = loss + l2 + n3 + lambda * penalty, all sums over the queries and their own three rows h, r, t:
    loss   -log softmax of the scores of all candidates, at the answer (`softmax_loss`), and settings.relation_weight
           times that of the scores of (h, ?, t) with all relation rows, at the query's own (Chen et al. 2021). A
           query for a head of a reciprocal model is (t, r + R, ?), and all 2R rows are candidates;
    l2     settings.l2 / 2 (||h||^2 + ||r||^2 + ||t||^2);
    n3     settings.n3 (||h||_3^3 + ||r||_3^3 + ||t||_3^3), for ComplEx of moduli (Lacroix et al. 2018, Eq. 7);
    penalty the sum of G_hr over the distinct (h, r) of the queries (h, r, ?) whose relation has a bound, with X_hr the
           weighted sum over all candidates (exact where these are all entities); G_rt for bounds on the inverse.
    Returns ({"objective", "loss", "l2", "n3", "penalty"}, gradients, a dict like params).
    """
    check_resolved(settings)
    ids, log_weights = (np.arange(model.n_entities), np.zeros(model.n_entities)) if candidates is None else candidates
    column = np.full(model.n_entities, -1)
    column[ids] = np.arange(len(ids))
    entity, relation = model.params["entity"], model.params["relation"]
    h, r, t = model.encode(entity, relation, entity)
    gradients, d_h, d_r, d_t = model.zero_gradients(), np.zeros_like(h), np.zeros_like(r), np.zeros_like(t)
    parts = dict.fromkeys(("objective", "loss", "l2", "n3", "penalty"), 0.0)
    for given, k, answer, tail_open in zip(*queries_of(model, triples, sides)):
        rows = (h[given], r[k], t[ids]) if tail_open else (h[ids], r[k], t[given])
        scores = model.phi(*rows)
        if loopless is not None and loopless[k % model.n_relations] and given != answer and column[given] >= 0:
            scores[column[given]] = -np.inf
        loss, upstream = softmax_loss(scores[None], column[[answer]], log_weights)
        parts["loss"] += loss
        d_head, d_relation, d_tail = model.d_phi(*rows, upstream[0], gradients)
        d_r[k] += d_relation.sum(0)
        if tail_open:
            d_h[given] += d_head.sum(0)
            d_t[ids] += d_tail
        else:
            d_h[ids] += d_head
            d_t[given] += d_tail.sum(0)
        if settings.relation_weight:
            head, tail = (given, answer) if tail_open else (answer, given)
            rows = h[head], r, t[tail]
            loss, upstream = softmax_loss(model.phi(*rows)[None], np.array([k]))
            parts["loss"] += settings.relation_weight * loss
            d_head, d_relation, d_tail = model.d_phi(*rows, settings.relation_weight * upstream[0], gradients)
            d_h[head] += d_head.sum(0)
            d_r += d_relation
            d_t[tail] += d_tail.sum(0)
        for name, i in (("entity", given), ("relation", k), ("entity", answer)):
            row = model.params[name][i]
            size = model.moduli(row)
            parts["l2"] += settings.l2 / 2 * float((row.astype(np.float64) ** 2).sum())
            parts["n3"] += settings.n3 * float((size.astype(np.float64) * row * row).sum())
            gradients[name][i] += settings.l2 * row + 3 * settings.n3 * size * row
    d_entity, d_relation, d_tails = model.d_encode(entity, relation, entity, d_h, d_r, d_t, gradients)
    gradients["entity"] += d_entity + d_tails
    gradients["relation"] += d_relation

    if settings.penalty_weight:
        for inverse, bounded in enumerate(bounded_relations(as_bounds(bounds, model.n_relations))):
            part = np.asarray(triples)[np.asarray(sides) == 1 - inverse]
            for k in np.intersect1d(part[:, 1], bounded).tolist():
                subjects = np.unique(part[part[:, 1] == k, 2 * inverse])
                sample = subjects, ids, np.exp(log_weights), bool(inverse)
                penalty, d, _ = cardinality_penalty(model, bounds, k, *sample)
                parts["penalty"] += penalty
                for name in gradients:
                    gradients[name] += model.dtype.type(settings.penalty_weight) * d[name]
    parts["objective"] = parts["loss"] + parts["l2"] + parts["n3"] + settings.penalty_weight * parts["penalty"]
    return parts, gradients


def rows_of(model, triples, sides):
    """(n,) the row of scores of each query of triples (n, 3) with their head (sides (n,) 0) or tail (1) open. Rows are
    numbered by side, relation, given entity. Equal queries share rows, at most ANSWERS of them each, in their order:
    with more, a query of many answers would outweigh all others of its batch."""
    given, relations, _, sides = queries_of(model, triples, sides)
    keys = (sides * len(model.params["relation"]) + relations) * model.n_entities + given
    order = np.argsort(keys, kind="stable")
    places = np.arange(len(keys)) - np.searchsorted(keys[order], keys[order])  # among equal queries
    return (np.cumsum(places % ANSWERS == 0) - 1)[np.argsort(order)]


def shuffle_queries(settings, epoch, lengths, size):
    """The batches of an epoch under softmax: (order, limits). order is a permutation of the rows of scores; row i has
    lengths[i] answers. Batch b is order[limits[b] : limits[b + 1]], with `size` answers: a row goes whole to the batch
    of its first answer, so a batch that is smaller than a row may leave the next one empty."""
    order = np.random.default_rng([settings.seed, 1, epoch]).permutation(len(lengths)).astype(np.int32)
    ends = np.cumsum(lengths[order])
    batches = -(-int(ends[-1]) // size)
    return order, np.searchsorted(ends - lengths[order], np.arange(batches + 1) * size)


def step_candidates(settings, epoch, step, n_entities, needed):
    """The candidates of a step (`draw_candidates`), or None for all entities."""
    if not settings.softmax_candidates:
        return None
    rng = np.random.default_rng([settings.seed, 2, epoch, step])
    return draw_candidates(rng, n_entities, needed, settings.softmax_candidates)


def softmax_loop(model, triples, settings, bounds=None):
    """`algorithm_1` under softmax, with batches of queries: trains any Model in place; returns the history, a list."""
    settings = settings.resolved(model.n_entities, model.n_relations, len(triples))
    both, sides = np.concatenate((triples, triples)), np.repeat([0, 1], len(triples))
    lengths = np.bincount(rows := rows_of(model, both, sides))
    loopless = without_loops(triples, model.n_relations) if settings.no_loops else None
    accumulators = {name: np.full_like(array, settings.accumulator) for name, array in model.params.items()}
    history = []
    if settings.project == "unit":
        project_rows(model.params["entity"])
    for epoch in range(settings.epochs):
        order, limits = shuffle_queries(settings, epoch, lengths, settings.batch_size)
        totals, steps = dict.fromkeys(("objective", "loss", "l2", "n3", "penalty"), 0.0), len(limits) - 1
        for step, (first, last) in enumerate(itertools.pairwise(limits)):
            batch = np.isin(rows, order[first:last])
            if not batch.any():
                continue
            candidates = step_candidates(settings, epoch, step, model.n_entities, both[batch][:, ::2])
            parts, gradients = softmax_objective(
                model, both[batch], sides[batch], settings, bounds, loopless, candidates
            )
            update_params(model, accumulators, gradients, settings, learning_rate(settings, epoch, step / steps))
            totals = {name: totals[name] + parts[name] for name in totals}
        history.append({name: total / steps for name, total in totals.items()})
    return history
