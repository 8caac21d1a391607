"""The odds of the candidates of (h, r), and how many are facts: whether any, and whether a lower bound requires too
many."""

import numpy as np

import kernels
from cardkge import CardkgeError, probability
from cardkge_tools.definitions.counting import calibrated_log_odds, unseen_weights

GUESS = 0.01  # where a lower bound is less probable than this without it, the names that meet it are guesses
LISTED = 1024  # candidates that are listed, at first, where a lower bound asks for tails
FOLDED = 1e-3  # the greatest p of a candidate that is not, and its greatest odds where guesses are looked for
FREE = 0.1  # of the (h, r) of a fit, at least, without a lower bound: else it says nothing of guesses


def log_odds(calibration, relations, log_softmax, features, numbered=True):
    """Log odds (n,), float64, that candidates are facts, given the share of facts that is known.

    relations (n,); log_softmax (n,): over the candidates of (h, r); features (n, F): `pair_features` of (h, r);
    numbered: whether (h, r) has an exact number."""
    of_train, *_ = calibrated_log_odds(calibration.parameters[relations], log_softmax, features)
    return of_train + np.log1p(-calibration.known_of(relations, numbered))


def log_softmax_of(calibration, relations, odds, features, numbered=True):
    """The log softmax (n,) at which `log_odds` equals odds (n,): its inverse; inf where the ceiling is lower."""
    slope, offset, ceiling = np.split(calibration.parameters[relations], [1, -1], axis=1)
    odds = odds - np.log1p(-calibration.known_of(relations, numbered))
    with np.errstate(divide="ignore", invalid="ignore"):  # x = odds - log c - log(1 - exp(odds) / exp(logit c))
        x = odds + np.logaddexp(0, -ceiling[:, 0]) - np.log(-np.expm1(np.minimum(odds - ceiling[:, 0], 0)))
    return (x - (offset * features).sum(1)) / np.exp(slope[:, 0])


class FullTails:
    """The (r, t) with as many known heads as bounds of the inverse allow: t answers no (h, r, ?), whatever h. known:
    KnownTails."""

    def __init__(self, bounds, known):
        self.bounds, self.known, self.inverse = bounds, known, bounds.is_bounded(inverse=True)
        self._of = {}  # relation -> tails, for they are needed again and again

    def room(self, relations, tails, less=0):
        """(n,): how many new heads each (r, t) may get if `less` of its known heads were unknown."""
        limits = self.bounds.of(relations, tails, inverse=True)
        return room_left(limits, self.known.count_heads(relations, tails) - less)

    def of(self, relation):
        """The tails (m,) that are full."""
        if relation not in self._of:
            everyone = np.arange(self.known.n_entities)
            self._of[relation] = np.flatnonzero(self.room(np.full(len(everyone), relation), everyone) < 1)
        return self._of[relation]


def room_left(limits, known):
    """How many new tails each (h, r) with bounds (n, 2) `limits` may get: floor(upper) less the known ones, at least 0;
    2^62 less the known ones where upper is inf."""
    upper = np.minimum(np.floor(limits[:, 1]), 2.0**62)
    return np.maximum(upper - known, 0)


def open_to(scores, relations, excluded, full):
    """A copy of scores (n, N) of pairs of these relations, -inf where an entity is not a candidate: excluded (starts,
    ids), and tails that are full (FullTails). Fit and prediction both take their candidates from it."""
    scores, (starts, ids) = scores.copy(), excluded
    scores[np.repeat(np.arange(len(scores)), np.diff(starts)), ids] = -np.inf
    for relation in np.unique(relations[full.inverse[relations]]).tolist():
        scores[np.ix_(np.flatnonzero(relations == relation), full.of(relation))] = -np.inf
    return scores


