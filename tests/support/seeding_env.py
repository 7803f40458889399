"""An env that uses its seed, or does not."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Drawn(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-9.0, 9.0, (2,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, way: str) -> None:
        self._way = way
        self._own = np.random.default_rng(0 if way == "made once" else None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._way == "global":
            start = np.random.uniform(-1, 1, 2)
        elif self._way == "constant":
            start = np.zeros(2)
        else:
            source = self.np_random if self._way == "seeded" else self._own
            start = source.uniform(-1, 1, 2)
        return start, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2), 0.0, True, False, {"success": True}


def make(way: str = "seeded") -> Drawn:
    """`way` is seeded, global, constant, unseeded, or made once: one generator for all resets."""
    return Drawn(way)
