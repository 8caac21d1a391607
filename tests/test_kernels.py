"""Kernels against plain loops on small cases; the suite again without JIT and with bounds checks.

Nothing here needs compiled code, so the file also runs under NUMBA_DISABLE_JIT=1.
"""

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import reference
from gradcheck import check_gradients

import kernels

KINDS = {"distmult": kernels.DISTMULT, "complex": kernels.COMPLEX, "ermlp": kernels.ERMLP}
DTYPES = ["float32", "float64"]


def tables(name, dtype="float64", n_rows=5, n_relations=3, k=3, seed=0):
    """Random (rows, relation rows, output); ComplEx rows have 2k columns."""
    rng = np.random.default_rng(seed)
    width = 2 * k if name == "complex" else k
    shapes = ((n_rows, width), (n_relations, width), (k if name == "ermlp" else 0,))
    return tuple(rng.normal(size=shape).astype(dtype) for shape in shapes)


def row_score(name, rows, relation_rows, output, h, r, t):
    """The score on rows; ER-MLP's rows are the hidden ones, so it is w . tanh(h + t + r)."""
    if name == "ermlp":
        return sum(
            float(w) * math.tanh(float(a) + float(b) + float(c))
            for w, a, b, c in zip(output, rows[h], rows[t], relation_rows[r])
        )
    return reference.score(name, {"entity": rows, "relation": relation_rows}, h, r, t)


# --- elements


def test_sigma():
    for x in (0.0, 1.0, -1.0, 30.0, -30.0, 1000.0, -1000.0, 1e308, -1e308, -700.0):
        assert kernels.sigma(x) == pytest.approx(reference.sigma(x), rel=1e-15, abs=0)
    assert math.isnan(kernels.sigma(math.nan))
    assert (kernels.sigma(math.inf), kernels.sigma(-math.inf)) == (1, 0)


def one_tanh(x, dtype):
    """tanh as the kernels use it, through ER-MLP's score of a single hidden unit with w = 1."""
    rows = np.array([[x], [0]], dtype=dtype)
    nothing, one = np.zeros((1, 1), dtype=dtype), np.ones(1, dtype=dtype)
    return float(kernels.triple_score(kernels.ERMLP, rows, 0, nothing, 0, 1, one))


@pytest.mark.parametrize("dtype, error", [("float32", 4e-7), ("float64", 5e-16)])
def test_tanh(dtype, error):
    """Relative error as the kernel's docstring says, never above 1; NaN and infinity keep their meaning."""
    points = np.concatenate([np.linspace(-12, 12, 2001), 10.0 ** np.arange(-30, 4)]).astype(dtype)
    for x in points:
        value, exact = one_tanh(x, dtype), math.tanh(float(x))
        assert abs(value - exact) <= error * abs(exact) and abs(value) <= 1
        assert value == -one_tanh(-x, dtype)
    assert math.isnan(one_tanh(np.nan, dtype))
    assert (one_tanh(np.inf, dtype), one_tanh(-np.inf, dtype)) == pytest.approx((1, -1), rel=error)


def bounded_sums(scores, weights, counts, limits, scale):
    """sums and penalties of `kernels.bounded_sums`, which replaces the scores."""
    sums, penalties = np.full((len(scores), scores.shape[2]), 9.0), np.full(len(scores), 9.0)
    limits = np.asarray(limits, np.float64)
    kernels.bounded_sums(scores, weights, np.asarray(counts), limits, scores.dtype.type(scale), sums, penalties)
    return sums, penalties


def one_sigma(x, dtype):
    """sigma as the kernels use it, through a sum over one object of weight 1."""
    return bounded_sums(np.array([[[x]]], dtype), np.ones((1, 1)), [1], [[[0, np.inf]]], 1)[0][0, 0]


