"""The gradients of a step with the paper's losses: for the three models the fast form of cardkge.py's `objective`, for
any other model the definition itself.

The classes for gradients here and in `softmax` take a batch and return (parts, gradients): the objective and its parts,
and for each table of model.params the `Rows` that have a gradient."""

import functools
import math
from dataclasses import dataclass

import numpy as np

import kernels
from cardkge import ERMLP, ComplEx, DistMult, chosen, objective, probability
from cardkge_tools.definitions.softmax import softmax_objective

KINDS = {DistMult: kernels.DISTMULT, ComplEx: kernels.COMPLEX, ERMLP: kernels.ERMLP}
OWN = None  # the kind of a class unknown to the kernels: its own methods score it
KERNEL_LOSSES = {"logistic": kernels.LOGISTIC, "hinge": kernels.HINGE}
UNIT = 256  # triples of one relation whose relation gradients are summed together
GEMM_ROWS = 1024  # rows of a matrix product given to one thread: fixed, so that its bits do not depend on the threads


def kind_of(model):
    """The kernels' number for the model's class; OWN for any class but the three, even for their subclasses."""
    return KINDS.get(type(model), OWN)


def output_of(model):
    """ER-MLP's w (k',); for the others an empty array."""
    return model.params.get("output", np.empty(0, model.dtype))


