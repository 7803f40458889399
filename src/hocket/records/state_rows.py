"""The table `states`: of each episode one row, with the bytes of the file that its sink left.

A cluster's disk does not bear a folder for each of a million episodes. Attempts that were lost have
a file instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.core.data import Array, Episode
from hocket.errors import RunFolderError
from hocket.records.file_rows import FILES_GROUP, FileRows
from hocket.records.folder import FolderLike, RunFolder
from hocket.workers.sinks.states import FILE, ROWS_FILE, load_states, parse_states

if TYPE_CHECKING:
    import pyarrow as pa

    from hocket.records.parquet import Place

TABLE = "states"


class StateRows(FileRows[bytes]):
    """Writes the states of the episodes that count."""

    table = TABLE
    consumes = ROWS_FILE
    portion = FILES_GROUP

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([("trial", pa.string()), ("attempt", pa.int32()), (TABLE, pa.binary())])

    def parse(self, data: bytes) -> bytes:
        return data

    def size(self, file: bytes) -> int:
        return len(file)

    def read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as exc:
            raise RunFolderError(f"The states in {str(path)!r} cannot be read: {exc}") from exc

    def columns(self, some: Sequence[tuple[Episode, bytes]]) -> pa.Table:
        import pyarrow as pa

        columns = [
            [episode.trial.id for episode, _ in some],
            [episode.attempt for episode, _ in some],
            [data for _, data in some],
        ]
        return pa.table(columns, schema=self.schema())


class KeptStates:
    """The states of a run's episodes, also of those that were lost. What has ended since they were
    first looked for need not be found."""

    def __init__(self, folder: FolderLike) -> None:
        self._folder = RunFolder.at(folder)
        self._places: dict[str, Place] | None = None
        """By trial id."""

    def has(self, episode: Episode) -> bool:
        return self._file(episode).is_file() or episode.trial.id in self._find()

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
        return self._folder.attempt(episode.trial, episode.attempt) / FILE

    def _find(self) -> dict[str, Place]:
        if self._places is None:
            from hocket.records.parquet import find_rows

            self._places = find_rows(self._folder, TABLE) if self._folder.ledger.exists() else {}
        return self._places

    def _read(self, episode: Episode) -> bytes | None:
        from hocket.records.parquet import read_cell

        while (place := self._find().get(episode.trial.id)) is not None:
            try:
                data: bytes = read_cell(self._folder, place, TABLE)
            except FileNotFoundError:  # Merged into another segment meanwhile.
                self._places = None
            else:
                return data
        return None
