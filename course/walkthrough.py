# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From a score to a completed graph
#
# A walk through knowledge graph embeddings for somebody who knows NumPy and has never met a knowledge graph. It takes
# about three hours. Everything is computed here, by short pieces of NumPy; `cardkge` is used for reading data, and,
# once we have written a thing ourselves, as its fast form. The figures in the text are those that the code above them
# prints.
#
# | part | minutes | what for | exercise |
# |---|---:|---|---|
# | 1. A graph | 10 | what the data is, and how many tails a head has | |
# | 2. A score | 15 | a number for how true a triple looks | |
# | 3. A gradient by hand | 20 | the backward pass, and how to check it | 1, 2 |
# | 4. A step | 15 | SGD, AdaGrad, and rows that come twice | 3 |
# | 5. Corruptions and training | 20 | what to learn from when only true facts are known | |
# | 6. Ranks | 20 | how good is it? raw, filtered, and why ties matter | 4 |
# | 7. A relation and its inverse | 15 | what DistMult cannot say, and ComplEx can | 6, 7 |
# | 8. How many? | 25 | expected counts, and three estimators with their variance | 5 |
# | 9. A result that is not one | 10 | bounds in training, with their controls | |
# | 10. Knowing how many | 20 | probabilities given a bound, by enumeration first | 8 |
# | 11. A family's tree | 15 | completing it | |
#
# To follow along, open this file, `course/walkthrough.py`, in Jupyter (`pip install -e '.[course,plot]'`, then "Open
# with notebook"), or in an editor that knows `# %%` cells. `python course/render.py` runs it all and writes
# `docs/WALKTHROUGH.md`.

# %%
import itertools

import matplotlib.pyplot as plt
import numpy as np
from tabulate import tabulate

import cardkge

# %% [markdown]
# ## 1. A graph
#
# A knowledge graph is a set of facts of one form: *head, relation, tail*. The data set `families` is an invented
# population; because a program made it, we know what is true of it.

# %%
data = cardkge.load_dataset("families")
N, R = data.n_entities, data.n_relations
entity_id = {name: i for i, name in enumerate(data.entities)}
relation_id = {name: i for i, name in enumerate(data.relations)}


def named(triples):
    return [(data.entities[h], data.relations[r], data.entities[t]) for h, r, t in triples]


print(
    f"{N:,} entities, {R} relations; "
    f"triples: train {len(data.train):,}, valid {len(data.valid):,}, test {len(data.test):,}"
)
bengt = entity_id["bengt_holm"]
for split in ("train", "valid", "test"):
    triples = getattr(data, split)
    for h, r, t in named(triples[triples[:, 0] == bengt]):
        print(f"{split:6} {h}  {r}  {t}")

# %% [markdown]
# Names become numbers, ids from 0, and a triple is a row (h, r, t) of three ids. The facts are split at random: we
# learn from *train*, make decisions by *valid*, and look at *test* once, at the end. One of Bengt's parents is in
# train; the other was held out. To find her is what this is about. (Read "bengt_holm parent X" as "a parent of Bengt
# is X".)
#
# How full is the graph? And how many tails has a head? Both matter later.

# %%
known = np.concatenate([data.train, data.valid, data.test])
print(f"of {N * R * N:,} possible triples {len(known):,} are true: {len(known) / (N * R * N):.4%}\n")

bounds = cardkge.read_bounds(data.folder / "bounds.tsv", data.relations)
lines = []
for r, name in enumerate(data.relations):
    _, count = np.unique(known[known[:, 1] == r, 0], return_counts=True)  # tails of each head
    lines.append(
        (name, len(count), count.min(), count.mean(), count.max(), f"{bounds[r, 0]:.0f} to {bounds[r, 1]:.0f}")
    )
print(tabulate(lines, ["relation", "heads", "least", "mean", "most", "true bound"], floatfmt=".2f"))

# %% [markdown]
# Nobody has more than two parents or more than one spouse, and everybody has one gender. Such *cardinalities* are
# known for many relations in the real world, from schemas or from common sense. The paper behind this project asks
# how they can help a model that only sees facts.
#
# ## 2. A score
#
# A *link predictor* gives each possible triple a number: the higher, the truer it looks. DistMult (Yang et al., 2015)
# gives every entity and every relation a row of k numbers and multiplies them:
#
# $$\phi(h, r, t) = \sum_i h_i \, r_i \, t_i$$
#
# Nothing is learnt yet, so the rows are random.

# %%
k = 4
rng = np.random.default_rng(0)
entity = rng.normal(size=(N, k)) / np.sqrt(k)
relation = rng.normal(size=(R, k)) / np.sqrt(k)

h, r, t = entity[bengt], relation[relation_id["parent"]], entity[entity_id["fredrik_holm"]]
print("h", h.round(3), " r", r.round(3), " t", t.round(3))
print("h r t", (h * r * t).round(3), " sum:", (h * r * t).sum().round(4))

# %% [markdown]
# The question "who is a parent of Bengt?" needs the score of *every* entity as the tail. As the score is linear in t,
# that is one product of a matrix and a vector: $\phi(h, r, t) = (h * r) \cdot t$. Call $h * r$ the *query*.

