"""Gradients against central differences in float64, by every coordinate or along random directions.

The slope is that of `cardkge_tools.engine.own`. Its truncation error is e^4 f^(5) / 30 (about 1e-17 here), its rounding
error about 1e-16 |f| / e = 1e-12 |f|: far below what is allowed, ATOL max(1, |f|) + RTOL |slope|. The function must be
smooth within 2 e of the point: callers keep away from kinks and freeze samples.
"""

import numpy as np

from cardkge_tools.engine.own import RTOL, slope

ATOL = 1e-10


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
                value, expected = float(np.sum(given * direction)), slope(function, array, ..., direction)
            else:
                value, expected = float(given[place]), slope(function, array, place)
            allowed = ATOL * scale + RTOL * abs(expected)
            # written so that a NaN fails
            assert abs(value - expected) <= allowed, (
                f"{name} at {place}: gradient {value!r}, differences {expected!r}, "
                f"apart by {abs(value - expected):.3g}, allowed {allowed:.3g}"
            )
