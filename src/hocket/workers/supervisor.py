"""The workers of a fleet: started, heard, watched over and replaced."""

from __future__ import annotations

import select
import time
from dataclasses import dataclass

from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.wire import Close, Executed, Failed, Hello, Message, Ready, Sealed
from hocket.errors import UsageError, WorkerFailed
from hocket.workers.inbox import Logbook
from hocket.workers.link import LastWords, Link, SelfDriven
from hocket.workers.notices import LaneFailed, LanesRecycled, LanesUp, Notice
from hocket.workers.shm import STOP, word
from hocket.workers.slots import Phase, Seat, Station
from hocket.workers.waker import Bell

_WATCH_S = 0.1
_GLANCE_S = 0.5e-3
"""Workers in this thread work for so long before anyone looks what others have to say."""
_WEIGH_S = 1.0
_CLOSE_S = 1.0
_PAUSE_S = 5.0
_FAILED_STARTS = 3
_RETRY_S = 0.2
_SOUND = ("ObservationError", "ActionSpaceError", "ChunkShapeError", "ChunkValueError")
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
class Leaver:
    """A worker whose place has gone to another, and that still seals its last attempts."""

    lanes: range
    link: Link
    seats: list[Seat]
    deadline: float


class Crew:
    """Keeps a worker at every station, and turns what they say into notices."""

    def __init__(self, runtime: Runtime, spec: WorkerSpec, config: FleetConfig) -> None:
        width = spec.lanes
        if config.lanes < 1 or config.lanes % width:
            raise UsageError(f"{config.lanes} lanes cannot be had in workers of {width}.")
        self.stations = [Station(range(i, i + width)) for i in range(0, config.lanes, width)]
        self._runtime = runtime
        self._spec = spec
        self._config = config
        self._by_fd: dict[int, Station] = {}
        self._inline: dict[Station, SelfDriven | None] = {}
        """Stations whose workers work in this thread; those with work of their own tell when."""
        self._leavers: dict[int, Leaver] = {}
        self._epoll = select.epoll()
        self._bell = Bell()
        self._epoll.register(self._bell.fd, select.EPOLLIN)
        self._log = Logbook()
        self._now = self._watched_at = self._weighed_at = time.monotonic()
        """Taken once for each round of `hear`."""
        self._is_closed = False

    def start(self, station: Station) -> None:
        """Ask for a worker, which comes up by itself."""
        try:
            link = self._runtime.start(self._spec)
        except WorkerFailed as exc:
            self._start_failed(station, str(exc))
            return
        station.settle(link, time.monotonic())
        fd = link.fileno()
        if fd is None:
            self._inline[station] = link if isinstance(link, SelfDriven) else None
        else:
            self._by_fd[fd] = station
            self._epoll.register(fd, select.EPOLLIN)

    def announce(self, station: Station) -> None:
        """Tell of a worker that was up before, to whoever listens now."""
        self._log.add(LanesUp(station.lanes))

    def send(self, station: Station, message: Message) -> None:
        """Send to a station's worker; without one the attempts are lost here."""
        link = station.link
        if link is None:
            self._log.lost(station.lanes, station.seats, "WorkerStart", station.trouble)
        elif not link.send(message):
            self._epoll.modify(link.fileno() or 0, select.EPOLLIN | select.EPOLLOUT)

    def ring(self) -> None:
        """Make `hear` return. Any thread may call this, also after `close`."""
        self._bell.ring()

    def hear(
        self, timeout_s: float, enough: int = 1, linger_s: float = 0.0, *, awaits_all: bool = False
    ) -> list[Notice]:
        """What happened, waiting up to `timeout_s` for the first. Where that is a chunk that ended
        and left its episode going, waits up to `linger_s` for `enough` of them."""
        now = time.monotonic()
        deadline = now + timeout_s
        is_rung = lingers = False
        by_fd = self._by_fd
        while True:
            for station, driven in tuple(self._inline.items()):
                if driven is not None:
                    seconds = self._alone_s(deadline - now)
                    driven.work(seconds, self._bell.is_ringing, awaits_all=awaits_all)
                self._read(station)
            rest_s = 0.0 if self._log and not lingers else self._rest_s()
            now = time.monotonic()
            events = self._epoll.poll(min(max(0.0, deadline - now), rest_s))
            self._now = now = time.monotonic()
            for fd, mask in events:
                if fd == self._bell.fd:
                    self._bell.hush()
                    is_rung = True
                elif mask == select.EPOLLIN and fd in by_fd:
                    self._read(by_fd[fd])
                else:
                    self._wake_for(fd, mask)
            if now - self._watched_at >= _WATCH_S:
                self._watch(now)
            if enough > 1 and not is_rung and 0 < self._log.chunks < enough:
                if not lingers:
                    lingers, deadline = True, min(deadline, now + linger_s)
                if now < deadline:
                    continue
            if is_rung or self._log or now >= deadline:
                return self._log.take()

    def close(self) -> None:
        """End all workers and the runtime; twice is safe."""
        if self._is_closed:
            return
        self._is_closed = True
        for station in self.stations:
            for place, seat in enumerate(station.seats):
                if station.link is not None and seat.phase is Phase.EXECUTING:
                    station.link.control(place, word(seat.chunk, STOP))
        links = [s.link for s in self.stations if s.link is not None]
        for link in links:
            link.send(Close())
        links += [leaver.link for leaver in self._leavers.values()]
        _await_ends(links, _CLOSE_S)
        for link in links:
            link.kill()
        self._runtime.close()
        self._epoll.close()
        self._bell.close()

    # -- Hearing -----------------------------------------------------------------------------

    def _alone_s(self, longest: float) -> float:
        """How long a worker in this thread may go on: others have to be looked after."""
        return longest if len(self.stations) == 1 and not self._leavers else _GLANCE_S

    def _rest_s(self) -> float:
        """How long nobody needs to be looked after."""
        rest_s = _WATCH_S
        for driven in self._inline.values():
            due_s = None if driven is None else driven.due_s()
            if due_s is not None:
                rest_s = min(rest_s, due_s)
        return rest_s

    def _wake_for(self, fd: int, mask: int) -> None:
        station = self._by_fd.get(fd)
        if station is None:
            leaver = self._leavers.get(fd)
            if leaver is not None:
                leaver.link.flush()
                self._read_leaver(fd, leaver)
            return
        if mask & select.EPOLLOUT and station.link is not None and station.link.flush():
            self._epoll.modify(fd, select.EPOLLIN)
        if mask & ~select.EPOLLOUT:
            self._read(station)

    def _read(self, station: Station) -> None:
        link = station.link
        if link is None:
            return
        try:
            messages = link.receive()
        except WorkerFailed as exc:
            self._lose(station, "WorkerCrashed", str(exc))
            return
        has_ended = False
        for message in messages:
            if type(message) is Executed:
                has_ended |= self._log.executed(station, message, self._now)
            elif not self._note(station, message):
                return
        if has_ended:
            self._recycle_if_due(station)

    def _note(self, station: Station, message: Message) -> bool:
        """Any other message; false where the worker that sent it is no longer the station's."""
        if isinstance(message, Ready):
            self._log.ready(station, message)
        elif isinstance(message, Sealed):
            self._log.sealed(station.lanes, station.seats, message)
        elif isinstance(message, Hello):
            station.is_up = True
            station.failed_starts = 0
            station.since = self._now
            self._log.add(LanesUp(list(station.lanes)))
        elif isinstance(message, Failed):
            return self._note_failed(station, message)
        return True

    def _note_failed(self, station: Station, message: Failed) -> bool:
        if message.lane < 0:
            self._lose(station, message.kind, f"{message.message}\n{message.traceback}")
            return False
        seat = station.seats[message.lane]
        if seat.sealing:
            self._log.unsealed(station.lanes, station.seats, message)
            return True
        # An env that broke in the middle of an episode may have broken its process too.
        is_gone = seat.phase is Phase.EXECUTING and message.kind not in _SOUND
        self._log.failed(station, message, is_gone=is_gone)
        if is_gone:
            self._retire(station)
        return not is_gone

    def _read_leaver(self, fd: int, leaver: Leaver) -> None:
        try:
            messages = leaver.link.receive()
        except WorkerFailed as exc:
            self._part(fd, leaver, str(exc))
            return
        for message in messages:
            if isinstance(message, Sealed):
                self._log.sealed(leaver.lanes, leaver.seats, message)
            elif isinstance(message, Failed):
                self._log.unsealed(leaver.lanes, leaver.seats, message)

    # -- Replacing ---------------------------------------------------------------------------

    def _start_failed(self, station: Station, message: str) -> None:
        """Try again, a little later each time; give up after a few."""
        now = time.monotonic()
        station.settle(None, now)
        station.trouble = message
        station.failed_starts += 1
        if station.failed_starts < _FAILED_STARTS:
            station.retry_at = now + _RETRY_S * 2**station.failed_starts
        else:
            for lane in station.lanes:
                self._log.add(LaneFailed(lane, -1, "WorkerStart", message, "", gone=True))

    def _lose(self, station: Station, kind: str, message: str) -> None:
        """The worker is gone, or must go: report what it had, and start another."""
        was_up, seats = station.is_up, station.seats
        link = self._detach(station)
        has_lost = self._log.lost(station.lanes, seats, kind if was_up else "WorkerStart", message)
        link.kill()
        if not was_up:
            self._start_failed(station, message)
            return
        if not has_lost:
            self._log.add(LanesRecycled(list(station.lanes), message))
        self.start(station)

    def _detach(self, station: Station) -> Link:
        link = station.link
        assert link is not None
        fd = link.fileno()
        if fd is None:
            del self._inline[station]
        else:
            del self._by_fd[fd]
            self._epoll.unregister(fd)
        station.link = None
        return link

    def _retire(self, station: Station) -> None:
        """Another worker takes the place; this one seals what it has and goes."""
        seats = station.seats
        link = self._detach(station)
        fd = link.fileno()
        if fd is None:
            link.kill()
        else:
            link.send(Close())
            deadline = self._now + self._config.start_timeout_s
            self._leavers[fd] = Leaver(station.lanes, link, seats, deadline)
            self._epoll.register(fd, select.EPOLLIN)
        self.start(station)

    def _part(self, fd: int, leaver: Leaver, message: str) -> None:
        self._log.lost(leaver.lanes, leaver.seats, "WorkerCrashed", message)
        del self._leavers[fd]
        self._epoll.unregister(fd)
        leaver.link.kill()

    def _recycle_if_due(self, station: Station) -> None:
        if station.link is None or station.is_busy:
            return
        limit, after = self._config.worker_memory, self._config.recycle_after
        reason = ""
        if after is not None and station.episodes >= after:
            reason = f"{station.episodes} episodes"
        elif limit is not None and (station.link.memory() or 0) > limit:
            reason = f"more than {limit} bytes of memory"
        if reason:
            self._recycle(station, reason)

    def _recycle(self, station: Station, reason: str) -> None:
        self._log.add(LanesRecycled(list(station.lanes), reason))
        self._retire(station)

    # -- Watching ----------------------------------------------------------------------------

    def _watch(self, now: float) -> None:
        """Kill workers that hang or outgrow their memory; retry starts that are due."""
        pause = now - self._watched_at
        self._watched_at = now
        weighs = now - self._weighed_at >= _WEIGH_S
        if weighs:
            self._weighed_at = now
        for station in self.stations:
            if pause > _PAUSE_S:
                # Nobody listened, which is no fault of the worker's.
                station.since = now
            if station.retry_at is not None and now >= station.retry_at:
                self.start(station)
            elif station.link is not None and station not in self._inline:
                # (One that hangs in this thread would keep us from looking.)
                self._check(station, now, weighs=weighs)
        for fd, leaver in list(self._leavers.items()):
            if now > leaver.deadline:
                self._part(fd, leaver, "It did not end in time.")

    def _check(self, station: Station, now: float, *, weighs: bool) -> None:
        awaited, seconds = station.waits_since(now)
        if awaited == "step" and seconds > self._config.step_timeout_s:
            self._give_up(station, f"The env made no step for {seconds:.1f} s.")
        elif awaited == "start" and seconds > self._config.start_timeout_s:
            self._give_up(station, f"The env was not ready after {seconds:.1f} s.")
        elif weighs and station.link is not None:
            used, limit = station.link.memory(), self._config.worker_memory
            if limit is None or used is None or used <= limit:
                return
            reason = f"The worker used {used} bytes of memory; it may use {limit}."
            if station.is_busy:
                self._lose(station, "WorkerMemory", reason)
            else:
                self._recycle(station, reason)

    def _give_up(self, station: Station, message: str) -> None:
        words = station.link.last_words() if isinstance(station.link, LastWords) else ""
        self._lose(station, "WorkerHung", f"{message}\nIts last words:\n{words}".strip())


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
