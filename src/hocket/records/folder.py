"""A run's folder on disk: where things lie, and who may write.

    run.yaml  report.json  report.html
    labels.jsonl                     what people said of episodes
    live/                            what is told to who watches a run; may be deleted
    ledger.sqlite                    trials, attempts, episodes
    chunks/  steps/                  part-*.parquet
    episodes/<trial>/<attempt>/      what sinks sealed
    .lock                            held by the one process that writes

Names that end in `.tmp` are files on their way: nothing reads them, and a resumed run deletes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from hocket.core.data import Trial
from hocket.errors import RunFolderError
from hocket.system.durable import disk_error


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run, which knows where everything in it lies."""

    root: Path

    @classmethod
    def at(cls, path: FolderLike) -> RunFolder:
        """The folder itself, or the one at a path (made absolute, so that `chdir` is harmless)."""
        return path if isinstance(path, RunFolder) else cls(Path(path).absolute())

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.sqlite"

    @property
    def episodes(self) -> Path:
        """The folder that has one folder for each trial, and in it one for each attempt."""
        return self.root / "episodes"

    def attempt(self, trial: Trial, attempt: int) -> Path:
        """The folder in which the sinks of an attempt write."""
        return self.episodes / trial.slug / str(attempt)

    def table(self, name: str) -> Path:
        """The folder that holds the segments of `chunks` or `steps`."""
        return self.root / name

    def lock(self) -> FolderLock:
        """Take the folder for this process; raises RunFolderError while another one has it."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise disk_error(exc, self.root) from exc
        return FolderLock(self.root / ".lock")


FolderLike = Union[RunFolder, Path, str]
"""A run folder, or the path of one."""


class FolderLock:
    """The right to write in a run folder, held until `release` or the death of the process.

    The lock belongs to the open file, and so dies with the process however that ends. A forked
    child gives its copy up at once: it must not keep a folder taken that its parent has left.
    """

    def __init__(self, path: Path) -> None:
        self._fd: int | None = None
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            raise disk_error(exc, path) from exc
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 400, 0).decode(errors="replace").strip()
            os.close(fd)
            raise RunFolderError(
                f"The run folder {str(path.parent)!r} is in use by "
                f"{holder or 'another process'}. Wait until that has ended, or stop it."
            ) from None
        except OSError as exc:
            os.close(fd)
            raise RunFolderError(
                f"The file system of {str(path.parent)!r} has no file locks ({exc.strerror}); put "
                f"the run folder on another one."
            ) from exc
        self._fd = fd
        _held.add(self)
        with contextlib.suppress(OSError):  # who holds it is for messages only
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Let others in. Releasing twice is safe."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _give_up_in_child() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_give_up_in_child)
