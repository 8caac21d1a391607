"""What is missing, by relation: numbers worked out by hand, and the errors of --missing."""

from types import SimpleNamespace

import numpy as np
import pytest

from cardkge import CardkgeError
from cardkge_tools.answers.decoding import KnownTails
from cardkge_tools.answers.missing import Missing, missing_facts, read_missing, unseen_tails
from cardkge_tools.graph.bounds import Bound, GraphBounds
from cardkge_tools.graph.rdf import Prefixes

# 100 heads, 0 to 99; tails 100 to 104. r0 is exact, two tails a head: all have one in train, 20 their second in valid,
# 40 theirs in test, so 40 are nowhere. r1 has no bound: 30 facts in train, 5 in valid, 15 in test.
HEADS = np.arange(100)


def facts(heads, relation, tails):
    return np.column_stack((heads, np.full(len(heads), relation), tails))


EXACT = (Bound("r0", 2, 2),)


def toy(bounds=EXACT):
    train = np.concatenate((facts(HEADS, 0, 100 + HEADS % 2), facts(HEADS[:30], 1, 100 + HEADS[:30] % 5)))
    valid = np.concatenate((facts(HEADS[:20], 0, np.full(20, 102)), facts(HEADS[30:35], 1, np.full(5, 100))))
    test = np.concatenate((facts(HEADS[20:60], 0, np.full(40, 103)), facts(HEADS[35:50], 1, np.full(15, 101))))
    data = SimpleNamespace(train=train, valid=valid, test=test, n_entities=106, n_relations=2, relations=["r0", "r1"])
    return data, GraphBounds(bounds, data.relations)


def test_exact_numbers_say_what_is_missing():
    data, bounds = toy()
    found = missing_facts(data, bounds)
    assert found.valid.tolist() == [20, 5] and found.test.tolist() == [40, 15]
    assert found.source == ["numbers", "assumed"]
    assert found.elsewhere.tolist() == [40, 0]  # 200 - 100 - 20 - 40; no tail was seen only once
    assert found.limit.tolist() == [40, np.inf]
    np.testing.assert_allclose(found.share, [20 / 100, 5 / 20])
    assert found.known_share("train").tolist() == [0, 0]
    np.testing.assert_array_equal(found.known_share("valid"), found.share)
    np.testing.assert_allclose(found.known_share("all"), [60 / 100, found.share[1]])


def test_tails_seen_once_say_how_many_have_not_been_seen():
    """Of r0's five facts, two have 5 as a tail; 6, 7, 4 are seen once with r0, though 6 is a tail of r1, 7 a head."""
    answers = KnownTails(np.array([[0, 0, 5], [1, 0, 5], [2, 0, 6], [3, 0, 7], [3, 0, 4], [0, 1, 6], [7, 1, 0]]), 8, 3)
    assert unseen_tails(answers, 3).tolist() == [3 / 5, 1, 1]


