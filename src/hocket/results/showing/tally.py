"""What the events of a run add up to, for whoever shows it while it goes on."""

from __future__ import annotations

import time
from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hocket.core.data import Episode, Outcome
from hocket.core.events import (
    AttemptFailed,
    BatchInferred,
    ChunksExecuted,
    EpisodeFilmed,
    EpisodesEnded,
    EpisodesSealed,
    Event,
    LanesReady,
    RunEnded,
    RunStarted,
    SitesChanged,
    SiteState,
    TrialsPlanned,
    WorkDone,
    WorkerChanged,
)
from hocket.results import stats
from hocket.results.scores import VALUES, rate_of_trials
from hocket.results.throughput import Throughput
from hocket.system import machine

_NO_PART = -1.0
"""The value of a trial that is no part of a rate."""
_CPU_EVERY_S = 2.0
_LEAST_CPU_S = 0.2
"""Processor time is counted in hundredths of a second for each process: less tells nothing."""
WINDOW_S = 10.0
"""Current speeds cover this many seconds, so that a slow start does not weigh on them for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a run goes now; shares of busy time are 0 to 1."""

    steps_per_s: float
    episodes_per_s: float
    mean_batch: float | None
    cores_busy: float | None
    """None where the workers' processor time is not known."""
    policy_busy: float


class _Moment(NamedTuple):
    """What had been done at a time, and how many trials had ended."""

    time: float
    work: WorkDone
    episodes: int
    cpu: tuple[float, float] | None
    """Processor seconds of this process and all below it, and when they were looked at."""


