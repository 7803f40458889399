"""Intervals and rates. Pure: arrays in, frozen values out; what is undefined is None, never 0.

Every statistic carries its n. `level` is the nominal coverage of two-sided intervals. scipy is
imported where a distribution needs it, so that importing this module stays cheap.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hocket.core.data import Array

LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where the true value lies, with confidence `level`; `method` names how it was found."""

    low: float
    high: float
    level: float
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A success rate over `n` judged episodes; `errors` are those beside it, not in `n`."""

    n: int
    successes: int
    errors: int
    interval: Interval | None

    @property
    def value(self) -> float | None:
        """Successes per judged episode."""
        return self.successes / self.n if self.n else None

    @property
    def errors_as_failures(self) -> float | None:
        """The rate if every error had been a failure of the policy: the pessimist's figure."""
        total = self.n + self.errors
        return self.successes / total if total else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean over `n` values. One value has no spread and no interval; none has no mean."""

    n: int
    value: float | None
    std: float | None
    interval: Interval | None


def rate(successes: int, n: int, *, errors: int = 0, level: float = LEVEL) -> Rate:
    """A success rate with its Wilson interval."""
    return Rate(n=n, successes=successes, errors=errors, interval=wilson(successes, n, level=level))


def wilson(successes: float, n: float, *, level: float = LEVEL) -> Interval | None:
    """Wilson's score interval of a binomial proportion; None at n = 0."""
    _check_counts(successes, n)
    if n == 0:
        return None
    z2 = normal_quantile(level) ** 2
    p = successes / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    # The bounds are exactly 0 and 1 at the ends; rounding would leave 1e-17 there.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(low=low, high=high, level=level, method="wilson")


def mean(values: npt.ArrayLike, *, level: float = LEVEL) -> Mean:
    """A mean with its t-interval. A value that is no finite number makes all of it undefined."""
    data = np.asarray(values, dtype=np.float64).ravel()
    n = len(data)
    if n == 0 or not np.isfinite(data).all():
        return Mean(n=n, value=None, std=None, interval=None)
    centre = float(data.mean())
    if n == 1:
        return Mean(n=1, value=centre, std=None, interval=None)
    std = float(data.std(ddof=1))
    half = t_quantile(n - 1, level) * std / math.sqrt(n)
    interval = Interval(low=centre - half, high=centre + half, level=level, method="t")
    return Mean(n=n, value=centre, std=std, interval=interval)


def narrowing(
    within: Array, n: Array, *, total_variance: float, weights: Array | None = None
) -> float:
    """How much narrower an interval is once tasks are fixed strata: a factor in (0, 1].

    The square root of (variance within tasks) / (variance in all), tasks weighing by `weights`
    (default: their n). `within` holds unbiased variances, nan where a task has one value, which
    then counts with the whole variance. One pseudo-value of variance 1, the most that outcomes in
    [-1, 1] can have, keeps a lucky run of constant tasks from claiming certainty.
    """
    if total_variance <= 0 or len(n) < 2:
        return 1.0
    w = n if weights is None else weights
    filled = np.where(np.isnan(within), total_variance, within)
    inside = float((w * filled).sum() / w.sum())
    freedom = float(n.sum()) - len(n)
    inside = (freedom * inside + 1.0) / (freedom + 1.0)
    return math.sqrt(min(1.0, inside / total_variance))


def scaled(interval: Interval, centre: float, factor: float, *, method: str) -> Interval:
    """An interval whose distances from `centre` are `factor` times as long, never longer."""
    factor = min(1.0, factor)
    return Interval(
        low=centre - factor * (centre - interval.low),
        high=centre + factor * (interval.high - centre),
        level=interval.level,
        method=method if factor < 1 else interval.method,
    )


def clipped(interval: Interval, low: float, high: float) -> Interval:
    """An interval within the values that are possible at all."""
    return Interval(
        low=min(max(interval.low, low), high),
        high=max(min(interval.high, high), low),
        level=interval.level,
        method=interval.method,
    )


def groups(labels: Sequence[Hashable]) -> dict[Hashable, Array]:
    """Indices of each label, labels in the order in which they first appear."""
    found: dict[Hashable, list[int]] = {}
    for index, label in enumerate(labels):
        found.setdefault(label, []).append(index)
    return {label: np.asarray(indices) for label, indices in found.items()}


@functools.cache
def normal_quantile(level: float) -> float:
    """z of a two-sided interval: 1.96 at 0.95."""
    from statistics import NormalDist

    if not 0 < level < 1:
        raise ValueError(f"A level of {level} is no probability between 0 and 1.")
    return NormalDist().inv_cdf((1 + level) / 2)


@functools.cache
def t_quantile(freedom: int, level: float) -> float:
    """Student's t of a two-sided interval."""
    from scipy import special

    return float(special.stdtrit(freedom, (1 + level) / 2))


def t_ratio(freedom: int, level: float) -> float:
    """How much longer t is than z: the price of a variance estimated with `freedom` degrees."""
    return t_quantile(freedom, level) / normal_quantile(level) if freedom > 0 else math.inf


def _check_counts(successes: float, n: float) -> None:
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} cannot be.")
