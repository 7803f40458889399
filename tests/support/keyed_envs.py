"""Envs that observe under other keys than `state`, and say how fast they are controlled in other
ways than `control_rate`."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 7


class Keyed(gymnasium.Env[Any, Any]):
    """Observes numbers that tell the step and the key they are from."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "render_fps": 12}
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    max_steps = LENGTH
    prompt = "reach the goal"

    def __init__(self) -> None:
        self.steps = 0
        seen = self.see()
        self.observation_space = spaces.Dict(
            {key: spaces.Box(0, 1, rows.shape, rows.dtype) for key, rows in seen.items()}
        )

    def see(self) -> dict[str, Any]:
        return {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.see(), 1.0, False, False, {"success": self.steps == LENGTH}


class Pusher(Keyed):
    """As gym_pusht has it: a position and pixels."""

    def see(self) -> dict[str, Any]:
        pixels = np.full((16, 16, 3), 20 * self.steps, np.uint8)
        return {"agent_pos": np.array([self.steps, -self.steps], np.float64), "pixels": pixels}


class Fetcher(Keyed):
    """As gymnasium's robots have it: an observation and two goals."""

    def see(self) -> dict[str, Any]:
        return {
            "observation": np.full(4, self.steps, np.float64),
            "achieved_goal": np.full(3, self.steps + 0.5),
            "desired_goal": np.ones(3),
        }


class Restorable(Pusher):
    """Gives its state away, and yet cannot be observed without a step."""

    def get_state(self) -> Any:
        return np.array([self.steps], np.float64)

    def set_state(self, state: Any) -> None:
        self.steps = int(state[0])


class Strange(Keyed):
    """A state, and beside it arrays of other ranks and kinds."""

    def see(self) -> dict[str, Any]:
        return {
            "state": np.full(2, self.steps, np.float32),
            "robot/matrix": np.full((2, 2), self.steps / 3),
            "count": np.array(self.steps, np.int64),
            "is_open": np.array([self.steps % 2 == 0]),
        }


class Deep(Keyed):
    """A depth, which is neither a picture nor a few numbers."""

    def see(self) -> dict[str, Any]:
        depth = np.full((80, 80, 1), 3.0 + self.steps, np.float32)
        return {"depth": depth, "agent_pos": np.full(2, self.steps, np.float32)}


class Clashing(Keyed):
    def see(self) -> dict[str, Any]:
        return {"goal/x": np.zeros(1), "goal.x": np.zeros(1)}


class Slow(Fetcher):
    """Says the length of a step, and nothing of frames."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    dt = 0.25


class Untimed(Fetcher):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}


class UntimedPusher(Pusher):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}


def make_rows(rows: int) -> Any:
    """Several `Fetcher`s behind one step, for `vector:`."""
    return Rows(rows)


class Rows(gymnasium.vector.SyncVectorEnv):
    def __init__(self, rows: int) -> None:
        mode = gymnasium.vector.AutoresetMode.DISABLED
        super().__init__([Fetcher] * rows, autoreset_mode=mode)

    def get_rows(self, rows: Any) -> Any:
        return np.array([[self.envs[row].unwrapped.steps] for row in rows], np.float64)

    def set_rows(self, rows: Any, states: Any) -> None:
        for row, (steps,) in zip(rows, states, strict=True):
            self.envs[row].unwrapped.steps = int(steps)


class Mortal(Keyed):
    """Kills its process, at a moment that a file in the working directory asks for; the file goes,
    unless it asks to always do so."""

    def __init__(self) -> None:
        super().__init__()
        self._die("init")

    def see(self) -> dict[str, Any]:
        return {"state": np.zeros(2, np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._die("reset")
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._die("step")
        return super().step(action)

    def _die(self, moment: str) -> None:
        if Path("always", moment).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        with contextlib.suppress(FileNotFoundError):
            Path("once", moment).unlink()
            os.kill(os.getpid(), signal.SIGKILL)


class EvenSeeds(Keyed):
    """Succeeds at its first step where the seed is even. Takes names, and makes no use of them."""

    def __init__(self, *, names: tuple[str, ...]) -> None:
        del names
        super().__init__()
        self._is_even = False

    def see(self) -> dict[str, Any]:
        return {"state": np.zeros(2, np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._is_even = not (seed or 0) % 2
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.see(), 1.0, True, False, {"success": self._is_even}
