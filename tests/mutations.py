"""Plant errors, one at a time, and see that a test fails: `python tests/mutations.py [WORD...]`.

Each error is planted in a copy of the project, in a temporary folder, where the tests that should fail are run. A table
says which are caught; the exit code is 1 if one is missed, or if the text that it replaces is not found once. Words
choose the errors whose description has one of them. Nothing is changed here. Not a test itself: it takes minutes.
"""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WITHOUT = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "*.egg-info", ".pytest_cache", ".hypothesis")


@dataclass(frozen=True)
class Error:
    what: str
    file: str
    old: str
    new: str
    test: str  # as pytest takes it


MEASURES, CALIBRATION = "cardkge_tools/answers/measures.py", "cardkge_tools/answers/calibration.py"
CLASSIFICATION, COUNTING = "cardkge_tools/answers/classification.py", "cardkge_tools/definitions/counting.py"
TRUTH = "tests/test_conditions.py::test_measured_against_whole_answers"
FACTS = "cardkge_tools/answers/facts.py"
SETS = "tests/test_measures.py::test_sets_are_measured_as_the_definitions_say"
BOTH_SIDES = "tests/test_answers.py::test_bounds_of_both_sides_have_one_rule"
SAME = "tests/test_calibration.py::test_fit_and_use_have_the_same_candidates"
SHARE = "tests/test_by_value.py::test_calibration_of_equal_scores_is_a_share"
FREE = "    places, query = places[~known], query[~known]\n"
SUMS = """\
    sums = candidates.rest[of].copy()
    np.logaddexp.at(sums, query[found[places]], candidates.scores[places[found[places]]])
"""

