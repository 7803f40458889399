"""What carries the bytes of a stream where there is no socket of its own to the other end."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Protocol

_READ = 1 << 18
"""Bytes of one read. Chosen by hand."""


class Carrier(Protocol):
    """Bytes both ways. `read` and `write` are called from a thread each."""

    def read(self) -> bytes:
        """Wait for bytes; empty at the end. Raises OSError where the carrier breaks."""

    def write(self, data: bytes) -> None:
        """Send all of these bytes, however long it takes."""

    def close(self) -> None:
        """End it, also for a thread that waits in `read` or `write`. Twice is safe."""


class Stdio:
    """The standard input and output of this process, taken away from everyone else in it."""

    def __init__(self) -> None:
        self._in, self._out = os.dup(0), os.dup(1)
        for fd in (self._in, self._out):
            os.set_inheritable(fd, False)  # noqa: FBT003
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)  # Whatever is printed here is not for the other end.

    def read(self) -> bytes:
        return os.read(self._in, _READ)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._out, rest) :]

    def close(self) -> None:
        """Do nothing: the process ends with it."""


class Join:
    """Pumps bytes between a carrier and a socket, in two threads, until either ends; then closes
    both."""

    def __init__(self, carrier: Carrier, stream: socket.socket) -> None:
        self._carrier = carrier
        self._stream = stream
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._inward, self._outward)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all that was to go has gone, one way or the other."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _inward(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._carrier.read():
                self._stream.sendall(data)
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    def _outward(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._stream.recv(_READ):
                self._carrier.write(data)
        self._carrier.close()
        self._threads[0].join()
        self._stream.close()
