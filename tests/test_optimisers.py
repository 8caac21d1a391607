"""SGD, AdaGrad and the projection, against explicit loops."""

import math
import warnings

import numpy as np
import pytest

from cardkge import adagrad_step, project_rows, sgd_step


@pytest.fixture(autouse=True)
def no_warning():
    with warnings.catch_warnings(), np.errstate(over="raise", divide="raise", invalid="raise"):
        warnings.simplefilter("error")
        yield


def test_adagrad_known_values():
    """3 and 4: accumulator 9 then 25, so the steps are 0.1 * 3/3 and 0.1 * 4/5; no eps."""
    param, accumulator = np.array([1.0]), np.array([0.0])
    adagrad_step(param, accumulator, np.array([3.0]), 0.1)
    assert accumulator[0] == 9 and param[0] == pytest.approx(0.9, rel=1e-15)
    adagrad_step(param, accumulator, np.array([4.0]), 0.1)
    assert accumulator[0] == 25 and param[0] == pytest.approx(0.82, rel=1e-15)


@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-14), ("float32", 1e-6)])
@pytest.mark.parametrize("start", [0.0, 0.1])
def test_adagrad_equals_loops(dtype, rtol, start):
    rng = np.random.default_rng(0)
    param = rng.normal(size=(4, 3)).astype(dtype)
    accumulator = np.full((4, 3), start, dtype=dtype)
    expected, sums = param.astype(float).tolist(), [[start] * 3 for _ in range(4)]
    for _ in range(5):
        gradient = rng.normal(size=(4, 3)).astype(dtype)
        gradient[1] = 0
        kept = gradient.copy()
        assert adagrad_step(param, accumulator, gradient, 0.3) is None
        assert np.array_equal(gradient, kept)
        for i in range(4):
            for j in range(3):
                g = float(gradient[i, j])
                sums[i][j] += g * g
                if g:
                    expected[i][j] -= 0.3 * g / math.sqrt(sums[i][j])
    assert param.dtype == accumulator.dtype == dtype
    np.testing.assert_allclose(param, expected, rtol=10 * rtol, atol=rtol)
    np.testing.assert_allclose(accumulator, sums, rtol=rtol)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_adagrad_of_nothing_changes_nothing(dtype):
    param = np.array([1.5, -2.0, 0.0], dtype=dtype)
    accumulator = np.zeros(3, dtype=dtype)
    adagrad_step(param, accumulator, np.zeros(3, dtype=dtype), 0.1)
    assert np.array_equal(param, [1.5, -2.0, 0.0]) and not np.any(accumulator)


@pytest.mark.parametrize("dtype, tiny", [("float64", 1e-200), ("float32", 1e-30)])
def test_adagrad_stays_finite_where_the_square_underflows(dtype, tiny):
    """The square of the gradient is 0 in this dtype, and so is the accumulator."""
    param, accumulator = np.ones(1, dtype=dtype), np.zeros(1, dtype=dtype)
    adagrad_step(param, accumulator, np.array([tiny], dtype=dtype), 0.1)
    assert np.isfinite(param[0]) and abs(param[0] - 1) <= 0.1 + 1e-6


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sgd(dtype):
    param = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=dtype)
    assert sgd_step(param, np.array([[0.5, 0.0], [-1.0, 8.0]], dtype=dtype), 0.25) is None
    assert param.dtype == dtype and np.array_equal(param, [[0.875, 2.0], [3.25, 2.0]])


@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-14), ("float32", 1e-6)])
def test_projection(dtype, rtol):
    """To norm 1, direction kept; a zero row stays zero; large and small rows alike."""
    rng = np.random.default_rng(1)
    array = rng.normal(size=(6, 5)).astype(dtype)
    array[2] = 0
    array[3] *= 1e4
    array[4] *= 1e-4
    before = array.astype(float)
    assert project_rows(array) is None
    for i in range(6):
        norm = math.sqrt(math.fsum(v * v for v in before[i]))
        expected = before[i] / norm if norm else np.zeros(5)
        np.testing.assert_allclose(array[i], expected, rtol=rtol, atol=rtol)
    assert array.dtype == dtype


def test_projection_of_some_rows():
    array = np.array([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0], [0.0, 2.0]])
    project_rows(array, np.array([3, 0, 2]))
    np.testing.assert_allclose(array, [[0.6, 0.8], [3, 4], [0, 0], [0, 1]], rtol=1e-15)
