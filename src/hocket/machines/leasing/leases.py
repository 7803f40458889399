"""Who runs which trial, until when, and whose episode counts. Time is an argument, in seconds.

A lease is an attempt at a trial by one site. Its number is never used again. It stands until its
episode is accepted, it is given back, or its deadline passes without a sign of life from the site.
Only an episode under a lease that stands counts. A lost machine spends no retry.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from hocket.core.data import Trial
from hocket.machines.leasing.expectations import SLOW, Expectations, SitePace, Task
from hocket.machines.leasing.lease import Lease, LeaseId, SealVerdict
from hocket.machines.leasing.waiting import WaitingTrials

AHEAD = 0.25
"""Trials that wait at a site, as a share of its lanes: no lane waits for the network."""


@dataclass(slots=True)
class _Site:
    lanes: int
    heard: float
    pace: SitePace
    held: set[LeaseId] = field(default_factory=set)
    tasks: Counter[Task] = field(default_factory=Counter)
    """How many of its leases are of each task."""
    begun: int = 0
    """How many of its leases have begun."""

    @property
    def room(self) -> int:
        return self.lanes - len(self.held)


@dataclass(slots=True)
class _Trial:
    task: Task
    next_attempt: int
    failures: int = 0
    is_leased: bool = False
    counts: int | None = None
    """The attempt that ended the trial."""

    @property
    def is_done(self) -> bool:
        return self.counts is not None


class LeaseBook:
    """The leases of a run. One owner calls it."""

    def __init__(self, *, lease_s: float = 30.0, retries: int = 2, in_order: bool = False) -> None:
        """A lease ends when its site was silent for `lease_s`. `retries`: more attempts at a trial
        whose attempt failed at a site. `in_order` begins trials in planned order, rather than in
        the order that ends the run soonest: for runs that are planned as they go."""
        self._lease_s = lease_s
        self._retries = retries
        self.late = 0
        """Episodes that came too late to count."""
        self._trials: list[_Trial] = []
        self._expected = Expectations()
        self._waiting = WaitingTrials(self._expected, in_order=in_order)
        self._leases: dict[LeaseId, Lease] = {}
        self._sites: dict[str, _Site] = {}
        self._begun = 0
        """How many of all leases have begun."""
        self._left = 0
        self._lanes = 0

    # -- the plan ------------------------------------------------------------------------------

    def add(
        self,
        trials: Iterable[Trial],
        attempts: Mapping[str, int] | None = None,
        done: Mapping[str, int] | None = None,
    ) -> None:
        """Plan trials, after those that are planned. `attempts`: trial id to its next attempt
        number; `done`: trial id to the attempt that counted."""
        for trial in trials:
            known = _Trial((trial.suite, trial.task), (attempts or {}).get(trial.id, 0))
            known.counts = (done or {}).get(trial.id)
            self._trials.append(known)
            if not known.is_done:
                self._waiting.add(len(self._trials) - 1, known.task)
                self._left += 1

    @property
    def is_done(self) -> bool:
        """True when every trial has its episode."""
        return not self._left

    @property
    def lanes(self) -> int:
        """Lanes of all sites together."""
        return self._lanes

    @property
    def waiting(self) -> int:
        """Trials that no site has."""
        return len(self._waiting)

    def lease(self, name: LeaseId) -> Lease | None:
        """A lease that stands."""
        return self._leases.get(name)

    def running(self, site: str) -> int:
        """Attempts that a site has begun and not ended."""
        known = self._sites.get(site)
        return 0 if known is None else known.begun

    def is_short(self, site: str) -> bool:
        """True when a site has used up more than half of what may wait there, or has a lane without
        a lease."""
        known = self._sites.get(site)
        return known is not None and 2 * known.room + self._depth(known) > 0

    # -- sites ---------------------------------------------------------------------------------

    def join(self, site: str, lanes: int, now: float) -> None:
        """Let a site take part that runs `lanes` episodes at once."""
        known = self._know(site, now)
        self._lanes += lanes - known.lanes
        known.lanes, known.heard = lanes, now

    def _know(self, site: str, now: float) -> _Site:
        if site not in self._sites:
            self._sites[site] = _Site(0, now, self._expected.join())
        return self._sites[site]

    def hear(self, site: str, now: float) -> None:
        """Extend all leases of a site that has given a sign of life."""
        if site in self._sites:
            self._sites[site].heard = now

    def stand(self, name: LeaseId, site: str, now: float) -> None:
        """Let a lease stand that an earlier driver granted."""
        trial = self._trials[name.trial]
        if trial.is_done or trial.is_leased:
            return
        self._waiting.discard(name.trial, trial.task)
        self._know(site, now)
        self._enter(Lease(name, site, now, has_begun=True))

    def move(self, name: LeaseId, site: str) -> None:
        """Give a standing lease to another site, which has turned out to hold it."""
        lease = self._leases[name]
        self._unhold(lease)
        lease.site = site
        self._hold(lease)

    def held(self, site: str) -> set[LeaseId]:
        """The leases of a site that stand."""
        known = self._sites.get(site)
        return set() if known is None else set(known.held)

    def leave(self, site: str) -> list[Lease]:
        """End the leases of a site that is gone for good, and give them."""
        gone = self._sites.pop(site, None)
        if gone is None:
            return []
        self._lanes -= gone.lanes
        self._expected.leave(gone.pace)
        lost = [self._leases[name] for name in sorted(gone.held)]
        for lease in reversed(lost):
            self._drop(lease.id)
        return lost

    def expire(self, now: float) -> dict[str, list[Lease]]:
        """End the leases of sites that were silent for too long, and give them by site."""
        silent = [s for s, at in self._sites.items() if now - at.heard > self._lease_s]
        return {site: self.leave(site) for site in silent}

    # -- granting ------------------------------------------------------------------------------

    def grant(self, now: float, only: Collection[str] | None = None) -> list[Lease]:
        """New leases for sites that have room, among those in `only` where it is given. This uses
        their numbers up."""
        if not self._waiting:
            return []
        sites = self._sites
        names = [name for name in (sites if only is None else only) if name in sites]
        names.sort(key=lambda name: -sites[name].room)
        granted: list[Lease] = []
        self._waiting.look(self._lanes)
        # First every lane gets a trial, the emptiest site first; then sites get trials that wait.
        for is_ahead in (False, True):
            for name in names:
                site = sites[name]
                pace = self._expected.relative(site.pace)
                # What waits at a slow site begins later than it was chosen for.
                may_wait = pace < SLOW or not self._waiting.is_near(pace)
                room = site.room + (self._depth(site) if is_ahead and may_wait else 0)
                for _ in range(min(room, len(self._waiting))):
                    trial = self._waiting.take(site.tasks, pace)
                    granted.append(self._grant(trial, name, now))
        return granted

    def _depth(self, site: _Site) -> int:
        """How many trials may wait at a site for a lane: none once all lanes could have them."""
        idle = max(0, self._lanes - len(self._leases))
        return math.ceil(site.lanes * AHEAD) if self.waiting - idle > self._lanes else 0

    def _grant(self, trial: int, site: str, now: float) -> Lease:
        known = self._trials[trial]
        lease = Lease(LeaseId(trial, known.next_attempt), site, now)
        known.next_attempt += 1
        self._enter(lease)
        return lease

    def regrant(self, trial: int, site: str, now: float) -> Lease | None:
        """A new lease for the site that lost one without blame, ahead of others: only that site
        knows which row made the policy raise."""
        known = self._trials[trial]
        if site not in self._sites or known.is_done:
            return None
        self._waiting.discard(trial, known.task)
        return self._grant(trial, site, now)

    def ask_back(self) -> list[Lease]:
        """Leases that their sites have not begun while lanes elsewhere are idle: to be asked back.
        The site may have begun meanwhile, and then keeps them."""
        if self._waiting or self._begun == len(self._leases):
            return []
        idle = sum(max(0, site.room) for site in self._sites.values())
        asked: list[Lease] = []
        for site in self._sites.values():
            extra = -site.room
            if extra <= 0 or len(asked) >= idle:
                continue
            unbegun = [
                lease
                for name in site.held
                if not (lease := self._leases[name]).has_begun and not lease.is_asked_back
            ]
            unbegun.sort(key=lambda lease: (lease.granted, lease.id), reverse=True)
            asked += unbegun[: min(extra, idle - len(asked))]
        for lease in asked:
            lease.is_asked_back = True
        return asked

    # -- what sites say ------------------------------------------------------------------------

    def began(self, name: LeaseId) -> None:
        lease = self._leases.get(name)
        if lease is not None and not lease.has_begun:
            lease.has_begun = True
            self._begun += 1
            if lease.site in self._sites:
                self._sites[lease.site].begun += 1

    def give_back(self, name: LeaseId, *, spends: bool) -> bool:
        """Take back a lease whose attempt failed (which spends a retry), was not to blame or never
        began. True where its trial's retries are used up, so that it ends as an ERROR."""
        if name not in self._leases:
            return False
        trial = self._trials[name.trial]
        trial.failures += spends
        is_final = spends and trial.failures > self._retries
        if is_final:
            self._win(name)
        else:
            self._drop(name)
        return is_final

    def seal(self, name: LeaseId, seconds: float) -> SealVerdict:
        """End a lease by its episode, which is here with its files and took `seconds`: the episode
        counts, is known already, or is late."""
        lease, trial = self._leases.get(name), self._trials[name.trial]
        if trial.counts == name.attempt:
            return "known"
        if lease is None:
            self.late += 1
            return "late"
        if (site := self._sites.get(lease.site)) is not None:
            self._expected.add(trial.task, seconds, site.pace)
        self._win(name)
        return "counts"

    def _win(self, name: LeaseId) -> None:
        """End the trial with this lease, which stands no more."""
        self._remove(name)
        self._trials[name.trial].counts = name.attempt
        self._left -= 1

    # -- books ---------------------------------------------------------------------------------

    def _enter(self, lease: Lease) -> None:
        self._leases[lease.id] = lease
        self._begun += lease.has_begun
        self._hold(lease)
        self._trials[lease.id.trial].is_leased = True

    def _remove(self, name: LeaseId) -> None:
        lease = self._leases.pop(name)
        self._begun -= lease.has_begun
        self._trials[name.trial].is_leased = False
        self._unhold(lease)

    def _hold(self, lease: Lease) -> None:
        site = self._sites[lease.site]
        site.held.add(lease.id)
        site.tasks[self._trials[lease.id.trial].task] += 1
        site.begun += lease.has_begun

    def _unhold(self, lease: Lease) -> None:
        site = self._sites.get(lease.site)
        if site is not None and lease.id in site.held:
            site.held.remove(lease.id)
            task = self._trials[lease.id.trial].task
            site.tasks[task] -= 1
            if not site.tasks[task]:
                del site.tasks[task]
            site.begun -= lease.has_begun

    def _drop(self, name: LeaseId) -> None:
        """End a lease without an episode; its trial waits again."""
        self._remove(name)
        self._waiting.add(name.trial, self._trials[name.trial].task, first=True)
