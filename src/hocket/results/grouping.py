"""How trials hang together: which are of one task, and which start alike. Pure: arrays in, numbers
out.

Tasks are fixed, and each counts once. Starts are drawn: trials of one seed share what makes it easy
or hard, and say less than as many others would. How much less is seen from how the sums of seeds
vary, and intervals are made for the number of independent trials that would say as much, as Korn
and Graubard do for surveys.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hocket.core.data import Array
from hocket.results import stats

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

    def effective(self, values: Array, *, level: float = stats.LEVEL) -> float:
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
            worth *= (stats.t_quantile(self.n - 1, level) / stats.t_quantile(freedom, level)) ** 2
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
