"""Wakes the thread that waits for workers."""

from __future__ import annotations

import threading
from contextlib import suppress
from os import EFD_CLOEXEC, EFD_NONBLOCK, close, eventfd, eventfd_read, eventfd_write


class Waker:
    """Wakes the thread that waits in epoll, or that looks up between two steps. Any thread may call
    `wake`, also after `close`; one thread waits."""

    def __init__(self) -> None:
        self.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        """Readable from `wake` to `clear`."""
        self._is_woken = False
        self._is_closed = False
        # `_is_woken` says what the file does, and a file that is closed is never touched: its
        # number may be another's. A signal handler may call `wake` while its own thread has the
        # lock.
        self._lock = threading.RLock()

    def wake(self) -> None:
        """Wake the waiting thread; until `clear` it does not wait again."""
        with self._lock:
            if not self._is_closed:
                self._is_woken = True
                eventfd_write(self.fd, 1)

    def is_woken(self) -> bool:
        """True if `wake` was called since the last `clear`, without a look at the file."""
        return self._is_woken

    def clear(self) -> None:
        with self._lock:
            if not self._is_closed:
                with suppress(BlockingIOError):  # nobody called `wake`
                    eventfd_read(self.fd)
                # Last: with it first, a signal in between would leave a claim that nothing ends.
                self._is_woken = False

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                close(self.fd)