class Buffers(dict):
    """Memory, by name, that each step reuses."""

    def __init__(self, dtype):
        self.dtype = dtype

    def __call__(self, name, *shape, dtype=None):
        """An uninitialised array of this shape in the memory with this name."""
        size = math.prod(shape)
        if name not in self or self[name].size < size:
            self[name] = np.empty(size + size // 64, dtype or self.dtype)
        return self[name][:size].reshape(shape)


@dataclass(frozen=True)
class Rows:
    """The gradient of a table's rows: row ids[i], each id once, has values[i] + l2[i] times the row itself."""

    ids: np.ndarray  # (n,) int32
    values: np.ndarray  # (n, w)
    l2: np.ndarray  # (n,)

    @classmethod
    def of_all(cls, values, l2=None):
        """The gradient of all rows of a table; a vector is a table of one row."""
        n = len(np.atleast_2d(values))
        return cls(np.arange(n, dtype=np.int32), np.atleast_2d(values), np.zeros(n) if l2 is None else l2)


def with_objective(model, settings, gradients, loss, penalty, n3=None):
    """The parts of the objective, all sums, and their total; L2 follows from the `Rows`."""
    l2 = 0.0
    for name in ("entity", "relation") if settings.l2 else ():
        used = np.flatnonzero(gradients[name].l2)
        rows = model.params[name][gradients[name].ids[used]]
        l2 += float(gradients[name].l2[used] @ np.einsum("ij,ij->i", rows, rows, dtype=np.float64)) / 2
    parts = {"loss": loss, "l2": l2} | ({} if n3 is None else {"n3": n3}) | {"penalty": penalty}
    return parts | {"objective": loss + l2 + (n3 or 0.0) + settings.penalty_weight * penalty}


# --- any model: the definitions as they are written


class PlainGradients:
    """The gradients of `objective` or `softmax_objective`, in NumPy, for a user's own class."""

    def __init__(self, model, settings, bounds, loopless):
        self.model, self.settings, self.bounds, self.loopless = model, settings, bounds, loopless

    def __call__(self, batch):
        """(parts, gradients) of a batch of `TripleBatches` or, under softmax, of `QueryBatches`."""
        if self.settings.loss == "softmax":
            queries, candidates = batch
            arguments = *queries.triples(self.model.n_relations), self.settings, self.bounds, self.loopless, candidates
            parts, gradients = softmax_objective(self.model, *arguments)
        else:
            ends, relations, samples = batch
            examples = ends[..., 0], np.repeat(relations[:, None], ends.shape[1], axis=1), ends[..., 1]
            samples = [one for sample in samples for one in sample.by_relation()]
            parts, gradients = objective(self.model, *examples, self.settings, self.bounds, samples)
        return parts, {name: Rows.of_all(values) for name, values in gradients.items()}


# --- the paper's losses


@dataclass
class Scored:
    """The rows that a step scores. tables: (rows, relation rows, w). ends, and the heads and tails of each sample, keep
    their drawn shapes and hold places of rows in the tables; slots (x,) hold the row that gets the gradient of each
    occurrence, flat and in that order; `count` rows get one."""

    entities: np.ndarray  # ids of the distinct entities
    uses: np.ndarray  # how often each stands in the batch, samples apart
    slots: np.ndarray
    count: int
    tables: tuple = ()
    ends: np.ndarray | None = None
    heads: tuple = ()
    tails: tuple = ()
    embeddings: tuple = ()  # ER-MLP: rows of the entities; those of heads, those of tails


class Penalty:
    """A `Sample` in a step: the places of its rows, and the results of `penalty_of_relations` for each relation: the
    sum of G_hr (B,) and lambda times its gradients, d_subjects (B, mu, w), d_objects (B, omega, w), d_relations (B, 1,
    w) and d_output (B, k')."""

    def __init__(self, sample, places, gradients, n_outputs):
        """places, gradients: (of heads, of tails) each; n_outputs: the length of w."""
        self.sample, turn = sample, slice(None, None, -1 if sample.inverse else 1)
        self.subjects, self.objects = places[turn]
        self.d_subjects, self.d_objects = gradients[turn]
        size, width, dtype = len(sample.relations), self.d_objects.shape[2], self.d_objects.dtype
        self.sums, self.d_relations = np.zeros(size), np.zeros((size, 1, width), dtype)
        self.d_output = np.zeros((size, n_outputs), dtype)


class SampledGradients:
    """The gradients of `objective`, for DistMult, ComplEx and ER-MLP, on several threads.

    A step numbers the distinct entities of the batch; scores every example, with its loss and coefficient d loss / d
    score (`kernels.loss_units`), and beside that finds the regulariser's gradients; then adds up the gradient of each
    distinct entity over its occurrences in both (`kernels.entity_gradients`)."""

    def __init__(self, model, settings, bounds, threads):
        self.model, self.settings, self.bounds, self.threads = model, settings, bounds, threads
        self.mlp = kind_of(model) == kernels.ERMLP
        self.slot_of = np.full(model.n_entities, -1, np.int32)
        self.buffer = Buffers(model.dtype)

    def __call__(self, batch):
        """(parts, gradients) of a batch of `TripleBatches`."""
        ends, relations, samples = batch
        scored = self.number(ends, samples)
        values = self.buffer("values", len(scored.slots) - ends.size, scored.tables[0].shape[1])
        penalties = self.penalties(samples, scored, values)
        tasks = self.penalty_tasks(penalties, scored.tables)
        loss, coefficients, d_relation, d_output = self.losses(scored, relations, beside=tasks)
        for penalty in penalties:  # a relation may stand in both
            np.add.at(d_relation, penalty.sample.relations, penalty.d_relations[:, 0])
        if penalties:
            d_output += np.concatenate([penalty.d_output for penalty in penalties]).sum(0)
        d_rows = self.add_up(scored, relations, coefficients, values)
        l2 = self.settings.l2 * (ends.shape[1] * np.bincount(relations, minlength=self.model.n_relations))
        d_tables = (d_rows, d_relation, d_output)
        d_entity, d_relation, others = self.d_hidden_tables(scored, *d_tables) if self.mlp else (d_rows, d_relation, {})
        gradients = {"entity": Rows(scored.entities, d_entity, self.settings.l2 * scored.uses)}
        gradients |= {"relation": Rows.of_all(d_relation, l2)} | {name: Rows.of_all(d) for name, d in others.items()}
        sums = np.concatenate([np.zeros(0), *(penalty.sums for penalty in penalties)])
        total = math.fsum(sums) if np.isfinite(sums).all() else math.nan
        return with_objective(self.model, self.settings, gradients, loss, total), gradients

    def number(self, ends, samples):
        """The `Scored` of a step."""
        model = self.model
        heads, tails = [sample.ends[0] for sample in samples], [sample.ends[1] for sample in samples]
        parts = [ends, *heads, *tails]
        ids = np.concatenate([part.ravel() for part in parts])
        n_heads = sum(part.size for part in heads)
        slots = self.buffer("slots", len(ids), dtype=np.int32)
        entities = self.buffer("entities", min(len(ids), model.n_entities), dtype=np.int32)
        uses = self.buffer("uses", len(entities), dtype=np.int32)
        count = kernels.number_entities(ids, ends.size, self.slot_of, entities, uses, slots)
        scored = Scored(entities[:count], uses[:count], slots, count)
        scored.tables = model.params["entity"], model.params["relation"], output_of(model)
        if self.mlp:
            tails = slots[1 : ends.size : 2], slots[ends.size + n_heads :]
            order, a, b = by_role(count, (slots[0 : ends.size : 2], slots[ends.size : ends.size + n_heads]), tails)
            slots[:] = np.argsort(order)[slots]
            scored.entities, scored.uses = scored.entities[order], scored.uses[order]
            # hidden rows: those of heads, of slots [0, b), then those of tails, of slots [a, count)
            rows = self.buffer("embeddings", count, model.dim)
            np.take(model.params["entity"], scored.entities, 0, rows, "clip")
            scored.embeddings = rows, rows[:b], rows[a:]
            scored.tables, scored.count = self.hidden_tables(rows[:b], rows[a:]), b + count - a
            for part in tails:
                part += b - a
            ids = slots
        scored.ends, *places = split_as(ids, parts)
        scored.heads, scored.tails = places[: len(samples)], places[len(samples) :]
        return scored

    def losses(self, scored, relations, beside):
        """The loss, d loss / d score of every example (n, 1 + m), the gradients of relation rows and of w. Meanwhile
        the threads do the tasks `beside`."""
        model, settings, ends, tables = self.model, self.settings, scored.ends, scored.tables
        segments, units = relation_units(relations)
        size, width = len(units) - 1, tables[0].shape[1]
        coefficients, losses = self.buffer("coefficients", *ends.shape[:2]), np.empty(size)
        of_units = self.buffer("of_units", size, width)
        d_outputs = np.empty((size, len(tables[2])), model.dtype)
        loss = chosen("loss", settings.loss, KERNEL_LOSSES)
        self.threads.run(
            kernels.loss_units, size, (kind_of(model), loss, settings.margin), (ends, relations, units), tables,
            (coefficients, losses, of_units, d_outputs), size=-(-size // min(16, 1 + len(relations) // UNIT)),
            beside=beside,
        )  # fmt: skip
        d_relation = np.zeros((model.n_relations, width), model.dtype)
        d_relation[relations[segments]] = np.add.reduceat(of_units, np.searchsorted(units, segments))
        return float(losses.sum()), coefficients, d_relation, d_outputs.sum(0)

    def add_up(self, scored, relations, coefficients, values):
        """The gradient of each row, (count, width), summed over its occurrences in the batch and, from `values`, in the
        samples."""
        count, slots = scored.count, scored.slots
        starts = self.buffer("starts", count + 1, dtype=np.int32)
        occurrences = self.buffer("occurrences", len(slots), dtype=np.int32)
        kernels.list_occurrences(slots, count, starts, occurrences)
        d_rows = self.buffer("d_rows", count, scored.tables[0].shape[1])
        self.threads.run(
            kernels.entity_gradients, count, kind_of(self.model), (scored.ends, relations), (starts, occurrences),
            scored.tables, (coefficients, values), d_rows, size=max(256, -(-count // 32)),
        )  # fmt: skip
        return d_rows

    def hidden_tables(self, heads, tails):
        """ER-MLP's `encode`: hidden rows of heads and tails in one table, hidden rows of all relations, and w, padded
        with columns of zeros to a multiple of 16. These change no score (w is 0 there), and the innermost loops need no
        remainder."""
        model = self.model
        width = -(-model.hidden // 16) * 16
        layers = np.zeros((3 * model.dim, width), model.dtype)
        layers[:, : model.hidden] = model.params["hidden"]
        output = np.zeros(width, model.dtype)
        output[: model.hidden] = model.params["output"]
        self.layers = w_h, w_t, w_r = np.split(layers, 3)
        rows = self.buffer("rows", len(heads) + len(tails), width)
        matmul_rows(self.threads, heads, w_h, rows[: len(heads)])
        matmul_rows(self.threads, tails, w_t, rows[len(heads) :])
        return rows, model.params["relation"] @ w_r, output

    def d_hidden_tables(self, scored, d_rows, d_relation, d_output):
        """ER-MLP's `d_encode`: gradients of the entities and relations, and those of W and w, by name."""
        model, (w_h, w_t, w_r), (rows, heads, tails) = self.model, self.layers, scored.embeddings
        n_heads, n_tails = len(heads), len(tails)
        d_heads, d_tails = d_rows[:n_heads], d_rows[n_heads:]
        d_entity = self.buffer("d_entity", len(rows), model.dim)
        from_tails = self.buffer("from_tails", n_tails, model.dim)
        matmul_rows(self.threads, d_heads, w_h.T, d_entity[:n_heads])
        matmul_rows(self.threads, d_tails, w_t.T, from_tails)
        d_entity[n_heads:] = 0
        d_entity[len(d_entity) - n_tails :] += from_tails
        of_heads, of_tails = matmul_sum(self.threads, heads, d_heads), matmul_sum(self.threads, tails, d_tails)
        d_hidden = np.concatenate((of_heads, of_tails, model.params["relation"].T @ d_relation))
        others = {"hidden": d_hidden[:, : model.hidden], "output": d_output[: model.hidden]}
        return d_entity, d_relation @ w_r.T, others

    # --- the regulariser

    def penalties(self, samples, scored, values):
        """A `Penalty` for each sample; `values` holds the gradients of their rows, in the order of the slots."""
        gradients = split_as(values, (*scored.heads, *scored.tails))
        places = zip(scored.heads, scored.tails)
        gradients = zip(gradients[: len(samples)], gradients[len(samples) :])
        return [Penalty(*each, len(scored.tables[2])) for each in zip(samples, places, gradients)]

    def penalty_tasks(self, penalties, tables):
        """The functions without arguments that compute the penalties; one of them takes several small relations."""
        blocks = [penalty.subjects.shape[1] * penalty.objects.shape[1] for penalty in penalties]
        some, tasks = max(1, 2**14 // max([1, *blocks])), []
        for penalty in penalties:
            for i in range(0, len(penalty.sums), some):
                tasks.append(functools.partial(self.penalty_of_relations, penalty, slice(i, i + some), tables))
        return tasks

    @np.errstate(over="ignore", invalid="ignore")
    def penalty_of_relations(self, penalty, part, tables):
        """sum of G_hr, and lambda times its gradients, for a part of the relations: `cardinality_penalty` on rows.

        Padding, which has weight 0, stands last in each row: columns that are padding in all rows are left out."""
        model, sample, (table, relation_rows, output) = self.model, penalty.sample, tables
        relations, counts, weights = sample.relations[part], sample.counts[part], sample.weights[part]
        sums, d_r, d_w = penalty.sums[part], penalty.d_relations[part], penalty.d_output[part]
        m = max(1, np.count_nonzero(weights.any(0)))
        d_h, d_t = penalty.d_subjects[part], penalty.d_objects[part]
        d_t[:, m:] = 0
        d_t = d_t[:, :m]
        h, t = take(table, penalty.subjects[part]), take(table, penalty.objects[part, :m])
        r = conjugate(relation_rows[relations, None], sample.inverse, model)
        # objects by subjects: BLAS computes this product faster than its transpose
        if self.mlp:
            scores = np.empty((len(h), m, h.shape[1]), table.dtype)
            for i in range(len(h)):
                kernels.hidden_scores(h[i] + r[i], np.ascontiguousarray(t[i].T), output, scores[i].T)
        else:
            scores = model.match(t, model.query_tails(h, r))
        weights, scale = np.ascontiguousarray(weights[:, :m]), model.dtype.type(self.settings.penalty_weight)
        if self.settings.extra_negatives:
            for i, (x, w, n) in enumerate(zip(scores, weights, counts)):
                sums[i] = negative_losses(x, w, n, scale)
        else:
            subjects = sample.subjects[part]
            limits = self.bounds.of(np.repeat(relations, subjects.shape[1]), subjects.ravel(), sample.inverse)
            limits = limits.reshape(*subjects.shape, 2)
            kernels.bounded_sums(scores, weights, counts, limits, scale, np.empty(subjects.shape), sums)
        upstream, violated = np.swapaxes(scores, 1, 2), sums.any()
        if self.mlp or not violated:
            d_h[...] = d_t[...] = 0
        if violated and self.mlp:
            for u, one_h, one_r, one_t, *out in zip(upstream, h, r, t, d_h, d_t, d_w):
                kernels.hidden_gradients(u, one_h + one_r, one_t, output, *out)
            d_r[...] = d_h.sum(1, keepdims=True)
        elif violated:
            d_h[...], d_r[...], _ = model.d_pairs(h, r, t, upstream, None, d_t)
            d_r[...] = conjugate(d_r, sample.inverse, model)


def negative_losses(scores, weights, count, scale):
    """`sampled_negatives` of one relation: returns the value for its first `count` subjects, and replaces the scores
    (m, n) by scale times the gradient. It is only a control, and therefore in plain NumPy."""
    softplus = np.log1p(np.exp(-np.abs(scores))) + np.maximum(scores, 0)
    value = weights @ softplus[:, :count].sum(1, dtype=np.float64)
    scores[...] = scale * weights[:, None] * probability(scores)
    scores[:, count:] = 0
    return float(value)


def conjugate(r, inverse, model):
    """Relation rows r' with phi(h, r, t) = phi(t, r', h), for bounds on the inverse: ComplEx's complex conjugates. For
    DistMult r itself, and for ER-MLP, whose hidden rows of heads and tails change places instead."""
    if not inverse or kind_of(model) != kernels.COMPLEX:
        return r
    real, imaginary = np.split(r, 2, axis=-1)
    return np.concatenate((real, -imaginary), axis=-1)


# --- rows and their products


def take(table, ids):
    """table[ids], for ids of any shape."""
    out = np.empty((*ids.shape, table.shape[1]), table.dtype)
    kernels.take_rows(table, ids.ravel(), out.reshape(-1, table.shape[1]))
    return out


def split_as(flat, arrays):
    """Views of `flat`, whose rows belong to these arrays one after the other, in their shapes."""
    parts = np.split(flat, np.cumsum([array.size for array in arrays])[:-1])
    return [part.reshape(*array.shape, *flat.shape[1:]) for part, array in zip(parts, arrays)]


def by_role(count, heads, tails):
    """(order, a, b) of the slots 0 ... count - 1 that several arrays name as heads and as tails: order[:a] are heads
    alone, order[a:b] both, order[b:] tails alone, so that the rows of heads and those of tails are each contiguous."""
    is_head, is_tail = np.zeros((2, count), bool)
    is_head[np.concatenate(heads)] = True
    is_tail[np.concatenate(tails)] = True
    a = count - np.count_nonzero(is_tail)
    return np.argsort(is_tail * (2 - is_head.astype(np.int8)), kind="stable"), a, np.count_nonzero(is_head)


def relation_units(relations):
    """For sorted relations (n,): where each relation's segment starts, and the limits of its units of UNIT triples."""
    segments = np.flatnonzero(np.diff(relations, prepend=-1))
    place = np.arange(len(relations)) - np.repeat(segments, np.diff(segments, append=len(relations)))
    return segments, np.append(np.flatnonzero(place % UNIT == 0), len(relations))


def matmul_rows(threads, a, b, out):
    """out[...] = a @ b for a (n, k), by ranges of rows."""
    threads.run(lambda i, j: np.matmul(a[i:j], b, out=out[i:j]), len(a), size=GEMM_ROWS)


def matmul_sum(threads, a, b):
    """a.T @ b for a (n, k), b (n, l): partial sums over fixed ranges of rows, added in order."""
    parts = np.zeros((max(-(-len(a) // GEMM_ROWS), 1), a.shape[1], b.shape[1]), a.dtype)
    threads.run(lambda i, j: np.matmul(a[i:j].T, b[i:j], out=parts[i // GEMM_ROWS]), len(a), size=GEMM_ROWS)
    return parts.sum(0)
