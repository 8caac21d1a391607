"""Softmax over all entities: the definition against differences and PyTorch, the engine against the definition."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from gradcheck import check_gradients

import cardkge
import cli
from cardkge import (
    ERMLP,
    CardkgeError,
    ComplEx,
    DistMult,
    Settings,
    Threads,
    draw_candidates,
    filtered_ranks,
    probability,
    rank_triples,
    softmax_loop,
    softmax_loss,
    softmax_objective,
    without_loops,
)
from cardkge_tools.definitions import softmax as definition
from cardkge_tools.engine import softmax as engine
from cardkge_tools.engine.batches import group_queries
from cardkge_tools.graph.bounds import Bound, GraphBounds

N, R, DIM = 9, 3, 4
MODELS = [DistMult, ComplEx, ERMLP]


def make(kind, reciprocal=False, seed=0, n=N, dim=DIM):
    options = {"hidden": 5} if kind is ERMLP else {}
    return kind(n, R, dim=dim, seed=seed, dtype="float64", reciprocal=reciprocal, **options)


def make_batch(seed=1, size=14, n=N):
    rng = np.random.default_rng(seed)
    triples = np.stack((rng.integers(0, n, size), rng.integers(0, R, size), rng.integers(0, n, size)), 1)
    triples[1] = triples[0]  # twice the same query and answer
    triples[2, :2] = triples[0, :2]  # the same query, perhaps another answer
    triples[3] = [2, 2, 2]  # the given entity is the answer
    triples[5] = triples[0]  # the same once more, after another answer
    return triples, np.append([1, 1, 1, *rng.integers(0, 2, 2), 1], rng.integers(0, 2, size - 6))


def settings_of(**options):
    return Settings(**{"loss": "softmax", "n3": 0.05, "l2": 0.03, "dtype": "float64"} | options).resolved(N, R, 20)


BOUNDS = np.array([[0.0, 2.0], [5.0, np.inf], [0.0, np.inf]])


def cases():
    for kind in MODELS:
        for reciprocal in (False, True):
            for case in ("all", "candidates", "loops", "penalty", "relations"):
                yield pytest.param(kind, reciprocal, case, id=f"{kind.name}-{reciprocal}-{case}")


def arguments_of(case, model, triples):
    """(settings, further arguments of softmax_objective) of a case."""
    if case == "candidates":
        needed = np.unique(triples[:, ::2])
        candidates = draw_candidates(np.random.default_rng(3), model.n_entities, needed, 2)
        return settings_of(), {"candidates": candidates}
    if case == "loops":
        return settings_of(relation_weight=0.5), {"loopless": np.array([True, False, True])}
    if case == "penalty":
        return settings_of(penalty_weight=0.7, relation_weight=0.3), {"bounds": BOUNDS}
    if case == "relations":
        candidates = draw_candidates(np.random.default_rng(5), model.n_entities, triples[:, ::2], 2)
        assert len(candidates[0]) < model.n_entities
        return settings_of(relation_weight=1.5), {"candidates": candidates}
    return settings_of(), {}


@pytest.mark.parametrize("kind, reciprocal, case", list(cases()))
def test_gradients_are_those_of_the_objective(kind, reciprocal, case):
    model = make(kind, reciprocal)
    triples, sides = make_batch()
    if case in ("candidates", "relations"):
        triples[:, ::2] %= 5
    settings, options = arguments_of(case, model, triples)

    def value():
        return softmax_objective(model, triples, sides, settings, **options)[0]["objective"]

    parts, gradients = softmax_objective(model, triples, sides, settings, **options)
    assert parts["loss"] > 0 and parts["n3"] > 0 and parts["l2"] > 0 and (parts["penalty"] > 0) == (case == "penalty")
    check_gradients(value, model.params, gradients)


def trainer_of(model, settings, threads, bounds=None, loopless=None):
    accumulators = {}
    if settings.optimizer == "adagrad":
        accumulators = {name: np.full_like(array, 0.1) for name, array in model.params.items()}
    bounds = np.tile([0.0, np.inf], (R, 1)) if bounds is None else bounds
    trainer = cardkge.Trainer(model, accumulators, settings, bounds, np.zeros((0, 3), int), threads)
    trainer.gradients.loopless = loopless
    return trainer


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("kind, reciprocal, case", list(cases()))
def test_a_step_is_the_definition_followed_by_the_optimiser(kind, reciprocal, case, optimizer, monkeypatch):
    for block, scores, answers in ((64, 2**24, 8), (4, 60, 1)):
        monkeypatch.setattr(definition, "ANSWERS", answers)
        monkeypatch.setattr(engine, "BLOCK", block)
        monkeypatch.setattr(engine, "SCORES", scores)
        model, twin = make(kind, reciprocal), make(kind, reciprocal)
        triples, sides = make_batch()
        if case in ("candidates", "relations"):
            triples[:, ::2] %= 5
        settings, options = arguments_of(case, model, triples)
        settings = replace(settings, optimizer=optimizer, project="none", learning_rate=0.05)
        expected, gradients = softmax_objective(twin, triples, sides, settings, **options)
        for name, array in twin.params.items():
            if optimizer == "sgd":
                cardkge.sgd_step(array, gradients[name], 0.05)
            else:
                cardkge.adagrad_step(array, np.full_like(array, 0.1), gradients[name], 0.05)
        with Threads(1) as threads:
            trainer = trainer_of(model, settings, threads, options.get("bounds"), options.get("loopless"))
            found = trainer.step((group_queries(model, triples, sides), options.get("candidates")))
        assert found == pytest.approx(expected, rel=1e-12)
        for name, array in model.params.items():
            np.testing.assert_allclose(array, twin.params[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("triples, sides", [
    ([[5, 0, 1], [5, 1, 2], [5, 1, 3]], [1, 1, 1]),  # the queries (5, 0, ?) and, in two rows, (5, 1, ?)
    ([[1, 0, 5], [3, 1, 5], [2, 1, 5]], [0, 0, 0]),  # (?, 0, 5) and, in two rows, (?, 1, 5)
    ([[5, 0, 1], [2, 0, 5]], [1, 0]),  # (5, 0, ?) and (?, 0, 5)
])  # fmt: skip
def test_the_bounds_of_a_query_count_once_for_all_its_rows(monkeypatch, reciprocal, triples, sides):
    """All sums exceed their bounds, which are half of them for entity 5: the penalty is half of both sums."""
    monkeypatch.setattr(definition, "ANSWERS", 1)
    model, triples = make(DistMult, reciprocal), np.array(triples)
    sums, limits = [], []
    for k, tail_open in sorted(set(zip(triples[:, 1].tolist(), sides, strict=True))):
        scores = model.score_tails([5], [k]) if tail_open else model.score_heads([k], [5])
        sums.append(probability(scores).sum())
        limits.append(Bound(f"r{k}", 0, sums[-1] / 2, inverse=not tail_open))
    bounds = GraphBounds(limits, [f"r{k}" for k in range(R)])
    with Threads(1) as threads:
        trainer = trainer_of(model, settings_of(penalty_weight=0.7), threads, bounds)
        found = trainer.step((group_queries(model, triples, np.array(sides)), None))
    assert found["penalty"] == pytest.approx(sum(sums) / 2, rel=1e-12) and len(sums) == 2


# --- parts of the definition


def test_a_loss_by_hand():
    """Scores 0, ln 2, ln 5: softmax 1/8, 2/8, 5/8."""
    value, gradient = softmax_loss(np.log([[1.0, 2.0, 5.0]]), np.array([1]))
    assert value == pytest.approx(np.log(4), rel=1e-14)
    np.testing.assert_allclose(gradient, [[0.125, -0.75, 0.625]], rtol=1e-13)
    value, _ = softmax_loss(np.array([[1000.0, -1000.0, -np.inf]]), np.array([1]))
    assert value == 2000


def test_n3_by_hand():
    """The complex numbers 3 + 4i and 6 + 8i have the moduli 5 and 10; one query of h = t, r with modulus 1."""
    model = ComplEx(1, 1, dim=2, dtype="float64")
    model.params["entity"][:] = [[3, 6, 4, 8]]
    model.params["relation"][:] = [[1, 0, 0, 0]]
    parts, _ = softmax_objective(model, [[0, 0, 0]], [1], settings_of(n3=2.0, l2=0.0))
    assert parts["n3"] == 2 * (2 * (125 + 1000) + 1) and parts["loss"] == 0


def test_the_loss_of_relations_by_hand():
    """Scores 0 and ln 2 of (0, ?, 1): softmax 1/3, 2/3; both sides ask."""
    model = DistMult(2, 2, dim=1, dtype="float64")
    model.params["entity"][:], model.params["relation"][:] = [[2], [3]], [[0], [np.log(2) / 6]]
    without, some = (settings_of(n3=0.0, l2=0.0, relation_weight=weight) for weight in (0, 4.0))
    for side in (0, 1):
        alone, parts = (softmax_objective(model, [[0, 1, 1]], [side], of)[0] for of in (without, some))
        assert parts["loss"] - alone["loss"] == pytest.approx(4 * np.log(1.5), rel=1e-13)
        assert parts["objective"] == parts["loss"]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("reciprocal", [False, True])
def test_the_loss_of_relations_is_that_of_the_scores(kind, reciprocal):
    """Of a reciprocal model all 2 R rows are asked, as those of a model with 2 R relations, and (t, r + R, h)."""
    model, (triples, sides) = make(kind, reciprocal), make_batch()
    twin = kind(N, len(model.params["relation"]), dim=DIM, dtype="float64", **({"hidden": 5} if kind is ERMLP else {}))
    twin.params = model.params
    expected, every = 0.0, np.arange(twin.n_relations)
    for (h, r, t), side in zip(triples.tolist(), sides):
        turned = reciprocal and side == 0
        h, r, t = (t, r + R, h) if turned else (h, r, t)
        scores = twin.score(np.full_like(every, h), every, np.full_like(every, t))
        expected += np.logaddexp.reduce(scores) - scores[r]
    losses = [
        softmax_objective(model, triples, sides, settings_of(relation_weight=weight))[0]["loss"] for weight in (0, 0.7)
    ]
    assert losses[1] - losses[0] == pytest.approx(0.7 * expected, rel=1e-12)


def test_candidates_hold_what_is_needed_and_are_as_likely_as_their_weights_say():
    rng, needed, counts = np.random.default_rng(0), np.array([7, 2, 2, 4]), np.zeros(12)
    for _ in range(3000):
        ids, log_weights = draw_candidates(rng, 12, needed, 3)
        assert ids[:3].tolist() == [2, 4, 7] and len(set(ids)) == 6 and (np.diff(ids[3:]) > 0).all()
        counts[ids] += 1
    assert (log_weights[:3] == 0).all() and np.exp(-log_weights[3:]) == pytest.approx(3 / 9)
    others = np.delete(counts, [2, 4, 7]) / 3000
    assert np.abs(others - 1 / 3).max() < 4 * np.sqrt(2 / 9 / 3000)
    ids, log_weights = draw_candidates(rng, 12, needed, 100)
    assert sorted(ids) == list(range(12)) and (log_weights == 0).all()


def test_the_partition_function_of_candidates_is_unbiased():
    rng, scores = np.random.default_rng(1), np.random.default_rng(2).normal(size=40)
    sums = []
    for _ in range(4000):
        ids, log_weights = draw_candidates(rng, 40, [3, 8], 6)
        sums.append(np.exp(scores[ids] + log_weights).sum())
    error = np.std(sums) / np.sqrt(len(sums))
    assert error > 0 and abs(np.mean(sums) - np.exp(scores).sum()) < 4 * error


def test_relations_without_loops():
    assert without_loops([[0, 0, 1], [2, 1, 2], [1, 0, 2]], 3).tolist() == [True, False, True]


def test_a_loop_is_no_candidate_but_may_be_an_answer():
    model, settings = make(DistMult), settings_of(n3=0.0, l2=0.0)
    scores = model.score_tails([2], [0])[0]
    loopless = np.ones(R, bool)
    loss = softmax_objective(model, [[2, 0, 5]], [1], settings, loopless=loopless)[0]["loss"]
    assert loss == pytest.approx(np.log(np.exp(np.delete(scores, 2)).sum()) - scores[5])
    loss = softmax_objective(model, [[2, 0, 2]], [1], settings, loopless=loopless)[0]["loss"]
    assert loss == pytest.approx(np.log(np.exp(scores).sum()) - scores[2])


# --- the engine


@pytest.mark.parametrize("kind", MODELS)
def test_a_query_may_be_split_into_rows_or_not(kind):
    """A batch grouped is the sum of its queries one by one: value and gradients."""
    model, (triples, sides) = make(kind), make_batch()
    settings = settings_of()
    whole, gradients = softmax_objective(model, triples, sides, settings)
    value, total = 0.0, model.zero_gradients()
    for i in range(len(triples)):
        parts, d = softmax_objective(model, triples[i : i + 1], sides[i : i + 1], settings)
        value += parts["objective"]
        for name in total:
            total[name] += d[name]
    assert whole["objective"] == pytest.approx(value, rel=1e-12)
    queries = group_queries(model, triples, sides)
    assert len(queries.given) < len(triples) == len(queries.answers)
    for name in total:
        np.testing.assert_allclose(gradients[name], total[name], rtol=1e-11, atol=1e-12)


def test_a_row_has_eight_answers_at_most():
    """Ten tails of (0, 1), between them the tails of two other queries, and heads of (1, 3)."""
    triples = np.array([[0, 1, i] for i in range(5)] + [[2, 1, 4], [0, 0, 4]] + [[0, 1, 8 - i] for i in range(5)])
    rows = definition.rows_of(make(DistMult), np.append(triples, [[3, 1, 5], [6, 1, 5]], 0), np.repeat([1, 0], [12, 2]))
    assert rows.tolist() == [2, 2, 2, 2, 2, 4, 1, 2, 2, 2, 3, 3, 0, 0]


def test_each_row_is_in_one_batch():
    order, limits = definition.shuffle_queries(Settings(loss="softmax"), 0, np.array([1, 3, 1, 1, 2]), 2)
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4] and limits[0] == 0 and limits[-1] == 5
    assert definition.shuffle_queries(Settings(loss="softmax"), 0, np.ones(4, int), 2)[1].tolist() == [0, 2, 4]


def graph(n=60, relations=3, size=300, seed=4):
    """A Dataset of random triples, without a folder."""
    rng = np.random.default_rng(seed)
    triples = np.unique(rng.integers(0, (n, relations, n), (size, 3)), axis=0).astype(np.int32)
    triples = triples[(triples[:, 0] != triples[:, 2]) | (triples[:, 1] == 1)]
    rng.shuffle(triples)
    names = [[f"{kind}{i}" for i in range(count)] for kind, count in (("e", n), ("r", relations))]
    return cardkge.Dataset("random", None, *names, triples[:-40], triples[-40:-20], triples[-20:])


RUNS = [
    {},
    {"softmax_candidates": 10, "relation_weight": 0.5},
    {"model": "distmult", "no_loops": True, "reciprocal": False, "optimizer": "sgd", "learning_rate": 0.01},
    {"model": "ermlp", "hidden": 6, "accumulator": 0.1, "dim": 5, "relation_weight": 2.0},
    {"bounds": "mined", "penalty_weight": 0.1, "dtype": "float64"},
    {"batch_size": 1, "epochs": 2},
]


def new_run(dataset, monkeypatch=None, **options):
    options = {"loss": "softmax", "dim": 7, "epochs": 3, "batch_size": 64} | options
    settings = Settings(**options)
    bounds = cardkge.mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations)
    bounds[:, 1] /= 4
    from cardkge_tools.answers import runs

    described = runs.describe_data
    try:
        runs.describe_data = lambda dataset: {}
        return runs.new_run(settings, dataset, bounds if settings.bounds == "mined" else None)
    finally:
        runs.describe_data = described


@pytest.mark.parametrize("options", RUNS)
def test_training_is_the_plain_loop(options, monkeypatch):
    monkeypatch.setattr(definition, "ANSWERS", 2)
    dataset = graph()
    run = new_run(dataset, **options | {"dtype": "float64"})
    twin = copy.deepcopy(run.model)
    history = softmax_loop(twin, dataset.train, run.settings, run.bounds)
    cardkge.train(run, dataset, threads=1)
    for record, expected in zip(run.history, history, strict=True):
        assert {name: record[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    for name, array in run.model.params.items():
        np.testing.assert_allclose(array, twin.params[name], rtol=1e-7, atol=1e-9)
    assert run.history[-1]["loss"] < run.history[0]["loss"]


@pytest.mark.parametrize("options", RUNS)
def test_threads_and_interruptions_change_no_bit(options, monkeypatch):
    monkeypatch.setattr(engine, "BLOCK", 8)
    monkeypatch.setattr(engine, "SCORES", 2000)
    monkeypatch.setattr(engine, "COLUMNS", 16)
    dataset = graph()
    whole, parts = new_run(dataset, **options), new_run(dataset, **options)
    assert cardkge.train(whole, dataset, threads=1) == "finished"
    steps = 0

    def stop():
        nonlocal steps
        steps += 1
        return steps % 4 == 0

    while cardkge.train(parts, dataset, threads=3, stop=stop) == "stopped":
        pass
    assert steps > 8
    for name, array in whole.model.params.items():
        assert array.tobytes() == parts.model.params[name].tobytes(), name
    assert whole.best["epoch"] == parts.best["epoch"] and whole.history[0]["n3"] == parts.history[0]["n3"]


def test_ranks_of_a_reciprocal_model_and_without_loops():
    dataset = graph()
    for kind in MODELS:
        model = make(kind, reciprocal=True, n=60)
        ranks = rank_triples(model, dataset.test, dataset.known, threads=1)
        np.testing.assert_array_equal(ranks["raw"], filtered_ranks(model, dataset.test))
        np.testing.assert_array_equal(ranks["filtered"], filtered_ranks(model, dataset.test, dataset.known))
        heads = model.score(dataset.test[:, 2], dataset.test[:, 1] + R, dataset.test[:, 0])
        every = model.score_heads(dataset.test[:, 1], dataset.test[:, 2])
        np.testing.assert_allclose(every[np.arange(len(every)), dataset.test[:, 0]], heads, rtol=1e-10, atol=1e-12)
        loopless = without_loops(dataset.train, R)
        assert loopless.tolist() == [True, False, True]
        candidates = cardkge.Candidates(loopless)
        masked = rank_triples(model, dataset.test, dataset.known, threads=1, candidates=candidates)["filtered"]
        for side in range(2):  # as if the loop were known to be true
            loops = dataset.test[loopless[dataset.test[:, 1]]].copy()
            loops[:, 2 * side] = loops[:, 2 - 2 * side]
            known = np.concatenate((dataset.known, loops))
            np.testing.assert_array_equal(masked[:, side], filtered_ranks(model, dataset.test, known)[:, side])
        assert (masked < ranks["filtered"]).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_coefficients_are_the_definition(dtype):
    """Rows with several answers, one of them twice, a masked column, weighted candidates and what the penalty adds; and
    an answer that is as good as certain: its gradient, softmax - 1, is no difference of rounded numbers."""
    rng, m, needed, log_weight = np.random.default_rng(0), 300, 100, 1.5
    scores = rng.normal(0, 3, (4, m)).astype(dtype)
    scores[3, 64:96], scores[3, 90] = -40, 20  # sums are of 32 columns at first, which float32 rounds
    rows, answers = np.array([0, 1, 1, 1, 1, 2, 3]), np.array([7, 3, 50, 50, 90, 12, 90])
    log_weights = np.where(np.arange(m) < needed, 0, log_weight).astype(dtype)
    bounds = np.array([[0, 10**6], [600, 700], [0, 9.5], [0, np.inf]])  # met, broken, broken, none
    options = {"log_weights": log_weights, "bounds": bounds, "weight": 0.5}
    targets = engine.Targets.of(rows, answers, 4, np.array([-1, -1, 4, 200]), **options)
    found, values, penalties = scores.copy(), np.zeros(4), np.zeros(4)
    for part in (slice(0, 3), slice(3, 4)):
        values[part], penalties[part] = targets.coefficients(part.start, found[part], 0.7)

    p, weights = probability(scores.astype(float)), np.exp(log_weights.astype(float))
    sums = p @ weights
    assert penalties == pytest.approx([0, 600 - sums[1], sums[2] - 9.5, 0], rel=1e-6) and penalties[1:3].min() > 1
    d_penalty = 0.7 * np.array([[0], [-1], [1], [0]]) * weights * p * (1 - p)
    exact = scores.astype(float)
    exact[2, 4] = exact[3, 200] = -np.inf
    tolerance = 1e-11 if dtype == "float64" else 4e-6
    for i in range(4):
        of = answers[rows == i]
        value, gradient = softmax_loss(np.tile(exact[i], (len(of), 1)), of, log_weights)
        assert values[i] == pytest.approx(0.5 * value, rel=tolerance, abs=tolerance / 10)
        least = tolerance / 10 if penalties[i] else 1e-30  # 1 - p is a difference
        np.testing.assert_allclose(found[i], 0.5 * gradient.sum(0) + d_penalty[i], tolerance, least)
    assert -1e-3 < found[3, 90] < 0


# --- settings


def test_what_is_not_given_follows_from_the_sizes(monkeypatch):
    paper = Settings()
    assert (paper.model, paper.learning_rate, paper.accumulator, paper.epochs) == ("distmult", 0.1, 0.1, 200)
    assert paper.resolved(10, 2, 5) == paper
    settings = Settings(loss="softmax")
    assert settings.model == "complex" and settings.learning_rate is None
    small, large = settings.resolved(135, 46, 5216), settings.resolved(40943, 11, 86835)
    assert small.softmax_candidates == 0 and large.softmax_candidates == 2558
    assert (small.epochs, large.epochs) == (37, 30) and settings.resolved(10_000, 9, 10**6).softmax_candidates == 2048
    assert (small.n3, large.n3) == (0.01, 0.1)
    assert [settings.resolved(2500, 9, n).n3 for n in (50_000, 9_000, 2500)] == [0.01, 0.06, 0.1]
    assert None not in (small.dim, small.batch_size, small.epochs, small.reciprocal, small.penalty_weight)
    given = Settings(loss="softmax", n3=0.0, softmax_candidates=0, reciprocal=False, epochs=3, batches=10)
    found = given.resolved(40943, 11, 86835)
    assert (found.n3, found.softmax_candidates, found.reciprocal, found.epochs) == (0.0, 0, False, 3)
    assert found.batch_size == 17367 and found.validate_every == 1
    sizes = ((14541, 237, 272115), (14541, 99, 272115), (8192, 237, 272115))
    assert [settings.resolved(*size).relation_weight for size in sizes] == [1.0, 0.0, 0.0]
    assert [settings.resolved(*size).n3 for size in sizes] == [0.06, 0.01, 0.01]
    assert [settings.resolved(n, 9, 10**6).dim for n in (20_000, 20_001, 100_000, 100_001)] == [512, 256, 256, 100]
    monkeypatch.setitem(cardkge.MODELS, ":Own", None)
    expected = {"distmult": (512, 37, 0.06, 1), "ermlp": (100, 60, 0, 0), ":Own": (100, 60, 0.06, 0)}
    for model, found in expected.items():
        settings = Settings(loss="softmax", model=model)
        small, large = settings.resolved(135, 46, 5216), settings.resolved(*sizes[0])
        assert (small.dim, small.epochs, large.n3, large.relation_weight) == found


@pytest.mark.parametrize(
    "name, value",
    [("n3", 0.1), ("reciprocal", True), ("relation_weight", 1.0), ("softmax_candidates", 5), ("no_loops", True)],
)
def test_what_is_for_softmax_is_refused_elsewhere(name, value):
    with pytest.raises(CardkgeError, match=f"{name} is for the softmax loss"):
        Settings(**{name: value})


# --- the commands


def write_graph(folder):
    folder.mkdir()
    dataset = graph()
    for split in ("train", "valid", "test"):
        lines = [
            f"{dataset.entities[h]}\t{dataset.relations[r]}\t{dataset.entities[t]}\n"
            for h, r, t in getattr(dataset, split)
        ]
        (folder / f"{split}.txt").write_text("".join(lines))
    return folder


def command(*arguments):
    result = CliRunner().invoke(cli.main, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


def test_the_commands_with_softmax(tmp_path):
    """train says what it chose and resumes; evaluate, predict, violations, history and tune take its runs."""
    folder, run = write_graph(tmp_path / "graph"), tmp_path / "run"
    options = ["--loss", "softmax", "--data", folder, "--dim", 6]
    output = command("train", *options, "--epochs", 2, "--no-loops", "--out", run)
    assert "model complex" in output and "reciprocal True" in output and "dim" not in output.partition("\n")[0]
    command("train", "--resume", "--epochs", 3, "--out", run)
    config = json.loads((run / "config.json").read_text())
    assert config["epoch"] == 3 and config["settings"]["no-loops"] and config["settings"]["lambda"] == 0
    loaded = cardkge.load_run(run)
    assert loaded.model.params["relation"].shape == (2 * R, 12) and loaded.model.n_relations == R
    assert {record["epoch"] for record in loaded.history} == {1, 2, 3} and "n3" in loaded.history[0]
    report = tmp_path / "report.json"
    command("evaluate", run, "--json", report)
    saved = json.loads((run / "metrics.json").read_text())
    assert json.loads(report.read_text())["filtered"]["both"] == saved["filtered"]["both"]
    assert "bound" in command("predict", run, "--relation", "r0", "--tail", "e3", "--top", 60)
    loops = [
        line
        for line in command("predict", run, "--relation", "r0", "--head", "e3", "--top", 60).split("\n")
        if " e3 " in line
    ]
    assert not loops
    command("violations", run)
    command("history", run)
    output = command(
        "tune",
        *options,
        "--epochs",
        2,
        "--grid",
        "n3=0,0.1",
        "--grid",
        "reciprocal=true,false",
        "--out",
        tmp_path / "t",
    )
    assert "chosen" in output and len(list((tmp_path / "t").glob("*/config.json"))) == 4


OF_SOFTMAX = ["schedule", "n3", "reciprocal", "relation-weight", "softmax-candidates", "no-loops"]


@pytest.mark.parametrize("options, later", [
    ([], OF_SOFTMAX), (["--loss", "softmax", "--relation-weight", 0.5, "--schedule", "constant"], ["relation-weight"]),
])  # fmt: skip
def test_a_run_from_before_a_setting_is_read(tmp_path, options, later):
    """Its config.json and state know nothing of the settings that came later, whatever these are by the sizes now."""
    folder, run = write_graph(tmp_path / "graph"), tmp_path / "run"
    command("train", "--data", folder, "--dim", 4, "--epochs", 1, *options, "--out", run)
    config = json.loads((run / "config.json").read_text())
    for name in later:
        del config["settings"][name]
    (run / "config.json").write_text(json.dumps(config))
    with np.load(run / "model.npz") as stored:
        arrays = dict(stored)
    state = json.loads(arrays["state"].tobytes())
    for name in later:
        del state["settings"][name]
    arrays["state"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    np.savez(run / "model.npz", **arrays)
    settings = cardkge.load_run(run).settings
    assert settings.schedule == "constant" and settings.relation_weight == 0
    assert options or (settings.n3 == 0 and not settings.reciprocal)
    command("train", "--resume", "--epochs", 2, "--out", run)
