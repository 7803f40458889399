"""What the parent knows of each worker's lanes, and the notices that workers' messages become.

`Fleet.poll` returns them. Lanes are ids of the fleet in notices; lists run in parallel.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import compress
from os import EFD_CLOEXEC, EFD_NONBLOCK, close, eventfd, eventfd_read, eventfd_write
from typing import Any, NamedTuple, Union

import numpy as np

from hocket.core.data import Array, EnvSpec
from hocket.core.wire import Executed, Failed, Observed, Ready, Sealed, Told
from hocket.errors import HocketError, UsageError, WorkerFailed, from_name
from hocket.workers.links.link import Audible, Gathers, Link, SelfDriven


class LanesUp(NamedTuple):
    """A worker has come up; its lanes can begin."""

    lanes: Sequence[int]


class LanesReady(NamedTuple):
    """Lanes were reset and wait for their first chunk."""

    lanes: Sequence[int]
    attempts: Sequence[int]
    prompts: Sequence[str]
    spec: EnvSpec | None
    """What workers told of the env."""
    differs: str | None
    """What differed when one of them was reset twice, empty where nothing did; None where none
    was."""


class LanesExecuted(NamedTuple):
    """Lanes ran a chunk, up to its end, the episode's, or a recall: all that one poll found."""

    lanes: list[int]
    attempts: list[int]
    chunks: list[int]
    steps: list[int]
    rewards: list[Array]
    """One for each step, float64 `[steps]`."""
    totals: list[float]
    """The sums of these, from the first step to the last: the same to the bit in any batch."""
    ends: list[int]
    """0 while the episode goes on, else flags `END_*` of the wire."""
    busy_s: list[float]
    observe_s: list[float]

    def where(self, is_kept: Sequence[bool]) -> LanesExecuted:
        """The same for the lanes of which `is_kept` is true."""
        columns: Sequence[list[Any]] = self
        return LanesExecuted(*[list(compress(column, is_kept)) for column in columns])


class LanesObserved(NamedTuple):
    """Lanes were observed for their next chunks, and go on with those that they have."""

    lanes: list[int]
    attempts: list[int]
    steps: list[int]
    """How many steps of the running chunk each had made."""


class LanesTold(NamedTuple):
    """Envs told numbers in `info` at the steps of chunks that LanesExecuted is then told of."""

    lanes: list[int]
    attempts: list[int]
    chunks: list[int]
    numbers: list[dict[str, Array]]
    """Of each lane's chunk by key: float64 `[steps]`."""


class LaneSealed(NamedTuple):
    """Recordings of an ended attempt are durable. Comes once for every ended attempt (with no
    files where nothing records), and before the lane's next LanesReady."""

    lane: int
    attempt: int
    files: Sequence[str]


class LaneFailed(NamedTuple):
    """An attempt is lost (or, with attempt -1, a worker that cannot be started)."""

    lane: int
    attempt: int
    kind: str
    """Name of the exception, or WorkerCrashed, WorkerHung, WorkerMemory, WorkerStart."""
    message: str
    traceback: str
    gone: bool
    """The worker is gone too and a fresh one is being started: LanesUp follows."""
    sealing: bool = False
    """It was an ended attempt, whose recordings could not be sealed."""

    @property
    def account(self) -> str:
        """What happened, with the traceback where there is one. An error of hocket's own says all
        in a sentence."""
        if from_name(self.kind, self.message) is not None:
            return f"{self.kind}: {self.message}"
        return f"{self.kind}: {self.message}\n{self.traceback}".rstrip()

    def verdict(self, *, any_built: bool) -> HocketError | None:
        """The error that ends the run, where another attempt would fare no better: no worker can be
        started, or the first env that was asked for cannot be."""
        if self.kind == "WorkerStart":
            return WorkerFailed(f"No worker could be started. {self.account}")
        mistake = from_name(self.kind, self.message)
        return mistake if isinstance(mistake, UsageError) and not any_built else None


class LanesRecycled(NamedTuple):
    """A worker between two episodes is being replaced, and nothing is lost: LanesUp follows."""

    lanes: Sequence[int]
    reason: str


