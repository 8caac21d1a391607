"""Counts (beyond the paper): calibrated answers, conditioned on the bounds, in plain NumPy."""

import math

import numpy as np

from cardkge import CardkgeError, probability

# ------------------------------------------------------------------------------------------------------------------

# A candidate (h, r, t) is a triple that is not known. Three steps lead from its score to an answer; a fourth takes in
# what is known of counts.
#
# 1. pi, the probability that a candidate outside train is a fact, is logistic in what the model says of it: z = logit
#    pi = a score + b log_softmax + c, with a + b > 0. Each relation has its own a, b, c where 0, 1 or more tails of
#    (h, r) are known.
# 2. It is fitted on valid. A share v of the facts that train lacks got into valid, whichever they are; a candidate is
#    in valid with probability v pi, or not, with 1 - v pi (Elkan and Noto, KDD 2008). One that is not in valid is a
#    fact with p = pi (1 - v) / (1 - v pi) (Bayes), so the log of its odds o = p / (1 - p) is z + log(1 - v).
# 3. Facts are independent given the scores: P(S) is proportional to the product of the odds of S's members, for any set
#    S of candidates, and P(|S| = j) to e_j(o), the elementary symmetric polynomial. Given lower <= |S| <= upper,
#    P(t in S) = o_t sum_{j=L-1}^{U-1} e_j(o without t) / sum_{j=L}^{U} e_j(o) (Chen, Dempster, Liu, Biometrika 1994).
# 4. What is known of counts may be softer than a bound: P(|S| = j) is proportional to w_j e_j(o), for any weights w_j,
#    and bounds are weights of 0 and 1. Let Q(j) be the probability of j new tails that the known counts of a relation
#    teach, and M(j) that of step 2, on the average over its heads with (about) as many known tails: w_j = Q(j) / M(j).
#    Where both agree nothing changes. (Q alone would count twice what the odds hold already; Q over the head's own M
#    would forget what they say of this head.) Q comes from P(c), the probability that a head has c tails in all, each
#    known with probability s: k of c are with C(c, k) s^k (1 - s)^(c - k), P is fitted to the k by EM, and Q(j) is
#    proportional to P(k + j) C(k + j, k) (1 - s)^j.

N_KNOWN = 3  # 0, 1, or more known tails


def calibration_logits(coefficients, scores, log_sums, known):
    """z = a score + b log_softmax + c of candidates, as (a + b) log_softmax + a log_sum + c: where a + b > 0 the order
    of the tails of one (h, r) is that of their scores, ties included.

    coefficients (..., 3, 3): of each candidate's relation, for 0, 1 and more known tails: a, b, c. scores (...);
    log_sums (...): the log of the sum of exp(score) over the tails of its (h, r); known (...): its known tails.
    Float64 throughout.
    """
    place = np.minimum(known, N_KNOWN - 1)[..., None, None]
    a, b, c = np.moveaxis(np.take_along_axis(np.asarray(coefficients, np.float64), place, -2)[..., 0, :], -1, 0)
    return (a + b) * (np.asarray(scores, np.float64) - log_sums) + a * log_sums + c


def log_sum_exp(scores):
    """log of the sum of exp(scores) over the last axis, float64."""
    scores = np.asarray(scores, np.float64)
    largest = scores.max(-1, keepdims=True)
    return np.log(np.exp(scores - largest).sum(-1)) + largest[..., 0]


def calibration_loss(parameters, features, found, weights, share, centre, precision):
    """The negative log-likelihood of step 2 with a Gaussian prior, its gradient, and its expected curvature.

    parameters (3,): u, a, c, where a + b = exp(u) keeps the order; features (n, 3): log_softmax, log_sum, 1; found (n,)
    bool: in valid; weights (n,): how many candidates a row stands for; share v in (0, 1]; centre, precision (3,): of
    the prior. Returns (value, d value (3,), Fisher information (3, 3)). Of d features it is the same with d for 3, and
    at v = 1, where what is not found is false, plain logistic regression whose first slope is positive.

        value = -sum w [found log(v pi) + (1 - found) log(1 - v pi)] + 1/2 sum precision (parameters - centre)^2
    """
    slopes = np.append(np.exp(parameters[0]), parameters[1:])
    z = features @ slopes
    pi, none = probability(z), np.maximum(probability(-z), 1e-300)  # never 0, for at v = 1 rest is none
    q, rest = share * pi, 1 - share + share * none  # 1 - q, without cancellation
    small = np.log1p(np.exp(-np.abs(z)))
    log_q = math.log(share) + np.minimum(z, 0) - small
    log_rest = np.log(rest) if share < 1 else np.minimum(-z, 0) - small
    away = parameters - centre
    value = -(weights * np.where(found, log_q, log_rest)).sum() + 0.5 * (precision * away * away).sum()
    d_z = weights * np.where(found, -none, q * none / rest)
    scale = np.append(slopes[0], np.ones(len(parameters) - 1))  # d slopes / d parameters
    gradient = (d_z @ features) * scale + precision * away
    information = (features.T * (weights * q * none**2 / rest)) @ features
    return float(value), gradient, information * scale * scale[:, None] + np.diag(precision)


