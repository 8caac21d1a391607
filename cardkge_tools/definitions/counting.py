"""Counts (beyond the paper): calibrated answers, conditioned on the bounds, in plain NumPy."""

import math

import numpy as np

from cardkge import CardkgeError, probability

# A candidate (h, r, t) is a triple that is not known. Three steps lead from score to answer, a fourth to counts.
#
# 1. pi, the probability that a candidate outside train is a fact, is logistic in its log softmax over the candidates of
# (h, r), with an offset for (h, r), and has a ceiling; each relation has its own parameters (`calibrated_log_odds`).
# 2. pi is fitted on valid, through the bounds: valid holds a random share v of the facts that train lacks
# (`thinned_likelihood`). Where a share s of them is known, a candidate, which is not known, is a fact with
# p = pi (1 - s) / (1 - s pi) (Bayes; Elkan and Noto, KDD 2008): its odds o = p / (1 - p) are (1 - s) pi / (1 - pi).
# 3. Facts are independent given the scores: P(S) is proportional to the product of the odds of S's members, for any set
# S of candidates, and P(|S| = j) to e_j(o), the elementary symmetric polynomial. Given lower <= |S| <= upper,
# P(t in S) = o_t sum_{j=L-1}^{U-1} e_j(o without t) / sum_{j=L}^{U} e_j(o) (Chen, Dempster, Liu, Biometrika 1994).
# 4. Prior counts may be softer than a bound: P(|S| = j) is proportional to w_j e_j(o), for any weights w_j, and bounds
# are weights of 0 and 1. Let Q(j) be the probability of j new tails by the known counts of a relation, and M(j) that by
# step 2, averaged over its heads with (about) as many known tails: w_j = Q(j) / M(j). Where both agree nothing changes.
# (Q alone would count evidence in the odds twice; Q over the head's own M would discard the evidence about this head.)
# Q comes from P(c), the probability that a head has c tails in all, each known with probability s: k of c are with
# C(c, k) s^k (1 - s)^(c - k), P is fitted to the k by EM, and Q(j) is proportional to P(k + j) C(k + j, k) (1 - s)^j.


# 5. A number counts all tails, candidates or not (most children of a person are not entities of the graph). Where the
# range of r is not closed, a Poisson number U of *unseen* tails with mean mu_r joins the candidates: bounds hold for
# |S| + U, so step 3 has the weights w_j = sum_u P(U = u) [lower <= j + u <= upper] (`unseen_weights`). None of them is
# in valid: Z' of step 2 keeps mu_r whole, while it multiplies the odds of the candidates by 1 - v.


def log_sum_exp(scores):
    """log of the sum of exp(scores) over the last axis, float64."""
    scores = np.asarray(scores, np.float64)
    largest = scores.max(-1, keepdims=True)
    return np.log(np.exp(scores - largest).sum(-1)) + largest[..., 0]


def size_probabilities(p, most):
    """(most + 1,) P(|S| = j) of independent candidates with probabilities p (n,); the last element is for `most` and
    more."""
    sizes = np.zeros(most + 1)
    sizes[0] = 1
    for each in p:
        grown = np.append(0, sizes[:-1] * each)
        grown[-1] += sizes[-1] * each
        sizes = sizes * (1 - each) + grown
    return sizes


