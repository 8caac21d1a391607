"""Numba kernels of cardkge: arrays in, arrays out; no I/O, no classes, no global state.

Each kernel repeats, fused and compiled, a definition in plain NumPy; the tests hold the two equal. Callers check
their arguments, allocate the results and draw the random numbers.

Letters: N entities, R relations, n positive triples of a batch, m corruptions of each, k columns of a row.
A batch is `ends` (n, 1 + m, 2), head and tail of each positive triple (column 0) and its corruptions, and relations
(n,).

*Rows.* DistMult and ComplEx score rows of the entity and relation tables. ER-MLP is linear before its tanh, so it
scores *hidden rows* W_h' e_h, W_t' e_t and W_r' r, computed once for each distinct entity of a batch, not once for each
example. Kernels see only rows; `output` is ER-MLP's vector w (empty for the other two).

*Threads.* A kernel works on a range (first, last) of fixed units, without the GIL; the caller runs ranges on several
threads. No two ranges write the same element, and each sum has one fixed order, so the number of threads changes no
bit.

*Fast-math.* Sums may be reassociated and contracted, and zeros lose their sign, so that sums use vector registers. NaN
and infinity keep their meaning.
"""

import contextlib
import hashlib
import math
import pickle

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.caching import IndexDataCacheFile
from numba.extending import intrinsic, overload

DISTMULT, COMPLEX, ERMLP = 0, 1, 2  # `kind`: which scoring function
LOGISTIC, HINGE = 0, 1  # `loss`

OPTIONS = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}


class CheckedFiles(IndexDataCacheFile):
    """Numba's files of one kernel, with a checksum. A damaged file is compiled and written again; a cache that cannot
    be written is not an error."""

    def __init__(self, files):
        vars(self).update(vars(files))

    def save(self, key, data):
        with contextlib.suppress(OSError):
            super().save(key, data)

    def _load_index(self):
        try:
            return super()._load_index()
        except Exception:  # pickle raises all kinds of exceptions for a damaged file
            return {}

    def _save_data(self, name, data):
        data = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(data).digest() + data)

    def _load_data(self, name):
        with open(self._data_path(name), "rb") as file:
            content = file.read()
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            raise OSError(f"{name} is damaged")  # treated like an absent file
        return pickle.loads(content[32:])


def compiled(function):
    """`function`, compiled at its first call and kept in Numba's cache where it has a folder; the cache takes a damaged
    file for an absent one."""
    try:
        dispatcher = njit(cache=True, nogil=True, **OPTIONS)(function)
    except RuntimeError:  # no such folder
        return njit(nogil=True, **OPTIONS)(function)
    cache = getattr(dispatcher, "_cache", None)  # no cache where NUMBA_DISABLE_JIT is set
    if isinstance(getattr(cache, "_cache_file", None), IndexDataCacheFile):
        cache._cache_file = CheckedFiles(cache._cache_file)
        ensure = cache._impl.locator.ensure_cache_path

        def ensured():
            with contextlib.suppress(OSError):
                ensure()

        cache._impl.locator.ensure_cache_path = ensured
    return dispatcher


# LLVM sees a function that kernels call only as part of each of them. As a function of its own it would exist in
# several copies, optimised differently, and the cache would decide which one runs.
inlined = njit(inline="always", **OPTIONS)
ELEMENTARY = {**OPTIONS, "fastmath": {"contract", "nsz"}}  # tanh and sigma: every copy must round alike


# ------------------------------------------------------------------------------------------------------------------
# tanh, sigma and exp
# ------------------------------------------------------------------------------------------------------------------

# tanh(x) ~ x P(x^2) / Q(x^2) on [-9, 9], minimax in relative error (2.1e-8 before rounding), found by Lawson-weighted
# least squares. In float32 the result is within 4e-7 of tanh, everywhere, and the compiler can vectorise it.
_P = np.array([0.99999998, 0.13381038197, 3.4956022423e-3, 2.060928445e-5, 1.3354882126e-8], np.float32)
_Q = np.array([0.46714353857, 2.587703790e-2, 3.285656604e-4, 7.776661408e-7], np.float32)
(_P0, _P1, _P2, _P3, _P4), (_Q1, _Q2, _Q3, _Q4) = _P, _Q
_ONE, _NINE = np.float32(1), np.float32(9)


def rational_tanh(x):
    """tanh of a float32 as a quotient of two polynomials: absolute and relative error below 4e-7, within [-1, 1]."""
    x = -_NINE if x < -_NINE else x  # so written, NaN stays NaN
    x = _NINE if x > _NINE else x
    u = x * x
    p = _P0 + u * (_P1 + u * (_P2 + u * (_P3 + u * _P4)))
    q = _ONE + u * (_Q1 + u * (_Q2 + u * (_Q3 + u * _Q4)))
    y = x * p / q
    y = -_ONE if y < -_ONE else y
    return _ONE if y > _ONE else y


def tanh(x):
    """tanh; float32 by `rational_tanh` when compiled, float64 by the mathematical library."""
    return np.tanh(x)


@overload(tanh, jit_options=ELEMENTARY)
def _tanh(x):
    if x == types.float32:
        return rational_tanh
    return lambda x: math.tanh(x)


# 2^f on [-1/2, 1/2], minimax in relative error (7.5e-8), found in the same way
_E = np.array([1.00000007, 0.69314697, 0.2402212, 0.055507133, 9.6755416e-3, 1.3276471e-3], np.float32)
_E0, _E1, _E2, _E3, _E4, _E5 = _E
_LOG2_E, _HALF, _LARGE = np.float32(1.4426950408889634), np.float32(0.5), np.float32(87)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # ln 2: n times the first part is exact


@intrinsic
def _power_of_two(typing_context, n):
    """2^n in float32, for an int32 n in [-126, 127]: the bits of its exponent."""

    def code(context, builder, signature, arguments):
        word = ir.IntType(32)
        bits = builder.shl(builder.add(arguments[0], word(127)), word(23))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.int32), code


