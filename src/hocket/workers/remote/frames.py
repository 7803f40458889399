"""The frames of a WebSocket (RFC 6455), as far as a stream of bytes needs them.

Bytes are given on as they come, from memory that is kept; a library would gather whole messages, in
new memory for each, which costs a picture more than all else on its way.
"""

from __future__ import annotations

import secrets
import struct

from websockets.utils import apply_mask

MAX_MESSAGE = 1 << 20
"""Most bytes of one message."""
CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_MAX_CONTROL = 125
_SHORT, _LONG = struct.Struct(">H"), struct.Struct(">Q")


class FrameError(Exception):
    """The other end does what no stream of bytes needs, or may do."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        """Why a WebSocket is closed, in numbers."""


def frame(kind: int, data: bytes, *, masks: bool) -> tuple[bytes, bytes]:
    """A frame that is a whole message: its header, and its payload, masked where it must be."""
    size, masked = len(data), 0x80 if masks else 0
    if size < 126:
        head = bytes((0x80 | kind, masked | size))
    elif size < 1 << 16:
        head = bytes((0x80 | kind, masked | 126)) + _SHORT.pack(size)
    else:
        head = bytes((0x80 | kind, masked | 127)) + _LONG.pack(size)
    if not masks:
        return head, data
    key = secrets.token_bytes(4)
    return head + key, apply_mask(data, key)


class FrameReader:
    """Takes payloads out of frames, however their bytes arrive. Raises FrameError."""

    def __init__(self, *, are_masked: bool) -> None:
        """`are_masked` is whether frames have to be, as those have to be that a client sends."""
        self._are_masked = are_masked
        self._head = bytearray()
        """The header of a frame that is not over."""
        self._is_open = False
        """Whether the header is whole."""
        self._kind = CONTINUED
        self._left = 0
        """Bytes of the payload that are to come."""
        self._key = b""
        self._message: int | None = None
        """Bytes of the message that goes on."""
        self._control = bytearray()
        self.pings: list[bytes] = []
        """What wants to be answered."""
        self.is_closed = False

    def take(self, data: memoryview) -> list[bytes | memoryview]:
        """The parts of payloads in these bytes, in order."""
        found: list[bytes | memoryview] = []
        at = 0
        while at < len(data) and not self.is_closed:
            if not self._is_open:
                at = self._take_head(data, at)
                continue
            part = self._plain(data[at : at + self._left])
            at += len(part)
            self._left -= len(part)
            if self._kind > BINARY:
                self._control += part
            elif part:
                found.append(part)
            self._end_if_whole()
        return found

    def _take_head(self, data: memoryview, at: int) -> int:
        """Take bytes of a header; gives where they end."""
        size = self._head_size()
        part = data[at : at + size - len(self._head)]
        self._head += part
        if len(self._head) == self._head_size():
            self._open()
        return at + len(part)

    def _head_size(self) -> int:
        if len(self._head) < 2:
            return 2
        return 2 + {126: 2, 127: 8}.get(self._head[1] & 0x7F, 0) + 4 * self._are_masked

    def _open(self) -> None:
        first, second = self._head[:2]
        self._kind, size = first & 0x0F, second & 0x7F
        if first & 0x70 or bool(second & 0x80) != self._are_masked:
            raise FrameError(1002, "The frame is none that was agreed on.")
        if size > 125:
            size = (_SHORT if size == 126 else _LONG).unpack_from(self._head, 2)[0]
        self._key = bytes(self._head[-4:]) if self._are_masked else b""
        is_last = bool(first & 0x80)
        if self._kind in (CLOSE, PING, PONG):
            if size > _MAX_CONTROL or not is_last:
                raise FrameError(1002, "A control frame is too long.")
        else:
            self._count(size, is_last=is_last)
        self._left, self._is_open = size, True
        self._end_if_whole()

    def _count(self, size: int, *, is_last: bool) -> None:
        if self._kind == TEXT:
            raise FrameError(1003, "Text came where a stream of bytes was expected.")
        if self._kind != (BINARY if self._message is None else CONTINUED):
            raise FrameError(1002, "A message was begun or continued out of order.")
        whole = (self._message or 0) + size
        if whole > MAX_MESSAGE:
            raise FrameError(1009, f"A message of {whole} bytes is too long.")
        self._message = None if is_last else whole

    def _plain(self, part: memoryview) -> bytes | memoryview:
        if not self._are_masked:
            return part
        plain = apply_mask(bytes(part), self._key)
        turn = len(plain) % 4
        self._key = self._key[turn:] + self._key[:turn]
        return plain

    def _end_if_whole(self) -> None:
        if self._left:
            return
        if self._kind == PING:
            self.pings.append(bytes(self._control))
        self.is_closed = self._kind == CLOSE
        self._control.clear()
        self._head.clear()
        self._is_open = False
