"""A minimal OpenPI server, independent of hocket's code: one request at a time, no ids, no batches.

It behaves as the protocol's description says: metadata first, one reply per request in order, a
text frame with the traceback and close code 1011 after any exception.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from support.processes import wait_until

Infer = Callable[[dict[str, Any]], Any]


def encode(value: Any) -> bytes:
    def array(found: Any) -> Any:
        assert isinstance(found, np.ndarray)
        return {
            b"__ndarray__": True,
            b"data": found.tobytes(),
            b"dtype": found.dtype.str,
            b"shape": found.shape,
        }

    return msgpack.packb(value, default=array)


def decode(frame: bytes) -> Any:
    def array(found: dict[Any, Any]) -> Any:
        if b"__ndarray__" in found:
            return np.ndarray(found[b"shape"], np.dtype(found[b"dtype"]), found[b"data"])
        return found

    return msgpack.unpackb(frame, object_hook=array)


class StockServer:
    """Listens on loopback; `port` stays the same over `stop` and `start`."""

    def __init__(
        self,
        infer: Infer,
        *,
        metadata: dict[str, Any] | None = None,
        api_key: str | None = None,
        port: int = 0,
    ) -> None:
        self.infer = infer
        self.metadata = metadata or {}
        self.api_key = api_key
        self.port = port or free_port()
        self.requests: list[dict[str, Any]] = []
        self.connections = 0
        self.tells_times = True
        self._one_at_a_time = threading.Lock()
        self._server: Server | None = None
        self._live: set[ServerConnection] = set()
        self.is_dead = threading.Event()
        """Nothing reaches anybody any more; for an `infer` that is to be under way until then."""

    def __enter__(self) -> StockServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.is_dead.clear()
        listener = socket.create_server(("127.0.0.1", self.port))
        self._server = serve(
            self._serve,
            sock=listener,
            compression=None,
            max_size=None,
            process_request=self._check,
        )
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Die as if killed: sockets are reset, nothing is said."""
        if self._server is None:
            return
        self._server.socket.close()
        for connection in list(self._live):
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
        self.is_dead.set()
        # Later than the sockets: it says goodbye to those that are open, and waits for handlers.
        self._server.shutdown()
        self._server = None
        wait_until(lambda: not self._live)

    def send_unasked(self, frame: bytes) -> None:
        """Send everybody a frame that nobody asked for."""
        for connection in list(self._live):
            connection.send(frame)

    def _check(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/healthz":
            return connection.respond(200, "OK\n")
        wanted = f"Api-Key {self.api_key}"
        if self.api_key is not None and request.headers.get("Authorization") != wanted:
            return connection.respond(401, "no\n")
        return None

    def _serve(self, connection: ServerConnection) -> None:
        self.connections += 1
        self._live.add(connection)
        try:
            connection.send(encode(self.metadata))
            for frame in connection:
                try:
                    assert isinstance(frame, bytes)
                    with self._one_at_a_time:
                        request = decode(frame)
                        self.requests.append(request)
                        began = time.perf_counter()
                        reply = self.infer(request)
                    if self.tells_times and isinstance(reply, dict):
                        took_ms = 1e3 * (time.perf_counter() - began)
                        reply = {**reply, "server_timing": {"infer_ms": took_ms}}
                except Exception:  # noqa: BLE001 - the protocol tells any error to the client
                    connection.send(traceback.format_exc())
                    connection.close(1011, "Internal server error.")
                    return
                connection.send(reply if isinstance(reply, (bytes, str)) else encode(reply))
        except (ConnectionClosed, OSError):
            return
        finally:
            self._live.discard(connection)


def free_port() -> int:
    """A port that nobody listens on, from below the range that the kernel hands out: no socket of
    another process comes upon it by chance before it is used."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
