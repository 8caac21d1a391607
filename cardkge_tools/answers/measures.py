"""How good the answers are, against test."""

import threading
from dataclasses import dataclass

import numpy as np

from cardkge import CardkgeError, checked_triples
from cardkge_tools.answers import decoding
from cardkge_tools.answers.decoding import Decoder, KnownAndLoops, KnownTails, accepted
from cardkge_tools.answers.odds import room_left
from cardkge_tools.definitions.measures import promised_and_kept
from cardkge_tools.definitions.softmax import without_loops
from cardkge_tools.graph.spelling import Known
from cardkge_tools.shell.files import read_fields
from cardkge_tools.shell.terminal import counted

MOST_TAILS = 3  # known tails: the parts have 0, 1, 2, and this many or more
STEPS, EDGE = 5000, 40.0  # bins of log odds from -EDGE to EDGE, this many for each unit


def log_odds_bins(p, floor):
    """The bin (int) of each p in [0, 1], by its log odds; bins grow with p, and p <= floor is in bin 0."""
    with np.errstate(divide="ignore"):
        x = np.clip(np.log(p) - np.log1p(-p), -EDGE, EDGE)
    return np.where(p > floor, np.ceil((x + EDGE) * STEPS), 0).astype(np.int64)


def cumulative_counts(hits, others):
    """(found, taken, hits), (k,) each, from hits (m,), the facts, and others (m,), the other candidates, in each bin,
    worst bin first. For the k bins that hold any candidate, best first: the facts and the candidates down to that bin,
    and the facts in that bin alone."""
    hits, others = hits[::-1], others[::-1]
    held = np.flatnonzero(hits + others)
    hits, others = hits[held], others[held]
    return np.cumsum(hits), np.cumsum(hits + others), hits


@dataclass(frozen=True)
class SetOptions(decoding.Scope):
    """How `evaluate_sets` accepts: candidates with p > least, or as many, best first, as have a mean p of at least
    `precision`. truth: a Truth in place of the scope and of test."""

    least: float = 0.5
    precision: float | None = None
    truth: object = None

    @property
    def floor(self):
        """Candidates more probable than this may be accepted."""
        return self.least if self.precision is None else decoding.start_of(self.precision)


@dataclass(frozen=True, eq=False)
class Truth:
    """Whole answers: heads, relations (n,) int32 of distinct (h, r), ordered by relation, head; triples (m, 3) int32,
    their tails that are entities of the graph."""

    heads: np.ndarray
    relations: np.ndarray
    triples: np.ndarray


def read_truth(path, run):
    """(Truth, a sentence on lines left out or None) of a file with `head<TAB>relation<TAB>number of true
    tails<TAB>those that are entities<TAB>number of the others` a line, with spaces between the entities.

    A name with spaces is read as long as possible. Lines of an unknown head or relation are left out. CardkgeError,
    naming the line: other fields, an unknown tail, numbers that do not add up, the same (h, r) twice, nothing left."""
    kinds = (run.entities, "entity"), (run.relations, "relation")
    entities, relations = (Known(names, run.prefixes, kind) for names, kind in kinds)
    ids = [{name: i for i, name in enumerate(names)} for names in (run.entities, run.relations)]
    words = max((name.count(" ") for name in run.entities), default=0) + 1
    found, seen, strange = [], {}, []
    for at, fields in read_fields(path):
        if len(fields) != 5 or not all(x.strip().isascii() and x.strip().isdigit() for x in (fields[2], fields[4])):
            form = "head, relation, number of tails, tails with spaces between, number of others"
            raise CardkgeError(f"{path}:{at}: expected {form}, with tabs between, found {fields!r:.80}")
        pair = entities.find(fields[0])[0], relations.find(fields[1])[0]
        if None in pair:
            strange.append(f"line {at}, {fields[0] if pair[0] is None else fields[1]!r:.80}")
            continue
        tails = _names_in(fields[3].split(), entities, words)
        if None in tails:
            fault = entities.fault(fields[3].split()[tails.index(None)])
            raise CardkgeError(f"{path}:{at}: {fault}; count it among the others")
        if int(fields[2]) != len(set(tails)) + int(fields[4]):
            there = f"{counted(len(set(tails)), 'tail')} and {fields[4]} others stand there"
            remedy = "correct it, or a name that is there twice"
            raise CardkgeError(f"{path}:{at}: the number is {fields[2]}, but {there}; {remedy}")
        key = ids[1][pair[1]], ids[0][pair[0]]
        if key in seen:
            before = f"for the second time, after line {seen[key]}"
            raise CardkgeError(f"{path}:{at}: {pair[0]!r:.80}, {pair[1]!r:.80} {before}; keep one")
        seen[key] = at
        found += [(key[1], key[0], ids[0][tail]) for tail in sorted(set(tails))]
    if not seen:
        raise CardkgeError(f"{path}: no line is of a head and a relation of the graph; nothing to measure against")
    pairs = np.array(sorted(seen), np.int32)
    note = None
    if strange:
        note = f"{path}: left out {counted(len(strange), 'line')} of unknown heads or relations, the first {strange[0]}"
    return Truth(pairs[:, 1], pairs[:, 0], np.array(found, np.int32).reshape(-1, 3)), note


