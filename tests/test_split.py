"""`split`: every name stays in train, twins stay together; and what a split gives away."""

import numpy as np
import pytest
from conftest import invoke, ok, one_error, snapshot

import cardkge
from cardkge import CardkgeError
from cardkge_tools import SPLITS
from cardkge_tools.graph.splitting import (
    Related,
    groups_of,
    leaks,
    related_relations,
    split_folder,
    split_triples,
    twins,
)


def graph(seed=0, people=60, facts=900):
    """0 knows (symmetric), 1 parent and 2 child (inverse), 3 likes and 4 loves (near-duplicate), 5 other."""
    rng = np.random.default_rng(seed)
    triples = set()
    while len(triples) < facts:
        h, t = rng.integers(people, size=2).tolist()
        if h == t:
            continue
        kind = rng.integers(4)
        triples |= {0: {(h, 0, t), (t, 0, h)}, 1: {(h, 1, t), (t, 2, h)}, 2: {(h, 3, t), (h, 4, t)}}.get(
            kind, {(h, 5, t)}
        )
    return np.array(sorted(triples), np.int32)[rng.permutation(len(triples))]


def dataset(triples, parts, n_relations=6):
    entities, relations = [str(e) for e in range(triples[:, ::2].max() + 1)], [str(r) for r in range(n_relations)]
    return cardkge.Dataset("x", None, entities, relations, *(triples[parts == part] for part in range(3)))


def test_twins_by_hand():
    triples = np.array([[0, 0, 1], [1, 0, 0], [2, 1, 2], [0, 1, 1], [3, 1, 0]])
    inverse = sorted(zip(*(part.tolist() for part in twins(triples, triples, 4, True))))
    assert inverse == [(0, 1), (1, 0), (1, 3), (3, 1)]  # the loop (2, 1, 2) is nobody's twin
    same = sorted(zip(*(part.tolist() for part in twins(triples, triples, 4, False))))
    assert same == [(0, 3), (3, 0)]


def test_related_relations_by_hand():
    knows = [(0, 0, 1), (1, 0, 0), (2, 0, 3)]  # two of three are answered
    parent, child = [(0, 1, 2), (0, 1, 3), (1, 1, 3)], [(2, 2, 0), (3, 2, 0)]
    triples = np.array([*knows, *parent, *child, (4, 0, 4)])
    assert related_relations(triples, 5, 3) == [
        Related(0, 0, True, 2, 2 / 3, 2 / 3),
        Related(1, 2, True, 2, 2 / 3, 1.0),
    ]
    assert related_relations(triples, 5, 3, share=0.7) == [Related(1, 2, True, 2, 2 / 3, 1.0)]
    assert related_relations(triples, 5, 3, support=3) == []
    assert [each.kind for each in related_relations(graph(), 60, 6)] == ["symmetric", "inverse", "near-duplicate"]


def test_grouped_split_keeps_twins_together():
    triples = graph()
    related = related_relations(triples, 60, 6)
    parts = split_triples(triples, 60, 0.1, 0.2, 3, groups_of(triples, related, 60, 6))
    where = {tuple(triple): part for triple, part in zip(triples.tolist(), parts.tolist())}
    partner = {0: (0, True), 1: (2, True), 2: (1, True), 3: (4, False), 4: (3, False)}
    for (h, r, t), part in where.items():
        if r in partner:
            s, inverse = partner[r]
            assert where[(t, s, h) if inverse else (h, s, t)] == part
    counts = np.bincount(parts, minlength=3)
    assert abs(counts[1] - round(0.1 * len(triples))) <= 4 and abs(counts[2] - round(0.2 * len(triples))) <= 4
    found, (inverse, _same) = leaks(dataset(triples, parts))
    between = {(leak.relation, leak.other, leak.inverse) for leak in found}
    assert not between & {(0, 0, True), (1, 2, True), (2, 1, True), (3, 4, False), (4, 3, False)}
    _, (ungrouped, _) = leaks(dataset(triples, split_triples(triples, 60, 0.1, 0.2, 3)))
    assert ungrouped > 5 * inverse