@njit(inline="always", **ELEMENTARY)
def _exp_float32(x):
    """exp by 2^n 2^f for x <= 87: relative error below 4e-7 for x > -87; at and below it the value at -87, 1.6e-38."""
    x = -_LARGE if x < -_LARGE else x  # so written, NaN stays NaN
    n = np.floor(_HALF + x * _LOG2_E)
    f = ((x - n * _LN2_HIGH) - n * _LN2_LOW) * _LOG2_E
    p = _E0 + f * (_E1 + f * (_E2 + f * (_E3 + f * (_E4 + f * _E5))))
    return p * _power_of_two(np.int32(n))


def exp(x):
    """exp(x) of x <= 87; when compiled, float32 by operations that the compiler can vectorise."""
    return math.exp(x)


@overload(exp, jit_options=ELEMENTARY)
def _exp(x):
    return (lambda x: _exp_float32(x)) if x == types.float32 else lambda x: math.exp(x)


def _sigma_float32(x):
    """sigma by exp(-x): relative error below 4e-7 for x > -87; at and below it the value at -87, 1.6e-38."""
    return _ONE / (_ONE + _exp_float32(-(-_LARGE if x < -_LARGE else x)))


def _sigma_float64(x):
    e = math.exp(-abs(x))
    return (1.0 if x >= 0 else e) / (1.0 + e)


def sigma(x):
    """1 / (1 + exp(-x)), without overflow; when compiled, float32 by operations that the compiler can vectorise."""
    return _sigma_float64(x)


@overload(sigma, jit_options=ELEMENTARY)
def _sigma(x):
    return _sigma_float32 if x == types.float32 else _sigma_float64


# ------------------------------------------------------------------------------------------------------------------
# Prefetching: rows are read in an order that the processor cannot guess
# ------------------------------------------------------------------------------------------------------------------


@intrinsic
def _prefetch(typing_context, table, row, column):
    """Prefetches the cache line of table[row, column]; it has no other effect."""

    def code(context, builder, signature, arguments):
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, arguments[0])
        at = [
            context.cast(builder, index, index_type, types.intp)
            for index, index_type in zip(arguments[1:], signature.args[1:])
        ]
        address = cgutils.get_item_pointer(context, builder, kind, array, at)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        )
        read, near, data = word(0), word(3), word(1)
        builder.call(function, [builder.bitcast(address, byte), read, near, data])
        return context.get_dummy_value()

    return types.void(table, row, column), code


def prefetch_row(table, row):
    """Begins to load row `row` of a 2-d array into the cache; it changes no value."""


@overload(prefetch_row, jit_options=OPTIONS)
def _prefetch_row(table, row):
    step = 64 // (table.dtype.bitwidth // 8)

    def prefetch(table, row):
        for column in range(0, table.shape[1], step):
            _prefetch(table, row, column)

    return prefetch


# ------------------------------------------------------------------------------------------------------------------
# The scoring functions on rows: the only code here that knows the models
# ------------------------------------------------------------------------------------------------------------------


@inlined
def triple_score(kind, rows, h, relation_rows, r, t, output):
    """phi(h, r, t) of rows h and t of `rows` and row r of `relation_rows`."""
    score = rows.dtype.type(0)
    if kind == DISTMULT:  # sum_i h_i r_i t_i
        for i in range(rows.shape[1]):
            score += rows[h, i] * relation_rows[r, i] * rows[t, i]
    elif kind == COMPLEX:  # Re(sum_i h_i r_i conj(t_i)); h = a + ib, r = c + id, t = e + if
        k = rows.shape[1] // 2
        for i in range(k):
            a, b = rows[h, i], rows[h, k + i]
            c, d = relation_rows[r, i], relation_rows[r, k + i]
            score += (a * c - b * d) * rows[t, i] + (a * d + b * c) * rows[t, k + i]
    else:  # w . tanh(W_h' h + W_t' t + W_r' r)
        for i in range(rows.shape[1]):
            score += output[i] * tanh(rows[h, i] + relation_rows[r, i] + rows[t, i])
    return score


@inlined
def add_entity_gradient(kind, tail, c, rows, h, relation_rows, r, t, output, out, s):
    """out[s] += c * d phi(h, r, t) / d row, of the tail's row if `tail` is 1, of the head's if 0."""
    if kind == DISTMULT:
        other = h if tail else t
        for i in range(rows.shape[1]):
            out[s, i] += c * relation_rows[r, i] * rows[other, i]
    elif kind == COMPLEX:
        k = rows.shape[1] // 2
        if tail:  # h r
            for i in range(k):
                a, b = rows[h, i], rows[h, k + i]
                re, im = relation_rows[r, i], relation_rows[r, k + i]
                out[s, i] += c * (a * re - b * im)
                out[s, k + i] += c * (a * im + b * re)
        else:  # conj(r) t
            for i in range(k):
                e, f = rows[t, i], rows[t, k + i]
                re, im = relation_rows[r, i], relation_rows[r, k + i]
                out[s, i] += c * (e * re + f * im)
                out[s, k + i] += c * (f * re - e * im)
    else:  # w (1 - tanh^2), the same for all three rows
        one = rows.dtype.type(1)
        for i in range(rows.shape[1]):
            z = tanh(rows[h, i] + relation_rows[r, i] + rows[t, i])
            out[s, i] += c * output[i] * (one - z * z)


