"""The loop and the sockets around a driver.

Every site has a connection, a WebSocket on which it showed the key. One that breaks is made again,
and goes on in the same stream. What a site says is heard in the order in which it comes; while the
driver is busy nobody is read from, so that sites wait rather than that messages pile up. A site
that does not read what it is sent is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from hocket.errors import HocketError, UsageError, WireError
from hocket.machines import protocol
from hocket.machines.attendance import Post
from hocket.machines.credentials import DriverSecrets
from hocket.machines.driver import Driver
from hocket.machines.protocol import NOBODYS, Stream
from hocket.system.durable import disk_error
from hocket.system.exposure import STRANGERS, ignore_strangers
from hocket.workers.remote.websocket import KEY_HEADER

_TICK_S = 0.1
TURN_S = 0.01
"""Seconds in which messages of sites are gathered before leases are granted: the numbers of all
leases are committed at once."""
LATER_S = 0.5
"""The same while trials wait at the site, so that none of its lanes needs a lease soon."""
_MOST = 4096
"""Messages that may wait for a site to read them: one that reads is never owed that many."""
_GOODBYE_S, _BACK_S = 5.0, 2.0
"""Seconds for the last messages to leave, and for a site that was cut off to come for them."""
_OPEN_S = 20.0
_OWN = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of the disk that the run folder is on, whichever site's file they befall."""


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


class Channel:
    """The stream between the driver and a site, and the connection that it goes over now."""

    def __init__(self) -> None:
        self.stream = Stream(secrets.token_bytes(len(NOBODYS)))
        self.site = ""
        self.socket: ServerConnection | None = None
        """None while the site is away."""
        self.left = 0.0
        """When it went."""
        self.is_hearing = False
        """True while messages that have come are not all heard."""
        self._unread = 0
        """How many messages were posted since all was sent, without weights, which come in many
        parts."""
        self._has_some = asyncio.Event()
        self.is_closing = False

    def post(self, message: protocol.Message) -> None:
        self.stream.post(iter((message,)))
        self._unread += not isinstance(message, protocol.Weights)
        self.wake()

    @property
    def is_clogged(self) -> bool:
        return self._unread > _MOST

    def enter(self, socket_: ServerConnection) -> None:
        """Go over this connection from now on."""
        self.cut()
        self.socket = socket_
        self.wake()

    def wake(self) -> None:
        """Send what may go now."""
        self._has_some.set()

    async def send(self, socket_: ServerConnection) -> None:
        """Send what is posted, until the connection ends or `drain` was called."""
        with contextlib.suppress(ConnectionClosed):
            while not (self.is_closing and self.stream.is_sent):
                await self._has_some.wait()
                self._has_some.clear()
                while self.socket is socket_ and (frame := self.stream.frame()) is not None:
                    await socket_.send(frame)
                self._unread = 0
            await socket_.close()

    def drain(self) -> None:
        """Close once everything is sent."""
        self.is_closing = True
        self.wake()

    def cut(self) -> None:
        """Break the connection off, with what is unsent."""
        if self.socket is not None:
            self.socket.transport.abort()


