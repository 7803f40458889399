"""The program at the far end: a relay behind a stream.

python code.zip stdio
python code.zip ws [HOST:]PORT      the key is in the environment variable HOCKET_KEY
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Sequence

from hocket.workers.remote.relay import serve

_SEND_S = 300.0
"""Seconds for the other end to take some of what is sent: a network may come back."""


def main(arguments: Sequence[str]) -> int:
    """Serve one connection."""
    if list(arguments) == ["stdio"]:
        serve(Stdio())
        return 0
    if len(arguments) != 2 or arguments[0] != "ws":
        sys.stderr.write((__doc__ or "") + "\n")
        return 2
    import asyncio

    from hocket.workers.remote.websocket import KEY_VARIABLE, listen

    # Out of the environment, which envs and whatever they start inherit.
    key = os.environ.pop(KEY_VARIABLE, "")
    if not key:
        sys.stderr.write(f"There is no key: set {KEY_VARIABLE}.\n")
        return 2

    def use(stream: socket.socket) -> None:
        stream.settimeout(_SEND_S)
        serve(stream)

    def tell(port: int) -> None:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()

    host, _, number = arguments[1].rpartition(":")
    asyncio.run(listen(key, host or "127.0.0.1", int(number), use, tell))
    return 0


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
                if not self._poller.poll(_SEND_S * 1000):
                    raise TimeoutError("The other end takes nothing.") from None

    def close(self) -> None:
        """Do nothing: the process ends with it."""
