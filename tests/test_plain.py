"""The plain forms in cardkge.py (Algorithm 1, samplers, ranks) and the fast ones are the same mathematics."""

import itertools

import numpy as np
import pytest

import cardkge
from cardkge import ObjectSampler, SubjectSampler, algorithm_1, filtered_ranks, rank_triples
from cardkge_tools.graph.bounds import Bound, GraphBounds, Types

BOUNDS = [(0, 1.5), (2, 6), (0, np.inf)]
SAMPLINGS = [
    ("exact", "uniform"),
    ("uniform", "uniform"),
    ("importance", "uniform"),
    *itertools.product(["bernoulli"], ["frequency", "uniform"]),
]


def trained(toy, **changed):
    """(parameters, history) of the fast form and of the plain one, in float64."""
    usual = {"dim": 4, "hidden": 3, "dtype": "float64", "epochs": 2, "batches": 3, "seed": 7, "penalty_weight": 0.05}
    settings = cardkge.Settings(**usual | {"subjects": 3, "objects": 5} | changed)
    run = cardkge.new_run(settings, toy, BOUNDS)
    model = cardkge.new_run(settings, toy, BOUNDS).model
    cardkge.train(run, toy, threads=1)
    history = algorithm_1(model, toy.train, settings, BOUNDS)
    return (run.model.params, run.history), (model.params, history)


def assert_equal_training(fast, plain):
    for name, array in plain[0].items():
        np.testing.assert_allclose(array, fast[0][name], rtol=1e-10, atol=1e-10, err_msg=name)
    assert len(plain[1]) == len(fast[1]) == 2
    for mine, other in zip(plain[1], fast[1]):
        for name, value in mine.items():
            assert value == pytest.approx(other[name], rel=1e-10, abs=1e-12), name


@pytest.mark.parametrize("sampling, inclusion", SAMPLINGS)
@pytest.mark.parametrize("optimizer, rate", [("adagrad", 0.1), ("sgd", 0.02)])
@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_algorithm_1_is_what_train_does(toy, model_name, loss, optimizer, rate, sampling, inclusion):
    changed = {"model": model_name, "loss": loss, "optimizer": optimizer, "learning_rate": rate}
    fast, plain = trained(toy, **changed, sampling=sampling, inclusion=inclusion)
    assert_equal_training(fast, plain)
    assert plain[1][0]["penalty"] > 0


@pytest.mark.parametrize(
    "changed",
    [
        {"negatives": 5, "filter_negatives": True},
        {"l2": 0.01, "project": "none"},
        {"batch_size": 7, "subject_pool": "entities", "subjects": 20},
        {"optimizer": "sgd", "decay": 0.5, "accumulator": 0.0},
        {"penalty_weight": 0.0, "accumulator": 0.0},
        {"batches": 1000},
        {"extra_negatives": True, "sampling": "importance", "loss": "hinge"},
        {"extra_negatives": True, "sampling": "bernoulli", "subjects": 20},
        {"extra_negatives": True, "sampling": "uniform"},
    ],
)
def test_every_setting_means_the_same(toy, model_name, changed):
    assert_equal_training(*trained(toy, model=model_name, **changed))


@pytest.mark.parametrize("sampling, alike", [("uniform", True), ("importance", False), ("exact", False)])
def test_uniform_sampling_trains_without_lower_bounds(toy, model_name, sampling, alike):
    """For X_S <= X, so that max(0, lower - X_S) would push up what is too large already."""
    settings = cardkge.Settings(
        model=model_name, dim=4, hidden=3, epochs=2, batches=3, dtype="float64", penalty_weight=0.5, sampling=sampling,
        subjects=3, objects=2,
    )  # fmt: skip
    params = []
    for bounds in ([(0, 1.5), (6, 6), (0, np.inf)], [(0, 1.5), (0, 6), (0, np.inf)]):
        run = cardkge.new_run(settings, toy, bounds)
        assert run.bounds.tables[0].tolist() == [
            list(map(float, pair)) for pair in bounds
        ]  # the run keeps what it was given
        cardkge.train(run, toy, threads=1)
        params.append(run.model.params)
    equal = [np.array_equal(array, params[1][name]) for name, array in params[0].items()]
    assert all(equal) if alike else not any(equal)


