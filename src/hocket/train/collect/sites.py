"""Sites that collect for a run here. Their driver runs on a thread of its own; the trainer sees
them as one more source of trajectories, whose events it reads on the engine's thread.

Staleness is bounded as on one machine: every site tells which versions may still come from it, in
the order of what it sends, and the learner is told the oldest of all.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from hocket.adapters.policies.openpi import msgpack_numpy
from hocket.core.data import Episode, Trial
from hocket.core.events import AttemptFailed, Event, SitesChanged
from hocket.engine.trials import TrialQueue
from hocket.errors import HocketError, WireError
from hocket.machines import protocol
from hocket.machines.driver import Driver, DriverConfig, Post
from hocket.machines.leases import Lease, LeaseId
from hocket.machines.machines import Machines
from hocket.machines.unkept import Unkept
from hocket.runs.elsewhere import Work
from hocket.train.algorithms.rollout import Segment
from hocket.train.config import TrainConfig
from hocket.train.learner.weights import WeightBlock
from hocket.train.networks.building import Description

_LARGEST = 1 << 30
"""Most bytes of one stretch of a trajectory."""
_END_S = 30.0
"""Seconds for the driver's thread to end."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gathered:
    """A stretch of an attempt has come from a site."""

    segment: Segment
    terms: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorRose:
    """What a site has not sent yet is of no older version than this; None where it is gone."""

    site: str
    floor: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkGrew:
    """What sites have done since this was told last."""

    steps: int
    worked_s: float
    inferred_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    error: Exception


SiteEvent = Event | Gathered | FloorRose | WorkGrew
Tell = Callable[[SiteEvent], None]


class Weights:
    """The newest weights, as they travel: packed once for each version."""

    def __init__(self, block: WeightBlock, like: Mapping[str, torch.Tensor]) -> None:
        self._block = block
        self._copy = {name: torch.empty_like(one, device="cpu") for name, one in like.items()}
        self._version = -1
        self._messages: list[protocol.Weights] = []

    @property
    def version(self) -> int:
        """The version that was published last."""
        return self._block.version

    def messages(self) -> list[protocol.Weights]:
        """The newest weights."""
        if self._version != self._block.version:
            self._version = self._block.read(self._copy)
            parts = protocol.parts(save(self._copy))
            self._messages = [protocol.Weights(self._version, *part) for part in parts]
        return self._messages