class Server:
    """Runs a driver until its run is over."""

    def __init__(
        self,
        listener: socket.socket,
        secrets: DriverSecrets,
        launcher: Launcher,
        drive: Callable[[Post], Driver],
    ) -> None:
        """`drive` makes the driver, which posts what it has to say here."""
        self._listener = listener
        self._secrets = secrets
        self._launcher = launcher
        self._driver = drive(self.post)
        self._driver.may_grow = launcher.outlives
        self._begun = 0.0
        self._channels: dict[str, Channel] = {}
        """By the identifiers of sites."""
        self._last: protocol.Message | None = None
        """What sites are told that come when the run is over."""
        self._trouble: asyncio.Future[None] | None = None
        self._turn: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """None unless the run goes on."""

    def nudge(self) -> None:
        """Let the driver take a turn soon. May come from any thread."""
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(self._take_turn)

    async def run(self, *, goes_on: bool) -> None:
        """Run what remains. After a cancellation what has come so far is kept."""
        self._begun = time.perf_counter()
        self._loop = asyncio.get_running_loop()
        ignore_strangers()
        self._trouble = self._loop.create_future()
        self._driver.start(0.0)
        lease_s = self._driver.config.lease_s
        async with serve(
            self._attend,
            sock=self._listener.dup(),
            ssl=self._secrets.server_context(),
            process_request=self._admit,
            compression=None,
            max_size=protocol.LONGEST,
            open_timeout=_OPEN_S,
            close_timeout=1.0,
            ping_interval=lease_s / 3,
            ping_timeout=lease_s,
            server_header=None,
            logger=STRANGERS,
        ):
            try:
                await self._watch(self._trouble)
            except asyncio.CancelledError:
                # Ctrl-C: what has ended is kept, the rest is dropped.
                goes_on = False
            finally:
                if self._turn is not None:
                    self._turn.cancel()
                self._loop = None
                self._driver.finish(self._now())
                await self._dismiss(protocol.Over(goes_on=goes_on))

    def _now(self) -> float:
        return time.perf_counter() - self._begun

    async def _watch(self, trouble: asyncio.Future[None]) -> None:
        driver = self._driver
        while not driver.is_done:
            await asyncio.wait([trouble], timeout=_TICK_S)
            if trouble.done():
                trouble.result()
            for name, account in self._launcher.poll():
                driver.bury(name, self._now(), account)
                driver.note(f"{name} {account}")
            driver.tick(self._now())
            for name, channel in list(self._channels.items()):
                if channel.is_clogged:
                    who = driver.label(name)
                    driver.note(f"{who} does not read what it is sent: it was dropped.")
                    channel.cut()
                    self._forget(channel)
                elif self._is_away(channel, driver.config.lease_s):
                    self._forget(channel)
            is_hopeless = self._launcher.is_hopeless()
            if self._launcher.outlives:
                is_hopeless = driver.is_doomed
            if is_hopeless and not any(one.socket for one in self._channels.values()):
                raise driver.trouble or UsageError("No site is left, and none could be started.")

    def _is_away(self, channel: Channel, seconds: float) -> bool:
        """True when a site was not connected for so long."""
        return channel.socket is None and self._now() - channel.left > seconds

    def _forget(self, channel: Channel) -> None:
        """End a stream: its site, if it comes, begins anew."""
        if self._channels.get(channel.site) is channel:
            del self._channels[channel.site]
            self._driver.disconnect(channel.site)

    async def _dismiss(self, last: protocol.Message) -> None:
        self._last = last
        for channel in self._channels.values():
            channel.post(last)
            channel.drain()
        deadline = time.perf_counter() + _GOODBYE_S
        while time.perf_counter() < deadline:
            if all(self._is_away(channel, _BACK_S) for channel in self._channels.values()):
                return
            await asyncio.sleep(0.02)

    def post(self, site: str, message: protocol.Message) -> None:
        channel = self._channels.get(site)
        # To a site that has no stream nothing can be said: when it comes back, both compare.
        if channel is not None:
            channel.post(message)

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        shown = "".join(request.headers.get_all(KEY_HEADER)).encode(errors="replace")
        if not hmac.compare_digest(shown, self._secrets.key.encode()):
            return connection.respond(401, "The key is missing or wrong.\n")
        return None

    async def _attend(self, socket_: ServerConnection) -> None:
        driver, channel = self._driver, Channel()
        sending: asyncio.Task[None] | None = None
        try:
            channel = self._open(await socket_.recv(), channel)
            channel.enter(socket_)
            await socket_.send(channel.stream.opening())
            sending = asyncio.create_task(channel.send(socket_))
            async for data in socket_:
                if channel.socket is not socket_:
                    return  # The site has another one, on which it says all this again.
                channel.is_hearing = True
                driver.note_life(channel.site, self._now())
                for message in channel.stream.feed(data):
                    # Whatever else the site says comes after what it has given.
                    message = await self._fetched(channel.site, message)
                    if channel.site and self._channels.get(channel.site) is not channel:
                        return  # It has another stream.
                    if isinstance(message, protocol.SiteHello):
                        self._meet(message, channel)
                    elif self._last is None:
                        driver.hear(channel.site, message, self._now())
                channel.is_hearing = False
                channel.wake()
                self._plan_turn(channel.site)
            self._forget(channel)  # It was closed, not broken.
        except FetchError as error:
            # It connects again, in a new stream, and sends it again.
            driver.note(str(error))
            self._forget(channel)
            channel.cut()
        except ConnectionClosed:
            pass
        except Exception as error:  # noqa: BLE001 - whatever a site says, it ends nobody else
            self._end_site(channel.site, error)
            self._forget(channel)
            channel.drain()
        finally:
            if sending is not None:
                with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
                    await asyncio.wait_for(sending, 2.0 if channel.is_closing else 0.0)
            if channel.socket is socket_:
                channel.socket, channel.left = None, self._now()

    def _open(self, opening: bytes | str, fresh: Channel) -> Channel:
        """The channel of a connection that begins with this: the one that it goes on with, or a
        fresh one."""
        for known in (*self._channels.values(), fresh):
            if not known.is_hearing and known.stream.go_on(opening):
                return known
        return fresh

    def _meet(self, hello: protocol.SiteHello, channel: Channel) -> None:
        """Let a stream be a site's, and answer it: it comes to the run, or too late."""
        if channel.site not in ("", hello.site):
            raise WireError("A connection belongs to one site.")
        if self._last is not None:
            channel.post(self._last)
            channel.drain()
            return
        before = self._channels.get(hello.site)
        if before is not None and before is not channel:
            before.cut()
        channel.site = hello.site
        self._channels[hello.site] = channel
        self._driver.open(hello)

    def _end_site(self, name: str, error: Exception) -> None:
        """Put out a site while which was heard something was raised."""
        if isinstance(error, OSError) and error.errno in _OWN:
            self._fail(disk_error(error, Path(error.filename or "the run's folder")))
            return
        try:
            if self._driver.failure is None:
                why = WireError(f"The driver did not understand: {error}")
                self._driver.put_out(name, self._now(), "broke the protocol", why)
        finally:
            if self._driver.failure is not None:
                self._fail(self._driver.failure)

    async def _fetched(self, name: str, message: protocol.Message) -> protocol.Message:
        """The message, with what was given beside the connection."""
        if not isinstance(message, protocol.CollectedPart) or message.stored < 0:
            return message
        if not isinstance(self._launcher, Carrier):
            raise WireError("A site has given something to nobody.")
        who = self._driver.label(name)
        fetching = self._launcher.fetch(who, message.stored)
        # Longer, and the site would seem silent.
        timeout = self._driver.config.lease_s / 3
        try:
            data = await asyncio.wait_for(fetching, timeout)
        except asyncio.TimeoutError:
            raise FetchError(f"{who}: nothing came in {timeout:g} s.") from None
        return message._replace(data=data, stored=-1)

    def _plan_turn(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        delay = TURN_S if self._driver.is_awaited(name) else LATER_S
        if self._turn is not None:
            if self._turn.when() <= loop.time() + delay:
                return
            self._turn.cancel()
        self._turn = loop.call_later(delay, self._take_turn)

    def _take_turn(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if self._loop is None:
            return  # The run is over.
        try:
            self._driver.turn(self._now())
        except Exception as error:  # noqa: BLE001 - raised where the run waits
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._trouble is not None and not self._trouble.done():
            self._trouble.set_exception(error)
