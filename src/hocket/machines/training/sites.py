"""Sites that collect for a training run here. Their driver gives them weights, takes trajectories
from them and tells what it heard, in order, on a thread of its own; the trainer sees them as one
more source of trajectories, whose events it reads on the engine's thread.

Staleness is bounded as on one machine: every site says which versions may still come from it, in
the order in which it sends, and the learner learns the oldest of all."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hocket.core.data import Episode, Trial
from hocket.core.events import AttemptFailed, SitesChanged
from hocket.machines.attendance import Post
from hocket.machines.driver import Driver
from hocket.records.folder import RunFolder
from hocket.runs.elsewhere import Keeping, Work
from hocket.runs.sites import SiteConfig
from hocket.train.algorithms.stretches import Stretch
from hocket.train.collect.elsewhere import Collecting, FloorRose, Gathered, SiteEvent, Tell

if TYPE_CHECKING:
    from hocket.machines.machines import Machines


from dataclasses import dataclass, field

from hocket.core import codec
from hocket.errors import HocketError, WireError
from hocket.machines import protocol
from hocket.machines.leasing.entries import Lease, LeaseId
from hocket.machines.roster import Entry
from hocket.machines.server import Carrier
from hocket.train.collect.elsewhere import WorkGrew
from hocket.train.learner.weights import PackedWeights

_LARGEST = 1 << 30
"""Most bytes of one stretch of a trajectory."""


@dataclass(slots=True)
class _Coming:
    """The trajectory of an attempt, as far as it has come."""

    next_chunk: int = 0
    """The chunk that the next one begins with, or a later one."""
    parts: list[bytes] = field(default_factory=list)
    """The parts of the next one, and their bytes in all."""
    size: int = 0


class CollectingDriver(Driver):
    """Drives sites that collect."""

    def __init__(
        self,
        work: Work,
        config: SiteConfig,
        post: Post,
        *,
        weights: PackedWeights,
        tell: Tell,
        carrier: Carrier | None = None,
    ) -> None:
        """`tell` is told what sites say, on the driver's thread."""
        super().__init__(work, config, post)
        self._weights = weights
        self._carrier = carrier
        self._tell = tell
        self._planned: queue.SimpleQueue[Sequence[Trial]] = queue.SimpleQueue()
        self._is_ending = False
        self._sent: dict[str, int] = {}
        """The version that each connected site was sent last."""
        self._has: dict[str, int] = {}
        """The version that each site says it has."""
        self._coming: dict[LeaseId, _Coming] = {}
        self._told_work = (0, 0.0, 0.0)

    # -- for any thread ------------------------------------------------------------------------

    def plan(self, trials: Sequence[Trial]) -> None:
        """Plan further trials."""
        self._planned.put(trials)

    def end(self) -> None:
        """Let the run be over, with what is under way."""
        self._is_ending = True

    # -- the driver's thread -------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        return self._is_ending

    def turn(self, now: float) -> None:
        while not self._planned.empty():
            self._plan(self._planned.get())
        for site in list(self._sent):
            self._send_weights(site)
        super().turn(now)

    def tick(self, now: float) -> None:
        super().tick(now)
        self._tell_work()

    def _join(self, name: str, site: Entry, message: protocol.Joined, now: float) -> None:
        super()._join(name, site, message, now)
        if site.lanes:
            # Before its weights are read: no older version can be sent, and none be learnt past it.
            floor = self._weights.version
            self._sent[name] = self._has[name] = -1
            if not message.holds:
                self.note(f"{site.name} collects, with lanes: {site.lanes}.")
                self._tell(FloorRose(site=name, floor=floor))
            self._send_weights(name)

    def _send_weights(self, site: str) -> None:
        """Send the newest weights, unless others are on their way to the site."""
        if self._has[site] >= self._sent[site] < self._weights.version:
            version, data = self._weights.newest()
            self._sent[site] = version
            entry = self._sites.get(site)
            if self._carrier is None or entry is None:
                is_carried = False
            else:
                is_carried = self._carrier.carry(entry.name, version, data)
            for part in () if is_carried else protocol.parts(data):
                self._post(site, protocol.Weights(version, *part))

    def disconnect(self, name: str) -> None:
        super().disconnect(name)
        self._sent.pop(name, None)

    def _hear_other(self, name: str, message: protocol.Message) -> None:
        if isinstance(message, protocol.CollectedPart):
            self._collect(name, message)
        elif isinstance(message, protocol.Follows):
            if name in self._has:
                self._has[name] = message.version
                self._tell(FloorRose(site=name, floor=message.floor))
                if name in self._sent:
                    self._send_weights(name)
        else:
            super()._hear_other(name, message)

    def _collect(self, name: str, message: protocol.CollectedPart) -> None:
        one = LeaseId(message.trial, message.attempt)
        lease = self._book.lease(one)
        if lease is None or lease.site != name:
            return  # It came too late to count.
        coming = self._coming.setdefault(one, _Coming())
        coming.parts.append(message.data)
        coming.size += len(message.data)
        if coming.size > _LARGEST:
            raise WireError(f"A trajectory of {name} has more than {_LARGEST} bytes.")
        if not message.is_whole:
            return
        data = b"".join(coming.parts)
        coming.parts, coming.size = [], 0
        gathered = _read(data)
        stretch, trial = gathered.stretch, self._trials[one.trial]
        if (stretch.trial, stretch.attempt) != (trial, one.attempt):
            raise WireError(f"{name} sent a trajectory of another lease than it named.")
        if int(stretch.chunk[0]) >= coming.next_chunk:
            coming.next_chunk = int(stretch.chunk[-1]) + 1
            self._tell_work()
            self._tell(gathered)

    def _restart(self, one: LeaseId) -> None:
        if (coming := self._coming.get(one)) is not None:
            coming.parts, coming.size = [], 0
        super()._restart(one)

    def _fail(self, one: LeaseId, error: str, now: float, *, again: bool) -> None:
        self._coming.pop(one, None)
        super()._fail(one, error, now, again=again)

    def _forget(self, one: LeaseId) -> None:
        self._coming.pop(one, None)
        super()._forget(one)

    def _lose(self, name: str, lost: Sequence[Lease], now: float, why: str) -> None:
        super()._lose(name, lost, now, why)
        self._has.pop(name, None)
        self._sent.pop(name, None)
        self._tell(FloorRose(site=name, floor=None))

    def _accept(self, one: LeaseId, episode: Episode, site: str = "") -> None:
        self._coming.pop(one, None)
        super()._accept(one, episode, site)

    def _tell_work(self) -> None:
        done = self._sites.done()
        sums = (done.steps, done.worked_s, done.inferred_s)
        if sums != self._told_work:
            before, self._told_work = self._told_work, sums
            steps, worked_s, inferred_s = (b - a for a, b in zip(before, sums, strict=True))
            self._tell(WorkGrew(steps=int(steps), worked_s=worked_s, inferred_s=inferred_s))


