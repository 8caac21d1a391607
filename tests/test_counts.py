"""Calibrated probabilities conditioned on the bounds: against rational arithmetic, differences and enumeration."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from gradcheck import check_gradients

import cardkge as counts
import kernels
from cardkge import CardkgeError, probability
from cardkge_tools.constraints import Types

ONE = np.ones((1, 1))  # no weights of counts


def enumerated(odds, lower, upper):
    """P(t in S | lower <= |S| <= upper) of rational odds, over all 2^n sets; and the expected size."""
    total, inside = Fraction(0), [Fraction(0)] * len(odds)
    for size in range(len(odds) + 1):
        if lower <= size <= upper:
            for members in itertools.combinations(range(len(odds)), size):
                weight = Fraction(1)
                for t in members:
                    weight *= odds[t]
                total += weight
                for t in members:
                    inside[t] += weight
    return [x / total for x in inside]


def rational_odds(rng, n, decades):
    return [Fraction(float(x)) for x in 10.0 ** rng.uniform(-decades, decades, n)]


def logs(odds):
    """Log odds of rationals of any size."""
    return np.array([np.log(float(o)) for o in odds])


@pytest.mark.parametrize("n", [1, 2, 5, 8, 11])
@pytest.mark.parametrize("decades", [1, 6, 300])
def test_against_enumeration_of_all_sets(n, decades):
    """The rational odds are those of the rounded log odds as closely as these can say: 1e-16 |log odds| relative."""
    rng = np.random.default_rng(n * 1000 + decades)
    odds = rational_odds(rng, n, decades)
    for lower, upper in itertools.product((0, 1, 2, n), (0, 1, 2, n - 1, n, float("inf"))):
        if lower <= min(upper, n):
            found = counts.conditioned(logs(odds), lower, upper)
            expected = enumerated(odds, lower, upper)
            np.testing.assert_allclose(found, [float(x) for x in expected], rtol=1e-12 * decades, atol=1e-290)


def test_extreme_odds_side_by_side():
    """1e-300 beside 1e300, and a window that only the improbable sets reach."""
    odds = [Fraction(10) ** e for e in (-300, -299, 300, 299, 0, 0, -150, 150)]
    for lower, upper in [(0, 1), (1, 1), (2, 2), (3, 3), (4, 4), (6, 7), (7, 7), (0, 7), (8, 8), (5, float("inf"))]:
        expected = np.array([float(x) for x in enumerated(odds, lower, upper)])
        found = counts.conditioned(logs(odds), lower, upper)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-290)
        complement = [float(1 - x) for x in enumerated(odds, lower, upper)]
        np.testing.assert_allclose(1 - found, complement, atol=1e-14)


@pytest.mark.parametrize("lower, upper", [(0, 3), (2, 3), (3, 3), (5, float("inf")), (0, 1), (7, 9)])
def test_order_is_kept_and_equal_odds_get_equal_answers(lower, upper):
    rng = np.random.default_rng(3)
    log_odds = rng.integers(-4, 3, 60) / 2 + rng.choice([0, 1e-15, -200], 60)
    answers = counts.conditioned(log_odds, lower, upper)
    order = np.argsort(log_odds)
    gaps, steps = np.diff(log_odds[order]), np.diff(answers[order])
    assert (steps >= 0).all() and (steps[gaps == 0] == 0).all()
    expected = answers.sum()
    assert lower - 1e-9 <= expected <= min(upper, 60) + 1e-9


def test_closed_forms():
    """Equal odds: what is expected is shared out. Exactly one: softmax. All but one: its mirror image."""
    rng = np.random.default_rng(4)
    log_odds = rng.normal(-3, 4, 500)
    softmax = np.exp(log_odds - counts.log_sum_exp(log_odds))
    np.testing.assert_allclose(counts.conditioned(log_odds, 1, 1), softmax, rtol=1e-11)
    np.testing.assert_allclose(1 - counts.conditioned(-log_odds, 499, 499), softmax, atol=1e-13)
    at_most_one = np.exp(log_odds) / (1 + np.exp(log_odds).sum())
    np.testing.assert_allclose(counts.conditioned(log_odds, 0, 1), at_most_one, rtol=1e-11)
    for size in (1, 7, 499):
        np.testing.assert_allclose(counts.conditioned(np.full(500, 2.5), size, size), size / 500, rtol=1e-10)


@pytest.mark.parametrize("shift", [-30, -9, -4, 0, 6])
def test_forty_thousand_candidates_and_a_bound_of_five_hundred(shift):
    """Nothing overflows, and the expected count is the one that its own probabilities give, within the bounds."""
    rng = np.random.default_rng(5)
    log_odds = rng.normal(shift, 3, 40_000)
    starts = np.array([0, 40_000])
    for lower, upper in [(0, 500), (500, 500), (480, 500), (500, np.inf), (1, np.inf)]:
        answers = np.empty(40_000)
        kernels.condition_sets(0, 1, starts, log_odds, np.array([lower]), np.array([upper]), ONE, answers)
        assert ((answers >= 0) & (answers <= 1)).all()
        assert lower * (1 - 1e-9) <= answers.sum() <= upper * (1 + 1e-9)
    kernels.condition_sets(0, 1, starts, np.full(40_000, -800.0), np.array([500.0]), np.array([500.0]), ONE, answers)
    np.testing.assert_allclose(answers, 500 / 40_000, rtol=1e-9)


def test_limits():
    log_odds = np.array([-1.0, 0.5, 3.0, -700.0])
    p = probability(log_odds)
    np.testing.assert_array_equal(counts.conditioned(log_odds, 0, 0), 0)
    np.testing.assert_array_equal(counts.conditioned(log_odds, 0, np.inf), p)
    np.testing.assert_array_equal(counts.conditioned(log_odds, 0, 4), p)
    np.testing.assert_array_equal(counts.conditioned(log_odds, 4, 9), 1)
    np.testing.assert_array_equal(counts.conditioned(log_odds, -2, 2.9), counts.conditioned(log_odds, 0, 2))
    np.testing.assert_array_equal(counts.conditioned(log_odds, 0.1, 2), counts.conditioned(log_odds, 1, 2))
    # at least one: the complement of none
    np.testing.assert_allclose(counts.conditioned(log_odds, 1, np.inf), p / (1 - np.prod(1 - p)), rtol=1e-14)
    assert counts.conditioned(np.empty(0), 0, 3).shape == (0,)
    for lower, upper in [(5, np.inf), (0, -1), (1.2, 1.8)]:
        with pytest.raises(CardkgeError, match="no set of 4 candidates has a size"):
            counts.conditioned(log_odds, lower, upper)


def test_kernel_is_the_definition():
    rng = np.random.default_rng(6)
    sets = []
    windows = (0, 0), (0, 1), (0, 4), (2, 4), (3, 3), (1, np.inf), (9, np.inf), (0, np.inf), (0, 59)
    for n in (0, 1, 2, 3, 10, 60, 300):
        for spread in (0.0, 1.0, 5.0, 300.0):
            for lower, upper in windows:
                sets.append((np.round(rng.normal(rng.choice([-6, 0, 4]), spread, n), 1), lower, upper))
    starts = np.append(0, np.cumsum([len(x) for x, _, _ in sets]))
    log_odds = np.concatenate([x for x, _, _ in sets])
    lower, upper = (np.array([s[i] for s in sets], np.float64) for i in (1, 2))
    answers = np.full(len(log_odds), np.nan)
    half = len(sets) // 2
    kernels.condition_sets(0, half, starts, log_odds, lower, upper, ONE, answers)
    kernels.condition_sets(half, len(sets), starts, log_odds, lower, upper, ONE, answers)
    for i, (x, low, high) in enumerate(sets):
        found = answers[starts[i] : starts[i + 1]]
        if low > len(x):
            assert (found == 0).all()
        else:
            np.testing.assert_allclose(found, counts.conditioned(x, low, high), rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("dtype, error", [("float32", 2e-6), ("float64", 1e-13)])
def test_log_sums_and_live_candidates(dtype, error):
    rng = np.random.default_rng(7)
    scores = (5 * rng.normal(size=(9, 700))).astype(dtype)
    scores[3] *= 30
    largest, sums = np.empty(9, dtype), np.empty(9)
    kernels.log_sums(scores, largest, sums)
    np.testing.assert_array_equal(largest, scores.max(1))
    np.testing.assert_allclose(sums, counts.log_sum_exp(scores), rtol=error, atol=error)
    taken, wanted = rng.random(scores.shape) < 0.1, rng.random(scores.shape) < 0.01
    wanted &= ~taken
    least = np.linspace(-20, 20, 9).astype(dtype)
    lists = [(np.append(0, np.cumsum(mask.sum(1))), np.nonzero(mask)[1].astype(np.int32)) for mask in (taken, wanted)]
    starts, ids = np.empty(10, np.int64), np.empty(10, np.int32)
    needed = kernels.live_candidates(scores, least, *lists[0], *lists[1], starts, ids)
    expected = ((scores >= least[:, None]) | wanted) & ~taken
    assert needed == expected.sum() > 10  # more than there was room for
    ids = np.empty(needed, np.int32)
    kernels.live_candidates(scores, least, *lists[0], *lists[1], starts, ids)
    np.testing.assert_array_equal(ids, np.nonzero(expected)[1])
    np.testing.assert_array_equal(starts, np.append(0, np.cumsum(expected.sum(1))))


# ------------------------------------------------------------------------------------------------------------------
# Calibration
# ------------------------------------------------------------------------------------------------------------------


def features_and_labels(rng, n, parameters, share):
    features = np.column_stack((-np.abs(rng.normal(0, 3, n)), rng.normal(size=n), np.ones(n)))
    pi = probability(features @ np.append(np.exp(parameters[0]), parameters[1:]))
    return features, rng.random(n) < share * pi


def test_calibration_gradient():
    rng = np.random.default_rng(8)
    parameters = rng.normal(size=3)
    features, found = features_and_labels(rng, 40, parameters, 0.4)
    rest = (rng.uniform(0.5, 20, 40), 0.4, rng.normal(size=3), rng.uniform(0, 2, 3))
    value, gradient, information = counts.calibration_loss(parameters, features, found, *rest)
    check_gradients(
        lambda: counts.calibration_loss(parameters, features, found, *rest)[0],
        {"parameters": parameters},
        {"parameters": gradient},
    )
    # the value by the words of the derivation
    pi = 1 / (1 + np.exp(-(features @ np.append(np.exp(parameters[0]), parameters[1:]))))
    by_hand = -(rest[0] * np.log(np.where(found, 0.4 * pi, 1 - 0.4 * pi))).sum()
    by_hand += (rest[3] * (parameters - rest[2]) ** 2).sum() / 2
    assert value == pytest.approx(by_hand, rel=1e-12)
    # the information is the mean of the curvature: over both labels, each as likely as it is
    expected = np.zeros((3, 3))
    for label in (True, False):
        d = np.array(
            [counts.calibration_loss(parameters, features[i : i + 1], np.array([label]), *[np.ones(1), *rest[1:]])[1]
             for i in range(40)]
        ) - rest[3] * (parameters - rest[2])  # fmt: skip
        likelihood = rest[0] * (0.4 * pi if label else 1 - 0.4 * pi)
        expected += (d.T * likelihood) @ d
    np.testing.assert_allclose(information, expected + np.diag(rest[3]), rtol=1e-9)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_fit_finds_what_the_labels_were_drawn_from(share):
    rng = np.random.default_rng(9)
    parameters = np.array([0.3, -0.7, -1.0])
    features, found = features_and_labels(rng, 400_000, parameters, share)
    fitted = counts.fit_calibration(features, found, np.ones(len(found)), share, np.zeros(3), np.full(3, 1e-3))
    np.testing.assert_allclose(fitted, parameters, atol=0.15)
    _, gradient, _ = counts.calibration_loss(fitted, features, found, np.ones(len(found)), share, 0, np.full(3, 1e-3))
    assert np.abs(gradient).max() < 1e-2 * np.sqrt(len(found))


def test_calibration_keeps_the_order_of_scores_and_their_ties():
    rng = np.random.default_rng(10)
    scores = rng.integers(-5, 5, (3, 40)).astype(np.float32)
    coefficients = rng.normal(size=(3, 3, 3)) * [5, 0, 3]
    coefficients[..., 1] = rng.uniform(0.001, 2, (3, 3)) - coefficients[..., 0]  # a + b > 0
    sums, known = counts.log_sum_exp(scores), np.array([0, 1, 7])
    z = counts.calibration_logits(coefficients[:, None], scores, sums[:, None], known[:, None])
    for row, of in zip(scores, z, strict=True):
        order = np.argsort(row)
        steps = np.diff(row[order])
        assert (np.diff(of[order])[steps > 0] > 0).all() and (np.diff(of[order])[steps == 0] == 0).all()
    a, b, c = (coefficients[[0, 1, 2], [0, 1, 2], i][:, None] for i in range(3))
    np.testing.assert_allclose(z, a * scores + b * (scores - sums[:, None]) + c, rtol=1e-6, atol=1e-6)


def test_scope_by_classes():
    """0 to 5 people, 6 and 7 cities, 8 without a class, 9 in no triple of train. r0 of 0, 1 and 8; r1 of 2 and 6."""
    train = np.array([(0, 0, 3), (1, 0, 6), (8, 0, 0), (2, 1, 7), (6, 1, 4), (3, 2, 5), (7, 3, 0)], np.int32)
    people = [(e, 0) for e in (0, 1, 2, 3, 4, 5, 9)] + [(0, 1), (1, 1), (2, 1), (4, 1)]
    types = Types(["person", "painter", "city"], [*people, (6, 2), (7, 2)])

    def scope(types=None, relations=None):
        heads, of = counts.scope_pairs(train, 10, 4, relations, types)
        return {r: heads[of == r].tolist() for r in np.unique(of).tolist()}

    assert scope() == {0: [0, 1, 8], 1: [2, 6], 2: [3], 3: [7]}
    painters, everyone = [0, 1, 2, 4, 8], [0, 1, 2, 3, 4, 5]  # 9 stays out: train does not know it
    assert scope(types) == {0: painters, 1: [2, 6], 2: everyone, 3: [6, 7]}
    assert scope(types, [3]) == {3: [6, 7]}
    assert scope(Types()) == scope() and scope(Types(["city"], [(6, 0)]))[1] == [2, 6]


# ------------------------------------------------------------------------------------------------------------------
# Decoding
# ------------------------------------------------------------------------------------------------------------------


def test_what_is_left_out_early_is_what_is_not_accepted():
    """With --min-probability, (h, r) without a candidate that can reach it are not looked at further; what is found,
    and its p, are those of all candidates."""
    rng = np.random.default_rng(11)
    model = counts.new_model(counts.Settings(model="complex", dim=6), 300, 4)
    for name, array in model.params.items():
        model.params[name] = rng.normal(0, 0.9, array.shape).astype(np.float32)
    coefficients = np.tile([0.3, 0.5, -1.0], (4, 3, 1)) + rng.normal(0, 0.2, (4, 3, 3))
    triples = np.column_stack([rng.integers(n, size=400) for n in (300, 4, 300)])
    known = counts.Answers(triples, 300, 4)
    bounds = np.array([[0, np.inf], [0, 2], [1, 3], [2, np.inf]])
    decoder = counts.Decoder(model, counts.Calibration(coefficients, 0.4), bounds, known)
    heads, relations = (x.ravel() for x in np.meshgrid(np.arange(300), np.arange(4)))
    scores = model.score_tails(heads, relations)
    everything = decoder.decode(heads, relations, scores)
    for need in (0.0, 1e-3, 0.2, 0.5, 0.9, 1.0):
        found = decoder.decode(heads, relations, scores, need)
        few, all_ = ([x[k][x["p"] > need].tolist() for k in ("row", "ids", "p")] for x in (found, everything))
        assert few == all_ and (need == 1) == (not few[0])
        for name in ("known", "candidates", "contradicted"):
            np.testing.assert_array_equal(found[name], everything[name])
        unbounded = found["row"] < 300
        assert need == 0 or (found["p"][unbounded] > need * (1 - 1e-5)).all()
    assert everything["contradicted"].any()
