"""How long episodes are expected to take."""

from __future__ import annotations

import math
from collections.abc import Collection

Task = tuple[str, str]
"""Suite and task."""

_SLOW = 1.25
"""The pace from which on a site counts as slow. Chosen by hand: episodes differ, too."""
_WORST = 3.0
"""Standard deviations above the mean that an episode may last. Chosen by hand."""


class Expectations:
    """How long episodes of each task are expected to take. A task of which none has ended is
    expected to be the longest."""

    def __init__(self) -> None:
        self._counts: dict[Task, int] = {}
        self._means: dict[Task, float] = {}
        self._squares: dict[Task, float] = {}
        """The sum of the squared deviations from the mean."""

    def add(self, task: Task, seconds: float) -> None:
        count = self._counts[task] = self._counts.get(task, 0) + 1
        mean = self._means.get(task, 0.0)
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
        """The longest task; at a site that takes `pace` times as long as others (where that is more
        than a little) the longest that ends there within `left_s`, when the run will."""
        if pace >= _SLOW:
            fit = [task for task in tasks if pace * self.worst(task) <= left_s]
            if not fit:
                return min(tasks, key=self.seconds)
            tasks = fit
        return max(tasks, key=self.seconds)
