"""The segments of each table: named by the ledger, merged so that they stay few."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from typing import Any

from hocket.records.folder import RunFolder
from hocket.records.ledger import schema
from hocket.records.ledger.rows import RowRecorder, Segment

_MERGED_AT_ONCE = 16
_LARGEST_MERGE = 2_000_000
"""Rows. Merging more would keep the thread from committing for long; such files are few."""
_LAST_MERGE = 200_000
"""Rows merged at the end of a run, which a user waits for."""


class Segments:
    """Belongs to the ledger's thread, as the connection does."""

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
        """Those that earlier legs of the run left, in order."""
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
        """What a finished run leaves: one segment where it is not too large."""
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
