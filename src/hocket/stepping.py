"""When rows that share one step take it. No clock: time is an argument, in seconds.

One step of a batched simulator costs nearly the same for one row or for all. Rows that have no
action stand still, so a step may be taken at any time, and whoever gets a chunk while it runs waits
for its end. In the model of one cycle (see `hocket.cycle`) that makes executing a chunk cost
E(n) = T c for any number n of rows, with c seconds for a step: contention 0. What the model leaves
open is who waits for whom. With n rows that could step now, and m whose chunks are expected w
seconds from now:

    to step now    holds up the m rows until the step ends:      m (c - w)
    to hold        holds up the n rows until the m have come:    n w

Whatever costs the rows less time in all is done, for each m that may be awaited. So one straggler
is held for a full batch that is about to come, and a thousand rows are never held for one.
"""

from __future__ import annotations

from collections import deque

from hocket.cycle import RunningMedian

WINDOW = 31
OVERDUE = 0.5
"""Chunks are awaited no longer once they are late by this share of a step."""
IMMINENT = 0.03
"""Chunks are never expected sooner than in this share of a step."""


class StepRule:
    """Decides when to step, from what steps cost and which chunks are expected."""

    def __init__(self) -> None:
        self._cost = RunningMedian(WINDOW)
        self._coming: deque[tuple[float, int]] = deque()
        """When chunks are expected, and for how many rows; in the order of their inference."""

    @property
    def step_s(self) -> float:
        """Seconds that a step takes; 0 before the first."""
        return self._cost.value or 0.0

    def stepped(self, seconds: float) -> None:
        """A step was taken."""
        self._cost.add(seconds)

    def expect(self, rows: int, at: float) -> None:
        """Chunks for so many rows should come at this time."""
        self._coming.append((at, rows))

    def came(self, rows: int) -> None:
        """Chunks for so many rows came: those that were expected first."""
        while rows > 0 and self._coming:
            at, count = self._coming.popleft()
            if count > rows:
                self._coming.appendleft((at, count - rows))
            rows -= count

    def hold_s(self, active: int, now: float) -> float:
        """Seconds to hold `active` rows that could step now; 0: they step."""
        step_s = self.step_s
        late_at = now - OVERDUE * step_s
        while self._coming and self._coming[0][0] < late_at:
            self._coming.popleft()
        held_s, coming = 0.0, 0
        for at, rows in sorted(self._coming):
            wait_s = max(at - now, IMMINENT * step_s)
            if wait_s >= step_s:
                break
            coming += rows
            if active * wait_s < coming * (step_s - wait_s):
                held_s = wait_s
        return held_s
