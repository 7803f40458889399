"""Who runs which trial, until when, and whose episode counts. Time is an argument, in seconds.

A lease is an attempt at a trial by one site. Its number is never used again. It stands until its
episode is accepted, it is given back, or its deadline passes without a sign of life from the site.
Only an episode under a lease that stands counts. A lost machine spends no retry.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hocket.core.data import Trial
from hocket.machines.leasing.expectations import SLOW, Expectations, Pace, Task
from hocket.machines.leasing.lease import GivenBack, Lease, LeaseConfig, LeaseId, SealVerdict
from hocket.machines.leasing.waiting import WaitingTrials


@dataclass(slots=True)
class _Site:
    lanes: int
    heard: float
    pace: Pace
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
    leases: list[LeaseId] = field(default_factory=list)
    """Those that stand, the eldest first."""
    counts: int | None = None
    """The attempt that ended the trial."""

    @property
    def is_done(self) -> bool:
        return self.counts is not None


class LeaseBook:
    """The leases of a run. One owner calls it."""

    def __init__(self, config: LeaseConfig) -> None:
        self.config = config
        self._has_copies = config.second_copies
        self.late = 0
        """Episodes that came too late to count."""
        self._trials: list[_Trial] = []
        self._expected = Expectations()
        self._waiting = WaitingTrials(self._expected, in_order=config.in_order)
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
        """Plan trials, after those that are planned. By trial id, `attempts` has the number of the
        next attempt at those that have had some, and `done` that of the one that counts."""
        for trial in trials:
            known = _Trial((trial.suite, trial.task), (attempts or {}).get(trial.id, 0))
            known.counts = (done or {}).get(trial.id)
            self._trials.append(known)
            if not known.is_done:
                self._waiting.add(len(self._trials) - 1, known.task)
                self._left += 1

    @property
    def is_done(self) -> bool:
        """Whether every trial has its episode."""
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
        """Whether a site has used up more than half of what may wait there, or has a lane without
        a lease."""
        known = self._sites.get(site)
        return known is not None and 2 * known.room + self._depth(known) > 0

    # -- sites ---------------------------------------------------------------------------------

    def join(self, site: str, lanes: int, now: float) -> None:
        """A site is ready for so many episodes at once."""
        known = self._know(site, now)
        self._lanes += lanes - known.lanes
        known.lanes, known.heard = lanes, now

    def _know(self, site: str, now: float) -> _Site:
        if site not in self._sites:
            self._sites[site] = _Site(0, now, self._expected.join())
        return self._sites[site]

    def hear(self, site: str, now: float) -> None:
        """A site has given a sign of life: all its leases are extended."""
        if site in self._sites:
            self._sites[site].heard = now

    def stand(self, name: LeaseId, site: str, now: float) -> None:
        """Let a lease stand that an earlier driver granted."""
        trial = self._trials[name.trial]
        if trial.is_done or name in self._leases:
            return
        self._waiting.discard(name.trial, trial.task)
        self._know(site, now)
        self._enter(Lease(name, site, now, has_begun=True))

    def move(self, name: LeaseId, site: str) -> None:
        """Let a standing lease be another site's, which has turned out to hold it."""
        lease = self._leases[name]
        self._unhold(lease)
        lease.site = site
        self._hold(lease)

    def held(self, site: str) -> set[LeaseId]:
        """The leases of a site that stand."""
        known = self._sites.get(site)
        return set() if known is None else set(known.held)

    def leave(self, site: str) -> list[Lease]:
        """A site is gone for good; returns its leases, which stand no more. Those whose episodes
        are here stand on."""
        gone = self._sites.pop(site, None)
        if gone is None:
            return []
        self._lanes -= gone.lanes
        self._expected.leave(gone.pace)
        held = sorted(gone.held)
        lost = [lease for name in held if not (lease := self._leases[name]).is_sealed]
        for lease in reversed(lost):
            self._drop(lease.id)
        return lost

    def expire(self, now: float) -> dict[str, list[Lease]]:
        """The sites that have not been heard of for too long, with the leases they lose."""
        silent = [s for s, at in self._sites.items() if now - at.heard > self.config.lease_s]
        return {site: self.leave(site) for site in silent}

    # -- granting ------------------------------------------------------------------------------

    def grant(self, now: float, only: Collection[str] | None = None) -> list[Lease]:
        """New leases for sites that have room, or for some of them alone. Their numbers are used
        up by this."""
        if not self._waiting:
            return []
        sites = self._sites
        names = [name for name in (sites if only is None else only) if name in sites]
        names.sort(key=lambda name: -sites[name].room)
        granted: list[Lease] = []
        self._waiting.look(self._lanes)
        # First every lane gets its episode, the emptiest site first; what waits is spread after.
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
        return math.ceil(site.lanes * self.config.ahead) if self.waiting - idle > self._lanes else 0

    def _grant(self, trial: int, site: str, now: float) -> Lease:
        known = self._trials[trial]
        lease = Lease(LeaseId(trial, known.next_attempt), site, now)
        known.next_attempt += 1
        self._enter(lease)
        return lease

    def regrant(self, trial: int, site: str, now: float) -> Lease | None:
        """A new lease for the site that lost one without blame, ahead of others: only there is it
        known which row made the policy raise."""
        known = self._trials[trial]
        if site not in self._sites or known.is_done:
            return None
        self._waiting.discard(trial, known.task)
        return self._grant(trial, site, now)

    def copy(self, now: float) -> list[Lease]:
        """Second leases of trials that others run, for idle sites, where nothing else is left."""
        if self._waiting or not self._left or not self._has_copies:
            return []
        alone = sorted(
            (lease.granted, lease.id)
            for lease in self._leases.values()
            if lease.has_begun and len(self._trials[lease.id.trial].leases) == 1
        )
        copies: list[Lease] = []
        for name, site in self._sites.items():
            mine = [one for _, one in alone if self._leases[one].site != name]
            mine = mine[: max(0, site.room)]
            alone = [(at, one) for at, one in alone if one not in mine]
            copies += [self._grant(one.trial, name, now) for one in mine]
        return copies

    def end_copies(self) -> None:
        """Grant no second leases from now on: results are not the same to the bit."""
        self._has_copies = False

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

    def give_back(self, name: LeaseId, *, spends: bool) -> GivenBack | None:
        """A site gives a lease back: the attempt failed (which spends a retry), or it was not to
        blame or never begun. None where the lease stands no more."""
        if name not in self._leases:
            return None
        trial = self._trials[name.trial]
        trial.failures += spends
        if spends and trial.failures > self.config.retries and len(trial.leases) == 1:
            self._win(name)
            return GivenBack(is_final=True)
        self._drop(name)
        return GivenBack(is_final=False, wins=self._heir(name.trial))

    def seal(self, name: LeaseId, seconds: float) -> SealVerdict:
        """The episode of a lease is here, with its files. It counts, waits for an elder lease of
        the same trial to end, is known already, or is late. `seconds` is how long it took."""
        lease, trial = self._leases.get(name), self._trials[name.trial]
        if trial.counts == name.attempt or (lease is not None and lease.is_sealed):
            return "known"
        if lease is None:
            self.late += 1
            return "late"
        if (site := self._sites.get(lease.site)) is not None:
            self._expected.add(trial.task, seconds, site.pace)
        if trial.leases[0] != name:
            lease.is_sealed = True
            return "waits"
        self._win(name)
        return "counts"

    def heirs(self, lost: Sequence[Lease]) -> list[LeaseId]:
        """Leases whose episodes are here and count, now that these stand no more."""
        found = [self._heir(lease.id.trial) for lease in lost]
        return [name for name in found if name is not None]

    def _heir(self, trial: int) -> LeaseId | None:
        leases = self._trials[trial].leases
        if not leases or not self._leases[leases[0]].is_sealed:
            return None
        winner = leases[0]
        self._win(winner)
        return winner

    def _win(self, winner: LeaseId) -> None:
        """End the trial with this lease; no lease of it stands any more."""
        trial = self._trials[winner.trial]
        assert not trial.is_done
        for name in list(trial.leases):
            self._remove(name)
        trial.counts = winner.attempt
        self._left -= 1

    # -- books ---------------------------------------------------------------------------------

    def _enter(self, lease: Lease) -> None:
        self._leases[lease.id] = lease
        self._begun += lease.has_begun
        self._hold(lease)
        self._trials[lease.id.trial].leases.append(lease.id)

    def _remove(self, name: LeaseId) -> None:
        lease = self._leases.pop(name)
        self._begun -= lease.has_begun
        self._trials[name.trial].leases.remove(name)
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
        """End a lease without an episode; its trial waits again, unless another lease stands."""
        self._remove(name)
        trial = self._trials[name.trial]
        if not trial.leases and not trial.is_done:
            self._waiting.add(name.trial, trial.task, first=True)