def _read(data: bytes) -> Gathered:
    try:
        plain = codec.unpack(data)
        terms = {str(name): float(value) for name, value in plain["terms"].items()}
        return Gathered(stretch=Stretch.from_plain(plain["stretch"]), terms=terms)
    except (HocketError, TypeError, ValueError, KeyError, AttributeError) as exc:
        raise WireError(f"{len(data)} bytes are no trajectory: {exc}") from exc


_END_S = 30.0
"""Seconds for the driver's thread to end."""


class CollectingSites:
    """The `Sites` of a training run."""

    def __init__(self, machines: Machines, asked: Collecting) -> None:
        self._machines = machines
        self._weights = asked.weights
        self._wake = asked.wake
        self._inbox: queue.SimpleQueue[SiteEvent | Exception] = queue.SimpleQueue()
        self._driver: CollectingDriver | None = None
        self._floors: dict[str, int] = {}
        self._ended: dict[tuple[str, int], Gathered] = {}
        self._running = 0
        self._is_over = False
        self._work = Work(
            config=asked.config,
            folder=RunFolder.at(asked.run),
            planned=(),
            remaining=[Trial(*asked.tasks[0], asked.config.seed)],
            done=(),
            readers=(self._Inbox(self._put),),
            sinks=(),
            record=lambda *_: {},
            begin=lambda _: None,
            learn=lambda _, about: asked.learn(about),
            keeping=Keeping(programs=[asked.program]),
            kind="collect",
            start={
                "description": asked.description.to_plain(),
                "tasks": [task for _, task in asked.tasks],
            },
            in_order=True,
            at_once=asked.config.batch_count,
        )
        self._thread = threading.Thread(target=self._drive, name="hocket-driver", daemon=True)

    class _Inbox:
        """A reader of the driver's events."""

        def __init__(self, put: Tell) -> None:
            self.on = put

        def close(self) -> None: ...

    # -- the driver's thread -------------------------------------------------------------------

    def _drive(self) -> None:
        try:
            self._machines.roll(self._work, self._make_driver)
        except Exception as error:  # noqa: BLE001 - raised on the engine's thread
            if not self._is_over:
                self._inbox.put(error)
                self._wake()

    def _make_driver(self, work: Work, config: SiteConfig, post: Post) -> Driver:
        self._driver = CollectingDriver(
            work,
            config,
            post,
            weights=self._weights,
            tell=self._put,
            carrier=self._machines.carrier,
        )
        if self._is_over:
            self._driver.end()
        return self._driver

    def _put(self, event: SiteEvent) -> None:
        if self._is_over:
            return
        if isinstance(event, FloorRose) and event.floor is not None:
            # A new site bounds the oldest version from now on, whatever waits in the inbox.
            self._floors.setdefault(event.site, event.floor)
        self._inbox.put(event)
        self._wake()

    # -- the engine's thread -------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._is_over = True
        if self._driver is not None:
            self._driver.end()
        self._machines.nudge()

    def close(self) -> None:
        self.end()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def add(self, trials: Sequence[Trial]) -> None:
        assert self._driver is not None  # There are no lanes before.
        self._driver.plan(trials)
        self._machines.nudge()

    def publish(self) -> None:
        self._machines.nudge()

    def news(self) -> list[SiteEvent]:
        found: list[SiteEvent] = []
        while not self._inbox.empty():
            event = self._inbox.get()
            if isinstance(event, Exception):
                raise event
            found.append(event)
        return found

    @property
    def lanes(self) -> int:
        return 0 if self._driver is None else self._driver.lanes

    @property
    def in_flight(self) -> int:
        return self._running

    @property
    def floor(self) -> int:
        # The version first: a site that comes meanwhile begins with this one, or a newer one.
        newest = self._weights.version
        open_floors = [gathered.stretch.oldest for gathered in self._ended.values()]
        return min([newest, *list(self._floors.values()), *open_floors])

    def on(self, event: SiteEvent) -> list[Stretch]:
        if isinstance(event, FloorRose):
            if event.floor is None:
                self._floors.pop(event.site, None)
            else:
                self._floors[event.site] = event.floor
        elif isinstance(event, AttemptFailed):
            self._ended.pop((event.trial.id, event.attempt), None)
        elif isinstance(event, SitesChanged):
            self._running = sum(site.running for site in event.sites)
        elif isinstance(event, Gathered):
            stretch = event.stretch
            if not stretch.is_end:
                return [stretch]
            self._ended[stretch.trial.id, stretch.attempt] = event
        return []

    def seal(self, episode: Episode) -> Stretch | None:
        found = self._ended.get((episode.trial.id, episode.attempt))
        return None if found is None else found.stretch

    def terms(self, episode: Episode) -> dict[str, float]:
        found = self._ended.pop((episode.trial.id, episode.attempt), None)
        return {} if found is None else dict(found.terms)
