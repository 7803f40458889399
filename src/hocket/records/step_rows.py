"""The way of steps from the files that sinks leave into the table `steps`.

Beside the engine `StepRows` turns the files of a group of episodes into a Parquet segment, which
the ledger commits together with them. A file that comes from another machine need not touch the
disk: what it holds is kept in memory until then, up to a limit. All episodes of a group whose rows
have the same fields become columns at once: to do so for each took five times as long.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hocket.core.data import Array, Episode, Trial
from hocket.core.events import Event
from hocket.errors import RunFolderError
from hocket.records.steps import FILE, NOT_SAID, is_row, schema

if TYPE_CHECKING:
    import pyarrow as pa

ROOM = 256 << 20
"""Most bytes of files that are kept in memory. Chosen by hand: what a driver takes in seconds."""
_PORTION = 8 << 20
"""Bytes of files that are turned into columns at once. Chosen by hand: of 64 MB, which no cache
holds, each took three times as long."""
_REMEMBERED = 4096
"""Headers and texts that are remembered: episodes differ in their lengths and prompts. Chosen by
hand."""
_HEADER = 10
"""Bytes before the header of an array in `.npy` format; the last two are its size."""


class StepFile(NamedTuple):
    """What a sink's file of steps holds."""

    rows: Array
    said: Array
    """The bytes of a JSON object with `prompt` and `layout`."""

    @property
    def size(self) -> int:
        """Bytes that it takes in memory."""
        return self.rows.nbytes + self.said.nbytes


def parse_steps(data: bytes) -> StepFile:
    """What a sink's file holds; ValueError where it is none."""
    rows, end = _array_at(data, 0)
    said, _ = _array_at(data, end)
    if not _is_row(rows.dtype) or said.dtype != np.uint8:
        raise ValueError("its arrays are not those of steps")
    _texts_of(said.tobytes())
    return StepFile(rows, said)


def read_steps(path: Path) -> StepFile:
    """What the file at a path holds; RunFolderError where it is none."""
    try:
        return parse_steps(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise RunFolderError(f"The steps in {str(path)!r} cannot be read: {exc}") from exc


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


class Taken(NamedTuple):
    """An ended episode, and its steps where they are in memory."""

    episode: Episode
    file: StepFile | None


@dataclass(slots=True)
class StepRows:
    """A RowRecorder that writes the steps of the episodes that count."""

    folder: Path
    """The run folder."""
    room: int = ROOM
    table: str = field(default="steps", init=False)
    consumes: str | None = field(default=FILE, init=False)
    _held: dict[tuple[Trial, int], StepFile] = field(default_factory=dict, init=False)
    _came: int = field(default=0, init=False)
    """Bytes that were received and not forgotten; the engine's thread counts them."""
    _gone: int = field(default=0, init=False)
    """Bytes of these that are written; the ledger's thread counts them."""

    def on(self, event: Event) -> None:
        """Ignore the event: steps come as files."""

    def receive(self, trial: Trial, attempt: int, data: bytes) -> bool:
        """Keep what would be the file of an attempt until its episode is taken. False where there
        is no room for it, and it must come as a file; ValueError where it holds no steps."""
        if self._came - self._gone + len(data) > self.room:
            return False
        file = parse_steps(data)
        self.forget(trial, attempt)
        self._held[trial, attempt] = file
        self._came += file.size
        return True

    def forget(self, trial: Trial, attempt: int) -> None:
        """The attempt will be no episode."""
        if (file := self._held.pop((trial, attempt), None)) is not None:
            self._came -= file.size

    def take(self, episode: Episode) -> Taken:
        return Taken(episode, self._held.pop((episode.trial, episode.attempt), None))

    def write(self, path: Path, taken: Sequence[Taken]) -> int:
        from hocket.records.parquet import write_segment

        try:
            return write_segment(path, schema(), self._tables(taken))
        finally:
            self._gone += sum(one.file.size for one in taken if one.file is not None)

    def _tables(self, taken: Iterable[Taken]) -> Iterator[pa.Table]:
        """The rows of these episodes, a portion at a time."""
        portion: list[tuple[Episode, StepFile]] = []
        size = 0
        for one in taken:
            for file in self._files(one):
                portion.append((one.episode, file))
                size += file.size
            if size >= _PORTION:
                yield _to_arrow(portion)
                portion, size = [], 0
        if portion:
            yield _to_arrow(portion)

    def _files(self, taken: Taken) -> list[StepFile]:
        if taken.file is not None:
            return [taken.file]
        # An episode that ended as an ERROR has no file.
        names = [name for name in taken.episode.files if name.rpartition("/")[2] == FILE]
        return [read_steps(self.folder / name) for name in names]


def _to_arrow(some: Sequence[tuple[Episode, StepFile]]) -> pa.Table:
    """The rows of several episodes, those with the same fields together."""
    import pyarrow as pa

    alike: dict[Any, list[tuple[Episode, StepFile]]] = {}
    for episode, file in some:
        alike.setdefault(file.rows.dtype, []).append((episode, file))
    tables = [_alike_to_arrow(dtype, group) for dtype, group in alike.items()]
    return pa.concat_tables(tables)


def _alike_to_arrow(dtype: np.dtype[Any], some: Sequence[tuple[Episode, StepFile]]) -> pa.Table:
    import pyarrow as pa

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
    return pa.table(columns, schema=schema())


def _lists(values: Array, is_there: Array) -> pa.ListArray:
    """One list for each row, null where nothing is there."""
    import pyarrow as pa

    sizes = np.where(is_there, values.shape[1], 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    flat = np.ascontiguousarray(values[is_there]).reshape(-1)
    return pa.ListArray.from_arrays(offsets, pa.array(flat), mask=pa.array(~is_there))
