"""Scoring functions: values, the three ways to score, gradients, initialisation, refused ids."""

import math
import warnings

import numpy as np
import pytest
import reference
from gradcheck import check_gradients

import cardkge

SHAPES = [  # entities, relations, dim, hidden, triples
    (1, 1, 1, 1, 1),
    (2, 1, 1, 3, 7),
    (5, 3, 4, 2, 0),
    (6, 2, 3, 5, 12),
    (4, 5, 7, 1, 1),
    (11, 3, 5, 4, 30),
]


def triples(seed, n_entities, n_relations, n):
    """Random ids of which some repeat and some have head = tail."""
    rng = np.random.default_rng(seed)
    h, t = rng.integers(n_entities, size=(2, n))
    r = rng.integers(n_relations, size=n)
    t[::3] = h[::3]
    if n > 4:
        h[1], r[1], t[1] = h[4], r[4], t[4]
    return h, r, t


def test_known_scores():
    """Worked by hand."""
    distmult = cardkge.DistMult(2, 1, dim=2, seed=0, dtype="float64")
    distmult.params["entity"][...] = [[1, 2], [3, -1]]
    distmult.params["relation"][...] = [[5, 7]]
    zero = np.array([0])
    assert distmult.score(zero, zero, zero + 1)[0] == 1 * 5 * 3 - 2 * 7 * 1

    # h = 1 + 2i, r = i, t = 3 - i: h r = -2 + i, times conj(t) = 3 + i gives -7 + i
    complex_ = cardkge.ComplEx(2, 1, dim=1, seed=0, dtype="float64")
    complex_.params["entity"][...] = [[1, 2], [3, -1]]
    complex_.params["relation"][...] = [[0, 1]]
    assert complex_.score(zero, zero, zero + 1)[0] == -7
    # the other way about: t r conj(h) = (3 - i) i (1 - 2i) = (1 + 3i)(1 - 2i) = 7 + i
    assert complex_.score(zero + 1, zero, zero)[0] == 7

    # hidden sees [h; t; r] in this order: 0.1 * 1 + 0.2 * 10 + 0.3 * 100
    ermlp = cardkge.ERMLP(2, 1, dim=1, hidden=2, seed=0, dtype="float64")
    ermlp.params["entity"][...] = [[0.1], [0.2]]
    ermlp.params["relation"][...] = [[0.3]]
    ermlp.params["hidden"][...] = [[0.01, 1], [0.1, 0], [1, 0]]
    ermlp.params["output"][...] = [2, -3]
    expected = 2 * math.tanh(0.001 + 0.02 + 0.3) - 3 * math.tanh(0.1)
    assert ermlp.score(zero, zero, zero + 1)[0] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-12), ("float32", 2e-5)])