@pytest.mark.parametrize("seed", range(5))
def test_every_name_stays_in_train(seed):
    triples = graph(seed, people=200, facts=300)  # three triples each: many are the only one
    parts = split_triples(triples, 200, 0.3, 0.3, seed)
    train = triples[parts == 0]
    assert set(train[:, ::2].ravel()) == set(triples[:, ::2].ravel()) and set(train[:, 1]) == set(triples[:, 1])
    assert np.count_nonzero(parts == 1) and np.count_nonzero(parts == 2)
    again = split_triples(triples, 200, 0.3, 0.3, seed)
    assert (parts == again).all() and (parts != split_triples(triples, 200, 0.3, 0.3, seed + 1)).any()


def test_shares_are_exact_where_there_is_room():
    triples = graph(facts=800)
    counts = np.bincount(split_triples(triples, 60, 0.05, 0.1, 0), minlength=3)
    assert counts.tolist() == [len(triples) - 40 - 80, 40, 80]


def test_leaks_by_hand():
    train = np.array([(0, 0, 1), (2, 1, 3), (3, 1, 2)])
    test = np.array([(1, 0, 0), (3, 0, 2), (0, 2, 1), (4, 0, 0)])
    data = cardkge.Dataset("x", None, list("abcde"), list("pqr"), train, train[:1], test)
    found, affected = leaks(data)
    assert affected == (2, 2)  # (1, 0, 0) and (3, 0, 2) turned round; (3, 0, 2) and (0, 2, 1) as they are
    rows = {(leak.relation, leak.other, leak.inverse): (leak.count, leak.total) for leak in found}
    assert rows == {(0, 0, True): (1, 3), (0, 1, True): (1, 3), (0, 1, False): (1, 3), (2, 0, False): (1, 1)}


@pytest.fixture
def folder(tmp_path):
    """A folder of 16 people who all know one another, and their cities."""
    people = [f"person {number}" for number in range(16)]
    lines = [f"{a}\tknows\t{b}\n" for a in people for b in people if a != b]
    lines += [f"{a}\tlives_in\tcity {number % 3}\n" for number, a in enumerate(people)]
    source = tmp_path / "source"
    source.mkdir()
    (source / "triples.tsv").write_text("".join(lines))
    (source / "types.tsv").write_text("person 1\tperson\n")
    return source


def test_split_folder(folder, tmp_path):
    parts = split_folder(folder, tmp_path / "out", (0.1, 0.2), seed=1)
    data = cardkge.load_dataset(tmp_path / "out")
    assert data.warnings == () and data.n_entities == 19 and data.n_relations == 2
    assert parts.sizes == {split: len(getattr(data, split)) for split in SPLITS}
    assert sum(parts.sizes.values()) == 256 and parts.wanted == {"valid": 26, "test": 51}
    assert abs(parts.sizes["valid"] - 26) <= 1 and abs(parts.sizes["test"] - 51) <= 1
    assert [(each.kind, parts.relations[each.first]) for each in parts.related] == [("symmetric", "knows")]
    assert (tmp_path / "out" / "types.tsv").read_text() == "person 1\tperson\n" and parts.copied == ["types.tsv"]
    assert leaks(data)[1] == (0, 0)
    split_folder(folder, tmp_path / "loose", group=False)
    assert leaks(cardkge.load_dataset(tmp_path / "loose"))[1][0] > 0


def test_no_blank_line_before_what_is_copied(folder, tmp_path):
    (folder / "triples.tsv").write_text("".join(f"{h}\tr\t{t}\n" for h in range(20) for t in range(20, 30)))
    assert ok("split", folder, "--out", tmp_path / "out").stdout.splitlines()[1:] == ["copied: types.tsv"]


def test_splits_are_merged_and_split_again(folder, tmp_path):
    split_folder(folder, tmp_path / "one", (0.1, 0.2))
    split_folder(tmp_path / "one", tmp_path / "two", (0.2, 0.1))
    one, two = (
        {line for split in SPLITS for line in (tmp_path / name / f"{split}.tsv").read_text().splitlines()}
        for name in ("one", "two")
    )
    assert one == two and len(one) == 256


