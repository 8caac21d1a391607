"""Exercise 6: TransE, from the score to the ranks.

The paper says that its regulariser serves "any existing neural link predictor", and so does the code: a model is a
class with five short methods. Here you write one that the project does not have, TransE (Bordes et al., NIPS 2013). A
relation is a translation: if (h, r, t) is true, then h + r should be near t, so

    phi(h, r, t) = - || h + r - t ||            (the Euclidean norm)

Forward, backward, training, ranks: all four are yours. `cardkge.Model` keeps the tables (self.params["entity"],
self.params["relation"]) and takes rows out of them; your methods see *rows*, arrays whose last axis is the row:

    phi(h, r, t)                    rows (..., k) three times -> scores (...)
    d_phi(h, r, t, upstream, gradients)   upstream (...) is d loss / d phi. Returns d loss / d h, / d r and / d t, each
                                    (..., k). (`gradients` is for models with more parameters; leave it alone.)
    query_tails(h, r)               a row q such that match(q, t) is phi(h, r, t), for any t
    query_heads(r, t)               a row q such that match(q, h) is phi(h, r, t), for any h
    match(query, rows)              (n, k), (m, k) -> (n, m): every query with every row

The derivative of the norm is d ||x|| / d x = x / ||x||. At x = 0 it has none: take 0 there, and let no 0 / 0 happen
(entities that are drawn as corruptions of themselves will get there).

For `train`, one epoch after the other, in one batch of all triples (the graph of the test is tiny):

1. corruptions: for each triple one with another tail and one with another head, drawn uniformly with `rng`;
2. scores of all 3 n triples; cardkge.logistic_loss(scores, labels) with label 1 for the true ones, -1 for the others:
   the value, and d loss / d scores;
3. gradients = model.gradients(heads, relations, tails, d_scores);
4. for each table cardkge.adagrad_step(param, accumulator, gradient, learning_rate), accumulators starting at 0.1.

It returns the loss of each epoch. For `mean_rank` take the tails only, unfiltered, with ties as in Exercise 4.

    python -m pytest course/exercise_6.py

The test graph is a grid of 5 x 5 places with the relations "east" and "north": translations, made for TransE.
Afterwards: TransE cannot have both (a, r, b) and (b, r, a) with a good score unless r is nearly 0. What happens to a
symmetric relation such as `sibling`? And phi is never above 0, so p = sigma(phi) is never above 1/2. What does the
logistic loss make of that?
"""

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


def new_model(n_entities=6, n_relations=2, dim=3, seed=0):
    return TransE(n_entities, n_relations, dim=dim, seed=seed, dtype="float64")


def grid():
    """25 places (x, y) of id 5 x + y; relation 0: a step east, 1: a step north. Returns triples of train and test."""
    steps = [(5 * x + y, 0, 5 * (x + 1) + y) for x in range(4) for y in range(5)]
    steps += [(5 * x + y, 1, 5 * x + y + 1) for x in range(5) for y in range(4)]
    triples = np.random.default_rng(0).permutation(np.array(steps))
    return triples[:34], triples[34:]


def rows(*values):
    return [np.array([value], float) for value in values]


def test_phi_by_hand(hint):
    h, r, t = rows([1, 2], [0, 1], [4, -1])  # h + r - t = (-3, 4)
    found = new_model().phi(h, r, t)
    hint(np.shape(found) == (1,), f"one triple, one score, (1,); yours {np.shape(found)}: the norm is over axis -1")
    hint(found[0] != 5, "near is good: the score is minus the distance")
    hint(found[0] != -25, "the norm, not its square")
    hint(found[0] == -5, f"-||(-3, 4)|| = -5, yours {found[0]}")


def test_backward_by_hand(hint):
    h, r, t = rows([1, 2], [0, 1], [4, -1])
    d_h, d_r, d_t = new_model().d_phi(h, r, t, np.array([10.0]), {})
    hint(np.allclose(d_h, [[6, -8]]), f"-10 * (-3, 4) / 5 = (6, -8) for the head, yours {d_h}")
    hint(np.allclose(d_r, d_h), "r enters as h does: the same gradient")
    hint(np.allclose(d_t, -d_h), "t enters with a minus: the opposite gradient")


def test_no_nan_at_the_kink(hint):
    h, r, t = rows([1, 2], [3, -1], [4, 1])  # h + r = t
    with np.errstate(all="ignore"):
        found = new_model().d_phi(h, r, t, np.ones(1), {})
    hint(not np.isnan(found).any(), "h + r = t: 0 / 0 gave NaN. The gradient there is 0")
    hint(not np.any(found), "at distance 0 the gradient is 0")