# %%
all_scores = entity @ (h * r)
print("shape", all_scores.shape, " the same number:", all_scores[entity_id["fredrik_holm"]].round(4))

# %% [markdown]
# A score becomes a probability by the logistic function, $p = \sigma(\phi) = 1 / (1 + e^{-\phi})$. Written like that
# it overflows for large negative scores; written with $e^{-|\phi|}$ it never does.


# %%
def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


print("sigma of -1000, -2, 0, 2, 1000:", sigmoid(np.array([-1000, -2, 0, 2, 1000.0])).round(4))
print("a random model believes Bengt to have", sigmoid(all_scores).sum().round(1), "parents")

# %% [markdown]
# The last number is the sum of p over all entities, the *expected number of tails*. It is N / 2 or so, for a model
# that knows nothing is undecided about each of 3,269 candidates. We come back to it in part 8.
#
# ## 3. A gradient by hand
#
# Learning means: change the rows so that true triples score high and false ones low. Give a triple the label y = 1 if
# it is true and -1 if not. The logistic loss
#
# $$L = \log(1 + e^{-y \phi}), \qquad \frac{dL}{d\phi} = -y \, \sigma(-y \phi)$$
#
# is small where the sign of the score is right. For the rows, the chain rule: $\phi$ is a sum of products, so
# $\partial \phi / \partial h_i = r_i t_i$, and the other two alike. Forward and backward stand side by side, with the
# same letters; `d_x` is the gradient with respect to x.


# %%
def loss_of(h, r, t, y):
    phi = (h * r * t).sum(-1)
    return np.log1p(np.exp(-np.abs(phi))).sum() + np.maximum(-y * phi, 0).sum()  # log(1 + exp(-y phi)), no overflow


def gradients_of(h, r, t, y):
    phi = (h * r * t).sum(-1)
    d_phi = -y * sigmoid(-y * phi)
    d_h = d_phi[..., None] * r * t
    d_r = d_phi[..., None] * h * t
    d_t = d_phi[..., None] * h * r
    return d_h, d_r, d_t


# %% [markdown]
# Is it right? Move one number a little, up and down, and see how the loss moves:
#
# $$\frac{L(x + e) - L(x - e)}{2 e} = L'(x) + O(e^2)$$


# %%
def differences(function, array, e=1e-5):
    found = np.empty_like(array)
    for place in np.ndindex(array.shape):
        kept = array[place]
        array[place] = kept + e
        up = function()
        array[place] = kept - e
        down = function()
        array[place] = kept
        found[place] = (up - down) / (2 * e)
    return found


h, r, t, y = (part.copy() for part in (h, r, t, np.array(1.0)))
by_hand = gradients_of(h, r, t, y)
for letter, row, given in zip("hrt", (h, r, t), by_hand):
    expected = differences(lambda: loss_of(h, r, t, y), row)
    print(
        f"d_{letter} by hand {given.round(5)}  by differences {expected.round(5)}"
        f"  apart by less than 1e-10: {np.abs(given - expected).max() < 1e-10}"
    )

# %% [markdown]
# Agreement to ten digits is what a right gradient looks like. A checker that has never failed proves nothing, so let
# us plant an error: the classic, forgetting the relation in the gradient of the tail.

# %%
wrong = by_hand[2] / r
expected = differences(lambda: loss_of(h, r, t, y), t)
print("d_t without r:", wrong.round(5), " by differences:", expected.round(5))
print("caught:", not np.allclose(wrong, expected, rtol=1e-6))

# %% [markdown]
# Such a model still learns something, which is why "it runs, and the loss goes down" is no test. *Exercises 1 and 2*
# are the backward pass for many triples at once, and a checker that finds an error of 0.05 %.
#
# ## 4. A step
#
# With gradients g, stochastic gradient descent moves every number by $-\eta g$. AdaGrad (Duchi et al., 2011) keeps
# the sum a of the squares of all gradients so far, and moves by $-\eta g / \sqrt{a}$: rows that are often used slow
# down, rare ones keep their large steps. In a graph, where some entities stand in a thousand facts and some in
# three, this matters.
#
# Two details decide whether a program does what it says. A row that occurs several times in a batch gets the *sum* of
# its gradients, and only then is that squared. And `array[ids] += values` does not sum: it writes each row once.


# %%
def summed(ids, values):
    """Rows that occur more than once: their values added up. Returns distinct ids and a value for each."""
    distinct, place = np.unique(ids, return_inverse=True)
    total = np.zeros((len(distinct), values.shape[1]))
    np.add.at(total, place, values)
    return distinct, total


def sgd(table, state, ids, values, rate):
    ids, g = summed(ids, values)
    table[ids] -= rate * g


def adagrad(table, state, ids, values, rate):
    ids, g = summed(ids, values)
    state[ids] += g**2
    table[ids] -= rate * g / np.sqrt(state[ids])


