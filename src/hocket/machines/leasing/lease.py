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


SealVerdict = Literal["counts", "known", "late"]
