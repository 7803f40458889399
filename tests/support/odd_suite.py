"""A suite whose tasks have names, prompts and errors that no one should be shown as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hocket.core.specs import TaskInfo

ESCAPES = "\x1b[31mred\x1b]0;title\x07\r\nnext\x9b2J"
LONG = "x" * 300
WIDE = "\u65e5\u672c" * 150
BROKEN = f"broken {ESCAPES}"
NAMES = ("nul\x00", LONG, f"{LONG}y", WIDE, BROKEN, "<script>alert(1)</script>[bold]x[/bold]")


class Odd(gymnasium.Env[Any, Any]):
    metadata = {"render_modes": [], "render_fps": 5}  # noqa: RUF012
    observation_space = spaces.Box(-9, 9, (2,), np.float64)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, task: str) -> None:
        self._task = task
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._task == BROKEN:
            raise RuntimeError(f"it broke: {ESCAPES}")
        return np.zeros(2), 0.0, False, False, {"success": self._steps == 3}


class OddSuite:
    def tasks(self) -> Sequence[TaskInfo]:
        return [TaskInfo(name=name, prompt=f"do {ESCAPES}", max_steps=4) for name in NAMES]

    def make(self, task: str) -> Odd:
        return Odd(task)
