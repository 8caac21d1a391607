"""Ranking, metrics and cardinality violations, against brute force and hand-made tables."""

import math

import numpy as np
import pytest
import reference

import cardkge
from cardkge import cardinality_violations, metrics, metrics_by_side, rank_triples
from cardkge_tools.engine import ranking
from cardkge_tools.experiments.reports import relation_metrics

TIES = ("realistic", "optimistic", "pessimistic")


def table_model(values, dtype="float64"):
    """DistMult with k = 1 and relation 1: the score of (h, r, t) is values[h] * values[t]."""
    model = cardkge.DistMult(len(values), 1, dim=1, seed=0, dtype=dtype)
    model.params["entity"][:, 0] = values
    model.params["relation"][...] = 1
    return model


def integer_model(make_model, name, dtype="float64"):
    """Parameters in {-1, 0, 1}: few distinct scores, so there are many ties, all of them exact."""
    model = make_model(name, n_entities=9, n_relations=3, dim=2, hidden=3, dtype=dtype)
    rng = np.random.default_rng(8)
    for key in sorted(model.params):
        model.params[key][...] = rng.integers(-1, 2, model.params[key].shape)
    model.params["entity"][4] = model.params["entity"][7]
    if name == "ermlp":
        model.params["output"][...] = [1, 2, 4]
    return model


def random_triples(seed, n, n_entities=9, n_relations=3):
    rng = np.random.default_rng(seed)
    columns = [rng.integers(size, size=n) for size in (n_entities, n_relations, n_entities)]
    return np.stack(columns, axis=1).astype(np.int32)


# --- hand-made tables

# entity    0  1  2  3  4  5
VALUES = [1, 2, 2, 3, 2, 0]
# (0, r, 1): tails score 1 2 2 3 2 0 for head 0: above 1 is {3}, tied with 1 are {2, 4}
# heads score 2 4 4 6 4 0 for tail 1: above 0 are {1, 2, 3, 4}, tied with 0 is nobody
HAND = {  # ties: (head side, tail side)
    "optimistic": (5, 2),
    "realistic": (5, 3),
    "pessimistic": (5, 4),
}
# known (0, r, 3) and (0, r, 2): tail side, {3, 2} go. known (4, r, 1): head side, 4 goes.
HAND_KNOWN = [(0, 0, 1), (0, 0, 3), (0, 0, 2), (4, 0, 1)]
HAND_FILTERED = {"optimistic": (4, 1), "realistic": (4, 1.5), "pessimistic": (4, 2)}


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hand_made_table(ties, dtype):
    model = table_model(VALUES, dtype)
    triple = np.array([(0, 0, 1)], dtype=np.int32)
    known = np.array(HAND_KNOWN, dtype=np.int32)
    kept = known.copy()
    ranks = rank_triples(model, triple, known, ties=ties)
    assert set(ranks) == {"raw", "filtered"}
    assert ranks["raw"].dtype == ranks["filtered"].dtype == np.float64
    assert ranks["raw"].tolist() == [list(HAND[ties])]
    assert ranks["filtered"].tolist() == [list(HAND_FILTERED[ties])]
    assert np.array_equal(known, kept)
    # the same triple known twice, or not listed as known itself, changes nothing
    for other in (np.concatenate([known, known]), known[1:]):
        again = rank_triples(model, triple, other, ties=ties)
        assert again["filtered"].tolist() == [list(HAND_FILTERED[ties])]


@pytest.mark.parametrize("ties, expected", list(zip(TIES, (3, 1, 5))))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_equal_scores_over_five_entities(model_name, make_model, ties, expected, dtype):
    model = make_model(model_name, n_entities=5, dtype=dtype)
    for array in model.params.values():
        array[...] = 0
    triples = random_triples(1, 4, n_entities=5)
    ranks = rank_triples(model, triples, ties=ties)
    assert set(ranks) == {"raw"}
    assert np.array_equal(ranks["raw"], np.full((4, 2), expected))