ids, values = np.array([7, 7, 2]), np.array([[3.0], [1.0], [5.0]])
table = np.zeros((9, 1))
table[ids] += values
print("array[ids] += values gives row 7", table[7], "; summed gives", summed(ids, values)[1][1])
print("squared after the sum 16, apart 3^2 + 1^2 = 10")

# %% [markdown]
# Now a batch: 500 triples of train as positives, and for each a triple with another tail, drawn at random, as a
# negative. Sixty steps on the same batch with three optimisers:

# %%
rng = np.random.default_rng(1)
positive = data.train[rng.choice(len(data.train), 500, replace=False)].astype(int)
negative = positive.copy()
negative[:, 2] = rng.integers(N, size=500)
batch, labels = np.concatenate([positive, negative]), np.repeat([1.0, -1.0], 500)


def fresh(k, seed=0):
    """Tables of small random rows, and AdaGrad's accumulators, which start at 0.1."""
    rng = np.random.default_rng(seed)
    tables = [rng.normal(size=(n, k)) / np.sqrt(k) for n in (N, R)]
    return tables, [np.full_like(table, 0.1) for table in tables]


def step(tables, states, batch, labels, move, rate):
    """One step of an optimiser on the loss of a batch; returns that loss, before the step."""
    (entity, relation), (heads, relations, tails) = tables, batch.T
    h, r, t = entity[heads], relation[relations], entity[tails]
    loss = loss_of(h, r, t, labels)
    d_h, d_r, d_t = gradients_of(h, r, t, labels)
    move(entity, states[0], np.concatenate([heads, tails]), np.concatenate([d_h, d_t]), rate)
    move(relation, states[1], relations, d_r, rate)
    return loss


figure, axes = plt.subplots(figsize=(6, 3.2))
for name, move, rate in (
    ("SGD, rate 0.02", sgd, 0.02),
    ("SGD, rate 0.1", sgd, 0.1),
    ("AdaGrad, rate 0.1", adagrad, 0.1),
):
    tables, states = fresh(k=16)
    losses = [step(tables, states, batch, labels, move, rate) / len(batch) for _ in range(60)]
    axes.plot(losses, label=name)
    print(f"{name:18} loss per example: step 1 {losses[0]:.3f}, step 10 {losses[9]:.3f}, step 60 {losses[-1]:.3f}")
axes.set(xlabel="step", ylabel="loss per example")
axes.legend()
figure.tight_layout()

# %% [markdown]
# All start near ln 2 = 0.693, the loss of a model that says "perhaps" to everything. *Exercise 3* is AdaGrad with all
# its corner cases.
#
# ## 5. Corruptions and training
#
# A graph says what is true; it hardly ever says what is false. So false triples are made: take a true one and put a
# random entity in place of its tail, or of its head. Most such *corruptions* are false. Not all:


# %%
def corrupt(triples, rng):
    """Each triple, then each with a random tail, then each with a random head: (3 n, 3), and their labels."""
    n = len(triples)
    both = np.concatenate([triples, triples, triples])
    both[n : 2 * n, 2] = rng.integers(N, size=n)
    both[2 * n :, 0] = rng.integers(N, size=n)
    return both, np.repeat([1.0, -1.0, -1.0], n)


def keys(triples):
    """A number for each triple, so that np.isin can compare them."""
    h, r, t = np.asarray(triples, np.int64).T
    return (h * R + r) * N + t


examples, labels = corrupt(data.train, np.random.default_rng(2))
n = len(data.train)
true = np.isin(keys(examples), keys(known))
print(f"true after all: {true[n : 2 * n].mean():.2%} of the corrupted tails, {true[2 * n :].mean():.2%} of the heads")
for name in ("gender", "parent"):
    of_name = examples[2 * n :, 1] == relation_id[name]
    print(f"  heads of {name}: {true[2 * n :][of_name].mean():.2%}")

# %% [markdown]
# Put a random entity before `gender male`, and the fact is true nearly half of the time. The assumption that whatever
# is not known is false (the *local closed world assumption*) is wrong now and then; the model lives with that noise.
#
# We have all the parts. Algorithm 1 of the paper, without its regulariser, is a loop:

# %%
tables, states = fresh(k=24)
rng = np.random.default_rng(3)
for epoch in range(20):
    losses = []
    for part in np.array_split(rng.permutation(len(data.train)), 10):  # ten mini-batches
        examples, labels = corrupt(data.train[part].astype(int), rng)
        losses.append(step(tables, states, examples, labels, adagrad, 0.3) / len(examples))
    if epoch in (0, 1, 4, 9, 19):
        print(f"epoch {epoch + 1:2}: loss per example {np.mean(losses):.3f}")
entity, relation = tables

# %% [markdown]
# ## 6. Ranks
#
# How good is this model? Ask it a question to which we know the answer, and see at which place the answer comes.


# %%
def best(question, scores, count=5):
    facts = {split: {tuple(x) for x in getattr(data, split).tolist()} for split in ("train", "valid", "test")}
    for place, e in enumerate(np.argsort(-scores, kind="stable")[:count], 1):
        split = [split for split in facts if (*question, e) in facts[split]]
        print(f"{place:3}  {data.entities[e]:22} {scores[e]:7.3f}  {split[0] if split else ''}")


