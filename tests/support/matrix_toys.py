"""One env and one policy of each kind that fit each other, for the matrix of what runs."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hocket.core.specs import PolicySpec

STATE = "observation/state"
STATE_SIZE, ACTION_SIZE, LENGTH = 5, 3, 4


class Point(gymnasium.Env[Any, Any]):
    """Five numbers of state, three of action; succeeds after a few steps, by its seed."""

    observation_space = spaces.Dict({"state": spaces.Box(-9, 9, (STATE_SIZE,), np.float32)})
    action_space = spaces.Box(-1, 1, (ACTION_SIZE,), np.float32)
    max_steps = 12

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = self.np_random.uniform(-1, 1, STATE_SIZE).astype(np.float32)
        self._left = int(self.np_random.integers(5, 9))
        return {"state": self._state}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        moved = 0.1 * np.asarray(action, np.float32)
        self._state = self._state + np.concatenate([moved, np.zeros(2, np.float32)])
        self._left -= 1
        seen = {"state": self._state.astype(np.float32)}
        return seen, -0.1, False, False, {"success": self._left <= 0}


class Steady:
    """A plain policy, without torch: chunks that follow from the state."""

    def __init__(self) -> None:
        self.spec = PolicySpec(chunk_length=LENGTH, action_size=ACTION_SIZE, max_batch=8)

    def infer(self, batch: Any) -> Any:
        state = np.asarray(batch.arrays[STATE], np.float64)
        return np.tanh(state[:, None, :ACTION_SIZE]).repeat(LENGTH, axis=1)

    def close(self) -> None:
        """Nothing is held."""


def module() -> Any:
    """A torch module: arrays by key in, chunks out."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(STATE_SIZE, LENGTH * ACTION_SIZE)

        def forward(self, arrays: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.layer(arrays[STATE].float()).tanh().reshape(-1, LENGTH, ACTION_SIZE)

    torch.manual_seed(0)
    return Module()
