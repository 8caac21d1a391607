"""classify: metrics by hand and by brute force, features by the words of their definition, files and their faults."""

import functools
import itertools
import json
import math
import os
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT, invoke, ok, one_error, thorough, write_ring
from gradcheck import check_gradients

import cardkge
from cardkge import CardkgeError, auc, label_metrics, probability
from cardkge_tools.answers import classification
from cardkge_tools.answers.classification import (
    BASELINE,
    HUB,
    METRICS,
    SMOOTHING,
    Facts,
    best_thresholds,
    by_calibration,
    cross_validated,
    features,
    fit_labels,
    hard_false,
    label_loss,
    read_labelled,
    show_classification,
    softmax_scores,
    without,
)
from cardkge_tools.answers.missing import Missing
from cardkge_tools.definitions.counting import calibrated_log_odds, pair_features

# ------------------------------------------------------------------------------------------------------------------
# Metrics
# ------------------------------------------------------------------------------------------------------------------


def test_metrics_by_hand():
    p, labels = [0.9, 0.8, 0.5, 0.6, 0.1, 0.2], [True, True, True, False, False, False]
    found = label_metrics(p, labels)
    assert found["accuracy"] == pytest.approx(4 / 6)  # 0.5 is not above a half, 0.6 is
    assert found["f1"] == pytest.approx(2 * 2 / (3 + 3))
    assert found["auc"] == pytest.approx(8 / 9)  # of nine pairs one is the wrong way round
    assert found["brier"] == pytest.approx((0.01 + 0.04 + 0.25 + 0.36 + 0.01 + 0.04) / 6)
    assert label_metrics([0.1, 0.2], [False, False]) == {
        "accuracy": 1.0, "f1": 0.0, "auc": None, "brier": pytest.approx(0.025),
    }  # fmt: skip


@pytest.mark.parametrize("values", [2, 5, 1000])
def test_auc_is_the_share_of_pairs(values):
    rng = np.random.default_rng(values)
    scores, labels = rng.integers(values, size=80) / 7, rng.random(80) < 0.3
    pairs = [(a > b) + (a == b) / 2 for a, b in itertools.product(scores[labels], scores[~labels])]
    assert auc(scores, labels) == pytest.approx(np.mean(pairs), rel=1e-12)
    assert auc(np.exp(scores), labels) == auc(scores, labels)
    assert auc(-scores, labels) == pytest.approx(1 - auc(scores, labels))


def test_thresholds_are_the_best_of_all():
    rng = np.random.default_rng(1)
    scores, relations, labels = rng.integers(8, size=60) * 1.0, rng.integers(2, size=60), rng.random(60) < 0.5
    found = best_thresholds(scores, relations, labels, 3)
    for r, part in ((0, relations == 0), (1, relations == 1), (2, np.ones(60, bool))):  # 2 has none: that of all
        right = [((scores[part] > t) == labels[part]).sum() for t in np.arange(-1.5, 9)]
        assert ((scores[part] > found[r]) == labels[part]).sum() == max(right)


def test_hard_false_tails():
    triples = np.array([(0, 0, 1), (1, 0, 2), (2, 0, 3), (0, 0, 2), (1, 0, 4), (0, 1, 1)])
    labels = np.array([True, True, True, False, False, False])
    counts = np.array([1, 5, 9, 5, 4, 100])  # the median of relation 0's true ones is 5; relation 1 has none
    assert hard_false(triples, labels, counts).tolist() == [False, False, False, True, False, False]


# ------------------------------------------------------------------------------------------------------------------
# The model of labels
# ------------------------------------------------------------------------------------------------------------------


def test_the_loss_of_labels():
    """By the words of the logistic loss and the prior; its gradient and curvature by differences."""
    rng = np.random.default_rng(2)
    x, labels, slopes, centre = rng.normal(size=(50, 4)), rng.random(50) < 0.5, rng.normal(size=4), rng.normal(size=4)
    value, gradient, curvature = label_loss(x, labels, centre, 0.7, slopes)
    p = 1 / (1 + np.exp(-(x @ slopes)))
    expected = -np.log(np.where(labels, p, 1 - p)).sum() + 0.35 * ((slopes - centre) ** 2).sum()
    assert value == pytest.approx(expected, rel=1e-12)
    check_gradients(lambda: label_loss(x, labels, centre, 0.7, slopes)[0], {"slopes": slopes}, {"slopes": gradient})
    for i in range(4):
        check_gradients(
            lambda i=i: label_loss(x, labels, centre, 0.7, slopes)[1][i], {"slopes": slopes}, {"slopes": curvature[i]}
        )


