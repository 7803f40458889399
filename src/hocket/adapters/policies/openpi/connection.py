"""One connection to an OpenPI server, and what can go wrong with it.

The protocol has no request numbers: a connection that saw a deadline, a cancellation or an error is
aborted and never used again, so a late reply can never be taken for a newer one. A frame that
nobody asked for ends the connection too.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.frames import CloseCode

from hocket.adapters.policies.openpi.protocol import (
    Announcement,
    WrongNumberError,
    find_announcement,
)
from hocket.core.codec import unpack
from hocket.errors import ConfigError, HocketError, PolicyError, PolicyUnavailableError, WireError

DEFAULT_PORT = 8000
OPEN_TIMEOUT_S = 10.0
"""Seconds for a connection and its metadata."""
PING_INTERVAL_S = 20.0
"""The default of websockets."""
MAX_REPLY_BYTES = 256 << 20
FRAGMENT = 1 << 20
"""Bytes. Longer frames go in pieces: an event loop's write buffer is slow with many megabytes at
once."""
_KEY = "set its key with --policy.api-key-file"
_PATH = "its path may be another: SGLang's is /openpi/policy, vLLM-Omni's /v1/realtime/robot/openpi"
REFUSED = {401: _KEY, 403: f"{_KEY}, or {_PATH}", 404: _PATH}
"""HTTP statuses that asking again cannot change, and what may."""

Answer = TypeVar("Answer")
Read = Callable[[bytes], Answer]
"""Turns a reply into an answer. What it raises ends the connection."""


class Unreachable(PolicyUnavailableError):
    """No connection could be made; nothing was asked."""


class Dropped(PolicyUnavailableError):
    """The connection was lost, or fell silent, with a request in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    name: str
    uri: str
    socket_path: str | None = None
    api_key: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None


def parse_endpoint(text: str, scheme: str = "openpi", port: int = DEFAULT_PORT) -> Endpoint:
    """`host:8000`, `host:8000/path`, `wss://host/path` or `unix:/run/x.sock`, without its key and
    certificate. `port` is what an address without one means."""
    address = text.removeprefix(f"{scheme}:").removeprefix("//")
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        return Endpoint(name=address, uri="ws://localhost/", socket_path=path)
    if address.startswith(("ws://", "wss://")):
        return Endpoint(name=address, uri=address)
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+)(?::(\d{1,5}))?(/\S*)?", address)
    if match is None:
        raise ConfigError(f"{text!r} is no address of a server. Write {scheme}://host:{port}.")
    name = f"{match[1]}:{int(match[2] or port)}{(match[3] or '').rstrip('/')}"
    return Endpoint(name=name, uri=f"ws://{name}")


