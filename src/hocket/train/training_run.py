"""What a run that collects and one that clones have in common: parts, counts, evaluations, and when
to save and to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.core.data import Episode
from hocket.train.algorithms.ranks import Ranks
from hocket.train.collect import plan
from hocket.train.collect.elsewhere import Sites
from hocket.train.collect.plan import Crossing, Evaluations
from hocket.train.collect.policy import CollectingPolicy
from hocket.train.config import TrainConfig
from hocket.train.corrections import Corrections
from hocket.train.learner.process import LearnerLink
from hocket.train.log import Counts, Display, Log
from hocket.train.networks.building import Description
from hocket.train.rewards import Rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run joins. Whoever made them closes them."""

    config: TrainConfig
    tasks: Sequence[plan.Task]
    run: Path
    policy: CollectingPolicy
    description: Description
    link: LearnerLink
    log: Log
    display: Display
    ranks: Ranks
    rewards: Rewards
    corrections: Corrections | None = None
    """Who collects between rounds of cloning; None where nobody does."""
    sites: Sites | None = None
    """Who collects, where that is not the engine here: that one then evaluates alone."""


Roll = Callable[..., bool]
"""Runs trials to the last and tells a reader; False where that was interrupted. A third argument is
given the engine before, and says whether there is work for it."""


class TrainingRun:
    """How far a run has come."""

    def __init__(self, parts: Parts, restored: Mapping[str, Any] | None = None) -> None:
        """`restored` is what a checkpoint kept of `counters`."""
        self._config = config = parts.config
        self._parts = parts
        self._counts = Counts()
        self._evaluations = Evaluations(
            config, parts.tasks, parts.policy, parts.description, parts.run
        )
        self._to_save = Crossing(config.checkpoint_every)
        self.is_complete = False
        if restored is not None:
            self._counts.restore(restored, parts.ranks.size)
            self._evaluations.restore(restored)
            self._to_save.last = restored["saved_at"]

    @property
    def total_steps(self) -> int:
        """Steps of all ranks at the last update: env steps, or recorded steps learnt from."""
        return self._counts.total_steps

    @property
    def best(self) -> float | None:
        """Success (or return) of the best evaluation so far."""
        return self._evaluations.best

    def close(self) -> None:
        """The parts belong to whoever made them."""

    def counters(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the weights."""
        return {
            **self._counts.to_state(),
            **self._evaluations.to_state(),
            "planned": 0,
            "saved_at": self._to_save.last,
            "wall_s": self._parts.log.wall_s,
        }

    def _take(self, episode: Episode) -> bool:
        """Take an episode of an evaluation; True if it was the last."""
        result = self._evaluations.add(episode)
        if result is None:
            return False
        score = result.score
        self._parts.log.write(
            result.env_steps, result.to_curves(), kind="eval", n=score.n, errors=score.errors
        )
        self._parts.display.announce(result.to_text())
        return True

    def _is_over(self) -> bool:
        """True if the run is at its end; asked by all ranks alike."""
        minutes, goal = self._config.minutes, self._config.stop_at
        is_late = minutes is not None and self._parts.log.wall_s > 60 * minutes
        is_good = goal is not None and self.best is not None and self.best >= goal
        is_done = self.total_steps >= self._config.steps
        return is_done or self._parts.ranks.count(is_late or is_good) > 0

    def _show(self, values: Mapping[str, float | None]) -> None:
        self._parts.log.write(self.total_steps, values, kind="update")
        self._parts.display.update(self.total_steps, values)
