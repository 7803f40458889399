"""How the messages of `wire.py` become bytes, and bytes messages.

A message is packed as a msgpack array, behind its number in `MESSAGES`; nothing is ever pickled. A
frame is four bytes of length (little-endian) and then the packed message.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from typing import Any

import msgpack

from hocket.core.wire import MESSAGES, Message
from hocket.errors import WireError

MAX_FRAME = 1 << 30
"""Most bytes of a message, far above any observation: a stream that claims more is taken for
somebody else's."""
_KEPT = 1 << 23
"""Most bytes of memory that are kept for the messages to come: a dozen pictures."""
_LENGTH = struct.Struct("<I")
_CODES = {kind: code for code, kind in enumerate(MESSAGES)}
_KINDS = dict(enumerate(MESSAGES))
"""A list would take negative numbers too."""


class _Packing(threading.local):
    """Each thread's packer: to make one for a short message takes longer than to pack that."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer().pack


_packing = _Packing()


def pack(message: Message) -> bytes:
    body: bytes = _packing.pack((_CODES[type(message)], *message))
    size = len(body)
    if size > _KEPT:
        _packing.pack = msgpack.Packer().pack  # It keeps as much memory as it needed once.
        if size > MAX_FRAME:
            raise WireError(f"A {type(message).__name__} message of {size} bytes is too long.")
    return _LENGTH.pack(size) + body


def unpack(body: bytes | bytearray | memoryview, kinds: Mapping[int, Any] = _KINDS) -> Any:
    """The message of these bytes, of these kinds by their numbers; WireError where it is none."""
    try:
        code, *fields = msgpack.unpackb(body, strict_map_key=False)
        message = kinds[code](*fields)
    except (ValueError, TypeError, KeyError, RecursionError, msgpack.UnpackException) as exc:
        raise WireError(f"A frame of {len(body)} bytes is no message of hocket's: {exc}") from exc
    return message


class Frames:
    """Cuts a stream of bytes into messages, however the bytes arrive."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        """`limit` is the most bytes that a message may have."""
        self._limit = limit
        # Kept from message to message: to get and give back that much memory for each observation
        # costs more than to copy it.
        self._held = bytearray()
        self._begin = self._end = 0
        """Where in it the bytes lie that are not yet a message."""

    def feed(self, data: bytes | memoryview) -> list[Message]:
        """Every message that is complete with these bytes, in order. Nothing of `data` is kept."""
        if self._begin == self._end:
            size = len(data)
            if size >= 4 and _LENGTH.unpack_from(data)[0] == size - 4:
                return [unpack(memoryview(data)[4:])]  # Nearly always it is just one frame.
            self._begin = self._end = 0
            if len(self._held) > _KEPT:
                self._held = bytearray()
        self._hold(data)
        messages: list[Message] = []
        while self._end - self._begin >= 4:
            begin, length = self._begin + 4, self._next_length()
            if self._end - begin < length:
                break
            messages.append(unpack(memoryview(self._held)[begin : begin + length]))
            self._begin = begin + length
        return messages

    def _next_length(self) -> int:
        (length,) = _LENGTH.unpack_from(self._held, self._begin)
        if length > self._limit:
            raise WireError(f"A frame claims {length} bytes; the stream is not hocket's.")
        return int(length)

    def _hold(self, data: bytes | memoryview) -> None:
        """Put bytes behind those that are held, in more memory where there is not enough."""
        count = self._end - self._begin
        if self._end + len(data) > len(self._held):
            most = count + len(data)
            room = self._held if most <= len(self._held) // 2 else bytearray(2 * most)
            room[:count] = self._held[self._begin : self._end]
            self._held, self._begin, self._end = room, 0, count
        self._held[self._end : self._end + len(data)] = data
        self._end += len(data)
