"""An env whose step is a millisecond of CPU, with states the size of a simulator's."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEP_S = 1e-3
LENGTH = 150
NUMBERS = 39
SIMULATOR = 80


class OneMillisecond(gymnasium.Env[Any, Any]):
    """Can defer its observation and give its state away; half of the state never changes."""

    max_steps = LENGTH

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {"state": spaces.Box(-np.inf, np.inf, (NUMBERS,), np.float64)}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self._simulator = np.zeros(SIMULATOR)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._simulator = self.np_random.normal(size=SIMULATOR)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observe(), *self.advance(action)

    def advance(self, action: Any) -> tuple[float, bool, bool, dict[str, Any]]:
        end = time.thread_time() + STEP_S
        self._simulator[: SIMULATOR // 2] += 0.1
        while time.thread_time() < end:
            pass
        return 0.5, False, False, {"success": False}

    def observe(self) -> dict[str, Any]:
        return {"state": self._simulator[:NUMBERS].copy()}

    def get_state(self) -> Any:
        return self._simulator.copy()

    def set_state(self, state: Any) -> None:
        self._simulator = np.array(state)


def make() -> OneMillisecond:
    return OneMillisecond()
