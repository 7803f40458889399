"""Plays short episodes on the env on trial, and compares them."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.core.data import Array, Observation
from hocket.testing.findings import Bench, is_close, is_same, require
from hocket.workers.env.spaces import Drive, flatten


class Moment(NamedTuple):
    """What an env gave at one step; `observation` is None where it was not asked."""

    observation: Observation | None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = {}  # noqa: RUF012 - nobody writes to it


class EnvBench(Bench[Any]):
    """Holds the env on trial, and plays the same `steps` actions in every episode."""

    def __init__(self, make: Callable[[], Any], seeds: Sequence[int], steps: int) -> None:
        super().__init__(make)
        self.seeds = tuple(seeds)
        self.steps = steps

    @functools.cached_property
    def actions(self) -> Array:
        return draw_actions(self.held.action_space, self.steps)

    def reset(self, seed: int) -> Observation:
        """Begin an episode as a worker does, global randomness keyed as well."""
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        return read(self.held.reset(seed=seed)[0])

    def play(self, seed: int | None = None, *, looks: int | None = None) -> list[Moment]:
        """A short episode from its reset on, of the first seed by default: by `step`, or by
        `advance` and then `looks` times `observe`."""
        first: Observation | None = self.reset(self.seeds[0] if seed is None else seed)
        if looks is not None:
            first = self._look(looks)
        return [Moment(first), *self.go_on(0, looks)]

    def go_on(self, done: int, looks: int | None = None) -> list[Moment]:
        """The rest of an episode in which `done` actions were executed."""
        moments: list[Moment] = []
        for action in self.actions[done:]:
            if looks is None:
                observation, *turn = self.held.step(action)
                seen: Observation | None = read(observation)
            else:
                turn = self.held.advance(action)
                require(
                    isinstance(turn, tuple) and len(turn) == 4,
                    "advance must return (reward, terminated, truncated, info).",
                )
                seen = self._look(looks)
            reward, terminated, truncated, info = turn
            moments.append(Moment(seen, float(reward), bool(terminated), bool(truncated), info))
            if terminated or truncated:
                break
        return moments

    def _look(self, looks: int) -> Observation | None:
        seen = [read(self.held.observe()) for _ in range(looks)]
        for again in seen[1:]:
            changed = difference(seen[0], again)
            require(changed is None, f"Called twice in a row it gives another {changed}.")
        return seen[0] if seen else None


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
        require(a[2:4] == b[2:4], f"Ends differ at step {step} {when}.")
        if a.observation is not None and b.observation is not None:
            key = difference(a.observation, b.observation, tolerance)
            require(key is None, f"Observations of {key} differ at step {step} {when}.")
    require(len(one) == len(other), f"Lengths {len(one)} and {len(other)} differ {when}.")


def require_one_shape(episodes: Sequence[Sequence[Moment]]) -> None:
    """Every observation must have the keys, shapes and dtypes of the first."""
    shapes = [
        (index, step, {(k, a.shape, a.dtype.str) for k, a in (moment.observation or {}).items()})
        for index, moments in enumerate(episodes)
        for step, moment in enumerate(moments)
    ]
    for index, step, seen in shapes:
        changed = sorted(seen ^ shapes[0][2])
        require(not changed, f"At step {step} of episode {index} {changed[:1]} changed.")
