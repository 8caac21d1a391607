"""Calibrated probabilities conditioned on the bounds: against rational arithmetic, differences and enumeration."""

import io
import itertools
import json
import math
import os
import re
import shutil
import signal
from fractions import Fraction

import numpy as np
import pytest
from conftest import invoke, ok, one_error, plain_calibration, write_ring

import cardkge as counts
import kernels
from cardkge import CardkgeError, probability
from cardkge_tools.answers import facts
from cardkge_tools.answers.calibration import GROUPS, MOST_KNOWN, SIZES, CountPrior, group_of
from cardkge_tools.answers.decoding import Decoder, acceptable, block_of, probable
from cardkge_tools.answers.odds import room_left
from cardkge_tools.graph.bounds import Types

ONE = np.ones((1, 1))  # no weights of counts


def enumerated(odds, lower, upper):
    """P(t in S | lower <= |S| <= upper) of rational odds, over all 2^n sets; and the expected size."""
    total, inside = Fraction(0), [Fraction(0)] * len(odds)
    for size in range(len(odds) + 1):
        if lower <= size <= upper:
            for members in itertools.combinations(range(len(odds)), size):
                weight = Fraction(1)
                for t in members:
                    weight *= odds[t]
                total += weight
                for t in members:
                    inside[t] += weight
    return [x / total for x in inside]


def enumerated_by_weight(odds, weights):
    """P(t in S) where P(S) is proportional to the product of its odds and to the weight of its size (the last weight
    that of all sizes from there on), over all 2^n sets."""
    total, inside = Fraction(0), [Fraction(0)] * len(odds)
    for size in range(len(odds) + 1):
        for members in itertools.combinations(range(len(odds)), size):
            weight = Fraction(weights[min(size, len(weights) - 1)])
            for t in members:
                weight *= odds[t]
            total += weight
            for t in members:
                inside[t] += weight
    return [float(x / total) for x in inside]


def rational_odds(rng, n, decades):
    return [Fraction(float(x)) for x in 10.0 ** rng.uniform(-decades, decades, n)]


def logs(odds):
    """Log odds of rationals of any size."""
    return np.array([np.log(float(o)) for o in odds])