class CollectingDriver(Driver):
    """Drives sites that collect: gives them weights, and takes trajectories from them."""

    def __init__(
        self, work: Work, config: DriverConfig, post: Post, *, weights: Weights, tell: Tell
    ) -> None:
        super().__init__(work, config, post)
        self._weights = weights
        self._tell = tell
        self._planned: queue.SimpleQueue[Sequence[Trial]] = queue.SimpleQueue()
        self._is_ending = False
        self._sent: dict[str, int] = {}
        """The version that each connected site was sent last."""
        self._has: dict[str, int] = {}
        """The version that each has said to have."""
        self._coming: dict[tuple[str, LeaseId], list[bytes]] = {}
        self._next_chunk: dict[LeaseId, int] = {}
        """The chunk that comes next, by lease: what was sent before is dropped."""
        self._told_work = (0, 0.0, 0.0)

    # -- for any thread ------------------------------------------------------------------------

    def plan(self, trials: Sequence[Trial]) -> None:
        """Run these too."""
        self._planned.put(trials)

    def end(self) -> None:
        """Let the run be over: nothing that is under way is wanted any more."""
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

    def _join(self, name: str, site: Any, message: protocol.Joined, now: float) -> None:
        super()._join(name, site, message, now)
        if site.lanes:
            # Before its weights are read: no older version can be sent, and none be learnt past it.
            floor = self._weights.version
            self._sent[name] = self._has[name] = -1
            if not message.holds:
                self._tell(FloorRose(site=name, floor=floor))
            self._send_weights(name)

    def _send_weights(self, site: str) -> None:
        """Send the newest weights, unless others are on their way."""
        if self._has[site] >= self._sent[site] < self._weights.version:
            for message in self._weights.messages():
                self._sent[site] = message.version
                self._post(site, message)

    def disconnect(self, name: str) -> None:
        super().disconnect(name)
        self._sent.pop(name, None)
        for key in [key for key in self._coming if key[0] == name]:
            del self._coming[key]

    def _hear_other(self, name: str, message: protocol.Message) -> None:
        if isinstance(message, protocol.Collected):
            self._collect(name, message)
        elif isinstance(message, protocol.Follows):
            if name in self._has:
                self._has[name] = message.version
                self._tell(FloorRose(site=name, floor=message.floor))
        else:
            super()._hear_other(name, message)

    def _collect(self, name: str, message: protocol.Collected) -> None:
        one = LeaseId(message.trial, message.attempt)
        lease = self._book.lease(one)
        if lease is None or lease.site != name:
            return  # It came too late to count.
        parts = self._coming.setdefault((name, one), [])
        parts.append(message.data)
        if sum(map(len, parts)) > _LARGEST:
            raise WireError(f"A trajectory of {name} has more than {_LARGEST} bytes.")
        if not message.is_whole:
            return
        gathered = _read(b"".join(self._coming.pop((name, one))))
        segment, trial = gathered.segment, self._trials[one.trial]
        if (segment.trial, segment.attempt) != (trial, one.attempt):
            raise WireError(f"{name} sent a trajectory of another lease than it named.")
        if int(segment.chunk[0]) >= self._next_chunk.get(one, 0):
            self._next_chunk[one] = int(segment.chunk[-1]) + 1
            self._tell_work()
            self._tell(gathered)

    def _lose(self, name: str, lost: Sequence[Lease], now: float, why: str) -> None:
        super()._lose(name, lost, now, why)
        self._has.pop(name, None)
        self._sent.pop(name, None)
        for lease in lost:
            self._next_chunk.pop(lease.id, None)
        self._tell(FloorRose(site=name, floor=None))

    def _accept(self, one: LeaseId, episode: Episode, now: float, site: str = "") -> None:
        self._next_chunk.pop(one, None)
        super()._accept(one, episode, now, site)

    def _tell_work(self) -> None:
        done = self._sites.done()
        sums = (done.steps, done.worked_s, done.inferred_s)
        if sums != self._told_work:
            before, self._told_work = self._told_work, sums
            steps, worked_s, inferred_s = (b - a for a, b in zip(before, sums, strict=True))
            self._tell(WorkGrew(steps=int(steps), worked_s=worked_s, inferred_s=inferred_s))


def _read(data: bytes) -> Gathered:
    try:
        plain = msgpack_numpy.unpack(data)
        terms = {str(name): float(value) for name, value in plain["terms"].items()}
        return Gathered(segment=Segment.from_plain(plain["segment"]), terms=terms)
    except (HocketError, TypeError, ValueError, KeyError, AttributeError) as exc:
        raise WireError(f"{len(data)} bytes are no trajectory: {exc}") from exc


