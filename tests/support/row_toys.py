"""Batched toys without physics: every number of a row reveals a mix-up, and they misbehave on
request. A row's state mixes the seed and every action so far, as a 64-bit word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import gymnasium
import numpy as np

from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Actions, Array, Batch, SuccessRule
from hocket.core.specs import PolicySpec, TaskInfo
from hocket.workers.rows.suspendable import Suspendable

_MIX = np.uint64(0x9E3779B97F4A7C15)
KEY = "observation/state"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowToyConfig:
    """How long episodes are, how rows are suspended, and what goes wrong."""

    length_min: int = 5
    length_max: int = 40
    max_steps: int | None = None
    success_rule: SuccessRule = "first"
    judged: bool = True
    way: str = "mask"
    """`mask`, `snapshot`, or `none`."""
    apart: bool = False
    """A simulator of its own for each task."""
    raise_at: int = 0
    """The first simulator that is made raises in its step of this number."""
    drifts: bool = False
    """Each reset is another, whatever its seed."""


class RowToy:
    """Steps the rows in the mask, and counts what it did to whom."""

    suspension = "mask"

    def __init__(self, rows: int, tasks: Sequence[str], config: RowToyConfig) -> None:
        self.rows = rows
        self.tasks = tuple(tasks)
        self.config = config
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.word = np.zeros(rows, np.uint64)
        self.clock = np.zeros(rows, np.int64)
        self.length = np.ones(rows, np.int64)
        self.steps = 0
        self.resets = 0
        self.is_closed = False

    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        salt = np.array([len(task) for task in tasks], np.uint64)
        self.resets += self.config.drifts
        word = (np.asarray(seeds, np.uint64) + salt + np.uint64(self.resets)) * _MIX
        span = self.config.length_max - self.config.length_min + 1
        self.word[rows] = word
        self.length[rows] = self.config.length_min + (word >> np.uint64(40)).astype(int) % span
        self.clock[rows] = 0

    def step(self, actions: Array, active: Array) -> RowSteps:
        return self.move(actions, np.flatnonzero(active))

    def move(self, actions: Array, rows: Array) -> RowSteps:
        self.steps += 1
        if self.steps == self.config.raise_at:
            raise RuntimeError("This toy was told to raise.")
        parts = np.ascontiguousarray(actions[rows], np.float32).view(np.uint32).astype(np.uint64)
        word = self.word[rows]
        for part in parts.T:
            word = (word ^ part) * _MIX
            word ^= word >> np.uint64(29)
        self.word[rows] = word
        self.clock[rows] += 1
        rewards = (self.word >> np.uint64(11)) / float(1 << 53)
        terminated = self.clock >= self.length
        success = terminated & ((self.word >> np.uint64(40)) % np.uint64(2) == 1)
        none = np.zeros(self.rows, np.bool_)
        told = {"clock/steps": self.clock.copy()}
        return RowSteps(rewards, terminated, none, success if self.config.judged else None, told)

    def observe(self, rows: Array) -> dict[str, Array]:
        numbers = self.word[rows].view(np.uint16).reshape(-1, 4) / 65535
        return {KEY: np.concatenate([numbers, self.clock[rows, None] / 100], 1).astype(np.float32)}

    def get_rows(self, rows: Array) -> Array:
        words = self.word[rows].view(np.uint32).reshape(-1, 2)
        return np.concatenate([words, self.clock[rows, None], self.length[rows, None]], 1)

    def set_rows(self, rows: Array, states: Array) -> None:
        halves = np.ascontiguousarray(states[:, :2].astype(np.uint32))
        self.word[rows] = halves.view(np.uint64)[:, 0]
        self.clock[rows], self.length[rows] = states[:, 2], states[:, 3]

    def close(self) -> None:
        self.is_closed = True


class LockstepToy(RowToy):
    """Moves every row at every step, whatever the mask says."""

    suspension = "none"

    def step(self, actions: Array, active: Array | None = None) -> RowSteps:
        return self.move(actions, np.arange(self.rows))


class StubbornToy(LockstepToy):
    """Cannot give its rows back either."""

    get_rows = None  # type: ignore[assignment]
    set_rows = None  # type: ignore[assignment]


class RowToys:
    """A batched suite of two tasks."""

    Config: ClassVar = RowToyConfig
    made: ClassVar[list[RowToy]] = []

    def __init__(self, argument: str, config: RowToyConfig) -> None:
        self._config = config

    def tasks(self) -> list[TaskInfo]:
        return [
            TaskInfo(
                name=name,
                prompt=f"do {name}",
                max_steps=self._config.max_steps,
                success_rule=self._config.success_rule,
            )
            for name in ("walk", "run")
        ]

    def make_rows(self, task: str, rows: int) -> Any:
        kinds = {"mask": RowToy, "snapshot": LockstepToy, "none": StubbornToy}
        tasks = (task,) if self._config.apart else ("walk", "run")
        config = replace(self._config, raise_at=0) if RowToys.made else self._config
        toy = kinds[self._config.way](rows, tasks, config)
        RowToys.made.append(toy)
        return toy if toy.suspension == "mask" else Suspendable(toy)


class Echo:
    """Actions that follow from every number observed, and from the row's noise seed."""

    def __init__(self, *, length: int = 4, max_batch: int = 8, history: int = 1) -> None:
        self.spec = PolicySpec(
            chunk_length=length,
            action_size=3,
            max_batch=max_batch,
            history=history,
            batch_invariant=True,
        )
        self.seen: list[tuple[str, int]] = []

    def infer(self, batch: Batch) -> Actions:
        state = batch.arrays[KEY].astype(np.float64).reshape(batch.size, -1)
        self.seen += [(row.trial.id, row.chunk) for row in batch.rows]
        seeds = [row.noise_seed % 1000 for row in batch.rows]
        seeds += seeds[-1:] * batch.pad
        total = np.array([float(sum(row.tolist())) for row in state]) + np.array(seeds)
        steps = np.arange(self.spec.chunk_length * 3, dtype=np.float64)
        return Actions(np.sin(total[:, None] + steps).reshape(batch.size, -1, 3))

    def close(self) -> None:
        """Nothing to let go of."""
