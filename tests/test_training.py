"""Training: single steps against an independent definition, reproducibility, negatives, golden runs."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import reference

import cardkge
from cardkge_tools.engine.batches import Sample
from cardkge_tools.engine.gradients import by_role
from cardkge_tools.engine.training import batches_of

MODELS = ("distmult", "complex", "ermlp")


def settings(model, **changes):
    """Small float64 settings; everything else as SPEC section 7 has it."""
    start = {"dim": 4, "hidden": 5, "epochs": 1, "batches": 1, "dtype": "float64", "seed": 3}
    return cardkge.Settings(model=model, **{**start, **changes})


def train(options, dataset, bounds=None, **arguments):
    run = cardkge.new_run(options, dataset, bounds)
    assert cardkge.train(run, dataset, **arguments) == "finished"
    return run


def state(run):
    """Everything that a run must reproduce to the bit."""
    history = [{k: v for k, v in record.items() if k != "seconds"} for record in run.history]
    return {
        "params": {key: array.tobytes() for key, array in run.model.params.items()},
        "accumulators": {key: array.tobytes() for key, array in run.accumulators.items()},
        "history": repr(history),
        "epoch": (run.epoch, run.step),
        "best": run.best
        and {**run.best, "params": {key: array.tobytes() for key, array in run.best["params"].items()}},
    }


def started(run, options):
    """Parameters and accumulators just before the first step: projected once."""
    params = {key: array.astype(float) for key, array in run.model.params.items()}
    if options.project == "unit":
        for row in params["entity"]:
            row /= math.sqrt(math.fsum(float(v) ** 2 for v in row))
    accumulators = {key: np.full(array.shape, options.accumulator) for key, array in params.items()}
    return params, accumulators


# --- one step, without looking inside: one of all possible draws must explain the result

TINY = [(0, 0, 1), (0, 1, 0)]  # entity 0 three times, h = t once; entity 2 only as a corruption
TINY_BOUNDS = np.array([(0.0, 0.5), (2.9, np.inf)])


def corrupted(triples, choice, m):
    """(n, 1 + m) id arrays; corruption j replaces the tail if j is odd, else the head."""
    n = len(triples)
    heads, relations, tails = (np.repeat(np.array(triples)[:, c : c + 1], 1 + m, axis=1) for c in range(3))
    for (i, j), entity in zip(itertools.product(range(n), range(1, 1 + m)), choice):
        (tails if j % 2 else heads)[i, j] = entity
    return heads, relations, tails


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
@pytest.mark.parametrize("project, l2", [("unit", 0.0), ("none", 0.3)])
@pytest.mark.parametrize("regularised", [False, True])
def test_one_step_is_one_of_all_possible_ones(model_name, make_dataset, loss, optimizer, project, l2, regularised):
    """3 entities, 2 triples, 2 corruptions each: 81 batches, of which one must give the result."""
    options = settings(model_name, dim=2, hidden=2, loss=loss, optimizer=optimizer)
    options = dataclasses.replace(options, project=project, l2=l2, penalty_weight=0.4)
    samples = ()
    if regularised:
        options = dataclasses.replace(options, sampling="exact", subject_pool="entities", subjects=3)
        samples = [(r, [0, 1, 2], None, None) for r in (0, 1)]
    dataset = make_dataset(TINY, n_entities=3)
    bounds = TINY_BOUNDS if regularised else None
    run = cardkge.new_run(options, dataset, bounds)
    start, first_accumulators = started(run, options)
    assert cardkge.train(run, dataset) == "finished"

    matches = 0
    for choice in itertools.product(range(3), repeat=4):
        params = {key: array.copy() for key, array in start.items()}
        accumulators = {key: array.copy() for key, array in first_accumulators.items()}
        parts, gradients = reference.objective(
            model_name, params, *corrupted(TINY, choice, 2), options, TINY_BOUNDS, samples
        )
        reference.update(params, accumulators, gradients, options, options.learning_rate)
        if all(np.allclose(run.model.params[key], params[key], rtol=1e-9, atol=1e-11) for key in params):
            matches += 1
            record = run.history[0]
            assert record["loss"] == pytest.approx(parts["loss"], rel=1e-10)
            assert record["l2"] == pytest.approx(parts["l2"], rel=1e-10, abs=1e-15)
            assert record["penalty"] == pytest.approx(parts["G"], rel=1e-10, abs=1e-15)
            total = parts["loss"] + parts["l2"] + 0.4 * parts["G"]
            assert record["objective"] == pytest.approx(total, rel=1e-10)
            if optimizer == "adagrad":
                for key, array in run.accumulators.items():
                    np.testing.assert_allclose(array, accumulators[key], rtol=1e-9)
            else:
                assert not run.accumulators
    assert matches >= 1


# --- one step, from the inside: any batch and sample


def step_case(seed=1, n=7, m=3, n_entities=8):
    """A batch for `Trainer.step`: entity 0 in every triple, a triple twice, h = t; and a sample with
    subjects among the objects, an object drawn twice, padding, a relation without a subject."""
    rng = np.random.default_rng(seed)
    relations = np.sort(rng.integers(3, size=n)).astype(np.int32)
    ends = rng.integers(n_entities, size=(n, 1 + m, 2)).astype(np.int32)
    ends[:, :, 0] = ends[:, :1, 0]
    ends[: n - 2, :, 0] = 0
    ends[0, 0, 1] = 0
    ends[1], relations[1] = ends[0], relations[0]
    sample = Sample(
        np.array([0, 2, 1]),
        np.array([[5, 0], [3, 3], [0, 0]], dtype=np.int32),
        np.array([2, 1, 0]),
        np.array([[5, 2, 5, 5], [1, 3, 0, 0], [4, 5, 6, 7]], dtype=np.int32),
        np.array([[1.5, 0.7, 1.5, 1.5], [2.0, 4.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]),
    )
    return ends, relations, sample


STEP_BOUNDS = np.array([(0, 1), (1, 2), (5, np.inf)], dtype=float)


def as_samples(sample):
    """The sample of a step in the form that `objective` takes: (r, subjects, objects, weights)."""
    rows = zip(sample.relations, sample.subjects, sample.counts, sample.objects, sample.weights)
    return [(r, s[:count], o, w) for r, s, count, o, w in rows]


def as_ids(ends, relations):
    """Heads, relations, tails, each (n, 1 + m)."""
    return ends[:, :, 0], np.repeat(relations[:, None], ends.shape[1], axis=1), ends[:, :, 1]


def take_step(model, accumulators, options, ends, relations, sample, rate, threads=1):
    options = dataclasses.replace(options, sampling="importance")  # uniform sums would drop lower bounds
    triples = np.stack([ends[:, 0, 0], relations, ends[:, 0, 1]], axis=1)
    with cardkge.Threads(threads) as pool:
        trainer = cardkge.Trainer(model, accumulators, options, STEP_BOUNDS, triples, pool)
        trainer.gradients.buffer["values"] = np.full(
            10**6, np.nan, model.dtype
        )  # an earlier step may have left anything
        return trainer.step((ends, relations, [] if sample is None else [sample]), rate)


@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-10), ("float32", 2e-4)])
@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize("optimizer, accumulator", [("adagrad", 0.1), ("adagrad", 0.0), ("sgd", 0)])
@pytest.mark.parametrize("project", ["unit", "none"])
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("regularised", [False, True])
def test_step(model_name, make_model, dtype, rtol, loss, optimizer, accumulator, project, l2, regularised):
    """The reported sums, the parameters and the accumulators, against loops over single numbers."""
    options = settings(model_name, loss=loss, optimizer=optimizer, project=project, l2=l2)
    options = dataclasses.replace(options, margin=0.9, penalty_weight=0.6, dtype=dtype)
    model = make_model(model_name, n_entities=8, dtype=dtype)
    accumulators = {}
    if optimizer == "adagrad":
        accumulators = {k: np.full_like(array, accumulator) for k, array in model.params.items()}
    ends, relations, sample = step_case()
    params = {key: array.astype(float) for key, array in model.params.items()}
    sums = {key: array.astype(float) for key, array in accumulators.items()}
    samples = as_samples(sample) if regularised else ()
    parts, gradients = reference.objective(model_name, params, *as_ids(ends, relations), options, STEP_BOUNDS, samples)
    before = params["entity"].copy()
    reference.update(params, sums, gradients, options, 0.2)
    untouched = set(range(8)) - set(ends.ravel())
    if regularised:
        assert parts["G"] > 1
        untouched -= set(sample.subjects.ravel()) | set(sample.objects.ravel())

    found = take_step(model, accumulators, options, ends, relations, sample if regularised else None, 0.2)
    total = parts["loss"] + parts["l2"] + 0.6 * parts["G"]
    expected = {"loss": parts["loss"], "l2": parts["l2"], "penalty": parts["G"], "objective": total}
    assert found == pytest.approx(expected, rel=rtol)
    for key, array in model.params.items():
        value = params[key]
        if key == "entity" and project == "unit":  # a step leaves rows without gradient alone
            value[list(untouched)] = before[list(untouched)]
        # with accumulators at 0 the first step is rate * sign(gradient): not in reach of float32
        # where a gradient is 0 but for rounding
        if dtype == "float64" or accumulator > 0 or optimizer == "sgd":
            np.testing.assert_allclose(array, value, rtol=rtol, atol=rtol)
    for key, array in accumulators.items():
        np.testing.assert_allclose(array, sums[key], rtol=10 * rtol, atol=rtol)


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize("regularised", [False, True])
def test_large_step_in_parallel(model_name, make_model, loss, regularised):
    """1,500 triples with entity 0 in each, thousands of distinct entities: against `objective` and
    the NumPy optimisers, and the same bits on 1, 2 and 3 threads. Sizes cross every block of the
    implementation."""
    n_entities, rng = 4_000, np.random.default_rng(2)
    options = settings(model_name, loss=loss, l2=0.01, penalty_weight=0.3)
    start = make_model(model_name, n_entities, 3, 6, 5, seed=1, scale=0.5)
    ends = rng.integers(n_entities, size=(1_500, 3, 2)).astype(np.int32)
    ends[:, :, 0] = 0
    relations = np.sort(rng.integers(3, size=1_500)).astype(np.int32)
    sample = Sample(
        np.arange(3),
        np.stack([rng.permutation(n_entities)[:6] for _ in range(3)]).astype(np.int32),
        np.array([6, 6, 4]),
        rng.integers(n_entities, size=(3, 2_900)).astype(np.int32),
        rng.uniform(0, 3, size=(3, 2_900)),
    )
    sample.objects[1, 2_000:] = sample.weights[1, 2_000:] = 0  # a smaller sample, filled up
    samples = as_samples(sample) if regularised else ()
    expected = {key: array.copy() for key, array in start.params.items()}
    sums = {key: np.full_like(array, 0.1) for key, array in expected.items()}
    parts, gradients = cardkge.objective(start, *as_ids(ends, relations), options, STEP_BOUNDS, samples)
    for key, array in expected.items():
        cardkge.adagrad_step(array, sums[key], gradients[key], 0.1)
    touched = np.unique(ends)
    if regularised:
        assert parts["penalty"] > 1
        touched = np.unique(np.concatenate([touched, sample.subjects.ravel(), sample.objects.ravel()]))
    cardkge.project_rows(expected["entity"], touched)

    results = []
    for threads in (1, 2, 3):
        model = make_model(model_name, n_entities, 3, 6, 5, seed=1, scale=0.5)
        accumulators = {key: np.full_like(array, 0.1) for key, array in model.params.items()}
        drawn = sample if regularised else None
        found = take_step(model, accumulators, options, ends, relations, drawn, 0.1, threads)
        assert found == pytest.approx(parts, rel=1e-11)
        results.append((found, *model.params.values(), *accumulators.values()))
    for key, array in model.params.items():
        np.testing.assert_allclose(array, expected[key], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(accumulators[key], sums[key], rtol=1e-8)
    for other in results[1:]:
        assert other[0] == results[0][0]
        assert all(np.array_equal(a, b) for a, b in zip(other[1:], results[0][1:]))


# --- batches and corruptions


@pytest.fixture
def batches(monkeypatch):
    """Every (ends, relations, learning rate) that training steps on, in order."""
    seen, step = [], cardkge.Trainer.step

    def recording_step(self, batch, rate=None):
        ends, relations, _ = batch
        seen.append((ends.copy(), relations.copy(), rate))
        return step(self, batch, rate)

    monkeypatch.setattr(cardkge.Trainer, "step", recording_step)
    return seen


@pytest.mark.parametrize(
    "changes, sizes",
    [
        ({"batches": 1}, [30]),
        ({"batches": 4}, [7, 8, 7, 8]),
        ({"batch_size": 8}, [8, 8, 8, 6]),
        ({"batch_size": 1}, [1] * 30),
        ({"batch_size": 100}, [30]),
        ({"batches": 100}, [1] * 30),
    ],
)
def test_every_triple_once_in_each_epoch(toy, batches, changes, sizes):
    train(settings("distmult", epochs=2, **changes), toy)
    assert sorted(len(ends) for ends, _, _ in batches) == sorted(sizes * 2)
    half, expected = len(sizes), sorted(map(tuple, toy.train.tolist()))
    epochs = [
        [(h, r, t) for ends, rs, _ in part for (h, t), r in zip(ends[:, 0].tolist(), rs.tolist())]
        for part in (batches[:half], batches[half:])
    ]
    for triples in epochs:
        assert sorted(triples) == expected
    if len(sizes) > 1:
        assert epochs[0] != epochs[1]  # shuffled anew


@pytest.mark.parametrize("negatives", [1, 2, 5])
def test_corruptions_in_training_alternate_tail_and_head(toy, batches, negatives):
    """Corruption 1 keeps head and relation, 2 keeps relation and tail, and so on."""
    train(settings("distmult", epochs=3, batches=3, negatives=negatives), toy)
    for ends, _, _ in batches:
        assert ends.shape[1] == 1 + negatives
        for j in range(1, 1 + negatives):
            kept = 0 if j % 2 else 1
            assert np.array_equal(ends[:, j, kept], ends[:, 0, kept])
    drawn = np.concatenate([ends[:, 1, 1] for ends, _, _ in batches])
    assert len(set(drawn)) > 8  # not the positive's, and different from batch to batch


def test_corruptions_are_uniform_over_all_entities():
    """Chi-square, 99.99 %, for the tail and the head; the two are drawn independently."""
    n, entities = 40_000, 6
    triples = np.tile(np.array([(1, 0, 4)], dtype=np.int32), (n, 1))
    ends = cardkge.corruptions(np.random.default_rng(0), triples, 2, entities)
    assert ends.shape == (n, 3, 2) and ends.dtype == np.int32
    assert np.all(ends[:, 0] == (1, 4)) and np.all(ends[:, 1, 0] == 1) and np.all(ends[:, 2, 1] == 4)
    pairs = np.bincount(ends[:, 1, 1] * entities + ends[:, 2, 0], minlength=36)
    for counts, quantile in (
        (pairs, 76.4),  # 35 degrees of freedom
        (pairs.reshape(6, 6).sum(0), 25.7),  # 5
        (pairs.reshape(6, 6).sum(1), 25.7),
    ):
        expected = n / len(counts)
        assert np.sum((counts - expected) ** 2 / expected) < quantile


def test_corruptions_may_be_true_unless_filtered(toy, batches):
    """Filtered ones never are triples of train, whether of this batch or not."""
    known = set(map(tuple, toy.train.tolist()))
    for filtered in (False, True):
        batches.clear()
        options = settings("distmult", epochs=20, batches=3, negatives=4)
        train(dataclasses.replace(options, filter_negatives=filtered), toy)
        corrupted_ones = [
            (h, r, t) for ends, rs, _ in batches for row, r in zip(ends[:, 1:].tolist(), rs.tolist()) for h, t in row
        ]
        assert len(corrupted_ones) == 20 * 30 * 4
        assert (len(known & set(corrupted_ones)) == 0) == filtered


def test_filtered_corruptions_are_uniform_over_the_others():
    """Tails 0..3 of (1, 0, ?) are known of 8: the tail is one of 4..7, each equally often."""
    n = 20_000
    known = np.array([(1, 0, t) for t in range(4)], dtype=np.int32)
    keys = np.sort(cardkge.triple_keys(*known.T, 8, 1))
    triples = np.tile(known[:1], (n, 1))
    ends = cardkge.corruptions(np.random.default_rng(1), triples, 1, 8, keys, 1)
    counts = np.bincount(ends[:, 1, 1], minlength=8)
    assert not np.any(counts[:4])
    assert np.sum((counts[4:] - n / 4) ** 2 / (n / 4)) < 21.1  # 3 degrees of freedom, 99.99 %


def test_filtered_corruptions_where_nearly_all_are_true():
    """Only (1, 0, 59) is not known: it must be found; the head has nothing known but 1."""
    known = np.array([(1, 0, t) for t in range(59)], dtype=np.int32)
    keys = np.sort(cardkge.triple_keys(*known.T, 60, 1))
    ends = cardkge.corruptions(np.random.default_rng(1), known, 2, 60, keys, 1)
    assert np.all(ends[:, 1, 1] == 59)
    assert np.all(ends[:, 2, 0] != 1)


def test_decay_divides_the_learning_rate_by_1_plus_decay_times_epoch(toy, batches):
    options = settings("distmult", epochs=3, batches=2, optimizer="sgd")
    train(dataclasses.replace(options, learning_rate=0.3, decay=0.5), toy)
    rates = [rate for _, _, rate in batches]
    assert rates == pytest.approx([0.3, 0.3, 0.3 / 1.5, 0.3 / 1.5, 0.3 / 2, 0.3 / 2], rel=1e-14)


def test_subjects_of_a_step(toy, monkeypatch):
    """mu distinct heads of the relation in train (or fewer, all of them), each equally often; or of
    all entities. One sample for each bounded relation."""
    bounds = np.array([(0, 1), (0, np.inf), (2, 2)], dtype=float)
    for pool in ("relation", "entities"):
        options = settings("distmult", subject_pool=pool, subjects=3, sampling="uniform", objects=5)
        run = cardkge.new_run(options, toy, bounds)
        with cardkge.Threads(1) as threads:
            source = batches_of(cardkge.Trainer(run.model, {}, options, bounds, toy.train, threads), toy.train)
            rng, counts = np.random.default_rng(3), np.zeros((3, 12))
            for _ in range(1_500):
                (sample,) = source.samples(rng)
                relations, subjects, takes, objects, weights, _ = dataclasses.astuple(sample)
                assert relations.tolist() == [0, 2] and takes.tolist() == [3, 3]
                assert subjects.shape == (2, 3) and objects.shape == weights.shape == (2, 5)
                for r, row in zip(relations, subjects):
                    assert len(set(row.tolist())) == 3
                    counts[r, row] += 1
        for r in (0, 2):
            heads = np.unique(toy.train[toy.train[:, 1] == r, 0])
            allowed = heads if pool == "relation" else np.arange(12)
            assert set(np.flatnonzero(counts[r])) == set(allowed)
            expected = 4_500 / len(allowed)
            assert np.sum((counts[r, allowed] - expected) ** 2 / expected) < 39.0  # 12 at most


# --- reproducibility

SAMPLINGS = [None, "exact", "uniform", "importance", "bernoulli"]


def medium(make_dataset, seed=0):
    """200 entities, 5 relations, 900 triples; entity 0 is in half of them."""
    rng = np.random.default_rng(seed)
    triples = np.stack([rng.integers(200, size=1200), rng.integers(5, size=1200),
                        rng.integers(200, size=1200)], axis=1)  # fmt: skip
    triples[::2, 0] = 0
    triples = rng.permutation(np.unique(triples, axis=0))
    return make_dataset(triples[:-40], triples[-40:-20], triples[-20:], 200, 5)


MEDIUM_BOUNDS = np.array([(0, 3), (1, 2), (0, np.inf), (0, 40), (150, np.inf)], dtype=float)


def medium_settings(model, sampling, **changes):
    start = {"dim": 8, "hidden": 6, "epochs": 10, "batches": 4, "dtype": "float32"}
    if sampling:
        start.update(sampling=sampling, subjects=5, objects=20, penalty_weight=0.05)
    return settings(model, **{**start, **changes})


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_same_bits_whatever_the_threads_and_resumed_or_not(model_name, make_dataset, sampling, tmp_path):
    dataset = medium(make_dataset)
    bounds = MEDIUM_BOUNDS if sampling else None
    options = medium_settings(model_name, sampling, validate_every=0 if sampling else 3)
    expected = state(train(options, dataset, bounds, threads=1))
    assert state(train(options, dataset, bounds, threads=2)) == expected

    # 5 epochs, saved and loaded, 5 more
    run = train(dataclasses.replace(options, epochs=5), dataset, bounds, threads=2)
    assert (run.epoch, run.step) == (5, 0)
    cardkge.save_run(run, tmp_path / "whole")
    run = cardkge.load_run(tmp_path / "whole")
    run.settings = dataclasses.replace(run.settings, epochs=10)
    assert cardkge.train(run, dataset, threads=1) == "finished"
    assert state(run) == expected

    # stopped in the middle of an epoch, saved and loaded, and once more without saving
    run = cardkge.new_run(options, dataset, bounds)
    steps = itertools.count(1)
    assert cardkge.train(run, dataset, stop=lambda: next(steps) == 4 * 3 + 2) == "stopped"
    assert (run.epoch, run.step, len(run.history)) == (3, 2, 3)
    cardkge.save_run(run, tmp_path / "part")
    run = cardkge.load_run(tmp_path / "part")
    steps = itertools.count(1)
    assert cardkge.train(run, dataset, stop=lambda: next(steps) == 3) == "stopped"
    assert (run.epoch, run.step) == (4, 1)
    assert cardkge.train(run, dataset) == "finished"
    assert state(run) == expected

    other = train(dataclasses.replace(options, seed=4), dataset, bounds)
    assert state(other)["params"] != expected["params"]


@pytest.mark.parametrize("changes", [{"optimizer": "sgd", "decay": 0.1, "learning_rate": 0.01},
                                     {"loss": "hinge", "filter_negatives": True, "negatives": 3},
                                     {"l2": 0.01, "project": "none", "validate_every": 2}])  # fmt: skip
def test_same_bits_with_other_settings(model_name, make_dataset, changes):
    dataset = medium(make_dataset)
    options = medium_settings(model_name, "bernoulli", epochs=4, **changes)
    expected = state(train(options, dataset, MEDIUM_BOUNDS, threads=1))
    assert state(train(options, dataset, MEDIUM_BOUNDS, threads=2)) == expected
    run = cardkge.new_run(options, dataset, MEDIUM_BOUNDS)
    steps = itertools.count(1)
    assert cardkge.train(run, dataset, stop=lambda: next(steps) == 7) == "stopped"
    assert cardkge.train(run, dataset) == "finished"
    assert state(run) == expected


def test_watching_does_not_change_the_bits(toy):
    """Validation and callbacks are no part of what determines the parameters."""
    options = settings("complex", epochs=3, batches=2)
    expected = state(train(options, toy))["params"]
    epochs, steps = [], []
    watched = dataclasses.replace(options, validate_every=1)
    run = train(
        watched,
        toy,
        on_epoch=lambda run, record: epochs.append((run.epoch, record["epoch"])),
        on_step=lambda run, step, total: steps.append((step, total)),
        stop=lambda: False,
    )
    assert state(run)["params"] == expected
    assert len(epochs) == 3 and len(steps) == 6
    assert {total for _, total in steps} == {2}


def test_float32_follows_float64(model_name, toy):
    options = settings(model_name, epochs=2, batches=3)
    wide = train(options, toy)
    narrow = train(dataclasses.replace(options, dtype="float32"), toy)
    for key, array in narrow.model.params.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, wide.model.params[key], rtol=0, atol=1e-4)
    for a, b in zip(narrow.history, wide.history):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)


# --- what training does


def test_loss_decreases(model_name, toy):
    run = train(settings(model_name, dim=8, epochs=60, batches=3), toy)
    losses = [record["loss"] for record in run.history]
    assert losses[-1] < 0.8 * losses[0]
    assert all(later <= losses[0] for later in losses[5:])


@pytest.mark.parametrize("project", ["unit", "none"])
def test_projection_of_every_entity(model_name, make_dataset, project):
    """Also of entities that no batch has: once before the first step."""
    dataset = make_dataset([(0, 0, 1), (1, 0, 2)], n_entities=40)
    run = train(settings(model_name, project=project, epochs=2, negatives=1), dataset)
    norms = np.linalg.norm(run.model.params["entity"], axis=1)
    assert np.allclose(norms, 1, rtol=1e-12) == (project == "unit")
    assert abs(np.linalg.norm(run.model.params["relation"]) - 1) > 1e-6  # entities only


def test_regulariser_lowers_the_sums(model_name, toy):
    bounds = np.tile((0.0, 1.0), (3, 1))
    sums = []
    for weight in (0.0, 1.0):
        options = settings(model_name, dim=8, epochs=30, batches=3, penalty_weight=weight)
        options = dataclasses.replace(options, sampling="exact", subjects=12)
        run = train(options, toy, bounds)
        found = cardkge.cardinality_violations(run.model, bounds, toy.train)
        sums.append(np.mean([item["mean"] for item in found]))
    assert sums[1] < 0.8 * sums[0]


@pytest.mark.parametrize(
    "dtype, rate, optimizer", [("float64", 1e20, "sgd"), ("float32", 1e20, "sgd"), ("float32", 3e38, "adagrad")]
)
def test_non_finite_stops_with_the_state_before_that_step(model_name, toy, dtype, rate, optimizer):
    """The objective overflows, or a parameter does; ER-MLP's tanh lets only the latter happen."""
    rate = 1e308 if (model_name, dtype) == ("ermlp", "float64") else rate
    options = settings(model_name, epochs=50, batches=2, optimizer=optimizer, project="none")
    options = dataclasses.replace(options, learning_rate=rate, dtype=dtype)
    run = cardkge.new_run(options, toy)

    def copies():
        arrays = [*run.model.params.values(), *run.accumulators.values()]
        return [run.epoch, run.step, *(array.copy() for array in arrays)]

    good = [copies()]
    with np.errstate(all="ignore"), pytest.raises(cardkge.NonFinite) as error:
        cardkge.train(run, toy, on_step=lambda *_: good.append(copies()))
    message = str(error.value)
    assert isinstance(error.value, cardkge.CardkgeError) and "\n" not in message
    assert f"epoch {run.epoch + 1}" in message and f"step {run.step + 1}" in message
    for now, then in zip(copies()[2:], good[-1][2:]):
        assert np.array_equal(now, then) and np.all(np.isfinite(now))


