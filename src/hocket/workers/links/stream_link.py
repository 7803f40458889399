"""What every link does whose worker is at the other end of a stream."""

from __future__ import annotations

import abc
import socket

from hocket.core.data import Observation
from hocket.core.wire import (
    MAX_FRAME,
    Begin,
    Execute,
    Executed,
    Frames,
    Message,
    Observed,
    Ready,
    pack,
)
from hocket.errors import WireError, WorkerFailed
from hocket.workers.links.guard import Guard
from hocket.workers.links.lane_arrays import LaneArrays

_READ = 1 << 12
"""Bytes for one read: an answer without arrays is far shorter."""
_READ_LONG = 1 << 20
"""Bytes for one read where observations or files come over the stream too."""
_GUARDED_FRAME = 1 << 28
"""Most bytes of a message from a worker that is not trusted: a thousand rows' observations."""
_FDS = 8
"""Descriptors that a worker may have sent ahead of the messages that they belong to."""


def make_roomy(far: socket.socket) -> None:
    """Let what is sent from this end be a whole observation, which is then read at once. (Where the
    system allows less, it takes as much as it allows.)"""
    far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _READ_LONG)


class StreamLink(abc.ABC):
    """Sends and receives messages without blocking, and keeps the lanes' arrays. A subclass says
    how the worker's life is followed, and raises WorkerFailed with its end.

    With a guard, nothing but answers to what was asked is let through: the worker lives in a
    container or on another machine, and is not trusted.
    """

    def __init__(
        self, stream: socket.socket, lanes: int, guard: Guard | None, slots: int = 1
    ) -> None:
        stream.settimeout(0)
        self._stream = stream
        self._lanes = lanes
        self._guard = guard
        self._frames = Frames(MAX_FRAME if guard is None else _GUARDED_FRAME)
        self._out = bytearray()
        self._arrays = LaneArrays(lanes, slots)
        self._expects_fd = False
        self._space = memoryview(b"")
        """Where observations and files are read into that come over the stream."""

    def send(self, message: Message) -> bool:
        kind = type(message)
        if kind is Begin:
            self._expects_fd = True
        elif kind is Execute:
            # Sent only once every earlier Begin of the lane was answered.
            self._expects_fd = self._lanes > 1
        if self._guard is not None:
            message = self._guard.ask(message)
        data = pack(message)
        if self._out:
            self._out += data
            return self.flush()
        try:
            sent = self._stream.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return True  # `receive` will say why.
        if sent == len(data):
            return True
        self._out += data[sent:]
        return False

    def flush(self) -> bool:
        try:
            while self._out:
                del self._out[: self._stream.send(self._out)]
        except BlockingIOError:
            return False
        except OSError:
            self._out.clear()
        return True

    def receive(self) -> list[Message]:
        data = self._read()
        if data is None:
            return []
        if not data:
            raise WorkerFailed(self._epitaph())
        if self._guard is None:
            return self._take(self._frames.feed(data))
        try:
            return self._take(self._guard.admit(self._frames.feed(data)))
        except (WireError, ValueError, TypeError, LookupError, OverflowError, MemoryError) as exc:
            raise WorkerFailed(f"The worker said what no worker says: {exc}") from exc

    def fileno(self) -> int:
        return self._stream.fileno()

    def arrays(self, lane: int, chunk: int = 0) -> Observation:
        return self._arrays.views(lane, chunk)

    def _take(self, messages: list[Message]) -> list[Message]:
        """Take the arrays of messages."""
        for message in messages:
            kind = type(message)
            if kind is Executed or kind is Observed:
                if message.arrays is not None:  # type: ignore[union-attr]
                    self._fill(message)  # type: ignore[arg-type]
            elif kind is Ready:
                self._arrays.adopt(message)  # type: ignore[arg-type]
        return messages

    def _fill(self, message: Executed | Observed) -> None:
        """Take the arrays of a message: what is seen for the next chunk, or at the episode's end,
        where the policy may still read what was seen for the next."""
        chunks = [chunk + 1 for chunk in message.chunks]
        if isinstance(message, Executed):
            ends = zip(message.chunks, message.ends, strict=True)
            chunks = [chunk + (not end) for chunk, end in ends]
        assert message.arrays is not None
        self._arrays.fill(message.lanes, message.arrays, chunks)

    def _read(self) -> bytes | memoryview | None:
        """The bytes that have come, until the next call: None for none yet, empty at the end of the
        stream."""
        is_long = self._arrays.are_inline or (self._guard is not None and self._guard.has_files)
        try:
            if not self._expects_fd and not is_long:
                return self._stream.recv(_READ)
            if not self._expects_fd:
                if not self._space:
                    self._space = memoryview(bytearray(_READ_LONG))
                return self._space[: self._stream.recv_into(self._space)]
            size = _READ_LONG if is_long else _READ
            data, fds, _, _ = socket.recv_fds(self._stream, size, 4)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        self._arrays.fds.extend(fds)
        if len(self._arrays.fds) > _FDS:
            raise WorkerFailed("The worker sent more descriptors than it has memory to share.")
        return data

    @abc.abstractmethod
    def _epitaph(self) -> str:
        """How the worker ended."""

    def _let_go(self) -> None:
        self._stream.close()
        self._arrays.close()
        if self._guard is not None:
            self._guard.close()
