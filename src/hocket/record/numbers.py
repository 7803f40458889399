"""A sink for the numbers of every step: one .npz file for each attempt."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hocket.contracts import AttemptStart, SinkNeeds, StepRecord, Track
from hocket.data import Array, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class NumbersConfig:
    """Settings of the numbers sink."""

    file: str = "numbers.npz"
    """Its name in the attempt's folder."""


class NumbersSink:
    """Keeps action, reward, terminated, truncated, chunk and age of every executed step."""

    Config = NumbersConfig

    def __init__(self, argument: str = "", config: NumbersConfig | None = None) -> None:
        del argument
        self._config = config or NumbersConfig()

    @property
    def needs(self) -> SinkNeeds:
        """No more than there is anyway."""
        return SinkNeeds()

    def open(self, start: AttemptStart) -> Track:
        """Begin an attempt's file, in memory."""
        return NumbersTrack(os.path.join(start.folder, self._config.file))


class NumbersTrack:
    """One attempt's numbers, written when it ends: whole, or not at all."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._steps: list[StepRecord] = []

    def step(self, record: StepRecord) -> None:
        """Keep one step; the reset has no numbers."""
        if record.action is not None:
            self._steps.append(record)

    def seal(self, outcome: Outcome) -> Sequence[str]:
        """Write under a temporary name, flush to disk, rename."""
        folder = os.path.dirname(self._path)
        os.makedirs(folder, exist_ok=True)
        temporary = f"{self._path}.partial"
        with open(temporary, "wb") as file:
            np.savez(file, allow_pickle=False, outcome=np.array(outcome.value), **self._columns())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return [self._path]

    def discard(self) -> None:
        """Nothing is on disk before `seal`."""
        self._steps.clear()

    def _columns(self) -> dict[str, Array]:
        steps = self._steps
        return {
            "action": np.array([step.action for step in steps]),
            "reward": np.array([step.reward for step in steps], np.float64),
            "terminated": np.array([step.terminated for step in steps], np.bool_),
            "truncated": np.array([step.truncated for step in steps], np.bool_),
            "chunk": np.array([step.chunk for step in steps], np.int64),
            "age": np.array([step.age for step in steps], np.int64),
        }
