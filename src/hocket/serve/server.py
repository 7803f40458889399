"""The server: who may connect, connections, health, metrics, an end that loses nothing, and what it
writes about itself, which never holds it up.

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
import queue
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from logging.handlers import QueueHandler
from typing import Any

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
from hocket.serve.clients import OPENPI, PATHS, VLA_EVAL, Caller, CameTwice
from hocket.serve.frames import Budget, MeasuredConnection, Overloaded
from hocket.serve.metrics import Metrics
from hocket.system.exposure import API_KEY_VARIABLE, STRANGERS, named_keys
from hocket.system.text import account

PING_INTERVAL_S = 20.0
PING_TIMEOUT_S = 120.0
"""Seconds after which a client that answers no ping is dropped. One that simulates with its
interpreter locked may answer late."""
GOING_AWAY = 1001
CLOSE_INTERNAL_ERROR = 1011
CLOSE_TRY_AGAIN = 1013
ERROR_REASON = "Internal server error. Traceback included in previous frame."
MAX_NEW = 256
"""Connections whose handshake has not ended, beside those that are allowed."""
MAX_WAITING_FRAMES = 2
"""Frames that wait on a connection during an answer. The protocol wants none; more would only take
memory."""
SCHEME = "Api-Key "
_LOG = logging.getLogger("hocket.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes any free port."""
    unix_path: str | None = None
    """A local socket instead of host and port."""
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    """A client must send one of them, each of which has a name for whose it is; where this is
    empty, none is asked for."""
    protocol: str = OPENPI
    """What clients speak, unless their path says otherwise."""
    logs_requests: bool = False
    """Write a line for each request: who asked, how much, how long it took."""
    tls: ssl.SSLContext | None = None
    max_message_bytes: int = 64 << 20
    """The longest frame; a policy that says what it reads may need less."""
    max_held_bytes: int = 512 << 20
    """Bytes of all requests under way, unfinished ones included. Beyond it, each connection has no
    more than an equal share."""
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
        self._connections: dict[MeasuredConnection, bool] = {}
        """Open connections; True while a request is under way."""
        self._numbers = itertools.count(1)
        most = listening.max_connections + MAX_NEW
        self._budget = Budget(listening.max_held_bytes, most, metrics)
        self._is_draining = False
        self._server: Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(next(iter(self._server.sockets)).getsockname()[1])

    async def __aenter__(self) -> PolicyServer:
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
            "logger": STRANGERS,
            "create_connection": partial(MeasuredConnection, self._budget),
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
        if path in ("/healthz", "/health"):
            return connection.respond(HTTPStatus.OK, "OK\n")
        client = client_of(request.headers.get_all("Authorization"), self._listening.keys)
        if client is None:
            self._metrics.errors["unauthorized"] += 1
            return connection.respond(
                HTTPStatus.UNAUTHORIZED,
                "This server wants the header Authorization: Api-Key KEY.\n",
            )
        connection.username = client
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
        assert isinstance(connection, MeasuredConnection)
        assert connection.request is not None
        path = connection.request.path.partition("?")[0].rstrip("/")
        dialect = PATHS.get(path, self._listening.protocol)
        caller = Caller(f"connection-{next(self._numbers)}", dialect)
        self._connections[connection] = False
        self._metrics.connections_total += 1
        self._metrics.connections = len(self._connections)
        closed = asyncio.ensure_future(connection.wait_closed())
        try:
            if dialect != VLA_EVAL:  # there the client speaks first
                await connection.send(self._metadata)
            while True:
                # Nothing here keeps the frame once it is answered.
                is_over = await self._respond(connection, caller, await connection.take(), closed)
                self._connections[connection] = False
                if is_over:
                    return
                if self._is_draining:
                    await connection.close(GOING_AWAY, "The server is closing.")
        except ConnectionClosed:
            return
        except (WireError, Overloaded) as exc:
            self._metrics.errors[type(exc).__name__] += 1
            await _refuse(connection, exc)
        finally:
            closed.cancel()
            self._backend.leave(caller)
            del self._connections[connection]
            self._metrics.connections = len(self._connections)

    async def _respond(
        self,
        connection: MeasuredConnection,
        caller: Caller,
        frame: str | bytes,
        closed: asyncio.Future[None],
    ) -> bool:
        """Answer one frame; true where the connection is over."""
        self._connections[connection] = True
        began, reply = time.perf_counter(), None
        try:
            if isinstance(frame, str):
                raise HocketError("A request must be a binary frame, not text.")
            answer = asyncio.ensure_future(self._backend.answer(caller, frame))
            either: set[asyncio.Future[Any]] = {answer, closed}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                # The client is gone: drop its rows. What is in a batch already is computed in vain.
                self._backend.leave(caller)
                answer.cancel()
                await asyncio.gather(answer, return_exceptions=True)
                return True
            if (reply := answer.result()) is not None:
                self._metrics.clients[connection.username] += 1
                await connection.send(reply)
        except ConnectionClosed:
            return True
        except CameTwice:
            self._metrics.errors["came_twice"] += 1
        except Exception as exc:  # noqa: BLE001 - the protocol tells any error to the client
            self._metrics.errors[type(exc).__name__] += 1
            await _refuse(connection, exc)
            return True
        finally:
            if self._listening.logs_requests:
                took_ms, who = 1e3 * (time.perf_counter() - began), connection.username
                sizes = f"{len(frame)} bytes in, {len(reply or b'')} out"
                _LOG.info("%s, %s: %s, %.1f ms", who, caller.name, sizes, took_ms)
        return False


async def _refuse(connection: ServerConnection, exc: Exception) -> None:
    busy = isinstance(exc, (Overloaded, PolicyUnavailableError))
    text = account(exc)
    _LOG.info("a request failed: %s", exc)
    with contextlib.suppress(ConnectionClosed):
        await connection.send(text)
    if busy:
        await connection.close(CLOSE_TRY_AGAIN, "The server is busy. See the previous frame.")
    else:
        await connection.close(CLOSE_INTERNAL_ERROR, ERROR_REASON)


def client_of(headers: Sequence[str], keys: Mapping[str, str]) -> str | None:
    """The name of the client whose key an Authorization header carries; anyone where no key is
    wanted, None where it is none of them."""
    if not keys:
        return "anyone"
    if len(headers) != 1 or not headers[0].startswith(SCHEME):
        return None
    # Digests have one length: to compare them takes the same time for all keys.
    given = _digest(headers[0][len(SCHEME) :].strip())
    found = [name for key, name in keys.items() if hmac.compare_digest(given, _digest(key))]
    return found[0] if found else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()


def load_keys(file: str | None) -> dict[str, str]:
    """Keys from a file, or else from the environment, each with its client's name."""
    if file is not None:
        return named_keys(file)
    key = os.environ.get(API_KEY_VARIABLE, "").strip()
    return {key: "key 1"} if key else {}


_MOST = 1000
"""Lines that wait to be written; more are lost."""


class _Lossy(QueueHandler):
    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


def log_to_stderr() -> None:
    """Write what is logged from now on to standard error, on a thread of its own."""
    lines: queue.Queue[Any] = queue.Queue(_MOST)
    # No handler of logging's: the process would wait for it at its end.
    threading.Thread(target=_write, args=(lines,), daemon=True).start()
    logging.basicConfig(handlers=[_Lossy(lines)], format="%(message)s", level=logging.INFO)


def _write(lines: queue.Queue[Any]) -> None:
    with contextlib.suppress(OSError):  # nobody will ever read it
        while True:
            os.write(2, f"hocket: {lines.get().getMessage()}\n".encode(errors="replace"))
