"""Several connections to one OpenPI server, and several servers behind one question.

Everything here runs on one event loop and needs no lock. A question is a list of frames that one
connection answers from first to last; after a drop all of them are asked again elsewhere, so no
answer ever mixes what came before the drop with what came after.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hocket.errors import PolicyUnavailableError, SessionLostError
from hocket.policies.openpi_connection import (
    Connection,
    Dialing,
    Dropped,
    Endpoint,
    Repeated,
    Unreachable,
)
from hocket.policies.openpi_protocol import Announcement

STOCK_CONNECTIONS = 2
"""A stock server works on one request at a time: one more is on its way meanwhile."""
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0
BELIEVED_REPEATS = 3
"""A server that really answered the same so often in a row is believed to."""

Answer = TypeVar("Answer")


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
    """The frames that answer a question, all from one connection."""

    frames: list[bytes]
    source: str
    connection: Connection


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
        self._open = 0
        self._free = asyncio.Condition()
        self._opened = 0
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
        self.greetings: list[bytes] = []
        """Told to the server first on every new connection: it may be a new server."""

    @property
    def generation(self) -> str:
        """Changes when state that the server kept may be gone."""
        return self.announcement.instance if self.announcement else str(self._drops)

    async def ask(self, frames: Sequence[bytes], generation: str | None) -> Reply:
        """The replies to all frames, in order, from one connection.

        A reply like the one before is asked for again on a new connection, where nothing came
        before. Servers that stamp their replies with times never repeat themselves; one that turns
        out to do so is believed.
        """
        self.load += 1
        try:
            try:
                return await self._ask_all(frames, generation, is_fresh=False)
            except Repeated as exc:
                reply = await self._ask_all(frames, generation, is_fresh=True)
                is_true = exc.frame in reply.frames
                self._true_repeats = self._true_repeats + 1 if is_true else 0
                return reply
        finally:
            self.load -= 1

    async def _ask_all(
        self, frames: Sequence[bytes], generation: str | None, *, is_fresh: bool
    ) -> Reply:
        connection = await self._take(is_fresh=is_fresh)
        trusts = is_fresh or self._true_repeats >= BELIEVED_REPEATS
        try:
            if generation is not None and generation != self.generation:
                raise SessionLostError(
                    f"The server at {self.endpoint.name} was restarted or lost; the state that "
                    f"it kept for this attempt is gone."
                )
            replies = [
                await self._ask(connection, frame, trusts_repeats=trusts) for frame in frames
            ]
        finally:
            await self._give_back(connection)
        return Reply(frames=replies, source=connection.source, connection=connection)

    async def connect(self) -> Connection:
        """A connection's metadata, whether or not anything is asked."""
        connection = await self._take()
        await self._give_back(connection)
        return connection

    async def close(self) -> None:
        """Close what is idle; what is in flight ends with its question."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(connection.close() for connection in idle))

    def failed(self, now: float) -> None:
        """Remember a failure: nobody tries again before the backoff is over."""
        self.outage_since = self.outage_since or now
        self.retry_at = now + self._backoff_s * random.uniform(0.5, 1.5)
        self._backoff_s = min(LONGEST_BACKOFF_S, 2 * self._backoff_s)

    async def _ask(
        self, connection: Connection, frame: bytes, *, trusts_repeats: bool = True
    ) -> bytes:
        patience = self._patience
        alone_s = patience.timeout_s
        if not self._has_answered:
            alone_s = max(alone_s, patience.ready_timeout_s)  # its first answer may compile
        timeout_s = alone_s * (self._in_flight + 1)
        self._in_flight += 1
        try:
            reply = await connection.ask(frame, timeout_s, trusts_repeats=trusts_repeats)
        except Repeated:
            raise
        except Dropped:
            self._drops += 1
            self._has_answered = False
            raise
        finally:
            self._in_flight -= 1
        self._has_answered = True
        return reply

    async def _take(self, *, is_fresh: bool = False) -> Connection:
        async with self._free:
            await self._free.wait_for(lambda: self._idle or self._open < self._limit)
            while self._idle:
                connection = self._idle.pop()
                if connection.is_open and not is_fresh:
                    return connection
                self._open -= 1
                if connection.is_open:
                    connection.abort()  # to make room for a fresh one
                    break
                self._drops += 1
            self._open += 1
        self._opened += 1
        try:
            connection = await Connection.open(self.endpoint, self._dialing, self._opened)
        except BaseException:
            await self._give_back(None)
            raise
        self.announcement = connection.announcement
        self.retry_at, self._backoff_s, self.outage_since = 0.0, FIRST_BACKOFF_S, None
        try:
            for greeting in self.greetings:
                await self._ask(connection, greeting)
        except BaseException:
            await self._give_back(connection)
            raise
        return connection

    async def _give_back(self, connection: Connection | None) -> None:
        async with self._free:
            if connection is not None and connection.is_open:
                self._idle.append(connection)
            else:
                self._open -= 1
            self._free.notify()

    @property
    def _limit(self) -> int:
        if self._connections:
            return self._connections
        if self.announcement is None:
            return STOCK_CONNECTIONS
        spec = self.announcement.spec
        return spec.concurrency * spec.max_batch if self._is_row_wise else spec.concurrency + 1


@dataclass(slots=True)
class Pin:
    """Where an attempt's state lives."""

    replica: Replica
    generation: str


