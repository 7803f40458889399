"""Envs that pay at every step, and rows of them in one process, for `against_sb3.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

_DT = 0.1


class Inertia(gymnasium.Env[Any, Any]):
    """A point that is pushed, glides on, and is paid for being near a place that is drawn."""

    observation_space = spaces.Box(-20, 20, (6,), np.float64)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = np.concatenate([self.np_random.uniform(-1, 1, 2), np.zeros(2)])
        self.goal = self.np_random.uniform(-1, 1, 2)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        push = np.clip(action, -1, 1)
        speed = 0.98 * self.state[2:] + _DT * push
        self.state = np.concatenate([np.clip(self.state[:2] + _DT * speed, -3, 3), speed])
        off = self.state[:2] - self.goal
        reward = -np.linalg.norm(off) - 0.01 * np.square(push).sum()
        return self._seen(), float(reward), False, False, {}

    def _seen(self) -> Any:
        return np.concatenate([self.state, self.goal])

    def get(self) -> Any:
        return np.concatenate([self.state, self.goal])

    def set(self, saved: Any) -> None:
        self.state, self.goal = saved[:4].copy(), saved[4:6].copy()


class Hover(gymnasium.Env[Any, Any]):
    """A rod with a rotor at each end, seen from the side: it is paid for staying up and near the
    middle, and what falls or turns over has crashed."""

    observation_space = spaces.Box(-50, 50, (6,), np.float64)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1, 1, 6) * (1, 1, 0.3, 0.5, 0.5, 0.5)
        return self.state.copy(), {}

    def step(self, action: Any) -> Any:
        left, right = 0.5 * 9.81 * (1 + 0.6 * np.clip(action, -1, 1))
        x, y, angle, dx, dy, spin = self.state
        lift = left + right
        speed = np.array([-lift * np.sin(angle), lift * np.cos(angle) - 9.81, 2.0 * (right - left)])
        moved = np.array([dx, dy, spin]) + 0.05 * speed
        self.state = np.concatenate([np.array([x, y, angle]) + 0.05 * moved, moved])
        has_crashed = bool(np.abs(self.state[:2]).max() > 3 or abs(self.state[2]) > 1.5)
        reward = 1.0 - 0.3 * np.linalg.norm(self.state[:2]) - 0.1 * abs(self.state[2])
        return self.state.copy(), float(reward), has_crashed, False, {}

    def get(self) -> Any:
        return self.state.copy()

    def set(self, saved: Any) -> None:
        self.state = saved[:6].copy()


OWN: dict[str, tuple[type, int]] = {"inertia": (Inertia, 100), "hover": (Hover, 200)}
"""Each with the steps after which it is cut."""


def make(name: str) -> gymnasium.Env[Any, Any]:
    """One env, cut after as many steps as it has."""
    if name not in OWN:
        return gymnasium.make(name)
    kind, steps = OWN[name]
    return gymnasium.wrappers.TimeLimit(kind(), steps)


def steps_of(name: str) -> int:
    if name in OWN:
        return OWN[name][1]
    limit = gymnasium.spec(name).max_episode_steps
    assert limit
    return limit


def __getattr__(name: str) -> Callable[[int], Rows]:
    """What makes rows of the env of this name, as `vector:dense_envs:NAME` asks for it."""
    if name.startswith("_"):
        raise AttributeError(name)
    return functools.partial(Rows, name=name.replace("_", "-"))


class Rows(SyncVectorEnv):
    """Envs of one name side by side, whose rows can be suspended."""

    def __init__(self, rows: int, *, name: str) -> None:
        makers: list[Callable[[], Any]] = [lambda: make(name)] * rows
        super().__init__(makers, autoreset_mode=AutoresetMode.DISABLED)

    def get_rows(self, rows: Sequence[int]) -> Any:
        return np.array([_state(self.envs[row]) for row in rows])

    def set_rows(self, rows: Sequence[int], states: Any) -> None:
        for row, state in zip(rows, states, strict=True):
            _restore(self.envs[row], state)


_ALL = mujoco.mjtState.mjSTATE_INTEGRATION


def _state(env: Any) -> Any:
    plain = env.unwrapped
    if hasattr(plain, "get"):
        return np.append(plain.get(), _clock(env)._elapsed_steps)
    size = mujoco.mj_stateSize(plain.model, _ALL)
    found = np.empty(size)
    mujoco.mj_getState(plain.model, plain.data, found, _ALL)
    return np.append(found, _clock(env)._elapsed_steps)


def _restore(env: Any, state: Any) -> None:
    plain = env.unwrapped
    _clock(env)._elapsed_steps = int(state[-1])
    if hasattr(plain, "set"):
        plain.set(state)
        return
    mujoco.mj_setState(plain.model, plain.data, state[:-1].copy(), _ALL)
    mujoco.mj_forward(plain.model, plain.data)


def _clock(env: Any) -> Any:
    while not hasattr(env, "_elapsed_steps"):
        env = env.env
    return env
