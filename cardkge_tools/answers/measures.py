"""How good the answers are, against test."""

import threading
from dataclasses import dataclass

import numpy as np

from cardkge import CardkgeError, checked_triples
from cardkge_tools.answers.decoding import (
    Decoder,
    KnownAndLoops,
    KnownTails,
    acceptable,
    accepted,
    room_left,
    scope_pairs,
    start_of,
)
from cardkge_tools.definitions.softmax import without_loops

STEPS, EDGE = 5000, 40.0  # bins of log odds from -EDGE to EDGE, this many for each unit


def log_odds_bins(p, floor):
    """The bin (int) of each p in [0, 1], by its log odds; bins grow with p, that of p <= floor is 0."""
    with np.errstate(divide="ignore"):
        x = np.clip(np.log(p) - np.log1p(-p), -EDGE, EDGE)
    return np.where(p > floor, np.ceil((x + EDGE) * STEPS), 0).astype(np.int64)


def cumulative_counts(hits, others):
    """(found, taken, hits), (k,) each, of candidates in bins, worst first, hits (m,) facts and others (m,) in each: the
    facts and the candidates down to each of the k bins that hold any, best first, and the facts in that bin alone."""
    hits, others = hits[::-1], others[::-1]
    held = np.flatnonzero(hits + others)
    hits, others = hits[held], others[held]
    return np.cumsum(hits), np.cumsum(hits + others), hits


@dataclass(frozen=True)
class SetOptions:
    """How `evaluate_sets` accepts, and what it takes for candidates.

    Accepted are candidates with p > least, or as many, best first, as have a mean p of at least `precision`. loops: (h,
    r, h) is a candidate even where train has no loop of r. types: as `scope_pairs` takes them.
    """

    least: float = 0.5
    precision: float | None = None
    loops: bool = False
    types: object = None

    @property
    def floor(self):
        """What is more probable than this may be accepted."""
        return self.least if self.precision is None else start_of(self.precision)


class Tally:
    """What `evaluate_sets` adds up, block by block in any order; only integers and values kept by pair, so that no
    figure depends on the order. least: what is more probable may be accepted; floor: what is not is in bin 0."""

    def __init__(self, pairs, least, floor):
        bins = int(2 * EDGE * STEPS) + 1
        self.least, self.floor, self.lock = least, floor, threading.Lock()
        self.hits, self.others = np.zeros(bins, np.int64), np.zeros(bins, np.int64)
        self.expected, self.squares, self.log_loss = np.zeros(pairs), np.zeros(pairs), np.zeros(pairs)
        self.known, self.contradicted = np.zeros(pairs, np.int64), np.zeros(pairs, bool)
        self.likely = {}  # first pair of a block -> (p, is a fact) of the candidates with p >= 0.1
        self.accepted = {}  # the same, and pairs and tails, of the candidates that their (h, r) has room for

    def add(self, first, last, decoded, facts, room):
        """A block of pairs: their Decoded, which candidates are facts (m,), room for new tails (n,)."""
        p, row, n = decoded.p, decoded.row, last - first
        bins = log_odds_bins(p, self.floor)
        hits = np.bincount(bins[facts], minlength=len(self.hits))
        others = np.bincount(bins[~facts], minlength=len(self.hits))
        others[0] += decoded.candidates.sum() - len(p)  # those not looked at
        with self.lock:
            self.hits += hits
            self.others += others
        part = slice(first, last)
        self.expected[part] = decoded.expected()
        self.squares[part] = np.bincount(row, (p - facts) ** 2, n)
        tiny = 1e-15
        loss = -np.where(facts, np.log(np.maximum(p, tiny)), np.log1p(-np.minimum(p, 1 - tiny)))
        self.log_loss[part] = np.bincount(row, loss, n)
        self.known[part], self.contradicted[part] = decoded.known, decoded.contradicted
        likely = p >= 0.1
        self.likely[first] = p[likely], facts[likely]
        places = acceptable(decoded, room, self.least)
        self.accepted[first] = p[places], facts[places], first + row[places], decoded.ids[places]

    @staticmethod
    def joined(blocks):
        """The arrays of all blocks, in the order of the pairs; at least one block."""
        return [np.concatenate(parts) for parts in zip(*(blocks[first] for first in sorted(blocks)), strict=True)]


