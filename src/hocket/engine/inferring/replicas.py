"""Who answers for a policy: its copies, the threads that call them, and a warm-up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from hocket.core.contracts.policy import Policy
from hocket.core.data import UNCHECKED, RowChecks
from hocket.engine.inferring.policy_thread import Job

TIMING_S, TIMING = 1.0, 2.0
"""A warm-up times sizes beyond what it must for this many seconds, or for this many times what
those take that it must: a policy that compiles anew for each size would hold up the run. Without a
limit lists of graph shapes gain 0.1 %."""
MOST_SHAPES = 4096
"""Shapes of batches that are remembered. A server's clients can make any number of them; a shape
that was forgotten is only waited for longer, as one that may have to be compiled."""

MoreSizes = Callable[[Mapping[int, float]], int | None]
"""Which size to time next, by the seconds of those that are timed; None: no more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WarmedUp:
    """A policy has seen every batch size once; `latencies`: the slowest replica's seconds."""

    queue: Hashable
    latencies: dict[int, float]
    error: Exception | None
    checks: RowChecks = UNCHECKED
    """True if the row's bits were the same in every size, at every index and on every replica."""


@dataclass(slots=True, eq=False)
class Replica:
    """A policy on one device, and what is known of how long it takes."""

    policy: Policy
    name: str
    seen: set[tuple[Hashable, int]] = field(default_factory=set)
    """Queues and sizes of batches that it has answered."""
    slowest_first_s: float | None = None
    """Seconds of the slowest call of a new shape; None before there was one."""
    is_lost: bool = False

    def answered(self, queue: Hashable, size: int, first_s: float) -> None:
        """A batch was answered; the first of its shape took `first_s` seconds."""
        if (queue, size) not in self.seen:
            self.slowest_first_s = max(self.slowest_first_s or 0.0, first_s)
            if len(self.seen) == MOST_SHAPES:
                self.seen.clear()
            self.seen.add((queue, size))

    def forget(self) -> None:
        """It was started anew, and may load and compile again."""
        self.seen.clear()
        self.slowest_first_s = None


@dataclass(slots=True, eq=False)
class Seat:
    """One thread of a replica, and what it works on."""

    replica: Replica
    thread: threading.Thread | None = None
    job: Job | None = None
    began: float = inf
    """When it began to work; infinite while it waits for work."""
    allowed_s: float = inf
    is_hung: bool = False
    """It was given up, whatever it may still answer."""

    def late(self, now: float) -> bool:
        return now - self.began > self.allowed_s


@dataclass(slots=True, eq=False)
class WarmUp:
    """A warm-up under way on a thread of its own."""

    job: Job
    sizes: Sequence[int]
    more: MoreSizes | None
    seat: Seat
    """Stands for the warm-up's thread; its replica is the one that is tried now."""
    ends: float = inf
    """When no more sizes are timed: known when all are that must be."""

    def more_sizes(self, latencies: Mapping[int, float], now: float) -> list[int]:
        """The size to be timed next, if there is one."""
        if self.ends == inf:
            self.ends = now + max(TIMING_S, TIMING * sum(latencies.values()))
        size = self.more(latencies) if self.more is not None and now < self.ends else None
        return [] if size is None else [size]
