"""Training under softmax over all entities: `softmax_objective`, fast and on several threads.

Letters: n rows of a batch, each a distinct query (given entity, relation, side) with all its answers in the batch; m
candidates, the columns; w reals in a row of a table; N entities, R relations.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np

import kernels
from cardkge import as_bounds
from cardkge_tools.definitions.softmax import group_keys, queries_of, shuffle_queries, step_candidates, without_loops
from cardkge_tools.engine.tables import kind_of
from cardkge_tools.engine.trainer import Batches, NonFinite, Trainer

BLOCK = 64  # rows of one matrix product: fixed, so that its bits do not depend on the threads
TILE = 2**24  # scores that are in memory at once (at least one row)
COLUMNS = 1024  # columns of one product of the backward pass
PAIRS = 4096  # single queries whose relation is asked for at once


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
    keys = group_keys(model, triples, sides)
    given, relations, answers, sides = queries_of(model, triples, sides)
    order = np.lexsort((answers, keys))
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    first = order[starts]
    parts = given[first], relations[first], sides[first]
    limits = np.append(starts, len(keys)).astype(np.int64)
    return Queries(*(part.astype(np.int32) for part in parts), limits, answers[order].astype(np.int32))


class SoftmaxBatches:
    """The batches of a run under softmax, as `softmax_loop` draws them, each beside the step before it."""

    def __init__(self, trainer, triples):
        self.trainer, self.settings, self.n_entities = trainer, trainer.settings, trainer.model.n_entities
        both = np.concatenate((triples, triples)), np.repeat([0, 1], len(triples))
        self.queries = group_queries(trainer.model, *both)
        self.steps = -(-len(both[0]) // self.settings.batch_size)
        self.orders, self.following = {}, None

    def draw(self, epoch, step):
        """(Queries, candidates or None) of a step."""
        if epoch not in self.orders:
            self.orders.clear()
            lengths = np.diff(self.queries.limits)
            self.orders[epoch] = shuffle_queries(self.settings, epoch, lengths, self.settings.batch_size)
        order, limits = self.orders[epoch]
        batch = self.queries.take(np.sort(order[limits[step] : limits[step + 1]]))
        needed = np.concatenate((batch.given, batch.answers))
        return batch, step_candidates(self.settings, epoch, step, self.n_entities, needed)

    take = Batches.take


@dataclass(frozen=True)
class Columns:
    """The candidates of a step: ids (m,) int32; parts = (how many of them are needed, log weight of the others); the
    queries' given entities, answers and masked entities (-1: none) as columns."""

    ids: np.ndarray
    parts: tuple
    given: np.ndarray
    answers: np.ndarray
    masked: np.ndarray


class Tile:
    """Rows start..stop of a step's queries and their scores (rows, m), which become d objective / d score, block by
    block; losses and penalties (rows,) are what it found. weight: of the loss."""

    def __init__(self, trainer, queries, columns, rows, block, bounded, weight):
        limits, n = queries.limits, rows.stop - rows.start
        self.settings, self.block, self.parts, self.weight = trainer.settings, block, columns.parts, weight
        self.scores = trainer.buffer("scores", n, len(columns.ids))
        self.limits = limits[rows.start : rows.stop + 1] - limits[rows.start]
        self.answers, self.masked = columns.answers[limits[rows.start] : limits[rows.stop]], columns.masked[rows]
        self.losses, self.penalties, self.slopes = np.zeros(n), np.zeros(n), np.zeros(n, np.int8)
        self.limits_of = trainer.row_limits
        self.bounded = None if bounded is None else bounded[rows]
        self.extra = trainer.buffer("extra", *((0, 0) if bounded is None else self.scores.shape))

    def coefficients(self, first, last):
        """Losses and penalties of the block first..last, and d objective / d score in the place of its scores."""
        if self.bounded is not None:
            kernels.penalty_rows(
                first, last, self.scores, self.parts, self.limits_of, self.bounded, self.settings.penalty_weight,
                (self.penalties, self.extra, self.slopes),
            )  # fmt: skip
        kernels.softmax_rows(
            first, last, self.scores, self.masked, self.parts, self.limits, self.answers,
            (self.losses, self.extra, self.slopes),
        )  # fmt: skip
        if self.weight != 1:
            self.losses[first:last] *= self.weight
            self.scores[first:last] *= self.weight