def fit_counts(known, share, steps=200):
    """P(c) (m + 1,), the probability that a head has c tails, from heads with known (n,) tails, each tail known with
    probability `share` in (0, 1): the EM of step 4, from equal probabilities. m is ceil(max known / share); a
    thousandth of a head is spread evenly over the counts."""
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
    for m and more, an average over `heads` heads. Ten heads with Q are added to M, so that few heads change little, and
    1e-6 to both, so that sizes which neither expects keep weight 1. Where `known` exceeds every count, the counts tell
    nothing, and every weight is 1."""
    sizes = np.arange(len(counts) - known)
    if not len(sizes):
        return np.ones(len(usual))
    logs = log_choose(known + sizes, np.full(len(sizes), known)) + sizes * math.log1p(-share)
    new = counts[known:] * np.exp(logs - logs.max())
    new = np.bincount(np.minimum(sizes, len(usual) - 1), new / new.sum(), len(usual))
    usual = usual + (new - usual) * 10 / (heads + 10)
    weights = (new + 1e-6) / (usual + 1e-6)
    return weights / weights.max()


def unseen_weights(lower, upper, mean, most):
    """w_j (most + 1,) of step 5, divided by the largest: the probability that j plus a Poisson number with this mean is
    from lower to upper. A toy: with mean 1 and exactly 2, w is (e^-1 / 2, e^-1, e^-1), divided (1/2, 1, 1)."""
    spare = math.ceil(mean + 10 * math.sqrt(mean) + 30)
    u = np.arange(max(most, math.ceil(lower)) + spare)
    log_p = u * (math.log(mean) if mean else -1e300)
    log_p -= np.cumsum(np.log(np.maximum(u, 1)))
    within = [(lower <= j + u) & (j + u <= upper) for j in range(most + 1)]
    logs = np.array([np.logaddexp.reduce(log_p[each]) if each.any() else -np.inf for each in within])
    return np.exp(logs - max(logs.max(), -1e300))


def chance_of_least(p, lower, unseen=0.0):
    """P(|S| + U >= lower) for independent candidates with probabilities p (n,) and unseen tails with this mean: where
    it is small, a lower bound exceeds what the model expects, and completions that meet it are guesses."""
    least = max(math.ceil(lower), 0)
    sizes = size_probabilities(p, max(least, 1))
    u = np.arange(least)
    log_p = u * (math.log(unseen) if unseen else -1e300) - unseen - np.cumsum(np.log(np.maximum(u, 1)))
    return 1 - sizes[:least] @ np.cumsum(np.exp(log_p))[::-1]  # with j candidates, fewer than least - j unseen tails


def conditioned(log_odds, lower, upper, weights=(1.0,), unseen=0.0):
    """P(t in S | lower <= |S| <= upper) (n,) of independent candidates with log odds (n,): step 3, exactly. weights
    (m + 1,): those of step 4, not negative, for sizes from 0; the last is that of all sizes from m on. unseen: mu of
    step 5; above 0 there are no weights beside it, which are of candidates alone.

    All sums are of positive terms, in logarithms: forward[t, j] = log P(j of the candidates before t are in S);
    backward[j] = log of the probability that the others lead from j to a size, times the weight of that size, summed
    over the sizes within the bounds. Then P(t in S) : P(t not in S) is

        p_t sum_j exp(forward[t, j] + backward[j + 1]) : (1 - p_t) sum_j exp(forward[t, j] + backward[j])

    with backward of the candidates after t. Equal odds get equal answers, and greater ones no smaller ones. The time is
    n times the largest size allowed, n^2 without an upper bound. CardkgeError where no set has a size within the bounds
    and a weight above 0, or both weights and unseen are given.
    """
    x, weights = np.clip(np.asarray(log_odds, np.float64), -1e6, 1e6), np.asarray(weights, np.float64)
    n, sizes = len(x), np.arange(len(x) + 1)
    if unseen > 0:
        if len(weights) > 1:
            raise CardkgeError("weights are of candidates alone, and say nothing beside unseen tails; give one of both")
        weights, lower = unseen_weights(lower, upper, unseen, n), 0
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
    return np.maximum.accumulate(answers)[np.cumsum(counts) - counts][which]  # rounding must not change the order


# ------------------------------------------------------------------------------------------------------------------
# Calibration through the bounds
# ------------------------------------------------------------------------------------------------------------------


N_FEATURES = 6  # of (h, r)


def pair_features(log_sums, known, best, centre=0.0, scale=1.0):
    """The features of (h, r) in its offset, (n, N_FEATURES): 1; whether it has no known tail; whether it has two or
    more; and, standardised, its log sum, log(1 + known tails) and the log softmax of its best candidate.

    log_sums, best (n,): the log of the sum of exp(score) over the candidates, and the greatest score; known (n,): how
    many tails are known, and hence are not candidates; centre, scale (3,): means and standard deviations at the fit."""
    known, best = np.asarray(known), np.asarray(best, np.float64)
    numbers = (np.column_stack((log_sums, np.log1p(known), best - log_sums)) - centre) / scale
    return np.column_stack((np.ones(len(known)), known == 0, known >= 2, numbers))


def calibrated_log_odds(parameters, log_softmax, features):
    """log o of candidates: o = pi / (1 - pi), pi = ceiling * sigma(x), x = slope * log_softmax + offset.

    parameters (..., 1 + F + 1): the logarithm of the slope, the coefficients of the offset, the logit of the ceiling.
    log_softmax (...): over the candidates of (h, r). features (..., F): those of (h, r), equal for all its candidates,
    so that offset = coefficients . features and a slope above 0 keep the order of their scores, ties included.

    Returns (log o, d log o / d x, d log o / d logit of the ceiling), each (...). With c the ceiling,
    o = c e^x / (1 + (1 - c) e^x), which grows from 0 to c / (1 - c).
    """
    logit = parameters[..., -1]
    x = np.exp(parameters[..., 0]) * log_softmax + (parameters[..., 1:-1] * features).sum(-1)
    above = x - np.logaddexp(0, logit)  # log((1 - c) e^x)
    log_odds = x - np.logaddexp(0, -logit) - np.logaddexp(0, above)
    return log_odds, probability(-above), probability(-logit) * (1 + np.exp(log_odds))


def log_size_sums(log_odds, log_rest, most):
    """log of sum over the sets of j = 0..most candidates of the product of their odds, (most + 1,).

    log_odds (n,): those of the candidates kept apart; log_rest: log of the sum of the odds of all others, which are so
    many and so improbable that their number is Poisson: together they count as sum^j / j! (-inf: no others)."""
    sums = np.array([j * log_rest if j else 0.0 for j in range(most + 1)])
    sums -= np.append(0, np.cumsum(np.log(np.arange(1, most + 1))))
    for x in log_odds:
        sums[1:] = np.logaddexp(sums[1:], sums[:-1] + x)
    return sums


def log_partition(log_odds, log_rest, lower, upper):
    """log Z, Z being the sum over the sets with lower to upper members of the product of their odds. Where upper is
    inf, sizes run so far that the rest is below a part in 1e16."""
    lower = max(math.ceil(lower), 0)
    if math.isinf(upper):
        mean = math.exp(log_rest)
        upper = max(lower, len(log_odds)) + math.ceil(mean + 10 * math.sqrt(mean) + 30)
    upper = math.floor(upper)
    if upper < lower or upper < 0:
        return -math.inf
    return float(np.logaddexp.reduce(log_size_sums(log_odds, log_rest, upper)[lower:]))


def thinned_likelihood(log_odds, log_rest, found, share, lower, upper, unseen=0.0):
    """log P(V), the probability that valid holds exactly those new tails of one (h, r) that `found` (n,) bool marks.

    P(S), S being the set of all new tails, is proportional to the product of the odds of its members, for sets of lower
    to upper members; each member is in valid with probability `share` v, independently. Summed over the members of S
    outside V:

        P(V) = v^|V| prod_{t in V} o_t Z'(odds (1 - v) o of the candidates outside V; sizes less |V|) / Z(odds o; sizes)

    unseen: mu of step 5, part of the rest in both, but not multiplied by 1 - v in Z': valid holds no unseen tail.

    Returns (log P, d / d log odds (n,), d / d log_rest, d / d log mu). The derivative is 1 - p_t in V and p'_t - p_t
    outside, where p = o_t Z(without t; sizes less 1) / Z(sizes) is the probability that t is in S, and p' that of Z'.
    """
    outside = ~found
    size = int(found.sum())
    both = (
        (-1, log_odds, log_rest, lower, upper, np.ones(len(log_odds), bool)),
        (1, log_odds + math.log1p(-share), log_rest + math.log1p(-share), lower - size, upper - size, outside),
    )
    value = size * math.log(share) + log_odds[found].sum()
    d_odds, d_rest, d_unseen = found.astype(float), 0.0, 0.0
    log_mu = math.log(unseen) if unseen > 0 else -math.inf
    for sign, x, of_rest, low, high, members in both:
        rest = float(np.logaddexp(of_rest, log_mu))
        total = log_partition(x[members], rest, low, high)
        value += sign * total
        for t in np.flatnonzero(members):
            others = members.copy()
            others[t] = False
            d_odds[t] += sign * math.exp(x[t] + log_partition(x[others], rest, low - 1, high - 1) - total)
        each = log_partition(x[members], rest, low - 1, high - 1) - total  # of one member in the rest
        d_rest += sign * math.exp(of_rest + each)
        d_unseen += sign * math.exp(log_mu + each)
    return value, d_odds, d_rest, d_unseen


def calibration_objective(parameters, queries, centre, precision):
    """(value, gradient) of the function that the fit minimises: minus the weighted sum of log P(V) over the (h, r),
    plus a normal prior, 1/2 sum precision (parameters - centre)^2.

    parameters, centre, precision (1 + F + 1,): logarithm of the slope, offset, logit of the ceiling; or (1 + F + 2,),
    the last then the logarithm of a factor for the mean numbers of unseen tails. queries: for each (h, r) a dict of
    log_softmax (n,), found (n,) bool, weights (n,), for its candidates: those with weight 1 are kept apart, each other
    one stands for that many improbable ones, which are added up; features (F,); lower, upper: the bounds less the known
    tails; known_share s: the known share of the facts that train lacks, so that odds are (1 - s) o; unseen: a mean
    number of unseen tails (0 where left out); share v: the share of the other facts that valid holds; weight: how many
    (h, r) it stands for.

    A toy, of two heads with three candidates each, scores log 4, log 2, log 1 and log 6, log 1, log 1, slope 1, offset
    log 3.5 and log 4, no ceiling (c = 1), v = 1/2. Odds are e^offset softmax. The first head has at most one tail, and
    valid holds its best: softmax 4/7, 2/7, 1/7, odds 2, 1, 1/2, Z = 1 + 3.5 = 4.5, V takes all the room, so that Z' = 1
    and P(V) = 1/2 * 2 / 4.5 = 2/9. The second has no bound and nothing in valid: odds 3, 1/2, 1/2, P(V) = (1 + 3/2)
    (1 + 1/4)^2 / ((1 + 3) (1 + 1/2)^2) = 125/288. The value is -log(2/9) - log(125/288) = 2.3387; of the first head's
    best candidate d log P / d x = 1 - 2/4.5 = 5/9, of the second's p' - p = 3/5 - 3/4 = -3/20.
    If the first head has exactly two tails and, on average, one unseen: Z = e_2 + e_1 + 1/2 = 7.5, Z' = 3/4 + 1 (one
    tail more, of odds 1/2, 1/4 and the unseen 1), P(V) = 1/2 * 2 * 7/4 / 7.5 = 7/30, d log P / d log mu = 4/7 - 3/5.
    """
    parameters = np.asarray(parameters, np.float64)
    away = parameters - centre
    value, gradient = 0.5 * (precision * away * away).sum(), precision * away
    for query in queries:
        x, found, features = query["log_softmax"], query["found"], query["features"]
        own = parameters[: 2 + len(features)]
        log_odds, d_x, d_ceiling = calibrated_log_odds(own, x, features)
        log_odds = log_odds + math.log1p(-query["known_share"])
        unseen = query.get("unseen", 0.0) * math.exp(parameters[len(own) :].sum())
        apart = query["weights"] == 1
        terms = (log_odds + np.log(query["weights"]))[~apart]
        log_rest = np.logaddexp.reduce(terms) if len(terms) else -math.inf
        bounds = query["lower"], query["upper"]
        log_p, d_apart, d_rest, d_unseen = thinned_likelihood(
            log_odds[apart], log_rest, found[apart], query["share"], *bounds, unseen
        )
        d_odds = np.zeros(len(x))
        d_odds[apart] = d_apart
        d_odds[~apart] = d_rest * np.exp(terms - log_rest) if len(terms) else 0.0
        d_offset = (d_odds * d_x).sum()
        d_slope = (d_odds * d_x * x).sum() * math.exp(parameters[0])
        value -= query["weight"] * log_p
        parts = [d_slope], d_offset * features, [(d_odds * d_ceiling).sum(), d_unseen]
        gradient -= query["weight"] * np.concatenate(parts)[: len(parameters)]
    return value, gradient


def minimise(function, start, steps=100, tolerance=1e-8):
    """The x that minimises function(x) -> (value, gradient, curvature), from `start`: BFGS, which begins with the
    inverse of the curvature there; a step is halved until the value falls enough for its slope. CardkgeError where
    value or gradient is not finite at the start."""
    x = np.array(start, np.float64)
    value, gradient, curvature = function(x)
    if not np.isfinite([value, *gradient]).all():
        raise CardkgeError("calibration: the likelihood is not finite; train again, say with a smaller learning rate")
    inverse = np.linalg.inv(curvature)
    for _ in range(steps):
        step = -inverse @ gradient
        step *= min(1.0, 2.0 / np.abs(step).max(initial=1e-300))
        slope, size = step @ gradient, 1.0
        while True:
            tried = function(x + size * step)
            if tried[0] <= value + 1e-4 * size * slope or size < 1e-6:
                break
            size /= 2
        if not tried[0] < value:
            break
        moved, turned, fallen = size * step, tried[1] - gradient, value - tried[0]
        x, value, gradient = x + moved, *tried[:2]
        if moved @ turned > 1e-12:
            mixed = np.eye(len(x)) - np.outer(moved, turned) / (moved @ turned)
            inverse = mixed @ inverse @ mixed.T + np.outer(moved, moved) / (moved @ turned)
        if fallen <= tolerance * max(abs(value), 1.0):
            break
    return x