class Remarked(NamedTuple):
    """A worker has something to tell of its env, in a sentence."""

    text: str


Notice = Union[
    LanesUp,
    LanesReady,
    LanesObserved,
    LanesTold,
    LanesExecuted,
    LaneSealed,
    LaneFailed,
    LanesRecycled,
    Remarked,
]


class Phase(enum.Enum):
    IDLE = enum.auto()
    BEGINNING = enum.auto()
    READY = enum.auto()
    """It waits for a chunk."""
    EXECUTING = enum.auto()


class LaneSlot:
    __slots__ = ("attempt", "chunk", "has_word", "live", "orphans", "phase", "sealing", "trial")

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self.attempt = -1
        self.chunk = -1
        self.trial: tuple[str, str] | None = None
        """Suite and task of the running attempt."""
        self.live: tuple[str, str] | None = None
        """Suite and task that the worker has built."""
        self.sealing: deque[int] = deque()
        """Ended attempts whose recordings are not yet sealed; -1 for one that was discarded."""
        self.orphans = 0
        """Answers still to come for attempts that were discarded."""
        self.has_word = False
        """A control word is set for the running chunk."""


class WorkerSlot:
    """Holds one worker after another, which all serve the same lanes."""

    def __init__(self, lanes: range) -> None:
        self.lanes = lanes
        """The fleet's ids of its lanes; the worker itself numbers them from 0, as rows."""
        self.failed_starts = 0
        self.trouble = ""
        """Why the last start failed."""
        self.settle(None, 0.0)

    def settle(self, link: Link | None, now: float) -> None:
        self.link = link
        # Looked for once: to look for a Protocol's methods costs more than a small batch.
        found: object = link
        self.gathers = found if isinstance(found, Gathers) else None
        """The link, where it gives many lanes' observations at once."""
        self.driven = found if isinstance(found, SelfDriven) else None
        """The link, where its worker takes steps in this thread."""
        self.audible = found if isinstance(found, Audible) else None
        """The link, where its worker is heard of all the time."""
        self.slots = [LaneSlot() for _ in self.lanes]
        """By row."""
        self.is_up = False
        self.episodes = 0
        """Episodes that ended in this worker."""
        self.retry_at: float | None = None
        """When to try again to start a worker."""
        self.since = now
        """When the worker was last seen to make progress, or was asked for something."""
        self.counted = -1
        """Steps of all lanes at that time."""

    @property
    def is_busy(self) -> bool:
        return any(slot.phase is not Phase.IDLE for slot in self.slots)

    def waits_since(self, now: float) -> tuple[str, float]:
        """What is awaited of the worker (`step`, `start` or nothing), and for how many seconds."""
        link = self.link
        if link is None:
            return "", 0.0
        phases = {slot.phase for slot in self.slots}
        if Phase.BEGINNING in phases or not self.is_up:
            return "start", now - self.since
        if Phase.EXECUTING in phases:
            counted = sum(link.steps(row) for row in range(len(self.slots)))
            if counted != self.counted:
                self.counted = counted
                self.since = now
            return "step", now - self.since
        if any(slot.sealing for slot in self.slots):
            return "start", now - self.since
        return "", 0.0


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
        """Whether `wake` was called since the last `clear`, without a look at the file."""
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


