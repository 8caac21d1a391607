"""Numbers of single heads on real data: `python bench/wikicount.py FOLDER` prints the tables of docs/REAL.md.

FOLDER has WD50K (train.txt, valid.txt, test.txt), complete-sets.tsv (head, relation, number of true tails, those that
are entities of the graph, number of the others) and numbers.tsv (head, relation, number, `exact` or `at least`). --run
is trained where it is missing. It is calibrated through several bounds, each kept in a folder beside RUN, and used
again.

The heads of complete-sets form two halves: the numbers of one are given (*given*), those of the other are not. All
settings are fitted on the same (h, r), so that their candidates are found once; they are kept there too."""

import argparse
import collections
import dataclasses
import os
import shutil
import sys
from pathlib import Path
from unittest import mock

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import numpy as np  # noqa: E402
from tabulate import tabulate  # noqa: E402

import cardkge  # noqa: E402
from cardkge_tools.answers import calibration as fitting  # noqa: E402
from cardkge_tools.answers.decoding import KnownTails, complete  # noqa: E402
from cardkge_tools.answers.facts import Fitting, calibrate_run, fact_decoder, run_bounds  # noqa: E402
from cardkge_tools.answers.measures import Truth, evaluate_sets, read_truth  # noqa: E402
from cardkge_tools.answers.missing import Missing  # noqa: E402
from cardkge_tools.answers.opening import open_run  # noqa: E402
from cardkge_tools.graph.bound_files import maxima_as_bounds, significant_maxima, write_bounds_file  # noqa: E402
from cardkge_tools.graph.bounds import Bound, GraphBounds  # noqa: E402

TRAINING = "--loss softmax --epochs 8 --batch-size 512 --validate-every 4 --no-calibrate"
SETTINGS = {
    "none": "no bounds",
    "mined": "mined: what counts teach",
    "maxima": "significant maxima",
    "numbers": "true numbers of half",
    "closed": "the same, no unseen tails",
    "permuted": "the same, permuted",
}
RULES = {"p > 0.5": (0.5, False), "p > 0.2": (0.2, False), "p > 0.5, guesses too": (0.5, True)}


@dataclasses.dataclass(frozen=True, eq=False)
class Sets:
    """The lines of complete-sets: heads, relations, number of tails, of these in the graph (n,); truth: a Truth of all;
    given (n,) bool: the half whose numbers are given. counted: (head, relation, number, exact), ids, of
    numbers.tsv."""

    heads: np.ndarray
    relations: np.ndarray
    number: np.ndarray
    inside: np.ndarray
    truth: Truth
    given: np.ndarray
    counted: list

    def half(self, chosen):
        """The Truth of the chosen (n,) bool."""
        pairs = set(zip(self.heads[chosen].tolist(), self.relations[chosen].tolist(), strict=True))
        kept = [(h, r) in pairs for h, r, _ in self.truth.triples.tolist()]
        return Truth(self.heads[chosen], self.relations[chosen], self.truth.triples[kept])


