"""Exercise 5: a sum estimated from a sample, without bias.

How many parents does a model believe that anna has? The paper's answer is

    X = sum over all entities t of p(anna, parent, t),     p = sigma(phi),

a sum of N probabilities. With N = 40,000 and this in every step of training, that is too much. Importance sampling
draws omega objects t_1 ... t_omega, each independently from a distribution q over the N entities, and takes

    X_S = (1 / omega) * sum_j p(t_j) / q(t_j).

Each of the omega terms is right on average, whatever q is, as long as q(t) > 0 wherever p(t) > 0:

    E[p(t) / q(t)] = sum_t q(t) p(t) / q(t) = sum_t p(t) = X.

What q changes is the variance, and with it how many objects are needed. Work it out on paper before you write it down
in code: the variance of one term is E[(p/q)^2] - X^2, and the omega terms are independent.

Write three functions:

    draw(q, omega, rng)          objects and weights, such that X_S = sum_j weight_j p(t_j)
    estimate(p, objects, weights)  X_S
    variance(p, q, omega)        the variance of X_S, exactly, by a sum over all N

* The draws are with repetition: an object drawn twice counts twice.
* All chance comes from `rng`, a numpy Generator: the same seed gives the same sample.

    python -m pytest course/exercise_5.py

An estimator is tested as an estimator: the mean of many samples must lie within a few standard errors of the truth.
Two things to think about. If p were known, which q would have no variance at all? (One test knows.) And: X_S is
unbiased, but the penalty G = max(0, X - upper) is not linear: even where X = upper exactly, and G = 0, the mean of
max(0, X_S - upper) is positive. The last test measures it; the project says so where G is defined.
"""

import numpy as np

# --- your part


def draw(q, omega, rng):
    """omega objects, each from q, with repetition: (objects (omega,) ids, weights (omega,)). q (N,) adds up to 1."""
    raise NotImplementedError("draw")


def estimate(p, objects, weights):
    """X_S = sum_j weight_j p(t_j), a number; p (N,) the probabilities of all entities."""
    raise NotImplementedError("estimate")


def variance(p, q, omega):
    """The variance of X_S over all samples of omega objects from q: a sum over all N entities, nothing drawn."""
    raise NotImplementedError("variance")


# --- the tests

N, OMEGA = 60, 20
P = np.random.default_rng(0).random(N) ** 4  # a few large, most small, as probabilities of tails are
UNIFORM = np.full(N, 1 / N)
SKEWED = (P + 0.05) / (P + 0.05).sum()  # something like p, never 0


def samples(q, count, seed=1):
    rng = np.random.default_rng(seed)
    return np.array([estimate(P, *draw(q, OMEGA, rng)) for _ in range(count)])


def test_shapes(hint):
    objects, weights = draw(UNIFORM, OMEGA, np.random.default_rng(0))
    objects, weights = np.asarray(objects), np.asarray(weights)
    hint(objects.shape == (OMEGA,), f"omega = {OMEGA} objects, yours have shape {objects.shape}")
    hint(weights.shape == (OMEGA,), f"a weight for each object, yours have shape {weights.shape}")
    hint(objects.dtype.kind in "iu", f"objects are ids, whole numbers; yours are {objects.dtype}")
    hint(objects.min() >= 0 and objects.max() < N, f"ids are from 0 to {N - 1}")


def test_weights_by_hand(hint):
    q = np.array([0.5, 0.25, 0.25])
    objects, weights = draw(q, 8, np.random.default_rng(0))
    expected = np.where(np.asarray(objects) == 0, 1 / (8 * 0.5), 1 / (8 * 0.25))
    hint(not np.allclose(weights, 8 * expected), "the mean over the sample: 1 / omega belongs to the weights")
    hint(np.allclose(weights, expected), f"the weight of t is 1 / (omega q(t)): {expected}, yours {weights}")


def test_estimate_by_hand(hint):
    found = estimate(np.array([0.5, 1.0, 0.25]), np.array([1, 1, 2]), np.array([2.0, 2.0, 4.0]))
    hint(found != 3, "entity 1 was drawn twice and counts twice")
    hint(found == 5, f"2 * 1 + 2 * 1 + 4 * 0.25 = 5, yours {found}")


def test_with_repetition(hint):
    objects, _ = draw(np.array([0.9, 0.1]), 50, np.random.default_rng(0))
    hint(len(objects) == 50, "fifty draws from two entities: with repetition")
    share = np.mean(np.asarray(objects) == 0)
    hint(abs(share - 0.9) < 0.2, f"entity 0 has q = 0.9, and made {share:.0%} of the draws")


def test_all_chance_comes_from_rng(hint):
    first, again, other = (draw(SKEWED, OMEGA, np.random.default_rng(seed))[0].tolist() for seed in (5, 5, 6))
    hint(first == again, "the same seed gave two samples: take all random numbers from rng")
    hint(first != other, "two seeds gave the same sample")


def test_unbiased(hint):
    for name, q in (("uniform", UNIFORM), ("skewed", SKEWED)):
        found = samples(q, 4000)
        error = found.std() / np.sqrt(len(found))
        hint(
            abs(found.mean() - P.sum()) < 5 * error,
            f"{name} q: the mean of 4,000 samples is {found.mean():.3f}, X = {P.sum():.3f}, which is more than five"
            f" standard errors ({error:.4f}) away: the estimator is biased",
        )


def test_variance_by_hand(hint):
    # p = (1, 0), q = (1/2, 1/2): a term is 2 or 0, each with chance 1/2: mean 1, variance 1; of four terms 1/4
    found = variance(np.array([1.0, 0.0]), np.array([0.5, 0.5]), 4)
    hint(found != 1, "that is the variance of one term; X_S is the mean of omega independent ones")
    hint(np.isclose(found, 0.25), f"p = (1, 0), q = (1/2, 1/2), omega = 4: the variance is 1/4, yours {found}")


def test_variance_is_what_is_seen(hint):
    for name, q in (("uniform", UNIFORM), ("skewed", SKEWED)):
        seen, said = samples(q, 6000, seed=2).var(), variance(P, q, OMEGA)
        hint(abs(seen / said - 1) < 0.15, f"{name} q: the variance of 6,000 samples is {seen:.4f}, you say {said:.4f}")
    better, worse = variance(P, SKEWED, OMEGA), variance(P, UNIFORM, OMEGA)
    hint(better < worse / 2, f"a q that resembles p has less variance: {better:.4f} against {worse:.4f}")


def test_the_best_q(hint):
    """q proportional to p: every sample is exactly right. (And useless: to know q is to know the sum.)"""
    q = P / P.sum()
    hint(np.isclose(variance(P, q, OMEGA), 0, atol=1e-12), f"variance 0, yours {variance(P, q, OMEGA)}")
    hint(np.allclose(samples(q, 5), P.sum()), "p / q is X for every t, so every sample gives X itself")


def test_g_is_biased_all_the_same(hint):
    """Nothing to write: X = upper, so G = 0, and yet the mean of G(X_S) is about 0.4 standard deviations of X_S."""
    g = np.maximum(0, samples(SKEWED, 4000) - P.sum()).mean()
    expected = np.sqrt(variance(P, SKEWED, OMEGA) / (2 * np.pi))  # of a normal variable
    hint(0.8 < g / expected < 1.25, f"the mean of max(0, X_S - X) is {g:.4f}; of a normal variable {expected:.4f}")
