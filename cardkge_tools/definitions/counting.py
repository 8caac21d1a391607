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


# ------------------------------------------------------------------------------------------------------------------
# Calibration through the bounds
# ------------------------------------------------------------------------------------------------------------------


N_FEATURES = 6  # of (h, r)
KNOTS = (-4.0, -1.0)  # log softmaxes at which the slope may change
N_SLOPES = len(KNOTS) + 1


def pair_features(log_sums, known, best, centre=0.0, scale=1.0):
    """What the offset of (h, r) is made of, (n, N_FEATURES): 1; whether it has no known tail; whether it has two or
    more; and less their means, in standard deviations: its log sum, log(1 + known tails), the log softmax of its best
    candidate.

    log_sums, best (n,): the log of the sum of exp(score) over the candidates, and the greatest score; known (n,): how
    many tails are known, and so are no candidates; centre, scale (3,): means and standard deviations at the fit.
    """
    known, best = np.asarray(known), np.asarray(best, np.float64)
    numbers = (np.column_stack((log_sums, np.log1p(known), best - log_sums)) - centre) / scale
    return np.column_stack((np.ones(len(known)), known == 0, known >= 2, numbers))


def pieces(log_softmax):
    """What of a log softmax (...) lies below the first of KNOTS, between each two, above the last: (..., N_SLOPES),
    with the log softmax as its sum. (0 is above the last.)"""
    x = np.asarray(log_softmax, np.float64)[..., None]
    inner = np.clip(x, KNOTS, (*KNOTS[1:], np.inf)) - KNOTS
    return np.concatenate((np.minimum(x, KNOTS[0]), inner), axis=-1)


def slopes_of(parameters):
    """The slopes (..., N_SLOPES) of the pieces: of the lowest e^a, of each other e^(a + b), where a, and b of each other,
    stand first in parameters."""
    logs = np.array(parameters[..., :N_SLOPES])
    logs[..., 1:] += logs[..., :1]
    return np.exp(logs)


def calibrated_log_odds(parameters, log_softmax, features):
    """log o of candidates: o = pi / (1 - pi), pi = ceiling * sigma(x), x = slopes . pieces + offset: piecewise linear in
    the log softmax, for where it is small a model is surer than it should be that there is no fact.

    parameters (..., N_SLOPES + F + 1): those of `slopes_of`, the coefficients of the offset, the logit of the ceiling.
    log_softmax (...): over the candidates of (h, r). features (..., F): of (h, r), the same for all its candidates, so
    that offset = coefficients . features and slopes above 0 leave them in the order of their scores, ties included.

    Returns (log o, d log o / d x, d log o / d logit of the ceiling), each (...). With c the ceiling,
    o = c e^x / (1 + (1 - c) e^x), which grows from 0 to c / (1 - c).
    """
    logit = parameters[..., -1]
    x = (slopes_of(parameters) * pieces(log_softmax)).sum(-1) + (parameters[..., N_SLOPES:-1] * features).sum(-1)
    above = x - np.logaddexp(0, logit)  # log((1 - c) e^x)
    log_odds = x - np.logaddexp(0, -logit) - np.logaddexp(0, above)
    return log_odds, probability(-above), probability(-logit) * (1 + np.exp(log_odds))


def log_size_sums(log_odds, log_rest, most):
    """log of sum over the sets of j = 0..most candidates of the product of their odds, (most + 1,).

    log_odds (n,): of the candidates that are told apart; log_rest: log of the sum of the odds of all others, which are
    so many and so improbable that their number is Poisson: together they count as sum^j / j! (-inf: there are none).
    """
    sums = np.array([j * log_rest if j else 0.0 for j in range(most + 1)])
    sums -= np.append(0, np.cumsum(np.log(np.arange(1, most + 1))))
    for x in log_odds:
        sums[1:] = np.logaddexp(sums[1:], sums[:-1] + x)
    return sums


def log_partition(log_odds, log_rest, lower, upper):
    """log Z: of the sum over the sets with lower to upper members of the product of their odds. Where upper is inf,
    sizes are taken so far that what is left out is below a part in 1e16."""
    lower = max(math.ceil(lower), 0)
    if math.isinf(upper):
        mean = math.exp(log_rest)
        upper = max(lower, len(log_odds)) + math.ceil(mean + 10 * math.sqrt(mean) + 30)
    upper = math.floor(upper)
    if upper < lower or upper < 0:
        return -math.inf
    return float(np.logaddexp.reduce(log_size_sums(log_odds, log_rest, upper)[lower:]))


