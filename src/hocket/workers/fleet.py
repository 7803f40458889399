"""All workers, seen from the parent: what the engine tells lanes to do, and what they answer."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from hocket.core.contracts.link import SelfDriven
from hocket.core.contracts.runtime import Isolates, Runtime, WorkerSpec
from hocket.core.data import Array, Observation, Signature, Trial, signature
from hocket.core.specs import TaskInfo
from hocket.core.wire import Begin, Course, Discard, Execute, Message
from hocket.errors import WorkerFailed
from hocket.workers.notices import LanesUp, Notice, WorkerFault
from hocket.workers.shm import STOP, word
from hocket.workers.slots import Borrowed, Phase, WorkerSlot
from hocket.workers.supervisor import WATCH_S, FleetConfig, Supervisor

__all__ = ["Borrowed", "Fleet", "FleetConfig"]

_FLOAT = np.dtype("<f8")
_ONE = (0,)
"""The rows of a worker with one lane."""
_GLANCE_S = 0.5e-3
"""Seconds for which a worker in this thread works before anyone looks what others have to say: less
costs looks, more keeps others waiting."""


class Fleet:
    """Drives every lane through its worker. One thread calls it, except for `wake`.

    It has its runtime to itself, and closes it.
    """

    def __init__(self, runtime: Runtime, spec: WorkerSpec, config: FleetConfig) -> None:
        if isinstance(runtime, Isolates) and runtime.isolates:
            config = replace(config, recycle_after=1)
        self.config = config
        self._supervisor = Supervisor(runtime, spec, config)
        self._workers = self._supervisor.workers
        self._inbox = self._supervisor.inbox
        self._recycles = config.worker_memory is not None or config.recycle_after is not None
        self._width = spec.lanes
        self._is_one = len(self._workers) == 1
        """All lanes are in one worker."""

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Ask for all workers at once; LanesUp tells as each comes up.

        A fleet that has served one engine may start for the next: workers that are up stay up, and
        are told again.
        """
        for worker in self._workers:
            if worker.link is None:
                self._supervisor.start(worker)
            elif worker.is_up:
                self._inbox.add(LanesUp(worker.lanes))

    @property
    def is_idle(self) -> bool:
        """True if no lane has an attempt, so that another engine may start."""
        return not any(worker.is_busy for worker in self._workers)

    def describe(self, suite: str, timeout_s: float) -> list[TaskInfo]:
        """A suite's tasks, asked of a worker made for that. Blocks."""
        return self._supervisor.describe(suite, timeout_s)

    def begin(
        self,
        lanes: Sequence[int],
        attempts: Sequence[int],
        trials: Sequence[Trial],
        max_steps: Sequence[int | None],
        *,
        final_observation: bool,
        record: Sequence[Mapping[str, Any]],
    ) -> None:
        """Reset lanes for new attempts. Lanes whose worker is still starting may begin too."""
        now = time.monotonic()
        for worker, rows, indices in self._by_worker(lanes):
            if worker.link is None:
                self._supervisor.start(worker)
            for row, index in zip(rows, indices, strict=True):
                slot, trial = worker.slots[row], trials[index]
                slot.phase = Phase.BEGINNING
                slot.attempt, slot.chunk = attempts[index], -1
                slot.trial = (trial.suite, trial.task)
            worker.since = now
            message = Begin(
                rows,
                [attempts[index] for index in indices],
                [trials[index] for index in indices],
                [max_steps[index] or 0 for index in indices],
                final_observation,
                [record[index] for index in indices],
            )
            self._send(worker, message)

    def execute(
        self,
        lanes: Sequence[int],
        attempts: Sequence[int],
        chunks: Sequence[int],
        actions: Sequence[Array] | Array,
        courses: Sequence[Course] = (),
    ) -> None:
        """Run one chunk `[k, A]` in each lane; all of them may be one array `[B, k, A]`. `courses`
        says what each lane does around its actions, where it goes on."""
        now = time.monotonic()
        if isinstance(actions, np.ndarray):
            counts, whole = [actions.shape[1]] * len(actions), actions
        else:
            counts, whole = [len(chunk) for chunk in actions], np.concatenate(actions)
        flat = np.ascontiguousarray(whole, _FLOAT)
        if self._is_one:
            # Rows in this process read an array where it lies.
            is_read = whole is actions and self.driven is not None
            data = flat if is_read else flat.tobytes()
            message = Execute(lanes, attempts, chunks, counts, data, courses)
            self._execute(self._workers[0], message, now)
            return
        data = flat.tobytes()
        # Not by the data: where a delay is as long as a decision lasts, all chunks may be empty.
        width = 8 * actions[0].shape[1]
        ends = [width * steps for steps in accumulate(counts)]
        parts = [data[end - width * count : end] for count, end in zip(counts, ends, strict=True)]
        if self._width == 1 and not courses:
            told = zip(lanes, attempts, chunks, counts, parts, strict=True)
            for lane, attempt, chunk, count, part in told:
                message = Execute(_ONE, (attempt,), (chunk,), (count,), part)
                self._execute(self._workers[lane], message, now)
            return
        for worker, rows, indices in self._by_worker(lanes):
            message = Execute(
                rows,
                [attempts[index] for index in indices],
                [chunks[index] for index in indices],
                [counts[index] for index in indices],
                b"".join([parts[index] for index in indices]),
                [courses[index] for index in indices] if courses else (),
            )
            self._execute(worker, message, now)

    def _execute(self, worker: WorkerSlot, message: Execute, now: float) -> None:
        worker.since = now
        slots = worker.slots
        for row, chunk in zip(message.lanes, message.chunks, strict=True):
            slot = slots[row]
            slot.phase = Phase.EXECUTING
            slot.chunk = chunk
            if slot.has_word:
                self._control(worker, row, 0)
        link = worker.link
        if link is None or not link.send(message):
            self._unsent(worker)

    def recall(self, lane: int, attempt: int, chunk: int) -> None:
        """Stop after the current step (with a history: as soon as that is whole); the lane answers
        with the steps that it made. Without effect once the chunk has ended."""
        worker, row = self._workers[lane // self._width], lane % self._width
        slot = worker.slots[row]
        if (slot.phase, slot.attempt, slot.chunk) == (Phase.EXECUTING, attempt, chunk):
            self._control(worker, row, word(chunk, STOP))

    def discard(self, lanes: Sequence[int], attempts: Sequence[int]) -> None:
        """Forget attempts, and what was recorded of them; nothing more is told of them."""
        for worker, rows, indices in self._by_worker(lanes):
            for row in rows:
                slot = worker.slots[row]
                if slot.phase is Phase.EXECUTING:
                    self._control(worker, row, word(slot.chunk, STOP))
                if slot.phase in (Phase.BEGINNING, Phase.EXECUTING):
                    slot.orphans += 1  # Its answer is under way, and is dropped when it comes.
                slot.phase = Phase.IDLE
            self._send(worker, Discard(rows, [attempts[index] for index in indices]))

    def wake(self) -> None:
        """Make a `poll` in progress return early. Any thread may call this."""
        self._supervisor.waker.wake()

    def arrays(self, lane: int, chunk: int = 0) -> Observation:
        """The lane's last observation: views, valid until its next chunk or attempt is sent. With
        two slots the one for this chunk, valid until the chunk after it is sent."""
        link = self._workers[lane // self._width].link
        if link is None:
            raise WorkerFailed(f"Lane {lane} has no worker.")
        return link.arrays(lane % self._width, chunk)

    def seen(self, lanes: Sequence[int], chunks: Sequence[int]) -> list[Observation]:
        """What these lanes saw for these chunks, as `arrays` gives it."""
        if self._width > 1:
            return list(map(self.arrays, lanes, chunks))
        links = [self._workers[lane].link for lane in lanes]
        return [
            self.arrays(lane) if link is None else link.arrays(0, chunk)
            for lane, link, chunk in zip(lanes, links, chunks, strict=True)
        ]

    def signature(self, lane: int) -> Signature:
        """Keys, shapes and dtypes of the lane's last observation."""
        driven = self.driven
        return signature(self.arrays(lane)) if driven is None else driven.signature(lane)

    @property
    def driven(self) -> SelfDriven | None:
        """The link to the one worker of all lanes, where they are rows in this process: the next
        poll does what was asked for, and what they see is had at once."""
        return self._workers[0].driven if self._is_one else None

    def live(self, lane: int) -> tuple[str, str] | None:
        """Suite and task that the lane's worker has built now."""
        return self._workers[lane // self._width].slots[lane % self._width].live

    def memory(self, lane: int) -> int | None:
        """Resident bytes of the lane's worker, where that can be read."""
        link = self._workers[lane // self._width].link
        return None if link is None else link.memory()

    def poll(
        self,
        timeout_s: float = 0.0,
        enough: int = 1,
        linger_s: float = 0.0,
        awaits_all: bool = False,  # noqa: FBT001, FBT002 - the engine hands on what it was told
    ) -> list[Notice]:
        """What happened, waiting up to `timeout_s` for the first. Where that is a chunk that ended
        and left its episode going, waits up to `linger_s` for `enough` of them; where all lanes are
        awaited, what ends early may be told with the others. Watches over the workers too."""
        supervisor, inbox = self._supervisor, self._inbox
        by_fd, inline, waker = supervisor.by_fd, supervisor.inline, supervisor.waker
        now = time.monotonic()
        deadline = now + timeout_s
        is_woken = lingers = False
        while True:
            rest_s = WATCH_S
            for worker in tuple(inline):
                if worker.driven is not None:
                    seconds = deadline - now if supervisor.is_alone else _GLANCE_S
                    worker.driven.work(seconds, waker.is_woken, awaits_all=awaits_all)
                self._read(worker, now)
                if worker.driven is not None and (due_s := worker.driven.due_s()) is not None:
                    rest_s = min(rest_s, due_s)
            if inbox.has_news and not lingers:
                rest_s = 0.0
            if inline:
                now = time.monotonic()
            events = supervisor.epoll.poll(min(max(0.0, deadline - now), rest_s))
            now = time.monotonic()
            for fd, mask in events:
                if fd == waker.fd:
                    waker.clear()
                    is_woken = True
                elif mask == select.POLLIN and fd in by_fd:
                    self._read(by_fd[fd], now)
                else:
                    self._attend(fd, mask, now)
            if now - supervisor.watched_at >= WATCH_S:
                supervisor.watch(now)
            if enough > 1 and not is_woken and 0 < inbox.chunks < enough:
                if not lingers:
                    lingers, deadline = True, min(deadline, now + linger_s)
                if now < deadline:
                    continue
            if is_woken or inbox.has_news or now >= deadline:
                return inbox.take()

    def _attend(self, fd: int, mask: int, now: float) -> None:
        """Do what any other event of epoll asks for: to send on, or to read from whoever leaves."""
        worker = self._supervisor.by_fd.get(fd)
        if worker is None:
            self._supervisor.hear_retiring(fd)
            return
        if mask & select.POLLOUT and worker.link is not None and worker.link.flush():
            self._supervisor.epoll.modify(fd, select.POLLIN)
        if mask & ~select.POLLOUT:
            self._read(worker, now)

    def _read(self, worker: WorkerSlot, now: float) -> None:
        link = worker.link
        if link is None:
            return
        try:
            messages = link.receive()
        except WorkerFailed as exc:
            self._supervisor.lose(worker, WorkerFault.CRASHED, str(exc))
            return
        episodes = worker.episodes
        for message in messages:
            is_of_lanes = self._inbox.hear(worker, message, now)
            if not is_of_lanes and not self._supervisor.hear(worker, message, now):
                return
        if self._recycles and worker.episodes > episodes:
            self._supervisor.recycle_if_due(worker)

    @contextlib.contextmanager
    def borrowed(self, most: int) -> Iterator[list[Borrowed]]:
        """Up to `most` of the workers that are up, in processes of their own and have no attempt,
        for other work than an engine's. Whoever borrows ends those that cannot go on, by `end`;
        the others go on here."""
        slots = [worker for worker in self._workers if self._supervisor.can_leave(worker)][:most]
        lent = [Borrowed(self._supervisor.detach(worker), worker.slots[0].live) for worker in slots]
        try:
            yield lent
        finally:
            for worker, each in zip(slots, lent, strict=True):
                if not each.is_ended:
                    self._supervisor.attach(worker, each.link)

    def close(self) -> None:
        """End all workers: in order for a second, then by force. Twice is safe."""
        self._supervisor.close()

    def _by_worker(
        self, lanes: Sequence[int]
    ) -> Iterator[tuple[WorkerSlot, list[int], Sequence[int]]]:
        """Each worker of these lanes, with their rows in it and their indices in `lanes`."""
        if self._width == 1:
            for index, lane in enumerate(lanes):
                yield self._workers[lane], [0], (index,)
            return
        groups: dict[int, list[int]] = {}
        for index, lane in enumerate(lanes):
            groups.setdefault(lane // self._width, []).append(index)
        for number, indices in groups.items():
            rows = [lanes[index] % self._width for index in indices]
            yield self._workers[number], rows, indices

    def _send(self, worker: WorkerSlot, message: Message) -> None:
        if worker.link is None or not worker.link.send(message):
            self._unsent(worker)

    def _unsent(self, worker: WorkerSlot) -> None:
        """Send the rest later; where there is no worker the attempts are lost here."""
        if worker.link is None:
            self._inbox.lost(worker.lanes, worker.slots, WorkerFault.START, worker.trouble)
        else:
            fd = worker.link.fileno() or 0
            self._supervisor.epoll.modify(fd, select.POLLIN | select.POLLOUT)

    def _control(self, worker: WorkerSlot, row: int, value: int) -> None:
        worker.slots[row].has_word = value != 0
        if worker.link is not None:
            worker.link.control(row, value)