@pytest.mark.parametrize("dtype, error, least", [("float32", 4e-7, -87), ("float64", 5e-16, -700)])
def test_sigma_of_both_dtypes(dtype, error, least):
    """Relative error as the kernel's docstring says, 0 but for 2e-38 below; 1/2 and 1 are exact."""
    for x in np.concatenate([np.linspace(least, -least, 4001), 10.0 ** np.arange(-30, 3)]).astype(dtype):
        exact = reference.sigma(float(x))
        assert abs(one_sigma(x, dtype) - exact) <= error * exact
    assert one_sigma(0, dtype) == 0.5
    assert one_sigma(1000, dtype) == one_sigma(np.inf, dtype) == 1
    assert 0 <= one_sigma(-1000, dtype) < 2e-38 and 0 <= one_sigma(-np.inf, dtype) < 2e-38
    assert math.isnan(one_sigma(np.nan, dtype))


@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-5), ("float64", 1e-13)])
@pytest.mark.parametrize("name", KINDS)
def test_triple_score(name, dtype, rtol):
    rows, relation_rows, output = tables(name, dtype)
    for h, r, t in [(0, 0, 1), (4, 2, 3), (2, 1, 2)]:
        value = kernels.triple_score(KINDS[name], rows, h, relation_rows, r, t, output)
        expected = row_score(name, rows, relation_rows, output, h, r, t)
        assert value == pytest.approx(expected, rel=rtol, abs=rtol)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("h, r, t", [(0, 0, 1), (4, 2, 3), (2, 1, 2)])
def test_row_gradients(name, h, r, t):
    """c * d score / d rows, relation rows and w, *added* to what is there; h = t included."""
    rows, relation_rows, output = tables(name)
    kind, c, k = KINDS[name], -1.7, rows.shape[1]
    d_rows = np.full(rows.shape, 2.0)
    d_relation, d_output = np.full((3, k), 2.0), np.full((3, len(output)), 2.0)
    for tail, s in ((0, h), (1, t)):
        kernels.add_entity_gradient(kind, tail, c, rows, h, relation_rows, r, t, output, d_rows, s)
    kernels.add_relation_gradient(kind, c, rows, h, relation_rows, r, t, output, d_relation, d_output, r)
    params = {"rows": rows, "relation": relation_rows}
    gradients = {"rows": d_rows - 2, "relation": d_relation - 2}
    if name == "ermlp":
        params["output"], gradients["output"] = output, d_output[r] - 2
    check_gradients(lambda: c * kernels.triple_score(kind, rows, h, relation_rows, r, t, output), params, gradients)


@pytest.mark.parametrize("loss, margin", [("logistic", 0.0), ("hinge", 0.8)])
@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-6), ("float64", 1e-14)])
def test_loss_of_triple(loss, margin, dtype, rtol):
    scores = np.array([[0.3, -0.7, 2.0], [5, -9, 0], [-1000, 1000, -1000]]).astype(dtype)
    kind = kernels.LOGISTIC if loss == "logistic" else kernels.HINGE
    for i, row in enumerate(scores.astype(float)):
        value = kernels.loss_of_triple(kind, margin, scores, i)
        if loss == "logistic":
            labels = [1, -1, -1]
            expected = sum(reference.softplus(-y * s) for y, s in zip(labels, row))
            slopes = [-y * reference.sigma(-y * s) for y, s in zip(labels, row)]
        else:
            p = [reference.sigma(s) for s in row]
            terms = [margin + q - p[0] for q in p[1:]]
            expected = sum(max(0.0, term) for term in terms)
            slopes = [q * (1 - q) * (term > 0) for q, term in zip(p[1:], terms)]
            slopes.insert(0, -p[0] * (1 - p[0]) * sum(term > 0 for term in terms))
        assert value == pytest.approx(expected, rel=rtol, abs=1e-300)
        np.testing.assert_allclose(scores[i], slopes, rtol=10 * rtol, atol=1e-30)


@pytest.mark.parametrize("kind", [kernels.LOGISTIC, kernels.HINGE])
@pytest.mark.parametrize("place", [0, 1])
def test_nan_score_gives_a_nan_loss(kind, place):
    scores = np.zeros((1, 2))
    scores[0, place] = np.nan
    assert math.isnan(kernels.loss_of_triple(kind, 1.0, scores, 0))


# --- bookkeeping of a batch


