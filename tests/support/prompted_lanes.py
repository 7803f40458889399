"""Envs that succeed where the policy does what their own prompt says, and policies that read it."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Env, spaces

from hocket.core.data import Actions, Batch
from hocket.core.specs import PolicySpec

ONCE = "TEST_RENDER_FAULTS"
"""Names a folder: each fault happens once, and leaves a file there."""


class Told(Env[Any, Any]):
    """Each seed has a prompt and a colour of its own; the action must name both. Its picture is
    rendered only where somebody looks."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (8, 8, 3), np.uint8), "prompt": spaces.Text(40)}
    )
    action_space = spaces.Box(-1000, 1000, (2,), np.float64)
    max_steps = 6
    _seed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._seed, self._is_right, self._left = seed or 0, True, self.max_steps
        return self.observe(), {}

    def advance(self, action: Any) -> tuple[float, bool, bool, dict[str, Any]]:
        self._left -= 1
        self._is_right &= action.tolist() == [self._seed, self._seed % 250]
        is_over = not self._left
        return 0.0, is_over, False, {"success": is_over and self._is_right}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated, info = self.advance(action)
        return self.observe(), reward, terminated, truncated, info

    def observe(self) -> dict[str, Any]:
        image = np.full((8, 8, 3), self._seed % 250, np.uint8)
        return {"image": image, "prompt": f"go to {self._seed}"}


class BadRenderer(Told):
    """Its renderer ends the process in one episode, and hangs in another, as drivers do."""

    def observe(self) -> dict[str, Any]:
        if self._seed == 1 and _is_first("abort"):
            ctypes.string_at(0)
        if self._seed == 2 and self._left < self.max_steps and _is_first("hang"):
            time.sleep(3600)
        return super().observe()


def _is_first(name: str) -> bool:
    folder = os.environ.get(ONCE)
    if folder is None or (Path(folder) / name).exists():
        return False
    (Path(folder) / name).touch()
    return True


class Reader:
    """Answers each row with the number in its own prompt, and with the colour that it sees."""

    spec = PolicySpec(chunk_length=2, action_size=2, max_batch=8, batch_invariant=True)

    def infer(self, batch: Batch) -> Actions:
        said = [float(row.prompt.split()[-1]) for row in self.rows(batch)]
        seen = batch.arrays["observation/image"][: len(said), 0, 0, 0]
        rows = np.stack([said, seen.astype(float)], axis=1)
        rows = np.concatenate([rows, np.repeat(rows[-1:], batch.pad, axis=0)])
        return Actions(np.repeat(rows[:, None], 2, axis=1))

    def rows(self, batch: Batch) -> Any:
        return batch.rows

    def close(self) -> None:
        """Nothing is held."""


class ReadsTheFirst(Reader):
    """Gives every row the prompt of the first, as others' harnesses did."""

    def rows(self, batch: Batch) -> Any:
        time.sleep(0.05)  # so that the others wait together
        return [batch.rows[0]] * len(batch.rows)
