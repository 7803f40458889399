"""An env whose episodes leave about a megabyte that cannot be packed smaller."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEPS, SIZE = 60, 2000


class Heavy(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-9.0, 9.0, (SIZE,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = STEPS
        return self.np_random.uniform(-1, 1, SIZE), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        end = not self._left
        return self.np_random.uniform(-1, 1, SIZE), 1.0, end, False, {"success": end}


def make() -> Heavy:
    return Heavy()
