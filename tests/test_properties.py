"""Properties that hold for any input (hypothesis): ranks, metrics, sampling, corruptions, the penalty.

Triple files, vocabularies, bounds files and saved runs have theirs in test_data.py, test_bounds.py and test_runs.py.
"""

import math

import numpy as np
import pytest
import reference
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import cardkge
from cardkge import ObjectSampler, SubjectSampler, rank_triples

MODELS = ("distmult", "complex", "ermlp")
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


# --- ranks


@st.composite
def graphs(draw, most=9):
    """A float64 model with few distinct scores (so there are ties), triples to rank, and known ones."""
    name = draw(st.sampled_from(MODELS))
    n, relations = draw(st.integers(1, most)), draw(st.integers(1, 3))
    extra = {"hidden": 2} if name == "ermlp" else {}
    model = cardkge.MODELS[name](n, relations, draw(st.integers(1, 2)), dtype="float64", **extra)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    for key in sorted(model.params):
        model.params[key][...] = rng.integers(-1, 2, model.params[key].shape)
    if name == "ermlp":
        model.params["output"][...] = [1, 2]
    triple = st.tuples(st.integers(0, n - 1), st.integers(0, relations - 1), st.integers(0, n - 1))
    triples, known = draw(st.lists(triple, min_size=1, max_size=8)), draw(st.lists(triple, max_size=30))
    return model, np.array(triples), np.array(known, int).reshape(-1, 3)


@quick
@given(graph=graphs(), ties=st.sampled_from(cardkge.TIES))
def test_ranks_are_those_of_a_naive_evaluator(graph, ties):
    model, triples, known = graph
    ranks = rank_triples(model, triples, known, ties)
    raw, filtered = reference.ranks(
        lambda h, r, t: reference.score(model.name, model.params, h, r, t), model.n_entities, triples, known, ties
    )
    assert np.array_equal(ranks["raw"], raw)
    assert np.array_equal(ranks["filtered"], filtered)


@quick
@given(graph=graphs(), seed=st.integers(0, 2**32))
def test_ranks_do_not_depend_on_the_numbering_of_entities(graph, seed):
    model, triples, known = graph
    before = rank_triples(model, triples, known)
    new = np.random.default_rng(seed).permutation(model.n_entities)  # old id -> new id
    rows = np.empty_like(model.params["entity"])
    rows[new] = model.params["entity"]
    model.params["entity"] = rows

    def renumbered(triples):
        return np.stack([new[triples[:, 0]], triples[:, 1], new[triples[:, 2]]], axis=1)

    after = rank_triples(model, renumbered(triples), renumbered(known))
    for setting in ("raw", "filtered"):
        assert np.array_equal(before[setting], after[setting])


@quick
@given(graph=graphs(), cut=st.integers(0, 30))
def test_what_filters_and_ties_do_to_ranks(graph, cut):
    """1 <= optimistic <= realistic <= pessimistic <= N, and the more is known, the better the rank."""
    model, triples, known = graph
    ranks = {ties: rank_triples(model, triples, known, ties) for ties in cardkge.TIES}
    for setting in ("raw", "filtered"):
        low, middle, high = (ranks[ties][setting] for ties in ("optimistic", "realistic", "pessimistic"))
        assert np.all(low >= 1) and np.all(high <= model.n_entities)
        assert np.array_equal(low + high, 2 * middle) and np.all(low <= high)
    for ties, both in ranks.items():
        fewer = rank_triples(model, triples, known[:cut], ties)["filtered"]
        assert np.all(both["filtered"] <= fewer) and np.all(fewer <= both["raw"])
        nothing = rank_triples(model, triples, triples[:0], ties)
        assert np.array_equal(nothing["filtered"], nothing["raw"])


@quick
@given(ranks=st.lists(st.integers(2, 400), min_size=1, max_size=30))
def test_metrics_agree_with_each_other(ranks):
    """Half ranks among them. Hits grow with n; MRR lies between hits@1 and 1; 1 / mean rank <= MRR (Jensen)."""
    found = cardkge.metrics(np.array(ranks) / 2)
    hits = [found[f"hits@{n}"] for n in (1, 3, 5, 10)]
    assert hits == sorted(hits) and hits[0] <= found["mrr"] <= 1
    assert 1 / found["mean_rank"] <= found["mrr"] * (1 + 1e-12)
    for n, share in zip((1, 3, 5, 10), hits):
        assert share == sum(rank <= 2 * n for rank in ranks) / len(ranks)


# --- sampling


@st.composite
def populations(draw):
    """Train triples, N, R, and relations to draw for."""
    n, relations = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    triple = st.tuples(st.integers(0, n - 1), st.integers(0, relations - 1), st.integers(0, n - 1))
    triples = np.array(draw(st.lists(triple, max_size=40)), np.int32).reshape(-1, 3)
    asked = draw(st.lists(st.integers(0, relations - 1), min_size=1, max_size=5))
    return triples, n, relations, np.array(asked)


sizes, seeds = st.integers(1, 20), st.integers(0, 2**32)
kinds = st.sampled_from(list(cardkge.SAMPLINGS))
inclusions = st.sampled_from(["frequency", "uniform"])


