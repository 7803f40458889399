"""Frames of strangers: read within limits, and off the event loop where that takes long, from
connections whose bytes are bounded in sum, unfinished messages and handshakes included.

A frame is measured before anything is made of it, since a byte of it can become a hundred of
Python's objects. The served policy says what it can need at most. A large frame is read on another
thread: nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from websockets.asyncio.server import ServerConnection
from websockets.frames import CloseCode
from websockets.protocol import State

from hocket.core.codec import unpack
from hocket.core.specs import PolicySpec
from hocket.errors import PolicyError, WireError
from hocket.serve.metrics import Metrics

SMALL_BYTES = 1 << 14
"""Bytes of a frame that needs no measuring: each makes one value at most, and all are made in a few
milliseconds."""
READERS = 2
"""Threads that read large frames."""
SPARE_BYTES = 16 << 20
"""Bytes that a request may have beside what the policy reads: cameras for others, say."""
SPARE_ITEMS = 4096
ROW_ITEMS = 32
"""Values in a frame beside its numbers, and for each row that may wait."""
UNSAID_ITEMS = 1 << 20
"""Numbers that a request may hold outside of arrays where the policy does not say what it reads."""
MAX_DEPTH = 32
SPARE_TEXT = 1 << 20
ROW_TEXT = 1024
"""Bytes of text in a frame, and for each row that may wait."""

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """Upper bounds of a stranger's frame."""

    items: int
    """Values and keys, in all of its maps and lists together."""
    depth: int
    """Maps and lists inside each other."""
    text: int
    """Bytes of text, keys included."""


PLAIN_BYTES = 4 << 20
PLAIN = FrameLimits(items=256, depth=4, text=1 << 14)
"""What a frame of a few pictures, states and a prompt does not exceed. To hand it to another thread
takes longer than to read it."""


def frame_limits(spec: PolicySpec | None, max_queue: int) -> FrameLimits:
    """What a frame may hold for this policy, None where it says nothing of itself."""
    numbers = _numbers(spec)
    return FrameLimits(
        items=SPARE_ITEMS + ROW_ITEMS * max_queue + (UNSAID_ITEMS if numbers is None else numbers),
        depth=MAX_DEPTH,
        text=SPARE_TEXT + ROW_TEXT * max_queue,
    )


def most_bytes(spec: PolicySpec) -> int | None:
    """The bytes that a request for this policy can need at most; None where it does not say."""
    numbers = _numbers(spec)
    return None if numbers is None else SPARE_BYTES + 8 * numbers * spec.max_batch


def _numbers(spec: PolicySpec | None) -> int | None:
    """Numbers in one row, where the policy says all of what it reads."""
    if spec is None or spec.inputs is None:
        return None
    shapes = [wanted.shape for wanted in spec.inputs.values()]
    if any(-1 in shape for shape in shapes):
        return None
    return spec.history * sum(math.prod(shape) for shape in shapes)


def unpack_map(frame: bytes) -> Mapping[str, Any]:
    """The map that one frame is."""
    request = unpack(frame)
    if not isinstance(request, Mapping):
        raise WireError(f"A request must be a map, not {type(request).__name__}.")
    return request


class FrameReader:
    """A reader of frames within limits. Close it."""

    def __init__(self, limits: FrameLimits) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="hocket-frames")

    async def read(self, frame: bytes, parse: Callable[[bytes], Read]) -> Read:
        """Parse a frame, on another thread if that takes long."""
        if len(frame) <= SMALL_BYTES or (len(frame) <= PLAIN_BYTES and _is_plain(frame)):
            return parse(frame)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._read, frame, parse)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, frame: bytes, parse: Callable[[bytes], Read]) -> Read:
        measure(frame, self._limits)
        return parse(frame)


def _is_plain(frame: bytes) -> bool:
    """True where a frame is a few values, such as arrays, which are read in no time."""
    try:
        measure(frame, PLAIN)
    except WireError:
        return False
    return True


def measure(frame: bytes, limits: FrameLimits) -> None:
    """Read the headers of a frame without making anything of it. Raises WireError where it is cut
    short or exceeds the limits."""
    at, items, text = 0, 1, 0
    left, outer = 1, [0]  # values that are still to come: here, and in all that is open around it
    try:
        while outer:
            if not left:
                left = outer.pop()
                continue
            left -= 1
            kind, width, size = _HEADERS[frame[at]]
            at += 1
            if width:
                at += width
                size = int.from_bytes(frame[at - width : at], "big")
            if kind == _PLAIN:
                at += size
                continue
            if kind == _TEXT:
                at += size
                text += size
            elif kind == _REFUSED:
                raise ValueError("it has a type that requests have not")
            else:
                outer.append(left)
                left = size * kind
                items += left
            if items > limits.items or text > limits.text or len(outer) > limits.depth + 1:
                raise ValueError(
                    f"this server takes at most {limits.items} values, {limits.depth} levels and "
                    f"{limits.text} bytes of text in one"
                )
    except IndexError as exc:
        raise WireError(f"A frame of {len(frame)} bytes cannot be read: it is cut short.") from exc
    except ValueError as exc:
        raise WireError(f"A frame of {len(frame)} bytes is refused: {exc}.") from exc


_REFUSED, _LIST, _MAP, _TEXT, _PLAIN = range(5)
"""Kinds of headers. The numbers of a list and a map are the values that each of their items has."""


