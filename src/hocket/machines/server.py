"""The loop and the sockets around a driver.

Every site has a connection, a WebSocket on which it showed the key. What a site says is heard in
the order in which it comes; while the driver is busy nobody is read from, so that sites wait rather
than that messages pile up. A site that does not read what it is sent is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from hocket.errors import HocketError, UsageError, WireError
from hocket.machines import protocol
from hocket.machines.driver import Driver
from hocket.workers.remote.websocket import KEY_HEADER

_TICK_S = 0.1
TURN_S = 0.01
"""Seconds in which messages of sites are gathered before leases are granted: the numbers of all
leases are committed at once."""
LATER_S = 0.5
"""The same while trials wait at the site, so that none of its lanes needs a lease soon."""
_MOST = 4096
"""Messages that may wait for a site to read them: one that reads is never owed that many."""
_GOODBYE_S = 5.0
"""Seconds for the last messages to leave."""
_OPEN_S = 20.0


class Launcher(Protocol):
    """Starts sites, and says which have ended."""

    @property
    def outlives(self) -> bool:
        """True when its sites may go on without the driver."""

    def start(self, port: int, credentials: str) -> None:
        """Start the sites, which call this port of this machine. `credentials` is the text of the
        key file. Called before every run; what lives goes on."""

    def poll(self) -> Sequence[tuple[str, str]]:
        """The names of sites that have ended for good since the last call, each with how it ended;
        and other news in the same form."""

    def is_hopeless(self) -> bool:
        """True when no site lives, and none will come."""

    def close(self) -> None:
        """End all sites that it has started. Twice is safe."""


@runtime_checkable
class Carrier(Protocol):
    """A launcher that brings weights to its sites beside their connections, once to each machine,
    and brings back what they have collected."""

    def carry(self, site: str, version: int, data: bytes) -> bool:
        """Bring weights to the site with this name; false where they must go another way. `data` is
        one object for all sites that get the same version."""

    async def fetch(self, site: str, number: int) -> bytes:
        """What the site with this name has given under a number; FetchError where it is lost."""


class FetchError(HocketError):
    """What a site gave beside its connection did not come."""


class Connection:
    """A site's connection, and the messages that wait to be sent on it."""

    def __init__(self, socket_: ServerConnection) -> None:
        self._socket = socket_
        self._waiting: list[protocol.Message] = []
        self._has_some = asyncio.Event()
        self._is_closing = False

    def post(self, message: protocol.Message) -> None:
        self._waiting.append(message)
        self._has_some.set()

    @property
    def is_clogged(self) -> bool:
        return len(self._waiting) > _MOST

    async def send(self) -> None:
        """Send what is posted, until the connection ends or `drain` was called."""
        with contextlib.suppress(ConnectionClosed):
            while self._waiting or not self._is_closing:
                await self._has_some.wait()
                self._has_some.clear()
                messages, self._waiting = self._waiting, []
                for data in protocol.packs(messages):
                    await self._socket.send(data)
            await self._socket.close()

    def drain(self) -> None:
        """Close once everything is sent."""
        self._is_closing = True
        self._has_some.set()

    def cut(self) -> None:
        """Break it off, with what is unsent."""
        self._socket.transport.abort()