def test_a_tail_of_one_fact_alone_is_one_that_a_closed_range_might_lack():
    """Of r0's 20 facts 18 have tails seen twice; 18 and 19 are seen once with it, of which 19 is a tail of r1 too."""
    rows = [[h, 0, 9 + h // 2] for h in range(18)] + [[0, 0, 18], [1, 0, 19], [2, 1, 19]]
    assert unseen_tails(KnownTails(np.array(rows), 20, 2), 2).tolist() == [1 / 20, 1]
    data, bounds = toy()
    data.train = np.concatenate((data.train[:98], facts(HEADS[98:100], 0, [104, 105]), data.train[100:]))
    assert missing_facts(data, bounds).elsewhere[0] == pytest.approx((1 - 1 / 160) * 40)  # 105 stands once


def test_unseen_tails_before_the_fit():
    """u = 1/4, and v = 1/5 of 20 facts in valid, of 50 (h, r): 2 new ones each, and 2/3 unseen. None where the range is
    closed, or no lower bound asks for tails."""
    columns = np.array([20] * 3), np.zeros(3, int), np.zeros(3), ["assumed"] * 3, np.full(3, np.inf), np.full(3, 0.2)
    found = Missing(*columns, unseen=np.array([0.25, 0.1, 0.25]))
    before = found.unseen_before(np.repeat([0, 1, 2], 50), np.array([0, 1]))
    np.testing.assert_allclose(before, [2 / 3, 0, 0])


def test_deficits_are_signed():
    """Ten heads with one tail too many and ten with one too few: nothing is missing beside the rest."""
    data, bounds = toy()
    before = missing_facts(data, bounds)
    data.test = np.concatenate((data.test, facts(HEADS[:10], 0, np.full(10, 104))))
    after = missing_facts(data, bounds)
    assert after.elsewhere[0] == before.elsewhere[0] - 10 and after.share[0] == pytest.approx(before.share[0])
    assert after.notes == ("r0: 10 heads have more tails than their exact number",)


def test_a_number_that_the_graph_cannot_hold_is_left_out():
    """One digit too many for one head would make all facts of the relation missing."""
    data, bounds = toy()
    before, names = missing_facts(data, bounds), [f"e{i}" for i in range(data.n_entities)]
    most = data.n_entities
    too_large = [*bounds.listed(), Bound("r0", most + 1, most + 1, subject="e3")]
    after = missing_facts(data, GraphBounds(too_large, data.relations, None, names))
    assert before.elsewhere[0] - after.elsewhere[0] == pytest.approx(before.elsewhere[0] / 60, abs=1)
    assert after.notes == (f"r0: exact numbers above {most:,}, the entities of the graph, are left out: 1",)


def test_only_the_heads_that_a_number_is_of_count():
    """A bound of half the heads: valid and test of the others are left out of the share."""
    from cardkge_tools.graph.bounds import Types

    data, _ = toy()
    types = Types(["half"], [(h, 0) for h in range(10, 60)])
    bounds = GraphBounds((Bound("r0", 2, 2, kind="half"),), data.relations, types)
    found = missing_facts(data, bounds)
    # of the heads 10 to 59: 10 in valid, 40 in test, none nowhere
    assert found.elsewhere[0] == 0 and found.source[0] == "numbers"
    assert found.share.tolist() == [10 / 50, 5 / 20]


def test_inequalities_and_few_facts_say_nothing():
    data, bounds = toy((Bound("r0", 0, 2),))
    found = missing_facts(data, bounds)
    assert found.source == ["assumed", "assumed"] and found.limit[0] == 40 and not found.notes
    few, bounds = toy((Bound("r0", 1, 1),))
    found = missing_facts(few, bounds)  # by these numbers 60 facts too many are known
    assert found.source[0] == "assumed" and "too few to use" in found.notes[1]


def test_given_and_pooled():
    data, bounds = toy()
    found = missing_facts(data, bounds, {0: 100.0, 1: 7.0})
    assert found.source == ["given", "given"] and found.elsewhere.tolist() == [100, 7]
    assert found.notes == ("r0: 100 missing facts are given, upper bounds leave 40",)
    found = missing_facts(data, bounds, elsewhere="pooled")
    assert found.source == ["numbers", "pooled"] and found.elsewhere[1] == pytest.approx(40 / 160 * 50)
    with pytest.raises(CardkgeError, match="no relation has exact numbers"):
        missing_facts(*toy(()), elsewhere="pooled")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("r0\t5\nr2\t1\n", ":2: unknown relation 'r2'"),
        ("r0\t-5\n", ":1: expected how many facts are missing, 0 or more, found '-5'"),
        ("r0\tmany\n", ":1: expected how many facts are missing"),
        ("r0\tnan\n", ":1: expected how many facts are missing"),
        ("r0\t1e999\n", ":1: expected how many facts are missing, 0 or more, found '1e999'"),
        ("r0\t5\nr1\t2\nr0\t5\n", ":3: relation 'r0' for the second time, after line 1"),
        ("r0\n", ":1: expected a relation and a number"),
        ("r0\t9\nr1\t10\n", ":2: 10 missing facts of 'r1'; the graph has room for 9 more"),
        ("\n", "missing.tsv: no line of a relation and a number"),
    ],
)
def test_a_bad_file_of_missing_facts_is_refused_by_line(tmp_path, text, message):
    path = tmp_path / "missing.tsv"
    path.write_text(text)
    with pytest.raises(CardkgeError) as caught:
        read_missing(path, ["r0", "r1"], Prefixes(), [9, 9])
    assert message in str(caught.value)


def test_a_file_of_missing_facts(tmp_path):
    path = tmp_path / "missing.tsv"
    path.write_text("r1\t12.5\nr0\t0\n")
    assert read_missing(path, ["r0", "r1"], Prefixes(), [0, 12.5]) == {1: 12.5, 0: 0.0}


def test_a_share_that_others_decide_is_said():
    """Relations with few missing facts take the share of all, given numbers among them."""
    data, bounds = toy()
    data.test = data.test[:-1]  # of r1 5 and 14 are missing
    found = missing_facts(data, bounds)
    assert found.share[1] == pytest.approx(25 / 119)
    assert found.notes == ("r1: below 20 missing, so share is that of all relations, 0.21",)
    found = missing_facts(data, bounds, {0: 100.0})
    assert found.share[1] == pytest.approx(25 / 179)
    assert found.notes[-1].endswith("of all relations, 0.14, numbers that are given among them")
    few, bounds = toy((Bound("r0", 1, 1),))
    with pytest.raises(CardkgeError, match=r"no relation has exact numbers that can be used .*too few to use"):
        missing_facts(few, bounds, elsewhere="pooled")


def test_heads_without_a_number_have_their_own_share():
    """50 heads of r0 have a number, and two tails each: 20 of these are in valid, 30 in test. Of the others 10 are in
    test, none in valid."""
    data, _ = toy()
    names = [f"e{i}" for i in range(106)]
    own = [Bound("r0", 2, 2, subject=f"e{i}") for i in range(50)]
    found = missing_facts(data, GraphBounds(own, data.relations, None, names))
    assert found.source[0] == "numbers" and found.elsewhere[0] == 0
    np.testing.assert_allclose(found.share, [20 / 50, 5 / 20])
    np.testing.assert_allclose(found.others, [20 / 60, 5 / 20])  # of so few the share is that of all
    data.valid = np.concatenate((data.valid, facts(HEADS[60:80], 0, np.full(20, 102))))
    assert missing_facts(data, GraphBounds(own, data.relations, None, names)).others[0] == pytest.approx(20 / 30)


def test_what_is_known_is_of_the_heads_that_have_numbers():
    """r0's numbers are of 60 heads, with 20 facts in valid, 30 in test, ten nowhere; the others have ten in test."""
    data, _ = toy()
    names = [f"e{i}" for i in range(106)]
    own = [Bound("r0", 2, 2, subject=f"e{i}") for i in [*range(50), *range(60, 70)]]
    found = missing_facts(data, GraphBounds(own, data.relations, None, names))
    assert found.elsewhere[0] == 10 and found.held.tolist() == [50, 20]
    np.testing.assert_allclose(found.known_share("all"), [50 / 60, found.share[1]])
    again = Missing.of_rows(found.rows(), found.share)
    np.testing.assert_allclose(again.known_share("all"), [50 / 60, found.share[1]])
