"""The server: who may connect, connections, health, metrics, and an end that loses nothing.

Stock protocol: metadata first, then one reply per request, in order; a client's own bad request
gets a text frame and close code 1011. Requests are read one at a time from each connection, so what
waits is bounded by the sockets' own buffers and the backend's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import logging
import os
import ssl
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self, cast

from websockets.asyncio.server import Server, ServerConnection, serve, unix_serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from hocket.core.codec import pack
from hocket.errors import (
    HocketError,
    PolicyUnavailableError,
    WireError,
)
from hocket.serve.backend import Backend
from hocket.serve.batching import Overloaded
from hocket.serve.clients import Caller, CameTwice
from hocket.serve.metrics import Metrics
from hocket.system.key_file import API_KEY_VARIABLE, read_keys

PING_INTERVAL_S = 20.0
PING_TIMEOUT_S = 120.0
"""Seconds after which a client that answers no ping is dropped. One that simulates with its
interpreter locked may answer late."""
GOING_AWAY = 1001
CLOSE_INTERNAL_ERROR = 1011
CLOSE_TRY_AGAIN = 1013
ERROR_REASON = "Internal server error. Traceback included in previous frame."
MAX_PIECES = 4096
"""Pieces of one message; hocket's own client sends a mebibyte in each."""
MAX_WAITING_FRAMES = 2
"""Frames that wait on a connection during an answer. The protocol wants none; more would only take
memory."""
SCHEME = "Api-Key "
_LOG = logging.getLogger("hocket.serve")
_LOG_OF_FRAMES = logging.getLogger("hocket.serve.frames")
_LOG_OF_FRAMES.setLevel(logging.CRITICAL)  # strangers send what they like


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes any free port."""
    unix_path: str | None = None
    """A local socket instead of host and port."""
    keys: tuple[str, ...] = field(default=(), repr=False)
    """A client must send one of them; where this is empty, none is asked for."""
    tls: ssl.SSLContext | None = None
    max_message_bytes: int = 64 << 20
    """The longest frame; a policy that says what it reads may need less."""
    max_held_bytes: int = 1 << 30
    """Bytes of all frames under way. Beyond it, only frames within an equal share of each
    connection are taken."""
    max_connections: int = 1024
    drain_s: float = 30.0
    """Seconds for requests under way when the server is told to end."""


class PolicyServer:
    """Listens inside an `async with`, and drains at its end."""

    def __init__(self, backend: Backend, listening: ServeOptions, metrics: Metrics) -> None:
        self._backend = backend
        self._listening = listening
        self._metrics = metrics
        self._metadata = b""
        self._connections: dict[ServerConnection, bool] = {}
        """Open connections; True while a request is under way."""
        self._numbers = itertools.count(1)
        self._held_bytes = 0
        self._is_draining = False
        self._server: Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(next(iter(self._server.sockets)).getsockname()[1])

    async def __aenter__(self) -> Self:
        self._metadata = pack(await self._backend.start())
        listening = self._listening
        needed = self._backend.max_request_bytes
        settings: dict[str, Any] = {
            "ssl": listening.tls,
            "compression": None,
            "max_size": min(listening.max_message_bytes, needed or listening.max_message_bytes),
            "max_queue": MAX_WAITING_FRAMES,
            "process_request": self._check,
            # Browsers name an origin; a page must not reach a server on its reader's machine.
            "origins": [None],
            "ping_interval": PING_INTERVAL_S,
            "ping_timeout": PING_TIMEOUT_S,
            "close_timeout": 2.0,
            "logger": _LOG_OF_FRAMES,
        }
        if listening.unix_path is not None:
            self._server = await unix_serve(self._serve, listening.unix_path, **settings)
        else:
            self._server = await serve(self._serve, listening.host, listening.port, **settings)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Take nothing new, answer what is under way, close."""
        assert self._server is not None
        self._is_draining = True
        self._server.close(close_connections=False)
        closing = [
            asyncio.ensure_future(connection.close(GOING_AWAY, "The server is closing."))
            for connection, is_busy in self._connections.items()
            if not is_busy
        ]
        deadline = asyncio.get_running_loop().time() + self._listening.drain_s
        while self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.transport.abort()
        await self._server.wait_closed()
        await asyncio.gather(*closing, return_exceptions=True)
        await self._backend.close()

    def _check(self, connection: ServerConnection, request: Request) -> Response | None:
        path = request.path.partition("?")[0]
        if path == "/healthz":
            return connection.respond(HTTPStatus.OK, "OK\n")
        if not is_admitted(request.headers.get("Authorization"), self._listening.keys):
            self._metrics.errors["unauthorized"] += 1
            return connection.respond(
                HTTPStatus.UNAUTHORIZED,
                "This server wants the header Authorization: Api-Key KEY.\n",
            )
        if path == "/metrics":
            response = connection.respond(HTTPStatus.OK, self._metrics.text())
            del response.headers["Content-Type"]
            response.headers["Content-Type"] = "text/plain; version=0.0.4; charset=utf-8"
            return response
        if self._is_draining:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "The server is closing.\n")
        if len(self._connections) >= self._listening.max_connections:
            self._metrics.errors["too_many_connections"] += 1
            return connection.respond(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{len(self._connections)} clients are connected, which is this server's limit.\n",
            )
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        caller = Caller(f"connection-{next(self._numbers)}")
        self._connections[connection] = False
        self._metrics.connections_total += 1
        self._metrics.connections = len(self._connections)
        closed = asyncio.ensure_future(connection.wait_closed())
        try:
            await connection.send(self._metadata)
            while True:
                frame = await _receive(connection)
                self._connections[connection] = True
                is_over = await self._respond(connection, caller, frame, closed)
                self._connections[connection] = False
                if is_over:
                    return
                if self._is_draining:
                    await connection.close(GOING_AWAY, "The server is closing.")
        except ConnectionClosed:
            return
        except WireError as exc:
            self._metrics.errors[type(exc).__name__] += 1
            await _refuse(connection, exc)
        finally:
            closed.cancel()
            self._backend.leave(caller)
            del self._connections[connection]
            self._metrics.connections = len(self._connections)

    async def _respond(
        self,
        connection: ServerConnection,
        caller: Caller,
        frame: str | bytes,
        closed: asyncio.Future[None],
    ) -> bool:
        """Answer one frame; true where the connection is over."""
        self._held_bytes += len(frame)
        try:
            if isinstance(frame, str):
                raise HocketError("A request must be a binary frame, not text.")
            self._check_share(len(frame))
            answer = asyncio.ensure_future(self._backend.answer(caller, frame))
            either: set[asyncio.Future[Any]] = {answer, closed}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                # The client is gone: drop its rows. What is in a batch already is computed in vain.
                self._backend.leave(caller)
                answer.cancel()
                await asyncio.gather(answer, return_exceptions=True)
                return True
            await connection.send(answer.result())
        except ConnectionClosed:
            return True
        except CameTwice:
            self._metrics.errors["came_twice"] += 1
        except Exception as exc:  # noqa: BLE001 - the protocol tells any error to the client
            self._metrics.errors[type(exc).__name__] += 1
            await _refuse(connection, exc)
            return True
        finally:
            self._held_bytes -= len(frame)
        return False

    def _check_share(self, size: int) -> None:
        """Refuse a frame beyond its connection's share while all frames together are too much."""
        limit = self._listening.max_held_bytes
        if self._held_bytes > limit and size > limit // len(self._connections):
            raise Overloaded(
                f"Requests of {self._held_bytes >> 20} MiB are in hand, and this one of "
                f"{size >> 20} MiB is more than a client's share. Try again later."
            )


