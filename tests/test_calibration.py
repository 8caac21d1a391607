"""The calibration's likelihood through the bounds: by hand, by enumeration, by differences, on data drawn from it."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from gradcheck import check_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

import cardkge
import kernels
from cardkge import CardkgeError
from cardkge_tools.answers import calibration
from cardkge_tools.answers.calibration import FOLDS, Turns, calibrate, fit
from cardkge_tools.answers.decoding import Decoder, KnownAndLoops, KnownTails
from cardkge_tools.answers.missing import Missing
from cardkge_tools.answers.odds import log_odds, log_softmax_of
from cardkge_tools.definitions.counting import (
    N_FEATURES,
    calibrated_log_odds,
    calibration_objective,
    log_partition,
    pair_features,
    thinned_likelihood,
)
from cardkge_tools.graph.bounds import Bound, GraphBounds

BOUNDS = [(0, math.inf), (1, math.inf), (3, math.inf), (0, 1), (1, 1), (0, 2), (1, 3), (2, 2), (-2, 2)]


def query(log_softmax, found, features, lower=0, upper=math.inf, **others):
    """An (h, r) as `calibration_objective` takes it."""
    x = np.asarray(log_softmax, float)
    given = {"weights": np.ones(len(x)), "known_share": 0.0, "share": 0.5, "weight": 1.0}
    given |= {"log_softmax": x, "found": np.array(found, bool), "features": np.asarray(features, float)}
    return given | {"lower": lower, "upper": upper} | others


def drawn(rng, bounds, width=3):
    """A query with five candidates that are told apart and two that stand for several each."""
    found = rng.random(7) < [0.3] * 5 + [0, 0]
    lower, upper = bounds
    found &= np.cumsum(found) <= max(upper, 0)
    weights = np.append(np.ones(5), rng.uniform(1.5, 9, 2))
    shares = {"known_share": rng.uniform(0, 0.8), "share": rng.uniform(0.1, 0.9), "weight": rng.uniform(0.5, 20)}
    return query(rng.normal(-2, 1, 7), found, rng.normal(size=width), lower, upper, weights=weights, **shares)


# ------------------------------------------------------------------------------------------------------------------
# The definition
# ------------------------------------------------------------------------------------------------------------------


def test_the_toy_by_hand():
    """Two heads, three candidates each: P(V) = 2/9 and 125/288."""
    first = query(np.log([4 / 7, 2 / 7, 1 / 7]), [1, 0, 0], [math.log(3.5), 0], 0, 1)
    second = query(np.log([6 / 8, 1 / 8, 1 / 8]), [0, 0, 0], [0, math.log(4)])
    parameters, zero = np.array([0.0, 1.0, 1.0, 50.0]), np.zeros(4)
    value, gradient = calibration_objective(parameters, [first, second], zero, zero)
    assert value == pytest.approx(-math.log(2 / 9) - math.log(125 / 288), rel=1e-12)
    assert value == pytest.approx(2.3387, abs=1e-4)
    # first: d log P / d x is 1 - 2/4.5 of the best, 0 - o / 4.5 of the others; second: p' - p, with v = 1/2
    of_first = np.array([5 / 9, -1 / 4.5, -0.5 / 4.5])
    of_second = np.array([3 / 5 - 3 / 4, 1 / 5 - 1 / 3, 1 / 5 - 1 / 3])
    np.testing.assert_allclose(gradient[1], -math.log(3.5) * of_first.sum(), rtol=1e-12)
    np.testing.assert_allclose(gradient[2], -math.log(4) * of_second.sum(), rtol=1e-12)
    slope = -(of_first @ first["log_softmax"]) - (of_second @ second["log_softmax"])
    np.testing.assert_allclose(gradient[0], slope, rtol=1e-12)
    weighted = calibration_objective(parameters, [first | {"weight": 3.0}, second], parameters + 2, np.full(4, 0.5))
    assert weighted[0] == pytest.approx(-3 * math.log(2 / 9) - math.log(125 / 288) + 4 * 0.5 * 4 / 2, rel=1e-12)


def subsets(items):
    return itertools.chain.from_iterable(itertools.combinations(items, size) for size in range(len(items) + 1))


@pytest.mark.parametrize(("lower", "upper"), BOUNDS)
def test_the_likelihood_by_enumeration(lower, upper):
    """log P(V) is that of drawing S by the product of its odds within the bounds, and each member with probability v;
    over all V the probabilities add up to 1."""
    rng = np.random.default_rng(1)
    x, v, total = rng.normal(-0.5, 1.5, 5), 0.3, 0.0
    allowed = [s for s in subsets(range(5)) if lower <= len(s) <= upper]
    weights = [math.exp(x[list(s)].sum()) for s in allowed]
    for members in subsets(range(5)):
        found = np.isin(np.arange(5), members)
        expected = sum(
            w * v ** len(members) * (1 - v) ** (len(s) - len(members))
            for s, w in zip(allowed, weights, strict=True)
            if set(members) <= set(s)
        ) / sum(weights)
        if expected:
            value, *_ = thinned_likelihood(x, -math.inf, found, v, lower, upper)
            assert math.exp(value) == pytest.approx(expected, rel=1e-12)
            total += math.exp(value)
    assert total == pytest.approx(1, rel=1e-12)


def test_the_rest_is_many_improbable_candidates():
    x, found = np.array([0.5, -1.0, 0.2]), np.array([True, False, False])
    many = np.full(150, math.log(0.8 / 150))
    for lower, upper in ((0, 2), (1, 3)):
        apart = thinned_likelihood(np.append(x, many), -math.inf, np.append(found, many > 0), 0.4, lower, upper)
        folded = thinned_likelihood(x, math.log(0.8), found, 0.4, lower, upper)
        assert folded[0] == pytest.approx(apart[0], abs=5e-3)
        np.testing.assert_allclose(folded[1], apart[1][:3], atol=5e-3)
        assert folded[2] == pytest.approx(apart[1][3:].sum(), abs=5e-3)
    # without bounds Z is a product: (1 + o) for each that is told apart, exp of the sum for the rest
    value, d_odds, d_rest, _ = thinned_likelihood(x, math.log(0.8), found, 0.4, 0, math.inf)
    o = np.exp(x)
    expected = 0.4 * o[0] / (1 + o[0]) * np.prod((1 + 0.6 * o[1:]) / (1 + o[1:])) * math.exp(-0.8 * 0.4)
    assert math.exp(value) == pytest.approx(expected, rel=1e-12) and d_rest == pytest.approx(-0.8 * 0.4, rel=1e-12)
    np.testing.assert_allclose(d_odds[1:], 0.6 * o[1:] / (1 + 0.6 * o[1:]) - o[1:] / (1 + o[1:]), rtol=1e-9)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_the_gradient_by_differences(bounds):
    rng = np.random.default_rng(2)
    queries = [drawn(rng, bounds) for _ in range(3)]
    parameters, prior = rng.normal(size=5), (rng.normal(size=5), rng.uniform(0, 2, 5))
    _, gradient = calibration_objective(parameters, queries, *prior)
    value = lambda: calibration_objective(parameters, queries, *prior)[0]  # noqa: E731
    check_gradients(value, {"parameters": parameters}, {"parameters": gradient})


def test_log_odds_have_a_ceiling_keep_the_order_and_can_be_inverted():
    rng = np.random.default_rng(3)
    parameters = np.column_stack((rng.normal(size=2), rng.normal(size=(2, N_FEATURES)), [-0.5, 3.0]))
    found = cardkge.Calibration(parameters, np.zeros(3), np.ones(3), np.full(2, 0.5), np.array([0.25, 0.0]))
    relations, features = np.array([0, 1]), rng.normal(size=(2, N_FEATURES))
    scores = np.sort(rng.integers(-6, 3, (40, 2)) / 2, axis=0)
    odds = np.array([log_odds(found, relations, each, features) for each in scores])
    steps = np.diff(scores, axis=0)
    assert (np.diff(odds, axis=0)[steps > 0] > 0).all() and (np.diff(odds, axis=0)[steps == 0] == 0).all()
    # pi = c sigma(x), of which a share s is known elsewhere
    x = np.exp(parameters[:, 0]) * scores + (parameters[:, 1:-1] * features).sum(1)
    pi = cardkge.probability(parameters[:, -1]) * cardkge.probability(x)
    np.testing.assert_allclose(np.exp(odds), np.array([0.75, 1.0]) * pi / (1 - pi), rtol=1e-12)
    np.testing.assert_allclose([log_softmax_of(found, relations, each, features) for each in odds], scores, atol=1e-9)
    most = np.array([-0.5 + math.log(0.75), 3.0])  # log(c / (1 - c)), less what is known
    assert (log_softmax_of(found, relations, most + 1e-9, features) == np.inf).all()
    assert np.isfinite(log_softmax_of(found, relations, most - 1e-3, features)).all()
    far = calibrated_log_odds(parameters[0], np.array([-900.0, 900.0]), features[0])
    assert np.isfinite(far).all() and far[0][1] == pytest.approx(-0.5)


def test_features_of_a_pair():
    given = pair_features([2.0, 5.0, 3.0], [0, 1, 3], [1.0, 5.0, 2.5], np.array([2.0, 0, -1]), np.array([2.0, 1, 0.5]))
    np.testing.assert_allclose(
        given, [[1, 1, 0, 0, 0, 0], [1, 0, 0, 1.5, math.log(2), 2], [1, 0, 1, 0.5, math.log(4), 1]]
    )


# ------------------------------------------------------------------------------------------------------------------
# The kernel and the fit
# ------------------------------------------------------------------------------------------------------------------


def as_queries(queries):
    """The Turns of dicts, of one relation."""
    column = lambda name: np.array([q[name] for q in queries])  # noqa: E731
    rows = tuple(np.concatenate([q[name] for q in queries]) for name in ("log_softmax", "found", "weights"))
    return Turns(
        np.append(0, np.cumsum([len(q["found"]) for q in queries])), rows, column("features"),
        column("lower").astype(float), column("upper").astype(float),
        column("known_share"), column("share"), column("weight"), np.zeros(len(queries), int), np.zeros(3), np.ones(3),
        np.array([q.get("unseen", 0.0) for q in queries]),
    )  # fmt: skip


def by_kernel(queries, parameters, chosen=None):
    """(log P(V), its gradient) of each of the chosen Turns."""
    chosen = np.arange(len(queries.relations)) if chosen is None else chosen
    values, gradients = np.empty(len(chosen)), np.empty((len(chosen), len(parameters) + 1))
    of = queries.features, queries.lower, queries.upper, queries.known_share, queries.share, queries.unseen
    half = len(chosen) // 2
    for part in ((0, half), (half, len(chosen))):
        kernels.thinned_sets(*part, chosen, queries.starts, queries.rows, of, parameters, values, gradients)
    assert (gradients[queries.unseen[chosen] == 0, -1] == 0).all()
    return values, gradients[:, : len(parameters) + queries.unseen.any()]


def test_sizes_beyond_all_candidates_have_no_say():
    """Odds to the power of such a size are beyond all floats."""
    given = {"weights": np.ones(6), "known_share": 0.0, "share": 0.5, "weight": 1.0, "lower": 0, "upper": 150}
    given |= {"found": np.arange(6) == 5, "features": np.array([1.0, 0.0]), "log_softmax": np.linspace(-8, -0.1, 6)}
    parameters, zero = np.array([0.0, 8, 0, 40]), np.zeros(4)
    values, gradients = by_kernel(as_queries([given]), parameters)
    expected = calibration_objective(parameters, [given], zero, zero)
    assert values[0] == pytest.approx(-expected[0], rel=1e-9)
    np.testing.assert_allclose(gradients[0], -expected[1], rtol=1e-7, atol=1e-9)


@settings(max_examples=60)
@given(st.sampled_from(BOUNDS), st.integers(0, 10**6), st.sampled_from([0.3, 0.7, 1.2]), st.booleans())
def test_the_kernel_is_the_definition(bounds, seed, spread, unseen):
    rng = np.random.default_rng(seed)
    queries = [drawn(rng, bounds) | {"unseen": unseen * rng.uniform(0.1, 4)} for _ in range(4)]
    parameters = rng.normal(0, spread, 5)
    chosen, zero = np.array([0, 2, 3]), np.zeros(5 + unseen)
    values, gradients = by_kernel(as_queries(queries), parameters, chosen)
    for i, value, gradient in zip(chosen, values, gradients, strict=True):
        given = np.append(parameters, np.zeros(int(unseen)))
        expected = calibration_objective(given, [queries[i] | {"weight": 1.0}], zero, zero)
        assert value == pytest.approx(-expected[0], rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(gradient, -expected[1], rtol=1e-7, atol=1e-9 * max(1, abs(value)))


@pytest.mark.parametrize(("mean", "spread", "lower", "upper"), [
    (0, 1, 0, 1500), (-250, 20, 0, 2), (-250, 20, 900, math.inf), (200, 60, 0, 700), (-290, 3, 2, 3),
])  # fmt: skip
def test_five_thousand_candidates_and_extreme_odds(mean, spread, lower, upper):
    """Products of odds far beyond all floats, and chances far below: value and slope are those in logarithms."""
    rng, n, v = np.random.default_rng(8), 5000, 0.3
    x, weights = np.clip(rng.normal(mean, spread, n), -299, 299), np.ones(n)
    found = np.arange(n) < 2
    weights[-3:] = 7.5
    given = query(x, found, [0.0, 1.0], lower, upper, share=v, weights=weights)
    values, gradients = by_kernel(as_queries([given]), np.array([0.0, 0, 0, 750]))

    def log_p(by):
        """log P(V) where all log odds are greater by so much."""
        odds, rest = x[:-3] + by, np.logaddexp.reduce(x[-3:] + by + math.log(7.5))
        left, kept = math.log1p(-v), ~found[:-3]
        thinned = log_partition(odds[kept] + left, rest + left, lower - 2, upper - 2)
        return 2 * math.log(v) + odds[:2].sum() + thinned - log_partition(odds, rest, lower, upper)

    assert values[0] == pytest.approx(log_p(0), rel=1e-9)
    assert gradients[0][2] == pytest.approx((log_p(1e-3) - log_p(-1e-3)) / 2e-3, rel=1e-4, abs=1e-3)


def test_the_kernel_is_finite_far_out():
    """What a line search may ask on its way."""
    rng = np.random.default_rng(4)
    queries = as_queries([drawn(rng, bounds) for bounds in BOUNDS for _ in range(4)])
    for parameters in ([5.0, 90, -90, 50, -40], [-9.0, -90, 50, 90, 40], [5.0, -900, 900, -900, 3]):
        assert all(np.isfinite(x).all() for x in by_kernel(queries, np.array(parameters)))


def sample(rng, log_odds, lower, upper):
    """S of independent candidates within the bounds, by rejection: (n, m) bool."""
    p, found = cardkge.probability(log_odds), np.zeros(log_odds.shape, bool)
    left = np.arange(len(p))
    while len(left):
        found[left] = rng.random((len(left), p.shape[1])) < p[left]
        size = found[left].sum(1)
        left = left[(size < lower) | (size > upper)]
    return found


@pytest.mark.parametrize(("lower", "upper"), [(0, math.inf), (1, 1), (0, 2), (1, 3)])
def test_the_fit_finds_what_the_data_was_drawn_from(lower, upper):
    """Sets drawn from the model, within the bounds, each fact kept with probability v: the fit that knows v and the
    bounds finds slope, offset and ceiling. (Given [1, 1] the offset says nothing, and the ceiling
    little.)"""
    rng, n, m, v = np.random.default_rng(5), 12_000, 6, 0.4
    true = np.array([0.3, 1.0, 0, 0, -0.6, 0, 0, 1.0])
    x = np.log(rng.dirichlet(np.full(m, 0.7), n) + 1e-3)
    features = np.zeros((n, N_FEATURES))
    features[:, 0], features[:, 3] = 1, rng.normal(size=n)
    odds = calibrated_log_odds(np.repeat(true[None, None], m, 1), x, features[:, None])[0]
    facts = sample(rng, odds, lower, upper)
    found = facts & (rng.random((n, m)) < v)
    limits = np.full(n, lower, float), np.full(n, upper, float)
    queries = Turns(
        np.arange(0, n * m + 1, m), (x.ravel(), found.ravel(), np.ones(n * m)), features,
        *limits, np.zeros(n), np.full(n, v), np.ones(n), np.zeros(n, int),
        np.zeros(3), np.ones(3),
    )  # fmt: skip
    fitted = fit(queries, 1, 1)[0, :-1]
    judged = [0] if lower == upper else [0, 1, 4, 7]
    values, gradients = by_kernel(queries, fitted)
    error = np.sqrt(np.maximum(np.diag(np.linalg.pinv(gradients.T @ gradients)), 0))
    assert (np.abs(fitted - true)[judged] < 4 * error[judged] + 0.02).all(), (fitted, error)
    assert error[judged].max() < 0.5  # so that the line above says something
    assert values.sum() > by_kernel(queries, true)[0].sum() - 0.5


def test_a_relation_is_held_at_what_all_have_in_common():
    """Relations that say little stay near the common calibration, none with a ceiling of its own; the more precise the
    prior the nearer; the bits depend on no number of threads."""
    rng = np.random.default_rng(6)
    many = [drawn(rng, (0, math.inf), N_FEATURES) for _ in range(300)]
    many[-2:] = [each | {"weight": 0.05} for each in many[-2:]]
    queries = as_queries(many)
    queries.relations = np.repeat([0, 1, 3], [200, 98, 2])  # 2 has no query
    loose, tight = (fit(queries, 4, 1, precision)[:, :-1] for precision in (0.05, 1e6))
    np.testing.assert_allclose(tight[:, :-1], np.tile(tight[2, :-1], (4, 1)), atol=1e-2)
    np.testing.assert_allclose(loose[2], np.append(tight[2, :-1], calibration.CEILING[0]), atol=1e-6)
    zero = np.zeros(N_FEATURES + 2)  # what is common is the fit of all, held at 0, the ceiling apart
    _, gradient = calibration_objective(loose[2], many, zero, np.append(zero[1:] + calibration.COMMON, 0))
    assert np.abs(gradient[:-1]).max() < 0.1 and np.abs(loose[2, :-1]).max() > 0.02
    away = np.abs(loose - loose[2])[:, :-1].max(1)
    assert away[0] > 0.1 and away[0] > away[3] > away[2] == 0
    np.testing.assert_array_equal(loose, fit(queries, 4, 2, 0.05)[:, :-1])
    # at the minimum of the definition: its gradient is 0
    centre = np.append(loose[2, :-1], calibration.CEILING[0])
    strength = np.append(np.full(N_FEATURES + 1, 0.05), calibration.CEILING[1])
    own = [q for q, r in zip(many, queries.relations, strict=True) if r == 3]
    value, gradient = calibration_objective(loose[3], own, centre, strength)
    assert np.abs(gradient).max() < 1e-2
    for i in range(len(gradient)):
        for step in (0.1, -0.1):
            moved = loose[3] + step * (np.arange(len(gradient)) == i)
            assert calibration_objective(moved, own, centre, strength)[0] > value


# ------------------------------------------------------------------------------------------------------------------
# Candidates of a graph
# ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def graph():
    """(model, train, valid): 60 entities, 2 relations; the second has loops."""
    rng = np.random.default_rng(7)
    model = cardkge.DistMult(60, 2, dim=4, seed=1, dtype="float64")
    triples = np.unique(np.column_stack([rng.integers(n, size=400) for n in (60, 2, 60)]).astype(np.int32), axis=0)
    triples = rng.permutation(triples[(triples[:, 0] != triples[:, 2]) | (triples[:, 1] == 1)])
    return model, triples[:250], triples[250:300]


def test_each_fact_of_valid_is_asked_once_while_the_others_are_known(graph, monkeypatch):
    """The Turns of a graph, against its scores: log softmax over what is not known in that turn, weights that add up
    to all candidates and FOLDS times all pairs, shares of one part of valid, bounds less what is known."""
    model, train, valid = graph
    kept = {}
    monkeypatch.setattr(calibration, "fit", lambda queries, *_: kept.update(queries=queries) or np.zeros((2, 9)))
    bounds = np.array([[0.0, 9.0], [0.0, np.inf]])
    calibrate(model, (train, valid), [0.5, 0.2], bounds, threads=1)
    queries, scope = kept["queries"], cardkge.scope_pairs(train, 60, 2)
    x, found, weights = queries.rows
    assert (np.diff(queries.relations) >= 0).all()
    in_scope = set(zip(*map(np.ndarray.tolist, scope), strict=True))
    asked = [tuple(fact) for fact in valid.tolist() if tuple(fact[:2]) in in_scope]
    assert found.sum() == len(asked) > 40
    for r in (0, 1):
        own = queries.relations == r
        assert queries.weight[own].sum() == pytest.approx(np.count_nonzero(scope[1] == r) * FOLDS)
        v = [0.5, 0.2][r]
        np.testing.assert_allclose(queries.known_share[own], 0.8 * v)
        np.testing.assert_allclose(queries.share[own], 0.2 * v / (1 - 0.8 * v))
    places = np.split(np.arange(len(x)), queries.starts[1:-1])
    loops = {r: bool((train[train[:, 1] == r, 0] == train[train[:, 1] == r, 2]).any()) for r in (0, 1)}
    sizes = []
    for i, part in enumerate(places):
        if (weights[part] > 1).any() and queries.relations[i] == 0:  # some of the rest was drawn
            known = 9 - int(queries.upper[i])
            assert weights[part].sum() == pytest.approx(60 - known - (not loops[0]))
            assert (np.exp(x[part]) @ weights[part]) == pytest.approx(1, abs=0.35)
            sizes.append(known)
    assert max(sizes) > 2 and loops[1] and not loops[0]


def test_the_log_softmax_is_over_what_is_not_known(graph, monkeypatch):
    """Of the pair with most facts in valid, each turn by hand."""
    model, train, valid = graph
    kept = {}
    monkeypatch.setattr(calibration, "BEST", 60)  # all are told apart
    monkeypatch.setattr(calibration, "fit", lambda queries, *_: kept.update(queries=queries) or np.zeros((2, 9)))
    calibrate(model, (train, valid), 0.5, None, threads=1)
    queries = kept["queries"]
    (head, relation), count = max(
        ((pair, (valid[:, :2] == pair).all(1).sum()) for pair in {tuple(f[:2]) for f in valid.tolist()}),
        key=lambda each: (each[1], each[0]),
    )
    assert count > 1
    scores = model.score_tails(np.array([head]), np.array([relation]))[0]
    tails = {name: x[(x[:, :2] == (head, relation)).all(1), 2] for name, x in (("train", train), ("valid", valid))}
    free = np.setdiff1d(np.arange(60), np.append(tails["train"], [] if relation == 1 else [head])).astype(int)
    x, found, _ = queries.rows
    turns = [slice(*queries.starts[i : i + 2]) for i in np.flatnonzero(queries.relations == relation)]
    seen = []
    for turn in turns:
        targets = np.sort(x[turn][found[turn]])
        for size in range(1, count + 1):
            for asked in itertools.combinations(tails["valid"], size):
                open_ = np.setdiff1d(free, np.setdiff1d(tails["valid"], asked))
                total = cardkge.log_sum_exp(scores[open_])
                if len(targets) == size and np.allclose(np.sort(scores[list(asked)] - total), targets, atol=1e-12):
                    np.testing.assert_allclose(np.sort(x[turn]), np.sort(scores[open_] - total), atol=1e-12)
                    seen += asked
    assert sorted(seen) == sorted(tails["valid"])  # each fact in one turn


@pytest.mark.parametrize("loops", [False, True])
def test_fit_and_use_have_the_same_candidates(graph, monkeypatch, loops):
    """Given bounds of the inverse: a tail that has as many heads as it may have, in train and valid, is no candidate,
    neither at the fit nor at use. Each of the Turns in which all of valid is known is what a Decoder sees that knows
    valid: the same features, and log softmax of the same candidates; a fact of valid without room is none."""
    model, train, valid = graph
    kept = {}
    monkeypatch.setattr(calibration, "BEST", 60)
    monkeypatch.setattr(calibration, "fit", lambda queries, *_: kept.update(queries=queries) or np.zeros((2, 9)))
    bounds = GraphBounds([Bound("r0", 0, 3, inverse=True), Bound("r1", 0, 4, inverse=True)], ["r0", "r1"])
    found = calibrate(model, (train, valid), 0.5, bounds, threads=1, loops=loops)
    queries, known = kept["queries"], KnownTails(np.concatenate((train, valid)), 60, 2)
    irreflexive = np.array([not loops, False])
    decoder = Decoder(model, found, bounds, known, KnownAndLoops(known, irreflexive))
    heads, relations = cardkge.scope_pairs(train, 60, 2)
    full = {r: set(decoder.full.of(r).tolist()) for r in (0, 1)}
    assert all(len(tails) > 5 for tails in full.values())
    asked = queries.starts[np.flatnonzero(np.add.reduceat(queries.rows[1], queries.starts[:-1]) == 0)]
    of_fit = {round(float(x), 9) for x in queries.features[np.isin(queries.starts[:-1], asked), 5]}
    softmax = {round(float(x), 9) for x in queries.rows[0]}
    for h, r in zip(heads.tolist(), relations.tolist(), strict=True):
        scores = model.score_tails(np.array([h]), np.array([r]))
        tails = [t for t in range(60) if t not in full[r] and not known.has([h], [r], [t])[0]]
        tails = [t for t in tails if t != h or loops or r == 1]
        total = cardkge.log_sum_exp(scores[0, tails])
        decoded = decoder.decode(np.array([h]), np.array([r]), scores)
        assert {t for t, p in zip(decoded.ids, decoded.p, strict=True) if p > 0} <= set(tails)
        best = (scores[0, tails].max() - total - queries.centre[2]) / queries.scale[2]
        assert round(float(best), 9) in of_fit
        assert {round(float(x), 9) for x in scores[0, tails] - total} <= softmax
    of_tail = {tuple(f): known.count_heads([f[1]], [f[2]])[0] - 1 for f in valid.tolist()}
    room = [f for f, others in of_tail.items() if others < (3, 4)[f[1]]]
    in_scope = set(zip(heads.tolist(), relations.tolist(), strict=True))
    room = [f for f in room if f[:2] in in_scope and (f[0] != f[2] or loops or f[1] == 1)]
    assert queries.rows[1].sum() == len(room) < len(valid)


def test_heads_without_a_candidate_say_nothing(graph):
    """^r0 [0, 1]: nearly every tail is full, and no tail is left to some heads. What is fitted is finite."""
    model, train, valid = graph
    everyone = np.column_stack([np.full(60, 1), np.zeros(60, int), np.arange(60)]).astype(np.int32)
    bounds = GraphBounds([Bound("r0", 0, 1, inverse=True)], ["r0", "r1"])
    found = calibrate(model, (np.concatenate((train, everyone)), valid), 0.5, bounds, threads=1)
    assert all(np.isfinite(x).all() for x in (found.parameters, found.centre, found.scale))


def test_a_bound_beyond_all_candidates_is_fitted_where_tails_may_be_unseen(graph, monkeypatch):
    """e3 has 70 tails of r0, and the graph 60 entities; so many as e4 and e5 are said to have are never there."""
    model, train, valid = graph
    numbers = {"e3": 70.0, "e4": 3e6, "e5": 1e300}
    bounds = [Bound("r0", number, number, subject=head) for head, number in numbers.items()]
    bounds, kept = GraphBounds(bounds, ["r0", "r1"], None, [f"e{i}" for i in range(60)]), []
    monkeypatch.setattr(calibration, "fit", lambda queries, *_: kept.append(queries) or fit(queries, 2, 1))
    held = np.bincount(valid[:, 1], minlength=2)
    missing = Missing(held, held, np.zeros(2), ["assumed"] * 2, np.full(2, np.inf), np.full(2, 0.5))
    for unseen in (0.3, 0.0):
        found = calibrate(model, (train, valid), replace(missing, unseen=np.full(2, unseen)), bounds, threads=1)
        assert np.isfinite(found.parameters).all() and np.isfinite(found.unseen).all()
    assert 60 < kept[0].lower.max() <= 70 and kept[0].unseen.min() == 0 and kept[0].unseen.max() > 0
    assert kept[1].lower.max() <= 0


def test_nothing_is_lost_where_all_draws_fall_on_what_is_taken(graph, monkeypatch):
    model, train, valid = graph
    kept = {}
    monkeypatch.setattr(calibration, "BEST", 20)
    monkeypatch.setattr(calibration, "DRAWN", 1)
    monkeypatch.setattr(calibration, "fit", lambda queries, *_: kept.update(queries=queries) or np.zeros((2, 9)))
    calibrate(model, (train, valid), 0.5, np.array([[0.0, 50.0], [0.0, 50.0]]), threads=1)
    queries, loops = kept["queries"], [1, 0]
    together = np.add.reduceat(queries.rows[2], queries.starts[:-1])
    np.testing.assert_allclose(together, 60 - (50 - queries.upper) - np.array(loops)[queries.relations])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_of_equal_scores_few_are_taken_and_stand_for_all(monkeypatch, dtype):
    """Relation 0 has scores of 0 alone, of 600 candidates: the facts of valid are told apart, and 8 others drawn."""
    rng, kept = np.random.default_rng(3), {}
    model = cardkge.DistMult(600, 2, dim=4, seed=1, dtype=dtype)
    model.params["relation"][0] = 0
    triples = np.column_stack([rng.integers(each, size=300) for each in (20, 2, 600)]).astype(np.int32)
    monkeypatch.setattr(calibration, "fit", lambda queries, *_: kept.update(queries=queries) or np.zeros((2, 9)))
    calibrate(model, (triples[:200], triples[200:]), 0.5, np.array([[0.0, 600.0]] * 2), threads=1)
    queries = kept["queries"]
    together, sizes = np.add.reduceat(queries.rows[2], queries.starts[:-1]), np.diff(queries.starts)
    loops = [bool((triples[:200][triples[:200, 1] == r] @ [1, 0, -1] == 0).any()) for r in (0, 1)]
    np.testing.assert_allclose(together, queries.upper - 1 + np.array(loops)[queries.relations])
    assert (queries.rows[2] > 0).all() and sizes[queries.relations == 0].max() < 30 < sizes.max() < 120


def test_what_a_calibration_cannot_be_fitted_on(graph):
    model, train, valid = graph
    with pytest.raises(CardkgeError, match=r"must be in \(0, 1\), found 0.5 to 1"):
        calibrate(model, (train, valid), [0.5, 1.0])
    with pytest.raises(CardkgeError, match="nothing to fit on"):
        calibrate(model, (train, valid[:0]), 0.5)
    with pytest.raises(CardkgeError, match="no \\(h, r\\) is in scope"):
        calibrate(model, (train[:0], valid), 0.5)
    with pytest.raises(CardkgeError, match="the bounds leave no room"):
        calibrate(model, (train, valid), 0.5, np.zeros((model.n_relations, 2)))


def test_a_likelihood_that_is_not_finite_is_an_error():
    with pytest.raises(cardkge.CardkgeError, match="the likelihood is not finite"):
        calibration.minimise(lambda x: (np.nan, x, np.eye(1)), [1.0])
    with pytest.raises(cardkge.CardkgeError, match="the likelihood is not finite"):
        calibration.minimise(lambda x: (0.0, x * np.inf, np.eye(1)), [1.0])


@pytest.mark.parametrize("bounds", [5, ["r0\t0\t1"], {}])
def test_bounds_of_a_calibration_are_text_or_nothing(tmp_path, bounds):
    found = calibration.Calibration(np.zeros((1, 8)), np.zeros(3), np.ones(3), np.full(1, 0.5), np.full(1, 0.5), bounds)
    path = tmp_path / "calibration.json"
    path.write_bytes(calibration.calibration_bytes(found, ["r0"], 1))
    with pytest.raises(cardkge.CardkgeError, match="not a calibration of this run"):
        calibration.read_calibration(path, ["r0"], 1)
