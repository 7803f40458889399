"""The median of recent measurements: of a step in workers, of batches and resets in the engine."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque


class RunningMedian:
    """The median of the last `window` numbers; None before the first."""

    __slots__ = ("_last", "_sorted", "_window")

    def __init__(self, window: int) -> None:
        self._window = window
        self._last: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        if len(self._last) == self._window:
            del self._sorted[bisect_left(self._sorted, self._last.popleft())]
        self._last.append(value)
        insort(self._sorted, value)

    def __len__(self) -> int:
        return len(self._last)

    @property
    def values(self) -> list[float]:
        """These numbers, sorted; the list changes with the next one."""
        return self._sorted

    @property
    def value(self) -> float | None:
        return self._sorted[len(self._sorted) // 2] if self._sorted else None
