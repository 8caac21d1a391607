"""Calibrated probabilities conditioned on the bounds: against rational arithmetic, differences and enumeration."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from gradcheck import check_gradients

import counts_definition as counts
from cardkge import CardkgeError


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