question = (bengt, relation_id["parent"])
scores = entity @ (entity[bengt] * relation[relation_id["parent"]])
best(question, scores)
answers = known[(known[:, 0] == bengt) & (known[:, 1] == relation_id["parent"]), 2]
for answer in answers:
    print(f"rank of {data.entities[answer]}: {1 + (scores > scores[answer]).sum()}")

# %% [markdown]
# Bengt has two parents. If the one in train stands above the other, that is no mistake, so it should not count
# against her. In the *filtered* setting all other right answers, from train, valid and test, are left out; in the
# *raw* one they stay. Then there are ties. With B better and E equal scores among the competitors, the rank is 1 + B
# by the *optimistic* reading, 1 + B + E by the *pessimistic*, and 1 + B + E / 2 by the *realistic* one, the mean of
# all ways to break the tie.


# %%
def rank(scores, answer, others=(), ties="realistic"):
    competes = np.ones(len(scores), bool)
    competes[list(others)] = False
    competes[answer] = False
    better, equal = (scores[competes] > scores[answer]).sum(), (scores[competes] == scores[answer]).sum()
    return 1 + better + {"optimistic": 0, "realistic": 0.5, "pessimistic": 1}[ties] * equal


def tail_ranks(score_tails, triples, filtered=True, ties="realistic"):
    found = []
    for h, r, t in triples:
        others = known[(known[:, 0] == h) & (known[:, 1] == r), 2] if filtered else ()
        found.append(rank(score_tails(h, r), t, others, ties))
    return np.array(found)


def mrr(ranks):
    """The mean of 1 / rank: 1 is perfect. Less moved by a few very bad ranks than the mean rank is."""
    return (1 / ranks).mean()


sample = data.valid[:400]
trained = lambda h, r: entity @ (entity[h] * relation[r])  # noqa: E731
nothing = lambda h, r: np.zeros(N)  # noqa: E731
print("tails of 400 validation triples, MRR:")
print(f"  trained, raw              {mrr(tail_ranks(trained, sample, filtered=False)):.3f}")
print(f"  trained, filtered         {mrr(tail_ranks(trained, sample)):.3f}")
for ties in ("optimistic", "pessimistic", "realistic"):
    print(f"  always 0, {ties:12}    {mrr(tail_ranks(nothing, sample, ties=ties)):.3f}")

# %% [markdown]
# The model that gives every triple the score 0 is *perfect* by the optimistic reading. Published programs have
# counted like that, by sorting with the answer first or by `>=` at the wrong place, and a model whose scores saturate
# profits. Always ask how ties were counted. *Exercise 4* is this function with all its traps, NaN among them.
#
# The project's ranking does the same for both sides, fast. Our numbers must be its numbers:

# %%
model = cardkge.DistMult(N, R, dim=24, dtype="float64")
model.params["entity"][...], model.params["relation"][...] = entity, relation
theirs = cardkge.rank_triples(model, sample, data.known)["filtered"][:, 1]
print("equal ranks:", (theirs == tail_ranks(trained, sample)).sum(), "of", len(sample))

# %% [markdown]
# ## 7. A relation and its inverse
#
# DistMult multiplies number by number, and a product does not care about order: $\phi(h, r, t) = \phi(t, r, h)$,
# always. If it believes that Fredrik is a parent of Bengt, it must believe as firmly that Bengt is a parent of
# Fredrik. ComplEx (Trouillon et al., 2016) uses complex numbers, and the conjugate of the tail:
#
# $$\phi(h, r, t) = \mathrm{Re} \sum_i h_i \, r_i \, \bar{t_i}$$
#
# Swapping h and t conjugates $h_i \bar{t_i}$. If $r_i$ is real, nothing changes: a symmetric relation. If it is
# imaginary, the sign changes: an antisymmetric one. Let us see that on data. From here on we train with
# `cardkge.train`, which is the loop of part 5, compiled; both models get the same settings.


# %%
def train(model, dim, epochs, bounds=None, **settings):
    settings = cardkge.Settings(model=model, dim=dim, epochs=epochs, project="none", **settings)
    run = cardkge.new_run(settings, data, bounds)
    cardkge.train(run, data)
    return run.model


models = {name: train(name, dim=50, epochs=60, l2=0.001) for name in ("distmult", "complex")}
lines = []
for name in ("parent", "child", "sibling"):
    triples = data.valid[data.valid[:, 1] == relation_id[name]]
    h, r, t = triples.T
    for label, model in models.items():
        forward, backward = model.score(h, r, t), model.score(t, r, h)
        ranks = cardkge.rank_triples(model, triples, data.known)["filtered"]
        equal, larger = np.isclose(forward, backward, rtol=1e-4, atol=1e-4), forward > backward
        lines.append((name, label, (larger & ~equal).mean(), equal.mean(), (ranks == 1).mean()))
print(tabulate(lines, ["relation", "model", "(h,r,t) above (t,r,h)", "equal", "hits@1"], floatfmt=".2f"))

