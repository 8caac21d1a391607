"""Reference values for other implementations (docs/ORACLE.md): the definitions of cardkge.py on small cases."""

import difflib
import gzip
import json
import math
import zlib

import numpy as np

from cardkge import (
    MODELS,
    TIES,
    CardkgeError,
    adagrad_step,
    cardinality_penalty,
    cardinality_sums,
    filtered_ranks,
    hinge_loss,
    logistic_loss,
    metrics_by_side,
    mine_bounds,
    object_probabilities,
    objective,
    probability,
    project_rows,
    sgd_step,
    violation,
)
from cardkge_tools.definitions.counting import calibration_logits, calibration_loss, conditioned, log_sum_exp
from cardkge_tools.definitions.settings import Settings
from cardkge_tools.definitions.softmax import softmax_loss, softmax_objective
from cardkge_tools.shell.download import PROJECT_DATA
from cardkge_tools.shell.files import is_packed, replace_file

# A value that changes, or a case that is added, is a new version with a file of its own; the old ones stay. Version 2
# has the softmax over all entities, N3 and reciprocal relations; version 3 calibration and conditional probabilities.
ORACLE_FORMAT, ORACLE_VERSION = "cardkge-oracle", 3
ORACLE_MODELS = "distmult", "complex", "ermlp"  # and none of a user's own that is loaded
ORACLE_RTOL, ORACLE_ATOL = 1e-9, 1e-12
_ROUNDING = {"rtol": 1e-13, "atol": 1e-14}  # by which two processors may differ (exp, tanh, order of a sum)


def oracle(version=ORACLE_VERSION):
    """The reference values: {"format", "version", "tolerance", "cases"}, of numbers, lists and dicts alone.

    A case is {"name", "kind", "what", "inputs", "outputs"}; its outputs are what the function of its kind, below, makes
    of its inputs, with the definitions in float64. An upper bound of None is infinity. A value that agrees with the one
    in data/oracle-VERSION.json, or in that of an earlier version, but for rounding is given as it stands there: the
    same bits on every machine.
    """
    paths = [PROJECT_DATA / f"oracle-{number}.json" for number in range(version, 0, -1)]
    contents = [_read_oracle(path)["cases"] for path in paths if path.exists()]
    kept = {case["name"]: case for cases in contents for case in cases}  # the oldest version has the last word
    cases = []
    for name, kind, what, inputs in _oracle_inputs(version):
        outputs = {key: _plain(value) for key, value in _ORACLE_KINDS[kind](**_arguments(inputs)).items()}
        same = kept.get(name, {}).get("outputs", {})
        for key, value in outputs.items():
            if _first_difference(same.get(key), value, **_ROUNDING) is None:
                outputs[key] = same[key]
        cases.append({"name": name, "kind": kind, "what": what, "inputs": inputs, "outputs": outputs})
    tolerance = {"rtol": ORACLE_RTOL, "atol": ORACLE_ATOL}
    return {"format": ORACLE_FORMAT, "version": version, "tolerance": tolerance, "cases": cases}


def write_oracle(path, version=ORACLE_VERSION):
    """Write `oracle(version)` as JSON, an input or output a line, floats by repr: the same bytes on every run and
    machine."""

    def block(values, indent):
        lines = [f"{indent} {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"

    content = oracle(version)
    cases = [
        "  {\n"
        + "".join(f"   {json.dumps(key)}: {json.dumps(case[key])},\n" for key in ("name", "kind", "what"))
        + f'   "inputs": {block(case["inputs"], "   ")},\n   "outputs": {block(case["outputs"], "   ")}\n  }}'
        for case in content.pop("cases")
    ]
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in content.items())
    text = "{\n" + head + ' "cases": [\n' + ",\n".join(cases) + "\n ]\n}\n"
    replace_file(path, lambda file: file.write(text.encode()))


def check_oracle(path, rtol=ORACLE_RTOL, atol=ORACLE_ATOL):
    """Compare the outputs in a file of the oracle's structure with ours of its version, value by value.

    The file may leave out cases, and of a case "kind", "what", "inputs" and some outputs. A value agrees where
    |found - expected| <= atol + rtol |expected|. Returns a (case name, verdict, text) for each of our cases, in order:
    verdict "ok", "skipped" (not in the file) or "differs", with the first value that does. CardkgeError for a file that
    is not JSON, of another structure or version, with a case or output of an unknown name, or with nothing to compare.
    """
    given = _read_oracle(path)
    cases = {case["name"]: case for case in oracle(given["version"])["cases"]}
    found = {}
    for case in given["cases"]:
        name = case["name"]
        _known_name(path, "case", name, cases)
        if name in found:
            raise CardkgeError(f"{path}: case {name!r} for the second time; keep one of them")
        for key in case["outputs"]:
            _known_name(path, f"output of {name}", key, cases[name]["outputs"])
        found[name] = case["outputs"]
    if not any(found.values()):
        raise CardkgeError(f"{path}: no case with outputs, nothing to compare")
    return [(name, *_compare(case["outputs"], found.get(name), rtol, atol)) for name, case in cases.items()]


