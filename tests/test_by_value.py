"""Values from independent computations, where the planted errors of tests/mutations.py would show."""

import math

import numpy as np
import pytest

import cardkge
from cardkge_tools.answers import calibration, classification
from cardkge_tools.graph import graphs, rdf
from cardkge_tools.graph.bounds import Bound, GraphBounds, Types

# --- calibrate, of a model whose scores are all 0: pi of all candidates is the same, v pi their share in valid


def logit(p):
    return math.log(p / (1 - p))


def ring(n, answered):
    """(train, valid): each of n heads has one tail; the first `answered` heads have another in valid."""
    heads = np.arange(n)
    train = np.column_stack((heads, 0 * heads, (heads + 1) % n))
    return train, np.column_stack((heads, 0 * heads, (heads + 2) % n))[:answered]


def model_of_zeros(n, r=1):
    model = cardkge.new_model(cardkge.Settings(model="distmult", dim=2), n, r)
    for array in model.params.values():
        array[...] = 0
    return model


@pytest.mark.parametrize("missing, share", [(60, 1 / 2), (20, 3 / 4), (180, 1 / 4)])
def test_calibration_of_equal_scores_is_a_share(monkeypatch, missing, share):
    """60 of 200 x 198 candidates are in valid. Of 140 heads without an answer 100 are seen, of each some 38 candidates:
    they stand for all."""
    monkeypatch.setattr(calibration, "PAIRS", 100)
    monkeypatch.setattr(calibration, "MOST_PAIRS", 100)
    train, valid = ring(200, 60)
    found = calibration.calibrate(model_of_zeros(200), train, valid, missing)
    assert (found.share, found.valid, found.missing) == (share, 60, missing)
    z = cardkge.calibration_logits(found.coefficients[0], 0.0, math.log(200), np.array(1))
    assert z == pytest.approx(logit(60 / (200 * 198) / share), rel=1e-6)


def minimum(function, start):
    """Where a convex function of a few numbers is least: Newton's steps, by differences."""
    x, h = np.array(start, float), 1e-4
    steps = h * np.eye(len(x))
    for _ in range(60):
        slope = np.array([(function(x + s) - function(x - s)) / (2 * h) for s in steps])
        curve = np.array([[function(x + s + t) - function(x + s - t) - function(x - s + t) + function(x - s - t)
                           for t in steps] for s in steps]) / (4 * h * h)  # fmt: skip
        x -= np.clip(np.linalg.solve(curve, slope), -0.5, 0.5)
    return x


def test_relations_are_held_at_what_they_have_in_common():
    """Two relations, one known tail of each head, all candidates seen: the logits by the words of `calibrate`."""
    n, prior = 12, 2.0
    train, valid = ring(n, 8)
    further = np.array([0, 1, 1])  # in relation 1 each tail is the next
    train = np.concatenate((train, train + further)) % [n, 2, n]
    valid = np.concatenate((valid, valid[:2] + further)) % [n, 2, n]
    model = cardkge.new_model(cardkge.Settings(model="distmult", dim=3, dtype="float64"), n, 2)
    rng = np.random.default_rng(5)
    for name, array in model.params.items():
        model.params[name] = rng.normal(0, 1, array.shape)
    found = calibration.calibrate(model, train, valid, 10, prior=prior)
    known, answers = set(map(tuple, train.tolist())), set(map(tuple, valid.tolist()))
    rows = []  # relation, log softmax, log sum, in valid
    for r in (0, 1):
        for h in range(n):
            scores = model.score_tails([h], [r])[0]
            total = math.log(np.exp(scores).sum())
            rows += [
                (r, scores[t] - total, total, (h, r, t) in answers)
                for t in range(n)
                if t != h and (h, r, t) not in known
            ]
    rows = np.array(rows)
    centre, spread = rows[:, 2].mean(), rows[:, 2].std()

    def fit(chosen, middle, precision):
        _, log_softmax, log_sum, is_in = rows[chosen].T

        def loss(x):
            z = math.exp(x[0]) * log_softmax + x[1] * (log_sum - centre) / spread + x[2]
            q = found.share / (1 + np.exp(-z))
            return -np.log(np.where(is_in > 0, q, 1 - q)).sum() + precision / 2 * ((x - middle) ** 2).sum()

        return minimum(loss, middle)

    everything = np.ones(len(rows), bool)
    of_all = fit(everything, np.zeros(3), 1e-3)
    common = fit(everything, of_all, prior)  # all heads have one known tail
    for r in (0, 1):
        u, a, c = fit(rows[:, 0] == r, common, prior)
        a /= spread
        np.testing.assert_allclose(found.coefficients[r, 1], [a, math.exp(u) - a, c - a * centre], rtol=1e-3, atol=1e-3)
    assert np.abs(common - fit(rows[:, 0] == 1, common, prior)).max() > 0.1


