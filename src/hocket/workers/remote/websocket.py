"""A stream carried by a WebSocket: for workers behind the proxies of a cloud.

The far end listens and takes one connection in its life, from whoever has the key. What is in front
of it (a tunnel, a preview link) encrypts; the key is sent in a header, as proxies keep those. The
large messages are observations, which go from the end that listens: what the other end sends has to
be masked, byte by byte.
"""

from __future__ import annotations

import contextlib
import hmac
import queue
import secrets
import select
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
from hocket.workers.remote.carriers import SEND_S
from hocket.workers.remote.frames import (
    BINARY,
    CLOSE,
    MAX_MESSAGE,
    PONG,
    FrameError,
    FrameReader,
    frame,
)

KEY_HEADER = "X-Hocket-Key"
KEY_VARIABLE = "HOCKET_KEY"
"""The environment variable by which the far end learns the key."""
# Chosen by hand.
_OPEN_S = 20.0
"""Seconds for a handshake."""
_END_S = 5.0
"""Seconds for the last bytes to leave."""
_READ = 1 << 18
_HELD = 1 << 20
"""Most bytes that are held for a side which does not take them."""
_RECORD = 1 << 14
"""Most bytes of an encrypted record."""
_HEAD = 1 << 16
"""Most bytes of the head of a request or an answer."""
_BLANK = b"\r\n\r\n"
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def new_key() -> str:
    return secrets.token_urlsafe(32)


class WebSocket:
    """A Carrier over a connection whose handshake is done, and which it owns. One thread uses it:
    in Pythons before 3.13, two that use one TLS connection lose bytes now and then."""

    def __init__(self, sock: socket.socket, early: bytes, *, is_client: bool) -> None:
        """`early` is what came behind the handshake."""
        sock.setblocking(False)  # noqa: FBT003
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._is_client = is_client
        self._frames = FrameReader(are_masked=not is_client)
        self._space = memoryview(bytearray(_READ))
        self._out = bytearray()
        self._is_over = False
        self._early: list[bytes | memoryview] = []
        if early:
            self._early = self._take(memoryview(early))

    @property
    def waiting(self) -> int:
        """Bytes that have not left yet."""
        return len(self._out)

    @property
    def has_early(self) -> bool:
        """Whether there is something to read that nobody is woken for."""
        return bool(self._early)

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv(self, _: int = 0) -> bytes:
        """The bytes that have come, empty at the end. Raises BlockingIOError where none have, which
        may be when something has: a part of a frame, or a sign of life."""
        found = self.read()
        if not found and not self._is_over:
            raise BlockingIOError
        return b"".join(found)

    def read(self) -> list[bytes | memoryview]:
        """The bytes that have come, until the next call; none where `is_over` says that it is."""
        found, self._early = self._early, []
        if found or self._is_over:
            return found
        count = self._fill()
        return self._take(self._space[:count])

    @property
    def is_over(self) -> bool:
        return self._is_over and not self._early

    def _fill(self) -> int:
        """Read what has come; gives how much that is."""
        count = 0
        try:
            while len(self._space) - count >= _RECORD:
                part = self._sock.recv_into(self._space[count:])
                count += part
                self._is_over = part == 0
                # Of an encrypted stream a part is a record at most. It is read whole: `poll` does
                # not see a rest of it.
                if self._is_over or not isinstance(self._sock, ssl.SSLSocket):
                    break
        except _NOT_NOW:
            pass
        except OSError:
            self._is_over = True
        return count

    def _take(self, data: memoryview) -> list[bytes | memoryview]:
        found: list[bytes | memoryview] = []
        try:
            found = self._frames.take(data)
        except FrameError as exc:
            self._end(exc.code)
        try:
            for ping in self._frames.pings:
                self._emit(PONG, ping)
        except OSError:
            self._is_over = True
        if self._frames.pings and self.waiting > 4 * _HELD:
            self._is_over = True  # It asks and asks, and takes no answer.
        self._frames.pings.clear()
        if self._frames.is_closed:
            self._end(1000)
        return found

    def _end(self, code: int) -> None:
        """Say why it is over, as far as that is still heard."""
        if not self._is_over:
            self._is_over = True
            with contextlib.suppress(OSError):
                self._emit(CLOSE, code.to_bytes(2, "big"))

    def write(self, data: bytes) -> None:
        """Send bytes, as far as they are taken now; `push` sends the rest."""
        if self._is_over:
            raise ConnectionError("The WebSocket was closed.")
        if len(data) <= MAX_MESSAGE:
            self._emit(BINARY, data)
            return
        for begin in range(0, len(data), MAX_MESSAGE):
            self._emit(BINARY, data[begin : begin + MAX_MESSAGE])

    def _emit(self, kind: int, data: bytes) -> None:
        head, body = frame(kind, data, masks=self._is_client)
        sent = 0
        if self.push() and not isinstance(self._sock, ssl.SSLSocket):
            with contextlib.suppress(BlockingIOError):
                sent = self._sock.sendmsg([head, body])
        self._out += head[sent:]
        self._out += memoryview(body)[max(0, sent - len(head)) :]

    def push(self) -> bool:
        """Go on sending; true once all has gone. Raises OSError where the other end is gone."""
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except _NOT_NOW:
            return False
        return True

    def sendall(self, data: bytes, timeout_s: float = SEND_S) -> None:
        """Send bytes, and wait until they have gone."""
        if data:
            self.write(data)
        poller = select.poll()
        poller.register(self._sock, select.POLLOUT)
        while not self.push():
            if not poller.poll(timeout_s * 1000):
                raise TimeoutError("The other end of the WebSocket takes nothing.")

    def close(self) -> None:
        """End it, in order where that takes no time. Twice is safe."""
        self._end(1000)
        with contextlib.suppress(OSError):
            self.push()
        self._sock.close()


