"""Keeps a worker in every slot of a fleet: starts, watches over and replaces them."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hocket import errors
from hocket.core.contracts.link import LastWords, Link
from hocket.core.contracts.runtime import Prepares, Runtime, WorkerSpec
from hocket.core.specs import TaskInfo
from hocket.core.wire import Close, Describe, Described, Failed, Hello, Message, Piece, Sealed
from hocket.errors import UsageError, WorkerFailed
from hocket.system import limits, machine
from hocket.workers.inbox import Inbox
from hocket.workers.notices import LaneFailed, LanesRecycled, LanesUp, WorkerFault
from hocket.workers.shm import STOP, word
from hocket.workers.slots import LaneSlot, Phase, WorkerSlot
from hocket.workers.waker import Poll, Waker

# How soon a fault must be noticed, and how long an end may take, against what looks cost.
WATCH_S = 0.1
"""Seconds between two looks at all workers."""
_WEIGH_S = 1.0
"""Seconds between two looks at their memory, for which a file of each is read."""
_CLOSE_S = 1.0
"""Seconds in which workers may end by themselves when the fleet is closed."""
_PAUSE_S = 5.0
"""Seconds without a look after which, as under a debugger, no worker is blamed for the pause."""
_SILENT_S = 30.0
"""Seconds without a sign of life after which a worker is given up; it gives one every few."""
_FAILED_STARTS = 3
"""Failed starts in a row after which a worker is given up, unless others run."""
_RETRY_S = 0.2
"""Seconds before the first new start, doubled for each further one."""
_RETRY_LATER_S = 10.0
"""Seconds between further starts while other workers run."""
_SOUND = (
    errors.ObservationError,
    errors.ActionSpaceError,
    errors.ChunkShapeError,
    errors.ChunkValueError,
)
"""Errors that hocket itself finds; the worker is sound after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """How many lanes, and when a worker is given up."""

    lanes: int
    step_timeout_s: float = 60.0
    """A worker that executes and makes no step for so long hangs."""
    start_timeout_s: float = 300.0
    """For the start of a worker, the build of an env with its reset, and sealing."""
    worker_memory: int | None = None
    """Resident bytes that a worker may have."""
    recycle_after: int | None = None
    """Episodes after which a worker is replaced."""


@dataclass(slots=True)
class RetiringWorker:
    """A worker whose slot has gone to another, and that still seals its last attempts."""

    lanes: range
    link: Link
    slots: list[LaneSlot]
    deadline: float


