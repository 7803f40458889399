"""An env whose success is the policy's choice, and policies that succeed so often, by the seed."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Env, spaces

import hocket
from hocket.core.data import Batch


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


class LessAble(Able):
    """Worse by 20 points."""

    skill = 0.75


class AsAble(Able):
    """As good, by other actions: no trial is the same to the bit."""

    def infer(self, batch: Batch) -> Any:
        actions = super().infer(batch)
        actions[:, 0] = -1.0
        return actions
