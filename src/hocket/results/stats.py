"""Intervals and rates, and how trials hang together: which are of one task, and which start alike.
Pure: arrays in, frozen values out; what is undefined is None, never 0.

Every statistic carries its n. `level` is the nominal coverage of two-sided intervals. scipy is
imported where a distribution needs it, so that importing this module stays cheap.

Tasks are fixed, and each counts once. Starts are drawn: trials of one seed share what makes it easy
or hard, and say less than as many others would. How much less is seen from how the sums of seeds
vary, and intervals are made for the number of independent trials that would say as much, as Korn
and Graubard do for surveys.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hocket.core.data import Array

LEVEL = 0.95
_NEWTON_STEPS = 100
"""More than any quantile takes: t doubles in each step until it is near."""
_MOST_TERMS = 1000
"""More than the fraction of any tail takes: they are about the root of the degrees of freedom."""


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
    value: float | None
    """Successes per judged episode; of several tasks, the mean of their rates."""
    errors_as_failures: float | None
    """The rate if every error had been a failure of the policy: the pessimist's figure."""
    interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean over `n` values. One value has no spread and no interval; none has no mean."""

    n: int
    value: float | None
    std: float | None
    interval: Interval | None


def rate(successes: int, n: int, *, errors: int = 0, level: float = LEVEL) -> Rate:
    """A success rate with its Wilson interval."""
    total = n + errors
    return Rate(
        n=n,
        successes=successes,
        errors=errors,
        value=successes / n if n else None,
        errors_as_failures=successes / total if total else None,
        interval=wilson(successes, n, level=level),
    )


def rate_of_tasks(tasks: Sequence[Rate], *, level: float = LEVEL) -> Rate:
    """The mean of the tasks' rates, each counting once however many episodes it has; a task that
    has none yet does not count. Where all have as many, it is the rate of all episodes together,
    with Wilson's interval; otherwise that would lean to the tasks with most episodes."""
    n, successes, errors = (
        sum(getattr(task, name) for task in tasks) for name in ("n", "successes", "errors")
    )
    pooled = rate(successes, n, errors=errors, level=level)
    judged = [task for task in tasks if task.n]
    worst = [t.errors_as_failures for t in tasks if t.errors_as_failures is not None]
    if len({task.n for task in judged}) < 2 and len({t.n + t.errors for t in tasks}) < 2:
        return pooled
    rates = np.array([task.value for task in judged])
    return dataclasses.replace(
        pooled,
        value=float(rates.mean()) if judged else None,
        errors_as_failures=float(np.mean(worst)) if worst else None,
        interval=_uneven_interval(judged, level=level)
        if len({task.n for task in judged}) > 1
        else pooled.interval,
    )


UNEVEN = "tasks"
"""The method of intervals of a mean over tasks of which some have more trials than others."""


def _uneven_interval(tasks: Sequence[Rate], *, level: float) -> Interval:
    """An interval of the mean of rates with different n.

    It is the wider, at either end, of two: Wilson's at the n whose variance the mean would have if
    all rates were alike, and the tasks' own intervals combined. The first fails where a task with
    few episodes is the uncertain one, the second where all are nearly certain; together they cover
    93.5 % at least over n of 1 to 200 and rates of 0.1 to 1
    (benchmarks/results/coverage.py). A task's own interval lies half way between Jeffreys' and
    Clopper and Pearson's: with the former alone the coverage falls to 93 %.
    """
    from scipy import special

    n, wins = (np.array([getattr(t, name) for t in tasks], float) for name in ("n", "successes"))
    rates, tail = wins / n, (1 - level) / 2
    low = special.betaincinv(wins + 0.25, n - wins + 0.75, tail)
    high = special.betaincinv(wins + 0.75, n - wins + 0.25, 1 - tail)
    own = mean_interval(
        rates, np.where(wins == 0, 0.0, low), np.where(wins == n, 1.0, high), level=level
    )
    alike = len(tasks) ** 2 / float((1 / n).sum())
    wide = wilson(float(rates.mean()) * alike, alike, level=level)
    assert wide is not None
    both = dataclasses.replace(own, low=min(own.low, wide.low), high=max(own.high, wide.high))
    return clipped(both, 0.0, 1.0)


