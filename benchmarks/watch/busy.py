"""An env whose steps cost CPU and whose pictures the policy reads, as a simulator's do."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hocket.core.data import Array, Batch
from hocket.core.specs import PolicySpec

STEP_S, LENGTH, PIXELS = 0.002, 200, 128


class Busy(gymnasium.Env[Any, Any]):
    """Two milliseconds of CPU a step, 200 steps, one camera of 128 pixels."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {"observation/image": spaces.Box(0, 255, (PIXELS, PIXELS, 3), np.uint8)}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        ramp = np.arange(PIXELS, dtype=np.uint8)
        self._image = np.stack(np.broadcast_arrays(ramp, ramp[:, None], ramp[::-1]), axis=-1).copy()
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return {"observation/image": self._image}, {}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        end = time.thread_time() + STEP_S
        while time.thread_time() < end:
            pass
        self._step += 1
        ended = self._step >= LENGTH
        won = bool(self.np_random.integers(2))
        return {"observation/image": self._image}, 0.0, ended, False, {"success": ended and won}


class Looks:
    """A policy that reads the camera and answers with chunks of 16 zeros."""

    def __init__(self) -> None:
        self.spec = PolicySpec(
            chunk_length=16, replan=16, cameras=("observation/image",), batch_invariant=True
        )

    def infer(self, batch: Batch) -> Array:
        return np.zeros((batch.size, 16, 4), np.float32)

    def close(self) -> None: ...