def test_default_is_realistic():
    triple = np.array([(0, 0, 1)])
    assert rank_triples(table_model(VALUES), triple)["raw"].tolist() == [[5, 3]]
    assert cardkge.TIES[0] == "realistic" and set(cardkge.TIES) == set(TIES)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_filter_uses_every_split(make_dataset, split):
    """The better answers (0, r, 3) and (3, r, 1) stand in one split only."""
    splits = {"train": [(5, 0, 5)], "valid": [(5, 0, 4)], "test": [(0, 0, 1)]}
    without = make_dataset(**splits)
    splits[split] = splits[split] + [(0, 0, 3), (3, 0, 1)]
    dataset = make_dataset(**splits)
    model, triple = table_model(VALUES), np.array([(0, 0, 1)], dtype=np.int32)
    assert rank_triples(model, triple, without.known)["filtered"].tolist() == [[5, 3]]
    assert rank_triples(model, triple, dataset.known)["filtered"].tolist() == [[4, 2]]


def test_evaluate_reports_both_settings(make_dataset):
    dataset = make_dataset([(0, 0, 3)], [(3, 0, 1)], [(0, 0, 1), (1, 0, 3)])
    model = table_model(VALUES)
    result = cardkge.evaluate(model, dataset.test, dataset.known)
    ranks = rank_triples(model, dataset.test, dataset.known)
    for setting in ("filtered", "raw"):
        assert result[setting] == metrics_by_side(ranks[setting])
    assert result["raw"] != result["filtered"]
    pessimistic = cardkge.evaluate(model, dataset.test, dataset.known, ties="pessimistic")
    assert pessimistic["raw"]["both"]["mrr"] < result["raw"]["both"]["mrr"]