@pytest.mark.parametrize("label", [True, False])
@pytest.mark.parametrize("z", [-1000.0, 1000.0])
def test_the_loss_of_labels_far_out(z, label):
    """Where both probabilities are 0 or 1 in float64: the loss is |z| or 0, its gradient that of a line."""
    with np.errstate(all="raise", under="ignore"):
        value, gradient, curvature = label_loss(np.ones((1, 1)), np.array([label]), 0.0, 0.0, np.array([z]))
    wrong = label != (z > 0)
    assert value == pytest.approx(1000.0 * wrong) and gradient[0] == pytest.approx(-np.sign(label - 0.5) * wrong)
    assert np.isfinite(curvature).all()


def test_a_column_that_is_not_finite():
    with pytest.raises(CardkgeError, match="a score is not finite"):
        fit_labels(np.array([[0.0], [np.inf]]), np.zeros(2, int), np.array([True, False]), 1, 1.0)


def test_fit_gives_the_shares_of_two_groups():
    """One column of two values: the probabilities are the shares of true ones, by relation, where nothing is shrunk."""
    x, relations, labels = [], [], []
    shares = {(0, 0): 0.6, (0, 1): 0.4, (1, 0): 0.1, (1, 1): 0.9}  # of either sign
    for (r, value), share in shares.items():
        x += [[float(value)]] * 40
        relations += [r] * 40
        labels += [i < 40 * share for i in range(40)]
    x, relations, labels = np.array(x), np.array(relations), np.array(labels)
    p = fit_labels(x, relations, labels, 3, 1e-9)
    for (r, value), share in shares.items():
        assert p(np.array([[float(value)]]), np.array([r]))[0] == pytest.approx(share, abs=1e-4)
    shrunk = fit_labels(x, relations, labels, 3, 1e6)
    for value, share in ((0.0, 0.35), (1.0, 0.65)):  # all have what is common, a relation without labels too
        for r in range(3):
            assert shrunk(np.array([[value]]), np.array([r]))[0] == pytest.approx(share, abs=2e-3)


