"""TODO"""

import functools
import math
import time

import numpy as np

import kernels
from cardkge import CardkgeError, checked_triples, corruptions, is_bounded, metrics, triple_keys
from cardkge_tools.engine.draws import ObjectSampler, SubjectSampler
from cardkge_tools.engine.ranking import rank_triples
from cardkge_tools.engine.threads import Threads
from cardkge_tools.terminal import table


class NonFinite(CardkgeError):
    """The objective or a parameter became NaN or infinite."""


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


class Trainer:
    """One training step at a time, as `objective` and the optimisers above define it, fast and on several threads.

    A step has four passes: number the distinct entities of the batch; score, and find the loss and the coefficient
    d loss / d score of every example (`kernels.loss_units`), and the regulariser's gradients; add up the gradient of
    each distinct entity over its occurrences in both (`kernels.entity_gradients`); update each row, once
    (`kernels.update_rows`). All gradients are taken at the parameters before the step.
    """

    def __init__(self, model, accumulators, settings, bounds, triples, threads):
        self.model, self.settings, self.threads, self.accumulators = model, settings, threads, accumulators
        self.bounds = np.asarray(bounds, np.float64)
        self.bounded = np.flatnonzero(is_bounded(self.bounds))
        sizes = model.n_entities, model.n_relations
        self.regularised = len(self.bounded) > 0 and settings.penalty_weight > 0
        if self.regularised:
            self.subjects = SubjectSampler(settings.subject_pool, triples, *sizes, settings.subjects)
            self.objects = ObjectSampler(settings.sampling, triples, *sizes, settings.objects, settings.inclusion)
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
        w)."""
        return self.bounded, *self.subjects.draw(rng, self.bounded), *self.objects.draw(rng, self.bounded)

    @np.errstate(over="ignore", invalid="ignore")  # what is not finite is found, and raised as NonFinite
    def step(self, ends, relations, sample=None, learning_rate=None):
        """One update of the parameters, in place.

        ends (n, 1 + m, 2) int32: head and tail of each positive triple (column 0) and its corruptions; relations (n,)
        int32, sorted; sample as `draw` returns it, or None. Returns {"objective", "loss", "l2", "penalty"} as
        `objective` does. Raises NonFinite, before any parameter is changed, if one of these, or a parameter after the
        step, is not finite.
        """
        model, settings, threads, params = self.model, self.settings, self.threads, self.model.params
        mlp = model.kind == kernels.ERMLP

        # 1. the distinct entities, and the rows to score
        bounded, subjects, _, objects, _ = sample = sample or NO_SAMPLE
        ids = np.concatenate((ends.ravel(), subjects.ravel(), objects.ravel()))
        slots = self.buffer("slots", len(ids), dtype=np.int32)
        entities = self.buffer("entities", min(len(ids), model.n_entities), dtype=np.int32)
        uses = self.buffer("uses", len(entities), dtype=np.int32)
        count, a, b = kernels.number_entities(ids, ends.size, subjects.size, mlp, self.slot_of, entities, uses, slots)
        entities, uses, n_rows = entities[:count], uses[:count], count
        tables = params["entity"], params["relation"], model.output
        if mlp:  # hidden rows: those of heads, of slots [0, b), then those of tails, of slots [a, count)
            embeddings = np.take(params["entity"], entities, 0, self.buffer("embeddings", count, model.dim), "clip")
            tables, n_rows = self.hidden_tables(embeddings[:b], embeddings[a:]), b + count - a
            slots[1 : ends.size : 2] += b - a
            slots[ends.size + subjects.size :] += b - a
            ids = slots
        batch, subjects, objects = np.split(ids, [ends.size, ends.size + subjects.size])
        ends, width = batch.reshape(ends.shape), tables[0].shape[1]

        # 2. scores, losses, coefficients, relation gradients; beside them the penalty and its gradients
        segments, units = relation_units(relations)
        tasks, penalties, values, d_r, d_w = self.penalty_parts(sample, tables, subjects, objects)
        coefficients = self.buffer("coefficients", *ends.shape[:2])
        losses = np.empty(len(units) - 1)
        of_units = self.buffer("of_units", len(losses), width)
        d_outputs = np.empty((len(losses), len(tables[2])), model.dtype)
        loss = kernels.LOGISTIC if settings.loss == "logistic" else kernels.HINGE
        threads.run(
            kernels.loss_units, len(losses), model.kind, loss, settings.margin, ends, relations, units, tables,
            coefficients, losses, of_units, d_outputs, size=-(-len(losses) // min(16, 1 + len(relations) // UNIT)),
            beside=tasks,
        )  # fmt: skip
        d_relation, d_output = np.zeros((model.n_relations, width), model.dtype), d_outputs.sum(0)
        d_relation[relations[segments]] = np.add.reduceat(of_units, np.searchsorted(units, segments))
        d_relation[bounded] += d_r
        d_output += d_w.sum(0)
        penalty = math.fsum(penalties) if np.isfinite(penalties).all() else math.nan
        sums = {"loss": float(losses.sum()), "l2": 0.0, "penalty": penalty}

        # 3. entity gradients
        starts = self.buffer("starts", n_rows + 1, dtype=np.int32)
        occurrences = self.buffer("occurrences", len(slots), dtype=np.int32)
        kernels.list_occurrences(slots, n_rows, starts, occurrences)
        d_rows = self.buffer("d_rows", n_rows, width)
        threads.run(
            kernels.entity_gradients, n_rows, model.kind, ends, relations, starts, occurrences, tables,
            coefficients, values, d_rows, size=max(256, -(-n_rows // 32)),
        )  # fmt: skip

        # 4. L2, and the update
        uses_of_relations = ends.shape[1] * np.bincount(relations, minlength=model.n_relations)
        l2 = {"entity": settings.l2 * uses, "relation": settings.l2 * uses_of_relations}
        if settings.l2:
            for name, rows in (("entity", params["entity"][entities]), ("relation", params["relation"])):
                sums["l2"] += float(l2[name] @ np.einsum("ij,ij->i", rows, rows, dtype=np.float64)) / 2
        sums["objective"] = sums["loss"] + sums["l2"] + settings.penalty_weight * sums["penalty"]
        if not math.isfinite(sums["objective"]):
            raise NonFinite(f"the objective is {sums['objective']}")
        gradients = {"entity": d_rows, "relation": d_relation}
        if mlp:
            gradients = self.d_hidden_tables(embeddings, a, b, d_rows, d_relation, d_output)
        self.update(gradients, entities, l2, settings.learning_rate if learning_rate is None else learning_rate)
        return sums

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

    def d_hidden_tables(self, embeddings, a, b, d_rows, d_relation, d_output):
        """ER-MLP's `d_encode`: all gradients, from those of the tables; heads are slots [0, b), tails slots [a,
        ...)."""
        model, (w_h, w_t, w_r) = self.model, self.layers
        d_heads, d_tails = d_rows[:b], d_rows[b:]
        d_entity = self.buffer("d_entity", len(embeddings), model.dim)
        from_tails = self.buffer("from_tails", len(d_tails), model.dim)
        matmul_rows(self.threads, d_heads, w_h.T, d_entity[:b])
        matmul_rows(self.threads, d_tails, w_t.T, from_tails)
        d_entity[b:] = 0
        d_entity[a:] += from_tails
        d_hidden = (
            matmul_sum(self.threads, embeddings[:b], d_heads),
            matmul_sum(self.threads, embeddings[a:], d_tails),
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
        adagrad = settings.optimizer == "adagrad"
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
            project = name == "entity" and settings.project == "unit"
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

    def penalty_parts(self, sample, tables, subjects, objects):
        """The regulariser's part of a step; subjects and objects of the sample as rows of `tables` (flat). The weights
        that are not 0 stand first in each row of the sample's weights.

        Returns (tasks, sum of G_hr for each relation (B,), and lambda times its gradients: of the subjects' and then
        the objects' rows, of the relations' rows (B, w), of w (B, k')); the arrays are filled by the tasks.
        """
        relations, shape, counts, _, weights = sample[0], sample[1].shape, *sample[2:]
        subjects, objects = subjects.reshape(shape), objects.reshape(weights.shape)
        width, dtype, size = tables[0].shape[1], self.model.dtype, len(relations)
        values = self.buffer("values", subjects.size + objects.size, width)
        d_h = values[: subjects.size].reshape(*subjects.shape, width)
        d_t = values[subjects.size :].reshape(*objects.shape, width)
        penalties, d_r, d_w = np.zeros(size), np.zeros((size, 1, width), dtype), np.zeros((size, len(tables[2])), dtype)
        some = max(1, 2**14 // max(1, shape[1] * weights.shape[1]))  # of small blocks several relations at once
        tasks = [
            functools.partial(
                self.penalty_of_relations, slice(i, i + some), relations, subjects, counts, objects, weights, tables,
                penalties, d_h, d_r, d_t, d_w,
            )
            for i in range(0, size, some)
        ]  # fmt: skip
        return tasks, penalties, values, d_r[:, 0], d_w

    @np.errstate(over="ignore", invalid="ignore")
    def penalty_of_relations(
        self, part, relations, subjects, counts, objects, weights, tables, penalties, d_h, d_r, d_t, d_w
    ):
        """sum of G_hr, and lambda times its gradients, of a part of the relations: `cardinality_penalty` on rows.

        In each row of `weights` those that are not 0 stand first, so that the columns after the last of them are left
        out for all of the part."""
        rows, relation_rows, output = tables
        model, mlp = self.model, self.model.kind == kernels.ERMLP
        m = max(1, np.count_nonzero(weights[part].any(0)))  # a smaller sample is filled up with weights of 0
        d_t[part, m:] = 0
        d_t = d_t[part, :m]
        h, r, t = take(rows, subjects[part]), relation_rows[relations[part], None], take(rows, objects[part, :m])
        # of objects by subjects: BLAS finds this product faster than its transpose
        if mlp:
            scores = np.empty((len(h), m, h.shape[1]), rows.dtype)
            for i in range(len(h)):
                kernels.hidden_scores(h[i] + r[i], np.ascontiguousarray(t[i].T), output, scores[i].T)
        else:
            scores = model.match(t, model.query_tails(h, r))
        sums, scale = np.empty(h.shape[1]), model.dtype.type(self.settings.penalty_weight)
        for i, (x, w, n, relation) in enumerate(zip(scores, weights[part, :m], counts[part], relations[part])):
            penalties[part.start + i] = kernels.bounded_sums(x, w, n, *self.bounds[relation], scale, sums)
        upstream = np.swapaxes(scores, 1, 2)
        if mlp or not penalties[part].any():
            d_h[part] = d_t[:] = 0
        if not penalties[part].any():
            return
        if mlp:
            for u, one_h, one_r, one_t, *out in zip(upstream, h, r, t, d_h[part], d_t, d_w[part]):
                kernels.hidden_gradients(u, one_h + one_r, one_t, output, *out)
            d_r[part] = d_h[part].sum(1, keepdims=True)
        else:
            d_h[part], d_r[part], _ = model.d_pairs(h, r, t, upstream, None, d_t)


def take(table, ids):
    """table[ids], for ids of any shape."""
    out = np.empty((*ids.shape, table.shape[1]), table.dtype)
    kernels.take_rows(table, ids.ravel(), out.reshape(-1, table.shape[1]))
    return out


def train(run, dataset, threads=None, on_epoch=None, on_step=None, stop=None):
    """Continues a run up to run.settings.epochs (paper, Algorithm 1). Returns "finished", "patience" or "stopped".

    on_epoch(run, record) is called after each epoch, on_step(run, step, steps) after each step; stop() is asked after
    each step, and true ends the call with "stopped": the run then holds what an uninterrupted one would have held
    there. All random numbers are drawn from generators seeded by (seed, epoch, step), so the same settings give the
    same bits, stopped or not, on any number of threads. A record, kept in run.history too, has the epoch, the means
    over its steps of objective, loss, l2 and penalty (each a sum over the step's examples or pairs), and the seconds.
    With settings.validate_every the filtered metrics on valid are taken every so many epochs and the parameters with
    the best hits@10 (then MRR) are kept; `patience` validations without a better one end the training. Raises
    NonFinite, which names epoch and step; run then counts the steps before that one.
    """
    settings, triples = run.settings, dataset.train
    settings.check()
    sizes = dataset.n_entities, dataset.n_relations
    if sizes != (run.model.n_entities, run.model.n_relations):
        raise CardkgeError(
            f"the data has {sizes[0]} entities and {sizes[1]} relations, the run {run.model.n_entities} and"
            f" {run.model.n_relations}: train on the data that the run was made for"
        )
    checked_triples(triples, *sizes)
    n = len(triples)
    steps = -(-n // settings.batch_size) if settings.batch_size else min(settings.batches, n)
    cuts = [n * i // steps for i in range(steps + 1)]
    if settings.batch_size:
        cuts = [min(settings.batch_size * i, n) for i in range(steps + 1)]
    known = np.sort(triple_keys(*triples.T, *sizes)) if settings.filter_negatives else None
    with Threads(threads) as threads:
        trainer = Trainer(run.model, run.accumulators, settings, run.bounds, triples, threads)
        orders, drawn = {}, None

        def draw(epoch, step):
            """A step's ends and relations, sorted by relation, and the regulariser's sample."""
            if epoch not in orders:
                orders.clear()
                orders[epoch] = np.arange(n, dtype=np.int32)
                np.random.default_rng([settings.seed, 1, epoch]).shuffle(orders[epoch])
            rng = np.random.default_rng([settings.seed, 2, epoch, step])
            batch = triples[orders[epoch][cuts[step] : cuts[step + 1]]]
            relations = batch[:, 1].astype(np.uint16) if sizes[1] < 2**16 else batch[:, 1]  # a radix sort
            batch = batch[np.argsort(relations, kind="stable")]
            ends = corruptions(rng, batch, settings.negatives, sizes[0], known, sizes[1])
            return ends, np.ascontiguousarray(batch[:, 1]), trainer.draw(rng) if trainer.regularised else None

        while run.epoch < settings.epochs:
            if out_of_patience(run):
                return "patience"
            epoch, began = run.epoch, time.perf_counter()
            rate = settings.learning_rate / (1 + settings.decay * epoch)  # decay is 0 for AdaGrad
            while run.step < steps:
                batch = (drawn or threads.start(draw, epoch, run.step))()
                after = (epoch, run.step + 1) if run.step + 1 < steps else (epoch + 1, 0)
                drawn = threads.start(draw, *after) if after[0] < settings.epochs else None  # beside this step
                try:
                    sums = trainer.step(*batch, rate)
                except NonFinite as error:
                    hint = " or --project unit" if settings.project == "none" else ""
                    raise NonFinite(
                        f"{error} at epoch {epoch + 1}, step {run.step + 1}; use a smaller learning rate (it is"
                        f" {settings.learning_rate:g}), l2 or lambda{hint}"
                    ) from None
                for name, value in sums.items():
                    run.partial[name] = run.partial.get(name, 0.0) + value
                run.step += 1
                if on_step:
                    on_step(run, run.step, steps)
                if run.step < steps and stop and stop():
                    run.partial["seconds"] = run.partial.get("seconds", 0.0) + time.perf_counter() - began
                    return "stopped"
            seconds = run.partial.get("seconds", 0.0) + time.perf_counter() - began
            sums = {name: value / steps for name, value in run.partial.items() if name != "seconds"}
            record, best = {"epoch": epoch + 1} | sums | {"seconds": seconds}, run.best
            if settings.validate_every and (epoch + 1) % settings.validate_every == 0:
                found = metrics(rank_triples(run.model, dataset.valid, dataset.known, threads=threads)["filtered"])
                record |= {"valid_mrr": found["mrr"], "valid_hits@10": found["hits@10"]}
                if best is None or (found["hits@10"], found["mrr"]) > (best["hits@10"], best["mrr"]):
                    params = {name: array.copy() for name, array in run.model.params.items()}
                    best = {"epoch": epoch + 1, "mrr": found["mrr"], "hits@10": found["hits@10"], "params": params}
            run.epoch, run.step, run.partial, run.best = epoch + 1, 0, {}, best
            run.history.append(record)
            if on_epoch:
                on_epoch(run, record)
            if run.epoch < settings.epochs and stop and stop():
                return "stopped"
    return "patience" if out_of_patience(run) and run.epoch < settings.epochs else "finished"


def out_of_patience(run):
    """Whether the last `patience` validations all failed to improve on the best one."""
    settings = run.settings
    if not (settings.patience and settings.validate_every and run.best):
        return False
    return run.epoch - run.best["epoch"] >= settings.patience * settings.validate_every