# %% [markdown]
# For every triple DistMult has both directions equal, so that the question "who is a parent of X?" gets X's children
# too:

# %%
for label, model in models.items():
    print(label)
    best(question, model.score_tails(np.array([bengt]), np.array([relation_id["parent"]]))[0], 4)
print("children of bengt_holm:", [t for h, r, t in named(known) if (h, r) == ("bengt_holm", "child")])

# %%
of_relation = data.valid[:, 1]
figure, axes = plt.subplots(figsize=(7, 3.2))
for shift, (label, model) in zip((-0.2, 0.2), models.items()):
    ranks = cardkge.rank_triples(model, data.valid, data.known)["filtered"]
    each = [mrr(ranks[of_relation == r]) for r in range(R)]
    axes.bar(np.arange(R) + shift, each, width=0.4, label=f"{label}: {mrr(ranks):.3f} over all")
axes.set_xticks(np.arange(R), data.relations, rotation=45, ha="right")
axes.set(ylabel="filtered MRR, valid", ylim=(0, 1))
axes.legend()
figure.tight_layout()

# %% [markdown]
# A symmetric relation such as `spouse` or `sibling` is another matter: there a model without direction loses nothing.
# *Exercises 6 and 7* are two further models, TransE and RESCAL; think about what each can and cannot say.
#
# ## 8. How many?
#
# The expected number of tails of (h, r), in the paper's words X, is the sum of p over all entities:
#
# $$X_{hr} = \sum_t \sigma(\phi(h, r, t))$$
#
# $$G_{hr} = \max(0, \text{lower} - X_{hr}) + \max(0, X_{hr} - \text{upper})$$
#
# and G says by how much it breaks its bounds. What does our ComplEx believe about the number of everybody's parents?

# %%
model = models["complex"]
parent = relation_id["parent"]
people = np.unique(known[known[:, 1] == relation_id["gender"], 0])
p = sigmoid(model.score_tails(people, np.full(len(people), parent)).astype(float))
X = p.sum(1)
lower, upper = bounds[parent]
G = np.maximum(0, lower - X) + np.maximum(0, X - upper)
print(
    f"X: quartiles {np.percentile(X, [25, 50, 75]).round(1)}, {(upper < X).mean():.0%} above {upper:.0f};"
    f" mean G {G.mean():.1f}"
)

figure, axes = plt.subplots(figsize=(6, 2.8))
axes.hist(X, bins=np.geomspace(X.min(), X.max(), 40))
axes.axvline(upper, color="black", linestyle="--", label="upper bound")
axes.set(xscale="log", xlabel="expected number of parents, X", ylabel="people")
axes.legend()
figure.tight_layout()

# %% [markdown]
# Far too many. The model was trained with two false triples for each true one, and meets thousands for each here; its
# probabilities rank well and count badly.
#
# The paper adds the sum of G, over some heads, to the loss. X is a sum over all N, which is too much work in each
# step of a large graph, so it is estimated from a sample of $\omega$ entities. Three ways:
#
# * **uniform**: $\omega$ distinct entities, all alike, and the plain sum of their p. On average that is $\omega X /
#   N$: a lower bound of X, not an estimate.
# * **importance**: $\omega$ draws with repetition from some q, here by how often t is a tail of r in train, plus one;
#   the mean of p / q. Unbiased, with variance $(\sum p^2 / q - X^2) / \omega$.
# * **Bernoulli**: each entity by itself, with probability $b_t$, and the sum of p / b. Unbiased, with variance $\sum
#   p^2 (1 - b) / b$; the size of the sample is $\sum b = \omega$ on average.
#
# Theory first, then 4,000 samples of each, for the X of one person:

# %%
omega = 200
p_bengt = p[people == bengt][0]
count = 1.0 + np.bincount(data.train[data.train[:, 1] == parent, 2], minlength=N)
q = count / count.sum()
b = np.minimum(1, omega * q)
spread = p_bengt.var(ddof=1)
theory = {
    "uniform": (omega / N * p_bengt.sum(), omega * (1 - omega / N) * spread),
    "importance": (p_bengt.sum(), ((p_bengt**2 / q).sum() - p_bengt.sum() ** 2) / omega),
    "Bernoulli": (p_bengt.sum(), (p_bengt**2 * (1 - b) / b).sum()),
}


def draw(kind, rng):
    if kind == "uniform":
        return p_bengt[rng.choice(N, omega, replace=False, shuffle=False)].sum()
    if kind == "importance":
        objects = rng.choice(N, omega, p=q)
        return (p_bengt[objects] / q[objects]).mean()
    chosen = rng.random(N) < b
    return (p_bengt[chosen] / b[chosen]).sum()


rng = np.random.default_rng(4)
samples = {kind: np.array([draw(kind, rng) for _ in range(4000)]) for kind in theory}
lines = [(kind, mean, samples[kind].mean(), var**0.5, samples[kind].std()) for kind, (mean, var) in theory.items()]
print(f"X = {p_bengt.sum():.2f}, omega = {omega}")
print(tabulate(lines, ["", "mean: theory", "measured", "std: theory", "measured"], floatfmt=".2f"))