def test_a_folder_may_be_split_where_it_is(folder):
    split_folder(folder, folder)
    assert cardkge.load_dataset(folder).n_entities == 19
    with pytest.raises(CardkgeError, match=r"has a train\.tsv; choose another --out, or --force replaces it"):
        split_folder(folder, folder)
    split_folder(folder, folder, seed=5, force=True)


@pytest.mark.parametrize(
    "text, options, fault",
    [
        ("a\tp\tb\n", {}, "no triple can go to valid .0 of 1 wanted.: train needs every entity"),
        ("a\tp\tb\nb\tp\tc\n", {"shares": (0.5, 0.4)}, "no triple can go to"),
        ("a\tp\tb\n", {"shares": (0.5, 0.5)}, "found valid 0.5 and test 0.5, expected 0 to below 1, together below 1"),
        ("a\tp\n", {}, "triples.tsv:1: expected 3 names"),
    ],
)
def test_what_cannot_be_split(tmp_path, text, options, fault):
    (tmp_path / "triples.tsv").write_text(text)
    with pytest.raises(CardkgeError, match=fault):
        split_folder(tmp_path, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_no_triples(tmp_path):
    with pytest.raises(CardkgeError, match=r"no triples.tsv and no train; `import` makes a folder"):
        split_folder(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("name, kinds", [("wn18", {"inverse", "symmetric"}), ("wn18rr", {"symmetric"})])
def test_what_is_known_of_wordnet(name, kinds):
    """wn18 leaks by inverses (Toutanova, Chen 2015); wn18rr was made without them, and keeps the symmetric ones."""
    try:
        data = cardkge.load_dataset(name, download=False)
    except CardkgeError:
        pytest.skip(f"{name} is not on this machine")
    known = np.unique(data.known, axis=0)
    related = related_relations(known, data.n_entities, data.n_relations)
    assert {each.kind for each in related} == kinds
    names = {(data.relations[each.first], data.relations[each.second]) for each in related}
    symmetric = {("_derivationally_related_form",) * 2, ("_verb_group",) * 2, ("_also_see",) * 2, ("_similar_to",) * 2}
    assert names >= symmetric
    assert (("_hyponym", "_hypernym") in names) == (name == "wn18")
    _, (inverse, _) = leaks(data)
    assert inverse == {"wn18": 4698, "wn18rr": 1095}[name]
    groups = groups_of(known, related, data.n_entities, data.n_relations)
    split = dataset(known, split_triples(known, data.n_entities, 0.05, 0.1, 0, groups), data.n_relations)
    pairs = {(each.first, each.second) for each in related} | {(each.second, each.first) for each in related}
    assert not [leak for leak in leaks(split)[0] if leak.inverse and (leak.relation, leak.other) in pairs]


def test_families():
    data = cardkge.load_dataset("families")
    related = related_relations(data.known, data.n_entities, data.n_relations)
    found = {(each.kind, data.relations[each.first], data.relations[each.second]) for each in related}
    assert found >= {
        ("symmetric", "sibling", "sibling"),
        ("symmetric", "spouse", "spouse"),
        ("inverse", "child", "parent"),
    }
    groups = groups_of(data.known, related, data.n_entities, data.n_relations)
    parts = split_triples(data.known, data.n_entities, 0.05, 0.1, 0, groups)
    assert leaks(dataset(data.known, parts, data.n_relations))[1][0] == 0


def test_a_run_is_no_place_for_a_graph(tmp_path):
    """Its bounds.tsv and types.tsv would be lost."""
    (tmp_path / "triples.tsv").write_text("".join(f"e{h}\tr{r}\te{t}\n" for h, r, t in graph()))
    ok("split", tmp_path, "--out", tmp_path / "data")
    ok("train", "--data", tmp_path / "data", "--epochs", 1, "--dim", 2, "--no-calibrate", "--out", tmp_path / "run")
    before = snapshot(tmp_path / "run")
    for command in (("split", tmp_path), ("import", tmp_path / "triples.tsv")):
        assert "holds a run" in one_error(invoke(*command, "--out", tmp_path / "run", "--force"))
    assert snapshot(tmp_path / "run") == before
