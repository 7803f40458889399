"""How long episodes are expected to take."""

from __future__ import annotations

import math

Task = tuple[str, str]
"""Suite and task."""


class Expectations:
    """How long episodes of each task are expected to take. A task of which none has ended is
    expected to be the longest."""

    def __init__(self) -> None:
        self._sums: dict[Task, tuple[int, float]] = {}

    def add(self, task: Task, seconds: float) -> None:
        count, total = self._sums.get(task, (0, 0.0))
        self._sums[task] = (count + 1, total + seconds)

    def is_known(self, task: Task) -> bool:
        return task in self._sums

    def seconds(self, task: Task) -> float:
        count, total = self._sums.get(task, (0, 0.0))
        return total / count if count else math.inf
