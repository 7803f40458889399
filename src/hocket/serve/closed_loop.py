"""Clients that come straight back, and how long a batch should wait for them."""

from __future__ import annotations

from hocket.engine.scheduling.estimates import Latency

SHORT = 0.25
"""A client that comes back within this share of a batch's time is waited for."""
LATE = 3.0
"""A client is waited for at most this many times as long as it took last time: one that misses its
batch waits for a whole one more."""


class ClosedLoop:
    """The lanes that are about to come back, and how long a batch should wait for them. Time is an
    argument.

    A client that sends its next request as soon as it has a reply drives a closed loop. Many of
    them fall into two alternating halves, each queued while the other is inferred, and stay so for
    good: every request then lasts L(n) + L(m), where together it would last L(n + m). A short wait
    right after a batch brings the halves together. It is bounded by how long these clients take to
    come back, and ends where waiting would cost more than a second batch; clients that think
    longer, as robots do, are never waited for.
    """

    def __init__(self, max_batch: int, latency: Latency) -> None:
        """`latency`: what batches cost, in seconds by size."""
        self._max_batch = max_batch
        self._latency = latency
        self._due: dict[int, float] = {}
        """Lanes that should come back, and when each is given up."""

    def answered(self, lane: int, think_s: float | None, infer_s: float, now: float) -> None:
        """A lane got its answer; last time it took `think_s` to come back."""
        if think_s is not None and think_s <= SHORT * infer_s:
            self._due[lane] = now + LATE * think_s

    def came(self, lane: int) -> None:
        """A lane came back, or is gone."""
        self._due.pop(lane, None)

    def hold_until(self, ready: int, now: float) -> float | None:
        """The time until which a batch of the `ready` rows should wait; None means not at all."""
        if not self._due or not ready:
            return None
        self._due = {lane: due for lane, due in self._due.items() if due > now}
        coming = min(len(self._due), self._max_batch - ready)
        if coming <= 0:
            return None
        until = max(self._due.values())
        predict = self._latency.predict
        together_s = until - now + predict(ready + coming)
        return until if together_s < predict(ready) + predict(coming) else None
