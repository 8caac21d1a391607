"""The answer to course/exercise_4.py, which has the question and the tests."""

import numpy as np

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
