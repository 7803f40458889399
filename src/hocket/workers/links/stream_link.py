"""What every link does whose worker is at the other end of a stream."""

from __future__ import annotations

import abc
import mmap
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Observation
from hocket.core.frames import MAX_FRAME, Frames, pack
from hocket.core.wire import (
    Begin,
    Execute,
    Executed,
    Message,
    Observed,
    Open,
    Ready,
)
from hocket.errors import WireError, WorkerFailed
from hocket.workers.links.guard import Guard
from hocket.workers.shm import Layout, map_block, map_sealed

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


class LaneArrays:
    """Views of each lane's last observation: in memory that the worker shares, or in memory here,
    which what comes over the stream is copied into."""

    def __init__(self, lanes: int, slots: int, map_memory: Callable[[int], mmap.mmap]) -> None:
        """With more than one of `slots`, the observation for chunk k lies in slot k modulo it."""
        self._lanes = lanes
        self._slots = slots
        self._map = map_memory
        self.fds: deque[int] = deque()
        """Descriptors that came with messages, and that no Ready has asked for yet."""
        self._blocks: dict[int, Any] = {}
        """The worker's shared memory, by its number."""
        self.inline: dict[int, memoryview] = {}
        """By place (`lane * slots + slot`): what arrays that come over the stream are copied to."""
        self._views: list[Observation] = [{} for _ in range(lanes * slots)]

    def views(self, lane: int, chunk: int = 0) -> Observation:
        return self._views[lane * self._slots + chunk % self._slots]

    def adopt(self, ready: Ready) -> None:
        """Learn where lanes' arrays lie, from their first Ready and from each that moves them.
        Raises WireError where they do not lie in what the worker gave."""
        if ready.layout is not None and ready.arrays is not None:
            layout = Layout.from_plain(ready.layout, len(ready.arrays) // len(ready.lanes))
            for place in self._places(ready.lanes):
                memory = bytearray(layout.stride)
                self.inline[place] = memoryview(memory)
                self._views[place] = layout.views(memory, 0)
        elif ready.layout is not None:
            block = self._block(ready.block)
            layout = Layout.from_plain(ready.layout, len(block) // len(self._views))
            for place in self._places(ready.lanes):
                self.inline.pop(place, None)
                self._views[place] = layout.views(block, place)
        if ready.arrays is not None:
            self.fill(ready.lanes, ready.arrays, [0] * len(ready.lanes))

    def _places(self, lanes: Sequence[int]) -> list[int]:
        return [lane * self._slots + slot for lane in lanes for slot in range(self._slots)]

    def fill(self, lanes: Sequence[int], arrays: bytes, chunks: Sequence[int]) -> None:
        """Take observations that came over the stream, each for this chunk of its lane."""
        begin, whole = 0, memoryview(arrays)
        for lane, chunk in zip(lanes, chunks, strict=True):
            held = self.inline.get(lane * self._slots + chunk % self._slots)
            part = whole[begin : begin + len(held)] if held is not None else b""
            if held is None or len(part) != len(held):
                raise WireError("The arrays of a message are not those of its lanes.")
            held[:] = part
            begin += len(held)

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.popleft())

    def _block(self, number: int) -> Any:
        if number not in self._blocks:
            if self._lanes == 1:
                self._blocks.clear()  # No lane is left that reads the old one.
            if not self.fds:
                raise WireError("The memory of a worker's arrays did not come with its message.")
            fd = self.fds.popleft()
            try:
                self._blocks[number] = self._map(fd)
            finally:
                os.close(fd)
        return self._blocks[number]


class StreamLink(abc.ABC):
    """Sends and receives messages without blocking, and keeps the lanes' arrays. A subclass says
    how the worker's life is followed, and raises WorkerFailed with its end.

    With a guard, nothing but answers to what was asked is let through: the worker lives in a
    container or on another machine, and is not trusted.
    """

    def __init__(
        self,
        stream: socket.socket,
        spec: WorkerSpec,
        end: Callable[[], None],
        explain: Callable[[], str],
        guard: Guard | None,
    ) -> None:
        """`end` is called once, by `kill`, and ends the worker or what carries the stream;
        `explain` says why the stream ended, where the worker could not."""
        stream.settimeout(0)
        self._stream = stream
        self._lanes = spec.lanes
        self._end = end
        self._explain = explain
        self._is_closed = False
        self._guard = guard
        self._frames = Frames(MAX_FRAME if guard is None else _GUARDED_FRAME)
        self._out = bytearray()
        self._adopt(spec)
        self._expects_fd = False
        self._is_plain = False
        """The worker may say nothing but what is in a message of its own: no arrays, no files."""
        self._space = memoryview(b"")
        """Where observations and files are read into that come over the stream."""

    def open(self, spec: WorkerSpec) -> None:
        """Tell the worker what it is for."""
        self._adopt(spec)
        self.send(Open(spec.to_plain()))

    def _adopt(self, spec: WorkerSpec) -> None:
        map_memory = map_block if self._guard is None else map_sealed
        self._arrays = LaneArrays(spec.lanes, spec.slots, map_memory)
        self.arrays = self._arrays.views

    def send(self, message: Message) -> bool:
        kind = type(message)
        if kind is Execute:
            # Sent only once every earlier Begin of the lane was answered.
            self._expects_fd = self._lanes > 1
            self._is_plain = not (self._expects_fd or self._guard or self._arrays.inline)
        elif kind is Begin:
            self._expects_fd, self._is_plain = True, False
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
        data: bytes | memoryview | None
        if self._is_plain:
            try:
                data = self._stream.recv(_READ)
            except BlockingIOError:
                return []
            except OSError:
                data = b""
            if data:
                return self._frames.feed(data)
        else:
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

    def _take(self, messages: list[Message]) -> list[Message]:
        for message in messages:
            if isinstance(message, (Executed, Observed)) and message.arrays is not None:
                # What is seen for the next chunk; at an episode's end what is seen then, since the
                # policy may still read what was seen for the next.
                ends = message.ends if isinstance(message, Executed) else [0] * len(message.lanes)
                pairs = zip(message.chunks, ends, strict=True)
                chunks = [chunk + (not end) for chunk, end in pairs]
                self._arrays.fill(message.lanes, message.arrays, chunks)
            elif isinstance(message, Ready):
                self._arrays.adopt(message)
        return messages

    def _read(self) -> bytes | memoryview | None:
        """The bytes that have come, until the next call; None for none yet, empty at the end."""
        try:
            is_long = bool(self._arrays.inline) or (self._guard and self._guard.has_files)
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

    def kill(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._end()
            self._let_go()

    def _let_go(self) -> None:
        self._stream.close()
        self._arrays.close()
        if self._guard is not None:
            self._guard.close()
