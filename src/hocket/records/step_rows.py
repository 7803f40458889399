"""The way of steps and states from the files that sinks leave into the tables `steps` and `states`.

Episodes whose steps have the same fields become columns together: to do so for each took five times
as long. Of `states` each episode has one row, with the bytes of the file that its sink left: a
cluster's disk does not bear a folder for each of a million episodes. Attempts that were lost have a
file instead.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hocket.core.data import Array, Episode, Trial
from hocket.errors import RunFolderError
from hocket.records.file_rows import FileRows
from hocket.records.folder import FolderLike, RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.records.parquet import FILES_GROUP, Place, find_rows, load_table, read_cell
from hocket.workers.sinks.states import FILE as STATES_FILE
from hocket.workers.sinks.states import ROWS_FILE, load_states, parse_states
from hocket.workers.sinks.steps import FILE, NOT_SAID, is_row

SCHEMA = pa.schema(
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
        ("prompt", pa.string()),
        ("layout", pa.string()),  # JSON: the arrays that lie in `state`, in order
    ]
)
"""The columns of the table `steps`. Step 0 is the reset: no action, chunk -1, reward 0."""
_REMEMBERED = 4096
"""Headers and texts that are remembered: episodes differ in their lengths and prompts."""
_HEADER = 10
"""Bytes before the header of an array in `.npy` format; the last two are its size."""


class StepFile(NamedTuple):
    """What a sink's file of steps holds."""

    rows: Array
    said: Array
    """The bytes of a JSON object with `prompt` and `layout`."""


def parse_steps(data: bytes) -> StepFile:
    """What a sink's file holds; ValueError where it is none."""
    rows, end = _array_at(data, 0)
    said, _ = _array_at(data, end)
    if not _is_row(rows.dtype) or said.dtype != np.uint8:
        raise ValueError("its arrays are not those of steps")
    _texts_of(said.tobytes())
    return StepFile(rows, said)


def _array_at(data: bytes, begin: int) -> tuple[Array, int]:
    """The array that begins there, and where it ends."""
    first = begin + _HEADER + int.from_bytes(data[begin + _HEADER - 2 : begin + _HEADER], "little")
    count, dtype = _read_header(data[begin:first])
    end = first + count * dtype.itemsize
    if end > len(data):
        raise ValueError("it ends too soon")
    return np.frombuffer(data, dtype, count, first), end


@lru_cache(_REMEMBERED)
def _read_header(header: bytes) -> tuple[int, np.dtype[Any]]:
    """The length and dtype of an array of one dimension. Reading it takes longer than all else, and
    most episodes have the header of another one."""
    file = io.BytesIO(header)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("it is of another version")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if len(shape) != 1 or dtype.hasobject or not dtype.itemsize:
        raise ValueError("it holds other arrays than rows")
    return shape[0], dtype


@lru_cache(_REMEMBERED)
def _texts_of(said: bytes) -> tuple[str, str]:
    """The prompt of an episode, and the layout of its states as JSON."""
    try:
        plain = json.loads(said)
        return str(plain["prompt"]), json.dumps(plain["layout"])
    except (KeyError, TypeError, RecursionError) as exc:
        raise ValueError("it does not say what its rows are") from exc


_is_row = lru_cache(_REMEMBERED)(is_row)


class StepRows(FileRows[StepFile]):
    """Writes the steps of the episodes that count."""

    table = "steps"
    consumes = FILE
    schema = SCHEMA
    portion = 8 << 20
    """Of 64 MB, which no cache holds, each byte took three times as long."""

    def parse(self, data: bytes) -> StepFile:
        return parse_steps(data)

    def size(self, file: StepFile) -> int:
        return file.rows.nbytes + file.said.nbytes

    def columns(self, some: Sequence[tuple[Episode, StepFile]]) -> pa.Table:
        """The rows of several episodes, those with the same fields together."""
        alike: dict[Any, list[tuple[Episode, StepFile]]] = {}
        for episode, file in some:
            alike.setdefault(file.rows.dtype, []).append((episode, file))
        return pa.concat_tables([table_of(dtype, group) for dtype, group in alike.items()])