# %%
figure, axes = plt.subplots(figsize=(6, 2.8))
for kind, values in samples.items():
    axes.hist(values, bins=60, histtype="step", density=True, label=kind)
axes.axvline(p_bengt.sum(), color="black", linestyle="--", label="X")
axes.set(xlabel=f"estimate from {omega} of {N:,} entities", yticks=[])
axes.legend()
figure.tight_layout()

# %% [markdown]
# An unbiased X does not make an unbiased G: max(0, .) bends upwards, so E G(X) is at least G(E X). Where X sits
# exactly at its bound, G is 0, and its estimate never is on average:

# %%
at_bound = np.maximum(0, samples["importance"] - p_bengt.sum())
print(f"G is 0, the mean of its estimates {at_bound.mean():.2f}")

# %% [markdown]
# *Exercise 5* is importance sampling, its weights and its variance.
#
# ## 9. A result that is not one
#
# Does the regulariser help? Train ComplEx with it, bounds and all, and without, and compare the ranks on valid. If it
# does, is it because the model now knows *how many*? A claim needs a control: the same training with *useless*
# bounds. One control has the true bounds shuffled over the relations, one demands that nobody has any tail of any
# relation. A third has no bounds and the simplest regulariser there is, L2.

# %%
shuffled = bounds[np.random.default_rng(0).permutation(R)]
settings = dict(model="complex", dim=32, epochs=40)
penalty = dict(penalty_weight=0.03, sampling="importance", subjects=20, objects=200)
runs = {
    "nothing": settings,
    "true bounds": settings | penalty | {"bounds": bounds},
    "bounds shuffled": settings | penalty | {"bounds": shuffled},
    "at most 0 of anything": settings | penalty | {"bounds": np.zeros((R, 2))},
    "L2 instead, 0.001": settings | {"l2": 0.001},
}
lines = []
for name, arguments in runs.items():
    found = train(**arguments)
    ranks = cardkge.rank_triples(found, data.valid, data.known)["filtered"]
    mean_x = cardkge.cardinality_sums(found, parent, people).mean()
    lines.append((name, f"{mrr(ranks):.3f}", f"{(ranks <= 10).mean():.3f}", f"{mean_x:.1f}"))
print(
    tabulate(
        lines, ["", "MRR", "hits@10", "mean X of parent"], disable_numparse=True, colalign=("left", *["right"] * 3)
    )
)

# %% [markdown]
# The regulariser helps, by several points of MRR, and X comes down. Had we stopped after the second line, we would
# have written that knowing the bounds helps. The next two lines say that it does not: false bounds, and absurd ones,
# help as much. What helps is that *something* holds the embeddings back, which two negatives for each positive do too
# weakly. And plain L2, which knows nothing of counts and lets X rise, ranks better still. (One seed and one setting:
# a difference of half a point would mean nothing. But there is none to explain.)
#
# This is what a negative result looks like, and it is worth as much as a positive one: it says where *not* to look.
# Bounds are knowledge about *sets*. A ranking does not ask how many; deciding which facts to believe does. So use
# them there.
#
# ## 10. Knowing how many
#
# First, better probabilities. For one relation, let the probability that (h, r, t) is a fact be $\sigma(a \phi + c)$,
# with a and c from the validation facts, which the model has not seen. There is one catch: a missing fact may also be
# in test, so that only a share v of the missing facts is in valid, and a candidate is found there with probability v
# $\sigma(a \phi + c)$. Here test is all that is missing, so the sizes of the splits say v. On a real graph they do
# not: then v comes from exact numbers, or somebody must give it.

# %%
v = len(data.valid) / (len(data.valid) + len(data.test))


def pairs(triples, r):
    return {h: set(triples[(triples[:, 1] == r) & (triples[:, 0] == h), 2].tolist()) for h in people}


known_tails, valid_tails, test_tails = (pairs(x, parent) for x in (data.train, data.valid, data.test))
S = model.score_tails(people, np.full(len(people), parent)).astype(float)
candidates = []  # (person, entity): for each person the 30 best that train does not know
for i, h in enumerate(people):
    order = [e for e in np.argsort(-S[i], kind="stable")[:40].tolist() if e not in known_tails[h] and e != h]
    candidates += [(i, e) for e in order[:30]]
who, tail = np.array(candidates).T
phi = S[who, tail]
in_valid = np.array([e in valid_tails[people[i]] for i, e in candidates])
in_test = np.array([e in test_tails[people[i]] for i, e in candidates])

a, c = 1.0, -5.0
for _ in range(50):  # Newton's method (Fisher scoring) on the log-likelihood
    pi = sigmoid(a * phi + c)
    observed, slope = v * pi, v * pi * (1 - pi)
    weight = slope / np.maximum(observed * (1 - observed), 1e-12)
    design = np.stack([phi, np.ones(len(phi))], 1)
    gradient, information = design.T @ (weight * (in_valid - observed)), (design.T * (weight * slope)) @ design
    a, c = np.array([a, c]) + np.clip(np.linalg.solve(information, gradient), -1, 1)