def test_validation_keeps_the_best_parameters(model_name, toy):
    """Best by hits@10, then by MRR; here hits@10 is the same for several epochs."""
    options = settings(model_name, epochs=12, batches=2, validate_every=3)
    run = train(options, toy)
    scored = {
        record["epoch"]: (record["valid_hits@10"], record["valid_mrr"])
        for record in run.history
        if "valid_mrr" in record
    }
    assert sorted(scored) == [3, 6, 9, 12] and len(set(scored.values())) > 1
    assert (run.best["hits@10"], run.best["mrr"]) == max(scored.values())
    assert scored[run.best["epoch"]] == max(scored.values())
    found = cardkge.evaluate(run.best_model(), toy.valid, toy.known)
    assert found["filtered"]["both"]["mrr"] == run.best["mrr"]


def test_patience(toy):
    """A run that cannot improve (learning rate 0) stops after `patience` validations."""
    options = settings("distmult", epochs=50, validate_every=1, patience=2, optimizer="sgd")
    options = dataclasses.replace(options, learning_rate=1e-300)
    run = cardkge.new_run(options, toy)
    assert cardkge.train(run, toy) == "patience"
    assert run.epoch == 3 and run.best["epoch"] == 1


# --- settings


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "transe"},
        {"dim": 0},
        {"hidden": 0},
        {"epochs": -1},
        {"batches": 0},
        {"batch_size": 0},
        {"negatives": 0},
        {"loss": "softplus"},
        {"margin": -0.5},
        {"margin": math.nan},
        {"optimizer": "adam"},
        {"learning_rate": math.inf},
        {"decay": -1.0},
        {"accumulator": -0.1},
        {"l2": -1.0},
        {"project": "ball"},
        {"penalty_weight": -0.01},
        {"sampling": "all"},
        {"inclusion": "degree"},
        {"subjects": 0},
        {"objects": 0},
        {"subject_pool": "all"},
        {"dtype": "float16"},
        {"validate_every": -1},
        {"patience": -1},
    ],
)
def test_settings_out_of_range_are_refused(toy, changes):
    """One line that names the setting and the value found."""
    with pytest.raises(cardkge.CardkgeError) as error:
        dataclasses.replace(settings("distmult"), **changes)
    ((name, value),) = changes.items()
    assert name in str(error.value) and str(value) in str(error.value)
    assert "\n" not in str(error.value)


