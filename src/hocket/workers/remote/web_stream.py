"""The bytes of a stream in the messages of a WebSocket.

The large messages are observations, which go from the end that listens: what the other end sends
has to be masked, byte by byte.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading

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

# Chosen by hand.
_END_S = 5.0
"""Seconds for the last bytes to leave."""
_READ = 1 << 18
_HELD = 1 << 20
"""Most bytes that are held for a side which does not take them."""
_RECORD = 1 << 14
"""Most bytes of an encrypted record."""
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


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