class PolicyConnection:
    """An open connection with its metadata, which answers one question at a time."""

    def __init__(self, socket_: ClientConnection, metadata: Any, source: str) -> None:
        self._socket = socket_
        self.metadata = metadata
        self.announcement: Announcement | None = find_announcement(metadata)
        self.source = source
        self._is_usable = True
        self.ended_idle = False
        """The server closed it politely while nothing was asked, as some do after a time."""
        self._expected: asyncio.Future[str | bytes | None] | None = None
        """The awaited reply; None where the connection ended instead."""
        self._failure: Exception = ConnectionResetError("closed by the server")
        """Why it ended, once it has."""
        self._reader = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(cls, endpoint: Endpoint, number: int) -> PolicyConnection:
        """Connect and read the metadata; Unreachable where that fails or takes too long."""
        try:
            return await asyncio.wait_for(cls._begin(endpoint, number), OPEN_TIMEOUT_S)
        except InvalidStatus as exc:
            status = exc.response.status_code
            if status in REFUSED:
                raise PolicyUnavailableError(
                    f"The server at {endpoint.name} refuses with HTTP {status}: {REFUSED[status]}."
                ) from exc
            raise Unreachable(f"{endpoint.name} answers HTTP {status}") from exc
        except (OSError, WebSocketException, WireError, EOFError, asyncio.TimeoutError) as exc:
            raise Unreachable(f"{endpoint.name}: {str(exc) or type(exc).__name__}") from exc

    @classmethod
    async def _begin(cls, endpoint: Endpoint, number: int) -> PolicyConnection:
        opened = await _dial(endpoint)
        try:
            metadata = await opened.recv()
            if isinstance(metadata, str):
                raise WireError(f"its first frame is text: {metadata[:200]!r}")
            return cls(opened, unpack(metadata), f"openpi://{endpoint.name}#{number}")
        except BaseException:
            opened.transport.abort()
            raise

    async def ask(self, frame: bytes, timeout_s: float, read: Read[Answer]) -> Answer:
        """Send one request, and return what `read` makes of its reply. Any failure ends the
        connection, a reply that `read` raises for too."""
        try:
            reply = await self._exchange(frame, timeout_s)
            if isinstance(reply, str):
                raise PolicyError(f"{self.source} answered with an error:\n{reply}")
            try:
                return read(reply)
            except WrongNumberError as exc:
                raise Dropped(f"{self.source}: {exc}") from exc
            except HocketError as exc:
                raise type(exc)(f"{self.source}: {exc}") from exc
        except BaseException:
            self.abort()
            raise

    async def _exchange(self, frame: bytes, timeout_s: float) -> str | bytes:
        if not self.is_open:  # nobody would take the reply
            raise self._lost(self._failure) from self._failure
        self._expected = asyncio.get_running_loop().create_future()
        try:
            reply = await asyncio.wait_for(self._send(frame, self._expected), timeout_s)
        except asyncio.TimeoutError as exc:
            raise Dropped(f"{self.source} did not answer within {timeout_s:.1f} s") from exc
        except (OSError, WebSocketException) as exc:
            raise self._lost(exc) from exc
        if reply is None:
            raise self._lost(self._failure) from self._failure
        return reply

    async def _send(self, frame: bytes, expected: asyncio.Future[Answer]) -> Answer:
        view = memoryview(frame)
        pieces = [view[i : i + FRAGMENT] for i in range(0, len(view), FRAGMENT)]
        await self._socket.send(pieces if len(pieces) > 1 else frame)
        return await expected

    def _lost(self, why: Exception) -> Dropped:
        return Dropped(f"{self.source} was lost: {str(why) or type(why).__name__}")

    @property
    def is_open(self) -> bool:
        return self._is_usable and not self._reader.done()

    def abort(self) -> None:
        """End it at once; the server sees a reset."""
        self._is_usable = False
        self._reader.cancel()
        self._socket.transport.abort()

    async def close(self) -> None:
        """End it politely, within a second."""
        self._is_usable = False
        with contextlib.suppress(OSError, WebSocketException, asyncio.TimeoutError):
            await asyncio.wait_for(self._socket.close(), 1.0)
        self.abort()

    async def _read(self) -> None:
        """Hand each frame to whoever waits for it. After one that nobody waits for, no reply could
        be matched to its request."""
        try:
            async for message in self._socket:
                if self._expected is None or self._expected.done():
                    self._failure = WireError("it sent what nobody asked for")
                    break
                self._expected.set_result(message)
            else:
                idle = self._expected is None or self._expected.done()
                self.ended_idle = idle and self._socket.close_code == CloseCode.NORMAL_CLOSURE
        except (OSError, WebSocketException) as exc:
            self._failure = exc
        finally:
            self._is_usable = False
            self._socket.transport.abort()
            if self._expected is not None and not self._expected.done():
                self._expected.set_result(None)


async def _dial(endpoint: Endpoint) -> ClientConnection:
    headers = {"Authorization": f"Api-Key {endpoint.api_key}"} if endpoint.api_key else None
    settings: dict[str, Any] = {
        "compression": None,
        "max_size": MAX_REPLY_BYTES,
        "additional_headers": headers,
        # Pings keep the way open, and none is ever waited for: a stock server that infers for a
        # minute cannot answer them. The kernel's own keep-alive finds peers that are gone.
        "ping_interval": PING_INTERVAL_S,
        "ping_timeout": None,
        "open_timeout": OPEN_TIMEOUT_S,
        "close_timeout": 1.0,
    }
    if endpoint.socket_path is not None:
        return await unix_connect(endpoint.socket_path, endpoint.uri, **settings)
    if endpoint.uri.startswith("wss:"):
        settings["ssl"] = endpoint.tls or ssl.create_default_context()
    opened = await connect(endpoint.uri, proxy=None, **settings)
    raw = opened.transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, name):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return opened
