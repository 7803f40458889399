"""Two runs compared trial by trial. Pure; differences are a - b, so that above 0 means a is better.

Pairs come as two arrays in the same order and the task of each pair. Two claims can be made:

- `strata`: about these very tasks. Tasks are fixed; how they differ among each other is known,
  and is taken out of the interval.
- `clusters`: about new tasks of the same kind. Each task is one draw; with few tasks this is
  wide, however many trials each has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hocket.core.data import Array
from hocket.results import stats
from hocket.results.stats import LEVEL, Interval

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

    @property
    def discordant(self) -> int:
        return self.only_a + self.only_b


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
    bootstrap: Interval | None = None
    """For returns: an interval that does not lean on their being normal."""

    @property
    def verdict(self) -> Verdict:
        """What the overall test says at one minus its interval's level."""
        p, value = self.overall.p_value, self.overall.value
        level = self.overall.interval.level if self.overall.interval else LEVEL
        if p is None or not value or p > 1 - level:
            return "undecided"
        interval = self.overall.interval
        if interval and interval.method == stats.UNEVEN and interval.low <= 0 <= interval.high:
            # The test counts pairs, and so leans to the tasks that have most of them.
            return "undecided"
        return "a better" if value > 0 else "b better"

    @property
    def sentence(self) -> str:
        """The verdict in plain words."""
        unit = "pairs" if self.tasks_as == "strata" else "tasks"
        seen = len(self.tasks) if self.tasks_as == "clusters" else self.overall.n
        if self.overall.value is None:
            return "Nothing to compare: no pair of trials that both ended without an error."
        p = self.overall.p_value
        odds = f" ({self.overall.test}, p = {p:.2g})" if p is not None else ""
        if self.verdict != "undecided":
            return f"{self.verdict[0]} is better at n = {seen:,} {unit}{odds}."
        need = f"; you would need about n = {self.needed:,}" if self.needed else ""
        return f"No evidence of a difference at n = {seen:,} {unit}{odds}{need}."


def compare_rates(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    tasks: Sequence[str],
    *,
    tasks_as: TasksAs = "strata",
    level: float = LEVEL,
) -> Comparison:
    """Compare successes. `strata`: Bonett and Price's interval and the exact McNemar test."""
    won_a, won_b = _paired(a, b, tasks)
    if not np.isin([won_a, won_b], (0.0, 1.0)).all():
        raise ValueError("Successes are 0 or 1.")
    groups = stats.groups(tasks)
    members = list(groups.values())
    rows = tuple(
        rate_difference(won_a[rows], won_b[rows], task=str(task), level=level)
        for task, rows in groups.items()
    )
    needed = None
    if tasks_as == "clusters":
        overall = _cluster_difference(won_a, won_b, members, level=level)
        needed = _means_needed(_task_means(won_a - won_b, members), level=level)
    else:
        overall = rate_difference(won_a, won_b, strata=members, level=level)
        if overall.value:
            pairs = Pairs.of(won_a, won_b)
            needed = pairs_needed(overall.value, pairs.discordant / pairs.n, alpha=1 - level)
    return Comparison(of="success", tasks_as=tasks_as, overall=overall, tasks=rows, needed=needed)


def compare_returns(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    tasks: Sequence[str],
    *,
    rng: np.random.Generator,
    tasks_as: TasksAs = "strata",
    level: float = LEVEL,
    resamples: int = 4000,
) -> Comparison:
    """Compare returns, for trials with nothing to succeed at: paired t, and a bootstrap beside.

    The bootstrap draws pairs (for `clusters`, whole tasks) and takes percentiles of the mean.
    """
    gave_a, gave_b = _paired(a, b, tasks)
    groups = stats.groups(tasks)
    members = list(groups.values())
    rows = tuple(
        _mean_difference(gave_a[rows], gave_b[rows], task=str(task), level=level)
        for task, rows in groups.items()
    )
    if tasks_as == "clusters":
        overall = _cluster_difference(gave_a, gave_b, members, level=level)
        values = _task_means(gave_a - gave_b, members)
    else:
        overall = _mean_difference(gave_a, gave_b, level=level)
        values = gave_a - gave_b
    return Comparison(
        of="return",
        tasks_as=tasks_as,
        overall=overall,
        tasks=rows,
        needed=_means_needed(values, level=level),
        bootstrap=bootstrap_mean(values, rng=rng, level=level, resamples=resamples),
    )


def rate_difference(
    a: Array,
    b: Array,
    *,
    task: str | None = None,
    strata: Sequence[Array] = (),
    level: float = LEVEL,
) -> Difference:
    """Difference of paired successes (arrays of 0 and 1); `strata` holds the rows of each task,
    of which each counts once: where some have more pairs than others, values are means over tasks.
    """
    pairs = Pairs.of(a, b)
    n = pairs.n
    if len({len(rows) for rows in strata}) > 1:
        return _uneven_difference(a, b, strata, level=level)
    interval = bonett_price(pairs.only_a, pairs.only_b, n, level=level)
    value = (pairs.only_a - pairs.only_b) / n if n else None
    if interval is not None and value is not None and len(strata) > 1 and n > len(strata):
        interval = _narrowed(interval, value, a - b, strata)
    return Difference(
        task=task,
        n=n,
        a=float(a.mean()) if n else None,
        b=float(b.mean()) if n else None,
        value=value,
        interval=interval,
        p_value=mcnemar(pairs.only_a, pairs.only_b) if n else None,
        test="exact McNemar",
    )