def test_number_entities():
    """Ends (head and tail in turn) 7-3, 3-9, 7-7, 5-0; subject 4; objects 9, 2."""
    ids = np.array([7, 3, 3, 9, 7, 7, 5, 0, 4, 9, 2], dtype=np.int32)
    slot_of = np.full(12, -1, dtype=np.int32)
    entities, uses, slots = (np.full(11, -5, dtype=np.int32) for _ in range(3))
    count = kernels.number_entities(ids, 8, slot_of, entities, uses, slots)
    assert count == 7 and np.all(slot_of == -1)
    assert np.array_equal(entities[slots], ids)
    assert list(entities[:count]) == [7, 3, 9, 5, 0, 4, 2]
    assert list(uses[:count]) == [3, 2, 1, 1, 1, 0, 0]


def test_list_occurrences():
    ends = np.array([2, 0, 2, 4, 0, 2], dtype=np.int32)
    starts, occurrences = np.full(6, 99), np.full(6, 99)
    kernels.list_occurrences(ends, 5, starts, occurrences)
    assert starts.tolist() == [0, 2, 2, 5, 5, 6]
    assert occurrences.tolist() == [1, 4, 0, 2, 5, 3]


# --- a step


@pytest.mark.parametrize("loss, margin", [(kernels.LOGISTIC, 0.0), (kernels.HINGE, 0.9)])
@pytest.mark.parametrize("name", KINDS)
def test_losses_and_gradients_of_a_batch(name, loss, margin):
    """Values and all gradients, by differences; row 0 is in every example; ranges change no bit."""
    rows, relation_rows, output = tables(name, n_rows=6)
    rng = np.random.default_rng(1)
    relations = np.array([0, 0, 0, 2, 2], dtype=np.int32)
    units = np.array([0, 2, 3, 5])  # no unit mixes relations
    ends = rng.integers(6, size=(5, 3, 2)).astype(np.int32)
    ends[:, :, 0] = 0
    ends[2, 0, 1] = 0  # head = tail
    k = rows.shape[1]

    def losses(ranges=((0, 3),)):
        coefficients, values = np.full((5, 3), 9.0), np.full(3, 9.0)
        d_relations, d_outputs = np.full((3, k), 9.0), np.full((3, len(output)), 9.0)
        for first, last in ranges:
            kernels.loss_units(
                first, last, (KINDS[name], loss, margin), (ends, relations, units),
                (rows, relation_rows, output), (coefficients, values, d_relations, d_outputs),
            )  # fmt: skip
        return coefficients, values, np.concatenate((d_relations, d_outputs), 1)

    def entity(coefficients, ranges=((0, 6),), others=(), added=()):
        slots = np.concatenate((ends.ravel(), np.array(others, np.int32)))
        starts, occurrences = np.zeros(7, dtype=np.int64), np.zeros(len(slots), dtype=np.int64)
        kernels.list_occurrences(slots, 6, starts, occurrences)
        gradients = np.full(rows.shape, 9.0)
        for first, last in ranges:
            kernels.entity_gradients(
                first, last, KINDS[name], (ends, relations), (starts, occurrences),
                (rows, relation_rows, output), (coefficients, np.reshape(added, (-1, k))), gradients,
            )  # fmt: skip
        return gradients

    coefficients, values, by_unit = losses()
    for whole, split in zip((coefficients, values, by_unit), losses(((2, 3), (0, 1), (1, 2)))):
        assert np.array_equal(whole, split)
    d_rows = entity(coefficients)
    assert np.array_equal(d_rows, entity(coefficients, ((3, 6), (0, 3))))
    others, added = np.array([2, 5, 2, 0], dtype=np.int32), rng.normal(size=(4, k))  # the regulariser's rows
    expected = d_rows.copy()
    np.add.at(expected, others, added)
    np.testing.assert_allclose(entity(coefficients, ((0, 6),), others, added), expected, rtol=1e-14, atol=1e-14)

    scores = [[row_score(name, rows, relation_rows, output, h, relations[i], t) for h, t in ends[i]] for i in range(5)]
    if loss == kernels.LOGISTIC:
        expected = sum(reference.softplus(-s if j == 0 else s) for row in scores for j, s in enumerate(row))
    else:
        p = [[reference.sigma(s) for s in row] for row in scores]
        expected = sum(max(0.0, margin + q - row[0]) for row in p for q in row[1:])
    assert values.sum() == pytest.approx(expected, rel=1e-12)

    d_relation = np.zeros((3, by_unit.shape[1]))
    np.add.at(d_relation, [0, 0, 2], by_unit)
    params = {"rows": rows, "relation": relation_rows}
    gradients = {"rows": d_rows, "relation": d_relation[:, :k]}
    if name == "ermlp":
        params["output"], gradients["output"] = output, by_unit[:, k:].sum(axis=0)
    check_gradients(lambda: losses()[1].sum(), params, gradients)