@pytest.mark.parametrize("n", [1, 2, 5, 8, pytest.param(11, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("decades", [1, 6, 300])
def test_against_enumeration_of_all_sets(n, decades):
    """The rational odds are those of the rounded log odds as closely as these can say: 1e-16 |log odds| relative."""
    rng = np.random.default_rng(n * 1000 + decades)
    odds = rational_odds(rng, n, decades)
    for lower, upper in itertools.product((0, 1, 2, n), (0, 1, 2, n - 1, n, float("inf"))):
        if lower <= min(upper, n):
            found = counts.conditioned(logs(odds), lower, upper)
            expected = enumerated(odds, lower, upper)
            np.testing.assert_allclose(found, [float(x) for x in expected], rtol=1e-12 * decades, atol=1e-290)


WEIGHTS = {
    "more": [0.1, 0.5, 1.0],
    "few": [1.0, 0.3, 0.02, 0.0],
    "exactly two": [0.0, 0.0, 1.0, 0.0],
    "odd": [0.0, 1.0, 0.0, 0.25, 0.0],
    "holes": [1e-6, 1.0, 1e-6, 0.5],
    "many": [0.5**i for i in range(20)],
    "not none": [0.0, 1.0],
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_weights_of_counts_against_enumeration(n, weights):
    """The definition and the kernel."""
    rng = np.random.default_rng(n)
    for decades in (1, 6, 100):
        odds = rational_odds(rng, n, decades)
        if not any(weights[: n + 1]):
            with pytest.raises(CardkgeError, match="no set"):
                counts.conditioned(logs(odds), 0, np.inf, weights)
            continue
        found, expected = counts.conditioned(logs(odds), 0, np.inf, weights), enumerated_by_weight(odds, weights)
        np.testing.assert_allclose(found, expected, rtol=1e-12 * decades, atol=1e-290)
        answers, bounds = np.empty(n), (np.zeros(1), np.full(1, np.inf))
        kernels.condition_sets(0, 1, np.array([0, n]), logs(odds), *bounds, np.array([weights]), np.zeros(1), answers)
        np.testing.assert_allclose(answers, expected, rtol=1e-12 * decades, atol=1e-290)


def test_bounds_are_weights_of_0_and_1():
    rng = np.random.default_rng(12)
    x = rng.normal(-1, 3, 40)
    for lower, upper in [(0, 3), (2, 5), (4, 4), (3, np.inf), (0, np.inf)]:
        weights = (np.arange(45) >= lower) & (np.arange(45) <= upper)
        by_weights = counts.conditioned(x, 0, np.inf, weights.astype(float))
        np.testing.assert_allclose(by_weights, counts.conditioned(x, lower, upper), rtol=1e-11)
    within = counts.conditioned(x, 2, 5, [0.5, 0.1, 1.0, 0.2, 7.0])
    by_weights = counts.conditioned(x, 0, np.inf, [0, 0, 1.0, 0.2, 7.0, 7.0, 0])
    np.testing.assert_allclose(within, by_weights, rtol=1e-11)
    np.testing.assert_allclose(counts.conditioned(x, 0, np.inf, np.ones(7)), probability(x), rtol=1e-14)


def test_sizes_of_sets():
    """By hand, by sums over all sets, and the kernel."""
    rng = np.random.default_rng(13)
    np.testing.assert_allclose(counts.size_probabilities(np.array([0.5, 0.5]), 3), [0.25, 0.5, 0.25, 0])
    sets = [rng.random(n) for n in (0, 1, 4, 9)]
    starts, most = np.append(0, np.cumsum([len(p) for p in sets])), 3
    found = np.full((4, most + 1), np.nan)
    kernels.size_chances(starts, np.concatenate(sets), found)
    for p, row in zip(sets, found, strict=True):
        expected = np.zeros(most + 1)
        for members in itertools.product((0, 1), repeat=len(p)):
            expected[min(sum(members), most)] += np.prod([x if m else 1 - x for x, m in zip(p, members)])
        np.testing.assert_allclose(row, expected, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(counts.size_probabilities(p, most), expected, rtol=1e-12, atol=1e-15)


def test_counts_are_fitted_to_what_is_known():
    """Nearly all known: the histogram. Half known, of heads that have exactly 2 or 6 tails: these counts."""
    found = counts.fit_counts(np.array([0, 0, 0, 1, 4]), 1 - 1e-9)
    np.testing.assert_allclose(found, [0.6, 0.2, 0, 0, 0.2, 0], atol=1e-3)
    rng = np.random.default_rng(14)
    true = rng.choice([2, 6], 40_000, p=[0.75, 0.25])
    found = counts.fit_counts(rng.binomial(true, 0.5), 0.5, steps=4000)
    assert found.sum() == pytest.approx(1)
    assert found[1:4].sum() == pytest.approx(0.75, abs=0.03) and found[5:8].sum() == pytest.approx(0.25, abs=0.03)
    # it is a fixed point of EM: no likelier counts near by
    known = np.array([0, 1, 1, 2, 5, 3])

    def log_likelihood(p):
        chance = [[math.comb(c, k) * 0.6**k * 0.4 ** (c - k) if c >= k else 0.0 for c in range(len(p))] for k in known]
        return np.log(np.array(chance) @ p).sum() + (1e-3 / len(p) * np.log(p)).sum()

    best = counts.fit_counts(known, 0.6, steps=20_000)
    for _ in range(50):
        other = best * np.exp(rng.normal(0, 0.1, len(best)))
        assert log_likelihood(other / other.sum()) <= log_likelihood(best) + 1e-9


def test_thousands_of_tails():
    """Nothing overflows; nearly as many are expected as are known for each share of what is known."""
    rng = np.random.default_rng(17)
    known = np.append(rng.integers(0, 20, 50), [900, 5000])
    for share in (0.1, 0.5, 0.95):
        found = counts.fit_counts(known, share)
        assert np.isfinite(found).all() and found.sum() == pytest.approx(1)
        assert np.arange(len(found)) @ found == pytest.approx(known.mean() / share, rel=0.15)
        for k in known.tolist():
            weights = counts.count_weights(found, share, k, np.full(16, 1 / 16))
            assert np.isfinite(weights).all() and weights.max() == 1 and weights.min() > 0


def test_weights_are_what_is_taught_over_what_is_usual():
    """2 tails or 3, equally; 2 are known, each with probability 1/2: (1/4) : (3/8), so a third is missing with 3/5."""
    taught = np.array([0, 0, 0.5, 0.5])
    weights = counts.count_weights(taught, 0.5, 2, np.array([0.8, 0.15, 0.05]))
    expected = (np.array([0.4, 0.6, 0]) + 1e-6) / (np.array([0.8, 0.15, 0.05]) + 1e-6)
    np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-12)
    np.testing.assert_allclose(counts.count_weights(taught, 0.5, 2, np.array([0.4, 0.6])), 1, rtol=1e-12)
    np.testing.assert_array_equal(counts.count_weights(taught, 0.5, 4, np.ones(3) / 3), 1)  # more than ever seen
    few = counts.count_weights(
        taught, 0.5, 2, np.array([0.8, 0.15, 0.05]), 10
    )  # as many again that have what is taught
    expected = (np.array([0.4, 0.6, 0]) + 1e-6) / (np.array([0.6, 0.375, 0.025]) + 1e-6)
    np.testing.assert_allclose(few, expected / expected.max(), rtol=1e-12)
    one = counts.count_weights(taught, 0.5, 0, np.array([0.5, 0.3, 0.2]))  # the last: 2 and more
    np.testing.assert_allclose(one / one[2], [1e-6 / 0.5 / (1 / 0.2), 1e-6 / 0.3 / (1 / 0.2), 1], rtol=1e-3)


def test_extreme_odds_side_by_side():
    """1e-300 beside 1e300, and a window that only the improbable sets reach."""
    odds = [Fraction(10) ** e for e in (-300, -299, 300, 299, 0, 0, -150, 150)]
    for lower, upper in [(0, 1), (1, 1), (2, 2), (3, 3), (4, 4), (6, 7), (7, 7), (0, 7), (8, 8), (5, float("inf"))]:
        expected = np.array([float(x) for x in enumerated(odds, lower, upper)])
        found = counts.conditioned(logs(odds), lower, upper)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-290)
        complement = [float(1 - x) for x in enumerated(odds, lower, upper)]
        np.testing.assert_allclose(1 - found, complement, atol=1e-14)


@pytest.mark.parametrize("lower, upper", [(0, 3), (2, 3), (3, 3), (5, float("inf")), (0, 1), (7, 9)])
def test_order_is_kept_and_equal_odds_get_equal_answers(lower, upper):
    rng = np.random.default_rng(3)
    log_odds = rng.integers(-4, 3, 60) / 2 + rng.choice([0, 1e-15, -200], 60)
    answers = counts.conditioned(log_odds, lower, upper)
    order = np.argsort(log_odds)
    gaps, steps = np.diff(log_odds[order]), np.diff(answers[order])
    assert (steps >= 0).all() and (steps[gaps == 0] == 0).all()
    expected = answers.sum()
    assert lower - 1e-9 <= expected <= min(upper, 60) + 1e-9


def test_closed_forms():
    """Equal odds: what is expected is shared out. Exactly one: softmax. All but one: its mirror image."""
    rng = np.random.default_rng(4)
    log_odds = rng.normal(-3, 4, 500)
    softmax = np.exp(log_odds - counts.log_sum_exp(log_odds))
    np.testing.assert_allclose(counts.conditioned(log_odds, 1, 1), softmax, rtol=1e-11)
    np.testing.assert_allclose(1 - counts.conditioned(-log_odds, 499, 499), softmax, atol=1e-13)
    at_most_one = np.exp(log_odds) / (1 + np.exp(log_odds).sum())
    np.testing.assert_allclose(counts.conditioned(log_odds, 0, 1), at_most_one, rtol=1e-11)
    for size in (1, 7, 499):
        np.testing.assert_allclose(counts.conditioned(np.full(500, 2.5), size, size), size / 500, rtol=1e-10)


@pytest.mark.parametrize("shift", [-30, -9, -4, 0, 6])
def test_forty_thousand_candidates_and_a_bound_of_five_hundred(shift):
    """Nothing overflows, and the expected count is the one that its own probabilities give, within the bounds."""
    rng = np.random.default_rng(5)
    log_odds = rng.normal(shift, 3, 40_000)
    starts = np.array([0, 40_000])
    for lower, upper in [(0, 500), (500, 500), (480, 500), (500, np.inf), (1, np.inf)]:
        answers = np.empty(40_000)
        kernels.condition_sets(0, 1, starts, log_odds, np.array([lower]), np.array([upper]), ONE, np.zeros(1), answers)
        assert ((answers >= 0) & (answers <= 1)).all()
        assert lower - 1e-9 <= answers.sum() <= upper + 1e-9
    kernels.condition_sets(
        0, 1, starts, np.full(40_000, -800.0), np.array([500.0]), np.array([500.0]), ONE, np.zeros(1), answers
    )
    np.testing.assert_allclose(answers, 500 / 40_000, rtol=1e-9)


def test_limits():
    log_odds = np.array([-1.0, 0.5, 3.0, -700.0])
    p = probability(log_odds)
    np.testing.assert_array_equal(counts.conditioned(log_odds, 0, 0), 0)
    np.testing.assert_array_equal(counts.conditioned(log_odds, 0, np.inf), p)
    np.testing.assert_array_equal(counts.conditioned(log_odds, 0, 4), p)
    np.testing.assert_array_equal(counts.conditioned(log_odds, 4, 9), 1)
    np.testing.assert_array_equal(counts.conditioned(log_odds, -2, 2.9), counts.conditioned(log_odds, 0, 2))
    np.testing.assert_array_equal(counts.conditioned(log_odds, 0.1, 2), counts.conditioned(log_odds, 1, 2))
    # at least one: the complement of none
    found, expected = counts.conditioned(log_odds, 1, np.inf), p / (1 - np.prod(1 - p))
    np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-14)
    np.testing.assert_allclose(found[3], expected[3], rtol=2e-13)  # its logarithm, -700, is as exact as the others
    assert counts.conditioned(np.empty(0), 0, 3).shape == (0,)
    for lower, upper in [(5, np.inf), (0, -1), (1.2, 1.8)]:
        with pytest.raises(CardkgeError, match="no set of 4 candidates has a size"):
            counts.conditioned(log_odds, lower, upper)


def test_kernel_is_the_definition():
    rng = np.random.default_rng(6)
    sets = []
    windows = (0, 0), (0, 1), (0, 4), (2, 4), (3, 3), (1, np.inf), (9, np.inf), (0, np.inf), (0, 59)
    for n in (0, 1, 2, 3, 10, 60, 300):
        for spread in (0.0, 1.0, 5.0, 300.0):
            for lower, upper in windows:
                sets.append((np.round(rng.normal(rng.choice([-6, 0, 4]), spread, n), 1), lower, upper))
    starts = np.append(0, np.cumsum([len(x) for x, _, _ in sets]))
    log_odds = np.concatenate([x for x, _, _ in sets])
    lower, upper = (np.array([s[i] for s in sets], np.float64) for i in (1, 2))
    answers = np.full(len(log_odds), np.nan)
    half = len(sets) // 2
    kernels.condition_sets(0, half, starts, log_odds, lower, upper, ONE, np.zeros(1), answers)
    kernels.condition_sets(half, len(sets), starts, log_odds, lower, upper, ONE, np.zeros(1), answers)
    for i, (x, low, high) in enumerate(sets):
        found = answers[starts[i] : starts[i + 1]]
        if low > len(x):
            assert (found == 0).all()
        else:
            np.testing.assert_allclose(found, counts.conditioned(x, low, high), rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("dtype, error", [("float32", 2e-6), ("float64", 1e-13)])
def test_log_sums_and_live_candidates(dtype, error):
    rng = np.random.default_rng(7)
    scores = (5 * rng.normal(size=(9, 700))).astype(dtype)
    scores[3] *= 30
    sums = np.empty(9)
    kernels.log_sums(scores, scores.max(1), sums)
    np.testing.assert_allclose(sums, counts.log_sum_exp(scores), rtol=error, atol=error)
    taken, wanted = rng.random(scores.shape) < 0.1, rng.random(scores.shape) < 0.01
    wanted &= ~taken
    least = np.linspace(-20, 20, 9).astype(dtype)
    lists = [(np.append(0, np.cumsum(mask.sum(1))), np.nonzero(mask)[1].astype(np.int32)) for mask in (taken, wanted)]
    starts, ids = np.empty(10, np.int64), np.empty(10, np.int32)
    needed = kernels.live_candidates(scores, least, *lists[0], *lists[1], starts, ids)
    expected = ((scores >= least[:, None]) | wanted) & ~taken
    assert needed == expected.sum() > 10  # more than there was room for
    ids = np.empty(needed, np.int32)
    kernels.live_candidates(scores, least, *lists[0], *lists[1], starts, ids)
    np.testing.assert_array_equal(ids, np.nonzero(expected)[1])
    np.testing.assert_array_equal(starts, np.append(0, np.cumsum(expected.sum(1))))


def test_scope_by_classes():
    """0 to 5 people, 6 and 7 cities, 8 without a class, 9 in no triple of train. r0 of 0, 1 and 8; r1 of 2 and 6."""
    train = np.array([(0, 0, 3), (1, 0, 6), (8, 0, 0), (2, 1, 7), (6, 1, 4), (3, 2, 5), (7, 3, 0)], np.int32)
    people = [(e, 0) for e in (0, 1, 2, 3, 4, 5, 9)] + [(0, 1), (1, 1), (2, 1), (4, 1)]
    types = Types(["person", "painter", "city"], [*people, (6, 2), (7, 2)])

    def scope(types=None, relations=None):
        heads, of = counts.scope_pairs(train, 10, 4, relations, types)
        return {r: heads[of == r].tolist() for r in np.unique(of).tolist()}

    assert scope() == {0: [0, 1, 8], 1: [2, 6], 2: [3], 3: [7]}
    painters, everyone = [0, 1, 2, 4, 8], [0, 1, 2, 3, 4, 5]  # 9 stays out: train does not know it
    assert scope(types) == {0: painters, 1: [2, 6], 2: everyone, 3: [6, 7]}
    assert scope(types, [3]) == {3: [6, 7]}
    assert scope(Types()) == scope() and scope(Types(["city"], [(6, 0)]))[1] == [2, 6]


# ------------------------------------------------------------------------------------------------------------------
# Decoding
# ------------------------------------------------------------------------------------------------------------------


def some_pairs():
    """(decoder, heads, relations): 1,200 (h, r), of relations with bounds of four kinds."""
    rng = np.random.default_rng(11)
    model = counts.new_model(counts.Settings(model="complex", dim=6), 300, 4)
    for name, array in model.params.items():
        model.params[name] = rng.normal(0, 0.9, array.shape).astype(np.float32)
    calibration = plain_calibration(*(np.array([[0.3], [0.5], [-1.0]]) + rng.normal(0, 0.2, (3, 4))), 0.4)
    triples = np.column_stack([rng.integers(n, size=400) for n in (300, 4, 300)])
    known = counts.KnownTails(triples, 300, 4)
    bounds = np.array([[0, np.inf], [0, 2], [1, 3], [2, np.inf]])
    decoder = counts.Decoder(model, calibration, bounds, known)
    heads, relations = (x.ravel() for x in np.meshgrid(np.arange(300), np.arange(4)))
    return decoder, heads, relations


def test_what_is_left_out_early_is_what_is_not_accepted():
    """With --min-probability, (h, r) without a candidate that can reach it are not looked at further; what is found,
    and its p, are those of all candidates."""
    decoder, heads, relations = some_pairs()
    model, calibration, known = decoder.model, decoder.calibration, decoder.known
    scores = model.score_tails(heads, relations)
    everything = decoder.decode(heads, relations, scores)
    for need in (0.0, 1e-3, 0.2, 0.5, 0.9, 1.0):
        found = decoder.decode(heads, relations, scores, need)
        few, all_ = ([getattr(x, k)[x.p > need].tolist() for k in ("row", "ids", "p")] for x in (found, everything))
        assert few == all_ and (need == 1) == (not few[0])
        for name in ("known", "candidates", "contradicted"):
            np.testing.assert_array_equal(getattr(found, name), getattr(everything, name))
        unbounded = found.row < 300
        assert need == 0 or (found.p[unbounded] > need * (1 - 1e-5)).all()
    assert everything.contradicted.any()
    calibration.parameters[:, -1] = [-1, 0.3, 50, -1]  # ceilings: relation 0 has at most 0.27 (1 - 0.4), unlike 1 and 2
    everything = decoder.decode(heads, relations, scores)
    for least in (0.0, 0.1, 0.2, 0.5, 0.9, 1.0):
        places_open, contradicted = decoder.open_pairs(heads, relations, least)
        out = ~np.isin(np.arange(len(heads)), places_open)
        places = acceptable(everything, room_left(decoder.bounds.of(relations, heads), everything.known), least)
        assert not out[everything.row[places]].any()
        assert contradicted == (everything.contradicted & out).sum() and (contradicted > 0 or least == 1)
        assert [out[relations == r].mean() > 0.9 for r in range(4)] == [least > 0.18, least > 0.4, False, False]
    prior = CountPrior([np.ones(3)] * 4, np.ones((4, GROUPS, SIZES)), np.ones((4, GROUPS)), 0.5)
    assert len(counts.Decoder(model, calibration, prior, known).open_pairs(heads, relations, 0.9)[0]) == len(heads)


def test_parts_on_a_cluster_are_cut_at_whole_blocks(monkeypatch):
    """Of the pairs that may have an answer: with the blocks their scores have the same last bits."""
    decoder, heads, relations = some_pairs()
    decoder.calibration.parameters[:, -1] = [-1, 0.3, 50, -1]
    parts = []

    def carry_out(tasks, work, address, report, nothing):
        for task in tasks:
            first, last = map(int, task["command"][-2:])
            parts.append((first, last))
            np.savez(file := io.BytesIO(), *probable(decoder, heads[first:last], relations[first:last], 0.3, 1))
            report(task, (file.getvalue(), None))

    monkeypatch.setattr(facts, "carry_out_on_cluster", carry_out)
    places = decoder.open_pairs(heads, relations, 0.3)[0]
    found = facts.probable_on_cluster([], np.append(places, 1200), 300, "there", 1, lambda *_: None, 0.3)
    for one, other in zip(found, probable(decoder, heads, relations, 0.3, 2), strict=True):
        np.testing.assert_array_equal(one, other)
    assert 384 < len(places) < 1000 and len(found[0]) > 50 and found[3][0] > 0
    assert len(parts) > 1 and [np.isin(np.arange(*part), places).sum() for part in parts[:-1]] == [384] * (
        len(parts) - 1
    )


def test_a_prior_over_counts_decodes_as_its_weights_say():
    """Each (h, r) is `conditioned` by the weights of its relation and its known tails; what is left out early is what
    is not accepted, although counts make some candidates likelier; without heads of a class nothing changes."""
    rng = np.random.default_rng(15)
    model = counts.new_model(counts.Settings(model="complex", dim=6), 200, 2)
    for name, array in model.params.items():
        model.params[name] = rng.normal(0, 0.9, array.shape).astype(np.float32)
    calibration = plain_calibration([0.3, 0.3], 0.5, -3.0, 0.4)
    known = counts.KnownTails(np.column_stack([rng.integers(n, size=300) for n in (200, 2, 200)]), 200, 2)
    usual, of = rng.dirichlet(np.ones(16), (2, 13)), rng.integers(1, 99, (2, 13))
    of[1, 0] = 0
    prior = counts.CountPrior([rng.dirichlet(np.ones(9)), rng.dirichlet(np.ones(70))], usual, of, 0.6)
    decoder = counts.Decoder(model, calibration, prior, known)
    plain = counts.Decoder(model, calibration, None, known)
    decoder.floor = plain.floor = 1e-300
    heads, relations = (x.ravel() for x in np.meshgrid(np.arange(200), np.arange(2)))
    scores = model.score_tails(heads, relations)
    found, before = (each.decode(heads, relations, scores) for each in (decoder, plain))
    np.testing.assert_array_equal(found.ids, before.ids)
    rose = 0
    for i in range(0, 400, 7):
        part = slice(found.starts[i], found.starts[i + 1])
        k, r = found.known[i], relations[i]
        weights = counts.count_weights(prior.counts[r], 0.6, k, usual[r, k], of[r, k]) if of[r, k] else [1]
        p = before.p[part]
        expected = counts.conditioned(np.log(p) - np.log1p(-p), 0, np.inf, weights)
        np.testing.assert_allclose(found.p[part], expected, rtol=1e-8)
        rose += np.sum(found.p[part] > np.maximum(1.2 * p, 0.01))
    assert rose > 10 and (found.known == 0).any()
    for need in (0.1, 0.5, 0.9):
        few = decoder.decode(heads, relations, scores, need)
        kept = [x.p > need for x in (few, found)]
        assert kept[0].sum() == kept[1].sum() > 0 and len(few.p) < len(found.p)
        for name in ("row", "ids"):
            np.testing.assert_array_equal(getattr(few, name)[kept[0]], getattr(found, name)[kept[1]])
        np.testing.assert_allclose(few.p[kept[0]], found.p[kept[1]], rtol=1e-6)


def test_groups_of_known_tails():
    known = [0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 1000, 1024, 1025, 10**6]
    assert group_of(known).tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 6, 7, 12, 12, 12, 12]


def test_nothing_is_said_of_heads_with_very_many_tails():
    """More known tails than a fit takes in have weights of 1, although the counts reach further."""
    usual, heads = np.full((1, 13, 16), 1 / 16), np.full((1, 13), 50)
    prior = counts.CountPrior([np.full(2 * MOST_KNOWN + 1, 1 / 2001)], usual, heads, 0.5)
    weights = prior.weights(np.zeros(3, int), np.array([MOST_KNOWN, MOST_KNOWN + 1, 2 * MOST_KNOWN]))
    assert (weights[0] != 1).any()
    np.testing.assert_array_equal(weights[1:], 1)


def test_counts_learnt_from_heads_that_have_two_tails_each():
    """Every head has 2 tails, half of them known, and the model expects 3/4 more of each head: given the counts, one
    more where one is known, and hardly any where two are."""
    rng = np.random.default_rng(16)
    n = 300
    facts = np.array([(h, 0, t) for h in range(n) for t in rng.choice(n, 2, replace=False)])
    facts = rng.permutation(facts)
    train, valid, missing = np.split(facts, [240, 300])
    model = counts.new_model(counts.Settings(model="distmult", dim=4), n, 1)
    flat = plain_calibration(0.0, 1e-9, np.log(0.9 / n), len(valid) / 360)
    prior = counts.learn_counts(model, flat, train, valid)
    assert prior.share == pytest.approx(0.5) and prior.counts[0][2] > 0.75
    np.testing.assert_allclose(prior.usual[0, :4].sum(1), [0, 1, 1, 0])  # all in scope have a tail, none has 3
    known = counts.KnownTails(np.concatenate((train, valid)), n, 1)
    assert prior.heads[0, :4].tolist() == [*np.bincount(known.count(*counts.scope_pairs(train, n, 1))), 0]
    found = counts.Decoder(model, flat, prior, known).decode(
        np.arange(n), np.zeros(n, int), model.score_tails(np.arange(n), np.zeros(n, int))
    )
    expected = np.bincount(found.row, found.p, n)
    np.testing.assert_allclose(expected[found.known == 1], 1, atol=0.2)
    np.testing.assert_allclose(expected[found.known == 2], 0, atol=0.3)
    assert (found.known == 1).sum() > 50 and len(missing) == 300


# ------------------------------------------------------------------------------------------------------------------
# A run with mined bounds
# ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mined(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mined")
    ring = write_ring(folder / "ring")
    ok(
        "train",
        "--data",
        ring,
        "--bounds",
        "mined",
        "--dim",
        8,
        "--batches",
        4,
        "--epochs",
        20,
        "--out",
        folder / "run",
    )
    return folder / "run"


def test_mined_bounds_are_a_prior_and_predict_says_so(mined, tmp_path):
    """calibration.json keeps it; `predict`, `evaluate --sets` and `complete` go by it, beyond the bound if need be."""
    run = counts.load_run(mined)
    data = counts.align_dataset(counts.load_dataset(run.settings.data), run)
    prior = counts.learn_counts(run.best_model(), run.calibration, data.train, data.valid, run.settings.seed)
    kept = run.calibration.prior
    assert kept.share == prior.share and (kept.usual == prior.usual).all() and (kept.heads == prior.heads).all()
    assert all((a == b).all() for a, b in zip(kept.counts, prior.counts, strict=True))
    shown = ok("predict", mined, "--head", "e1", "--relation", "r0").stdout.splitlines()
    assert shown[-2].startswith("expected count = ") and shown[-2].endswith(
        "bound [0, 1] (mined); given the counts of train and valid, for which it is no limit"
    )
    assert "(mined); given the counts" in ok("predict", mined, "--tail", "e1", "--relation", "r0").stdout
    triple = ok("predict", mined, "--head", "e0", "--relation", "r0", "--tail", "e1").stdout
    assert re.search(r"tails of the head: X = \S+, bound \[0, 1\] \(mined\)\n", triple)
    measures, _ = counts.evaluate_sets(run.best_model(), run.calibration, prior, data)
    ok("evaluate", mined, "--sets", "--json", tmp_path / "sets.json")
    assert json.loads((tmp_path / "sets.json").read_text())["log_loss"] == measures["log_loss"]
    of_train = run.calibration.knowing("train")
    decoder = counts.Decoder(run.best_model(), of_train, prior, counts.KnownTails(data.train, 60, 3))
    heads, relations = counts.scope_pairs(data.train, 60, 3)
    loops = np.column_stack((heads, relations, heads))
    decoder.excluded = decoder.known.joined(counts.KnownTails(loops, 60, 3))
    _, p, _ = counts.complete(decoder, heads, relations, 0.01)
    nothing = ok("complete", mined, "--known", "train", "--min-probability", 1)
    assert nothing.stdout == "" and "no new fact of" in nothing.stderr
    lines = ok("complete", mined, "--known", "train", "--min-probability", 0.01).stdout.splitlines()
    assert [float(line.split("\t")[3]) for line in lines] == pytest.approx(p.tolist(), rel=1e-5) and len(p) > 10


def test_parts_of_what_is_completed(mined, tmp_path):
    """What a worker of a cluster writes: together the parts have what all (h, r) have; a part needs a file."""
    common = "complete", mined, "--known", "train", "--min-probability", 0.01
    parts = []
    for first, last in ((0, 70), (70, 500)):
        ok(*common, "--part", first, last, "--out", tmp_path / "part.npz")
        with np.load(tmp_path / "part.npz") as arrays:
            parts.append(arrays["arr_2"])
    found = [float(line.split("\t")[3]) for line in ok(*common).stdout.splitlines()]
    assert sorted(np.concatenate(parts)) == pytest.approx(sorted(found), rel=1e-5) and all(map(len, parts))
    for wrong in (("0", "2"), ("-1", "2", "--out", tmp_path / "x")):
        result = invoke(*common, "--part", *wrong)
        assert result.exit_code == 2 and "Error: " in result.stderr and not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda prior: prior["relations"]["r1"].update(counts=[]), "its counts have another shape"),
        (lambda prior: prior["relations"]["r1"].update(counts=[0.5, -1]), "a count is out of range"),
        (lambda prior: prior["relations"].pop("r2"), "'r2'"),
        (lambda prior: prior.update(share=1.5), "a count is out of range"),
        (lambda prior: prior["relations"]["r0"]["groups"].update({"99": {"heads": 1, "sizes": [1]}}), "out of bounds"),
        (lambda prior: prior["relations"]["r0"].update(groups=[]), "no attribute"),
        (lambda prior: prior["relations"]["r0"]["groups"]["1"].update(sizes=[1, 2]), "broadcast"),
    ],
)
def test_a_damaged_prior_is_one_line(mined, tmp_path, change, text):
    shutil.copytree(mined, tmp_path / "run")
    path = tmp_path / "run" / "calibration.json"
    value = json.loads(path.read_text())
    change(value["prior"])
    path.write_text(json.dumps(value))
    line = one_error(invoke("predict", tmp_path / "run", "--head", "e1", "--relation", "r0"))
    assert text in line and "`calibrate` writes it anew" in line


