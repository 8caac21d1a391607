"""The cardinality regulariser: X, G, their gradients, the regularised objective, the four samplings."""

import itertools
import math

import numpy as np
import pytest
import reference
from gradcheck import check_gradients

import cardkge
from cardkge import ObjectSampler, cardinality_penalty, cardinality_sums

# objects and weights of a sample: nothing, importance draws with a repetition, padding, an empty one
SAMPLES = {
    "exact": (None, None),
    "objects": ([4, 0, 6], None),
    "weighted": ([4, 0, 6], [0.5, 2.0, 3.5]),
    "repeated": ([5, 2, 5, 5], [1.5, 0.7, 1.5, 1.5]),
    "padded": ([3, 1, 0, 0], [2.0, 4.0, 0.0, 0.0]),
    "empty": ([], []),
}


def arrays(sample):
    objects, weights = SAMPLES[sample]
    return (
        None if objects is None else np.array(objects, dtype=np.int32),
        None if weights is None else np.array(weights, dtype=float),
    )


# --- X and G for given objects


@pytest.mark.parametrize("sample", SAMPLES)
def test_extra_negatives_are_the_sample_as_negatives(model_name, make_model, sample):
    """The value by a loop over the pairs, the gradients by differences."""
    model = make_model(model_name, dtype="float64")
    objects, weights = arrays(sample)
    subjects = np.array([5, 0, 2])
    value, gradients = cardkge.sampled_negatives(model, 1, subjects, objects, weights)
    expected = 0.0
    for h in subjects:
        for i, t in enumerate(range(model.n_entities) if objects is None else objects):
            score = reference.score(model_name, model.params, h, 1, t)
            expected += (1 if weights is None else weights[i]) * math.log1p(math.exp(score))
    assert value == pytest.approx(expected, rel=1e-12, abs=0)
    check_gradients(lambda: cardkge.sampled_negatives(model, 1, subjects, objects, weights)[0], model.params, gradients)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-13), ("float32", 2e-5)])
def test_sums_equal_loops(model_name, make_model, sample, dtype, rtol):
    model = make_model(model_name, dtype=dtype)
    objects, weights = arrays(sample)
    subjects = np.array([5, 0, 2])
    sums = cardinality_sums(model, 1, subjects, objects, weights)
    expected = [reference.cardinality_sum(model_name, model.params, 1, h, objects, weights) for h in subjects]
    assert sums.shape == (3,) and sums.dtype == np.float64
    np.testing.assert_allclose(sums, expected, rtol=rtol, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_are_accumulated_in_float64(model_name, make_model, dtype):
    """Adding 70,001 numbers one by one in float32 would lose about 1e-4 of the sum."""
    model = make_model(model_name, n_entities=70_001, dim=1, hidden=1, dtype=dtype)
    model.params["relation"][...] = 0  # distmult, complex: every score is 0
    if model_name == "ermlp":
        model.params["output"][...] = 0
    model.params["entity"][-1] = 0
    (x,) = cardinality_sums(model, 0, np.array([3]))
    assert x == 35_000.5


def test_no_subjects(model_name, make_model):
    model = make_model(model_name)
    assert cardinality_sums(model, 0, np.zeros(0, dtype=int)).shape == (0,)


def bounds_between(sums):
    """(lower, upper) such that one third of the sums is below, one inside and one above."""
    s = np.sort(sums)
    i, j = len(s) // 3, 2 * len(s) // 3
    return (s[i - 1] + s[i]) / 2, (s[j - 1] + s[j]) / 2


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s != "empty"])
def test_penalty_value_and_gradient_on_both_sides(model_name, make_model, sample):
    """Subjects below, between and above the bounds; every entity is a subject, so h = t occurs."""
    model = make_model(model_name, seed=3)
    objects, weights = arrays(sample)
    subjects = np.random.default_rng(1).permutation(7)[:6]
    sums = cardinality_sums(model, 1, subjects, objects, weights)
    bounds = np.array([(0, np.inf), bounds_between(sums), (5, 6)], dtype=float)
    lower, upper = bounds[1]
    assert np.sum(sums < lower) == np.sum(sums > upper) == 2
    assert np.abs(sums[:, None] - bounds[1]).min() > 1e-3  # off the kinks

    def call():
        return cardinality_penalty(model, bounds, 1, subjects, objects, weights)

    value, gradients, returned = call()
    expected = [reference.cardinality_sum(model_name, model.params, 1, h, objects, weights) for h in subjects]
    np.testing.assert_allclose(returned, expected, rtol=1e-13)
    total = math.fsum(reference.penalty(x, lower, upper) for x in expected)
    assert value == pytest.approx(total, rel=1e-12)
    check_gradients(lambda: call()[0], model.params, gradients)
    assert any(np.any(g) for g in gradients.values())


