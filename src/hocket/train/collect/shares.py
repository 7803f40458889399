"""Which share of the time was spent collecting, and in what, and which learning."""

from __future__ import annotations

import time


class Shares:
    """Counts the time since the last report."""

    def __init__(self) -> None:
        self._since = self._last = time.perf_counter()
        self._collecting = 0.0
        self._inferring = self._stepping = self._learning = 0.0
        self._was_collecting = False

    def count(self, *, is_collecting: bool) -> None:
        """Whether episodes are in flight from now on."""
        now = time.perf_counter()
        if self._was_collecting:
            self._collecting += now - self._last
        self._last, self._was_collecting = now, is_collecting

    def inferred(self, seconds: float) -> None:
        """The policy worked on a batch for this long."""
        self._inferring += seconds

    def stepped(self, seconds: float) -> None:
        """Lanes executed chunks for this long, one beside the other."""
        self._stepping += seconds

    def learnt(self, seconds: float) -> None:
        """An update took this long."""
        self._learning += seconds

    def take(self, lanes: int) -> dict[str, float]:
        """Curves of the shares since this was asked last. Stepping is the share of `lanes` that
        did."""
        now = time.perf_counter()
        whole = max(1e-9, now - self._since)
        found = {
            "time/collecting": min(1.0, self._collecting / whole),
            "time/inferring": min(1.0, self._inferring / whole),
            "time/stepping": min(1.0, self._stepping / whole / lanes),
            "time/learning": min(1.0, self._learning / whole),
        }
        self._since, self._collecting = now, 0.0
        self._inferring = self._stepping = self._learning = 0.0
        return found
