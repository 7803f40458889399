"""A site: an ordinary engine on one machine, fed with leases by a driver elsewhere."""

from __future__ import annotations

import contextlib
import queue
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import hocket
from hocket.core.data import Ref, Trial
from hocket.errors import HocketError, PolicyHungError, UsageError
from hocket.machines import protocol
from hocket.machines.site.link import DriverLink
from hocket.machines.site.site_work import MakeWork, SiteWork
from hocket.records.digests import FileDigests
from hocket.records.provenance import places_of, provenance
from hocket.runs.assembly import Assembly, Recording
from hocket.runs.config import EvalConfig
from hocket.runs.readers import about_policy
from hocket.runs.rollout import Rollout
from hocket.workers.lending import Fleets

_IDLE_BEAT_S = 5.0
"""Seconds between two signs of life while there is no run."""


class EvalWork(SiteWork):
    """A site's part in an evaluation."""

    def run(self) -> None:
        config = EvalConfig.from_plain(self.welcome.config)
        assembly = Assembly(config, config.lanes)
        assembly.require_envs()
        trial = Trial(*self.welcome.trial)
        policy = assembly.policy([trial])
        is_stuck = False
        try:
            rollout = Rollout.prepare(config, assembly, policy, trial, self.welcome.episodes)
            files = FileDigests(places_of(config, getattr(policy, "files", ()))).finish()
            depends_on = {**provenance(config), **about_policy(config, policy), "files": files}
            self._run_engine(rollout, depends_on)
        except PolicyHungError:
            is_stuck = True
            raise
        finally:
            assembly.close()
            # Closing a policy that never returned might never return either.
            if not is_stuck:
                policy.close()

    def _run_engine(self, rollout: Rollout, depends_on: Mapping[str, Any]) -> None:
        recording = Recording(
            sinks=tuple(Ref(name=s["name"], config=s["config"]) for s in self.welcome.sinks),
            record=self._trials.record,
            folder=str(self._folder),
        )
        readers = (self._tally, self._chunks, self._answers, self)
        with (
            Fleets() as fleets,
            rollout.engine(fleets, readers, recording, gives_back=True) as engine,
        ):
            self._join(
                engine,
                lanes=rollout.lanes,
                level=rollout.level,
                cores=rollout.assembly.cores(rollout.lanes),
                depends_on=depends_on,
            )


class Site:
    """One process's part in the runs of one driver, one after the other."""

    def __init__(
        self,
        name: str,
        kinds: Mapping[str, MakeWork] | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`kinds`: makes the site's work in runs of other kinds than evaluations. `on_end` is
        called when the site is to end, whatever its engine does."""
        self._name = name
        self._on_end = on_end
        self._kinds: Mapping[str, MakeWork] = {"eval": EvalWork, **(kinds or {})}
        self._id = secrets.token_hex(8)
        self._runs: queue.SimpleQueue[protocol.Welcome | HocketError | None] = queue.SimpleQueue()
        self._work: SiteWork | None = None
        self._link: DriverLink | None = None
        self.trouble: HocketError | None = None
        """Why the connection ended for good."""
        self._is_over = False

    def work(self, link: DriverLink) -> None:
        """Take part until the driver says that the last run is over."""
        self._link = link
        link.start(self._deserted)
        try:
            while not self._is_over:
                found = self._runs.get()
                if isinstance(found, HocketError):
                    raise found
                if found is None:
                    return
                self._take_part(found, link)
        finally:
            self._is_over = True
            link.end()
        if self.trouble is not None:
            raise self.trouble

    def _deserted(self, error: HocketError | None) -> None:
        """End: there is no connection any more, and none will come. On the link's thread."""
        self.trouble = error
        self._runs.put(error)
        if error is not None:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        if (work := self._work) is not None:
            work.end(goes_on=False)
        self._on_end()

    def leave(self) -> None:
        """Give all leases back and end soon. May come from any thread, or a signal's handler."""
        self._runs.put(None)
        has_work = self._work is not None
        self._end()
        if has_work and self._link is not None:
            self._link.post(protocol.Left("", "It was told to leave."))

    @property
    def doing(self) -> str:
        """What it does now, for people. May be asked on any thread."""
        if self._is_over:
            return "leaving"
        if self._link is None or not self._link.is_up:
            return "waiting for the driver"
        return "waiting for a run" if (work := self._work) is None else work.told

    def receive(self, version: int, data: bytes) -> None:
        """Take weights that came beside the connection. May come from any thread."""

        def take() -> None:
            if self._work is not None:
                self._work.receive(version, data)

        if self._link is not None:
            self._link.call(take)

    def _take_part(self, welcome: protocol.Welcome, link: DriverLink) -> None:
        make = self._kinds.get(welcome.kind)
        if make is None:
            raise UsageError(f"This site takes no part in runs of the kind {welcome.kind!r:.40}.")
        work = make(welcome, link)
        self._work = work
        if self._is_over:
            work.end(goes_on=False)
        try:
            with contextlib.closing(work):
                work.run()
        except KeyboardInterrupt:
            link.post(protocol.Left("", "It was interrupted."))
            raise
        except Exception as error:
            kind, told = type(error).__name__, str(error)
            if not isinstance(error, HocketError):
                kind, told = "HocketError", f"{kind}: {error}"
            link.post(protocol.Left(kind, told))
            raise
        finally:
            self._work = None
        if work.refusal is not None:
            raise UsageError(work.refusal)
        if work.goes_on and not self._is_over:
            link.post(self.greet())
        else:
            self._is_over = True

    # -- the link's thread ---------------------------------------------------------------------

    @property
    def beat_s(self) -> float:
        """Seconds between two signs of life."""
        return _IDLE_BEAT_S if self._work is None else self._work.beat_s

    def greet(self) -> protocol.Message:
        """The first message of a new connection."""
        if (work := self._work) is not None:
            work.has_told = False
        return protocol.SiteHello(protocol.PROTOCOL, hocket.__version__, self._id, self._name)

    def beat(self) -> protocol.Message | None:
        """A sign of life; None where there is no run."""
        return None if self._work is None else self._work.beat()

    def hear(self, message: protocol.Message) -> None:
        """Take a message of the driver."""
        work = self._work
        if isinstance(message, protocol.Welcome):
            if work is not None and work.welcome.run == message.run:
                work.meet(message)
            elif work is not None:
                # Another run than the one under way: that one is over.
                work.end(goes_on=True)
            else:
                self._runs.put(message)
        elif isinstance(message, protocol.Refused):
            if work is not None:
                work.refuse(message.why)
            else:
                self._runs.put(UsageError(message.why))
        elif isinstance(message, protocol.Over) and work is None:
            if not message.goes_on:
                self._runs.put(None)
            elif self._link is not None:
                self._link.post(self.greet())
        elif work is not None:
            work.hear(message)