ERRORS = [
    # calibrate
    Error(
        "calibrate: v is valid / (2 valid + missing)",
        "cardkge_tools/answers/missing.py",
        "held[0].astype(float), sum(held).astype(float)",
        "held[0].astype(float), (sum(held) + held[0]).astype(float)",
        "tests/test_missing.py::test_exact_numbers_say_what_is_missing",
    ),
    Error(
        "calibrate: the sampled (h, r) are not weighted",
        CALIBRATION,
        "weights[chosen] = len(others) / max(len(chosen), 1)",
        "weights[chosen] = 1",
        SHARE,
    ),
    Error(
        "calibrate: the drawn candidates are not weighted",
        CALIBRATION,
        " / np.maximum(fresh.sum(1), 1)",
        "",
        "tests/test_calibration.py::test_each_fact_of_valid_is_asked_once_while_the_others_are_known",
    ),
    Error(
        "calibrate: what drawn candidates stand for is left out (definition)",
        COUNTING,
        'terms = (log_odds + np.log(query["weights"]))[~apart]',
        "terms = log_odds[~apart]",
        "tests/test_calibration.py::test_the_kernel_is_the_definition",
    ),
    Error(
        "calibrate: what drawn candidates stand for is left out (kernel)",
        "kernels.py",
        "each = weights[t] * math.exp(log_odds)",
        "each = math.exp(log_odds)",
        SHARE,
    ),
    Error(
        "calibrate: relations are shrunk towards 0, not towards what they have in common",
        CALIBRATION,
        "chosen[first:last], (common, strength), pool)",
        "chosen[first:last], (centre, strength), pool)",
        "tests/test_calibration.py::test_a_relation_is_held_at_what_all_have_in_common",
    ),
    Error(
        "calibrate: what relations have in common is shrunk towards 1",
        CALIBRATION,
        "queries, chosen, (centre, strength), pool)",
        "queries, chosen, (np.append(np.ones(width - 1), CEILING[0]), strength), pool)",
        "tests/test_calibration.py::test_a_relation_is_held_at_what_all_have_in_common",
    ),
    Error(
        "calibrate: p of a member is Z of sizes that are not less 1",
        COUNTING,
        "log_partition(x[others], rest, low - 1, high - 1)",
        "log_partition(x[others], rest, low, high)",
        "tests/test_calibration.py::test_the_gradient_by_differences",
    ),
    Error(
        "calibrate: the derivative by the ceiling without the odds",
        COUNTING,
        "probability(-logit) * (1 + np.exp(log_odds))",
        "probability(-logit)",
        "tests/test_calibration.py::test_the_gradient_by_differences",
    ),
    Error(
        "calibrate: the derivative by the ceiling without the odds (kernel)",
        "kernels.py",
        "other * (1 + math.exp(log_odds))",
        "other",
        "tests/test_calibration.py::test_the_kernel_is_the_definition",
    ),
    Error(
        "calibrate: Z' of sizes that are not less |V|",
        COUNTING,
        "lower - size, upper - size, outside)",
        "lower, upper, outside)",
        "tests/test_calibration.py::test_the_likelihood_by_enumeration",
    ),
    Error(
        "calibrate: Z' of sizes that are not less |V| (kernel)",
        "kernels.py",
        "thinned * size, thinned * left",
        "0, thinned * left",
        "tests/test_calibration.py::test_the_kernel_is_the_definition",
    ),
    Error(
        "calibrate: Z' of the odds of those that valid may have",
        COUNTING,
        "log_odds + math.log1p(-share), log_rest + math.log1p(-share)",
        "log_odds, log_rest",
        "tests/test_calibration.py::test_the_likelihood_by_enumeration",
    ),
    Error(
        "calibrate: v of a part is not that of what the others leave",
        CALIBRATION,
        "v / FOLDS / (1 - v * (FOLDS - 1) / FOLDS)",
        "v / FOLDS",
        "tests/test_calibration.py::test_each_fact_of_valid_is_asked_once_while_the_others_are_known",
    ),
    Error(
        "calibrate: what is asked is known, and the other parts are asked",
        CALIBRATION,
        "(part[places] != turn[query])",
        "(part[places] == turn[query])",
        "tests/test_calibration.py::test_each_fact_of_valid_is_asked_once_while_the_others_are_known",
    ),
    Error(
        "calibrate: pairs without an answer count once",
        CALIBRATION,
        "times = np.append(np.ones(len(asked)), times[others])",
        "times = np.ones(len(of))",
        "tests/test_calibration.py::test_each_fact_of_valid_is_asked_once_while_the_others_are_known",
    ),
    Error(
        "calibrate: the log sum is over what is known too",
        CALIBRATION,
        FREE + SUMS,
        SUMS + FREE,
        "tests/test_calibration.py::test_the_log_softmax_is_over_what_is_not_known",
    ),
    Error(
        "calibrate: known tails are not taken off the upper bound",
        CALIBRATION,
        "np.floor(limits[of, 1]) - counts",
        "np.floor(limits[of, 1])",
        "tests/test_calibration.py::test_each_fact_of_valid_is_asked_once_while_the_others_are_known",
    ),
    Error(
        "calibrate: the odds at the fit without what is known",
        COUNTING,
        'log_odds = log_odds + math.log1p(-query["known_share"])',
        "log_odds = log_odds + 0",
        "tests/test_calibration.py::test_the_kernel_is_the_definition",
    ),
    Error(
        "the odds at use without what is known",
        "cardkge_tools/answers/odds.py",
        "return of_train + np.log1p(-calibration.known_of(relations, numbered))",
        "return of_train",
        "tests/test_calibration.py::test_log_odds_have_a_ceiling_keep_the_order_and_can_be_inverted",
    ),
    Error(
        "calibrate: a tail that is full is a candidate",
        CALIBRATION,
        "FullTails(bounds, known.joined(KnownTails(valid, n, r)))",
        "FullTails(as_bounds(None, r), known)",
        SAME,
    ),
    Error("calibrate: a fact of valid fills (r, t) for itself", CALIBRATION, "less=1) > 0)", "less=0) > 0)", SAME),
    Error(
        "calibrate: a loop is no candidate, though loops are asked for",
        CALIBRATION,
        "irreflexive = without_loops(train, r) & (not how.loops)",
        "irreflexive = without_loops(train, r)",
        SAME,
    ),
    Error(
        "calibrate: the rest is lost where all draws fall on what is taken",
        CALIBRATION,
        "least[~fresh.any(1)] = lowest",
        "least[~fresh.any(1)] += 0",
        "tests/test_calibration.py::test_nothing_is_lost_where_all_draws_fall_on_what_is_taken",
    ),
    Error(
        "a tail that is full is in the log sum at use",
        "cardkge_tools/answers/decoding.py",
        "sums, best = log_sums_of(open_scores,",
        "sums, best = log_sums_of(open_to(scores, relations[:0], lists[:2], self.full),",
        BOTH_SIDES,
    ),
    Error(
        "--precision counts what has no room",
        "cardkge_tools/answers/decoding.py",
        "return order if precision is None else order[: threshold_for(p[order], precision)]",
        "return order if precision is None else order[p[order] >= np.sort(p)[-threshold_for(-np.sort(-p), precision)]]",
        "tests/test_measures.py::test_a_precision_is_that_of_what_is_accepted_in_the_end",
    ),
    Error(
        "sets: the rest has no say in the size of a set (kernel)",
        "kernels.py",
        "among_rest = members(order, p, q, rest,",
        "among_rest = members(order, p, q, 0.0,",
        "tests/test_calibration.py::test_the_kernel_is_the_definition",
    ),
    Error(
        "sets: the tilt is not taken back (kernel)",
        "kernels.py",
        "log_z += rest - tilt * end",
        "log_z += rest",
        "tests/test_calibration.py::test_five_thousand_candidates_and_extreme_odds",
    ),
    # evaluate --sets
    Error(
        "evaluate --sets: ties of AP are counted in favour",
        MEASURES,
        "return np.cumsum(hits), np.cumsum(hits + others), hits",
        "return np.cumsum(hits), np.cumsum(hits + others) - others, hits",
        "tests/test_measures.py::test_ties_of_average_precision_are_one_step",
    ),
    Error("evaluate --sets: ECE in 10 bins", MEASURES, "bins=15):", "bins=10):", SETS),
    Error("evaluate --sets: ECE of p >= 0.2", MEASURES, "likely = (p >= 0.1)", "likely = (p >= 0.2)", SETS),
    Error(
        "evaluate --sets: known facts of test count as missing",
        MEASURES,
        "facts, wanted = KnownTails(test, n, r).without(known), answerable(test)",
        "facts, wanted = KnownTails(test, n, r), answerable(test)",
        SETS,
    ),
    Error(
        "evaluate --sets --truth: facts of test that it lacks are false",
        MEASURES,
        "counted = here[row] & ~neither",
        "counted = here[row]",
        TRUTH,
    ),
    Error(
        "evaluate --sets --truth: empty answers count in every figure",
        MEASURES,
        "measured, wanted = true.count(heads, relations) > 0",
        "measured, wanted = true.count(heads, relations) >= 0",
        TRUTH,
    ),
    # bounds at use, and what is missing
    Error(
        "calibrate: the bounds that are given do not reach the fit",
        FACTS,
        "missing, bounds, threads, progress",
        "missing, None, threads, progress",
        "tests/test_conditions.py::test_fit_and_use_go_through_the_same_bounds",
    ),
    Error(
        "complete: s is that of valid whatever is known",
        FACTS,
        "calibrated_run(run, folder).knowing(known)",
        "calibrated_run(run, folder)",
        "tests/test_conditions.py::test_what_is_known_lowers_the_odds_of_the_rest",
    ),
    Error(
        "complete --completeness: without regard to bounds",
        "cardkge_tools/answers/odds.py",
        "chances *= within * weights",
        "chances *= weights",
        "tests/test_conditions.py::test_how_complete_answers_are",
    ),
    Error(
        "evaluate --sets: --precision cuts through a tie",
        "cardkge_tools/answers/decoding.py",
        "ends = np.append(p[1:] != p[:-1], True) if len(p)",
        "ends = np.ones(len(p), bool) if len(p)",
        "tests/test_measures.py::test_a_threshold_does_not_cut_through_a_tie",
    ),
    # bounds of both sides
    Error(
        "a tail that has as many heads as it may have is still an answer",
        "cardkge_tools/answers/decoding.py",
        "full = open_scores[row, ids] == -np.inf",
        "full = np.zeros(len(ids), bool)",
        BOTH_SIDES,
    ),
    Error(
        "predict --head accepts what better heads leave no room for",
        "cardkge_tools/answers/answers.py",
        "accepted[self._with_room(relation, head, decoded.ids[places])] = True",
        "accepted[decoded.ids[places]] = True",
        BOTH_SIDES,
    ),
    Error(
        "predict --tail accepts more heads than there is room for",
        "cardkge_tools/answers/answers.py",
        "set(best[: int(min(most, len(best)))])",
        "set(best)",
        BOTH_SIDES,
    ),
    Error(
        "evaluate --sets accepts without regard to bounds of the inverse",
        MEASURES,
        "kept = accepted(decoder, np.column_stack((heads[pair], relations[pair], tails)), p, how.precision)",
        'kept = np.argsort(-p, kind="stable")',
        BOTH_SIDES,
    ),
    # names, classify
    Error(
        "for_names keeps the ids of the other graph",
        "cardkge_tools/graph/bounds.py",
        "(place[self.entities[e]], kind) for e, kind",
        "(e, kind) for e, kind",
        "tests/test_by_value.py::test_bounds_of_classes_hold_for_the_same_names_in_another_graph",
    ),
    Error(
        "language tags have one part (RDF)",
        "cardkge_tools/graph/rdf.py",
        r"""_LITERAL = re.compile(r'("(?:[^"\\]|\\.)*"(?:@[^ ]+|""",
        r"""_LITERAL = re.compile(r'("(?:[^"\\]|\\.)*"(?:@[A-Za-z]+|""",
        "tests/test_by_value.py::test_language_tags_have_parts",
    ),
    Error(
        "language tags have one part (statements among triples)",
        "cardkge_tools/graph/graphs.py",
        r"(?:@[\w-]+|",
        r"(?:@\w+|",
        "tests/test_by_value.py::test_language_tags_have_parts",
    ),
    Error(
        "classify: log softmax over tails in the place of that over heads",
        CLASSIFICATION,
        "head_score, head_total = softmax_scores(model, facts, triples, 0).T",
        "head_score, head_total = softmax_scores(model, facts, triples, 1).T",
        "tests/test_by_value.py::test_features_of_the_model_by_value",
    ),
    Error(
        "classify: folds by triple",
        CLASSIFICATION,
        "fold = np.random.default_rng(0).permutation(triples[:, 0].max() + 1)[triples[:, 0]] % FOLDS",
        "fold = np.random.default_rng(0).permutation(len(triples)) % FOLDS",
        "tests/test_by_value.py::test_no_head_is_in_two_folds",
    ),
    Error(
        "classify: valid lowers the odds of what it may hold itself",
        CLASSIFICATION,
        'calibrated_run(run, folder).knowing("train")',
        "calibrated_run(run, folder)",
        "tests/test_classify.py::test_the_calibration_knows_train_alone",
    ),
    Error(
        "classify: relations are shrunk towards 0, not towards what they have in common",
        CLASSIFICATION,
        "labels[part], common, precision)",
        "labels[part], 0.0, precision)",
        "tests/test_classify.py::test_fit_gives_the_shares_of_two_groups",
    ),
    # conditioning
    Error(
        "conditioned: the bounds are left out of the check that a size has a weight",
        COUNTING,
        "    if not weights.any():",
        "    if False:",
        "tests/test_conditioning.py::test_weights_of_0_throughout_the_bounds_are_an_error",
    ),
    Error(
        "conditioned: a lower bound is one too low",
        COUNTING,
        "np.where((sizes >= lower) &",
        "np.where((sizes >= lower - 1) &",
        "tests/test_conditioning.py::test_three_candidates_with_the_mean_a_little_below_the_bound",
    ),
    Error(
        "condition_sets: holes within the bounds are filled",
        "kernels.py",
        "backward[j] = weights[min(j, len(weights) - 1)] * math.exp(",
        "backward[j] = max(weights[min(j, len(weights) - 1)], 0.1) * math.exp(",
        "tests/test_conditioning.py::test_a_hole_within_the_bounds",
    ),
    Error(
        "unseen tails are thinned as if valid could hold them (kernel)",
        "kernels.py",
        "math.log(drawn + unseen[at]) if",
        "math.log(drawn + unseen[at] * math.exp(by)) if",
        "tests/test_calibration.py::test_the_kernel_is_the_definition",
    ),
    Error(
        "names that only a lower bound asks for are accepted, guesses",
        "cardkge_tools/answers/decoding.py",
        "np.where(decoded.guesses, 0, room)",
        "np.where(decoded.guesses, room, room)",
        "tests/test_unseen.py::test_names_that_only_a_lower_bound_asks_for_are_guesses",
    ),
    Error(
        "import --number: of several numbers of a head the smallest holds",
        "cardkge_tools/graph/exchange.py",
        "np.lexsort((exact, values, heads))",
        "np.lexsort((exact, -values, heads))",
        "tests/test_numbers.py::test_of_several_numbers_the_largest_holds",
    ),
]


def verdict(error, folder):
    """What came of an error planted in the copy of the project in a folder: "caught", "MISSED", or what is wrong."""
    path = folder / error.file
    text = path.read_text(encoding="utf-8")
    if text.count(error.old) != 1:
        return f"TEXT FOUND {text.count(error.old)} TIMES"
    path.write_text(text.replace(error.old, error.new), encoding="utf-8")
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", error.test]
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    finally:
        path.write_text(text, encoding="utf-8")
    return {0: "MISSED", 1: "caught"}.get(found.returncode, f"PYTEST ENDED WITH {found.returncode}")


def main(words):
    chosen = [error for error in ERRORS if not words or any(word in error.what for word in words)]
    if not chosen:
        print("no error has one of these words in its description")
        return 1
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "project"
        shutil.copytree(ROOT, folder, ignore=WITHOUT)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *{e.test for e in chosen}]
        if subprocess.run(command, cwd=folder, capture_output=True).returncode:
            print("the tests fail without any planted error: mend that first")
            return 1
        for error in chosen:
            found = verdict(error, folder)
            wrong += found != "caught"
            print(f"{found:8} {error.what}\n         by {error.test}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} caught")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
