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
from cardkge_tools.answers import runs
from cardkge_tools.graph import bound_files
from cardkge_tools.graph.bounds import Bound, GraphBounds, Types
from cardkge_tools.graph.bounds import tsv_text as bounds_of_a_file
from cardkge_tools.graph.graphs import load_triples

TYPES = Types(["even", "low"], [(e, 0) for e in range(0, 12, 2)] + [(e, 1) for e in range(4)])


def constraints(inverse=True, forward=True):
    bounds = [Bound("r0", 0, 1.5), Bound("r0", 0, 0.5, kind="even"), Bound("r1", 2, 6, kind="low")]
    turned = [
        Bound("r0", 1, 2, inverse=True),
        Bound("r1", 0, 1, inverse=True, kind="even"),
        Bound("r2", 0, 3, inverse=True),
    ]
    return GraphBounds([*bounds * forward, *turned * inverse], ["r0", "r1", "r2"], TYPES)


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
    same = GraphBounds([Bound("r0", 0, 1.5), Bound("r1", 2, 6)], ["r0", "r1", "r2"], TYPES)
    runs = [cardkge.new_run(settings, toy, plain), cardkge.new_run(settings, toy, same)]
    assert runs[1].bounds is same
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
    assert loaded.bounds.of(relation("parent"), [entity("paris"), entity("anna")]).tolist() == [[0, 0], [0, 2]]
    assert loaded.bounds.of(relation("lives"), [entity("paris"), entity("anna")]).tolist() == [[0, math.inf], [1, 1]]
    assert loaded.bounds.of(relation("parent"), [0], inverse=True).tolist() == [[0, 3]]
    assert loaded.prefixes.expand("ex:x") == "http://example.org/x"
    assert [loaded.types.classes[k] for e, k in loaded.types.pairs if e == entity("paris")] == ["city"]
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
    types = cardkge.find_bounds("none", data)[0].types
    means = []
    for bounds in (city, []):
        run = cardkge.new_run(settings, data, GraphBounds(bounds, data.relations, types))
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
        bounds = [b for b in run.bounds.stated if b.name != "^lives" and (b.name, b.kind) != ("lives", "person")]
        run.bounds = GraphBounds([*bounds, Bound("lives", lower, upper, inverse=True)], run.relations, run.types)
        cardkge.save_run(run, tmp_path / "run")
        run.bounds = GraphBounds([b for b in run.bounds.stated if b.name != "^lives"], run.relations, run.types)
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


# --- what train saves can be read again


