"""The way of steps from the files that sinks leave into the table `steps`.

Episodes whose rows have the same fields become columns together: to do so for each took five times
as long.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hocket.core.data import Array, Episode, Trial
from hocket.records.file_rows import FileRows
from hocket.records.folder import FolderLike
from hocket.records.parquet import load_table
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
