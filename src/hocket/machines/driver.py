"""The driver of a run on many machines: hears sites, leases trials to them, and owns the ledger.

It has no clock and no socket: time is an argument, and what it has to say goes to `post`. A lease's
number is committed before the lease is posted; an episode is acknowledged once it is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap

from hocket.core.claims import require
from hocket.core.contracts.recorder import Durable
from hocket.core.data import Episode, Outcome, RowChecks, Trial
from hocket.core.events import (
    AttemptsBegan,
    RowsChecked,
    RunEnded,
    RunStarted,
    SitesChanged,
    SpecLearned,
    StartsCompared,
)
from hocket.core.specs import EnvSpec, PolicySpec
from hocket.errors import (
    EnvError,
    OutcomeError,
    SpecMismatchError,
    UsageError,
    WireError,
    WorkerFailed,
)
from hocket.machines import protocol
from hocket.machines.attendance import EARLIER, Attendance, Post, Refusal
from hocket.machines.leasing.entries import Lease, LeaseId
from hocket.machines.leasing.leases import SICK
from hocket.machines.roster import Entry
from hocket.runs.elsewhere import Work
from hocket.runs.sites import SiteConfig
from hocket.system.text import counted

OUTLIVES = "sites_outlive"
"""The key in the ledger's `meta` of a driver that its sites may outlive: its leases then stand
until their sites are silent for too long."""
_TELL_S = 0.5
"""Seconds between two accounts of all sites."""
_DELIVERIES = (
    protocol.FilePiece,
    protocol.SealedEpisode,
    protocol.Returned,
    protocol.CollectedPart,
    protocol.Follows,
    protocol.Learned,
)
"""What a site says of its leases, and says again after it has joined."""
_FATAL = (UsageError, SpecMismatchError, EnvError)
"""Errors of a site that every other site may have too."""


class Driver(Attendance):
    """Drives one run. One thread calls it."""

    def __init__(self, work: Work, config: SiteConfig, post: Post) -> None:
        super().__init__(work, config, post)
        self._durable = [reader for reader in work.readers if isinstance(reader, Durable)]
        self._specs: set[tuple[str, str]] = set()
        self._untold: dict[int, tuple[LeaseId, str]] = {}
        """By trial: the last attempt, and its error, at one whose retries are used up where nothing
        has ended: another site may end it yet."""
        self._barren = 0
        """Sites at which nothing could begin, or that have failed at all that was left to do."""
        self._told = -_TELL_S
        self._honours = bool(work.keeping.facts.get(OUTLIVES))

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
                self._book.stand(LeaseId(index[trial], attempt), EARLIER, now)

    def _plan(self, trials: Sequence[Trial]) -> None:
        self._trials += trials
        self._book.add(trials)
        self._hungry.update(dict.fromkeys(self._sites))

    @property
    def is_done(self) -> bool:
        """True when every planned trial has its episode."""
        return self._book.is_done

    @property
    def is_doomed(self) -> bool:
        """True when the last site that left did so for what others would find too, and nothing that
        has come speaks against that, or when a second one has failed at all that it tried."""
        if self._barren:
            return self._barren > 1
        kinds = _FATAL if self._intake.is_empty else OutcomeError
        return isinstance(self.trouble, kinds) and not isinstance(self.trouble, Refusal)

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

    # -- what sites say ------------------------------------------------------------------------

    def note_life(self, name: str, now: float) -> None:
        """Note that something has come from a site, a part of a message too."""
        self._book.hear(name, now)

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
            for lease in self._book.held(name).intersection(starmap(LeaseId, message.leases)):
                self._book.began(lease)
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
            self._learn(name, site, message, now)
        elif isinstance(message, protocol.Left):
            self._leave(name, site, message, now)
        else:
            self._hear_other(name, message)

    def _hear_other(self, name: str, message: protocol.Message) -> None:
        """Take a message that sites send only in runs of another kind."""
        raise WireError(f"{name} sent {type(message).__name__}, which it may not send here.")

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
                # Its connection may still be there: then it joins again once it hears this.
                self._post(name, self._sites.welcome(site, self.config.lease_s))
        barren = self._book.barren()
        for name in barren if self.may_grow else ():
            self._barren += 1
            self._blame(name, now, "All that is left to do has failed here, and nothing ended.")
        is_last = bool(barren) and not (self.may_grow or self._sites.is_expecting)
        for last in self._book.spent(is_last=is_last):
            self._end_as_error(*self._untold.pop(last.trial), now)
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
        for lease in granted:
            if lease.id.trial in self._untold:
                self._fail(*self._untold.pop(lease.id.trial), now, again=True)
        legs = [self._sites.leg(lease.site) for lease in granted]
        # Committed before any of them is posted.
        self._emit(
            AttemptsBegan(
                time=now, lanes=[0] * len(trials), trials=trials, attempts=attempts, sites=legs
            )
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
        lease = self._book.lease(one)
        if lease is None or lease.site != name:
            return
        is_final = self._book.give_back(one, spends=message.spends)
        trial = self._trials[one.trial]
        if not message.error:
            self._files.discard(one, trial)
            self._forget(one)
            return
        # What is kept of it lies where a run on this machine keeps evidence.
        self._files.finish(one, message.files)
        self._files.forget(trial, one.attempt)
        site.error = message.error
        self._hungry.update(dict.fromkeys(self._sites))
        if is_final:
            self._end_as_error(one, message.error, now)
            return
        if self._book.is_spent(one.trial):
            self._untold[one.trial] = (one, message.error)
            if not self._specs:
                self._barren += 1
                said = f"No episode could begin, in {counted(one.attempt + 1, 'attempt')}."
                self.put_out(name, now, "was put out", EnvError(f"{said}\n{message.error}"))
            return
        self._fail(one, message.error, now, again=True)
        if not message.spends and (again := self._book.regrant(one.trial, name, now)):
            self._grant([again], now)

    def _end_as_error(self, one: LeaseId, error: str, now: float) -> None:
        self._fail(one, error, now, again=False)
        trial = self._trials[one.trial]
        self._accept(one, Episode(trial, one.attempt, Outcome.ERROR, 0, 0.0, error=error))

    # -- episodes ------------------------------------------------------------------------------

    def _take(self, name: str, piece: protocol.FilePiece) -> None:
        one = LeaseId(piece.trial, piece.attempt)
        lease = self._book.lease(one)
        # Pieces under a lease that stands no more are dropped; its SealedEpisode is answered.
        if lease is not None and lease.site == name:
            self._files.take(one, self._trials[one.trial], piece)

    def _seal(self, name: str, site: Entry, message: protocol.SealedEpisode, now: float) -> None:
        one = LeaseId(message.trial, message.attempt)
        if one.trial >= len(self._trials):
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
        for sick in self._book.sick():
            self._blame(sick, now, f"{SICK} trials that failed here ended elsewhere.")

    def _blame(self, name: str, now: float, why: str) -> None:
        """Put out a site that is itself to blame for what has failed there."""
        found = self._sites.get(name)
        last = "" if found is None else found.error
        self.put_out(name, now, "was put out", WorkerFailed(f"{why} The last failed so: {last}"))

    def _accept(self, one: LeaseId, episode: Episode, site: str = "") -> None:
        self._intake.accept(one, episode, site)

    # -- what readers are told -----------------------------------------------------------------

    def _learn(self, name: str, site: Entry, message: protocol.Learned, now: float) -> None:
        spec = EnvSpec.from_plain(message.spec)
        require(spec)
        task = (message.suite, spec.task.name)
        facts = (site, "/".join(task), spec.facts)
        if found := self._sites.compare(*facts, mixed=self._mixed):
            self._refuse(name, found, now)
            return
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