# --- brute force


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ranks_equal_brute_force_with_ties(model_name, make_model, ties, dtype):
    model = integer_model(make_model, model_name, dtype)
    known = random_triples(2, 60)
    triples = np.concatenate([known[:15], known[3:5], random_triples(3, 6)])  # some twice, some new
    ranks = rank_triples(model, triples, known, ties=ties)
    raw, filtered = reference.ranks(
        lambda h, r, t: reference.score(model_name, model.params, h, r, t), 9, triples, known, ties
    )
    assert np.array_equal(ranks["raw"], raw)
    assert np.array_equal(ranks["filtered"], filtered)
    assert np.all(ranks["filtered"] <= ranks["raw"])
    assert np.any(ranks["filtered"] < ranks["raw"])
    assert np.array_equal(rank_triples(model, triples, ties=ties)["raw"], raw)
    order = {t: rank_triples(model, triples, ties=t)["raw"] for t in TIES}
    assert np.any(order["optimistic"] < order["pessimistic"])  # there were ties
    assert np.array_equal(order["realistic"], (order["optimistic"] + order["pessimistic"]) / 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ranks_equal_brute_force_without_ties(model_name, make_model, dtype):
    model = make_model(model_name, 50, 3, 16, 8, seed=1, dtype=dtype)
    known = random_triples(4, 200, n_entities=50)
    triples = known[:40]
    scores = {}

    def score(h, r, t):
        if (h, r, t) not in scores:
            scores[h, r, t] = reference.score(model_name, model.params, h, r, t)
        return scores[h, r, t]

    raw, filtered = reference.ranks(score, 50, triples, known, "realistic")
    ranks = rank_triples(model, triples, known)
    assert np.array_equal(ranks["raw"], raw)
    assert np.array_equal(ranks["filtered"], filtered)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_entities_with_the_same_row_tie_wherever_they_stand(model_name, make_model, dtype):
    """Rounding must not depend on the place of an entity in the table."""
    model = make_model(model_name, 333, 2, 50, 37, seed=2, dtype=dtype, scale=0.3)
    model.params["entity"][1:] = model.params["entity"][1]
    triples = np.array([(0, 0, t) for t in (1, 7, 30, 332)] + [(h, 1, 0) for h in (2, 33, 300)])
    low, high = (rank_triples(model, triples, ties=t)["raw"] for t in ("optimistic", "pessimistic"))
    spread = high - low
    assert np.all(spread[:4, 1] == 331) and np.all(spread[4:, 0] == 331)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_depends_on_blocks_or_threads(model_name, make_model, dtype, monkeypatch):
    """Near ties everywhere (rows that differ in the last bits), so any change of rounding shows."""
    model = make_model(model_name, 200, 3, 21, 9, seed=3, dtype=dtype, scale=0.4)
    entity = model.params["entity"]
    towards = np.random.default_rng(0).choice([-9, 9], (199, entity.shape[1])).astype(dtype)
    entity[1:] = np.nextafter(entity[0], towards)
    known = random_triples(5, 300, n_entities=200)
    triples = known[:67]
    whole = rank_triples(model, triples, known)
    assert len(np.unique(whole["raw"])) > 20
    for size in (1, 2, 3, 7, 64, 1000):
        monkeypatch.setattr(ranking, "LEAST", size)
        monkeypatch.setattr(ranking, "MOST", size)
        for threads in (1, 2):
            part = rank_triples(model, triples, known, threads=threads)
            assert np.array_equal(part["raw"], whole["raw"])
            assert np.array_equal(part["filtered"], whole["filtered"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("place", ["answer", "candidate", "filtered"])
def test_nan_score_is_an_error(dtype, place):
    values = [1.0, 2.0, 2.0, 3.0, 2.0, 0.0]
    values[{"answer": 1, "candidate": 5, "filtered": 3}[place]] = np.nan
    model = table_model(values, dtype)
    with pytest.raises(cardkge.CardkgeError) as error:
        rank_triples(model, np.array([(0, 0, 1)]), np.array(HAND_KNOWN))
    assert "\n" not in str(error.value)


def test_wrong_ties_and_ids_are_refused():
    model = table_model(VALUES)
    with pytest.raises(cardkge.CardkgeError):
        rank_triples(model, np.array([(0, 0, 1)]), ties="average")
    for bad in [(6, 0, 1), (0, 1, 1), (0, 0, -1)]:
        with pytest.raises(cardkge.CardkgeError):
            rank_triples(model, np.array([bad]))
        with pytest.raises(cardkge.CardkgeError):
            rank_triples(model, np.array([(0, 0, 1)]), np.array([bad]))


# --- metrics


def test_metrics_of_a_hand_made_table():
    ranks = np.array([[1, 2], [3, 10.5], [5, 100]])
    expected = {
        "mrr": (1 + 1 / 2 + 1 / 3 + 1 / 10.5 + 1 / 5 + 1 / 100) / 6,
        "hits@1": 1 / 6,
        "hits@3": 3 / 6,
        "hits@5": 4 / 6,
        "hits@10": 4 / 6,
        "mean_rank": 121.5 / 6,
    }
    found = metrics(ranks)
    assert found == pytest.approx(expected, rel=1e-14) and set(found) == set(expected)
    assert metrics(ranks.ravel()) == found
    assert metrics(np.array([1.5]))["hits@1"] == 0
    assert metrics(np.array([10.0]))["hits@10"] == 1


def test_metrics_of_each_relation():
    triples, ranks = np.array([[0, 3, 1], [1, 0, 2], [2, 3, 0]]), np.array([[1, 2], [5, 9], [4, 1]])
    found = relation_metrics(ranks, triples, ["a", "b", "c", "d"])
    assert list(found) == ["a", "d"] and [its["triples"] for its in found.values()] == [1, 2]
    for name, both in (("a", [5, 9]), ("d", [1, 2, 4, 1])):
        assert {key: found[name][key] for key in metrics(both)} == metrics(both)
    assert found["d"]["tail"] == metrics([2, 1])


@pytest.mark.parametrize("kind", ["distmult", "complex", "ermlp"])
def test_completions_are_all_entities_by_score(kind):
    model = cardkge.new_model(cardkge.Settings(model=kind, dim=4, hidden=3, seed=1), 7, 2)
    for given in ({"head": 2}, {"tail": 5}):
        ids, probabilities, scores = cardkge.completions(model, 1, **given)
        triples = [(given.get("head", e), 1, given.get("tail", e)) for e in range(7)]
        expected = {e: float(model.score(*np.array([triple]).T)[0]) for e, triple in enumerate(triples)}
        assert sorted(ids) == list(range(7)) and scores == sorted(scores, reverse=True)
        for e, p, score in zip(ids, probabilities, scores, strict=True):
            assert score == pytest.approx(expected[e], rel=1e-5)
            assert p == pytest.approx(1 / (1 + math.exp(-expected[e])), rel=1e-5)
    model.params["entity"][:] = 0.5
    assert cardkge.completions(model, 0, tail=1)[0] == list(range(7))
    for wrong in ({}, {"head": 1, "tail": 1}, {"head": 7}):
        with pytest.raises(cardkge.CardkgeError):
            cardkge.completions(model, 0, **wrong)


def test_metrics_by_side():
    ranks = np.array([[1, 2], [4, 8]])
    found = metrics_by_side(ranks)
    assert set(found) == {"both", "head", "tail"}
    assert found["both"] == metrics(ranks)
    assert found["head"]["mrr"] == (1 + 1 / 4) / 2 and found["head"]["mean_rank"] == 2.5
    assert found["tail"]["mrr"] == (1 / 2 + 1 / 8) / 2 and found["tail"]["mean_rank"] == 5


def test_metrics_are_plain_numbers():
    """So that they can be written as JSON."""
    assert all(type(v) in (int, float) for v in metrics(np.array([[1.0, 2.0]])).values())


# --- violations


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-5), ("float64", 1e-12)])
def test_violations_equal_brute_force(model_name, make_model, threads, dtype, rtol):
    model = make_model(model_name, n_entities=9, n_relations=4, dtype=dtype)
    triples = random_triples(6, 40, n_relations=3)
    triples = triples[triples[:, 1] != 2]
    triples = np.concatenate([triples, [(7, 2, 1), (7, 2, 3), (0, 2, 3)]])
    sums = {
        r: [
            reference.cardinality_sum(model_name, model.params, r, h)
            for h in sorted(set(triples[triples[:, 1] == r, 0]))
        ]
        for r in range(3)
    }
    middle = float(np.median(sums[0])) + 1e-3
    bounds = np.array([(0, middle), (0, np.inf), (9, np.inf), (0, np.inf)])
    found = cardinality_violations(model, bounds, triples, threads=threads)
    assert [item["relation"] for item in found] == [0, 2]  # the bounded ones
    for item in found:
        x = np.array(sums[item["relation"]])
        lower, upper = bounds[item["relation"]]
        assert (item["lower"], item["upper"]) == (lower, upper)
        assert item["subjects"] == len(x)
        assert item["outside"] == pytest.approx(np.mean((x < lower) | (x > upper)), rel=1e-14)
        assert item["mean"] == pytest.approx(x.mean(), rel=rtol)
        np.testing.assert_allclose(item["quartiles"], np.percentile(x, [25, 50, 75]), rtol=rtol)
        np.testing.assert_allclose(np.sort(item["sums"]), np.sort(x), rtol=rtol)
    assert 0 < found[0]["outside"] < 1


def test_sums_at_the_bounds_are_inside(make_model):
    """Every probability is 1/2 and N = 8: X is exactly 4 (SPEC: subgradient 0 at the bounds)."""
    model = make_model("distmult", n_entities=8)
    model.params["relation"][...] = 0
    triples = np.array([(h, r, 0) for h in range(3) for r in range(3)])
    bounds = np.array([(4, 4), (0, 3.999), (4.001, 5)])
    found = cardinality_violations(model, bounds, triples)
    assert [item["outside"] for item in found] == [0, 1, 1]


@pytest.mark.parametrize("dtype, rtol", [("float32", 2e-6), ("float64", 1e-12)])
def test_sums_of_sigma(dtype, rtol):
    scores = np.random.default_rng(0).normal(-5, 4, (3, 700)).astype(dtype)
    scores[0, :2] = -800, 800
    expected = (1 / (1 + np.exp(-scores.astype(np.longdouble)))).sum(1)
    np.testing.assert_allclose(ranking.sums_of_sigma(scores), expected.astype(float), rtol=rtol)