def _compare(expected, found, rtol, atol):
    """Verdict and text of one case."""
    if not found:
        return "skipped", ""
    missing = [key for key in expected if key not in found]
    for key in expected:
        fault = None if key in missing else _first_difference(found[key], expected[key], rtol, atol)
        if fault:
            return "differs", key + fault
    return "ok", f"without {', '.join(missing)}" if missing else ""


def _first_difference(found, expected, rtol, atol):
    """None where two nested lists of numbers agree, else the first place where they do not, and how."""
    try:
        (shape, values), (expected_shape, expected_values) = _flat(found), _flat(expected)
    except CardkgeError as error:
        return f": {error}"
    if shape != expected_shape:
        return f": expected shape {expected_shape}, found {shape}"
    faults = []
    for i, (a, b) in enumerate(zip(values, expected_values)):
        if not (a == b or (math.isfinite(b) and abs(a - b) <= atol + rtol * abs(b))):  # a NaN fails both
            faults.append((i, a, b))
    if not faults:
        return None
    i, a, b = faults[0]
    place = "".join(f"[{int(j)}]" for j in np.unravel_index(i, shape)) if shape else ""
    text = f"{place}: expected {b!r}, found {a!r}, difference {a - b:.3g}"
    return text + (f" ({len(faults)} of {len(values)} values differ)" if len(values) > 1 else "")


def _flat(value):
    """Shape and numbers, row by row, of nested lists; None (no upper bound) is infinity."""
    if not isinstance(value, list):
        if value is not None and type(value) is not float and not (type(value) is int and abs(value) < 2**1023):
            raise CardkgeError(f"expected a number, found {json.dumps(value)[:40]}")
        return (), [math.inf if value is None else float(value)]
    parts = [_flat(part) for part in value]
    shapes = {shape for shape, _ in parts}
    if len(shapes) > 1:
        raise CardkgeError("expected rows of equal length, found " + " and ".join(map(str, sorted(shapes))))
    return (len(value), *(shapes.pop() if shapes else ())), [number for _, numbers in parts for number in numbers]


def _read_oracle(path):
    """The content of a file of the oracle's structure and version, or CardkgeError."""
    try:
        with (gzip.open if is_packed(path) else open)(path, "rt", encoding="utf-8-sig") as file:
            content = json.load(file)
    except (OSError, EOFError, zlib.error) as error:  # EOFError, zlib: a damaged .gz
        raise CardkgeError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    except (ValueError, RecursionError) as error:
        raise CardkgeError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != ORACLE_FORMAT:
        raise CardkgeError(f'{path}: expected an object with "format": "{ORACLE_FORMAT}" (docs/ORACLE.md)')
    if type(content.get("version")) is not int or not 1 <= content["version"] <= ORACLE_VERSION:
        found = json.dumps(content.get("version"))[:40]
        raise CardkgeError(f"{path}: version {found}; this program has the values of versions 1 to {ORACLE_VERSION}")
    cases = content.get("cases")
    if not isinstance(cases, list):
        raise CardkgeError(f'{path}: expected a list "cases"')
    for i, case in enumerate(cases):
        if not (isinstance(case, dict) and isinstance(case.get("name"), str) and isinstance(case.get("outputs"), dict)):
            raise CardkgeError(f'{path}: cases[{i}]: expected an object with a "name" and an object "outputs"')
    return content


