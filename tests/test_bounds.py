"""Bounds: mined, read, written."""

import gzip
import os
import random
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cardkge
from cardkge import CardkgeError

INF = float("inf")
POPULATIONS = ("subjects", "relation", "entities")
RELATIONS = ["parent", "born in", "spouse", "#child"]


def brute_force(triples, n_entities, n_relations, population):
    """The definition, word by word."""
    tails = defaultdict(set)
    for h, r, t in triples:
        tails[r, h].add(t)
    bounds = []
    for r in range(n_relations):
        heads = {h for h, s, _ in triples if s == r}
        everyone = {"subjects": {h for h, _, _ in triples}, "relation": heads, "entities": set(range(n_entities))}[
            population
        ]
        if heads:
            upper = max(len(tails[r, h]) for h in heads)
            bounds.append((min(len(tails[r, h]) for h in everyone), upper))
        else:
            bounds.append((0, INF))
    return bounds


@pytest.mark.parametrize("population", POPULATIONS)
def test_mined_bounds_by_hand(population):
    triples = np.array(
        # relation 0: heads 0 (3 tails), 1 (2 tails); relation 1: head 0, 1 tail; 2: none;
        # relation 3: all five entities are heads, twice of 0 and once each of the others
        [(0, 0, 1), (0, 0, 2), (0, 0, 0), (1, 0, 2), (1, 0, 3), (1, 0, 3), (0, 1, 4)]
        + [(h, 3, 0) for h in range(5)]
        + [(0, 3, 4)],
        np.int32,
    )
    lower = 2 if population == "relation" else 0
    one = 1 if population == "relation" else 0
    expected = [(lower, 3), (one, 1), (0, INF), (1, 2)]
    found = cardkge.mine_bounds(triples, 5, 4, population)
    assert found.dtype == np.float64 and found.tolist() == [list(row) for row in expected]


def test_subjects_and_entities_differ_by_who_heads_nothing():
    triples = [[0, 0, 2], [1, 0, 2]]
    assert cardkge.mine_bounds(triples, 3, 1, "subjects").tolist() == [[1, 1]]
    assert cardkge.mine_bounds(triples, 3, 1).tolist() == [[1, 1]]  # the default
    assert cardkge.mine_bounds(triples, 3, 1, "entities").tolist() == [[0, 1]]


@settings(max_examples=200, deadline=None)
@given(data=st.data(), population=st.sampled_from(POPULATIONS))
def test_mined_bounds_against_brute_force(data, population):
    n, r = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    ids = st.tuples(st.integers(0, n - 1), st.integers(0, r - 1), st.integers(0, n - 1))
    triples = data.draw(st.lists(ids, max_size=60))
    found = cardkge.mine_bounds(np.array(triples, np.int32).reshape(-1, 3), n, r, population)
    assert found.tolist() == [list(row) for row in brute_force(triples, n, r, population)]


@pytest.mark.parametrize("population", POPULATIONS)
def test_mined_bounds_of_a_larger_graph(population):
    rng = random.Random(1)
    triples = [(int(300 * rng.random() ** 3), rng.randrange(12), rng.randrange(300)) for _ in range(5000)]
    triples += triples[:500]
    before = np.array(triples)
    given = before.copy()
    found = cardkge.mine_bounds(given, 300, 13, population)
    assert found.tolist() == [list(row) for row in brute_force(triples, 300, 13, population)]
    assert (given == before).all()


def test_mining_refuses_what_is_wrong():
    with pytest.raises(CardkgeError, match=r"'all'.*subjects, relation or entities"):
        cardkge.mine_bounds([[0, 0, 0]], 1, 1, "all")
    for triples in ([[0, 0, 2]], [[2, 0, 0]], [[0, 1, 0]], [[-1, 0, 0]], [[0, -1, 0]]):
        with pytest.raises(CardkgeError, match="ids from"):
            cardkge.mine_bounds(triples, 2, 1)
    for triples in ([[0.0, 0.0, 0.0]], [0, 0, 0], [[0, 0]]):
        with pytest.raises(CardkgeError, match="expected integers of shape"):
            cardkge.mine_bounds(triples, 2, 1)


