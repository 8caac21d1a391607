"""Independent plain-Python definitions that the tests compare the library with.

Loops over numbers, `math` and Python's `complex`; nothing is taken from cardkge.py or kernels.py.
`params` is a dict of float64 arrays as SPEC section 4 lays them out.
"""

import math
from collections import defaultdict

import numpy as np


def sigma(x):
    """1 / (1 + exp(-x)) without overflow."""
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def softplus(x):
    """log(1 + exp(x)) without overflow."""
    return x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x))


def complex_row(row):
    """[real parts; imaginary parts] -> list of complex numbers."""
    k = len(row) // 2
    return [complex(row[i], row[k + i]) for i in range(k)]


def real_row(numbers):
    """The inverse of complex_row."""
    return np.array([z.real for z in numbers] + [z.imag for z in numbers])


def score(name, params, h, r, t):
    """phi_r(h, t), a float."""
    eh, er, et = params["entity"][h], params["relation"][r], params["entity"][t]
    if name == "distmult":
        return math.fsum(float(a) * float(b) * float(c) for a, b, c in zip(eh, er, et))
    if name == "complex":
        rows = (complex_row(eh), complex_row(er), complex_row(et))
        return math.fsum((a * b * c.conjugate()).real for a, b, c in zip(*rows))
    x = [*eh, *et, *er]
    w, out = params["hidden"], params["output"]
    total = 0.0
    for j in range(len(out)):
        total += out[j] * math.tanh(math.fsum(x[i] * w[i, j] for i in range(len(x))))
    return float(total)


def score_gradient(name, params, h, r, t):
    """d phi / d (head row, relation row, tail row, hidden, output); None where there is no such."""
    eh, er, et = params["entity"][h], params["relation"][r], params["entity"][t]
    if name == "distmult":
        return er * et, eh * et, eh * er, None, None
    if name == "complex":
        # Re(a b conj(c)) seen as a function of two reals: d/da = conj(b) c, and so on
        a, b, c = complex_row(eh), complex_row(er), complex_row(et)
        return (
            real_row([y.conjugate() * z for y, z in zip(b, c)]),
            real_row([x.conjugate() * z for x, z in zip(a, c)]),
            real_row([x * y for x, y in zip(a, b)]),
            None,
            None,
        )
    k = len(eh)
    x = [*eh, *et, *er]
    w, out = params["hidden"], params["output"]
    active = [math.tanh(sum(x[i] * w[i, j] for i in range(3 * k))) for j in range(len(out))]
    inner = [out[j] * (1.0 - active[j] ** 2) for j in range(len(out))]
    dx = np.array([sum(w[i, j] * inner[j] for j in range(len(out))) for i in range(3 * k)])
    d_hidden = np.array([[x[i] * inner[j] for j in range(len(out))] for i in range(3 * k)])
    return dx[:k], dx[2 * k :], dx[k : 2 * k], d_hidden, np.array(active)


def zeros(params):
    return {key: np.zeros(array.shape) for key, array in params.items()}


def add_gradient(name, params, h, r, t, factor, gradients):
    """gradients += factor * d phi(h, r, t) / d params."""
    dh, dr, dt, d_hidden, d_output = score_gradient(name, params, h, r, t)
    gradients["entity"][h] += factor * dh
    gradients["relation"][r] += factor * dr
    gradients["entity"][t] += factor * dt
    if d_hidden is not None:
        gradients["hidden"] += factor * d_hidden
        gradients["output"] += factor * d_output


def cardinality_sum(name, params, r, h, objects=None, weights=None):
    """X_hr = sum over objects of weight * p(h, r, object)."""
    objects = range(len(params["entity"])) if objects is None else objects
    weights = [1.0] * len(objects) if weights is None else weights
    return math.fsum(w * sigma(score(name, params, h, r, o)) for o, w in zip(objects, weights))


def penalty(x, lower, upper):
    """G at X = x, equation (regulariser) of the paper."""
    return max(0.0, lower - x) + max(0.0, x - upper)


