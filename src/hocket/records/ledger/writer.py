"""The thread that makes finished episodes durable, a group at a time, and the segments of rows.

For each group: write its rows as one segment per table, fsync, rename; then commit the episodes
and the names of the segments in one transaction; then delete the sinks' files that the segments
replace. A kill between any two of these leaves either episodes that count with all their rows, or
files that nothing names, which a resumed run deletes.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hocket.core.data import Episode, Trial
from hocket.core.events import Event
from hocket.errors import DamagedSegmentError, RunFolderError
from hocket.records.folder import RunFolder
from hocket.records.ledger import schema
from hocket.records.ledger.episodes import COLUMNS, row_of
from hocket.records.ledger.view import Segment
from hocket.records.parquet import digest_of, merge_segments
from hocket.system.durable import sync_disk

_MERGED_AT_ONCE = 16
"""Segments of one level that become one of the next."""
_LARGEST_MERGE = 64 << 20
"""Most bytes that are merged while a run goes on. Merging more would keep the thread from
committing for long, and costs as much as writing them did; such files are few."""
_LAST_MERGE = 16 << 20
"""Most bytes that are merged at the end of a run, which a user waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    """When finished episodes are committed."""

    group_s: float = 1.0
    """Longest that a finished episode waits for others."""
    group_steps: int = 400_000
    """A group with this many steps leaves at once."""
    max_pending: int = 4096
    """No new trial begins while more finished episodes than this are uncommitted."""
    flush_s: float = 120.0
    """Longest that the end of a run waits until all is committed; a slower disk is an error."""


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
        """Follow the run. Called on the engine's thread, where it consumes no file."""
        ...

    def take(self, episode: Episode) -> Any:
        """Hand over what belongs to an ended episode and forget it. Called on the engine's
        thread."""
        ...

    def forget(self, trial: Trial, attempt: int) -> None:
        """The attempt will be no episode that counts. Called on the engine's thread."""
        ...

    def write(self, path: Path, taken: Sequence[Any]) -> int:
        """Make the rows of several episodes one durable file, and say how many they are; no file
        where there are none. Called on the ledger's thread."""
        ...


@runtime_checkable
class ReceivesFiles(RowRecorder, Protocol):
    """A RowRecorder that takes the bytes of the file that it consumes instead of the file."""

    def receive(self, trial: Trial, attempt: int, data: bytes) -> bool:
        """Keep them until the episode is taken. False where there is no room for them, and they
        must come as a file; ValueError where they are not what such a file holds. Called on the
        engine's thread."""
        ...


@dataclass(frozen=True, slots=True)
class Pending:
    """A finished episode that is to be committed, with what is counted of films up to it."""

    row: int
    episode: Episode
    """The episode, without the files that are consumed."""
    taken: tuple[Any, ...]
    """What each recorder handed over for it, in the order of recorders."""
    consumed: tuple[str, ...]
    counts: Mapping[str, int]


@dataclass(slots=True)
class Group:
    """Episodes and errors that are committed together."""

    episodes: list[Pending] = field(default_factory=list)
    errors: list[tuple[str, int, int]] = field(default_factory=list)
    """The error, the trial's row and the number of each attempt that was lost."""
    steps: int = 0
    oldest: float = math.inf

    def __bool__(self) -> bool:
        return bool(self.episodes or self.errors)


