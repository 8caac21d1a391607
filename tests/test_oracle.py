"""The oracle files: what they hold, that today's code still gives them, and the comparison with other people's.

That its values are right is the business of test_peers.py.
"""

import copy
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent.parent / "data"))

import make_oracle
from test_calibration import as_queries, by_kernel

import cardkge
import cli
import kernels
from cardkge_tools.engine.batches import Sample
from cardkge_tools.experiments import reports as room

ROOT = Path(__file__).resolve().parent.parent
FIRST, SECOND, THIRD, FOURTH, KEPT = FILES = [ROOT / "data" / f"oracle-{version}.json" for version in range(1, 6)]
ORACLE = json.loads(KEPT.read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in ORACLE["cases"]}
MODELS = ("distmult", "complex", "ermlp")


def of_kind(*kinds):
    return pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["kind"] in kinds])


def run_cli(*arguments):
    return CliRunner().invoke(cli.main, ["oracle", *map(str, arguments)])


def answers(*names):
    """A file of someone's as it should be: these cases (all without names), outputs only."""
    cases = [{"name": name, "outputs": copy.deepcopy(CASES[name]["outputs"])} for name in names or CASES]
    return {"format": "cardkge-oracle", "version": 5, "cases": cases}


def verdicts(tmp_path, content, **tolerances):
    path = tmp_path / "theirs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    found = cardkge.check_oracle(path, **tolerances)
    assert [name for name, _, _ in found] == list(CASES)
    return {name: (verdict, text) for name, verdict, text in found}


# --- versions 1 to 5


@pytest.mark.parametrize("version", [*(pytest.param(i, marks=pytest.mark.thorough) for i in range(1, 5)), 5])
def test_todays_code_makes_every_version_byte_for_byte(version):
    """A change here is a change of the reference: it needs a new ORACLE_VERSION, and a new file beside the old one."""
    assert room.ORACLE_VERSION == len(FILES) == 5
    assert make_oracle.text_of(make_oracle.make(version)).encode() == FILES[version - 1].read_bytes()


def test_every_value_of_the_newest_version_is_made_again(monkeypatch):
    """Without the file beside it, within half of 1e-12: the tolerance of the file is 1e-9, that of plain code 1e-12."""
    monkeypatch.setattr(make_oracle, "FOLDER", Path("nowhere"))
    content = make_oracle.make()
    assert [case["name"] for case in content["cases"]] == list(CASES)
    for case in content["cases"]:
        assert case["inputs"] == CASES[case["name"]]["inputs"]
        for key, value in case["outputs"].items():
            fault = room.difference(value, CASES[case["name"]]["outputs"][key], 5e-13, 1e-14)
            assert fault is None, (case["name"], key, fault)


def test_the_generator_is_a_command(tmp_path):
    command = [sys.executable, ROOT / "data" / "make_oracle.py", "--out", tmp_path / "o.json", "--version", "2"]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert (tmp_path / "o.json").read_bytes() == SECOND.read_bytes()


def test_write_copies_the_file_of_a_version(tmp_path):
    path = tmp_path / "oracle.json"
    assert run_cli("write", path).exit_code == 0
    assert path.read_bytes() == KEPT.read_bytes()
    for version, kept in enumerate(FILES, 1):
        assert run_cli("write", path, "--version", version).exit_code == 0
        assert path.read_bytes() == kept.read_bytes()
        assert cardkge.oracle(version) == json.loads(kept.read_text(encoding="utf-8"))
    for version in (0, 6):
        with pytest.raises(cardkge.CardkgeError, match=f"version {version}; this program has .* versions 1 to 5"):
            cardkge.write_oracle(path, version)


def test_a_version_begins_with_those_before_it():
    for path, number in ((FIRST, 129), (SECOND, 153), (THIRD, 188), (FOURTH, 205)):
        cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
        assert ORACLE["cases"][:number] == cases


