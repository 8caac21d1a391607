"""Training under softmax over all entities: `softmax_objective`, fast and on several threads.

Letters: n rows of a batch, each a distinct query (given entity, relation, side) with all its answers in the batch; m
candidates, the columns; w reals in a row of a table; N entities, R relations.
"""

import math
from dataclasses import dataclass

import numpy as np

import softmax_kernels as kernels
from cardkge import Trainer, NonFinite, is_bounded
from kernels import ERMLP, hidden_gradients, hidden_scores, take_rows
from softmax_definition import draw_candidates, queries_of

BLOCK = 64  # rows of one matrix product: fixed, so that its bits do not depend on the threads
TILE = 2**24  # scores that are in memory at once (at least 16 rows of them)
COLUMNS = 1024  # columns of one product of the backward pass
DENSE = 1 / 16  # where a larger share of a block's entries counts, the backward pass is a matrix product


@dataclass(frozen=True)
class Queries:
    """Distinct queries with their answers: given, relations (rows of the table), sides (n,) int32; the answers of query
    i, sorted, are answers[limits[i] : limits[i + 1]]."""

    given: np.ndarray
    relations: np.ndarray
    sides: np.ndarray
    limits: np.ndarray
    answers: np.ndarray

    def take(self, which):
        """The queries with these numbers, in this order."""
        lengths = np.diff(self.limits)[which]
        limits = np.append(0, np.cumsum(lengths))
        places = np.arange(limits[-1]) + np.repeat(self.limits[which] - limits[:-1], lengths)
        of = self.given[which], self.relations[which], self.sides[which]
        return Queries(*of, limits, self.answers[places])


def group_queries(model, triples, sides):
    """The queries of triples (n, 3) with their head (sides (n,) 0) or tail (1) open, those with the same given entity,
    relation and side as one, sorted by these."""
    given, relations, answers, sides = queries_of(model, triples, sides)
    n_relations = len(model.params["relation"])
    keys = (sides * n_relations + relations) * model.n_entities + given
    order = np.lexsort((answers, keys))
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    first = order[starts]
    parts = given[first], relations[first], sides[first]
    limits = np.append(starts, len(keys)).astype(np.int64)
    return Queries(*(part.astype(np.int32) for part in parts), limits, answers[order].astype(np.int32))


