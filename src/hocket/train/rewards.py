"""What a policy is trained for: a weighted sum of terms, each computed from a recorded episode.

    --reward success                                   1 at the step that ends with success
    --reward env                                       the env's own reward of each step
    --reward success,0.1*env,-0.01*my_rewards:effort   all of these, weighted

A term of your own is a function of a `Stretch`, a whole episode as `algorithms/stretches.py`
documents it: what was seen before each of its C chunks, the actions, how many of them were
executed, the env's rewards, the numbers in its `info`, how it ended, and whether it succeeded. It
returns one number, which is given at the last step, or an array `[C, T]` like `Stretch.rewards`: a
reward for each step, whose entries beyond `executed` are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.data import Array, Trial
from hocket.core.outcomes import SUCCESS_KEYS
from hocket.core.plugins import load_named
from hocket.errors import ConfigError, HocketError
from hocket.train.algorithms.judging import Judge
from hocket.train.algorithms.stretches import Stretch
from hocket.train.data.store import Recorded
from hocket.train.reward_terms import ENV, SUCCESS, RewardTerm, reward_terms


class RewardError(HocketError):
    """A reward function that raised, or returned what is no reward."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rewarded:
    """A stretch with the rewards that are trained for, and what each term gave."""

    stretch: Stretch
    """Without what the env told in `info`: the learner has no use for it."""
    terms: dict[str, float]
    """The weighted sum of each term's rewards, by name."""
    info: dict[str, float]
    """The mean of each number that the env told in `info`, over the steps that told it."""

    def to_curves(self) -> dict[str, float]:
        """What is logged of it: each term of several, and what `info` told beyond the outcome."""
        terms = self.terms if len(self.terms) > 1 else {}
        return {
            **{f"reward/{name}": value for name, value in terms.items()},
            **{f"info/{key}": mean for key, mean in self.info.items() if key not in SUCCESS_KEYS},
        }


class Rewards:
    """The reward of a run."""

    def __init__(self, text: str, named: str = "") -> None:
        """`named`: the class of the policy, which a reward model of the user's own may have too."""
        self._terms = reward_terms(text)
        self._functions: dict[str, Callable[[Stretch], Any]] = {
            term.name: load_named(term.name, "reward function")
            for term in self._terms
            if term.is_function
        } | {term.name: Judge(Path(term.name), named) for term in self._terms if term.is_model}

    @property
    def needs_whole_episodes(self) -> bool:
        """True if a stretch of an episode cannot be rewarded before its end."""
        return bool(self._functions)

    def give(self, stretch: Stretch) -> Rewarded:
        """Replace the env's rewards of a stretch by those that are trained for."""
        total = np.zeros_like(stretch.rewards)
        sums = {}
        for term in self._terms:
            given = term.weight * self._of(term, stretch)
            sums[term.name] = float(given.sum())
            total += given
        return Rewarded(
            stretch=dataclasses.replace(stretch, rewards=total, info={}),
            terms=sums,
            info={
                key: mean for key, told in stretch.info.items() if (mean := _mean(told)) is not None
            },
        )

    def of_recorded(self, one: Recorded, length: int) -> Array:
        """What each step of a recorded episode is worth `[N]`, cut into chunks of this length."""
        if one.rewards is None and any(term.name == ENV for term in self._terms):
            raise RewardError(f"{one.name} has no rewards of the env, which --reward asks for.")
        stretch = _recorded_stretch(one, length)
        rewards = self.give(stretch).stretch.rewards
        return rewards[np.arange(length) < stretch.executed[:, None]]

    def _of(self, term: RewardTerm, stretch: Stretch) -> Array:
        if term.name == ENV:
            return stretch.rewards
        if term.name == SUCCESS:
            if stretch.is_end and stretch.success is None:
                raise ConfigError(
                    f"Task {stretch.trial.task!r} does not tell success, which is a reward. Use "
                    f"--reward env."
                )
            return at_the_end(stretch, float(stretch.is_end and bool(stretch.success)))
        return self._called(term.name, stretch)

    def _called(self, name: str, stretch: Stretch) -> Array:
        try:
            found = np.asarray(self._functions[name](stretch), np.float64)
        except Exception as exc:
            raise RewardError(
                f"The reward function {name!r} raised {type(exc).__name__}: {exc} (in episode "
                f"{stretch.trial.id})."
            ) from exc
        if found.ndim == 0:
            found = at_the_end(stretch, float(found))
        shape = stretch.rewards.shape
        if found.shape != shape:
            raise RewardError(
                f"The reward function {name!r} returned an array {found.shape} for episode "
                f"{stretch.trial.id}; it must return one number, or an array {shape} like "
                f"`Stretch.rewards`."
            )
        counted: Array = np.where(np.arange(shape[1]) < stretch.executed[:, None], found, 0.0)
        if not np.isfinite(counted).all():
            raise RewardError(
                f"The reward function {name!r} returned {counted[~np.isfinite(counted)][0]} for "
                f"episode {stretch.trial.id}: rewards must be finite."
            )
        return counted


def _recorded_stretch(one: Recorded, length: int) -> Stretch:
    """A recorded episode as if chunks of this length had been executed."""
    steps = len(one.actions)
    count = -(-steps // length)
    executed = np.minimum(length, steps - length * np.arange(count))

    def chunks(rows: Array) -> Array:
        padding = [(0, count * length - steps), *[(0, 0)] * (rows.ndim - 1)]
        return np.pad(rows, padding).reshape(count, length, *rows.shape[1:])

    return Stretch(
        trial=Trial(suite="recorded", task=one.name, seed=0),
        attempt=0,
        lane=0,
        observation={key: rows[::length] for key, rows in one.observations.items()},
        actions=chunks(one.actions.astype(np.float32)),
        executed=executed.astype(np.int64),
        rewards=chunks(np.zeros(steps) if one.rewards is None else one.rewards),
        log_prob=np.zeros((count, length), np.float32),
        value=np.zeros(count, np.float32),
        version=np.zeros(count, np.int64),
        chunk=np.arange(count),
        terminated=one.terminated,
        truncated=not one.terminated,
        final={},
        success=one.success,
        prompt=one.prompt,
    )


def at_the_end(stretch: Stretch, reward: float) -> Array:
    """Rewards `[C, T]` that are 0 except at the last executed step."""
    given = np.zeros(stretch.rewards.shape)
    given[-1, int(stretch.executed[-1]) - 1] = reward
    return given


def _mean(told: Array) -> float | None:
    """The mean of what was told; None where nothing was, or nothing finite."""
    known = told[np.isfinite(told)]
    return float(known.mean()) if len(known) else None