def mean_interval(values: Array, low: Array, high: Array, *, level: float) -> Interval:
    """An interval of the mean of independent estimates, from the interval of each: squared
    distances to the bounds add up as variances do (Zou and Donner's MOVER)."""
    centre, count = float(values.mean()), len(values)
    below, above = np.maximum(values - low, 0.0), np.maximum(high - values, 0.0)
    return Interval(
        low=centre - math.sqrt(float((below**2).sum())) / count,
        high=centre + math.sqrt(float((above**2).sum())) / count,
        level=level,
        method=UNEVEN,
    )


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
    interval = t_interval(centre, std**2 / n, n - 1, level=level)
    return Mean(n=n, value=centre, std=std, interval=interval)


def t_interval(value: float, variance: float, freedom: int, *, level: float) -> Interval | None:
    """The interval of an estimate with this variance; None where that is unknown."""
    if freedom < 1 or not math.isfinite(value + variance):
        return None
    half = t_quantile(freedom, level) * math.sqrt(variance)
    return Interval(low=value - half, high=value + half, level=level, method="t")


def clipped(interval: Interval, low: float, high: float) -> Interval:
    """An interval within the values that are possible at all."""
    lowest, highest = min(max(interval.low, low), high), max(min(interval.high, high), low)
    return dataclasses.replace(interval, low=lowest, high=highest)


def rows_by(numbers: Array) -> dict[int, Array]:
    """The rows of each number."""
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, starts[1:]), strict=False))


@functools.cache
def normal_quantile(level: float) -> float:
    """z of a two-sided interval: 1.96 at 0.95."""
    from statistics import NormalDist

    if not 0 < level < 1:
        raise ValueError(f"A level of {level} is no probability between 0 and 1.")
    return NormalDist().inv_cdf((1 + level) / 2)


@functools.cache
def t_quantile(freedom: int, level: float) -> float:
    """Student's t of a two-sided interval, by Newton's method."""
    if not 0 < level < 1 or freedom < 1:
        raise ValueError(f"There is no t of level {level} with {freedom} degrees of freedom.")
    # The tail thins ever more slowly with t: from below, no step goes too far.
    t = normal_quantile(level)
    for _ in range(_NEWTON_STEPS):
        step = (t_tails(t, freedom) - (1 - level)) / (2 * math.exp(_log_density(t, freedom)))
        t += step
        if step <= 1e-15 * t:
            break
    return t


def t_tails(t: float, freedom: int) -> float:
    """The share of Student's distribution beyond -t and t, a two-sided p: an incomplete beta
    function, by its continued fraction. Every report and comparison needs it: to import scipy for
    it alone would cost a small run more than anything else that it imports."""
    if t == 0:
        return 1.0
    a, b, x = freedom / 2, 0.5, 1 / (1 + t * t / freedom)
    edge = math.exp(_log_density(t, freedom)) * abs(t)
    if x < (a + 1) / (a + b + 2):
        return edge * _fraction(a, b, x) / a
    return 1 - edge * _fraction(b, a, 1 - x) / b


def _log_density(t: float, freedom: int) -> float:
    half = (freedom + 1) / 2
    peak = math.lgamma(half) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return peak - half * math.log1p(t * t / freedom)


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, _MOST_TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + term * d), 1 + term / c
            found *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return found


def _check_counts(successes: float, n: float) -> None:
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} cannot be.")


