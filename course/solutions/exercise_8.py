"""The answer to course/exercise_8.py, which has the question and the tests."""

import numpy as np

# --- your part


def counts(p):
    """The distribution of |S|: f (n + 1,), f_j = P(|S| = j), for independent candidates with probabilities p (n,)."""
    f = np.zeros(len(p) + 1)
    f[0] = 1
    for chance in p:
        f[1:] = f[1:] * (1 - chance) + f[:-1] * chance
        f[0] *= 1 - chance
    return f


def conditional(p, lower, upper):
    """P(t in S | lower <= |S| <= upper) for each t: (n,). lower a whole number, upper one or math.inf.

    Raises ValueError where no set of positive probability lies within the bounds.
    """
    p = np.asarray(p, float)
    upper = int(min(upper, len(p)))
    total = counts(p)[lower : upper + 1].sum()
    if not total > 0:
        raise ValueError(f"no set has between {lower} and {upper} members")
    found = np.empty(len(p))
    for t in range(len(p)):
        others = counts(np.delete(p, t))
        found[t] = p[t] * others[max(lower - 1, 0) : upper].sum() / total
    return found


# --- the tests