class Supervisor:
    """Starts, watches and replaces workers. `Fleet.poll` hands on what they say of their lives."""

    def __init__(self, runtime: Runtime, spec: WorkerSpec, config: FleetConfig) -> None:
        width = spec.lanes
        if config.lanes < 1 or config.lanes % width:
            raise UsageError(f"{config.lanes} lanes cannot be had in workers of {width}.")
        if config.worker_memory is not None and machine.resident_bytes(os.getpid()) is None:
            raise UsageError("--worker-memory needs /proc, which this system does not have.")
        limits.allow(config.lanes // width, "lane" if width == 1 else "worker")
        self.workers = [WorkerSlot(range(i, i + width)) for i in range(0, config.lanes, width)]
        self.by_fd: dict[int, WorkerSlot] = {}
        """Workers in other processes, by what to wait on."""
        self.inline: list[WorkerSlot] = []
        """Workers in this thread."""
        self.epoll = select.epoll() if hasattr(select, "epoll") else Poll()
        self.waker = Waker()
        self.epoll.register(self.waker.fd, select.POLLIN)
        self.inbox = Inbox()
        self.watched_at = self._weighed_at = time.monotonic()
        """When `watch` was last called."""
        self._runtime = runtime
        # Asked once: to look for a Protocol's methods costs more than a look at a worker.
        self._prepares = runtime if isinstance(runtime, Prepares) else None
        self._spec = spec
        self._config = config
        self._retiring: dict[int, RetiringWorker] = {}
        self._is_closed = False

    @property
    def is_alone(self) -> bool:
        """True if there is one worker, so that nobody else has to be heard while it works."""
        return len(self.workers) == 1 and not self._retiring

    def start(self, worker: WorkerSlot) -> None:
        try:
            link = self._runtime.start(self._spec)
        except WorkerFailed as exc:
            self._start_failed(worker, str(exc))
            return
        self._settle(worker, link)

    def _settle(self, worker: WorkerSlot, link: Link) -> None:
        worker.settle(link, time.monotonic())
        fd = link.fileno()
        if fd is None:
            self.inline.append(worker)
        else:
            self.by_fd[fd] = worker
            self.epoll.register(fd, select.POLLIN)

    def can_leave(self, worker: WorkerSlot) -> bool:
        """True if a worker is up, in a process of its own, and nothing is awaited of it."""
        has_work = worker.is_busy or any(slot.sealing for slot in worker.slots)
        return (
            worker.is_up
            and worker.link is not None
            and not has_work
            and (worker not in self.inline)
        )

    def attach(self, worker: WorkerSlot, link: Link) -> None:
        """Take back a worker that was lent out of its slot; what it has built is not known."""
        self._settle(worker, link)
        worker.is_up = True

    def describe(self, suite: str, timeout_s: float) -> list[TaskInfo]:
        link = self._runtime.start(replace(self._spec, sinks=()))
        try:
            link.send(Describe(suite))
            for message in self._answers(link, timeout_s):
                if isinstance(message, Described):
                    return [TaskInfo(**task) for task in message.tasks]
                if isinstance(message, Failed):
                    raise message.error
        finally:
            link.kill()
        raise WorkerFailed(f"The tasks of {suite!r} were not told within {timeout_s} s.")

    def _answers(self, link: Link, timeout_s: float) -> Iterator[Message]:
        """What the worker of a single link says, until `timeout_s` seconds are over."""
        deadline = time.monotonic() + timeout_s
        fd = link.fileno()
        poller = select.poll()
        if fd is not None:
            poller.register(fd, select.POLLIN)
        while (now := time.monotonic()) < deadline:
            if self._is_preparing:
                deadline = now + timeout_s
            if fd is None or poller.poll(min(1.0, deadline - now) * 1000):
                yield from link.receive()

    @property
    def _is_preparing(self) -> bool:
        return self._prepares is not None and self._prepares.is_preparing

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for worker in self.workers:
            for row, slot in enumerate(worker.slots):
                if worker.link is not None and slot.phase is Phase.EXECUTING:
                    worker.link.control(row, word(slot.chunk, STOP))
        links = [worker.link for worker in self.workers if worker.link is not None]
        for link in links:
            link.send(Close())
        links += [retiring.link for retiring in self._retiring.values()]
        _await_ends(links, _CLOSE_S)
        for link in links:
            link.kill()
        self._runtime.close()
        self.epoll.close()
        self.waker.close()

    # -- What workers say of themselves ------------------------------------------------------

    def hear(self, worker: WorkerSlot, message: Message, now: float) -> bool:
        """Take a Hello or a Failed; false where the worker that sent it has left its slot."""
        if isinstance(message, Failed):
            return self._hear_failed(worker, message)
        if isinstance(message, Hello):
            worker.is_up = True
            worker.failed_starts = 0
            worker.since = now
            self.inbox.add(LanesUp(list(worker.lanes)))
        return True

    def _hear_failed(self, worker: WorkerSlot, message: Failed) -> bool:
        if message.lane < 0:
            self.lose(worker, message.kind, message.account)
            return False
        slot = worker.slots[message.lane]
        if slot.sealing:
            self.inbox.unsealed(worker.lanes, worker.slots, message)
            return True
        # An env that broke in the middle of an episode may have broken its process too.
        error = errors.from_name(message.kind, message.message)
        is_gone = slot.phase is Phase.EXECUTING and not isinstance(error, _SOUND)
        self.inbox.failed(worker, message, is_gone=is_gone)
        if is_gone:
            self._retire(worker)
        return not is_gone

    def hear_retiring(self, fd: int) -> None:
        """Read what a worker says that has left its slot; nothing where it is gone for good."""
        retiring = self._retiring.get(fd)
        if retiring is None:
            return
        retiring.link.flush()
        try:
            messages = retiring.link.receive()
        except WorkerFailed as exc:
            self._part(fd, retiring, str(exc))
            return
        for message in messages:
            if isinstance(message, (Piece, Sealed)):
                self.inbox.sealed(retiring.lanes, retiring.slots, message)
            elif isinstance(message, Failed):
                self.inbox.unsealed(retiring.lanes, retiring.slots, message)

    # -- Replacing ---------------------------------------------------------------------------

    def _start_failed(self, worker: WorkerSlot, message: str) -> None:
        """Try again, a little later each time; give up after a few where no worker runs at all."""
        now = time.monotonic()
        worker.settle(None, now)
        worker.trouble = message
        worker.failed_starts += 1
        if worker.failed_starts < _FAILED_STARTS:
            worker.retry_at = now + _RETRY_S * 2**worker.failed_starts
        elif any(other.is_up for other in self.workers):
            worker.retry_at = now + _RETRY_LATER_S  # Others work: one host of several may be down.
        else:
            for lane in worker.lanes:
                self.inbox.add(LaneFailed(lane, -1, WorkerFault.START, message, "", gone=True))

    def lose(self, worker: WorkerSlot, kind: str, message: str) -> None:
        """The worker is gone, or must go: report what it had, and start another."""
        was_up, slots = worker.is_up, worker.slots
        link = self.detach(worker)
        has_lost = self.inbox.lost(
            worker.lanes, slots, kind if was_up else WorkerFault.START, message
        )
        link.kill()
        if not was_up:
            self._start_failed(worker, message)
            return
        if not has_lost:
            self.inbox.add(LanesRecycled(list(worker.lanes), message))
        self.start(worker)

    def detach(self, worker: WorkerSlot) -> Link:
        """Take a worker out of its slot, which is empty then."""
        link = worker.link
        assert link is not None
        fd = link.fileno()
        if fd is None:
            self.inline.remove(worker)
        else:
            del self.by_fd[fd]
            self.epoll.unregister(fd)
        worker.link = None
        return link

    def _retire(self, worker: WorkerSlot) -> None:
        """Start another worker in the slot; the one that was there seals what it has and goes."""
        slots = worker.slots
        link = self.detach(worker)
        fd = link.fileno()
        if fd is None:
            link.kill()
        else:
            link.send(Close())
            deadline = time.monotonic() + self._config.start_timeout_s
            self._retiring[fd] = RetiringWorker(worker.lanes, link, slots, deadline)
            self.epoll.register(fd, select.POLLIN)
        self.start(worker)

    def _part(self, fd: int, retiring: RetiringWorker, message: str) -> None:
        self.inbox.lost(retiring.lanes, retiring.slots, WorkerFault.CRASHED, message)
        del self._retiring[fd]
        self.epoll.unregister(fd)
        retiring.link.kill()

    def recycle_if_due(self, worker: WorkerSlot) -> None:
        """Replace a worker between two episodes, if it has had enough of them or of memory."""
        if worker.link is None or worker.is_busy:
            return
        limit, after = self._config.worker_memory, self._config.recycle_after
        if after is not None and worker.episodes >= after:
            self._recycle(worker, f"{worker.episodes} episodes")
        elif limit is not None and (worker.link.memory() or 0) > limit:
            self._recycle(worker, f"more than {limit} bytes of memory")

    def _recycle(self, worker: WorkerSlot, reason: str) -> None:
        self.inbox.add(LanesRecycled(list(worker.lanes), reason))
        self._retire(worker)

    # -- Watching ----------------------------------------------------------------------------

    def watch(self, now: float) -> None:
        """Kill workers that hang or outgrow their memory; retry starts that are due."""
        pause = now - self.watched_at
        self.watched_at = now
        weighs = now - self._weighed_at >= _WEIGH_S
        if weighs:
            self._weighed_at = now
        is_preparing = self._is_preparing
        for worker in self.workers:
            if pause > _PAUSE_S or (is_preparing and not worker.is_up):
                # Nobody listened, or it could not begin, which is no fault of the worker's.
                worker.since = now
            if worker.retry_at is not None and now >= worker.retry_at:
                self.start(worker)
            elif worker.link is not None and worker not in self.inline:
                # (One that hangs in this thread would keep us from looking.)
                self._check(worker, now, weighs=weighs)
        for fd, retiring in list(self._retiring.items()):
            if now > retiring.deadline:
                self._part(fd, retiring, "It did not end in time.")

    def _check(self, worker: WorkerSlot, now: float, *, weighs: bool) -> None:
        awaited, seconds = worker.waits_since(now)
        if awaited == "step" and seconds > self._config.step_timeout_s:
            self._give_up(worker, f"The env made no step for {seconds:.1f} s.")
        elif awaited == "start" and seconds > self._config.start_timeout_s:
            self._give_up(worker, f"{_awaited(worker)} after {seconds:.1f} s (--start-timeout).")
        elif weighs and self._is_silent(worker, now):
            self.lose(
                worker, WorkerFault.HUNG, f"Nothing was heard of the worker for {_SILENT_S:g} s."
            )
        elif weighs and worker.link is not None and self._config.worker_memory is not None:
            used, limit = worker.link.memory(), self._config.worker_memory
            if used is None or used <= limit:
                return
            reason = f"The worker used {used} bytes of memory; it may use {limit}."
            if worker.is_busy:
                self.lose(worker, WorkerFault.MEMORY, reason)
            else:
                self._recycle(worker, reason)

    def _is_silent(self, worker: WorkerSlot, now: float) -> bool:
        audible = worker.audible
        return worker.is_up and audible is not None and audible.silent_s(now) > _SILENT_S

    def _give_up(self, worker: WorkerSlot, message: str) -> None:
        words = worker.link.last_words() if isinstance(worker.link, LastWords) else ""
        self.lose(worker, WorkerFault.HUNG, f"{message}\nIts last words:\n{words}".strip())


def _awaited(worker: WorkerSlot) -> str:
    return "The env was not ready" if worker.is_up else "The worker had not started"


def _await_ends(links: list[Link], timeout_s: float) -> None:
    """Give workers that were told to close some time to do so."""
    deadline = time.monotonic() + timeout_s
    poller = select.poll()
    open_links: dict[int, Link] = {}
    for link in links:
        fd = link.fileno()
        if fd is not None:
            open_links[fd] = link
            poller.register(fd, select.POLLIN)
    while open_links and (left := deadline - time.monotonic()) > 0:
        for fd, _ in poller.poll(left * 1000):
            try:
                open_links[fd].receive()
            except WorkerFailed:
                poller.unregister(fd)
                del open_links[fd]