@inlined
def add_relation_gradient(kind, c, rows, h, relation_rows, r, t, output, out, out_w, s):
    """out[s] += c * d phi / d relation row; for ER-MLP also out_w[s] += c * d phi / d w."""
    k = rows.shape[1]
    if kind == DISTMULT:
        for i in range(k):
            out[s, i] += c * rows[h, i] * rows[t, i]
    elif kind == COMPLEX:  # conj(h) t
        k = k // 2
        for i in range(k):
            a, b = rows[h, i], rows[h, k + i]
            e, f = rows[t, i], rows[t, k + i]
            out[s, i] += c * (a * e + b * f)
            out[s, k + i] += c * (a * f - b * e)
    else:
        one = rows.dtype.type(1)
        for i in range(k):
            z = tanh(rows[h, i] + relation_rows[r, i] + rows[t, i])
            out[s, i] += c * output[i] * (one - z * z)
            out_w[s, i] += c * z


# ------------------------------------------------------------------------------------------------------------------
# Losses: the value and d/d score of one positive triple and its corruptions
# ------------------------------------------------------------------------------------------------------------------


@inlined
def loss_of_triple(loss, margin, scores, i):
    """The loss of row i of `scores` (n, 1 + m), which it replaces by d loss / d score."""
    value = 0.0
    if loss == LOGISTIC:  # log(1 + exp(-y score)), d = -y sigma(-y score)
        for j in range(scores.shape[1]):
            y = 1.0 if j == 0 else -1.0
            x = y * scores[i, j]
            e = math.exp(-abs(x))
            value += math.log1p(e) + max(-x, 0.0)
            scores[i, j] = -y * (e if x >= 0 else 1.0) / (1.0 + e)
    else:  # Eq. 2: [margin + sigma(negative) - sigma(positive)]_+ of each corruption
        p = sigma(scores[i, 0])
        total = 0.0
        for j in range(1, scores.shape[1]):
            q = sigma(scores[i, j])
            excess = margin + q - p
            scores[i, j] = 0.0
            if excess > 0 or math.isnan(excess):
                value += excess
                scores[i, j] = q * (1.0 - q)
                total -= p * (1.0 - p)
        scores[i, 0] = total
    return value


# ------------------------------------------------------------------------------------------------------------------
# A training step: its rows and their occurrences; coefficients, then the gradient of each row, then the update
# ------------------------------------------------------------------------------------------------------------------


@compiled
def number_entities(ids, n_ends, slot_of, entities, uses, slots):
    """Numbers the distinct entities of a step: slots 0, 1, ... in the order of first appearance. Returns how many.

    ids (x,): n_ends entities of the batch, then those of the regulariser's samples. slot_of (N,) is a workspace that
    holds -1 everywhere, before and after. Writes entities[slot] = id, uses[slot] = how often it stands in the batch
    itself, slots[x] = slot of ids[x].
    """
    count = 0
    for x in range(ids.size):
        e = ids[x]
        s = slot_of[e]
        if s < 0:
            s = count
            slot_of[e] = s
            entities[s] = e
            uses[s] = 0
            count += 1
        slots[x] = s
        if x < n_ends:
            uses[s] += 1
    for s in range(count):
        slot_of[entities[s]] = -1
    return count


@compiled
def list_occurrences(ends, n_rows, starts, occurrences):
    """Counting sort of the positions of `ends` (x,) by the row that they name: those of row s, in rising order, are
    occurrences[starts[s] : starts[s + 1]]. starts (n_rows + 1,) and occurrences (x,) are written."""
    starts[: n_rows + 1] = 0
    for x in range(ends.size):
        starts[ends[x] + 1] += 1
    for s in range(n_rows):
        starts[s + 1] += starts[s]
    for x in range(ends.size):  # starts[s] runs to the end of its list ...
        s = ends[x]
        occurrences[starts[s]] = x
        starts[s] += 1
    for s in range(n_rows, 0, -1):  # ... and is put back
        starts[s] = starts[s - 1]
    starts[0] = 0


@compiled
def loss_units(first, last, scoring, batch, tables, found):
    """Scores and losses of the units first..last, and the relation's part of the gradient.

    scoring = (kind, loss, margin). batch = (ends, relations, units): ends (n, 1 + m, 2) rows of head and tail;
    relations (n,); unit u is the triples units[u]..units[u + 1], all of one relation. tables = (rows, relation_rows,
    output). Writes found = (coefficients, values, d_relations, d_outputs): coefficients (n, 1 + m) = d loss / d score;
    for each unit its loss, and its sums of coefficient * d score / d relation row and / d w (ER-MLP; else of width 0).
    """
    kind, loss, margin = scoring
    ends, relations, units = batch
    rows, relation_rows, output = tables
    coefficients, values, d_relations, d_outputs = found
    for u in range(first, last):
        values[u] = 0.0
        d_relations[u, :] = 0
        d_outputs[u, :] = 0
        for i in range(units[u], units[u + 1]):
            r = relations[i]
            if i + 1 < len(ends):
                prefetch_row(rows, ends[i + 1, 0, 0])
                prefetch_row(rows, ends[i + 1, 0, 1])
                for j in range(1, ends.shape[1]):
                    prefetch_row(rows, ends[i + 1, j, j & 1])
            for j in range(ends.shape[1]):
                coefficients[i, j] = triple_score(kind, rows, ends[i, j, 0], relation_rows, r, ends[i, j, 1], output)
            values[u] += loss_of_triple(loss, margin, coefficients, i)
            for j in range(ends.shape[1]):
                c = coefficients[i, j]
                if c != 0:
                    h, t = ends[i, j, 0], ends[i, j, 1]
                    add_relation_gradient(kind, c, rows, h, relation_rows, r, t, output, d_relations, d_outputs, u)


