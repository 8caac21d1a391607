"""Exercise 1: the backward pass of DistMult.

A knowledge graph is a set of triples (h, r, t): head, relation, tail. DistMult gives every entity and every relation
a row of k numbers, and a triple the score

    phi(h, r, t) = sum_i h_i r_i t_i.

`score` below does this for n triples at once; the rows are taken out of two tables by fancy indexing. To train, we
need the gradient. The loss L depends on the scores, and some other function has already worked out how:

    upstream_j = d L / d phi_j            one number for each of the n triples.

Your part is the rest of the chain rule: d L / d entity and d L / d relation, two arrays of the shapes of the tables.

Think of one triple first. phi is linear in each of its three rows, so d phi / d h_i = r_i t_i, and the same for the
others. Then think of n triples:

* A row that no triple uses has gradient 0.
* A row that several triples use gets the *sum* of what each of them contributes. An entity may be the head of one and
  the tail of another; it may even be both in the same triple, where phi = sum_i h_i^2 r_i.
* `array[ids] += values` does not do what it seems to do when an id stands twice in `ids`: NumPy reads all rows, adds,
  and writes them back, so that the last one wins. `np.add.at(array, ids, values)` adds them all.

Test yourself with

    python -m pytest course/exercise_1.py

When all is green, look at `DistMult.d_phi` and `Model.gradients` in cardkge.py: the same thing for any model.
A question to take along: the gradient arrays are as large as the tables, but few of their rows are not 0. What would
you keep instead, for a graph of 100,000 entities and a batch of 100 triples? (Exercise 3 comes back to this.)
"""

import numpy as np

# --- given


def score(entity, relation, heads, relations, tails):
    """phi of n triples: tables (N, k) and (R, k), ids (n,) three times -> (n,)."""
    return (entity[heads] * relation[relations] * entity[tails]).sum(axis=1)


# --- your part


def score_gradients(entity, relation, heads, relations, tails, upstream):
    """d sum(upstream * score) / d entity, and / d relation: ids and upstream (n,) -> arrays (N, k) and (R, k).

    The tables are not changed.
    """
    h, r, t = entity[heads], relation[relations], entity[tails]
    u = upstream[:, None]
    d_entity, d_relation = np.zeros_like(entity), np.zeros_like(relation)
    np.add.at(d_entity, heads, u * r * t)
    np.add.at(d_relation, relations, u * h * t)
    np.add.at(d_entity, tails, u * h * r)
    return d_entity, d_relation


# --- the tests


def graph(heads, relations, tails, n_entities=5, n_relations=2, k=3, seed=0):
    rng = np.random.default_rng(seed)
    ids = [np.array(part) for part in (heads, relations, tails)]
    return rng.normal(size=(n_entities, k)), rng.normal(size=(n_relations, k)), *ids


def test_one_triple_by_hand(hint):
    entity, relation = np.array([[1.0, 2], [3, -1]]), np.array([[5.0, 7]])
    zero, one = np.array([0]), np.array([1])
    found = score_gradients(entity, relation, zero, zero, one, np.array([10.0]))
    hint(isinstance(found, tuple) and len(found) == 2, "return two arrays: d_entity, d_relation")
    d_entity, d_relation = found
    hint(d_entity.shape == (2, 2), f"d_entity has the shape of the entity table, (2, 2); yours is {d_entity.shape}")
    hint(d_relation.shape == (1, 2), f"d_relation has the shape of its table, (1, 2); yours is {d_relation.shape}")
    hint(not np.allclose(d_entity[0], [15, -7]), "the head's row: you left out the factor upstream")
    hint(
        np.allclose(d_entity[0], [150, -70]),
        f"d phi / d h = r * t = (5 * 3, 7 * -1), times upstream 10; yours {d_entity[0]}",
    )
    hint(np.allclose(d_relation[0], [30, -20]), f"d phi / d r = h * t = (3, -2), times 10; yours {d_relation[0]}")
    hint(np.allclose(d_entity[1], [50, 140]), f"d phi / d t = h * r = (1 * 5, 2 * 7), times 10; yours {d_entity[1]}")


def test_rows_that_are_not_used_have_gradient_0(hint):
    entity, relation, *ids = graph([0], [1], [2])
    d_entity, d_relation = score_gradients(entity, relation, *ids, np.ones(1))
    hint(not d_entity[[1, 3, 4]].any(), "entities 1, 3 and 4 are in no triple: start from np.zeros_like(entity)")
    hint(not d_relation[0].any(), "relation 0 is in no triple: its gradient is 0")


def test_an_entity_that_is_both_head_and_tail(hint):
    entity, relation, *ids = graph([3], [0], [3])
    d_entity, _ = score_gradients(entity, relation, *ids, np.ones(1))
    once = relation[0] * entity[3]
    hint(
        not np.allclose(d_entity[3], once),
        "head and tail are the same row: it gets what the head contributes *and* what the tail does",
    )
    hint(np.allclose(d_entity[3], 2 * once), f"phi = sum h_i^2 r_i: slope 2 h r = {2 * once}, yours {d_entity[3]}")


def test_rows_in_several_triples_add_up(hint):
    entity, relation, *ids = graph([0, 0, 1], [0, 0, 0], [2, 3, 2])
    upstream = np.array([1.0, -2, 3])
    d_entity, d_relation = score_gradients(entity, relation, *ids, upstream)
    each = upstream[:, None] * relation[0] * entity[ids[2]]
    hint(
        not np.allclose(d_entity[0], each[1]),
        "entity 0 is the head of two triples, and only the second has been counted: array[ids] += values writes each"
        " row once. Use np.add.at",
    )
    hint(np.allclose(d_entity[0], each[0] + each[1]), f"entity 0: the sum is {each[0] + each[1]}, yours {d_entity[0]}")
    each = upstream[:, None] * entity[ids[0]] * entity[ids[2]]
    hint(np.allclose(d_relation[0], each.sum(0)), "relation 0 is in three triples: the sum over all of them")


def test_against_differences(hint, differences):
    """The judge in the end: twelve triples, every coordinate, by central differences."""
    rng = np.random.default_rng(1)
    entity, relation, *ids = graph(rng.integers(5, size=12), rng.integers(2, size=12), rng.integers(5, size=12))
    upstream = rng.normal(size=12)
    kept = entity.copy(), relation.copy()
    found = score_gradients(entity, relation, *ids, upstream)
    hint((entity == kept[0]).all() and (relation == kept[1]).all(), "the tables themselves must not change")
    for name, table, given in zip(("entity", "relation"), (entity, relation), found):
        expected = differences(lambda: upstream @ score(entity, relation, *ids), table)
        wrong = np.argwhere(~np.isclose(given, expected, rtol=1e-6, atol=1e-8))
        hint(
            not len(wrong),
            f"d_{name} differs from central differences in {len(wrong)} places, first at {wrong[:1].tolist()}",
        )
