"""The plain forms in cardkge.py (Algorithm 1, samplers, ranks) and the fast ones are the same mathematics."""

import dataclasses
import itertools
import types

import numpy as np
import pytest
import reference
from conftest import draws_of_train

import cardkge
from cardkge import ObjectSampler, SubjectSampler, algorithm_1, filtered_ranks, rank_triples
from cardkge_tools.engine.batches import samplers_of
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
    history = algorithm_1(model, toy.train, settings, BOUNDS, draws_of_train(model, toy.train, settings, BOUNDS))
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
    draws = draws_of_train(model, data.train, settings, run.bounds)
    (record,) = algorithm_1(model, data.train, settings, run.bounds, draws)
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


# --- samplers: the textbook ones and the engine's, each held to the distribution by its inclusion and pair rates

DRAWS = 3000


def assert_rates(found, expected):
    """The mean of found (draws, ...), of zeros and ones, is as expected: within 4.5 standard errors and a few draws."""
    error = np.sqrt(expected * (1 - expected) / len(found))
    assert np.all(np.abs(found.mean(0) - expected) <= 4.5 * error + 5 / len(found) * (error > 0) + 1e-12)


def rates_of(samples, n):
    """(draws, N) and (draws, N, N) of samples of distinct ids: whether each is in, and each with each other."""
    taken = np.zeros((len(samples), n))
    for row, ids in zip(taken, samples, strict=True):
        assert len(set(ids)) == len(ids)
        row[ids] = 1
    return taken, taken[:, :, None] * taken[:, None, :]


def object_samples(form, sampling, inclusion, train, relation, omega):
    """[(objects, weights)] of DRAWS samples of a relation, by the definition or by the engine."""
    rng = np.random.default_rng(omega)
    if form == "plain":
        given = sampling, train, relation, 12, omega, inclusion
        return [cardkge.draw_objects(rng, *given) for _ in range(DRAWS)]
    drawn = ObjectSampler(sampling, train, 12, 3, omega, inclusion).draw(rng, np.full(DRAWS, relation))
    return [(objects[weights > 0], weights[weights > 0]) for objects, weights in zip(*drawn)]


@pytest.mark.parametrize("form", ["plain", "fast"])
@pytest.mark.parametrize("sampling, inclusion", SAMPLINGS)
@pytest.mark.parametrize("omega", [1, 4, 11])
def test_objects_are_drawn_at_the_rates_of_the_definition(toy, form, sampling, inclusion, omega):
    samples = object_samples(form, sampling, inclusion, toy.train, 1, omega)
    frequency = 1 + np.bincount(toy.train[toy.train[:, 1] == 1, 2], minlength=12)
    q = frequency / frequency.sum()
    if sampling == "importance":  # omega independent draws: of each place q, of two places q_i q_j
        objects = np.array([ids for ids, _ in samples])
        assert objects.shape == (DRAWS, omega)
        for ids, weights in samples:
            np.testing.assert_allclose(weights, 1 / (omega * q[ids]), rtol=1e-12)
        drawn = objects[..., None] == np.arange(12)
        assert_rates(drawn.reshape(-1, 12), q)
        if omega > 1:
            assert_rates(drawn[:, 0, :, None] & drawn[:, 1, None, :], np.outer(q, q))
        return
    b, pairs = {
        ("exact", "uniform"): (np.ones(12), np.ones((12, 12))),
        ("uniform", "uniform"): (np.full(12, omega / 12), np.full((12, 12), omega * (omega - 1) / (12 * 11))),
        ("bernoulli", "uniform"): (np.full(12, omega / 12), np.full((12, 12), (omega / 12) ** 2)),
    }.get((sampling, inclusion), (None, None))
    if b is None:
        b = reference.inclusion_probabilities(q, omega)
        pairs = np.outer(b, b)
    np.fill_diagonal(pairs, b)
    for ids, weights in samples:
        np.testing.assert_allclose(weights, 1 / b[ids] if sampling == "bernoulli" else 1, rtol=1e-9)
    taken, together = rates_of([ids for ids, _ in samples], 12)
    assert_rates(taken, b)
    assert_rates(together, pairs)