def test_default_settings_are_those_of_the_specification():
    options = cardkge.Settings()
    expected = {"loss": "logistic", "batches": 10, "batch_size": None, "negatives": 2, "l2": 0.0,
                "optimizer": "adagrad", "learning_rate": 0.1, "accumulator": 0.1, "epochs": 200,
                "project": "unit", "filter_negatives": False, "data": "families"}  # fmt: skip
    assert {name: getattr(options, name) for name in expected} == expected


# --- golden runs


def replay(start, accumulators, options, recorded, bounds):
    """The losses of a run whose batches and samples are `recorded`, by the plain definition."""
    losses = []
    for ends, relations, drawn in recorded:
        samples = [one for sample in drawn for one in as_samples(sample)]
        parts, gradients = reference.objective(options.model, start, *as_ids(ends, relations), options, bounds, samples)
        reference.update(start, accumulators, gradients, options, options.learning_rate)
        losses.append(parts["loss"] + parts["l2"] + options.penalty_weight * parts["G"])
    return losses


GOLDEN = {
    ("distmult", False): [
        31.009594085,
        31.353525405,
        32.125389179,
        31.276419126,
        31.081078418,
        30.747282573,
        31.975360855,
        31.158789352,
        30.098661041,
        31.285788401,
    ],
    ("distmult", True): [
        34.958653323,
        43.258849987,
        40.061492710,
        34.959564367,
        37.176818212,
        35.871318716,
        39.580874632,
        46.299039917,
        37.011061931,
        43.143791109,
    ],
    ("complex", False): [
        31.448478330,
        31.372120329,
        30.561229070,
        31.347162376,
        30.669746153,
        31.754638767,
        30.204501539,
        30.148643438,
        29.849487078,
        30.560510134,
    ],
    ("complex", True): [
        35.908743772,
        43.826608965,
        38.039715624,
        35.404854147,
        37.019298559,
        36.920850248,
        37.609680037,
        44.766531206,
        37.065545992,
        41.566554414,
    ],
    ("ermlp", False): [
        31.705587849,
        29.989678916,
        28.959117453,
        29.838304157,
        28.925068384,
        28.817916522,
        28.773802936,
        28.975200453,
        28.554888048,
        28.658634953,
    ],
    ("ermlp", True): [
        35.382523783,
        36.436443216,
        32.117021401,
        30.992652344,
        31.052626761,
        32.696512939,
        33.702698460,
        35.625546286,
        31.663738737,
        32.179158351,
    ],
}


