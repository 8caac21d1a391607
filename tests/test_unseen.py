"""Unseen tails and guesses: by hand, by enumeration, by differences, and on graphs of which half is taken away."""

import itertools
import math

import numpy as np
import pytest
from gradcheck import check_gradients
from test_calibration import query

from cardkge_tools.definitions.counting import (
    calibration_objective,
    chance_of_least,
    conditioned,
    thinned_likelihood,
    unseen_weights,
)

BOUNDS = [(0, math.inf), (2, math.inf), (7, math.inf), (0, 1), (1, 1), (2, 2), (1, 3), (6, 6), (5, 9)]


def poisson(mean, most=60):
    return np.array([math.exp(-mean) * mean**u / math.factorial(u) for u in range(most)])


def enumerated(odds, mean, lower, upper):
    """{members: probability} of the sets of candidates, given that with a Poisson number they are lower to upper."""
    chances = {}
    for members in itertools.product([False, True], repeat=len(odds)):
        size = sum(members)
        unseen = sum(p for u, p in enumerate(poisson(mean)) if lower <= size + u <= upper)
        chances[members] = math.prod(o for o, here in zip(odds, members, strict=True) if here) * unseen
    total = sum(chances.values())
    return {members: chance / total for members, chance in chances.items()}


def test_the_toy_by_hand():
    """Odds 2, 1, 1/2, exactly two tails, mean 1: Z = 3.5 + 3.5 + 1/2; without unseen ones the best has 6/7."""
    np.testing.assert_allclose(unseen_weights(2, 2, 1.0, 3), [1 / 2, 1, 1, 0], atol=1e-15)
    np.testing.assert_allclose(conditioned(np.log([2, 1, 0.5]), 2, 2)[0], 6 / 7)
    of_two = [2 * (1.5 + 1) / 7.5, 1 * (2.5 + 1) / 7.5, 0.5 * (3 + 1) / 7.5]
    np.testing.assert_allclose(conditioned(np.log([2, 1, 0.5]), 2, 2, unseen=1.0), of_two, rtol=1e-12)
    first = query(np.log([4 / 7, 2 / 7, 1 / 7]), [1, 0, 0], [math.log(3.5)], 2, 2, unseen=0.5)
    value, gradient = calibration_objective(np.array([0.0, 1.0, 50.0, math.log(2)]), [first], np.zeros(4), np.zeros(4))
    assert value == pytest.approx(-math.log(7 / 30), rel=1e-12)
    assert gradient[-1] == pytest.approx(-(4 / 7 - 3 / 5), rel=1e-9)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("mean", [1e-3, 0.7, 4.0])
def test_by_enumeration(bounds, mean):
    odds = np.array([3.0, 1.0, 0.2, 0.05])
    chances = enumerated(odds, mean, *bounds)
    expected = sum(np.array(members) * chance for members, chance in chances.items())
    np.testing.assert_allclose(conditioned(np.log(odds), *bounds, unseen=mean), expected, rtol=1e-10)
    found = np.array([True, False, False, False])  # of every set that has it, this is what valid holds, by chance
    likelihood = sum(chance * 0.3 * 0.7 ** (sum(members) - 1) for members, chance in chances.items() if members[0])
    value, *_ = thinned_likelihood(np.log(odds), -math.inf, found, 0.3, *bounds, mean)
    assert math.exp(value) == pytest.approx(likelihood, rel=1e-10)


def test_no_unseen_tails_are_the_bounds_alone():
    x = np.log([3.0, 1.0, 0.2])
    for bounds in ((1, 1), (2, math.inf), (0, 2)):
        np.testing.assert_allclose(conditioned(x, *bounds, unseen=1e-12), conditioned(x, *bounds), rtol=1e-9)
    np.testing.assert_array_equal(unseen_weights(1, 2, 0.0, 3), [0, 1, 1, 0])


@pytest.mark.parametrize("bounds", BOUNDS)
def test_the_gradient_by_differences(bounds):
    rng = np.random.default_rng(2)
    found = np.append([bounds[1] > 0], np.zeros(5, bool))
    queries = [
        query(rng.normal(-2, 1, 6), found, rng.normal(size=2), *bounds, unseen=mean, weights=np.append(np.ones(5), 4.0))
        for mean in (0.3, 2.0)
    ]
    parameters, prior = rng.normal(size=5), (rng.normal(size=5), rng.uniform(0, 2, 5))
    _, gradient = calibration_objective(parameters, queries, *prior)
    value = lambda: calibration_objective(parameters, queries, *prior)[0]  # noqa: E731
    check_gradients(value, {"parameters": parameters}, {"parameters": gradient})


def test_how_probable_a_lower_bound_is():
    """Of 1/2 and 1/4: at least one with 5/8, two with 1/8; with a Poisson number of mean 1 besides, at least one with
    1 - 3/8 e^-1, at least two with 1 - 3/8 (2 e^-1) - 1/2 e^-1."""
    p = np.array([0.5, 0.25])
    assert [chance_of_least(p, least) for least in (-1, 0, 0.5, 1, 2)] == pytest.approx([1, 1, 5 / 8, 5 / 8, 1 / 8])
    assert chance_of_least(p, 3) == pytest.approx(0, abs=1e-15)
    of_one, of_two = 1 - 3 / 8 / math.e, 1 - 3 / 4 / math.e - 1 / 2 / math.e
    assert [chance_of_least(p, least, 1.0) for least in (1, 2)] == pytest.approx([of_one, of_two])
