"""What the scheduler knows of lanes: who waits for whom, and what their chunks usually take."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice
from typing import NamedTuple

from hocket.core.median import RunningMedian

KIND_WINDOW = 31
QUEUE_WINDOW = 127


class BatchPlan(NamedTuple):
    """The lanes of one batch, oldest first, all of one queue."""

    lanes: tuple[int, ...]
    queue: Hashable


class Queue:
    """Ready lanes of one signature, oldest first, and those that will come back to it."""

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.ready: dict[int, float] = {}
        """Lane to the time since when it is ready. Dicts keep order, and removal is O(1)."""
        self.late_at: list[float] = []
        """When each executing lane is overdue, sorted."""
        self.seconds = RunningMedian(QUEUE_WINDOW)
        """How long chunks took, whatever their kind: those that come often count often."""
        self.kinds: dict[Kind, int] = {}
        """Lanes by the kind of their last chunk, so that rare guests count for little."""
        self.members = 0
        """Lanes whose last observation was of this signature and that have not left."""
        self.target = 1
        self.members_at_target = -1
        """For how many the target was computed; -1: it is to be computed again."""
        self.spare_s = 0.0
        """For how long a batch may be held back at nobody's cost."""
        self.is_together = False
        """All members go in one batch, as rows do that had better stay in step."""

    @property
    def oldest(self) -> float:
        return next(iter(self.ready.values()))

    @property
    def typical_s(self) -> float:
        return self.seconds.value or 0.0

    def take(self, count: int) -> tuple[int, ...]:
        """The first so many lanes that are ready; they no longer are."""
        if count == len(self.ready):
            lanes = tuple(self.ready)
            self.ready.clear()
            return lanes
        lanes = tuple(islice(self.ready, count))
        for lane in lanes:
            del self.ready[lane]
        return lanes

    def count(self, kind: Kind | None, change: int) -> None:
        if kind is not None:
            self.kinds[kind] = self.kinds.get(kind, 0) + change


class Kind:
    """Chunks that should take about the same time."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = RunningMedian(KIND_WINDOW)


class Cohort:
    """Chunks that were sent at once to lanes of one queue."""

    __slots__ = ("lane_seconds", "late_at", "started")

    def __init__(self, started: float, lane_seconds: float, late_at: float | None) -> None:
        self.started = started
        self.lane_seconds = lane_seconds
        """What lanes had executed by then, in all."""
        self.late_at = late_at
        """When they are overdue; None where nothing is known."""


class Lane:
    """Where a lane is, and what it did last."""

    __slots__ = ("cohort", "kind", "queue")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.kind: Kind | None = None
        self.cohort: Cohort | None = None
        """What its running chunk was sent with; None where it runs none."""
