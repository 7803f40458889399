"""What the parent knows of each worker and of its lanes."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from hocket.core.contracts.link import Audible, Link, SelfDriven


class Phase(enum.Enum):
    IDLE = enum.auto()
    BEGINNING = enum.auto()
    READY = enum.auto()
    """It waits for a chunk."""
    EXECUTING = enum.auto()


class LaneSlot:
    __slots__ = (
        "attempt",
        "chunk",
        "has_word",
        "live",
        "orphans",
        "phase",
        "rows",
        "sealing",
        "trial",
    )

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self.attempt = -1
        self.chunk = -1
        self.trial: tuple[str, str] | None = None
        """Suite and task of the running attempt."""
        self.live: tuple[str, str] | None = None
        """Suite and task that the worker has built."""
        self.sealing: deque[int] = deque()
        """Ended attempts whose recordings are not yet sealed; -1 for one that was discarded."""
        self.rows: dict[str, bytes] = {}
        """What came of the attempt that is sealed next: what files of rows would hold, by name."""
        self.orphans = 0
        """Answers still to come for attempts that were discarded."""
        self.has_word = False
        """A control word is set for the running chunk."""


class WorkerSlot:
    """Holds one worker after another, which all serve the same lanes."""

    def __init__(self, lanes: range) -> None:
        self.lanes = lanes
        """The fleet's ids of its lanes; the worker itself numbers them from 0, as rows."""
        self.failed_starts = 0
        self.trouble = ""
        """Why the last start failed."""
        self.settle(None, 0.0)

    def settle(self, link: Link | None, now: float) -> None:
        self.link = link
        # Looked for once: to look for a Protocol's methods costs more than a small batch.
        found: object = link
        self.driven = found if isinstance(found, SelfDriven) else None
        """The link, where its worker takes steps in this thread."""
        self.audible = found if isinstance(found, Audible) else None
        """The link, where its worker is heard of all the time."""
        self.slots = [LaneSlot() for _ in self.lanes]
        """By row."""
        self.is_up = False
        self.episodes = 0
        """Episodes that ended in this worker."""
        self.retry_at: float | None = None
        """When to try again to start a worker."""
        self.since = now
        """When the worker was last seen to make progress, or was asked for something."""
        self.counted = -1
        """Steps of all lanes at that time."""
        self.has_stepped = False
        """A first step was seen: many simulators compile in it, which belongs to their start."""

    @property
    def is_busy(self) -> bool:
        return any(slot.phase is not Phase.IDLE for slot in self.slots)

    def waits_since(self, now: float) -> tuple[str, float]:
        """What is awaited of the worker (`step`, `start` or nothing), and for how many seconds."""
        link = self.link
        if link is None:
            return "", 0.0
        phases = [slot.phase for slot in self.slots]
        if Phase.BEGINNING in phases or not self.is_up:
            return "start", now - self.since
        if Phase.EXECUTING in phases:
            counted = sum(link.steps(row) for row in range(len(self.slots)))
            if counted != self.counted:
                self.counted = counted
                self.since = now
            self.has_stepped |= counted > 0
            return "step" if self.has_stepped else "start", now - self.since
        if any(slot.sealing for slot in self.slots):
            return "start", now - self.since
        return "", 0.0


@dataclass(slots=True)
class Borrowed:
    """A worker that a fleet has lent."""

    link: Link
    live: tuple[str, str] | None
    """Suite and task that it has built."""
    is_ended: bool = False

    def end(self) -> None:
        """End the worker, which may be in any state. Twice is safe."""
        self.is_ended = True
        self.link.kill()
