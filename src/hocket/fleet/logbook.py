"""Turns what workers say into notices, and keeps their seats' state in step with it."""

from __future__ import annotations

import numpy as np

from hocket.data import EnvSpec
from hocket.fleet.notices import (
    LaneFailed,
    LaneSealed,
    LanesExecuted,
    LanesReady,
    Notice,
)
from hocket.fleet.plain import env_spec_from_plain
from hocket.fleet.station import Phase, Seat, Station
from hocket.wire import Executed, Failed, Ready, Sealed


class Logbook:
    """The notices since the last `take`, with all executed chunks in one."""

    def __init__(self) -> None:
        self._notices: list[Notice] = []
        self._executed: LanesExecuted | None = None
        self._specs: dict[tuple[str, str], EnvSpec] = {}
        """What workers told of each task. Each tells once, but every listener wants to know."""

    def __bool__(self) -> bool:
        return self._executed is not None or bool(self._notices)

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
        if self._executed is None:
            self._executed = LanesExecuted([], [], [], [], [], [], [], [])
        out = self._executed
        rewards = np.frombuffer(message.rewards)
        first, at, has_ended = station.lanes.start, 0, False
        for row, place in enumerate(message.lanes):
            seat, steps, ends = station.seats[place], message.steps[row], message.ends[row]
            attempt = message.attempts[row]
            is_orphan = seat.orphans > 0
            if ends:
                has_ended = True
                station.episodes += 1
                station.since = now
                seat.sealing.append(-1 if is_orphan else attempt)
            if is_orphan:
                seat.orphans -= 1
            else:
                seat.phase = Phase.IDLE if ends else Phase.READY
                out.lanes.append(first + place)
                out.attempts.append(attempt)
                out.chunks.append(message.chunks[row])
                out.steps.append(steps)
                out.rewards.append(rewards[at : at + steps])
                out.ends.append(ends)
                out.busy_s.append(message.busy_s[row])
                out.observe_s.append(message.observe_s[row])
            at += steps
        if not out.lanes:
            self._executed = None
        return has_ended

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
