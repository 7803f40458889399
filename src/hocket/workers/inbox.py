"""Turns what workers say into notices."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from hocket.core.data import Array
from hocket.core.specs import EnvSpec
from hocket.core.wire import Executed, Failed, Message, Observed, Piece, Ready, Remark, Sealed, Told
from hocket.workers.notices import (
    LaneFailed,
    LanesBegun,
    LaneSealed,
    LanesExecuted,
    LanesObserved,
    LanesTold,
    Notice,
    Remarked,
    where,
)
from hocket.workers.slots import LaneSlot, Phase, WorkerSlot

_COLUMNS = attrgetter("attempts", "chunks", "steps", "ends", "busy_s", "observe_s")


class Inbox:
    """Turns what workers say into notices, and brings their slots' state in step with it. It holds
    the notices since the last `take`, with all executed chunks in one."""

    def __init__(self) -> None:
        self._notices: list[Notice] = []
        self._executed: list[tuple[int, Executed]] = []
        """What workers told of chunks that ended, behind the first lane of each."""
        self._rows, self._has_end = 0, False
        """How many chunks these are, and whether an episode ended with one of them."""
        self._dropped: set[int] = set()
        """Those among them that nobody waits for."""
        self._observed: LanesObserved | None = None
        self._told: list[Notice] = []
        self.has_news = False
        """True if there is something to take. (What was told of a chunk waits for its end.)"""
        self._specs: dict[tuple[str, str], EnvSpec] = {}
        """The EnvSpec of each task. A worker tells it once, but every listener wants to know."""

    @property
    def chunks(self) -> int:
        """How many chunks have ended; 0 where anything else is noted too, or an episode ended."""
        is_mixed = self._has_end or self._notices or self._observed
        return 0 if is_mixed else self._rows - len(self._dropped)

    def add(self, notice: Notice) -> None:
        self.has_news = True
        self._notices.append(notice)

    def take(self) -> list[Notice]:
        """All notices, chunks first: an attempt's end comes before its seal or a new worker, and
        what a lane saw on the way before the end of its chunk."""
        notices, self._notices, self.has_news = self._notices, [], False
        if self._executed and (executed := self._take_executed()).lanes:
            notices.insert(0, executed)
        if self._told:
            notices, self._told = [*self._told, *notices], []
        if self._observed is not None:
            notices.insert(0, self._observed)
            self._observed = None
        return notices

    def hear(self, worker: WorkerSlot, message: Message, now: float) -> bool:
        """Note what a worker says of its lanes; false for what it says of itself."""
        if type(message) is Executed:
            rows = message.lanes
            slot = worker.slots[rows[0]]
            count = len(rows)
            if count == 1 and not message.ends[0] and not slot.orphans:
                slot.phase, self.has_news = Phase.READY, True
            else:
                self._settle(worker, message, now)
            self._executed.append((worker.lanes.start, message))
            self._rows += count
        elif isinstance(message, Observed):
            self._note_observed(worker, message)
        elif isinstance(message, Told):
            self._note_told(worker, message)
        elif isinstance(message, Ready):
            self._ready(worker, message)
        elif isinstance(message, (Piece, Sealed)):
            self.sealed(worker.lanes, worker.slots, message)
        elif isinstance(message, Remark):
            if not worker.slots[message.lane].orphans:
                self._told.append(Remarked(worker.lanes[message.lane], *message[1:]))
        else:
            return False
        return True

    def _note_observed(self, worker: WorkerSlot, message: Observed) -> None:
        """Note what lanes saw that go on; what discarded attempts saw is told to nobody."""
        if self._observed is None:
            self._observed, self.has_news = LanesObserved([], [], []), True
        out = self._observed
        for index, row in enumerate(message.lanes):
            if not worker.slots[row].orphans:
                out.lanes.append(worker.lanes[row])
                out.attempts.append(message.attempts[index])
                out.steps.append(message.steps[index])

    def _note_told(self, worker: WorkerSlot, message: Told) -> None:
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

    def _settle(self, worker: WorkerSlot, message: Executed, now: float) -> None:
        """Bring the slots to what a message says, and take note which of its rows are of attempts
        that were discarded: nobody waits for these."""
        rows = zip(message.lanes, message.attempts, message.ends, strict=True)
        for index, (row, attempt, end) in enumerate(rows, self._rows):
            slot = worker.slots[row]
            if end:
                worker.episodes += 1
                worker.since = now
                self._has_end = True
                slot.sealing.append(-1 if slot.orphans else attempt)
            if slot.orphans:
                slot.orphans -= 1
                self._dropped.add(index)
            else:
                slot.phase = Phase.IDLE if end else Phase.READY
                self.has_news = True

    def _take_executed(self) -> LanesExecuted:
        """All chunks that ended, in one notice: columns are joined once, whatever told them."""
        told = [message for _, message in self._executed]
        lanes = [first + row for first, message in self._executed for row in message.lanes]
        columns: Any = _COLUMNS(told[0])
        if len(told) > 1:
            columns = map(list, map(chain.from_iterable, zip(*map(_COLUMNS, told), strict=True)))
        attempts, chunks, steps, ends, busy_s, observe_s = columns
        rewards, totals = _rewards(steps, b"".join([message.rewards for message in told]))
        executed = LanesExecuted(
            lanes, attempts, chunks, steps, rewards, totals, ends, busy_s, observe_s
        )
        if self._dropped:
            executed = where(executed, [i not in self._dropped for i in range(len(lanes))])
        self._executed, self._dropped, self._rows, self._has_end = [], set(), 0, False
        return executed

    def _ready(self, worker: WorkerSlot, message: Ready) -> None:
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
            self.add(
                LanesBegun(
                    [worker.lanes[message.lanes[index]] for index in kept],
                    [message.attempts[index] for index in kept],
                    [message.prompts[index] for index in kept],
                    self._specs.get(task),
                    message.differs,
                )
            )

    def sealed(self, lanes: range, slots: list[LaneSlot], message: Piece | Sealed) -> None:
        slot = slots[message.lane]
        if isinstance(message, Piece):
            slot.rows[message.name] = message.data
            return
        rows, slot.rows = slot.rows, {}
        if slot.sealing.popleft() >= 0:
            self.add(LaneSealed(lanes[message.lane], *message[1:], rows))

    def unsealed(self, lanes: range, slots: list[LaneSlot], message: Failed) -> None:
        slots[message.lane].rows = {}
        if slots[message.lane].sealing.popleft() >= 0:
            lane = lanes[message.lane]
            self.add(LaneFailed(lane, *message[1:], sealing=True))

    def failed(self, worker: WorkerSlot, message: Failed, *, is_gone: bool) -> None:
        slot = worker.slots[message.lane]
        slot.live = None
        if slot.orphans:
            slot.orphans -= 1
        else:
            slot.phase = Phase.IDLE
            lane = worker.lanes[message.lane]
            self.add(LaneFailed(lane, *message[1:], gone=is_gone))

    def lost(self, lanes: range, slots: list[LaneSlot], kind: str, message: str) -> bool:
        """Note that a worker is gone, with all that it had; true where it ran an attempt."""
        has_lost = False
        for lane, slot in zip(lanes, slots, strict=True):
            for attempt in slot.sealing:
                if attempt >= 0:
                    self.add(LaneFailed(lane, attempt, kind, message, "", sealing=True))
            slot.sealing.clear()
            if slot.phase is not Phase.IDLE:
                slot.phase = Phase.IDLE
                has_lost = True
                self.add(LaneFailed(lane, slot.attempt, kind, message, "", gone=True))
        return has_lost


def _rewards(steps: list[int], packed: bytes) -> tuple[list[Array], list[float]]:
    """The rewards of each row, and their sums from the first step to the last: to the bit the same
    whoever comes at once."""
    flat, count, rows, totals, at = np.frombuffer(packed), steps[0], [], [], 0
    even = next((index for index, other in enumerate(steps) if other != count), len(steps))
    if count and even > 1:
        at = even * count
        block = flat[:at].reshape(even, count)
        rows, totals = list(block), np.add.accumulate(block, axis=1)[:, -1].tolist()
    for length in steps[len(rows) :]:
        row = flat[at : at + length]
        at += length
        rows.append(row)
        total = 0.0
        for reward in row.tolist():  # As `accumulate` does; Python's `sum` differs from 3.12 on.
            total += reward
        totals.append(total)
    return rows, totals