@pytest.mark.parametrize(
    "bounds, value, slope",
    [  # every probability is 1/2 and N = 8, so X is exactly 4
        ((4, 4), 0.0, 0),
        ((4, np.inf), 0.0, 0),
        ((0, 4), 0.0, 0),
        ((1, 6), 0.0, 0),
        ((0, np.inf), 0.0, 0),
        ((5, 6), 1.0, -1),
        ((5, np.inf), 1.0, -1),
        ((0, 2.5), 1.5, 1),
        ((0, 0), 4.0, 1),
    ],
)
def test_penalty_at_the_bounds(model_name, make_model, bounds, value, slope):
    """At a bound and between them the gradient is exactly 0, although X itself has one."""
    model = make_model(model_name, n_entities=8)
    if model_name == "ermlp":
        model.params["output"][...] = 0
    else:
        model.params["entity"][3] = 0
    row = model.params["relation"].shape[0] * [(0, np.inf)]
    row[2] = bounds
    g, gradients, x = cardinality_penalty(model, np.array(row, dtype=float), 2, np.array([3]))
    assert x[0] == 4 and g == value
    key = "output" if model_name == "ermlp" else "entity"
    _, up, _ = cardinality_penalty(model, np.tile((0.0, 1.0), (3, 1)), 2, np.array([3]))
    assert np.any(up[key])
    for name, gradient in gradients.items():
        assert np.array_equal(gradient, slope * up[name])


def test_penalty_of_an_empty_sample_misses_the_lower_bound_without_gradient(model_name, make_model):
    """A Bernoulli sample may be empty: X = 0, G = lower."""
    model = make_model(model_name)
    bounds = np.tile((1.5, 3.0), (3, 1))
    objects, weights = arrays("empty")
    g, gradients, x = cardinality_penalty(model, bounds, 0, np.array([2, 4]), objects, weights)
    assert g == 3.0 and np.array_equal(x, [0, 0])
    assert not any(np.any(gradient) for gradient in gradients.values())


@pytest.mark.parametrize("relation, subjects, objects", [(3, [0], [0]), (-1, [0], [0]),
                                                         (0, [7], [0]), (0, [-1], [0]),
                                                         (0, [0], [7]), (0, [0], [-1])])  # fmt: skip
def test_ids_out_of_range_are_refused(make_model, relation, subjects, objects):
    model = make_model("distmult")
    subjects, objects = np.array(subjects), np.array(objects)
    with pytest.raises(cardkge.CardkgeError):
        cardinality_sums(model, relation, subjects, objects)
    with pytest.raises(cardkge.CardkgeError):
        cardinality_penalty(model, np.tile((0.0, 1.0), (3, 1)), relation, subjects, objects)


# --- the whole objective


