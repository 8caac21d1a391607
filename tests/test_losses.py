"""The two losses: known values, extreme scores, derivatives, the kink of the hinge."""

import math
import warnings

import numpy as np
import pytest
import reference
from gradcheck import check_gradients

from cardkge import hinge_loss, logistic_loss

DTYPES = [np.float32, np.float64]


@pytest.fixture(autouse=True)
def no_warning():
    """Warnings and floating-point trouble are errors (underflow to 0 is the right answer)."""
    with warnings.catch_warnings(), np.errstate(over="raise", divide="raise", invalid="raise"):
        warnings.simplefilter("error")
        yield


# --- logistic


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "score, label, value, derivative",
    [
        (0.0, 1, 0.6931471805599453, -0.5),
        (0.0, -1, 0.6931471805599453, 0.5),
        (1.0, 1, 0.3132616875182229, -0.2689414213699951),
        (1.0, -1, 1.3132616875182228, 0.7310585786300049),
        (-20.0, 1, 20.000000002061153, -0.9999999979388463),
        (20.0, 1, 2.061153620314381e-09, -2.0611536181902037e-09),
        (1000.0, 1, 0.0, 0.0),
        (1000.0, -1, 1000.0, 1.0),
        (-1000.0, 1, 1000.0, -1.0),
        (-1000.0, -1, 0.0, 0.0),
        (1e30, 1, 0.0, 0.0),
        (1e30, -1, 1e30, 1.0),
        (-1e30, 1, 1e30, -1.0),
        (-1e30, -1, 0.0, 0.0),
    ],
)
def test_logistic_known_values(dtype, score, label, value, derivative):
    loss, slope = logistic_loss(np.array([score], dtype=dtype), np.array([label]))
    rtol = 4 * float(np.finfo(dtype).eps)
    assert float(loss) == pytest.approx(value, rel=rtol, abs=0)
    assert slope.shape == (1,) and slope.dtype == dtype
    assert float(slope[0]) == pytest.approx(derivative, rel=rtol, abs=0)


def test_logistic_sums_and_derivative():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(0, 3, 50), rng.choice([-1, 1], 50)
    loss, slope = logistic_loss(scores, labels)
    pairs = list(zip(scores, labels))
    assert loss == pytest.approx(math.fsum(reference.softplus(-y * s) for s, y in pairs), rel=1e-14)
    exact = [-y * reference.sigma(-y * s) for s, y in pairs]
    np.testing.assert_allclose(slope, exact, rtol=1e-14, atol=0)
    check_gradients(lambda: logistic_loss(scores, labels)[0], {"scores": scores}, {"scores": slope})


def test_logistic_of_any_shape_and_of_nothing():
    scores = np.random.default_rng(1).normal(size=(4, 3))
    labels = np.where(np.arange(3) == 0, 1, -1) * np.ones((4, 1))
    loss, slope = logistic_loss(scores, labels)
    flat, flat_slope = logistic_loss(scores.ravel(), labels.ravel())
    assert loss == pytest.approx(flat, rel=1e-14)
    np.testing.assert_allclose(slope, flat_slope.reshape(4, 3), rtol=1e-15)
    nothing, slope = logistic_loss(np.zeros(0), np.zeros(0))
    assert nothing == 0 and slope.shape == (0,)


# --- hinge


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "positive, negative, margin, value, d_positive, d_negative",
    [
        (0.0, 0.0, 1.0, 1.0, -0.25, 0.25),
        (1.0, -1.0, 1.0, 0.5378828427399902, -0.19661193324148185, 0.19661193324148185),
        (1.0, -1.0, 0.25, 0.0, 0.0, 0.0),  # the term is negative
        (1000.0, -1000.0, 1.0, 0.0, 0.0, 0.0),
        (-1000.0, 1000.0, 1.0, 2.0, 0.0, 0.0),
        (1000.0, 0.0, 1.0, 0.5, 0.0, 0.25),
        (1e30, -1e30, 1.0, 0.0, 0.0, 0.0),
        (-1e30, 1e30, 1.0, 2.0, 0.0, 0.0),
        (0.0, 1e30, 0.5, 1.0, -0.25, 0.0),
        # exactly at the kink: subgradient 0
        (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        (0.75, 0.75, 0.0, 0.0, 0.0, 0.0),
        (1000.0, 0.0, 0.5, 0.0, 0.0, 0.0),
        (0.0, -1000.0, 0.5, 0.0, 0.0, 0.0),
    ],
)
def test_hinge_known_values(dtype, positive, negative, margin, value, d_positive, d_negative):
    loss, slope_p, slope_n = hinge_loss(np.array([positive], dtype=dtype), np.array([[negative]], dtype=dtype), margin)
    rtol = 8 * float(np.finfo(dtype).eps)
    assert slope_p.shape == (1,) and slope_n.shape == (1, 1)
    assert slope_p.dtype == slope_n.dtype == dtype
    assert float(loss) == pytest.approx(value, rel=rtol, abs=0)
    assert float(slope_p[0]) == pytest.approx(d_positive, rel=rtol, abs=0)
    assert float(slope_n[0, 0]) == pytest.approx(d_negative, rel=rtol, abs=0)


@pytest.mark.parametrize("n, m", [(1, 1), (4, 1), (5, 2), (3, 6)])
@pytest.mark.parametrize("margin", [0.2, 1.0, 1.7])
def test_hinge_sums_and_derivative(n, m, margin):
    rng = np.random.default_rng(11 * n + m)
    positive, negative = rng.normal(0, 2, n), rng.normal(0, 2, (n, m))
    terms = [
        margin + reference.sigma(negative[i, j]) - reference.sigma(positive[i]) for i in range(n) for j in range(m)
    ]
    assert min(abs(term) for term in terms) > 1e-3  # off the kinks
    loss, d_positive, d_negative = hinge_loss(positive, negative, margin)
    assert loss == pytest.approx(math.fsum(max(0.0, term) for term in terms), rel=1e-13)
    check_gradients(
        lambda: hinge_loss(positive, negative, margin)[0],
        {"positive": positive, "negative": negative},
        {"positive": d_positive, "negative": d_negative},
    )


def test_hinge_of_nothing():
    loss, d_positive, d_negative = hinge_loss(np.zeros(0), np.zeros((0, 2)), 1.0)
    assert loss == 0 and d_positive.shape == (0,) and d_negative.shape == (0, 2)