def table_of(dtype: np.dtype[Any], some: Sequence[tuple[Episode, StepFile]]) -> pa.Table:
    """The rows of episodes whose files have this dtype."""
    rows: Array = np.frombuffer(b"".join([file.rows.data for _, file in some]), dtype)
    sizes = [len(file.rows) for _, file in some]
    spread = np.repeat(np.arange(len(some)), sizes)
    texts = [_texts_of(file.said.tobytes()) for _, file in some]
    columns: dict[str, Any] = {
        "trial": pa.array([episode.trial.id for episode, _ in some], pa.string()).take(spread),
        "attempt": np.repeat(np.array([e.attempt for e, _ in some], np.int32), sizes),
    }
    for name in ("step", "chunk", "age", "reward", "terminated", "truncated"):
        columns[name] = np.ascontiguousarray(rows[name])
    columns["success"] = pa.array(rows["success"] == 1, mask=rows["success"] == NOT_SAID)
    columns["action"] = _lists(rows["action"], rows["step"] > 0)
    columns["state"] = _lists(rows["state"], rows["has_state"])
    columns["prompt"] = pa.array([prompt for prompt, _ in texts], pa.string()).take(spread)
    columns["layout"] = pa.array([layout for _, layout in texts], pa.string()).take(spread)
    return pa.table(columns, schema=SCHEMA)


def _lists(values: Array, is_there: Array) -> pa.ListArray:
    """One list for each row, null where nothing is there."""
    sizes = np.where(is_there, values.shape[1], 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    flat = np.ascontiguousarray(values[is_there]).reshape(-1)
    return pa.ListArray.from_arrays(offsets, pa.array(flat), mask=pa.array(~is_there))


def load_steps(folder: FolderLike, trials: Collection[Trial] | None = None) -> pa.Table:
    """The steps of all episodes that count, or of these trials alone."""
    return load_table(folder, StepRows.table, SCHEMA, trials)


TABLE = "states"


class StateRows(FileRows[bytes]):
    """Writes the states of the episodes that count."""

    table = TABLE
    consumes = ROWS_FILE
    schema = pa.schema([("trial", pa.string()), ("attempt", pa.int32()), (TABLE, pa.binary())])
    portion = FILES_GROUP

    def parse(self, data: bytes) -> bytes:
        return data

    def size(self, file: bytes) -> int:
        return len(file)

    def columns(self, some: Sequence[tuple[Episode, bytes]]) -> pa.Table:
        columns = [
            [episode.trial.id for episode, _ in some],
            [episode.attempt for episode, _ in some],
            [data for _, data in some],
        ]
        return pa.table(columns, schema=self.schema)


class KeptStates:
    """The states of a run's episodes, also of those that were lost. What has ended since they were
    first looked for need not be found."""

    def __init__(self, folder: FolderLike) -> None:
        self._folder = RunFolder.at(folder)
        self._places: dict[str, Place] | None = None
        """By trial id."""
        self._blind: set[tuple[str, str]] = set()
        """Suite and task of the envs that cannot be observed without a step."""
        if self._folder.ledger.exists():
            with LedgerView.open(self._folder) as ledger:
                for task, spec in ledger.specs().items():
                    if not {"deferred", "batched"} & set(spec.abilities):
                        self._blind.add(task)

    def has(self, episode: Episode) -> bool:
        return self._file(episode).is_file() or episode.trial.id in self._find()

    def can_show(self, episode: Episode) -> bool:
        """True if an episode can be shown again from its states."""
        return episode.trial[:2] not in self._blind and self.has(episode)

    def load(self, episode: Episode) -> Array | None:
        """The states of an episode, float64 `[steps + 1, S]`, row 0 at the reset; None where they
        were not kept."""
        if (file := self._file(episode)).is_file():
            return load_states(file)
        if (data := self._read(episode)) is None:
            return None
        try:
            return parse_states(data)
        except ValueError as exc:
            raise RunFolderError(f"The states of {episode.trial.id} cannot be read: {exc}") from exc

    def _file(self, episode: Episode) -> Path:
        return self._folder.attempt(episode.trial, episode.attempt) / STATES_FILE

    def _find(self) -> dict[str, Place]:
        if self._places is None:
            self._places = find_rows(self._folder, TABLE) if self._folder.ledger.exists() else {}
        return self._places

    def _read(self, episode: Episode) -> bytes | None:
        while (place := self._find().get(episode.trial.id)) is not None:
            try:
                data: bytes = read_cell(self._folder, place, TABLE)
            except FileNotFoundError:  # Merged into another segment meanwhile.
                self._places = None
            else:
                return data
        return None
