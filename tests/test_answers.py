"""One answer: `predict` by head, tail and triple, `complete` and `evaluate --sets` agree, and score a query once."""

import dataclasses
import itertools
import json
import math
import re
from collections import Counter

import numpy as np
import pytest
from conftest import invoke, ok, one_error, plain_calibration, usage_error, write_ring

import cardkge
from cardkge_tools.answers import answers as room
from cardkge_tools.answers import decoding
from cardkge_tools.answers.answers import Answers
from cardkge_tools.answers.decoding import KnownAndLoops
from cardkge_tools.answers.runs import save_calibration

PEOPLE, FIRMS, COEFFICIENTS, SHARE = 9, 4, (0.4, 1.1, 2.0), 0.4
N = PEOPLE + FIRMS
NAMES = [f"p{i}" for i in range(PEOPLE)] + [f"f{i}" for i in range(FIRMS)]


def write(folder, bounds):
    """People know each other in a ring and work at firms: f0 has 3 known heads, f1 two, f2 one, f3 none."""
    folder.mkdir()
    knows = [f"p{i}\tknows\tp{(i + 1) % PEOPLE}\n" for i in range(PEOPLE)]
    works = [f"p{i}\tworksAt\t{firm}\n" for i, firm in enumerate(("f0", "f0", "f1", "f2"))]
    (folder / "train.txt").write_text("".join([*knows, *works, "f3\tin\tp0\n"]))
    (folder / "valid.txt").write_text("p4\tworksAt\tf0\n")
    (folder / "test.txt").write_text("p5\tworksAt\tf1\np5\tknows\tp7\np8\tworksAt\tf0\np6\tworksAt\tf3\n")
    (folder / "bounds.tsv").write_text(bounds)
    return folder


@pytest.fixture
def make_run(tmp_path):
    """A function that saves a calibrated run with random parameters under these bounds."""

    def make(bounds, **settings):
        data = write(tmp_path / "data", bounds)
        settings = cardkge.Settings(data=str(data), bounds=str(data / "bounds.tsv"), dim=3, **settings)
        run = cardkge.new_run(settings, cardkge.load_dataset(data))
        rng = np.random.default_rng(5)
        for array in run.model.params.values():
            array[...] = rng.normal(0, 1.2, array.shape)
        run.calibration, run.epoch = plain_calibration(*np.tile(np.array(COEFFICIENTS)[:, None], 3), SHARE), 1
        run.history = [{"epoch": 1, "objective": 1.0, "loss": 1.0, "penalty": 0.0, "seconds": 1.0}]
        cardkge.save_run(run, tmp_path / "run")
        return tmp_path / "run"

    return make


def by_hand(run, data, known, upper, upper_heads):
    """{(h, t): p} and what is accepted, best first, of worksAt: by sums over all sets of at most two tails."""
    r, chances = run.relations.index("worksAt"), {}
    ids = {name: i for i, name in enumerate(run.entities)}
    facts = {tuple(fact[::2]) for fact in known.tolist() if fact[1] == r}
    full = {t for t in range(N) if sum(tail == t for _, tail in facts) >= upper_heads}
    a, b, c = COEFFICIENTS
    for h in range(N):
        scores = run.model.score([h] * N, [r] * N, range(N)).astype(float)
        tails = [t for t in range(N) if t != h and (h, t) not in facts and t not in full]
        of_all = math.log(sum(math.exp(scores[t]) for t in tails)) if tails else 0.0
        odds = {t: (1 - SHARE) * math.exp(a * scores[t] + b * (scores[t] - of_all) + c) for t in tails}
        room, total, inside = upper - sum(head == h for head, _ in facts), 0.0, Counter()
        for size in range(int(min(room, len(tails))) + 1):
            for chosen in itertools.combinations(tails, size):
                weight = math.prod(odds[t] for t in chosen)
                total += weight
                inside.update(dict.fromkeys(chosen, weight))
        chances |= {(h, t): inside[t] / total if total else 0.0 for t in range(N) if t != h and (h, t) not in facts}
    scope = {ids[f"p{i}"] for i in range(PEOPLE)}  # who knows somebody
    likely = sorted((f for f, p in chances.items() if p > 0.5 and f[0] in scope), key=lambda f: (-chances[f], f))
    kept, of_head, of_tail = [], Counter(h for h, _ in facts), Counter(t for _, t in facts)
    likely = [f for f in likely if sum(g[0] == f[0] for g in likely[: likely.index(f)]) < upper - of_head[f[0]]]
    for h, t in likely:
        if of_tail[t] < upper_heads:
            kept.append((h, t))
            of_tail[t] += 1
    return chances, kept, likely


