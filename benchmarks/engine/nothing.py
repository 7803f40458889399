"""An env and a policy that do nothing, so that all that is measured is the machinery."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hocket import PolicySpec
from hocket.core.data import Array, Batch

LENGTH = 400


class Nothing(gymnasium.Env[Any, Any]):
    """Observes a state, and an image where `pixels` is above 0; ends after `length` steps."""

    def __init__(self, *, pixels: int = 0, length: int = LENGTH) -> None:
        self._length = length
        self._step = 0
        parts: dict[str, spaces.Space[Any]] = {
            "observation/state": spaces.Box(-1.0, 1.0, (8,), np.float32)
        }
        self._observation: dict[str, Array] = {"observation/state": np.zeros(8, np.float32)}
        if pixels:
            shape = (pixels, pixels, 3)
            parts["observation/image"] = spaces.Box(0, 255, shape, np.uint8)
            self._observation["observation/image"] = np.zeros(shape, np.uint8)
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Box(-1.0, 1.0, (4,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._step = 0
        return self._observation, {}

    def advance(self, action: Array) -> tuple[float, bool, bool, dict[str, Any]]:
        self._step += 1
        return 0.0, False, self._step >= self._length, {}

    def observe(self) -> Any:
        return self._observation

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated, info = self.advance(action)
        return self.observe(), reward, terminated, truncated, info


def make(pixels: int = 0, length: int = LENGTH) -> Nothing:
    """The env factory: `nothing:make`."""
    return Nothing(pixels=pixels, length=length)


class NoPolicy:
    """Answers zeros, at once."""

    def __init__(self, chunk_length: int = 16, max_batch: int = 64) -> None:
        self.spec = PolicySpec(
            chunk_length=chunk_length, action_size=4, batch_invariant=True, max_batch=max_batch
        )
        self._answer = np.zeros((max_batch, chunk_length, 4))

    def infer(self, batch: Batch) -> Array:
        return self._answer[: batch.size]

    def close(self) -> None:
        """Nothing to close."""