@pytest.mark.parametrize("damage", ["of another epoch", "{}", "no JSON", '{"format_version": 1}'])
def test_calibrate_replaces_any_calibration(mined, tmp_path, damage):
    run, query = tmp_path / "run", ("predict", tmp_path / "run", "--head", "e1", "--relation", "r0")
    shutil.copytree(mined, run)
    path = run / "calibration.json"
    before = path.read_bytes(), ok(*query).stdout
    if damage == "of another epoch":
        path.write_text(json.dumps(json.loads(path.read_text()) | {"epoch": 99}))
    else:
        path.write_text(damage)
    assert "`calibrate` writes it anew" in one_error(invoke(*query))
    ok("calibrate", run)
    assert (path.read_bytes(), ok(*query).stdout) == before


def test_a_calibration_of_an_earlier_version_is_fitted_anew(mined, tmp_path):
    """In one line that says how; `train --resume` replaces it, unless it may not calibrate."""
    run = tmp_path / "run"
    shutil.copytree(mined, run)
    path = run / "calibration.json"
    value = json.loads(path.read_text())
    assert value["format_version"] == 2
    path.write_text(json.dumps(value | {"format_version": 1}))
    for command in (("predict", run, "--head", "e1", "--relation", "r0"), ("evaluate", run, "--sets")):
        line = one_error(invoke(*command))
        assert line.endswith("format version 1, of an earlier program; `calibrate` writes it anew")
    assert "of an earlier program" in one_error(invoke("train", "--resume", "--out", run, "--no-calibrate"))
    assert json.loads(path.read_text())["format_version"] == 1
    ok("train", "--resume", "--out", run)
    assert json.loads(path.read_text()) == value


def test_a_block_is_bounded():
    assert [block_of(n) for n in (1, 1000, 43690, 43691, 10**6, 2**24, 10**9)] == [384, 384, 384, 383, 16, 1, 1]


def test_control_c_keeps_the_older_file_whole(mined, tmp_path, monkeypatch):
    """The signal comes after the first block."""
    path = tmp_path / "new.tsv"
    path.write_text("older\n")
    decode, blocks = Decoder.decode, itertools.count()

    def decode_and_signal(*arguments):
        found = decode(*arguments)
        if next(blocks) == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(Decoder, "decode", decode_and_signal)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # where tests run side by side it is ignored
    try:
        result = invoke("complete", mined, "--known", "train", "--out", path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130 and "Traceback" not in result.output
    assert os.listdir(tmp_path) == ["new.tsv"] and path.read_text() == "older\n"