@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("adagrad, project", list(itertools.product([False, True], repeat=2)))
def test_update_rows(adagrad, project, dtype, rtol):
    """Rows 3, 0, 5 of the table in two ranges, l2 on row 0 only; accumulators at 0.1 and at 0."""
    rng = np.random.default_rng(2)
    table = rng.normal(size=(6, 4)).astype(dtype)
    table[5] = 0
    gradients = rng.normal(size=(3, 4)).astype(dtype)
    gradients[0, 1] = gradients[2] = 0
    accumulator = np.full((6, 4), 0.1, dtype=dtype)
    accumulator[3] = accumulator[5] = 0
    l2 = np.array([0, 0.5, 0], dtype=dtype)
    ids = np.array([3, 0, 5], dtype=np.int32)
    expected, sums = table.astype(float), accumulator.astype(float)
    for s, e in enumerate(ids):
        for i in range(4):
            g = float(gradients[s, i]) + float(l2[s]) * expected[e, i]
            sums[e, i] += g * g
            if adagrad:
                expected[e, i] -= 0.2 * g / math.sqrt(sums[e, i]) if g else 0
            else:
                expected[e, i] -= 0.2 * g
        norm = math.sqrt(math.fsum(v * v for v in expected[e]))
        if project and norm:
            expected[e] /= norm
    rate, faults = np.dtype(dtype).type(0.2), np.zeros(1, dtype=np.uint8)
    for first, last in ((2, 3), (0, 2)):
        kernels.update_rows(first, last, table, accumulator, ids, gradients, l2, rate, adagrad, project, faults)
    np.testing.assert_allclose(table, expected, rtol=10 * rtol, atol=rtol)
    assert not np.any(table[5])
    if adagrad:
        np.testing.assert_allclose(accumulator, sums, rtol=rtol)


# --- regulariser


@pytest.mark.parametrize("dtype, atol", [("float32", 2e-6), ("float64", 1e-14)])
@pytest.mark.parametrize("n_hidden", [1, 2, 5])
def test_hidden_scores_of_large_elements(dtype, atol, n_hidden):
    """Where the exponential of one overflows, and where two that are large cancel: tanh itself, tile by tile."""
    rng = np.random.default_rng(4)
    heads, tails, output = rng.normal(size=(3, n_hidden)), rng.normal(size=(n_hidden, 600)), rng.normal(size=n_hidden)
    heads[1], tails[:, 1], tails[0, 2] = 10, -10, 9.5
    for large in (0, 10.5, 30, 200):  # in the second tile of 256; at last in the heads too
        tails[0, 300:310] = -large
        if large == 200:
            heads[2, 0] = large
        scores = np.empty((3, 600), dtype)
        arrays = [np.ascontiguousarray(array, dtype) for array in (heads, tails, output)]
        kernels.hidden_scores(*arrays, scores)
        given, others, weights = (array.astype(float) for array in arrays)
        expected = np.tensordot(weights, np.tanh(given.T[:, :, None] + others[:, None, :]), 1)
        np.testing.assert_allclose(scores, expected, atol=atol * n_hidden)
    tails[0, 0] = np.nan
    kernels.hidden_scores(*(np.ascontiguousarray(array, dtype) for array in (heads, tails, output)), scores)
    assert np.isnan(scores[:, 0]).all()


