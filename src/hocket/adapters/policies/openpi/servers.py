"""OpenPI servers as their client sees them: a few connections to each, one question for all.

A question is a list of frames that one connection answers from first to last. After a drop all of
its frames are asked again, perhaps of another server, so no answer ever mixes what came before the
drop with what came after. Everything here runs on one event loop and needs no lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.adapters.policies.openpi.connection import (
    Answer,
    Dropped,
    Endpoint,
    PolicyConnection,
    Read,
    Unreachable,
)
from hocket.adapters.policies.openpi.protocol import Announcement
from hocket.errors import HocketError, PolicyUnavailableError, SessionLostError
from hocket.system.waits import awaiting

if TYPE_CHECKING:
    from hocket.adapters.policies.openpi.policy import OpenPIConfig

STOCK_CONNECTIONS = 2
"""A stock server works on one request at a time: one more is on its way meanwhile."""
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0
"""Waits after failures double from the first to the longest: a server that comes back is found
soon, and one that is down is not flooded."""
MAX_KNOWN = 1024
"""Connections that are kept in mind."""
MAX_GREETINGS = 4096
"""Envs that a new connection is told of: a gateway's clients may name new ones without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answers to a question's frames, all from one connection."""

    answers: list[Any]
    """What was read from each reply."""
    source: str


class Servers:
    """All servers that may answer. Stateless questions go to the least loaded one that is up, and
    move on when it fails; sessions stay where they began.

    With `is_row_wise` each question is a single row, and a server that batches is sent a whole
    batch of questions at once.
    """

    def __init__(
        self, endpoints: Sequence[Endpoint], config: OpenPIConfig, *, is_row_wise: bool
    ) -> None:
        self.replicas = [ServerReplica(one, config, is_row_wise=is_row_wise) for one in endpoints]
        self._config = config
        self._pins: dict[str, tuple[ServerReplica, str]] = {}
        """The server that holds each session's state, and the generation that it had then."""

    async def ask(
        self, frames: Sequence[bytes], sessions: Sequence[str] = (), read: Read[Any] = bytes
    ) -> Reply:
        """Ask until there is an answer, as often and as long as the config allows. Sessions that
        share a question must have been pinned to one server."""
        if not sessions:
            return await self._until_answered(lambda replica: replica.ask(frames, read, None))
        pins = [self._pins[session] for session in sessions if session in self._pins]
        if len(pins) < len(sessions) or len({generation for _, generation in pins}) > 1:
            raise SessionLostError("The server that knew this attempt is gone.")
        pinned, generation = pins[0]
        try:
            return await self._until_answered(
                lambda replica: replica.ask(frames, read, generation), pinned
            )
        except Dropped as exc:
            raise SessionLostError(f"{exc}; what it knew of this attempt is lost.") from exc

    async def tell_all(self, key: bytes, frame: bytes, read: Read[Any] = bytes) -> list[Reply]:
        """Send a frame to every server now, and at the beginning of every later connection, in
        place of an earlier frame of the same key. At least one server must be up; one that is down
        is told when it is back. A frame that fails is not sent again."""
        for replica in self.replicas:
            replica.greet(key, frame, read)
        try:
            return await self._tell(frame, read)
        except BaseException:
            self.forget_frame(key)
            raise

    def forget_frame(self, key: bytes) -> None:
        """Do not begin connections with the frame of this key any more."""
        for replica in self.replicas:
            replica.ungreet(key)

    async def tell_once(self, frame: bytes) -> None:
        """Send a frame to every server that is up. One that cannot be told has nothing to know."""
        with contextlib.suppress(HocketError):
            await self._tell(frame, bytes)

    async def _tell(self, frame: bytes, read: Read[Any]) -> list[Reply]:
        async def tell(replica: ServerReplica) -> Reply | None:
            try:
                return await replica.ask([frame], read, None)
            except (Unreachable, Dropped):
                replica.failed(asyncio.get_running_loop().time())
                return None

        replies = [reply for reply in await asyncio.gather(*map(tell, self.replicas)) if reply]
        return replies or [
            await self._until_answered(lambda replica: replica.ask([frame], read, None))
        ]

    async def connect(self) -> PolicyConnection:
        """Wait until one server is up, and return a connection that has its metadata."""
        return await self._until_answered(lambda replica: replica.connect())

    async def begin(self, session: str) -> None:
        """Pin a session to the least loaded server that is up."""

        async def meet(replica: ServerReplica) -> ServerReplica:
            await replica.connect()
            return replica

        replica = await self._until_answered(meet)
        self._pins[session] = (replica, replica.generation)

    async def end(self, session: str, frame: bytes, read: Read[Any] = bytes) -> Reply:
        """Tell a session's server that it is over. The pin goes even without a reply."""
        try:
            return await self.ask([frame], [session], read)
        finally:
            self._pins.pop(session, None)

    def unpin(self, session: str) -> None:
        """Forget where a session lives: it is over, and its server knows."""
        self._pins.pop(session, None)

    @property
    def reconnects(self) -> int:
        return sum(replica.reconnects for replica in self.replicas)

    def knows(self, source: str) -> bool:
        """True while the connection of this source lives."""
        return any(replica.knows(source) for replica in self.replicas)

    @property
    def load(self) -> int:
        return sum(replica.load for replica in self.replicas)

    async def close(self) -> None:
        await asyncio.gather(*(replica.close() for replica in self.replicas))

    async def _until_answered(
        self, ask: Callable[[ServerReplica], Awaitable[Answer]], only: ServerReplica | None = None
    ) -> Answer:
        """Ask the least loaded server, again after drops and outages; or `only` that one, and once,
        where it keeps state."""
        among, repeats = ([only], 0) if only else (self.replicas, self._config.retries)
        clock = asyncio.get_running_loop().time
        limit_s = self._config.ready_timeout_s
        drops, is_told = 0, False
        with contextlib.ExitStack() as outage:
            while True:
                now = clock()
                replica = min(among, key=lambda one: (one.retry_at > now, one.load))
                if replica.retry_at > now:
                    await asyncio.sleep(replica.retry_at - now)
                try:
                    return await ask(replica)
                except Unreachable as exc:
                    replica.failed(clock())
                    if not is_told:
                        is_told = True
                        what = f"a policy server, up to {limit_s:.0f} s ({exc})"
                        outage.enter_context(awaiting(what))
                    if all(one.is_out_for(limit_s, clock()) for one in among):
                        raise PolicyUnavailableError(
                            f"No server answered for {limit_s:.0f} s (the last: {exc}). Is it "
                            f"running? --policy.ready-timeout-s says how long to wait."
                        ) from exc
                except Dropped as exc:
                    replica.failed(clock())
                    drops += 1
                    if drops > repeats:
                        raise Dropped(f"Asked {drops} times, the last time: {exc}") from exc


