"""Turns what workers say into notices, and keeps their seats' state in step with it."""

from __future__ import annotations

import numpy as np

from hocket.core.data import Array, EnvSpec
from hocket.core.wire import Executed, Failed, Ready, Sealed
from hocket.workers.notices import LaneFailed, LaneSealed, LanesExecuted, LanesReady, Notice
from hocket.workers.plain import env_spec_from_plain
from hocket.workers.slots import Phase, Seat, Station


class Logbook:
    """The notices since the last `take`, with all executed chunks in one."""

    def __init__(self) -> None:
        self._notices: list[Notice] = []
        self._executed: LanesExecuted | None = None
        self._specs: dict[tuple[str, str], EnvSpec] = {}
        """What workers told of each task. Each tells once, but every listener wants to know."""

    def __bool__(self) -> bool:
        return self._executed is not None or bool(self._notices)

    @property
    def chunks(self) -> int:
        """How many chunks have ended, where that and no episode's end is all that is noted; else
        0."""
        executed = self._executed
        if executed is None or self._notices or any(executed.ends):
            return 0
        return len(executed.lanes)

    def add(self, notice: Notice) -> None:
        """Note something that no message told."""
        self._notices.append(notice)

    def take(self) -> list[Notice]:
        """Chunks first: an ended attempt is told before it is sealed, or its worker replaced."""
        notices, self._notices = self._notices, []
        if self._executed is not None:
            notices.insert(0, self._executed)
            self._executed = None
        return notices

    def executed(self, station: Station, message: Executed, now: float) -> bool:
        """Chunks were run; true where an episode ended."""
        if len(message.lanes) == 1 and not message.ends[0]:
            seat = station.seats[message.lanes[0]]
            if not seat.orphans:
                seat.phase = Phase.READY
                self._append(station, message)
                return False
        rewards, totals = _rewards(message)
        first = station.lanes.start
        told = LanesExecuted(
            [first + place for place in message.lanes] if first else message.lanes,
            message.attempts,
            message.chunks,
            message.steps,
            rewards,
            totals,
            message.ends,
            message.busy_s,
            message.observe_s,
        )
        is_awaited = self._settle(station, message, now)
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

    def _append(self, station: Station, message: Executed) -> None:
        """The usual answer of a worker with one lane, at a fraction of the cost of any other."""
        lanes, attempts, chunks, steps, packed, ends, busy_s, observe_s, _ = message
        if station.lanes.start:
            lanes = [station.lanes.start + lanes[0]]
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

    def _settle(self, station: Station, message: Executed, now: float) -> list[bool] | None:
        """Bring seats to what a message says; which of its rows anyone waits for, where it is not
        all of them: attempts that were discarded are told of no more."""
        seats = [station.seats[place] for place in message.lanes]
        orphans = [seat for seat in seats if seat.orphans]
        if not orphans and not any(message.ends):
            for seat in seats:
                seat.phase = Phase.READY
            return None
        for seat, attempt, end in zip(seats, message.attempts, message.ends, strict=True):
            if end:
                station.episodes += 1
                station.since = now
                seat.sealing.append(-1 if seat.orphans else attempt)
            if not seat.orphans:
                seat.phase = Phase.IDLE if end else Phase.READY
        is_awaited = [not seat.orphans for seat in seats]
        for seat in orphans:
            seat.orphans -= 1
        return is_awaited if orphans else None

    def ready(self, station: Station, message: Ready) -> None:
        """Lanes were reset."""
        kept = []
        task = station.seats[message.lanes[0]].trial
        assert task is not None  # it was begun
        if message.spec is not None:
            self._specs[task] = env_spec_from_plain(message.spec)
        for row, place in enumerate(message.lanes):
            seat = station.seats[place]
            seat.live = seat.trial
            if seat.orphans:
                seat.orphans -= 1
            else:
                seat.phase = Phase.READY
                kept.append(row)
        if kept:
            self._notices.append(
                LanesReady(
                    [station.lanes[message.lanes[row]] for row in kept],
                    [message.attempts[row] for row in kept],
                    [message.prompts[row] for row in kept],
                    self._specs.get(task),
                    message.build_s,
                    message.reset_s,
                )
            )

    def sealed(self, lanes: range, seats: list[Seat], message: Sealed) -> None:
        """Recordings of an ended attempt are durable."""
        if seats[message.lane].sealing.popleft() >= 0:
            self._notices.append(LaneSealed(lanes[message.lane], message.attempt, message.files))

    def unsealed(self, lanes: range, seats: list[Seat], message: Failed) -> None:
        """Recordings of an ended attempt could not be sealed."""
        if seats[message.lane].sealing.popleft() >= 0:
            lane = lanes[message.lane]
            self._notices.append(LaneFailed(lane, *message[1:], gone=False, sealing=True))

    def failed(self, station: Station, message: Failed, *, is_gone: bool) -> None:
        """A running attempt was ended by an error."""
        seat = station.seats[message.lane]
        seat.live = None
        if seat.orphans:
            seat.orphans -= 1
        else:
            seat.phase = Phase.IDLE
            lane = station.lanes[message.lane]
            self._notices.append(LaneFailed(lane, *message[1:], gone=is_gone))

    def lost(self, lanes: range, seats: list[Seat], kind: str, message: str) -> bool:
        """A worker is gone, with all that it had; true where that was a running attempt."""
        has_lost = False
        for lane, seat in zip(lanes, seats, strict=True):
            for attempt in seat.sealing:
                if attempt >= 0:
                    self._notices.append(
                        LaneFailed(lane, attempt, kind, message, "", gone=False, sealing=True)
                    )
            seat.sealing.clear()
            if seat.phase is not Phase.IDLE:
                seat.phase = Phase.IDLE
                has_lost = True
                self._notices.append(LaneFailed(lane, seat.attempt, kind, message, "", gone=True))
        return has_lost


def _rewards(message: Executed) -> tuple[list[Array], list[float]]:
    """Each row's rewards, and their sums from the first to the last."""
    steps, flat = message.steps, np.frombuffer(message.rewards)
    if len(steps) == 1:
        return [flat], [_total(flat.tolist())]
    count, rows, totals, at = steps[0], [], [], 0
    even = next((place for place, other in enumerate(steps) if other != count), len(steps))
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
    """As `np.add.accumulate` adds, to the bit; Python's own `sum` rounds otherwise from 3.12 on."""
    total = 0.0
    for reward in rewards:
        total += reward
    return total
