"""The table `states`: of each episode one row, with the bytes of the file that its sink left.

A cluster's disk does not bear a folder for each of a million episodes. Attempts that were lost have
a file instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from hocket.core.data import Array, Episode
from hocket.errors import RunFolderError
from hocket.records.file_rows import FileRows
from hocket.records.folder import FolderLike, RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.records.parquet import FILES_GROUP, Place, find_rows, read_cell
from hocket.workers.sinks.states import FILE, ROWS_FILE, load_states, parse_states

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
        return self._folder.attempt(episode.trial, episode.attempt) / FILE

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
