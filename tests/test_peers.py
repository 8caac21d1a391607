"""The oracle, scores and ranks against implementations that are not ours (extra `peers`: torch, pykeen).

1. PyTorch works out every case of the oracle file from the paper's definitions, with its automatic differentiation
   for every gradient. 2. mpmath (50 digits) and exact fractions settle the cases that need no tensors. 3. PyKEEN's
   interactions and its RankBasedEvaluator see the same parameters and triples as we do. Nothing of cardkge is used in
   the first two parts but the file that it wrote.
"""

import itertools
import json
import math
import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import cardkge

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install .[peers]")
mpmath = pytest.importorskip("mpmath", reason="needs mpmath: pip install .[peers]")

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).resolve().parent.parent
ORACLE = json.loads((ROOT / "data" / "oracle-5.json").read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in ORACLE["cases"]}
INF = math.inf


def cases_of(*kinds):
    return pytest.mark.parametrize("name", [n for n, case in CASES.items() if case["kind"] in kinds])


def assert_same(found, expected, rtol=1e-12, atol=1e-13):
    """Every output, by name, in shape and value; None is infinity. Closer than the tolerance that the oracle states."""
    assert set(found) == set(expected)
    for key, value in expected.items():
        a, b = (np.array(x.tolist() if hasattr(x, "tolist") else x, dtype=float) for x in (found[key], value))
        a, b = (np.where(np.isnan(x), INF, x) for x in (a, b))
        assert a.shape == b.shape, f"{key}: {a.shape}, expected {b.shape}"
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=key)


# --- 1. PyTorch: the definitions, plainly, and automatic differentiation


def tensor(value):
    return torch.tensor(value, dtype=torch.float64)


def parameters_of(inputs):
    return {name: tensor(value).requires_grad_() for name, value in inputs["parameters"].items()}


def phi(model, p, h, r, t):
    """Table 2 of the paper for one triple."""
    h, r, t = p["entity"][h], p["relation"][r], p["entity"][t]
    if model == "distmult":
        return torch.sum(h * r * t)
    if model == "complex":
        k = len(h) // 2
        h, r, t = (torch.complex(row[:k], row[k:]) for row in (h, r, t))
        return torch.sum(h * r * torch.conj(t)).real
    return torch.dot(p["output"], torch.tanh(p["hidden"].T @ torch.cat([h, t, r])))


def scores_of(model, p, heads, relations, tails):
    """phi of ids in lists, nested in any way."""
    if isinstance(heads, list):
        return torch.stack([scores_of(model, p, *ids) for ids in zip(heads, relations, tails, strict=True)])
    return phi(model, p, heads, relations, tails)


def violation_of(inputs, p, sample):
    """X_hr and G_hr (Eqs. 4 and 5) of each subject of a sample. relu has slope 0 at 0, as G has at its bounds."""
    lower, upper = inputs["bounds"][sample["relation"]]
    n = len(sample["subjects"])
    pairs = [[h] * len(sample["objects"]) for h in sample["subjects"]]
    relations = [[sample["relation"]] * len(sample["objects"])] * n
    probabilities = torch.sigmoid(scores_of(inputs["model"], p, pairs, relations, [sample["objects"]] * n))
    sums = torch.sum(probabilities * tensor(sample["weights"]), dim=1)
    g = torch.relu(lower - sums)
    return sums, g if upper is None else g + torch.relu(sums - upper)


def hinge(positive, negative, margin):
    return torch.relu(margin + torch.sigmoid(negative) - torch.sigmoid(positive)[:, None]).sum()


def objective_of(inputs, p):
    """Eq. 6 with its parts."""
    ids = inputs["heads"], inputs["relations"], inputs["tails"]
    scores = scores_of(inputs["model"], p, *ids)
    if inputs["loss"] == "logistic":
        labels = -torch.ones_like(scores)
        labels[:, 0] = 1
        loss = -torch.nn.functional.logsigmoid(labels * scores).sum()
    else:
        loss = hinge(scores[:, 0], scores[:, 1:], inputs["margin"])
    rows = [p[name][torch.tensor(part).flatten()] for name, part in zip(("entity", "relation", "entity"), ids)]
    l2 = inputs["l2"] / 2 * sum(torch.sum(row**2) for row in rows)
    penalty = sum((violation_of(inputs, p, sample)[1].sum() for sample in inputs["samples"]), tensor(0.0))
    return {"objective": loss + l2 + inputs["penalty_weight"] * penalty, "loss": loss, "l2": l2, "penalty": penalty}


def gradients_of(value, p):
    found = torch.autograd.grad(value, list(p.values()), allow_unused=True)
    return {name: torch.zeros_like(p[name]) if d is None else d for name, d in zip(p, found)}


def d(gradients):
    return {f"d_{name}": value for name, value in gradients.items()}


