"""An env whose success is the policy's choice, and policies that succeed so often, by the seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import Env, spaces

import hocket
from hocket.core.data import Batch
from hocket.core.specs import TaskInfo


class Choice(Env[Any, Any]):
    """Succeeds where the action is above 0."""

    observation_space = spaces.Box(0, 1, (1,), np.float64)
    action_space = spaces.Box(-1, 1, (1,), np.float64)
    max_steps = 3

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.uniform(0, 1, 1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        won = bool(action[0] > 0)
        return np.zeros(1), float(won), won, False, {"success": won}


class Able:
    """Succeeds where the first observation, uniform in 0 to 1, is below `skill`."""

    skill = 0.95
    spec = hocket.PolicySpec(chunk_length=3, action_size=1, batch_invariant=True)

    def infer(self, batch: Batch) -> Any:
        seen = batch.arrays["observation/state"][:, 0]
        return np.where(seen < self.skill, 1.0, -1.0)[:, None, None].repeat(3, axis=1)

    def close(self) -> None: ...


class HalfAble(Able):
    skill = 0.6


class LessAble(Able):
    """Worse by 20 points."""

    skill = 0.75


class AsAble(Able):
    """As good, by other actions: no trial is the same to the bit."""

    def infer(self, batch: Batch) -> Any:
        actions = super().infer(batch)
        actions[:, 0] = -1.0
        return actions


class Tuned(Choice):
    """Succeeds above a threshold: with settings of every kind that a card may have."""

    def __init__(
        self,
        above: float = 0.0,
        lenient: bool = False,
        strict: bool = True,
        mode: Literal["plain", "odd"] = "plain",
        sizes: tuple[int, ...] = (1, 2),
        assets: str = "",
    ) -> None:
        self.above, self.lenient = above, lenient

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        won = self.lenient or bool(action[0] > self.above)
        return np.zeros(1), float(won), won, False, {"success": won}


class Pushy(Able):
    """Acts with so much force, which an env above a threshold asks for."""

    def __init__(self, force: float = 1.0, weights: str = "") -> None:
        self.force = force

    def infer(self, batch: Batch) -> Any:
        return super().infer(batch) * self.force


class Rooms:
    """A suite of two tasks, of which the second cannot be done."""

    def tasks(self) -> Sequence[TaskInfo]:
        return [TaskInfo(name=name, max_steps=3) for name in ("open", "shut")]

    def make(self, task: str) -> Env[Any, Any]:
        return Tuned(above=0.0 if task == "open" else 2.0)
