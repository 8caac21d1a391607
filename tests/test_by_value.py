"""Values from independent computations, where the planted errors of tests/mutations.py would show."""

import itertools
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
    """Two relations, heads with one known tail or two, all candidates seen: the logits by the words of `calibrate`."""
    n, prior = 12, 2.0
    train, valid = ring(n, 8)
    further = np.array([0, 1, 1])  # in relation 1 each tail is the next
    twice = train[:5] + np.array([0, 0, 4])
    train = np.concatenate((train, train + further, twice)) % [n, 2, n]
    valid = np.concatenate((valid, valid[3:6] + further)) % [n, 2, n]
    model = cardkge.new_model(cardkge.Settings(model="distmult", dim=3, dtype="float64"), n, 2)
    rng = np.random.default_rng(5)
    for name, array in model.params.items():
        model.params[name] = rng.normal(0, 1, array.shape)
    found = calibration.calibrate(model, train, valid, 10, prior=prior)
    known, answers = set(map(tuple, train.tolist())), set(map(tuple, valid.tolist()))
    rows = []  # relation, number of known tails, log softmax, log sum, in valid
    for r, h in itertools.product((0, 1), range(n)):
        scores = model.score_tails([h], [r])[0]
        total, its = math.log(np.exp(scores).sum()), [t for t in range(n) if (h, r, t) in known]
        others = [t for t in range(n) if t != h and t not in its]
        rows += [(r, len(its), scores[t] - total, total, (h, r, t) in answers) for t in others]
    rows = np.array(rows)
    centre, spread = rows[:, 3].mean(), rows[:, 3].std()

    def fit(chosen, middle, precision):
        _, _, log_softmax, log_sum, is_in = rows[chosen].T

        def loss(x):
            z = math.exp(x[0]) * log_softmax + x[1] * (log_sum - centre) / spread + x[2]
            q = found.share / (1 + np.exp(-z))
            return -np.log(np.where(is_in > 0, q, 1 - q)).sum() + precision / 2 * ((x - middle) ** 2).sum()

        return minimum(loss, middle)

    of_all = fit(np.ones(len(rows), bool), np.zeros(3), 1e-3)
    for k in (1, 2):
        common = fit(rows[:, 1] == k, of_all, prior)
        assert np.abs(common - of_all).max() > 0.03
        for r in (0, 1):
            u, a, c = fit((rows[:, 0] == r) & (rows[:, 1] == k), common, prior)
            a /= spread
            expected = a, math.exp(u) - a, c - a * centre
            np.testing.assert_allclose(found.coefficients[r, k], expected, rtol=1e-3, atol=1e-3)


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
    """anna and bob are artists, anna has a bound of her own; the other graph has bob, carl and anna, in this order."""
    types = Types(["Artist", "Museum"], [(0, 0), (1, 0), (2, 1)])
    bounds = [Bound("made", 0.0, 2.0, kind="Artist"), Bound("made", 0.0, 0.0, kind="Museum")]
    bounds.append(Bound("made", 1.0, 1.0, subject="anna"))
    limits = GraphBounds(bounds, ["made"], types, ["anna", "bob", "tate"])
    assert limits.of(0, [0, 1, 2]).tolist() == [[1, 1], [0, 2], [0, 0]]
    other = limits.for_names(["bob", "carl", "anna"], ["likes", "made"])
    assert other.of(1, [0, 1, 2]).tolist() == [[0, 2], [0, math.inf], [1, 1]]
    assert other.of(0, [0, 1, 2]).tolist() == [[0, math.inf]] * 3


@pytest.mark.parametrize("tag", ["en", "en-GB", "zh-Hant-TW", "de-1996"])
def test_language_tags_have_parts(tag):
    """A literal is one, in a name and in a statement of N-Triples or N-Quads."""
    literal = f'"the colour"@{tag}'
    assert rdf.Prefixes({}).term(literal) == literal
    assert rdf.is_literal(literal) and not rdf.is_literal(f"{literal} <x:graph>")
    assert rdf.terms_of(f"<x:a> <x:b> {literal} <x:graph> .") == ("<x:a>", "<x:b>", literal, "<x:graph>")
    assert graphs._STATEMENT.fullmatch(f"<x:a> <x:b> {literal} .")
    assert graphs._STATEMENT.fullmatch(f"_:a <x:b> {literal} <x:graph> .")
