"""The gradient checker itself: it passes what is right and catches small errors."""

import math

import numpy as np
import pytest
from gradcheck import check_gradients


def problem(scale=1.0):
    """f = scale * (sum sin(a) b + sum exp(b)) with known gradients."""
    rng = np.random.default_rng(3)
    params = {"a": rng.normal(size=(3, 2)), "b": rng.normal(size=(3, 2))}

    def function():
        a, b = params["a"], params["b"]
        return scale * float(np.sum(np.sin(a) * b) + np.sum(np.exp(b)))

    a, b = params["a"], params["b"]
    gradients = {"a": scale * np.cos(a) * b, "b": scale * (np.sin(a) + np.exp(b))}
    return function, params, gradients


@pytest.mark.parametrize("directions", [0, 3])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_right_gradients_pass_and_parameters_are_restored(scale, directions):
    function, params, gradients = problem(scale)
    before = {name: array.copy() for name, array in params.items()}
    check_gradients(function, params, gradients, directions)
    for name, array in params.items():
        assert np.array_equal(array, before[name])


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("index", list(np.ndindex(3, 2)))
def test_error_of_one_twentieth_percent_in_one_coordinate_fails(name, index, scale):
    function, params, gradients = problem(scale)
    right = float(gradients[name][index])
    gradients[name][index] *= 1.0005
    with pytest.raises(AssertionError) as failure:
        check_gradients(function, params, gradients)
    message = str(failure.value)
    assert message.startswith(f"{name} at {index}: gradient {right * 1.0005!r}")
    shown = float(message.split("differences ")[1].split(",")[0])
    assert shown == pytest.approx(right, rel=1e-7)


def test_error_of_one_twentieth_percent_along_a_direction_fails():
    function, params, gradients = problem()
    gradients["b"] *= 1.0005
    with pytest.raises(AssertionError, match=r"b at random direction 0: gradient .* differences"):
        check_gradients(function, params, gradients, directions=1)


@pytest.mark.parametrize("wrong", [0.0, math.nan, -1.0])
def test_zero_nan_and_sign_fail(wrong):
    function, params, gradients = problem()
    gradients["a"][1, 1] *= wrong
    with pytest.raises(AssertionError, match=r"a at \(1, 1\)"):
        check_gradients(function, params, gradients)


def test_missing_parameter_and_wrong_shape_fail():
    function, params, gradients = problem()
    with pytest.raises(AssertionError, match="'a'"):
        check_gradients(function, params, {"a": gradients["a"]})
    with pytest.raises(AssertionError, match=r"\(2, 3\)"):
        check_gradients(function, params, {"a": gradients["a"], "b": gradients["b"].T})