class SoftmaxTrainer(Trainer):
    """One training step at a time, as `softmax_objective` and the optimisers define it.

    A step of DistMult or ComplEx: by blocks of rows the scores of all candidates (a matrix product), the coefficients
    d objective / d score in their place, and the gradient of the queries (a product); then by blocks of columns the
    gradient of the candidates (a product), and the update of these, all of them. Where the relation is asked for too,
    once more so with relation rows for candidates. ER-MLP is scored on hidden rows by `kernels.hidden_scores`.
    """

    def __init__(self, model, accumulators, settings, bounds, triples, threads):
        self.model, self.settings, self.threads, self.accumulators = model, settings, threads, accumulators
        self.bounds = as_bounds(bounds, model.n_relations)
        self.buffers, self.row_limits = {}, np.empty((0, 2))
        self.loopless = without_loops(triples, model.n_relations) if settings.no_loops else None
        self.bounded = [self.bounds.is_bounded(inverse) for inverse in (False, True)]
        self.regularised = bool(np.any(self.bounded)) and settings.penalty_weight > 0

    @np.errstate(over="ignore", invalid="ignore")  # what is not finite is found, and raised as NonFinite
    def step(self, queries, candidates=None, rate=None):
        """One update of the parameters, in place.

        queries: `Queries`; candidates: (ids (m,), log_weights (m,)) as `draw_candidates` gives them; None: all
        entities. Returns {"objective", "loss", "l2", "n3", "penalty"} as `softmax_objective` does. Raises NonFinite,
        before any parameter is changed, if one of these, or a parameter after the step, is not finite.
        """
        model, settings, n_relations = self.model, self.settings, len(self.model.params["relation"])
        if not len(queries.given):  # a batch is empty where one distinct query is larger than it
            return dict.fromkeys(("objective", "loss", "l2", "n3", "penalty"), 0.0)
        mlp = kind_of(model) == kernels.ERMLP
        gather = self.mlp_gradients if mlp else self.row_gradients
        columns = self.columns(queries, candidates)
        sums, gradients = gather(queries, columns)

        lengths = np.diff(queries.limits)
        of_entities = np.bincount(queries.given, lengths, model.n_entities)
        of_entities += np.bincount(queries.answers, minlength=model.n_entities)
        uses = {"entity": of_entities[columns.ids], "relation": np.bincount(queries.relations, lengths, n_relations)}
        ids = {"entity": columns.ids, "relation": np.arange(n_relations, dtype=np.int32)}
        sums |= self.regularise(ids, uses, gradients)
        sums["objective"] = sums["loss"] + sums["l2"] + sums["n3"] + settings.penalty_weight * sums["penalty"]
        if not math.isfinite(sums["objective"]):
            raise NonFinite(f"the objective is {sums['objective']}")
        l2 = {name: settings.l2 * of for name, of in uses.items()}
        self.update(gradients, columns.ids, l2, settings.learning_rate if rate is None else rate)
        return sums

    def columns(self, queries, candidates):
        """The `Columns` of a step."""
        n, given, answers = self.model.n_entities, queries.given, queries.answers
        masked = np.full(len(given), -1, np.int32)
        if self.loopless is not None:
            is_answer = np.zeros(len(given), bool)
            rows = np.repeat(np.arange(len(given)), np.diff(queries.limits))
            is_answer[rows[answers == given[rows]]] = True
            mask = self.loopless[queries.relations % self.model.n_relations] & ~is_answer
            masked[mask] = given[mask]
        if candidates is None:
            return Columns(np.arange(n, dtype=np.int32), (n, 0.0), given, answers, masked)
        ids, log_weights = candidates
        n_needed = int(np.count_nonzero(log_weights == 0))
        log_weight = float(log_weights[-1]) if n_needed < len(ids) else 0.0
        column = self.buffer("column", n, dtype=np.int32)
        column[ids] = np.arange(len(ids))
        masked = np.where(masked >= 0, column[masked], -1).astype(np.int32)
        return Columns(ids.astype(np.int32), (n_needed, log_weight), column[given], column[answers], masked)

    def regularise(self, ids, uses, gradients):
        """The sums of L2 and N3 over rows ids[name] of each table, uses[name] times each; N3's gradients are added (the
        update has L2's)."""
        settings, params, sums = self.settings, self.model.params, {"l2": 0.0, "n3": 0.0}
        for name, of in uses.items():
            if settings.l2:
                rows = params[name][ids[name]]
                sums["l2"] += settings.l2 / 2 * float(of @ np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
            if settings.n3:
                values = np.empty(len(of))
                self.threads.run(
                    kernels.add_n3, len(of), kind_of(self.model), settings.n3, params[name], ids[name], of,
                    gradients[name], values, size=COLUMNS,
                )  # fmt: skip
                sums["n3"] += float(values.sum())
        return sums

    def pairs(self, queries, columns):
        """A generator of the questions (h, ?, t), one of each single query, some at a time: `Queries` whose answer is
        their relation row, given being the column of t and relations that of h, and the relation rows as `Columns`."""
        rows = np.repeat(np.arange(len(queries.given)), np.diff(queries.limits))
        ends, tail_open = (columns.given[rows], columns.answers), queries.sides[rows] == 1
        heads, tails = np.where(tail_open, ends, ends[::-1])
        answers, ids = queries.relations[rows], np.arange(len(self.model.params["relation"]), dtype=np.int32)
        for start in range(0, len(rows), PAIRS):
            h, t, r = (part[start : start + PAIRS] for part in (heads, tails, answers))
            of_relations = Columns(ids, (len(ids), 0.0), t, r, np.full(len(h), -1, np.int32))
            yield Queries(t, h, np.zeros_like(t), np.arange(len(h) + 1), r), of_relations

    def tiles(self, queries, columns, block, first, last, bounded=None, weight=1.0):
        """The rows first..last of a step, tile by tile; `losses` and `penalties` of the trainer sum what these find.
        bounded: of `bounded_rows`; weight: of the loss."""
        size = max(block, TILE // len(columns.ids) // block * block)
        for start in range(first, last, size):
            tile = Tile(self, queries, columns, slice(start, min(start + size, last)), block, bounded, weight)
            yield tile, slice(start, min(start + size, last))
            self.losses.append(tile.losses)
            self.penalties.append(tile.penalties)

    def found(self):
        """The sums of what the tiles of a step have found."""
        sums = [float(np.concatenate(parts).sum()) for parts in (self.losses, self.penalties)]
        return dict(zip(("loss", "penalty"), sums, strict=True))

    def row_gradients(self, queries, columns):
        """Loss, penalty and gradients of DistMult or ComplEx: (sums, gradients), those of the entities as rows of the
        columns."""
        model, threads, params, ids = self.model, self.threads, self.model.params, columns.ids
        m, width, table = len(ids), params["entity"].shape[1], params["entity"]
        if m < model.n_entities:
            table = self.buffer("candidates", m, width)
            threads.run(lambda i, j: kernels.take_rows(params["entity"], ids[i:j], table[i:j]), m, size=COLUMNS)
        d_entity, d_relation = self.buffer("d_entity", m, width), np.zeros_like(params["relation"])
        self.losses, self.penalties = [], []
        tables, bounded = (params["entity"], params["relation"]), self.bounded_rows(queries)
        d_given, d_relations = self.asked(queries, columns, tables, table, d_entity, bounded)
        self.add_rows(columns.given, d_given, d_entity)
        self.add_rows(queries.relations, d_relations, d_relation)
        weight, d_rows = self.settings.relation_weight, np.empty_like(d_relation)
        for pairs, of_relations in self.pairs(queries, columns) if weight else ():
            # queries for heads with h in the place of the relation: of ComplEx t conj(h), times a row r Re(h r conj(t))
            d_tails, d_heads = self.asked(
                pairs, of_relations, (table, table), params["relation"], d_rows, weight=weight
            )
            self.add_rows(pairs.given, d_tails, d_entity)
            self.add_rows(pairs.relations, d_heads, d_entity)
            d_relation += d_rows
        return self.found(), {"entity": d_entity, "relation": d_relation}

    def asked(self, queries, columns, tables, candidates, d_candidates, bounded=None, weight=1.0):
        """Forward and backward pass of queries, made of rows `given` and `relations` of the two tables, with all
        candidates (m, w): d_candidates (m, w) is written, and the gradients of the two rows of each, (n, w), returned,
        in memory that the next call uses again. bounded, weight: as `tiles` takes them."""
        n, width = len(queries.given), candidates.shape[1]
        of = kind_of(self.model), *tables, queries.given, queries.relations, queries.sides
        names = "vectors", "d_vectors", "d_given", "d_relations"
        vectors, d_vectors, d_given, d_relations = (self.buffer(name, n, width) for name in names)
        block = max(1, min(BLOCK, TILE // len(candidates)))
        for tile, rows in self.tiles(queries, columns, block, 0, n, bounded, weight):
            self.products(tile, rows, of, candidates, vectors, d_vectors, d_candidates)
        self.threads.run(kernels.d_query_rows, n, *of, d_vectors, d_given, d_relations, size=block)
        return d_given, d_relations

    def products(self, tile, rows, of, table, vectors, d_vectors, d_entity):
        """Forward and backward pass of a tile. In its rows, a slice of the step's, the vectors of the queries and their
        gradients (n, w) are written; those of the candidates' rows, `table` (m, w), are added to d_entity (m, w), which
        the first tile of a step begins."""
        of_tile, d_of_tile, start = vectors[rows], d_vectors[rows], rows.start

        def by_rows(i, j):
            kernels.query_rows(start + i, start + j, *of, vectors)
            np.matmul(of_tile[i:j], table.T, out=tile.scores[i:j])
            tile.coefficients(i, j)
            np.matmul(tile.scores[i:j], table, out=d_of_tile[i:j])

        def by_columns(i, j):
            if start == 0:
                np.matmul(tile.scores[:, i:j].T, of_tile, out=d_entity[i:j])
            else:
                d_entity[i:j] += tile.scores[:, i:j].T @ of_tile

        self.threads.run(by_rows, len(of_tile), size=tile.block)
        self.threads.run(by_columns, len(table), size=COLUMNS)

    def add_rows(self, places, rows, out):
        """out[places[i]] += rows[i], for all i."""
        starts, occurrences = np.empty(len(out) + 1, np.int32), np.empty(len(rows), np.int32)
        kernels.list_occurrences(places, len(out), starts, occurrences)
        some = max(1, min(512, -(-len(out) // 32)))
        self.threads.run(kernels.add_occurrences, len(out), starts, occurrences, rows, out, size=some)

    def bounded_rows(self, queries):
        """For each row its place in row_limits, the bounds of X_hr (of X_rt, of a query for heads), if its relation has
        any, else -1; None where no row's has."""
        if not self.regularised:
            return None
        relations = queries.relations % self.model.n_relations
        inverse = (queries.sides == 0) | (queries.relations >= self.model.n_relations)
        asked, self.row_limits = np.zeros(len(relations), bool), np.tile([0.0, np.inf], (len(relations), 1))
        for turned, bounded in enumerate(self.bounded):
            rows = np.flatnonzero((inverse == bool(turned)) & bounded[relations])
            asked[rows] = True
            self.row_limits[rows] = self.bounds.of(relations[rows], queries.given[rows], bool(turned))
        return np.where(asked, np.arange(len(asked)), -1).astype(np.int32)

    def mlp_gradients(self, queries, columns):
        """`row_gradients` for ER-MLP, and the gradients of its weights."""
        params, ids, sides = self.model.params, columns.ids, queries.sides
        w_h, w_t, w_r = np.split(params["hidden"], 3)
        embeddings = params["entity"][ids]
        hidden = heads, tails, of_relations = embeddings @ w_h, embeddings @ w_t, params["relation"] @ w_r
        d_heads, d_tails, d_relations, d_output = map(np.zeros_like, (*hidden, params["output"]))
        self.losses, self.penalties = [], []
        block = max(1, min(-(-len(sides) // 8), TILE // len(ids)))
        limits = np.append(np.flatnonzero(np.diff(sides, prepend=-1)), len(sides))  # the queries are sorted by side
        for first, last in itertools.pairwise(limits):
            turn = slice(None) if sides[first] == 1 else slice(None, None, -1)
            (mine, others), (d_mine, d_others) = (heads, tails)[turn], (d_heads, d_tails)[turn]
            for tile, rows in self.tiles(queries, columns, block, first, last, self.bounded_rows(queries)):
                given, relations = columns.given[rows], queries.relations[rows]
                d_rows, *sums = self.hidden_pass(tile, mine[given] + of_relations[relations], others)
                d_others += sums[0]
                d_output += sums[1]
                np.add.at(d_mine, given, d_rows)
                np.add.at(d_relations, relations, d_rows)
        weight = self.settings.relation_weight
        for pairs, rows_of in self.pairs(queries, columns) if weight else ():
            n = len(pairs.given)
            block = max(1, min(-(-n // 8), TILE // len(of_relations)))
            for tile, rows in self.tiles(pairs, rows_of, block, 0, n, weight=weight):
                tail, head = pairs.given[rows], pairs.relations[rows]
                d_rows, *sums = self.hidden_pass(tile, heads[head] + tails[tail], of_relations)
                np.add.at(d_heads, head, d_rows)
                np.add.at(d_tails, tail, d_rows)
                d_relations += sums[0]
                d_output += sums[1]
        d_hidden = embeddings.T @ d_heads, embeddings.T @ d_tails, params["relation"].T @ d_relations
        gradients = {
            "entity": d_heads @ w_h.T + d_tails @ w_t.T,
            "relation": d_relations @ w_r.T,
            "hidden": np.concatenate(d_hidden),
            "output": d_output,
        }
        return self.found(), gradients

    def hidden_pass(self, tile, rows, others):
        """Scores, softmax and backward pass of a tile of ER-MLP, of hidden rows (rows, k') of its queries with those of
        the candidates (m, k'): the gradients of these, and of w. Each block sums its own, so that no two threads write
        to the same."""
        output, across = self.model.params["output"], np.ascontiguousarray(others.T)
        blocks = -(-len(rows) // tile.block)
        d_rows = np.zeros_like(rows)
        d_others, d_output = (np.zeros((blocks, *like.shape), like.dtype) for like in (others, output))

        def work(i, j):
            b = i // tile.block
            kernels.hidden_scores(rows[i:j], across, output, tile.scores[i:j])
            tile.coefficients(i, j)
            kernels.hidden_gradients(tile.scores[i:j], rows[i:j], others, output, d_rows[i:j], d_others[b], d_output[b])

        self.threads.run(work, len(rows), size=tile.block)
        return d_rows, d_others.sum(0), d_output.sum(0)