@pytest.mark.parametrize("n_tails", [1, 512, 1100])
def test_hidden_scores_and_gradients(n_tails):
    rng = np.random.default_rng(3)
    heads, tails, output = (rng.normal(size=(2, 3)), rng.normal(size=(n_tails, 3)), rng.normal(size=3))
    scores = np.full((2, n_tails), 9.0)
    transposed = np.ascontiguousarray(tails.T)
    kernels.hidden_scores(heads, transposed, output, scores)
    expected = np.tanh(heads[:, None, :] + tails[None, :, :]) @ output
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-13)

    upstream = rng.normal(size=(2, n_tails))
    upstream[0, 0] = 0
    gradients = {
        name: np.full(array.shape, 2.0) for name, array in (("heads", heads), ("tails", tails), ("output", output))
    }
    kernels.hidden_gradients(upstream, heads, tails, output, *gradients.values())
    check_gradients(
        lambda: np.sum(upstream * (np.tanh(heads[:, None, :] + tails[None, :, :]) @ output)),
        {"heads": heads, "tails": tails, "output": output},
        {name: gradient - 2 for name, gradient in gradients.items()},
        directions=0 if n_tails == 1 else 3,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_take_rows(dtype):
    table, ids = np.arange(60).reshape(20, 3).astype(dtype), np.array([19, 0, 7, 7, 3, 18, 1], dtype=np.int32)
    out = np.full((7, 3), -1, dtype=dtype)
    kernels.take_rows(table, ids, out)
    assert np.array_equal(out, table[ids])


@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-6), ("float64", 1e-13)])
def test_bounded_sums(dtype, rtol):
    """Subject 0 is exactly at the lower bound, 1 below, 2 between, 3 above the upper one; 4 and 5, one of them below
    and one above, do not count. Each has bounds of its own. A second relation has other weights, and one subject."""
    scores = np.array([[0, 0, 0], [-5, -1, 0], [1, 1, 0], [3, 2, 2], [-5, -5, -5], [5, 5, 5]]).astype(dtype)
    weights = np.array([[1.0, 1.0, 2.0], [3.0, 0.5, 0.0]])
    start, found = scores.astype(float), np.stack((scores.T, scores.T))
    limits = np.array([[2, 9], [2, 3], [1.5, 3], [0, 3], [2, 3], [2, 3.0]])
    sums, penalties = bounded_sums(found, weights, [4, 1], [limits, limits + 1], 0.5)
    p = np.array([[reference.sigma(s) for s in row] for row in start])
    np.testing.assert_allclose(sums, (p @ weights.T).T, rtol=rtol)
    assert sums[0, 0] == 2.0 and sums[1, 0] == 1.75
    assert penalties[0] == pytest.approx(
        sum(reference.penalty(*each) for each in zip(sums[0, :4], *limits.T)), rel=1e-13
    )
    assert penalties[1] == 3 - 1.75
    slopes = np.array([[[0], [-1], [0], [1], [0], [0]], [[-1], [0], [0], [0], [0], [0]]])
    exact = 0.5 * slopes * weights[:, None] * p * (1 - p)
    np.testing.assert_allclose(np.swapaxes(found, 1, 2), exact, rtol=10 * rtol, atol=0)


def test_bounded_sums_at_both_bounds():
    """X is exactly 2 = lower = upper: no penalty, and no slope."""
    scores = np.zeros((1, 3, 1))
    sums, penalties = bounded_sums(scores, np.array([[1.0, 1.0, 2.0]]), [1], [[[2, 2]]], 1)
    assert penalties[0] == 0 and sums[0, 0] == 2 and not np.any(scores)


def test_bounded_sums_of_nan_are_not_hidden():
    scores = np.array([[[0.0], [np.nan]], [[0.0], [0.0]]])
    _, penalties = bounded_sums(scores, np.ones((2, 2)), [1, 1], [[[0, 1]]] * 2, 1)
    assert math.isnan(penalties[0]) and penalties[1] == 0