def _names_in(words, known, most):
    """The names of entities, each of up to `most` words, one after the other; None for a word that begins no name."""
    found, at = [], 0
    while at < len(words):
        lengths = range(min(most, len(words) - at), 0, -1)
        length = next((k for k in lengths if k == 1 or " ".join(words[at : at + k]) in known.names), 1)
        found.append(known.find(" ".join(words[at : at + length]))[0])
        at += length
    return found


class Tally:
    """What `evaluate_sets` adds up, block by block in any order; only integers and values kept by pair, so that no
    figure depends on the order. measured (n,) bool: the pairs whose candidates count; least: candidates more probable
    may be accepted; floor: candidates at most so probable are in bin 0."""

    def __init__(self, measured, least, floor):
        bins = int(2 * EDGE * STEPS) + 1
        self.measured, pairs = measured, len(measured)
        self.least, self.floor, self.lock = least, floor, threading.Lock()
        self.hits, self.others = np.zeros(bins, np.int64), np.zeros(bins, np.int64)
        self.expected, self.squares, self.log_loss = np.zeros(pairs), np.zeros(pairs), np.zeros(pairs)
        self.known, self.contradicted = np.zeros(pairs, np.int64), np.zeros(pairs, bool)
        self.likely = {}  # first pair of a block -> (p, is a fact) of the candidates with p >= 0.1
        self.accepted = {}  # the same, and pairs and tails, of the candidates for which (h, r) has room

    def add(self, first, last, decoded, facts, neither, room):
        """A block of pairs: Decoded, which candidates are facts, or may be (neither), (m,); room for new tails (n,)."""
        p, row, n = decoded.p, decoded.row, last - first
        bins = log_odds_bins(p, self.floor)
        here = self.measured[first:last]
        counted = here[row] & ~neither
        hits = np.bincount(bins[facts & counted], minlength=len(self.hits))
        others = np.bincount(bins[~facts & counted], minlength=len(self.hits))
        others[0] += decoded.candidates[here].sum() - np.count_nonzero(here[row])  # those that the Decoder left out
        with self.lock:
            self.hits += hits
            self.others += others
        part = slice(first, last)
        self.expected[part] = decoded.expected()
        self.squares[part] = np.bincount(row, (p - facts) ** 2 * counted, n)
        tiny = 1e-15
        loss = -np.where(facts, np.log(np.maximum(p, tiny)), np.log1p(-np.minimum(p, 1 - tiny)))
        self.log_loss[part] = np.bincount(row, loss * counted, n)
        self.known[part], self.contradicted[part] = decoded.known, decoded.contradicted
        likely = (p >= 0.1) & counted
        self.likely[first] = p[likely], facts[likely]
        places = decoding.acceptable(decoded, room, self.least)
        self.accepted[first] = p[places], facts[places], first + row[places], decoded.ids[places]

    @staticmethod
    def joined(blocks):
        """The arrays of all blocks, in the order of the pairs; at least one block."""
        return [np.concatenate(parts) for parts in zip(*(blocks[first] for first in sorted(blocks)), strict=True)]


