"""The median of recent measurements: of a step in workers, of batches and resets in the engine."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque


class RunningMedian:
    """The median of the last `window` numbers; None before the first."""

    __slots__ = ("_last", "_window", "values")

    def __init__(self, window: int) -> None:
        self._window = window
        self._last: deque[float] = deque()
        self.values: list[float] = []
        """These numbers, sorted; the list changes with the next one."""

    def add(self, value: float) -> None:
        if len(self._last) == self._window:
            del self.values[bisect_left(self.values, self._last.popleft())]
        self._last.append(value)
        insort(self.values, value)

    def __len__(self) -> int:
        return len(self._last)

    @property
    def value(self) -> float | None:
        return self.values[len(self.values) // 2] if self.values else None
