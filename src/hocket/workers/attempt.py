"""One try at a trial, as the worker keeps it: steps, limit, success."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from hocket.core.data import Outcome, TaskInfo, Trial, noise_seed
from hocket.core.wire import END_JUDGED, END_SUCCESS, END_TERMINATED, END_TRUNCATED

_SUCCESS_KEYS = ("success", "is_success")


class Attempt:
    """Counts steps and decides at each whether the episode ends there, and how. `number` is the
    attempt's number, from 0 for each trial."""

    def __init__(
        self, trial: Trial, number: int, task: TaskInfo, *, max_steps: int, final: bool
    ) -> None:
        self.trial = trial
        self.number = number
        self.task = task
        self.final_observation = final
        self.steps = 0
        self.ends = 0
        self.success: bool | None = None
        """Success at the last step; None where the env did not say."""
        self._limit = max_steps or task.max_steps
        self._judged = False
        self._won = False

    def judge(self, info: Mapping[str, Any], *, terminated: bool, truncated: bool) -> int:
        """Count one step; flags `END_*` where the episode ends at it, else 0."""
        self.steps += 1
        self.success = _success(info)
        rule = self.task.success_rule
        if self.success is not None:
            self._judged = True
            self._won = self.success or (self._won and rule != "final")
            if self.success and rule == "first":
                terminated = True
        elif rule == "final":
            self._won = False
        if self._limit and self.steps >= self._limit and not terminated:
            truncated = True
        if not (terminated or truncated):
            return 0
        self.ends = (
            END_TERMINATED * terminated
            | END_TRUNCATED * truncated
            | END_JUDGED * self._judged
            | END_SUCCESS * self._won
        )
        return self.ends

    @property
    def outcome(self) -> Outcome:
        """The outcome of an attempt that has ended."""
        if not self._judged:
            return Outcome.FINISHED
        return Outcome.SUCCESS if self._won else Outcome.FAILURE


def seed_globals(trial: Trial) -> None:
    """Seed the global random numbers, which some envs use, with the trial alone."""
    seed = noise_seed(trial, -1)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def _success(info: Mapping[str, Any]) -> bool | None:
    for key in _SUCCESS_KEYS:
        if key in info:
            return bool(np.any(info[key]))
    return None