@pytest.mark.parametrize("form", ["plain", "fast"])
@pytest.mark.parametrize("pool", ["relation", "entities"])
@pytest.mark.parametrize("mu", [1, 5, 12, 30])
def test_subjects_are_drawn_uniformly_without_repetition(toy, form, pool, mu):
    rng = np.random.default_rng(mu)
    if form == "plain":
        samples = [cardkge.draw_subjects(rng, pool, toy.train, 1, 12, mu) for _ in range(DRAWS)]
    else:
        subjects, counts = SubjectSampler(pool, toy.train, 12, 3, mu).draw(rng, np.full(DRAWS, 1))
        samples = [row[:count] for row, count in zip(subjects, counts)]
    members = sorted({int(h) for h, r, _ in toy.train if r == 1}) if pool == "relation" else range(12)
    size, take = len(members), min(mu, len(members))
    assert all(len(ids) == take for ids in samples)
    inside = np.isin(np.arange(12), members)
    taken, together = rates_of(samples, 12)
    expected = np.outer(inside, inside) * take * (take - 1) / (size * max(size - 1, 1))
    np.fill_diagonal(expected, inside * take / size)
    assert_rates(taken, inside * take / size)
    assert_rates(together, expected)


def test_algorithm_1_draws_by_the_book(toy):
    """Each epoch shuffles the triples, corrupts each at tail and head in turn, and samples for the bounded relations;
    from the seed and the epoch alone."""
    settings = cardkge.Settings(batches=4, negatives=3, subjects=3, objects=5, seed=3)

    def drawn(epoch):
        rng = np.random.default_rng([settings.seed, epoch])
        return list(cardkge.draw_epoch(rng, toy.train, ([0, 1], [2]), (12, 3), settings))

    steps = drawn(0)
    positives = np.concatenate([np.stack([part[:, 0] for part in step[:3]], 1) for step in steps])
    assert len(steps) == 4 and sorted(positives.tolist()) == sorted(toy.train.tolist())
    assert positives.tolist() != toy.train.tolist()
    for heads, relations, tails, samples in steps:
        assert heads.shape == relations.shape == tails.shape == (len(heads), 4)
        assert (relations == relations[:, :1]).all()
        assert (heads[:, [1, 3]] == heads[:, :1]).all() and (tails[:, 2] == tails[:, 0]).all()
        assert [(r, inverse) for r, *_, inverse in samples] == [(0, False), (1, False), (2, True)]
        for r, subjects, objects, weights, inverse in samples:
            pool = toy.train[toy.train[:, 1] == r][:, 2 if inverse else 0]
            assert len(subjects) == min(3, len(set(pool.tolist()))) and set(subjects) <= set(pool.tolist())
            assert len(objects) == len(weights) == 5
    for one, other in zip(steps, drawn(0), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one[:3], other[:3]))
    assert not np.array_equal(steps[0][0], drawn(1)[0][0])
    runs = [cardkge.new_run(settings, toy, BOUNDS).model for _ in range(2)]
    histories = [algorithm_1(model, toy.train, dataclasses.replace(settings, epochs=2), BOUNDS) for model in runs]
    assert histories[0] == histories[1] and histories[0][0]["penalty"] > 0


# --- a name that is none is an error, in settings and in every function that looks it up


