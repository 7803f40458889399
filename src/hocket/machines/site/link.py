"""A site's connection to its driver, in a thread of its own, made again whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from hocket.errors import HocketError, UsageError
from hocket.machines import protocol
from hocket.machines.credentials import Credentials
from hocket.machines.protocol import NOBODYS, Stream
from hocket.system.text import sentence
from hocket.workers.remote.websocket import KEY_HEADER

if TYPE_CHECKING:
    from hocket.machines.site.site import Site

_AGAIN_S = 0.5
"""Seconds between two tries to connect."""
_OPEN_S = 20.0
"""Most seconds for a connection to be made."""
_PING_S, _PONG_S = 5.0, 15.0
"""Seconds between two looks whether a connection lives, and for the answer."""
_NO_KEY = 401
"""The driver's status where the key is another. Others come from proxies before it."""
_LAST_S = 5.0
"""Seconds for the last messages to leave."""


class DriverLink:
    """A connection that is made again whenever it breaks; what is posted is sent in order, over as
    many of them as that takes. Where the driver does not know this link any more, what was not sent
    is forgotten: the site and the driver compare what they hold."""

    def __init__(self, url: str, credentials: Credentials, site: Site, *, wait_s: float) -> None:
        """`site` is called on the link's thread. `wait_s`: how long the driver may be away before
        the link gives up."""
        self._url = url
        self._credentials = credentials
        self._site = site
        self._wait_s = wait_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stream = Stream()
        self._has_some: asyncio.Event | None = None
        self._is_ending = False
        self.is_up = False
        """True while there is a connection."""
        self._heard = 0.0
        """When the driver was heard last."""
        self._on_end: Callable[[HocketError | None], None] = lambda _: None
        self._thread = threading.Thread(target=self._run, name="hocket-link", daemon=True)

    def start(self, on_end: Callable[[HocketError | None], None]) -> None:
        """Begin to connect; `on_end` is called once when it is over, with the error if there was
        one."""
        self._on_end = on_end
        self._thread.start()

    def post(self, message: protocol.Message) -> None:
        """Have a message sent. May come from any thread."""
        self.post_all(iter((message,)))

    def post_all(self, messages: Iterator[protocol.Message]) -> None:
        """Have messages sent, one after the other. They are made when they can be: the pieces of a
        file are not read before. May come from any thread."""
        self.call(lambda: self._add(messages))

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called on the link's thread, soon. May come from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                self._loop.call_soon_threadsafe(function)

    def end(self) -> None:
        """Send what is posted, then close, and wait for that. May come from any thread."""
        self._is_ending = True
        self.post_all(iter(()))
        self._thread.join(_LAST_S)

    def _add(self, messages: Iterator[protocol.Message]) -> None:
        self._stream.post(messages)
        if self._has_some is not None:
            self._has_some.set()

    def _run(self) -> None:
        error: HocketError | None = None
        try:
            asyncio.run(self._keep())
        except HocketError as exc:
            error = exc
        except Exception as exc:  # noqa: BLE001 - the site must hear of it
            error = HocketError(f"The connection to {self._url} has failed: {sentence(exc)}")
        self._on_end(error)

    async def _keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_some = asyncio.Event()
        self._heard = time.monotonic()
        while not self._is_ending:
            left, why = self._heard + self._wait_s - time.monotonic(), "it ended the connection"
            try:
                async with self._connect(max(_AGAIN_S, min(left, _OPEN_S))) as connection:
                    await self._talk(connection)
            except InvalidStatus as exc:
                body = (exc.response.body or b"")[:300].decode("utf-8", "replace").strip()
                why = f"it refused this site: {body}"
                if exc.response.status_code == _NO_KEY:
                    raise UsageError(f"{self._url}: {why}") from exc
            except ssl.SSLCertVerificationError as exc:
                raise UsageError(
                    f"{self._url} is not the driver whose certificate the key file holds: "
                    f"{exc.verify_message}. Copy the key file again from where that was started."
                ) from exc
            except (OSError, EOFError, WebSocketException, asyncio.TimeoutError) as exc:
                why = sentence(exc)
            if time.monotonic() - self._heard > self._wait_s:
                raise UsageError(f"No driver answered at {self._url} for {self._wait_s:g} s: {why}")
            if not self._is_ending:
                await asyncio.sleep(_AGAIN_S)

    def _connect(self, open_s: float) -> connect:
        is_safe = self._url.startswith("wss://")
        return connect(
            self._url,
            additional_headers={KEY_HEADER: self._credentials.key},
            ssl=self._credentials.client_context() if is_safe else None,
            compression=None,
            max_size=protocol.LONGEST,
            open_timeout=open_s,
            close_timeout=1.0,
            ping_interval=_PING_S,
            ping_timeout=_PONG_S,
            proxy=None,
        )

    async def _talk(self, connection: ClientConnection) -> None:
        await connection.send(self._stream.opening())
        opening = await connection.recv(decode=False)
        self._heard = began = time.monotonic()
        if not self._stream.go_on(opening):
            self._stream = Stream(opening[: len(NOBODYS)])
            self._stream.post(iter((self._site.greet(),)))
        self.is_up = True
        tasks = [
            asyncio.create_task(self._say(connection)),
            asyncio.create_task(self._beat()),
            asyncio.create_task(self._hear(connection)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.is_up = False
            if self._heard > began:  # Since then it has answered every look.
                self._heard = max(self._heard, time.monotonic() - _PING_S - _PONG_S)
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
        for result in done:
            if isinstance(result, Exception):
                raise result

    async def _say(self, connection: ClientConnection) -> None:
        assert self._has_some is not None
        while True:
            while (frame := self._stream.frame()) is not None:
                await connection.send(frame)
            if self._is_ending and self._stream.is_sent:
                return
            await self._has_some.wait()
            self._has_some.clear()

    async def _beat(self) -> None:
        while True:
            message = self._site.beat()
            if message is not None:
                self.post(message)
            await asyncio.sleep(self._site.beat_s)

    async def _hear(self, connection: ClientConnection) -> None:
        assert self._has_some is not None
        async for data in connection:
            self._heard = time.monotonic()
            for message in self._stream.feed(data):
                self._site.hear(message)
            self._has_some.set()  # More may go now.