def objective_case(model, seed=0, m=3):
    """A batch with repeated entities, a triple twice and h = t; samples of every kind."""
    rng = np.random.default_rng(seed)
    n, entities, relations = 6, model.n_entities, model.n_relations
    heads = np.repeat(rng.integers(entities, size=(n, 1)), 1 + m, axis=1)
    tails = np.repeat(rng.integers(entities, size=(n, 1)), 1 + m, axis=1)
    ids = np.repeat(rng.integers(relations, size=(n, 1)), 1 + m, axis=1)
    for j in range(1, 1 + m):
        (tails if j % 2 else heads)[:, j] = rng.integers(entities, size=n)
    heads[1], tails[1], ids[1] = heads[0], tails[0], ids[0]
    heads[2, 0] = tails[2, 0]
    samples = [
        (0, np.array([5, 0, 2]), None, None),
        (1, np.array([5, 2]), np.array([5, 2, 5, 5]), np.array([1.5, 0.7, 1.5, 1.5])),
        (2, np.array([1, 3]), np.array([4, 0, 6]), np.array([1.0, 1.0, 1.0])),
    ]
    bounds = np.array([(0, 1), (6, 7), (0, np.inf)], dtype=float)
    return heads, ids, tails, bounds, samples


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("regularised", [False, True])
def test_objective(model_name, make_model, loss, m, regularised):
    """The gradient of loss + l2 + lambda G with frozen samples, and each part of the value."""
    model = make_model(model_name, seed=4)
    settings = cardkge.Settings(model=model_name, loss=loss, margin=0.9, l2=0.3, penalty_weight=0.7, negatives=m)
    heads, ids, tails, bounds, samples = objective_case(model, m=m)
    arguments = (settings, bounds, samples) if regularised else (settings,)

    def call():
        return cardkge.objective(model, heads, ids, tails, *arguments)

    parts, gradients = call()
    expected, d_expected = reference.objective(model_name, model.params, heads, ids, tails, *arguments)
    assert set(parts) == {"objective", "loss", "l2", "penalty"}
    assert parts["loss"] == pytest.approx(expected["loss"], rel=1e-12)
    assert parts["l2"] == pytest.approx(expected["l2"], rel=1e-12)
    assert (expected["G"] > 0) == regularised
    total = expected["loss"] + expected["l2"] + 0.7 * expected["G"]
    assert parts["objective"] == pytest.approx(total, rel=1e-12)
    assert parts["penalty"] == pytest.approx(expected["G"], rel=1e-12)
    for key, gradient in gradients.items():
        np.testing.assert_allclose(gradient, d_expected[key], rtol=1e-10, atol=1e-11)
    check_gradients(lambda: call()[0]["objective"], model.params, gradients)


def test_objective_along_directions_at_larger_size(model_name, make_model):
    model = make_model(model_name, 50, 3, 24, 16, seed=6, scale=0.3)
    settings = cardkge.Settings(model=model_name, l2=0.01, penalty_weight=0.2)
    heads, ids, tails, bounds, samples = objective_case(model, seed=7)

    def call():
        return cardkge.objective(model, heads, ids, tails, settings, bounds, samples)

    check_gradients(lambda: call()[0]["objective"], model.params, call()[1], directions=3)


# --- the samplers

N = 6
# tails of relation 0: entity 1 three times, entity 2 once, entity 5 twice; relation 1: entity 0 often
TRIPLES = np.array(
    [(0, 0, 1), (2, 0, 1), (3, 0, 1), (1, 0, 2), (0, 0, 5), (4, 0, 5)] + [(h, 1, 0) for h in range(6)] * 8,
    dtype=np.int32,
)
COUNTS = np.array([[0, 3, 1, 0, 0, 2], [48, 0, 0, 0, 0, 0], [0] * 6])
Q = (1 + COUNTS) / (1 + COUNTS).sum(axis=1, keepdims=True)


def sampler(kind, objects, inclusion="frequency"):
    return ObjectSampler(kind, TRIPLES, N, 3, objects, inclusion=inclusion)


