"""The answer to course/exercise_6.py, which has the question and the tests."""

import numpy as np

import cardkge

# --- your part


class TransE(cardkge.Model):
    """phi = -||h + r - t||. params: entity (N, k), relation (R, k)."""

    name = "transe"

    def phi(self, h, r, t):
        return -np.linalg.norm(h + r - t, axis=-1)

    def d_phi(self, h, r, t, upstream, gradients):
        x = h + r - t
        norm = np.linalg.norm(x, axis=-1, keepdims=True)
        d = -upstream[..., None] * x / np.where(norm > 0, norm, 1)
        return d, d, -d

    def query_tails(self, h, r):
        return h + r

    def query_heads(self, r, t):
        return t - r

    def match(self, query, rows):
        return -np.linalg.norm(query[:, None, :] - rows[None, :, :], axis=-1)


def train(model, triples, epochs, learning_rate, rng):
    """Trains in place, as the page above says; returns the loss of each epoch, a list. triples (n, 3) ids."""
    accumulators = {name: np.full_like(array, 0.1) for name, array in model.params.items()}
    h, r, t = triples.T
    n, losses = len(triples), []
    for _ in range(epochs):
        heads = np.concatenate([h, h, rng.integers(model.n_entities, size=n)])
        tails = np.concatenate([t, rng.integers(model.n_entities, size=n), t])
        relations = np.concatenate([r, r, r])
        labels = np.repeat([1, -1, -1], n)
        loss, d_scores = cardkge.logistic_loss(model.score(heads, relations, tails), labels)
        for name, gradient in model.gradients(heads, relations, tails, d_scores).items():
            cardkge.adagrad_step(model.params[name], accumulators[name], gradient, learning_rate)
        losses.append(loss)
    return losses


def mean_rank(model, triples):
    """The mean, over the triples, of the raw realistic rank of the tail among all entities."""
    scores = model.score_tails(triples[:, 0], triples[:, 1])
    own = scores[np.arange(len(triples)), triples[:, 2]][:, None]
    better = (scores > own).sum(1)
    equal = (scores == own).sum(1) - 1
    return float(np.mean(1 + better + equal / 2))


# --- the tests
