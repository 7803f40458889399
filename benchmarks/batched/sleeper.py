"""A batched simulator and a policy that take time and do nothing else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import gymnasium
import numpy as np

from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Actions, Array, Batch
from hocket.core.specs import PolicySpec, TaskInfo

KEY = "observation/state"


def sleep(seconds: float, since: float | None = None) -> None:
    """Not longer than that, where the machine's own sleep would be by a part of a step; counted
    from `since`, by `time.perf_counter`, for what takes so long in all."""
    now = time.perf_counter()
    end = (now if since is None else since) + seconds
    time.sleep(max(0.0, end - now - 0.002))
    while time.perf_counter() < end:
        time.sleep(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SleeperConfig:
    """What a step costs, and how long each trial's episode is."""

    step_s: float = 0.02
    lengths: tuple[int, ...] = (100,)
    """By seed; seeds beyond the last begin again with the first."""
    reset_s: float = 0.0
    """Seconds of a reset, of however many rows."""


class SleepingRows:
    """Rows that only count. A step of any number of rows takes the same time."""

    suspension = "mask"
    tasks = ("sleep",)

    def __init__(self, rows: int, config: SleeperConfig) -> None:
        self.rows = rows
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (7,), np.float32)
        self._config = config
        self._lengths = np.asarray(config.lengths)
        self._left = np.zeros(rows, np.int64)
        self._seen = np.zeros((rows, 16), np.float32)
        self._nothing = np.zeros(rows)
        self._never = np.zeros(rows, np.bool_)

    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        self._left[rows] = self._lengths[np.asarray(seeds) % len(self._lengths)]
        if self._config.reset_s:
            sleep(self._config.reset_s)

    def step(self, actions: Array, active: Array) -> RowSteps:
        began = time.perf_counter()
        self._left -= active
        steps = RowSteps(self._nothing, self._left <= 0, self._never, None)
        if self._config.step_s:
            sleep(self._config.step_s, began)
        return steps

    def observe(self, rows: Array) -> dict[str, Array]:
        return {KEY: self._seen[rows]}

    def close(self) -> None:
        """Nothing to let go of."""


class Sleepers:
    """The suite."""

    Config: ClassVar = SleeperConfig

    def __init__(self, argument: str, config: SleeperConfig) -> None:
        self._config = config

    def tasks(self) -> list[TaskInfo]:
        return [TaskInfo(name="sleep", prompt="Sleep.")]

    def make_rows(self, task: str, rows: int) -> SleepingRows:
        return SleepingRows(rows, self._config)


class SleepingPolicy:
    """Takes `base_s + row_s * B` for a batch of B."""

    def __init__(
        self, *, base_s: float, row_s: float = 0.0, chunk: int = 16, max_batch: int = 64
    ) -> None:
        self.spec = PolicySpec(chunk_length=chunk, action_size=7, max_batch=max_batch)
        self._base_s, self._row_s = base_s, row_s
        self._chunks = np.zeros((max_batch, chunk, 7), np.float32)

    def infer(self, batch: Batch) -> Actions:
        began = time.perf_counter()
        seconds = self._base_s + self._row_s * batch.size
        actions = Actions(self._chunks[: batch.size])
        if seconds:
            sleep(seconds, began)
        return actions

    def close(self) -> None:
        """Nothing to let go of."""