def test_cross_validation_sees_what_a_prior_is_worth():
    """Labels that depend on a column in each relation alike, few of each: to share is better; turned round, not to."""
    rng = np.random.default_rng(3)
    triples = np.column_stack((np.arange(600) // 2, rng.integers(30, size=600), np.zeros(600, int)))
    x = rng.normal(size=(600, 2))
    alike = rng.random(600) < probability(2 * x[:, 0] - x[:, 1])
    turned = rng.random(600) < probability(2 * x[:, 0] + np.where(triples[:, 1] % 2, 9, -9) * x[:, 1])
    losses = {
        (name, precision): cross_validated(x, triples, labels, 30, precision)
        for name, labels in (("alike", alike), ("turned", turned))
        for precision in (0.01, 100)
    }
    assert losses["alike", 100] < losses["alike", 0.01]
    assert losses["turned", 0.01] < losses["turned", 100]


# ------------------------------------------------------------------------------------------------------------------
# Features
# ------------------------------------------------------------------------------------------------------------------

TRAIN = np.array(
    [(0, 0, 5), (1, 0, 5), (2, 0, 6), (3, 0, 6), (0, 1, 7), (1, 1, 7), (2, 1, 7), (3, 1, 8), (4, 1, 7), (4, 2, 0)]
)


def by_words(train, triple, n_relations):
    """The four of `Facts.lifts`, with sets and loops."""
    facts = [tuple(map(int, fact)) for fact in train]

    @functools.cache
    def neighbours(h):
        found = [(q, e) for a, q, e in facts if a == h]
        for _, q, x in [fact for fact in facts if fact[0] == h]:
            if sum(fact[0] == x for fact in facts) <= HUB:
                found += [(q, s, e) for a, s, e in facts if a == x]
        return found

    h, r, t = triple
    tails = [(a, e) for a, q, e in facts if q == r]
    share, lifts = (sum(e == t for _, e in tails) + 0.5) / (len(tails) + 1), []
    for f in neighbours(h):
        seen = [e for a, e in tails for g in neighbours(a) if g == f and f != (r, e)]
        lifts.append(np.log((seen.count(t) / share + SMOOTHING) / (len(seen) + SMOOTHING)))
    return [sum(lifts), np.mean(lifts), max(lifts), min(lifts)] if lifts else [0.0] * 4


def test_lifts_by_hand():
    """4's neighbours are (1, 7), (2, 0) and, by way of 0, (2, 0, 5) and (2, 1, 7). Of those with (1, 7) two have tail 5
    of relation 0, one has 6; nobody else has the others."""
    found = Facts(TRAIN, 9, 3).lifts(np.array([(4, 0, 5), (4, 0, 6), (5, 0, 5)]))
    lift = np.log((2 / 0.5 + SMOOTHING) / (3 + SMOOTHING))
    np.testing.assert_allclose(found[0], [lift, lift / 4, lift, 0])
    lift = np.log((1 / 0.5 + SMOOTHING) / (3 + SMOOTHING))
    np.testing.assert_allclose(found[1], [lift, lift / 4, 0, lift])
    np.testing.assert_array_equal(found[2], 0)  # 5 is the head of nothing


@pytest.mark.parametrize("hub, together", [(HUB, 2**22), (4, 2**22), thorough(HUB, 1), (4, 30)])
def test_lifts_are_what_they_are_said_to_be(monkeypatch, hub, together):
    """Also where some have too many facts, and where not all neighbours are looked at together."""
    for module in (classification, sys.modules[__name__]):
        monkeypatch.setattr(module, "HUB", hub)
    monkeypatch.setattr(classification, "NEIGHBOURS", together)
    rng = np.random.default_rng(4)
    train = np.unique(
        np.column_stack((rng.integers(9, size=50), rng.integers(3, size=50), rng.integers(9, size=50))), axis=0
    )
    triples = np.column_stack((rng.integers(9, size=20), rng.integers(3, size=20), rng.integers(9, size=20)))
    assert (np.bincount(train[:, 0]) > 4).any()
    expected = [by_words(train, triple, 3) for triple in triples.tolist()]
    np.testing.assert_allclose(Facts(train, 9, 3).lifts(triples), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["distmult", "complex", "ermlp", "reciprocal"])
def test_softmax_of_the_candidates(make_model, name):
    model = make_model("complex" if name == "reciprocal" else name, 9, 3)
    if name == "reciprocal":
        model = cardkge.ComplEx(9, 3, 4, seed=3, dtype="float64", reciprocal=True)
    facts, triples = Facts(TRAIN, 9, 3), np.array([(4, 0, 5), (0, 1, 8), (4, 0, 2), (2, 0, 5)])
    scores = model.score_tails(*triples[:, :2].T)
    np.testing.assert_allclose(softmax_scores(model, facts, triples, 1)[:, 0], scores[range(4), triples[:, 2]])
    for i, candidates in enumerate([(5, 6), (8,), (5, 6, 2), (5,)]):  # tails of r; 0 is known to have 7, 2 to have 6
        found = softmax_scores(model, facts, triples[i : i + 1], 1)[0, 1]
        assert found == pytest.approx(np.log(np.exp(scores[i, list(candidates)]).sum()))
        assert softmax_scores(model, facts, triples, 1)[i, 1] == pytest.approx(found)
    scores = model.score_heads(*triples[:, 1:].T)
    found = softmax_scores(model, facts, triples, 0)
    np.testing.assert_allclose(found[:, 0], scores[range(4), triples[:, 0]])
    for i, candidates in enumerate([(2, 3, 4), (0, 1, 2, 4), (0, 1, 2, 3, 4), (2, 3)]):
        assert found[i, 1] == pytest.approx(np.log(np.exp(scores[i, list(candidates)]).sum()))


def test_what_is_asked_is_not_known(make_model):
    """A triple of train has the features that it has where train lacks it."""
    model, asked = make_model("distmult", 9, 3), TRAIN[[0, 5]]
    rest = np.delete(TRAIN, [0, 5], axis=0)
    one, other = (features(model, None, train, asked) for train in (TRAIN, rest))
    np.testing.assert_array_equal(one.columns, other.columns)
    np.testing.assert_array_equal(one.frequency, np.log([1.5, 3.5]))  # of 5 under 0, and of 7 under 1, in the rest


def test_a_full_bound_is_seen(make_model):
    model, asked = make_model("distmult", 9, 3), np.array([(0, 0, 6), (4, 0, 6), (0, 1, 8)])
    full = [features(model, bounds, TRAIN, asked).columns[:, 7].tolist() for bounds in (
        None, [(0, 1), (0, 2), (0, np.inf)], cardkge.Bounds([(0, np.inf), (0, 0.5), (0, 1)])
    )]  # fmt: skip
    assert full == [[0, 0, 0], [1, 0, 0], [0, 0, 1]]


@pytest.mark.thorough
def test_what_fb13_says_without_a_model():
    """The frequency of the tail alone has 85.6 % and Brier 0.109, with the neighbours of the head more than 91 %."""
    if not os.environ.get("CARDKGE_DATA") or cardkge.locate_dataset("fb13") is None:
        pytest.skip("needs fb13 with its labelled files: a folder that holds it in CARDKGE_DATA")
    dataset, columns, files = cardkge.load_dataset("fb13", download=False), [], []
    for split in ("valid", "test"):
        triples, labels = read_labelled(dataset.folder / f"{split}-labelled.txt", dataset.entities, dataset.relations)
        rest = without(dataset.train, triples, dataset.n_entities, dataset.n_relations)
        facts = Facts(rest, dataset.n_entities, dataset.n_relations)
        counts = cardkge.KnownTails(rest, dataset.n_entities, dataset.n_relations).count_heads(*triples[:, 1:].T)
        columns.append(np.column_stack((np.log(counts + 0.5), facts.lifts(triples))))
        files.append((triples[:, 1], labels))
    (valid, test), ((relations, labels), (of, truth)) = columns, files
    found = [
        label_metrics(fit_labels(valid[:, :n], relations, labels, dataset.n_relations, 0.1)(test[:, :n], of), truth)
        for n in (1, 5)
    ]
    assert found[0]["accuracy"] == pytest.approx(0.856, abs=0.001)
    assert found[0]["brier"] == pytest.approx(0.109, abs=0.001)
    assert found[1]["accuracy"] > 0.91 and found[1]["brier"] < 0.07


# ------------------------------------------------------------------------------------------------------------------
# The file
# ------------------------------------------------------------------------------------------------------------------


def write(path, text):
    path.write_bytes(text.encode())
    return path


def test_labels_and_lines(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeffa\tr\tb\t1\r\n\r\nb\tr\ta\t0\r\na b\tr\ta\t-1")  # no newline at the end
    triples, labels = read_labelled(path, ["a", "b", "a b"], ["r"])
    assert triples.tolist() == [[0, 0, 1], [1, 0, 0], [2, 0, 0]] and labels.tolist() == [True, False, False]


@pytest.mark.parametrize(
    "text, fault",
    [
        ("a\tr\tb\t1\na\tr\tb\n", ":2: expected head, relation, tail, label with tabs between, found 3 fields"),
        ("a\tr\tb\tc\t1\n", ":1: expected head, relation, tail, label with tabs between, found 5 fields"),
        ("a\t\tb\t1\n", ":1: expected head, relation, tail, label with tabs between, found an empty name"),
        ("a\tr\tb\ttrue\n", ":1: expected a label 1, 0 or -1, found 'true'"),
        ("a\tr\tb\t2\n", ":1: expected a label 1, 0 or -1, found '2'"),
        ("", ": no triples are left"),
        ("\n\n", ": no triples are left"),
        ("a\tr\tb\t1\nc\ts\td\t0\nc\tr\te\t0\n", r": the run does not know 4 names \('c', 's', 'd', ...\); --skip"),
    ],
)
def test_faults_of_files(tmp_path, text, fault):
    path = write(tmp_path / "a.txt", text)
    with pytest.raises(CardkgeError, match=f"^{path}{fault}"):
        read_labelled(path, ["a", "b"], ["r"])


def test_unknown_names_left_out(tmp_path, capsys):
    path = write(tmp_path / "a.txt", "a\tr\tb\t1\nc\tr\ta\t0\n")
    triples, _ = read_labelled(path, ["a", "b"], ["r"], skip_unknown=True)
    assert triples.tolist() == [[0, 0, 1]]
    assert "1 name ('c'): left out 1 of 2 triples" in capsys.readouterr().err
    with pytest.raises(CardkgeError, match="no triples are left"):
        read_labelled(write(path, "c\tr\ta\t0\n"), ["a", "b"], ["r"], skip_unknown=True)


# ------------------------------------------------------------------------------------------------------------------
# The command
# ------------------------------------------------------------------------------------------------------------------


def corrupted(dataset, triples, seed):
    """Lines of triples, each followed by one with a tail of its relation that no split has, labelled."""
    rng, known = np.random.default_rng(seed), set(map(tuple, dataset.known.tolist()))
    tails = {r: np.unique(dataset.train[dataset.train[:, 1] == r, 2]) for r in range(dataset.n_relations)}
    for h, r, t in triples.tolist():
        others = [int(e) for e in tails[r] if (h, r, e) not in known]
        for tail, label in ((t, 1), *([(rng.choice(others), -1)] if others else [])):
            yield f"{dataset.entities[h]}\t{dataset.relations[r]}\t{dataset.entities[tail]}\t{label}\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of families, and labelled files beside it."""
    folder = tmp_path_factory.mktemp("classify")
    bounds = ROOT / "data" / "families" / "bounds.tsv"
    ok("train", "--loss", "softmax", "--model", "distmult", "--dim", 16, "--epochs", 3, "--bounds", bounds,
       "--validate-every", 0, "--out", folder / "run")  # fmt: skip
    dataset = cardkge.load_dataset("families")
    for split, size in (("valid", 1500), ("test", 800)):
        lines = corrupted(dataset, np.asarray(getattr(dataset, split))[:size], size)
        write(folder / f"{split}.txt", "".join(lines))
    return folder


def test_no_two_columns_have_one_name(capsys):
    metrics = dict.fromkeys(METRICS, 0.5)
    part = metrics | {"triples": 1, "baselines": {BASELINE: metrics}}
    hard = {"triples": 1, "refused": {"ours": 1.0}}
    show_classification(part | {"in_train": {"true": 0, "false": 0}, "hard_false": hard, "relations": {}}, "note")
    header, *_, last = capsys.readouterr().out.splitlines()
    names = re.split("  +", header.strip())
    assert len(set(names)) == len(names) == 10
    assert (
        last == "1 false triple has a tail as frequent as those of half of the true ones; taken for false: ours 100.0 %"
    )


@pytest.mark.thorough
def test_labels_teach(trained):
    """On families, end to end: better than by the frequency of the tail, on files of test, learnt on valid."""
    command = "classify", trained / "run", trained / "test.txt", "--valid", trained / "valid.txt"
    found = json.loads(ok(*command, "--json", "-").stdout)
    baseline = found["baselines"][BASELINE]
    assert found["accuracy"] > baseline["accuracy"] + 0.05 and found["accuracy"] > 0.8
    assert found["brier"] < 0.1 < baseline["brier"] and found["auc"] > 0.9 > baseline["auc"]
    assert found["baselines"]["threshold"]["brier"] is None and found["in_train"] == {"true": 0, "false": 0}
    parts = found["relations"]
    assert sum(part["triples"] for part in parts.values()) == found["triples"]
    whole = sum(part["triples"] * part["accuracy"] for part in parts.values()) / found["triples"]
    assert whole == pytest.approx(found["accuracy"])
    assert len({json.dumps(found), *(ok(*command, "--json", "-", "--threads", n).stdout for n in (1, 2))}) == 2
    table = ok(*command).stdout
    assert f"{100 * found['accuracy']:.2f}" in table and f"{baseline['brier']:.4f}" in table and "Platt" in table


@pytest.mark.parametrize("bounds", [None, (1.0, 1.0)])
def test_the_calibration_knows_train_alone(monkeypatch, bounds):
    """Valid is not known, so that its share lowers no odds: p by the words of `Calibration`. Train has one tail of
    (0, r), which is no candidate, and no loop of r, so that 0 is none either: as at the fit."""
    model = cardkge.DistMult(6, 1, dim=3, seed=2, dtype="float64")
    train = np.array([(0, 0, 1), (2, 0, 3), (2, 0, 4)])
    parameters = np.array([[0.2, 1.0, 0.5, -0.5, 0.1, 0.2, -0.3, 1.5]])
    share, one = np.array([0.6]), np.ones(1)
    missing = Missing(6 * one.astype(int), 4 * one.astype(int), 0 * one, ["assumed"], np.inf * one, share)
    of = cardkge.Calibration(
        parameters, np.array([1.0, 0.5, -1]), np.array([2.0, 1, 1]), share, share, None, None, missing
    )
    limits = cardkge.as_bounds(None if bounds is None else np.array([bounds]) + 1, 1)  # beside the known tail
    monkeypatch.setattr(classification, "calibrated_run", lambda *_: of)
    monkeypatch.setattr(classification, "run_bounds", lambda _: limits)
    run = SimpleNamespace(entities=list("abcdef"), relations=["r"], best_model=lambda: model)
    dataset, asked = SimpleNamespace(train=train), np.array([(0, 0, 5), (0, 0, 2), (0, 0, 3), (0, 0, 0)])
    p = by_calibration(run, None, dataset, asked, 1)[None]
    scores = model.score_tails([0], [0])[0, 2:]
    total, best = math.log(np.exp(scores).sum()), scores.max()
    offset = 1.0 - 0.5 * 0 + 0.1 * (total - 1.0) / 2 + 0.2 * (math.log(2) - 0.5) - 0.3 * (best - total + 1)
    pi = 1 / (1 + math.exp(-1.5)) / (1 + np.exp(-(math.exp(0.2) * (scores - total) + offset)))
    expected = pi if bounds is None else pi / (1 - pi) / (pi / (1 - pi)).sum()
    np.testing.assert_allclose(p, [*expected[[3, 0, 1]], 0], rtol=1e-4)


@pytest.mark.thorough
def test_without_labels_the_calibration_says(trained):
    """The probability of a triple is the one that its (h, r) gives it: against the plain form."""
    run, dataset = cardkge.load_run(trained / "run"), cardkge.load_dataset("families")
    triples, _ = read_labelled(trained / "test.txt", run.entities, run.relations)
    p = by_calibration(run, trained / "run", dataset, triples, 1)[None]
    assert (p == by_calibration(run, trained / "run", dataset, triples, 2)[None]).all()
    model, calibration = run.best_model(), run.calibration
    for i in (0, 1, 100, 333):
        h, r, t = triples[i].tolist()
        scores = model.score_tails([h], [r])[0]
        known = dataset.train[(dataset.train[:, :2] == (h, r)).all(1), 2]
        others = np.delete(np.arange(len(scores)), [*known, h])  # no relation of families has a loop
        total, best = cardkge.log_sum_exp(scores[others]), scores[others].max()
        features = pair_features([total], [len(known)], [best], calibration.centre, calibration.scale)[0]
        odds = calibrated_log_odds(calibration.parameters[r], scores[others] - total, features)[0]
        lower, upper = run.bounds.of(r, [0])[0] - len(known)
        expected = cardkge.conditioned(odds, lower, upper)  # train alone is known
        assert p[i] == pytest.approx(expected[others == t][0], rel=0.02, abs=1e-4)
    found = json.loads(ok("classify", trained / "run", trained / "test.txt", "--json", "-").stdout)
    assert found["auc"] > found["baselines"][BASELINE]["auc"]


@pytest.mark.thorough
def test_a_triple_of_train_is_said_and_not_taken_for_true(trained, tmp_path):
    dataset = cardkge.load_dataset("families")
    lines = list(corrupted(dataset, np.asarray(dataset.train)[:30], 1))
    path = write(tmp_path / "a.txt", "".join(line.replace("\t1\n", "\t-1\n") for line in lines[:20]) + lines[0])
    result = ok("classify", trained / "run", path)
    assert "1 true and 10 false ones stand in train" in result.stdout


@pytest.mark.thorough
def test_one_class(trained, tmp_path):
    lines = (trained / "test.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    path = write(tmp_path / "true.txt", "".join(line for line in lines if line.endswith("\t1\n")))
    command = "classify", trained / "run", trained / "test.txt", "--valid", path
    assert "true.txt: all 800 triples are true; labels are learnt from true and false ones" in one_error(
        invoke(*command)
    )
    found = json.loads(ok("classify", trained / "run", path, "--json", "-").stdout)
    assert found["auc"] is None and found["hard_false"] == {"triples": 0, "refused": {}}


@pytest.mark.thorough
def test_errors_of_the_command(trained, tmp_path):
    run = trained / "run"
    assert "cannot be read" in one_error(invoke("classify", run, tmp_path / "none.txt"))
    path = write(tmp_path / "a.txt", "nobody\tparent\tnobody_else\t1\n")
    assert "--skip-unknown" in one_error(invoke("classify", run, path))
    assert "no triples are left" in one_error(invoke("classify", run, path, "--skip-unknown"))
    ring = write_ring(tmp_path / "ring")
    ok("train", "--data", ring, "--epochs", 1, "--dim", 4, "--no-calibrate", "--out", tmp_path / "run")
    path = write(tmp_path / "b.txt", "e1\tr0\te2\t1\ne1\tr0\te3\t0\n")
    assert "not calibrated yet" in one_error(invoke("classify", tmp_path / "run", path))
    result = ok("classify", tmp_path / "run", path, "--valid", path)  # labels need no calibration
    assert f"{path}: 2 of 2 triples stand in {path} too, where labels are learnt" in result.stderr