class Sites:
    """Collecting sites, as the trainer sees them: it does what `Trajectories` does, with what they
    send. The engine's thread calls it."""

    def __init__(
        self,
        config: TrainConfig,
        machines: Machines,
        run: Path,
        tasks: Sequence[tuple[str, str]],
        description: Description,
        weights: Weights,
        wake: Callable[[], None],
        learn: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """`wake` lets the engine take a turn; `learn` is told, on the driver's thread, what sites
        there are."""
        self._machines = machines
        self._weights = weights
        self._wake = wake
        self._inbox: queue.SimpleQueue[SiteEvent | _Failed] = queue.SimpleQueue()
        self._driver: CollectingDriver | None = None
        self._floors: dict[str, int] = {}
        self._ended: dict[tuple[str, int], Gathered] = {}
        self._running = 0
        self._is_over = False
        keeping = Unkept(run)
        self._work = Work(
            config=config,
            ledger=keeping,
            planned=(),
            remaining=[Trial(*tasks[0], config.seed)],
            done=(),
            readers=(keeping, self._Inbox(self._put)),
            sinks=(),
            record=lambda *_: {},
            begin=lambda _: None,
            learn=lambda _, about: learn(about),
            kind="collect",
            start={"description": description.to_plain(), "tasks": [task for _, task in tasks]},
            in_order=True,
            at_once=config.batch,
        )
        self._thread = threading.Thread(target=self._drive, name="hocket-driver", daemon=True)

    class _Inbox:
        """A reader that hands on what it is told."""

        def __init__(self, put: Tell) -> None:
            self.on = put

        def close(self) -> None: ...

    # -- the driver's thread -------------------------------------------------------------------

    def _drive(self) -> None:
        try:
            self._machines.roll(self._work, self._make_driver)
        except Exception as error:  # noqa: BLE001 - raised on the engine's thread
            if not self._is_over:
                self._inbox.put(_Failed(error=error))
                self._wake()

    def _make_driver(self, work: Work, config: DriverConfig, post: Post) -> Driver:
        self._driver = CollectingDriver(work, config, post, weights=self._weights, tell=self._put)
        if self._is_over:
            self._driver.end()
        return self._driver

    def _put(self, event: SiteEvent) -> None:
        if self._is_over:
            return
        if isinstance(event, FloorRose) and event.floor is not None:
            # A site that is new bounds what is learnt from now on, whatever waits in the inbox.
            self._floors.setdefault(event.site, event.floor)
        self._inbox.put(event)
        self._wake()

    # -- the engine's thread -------------------------------------------------------------------

    def start(self) -> None:
        """Has sites started, and begins to hear them."""
        self._thread.start()

    def end(self) -> None:
        """Lets the run be over for all sites, soon."""
        self._is_over = True
        if self._driver is not None:
            self._driver.end()
        self._machines.nudge()

    def close(self) -> None:
        """Ends the run for all sites, and waits for that. Closing twice is safe."""
        self.end()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def add(self, trials: Sequence[Trial]) -> None:
        """Plans training trials."""
        assert self._driver is not None  # There are no lanes before.
        self._driver.plan(trials)
        self._machines.nudge()

    def publish(self) -> None:
        """There are new weights."""
        self._machines.nudge()

    def news(self) -> list[SiteEvent]:
        """What sites have said since this was asked last; raises what ended their driver."""
        found: list[SiteEvent] = []
        while not self._inbox.empty():
            event = self._inbox.get()
            if isinstance(event, _Failed):
                raise event.error
            found.append(event)
        return found

    @property
    def lanes(self) -> int:
        """Lanes of all sites."""
        return 0 if self._driver is None else self._driver.lanes

    @property
    def in_flight(self) -> int:
        """Attempts that run at sites, as far as is known."""
        return self._running

    @property
    def floor(self) -> int:
        """No chunk that is still to come is older than this version."""
        # The version first: a site that comes meanwhile begins with this one, or a newer one.
        newest = self._weights.version
        open_floors = [gathered.segment.oldest for gathered in self._ended.values()]
        return min([newest, *list(self._floors.values()), *open_floors])

    def on(self, event: SiteEvent) -> list[Segment]:
        """Follows one event, and returns the stretch that it brings."""
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
            segment = event.segment
            if not segment.is_end:
                return [segment]
            self._ended[segment.trial.id, segment.attempt] = event
        return []

    def seal(self, episode: Episode) -> Segment | None:
        """Returns the last segment of an episode that counts; None if it was lost to errors."""
        found = self._ended.get((episode.trial.id, episode.attempt))
        return None if found is None else found.segment

    def terms(self, episode: Episode) -> dict[str, float]:
        """Returns what each term of the reward gave in an episode that counts; asked once, last."""
        found = self._ended.pop((episode.trial.id, episode.attempt), None)
        return {} if found is None else dict(found.terms)


class SiteTrials(TrialQueue):
    """What the engine here runs while sites collect: evaluations. It stays open, and every turn of
    the engine hears what sites have said."""

    def __init__(self, hear: Callable[[], None]) -> None:
        super().__init__()
        self._hear = hear
        self._is_hearing = False

    @property
    def is_open(self) -> bool:
        return True

    def __len__(self) -> int:
        if not self._is_hearing:
            self._is_hearing = True
            try:
                self._hear()
            finally:
                self._is_hearing = False
        return super().__len__()