async def _receive(connection: ServerConnection) -> str | bytes:
    """The next message. Its pieces are counted, since they may be empty and without end."""
    pieces: list[Any] = []
    async for piece in connection.recv_streaming():
        pieces.append(piece)
        if len(pieces) > MAX_PIECES:
            raise WireError(f"A message comes in at most {MAX_PIECES} pieces.")
    if len(pieces) == 1:
        return cast("str | bytes", pieces[0])
    return "".join(pieces) if isinstance(pieces[0], str) else b"".join(pieces)


async def _refuse(connection: ServerConnection, exc: Exception) -> None:
    busy = isinstance(exc, (Overloaded, PolicyUnavailableError))
    text = "".join(traceback.format_exception(exc)) if not busy else f"{type(exc).__name__}: {exc}"
    _LOG.info("a request failed: %s", exc)
    with contextlib.suppress(ConnectionClosed):
        await connection.send(text)
    if busy:
        await connection.close(CLOSE_TRY_AGAIN, "The server is busy. See the previous frame.")
    else:
        await connection.close(CLOSE_INTERNAL_ERROR, ERROR_REASON)


def is_admitted(header: str | None, keys: Sequence[str]) -> bool:
    """True where an Authorization header carries one of the keys, or there are none."""
    if not keys:
        return True
    if header is None or not header.startswith(SCHEME):
        return False
    # Digests have one length: to compare them takes the same time for all keys.
    given = _digest(header[len(SCHEME) :].strip())
    return any([hmac.compare_digest(given, _digest(key)) for key in keys])


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def load_keys(file: str | None) -> tuple[str, ...]:
    """Keys from a file, or else from the environment."""
    if file is not None:
        return tuple(read_keys(file))
    key = os.environ.get(API_KEY_VARIABLE, "").strip()
    return (key,) if key else ()
