"""Wakes the thread that waits for workers."""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress

_MOST = 1 << 16
"""Bytes that a pipe holds at most."""


class Poll:
    """What the fleet needs of epoll, where the system has poll alone, whose masks are the same.
    Among 300 files a look takes 32 us instead of 0.7."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register, self.modify = self._poll.register, self._poll.modify
        self.unregister = self._poll.unregister

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        return self._poll.poll(timeout_s * 1000)

    def close(self) -> None: ...


class Waker:
    """Wakes the thread that waits in epoll, or that looks up between two steps. Any thread may call
    `wake`, also after `close`; one thread waits."""

    def __init__(self) -> None:
        self.fd, self._out = os.pipe()
        """The first is readable from `wake` to `clear`."""
        os.set_blocking(self.fd, False)
        os.set_blocking(self._out, False)
        self._is_woken = False
        self._is_closed = False
        # `_is_woken` says what the pipe does, and one that is closed is never touched: its number
        # may be another's. A signal handler may call `wake` while its own thread has the
        # lock.
        self._lock = threading.RLock()

    def wake(self) -> None:
        """Wake the waiting thread; until `clear` it does not wait again."""
        with self._lock:
            if not self._is_closed:
                self._is_woken = True
                with suppress(BlockingIOError):  # the pipe is full of calls
                    os.write(self._out, b".")

    def is_woken(self) -> bool:
        """True if `wake` was called since the last `clear`, without a look at the file."""
        return self._is_woken

    def clear(self) -> None:
        with self._lock:
            if not self._is_closed:
                with suppress(BlockingIOError):  # nobody called `wake`
                    os.read(self.fd, _MOST)
                # Last: with it first, a signal in between would leave a claim that nothing ends.
                self._is_woken = False

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self.fd)
                os.close(self._out)
