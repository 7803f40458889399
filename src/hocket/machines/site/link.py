"""A site's connection to its driver, in a thread of its own, made again whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from hocket.errors import HocketError, UsageError, WireError
from hocket.machines import protocol
from hocket.machines.credentials import Credentials
from hocket.workers.remote.websocket import KEY_HEADER

if TYPE_CHECKING:
    from hocket.machines.site.site import Site

_AGAIN_S = 0.5
"""Seconds between two tries to connect."""
_OPEN_S = 20.0
_LAST_S = 5.0
"""Seconds for the last messages to leave."""


Outgoing = Callable[[], Iterator[protocol.Message]]
"""Makes messages when they can be sent: the pieces of a file are not read before."""


class DriverLink:
    """A connection that is made again whenever it breaks; what is posted is sent in order. What was
    not sent when a connection broke is forgotten: the site and the driver compare what they hold
    when it is made again."""

    def __init__(self, url: str, credentials: Credentials, site: Site, *, wait_s: float) -> None:
        """`site` is called on the link's thread. `wait_s`: how long the driver may be away before
        the link gives up."""
        self._url = url
        self._credentials = credentials
        self._site = site
        self._wait_s = wait_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[Outgoing] = []
        self._has_some: asyncio.Event | None = None
        self._is_ending = False
        self.is_up = False
        """True while there is a connection."""
        self._on_end: Callable[[HocketError | None], None] = lambda _: None
        self._thread = threading.Thread(target=self._run, name="hocket-link", daemon=True)

    def start(self, on_end: Callable[[HocketError | None], None]) -> None:
        """Begin to connect; `on_end` is called once when it is over, with the error if there was
        one."""
        self._on_end = on_end
        self._thread.start()

    def post(self, message: protocol.Message) -> None:
        """Have a message sent. May come from any thread."""
        self.post_all(lambda: iter((message,)))

    def post_all(self, make: Outgoing) -> None:
        """Have messages made and sent, one after the other. May come from any thread."""
        self.call(lambda: self._add(make))

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called on the link's thread, soon. May come from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                self._loop.call_soon_threadsafe(function)

    def end(self) -> None:
        """Send what is posted, then close, and wait for that. May come from any thread."""
        self._is_ending = True
        self.post_all(lambda: iter(()))
        self._thread.join(_LAST_S)

    def _add(self, make: Outgoing) -> None:
        self._waiting.append(make)
        if self._has_some is not None:
            self._has_some.set()

    def _run(self) -> None:
        error: HocketError | None = None
        try:
            asyncio.run(self._keep())
        except HocketError as exc:
            error = exc
        self._on_end(error)

    async def _keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_some = asyncio.Event()
        last_seen = time.monotonic()
        while not self._is_ending:
            try:
                async with self._connect() as connection:
                    await self._talk(connection)
                last_seen = time.monotonic()
            except InvalidStatus as exc:
                body = (exc.response.body or b"")[:300].decode("utf-8", "replace").strip()
                raise UsageError(f"{self._url} refused this site: {body}") from exc
            except ConnectionClosed:
                last_seen = time.monotonic()
            except ssl.SSLCertVerificationError as exc:
                raise UsageError(
                    f"{self._url} is not the driver whose certificate the key file holds: "
                    f"{exc.verify_message}. Copy the key file again from where that was started."
                ) from exc
            except (OSError, WebSocketException, TimeoutError) as exc:
                if time.monotonic() - last_seen > self._wait_s:
                    raise UsageError(
                        f"No driver answered at {self._url} for {self._wait_s:g} s: {exc}"
                    ) from exc
            if not self._is_ending:
                await asyncio.sleep(_AGAIN_S)

    def _connect(self) -> connect:
        is_safe = self._url.startswith("wss://")
        return connect(
            self._url,
            additional_headers={KEY_HEADER: self._credentials.key},
            ssl=self._credentials.client_context() if is_safe else None,
            compression=None,
            max_size=protocol.MAX_MESSAGE,
            open_timeout=_OPEN_S,
            close_timeout=1.0,
            ping_interval=10.0,
            ping_timeout=30.0,
            proxy=None,
        )

    async def _talk(self, connection: ClientConnection) -> None:
        assert self._has_some is not None
        self._waiting.clear()
        self.is_up = True
        await connection.send(protocol.pack([self._site.greet()]))
        tasks = [
            asyncio.create_task(self._say(connection)),
            asyncio.create_task(self._beat()),
            asyncio.create_task(self._hear(connection)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.is_up = False
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
        for result in done:
            if isinstance(result, Exception):
                raise result

    async def _say(self, connection: ClientConnection) -> None:
        assert self._has_some is not None
        while True:
            await self._has_some.wait()
            self._has_some.clear()
            while self._waiting:
                lot, self._waiting = self._waiting, []
                messages = itertools.chain.from_iterable(make() for make in lot)
                for data in protocol.packs(messages):
                    await connection.send(data)
            if self._is_ending:
                return

    async def _beat(self) -> None:
        while True:
            message = self._site.beat()
            if message is not None:
                self.post(message)
            await asyncio.sleep(self._site.beat_s)

    async def _hear(self, connection: ClientConnection) -> None:
        async for data in connection:
            if isinstance(data, str):
                raise WireError("Text came where messages were expected.")
            for message in protocol.unpack(data):
                self._site.hear(message)