# --- classify


def test_features_of_the_model_by_value(make_model):
    """log softmax over the tails, log sum, and log softmax over the heads, of candidates counted by hand."""
    model = make_model("complex", 6, 2)
    train = np.array([(0, 0, 3), (1, 0, 3), (1, 0, 4), (2, 0, 5), (4, 1, 0)])
    columns = classification.features(model, None, train, np.array([(0, 0, 4), (2, 0, 3)])).columns
    for row, (h, t), tails, heads in zip(columns, [(0, 4), (2, 3)], [(4, 5), (3, 4)], [(0, 2), (2,)], strict=True):
        by_tail = [math.exp(model.score([h], [0], [e])[0]) for e in tails]  # 3, 4, 5 but for those that h has
        by_head = [math.exp(model.score([e], [0], [t])[0]) for e in heads]  # 0, 1, 2 but for those that t has
        score = model.score([h], [0], [t])[0]
        expected = score - math.log(sum(by_tail)), math.log(sum(by_tail)), score - math.log(sum(by_head))
        np.testing.assert_allclose(row[:3], expected, rtol=1e-6, atol=1e-6)


def test_no_head_is_in_two_folds(monkeypatch):
    """Each triple is judged once, by what was learnt from other heads; the loss is the mean of -log p of the label."""
    heads = np.random.default_rng(1).integers(40, size=300)
    labels, judged = np.arange(300) % 3 == 0, []

    def learn(columns, relations, labels, n_relations, precision):
        def answer(asked, relations):
            assert not np.isin(asked, columns).any() and len(columns) + len(asked) == 300
            judged.extend(asked[:, 0])
            return np.full(len(asked), 0.2)

        return answer

    monkeypatch.setattr(classification, "fit_labels", learn)
    triples = np.column_stack((heads, 0 * heads, 0 * heads))
    loss = classification.cross_validated(heads[:, None], triples, labels, 1, 1.0)
    assert sorted(judged) == sorted(heads)
    assert loss == pytest.approx(-(math.log(0.2) + 2 * math.log(0.8)) / 3)


# --- names


def test_bounds_of_classes_hold_for_the_same_names_in_another_graph():
    """anna and bob are artists; the other graph has bob, carl and anna, in this order."""
    types = Types(["Artist", "Museum"], [(0, 0), (1, 0), (2, 1)])
    bounds = [Bound("made", 0.0, 2.0, kind="Artist"), Bound("made", 0.0, 0.0, kind="Museum")]
    limits = GraphBounds(bounds, ["made"], types, ["anna", "bob", "tate"])
    assert limits.of(0, [0, 1, 2]).tolist() == [[0, 2], [0, 2], [0, 0]]
    other = limits.for_names(["bob", "carl", "anna"], ["likes", "made"])
    assert other.of(1, [0, 1, 2]).tolist() == [[0, 2], [0, math.inf], [0, 2]]
    assert other.of(0, [0, 1, 2]).tolist() == [[0, math.inf]] * 3


@pytest.mark.parametrize("tag", ["en", "en-GB", "zh-Hant-TW", "de-1996"])
def test_language_tags_have_parts(tag):
    """A literal is one, in a name and in a statement of N-Triples or N-Quads."""
    literal = f'"the colour"@{tag}'
    assert rdf.Prefixes({}).term(literal) == literal
    assert rdf._LITERAL.fullmatch(f"{literal} <x:graph>").groups() == (literal, "<x:graph>")
    assert graphs._STATEMENT.fullmatch(f"<x:a> <x:b> {literal} .")
    assert graphs._STATEMENT.fullmatch(f"_:a <x:b> {literal} <x:graph> .")
