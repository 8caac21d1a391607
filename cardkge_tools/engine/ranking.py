"""Ranks, metrics, completions and exact sums X_hr, by blocks of queries: `filtered_ranks` of cardkge.py, fast."""

import contextlib
import itertools
import threading
import typing
from dataclasses import dataclass

import numpy as np

import kernels
from cardkge import TIES, CardkgeError, as_bounds, checked_triples, is_bounded, metrics_by_side, probability
from cardkge_tools.engine.batches import Threads, sorted_distinct
from cardkge_tools.engine.gradients import OWN, kind_of, output_of


def check_finite(arrays, where="the model"):
    """CardkgeError that names the first array (of a dict) with a NaN or an infinity, and counts them."""
    for name, array in arrays.items():
        parts = np.array_split(array.ravel(), array.size // 2**20 + 1)  # one mask would be as large as the table
        bad = array.size - sum(np.count_nonzero(np.isfinite(part)) for part in parts)
        if bad:
            what = f"{bad} of the {array.size} values of {name} are NaN or infinite"
            raise CardkgeError(f"{where}: {what}; train again, for instance with a smaller learning rate")


def check_vocabulary(model, triples):
    """CardkgeError where the triples have another vocabulary than the model, as of data loaded apart from the run."""
    ours, theirs = getattr(model, "vocabulary", None), getattr(triples, "vocabulary", None)
    if None not in (ours, theirs) and ours != theirs:
        remedy = "align_dataset(dataset, run) gives them its ids"
        raise CardkgeError(f"triples: their ids stand for other names than the run's; {remedy}")


class Queries(typing.NamedTuple):
    """Queries: entities (n,) in relations (n,) whose tail (open_side 1) or head (0) is open."""

    ids: np.ndarray
    relations: np.ndarray
    open_side: int = 1


def scored_blocks(model, queries, threads, consume, batch_size=None, progress=None, columns=None):
    """Scores every entity in the open place of Queries, block by block: consume(first, last, scores (last - first, N)).

    Each thread keeps one block in memory: `batch_size` queries, by default 64, or fewer where N is large. columns: how
    many entities at once, None for all; with it consume(first, last, scores, start) gets the entities from `start` on,
    one tile of a block after the other."""
    ids, relations, open_side = queries
    n, entity, relation = model.n_entities, model.params["entity"], model.params["relation"]
    block, width = batch_size or max(1, min(64, 2**24 // n)), min(columns or n, n)
    mlp, own = kind_of(model) == kernels.ERMLP, kind_of(model) is OWN
    candidates = entity
    if mlp or own:
        h, _, t = model.encode(entity, relation[:1], entity)
        candidates = (h, t)[open_side]
    tiles = [candidates[start : start + width].T for start in range(0, n, width)]
    if mlp:
        tiles = [np.ascontiguousarray(tile) for tile in tiles]
    local, done = threading.local(), []

    def score(first, last):
        if not hasattr(local, "scores"):
            local.scores = np.empty(block * width, model.dtype)
        given = entity[ids[first:last]]
        h, r, t = model.encode(given, relation[relations[first:last]], given)
        rows = model.query_tails(h, r) if open_side else model.query_heads(r, t)
        for number, tile in enumerate(tiles):
            scores = local.scores[: len(rows) * tile.shape[1]].reshape(len(rows), -1)
            if own:
                scores[...] = model.match(rows, tile.T)
            elif mlp:
                kernels.hidden_scores(rows, tile, output_of(model), scores)
            else:
                np.matmul(rows, tile, out=scores)
            consume(first, last, scores, *([number * width] if columns else []))
        if progress:
            done.append(last - first)
            progress(sum(done), len(ids))

    threads.run(score, len(ids), size=block)


LEAST, MOST = 16, 256  # queries of a block
TILE = 4096  # entities scored at once for a block of queries: the scores stay in the cache


def score_tables(model):
    """The tables of `kernels.triple_score`: (rows, relation rows, output), and the place where the rows of tails begin.
    ER-MLP has hidden rows, first of heads and then of tails; equal entities have equal bits there."""
    entity, relation = model.params["entity"], model.params["relation"]
    if kind_of(model) != kernels.ERMLP:
        return (entity, relation, output_of(model)), 0
    w_h, w_t, w_r = np.split(model.params["hidden"], 3)
    rows = np.empty((2 * model.n_entities, model.hidden), model.dtype)
    kernels.product_of_rows(entity, w_h, rows[: model.n_entities])
    kernels.product_of_rows(entity, w_t, rows[model.n_entities :])
    return (rows, relation @ w_r, output_of(model)), model.n_entities


def exact_scores(model, relation, head=None, tail=None):
    """(N,) scores of every entity as the tail of (head, relation, ?) or the head of (?, relation, tail), by the kernel
    that settles ties in `rank_triples`: entities that tie have equal scores, on every BLAS library."""
    side = 1 if tail is None else 0
    triple = np.array([[0 if head is None else head, relation, 0 if tail is None else tail]], np.int32)
    triple, side = as_scored(model, checked_triples(triple, model.n_entities, model.n_relations), side)
    if kind_of(model) is OWN:
        return phi_of(model, triple[0], side, np.arange(model.n_entities))
    tables, tail_offset = score_tables(model)
    scores, entities = np.empty(model.n_entities, model.dtype), np.arange(model.n_entities)
    kernels.exact_scores(kind_of(model), tables, tail_offset, side, triple, np.zeros_like(entities), entities, scores)
    return scores


def longest_row(rows):
    """The largest norm of the rows of a matrix, in float64."""
    parts = np.array_split(rows, len(rows) // 4096 + 1)
    return float(np.sqrt(max(np.einsum("ij,ij->i", part, part, dtype=np.float64).max() for part in parts)))


def rounding_bounds(model, tables, triples, side, longest):
    """For each triple with its head (side 0) or tail (1) open, how much two computations of one score may differ: each
    is within (w + 4) u sum |terms| of the true sum, in any order of summation (Higham 2002, Section 3.1; u = eps / 2),
    and sum |terms| <= || |given row| |r| || times the longest row, of norm `longest`."""
    rows, relation_rows, output = tables
    eps = float(np.finfo(model.dtype).eps)
    if kind_of(model) is OWN:  # its rounding depends on the size of its scores alone: see `Questions.count_own`
        return np.full(len(triples), OWN_ROUNDING * eps)
    if kind_of(model) == kernels.ERMLP:
        # terms below |w_i|, of a tanh within 4e-7 (float32) whose argument is rounded too
        argument = 2 * float(np.abs(rows).max(initial=0)) + float(np.abs(relation_rows).max())
        error = (len(output) + 8) * max(eps, 4e-7 if model.dtype == np.float32 else 0) + 4 * eps * argument
        return np.full(len(triples), 2 * error * np.abs(output).sum(dtype=np.float64))
    norms = np.empty(len(triples))
    for i in range(0, len(triples), 1024):
        given, r = rows[triples[i : i + 1024, 2 - 2 * side]], relation_rows[triples[i : i + 1024, 1]]
        if kind_of(model) == kernels.COMPLEX:
            # moduli: the four terms of x y times the two of z are <= sqrt(2) |x| |y| |z|
            given, r = (2**0.25 * np.hypot(*np.split(x, 2, -1)) for x in (given, r))
        norms[i : i + 1024] = np.linalg.norm(given.astype(np.float64) * r, axis=1)
    return (rows.shape[1] + 8) * eps * longest * norms


def ranges(dataset):
    """Candidates by relation, (heads, tails): for each relation the sorted ids that stand on that side in train."""
    n, found = dataset.n_entities, []
    for column in (0, 2):
        pairs = sorted_distinct(dataset.train[:, 1].astype(np.int64) * n + dataset.train[:, column])
        limits = np.searchsorted(pairs, np.arange(dataset.n_relations + 1) * n)
        found.append([pairs[i:j] % n for i, j in itertools.pairwise(limits)])
    return tuple(found)


def leave_out(scores, start, questions, masked, among):
    """Sets the score of every entity that is not a candidate to -infinity. scores (n, w) of the entities from `start`
    on; questions (n, 3): (given, relation, answer); masked (n,): true where the given entity is not a candidate; among:
    None, or for each relation the ids of the candidates; the answer always is one."""
    width = scores.shape[1]
    given = questions[:, 0] - start
    rows = np.flatnonzero(masked & (given >= 0) & (given < width))
    scores[rows, given[rows]] = -np.inf
    if among is None:
        return
    for row, relation, answer in zip(scores, *questions[:, 1:].T.tolist()):
        ids = among[relation]
        ids = ids[np.searchsorted(ids, start) : np.searchsorted(ids, start + width)] - start
        if start <= answer < start + width:
            ids = np.append(ids, answer - start)
        kept = row[ids]
        row[:] = -np.inf
        row[ids] = kept


@dataclass(frozen=True, eq=False)
class Candidates:
    """The entities among which a right answer, itself always a candidate, is ranked.

    loopless (R,) bool: the irreflexive relations, where the given entity is not a candidate. among: (heads, tails) as
    `ranges` gives them; None for all entities."""

    loopless: np.ndarray | None = None
    among: tuple | None = None


def rank_triples(model, triples, known=None, ties="realistic", threads=None, progress=None, candidates=Candidates()):
    """The rank of the right head among all entities for (?, r, t), and of the right tail for (h, r, ?).

    triples (n, 3) ids; known (m, 3): all true triples, of train, valid and test. Returns {"raw": ranks} and, with
    known, {"filtered": ranks}, (n, 2) float64 each, column 0 the head's rank, column 1 the tail's. Filtered: other true
    answers are left out. Ties: "optimistic" the best rank among equal scores, "pessimistic" the worst, "realistic"
    their mean. threads: a number, None for all, or a `Threads`. Any thread calls progress(done, total). Raises
    CardkgeError for ids out of range or a score that is NaN.

    Scores come from matrix products, whose rounding depends on the place of an element. Where a score is so near the
    right answer's that rounding could decide, `kernels.exact_scores` computes both: equal rows tie, and no rank depends
    on block size, threads or BLAS library."""
    if ties not in TIES:
        raise CardkgeError(f"ties must be one of {', '.join(TIES)}; found {ties}")
    check_finite(model.params)
    sizes = model.n_entities, model.n_relations
    check_vocabulary(model, triples)
    triples = checked_triples(triples, *sizes)
    known_triples = triples[:0] if known is None else checked_triples(known, *sizes)
    tables, longest = score_tables(model), longest_row(model.params["entity"])
    counts = np.zeros((2, len(triples), 4), np.int64)
    with contextlib.nullcontext(threads) if isinstance(threads, Threads) else Threads(threads) as threads:
        for side in range(2):  # 0: the head is open

            def report(done, n):
                progress(side * n + done, 2 * n)

            questions = Questions(model, triples, side, known_triples, tables, longest, candidates)
            questions.count(counts[side], threads, progress and report)
    if (counts[:, :, 1] < 0).any():
        raise CardkgeError("a score is NaN: the parameters are too large for their dtype; no rank can be taken")
    share = {"optimistic": 0.0, "realistic": 0.5, "pessimistic": 1.0}[ties]
    ranks = {"raw": (1 + counts[:, :, 0] + share * counts[:, :, 1]).T}
    if known is not None:
        ranks["filtered"] = (1 + counts[:, :, 2] + share * counts[:, :, 3]).T
    return ranks


class Questions:
    """The queries of triples (n, 3) with head (side 0) or tail (1) open: counts of entities that beat the answer."""

    def __init__(self, model, triples, side, known, tables, longest, candidates):
        self.model, (self.tables, self.tail_offset) = model, tables
        self.known = true_answers(triples, known, side, model)
        self.asked, self.place = as_scored(model, triples, side)
        self.answers = np.ascontiguousarray(self.asked[:, 2 * self.place])
        # (given entity, relation of the data, answer)
        self.named = np.stack((self.asked[:, 2 - 2 * self.place], triples[:, 1], self.answers), axis=1)
        self.masked, self.among = np.zeros(len(triples), bool), candidates.among and candidates.among[side]
        if candidates.loopless is not None:
            self.masked = candidates.loopless[self.named[:, 1]] & (self.named[:, 0] != self.answers)
        self.tolerances = rounding_bounds(model, self.tables, self.asked, self.place, longest)

    def exact(self, questions, entities):
        """Scores of entities as answers to queries, (n,) each, by the one kernel that settles ties."""
        out, kind = np.empty(len(questions), self.model.dtype), kind_of(self.model)
        kernels.exact_scores(kind, self.tables, self.tail_offset, self.place, self.asked, questions, entities, out)
        return out

    def count(self, counts, threads, progress=None):
        """Adds (above, equal, above and filtered, equal and filtered) to counts (n, 4); a NaN makes equal negative."""
        n, own, local = len(self.asked), kind_of(self.model) is OWN, threading.local()
        # a block takes its tiles in turn, and a tile stays in the cache; two blocks for each thread, as one may be slow
        block, width = min(max(LEAST, -(-n // (2 * threads.count))), MOST), TILE
        if own:
            block, width = min(block, max(1, 2**24 // self.model.n_entities)), self.model.n_entities
        else:
            right = self.exact(np.arange(n), self.answers)
            counts[np.isnan(right), 1] = -(2**62)
            low = np.nextafter((right - self.tolerances).astype(right.dtype), right.dtype.type(-np.inf))
            high = np.nextafter((right + self.tolerances).astype(right.dtype), right.dtype.type(np.inf))
        starts, stops, known = self.known

        def count(first, last, scores, start):
            part = slice(first, last)
            leave_out(scores, start, self.named[part], self.masked[part], self.among)
            if own:
                self.count_own(first, scores, counts)
                return
            if not hasattr(local, "near"):
                local.near = np.empty((2, block * min(width, self.model.n_entities)), np.int64)
            near = kernels.count_better(
                scores, start, low[part], high[part], self.answers[part], starts[part], stops[part], known,
                counts[part], *local.near,
            )  # fmt: skip
            if near:
                questions, entities = local.near[:, :near]
                questions += first
                exact = self.exact(questions, entities)
                kernels.count_near(questions, entities, exact, right, starts, stops, known, counts)

        queries = Queries(self.named[:, 0], self.asked[:, 1], self.place)
        scored_blocks(self.model, queries, threads, count, block, progress, width)

    def count_own(self, first, scores, counts):
        """`kernels.count_better` of the queries from `first` on, for a model unknown to the kernels: `match` scores all
        entities, and `phi` scores those near the right answer again."""
        starts, stops, known = self.known
        for place, row in enumerate(scores, first):
            triple, answer, tolerance = self.asked[place], self.answers[place], self.tolerances[place]
            others = known[starts[place] : stops[place]]
            others = others[others != answer]
            finite = row[np.isfinite(row)]
            if np.isnan(row).any() or len(finite) == 0:
                counts[place] = -1
                continue
            near = np.flatnonzero(np.abs(row - row[answer]) <= tolerance * max(1.0, float(np.abs(finite).max())))
            near = np.union1d(near, answer)
            above, equal = row > row[answer], np.zeros(len(row), bool)
            exact = phi_of(self.model, triple, self.place, near)
            right = exact[np.searchsorted(near, answer)]
            above[near], equal[near] = exact > right, exact == right
            if np.isnan(exact).any():
                counts[place] = -1
                continue
            raw = above.sum(), equal.sum() - 1
            counts[place] = *raw, raw[0] - above[others].sum(), raw[1] - equal[others].sum()


def as_scored(model, triples, side):
    """(triples, side) whose scores answer the queries of triples (n, 3) with their head (side 0) or tail (1) open: a
    reciprocal model answers (?, r, t) by the tails of (t, r + R)."""
    if not model.reciprocal or side == 1:
        return triples, side
    return np.ascontiguousarray(triples[:, ::-1]) + np.array([0, model.n_relations, 0], triples.dtype), 1


OWN_ROUNDING = 256  # times eps and the largest score of a query: how much match may differ from phi


def phi_of(model, triple, side, entities):
    """phi with these entities, in turn, in the open place of the triple: (n,)."""
    h, r, t = (np.full(len(entities), part) for part in triple)
    return model.score(h, r, entities) if side else model.score(entities, r, t)


def true_answers(triples, known, side, model):
    """The filter: the known answers to the query of each triple with its head (side 0) or tail (1) open.

    Returns (starts, stops, ids): ids[starts[i] : stops[i]] are those of triple i, each once, its own among them."""
    n = model.n_entities

    def questions(part):
        return part[:, 2 - 2 * side].astype(np.int64) * model.n_relations + part[:, 1]

    distinct, which = np.unique(questions(triples), return_inverse=True)
    pairs = []
    for start in range(0, len(known), 2**20):  # `known` may be much larger than `triples`
        part = known[start : start + 2**20]
        keys = questions(part)
        place = np.searchsorted(distinct, keys)
        relevant = np.append(distinct, -1)[place] == keys
        pairs.append(place[relevant] * n + part[relevant, 2 * side])
    pairs = sorted_distinct(np.concatenate([np.zeros(0, np.int64), *pairs]))
    limits = np.searchsorted(pairs, np.arange(len(distinct) + 1) * n)
    return limits[which], limits[which + 1], (pairs % n).astype(np.int32)


def evaluate(model, triples, known=None, ties="realistic", threads=None, progress=None, candidates=Candidates()):
    """{"filtered": metrics_by_side, "raw": metrics_by_side} of `rank_triples`; without known only "raw"."""
    ranks = rank_triples(model, triples, known, ties, threads, progress, candidates)
    return {setting: metrics_by_side(ranks[setting]) for setting in sorted(ranks)}


def completions(model, relation, head=None, tail=None):
    """All entities as the tail of (head, relation, ?) or the head of (?, relation, tail), likeliest first, ties by id:
    (ids, probabilities, scores), a list of N each. CardkgeError for ids out of range, or both or none of head, tail."""
    if (head is None) == (tail is None):
        raise CardkgeError("a completion needs a head or a tail, and not both")
    scores = exact_scores(model, relation, head, tail)
    order = np.argsort(-scores, kind="stable")
    return order.tolist(), probability(scores[order]).tolist(), scores[order].tolist()


def cardinality_violations(model, bounds, triples, threads=None, progress=None):
    """Exact X_hr (Eq. 4) of all subjects of each bounded relation, the heads of r in `triples` (train).

    bounds: Bounds, or (R, 2). A bound of an inverse is on X_rt, the sum over heads, for the tails of r in `triples`.
    Returns a dict for each bounded relation that has subjects: relation (id), inverse, lower, upper (the least and the
    largest of its subjects), subjects (how many), outside (share of X outside the subject's bounds), mean, quartiles
    (3,), heads (n,) ids of the subjects, sums (n,) their X, float64."""
    check_finite(model.params)
    check_vocabulary(model, triples)
    triples = checked_triples(triples, model.n_entities, model.n_relations)
    bounds = as_bounds(bounds, model.n_relations)
    parts = []
    for inverse in (False, True):
        of_bounded = triples[bounds.is_bounded(inverse)[triples[:, 1]]]
        column = 2 if inverse else 0
        pairs = sorted_distinct(of_bounded[:, 1].astype(np.int64) * model.n_entities + of_bounded[:, column])
        parts.append((inverse, *np.divmod(pairs, model.n_entities)))
    total, found = sum(len(relations) for _, relations, _ in parts), []
    with Threads(threads) as threads:
        for number, (inverse, relations, subjects) in enumerate(parts):
            before = len(parts[0][1]) * number

            def report(done, _):
                progress(before + done, total)

            sums = exact_sums(model, inverse, relations, subjects, threads, progress and report)
            limits = bounds.of(relations, subjects, inverse)
            for relation in np.unique(relations).tolist():
                here = relations == relation
                if not is_bounded(limits[here]).any():
                    continue  # the bounds hold for a class without subjects
                found.append(_violations_of(relation, inverse, subjects[here], sums[here], limits[here]))
    return sorted(found, key=lambda each: (each["relation"], each["inverse"]))


def exact_sums(model, inverse, relations, subjects, threads, progress=None):
    """(n,) float64: X_hr of each (subject, relation), the sum over all tails; if inverse X_rt, over all heads."""
    sums = np.empty(len(relations))

    def add_up(first, last, scores):
        sums[first:last] = sums_of_sigma(scores)

    if len(relations):
        scored_blocks(model, Queries(subjects, relations, 0 if inverse else 1), threads, add_up, progress=progress)
    return sums


def sums_of_sigma(scores):
    """(n,) float64: X, the sum of sigma over each row of scores (n, N)."""
    with np.errstate(over="ignore"):  # for scores so low that sigma is 0
        return (1 / (1 + np.exp(-scores))).sum(1, dtype=np.float64)


def _violations_of(relation, inverse, subjects, x, limits):
    lower, upper = limits.T
    one = {"relation": relation, "inverse": inverse, "lower": float(lower.min()), "upper": float(upper.max())}
    one |= {"subjects": len(x), "outside": float(((x < lower) | (x > upper)).mean()), "mean": float(x.mean())}
    return one | {"quartiles": np.percentile(x, (25, 50, 75)).tolist(), "heads": subjects, "sums": x}
