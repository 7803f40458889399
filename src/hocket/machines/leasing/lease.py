"""What a lease is, and how one may end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfig:
    """How trials are spread over sites."""

    lease_s: float = 30.0
    """A lease ends when its site was silent for this long."""
    retries: int = 2
    """More attempts at a trial whose attempt failed at a site."""
    ahead: float = 0.25
    """Trials that wait at a site, as a share of its lanes: no lane waits for the network."""
    in_order: bool = False
    """Begin trials in planned order, rather than in the order that ends the run soonest: for runs
    that are planned as they go."""


SealVerdict = Literal["counts", "known", "late"]
