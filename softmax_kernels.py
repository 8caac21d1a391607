"""Kernels of softmax over all entities (to stand at the end of kernels.py)."""

import math

import numpy as np
from numba import types
from numba.extending import overload

from kernels import (
    _E0, _E1, _E2, _E3, _E4, _E5, _HALF, _LARGE, _LN2_HIGH, _LN2_LOW, _LOG2_E, COMPLEX, ELEMENTARY, _power_of_two, compiled,
    inlined, prefetch_row, sigma,
)  # fmt: skip

# ------------------------------------------------------------------------------------------------------------------
# Softmax over all entities: rows of queries with columns of candidates (the definition is `softmax_objective`)
# ------------------------------------------------------------------------------------------------------------------


def _exp_float32(x):
    """exp of x <= 0 as 2^n 2^f: relative error below 4e-7 for x > -87; at and below it the value at -87, 1.6e-38."""
    x = -_LARGE if x < -_LARGE else x  # so written, NaN stays NaN
    n = np.floor(_HALF + x * _LOG2_E)
    f = ((x - n * _LN2_HIGH) - n * _LN2_LOW) * _LOG2_E
    return (_E0 + f * (_E1 + f * (_E2 + f * (_E3 + f * (_E4 + f * _E5))))) * _power_of_two(np.int32(n))


def exp_of_negative(x):
    """exp(x) for x <= 0; when compiled, float32 by operations that the compiler can vectorise."""
    return math.exp(x)


@overload(exp_of_negative, jit_options=ELEMENTARY)
def _exp_of_negative(x):
    return _exp_float32 if x == types.float32 else lambda x: math.exp(x)


@compiled
def query_rows(first, last, kind, table, relation_rows, given, relations, sides, queries):
    """queries[i], whose inner product with an entity's row is its score with query i, for i in first..last: of the
    given row g and the relation's row r, side 1 (the tail is open) g r, side 0 g conj(r)."""
    k = table.shape[1] // 2
    for i in range(first, last):
        if i + 2 < last:
            prefetch_row(table, given[i + 2])
        g, r = given[i], relations[i]
        if kind == COMPLEX:
            sign = table.dtype.type(1 if sides[i] else -1)
            for j in range(k):
                a, b = table[g, j], table[g, k + j]
                c, d = relation_rows[r, j], sign * relation_rows[r, k + j]
                queries[i, j] = a * c - b * d
                queries[i, k + j] = a * d + b * c
        else:
            for j in range(table.shape[1]):
                queries[i, j] = table[g, j] * relation_rows[r, j]


@compiled
def d_query_rows(first, last, kind, table, relation_rows, given, relations, sides, d_queries, d_given, d_relations):
    """Backward pass of `query_rows`: d_given[i] = u conj(r), d_relations[i] = u conj(g), u = d_queries[i]; of side 0
    with conj(r) for r."""
    k = table.shape[1] // 2
    for i in range(first, last):
        g, r = given[i], relations[i]
        if kind == COMPLEX:
            sign = table.dtype.type(1 if sides[i] else -1)
            for j in range(k):
                a, b = table[g, j], table[g, k + j]
                c, d = relation_rows[r, j], sign * relation_rows[r, k + j]
                e, f = d_queries[i, j], d_queries[i, k + j]
                d_given[i, j] = e * c + f * d
                d_given[i, k + j] = f * c - e * d
                d_relations[i, j] = e * a + f * b
                d_relations[i, k + j] = sign * (f * a - e * b)
        else:
            for j in range(table.shape[1]):
                u = d_queries[i, j]
                d_given[i, j] = u * relation_rows[r, j]
                d_relations[i, j] = u * table[g, j]


@inlined
def largest_of(row, start, stop, lanes):
    """The largest of row[start:stop], in as many lanes as `lanes` has: so the compiler vectorises it."""
    lanes[:] = -1e30
    x, n = start, len(lanes)
    while x + n <= stop:
        piece = row[x : x + n]
        for j in range(n):
            lanes[j] = piece[j] if piece[j] > lanes[j] else lanes[j]
        x += n
    for j in range(stop - x):
        lanes[j] = row[x + j] if row[x + j] > lanes[j] else lanes[j]
    return np.max(lanes)


@inlined
def exponentials(row, start, stop, shift, sums, c):
    """Replaces x by exp(x - shift) in row[start:stop], and writes the sum of each 32 of them to sums[c], ...; the sum
    of all."""
    total = 0.0
    for x in range(start, stop, 32):
        s = row.dtype.type(0)
        if x + 32 <= stop:
            piece = row[x : x + 32]
            for j in range(32):
                e = exp_of_negative(piece[j] - shift)
                piece[j] = e
                s += e
        else:
            for j in range(x, stop):
                e = exp_of_negative(row[j] - shift)
                row[j] = e
                s += e
        sums[c] = s
        total += s
        c += 1
    return total


