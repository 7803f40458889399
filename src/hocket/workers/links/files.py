"""How the files of sinks come from a worker that does not share the parent's disk."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import chain
from typing import Protocol

from hocket.core import plugins
from hocket.core.contracts.recorder import SPILL
from hocket.core.data import Ref
from hocket.core.wire import MAX_PIECE, Piece, Sealed
from hocket.errors import UsageError, WireError
from hocket.system.durable import TEMPORARY

QUOTA = 4 << 30
"""Most bytes of one attempt's files. An hour of lossless pictures is less."""
_NAME = 200
"""Most bytes of a file's name."""


class Digest(Protocol):
    """What a hash of bytes can do, as hashlib has it."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


Hasher = Callable[[bytes], Digest]


class Outgoing:
    """The files of a worker's ended attempts, on their way to the parent a piece at a time, so that
    observations can go in between."""

    def __init__(self, folder: str, post: Callable[[Piece | Sealed], None]) -> None:
        """`folder` is where the worker's sinks write; what was sent is deleted there."""
        self._folder = folder
        self._post = post
        self._waiting: deque[tuple[int, Iterator[Piece | Sealed]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, sealed: Sealed) -> None:
        """Send the files that a message names, and then the message."""
        self._waiting.append((sealed.lane, chain(self._pieces(*sealed[:3]), (sealed,))))

    def send_one(self) -> None:
        """Send the next piece, if there is one."""
        while self._waiting:
            message = next(self._waiting[0][1], None)
            if message is not None:
                self._post(message)
                return
            self._waiting.popleft()

    def finish(self, lanes: Sequence[int] | None = None) -> None:
        """Send all that is left of these lanes, or of all, before whatever else is said of them."""
        while any(lanes is None or lane in lanes for lane, _ in self._waiting):
            self.send_one()

    def leave(self, lane: int, attempt: int, files: Sequence[str]) -> None:
        """Send at once what an attempt left that is lost; who reads it is told of the loss next."""
        for piece in self._pieces(lane, attempt, files):
            self._post(piece)

    def _pieces(self, lane: int, attempt: int, files: Sequence[str]) -> Iterator[Piece]:
        for name in files:
            path = os.path.join(self._folder, name)
            yield from pieces(lane, attempt, path)
            os.unlink(path)


def pieces(
    lane: int,
    attempt: int,
    path: str,
    *,
    flags: int = 0,
    folder: int | None = None,
    hasher: Hasher = hashlib.sha256,
    longest: int = MAX_PIECE,
) -> Iterator[Piece]:
    """A file in pieces, for an Incoming; the last one, which may be empty, has the digest. `flags`
    are added to those for reading; `folder` is an open folder that `path` begins in; `longest` is
    the most bytes of a piece."""
    digest, begin, name = hasher(b""), 0, os.path.basename(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags, dir_fd=folder)
    with open(fd, "rb", buffering=0) as file:
        size = os.fstat(fd).st_size
        while True:
            data = file.read(longest) or b""
            digest.update(data)
            is_last = begin + len(data) >= size or not data
            sum_ = digest.digest() if is_last else b""
            yield Piece(lane, attempt, name, begin, data, sum_)
            begin += len(data)
            if is_last:
                return


class LeftFolder:
    """A folder of this machine that a worker in a container writes to as it likes, and that stays
    when it dies: no link in it is followed, and nothing is opened but plain files."""

    def __init__(self, path: str, inside: str) -> None:
        """`inside` is the folder's name in the container."""
        self._path = path
        self.inside = inside

    def hand_over(self, lane: int, attempt: int, slug: str, incoming: Incoming) -> None:
        """Give an Incoming what is there of an attempt, drafts as they are; what it does not take,
        or cannot be read, stays behind."""
        flags = os.O_NOFOLLOW | os.O_NONBLOCK
        with contextlib.ExitStack() as stack:

            def enter(name: str, folder: int | None = None) -> int:
                fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | flags, dir_fd=folder)
                stack.callback(os.close, fd)
                return fd

            stack.enter_context(contextlib.suppress(OSError, WireError))
            top = enter(self._path)
            for own in sorted(os.listdir(top)):
                with contextlib.suppress(FileNotFoundError):
                    place = enter(str(attempt), enter(slug, enter("episodes", enter(own, top))))
                    for name in sorted(os.listdir(place)):
                        if stat.S_ISREG(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode):
                            for piece in pieces(lane, attempt, name, flags=flags, folder=place):
                                incoming.take(piece, is_durable=False)


def undrafted(name: str) -> str:
    """The name that a hidden file will have once it is whole; any other name as it is."""
    is_draft = name.startswith(".") and name.endswith(TEMPORARY)
    return name[1:].removesuffix(TEMPORARY).removesuffix(SPILL) if is_draft else name


def declared_names(sinks: Sequence[Ref]) -> tuple[str, ...]:
    """Patterns of the names of all files that these sinks may leave."""
    patterns: list[str] = []
    for ref in sinks:
        found = getattr(plugins.find("recorders", ref.name).build, "files", None)
        if found is None:
            raise UsageError(
                f"The recorder {ref.name!r} does not declare the names of its files (a tuple "
                "`files` of patterns), so that it cannot record in workers elsewhere."
            )
        patterns += found
    return tuple(patterns)


