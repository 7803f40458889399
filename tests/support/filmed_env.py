"""An env that can only be filmed while it runs: a dot walks to the right, a step at a time."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

from hocket.core.data import Array


class Walk(gymnasium.Env[Any, Any]):
    """`steps` steps of `step_s` seconds each. That of `raise_seed` raises half-way."""

    metadata = {"render_fps": 20}  # noqa: RUF012 - gymnasium's form

    def __init__(
        self, steps: int = 40, step_s: float = 0.0, size: int = 64, raise_seed: int = -1
    ) -> None:
        self.observation_space = gymnasium.spaces.Dict(
            {
                "image": gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8),
                "state": gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float32),
            }
        )
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self._steps, self._step_s, self._size = steps, step_s, size
        self._at, self._seed, self._raise_seed = 0, 0, raise_seed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._seed = 0, seed or 0
        return self._see(), {}

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        self._at += 1
        if self._seed == self._raise_seed and self._at == self._steps // 2:
            raise RuntimeError("The dot fell.")
        is_over = self._at >= self._steps
        won = is_over and int(self.np_random.integers(3)) > 0
        return self._see(), 0.0, is_over, False, {"success": won}

    def _see(self) -> dict[str, Array]:
        image = np.full((self._size, self._size, 3), 30, np.uint8)
        x = 4 + self._at * (self._size - 12) // max(1, self._steps)
        image[self._size // 2 : self._size // 2 + 8, x : x + 8] = (240, 160, 60)
        image[:4, : self._at % self._size] = 200
        return {"image": image, "state": np.array([self._at], np.float32)}
