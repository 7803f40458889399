"""Two suites whose only task has one name, and whose envs are driven differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hocket.core.specs import TaskInfo


class Summing(gymnasium.Env[Any, Any]):
    """Rewards each step with the sum of its action."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, low: float, high: float) -> None:
        self.action_space = spaces.Box(low, high, (1,), np.float32)
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return np.zeros(2, np.float32), float(np.sum(action)), False, self._steps >= 12, {}


class Low:
    bounds = (-1.0, 0.0)

    def tasks(self) -> Sequence[TaskInfo]:
        return (TaskInfo(name="sum"),)

    def make(self, task: str) -> Summing:
        return Summing(*self.bounds)


class High(Low):
    bounds = (5.0, 9.0)