def test_a_file_of_version_1_is_compared_with_version_1(tmp_path):
    content = json.loads(FIRST.read_text(encoding="utf-8"))
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content))
    assert "129 ok, 0 differ, 0 skipped" in run_cli("check", path).output
    content["cases"].append({"name": "complex/softmax", "outputs": {"loss": 1.0}})
    path.write_text(json.dumps(content))
    assert "unknown case 'complex/softmax'" in run_cli("check", path).output


def simd_features():
    return np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])


def test_the_bytes_depend_on_no_processor_and_no_hash_seed(tmp_path):
    """Without SIMD and with another BLAS kernel exp, tanh and products differ in the last bits; the file does not."""
    code = (
        "import sys, numpy as np, make_oracle as m; open(sys.argv[1], 'w').write(m.text_of(m.make()));"
        "print(np.exp(np.arange(1, 5000) / 777).tobytes().hex())"
    )
    bits, files = [], []
    for seed, features, core in (("0", "", ""), ("7", " ".join(simd_features()), "Prescott")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "NPY_DISABLE_CPU_FEATURES": features}
        environment |= {"PYTHONPATH": str(ROOT / "data")} | ({"OPENBLAS_CORETYPE": core} if core else {})
        path = tmp_path / f"{seed}.json"
        bits.append(subprocess.check_output([sys.executable, "-c", code, path], env=environment))
        files.append(path.read_bytes())
    assert files[0] == files[1] == KEPT.read_bytes()
    if {"AVX512F", "AVX512_SKX", "X86_V4"} & set(simd_features()):
        assert bits[0] != bits[1]  # so it was another processor, as far as exp can see


@pytest.mark.parametrize(
    "function",
    ["probability", "violation", "adagrad_step", "filtered_ranks", "mine_bounds", "conditioned", "thinned_likelihood"],
)
def test_a_change_too_small_for_the_tolerance_changes_the_bytes(tmp_path, monkeypatch, function):
    exact = getattr(cardkge, function)

    def changed(*arguments):
        found = exact(*arguments)
        if function == "adagrad_step":
            arguments[0][...] *= 1 + 1e-12
        elif isinstance(found, tuple):
            return found[0] * (1 + 1e-12), *found[1:]
        return found if found is None else found * (1 + 1e-12)

    for module in (cardkge, make_oracle):  # a function may be called in both
        monkeypatch.setattr(module, function, lambda *a, **k: changed(*a, *k.values()), raising=False)
    text = make_oracle.text_of(make_oracle.make())
    assert text.encode() != KEPT.read_bytes()
    written = json.loads(text)
    pairs = [(case["outputs"], CASES[case["name"]]["outputs"]) for case in written["cases"]]
    assert sum(new != old for new, old in pairs) > 0
    # the comparison does not see it; but for p: X = 4 (1 + 1e-12) is no longer at a bound of 4, and 1 - p may be small
    different = {name for name, (verdict, _) in verdicts(tmp_path, written).items() if verdict != "ok"}
    at_bounds = {f"{model}/cardinality-at-{bound}" for model in MODELS for bound in ("upper", "both")}
    assert different >= at_bounds if function == "probability" else not different


def test_a_later_version_starts_from_what_the_code_gives():
    content = make_oracle.make(6)
    assert content["version"] == 6
    for case in content["cases"]:
        for key, value in case["outputs"].items():
            fault = room.difference(value, CASES[case["name"]]["outputs"][key], **make_oracle.ROUNDING)
            assert fault is None, (case["name"], key, fault)


def test_a_model_of_ones_own_that_is_loaded_adds_no_case(monkeypatch):
    monkeypatch.setitem(cardkge.MODELS, ":Toy", cardkge.DistMult)
    assert [case["name"] for case in make_oracle.make()["cases"]] == list(CASES)


def test_the_file_is_plain():
    """Plain JSON numbers: ASCII, no NaN, no infinity, no zero with a sign; under 400 kB."""
    text = KEPT.read_bytes().decode("ascii")
    assert len(text) < 400_000 and text.endswith("\n") and "\r" not in text
    assert not re.search(r"NaN|Infinity|-0\.0\b(?!\d)", text)