def test_mined_bounds_of_wn18():
    """The figures of the paper's table."""
    if cardkge.locate_dataset("wn18") is None:
        pytest.skip("wn18 is not on this machine; set CARDKGE_DATA to a folder that holds it")
    data = cardkge.load_dataset("wn18")
    found = cardkge.mine_bounds(data.train, data.n_entities, data.n_relations)
    for name, expected in (("_hyponym", [0, 380]), ("_has_part", [0, 73]), ("_hypernym", [0, 4])):
        assert found[data.relations.index(name)].tolist() == expected


def test_is_bounded():
    bounds = [[0, INF], [0, 2], [1, INF], [0, 0], [1, 1]]
    assert cardkge.is_bounded(bounds).tolist() == [False, True, True, True, True]
    assert cardkge.is_bounded(np.empty((0, 2))).tolist() == []


# --- The type


def test_bounds_of_both_sides():
    """By hand: of tails (2, 3) and (0, inf), of heads (0, inf) and (1, inf)."""
    bounds = cardkge.Bounds([[2, 3], [0, INF]], [[0, INF], [1, INF]])
    assert bounds.of([0, 1, 0], [5, 5, 6]).tolist() == [[2, 3], [0, INF], [2, 3]]
    assert bounds.of(1, [5, 6], inverse=True).tolist() == [[1, INF], [1, INF]]
    assert bounds.is_bounded().tolist() == [True, False] and bounds.is_bounded(inverse=True).tolist() == [False, True]
    upper = bounds.without_lower()
    assert upper.tables.tolist() == [[[0, 3], [0, INF]], [[0, INF], [0, INF]]] and bounds.tables[0, 0, 0] == 2
    assert upper.any() and not upper.is_bounded(inverse=True).any() and cardkge.Bounds([[0, INF]], [[0, 1]]).any()
    assert bounds.weights([0, 1], [3, 4]).tolist() == [[1]]


def test_as_bounds():
    """Bounds stay what they are, a table is of every head, None bounds nothing; what is none of these is an error."""
    bounds = cardkge.Bounds([[0, 2]])
    assert cardkge.as_bounds(bounds, 1) is bounds
    assert cardkge.as_bounds([[0, 2]], 1).tables.tolist() == [[[0, 2]], [[0, INF]]]
    assert (
        cardkge.as_bounds(None, 2).of([0, 1], [0, 0]).tolist() == [[0, INF]] * 2
        and not cardkge.as_bounds(None, 2).any()
    )
    for wrong in (bounds, [[0, 2]], np.zeros((2, 3)), [1, 2]):
        with pytest.raises(CardkgeError, match=r"bounds must have shape \((2|R), 2\), found"):
            cardkge.as_bounds(wrong, 2)
    for row in ([-1, 2], [3, 2], [INF, INF], [np.nan, 2], [0, np.nan]):
        with pytest.raises(CardkgeError, match="bounds must be 0 <= lower <= upper, lower finite"):
            cardkge.Bounds([row])


# --- Files ----------------------------------------------------------------------------------------


