"""Turns the files that sinks leave into rows of tables.

Beside the engine a `FileRows` turns the files of a group of episodes into a Parquet segment, which
the ledger commits together with them. A file that comes from another machine need not touch the
disk: what it holds is kept in memory until then, up to a limit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from hocket.core.data import Episode, Trial
from hocket.core.events import EpisodesSealed, Event
from hocket.errors import RunFolderError
from hocket.records.folder import RunFolder
from hocket.records.parquet import write_segment
from hocket.workers.sinks.spill import leave_rows

ROOM = 256 << 20
"""Most bytes of files that are kept in memory: what a driver takes in seconds."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EpisodeFile(Generic[T]):
    """An ended episode, and what its file holds where that is in memory."""

    episode: Episode
    file: T | None


class FileRows(ABC, Generic[T]):
    """A RowRecorder of the episodes that count, whose rows are made of one file of each; T is what
    such a file holds."""

    table: ClassVar[str]
    consumes: ClassVar[str]
    schema: ClassVar[pa.Schema]
    portion: ClassVar[int]
    """Bytes of files that become columns, and a row group, at once."""

    def __init__(self, folder: Path, room: int = ROOM) -> None:
        """`folder` is the run folder."""
        self._folder = folder
        self._room = room
        self._held: dict[tuple[Trial, int], T] = {}
        self._came = 0
        """Bytes that were received and not forgotten; the engine's thread counts them."""
        self._gone = 0
        """Bytes of these that are written; the ledger's thread counts them."""

    @abstractmethod
    def parse(self, data: bytes) -> T:
        """What a file holds; ValueError where it is none."""

    @abstractmethod
    def size(self, file: T) -> int:
        """Bytes that it takes in memory."""

    @abstractmethod
    def columns(self, some: Sequence[tuple[Episode, T]]) -> pa.Table:
        """The rows of these episodes."""

    # -- for the engine's thread ---------------------------------------------------------------

    def on(self, event: Event) -> None:
        """Ignore the event: rows come as files."""

    def receive(self, trial: Trial, attempt: int, data: bytes) -> bool:
        """Keep what would be the file of an attempt until its episode is taken. False where there
        is no room for it, and it must come as a file; ValueError where it is no such file."""
        if self._came - self._gone + len(data) > self._room:
            return False
        file = self.parse(data)
        self.forget(trial, attempt)
        self._held[trial, attempt] = file
        self._came += self.size(file)
        return True

    def forget(self, trial: Trial, attempt: int) -> None:
        """The attempt will be no episode."""
        if (file := self._held.pop((trial, attempt), None)) is not None:
            self._came -= self.size(file)

    def take(self, episode: Episode) -> EpisodeFile[T]:
        return EpisodeFile(episode, self._held.pop((episode.trial, episode.attempt), None))

    # -- for the ledger's thread ---------------------------------------------------------------

    def write(self, path: Path, taken: Sequence[EpisodeFile[T]]) -> int:
        try:
            return write_segment(path, self.schema, self._tables(taken))
        finally:
            self._gone += sum(self.size(one.file) for one in taken if one.file is not None)

    def _tables(self, taken: Iterable[EpisodeFile[T]]) -> Iterator[pa.Table]:
        """The rows of these episodes, a portion at a time."""
        portion: list[tuple[Episode, T]] = []
        size = 0
        for one in taken:
            for file in self._files(one):
                portion.append((one.episode, file))
                size += self.size(file)
            if size >= self.portion:
                yield self.columns(portion)
                portion, size = [], 0
        if portion:
            yield self.columns(portion)

    def _files(self, taken: EpisodeFile[T]) -> list[T]:
        if taken.file is not None:
            return [taken.file]
        # An episode that ended as an ERROR has no file.
        names = [name for name in taken.episode.files if name.rpartition("/")[2] == self.consumes]
        return [self._read(self._folder / name) for name in names]

    def _read(self, path: Path) -> T:
        try:
            return self.parse(path.read_bytes())
        except (OSError, ValueError) as exc:
            raise RunFolderError(
                f"The {self.table} in {str(path)!r} cannot be read: {exc}"
            ) from exc


def received(
    event: EpisodesSealed, receivers: Mapping[str, Any], folder: RunFolder
) -> Sequence[Episode]:
    """The episodes of an event, once what becomes their rows was handed to whoever takes it. Where
    there is no room for that it becomes a file, which the episode names."""
    episodes = list(event.episodes)
    for index, rows in enumerate(event.rows):
        trial, attempt, *_ = episode = episodes[index]
        for name, data in rows.items():
            if not receivers[name].receive(trial, attempt, data):
                leave_rows(folder.attempt(trial, attempt) / name, data, None)
                file = (folder.attempt(trial, attempt) / name).relative_to(folder.root).as_posix()
                episode = episode._replace(files=(*episode.files, file))
        episodes[index] = episode
    return episodes