pi = sigmoid(a * phi + c)
fact = np.where(in_valid, 0, pi * (1 - v) / (1 - v * pi))  # given that it is not in valid either
print(f"a = {a:.2f}, c = {c:.2f}")
print(f"raw: {sigmoid(phi).sum():,.0f} expected new facts; calibrated: {fact.sum():.0f}; in test: {in_test.sum()}")

# %% [markdown]
# The calibrated model expects about as many missing parents as there are. What it cannot know is that Bengt has two
# parents, and one of them is known already. Take the candidates as independent, with these probabilities, and call S
# the set of those that are true. Given that S has between L and U members,
#
# $$P(t \in S \mid L \le |S| \le U) = \frac{\sum_{S \ni t} P(S)}{\sum_S P(S)}$$
#
# with both sums over the sets of between L and U members.
#
# For a few candidates the sets can be listed. A person of whom nothing is known, and a bound of two:


# %%
def by_enumeration(p, lower, upper):
    total, members = 0.0, np.zeros(len(p))
    for chosen in itertools.product((False, True), repeat=len(p)):
        if lower <= sum(chosen) <= upper:
            chance = np.prod(np.where(chosen, p, 1 - p))
            total += chance
            members += chance * np.array(chosen)
    return members / total


example = np.array([0.9, 0.6, 0.5, 0.1])
print("before         ", example, " sum", example.sum().round(2))
for least, most in ((0, 2), (2, 2), (0, 1)):
    after = by_enumeration(example, least, most)
    print(f"{least} to {most} of them ", after.round(3), " sum", after.sum().round(2))

# %% [markdown]
# The order stays, the sum moves into the bounds, and a strong candidate pushes weaker ones down. With 30 candidates
# there are a billion sets. But only *how many* are chosen matters, and that can be counted one candidate at a time:
# f[j], the probability that j of those seen so far are chosen.


# %%
def counts(p):
    f = np.zeros(len(p) + 1)
    f[0] = 1
    for chance in p:
        f[1:] = f[1:] * (1 - chance) + f[:-1] * chance
        f[0] *= 1 - chance
    return f


def conditional(p, lower, upper):
    total, found = counts(p)[lower : upper + 1].sum(), np.empty(len(p))
    for i in range(len(p)):
        others = counts(np.delete(p, i))[max(lower - 1, 0) : upper]
        found[i] = p[i] * others.sum() / total
    return found


print("apart from enumeration:", np.abs(conditional(example, 0, 2) - by_enumeration(example, 0, 2)).max().round(12))

# %% [markdown]
# *Exercise 8* is this function with its corner cases. Now for everybody's parents: of the two that one may have,
# those in train and valid are taken. In the last line we use what is true of these people too: whoever has one parent
# has two.

# %%
given, exactly = np.zeros(len(fact)), np.zeros(len(fact))
for i, h in enumerate(people):
    of_person, have = who == i, len(known_tails[h]) + len(valid_tails[h])
    room = int(upper) - have
    if room > 0:
        given[of_person] = conditional(fact[of_person], 0, room)
        exactly[of_person] = conditional(fact[of_person], room if have else 0, room)

child_facts = data.train[data.train[:, 1] == relation_id["child"]]
inverse = {(h, t) for t, _, h in child_facts.tolist()}  # "h is a child of t", the same fact the other way round
turned = np.array([(people[i], e) in inverse for i, e in candidates])
held_out = {(h, t) for h in people.tolist() for t in test_tails[h]}
lines = []
for name, values in (
    ("raw", sigmoid(phi) * ~in_valid),
    ("calibrated", fact),
    ("at most two", given),
    ("two, if any", exactly),
):
    accepted = values > 0.5
    right = accepted & in_test
    easy, hard = (right & turned).sum() / len(held_out & inverse), (right & ~turned).sum() / len(held_out - inverse)
    lines.append(
        (name, values.sum(), accepted.sum(), right.sum() / accepted.sum(), right.sum() / len(held_out), easy, hard)
    )
heading = ["p > 0.5", "expected", "accepted", "precision", "recall", "inverse in train", "not in train"]
print(f"{len(held_out)} facts in test, of {len(held_out & inverse)} the inverse is in train")
print(tabulate(lines, heading, floatfmt=("", ".0f", "", ".3f", ".3f", ".3f", ".3f")))

# %% [markdown]
# Calibration makes the difference between useless and useful. The bound then removes the mistakes that are left, at
# no cost in what is found; but conditioning from above can only lower an expected number, and now it is too low.
# Knowing the least as well as the most puts it right, and finds more.
#
# Too low, because the bound counts twice: a and c were fitted as if anybody may have any number of parents, to facts
# of people who have two, so that pi holds some of the bound already. `python cli.py calibrate` fits *through* the
# bounds: it makes the valid facts probable under the conditional probabilities themselves
# ([COUNTS.md](COUNTS.md) has the formula, and a toy of two heads).
#
# The last two columns split the recall. Of most facts that are found, the inverse (`child`) is in train, and turning
# it round is all the model had to do; the others must be pieced together from siblings and spouses. A single figure
# would have hidden that, and on several well-known data sets it did for years.
#
# ## 11. A family's tree
#
# Put it to use. Take a couple and their descendants, draw every parent known from train or valid as a grey line, and
# let the model add what it believes: p > 0.5, given how many. Green is right (the fact was held out), red is wrong,
# dotted is missed.