def test_what_is_covered():
    """Every kind, for each model the same cases."""
    kinds = {case["kind"] for case in CASES.values()}
    assert kinds == set(make_oracle.KINDS)
    parts = {
        m: {name.split("/")[1]: case["kind"] for name, case in CASES.items() if name.startswith(m)} for m in MODELS
    }
    assert parts["distmult"] == parts["complex"] == parts["ermlp"]
    samplings = [
        f"cardinality-{kind}-{at}" for kind in cardkge.SAMPLINGS for at in ("below", "inside", "above", "around")
    ]
    steps = [f"step-{optimizer}-{project}" for optimizer in ("sgd", "adagrad") for project in ("none", "unit")]
    at_bounds = [f"cardinality-at-{bound}" for bound in ("lower", "upper", "both")]
    assert {*samplings, *steps, *at_bounds, "ranks", "ranks-ties", "loss-hinge", "objective-logistic"} < set(
        parts["complex"]
    )


# --- the cases are what their names say


@of_kind("cardinality")
def test_on_which_side_of_the_bounds(name):
    case = CASES[name]
    inputs, outputs = case["inputs"], case["outputs"]
    lower, upper = inputs["bounds"][inputs["relation"]]
    upper = math.inf if upper is None else upper
    sides = sorted((x > upper) - (x < lower) for x in outputs["X"])
    at = name.rsplit("-", 1)[1]
    expected = {"below": [-1] * 3, "inside": [0] * 3, "above": [1] * 3, "around": [-1, 0, 1], "k1": [1] * 2}
    assert sides == expected.get(at, [0] * 3)
    inside = all(side == 0 for side in sides)
    for key, value in outputs.items():
        if key.startswith("d_"):
            assert np.any(value) != inside, key
    if at in ("lower", "upper", "both"):
        assert outputs["X"] == [4.0] * 3 and 4.0 in (lower, upper)
    # far from the bounds otherwise, so that rounding decides nothing
    else:
        assert min(abs(x - b) for x in outputs["X"] for b in (lower, upper)) > 1e-3


@of_kind("hinge_loss")
def test_kinks_are_where_they_should_be(name):
    inputs, outputs = CASES[name]["inputs"], CASES[name]["outputs"]
    p, q = cardkge.probability(np.array(inputs["positive"])), cardkge.probability(np.array(inputs["negative"]))
    excess = inputs["margin"] + q - p[:, None]
    if name.endswith("kink"):
        assert np.all(excess == 0) and outputs["loss"] == 0 and not np.any(outputs["d_negative"])
    elif name.endswith("0.25"):
        assert np.any(excess > 0.01) and np.any(excess < -0.01)


@of_kind("step")
def test_a_step_has_every_difficulty(name):
    inputs, outputs = CASES[name]["inputs"], CASES[name]["outputs"]
    heads, tails = np.array(inputs["heads"]), np.array(inputs["tails"])
    assert np.count_nonzero(heads == 0) + np.count_nonzero(tails == 0) > 3  # repeated
    assert np.any(heads == tails)
    used = {*heads.ravel(), *tails.ravel()}.union(*(s["subjects"] + s["objects"] for s in inputs["samples"]))
    assert used == set(range(8)) - {5, 7}
    assert outputs["entity"][5] == inputs["parameters"]["entity"][5] and not np.any(outputs["entity"][7])
    norms = np.linalg.norm(outputs["entity"], axis=1)
    assert np.allclose(norms[:7], 1, rtol=1e-14) == (inputs["project"] == "unit")
    if inputs["optimizer"] == "adagrad":
        before, after = (np.array(a) for a in (inputs["accumulators"]["entity"], outputs["accumulator_entity"]))
        assert not before[[4, 5, 7]].any() and not after[[5, 7]].any() and after[4].all()
    else:
        assert inputs["accumulators"] == {} and not any(key.startswith("acc") for key in outputs)


