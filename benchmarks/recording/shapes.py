"""An env with two cameras that are cheap to draw and look like a scene: smooth, moving, grainy."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hocket.core.data import Array


class Shapes(gymnasium.Env[Any, Any]):
    """Two discs move before a shaded wall; an episode takes `steps` and a little, by its seed."""

    def __init__(self, *, pixels: int = 128, steps: int = 100) -> None:
        self._pixels = pixels
        self._steps = steps
        image = spaces.Box(0, 255, (pixels, pixels, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {
                "observation/image": image,
                "observation/wrist_image": image,
                "observation/state": spaces.Box(-10, 10, (8,), np.float32),
            }
        )
        self.action_space = spaces.Box(-1, 1, (7,), np.float32)
        self._state = np.zeros(8)
        self._left = 0
        rows, columns = np.mgrid[0 : 1 : pixels * 1j, 0 : 1 : pixels * 1j]
        self._rows, self._columns = rows, columns
        wall = np.stack([60 + 120 * rows, 90 + 60 * columns, 140 - 80 * rows], axis=-1)
        grain = np.random.default_rng(0).normal(0, 3, (4, pixels, pixels, 1))
        self._walls = wall + grain

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._state = self.np_random.uniform(0.2, 0.8, 8)
        self._left = self._steps + int(self.np_random.integers(-10, 11))
        return self._look(), {}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._state[:7] = np.clip(self._state[:7] + 0.02 * np.asarray(action), 0, 1)
        self._left -= 1
        is_over = self._left <= 0
        return self._look(), float(-self._state[0]), is_over, False, {"success": is_over}

    def _look(self) -> dict[str, Array]:
        return {
            "observation/image": self._draw(self._state[0:4]),
            "observation/wrist_image": self._draw(self._state[3:7]),
            "observation/state": self._state.astype(np.float32),
        }

    def _draw(self, places: Array) -> Array:
        picture = self._walls[self._left % 4].copy()
        for (x, y), colour in ((places[:2], (220, 40, 40)), (places[2:], (30, 200, 90))):
            inside = (self._rows - x) ** 2 + (self._columns - y) ** 2 < 0.01
            picture[inside] = colour
        return np.clip(picture, 0, 255).astype(np.uint8)