def _uneven_difference(a: Array, b: Array, strata: Sequence[Array], *, level: float) -> Difference:
    """The mean of the tasks' differences. Bonett and Price's interval of each task, combined,
    covers 94 % at least over n of 1 to 200 (benchmarks/results/coverage.py)."""
    tasks = [rate_difference(a[rows], b[rows], level=level) for rows in strata]
    bounds = np.array([(t.interval.low, t.interval.high) for t in tasks if t.interval])
    values = _task_means(a - b, strata)
    found = stats.mean_interval(values, bounds[:, 0], bounds[:, 1], level=level)
    pairs = Pairs.of(a, b)
    return Difference(
        task=None,
        n=pairs.n,
        a=float(_task_means(a, strata).mean()),
        b=float(_task_means(b, strata).mean()),
        value=float(values.mean()),
        interval=stats.clipped(found, -1.0, 1.0),
        p_value=mcnemar(pairs.only_a, pairs.only_b),
        test="exact McNemar",
    )


def bonett_price(only_a: int, only_b: int, n: int, *, level: float = LEVEL) -> Interval | None:
    """Bonett and Price's interval of a difference of paired proportions; None at n = 0.

    Wald's with one pair added to either kind of disagreement. Exact coverage of the 95 % interval
    over n of 10 to 500, rates of 0.05 to 0.95 and correlations of 0 to 0.8 is 93.5 % at least
    and 97 % on average; Tango's score interval is wider where pairs seldom disagree, which is
    what good policies do, and covers less at its worst.
    """
    if min(only_a, only_b) < 0 or only_a + only_b > n:
        raise ValueError(f"{only_a} + {only_b} discordant pairs of {n} cannot be.")
    if n == 0:
        return None
    low, high = bonett_price_bounds(np.array(only_a), np.array(only_b), n, level=level)
    return Interval(low=float(low), high=float(high), level=level, method="bonett-price")


def bonett_price_bounds(only_a: Array, only_b: Array, n: int, *, level: float = LEVEL) -> Array:
    """Return bounds `[..., 2]` for many tables of n pairs each."""
    p, q = (only_a + 1) / (n + 2), (only_b + 1) / (n + 2)
    half = stats.normal_quantile(level) * np.sqrt((p + q - (p - q) ** 2) / (n + 2))
    return np.clip(np.stack([p - q - half, p - q + half], axis=-1), -1.0, 1.0)


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact two-sided p of "neither is better": a fair coin for each discordant pair."""
    from scipy import special

    total = only_a + only_b
    tail = special.bdtr(float(min(only_a, only_b)), total, 0.5) if total else 1.0
    return min(1.0, 2.0 * float(tail))


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


def bootstrap_mean(
    values: npt.ArrayLike, *, rng: np.random.Generator, level: float = LEVEL, resamples: int = 4000
) -> Interval | None:
    """Percentile interval of a mean; None below two values."""
    data = np.asarray(values, dtype=np.float64)
    n = len(data)
    if n < 2 or not np.isfinite(data).all():
        return None
    # In slices, so that memory stays flat however long the runs are.
    slices = [
        min(resamples - i, 1 + 1_000_000 // n) for i in range(0, resamples, 1 + 1_000_000 // n)
    ]
    means = np.concatenate([data[rng.integers(0, n, (k, n))].mean(axis=1) for k in slices])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(low=float(low), high=float(high), level=level, method="bootstrap")


def _narrowed(plain: Interval, value: float, d: Array, strata: Sequence[Array]) -> Interval:
    """The interval less what lies between tasks: the pooled one is wider than it need be."""
    sizes = np.array([len(rows) for rows in strata], dtype=np.float64)
    within = np.array([d[rows].var(ddof=1) if len(rows) > 1 else np.nan for rows in strata])
    factor = stats.narrowing(within, sizes, total_variance=float(d.var(ddof=1)))
    factor *= stats.t_ratio(len(d) - len(strata), plain.level)
    return stats.clipped(
        stats.scaled(plain, value, factor, method="bonett-price/strata"), -1.0, 1.0
    )


def _mean_difference(a: Array, b: Array, *, task: str | None = None, level: float) -> Difference:
    found = stats.mean(a - b, level=level)
    return Difference(
        task=task,
        n=found.n,
        a=stats.mean(a).value,
        b=stats.mean(b).value,
        value=found.value,
        interval=found.interval,
        p_value=_t_test(found),
        test="paired t",
    )


def _cluster_difference(
    a: Array, b: Array, members: Sequence[Array], *, level: float
) -> Difference:
    found = stats.mean(_task_means(a - b, members), level=level)
    return Difference(
        task=None,
        n=len(a),
        a=stats.mean(_task_means(a, members)).value,
        b=stats.mean(_task_means(b, members)).value,
        value=found.value,
        interval=found.interval,
        p_value=_t_test(found),
        test="t over tasks",
    )


def _task_means(values: Array, members: Sequence[Array]) -> Array:
    return np.array([values[rows].mean() for rows in members])


def _t_test(found: stats.Mean) -> float | None:
    """Two-sided p of "the mean is 0"; None where no spread was seen to judge it by."""
    from scipy import special

    if found.value is None or not found.std:
        return None
    t = abs(found.value) / (found.std / math.sqrt(found.n))
    return float(2 * special.stdtr(found.n - 1, -t))


def _means_needed(values: Array, *, level: float) -> int | None:
    found = stats.mean(values, level=level)
    if not found.value or not found.std:
        return None
    z = stats.normal_quantile(level) + stats.normal_quantile(2 * POWER - 1)
    return max(2, math.ceil((z * found.std / found.value) ** 2))


def _paired(a: npt.ArrayLike, b: npt.ArrayLike, tasks: Sequence[str]) -> tuple[Array, Array]:
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if left.ndim != 1 or left.shape != right.shape or len(tasks) != len(left):
        raise ValueError(
            f"Pairs need one value of a, one of b and one task each; "
            f"got {left.shape}, {right.shape} and {len(tasks)} tasks."
        )
    return left, right
