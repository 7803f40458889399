"""Plays short episodes on the env on trial, and compares them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from hocket.core.contracts.env import abilities_of
from hocket.core.data import Array, Observation
from hocket.testing.findings import is_close, is_same, require
from hocket.workers.spaces import Drive, flatten


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """What an env gave at one step; `observation` is None where it was not asked."""

    observation: Observation | None
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Bench:
    """Holds the env on trial, one at a time: two GL contexts in one process give wrong images."""

    def __init__(self, make: Callable[[], Any], seeds: Sequence[int], steps: int) -> None:
        self._make = make
        self._actions: Array | None = None
        self.seeds = tuple(seeds)
        self.steps = steps
        self.env: Any = None

    def fresh(self) -> Any:
        """Another env, the one before closed."""
        self.close()
        self.env = self._make()
        return self.env

    def close(self) -> None:
        """Close the env, if there is one."""
        env, self.env = self.env, None
        if env is not None:
            env.close()

    def has(self, ability: str) -> bool:
        """Whether the env has this ability, as a worker would find it."""
        return ability in abilities_of(self.env)

    @property
    def actions(self) -> Array:
        """The same `steps` actions for every episode, all over the action space."""
        if self._actions is None:
            self._actions = draw_actions(self.env.action_space, self.steps)
        return self._actions

    def reset(self, seed: int) -> Observation:
        """Begin an episode as a worker does, global randomness keyed as well."""
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        return read(self.env.reset(seed=seed)[0])

    def play(self, seed: int) -> list[Moment]:
        """A short episode by `step`, from its reset on."""
        first = Moment(self.reset(seed), 0.0, terminated=False, truncated=False, info={})
        return [first, *self.go_on(0)]

    def go_on(self, done: int) -> list[Moment]:
        """The rest of an episode in which `done` actions were executed."""
        moments: list[Moment] = []
        for action in self.actions[done:]:
            observation, reward, terminated, truncated, info = self.env.step(action)
            moments.append(
                Moment(read(observation), float(reward), bool(terminated), bool(truncated), info)
            )
            if terminated or truncated:
                break
        return moments

    def play_deferred(self, seed: int, *, observe: int) -> list[Moment]:
        """The same episode by `advance`, observed `observe` times at each step; all must agree."""
        self.reset(seed)
        moments = [self._deferred((0.0, False, False, {}), observe)]
        for action in self.actions:
            moment = self._deferred(self.env.advance(action), observe)
            moments.append(moment)
            if moment.terminated or moment.truncated:
                break
        return moments

    def _deferred(self, turn: Any, observe: int) -> Moment:
        require(
            isinstance(turn, tuple) and len(turn) == 4,
            "advance must return (reward, terminated, truncated, info).",
        )
        seen = [read(self.env.observe()) for _ in range(observe)]
        for again in seen[1:]:
            changed = difference(seen[0], again)
            require(changed is None, f"Called twice in a row it gives another {changed}.")
        reward, terminated, truncated, info = turn
        first = seen[0] if seen else None
        return Moment(first, float(reward), bool(terminated), bool(truncated), info)


def draw_actions(space: Any, count: int) -> Array:
    """Actions `[count, ...]` all over an action space, the same at each call."""
    drive = Drive(space)
    low = np.where(np.isfinite(drive.spec.low), drive.spec.low, -1.0).ravel()
    high = np.where(np.isfinite(drive.spec.high), drive.spec.high, 1.0).ravel()
    drawn = np.random.default_rng(0).uniform(size=(count, drive.spec.size))
    return drive.decode(np.ascontiguousarray(low + drawn * (high - low)).tobytes(), count)


def read(raw: Any) -> Observation:
    """The observation as a flat copy: an env may write into what it returned."""
    arrays, _ = flatten(raw)
    return {key: np.array(array) for key, array in arrays.items()}


def difference(one: Observation, other: Observation, tolerance: float = 0.0) -> str | None:
    """The first key whose arrays differ, by more than the tolerance where there is one."""
    for key in sorted(set(one) | set(other)):
        if key not in one or key not in other:
            return repr(key)
        if is_same(one[key], other[key]):
            continue
        if not tolerance or not is_close(one[key], other[key], tolerance):
            return repr(key)
    return None


def require_same(
    one: Sequence[Moment], other: Sequence[Moment], when: str, tolerance: float = 0.0
) -> None:
    """Two episodes must be equal, to the bit or up to a tolerance, as far as both were observed."""
    for step, (a, b) in enumerate(zip(one, other, strict=False)):
        is_equal = a.reward == b.reward or abs(a.reward - b.reward) <= tolerance
        require(is_equal, f"Rewards differ at step {step} {when}.")
        ends = (a.terminated, a.truncated), (b.terminated, b.truncated)
        require(ends[0] == ends[1], f"Ends differ at step {step} {when}.")
        if a.observation is not None and b.observation is not None:
            key = difference(a.observation, b.observation, tolerance)
            require(key is None, f"Observations of {key} differ at step {step} {when}.")
    require(len(one) == len(other), f"Lengths {len(one)} and {len(other)} differ {when}.")


@contextmanager
def kept_randomness() -> Iterator[None]:
    """Leave the caller's global random numbers as they were."""
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
