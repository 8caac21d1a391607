"""Exercise 3: AdaGrad, where rows come more than once.

AdaGrad keeps for each parameter theta the sum a of the squares of all its gradients so far, and steps by

    a     <- a + g^2
    theta <- theta - eta g / sqrt(a)

so that what has moved much moves less. A mini-batch of triples touches few rows of a large table, so its gradient is
kept as two arrays: `rows` (n,), the ids, and `values` (n, k), what is to be added to the gradient of each. A row that
several triples use stands several times in `rows`.

Here lies a trap, and published programs have fallen into it. The gradient g of a row is the *sum* of its values, and
only then is it squared: (3 + 1)^2 = 16, not 3^2 + 1^2 = 10. If the values are squared apart, or averaged, or if only
the last one counts, the program still learns something, no test of "it runs" sees it, and what it minimises is not the
loss that it prints.

Write `adagrad_rows`, which makes one step in place:

* add up the values of equal rows (np.unique with return_inverse, then np.add.at);
* touch no row that is not named: the work must not grow with the table;
* no eps in the denominator. Where accumulator and gradient are both 0, 0 / 0 must not happen: nothing changes;
* a float32 table stays float32.

    python -m pytest course/exercise_3.py

`adagrad_step` in cardkge.py is the dense form. Think about where accumulators should start: at 0, the first step of
every coordinate is eta, however small its gradient is; TensorFlow, and with it the paper, starts at 0.1.
"""

import numpy as np

import cardkge

# --- your part


def adagrad_rows(param, accumulator, rows, values, learning_rate):
    """One AdaGrad step in place, on the named rows of param and accumulator (N, k each).

    rows (n,) ids, repeated or not; values (n, k): the gradient of a row is the sum of its values. Returns nothing.
    """
    raise NotImplementedError("adagrad_rows")


# --- the tests


def test_one_row_by_hand(hint):
    param, accumulator = np.array([[1.0], [5.0]]), np.array([[9.0], [2.0]])
    adagrad_rows(param, accumulator, np.array([0]), np.array([[4.0]]), 0.5)
    hint(accumulator[0, 0] != 9, "the accumulator did not change: the step is made in place")
    hint(accumulator[0, 0] == 25, f"a + g^2 = 9 + 16 = 25, yours {accumulator[0, 0]}")
    hint(
        not np.isclose(param[0, 0], 1 - 0.5 * 4 / 3),
        "you divided by the old accumulator's root: g^2 is added first, then the step is taken",
    )
    hint(np.isclose(param[0, 0], 1 - 0.5 * 4 / 5), f"theta - eta g / sqrt(25) = 0.6, yours {param[0, 0]}")
    hint((param[1, 0], accumulator[1, 0]) == (5, 2), "row 1 was not named and must not change")


def test_repeated_rows_are_summed_first(hint):
    param, accumulator = np.array([[1.0]]), np.array([[0.0]])
    adagrad_rows(param, accumulator, np.array([0, 0]), np.array([[3.0], [1.0]]), 0.5)
    a = accumulator[0, 0]
    hint(a != 10, "9 + 1 = 10: each value was squared apart. Add up the values of a row first, then square")
    hint(a != 4, "the values were averaged (2^2 = 4): the gradient of a sum is a sum")
    hint(a not in (1, 9), "only one of the two values was counted: array[rows] += values writes each row once")
    hint(a == 16, f"(3 + 1)^2 = 16, yours {a}")
    hint(np.isclose(param[0, 0], 0.5), f"one step of eta g / sqrt(a) = 0.5 * 4 / 4, so 0.5, yours {param[0, 0]}")


def test_values_that_cancel(hint):
    param, accumulator = np.ones((2, 2)), np.full((2, 2), 0.1)
    adagrad_rows(param, accumulator, np.array([1, 1]), np.array([[2.0, 1], [-2, 1]]), 0.1)
    hint(accumulator[1, 0] == 0.1 and param[1, 0] == 1, "2 - 2 = 0: this coordinate has no gradient and does not move")
    hint(np.isclose(accumulator[1, 1], 4.1), f"0.1 + (1 + 1)^2 = 4.1, yours {accumulator[1, 1]}")


def test_no_zero_by_zero(hint):
    param, accumulator = np.ones((1, 2)), np.zeros((1, 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        adagrad_rows(param, accumulator, np.array([0]), np.array([[0.0, 1e-6]]), 0.1)
    hint(not np.isnan(param).any(), "0 / sqrt(0) is NaN: where the accumulator is still 0, nothing may change")
    hint(param[0, 0] == 1, f"gradient 0, so the parameter stays 1; yours {param[0, 0]}")
    hint(
        np.isclose(param[0, 1], 0.9, rtol=1e-9),
        f"without eps the first step from accumulator 0 is eta exactly: 0.9, yours {param[0, 1]!r}",
    )


def test_dtype_and_given_arrays(hint):
    param, accumulator = np.ones((3, 2), np.float32), np.full((3, 2), 0.1, np.float32)
    rows, values = np.array([2, 0, 2]), np.full((3, 2), 0.5, np.float32)
    kept = values.copy()
    found = adagrad_rows(param, accumulator, rows, values, 0.1)
    hint(found is None and param.dtype == np.float32, "the step is made in place, in float32; nothing is returned")
    hint((values == kept).all() and rows.tolist() == [2, 0, 2], "the given rows and values must not change")


def test_equals_the_dense_step(hint):
    """Five steps on random rows, against cardkge.adagrad_step with the whole gradient."""
    rng = np.random.default_rng(0)
    param, accumulator = rng.normal(size=(20, 4)), np.full((20, 4), 0.1)
    dense, squares = param.copy(), accumulator.copy()
    for step in range(5):
        rows, values = rng.integers(20, size=30), rng.normal(size=(30, 4))
        gradient = np.zeros((20, 4))
        for row, value in zip(rows, values):
            gradient[row] += value
        cardkge.adagrad_step(dense, squares, gradient, 0.1)
        adagrad_rows(param, accumulator, rows, values, 0.1)
        hint(np.allclose(accumulator, squares), f"step {step}: the accumulators are not those of the dense step")
        hint(np.allclose(param, dense), f"step {step}: the parameters are not those of the dense step")


def test_the_work_does_not_grow_with_the_table(hint):
    """Rows that are not named are not even read: they hold NaN here, and NumPy is told to complain."""
    param, accumulator = np.full((1000, 2), np.nan), np.full((1000, 2), -1.0)
    param[[3, 7]], accumulator[[3, 7]] = 1, 0.1
    with np.errstate(invalid="raise"):
        try:
            adagrad_rows(param, accumulator, np.array([7, 3, 7]), np.ones((3, 2)), 0.1)
        except FloatingPointError:
            hint(False, "a root or quotient was taken of rows that are not named: index first, then compute")
    untouched = np.delete(accumulator, [3, 7], axis=0)
    hint((untouched == -1).all(), "accumulators of rows that are not named have changed")
    hint(np.isfinite(param[[3, 7]]).all() and np.allclose(accumulator[[3, 7], 0], [1.1, 4.1]), "rows 3 and 7 are wrong")
