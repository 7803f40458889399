"""The ledger's file: its tables, how it is made, opened and checked.

SQLite in WAL mode: readers never wait for the writer, and a killed process loses nothing that it
committed. A file that is not ours, broken, or of another format is refused and left as it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from hocket.errors import RunFolderError
from hocket.records import formats
from hocket.system.durable import disk_error

APPLICATION = 0x686B6C67
"""Marks a SQLite file as a ledger of ours ("hklg")."""
FILMS = "films"
"""The key of `meta` under which it is counted how many episodes were filmed while they ran, of how
many, and how many films there was no room for."""

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE legs (
    leg INTEGER PRIMARY KEY, began REAL NOT NULL, process INTEGER NOT NULL, host TEXT NOT NULL,
    provenance TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE trials (
    id INTEGER PRIMARY KEY,
    suite TEXT NOT NULL, task TEXT NOT NULL, seed INTEGER NOT NULL, repeat INTEGER NOT NULL,
    UNIQUE (suite, task, seed, repeat)
);
CREATE TABLE attempts (
    trial INTEGER NOT NULL REFERENCES trials, attempt INTEGER NOT NULL,
    leg INTEGER NOT NULL REFERENCES legs, began REAL NOT NULL, error TEXT,
    site INTEGER REFERENCES legs,
    PRIMARY KEY (trial, attempt)
) WITHOUT ROWID;
CREATE TABLE episodes (
    trial INTEGER PRIMARY KEY REFERENCES trials, attempt INTEGER NOT NULL,
    outcome TEXT NOT NULL, steps INTEGER NOT NULL, total_reward REAL,
    terminated INTEGER NOT NULL, truncated INTEGER NOT NULL, chunks INTEGER NOT NULL,
    error TEXT, seconds REAL NOT NULL, files TEXT NOT NULL,
    progress REAL, told TEXT NOT NULL, remarks TEXT NOT NULL, diverged INTEGER NOT NULL,
    FOREIGN KEY (trial, attempt) REFERENCES attempts
);
CREATE TABLE segments (
    name TEXT PRIMARY KEY, rows INTEGER NOT NULL, level INTEGER NOT NULL, digest TEXT NOT NULL
);
CREATE TABLE specs (
    suite TEXT NOT NULL, task TEXT NOT NULL, spec TEXT NOT NULL, PRIMARY KEY (suite, task)
) WITHOUT ROWID;
"""

_sound: set[tuple[int, int, int, int]] = set()
"""Files that this process has found whole: device, number, size and time of the last change."""
_BUSY_S = 30.0
_MAGIC = b"SQLite format 3\0"
_HEADER = 100
"""Bytes of a SQLite file's header."""


def connect(path: Path, *, mode: str = "rw", synchronous: str = "FULL") -> sqlite3.Connection:
    """A connection to a file that must exist. Transactions are begun and ended by hand."""
    name = f"file:{quote(str(path))}?mode={mode}"
    with translated(path):
        connection = sqlite3.connect(
            name, uri=True, isolation_level=None, check_same_thread=False, timeout=_BUSY_S
        )
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA foreign_keys = ON")
    return connection


def open_checked(path: Path, *, to_read: bool = False) -> sqlite3.Connection:
    """A connection to a ledger that is ours, whole and of this format: the writer's, or one
    `to_read`, which needs no lock and sees what was committed when a query begins."""
    _refuse_foreign(path)
    connection = _connect_to_read(path) if to_read else connect(path)
    try:
        with translated(path):
            about = os.stat(path)
            mark = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
            if mark not in _sound:
                (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if verdict != "ok":
                    raise RunFolderError(f"The ledger {str(path)!r} is damaged: {verdict}.")
                _sound.add(mark)
            if not to_read:
                connection.execute("PRAGMA journal_mode = WAL")
    except RunFolderError:
        connection.close()
        raise
    return connection


def has_episodes(path: Path) -> bool:
    """True if any episode has ended. For whoever has the folder's lock: a writer's connection
    leaves no WAL behind, where nobody else reads."""
    _refuse_foreign(path)
    with contextlib.closing(connect(path)) as connection, translated(path):
        return connection.execute("SELECT 1 FROM episodes LIMIT 1").fetchone() is not None


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that leaves nothing in a folder that cannot be written."""
    if os.access(path.parent, os.W_OK):
        return connect(path, mode="ro")
    wal = path.with_name(path.name + "-wal")
    if not wal.exists():
        return connect(path, mode="ro&immutable=1")
    # Where nothing can be written SQLite cannot keep its index of the WAL, which the file of a
    # killed run is not whole without.
    with tempfile.TemporaryDirectory(prefix="hocket-ledger-") as folder:
        for file in (path, wal):
            shutil.copyfile(file, Path(folder) / file.name)
        with contextlib.closing(connect(Path(folder) / path.name)) as connection:
            copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            connection.backup(copy)
            return copy


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction: all that is done in it is committed, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite itself has rolled back after some errors, a full disk among them.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as exc:
        raise ledger_error(exc, path) from exc


def ledger_error(exc: sqlite3.Error, path: Path) -> RunFolderError:
    """The error that says what one of SQLite's means for a run."""
    if "disk is full" in str(exc):  # before Python 3.11 an error has no code
        return disk_error(OSError(errno.ENOSPC, "no space"), path)
    return RunFolderError(
        f"The ledger {str(path)!r} cannot be used: {exc}. It was left as it is; restore it from a "
        f"copy, or start a new run."
    )


def _refuse_foreign(path: Path) -> None:
    """Refuse a file that is not ours or is of another format. Only its header is read: to open it
    would leave files beside it."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEADER)
    except FileNotFoundError:
        raise RunFolderError(
            f"There is no run in {str(path.parent)!r}: it has no {path.name}."
        ) from None
    except OSError as exc:
        raise RunFolderError(f"{str(path)!r} cannot be read: {exc.strerror}.") from exc
    if not head.startswith(_MAGIC):
        what = "is empty" if not head else "is no SQLite file"
        raise RunFolderError(
            f"{str(path)!r} {what}, so it is no ledger, or one that was overwritten. It was left "
            f"as it is; restore it from a copy, or start a new run."
        )
    if int.from_bytes(head[68:72], "big") != APPLICATION:
        raise RunFolderError(f"{str(path)!r} is a SQLite file, but no ledger of hocket's.")
    formats.RUN.check(path.parent, int.from_bytes(head[60:64], "big"))
