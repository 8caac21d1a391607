"""The one gradient checker: central differences in float64.

The slope of f at x along a direction v is taken from four values,

    (8 (f(x + e v) - f(x - e v)) - (f(x + 2 e v) - f(x - 2 e v))) / (12 e),

whose truncation error is e^4 f^(5) / 30 (about 1e-17 here) and whose rounding error is about
1e-16 |f| / e = 1e-12 |f|: far below what is allowed, ATOL max(1, |f|) + RTOL |slope|. The
function must be smooth within 2 e of the point: callers keep away from kinks and freeze samples.
"""

import numpy as np

STEP = 1e-4
RTOL = 1e-6
ATOL = 1e-10


def slope(function, array, direction):
    """d function() / d array along `direction`; `array` is moved in place and then restored."""
    kept = array.copy()
    values = []
    for move in (1.0, -1.0, 2.0, -2.0):
        array[...] = kept + move * STEP * direction
        values.append(float(function()))
    array[...] = kept
    forward, backward, far_forward, far_backward = values
    return (8.0 * (forward - backward) - (far_forward - far_backward)) / (12.0 * STEP)


def check_gradients(function, params, gradients, directions=0, seed=0):
    """Raise AssertionError unless `gradients` are those of `function` with respect to `params`.

    function    () -> number; reads the arrays in `params`
    params      dict name -> float64 array
    gradients   dict name -> array of the same shape
    directions  0: every coordinate (toy sizes); else so many random unit directions per parameter

    The failure names the parameter, the index (or the direction) and both values.
    """
    assert set(gradients) == set(params), f"gradients of {set(gradients)}, not of {set(params)}"
    scale = max(1.0, abs(float(function())))
    rng = np.random.default_rng(seed)
    for name, array in params.items():
        given = np.asarray(gradients[name])
        assert array.dtype == np.float64, f"{name} is {array.dtype}; differences need float64"
        assert given.shape == array.shape, f"{name}: {given.shape} for {array.shape}"
        if directions:
            places = [f"random direction {i}" for i in range(directions)]
        else:
            places = list(np.ndindex(array.shape))
        for place in places:
            if directions:
                direction = rng.normal(size=array.shape)
                direction /= np.linalg.norm(direction)
                value = float(np.sum(given * direction))
            else:
                direction = np.zeros(array.shape)
                direction[place] = 1.0
                value = float(given[place])
            expected = slope(function, array, direction)
            allowed = ATOL * scale + RTOL * abs(expected)
            # written so that a NaN fails
            assert abs(value - expected) <= allowed, (
                f"{name} at {place}: gradient {value!r}, differences {expected!r}, "
                f"apart by {abs(value - expected):.3g}, allowed {allowed:.3g}"
            )