@pytest.mark.parametrize("upper_heads", [3, 4, 5])
def test_bounds_of_both_sides_have_one_rule(make_run, upper_heads):
    """Given `worksAt 0 2` and `^worksAt 0 n`: p and what is accepted, from a computation that shares nothing."""
    folder = make_run(f"worksAt\t0\t2\n^worksAt\t0\t{upper_heads}\n")
    run, answers = cardkge.load_run(folder), Answers(folder)
    data, r = answers.dataset, run.relations.index("worksAt")
    chances, kept, likely = by_hand(run, data, data.known, 2, upper_heads)
    assert kept and (len(kept) < len(likely) or upper_heads == 5)  # some are turned away
    found = [line.split("\t") for line in ok("complete", folder, "--relation", "worksAt").stdout.splitlines()]
    ids = {name: i for i, name in enumerate(run.entities)}
    assert [(ids[h], ids[t]) for h, _, t, _ in found] == kept
    assert [float(line[3]) for line in found] == pytest.approx([chances[fact] for fact in kept], rel=2e-2)
    for h in range(N):
        answer = {each.entity: each for each in answers.tails(r, h).completions}
        new = {t: each for t, each in answer.items() if not each.known_in and t != h}
        assert {t: each.probability for t, each in new.items()} == pytest.approx(
            {t: p for (head, t), p in chances.items() if head == h}, rel=1e-5, abs=1e-12
        )
        accepted = {(h, t) for t, each in new.items() if each.accepted}
        if run.entities[h].startswith("p"):
            assert accepted == {fact for fact in kept if fact[0] == h}
        for t in list(answer)[::5]:
            triple = answers.triple(h, r, t).completion
            assert triple[:5] == answer[t][:5]
    for t in range(N):
        answer = answers.heads(r, t)
        accepted = {(each.entity, t) for each in answer.completions if each.accepted and not each.known_in}
        assert {fact for fact in accepted if run.entities[fact[0]].startswith("p")} == {f for f in kept if f[1] == t}
        assert answer.count.known + sum(fact[1] == t for fact in accepted) <= max(upper_heads, answer.count.known)
        assert answer.count.expected <= max(upper_heads, answer.count.known) + 1e-9
    chances, kept, likely = by_hand(run, data, np.concatenate((data.train, data.valid)), 2, upper_heads)
    test = {tuple(fact) for fact in data.test.tolist()}
    measures = json.loads(ok("evaluate", folder, "--sets", "--json", "-").stdout)
    lines = ok("complete", folder, "--known", "valid").stdout.splitlines()
    assert measures["accepted"] == len(lines)
    names = [line.split("\t")[:3] for line in lines]
    triples = [(ids[h], run.relations.index(name), ids[t]) for h, name, t in names]
    assert [fact[::2] for fact in triples if fact[1] == r] == kept
    assert measures["precision"] == pytest.approx(np.mean([fact in test for fact in triples]))


