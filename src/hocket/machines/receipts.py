"""How the files of episodes come from sites: in pieces, or by a disk that both see.

The driver chooses every path. A site names files by their base names alone, and only such as the
run's recorders declare.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from hocket.core.data import Trial
from hocket.core.wire import Piece
from hocket.errors import WireError
from hocket.machines.lease import LeaseId
from hocket.machines.protocol import FilePiece
from hocket.records.folder import RunFolder
from hocket.workers.files import QUOTA, Delivery

INBOXES = ".sites"
"""The folder in the run folder where sites that share the disk write, each in one of its own."""
PROOF = "proof"


class Receipts:
    """Takes the files of a run's episodes into its folder."""

    def __init__(self, folder: RunFolder, patterns: Sequence[str], quota: int = QUOTA) -> None:
        """`patterns` are the names that files may have, `quota` is the most bytes of an attempt."""
        self._folder = folder
        self._root = str(folder.root)
        self._patterns = tuple(patterns)
        self._quota = quota
        self._open: dict[LeaseId, Delivery] = {}

    def take(self, name: LeaseId, trial: Trial, piece: FilePiece) -> None:
        """Take one piece; WireError where it is not what may come."""
        delivery = self._open.get(name)
        if delivery is None:
            delivery = self._open[name] = Delivery(
                self._root, trial.slug, name.attempt, self._patterns, self._quota
            )
        # The ledger makes the files of many episodes durable at once.
        delivery.take(Piece(0, *piece[1:]), is_durable=False)

    def finish(self, name: LeaseId, files: Sequence[str]) -> tuple[str, ...]:
        """The files of an attempt that came in pieces, as they are named in the run folder."""
        delivery = self._open.pop(name, None)
        if delivery is None:
            if files:
                raise WireError(f"None of the files {list(files)!r:.200} have come.")
            return ()
        return tuple(delivery.finish(files))

    def link(
        self, name: LeaseId, trial: Trial, files: Sequence[str], inbox: Path
    ) -> tuple[str, ...]:
        """Take the files of an attempt out of a site's inbox. They stay there too: a driver that
        dies now finds them again."""
        taken: list[str] = []
        inbox = inbox.resolve()
        target, left = self._folder.attempt(trial, name.attempt), self._quota
        shutil.rmtree(target, ignore_errors=True)
        for file in files:
            if not any(fnmatchcase(file, p) for p in self._patterns) or "/" in file:
                raise WireError(f"No recorder has declared a file {file!r:.80}.")
            source = inbox / "episodes" / trial.slug / str(name.attempt) / file
            try:
                found = source.lstat()
                real = os.path.realpath(source)
            except OSError as exc:
                raise WireError(f"The file {file!r} is not there: {exc.strerror}.") from None
            left -= found.st_size
            if not stat.S_ISREG(found.st_mode) or real != str(source) or left < 0:
                raise WireError(f"The file {file!r} is not one that may come.")
            target.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target / file)
            except OSError:  # Not every file system has links.
                shutil.copyfile(source, target / file)
            taken.append(os.path.relpath(target / file, self._folder.root))
        return tuple(taken)

    def discard(self, name: LeaseId, trial: Trial) -> None:
        """Leave nothing of an attempt behind that will not count."""
        if (delivery := self._open.pop(name, None)) is not None:
            delivery.discard()
        folder = self._folder.attempt(trial, name.attempt)
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)

    def restart(self, name: LeaseId) -> None:
        """Forget what has come so far: all of it will be sent again."""
        if (delivery := self._open.pop(name, None)) is not None:
            delivery.discard()
