"""An env of which one trial meets what a sink on a full disk meets."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Env, spaces

from hocket.errors import RunFolderError


class FullAt2(Env[Any, Any]):
    observation_space = spaces.Box(0, 1, (1,), np.float64)
    action_space = spaces.Box(-1, 1, (1,), np.float64)
    max_steps = 3
    _seed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._seed = seed or 0
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._seed == 2:
            raise RunFolderError("No space is left for 'x'.")
        return np.zeros(1), 0.0, False, False, {"success": False}
