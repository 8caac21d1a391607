"""The fit of a calibration on valid, and of what known counts teach: `definitions/counting` over a graph."""

import itertools
from dataclasses import dataclass

import numpy as np

import kernels
from cardkge import Bounds, CardkgeError, checked_triples
from cardkge_tools.answers.decoding import Decoder, KnownTails, block_of, loops_to_leave_out, scope_pairs
from cardkge_tools.definitions.counting import N_KNOWN, count_weights, fit_calibration, fit_counts
from cardkge_tools.engine.batches import Threads
from cardkge_tools.engine.ranking import Queries, scored_blocks
from cardkge_tools.shell.files import FORMAT_VERSION, check_version, json_bytes, read_json

BEST = 30  # candidates of each (h, r) that the fit sees all of
DRAWN = 8  # and those drawn from the rest, each standing for many
PAIRS = 20_000  # (h, r) without an answer in valid that the fit sees, spread over the relations
MOST_PAIRS = 240_000  # as long as no more than these, 1000 of each: with 100, p is far over-confident on fb15k-237
PRIOR = 0.1  # precision, in log odds, of a relation's calibration around that of all; chosen within valid
MOST_KNOWN = 1000  # tails; a CountPrior says nothing of heads with more
GROUPS = 13  # of numbers of known tails, which a CountPrior tells apart
SIZES = 16  # numbers of new tails that a CountPrior tells apart, the last with all above it


ANEW = "`calibrate` writes it anew"  # the remedy of a calibration.json


@dataclass(frozen=True, eq=False)
class Calibration:
    """How the scores of a model become probabilities.

    coefficients (R, 3, 3) float64 as `calibration_logits` takes them; share: v, the part of the facts missing from
    train that valid holds; valid, missing: the counts behind it; prior: a CountPrior, of a run with mined bounds.
    """

    coefficients: np.ndarray
    share: float
    valid: int = 0
    missing: int = 0
    prior: "CountPrior | None" = None


@dataclass(eq=False)
class CountPrior(Bounds):
    """What the known counts of a relation say of how many tails a head has, in the place of bounds: the weights of step
    4 in cardkge.py. counts: P(c) of each relation, of `fit_counts`; usual (R, GROUPS, SIZES): M(j) by `group_of` the
    known tails; heads (R, GROUPS): how many heads it is the average of; share: s, the part of all facts that is known.
    """

    counts: list
    usual: np.ndarray
    heads: np.ndarray
    share: float

    def __post_init__(self):
        super().__init__(np.tile([0.0, np.inf], (len(self.counts), 1)))  # no number is forbidden

    def weights(self, relations, known):
        """(n, SIZES) float64: the weights of (h, r) with so many known tails (n,)."""
        pairs, which = np.unique(np.column_stack((relations, known)), axis=0, return_inverse=True)
        rows = np.ones((len(pairs), SIZES))
        for row, (r, k) in zip(rows, pairs.tolist(), strict=True):
            of = r, int(group_of(k))
            if k <= MOST_KNOWN and self.heads[of]:
                row[:] = count_weights(self.counts[r], self.share, k, self.usual[of], self.heads[of])
        return rows[which.ravel()]


def group_of(known):
    """The group, 0 to GROUPS - 1, of numbers of known tails: 0 to 4, to 8, to 16, and so on, twice as many each."""
    known = np.asarray(known)
    return np.where(known <= 4, known, np.minimum(np.ceil(np.log2(np.maximum(known, 1))) + 2, GROUPS - 1)).astype(int)


def calibrate(model, train, valid, missing, share=None, seed=0, threads=None, progress=None, prior=PRIOR, types=None):
    """The Calibration of a model trained on `train` (n, 3), fitted on `valid` (m, 3).

    missing: how many facts are in neither, so that share v = m / (m + missing), unless v is given. Every (h, r) in
    scope with an answer in valid takes part, and a sample, weighted, of the others: of each its BEST best candidates
    and DRAWN of the rest, weighted too. Loops are no candidates where train has none. Relations are fitted together,
    then each alone, held by a Gaussian prior of precision `prior` (of standardised features) at what all have in
    common. CardkgeError where valid has no fact in scope, or v is not between 0 and 1.
    """
    n, r = model.n_entities, model.n_relations
    train, valid = checked_triples(train, n, r), checked_triples(valid, n, r)
    share = len(valid) / (len(valid) + missing) if share is None and len(valid) else share
    if share is None or not 0 < share < 1:
        raise CardkgeError(f"calibration: the share of missing facts that valid holds must be in (0, 1), found {share}")
    scope = scope_pairs(train, n, r, types=types)
    heads, relations, weights = _fitting_pairs(*scope, valid, n, r, np.random.default_rng([seed, 5]))
    rows = _fitting_rows(model, train, valid, heads, relations, weights, seed, threads, progress)
    relation, scores, sums, known, found, weight = rows
    if not found.any():
        raise CardkgeError("calibration: no fact of valid has a head in the scope of its relation; nothing to fit on")
    centre, spread = np.average(sums, weights=weight), max(float(np.std(sums)), 1e-6)
    features = np.column_stack((scores - sums, (sums - centre) / spread, np.ones(len(sums))))
    coefficients, ones = np.empty((r, N_KNOWN, 3)), np.ones(3)
    of_all = fit_calibration(features, found, weight, share, 0 * ones, 1e-3 * ones)
    limits = np.searchsorted(relation, np.arange(r + 1))  # rows are ordered by relation
    for k in range(N_KNOWN):
        chosen = np.minimum(known, N_KNOWN - 1) == k
        common = fit_calibration(features[chosen], found[chosen], weight[chosen], share, of_all, prior * ones)
        for i in range(r):
            part = limits[i] + np.flatnonzero(chosen[limits[i] : limits[i + 1]])
            u, a, c = fit_calibration(features[part], found[part], weight[part], share, common, prior * ones)
            a /= spread
            coefficients[i, k] = a, np.exp(u) - a, c - a * centre
    return Calibration(coefficients, float(share), len(valid), int(missing))


