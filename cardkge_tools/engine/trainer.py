"""A training step of the paper's losses: `objective` and the optimisers of cardkge.py, fast."""

import functools
import math
from dataclasses import dataclass

import numpy as np

import kernels
from cardkge import (
    OPTIMIZERS,
    PROJECTIONS,
    CardkgeError,
    adagrad_step,
    batch_limits,
    chosen,
    corruptions,
    probability,
    project_rows,
    training_bounds,
    triple_keys,
)
from cardkge_tools.engine.draws import samplers_of
from cardkge_tools.engine.tables import kind_of, output_of


class NonFinite(CardkgeError):
    """The objective or a parameter became NaN or infinite."""


KERNEL_LOSSES = {"logistic": kernels.LOGISTIC, "hinge": kernels.HINGE}
UNIT = 256  # triples of one relation whose relation gradient is summed in one go
GEMM_ROWS = 1024  # rows of a matrix product given to one thread: fixed, so that its bits do not depend on the threads


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


NO_SAMPLE = np.empty(0, int), *[np.empty((0, 0), np.int32)] * 4  # a `Trainer.draw` of no relation


@dataclass
class Rows:
    """The rows that a step scores. In ends, subjects and objects, of the shapes that were drawn, stand places in the
    tables (rows, relation rows, w); in slots those of every occurrence, flat, among the `count` distinct ones."""

    entities: np.ndarray  # ids of the distinct entities
    uses: np.ndarray  # how often each stands in the batch
    slots: np.ndarray
    count: int
    tables: tuple = ()
    ends: np.ndarray | None = None
    subjects: np.ndarray | None = None
    objects: np.ndarray | None = None
    embeddings: np.ndarray | None = None  # ER-MLP's, of the entities; heads and tails are parts of it
    heads: np.ndarray | None = None
    tails: np.ndarray | None = None


class Penalty:
    """The regulariser's sums in a step: of G_hr for each relation (B,), and lambda times its gradients: of the
    subjects' and objects' rows, together in `values` (see `rows_of`), d_r (B, 1, w) of the relations', d_w (B, k') of
    w. The first `forward` relations bound the tails of heads, the others the heads of tails."""

    def __init__(self, values, rows, forward, dtype):
        size, width = len(rows.subjects), values.shape[1]
        self.values, self.of_relations, self.forward = values, np.zeros(size), forward
        sides = rows.subjects[:forward], rows.objects[forward:], rows.objects[:forward], rows.subjects[forward:]
        parts = np.split(values, np.cumsum([side.size for side in sides])[:-1])
        self.heads, of_inverse, self.tails, others = (v.reshape(*s.shape, width) for v, s in zip(parts, sides))
        self.inverse = others, of_inverse
        self.d_r, self.d_w = np.zeros((size, 1, width), dtype), np.zeros((size, len(rows.tables[2])), dtype)

    def rows_of(self, part):
        """d_h (b, mu, w) and d_t (b, omega, w), of the subjects' and the objects' rows, for a slice of the relations,
        all of one direction."""
        if part.start < self.forward:
            return self.heads[part], self.tails[part]
        part = slice(part.start - self.forward, part.stop - self.forward)
        return self.inverse[0][part], self.inverse[1][part]

    def total(self):
        """The sum of G; NaN where one is not finite."""
        return math.fsum(self.of_relations) if np.isfinite(self.of_relations).all() else math.nan


