"""Folders for what is needed only while a process lives.

A process that is killed leaves its folder behind; the next one that makes a folder of the same kind
deletes it. Who lives is told by a lock on a file in the folder, which ends with its process however
that ends, and holds between containers that share a disk, where numbers of processes mean nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_LOCK = "lock"
_UNLOCKED_S = 600.0
"""Seconds after which a folder without a lock is nobody's: it is locked as soon as it is made."""


class ScratchFolder(contextlib.AbstractContextManager["ScratchFolder"]):
    """A new folder among the temporary files, deleted by `close` or, after a kill, by the next
    process that makes one of this kind. Closing twice is safe."""

    def __init__(self, kind: str) -> None:
        """`kind` is a part of the folder's name, `hocket-<kind>-...`."""
        _sweep(kind)
        self.path = Path(tempfile.mkdtemp(prefix=f"hocket-{kind}-"))
        draft = self.path / f".{_LOCK}"
        self._fd: int | None = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        # Whoever sweeps finds the file under its name only once it is locked.
        draft.rename(self.path / _LOCK)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            _delete(self.path)
            os.close(fd)

    def __exit__(self, *_: object) -> None:
        self.close()


def _sweep(kind: str) -> None:
    """Delete the folders of this kind whose processes are gone. Those of other users stay."""
    for folder in Path(tempfile.gettempdir()).glob(f"hocket-{kind}-*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            try:
                fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                # Its process was killed before it had locked it, or after it had deleted the lock.
                if time.time() - folder.stat().st_mtime > _UNLOCKED_S:
                    _delete(folder)
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _delete(folder)
            finally:
                os.close(fd)


def _delete(folder: Path) -> None:
    """Delete a folder, its lock last: who is killed meanwhile leaves one that is still swept."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != _LOCK:
                entry.unlink()
    shutil.rmtree(folder, ignore_errors=True)