def test_uniform_sampling_trains_without_lower_bounds_of_classes(tmp_path):
    """The same for bounds of classes and inverses; a relation with lower bounds alone has none left."""
    types = Types(["a"], [(3, 0)])
    stated = [
        Bound("r", 2, 9, True),
        Bound("r", 2, 7, True, "a"),
        Bound("s", 1, np.inf),
        Bound("s", 2, np.inf, kind="a"),
    ]
    limits = cardkge.training_bounds(GraphBounds(stated, ["r", "s"], types), cardkge.Settings(sampling="uniform"), 2)
    assert limits.of(0, [3, 4], inverse=True).tolist() == [[0.0, 7.0], [0.0, 9.0]]
    assert limits.is_bounded(inverse=True).tolist() == [True, False] and not limits.is_bounded().any()
    assert limits.of(1, [3, 4]).tolist() == [[0.0, np.inf]] * 2


def test_algorithm_1_trains_families_for_an_epoch():
    """As `train` does, with mined bounds; and the loss falls below log 2 an example, which chance gives."""
    data = cardkge.load_dataset("families")
    settings = cardkge.Settings(
        model="complex", dim=20, epochs=1, batches=30, accumulator=1e-3, dtype="float64", bounds="mined",
        sampling="importance", penalty_weight=0.01,
    )  # fmt: skip
    run, model = cardkge.new_run(settings, data), cardkge.new_run(settings, data).model
    (record,) = algorithm_1(model, data.train, settings, run.bounds)
    cardkge.train(run, data)
    for name, array in model.params.items():
        np.testing.assert_allclose(array, run.model.params[name], rtol=1e-9, atol=1e-9)
    assert record["loss"] == pytest.approx(run.history[0]["loss"], rel=1e-10)
    assert record["penalty"] == pytest.approx(run.history[0]["penalty"], rel=1e-10)
    assert record["loss"] * 30 / len(data.train) / 3 < 0.999 * np.log(2)


class TransE(cardkge.Model):
    """A model of somebody else's: phi = -||h + r - t||^2."""

    name = "transe"

    def phi(self, h, r, t):
        return -((h + r - t) ** 2).sum(-1)

    def d_phi(self, h, r, t, upstream, gradients):
        d = -2 * upstream[..., None] * (h + r - t)
        return d, d, -d

    def query_tails(self, h, r):
        return h + r

    def query_heads(self, r, t):
        return t - r

    def match(self, query, rows):
        return -((query[:, None] - rows) ** 2).sum(-1)


def test_any_model_trains_and_ranks(toy):
    """Model's own `d_pairs` serves the regulariser; the objective falls, and the ranks are better than at first."""
    settings = cardkge.Settings(dim=8, epochs=60, batches=3, project="none", sampling="exact", penalty_weight=0.01)
    model = TransE(toy.n_entities, toy.n_relations, dim=8, seed=1, dtype="float64")
    before = filtered_ranks(model, toy.test, toy.known).mean()
    history = algorithm_1(model, toy.train, settings, BOUNDS)
    assert history[-1]["objective"] < 0.5 * history[0]["objective"] and history[0]["penalty"] > 0
    assert filtered_ranks(model, toy.test, toy.known).mean() < 0.7 * before


@pytest.mark.parametrize("sampling, inclusion", SAMPLINGS)
@pytest.mark.parametrize("omega", [1, 4, 11, 40])
def test_the_samplers_draw_the_same_objects(toy, sampling, inclusion, omega):
    relations = np.array([0, 2])
    fast = ObjectSampler(sampling, toy.train, 12, 3, omega, inclusion)
    for seed in range(20):
        objects, weights = fast.draw(np.random.default_rng(seed), relations)
        plain = cardkge.draw_objects(np.random.default_rng(seed), sampling, toy.train, relations, 12, omega, inclusion)
        for row, counted, (ids, its_weights) in zip(objects, weights, plain, strict=True):
            assert row[: len(ids)].tolist() == ids.tolist() and not counted[len(ids) :].any()
            np.testing.assert_allclose(counted[: len(ids)], its_weights, rtol=1e-13)


