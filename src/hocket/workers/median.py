"""The median of recent measurements: of a step in workers, of batches and resets in the engine."""

from __future__ import annotations

from bisect import bisect_left, insort


class RunningMedian:
    """The median of the last `window` numbers; None before the first."""

    __slots__ = ("_last", "_oldest", "_window", "values")

    def __init__(self, window: int) -> None:
        self._window = window
        self._last: list[float] = []
        self._oldest = 0
        """Where in these the oldest is, once there are as many as count."""
        self.values: list[float] = []
        """These numbers, sorted; the list changes with the next one."""

    def add(self, value: float) -> None:
        if len(self._last) < self._window:
            self._last.append(value)
        else:
            at = self._oldest
            del self.values[bisect_left(self.values, self._last[at])]
            self._last[at] = value
            self._oldest = (at + 1) % self._window
        insort(self.values, value)

    def __len__(self) -> int:
        return len(self._last)

    @property
    def value(self) -> float | None:
        return self.values[len(self.values) // 2] if self.values else None
