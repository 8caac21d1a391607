"""The facts that train lacks: how many, by relation, and the share of them that a split holds.

Train lacks the facts of valid and test. How many facts no file has follows where numbers of tails are known *exactly*:
it is the deficit of all heads together. Elsewhere it must be given, taken from the relations with numbers, or assumed
to be 0."""

import re
from dataclasses import dataclass, replace

import numpy as np

from cardkge import CardkgeError
from cardkge_tools.answers.decoding import KnownTails, scope_pairs
from cardkge_tools.graph.spelling import Known
from cardkge_tools.shell.files import read_fields

FEWEST = 20  # facts missing from train: with fewer, noise decides; v_r is then that of all relations together
MOST = 1 - 1e-6  # of a share: at 1 no new fact would be left
OPEN, MOST_UNSEEN = 0.1, 0.95  # r may have unseen tails where u_r is above OPEN; above MOST_UNSEEN u_r counts as that
KEYS = "valid", "test", "missing", "missing_from"  # in calibration.json: V_r, T_r, M_r and the source of M_r
SOURCES = "given", "numbers", "assumed", "pooled"


@dataclass(frozen=True, eq=False)
class Missing:
    """How many facts of each relation train lacks: arrays (R,).

    valid, test: V_r and T_r, facts of valid that train lacks, of test that both lack; elsewhere: M_r, float64, true
    facts between entities of the graph that no file has; source: the source of M_r, one of SOURCES; limit: the largest
    M_r that upper bounds allow, inf where a head has none; share: v_r in (0, 1), the part of the facts that train lacks
    which valid holds; unseen: u_r of `unseen_tails`; others: v_r of the heads without an exact number, for which M_r is
    taken as 0 where it comes from numbers (None: the same); held: facts of valid and test of the heads that M_r counts
    (None: all). notes: sentences for the user."""

    valid: np.ndarray
    test: np.ndarray
    elsewhere: np.ndarray
    source: list
    limit: np.ndarray
    share: np.ndarray
    notes: tuple = ()
    unseen: np.ndarray | float = 0.0
    others: np.ndarray | None = None
    held: np.ndarray | None = None

    def known_share(self, known):
        """s_r (R,), the part of the facts that train lacks which is known, with train known ("train"), train and valid
        ("valid") or all splits ("all"). Where M_r is assumed to be 0, test is all that is missing, and p is about facts
        like those of test, even when these are known: then s_r is that of "valid"."""
        if known == "train":
            return np.zeros(len(self.share))
        if known == "valid":
            return self.share
        assumed = np.array([source == "assumed" for source in self.source])
        held = self.valid + self.test if self.held is None else self.held
        held = held / np.maximum(held + np.maximum(self.elsewhere, 0), 1)
        return np.where(assumed, self.share, np.minimum(np.maximum(held, self.share), MOST))

    def unseen_before(self, scope, with_lower):
        """(R,): how many unseen tails (h, r) has on average, by u_r: valid / v of the new tails of all (h, r) in scope
        are entities, and these are a part 1 - u_r of all. 0 where the range is closed (u_r <= OPEN) or no lower bound
        requires tails. scope, with_lower: a relation id for each (h, r), and for each with a lower bound."""
        n, u = len(self.share), np.minimum(self.unseen, MOST_UNSEEN)
        new = np.maximum(self.valid, 0.5) / self.share / np.maximum(np.bincount(scope, minlength=n), 1)
        required = (u > OPEN) & (np.bincount(with_lower, minlength=n) > 0)
        return np.where(required, u / (1 - u) * new, 0.0)

    def rows(self):
        """A dict for each relation, as calibration.json keeps it."""
        columns = self.valid.tolist(), self.test.tolist(), self.elsewhere.tolist(), self.source
        rows = [dict(zip(KEYS, row, strict=True)) for row in zip(*columns, strict=True)]
        held = [] if self.held is None else self.held.astype(float).tolist()
        return [row | {"held": x} for row, x in zip(rows, held, strict=True)] if held else rows

    @classmethod
    def of_rows(cls, rows, share):
        """The Missing of `rows`, with v_r (R,); None where they lack it. ValueError where a row is damaged."""
        if not rows or not all(key in rows[0] for key in KEYS):
            return None
        *numbers, source = ([row[key] for row in rows] for key in KEYS)
        valid, test, elsewhere = (np.array(column, np.float64) for column in numbers)
        if not np.isfinite(np.stack((valid, test, elsewhere))).all() or not set(source) <= set(SOURCES):
            raise ValueError("what is missing is out of range")
        held = np.array([row["held"] for row in rows], np.float64) if "held" in rows[0] else None
        share = {"share": share, "held": held}
        return cls(valid.astype(int), test.astype(int), elsewhere, source, np.full(len(rows), np.inf), **share)


