"""One worker in the engine's own process and thread: nothing to start, and `breakpoint()` works."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hocket.core.contracts.link import Link
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Observation
from hocket.core.plugins import NoSettings
from hocket.core.wire import Build, Close, Execute, Failed, Hello, Message, Ready
from hocket.errors import HocketError, UsageError, WorkerFailed
from hocket.workers.early import EarlyWorkers
from hocket.workers.env.host import Host
from hocket.workers.env.live_env import LiveEnv
from hocket.workers.rows.host import RowsHost
from hocket.workers.shm import Control, Layout
from hocket.workers.suites import is_batched
from hocket.workers.worker import make_early


class InlineRuntime:
    """Has one worker at a time: simulators cannot share a process."""

    Config = NoSettings

    def __init__(self, argument: str = "", config: NoSettings | None = None) -> None:
        del argument, config
        self._link: InlineLink | RowsLink | None = None
        self.early = EarlyWorkers(self._start)

    def start(self, spec: WorkerSpec) -> Link:
        """Make the one worker. Nothing of the env is built before its first message, or before
        somebody looks at it where it was begun early."""
        return self.early.take(spec)

    def _start(self, spec: WorkerSpec) -> InlineLink | RowsLink:
        if spec.python is not None:
            raise UsageError("Another interpreter needs worker processes: use the local runtime.")
        if self._link is not None and self._link.is_alive:
            raise UsageError(
                "The inline runtime has one lane: simulators cannot share a process. Use the "
                "local runtime for more."
            )
        self._link = RowsLink(spec) if is_batched(spec) else InlineLink(spec)
        return self._link

    def close(self) -> None:
        self.early.close()
        if self._link is not None:
            self._link.kill()


class InThreadLink:
    """What every Link does whose worker lives in this thread. Subclasses say when it works."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._inbox: deque[Message] = deque()
        self._outbox: list[Message] = []
        self._control = Control(bytearray(Control.size(spec.lanes)))
        self._host: Host | RowsHost
        self._env: LiveEnv | None = None
        """What was made before the link was opened."""
        self.is_alive = True

    def _begin(self, host: Host | RowsHost) -> None:
        self._host = host
        self._outbox.append(Hello(0, "", "", "inline"))

    def send(self, message: Message) -> bool:
        self._inbox.append(message)
        return True

    def flush(self) -> bool:
        return True

    def receive(self) -> list[Message]:
        self._take()
        done, self._outbox = self._outbox, []
        if not done and not self.is_alive:
            raise WorkerFailed("The inline worker was closed.")
        return done

    def fileno(self) -> None:
        return None

    def steps(self, lane: int) -> int:
        return self._control.steps(lane)

    def control(self, lane: int, word: int) -> None:
        self._control.set_word(lane, word)

    def memory(self) -> None:
        """None: the worker's memory is the engine's own."""

    def kill(self) -> None:
        if self.is_alive:
            self.is_alive = False
            if (owned := getattr(self, "_host", self._env)) is not None:
                owned.close()

    def post(self, message: Message, *, has_more: bool = False) -> None:
        del has_more
        self._outbox.append(message)

    def leave(self, lane: int, attempt: int, files: Sequence[str]) -> None:
        """Do nothing: files lie where the engine finds them."""

    def _take(self) -> None:
        while self._inbox and self.is_alive:
            message = self._inbox.popleft()
            if isinstance(message, Close):
                self.kill()
            else:
                self._perform(message)

    def _perform(self, message: Message) -> None:
        if isinstance(message, Build):
            try:
                self._env = make_early(message, 0)
            except HocketError as exc:
                self.post(Failed.of(-1, -1, exc))
        else:
            self._host.perform(message)


