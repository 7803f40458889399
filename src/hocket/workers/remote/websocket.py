"""A stream carried by a WebSocket: for workers behind the proxies of a cloud.

The far end listens and takes one connection in its life, from whoever has the key. What is in front
of it (a tunnel, a preview link) encrypts; the key is sent in a header, as proxies keep those.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import urllib.parse
from collections.abc import Callable, Mapping

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.http11 import Request, Response
from websockets.sync.client import connect
from websockets.sync.connection import Connection
from websockets.sync.server import ServerConnection, serve

from hocket.errors import WorkerFailed
from hocket.workers.remote.tls import open_tls

KEY_HEADER = "X-Hocket-Key"
KEY_VARIABLE = "HOCKET_KEY"
"""The environment variable by which the far end learns the key."""
MAX_MESSAGE = 1 << 20
"""Most bytes of one WebSocket message; a carrier's writes are shorter."""
# Chosen by hand.
_OPEN_S = 20.0
"""Seconds for a handshake."""
_PING_S = 20.0
"""Seconds between two pings of the WebSocket itself, which keep proxies from closing it."""


def new_key() -> str:
    return secrets.token_urlsafe(32)


class WebSocket:
    """A Carrier over an open WebSocket."""

    def __init__(self, connection: Connection, close: Callable[[], None]) -> None:
        self._connection = connection
        self.close = close

    def read(self) -> bytes:
        try:
            data = self._connection.recv()
        except ConnectionClosed:
            return b""
        if isinstance(data, str):
            raise ConnectionError("Text came where a stream of bytes was expected.")
        return data or self.read()

    def write(self, data: bytes) -> None:
        try:
            self._connection.send(data)
        except ConnectionClosed as exc:
            raise ConnectionError("The WebSocket was closed.") from exc


def dial(
    url: str, key: str, headers: Mapping[str, str] | None = None, timeout_s: float = _OPEN_S
) -> WebSocket:
    """Connect to a far end. Raises WorkerFailed where it refuses, OSError where nobody answers."""
    parts = urllib.parse.urlsplit(url)
    with contextlib.ExitStack() as stack:
        sock = None
        if parts.scheme == "wss":
            # The library reads and writes in two threads, which TLS does not bear.
            sock = stack.enter_context(open_tls(parts.hostname or "", parts.port or 443, timeout_s))
        try:
            opening = connect(
                urllib.parse.urlunsplit(parts._replace(scheme="ws")),
                sock=sock,
                additional_headers={**(headers or {}), KEY_HEADER: key},
                compression=None,
                max_size=MAX_MESSAGE,
                open_timeout=timeout_s,
                close_timeout=1.0,
                ping_interval=_PING_S,
                proxy=None,
            )
            connection = stack.enter_context(opening)
        except InvalidStatus as exc:
            status, body = exc.response.status_code, (exc.response.body or b"")[:300]
            text = body.decode("utf-8", "replace").strip()
            raise WorkerFailed(f"{url} refused the connection ({status}): {text}") from exc
        except (WebSocketException, TimeoutError, AssertionError) as exc:
            # The library asserts that nobody answers before being asked, and some do.
            raise WorkerFailed(f"{url} is no worker of hocket's: {exc!r}") from exc
        return WebSocket(connection, stack.pop_all().close)


def listen(
    key: str,
    host: str,
    port: int,
    use: Callable[[WebSocket], None],
    on_port: Callable[[int], None] = lambda _: None,
    wait_s: float = 600.0,
) -> bool:
    """Take one connection from whoever has the key and `use` it; whoever else comes, before or
    after, is refused. `on_port` is told where it listens. False where nobody came in `wait_s`."""
    if not key:
        raise ValueError(f"There is no key: set {KEY_VARIABLE}.")
    # Guards that one connection is taken, however many come at the same time.
    lock = threading.Lock()
    taken, done = threading.Event(), threading.Event()

    def admit(connection: ServerConnection, request: Request) -> Response | None:
        if not hmac.compare_digest(request.headers.get(KEY_HEADER, "").encode(), key.encode()):
            return connection.respond(401, "The key is missing or wrong.\n")
        with lock:
            if taken.is_set():
                return connection.respond(409, "This worker is taken.\n")
            taken.set()
        return None

    def handle(connection: ServerConnection) -> None:
        try:
            use(WebSocket(connection, connection.close))
        finally:
            done.set()

    listener = socket.create_server((host, port))
    on_port(listener.getsockname()[1])
    with serve(
        handle,
        sock=listener,
        process_request=admit,
        compression=None,
        max_size=MAX_MESSAGE,
        open_timeout=_OPEN_S,
        close_timeout=1.0,
        ping_interval=_PING_S,
        server_header=None,
    ) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        if taken.wait(wait_s):
            done.wait()
        server.shutdown()
    return taken.is_set()
