"""An env whose steps sleep, so that two cores can host many, with episodes of many lengths."""

from __future__ import annotations

import random
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hocket.core.data import Array

SHORTEST, LONGEST = 60, 300


class Sleeper(gymnasium.Env[Any, Any]):
    """Ends after a number of steps that its seed draws; every step takes `step_s`."""

    observation_space = spaces.Dict({"observation/state": spaces.Box(-1.0, 1.0, (8,), np.float32)})
    action_space = spaces.Box(-1.0, 1.0, (4,), np.float32)

    def __init__(self, *, step_s: float = 0.01) -> None:
        self._step_s = step_s
        self._left = 0
        self._draw = random.Random(0)
        self._state = np.zeros(8, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._draw = random.Random(seed)
        self._left = self._draw.randint(SHORTEST, LONGEST)
        return {"observation/state": self._state}, {}

    def advance(self, action: Array) -> tuple[float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        self._left -= 1
        return 1.0, self._left <= 0, False, {}

    def observe(self) -> Any:
        return {"observation/state": self._state}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated, info = self.advance(action)
        return self.observe(), reward, terminated, truncated, info


def make(step_s: float = 0.01) -> Sleeper:
    """The env factory: `sleeper:make`."""
    return Sleeper(step_s=step_s)
