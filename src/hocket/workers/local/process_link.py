"""The parent's end of the stream to a worker process that shares memory with it."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable

from hocket.core.contracts.runtime import WorkerSpec
from hocket.system import machine
from hocket.system.child import read_tail
from hocket.workers.links.guard import Guard
from hocket.workers.links.stream_link import StreamLink
from hocket.workers.shm import Control

_TAIL = 4096
"""Bytes of a worker's log that an error quotes."""
_SPEAK_S = 0.3
"""Seconds for a hanging worker to write its stacks, which a signal handler does at once."""
_LOG_LIMIT = 1 << 20
"""Bytes of a worker's log, which is in memory, at which it is cut to its tail."""


class ProcessLink(StreamLink):
    """A Link over a socket, a control page and a log that the worker process shares.

    `speak` makes the process write its stacks into its log. With a guard the process is in a
    container: its id means nothing here.
    """

    def __init__(
        self,
        stream: socket.socket,
        control: Control,
        log: int,
        spec: WorkerSpec,
        end: Callable[[], None],
        speak: Callable[[], None],
        explain: Callable[[], str],
        guard: Guard | None = None,
    ) -> None:
        super().__init__(stream, spec, end, explain, guard)
        self._control = control
        self._log = log
        self._speak = speak
        self._old_tail = b""
        self._beats = 0
        self._beaten_at = time.monotonic()

    def steps(self, lane: int) -> int:
        return self._control.steps(lane)

    def control(self, lane: int, word: int) -> None:
        self._control.set_word(lane, word)

    def memory(self) -> int | None:
        if self._guard is not None:
            return self._control.memory or None
        return machine.resident_bytes(self._control.pid)

    def silent_s(self, now: float) -> float:
        # Asked every second, which is soon enough to see that the log has grown.
        if os.fstat(self._log).st_size > _LOG_LIMIT:
            self._old_tail = read_tail(self._log, _TAIL)
            os.ftruncate(self._log, 0)
        beats = self._control.beats
        if beats != self._beats:
            self._beats, self._beaten_at = beats, now
        return now - self._beaten_at

    def last_words(self) -> str:
        """The end of the worker's log, once it has written the stacks of its threads there."""
        size = os.fstat(self._log).st_size
        self._speak()
        deadline = time.monotonic() + _SPEAK_S
        while time.monotonic() < deadline and os.fstat(self._log).st_size == size:
            time.sleep(0.01)
        time.sleep(0.01)
        return self._tail()

    def _let_go(self) -> None:
        super()._let_go()
        self._control.close()
        os.close(self._log)

    def _epitaph(self) -> str:
        status = self._control.exit_status
        # A process id of a container says nothing here.
        who = "The worker" if self._guard is not None else f"The worker (pid {self._control.pid})"
        if status is None:
            text = self._explain()
        elif status < 0:
            text = f"{who} was killed by {_signal_name(-status)}."
            if -status == signal.SIGKILL and self._guard is not None:
                text += " Perhaps its container had no memory left (--runtime.memory)."
        else:
            text = f"{who} exited with code {status}."
        tail = self._tail()
        return f"{text}\nIts last words:\n{tail}" if tail else text

    def _tail(self) -> str:
        data = self._old_tail + read_tail(self._log, _TAIL)
        return data[-_TAIL:].decode("utf-8", "replace").strip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
