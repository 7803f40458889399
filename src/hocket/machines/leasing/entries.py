"""What a lease book writes down: leases, sites and trials."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from hocket.machines.leasing.expectations import SitePace, Task


class LeaseId(NamedTuple):
    """Names a lease: a trial by its place in the plan, and the number of the attempt at it."""

    trial: int
    attempt: int


@dataclass(slots=True)
class Lease:
    """An attempt at a trial that a site may make."""

    id: LeaseId
    site: str
    granted: float
    has_begun: bool = False
    is_asked_back: bool = False


@dataclass(slots=True)
class SiteEntry:
    lanes: int
    heard: float
    pace: SitePace
    held: set[LeaseId] = field(default_factory=set)
    tasks: Counter[Task] = field(default_factory=Counter)
    """How many of its leases are of each task."""
    begun: int = 0
    """How many of its leases have begun."""
    failed: int = 0
    """Attempts that have failed there since its last episode."""
    refuted: int = 0
    """How many of their trials have ended elsewhere."""
    is_proven: bool = False
    """An episode has ended there."""

    @property
    def room(self) -> int:
        return self.lanes - len(self.held)


@dataclass(slots=True)
class TrialEntry:
    task: Task
    next_attempt: int
    failed_at: Counter[str] = field(default_factory=Counter)
    """How often it has failed, by site."""
    is_leased: bool = False
    counts: int | None = None
    """The attempt that ended the trial."""

    @property
    def is_done(self) -> bool:
        return self.counts is not None
