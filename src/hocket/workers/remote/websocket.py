"""The way to a worker behind the proxies of a cloud: a WebSocket, for whoever has the key.

The far end listens and takes one connection in its life. What is in front of it (a tunnel, a
preview link) encrypts; the key is sent in a header, as proxies keep those.
"""

from __future__ import annotations

import contextlib
import hmac
import queue
import secrets
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from hocket.errors import WorkerFailed
from hocket.workers.remote.web_stream import WebSocket

KEY_HEADER = "X-Hocket-Key"
KEY_VARIABLE = "HOCKET_KEY"
"""The environment variable by which the far end learns the key."""
_OPEN_S = 20.0
"""Seconds for a handshake. Chosen by hand."""
_HEAD = 1 << 16
"""Most bytes of the head of a request or an answer."""
_BLANK = b"\r\n\r\n"


def new_key() -> str:
    return secrets.token_urlsafe(32)


def dial(
    url: str, key: str, headers: Mapping[str, str] | None = None, timeout_s: float = _OPEN_S
) -> WebSocket:
    """Connect to a far end. Raises WorkerFailed where it refuses, OSError where nobody answers."""
    parts = urllib.parse.urlsplit(url)
    is_secure = parts.scheme == "wss"
    where = (parts.hostname or "", parts.port or (443 if is_secure else 80))
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection(where, timeout_s))
        if is_secure:
            context = ssl.create_default_context()
            sock = stack.enter_context(context.wrap_socket(sock, server_hostname=where[0]))
        protocol = ClientProtocol(parse_uri(url))
        request = protocol.connect()
        for name, value in {**(headers or {}), KEY_HEADER: key}.items():
            request.headers[name] = value
        protocol.send_request(request)
        sock.sendall(b"".join(protocol.data_to_send()))
        deadline = time.monotonic() + timeout_s
        data, rest = _head(sock, deadline)
        protocol.receive_data(data)
        if protocol.state is State.OPEN:
            stack.pop_all()
            return WebSocket(sock, rest, is_client=True)
        while protocol.handshake_exc is None:
            protocol.receive_data(rest or _hear(sock, deadline))
            rest = b""
        refusal = protocol.handshake_exc
        if isinstance(refusal, InvalidStatus):
            status, body = refusal.response.status_code, (refusal.response.body or b"")[:300]
            text = body.decode("utf-8", "replace").strip()
            raise WorkerFailed(f"{url} refused the connection ({status}): {text}")
        raise WorkerFailed(f"{url} is no worker of hocket's: {refusal!r}")


def _head(sock: socket.socket, deadline: float) -> tuple[bytes, bytes]:
    """The head of a request or an answer, and what came behind it."""
    data = bytearray()
    while _BLANK not in data and len(data) < _HEAD:
        data += _hear(sock, deadline)
    before, blank, rest = bytes(data).partition(_BLANK)
    return before + blank, rest


def _hear(sock: socket.socket, deadline: float) -> bytes:
    """What comes next. Raises OSError where nothing does in time."""
    sock.settimeout(max(0.01, deadline - time.monotonic()))
    data = sock.recv(_HEAD)
    if not data:
        raise ConnectionError("The connection ended within the handshake.")
    return data


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
    with (
        socket.create_server((host, port)) as listener,
        contextlib.closing(_Door(key, listener)) as door,
    ):
        on_port(listener.getsockname()[1])
        try:
            web = door.admitted.get(timeout=wait_s)
        except queue.Empty:
            return False
        with contextlib.closing(web):
            use(web)
    return True


class _Door:
    """Answers everyone who comes; lets one in."""

    def __init__(self, key: str, listener: socket.socket) -> None:
        self._key = key.encode()
        self._listener = listener
        # Guards that one connection is taken, however many come at the same time.
        self._lock = threading.Lock()
        self._is_taken = False
        self.admitted: queue.SimpleQueue[WebSocket] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # It was closed.
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def close(self) -> None:
        """Wake whoever waits in `accept`."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def _answer(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(sock)
            data, rest = _head(sock, time.monotonic() + _OPEN_S)
            protocol = ServerProtocol()
            protocol.receive_data(data)
            for event in protocol.events_received():
                if isinstance(event, Request):
                    protocol.send_response(self._response(protocol, event))
            is_admitted = protocol.state is State.OPEN
            try:
                sock.sendall(b"".join(protocol.data_to_send()))
            finally:
                if is_admitted:  # Once, whatever came of it.
                    stack.pop_all()
                    self.admitted.put(WebSocket(sock, rest, is_client=False))

    def _response(self, protocol: ServerProtocol, request: Request) -> Response:
        brought = ",".join(request.headers.get_all(KEY_HEADER)).encode()
        if not hmac.compare_digest(brought, self._key):
            return protocol.reject(401, "The key is missing or wrong.\n")
        response = protocol.accept(request)
        with self._lock:
            if response.status_code == 101 and self._is_taken:
                return protocol.reject(409, "This worker is taken.\n")
            self._is_taken |= response.status_code == 101
        return response