@lru_cache
def _is_declared(name: str, patterns: tuple[str, ...], *, keeps: bool) -> bool:
    """True where one of the patterns matches the name. Raises WireError for names of no file."""
    is_plain = name == os.path.basename(name) and len(os.fsencode(name)) <= _NAME
    whole = undrafted(name) if is_plain and keeps else name
    if not is_plain or whole.startswith(".") or not name.isprintable():
        raise WireError(f"{name!r:.80} is no name for a file.")
    return any(fnmatchcase(whole, pattern) for pattern in patterns)


class Incoming:
    """The files of one attempt, as they arrive. The parent has chosen the folder, and takes only
    names that the sinks declare, and no more bytes than the quota."""

    def __init__(
        self,
        root: str | None,
        slug: str,
        attempt: int,
        patterns: tuple[str, ...],
        quota: int,
        *,
        keeps: bool = False,
        hasher: Hasher = hashlib.sha256,
    ) -> None:
        """`root` is the run folder, `slug` the trial's name in it. One that `keeps` takes drafts
        too, and what has come whole stays if the attempt is lost."""
        self._keeps = keeps
        self._hasher = hasher
        # A run folder's path is absolute, and looking at it again costs as much as opening a file.
        top = root if root and root.startswith("/") else os.path.abspath(root or ".")
        self._trial = f"{top}/episodes/{slug}"
        self._named = f"episodes/{slug}/{attempt}"
        """The attempt's folder, as it is named in the run folder."""
        self._folder = f"{self._trial}/{attempt}"
        self._patterns = patterns
        self._left = quota
        self._file: io.FileIO | None = None
        self._name = self._draft = ""
        self._at = 0
        self._names: list[str] = []
        """Files that are whole."""

    def take(self, piece: Piece, *, is_durable: bool = True) -> None:
        """Take the next piece. An `is_durable` file is on the disk when its last is taken."""
        if self._file is None:
            self._begin(piece, is_durable=is_durable)
        self._left -= len(piece.data)
        if piece.name != self._name or piece.begin != self._at or len(piece.data) > MAX_PIECE:
            raise WireError(f"The pieces of {self._name!r} do not follow each other.")
        if self._left < 0:
            raise WireError("The files of an attempt are larger than they may be.")
        assert self._file is not None
        if self._file.write(piece.data) < len(piece.data):  # As where a disk is full.
            self.discard()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{self._folder}/{self._name}")
        self._digest.update(piece.data)
        self._at += len(piece.data)
        if piece.digest:
            self._publish(piece.digest, is_durable=is_durable)

    def finish(self, files: Sequence[str]) -> list[str]:
        """The files that came, as they are named in the run folder here; WireError unless they are
        the ones in `files`."""
        claimed = sorted([str(name).rpartition("/")[2] for name in files])
        is_draft = self._keeps and any(name.startswith(".") for name in claimed)
        if claimed != sorted(self._names) or self._file is not None or is_draft:
            self.discard()
            raise WireError(f"Not all of the files {claimed!r:.200} have come.")
        return [f"{self._named}/{name}" for name in self._names]

    def discard(self) -> None:
        """Leave nothing of the attempt behind, or only whole files where it is to leave some."""
        unwanted = [] if self._keeps else self._names
        self._names = []
        if self._file is not None:
            self._file.close()
            self._file = None
            unwanted.append(self._draft)
        for name in unwanted:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, name))
        with contextlib.suppress(OSError):  # Others may have files there.
            os.rmdir(self._folder)

    def _begin(self, piece: Piece, *, is_durable: bool) -> None:
        """Open a file for its first piece."""
        name = piece.name
        if name in self._names or not _is_declared(name, self._patterns, keeps=self._keeps):
            raise WireError(f"No recorder has declared a file {name!r}.")
        if not self._names:
            self._make_folder()
        # Until its episode counts nothing names a file, and a killed run's is deleted: one that
        # comes in one piece needs no other name while it is written.
        is_whole = piece.digest and not (piece.begin or is_durable or self._keeps)
        self._name, self._draft = name, name if is_whole else f".{name}.tmp"
        self._file = open(f"{self._folder}/{self._draft}", "wb", buffering=0)  # noqa: SIM115
        self._digest, self._at = self._hasher(b""), 0

    def _make_folder(self) -> None:
        # Most are the first of their trial: no look at what is there costs less than making both.
        for folder in (self._trial, self._folder):
            try:
                os.mkdir(folder)
            except FileExistsError:
                continue
            except FileNotFoundError:
                os.makedirs(folder, exist_ok=True)

    def _publish(self, digest: bytes, *, is_durable: bool) -> None:
        assert self._file is not None
        if digest != self._digest.digest():
            self.discard()
            raise WireError(f"The file {self._name!r} did not arrive as it was sent.")
        if is_durable:
            os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        if self._draft != self._name:
            os.replace(f"{self._folder}/{self._draft}", f"{self._folder}/{self._name}")
        self._names.append(self._name)