def _header(code: int) -> tuple[int, int, int]:
    """For the first byte of a value: its kind, the width of its size in bytes, and its size where
    the byte itself says it."""
    if code <= 0x7F or code >= 0xE0 or code in (0xC0, 0xC2, 0xC3):
        return _PLAIN, 0, 0
    if code <= 0x8F:
        return _MAP, 0, code & 0x0F
    if code <= 0x9F:
        return _LIST, 0, code & 0x0F
    if code <= 0xBF:
        return _TEXT, 0, code & 0x1F
    if 0xC4 <= code <= 0xC6:
        return _PLAIN, 1 << code - 0xC4, 0
    if 0xCA <= code <= 0xD3:
        return _PLAIN, 0, (4, 8, 1, 2, 4, 8, 1, 2, 4, 8)[code - 0xCA]
    if 0xD9 <= code <= 0xDB:
        return _TEXT, 1 << code - 0xD9, 0
    if 0xDC <= code <= 0xDF:
        return (_LIST if code <= 0xDD else _MAP), (2, 4)[code & 1], 0
    return _REFUSED, 0, 0


_HEADERS = [_header(code) for code in range(256)]


MAX_PIECES = 4096
"""Pieces of one message; hocket's own client sends a mebibyte in each."""
_PIECE_BYTES = 256
"""What a piece that waits costs beside its bytes: it may be empty, and thousands come at once."""
_DISMISSED = (
    "Requests of all clients are too large together, and this one was not yet here as a whole and "
    "is more than a client's share. Try again later."
)
_DISMISSED_S = 2.0
"""Seconds for a client to take leave."""


class Overloaded(PolicyError):
    """Too much waits already."""


class Budget:
    """What all connections of a server hold together, on one event loop."""

    def __init__(self, max_bytes: int, max_connections: int, metrics: Metrics) -> None:
        """`max_connections` are those whose handshake has not ended, too."""
        self._max_bytes = max_bytes
        self._max_connections = max_connections
        self._held: dict[MeasuredConnection, int] = {}
        """Bytes of each, in the order in which they began the message that is coming."""
        self._metrics = metrics
        self.total = 0

    def enter(self, connection: MeasuredConnection) -> None:
        """Take a connection. Where there are too many, the one goes that has not ended its
        handshake for longest: an honest one does so at once."""
        self._held[connection] = 0
        if len(self._held) > self._max_connections:
            self._drop(next((one for one in self._held if one.request is None), connection))

    def count(self, connection: MeasuredConnection, held: int) -> None:
        """Note what a connection holds now. While all hold too much, of those with more than their
        share in messages that are still coming the one goes that began first: an honest message
        soon comes to its end, and one that is held back for harm does not."""
        if connection not in self._held:  # it was dropped
            return
        self.total += held - self._held[connection]
        self._held[connection] = held
        while self.total > self._max_bytes:
            share = self._share()
            first = next((one for one in self._held if one.coming > share), None)
            if first is None:  # the rest is being answered, which ends by itself
                return
            self._drop(first)

    def begin(self, connection: MeasuredConnection) -> None:
        """A connection awaits its next message."""
        if connection in self._held:
            self._held[connection] = self._held.pop(connection)

    def check(self, size: int) -> None:
        """Refuse a whole message beyond its connection's share while all hold too much."""
        if self.total > self._max_bytes and size > self._share():
            raise Overloaded(
                f"Requests of {self.total >> 20} MiB are in hand, and this one of {size >> 20} MiB "
                "is more than a client's share. Try again later."
            )

    def leave(self, connection: MeasuredConnection) -> None:
        self.total -= self._held.pop(connection, 0)

    def _share(self) -> int:
        return self._max_bytes // max(1, len(self._held))

    def _drop(self, connection: MeasuredConnection) -> None:
        self._metrics.errors["held_too_much"] += 1
        self.leave(connection)
        connection.dismiss()


class MeasuredConnection(ServerConnection):
    """A connection that counts its bytes from the first of its handshake on."""

    def __init__(self, budget: Budget, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._budget = budget
        self._head = 0
        """Bytes of the handshake: its headers stay."""
        self._pieces = 0
        """Bytes of the message that is being taken, or answered."""
        self._is_whole = False
        self.coming = 0
        """Bytes of what is not yet a whole message."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._budget.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._budget.leave(self)

    def data_received(self, data: bytes) -> None:
        if self.request is None:
            self._head += len(data)
        super().data_received(data)
        self._count()

    async def take(self) -> str | bytes:
        """The next message, which counts until the one after it is awaited. Its pieces are counted
        too, since they may be empty and without end."""
        self._pieces, self._is_whole = 0, False
        self._budget.begin(self)
        self._count()
        pieces: list[Any] = []
        async for piece in self.recv_streaming():
            pieces.append(piece)
            if len(pieces) > MAX_PIECES:
                raise WireError(f"A message comes in at most {MAX_PIECES} pieces.")
            self._pieces += len(piece) + _PIECE_BYTES
            self._count()
        self._is_whole = True
        self._count()
        whole: str | bytes = pieces[0] if len(pieces) == 1 else type(pieces[0])().join(pieces)
        self._budget.check(len(whole))
        return whole

    def dismiss(self) -> None:
        """End the connection, and keep nothing of what still comes. A client that listens is told
        why."""
        if self.state is State.OPEN:
            self.protocol.send_text(_DISMISSED.encode())
            self.protocol.fail(CloseCode.TRY_AGAIN_LATER, "See the previous frame.")
            self.send_data()
            self.loop.call_later(_DISMISSED_S, self.transport.abort)
        else:
            self.transport.abort()

    def _count(self) -> None:
        waiting = self.recv_messages.frames.queue
        self.coming = self._head + len(self.protocol.reader.buffer)
        self.coming += sum(len(frame.data) + _PIECE_BYTES for frame in waiting)
        held = self.coming + self._pieces
        if not self._is_whole:
            self.coming = held
        self._budget.count(self, held)
