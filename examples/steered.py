"""A policy that goes to either side, and learns by --steer to go where it should.

`Careless` was recorded where both sides were as good, so that a flow cloned from it goes left or
right as its noise says. Its weights stay as they are; a small policy that chooses the noise sends
it to the side that counts now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import hocket

CHUNK, STEPS = 4, 8


class Corridor(gymnasium.Env[Any, Any]):
    """A point between two ends, one of which it should go to: which, it sees."""

    observation_space = spaces.Box(-2, 2, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, *, both: bool) -> None:
        self._both = both

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._place = self.np_random.uniform(-0.1, 0.1)
        self._side = self.np_random.choice([-1, 1])
        return self._see(), {}

    def step(self, action: Any) -> Any:
        self._place += 0.25 * float(np.clip(action[0], -1, 1))
        is_there, is_right = abs(self._place) > 0.9, self._place * self._side > 0
        won = bool(is_there and (self._both or is_right))
        return self._see(), 0.0, bool(is_there), False, {"success": won}

    def _see(self) -> Any:
        return np.array([self._place, self._side], np.float32)


class Sides:
    """The suite `steered:Sides`."""

    @dataclass(frozen=True)
    class Config:
        both: bool = False
        """Either end is as good."""

    def __init__(self, argument: str, config: Config) -> None:
        self._both = config.both

    def tasks(self) -> Sequence[hocket.TaskInfo]:
        return (hocket.TaskInfo(name="corridor", prompt="go", max_steps=STEPS),)

    def make(self, task: str) -> Corridor:
        return Corridor(both=self._both)


class Careless:
    """Goes to one end or the other, whichever its trial falls on."""

    spec = hocket.PolicySpec(chunk_length=CHUNK, action_size=1)

    def infer(self, batch: Any) -> Any:
        sides = [1.0 if row.trial.seed % 3 else -1.0 for row in batch.rows]
        return np.tile(np.array(sides)[:, None, None], (1, CHUNK, 1))

    def close(self) -> None: ...