@of_kind("ranks")
def test_ranks_need_every_split_and_have_ties_or_none(name):
    inputs, outputs = CASES[name]["inputs"], CASES[name]["outputs"]
    model = make_oracle.arguments(inputs)["model"]
    test = np.array(inputs["test"])
    for left_out in ("train", "valid", "test"):
        known = np.array(
            [triple for split in ("train", "valid", "test") if split != left_out for triple in inputs[split]]
        )
        ranks = cardkge.rank_triples(model, test, known)["filtered"]
        assert np.any(ranks > outputs["filtered_realistic"]), left_out
    low, high = np.array(outputs["filtered_optimistic"]), np.array(outputs["filtered_pessimistic"])
    assert np.any(low < high, axis=0).tolist() == [name.endswith("ties")] * 2
    gaps = []
    for scores in (model.score_tails(*test[:, :2].T), model.score_heads(*test[:, 1:].T)):
        gaps += [gap for row in np.sort(scores) for gap in np.diff(row)]
    if name.endswith("ties"):
        assert min(gap for gap in gaps if gap) > 1e-3 and min(gaps) == 0
    else:
        assert min(gaps) > 1e-4


@of_kind("calibration")
def test_calibrated_probabilities_keep_the_order(name):
    inputs, outputs = CASES[name]["inputs"], CASES[name]["outputs"]
    of_known = np.array(inputs["coefficients"])[range(len(inputs["known"])), np.minimum(inputs["known"], 2)]
    assert np.all(of_known[:, 0] + of_known[:, 1] > 0)
    assert name.endswith("extremes") or set(np.sign(of_known[:, 0])) == {-1, 1}
    for scores, logits in zip(inputs["scores"], outputs["logits"], strict=True):
        order, ties = np.argsort(scores), len(scores) - len(set(scores))
        assert np.all(np.diff(np.array(logits)[order])[np.diff(np.array(scores)[order]) > 0] > 0)
        assert len(logits) - len(set(logits)) == ties
    assert name.endswith("plain") or any(len(set(scores)) < len(scores) for scores in inputs["scores"])


@of_kind("conditional")
def test_conditional_cases_have_the_windows_of_their_names(name):
    inputs, outputs = CASES[name]["inputs"], CASES[name]["outputs"]
    x, p, k = np.array(inputs["log_odds"]), np.array(outputs["probability"]), inputs["known"]
    lower, upper = inputs["bounds"]
    upper = math.inf if upper is None else upper
    nothing = "too-many-known", "too-few-candidates", "weights-of-0", "weights-of-0-above"
    assert outputs["contradicted"] == (name.split("/")[1] in nothing)
    if outputs["contradicted"]:
        assert not p.any() and outputs["expected"] == k
        assert "weights" in inputs or not lower <= outputs["expected"] <= upper
        return
    assert lower - 1e-9 <= outputs["expected"] <= upper + 1e-9 and outputs["expected"] == pytest.approx(k + p.sum())
    order = np.argsort(x)
    assert np.all(np.diff(p[order])[np.diff(x[order]) == 0] == 0) and np.all(np.diff(p[order]) >= 0)
    bound = {"at-most": (0, 2), "between": (2, 4), "exactly": (3, 3), "at-least": (4, math.inf), "fractions": (1, 3)}
    if name.split("/")[1] in bound:
        assert (max(math.ceil(lower - k), 0), math.floor(upper - k) if upper < math.inf else upper) == bound[
            name.split("/")[1]
        ]
    unchanged = cardkge.probability(x)
    same = len(p) == 0 or bool(np.all(p == unchanged))
    assert same == (name.split("/")[1] in ("unbounded", "lower-met", "loose", "no-candidates", "weights-alike"))


