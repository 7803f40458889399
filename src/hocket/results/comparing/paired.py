"""Two runs compared trial by trial. Pure; differences are a - b, so that above 0 means a is better.

Pairs come as two arrays in the same order and the task of each pair. Two claims can be made:

- `strata`: about these very tasks. Tasks are fixed; how they differ among each other is known,
  and is taken out of the interval.
- `clusters`: about new tasks of the same kind. Each task is one draw; with few tasks this is
  wide, however many trials each has.

Differences of success are judged by Tango's score test of paired proportions: p is that of no
difference, and the interval holds the differences that the same test does not refute, so that it
excludes 0 where p < 0.05 and nowhere else. At 0 it is McNemar's score test. Student's t stands for
the normal distribution, lest few pairs decide more often than they may.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hocket.core.data import Array
from hocket.results import stats
from hocket.results.comparing import tango
from hocket.results.stats import LEVEL, Grouping, Interval
from hocket.results.tables import signed

TasksAs = Literal["strata", "clusters"]
Verdict = Literal["a better", "b better", "undecided"]

CLAIMS: dict[TasksAs, str] = {
    "strata": "about these tasks",
    "clusters": "about new tasks like these",
}
POWER = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Counts of paired successes: what the two did on the same trials."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @classmethod
    def of(cls, a: npt.ArrayLike, b: npt.ArrayLike) -> Pairs:
        """Count two arrays of successes in the same order."""
        won_a, won_b = np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)
        return cls(
            both=int((won_a & won_b).sum()),
            only_a=int((won_a & ~won_b).sum()),
            only_b=int((~won_a & won_b).sum()),
            neither=int((~won_a & ~won_b).sum()),
        )

    @property
    def n(self) -> int:
        return self.both + self.only_a + self.only_b + self.neither


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """a - b over `n` pairs, with the value of each side."""

    task: str | None
    """The task; None where the difference is over all tasks."""
    n: int
    a: float | None
    b: float | None
    value: float | None
    interval: Interval | None
    p_value: float | None
    test: str
    """The name of the test that gave the p-value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs on the same trials."""

    of: Literal["success", "return"]
    tasks_as: TasksAs
    overall: Difference
    tasks: tuple[Difference, ...]
    needed: int | None
    """How many pairs (for `clusters`, tasks) would show a difference of the size seen, with power
    0.8; None where none was seen, or its spread is unknown."""

    @property
    def verdict(self) -> Verdict:
        """What the overall test says at one minus its interval's level."""
        p, value = self.overall.p_value, self.overall.value
        level = self.overall.interval.level if self.overall.interval else LEVEL
        if p is None or not value or p > 1 - level:
            return "undecided"
        return "a better" if value > 0 else "b better"

    @property
    def sentence(self) -> str:
        """The verdict in plain words."""
        unit = "pairs" if self.tasks_as == "strata" else "tasks"
        seen = len(self.tasks) if self.tasks_as == "clusters" else self.overall.n
        if self.overall.value is None:
            return "Nothing to compare: no pair of trials that both ended without an error."
        p, interval = self.overall.p_value, self.overall.interval
        odds = f" ({self.overall.test}, p = {p:.2g})" if p is not None else ""
        if self.verdict != "undecided":
            return f"{self.verdict[0]} is better at n = {seen:,} {unit}{odds}."
        said = f"Undecided at n = {seen:,} {unit}{odds}"
        if interval is not None:
            low, high = (
                signed(x, percents=self.of == "success") for x in (interval.low, interval.high)
            )
            said += f": a - b may be anything from {low} to {high}"
            said += " points" if self.of == "success" else ""
        if self.needed:
            said += f"; a difference of the size seen would take about n = {self.needed:,}"
        return f"{said}."


