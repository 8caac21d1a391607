"""Is a model what it says? Its gradients against central differences, and its ways of scoring against each other."""

import itertools

import numpy as np

from cardkge import MODELS, CardkgeError, cardinality_penalty, logistic_loss
from cardkge_tools.engine.own import fault_of, use_model

STEP = 1e-4  # of a difference, whose error is of the order STEP^4
RTOL, ATOL = 1e-6, 1e-9  # what a gradient may be off: ATOL max(1, |f|) + RTOL |slope|
SCORES_RTOL = 1e-9  # what two ways of scoring may differ by, of the largest score


def slope(function, array, place):
    """d function() / d array[place], from four values: (8 (f(x + e) - f(x - e)) - (f(x + 2e) - f(x - 2e))) / 12 e. The
    array is moved in place and restored."""
    kept, values = array[place], []
    for move in (STEP, -STEP, 2 * STEP, -2 * STEP):
        array[place] = kept + move
        values.append(float(function()))
    array[place] = kept
    return (8 * (values[0] - values[1]) - (values[2] - values[3])) / (12 * STEP)


def wrong_gradients(function, params, gradients):
    """[(name, index, given, expected)] of every coordinate whose gradient is not that of function; params float64."""
    wrong, scale = [], max(1.0, abs(float(function())))
    for name, array in params.items():
        for place in np.ndindex(array.shape):
            given, expected = float(gradients[name][place]), slope(function, array, place)
            if not abs(given - expected) <= ATOL * scale + RTOL * abs(expected):  # a NaN is wrong
                wrong.append((name, place, given, expected))
    return wrong


def trial_model(name, seed=0):
    """A small float64 model of the kind, and twelve triples without loops, some rows repeated: (model, h, r, t)."""
    model = MODELS[name](6, 3, dim=4, seed=seed, dtype="float64")
    rng = np.random.default_rng(seed)
    for array in model.params.values():  # away from what an initialisation may share, such as zeros
        array += 0.3 * rng.normal(size=array.shape)
    h, r = rng.integers(6, size=12), rng.integers(3, size=12)
    return model, h, r, (h + rng.integers(1, 6, size=12)) % 6


def check_scoring(name):
    """What differs between phi, score_tails and score_heads: a sentence, or None."""
    model, h, r, t = trial_model(name)
    scores, by_tail, by_head = model.score(h, r, t), model.score_tails(h, r), model.score_heads(r, t)
    allowed = SCORES_RTOL * max(1.0, float(np.abs(scores).max()))
    for i, e in itertools.product(range(len(h)), range(model.n_entities)):
        for way, found, triple in (
            ("match(query_tails(h, r), t)", by_tail[i, e], (h[i], r[i], e)),
            ("match(query_heads(r, t), h)", by_head[i, e], (e, r[i], t[i])),
        ):
            expected = float(model.score(*np.array([triple]).T)[0])
            if not abs(found - expected) <= allowed:
                ids = tuple(int(x) for x in triple)
                return f"{way} gives {found:.9g} for the triple {ids}, phi gives {expected:.9g}"
    return None


def check_gradients(name, what):
    """What is wrong with the gradients of `what`, "loss" (logistic, of twelve triples) or "penalty" (of G_hr, by way of
    d_pairs): a sentence, or None."""
    model, h, r, t = trial_model(name)
    if what == "loss":
        labels = np.where(np.arange(len(h)) % 3, -1, 1)
        gradients = model.gradients(h, r, t, logistic_loss(model.score(h, r, t), labels)[1])

        def function():
            return logistic_loss(model.score(h, r, t), labels)[0]
    else:
        # X lies above a bound of 0, and there are no pairs (e, r, e), where a norm may have a kink
        given = model, np.zeros((3, 2)), 1, [0, 2], [1, 3, 4], [1.0, 2.0, 0.5]
        gradients = cardinality_penalty(*given)[1]

        def function():
            return cardinality_penalty(*given)[0]

    for key, array in model.params.items():
        if gradients[key].shape != array.shape:
            return f"the gradient of {key} has shape {gradients[key].shape}, {key} has {array.shape}"
    wrong = wrong_gradients(function, model.params, gradients)
    if not wrong:
        return None
    key, place, given, expected = wrong[0]
    total = sum(array.size for array in model.params.values())
    return f"d {key}{list(place)} is {given:.9g}, differences give {expected:.9g} ({len(wrong)} of {total} are wrong)"


def check_model(name):
    """Yields (what is checked, None or what is wrong) for a model of MODELS."""
    parts = {
        "the three ways of scoring agree": lambda: check_scoring(name),
        "d_phi: gradients of the loss": lambda: check_gradients(name, "loss"),
        "d_pairs: gradients of the regulariser": lambda: check_gradients(name, "penalty"),
    }
    for what, check in parts.items():
        try:
            yield what, check()
        except Exception as error:
            yield what, fault_of(error) or f"{type(error).__name__}: {' '.join(str(error).split())}"


def trusted_model(name):
    """As `own.use_model`, for training: CardkgeError too where one of the checks fails."""
    found, path = use_model(name), name.rpartition(":")[0]
    for what, fault in check_model(found):
        if fault:
            method, _, text = what.partition(": ")
            where = f"{path}: {found[1:]}{f'.{method}, {text}' if text else ''}: "
            raise CardkgeError(fault if fault.startswith(path) else where + fault)
    return found
