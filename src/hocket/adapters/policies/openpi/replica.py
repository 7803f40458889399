"""Several connections to one OpenPI server, made when they are needed.

A question is a list of frames that one connection answers from first to last.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hocket.adapters.policies.openpi.connection import (
    Connection,
    Dialing,
    Dropped,
    Endpoint,
    Read,
    Repeated,
)
from hocket.adapters.policies.openpi.protocol import Announcement
from hocket.errors import SessionLostError

STOCK_CONNECTIONS = 2
"""A stock server works on one request at a time: one more is on its way meanwhile."""
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0
MAX_GREETINGS = 256
BELIEVED_REPEATS = 3
"""A server that really answered the same so often in a row is believed to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long and how often a client tries."""

    timeout_s: float = 60.0
    """For one request alone; each request ahead of it on the same server adds as much."""
    ready_timeout_s: float = 240.0
    """For a server to come up, or to come back; also for a server's first answer."""
    retries: int = 3
    """Times that one question is asked again after a drop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answers to a question's frames, all from one connection."""

    answers: list[Any]
    """What was read from each reply."""
    frames: list[bytes]
    source: str


class Replica:
    """One server: a few connections, made when they are needed."""

    def __init__(
        self,
        endpoint: Endpoint,
        dialing: Dialing,
        patience: Patience,
        connections: int,
        *,
        is_row_wise: bool,
    ) -> None:
        self.endpoint = endpoint
        self._dialing = dialing
        self._patience = patience
        self._connections = connections
        self._is_row_wise = is_row_wise
        """Questions are single rows: a server that batches is asked for a batch of them at once."""
        self._idle: list[Connection] = []
        self._living: list[Connection] = []
        """All that are open, as far as anybody knows."""
        self._open = 0
        """Those, and those that are being made."""
        self._queue: deque[asyncio.Future[None]] = deque()
        """Questions that wait for a connection."""
        self._opened = 0
        self._lost = 0
        self.reconnects = 0
        """Connections that were made after one was lost."""
        self._in_flight = 0
        self._drops = 0
        self._has_answered = False
        self._true_repeats = 0
        self._backoff_s = FIRST_BACKOFF_S
        self.retry_at = 0.0
        self.outage_since: float | None = None
        self.load = 0
        """Questions in flight here, or waiting for a connection."""
        self.announcement: Announcement | None = None
        self._greetings: dict[bytes, bytes] = {}
        """Told to the server first on every new connection: it may be a new server."""

    @property
    def generation(self) -> str:
        """Changes when state that the server kept may be gone."""
        return self.announcement.instance if self.announcement else str(self._drops)

    async def ask(self, frames: Sequence[bytes], read: Read[Any], generation: str | None) -> Reply:
        """The replies to all frames, in order, from one connection.

        A reply like the one before is asked for again on a new connection, where nothing came
        before. Servers that stamp their replies with times never repeat themselves; one that turns
        out to do so is believed.
        """
        self.load += 1
        try:
            try:
                return await self._ask_all(frames, read, generation, is_fresh=False)
            except Repeated as exc:
                reply = await self._ask_all(frames, read, generation, is_fresh=True)
                is_true = exc.frame in reply.frames
                self._true_repeats = self._true_repeats + 1 if is_true else 0
                return reply
        finally:
            self.load -= 1

    def knows(self, source: str) -> bool:
        """Whether `source` names a connection that still lives."""
        return any(
            source == one.source or source.startswith(f"{one.source}/")
            for one in self._living
            if one.is_open
        )

    async def _ask_all(
        self, frames: Sequence[bytes], read: Read[Any], generation: str | None, *, is_fresh: bool
    ) -> Reply:
        connection = await self._take(is_fresh=is_fresh)
        trusts = is_fresh or self._true_repeats >= BELIEVED_REPEATS
        came: list[bytes] = []

        def read_and_keep(frame: bytes) -> Any:
            came.append(frame)
            return read(frame)

        try:
            if generation is not None and generation != self.generation:
                raise SessionLostError(
                    f"The server at {self.endpoint.name} was restarted or lost; the state that "
                    f"it kept for this attempt is gone."
                )
            answers = [
                await self._ask(connection, frame, read_and_keep, trusts_repeats=trusts)
                for frame in frames
            ]
        finally:
            self._give_back(connection)
        return Reply(answers=answers, frames=came, source=connection.source)

    async def connect(self) -> Connection:
        """A connection's metadata, whether or not anything is asked."""
        connection = await self._take()
        self._give_back(connection)
        return connection

    async def close(self) -> None:
        """Close what is idle; what is in flight ends with its question."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(connection.close() for connection in idle))

    def greet(self, key: bytes, frame: bytes) -> None:
        """Begin every new connection with this frame, in place of an earlier one of this key."""
        self._greetings[key] = frame
        while len(self._greetings) > MAX_GREETINGS:
            del self._greetings[next(iter(self._greetings))]

    def failed(self, now: float) -> None:
        """Remember a failure: nobody tries again before the backoff is over."""
        self.outage_since = self.outage_since or now
        self.retry_at = now + self._backoff_s * random.uniform(0.5, 1.5)
        self._backoff_s = min(LONGEST_BACKOFF_S, 2 * self._backoff_s)

    async def _ask(
        self, connection: Connection, frame: bytes, read: Read[Any], *, trusts_repeats: bool = True
    ) -> Any:
        patience = self._patience
        alone_s = patience.timeout_s
        if not self._has_answered:
            alone_s = max(alone_s, patience.ready_timeout_s)  # its first answer may compile
        timeout_s = alone_s * (self._in_flight + 1)
        self._in_flight += 1
        try:
            answer = await connection.ask(frame, timeout_s, read, trusts_repeats=trusts_repeats)
        except Repeated:
            raise
        except Dropped:
            self._drops += 1
            self._has_answered = False
            raise
        finally:
            self._in_flight -= 1
        self._has_answered = True
        return answer

    async def _take(self, *, is_fresh: bool = False) -> Connection:
        await self._wait_for_turn()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and not is_fresh:
                return connection
            self._open -= 1
            self._lost += 1
            if connection.is_open:
                connection.abort()  # to make room for a fresh one
                break
            self._drops += 1
        self._open += 1
        self._opened += 1
        try:
            connection = await Connection.open(self.endpoint, self._dialing, self._opened)
        except BaseException:
            self._give_back(None)
            raise
        self._living = [one for one in self._living if one.is_open] + [connection]
        if self._lost:
            self._lost -= 1
            self.reconnects += 1
        self.announcement = connection.announcement
        self.retry_at, self._backoff_s, self.outage_since = 0.0, FIRST_BACKOFF_S, None
        for _ in range(self._limit - self._open):
            self._wake_next()  # the server may have announced that it takes more at once
        try:
            for greeting in list(self._greetings.values()):
                await self._ask(connection, greeting, bytes)
        except BaseException:
            self._give_back(connection)
            raise
        return connection

    async def _wait_for_turn(self) -> None:
        """Until a connection is idle, or one more may be made."""
        while not self._idle and self._open >= self._limit:
            turn = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._wake_next()  # it was ours, and we shall not use it
                raise

    def _give_back(self, connection: Connection | None) -> None:
        """Never waits: a cancelled question must not take its place in the pool with it."""
        if connection is not None and connection.is_open:
            self._idle.append(connection)
        else:
            self._open -= 1
            self._lost += connection is not None
        self._wake_next()

    def _wake_next(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    @property
    def _limit(self) -> int:
        if self._connections:
            return self._connections
        if self.announcement is None:
            return STOCK_CONNECTIONS
        spec = self.announcement.spec
        return spec.concurrency * spec.max_batch if self._is_row_wise else spec.concurrency + 1