@pytest.mark.parametrize("pool", ["relation", "entities"])
@pytest.mark.parametrize("mu", [1, 5, 12, 30])
def test_the_samplers_draw_the_same_subjects(toy, pool, mu):
    fast = SubjectSampler(pool, toy.train, 12, 3, mu)
    for seed in range(20):
        subjects, counts = fast.draw(np.random.default_rng(seed), np.arange(3))
        plain = cardkge.draw_subjects(np.random.default_rng(seed), pool, toy.train, np.arange(3), 12, mu)
        for row, count, ids in zip(subjects, counts, plain, strict=True):
            assert row[:count].tolist() == ids.tolist()


@pytest.mark.parametrize("sampling, inclusion", [pair for pair in SAMPLINGS if pair[0] in ("importance", "bernoulli")])
def test_plain_estimates_are_unbiased_with_the_known_variance(toy, make_model, sampling, inclusion):
    """Importance: (sum p^2 / q - X^2) / omega; Bernoulli: sum p^2 (1 - b) / b. 20,000 draws."""
    omega, relation = 4, 1
    model = make_model("distmult", 12, 3)
    p = cardkge.probability(model.score_tails([2], [relation]))[0]
    chance = cardkge.object_probabilities(sampling, toy.train, relation, 12, omega, inclusion)
    rng, found = np.random.default_rng(3), np.empty(20_000)
    for i in range(len(found)):
        ((objects, weights),) = cardkge.draw_objects(rng, sampling, toy.train, [relation], 12, omega, inclusion)
        found[i] = weights @ p[objects]
    if sampling == "importance":
        variance = ((p**2 / chance).sum() - p.sum() ** 2) / omega
    else:
        variance = (p**2 * (1 - chance) / chance).sum()
    assert found.mean() == pytest.approx(p.sum(), abs=4.5 * np.sqrt(variance / len(found)))
    assert found.var() == pytest.approx(variance, rel=0.06)


@pytest.mark.parametrize("ties", cardkge.TIES)
@pytest.mark.parametrize("integers", [False, True])
def test_plain_ranks_are_the_fast_ones(toy, make_model, model_name, ties, integers):
    """With ties (parameters of -1, 0, 1, and two equal rows) and without; raw and filtered; both sides."""
    model = make_model(model_name, 12, 3)
    if integers:
        for array in model.params.values():
            array[...] = np.sign(array) * (np.abs(array) > 0.6)
    model.params["entity"][4] = model.params["entity"][9]
    fast = rank_triples(model, toy.test, toy.known, ties)
    assert np.array_equal(filtered_ranks(model, toy.test, toy.known, ties), fast["filtered"])
    assert np.array_equal(filtered_ranks(model, toy.test, ties=ties), fast["raw"])


def test_plain_ranks_of_a_hand_made_table():
    """k = 1, relation 1: the score of (h, r, t) is the product of the entities' numbers."""
    model = cardkge.DistMult(5, 1, dim=1, dtype="float64")
    model.params["entity"][:, 0] = [1, 3, 2, 3, 2]
    model.params["relation"][...] = 1
    known = [(0, 0, 2), (0, 0, 1), (3, 0, 2)]
    # tails of (0, r): 1, known, the right 2, 3, 2: one above, one equal; heads of (r, 2): the right 2, 6, 4, known, 4
    for ties, expected in (("optimistic", [4, 2]), ("realistic", [4, 2.5]), ("pessimistic", [4, 3])):
        assert filtered_ranks(model, np.array([(0, 0, 2)]), known, ties).tolist() == [expected]
    assert filtered_ranks(model, np.array([(0, 0, 2)])).tolist() == [[5, 3.5]]
    model.params["entity"][4] = np.nan
    with pytest.raises(cardkge.CardkgeError, match="NaN"):
        filtered_ranks(model, np.array([(0, 0, 2)]))
