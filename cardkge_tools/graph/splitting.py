"""`split`: train, valid and test from one file of triples; and leakage: how much of test a split gives away.

*Related relations.* For relations r and s, the share of r in s is the part of the pairs (h, t) of r that are pairs of s
as well; the share of r in the inverse of s, the part whose (t, h) is. Loops (h = t) count for neither. Two relations
are *near-duplicates*, or *inverse* of each other (*symmetric*, if they are the same), where the larger of their two
shares is at least SHARE and rests on SUPPORT pairs. Akrami et al. (SIGMOD 2020) ask for 0.8 both ways, to call a
relation redundant; here a fact in test is to have no twin in train, so one way and a half are enough."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from cardkge import CardkgeError, triple_keys
from cardkge_tools import SPLIT_FILES, SPLITS, TRIPLE_FILES
from cardkge_tools.graph.exchange import write_triples
from cardkge_tools.graph.graphs import load_triples, open_data
from cardkge_tools.graph.spelling import counted_look_alikes
from cardkge_tools.shell.files import folder_of_graph, replace_file, write_report
from cardkge_tools.shell.terminal import brief, table, warn

SHARE, SUPPORT = 0.5, 2


@dataclass(frozen=True)
class Related:
    """Relations `first` <= `second` that say the same, read the same way or (inverse) the other way round.

    pairs: triples of first with a twin in second. first_share, second_share: of the triples without loops of each."""

    first: int
    second: int
    inverse: bool
    pairs: int
    first_share: float
    second_share: float

    @property
    def kind(self):
        """symmetric, inverse or near-duplicate."""
        if not self.inverse:
            return "near-duplicate"
        return "symmetric" if self.first == self.second else "inverse"


def related_record(related, relations):
    """A Related for JSON."""
    names = {"kind": related.kind, "relation": relations[related.first], "other": relations[related.second]}
    return names | {"pairs": related.pairs, "shares": [related.first_share, related.second_share]}


def twins(triples, among, n_entities, inverse):
    """Pairs of positions (i, j): triples[i] is (h, r, t), among[j] is (h, s, t), or (t, s, h) if inverse; loops aside.

    Both (n, 3) ids. Returns two arrays of positions, by i. A triple is no twin of itself read the same way (r = s)."""
    h, t = triples[:, 0].astype(np.int64), triples[:, 2].astype(np.int64)
    wanted = t * n_entities + h if inverse else h * n_entities + t
    keys = among[:, 0].astype(np.int64) * n_entities + among[:, 2]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first, last = np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")
    counts = np.where(h == t, 0, last - first)
    i = np.repeat(np.arange(len(triples)), counts)
    starts = np.repeat(first - np.cumsum(counts) + counts, counts)
    j = order[starts + np.arange(len(i))]
    if inverse:
        return i, j
    other = triples[i, 1] != among[j, 1]
    return i[other], j[other]


def related_relations(triples, n_entities, n_relations, share=SHARE, support=SUPPORT):
    """The Related of a graph, its triples (n, 3) distinct; by kind and number of pairs, the most first."""
    sizes = np.bincount(triples[triples[:, 0] != triples[:, 2], 1], minlength=n_relations)
    found = []
    for inverse in (True, False):
        i, j = twins(triples, triples, n_entities, inverse)
        pairs, counts = np.unique(triples[i, 1].astype(np.int64) * n_relations + triples[j, 1], return_counts=True)
        for r, s, number in zip((pairs // n_relations).tolist(), (pairs % n_relations).tolist(), counts.tolist()):
            if r > s or number < support:
                continue  # both ways have the same number of pairs
            shares = number / sizes[r], number / sizes[s]
            if max(shares) >= share:
                found.append(Related(r, s, inverse, number, float(shares[0]), float(shares[1])))
    return sorted(found, key=lambda each: (not each.inverse, each.first != each.second, -each.pairs, each.first))


def groups_of(triples, related, n_entities, n_relations):
    """(n,) int64: the same number for triples that are to stay in one split.

    A group is the triples between two entities whose relations are related, directly or by others."""
    component = np.arange(n_relations)
    for each in related:  # the smaller name of the two everywhere
        least, most = sorted(component[[each.first, each.second]])
        component[component == most] = least
    in_group = np.zeros(n_relations, bool)
    in_group[[r for each in related for r in (each.first, each.second)]] = True
    ends = np.sort(triples[:, ::2].astype(np.int64), axis=1)
    keys = (component[triples[:, 1]] * n_entities + ends[:, 0]) * n_entities + ends[:, 1]
    own = ~in_group[triples[:, 1]]
    keys[own] = -1 - np.flatnonzero(own)
    return np.unique(keys, return_inverse=True)[1].reshape(-1)


def split_triples(triples, n_entities, valid, test, seed=0, groups=None):
    """(n,) int8: 0 train, 1 valid, 2 test; drawn at random, group by group.

    triples: (n, 3) ids, distinct. valid, test: shares of the triples. groups: as `groups_of`; None puts each triple in
    one of its own. In a random order of the groups the first with an entity or a relation stays in train, so that train
    has each of them; of the others the first fill test, the next valid. Where too few are left, both get their part."""
    if not (0 <= valid < 1 and 0 <= test < 1 and valid + test < 1):
        raise CardkgeError(f"shares: found valid {valid:g} and test {test:g}, expected 0 to below 1, together below 1")
    n = len(triples)
    groups = np.arange(n) if groups is None else groups
    number = int(groups.max()) + 1 if n else 0
    rank = np.random.default_rng(seed).permutation(number)  # of each group
    order = np.argsort(rank[groups], kind="stable")  # triples, by the rank of their group
    fixed = np.zeros(number, bool)
    names = triples[order] + np.array([0, n_entities, 0])
    _, first = np.unique(names.reshape(-1), return_index=True)
    fixed[groups[order[first // 3]]] = True
    by_rank = np.argsort(rank)  # groups
    free = by_rank[~fixed[by_rank]]
    total = np.cumsum(np.bincount(groups, minlength=number)[free])
    wanted = round(n * test), round(n * valid)
    available = int(total[-1]) if len(total) else 0
    if sum(wanted) > available:
        wanted = tuple(round(available * part / sum(wanted)) for part in wanted)
    ends = np.searchsorted(total, np.cumsum(wanted), "right")
    parts = np.zeros(number, np.int8)
    parts[free[: ends[0]]] = 2
    parts[free[ends[0] : ends[1]]] = 1
    return parts[groups]


# --- leakage


@dataclass(frozen=True)
class Leak:
    """Triples of `split` with relation `relation` that have a twin in train with relation `other`.

    inverse: the twin is (t, other, h), else (h, other, t). count of total triples of relation in the split."""

    split: str
    relation: int
    other: int
    inverse: bool
    count: int
    total: int


def leaks(dataset, split="test"):
    """Leaks of a split's triples into train, those with the most triples first, and the number of triples of the split
    with a twin the other way round, and the same way, in train: (list, (inverse, same))."""
    triples = getattr(dataset, split)
    sizes = np.bincount(triples[:, 1], minlength=dataset.n_relations)
    found, affected = [], []
    for inverse in (True, False):
        i, j = twins(triples, dataset.train, dataset.n_entities, inverse)
        affected.append(len(np.unique(i)))
        keys = triples[i, 1].astype(np.int64) * dataset.n_relations + dataset.train[j, 1]
        # a triple counts once for each other relation
        keys, _ = np.divmod(np.unique(keys * max(len(triples), 1) + i), max(len(triples), 1))
        for key, number in zip(*(part.tolist() for part in np.unique(keys, return_counts=True))):
            r, s = divmod(key, dataset.n_relations)
            found.append(Leak(split, r, s, inverse, number, int(sizes[r])))
    return sorted(found, key=lambda leak: (-leak.count, leak.relation, leak.other)), tuple(affected)


def show_data_set(dataset, report):
    """Prints a `data_report`: the sizes of a data set, a triple of each relation, and what train gives away of test."""
    splits = [getattr(dataset, split) for split in SPLITS]
    click.echo(f"{dataset.folder}: {dataset.n_entities:,} entities, {dataset.n_relations:,} relations\n")
    rows = []
    for relation, relation_name in enumerate(dataset.relations):
        chosen = [triples[triples[:, 1] == relation] for triples in splits]
        h, _, t = next(triples[0] for triples in chosen if len(triples))
        counts = [f"{len(triples):,}" for triples in chosen]
        rows.append([relation_name, dataset.entities[h], dataset.entities[t], *counts])
    rows.append(["(all)", "", "", *(f"{len(triples):,}" for triples in splits)])
    table(rows, ["relation", "for example, head", "tail", *SPLITS], "lll")
    show_related(report["related"])
    show_leakage(report["leakage"], len(dataset.test))
    show_look_alikes(report["look_alikes"])


def show_look_alikes(look_alikes):
    """A table of names that look the same but are spelt differently."""
    rows = [
        [what, f"{found['names']:,}", f"{found['forms']:,}", *(brief(ascii(name)) for name in found["example"][:2])]
        for what, found in look_alikes.items()
        if found["names"]
    ]
    if rows:
        click.echo("\nnames that differ only in Unicode form (NFC) or in spaces at their ends:\n")
        table(rows, ["", "names", "when written alike", "for example", "and"], "lrrll")


def show_related(related):
    """A table of relations that say the same."""
    if related:
        click.echo("\nrelations that say the same (the share of each one's triples that have a twin in the other):\n")
        rows = [
            [e["kind"], e["relation"], e["other"], f"{e['pairs']:,}", *(f"{100 * s:.1f}" for s in e["shares"])]
            for e in related
        ]
        table(rows, ["", "relation", "other", "pairs", "of relation %", "of other %"], "lll")


LEAKS = {
    "in_train": "in train too",
    "in_valid": "in valid too",
    "inverse_in_train": "turned round in train, by any relation",
    "duplicate_in_train": "in train by another relation",
    "unseen_entities": "with an entity that train does not have",
}


def show_leakage(leakage, test):
    """Tables of what train gives away of test."""
    click.echo("\nwhat train gives away of test:\n")
    rows = [[title, f"{leakage[name]:,}", f"{100 * leakage[name] / max(test, 1):.2f}"] for name, title in LEAKS.items()]
    table(rows, [f"of {test:,} test triples", "", "%"])
    rows = []
    for pair in leakage["pairs"][:20]:
        other, share = "turned round, " * pair["inverse"] + pair["other"], 100 * pair["count"] / pair["triples"]
        rows.append([pair["relation"], other, f"{pair['count']:,}", f"{pair['triples']:,}", f"{share:.1f}"])
    if rows:
        click.echo("")
        table(rows, ["test triples of", "are in train as", "", "of", "%"], "ll")


def show_data(name, columns, json_file):
    """`data show`: shows and writes the report of a data set."""
    dataset = open_data(name, columns)
    report = data_report(dataset)
    if write_report(json_file, report):
        show_data_set(dataset, report)


def data_report(dataset):
    """Sizes and leakage of a data set, a dict for JSON."""
    sizes, names = (dataset.n_entities, dataset.n_relations), dataset.relations
    splits = {split: np.asarray(getattr(dataset, split)) for split in SPLITS}
    related = related_relations(np.unique(dataset.known, axis=0), *sizes)
    found, (inverse, same) = leaks(dataset)
    keys = {split: triple_keys(*triples.T, *sizes) for split, triples in splits.items()}
    seen = np.zeros(sizes[0], bool)
    seen[splits["train"][:, ::2]] = True
    leakage = {f"in_{split}": int(np.isin(keys["test"], keys[split]).sum()) for split in ("train", "valid")}
    leakage |= {"inverse_in_train": inverse, "duplicate_in_train": same}
    leakage["unseen_entities"] = int((~seen[splits["test"][:, ::2]]).any(1).sum())
    leakage["pairs"] = [
        {"relation": names[e.relation], "other": names[e.other], "inverse": e.inverse, "count": e.count}
        | {"triples": e.total}
        for e in found
    ]
    counts = {split: np.bincount(triples[:, 1], minlength=sizes[1]).tolist() for split, triples in splits.items()}
    return {
        "folder": str(dataset.folder),
        "entities": sizes[0],
        "relations": {name: {split: counts[split][r] for split in SPLITS} for r, name in enumerate(names)},
        **{split: len(triples) for split, triples in splits.items()},
        "warnings": list(dataset.warnings),
        "related": [related_record(each, names) for each in related],
        "leakage": leakage,
        "look_alikes": counted_look_alikes(dataset.entities, names),
    }


# --- the command


@dataclass(frozen=True)
class Parts:
    """What `split_folder` wrote: sizes of the splits, wanted sizes, the related relations, names of the relations, the
    number of facts whose twin is in their split, warnings, and files that were copied."""

    sizes: dict
    wanted: dict
    related: list
    relations: list
    groups: int
    warnings: tuple
    copied: list


def split_folder(folder, out, shares=(0.05, 0.1), seed=0, group=True, columns="hrt", force=False):
    """Split the triples of a folder (`triples.tsv`, or train, valid and test, merged) into the folder `out`.

    shares: of the triples, for valid and for test. Files that hold no triples are copied. Returns Parts. Raises
    CardkgeError as `load_triples`, where `out` has splits already and force is false, or a split would be empty."""
    folder, out = Path(folder), Path(out)
    found = [name for names in SPLIT_FILES.values() for name in names]
    present = [name for name in found if os.path.exists(out / name)]
    if present and not force:
        raise CardkgeError(f"{out} has a {present[0]}; choose another --out, or --force replaces it")
    triples, entities, relations, warnings = load_triples(folder, columns)
    related = related_relations(triples, len(entities), len(relations))
    groups = groups_of(triples, related, len(entities), len(relations)) if group and related else None
    parts = split_triples(triples, len(entities), *shares, seed, groups)
    sizes = {split: int(np.count_nonzero(parts == part)) for part, split in enumerate(SPLITS)}
    wanted = {split: round(share * len(triples)) for split, share in zip(SPLITS[1:], shares)}
    for split, number in wanted.items():
        if not sizes[split]:
            fault = f"no triple can go to {split} ({number} of {len(triples)} wanted)"
            why = "train needs every entity and relation"
            raise CardkgeError(f"{folder}: {fault}: {why}; choose larger shares, or more data")
    folder_of_graph(out)
    same = os.path.samefile(folder, out)
    for name in present:
        if not same:
            os.unlink(out / name)
    for part, split in enumerate(SPLITS):
        write_triples(out / f"{split}.tsv", triples[parts == part], entities, relations)
    copied = []
    for name in sorted(os.listdir(folder)):
        if not same and name not in (*found, *TRIPLE_FILES) and os.path.isfile(folder / name):
            copied.append(name)
            with open(folder / name, "rb") as source:
                replace_file(out / name, lambda file: shutil.copyfileobj(source, file), packed=False)
    number = len(triples) if groups is None else int(groups.max()) + 1
    return Parts(sizes, wanted, related, relations, len(triples) - number, tuple(warnings), copied)


def run_split(folder, out, group, json_file, options):
    """`split`: split a folder and show the result."""
    shares = options.pop("valid"), options.pop("test")
    parts = split_folder(folder, out, shares, group=group, **options)
    warn(*parts.warnings)
    for split, number in parts.wanted.items():
        if parts.sizes[split] < 0.9 * number:
            warn(f"{split}: {parts.sizes[split]:,} triples, expected {number:,}: train needs the others")
    related = [related_record(each, parts.relations) for each in parts.related]
    report = {"folder": str(out), **parts.sizes, "related": related, "kept_together": parts.groups if group else 0}
    if not write_report(json_file, report):
        return
    click.echo(f"{out}: " + ", ".join(f"{number:,} {split}" for split, number in parts.sizes.items()))
    if related:
        together = "kept together" if group else "parted by --no-group"
        click.echo(f"\nrelations that say the same, whose facts are {together}:\n")
        rows = [[e["kind"], e["relation"], e["other"], f"{e['pairs']:,}"] for e in related]
        table(rows, ["", "relation", "other", "pairs"], "lll")
    if parts.copied:
        click.echo("\n" * bool(related) + f"copied: {', '.join(parts.copied)}")