class ServerReplica:
    """One server and its connections, which are made when they are needed."""

    def __init__(self, endpoint: Endpoint, config: OpenPIConfig, *, is_row_wise: bool) -> None:
        self._endpoint = endpoint
        self._config = config
        self._is_row_wise = is_row_wise
        self._idle: list[PolicyConnection] = []
        self._living: list[PolicyConnection] = []
        """All connections that are open, as far as anybody knows, and those that ended idle."""
        self._opened = 0
        self._lost = 0
        self.reconnects = 0
        """Connections that were made after one was lost."""
        self._in_flight = 0
        self._has_answered = False
        self._backoff_s = FIRST_BACKOFF_S
        self.retry_at = 0.0
        """On the loop's clock: nobody should try before."""
        self._outage_since: float | None = None
        """On the loop's clock; None while the server is up."""
        self.load = 0
        """Questions in flight here, or waiting for a connection."""
        self.announcement: Announcement | None = None
        self._greetings: dict[bytes, tuple[bytes, Read[Any]]] = {}
        """Frames that begin every new connection, which may lead to a new server, and the functions
        that read the replies."""
        self._width = self._limit
        """Questions that may have a connection at once: one that is idle, or one that is made."""
        self._turns = asyncio.Semaphore(self._width)

    @property
    def generation(self) -> str:
        """Changes when the state is gone that the server kept: stock servers keep none."""
        return self.announcement.instance if self.announcement else ""

    async def ask(self, frames: Sequence[bytes], read: Read[Any], generation: str | None) -> Reply:
        """The answers to all frames, in order, from one connection. SessionLostError where the
        server is no longer of this `generation`."""
        self.load += 1
        try:
            connection = await self._take()
            try:
                if generation is not None and generation != self.generation:
                    raise SessionLostError(
                        f"The server at {self._endpoint.name} was restarted or lost; the state "
                        f"that it kept for this attempt is gone."
                    )
                answers = [await self._ask(connection, frame, read) for frame in frames]
            finally:
                self._give_back(connection)
            return Reply(answers=answers, source=connection.source)
        finally:
            self.load -= 1

    def knows(self, source: str) -> bool:
        return any(
            source == one.source or source.startswith(f"{one.source}/")
            for one in self._living
            if one.is_open or one.ended_idle
        )

    async def connect(self) -> PolicyConnection:
        """A connection whose metadata has come; nothing is asked over it."""
        connection = await self._take()
        self._give_back(connection)
        return connection

    async def close(self) -> None:
        """Close idle connections; one in flight ends with its question."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(connection.close() for connection in idle))

    def greet(self, key: bytes, frame: bytes, read: Read[Any]) -> None:
        """Begin every new connection with this frame, instead of an earlier one of this key."""
        self._greetings[key] = (frame, read)
        while len(self._greetings) > MAX_GREETINGS:
            del self._greetings[next(iter(self._greetings))]

    def ungreet(self, key: bytes) -> None:
        self._greetings.pop(key, None)

    def failed(self, now: float) -> None:
        """Remember a failure: nobody asks again before the backoff is over."""
        self._outage_since = self._outage_since or now
        self.retry_at = now + self._backoff_s * random.uniform(0.5, 1.5)
        self._backoff_s = min(LONGEST_BACKOFF_S, 2 * self._backoff_s)

    def is_out_for(self, seconds: float, now: float) -> bool:
        return self._outage_since is not None and now - self._outage_since >= seconds

    async def _ask(self, connection: PolicyConnection, frame: bytes, read: Read[Any]) -> Any:
        alone_s = self._config.timeout_s
        if not self._has_answered:
            alone_s = max(alone_s, self._config.ready_timeout_s)  # its first answer may compile
        timeout_s = alone_s * (self._in_flight + 1)
        self._in_flight += 1
        try:
            answer = await connection.ask(frame, timeout_s, read)
        except Dropped:
            self._has_answered = False
            raise
        finally:
            self._in_flight -= 1
        self._has_answered = True
        return answer

    @property
    def _limit(self) -> int:
        if self._config.connections:
            return self._config.connections
        if self.announcement is None:
            return STOCK_CONNECTIONS
        spec = self.announcement.spec
        return spec.concurrency * spec.max_batch if self._is_row_wise else spec.concurrency + 1

    async def _take(self) -> PolicyConnection:
        """A connection that may be asked: an idle one, or a new one."""
        await self._turns.acquire()
        try:
            while self._idle:
                connection = self._idle.pop()
                if connection.is_open:
                    return connection
                self._lost += not connection.ended_idle
            return await self._dial()
        except BaseException:
            self._turns.release()
            raise

    async def _dial(self) -> PolicyConnection:
        """Open a connection, and begin it with the greetings."""
        self._opened += 1
        connection = await PolicyConnection.open(self._endpoint, self._opened)
        if self._lost:
            self._lost -= 1
            self.reconnects += 1
        known = [one for one in self._living if one.is_open or one.ended_idle]
        self._living = [*known[-MAX_KNOWN:], connection]
        self.announcement = connection.announcement
        self.retry_at, self._backoff_s, self._outage_since = 0.0, FIRST_BACKOFF_S, None
        while self._width < self._limit:  # the server may have announced that it takes more at once
            self._width += 1
            self._turns.release()
        try:
            # Nothing is told to a stock server: it would take the frame for a request.
            greetings = self._greetings.values() if self.announcement is not None else ()
            for greeting, read in list(greetings):
                await self._ask(connection, greeting, read)
        except BaseException:
            connection.abort()
            raise
        return connection

    def _give_back(self, connection: PolicyConnection) -> None:
        """Return a connection to the pool. Never waits: a question that was cancelled must not keep
        a connection from others."""
        if connection.is_open:
            self._idle.append(connection)
        else:
            self._lost += 1
        self._turns.release()
