"""How many new tails (h, r) may have: whether there are any, and whether a lower bound requires too many."""

import numpy as np

import kernels
from cardkge import probability
from cardkge_tools.definitions.counting import unseen_weights

GUESS = 0.01  # where a lower bound is less probable than this without it, the names that meet it are guesses
FREE = 0.1  # of the (h, r) of a fit, at least, without a lower bound: else it says nothing of guesses


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
