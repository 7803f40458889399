"""Wakes a thread that waits in epoll, or that looks in between what it does."""

from __future__ import annotations

import threading
from contextlib import suppress
from os import EFD_CLOEXEC, EFD_NONBLOCK, close, eventfd, eventfd_read, eventfd_write


class Bell:
    """Any thread may ring it, also after `close`; one thread listens."""

    def __init__(self) -> None:
        self.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        """Readable for as long as the bell rings."""
        self._is_ringing = False
        self._is_closed = False
        # `_is_ringing` says what the file does, and a file that is closed is never touched: its
        # number may be another's. A signal may ring while its own thread has the lock.
        self._lock = threading.RLock()

    def ring(self) -> None:
        """Until it is hushed."""
        with self._lock:
            if not self._is_closed:
                self._is_ringing = True
                eventfd_write(self.fd, 1)

    def is_ringing(self) -> bool:
        """For those who have no time to look at the file."""
        return self._is_ringing

    def hush(self) -> None:
        """What it rang for is known."""
        with self._lock:
            if not self._is_closed:
                with suppress(BlockingIOError):  # silent already
                    eventfd_read(self.fd)
                # Last: with it first, a signal in between would leave a claim that nothing ends.
                self._is_ringing = False

    def close(self) -> None:
        """Let go of the file. Twice is safe."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                close(self.fd)
