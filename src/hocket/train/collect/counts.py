"""What the collecting side counts: episodes and steps, where its time goes, and when something is
due that happens every so many steps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_REMEMBERED = ("episodes", "dropped", "filtered", "lost")
"""Counts that a checkpoint keeps beside the env steps."""


@dataclass(slots=True)
class Counts:
    """Episodes and steps of training on this rank; evaluations are no part of them."""

    env_steps: int = 0
    """Steps on this rank."""
    total_steps: int = 0
    """Steps of all ranks, as of the last update."""
    updates: int = 0
    episodes: int = 0
    """Episodes that ended, lost ones included."""
    dropped: int = 0
    """Episodes that were too old to learn from."""
    filtered: int = 0
    """Groups in which all ended alike."""
    lost: int = 0
    """Attempts that failed."""

    planned: int = 0
    begun: int = 0
    sealed: int = 0
    """Episodes that ended since this process began; `episodes` goes on after a resume."""
    settled: int = 0
    """Episodes that were learnt from, dropped, filtered or lost: nothing more will come of them."""
    filtered_since_update: int = 0
    """Episodes in filtered groups since the last update."""
    errors_in_a_row: int = 0

    @property
    def outstanding(self) -> int:
        """Episodes that were planned and are not settled."""
        return self.planned - self.settled

    @property
    def waiting(self) -> int:
        """Episodes that were planned and not begun."""
        return self.planned - self.begun

    def to_state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps. What was planned and has not ended is planned again."""
        return {
            "env_steps": self.total_steps,
            **{name: getattr(self, name) for name in _REMEMBERED},
        }

    def restore(self, state: Mapping[str, Any], ranks: int) -> None:
        """Goes on from a checkpoint."""
        self.total_steps = state["env_steps"]
        self.env_steps = self.total_steps // ranks
        self.updates = state["version"]
        for name in _REMEMBERED:
            setattr(self, name, state[name])

    def to_curves(self) -> dict[str, float]:
        """Returns the curves of the log."""
        return {
            "count/updates": float(self.updates),
            "count/episodes": float(self.episodes),
            "count/dropped": float(self.dropped),
            "count/filtered_groups": float(self.filtered),
            "count/lost_attempts": float(self.lost),
        }


class Shares:
    """Which share of the time since the last report went into collecting, and into what of it, and
    which into learning."""

    def __init__(self) -> None:
        self._since = self._last = time.perf_counter()
        self._collecting = 0.0
        self._inferring = self._stepping = self._learning = 0.0
        self._was_collecting = False

    def count(self, *, is_collecting: bool) -> None:
        """Says whether episodes are in flight from now on."""
        now = time.perf_counter()
        if self._was_collecting:
            self._collecting += now - self._last
        self._last, self._was_collecting = now, is_collecting

    def inferred(self, seconds: float) -> None:
        """Adds the time that the policy worked on a batch."""
        self._inferring += seconds

    def stepped(self, seconds: float) -> None:
        """Adds the time that lanes executed chunks, summed over lanes."""
        self._stepping += seconds

    def learnt(self, seconds: float) -> None:
        """Adds the time that an update took."""
        self._learning += seconds

    def take(self, lanes: int) -> dict[str, float]:
        """Returns curves of the shares since this was asked last. Stepping is the mean share of
        `lanes` that did."""
        now = time.perf_counter()
        whole = max(1e-9, now - self._since)
        found = {
            "time/collecting": min(1.0, self._collecting / whole),
            "time/inferring": min(1.0, self._inferring / whole),
            "time/stepping": min(1.0, self._stepping / whole / lanes),
            "time/learning": min(1.0, self._learning / whole),
        }
        self._since, self._collecting = now, 0.0
        self._inferring = self._stepping = self._learning = 0.0
        return found


@dataclass(slots=True)
class Crossing:
    """Tells when a multiple of `every` has been passed, where counts jump by whole rollouts: once
    for a jump, however far it went. 0 never fires."""

    every: int
    last: int = 0
    """The count at which it last fired."""

    def fires(self, count: int) -> bool:
        """Whether a multiple was passed since it last fired."""
        if self.every <= 0 or count // self.every <= self.last // self.every:
            return False
        self.last = count
        return True