def torch_scores(inputs):
    p, model = parameters_of(inputs), inputs["model"]
    heads, relations, tails = inputs["heads"], inputs["relations"], inputs["tails"]
    everyone = list(range(len(p["entity"])))
    score = scores_of(model, p, heads, relations, tails)
    n = len(everyone)
    if inputs.get("reciprocal"):
        of_heads = [
            scores_of(model, p, [t] * n, [r + len(p["relation"]) // 2] * n, everyone) for r, t in zip(relations, tails)
        ]
    else:
        of_heads = [scores_of(model, p, everyone, [r] * n, [t] * n) for r, t in zip(relations, tails)]
    return {
        "score": score,
        "score_tails": torch.stack([scores_of(model, p, [h] * n, [r] * n, everyone) for h, r in zip(heads, relations)]),
        "score_heads": torch.stack(of_heads),
        "probability": torch.sigmoid(score),
    }


def torch_score_gradients(inputs):
    p = parameters_of(inputs)
    score = scores_of(inputs["model"], p, inputs["heads"], inputs["relations"], inputs["tails"])
    return d(gradients_of(torch.sum(tensor(inputs["upstream"]) * score), p))


def torch_probability(inputs):
    return {"probability": torch.sigmoid(tensor(inputs["scores"]))}


def torch_logistic_loss(inputs):
    scores = tensor(inputs["scores"]).requires_grad_()
    loss = -torch.nn.functional.logsigmoid(tensor(inputs["labels"]) * scores).sum()
    return {"loss": loss, "d_scores": gradients_of(loss, {"scores": scores})["scores"]}


def torch_hinge_loss(inputs):
    p = {name: tensor(inputs[name]).requires_grad_() for name in ("positive", "negative")}
    loss = hinge(p["positive"], p["negative"], inputs["margin"])
    return {"loss": loss, **d(gradients_of(loss, p))}


def torch_cardinality(inputs):
    p = parameters_of(inputs)
    sums, g = violation_of(inputs, p, inputs)
    return {"X": sums, "G": g, "penalty": g.sum(), **d(gradients_of(g.sum(), p))}


def torch_objective(inputs):
    p = parameters_of(inputs)
    parts = objective_of(inputs, p)
    return parts | d(gradients_of(parts["objective"], p))


def torch_softmax_loss(inputs):
    scores = tensor(inputs["scores"]).requires_grad_()
    logits = scores + tensor(inputs["log_weights"])
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(inputs["answers"]), reduction="sum")
    return {"loss": loss, "d_scores": gradients_of(loss, {"scores": scores})["scores"]}


def cubes(model, row):
    """The sum of the cubed sizes of the numbers of a row."""
    if model == "complex":
        row = torch.complex(row[: len(row) // 2], row[len(row) // 2 :])
    return torch.sum(torch.abs(row) ** 3)


def torch_softmax_objective(inputs):
    """A query at a time."""
    p, model, among = parameters_of(inputs), inputs["model"], inputs["candidates"]
    n, weights = len(among), tensor(inputs["log_weights"])
    parts = dict.fromkeys(("loss", "l2", "n3", "penalty"), tensor(0.0))
    for (h, r, t), side in zip(inputs["triples"], inputs["sides"], strict=True):
        given, answer, row = (h, t, r) if side == 1 else (t, h, r)
        if inputs.get("reciprocal") and side == 0:
            row += len(p["relation"]) // 2
        if side == 1 or inputs.get("reciprocal"):
            scores = scores_of(model, p, [given] * n, [row] * n, among)
        else:
            scores = scores_of(model, p, among, [row] * n, [given] * n)
        kept = [i for i, e in enumerate(among) if e == answer or e != given or not inputs["loopless"][r]]
        logits = (scores + weights)[kept]
        place = torch.tensor([[among[i] for i in kept].index(answer)])
        parts["loss"] = parts["loss"] + torch.nn.functional.cross_entropy(logits[None], place, reduction="sum")
        for rows in (p["entity"][given], p["relation"][row], p["entity"][answer]):
            parts["l2"] = parts["l2"] + inputs["l2"] / 2 * torch.sum(rows**2)
            parts["n3"] = parts["n3"] + inputs["n3"] * cubes(model, rows)
    asked = {(h, r) for (h, r, _), side in zip(inputs["triples"], inputs["sides"], strict=True) if side == 1}
    for h, r in asked if inputs["penalty_weight"] else ():
        sample = {"relation": r, "subjects": [h], "objects": among, "weights": torch.exp(weights).tolist()}
        parts["penalty"] = parts["penalty"] + violation_of(inputs, p, sample)[1].sum()
    total = parts["loss"] + parts["l2"] + parts["n3"] + inputs["penalty_weight"] * parts["penalty"]
    return {"objective": total, **parts, **d(gradients_of(total, p))}


def torch_calibration_loss(inputs):
    """Its gradient by autograd; its information as the expected product of the gradients of single candidates."""
    parameters, v = tensor(inputs["parameters"]).requires_grad_(), inputs["share"]

    def of_candidate(features, found):
        z = tensor(features) @ torch.cat([torch.exp(parameters[:1]), parameters[1:]])
        log_pi = torch.nn.functional.logsigmoid(z)
        return -(math.log(v) + log_pi) if found else -torch.log1p(-v * torch.exp(log_pi))

    away = parameters - tensor(inputs["centre"])
    value, information = (tensor(inputs["precision"]) * away**2).sum() / 2, torch.diag(tensor(inputs["precision"]))
    for features, found, weight in zip(inputs["features"], inputs["found"], inputs["weights"], strict=True):
        value = value + weight * of_candidate(features, found)
        for either in (True, False):
            surprise = of_candidate(features, either)
            (g,) = torch.autograd.grad(surprise, parameters)
            information = information + weight * torch.exp(-surprise.detach()) * torch.outer(g, g)
    (gradient,) = torch.autograd.grad(value, parameters)
    return {"loss": value.detach(), "d_parameters": gradient, "information": information}


def sets_of(candidates, rest, lower, upper):
    """(members, how many of the rest, log of the weight of that many) of every set within the bounds. 60 of the rest
    are more than any."""
    for size in range(candidates + 1):
        for members in itertools.combinations(range(candidates), size):
            for others in range(61 if rest else 1):
                if lower <= size + others and (upper is None or size + others <= upper):
                    yield members, others, -math.lgamma(others + 1)


def log_thinned(x, log_rest, found, v, lower, upper):
    """log P(V) by enumeration: each set is drawn with the product of its odds, each member kept with probability v."""
    all_sets, with_v = [], []
    kept = {t for t in range(len(found)) if found[t]}
    for members, others, log_weight in sets_of(len(x), log_rest is not None, lower, upper):
        log_odds = log_weight + sum((x[t] for t in members), torch.zeros((), dtype=torch.float64))
        log_odds = log_odds + others * log_rest if others else log_odds
        all_sets.append(log_odds)
        if kept <= set(members):
            lost = len(members) + others - len(kept)
            with_v.append(log_odds + len(kept) * math.log(v) + lost * math.log1p(-v))
    return torch.logsumexp(torch.stack(with_v), 0) - torch.logsumexp(torch.stack(all_sets), 0)


def torch_thinned_likelihood(inputs):
    x, rest = tensor(inputs["log_odds"]).requires_grad_(), inputs["rest"]
    log_rest = torch.log(tensor(rest)).requires_grad_() if rest else None
    value = log_thinned(x, log_rest, inputs["found"], inputs["share"], *inputs["bounds"])
    if not len(x) and not rest:
        return {"log_probability": value, "d_log_odds": x.detach(), "d_log_rest": 0.0}
    of = [each for each in (x if len(x) else None, log_rest) if each is not None]
    slopes = dict(zip(map(id, of), torch.autograd.grad(value, of), strict=True))
    d_rest = slopes[id(log_rest)] if rest else 0.0
    return {"log_probability": value.detach(), "d_log_odds": slopes.get(id(x), x.detach()), "d_log_rest": d_rest}


def log_odds_below(parameters, log_softmax, features):
    """log of c s / (1 - c s), s the logistic function of x: (log odds, x)."""
    x = torch.exp(parameters[0]) * log_softmax + parameters[1:-1] @ features
    log_p = torch.nn.functional.logsigmoid(parameters[-1]) + torch.nn.functional.logsigmoid(x)
    # 1 - c s = (1 - c) + c (1 - s)
    rest = torch.logaddexp(
        torch.nn.functional.logsigmoid(-parameters[-1]),
        torch.nn.functional.logsigmoid(parameters[-1]) + torch.nn.functional.logsigmoid(-x),
    )
    return log_p - rest, x


def torch_calibrated_log_odds(inputs):
    """The derivative by x is that by the offset, of a feature 1."""
    log_softmax, features = tensor(inputs["log_softmax"]), tensor([*inputs["features"], 1.0])
    *others, ceiling = inputs["parameters"]
    parameters = tensor([*others, 0.0, ceiling]).requires_grad_()
    log_odds, _ = log_odds_below(parameters, log_softmax, features)
    slopes = torch.stack([torch.autograd.grad(each, parameters, retain_graph=True)[0] for each in log_odds])
    return {"log_odds": log_odds.detach(), "d_x": slopes[:, -2], "d_ceiling": slopes[:, -1]}


def torch_calibration_objective(inputs):
    parameters = tensor(inputs["parameters"]).requires_grad_()
    value = (tensor(inputs["precision"]) * (parameters - tensor(inputs["centre"])) ** 2).sum() / 2
    for query in inputs["queries"]:
        log_odds, _ = log_odds_below(parameters, tensor(query["log_softmax"]), tensor(query["features"]))
        log_odds = log_odds + math.log(1 - query["known_share"])
        weights = tensor(query["weights"])
        others = weights > 1
        log_rest = torch.logsumexp(log_odds[others] + torch.log(weights[others]), 0) if others.any() else None
        found = [is_in for is_in, many in zip(query["found"], others.tolist(), strict=True) if not many]
        log_p = log_thinned(log_odds[~others], log_rest, found, query["share"], *query["bounds"])
        value = value - query["weight"] * log_p
    (gradient,) = torch.autograd.grad(value, parameters)
    return {"value": value.detach(), "d_parameters": gradient}


def unit_rows(rows):
    return torch.nn.functional.normalize(rows, dim=1, eps=1e-300)


def torch_step(inputs):
    """The update by torch.optim, so not from our formula either."""
    p = parameters_of(inputs)
    accumulators = apply_optimizer(p, inputs, gradients_of(objective_of(inputs, p)["objective"], p))
    found = {name: value.detach() for name, value in p.items()}
    if inputs["project"] == "unit":
        found["entity"] = unit_rows(found["entity"])
    return found | {f"accumulator_{name}": value for name, value in accumulators.items()}


def apply_optimizer(p, inputs, gradients):
    """One step of torch.optim, in place; returns AdaGrad's accumulators. torch divides by sqrt(sum) + eps: with eps 0 a
    number whose accumulator and gradient are 0 would become 0/0, and 1e-300 leaves it (and every other bit) alone."""
    if inputs["optimizer"] == "sgd":
        optimizer = torch.optim.SGD(list(p.values()), lr=inputs["learning_rate"])
    else:
        optimizer = torch.optim.Adagrad(list(p.values()), lr=inputs["learning_rate"], eps=1e-300)
        for name, value in p.items():
            optimizer.state[value]["sum"] = tensor(inputs["accumulators"][name])
    for name, value in p.items():
        value.grad = gradients[name]
    optimizer.step()
    return {name: optimizer.state[value]["sum"] for name, value in p.items()} if inputs["optimizer"] != "sgd" else {}


def torch_update(inputs):
    p = {"parameter": tensor(inputs["parameter"]).requires_grad_()}
    settings = inputs | {"accumulators": {"parameter": inputs["accumulator"]}}
    accumulators = apply_optimizer(p, settings, {"parameter": tensor(inputs["gradient"])})
    found = {"parameter": p["parameter"].detach()}
    return found | ({"accumulator": accumulators["parameter"]} if accumulators else {})


def torch_projection(inputs):
    return {"rows": unit_rows(tensor(inputs["rows"]))}


def plain_ranks(scores, answer, removed):
    better = sum(s > scores[answer] for i, s in enumerate(scores) if i not in removed)
    equal = sum(s == scores[answer] for i, s in enumerate(scores) if i not in removed and i != answer)
    return {"optimistic": 1 + better, "pessimistic": 1 + better + equal, "realistic": 1 + better + equal / 2}


def torch_ranks(inputs):
    p, model, n = parameters_of(inputs), inputs["model"], len(inputs["parameters"]["entity"])
    everyone = list(range(n))
    known = {tuple(triple) for split in ("train", "valid", "test") for triple in inputs[split]}
    found = {f"{setting}_{ties}": [] for setting in ("raw", "filtered") for ties in cardkge.TIES}
    for h, r, t in inputs["test"]:
        heads = scores_of(model, p, everyone, [r] * n, [t] * n).tolist()
        if inputs.get("reciprocal"):
            heads = scores_of(model, p, [t] * n, [r + len(p["relation"]) // 2] * n, everyone).tolist()
        tails = scores_of(model, p, [h] * n, [r] * n, everyone).tolist()
        other_heads = {e for e in everyone if (e, r, t) in known and e != h}
        other_tails = {e for e in everyone if (h, r, e) in known and e != t}
        for setting, left_out in (("raw", (set(), set())), ("filtered", (other_heads, other_tails))):
            sides = plain_ranks(heads, h, left_out[0]), plain_ranks(tails, t, left_out[1])
            for ties in cardkge.TIES:
                found[f"{setting}_{ties}"].append([side[ties] for side in sides])
    return found


TORCH = {
    "scores": torch_scores,
    "score_gradients": torch_score_gradients,
    "probability": torch_probability,
    "logistic_loss": torch_logistic_loss,
    "hinge_loss": torch_hinge_loss,
    "cardinality": torch_cardinality,
    "objective": torch_objective,
    "softmax_loss": torch_softmax_loss,
    "softmax_objective": torch_softmax_objective,
    "step": torch_step,
    "update": torch_update,
    "projection": torch_projection,
    "ranks": torch_ranks,
    "calibration_loss": torch_calibration_loss,
    "thinned_likelihood": torch_thinned_likelihood,
    "calibrated_log_odds": torch_calibrated_log_odds,
    "calibration_objective": torch_calibration_objective,
}


@cases_of(*TORCH)
def test_torch_computes_the_same(name):
    case = CASES[name]
    assert_same(TORCH[case["kind"]](case["inputs"]), case["outputs"])


def test_every_kind_has_a_peer():
    assert {case["kind"] for case in CASES.values()} == set(TORCH) | set(EXACT) | {"calibration", "conditional"}


# --- 2. exact fractions, and mpmath at 50 digits


def exact_sampling(inputs):
    """q_r and b as fractions. b: the cap is lifted one entity at a time, from the most frequent down."""
    n, omega = inputs["n_entities"], inputs["objects"]
    found = {"importance_q": [], "importance_weight": [], "bernoulli_uniform_b": [], "bernoulli_frequency_b": []}
    for relation in range(inputs["n_relations"]):
        frequency = [1 + sum(r == relation and t == e for _, r, t in inputs["triples"]) for e in range(n)]
        q = [Fraction(f, sum(frequency)) for f in frequency]
        order = sorted(range(n), key=lambda e: -frequency[e])
        capped = 0
        while (
            capped < n
            and Fraction(omega - capped, sum(frequency[e] for e in order[capped:])) * frequency[order[capped]] > 1
        ):
            capped += 1
        rest = sum(frequency[e] for e in order[capped:])
        b = [Fraction(1)] * n
        for e in order[capped:]:
            b[e] = Fraction(omega - capped, rest) * frequency[e]
        assert sum(b) == omega and max(b) <= 1
        found["importance_q"].append(q)
        found["importance_weight"].append([1 / (omega * x) for x in q])
        found["bernoulli_uniform_b"].append([Fraction(omega, n)] * n)
        found["bernoulli_frequency_b"].append(b)
    return {key: [[float(x) for x in row] for row in rows] for key, rows in found.items()}


def exact_mined_bounds(inputs):
    tails, heads = {}, [set() for _ in range(inputs["n_relations"])]
    for h, r, t in inputs["triples"]:
        tails.setdefault((r, h), set()).add(t)
        heads[r].add(h)
    found = []
    for r in range(inputs["n_relations"]):
        population = {
            "subjects": set().union(*heads),
            "relation": heads[r],
            "entities": set(range(inputs["n_entities"])),
        }[inputs["population"]]
        counts = [len(tails.get((r, h), ())) for h in population]
        found.append([min(counts), max(counts)] if heads[r] else [0, INF])
    return {"bounds": found}


def exact_metrics(inputs):
    found = {}
    for side, columns in (("both", (0, 1)), ("head", (0,)), ("tail", (1,))):
        ranks = [Fraction(row[column]) for row in inputs["ranks"] for column in columns]
        found[f"{side}_mrr"] = sum(1 / rank for rank in ranks) / len(ranks)
        found[f"{side}_mean_rank"] = sum(ranks) / len(ranks)
        for n in (1, 3, 5, 10):
            found[f"{side}_hits@{n}"] = Fraction(sum(rank <= n for rank in ranks), len(ranks))
    return {key: float(value) for key, value in found.items()}


EXACT = {"sampling": exact_sampling, "mined_bounds": exact_mined_bounds, "metrics": exact_metrics}


@cases_of(*EXACT)
def test_fractions_give_the_same(name):
    case = CASES[name]
    assert_same(EXACT[case["kind"]](case["inputs"]), case["outputs"], rtol=4e-16, atol=0)


def mp_sigma(x):
    return 1 / (1 + mpmath.exp(-x))


def mp_phi(inputs, h, r, t):
    """Score of a triple at 50 digits, from parameters that are exact in binary."""
    p = inputs["parameters"]
    h, r, t = ([mpmath.mpf(x) for x in row] for row in (p["entity"][h], p["relation"][r], p["entity"][t]))
    if inputs["model"] == "distmult":
        return mpmath.fsum(a * b * c for a, b, c in zip(h, r, t))
    if inputs["model"] == "complex":
        k = len(h) // 2
        h, r, t = ([mpmath.mpc(row[i], row[k + i]) for i in range(k)] for row in (h, r, t))
        return mpmath.fsum(mpmath.re(a * b * mpmath.conj(c)) for a, b, c in zip(h, r, t))
    units = [mpmath.fsum(x * w for x, w in zip(h + t + r, column)) for column in zip(*p["hidden"])]
    return mpmath.fsum(w * mpmath.tanh(unit) for w, unit in zip(p["output"], units))


def mp_probability(inputs):
    return {"probability": [mp_sigma(mpmath.mpf(x)) for x in inputs["scores"]]}


def mp_logistic_loss(inputs):
    margins = [mpmath.mpf(x) * y for x, y in zip(inputs["scores"], inputs["labels"])]
    # -y exp(-y x) / (1 + exp(-y x)) = -y (1 - sigma(y x))
    slopes = [-y * mpmath.exp(-m) / (1 + mpmath.exp(-m)) for y, m in zip(inputs["labels"], margins)]
    return {"loss": mpmath.fsum(mpmath.log(1 + mpmath.exp(-m)) for m in margins), "d_scores": slopes}


def mp_hinge_loss(inputs):
    loss, d_positive, d_negative = mpmath.mpf(0), [], []
    for positive, row in zip(inputs["positive"], inputs["negative"]):
        p, slope, slopes = mp_sigma(mpmath.mpf(positive)), mpmath.mpf(0), []
        for negative in row:
            q = mp_sigma(mpmath.mpf(negative))
            term = inputs["margin"] + q - p
            if mpmath.fabs(term) < 1e-30:  # the kink; float64 cannot see what is left of it either
                term = 0
            loss += max(term, 0)
            slope -= p * (1 - p) if term > 0 else 0
            slopes.append(q * (1 - q) if term > 0 else 0)
        d_positive.append(slope)
        d_negative.append(slopes)
    return {"loss": loss, "d_positive": d_positive, "d_negative": d_negative}


def mp_sums(inputs):
    """X, G and the sum of G."""
    relation, weighted = inputs["relation"], list(zip(inputs["objects"], inputs["weights"]))
    lower, upper = inputs["bounds"][relation]
    sums = [mpmath.fsum(w * mp_sigma(mp_phi(inputs, h, relation, t)) for t, w in weighted) for h in inputs["subjects"]]
    g = [max(0, lower - x) + (0 if upper is None else max(0, x - upper)) for x in sums]
    return {"X": sums, "G": g, "penalty": mpmath.fsum(g)}


def mp_update(inputs):
    rate = mpmath.mpf(inputs["learning_rate"])
    rows = {"parameter": [], "accumulator": []}
    for values in zip(*(inputs[key] for key in ("parameter", "accumulator", "gradient"))):
        numbers = [[mpmath.mpf(x) for x in row] for row in values]
        sums = [a + g * g for _, a, g in zip(*numbers)]
        if inputs["optimizer"] == "sgd":
            rows["parameter"].append([x - rate * g for x, _, g in zip(*numbers)])
        else:
            steps = [rate * g / mpmath.sqrt(s) if s else 0 for s, g in zip(sums, numbers[2])]
            rows["parameter"].append([x - step for x, step in zip(numbers[0], steps)])
            rows["accumulator"].append(sums)
    return {key: value for key, value in rows.items() if value}


def mp_calibration(inputs):
    found = {key: [] for key in ("log_sum", "logits", "pi", "log_odds", "probability")}
    v = mpmath.mpf(inputs["share"])
    for coefficients, scores, known in zip(inputs["coefficients"], inputs["scores"], inputs["known"], strict=True):
        a, b, c = map(mpmath.mpf, coefficients[min(known, 2)])
        total = mpmath.log(mpmath.fsum(mpmath.exp(s) for s in scores))
        z = [a * s + b * (s - total) + c for s in scores]
        pi = [mp_sigma(x) for x in z]
        p = [x * (1 - v) / (1 - v * x) for x in pi]
        for key, value in zip(found, (total, z, pi, [x + mpmath.log(1 - v) for x in z], p), strict=True):
            found[key].append(value)
    return found


def mp_product(polynomial, odds, most):
    """The polynomial times 1 + odds x, up to x^most."""
    return [a + odds * b for a, b in zip([*polynomial, 0], [0, *polynomial])][: most + 1]


def mp_conditional(inputs):
    """The polynomials without each candidate, multiplied anew."""
    k, (lower, upper), odds = inputs["known"], inputs["bounds"], [mpmath.exp(x) for x in inputs["log_odds"]]
    n, weights = len(odds), inputs.get("weights", [1])
    least, most = max(math.ceil(lower - k), 0), n if upper is None else min(math.floor(upper - k), n)
    weight = [weights[min(j, len(weights) - 1)] * (least <= j <= most) for j in range(n + 1)]
    if not any(weight):
        return {"contradicted": 1, "probability": [0] * n, "expected": k}
    before = [[mpmath.mpf(1)]]
    for o in odds:
        before.append(mp_product(before[-1], o, most))
    after, found = [mpmath.mpf(1)], []
    total = mpmath.fsum(w * e for w, e in zip(weight, before[n]))
    for t in reversed(range(n)):
        others = mp_times(before[t], after, most)
        found.insert(0, odds[t] * mpmath.fsum(w * e for w, e in zip(weight[1:], others)) / total)
        after = mp_product(after, odds[t], most)
    return {"contradicted": 0, "probability": found, "expected": k + mpmath.fsum(found)}


def mp_times(a, b, most):
    """The product of two polynomials, below x^most."""
    ends = [(max(j + 1 - len(b), 0), min(j + 1, len(a))) for j in range(min(len(a) + len(b) - 1, most))]
    return [mpmath.fsum(a[i] * b[j - i] for i in range(*end)) for j, end in enumerate(ends)]


MPMATH = {
    "calibration": mp_calibration,
    "conditional": mp_conditional,
    "probability": mp_probability,
    "logistic_loss": mp_logistic_loss,
    "hinge_loss": mp_hinge_loss,
    "cardinality": mp_sums,
    "update": mp_update,
}


def as_floats(value):
    return [as_floats(part) for part in value] if isinstance(value, list) else float(value)


@cases_of(*MPMATH)
def test_fifty_digits_give_the_same(name):
    case = CASES[name]
    with mpmath.workdps(50):
        found = MPMATH[case["kind"]](case["inputs"])
    expected = {key: value for key, value in case["outputs"].items() if key in found}
    assert len(expected) == len(case["outputs"]) or case["kind"] == "cardinality"
    assert_same({key: as_floats(value) for key, value in found.items()}, expected, rtol=2e-14, atol=1e-15)


@cases_of("scores")
def test_fifty_digits_give_the_same_scores(name):
    inputs, outputs = CASES[name]["inputs"], CASES[name]["outputs"]
    with mpmath.workdps(50):
        ids = zip(inputs["heads"], inputs["relations"], inputs["tails"])
        scores = [mp_phi(inputs, *triple) for triple in ids]
        found = {"score": as_floats(scores), "probability": as_floats([mp_sigma(x) for x in scores])}
    assert_same(found, {key: outputs[key] for key in found}, rtol=2e-14, atol=1e-14)


# --- 3. PyKEEN


@pytest.fixture(scope="module")
def pykeen():
    """PyKEEN, if it is there. Loading it takes some seconds."""
    reason = "needs PyKEEN: pip install .[peers]"
    evaluation = pytest.importorskip("pykeen.evaluation", reason=reason)
    modules = pytest.importorskip("pykeen.nn.modules", reason=reason)
    return evaluation, modules


@pytest.fixture(scope="module")
def wn18rr():
    if not os.environ.get("CARDKGE_DATA") or cardkge.locate_dataset("wn18rr") is None:
        pytest.skip("needs WN18RR: a folder that holds it in CARDKGE_DATA")
    return cardkge.load_dataset("wn18rr", download=False)


def parameters(name, n_entities, n_relations, dim, integers=False):
    """A float64 model of ours: small integers, so that equal scores are exactly equal, or any numbers."""
    extra = {"hidden": 5} if name == "ermlp" else {}
    model = cardkge.MODELS[name](n_entities, n_relations, dim, dtype="float64", **extra)
    rng = np.random.default_rng(17)
    for array in model.params.values():
        array[...] = rng.integers(-1, 2, array.shape) if integers else rng.normal(size=array.shape)
    return model


def their_interaction(modules, model):
    """PyKEEN's interaction with our parameters, and a function from our embedding rows to its representations.

    Conventions that differ: PyKEEN's ComplEx takes complex tensors (ours: real parts, then imaginary parts); its ER-MLP
    stacks [h; r; t] (ours [h; t; r]), holds W transposed, has biases (set to 0) and a ReLU (here tanh).
    """
    if model.name == "distmult":
        return modules.DistMultInteraction(), torch.from_numpy
    if model.name == "complex":
        return modules.ComplExInteraction(), lambda rows: torch.complex(*torch.from_numpy(rows).chunk(2, dim=-1))
    interaction = modules.ERMLPInteraction(model.dim, model.hidden, activation="tanh").double()
    w_h, w_t, w_r = np.split(model.params["hidden"], 3)
    with torch.no_grad():
        interaction.hidden.weight.copy_(torch.from_numpy(np.concatenate((w_h, w_r, w_t)).T))
        interaction.hidden.bias.zero_()
        interaction.hidden_to_score.weight.copy_(torch.from_numpy(model.params["output"])[None])
        interaction.hidden_to_score.bias.zero_()
    return interaction, torch.from_numpy


def test_pykeen_scores_the_same(pykeen, wn18rr, model_name):
    _, modules = pykeen
    model = parameters(model_name, wn18rr.n_entities, wn18rr.n_relations, 8)
    interaction, convert = their_interaction(modules, model)
    triples = np.random.default_rng(3).permutation(wn18rr.test)[:300]
    h, r, t = (convert(rows) for rows in model.rows(*triples.T))
    with torch.no_grad():
        np.testing.assert_allclose(model.score(*triples.T), interaction(h, r, t), rtol=1e-10, atol=1e-12)
        few, everyone = slice(0, 5), convert(model.params["entity"])
        tails = interaction(h[few, None], r[few, None], everyone[None])
        np.testing.assert_allclose(model.score_tails(*triples[few, :2].T), tails, rtol=1e-10, atol=1e-12)
        heads = interaction(everyone[None], r[few, None], t[few, None])
        np.testing.assert_allclose(model.score_heads(*triples[few, 1:].T), heads, rtol=1e-10, atol=1e-12)


METRICS = {  # ours: PyKEEN's
    "mrr": "inverse_harmonic_mean_rank",
    "mean_rank": "arithmetic_mean_rank",
    **{f"hits@{n}": f"hits_at_{n}" for n in (1, 3, 5, 10)},
}


@pytest.mark.parametrize("name, integers", [("distmult", True), ("complex", True), ("ermlp", False)])
def test_pykeen_ranks_the_same(pykeen, wn18rr, name, integers):
    """Raw and filtered, under the three policies, rank by rank; then the metrics.

    Conventions that differ: PyKEEN filters by the triples that it is given (here all three splits). Without filter its
    `evaluate` (1.11) hands the evaluator no true scores, and that refuses: raw scores are handed over here instead.
    """
    evaluation, modules = pykeen
    model = parameters(name, wn18rr.n_entities, wn18rr.n_relations, 4, integers)
    interaction, convert = their_interaction(modules, model)
    triples = np.random.default_rng(4).permutation(wn18rr.test)[:200]
    everyone, relations = (convert(model.params[key]) for key in ("entity", "relation"))

    class Scorer(torch.nn.Module):
        """As much of a PyKEEN model as its evaluator asks for."""

        def __init__(self):
            super().__init__()
            self.device, self.num_entities = torch.device("cpu"), wn18rr.n_entities
            self.loss, self.use_inverse_triples = None, False

        def predict(self, hrt_batch, target, **_):
            h, r, t = hrt_batch.T
            r = relations[r][:, None]
            if target == "head":
                return interaction(everyone[None], r, everyone[t][:, None])
            return interaction(everyone[h][:, None], r, everyone[None])

    as_tensor = {key: torch.from_numpy(a.astype(np.int64)) for key, a in (("test", triples), ("known", wn18rr.known))}
    for setting in ("raw", "filtered"):
        evaluator = evaluation.RankBasedEvaluator(filtered=setting == "filtered", clear_on_finalize=False)
        with torch.no_grad():
            if setting == "filtered":
                known = [as_tensor["known"]]
                result = evaluator.evaluate(
                    Scorer(), as_tensor["test"], batch_size=20, use_tqdm=False, additional_filter_triples=known
                )
            else:
                for batch in as_tensor["test"].split(20):
                    for column, side in ((0, "head"), (2, "tail")):
                        scores = Scorer().predict(batch, side)
                        evaluator.process_scores_(batch, side, scores, scores.gather(1, batch[:, column, None]))
                result = evaluator.finalize()
        for ties in cardkge.TIES:
            ours = cardkge.rank_triples(model, triples, wn18rr.known, ties=ties)[setting]
            theirs = [np.concatenate(evaluator.ranks[side, ties]) for side in ("head", "tail")]
            assert np.array_equal(ours, np.stack(theirs, axis=1)), (setting, ties)
            for side, metrics in cardkge.metrics_by_side(ours).items():
                for key, value in metrics.items():
                    other = result.get_metric(f"{side}.{ties}.{METRICS[key]}")
                    assert value == pytest.approx(other, rel=1e-6), (setting, ties, side, key)
        low, high = (np.concatenate(evaluator.ranks["tail", t]) for t in ("optimistic", "pessimistic"))
        assert (low < high).any() == integers  # there were ties, or there were none


# --- the example in docs/ORACLE.md


def test_the_example_in_the_document(tmp_path):
    """DistMult whose backward pass forgets the relation in the gradient of the tail; what the page shows is said."""
    mine = {"format": "cardkge-oracle", "version": 4, "cases": []}
    for case in cardkge.oracle()["cases"]:
        x = case["inputs"]
        if x.get("model") != "distmult" or case["kind"] not in ("scores", "score_gradients") or "reciprocal" in x:
            continue
        tables = {name: np.array(x["parameters"][name]) for name in ("entity", "relation")}
        h, r, t = tables["entity"][x["heads"]], tables["relation"][x["relations"]], tables["entity"][x["tails"]]
        score = (h * r * t).sum(1)
        outputs = {"score": score.tolist(), "probability": (1 / (1 + np.exp(-score))).tolist()}
        if case["kind"] == "score_gradients":
            u, found = np.array(x["upstream"])[:, None], {name: np.zeros_like(a) for name, a in tables.items()}
            np.add.at(found["entity"], x["heads"], u * r * t)
            np.add.at(found["relation"], x["relations"], u * h * t)
            np.add.at(found["entity"], x["tails"], u * h)  # should be u * h * r
            outputs = {f"d_{name}": array.tolist() for name, array in found.items()}
        mine["cases"].append({"name": case["name"], "outputs": outputs})
    (tmp_path / "mine.json").write_text(json.dumps(mine))
    command = [sys.executable, str(ROOT / "cli.py"), "oracle", "check", "mine.json"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 1
    (shown,) = re.findall(r"```text\n(ok .*?)```", (ROOT / "docs" / "ORACLE.md").read_text(encoding="utf-8"), re.S)
    lines = [line for line in shown.splitlines() if line]
    assert len(lines) == 3 and set(lines) <= {*found.stdout.splitlines(), found.stderr.strip()}
