"""How long episodes are expected to take."""

from __future__ import annotations

import math
from collections.abc import Collection

Task = tuple[str, str]
"""Suite and task."""

_SLOW = 1.25
"""The pace from which on a site counts as slow. Chosen by hand: episodes differ, too."""


class Expectations:
    """How long episodes of each task are expected to take. A task of which none has ended is
    expected to be the longest."""

    def __init__(self) -> None:
        self._counts: dict[Task, int] = {}
        self._means: dict[Task, float] = {}

    def add(self, task: Task, seconds: float) -> None:
        count = self._counts[task] = self._counts.get(task, 0) + 1
        mean = self._means.get(task, 0.0)
        self._means[task] = mean + (seconds - mean) / count

    def is_known(self, task: Task) -> bool:
        return task in self._means

    def seconds(self, task: Task) -> float:
        return self._means.get(task, math.inf)

    def choose(self, tasks: Collection[Task], pace: float) -> Task:
        """The longest task, or at a site that takes `pace` times as long as others (where that is
        more than a little) the longest that ends as soon there as the longest elsewhere."""
        longest = max(tasks, key=self.seconds)
        if pace < _SLOW:
            return longest
        fit = [task for task in tasks if pace * self.seconds(task) <= self.seconds(longest)]
        return max(fit, key=self.seconds) if fit else min(tasks, key=self.seconds)
