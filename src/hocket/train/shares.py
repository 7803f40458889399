"""Which share of the time was spent collecting, and which learning."""

from __future__ import annotations

import time


class Shares:
    """Counts the time since the last report."""

    def __init__(self) -> None:
        self._since = self._last = time.perf_counter()
        self._collecting = 0.0
        self._learning = 0.0
        self._was_collecting = False

    def count(self, *, is_collecting: bool) -> None:
        """Whether episodes are in flight from now on."""
        now = time.perf_counter()
        if self._was_collecting:
            self._collecting += now - self._last
        self._last, self._was_collecting = now, is_collecting

    def learnt(self, seconds: float) -> None:
        """An update took this long."""
        self._learning += seconds

    def take(self) -> tuple[float, float]:
        """Collecting and learning, each of the whole, since this was asked last."""
        now = time.perf_counter()
        whole = max(1e-9, now - self._since)
        found = min(1.0, self._collecting / whole), min(1.0, self._learning / whole)
        self._since, self._collecting, self._learning = now, 0.0, 0.0
        return found