def calibration_bins(p, facts, bins=15):
    """Bins of as equal numbers as may be, by p: (mean p, share of facts, number) of each, arrays (bins,)."""
    order = np.argsort(p, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return np.array([(p[part].mean(), facts[part].mean(), len(part)) for part in parts]).reshape(-1, 3).T


def evaluate_sets(model, calibration, bounds, dataset, threads=None, progress=None, **options):
    """How good the answers to all (h, r, ?) in scope, or to those of a Truth, are against test, given train and valid.

    bounds: Bounds (a CountPrior too), (R, 2) or None. options: those of SetOptions. The accepted facts are those that
    `complete` writes: for each (h, r), and then for each (r, t), at most as many as its upper bound leaves room for.
    Returns (measures, details): a dict of numbers, and the data of the figures; its "parts" are those of
    `promised_and_kept`, by relation and by the number of known tails. CardkgeError where no fact of test is new.

    The facts of a Truth are its tails that are entities of the graph, and loops only where these are candidates. Facts
    of test that it lacks are neither true nor false and left out of every figure; (h, r) without a true tail enter only
    the accepted, promised and kept figures."""
    how, n, r = SetOptions(**options), model.n_entities, model.n_relations
    train, valid, test = (checked_triples(x, n, r) for x in (dataset.train, dataset.valid, dataset.test))
    known = KnownTails(np.concatenate((train, valid)), n, r)
    irreflexive = without_loops(train, r) & (not how.loops)

    def answerable(triples):
        loops = irreflexive[triples[:, 1]] & (triples[:, 0] == triples[:, 2])
        return KnownTails(triples[~loops], n, r).without(known)

    if how.truth is None:
        heads, relations = decoding.scope_pairs(train, n, r, types=how.types)
        facts, wanted = KnownTails(test, n, r).without(known), answerable(test)
        measured, unsure = np.ones(len(heads), bool), KnownTails(test[:0], n, r)
    else:
        heads, relations, true = how.truth.heads, how.truth.relations, KnownTails(how.truth.triples, n, r)
        facts, unsure = answerable(how.truth.triples), answerable(test).without(true)
        measured, wanted = true.count(heads, relations) > 0, facts.joined(unsure)
    if not len(facts.keys):
        of = "of test are" if how.truth is None else "in the whole answers are"
        raise CardkgeError(f"no facts {of} new, so there is nothing to measure against")
    if not len(heads):
        raise CardkgeError("no (h, r) is in scope, so there is nothing to measure")
    decoder = Decoder(model, calibration, bounds, known, KnownAndLoops(known, irreflexive), wanted)
    tally = Tally(measured, how.floor, decoder.floor)
    limits, true_counts = decoder.bounds.of(relations, heads), known.joined(facts).count(heads, relations)
    least = np.where(calibration.unseen_of(relations) > 0, 0.0, limits[:, 0])  # or tails outside the graph count

    def consume(first, last, decoded):
        pair = first + decoded.row
        is_fact, neither = (index.has(heads[pair], relations[pair], decoded.ids) for index in (facts, unsure))
        tally.add(first, last, decoded, is_fact, neither, room_left(limits[first:last], decoded.known))

    decoder.run(heads, relations, threads, consume, progress)
    p, is_fact, pair, tails = tally.joined(tally.accepted)
    kept = accepted(decoder, np.column_stack((heads[pair], relations[pair], tails)), p, how.precision)
    kept = kept[~unsure.has(heads[pair[kept]], relations[pair[kept]], tails[kept])]
    p, is_fact, pair = p[kept], is_fact[kept], pair[kept]
    between = np.column_stack((least, limits[:, 1]))
    measures, details = _measures(tally, (p, is_fact, measured[pair]), len(facts.keys), between, true_counts)
    if how.truth is not None:
        measures["empty"] = int(np.count_nonzero(~measured))
    of_facts = facts.keys // n % n, facts.keys // n // n
    by_known = (np.minimum(x, MOST_TAILS) for x in (tally.known, known.count(*of_facts)))
    kinds = ("relation", r, relations, of_facts[1]), ("known", MOST_TAILS + 1, *by_known)
    details["parts"] = {
        name: promised_and_kept(number, of_pairs, (of_pairs[pair], p, is_fact), parts)
        for name, number, of_pairs, parts in kinds
    }
    return measures, details


def _measures(tally, taken_for_facts, n_facts, bounds, true_counts):
    """The dict of measures and the details behind the figures, of a finished Tally; taken_for_facts: for the accepted,
    best first, p, whether each is a fact, and whether its pair is measured."""
    found, taken, hits = cumulative_counts(tally.hits, tally.others)
    p, is_fact, of_measured = taken_for_facts
    right, likely = float(is_fact.sum()), tally.joined(tally.likely)
    mean_p, share, size = calibration_bins(*likely)
    here = tally.measured
    expected, known, bounds, true_counts = (x[here] for x in (tally.expected, tally.known, bounds, true_counts))
    outside = (expected < bounds[:, 0] - 1e-9) | (expected > bounds[:, 1] + 1e-9)
    measures = {
        "ap": float((hits * found / taken).sum() / n_facts),
        "best_f1": float((2 * found / (taken + n_facts)).max(initial=0)),
        "f1": float(2 * right / (np.count_nonzero(of_measured) + n_facts)),
        "precision": float(right / len(p)) if len(p) else None,
        "recall": float(right / n_facts),
        "accepted": len(p),
        "mean_probability": float(p.mean()) if len(p) else None,
        "threshold": float(p[-1]) if len(p) else None,
        "ece": float((size * np.abs(mean_p - share)).sum() / max(size.sum(), 1)),
        "brier": float(tally.squares.sum() / n_facts),
        "log_loss": float(tally.log_loss.sum() / n_facts),
        "count_mae": float(np.abs(expected - true_counts).mean()),
        "known_count_mae": float(np.abs(known - true_counts).mean()),
        "out_of_bounds": float((outside & ~tally.contradicted[here]).mean()),
        "contradicted": int(tally.contradicted.sum()),
        "pairs": len(here),
        "facts": n_facts,
    }
    details = {
        "recall": found / n_facts, "precision": found / taken, "bins": (mean_p, share, size),
        "expected": expected, "true": true_counts, "known": known,
    }  # fmt: skip
    return measures, details
