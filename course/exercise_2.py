"""Exercise 2: a gradient checker that catches a planted error.

Whoever writes a backward pass by hand needs a judge. Central differences are one: for a function f of some arrays, move
one coordinate x up and down by a small e, and

    (f(x + e) - f(x - e)) / (2 e)  =  f'(x) + e^2 f'''(x) / 6 + ...

must be the gradient given for that coordinate. Write `wrong_places`, which looks at every coordinate of every array and
returns those where the gradient is wrong. It must not cry wolf, and it must not sleep:

* The one-sided (f(x + e) - f(x)) / e has an error of e f'' / 2, not of e^2: too coarse here.
* e too large, and the terms left out show; too small, and f(x + e) - f(x - e) is all rounding (about 1e-16 |f| / e).
  In float64 something like 1e-5 is good. (Float32 has 7 digits: nothing can be checked there.)
* What is allowed has two parts, like np.isclose: a share of the true slope (1e-4, say), for large gradients, and an
  absolute part for slopes near 0, which rounding never hits exactly. If the absolute part is large, small gradients may
  be anything; 1e-8 is about what rounding needs.
* NaN compares false with everything. Write the comparison so that a NaN is *wrong*, not fine.
* The function reads the arrays where they are. Move a coordinate in place, and put back exactly what was there:
  x + e - e is not x.

The tests plant an error of 0.05 % in one coordinate of a DistMult's gradient, and other things that happen to people.

    python -m pytest course/exercise_2.py

The project's own checker is tests/gradcheck.py. It has a better rule (four values, error e^4), and for large arrays it
checks a few random directions in place of every coordinate. Why is a random direction nearly as good?
"""

import numpy as np
import pytest

import cardkge

# --- your part


def wrong_places(function, params, gradients):
    """The coordinates where a gradient is wrong: a list of (name, index), in order.

    function: () -> number, which reads the float64 arrays in params (a dict by name); gradients: a dict of arrays of
    the same names and shapes. The params are the same after the call as before, bit for bit.
    """
    raise NotImplementedError("wrong_places")


# --- the tests


@pytest.fixture
def distmult():
    """(function, params, gradients): a logistic loss of seven triples; the gradients are right."""
    model = cardkge.DistMult(4, 2, dim=3, seed=1, dtype="float64")
    rng = np.random.default_rng(2)
    ids = [rng.integers(n, size=7) for n in (4, 2, 4)]
    labels = np.where(rng.random(7) < 0.5, 1, -1)
    _, upstream = cardkge.logistic_loss(model.score(*ids), labels)
    gradients = model.gradients(*ids, upstream)
    return lambda: cardkge.logistic_loss(model.score(*ids), labels)[0], model.params, gradients


def test_right_gradients_are_passed(hint, distmult):
    found = wrong_places(*distmult)
    hint(isinstance(found, list), f"return a list of (name, index); found {type(found).__name__}")
    hint(found == [], f"these gradients are right, and {len(found)} places are called wrong, first {found[:1]}")


def test_a_planted_error_is_caught(hint, distmult):
    function, params, gradients = distmult
    for name in params:
        place = tuple(int(i) for i in np.unravel_index(np.abs(gradients[name]).argmax(), params[name].shape))
        changed = {key: array.copy() for key, array in gradients.items()}
        changed[name][place] *= 1.0005
        found = wrong_places(function, params, changed)
        hint(found, f"0.05 % was added to the gradient of {name} at {place}, and nothing was found: allow less")
        hint(found == [(name, place)], f"the error is in {name} at {place} alone; found {found}")


def test_the_params_are_put_back(hint):
    x = np.array([1e-9, 0.1, 1 / 3, 7.7, -1e-7])  # small ones lose their last digits in x + e - e
    kept = x.copy()
    wrong_places(lambda: np.sin(x).sum(), {"x": x}, {"x": np.cos(x)})
    hint(np.allclose(x, kept, rtol=0, atol=1e-12), "x is another array after the call: put each coordinate back")
    hint((x == kept).all(), "x changed in its last bits: keep what was there and write it back, not x + e - e")


def test_small_gradients_count_too(hint):
    x = np.array([0.3, -0.2])
    params = {"x": x}
    right = {"x": 2e-4 * x}
    hint(wrong_places(lambda: 1e-4 * (x @ x), params, right) == [], "slopes of 6e-5 are right here, and called wrong")
    found = wrong_places(lambda: 1e-4 * (x @ x), params, {"x": 3e-4 * x})
    hint(found == [("x", (0,)), ("x", (1,))], "slopes of 9e-5 in place of 6e-5 pass: the absolute part is too large")


def test_a_slope_of_0_may_have_rounding(hint):
    for value in np.linspace(0.1, 3, 30):
        x = np.array([value])
        found = wrong_places(lambda: float(np.sin(x[0]) ** 2 + np.cos(x[0]) ** 2), {"x": x}, {"x": np.zeros(1)})
        hint(
            found == [],
            f"at x = {value:.1f}: sin^2 + cos^2 is 1 and its slope 0; the difference is not 0, by rounding: allow an"
            " absolute part too",
        )


def test_nan_is_wrong(hint, distmult):
    function, params, gradients = distmult
    gradients["entity"][1, 2] = np.nan
    hint(
        wrong_places(function, params, gradients) == [("entity", (1, 2))],
        "a NaN passed. abs(nan - x) > allowed is False: write `not abs(...) <= allowed`",
    )


def test_a_curved_function(hint):
    """Where f'' is large, one-sided differences are off by more than the planted error."""
    x = np.array([0.002, -0.001])
    params, right = {"x": x}, {"x": np.exp(100 * x)}
    text = "d exp(100 x) / 100 is exp(100 x). Do you take the difference to both sides, with e = 1e-5 or so?"
    hint(wrong_places(lambda: np.exp(100 * x).sum() / 100, params, right) == [], f"right, and called wrong: {text}")
    found = wrong_places(lambda: np.exp(100 * x).sum() / 100, params, {"x": right["x"] * [1, 1.0005]})
    hint(found == [("x", (1,))], f"0.05 % too much at (1,), found {found}: {text}")
