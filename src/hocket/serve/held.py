"""Connections whose bytes are bounded in sum, unfinished messages and handshakes included."""

from __future__ import annotations

import asyncio
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.frames import CloseCode
from websockets.protocol import State

from hocket.errors import PolicyError, WireError
from hocket.serve.metrics import Metrics

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
