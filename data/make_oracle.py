"""Make the reference values for other implementations, data/oracle-VERSION.json, by the definitions in NumPy.

    python data/make_oracle.py [--version 5] [--out data/oracle-5.json]

docs/ORACLE.md says what each kind of case is. A value that changes, or a case that is added, is a new version with a
file of its own; the old ones stay. Version 2 has the softmax over all entities, N3 and reciprocal relations; version 3
calibration and conditional probabilities; version 4 bounds beside the mean count, and weights of counts; version 5 the
calibration's likelihood through the bounds. The calibration of version 3, a logistic one, is not used any more: its
formulas stand here alone.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

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
from cardkge_tools.definitions.counting import (
    calibrated_log_odds,
    calibration_objective,
    conditioned,
    log_sum_exp,
    thinned_likelihood,
)
from cardkge_tools.definitions.settings import Settings
from cardkge_tools.definitions.softmax import softmax_loss, softmax_objective
from cardkge_tools.experiments.reports import ORACLE_ATOL, ORACLE_FORMAT, ORACLE_RTOL, ORACLE_VERSION, difference

FOLDER = Path(__file__).resolve().parent
NAMES = "distmult", "complex", "ermlp"
ROUNDING = {"rtol": 5e-13, "atol": 1e-14}  # by which two processors may differ (exp, tanh, log, order of a sum)


def make(version=ORACLE_VERSION):
    """The content of the file of a version: {"format", "version", "tolerance", "cases"}.

    The outputs of a case are what the function of its kind, below, makes of its inputs, with the definitions in
    float64. A value that agrees with the one in data/oracle-VERSION.json, or in that of an earlier version, but for
    ROUNDING is given as it stands there: the same bits on every machine.
    """
    paths = [FOLDER / f"oracle-{number}.json" for number in range(version, 0, -1)]
    contents = [json.loads(path.read_text(encoding="utf-8"))["cases"] for path in paths if path.exists()]
    kept = {case["name"]: case for cases in contents for case in cases}  # the oldest version has the last word
    cases = []
    for name, kind, what, inputs in cases_of(version):
        outputs = {key: plain(value) for key, value in KINDS[kind](**arguments(inputs)).items()}
        same = kept.get(name, {}).get("outputs", {})
        for key, value in outputs.items():
            if difference(same.get(key), value, **ROUNDING) is None:
                outputs[key] = same[key]
        cases.append({"name": name, "kind": kind, "what": what, "inputs": inputs, "outputs": outputs})
    tolerance = {"rtol": ORACLE_RTOL, "atol": ORACLE_ATOL}
    return {"format": ORACLE_FORMAT, "version": version, "tolerance": tolerance, "cases": cases}


def text_of(content):
    """What `make` returns as JSON, an input or output a line, floats by repr."""

    def block(values, indent):
        lines = [f"{indent} {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"

    cases = [
        "  {\n"
        + "".join(f"   {json.dumps(key)}: {json.dumps(case[key])},\n" for key in ("name", "kind", "what"))
        + f'   "inputs": {block(case["inputs"], "   ")},\n   "outputs": {block(case["outputs"], "   ")}\n  }}'
        for case in content["cases"]
    ]
    head = "".join(f" {json.dumps(key)}: {json.dumps(content[key])},\n" for key in ("format", "version", "tolerance"))
    return "{\n" + head + ' "cases": [\n' + ",\n".join(cases) + "\n ]\n}\n"


def plain(value):
    """An array or number as JSON has it: -0.0 as 0.0 (its sign may depend on the machine), infinity as None."""
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    return None if value == math.inf else value + 0.0


def arguments(inputs):
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


def prefixed(prefix, arrays):
    """Arrays by name, each name with a prefix."""
    return {f"{prefix}_{name}": array for name, array in arrays.items()}


def scores_outputs(model, heads, relations, tails):
    scores = model.score(heads, relations, tails)
    every_tail, every_head = model.score_tails(heads, relations), model.score_heads(relations, tails)
    return {"score": scores, "score_tails": every_tail, "score_heads": every_head, "probability": probability(scores)}


def score_gradients_outputs(model, heads, relations, tails, upstream):
    return prefixed("d", model.gradients(heads, relations, tails, upstream))


def probability_outputs(scores):
    return {"probability": probability(np.array(scores))}


def logistic_loss_outputs(scores, labels):
    loss, d_scores = logistic_loss(np.array(scores), labels)
    return {"loss": loss, "d_scores": d_scores}


def hinge_loss_outputs(positive, negative, margin):
    loss, d_positive, d_negative = hinge_loss(positive, negative, margin)
    return {"loss": loss, "d_positive": d_positive, "d_negative": d_negative}


def cardinality_outputs(model, bounds, relation, subjects, objects, weights):
    penalty, gradients, sums = cardinality_penalty(model, bounds, relation, subjects, objects, weights)
    g, _ = violation(sums, *bounds[relation])
    return {"X": sums, "G": g, "penalty": penalty, **prefixed("d", gradients)}


def objective_of(model, heads, relations, tails, loss, margin, l2, penalty_weight, bounds, samples):
    settings = Settings(loss=loss, margin=margin, l2=l2, penalty_weight=penalty_weight)
    samples = [tuple(sample[key] for key in ("relation", "subjects", "objects", "weights")) for sample in samples]
    return objective(model, heads, relations, tails, settings, bounds, samples)


def objective_outputs(**batch):
    parts, gradients = objective_of(**batch)
    return parts | prefixed("d", gradients)


def softmax_loss_outputs(scores, answers, log_weights):
    loss, d_scores = softmax_loss(np.array(scores), answers, np.array(log_weights))
    return {"loss": loss, "d_scores": d_scores}


def softmax_objective_outputs(model, triples, sides, l2, n3, penalty_weight, bounds, loopless, candidates, log_weights):
    settings = Settings(loss="softmax", l2=l2, n3=n3, penalty_weight=penalty_weight)
    of = bounds, np.array(loopless), (np.array(candidates), np.array(log_weights))
    parts, gradients = softmax_objective(model, triples, sides, settings, *of)
    return parts | prefixed("d", gradients)


def step_outputs(model, accumulators, optimizer, learning_rate, project, **batch):
    _, gradients = objective_of(model, **batch)
    accumulators = {name: np.array(value) for name, value in accumulators.items()}
    for name, param in model.params.items():
        if optimizer == "adagrad":
            adagrad_step(param, accumulators[name], gradients[name], learning_rate)
        else:
            sgd_step(param, gradients[name], learning_rate)
    if project == "unit":
        project_rows(model.params["entity"])
    return model.params | prefixed("accumulator", accumulators)


def update_outputs(optimizer, learning_rate, parameter, accumulator, gradient):
    parameter, accumulator, gradient = np.array(parameter), np.array(accumulator), np.array(gradient)
    if optimizer == "sgd":
        sgd_step(parameter, gradient, learning_rate)
        return {"parameter": parameter}
    adagrad_step(parameter, accumulator, gradient, learning_rate)
    return {"parameter": parameter, "accumulator": accumulator}


def projection_outputs(rows):
    rows = np.array(rows)
    project_rows(rows)
    return {"rows": rows}


def sampling_outputs(triples, n_entities, n_relations, objects):
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


def mined_bounds_outputs(triples, n_entities, n_relations, population):
    return {"bounds": mine_bounds(np.array(triples), n_entities, n_relations, population)}


def ranks_outputs(model, train, valid, test):
    known = {"raw": [], "filtered": train + valid + test}
    return {f"{name}_{ties}": filtered_ranks(model, test, known[name], ties) for name in known for ties in TIES}


def metrics_outputs(ranks):
    by_side = metrics_by_side(np.array(ranks))
    return {f"{side}_{metric}": value for side, values in by_side.items() for metric, value in values.items()}


def calibration_logits(coefficients, scores, log_sums, known):
    """Of version 3: z = a score + b log_softmax + c, as (a + b) log_softmax + a log_sum + c. coefficients (..., 3, 3):
    a, b, c for 0, 1 and more known tails."""
    place = np.minimum(known, 2)[..., None, None]
    a, b, c = np.moveaxis(np.take_along_axis(coefficients, place, -2)[..., 0, :], -1, 0)
    return (a + b) * (scores - log_sums) + a * log_sums + c


def calibration_loss(parameters, features, found, weights, share, centre, precision):
    """Of version 3: (value, gradient, expected curvature) of -sum w [found log(v pi) + (1 - found) log(1 - v pi)]
    + 1/2 sum precision (parameters - centre)^2, pi logistic in features (n, 3) with slopes (exp(u), a, c)."""
    slopes = np.append(np.exp(parameters[0]), parameters[1:])
    z = features @ slopes
    pi, none = probability(z), np.maximum(probability(-z), 1e-300)
    q, rest = share * pi, 1 - share + share * none
    log_q = math.log(share) + np.minimum(z, 0) - np.log1p(np.exp(-np.abs(z)))
    away = parameters - centre
    value = -(weights * np.where(found, log_q, np.log(rest))).sum() + 0.5 * (precision * away * away).sum()
    d_z = weights * np.where(found, -none, q * none / rest)
    scale = np.array([slopes[0], 1, 1])
    gradient = (d_z @ features) * scale + precision * away
    information = (features.T * (weights * q * none**2 / rest)) @ features
    return float(value), gradient, information * scale * scale[:, None] + np.diag(precision)


def calibration_outputs(coefficients, scores, known, share):
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


def calibration_loss_outputs(parameters, features, found, weights, share, centre, precision):
    rows = np.reshape(features, (-1, 3)), np.array(found, bool), np.array(weights, float)
    prior = np.array(centre), np.array(precision)
    loss, gradient, information = calibration_loss(np.array(parameters), *rows, share, *prior)
    return {"loss": loss, "d_parameters": gradient, "information": information}


def conditional_outputs(log_odds, known, bounds, weights=(1.0,)):
    try:
        p, contradicted = conditioned(log_odds, *(bounds - known), weights), 0
    except CardkgeError:
        p, contradicted = np.zeros(len(log_odds)), 1
    return {"contradicted": contradicted, "probability": p, "expected": known + float(p.sum())}


def thinned_likelihood_outputs(log_odds, rest, found, share, bounds):
    log_rest = math.log(rest) if rest else -math.inf
    what = np.array(log_odds, float), log_rest, np.array(found, bool), share, *bounds
    value, d_odds, d_rest, _ = thinned_likelihood(*what)  # version 5 has no unseen tails
    return {"log_probability": float(value), "d_log_odds": d_odds, "d_log_rest": d_rest}


def calibrated_log_odds_outputs(parameters, log_softmax, features):
    found = calibrated_log_odds(np.array(parameters), np.array(log_softmax), np.array(features))
    return dict(zip(("log_odds", "d_x", "d_ceiling"), found, strict=True))


def calibration_objective_outputs(parameters, queries, centre, precision):
    def query_of(bounds, **others):
        query = {key: np.array(value) for key, value in arguments({"bounds": bounds, **others}).items()}
        lower, upper = query.pop("bounds")
        return query | {"found": query["found"] > 0, "lower": lower, "upper": upper}

    prior = np.array(centre), np.array(precision)
    value, gradient = calibration_objective(parameters, [query_of(**query) for query in queries], *prior)
    return {"value": float(value), "d_parameters": gradient}


KINDS = {
    "scores": scores_outputs,
    "score_gradients": score_gradients_outputs,
    "probability": probability_outputs,
    "logistic_loss": logistic_loss_outputs,
    "hinge_loss": hinge_loss_outputs,
    "cardinality": cardinality_outputs,
    "objective": objective_outputs,
    "softmax_loss": softmax_loss_outputs,
    "softmax_objective": softmax_objective_outputs,
    "step": step_outputs,
    "update": update_outputs,
    "projection": projection_outputs,
    "sampling": sampling_outputs,
    "mined_bounds": mined_bounds_outputs,
    "ranks": ranks_outputs,
    "metrics": metrics_outputs,
    "calibration": calibration_outputs,
    "calibration_loss": calibration_loss_outputs,
    "conditional": conditional_outputs,
    "thinned_likelihood": thinned_likelihood_outputs,
    "calibrated_log_odds": calibrated_log_odds_outputs,
    "calibration_objective": calibration_objective_outputs,
}


def numbers(seed, *shape, unit=1 / 32):
    """Odd multiples of `unit`, -63 to 63 of it, by a linear congruential generator: short decimals, exact in binary."""
    numbers = np.empty(shape)
    for i in range(numbers.size):
        seed = (1103515245 * seed + 12345) % 2**31
        numbers.flat[i] = unit * (2 * (seed >> 16) % 128 - 63)
    return numbers.tolist()


def model_inputs(name, seed, n_entities, n_relations, dim, hidden):
    """Inputs "model" and "parameters"."""
    width = dim * MODELS[name].row_length
    parameters = {"entity": numbers(seed, n_entities, width), "relation": numbers(seed + 1, n_relations, width)}
    if name == "ermlp":  # a smaller W, so that tanh does not saturate
        parameters["hidden"] = numbers(seed + 2, 3 * dim, hidden, unit=1 / 128)
        parameters["output"] = numbers(seed + 3, hidden)
    return {"model": name, "parameters": parameters}


# 8 entities, 2 relations. Triples of `test` have other true answers in train, in valid and in test; some stand twice.
TRAIN = [
    *([0, 0, 1], [0, 0, 3], [0, 0, 6], [2, 0, 3], [4, 0, 3], [5, 0, 1], [0, 0, 3], [6, 0, 6]),
    *([1, 1, 0], [2, 1, 0], [3, 1, 0], [3, 1, 5], [5, 1, 7], [6, 1, 7], [7, 1, 2]),
]
VALID = [[0, 0, 5], [0, 0, 1], [4, 1, 0], [3, 1, 4], [2, 0, 2], [7, 0, 3]]
TEST = [[0, 0, 2], [3, 1, 0], [0, 0, 4], [3, 1, 1], [6, 1, 0], [1, 0, 3], [0, 0, 2]]


def cases_of(version):
    """Yields (name, kind, what, inputs) of each case of a version."""
    yield from first_cases()
    if version > 1:
        yield from softmax_cases()
    if version > 2:
        yield from calibration_cases()
        yield from conditional_cases()
    if version > 3:
        yield from more_conditional_cases()
    if version > 4:
        yield from likelihood_cases()


def first_cases():
    """The cases of version 1."""
    for name in NAMES:
        for case, kind, what, inputs in first_model_cases(name):
            yield f"{name}/{case}", kind, what, inputs

    extremes = [-1000.0, -745.5, -40.0, -1.0, -1e-9, 0.0, 1e-9, 1.0, 40.0, 745.5, 1000.0]
    yield "probability/extremes", "probability", "Large scores of both signs.", {"scores": extremes}
    for case, label in (("positive", 1), ("negative", -1)):
        inputs = {"scores": extremes, "labels": [label] * len(extremes)}
        yield f"logistic-loss/{case}", "logistic_loss", "Large scores of both signs.", inputs
    positive, negative = numbers(31, 3), numbers(32, 3, 2)
    for case, what, inputs in (
        ("margin-1", "Every pair counts.", (positive, negative, 1.0)),
        ("margin-0.25", "Some pairs count, others are far enough apart.", (positive, negative, 0.25)),
        ("kink", "Every pair is exactly at the kink: loss and gradients are 0.", ([0.0, 0.0], [[0.0], [0.0]], 0.0)),
        ("extremes", "Large scores of both signs.", ([-1000.0, 1000.0, 40.0], [[0.0], [1000.0], [-745.5]], 0.5)),
    ):
        yield f"hinge-loss/{case}", "hinge_loss", what, dict(zip(("positive", "negative", "margin"), inputs))

    parameter, accumulator = numbers(33, 3, 4), [[0.0, 0.0, 0.25, 0.0], [0.1] * 4, [2.5, 0.0, 1.0, 0.5]]
    gradient = [[0.0, -0.5, 0.0, 1e-6], numbers(34, 4), [1.5, 0.0, -1e-3, 1e3]]
    for optimizer in ("sgd", "adagrad"):
        inputs = {"parameter": parameter, "accumulator": accumulator, "gradient": gradient}
        what = "Where gradient and accumulator are 0, AdaGrad changes nothing; an eps would show at the gradient 1e-6."
        yield f"update/{optimizer}", "update", what, {"optimizer": optimizer, "learning_rate": 0.1, **inputs}
    rows = [[3.0, 4.0], [0.0, 0.0], [-1e-3, 0.0], [0.6, -0.8], *numbers(35, 2, 2)]
    yield "projection/rows", "projection", "A row of zeros stays one.", {"rows": rows}

    sizes = {"n_entities": 8, "n_relations": 3}
    for omega in (1, 3, 6, 8):
        inputs = {"triples": TRAIN, **sizes, "objects": omega}
        what = f"Relation 2 has no triple; omega = {omega} of 8 entities{', more than some b allows' * (omega > 3)}."
        yield f"sampling/omega-{omega}", "sampling", what, inputs
    for population in ("subjects", "relation", "entities"):
        inputs = {"triples": TRAIN[:-1], **sizes, "population": population}
        what = "A triple stands there twice, entity 7 heads nothing, relation 2 has no triple."
        yield f"mined-bounds/{population}", "mined_bounds", what, inputs
        inputs = inputs | {"triples": [[0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 1, 0]], "n_entities": 3, "n_relations": 2}
        what = "Both subjects head relation 0, one of them relation 1; entity 2 heads nothing."
        yield f"mined-bounds/{population}-2", "mined_bounds", what, inputs
    ranks = [[1.0, 2.0], [3.0, 10.5], [5.0, 100.0], [1.5, 10.0], [1.0, 3.5], [4.0, 1.0]]
    yield "metrics/ranks", "metrics", "Half ranks come from ties.", {"ranks": ranks}


def first_model_cases(name):
    """The cases of one model, without its name."""
    large, small = model_inputs(name, 1, 8, 2, 3, 5), model_inputs(name, 11, 4, 2, 1, 1)

    ids = {"heads": [0, 5, 2, 7, 3, 0], "relations": [0, 0, 1, 1, 1, 0], "tails": [1, 4, 6, 0, 3, 1]}
    small_ids = {"heads": [0, 2, 3], "relations": [1, 0, 1], "tails": [1, 2, 0]}
    for case, inputs in (("k3", large | ids), ("k1", small | small_ids)):
        yield f"scores-{case}", "scores", "Triples by id; once head and tail are the same entity.", inputs
        upstream = numbers(41, len(inputs["heads"]))
        what = "Entities in several triples, as head and as tail; their gradients add up."
        yield f"score-gradients-{case}", "score_gradients", what, inputs | {"upstream": upstream}

    # samples as the four samplings draw them, omega = 3; importance repeats an object, Bernoulli's sample is larger
    everyone, omega = list(range(8)), 3
    frequency = [1.0] * 8
    for _, relation, tail in TRAIN:
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
        model = arguments(large)["model"]
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

    splits = {"train": TRAIN, "valid": VALID, "test": TEST}
    yield "ranks", "ranks", "No two scores are the same.", large | splits
    integers = model_inputs(name, 21, 8, 2, 2, 2)["parameters"]
    integers = {key: np.sign(value) * (np.abs(value) > 0.6) for key, value in integers.items()}
    integers["entity"][[1, 6]] = integers["entity"][2]
    if name == "ermlp":
        integers["hidden"][...] = [[1, 0], [0, 1], [1, 1], [-1, 0], [0, -1], [1, 0]]
        integers["output"][...] = [2, 0]  # one term: the same sum in every order
    integers = {key: (value + 0.0).tolist() for key, value in integers.items()}
    what = "Integer parameters, so that equal scores are exactly equal; entities 1, 2 and 6 have the same row."
    yield "ranks-ties", "ranks", what, {"model": name, "parameters": integers, **splits}


def softmax_cases():
    """What version 2 adds."""
    scores, extremes = numbers(51, 3, 4), [[1000.0, -1000.0, 745.5], [-1e-9, 0.0, 1e-9]]
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
    for name in NAMES:
        for case, kind, what, inputs in softmax_model_cases(name):
            yield f"{name}/{case}", kind, what, inputs


def softmax_model_cases(name):
    """What version 2 adds for one model, without its name."""
    usual, reciprocal = model_inputs(name, 1, 8, 2, 3, 5), model_inputs(name, 61, 8, 4, 3, 5) | {"reciprocal": True}
    ids = {"heads": [0, 5, 2, 3], "relations": [0, 1, 1, 0], "tails": [1, 4, 2, 0]}
    what = "2 relations, 4 relation rows: score and score_tails are of row r, score_heads of row r + 2."
    yield "reciprocal-scores", "scores", what, reciprocal | ids
    splits = {"train": TRAIN, "valid": VALID, "test": TEST}
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


def calibration_cases():
    """What version 3 adds: scores as probabilities."""
    coefficients = np.array(numbers(71, 4, 3, 3))
    coefficients[..., 1] = 0.25 + np.abs(coefficients[..., 1]) - coefficients[..., 0]  # a + b > 0
    for case, what, scores, known in (
        ("plain", "0, 1, 2 and 7 known tails: the coefficients of 0, 1, more, more.", numbers(72, 4, 6), None),
        ("ties", "Equal scores.", [[1.0, 0.0, 1.0, 0.0], [0.5] * 4, [2.0, 2.0, -1.0, 2.0], [0.0] * 4], None),
        ("extremes", "Large scores of both signs.", [[1000.0, -1000.0, 745.5, 0.0], [-1e3, -745.5, -1e3, 0]], [3, 0]),
    ):
        inputs = {"coefficients": coefficients[: len(scores)].tolist(), "scores": scores}
        yield f"calibration/{case}", "calibration", what, inputs | {"known": known or [0, 1, 2, 7], "share": 0.375}

    features = np.array(numbers(73, 9, 3))
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


def conditional_cases():
    """What version 3 adds: probabilities given how many facts there are."""
    odds = (6 * np.array(numbers(74, 9)) - 2).tolist()
    ties = [-1.5, 0.75, -1.5, 0.75, -1.5, 2.0, 2.0, -40.0]
    extremes = [-700.0, 700.0, -1000.0, 1000.0, 0.0, -0.5, 40.0, -40.0]
    many = (3 * np.array(numbers(75, 200)) - 4).tolist()
    many_more = "200 candidates, whose expected count is far"
    rare = (np.array(numbers(76, 40)) - 30).tolist()
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


def more_conditional_cases():
    """What version 4 adds: bounds beside the mean count, and weights of counts."""
    three, six = [2.291, -1.477, 1.893], numbers(77, 6)
    count = math.ceil(probability(np.array(six)).sum())
    for case, what, log_odds, bounds in (
        ("mean-just-below", "L = 2, no upper bound; the mean count is 1.963.", three, [2.0, None]),
        ("mean-just-below-exactly", "The same, and U = 2.", three, [2.0, 2.0]),
        ("mean-above", "L is the mean count, rounded down.", six, [count - 1.0, None]),
        (
            "mean-above-between",
            "The same, and U = L + 1: the mean count is within the bounds.",
            six,
            [count - 1.0, count],
        ),
        ("mean-below", "L is the mean count, rounded up.", six, [count, None]),
        ("mean-below-between", "The same, and U = L + 1.", six, [count, count + 1.0]),
        ("mean-far-below", "L is one more.", six, [count + 1.0, None]),
        ("mean-far-below-between", "The same, and U = L + 1.", six, [count + 1.0, count + 2.0]),
    ):
        inputs = {"log_odds": log_odds, "known": 0, "bounds": [None if b is None else float(b) for b in bounds]}
        yield f"conditional/{case}", "conditional", what, inputs
    ties = [0.5, -1.5, 0.5, 2.0, -1.5]
    for case, what, log_odds, known, bounds, weights in (
        ("weights", "2 and more new facts are ten times as likely as none.", six, 1, [0.0, None], [0.1, 0.5, 1.0]),
        ("weights-alike", "Equal weights: p stays as it is.", six, 1, [0.0, None], [0.5, 0.5]),
        ("weights-exactly", "Exactly two, by a weight of 0 for all else.", six, 0, [0.0, None], [0.0, 0.0, 1.0, 0.0]),
        ("weights-holes", "1, 3, or 5 and more.", six, 0, [0.0, None], [0.0, 1.0, 0.0, 0.25, 0.0, 2.0]),
        ("weights-between", "L = 1, U = 4: none of 3.", six, 2, [3.0, 6.0], [1.0, 0.5, 1.0, 0.0, 0.125]),
        (
            "weights-at-least",
            "L = 3, no upper bound; all weights within the bounds are the last.",
            six,
            0,
            [3.0, None],
            [0.0, 1.0],
        ),
        ("weights-ties", "Equal odds, equal answers; 0 or 2.", ties, 0, [0.0, 3.0], [1.0, 0.0, 0.5, 0.0]),
        ("weights-of-0", "Exactly one, of weight 0: contradicted.", ties, 0, [1.0, 1.0], [1.0, 0.0, 1.0]),
        ("weights-of-0-above", "At least 3, of weight 0 all: contradicted.", ties, 1, [4.0, None], [1.0, 0.5, 0.0]),
    ):
        inputs = {"log_odds": log_odds, "known": known, "bounds": bounds, "weights": weights}
        yield f"conditional/{case}", "conditional", what, inputs


def likelihood_cases():
    """What version 5 adds: what the calibration is fitted to, through the bounds."""
    odds, none, two = numbers(78, 6), [0] * 6, [0, 1, 0, 0, 1, 0]
    one, ties = [0, 0, 0, 1, 0, 0], [0.5, -1.5, 0.5, 2.0, -1.5, 0.5]
    extremes = [-300.0, 40.0, 0.0, 300.0, -40.0, -0.5]
    for case, what, log_odds, rest, found, share, bounds in (
        ("free", "No bounds: Z is the product of all 1 + o; valid has two.", odds, 0.0, two, 0.375, [0.0, None]),
        ("free-none", "No bounds, nothing in valid.", odds, 0.0, none, 0.375, [0.0, None]),
        ("one", "L = U = 1, and valid has it.", odds, 0.0, one, 0.375, [1.0, 1.0]),
        ("one-none", "L = U = 1, and valid does not have it.", odds, 0.0, none, 0.375, [1.0, 1.0]),
        ("two", "U = 2, and valid has both.", odds, 0.0, two, 0.375, [0.0, 2.0]),
        ("two-of-one", "U = 2, valid has one.", odds, 0.0, one, 0.375, [0.0, 2.0]),
        ("two-none", "U = 2, nothing in valid.", odds, 0.0, none, 0.375, [0.0, 2.0]),
        ("some", "L = 1, U = 3, valid has two.", odds, 0.0, two, 0.375, [1.0, 3.0]),
        ("some-none", "L = 1, U = 3, nothing in valid.", odds, 0.0, none, 0.375, [1.0, 3.0]),
        ("at-least", "L = 1, no upper bound, valid has two.", odds, 0.0, two, 0.375, [1.0, None]),
        ("at-least-none", "L = 1, no upper bound, nothing in valid.", odds, 0.0, none, 0.375, [1.0, None]),
        ("far-below", "L = 5 of 6, valid has one.", odds, 0.0, one, 0.96875, [5.0, None]),
        ("met", "Known tails are more than L asks for: L = -2.", odds, 0.0, two, 0.375, [-2.0, 3.0]),
        ("fractions", "L = 0.5, U = 2.75: 1 and 2.", odds, 0.0, one, 0.375, [0.5, 2.75]),
        ("ties", "Equal odds, equal derivatives.", ties, 0.0, two, 0.375, [1.0, 3.0]),
        ("rest-free", "Many improbable ones beside them.", odds, 0.75, two, 0.375, [0.0, None]),
        ("rest-one", "The same, L = U = 1, and valid has it.", odds, 0.75, one, 0.375, [1.0, 1.0]),
        ("rest-two", "The same, U = 2; valid has one.", odds, 0.75, one, 0.375, [0.0, 2.0]),
        ("rest-some", "The same, L = 1, U = 3; valid has one.", odds, 0.75, one, 0.375, [1.0, 3.0]),
        ("rest-at-least", "The same, L = 1, no upper bound.", odds, 0.75, none, 0.375, [1.0, None]),
        ("rest-alone", "Nobody is told apart.", [], 0.75, [], 0.375, [1.0, 3.0]),
        ("alone", "No candidate, and no bound that asks for one.", [], 0.0, [], 0.375, [0.0, 3.0]),
        ("extremes-free", "Odds of e^-300 to e^300.", extremes, 0.0, one, 0.375, [0.0, None]),
        ("extremes-some", "The same, L = 1, U = 3.", extremes, 0.0, two, 0.375, [1.0, 3.0]),
    ):
        inputs = {"log_odds": log_odds, "rest": rest, "found": found, "share": share, "bounds": bounds}
        yield f"thinned-likelihood/{case}", "thinned_likelihood", what, inputs

    log_softmax = [-0.25, -1.5, -1.5, -4.0, -9.0, -40.0]
    slope, offset, features = 0.25, [1.5, -0.5, 0.75], [1.0, 1.0, -0.625]
    for case, what, ceiling in (
        ("low", "c = sigma(-2).", -2.0),
        ("half", "c = 1/2: the odds stay below 1.", 0.0),
        ("high", "c = sigma(4).", 4.0),
        ("none", "c = 1 in float64: log o = x.", 60.0),
    ):
        inputs = {"parameters": [slope, *offset, ceiling], "log_softmax": log_softmax, "features": features}
        yield f"calibrated-log-odds/{case}", "calibrated_log_odds", what, inputs
    far = {"parameters": [2.0, *offset, 0.5], "log_softmax": [-900.0, 0.0, 900.0], "features": features}
    yield "calibrated-log-odds/extremes", "calibrated_log_odds", "x of several thousand, of both signs.", far

    shares = {"known_share": 0.0, "share": 0.5, "weight": 1.0, "weights": [1.0] * 3}
    first = {"log_softmax": [math.log(x / 7) for x in (4, 2, 1)], "found": [1, 0, 0], "features": [math.log(3.5), 0.0]}
    second = {"log_softmax": [math.log(x / 8) for x in (6, 1, 1)], "found": [0, 0, 0], "features": [0.0, math.log(4)]}
    toy = [first | {"bounds": [0.0, 1.0]} | shares, second | {"bounds": [0.0, None]} | shares]
    inputs = {"parameters": [0.0, 1.0, 1.0, 50.0], "queries": toy, "centre": [0.0] * 4, "precision": [0.0] * 4}
    what = "Two heads, three candidates: P(V) = 2/9 and 125/288."
    yield "calibration-objective/toy", "calibration_objective", what, inputs
    prior = {"centre": [2.0, -1.0, 0.5, 4.0], "precision": [0.5, 0.125, 2.0, 0.25]}
    near = {"centre": [2.0, -1.0, 0.5, 48.0], "precision": prior["precision"]}
    near["queries"] = [toy[0] | {"weight": 3.0}, toy[1]]
    what = "The toy with a prior, and the first head standing for three."
    yield "calibration-objective/prior", "calibration_objective", what, inputs | near
    drawn, x = {"weights": [1.0] * 6 + [2.5, 9.0], "features": [1.0, -0.5]}, numbers(79, 5, 8)
    cases = zip(x, ([0.0, None], [1.0, 1.0], [0.0, 2.0], [1.0, 3.0], [1.0, None]), (two, one, none, two, none))
    queries = [
        {"log_softmax": (np.array(row) - 2).tolist(), "found": [*found, 0, 0], "bounds": bounds}
        | {"known_share": 0.25 * (i % 3), "share": 0.125 + 0.1875 * i, "weight": 0.5 + i} | drawn
        for i, (row, bounds, found) in enumerate(cases)
    ]  # fmt: skip
    inputs = {"parameters": [-0.25, 0.5, 0.75, 1.0], "queries": queries} | prior
    what = "Every pair of bounds, a ceiling, candidates that stand for several, shares that are known."
    yield "calibration-objective/bounds", "calibration_objective", what, inputs
    inputs = inputs | {"queries": [], "precision": [0.5, 0.0, 2.0, 0.25]}
    yield "calibration-objective/prior-alone", "calibration_objective", "No (h, r) at all.", inputs


def main():
    parser = argparse.ArgumentParser(description="Make the reference values for other implementations.")
    parser.add_argument("--version", type=int, default=ORACLE_VERSION)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    path = options.out or FOLDER / f"oracle-{options.version}.json"
    path.write_text(text_of(make(options.version)), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