@compiled
def entity_gradients(first, last, kind, batch, lists, tables, parts, gradients):
    """gradients[s] = sum over the occurrences of row s of coefficient * d score / d row, for s in first..last.

    batch = (ends, relations), lists = (starts, occurrences), tables = (rows, relation_rows, output), parts =
    (coefficients, values). An occurrence is a position in `ends` (n, 1 + m, 2), flat: its lowest bit says head (0) or
    tail (1). Those from ends.size on belong to the regulariser: their part of the gradient is values[x - ends.size].
    """
    (ends, relations), (starts, occurrences) = batch, lists
    rows, relation_rows, output = tables
    coefficients, values = parts
    n_ends, width = ends.size, ends.shape[1]
    for s in range(first, last):
        gradients[s, :] = 0
        for q in range(starts[s], starts[s + 1]):
            if q + 3 < len(occurrences):
                x = occurrences[q + 3]
                if x < n_ends:
                    i = (x >> 1) // width
                    prefetch_row(rows, ends[i, (x >> 1) - i * width, 1 - (x & 1)])
                else:
                    prefetch_row(values, x - n_ends)
            x = occurrences[q]
            if x >= n_ends:
                x -= n_ends
                for i in range(values.shape[1]):
                    gradients[s, i] += values[x, i]
                continue
            i = (x >> 1) // width
            j = (x >> 1) - i * width
            c = coefficients[i, j]
            if c != 0:
                add_entity_gradient(
                    kind, x & 1, c, rows, ends[i, j, 0], relation_rows, relations[i], ends[i, j, 1], output,
                    gradients, s,
                )  # fmt: skip


@compiled
def update_rows(first, last, table, accumulator, ids, gradients, l2_weights, rate, adagrad, project, faults):
    """One step of SGD or AdaGrad on the rows ids[s] of `table`, for s in first..last; with `project` each to L2 norm 1.

    gradient = gradients[s] + l2_weights[s] * row. AdaGrad: accumulator += gradient^2, row -= rate * gradient /
    sqrt(accumulator), without an eps: where the accumulator is 0, nothing changes. A row of zeros stays one.
    faults[0] is set to 1 where a new row is not finite.
    """
    zero = table.dtype.type(0)
    for s in range(first, last):
        e = ids[s]
        if s + 1 < last:
            prefetch_row(table, ids[s + 1])
            prefetch_row(accumulator, ids[s + 1])
        l2 = l2_weights[s]
        square = zero
        if adagrad:
            for i in range(table.shape[1]):
                g = gradients[s, i] + l2 * table[e, i]
                a = accumulator[e, i] + g * g
                accumulator[e, i] = a
                v = table[e, i] - (zero if a == 0 else rate * g / math.sqrt(a))
                table[e, i] = v
                square += v * v
        else:
            for i in range(table.shape[1]):
                v = table[e, i] - rate * (gradients[s, i] + l2 * table[e, i])
                table[e, i] = v
                square += v * v
        norm = math.sqrt(square)
        if not math.isfinite(norm):  # a square may overflow where the row does not
            wide = 0.0
            for i in range(table.shape[1]):
                wide += np.float64(table[e, i]) ** 2
            norm = table.dtype.type(math.sqrt(wide))
            if not math.isfinite(norm):
                faults[0] = 1
        if project and norm > 0:
            for i in range(table.shape[1]):
                table[e, i] /= norm


# ------------------------------------------------------------------------------------------------------------------
# The regulariser: sampled sums, Eqs. 3-7
# ------------------------------------------------------------------------------------------------------------------


@compiled
def hidden_scores(heads, tails, output, scores):
    """ER-MLP: scores[i, t] = sum_j output_j tanh(heads[i, j] + tails[j, t]), of tails (k', m). The innermost loop runs
    over a tile of tails that stays in the cache for all heads: a copy, of one fixed width, so that the compiler knows
    that nothing overlaps, and has no remainder.

    tanh(a + b) = 1 - 2 / (1 + exp(2 a) exp(2 b)): one exponential for each element of a tile, not one tanh for each
    pair, and one division for two pairs. No product of two powers within e^20 overflows; a tile with a larger element
    takes tanh itself.
    """
    size, n_hidden = 256, heads.shape[1]
    zero, one, two, limit = scores.dtype.type(0), scores.dtype.type(1), scores.dtype.type(2), scores.dtype.type(10)
    tile, block = np.zeros((n_hidden, size), scores.dtype), np.empty(size, scores.dtype)
    within, powers, total = np.all(np.abs(heads) <= limit), np.empty_like(heads), output.sum()
    for i in range(heads.shape[0]):
        for j in range(n_hidden):
            powers[i, j] = exp(two * heads[i, j]) if within else zero
    for start in range(0, tails.shape[1], size):
        n = min(size, tails.shape[1] - start)
        tile[:, :n] = tails[:, start : start + n]
        tile[:, n:] = zero
        by_powers = within and np.all(np.abs(tile) <= limit)
        if by_powers:
            for j in range(n_hidden):
                for t in range(size):
                    tile[j, t] = exp(two * tile[j, t])
        for i in range(heads.shape[0]):
            block[:] = zero
            if by_powers:
                for j in range(0, n_hidden - 1, 2):
                    a, b, v, w = powers[i, j], powers[i, j + 1], output[j], output[j + 1]
                    for t in range(size):  # v / p + w / q
                        p, q = one + a * tile[j, t], one + b * tile[j + 1, t]
                        block[t] += (v * q + w * p) / (p * q)
                if n_hidden % 2:
                    a, v = powers[i, n_hidden - 1], output[n_hidden - 1]
                    for t in range(size):
                        block[t] += v / (one + a * tile[n_hidden - 1, t])
                for t in range(size):
                    block[t] = total - two * block[t]
            else:
                for j in range(n_hidden):
                    h, w = heads[i, j], output[j]
                    for t in range(size):
                        block[t] += w * tanh(h + tile[j, t])
            scores[i, start : start + n] = block[:n]


