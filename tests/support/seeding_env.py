"""An env that uses its seed, or does not."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Drawn(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-9.0, 9.0, (2,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    resets: ClassVar[int] = 0

    def __init__(self, way: str, breaks: int) -> None:
        self._way = way
        self._breaks = breaks
        self._is_fresh = False
        """Whether no step was made since the reset."""
        self._touches = 0.0
        self._own = np.random.default_rng(0 if way == "made once" else None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        Drawn.resets += 1
        if Drawn.resets == self._breaks or (self._way == "once" and self._is_fresh):
            raise RuntimeError("This env was told to break.")
        self._is_fresh = True
        if self._way == "global":
            start = np.random.uniform(-1, 1, 2)
        elif self._way == "constant":
            start = np.zeros(2)
        else:
            is_keyed = self._way in ("seeded", "touches")
            start = (self.np_random if is_keyed else self._own).uniform(-1, 1, 2)
            start[1] += self._touches
        return start, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._is_fresh = False
        self._touches = float(self._way == "touches" and action[0] > 0.5)
        return np.zeros(2), 0.0, True, False, {"success": True}


def make(way: str = "seeded", breaks: int = 0) -> Drawn:
    """`way` is seeded, global, constant, unseeded, or made once: one generator for all resets; or
    once: the second of two resets raises; or touches: what the last step of an episode touched, by
    an action above a half, is told at the next reset. So does reset number `breaks`."""
    return Drawn(way, breaks)
