import numpy as np
import pytest
from gradcheck import check_gradients

import cardkge
from cardkge import ERMLP, ComplEx, DistMult, Settings, Threads
from cardkge_tools.engine import softmax as engine
from softmax_definition import draw_candidates, softmax_objective, without_loops

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
    return triples, np.append([1, 1, 1], rng.integers(0, 2, size - 3))


def settings_of(**options):
    return Settings(**{"loss": "softmax", "softmax_cut": 0.0, "n3": 0.05, "l2": 0.03, "dtype": "float64"} | options)


BOUNDS = np.array([[0.0, 2.0], [5.0, np.inf], [0.0, np.inf]])


def cases():
    for kind in MODELS:
        for reciprocal in (False, True):
            for case in ("all", "candidates", "loops", "penalty"):
                yield pytest.param(kind, reciprocal, case, id=f"{kind.name}-{reciprocal}-{case}")


def arguments_of(case, model, triples):
    """(settings, further arguments of softmax_objective) of a case."""
    if case == "candidates":
        needed = np.unique(triples[:, ::2])
        candidates = draw_candidates(np.random.default_rng(3), model.n_entities, needed, 2)
        return settings_of(), {"candidates": candidates}
    if case == "loops":
        return settings_of(), {"loopless": np.array([True, False, True])}
    if case == "penalty":
        return settings_of(penalty_weight=0.7), {"bounds": BOUNDS}
    return settings_of(), {}


@pytest.mark.parametrize("kind, reciprocal, case", list(cases()))
def test_gradients_are_those_of_the_objective(kind, reciprocal, case):
    model = make(kind, reciprocal)
    triples, sides = make_batch()
    if case == "candidates":
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
    return engine.SoftmaxTrainer(model, accumulators, settings, bounds, None, threads, loopless)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("cut", [0.0, 0.08])
@pytest.mark.parametrize("kind, reciprocal, case", list(cases()))
def test_a_step_is_the_definition_followed_by_the_optimiser(kind, reciprocal, case, cut, optimizer, monkeypatch):
    if cut:  # of so few entities most entries count; dense or listed, it is the same
        monkeypatch.setattr(engine, "DENSE", 2.0)
    for block, tile in ((64, 2**24), (4, 60)):
        monkeypatch.setattr(engine, "BLOCK", block)
        monkeypatch.setattr(engine, "TILE", tile)
        model, twin = make(kind, reciprocal), make(kind, reciprocal)
        triples, sides = make_batch()
        if case == "candidates":
            triples[:, ::2] %= 5
        settings, options = arguments_of(case, model, triples)
        settings.softmax_cut, settings.optimizer, settings.project = cut, optimizer, "none"
        settings.learning_rate = 0.05
        expected, gradients = softmax_objective(twin, triples, sides, settings, **options)
        for name, array in twin.params.items():
            if optimizer == "sgd":
                cardkge.sgd_step(array, gradients[name], 0.05)
            else:
                cardkge.adagrad_step(array, np.full_like(array, 0.1), gradients[name], 0.05)
        with Threads(1) as threads:
            trainer = trainer_of(model, settings, threads, options.get("bounds"), options.get("loopless"))
            found = trainer.step(engine.group_queries(model, triples, sides), options.get("candidates"))
        assert found == pytest.approx(expected, rel=1e-12)
        for name, array in model.params.items():
            np.testing.assert_allclose(array, twin.params[name], rtol=1e-10, atol=1e-12)