def compare(
    of: Literal["success", "return"],
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    tasks: Sequence[str],
    *,
    seeds: Sequence[int] | None = None,
    independent: bool = False,
    tasks_as: TasksAs = "strata",
    level: float = LEVEL,
) -> Comparison:
    """Compare successes, or returns of trials with nothing to succeed at, these by a paired t.
    Pairs of one seed start alike, unless tasks are `independent`; without `seeds` no two do."""
    left, right, grouping = _paired(a, b, tasks, seeds, independent=independent)
    d, is_rate = left - right, of == "success"
    if is_rate and not np.isin([left, right], (0.0, 1.0)).all():
        raise ValueError("Successes are 0 or 1.")
    difference = rate_difference if is_rate else _mean_difference
    rows = tuple(
        difference(left[some], right[some], grouping.part(some), task=task, level=level)
        for task, some in zip(
            dict.fromkeys(tasks), stats.rows_by(grouping.tasks).values(), strict=True
        )
    )
    if tasks_as == "clusters":
        overall = _cluster_difference(left, right, grouping, level=level)
        needed, each = _means_needed(grouping.means(d), level=level), 1.0
    else:
        overall = difference(left, right, grouping, level=level)
        if is_rate:
            lost = grouping.mean(np.abs(d))
            needed = pairs_needed(overall.value or 0.0, lost, alpha=1 - level)
            # Pairs that start alike say less than as many others.
            each = grouping.n / max(1.0, grouping.effective(d, level=level))
        else:
            values = grouping.by_start(d)
            needed, each = _means_needed(values, level=level), grouping.n / max(1, len(values))
    needed = needed and math.ceil(needed * each)
    return Comparison(of=of, tasks_as=tasks_as, overall=overall, tasks=rows, needed=needed)


def rate_difference(
    a: Array, b: Array, grouping: Grouping, *, task: str | None = None, level: float = LEVEL
) -> Difference:
    """Difference of paired successes (arrays of 0 and 1), of which each task counts once."""
    d, interval, p = a - b, None, None
    if grouping.n:
        interval = rate_interval(d, grouping, level)
        if grouping.is_even:
            p = tango.p_value(*_counts(d, grouping, level))
        else:
            p = _inverted(lambda at: rate_interval(d, grouping, at), level)
    return _difference(a, b, grouping, (interval, p), task=task, test=tango.NAME)


def _counts(d: Array, grouping: Grouping, level: float) -> tuple[float, float, float]:
    """Pairs that only a won, that only b won, and all: as many as these are worth."""
    worth = grouping.effective(d, level=level)
    return grouping.mean(d > 0) * worth, grouping.mean(d < 0) * worth, worth


def rate_interval(d: Array, grouping: Grouping, level: float) -> Interval:
    """The interval of the mean over tasks of differences `d`, each -1, 0 or 1. Where tasks have
    unlike n it is the wider, at either end, of this and of the tasks' own intervals combined: of a
    task with few pairs it is not known how much they vary (benchmarks/results/coverage.py)."""
    found = tango.interval(*_counts(d, grouping, level), level=level)
    if grouping.is_even:
        return found
    counts = np.bincount(grouping.tasks)
    up, down = np.bincount(grouping.tasks, d > 0), np.bincount(grouping.tasks, d < 0)
    ends = tango.bounds(up, down, counts, tango.quantiles(counts, level))
    own = stats.mean_interval(grouping.means(d), ends[:, 0], ends[:, 1], level=level)
    both = Interval(
        low=min(own.low, found.low), high=max(own.high, found.high), level=level, method=own.method
    )
    return stats.clipped(both, -1.0, 1.0)


def _inverted(interval: Callable[[float], Interval], level: float) -> float:
    """The p of no difference that belongs to intervals: one less the highest level at which they
    exclude 0, to three digits."""

    def is_excluded(p: float) -> bool:
        found = interval(1 - p)
        return found.low > 0 or found.high < 0

    low, high = (1e-9, 1 - level) if is_excluded(1 - level) else (1 - level, 1.0)
    while high > 1.002 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_excluded(middle) else (middle, high)
    return math.sqrt(low * high)


