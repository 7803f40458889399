"""The driver of a run on many machines: hears sites, leases trials to them, and owns the ledger.

It has no clock and no socket: time is an argument, and what it has to say goes to `post`. A lease's
number is committed before the lease is posted; an episode is acknowledged once it is committed.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from hocket.core.contracts.recorder import Durable
from hocket.core.data import EnvSpec, Episode, Outcome, PolicySpec, RowChecks, Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    Event,
    Noted,
    RowsChecked,
    RunEnded,
    RunStarted,
    SitesChanged,
    SpecLearned,
    StartsCompared,
)
from hocket.errors import EnvError, HocketError, SpecMismatchError, UsageError, WireError, from_name
from hocket.machines import protocol
from hocket.machines.intake import Intake, Post
from hocket.machines.leasing.lease import Lease, LeaseId
from hocket.machines.leasing.leases import LeaseBook
from hocket.machines.receipts import INBOXES
from hocket.machines.roster import Entry, Roster
from hocket.runs.elsewhere import Work
from hocket.runs.sites import SiteConfig
from hocket.system.text import counted

OUTLIVES = "sites_outlive"
"""The key in the ledger's `meta` of a driver that its sites may outlive: its leases then stand
until their sites are silent for too long."""
_EARLIER = "an earlier driver's site"
_TELL_S = 0.5
"""Seconds between two accounts of all sites."""
_DELIVERIES = (
    protocol.FilePiece,
    protocol.SealedEpisode,
    protocol.Returned,
    protocol.CollectedPart,
    protocol.Follows,
)
"""What a site says of its leases, and says again after it has joined."""
_FATAL = (UsageError, SpecMismatchError, EnvError)
"""Errors of a site that every other site would have too."""


class Driver:
    """Drives one run. One thread calls it."""

    def __init__(self, work: Work, config: SiteConfig, post: Post) -> None:
        self._work = work
        self.config = config
        self._post = post
        self._trials = list(work.planned)
        self._keeping = work.keeping
        self._durable = [reader for reader in work.readers if isinstance(reader, Durable)]
        self._intake = Intake(work, self._emit, post)
        self._files = self._intake.files
        self._book = LeaseBook(
            lease_s=config.lease_s, retries=work.config.retries, in_order=work.in_order
        )
        done = {episode.trial.id: episode.attempt for episode in work.done}
        self._book.add(self._trials, work.keeping.numbers, done)
        self._sites = Roster(work)
        self._specs: set[tuple[str, str]] = set()
        self._hungry: dict[str, None] = {}
        """Sites that have spoken since leases were granted, in that order."""
        self._told = -_TELL_S
        self._honours = bool(work.keeping.facts.get(OUTLIVES))
        self.trouble: HocketError | None = None
        """The error of the last site that left with one."""

    # -- beginning and end ---------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Tell readers that the run begins, and let earlier leases stand."""
        self._work.begin(self._plan)
        self._emit(
            RunStarted(
                trials=self._work.planned,
                done=self._work.done,
                lanes=0,
                cores=1,
                policy=PolicySpec(chunk_length=0),
            )
        )
        if self._honours:
            index = {trial: i for i, trial in enumerate(self._trials)}
            for trial, attempt in self._keeping.standing:
                self._book.stand(LeaseId(index[trial], attempt), _EARLIER, now)

    def _plan(self, trials: Sequence[Trial]) -> None:
        self._trials += trials
        self._book.add(trials)
        self._hungry.update(dict.fromkeys(self._sites))

    @property
    def is_done(self) -> bool:
        """True when every planned trial has its episode."""
        return self._book.is_done

    @property
    def lanes(self) -> int:
        """Lanes of all sites that take part."""
        return self._book.lanes

    def is_awaited(self, site: str) -> bool:
        """True when a site that has spoken will soon have a lane for which no lease waits there."""
        return site in self._hungry and self._book.is_short(site)

    @property
    def late(self) -> int:
        """Episodes that came too late to count."""
        return self._book.late

    def finish(self, now: float) -> None:
        """Commit what was accepted, and tell readers that the run has ended."""
        self._intake.tell(now)
        self._tell_sites(now)
        if self._book.late:
            self.note(f"{counted(self._book.late, 'episode')} came too late to count.")
        notes = {"late": self._book.late}
        self._emit(RunEnded(time=now, complete=self.is_done, notes=notes))
        self._intake.acknowledge()
        shutil.rmtree(self._work.folder.root / INBOXES, ignore_errors=True)

    # -- sites come and go ---------------------------------------------------------------------

    def open(self, hello: protocol.SiteHello) -> None:
        """Answer a site that has connected, for the first time or again."""
        self._post(hello.site, self._sites.greet(hello, self.config.lease_s))

    def hear(self, name: str, message: protocol.Message, now: float) -> None:
        """Take what a site says; WireError where it may not say that."""
        site = self._sites.get(name)
        if site is None:
            raise WireError("A site spoke that has not said hello.")
        self._book.hear(name, now)
        if not site.has_joined and isinstance(message, _DELIVERIES):
            return  # What it holds is not known before it joins; then all of it comes again.
        if isinstance(message, protocol.FilePiece):
            self._take(name, message)
        elif isinstance(message, protocol.SealedEpisode):
            self._seal(name, site, message, now)
        elif isinstance(message, protocol.Began):
            for lease in message.leases:
                self._book.began(LeaseId(*lease))
        elif isinstance(message, protocol.Beat):
            site.hear(message, now)
            made, differed = message.checks
            if made:
                checks = RowChecks(made=made, differed=differed)
                self._emit(RowsChecked(time=now, checks=checks))
        elif isinstance(message, protocol.Returned):
            self._give_back(name, site, message, now)
        elif isinstance(message, protocol.Joined):
            self._join(name, site, message, now)
        elif isinstance(message, protocol.Learned):
            self._learn(site, message, now)
        elif isinstance(message, protocol.Left):
            self._leave(name, site, message, now)
        else:
            self._hear_other(name, message)

    def _hear_other(self, name: str, message: protocol.Message) -> None:
        """Take a message that sites send only in runs of another kind."""
        raise WireError(f"{name} sent {type(message).__name__}, which it may not send here.")

    def _join(self, name: str, site: Entry, message: protocol.Joined, now: float) -> None:
        refused = self._sites.admit(site, message, mixed=self.config.mixed)
        if refused is not None:
            self._post(name, refused)
            self.note(f"{site.name} was refused. {refused.why}")
            self.bury_site(name, now, "was refused")
            return
        self._work.learn(*self._sites.account())
        self._book.join(name, site.lanes, now)
        self._honour(name, message.holds)
        self._hungry[name] = None

    def _honour(self, name: str, holds: Sequence[tuple[int, int]]) -> None:
        """Leases that the site holds go on where they stand; it may forget the others."""
        forgotten = []
        held = {LeaseId(*one) for one in holds}
        for one in sorted(held):
            lease = self._book.lease(one)
            if lease is None:
                forgotten.append(one)
            elif lease.site != name:
                self._book.move(one, name)
        for one in self._book.held(name) - held:
            # It was posted on a connection that broke.
            self._book.give_back(one, spends=False)
            self._forget(one)
        if forgotten:
            self._post(name, protocol.Settled(forgotten))
        for one in held:
            self._files.restart(one)

    def disconnect(self, name: str) -> None:
        """Note that a site's connection is gone: it may come back, and its leases stand until it
        was silent for too long."""
        site = self._sites.get(name)
        if site is None:
            return
        site.doing = "not connected"
        for one in self._book.held(name):
            self._files.restart(one)

    def drop(self, name: str) -> None:
        """Give up the connection of a site that does not read what it is sent."""
        self.note(f"{self.label(name)} does not read what it is sent: it was dropped.")
        self.disconnect(name)

    def label(self, name: str) -> str:
        """The name that people know the site with this identifier by."""
        site = self._sites.get(name)
        return name if site is None else site.name

    def bury(self, called: str, now: float, why: str) -> None:
        """Give up all sites that people know by this name."""
        for name in self._sites.called(called):
            self.bury_site(name, now, why)

    def bury_site(self, name: str, now: float, why: str) -> None:
        """Give up the site with this identifier: its trials go to others at once."""
        if (site := self._sites.get(name)) is not None:
            self._lose(name, self._book.leave(name), now, why)
            site.go(why)

    def _leave(self, name: str, site: Entry, message: protocol.Left, now: float) -> None:
        if message.kind:
            error = from_name(message.kind, message.message) or HocketError(message.message)
            self.trouble = type(error)(f"{site.name}: {error}")
            self.note(f"{site.name} has left: {message.message}")
            if isinstance(error, _FATAL) and self._intake.is_empty:
                raise self.trouble
        self.bury_site(name, now, "has left")

    def _lose(self, name: str, lost: Sequence[Lease], now: float, why: str) -> None:
        who = self.label(name)
        for lease in lost:
            self._files.discard(lease.id, self._trials[lease.id.trial])
            if lease.has_begun:
                self._fail(lease.id, f"LostSite: {who} {why}.", now, again=True)
            else:
                self._forget(lease.id)
        self._hungry.update(dict.fromkeys(self._sites))

    # -- leases --------------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        """Give readers what has come, and leases to sites that have spoken. To be called soon after
        messages have come."""
        self._intake.tell(now)
        self._intake.acknowledge()
        if self._hungry and not any(reader.behind() for reader in self._durable):
            self._grant(self._book.grant(now, self._hungry), now)
            self._hungry.clear()

    def tick(self, now: float) -> None:
        """Do what is due by time; to be called a few times a second."""
        for name, lost in self._book.expire(now).items():
            self._lose(name, lost, now, f"was silent for {self.config.lease_s:g} s")
            if (site := self._sites.get(name)) is not None:
                site.go("silent")
        asked: dict[str, list[tuple[int, int]]] = {}
        for lease in self._book.ask_back():
            asked.setdefault(lease.site, []).append(lease.id)
        for slow, leases in asked.items():
            self._post(slow, protocol.AskedBack(leases))
        if any(map(self._book.is_short, self._hungry)):
            self.turn(now)
        if now - self._told >= _TELL_S:
            self._tell_sites(now)

    def _grant(self, granted: Sequence[Lease], now: float) -> None:
        if not granted:
            return
        trials = [self._trials[lease.id.trial] for lease in granted]
        attempts = [lease.id.attempt for lease in granted]
        # Committed before any of them is posted.
        self._emit(
            AttemptsBegan(time=now, lanes=[0] * len(trials), trials=trials, attempts=attempts)
        )
        posts: dict[str, list[protocol.Grant]] = {}
        for lease, trial in zip(granted, trials, strict=True):
            record = self._work.record(trial, lease.id.attempt)
            posts.setdefault(lease.site, []).append((*lease.id, trial, record))
        for site, leases in posts.items():
            self._post(site, protocol.Leased(leases))

    def _give_back(self, name: str, site: Entry, message: protocol.Returned, now: float) -> None:
        one = LeaseId(message.trial, message.attempt)
        self._hungry[name] = None
        self._post(name, protocol.Settled([one]))
        if self._book.lease(one) is None:
            return
        is_final = self._book.give_back(one, spends=message.spends)
        trial = self._trials[one.trial]
        if not message.error:
            self._files.discard(one, trial)
            self._forget(one)
            return
        # What is kept of it lies where a run on this machine keeps evidence.
        self._intake.receive(one, trial, site, message.files)
        self._files.forget(trial, one.attempt)
        if is_final and not self._specs:
            raise EnvError(
                f"No env could be built and reset, in {one.attempt + 1} attempts.\n{message.error}"
            )
        self._fail(one, message.error, now, again=not is_final)
        if is_final:
            episode = Episode(trial, one.attempt, Outcome.ERROR, 0, 0.0, error=message.error)
            self._accept(one, episode)
        elif not message.spends and (again := self._book.regrant(one.trial, name, now)):
            self._grant([again], now)

    def _forget(self, one: LeaseId) -> None:
        """Settle a lease that never began: it is no lost attempt, but a driver that goes on with
        this run must not wait for it."""
        self._keeping.forget(self._trials[one.trial], one.attempt)

    def _fail(self, one: LeaseId, error: str, now: float, *, again: bool) -> None:
        trial, attempt = self._trials[one.trial], one.attempt
        self._emit(
            AttemptFailed(time=now, lane=0, trial=trial, attempt=attempt, error=error, again=again)
        )

    # -- episodes ------------------------------------------------------------------------------

    def _take(self, name: str, piece: protocol.FilePiece) -> None:
        one = LeaseId(piece.trial, piece.attempt)
        lease = self._book.lease(one)
        # Pieces under a lease that stands no more are dropped; its SealedEpisode is answered.
        if lease is not None and lease.site == name:
            self._files.take(one, self._trials[one.trial], piece)

    def _seal(self, name: str, site: Entry, message: protocol.SealedEpisode, now: float) -> None:
        one = LeaseId(message.trial, message.attempt)
        if not 0 <= one.trial < len(self._trials):
            raise WireError(f"There is no trial {one.trial}.")
        self._hungry[name] = None
        lease, trial = self._book.lease(one), self._trials[one.trial]
        if lease is not None and lease.site != name:
            raise WireError(f"{site.name} sealed a lease that it does not have.")
        if lease is None:
            if self._book.seal(one, message.seconds) == "late":
                self._files.discard(one, trial)
            if not self._intake.is_owed(one):
                self._post(name, protocol.Settled([one]))
            return
        episode = self._intake.read(one, trial, site, message)
        self._book.seal(one, message.seconds)
        self._accept(one, episode, name)

    def _accept(self, one: LeaseId, episode: Episode, site: str = "") -> None:
        self._intake.accept(one, episode, site)

    # -- what readers are told -----------------------------------------------------------------

    def _learn(self, site: Entry, message: protocol.Learned, now: float) -> None:
        spec = EnvSpec.from_plain(message.spec)
        task = (message.suite, spec.task.name)
        if self._sites.compare(site, "/".join(task), spec.facts):
            self._work.learn(*self._sites.account())
        if task not in self._specs:
            self._specs.add(task)
            self._emit(SpecLearned(time=now, suite=message.suite, spec=spec))
        if message.differs:
            self._emit(StartsCompared(time=now, suite=message.suite, differs=message.differs))

    def _tell_sites(self, now: float) -> None:
        self._told = now
        running = {name: self._book.running(name) for name in self._sites}
        states = self._sites.states(running)
        self._emit(SitesChanged(time=now, sites=states, done=self._sites.done()))

    def note(self, text: str) -> None:
        """Tell readers a sentence for people."""
        self._emit(Noted(text=text))

    def _emit(self, event: Event) -> None:
        for reader in self._work.readers:
            reader.on(event)