@pytest.mark.parametrize("regularised", [False, True])
def test_golden_run(model_name, toy, monkeypatch, regularised):
    """The first ten objectives of a seeded run: pinned, and equal to a replay of the same batches by
    the independent definition, as are the parameters after them."""
    options = settings(model_name, epochs=5, batches=2)
    if regularised:
        options = dataclasses.replace(options, sampling="bernoulli", subjects=2, objects=4, penalty_weight=0.5)
    recorded, found, step = [], [], cardkge.Trainer.step

    def recording_step(self, batch, rate=None):
        ends, relations, samples = batch
        recorded.append((ends.copy(), relations.copy(), samples))
        sums = step(self, batch, rate)
        found.append(sums["objective"])
        return sums

    monkeypatch.setattr(cardkge.Trainer, "step", recording_step)
    bounds = np.array([(0, 1), (3, 4), (0, np.inf)]) if regularised else None
    run = cardkge.new_run(options, toy, bounds)
    start, accumulators = started(run, options)
    cardkge.train(run, toy)
    np.testing.assert_allclose(found, replay(start, accumulators, options, recorded, bounds), rtol=1e-9)
    for key, array in run.model.params.items():
        np.testing.assert_allclose(array, start[key], rtol=1e-7, atol=1e-9)
    assert found == pytest.approx(GOLDEN[model_name, regularised], rel=1e-6)
    means = [record["objective"] for record in run.history]  # of the steps of each epoch
    assert means == pytest.approx([np.mean(found[i : i + 2]) for i in range(0, 10, 2)], rel=1e-12)


def test_slots_by_role():
    """Of seven slots 0, 3 and 6 stand as heads alone, 1 and 5 as both, 2 and 4 as tails alone."""
    order, a, b = by_role(7, ([0, 3, 1], [5, 6, 3]), ([1, 2, 2], [4, 5]))
    assert (order.tolist(), a, b) == ([0, 3, 6, 1, 5, 2, 4], 3, 5)
