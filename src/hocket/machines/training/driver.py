"""The driver of sites that collect: it gives them weights, takes trajectories from them, and tells
the trainer what it heard, in order."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field

from hocket.core import codec
from hocket.core.data import Episode, Trial
from hocket.errors import HocketError, WireError
from hocket.machines import protocol
from hocket.machines.driver import Driver
from hocket.machines.intake import Post
from hocket.machines.leasing.entries import Lease, LeaseId
from hocket.machines.roster import Entry
from hocket.machines.server import Carrier
from hocket.runs.elsewhere import Work
from hocket.runs.sites import SiteConfig
from hocket.train.algorithms.stretches import Stretch
from hocket.train.collect.elsewhere import FloorRose, Gathered, Tell, WorkGrew
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