def test_read_bounds(tmp_path):
    path = tmp_path / "bounds.tsv"
    path.write_bytes(b"\xef\xbb\xbf\r\nspouse\t0\t1\r\n \r\nparent\t2\t2.5\r\n#child\t1e1\tinf")
    expected = [[2, 2.5], [0, INF], [0, 1], [10, INF]]
    assert cardkge.read_bounds(path, RELATIONS).tolist() == expected
    zipped = tmp_path / "bounds.tsv.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert cardkge.read_bounds(zipped, RELATIONS).tolist() == expected
    path.write_bytes(b"")
    assert cardkge.read_bounds(path, RELATIONS).tolist() == [[0, INF]] * 4


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("child\t0\t1", "unknown relation 'child'"),
        ("spouse\t-1\t1", "found '-1' and '1'"),
        ("spouse\t2\t1", "0 <= lower <= upper"),
        ("spouse\t0\t-inf", "found '0' and '-inf'"),
        ("spouse\tnan\t1", "found 'nan' and '1'"),
        ("spouse\t0\tNaN", "found '0' and 'NaN'"),
        ("spouse\tinf\tinf", "lower finite"),
        ("spouse\t0\tmany", "inf for no upper bound, found '0' and 'many'"),
        ("spouse\t\t1", "expected two numbers"),
        ("parent\t0\t1", "'parent' for the second time"),
        ("spouse\t0", "found 2 fields"),
        ("spouse 0 1", "found 1 fields"),
        ("spouse\t0\t1\t\t\t", "found 6 fields"),
    ],
)
def test_a_faulty_bound_is_named(tmp_path, line, found):
    path = tmp_path / "bounds.tsv"
    path.write_text(f"\nparent\t0\tinf\n\n{line}\nborn in\t1\t1\n")
    with pytest.raises(CardkgeError) as caught:
        cardkge.read_bounds(path, RELATIONS)
    message = str(caught.value)
    assert message.startswith(f"{path}:4: ") and found in message and "\n" not in message


def test_a_bounds_file_that_is_missing_or_not_utf8(tmp_path):
    with pytest.raises(CardkgeError, match="No such file"):
        cardkge.read_bounds(tmp_path / "none.tsv", RELATIONS)
    (tmp_path / "x.tsv").write_bytes(b"parent\t0\t2\nspouse\xe9\t0\t1\n")
    with pytest.raises(CardkgeError, match=r"x\.tsv:2: not UTF-8"):
        cardkge.read_bounds(tmp_path / "x.tsv", RELATIONS)


def test_written_bounds_word_by_word(tmp_path):
    path = tmp_path / "bounds.tsv"
    bounds = np.array([[2, 2], [0, INF], [0.5, 1e6], [0, 0.1]])
    cardkge.write_bounds(path, bounds, ["parent", "x.0", "spouse", "Zoë"])
    text = "parent\t2\t2\nx.0\t0\tinf\nspouse\t0.5\t1000000\nZoë\t0\t0.1\n"
    assert path.read_bytes() == text.encode("utf-8")
    assert os.listdir(tmp_path) == ["bounds.tsv"]


def test_a_first_name_that_looks_like_a_byte_order_mark(tmp_path):
    path = tmp_path / "bounds.tsv"
    cardkge.write_bounds(path, [[0, 1], [0, 2]], ["\ufeffx", "y"])
    assert cardkge.read_bounds(path, ["y", "\ufeffx"]).tolist() == [[0, 2], [0, 1]]


names = st.text(st.characters(exclude_characters="\t\n", exclude_categories=["Cs"]), min_size=1, max_size=8)
finite = st.one_of(st.integers(0, 10**6).map(float), st.floats(0, allow_infinity=False, allow_nan=False))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.dictionaries(names, st.tuples(finite, finite | st.just(INF)), max_size=12))
def test_bounds_come_back_from_a_file(tmp_path, rows):
    bounds = np.array([sorted(row) for row in rows.values()]).reshape(-1, 2)
    bounds[:, 1] = np.maximum(bounds[:, 1], np.ceil(bounds[:, 0]))  # a whole number lies between
    path = tmp_path / "bounds.tsv"
    cardkge.write_bounds(path, bounds, list(rows))
    assert cardkge.read_bounds(path, list(rows)).tobytes() == bounds.tobytes()
    # and in another order of the relations, as another data set may have them
    assert (cardkge.read_bounds(path, list(rows)[::-1]) == bounds[::-1]).all()
