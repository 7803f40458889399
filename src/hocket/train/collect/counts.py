"""What the collecting side has counted, and which part of that a checkpoint must remember."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_REMEMBERED = ("episodes", "dropped", "filtered", "lost")


@dataclass(slots=True)
class Counts:
    """Episodes and steps of training on this rank; evaluations are no part of them."""

    env_steps: int = 0
    total_steps: int = 0
    """Over all ranks, at the last update."""
    updates: int = 0
    episodes: int = 0
    dropped: int = 0
    """Episodes that were too old to learn from."""
    filtered: int = 0
    """Groups in which all ended alike."""
    lost: int = 0
    """Attempts that failed."""

    planned: int = 0
    begun: int = 0
    sealed: int = 0
    settled: int = 0
    """Learnt from, dropped, filtered or lost: nothing more will come of them."""
    filtered_since_update: int = 0
    """Episodes in filtered groups."""
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
        """For a checkpoint. What was planned and has not ended is planned again."""
        return {
            "env_steps": self.total_steps,
            **{name: getattr(self, name) for name in _REMEMBERED},
        }

    def restore(self, state: Mapping[str, Any], ranks: int) -> None:
        """Go on from a checkpoint."""
        self.total_steps = state["env_steps"]
        self.env_steps = self.total_steps // ranks
        self.updates = state["version"]
        for name in _REMEMBERED:
            setattr(self, name, state[name])

    def to_curves(self) -> dict[str, float]:
        """For the log."""
        return {
            "count/updates": float(self.updates),
            "count/episodes": float(self.episodes),
            "count/dropped": float(self.dropped),
            "count/filtered_groups": float(self.filtered),
            "count/lost_attempts": float(self.lost),
        }
