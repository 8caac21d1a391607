"""Bounds of classes and of inverses in training, violations and saved runs."""

import itertools
import json
import math

import gradcheck
import numpy as np
import pytest
from conftest import draws_of_train, invoke

import cardkge
from cardkge import CardkgeError, algorithm_1, cardinality_penalty, cardinality_sums
from cardkge_tools.graph.bounds import Bound, Constraints, Types, bounds_of

TYPES = Types(["even", "low"], [(e, 0) for e in range(0, 12, 2)] + [(e, 1) for e in range(4)])


def constraints(inverse=True, forward=True):
    bounds = [Bound("r0", 0, 1.5), Bound("r0", 0, 0.5, kind="even"), Bound("r1", 2, 6, kind="low")]
    turned = [
        Bound("r0", 1, 2, inverse=True),
        Bound("r1", 0, 1, inverse=True, kind="even"),
        Bound("r2", 0, 3, inverse=True),
    ]
    return Constraints([*bounds * forward, *turned * inverse], ["r0", "r1", "r2"], TYPES)


def brute_force(model, relation, subjects, objects, weights, inverse):
    """X, by one score at a time."""
    sums = []
    for s in subjects:
        pairs = [(o, s) if inverse else (s, o) for o in objects]
        scores = [model.score([h], [relation], [t])[0] for h, t in pairs]
        sums.append(sum(w / (1 + math.exp(-x)) for w, x in zip(weights, scores)))
    return np.array(sums)


def test_sums_of_the_inverse(make_model, model_name):
    model, weights = make_model(model_name), np.array([1.0, 0.5, 2.0, 1.0])
    for inverse in (False, True):
        found = cardinality_sums(model, 1, [0, 4, 2], [1, 5, 3, 5], weights, inverse)
        np.testing.assert_allclose(found, brute_force(model, 1, [0, 4, 2], [1, 5, 3, 5], weights, inverse), rtol=1e-12)
    everyone = cardinality_sums(model, 1, [0, 4], inverse=True)
    np.testing.assert_allclose(everyone, brute_force(model, 1, [0, 4], range(7), np.ones(7), True), rtol=1e-12)
    forward, turned = (sum(cardinality_sums(model, 2, range(7), inverse=each)) for each in (False, True))
    assert forward == pytest.approx(turned, rel=1e-12)  # the same sum over all pairs


@pytest.mark.parametrize("inverse", [False, True])
def test_penalty_with_a_bound_for_each_subject(make_model, model_name, inverse):
    model, subjects, objects = make_model(model_name, n_entities=12), [0, 1, 5, 4], [1, 7, 3, 7, 2]
    weights, bounds = np.array([1.0, 0.5, 2.0, 1.0, 1.5]), constraints()

    def value():
        return cardinality_penalty(model, bounds, 0, subjects, objects, weights, inverse)

    total, gradients, sums = value()
    limits = bounds.of(0, subjects, inverse)
    if not inverse:
        assert limits.tolist() == [[0, 0.5], [0, 1.5], [0, 1.5], [0, 0.5]]
    by_hand = [max(0, low - x) + max(0, x - up) for x, (low, up) in zip(sums, limits)]
    assert total == pytest.approx(sum(by_hand), rel=1e-12) and total > 0
    gradcheck.check_gradients(lambda: value()[0], model.params, gradients)


@pytest.mark.parametrize(
    "sampling, inclusion", [("exact", "uniform"), ("importance", "uniform"), ("bernoulli", "frequency")]
)
@pytest.mark.parametrize("forward, inverse", [(True, True), (False, True), (True, False)])
def test_the_fast_form_is_the_plain_one(toy, model_name, sampling, inclusion, forward, inverse):
    settings = cardkge.Settings(
        model=model_name, dim=4, hidden=3, dtype="float64", epochs=2, batches=3, seed=7, penalty_weight=0.05,
        subjects=3, objects=5, sampling=sampling, inclusion=inclusion, learning_rate=0.02, optimizer="sgd",
    )  # fmt: skip
    bounds = constraints(inverse, forward)
    run, plain = cardkge.new_run(settings, toy, bounds), cardkge.new_run(settings, toy, bounds).model
    cardkge.train(run, toy, threads=2)
    history = algorithm_1(plain, toy.train, settings, bounds, draws_of_train(plain, toy.train, settings, bounds))
    for name, array in plain.params.items():
        np.testing.assert_allclose(array, run.model.params[name], rtol=1e-10, atol=1e-10, err_msg=name)
    for mine, other in zip(history, run.history):
        assert mine["penalty"] == pytest.approx(other["penalty"], rel=1e-10) and mine["penalty"] > 0


