"""Sites that collect for a training run here. Their driver runs on a thread of its own; the trainer
sees them as one more source of trajectories, whose events it reads on the engine's thread.

Staleness is bounded as on one machine: every site says which versions may still come from it, in
the order in which it sends, and the learner learns the oldest of all.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hocket.core.data import Episode, Trial
from hocket.core.events import AttemptFailed, SitesChanged
from hocket.machines.driver import Driver
from hocket.machines.intake import Post
from hocket.machines.training.driver import CollectingDriver
from hocket.records.folder import RunFolder
from hocket.runs.elsewhere import Keeping, Work
from hocket.runs.sites import SiteConfig
from hocket.train.algorithms.stretches import Stretch
from hocket.train.collect.elsewhere import Collecting, FloorRose, Gathered, SiteEvent, Tell

if TYPE_CHECKING:
    from hocket.machines.machines import Machines

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
