"""Envs of the training benchmarks. Workers import this, so it must stay light."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEPS = 8


class SleepyEnv(gymnasium.Env[Any, Any]):
    """Episodes of eight steps, each of which takes a given time."""

    def __init__(self, step_s: float) -> None:
        self.observation_space = spaces.Dict({"state": spaces.Box(-1, 1, (2,), np.float32)})
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self._step_s = step_s
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return {"state": np.zeros(2, np.float32)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        self._steps += 1
        is_over = self._steps >= STEPS
        return {"state": np.zeros(2, np.float32)}, float(action[0]), is_over, False, {}


def make_sleepy(step_s: float = 0.0) -> SleepyEnv:
    return SleepyEnv(step_s)