@compiled
def hidden_gradients(upstream, heads, tails, output, d_heads, d_tails, d_output):
    """Backward pass of `hidden_scores`, here with tails (m, k'): adds sum upstream[i, t] d scores[i, t] to d_heads
    (n, k'), d_tails (m, k') and d_output (k',)."""
    one = heads.dtype.type(1)
    for i in range(heads.shape[0]):
        for t in range(tails.shape[0]):
            c = upstream[i, t]
            if c != 0:
                for j in range(heads.shape[1]):
                    z = tanh(heads[i, j] + tails[t, j])
                    d = c * output[j] * (one - z * z)
                    d_heads[i, j] += d
                    d_tails[t, j] += d
                    d_output[j] += c * z


@compiled
def take_rows(table, ids, out):
    """out[x] = table[ids[x]], as np.take, in half the time: the rows are prefetched."""
    for x in range(len(ids)):
        if x + 4 < len(ids):
            prefetch_row(table, ids[x + 4])
        e = ids[x]
        for i in range(table.shape[1]):
            out[x, i] = table[e, i]


@compiled
def bounded_sums(scores, weights, counts, limits, scale, sums, penalties):
    """Eqs. 4 and 5 for several relations: sums[b, i] = X_i = sum_t weights[b, t] sigma(scores[b, t, i]); penalties[b]
    = the sum of G_i = max(0, lower - X_i) + max(0, X_i - upper) over the first counts[b] of n subjects, where
    limits[b, i] = lower, upper. weights (B, m), counts (B,), limits (B, n, 2). Writes sums (B, n) and penalties (B,).

    Replaces scores (B, m, n) by scale times the gradients of the penalties. Column i of scores[b] becomes 0 where
    lower <= X_i <= upper (0 too at the kink of G, a bound itself), and where i >= counts[b]: such subjects are padding.
    """
    m, n = scores.shape[1:]
    slopes, one = np.empty(n, scores.dtype), scores.dtype.type(1)
    for b in range(scores.shape[0]):
        of_b, sums_of_b = scores[b], sums[b]
        sums_of_b[:] = 0
        slopes[:] = 0
        for t in range(m):
            w = weights[b, t]
            for i in range(n):
                p = sigma(of_b[t, i])
                of_b[t, i] = p
                sums_of_b[i] += w * p
        penalty = 0.0
        for i in range(counts[b]):
            x, lower, upper = sums_of_b[i], limits[b, i, 0], limits[b, i, 1]
            penalty += max(0.0, lower - x) + max(0.0, x - upper) + 0.0 * x  # NaN stays NaN
            if not lower <= x <= upper:
                slopes[i] = scale if x > upper else -scale
        penalties[b] = penalty
        for t in range(m):
            w = scores.dtype.type(weights[b, t])
            for i in range(n):
                p = of_b[t, i]
                of_b[t, i] = slopes[i] * w * p * (one - p)


@compiled
def distinct_draws(uniforms, sizes, takes, marks, draws):
    """Floyd's algorithm: for each b, takes[b] distinct integers of range(sizes[b]), all subsets equally likely.

    uniforms (sum of takes,) in [0, 1); they and the results, in `draws`, go one b after the other. marks is a workspace
    of zeros, before and after, at least as long as the largest size."""
    start = 0
    for b in range(sizes.size):
        stop = start + takes[b]
        for x in range(start, stop):
            j = sizes[b] - (stop - x)
            d = min(int(uniforms[x] * (j + 1)), j)
            if marks[d]:
                d = j
            marks[d] = 1
            draws[x] = d
        for x in range(start, stop):
            marks[draws[x]] = 0
        start = stop


# ------------------------------------------------------------------------------------------------------------------
# Ranking
# ------------------------------------------------------------------------------------------------------------------


@compiled
def product_of_rows(rows, layer, out):
    """out = rows @ layer, every row by the same operations in the same order (a BLAS library may round by place)."""
    for i in range(rows.shape[0]):
        out[i, :] = 0
        for j in range(rows.shape[1]):
            for k in range(layer.shape[1]):
                out[i, k] += rows[i, j] * layer[j, k]


@compiled
def exact_scores(kind, tables, tail_offset, side, triples, questions, entities, out):
    """out[x] = score of the triple questions[x] of triples (n, 3) with entities[x] as its head (side 0) or tail (1).
    tables = (rows, relation_rows, output); a tail's row is row tail_offset + id. Only this kernel computes a score that
    decides a rank, so equal rows have equal bits."""
    rows, relation_rows, output = tables
    ends = np.empty(2, np.int64)
    for x in range(len(questions)):
        i = questions[x]
        ends[0], ends[1] = triples[i, 0], tail_offset + triples[i, 2]
        ends[side] = side * tail_offset + entities[x]
        out[x] = triple_score(kind, rows, ends[0], relation_rows, triples[i, 1], ends[1], output)


@compiled
def count_better(scores, start, low, high, answers, starts, stops, known, counts, questions, entities):
    """For n queries, which scores (n, w) of the entities from `start` on are surely above the right answer's, and which
    are so near to it that exact scores must decide.

    A score above high[i] is surely above; any other that is not below low[i], or is NaN, is near. known[starts[i] :
    stops[i]]: the true answers to query i, ascending. Adds to counts[i, 0] how many entities are surely above, and to
    counts[i, 2] how many of them are not known. Writes the near ones, except the right answer, to questions[x],
    entities[x]; returns how many.
    """
    near, width = 0, scores.shape[1]
    for i in range(len(scores)):
        bottom, top, above = low[i], high[i], 0
        for first in range(0, width, 256):
            part = scores[i, first : first + 256]
            surely, not_below = np.int32(0), np.int32(0)  # as many bits as a float32: ten times as fast as int64
            for e in range(len(part)):
                surely = np.int32(surely + np.int32(part[e] > top))
                not_below = np.int32(not_below + np.int32(not part[e] < bottom))
            above += surely
            if surely < not_below:
                for e in range(len(part)):
                    if not (part[e] > top or part[e] < bottom) and start + first + e != answers[i]:
                        questions[near], entities[near] = i, start + first + e
                        near += 1
        counts[i, 0] += above
        x = starts[i] + np.searchsorted(known[starts[i] : stops[i]], start)
        while x < stops[i] and known[x] < start + width:
            above -= known[x] != answers[i] and scores[i, known[x] - start] > top
            x += 1
        counts[i, 2] += above
    return near