def thinned_likelihood(log_odds, log_rest, found, share, lower, upper):
    """log P(V), the probability that of the new tails S of one (h, r) exactly those `found` (n,) bool got into valid.

    P(S) is proportional to the product of the odds of its members, on the sets of lower to upper members; each member
    gets into valid with probability `share` v, whatever the others do. Summed over what S holds beside V:

        P(V) = v^|V| prod_{t in V} o_t Z'(odds (1 - v) o of the candidates outside V; sizes less |V|) / Z(odds o; sizes)

    Returns (log P, d / d log odds (n,), d / d log_rest). The derivative is 1 - p_t in V and p'_t - p_t outside, where
    p = o_t Z(without t; sizes less 1) / Z(sizes) is the probability that t is in S, and p' the same of Z'.
    """
    outside = ~found
    size = int(found.sum())
    both = (
        (-1, log_odds, log_rest, lower, upper, np.ones(len(log_odds), bool)),
        (1, log_odds + math.log1p(-share), log_rest + math.log1p(-share), lower - size, upper - size, outside),
    )
    value = size * math.log(share) + log_odds[found].sum()
    d_odds, d_rest = found.astype(float), 0.0
    for sign, x, rest, low, high, members in both:
        total = log_partition(x[members], rest, low, high)
        value += sign * total
        for t in np.flatnonzero(members):
            others = members.copy()
            others[t] = False
            d_odds[t] += sign * math.exp(x[t] + log_partition(x[others], rest, low - 1, high - 1) - total)
        d_rest += sign * math.exp(rest + log_partition(x[members], rest, low - 1, high - 1) - total)
    return value, d_odds, d_rest


def calibration_objective(parameters, queries, centre, precision):
    """What the fit makes small, and its gradient: minus the weighted sum of log P(V) over the (h, r), plus a normal
    prior, 1/2 sum precision (parameters - centre)^2.

    parameters, centre, precision (N_SLOPES + F + 1,): as `calibrated_log_odds` takes them. queries: for each
    (h, r) a dict of log_softmax (n,), found (n,) bool, weights (n,), of its candidates: those with weight 1 are told
    apart, the others stand for so many improbable ones and are added up; features (F,); lower, upper: the bounds less
    the known tails; known_share s: the share of the facts that train lacks which is known here, so that odds are
    (1 - s) o; share v: that of the others which valid holds; weight: how many (h, r) it stands for.

    A toy, of two heads with three candidates each, scores log 4, log 2, log 1 and log 6, log 1, log 1, slope 1, offset
    log 3.5 and log 4, no ceiling (c = 1), v = 1/2. Odds are e^offset softmax. The first head has at most one tail, and
    valid holds its best: softmax 4/7, 2/7, 1/7, odds 2, 1, 1/2, Z = 1 + 3.5 = 4.5, V takes all the room, so that Z' = 1
    and P(V) = 1/2 * 2 / 4.5 = 2/9. The second has no bound and nothing in valid: odds 3, 1/2, 1/2, P(V) = (1 + 3/2)
    (1 + 1/4)^2 / ((1 + 3) (1 + 1/2)^2) = 125/288. The value is -log(2/9) - log(125/288) = 2.3388; of the first head's
    best candidate d log P / d x = 1 - 2/4.5 = 5/9, of the second's p' - p = 3/5 - 3/4 = -3/20.
    """
    parameters = np.asarray(parameters, np.float64)
    away = parameters - centre
    value, gradient = 0.5 * (precision * away * away).sum(), precision * away
    for query in queries:
        x, found, features = query["log_softmax"], query["found"], query["features"]
        log_odds, d_x, d_ceiling = calibrated_log_odds(parameters, x, features)
        log_odds = log_odds + math.log1p(-query["known_share"])
        apart = query["weights"] == 1
        terms = (log_odds + np.log(query["weights"]))[~apart]
        log_rest = np.logaddexp.reduce(terms) if len(terms) else -math.inf
        log_p, d_apart, d_rest = thinned_likelihood(
            log_odds[apart], log_rest, found[apart], query["share"], query["lower"], query["upper"]
        )
        d_odds = np.zeros(len(x))
        d_odds[apart] = d_apart
        d_odds[~apart] = d_rest * np.exp(terms - log_rest) if len(terms) else 0.0
        d_offset = (d_odds * d_x).sum()
        d_slopes = (d_odds * d_x) @ pieces(x) * slopes_of(parameters)
        d_slopes[0] = d_slopes.sum()
        value -= query["weight"] * log_p
        gradient -= query["weight"] * np.concatenate((d_slopes, d_offset * features, [(d_odds * d_ceiling).sum()]))
    return value, gradient