class Tally:
    """A reader that adds up a run's events."""

    def __init__(self) -> None:
        self._concurrency = 1
        """Batches that can be inferred at once."""
        self.phase = "preparing"
        self.planned = 0
        self.lanes = 0
        self.cores = 1
        self.lanes_up = 0
        """Lanes whose worker is up."""
        self.outcomes: Counter[Outcome] = Counter()
        """Counts the trials that have ended, those of earlier parts of the run included."""
        self.carried = 0
        """Episodes that an earlier part of the run ended: done, but they say nothing of speed."""
        self.failed_attempts = 0
        self.rendered = (0, 0)
        """Episodes that have their video, and all that are to have one, once the run has ended."""
        self.complete = False
        self.sites: Sequence[SiteState] = ()
        """The machines, where the run is on several."""
        self._sealed: dict[str, Episode] = {}
        self._unsealed: dict[str, tuple[Outcome, int]] = {}
        """Trials that ended and whose files are not sealed: what they recorded may yet be lost, and
        then they run again. Beside the outcome stands which of the values below is its own."""
        self._values, self._tasks, self._seeds = array("d"), array("q"), array("q")
        """What each trial that ended counts in a rate, its task and its seed."""
        self._numbers: dict[tuple[str, str], int] = {}
        self._independent = False
        self._rate, self._rated = stats.rate(0, 0), (0, 0)
        self._began: float | None = None
        """When the first batch was sent to the policy, or a site was first known to run something:
        speeds count from here."""
        self._last = 0.0
        """When a batch or a chunk was last done; waiting for files at the end is no work."""
        self._now = 0.0
        self.work = WorkDone()
        """What was done in this part of the run."""
        self._recent: deque[_Moment] = deque()
        self._counts_cpu = False
        self._cpu: tuple[float, float] | None = None
        self._cpu_began: tuple[float, float] | None = None

    def on(self, event: Event) -> None:
        if isinstance(event, BatchInferred):
            if self._began is None:
                self._began, self.phase = event.began, "running"
                self._look_at_cpu()
                self._cpu_began = self._cpu
            self._mark(event.time)
            work = self.work
            self.work = WorkDone(
                work.steps,
                work.executed,
                work.delivered + len(event.delivered) - event.delivered.count(None),
                work.batches + 1,
                work.worked_s,
                work.inferred_s + (event.ended - event.began),
            )
        elif isinstance(event, ChunksExecuted):
            self._mark(event.time)
            work = self.work
            self.work = WorkDone(
                work.steps + sum(event.steps),
                work.executed + len(event.lanes),
                work.delivered,
                work.batches,
                work.worked_s + sum(event.busy),
                work.inferred_s,
            )
        elif isinstance(event, EpisodesEnded):
            self._now = max(self._now, event.time)
            for episode in event.episodes:
                self._unsealed[episode.trial.id] = (episode.outcome, len(self._values))
                self._count(episode)
        elif isinstance(event, EpisodesSealed):
            for episode in event.episodes:
                self._unsealed.pop(episode.trial.id, None)
                self._sealed[episode.trial.id] = episode
        elif isinstance(event, AttemptFailed):
            self.failed_attempts += 1
            if (lost := self._unsealed.pop(event.trial.id, None)) is not None:
                self.outcomes[lost[0]] -= 1
                self._values[lost[1]] = _NO_PART
        elif isinstance(event, LanesReady) and self._began is None:
            self.phase = "warming up the policy"
        elif isinstance(event, WorkerChanged):
            change = {"up": 1, "lost": -1, "recycled": -1}.get(event.state, 0)
            self.lanes_up += change * len(event.lanes)
        elif isinstance(event, RunStarted):
            self._start(event)
        elif isinstance(event, TrialsPlanned):
            self.planned += len(event.trials)
        elif isinstance(event, RunEnded):
            self._look_at_cpu()
            self.complete = event.complete
            self.phase = "done" if event.complete else "interrupted"
        elif isinstance(event, SitesChanged):
            self._hear_sites(event)
        elif isinstance(event, EpisodeFilmed):
            self.phase, self.rendered = "filming", (event.done, event.total)

    def close(self) -> None: ...

    @property
    def episodes(self) -> Sequence[Episode]:
        """All that have ended and whose files are sealed, earlier parts of the run included."""
        return list(self._sealed.values())

    @property
    def done(self) -> int:
        return sum(self.outcomes.values())

    @property
    def rate(self) -> stats.Rate:
        """That of the report, reckoned anew when a hundredth more trials have ended."""
        state, known = (self.done, self.failed_attempts), self._rated[0]
        if state != self._rated and (self.done in (known, self.planned) or self._is_due):
            columns = (self._values, self._tasks, self._seeds)
            values, tasks, seeds = (np.array(column) for column in columns)
            has_part = values != _NO_PART
            self._rate = rate_of_trials(
                values[has_part], tasks[has_part], seeds[has_part], independent=self._independent
            )
            self._rated = state
        return self._rate

    @property
    def _is_due(self) -> bool:
        return abs(self.done - self._rated[0]) * 100 >= self.done

    @property
    def left_s(self) -> float | None:
        """Seconds until the planned trials are done, at the pace since the first batch."""
        ended_here = self.done - self.carried
        if self._began is None or self._now <= self._began or not ended_here:
            return None
        return (self._now - self._began) / ended_here * (self.planned - self.done)

    def speed(self) -> Speed | None:
        """The speed of the last WINDOW_S seconds; None before there is anything to tell."""
        span = self._now - self._recent[0].time if len(self._recent) > 1 else 0.0
        if span <= 0:
            return None
        (_, before, episodes, _), now = self._recent[0], self.work
        batches = now.batches - before.batches
        inferred_s = now.inferred_s - before.inferred_s
        return Speed(
            steps_per_s=(now.steps - before.steps) / span,
            episodes_per_s=(self.done - episodes) / span,
            mean_batch=(now.delivered - before.delivered) / batches if batches else None,
            cores_busy=self._cores_busy(self._recent[0].cpu),
            policy_busy=min(1.0, inferred_s / span / self._concurrency),
        )

    def throughput(self) -> Throughput:
        """What was done, over the time from the first batch to the last executed chunk."""
        total = self.work
        wall_s = max(0.0, self._last - (self._began or 0.0))
        return Throughput(
            env_steps=total.steps,
            chunks=total.executed,
            batches=total.batches,
            policy_busy=_share(total.inferred_s, wall_s * self._concurrency),
            cores_busy=self._cores_busy(self._cpu_began),
            worked_s=total.worked_s,
            wall_s=wall_s,
            lanes=self.lanes,
            cores=self.cores,
            failed_attempts=self.failed_attempts,
        )

    def _start(self, event: RunStarted) -> None:
        self.phase, self.planned = "starting workers", len(event.trials)
        self.lanes, self.cores = event.lanes, event.cores
        self._concurrency = event.policy.concurrency
        self.carried = len(event.done)
        self._independent, self._counts_cpu = event.independent_starts, event.counts_cpu
        for episode in event.done:
            self._count(episode)
        self._sealed.update({episode.trial.id: episode for episode in event.done})

    def _look_at_cpu(self) -> None:
        spent = machine.cpu_s() if self._counts_cpu else None
        self._cpu = None if spent is None else (spent, time.perf_counter())

    def _cores_busy(self, since: tuple[float, float] | None) -> float | None:
        """The share of the cores' time that this process and all below it used since then."""
        if since is None or self._cpu is None or self._cpu[1] - since[1] < _LEAST_CPU_S:
            return None
        (before, began), (after, at) = since, self._cpu
        return min(1.0, max(0.0, after - before) / (at - began) / machine.cores())

    def _count(self, episode: Episode) -> None:
        self.outcomes[episode.outcome] += 1
        trial = episode.trial
        self._values.append(VALUES.get(episode.outcome, _NO_PART))
        self._tasks.append(self._numbers.setdefault((trial.suite, trial.task), len(self._numbers)))
        self._seeds.append(trial.seed)

    def _hear_sites(self, event: SitesChanged) -> None:
        self.sites = event.sites
        self.lanes = self.lanes_up = sum(site.lanes for site in event.sites)
        self.cores = max(1, sum(site.cores for site in event.sites))
        self._concurrency = max(1, len(event.sites))
        self.work = event.done
        # What they did is heard of later than that they began.
        if self._began is None and any(site.running for site in event.sites):
            self._began = event.time
        if event.done.batches:
            self.phase = "running"
            self._mark(event.time)

    def _mark(self, at: float) -> None:
        """Remember the sums twice a second; older ones fall out of the window."""
        self._last = at
        self._now = max(self._now, at)
        if not self._recent or at - self._recent[-1].time > 0.5:
            if self._cpu is not None and time.perf_counter() - self._cpu[1] > _CPU_EVERY_S:
                self._look_at_cpu()
            self._recent.append(_Moment(at, self.work, self.done, self._cpu))
            while self._recent[0].time < at - WINDOW_S:
                self._recent.popleft()


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0 else None
