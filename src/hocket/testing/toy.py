"""Toy envs without a simulator: every number reveals a mix-up, and they misbehave on request.

toy:count      state only; deferred observation and snapshot
toy:image      state and two cameras; deferred observation, snapshot and choice of cameras
toy:pixels     a bare image; observes at every step
toy:plain      as `count`, without any ability
toy:buttons    as `plain`, with a Discrete action space
toy:talk       as `plain`, with its prompt in the observation
"""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hocket.core.data import Array, SuccessRule
from hocket.core.plugins import did_you_mean
from hocket.core.specs import TaskInfo
from hocket.errors import UnknownNameError

_WORD = (1 << 64) - 1
_MIX = 0x9E3779B97F4A7C15
CAMERAS = ("observation/image", "observation/wrist_image")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyConfig:
    """How long toy episodes are, what they cost, and what goes wrong in them.

    Faults named `*_at` happen at that step of an episode (1 is the first; 0 means never).
    """

    length_min: int = 20
    """The trial's seed draws the steps of an episode between this and `length_max`."""
    length_max: int = 60
    max_steps: int | None = None
    """The limit that the task announces."""
    action_size: int = 4
    image_size: int = 32
    success_rule: SuccessRule = "first"
    judged: bool = True
    """Tell success, at the end of an episode: half of them succeed, depending on every action."""
    success_at: int = 0
    """Succeed at every step from this one on, instead."""
    global_randomness: bool = False
    """Mix the global random numbers of numpy into the state."""
    build_s: float = 0.0
    reset_s: float = 0.0
    step_s: float = 0.0
    render_s: float = 0.0
    raise_in_init: bool = False
    raise_at: int = 0
    segfault_at: int = 0
    kill_at: int = 0
    exit_at: int = 0
    hang_at: int = 0
    leak: int = 0
    """Bytes that every step takes and never gives back."""
    drop_key_at: int = 0
    """Observations lack the state from this step on."""
    reshape_at: int = 0
    """The state has one number more from this step on."""
    fault_seed: int | None = None
    """Faults happen only in trials of this seed."""
    once_file: str = ""
    """Faults happen only while this file does not exist; the first one makes it."""


class ToyError(RuntimeError):
    """The error that toys raise on request."""