def nth_best(scores, count):
    """(n,): a score in each row of scores (n, N) that at least `count` scores, and seldom many more, are as good as:
    the count-th best of the maxima of 8 to 16 count parts of the row, or of all scores of a short row."""
    n = scores.shape[1]
    parts = np.arange(0, n, max(1, n // (8 * count)))
    best = min(count, len(parts))
    return np.partition(np.maximum.reduceat(scores, parts, axis=1), -best, axis=1)[:, -best]


def log_sums_of(scores, remedy, empty=0.0):
    """(n,) each: the log of the sum of exp(score), and the greatest score, over the candidates in scores (n, N) of
    `open_to`; `empty` without candidates. CardkgeError, which names the remedy, where a score is not finite."""
    sums, best = np.empty(len(scores)), scores.max(1)
    kernels.log_sums(scores, best, sums)
    closed = best == -np.inf
    sums[closed] = best[closed] = empty
    if np.isnan(sums).any() or (np.abs(best[~closed]) == np.inf).any():
        raise CardkgeError(f"a score is not finite: {remedy}")
    return sums, best


def fold(calibration, scores, chosen, listed, may_guess, of):
    """(cut (n,), rest (n,), near (n,) bool) of pairs with scores (n, N) of `open_to`, those of them that are chosen
    (n,) bool and have more than four times `listed` candidates: those with a score of at least `cut`, about `listed`,
    are to be listed, and the odds of the others add up to `rest`. cut is -inf where nothing is folded. near: cut is
    inf, for the list must be longer: `are_guesses` will ask how many of the others are facts (may_guess (n,) bool),
    and that number is Poisson only if each has odds of FOLDED at most. of: relations, sums, features, numbered of the
    pairs, as `log_odds` takes them."""
    cut, rest, rows = np.full(len(scores), -np.inf), np.zeros(len(scores)), np.flatnonzero(chosen)
    part, near = scores if len(rows) == len(scores) else scores[rows], np.zeros(len(scores), bool)
    best = nth_best(part, listed)
    many = (np.count_nonzero(part > -np.inf, axis=1) > 4 * listed) & (best > -np.inf)
    rows, best, part = (rows, best, part) if many.all() else (rows[many], best[many], part[many])
    relations, sums, features, numbered = (x[rows] for x in of)
    of_best = log_odds(calibration, relations, best - sums, features, numbered)
    parameters, found = calibration.parameters[relations], np.empty(len(rows))
    _, d_x, _ = calibrated_log_odds(parameters, best - sums, features)  # 1 / (1 + (1 - c) e^x)
    d_x = np.maximum(d_x, 1e-30)
    kernels.sums_below(part, best, np.exp(parameters[:, 0]), 1 / d_x - 1, found)
    rest[rows], cut[rows] = found / d_x * np.exp(of_best), best
    near[rows] = may_guess[rows] & (of_best > np.log(FOLDED))
    rest[near], cut[near] = 0.0, np.inf
    return cut, rest, near


def most_tails(candidates, unseen):
    """(n,): how many new tails (h, r) can have at most: its candidates (n,) and, where their mean (n,) is above 0, so
    many unseen ones that a Poisson number never is above it. A lower bound that asks for more cannot hold."""
    return candidates + np.where(unseen > 0, unseen + 10 * np.sqrt(unseen) + 30, 0)


def chances_of_none(starts, odds, limits, weights, unseen):
    """(n,): the probability that none of the candidates of each pair is a fact, given its bounds: P(0) w_0 over the sum
    of P(j) w_j for j within the limits (lower, upper), P(j) the probability of j facts among independent candidates.

    odds: log odds of the candidates, those of pair i at starts[i] : starts[i + 1]; limits: two arrays (n,), of new
    tails; weights (1 or n, m + 1), the last of all sizes from m on; unseen (n,): mean numbers of unseen tails."""
    lower, upper = limits
    least, candidates = np.maximum(np.ceil(lower), 0), np.diff(starts)
    most = np.minimum(np.where(upper < np.inf, upper, least), candidates)  # above it all sizes are alike
    width = max(int(most.max(initial=0)) + 2, weights.shape[1], 2)
    sizes, chances = np.arange(width), np.empty((len(lower), width))
    kernels.size_chances(starts, probability(odds), chances)
    within = ((lower[:, None] <= sizes) & (sizes <= upper[:, None])).astype(float)
    for i in np.flatnonzero((unseen > 0) & ((lower > 0) | (upper < np.inf))).tolist():
        within[i] = unseen_weights(lower[i], upper[i], unseen[i], width - 1)
    chances *= within * weights[:, np.minimum(sizes, weights.shape[1] - 1)]
    total = chances.sum(1)
    return np.where(total > 0, chances[:, 0] / np.where(total > 0, total, 1), 0.0)


def are_guesses(starts, odds, lower, unseen):
    """(n,) bool: the pairs whose lower bound of new tails has a chance below GUESS by the model alone
    (`chance_of_least`); odds as in `chances_of_none`. The sums of sizes serve where Chernoff's bound is not enough."""
    row = np.repeat(np.arange(len(lower)), np.diff(starts))
    p = probability(odds)
    mean, least = np.bincount(row, p, len(lower)) + unseen, np.maximum(np.ceil(lower), 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = np.where(least > mean, least - mean + least * (np.log(mean) - np.log(least)), 0.0)
    guesses = bound < np.log(GUESS)
    for i in np.flatnonzero(~guesses & (least > mean)).tolist():
        sizes, most = np.empty((1, int(least[i]) + 1)), int(least[i])
        kernels.size_chances(np.array([0, starts[i + 1] - starts[i]]), p[starts[i] : starts[i + 1]], sizes)
        guesses[i] = sizes[0] @ unseen_weights(most, np.inf, unseen[i], most) < GUESS
    return guesses


def without_lower(queries, n_relations):
    """(R,): of the (h, r) of a fit, Turns, that have no known tail (of all, where each of a relation has one) the part
    that no lower bound binds; of a relation without any, that of all relations. Where it is small nothing tells how
    many tails there would be without a bound: fitted through (1, 1), odds ten times as large are as good, and no name
    is a guess."""
    unknown = queries.features[:, 1] == 1
    some = np.bincount(queries.relations, unknown, n_relations) > 0
    weight = queries.weight * (unknown | ~some[queries.relations])
    asked, free = (np.bincount(queries.relations, x, n_relations) for x in (weight, weight * (queries.lower <= 0)))
    return np.where(asked > 0, free, free.sum()) / np.where(asked > 0, asked, asked.sum())