@compiled
def count_near(questions, entities, scores, right, starts, stops, known, counts):
    """Adds to counts[i] = (above, equal, above and not known, equal and not known), i = questions[x], the entity of the
    exact score scores[x], which is not the right answer; right[i] is the right answer's score. counts[i, 1] becomes
    very negative where a score is NaN."""
    for x in range(len(questions)):
        i, e, s = questions[x], entities[x], scores[x]
        if math.isnan(s):
            counts[i, 1] = -(2**62)
        if s >= right[i]:
            column = 0 if s > right[i] else 1
            counts[i, column] += 1
            filtered = known[starts[i] : stops[i]]
            place = np.searchsorted(filtered, e)
            if place == len(filtered) or filtered[place] != e:
                counts[i, 2 + column] += 1


# ------------------------------------------------------------------------------------------------------------------
# Counts
# ------------------------------------------------------------------------------------------------------------------


@compiled
def log_sums(scores, largest, sums):
    """sums[i] = log sum_t exp(scores[i, t]), float64, given largest[i] = max_t scores[i, t]; NaN where one is NaN."""
    for i in range(scores.shape[0]):
        total = 0.0
        for start in range(0, scores.shape[1], 256):  # by chunks, in vector registers
            part, chunk = scores[i, start : start + 256], scores.dtype.type(0)
            for j in range(len(part)):
                chunk += exp(part[j] - largest[i])
            total += chunk
        sums[i] = math.log(total) + largest[i] if total >= 0 else np.nan


@compiled
def sums_below(scores, least, slope, above, sums):
    """sums[i], float64 = sum of e / (1 + above[i] e), e = exp(slope[i] (scores[i, t] - least[i])), over the t with
    scores[i, t] < least[i]: odds of `calibrated_log_odds`, divided by c e^x at the score least[i], where above[i] is
    (1 - c) e^x. In float32 e is never below 1.6e-38."""
    for i in range(scores.shape[0]):
        number, total = scores.dtype.type, 0.0
        a, k = number(slope[i]), number(above[i])
        for start in range(0, scores.shape[1], 256):  # by chunks, in vector registers
            part, chunk = scores[i, start : start + 256], number(0)
            for j in range(len(part)):
                e = exp(min(a * (part[j] - least[i]), number(0)))
                chunk += e / (number(1) + k * e) if part[j] < least[i] else number(0)
            total += chunk
        sums[i] = total


@compiled
def softmax_rows(scores, largest, weights, sums):
    """Replaces scores[i] by weights[i] softmax, and adds to sums[i] (n,) float64, which holds the sum of exponentials
    of what is not in the row, that of exp(scores[i, t] - largest[i]); 0 for what is 87 or more below the largest.
    scores (n, m) float; largest, weights (n,); a NaN makes the row NaN."""
    least = scores.dtype.type(2e-38)  # above what `exp` of float32 gives there, which would become a subnormal number
    for i in range(scores.shape[0]):
        row, total = scores[i], sums[i]
        for start in range(0, len(row), 256):  # by chunks, in vector registers
            part, chunk = row[start : start + 256], scores.dtype.type(0)
            for j in range(len(part)):
                part[j] = exp(part[j] - largest[i])
                chunk += part[j]
            total += chunk
        sums[i] = total
        scale = scores.dtype.type(weights[i] / total)
        for j in range(len(row)):
            row[j] = scores.dtype.type(0) if row[j] < least else row[j] * scale


@compiled
def live_candidates(scores, least, taken_starts, taken, wanted_starts, wanted, starts, ids):
    """The tails ids[starts[i] : starts[i + 1]], ascending, that matter in row i of scores (n, N): those with a score of
    at least least[i], and wanted[wanted_starts[i] : wanted_starts[i + 1]] with any score, without taken[taken_starts[i]
    : taken_starts[i + 1]]. Both lists are ascending and share no id.

    Writes starts (n + 1,), and ids as far as there is room: call again with room for starts[n]. Returns starts[n]."""
    room, used = len(ids), 0
    n = scores.shape[1]
    for i in range(scores.shape[0]):
        starts[i] = used
        a, b = taken_starts[i], wanted_starts[i]
        for start in range(0, n, 256):
            part = scores[i, start : start + 256]
            above = np.int32(0)
            for j in range(len(part)):
                above = np.int32(above + np.int32(part[j] >= least[i]))
            stop = start + len(part)
            if above > 0 or (b < wanted_starts[i + 1] and wanted[b] < stop):
                for j in range(len(part)):
                    t = start + j
                    while a < taken_starts[i + 1] and taken[a] < t:
                        a += 1
                    asked = b < wanted_starts[i + 1] and wanted[b] == t
                    b += asked
                    excluded = a < taken_starts[i + 1] and taken[a] == t
                    if (asked or part[j] >= least[i]) and not excluded:
                        if used < room:
                            ids[used] = t
                        used += 1
    starts[scores.shape[0]] = used
    return used


@inlined
def support(weights, least, most):
    """The range least to most, narrowed to ends with weights above 0."""
    m = len(weights) - 1
    while least <= m and weights[least] == 0:
        least += 1
    if weights[m] == 0:
        most = min(most, m)
        while most >= 0 and weights[most] == 0:
            most -= 1
        if least > m:
            most = -1
    return least, most