@pytest.mark.parametrize("size, take", [(5, 2), (4, 3), (3, 3), (6, 1)])
def test_distinct_draws_are_uniform_exactly(size, take):
    """Floyd: draw x is uniform over size - take + x + 1 values. One value of each cell, all
    combinations: every subset comes out equally often."""
    cells = [size - take + x + 1 for x in range(take)]
    marks, found = np.zeros(size + 2, dtype=np.uint8), {}
    for choice in itertools.product(*(range(c) for c in cells)):
        uniforms = np.array([(i + 0.5) / c for i, c in zip(choice, cells)])
        draws = np.full(take, -1)
        kernels.distinct_draws(uniforms, np.array([size]), np.array([take]), marks, draws)
        assert not np.any(marks) and len(set(draws.tolist())) == take
        assert draws.min() >= 0 and draws.max() < size
        key = tuple(sorted(draws.tolist()))
        found[key] = found.get(key, 0) + 1
    assert len(found) == math.comb(size, take)
    assert set(found.values()) == {math.prod(cells) // len(found)}


def test_distinct_draws_of_several_sizes_and_at_the_edge():
    sizes, takes = np.array([4, 1, 7, 3]), np.array([2, 1, 0, 3])
    for value in (0.0, np.nextafter(1.0, 0.0)):
        draws = np.full(6, -1)
        kernels.distinct_draws(np.full(6, value), sizes, takes, np.zeros(7, np.uint8), draws)
        first, second, third = draws[:2], draws[2:3], draws[3:]
        assert len(set(first.tolist())) == 2 and first.min() >= 0 and first.max() < 4
        assert second.tolist() == [0]
        assert sorted(third.tolist()) == [0, 1, 2]


# --- ranking


@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-5), ("float64", 1e-13)])
def test_product_of_rows(dtype, rtol):
    """rows @ layer; rows that are equal give the same bits wherever they stand."""
    rng = np.random.default_rng(4)
    rows, layer = rng.normal(size=(41, 50)).astype(dtype), rng.normal(size=(50, 37)).astype(dtype)
    rows[[7, 23, 40]] = rows[0]
    out = np.full((41, 37), 9, dtype=dtype)
    kernels.product_of_rows(rows, layer, out)
    np.testing.assert_allclose(out, rows.astype(float) @ layer.astype(float), rtol=rtol, atol=10 * rtol)
    assert all(np.array_equal(out[i], out[0]) for i in (7, 23, 40))


def counted(scores, start, tolerance, side, triples, tables, tail_offset, known, counts):
    """Counts of one tile, as a ranking does it: those surely above, then the near ones by their exact scores."""
    kind, all_of = kernels.DISTMULT, np.arange(len(triples))
    answers, right = np.ascontiguousarray(triples[:, 2 * side]), np.empty(len(triples), scores.dtype)
    kernels.exact_scores(kind, tables, tail_offset, side, triples, all_of, answers, right)
    low, high = (right - tolerance).astype(scores.dtype), (right + tolerance).astype(scores.dtype)
    near = np.empty((2, scores.size), np.int64)
    n = kernels.count_better(scores, start, low, high, answers, *known, counts, *near)
    exact = np.empty(n, scores.dtype)
    kernels.exact_scores(kind, tables, tail_offset, side, triples, *near[:, :n], exact)
    kernels.count_near(*near[:, :n], exact, right, *known, counts)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tail_offset", [0, 300])
