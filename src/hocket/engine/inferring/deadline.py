"""How long one `infer` may take before its policy is given up, and how the thread that asks gets
out of a call that never returns.

A thread cannot be ended from outside. Calls on a policy's own threads are left behind; only a call
that the asking thread made itself must be interrupted, which a signal does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from types import FrameType

FIRST_S = 3600.0
"""Seconds for a call of which nothing is known: it may load or compile."""
_LOOK_S = 0.25
_GRACE_S = 10.0
_NAP_S = 5.0
_SIGNAL = signal.SIGURG
"""Ignored by default, and used by nobody here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferDeadline:
    seconds: float | None = None
    """What a call may take once its shape was seen; None goes by what such batches usually take."""
    first_s: float = FIRST_S


class NeverReturned(BaseException):
    """Raised inside a policy's code, to get the asking thread out of it."""


class Rescue:
    """Interrupts the main thread once its own call of a policy has taken too long.

    Code that never comes back to Python cannot be interrupted. The process is then ended, in words:
    nothing else in it could go on either, and what a run folder holds is safe at any moment.
    """

    def __init__(self) -> None:
        self.until = inf
        """When the call that the thread makes has taken too long; infinite where it makes none."""
        self.what = ""
        """What the thread calls, in words: one policy, whatever the batch."""
        self._closed = threading.Event()
        self._before: Callable[[int, FrameType | None], object] | int | None = None
        self.is_watching = False

    def start(self, what: str) -> bool:
        """Begin to watch over the calling thread, which calls `what`; False where it could not be
        interrupted."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(_SIGNAL) not in (signal.SIG_DFL, signal.SIG_IGN):
            return False
        self._before = signal.signal(_SIGNAL, self._interrupt)
        self.what, self.is_watching = what, True
        threading.Thread(target=self._watch, name="hocket-rescue", daemon=True).start()
        return True

    def close(self) -> None:
        """Give the signal back. To be called by the thread that began; twice is safe."""
        self._closed.set()
        if self.is_watching:
            self.is_watching = False
            signal.signal(_SIGNAL, self._before)

    def _interrupt(self, *_: object) -> None:
        if time.perf_counter() > self.until:
            self.until = inf
            raise NeverReturned

    def _watch(self) -> None:
        main = threading.main_thread().ident
        assert main is not None  # it runs
        looked_at = time.perf_counter()
        while not self._closed.wait(_LOOK_S):
            now = time.perf_counter()
            if now - looked_at > _NAP_S:
                self.until += now - looked_at  # the process was stopped: nobody is to blame
            looked_at = now
            late_s = now - self.until
            if late_s > _GRACE_S:
                sys.stderr.write(f"hocket: {self.what} never returned, so the process ends.\n")
                sys.stderr.flush()
                os._exit(1)
            if late_s > 0:
                signal.pthread_kill(main, _SIGNAL)
