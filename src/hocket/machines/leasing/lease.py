"""What a lease is, and what becomes of one."""

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
    is_sealed: bool = False
    """Its episode is here, and waits for the elder lease of the trial to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfig:
    """How trials are spread over sites."""

    lease_s: float = 30.0
    """A lease ends when nothing was heard of its site for so long."""
    retries: int = 2
    """More attempts at a trial whose attempt failed at a site."""
    ahead: float = 0.25
    """Trials that wait at a site, as a share of its lanes: no lane waits for the network."""
    in_order: bool = False
    """Begin trials as they were planned, rather than those first by which the run ends soonest:
    for runs that are planned as they go."""
    second_copies: bool = False
    """Give idle sites a second lease of trials that others run, once nothing else is left. Only
    where results are the same to the bit: elsewhere a race would favour what ends early."""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """What becomes of a trial whose lease was given back."""

    is_final: bool
    """Its retries are used up, and no other lease of it stands: it ends as an ERROR."""
    wins: LeaseId | None = None
    """The lease whose episode, already here, counts now."""


SealVerdict = Literal["counts", "waits", "known", "late"]
