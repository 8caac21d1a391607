"""The gradients of a step under softmax over all entities: `softmax_objective`, by blocks and on several threads.

Letters: n rows of a batch, each a query with some of its answers in the batch; m candidates, the columns; w reals
in a row of a table; N entities, R relations.

A query leaves one place of a triple open: (h, r, ?), (?, r, t) or (h, ?, t). The rows of the two given places make a
vector, which gives a score with each row of the table of the open place. DistMult and ComplEx are linear in each row:
the score is an inner product, and sum_i u_i phi(h, r, t_i) = phi(h, r, sum_i u_i t_i), so one backward pass of phi,
with that sum in the open place, gives the gradients of the two others. ER-MLP's vector is the sum of two hidden rows,
and its score w . tanh(vector + row)."""

from dataclasses import dataclass

import numpy as np

import kernels
from cardkge import is_bounded, probability, violation
from cardkge_tools.engine.gradients import Buffers, Rows, kind_of, with_objective

HEAD, RELATION, TAIL = range(3)  # places of a triple
BLOCK = 64  # rows of one matrix product: fixed, so that its bits do not depend on the threads
SCORES = 2**24  # scores in memory at once (at least one row)
COLUMNS = 1024  # columns of one product of the backward pass


class Table:
    """Rows to score, and the sum of their gradients; `begun` tells whether that sum holds numbers."""

    def __init__(self, rows, gradient, begun):
        self.rows, self.gradient, self.begun = rows, gradient, begun

    def add(self, ids, values):
        """Adds values[i] (n, w) to the gradient of row ids[i]; an id may repeat."""
        order = np.argsort(ids, kind="stable")
        starts = np.flatnonzero(np.diff(ids[order], prepend=-1))
        self.gradient[ids[order[starts]]] += np.add.reduceat(values[order], starts)


@dataclass(frozen=True)
class Targets:
    """The answers to n queries. Answer x is column answers[x] of row rows[x] and counts times[x] times; the pairs are
    sorted and distinct; counts (n,) is the sum of times for each row. masked (n,): a column that is not a candidate, or
    -1. log_weights (m,), bounds (n, 2) or None; weight: of the loss."""

    rows: np.ndarray
    answers: np.ndarray
    times: np.ndarray
    counts: np.ndarray
    masked: np.ndarray
    log_weights: np.ndarray | None = None
    bounds: np.ndarray | None = None
    weight: float = 1.0

    @classmethod
    def of(cls, rows, answers, n, masked=None, **others):
        """Targets from answers (x,) of rows (x,), sorted by row, then answer."""
        first = np.flatnonzero((np.diff(rows, prepend=-1) != 0) | (np.diff(answers, prepend=-1) != 0))
        times, counts = np.diff(first, append=len(rows)), np.bincount(rows, minlength=n)
        masked = np.full(n, -1) if masked is None else masked
        return cls(rows[first], answers[first], times, counts, masked, **others)

    def coefficients(self, first, scores, penalty_weight):
        """Losses and penalties of rows first, first + 1, ..., whose scores (b, m) become d objective / d score."""
        part = slice(first, first + len(scores))
        bounds = self.bounds if self.bounds is None else self.bounds[part]
        penalties, pushed, d_penalty = violations(scores, self.log_weights, bounds, penalty_weight)
        here = slice(*np.searchsorted(self.rows, (part.start, part.stop)))
        rows, answers, times, counts = self.rows[here] - first, self.answers[here], self.times[here], self.counts[part]
        masked = np.flatnonzero(self.masked[part] >= 0)
        scores[masked, self.masked[part][masked]] = -np.inf
        if self.log_weights is not None:
            scores += self.log_weights
        top = scores.max(1)
        right = scores[rows, answers].astype(np.float64) - top[rows]
        losses = -np.bincount(rows, times * right, len(scores))
        # Answers are added in float64: softmax - 1 of a certain answer then has the precision of the sum of all others.
        right = np.exp(right)
        scores[rows, answers] = -np.inf
        total = np.bincount(rows, right, len(scores))
        kernels.softmax_rows(scores, top, self.weight * counts, total)
        losses += counts * np.log(total)
        scores[rows, answers] = self.weight * (counts[rows] * right - times * total[rows]) / total[rows]
        scores[pushed] += d_penalty
        return self.weight * losses, penalties


def violations(scores, log_weights, bounds, penalty_weight):
    """Eqs. 4 and 5 for rows of scores (b, m), with bounds (b, 2) or None: (G (b,), the rows whose G is not 0, lambda
    times d G / d score of those rows)."""
    penalties = np.zeros(len(scores))
    rows = np.flatnonzero(is_bounded(bounds)) if bounds is not None else penalties[:0].astype(int)
    if not len(rows):
        return penalties, rows, scores[:0]
    p = probability(scores[rows])
    weights = np.ones(p.shape[1]) if log_weights is None else np.exp(log_weights, dtype=np.float64)
    penalties[rows], slopes = violation(p.astype(np.float64, copy=False) @ weights, *bounds[rows].T)
    pushed = slopes != 0
    d_scores = p[pushed] * (1 - p[pushed]) * (penalty_weight * slopes[pushed, None]).astype(p.dtype)
    return penalties, rows[pushed], d_scores if log_weights is None else d_scores * weights.astype(p.dtype)


