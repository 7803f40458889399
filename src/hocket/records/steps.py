"""One row for each step: what was done, what came of it, and which chunk it was from.

In the worker `StepsSink` keeps an attempt's steps in memory and leaves them as one small file in
the attempt's folder; beside the engine `StepRows` turns the files of a group of episodes into a
Parquet segment, which the ledger commits together with them. The file needs no fsync: until the
segment is durable the episode does not count, and then the file is deleted.

The worker's half imports neither pyarrow nor anything else that is slow or large.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.core.contracts.recorder import AttemptStart, SinkNeeds, StepRecord
from hocket.core.data import Array, Episode, Outcome, Trial
from hocket.core.events import Event
from hocket.errors import ObservationError, RunFolderError
from hocket.records.folder import ROWS, FolderLike, drafted

if TYPE_CHECKING:
    import pyarrow as pa

FILE = f"steps{ROWS}"
"""Holds one structured numpy array, `.npy` format."""

_NOT_SAID = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsConfig:
    """Which of the observations is kept at each step."""

    state_key: str = "observation/state"
    """The observation that goes into the column `state`, at the steps where one was taken."""
    every_step: bool = False
    """Take one at every step, where it cannot be observed again later."""


class StepsSink:
    """Records the numbers of every step, in the worker."""

    Config = StepsConfig
    files = (FILE,)

    def __init__(self, argument: str = "", config: StepsConfig | None = None) -> None:
        self.config = config or StepsConfig()
        self.needs = SinkNeeds(observations=self.config.every_step)

    def open(self, start: AttemptStart) -> StepsTrack:
        return StepsTrack(self.config, Path(start.folder))


class StepsTrack:
    """One attempt's steps, in memory until it is sealed."""

    def __init__(self, config: StepsConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._numbers: list[tuple[int, int, int, float, bool, bool, int]] = []
        self._actions: list[Array] = []
        self._states: list[Array] = []
        self._observed: list[int] = []

    def step(self, record: StepRecord) -> None:
        success = _NOT_SAID if record.success is None else int(record.success)
        self._numbers.append(
            (
                record.step,
                record.chunk,
                record.age,
                record.reward,
                record.terminated,
                record.truncated,
                success,
            )
        )
        if record.action is not None:
            self._actions.append(np.array(record.action, np.float64).ravel())
        if record.observation is not None:
            state = record.observation.get(self._config.state_key)
            if state is not None:
                self._observed.append(len(self._numbers) - 1)
                self._states.append(np.array(state, np.float64).ravel())

    def seal(self, outcome: Outcome) -> Sequence[str]:
        table, path = self._table(), self._folder / FILE
        with drafted(path, is_durable=False) as draft:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(draft, "wb") as file:
                np.lib.format.write_array(file, table, allow_pickle=False)
        return [str(path)]

    def discard(self) -> None:
        """Do nothing: nothing is on disk before `seal`."""

    def _table(self) -> Array:
        actions = _same_size("action", self._actions)
        states = _same_size(self._config.state_key, self._states)
        table = np.zeros(len(self._numbers), _dtype(actions, states))
        for i, name in enumerate(_NUMBERS):
            table[name] = [numbers[i] for numbers in self._numbers]
        if actions is not None:
            # The reset, step 0, had none.
            table["action"][len(table) - len(actions) :] = actions
        if states is not None:
            table["state"][self._observed] = states
            table["has_state"][self._observed] = True
        return table


_NUMBERS: Mapping[str, str] = {
    "step": "<i4",
    "chunk": "<i4",
    "age": "<i4",
    "reward": "<f8",
    "terminated": "?",
    "truncated": "?",
    "success": "i1",
}


def _dtype(actions: Array | None, states: Array | None) -> Any:
    fields: list[Any] = [*_NUMBERS.items(), ("has_state", "?")]
    fields.append(("action", "<f8", (0 if actions is None else actions.shape[1],)))
    fields.append(("state", "<f8", (0 if states is None else states.shape[1],)))
    return np.dtype(fields)


def _same_size(name: str, arrays: Sequence[Array]) -> Array | None:
    if not arrays:
        return None
    if len({len(array) for array in arrays}) > 1:
        raise ObservationError(f"{name!r} changed its size in the middle of an episode.")
    return np.stack(arrays)


# -- beside the engine ---------------------------------------------------------------------------


@dataclass(slots=True)
class StepRows:
    """A RowRecorder that writes the steps of the episodes that count."""

    folder: Path
    """The run folder."""
    table: str = field(default="steps", init=False)
    consumes: str | None = field(default=FILE, init=False)

    def on(self, event: Event) -> None:
        """Ignore the event: steps come as files."""

    def take(self, episode: Episode) -> Episode:
        return episode

    def write(self, path: Path, taken: Sequence[Episode]) -> int:
        import pyarrow as pa

        from hocket.records.parquet import write_segment

        # An episode that ended as an ERROR has no file.
        tables = [
            _to_arrow(episode, _read(self.folder / file))
            for episode in taken
            for file in episode.files
            if file.rpartition("/")[2] == FILE
        ]
        return write_segment(path, pa.concat_tables(tables)) if tables else 0


def schema() -> pa.Schema:
    """The columns of the table `steps`. Step 0 is the reset: no action, chunk -1, reward 0."""
    import pyarrow as pa

    return pa.schema(
        [
            ("trial", pa.string()),
            ("attempt", pa.int32()),
            ("step", pa.int32()),
            ("chunk", pa.int32()),
            ("age", pa.int32()),  # steps since its chunk's observation was taken
            ("reward", pa.float64()),
            ("terminated", pa.bool_()),
            ("truncated", pa.bool_()),
            ("success", pa.bool_()),  # null where the env did not say
            ("action", pa.list_(pa.float64())),
            ("state", pa.list_(pa.float64())),  # after the step; null where none was taken
        ]
    )


def load_steps(folder: FolderLike, trials: Collection[Trial] | None = None) -> pa.Table:
    """The steps of all episodes that count, or of these trials alone."""
    from hocket.records.parquet import load_table

    return load_table(folder, "steps", schema(), trials)


def _read(path: Path) -> Array:
    try:
        with open(path, "rb") as file:
            rows: Array = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError) as exc:
        raise RunFolderError(f"The steps in {str(path)!r} cannot be read: {exc}") from exc
    return rows


def _to_arrow(episode: Episode, rows: Array) -> pa.Table:
    import pyarrow as pa

    has_action = rows["step"] > 0
    columns: dict[str, Any] = {
        "trial": pa.repeat(episode.trial.id, len(rows)),
        "attempt": np.full(len(rows), episode.attempt, np.int32),
    }
    for name in ("step", "chunk", "age", "reward", "terminated", "truncated"):
        columns[name] = np.ascontiguousarray(rows[name])
    columns["success"] = pa.array(rows["success"] == 1, mask=rows["success"] == _NOT_SAID)
    columns["action"] = _lists(rows["action"], has_action)
    columns["state"] = _lists(rows["state"], rows["has_state"])
    return pa.table(columns, schema=schema())


def _lists(values: Array, is_there: Array) -> pa.ListArray:
    """One list for each row, null where nothing is there."""
    import pyarrow as pa

    sizes = np.where(is_there, values.shape[1], 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    flat = np.ascontiguousarray(values[is_there]).reshape(-1)
    return pa.ListArray.from_arrays(offsets, pa.array(flat), mask=pa.array(~is_there))