def test_a_tail_that_is_full_is_no_answer_anywhere(make_run):
    """f0 has four known heads, and may have three: no new one, by whatever command."""
    folder = make_run("^worksAt\t0\t3\n")
    assert "\tf0\t" not in ok("complete", folder, "--min-probability", 0, "--relation", "worksAt").stdout

    def predicted(*query):
        return json.loads(ok("predict", folder, "--relation", "worksAt", *query, "--top", 99, "--json", "-").stdout)

    by_tail = predicted("--tail", "f0")
    assert by_tail["heads"] == {"known": 4, "expected": 4.0, "bounds": [0, 3]}
    assert {(each["probability"], each["accepted"]) for each in by_tail["answers"] if not each["known"]} == {(0, False)}
    for head in ("p6", "p7"):
        (row,) = (each for each in predicted("--head", head)["answers"] if each["entity"] == "f0")
        one = predicted("--head", head, "--tail", "f0")
        assert (row["probability"], row["accepted"]) == (one["probability"], one["accepted"]) == (0, False)
    measures = json.loads(ok("evaluate", folder, "--sets", "--json", "-").stdout)
    assert measures["log_loss"] > math.log(1e15) / 4  # p8 works at f0 in test, which is full by train and valid


def test_a_lower_bound_is_met_by_tails_that_have_room(make_run):
    """Exactly one employer, and firms with one employee are full: p8 works for a person, or for f2 or f3, in the ratio
    of their odds."""
    answers = Answers(make_run("worksAt\t1\t1\n^worksAt\t0\t1\n"))
    ids = {name: i for i, name in enumerate(answers.run.entities)}
    r, h = answers.run.relations.index("worksAt"), np.array([ids["p7"]])
    scores = answers.model.score_tails(h, [r])
    decoded = answers.exact.decode(h, np.array([r]), scores)
    full = [ids[f"f{i}"] for i in range(4)]
    free = [t for t in range(N) if t not in full and t != h[0]]
    odds = np.exp((COEFFICIENTS[0] + COEFFICIENTS[1]) * scores[0].astype(float))
    expected = dict.fromkeys(full, 0.0) | {t: odds[t] / odds[free].sum() for t in free}
    assert dict(zip(decoded.ids.tolist(), decoded.p.tolist())) == pytest.approx(expected, rel=1e-5)
    assert decoded.expected()[0] == pytest.approx(1) and not decoded.contradicted.any()


def test_no_tail_with_room_contradicts_a_lower_bound(make_run):
    folder = make_run("worksAt\t1\t1\n^worksAt\t0\t0\n")
    answers = Answers(folder)
    r, h = answers.run.relations.index("worksAt"), np.array([answers.run.entities.index("p7")])
    decoded = answers.decoder.decode(h, np.array([r]), answers.model.score_tails(h, [r]))
    assert decoded.contradicted.all() and not decoded.p.any()
    result = ok("complete", folder, "--relation", "worksAt", "--min-probability", 0)
    assert not result.stdout and "1 (h, r) contradict their bounds" in result.stderr


def test_an_unmet_number_is_no_contradiction_where_tails_may_be_unseen(make_run):
    """p6 has 30 employers, and 13 entities are there: a contradiction, or unseen tails and names that are guesses."""
    folder = make_run("worksAt\t30\t30\t\tp6\nworksAt\t90\t90\t\tp7\n")
    query = "predict", folder, "--relation", "worksAt"

    def said(head):
        report = json.loads(ok(*query, "--head", head, "--top", 99, "--json", "-").stdout)
        known = sum(each["known"] is not None for each in report["answers"])
        line = "contradicts this bound (too few can be answered)" in ok(*query, "--head", head).stdout
        return report["contradicted"], line, report["guesses"], report["expected"] == known

    def of_heads():
        report = json.loads(ok(*query, "--tail", "f3", "--top", 99, "--json", "-").stdout)
        names, keys = [each["entity"] for each in report["answers"]], ("contradicted", "guesses")
        return [[name for name, yes in zip(names, report[key], strict=True) if yes] for key in keys]

    assert said("p6") == said("p7") == (True, True, False, True) and sorted(of_heads()[0]) == ["p6", "p7"]
    run = cardkge.load_run(folder)
    unseen = np.where(np.array(run.relations) == "worksAt", 2.0, 0.0)
    run.calibration = dataclasses.replace(run.calibration, unseen=unseen)
    save_calibration(run, folder)
    assert said("p6") == (False, False, True, False) and said("p7") == (True, True, False, True)
    assert of_heads() == [["p7"], ["p6"]]
    assert said("p8") == (False, False, False, False)
    queries = folder.parent / "queries-of-guesses.tsv"
    queries.write_text("p6\tworksAt\np8\tworksAt\n")
    assert "warning: 1 query: a lower bound asks for more" in ok("predict", folder, "--queries", queries).stderr