@pytest.mark.parametrize("width", [300, 290, 7, 1])
def test_count_better(dtype, tail_offset, width):
    """Hand-made, DistMult with k = 1: the score is h t. The scores handed in are off by up to 1e-3,
    within the tolerance of 0.01, and must not decide between equal or nearly equal ones."""
    values = np.zeros(300)  # more than one block of 256
    values[:6] = [1, 2, 2, 3, 2, 0]
    values[290:] = [2, 4, 4, 1.9995, 2.0005, 0, 0, 0, 0, -1]
    rows = np.concatenate([values, values] if tail_offset else [values])[:, None].astype(dtype)
    tables = rows, np.ones((1, 1), dtype=dtype), np.zeros(0, dtype=dtype)
    triples = np.array([(0, 0, 1), (0, 0, 1), (0, 0, 5)], dtype=np.int32)
    known = np.array([1, 3, 4, 293, 0, 2, 5], dtype=np.int32)
    starts, stops = np.array([0, 4, 4]), np.array([4, 4, 7])
    expected = {
        # tails above 2: 3, 291, 292, 294; equal: 2, 4, 290 (known: 3, 4, 293). Third: above 0 are 1 to 4,
        # 0 and 290 to 294, below is 299, equal all others (known: 2, 0)
        1: [[4, 3, 3, 2], [4, 3, 4, 3], [10, 288, 8, 288]],
        # heads, score 2 e, above 2: 1 to 4, 290 to 294, equal: none (known: 3, 1, 4, 293). Third: all 0
        0: [[9, 0, 5, 0], [9, 0, 9, 0], [0, 299, 0, 297]],
    }
    rng = np.random.default_rng(0)
    for side in (0, 1):
        scores = values[triples[:, 2 - 2 * side]][:, None] * values
        scores = (scores + rng.uniform(-1e-3, 1e-3, scores.shape)).astype(dtype)
        counts = np.zeros((3, 4), np.int64)
        for start in range(0, 300, width):
            tile = np.ascontiguousarray(scores[:, start : start + width])
            counted(tile, start, 0.01, side, triples, tables, tail_offset, (starts, stops, known), counts)
        assert counts.tolist() == expected[side]


def test_count_better_gives_up_on_nan():
    """NaN in another entity's score; of the right answer's the ranking takes care (tests/test_evaluation.py)."""
    rows, scores = np.ones((6, 1)), np.ones((1, 6))
    rows[5] = scores[0, 5] = np.nan
    counts, nothing = np.zeros((1, 4), np.int64), np.zeros(1, dtype=np.int64)
    tables, triples = (rows, np.ones((1, 1)), np.zeros(0)), np.array([(0, 0, 1)], dtype=np.int32)
    counted(scores, 0, 0.01, 1, triples, tables, 0, (nothing, nothing, np.zeros(0, np.int32)), counts)
    assert counts[0, 1] < 0


# --- the same again, interpreted and with checked indices


@pytest.mark.thorough
@pytest.mark.skipif("CARDKGE_PLAIN_RUN" in os.environ, reason="is such a run itself")
@pytest.mark.parametrize("variable", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_interpreted_and_bounds_checked(variable, tmp_path):
    """The kernels above, one training step per model, ranking. Its own cache: code is not shared."""
    tests = Path(__file__).parent
    chosen = "test_kernels or (test_one_step and True-none) or test_hand_made_table"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "", "-p", "no:cacheprovider", "-k", chosen]
    command += [str(tests / f"test_{name}.py") for name in ("kernels", "training", "evaluation")]
    environment = {**os.environ, variable: "1", "NUMBA_CACHE_DIR": str(tmp_path), "CARDKGE_PLAIN_RUN": "1"}
    result = subprocess.run(
        command, check=False, env=environment, cwd=tests.parent, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "passed" in result.stdout


@pytest.mark.parametrize("dtype, error", [("float32", 2e-6), ("float64", 1e-13)])
def test_softmax_rows(dtype, error):
    rng = np.random.default_rng(7)
    scores = (5 * rng.normal(size=(5, 700))).astype(dtype)
    scores[1] *= 30
    scores[2, ::3] = -np.inf
    largest, weights = scores.max(1), np.array([1.0, 2.5, 0.25, 3, 1])
    others = np.array([0, 0, 7.5, 1e3, 0])
    terms = np.exp(scores.astype(np.float64) - largest[:, None])
    totals = terms.sum(1) + others
    kernels.softmax_rows(scores, largest, weights, others)
    np.testing.assert_allclose(others, totals, rtol=error)
    np.testing.assert_allclose(scores, weights[:, None] * terms / totals[:, None], rtol=2 * error, atol=1e-37)
    assert (scores[2, ::3] == 0).all()
    scores[4, 3] = np.nan
    kernels.softmax_rows(scores, scores.max(1), weights, others)
    assert np.isnan(scores[4]).all() and np.isfinite(scores[:4]).all()