@inlined
def tilted_odds(x, log_rest, tilt, p, q):
    """p = sigma(x + tilt) and q = 1 - p, each with full relative precision; returns the mean and the variance of the
    number of members, the rest a Poisson number of them."""
    mean = variance = math.exp(log_rest + tilt)
    for t in range(len(x)):
        e = math.exp(-abs(x[t] + tilt))
        larger, smaller = 1.0 / (1.0 + e), e / (1.0 + e)
        p[t], q[t] = (larger, smaller) if x[t] + tilt >= 0 else (smaller, larger)
        mean += p[t]
        variance += p[t] * q[t]
    return mean, variance


@inlined
def find_tilt(x, log_rest, end, p, q):
    """Writes p and q with a tilt that brings the mean within 1/4 of `end`, at least 1; returns (tilt, mean, variance).
    It takes Newton's step, or half the interval where that step leaves it."""
    most, margin = log_rest, math.log(len(x) + 1) + 1
    least = math.log(end) - log_rest if log_rest > -np.inf else -np.inf
    for t in range(len(x)):
        most = max(most, x[t])
        least = max(least, margin - x[t]) if log_rest == -np.inf else least
    low, high = -most - margin, least + 1
    tilt = min(0.0, math.log(end) - log_rest)
    mean, variance = tilted_odds(x, log_rest, tilt, p, q)
    while abs(mean - end) > 0.25:
        if mean < end:
            low = tilt
        else:
            high = tilt
        step = tilt + (end - mean) / max(variance, 1e-3)
        tilt = step if low < step < high else (low + high) / 2
        mean, variance = tilted_odds(x, log_rest, tilt, p, q)
    return tilt, mean, variance


@inlined
def members(order, p, q, rest, least, most, end, tilt, more, weights, found):
    """found[t] = P(t in S | the size of S is from least to most, by weights): forward and backward sums of
    `conditioned`. more: the last size stands for itself and all above it. Returns the probability of these sizes, times
    exp(tilt * end), and the expected number of members among the rest, a Poisson number with this mean beforehand."""
    n = len(order)
    forward, backward = np.empty((n + 1, most + 1)), np.zeros(most + 2)
    row = forward[0]
    for j in range(most + 1):
        row[j] = math.exp(j * math.log(rest) - rest - math.lgamma(j + 1.0)) if rest > 0 else 1.0 * (j == 0)
    if more:
        row[most] += max(1.0 - row.sum(), 0.0)
    for s in range(n):
        pt, qt = p[order[s]], q[order[s]]
        here, row = forward[s], forward[s + 1]
        row[0] = here[0] * qt
        for j in range(1, most + 1):
            row[j] = here[j] * qt + here[j - 1] * pt
        if more:
            row[most] += here[most] * pt
    for j in range(least, most + 1):
        backward[j] = weights[min(j, len(weights) - 1)] * math.exp(min(-tilt * (j - end), 0.0))
    inside = outside = 0.0
    for s in range(n - 1, -2, -1):  # the candidates, last first, and then the rest
        here = forward[max(s, 0)]
        backward[most + 1] = backward[most] if more else 0.0  # one member more leads from the last size here
        inside, outside = 0.0, 0.0
        for j in range(most + 1):
            inside += here[j] * backward[j + 1]
            outside += here[j] * backward[j]
        if s >= 0:
            t = order[s]
            found[t] = inside * p[t] / (inside * p[t] + outside * q[t])
            for j in range(most + 1):
                backward[j] = q[t] * backward[j] + p[t] * backward[j + 1]
    return outside, rest * inside / outside


@inlined
def sets_within(x, log_rest, lower, upper, weights, ordered, found):
    """found[t] = P(t in S | lower <= |S| <= upper, by weights) of candidates with log odds x (n,), finite, beside a
    rest whose odds, exp(log_rest) together, make a Poisson number of members (-inf: no rest); 0 where no set has such a
    size. Returns `log_partition` (given weights of 1) and the expected number of members among the rest. ordered:
    greater odds get no smaller answers, equal odds the same, whatever the rounding.

    The sums are of probabilities, tilted (all odds times exp(tilt)) so that sizes within the bounds are likely."""
    n, log_z, among_rest = len(x), 0.0, 0.0
    p, q = np.empty(n), np.empty(n)
    alone = log_rest == -np.inf
    most = n if alone and upper >= n else int(np.floor(min(upper, 2.0**40)))
    least, most = support(weights, max(int(np.ceil(lower)), 0), most)
    endless = most == n if alone else upper == np.inf
    if least > most or most <= 0 or (alone and least == n):
        found[:] = 1.0 if least <= most and most > 0 else 0.0
        for t in range(n):
            log_z += found[t] * x[t]
        return (log_z if least <= most else -np.inf), among_rest
    mean, variance = tilted_odds(x, log_rest, 0.0, p, q)
    tilt, end = 0.0, most
    if mean < least or (mean > most and not endless):
        end = least if mean < least else most
        tilt, mean, variance = find_tilt(x, log_rest, end, p, q)
    reach = mean + 30 + 10 * math.sqrt(variance)
    more = endless or most > reach
    if tilt > 0:
        most, more = min(most, int(np.ceil(reach))), False
    elif more:
        most = max(least, min(len(weights) - 1, n))
    for t in range(n):
        log_z += max(x[t] + tilt, 0.0) + math.log1p(math.exp(-abs(x[t] + tilt)))
    rest = math.exp(log_rest + tilt)
    log_z += rest - tilt * end
    if more and most == 0:
        found[:] = p
        return log_z, rest
    order = np.argsort(x) if ordered else np.arange(n)
    total, among_rest = members(order, p, q, rest, least, most, end, tilt, more, weights, found)
    if ordered and n > 0:
        so_far = found[order[0]]
        for s in range(1, n):
            t = order[s]
            so_far = found[t] if found[t] > so_far and x[t] > x[order[s - 1]] else so_far
            found[t] = so_far
    return log_z + math.log(total), among_rest