def test_plain_bounds_and_the_same_constraints_give_the_same_bits(toy, model_name):
    settings = cardkge.Settings(model=model_name, dim=8, epochs=3, batches=2, penalty_weight=0.1, subjects=4, objects=6)
    plain = np.array([[0, 1.5], [2, 6], [0, np.inf]])
    same = Constraints([Bound("r0", 0, 1.5), Bound("r1", 2, 6)], ["r0", "r1", "r2"], TYPES)
    runs = [cardkge.new_run(settings, toy, plain), cardkge.new_run(settings, toy, same)]
    runs[1].constraints = same
    for run in runs:
        cardkge.train(run, toy, threads=1)
    for name, array in runs[0].model.params.items():
        assert array.tobytes() == runs[1].model.params[name].tobytes()


def test_violations_by_class_and_of_the_inverse(toy, make_model, model_name):
    model = make_model(model_name, n_entities=12)
    found = {(v["relation"], v["inverse"]): v for v in cardkge.cardinality_violations(model, constraints(), toy.train)}
    assert sorted(found) == [(0, False), (0, True), (1, False), (1, True), (2, True)]
    for (relation, inverse), v in found.items():
        column = 2 if inverse else 0
        subjects = np.unique(toy.train[toy.train[:, 1] == relation, column])
        assert v["heads"].tolist() == subjects.tolist()
        np.testing.assert_allclose(v["sums"], cardinality_sums(model, relation, subjects, inverse=inverse), rtol=1e-9)
        lower, upper = constraints().of(relation, subjects, inverse).T
        assert v["outside"] == np.mean((v["sums"] < lower) | (v["sums"] > upper))
        assert (v["lower"], v["upper"]) == (lower.min(), upper.max())
    plain = np.array([[0, 1.5], [0, np.inf], [0, np.inf]])
    assert [v["relation"] for v in cardkge.cardinality_violations(model, plain, toy.train)] == [0]


FILES = {
    "train.tsv": "anna\tparent\tbob\nbob\tparent\tcleo\nparis\tin\tfrance\nanna\tlives\tparis\ncleo\tlives\tparis\n",
    "valid.tsv": "bob\tlives\tparis\n",
    "test.tsv": "anna\tparent\tcleo\n",
    "types.tsv": "anna\tperson\nbob\tperson\nparis\tcity\ncleo\tperson\nnobody\tperson\n",
    "prefixes.tsv": "ex\thttp://example.org/\n",
    "bounds.tsv": "parent\t0\t2\nparent\t0\t0\tcity\n^parent\t0\t3\nlives\t1\t1\tperson\n",
}


@pytest.fixture
def family(tmp_path):
    folder = tmp_path / "family"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def test_a_run_keeps_all_bounds_types_and_prefixes(family, tmp_path):
    settings = cardkge.Settings(dim=3, epochs=2, bounds=str(family / "bounds.tsv"), data=str(family))
    data = cardkge.load_dataset(family)
    run = cardkge.new_run(settings, data)
    cardkge.train(run, data)
    cardkge.save_run(run, tmp_path / "run")
    text = (tmp_path / "run" / "bounds.tsv").read_text()
    assert text == "parent\t0\t2\nin\t0\tinf\nlives\t0\tinf\nparent\t0\t0\tcity\n^parent\t0\t3\nlives\t1\t1\tperson\n"
    assert (tmp_path / "run" / "types.tsv").read_text() == "anna\tperson\nbob\tperson\ncleo\tperson\nparis\tcity\n"
    assert (tmp_path / "run" / "prefixes.tsv").read_text() == FILES["prefixes.tsv"]
    loaded = cardkge.load_run(tmp_path / "run")
    entity, relation = data.entities.index, data.relations.index
    assert bounds_of(loaded, relation("parent"), [entity("paris"), entity("anna")]).tolist() == [[0, 0], [0, 2]]
    assert bounds_of(loaded, relation("lives"), [entity("paris"), entity("anna")]).tolist() == [[0, math.inf], [1, 1]]
    assert bounds_of(loaded, relation("parent"), [0], inverse=True).tolist() == [[0, 3]]
    assert loaded.prefixes.expand("ex:x") == "http://example.org/x" and loaded.types.of(entity("paris")) == ["city"]
    (tmp_path / "run" / "bounds.tsv").write_text(text.replace("^parent\t0\t3", "^parent\t0\t4"))
    with pytest.raises(CardkgeError, match=r"not the bounds that the run was trained with"):
        cardkge.load_run(tmp_path / "run")


def test_a_run_that_replaces_another_keeps_none_of_its_classes(family, tmp_path):
    data = cardkge.load_dataset(family)
    cardkge.save_run(cardkge.new_run(cardkge.Settings(dim=3), data), tmp_path / "run")
    for name in ("types.tsv", "prefixes.tsv"):
        assert (tmp_path / "run" / name).exists()
        (family / name).unlink()
    cardkge.save_run(cardkge.new_run(cardkge.Settings(dim=3), cardkge.load_dataset(family)), tmp_path / "run")
    assert not (tmp_path / "run" / "types.tsv").exists() and not (tmp_path / "run" / "prefixes.tsv").exists()


