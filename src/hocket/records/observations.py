"""A sink for what an env observes beside its pictures, where an episode is shown again.

It is built in workers, so it imports nothing that is slow or large.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hocket.core.contracts.recorder import AttemptStart, SinkNeeds, StepRecord
from hocket.core.data import Array, Outcome
from hocket.errors import ObservationError
from hocket.records.video.pictures import cameras_in

SINK = "hocket.records.observations:ObservationSink"
"""The name by which workers build this sink."""
FILE = "observations.npz"
"""Holds an array `[steps + 1, ...]` for each key, row 0 at the reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationConfig:
    """This sink has nothing to set."""


class ObservationSink:
    """Keeps every array of every observation that is no picture."""

    Config = ObservationConfig

    def __init__(self, argument: str = "", config: ObservationConfig | None = None) -> None:
        del argument, config

    @property
    def needs(self) -> SinkNeeds:
        """Observations of every step; no camera."""
        return SinkNeeds(observations=True)

    def open(self, start: AttemptStart) -> ObservationTrack:
        return ObservationTrack(os.path.join(start.folder, FILE))


class ObservationTrack:
    """One attempt's observations, in memory until it is sealed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rows: dict[str, list[Array]] = {}

    def step(self, record: StepRecord) -> None:
        found = record.observation or {}
        if record.step == 0:
            pictures = cameras_in(found)
            self._rows = {key: [] for key in sorted(found) if key not in pictures}
        for key, rows in self._rows.items():
            if key not in found or (rows and found[key].shape != rows[0].shape):
                raise ObservationError(
                    f"{key!r} is missing or changed its shape at step {record.step}."
                )
            rows.append(np.array(found[key]))

    def seal(self, outcome: Outcome) -> Sequence[str]:
        if not self._rows:
            return ()
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with open(self._path, "wb") as file:
            arrays = {key: np.stack(rows) for key, rows in self._rows.items()}
            np.savez(file, allow_pickle=False, **arrays)
        return [self._path]

    def discard(self) -> None:
        """Forget the observations: nothing is on disk before `seal`."""
        self._rows = {}
