"""The trials that no site has, and which of them is next for a site."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from hocket.machines.leasing.entries import Expectations, Task

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
