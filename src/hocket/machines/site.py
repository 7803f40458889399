"""A site: an ordinary engine on one machine, fed with leases by a driver elsewhere.

The engine runs on the calling thread, the connection on one of its own. Attempts that fail are
given back with their error, and the driver decides. Episodes that have ended are kept, with their
files, until the driver says that it has committed them: whatever becomes of the connection, they
are delivered again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import hocket
from hocket.core import machine
from hocket.core.data import UNCHECKED, Ref, Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    EpisodesSealed,
    Event,
    RowsChecked,
    RunStarted,
    SpecLearned,
)
from hocket.core.scratch import ScratchFolder
from hocket.engine.loop import Engine
from hocket.errors import HocketError, PolicyHungError, UsageError
from hocket.machines import protocol
from hocket.machines.identity import identity_of
from hocket.machines.leased_trials import LeasedTrials
from hocket.machines.leases import LeaseId
from hocket.machines.link import Link
from hocket.machines.receipts import PROOF
from hocket.machines.rows import plain_rows
from hocket.records.chunks import ChunkRows
from hocket.records.evidence import salvage
from hocket.results.tally import Tally
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.rollout import Rollout
from hocket.workers.files import pieces
from hocket.workers.fleet import Fleets

_IDLE_BEAT_S = 5.0
_FRESH_S = 0.2
"""Seconds after which what a site says of itself is told anew with an episode."""


class Site:
    """Takes part in the runs of one driver, one after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._id = secrets.token_hex(8)
        self._runs: queue.SimpleQueue[protocol.Welcome | HocketError | None] = queue.SimpleQueue()
        self._work: SiteWork | None = None
        self._link: Link | None = None
        self._is_over = False

    def work(self, link: Link) -> None:
        """Take part until the driver says that there is no more to do, or raises why not."""
        self._link = link
        link.start(self._runs.put)
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

    def leave(self) -> None:
        """Give everything back and end soon. May come from any thread, or a signal's handler."""
        self._is_over = True
        self._runs.put(None)
        if (work := self._work) is not None:
            work.end(goes_on=False)
            if self._link is not None:
                self._link.post(protocol.Left("", "It was told to leave."))

    def _take_part(self, welcome: protocol.Welcome, link: Link) -> None:
        work = SiteWork(welcome, link)
        self._work = work
        if self._is_over:
            work.end(goes_on=False)
        try:
            with contextlib.closing(work):
                work.run()
        except KeyboardInterrupt:
            link.post(protocol.Left("", "It was interrupted."))
            raise
        except HocketError as error:
            link.post(protocol.Left(type(error).__name__, str(error)))
            raise
        except Exception as error:
            link.post(protocol.Left("HocketError", f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._work = None
        if work.refusal is not None:
            raise UsageError(work.refusal)
        if work.goes_on and not self._is_over:
            link.post(self.greet())
        else:
            self._is_over = True

    # -- the link's listener -------------------------------------------------------------------

    @property
    def beat_s(self) -> float:
        return _IDLE_BEAT_S if self._work is None else self._work.beat_s

    def greet(self) -> protocol.Message:
        return protocol.Hello(protocol.PROTOCOL, hocket.__version__, self._id, self._name)

    def beat(self) -> protocol.Message | None:
        return None if self._work is None else self._work.beat()

    def hear(self, message: protocol.Message) -> None:
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


class Ended(NamedTuple):
    """What became of a lease, and where its files lie."""

    message: protocol.SealedEpisode | protocol.Returned
    folder: Path | None

    @property
    def files(self) -> list[Path]:
        if self.folder is None:
            return []
        return [self.folder / name for name in self.message.files]


class SiteWork:
    """A site's part in one run."""

    def __init__(self, welcome: protocol.Welcome, link: Link) -> None:
        self.welcome = welcome
        self.beat_s = welcome.beat_s
        self.refusal: str | None = None
        self.goes_on = False
        self._link = link
        self._config = EvalConfig.recorded(welcome.config)
        self._trials = LeasedTrials(self._returned)
        self._scratch: ScratchFolder | None = None
        inbox = self._shared_folder()
        self._is_shared = inbox is not None
        if inbox is None:
            self._scratch = ScratchFolder("site")
            inbox = self._scratch.path
        self._folder = inbox
        self._joined: protocol.Joined | None = None
        self._engine: Engine | None = None
        self._tally = Tally()
        self._chunks = ChunkRows()
        self._checks = UNCHECKED
        self._specs: list[protocol.Learned] = []
        self._ended: dict[LeaseId, Ended] = {}
        """What became of leases, as long as the driver has not said that it knows."""
        self._start = self._beaten = time.perf_counter()
        self._doing = "loading its policy"
        self._is_over = False

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.close()

    def _shared_folder(self) -> Path | None:
        """The driver's inbox for this site, where both see the same disk."""
        inbox = Path(self.welcome.inbox)
        try:
            if (inbox / PROOF).read_text() != self.welcome.proof:
                return None
            (inbox / f"{PROOF}-seen").write_text(self.welcome.proof)
        except OSError:
            return None
        return inbox

    # -- the calling thread --------------------------------------------------------------------

    def run(self) -> None:
        """Load the policy, join, and run what is leased until the run is over."""
        assembly = Assembly(self._config, self._config.lanes)
        assembly.require_envs()
        identity = identity_of(self._config)
        policy = assembly.policy()
        is_stuck = False
        try:
            trial = Trial(*self.welcome.trial)
            rollout = Rollout.prepare(self._config, assembly, policy, trial, self.welcome.episodes)
            self._joined = protocol.Joined(
                lanes=rollout.lanes,
                cores=machine.cores(),
                level=rollout.level,
                identity=identity,
                is_shared=self._is_shared,
                holds=[],
            )
            self._run_engine(rollout)
        except PolicyHungError:
            is_stuck = True
            raise
        finally:
            # To close what never returned might never return either.
            if not is_stuck:
                policy.close()

    def _run_engine(self, rollout: Rollout) -> None:
        sinks = [Ref(name=sink["name"], config=sink["config"]) for sink in self.welcome.sinks]
        with rollout.inference() as inference, Fleets() as fleets:
            self._tally = Tally(inference.concurrency)
            self._engine = rollout.engine(
                inference,
                fleets,
                readers=(self._tally, self._chunks, self),
                sinks=sinks,
                record=self._trials.record,
                folder=str(self._folder),
                gives_back=True,
            )
            self._doing = ""
            self._rejoin()
            if not self._is_over:
                cores = rollout.assembly.cores(rollout.lanes)
                self._engine.run(self._trials, planned=(), cores=cores)

    # -- the engine's reader -------------------------------------------------------------------

    def on(self, event: Event) -> None:
        """Tell the driver what happens."""
        if isinstance(event, EpisodesSealed):
            for episode in event.episodes:
                rows = plain_rows(self._chunks.take(episode).rows)
                name = self._trials.end(episode.trial, episode.attempt)
                folder = self._attempt_folder(episode.trial, episode.attempt)
                files = [os.path.basename(file) for file in episode.files]
                fields = (*name, episode.outcome.value, *episode[3:8], episode.seconds)
                self._end(name, protocol.SealedEpisode(*fields, files, rows), folder)
            if time.perf_counter() - self._beaten > _FRESH_S:
                self._link.post(self.beat())
        elif isinstance(event, AttemptsBegan):
            pairs = zip(event.trials, event.attempts, strict=True)
            self._link.post(protocol.Began([self._trials.name(*pair) for pair in pairs]))
        elif isinstance(event, AttemptFailed):
            name = self._trials.end(event.trial, event.attempt)
            self._chunks.forget(event.trial, event.attempt)
            folder = self._attempt_folder(event.trial, event.attempt)
            files = [path.name for path in salvage(folder)]
            self._end(name, protocol.Returned(*name, event.error, not event.again, files), folder)
        elif isinstance(event, SpecLearned):
            self._specs.append(protocol.Learned(event.suite, event.spec.to_plain()))
            self._link.post(self._specs[-1])
        elif isinstance(event, RowsChecked):
            self._checks += event.checks
        elif isinstance(event, RunStarted):
            self._start = time.perf_counter()
            self._link.post(self.beat())

    def _returned(self, name: LeaseId) -> None:
        self._end(name, protocol.Returned(*name, "", False))  # noqa: FBT003

    def _end(
        self,
        name: LeaseId,
        message: protocol.SealedEpisode | protocol.Returned,
        folder: Path | None = None,
    ) -> None:
        self._ended[name] = Ended(message, folder)
        self._deliver(name)

    def _attempt_folder(self, trial: Trial, attempt: int) -> Path:
        return self._folder / "episodes" / trial.slug / str(attempt)

    # -- the link's thread ---------------------------------------------------------------------

    def beat(self) -> protocol.Message:
        checks, self._checks = self._checks, UNCHECKED
        self._beaten = time.perf_counter()
        return protocol.Beat(
            time.perf_counter() - self._start,
            list(self._tally.done_here()),
            (checks.made, checks.differed),
            self._doing or self._tally.phase,
        )

    def meet(self, welcome: protocol.Welcome) -> None:
        """Go on with the run on a new connection, perhaps with another driver."""
        self.welcome, self.beat_s = welcome, welcome.beat_s
        # What lies in a folder that the driver does not see is sent in pieces.
        self._is_shared = self._shared_folder() == self._folder
        self._rejoin()

    def _rejoin(self) -> None:
        """Say what this site is, holds and has to deliver."""
        if self._joined is None or self._engine is None:
            return
        ended = list(self._ended)
        holds = [*self._trials.held(), *ended]
        self._link.post(self._joined._replace(holds=holds, is_shared=self._is_shared))
        self._link.post(self.beat())
        for spec in self._specs:
            self._link.post(spec)
        for name in ended:
            self._deliver(name)

    def _deliver(self, name: LeaseId) -> None:
        self._link.post_all(lambda: self._messages(name))

    def _messages(self, name: LeaseId) -> Iterator[protocol.Message]:
        found = self._ended.get(name)
        if found is None:
            return
        for file in () if self._is_shared else found.files:
            for piece in pieces(0, name.attempt, str(file)):
                yield protocol.FilePiece(name.trial, *piece[1:])
        yield found.message

    def hear(self, message: protocol.Message) -> None:
        if isinstance(message, protocol.Leased):
            self._trials.lease(message.leases)
            self._wake()
        elif isinstance(message, protocol.AskedBack):
            self._trials.ask_back(LeaseId(*lease) for lease in message.leases)
            self._wake()
        elif isinstance(message, protocol.Settled):
            self._settle([LeaseId(*lease) for lease in message.leases])
        elif isinstance(message, protocol.Over):
            self.end(goes_on=message.goes_on)

    def _settle(self, leases: list[LeaseId]) -> None:
        for name in leases:
            found = self._ended.pop(name, None)
            if found is None:
                # It was running or waiting here, and nobody wants it any more.
                self._trials.ask_back([name])
            elif found.folder is not None:
                for file in found.files:
                    file.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    found.folder.rmdir()
                    found.folder.parent.rmdir()

    def refuse(self, why: str) -> None:
        self.refusal = why
        self.end(goes_on=False)

    def end(self, *, goes_on: bool) -> None:
        """The run is over, or the site takes no part in it any more."""
        self.goes_on = goes_on
        self._is_over = True
        self._trials.close()
        if self._engine is not None:
            self._engine.stop()

    def _wake(self) -> None:
        if self._engine is not None:
            self._engine.wake()
