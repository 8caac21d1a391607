"""Counts: calibrated answers, conditioned on the bounds (to become a section of cardkge.py)."""

import math

import numpy as np

from cardkge import CardkgeError, probability

# A candidate (h, r, t) is a triple that is not known. Three steps lead from its score to an answer.
#
# 1. pi, the probability that a candidate outside train is a fact, is logistic in what the model says of it: z = logit pi
#    = a score + b log_softmax + c[known tails of (h, r): 0, 1, more], of each relation its own a, b, c, with a + b > 0.
# 2. It is fitted on valid. A share v of the facts that train lacks got into valid, whichever they are; so a candidate is
#    in valid with probability v pi, and is anything else with 1 - v pi (Elkan and Noto, KDD 2008). Given that it is not in
#    valid, it is a fact with p = pi (1 - v) / (1 - v pi) (Bayes); of the odds o = p / (1 - p) this is log o = z + log(1 - v).
# 3. Facts are independent given the scores, so P(S) is proportional to the product of the odds of S's members, for any set
#    S of candidates; and P(|S| = j) to e_j(o), the elementary symmetric polynomial. Given lower <= |S| <= upper,
#    P(t in S) = o_t sum_{j=L-1}^{U-1} e_j(o without t) / sum_{j=L}^{U} e_j(o) (Chen, Dempster, Liu, Biometrika 1994).

N_KNOWN = 3  # 0, 1, or more known tails


def calibration_logits(coefficients, scores, log_sums, known):
    """z = a score + b log_softmax + c[known] of candidates, as (a + b) log_softmax + a log_sum + c: where a + b > 0 the
    order of the tails of one (h, r) is that of their scores, ties included.

    coefficients (..., 5): a, b and the three c of each candidate's relation; scores (...); log_sums (...): the log of
    the sum of exp(score) over the tails of its (h, r); known (...): its known tails. Float64 throughout.
    """
    coefficients, log_sums = np.asarray(coefficients, np.float64), np.asarray(log_sums, np.float64)
    a, b, c = coefficients[..., 0], coefficients[..., 1], coefficients[..., 2:]
    place = np.minimum(known, N_KNOWN - 1)
    c = np.take_along_axis(np.broadcast_to(c, (*np.shape(place), N_KNOWN)), np.asarray(place)[..., None], -1)[..., 0]
    return (a + b) * (np.asarray(scores, np.float64) - log_sums) + a * log_sums + c


def log_sum_exp(scores):
    """log of the sum of exp(scores) over the last axis, float64."""
    scores = np.asarray(scores, np.float64)
    largest = scores.max(-1, keepdims=True)
    return np.log(np.exp(scores - largest).sum(-1)) + largest[..., 0]


def calibration_loss(parameters, features, found, weights, share, centre, precision):
    """The negative log-likelihood of step 2 with a Gaussian prior, its gradient, and its expected curvature.

    parameters (5,): u, a, c, where a + b = exp(u) keeps the order; features (n, 4 + 1): log_softmax, log_sum and the
    indicators of 0, 1, more known tails; found (n,) bool: in valid; weights (n,): how many candidates a row stands for;
    share v in (0, 1); centre (5,), precision (5,): of the prior. Returns (value, d value (5,), Fisher information (5, 5)).

        value = -sum w [found log(v pi) + (1 - found) log(1 - v pi)] + 1/2 sum precision (parameters - centre)^2
    """
    slopes = np.append(np.exp(parameters[0]), parameters[1:])
    z = features @ slopes
    pi = probability(z)
    q = share * pi  # log q = log v - log(1 + exp(-z))
    log_q = math.log(share) + np.minimum(z, 0) - np.log1p(np.exp(-np.abs(z)))
    away = parameters - centre
    value = -(weights * np.where(found, log_q, np.log1p(-q))).sum() + 0.5 * (precision * away * away).sum()
    d_z = weights * np.where(found, pi - 1, q * (1 - pi) / (1 - q))
    scale = np.append(slopes[0], np.ones(len(parameters) - 1))  # d slopes / d parameters
    gradient = (d_z @ features) * scale + precision * away
    information = (features.T * (weights * q * (1 - pi) ** 2 / (1 - q))) @ features
    return float(value), gradient, information * scale * scale[:, None] + np.diag(precision)


