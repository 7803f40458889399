"""Turns what workers say into notices."""

from __future__ import annotations

import numpy as np

from hocket.core.data import Array, EnvSpec
from hocket.core.wire import Executed, Failed, Message, Observed, Ready, Remark, Sealed, Told
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


class Inbox:
    """Turns what workers say into notices, and brings their slots' state in step with it. It holds
    the notices since the last `take`, with all executed chunks in one."""

    def __init__(self) -> None:
        self._notices: list[Notice] = []
        self._executed: LanesExecuted | None = None
        self._observed: LanesObserved | None = None
        self._told: list[Notice] = []
        self.has_news = False
        """True if there is something to take. (What envs told waits for the chunk's end.)"""
        self._specs: dict[tuple[str, str], EnvSpec] = {}
        """The EnvSpec of each task. A worker tells it once, but every listener wants to know."""

    @property
    def chunks(self) -> int:
        """How many chunks have ended; 0 where anything else is noted too, or an episode ended."""
        executed = self._executed
        if executed is None or self._notices or self._observed or any(executed.ends):
            return 0
        return len(executed.lanes)

    def add(self, notice: Notice) -> None:
        self.has_news = True
        self._notices.append(notice)

    def take(self) -> list[Notice]:
        """All notices, chunks first: an attempt's end comes before its seal or a new worker, and
        what a lane saw on the way before the end of its chunk."""
        notices, self._notices, self.has_news = self._notices, [], False
        if self._executed is not None:
            notices.insert(0, self._executed)
            self._executed = None
        if self._told:
            notices, self._told = [*self._told, *notices], []
        if self._observed is not None:
            notices.insert(0, self._observed)
            self._observed = None
        return notices

    def hear(self, worker: WorkerSlot, message: Message, now: float) -> bool:
        """Note what a worker says of its lanes; false for what it says of itself."""
        if isinstance(message, Executed):
            self.executed(worker, message, now)
        elif isinstance(message, Observed):
            self._note_observed(worker, message)
        elif isinstance(message, Told):
            self._note_told(worker, message)
        elif isinstance(message, Ready):
            self._ready(worker, message)
        elif isinstance(message, Sealed):
            self.sealed(worker.lanes, worker.slots, message)
        elif isinstance(message, Remark):
            self.add(Remarked(message.text))
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

    def executed(self, worker: WorkerSlot, message: Executed, now: float) -> None:
        """Note that chunks were run."""
        if len(message.lanes) == 1 and not message.ends[0]:
            slot = worker.slots[message.lanes[0]]
            if not slot.orphans:
                slot.phase = Phase.READY
                self._append(worker, message)
                return
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
            told = where(told, is_awaited)
        out = self._executed
        if out is None:
            if told.lanes:
                self._executed, self.has_news = told, True
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

    def _append(self, worker: WorkerSlot, message: Executed) -> None:
        """Note the usual answer of a worker with one lane, at less than half the cost of others."""
        lanes, attempts, chunks, steps, packed, ends, busy_s, observe_s, _ = message
        if worker.lanes.start:
            lanes = [worker.lanes.start + lanes[0]]
        rewards = np.frombuffer(packed)
        total = _total(rewards.tolist())
        out = self._executed
        if out is None:
            self.has_news = True
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

    def sealed(self, lanes: range, slots: list[LaneSlot], message: Sealed) -> None:
        if slots[message.lane].sealing.popleft() >= 0:
            self.add(LaneSealed(lanes[message.lane], message.attempt, message.files))

    def unsealed(self, lanes: range, slots: list[LaneSlot], message: Failed) -> None:
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
    """The sum as `np.add.accumulate` has it, to the bit; Python's `sum` differs from 3.12 on."""
    total = 0.0
    for reward in rewards:
        total += reward
    return total