# %%
predicted = {(int(people[i]), e) for (i, e), value in zip(candidates, exactly) if value > 0.5}
certain = {(h, t) for tails in (known_tails, valid_tails) for h in people.tolist() for t in tails[h]}


def descendants(couple, edges, generations=3):
    """Generations of people, the couple first, and for each person the next ones below."""
    layers, seen = [sorted(couple)], set(couple)
    for _ in range(generations - 1):
        below = sorted({child for child, elder in edges if elder in layers[-1]} - seen)
        seen |= set(below)
        layers.append(below)
    return layers


truth = certain | held_out
couples = {}
for child, elder in sorted(truth):
    couples.setdefault(child, []).append(elder)
sizes = {}
for couple in sorted({tuple(elders) for elders in couples.values() if len(elders) == 2}):
    layers = descendants(couple, truth)
    members = set(itertools.chain(*layers))
    hidden = sum(child in members and elder in members for child, elder in held_out)
    if len(members) <= 20 and layers[2]:
        sizes[couple] = hidden
couple = max(sizes, key=sizes.get)  # the one of which most was hidden
layers = descendants(couple, truth)
members = set(itertools.chain(*layers))
print("the couple:", " and ".join(data.entities[e] for e in couple), "with", len(members) - 2, "descendants")
for name, edges in (
    ("known", certain),
    ("found", predicted & held_out),
    ("wrong", predicted - truth),
    ("missed", held_out - predicted),
):
    inside = [(child, elder) for child, elder in sorted(edges) if child in members]
    print(f"{name:7}", len(inside))
    if name != "known":
        for child, elder in inside:
            print(f"        a parent of {data.entities[child]} is {data.entities[elder]}")

# %%
# a place for everybody: generation by generation, brothers and sisters together, parents from outside the family beside
# the one that they have children with
drawn = [(c, e) for c, e in sorted(certain | held_out | predicted) if c in members and c not in couple]
place = {}
for depth, layer in enumerate(layers):
    row = []
    for person in sorted(
        layer, key=lambda c: min([place[e] for child, e in drawn if child == c and e in place] or [(0, 0)])
    ):
        kids = [c for c, e in drawn if e == person]
        row += [person, *sorted({e for c, e in drawn if c in kids} - members - set(row))]
    place |= {person: ((x + 0.5) / len(row), -depth) for x, person in enumerate(row)}

figure, axes = plt.subplots(figsize=(9, 5))
styles = {"known": ("0.7", "-"), "found": ("tab:green", "-"), "wrong": ("tab:red", "-"), "missed": ("black", ":")}
for child, elder in drawn:
    if child not in place or elder not in place:
        continue
    if (child, elder) in certain:
        kind = "known"
    elif (child, elder) in held_out:
        kind = "found" if (child, elder) in predicted else "missed"
    else:
        kind = "wrong"
    colour, line = styles[kind]
    axes.plot(*zip(place[child], place[elder]), color=colour, linestyle=line, zorder=1, label=kind)
for person, (x, y) in place.items():
    axes.text(x, y, data.entities[person].replace("_", "\n"), ha="center", va="center", fontsize=7,
              bbox=dict(boxstyle="round", facecolor="white", edgecolor="0.6"))  # fmt: skip
legend = dict(zip(axes.get_legend_handles_labels()[1], axes.get_legend_handles_labels()[0]))
axes.legend(legend.values(), legend.keys(), loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)
axes.axis("off")
figure.tight_layout()

# %% [markdown]
# And Bengt's mother, with whom we began?

# %%
for (i, e), before, most, two in zip(candidates, fact, given, exactly):
    if people[i] == bengt and before > 0.005:
        print(f"{data.entities[e]}: calibrated {before:.3f}, at most two {most:.3f}, exactly two {two:.3f}")

# %% [markdown]
# ## Where to go from here
#
# * The exercises, `course/exercise_1.py` to `exercise_8.py`: each a page, a stub, and tests with hints.
# * `cardkge.py`, from top to bottom: the same things in the paper's order, each equation once. Little should be new
#   to you now, but for the sampling of whole batches and the softmax loss, which learns from all entities at once in
#   place of two corruptions and ranks far better on this graph (`python cli.py train --loss softmax`).
# * `python cli.py calibrate`, `complete` and `evaluate --sets` do parts 10 and 11 for every relation of a graph.
# * A model of your own: a class with five methods trains, ranks and counts like the others
#   (`python cli.py train --model course/solutions/transe.py:TransE`), and `python cli.py check` looks at its gradients.
# * [REPRODUCTION.md](REPRODUCTION.md): what holds of the paper's claims, with more seeds
#   than the one here.