@inlined
def list_large(row, start, stop, least, scale, sums, c, columns, coefficients, count):
    """Lists (j, scale * row[j]) for the entries of at least `least` in row[start:stop], whose sums by 32 are sums[c],
    ...; returns the new count, or -1 where they might not fit in."""
    for x in range(start, stop, 32):
        if sums[c] >= least and count >= 0:
            y = min(x + 32, stop)
            if count + y - x > len(columns):
                count = -1
            else:
                for j in range(x, y):
                    if row[j] >= least:
                        columns[count], coefficients[count] = j, row[j] * scale
                        count += 1
        c += 1
    return count


@inlined
def list_answers(row, answers, first, last, cut, total, kept, columns, coefficients, count):
    """Lists the answers[first:last] of a row of exponentials, sorted, and sets their entries to 0 (they are
    `kept`); returns the new count."""
    n, q = last - first, first
    while q < last:
        a, times = answers[q], 0
        while q < last and answers[q] == a:
            times += 1
            q += 1
        e = row[a]
        of = n if e >= cut * total else times  # a small entry counts for the answer's own queries alone
        columns[count], coefficients[count] = a, e * (of / total) - times
        kept[q - 1 - first] = e
        row[a] = 0
        count += 1
    return count


@compiled
def softmax_rows(first, last, scores, masked, parts, limits, answers, cut, found, listed):
    """Softmax of the rows i in first..last of `scores` (n, m), their losses, and a list of their large entries.

    Column masked[i] (-1: none) is no candidate; parts = (n_needed, log_weight): the weight is added from column
    n_needed on. answers[limits[i] : limits[i + 1]], sorted, are row i's, n of them. found = (values, totals): scores become e =
    exp(score - largest), totals[i] their sum; values[i] = sum over its answers of -log(e / total).

    listed = (columns, coefficients, ends), d loss / d score: n e / total for entries of at least `cut` (from n_needed
    on: cut * exp(log_weight)), and, of an answer that stands there c times, n e / total - c (c e / total - c, if it is
    smaller). Row i's begins at ends[i - 1], the first row's at 0, and ends before ends[i]. Returns whether all fit in;
    with a cut of 0 nothing is listed, and the answer is no.
    """
    (n_needed, log_weight), (values, totals), (columns, coefficients, ends) = parts, found, listed
    m, lanes = scores.shape[1], np.empty(128, scores.dtype)
    sums = np.empty(m // 32 + 3, scores.dtype)
    kept = np.empty(np.max(np.diff(limits)), scores.dtype)
    count, chunks = (0 if cut > 0 else -1), (n_needed + 31) // 32
    for i in range(first, last):
        row, n = scores[i], limits[i + 1] - limits[i]
        if masked[i] >= 0:
            row[masked[i]] = -1e30
        value = 0.0
        for q in range(limits[i], limits[i + 1]):
            value -= row[answers[q]] + (log_weight if answers[q] >= n_needed else 0.0)
        top = max(
            largest_of(row, 0, n_needed, lanes),
            largest_of(row, n_needed, m, lanes) + scores.dtype.type(log_weight if n_needed < m else 0.0),
        )
        total = exponentials(row, 0, n_needed, top, sums, 0)
        total += exponentials(row, n_needed, m, top - scores.dtype.type(log_weight), sums, chunks)
        totals[i] = total
        values[i] = value + n * (math.log(total) + top)
        a, b = limits[i], limits[i + 1]
        count = count if count + n <= len(columns) else -1
        if count >= 0:
            count = list_answers(row, answers, a, b, cut, total, kept, columns, coefficients, count)
            least = scores.dtype.type(cut * total)
            count = list_large(row, 0, n_needed, least, n / total, sums, 0, columns, coefficients, count)
            least = scores.dtype.type(cut * total * math.exp(log_weight))
            count = list_large(row, n_needed, m, least, n / total, sums, chunks, columns, coefficients, count)
            for q in range(a, b):
                if q + 1 == b or answers[q + 1] != answers[q]:
                    row[answers[q]] = kept[q - a]
            ends[i] = max(count, 0)
    return count >= 0


@compiled
def dense_coefficients(first, last, scores, parts, limits, answers, cut, totals, extra, slopes):
    """What `softmax_rows` lists, as whole rows: replaces scores[i], which it left as e, by all coefficients; those of
    `extra` (n, m) are added where slopes[i] is not 0."""
    zero, (n_needed, log_weight) = scores.dtype.type(0), parts
    kept = np.empty(np.max(np.diff(limits)), scores.dtype)
    for i in range(first, last):
        row, n, total = scores[i], limits[i + 1] - limits[i], totals[i]
        a, b = limits[i], limits[i + 1]
        for q in range(a, b):
            kept[q - a] = row[answers[q]]
        for part in range(2):
            least = scores.dtype.type(cut * total * (math.exp(log_weight) if part else 1.0))
            piece, scale = row[:n_needed] if part == 0 else row[n_needed:], scores.dtype.type(n / total)
            for j in range(len(piece)):
                piece[j] = piece[j] * scale if piece[j] >= least else zero
        times = 0
        for q in range(a, b):
            times += 1
            if q + 1 == b or answers[q + 1] != answers[q]:
                e = kept[q - a]
                row[answers[q]] = e * ((n if e >= cut * total else times) / total) - times
                times = 0
        if slopes[i] != 0:
            for j in range(len(row)):
                row[j] += extra[i, j]


@compiled
def penalty_rows(first, last, scores, parts, bounds, relations, scale, found):
    """Eqs. 4 and 5 of the rows i in first..last of `scores` (n, m), of relation relations[i] (-1: not bounded): X = sum
    of weight * sigma(score), the weight 1, from column n_needed on exp(log_weight), parts = (n_needed, log_weight).
    found = (penalties, extra, slopes): G, scale * d G / d score where the slope is not 0, and the slope of G in X."""
    one, (n_needed, log_weight), (penalties, extra, slopes) = scores.dtype.type(1), parts, found
    for i in range(first, last):
        penalties[i], slopes[i] = 0.0, 0
        if relations[i] < 0:
            continue
        lower, upper = bounds[relations[i]]
        x = 0.0
        for j in range(scores.shape[1]):
            p = sigma(scores[i, j])
            extra[i, j] = p
            x += p * (math.exp(log_weight) if j >= n_needed else 1.0)
        penalties[i] = max(0.0, lower - x) + max(0.0, x - upper) + 0.0 * x  # NaN stays NaN
        if not lower <= x <= upper:
            slopes[i] = 1 if x > upper else -1
        for part in range(2):
            weight = scores.dtype.type(slopes[i] * scale * (math.exp(log_weight) if part else 1.0))
            piece = extra[i, :n_needed] if part == 0 else extra[i, n_needed:]
            for j in range(len(piece)):
                piece[j] = weight * piece[j] * (one - piece[j])


@compiled
def sum_listed_rows(first, last, table, columns, coefficients, ends, out):
    """out[i] = sum over the list of row i in first..last (see `softmax_rows`) of coefficient * table[column]."""
    start = 0
    for i in range(first, last):
        out[i, :] = 0
        for x in range(start, ends[i]):
            if x + 4 < ends[last - 1]:
                prefetch_row(table, columns[x + 4])
            c, t = coefficients[x], columns[x]
            for j in range(table.shape[1]):
                out[i, j] += c * table[t, j]
        start = ends[i]


@compiled
def sort_entries(columns, rows, coefficients, n_columns, starts, sorted_rows, sorted_coefficients):
    """Counting sort of the entries (column, row, coefficient) by column: those of column c, in their order, are at
    starts[c] : starts[c + 1] of the sorted arrays. starts (n_columns + 1,) is written."""
    starts[: n_columns + 1] = 0
    for x in range(columns.size):
        starts[columns[x] + 1] += 1
    for c in range(n_columns):
        starts[c + 1] += starts[c]
    for x in range(columns.size):  # starts[c] runs to the end of its entries ...
        c = columns[x]
        sorted_rows[starts[c]] = rows[x]
        sorted_coefficients[starts[c]] = coefficients[x]
        starts[c] += 1
    for c in range(n_columns, 0, -1):  # ... and is put back
        starts[c] = starts[c - 1]
    starts[0] = 0


@compiled
def sum_entries(first, last, columns, starts, rows, coefficients, sources, out):
    """out[s] += sum over the entries of column columns[s], as `sort_entries` leaves them, of coefficient *
    sources[row], for s in first..last."""
    for s in range(first, last):
        for x in range(starts[columns[s]], starts[columns[s] + 1]):
            if x + 4 < len(rows):
                prefetch_row(sources, rows[x + 4])
            c, row = coefficients[x], rows[x]
            for j in range(out.shape[1]):
                out[s, j] += c * sources[row, j]


@compiled
def add_n3(first, last, kind, weight, table, ids, uses, out, values):
    """N3: values[s] = weight * uses[s] * the sum of the cubed moduli of row ids[s] of `table`, for s in first..last;
    out[s] += its gradient."""
    k = table.shape[1] // 2
    for s in range(first, last):
        e, total = ids[s], 0.0
        c = table.dtype.type(weight * uses[s])
        three = table.dtype.type(3) * c
        if kind == COMPLEX:
            for j in range(k):
                a, b = table[e, j], table[e, k + j]
                square = a * a + b * b
                size = math.sqrt(square)
                total += size * square
                out[s, j] += three * size * a
                out[s, k + j] += three * size * b
        else:
            for j in range(table.shape[1]):
                a = table[e, j]
                total += abs(a) * a * a
                out[s, j] += three * abs(a) * a
        values[s] = c * total