class PlainToyEnv(gymnasium.Env[Any, Any]):
    """Observes at every step. Its state mixes the seed and every action so far; rewards and
    success follow from the state, so that equal returns mean equal inputs."""

    def __init__(self, task: str, config: ToyConfig) -> None:
        if config.raise_in_init:
            raise ToyError("This toy cannot be built.")
        time.sleep(config.build_s)
        self.config = config
        self.task = task
        self._word = 0
        self._step = 0
        self._length = 0
        self._seed = 0
        self._leaked: list[Array] = []
        size, count = config.image_size, config.action_size
        image = spaces.Box(0, 255, (size, size, 3), np.uint8)
        state = spaces.Box(-1.0, 1.0, (5,), np.float32)
        parts: dict[str, spaces.Space[Any]] = {"state": state}
        if task == "image":
            parts |= dict.fromkeys(CAMERAS, image)
        elif task == "talk":
            parts["prompt"] = spaces.Text(100)
        self.observation_space = image if task == "pixels" else spaces.Dict(parts)
        self.action_space = spaces.Box(-1.0, 1.0, (count,), np.float32)
        if task == "buttons":
            self.action_space = spaces.Discrete(5)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        time.sleep(self.config.reset_s)
        self._seed = seed or 0
        self._word = (self._seed * _MIX + zlib.crc32(self.task.encode())) & _WORD
        span = self.config.length_max - self.config.length_min + 1
        self._length = self.config.length_min + (self._word >> 20) % span
        self._step = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated, info = self._move(action)
        return self._look(), reward, terminated, truncated, info

    def _move(self, action: Any) -> tuple[float, bool, bool, dict[str, Any]]:
        config = self.config
        self._step += 1
        if config.step_s:
            time.sleep(config.step_s)
        self._misbehave()
        data = np.asarray(action).tobytes()
        if config.global_randomness:
            data += np.random.random(1).tobytes()
        self._word = ((self._word ^ zlib.crc32(data)) * _MIX + self._step) & _WORD
        self._word ^= self._word >> 29
        terminated = self._step >= self._length
        info: dict[str, Any] = {}
        if config.success_at:
            info["success"] = self._step >= config.success_at
        elif config.judged:
            info["success"] = terminated and bool(self._word >> 40 & 1)
        return (self._word >> 11) / (1 << 53), terminated, False, info

    def _look(self) -> Any:
        numbers = np.frombuffer(self._word.to_bytes(8, "little"), np.uint16)
        state = np.empty(5, np.float32)
        state[:4] = numbers / 32767.5 - 1.0
        state[4] = self._step / 1000.0
        if self.task == "pixels":
            return self._picture(0)
        found: dict[str, Any] = {"state": state}
        if self._due(self.config.reshape_at, is_from=True):
            found["state"] = np.append(state, np.float32(0.0))
        if self._due(self.config.drop_key_at, is_from=True):
            del found["state"]
        if self.task == "talk":
            found["prompt"] = f"count from {self._seed}"
        return found

    def _picture(self, camera: int) -> Array:
        time.sleep(self.config.render_s)
        size = self.config.image_size
        data = np.frombuffer((self._word ^ camera).to_bytes(8, "little"), np.uint8)
        return np.resize(data, (size, size, 3))

    def _due(self, at: int, *, is_from: bool = False) -> bool:
        """True if a fault set for a step happens now."""
        if not at or not (self._step == at or (is_from and self._step > at)):
            return False
        config = self.config
        if config.fault_seed is not None and config.fault_seed != self._seed:
            return False
        if config.once_file:
            try:
                os.close(os.open(config.once_file, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
        return True

    def _misbehave(self) -> None:
        config = self.config
        if config.leak:
            self._leaked.append(np.ones(config.leak, np.uint8))
        if self._due(config.raise_at):
            raise ToyError(f"This toy broke at step {self._step}.")
        if self._due(config.segfault_at):
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._due(config.kill_at):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._due(config.exit_at):
            os._exit(3)
        if self._due(config.hang_at):
            time.sleep(3600)


class ToyEnv(PlainToyEnv):
    """A toy that can defer its observation and give its state away."""

    def advance(self, action: Any) -> tuple[float, bool, bool, dict[str, Any]]:
        return self._move(action)

    def observe(self) -> Any:
        return self._look()

    def get_state(self) -> Array:
        low, high = self._word & 0xFFFFFFFF, self._word >> 32
        return np.array([low, high, self._step, self._length, self._seed], np.float64)

    def set_state(self, state: Array) -> None:
        low, high, self._step, self._length, self._seed = (int(value) for value in state)
        self._word = high << 32 | low


class CameraToyEnv(ToyEnv):
    """A toy with two cameras, which renders those that are asked for."""

    def __init__(self, task: str, config: ToyConfig) -> None:
        super().__init__(task, config)
        self._shown: tuple[str, ...] = CAMERAS
        self.pictures = 0
        """How many pictures were rendered so far."""

    @property
    def camera_keys(self) -> tuple[str, ...]:
        return CAMERAS

    def use_cameras(self, keys: Collection[str]) -> None:
        self._shown = tuple(key for key in CAMERAS if key in keys)

    def _look(self) -> Any:
        found = super()._look()
        for key in self._shown:
            found[key] = self._picture(CAMERAS.index(key))
            self.pictures += 1
        return found


_ENVS: dict[str, type[PlainToyEnv]] = {
    "count": ToyEnv,
    "image": CameraToyEnv,
    "pixels": PlainToyEnv,
    "plain": PlainToyEnv,
    "buttons": PlainToyEnv,
    "talk": PlainToyEnv,
}


class ToySuite:
    """All toys, or the one that is named."""

    Config = ToyConfig
    preload = ("hocket.testing.toy",)

    def __init__(self, argument: str = "", config: ToyConfig | None = None) -> None:
        if argument and argument not in _ENVS:
            raise UnknownNameError(
                f"There is no toy called {argument!r}.{did_you_mean(argument, _ENVS)} Known: "
                f"{', '.join(_ENVS)}."
            )
        self._config = config or ToyConfig()
        self._names = (argument,) if argument else tuple(_ENVS)

    def tasks(self) -> Sequence[TaskInfo]:
        config = self._config
        return [
            TaskInfo(
                name=name,
                prompt=f"play {name}",
                max_steps=config.max_steps,
                control_rate=20.0,
                success_rule=config.success_rule,
            )
            for name in self._names
        ]

    def make(self, task: str) -> PlainToyEnv:
        return _ENVS[task](task, self._config)
