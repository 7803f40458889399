"""What a lease book writes down of leases, sites and trials: how long episodes are expected to
take, at which sites, and which trials no site has."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable
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


_NEAR = 3.0
"""The longest trials go first once the work left for each lane is this many of the longest
episodes: with 0 `benchmarks/machines/simulation.py` loses 3 % on ten sites. At a slow site that
begins earlier, by its pace, so that what is too long for it is left to others in time."""


class WaitingTrials:
    """Queues of trials by task. A trial is named by its place in the plan."""

    def __init__(self, expected: Expectations, *, in_order: bool) -> None:
        """`in_order` takes trials as they were planned."""
        self._expected = expected
        self._in_order = in_order
        self._queues: dict[Task, deque[int]] = {}
        """By task; none is empty."""
        self._count = 0
        self._looked_at = 0
        self._left_s = 0.0
        """Seconds of work for each lane that were left when `_looked_at` trials waited."""
        self._longest_s = 0.0
        """Seconds that the longest of them was expected to take."""

    def __len__(self) -> int:
        return self._count

    def add(self, trial: int, task: Task, *, first: bool = False) -> None:
        """Let a trial wait after the others of its task, or before them where it is `first`."""
        queue = self._queues.setdefault(task, deque())
        if first:
            queue.appendleft(trial)
        else:
            queue.append(trial)
        self._count += 1

    def discard(self, trial: int, task: Task) -> None:
        """Take a trial out, if it waits."""
        queue = self._queues.get(task)
        if queue is not None and trial in queue:
            queue.remove(trial)
            self._shorten(task)

    def take(self, held: Iterable[Task], pace: float) -> int:
        """The next trial for a site that holds these tasks and takes `pace` times as long as the
        average one. While there is much to do it keeps to the tasks it has, since building an env
        costs far more than resetting one, and to those with the most work, so that short ones are
        left for the end; later the longest go first."""
        queues, expected = self._queues, self._expected
        if self._in_order:
            task = min(queues, key=lambda task: queues[task][0])
        elif self.is_near(pace):
            task = expected.choose(queues, pace, self._left_s)
        else:
            open_ = [task for task in held if task in queues] or queues
            task = max(open_, key=lambda task: len(queues[task]) * expected.seconds(task))
        trial = queues[task].popleft()
        self._shorten(task)
        return trial

    def is_near(self, pace: float) -> bool:
        """True when the end of the run is so near that, for a site of this pace, it matters where
        the longest trials go."""
        return self._left_s <= _NEAR * max(1.0, pace) * self._longest_s

    def _shorten(self, task: Task) -> None:
        self._count -= 1
        if not self._queues[task]:
            del self._queues[task]

    def look(self, lanes: int) -> None:
        """Estimate again how much work waits, where the number of trials has changed: when little
        is left, the order decides how long the last lane is waited for. Work of unknown length
        counts as much, unless at most two trials are left for each lane."""
        if abs(self._count - self._looked_at) <= lanes / 16:
            return
        self._looked_at = self._count
        known = [task for task in self._queues if self._expected.is_known(task)]
        work = sum(len(self._queues[task]) * self._expected.seconds(task) for task in known)
        self._left_s = work / max(1, lanes) if known else math.inf
        self._longest_s = max(map(self._expected.seconds, known), default=0.0)
        if self._count <= 2 * lanes:
            self._longest_s = math.inf
