"""What the latest episodes of training came to, as curves of the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from hocket.train.algorithms.stretches import Stretch

_EPISODES = 100
"""Episodes that curves are averaged over. Chosen by hand."""


class Recent:
    """Numbers of the latest episodes, by the names of their curves."""

    def __init__(self) -> None:
        self._episodes: deque[dict[str, float]] = deque(maxlen=_EPISODES)

    def add(self, stretch: Stretch, more: Mapping[str, float]) -> None:
        """Take an episode that ended, with what else it adds to the log."""
        told = {
            "train/return": stretch.total_reward,
            "train/episode_steps": float(stretch.steps),
            **more,
        }
        if stretch.success is not None:
            told["train/success"] = float(stretch.success)
        self._episodes.append(told)

    def to_curves(self) -> dict[str, float | None]:
        """Return means over the episodes that tell a number."""
        names = dict.fromkeys(("train/success", "train/return", "train/episode_steps"))
        names.update(dict.fromkeys(name for told in self._episodes for name in told))
        found = {name: [t[name] for t in self._episodes if name in t] for name in names}
        return {name: sum(n) / len(n) if n else None for name, n in found.items()}
