"""What the latest episodes of training came to, as curves of the log."""

from __future__ import annotations

from collections import deque

from hocket.train.rewards import Rewarded

_EPISODES = 100
"""Episodes that curves are averaged over. Chosen by hand."""
_SUCCESS = ("success", "is_success")
"""Keys of `info` that the outcome tells already."""


class Recent:
    """Numbers of the latest episodes, by the names of their curves."""

    def __init__(self) -> None:
        self._episodes: deque[dict[str, float]] = deque(maxlen=_EPISODES)

    def add(self, rewarded: Rewarded) -> None:
        """Takes an episode that ended."""
        segment, terms = rewarded.segment, rewarded.terms
        told = {
            "train/return": segment.total_reward,
            "train/episode_steps": float(segment.steps),
            **{f"info/{k}": mean for k, mean in rewarded.info.items() if k not in _SUCCESS},
        }
        if segment.success is not None:
            told["train/success"] = float(segment.success)
        if len(terms) > 1:
            told.update({f"reward/{name}": value for name, value in terms.items()})
        self._episodes.append(told)

    def to_curves(self) -> dict[str, float | None]:
        """Returns means over the episodes that tell a number. Those of a reward's only term are its
        returns, and left out."""
        names = dict.fromkeys(("train/success", "train/return", "train/episode_steps"))
        names.update(dict.fromkeys(name for told in self._episodes for name in told))
        found = {name: [t[name] for t in self._episodes if name in t] for name in names}
        return {name: sum(n) / len(n) if n else None for name, n in found.items()}
