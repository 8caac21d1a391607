"""Means over seeds and their confidence intervals, and how a table shows them."""

import math

import numpy as np

from cardkge import CardkgeError
from cardkge_tools.shell.terminal import short

# t with P(|T| <= t) = 0.95, of Student's distribution with 1, 2, ... 29 degrees of freedom
T_95 = (
    12.70620474, 4.30265273, 3.182446305, 2.776445105, 2.570581836, 2.446911851, 2.364624252, 2.306004135,
    2.262157163, 2.228138852, 2.20098516, 2.17881283, 2.160368656, 2.144786688, 2.131449546, 2.119905299,
    2.109815578, 2.10092204, 2.093024054, 2.085963447, 2.079613845, 2.073873068, 2.06865761, 2.063898562,
    2.059538553, 2.055529439, 2.051830516, 2.048407142, 2.045229642,
)  # fmt: skip


def estimate(values, minus=None, relative=False):
    """Mean of values (n,), one for each seed, and the half width of its 95 % confidence interval, by Student's t with
    n - 1 degrees of freedom, from 30 values on with 29, a little too wide: {"mean", "interval"}. The interval of one
    value is None, for it is unknown.

    With `minus` (n,), of the paired differences values - minus; relative: as shares of minus, not finite where minus
    is 0. Raises CardkgeError for no values, or for pairs that lack one.
    """
    values = np.asarray(values, np.float64)
    if minus is not None:
        minus = np.asarray(minus, np.float64)
        if len(minus) != len(values):
            raise CardkgeError(f"pairs need as many values on both sides, found {len(values)} and {len(minus)}")
        with np.errstate(divide="ignore", invalid="ignore"):
            values = (values - minus) / (minus if relative else 1)
    n = len(values)
    if n == 0:
        raise CardkgeError("an estimate needs a value, found none")
    with np.errstate(invalid="ignore"):
        interval = float(T_95[min(n - 1, len(T_95)) - 1] * values.std(ddof=1) / math.sqrt(n)) if n > 1 else None
    return {"mean": float(values.mean()), "interval": interval}


def percent(value, signed=False):
    """An estimate in percent, with its interval."""
    sign = "+" if signed else ""
    text = f"{100 * value['mean']:{sign}.2f}"
    return text if value["interval"] is None else f"{text} ± {100 * value['interval']:.2f}"


def amount(value, signed=False):
    """An estimate of a sum, with its interval."""
    text = ("+" if signed and value["mean"] >= 0 else "") + short(value["mean"])
    return text if value["interval"] is None else f"{text} ± {short(value['interval'])}"