class SoftmaxGradients:
    """The gradients of `softmax_objective`, for DistMult, ComplEx and ER-MLP, on several threads."""

    def __init__(self, model, settings, bounds, loopless, threads):
        self.model, self.settings, self.loopless, self.threads = model, settings, loopless, threads
        self.bounds = bounds if settings.penalty_weight > 0 else None
        self.mlp, self.buffer = kind_of(model) == kernels.ERMLP, Buffers(model.dtype)

    def __call__(self, batch):
        """(parts, gradients) of a batch of `QueryBatches`; its candidates hold all given entities and answers."""
        queries, candidates = batch
        if not len(queries.given):  # after a row with more answers than a batch holds the next batch is empty
            return dict.fromkeys(("loss", "l2", "n3", "penalty", "objective"), 0.0), {}
        model, n_entities = self.model, self.model.n_entities
        ids, log_weights = (np.arange(n_entities), None) if candidates is None else candidates
        log_weights = None if log_weights is None or not log_weights.any() else log_weights.astype(model.dtype)
        column = np.zeros(n_entities, np.int64)
        column[ids] = np.arange(len(ids))
        embedded = self.begin(ids)
        self.sums = np.zeros(2)  # loss, penalty
        self.ask_for_entities(queries, column, log_weights)
        if self.settings.relation_weight:
            self.ask_for_relations(queries, column)
        return self.finish(queries, ids, embedded)

    def begin(self, ids):
        """Sets the tables of head, relation and tail, without gradients; returns the embeddings that they encode."""
        model, entity = self.model, self.model.params["entity"]
        rows = entity
        if len(ids) < len(entity):
            rows = self.buffer("candidates", len(ids), entity.shape[1])
            self.threads.run(lambda i, j: kernels.take_rows(entity, ids[i:j], rows[i:j]), len(ids), size=COLUMNS)
        embedded = rows, model.params["relation"], rows
        h, r, t = model.encode(*embedded)
        relations = Table(r, np.zeros_like(r), begun=True)
        if self.mlp:
            heads, tails = (Table(table, np.zeros_like(table), begun=True) for table in (h, t))
            self.d_output = np.zeros_like(model.params["output"])
        else:  # one table: heads and tails have the same rows
            heads = tails = Table(h, self.buffer("d_entity", *h.shape), begun=False)
        self.tables = heads, relations, tails
        return embedded

    def ask_for_entities(self, queries, column, log_weights):
        """The queries (h, r, ?) and (?, r, t) of a batch."""
        for side, place in ((0, HEAD), (1, TAIL)):
            part = queries.take(np.flatnonzero(queries.sides == side))
            n, relations = len(part.given), part.relations % self.model.n_relations
            if not n:
                continue
            inverse = side == 0 or part.relations >= self.model.n_relations  # or as a reciprocal model scores
            rows, masked = part.rows(), None
            if self.loopless is not None:
                loop = np.zeros(n, bool)
                loop[rows[part.answers == part.given[rows]]] = True
                masked = np.where(self.loopless[relations] & ~loop, column[part.given], -1)
            options = {"log_weights": log_weights, "bounds": self.bounds_of(part, inverse)}
            targets = Targets.of(rows, column[part.answers], n, masked, **options)
            given, relation = column[part.given], (RELATION, part.relations)
            self.ask(place, [(HEAD, given), relation] if place == TAIL else [relation, (TAIL, given)], targets)

    def bounds_of(self, part, inverse):
        """(n, 2): bounds of X_hr, inverse of X_rt, at the first row of a query (G counts once); None if all free."""
        if self.bounds is None:
            return None
        given, relations = part.given, part.relations % self.model.n_relations
        found = np.tile([0.0, np.inf], (len(given), 1))
        first = (np.diff(given, prepend=-1) != 0) | (np.diff(part.relations, prepend=-1) != 0)
        for way in (False, True):
            rows = np.flatnonzero(first & (inverse == way))
            found[rows] = self.bounds.of(relations[rows], given[rows], way)
        return found if is_bounded(found).any() else None

    def ask_for_relations(self, queries, column):
        """The query (h, ?, t) for each answer of a batch; its relation row is the answer."""
        rows = queries.rows()
        given, answers, tail_open = column[queries.given[rows]], column[queries.answers], queries.sides[rows] == 1
        heads, tails = np.where(tail_open, given, answers), np.where(tail_open, answers, given)
        n, relations = len(rows), queries.relations[rows].astype(np.int64)
        targets = Targets.of(np.arange(n), relations, n, weight=self.settings.relation_weight)
        self.ask(RELATION, [(HEAD, heads), (TAIL, tails)], targets)

    def ask(self, place, ends, targets):
        """Forward and backward pass of n queries with this place open: adds to the gradients of all three tables and
        to the sums. ends: the two other places, in order, each with its rows (n,)."""
        model, n = self.model, len(targets.counts)
        first, second = (self.tables[where].rows[ids] for where, ids in ends)
        vectors = (model.query_tails if place == TAIL else model.query_heads)(first, second)
        m = len(self.tables[place].rows)
        block = max(1, min(-(-n // 8) if self.mlp else BLOCK, SCORES // m))
        size, products = max(block, SCORES // m // block * block), self.mlp_products if self.mlp else self.products
        d_vectors = np.zeros_like(vectors)
        for start in range(0, n, size):
            tile = slice(start, min(start + size, n))
            scores = self.buffer("scores", tile.stop - start, m)
            found = np.zeros((len(scores), 2))

            def coefficients(i, j, start=start, scores=scores, found=found):
                found[i:j] = np.transpose(targets.coefficients(start + i, scores[i:j], self.settings.penalty_weight))

            products(self.tables[place], vectors[tile], scores, coefficients, d_vectors[tile], block)
            self.sums += found.sum(0)
        d_ends = d_vectors, d_vectors
        if not self.mlp:
            rows = {where: values for (where, _), values in zip(ends, (first, second))} | {place: d_vectors}
            d = model.d_phi(*(rows[where] for where in range(3)), np.ones(n, model.dtype), None)
            d_ends = [d[where] for where, _ in ends]
        for (where, ids), values in zip(ends, d_ends):
            self.tables[where].add(ids, values)

    def products(self, table, vectors, scores, coefficients, d_vectors, block):
        """Both passes of DistMult or ComplEx: for blocks of queries the scores of all rows of a table, replaced by
        `coefficients`, and sum_i u_i row_i; then for blocks of columns the gradients of the rows."""

        @np.errstate(over="ignore", invalid="ignore", divide="ignore")
        def by_questions(i, j):
            np.matmul(vectors[i:j], table.rows.T, out=scores[i:j])
            coefficients(i, j)
            np.matmul(scores[i:j], table.rows, out=d_vectors[i:j])

        def by_columns(i, j):
            if table.begun:
                table.gradient[i:j] += scores[:, i:j].T @ vectors
            else:
                np.matmul(scores[:, i:j].T, vectors, out=table.gradient[i:j])

        self.threads.run(by_questions, len(vectors), size=block)
        self.threads.run(by_columns, len(table.rows), size=COLUMNS)
        table.begun = True

    def mlp_products(self, table, vectors, scores, coefficients, d_vectors, block):
        """The same for ER-MLP, and the gradient of w. Each block has its own sums, so no two threads write the same
        element."""
        output, across = self.model.params["output"], np.ascontiguousarray(table.rows.T)
        blocks = -(-len(vectors) // block)
        d_rows, d_output = (np.zeros((blocks, *like.shape), like.dtype) for like in (table.rows, output))

        @np.errstate(over="ignore", invalid="ignore", divide="ignore")
        def by_questions(i, j):
            b, part = i // block, vectors[i:j]
            kernels.hidden_scores(part, across, output, scores[i:j])
            coefficients(i, j)
            kernels.hidden_gradients(scores[i:j], part, table.rows, output, d_vectors[i:j], d_rows[b], d_output[b])

        self.threads.run(by_questions, len(vectors), size=block)
        table.gradient += d_rows.sum(0)
        self.d_output += d_output.sum(0)

    def finish(self, queries, ids, embedded):
        """(parts, gradients) of a step, with N3, from the gradients of the tables."""
        model, settings = self.model, self.settings
        heads, relations, tails = self.tables
        others = {"output": self.d_output, "hidden": np.zeros_like(model.params["hidden"])} if self.mlp else {}
        d = model.d_encode(*embedded, heads.gradient, relations.gradient, tails.gradient, others)
        d_entity = d[HEAD] if heads is tails else d[HEAD] + d[TAIL]
        lengths, n_relations = np.diff(queries.limits), len(model.params["relation"])
        uses = np.bincount(queries.given, lengths, model.n_entities)
        uses += np.bincount(queries.answers, minlength=model.n_entities)
        uses_of_relations, n3 = np.bincount(queries.relations, lengths, n_relations), 0.0
        gradients = {"entity": Rows(ids.astype(np.int32), d_entity, settings.l2 * uses[ids])}
        gradients["relation"] = Rows.of_all(d[RELATION], settings.l2 * uses_of_relations)
        gradients |= {name: Rows.of_all(values) for name, values in others.items()}
        if settings.n3:
            n3 = self.add_n3("entity", gradients["entity"], uses[ids])
            n3 += self.add_n3("relation", gradients["relation"], uses_of_relations)
        loss, penalty = self.sums.tolist()
        return with_objective(model, settings, gradients, loss, penalty, n3), gradients

    def add_n3(self, name, gradient, uses):
        """N3 of a table, uses[i] times for row i of its `Rows`, to which its gradient is added."""
        used = np.flatnonzero(uses)
        rows = self.model.params[name][gradient.ids[used]]
        weights = (self.settings.n3 * uses[used]).astype(rows.dtype)[:, None]
        cubes = self.model.moduli(rows) * rows
        gradient.values[used] += 3 * weights * cubes
        return float((weights * cubes * rows).sum(dtype=np.float64))