def missing_facts(dataset, bounds, given=None, elsewhere="none", types=None):
    """The Missing of a graph (SPEC: M_r, v_r).

    dataset: a Dataset, or anything with train, valid, test (n, 3), n_entities, n_relations and relations (names);
    bounds: Bounds; given: {relation id: M_r}; elsewhere, for relations without numbers: "none", M_r is assumed to be 0,
    or "pooled", M_r is the same part of the recorded facts as in the relations with numbers.

    Where relation r has exact bounds (lower = upper = n) for some (h, r) in scope, D_r is the sum over these of n less
    the tails in any file, signed: a fact too many cancels one too few; a number above N is left out, with a note. M_r =
    (1 - u_r) D_r, u_r of `unseen_tails`, and v_r = V_r / (V_r + T_r + M_r), with V_r and T_r of these heads alone,
    unless these are too few for a share: a note says so."""
    n, names = dataset.n_relations, dataset.relations
    sizes = dataset.n_entities, n
    train = KnownTails(dataset.train, *sizes)
    valid = KnownTails(dataset.valid, *sizes).without(train)
    known = train.joined(valid)
    test = KnownTails(dataset.test, *sizes).without(known)
    recorded = known.joined(test)
    square = dataset.n_entities**2
    count = lambda facts: np.bincount(facts.keys // square, minlength=n)  # noqa: E731
    held = count(valid), count(test)
    heads, relations = scope_pairs(dataset.train, *sizes, types=types)
    lower, upper = bounds.of(relations, heads).T
    tails = recorded.count(heads, relations)
    limit = np.bincount(relations, np.maximum(np.where(upper < np.inf, upper - tails, np.inf), 0), n)
    exact = (lower == upper) & (upper <= dataset.n_entities)
    deficits = np.bincount(relations[exact], (upper - tails)[exact], n)
    of_exact = [np.bincount(relations[exact], facts.count(heads, relations)[exact], n) for facts in (valid, test)]
    unseen = unseen_tails(recorded, n)
    by_numbers = (1 - unseen) * deficits
    elsewhere_of, source, notes = np.zeros(n), ["assumed"] * n, _beyond(dataset, relations[(lower == upper) & ~exact])
    numerator, denominator = held[0].astype(float), sum(held).astype(float)
    too_many = np.bincount(relations[exact & (tails > upper)], minlength=n)
    for r in np.unique(relations[exact]).tolist():
        if too_many[r]:
            notes.append(f"{names[r]}: {too_many[r]:,} heads have more tails than their exact number")
        lacking = sum(of_exact)[r] + by_numbers[r]
        if given is not None and r in given:
            continue
        if lacking < FEWEST or not 0 < of_exact[0][r] < lacking:
            why = "too few to use" if lacking < FEWEST else f"{of_exact[0][r]:,.0f} of them in valid: no share to use"
            notes.append(f"{names[r]}: by its numbers {lacking:,.0f} facts are missing from train, {why}")
            continue
        elsewhere_of[r], source[r] = by_numbers[r], "numbers"
        numerator[r], denominator[r] = of_exact[0][r], lacking
    for r, number in (given or {}).items():
        elsewhere_of[r], source[r] = number, "given"
        denominator[r] += number
        if number > limit[r]:
            notes.append(f"{names[r]}: {number:,.0f} missing facts are given, upper bounds leave {limit[r]:,.0f}")
    numbered = [r for r in range(n) if source[r] == "numbers"]
    if elsewhere == "pooled":
        if not numbered:
            why = f" that can be used ({'; '.join(notes)})" if notes else " to learn from"
            raise CardkgeError(f"what is missing cannot be pooled: no relation has exact numbers{why}")
        facts = count(recorded)
        part = max(elsewhere_of[numbered].sum() / facts[numbered].sum(), 0)
        for r in range(n):
            if source[r] == "assumed":
                elsewhere_of[r], source[r] = min(part * facts[r], limit[r]), "pooled"
                denominator[r] += elsewhere_of[r]
    pooled = numerator.sum() / denominator.sum() if denominator.sum() else 0.5
    few = denominator < FEWEST
    if few.any():
        some = ", ".join([names[r] for r in np.flatnonzero(few)[:3]] + ["..."] * int(few.sum() > 3))
        given_too = ", numbers that are given among them" if given else ""
        notes.append(f"{some}: below {FEWEST} missing, so share is that of all relations, {pooled:.3g}{given_too}")
    share = np.where(few, pooled, np.maximum(numerator, 0.5) / np.maximum(denominator, 1))
    more = tuple(notes), unseen, *_of_heads([x == "numbers" for x in source], held, of_exact, share)
    return Missing(*held, elsewhere_of, source, limit, np.minimum(share, MOST), *more)


def _beyond(dataset, relations):
    """A note for each relation among these (m,), each of a head with an exact number above N."""
    few = f"exact numbers above {dataset.n_entities:,}, the entities of the graph, are left out: "
    relations, counts = np.unique(relations, return_counts=True)
    return [f"{dataset.relations[r]}: {few}{count:,}" for r, count in zip(relations.tolist(), counts.tolist())]


def _of_heads(by_numbers, held, of_exact, share):
    """`others` and `held` of a Missing. held, of_exact: two arrays (R,), facts of valid and of test, and those of heads
    with an exact number. For heads without one v is the share of valid in the facts that both hold for them, or for all
    heads where these are few."""
    valid, test = (all_of - part for all_of, part in zip(held, of_exact, strict=True))
    few = valid + test < FEWEST
    valid, both = np.where(few, held[0], valid), np.where(few, sum(held), valid + test)
    beside = np.maximum(valid, 0.5) / np.maximum(both, 1)
    return np.minimum(np.where(by_numbers, beside, share), MOST), np.where(by_numbers, sum(of_exact), sum(held))


def with_share(missing, share):
    """The Missing of the same splits in which valid holds this share of the facts that train lacks, in each relation.
    If that leaves facts for elsewhere, M_r is in proportion to the held-out facts of r, and its source is "given"."""
    held = missing.valid + missing.test
    beside = max(missing.valid.sum() / share / max(held.sum(), 1) - 1, 0)
    source = ["given" if beside else "assumed"] * len(held)
    share = np.full(len(held), float(share))
    return replace(missing, elsewhere=beside * held, source=source, share=share, notes=(), others=None, held=None)


def unseen_tails(facts, n_relations):
    """u_r (R,), the Good-Turing estimate of the chance that a further fact of r has a tail new to r: the number of
    tails seen once with r, divided by the number of facts of r; 1 where r has no fact. facts: KnownTails.

    Where u_r is OPEN or less the range is closed, and such a tail is an entity of the graph, unless it stands in no
    other fact: then u_r counts only the tails that stand in no other fact. (Where u_r is larger, that number says
    little: a graph made without its rare entities has only entities that stand in several facts.)"""
    n = facts.n_entities
    relations, heads, tails = facts.keys // n // n, facts.keys // n % n, facts.keys % n
    times = np.maximum(np.bincount(relations, minlength=n_relations), 1)
    pairs, seen = np.unique(relations * n + tails, return_counts=True)
    once = np.bincount(pairs[seen == 1] // n, minlength=n_relations) / times
    stands = np.bincount(heads, minlength=n) + np.bincount(tails, minlength=n)
    alone = np.bincount(relations[stands[tails] == 1], minlength=n_relations) / times
    found = np.where(once > OPEN, once, alone)
    found[np.bincount(relations, minlength=n_relations) == 0] = 1
    return found


def read_missing(path, relations, prefixes, most):
    """{relation id: number} of a file with `relation<TAB>number` a line: true facts that no file has; most (R,): how
    many there can be.

    CardkgeError, which names the line, for other than two fields, an unknown relation, a relation given twice, a value
    that is no number, negative or more than there can be; and for a file without a line."""
    known, ids = Known(relations, prefixes, "relation"), {name: i for i, name in enumerate(relations)}
    found, seen = {}, {}
    for at, fields in read_fields(path):
        if len(fields) != 2:
            raise CardkgeError(
                f"{path}:{at}: expected a relation and a number with a tab between, found {fields!r:.80}"
            )
        name, _ = known.find(fields[0])
        if name is None:
            raise CardkgeError(f"{path}:{at}: {known.fault(fields[0])}")
        number = fields[1].strip()
        if not re.fullmatch(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?", number) or float(number) == np.inf:
            raise CardkgeError(f"{path}:{at}: expected how many facts are missing, 0 or more, found {fields[1]!r:.40}")
        if float(number) > most[ids[name]]:
            raise CardkgeError(
                f"{path}:{at}: {number} missing facts of {name!r:.80}; the graph has room for {most[ids[name]]:,} more,"
                " a head and a tail among its entities each"
            )
        if name in seen:
            raise CardkgeError(
                f"{path}:{at}: relation {name!r:.80} for the second time, after line {seen[name]}; keep one"
            )
        found[ids[name]], seen[name] = float(number), at
    if not found:
        raise CardkgeError(f"{path}: no line of a relation and a number with a tab between")
    return found