@dataclass(slots=True)
class Servers:
    """All servers that may answer. Stateless questions go to the least loaded one that is up, and
    move on when it fails; sessions stay where they began."""

    replicas: Sequence[Replica]
    patience: Patience
    _pins: dict[str, Pin] = field(default_factory=dict)

    async def ask(self, frames: Sequence[bytes], sessions: Sequence[str] = ()) -> Reply:
        """The answer to a question, however often it must be asked; see `Patience`.

        Sessions that share a question must have been pinned to one server.
        """
        if not sessions:
            return await self._until_answered(lambda replica: replica.ask(frames, None))
        pins = [self._pins[session] for session in sessions if session in self._pins]
        if len(pins) < len(sessions) or len({pin.generation for pin in pins}) > 1:
            raise SessionLostError("The server that knew this attempt is gone.")
        generation = pins[0].generation
        try:
            return await self._until_answered(
                lambda replica: replica.ask(frames, generation), pins[0].replica, repeats=0
            )
        except Dropped as exc:
            raise SessionLostError(f"{exc}; what it knew of this attempt is lost.") from exc

    async def tell_all(self, frame: bytes) -> list[Reply]:
        """Tell every server the same, now and whenever a connection is made again."""
        replies = await asyncio.gather(
            *(
                self._until_answered(lambda replica: replica.ask([frame], None), replica)
                for replica in self.replicas
            )
        )
        for replica in self.replicas:
            replica.greetings.append(frame)
        return list(replies)

    async def connect(self) -> Connection:
        """Wait until one server is there, and say what it announces."""
        return await self._until_answered(lambda replica: replica.connect())

    async def begin(self, session: str) -> Replica:
        """Pin a session to the least loaded server."""
        await self.connect()
        replica = self._least_loaded(asyncio.get_running_loop().time())
        self._pins[session] = Pin(replica, replica.generation)
        return replica

    def end(self, session: str) -> None:
        """Forget a session."""
        self._pins.pop(session, None)

    @property
    def load(self) -> int:
        """Questions in flight or waiting, on all servers."""
        return sum(replica.load for replica in self.replicas)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(replica.close() for replica in self.replicas))

    async def _until_answered(
        self,
        ask: Callable[[Replica], Awaitable[Answer]],
        only: Replica | None = None,
        repeats: int | None = None,
    ) -> Answer:
        """Ask the least loaded server, or `only` that one, again after drops and outages."""
        clock = asyncio.get_running_loop().time
        repeats = self.patience.retries if repeats is None else repeats
        drops = 0
        while True:
            replica = only or self._least_loaded(clock())
            if replica.retry_at > clock():
                await asyncio.sleep(replica.retry_at - clock())
            try:
                return await ask(replica)
            except Unreachable as exc:
                replica.failed(clock())
                self._give_up_if_hopeless(clock(), [only] if only else self.replicas, exc)
            except Dropped as exc:
                replica.failed(clock())
                drops += 1
                if drops > repeats:
                    raise Dropped(f"Asked {drops} times, the last time: {exc}") from exc

    def _least_loaded(self, now: float) -> Replica:
        return min(self.replicas, key=lambda replica: (replica.retry_at > now, replica.load))

    def _give_up_if_hopeless(
        self, now: float, replicas: Sequence[Replica], last: Unreachable
    ) -> None:
        outages = [replica.outage_since for replica in replicas]
        limit_s = self.patience.ready_timeout_s
        if all(since is not None and now - since >= limit_s for since in outages):
            raise PolicyUnavailableError(
                f"No server answered for {limit_s:.0f} s (the last: {last}). Is it running? "
                f"--policy.ready-timeout-s says how long to wait."
            ) from last