class GroupWriter:
    """Owns the connection that commits episodes, and every segment."""

    def __init__(
        self, folder: RunFolder, *, leg: int, writing: threading.Lock, config: LedgerConfig
    ) -> None:
        self._folder = folder
        self._config = config
        # SQLite has one writer at a time: whoever begins a transaction holds this.
        self._writing = writing
        self._connection = schema.connect(folder.ledger)
        self._recorders: list[RowRecorder] = []
        self._segments = Segments(folder, self._connection, leg=leg, writing=writing)
        # Guards the fields below, which the engine's thread and this one both change.
        self._changed = threading.Condition()
        self._group = Group()
        self.syncs_files = False
        """True if the files of episodes are not durable yet when they are put."""
        self.committed = 0
        """How many of the episodes that were put are durable."""
        self._is_committing = False
        self._is_flushing = False
        self._is_closing = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="hocket-ledger", daemon=True)
        self._thread.start()

    # -- for the engine's thread ---------------------------------------------------------------

    def attach(self, recorder: RowRecorder, segments: Sequence[Segment]) -> None:
        """Write this recorder's rows with each group from now on."""
        self._folder.table(recorder.table).mkdir(exist_ok=True)
        self._segments.know(recorder.table, segments)
        self._recorders.append(recorder)

    def put(self, episodes: Sequence[Pending]) -> None:
        with self._changed:
            group = self._group
            group.episodes.extend(episodes)
            group.steps += sum(pending.episode.steps for pending in episodes)
            self._note_put()

    def put_error(self, row: int, attempt: int, error: str) -> None:
        with self._changed:
            self._group.errors.append((error, row, attempt))
            self._note_put()

    def _note_put(self) -> None:
        """Wake the thread where it does not know yet when the group is due: to wake it for every
        episode would cost more than to commit one."""
        is_first = self._group.oldest == math.inf
        if is_first:
            self._group.oldest = time.monotonic()
        if is_first or self._group.steps >= self._config.group_steps:
            self._changed.notify_all()

    def behind(self) -> bool:
        return len(self._group.episodes) >= self._config.max_pending

    def flush(self) -> None:
        """Return when all that was put is committed."""
        with self._changed:
            self._is_flushing = True
            self._changed.notify_all()
            is_done = self._changed.wait_for(
                lambda: self._failure or not (self._group or self._is_committing),
                timeout=self._config.flush_s,
            )
            self._is_flushing = False
        self.raise_failure()
        if not is_done:
            raise self._too_slow()

    def _too_slow(self) -> RunFolderError:
        return RunFolderError(
            f"The disk of {str(self._folder.root)!r} took more than {self._config.flush_s:g} s to "
            f"commit what is finished. `hocket resume` runs again what is missing."
        )

    def raise_failure(self) -> None:
        """Raise what stopped the thread, if anything did."""
        if self._failure is None:
            return
        if isinstance(self._failure, RunFolderError):
            raise RunFolderError(str(self._failure)) from self._failure
        raise self._failure

    def close(self) -> None:
        """Commit what is left, merge small segments, end the thread. Closing twice is safe."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout=self._config.flush_s)
        if self._thread.is_alive():
            raise self._too_slow()
        self._connection.close()

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while group := self._next_group():
                self._commit(group)
                for recorder in self._recorders:
                    self._segments.merge_levels(recorder.table)
                with self._changed:
                    self._is_committing = False
                    self._changed.notify_all()
            for recorder in self._recorders:
                self._segments.merge_smallest(recorder.table)
        except sqlite3.Error as exc:
            self._fail(schema.ledger_error(exc, self._folder.ledger))
        except Exception as exc:  # noqa: BLE001 - raised again on the engine's thread
            self._fail(exc)

    def _next_group(self) -> Group | None:
        """The next group once it is due; None when there is no more to come."""
        with self._changed:
            while not self._is_due():
                if self._is_closing:
                    return None
                left = self._group.oldest + self._config.group_s - time.monotonic()
                self._changed.wait(None if left == math.inf else max(left, 0.0))
            group, self._group = self._group, Group()
            self._is_committing = True
            return group

    def _is_due(self) -> bool:
        group = self._group
        return bool(group) and (
            self._is_flushing
            or self._is_closing
            or group.steps >= self._config.group_steps
            or time.monotonic() >= group.oldest + self._config.group_s
        )

    def _fail(self, failure: Exception) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def _commit(self, group: Group) -> None:
        segments: list[Segment] = []
        for i, recorder in enumerate(self._recorders):
            taken = [pending.taken[i] for pending in group.episodes]
            segments.extend(self._segments.write(recorder, taken))
        if self.syncs_files and any(pending.episode.files for pending in group.episodes):
            sync_disk(self._folder.root)
        connection = self._connection
        with self._writing, schema.transaction(connection):
            connection.executemany(
                "UPDATE attempts SET error = ? WHERE trial = ? AND attempt = ?", group.errors
            )
            connection.executemany(
                f"INSERT INTO episodes (trial, {', '.join(COLUMNS)}) "
                f"VALUES (?{', ?' * len(COLUMNS)})",
                [(pending.row, *row_of(pending.episode)) for pending in group.episodes],
            )
            if group.episodes and (counts := group.episodes[-1].counts):
                row = (schema.FILMS, json.dumps(counts))
                connection.execute("REPLACE INTO meta VALUES (?, ?)", row)
            self._segments.insert(segments)
        self.committed += len(group.episodes)
        for pending in group.episodes:
            for file in pending.consumed:
                self._delete_consumed(self._folder.root / file)

    def _delete_consumed(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        # The attempt's folder, and its trial's, go with it where it was all they held.
        with contextlib.suppress(OSError):
            path.parent.rmdir()
            path.parent.parent.rmdir()


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
        return [Segment(name, rows, 0, digest_of(self._folder.root / name))] if rows else []

    def insert(self, segments: Sequence[Segment]) -> None:
        """Name them in the ledger, inside the caller's transaction."""
        self._connection.executemany(
            "INSERT INTO segments (name, rows, level, digest) VALUES (?, ?, ?, ?)",
            [(one.name, one.rows, one.level, one.digest) for one in segments],
        )
        for segment in segments:
            self._known[segment.table].append(segment)

    def merge_levels(self, table: str) -> None:
        """Keep segments few: sixteen of one level become one of the next."""
        levels: dict[int, list[Segment]] = {}
        for segment in self._known[table]:
            levels.setdefault(segment.level, []).append(segment)
        for level, some in sorted(levels.items()):
            oldest = some[:_MERGED_AT_ONCE]
            if len(oldest) == _MERGED_AT_ONCE and sum(map(self._size, oldest)) <= _LARGEST_MERGE:
                self._merge(table, oldest, level + 1)

    def merge_smallest(self, table: str) -> None:
        """Leave one segment to a finished run, as far as that is not too large."""
        known = self._known[table]
        total = 0
        chosen: list[Segment] = []
        sizes = {segment: self._size(segment) for segment in known}
        for segment, size in sorted(sizes.items(), key=lambda each: each[1]):
            total += size
            if total > _LAST_MERGE:
                break
            chosen.append(segment)
        if len(chosen) > 1:
            level = max(segment.level for segment in chosen)
            self._merge(table, [segment for segment in known if segment in chosen], level)

    def _size(self, segment: Segment) -> int:
        """Bytes of a segment; one that is missing cannot be merged, and is told of when it is."""
        try:
            return (self._folder.root / segment.name).stat().st_size
        except OSError:
            return 0

    def _new_name(self, table: str) -> str:
        """A name that no leg of the run has used or will use."""
        self._named += 1
        return f"{table}/part-{self._leg:04d}-{self._named:06d}.parquet"

    def _merge(self, table: str, sources: Sequence[Segment], level: int) -> None:
        """Swap the names in one transaction; the files that are replaced go after it. A damaged
        segment stays as it is, with those that it would have been merged with: whoever reads it is
        told, and what it still holds is not made worse."""
        name = self._new_name(table)
        known = self._known[table]
        try:
            rows = merge_segments(self._folder.root / name, self._folder.root, sources)
        except DamagedSegmentError:
            self._known[table] = [some for some in known if some not in sources]
            return
        with self._writing, schema.transaction(self._connection):
            self._connection.executemany(
                "DELETE FROM segments WHERE name = ?", [(segment.name,) for segment in sources]
            )
            self._known[table] = [some for some in known if some not in sources]
            self.insert([Segment(name, rows, level, digest_of(self._folder.root / name))])
        for segment in sources:
            (self._folder.root / segment.name).unlink(missing_ok=True)
