"""How good the answers are, against test."""

import threading

import numpy as np

from cardkge import CardkgeError, checked_triples, triple_keys
from cardkge_tools.answers.decoding import Decoder, acceptable, room_left, threshold_for
from cardkge_tools.answers.scope import Answers, loops_to_leave_out, scope_pairs

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


class Tally:
    """What `evaluate_sets` adds up, block by block in any order; only integers and values kept by pair, so that no
    figure depends on the order."""

    def __init__(self, pairs):
        bins = int(2 * EDGE * STEPS) + 1
        self.hits, self.others, self.lock = np.zeros(bins, np.int64), np.zeros(bins, np.int64), threading.Lock()
        self.expected, self.squares, self.log_loss = np.zeros(pairs), np.zeros(pairs), np.zeros(pairs)
        self.known, self.contradicted = np.zeros(pairs, np.int64), np.zeros(pairs, bool)
        self.likely = {}  # first pair of a block -> (p, is a fact) of the candidates with p >= 0.1
        self.accepted = {}  # the same of the candidates that there is room for

    def add(self, first, last, found, facts, room, least, floor):
        p, row, n = found["p"], found["row"], last - first
        bins = log_odds_bins(p, floor)
        hits = np.bincount(bins[facts], minlength=len(self.hits))
        others = np.bincount(bins[~facts], minlength=len(self.hits))
        others[0] += found["candidates"].sum() - len(p)  # those not looked at
        with self.lock:
            self.hits += hits
            self.others += others
        part = slice(first, last)
        self.expected[part] = np.bincount(row, p, n)
        self.squares[part] = np.bincount(row, (p - facts) ** 2, n)
        tiny = 1e-15
        loss = -np.where(facts, np.log(np.maximum(p, tiny)), np.log1p(-np.minimum(p, 1 - tiny)))
        self.log_loss[part] = np.bincount(row, loss, n)
        self.known[part], self.contradicted[part] = found["known"], found["contradicted"]
        likely = p >= 0.1
        self.likely[first] = p[likely], facts[likely]
        places = acceptable(found, room, least)
        self.accepted[first] = p[places], facts[places]

    def joined(self, blocks):
        """Both arrays of all blocks, in the order of the pairs."""
        return [np.concatenate([blocks[first][i] for first in sorted(blocks)] or [np.empty(0)]) for i in range(2)]


def calibration_bins(p, facts, bins=15):
    """Bins of as equal numbers as may be, by p: (mean p, share of facts, number) of each, arrays (bins,)."""
    order = np.argsort(p, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    rows = [(p[part].mean(), facts[part].mean(), len(part)) for part in parts]
    return np.array(rows).reshape(-1, 3).T


def evaluate_sets(model, calibration, bounds, dataset, least=0.5, precision=None, loops=False, threads=None,
                  progress=None, types=None):  # fmt: skip
    """How good the answers to all (h, ?) in scope are, against test; train and valid are known.

    bounds: Bounds, (R, 2) or None. types: as `scope_pairs` takes them. loops: (h, r, h) is a candidate even where
    train has no loop of r. Accepted are candidates with p > least, or as many, best first, as have a mean p of at least
    `precision`; at most as many for each (h, r) as its upper bound leaves room for. Returns (measures, details): a dict
    of numbers, and what the figures show.
    """
    n, r = model.n_entities, model.n_relations
    train, valid, test = (checked_triples(x, n, r) for x in (dataset.train, dataset.valid, dataset.test))
    heads, relations = scope_pairs(train, n, r, types=types)
    known = Answers(np.concatenate((train, valid)), n, r)
    facts = Answers(test, n, r).without(known)
    excluded = known
    if not loops:
        excluded = known.joined(Answers(loops_to_leave_out(train, heads, relations, r), n, r))
    wanted = facts.without(excluded)
    decoder = Decoder(model, calibration, bounds, known, excluded, wanted)
    tally, limit = Tally(len(heads)), least if precision is None else min(0.01, precision / 10)

    def consume(first, last, found):
        pairs = heads[first:last], relations[first:last]
        keys = triple_keys(pairs[0][found["row"]], pairs[1][found["row"]], found["ids"], n, r)
        place = np.minimum(np.searchsorted(facts.keys, keys), max(len(facts.keys) - 1, 0))
        is_fact = facts.keys[place] == keys if len(facts.keys) else np.zeros(len(keys), bool)
        room = room_left(decoder.bounds.of(pairs[1], pairs[0]), found["known"])
        tally.add(first, last, found, is_fact, room, limit, decoder.floor)

    decoder.run(heads, relations, threads, consume, progress)
    true_counts = known.joined(facts).count(heads, relations)
    return _measures(tally, len(facts.keys), decoder.bounds.of(relations, heads), true_counts, precision)


def _measures(tally, n_facts, bounds, true_counts, precision):
    """The dict of measures and the details behind the figures, of a finished Tally."""
    found, taken, hits = cumulative_counts(tally.hits, tally.others)
    if not n_facts:
        raise CardkgeError("no facts of test are new, so there is nothing to measure against")
    p, is_fact = tally.joined(tally.accepted)
    order = np.argsort(-p, kind="stable")
    p, is_fact = p[order], is_fact[order]
    if precision is not None:
        count = threshold_for(p, precision)
        p, is_fact = p[:count], is_fact[:count]
    right, likely = float(is_fact.sum()), tally.joined(tally.likely)
    mean_p, share, size = calibration_bins(*likely)
    expected = tally.known + tally.expected
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