@pytest.mark.parametrize(
    "lines",
    [
        "made\t0\t2\tArtist\nmade\t0\t0\tMuseum\n",  # Museum has no member in this graph
        "made\t0\t2\n",
        "^made\t0\t2\n^made\t1\t2\tMuseum\n",
        "made\t0\t2\n^made\t1\tinf\tArtist\n^^odd\t0\t4\n^odd\t0\t3\n",
        "mined",
        "none",
    ],
)
def test_what_is_saved_can_be_read_again(tmp_path, lines):
    texts = {
        "train.tsv": "ann\tmade\tw1\nbob\tmade\tw2\nann\tmade\tw3\nann\t^odd\tbob\n",
        "valid.tsv": "bob\tmade\tw1\n",
        "test.tsv": "bob\tmade\tw3\n",
        "types.tsv": "ann\tArtist\nbob\tArtist\nm1\tMuseum\n",
        "b.tsv": lines,
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    named = lines if lines in ("mined", "none") else str(tmp_path / "b.tsv")
    data = cardkge.load_dataset(tmp_path)
    run = cardkge.new_run(cardkge.Settings(dim=3, epochs=1, bounds=named), data)
    cardkge.save_run(run, tmp_path / "run")
    found = cardkge.load_run(tmp_path / "run").bounds
    everyone, names = np.arange(data.n_entities), [data.relations.index(name) for name in ("made", "^odd")]
    for r in names:
        for inverse in (False, True):
            np.testing.assert_array_equal(found.of(r, everyone, inverse), run.bounds.of(r, everyone, inverse))
            assert found.is_bounded(inverse).tolist() == run.bounds.is_bounded(inverse).tolist()
    assert "names that the graph does not have ('m1' in line 3)" in " ".join(run.notes)
    assert ("of Museum" in " ".join(run.notes)) == ("Museum" in lines)


def test_a_run_that_would_not_come_back_is_not_saved(family, tmp_path, monkeypatch):
    run = cardkge.new_run(cardkge.Settings(dim=3, bounds=str(family / "bounds.tsv")), cardkge.load_dataset(family))
    cardkge.save_run(run, tmp_path / "run")
    before = (tmp_path / "run" / "bounds.tsv").read_text()
    monkeypatch.setattr(
        runs, "tsv_text", lambda bounds: bounds_of_a_file(bounds).replace("parent\t0\t2", "parent\t0\t1")
    )
    with pytest.raises(CardkgeError, match="not saved, for its bounds are not read back"):
        cardkge.save_run(run, tmp_path / "run")
    assert (tmp_path / "run" / "bounds.tsv").read_text() == before


def test_a_relation_named_like_an_inverse(tmp_path):
    """^knows beside knows is refused wherever a graph is read; alone it is a name like others."""
    (tmp_path / "triples.tsv").write_text("a\tknows\tb\nb\t^knows\ta\n")
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.tsv").write_text("a\tknows\tb\nb\t^knows\ta\n")
    for read in (cardkge.load_dataset, load_triples):
        with pytest.raises(CardkgeError, match=r"relations 'knows' and '\^knows'; \^ before .*: rename one of them"):
            read(tmp_path)
    result = invoke("import", tmp_path / "triples.tsv", "--out", tmp_path / "graph")
    assert result.exit_code == 1 and "rename one of them" in result.output and "Traceback" not in result.output


def test_bounds_that_the_data_contradicts_and_bounds_that_change_nothing_are_said(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.tsv").write_text("a\tknows\tb\nc\tknows\tb\na\tknows\td\n")
    for lines, *expected in (
        ("^knows\t0\t0\n", r"^knows: 2 of 2 tails have more heads in train than their bounds allow"),
        ("knows\t0\t1\n", r"knows: 1 of 2 heads have more tails in train than their bounds allow"),
        ("^knows\t90\tinf\n", "bounds that cannot be met, for the graph has 4 entities: 1, the first ^knows 90 to inf"),
        ("knows\t0\t4\n", "bounds that change nothing, for the graph has 4 entities: 1, the first knows 0 to 4"),
        ("knows\t0\t2\n^knows\t1\t2\n",),
    ):
        (tmp_path / "b.tsv").write_text(lines)
        notes = cardkge.find_bounds(tmp_path / "b.tsv", cardkge.load_dataset(tmp_path))[1]
        assert len(notes) == len(expected) and all(note.startswith(each) for note, each in zip(notes, expected))


def test_bounds_follow_their_names_to_other_ids():
    types = Types(["a", "b"], [(0, 0), (1, 1), (2, 0)])
    bounds = GraphBounds(
        [Bound("r", 1, 2, kind="a"), Bound("s", 0, 3, True), Bound("r", 0, 9)], ["r", "s"], types, list("xyz")
    )
    other = bounds.for_names(list("zqyx"), ["q", "r"])
    assert other.of(1, [0, 1, 2, 3]).tolist() == [[1, 2], [0, 9], [0, 9], [1, 2]]
    assert not other.is_bounded(inverse=True).any() and len(other) == 2


# --- bounds of single subjects


OWN = "child\t0\t2\nchild\t0\t1\tman\nchild\t3\t3\t\tbob\nchild\t1\t1\t\tann\n^child\t2\t2\t\tann\nchild\t1\t1\t\tann\n"


def own_bounds(tmp_path, text=OWN):
    (tmp_path / "b.tsv").write_text(text)
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.tsv").write_text("ann\tchild\tcid\nbob\tchild\tcid\nann\tlikes\tbob\n")
    (tmp_path / "types.tsv").write_text("bob\tman\ncid\tman\n")
    data = cardkge.load_dataset(tmp_path)
    assert data.entities == ["ann", "cid", "bob"]
    return data, *cardkge.find_bounds(tmp_path / "b.tsv", data)


def test_bounds_of_single_subjects(tmp_path):
    """The tightest holds; a subject's own where it contradicts the others, which is said."""
    data, bounds, notes = own_bounds(tmp_path)
    assert bounds.of(0, [0, 1, 2]).tolist() == [[1, 1], [0, 1], [3, 3]]
    assert bounds.of([1, 0], [2, 0]).tolist() == [[0, math.inf], [1, 1]]
    assert bounds.of(0, [0, 1], inverse=True).tolist() == [[2, 2], [0, math.inf]]
    assert bounds.is_bounded(inverse=True).tolist() == [True, False] and len(bounds) == 5
    assert bounds.without_lower().of(0, [0, 1, 2]).tolist() == [[0, 1], [0, 1], [0, 3]]
    assert notes[0] == "1 bounds of single entities contradict wider ones, and hold in their place"
    run = cardkge.new_run(cardkge.Settings(dim=3, bounds=str(tmp_path / "b.tsv")), data)
    cardkge.save_run(run, tmp_path / "run")
    again = cardkge.load_run(tmp_path / "run").bounds
    for inverse in (False, True):
        assert np.array_equal(again.of(0, [0, 1, 2], inverse), bounds.of(0, [0, 1, 2], inverse))
    other = bounds.for_names(["bob", "zoe", "ann"], ["likes", "child"])
    assert other.of(1, [0, 1, 2]).tolist() == [[3, 3], [0, 2], [1, 1]]
    assert other.of(1, [2], inverse=True).tolist() == [[2, 2]]


def test_bounds_of_single_subjects_that_are_wrong(tmp_path):
    for line, fault in (
        ("child\t3\t3\tman\tbob\n", r"b\.tsv:1: a class, 'man', and an entity, 'bob'; leave one"),
        ("child\t3\t3\t\tbob\nchild\t2\t3\t\tbob\n", r"twice the same relation and subject: .*:1\) and .*:2\)"),
        ("child\t3\t2\t\tbob\n", r"b\.tsv:1: expected 0 <= lower <= upper"),
    ):
        with pytest.raises(CardkgeError, match=fault):
            own_bounds(tmp_path, line)
    *_, notes = own_bounds(tmp_path, "child\t3\t3\t\tzoe\nchild\t3\t3\t\tyan\nchild\t0\t2\n")
    assert len(notes) == 1 and "2 bounds of unknown entities dropped, the first child of zoe 3 to 3" in notes[0]
    with pytest.raises(CardkgeError, match="OWL has no bounds of single entities, such as child of bob 3 to 3; write"):
        bound_files.write_bounds_file(tmp_path / "x.ttl", [Bound("child", 3, 3, subject="bob")], standard="owl")
