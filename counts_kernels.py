"""Counts: kernels (to become a section of kernels.py)."""

import math

import numpy as np
from llvmlite import ir  # noqa: F401

from kernels import (
    _E0, _E1, _E2, _E3, _E4, _E5, _HALF, _LARGE, _LN2_HIGH, _LN2_LOW, _LOG2_E, ELEMENTARY, _power_of_two, compiled,
    inlined,
)  # fmt: skip
from numba import types
from numba.extending import overload


def _exp_float32(x):
    """exp by 2^n 2^f: relative error below 4e-7 for x > -87; at and below it the value at -87, 1.6e-38; x at most 87."""
    x = -_LARGE if x < -_LARGE else x  # so written, NaN stays NaN
    n = np.floor(_HALF + x * _LOG2_E)
    f = ((x - n * _LN2_HIGH) - n * _LN2_LOW) * _LOG2_E
    p = _E0 + f * (_E1 + f * (_E2 + f * (_E3 + f * (_E4 + f * _E5))))
    return p * _power_of_two(np.int32(n))


def exp(x):
    """exp(x) of x <= 0; when compiled, float32 by operations that the compiler can vectorise."""
    return math.exp(x)


@overload(exp, jit_options=ELEMENTARY)
def _exp(x):
    return _exp_float32 if x == types.float32 else lambda x: math.exp(x)


@compiled
def log_sums(scores, largest, sums):
    """sums[i] = log sum_t exp(scores[i, t]) (float64), largest[i] = max_t scores[i, t]; NaN where one is NaN.

    The maximum is taken in 64 lanes and the exponentials are added in chunks: both loops use vector registers."""
    n = scores.shape[1]
    lanes = np.empty(64, scores.dtype)
    for i in range(scores.shape[0]):
        row = scores[i]
        top, whole = row[0], n - n % 64
        if whole:
            lanes[:] = row[:64]
            for start in range(64, whole, 64):
                part = row[start : start + 64]
                for j in range(64):
                    lanes[j] = part[j] if part[j] > lanes[j] else lanes[j]
            for j in range(64):
                top = lanes[j] if lanes[j] > top else top
        for t in range(whole, n):
            top = row[t] if row[t] > top else top
        total = 0.0
        for start in range(0, n, 256):
            part = row[start : start + 256]
            chunk = scores.dtype.type(0)
            for j in range(len(part)):
                chunk += exp(part[j] - top)
            total += chunk
        largest[i] = top
        sums[i] = math.log(total) + top if total >= 0 else np.nan


@compiled
def live_candidates(scores, least, taken_starts, taken, wanted_starts, wanted, starts, ids):
    """The tails worth looking at: ids[starts[i] : starts[i + 1]], ascending, of row i of scores (n, N): those with a
    score of at least least[i], and wanted[wanted_starts[i] : wanted_starts[i + 1]] whatever their scores, without
    taken[taken_starts[i] : taken_starts[i + 1]]; both lists ascending, without repetition, and no id in both.

    Writes starts (n + 1,) always, ids as far as there is room: call again with starts[n] of it. Returns starts[n]."""
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
def odds_share(x):
    """sigma(x) and sigma(-x), each with full relative precision."""
    e = math.exp(-abs(x))
    larger, smaller = 1.0 / (1.0 + e), e / (1.0 + e)
    return (larger, smaller) if x >= 0 else (smaller, larger)


@compiled
def condition_sets(first, last, starts, log_odds, lower, upper, answers):
    """answers[starts[i] : starts[i + 1]] = `conditioned` of these log odds, finite, and lower[i], upper[i] (float64,
    less the known tails), for the sets i of a range; 0 throughout where no set has such a size."""
    longest = 0
    for i in range(first, last):
        longest = max(longest, starts[i + 1] - starts[i])
    p, q = np.empty(longest), np.empty(longest)
    for i in range(first, last):
        begin, n = starts[i], starts[i + 1] - starts[i]
        x = log_odds[begin : begin + n]
        found = answers[begin : begin + n]
        least = max(int(math.ceil(lower[i])), 0)
        most = n if upper[i] >= n else int(math.floor(upper[i]))
        if least > most or most <= 0 or least == n:
            for t in range(n):
                found[t] = 1.0 if 0 <= least <= most and most > 0 else 0.0
            continue
        mean, variance, largest, smallest = 0.0, 0.0, x[0], x[0]
        for t in range(n):
            p[t], q[t] = odds_share(x[t])
            mean += p[t]
            variance += p[t] * q[t]
            largest, smallest = max(largest, x[t]), min(smallest, x[t])
        tilt, end = 0.0, most
        if mean < least or mean > most:
            if mean < least:
                end = least
            low, high = -largest - math.log(n) - 1, -smallest + math.log(n) + 1
            while abs(mean - end) > 0.25:  # Newton's step, or half the interval where that leads out of it
                if mean < end:
                    low = tilt
                else:
                    high = tilt
                step = tilt + (end - mean) / max(variance, 1e-3)
                tilt = step if low < step < high else (low + high) / 2
                mean, variance = 0.0, 0.0
                for t in range(n):
                    p[t], q[t] = odds_share(x[t] + tilt)
                    mean += p[t]
                    variance += p[t] * q[t]
        reach = mean + 30 + 10 * math.sqrt(variance)
        more = most == n or most > reach
        if tilt > 0:
            most, more = min(most, int(math.ceil(reach))), False
        elif more:
            most = least
        if more and least == 0:
            for t in range(n):
                found[t] = p[t]
            continue
        forward = np.empty((n, most + 1))
        backward, row = np.zeros(most + 2), np.zeros(most + 1)  # backward[most + 1]: what one more leads to
        order = np.argsort(x)
        row[0] = 1.0
        for s in range(n):
            pt, qt = p[order[s]], q[order[s]]
            here = forward[s]
            here[:] = row
            row[0] = here[0] * qt
            for j in range(1, most + 1):
                row[j] = here[j] * qt + here[j - 1] * pt
            if more:
                row[most] += here[most] * pt
        for j in range(least, most + 1):
            backward[j] = math.exp(min(-tilt * (j - end), 0.0)) if tilt != 0 else 1.0
        for s in range(n - 1, -1, -1):
            pt, qt = p[order[s]], q[order[s]]
            here = forward[s]
            backward[most + 1] = backward[most] if more else 0.0
            member, other = 0.0, 0.0
            for j in range(most + 1):
                member += here[j] * backward[j + 1]
                other += here[j] * backward[j]
            found[order[s]] = member * pt / (member * pt + other * qt)
            for j in range(most + 1):
                backward[j] = qt * backward[j] + pt * backward[j + 1]
        so_far = found[order[0]]
        for s in range(1, n):  # greater odds, no smaller answer; equal odds, the same
            t = order[s]
            so_far = found[t] if found[t] > so_far and x[t] > x[order[s - 1]] else so_far
            found[t] = so_far
