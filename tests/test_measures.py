"""What is measured of answer sets: the definitions on toys worked out by hand, and `evaluate_sets` against them."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import plain_calibration

import cardkge
from cardkge_tools.answers import decoding
from cardkge_tools.answers.decoding import Decoder, KnownTails, accepted
from cardkge_tools.answers.measures import evaluate_sets
from cardkge_tools.definitions import measures
from cardkge_tools.graph.bounds import Bound, GraphBounds

SHARE = 0.4  # of what train lacks, known where the measures are taken

# --- by hand


def test_average_precision_by_hand():
    """Best first: a fact, another, two tied of which one is a fact; a third fact is no candidate, so there are 3."""
    p, facts = [0.2, 0.9, 0.5, 0.5, 0.7], [0, 1, 1, 0, 0]
    # recall 1/3 at 1 of 1; nothing at 1 of 2; 1/3 at 2 of 4
    assert measures.average_precision(p, facts, 3) == pytest.approx(1 / 3 * 1 + 1 / 3 * 2 / 4)
    # the order of the tied two does not matter
    assert measures.average_precision(p, [0, 1, 0, 1, 0], 3) == pytest.approx(1 / 2)
    assert measures.average_precision([0.5] * 10, [1, 1] + [0] * 8, 2) == pytest.approx(0.2)
    assert measures.average_precision([], [], 4) == 0


def test_best_f1_by_hand():
    """1 of 1, 1 of 2, 2 of 4 with 2 facts: F1 2/3, 2/4, 4/6; with a third that is no candidate 2/4, 2/5, 4/7."""
    p, facts = [0.9, 0.7, 0.5, 0.5], [1, 0, 1, 0]
    assert measures.best_f1(p, facts, 2) == pytest.approx(2 / 3)
    assert measures.best_f1(p, facts, 3) == pytest.approx(4 / 7)
    assert measures.best_f1([], [], 3) == 0


def test_a_precision_is_that_of_what_is_accepted_in_the_end():
    """(r, t) has room for one head: the worse of two with the same tail is none of those whose mean counts."""
    model = cardkge.DistMult(9, 1, dim=2, seed=0)
    bounds = GraphBounds([Bound("r", 0, 1, inverse=True)], ["r"])
    decoder = Decoder(model, None, bounds, KnownTails(np.empty((0, 3), int), 9, 1))
    triples, p = np.array([(0, 0, 5), (1, 0, 5), (2, 0, 6), (3, 0, 7)]), np.array([0.9, 0.3, 0.8, 0.7])
    assert accepted(decoder, triples, p).tolist() == [0, 2, 3]
    assert accepted(decoder, triples, p, 0.8).tolist() == [0, 2, 3]  # their mean; with 0.3 it is 0.675
    triples, p = np.array([(0, 0, 5), (1, 0, 5), (2, 0, 6)]), np.array([0.9, 0.9, 0.65])
    assert accepted(decoder, triples, p, 0.8).tolist() == [0]  # (0.9 + 0.65) / 2 < 0.8 < (0.9 + 0.9 + 0.65) / 3


def test_what_is_accepted_by_hand():
    found = measures.accepted_measures([0.9, 0.7, 0.6, 0.6], np.array([True, True, False, True]), 5)
    assert found == pytest.approx(
        {"accepted": 4, "precision": 0.75, "mean_probability": 0.7, "recall": 0.6, "f1": 2 * 3 / 9}
    )
    nothing = {"accepted": 0, "precision": None, "mean_probability": None, "recall": 0, "f1": 0}
    assert measures.accepted_measures([], np.zeros(0, bool), 5) == nothing


def test_a_threshold_does_not_cut_through_a_tie():
    """The means are 0.9, 0.85, then 0.75 and 0.7 with the first and both of the two at 0.55."""
    p = [0.9, 0.8, 0.55, 0.55]
    assert measures.threshold_of(p, 0.88) == 0.9 and measures.threshold_of(p, 0.8) == 0.8
    assert measures.threshold_of(p, 0.74) == 0.8  # with one of the tied two the mean would do
    assert measures.threshold_of(p, 0.7 - 1e-12) == 0.55 and measures.threshold_of(p, 0.95) == math.inf
    for precision in (0.95, 0.88, 0.8, 0.74, 0.6):
        count = decoding.threshold_for(np.array(p), precision)
        assert count == sum(x >= measures.threshold_of(p, precision) for x in p)


def test_calibration_error_by_hand():
    """15 candidates with p >= 0.1, a bin each: the distance of each; of 16 the first two share a bin."""
    p = np.array([0.1, *np.linspace(0.2, 0.9, 14)])
    facts = np.arange(15) % 2 == 1
    expected = np.where(facts, 1 - p, p).mean()
    assert measures.calibration_error([0.05, *p, 0.099], [True, *facts, True]) == pytest.approx(expected)
    p, facts = np.append(p, 0.12), np.append(facts, True)
    shared = 2 * abs(0.11 - 0.5)  # 0.1, false, and 0.12, true
    rest = np.where(facts, 1 - p, p)[1:15].sum()
    assert measures.calibration_error(p, facts) == pytest.approx((shared + rest) / 16)
    assert measures.calibration_error([0.3] * 30, [True, False] * 15) == pytest.approx(0.2)  # bins of two
    assert measures.calibration_error([0.05], [True]) == 0


def test_brier_score_and_log_loss_by_hand():
    p, facts = [0.9, 0.2, 0.5], [True, False, True]
    assert measures.brier_score(p, facts, 2) == pytest.approx((0.01 + 0.04 + 0.25) / 2)
    assert measures.log_loss(p, facts, 2) == pytest.approx(-(math.log(0.9) + math.log(0.8) + math.log(0.5)) / 2)
    assert measures.log_loss([0.0, 1.0], [True, False], 1) == pytest.approx(-2 * math.log(1e-15))
    assert measures.log_loss([1.0, 0.0], [True, False], 1) == 0


def test_counts_by_hand():
    assert measures.count_error([1.5, 2.0, 0.25], [1, 2, 1]) == pytest.approx(1.25 / 3)
    bounds = [[0, 2], [1, 3], [2, 2], [0, math.inf], [3, 9]]
    contradicted = measures.is_contradicted(np.array([3, 0, 1, 7, 1]), [4, 5, 1, 0, 1], bounds)
    assert contradicted.tolist() == [True, False, False, False, True]
    expected = np.array([3.0, 3 + 1e-8, 2 - 1e-10, 7.0, 1.0])
    assert measures.out_of_bounds(expected, bounds, contradicted) == pytest.approx(1 / 5)


# --- the streamed form against the definitions


def random_graph(rng, n, r):
    """Triples with loops, and with facts of test that are known."""
    triples = np.column_stack([rng.integers(high, size=6 * n) for high in (n, r, n)])
    train, valid, test = np.split(triples, [3 * n, 4 * n])
    train = train[(train[:, 0] != train[:, 2]) | (train[:, 1] > 0)]  # relation 0 has no loop
    test = np.concatenate((test, train[:3], valid[:2], [[1, 0, 1]]))
    return SimpleNamespace(
        **{name: part.astype(np.int32) for name, part in zip(("train", "valid", "test"), (train, valid, test))}
    )


def all_candidates(model, coefficients, bounds, dataset, loops):
    """(p, is a fact, pair, score) of all candidates of all pairs in scope, and the pairs: (known, candidates, bounds,
    true count) of each. By the definitions, one (h, r) after another."""
    train, valid, test = (set(map(tuple, x.tolist())) for x in (dataset.train, dataset.valid, dataset.test))
    known, facts = train | valid, test - train - valid
    heads_of = [{h for h, q, _ in train if q == r} for r in range(model.n_relations)]
    looping = {r for h, r, t in train if h == t}
    rows, pairs, everyone = [], [], np.arange(model.n_entities)
    for r in range(model.n_relations):
        for h in sorted(set().union(*(heads for heads in heads_of if heads & heads_of[r]))):
            scores = model.score(np.full(len(everyone), h), np.full(len(everyone), r), everyone).astype(float)
            its = {t for t in everyone.tolist() if (h, r, t) in known}
            open_ = [t for t in everyone.tolist() if t not in its and (t != h or r in looping or loops)]
            a, b, c = coefficients[:, r]
            z = a * scores[open_] + b * (scores[open_] - cardkge.log_sum_exp(scores[open_])) + c + math.log(1 - SHARE)
            limits = np.array([0, math.inf]) if bounds is None else bounds[r]
            try:
                p = cardkge.conditioned(z, *(limits - len(its)))
            except cardkge.CardkgeError:
                p = np.zeros(len(open_))
            is_fact = [(h, r, t) in facts for t in open_]
            rows += zip(p, is_fact, itertools.repeat(len(pairs)), scores[open_])
            pairs.append((len(its), len(open_), *limits, sum((h, r, t) in known | facts for t in everyone.tolist())))
    return (*map(np.array, zip(*rows)), np.array(pairs, float), len(facts))


def by_definition(found, least, precision, floor):
    """The measures of `evaluate_sets`. Candidates with p at most `floor` are one tie, and so are those whose log odds
    are equal when rounded up to 1/5,000."""
    p, facts, pair, scores, pairs, total = found
    known, candidates, limits, true = pairs[:, 0], pairs[:, 1], pairs[:, 2:4], pairs[:, 4]
    with np.errstate(divide="ignore"):
        log_odds = np.clip(np.log(p) - np.log1p(-p), -40, 40)
    coarse = np.where(p > floor, np.ceil((log_odds + 40) * 5000), 0)
    expected = known + np.bincount(pair, p, len(pairs))
    contradicted = measures.is_contradicted(known, candidates, limits)
    accepted = np.zeros(len(p), bool)
    for i, (k, _, _, upper, _) in enumerate(pairs):
        own = np.flatnonzero((pair == i) & (p > (least if precision is None else min(0.01, precision / 10))))
        own = own[np.lexsort((-scores[own], -p[own]))]
        accepted[own[: int(max(min(math.floor(upper) if upper < math.inf else len(own) + k, len(own) + k) - k, 0))]] = (
            True
        )
    if precision is not None:
        accepted &= p >= measures.threshold_of(p[accepted], precision)
    return measures.accepted_measures(p[accepted], facts[accepted], total) | {
        "threshold": p[accepted].min() if accepted.any() else None,
        "ap": measures.average_precision(coarse, facts, total),
        "best_f1": measures.best_f1(coarse, facts, total),
        "ece": measures.calibration_error(p, facts),
        "brier": measures.brier_score(p, facts, total),
        "log_loss": measures.log_loss(p, facts, total),
        "count_mae": measures.count_error(expected, true),
        "known_count_mae": measures.count_error(known, true),
        "out_of_bounds": measures.out_of_bounds(expected, limits, contradicted),
        "contradicted": contradicted.sum(),
        "pairs": len(pairs),
        "facts": total,
    }


BOUNDS = {"none": None, "bounds": [[0, 3], [2, 4], [3, math.inf]], "tight": [[0, 1], [1, 1], [0, 2.5]]}


def case_of(seed, ties=False):
    rng = np.random.default_rng(seed)
    n, r = int(rng.integers(8, 14)), 3
    model = cardkge.new_model(cardkge.Settings(model="distmult", dim=3, dtype="float64"), n, r)
    for name, array in model.params.items():
        model.params[name] = np.round(rng.normal(0, 1, array.shape)) if ties else rng.normal(0, 1, array.shape)
    coefficients = np.stack([rng.uniform(0, 0.3, r), rng.uniform(0.7, 1.5, r), rng.normal(1.5, 1, r)])
    if ties:
        coefficients[:] = [[0.25], [0.75], [0.5]]
    return model, coefficients, random_graph(rng, n, r)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", BOUNDS)
@pytest.mark.parametrize("least, precision, loops", [(0.5, None, False), (0.2, None, True), (0.5, 0.6, False)])
def test_sets_are_measured_as_the_definitions_say(monkeypatch, seed, kind, least, precision, loops):
    """With nothing left out of what is looked at: equal to the last digits."""
    monkeypatch.setattr(decoding, "LEFT_OUT", 1e-200)
    model, coefficients, dataset = case_of(seed)
    bounds = None if BOUNDS[kind] is None else np.array(BOUNDS[kind], float)
    expected = by_definition(all_candidates(model, coefficients, bounds, dataset, loops), least, precision, 0)
    found, _ = evaluate_sets(
        model, plain_calibration(*coefficients, SHARE), bounds, dataset, least=least, precision=precision, loops=loops
    )
    assert found == {
        name: value if value is None else pytest.approx(value, rel=1e-9) for name, value in expected.items()
    }
    assert expected["accepted"] > 0 and expected["ece"] > 0.01 and expected["ap"] > 0.01
    if kind == "tight":
        assert expected["contradicted"] > 0


def test_ties_of_average_precision_are_one_step(monkeypatch):
    """Small whole numbers as parameters: many candidates with the same score, in other (h, r) too."""
    monkeypatch.setattr(decoding, "LEFT_OUT", 1e-200)
    model, coefficients, dataset = case_of(7, ties=True)
    rows = all_candidates(model, coefficients, None, dataset, False)
    expected = by_definition(rows, 0.5, None, 0)
    found, _ = evaluate_sets(model, plain_calibration(*coefficients, SHARE), None, dataset)
    assert len(np.unique(rows[0].round(12))) < 0.9 * len(rows[0])
    for name in ("ap", "best_f1", "log_loss", "brier", "accepted", "f1"):
        assert found[name] == pytest.approx(expected[name], rel=1e-9)
    in_favour = measures.average_precision(rows[0].round(12) + 1e-13 * rows[1], rows[1], rows[-1])
    assert in_favour > expected["ap"] * 1.01


@pytest.mark.parametrize("seed", range(3))
def test_what_is_not_looked_at_is_one_tie_and_adds_little(seed):
    """As it is used: p at most 0.01 / N is not looked at, which adds to 0.01 for an (h, r) at most."""
    model, coefficients, dataset = case_of(seed)
    coefficients[2] -= 4
    rows, floor = all_candidates(model, coefficients, None, dataset, False), decoding.LEFT_OUT / model.n_entities
    expected = by_definition(rows, 0.02, None, floor)
    assert (rows[0] <= floor).sum() > 5
    found, _ = evaluate_sets(model, plain_calibration(*coefficients, SHARE), None, dataset, least=0.02)
    rough = {"count_mae": 0.01, "log_loss": 0.01 * expected["pairs"] / expected["facts"], "brier": 1e-3}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-9, abs=rough.get(name, 1e-12)), name
    assert 0 < expected["accepted"] < len(rows[0])