def test_gradients_against_differences(hint, differences):
    model, rng = new_model(), np.random.default_rng(1)
    ids = [rng.integers(n, size=9) for n in (6, 2, 6)]
    ids[0][ids[0] == ids[2]] = (ids[2][ids[0] == ids[2]] + 1) % 6
    upstream = rng.normal(size=9)
    found = model.gradients(*ids, upstream)
    for name, table in model.params.items():
        expected = differences(lambda: upstream @ model.score(*ids), table)
        hint(np.allclose(found[name], expected, rtol=1e-6, atol=1e-7), f"the gradient of {name} is not that of phi")


def test_three_ways_to_score(hint):
    """The same triples by phi, by all tails, and by all heads."""
    model, rng = new_model(), np.random.default_rng(2)
    h, r, t = (rng.integers(n, size=8) for n in (6, 2, 6))
    scores, line = model.score(h, r, t), np.arange(8)
    by_tail, by_head = model.score_tails(h, r), model.score_heads(r, t)
    hint(by_tail.shape == (8, 6), f"8 queries, 6 entities: match gives (8, 6), yours {by_tail.shape}")
    hint(np.allclose(by_tail[line, t], scores), "match(query_tails(h, r), t) is not phi(h, r, t)")
    hint(
        np.allclose(by_head[line, h], scores),
        "match(query_heads(r, t), h) is not phi(h, r, t): for which q is ||h + r - t|| = ||q - h||?",
    )


def test_one_head_with_many_tails(hint):
    """h (k,), r (k,), t (m, k), as the regulariser's gradient is computed, a head at a time."""
    model, rng = new_model(), np.random.default_rng(3)
    h, r, t = rng.normal(size=3), rng.normal(size=3), rng.normal(size=(5, 3))
    scores = model.phi(h, r, t)
    hint(scores.shape == (5,), f"phi of (3,), (3,), (5, 3) is (5,), yours {scores.shape}: use axis=-1")
    hint(np.allclose(scores, model.match(model.query_tails(h[None], r[None]), t)[0]), "it is not the same as match")
    d_h, _, d_t = model.d_phi(h, r, t, np.ones(5), {})
    hint(d_h.shape == d_t.shape == (5, 3), f"d_phi: a line for each tail, (5, 3), yours {d_h.shape} and {d_t.shape}")


def test_training_lowers_the_loss(hint):
    triples, _ = grid()
    model = new_model(25, 2, dim=8)
    losses = train(model, triples, 100, 0.1, np.random.default_rng(0))
    hint(len(losses) == 100, f"a loss for each of 100 epochs, yours {len(losses)}")
    start = 3 * len(triples) * np.log(2)
    hint(losses[0] < 2 * start, f"the first loss is a sum over 3 n triples, about {start:.0f}; yours {losses[0]:.1f}")
    first, last = np.mean(losses[:5]), np.mean(losses[-5:])
    hint(last < 0.8 * first, f"the loss goes from {first:.1f} to {last:.1f}: it should fall by a fifth at least")


def test_the_same_seed_gives_the_same_bits(hint):
    triples, _ = grid()
    models = [new_model(25, 2) for _ in range(2)]
    for model in models:
        train(model, triples, 5, 0.1, np.random.default_rng(7))
    same = all((models[0].params[name] == models[1].params[name]).all() for name in models[0].params)
    hint(same, "two runs with the same seed differ: take all random numbers from rng")


def test_mean_rank_of_known_scores(hint):
    """Ids 0 to 3 on a line, at 0, 1, 2 and 4; the relation is one step."""
    model = new_model(4, 1, dim=1)
    model.params["entity"][...] = [[0], [1], [2], [4]]
    model.params["relation"][...] = [[1]]
    # (0, r, 1): at distance 0, rank 1. (2, r, 3): h + r = 3; 2 and 4 tie at distance 1: rank 1.5
    found = mean_rank(model, np.array([[0, 0, 1], [2, 0, 3]]))
    hint(found != 1, "optimistic: ties count half")
    hint(found == 1.25, f"ranks 1 and 1.5, mean 1.25; yours {found}")


def test_it_learns_the_grid(hint):
    """Six steps were not in train. A guess would rank 13 of 25; frequency does not help here."""
    triples, test = grid()
    model = new_model(25, 2, dim=8, seed=1)
    train(model, triples, 400, 0.1, np.random.default_rng(1))
    found = mean_rank(model, test)
    hint(found < 3, f"the mean rank of the six held-out steps is {found:.2f}; a right program comes below 3")
