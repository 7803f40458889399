"""How the files of episodes come from sites, in pieces.

The driver chooses every path. A site names files by their base names alone, and only such as the
run's recorders declare.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from hocket.core.data import Trial
from hocket.core.wire import Piece
from hocket.errors import WireError
from hocket.machines.leasing.entries import LeaseId
from hocket.machines.protocol import HASHER, FilePiece
from hocket.records.folder import RunFolder
from hocket.records.ledger.writer import ReceivesFiles
from hocket.workers.links.files import QUOTA, Incoming


@dataclass(slots=True)
class _Arriving:
    """The files of an attempt, as far as they have come."""

    incoming: Incoming | None = None
    """Writes those that no receiver takes."""
    held: list[str] = field(default_factory=list)
    """Files whose bytes a receiver has."""


class Receipts:
    """The files of a run's episodes on their way into its folder."""

    def __init__(
        self,
        folder: RunFolder,
        patterns: Sequence[str],
        receivers: Mapping[str, ReceivesFiles],
        quota: int = QUOTA,
    ) -> None:
        """`patterns` are the names that files may have, `receivers` take the bytes of some of them,
        `quota` is the most bytes of an attempt."""
        self._folder = folder
        self._root = str(folder.root)
        self._patterns = tuple(patterns)
        self._receivers = {
            file: receiver
            for file, receiver in receivers.items()
            if any(fnmatchcase(file, pattern) for pattern in patterns)
        }
        self._quota = quota
        self._arriving: dict[LeaseId, _Arriving] = {}

    def take(self, name: LeaseId, trial: Trial, piece: FilePiece) -> None:
        """Take one piece; WireError where it is not what may come."""
        arriving = self._arriving.setdefault(name, _Arriving())
        is_whole = piece.digest and not piece.begin and piece.name in self._receivers
        if is_whole and self._hold(arriving.held, trial, piece):
            return
        if arriving.incoming is None:
            arriving.incoming = Incoming(
                self._root, trial.slug, piece.attempt, self._patterns, self._quota, hasher=HASHER
            )
        # The ledger makes the files of many episodes durable at once.
        arriving.incoming.take(Piece(0, *piece[1:]), is_durable=False)

    def _hold(self, held: list[str], trial: Trial, piece: FilePiece) -> bool:
        """Give a file that has come whole to its receiver; false where it must be written."""
        if piece.name in held:
            raise WireError(f"The file {piece.name!r} has come twice.")
        if piece.digest != HASHER(piece.data).digest():
            raise WireError(f"The file {piece.name!r} did not arrive as it was sent.")
        try:
            is_held = self._receivers[piece.name].receive(trial, piece.attempt, piece.data)
        except ValueError as exc:
            raise WireError(f"{piece.name!r} of {trial.id} cannot be read: {exc}.") from None
        held += [piece.name] * is_held
        return is_held

    def finish(self, name: LeaseId, files: Sequence[str]) -> tuple[str, ...]:
        """The files of an attempt that have come, as they are named in the run folder, less
        those that a receiver has."""
        arriving = self._arriving.pop(name, _Arriving())
        incoming, held = arriving.incoming, arriving.held
        rest = [file for file in files if file not in held] if held else files
        if len(rest) + len(held) != len(files) or (rest and incoming is None):
            if incoming is not None:
                incoming.discard()
            raise WireError(f"Not all of the files {list(files)!r:.200} have come.")
        return () if incoming is None else tuple(incoming.finish(rest))

    def discard(self, name: LeaseId, trial: Trial) -> None:
        """Leave nothing of an attempt behind that will not count."""
        self.restart(name)
        self.forget(trial, name.attempt)
        shutil.rmtree(self._folder.attempt(trial, name.attempt), ignore_errors=True)

    def forget(self, trial: Trial, attempt: int) -> None:
        """Have receivers forget an attempt that will be no episode."""
        for receiver in self._receivers.values():
            receiver.forget(trial, attempt)

    def restart(self, name: LeaseId) -> None:
        """Forget what has come of an attempt so far."""
        arriving = self._arriving.pop(name, None)
        if arriving is not None and arriving.incoming is not None:
            arriving.incoming.discard()
