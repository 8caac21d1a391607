"""Exercise 4: the filtered rank, with ties.

To see how good a model is, take a test triple (h, r, t), hide t, and score every entity e as the tail: phi(h, r, e).
The rank of t is 1 + the number of entities that score higher; 1 is best. Two things make this less simple than it is.

*Other right answers.* (anna, parent, ?) has two right answers. If otto is asked for and clara, her other parent, scores
higher, that is no mistake. In the *filtered* setting every other answer that is true, in train, valid or test, is left
out of the competition. The asked one stays in, of course.

*Ties.* What if others score exactly the same? A model that gives every entity the score 0 would have rank 1 always if
ties counted for it: "optimistic" ranks have made worthless models look perfect in published work. With B better and E
equal scores among the competitors:

    optimistic    1 + B            the best place among equals
    pessimistic   1 + B + E        the worst
    realistic     1 + B + E / 2    their mean, what random breaking of ties gives on average

*NaN.* A score that is not a number compares false with everything, so that B = E = 0 and the rank would be a perfect 1.
A NaN must be an error, wherever it is. (Infinite scores are fine: they can be compared.)

Write `filtered_rank` for one question.

    python -m pytest course/exercise_4.py

Then think: which of your lines would become slow for 3,000 questions over 40,000 entities, and how much memory would it
take to do them all at once? `rank_triples` of the project is an answer in blocks.
"""

import numpy as np
import pytest

import cardkge

# --- your part


def filtered_rank(scores, answer, true_answers, ties="realistic"):
    """The rank of `answer` among all entities, the other true answers left out, as a float.

    scores (N,) of all entities; answer: the id asked for; true_answers: ids of all known right answers, in any order,
    some perhaps twice, `answer` among them or not; ties: "realistic", "optimistic" or "pessimistic". Raises ValueError
    where a score is NaN, and for another word. Nothing given is changed.
    """
    if np.isnan(scores).any():
        raise ValueError("a score is NaN")
    share = {"optimistic": 0.0, "realistic": 0.5, "pessimistic": 1.0}
    if ties not in share:
        raise ValueError(f"ties must be one of {', '.join(share)}; found {ties}")
    competes = np.ones(len(scores), bool)
    competes[list(true_answers)] = False
    competes[answer] = False
    better = (scores[competes] > scores[answer]).sum()
    equal = (scores[competes] == scores[answer]).sum()
    return float(1 + better + share[ties] * equal)


# --- the tests


@pytest.fixture
def scores():
    """Entities 0, 2 and 4 are equal; 1 and 3 are better than they are, 5 is worse."""
    return np.array([0.5, 2.0, 0.5, 3.0, 0.5, -1.0])


def test_no_ties_nothing_known(hint, scores):
    for answer, expected in ((3, 1), (1, 2), (5, 6)):
        found = filtered_rank(scores, answer, [answer])
        hint(found == expected, f"scores {scores.tolist()}: entity {answer} has rank {expected}, yours {found}")


def test_the_other_true_answers_are_left_out(hint, scores):
    found = filtered_rank(scores, 1, [3, 1])
    hint(found != 2, "3 is a right answer too: it scores higher than 1 and must not count")
    hint(found == 1, f"without 3, entity 1 is the best: rank 1, yours {found}")
    hint(filtered_rank(scores, 5, [1, 3, 5, 0]) == 3, "0, 1 and 3 are true too: only 2 and 4 are better than 5, rank 3")


def test_the_answer_itself_stays_in(hint, scores):
    with_it, without_it = filtered_rank(scores, 5, [5, 3]), filtered_rank(scores, 5, [3])
    hint(
        with_it == without_it == 5,
        f"5 never competes with itself, in true_answers or not: rank 5; yours {with_it}, {without_it}",
    )


def test_a_true_answer_given_twice_counts_once(hint, scores):
    hint(filtered_rank(scores, 5, [3, 3, 5, 3]) == 5, "3 stands three times in true_answers: it is one entity")


@pytest.mark.parametrize("ties, expected", [("optimistic", 3), ("pessimistic", 5), ("realistic", 4)])
def test_ties(hint, scores, ties, expected):
    found = filtered_rank(scores, 2, [2], ties)
    why = "1 and 3 are better (B = 2), 0 and 4 are equal (E = 2); the answer does not tie with itself"
    hint(found == expected, f"{ties}: {why}: rank {expected}, yours {found}")


def test_a_tied_true_answer_is_left_out(hint, scores):
    found = filtered_rank(scores, 2, [0, 2])
    hint(found == 3.5, f"0 is true and ties with 2: it is left out, E = 1, rank 3.5; yours {found}")


def test_realistic_is_the_default(hint, scores):
    hint(filtered_rank(scores, 2, [2]) == 4, "without `ties`, realistic")


def test_a_model_that_knows_nothing(hint, scores):
    """All scores equal: the middle of the field, not the top."""
    found = filtered_rank(np.zeros(101), 17, [17])
    hint(found == 51, f"101 equal scores: the realistic rank is (1 + 101) / 2 = 51, yours {found}")


@pytest.mark.parametrize("place", ["the answer's score", "a competitor's", "a true answer's"])
def test_nan_is_an_error(hint, scores, place):
    scores[{"the answer's score": 2, "a competitor's": 5, "a true answer's": 3}[place]] = np.nan
    try:
        found = filtered_rank(scores, 2, [2, 3])
    except ValueError:
        return
    hint(False, f"{place} is NaN, and the rank came out as {found}: raise ValueError, wherever a NaN is")


def test_an_unknown_word_is_an_error(hint, scores):
    with pytest.raises(ValueError):
        filtered_rank(scores, 2, [2], "hopeful")


def test_infinite_scores_can_be_compared(hint):
    scores = np.array([-np.inf, 1.0, np.inf, -np.inf])
    hint(filtered_rank(scores, 1, [1]) == 2, "inf is better than 1, -inf is not: rank 2")
    hint(filtered_rank(scores, 0, [0]) == 3.5, "two are better than -inf, and one is equal: 1 + 2 + 1/2")


def test_nothing_given_is_changed(hint, scores):
    kept, true_answers = scores.copy(), [3, 2, 1]
    filtered_rank(scores, 2, true_answers)
    hint((scores == kept).all(), "scores were changed: writing -inf into them filters, but the next caller sees it")
    hint(true_answers == [3, 2, 1], "true_answers was changed")


def test_against_the_project(hint):
    """Tails of forty test triples of `families`, by an untrained model of whole numbers, so that many tie."""
    data = cardkge.load_dataset("families")
    model = cardkge.DistMult(data.n_entities, data.n_relations, dim=4, seed=0)
    for array in model.params.values():
        array[...] = np.round(4 * array)
    triples, known = data.test[:40], data.known
    for ties in ("realistic", "optimistic", "pessimistic"):
        expected = cardkge.rank_triples(model, triples, known, ties=ties)["filtered"][:, 1]
        for (h, r, t), rank in zip(triples, expected):
            true_answers = known[(known[:, 0] == h) & (known[:, 1] == r), 2]
            found = filtered_rank(model.score_tails(np.array([h]), np.array([r]))[0], t, true_answers, ties)
            hint(found == rank, f"{ties}, triple {h, r, t}: the project says {rank}, you say {found}")
