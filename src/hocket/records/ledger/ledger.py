"""The crash-safe table of a run's trials, attempts and episodes; the engine's first reader.

What is promised after `kill -9` at any moment:

- An attempt's number is committed before `on(AttemptsBegan)` returns, so before it is dispatched:
  no two attempts ever share a number, nor the folder that is named by it.
- An episode is committed once for its trial, together with all its rows and sealed files; one that
  is not committed runs again.

After a power failure the same holds for episodes, whose commits are fsynced. Numbers of attempts
are not fsynced on their own: one that is lost names only an attempt without an episode, whose
files `sweep` deletes before the number is used again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import socket
import sqlite3
import threading
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hocket.core.contracts.recorder import ROWS
from hocket.core.data import Episode, Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    EpisodesSealed,
    Event,
    RunEnded,
    SpecLearned,
)
from hocket.errors import RunFolderError
from hocket.records import formats
from hocket.records.file_rows import received
from hocket.records.folder import FolderLike, FolderLock, RunFolder
from hocket.records.ledger import schema
from hocket.records.ledger.episodes import refuse_equal_slugs
from hocket.records.ledger.view import NEVER_MADE, LedgerView
from hocket.records.ledger.writer import (
    GroupWriter,
    LedgerConfig,
    Pending,
    ReceivesFiles,
    RowRecorder,
)
from hocket.system.durable import TEMPORARY, disk_error, drafted

_TABLES = ("chunks", "steps", "states")
_UNFINISHED = f".*{TEMPORARY}"
_NEVER_BEGUN = -1
_LOST = -2


class Ledger(LedgerView):
    """A run's ledger, for the one process that runs it: a durable reader of the engine's. Attached
    are the recorders whose rows must count with the episodes."""

    def __init__(self, folder: RunFolder, lock: FolderLock, config: LedgerConfig) -> None:
        super().__init__(folder, schema.open_checked(folder.ledger))
        self._folder_lock = lock
        # Attempt numbers need no fsync of their own (see above), and checkpoints, which take
        # long, are left to the thread that the engine does not wait for.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        ((size,),) = self._rows("SELECT COALESCE(MAX(id), 0) + 1 FROM trials")
        self._has_episode = bytearray(size)
        for (row,) in self._rows("SELECT trial FROM episodes"):
            self._has_episode[row] = 1
        self._running = array("i", [_NEVER_BEGUN]) * size
        self._standing = set(self.unsettled())
        """Attempts of earlier processes, which may go on elsewhere and still count."""
        self._writing = threading.Lock()
        self.leg = self.begin_leg(socket.gethostname(), os.getpid())
        self._recorders: list[RowRecorder] = []
        self._consumed: set[str] = set()
        self.receivers: dict[str, ReceivesFiles] = {}
        """Who takes the bytes of files instead of the files, by the files' names."""
        self.unwanted: Callable[[Episode], Collection[str]] = lambda _: ()
        """Told of each episode before it is committed; names files of it that are not kept."""
        self.counts: Mapping[str, int] = {}
        """What is counted of films, kept with the episodes that it counts."""
        self._writer = GroupWriter(folder, leg=self.leg, writing=self._writing, config=config)
        self._is_open = True

    @classmethod
    def create(
        cls,
        path: FolderLike,
        trials: Sequence[Trial],
        meta: Mapping[str, Any],
        *,
        config: LedgerConfig | None = None,
    ) -> Ledger:
        """The ledger of a new run, all its trials planned. `meta` holds plain JSON values."""
        folder = RunFolder.at(path)
        with contextlib.ExitStack() as stack:
            lock = stack.enter_context(folder.lock())
            if folder.ledger.exists():
                raise RunFolderError(
                    f"{str(folder.root)!r} holds a run already. Choose another folder, or finish "
                    f"it with `hocket resume`."
                )
            _make_file(folder, trials, meta)
            ledger = cls(folder, lock, config or LedgerConfig())
            stack.pop_all()
        return ledger

    @classmethod
    def open(cls, path: FolderLike, *, config: LedgerConfig | None = None) -> Ledger:
        """The ledger of a run that was begun before, to go on with it."""
        folder = RunFolder.at(path)
        if not folder.root.is_dir():
            raise RunFolderError(f"There is no run folder {str(folder.root)!r}.")
        if not folder.ledger.exists():  # nothing is left in a folder that is somebody else's
            raise RunFolderError(
                f"There is no run in {str(folder.root)!r}: it has no {folder.ledger.name}."
            )
        with contextlib.ExitStack() as stack:
            ledger = cls(folder, stack.enter_context(folder.lock()), config or LedgerConfig())
            stack.pop_all()
        return ledger

    @functools.cached_property
    def _rows_of(self) -> dict[Trial, int]:
        rows = self._rows("SELECT id, suite, task, seed, repeat FROM trials ORDER BY id")
        return {Trial(*trial): row for row, *trial in rows}

    def attach(self, recorder: RowRecorder) -> None:
        """Let a recorder follow the run, and commit each episode only with its rows durable. To be
        called before the first event."""
        try:
            self._writer.attach(recorder, self.segments(recorder.table))
        except OSError as exc:
            raise disk_error(exc, self.folder.table(recorder.table)) from exc
        self._recorders.append(recorder)
        if recorder.consumes is not None:
            self._consumed.add(recorder.consumes)
            if isinstance(recorder, ReceivesFiles):
                self.receivers[recorder.consumes] = recorder

    def add_trials(self, trials: Iterable[Trial]) -> list[Trial]:
        """Plan more trials, after those that are planned; returns those that are new."""
        new = [trial for trial in dict.fromkeys(trials) if trial not in self._rows_of]
        refuse_equal_slugs(new, {trial.slug for trial in self._rows_of})
        first = len(self._has_episode)
        with self._transaction() as connection:
            _insert_trials(connection, new, first)
        self._rows_of.update({trial: first + i for i, trial in enumerate(new)})
        self._has_episode.extend(bytes(len(new)))
        self._running.extend([_NEVER_BEGUN] * len(new))
        return new

    def keep(self, key: str, value: Any) -> None:
        """Keep a plain JSON value in `meta`, in place of what the key had."""
        with self._transaction() as connection:
            connection.execute("REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    def begin_leg(self, host: str, process: int = 0) -> int:
        """The number of a new leg: each process that works on the run has one, in which times and
        batches count from 0, and each site that takes part."""
        with self._transaction() as connection:
            ((leg,),) = connection.execute("SELECT COALESCE(MAX(leg) + 1, 0) FROM legs")
            row = (leg, time.time(), process, host)
            connection.execute("INSERT INTO legs VALUES (?, ?, ?, ?, '{}')", row)
        return int(leg)

    def describe_leg(self, leg: int, provenance: Mapping[str, Any]) -> None:
        """Keep what the numbers of a leg depend on, as plain JSON values."""
        row = (json.dumps(provenance), leg)
        with self._transaction() as connection:
            connection.execute("UPDATE legs SET provenance = ? WHERE leg = ?", row)

    def sweep(self, keeps: Callable[[Path], bool] = lambda _: False) -> list[Path]:
        """Delete what a killed run left, before a resumed one begins its first attempt: files of
        attempts that never counted, and unfinished ones. Returns what was deleted. `keeps` is asked
        of the folder of each such attempt, and may keep it.

        Only what hocket itself made is touched: folders named by a planned trial and a number,
        segments by their pattern, temporary files by their suffix.
        """
        deleted: list[Path] = []
        try:
            uncounted = [path for path in _uncounted(self) if not (path.is_dir() and keeps(path))]
            for path in (*self.folder.root.glob(_UNFINISHED), *_unnamed(self), *uncounted):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
                deleted.append(path)
                _remove_empty_trial(path, self.folder.episodes)
        except OSError as exc:
            raise disk_error(exc, self.folder.root) from exc
        return deleted

    # -- the engine's reader -------------------------------------------------------------------

    def on(self, event: Event) -> None:
        """Follow the run; raises RunFolderError once the disk takes no more."""
        self._writer.raise_failure()
        for recorder in self._recorders:
            if recorder.consumes is None:  # the others' rows come as files
                recorder.on(event)
        if isinstance(event, AttemptsBegan):
            self._begin(event)
        elif isinstance(event, EpisodesSealed):
            episodes = received(event, self.receivers, self.folder)
            self._writer.put([found for e in episodes if (found := self._accept(e))])
        elif isinstance(event, AttemptFailed):
            self._lose(event)
        elif isinstance(event, SpecLearned):
            self._learn(event)
        elif isinstance(event, RunEnded):
            self._writer.flush()

    def behind(self) -> bool:
        """True if new trials should wait until finished ones are committed."""
        self._writer.raise_failure()
        return self._writer.behind()

    def sync_files(self) -> None:
        """From now on make the files of episodes durable together with them: whoever wrote the
        files has not."""
        self._writer.syncs_files = True

    @property
    def committed(self) -> int:
        """How many of the episodes that this process accepted are durable, in the order in which
        it accepted them."""
        self._writer.raise_failure()
        return self._writer.committed

    def forget(self, trial: Trial, attempt: int) -> None:
        """Settle an attempt that was never made, which is no fault: nobody waits for it. Its number
        is not used again."""
        self._writer.put_error(self._row(trial), attempt, NEVER_MADE)

    def flush(self) -> None:
        """Return when every finished episode is committed."""
        self._writer.flush()

    def close(self) -> None:
        """Commit what is finished and give the folder back. Closing twice is safe."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._writer.close()
            self._writer.raise_failure()
            with schema.translated(self.folder.ledger):
                # SQLite does so where nobody reads: the file shall be whole without its WAL.
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            super().close()
            self._folder_lock.release()

    def __enter__(self) -> Ledger:
        return self

    # -- attempts and episodes -----------------------------------------------------------------

    def _begin(self, event: AttemptsBegan) -> None:
        rows = [self._row(trial) for trial in event.trials]
        for row, trial in zip(rows, event.trials, strict=True):
            if self._has_episode[row]:
                raise RunFolderError(f"Trial {trial.id} has its episode already.")
        sites = event.sites or [None] * len(rows)
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO attempts (trial, attempt, site, leg, began) VALUES (?, ?, ?, ?, ?)",
                [
                    (row, attempt, site, self.leg, event.time)
                    for row, attempt, site in zip(rows, event.attempts, sites, strict=True)
                ],
            )
        for row, attempt in zip(rows, event.attempts, strict=True):
            self._running[row] = attempt

    def _learn(self, event: SpecLearned) -> None:
        row = (event.suite, event.spec.task.name, json.dumps(event.spec.to_plain()))
        # What the episodes that count were run in stays.
        otherwise = "IGNORE" if any(self._has_episode) else "REPLACE"
        with self._transaction() as connection:
            connection.execute(f"INSERT OR {otherwise} INTO specs VALUES (?, ?, ?)", row)

    def _lose(self, event: AttemptFailed) -> None:
        row = self._row(event.trial)
        if event.again:
            self._running[row] = _LOST
            self._standing.discard((event.trial, event.attempt))
        self._writer.put_error(row, event.attempt, event.error)

    def _accept(self, episode: Episode) -> Pending | None:
        """The episode as it will be committed; None for one that came too late to count."""
        row, stands = self._row(episode.trial), episode[:2] in self._standing
        if self._running[row] == _NEVER_BEGUN and not stands:
            raise RunFolderError(f"Trial {episode.trial.id} ended before an attempt at it began.")
        if self._has_episode[row] or not (stands or self._running[row] == episode.attempt):
            for recorder in self._recorders:
                recorder.forget(episode.trial, episode.attempt)
            return None
        self._has_episode[row] = 1
        taken = tuple(recorder.take(episode) for recorder in self._recorders)
        waste, names = self.unwanted(episode), self._consumed
        consumed = tuple(f for f in episode.files if f.rpartition("/")[2] in names or f in waste)
        if consumed:
            kept = tuple(file for file in episode.files if file not in consumed)
            episode = episode._replace(files=kept)
        return Pending(row, episode, taken, consumed, dict(self.counts))

    def _row(self, trial: Trial) -> int:
        try:
            return self._rows_of[trial]
        except KeyError:
            raise RunFolderError(f"Trial {trial.id} is not planned in this run.") from None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """The connection, for changes that are all committed or none."""
        translated = schema.translated(self.folder.ledger)
        with self._lock, self._writing, translated, schema.transaction(self._connection):
            yield self._connection


def _make_file(folder: RunFolder, trials: Sequence[Trial], meta: Mapping[str, Any]) -> None:
    """Make the file under another name first: a ledger that is there is whole."""
    planned = list(dict.fromkeys(trials))
    refuse_equal_slugs(planned, set())
    with drafted(folder.ledger) as draft, schema.translated(folder.ledger):
        draft.unlink(missing_ok=True)
        draft.touch()
        with contextlib.closing(schema.connect(draft, synchronous="OFF")) as connection:
            connection.execute("PRAGMA journal_mode = MEMORY")
            connection.execute(f"PRAGMA application_id = {schema.APPLICATION}")
            connection.execute(f"PRAGMA user_version = {formats.RUN.number}")
            connection.executescript(schema.TABLES)
            rows = [(key, json.dumps(value)) for key, value in meta.items()]
            with schema.transaction(connection):
                connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)
                _insert_trials(connection, planned, 1)


def _insert_trials(connection: sqlite3.Connection, trials: Sequence[Trial], first: int) -> None:
    try:
        connection.executemany(
            "INSERT INTO trials VALUES (?, ?, ?, ?, ?)",
            [(first + i, *trial) for i, trial in enumerate(trials)],
        )
    except OverflowError:
        raise RunFolderError("A seed or repeat of a trial does not fit into 63 bits.") from None


def _unnamed(ledger: LedgerView) -> Iterator[Path]:
    """Segments whose episodes were never committed, or that a merge replaced."""
    for table in _TABLES:
        folder = ledger.folder.table(table)
        named = {segment.name for segment in ledger.segments(table)}
        yield from folder.glob(_UNFINISHED)
        for path in folder.glob("part-*.parquet"):
            if f"{table}/{path.name}" not in named:
                yield path


def _uncounted(ledger: LedgerView) -> Iterator[Path]:
    """Yield folders of attempts without an episode, and the waste in those of the others."""
    for _, _, folder, episode in ledger.attempt_folders():
        if episode is None:
            yield folder
            continue
        for path in folder.iterdir():
            name = str(path.relative_to(ledger.folder.root))
            is_waste = path.suffix in (TEMPORARY, ROWS) and name not in episode.files
            if is_waste and path.is_file():
                yield path


def _remove_empty_trial(deleted: Path, episodes: Path) -> None:
    """Delete a trial's folder with the last of its attempts."""
    for folder in (deleted.parent, deleted.parent.parent):
        if episodes in folder.parents and not any(folder.iterdir()):
            folder.rmdir()
