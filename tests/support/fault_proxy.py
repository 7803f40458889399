"""A TCP proxy that can be told to misbehave."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Life:
    """How many more bytes a connection carries."""

    left: int


class FaultProxy:
    """Forwards to `target`; faults hold for bytes that come after they were set."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.is_stalled = threading.Event()
        """Nothing passes, and nothing is closed: a half-open connection."""
        self.held = 0
        """Bytes that came and wait for the end of a stall."""
        self.delay_s = 0.0
        self.at_once = 65536
        """Most bytes that pass between two delays."""
        self.cut_after: int | None = None
        """Replies end, and the connection with them, after so many more bytes."""
        self.lives: Callable[[], int] | None = None
        """Draws after how many bytes, both ways together, a new connection is cut."""
        self.cuts = 0
        self.accepted = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._start(self._accept)

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        # A thread inside accept() is not woken by close() alone.
        self._listener.shutdown(socket.SHUT_RDWR)
        self.drop_all()
        for thread in self._threads:
            thread.join(5)
        self._listener.close()

    def drop_all(self) -> None:
        """Cut every connection."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            cut(pair)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            self._pairs.append((near, far))
            life = Life(self.lives() if self.lives is not None else 1 << 62)
            self._start(self._carry, near, far, life)

    def _carry(self, near: socket.socket, far: socket.socket, life: Life) -> None:
        there = threading.Thread(target=self._pump, args=(near, far, False, life), daemon=True)
        there.start()
        self._pump(far, near, True, life)
        there.join()
        near.close()
        far.close()

    def _pump(self, source: socket.socket, sink: socket.socket, is_reply: bool, life: Life) -> None:
        try:
            while data := source.recv(self.at_once):
                self.held = len(data) if self.is_stalled.is_set() else 0
                while self.is_stalled.is_set() and not self._is_closed:
                    time.sleep(0.005)
                if self.delay_s:
                    time.sleep(self.delay_s)
                if is_reply and self.cut_after is not None:
                    data, self.cut_after = data[: self.cut_after], self.cut_after - len(data)
                    if self.cut_after <= 0:
                        self.cut_after = None
                        sink.sendall(data)
                        break
                if len(data) >= life.left:
                    sink.sendall(data[: life.left])
                    life.left = 0
                    self.cuts += 1
                    break
                life.left -= len(data)
                sink.sendall(data)
        except OSError:
            pass
        while self.is_stalled.is_set() and not self._is_closed:
            time.sleep(0.005)  # Nor does the other side hear that this one is gone.
        cut((source, sink))


def cut(pair: tuple[socket.socket, socket.socket]) -> None:
    """Shut both directions of both sockets."""
    for one in pair:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
