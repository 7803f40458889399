"""All workers, seen from the parent: the commands that the engine gives to lanes."""

from __future__ import annotations

import dataclasses
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from hocket import errors
from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Array, Observation, Signature, TaskInfo, Trial, signature
from hocket.core.wire import (
    Begin,
    Describe,
    Described,
    Discard,
    Execute,
    Failed,
    Message,
)
from hocket.errors import EnvError, HocketError, WorkerFailed
from hocket.workers.link import Gathers, Link, SelfDriven
from hocket.workers.notices import Notice
from hocket.workers.shm import STOP, word
from hocket.workers.slots import Phase, Seat, Station
from hocket.workers.supervisor import Crew, FleetConfig

__all__ = ["Fleet", "FleetConfig"]

_ONE = (0,)
"""The places of a worker with one lane."""


class Fleet:
    """Drives every lane through its worker. One thread calls it, except for `wake`.

    It has its runtime to itself, and closes it.
    """

    def __init__(self, runtime: Runtime, spec: WorkerSpec, config: FleetConfig) -> None:
        self.config = config
        self._runtime = runtime
        self._spec = spec
        self._crew = Crew(runtime, spec, config)
        self._stations = self._crew.stations
        self._width = spec.lanes
        self._is_one = len(self._stations) == 1
        """All lanes are in one worker."""
        self._looked_at: Link | None = None
        self._gathers: Gathers | None = None
        self._driven: SelfDriven | None = None

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Ask for all workers at once; LanesUp tells as each comes up.

        A fleet that has served one engine may start for the next: workers that are up stay up, and
        are told again.
        """
        for station in self._stations:
            if station.link is None:
                self._crew.start(station)
            elif station.is_up:
                self._crew.announce(station)

    @property
    def is_idle(self) -> bool:
        """Whether no lane has an attempt, so that another engine may start."""
        return not any(station.is_busy for station in self._stations)

    def describe(self, suite: str, timeout_s: float) -> list[TaskInfo]:
        """A suite's tasks, asked of a worker made for that. Blocks."""
        link = self._runtime.start(dataclasses.replace(self._spec, sinks=()))
        try:
            link.send(Describe(suite))
            for message in _answers(link, timeout_s):
                if isinstance(message, Described):
                    return [TaskInfo(**task) for task in message.tasks]
                if isinstance(message, Failed):
                    raise _error(suite, message)
        finally:
            link.kill()
        raise WorkerFailed(f"The tasks of {suite!r} were not told within {timeout_s} s.")

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
        for station, places, rows in self._by_station(lanes):
            if station.link is None:
                self._crew.start(station)
            for place, row in zip(places, rows, strict=True):
                seat, trial = station.seats[place], trials[row]
                seat.phase = Phase.BEGINNING
                seat.attempt, seat.chunk = attempts[row], -1
                seat.trial = (trial.suite, trial.task)
            station.since = now
            message = Begin(
                places,
                [attempts[row] for row in rows],
                [trials[row] for row in rows],
                [max_steps[row] or 0 for row in rows],
                final_observation,
                [record[row] for row in rows],
            )
            self._crew.send(station, message)

    def execute(
        self,
        lanes: Sequence[int],
        attempts: Sequence[int],
        chunks: Sequence[int],
        actions: Sequence[Array] | Array,
        observe_at: Sequence[int] = (),
    ) -> None:
        """Run one chunk `[k, A]` in each lane; all of them may be one array `[B, k, A]`."""
        now = time.monotonic()
        if isinstance(actions, np.ndarray) and self._source() is not None:
            counts = [actions.shape[1]] * len(actions)
            whole = Execute(lanes, attempts, chunks, counts, actions, observe_at)
            self._execute(self._stations[0], whole, now)
            return
        counts, data = _packed(actions)
        if self._is_one:
            message = Execute(lanes, attempts, chunks, counts, data, observe_at)
            self._execute(self._stations[0], message, now)
            return
        width = len(data) // sum(counts)
        ends = [width * steps for steps in accumulate(counts)]
        if self._width == 1:
            for lane, attempt, chunk, count, end in zip(
                lanes, attempts, chunks, counts, ends, strict=True
            ):
                part = data[end - width * count : end]
                message = Execute(_ONE, (attempt,), (chunk,), (count,), part, observe_at)
                self._execute(self._stations[lane], message, now)
            return
        for station, places, rows in self._by_station(lanes):
            message = Execute(
                places,
                [attempts[row] for row in rows],
                [chunks[row] for row in rows],
                [counts[row] for row in rows],
                b"".join([data[ends[row] - width * counts[row] : ends[row]] for row in rows]),
                observe_at,
            )
            self._execute(station, message, now)

    def _execute(self, station: Station, message: Execute, now: float) -> None:
        station.since = now
        seats = station.seats
        for place, chunk in zip(message.lanes, message.chunks, strict=True):
            seat = seats[place]
            seat.phase = Phase.EXECUTING
            seat.chunk = chunk
            if seat.is_worded:
                self._word(station, place, 0)
        self._crew.send(station, message)

    def recall(self, lane: int, attempt: int, chunk: int) -> None:
        """Stop after the current step (with a history: as soon as that is whole); the lane answers
        with the steps that it made. Of no effect once the chunk has ended."""
        station, place = self._stations[lane // self._width], lane % self._width
        seat = station.seats[place]
        if self._runs(seat, attempt, chunk):
            self._word(station, place, word(chunk, STOP))

    def discard(self, lanes: Sequence[int], attempts: Sequence[int]) -> None:
        """Forget attempts, and what was recorded of them; nothing more is told of them."""
        for station, places, rows in self._by_station(lanes):
            for place in places:
                self._abandon(station, place)
            self._crew.send(station, Discard(places, [attempts[row] for row in rows]))

    def wake(self) -> None:
        """Make a `poll` in progress return early. Any thread may call this."""
        self._crew.ring()

    def arrays(self, lane: int) -> Observation:
        """The lane's last observation: views, valid until its next chunk or attempt is sent."""
        link = self._stations[lane // self._width].link
        if link is None:
            raise WorkerFailed(f"Lane {lane} has no worker.")
        return link.arrays(lane % self._width)

    def gather(self, lanes: Sequence[int]) -> Mapping[str, Array] | None:
        """The observations of these lanes, stacked where they live; None where each lies apart."""
        source = self._source()
        return None if source is None else source.gather(lanes)

    def signature(self, lane: int) -> Signature:
        """Of the lane's last observation."""
        source = self._source()
        return signature(self.arrays(lane)) if source is None else source.signature(lane)

    def expect(self, lanes: Sequence[int], seconds: float) -> None:
        """Chunks for these lanes will probably come in so many seconds."""
        if self._is_one and (driven := self._abilities()[1]) is not None:
            driven.expect(len(lanes), seconds)

    @property
    def is_at_hand(self) -> bool:
        """Whether all lanes are rows in this process: the next poll does what was asked for."""
        return self._source() is not None

    @property
    def step_s(self) -> float | None:
        """Seconds of a step that all lanes share; 0 before the first, None where they do not."""
        driven = self._abilities()[1] if self._is_one else None
        return None if driven is None else driven.step_s

    def _source(self) -> Gathers | None:
        """The one worker of all lanes, where it gives many lanes' observations at once."""
        return self._abilities()[0] if self._is_one else None

    def _abilities(self) -> tuple[Gathers | None, SelfDriven | None]:
        """What the first worker can do beyond a Link's contract."""
        link = self._stations[0].link
        if link is not self._looked_at:
            # Looked for once: to look for a Protocol's methods costs more than a small batch.
            self._looked_at = link
            found: object = link
            self._gathers = found if isinstance(found, Gathers) else None
            self._driven = found if isinstance(found, SelfDriven) else None
        return self._gathers, self._driven

    def live(self, lane: int) -> tuple[str, str] | None:
        """Suite and task that the lane's worker has built now."""
        return self._stations[lane // self._width].seats[lane % self._width].live

    def memory(self, lane: int) -> int | None:
        """Resident bytes of the lane's worker, where that can be read."""
        link = self._stations[lane // self._width].link
        return None if link is None else link.memory()

    def poll(
        self, timeout_s: float, enough: int = 1, linger_s: float = 0.0, *, awaits_all: bool = False
    ) -> list[Notice]:
        """What happened, waiting up to `timeout_s` for the first. Where that is a chunk that ended,
        waits up to `linger_s` for `enough` of them; where all lanes are awaited, what ends early
        may be told with the others. Watches over the workers too."""
        return self._crew.hear(timeout_s, enough, linger_s, awaits_all=awaits_all)

    def close(self) -> None:
        """End all workers: in order for a second, then by force. Twice is safe."""
        self._crew.close()

    def _by_station(
        self, lanes: Sequence[int]
    ) -> Iterator[tuple[Station, list[int], Sequence[int]]]:
        """Each station with its lanes' places, and where these stand in `lanes`."""
        if self._width == 1:
            for row, lane in enumerate(lanes):
                yield self._stations[lane], [0], (row,)
            return
        groups: dict[int, list[int]] = {}
        for row, lane in enumerate(lanes):
            groups.setdefault(lane // self._width, []).append(row)
        for number, rows in groups.items():
            yield self._stations[number], [lanes[row] % self._width for row in rows], rows

    def _word(self, station: Station, place: int, value: int) -> None:
        station.seats[place].is_worded = value != 0
        if station.link is not None:
            station.link.control(place, value)

    def _runs(self, seat: Seat, attempt: int, chunk: int) -> bool:
        return (seat.phase, seat.attempt, seat.chunk) == (Phase.EXECUTING, attempt, chunk)

    def _abandon(self, station: Station, place: int) -> None:
        """An answer that is still under way will be dropped when it comes."""
        seat = station.seats[place]
        if seat.phase is Phase.EXECUTING:
            self._word(station, place, word(seat.chunk, STOP))
        if seat.phase in (Phase.BEGINNING, Phase.EXECUTING):
            seat.orphans += 1
        seat.phase = Phase.IDLE


def _packed(actions: Sequence[Array] | Array) -> tuple[list[int], bytes]:
    """How many actions each lane gets, and the bytes of all, one after the other."""
    if isinstance(actions, np.ndarray):
        counts, flat = [actions.shape[1]] * len(actions), actions
    else:
        counts, flat = [len(chunk) for chunk in actions], np.concatenate(actions)
    return counts, np.ascontiguousarray(flat, "<f8").tobytes()


def _error(suite: str, failed: Failed) -> HocketError:
    """The worker's own error where it is one of hocket's, else its traceback as text."""
    broken = EnvError(f"The tasks of {suite!r} cannot be listed.\n{failed.traceback}")
    return errors.from_name(failed.kind, failed.message) or broken


def _answers(link: Link, timeout_s: float) -> Iterator[Message]:
    """What a single link says, until the time is over."""
    deadline = time.monotonic() + timeout_s
    fd = link.fileno()
    poller = select.poll()
    if fd is not None:
        poller.register(fd, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        if fd is not None and not poller.poll(left * 1000):
            return
        yield from link.receive()
