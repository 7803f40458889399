"""A far end that a program of this machine leads to by its standard input and output: ssh,
`docker exec -i`, `kubectl exec -i`."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence

from hocket.system.child import Child
from hocket.system.waits import awaiting
from hocket.workers.remote.archive import code_message

_END_S = 4.0
"""Seconds for the program to end by itself."""
_READ = 1 << 18


class Tunnel:
    """An Attachment: a program that runs `python -c LOADER` elsewhere. What comes goes straight
    into the stream; what is sent, the code first, goes by a thread."""

    def __init__(
        self,
        words: Sequence[str],
        name: str,
        stream: socket.socket,
        *,
        login: contextlib.AbstractContextManager[object] | None = None,
        on_end: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`login` is held until the far end has taken the code. `on_end` is called once, when the
        program has ended: with true where it ended before that."""
        self._name = name
        self._stream = stream
        self._login = login or contextlib.nullcontext()
        self._on_end = on_end
        self._has_begun = False
        self._child = Child(words, stdin=subprocess.PIPE, stdout=stream.fileno())
        self._threads = [threading.Thread(target=self._send, daemon=True)]
        self._threads.append(threading.Thread(target=self._watch, daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        """Do nothing: the program ends with its stream, and so does what it runs."""

    def explain(self) -> str:
        return f"{self._name} {self._child.ending()}"

    def close(self) -> None:
        """Wait for it to end, by force in the end."""
        if self._child.code(_END_S) is None:  # Its thread may be writing: it is not hung up.
            self._child.kill()
        for thread in self._threads:
            thread.join()
        self._child.end(0.0)

    def _send(self) -> None:
        pipe = self._child.pipe
        assert pipe is not None
        with contextlib.suppress(OSError):
            # The code is longer than a pipe holds: it is written when somebody reads it there.
            with self._login, awaiting(self._name):
                pipe.write(code_message())
                pipe.flush()
            self._has_begun = True
            while data := self._wait():
                pipe.write(data)
                pipe.flush()
        with contextlib.suppress(OSError):
            pipe.close()

    def _wait(self) -> bytes:
        """The next bytes to send. (ssh makes its output, which is this socket, non-blocking.)"""
        while True:
            poller = select.poll()
            poller.register(self._stream, select.POLLIN)
            poller.poll()
            with contextlib.suppress(BlockingIOError):
                return self._stream.recv(_READ)

    def _watch(self) -> None:
        self._child.code(wait_s=None)
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._stream.close()
        self._on_end(not self._has_begun)