@pytest.mark.thorough
def test_a_class_bound_lowers_the_sums_of_its_members():
    """families, the same run with and without `a city has no tails in these relations`: X of cities falls."""
    data = cardkge.load_dataset("families")
    settings = cardkge.Settings(
        model="complex", dim=16, epochs=25, project="none", penalty_weight=0.5, subject_pool="entities",
        sampling="exact", subjects=40,
    )  # fmt: skip
    names = ["child", "sibling", "employer"]
    city = [Bound(name, 0, 0, kind="city") for name in names]
    types = cardkge.find_constraints("none", data)[0].types
    means = []
    for bounds in (city, []):
        run = cardkge.new_run(settings, data, Constraints(bounds, data.relations, types))
        cardkge.train(run, data)
        members = types.members("city")
        means.append([cardinality_sums(run.model, data.relations.index(name), members).mean() for name in names])
    assert (np.array(means[0]) < 0.8 * np.array(means[1])).all(), means


def predicted(*arguments):
    result = invoke("predict", *arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def enumerated(p, lower, upper):
    """P(i in S | lower <= |S| <= upper) of independent members with chances p, over all sets."""
    total, inside = 0.0, np.zeros(len(p))
    for members in itertools.product((0, 1), repeat=len(p)):
        if lower <= sum(members) <= upper:
            weight = np.prod(np.where(members, p, 1 - p))
            total += weight
            inside += weight * np.array(members)
    return inside / total


def test_bounds_of_the_tail_condition_heads(family, tmp_path):
    """(?, r, t): the probabilities of the heads, given how many there may be; an (h, r) that is full gets 0."""
    common = ["--data", family, "--dim", 4, "--epochs", 3, "--batches", 1, "--seed", 3]
    assert invoke("train", *common, "--bounds", family / "bounds.tsv", "--out", tmp_path / "free").exit_code == 0
    query = ["--relation", "lives", "--tail", "paris", "--top", 9]
    free = predicted(tmp_path / "free", *query)
    assert "heads" not in free and [row["known"] for row in free["answers"]].count(None) == 2
    (family / "inverse.tsv").write_text(FILES["bounds.tsv"] + "^lives\t4\t4\n")
    assert (
        invoke("train", *common, "--bounds", family / "inverse.tsv", "--lambda", 0, "--out", tmp_path / "run").exit_code
        == 0
    )
    for lower, upper in ((4, 4), (0, 3), (3, 4), (0, 2), (6, 7)):
        run = cardkge.load_run(tmp_path / "run")
        bounds = [b for b in run.constraints.bounds if b.name != "^lives" and (b.name, b.kind) != ("lives", "person")]
        run.constraints = Constraints([*bounds, Bound("lives", lower, upper, inverse=True)], run.relations, run.types)
        cardkge.save_run(run, tmp_path / "run")
        without = Constraints([b for b in run.constraints.bounds if b.name != "^lives"], run.relations, run.types)
        run.constraints = without if without.special else None
        cardkge.save_run(run, tmp_path / "plain")
        free, found = predicted(tmp_path / "plain", *query), predicted(tmp_path / "run", *query)
        p = {row["entity"]: row["probability"] for row in free["answers"] if row["known"] is None}
        new = [row for row in found["answers"] if row["known"] is None]
        known = len(found["answers"]) - len(new)
        assert known == 3 and len(new) == len(p) == 2
        if known > upper or lower - known > len(new):
            expected = [0.0] * len(new)
        else:
            expected = enumerated(np.array([p[row["entity"]] for row in new]), lower - known, upper - known)
        assert [row["probability"] for row in new] == pytest.approx(list(expected), rel=1e-9, abs=1e-12)
        assert found["heads"]["bounds"] == [lower, upper] and found["heads"]["known"] == 3
        assert found["heads"]["expected"] == pytest.approx(3 + sum(expected))
        assert sum(row["accepted"] for row in new) <= max(upper - known, 0)


def test_one_triple_has_the_probability_of_the_table(family, tmp_path):
    options = ["--data", family, "--dim", 4, "--epochs", 3, "--batches", 1, "--bounds", family / "bounds.tsv"]
    assert invoke("train", *options, "--out", tmp_path / "run").exit_code == 0
    rows = predicted(tmp_path / "run", "--head", "cleo", "--relation", "parent")["answers"]
    for row in rows:
        one = predicted(tmp_path / "run", "--head", "cleo", "--relation", "parent", "--tail", row["entity"])
        assert (one["probability"], one["known"]) == (row["probability"], row["known"])