_MOST = 1.5
"""Trials of fixed tasks say more than as many of one task, and by chance they may seem to say
anything: without a limit ten tasks that did not vary would be certain."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grouping:
    """The task and the start of each trial, as numbers from 0 on."""

    tasks: Array
    starts: Array
    places: Array
    """A number for each start of each task: trials with the same one start from the same state."""

    @classmethod
    def of(
        cls, tasks: npt.ArrayLike, seeds: npt.ArrayLike, *, independent: bool = False
    ) -> Grouping:
        """Trials of one seed start alike, or where tasks are `independent` those of one task."""
        task, seed = _numbered(np.asarray(tasks)), _numbered(np.asarray(seeds))
        places = _numbered(task * (int(seed.max(initial=0)) + 1) + seed)
        return cls(tasks=task, starts=places if independent else seed, places=places)

    def part(self, rows: Array) -> Grouping:
        """The grouping of some of the trials."""
        return Grouping(**{f.name: _numbered(getattr(self, f.name)[rows]) for f in _FIELDS})

    def apart(self) -> Grouping:
        """The same, as if no two trials started alike."""
        return dataclasses.replace(self, starts=np.arange(self.n))

    @property
    def n(self) -> int:
        return len(self.tasks)

    @property
    def is_shared(self) -> bool:
        """True if some trials start alike."""
        return _count(self.starts) < self.n

    @property
    def is_even(self) -> bool:
        """True if all tasks have as many trials."""
        return len(set(np.bincount(self.tasks).tolist())) < 2

    def means(self, values: Array) -> Array:
        """The mean of each task."""
        return np.asarray(np.bincount(self.tasks, values) / np.bincount(self.tasks))

    def mean(self, values: Array) -> float:
        """The mean over tasks of their means; nan where there is no trial."""
        return float(self.means(values).mean()) if self.n else np.nan

    def by_start(self, values: Array) -> Array:
        """What each start says of that mean: numbers with the same mean, as far apart as starts
        are within tasks."""
        parts = self._parts(values)
        return np.asarray(self.mean(values) + len(parts) * parts)

    def variance(self, values: Array) -> tuple[float, int]:
        """The variance of that mean, and its degrees of freedom; nan and 0 where it is unknown."""
        parts, homes = self._parts(values), np.zeros(_count(self.starts), np.int64)
        homes[self.starts] = self.tasks
        if (homes[self.starts] != self.tasks).any():
            # Some starts are of several tasks.
            freedom = len(parts) - 1
            return float((parts**2).sum()) * len(parts) / freedom if freedom else np.nan, freedom
        known = np.bincount(homes)
        spread = float((parts**2 * known[homes] / np.maximum(known[homes] - 1, 1)).sum())
        if alone := int((known == 1).sum()):
            # A task with one start shows no spread: it is taken to be that of all.
            whole = float(values.var(ddof=1)) if self.n > 1 else np.nan
            spread += alone * whole / len(known) ** 2
        return spread, len(parts) - len(known) or len(parts) - 1

    def effective(self, values: Array, *, level: float = LEVEL) -> float:
        """How many independent trials say as much of the mean of `values`: one for each start at
        least, since starts differ no more than single trials do. Where nothing varies, each start
        of a task counts as one."""
        weights = 1 / (_count(self.tasks) * np.bincount(self.tasks)[self.tasks])
        plain = float(weights @ (values - self.mean(values)) ** 2)
        least = _count(self.starts)
        if least < 2:
            return float(least)
        if plain <= 0:
            return float(_count(self.places))
        variance, freedom = self.variance(values)
        worth = self.n / (self.n - 1) * plain / variance if variance > 0 else np.inf
        if freedom < self.n - 1:
            # The variance is an estimate of few starts.
            worth *= (t_quantile(self.n - 1, level) / t_quantile(freedom, level)) ** 2
        return float(np.clip(worth, least, _MOST * self.n))

    def _parts(self, values: Array) -> Array:
        """What each start adds to the mean, less what its tasks' means add."""
        weights = 1 / (_count(self.tasks) * np.bincount(self.tasks)[self.tasks])
        return np.bincount(self.starts, weights * (values - self.means(values)[self.tasks]))


_FIELDS = dataclasses.fields(Grouping)


def _numbered(labels: Array) -> Array:
    return np.unique(labels, return_inverse=True)[1]


def _count(numbers: Array) -> int:
    return int(numbers.max(initial=-1)) + 1