@quick
@given(
    population=populations(),
    kind=st.sampled_from(list(cardkge.SAMPLINGS)),
    omega=sizes,
    inclusion=inclusions,
    seed=seeds,
)
@example(  # no train triple at all
    population=(np.empty((0, 3), np.int32), 3, 2, np.array([0, 1])),
    kind="importance",
    omega=2,
    inclusion="uniform",
    seed=0,
)
def test_sampled_objects(population, kind, omega, inclusion, seed):
    """In range, without repetition but for importance, as many as promised, with the weight of each."""
    triples, n, relations, asked = population
    sampler = ObjectSampler(kind, triples, n, relations, omega, inclusion)
    objects, weights = sampler.draw(np.random.default_rng(seed), asked)
    assert objects.shape == weights.shape and len(objects) == len(asked)
    assert objects.dtype == np.int32 and objects.min() >= 0 and objects.max() < n
    taken = weights > 0
    assert np.all(objects[~taken] == 0) and np.all(weights[~taken] == 0)
    counts = taken.sum(axis=1)
    if kind != "bernoulli":
        assert np.all(counts == {"exact": n, "uniform": min(omega, n), "importance": omega}[kind])
    for relation, drawn, weight, used in zip(asked, objects, weights, taken):
        chances = sampler.probabilities(relation)
        assert chances.shape == (n,) and np.all(chances > 0) and np.all(chances <= 1)
        if kind != "importance":
            assert len(set(drawn[used])) == used.sum()
        of_drawn = chances[drawn[used]]
        expected = {"exact": 1, "uniform": 1, "importance": 1 / (omega * of_drawn), "bernoulli": 1 / of_drawn}[kind]
        np.testing.assert_allclose(weight[used], np.broadcast_to(expected, used.sum()), rtol=1e-12)
        if kind == "bernoulli":  # whoever is sure to come, comes
            assert set(np.flatnonzero(chances == 1)) <= set(drawn[used].tolist())


@quick
@given(population=populations(), omega=sizes, inclusion=inclusions)
def test_expected_sizes(population, omega, inclusion):
    """q adds up to 1, inclusion probabilities to omega (or N, where that is less); order follows the frequency."""
    triples, n, relations, _ = population
    for relation in range(relations):
        tails = triples[triples[:, 1] == relation, 2]
        frequency = 1 + np.bincount(tails, minlength=n)
        for kind in cardkge.SAMPLINGS:
            chances = ObjectSampler(kind, triples, n, relations, omega, inclusion).probabilities(relation)
            total = {"exact": n, "importance": 1}.get(kind, min(omega, n))
            assert math.isclose(chances.sum(), total, rel_tol=1e-12)
            if kind == "importance":
                np.testing.assert_allclose(chances, frequency / frequency.sum(), rtol=1e-13)
            elif kind == "bernoulli" and inclusion == "frequency":
                expected = reference.inclusion_probabilities(frequency / frequency.sum(), min(omega, n))
                np.testing.assert_allclose(chances, expected, rtol=1e-9)
            else:
                assert np.all(chances == chances[0])


@quick
@given(population=populations(), mu=sizes, pool=st.sampled_from(["relation", "entities"]), seed=seeds)
def test_sampled_subjects(population, mu, pool, seed):
    triples, n, relations, asked = population
    subjects, counts = SubjectSampler(pool, triples, n, relations, mu).draw(np.random.default_rng(seed), asked)
    assert len(subjects) == len(counts) == len(asked) and subjects.min() >= 0 and subjects.max() < n
    for relation, drawn, count in zip(asked, subjects, counts):
        allowed = set(triples[triples[:, 1] == relation, 0].tolist()) if pool == "relation" else set(range(n))
        assert count == min(mu, len(allowed))
        assert set(drawn[:count].tolist()) <= allowed and len(set(drawn[:count])) == count


@quick
@given(population=populations(), negatives=st.integers(1, 5), filtered=st.booleans(), seed=seeds)
def test_corruptions_change_one_side_in_turn(population, negatives, filtered, seed):
    """Column 0 is the triple; odd columns may change the tail alone, even ones the head; filtered ones are unknown,
    unless every entity in their place gives a known triple."""
    triples, n, relations, _ = population
    assume(len(triples))
    known = np.sort(cardkge.triple_keys(*triples.T, n, relations))
    ends = cardkge.corruptions(
        np.random.default_rng(seed), triples, negatives, n, known if filtered else None, relations
    )
    assert ends.shape == (len(triples), 1 + negatives, 2) and ends.min() >= 0 and ends.max() < n
    facts = set(map(tuple, triples.tolist()))
    for (h, r, t), row in zip(triples.tolist(), ends.tolist()):
        assert row[0] == [h, t]
        for column, (head, tail) in enumerate(row[1:], 1):
            assert head == h if column % 2 else tail == t
            if filtered and (head, r, tail) in facts:
                places = [(h, r, e) if column % 2 else (e, r, t) for e in range(n)]
                assert facts.issuperset(places)


# --- the penalty


@quick
@given(graph=graphs(most=6), lower=st.integers(0, 6), width=st.one_of(st.integers(0, 6), st.just(math.inf)))
def test_the_penalty_is_the_distance_to_the_bounds(graph, lower, width):
    """G >= 0, 0 exactly within the bounds, where its gradient is 0 too; and X of all objects is a sum over parts."""
    model, triples, _ = graph
    relation, subjects = int(triples[0, 1]), np.unique(triples[:, 0])
    bounds = np.tile([0.0, np.inf], (model.n_relations, 1))
    bounds[relation] = lower, lower + width
    g, gradients, sums = cardkge.cardinality_penalty(model, bounds, relation, subjects)
    distance = [max(lower - x, x - lower - width, 0) for x in sums]
    assert g == pytest.approx(math.fsum(distance), rel=1e-12, abs=1e-12)
    if not any(distance):
        assert g == 0 and not any(d.any() for d in gradients.values())
    parts = np.array_split(np.arange(model.n_entities), 2)
    of_parts = [cardkge.cardinality_sums(model, relation, subjects, part) for part in parts]
    np.testing.assert_allclose(of_parts[0] + of_parts[1], sums, rtol=1e-12)
