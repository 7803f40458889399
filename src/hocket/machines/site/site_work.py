"""A site's part in one run: leases come, episodes go.

The engine runs on the calling thread, the connection on one of its own. Attempts that fail are
given back with their error, and the driver decides. Ended episodes are kept, with their files,
until the driver says that it has committed them: after a connection broke they are delivered again.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hocket.core.contracts.recorder import VIDEO
from hocket.core.data import UNCHECKED, Exactness, Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    EpisodesSealed,
    Event,
    RowsChecked,
    RunStarted,
    SpecLearned,
    StartsCompared,
)
from hocket.engine.loop import Engine
from hocket.engine.trials import TrialQueue
from hocket.errors import RunFolderError
from hocket.machines import protocol
from hocket.machines.deliveries import packed_rows
from hocket.machines.leasing.entries import LeaseId
from hocket.machines.protocol import Grant
from hocket.machines.site.link import DriverLink
from hocket.records.answers import Answers
from hocket.records.chunks import ChunkRows
from hocket.records.evidence import salvage
from hocket.results.showing.tally import Tally
from hocket.system import machine
from hocket.system.scratch import ScratchFolder
from hocket.system.text import counted
from hocket.workers.links.files import pieces
from hocket.workers.sinks.video import ANSWERS_FILE


class LeasedTrials(TrialQueue):
    """A queue that is filled from another thread while the engine's thread takes from it. What
    comes lies in an inbox, which the engine's thread empties."""

    def __init__(self, on_returned: Callable[[LeaseId], None]) -> None:
        """`on_returned` is called, on the engine's thread, with each lease that was asked back and
        had not begun."""
        super().__init__()
        self._on_returned = on_returned
        self._inbox: deque[Callable[[], None]] = deque()
        self._coming: dict[LeaseId, None] = {}
        """Leases that lie in the inbox."""
        self._is_open = True
        self._unbegun: dict[Trial, deque[LeaseId]] = {}
        self._held: dict[tuple[Trial, int], tuple[LeaseId, Mapping[str, Any]]] = {}

    # -- for any thread ------------------------------------------------------------------------

    def lease(self, grants: Iterable[Grant]) -> None:
        """Take further leases."""
        for grant in grants:
            self._coming[LeaseId(*grant[:2])] = None
            self._inbox.append(functools.partial(self._take, grant))

    def ask_back(self, leases: Iterable[LeaseId]) -> None:
        """Give leases back that have not begun."""
        self._inbox.extend(functools.partial(self._return, name) for name in leases)

    def call(self, work: Callable[[], None]) -> None:
        """Call a function on the engine's thread, before it looks for a trial again."""
        self._inbox.append(work)

    def close(self) -> None:
        """Take no more: the engine ends with what it has begun."""
        self._is_open = False

    def held(self) -> list[LeaseId]:
        """All leases that have not ended."""
        # The inbox first: what leaves it meanwhile is then in both lists, and never in neither.
        return [*list(self._coming), *(name for name, _ in list(self._held.values()))]

    # -- for the engine's thread ---------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._is_open

    def refresh(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def number(self, trial: Trial) -> int:
        return self._unbegun[trial].popleft().attempt

    def name(self, trial: Trial, attempt: int) -> LeaseId:
        """The lease of an attempt."""
        return self._held[trial, attempt][0]

    def record(self, trial: Trial, attempt: int) -> Mapping[str, Any]:
        """What sinks are asked to record of an attempt."""
        return self._held[trial, attempt][1]

    def end(self, trial: Trial, attempt: int) -> None:
        """Forget an attempt that has ended, once its outcome was told."""
        del self._held[trial, attempt]

    def _take(self, grant: Grant) -> None:
        index, attempt, fields, record = grant
        trial, name = Trial(*fields), LeaseId(index, attempt)
        if (trial, attempt) not in self._held:
            self._held[trial, attempt] = (name, record)
            self._unbegun.setdefault(trial, deque()).append(name)
            self.add([trial])
        self._coming.pop(name, None)

    def _return(self, name: LeaseId) -> None:
        for trial, waiting in self._unbegun.items():
            if name in waiting:
                waiting.remove(name)
                self._waiting[trial.suite, trial.task].remove(trial)
                self._left -= 1
                self._on_returned(name)
                self._held.pop((trial, name.attempt))
                return


_FRESH_S = 0.2
"""Seconds after which a sign of life goes along with an episode."""


class EndedLease(NamedTuple):
    """How a lease ended, and where its files lie."""

    message: protocol.SealedEpisode | protocol.Returned
    folder: Path | None

    @property
    def files(self) -> list[Path]:
        if self.folder is None:
            return []
        return [self.folder / name for name in self.message.files]


class SiteWork(abc.ABC):
    """A site's part in one run: leases come, episodes go. Each kind of run makes episodes of leases
    in its own way."""

    def __init__(self, welcome: protocol.Welcome, link: DriverLink) -> None:
        self.welcome = welcome
        self.beat_s = welcome.beat_s
        self.refusal: str | None = None
        self.goes_on = False
        self._link = link
        self._trials = LeasedTrials(self._returned)
        self._scratch = ScratchFolder("site")
        self._folder = self._scratch.path
        self._joined: protocol.Joined | None = None
        self._engine: Engine | None = None
        self._tally = Tally()
        self._chunks = ChunkRows()
        self._answers = Answers(lambda *one: bool(self._trials.record(*one).get(VIDEO)))
        self._checks = UNCHECKED
        self._specs: list[protocol.Learned] = []
        self._ended: dict[LeaseId, EndedLease] = {}
        """How leases ended, until the driver has said that it knows."""
        self._start = self._beaten = time.perf_counter()
        self._doing = "loading its policy"
        self._is_over = False
        self.has_told = False
        """True once the driver was told what is held here. Nothing is delivered before: the link's
        thread reads and sets it."""

    def close(self) -> None:
        self._scratch.close()

    # -- the calling thread --------------------------------------------------------------------

    @abc.abstractmethod
    def run(self) -> None:
        """Load the policy, join, and run what is leased until the run is over."""

    def _join(
        self,
        engine: Engine,
        *,
        lanes: int,
        level: Exactness,
        cores: int,
        depends_on: Mapping[str, Any],
    ) -> None:
        """Say that the site is ready, and run leases with this engine until the run is over."""
        self._engine = engine
        self._joined = protocol.Joined(
            lanes=lanes,
            cores=machine.cores(),
            level=level,
            depends_on=depends_on,
            holds=[],
        )
        self._doing = ""
        self._rejoin()
        if not self._is_over:
            engine.run(self._trials, planned=(), cores=cores)

    # -- the engine's reader -------------------------------------------------------------------

    def on(self, event: Event) -> None:
        """Tell the driver of an event."""
        if isinstance(event, EpisodesSealed):
            for episode in event.episodes:
                packed = packed_rows(self._chunks.take(episode).rows)
                name = self._trials.name(episode.trial, episode.attempt)
                folder = self._attempt_folder(episode.trial, episode.attempt)
                files = [os.path.basename(file) for file in episode.files]
                is_filmed = any(file.endswith(".mp4") for file in files)
                if is_filmed and self._answers.save(episode.trial, episode.attempt, folder):
                    files.append(ANSWERS_FILE)
                self._answers.forget(episode.trial, episode.attempt)
                fields = (*name, episode.outcome.value, *episode[3:8], episode.seconds)
                told = (episode.progress, episode.told)
                message = protocol.SealedEpisode(*fields, files, *packed, *told)  # type: ignore[arg-type]
                message = message._replace(remarks=episode.remarks, diverged=episode.diverged)
                self._end(name, message, folder)
                self._trials.end(episode.trial, episode.attempt)
            if time.perf_counter() - self._beaten > _FRESH_S:
                self._link.post(self.beat())
        elif isinstance(event, AttemptsBegan):
            pairs = zip(event.trials, event.attempts, strict=True)
            self._link.post(protocol.Began([self._trials.name(*pair) for pair in pairs]))
        elif isinstance(event, AttemptFailed):
            name = self._trials.name(event.trial, event.attempt)
            self._chunks.forget(event.trial, event.attempt)
            folder = self._attempt_folder(event.trial, event.attempt)
            files = [path.name for path in salvage(folder)]
            returned = protocol.Returned(*name, event.error, not event.again, files)
            self._end(name, returned, folder)
            self._trials.end(event.trial, event.attempt)
        elif isinstance(event, SpecLearned):
            self._specs.append(protocol.Learned(event.suite, event.spec.to_plain()))
            self._link.post(self._specs[-1])
        elif isinstance(event, StartsCompared) and event.differs:
            learned = next(spec for spec in reversed(self._specs) if spec.suite == event.suite)
            self._specs.append(learned._replace(differs=event.differs))
            self._link.post(self._specs[-1])
        elif isinstance(event, RowsChecked):
            self._checks += event.checks
        elif isinstance(event, RunStarted):
            self._start = time.perf_counter()
            self._link.post(self.beat())

    def _returned(self, name: LeaseId) -> None:
        self._end(name, protocol.Returned(*name, "", spends=False, files=[]))

    def _end(
        self,
        name: LeaseId,
        message: protocol.SealedEpisode | protocol.Returned,
        folder: Path | None = None,
    ) -> None:
        self._ended[name] = EndedLease(message, folder)
        self._link.post_all(self._messages(name))

    def _attempt_folder(self, trial: Trial, attempt: int) -> Path:
        return self._folder / "episodes" / trial.slug / str(attempt)

    @property
    def told(self) -> str:
        """What the site does and has done, for people. May be asked on any thread."""
        doing = self._doing or self._tally.phase
        if self._joined is None:
            return doing
        lanes, done = self._joined.lanes, self._tally.done
        return f"{doing}: {counted(lanes, 'lane')}, {counted(done, 'episode')}"

    # -- the link's thread ---------------------------------------------------------------------

    def beat(self) -> protocol.Message:
        checks, self._checks = self._checks, UNCHECKED
        self._beaten = time.perf_counter()
        return protocol.Beat(
            time.perf_counter() - self._start,
            list(self._tally.work),
            (checks.made, checks.differed),
            self._doing or self._tally.phase,
        )

    def meet(self, welcome: protocol.Welcome) -> None:
        """Go on with the run, with a driver that is another one or has given this site up."""
        self.welcome, self.beat_s, self.has_told = welcome, welcome.beat_s, False
        self._rejoin()

    def _rejoin(self) -> None:
        """Say what this site is and holds, and deliver what it has."""
        joined = self._joined
        if joined is not None and self._engine is not None:
            self._link.post_all(self._account(joined))

    def _account(self, joined: protocol.Joined) -> Iterator[protocol.Message]:
        """What this site is, holds and has to deliver, as of when it is sent."""
        # The trials first: what ends meanwhile is then in both lists, and never in neither.
        holds = [*self._trials.held(), *self._ended]
        yield joined._replace(holds=holds)
        self.has_told = True
        yield self.beat()
        yield from list(self._specs)
        yield from self._owed()
        for name in list(self._ended):
            yield from self._messages(name)

    def _owed(self) -> Iterable[protocol.Message]:
        """What else to send to a driver that meets this site anew."""
        return ()

    def _messages(self, name: LeaseId) -> Iterator[protocol.Message]:
        found = self._ended.get(name)
        if found is None or not self.has_told:
            return
        try:
            for file in found.files:
                for piece in pieces(
                    0, name.attempt, str(file), hasher=protocol.HASHER, longest=protocol.PART
                ):
                    yield protocol.FilePiece(name.trial, *piece[1:])
        except OSError as exc:
            why = f"What it had recorded cannot be read: {exc}"
            yield protocol.Left(RunFolderError.__name__, why)
            self.refuse(why)
            return
        yield found.message

    def receive(self, version: int, data: bytes) -> None:  # noqa: B027 - few kinds of work learn
        """Act with weights that came beside the connection, on the link's thread."""

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
        """End the site's part in the run. `goes_on`: another run may follow."""
        self.goes_on = goes_on
        self._is_over = True
        self._trials.close()
        if self._engine is not None:
            self._engine.stop()

    def _wake(self) -> None:
        if self._engine is not None:
            self._engine.wake()


MakeWork = Callable[[protocol.Welcome, DriverLink], SiteWork]
