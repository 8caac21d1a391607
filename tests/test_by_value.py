"""Values from independent computations, where the planted errors of tests/mutations.py would show."""

import functools
import math

import numpy as np
import pytest
from mutations import ERRORS, ROOT

import cardkge
from cardkge_tools.answers import calibration, classification
from cardkge_tools.definitions.counting import pair_features
from cardkge_tools.graph import graphs, rdf
from cardkge_tools.graph.bounds import Bound, GraphBounds, Types


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.what)
def test_each_error_can_be_planted(error):
    """The text that tests/mutations.py replaces stands in its file once, and the test that should fail is there."""
    assert (ROOT / error.file).read_text(encoding="utf-8").count(error.old) == 1
    file, _, name = error.test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


# --- calibrate, of a model whose scores are all 0: a candidate is a fact with the same chance as any other


def model_of_zeros(n, r=1):
    model = cardkge.new_model(cardkge.Settings(model="distmult", dim=2), n, r)
    for array in model.params.values():
        array[...] = 0
    return model


@pytest.mark.parametrize("v", [0.25, 0.5, 0.75])
def test_calibration_of_equal_scores_is_a_share(monkeypatch, v):
    """200 heads have one tail each, 60 of them another in valid. Of the other 140 heads 100 take part, and of each some
    38 of its 198 candidates: they stand for all.

    Each fact of valid is asked once, while its head has one known tail; of a head without one nothing is found in five
    parts. So q = 60 / (198 (60 + 5 * 140)) of what is asked with one known tail is found: it is a fact that is not
    known, with chance pi (1 - s) / (1 - s pi), and in the part that is asked, with v / 5 / (1 - s), where s = 4/5 v.
    (That most of the candidates count as Poisson is worth 1 %.)
    """
    monkeypatch.setattr(calibration, "PAIRS", 100)
    monkeypatch.setattr(calibration, "MOST_PAIRS", 100)
    monkeypatch.setattr(calibration, "COMMON", 1e-4)
    monkeypatch.setattr(calibration, "fit", functools.partial(calibration.fit, precision=1e-4))
    heads = np.arange(200)
    train = np.column_stack((heads, 0 * heads, (heads + 1) % 200))
    valid = np.column_stack((heads, 0 * heads, (heads + 2) % 200))[:60]
    found = calibration.calibrate(model_of_zeros(200), (train, valid), v, threads=1)
    assert found.share == found.known_share == v
    features = pair_features([math.log(198)], [1], [0.0], found.centre, found.scale)
    slope, *offset, ceiling = found.parameters[0]
    x = -math.exp(slope) * math.log(198) + offset @ features[0]
    pi = 1 / (1 + math.exp(-ceiling)) / (1 + math.exp(-x))
    q = 60 / (198 * (60 + 5 * 140))
    assert pi / (1 - 0.8 * v * pi) * v / 5 == pytest.approx(q, rel=0.02)


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
