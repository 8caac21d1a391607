"""Exercise 8: how likely is each, once we know how many?

A model has given probabilities to the candidates for anna's parents: otto 0.9, clara 0.5, sweden 0.3, lars 0.3. It
expects two parents on average, but it also believes that she may have none, or four. We know better: everybody
has exactly two. What are the probabilities *given that*?

Take the candidates as independent: candidate t is in the set S with probability p_t. The probability of one set is

    P(S) = prod_{t in S} p_t  *  prod_{t not in S} (1 - p_t)

and, among the sets that have between L and U members,

    P(t in S | L <= |S| <= U) = (sum of P(S) over such sets with t in them) / (sum of P(S) over all such sets).

`by_enumeration` below does just that. It is right, and it needs 2^n sets: thirty candidates are too many for it. But
only the *size* of a set matters, and sizes can be counted one candidate at a time. Let f_j be the probability that j of
the candidates seen so far are in S. A further candidate with probability p makes

    f_j  <-  f_j (1 - p)  +  f_{j-1} p                  f_0 = 1 before the first, f_{-1} = 0.

That is dynamic programming: n steps of n numbers, in place of 2^n sets. Then, with f computed from all candidates
and g from all but t:

    P(L <= |S| <= U)          = f_L + ... + f_U
    P(t in S, L <= |S| <= U)  = p_t (g_{L-1} + ... + g_{U-1})          (t itself is one; L - 1 to U - 1 others)

Write

    counts(p)                  f_0 ... f_n, the distribution of the number of members
    conditional(p, lower, upper)   P(t in S | lower <= |S| <= upper), for each t

* upper may be math.inf: no bound. lower may be 0. A sum starts at max(L - 1, 0).
* If the bounds leave no set of positive probability (lower above the number of candidates, say), raise ValueError.
* p may be 0 or 1 exactly; nothing may overflow for 300 candidates. That is why we count in probabilities here. The
  usual way to write it, with odds o = p / (1 - p) and elementary symmetric polynomials (Chen, Dempster, Liu 1994),
  divides by 0 at p = 1.

    python -m pytest course/exercise_8.py

Afterwards: the expected number of members, the sum of the conditional probabilities, always lies within the bounds.
Why? `conditional` computes g anew for each t. How could one get all g from prefixes and suffixes, and what would that
save?
"""

import itertools
import math
import time

import numpy as np
import pytest

# --- given


def by_enumeration(p, lower, upper):
    """P(t in S | lower <= |S| <= upper) for each t, from all 2^n sets."""
    total, members = 0.0, np.zeros(len(p))
    for chosen in itertools.product((False, True), repeat=len(p)):
        if lower <= sum(chosen) <= upper:
            chance = np.prod(np.where(chosen, p, 1 - p))
            total += chance
            members += chance * np.array(chosen)
    return members / total


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

PARENTS = np.array([0.9, 0.5, 0.3, 0.3])


def test_counts_by_hand(hint):
    found = np.asarray(counts(np.array([0.5, 0.5])))
    hint(found.shape == (3,), f"two candidates: 0, 1 or 2 members, so three numbers; yours have shape {found.shape}")
    order = "If f_1 is too small, f_0 was changed before it was used for f_1"
    hint(np.allclose(found, [0.25, 0.5, 0.25]), f"two fair coins: 1/4, 1/2, 1/4; yours {found}. {order}")
    found = counts(np.array([0.2, 0.9]))
    hint(
        np.allclose(found, [0.08, 0.74, 0.18]), f"p = 0.2, 0.9: none 0.8 * 0.1, both 0.2 * 0.9; yours {found}. {order}"
    )


def test_counts_of_nobody(hint):
    hint(np.allclose(counts(np.zeros(0)), [1.0]), "no candidates: no members, for certain: [1.0]")


def test_counts_add_up_to_1(hint):
    p = np.random.default_rng(0).random(40)
    f = counts(p)
    hint(np.isclose(f.sum(), 1), f"the probabilities of all sizes add up to 1, yours to {f.sum()}")
    hint(np.isclose(f @ np.arange(41), p.sum()), "the mean of |S| is the sum of the p")


