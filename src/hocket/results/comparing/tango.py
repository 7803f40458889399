"""Tango's score test of the difference of paired proportions: interval and p are of one test.

n may be the number of independent pairs that others are worth. Student's t stands for the normal
distribution, lest few pairs decide more often than they may (benchmarks/results/coverage.py).
"""

from __future__ import annotations

import math

import numpy as np

from hocket.core.data import Array
from hocket.results import stats
from hocket.results.stats import LEVEL, Interval

NAME = "Tango's score test"
_HALVINGS = 32


def interval(only_a: float, only_b: float, n: float, *, level: float = LEVEL) -> Interval:
    """The differences that the test does not refute."""
    if min(only_a, only_b) < 0 or only_a + only_b > n + 1e-9:
        raise ValueError(f"{only_a} + {only_b} discordant pairs of {n} cannot be.")
    quantile = quantiles(np.array([n]), level)
    ((low, high),) = bounds(np.array([only_a]), np.array([only_b]), np.array([n]), quantile)
    return Interval(low=float(low), high=float(high), level=level, method="tango")


def bounds(only_a: Array, only_b: Array, n: Array, quantile: Array) -> Array:
    """Return bounds `[k, 2]` for k tables: between them lie the differences whose score is at most
    the quantile. They are sought by bisection, since no formula of them is short."""
    value = (only_a - only_b) / n
    ends = []
    for side in (-1.0, 1.0):
        inside, outside = value.astype(float), np.full(value.shape, side)
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            is_refuted = np.abs(score(middle, only_a, only_b, n)) > quantile
            inside = np.where(is_refuted, inside, middle)
            outside = np.where(is_refuted, middle, outside)
        # What is not refuted up to the end of what is possible goes on to it.
        ends.append(np.where(np.abs(inside - side) < 1e-9, side, inside))
    return np.stack(ends, axis=-1)


def score(difference: Array, only_a: Array, only_b: Array, n: Array) -> Array:
    """Tango's score of a difference: how many standard errors it lies from what was seen, with the
    most likely discordance that goes with it."""
    linear = (2 * n - only_a + only_b) * difference - only_a - only_b
    square = linear**2 + 8 * n * only_b * difference * (1 - difference)
    losses = (np.sqrt(np.maximum(square, 0.0)) - linear) / (4 * n)
    variance = n * (2 * losses + difference * (1 - difference))
    gap = only_a - only_b - n * difference
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.abs(gap) < 1e-12, 0.0, gap / np.sqrt(np.maximum(variance, 0.0)))


def p_value(only_a: float, only_b: float, n: float) -> float:
    """Two-sided p of "neither is better", by the same test."""
    freedom = _freedom(n)
    if not freedom or only_a == only_b:
        return 1.0
    z = abs(only_a - only_b) / math.sqrt(only_a + only_b)
    return stats.t_tails(z, freedom)


def _freedom(n: float) -> int:
    # What is worth 20 pairs may come out as 19.999.
    return max(0, int(n + 1e-6) - 1)


def quantiles(n: Array, level: float) -> Array:
    return np.array(
        [stats.t_quantile(free, level) if (free := _freedom(k)) else math.inf for k in n.tolist()]
    )
