"""One worker as the fleet knows it: its link, what its lanes do, and since when."""

from __future__ import annotations

import enum
from collections import deque

from hocket.workers.link import Link


class Phase(enum.Enum):
    """What a lane is doing."""

    IDLE = enum.auto()
    BEGINNING = enum.auto()
    READY = enum.auto()
    """It waits for a chunk."""
    EXECUTING = enum.auto()


class Seat:
    """One lane of a station."""

    __slots__ = (
        "attempt",
        "chunk",
        "is_worded",
        "live",
        "orphans",
        "phase",
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
        self.orphans = 0
        """Answers still to come for attempts that were discarded."""
        self.is_worded = False
        """A control word is set for the running chunk."""


class Station:
    """A place for one worker after another."""

    def __init__(self, lanes: range) -> None:
        self.lanes = lanes
        self.link: Link | None = None
        self.seats = [Seat() for _ in lanes]
        self.is_up = False
        self.failed_starts = 0
        self.episodes = 0
        self.retry_at: float | None = None
        """When to try again to start a worker."""
        self.since = 0.0
        """When the worker was last seen to make progress, or was asked for something."""
        self.counted = -1
        """Steps of all lanes at that time."""
        self.trouble = ""
        """Why the last start failed."""

    def settle(self, link: Link | None, now: float) -> None:
        """A new worker, or none, takes the place."""
        self.link = link
        self.seats = [Seat() for _ in self.lanes]
        self.is_up = False
        self.episodes = 0
        self.retry_at = None
        self.since = now
        self.counted = -1

    @property
    def is_busy(self) -> bool:
        """Whether any lane has an attempt."""
        return any(seat.phase is not Phase.IDLE for seat in self.seats)

    def waits_since(self, now: float) -> tuple[str, float]:
        """What is awaited of the worker (`step`, `start` or nothing), and for how long."""
        link = self.link
        if link is None:
            return "", 0.0
        phases = {seat.phase for seat in self.seats}
        if Phase.BEGINNING in phases or not self.is_up:
            return "start", now - self.since
        if Phase.EXECUTING in phases:
            counted = sum(link.steps(place) for place in range(len(self.seats)))
            if counted != self.counted:
                self.counted = counted
                self.since = now
            return "step", now - self.since
        if any(seat.sealing for seat in self.seats):
            return "start", now - self.since
        return "", 0.0