def objective(name, params, heads, relations, tails, settings, bounds=None, samples=()):
    """Parts {"loss", "l2", "G"} and the gradients of loss + l2 + penalty_weight * G.

    heads, relations, tails: (n, 1 + m); column 0 positive. samples: (r, subjects, objects, weights).
    """
    gradients = zeros(params)
    loss = l2 = total = 0.0
    n, width = heads.shape
    ids = [[(heads[i, j], relations[i, j], tails[i, j]) for j in range(width)] for i in range(n)]
    for row in ids:
        s = [score(name, params, *triple) for triple in row]
        if settings.loss == "logistic":
            for j in range(width):
                y = 1.0 if j == 0 else -1.0
                loss += softplus(-y * s[j])
                add_gradient(name, params, *row[j], -y * sigma(-y * s[j]), gradients)
        else:
            for j in range(1, width):
                term = settings.margin + sigma(s[j]) - sigma(s[0])
                if term > 0:
                    loss += term
                    p, q = sigma(s[0]), sigma(s[j])
                    add_gradient(name, params, *row[0], -p * (1.0 - p), gradients)
                    add_gradient(name, params, *row[j], q * (1.0 - q), gradients)
        for h, r, t in row:
            for key, index in (("entity", h), ("relation", r), ("entity", t)):
                l2 += 0.5 * settings.l2 * math.fsum(float(v) ** 2 for v in params[key][index])
                gradients[key][index] += settings.l2 * params[key][index]
    for r, subjects, objects, weights in samples:
        chosen = range(len(params["entity"])) if objects is None else objects
        factors = [1.0] * len(chosen) if weights is None else weights
        lower, upper = bounds[r]
        for h in subjects:
            x = cardinality_sum(name, params, r, h, chosen, factors)
            total += penalty(x, lower, upper)
            sign = float(x > upper) - float(x < lower)
            for o, w in zip(chosen, factors):
                p = sigma(score(name, params, h, r, o))
                factor = settings.penalty_weight * sign * w * p * (1.0 - p)
                add_gradient(name, params, h, r, o, factor, gradients)
    return {"loss": loss, "l2": l2, "G": total}, gradients


def update(params, accumulators, gradients, settings, learning_rate):
    """One optimiser step and the projection, in place, number by number."""
    for key, array in params.items():
        for index in np.ndindex(array.shape):
            g = gradients[key][index]
            if settings.optimizer == "sgd":
                array[index] -= learning_rate * g
            elif g != 0.0:
                accumulators[key][index] += g * g
                array[index] -= learning_rate * g / math.sqrt(accumulators[key][index])
    if settings.project == "unit":
        for row in params["entity"]:
            norm = math.sqrt(math.fsum(float(v) ** 2 for v in row))
            if norm > 0:
                row /= norm


def rank(scores, answer, removed, ties):
    """Rank of `answer` among all but `removed` (which never holds the answer itself)."""
    others = [s for i, s in enumerate(scores) if i != answer and i not in removed]
    best = 1 + sum(s > scores[answer] for s in others)
    worst = 1 + sum(s >= scores[answer] for s in others)
    return {"optimistic": best, "pessimistic": worst, "realistic": (best + worst) / 2}[ties]


def ranks(score_of, n_entities, triples, known, ties):
    """(raw, filtered), each (n, 2): head side, tail side; score_of(h, r, t) gives a number."""
    tails, heads = defaultdict(set), defaultdict(set)
    for h, r, t in known:
        tails[h, r].add(t)
        heads[r, t].add(h)
    raw, filtered = [], []
    for h, r, t in triples:
        by_head = [score_of(e, r, t) for e in range(n_entities)]
        by_tail = [score_of(h, r, e) for e in range(n_entities)]
        raw.append([rank(by_head, h, (), ties), rank(by_tail, t, (), ties)])
        filtered.append([rank(by_head, h, heads[r, t] - {h}, ties), rank(by_tail, t, tails[h, r] - {t}, ties)])
    return np.array(raw, dtype=float), np.array(filtered, dtype=float)


def inclusion_probabilities(q, size):
    """b = min(1, c q) with c such that b adds up to `size`, by bisection on c."""
    low, high = 0.0, size / min(q)
    for _ in range(300):
        middle = 0.5 * (low + high)
        if math.fsum(min(1.0, middle * v) for v in q) < size:
            low = middle
        else:
            high = middle
    return np.array([min(1.0, high * v) for v in q])
