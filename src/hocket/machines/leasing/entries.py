"""What a lease book writes down of leases, sites and trials, and how long episodes are expected to
take, at which sites."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

Task = tuple[str, str]
"""Suite and task."""

SLOW = 1.25
"""The pace from which on a site counts as slow: less may come from episodes that differ."""
_WORST = 3.0
"""Standard deviations above the mean up to which an episode is taken to last."""
_LEARN = 0.02
"""The least weight of one episode in the estimate of its site's pace: episodes differ by half their
length and more, and a site that is thought too fast decides when the run ends."""


@dataclass(slots=True)
class SitePace:
    """How long episodes take at a site, over what they are expected to take."""

    ratio: float = 1.0
    timed: int = 0
    """Episodes that the estimate rests on."""


class Expectations:
    """How long episodes of each task are expected to take at the average site. A task of which none
    has ended is expected to be the longest."""

    def __init__(self) -> None:
        self._counts: dict[Task, int] = {}
        self._means: dict[Task, float] = {}
        self._squares: dict[Task, float] = {}
        """The sum of the squared deviations from the mean."""
        self._sites = 0
        self._ratios = 0.0
        """The sum of the ratios of all sites."""

    def join(self) -> SitePace:
        """Count in a site that joins, and give its pace."""
        pace = SitePace()
        self._sites += 1
        self._ratios += pace.ratio
        return pace

    def leave(self, pace: SitePace) -> None:
        """Count out the site with this pace."""
        self._sites -= 1
        self._ratios -= pace.ratio

    def relative(self, pace: SitePace) -> float:
        """How long episodes take at a site, over how long they take at the average one."""
        return max(0.1, pace.ratio * self._sites / self._ratios)

    def add(self, task: Task, seconds: float, pace: SitePace) -> None:
        """Learn from an episode how long its task takes, and how fast its site is. Episodes of a
        slow site count as if the average site had run them: a task that it alone has must not make
        it look fast."""
        mean = self._means.get(task)
        if mean is not None:
            pace.timed += 1
            ratio = min(seconds / max(1e-9, mean), 10.0)
            change = max(_LEARN, 1 / (pace.timed + 1)) * (ratio - pace.ratio)
            pace.ratio += change
            self._ratios += change
        seconds /= self.relative(pace)
        mean = mean or 0.0
        count = self._counts[task] = self._counts.get(task, 0) + 1
        self._means[task] = mean + (seconds - mean) / count
        deviations = (seconds - mean) * (seconds - self._means[task])
        self._squares[task] = self._squares.get(task, 0.0) + deviations

    def is_known(self, task: Task) -> bool:
        return task in self._means

    def seconds(self, task: Task) -> float:
        return self._means.get(task, math.inf)

    def worst(self, task: Task) -> float:
        """Seconds that hardly any episode of the task exceeds."""
        if task not in self._means:
            return math.inf
        return self._means[task] + _WORST * math.sqrt(self._squares[task] / self._counts[task])

    def choose(self, tasks: Collection[Task], pace: float, left_s: float) -> Task:
        """The longest task; at a slow site, which takes `pace` times as long as others, the longest
        that ends there within `left_s`, when the run will end."""
        if pace >= SLOW:
            fit = [task for task in tasks if pace * self.worst(task) <= left_s]
            if not fit:
                return min(tasks, key=self.seconds)
            tasks = fit
        return max(tasks, key=self.seconds)


class LeaseId(NamedTuple):
    """Names a lease: a trial by its place in the plan, and the number of the attempt at it."""

    trial: int
    attempt: int


@dataclass(slots=True)
class Lease:
    """An attempt at a trial that a site may make."""

    id: LeaseId
    site: str
    granted: float
    has_begun: bool = False
    is_asked_back: bool = False


@dataclass(slots=True)
class SiteEntry:
    lanes: int
    heard: float
    pace: SitePace
    held: set[LeaseId] = field(default_factory=set)
    tasks: Counter[Task] = field(default_factory=Counter)
    """How many of its leases are of each task."""
    begun: int = 0
    """How many of its leases have begun."""
    failed: int = 0
    """Attempts that have failed there since its last episode."""
    refuted: int = 0
    """How many of their trials have ended elsewhere."""
    is_proven: bool = False
    """An episode has ended there."""

    @property
    def room(self) -> int:
        return self.lanes - len(self.held)


@dataclass(slots=True)
class TrialEntry:
    task: Task
    next_attempt: int
    failed_at: Counter[str] = field(default_factory=Counter)
    """How often it has failed, by site."""
    is_leased: bool = False
    counts: int | None = None
    """The attempt that ended the trial."""

    @property
    def is_done(self) -> bool:
        return self.counts is not None