def calibration_bins(p, facts, bins=15):
    """Bins of as equal numbers as may be, by p: (mean p, share of facts, number) of each, arrays (bins,)."""
    order = np.argsort(p, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    rows = [(p[part].mean(), facts[part].mean(), len(part)) for part in parts]
    return np.array(rows).reshape(-1, 3).T


def evaluate_sets(model, calibration, bounds, dataset, threads=None, progress=None, **options):
    """How good the answers to all (h, ?) in scope are, against test; train and valid are known.

    bounds: Bounds (a CountPrior too), (R, 2) or None. options: those of SetOptions. Accepted is what `complete` writes:
    for each (h, r), and then for each (r, t), at most as many as its upper bound leaves room for. Returns (measures,
    details): a dict of numbers, and what the figures show. CardkgeError where no fact of test is new.
    """
    how, n, r = SetOptions(**options), model.n_entities, model.n_relations
    train, valid, test = (checked_triples(x, n, r) for x in (dataset.train, dataset.valid, dataset.test))
    heads, relations = scope_pairs(train, n, r, types=how.types)
    known = KnownTails(np.concatenate((train, valid)), n, r)
    facts = KnownTails(test, n, r).without(known)
    if not len(facts.keys):
        raise CardkgeError("no facts of test are new, so there is nothing to measure against")
    if not len(heads):
        raise CardkgeError("no (h, r) is in scope, so there is nothing to measure")
    irreflexive = without_loops(train, r) & (not how.loops)
    wanted = KnownTails(test[~(irreflexive[test[:, 1]] & (test[:, 0] == test[:, 2]))], n, r).without(known)
    decoder = Decoder(model, calibration, bounds, known, KnownAndLoops(known, irreflexive), wanted)
    tally = Tally(len(heads), how.floor, decoder.floor)
    limits, true_counts = decoder.bounds.of(relations, heads), known.joined(facts).count(heads, relations)

    def consume(first, last, decoded):
        pair = first + decoded.row
        is_fact = facts.has(heads[pair], relations[pair], decoded.ids)
        tally.add(first, last, decoded, is_fact, room_left(limits[first:last], decoded.known))

    decoder.run(heads, relations, threads, consume, progress)
    p, is_fact, pair, tails = tally.joined(tally.accepted)
    kept = accepted(decoder, np.column_stack((heads[pair], relations[pair], tails)), p, how.precision)
    return _measures(tally, (p[kept], is_fact[kept]), len(facts.keys), limits, true_counts)


def _measures(tally, taken_for_facts, n_facts, bounds, true_counts):
    """The dict of measures and the details behind the figures, of a finished Tally; taken_for_facts: of what is
    accepted, best first, p and whether it is a fact."""
    found, taken, hits = cumulative_counts(tally.hits, tally.others)
    p, is_fact = taken_for_facts
    right, likely = float(is_fact.sum()), tally.joined(tally.likely)
    mean_p, share, size = calibration_bins(*likely)
    expected = tally.expected
    outside = (expected < bounds[:, 0] - 1e-9) | (expected > bounds[:, 1] + 1e-9)
    measures = {
        "ap": float((hits * found / taken).sum() / n_facts),
        "best_f1": float((2 * found / (taken + n_facts)).max(initial=0)),
        "f1": float(2 * right / (len(p) + n_facts)),
        "precision": float(right / len(p)) if len(p) else None,
        "recall": float(right / n_facts),
        "accepted": len(p),
        "mean_probability": float(p.mean()) if len(p) else None,
        "threshold": float(p[-1]) if len(p) else None,
        "ece": float((size * np.abs(mean_p - share)).sum() / max(size.sum(), 1)),
        "brier": float(tally.squares.sum() / n_facts),
        "log_loss": float(tally.log_loss.sum() / n_facts),
        "count_mae": float(np.abs(expected - true_counts).mean()),
        "known_count_mae": float(np.abs(tally.known - true_counts).mean()),
        "out_of_bounds": float((outside & ~tally.contradicted).mean()),
        "contradicted": int(tally.contradicted.sum()),
        "pairs": len(expected),
        "facts": n_facts,
    }
    details = {
        "recall": found / n_facts, "precision": found / taken, "bins": (mean_p, share, size),
        "expected": expected, "true": true_counts, "known": tally.known,
    }  # fmt: skip
    return measures, details