def fit_calibration(features, found, weights, share, centre, precision, steps=100):
    """The parameters (3,) at a minimum of `calibration_loss`: Fisher scoring from `centre`, a step halved until the
    value falls. CardkgeError where features are not finite."""
    if not np.isfinite(features).all():
        raise CardkgeError("calibration: a score is not finite; train again, with a smaller learning rate say")
    parameters = np.array(centre, np.float64)
    arguments = features, found, weights, share, centre, precision
    value, gradient, information = calibration_loss(parameters, *arguments)
    for _ in range(steps):
        step = np.linalg.solve(information, gradient)
        step *= min(1.0, 3.0 / np.abs(step).max(initial=1e-300))  # far out the curvature says little
        tried = calibration_loss(parameters - step, *arguments)
        while not tried[0] <= value and np.abs(step).max() > 1e-12:
            step /= 2
            tried = calibration_loss(parameters - step, *arguments)
        if not tried[0] <= value:
            break
        parameters, done = parameters - step, value - tried[0] <= 1e-9 * abs(value)
        value, gradient, information = tried
        if done:
            break
    return parameters


def size_probabilities(p, most):
    """(most + 1,) P(|S| = j) of independent candidates with probabilities p (n,); the last is of `most` and more."""
    sizes = np.zeros(most + 1)
    sizes[0] = 1
    for each in p:
        grown = np.append(0, sizes[:-1] * each)
        grown[-1] += sizes[-1] * each
        sizes = sizes * (1 - each) + grown
    return sizes


def fit_counts(known, share, steps=200):
    """P(c) (m + 1,), the probability that a head has c tails, of heads with known (n,) tails, each known with
    probability `share` in (0, 1): step 4's EM, from equal probabilities. m is ceil(most known / share); a thousandth
    of a head is spread evenly over the counts."""
    k, heads = np.unique(known, return_counts=True)
    counts = np.arange(math.ceil(k[-1] / share) + 1)
    seen = np.minimum(k[:, None], counts)
    chances = np.exp(log_choose(counts, seen) + seen * math.log(share) + (counts - seen) * math.log1p(-share))
    chances *= counts >= k[:, None]
    found = np.full(len(counts), 1 / len(counts))
    for _ in range(steps):
        shares = chances * found
        found = (heads / shares.sum(1)) @ shares + 1e-3 / len(counts)
        found /= found.sum()
    return found


def log_choose(n, k):
    """log of the binomial coefficients of integers 0 <= k <= n."""
    logs = np.append(0, np.cumsum(np.log(np.arange(1, np.max(n, initial=0) + 1))))
    return logs[n] - logs[k] - logs[n - k]


def count_weights(counts, share, known, usual, heads=math.inf):
    """w_j (m + 1,) of step 4 for a head with `known` tails: counts (c,) of `fit_counts`; usual (m + 1,): M(j), the last
    of m and more, an average over so many heads. Ten heads with Q are added to these, so that few teach little, and
    1e-6 to both, so that what neither expects is left as it is. Where `known` is more than was ever seen, nothing is
    known of the count, and every weight is 1."""
    sizes = np.arange(len(counts) - known)
    if not len(sizes):
        return np.ones(len(usual))
    logs = log_choose(known + sizes, np.full(len(sizes), known)) + sizes * math.log1p(-share)
    new = counts[known:] * np.exp(logs - logs.max())
    new = np.bincount(np.minimum(sizes, len(usual) - 1), new / new.sum(), len(usual))
    usual = usual + (new - usual) * 10 / (heads + 10)
    weights = (new + 1e-6) / (usual + 1e-6)
    return weights / weights.max()


def conditioned(log_odds, lower, upper, weights=(1.0,)):
    """P(t in S | lower <= |S| <= upper) (n,) of independent candidates with log odds (n,): step 3, exactly. weights
    (m + 1,): those of step 4, not negative, for sizes from 0; the last is that of all sizes from m on.

    All sums are of positive terms, in logarithms: forward[t, j] = log P(j of the candidates before t are in S);
    backward[j] = log of the probability that the others lead from j to a size, times the weight of that size, summed
    over the sizes within the bounds. Then P(t in S) : P(t not in S) is

        p_t sum_j exp(forward[t, j] + backward[j + 1]) : (1 - p_t) sum_j exp(forward[t, j] + backward[j])

    with backward of the candidates after t. Equal odds get equal answers, and greater ones no smaller ones. The time is
    n times the largest size allowed, n^2 without an upper bound. CardkgeError where no set has a size within the bounds
    and a weight above 0.
    """
    x, weights = np.clip(np.asarray(log_odds, np.float64), -1e6, 1e6), np.asarray(weights, np.float64)
    n, sizes = len(x), np.arange(len(x) + 1)
    weights = np.where((sizes >= lower) & (sizes <= upper), weights[np.minimum(sizes, len(weights) - 1)], 0.0)
    if not weights.any():
        raise CardkgeError(f"no set of {n} candidates has a size from {lower:g} to {upper:g} of a weight above 0")
    if (weights == weights[0]).all():
        return probability(x)
    values, which, counts = np.unique(x, return_inverse=True, return_counts=True)
    x, most = np.repeat(values, counts), np.flatnonzero(weights)[-1]  # in ascending order
    log_p, log_q = -np.logaddexp(0, -x), -np.logaddexp(0, x)
    forward = np.full((n + 1, most + 1), -np.inf)
    forward[0, 0] = 0
    for i in range(n):
        forward[i + 1] = forward[i] + log_q[i]
        forward[i + 1, 1:] = np.logaddexp(forward[i + 1, 1:], forward[i, :-1] + log_p[i])
    with np.errstate(divide="ignore"):
        backward = np.log(weights[: most + 1])
    answers = np.empty(n)
    for i in reversed(range(n)):
        inside, outside = np.append(backward[1:], -np.inf) + log_p[i], backward + log_q[i]
        answers[i] = probability(np.logaddexp.reduce(forward[i] + inside) - np.logaddexp.reduce(forward[i] + outside))
        backward = np.logaddexp(inside, outside)
    return np.maximum.accumulate(answers)[np.cumsum(counts) - counts][which]  # rounding turns no order round