class InlineLink(InThreadLink):
    """A Link to a plain env, whose `receive` does the work."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec)
        self._memory: bytearray | None = None
        self._randomness = Randomness()
        self._views: list[Observation] = []
        self.is_shared = True
        self.block = 0

    def open(self, spec: WorkerSpec) -> None:
        """Make what does the work of this spec."""
        self._views = [{}] * spec.slots
        self._begin(Host(spec, self._control, self, 0, self._env))

    def arrays(self, lane: int, chunk: int = 0) -> Observation:
        del lane
        return self._views[chunk % len(self._views)]

    def post(self, message: Message, *, has_more: bool = False) -> None:
        if isinstance(message, Ready) and message.layout is not None:
            assert self._memory is not None
            slots = len(self._views)
            layout = Layout.from_plain(message.layout, len(self._memory) // slots)
            self._views = [layout.views(self._memory, slot) for slot in range(slots)]
        super().post(message, has_more=has_more)

    def allocate(self, size: int) -> bytearray:
        """Give the Host memory that the engine reads without a copy."""
        self._memory = bytearray(size)
        return self._memory

    def _perform(self, message: Message) -> None:
        with self._randomness.apart():
            super()._perform(message)


class RowsLink(InThreadLink):
    """A Link to a batched simulator: `work` takes steps of the rows that have an action, until
    there is something to tell, or the policy has chunks for the others."""

    _host: RowsHost

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec)
        self._has_stepped = False

    def open(self, spec: WorkerSpec) -> None:
        """Make what does the work of this spec."""
        host = RowsHost(spec, self._control, self.post, 0)
        self.gather, self.signature, self.arrays = host.gather, host.signature, host.arrays
        self._begin(host)

    def send(self, message: Message) -> bool:
        self._inbox.append(message)
        if isinstance(message, Execute):
            # Its actions may be in memory that the policy uses again.
            self._take()
        return True

    def work(self, seconds: float, is_called: Callable[[], bool], *, awaits_all: bool) -> None:
        self._take()
        self._has_stepped = False
        if self.is_alive and not self._outbox:
            # What is to be told first may bring chunks for this very step.
            self._has_stepped = self._host.work(seconds, is_called, awaits_all=awaits_all)

    def due_s(self) -> float | None:
        if not self.is_alive:
            return None
        # Whoever has just made a step most likely makes another.
        is_busy = self._inbox or self._outbox or self._has_stepped
        return 0.0 if is_busy else self._host.due_s()

    def expect(self, lanes: int, seconds: float) -> None:
        self._host.rule.expect(lanes, time.perf_counter() + seconds)

    @property
    def step_s(self) -> float | None:
        return self._host.step_s


_GLOBAL: Any = np.random
_STATE_BYTES = 625 * 4
"""What a MT19937 draws from: 624 words, and the place of the next."""


class Randomness:
    """Keeps the env's use of global random numbers apart from everyone else's in the process."""

    def __init__(self) -> None:
        self._inside: tuple[Any, ...] | None = None
        self._numbers, self._others = _Numbers(), _Numbers()

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        outside = random.getstate()
        self._others.leave()
        self._numbers.enter()
        if self._inside is not None:
            random.setstate(self._inside)
        try:
            yield
        finally:
            self._inside = random.getstate()
            self._numbers.leave()
            self._others.enter()
            random.setstate(outside)


class _Numbers:
    """numpy's global random numbers as one side has left them: its generator is put in place and
    taken away whole. To copy its state in and out took two fifths of a chunk's CPU. What numpy
    keeps beside the generator, the second of two normal numbers, is copied where there is one: it
    is looked for unless there was none before and nothing has been drawn since."""

    _generator: np.random.BitGenerator | None = None
    _drawn = b""
    _state: dict[str, Any] | None = None

    def leave(self) -> None:
        found, drawn = _GLOBAL.get_bit_generator(), b""
        if isinstance(found, np.random.MT19937):
            drawn = ctypes.string_at(found.ctypes.state_address, _STATE_BYTES)
        is_known = found is self._generator and drawn == self._drawn != b""
        if self._state is not None or not is_known:
            state: Any = np.random.get_state(legacy=False)
            self._state = state if state["has_gauss"] else None
        self._generator, self._drawn = found, drawn

    def enter(self) -> None:
        if self._generator is None:
            self._generator = copy.deepcopy(_GLOBAL.get_bit_generator())
        _GLOBAL.set_bit_generator(self._generator)
        if self._state is not None:
            np.random.set_state(self._state)