def test_each_query_is_scored_once(make_run, monkeypatch):
    folder = make_run("worksAt\t0\t2\n^worksAt\t0\t5\n")
    answers, scored = Answers(folder), Counter()
    r, knows = answers.run.relations.index("worksAt"), answers.run.relations.index("knows")

    def exact(model, relation, head=None, tail=None, _function=room.exact_scores):
        scored[relation, head, tail] += 1
        return _function(model, relation, head, tail)

    def blocks(model, queries, *arguments, _function=room.scored_blocks, **options):
        asked = zip(queries.relations.tolist(), queries.ids.tolist(), strict=True)
        scored.update((relation, head, None) for relation, head in asked)
        return _function(model, queries, *arguments, **options)

    def refused(*arguments, **options):
        raise AssertionError("scored in another way")

    monkeypatch.setattr(room, "exact_scores", exact)
    for module in (room, decoding):
        monkeypatch.setattr(module, "scored_blocks", blocks)
    for name in ("score", "score_tails", "score_heads"):
        monkeypatch.setattr(cardkge.Model, name, refused)
    list(answers.tails(knows, 2).completions)
    assert scored == {(knows, 2, None): 1}
    scored.clear()
    answers.triple(2, knows, 4)
    assert scored == {(knows, 2, None): 1, (knows, None, 4): 1}
    scored.clear()
    list(answers.heads(knows, 4).completions)
    assert scored == {(knows, None, 4): 1} | {(knows, h, None): 1 for h in range(N)}
    scored.clear()
    list(answers.heads(r, 2).completions)  # conditioned on the number of heads
    assert scored == {(r, None, 2): 1} | {(r, h, None): 1 for h in range(N)}
    scored.clear()
    for _ in range(3):
        for h in range(N):
            list(answers.tails(r, h).completions)
    in_scope = {(r, h, None) for h in range(N) if NAMES[0][0] == answers.run.entities[h][0]}
    # what `complete` finds is looked up in its one pass over the heads in scope
    assert all(count == 3 + (query in in_scope) for query, count in scored.items()) and len(scored) == N


def test_heads_are_decoded_as_far_as_they_are_shown(make_run, monkeypatch):
    folder = make_run("worksAt\t0\t2\n")
    monkeypatch.setattr(room, "CHUNK", 4)
    answers, rows = Answers(folder), []

    def blocks(model, queries, *arguments, _function=room.scored_blocks, **options):
        rows.extend(queries.ids.tolist())
        return _function(model, queries, *arguments, **options)

    monkeypatch.setattr(room, "scored_blocks", blocks)
    shown = list(itertools.islice(answers.heads(answers.run.relations.index("worksAt"), 3).completions, 6))
    assert rows[:6] == [each.entity for each in shown] and len(rows) == 8
    for each in shown:  # of each the count of its own query
        count = answers.tails(answers.run.relations.index("worksAt"), each.entity).count
        assert each.count.known == count.known and each.count.expected == pytest.approx(count.expected, rel=2e-2)


def test_queries_of_a_file_have_one_index(make_run, monkeypatch, tmp_path):
    folder, made = make_run("worksAt\t0\t2\n"), []

    def counted(self, *arguments, _function=room.KnownTails.__init__):
        made.append(1)
        _function(self, *arguments)

    monkeypatch.setattr(room.KnownTails, "__init__", counted)
    numbers = []
    for lines in (1, 7):
        (tmp_path / "queries").write_text("p1\tworksAt\n" * lines)
        made.clear()
        assert len(ok("predict", folder, "--queries", tmp_path / "queries").stdout.splitlines()) == 10 * lines
        numbers.append(len(made))
    assert numbers[0] == numbers[1] == 4