def _known_name(path, what, name, names):
    """CardkgeError with the nearest name for one that is not among the names."""
    if name not in names:
        near = difflib.get_close_matches(name, names, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {len(names)}, such as {next(iter(names))!r}"
        raise CardkgeError(f"{path}: unknown {what} {name!r}; {hint}")


def _plain(value):
    """An array or number as JSON has it: -0.0 as 0.0 (its sign may depend on the machine), infinity as None."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    return None if value == math.inf else value + 0.0


def _arguments(inputs):
    """The inputs of a case as its function takes them: floats as arrays, a model and its parameters as a model."""
    inputs = dict(inputs)
    if "model" in inputs:
        params = {name: np.array(value, np.float64) for name, value in inputs.pop("parameters").items()}
        kind, extra = MODELS[inputs["model"]], {"hidden": len(params["output"])} if "output" in params else {}
        dim, reciprocal = params["entity"].shape[1] // kind.row_length, inputs.pop("reciprocal", False)
        n_relations = len(params["relation"]) // (2 if reciprocal else 1)
        model = kind(len(params["entity"]), n_relations, dim, dtype="float64", reciprocal=reciprocal, **extra)
        model.params = params
        inputs["model"] = model
    if "bounds" in inputs:
        inputs["bounds"] = np.array(inputs["bounds"], np.float64)  # None becomes NaN
        inputs["bounds"][np.isnan(inputs["bounds"])] = np.inf
    return inputs


def _prefixed(prefix, arrays):
    """Arrays by name, each name with a prefix."""
    return {f"{prefix}_{name}": array for name, array in arrays.items()}


def _oracle_scores(model, heads, relations, tails):
    scores = model.score(heads, relations, tails)
    every_tail, every_head = model.score_tails(heads, relations), model.score_heads(relations, tails)
    return {"score": scores, "score_tails": every_tail, "score_heads": every_head, "probability": probability(scores)}


def _oracle_score_gradients(model, heads, relations, tails, upstream):
    return _prefixed("d", model.gradients(heads, relations, tails, upstream))


def _oracle_probability(scores):
    return {"probability": probability(np.array(scores))}


def _oracle_logistic_loss(scores, labels):
    loss, d_scores = logistic_loss(np.array(scores), labels)
    return {"loss": loss, "d_scores": d_scores}


def _oracle_hinge_loss(positive, negative, margin):
    loss, d_positive, d_negative = hinge_loss(positive, negative, margin)
    return {"loss": loss, "d_positive": d_positive, "d_negative": d_negative}


def _oracle_cardinality(model, bounds, relation, subjects, objects, weights):
    penalty, gradients, sums = cardinality_penalty(model, bounds, relation, subjects, objects, weights)
    g, _ = violation(sums, *bounds[relation])
    return {"X": sums, "G": g, "penalty": penalty, **_prefixed("d", gradients)}


def _oracle_objective(model, heads, relations, tails, loss, margin, l2, penalty_weight, bounds, samples):
    settings = Settings(loss=loss, margin=margin, l2=l2, penalty_weight=penalty_weight)
    samples = [tuple(sample[key] for key in ("relation", "subjects", "objects", "weights")) for sample in samples]
    return objective(model, heads, relations, tails, settings, bounds, samples)


def _oracle_gradients(**batch):
    parts, gradients = _oracle_objective(**batch)
    return parts | _prefixed("d", gradients)


def _oracle_softmax_loss(scores, answers, log_weights):
    loss, d_scores = softmax_loss(np.array(scores), answers, np.array(log_weights))
    return {"loss": loss, "d_scores": d_scores}


def _oracle_softmax_objective(model, triples, sides, l2, n3, penalty_weight, bounds, loopless, candidates, log_weights):
    settings = Settings(loss="softmax", l2=l2, n3=n3, penalty_weight=penalty_weight)
    of = bounds, np.array(loopless), (np.array(candidates), np.array(log_weights))
    parts, gradients = softmax_objective(model, triples, sides, settings, *of)
    return parts | _prefixed("d", gradients)


def _oracle_step(model, accumulators, optimizer, learning_rate, project, **batch):
    _, gradients = _oracle_objective(model, **batch)
    accumulators = {name: np.array(value) for name, value in accumulators.items()}
    for name, param in model.params.items():
        if optimizer == "adagrad":
            adagrad_step(param, accumulators[name], gradients[name], learning_rate)
        else:
            sgd_step(param, gradients[name], learning_rate)
    if project == "unit":
        project_rows(model.params["entity"])
    return model.params | _prefixed("accumulator", accumulators)


def _oracle_update(optimizer, learning_rate, parameter, accumulator, gradient):
    parameter, accumulator, gradient = np.array(parameter), np.array(accumulator), np.array(gradient)
    if optimizer == "sgd":
        sgd_step(parameter, gradient, learning_rate)
        return {"parameter": parameter}
    adagrad_step(parameter, accumulator, gradient, learning_rate)
    return {"parameter": parameter, "accumulator": accumulator}


def _oracle_projection(rows):
    rows = np.array(rows)
    project_rows(rows)
    return {"rows": rows}


def _oracle_sampling(triples, n_entities, n_relations, objects):
    def probabilities(kind, inclusion="uniform"):
        what = n_entities, objects, inclusion
        return np.array([object_probabilities(kind, np.array(triples), r, *what) for r in range(n_relations)])

    q = probabilities("importance")
    return {
        "importance_q": q,
        "importance_weight": 1 / (objects * q),
        "bernoulli_uniform_b": probabilities("bernoulli"),
        "bernoulli_frequency_b": probabilities("bernoulli", "frequency"),
    }


def _oracle_mined_bounds(triples, n_entities, n_relations, population):
    return {"bounds": mine_bounds(np.array(triples), n_entities, n_relations, population)}


def _oracle_ranks(model, train, valid, test):
    known = {"raw": [], "filtered": train + valid + test}
    return {f"{name}_{ties}": filtered_ranks(model, test, known[name], ties) for name in known for ties in TIES}


def _oracle_metrics(ranks):
    by_side = metrics_by_side(np.array(ranks))
    return {f"{side}_{metric}": value for side, values in by_side.items() for metric, value in values.items()}


def _oracle_calibration(coefficients, scores, known, share):
    scores, known = np.array(scores), np.array(known)
    sums = log_sum_exp(scores)
    logits = calibration_logits(np.array(coefficients)[:, None], scores, sums[:, None], known[:, None])
    log_odds = logits + np.log1p(-share)
    return {
        "log_sum": sums,
        "logits": logits,
        "pi": probability(logits),
        "log_odds": log_odds,
        "probability": probability(log_odds),
    }


def _oracle_calibration_loss(parameters, features, found, weights, share, centre, precision):
    rows = np.reshape(features, (-1, 3)), np.array(found, bool), np.array(weights, float)
    prior = np.array(centre), np.array(precision)
    loss, gradient, information = calibration_loss(np.array(parameters), *rows, share, *prior)
    return {"loss": loss, "d_parameters": gradient, "information": information}


def _oracle_conditional(log_odds, known, bounds):
    lower, upper = bounds - known
    contradicted = upper < 0 or math.ceil(lower) > len(log_odds)
    p = np.zeros(len(log_odds)) if contradicted else conditioned(log_odds, lower, upper)
    return {"contradicted": int(contradicted), "probability": p, "expected": known + float(p.sum())}


_ORACLE_KINDS = {
    "scores": _oracle_scores,
    "score_gradients": _oracle_score_gradients,
    "probability": _oracle_probability,
    "logistic_loss": _oracle_logistic_loss,
    "hinge_loss": _oracle_hinge_loss,
    "cardinality": _oracle_cardinality,
    "objective": _oracle_gradients,
    "softmax_loss": _oracle_softmax_loss,
    "softmax_objective": _oracle_softmax_objective,
    "step": _oracle_step,
    "update": _oracle_update,
    "projection": _oracle_projection,
    "sampling": _oracle_sampling,
    "mined_bounds": _oracle_mined_bounds,
    "ranks": _oracle_ranks,
    "metrics": _oracle_metrics,
    "calibration": _oracle_calibration,
    "calibration_loss": _oracle_calibration_loss,
    "conditional": _oracle_conditional,
}


def _oracle_numbers(seed, *shape, unit=1 / 32):
    """Odd multiples of `unit`, -63 to 63 of it, by a linear congruential generator: short decimals, exact in binary."""
    numbers = np.empty(shape)
    for i in range(numbers.size):
        seed = (1103515245 * seed + 12345) % 2**31
        numbers.flat[i] = unit * (2 * (seed >> 16) % 128 - 63)
    return numbers.tolist()


def _oracle_model(name, seed, n_entities, n_relations, dim, hidden):
    """Inputs "model" and "parameters"."""
    width = dim * MODELS[name].row_length
    parameters = {
        "entity": _oracle_numbers(seed, n_entities, width),
        "relation": _oracle_numbers(seed + 1, n_relations, width),
    }
    if name == "ermlp":  # a smaller W, so that tanh does not saturate
        parameters["hidden"] = _oracle_numbers(seed + 2, 3 * dim, hidden, unit=1 / 128)
        parameters["output"] = _oracle_numbers(seed + 3, hidden)
    return {"model": name, "parameters": parameters}


# 8 entities, 2 relations. Triples of `test` have other true answers in train, in valid and in test; some stand twice.
_ORACLE_TRAIN = [
    *([0, 0, 1], [0, 0, 3], [0, 0, 6], [2, 0, 3], [4, 0, 3], [5, 0, 1], [0, 0, 3], [6, 0, 6]),
    *([1, 1, 0], [2, 1, 0], [3, 1, 0], [3, 1, 5], [5, 1, 7], [6, 1, 7], [7, 1, 2]),
]
_ORACLE_VALID = [[0, 0, 5], [0, 0, 1], [4, 1, 0], [3, 1, 4], [2, 0, 2], [7, 0, 3]]
_ORACLE_TEST = [[0, 0, 2], [3, 1, 0], [0, 0, 4], [3, 1, 1], [6, 1, 0], [1, 0, 3], [0, 0, 2]]


def _oracle_inputs(version):
    """Yields (name, kind, what, inputs) of each case of a version."""
    yield from _oracle_cases()
    if version > 1:
        yield from _softmax_cases()
    if version > 2:
        yield from _calibration_cases()
        yield from _conditional_cases()


def _oracle_cases():
    """The cases of version 1."""
    for name in ORACLE_MODELS:
        for case, kind, what, inputs in _oracle_model_cases(name):
            yield f"{name}/{case}", kind, what, inputs

    extremes = [-1000.0, -745.5, -40.0, -1.0, -1e-9, 0.0, 1e-9, 1.0, 40.0, 745.5, 1000.0]
    yield "probability/extremes", "probability", "Large scores of both signs.", {"scores": extremes}
    for case, label in (("positive", 1), ("negative", -1)):
        inputs = {"scores": extremes, "labels": [label] * len(extremes)}
        yield f"logistic-loss/{case}", "logistic_loss", "Large scores of both signs.", inputs
    positive, negative = _oracle_numbers(31, 3), _oracle_numbers(32, 3, 2)
    for case, what, inputs in (
        ("margin-1", "Every pair counts.", (positive, negative, 1.0)),
        ("margin-0.25", "Some pairs count, others are far enough apart.", (positive, negative, 0.25)),
        ("kink", "Every pair is exactly at the kink: loss and gradients are 0.", ([0.0, 0.0], [[0.0], [0.0]], 0.0)),
        ("extremes", "Large scores of both signs.", ([-1000.0, 1000.0, 40.0], [[0.0], [1000.0], [-745.5]], 0.5)),
    ):
        yield f"hinge-loss/{case}", "hinge_loss", what, dict(zip(("positive", "negative", "margin"), inputs))

    parameter, accumulator = _oracle_numbers(33, 3, 4), [[0.0, 0.0, 0.25, 0.0], [0.1] * 4, [2.5, 0.0, 1.0, 0.5]]
    gradient = [[0.0, -0.5, 0.0, 1e-6], _oracle_numbers(34, 4), [1.5, 0.0, -1e-3, 1e3]]
    for optimizer in ("sgd", "adagrad"):
        inputs = {"parameter": parameter, "accumulator": accumulator, "gradient": gradient}
        what = "Where gradient and accumulator are 0, AdaGrad changes nothing; an eps would show at the gradient 1e-6."
        yield f"update/{optimizer}", "update", what, {"optimizer": optimizer, "learning_rate": 0.1, **inputs}
    rows = [[3.0, 4.0], [0.0, 0.0], [-1e-3, 0.0], [0.6, -0.8], *_oracle_numbers(35, 2, 2)]
    yield "projection/rows", "projection", "A row of zeros stays one.", {"rows": rows}

    sizes = {"n_entities": 8, "n_relations": 3}
    for omega in (1, 3, 6, 8):
        inputs = {"triples": _ORACLE_TRAIN, **sizes, "objects": omega}
        what = f"Relation 2 has no triple; omega = {omega} of 8 entities{', more than some b allows' * (omega > 3)}."
        yield f"sampling/omega-{omega}", "sampling", what, inputs
    for population in ("subjects", "relation", "entities"):
        inputs = {"triples": _ORACLE_TRAIN[:-1], **sizes, "population": population}
        what = "A triple stands there twice, entity 7 heads nothing, relation 2 has no triple."
        yield f"mined-bounds/{population}", "mined_bounds", what, inputs
        inputs = inputs | {"triples": [[0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 1, 0]], "n_entities": 3, "n_relations": 2}
        what = "Both subjects head relation 0, one of them relation 1; entity 2 heads nothing."
        yield f"mined-bounds/{population}-2", "mined_bounds", what, inputs
    ranks = [[1.0, 2.0], [3.0, 10.5], [5.0, 100.0], [1.5, 10.0], [1.0, 3.5], [4.0, 1.0]]
    yield "metrics/ranks", "metrics", "Half ranks come from ties.", {"ranks": ranks}


def _oracle_model_cases(name):
    """The cases of one model, without its name."""
    large, small = _oracle_model(name, 1, 8, 2, 3, 5), _oracle_model(name, 11, 4, 2, 1, 1)

    ids = {"heads": [0, 5, 2, 7, 3, 0], "relations": [0, 0, 1, 1, 1, 0], "tails": [1, 4, 6, 0, 3, 1]}
    small_ids = {"heads": [0, 2, 3], "relations": [1, 0, 1], "tails": [1, 2, 0]}
    for case, inputs in (("k3", large | ids), ("k1", small | small_ids)):
        yield f"scores-{case}", "scores", "Triples by id; once head and tail are the same entity.", inputs
        upstream = _oracle_numbers(41, len(inputs["heads"]))
        what = "Entities in several triples, as head and as tail; their gradients add up."
        yield f"score-gradients-{case}", "score_gradients", what, inputs | {"upstream": upstream}

    # samples as the four samplings draw them, omega = 3; importance repeats an object, Bernoulli's sample is larger
    everyone, omega = list(range(8)), 3
    frequency = [1.0] * 8
    for _, relation, tail in _ORACLE_TRAIN:
        frequency[tail] += relation == 0
    q = [f / sum(frequency) for f in frequency]
    samples = {
        "exact": (everyone, [1.0] * 8),
        "uniform": ([6, 1, 4], [1.0] * 3),
        "importance": ([3, 6, 3], [1 / (omega * q[t]) for t in (3, 6, 3)]),
        "bernoulli": ([1, 3, 4, 6], [1 / (omega * q[t]) for t in (1, 3, 4, 6)]),
    }
    subjects = [0, 5, 3]
    for sampling, (objects, weights) in samples.items():
        model = _arguments(large)["model"]
        low, middle, high = sorted(cardinality_sums(model, 0, subjects, objects, weights))
        between = math.floor(32 * (low + middle)) / 64, math.ceil(32 * (middle + high)) / 64
        for case, bounds in (
            ("below", [20.0, None]),
            ("inside", [0.0, 20.0]),
            ("above", [0.0, math.floor(32 * low) / 64]),
            ("around", list(between)),
        ):
            inputs = {"bounds": [bounds, [0.0, None]], "relation": 0, "subjects": subjects}
            what = {
                "below": "Every X is below the lower bound.",
                "inside": "Every X is inside the bounds: G and its gradients are 0.",
                "above": "Every X is above the upper bound.",
                "around": "One X is below the lower bound, one inside, one above the upper bound.",
            }[case]
            inputs |= {"objects": objects, "weights": weights}
            yield f"cardinality-{sampling}-{case}", "cardinality", what, large | inputs
    zeros = "output" if name == "ermlp" else "relation"
    parameters = large["parameters"] | {zeros: np.zeros(np.shape(large["parameters"][zeros])).tolist()}
    for case, bounds in (("lower", [4.0, None]), ("upper", [0.0, 4.0]), ("both", [4.0, 4.0])):
        inputs = {"model": name, "parameters": parameters, "bounds": [[0.0, None], bounds], "relation": 1}
        inputs |= {"subjects": subjects, "objects": everyone, "weights": [1.0] * 8}
        what = "Every score is 0, every X exactly 4, at a bound: G and its gradients are 0."
        yield f"cardinality-at-{case}", "cardinality", what, inputs
    inputs = {"bounds": [[0.0, None], [0.0, 0.5]], "relation": 1, "subjects": [2, 0]}
    inputs |= {"objects": [0, 1, 2, 3], "weights": [1.0] * 4}
    yield "cardinality-k1", "cardinality", "Every X is above the upper bound.", small | inputs

    batch = {
        "heads": [[0, 0, 4], [0, 0, 1], [2, 2, 0], [3, 3, 2]],
        "relations": [[0] * 3, [0] * 3, [1] * 3, [1] * 3],
        "tails": [[1, 3, 1], [2, 1, 2], [0, 4, 0], [3, 0, 3]],
    }
    plain = {"margin": 1.0, "l2": 0.0, "penalty_weight": 0.0, "bounds": [[0.0, None]] * 2, "samples": []}
    sampled = [
        {"relation": 0, "subjects": [0, 2], "objects": [3, 6, 3], "weights": samples["importance"][1]},
        {"relation": 1, "subjects": [1, 3], "objects": [0, 2, 4], "weights": [1.0] * 3},
    ]
    regularised = {"margin": 0.75, "l2": 0.125, "penalty_weight": 0.5, "bounds": [[0.0, 0.25], [6.0, None]]}
    regularised["samples"] = sampled
    for loss in ("logistic", "hinge"):
        what = "The loss alone: column 0 the positive triples, then two corruptions of each."
        yield f"loss-{loss}", "objective", what, large | batch | {"loss": loss} | plain
        what = "Loss, L2 penalty and both relations' G, one above its upper and one below its lower bound."
        yield f"objective-{loss}", "objective", what, large | batch | {"loss": loss} | regularised
        inputs = {"heads": [[0, 0], [2, 2]], "relations": [[0, 0], [1, 1]], "tails": [[1, 3], [0, 1]], "loss": loss}
        inputs |= regularised | {"bounds": [[3.0, 3.5], [0.0, 1.0]]}
        inputs["samples"] = [{"relation": 1, "subjects": [3, 0], "objects": [2, 1], "weights": [2.0, 2.0]}]
        yield f"objective-{loss}-k1", "objective", "One corruption, one sample.", small | inputs

    # In the steps, entity 0 occurs often, 6 as a sampled object only, 5 and 7 not at all.
    parameters = dict(large["parameters"], entity=[list(row) for row in large["parameters"]["entity"]])
    width = len(parameters["entity"][0])
    parameters["entity"][5], parameters["entity"][7] = [0.0, 1.0] + [0.0] * (width - 2), [0.0] * width
    accumulators = {key: np.full(np.shape(value), 0.1) for key, value in parameters.items()}
    accumulators["entity"][[4, 5, 7]] = 0
    accumulators["entity"][2] = 1.5
    accumulators["relation"][1] = 0
    accumulators = {key: value.tolist() for key, value in accumulators.items()}
    for optimizer, loss in (("sgd", "hinge"), ("adagrad", "logistic")):
        for project in ("none", "unit"):
            inputs = {"model": name, "parameters": parameters, **batch, "loss": loss, **regularised}
            inputs["accumulators"] = accumulators if optimizer == "adagrad" else {}
            inputs |= {"optimizer": optimizer, "learning_rate": 0.1, "project": project}
            what = "One step on the whole objective. Entities 5 (of norm 1) and 7 (zeros) have no gradient."
            yield f"step-{optimizer}-{project}", "step", what, inputs

    splits = {"train": _ORACLE_TRAIN, "valid": _ORACLE_VALID, "test": _ORACLE_TEST}
    yield "ranks", "ranks", "No two scores are the same.", large | splits
    integers = _oracle_model(name, 21, 8, 2, 2, 2)["parameters"]
    integers = {key: np.sign(value) * (np.abs(value) > 0.6) for key, value in integers.items()}
    integers["entity"][[1, 6]] = integers["entity"][2]
    if name == "ermlp":
        integers["hidden"][...] = [[1, 0], [0, 1], [1, 1], [-1, 0], [0, -1], [1, 0]]
        integers["output"][...] = [2, 0]  # one term: the same sum in every order
    integers = {key: (value + 0.0).tolist() for key, value in integers.items()}
    what = "Integer parameters, so that equal scores are exactly equal; entities 1, 2 and 6 have the same row."
    yield "ranks-ties", "ranks", what, {"model": name, "parameters": integers, **splits}


def _softmax_cases():
    """What version 2 adds."""
    scores, extremes = _oracle_numbers(51, 3, 4), [[1000.0, -1000.0, 745.5], [-1e-9, 0.0, 1e-9]]
    for case, what, inputs in (
        ("plain", "No weights.", (scores, [3, 0, 1], [0.0] * 4)),
        (
            "weighted",
            "The last two columns stand for 4 entities each.",
            (scores, [1, 0, 1], [0.0, 0.0] + [math.log(4)] * 2),
        ),
        ("extremes", "Large scores of both signs, and scores near each other.", (extremes, [1, 2], [0.0] * 3)),
    ):
        inputs = dict(zip(("scores", "answers", "log_weights"), inputs, strict=True))
        yield f"softmax-loss/{case}", "softmax_loss", what, inputs
    for name in ORACLE_MODELS:
        for case, kind, what, inputs in _softmax_model_cases(name):
            yield f"{name}/{case}", kind, what, inputs


def _softmax_model_cases(name):
    """What version 2 adds for one model, without its name."""
    usual, reciprocal = _oracle_model(name, 1, 8, 2, 3, 5), _oracle_model(name, 61, 8, 4, 3, 5) | {"reciprocal": True}
    ids = {"heads": [0, 5, 2, 3], "relations": [0, 1, 1, 0], "tails": [1, 4, 2, 0]}
    what = "2 relations, 4 relation rows: score and score_tails are of row r, score_heads of row r + 2."
    yield "reciprocal-scores", "scores", what, reciprocal | ids
    splits = {"train": _ORACLE_TRAIN, "valid": _ORACLE_VALID, "test": _ORACLE_TEST}
    yield "reciprocal-ranks", "ranks", "No two scores are the same.", reciprocal | splits

    everyone = {"candidates": list(range(8)), "log_weights": [0.0] * 8}
    triples = [[0, 0, 1], [0, 0, 3], [4, 0, 3], [0, 0, 1], [2, 1, 0], [3, 1, 3], [6, 1, 0]]
    batch = {"triples": triples, "sides": [1, 1, 0, 1, 0, 1, 0], "l2": 0.0, "n3": 0.0, "penalty_weight": 0.0}
    batch |= {"bounds": [[0.0, None]] * 2, "loopless": [False] * 2} | everyone
    what = "The loss alone; a query with two answers, one of them twice, and one whose answer is the given entity."
    yield "softmax", "softmax_objective", what, usual | batch
    regularised = batch | {"l2": 0.125, "n3": 0.25, "penalty_weight": 0.5, "bounds": [[0.0, 2.0], [6.0, None]]}
    what = "Loss, L2, N3 and the penalty: G once for each distinct (h, r) of the queries with an open tail."
    yield "softmax-regularised", "softmax_objective", what, usual | regularised
    what = "The same with reciprocal relations: (?, r, t) is the tails of (t, r + 2), whose row N3 and L2 count."
    yield "softmax-reciprocal", "softmax_objective", what, reciprocal | regularised
    what = "Relation 1 has no loop: there the given entity is no candidate, unless it is the answer."
    yield "softmax-no-loops", "softmax_objective", what, reciprocal | batch | {"loopless": [False, True]}
    drawn = {"candidates": [0, 1, 2, 3, 4, 6, 7], "log_weights": [0.0] * 6 + [math.log(2)]}
    what = "7 candidates, of which entity 7 was drawn from 2."
    yield "softmax-candidates", "softmax_objective", what, usual | regularised | drawn


def _calibration_cases():
    """What version 3 adds: scores as probabilities."""
    coefficients = np.array(_oracle_numbers(71, 4, 3, 3))
    coefficients[..., 1] = 0.25 + np.abs(coefficients[..., 1]) - coefficients[..., 0]  # a + b > 0
    for case, what, scores, known in (
        ("plain", "0, 1, 2 and 7 known tails: the coefficients of 0, 1, more, more.", _oracle_numbers(72, 4, 6), None),
        ("ties", "Equal scores.", [[1.0, 0.0, 1.0, 0.0], [0.5] * 4, [2.0, 2.0, -1.0, 2.0], [0.0] * 4], None),
        ("extremes", "Large scores of both signs.", [[1000.0, -1000.0, 745.5, 0.0], [-1e3, -745.5, -1e3, 0]], [3, 0]),
    ):
        inputs = {"coefficients": coefficients[: len(scores)].tolist(), "scores": scores}
        yield f"calibration/{case}", "calibration", what, inputs | {"known": known or [0, 1, 2, 7], "share": 0.375}

    features = np.array(_oracle_numbers(73, 9, 3))
    features[:, 0], features[:, 2] = -np.abs(features[:, 0]), 1
    found, weights = [1, 0, 0, 1, 0, 0, 0, 1, 0], [1.0, 1.0, 2.5, 1.0, 1.0, 40.0, 1.0, 1.0, 0.5]
    inputs = {"parameters": [0.25, -0.5, -1.0], "features": features.tolist(), "found": found, "weights": weights}
    inputs |= {"share": 0.375, "centre": [0.0, 0.25, -0.5], "precision": [0.0, 0.0, 0.0]}
    yield "calibration-loss/plain", "calibration_loss", "Weighted candidates, no prior.", inputs
    prior = {"precision": [0.5, 0.125, 2.0]}
    yield "calibration-loss/prior", "calibration_loss", "Pulled towards the centre.", inputs | prior
    none = {"features": [], "found": [], "weights": []}
    yield "calibration-loss/prior-alone", "calibration_loss", "No candidate at all.", inputs | prior | none
    far = inputs | {"parameters": [6.0, 30.0, 1.0], "share": 0.96875}
    yield "calibration-loss/extremes", "calibration_loss", "Logits of several hundred, of both signs.", far


def _conditional_cases():
    """What version 3 adds: probabilities given how many facts there are."""
    odds = (6 * np.array(_oracle_numbers(74, 9)) - 2).tolist()
    ties = [-1.5, 0.75, -1.5, 0.75, -1.5, 2.0, 2.0, -40.0]
    extremes = [-700.0, 700.0, -1000.0, 1000.0, 0.0, -0.5, 40.0, -40.0]
    many = (3 * np.array(_oracle_numbers(75, 200)) - 4).tolist()
    many_more = "200 candidates, whose expected count is far"
    rare = (np.array(_oracle_numbers(76, 40)) - 30).tolist()
    for case, what, log_odds, known, bounds in (
        ("at-most", "U = 2, L = 0.", odds, 1, [0.0, 3.0]),
        ("between", "L = 2, U = 4.", odds, 0, [2.0, 4.0]),
        ("exactly", "L = U = 3.", odds, 2, [5.0, 5.0]),
        ("exactly-one", "L = U = 1: the softmax of the log odds.", odds, 0, [1.0, 1.0]),
        ("all-but-one", "L = U = 8 of 9.", odds, 0, [8.0, 8.0]),
        ("all", "L = 9 of 9: every one.", odds, 3, [12.0, None]),
        ("none-left", "U = 0.", odds, 3, [0.0, 3.0]),
        ("at-least", "L = 4, no upper bound.", odds, 0, [4.0, None]),
        ("at-least-one", "L = 1, no upper bound.", odds, 2, [3.0, None]),
        ("unbounded", "L = 0, no upper bound: p stays as it is.", odds, 2, [0.0, None]),
        ("lower-met", "The known tails meet the lower bound: L = 0; no upper bound.", odds, 5, [4.0, None]),
        ("loose", "U = 9 of 9 candidates: p stays as it is.", odds, 1, [1.0, 10.0]),
        ("fractions", "Bounds 1.25 and 4.75: L = 1, U = 3 beside the known tail.", odds, 1, [1.25, 4.75]),
        ("too-many-known", "4 known tails where at most 3 may be: contradicted.", odds, 4, [0.0, 3.0]),
        ("too-few-candidates", "At least 10 more of 9 candidates: contradicted.", odds, 1, [11.0, None]),
        ("no-candidates", "No candidate, and no bound that asks for one.", [], 2, [0.0, 3.0]),
        ("ties", "Equal odds, equal answers.", ties, 0, [1.0, 3.0]),
        ("ties-at-least", "Equal odds, equal answers.", ties, 0, [5.0, None]),
        ("equal", "All odds equal: L = U = 3 is shared out.", [-2.5] * 7, 0, [3.0, 3.0]),
        ("extremes-at-most", "Odds of e^-1000 to e^1000; two sure ones where one may be.", extremes, 0, [0.0, 1.0]),
        ("extremes-exactly", "The same; the window cuts between equals in doubt.", extremes, 0, [4.0, 4.0]),
        (
            "extremes-at-least",
            "The same; only sets with an improbable member are large enough.",
            extremes,
            0,
            [6.0, None],
        ),
        ("extremes-all-but-one", "The same; one of the two least probable is left out.", extremes, 0, [7.0, 7.0]),
        ("rare", "Odds about e^-30 and L = 2, U = 3.", rare, 0, [2.0, 3.0]),
        ("sure", "Odds about e^30 and U = 5 of 40.", [-x for x in rare], 0, [1.0, 5.0]),
        ("many-at-most", f"{many_more} above the bound of 10.", many, 0, [0.0, 10.0]),
        ("many-between", f"{many_more} below L = 80, U = 90.", many, 10, [90.0, 100.0]),
        ("many-at-least", f"{many_more} below L = 100, no upper bound.", many, 0, [100.0, None]),
    ):
        yield f"conditional/{case}", "conditional", what, {"log_odds": log_odds, "known": known, "bounds": bounds}
