"""Who runs which trial, until when, and whose episode counts. Time is an argument, in seconds.

A lease is an attempt at a trial by one site. Its number is never used again. It stands until its
episode is accepted, it is given back, or its deadline passes without a sign of life from the site.
Only an episode under a lease that stands counts. A lost machine spends no retry.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from hocket.core.data import Trial
from hocket.machines.leasing.entries import (
    SLOW,
    Expectations,
    Lease,
    LeaseId,
    SiteEntry,
    TrialEntry,
    WaitingTrials,
)

SICK = 3
"""Trials that failed at a site and ended elsewhere, before any ended there, for it to be blamed."""
_CHANCE = 1e-6
"""How unlikely so many failures in a row must be, as often as attempts fail otherwise."""
AHEAD = 0.25
"""Trials that wait at a site, as a share of its lanes: no lane waits for the network."""
SealVerdict = Literal["counts", "known", "late"]


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
        self._trials: list[TrialEntry] = []
        self._expected = Expectations()
        self._waiting = WaitingTrials(self._expected, in_order=in_order)
        self._apart: dict[int, None] = {}
        """Trials that have failed at some sites, and wait for another."""
        self._spent: dict[int, LeaseId] = {}
        """Those of them whose retries are used up, at sites where nothing has ever ended: each with
        its last attempt."""
        self._leases: dict[LeaseId, Lease] = {}
        self._sites: dict[str, SiteEntry] = {}
        self._begun = 0
        """How many of all leases have begun."""
        self._left = self._lanes = 0
        self._failures = self._sealed = 0
        """Attempts that have failed, and episodes."""

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
            known = TrialEntry((trial.suite, trial.task), (attempts or {}).get(trial.id, 0))
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
        return len(self._waiting) + len(self._apart)

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

    def _know(self, site: str, now: float) -> SiteEntry:
        if site not in self._sites:
            self._sites[site] = SiteEntry(0, now, self._expected.join())
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
        self._take_out(name.trial)
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
        if not self.waiting:
            return []
        sites = self._sites
        names = [name for name in (sites if only is None else only) if name in sites]
        names.sort(key=lambda name: -sites[name].room)
        granted = self._grant_apart(names, now)
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

    def _grant_apart(self, names: Iterable[str], now: float) -> list[Lease]:
        """Leases for trials that have failed, at sites where they have not, or anywhere if there is
        no such site."""
        granted = []
        for trial in list(self._apart):
            failed_at = self._trials[trial].failed_at
            has_other = trial in self._spent or self._is_open(trial)
            for name in names:
                if self._sites[name].room > 0 and not (has_other and name in failed_at):
                    del self._apart[trial]
                    granted.append(self._grant(trial, name, now))
                    break
        return granted

    def _is_open(self, trial: int) -> bool:
        """True when there is a site at which a trial has not failed."""
        failed_at = self._trials[trial].failed_at
        return any(site.lanes and name not in failed_at for name, site in self._sites.items())

    def _take_out(self, trial: int) -> None:
        """Let a trial wait no more."""
        self._apart.pop(trial, None)
        self._waiting.discard(trial, self._trials[trial].task)

    def _depth(self, site: SiteEntry) -> int:
        """How many trials may wait at a site for a lane: none once all lanes could have them."""
        idle = max(0, self._lanes - len(self._leases))
        return math.ceil(site.lanes * AHEAD) if self.waiting - idle > self._lanes else 0

    def _grant(self, trial: int, site: str, now: float) -> Lease:
        known = self._trials[trial]
        self._spent.pop(trial, None)
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
        self._take_out(trial)
        return self._grant(trial, site, now)

    def ask_back(self) -> list[Lease]:
        """Leases that their sites have not begun while lanes elsewhere are idle: to be asked back.
        The site may have begun meanwhile, and then keeps them."""
        if self.waiting or self._begun == len(self._leases):
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
        trial, site = self._trials[name.trial], self._leases[name].site
        if spends:
            trial.failed_at[site] += 1
            self._failures += 1
            self._sites[site].failed += 1
        is_final = spends and trial.failed_at.total() > self._retries
        if is_final and not self._is_proven(trial):
            self._spent[name.trial], is_final = name, False
        if is_final:
            self._win(name)
        else:
            self._drop(name)
        return is_final

    def _is_proven(self, trial: TrialEntry) -> bool:
        """True when it has failed at a site where others have ended."""
        at = trial.failed_at.keys() & self._sites.keys()
        return any(self._sites[site].is_proven for site in at)

    def is_spent(self, trial: int) -> bool:
        """True while `spent` will end the trial, unless another site does."""
        return trial in self._spent

    def spent(self, *, is_last: bool) -> list[LeaseId]:
        """End trials whose retries are used up, once that is not their sites' fault, or all of them
        where it `is_last`: nobody else will try. Gives their last attempts."""
        found = []
        for trial, last in list(self._spent.items()):
            known = self._trials[trial]
            if is_last or self._is_proven(known):
                del self._spent[trial], self._apart[trial]
                known.counts = last.attempt
                self._left -= 1
                found.append(last)
        return found

    def barren(self) -> list[str]:
        """The sites that are here when all that is left to do has failed wherever it could be tried
        and nothing has ever ended there: the fault may be theirs."""
        if self._leases or len(self._spent) < max(1, self.waiting):
            return []
        if any(self._is_open(one) or self._is_proven(self._trials[one]) for one in self._spent):
            return []
        return [name for name, site in self._sites.items() if site.lanes]

    def forgive(self, site: str) -> None:
        """Give trials the retries back that were spent at a site which is to blame itself."""
        for index, trial in enumerate(self._trials):
            del trial.failed_at[site]
            if trial.failed_at.total() <= self._retries:
                self._spent.pop(index, None)

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
            site.failed, site.refuted, site.is_proven = 0, 0, True
            self._sealed += 1
        for other in trial.failed_at.keys() & self._sites.keys() - {lease.site}:
            self._sites[other].refuted += 1
        self._win(name)
        return "counts"

    def sick(self) -> list[str]:
        """Sites at which attempts only fail, at trials that end elsewhere."""
        found = []
        for name, site in self._sites.items():
            if site.refuted >= SICK and site.failed >= site.lanes:
                others = self._failures - site.failed + 1
                if (others / (others + self._sealed + 1)) ** site.failed < _CHANCE:
                    found.append(name)
        return found

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
        trial = self._trials[name.trial]
        if trial.failed_at:
            self._apart[name.trial] = None
        else:
            self._waiting.add(name.trial, trial.task, first=True)