class Trainer:
    """One training step at a time, as `objective` and the optimisers above define it, fast and on several threads.

    A step has four passes: number the distinct entities of the batch; score, and find the loss and the coefficient
    d loss / d score of every example (`kernels.loss_units`), and the regulariser's gradients; add up the gradient of
    each distinct entity over its occurrences in both (`kernels.entity_gradients`); update each row, once
    (`kernels.update_rows`). All gradients are taken at the parameters before the step.
    """

    def __init__(self, model, accumulators, settings, bounds, triples, threads):
        self.model, self.settings, self.threads, self.accumulators = model, settings, threads, accumulators
        self.bounds = training_bounds(bounds, settings, model.n_relations)
        # relations whose bounds are of the tails of heads, and of the heads of tails
        self.bounded = np.flatnonzero(self.bounds.is_bounded())
        self.inverse = np.flatnonzero(self.bounds.is_bounded(inverse=True))
        self.regularised = len(self.bounded) + len(self.inverse) > 0 and settings.penalty_weight > 0
        if self.regularised:
            self.samplers = self.new_samplers(triples)
            self.inverse_samplers = self.new_samplers(np.ascontiguousarray(triples[:, ::-1]))
        self.slot_of = np.full(model.n_entities, -1, np.int32)
        self.buffers = {}

    def buffer(self, name, *shape, dtype=None):
        """An array of this shape, uninitialised, in memory that is kept from step to step."""
        dtype = dtype or self.model.dtype
        size = math.prod(shape)
        if name not in self.buffers or self.buffers[name].size < size:
            self.buffers[name] = np.empty(size + size // 64, dtype)
        return self.buffers[name][:size].reshape(shape)

    def draw(self, rng):
        """The regulariser's sample for one step: relations (B,), subjects (B, mu), counts (B,), objects, weights (B,
        w). Relations of inverse bounds stand last: of these the subjects are tails, and the objects heads."""
        parts = []
        for relations, samplers in ((self.bounded, self.samplers), (self.inverse, self.inverse_samplers)):
            if len(relations):
                drawn = [sampler.draw(rng, relations) for sampler in samplers]
                parts.append((relations, *drawn[0], *drawn[1]))
        return parts[0] if len(parts) == 1 else tuple(one_below_another(*each) for each in zip(*parts))

    def new_samplers(self, triples):
        """Samplers of subjects, the heads, and objects, the tails of these triples."""
        return samplers_of(triples, (self.model.n_entities, self.model.n_relations), self.settings)

    @np.errstate(over="ignore", invalid="ignore")  # what is not finite is found, and raised as NonFinite
    def step(self, ends, relations, sample=None, learning_rate=None):
        """One update of the parameters, in place.

        ends (n, 1 + m, 2) int32: head and tail of each positive triple (column 0) and its corruptions; relations (n,)
        int32, sorted; sample as `draw` returns it, or None. Returns {"objective", "loss", "l2", "penalty"} as
        `objective` does. Raises NonFinite, before any parameter is changed, if one of these, or a parameter after the
        step, is not finite.
        """
        settings = self.settings
        sample = sample or NO_SAMPLE
        rows = self.number_rows(ends, sample)
        penalty, tasks = self.begin_penalty(sample, rows)
        batch = rows.ends, relations, relation_units(relations)
        loss, coefficients, d_relation, d_output = self.losses(batch, rows.tables, beside=tasks)
        np.add.at(d_relation, sample[0], penalty.d_r[:, 0])  # a relation may stand there for both directions
        d_output += penalty.d_w.sum(0)
        d_rows = self.add_up(batch, rows, coefficients, penalty.values)
        sums = {"loss": loss, "l2": 0.0, "penalty": penalty.total()}
        l2 = {"entity": settings.l2 * rows.uses}
        l2["relation"] = settings.l2 * (ends.shape[1] * np.bincount(relations, minlength=self.model.n_relations))
        if settings.l2:
            sums["l2"] = self.l2_penalty(rows.entities, l2)
        sums["objective"] = sums["loss"] + sums["l2"] + settings.penalty_weight * sums["penalty"]
        if not math.isfinite(sums["objective"]):
            raise NonFinite(f"the objective is {sums['objective']}")
        gradients = {"entity": d_rows, "relation": d_relation}
        if rows.embeddings is not None:
            gradients = self.d_hidden_tables(rows, d_rows, d_relation, d_output)
        self.update(gradients, rows.entities, l2, settings.learning_rate if learning_rate is None else learning_rate)
        return sums

    def number_rows(self, ends, sample):
        """Pass 1: the distinct entities of a step, and the rows to score."""
        model, mlp = self.model, kind_of(self.model) == kernels.ERMLP
        _, subjects, _, objects, _ = sample
        cut = self.forward(sample)  # heads of all, then tails of all
        n_heads = subjects[:cut].size + objects[cut:].size
        parts = subjects[:cut], objects[cut:], objects[:cut], subjects[cut:]
        ids = np.concatenate((ends.ravel(), *(part.ravel() for part in parts)))
        slots = self.buffer("slots", len(ids), dtype=np.int32)
        entities = self.buffer("entities", min(len(ids), model.n_entities), dtype=np.int32)
        uses = self.buffer("uses", len(entities), dtype=np.int32)
        count, a, b = kernels.number_entities(ids, ends.size, n_heads, mlp, self.slot_of, entities, uses, slots)
        rows = Rows(entities[:count], uses[:count], slots, count)
        rows.tables = model.params["entity"], model.params["relation"], output_of(model)
        if mlp:  # hidden rows: those of heads, of slots [0, b), then those of tails, of slots [a, count)
            rows.embeddings = self.buffer("embeddings", count, model.dim)
            np.take(model.params["entity"], rows.entities, 0, rows.embeddings, "clip")
            rows.heads, rows.tails = rows.embeddings[:b], rows.embeddings[a:]
            rows.tables, rows.count = self.hidden_tables(rows.heads, rows.tails), b + count - a
            slots[1 : ends.size : 2] += b - a
            slots[ends.size + n_heads :] += b - a
            ids = slots
        limits = np.cumsum([ends.size, *(part.size for part in parts[:-1])])
        batch, *places = np.split(ids, limits)
        places = [place.reshape(part.shape) for place, part in zip(places, parts)]
        rows.ends = batch.reshape(ends.shape)
        rows.subjects, rows.objects = np.concatenate(places[::3]), np.concatenate(places[2:0:-1])
        return rows

    def forward(self, sample):
        """How many of a sample's relations, the first, bound the tails of heads."""
        return max(len(sample[0]) - len(self.inverse), 0)

    def losses(self, batch, tables, beside):
        """Pass 2: the loss, d loss / d score of every example (n, 1 + m), the gradients of relation rows and of w; the
        tasks `beside` are done meanwhile."""
        (ends, relations, (segments, units)), model, settings = batch, self.model, self.settings
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

    def add_up(self, batch, rows, coefficients, values):
        """Pass 3: the gradient of each row, (rows.count, width): over its occurrences in the batch, and in the
        regulariser's sample, whose part is in `values`."""
        (ends, relations, _), slots = batch, rows.slots
        starts = self.buffer("starts", rows.count + 1, dtype=np.int32)
        occurrences = self.buffer("occurrences", len(slots), dtype=np.int32)
        kernels.list_occurrences(slots, rows.count, starts, occurrences)
        d_rows = self.buffer("d_rows", rows.count, rows.tables[0].shape[1])
        self.threads.run(
            kernels.entity_gradients, rows.count, kind_of(self.model), (ends, relations), (starts, occurrences),
            rows.tables, (coefficients, values), d_rows, size=max(256, -(-rows.count // 32)),
        )  # fmt: skip
        return d_rows

    def l2_penalty(self, entities, weights):
        """Half the sum of weight * ||row||^2 over the rows of entities and of all relations."""
        params, total = self.model.params, 0.0
        for name, rows in (("entity", params["entity"][entities]), ("relation", params["relation"])):
            total += float(weights[name] @ np.einsum("ij,ij->i", rows, rows, dtype=np.float64)) / 2
        return total

    def hidden_tables(self, heads, tails):
        """ER-MLP's `encode`: hidden rows of heads and tails, one table, hidden rows of all relations, and w. All have
        columns of zeros up to a multiple of 16: they change no score (w is 0 there), and the innermost loops then have
        no remainder."""
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

    def d_hidden_tables(self, rows, d_rows, d_relation, d_output):
        """ER-MLP's `d_encode`: all gradients, from those of the tables."""
        model, (w_h, w_t, w_r) = self.model, self.layers
        n_heads, n_tails = len(rows.heads), len(rows.tails)
        d_heads, d_tails = d_rows[:n_heads], d_rows[n_heads:]
        d_entity = self.buffer("d_entity", len(rows.embeddings), model.dim)
        from_tails = self.buffer("from_tails", n_tails, model.dim)
        matmul_rows(self.threads, d_heads, w_h.T, d_entity[:n_heads])
        matmul_rows(self.threads, d_tails, w_t.T, from_tails)
        d_entity[n_heads:] = 0
        d_entity[len(d_entity) - n_tails :] += from_tails
        d_hidden = (
            matmul_sum(self.threads, rows.heads, d_heads),
            matmul_sum(self.threads, rows.tails, d_tails),
            model.params["relation"].T @ d_relation,
        )
        return {
            "entity": d_entity,
            "relation": d_relation @ w_r.T,
            "hidden": np.concatenate(d_hidden)[:, : model.hidden],
            "output": d_output[: model.hidden],
        }

    def update(self, gradients, entities, l2, rate):
        """One step of the optimiser, and the projection, on the rows that have a gradient; NonFinite, with nothing
        changed, if a parameter would no longer be finite."""
        settings, dtype = self.settings, self.model.dtype
        adagrad = chosen("optimizer", settings.optimizer, OPTIMIZERS) is adagrad_step
        # AdaGrad moves a number by at most the rate, if the gradient is finite. Other steps are tried on copies first.
        largest = max(rate, settings.l2, settings.penalty_weight)
        trial = not adagrad or largest > np.finfo(dtype).max ** 0.25
        faults, tried = np.zeros(1, np.uint8), []
        for name, gradient in gradients.items():
            table = np.atleast_2d(self.model.params[name])  # `output` is one row
            accumulator = np.atleast_2d(self.accumulators[name]) if adagrad else table  # SGD's kernel leaves it alone
            ids = entities if name == "entity" else np.arange(len(table), dtype=np.int32)
            if trial:
                tried.append((table, accumulator, ids, table[ids], accumulator[ids]))
                table, accumulator, ids = *tried[-1][3:], np.arange(len(ids), dtype=np.int32)
            weights = np.asarray(l2.get(name, np.zeros(len(ids))), dtype)
            project = name == "entity" and chosen("project", settings.project, PROJECTIONS) is project_rows
            self.threads.run(
                kernels.update_rows, len(ids), table, accumulator, ids, np.atleast_2d(gradient), weights,
                dtype.type(rate), adagrad, project, faults, size=max(512, -(-len(ids) // 32)),
            )  # fmt: skip
        if faults[0]:
            raise NonFinite("a parameter is no longer finite")
        for table, accumulator, ids, rows, squares in tried:
            if adagrad:
                accumulator[ids] = squares
            table[ids] = rows

    def begin_penalty(self, sample, rows):
        """The regulariser's part of a step: (a `Penalty` of zeros, the tasks that fill it). The weights that are not 0
        stand first in each row of the sample's weights."""
        relations, subjects, _, _, weights = sample
        values = self.buffer("values", rows.subjects.size + rows.objects.size, rows.tables[0].shape[1])
        cut = self.forward(sample)
        penalty = Penalty(values, rows, cut, self.model.dtype)
        # of small blocks several relations at once
        some = max(1, 2**14 // max(1, subjects.shape[1] * weights.shape[1]))
        limits = (0, cut), (cut, len(relations))
        parts = [slice(i, min(i + some, end)) for start, end in limits for i in range(start, end, some)]
        return penalty, [functools.partial(self.penalty_of_relations, part, sample, rows, penalty) for part in parts]

    @np.errstate(over="ignore", invalid="ignore")
    def penalty_of_relations(self, part, sample, rows, penalty):
        """sum of G_hr, and lambda times its gradients, of a part of the relations: `cardinality_penalty` on rows.

        In each row of the weights those that are not 0 stand first, so that the columns after the last of them are left
        out for all of the part."""
        model, mlp, (table, relation_rows, output) = self.model, kind_of(self.model) == kernels.ERMLP, rows.tables
        relations, subjects, counts, _, weights = (each[part] for each in sample)
        inverse = part.start >= penalty.forward
        m = max(1, np.count_nonzero(weights.any(0)))  # a smaller sample is filled up with weights of 0
        (d_h, d_t), d_r, d_w = penalty.rows_of(part), penalty.d_r[part], penalty.d_w[part]
        d_t[:, m:] = 0
        d_t = d_t[:, :m]
        h, r = take(table, rows.subjects[part]), turned(relation_rows[relations, None], inverse, model)
        t = take(table, rows.objects[part, :m])
        # of objects by subjects: BLAS finds this product faster than its transpose
        if mlp:
            scores = np.empty((len(h), m, h.shape[1]), table.dtype)
            for i in range(len(h)):
                kernels.hidden_scores(h[i] + r[i], np.ascontiguousarray(t[i].T), output, scores[i].T)
        else:
            scores = model.match(t, model.query_tails(h, r))
        weights, scale = np.ascontiguousarray(weights[:, :m]), model.dtype.type(self.settings.penalty_weight)
        of_relations = penalty.of_relations[part]
        if self.settings.extra_negatives:
            for i, (x, w, n) in enumerate(zip(scores, weights, counts)):
                of_relations[i] = negative_losses(x, w, n, scale)
        else:
            each = np.repeat(relations, subjects.shape[1])
            limits = self.bounds.of(each, subjects.ravel(), inverse).reshape(*subjects.shape, 2)
            kernels.bounded_sums(scores, weights, counts, limits, scale, np.empty(subjects.shape), of_relations)
        upstream, violated = np.swapaxes(scores, 1, 2), of_relations.any()
        if mlp or not violated:
            d_h[...] = d_t[...] = 0
        if violated and mlp:
            for u, one_h, one_r, one_t, *out in zip(upstream, h, r, t, d_h, d_t, d_w):
                kernels.hidden_gradients(u, one_h + one_r, one_t, output, *out)
            d_r[...] = d_h.sum(1, keepdims=True)
        elif violated:
            d_h[...], d_r[...], _ = model.d_pairs(h, r, t, upstream, None, d_t)
            d_r[...] = turned(d_r, inverse, model)


def negative_losses(scores, weights, count, scale):
    """`sampled_negatives` of one relation: returns the value for its first `count` subjects, and replaces the scores
    (m, n) by scale times the gradient. A control, so in plain NumPy."""
    softplus = np.log1p(np.exp(-np.abs(scores))) + np.maximum(scores, 0)
    value = weights @ softplus[:, :count].sum(1, dtype=np.float64)
    scores[...] = scale * weights[:, None] * probability(scores)
    scores[:, count:] = 0
    return float(value)


def turned(r, inverse, model):
    """Relation rows with which phi(h, r, t) = phi(t, turned r, h), for bounds of the inverse: the complex conjugate for
    ComplEx. For DistMult the row itself; for ER-MLP too, whose hidden rows of heads and tails only change places."""
    if not inverse or kind_of(model) != kernels.COMPLEX:
        return r
    real, imaginary = np.split(r, 2, axis=-1)
    return np.concatenate((real, -imaginary), axis=-1)


def one_below_another(one, other):
    """Two arrays with the same number of axes as one; the narrower filled up with its first column (ids) or 0
    (weights)."""
    if one.ndim == 1:
        return np.concatenate((one, other))
    width = max(one.shape[1], other.shape[1])
    filled = []
    for part in (one, other):
        more = np.zeros((len(part), width - part.shape[1]), part.dtype)
        if part.dtype.kind == "i":
            more[:] = part[:, :1]
        filled.append(np.concatenate((part, more), axis=1))
    return np.concatenate(filled)


def take(table, ids):
    """table[ids], for ids of any shape."""
    out = np.empty((*ids.shape, table.shape[1]), table.dtype)
    kernels.take_rows(table, ids.ravel(), out.reshape(-1, table.shape[1]))
    return out


class Batches:
    """Batches and the regulariser's samples, drawn from generators seeded by (seed, epoch, step), each beside the step
    before it."""

    def __init__(self, trainer, triples):
        self.trainer, self.triples, self.settings = trainer, triples, trainer.settings
        self.sizes = trainer.model.n_entities, trainer.model.n_relations
        self.limits = batch_limits(len(triples), self.settings)
        self.steps = len(self.limits) - 1
        self.known = np.sort(triple_keys(*triples.T, *self.sizes)) if self.settings.filter_negatives else None
        self.orders, self.following = {}, None

    def draw(self, epoch, step):
        """A step's ends and relations, sorted by relation, and the regulariser's sample."""
        if epoch not in self.orders:
            self.orders.clear()
            self.orders[epoch] = np.arange(len(self.triples), dtype=np.int32)
            np.random.default_rng([self.settings.seed, 1, epoch]).shuffle(self.orders[epoch])
        rng = np.random.default_rng([self.settings.seed, 2, epoch, step])
        batch = self.triples[self.orders[epoch][self.limits[step] : self.limits[step + 1]]]
        relations = batch[:, 1].astype(np.uint16) if self.sizes[1] < 2**16 else batch[:, 1]  # a radix sort
        batch = batch[np.argsort(relations, kind="stable")]
        ends = corruptions(rng, batch, self.settings.negatives, self.sizes[0], self.known, self.sizes[1])
        return ends, np.ascontiguousarray(batch[:, 1]), self.trainer.draw(rng) if self.trainer.regularised else None

    def take(self, epoch, step):
        """The batch of this step; the next one is begun beside it."""
        threads = self.trainer.threads
        batch = (self.following or threads.start(self.draw, epoch, step))()
        after = (epoch, step + 1) if step + 1 < self.steps else (epoch + 1, 0)
        self.following = threads.start(self.draw, *after) if after[0] < self.settings.epochs else None
        return batch