def test_score_equals_loops(model_name, make_model, shape, dtype, rtol):
    n_entities, n_relations, dim, hidden, n = shape
    model = make_model(model_name, n_entities, n_relations, dim, hidden, seed=n, dtype=dtype)
    h, r, t = triples(1, n_entities, n_relations, n)
    expected = [reference.score(model_name, model.params, *ids) for ids in zip(h, r, t)]
    scores = model.score(h, r, t)
    assert scores.shape == (n,) and scores.dtype == dtype
    np.testing.assert_allclose(scores, np.array(expected, dtype=float), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("shape", SHAPES)
def test_three_ways_to_score_agree(model_name, make_model, shape):
    n_entities, n_relations, dim, hidden, n = shape
    model = make_model(model_name, n_entities, n_relations, dim, hidden, seed=2)
    h, r, t = triples(2, n_entities, n_relations, n)
    scores, row = model.score(h, r, t), np.arange(n)
    by_tail, by_head = model.score_tails(h, r), model.score_heads(r, t)
    assert by_tail.shape == by_head.shape == (n, n_entities)
    np.testing.assert_allclose(by_tail[row, t], scores, rtol=0, atol=1e-12)
    np.testing.assert_allclose(by_head[row, h], scores, rtol=0, atol=1e-12)
    for i in range(min(n, 3)):  # the whole rows, not only the entries of the triples
        every = [reference.score(model_name, model.params, h[i], r[i], e) for e in range(n_entities)]
        np.testing.assert_allclose(by_tail[i], every, rtol=0, atol=1e-12)
        every = [reference.score(model_name, model.params, e, r[i], t[i]) for e in range(n_entities)]
        np.testing.assert_allclose(by_head[i], every, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(model_name, make_model, shape):
    """Against central differences of sum(upstream * score), and against their own derivation."""
    n_entities, n_relations, dim, hidden, n = shape
    model = make_model(model_name, n_entities, n_relations, dim, hidden, seed=3)
    h, r, t = triples(3, n_entities, n_relations, n)
    upstream = np.random.default_rng(4).normal(size=n)
    gradients = model.gradients(h, r, t, upstream)
    check_gradients(lambda: np.sum(upstream * model.score(h, r, t)), model.params, gradients)

    expected = reference.zeros(model.params)
    for i in range(n):
        reference.add_gradient(model_name, model.params, h[i], r[i], t[i], upstream[i], expected)
    for key in model.params:
        np.testing.assert_allclose(gradients[key], expected[key], rtol=1e-11, atol=1e-12)


def test_gradients_along_directions_at_larger_size(model_name, make_model):
    model = make_model(model_name, 60, 5, 32, 24, seed=5, scale=0.3)
    h, r, t = triples(5, 60, 5, 400)
    upstream = np.random.default_rng(6).normal(size=400)
    gradients = model.gradients(h, r, t, upstream)
    check_gradients(lambda: np.sum(upstream * model.score(h, r, t)), model.params, gradients, directions=4)


def test_gradients_have_the_shape_and_dtype_of_params(model_name, make_model):
    model = make_model(model_name, dtype="float32")
    ids = np.array([0, 1])
    gradients = model.gradients(ids, ids, ids, np.ones(2, dtype=np.float32))
    for key, array in model.params.items():
        assert gradients[key].shape == array.shape and gradients[key].dtype == np.float32


# --- initialisation

INITIAL = [  # model, arguments, {parameter: (shape, fan in + fan out)}
    ("distmult", {"dim": 30}, {"entity": ((500, 30), 60), "relation": ((400, 30), 60)}),
    ("complex", {"dim": 30}, {"entity": ((500, 60), 120), "relation": ((400, 60), 120)}),
    (
        "ermlp",
        {"dim": 30, "hidden": 400},
        {"entity": ((500, 30), 60), "relation": ((400, 30), 60), "hidden": ((90, 400), 490), "output": ((400,), 401)},
    ),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name, arguments, expected", INITIAL)
def test_initialisation_is_glorot_uniform(name, arguments, expected, dtype):
    """Uniform on +- sqrt(6 / (fan in + fan out)): shape, range, mean and variance (5 sigma)."""
    model = cardkge.MODELS[name](500, 400, seed=1, dtype=dtype, **arguments)
    assert set(model.params) == set(expected)
    for key, (shape, fans) in expected.items():
        array = model.params[key]
        assert array.shape == shape and array.dtype == dtype and array.flags.c_contiguous
        values = array.astype(float).ravel()
        bound = math.sqrt(6 / fans)
        # P(the largest of n stays under (1 - 14 / n) bound) = exp(-14) = 1e-6
        assert (1 - 14 / values.size) * bound < np.abs(values).max() <= bound * (1 + 1e-6)
        assert abs(values.mean()) < 5 * bound / math.sqrt(3 * values.size)
        # the variance of x^2 is bound^4 (1/5 - 1/9)
        spread = 5 * bound**2 * math.sqrt((1 / 5 - 1 / 9) / values.size)
        assert abs(np.mean(values**2) - bound**2 / 3) < spread


def test_seed_decides_the_bits(model_name):
    make = cardkge.MODELS[model_name]
    first, again, other = (make(5, 3, dim=4, seed=seed).params for seed in (7, 7, 8))
    for key in first:
        assert first[key].dtype == np.float32  # the default
        assert np.array_equal(first[key], again[key])
        assert not np.any(first[key] == other[key])
    rows = first["entity"][:3], first["relation"]
    assert not np.any(rows[0] == rows[1])  # the arrays are not drawn from the same stream


def test_attributes(model_name):
    extra = {"hidden": 6} if model_name == "ermlp" else {}
    model = cardkge.MODELS[model_name](5, 3, dim=4, seed=0, dtype="float64", **extra)
    assert (model.n_entities, model.n_relations, model.dim, model.name) == (5, 3, 4, model_name)
    assert model.dtype == np.float64


# --- ids


def calls(model, h, r, t):
    """Every way to give ids to a model."""
    return {
        "score": lambda: model.score(h, r, t),
        "score_tails": lambda: model.score_tails(h, r),
        "score_heads": lambda: model.score_heads(r, t),
        "gradients": lambda: model.gradients(h, r, t, np.ones(len(h))),
    }


USES = {  # the ids that each call reads
    "score": "hrt",
    "score_tails": "hr",
    "score_heads": "rt",
    "gradients": "hrt",
}


@pytest.mark.parametrize("place", "hrt")
@pytest.mark.parametrize("bad", ["too large", "negative", "huge", "float", "short"])
def test_bad_ids_are_refused_with_one_line(model_name, make_model, place, bad):
    model = make_model(model_name, n_entities=5, n_relations=3)
    ids = {letter: np.array([0, 1, 2]) for letter in "hrt"}
    limit = 3 if place == "r" else 5
    if bad == "float":
        ids[place] = ids[place].astype(float)
    elif bad == "short":
        ids[place] = ids[place][:2]
    else:
        ids[place][1] = {"too large": limit, "negative": -1, "huge": 2**40}[bad]
    for name, call in calls(model, **ids).items():
        if place not in USES[name]:
            continue
        if name == "gradients" and bad == "short" and place == "h":
            continue  # upstream follows h in `calls`; see the next test
        with pytest.raises(cardkge.CardkgeError) as error:
            call()
        assert "\n" not in str(error.value)


def test_upstream_of_another_length_is_refused(model_name, make_model):
    model = make_model(model_name)
    ids = np.array([0, 1, 2])
    with pytest.raises(cardkge.CardkgeError):
        model.gradients(ids, ids, ids, np.ones(2))


def test_integer_dtypes_mix(model_name, make_model):
    model = make_model(model_name, n_entities=5, n_relations=3)
    h, r, t = np.array([0, 4]), np.array([2, 1]), np.array([3, 3])
    expected = {name: call() for name, call in calls(model, h, r, t).items()}
    mixed = calls(model, h.astype(np.int32), r.astype(np.int64), t.astype(np.int32))
    for name, call in mixed.items():
        value = call()
        if name == "gradients":
            assert all(np.array_equal(value[key], expected[name][key]) for key in value)
        else:
            assert np.array_equal(value, expected[name])


# --- probability


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probability_is_stable(dtype):
    largest = np.finfo(dtype).max
    scores = np.array([0, 1, -1, 1000, -1000, largest, -largest, -80], dtype=dtype)
    with warnings.catch_warnings(), np.errstate(over="raise", divide="raise", invalid="raise"):
        warnings.simplefilter("error")
        p = cardkge.probability(scores)
    expected = [0.5, 0.7310585786300049, 0.2689414213699951, 1, 0, 1, 0, 1.8048513878454153e-35]
    np.testing.assert_allclose(p, expected, rtol=4 * np.finfo(dtype).eps, atol=0)