def draws(kind, objects, relation, n, seed, inclusion="frequency"):
    """n independent samples of one relation, 100 a call: (objects, weights), each (n, width)."""
    rng, one = np.random.default_rng(seed), sampler(kind, objects, inclusion)
    calls = [one.draw(rng, np.full(min(n, 100), relation)) for _ in range(max(n // 100, 1))]
    width = max(drawn.shape[1] for drawn, _ in calls)
    for drawn, weights in calls:
        assert drawn.shape == weights.shape
        assert drawn.dtype == np.int32 and weights.dtype == np.float64
        assert drawn.min(initial=0) >= 0 and drawn.max(initial=0) < N
    return tuple(
        np.concatenate([np.pad(call[i], ((0, 0), (0, width - call[i].shape[1]))) for call in calls]) for i in range(2)
    )


def chi_square(observed, expected):
    return float(np.sum((observed - expected) ** 2 / expected))


# 99.99 % quantiles of chi-square by degrees of freedom; seeds are fixed, so no test is flaky
CHI_SQUARE = {5: 25.74, 9: 33.72, 14: 42.58, 19: 50.80}


def test_exact_is_every_entity_once():
    objects, weights = draws("exact", 2, 0, 3, 0)
    assert np.array_equal(np.sort(objects, axis=1), np.tile(np.arange(N), (3, 1)))
    assert np.all(weights == 1)


@pytest.mark.parametrize("size, subsets", [(1, 6), (2, 15), (3, 20), (5, 6)])
def test_uniform_draws_each_subset_equally_often(size, subsets):
    """Distinct objects, weight 1; chi-square over all subsets, 99.99 % confidence."""
    objects, weights = draws("uniform", size, 0, 12_000, seed=size)
    assert objects.shape == (12_000, size) and np.all(weights == 1)
    objects = np.sort(objects, axis=1)
    assert np.all(np.diff(objects, axis=1) > 0)
    found, counts = np.unique(objects, axis=0, return_counts=True)
    assert len(found) == subsets == math.comb(N, size)
    assert chi_square(counts, 12_000 / subsets) < CHI_SQUARE[subsets - 1]


def test_uniform_of_all_is_exact(model_name, make_model):
    model = make_model(model_name, n_entities=N)
    objects, weights = draws("uniform", N, 0, 1, 1)
    subjects = np.arange(N)
    np.testing.assert_allclose(
        cardinality_sums(model, 0, subjects, objects[0], weights[0]), cardinality_sums(model, 0, subjects), rtol=1e-14
    )


@pytest.mark.parametrize("relation", [0, 1, 2])
def test_importance_draws_follow_the_tail_counts(relation):
    """q proportional to 1 + count; weights 1 / (omega q); chi-square, 99.99 % confidence."""
    np.testing.assert_allclose(sampler("importance", 4).probabilities(relation), Q[relation])
    objects, weights = draws("importance", 4, relation, 5_000, seed=relation)
    assert objects.shape == (5_000, 4)
    counts = np.bincount(objects.ravel(), minlength=N)
    assert chi_square(counts, 20_000 * Q[relation]) < CHI_SQUARE[N - 1]
    np.testing.assert_allclose(weights, 1 / (4 * Q[relation][objects]), rtol=1e-12)


def inclusion_probabilities(inclusion, relation, size):
    """b of Bernoulli sampling, found independently of the library."""
    if inclusion == "uniform":
        return np.full(N, size / N)
    return reference.inclusion_probabilities(Q[relation], size)


BERNOULLI = [("uniform", 0, 2), ("frequency", 0, 2), ("frequency", 1, 3), ("frequency", 1, 6),
             ("frequency", 2, 3), ("frequency", 0, 5)]  # fmt: skip


@pytest.mark.parametrize("inclusion, relation, size", BERNOULLI)
def test_bernoulli_inclusion(inclusion, relation, size):
    """b adds up to omega, is proportional to q where it is not capped at 1; each object is drawn at
    that rate, independently of every other (both within 4.5 standard errors)."""
    b = sampler("bernoulli", size, inclusion).probabilities(relation)
    np.testing.assert_allclose(b, inclusion_probabilities(inclusion, relation, size), rtol=1e-9, atol=1e-12)
    assert b.sum() == pytest.approx(size, rel=1e-12) and b.max() <= 1 and b.min() > 0

    n = 20_000
    objects, weights = draws("bernoulli", size, relation, n, seed=9, inclusion=inclusion)
    taken = weights > 0
    assert np.all(objects[~taken] == 0) and np.all(weights[~taken] == 0)
    np.testing.assert_allclose(weights[taken], 1 / b[objects[taken]], rtol=1e-12)
    included = np.zeros((n, N))
    np.add.at(included, (np.nonzero(taken)[0], objects[taken]), 1)
    assert included.max() == 1  # no object twice
    error = np.sqrt(b * (1 - b) / n)
    assert np.all(np.abs(included.mean(axis=0) - b) <= 4.5 * error + 1e-12)
    centred = included - b
    for i, j in itertools.combinations(range(N), 2):
        spread = math.sqrt(b[i] * (1 - b[i]) * b[j] * (1 - b[j]) / n)
        assert abs(np.mean(centred[:, i] * centred[:, j])) <= 4.5 * spread + 1e-12
    sizes = included.sum(axis=1)
    assert abs(sizes.mean() - size) <= 4.5 * math.sqrt(np.sum(b * (1 - b)) / n) + 1e-12


@pytest.mark.parametrize("kind", ["uniform", "importance", "bernoulli"])
def test_draws_depend_on_the_generator_only(kind):
    relations = np.array([0, 1, 2, 1])
    one = sampler(kind, 3)
    first = one.draw(np.random.default_rng(4), relations)
    again = one.draw(np.random.default_rng(4), relations)
    fresh = sampler(kind, 3).draw(np.random.default_rng(4), relations)
    other = one.draw(np.random.default_rng(5), relations)
    for a, b, c in zip(first, again, fresh):
        assert np.array_equal(a, b) and np.array_equal(a, c)
    assert not np.array_equal(first[0], other[0])


def test_a_draw_for_several_relations_uses_the_distribution_of_each():
    relations = np.tile([2, 1, 0], 2_000)
    rng = np.random.default_rng(6)
    objects, weights = sampler("importance", 2).draw(rng, relations)
    for r in range(3):
        np.testing.assert_allclose(weights[r == relations], 1 / (2 * Q[r][objects[r == relations]]))
        counts = np.bincount(objects[r == relations].ravel(), minlength=N)
        assert chi_square(counts, 4_000 * Q[r]) < CHI_SQUARE[N - 1]


# --- the estimators, by enumeration of every sample and by many draws


def enumerate_samples(kind, size, relation, inclusion="frequency"):
    """Every sample with its probability: (probability, objects, weights)."""
    p = sampler(kind, size, inclusion).probabilities(relation)
    if kind == "uniform":
        np.testing.assert_allclose(p, size / N)  # the inclusion probability
        for objects in itertools.combinations(range(N), size):
            yield 1 / math.comb(N, size), list(objects), [1.0] * size
    elif kind == "importance":
        for objects in itertools.product(range(N), repeat=size):
            yield (math.prod(p[o] for o in objects), list(objects), [1 / (size * p[o]) for o in objects])
    else:
        for taken in itertools.product([0, 1], repeat=N):
            objects = [o for o in range(N) if taken[o]]
            yield (math.prod(p[o] if taken[o] else 1 - p[o] for o in range(N)), objects, [1 / p[o] for o in objects])


def estimates(model, kind, size, relation, h, inclusion="frequency"):
    """(probabilities, X of every sample)."""
    chances, sums = [], []
    for chance, objects, weights in enumerate_samples(kind, size, relation, inclusion):
        objects, weights = np.array(objects, dtype=np.int32), np.array(weights, dtype=float)
        chances.append(chance)
        sums.append(cardinality_sums(model, relation, np.array([h]), objects, weights)[0])
    assert math.fsum(chances) == pytest.approx(1, rel=1e-12)
    return np.array(chances), np.array(sums)


def mean_and_variance(kind, size, relation, p, inclusion="frequency"):
    """E[X] and Var[X], SPEC section 6; for uniform from sampling without replacement."""
    x = p.sum()
    if kind == "importance":
        return x, (np.sum(p**2 / Q[relation]) - x**2) / size
    if kind == "bernoulli":
        b = inclusion_probabilities(inclusion, relation, size)
        return x, np.sum(p**2 * (1 - b) / b)
    return size / N * x, size * (1 - size / N) * p.var(ddof=1)


ESTIMATORS = [("uniform", 2, "frequency"), ("importance", 3, "frequency"),
              ("bernoulli", 2, "frequency"), ("bernoulli", 4, "uniform")]  # fmt: skip


def probabilities(model, relation, h):
    scores = [reference.score(model.name, model.params, h, relation, t) for t in range(N)]
    return np.array([reference.sigma(s) for s in scores])


@pytest.mark.parametrize("kind, size, inclusion", ESTIMATORS)
@pytest.mark.parametrize("relation", [0, 1])
def test_every_sample_enumerated(make_model, kind, size, inclusion, relation):
    model = make_model("complex", n_entities=N, seed=2)
    p = probabilities(model, relation, 4)
    chances, sums = estimates(model, kind, size, relation, 4, inclusion)
    mean, variance = mean_and_variance(kind, size, relation, p, inclusion)
    assert chances @ sums == pytest.approx(mean, rel=1e-10)
    assert chances @ (sums - mean) ** 2 == pytest.approx(variance, rel=1e-8)
    if kind == "uniform":  # equation (lowerbound): below X for every sample
        assert np.all(sums < p.sum())


@pytest.mark.parametrize("kind, size, inclusion", ESTIMATORS)
@pytest.mark.parametrize("relation", [0, 1])
def test_many_draws(make_model, kind, size, inclusion, relation):
    """Mean and variance of X over 40,000 drawn samples, each within 4.5 standard errors."""
    n = 40_000
    model = make_model("distmult", n_entities=N, seed=2)
    p = probabilities(model, relation, 4)
    objects, weights = draws(kind, size, relation, n, seed=21, inclusion=inclusion)
    sums = np.sum(weights * p[objects], axis=1)
    for i in range(3):  # the library's own sums of the same samples
        (x,) = cardinality_sums(model, relation, np.array([4]), objects[i], weights[i])
        assert x == pytest.approx(sums[i], rel=1e-12)
    mean, variance = mean_and_variance(kind, size, relation, p, inclusion)
    assert abs(sums.mean() - mean) < 4.5 * math.sqrt(variance / n)
    squares = (sums - mean) ** 2
    assert abs(squares.mean() - variance) < 4.5 * squares.std() / math.sqrt(n)


@pytest.mark.parametrize("kind, size", [("importance", 3), ("bernoulli", 2)])
def test_unbiased_sums_give_a_biased_penalty(make_model, kind, size):
    """X is at its upper bound, so G = 0; but max(0, X - upper) of an unbiased X is above 0 at mean."""
    model = make_model("distmult", n_entities=N, seed=2)
    x = probabilities(model, 0, 4).sum()
    chances, sums = estimates(model, kind, size, 0, 4)
    assert chances @ sums == pytest.approx(x, rel=1e-10)
    mean_penalty = chances @ [reference.penalty(s, 0.0, x) for s in sums]
    bounds = np.tile((0.0, x + 1e-9), (3, 1))
    assert cardinality_penalty(model, bounds, 0, np.array([4]))[0] == 0
    assert mean_penalty > 0.1


@pytest.mark.parametrize("arguments", [("exactly", 2), ("uniform", 0), ("importance", -1)])
def test_impossible_samplers_are_refused(arguments):
    with pytest.raises(cardkge.CardkgeError):
        sampler(*arguments)