def fit_calibration(features, found, weights, share, centre, precision, steps=100):
    """The parameters (5,) at a minimum of `calibration_loss`: Fisher scoring from `centre`, a step halved until the
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


def mean_count(log_odds, tilt=0.0):
    """Sum of p and of p (1 - p) over candidates with these log odds (n,), each moved by `tilt`."""
    p = probability(log_odds + tilt)
    return p.sum(), (p * probability(-log_odds - tilt)).sum()


def tilt_to(log_odds, target):
    """A tilt that brings the mean count of candidates (n,) within 1/4 of `target` in 1..n - 1, by bisection; every
    log odds finite."""
    margin = math.log(len(log_odds)) + 1
    low, high = -log_odds.max() - margin, -log_odds.min() + margin
    while True:
        tilt = (low + high) / 2
        mean, _ = mean_count(log_odds, tilt)
        if abs(mean - target) <= 0.25:
            return tilt
        low, high = (tilt, high) if mean < target else (low, tilt)


def conditioned(log_odds, lower, upper):
    """P(t in S | lower <= |S| <= upper) (n,) of independent candidates with log odds (n,): step 3, exactly.

    A set's odds change by a factor exp(tilt |S|) where every candidate's change by exp(tilt); given its size, nothing
    changes. So the log odds are moved until the mean count lies at the nearer bound, if it lies outside them, and sizes
    are weighted by exp(-tilt size) in return: then no polynomial that matters is below 1 / (n + 1) or above 1, whatever the odds.
    forward[i, j] = P(j of the first i in S) and backward[j] = P(bounds hold | j so far) are sums of positive terms
    only, as is P(t in S, bounds hold) = sum_j forward[t, j] p_t backward[j + 1]: no rounding error is ever enlarged.

    An upper bound further than 30 + 10 standard deviations above the mean excludes less than 1e-16, and is taken for
    infinite; where a lower bound is not met on the average, so is what is further above it. Equal odds get equal
    answers, and greater ones no smaller ones. CardkgeError where no set of candidates has such a size.
    """
    log_odds = np.clip(np.asarray(log_odds, np.float64), -1e6, 1e6)
    n, least = len(log_odds), max(math.ceil(lower), 0)
    most = min(math.floor(min(upper, n)), n)
    if least > most:
        raise CardkgeError(f"no set of {n} candidates has a size from {lower:g} to {upper:g}")
    if most == 0 or least == n:
        return np.full(n, float(most > 0))
    mean, variance = mean_count(log_odds)
    tilt = 0.0
    if not least <= mean <= most:
        end = least if mean < least else most
        tilt = tilt_to(log_odds, end)
        mean, variance = mean_count(log_odds, tilt)
    reach = math.ceil(mean + 30 + 10 * math.sqrt(variance))
    more = most == n or most > reach  # the last state is `that many or more`
    if tilt > 0:
        most, more = min(most, reach), False
    elif more:
        most = least
    if more and least == 0:
        return probability(log_odds)
    order = np.argsort(log_odds, kind="stable")
    p, q = probability(log_odds[order] + tilt), probability(-log_odds[order] - tilt)
    sizes = np.arange(most + 1)
    backward = (sizes >= least) * np.exp(np.minimum(-tilt * (sizes - (least if tilt > 0 else most)), 0))
    forward = np.zeros((n + 1, most + 1))
    forward[0, 0] = 1
    for i in range(n):
        forward[i + 1] = forward[i] * q[i]
        forward[i + 1, 1:] += forward[i, :-1] * p[i]
        forward[i + 1, -1] += forward[i, -1] * p[i] * more
    answers = np.empty(n)
    for i in reversed(range(n)):
        shifted = np.append(backward[1:], backward[-1] * more)
        member, other = p[i] * (forward[i] @ shifted), q[i] * (forward[i] @ backward)
        answers[i] = member / (member + other)
        backward = q[i] * backward + p[i] * shifted
    answers = np.maximum.accumulate(answers)  # what rounding may have turned round
    _, first, which = np.unique(log_odds[order], return_index=True, return_inverse=True)
    result = np.empty(n)
    result[order] = answers[first][which]
    return result
