"""The answer to course/exercise_3.py, which has the question and the tests."""

import numpy as np

# --- your part


def adagrad_rows(param, accumulator, rows, values, learning_rate):
    """One AdaGrad step in place, on the named rows of param and accumulator (N, k each).

    rows (n,) ids, repeated or not; values (n, k): the gradient of a row is the sum of its values. Returns nothing.
    """
    distinct, place = np.unique(rows, return_inverse=True)
    gradient = np.zeros((len(distinct), param.shape[1]), param.dtype)
    np.add.at(gradient, place, values)
    squares = accumulator[distinct] + gradient**2
    accumulator[distinct] = squares
    root = np.sqrt(np.where(squares > 0, squares, 1))
    param[distinct] -= param.dtype.type(learning_rate) * gradient / root


# --- the tests