def pairs_needed(
    difference: float, discordance: float, *, power: float = POWER, alpha: float = 1 - LEVEL
) -> int | None:
    """Pairs with which McNemar's test finds `difference` with the given power; None for none.

    `discordance` is the share of pairs in which one side succeeds and the other does not; it
    cannot be below the difference.
    """
    if difference == 0:
        return None
    psi = max(discordance, abs(difference))
    z_alpha, z_power = stats.normal_quantile(1 - alpha), stats.normal_quantile(2 * power - 1)
    scaled = z_alpha * math.sqrt(psi) + z_power * math.sqrt(max(psi - difference**2, 0.0))
    return math.ceil((scaled / difference) ** 2)


def _mean_difference(
    a: Array, b: Array, grouping: Grouping, *, task: str | None = None, level: float
) -> Difference:
    spread = grouping.variance(a - b) if grouping.n else (math.nan, 0)
    found = _by_t(grouping.mean(a - b), *spread, level)
    return _difference(a, b, grouping, found, task=task, test="paired t")


def _cluster_difference(a: Array, b: Array, grouping: Grouping, *, level: float) -> Difference:
    """Tasks are drawn; what their trials share by their seeds comes on top."""
    means, variance = grouping.means(a - b), math.nan
    if len(means) > 1:
        variance = float(means.var(ddof=1)) / len(means)
        if grouping.is_shared:
            of_seeds, alone = (each.variance(a - b)[0] for each in (grouping, grouping.apart()))
            variance += max(0.0, of_seeds - alone)
    found = _by_t(grouping.mean(a - b), variance, len(means) - 1, level)
    return dataclasses.replace(
        _difference(a, b, grouping, found, task=None, test=""), test="t over tasks"
    )


def _by_t(
    value: float, variance: float, freedom: int, level: float
) -> tuple[Interval | None, float | None]:
    """Interval and p of a mean; without any spread there is nothing to judge it by."""
    interval = stats.t_interval(value, variance, freedom, level=level)
    if interval is None or not variance:
        return interval, None
    return interval, stats.t_tails(value / math.sqrt(variance), freedom)


def _difference(
    a: Array,
    b: Array,
    grouping: Grouping,
    found: tuple[Interval | None, float | None],
    *,
    task: str | None,
    test: str,
) -> Difference:
    means = (grouping.mean(each) for each in (a, b, a - b))
    mean_a, mean_b, value = (mean if math.isfinite(mean) else None for mean in means)
    return Difference(
        task=task,
        n=grouping.n,
        a=mean_a,
        b=mean_b,
        value=value,
        interval=found[0],
        p_value=found[1],
        test=test + (" by seed" if grouping.is_shared else ""),
    )


def _means_needed(values: Array, *, level: float) -> int | None:
    found = stats.mean(values, level=level)
    if not found.value or not found.std:
        return None
    z = stats.normal_quantile(level) + stats.normal_quantile(2 * POWER - 1)
    return max(2, math.ceil((z * found.std / found.value) ** 2))


def _paired(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    tasks: Sequence[str],
    seeds: Sequence[int] | None,
    *,
    independent: bool,
) -> tuple[Array, Array, Grouping]:
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    starts = range(len(tasks)) if seeds is None else seeds
    if left.ndim != 1 or left.shape != right.shape or {len(tasks), len(starts)} != {len(left)}:
        raise ValueError(
            f"Pairs need one value of a, one of b, one task and one seed each; "
            f"got {left.shape}, {right.shape}, {len(tasks)} tasks and {len(starts)} seeds."
        )
    numbers = {task: number for number, task in enumerate(dict.fromkeys(tasks))}
    numbered = [numbers[task] for task in tasks]
    return left, right, Grouping.of(numbered, starts, independent=independent)
