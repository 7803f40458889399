"""What carries the bytes of a stream to the far end, and back."""

from __future__ import annotations

import os
import select
from typing import Protocol

SEND_S = 300.0
"""Seconds for the other end to take some of what is sent. Chosen by hand: a network that comes back
is waited for."""


class ByteStream(Protocol):
    """Bytes both ways, as a socket carries them; one thread uses it."""

    def fileno(self) -> int:
        """What is readable when something has come."""

    def recv(self, size: int, /) -> bytes:
        """What has come; empty at the end. Raises BlockingIOError where nothing has that counts,
        OSError where the carrier breaks."""

    def sendall(self, data: bytes, /) -> None:
        """Send all of these bytes. Raises OSError where that cannot be done."""

    def close(self) -> None:
        """End it. Twice is safe."""


class Stdio:
    """The standard input and output of this process, taken away from everyone else in it."""

    def __init__(self) -> None:
        self._in, self._out = os.dup(0), os.dup(1)
        for fd in (self._in, self._out):
            os.set_inheritable(fd, False)  # noqa: FBT003
            os.set_blocking(fd, False)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)  # Whatever is printed here is not for the other end.
        self._poller = select.poll()
        self._poller.register(self._out, select.POLLOUT)

    def fileno(self) -> int:
        return self._in

    def recv(self, size: int) -> bytes:
        return os.read(self._in, size)

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._out, rest) :]
            except BlockingIOError:
                if not self._poller.poll(SEND_S * 1000):
                    raise TimeoutError("The other end takes nothing.") from None

    def close(self) -> None:
        """Do nothing: the process ends with it."""
