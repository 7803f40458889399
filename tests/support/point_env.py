"""A point that should reach the origin: learnt in seconds, and a witness of what is done to it."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import hocket

LIMIT = 16


class PointEnv(gymnasium.Env[Any, Any]):
    """Two numbers of state, two of action. Raises when stepped after its end."""

    def __init__(
        self,
        witness: str = "",
        crash_share: float = 0.0,
        step_s: float = 0.0,
        wild: bool = False,
        reward_size: float = 1.0,
    ) -> None:
        self.observation_space = spaces.Dict({"state": spaces.Box(-9, 9, (2,), np.float32)})
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self._witness = witness
        self._crash_share = crash_share
        self._step_s = step_s
        self._wild = wild
        self._reward_size = reward_size
        self._crashes = np.random.default_rng(os.getpid())
        self._place = np.zeros(2)
        self._steps = 0
        self._is_over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        angle = np.random.default_rng(seed).uniform(0, 2 * np.pi)
        if self._wild:
            angle = np.random.uniform(0, 2 * np.pi)
        self._place = 0.6 * np.array([np.cos(angle), np.sin(angle)])
        self._steps, self._is_over = 0, False
        self._write(f"reset {seed}")
        return {"state": self._place.astype(np.float32)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._is_over:
            self._write("stepped on")
            raise RuntimeError("This env has ended and must not be stepped.")
        if self._crash_share and self._crashes.random() < self._crash_share:
            os._exit(7)
        time.sleep(self._step_s)
        self._place = self._place + 0.15 * np.asarray(action, np.float64)
        self._steps += 1
        distance = float(np.linalg.norm(self._place))
        success, late = distance < 0.15, self._steps >= LIMIT
        self._is_over = success or late
        seen = {"state": self._place.astype(np.float32)}
        reward = -0.1 * distance * self._reward_size
        info = {"success": success, "distance": distance, "clock": {"steps": self._steps}}
        return seen, reward, success, late and not success, info

    def _write(self, text: str) -> None:
        if self._witness:
            with open(self._witness, "a") as file:
                file.write(text + "\n")


def make(
    witness: str = "",
    crash_share: float = 0.0,
    step_s: float = 0.0,
    wild: bool = False,
    reward_size: float = 1.0,
) -> PointEnv:
    """What `--env support.point_env:make` builds."""
    return PointEnv(witness, crash_share, step_s, wild, reward_size)


class Homing:
    """Goes straight to the origin, in chunks of four."""

    spec = hocket.PolicySpec(chunk_length=4, action_size=2)

    def infer(self, batch: Any) -> Any:
        home = -batch.arrays["observation/state"] / 0.6
        return home[:, None].clip(-1, 1).repeat(4, axis=1)

    def close(self) -> None: ...