def test_exactly_one_of_two(hint):
    found = conditional(np.array([0.5, 0.5]), 1, 1)
    hint(np.allclose(found, 0.5), f"two equal candidates, exactly one: 1/2 each, yours {found}")
    # odds 1/4 and 4 against each other: the sets {0} and {1} have 0.2 * 0.2 and 0.8 * 0.8
    found = conditional(np.array([0.2, 0.8]), 1, 1)
    hint(np.allclose(found, [0.04 / 0.68, 0.64 / 0.68]), f"p = 0.2, 0.8, exactly one: 1/17 and 16/17, yours {found}")


def test_the_parents(hint):
    found = conditional(PARENTS, 2, 2)
    hint(np.allclose(found, by_enumeration(PARENTS, 2, 2)), f"not what enumeration gives: yours {found}")
    hint(np.isclose(found.sum(), 2), f"exactly two parents: the probabilities add up to 2, yours to {found.sum()}")


@pytest.mark.parametrize("lower, upper", [(0, 1), (0, 3), (1, 2), (3, 3), (2, 9), (0, 10), (10, 10), (4, math.inf)])
def test_against_enumeration(hint, lower, upper):
    p = np.random.default_rng(3).random(10)
    found = conditional(p, lower, upper)
    expected = by_enumeration(p, lower, upper)
    text = f"bounds [{lower}, {upper}]: expected {expected.round(4)}, yours {np.round(found, 4)}"
    if lower == 0:
        text += ". With lower 0 the sum of g starts at 0: others[-1:...] would take the last"
    hint(np.allclose(found, expected, rtol=1e-10), text)


@pytest.mark.parametrize("above", [-1, 0, 1])
@pytest.mark.parametrize("upper", [2, math.inf])
def test_bounds_beside_the_expected_number(hint, above, upper):
    """1.963 members are expected, and at least 1, 2 or 3 are there."""
    p = 1 / (1 + np.exp(-np.array([2.291, -1.477, 1.893])))
    lower = math.ceil(p.sum()) + above
    found, expected = conditional(p, lower, max(lower, upper)), by_enumeration(p, lower, max(lower, upper))
    hint(np.allclose(found, expected, rtol=1e-10), f"at least {lower}: expected {expected.round(5)}, yours {found}")


def test_no_bounds_change_nothing(hint):
    hint(np.allclose(conditional(PARENTS, 0, math.inf), PARENTS), "without bounds the probabilities stay as they are")


def test_upper_0_leaves_nobody(hint):
    hint(not np.any(conditional(PARENTS, 0, 0)), "at most 0: every probability is 0")


def test_certain_and_impossible_candidates(hint):
    with np.errstate(divide="raise", invalid="raise"):
        found = conditional(np.array([1.0, 0.5, 0.0]), 0, 1)
    hint(np.allclose(found, [1, 0, 0]), f"one is certain and one is the most: nobody else; yours {found}")


def test_bounds_that_leave_nothing(hint):
    for p, lower, upper in ((PARENTS, 5, 6), (np.array([1.0, 1.0, 0.2]), 0, 1), (np.array([0.0, 0.5]), 2, 2)):
        try:
            found = conditional(p, lower, upper)
        except ValueError:
            continue
        hint(False, f"p = {p}, bounds [{lower}, {upper}]: impossible, so ValueError; yours gave {found}")


def test_the_order_of_candidates_stays(hint):
    p = np.sort(np.random.default_rng(4).random(12))
    hint(np.all(np.diff(conditional(p, 1, 3)) > 0), "who was likelier before is likelier after")


def test_many_candidates(hint):
    """300 candidates, 2^300 sets. Of equal ones exactly three: 3 / 300 each; and a count within its bounds."""
    began = time.perf_counter()
    found = conditional(np.full(300, 0.7), 3, 3)
    hint(np.allclose(found, 0.01, rtol=1e-8), f"300 equal candidates, three members: 0.01 each, yours {found[:3]} ...")
    p = np.random.default_rng(5).random(300) ** 8
    total = conditional(p, 1, 2).sum()
    hint(1 <= total <= 2, f"the expected number is within [1, 2] always, yours {total}")
    seconds = time.perf_counter() - began
    hint(seconds < 20, f"{seconds:.0f} s for 300 candidates: one candidate at a time, not set by set")