def test_the_calibration_kernel_reproduces_the_conditional_cases():
    cases = [case for case in CASES.values() if case["kind"] == "conditional" and not case["outputs"]["contradicted"]]
    starts = np.append(0, np.cumsum([len(case["inputs"]["log_odds"]) for case in cases]))
    bounds = np.array([case["inputs"]["bounds"] for case in cases], float)
    lower, upper = (np.where(np.isnan(bounds), np.inf, bounds) - [[case["inputs"]["known"]] for case in cases]).T
    answers = np.full(starts[-1], np.nan)
    x = np.concatenate([case["inputs"]["log_odds"] for case in cases])
    weights = [case["inputs"].get("weights", [1.0]) for case in cases]
    weights = np.array([row + row[-1:] * (6 - len(row)) for row in weights])
    kernels.condition_sets(0, len(cases), starts, x, lower, upper, weights, np.zeros(1), answers)
    expected = np.concatenate([case["outputs"]["probability"] for case in cases])
    np.testing.assert_allclose(answers, expected, rtol=1e-10, atol=1e-14)


@of_kind("thinned_likelihood")
def test_likelihoods_have_the_bounds_of_their_names(name):
    inputs, outputs = CASES[name]["inputs"], CASES[name]["outputs"]
    lower, upper = inputs["bounds"]
    d, found = np.array(outputs["d_log_odds"]), np.array(inputs["found"], bool)
    assert outputs["log_probability"] <= 0 and (d[found] >= 0).all() and (d[~found] <= 1e-14).all()
    assert (outputs["d_log_rest"] < 0) == (inputs["rest"] > 0)
    bounds = {"free": (0, None), "one": (1, 1), "two": (0, 2), "some": (1, 3), "at-least": (1, None)}
    case, _, what = name.split("/")[1].removeprefix("rest-").partition("-")
    assert (lower, upper) == bounds.get(case, (lower, upper))
    if case in bounds and what == "none":
        assert not found.any()
    elif case in bounds and not inputs["rest"]:
        assert found.sum() == (1 if case == "one" or what == "of-one" else 2)


def test_likelihoods_are_told_for_every_kind_of_bounds():
    """No bounds, [1, 1], [0, 2], [1, 3] and [1, inf): with answers in valid, without, and beside a rest."""
    seen = {
        (*case["inputs"]["bounds"], any(case["inputs"]["found"]), case["inputs"]["rest"] > 0)
        for case in CASES.values()
        if case["kind"] == "thinned_likelihood"
    }
    for bounds in ((0, None), (1, 1), (0, 2), (1, 3), (1, None)):
        assert {(*bounds, True, False), (*bounds, False, False)} < seen
        assert {(*bounds, True, True), (*bounds, False, True)} & seen


def test_the_toy_of_two_heads():
    value = CASES["calibration-objective/toy"]["outputs"]["value"]
    assert value == pytest.approx(-math.log(2 / 9) - math.log(125 / 288), rel=1e-14)


@of_kind("calibration_objective")
def test_the_kernel_of_the_fit_reproduces_the_objectives(name):
    inputs, outputs = CASES[name]["inputs"], CASES[name]["outputs"]
    parameters = np.array(inputs["parameters"])
    away = parameters - inputs["centre"]
    value, gradient = np.array(inputs["precision"]) @ away**2 / 2, inputs["precision"] * away
    if inputs["queries"]:
        limits = [
            (lower, np.inf if upper is None else upper) for lower, upper in (q["bounds"] for q in inputs["queries"])
        ]
        queries = [
            {key: np.array(part) for key, part in query.items()} | {"lower": lower, "upper": upper}
            for query, (lower, upper) in zip(inputs["queries"], limits, strict=True)
        ]
        queries = [query | {"found": query["found"] > 0} for query in queries]
        values, gradients = by_kernel(as_queries(queries), parameters)
        weight = np.array([query["weight"] for query in queries])
        value, gradient = value - weight @ values, gradient - weight @ gradients
    assert value == pytest.approx(outputs["value"], rel=1e-10)
    np.testing.assert_allclose(gradient, outputs["d_parameters"], rtol=1e-8, atol=1e-10)


# --- the fast path