class Inbox:
    """Turns what workers say into notices, and brings their slots' state in step with it. It holds
    the notices since the last `take`, with all executed chunks in one."""

    def __init__(self) -> None:
        self._notices: list[Notice] = []
        self._executed: LanesExecuted | None = None
        self._observed: LanesObserved | None = None
        self._told: list[Notice] = []
        self._specs: dict[tuple[str, str], EnvSpec] = {}
        """The EnvSpec of each task. A worker tells it once, but every listener wants to know."""

    def __bool__(self) -> bool:
        return bool(self._executed is not None or self._notices or self._observed)

    @property
    def chunks(self) -> int:
        """How many chunks have ended; 0 where anything else is noted too, or an episode ended."""
        executed = self._executed
        if executed is None or self._notices or self._observed or any(executed.ends):
            return 0
        return len(executed.lanes)

    def add(self, notice: Notice) -> None:
        self._notices.append(notice)

    def take(self) -> list[Notice]:
        """All notices, chunks first: an attempt's end comes before its seal or a new worker, and
        what a lane saw on the way before the end of its chunk."""
        notices, self._notices = self._notices, []
        if self._executed is not None:
            notices.insert(0, self._executed)
            self._executed = None
        if self._told:
            notices, self._told = [*self._told, *notices], []
        if self._observed is not None:
            notices.insert(0, self._observed)
            self._observed = None
        return notices

    def observed(self, worker: WorkerSlot, message: Observed) -> None:
        """Note what lanes saw that go on; what discarded attempts saw is told to nobody."""
        if self._observed is None:
            self._observed = LanesObserved([], [], [])
        out = self._observed
        for index, row in enumerate(message.lanes):
            if not worker.slots[row].orphans:
                out.lanes.append(worker.lanes[row])
                out.attempts.append(message.attempts[index])
                out.steps.append(message.steps[index])

    def told(self, worker: WorkerSlot, message: Told) -> None:
        """Note what envs told; what discarded attempts told is told to nobody."""
        out = LanesTold([], [], [], [])
        at = 0
        for index, row in enumerate(message.lanes):
            count = message.steps[index]
            if not worker.slots[row].orphans:
                out.lanes.append(worker.lanes[row])
                out.attempts.append(message.attempts[index])
                out.chunks.append(message.chunks[index])
                out.numbers.append(
                    {
                        key: np.frombuffer(packed, offset=8 * at, count=count)
                        for key, packed in message.numbers.items()
                    }
                )
            at += count
        if out.lanes:
            self._told.append(out)

    def executed(self, worker: WorkerSlot, message: Executed, now: float) -> bool:
        """Note that chunks were run; true where an episode ended."""
        if len(message.lanes) == 1 and not message.ends[0]:
            slot = worker.slots[message.lanes[0]]
            if not slot.orphans:
                slot.phase = Phase.READY
                self._append(worker, message)
                return False
        rewards, totals = _rewards(message)
        first = worker.lanes.start
        told = LanesExecuted(
            [first + row for row in message.lanes] if first else message.lanes,
            message.attempts,
            message.chunks,
            message.steps,
            rewards,
            totals,
            message.ends,
            message.busy_s,
            message.observe_s,
        )
        is_awaited = self._settle(worker, message, now)
        if is_awaited is not None:
            told = told.where(is_awaited)
        out = self._executed
        if out is None:
            self._executed = told if told.lanes else None
        else:
            # A loop over the columns would cost as much as all else here.
            out.lanes.extend(told.lanes)
            out.attempts.extend(told.attempts)
            out.chunks.extend(told.chunks)
            out.steps.extend(told.steps)
            out.rewards.extend(told.rewards)
            out.totals.extend(told.totals)
            out.ends.extend(told.ends)
            out.busy_s.extend(told.busy_s)
            out.observe_s.extend(told.observe_s)
        return any(message.ends)

    def _append(self, worker: WorkerSlot, message: Executed) -> None:
        """Note the usual answer of a worker with one lane, at less than half the cost of others."""
        lanes, attempts, chunks, steps, packed, ends, busy_s, observe_s, _ = message
        if worker.lanes.start:
            lanes = [worker.lanes.start + lanes[0]]
        rewards = np.frombuffer(packed)
        total = _total(rewards.tolist())
        out = self._executed
        if out is None:
            self._executed = LanesExecuted(
                lanes, attempts, chunks, steps, [rewards], [total], ends, busy_s, observe_s
            )
            return
        out.lanes.append(lanes[0])
        out.attempts.append(attempts[0])
        out.chunks.append(chunks[0])
        out.steps.append(steps[0])
        out.rewards.append(rewards)
        out.totals.append(total)
        out.ends.append(0)
        out.busy_s.append(busy_s[0])
        out.observe_s.append(observe_s[0])

    def _settle(self, worker: WorkerSlot, message: Executed, now: float) -> list[bool] | None:
        """Bring the slots to what a message says. Where some of its rows are of attempts that were
        discarded, which are told of no more, says of each row whether anyone waits for it."""
        slots = [worker.slots[row] for row in message.lanes]
        orphans = [slot for slot in slots if slot.orphans]
        if not orphans and not any(message.ends):
            for slot in slots:
                slot.phase = Phase.READY
            return None
        for slot, attempt, end in zip(slots, message.attempts, message.ends, strict=True):
            if end:
                worker.episodes += 1
                worker.since = now
                slot.sealing.append(-1 if slot.orphans else attempt)
            if not slot.orphans:
                slot.phase = Phase.IDLE if end else Phase.READY
        is_awaited = [not slot.orphans for slot in slots]
        for slot in orphans:
            slot.orphans -= 1
        return is_awaited if orphans else None

    def ready(self, worker: WorkerSlot, message: Ready) -> None:
        kept = []
        task = worker.slots[message.lanes[0]].trial
        assert task is not None  # it was begun
        if message.spec is not None:
            self._specs[task] = EnvSpec.from_plain(message.spec)
        for index, row in enumerate(message.lanes):
            slot = worker.slots[row]
            slot.live = slot.trial
            if slot.orphans:
                slot.orphans -= 1
            else:
                slot.phase = Phase.READY
                kept.append(index)
        if kept:
            self._notices.append(
                LanesReady(
                    [worker.lanes[message.lanes[index]] for index in kept],
                    [message.attempts[index] for index in kept],
                    [message.prompts[index] for index in kept],
                    self._specs.get(task),
                    message.differs,
                )
            )

    def sealed(self, lanes: range, slots: list[LaneSlot], message: Sealed) -> None:
        if slots[message.lane].sealing.popleft() >= 0:
            self._notices.append(LaneSealed(lanes[message.lane], message.attempt, message.files))

    def unsealed(self, lanes: range, slots: list[LaneSlot], message: Failed) -> None:
        if slots[message.lane].sealing.popleft() >= 0:
            lane = lanes[message.lane]
            self._notices.append(LaneFailed(lane, *message[1:], gone=False, sealing=True))

    def failed(self, worker: WorkerSlot, message: Failed, *, is_gone: bool) -> None:
        slot = worker.slots[message.lane]
        slot.live = None
        if slot.orphans:
            slot.orphans -= 1
        else:
            slot.phase = Phase.IDLE
            lane = worker.lanes[message.lane]
            self._notices.append(LaneFailed(lane, *message[1:], gone=is_gone))

    def lost(self, lanes: range, slots: list[LaneSlot], kind: str, message: str) -> bool:
        """Note that a worker is gone, with all that it had; true where it ran an attempt."""
        has_lost = False
        for lane, slot in zip(lanes, slots, strict=True):
            for attempt in slot.sealing:
                if attempt >= 0:
                    self._notices.append(
                        LaneFailed(lane, attempt, kind, message, "", gone=False, sealing=True)
                    )
            slot.sealing.clear()
            if slot.phase is not Phase.IDLE:
                slot.phase = Phase.IDLE
                has_lost = True
                self._notices.append(LaneFailed(lane, slot.attempt, kind, message, "", gone=True))
        return has_lost


def _rewards(message: Executed) -> tuple[list[Array], list[float]]:
    """The rewards of each row, and their sums from the first step to the last."""
    steps, flat = message.steps, np.frombuffer(message.rewards)
    if len(steps) == 1:
        return [flat], [_total(flat.tolist())]
    count, rows, totals, at = steps[0], [], [], 0
    even = next((index for index, other in enumerate(steps) if other != count), len(steps))
    if count and even > 1:
        at = even * count
        block = flat[:at].reshape(even, count)
        rows, totals = list(block), np.add.accumulate(block, axis=1)[:, -1].tolist()
    for length in steps[len(rows) :]:
        row = flat[at : at + length]
        at += length
        rows.append(row)
        totals.append(_total(row.tolist()))
    return rows, totals


def _total(rewards: list[float]) -> float:
    """Adds as `np.add.accumulate` does, to the bit; Python's `sum` does not from 3.12 on."""
    total = 0.0
    for reward in rewards:
        total += reward
    return total