class Server:
    """Runs a driver until its run is over."""

    def __init__(
        self,
        listener: socket.socket,
        key: str,
        context: ssl.SSLContext | None,
        launcher: Launcher,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._listener = listener
        self._key = key.encode()
        self._context = context
        self._launcher = launcher
        self._clock = clock
        self._begun = 0.0
        self._connections: dict[str, Connection] = {}
        self._trouble: asyncio.Future[None] | None = None
        self._turn: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._driver: Driver | None = None

    def nudge(self) -> None:
        """Let the driver take a turn soon. May come from any thread."""
        if self._loop is not None and self._driver is not None:
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                self._loop.call_soon_threadsafe(self._take_turn, self._driver)

    async def run(self, driver: Driver, *, goes_on: bool) -> None:
        """Run what remains. After a cancellation what has come so far is kept."""
        self._begun = self._clock()
        self._loop, self._driver = asyncio.get_running_loop(), driver
        self._trouble = self._loop.create_future()
        driver.start(0.0)
        lease_s = driver.config.lease_s
        async with serve(
            lambda connection: self._attend(driver, connection),
            sock=self._listener.dup(),
            ssl=self._context,
            process_request=self._admit,
            compression=None,
            max_size=protocol.MAX_MESSAGE,
            open_timeout=_OPEN_S,
            close_timeout=1.0,
            ping_interval=lease_s / 3,
            ping_timeout=lease_s,
            server_header=None,
        ):
            try:
                await self._watch(driver)
            except asyncio.CancelledError:
                # Ctrl-C: what has ended is kept, the rest is dropped.
                goes_on = False
            finally:
                if self._turn is not None:
                    self._turn.cancel()
                self._driver = None
                driver.finish(self._now())
                await self._dismiss(protocol.Over(goes_on=goes_on))

    def _now(self) -> float:
        return self._clock() - self._begun

    async def _watch(self, driver: Driver) -> None:
        assert self._trouble is not None
        while not driver.is_done:
            await asyncio.wait([self._trouble], timeout=_TICK_S)
            if self._trouble.done():
                self._trouble.result()
            for name, account in self._launcher.poll():
                driver.bury(name, self._now(), account)
                driver.note(f"{name} {account}")
            driver.tick(self._now())
            for name, connection in list(self._connections.items()):
                if connection.is_clogged:
                    driver.drop(name)
                    connection.cut()
                    del self._connections[name]
            if self._launcher.is_hopeless() and not self._connections:
                raise driver.trouble or UsageError("No site is left, and none could be started.")

    async def _dismiss(self, last: protocol.Message) -> None:
        for connection in self._connections.values():
            connection.post(last)
            connection.drain()
        deadline = self._clock() + _GOODBYE_S
        while self._connections and self._clock() < deadline:
            await asyncio.sleep(0.02)

    def post(self, site: str, message: protocol.Message) -> None:
        connection = self._connections.get(site)
        # To a site that is not connected nothing can be said: when it comes back, both compare.
        if connection is not None:
            connection.post(message)

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        shown = request.headers.get(KEY_HEADER, "").encode()
        if not hmac.compare_digest(shown, self._key):
            return connection.respond(401, "The key is missing or wrong.\n")
        return None

    async def _attend(self, driver: Driver, socket_: ServerConnection) -> None:
        connection = Connection(socket_)
        sending = asyncio.create_task(connection.send())
        name = ""
        try:
            async for data in socket_:
                if isinstance(data, str):
                    raise WireError("Text came where messages were expected.")
                for message in protocol.unpack(data):
                    if isinstance(message, protocol.SiteHello):
                        name = self._meet(message, connection)
                        driver.open(message)
                    else:
                        # Whatever else the site says comes after what it has given.
                        message = await self._fetched(driver, name, message)
                        driver.hear(name, message, self._now())
                self._plan_turn(driver, name)
        except FetchError as error:
            # It connects again, and sends it again.
            driver.note(str(error))
            connection.cut()
        except (WireError, TypeError, ValueError) as error:
            connection.post(protocol.Refused(f"The driver did not understand: {error}"))
            driver.bury_site(name, self._now(), f"broke the protocol: {error}")
        except HocketError as error:
            self._fail(error)
        except ConnectionClosed:
            pass
        finally:
            if self._connections.get(name) is connection:
                del self._connections[name]
                driver.disconnect(name)
            connection.drain()
            with contextlib.suppress(asyncio.TimeoutError, ConnectionClosed):
                await asyncio.wait_for(sending, 2.0)

    async def _fetched(
        self, driver: Driver, name: str, message: protocol.Message
    ) -> protocol.Message:
        """The message, with what was given beside the connection."""
        if not isinstance(message, protocol.CollectedPart) or message.stored < 0:
            return message
        if not isinstance(self._launcher, Carrier):
            raise WireError("A site has given something to nobody.")
        fetching = self._launcher.fetch(driver.label(name), message.stored)
        # Longer, and the site would seem silent.
        timeout = driver.config.lease_s / 3
        try:
            data = await asyncio.wait_for(fetching, timeout)
        except asyncio.TimeoutError:
            raise FetchError(f"{driver.label(name)}: nothing came in {timeout:g} s.") from None
        return message._replace(data=data, stored=-1)

    def _plan_turn(self, driver: Driver, name: str) -> None:
        loop = asyncio.get_running_loop()
        delay = TURN_S if driver.is_awaited(name) else LATER_S
        if self._turn is not None:
            if self._turn.when() <= loop.time() + delay:
                return
            self._turn.cancel()
        self._turn = loop.call_later(delay, self._take_turn, driver)

    def _take_turn(self, driver: Driver) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if self._driver is None:
            return  # The run is over.
        try:
            driver.turn(self._now())
        except HocketError as error:
            self._fail(error)

    def _meet(self, hello: protocol.SiteHello, connection: Connection) -> str:
        before = self._connections.get(hello.site)
        if before is not None and before is not connection:
            before.cut()
        self._connections[hello.site] = connection
        return hello.site

    def _fail(self, error: Exception) -> None:
        if self._trouble is not None and not self._trouble.done():
            self._trouble.set_exception(error)
