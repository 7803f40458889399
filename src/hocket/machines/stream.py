"""What a site and its driver tell each other, over as many connections as that takes.

Each way goes one row of bytes: the messages, each behind its length. A frame is the next part of
them, behind the number of bytes that have come the other way. What is not known to have come stays
with who sent it, and a new connection goes on where the last one has brought it, in the middle of a
message too. Once either end has forgotten the stream a new one begins, and both compare what they
hold.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator

from hocket.errors import WireError
from hocket.machines.protocol import LONGEST, Message, pack, unpack

FIRST = 1 << 11
"""Most bytes of a connection's first frame. A later one has at most as many as came before it: a
connection that breaks has brought about half of what it carried."""
NOBODYS = bytes(16)
"""The token of a stream that no driver knows."""
_AHEAD = 4 << 20
"""Bytes that are kept until they are known to have come: with more, no message is made."""
_MOST = 16 << 20
"""Most bytes of a message."""
_COUNT = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")


class Stream:
    """One end of it. It has no socket: its frames go over one connection at a time, in order."""

    def __init__(self, token: bytes = NOBODYS) -> None:
        """`token` names the stream at both ends."""
        self._token = token
        self._waiting: deque[Iterator[Message]] = deque()
        self._kept = bytearray()
        """What is not known to have come."""
        self._come = self._sent = self._carried = 0
        """Bytes that have come there; bytes of those kept that were sent on this connection, and
        bytes of all its frames."""
        self._held = bytearray()
        """The beginning of a message that has not come whole."""
        self._received = self._told = 0
        """Bytes that have come here, and of how many of them the other end was told."""

    def post(self, messages: Iterator[Message]) -> None:
        """Have messages sent, each made when it can be."""
        self._waiting.append(messages)

    @property
    def is_sent(self) -> bool:
        """True when this connection needs to carry no more."""
        return not self._waiting and self._sent == len(self._kept)

    def opening(self) -> bytes:
        """What each end says first on a connection."""
        self._told = self._received
        return self._token + _COUNT.pack(self._received)

    def go_on(self, opening: bytes | str) -> bool:
        """Go on where the other end is, which begins a connection with this; false where it knows
        another stream."""
        if isinstance(opening, str) or len(opening) != len(NOBODYS) + _COUNT.size:
            raise WireError("What came begins no stream of hocket's.")
        if opening[: len(NOBODYS)] != self._token:
            return False
        self._sent = len(self._kept)
        self._forget(*_COUNT.unpack_from(opening, len(NOBODYS)))
        self._sent = self._carried = 0
        return True

    def frame(self) -> bytes | None:
        """What to send next; None where there is nothing before something is posted, or comes."""
        size = max(FIRST, min(LONGEST, self._carried)) - _COUNT.size
        while self._waiting and len(self._kept) < min(_AHEAD, self._sent + size):
            message = next(self._waiting[0], None)
            if message is None:
                self._waiting.popleft()
            else:
                data = pack(message)
                self._kept += _LENGTH.pack(len(data)) + data
        part = self._kept[self._sent : self._sent + size]
        if not part and self._received - self._told < _AHEAD // 8:
            return None
        self._sent += len(part)
        self._carried += _COUNT.size + len(part)
        self._told = self._received
        return _COUNT.pack(self._received) + part

    def feed(self, frame: bytes | str) -> list[Message]:
        """The messages that are whole with this frame; WireError where it is none."""
        if isinstance(frame, str) or len(frame) < _COUNT.size:
            raise WireError("What came is no frame of hocket's.")
        self._forget(*_COUNT.unpack_from(frame))
        self._held += memoryview(frame)[_COUNT.size :]
        self._received += len(frame) - _COUNT.size
        found = []
        while len(self._held) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._held)[0]
            if end > _MOST:
                raise WireError(f"A message has more than {_MOST} bytes.")
            if len(self._held) < end:
                break
            message = self._held[_LENGTH.size : end]
            del self._held[:end]
            found.append(unpack(message))
        return found

    def _forget(self, come: int) -> None:
        """Keep what has come there no longer."""
        gone = come - self._come
        if not 0 <= gone <= self._sent:
            raise WireError("More has come there than was sent.")
        del self._kept[:gone]
        self._come, self._sent = come, self._sent - gone