@of_kind("step")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_fast_path_reproduces_the_steps(name, threads):
    inputs, outputs = CASES[name]["inputs"], CASES[name]["outputs"]
    arguments = make_oracle.arguments(inputs)
    model, bounds = arguments["model"], arguments["bounds"]
    names = ("loss", "margin", "l2", "penalty_weight", "optimizer", "project", "learning_rate")
    settings = {"model": model.name, "dtype": "float64", "sampling": "importance"}  # uniform would drop lower bounds
    settings = cardkge.Settings(**settings, **{key: inputs[key] for key in names})
    accumulators = {key: np.array(value) for key, value in inputs["accumulators"].items()}
    ends = np.stack([inputs["heads"], inputs["tails"]], axis=-1).astype(np.int32)
    relations = np.array(inputs["relations"], np.int32)[:, 0]
    parts = [np.array([sample[key] for sample in inputs["samples"]]) for key in ("relation", "subjects", "objects")]
    weights = np.array([sample["weights"] for sample in inputs["samples"]])
    counts = np.full(len(weights), parts[1].shape[1])
    sample = Sample(parts[0], parts[1].astype(np.int32), counts, parts[2].astype(np.int32), weights)
    triples = np.stack([ends[:, 0, 0], relations, ends[:, 0, 1]], axis=1)
    with cardkge.Threads(threads) as pool:
        sums = cardkge.Trainer(model, accumulators, settings, bounds, triples, pool).step((ends, relations, [sample]))
    expected = CASES[f"{model.name}/objective-{inputs['loss']}"]["outputs"]["loss"]
    if inputs["parameters"] == CASES[f"{model.name}/objective-{inputs['loss']}"]["inputs"]["parameters"]:
        assert sums["loss"] == pytest.approx(expected, rel=1e-12)
    found = model.params | {f"accumulator_{key}": value for key, value in accumulators.items()}
    assert set(found) == set(outputs)
    for key, value in outputs.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-12, atol=1e-13, err_msg=key)


# --- check


def test_our_own_file_agrees(tmp_path):
    found = run_cli("check", KEPT)
    assert found.exit_code == 0 and found.stderr == ""
    lines = found.stdout.splitlines()
    assert lines[:-2] == [f"ok       {name}" for name in CASES]
    assert lines[-1] == f"{len(CASES)} ok, 0 differ, 0 skipped (rtol 1e-09, atol 1e-12)"
    assert all(found == ("ok", "") for found in verdicts(tmp_path, answers()).values())


def leaves(value, place=()):
    """(place, value) of every number in nested lists."""
    if isinstance(value, list):
        for i, part in enumerate(value):
            yield from leaves(part, (*place, i))
    else:
        yield place, value


def put(outputs, key, place, value):
    """Replace a number of an output."""
    if not place:
        outputs[key] = value
        return
    part = outputs[key]
    for i in place[:-1]:
        part = part[i]
    part[place[-1]] = value


@pytest.mark.parametrize(
    "which", [pytest.param(0, marks=pytest.mark.thorough), 0.4, pytest.param(1, marks=pytest.mark.thorough)]
)
def test_every_output_is_compared_and_the_first_fault_is_named(tmp_path, which):
    """In each round one output of each case has a wrong number, at its start, middle or end, and its last one too."""
    for round_ in range(max(len(case["outputs"]) for case in CASES.values())):
        content, expected = answers(), {}
        for case in content["cases"]:
            keys = [key for key, value in case["outputs"].items() if value != []]
            key = keys[round_ % len(keys)]
            numbers = list(leaves(case["outputs"][key]))
            numbers = [numbers[int(which * (len(numbers) - 1))], numbers[-1]]
            for place, value in numbers:
                put(case["outputs"], key, place, 7 if value is None else value * (1 + 1e-8) + 1e-11)
            place, value = numbers[0]
            index = "".join(f"[{i}]" for i in place)
            expected[case["name"]] = f"{key}{index}: expected {math.inf if value is None else value!r}, found "
        found = verdicts(tmp_path, content)
        for name, text in expected.items():
            assert found[name][0] == "differs" and found[name][1].startswith(text), name


