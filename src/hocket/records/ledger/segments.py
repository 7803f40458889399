"""The segments of each table: files of rows, named by the ledger, merged so that they stay few.

A segment is written and made durable first, and named in the same transaction that commits its
episodes. So a counted episode always has all its rows, a row is never of an attempt that does not
count, and a segment without a name in the ledger is waste that a resumed run deletes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hocket.core.data import Episode
from hocket.core.events import Event
from hocket.records.folder import RunFolder
from hocket.records.ledger import schema

_MERGED_AT_ONCE = 16
"""Segments of one level that become one of the next. Chosen by hand; no benchmark row."""
_LARGEST_MERGE = 2_000_000
"""Most rows that are merged while a run goes on. Merging more would keep the thread from
committing for long; such files are few."""
_LAST_MERGE = 200_000
"""Most rows that are merged at the end of a run, which a user waits for."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One durable file of rows."""

    name: str
    """Path relative to the run folder, `chunks/part-....parquet`."""
    rows: int
    level: int
    """How often its rows were merged from smaller segments."""

    @property
    def table(self) -> str:
        return self.name.partition("/")[0]


class RowRecorder(Protocol):
    """Gathers one table's rows and writes them when the ledger says so."""

    @property
    def table(self) -> str:
        """The name of the table and of its folder."""
        ...

    @property
    def consumes(self) -> str | None:
        """The name of the file that a sink leaves in the attempt's folder for this table; it is
        deleted once its rows are committed."""
        ...

    def on(self, event: Event) -> None:
        """Follow the run. Called on the engine's thread."""
        ...

    def take(self, episode: Episode) -> Any:
        """Hand over what belongs to an ended episode and forget it. Called on the engine's
        thread."""
        ...

    def write(self, path: Path, taken: Sequence[Any]) -> int:
        """Make the rows of several episodes one durable file, and say how many they are; no file
        where there are none. Called on the ledger's thread, as `merge` is."""
        ...

    def merge(self, path: Path, sources: Sequence[Path]) -> int:
        """Make one durable file of several, rows in order."""
        ...


class Segments:
    """Writes, names and merges the segments of all tables, on the ledger's thread alone."""

    def __init__(
        self,
        folder: RunFolder,
        connection: sqlite3.Connection,
        *,
        leg: int,
        writing: threading.Lock,
    ) -> None:
        self._folder = folder
        self._connection = connection
        self._leg = leg
        self._writing = writing
        self._known: dict[str, list[Segment]] = {}
        self._named = 0

    def know(self, table: str, segments: Sequence[Segment]) -> None:
        """Take over the segments that earlier legs of the run left, in order."""
        self._known[table] = list(segments)

    def write(self, recorder: RowRecorder, taken: Sequence[Any]) -> list[Segment]:
        """Make what a recorder handed over one durable segment, or none where it is empty."""
        name = self._new_name(recorder.table)
        rows = recorder.write(self._folder.root / name, taken)
        return [Segment(name, rows, 0)] if rows else []

    def insert(self, segments: Sequence[Segment]) -> None:
        """Name them in the ledger, inside the caller's transaction."""
        self._connection.executemany(
            "INSERT INTO segments (name, rows, level) VALUES (?, ?, ?)",
            [(segment.name, segment.rows, segment.level) for segment in segments],
        )
        for segment in segments:
            self._known[segment.table].append(segment)

    def merge_levels(self, recorder: RowRecorder) -> None:
        """Keep segments few: sixteen of one level become one of the next."""
        levels: dict[int, list[Segment]] = {}
        for segment in self._known[recorder.table]:
            levels.setdefault(segment.level, []).append(segment)
        for level, some in sorted(levels.items()):
            oldest = some[:_MERGED_AT_ONCE]
            is_small = sum(segment.rows for segment in oldest) <= _LARGEST_MERGE
            if len(oldest) == _MERGED_AT_ONCE and is_small:
                self._merge(recorder, oldest, level + 1)

    def merge_smallest(self, recorder: RowRecorder) -> None:
        """Leave one segment to a finished run, as far as that is not too large."""
        known = self._known[recorder.table]
        total = 0
        chosen: list[Segment] = []
        for segment in sorted(known, key=lambda segment: segment.rows):
            total += segment.rows
            if total > _LAST_MERGE:
                break
            chosen.append(segment)
        if len(chosen) > 1:
            level = max(segment.level for segment in chosen)
            self._merge(recorder, [segment for segment in known if segment in chosen], level)

    def _new_name(self, table: str) -> str:
        """A name that no leg of the run has used or will use."""
        self._named += 1
        return f"{table}/part-{self._leg:04d}-{self._named:06d}.parquet"

    def _merge(self, recorder: RowRecorder, sources: Sequence[Segment], level: int) -> None:
        """Swap the names in one transaction; the files that are replaced go after it."""
        name = self._new_name(recorder.table)
        paths = [self._folder.root / segment.name for segment in sources]
        rows = recorder.merge(self._folder.root / name, paths)
        known = self._known[recorder.table]
        with self._writing, schema.transaction(self._connection):
            self._connection.executemany(
                "DELETE FROM segments WHERE name = ?", [(segment.name,) for segment in sources]
            )
            self._known[recorder.table] = [some for some in known if some not in sources]
            self.insert([Segment(name, rows, level)])
        for path in paths:
            path.unlink(missing_ok=True)
