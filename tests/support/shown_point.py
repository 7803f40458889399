"""The point of `point_env`, with a picture of where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from support.point_env import PointEnv

SIZE = 64


class ShownPoint(PointEnv):
    def __init__(self) -> None:
        super().__init__()
        picture = spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        self.observation_space = spaces.Dict({"image": picture, **self.observation_space.spaces})

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        seen, info = super().reset(**settings)
        return self._shown(seen), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, *rest = super().step(action)
        return self._shown(seen), *rest

    def _shown(self, seen: dict[str, Any]) -> dict[str, Any]:
        picture = np.full((SIZE, SIZE, 3), 40, np.uint8)
        x, y = np.clip(SIZE // 2 + 16 * seen["state"], 0, SIZE - 8).astype(int)
        picture[y : y + 8, x : x + 8] = (250, 160, 20)
        return {"image": picture, **seen}
