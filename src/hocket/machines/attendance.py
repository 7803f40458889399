"""Sites that come to a run and go, the leases that they hold meanwhile, and how their episodes come
in: their files, their chunks, and the acknowledgement that they are durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from hocket.core.contracts.recorder import hearers
from hocket.core.data import Episode, Trial
from hocket.core.events import AttemptFailed, EpisodesEnded, EpisodesSealed, Event, Noted
from hocket.errors import HocketError, UsageError, from_name
from hocket.machines import protocol
from hocket.machines.deliveries import Receipts, SiteRows, episode_of
from hocket.machines.leasing.entries import Lease, LeaseId
from hocket.machines.leasing.leases import LeaseBook
from hocket.machines.roster import Entry, Roster
from hocket.runs.elsewhere import Work
from hocket.runs.sites import SiteConfig
from hocket.workers.links.files import declared_names

Post = Callable[[str, protocol.Message], None]
"""Sends a message to the site with an identifier."""


class Intake:
    """Takes episodes in. That their site may deliver them was decided before."""

    def __init__(self, work: Work, tell: Callable[[Event], None], post: Post) -> None:
        keeping = self._keeping = work.keeping
        self._tell = tell
        self._post = post
        self._rows: SiteRows | None = None
        if keeping.attach is not None:
            self._rows = SiteRows(leg=keeping.leg)
            keeping.attach(self._rows)
        self.files = Receipts(work.folder, declared_names(work.sinks), keeping.receivers)
        self._untold: list[tuple[str, LeaseId, Episode]] = []
        """Episodes that count, of which readers are told at the next turn, all at once."""
        self._accepted: deque[tuple[str, LeaseId]] = deque()
        self._acknowledged = 0
        self._remarked: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """True when no episode has been accepted."""
        return not (self._acknowledged or self._accepted or self._untold)

    def read(
        self, one: LeaseId, trial: Trial, site: Entry, message: protocol.SealedEpisode
    ) -> Episode:
        """The episode that a site has sealed; WireError where its files or chunks are none."""
        episode = episode_of(message, trial, self.files.finish(one, message.files))
        if self._rows is not None:
            shift = 0.0 if site.shift is None else site.shift
            self._rows.put(trial, message, lane=site.first_lane, site=site.number, shift=shift)
        site.episodes += 1
        return episode

    def accept(self, one: LeaseId, episode: Episode, site: str) -> None:
        """Let the episode count: it goes to the ledger at the next turn, and is acknowledged once
        it is durable."""
        self._untold.append((site, one, episode))

    def tell(self, now: float) -> None:
        """Give readers, the ledger first, what was accepted since the last time."""
        if not self._untold:
            return
        untold, self._untold = self._untold, []
        self._accepted += [(site, one) for site, one, _ in untold]
        episodes = [episode for _, _, episode in untold]
        found = dict.fromkeys(text for episode in episodes for text in episode.remarks)
        for text in [text for text in found if text not in self._remarked]:
            self._remarked.add(text)
            self._tell(Noted(text=text))
        self._tell(EpisodesEnded(time=now, lanes=[0] * len(episodes), episodes=episodes))
        self._tell(EpisodesSealed(time=now, episodes=episodes))

    def is_owed(self, one: LeaseId) -> bool:
        """True when an episode counts and is not known to be durable: it will be acknowledged."""
        return any(one == other for _, other, *_ in (*self._untold, *self._accepted))

    def acknowledge(self) -> None:
        """Tell sites which of their episodes have become durable since this was called last."""
        committed = self._keeping.committed()
        found: dict[str, list[LeaseId]] = {}
        while self._accepted and self._acknowledged < committed:
            site, one = self._accepted.popleft()
            self._acknowledged += 1
            if site:
                found.setdefault(site, []).append(one)
        for site, leases in found.items():
            self._post(site, protocol.Settled(leases))


EARLIER = "an earlier driver's site"


class Refusal(UsageError):
    """A site does not run what the run does."""


class Attendance:
    """What a driver knows of its sites."""

    def __init__(self, work: Work, config: SiteConfig, post: Post) -> None:
        self._work = work
        self.config = config
        self._post = post
        self._trials = list(work.planned)
        self._keeping = work.keeping
        self._mixed = config.mixed or work.mixed
        self._intake = Intake(work, self._emit, post)
        self._files = self._intake.files
        self._book = LeaseBook(
            lease_s=config.lease_s, retries=work.config.retries, in_order=work.in_order
        )
        done = {episode.trial.id: episode.attempt for episode in work.done}
        self._book.add(self._trials, work.keeping.numbers, done)
        self._sites = Roster(work)
        self._hungry: dict[str, None] = {}
        """Sites that have spoken since leases were granted, in that order."""
        self.trouble: HocketError | None = None
        """The error of the last site that left with one."""
        self.may_grow = False
        """True when further sites may come by themselves."""
        self.failure: Exception | None = None
        """The error of a reader, which no site is to blame for: it ends the run."""

    def open(self, hello: protocol.SiteHello) -> None:
        """Answer a site that has connected, for the first time or again."""
        self._post(hello.site, self._sites.greet(hello, self.config.lease_s))

    def _join(self, name: str, site: Entry, message: protocol.Joined, now: float) -> None:
        if found := self._sites.admit(site, message, mixed=self._mixed):
            self._refuse(name, found, now)
            return
        self._work.learn(*self._sites.account())
        self._book.join(name, site.lanes, now)
        self._honour(name, message.holds)
        for one in self._book.held(name):
            self._restart(one)
        self._hungry[name] = None

    def _restart(self, one: LeaseId) -> None:
        """Drop what has come of an attempt: its site delivers it from the beginning."""
        self._files.discard(one, self._trials[one.trial])

    def _refuse(self, name: str, found: Sequence[str], now: float) -> None:
        """Turn away a site that differs in these ways from what the run is."""
        why = (
            f"This site does not run what the run does: {'; '.join(found)} (before: in the run "
            "folder; now: at this site). Make them the same, or let them differ with --site.mixed."
        )
        self.put_out(name, now, "was refused", Refusal(why))

    def put_out(self, name: str, now: float, account: str, error: HocketError) -> None:
        """Let a site take part no more, whenever it comes, and tell it why."""
        self.trouble = type(error)(f"{self.label(name)} {account}: {error}")
        self.note(str(self.trouble))
        self._post(name, protocol.Refused(str(error)))
        self._book.forgive(name)
        self.bury_site(name, now, account)
        if (site := self._sites.get(name)) is not None:
            site.refusal = str(error)

    def _honour(self, name: str, holds: Sequence[tuple[int, int]]) -> None:
        """Let leases that the site holds go on where they stand; it may forget the others."""
        forgotten = []
        held = {LeaseId(*one) for one in holds}
        for one in sorted(held):
            lease = self._book.lease(one)
            if lease is not None and lease.site == EARLIER:
                self._book.move(one, name)
            elif lease is None or lease.site != name:
                forgotten.append(one)
        for one in self._book.held(name) - held:
            # It was posted on a connection that broke.
            self._book.give_back(one, spends=False)
            self._files.restart(one)
            self._forget(one)
        if forgotten:
            self._post(name, protocol.Settled(forgotten))

    def disconnect(self, name: str) -> None:
        """Note that nothing can be said to a site any more: it may come back, and its leases stand
        until it was silent for too long."""
        if (site := self._sites.get(name)) is not None:
            site.doing = "not connected"
            self._sites.forget(name)

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

    def _forget(self, one: LeaseId) -> None:
        """Settle a lease that never began: it is no lost attempt, but a driver that goes on with
        this run must not wait for it."""
        self._keeping.forget(self._trials[one.trial], one.attempt)

    def _fail(self, one: LeaseId, error: str, now: float, *, again: bool) -> None:
        trial, attempt = self._trials[one.trial], one.attempt
        self._emit(
            AttemptFailed(time=now, lane=0, trial=trial, attempt=attempt, error=error, again=again)
        )

    def note(self, text: str) -> None:
        """Tell readers a sentence for people."""
        self._emit(Noted(text=text))

    def _emit(self, event: Event) -> None:
        try:
            for reader in hearers(self._work.readers, type(event)):
                reader.on(event)
        except Exception as error:
            self.failure = error
            raise