def read_sets(folder, run, seed):
    """The Sets of a folder, with the ids of a run; half of the distinct heads are drawn."""
    truth, note = read_truth(folder / "complete-sets.tsv", run)
    assert note is None, note
    ids = [{name: i for i, name in enumerate(names)} for names in (run.entities, run.relations)]
    rows = (line.split("\t") for line in (folder / "complete-sets.tsv").read_text().splitlines())
    numbers = {(ids[0][row[0]], ids[1][row[1]]): int(row[2]) for row in rows}
    inside = collections.Counter((h, r) for h, r, _ in truth.triples.tolist())
    pairs = list(zip(truth.heads.tolist(), truth.relations.tolist(), strict=True))
    heads = np.unique(truth.heads)
    drawn = np.random.default_rng(seed).permutation(heads)[: len(heads) // 2]
    counted = []
    for line in (folder / "numbers.tsv").read_text().splitlines():
        head, relation, number, kind = line.split("\t")[:4]
        if head in ids[0]:
            counted.append((ids[0][head], ids[1][relation], int(number), kind == "exact"))
    columns = (np.array([of[pair] for pair in pairs]) for of in (numbers, inside))
    return Sets(truth.heads, truth.relations, *columns, truth, np.isin(truth.heads, drawn), counted)


def bounds_of(setting, sets, run, train, seed):
    """A list of Bound of a setting that is not "none" or "mined"."""
    if setting == "maxima":
        maxima = significant_maxima(train, len(run.entities), len(run.relations))
        return [bound for bound in maxima_as_bounds(maxima, run.relations) if not bound.inverse]
    heads, relations, number = (x[sets.given] for x in (sets.heads, sets.relations, sets.number))
    exact = np.array([row[:3] for row in sets.counted if row[3]])
    heads, relations, number = (np.append(x, exact[:, i]) for i, x in enumerate((heads, relations, number)))
    if setting == "permuted":
        rng = np.random.default_rng([seed, 1])
        for r in np.unique(relations):
            number[relations == r] = rng.permutation(number[relations == r])
    rows = zip(heads.tolist(), relations.tolist(), number.tolist(), strict=True)
    return [Bound(run.relations[r], n, n, subject=run.entities[h]) for h, r, n in rows]


def calibrated(setting, options, sets, same):
    """(run, dataset) of a setting, calibrated; `same` wraps the part that the settings share."""
    drawn = setting not in ("none", "mined", "maxima")
    folder = Path(f"{options.run}-{setting}" + f"-{options.seed}" * drawn)
    if not folder.exists():
        shutil.copytree(options.run, folder)
    run, dataset = open_run(folder, str(options.folder))
    if run.calibration is not None:
        return run, dataset
    bounds = setting
    if setting not in ("none", "mined"):
        bounds = str(folder / "bounds-of-setting.tsv")
        write_bounds_file(bounds, bounds_of(setting, sets, run, dataset.train, options.seed))
    closed = lambda self, *_: np.zeros(len(self.share))  # noqa: E731
    before = closed if setting == "closed" else Missing.unseen_before
    with same(), mock.patch.object(Missing, "unseen_before", before):
        missing = calibrate_run(run, dataset, folder, options.threads, Fitting(bounds), quiet=True)
    for note in missing.notes:
        print(f"  {setting}: {note}", file=sys.stderr)
    return run, dataset


def sharing(options, sets, run, train):
    """A function that makes a context in which all settings are fitted on the (h, r) of the numbers."""
    file = Path(f"{options.run}-candidates-{options.seed}.npz")
    pairs_of, look = fitting._fitting_pairs, fitting._candidates
    numbers = bounds_of("numbers", sets, run, train, options.seed)
    strata = GraphBounds(numbers, run.relations, None, run.entities)

    def candidates(*arguments):
        heads, relations = arguments[2]
        if file.exists():
            with np.load(file) as kept:
                if np.array_equal(kept["heads"], heads) and np.array_equal(kept["relations"], relations):
                    return fitting.Candidates(*(kept[f.name] for f in dataclasses.fields(fitting.Candidates)))
        found = look(*arguments)
        np.savez(file, heads=heads, relations=relations, **vars(found))
        return found

    def same():
        pairs = lambda *arguments: pairs_of(*arguments[:4], strata, arguments[5])  # noqa: E731
        return mock.patch.multiple(fitting, _fitting_pairs=pairs, _candidates=candidates)

    return same


def percent(value):
    return "-" if value is None else f"{100 * value:.1f}"


def answers_table(sets, run, dataset, threads):
    """Rows of (a), of both halves: AP, and by each rule the numbers accepted, promised and kept, recall, and the number
    accepted for (h, r) without a true tail; how many (h, r) have guesses alone."""
    rows, bounds = [], run_bounds(run)
    true, unsure = (index_of(run, triples) for triples in (sets.truth.triples, dataset.test))
    for name, chosen in (("given", sets.given), ("other", ~sets.given)):
        found, _ = evaluate_sets(
            run.best_model(), run.calibration, bounds, dataset, threads, truth=sets.half(chosen), types=run.types
        )
        row, guesses = [name, percent(found["ap"])], 0
        empty = set(zip(*(x[chosen & (sets.number == 0)].tolist() for x in (sets.heads, sets.relations)), strict=True))
        for least, with_guesses in RULES.values():
            decoder = fact_decoder(run, dataset, options_folder(run), "valid", bounds)
            decoder.with_guesses = with_guesses
            triples, p, left_out = complete(decoder, sets.heads[chosen], sets.relations[chosen], least)
            right = true.has(*triples.T)
            counted = right | ~unsure.has(*triples.T)
            triples, p, right = triples[counted], p[counted], right[counted]
            to_empty = sum((h, r) in empty for h, r, _ in triples.tolist())
            row += [len(p), f"{p.sum():.1f}", right.sum(), percent(right.sum() / found["facts"]), to_empty]
            guesses = max(guesses, int(left_out[1]))
        rows.append([*row, guesses])
    return rows


def index_of(run, triples):
    """KnownTails of triples of a run's graph."""
    return KnownTails(triples, len(run.entities), len(run.relations))


def options_folder(run):
    """The folder that a message about a run would name."""
    return "RUN"


def decoded_counts(run, dataset, heads, relations, threads):
    """(known, expected, P(no further)) (n,) of (h, r), all splits known."""
    decoder, blocks = fact_decoder(run, dataset, options_folder(run), "all", run_bounds(run)), {}
    decoder.with_none = True
    order = np.lexsort((heads, relations))

    def consume(first, last, decoded):
        blocks[first] = decoded.known, decoded.expected(), decoded.none

    decoder.run(heads[order], relations[order], threads, consume)
    columns = [np.concatenate([blocks[first][i] for first in sorted(blocks)]) for i in range(3)]
    return [column[np.argsort(order)] for column in columns]


def counts_table(runs, sets, threads):
    """Rows of (b): mean absolute errors and biases against the true number inside, of the half whose numbers are not
    given, and of the other, on which the means are fitted."""
    learn, rows = sets.given, []
    run, dataset = runs["none"]
    known = index_of(run, dataset.known).count(sets.heads, sets.relations)
    by_relation, by_known = collections.defaultdict(list), collections.defaultdict(list)
    for r, k, n in zip(sets.relations[learn].tolist(), known[learn].tolist(), sets.inside[learn].tolist(), strict=True):
        by_relation[r].append(n)
        by_known[r, min(k, 3)].append(n)
    everyone = np.mean(sets.inside[learn])
    mean = [np.mean(by_relation.get(r, [everyone])) for r in sets.relations.tolist()]
    given = [
        np.mean(by_known.get((r, min(k, 3)), [m]))
        for r, k, m in zip(sets.relations.tolist(), known.tolist(), mean, strict=True)
    ]
    guesses = {"known tails alone": known, "mean of the relation": mean, "mean given the known": given}
    for name, found in runs.items():
        guesses[f"expected: {SETTINGS[name]}"] = decoded_counts(*found, sets.heads, sets.relations, threads)[1]
    for name, guess in guesses.items():
        error = np.asarray(guess, float) - sets.inside
        rows.append([name])
        for half in (~learn, learn):
            rows[-1] += [f"{np.abs(error[half]).mean():.2f}", f"{error[half].mean():+.2f}"]
    return rows


def numbers_table(run, dataset, sets, threads):
    """Rows of (b): for the relations of numbers.tsv the sums of numbers, of known tails and of expected tails."""
    rows, counted = [], np.array([row[:3] for row in sets.counted])
    for r in np.unique(counted[:, 1]).tolist():
        heads, number = counted[counted[:, 1] == r][:, [0, 2]].T
        heads, first = np.unique(heads, return_index=True)
        number = number[first]
        known, expected, _ = decoded_counts(run, dataset, heads, np.full(len(heads), r), threads)
        short = np.mean(expected < number - 0.5)
        rows.append([run.relations[r], len(heads), number.sum(), known.sum(), f"{expected.sum():.0f}", percent(short)])
    return rows


def complete_table(runs, sets, threads):
    """Rows of (c): count, precision, recall and F1 of the claim "nothing is missing in the graph", for the half not
    given and the other."""
    run, dataset = runs["none"]
    index = index_of(run, dataset.known)
    recorded = index.has(*sets.truth.triples.T)
    lacking = collections.Counter((h, r) for h, r, _ in sets.truth.triples[~recorded].tolist())
    pairs = list(zip(sets.heads.tolist(), sets.relations.tolist(), strict=True))
    is_complete, known = np.array([not lacking[pair] for pair in pairs]), index.count(sets.heads, sets.relations)
    times = {r: np.bincount(index_counts(index, r)) for r in np.unique(sets.relations).tolist()}
    usual = np.array([np.argmax(times[r]) for r in sets.relations.tolist()])
    says = {"as many as is most frequent": known >= usual}
    says |= {f"card_{k}: {k} or more": known >= k for k in range(4)}
    for name, found in runs.items():
        none = decoded_counts(*found, sets.heads, sets.relations, threads)[2]
        says[f"P > 0.5: {SETTINGS[name]}"] = none > 0.5
    rows = []
    for name, said in says.items():
        rows.append([name])
        for half in (~sets.given, sets.given):
            both, n, true = np.count_nonzero((said & is_complete)[half]), said[half].sum(), is_complete[half].sum()
            rows[-1] += [n, percent(both / max(n, 1)), percent(both / true), percent(2 * both / (n + true))]
    return rows, [int(is_complete[half].sum()) for half in (~sets.given, sets.given)]


def index_counts(index, relation):
    """How many tails each head of a relation has, heads without tails left out."""
    n = index.n_entities
    keys = index.keys[index.keys // n // n == relation]
    return np.unique(keys // n, return_counts=True)[1]


def main(arguments=None):
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--run", default="runs/wd50k")
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    if not Path(options.run).exists():
        from click.testing import CliRunner

        from cli import main as cardkge_command

        words = ["train", "--data", str(options.folder), *TRAINING.split(), "--out", options.run]
        assert CliRunner().invoke(cardkge_command, words).exit_code == 0, words
    run, dataset = open_run(options.run, str(options.folder))
    sets = read_sets(options.folder, run, options.seed)
    same, runs, answers = sharing(options, sets, run, dataset.train), {}, []
    for setting in options.settings.split(","):
        runs[setting] = calibrated(setting, options, sets, same)
        rows = answers_table(sets, *runs[setting], options.threads)
        answers += [[SETTINGS[setting], *row] for row in rows]
        print(tabulate(answers[-2:]), file=sys.stderr, flush=True)
    print(f"{len(sets.heads)} (h, r), {np.count_nonzero(sets.given)} of them given\n")
    names = ["bounds", "half", "AP"]
    names += [f"{rule}: {what}" for rule in RULES for what in ("n", "promised", "kept", "recall %", "to empty")]
    print(tabulate(answers, [*names, "(h, r) of guesses"], "github"), end="\n\n")
    print(
        tabulate(
            counts_table(runs, sets, options.threads),
            ["count", "other: error", "bias", "given: error", "bias"],
            "github",
        ),
        end="\n\n",
    )
    names = ["relation", "heads", "number", "known", "expected", "below by more than 0.5 %"]
    print(tabulate(numbers_table(*runs["none"], sets, options.threads), names, "github"), end="\n\n")
    rows, true = complete_table(runs, sets, options.threads)
    names = [f"{half}: {what}" for half in ("other", "given") for what in ("n", "precision", "recall", "F1")]
    print(tabulate(rows, [f"says complete (that are {true[0]} and {true[1]})", *names], "github"))


if __name__ == "__main__":
    try:
        main()
    except cardkge.CardkgeError as error:
        sys.exit(f"error: {error}")