@pytest.mark.parametrize(
    "name, typo, allowed",
    [
        ("loss", "logstic", "logistic, hinge, softmax"),
        ("optimizer", "Adagrad", "adagrad, sgd"),
        ("project", "units", "unit, none"),
        ("sampling", "exakt", "exact, uniform, importance, bernoulli"),
        ("schedule", "lat", "constant, late"),
        ("inclusion", "frequent", "frequency, uniform"),
        ("subject_pool", "heads", "relation, entities"),
    ],
)
def test_a_typo_is_an_error_everywhere(toy, name, typo, allowed):
    message = f"^{name} must be one of {allowed}; found {typo}$"
    with pytest.raises(cardkge.CardkgeError, match=message):
        cardkge.Settings(**{name: typo})
    usual = cardkge.Settings(dim=2, epochs=1, batches=1, objects=2)
    loose = types.SimpleNamespace(**vars(usual) | {name: typo})  # whatever reaches the functions by another way
    message = message.replace(", softmax", "")
    model = cardkge.DistMult(12, 3, dim=2)
    with pytest.raises(cardkge.CardkgeError, match=message):
        algorithm_1(model, toy.train, loose, BOUNDS)
    accumulators, rng, ids = model.zero_gradients(), np.random.default_rng(0), np.zeros((1, 2), int)
    with pytest.raises(cardkge.CardkgeError, match=message):
        {
            "loss": lambda: cardkge.objective(model, ids, ids, ids, loose),
            "optimizer": lambda: cardkge.update_params(model, accumulators, model.zero_gradients(), loose, 0.1),
            "project": lambda: cardkge.update_params(model, accumulators, model.zero_gradients(), loose, 0.1),
            "sampling": lambda: cardkge.draw_objects(rng, typo, toy.train, 0, 12, 2),
            "schedule": lambda: cardkge.learning_rate(loose, 0, 0.5),
            "inclusion": lambda: cardkge.object_probabilities("exact", toy.train, 0, 12, 2, typo),
            "subject_pool": lambda: cardkge.draw_subjects(rng, typo, toy.train, 0, 12, 2),
        }[name]()
    if name != "schedule":  # the rate is given to a step
        ends = np.zeros((1, 3, 2), np.int32)
        with pytest.raises(cardkge.CardkgeError, match=message), cardkge.Threads(1) as threads:
            samplers_of(toy.train, (12, 3), loose)
            trainer = cardkge.Trainer(model, accumulators, loose, BOUNDS, toy.train, threads)
            trainer.step((ends, np.zeros(1, np.int32), []), 0.1)


def test_softmax_has_an_objective_and_a_loop_of_its_own(toy):
    settings, ids = cardkge.Settings(loss="softmax"), np.zeros((1, 2), int)
    model = cardkge.DistMult(12, 3, dim=2)
    with pytest.raises(cardkge.CardkgeError, match=r"cardkge\.softmax_objective.*softmax_loop"):
        cardkge.objective(model, ids, ids, ids, settings)
    with pytest.raises(cardkge.CardkgeError, match=r"cardkge\.softmax_loop"):
        algorithm_1(model, toy.train, settings)
    with pytest.raises(cardkge.CardkgeError, match=r"settings\.resolved"):
        cardkge.softmax_objective(model, toy.train, np.zeros(len(toy.train), int), settings)


def test_settings_are_frozen():
    settings = cardkge.Settings(loss="softmax")
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.epochs = 3
    assert settings.model == "complex" and settings.epochs is None
    with pytest.raises(cardkge.CardkgeError, match="epochs must be a finite number, at least 0; found -1"):
        dataclasses.replace(settings, epochs=-1)


@pytest.mark.parametrize("sampling, inclusion", [pair for pair in SAMPLINGS if pair[0] in ("importance", "bernoulli")])
def test_plain_estimates_are_unbiased_with_the_known_variance(toy, make_model, sampling, inclusion):
    """Importance: (sum p^2 / q - X^2) / omega; Bernoulli: sum p^2 (1 - b) / b. 20,000 draws."""
    omega, relation = 4, 1
    model = make_model("distmult", 12, 3)
    p = cardkge.probability(model.score_tails([2], [relation]))[0]
    chance = cardkge.object_probabilities(sampling, toy.train, relation, 12, omega, inclusion)
    rng, found = np.random.default_rng(3), np.empty(20_000)
    for i in range(len(found)):
        objects, weights = cardkge.draw_objects(rng, sampling, toy.train, relation, 12, omega, inclusion)
        found[i] = weights @ p[objects]
    if sampling == "importance":
        variance = ((p**2 / chance).sum() - p.sum() ** 2) / omega
    else:
        variance = (p**2 * (1 - chance) / chance).sum()
    assert found.mean() == pytest.approx(p.sum(), abs=4.5 * np.sqrt(variance / len(found)))
    assert found.var() == pytest.approx(variance, rel=0.06)


def test_unknown_ties_are_an_error(toy, make_model):
    with pytest.raises(cardkge.CardkgeError, match=r"ties must be one of realistic, optimistic, .*; found mean"):
        filtered_ranks(make_model("distmult", 12, 3), toy.test, ties="mean")


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
