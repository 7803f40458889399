"""The simulator's states at every step, from which an episode can be shown and checked again, and
what its env observes where it is shown again.

`StatesSink` leaves one file for each attempt, which `records/step_rows.py` puts into a table
as it is. Like that of steps it needs no fsync. Most numbers of a state never change in an episode
(how the scene was laid out, what does not move): they are kept once, the others for every step, as
they are. For MetaWorld that is a quarter of the size at next to no cost.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from hocket.core.contracts.recorder import (
    EVIDENCE,
    IMAGES,
    RESTORED,
    ROWS,
    VIDEO,
    AttemptStart,
    SinkNeeds,
    StepRecord,
    Track,
)
from hocket.core.data import Array, Outcome
from hocket.core.specs import TaskInfo
from hocket.errors import EnvError, ObservationError, RunFolderError
from hocket.system.durable import drafted
from hocket.workers.sinks.pictures import cameras_in
from hocket.workers.sinks.spill import NoTrack, Spill, leave_rows

ROWS_FILE = f"states{ROWS}"
"""What an attempt leaves that becomes an episode; holds what FILE does."""
FILE = "states.npz"
"""What an attempt leaves that is lost. Holds three arrays: `first`
`[S]` is the state at the reset, `varies` `[S]` marks the numbers that change, and `values`
`[steps + 1, V]` has those at every step. Numbers are float64."""
OBSERVATIONS_FILE = "observations.npz"
"""Holds an array `[steps + 1, ...]` for each key, row 0 at the reset."""
_UNREADABLE = (OSError, ValueError, LookupError, EOFError, TypeError, RuntimeError, BadZipFile)
"""What reading a damaged file of numpy's raises; the numbers themselves have a checksum in it."""
OBSERVATION_SINK = "hocket.workers.sinks.states:ObservationSink"
"""The name by which workers build this sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesConfig:
    """Which attempts have their states kept."""

    only_with_video: bool = False
    """Keep them only for attempts that a video or pictures were asked for."""


class StatesSink:
    """Keeps the simulator's state after every step, where the env has the snapshot ability."""

    Config = StatesConfig
    files = (ROWS_FILE, FILE)

    def __init__(self, argument: str = "", config: StatesConfig | None = None) -> None:
        del argument
        self._config = config or StatesConfig()
        self.needs = SinkNeeds(states=not self._config.only_with_video)

    def needs_of(
        self, task: TaskInfo, record: Mapping[str, Any], abilities: Collection[str]
    ) -> SinkNeeds:
        del task, abilities
        return SinkNeeds(states=self._keeps(record))

    def open(self, start: AttemptStart) -> Track:
        if not self._keeps(start.record):
            return NoTrack()
        spills = bool(start.record.get(EVIDENCE))
        return StatesTrack(Path(start.folder), spills=spills, rows=start.rows)

    def _keeps(self, record: Mapping[str, Any]) -> bool:
        if record.get(RESTORED):
            return False
        has_video = bool(record.get(VIDEO) or record.get(IMAGES))
        return not self._config.only_with_video or has_video


class StatesTrack:
    """One attempt's states, in memory until it is sealed."""

    is_brief = True

    def __init__(
        self, folder: Path, *, spills: bool = False, rows: dict[str, bytes] | None = None
    ) -> None:
        """One that `spills` leaves its states also where its process dies."""
        self._folder = folder
        self._rows = rows
        self._states: list[Array] = []
        self._spill = Spill(folder, FILE, is_on=spills)
        self._spilled = 0

    def step(self, record: StepRecord) -> None:
        if record.state is None:
            return
        if self._states and record.state.shape != self._states[0].shape:
            raise EnvError(
                f"The simulator's state changed its size from {self._states[0].shape} to "
                f"{record.state.shape} at step {record.step}."
            )
        self._states.append(record.state)
        if self._spill.is_due:
            self._spill.write([np.stack(self._states[self._spilled :])])
            self._spilled = len(self._states)

    def seal(self, outcome: Outcome) -> Sequence[str]:
        if not self._states:
            return ()
        states = np.stack(self._states)
        if outcome is Outcome.ERROR:
            save_states(self._folder / FILE, states)
            files = [str(self._folder / FILE)]
        else:
            files = leave_rows(self._folder / ROWS_FILE, _packed(states), self._rows)
        self._spill.close()
        return files

    def discard(self) -> None:
        self._states = []
        self._spill.close()


def save_states(path: Path, states: Array) -> None:
    """Write states `[n, S]`, durably."""
    with drafted(path) as draft:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(_packed(states))


def _packed(states: Array) -> bytes:
    states = np.ascontiguousarray(states, np.float64)
    # Compared as bits: a NaN is as constant as any number, and 0.0 is not -0.0.
    bits = states.view(np.uint64)
    varies = (bits != bits[0]).any(axis=0)
    file = io.BytesIO()
    np.savez(file, first=states[0], varies=varies, values=states[:, varies])
    return file.getvalue()


def load_states(path: Path) -> Array:
    """The states of an attempt, float64 `[steps + 1, S]`, row 0 at the reset."""
    try:
        return parse_states(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise RunFolderError(f"The states in {str(path)!r} cannot be read: {exc}") from exc


def parse_states(data: bytes) -> Array:
    """The states that a file holds; ValueError where it is none."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            first, varies, values = file["first"], file["varies"], file["values"]
            states: Array = np.tile(first, (len(values), 1))
            states[:, varies] = values
    except _UNREADABLE as exc:
        raise ValueError(str(exc)) from exc
    return states


class ObservationSink:
    """Keeps every array of an observation that is no picture, where an episode is shown again."""

    needs = SinkNeeds(observations=True)
    files = (OBSERVATIONS_FILE,)

    def open(self, start: AttemptStart) -> ObservationTrack:
        return ObservationTrack(Path(start.folder) / OBSERVATIONS_FILE)


class ObservationTrack:
    """One attempt's observations, in memory until it is sealed."""

    def __init__(self, path: Path) -> None:
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
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "wb") as file:
            arrays = {key: np.stack(rows) for key, rows in self._rows.items()}
            np.savez(file, allow_pickle=False, **arrays)
        return [str(self._path)]

    def discard(self) -> None:
        """Forget the observations: nothing is on disk before `seal`."""
        self._rows = {}