def join(web: WebSocket, stream: socket.socket) -> None:
    """Carry bytes between a WebSocket and a socket, in a thread that owns both, until either ends.
    Neither waits for the other: both ends may be sending more than fits on the way."""
    threading.Thread(target=_join, args=(web, stream), daemon=True).start()


def _join(web: WebSocket, stream: socket.socket) -> None:
    inward = bytearray()
    """What the socket did not take yet."""
    with contextlib.closing(web), stream:
        with contextlib.suppress(OSError):
            stream.setblocking(False)  # noqa: FBT003
            _carry(web, stream, inward)
        with contextlib.suppress(OSError):
            stream.settimeout(_END_S)
            stream.sendall(inward)
            stream.shutdown(socket.SHUT_RDWR)


def _carry(web: WebSocket, stream: socket.socket, inward: bytearray) -> None:
    poller = select.poll()
    while not web.is_over:
        far = select.POLLIN * (len(inward) < _HELD) | select.POLLOUT * (web.waiting > 0)
        near = select.POLLIN * (web.waiting < _HELD) | select.POLLOUT * bool(inward)
        poller.register(web, far)
        poller.register(stream, near)
        found = [(web.fileno(), 0)] if web.has_early else poller.poll()
        for fd, event in found:
            is_cut = event & (select.POLLHUP | select.POLLERR)  # Then nobody waits for room.
            if fd == web.fileno():
                web.push()
                if len(inward) < _HELD or is_cut:
                    for part in web.read():
                        inward += part[0 if inward else _send(stream, part) :]
            else:
                del inward[: _send(stream, inward) if inward else 0]
                if web.waiting < _HELD or is_cut:
                    with contextlib.suppress(BlockingIOError):
                        if not (data := stream.recv(_READ)):
                            web.sendall(b"", _END_S)
                            return
                        web.write(data)


def _send(stream: socket.socket, data: bytes | bytearray | memoryview) -> int:
    try:
        return stream.send(data)
    except BlockingIOError:
        return 0


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
