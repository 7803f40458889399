"""How a file becomes durable, and what is said where it cannot be."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from hocket.errors import RunFolderError

TEMPORARY = ".tmp"
"""How the names of hidden files end that are being written: `.video.mp4.tmp`."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


def temporary(path: Path) -> Path:
    """The name under which a file is written until it is whole; hidden from `*.parquet` and from
    readers that take a folder for a table."""
    return path.with_name(f".{path.name}{TEMPORARY}")


def write_atomic(path: Path, data: bytes) -> None:
    """Write a whole file, durably, or nothing: readers see all of it or none."""
    with drafted(path) as draft:
        draft.write_bytes(data)


@contextlib.contextmanager
def drafted(path: Path, *, is_durable: bool = True) -> Iterator[Path]:
    """A draft of a file to write to. It gets its name when all went well, and is deleted otherwise;
    one that need not survive a power failure is not fsynced."""
    draft = temporary(path)
    try:
        yield draft
        if is_durable:
            publish(draft, path)
        else:
            os.replace(draft, path)
    except OSError as exc:
        raise disk_error(exc, path) from exc
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def publish(draft: Path, path: Path) -> None:
    """Give a finished draft its name: after this it is there, whole, even if the power fails."""
    fd = os.open(draft, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(draft, path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make names that were added to or removed from a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_disk(path: Path) -> None:
    """Make everything durable that was written to the disk of a folder: one call for the files of
    many episodes, where to sync each would take milliseconds."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):  # Linux alone has it.
        os.sync()
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if libc.syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)


def disk_error(exc: OSError, path: Path) -> RunFolderError:
    """The error that says what the file system's means for a run, and what to do."""
    if exc.errno in _FULL:
        return RunFolderError(
            f"No space is left for {str(path)!r}. The episodes committed so far are safe: free "
            f"some space, then `hocket resume` this run."
        )
    return RunFolderError(f"{str(path)!r} cannot be written: {exc.strerror or exc}.")
