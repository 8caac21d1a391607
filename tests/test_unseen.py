"""Unseen tails and guesses: by hand, by enumeration, by differences, and on graphs of which half is taken away."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import plain_calibration
from gradcheck import check_gradients
from test_calibration import query

import cardkge
from cardkge import CardkgeError
from cardkge_tools.answers import calibration, facts
from cardkge_tools.answers import odds as candidate_odds
from cardkge_tools.answers.calibration import Calibration, CountPrior, Turns, calibrate, fit
from cardkge_tools.answers.decoding import Decoder, KnownTails, complete
from cardkge_tools.answers.missing import Missing
from cardkge_tools.answers.odds import are_guesses, chances_of_none, log_odds, without_lower
from cardkge_tools.definitions.counting import (
    N_FEATURES,
    calibrated_log_odds,
    calibration_objective,
    chance_of_least,
    conditioned,
    pair_features,
    size_probabilities,
    thinned_likelihood,
    unseen_weights,
)
from cardkge_tools.graph.bounds import Bound, GraphBounds

BOUNDS = [(0, math.inf), (2, math.inf), (7, math.inf), (0, 1), (1, 1), (2, 2), (1, 3), (6, 6), (5, 9)]


def poisson(mean, most=60):
    return np.array([math.exp(-mean) * mean**u / math.factorial(u) for u in range(most)])


def enumerated(odds, mean, lower, upper):
    """{members: probability} of the sets of candidates, given that with a Poisson number they are lower to upper."""
    chances = {}
    for members in itertools.product([False, True], repeat=len(odds)):
        size = sum(members)
        unseen = sum(p for u, p in enumerate(poisson(mean)) if lower <= size + u <= upper)
        chances[members] = math.prod(o for o, here in zip(odds, members, strict=True) if here) * unseen
    total = sum(chances.values())
    return {members: chance / total for members, chance in chances.items()}


def test_the_toy_by_hand():
    """Odds 2, 1, 1/2, exactly two tails, mean 1: Z = 3.5 + 3.5 + 1/2; without unseen ones the best has 6/7."""
    np.testing.assert_allclose(unseen_weights(2, 2, 1.0, 3), [1 / 2, 1, 1, 0], atol=1e-15)
    np.testing.assert_allclose(conditioned(np.log([2, 1, 0.5]), 2, 2)[0], 6 / 7)
    of_two = [2 * (1.5 + 1) / 7.5, 1 * (2.5 + 1) / 7.5, 0.5 * (3 + 1) / 7.5]
    np.testing.assert_allclose(conditioned(np.log([2, 1, 0.5]), 2, 2, unseen=1.0), of_two, rtol=1e-12)
    first = query(np.log([4 / 7, 2 / 7, 1 / 7]), [1, 0, 0], [math.log(3.5)], 2, 2, unseen=0.5)
    value, gradient = calibration_objective(np.array([0.0, 1.0, 50.0, math.log(2)]), [first], np.zeros(4), np.zeros(4))
    assert value == pytest.approx(-math.log(7 / 30), rel=1e-12)
    assert gradient[-1] == pytest.approx(-(4 / 7 - 3 / 5), rel=1e-9)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("mean", [1e-3, 0.7, 4.0])
def test_by_enumeration(bounds, mean):
    odds = np.array([3.0, 1.0, 0.2, 0.05])
    chances = enumerated(odds, mean, *bounds)
    expected = sum(np.array(members) * chance for members, chance in chances.items())
    np.testing.assert_allclose(conditioned(np.log(odds), *bounds, unseen=mean), expected, rtol=1e-10)
    found = np.array([True, False, False, False])  # of every set that has it, this is what valid holds, by chance
    likelihood = sum(chance * 0.3 * 0.7 ** (sum(members) - 1) for members, chance in chances.items() if members[0])
    value, *_ = thinned_likelihood(np.log(odds), -math.inf, found, 0.3, *bounds, mean)
    assert math.exp(value) == pytest.approx(likelihood, rel=1e-10)


def test_no_unseen_tails_are_the_bounds_alone():
    x = np.log([3.0, 1.0, 0.2])
    for bounds in ((1, 1), (2, math.inf), (0, 2)):
        np.testing.assert_allclose(conditioned(x, *bounds, unseen=1e-12), conditioned(x, *bounds), rtol=1e-9)
    np.testing.assert_array_equal(unseen_weights(1, 2, 0.0, 3), [0, 1, 1, 0])


@pytest.mark.parametrize("bounds", BOUNDS)
def test_the_gradient_by_differences(bounds):
    rng = np.random.default_rng(2)
    found = np.append([bounds[1] > 0], np.zeros(5, bool))
    queries = [
        query(rng.normal(-2, 1, 6), found, rng.normal(size=2), *bounds, unseen=mean, weights=np.append(np.ones(5), 4.0))
        for mean in (0.3, 2.0)
    ]
    parameters, prior = rng.normal(size=5), (rng.normal(size=5), rng.uniform(0, 2, 5))
    _, gradient = calibration_objective(parameters, queries, *prior)
    value = lambda: calibration_objective(parameters, queries, *prior)[0]  # noqa: E731
    check_gradients(value, {"parameters": parameters}, {"parameters": gradient})


def test_how_probable_a_lower_bound_is():
    """Of 1/2 and 1/4: at least one with 5/8, two with 1/8; with a Poisson number of mean 1 besides, at least one with
    1 - 3/8 e^-1, at least two with 1 - 3/8 (2 e^-1) - 1/2 e^-1."""
    p = np.array([0.5, 0.25])
    assert [chance_of_least(p, least) for least in (-1, 0, 0.5, 1, 2)] == pytest.approx([1, 1, 5 / 8, 5 / 8, 1 / 8])
    assert chance_of_least(p, 3) == pytest.approx(0, abs=1e-15)
    of_one, of_two = 1 - 3 / 8 / math.e, 1 - 3 / 4 / math.e - 1 / 2 / math.e
    assert [chance_of_least(p, least, 1.0) for least in (1, 2)] == pytest.approx([of_one, of_two])
    assert abs(chance_of_least(p, 200, 1.0)) < 1e-12
    each = 1 / math.sqrt(2 * math.pi * 1000)  # Ramanujan: fewer than 1000 with 1/2 less a third of the chance of 1000
    assert chance_of_least(p, 1000, 1000.0) == pytest.approx(1 / 2 + each * (1 / 3 + 1 / 2 + 2 / 8), abs=2e-5)


def test_weights_are_of_candidates_alone():
    with pytest.raises(CardkgeError, match="say nothing beside unseen tails"):
        conditioned(np.zeros(3), 1, 2, [1.0, 0.5], unseen=1.0)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("mean", [1e-3, 0.7, 4.0])
def test_guesses_and_no_new_tail_by_enumeration(bounds, mean, monkeypatch):
    """Over the sets of candidates and the numbers of unseen tails: none of the candidates, and a lower bound at all."""
    odds = np.array([3.0, 1.0, 0.2, 0.05])
    starts, (lower, upper), unseen = np.array([0, 4]), np.array(bounds, float)[:, None], np.array([mean])
    none = chances_of_none(starts, np.log(odds), (lower, upper), np.ones((1, 1)), unseen)
    assert none == pytest.approx([enumerated(odds, mean, *bounds)[(False,) * 4]], rel=1e-10)
    chance = 0.0
    for members, p in enumerated(odds, mean, 0, math.inf).items():
        chance += p * sum(each for u, each in enumerate(poisson(mean)) if sum(members) + u >= bounds[0])
    assert chance_of_least(odds / (1 + odds), bounds[0], mean) == pytest.approx(chance, rel=1e-6, abs=1e-12)
    more_than_expected = bounds[0] > (odds / (1 + odds)).sum() + mean  # else it is never a guess
    for limit in (chance * 1.0001, chance * 0.9999) if more_than_expected else ():
        monkeypatch.setattr(candidate_odds, "GUESS", limit)
        assert are_guesses(starts, np.log(odds), lower, unseen).tolist() == [chance < limit]


def test_numbers_that_no_head_can_have_are_contradicted():
    """Five candidates and one unseen tail on the average: 5 + 1 + 10 + 30 tails may be, and no more."""
    model = cardkge.DistMult(5, 1, 2, seed=1, dtype="float64")
    numbers = [46, 47, 3e6, 1e300, 2]
    bounds = [Bound("r", x, x, subject=f"e{i}") for i, x in enumerate(numbers)]
    bounds = GraphBounds(bounds, ["r"], None, [f"e{i}" for i in range(5)])
    parameters, half = np.array([[0.0, 1, 0, 0, 0, 0, 0, 4]]), np.full(1, 0.5)
    found = Calibration(parameters, np.zeros(3), np.ones(3), half, half, unseen=np.ones(1))
    decoder = Decoder(model, found, bounds, KnownTails(np.empty((0, 3), int), 5, 1))
    decoder.with_none, heads, relations = True, np.arange(5), np.zeros(5, int)
    decoded = decoder.decode(heads, relations, model.score_tails(heads, relations))
    assert decoded.contradicted.tolist() == [False, True, True, True, False]
    assert decoded.guesses.tolist() == [True, False, False, False, False]
    assert (decoded.expected() > 0).tolist() == (~decoded.contradicted).tolist()
    assert np.isfinite(decoded.p).all() and decoded.none[1:4].tolist() == [0, 0, 0]


def test_a_prior_over_counts_is_of_candidates_alone():
    """What a CountPrior weighs are numbers of candidates, though the fit found unseen tails too."""
    model = cardkge.DistMult(5, 1, 2, seed=1, dtype="float64")
    usual = np.full((1, calibration.GROUPS, calibration.SIZES), 1 / calibration.SIZES)
    prior = CountPrior([np.array([0.1, 0.6, 0.3])], usual, np.ones((1, calibration.GROUPS)), 0.5)
    parameters, half = np.array([[0.0, 1, 0, 0, 0, 0, 0, 4]]), np.full(1, 0.5)
    closed = Calibration(parameters, np.zeros(3), np.ones(3), half, half)
    known, heads, relations = KnownTails(np.empty((0, 3), int), 5, 1), np.arange(5), np.zeros(5, int)
    p = [
        Decoder(model, each, prior, known).decode(heads, relations, model.score_tails(heads, relations)).p
        for each in (closed, dataclasses.replace(closed, unseen=np.ones(1)))
    ]
    np.testing.assert_array_equal(*p)


# ------------------------------------------------------------------------------------------------------------------
# The fit, and use
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["exact", "at least", "between"])
def test_the_fit_finds_how_many_are_unseen(kind):
    """Sets drawn from the model, six candidates and two unseen tails on the average, of 8,000 heads; half of them have
    bounds of all their tails."""
    rng, n, m, v = np.random.default_rng(5), 8_000, 6, 0.4
    true = np.array([0.3, 1.0, 0, 0, -0.6, 0, 0, 4.0])
    x, features = np.log(rng.dirichlet(np.full(m, 0.7), n) + 1e-3), np.zeros((n, N_FEATURES))
    features[:, 0], features[:, 3] = 1, rng.normal(size=n)
    odds = calibrated_log_odds(np.repeat(true[None, None], m, 1), x, features[:, None])[0]
    bounded, facts, total = np.arange(n) < n // 2, np.zeros((n, m), bool), np.zeros(n, int)
    low, high = {"exact": (0, math.inf), "at least": (4, math.inf), "between": (4, 5)}[kind]
    left = np.arange(n)
    while len(left):
        facts[left] = rng.random((len(left), m)) < cardkge.probability(odds[left])
        total[left] = facts[left].sum(1) + rng.poisson(2, len(left))
        left = left[bounded[left] & ((total[left] < low) | (total[left] > high))]
    lower = np.where(bounded, total if kind == "exact" else low, 0.0)
    upper = np.where(bounded, total if kind == "exact" else high, math.inf)
    found = facts & (rng.random((n, m)) < v)
    kept = (upper > 0) & (found.sum(1) <= upper)
    x, found, features, lower, upper = (each[kept] for each in (x, found, features, lower, upper))
    n = len(x)
    queries = Turns(
        np.arange(0, n * m + 1, m), (x.ravel(), found.ravel(), np.ones(n * m)), features, lower, upper,
        np.zeros(n), np.full(n, v), np.ones(n), np.zeros(n, int), np.zeros(3), np.ones(3), 0.7,
    )  # fmt: skip
    fitted = fit(queries, 1, 1)[0]
    assert 0.7 * math.exp(fitted[-1]) == pytest.approx(2, rel=0.1)
    np.testing.assert_allclose(fitted[:2], true[:2], atol=0.25)


@pytest.fixture(scope="module")
def half_a_graph():
    """(model, splits, numbers, Missing, how many are gone of each head): 2,000 heads and 80 tails, 40 of which are then
    taken out of the graph; facts drawn by the scores of a model; of 1,500 heads the number of all their tails."""
    rng, heads, tails = np.random.default_rng(3), 2000, 80
    model = cardkge.DistMult(heads + tails // 2, 1, 5, seed=1, dtype="float64")
    model.params["relation"][:] = 1
    rows = np.column_stack((rng.normal(0, 1, (heads + tails, 4)), np.full(heads + tails, 9.0)))
    rows[:heads, -1] = 1  # a head is hardly ever a tail
    rows[model.n_entities :] = [0, 0, 0, 0, 10.5]
    model.params["entity"][:] = rows[: model.n_entities]
    facts = rng.random((heads, tails)) < cardkge.probability(rows[:heads] @ rows[heads:].T - 13)
    number = facts.sum(1)
    h, t = np.nonzero(facts[:, : tails // 2])
    triples = rng.permutation(np.column_stack((h, np.zeros(len(h), int), heads + t)))
    train, valid, test = np.split(triples, [len(h) // 2, 3 * len(h) // 4])
    sizes = (np.array([len(part)]) for part in (valid, test))
    share = np.array([len(valid) / (len(valid) + len(test))])
    missing = Missing(*sizes, np.zeros(1), ["given"], np.full(1, np.inf), share, (), np.array([0.2]))
    bounds = [Bound("r", n, n, subject=f"e{i}") for i, n in enumerate(number.tolist()[:1500])]
    names = [f"e{i}" for i in range(model.n_entities)]
    return model, (train, valid, test), GraphBounds(bounds, ["r"], None, names), missing, facts[:, tails // 2 :].sum(1)


def test_half_of_the_tails_are_taken_out_of_a_graph(half_a_graph):
    """The fit finds how many tails of a head the graph lacks; then as many new ones are expected as test has. Without
    unseen tails all that the numbers lack is promised, which is about thrice as much."""
    model, (train, valid, test), bounds, missing, gone = half_a_graph
    found = calibrate(model, (train, valid), missing, bounds, threads=1)
    assert found.unseen[0] == pytest.approx(gone.mean(), rel=0.2)
    known = KnownTails(np.concatenate((train, valid)), model.n_entities, 1)
    heads, relations = np.arange(1200, 1800), np.zeros(600, int)
    decoder = Decoder(model, found.knowing("valid"), bounds, known)
    decoder.with_none = True
    scores = model.score_tails(heads, relations)
    decoded = decoder.decode(heads, relations, scores)
    of_test = np.isin(test[:, 0], heads).sum()
    assert decoded.p.sum() == pytest.approx(of_test, rel=0.15)
    assert not decoded.contradicted.any() and decoded.none.sum() > 50
    for i in (0, 1, 2):  # at use it is `conditioned`, and nothing new has the chance of its empty set
        x = odds_of(found, decoded, i)
        lower = bounds.of([0], heads[[i]])[0, 0] - decoded.known[i]
        expected = conditioned(x, lower, lower, unseen=found.unseen[0])
        np.testing.assert_allclose(
            decoded.p[decoded.starts[i] : decoded.starts[i + 1]], expected, rtol=1e-6, atol=1e-12
        )
        weights = unseen_weights(lower, lower, found.unseen[0], len(x))
        sizes = size_probabilities(cardkge.probability(x), len(x))
        assert decoded.none[i] == pytest.approx(sizes[0] * weights[0] / (sizes @ weights), rel=1e-6)
    closed = calibrate(model, (train, valid), missing.share, bounds, threads=1)
    assert closed.unseen.tolist() == [0]
    p = Decoder(model, closed.knowing("valid"), bounds, known).decode(heads[:300], relations[:300], scores[:300]).p
    lacking = bounds.of(0, heads[:300])[:, 0] - known.count(heads[:300], relations[:300])
    assert p.sum() == pytest.approx(lacking.sum(), rel=1e-6)
    assert lacking.sum() > 2.5 * decoded.p[decoded.row < 300].sum()


def odds_of(found, decoded, i):
    """Log odds of the candidates of pair i."""
    part = slice(decoded.starts[i], decoded.starts[i + 1])
    scores = decoded.scores[part]
    log_sum = cardkge.log_sum_exp(scores)
    features = pair_features([log_sum], [decoded.known[i]], [scores.max()], found.centre, found.scale)
    given = np.repeat(features, len(scores), 0)
    return log_odds(found.knowing("valid"), np.zeros(len(scores), int), scores - log_sum, given)


def test_names_that_only_a_lower_bound_asks_for_are_guesses(half_a_graph):
    """A head that is said to have 40 tails: every name is accepted that way, and none where guesses are left out."""
    model, (train, valid, _), _, missing, _ = half_a_graph
    found = calibrate(model, (train, valid), missing, None, threads=1).knowing("valid")
    known = KnownTails(np.concatenate((train, valid)), model.n_entities, 1)
    bounds = GraphBounds([Bound("r", 40, math.inf, subject="e0")], ["r"], None, [f"e{i}" for i in range(2040)])
    decoder = Decoder(model, found, bounds, known)
    heads, relations = np.arange(2), np.zeros(2, int)
    triples, _, (contradicted, guesses) = complete(decoder, heads, relations)
    assert guesses == 1 and contradicted == 0 and 0 not in triples[:, 0]
    decoder.calibration = dataclasses.replace(found, free=np.array([0.09]))  # fitted where all heads have lower bounds
    assert complete(decoder, heads, relations)[2].tolist() == [0, 0]
    decoder.calibration, decoder.with_guesses = found, True
    triples, _, (_, guesses) = complete(decoder, heads, relations)
    assert found.free.tolist() == [1] and guesses == 0 and np.count_nonzero(triples[:, 0] == 0) > 20


def test_loops_are_fitted_with_all_that_is_known_to_be_missing(monkeypatch):
    """Of relation 0 half of the facts have a tail seen once, of 1 none; v of heads without a number is kept."""
    train = np.array([[0, 0, 4], [1, 0, 5], [2, 1, 6], [3, 1, 6]])
    dataset = SimpleNamespace(train=train, valid=np.array([[0, 0, 7]]), test=np.array([[2, 0, 7]]))
    zeros, share = np.zeros(2), np.array([0.2, 0.5])
    missing = Missing(np.ones(2), np.ones(2), zeros, ["numbers"] * 2, zeros, share, others=np.array([0.6, 0.7]))
    found = Calibration(np.zeros((2, 8)), np.zeros(3), np.ones(3), share, share, missing=missing)
    run = SimpleNamespace(
        calibration=found, settings=SimpleNamespace(final=False), best_model=lambda: None, types=None,
        entities=[f"e{i}" for i in range(8)], relations=["r0", "r1"],
    )  # fmt: skip
    monkeypatch.setattr(facts, "calibrate", lambda model, splits, share, *_, **__: kept.append(share) or found)
    kept = []
    facts.fitted_with_loops(run, dataset, "run", None, 1)
    assert kept[0].unseen.tolist() == [0.5, 0] and kept[0].others.tolist() == [0.6, 0.7]


def test_the_part_without_a_lower_bound():
    """Of relation 0 three of four, of relation 1 none of three (one more has a known tail), of 2 that of all."""
    features = np.ones((5, 2))
    features[3, 1] = 0
    queries = SimpleNamespace(
        relations=np.array([0, 0, 1, 1, 1]), weight=np.array([1.0, 3, 1, 9, 2]), features=features,
        lower=np.array([1.0, 0, 1, 0, 2]),
    )  # fmt: skip
    np.testing.assert_allclose(without_lower(queries, 3), [3 / 4, 0, 3 / 7])
    features[:2, 1], queries.lower[:2] = 0, 0  # no lower bound in 0, each head of which has known tails
    np.testing.assert_allclose(without_lower(queries, 3), [1, 0, 4 / 7])


def test_guesses_by_hand():
    """Two candidates of 1/2 and 1/4: two of them with 1/8; ten candidates of 1/10: 6 with 1.5e-4, 4 with 0.0128, 5 with
    0.0016. With two unseen ones besides, on the average, 6 are no guess."""
    odds = np.append(logs([0.5, 0.25]), np.tile(logs([0.1] * 10), 4))
    starts, lower = np.array([0, 2, 12, 22, 32, 42]), np.array([2.0, 6, 4, 5, 6])
    found = are_guesses(starts, odds, lower, np.array([0.0, 0, 0, 0, 2]))
    assert found.tolist() == [False, True, False, True, False]
    assert are_guesses(np.array([0, 0, 0]), np.empty(0), np.array([1.0, -1]), np.zeros(2)).tolist() == [True, False]


def logs(p):
    return np.log(p) - np.log1p(-np.array(p))


@pytest.mark.parametrize("least", [0.5, 0.2, 2e-4])
def test_improbable_candidates_are_folded_together(least):
    """Lower bounds of many kinds over 5,000 candidates: what is accepted is what it is with every candidate listed, and
    p within 1e-3. Of heads that know best, of heads to which all tails are alike, and of both together."""
    rng, n = np.random.default_rng(3), 5000
    scores = rng.normal(0, 1, (40, n)).astype("float32")
    scores[:30, :8] += rng.uniform(6, 12, (30, 8)).astype("float32")  # the others know nothing
    scores[5:10] *= 3
    numbers = np.tile([1, 2, 3, 5, 20], 8)
    numbers[29] = 1100
    bounds = [Bound("r", x, x if i % 2 else math.inf, subject=f"e{i}") for i, x in enumerate(numbers.tolist())]
    bounds.append(Bound("r", 0, 1, subject="e0", inverse=True))
    bounds = GraphBounds(bounds, ["r"], None, [f"e{i}" for i in range(n)])
    known = KnownTails(np.column_stack((np.arange(9), np.zeros(9, int), np.arange(9))), n, 1)  # e0 is full
    for unseen in (0.0, 0.7):
        found = plain_calibration(0.8, 0.3, -5, 0.5)
        found = dataclasses.replace(found, unseen=np.array([unseen]))
        decoder, heads, relations = (
            Decoder(SimpleNamespace(n_entities=n, n_relations=1), found, bounds, known),
            *(np.arange(40), np.zeros(40, int)),
        )
        few, every = (decoder.decode(heads, relations, scores, need=each) for each in (least, 0.0))
        lists, asked = np.diff(few.starts), numbers > few.known
        assert (np.diff(every.starts)[asked] == n - few.known[asked]).all()
        assert few.guesses.tolist() == every.guesses.tolist() and few.guesses.sum() > 5
        # folded, where nearly all tails are alike listed whole or a guess, and without a lower bound
        assert (lists[asked] < 1100).sum() > 20 and (least > 1e-3 or (lists[asked] == n).sum() > 2)
        p, listed = np.full((2, 40, n), -1.0)
        p[few.row, few.ids], listed[every.row, every.ids] = few.p, every.p
        sure = asked & ~every.guesses
        p, listed = p[sure], listed[sure]
        np.testing.assert_allclose(p[p >= 0], listed[p >= 0], rtol=0, atol=1e-3)
        assert listed[p < 0].max() <= 1.01 * min(least, 1e-3) and (p > 0.5).sum() > 20


def test_folded_together_are_many_and_improbable_ones():
    """Of 5,000 candidates: those below the cut add up; of odds near 1 none is folded, so that 2,090 of about 2,000 are
    a guess, which a Poisson number would not show; and of four times the list, or fewer, none."""
    n, found = 5000, plain_calibration(1.0, 0.0, 0.0, 0.0)
    scores = np.linspace(-20, -5, n)[None].repeat(3, 0).astype("float32")
    scores[1, :910] = -np.inf
    scores[2] = math.log(0.4 / 0.6)
    every = found, scores, np.ones(3, bool), 1024, np.ones(3, bool)
    of = np.zeros(3, int), np.zeros(3), np.eye(1, 6).repeat(3, 0), np.ones(3, bool)
    cut, rest, near = candidate_odds.fold(*every, of)
    assert near.tolist() == [False, False, True] and cut[1:].tolist() == [-math.inf, math.inf]
    assert 1024 <= (scores[0] >= cut[0]).sum() < 1040 and rest[1:].tolist() == [0, 0]
    p = cardkge.probability(scores[0][scores[0] < cut[0]].astype(float))
    assert rest[0] == pytest.approx((p / (1 - p)).sum(), rel=1e-6)
    near_ceiling = plain_calibration(1.0, 0.0, 0.0, 0.4)
    near_ceiling.parameters[:, -1] = -1.0
    cut, rest, _ = candidate_odds.fold(near_ceiling, scores + np.float32(11), *every[2:-1], np.zeros(3, bool), of)
    x = (scores[0] + np.float32(11))[scores[0] + np.float32(11) < cut[0]].astype(float)
    odds = log_odds(near_ceiling, np.zeros(len(x), int), x, of[2][:1].repeat(len(x), 0))
    assert x.max() > 2 and rest[0] == pytest.approx(np.exp(odds).sum(), rel=1e-6)
    rest = candidate_odds.fold(*every[:-1], np.zeros(3, bool), of)[1]  # without guesses
    assert rest[2] == 0 and not near[:2].any()  # all alike: the cut is their score, and none is below
    bounds = GraphBounds([Bound("r", 2090, math.inf, subject="e2")], ["r"], None, [f"e{i}" for i in range(n)])
    known = KnownTails(np.empty((0, 3), int), n, 1)
    decoder = Decoder(SimpleNamespace(n_entities=n, n_relations=1), found, bounds, known)
    assert decoder.decode(np.array([2]), np.zeros(1, int), scores[2:], need=0.5).guesses[0]


@pytest.mark.parametrize(("scores", "parameters", "number"), [([0, -52], (2, 0, 0), 5), ([20, -70], (1, 0, -100), 1)])
def test_odds_below_the_least_float32_are_folded_too(scores, parameters, number):
    """Numbers of tails that the model thinks impossible, where no scale says that names are guesses."""
    n, found = 5000, dataclasses.replace(plain_calibration(*parameters, 0.0), free=np.zeros(1))
    rows = np.random.default_rng(0).normal(-75, 1, (1, n)).astype("float32")
    rows[0, 0], rows[0, 1:5] = scores
    bounds = GraphBounds([Bound("r", number, number)], ["r"], None, [f"e{i}" for i in range(n)])
    decoder = Decoder(
        SimpleNamespace(n_entities=n, n_relations=1), found, bounds, KnownTails(np.empty((0, 3), int), n, 1)
    )
    few, every = (decoder.decode(np.zeros(1, int), np.zeros(1, int), rows, need) for need in (0.5, 0.0))
    assert len(few.ids) < 1100 and len(every.ids) == n
    np.testing.assert_allclose(few.p[:5], every.p[:5], atol=1e-6)
    assert (every.p > 0.5).sum() == number