def test_cases_and_outputs_may_be_left_out(tmp_path):
    content = answers("complex/scores-k3", "metrics/ranks")
    del content["cases"][0]["outputs"]["score_tails"]
    content["cases"][0] |= {"inputs": {"ignored": 1}, "kind": 3, "note": "ours"}
    found = verdicts(tmp_path, content)
    assert found.pop("complex/scores-k3") == ("ok", "without score_tails")
    assert found.pop("metrics/ranks") == ("ok", "")
    assert set(found.values()) == {("skipped", "")}


def test_infinity_may_be_written_as_such(tmp_path):
    content = answers("mined-bounds/subjects")
    bounds = content["cases"][0]["outputs"]["bounds"]
    assert bounds[2] == [0.0, None]
    bounds[2] = [0, math.inf]
    assert verdicts(tmp_path, content)["mined-bounds/subjects"] == ("ok", "")
    bounds[2] = [0, -math.inf]
    assert verdicts(tmp_path, content)["mined-bounds/subjects"][0] == "differs"


def test_the_tolerance_is_as_stated(tmp_path):
    content = answers("metrics/ranks")
    exact = content["cases"][0]["outputs"]["both_mean_rank"]
    for tolerances, allowed in (
        ({}, 1e-12 + 1e-9 * exact),
        ({"rtol": 1e-3}, 1e-12 + 1e-3 * exact),
        ({"rtol": 0, "atol": 1e-5}, 1e-5),
    ):
        for sign in (1, -1):
            for share, verdict in ((0.99, "ok"), (1.01, "differs")):
                content["cases"][0]["outputs"]["both_mean_rank"] = exact + sign * share * allowed
                assert verdicts(tmp_path, content, **tolerances)["metrics/ranks"][0] == verdict


WRONG = {  # what stands in place of metrics/ranks' both_mrr or mined bounds: the text
    "NaN": (math.nan, "both_mrr: expected 0.45341269841269843, found nan, difference nan"),
    "infinity": (math.inf, "both_mrr: expected 0.45341269841269843, found inf, difference inf"),
    "null": (None, "both_mrr: expected 0.45341269841269843, found inf, difference inf"),
    "text": ("0.453", 'both_mrr: expected a number, found "0.453"'),
    "a bool": (True, "both_mrr: expected a number, found true"),
    "an object": ({}, "both_mrr: expected a number, found {}"),
    "a list": ([0.45341269841269843], "both_mrr: expected shape (), found (1,)"),
    "a huge integer": (10**400, "both_mrr: expected a number, found 1000000000000000000000000000000000000000"),
}


@pytest.mark.parametrize("value, text", WRONG.values(), ids=WRONG)
def test_what_is_no_such_number_differs(tmp_path, value, text):
    content = answers("metrics/ranks")
    content["cases"][0]["outputs"]["both_mrr"] = value
    assert verdicts(tmp_path, content)["metrics/ranks"] == ("differs", text)


@pytest.mark.parametrize(
    "value, text",
    [
        ([[0.0, 3.0], [0.0, 2.0]], "bounds: expected shape (3, 2), found (2, 2)"),
        ([[0.0, 0.0, 0.0], [3.0, 2.0, None]], "bounds: expected shape (3, 2), found (2, 3)"),
        ([0.0, 3.0, 0.0, 2.0, 0.0, None], "bounds: expected shape (3, 2), found (6,)"),
        ([[0.0, 3.0], [0.0]], "bounds: expected rows of equal length, found (1,) and (2,)"),
        ([[0.0, 3.0], 0.0], "bounds: expected rows of equal length, found () and (2,)"),
        ([], "bounds: expected shape (3, 2), found (0,)"),
        (
            [[0, 3], [0, 2], [math.nan, None]],
            "bounds[2][0]: expected 0.0, found nan, difference nan (1 of 6 values differ)",
        ),
    ],
)
def test_wrong_shapes_are_named(tmp_path, value, text):
    content = answers("mined-bounds/subjects")
    content["cases"][0]["outputs"]["bounds"] = value
    assert verdicts(tmp_path, content)["mined-bounds/subjects"] == ("differs", text)


