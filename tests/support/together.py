"""A batched simulator whose rows cannot wait for each other, and that raises where one had to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import gymnasium
import numpy as np

from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Array
from hocket.core.specs import TaskInfo


class Rows:
    suspension = "together"
    tasks = ("walk",)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.steps, self.ends_at = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.is_live = np.zeros(rows, np.bool_)

    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        del tasks
        assert not self.is_live[np.setdiff1d(np.arange(self.rows), rows)].any(), "disturbed"
        self.steps[rows], self.is_live[rows] = 0, True
        self.ends_at[rows] = 3 + np.array(seeds) % 7

    def step(self, actions: Array, active: Array) -> RowSteps:
        del actions
        assert (active == self.is_live).all(), f"{active} moved of {self.is_live}"
        self.steps += active
        ended = active & (self.steps >= self.ends_at)
        self.is_live &= ~ended
        return RowSteps(self.steps.astype(np.float64), ended, np.zeros(self.rows, np.bool_), ended)

    def observe(self, rows: Array) -> Mapping[str, Array]:
        return {"observation/state": self.steps[rows, None].astype(np.float64)}

    def close(self) -> None: ...


class Together:
    def tasks(self) -> Sequence[TaskInfo]:
        return [TaskInfo(name="walk", max_steps=20)]

    def make_rows(self, task: str, rows: int) -> Rows:
        del task
        return Rows(rows)