def test_ranks_of_a_triple_are_those_of_evaluate(make_run):
    folder = make_run("worksAt\t0\t2\n")
    answers = Answers(folder)
    ranks = cardkge.rank_triples(answers.model, answers.dataset.test, answers.dataset.known)
    for i, (h, r, t) in enumerate(answers.dataset.test.tolist()):
        found = answers.triple(h, r, t).ranks
        for setting in ("raw", "filtered"):
            assert [found[setting]["head"], found[setting]["tail"]] == ranks[setting][i].tolist()
    assert room.rank(np.array([1.0, 3.0, 3.0, 3.0, 5.0]), 2, {4: "train", 1: "valid"}) == 1.5


def test_what_is_known_of_heads_and_tails():
    rng = np.random.default_rng(1)
    triples = np.column_stack([rng.integers(n, size=60) for n in (7, 3, 7)])
    known, facts = cardkge.KnownTails(triples, 7, 3), {tuple(row) for row in triples.tolist()}
    pairs = np.array(list(itertools.product(range(7), range(3))))
    for function, count, arguments, key in (
        (known.of, known.count, (pairs[:, 0], pairs[:, 1]), lambda x, r, y: (x, r, y)),
        (known.heads_of, known.count_heads, (pairs[:, 1], pairs[:, 0]), lambda x, r, y: (y, r, x)),
    ):
        starts, ids = function(*arguments)
        for i, (x, r) in enumerate(pairs.tolist()):
            expected = [y for y in range(7) if key(x, r, y) in facts]
            assert ids[starts[i] : starts[i + 1]].tolist() == expected and count(*arguments)[i] == len(expected)
    everything = np.array(list(itertools.product(range(7), range(3), range(7))))
    assert known.has(*everything.T).tolist() == [tuple(row) in facts for row in everything.tolist()]
    irreflexive = np.array([True, False, True])
    excluded = KnownAndLoops(known, irreflexive)
    starts, ids = excluded.of(pairs[:, 0], pairs[:, 1])
    for i, (h, r) in enumerate(pairs.tolist()):
        expected = [t for t in range(7) if (h, r, t) in facts or (h == t and irreflexive[r])]
        assert ids[starts[i] : starts[i + 1]].tolist() == expected
        assert [t for t in range(7) if excluded.has(*np.array([[h, r, t]]).T)[0]] == expected


# --- what is said


@pytest.fixture(scope="module")
def softmax(tmp_path_factory):
    folder = tmp_path_factory.mktemp("softmax")
    ring = write_ring(folder / "ring")
    ok("train", "--data", ring, "--loss", "softmax", "--dim", 4, "--epochs", 2, "--out", folder / "run")
    return folder


def test_x_is_shown_under_softmax_only_where_asked_for(softmax):
    query = "predict", softmax / "run", "--relation", "r0"
    for given in (("--head", "e1"), ("--tail", "e1"), ("--head", "e1", "--tail", "e2")):
        shown, with_x = ok(*query, *given).stdout, ok(*query, *given, "--x").stdout
        assert not re.search("X_hr|X = ", shown) and "[0, 1]" in shown
        assert re.search("X_hr|X = ", with_x)
        for asked in ((), ("--x",)):
            report = json.loads(ok(*query, *given, *asked, "--json", "-").stdout)
            assert bool({"x", "x_hr", "x_rt"} & report.keys()) == bool(asked)
    run = cardkge.load_run(softmax / "run")
    h, r = run.entities.index("e1"), run.relations.index("r0")
    report = json.loads(ok(*query, "--head", "e1", "--x", "--json", "-").stdout)
    assert report["x"] == pytest.approx(cardkge.cardinality_sums(run.best_model(), r, [h]).tolist(), rel=1e-5)
    assert "is for one query" in usage_error(invoke("predict", softmax / "run", "--queries", __file__, "--x"))