@compiled
def size_chances(starts, p, sizes):
    """sizes[i] = `size_probabilities` of p[starts[i] : starts[i + 1]]; sizes (n, most + 1), most at least 1."""
    most = sizes.shape[1] - 1
    for i in range(len(sizes)):
        row = sizes[i]
        row[:] = 0.0
        row[0] = 1.0
        for t in range(starts[i], starts[i + 1]):
            row[most] += row[most - 1] * p[t]
            for j in range(most - 1, 0, -1):
                row[j] = row[j] * (1.0 - p[t]) + row[j - 1] * p[t]
            row[0] *= 1.0 - p[t]


@compiled
def condition_sets(first, last, starts, log_odds, lower, upper, weights, unseen, answers):
    """answers[starts[i] : starts[i + 1]] = `conditioned` of these log odds, finite, lower[i], upper[i] (float64, less
    the known tails), weights[i] and unseen[i] (or the only row of weights, the only mean), for the sets i of a range; 0
    throughout where no set has such a size."""
    for i in range(first, last):
        x, found = log_odds[starts[i] : starts[i + 1]], answers[starts[i] : starts[i + 1]]
        mean = unseen[min(i, len(unseen) - 1)]
        log_rest = math.log(mean) if mean > 0 else -np.inf
        sets_within(x, log_rest, lower[i], upper[i], weights[min(i, len(weights) - 1)], True, found)


# ------------------------------------------------------------------------------------------------------------------
# The calibration's likelihood: `thinned_likelihood` and `calibrated_log_odds` of definitions/counting.py
# ------------------------------------------------------------------------------------------------------------------


@inlined
def odds_below(x, logit):
    """`calibrated_log_odds` of one x, held within 300 of 0: (log o, its derivatives by x, by the ceiling's logit)."""
    x, other = min(max(x, -300.0), 300.0), sigma(-logit)  # 1 - c
    above = other * math.exp(x)
    log_odds = x + math.log(sigma(logit)) - math.log1p(above)
    return log_odds, 1 / (1 + above), other * (1 + math.exp(log_odds))


@compiled
def thinned_sets(first, last, chosen, starts, candidates, queries, parameters, values, gradients):
    """values[i] = log P(V) of the (h, r) chosen[i], gradients[i] (1 + F + 2,) its gradient by the parameters and by the
    logarithm of the mean number of unseen tails, for i of a range.

    starts (n + 1,): where the candidates of each (h, r) stand. candidates: log softmax, found (bool), weights, each
    (rows,); those of weight 1 are kept apart. queries: features (n, F), lower and upper bounds less the known tails,
    known shares, shares, and mean numbers of unseen tails (n,), float64.
    """
    log_softmax, found, weights = candidates
    features, lower, upper, known_share, share, unseen = queries
    longest = 0
    for i in range(first, last):
        longest = max(longest, starts[chosen[i] + 1] - starts[chosen[i]])
    odds, x, chances, d, d_x, d_ceiling = np.empty((6, longest))
    of, places, ones = np.empty(longest, np.int64), np.empty(longest, np.int64), np.ones(1)
    slope, logit = math.exp(parameters[0]), parameters[-1]
    for i in range(first, last):
        at, row, value, offset = chosen[i], gradients[i], 0.0, 0.0
        for f in range(features.shape[1]):
            offset += parameters[1 + f] * features[at, f]
        n, size, rest, rest_x, rest_slope, rest_ceiling = 0, 0, 0.0, 0.0, 0.0, 0.0
        unknown, left = math.log1p(-known_share[at]), math.log1p(-share[at])
        for t in range(starts[at], starts[at + 1]):
            log_odds, by_x, by_ceiling = odds_below(slope * log_softmax[t] + offset, logit)
            if weights[t] == 1:
                odds[n], d[n], d_x[n], d_ceiling[n], of[n] = log_odds + unknown, 0.0, by_x, by_ceiling, t
                if found[t]:
                    value, d[n], size = value + math.log(share[at]) + odds[n], 1.0, size + 1
                n += 1
            else:
                each = weights[t] * math.exp(log_odds)
                rest += each
                rest_x += each * by_x
                rest_slope += each * by_x * log_softmax[t]
                rest_ceiling += each * by_ceiling
        of_rest, d_rest, d_unseen = rest * math.exp(unknown), 0.0, 0.0
        for thinned in range(2):  # Z, and then Z' of the candidates outside V
            m, sign, less, by = 0, 2.0 * thinned - 1.0, thinned * size, thinned * left
            for t in range(n):
                if not (thinned and found[of[t]]):
                    x[m], places[m] = odds[t] + by, t
                    m += 1
            drawn = of_rest * math.exp(by)  # unseen tails are never in valid, so none of them is subtracted
            log_rest = math.log(drawn + unseen[at]) if drawn + unseen[at] > 0 else -np.inf
            log_z, among_rest = sets_within(
                x[:m], log_rest, lower[at] - less, upper[at] - less, ones, False, chances[:m]
            )
            value += sign * log_z
            if drawn > 0:
                d_rest += sign * among_rest * (drawn / (drawn + unseen[at]))
            if unseen[at] > 0:
                d_unseen += sign * among_rest * (unseen[at] / (drawn + unseen[at]))
            for t in range(m):
                d[places[t]] += sign * chances[t]
        by_x, by_slope, by_ceiling = 0.0, 0.0, 0.0
        for t in range(n):
            by_x += d[t] * d_x[t]
            by_slope += d[t] * d_x[t] * log_softmax[of[t]]
            by_ceiling += d[t] * d_ceiling[t]
        if rest > 0:
            by_x += d_rest * rest_x / rest
            by_slope += d_rest * rest_slope / rest
            by_ceiling += d_rest * rest_ceiling / rest
        values[i] = value
        row[0], row[-2], row[-1] = by_slope * slope, by_ceiling, d_unseen
        for f in range(features.shape[1]):
            row[1 + f] = by_x * features[at, f]
