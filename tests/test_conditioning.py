"""Conditioning on counts, the definition and the kernel, against sums over all sets.

`conditioned` adds logarithms and knows no tilt; `kernels.condition_sets` adds tilted probabilities.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cardkge
import kernels
from cardkge import CardkgeError, conditioned, probability

MOST = 7  # candidates: 128 sets
SETS = (np.arange(2**MOST)[:, None] >> np.arange(MOST)) & 1  # a set a row, its members 1
KINDS = ["no upper bound", "an upper bound", "holes", "holes, no upper bound"]


def enumerated(x, lower, upper, weights=(1.0,)):
    """P(t in S) (n,) by the sum over all sets, or None where none of them has a weight."""
    n = len(x)
    sets = SETS[: 2**n, :n]
    sizes = sets.sum(1)
    chance = np.exp(sets @ x) * np.asarray(weights, float)[np.minimum(sizes, len(weights) - 1)]
    chance = np.where((sizes >= lower) & (sizes <= upper), chance, 0)
    return (chance @ sets) / chance.sum() if chance.any() else None


def by_kernel(sets):
    """The answers of the kernel to [(x, lower, upper, weights (m,))], weights of one length; a list."""
    starts = np.append(0, np.cumsum([len(x) for x, *_ in sets]))
    x, answers = np.concatenate([x for x, *_ in sets]), np.full(starts[-1], np.nan)
    lower, upper = (np.array([each[i] for each in sets], float) for i in (1, 2))
    weights = np.array([each[3] for each in sets], float)
    kernels.condition_sets(0, len(sets), starts, x, lower, upper, weights, np.zeros(1), answers)
    return np.split(answers, starts[1:-1])


def random_sets(kind, above, count):
    """Sets whose lower bound is ceil(mean) + above: where the bound binds a little, or just does not."""
    rng = np.random.default_rng([KINDS.index(kind), above + 1])
    for _ in range(count):
        x = np.round(rng.normal(rng.choice([-2, 0, 1]), rng.choice([0.5, 2, 5]), rng.integers(1, MOST + 1)), 3)
        lower = math.ceil(probability(x).sum()) + above
        upper = math.inf if "no upper" in kind else lower + int(rng.integers(0, 3))
        weights = np.ones(5)
        if "holes" in kind:
            weights = rng.random(5) * (rng.random(5) < 0.5)
        yield x, lower, upper, weights


@pytest.mark.parametrize("above", [-1, 0, 1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [150, pytest.param(2000, marks=pytest.mark.thorough)])
def test_bounds_beside_the_mean_against_all_sets(kind, above, count):
    sets = list(random_sets(kind, above, count))
    impossible = 0
    for (x, lower, upper, weights), found in zip(sets, by_kernel(sets), strict=True):
        expected = enumerated(x, lower, upper, weights)
        if expected is None:
            impossible += 1
            np.testing.assert_array_equal(found, 0)
            with pytest.raises(CardkgeError, match=r"no set of .* of a weight above 0"):
                conditioned(x, lower, upper, weights)
            continue
        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=str((x, lower, upper, weights)))
        found = conditioned(x, lower, upper, weights)
        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=str((x, lower, upper, weights)))
    assert impossible < count and (impossible > 0 or above < 1)


def test_three_candidates_with_the_mean_a_little_below_the_bound():
    """The mean is 1.963, at least 2 are facts."""
    x = [2.291, -1.477, 1.893]
    o = np.exp(x)
    pairs, all_three = np.array([o[0] * o[1], o[0] * o[2], o[1] * o[2]]), np.prod(o)
    expected = (np.array([pairs[0] + pairs[1], pairs[0] + pairs[2], pairs[1] + pairs[2]]) + all_three) / (
        pairs.sum() + all_three
    )
    np.testing.assert_allclose(expected, [0.98204, 0.22228, 0.97325], atol=5e-6)
    np.testing.assert_allclose(conditioned(x, 2, math.inf), expected, rtol=1e-13)
    np.testing.assert_allclose(by_kernel([(x, 2, math.inf, [1])])[0], expected, rtol=1e-13)


@pytest.mark.parametrize(
    "x, lower, upper, weights",
    [
        ([0, 0, 0], 1, 1, [1, 0, 1]),
        ([0.3], 1, 1, [1, 0, 1]),
        ([0, 1], 2, 3, [1, 1, 0, 1]),
        ([0, 1], 0, 9, [0, 0, 0, 1]),
    ],
)
def test_weights_of_0_throughout_the_bounds_are_an_error(x, lower, upper, weights):
    with pytest.raises(CardkgeError, match=f"no set of {len(x)} candidates has a size from"):
        conditioned(x, lower, upper, weights)
    np.testing.assert_array_equal(by_kernel([(np.array(x, float), lower, upper, weights)])[0], 0)


def test_a_hole_within_the_bounds():
    """Two candidates of odds 1 and 2, none or both: 2 of 1 + 2."""
    for found in (conditioned([0, math.log(2)], 0, 2, [1, 0, 1]), by_kernel([([0, math.log(2)], 0, 2, [1, 0, 1])])[0]):
        np.testing.assert_allclose(found, 2 / 3, rtol=1e-14)


def test_nothing_is_excluded_and_nothing_changes():
    x = np.array([-1000.0, -3.0, 0.1, 40.0])
    for bounds in ((0, math.inf), (-1, 4), (0, 7)):
        np.testing.assert_array_equal(conditioned(x, *bounds, [0.5]), probability(x))
    assert conditioned([], 0, 0).shape == (0,)


@given(
    st.lists(st.integers(-60, 60).map(lambda i: i / 4), min_size=1, max_size=25),
    st.integers(-1, 1),
    st.one_of(st.just(math.inf), st.integers(0, 6)),
    st.lists(st.sampled_from([0.0, 1e-6, 0.25, 1.0]), min_size=4, max_size=4),
)
def test_the_kernel_is_the_definition_near_the_mean(x, above, width, weights):
    """Bounds from ceil(mean) - 1 to ceil(mean) + 1 on, with ties, and weights with holes."""
    lower = math.ceil(probability(np.array(x)).sum()) + above
    sets = [(np.array(x), lower, lower + width, each) for each in (weights, [1.0] * 4)]
    for each, found in zip(sets, by_kernel(sets), strict=True):
        try:
            expected = cardkge.conditioned(*each)
        except CardkgeError:
            expected = np.zeros(len(x))
        np.testing.assert_allclose(found, expected, rtol=1e-11)
        order = np.argsort(x)
        for answers in (found, expected):
            gaps, steps = np.diff(np.array(x)[order]), np.diff(answers[order])
            assert (steps >= 0).all() and (steps[gaps == 0] == 0).all()