def test_softmax_without_the_data_has_no_probability(softmax, tmp_path):
    """An error that says why and what to do; `--data` is the remedy."""
    moved = (softmax / "ring").rename(tmp_path / "moved")
    try:
        for query in (("--head", "e1"), ("--tail", "e1"), ("--head", "e1", "--tail", "e2")):
            line = one_error(invoke("predict", softmax / "run", *query, "--relation", "r0"))
            assert "--data says where" in line and ("sigma(score) means nothing" in line or len(query) == 4)
        ok("predict", softmax / "run", "--head", "e1", "--relation", "r0", "--data", moved)
    finally:
        moved.rename(softmax / "ring")


def test_names_in_quotes_and_blank_nodes_in_new_facts(tmp_path):
    """A head is an IRI always, and so is its name where it is a tail; a tail that is a literal stays one."""
    pytest.importorskip("pyoxigraph")
    folder = tmp_path / "graph"
    folder.mkdir()
    names = ['"Smith, John"', "_:b1", "ann", "bob", "eve", "tom"]
    lines = [f"{name}\tknows\t{names[i - 1]}\n" for i, name in enumerate(names)]
    (folder / "train.txt").write_text("".join([*lines, 'ann\tage\t"7"\nbob\tage\t"7"\n']))
    (folder / "valid.txt").write_text("eve\tknows\tann\n")
    (folder / "test.txt").write_text("tom\tknows\tann\n")
    result = ok("train", "--data", folder, "--dim", 2, "--epochs", 1, "--out", tmp_path / "run")
    assert "calibrated on 1 new fact of valid: p orders answers well" in result.stderr
    result = ok("complete", tmp_path / "run", "--min-probability", 0, "--out", tmp_path / "new.nt")
    facts = [line.split(" ", 2) for line in (tmp_path / "new.nt").read_text().splitlines()]
    john = "<urn:cardkge:%22Smith,%20John%22>"
    node = "<urn:cardkge:_:b1>"
    assert {fact[0] for fact in facts} >= {john, node} and f"{john} ." in {fact[2] for fact in facts}
    assert '"7" .' in {fact[2] for fact in facts} and not any(fact[0].startswith('"') for fact in facts)
    blank = sum(node in (fact[0], fact[2].removesuffix(" .")) for fact in facts)
    assert f"{blank:,} of the new facts are about blank nodes" in result.stderr and 0 < blank < len(facts)
    assert "blank nodes" not in ok("complete", tmp_path / "run", "--min-probability", 0).stderr
    ok("import", tmp_path / "new.nt", "--out", tmp_path / "back")
    assert re.search(r"(?m)^\S*Smith,\S* ?\S*\tknows\t_:b1$", (tmp_path / "back" / "triples.tsv").read_text())


def test_valid_that_says_nothing_new(tmp_path):
    ring = write_ring(tmp_path / "ring")
    train = (ring / "train.txt").read_text()
    (ring / "valid.txt").write_text("".join(train.splitlines(keepends=True)[:3]))
    result = ok("train", "--data", ring, "--dim", 2, "--epochs", 1, "--out", tmp_path / "run")
    assert "the facts of valid (3) all stand in train too" in result.stderr
    line = one_error(invoke("calibrate", tmp_path / "run"))
    assert "the facts of valid (3) all stand in train too" in line and "hold out others" in line


def test_hits_of_few_candidates_are_said(tmp_path, make_run):
    folder = make_run("worksAt\t0\t2\n")
    assert "any model has 100 %" not in ok("evaluate", folder).stdout  # of 13
    few = write_ring(tmp_path / "few", n=5)
    said = "with no more than 5 candidates any model has 100 % for hits@5, hits@10"
    assert said in ok("train", "--data", few, "--dim", 2, "--epochs", 1, "--out", tmp_path / "two").stdout
    assert said in ok("evaluate", tmp_path / "two").stdout