class SoftmaxBatches:
    """The batches of a run under softmax: `draw` gives a step's queries and candidates, by generators seeded by (seed,
    epoch, step). An epoch is a permutation of the distinct queries; a batch counts `batch_size` queries of single
    triples, and has a distinct query with all its answers where its first one falls."""

    def __init__(self, model, settings, triples, size):
        both = np.concatenate((triples, triples)), np.repeat([0, 1], len(triples))
        self.settings, self.n_entities, self.size = settings, model.n_entities, size
        self.queries = group_queries(model, *both)
        self.steps = -(-len(both[0]) // size)
        self.orders = {}

    def draw(self, epoch, step):
        """(Queries, candidates or None) of a step."""
        settings, queries = self.settings, self.queries
        if epoch not in self.orders:
            self.orders.clear()
            order = np.random.default_rng([settings.seed, 1, epoch]).permutation(len(queries.given)).astype(np.int32)
            lengths = np.diff(queries.limits)[order]
            firsts = np.cumsum(lengths) - lengths  # the place of each one's first query
            self.orders[epoch] = order, np.searchsorted(firsts, np.arange(self.steps + 1) * self.size)
        order, cuts = self.orders[epoch]
        batch = queries.take(np.sort(order[cuts[step] : cuts[step + 1]]))
        if settings.softmax_candidates is None or epoch >= settings.epochs - settings.exact_epochs:
            return batch, None
        rng = np.random.default_rng([settings.seed, 2, epoch, step])
        needed = np.concatenate((batch.given, batch.answers))
        return batch, draw_candidates(rng, self.n_entities, needed, settings.softmax_candidates)


class Tile:
    """Rows start..stop of a step's queries and their scores: softmax, and the coefficients d loss / d score, block by
    block; listed (blocks,) tells which blocks' coefficients are lists, losses and penalties (rows,) what it found."""

    def __init__(self, trainer, queries, columns, start, stop, block, bounded):
        ids, self.n_needed, self.log_weight, _, answers, masked = columns
        self.settings, self.bounds, self.block, n = trainer.settings, trainer.bounds, block, stop - start
        self.scores, self.start = trainer.buffer("scores", n, len(ids)), start
        self.limits = queries.limits[start : stop + 1] - queries.limits[start]
        self.answers, self.masked = answers[queries.limits[start] : queries.limits[stop]], masked[start:stop]
        self.losses, self.penalties, self.totals = np.zeros(n), np.zeros(n), np.zeros(n)
        self.bounded = None if bounded is None else bounded[start:stop]
        self.slopes = np.zeros(n, np.int8)
        self.extra = trainer.buffer("extra", *((0, 0) if bounded is None else self.scores.shape))
        self.cut = self.settings.softmax_cut if bounded is None else 0.0  # of the list: with a penalty there is none
        firsts = np.append(np.arange(0, n, block), n)
        room = int(DENSE * block * len(ids)) + 32 + np.diff(self.limits[firsts])  # of the list of each block
        self.room = np.append(0, np.cumsum(room if self.cut else 0 * room))
        self.ends, self.listed = np.zeros(n, np.int64), np.zeros(len(room), bool)
        self.columns = trainer.buffer("columns", self.room[-1], dtype=np.int32)
        self.values = trainer.buffer("values", self.room[-1])

    def list_of(self, first):
        """(ends, columns, coefficients) of the block that begins with row `first`, as `kernels.softmax_rows` has it."""
        part = slice(*self.room[first // self.block : first // self.block + 2])
        return self.ends, self.columns[part], self.values[part]

    def softmax(self, first, last):
        """Softmax of the block's scores; whether its coefficients are listed."""
        if self.bounded is not None:
            kernels.penalty_rows(
                first, last, self.scores, self.n_needed, self.log_weight, self.bounds, self.bounded,
                self.settings.penalty_weight, self.penalties, self.extra, self.slopes,
            )  # fmt: skip
        ends, columns, values = self.list_of(first)
        self.listed[first // self.block] = kernels.softmax_rows(
            first, last, self.scores, self.masked, self.n_needed, self.log_weight, self.limits, self.answers, self.cut,
            self.losses, self.totals, columns, values, ends,
        )  # fmt: skip
        return self.listed[first // self.block]

    def coefficients(self, first, last):
        """All coefficients of the block, in the place of its scores."""
        kernels.dense_coefficients(
            first, last, self.scores, self.n_needed, self.log_weight, self.limits, self.answers,
            self.settings.softmax_cut, self.totals, self.extra, self.slopes,
        )  # fmt: skip

    def entries(self):
        """The lists of all blocks as one: (columns, rows of the step, coefficients)."""
        parts = []
        for first in range(0, len(self.ends), self.block):
            ends, columns, values = self.list_of(first)
            ends = ends[first : first + self.block]
            rows = np.repeat(np.arange(first, first + len(ends), dtype=np.int32), np.diff(ends, prepend=0))
            parts.append((columns[: ends[-1]], self.start + rows, values[: ends[-1]]))
        return tuple(np.concatenate(part) for part in zip(*parts))


class SoftmaxTrainer(Trainer):
    """One training step at a time, as `softmax_objective` and the optimisers define it.

    A step of DistMult or ComplEx: by blocks of rows, the scores of all candidates (a matrix product), their softmax with
    the losses and a list of the entries that count, and the gradient of the queries; then for each entity the sum over
    its entries, and the update. Where too many entries count for a list (or cut is 0, or the regulariser is on) the
    backward pass is matrix products too. ER-MLP is scored on hidden rows by `kernels.hidden_scores`.
    """

    def __init__(self, model, accumulators, settings, bounds, triples, threads, loopless=None):
        self.model, self.settings, self.threads, self.accumulators = model, settings, threads, accumulators
        self.bounds, self.loopless, self.buffers = np.asarray(bounds, np.float64), loopless, {}
        self.regularised = bool(is_bounded(self.bounds).any()) and settings.penalty_weight > 0

    @np.errstate(over="ignore", invalid="ignore")  # what is not finite is found, and raised as NonFinite
    def step(self, queries, candidates=None, learning_rate=None):
        """One update of the parameters, in place.

        queries: `Queries`; candidates: (ids (m,), log_weights (m,)) as `draw_candidates` gives them, None: all entities.
        Returns {"objective", "loss", "l2", "n3", "penalty"} as `softmax_objective` does. Raises NonFinite, before any
        parameter is changed, if one of these, or a parameter after the step, is not finite.
        """
        model, settings, params = self.model, self.settings, self.model.params
        if not len(queries.given):  # those of one distinct query may fill a batch after its own
            return dict.fromkeys(("objective", "loss", "l2", "n3", "penalty"), 0.0)
        columns = self.columns(queries, candidates)
        backward = self.mlp_pass if model.kind == ERMLP else self.pass_of_rows
        sums, gradients, touched = backward(queries, columns)

        uses = {
            "entity": np.bincount(queries.answers, minlength=model.n_entities),
            "relation": np.zeros(len(params["relation"]), np.int64),
        }
        lengths = np.diff(queries.limits)
        uses["entity"] += np.bincount(queries.given, lengths, model.n_entities).astype(np.int64)
        uses["relation"] += np.bincount(queries.relations, lengths, len(params["relation"])).astype(np.int64)
        uses["entity"] = uses["entity"][touched]
        ids = {"entity": touched, "relation": np.arange(len(params["relation"]), dtype=np.int32)}
        sums |= {"l2": 0.0, "n3": 0.0}
        for name, of in uses.items():
            if settings.l2:
                rows = params[name][ids[name]]
                sums["l2"] += settings.l2 / 2 * float(of @ np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
            if settings.n3:
                values = np.empty(len(of))
                self.threads.run(
                    kernels.add_n3, len(of), model.kind, settings.n3, params[name], ids[name], of, gradients[name],
                    values, size=COLUMNS,
                )  # fmt: skip
                sums["n3"] += float(values.sum())
        sums["objective"] = sums["loss"] + sums["l2"] + sums["n3"] + settings.penalty_weight * sums["penalty"]
        if not math.isfinite(sums["objective"]):
            raise NonFinite(f"the objective is {sums['objective']}")
        l2 = {name: settings.l2 * of for name, of in uses.items()}
        self.update(gradients, touched, l2, settings.learning_rate if learning_rate is None else learning_rate)
        return sums

    def columns(self, queries, candidates):
        """The columns of a step: (ids (m,) int32, how many of them are needed, log weight of the others, the queries'
        given entities, answers and masked entities as columns (-1: none))."""
        n = self.model.n_entities
        given, answers = queries.given, queries.answers
        masked = np.full(len(given), -1, np.int32)
        if self.loopless is not None:
            is_answer = np.zeros(len(given), bool)
            rows = np.repeat(np.arange(len(given)), np.diff(queries.limits))
            is_answer[rows[answers == given[rows]]] = True
            mask = self.loopless[queries.relations % self.model.n_relations] & ~is_answer
            masked[mask] = given[mask]
        if candidates is None:
            return np.arange(n, dtype=np.int32), n, 0.0, given, answers, masked
        ids, log_weights = candidates
        n_needed = int(np.count_nonzero(log_weights == 0))
        log_weight = float(log_weights[-1]) if n_needed < len(ids) else 0.0
        column = self.buffer("column", n, dtype=np.int32)
        column[ids] = np.arange(len(ids))
        masked = np.where(masked >= 0, column[masked], -1).astype(np.int32)
        return ids.astype(np.int32), n_needed, log_weight, column[given], column[answers], masked

    def pass_of_rows(self, queries, columns):
        """Loss, penalty and gradients of DistMult or ComplEx: (sums, gradients of the rows, ids of the entities whose
        gradients these are)."""
        model, threads, params = self.model, self.threads, self.model.params
        ids, n_needed, log_weight, given, answers, masked = columns
        n, m, width = len(queries.given), len(ids), params["entity"].shape[1]
        table = params["entity"]
        if m < model.n_entities:
            table = self.buffer("candidates", m, width)
            threads.run(lambda i, j: take_rows(params["entity"], ids[i:j], table[i:j]), m, size=COLUMNS)
        of = model.kind, params["entity"], params["relation"], queries.given, queries.relations, queries.sides
        sources = self.buffer("sources", 2 * n, width)  # the queries, then the gradients of the given rows
        d_queries, d_relations = self.buffer("d_queries", n, width), self.buffer("d_relations", n, width)
        losses, penalties = np.zeros(n), np.zeros(n)
        bounded = self.bounded_rows(queries)
        lists, dense = [], None

        block = max(1, min(BLOCK, TILE // m))
        size = max(block, TILE // m // block * block)
        for start in range(0, n, size):
            stop = min(start + size, n)
            tile = Tile(self, queries, columns, start, stop, block, bounded)
            whole = sources[start:stop]

            def forward(i, j):
                kernels.query_rows(start + i, start + j, *of, sources)
                np.matmul(whole[i:j], table.T, out=tile.scores[i:j])
                if tile.softmax(i, j):
                    kernels.sum_listed_rows(i, j, table, *tile.list_of(i), d_queries[start:stop])

            threads.run(forward, stop - start, size=block)
            losses[start:stop], penalties[start:stop] = tile.losses, tile.penalties
            if tile.listed.all():
                lists.append(tile.entries())
                continue

            def backward(i, j):
                tile.coefficients(i, j)
                np.matmul(tile.scores[i:j], table, out=d_queries[start + i : start + j])

            threads.run(backward, stop - start, size=block)
            if fresh := dense is None:
                dense = self.buffer("dense", m, width)

            def d_columns(i, j):
                if fresh:
                    np.matmul(tile.scores[:, i:j].T, whole, out=dense[i:j])
                else:
                    dense[i:j] += tile.scores[:, i:j].T @ whole

            threads.run(d_columns, m, size=COLUMNS)
        threads.run(kernels.d_query_rows, n, *of, d_queries, sources[n:], d_relations, size=block)

        one = np.ones(n, model.dtype)
        rows = np.arange(n, dtype=np.int32)
        lists.append((given, n + rows, one))  # the given entity of row i has row n + i of `sources` as its gradient
        touched, d_entity = self.sum_lists(lists, m, sources, dense)
        _, d_relation = self.sum_lists([(queries.relations, rows, one)], len(params["relation"]), d_relations, 0)
        sums = {"loss": float(losses.sum()), "penalty": float(penalties.sum())}
        return sums, {"entity": d_entity, "relation": d_relation}, ids[touched]

    def sum_lists(self, lists, n_columns, sources, dense=None):
        """Sums of coefficient * sources[row] by column, of lists of (columns, rows, coefficients). Returns (the columns
        that have one, their sums); with `dense` (n_columns, w) all columns, added to it; with 0 to zeros."""
        columns, rows, coefficients = (np.concatenate(parts) for parts in zip(*lists))
        starts = self.buffer("starts", n_columns + 1, dtype=np.int64)
        moved = self.buffer("rows", len(rows), dtype=np.int32), self.buffer("coefficients", len(rows))
        kernels.sort_entries(columns, rows, coefficients, n_columns, starts, *moved)
        if dense is None:
            touched = np.flatnonzero(np.diff(starts)).astype(np.int32)
            out = self.buffer("d_entity", len(touched), sources.shape[1])
            out[:] = 0
        else:
            touched = np.arange(n_columns, dtype=np.int32)
            out = dense if isinstance(dense, np.ndarray) else np.zeros((n_columns, sources.shape[1]), sources.dtype)
        some = max(1, min(512, -(-len(touched) // 32)))
        self.threads.run(kernels.sum_entries, len(touched), touched, starts, *moved, sources, out, size=some)
        return touched, out

    def bounded_rows(self, queries):
        """For each row its relation, if X_hr of its subject counts, else -1; None where no row's does."""
        if not self.regularised:
            return None
        asked = (queries.sides == 1) & (queries.relations < self.model.n_relations)
        asked &= is_bounded(self.bounds)[queries.relations % self.model.n_relations]
        return np.where(asked, queries.relations, -1).astype(np.int32)

    def mlp_pass(self, queries, columns):
        """`pass_of_rows` for ER-MLP, and the gradients of its weights."""
        model, threads, params = self.model, self.threads, self.model.params
        ids, n_needed, log_weight, given, answers, masked = columns
        n, m, block = len(queries.given), len(ids), max(1, min(BLOCK // 4, TILE // len(ids)))
        embeddings = params["entity"][ids]
        w_h, w_t, w_r = np.split(params["hidden"], 3)
        heads, tails, relation_rows = embeddings @ w_h, embeddings @ w_t, params["relation"] @ w_r
        d_heads, d_tails, d_relation = np.zeros_like(heads), np.zeros_like(tails), np.zeros_like(relation_rows)
        d_output = np.zeros_like(params["output"])
        losses, penalties, bounded = np.zeros(n), np.zeros(n), self.bounded_rows(queries)
        size = max(block, TILE // m // block * block)
        sides = np.append(np.flatnonzero(np.diff(queries.sides, prepend=-1)), n)
        for side_start, side_stop in zip(sides[:-1], sides[1:]):  # the queries are sorted by side
            tail_open = queries.sides[side_start] == 1
            mine, others, d_mine, d_others = (
                (heads, tails, d_heads, d_tails) if tail_open else (tails, heads, d_tails, d_heads)
            )
            across = np.ascontiguousarray(others.T)
            for start in range(side_start, side_stop, size):
                stop = min(start + size, side_stop)
                tile = Tile(self, queries, columns, start, stop, block, bounded)
                rows = mine[given[start:stop]] + relation_rows[queries.relations[start:stop]]
                blocks = -(-(stop - start) // block)
                parts = [np.zeros((blocks, *like.shape), model.dtype) for like in (others, d_output)]
                d_rows = np.zeros_like(rows)

                def work(i, j):
                    hidden_scores(rows[i:j], across, params["output"], tile.scores[i:j])
                    tile.softmax(i, j)
                    tile.coefficients(i, j)
                    of_block = (part[i // block] for part in parts)
                    hidden_gradients(tile.scores[i:j], rows[i:j], others, params["output"], d_rows[i:j], *of_block)

                threads.run(work, stop - start, size=block)
                losses[start:stop], penalties[start:stop] = tile.losses, tile.penalties
                d_others += parts[0].sum(0)
                d_output += parts[1].sum(0)
                np.add.at(d_mine, given[start:stop], d_rows)
                np.add.at(d_relation, queries.relations[start:stop], d_rows)
        gradients = {
            "entity": d_heads @ w_h.T + d_tails @ w_t.T,
            "relation": d_relation @ w_r.T,
            "hidden": np.concatenate((embeddings.T @ d_heads, embeddings.T @ d_tails, params["relation"].T @ d_relation)),
            "output": d_output,
        }
        return {"loss": float(losses.sum()), "penalty": float(penalties.sum())}, gradients, ids