def edited(**changes):
    return json.dumps(answers("metrics/ranks") | changes)


def one_case(name="metrics/ranks", **outputs):
    return {"name": name, "outputs": outputs}


FAULTS = {
    "not JSON": ("{", "not JSON"),
    "binary": ("\udcff\x00", "not JSON"),
    "deep": ("[" * 100_000, "not JSON"),
    "a list": ("[]", 'an object with "format": "cardkge-oracle"'),
    "another format": (edited(format="other"), 'an object with "format": "cardkge-oracle"'),
    "a later version": (edited(version=6), "version 6; this program has the values of versions 1 to 5"),
    "no version": (edited(version=None), "version null; this program has the values of versions 1 to 5"),
    "cases of another kind": (edited(cases={}), 'expected a list "cases"'),
    "a case without outputs": (edited(cases=[{"name": "metrics/ranks"}]), 'cases[0]: expected an object with a "name"'),
    "a case that is no object": (edited(cases=[one_case(both_mrr=1), 3]), "cases[1]: expected an object"),
    "a misspelt case": (
        edited(cases=[one_case("complex/score-k3", score=[1])]),
        "unknown case 'complex/score-k3'; did you mean 'complex/scores-k3'?",
    ),
    "a strange case": (edited(cases=[one_case("x", y=1)]), "unknown case 'x'; expected one of 238, such as"),
    "a misspelt output": (
        edited(cases=[one_case(both_mr=1)]),
        "unknown output of metrics/ranks 'both_mr'; did you mean 'both_mrr'?",
    ),
    "a case twice": (edited(cases=[one_case(both_mrr=1)] * 2), "case 'metrics/ranks' stands there twice"),
    "no case": (edited(cases=[]), "so there is nothing to compare"),
    "no output": (edited(cases=[one_case()]), "so there is nothing to compare"),
}


@pytest.mark.parametrize("text, message", FAULTS.values(), ids=FAULTS)
def test_a_file_that_cannot_be_compared_is_one_line(tmp_path, text, message):
    path = tmp_path / "theirs.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    found = run_cli("check", path)
    assert found.exit_code == 1 and found.stdout == ""
    assert found.stderr.startswith(f"error: {path}: ") and found.stderr.count("\n") == 1
    assert message in found.stderr


def test_a_file_that_is_not_there(tmp_path):
    found = run_cli("check", tmp_path / "none.json")
    assert found.exit_code == 1 and "cannot be read" in found.stderr and found.stderr.count("\n") == 1
    assert run_cli("write", tmp_path / "none" / "oracle.json").exit_code == 1


def test_differences_on_the_command_line(tmp_path):
    path = tmp_path / "theirs.json"
    content = answers("metrics/ranks", "mined-bounds/subjects", "probability/extremes")
    content["cases"][0]["outputs"]["head_hits@3"] += 0.25
    path.write_text(json.dumps(content))
    found = run_cli("check", path)
    lines = found.stdout.splitlines()
    assert found.exit_code == 1
    assert (
        "differs  metrics/ranks  head_hits@3: expected 0.6666666666666666, found 0.9166666666666666, difference 0.25"
    ) in lines
    assert lines.count("ok       mined-bounds/subjects") == 1 and len(lines) == len(CASES) + 2
    assert lines[-1] == f"2 ok, 1 differ, {len(CASES) - 3} skipped (rtol 1e-09, atol 1e-12)"
    assert found.stderr == f"error: {path}: 1 of 3 cases differ\n"
    assert run_cli("check", path, "--atol", 0.3).exit_code == 0
    assert run_cli("check", path, "--rtol", 0.5).exit_code == 0
    assert run_cli("check", path, "--rtol", "nan").exit_code == 2