def learn_counts(model, calibration, train, valid, seed=0, threads=None, types=None):
    """The CountPrior of a calibrated model, from the tails in train and valid of all (h, r) in scope; what the model
    expects of them is taken from a sample."""
    n, r = model.n_entities, model.n_relations
    train, valid = checked_triples(train, n, r), checked_triples(valid, n, r)
    known = KnownTails(np.concatenate((train, valid)), n, r)
    heads, relations = scope_pairs(train, n, r, types=types)
    share = len(known.keys) / (len(known.keys) + len(valid) * (1 / calibration.share - 1))
    found = known.count(heads, relations)
    groups, rng = relations.astype(np.int64) * GROUPS + group_of(found), np.random.default_rng([seed, 8])
    counts = []
    for first, last in itertools.pairwise(np.searchsorted(relations, np.arange(r + 1))):
        own = found[first:last][found[first:last] <= MOST_KNOWN]
        counts.append(fit_counts(own, share) if len(own) else np.ones(1))
    shuffled = rng.permutation(len(heads))
    shuffled = shuffled[np.argsort(groups[shuffled], kind="stable")]
    rank = np.arange(len(heads)) - np.searchsorted(groups[shuffled], groups[shuffled])
    chosen = np.sort(shuffled[rank < max(PAIRS // r, 100)])
    heads, relations, groups = heads[chosen], relations[chosen], groups[chosen]
    excluded = known.joined(KnownTails(loops_to_leave_out(train, heads, relations, r), n, r))
    sizes = np.empty((len(chosen), SIZES))

    def collect(first, last, decoded):
        kernels.size_chances(decoded.starts, decoded.p, sizes[first:last])

    Decoder(model, calibration, None, known, excluded).run(heads, relations, threads, collect)
    usual, of = np.zeros((r * GROUPS, SIZES)), np.bincount(groups, minlength=r * GROUPS)
    np.add.at(usual, groups, sizes)
    usual /= np.maximum(of, 1)[:, None]
    return CountPrior(counts, usual.reshape(r, GROUPS, SIZES), of.reshape(r, GROUPS), float(share))


def _fitting_pairs(heads, relations, valid, n_entities, n_relations, rng):
    """(heads, relations, weights) of those of the pairs in scope that the fit sees, ordered by relation, head."""
    answered = KnownTails(valid, n_entities, n_relations).count(heads, relations) > 0
    kept, weights = answered.copy(), np.ones(len(heads))
    most = max(PAIRS // n_relations, min(1000, MOST_PAIRS // n_relations), 100)
    limits = np.searchsorted(relations, np.arange(n_relations + 1))
    for first, last in itertools.pairwise(limits):
        others = first + np.flatnonzero(~answered[first:last])
        chosen = others if len(others) <= most else rng.choice(others, most, replace=False)
        kept[chosen] = True
        weights[chosen] = len(others) / max(len(chosen), 1)
    return heads[kept], relations[kept], weights[kept]


def _fitting_rows(model, train, valid, heads, relations, pair_weights, seed, threads, progress):
    """The candidates of these pairs that the fit sees: relation, score, log sum, known tails, whether in valid, and
    weight, arrays (rows,) each, ordered by pair."""
    n = model.n_entities
    known = KnownTails(train, n, model.n_relations)
    excluded = known.joined(
        KnownTails(loops_to_leave_out(train, heads, relations, model.n_relations), n, model.n_relations)
    )
    answers = KnownTails(valid, n, model.n_relations).without(excluded)
    draws = np.random.default_rng([seed, 6]).integers(n, size=(len(heads), DRAWN))
    best, blocks = min(BEST, n), {}

    def collect(first, last, scores):
        part = slice(first, last)
        size, row = last - first, np.arange(last - first)
        sums, largest = np.empty(size), scores.max(1)
        kernels.log_sums(scores, largest, sums)
        starts, taken = excluded.of(heads[part], relations[part])
        found_starts, found = answers.of(heads[part], relations[part])
        taken_row, found_row = np.repeat(row, np.diff(starts)), np.repeat(row, np.diff(found_starts))
        ranked, weight = scores.copy(), np.zeros(scores.shape)
        ranked[taken_row, taken] = -np.inf
        top = np.argpartition(ranked, n - best, axis=1)[:, n - best :]
        weight[row[:, None], top], weight[found_row, found], weight[taken_row, taken] = 1, 1, -1
        fresh = weight[row[:, None], draws[part]] == 0
        each = (weight == 0).sum(1) / np.maximum(fresh.sum(1), 1)
        drawn_row = np.repeat(row, fresh.sum(1))
        np.add.at(weight, (drawn_row, draws[part][fresh]), each[drawn_row])
        i, t = np.nonzero(weight > 0)
        is_in = np.zeros(scores.shape, bool)
        is_in[found_row, found] = True
        count = known.count(heads[part], relations[part])[i]
        blocks[first] = (
            relations[part][i],
            scores[i, t],
            sums[i],
            count,
            is_in[i, t],
            weight[i, t] * pair_weights[part][i],
        )

    with Threads(threads) as pool:
        scored_blocks(model, Queries(heads, relations), pool, collect, block_of(n), progress)
    if not blocks:
        raise CardkgeError("calibration: train has no triples, so no (h, r) is in scope")
    return [np.concatenate([blocks[first][i] for first in sorted(blocks)]) for i in range(6)]


def calibration_bytes(found, relations, epoch):
    """calibration.json of a Calibration: for each of the relations, names, a, b, c of `calibration_logits`, for 0, 1
    and more known tails; epoch: of the model that it is fitted to."""
    names = "score", "log_softmax", "constant"
    coefficients = {
        relation: dict(zip(names, rows.T.tolist(), strict=True))
        for relation, rows in zip(relations, found.coefficients, strict=True)
    }
    counts = {"share": found.share, "valid": found.valid, "missing": found.missing}
    content = {"format_version": FORMAT_VERSION, "epoch": epoch, **counts, "coefficients": coefficients}
    if found.prior is not None:
        prior, of = found.prior, {}
        for name, own, usual, heads in zip(relations, prior.counts, prior.usual, prior.heads, strict=True):
            groups = {str(i): {"heads": int(heads[i]), "sizes": usual[i].tolist()} for i in np.flatnonzero(heads)}
            of[name] = {"counts": own.tolist(), "groups": groups}
        content["prior"] = {"share": prior.share, "relations": of}
    return json_bytes(content)


def _read_prior(value, relations):
    """The CountPrior in a calibration, or None; ValueError and the like where it is none."""
    if value is None:
        return None
    rows = [value["relations"][relation] for relation in relations]
    counts = [np.array(row["counts"], float) for row in rows]
    usual, heads = np.zeros((len(rows), GROUPS, SIZES)), np.zeros((len(rows), GROUPS), int)
    for i, row in enumerate(rows):
        for group, of in row["groups"].items():
            usual[i, int(group)], heads[i, int(group)] = of["sizes"], of["heads"]
    if any(x.ndim != 1 or not len(x) for x in counts):
        raise ValueError("its counts have another shape")
    if not all(np.isfinite(x).all() and (x >= 0).all() for x in [usual, heads, *counts]) or not 0 < value["share"] < 1:
        raise ValueError("a count is out of range")
    return CountPrior(counts, usual, heads, float(value["share"]))


def read_calibration(path, relations, epoch):
    """The Calibration that `calibration_bytes` wrote, None where there is no file. CardkgeError where it is damaged, or
    of other relations or another epoch."""
    if not path.exists():
        return None
    value = read_json(path, ANEW)
    check_version(path, value.get("format_version"), ANEW)
    try:
        rows = [value["coefficients"][relation] for relation in relations]
        coefficients = np.array([[row[name] for name in ("score", "log_softmax", "constant")] for row in rows], float)
        calibration = Calibration(
            np.ascontiguousarray(coefficients.transpose(0, 2, 1)), float(value["share"]), int(value["valid"]),
            int(value["missing"]), _read_prior(value.get("prior"), relations),
        )  # fmt: skip
        sound = np.isfinite(coefficients).all() and (coefficients[:, :2].sum(1) > 0).all() and 0 < calibration.share < 1
        if coefficients.shape[1:] != (3, N_KNOWN) or not sound:
            raise ValueError("a coefficient is out of range")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise CardkgeError(f"{path}: not a calibration of this run ({error}); {ANEW}") from error
    if value.get("epoch") != epoch:
        raise CardkgeError(f"{path}: of epoch {value.get('epoch')}, and the run has gone on; {ANEW}")
    return calibration
