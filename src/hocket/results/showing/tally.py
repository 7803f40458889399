"""What the events of a run add up to, for whoever shows it while it goes on."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
from hocket.results.report import Throughput

WINDOW_S = 10.0
"""Current speeds cover this many seconds, so that a slow start does not weigh on them for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a run goes now; shares of busy time are 0 to 1."""

    steps_per_s: float
    episodes_per_s: float
    mean_batch: float | None
    cores_busy: float
    policy_busy: float


class _Moment(NamedTuple):
    """What had been done at a time, and how many trials had ended."""

    time: float
    work: WorkDone
    episodes: int


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
        self._unsealed: dict[str, Outcome] = {}
        """Trials that ended and whose files are not sealed: what they recorded may yet be lost, and
        then they run again."""
        self._began: float | None = None
        """When the first batch was sent to the policy, or a site was first known to run something:
        speeds count from here."""
        self._last = 0.0
        """When a batch or a chunk was last done; waiting for files at the end is no work."""
        self._now = 0.0
        self.work = WorkDone()
        """What was done in this part of the run."""
        self._recent: deque[_Moment] = deque()

    def on(self, event: Event) -> None:
        if isinstance(event, BatchInferred):
            if self._began is None:
                self._began, self.phase = event.began, "running"
            self._mark(event.time)
            work = self.work
            self.work = work._replace(
                delivered=work.delivered + len(event.delivered) - event.delivered.count(None),
                batches=work.batches + 1,
                inferred_s=work.inferred_s + (event.ended - event.began),
            )
        elif isinstance(event, ChunksExecuted):
            self._mark(event.time)
            work = self.work
            self.work = work._replace(
                executed=work.executed + len(event.lanes),
                steps=work.steps + sum(event.steps),
                worked_s=work.worked_s + sum(event.busy),
            )
        elif isinstance(event, EpisodesEnded):
            self._now = max(self._now, event.time)
            self.outcomes.update(episode.outcome for episode in event.episodes)
            self._unsealed.update({e.trial.id: e.outcome for e in event.episodes})
        elif isinstance(event, EpisodesSealed):
            for episode in event.episodes:
                self._unsealed.pop(episode.trial.id, None)
                self._sealed[episode.trial.id] = episode
        elif isinstance(event, AttemptFailed):
            self.failed_attempts += 1
            if (lost := self._unsealed.pop(event.trial.id, None)) is not None:
                self.outcomes[lost] -= 1
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
        won = self.outcomes[Outcome.SUCCESS]
        return stats.rate(
            won, won + self.outcomes[Outcome.FAILURE], errors=self.outcomes[Outcome.ERROR]
        )

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
        (_, before, episodes), now = self._recent[0], self.work
        batches = now.batches - before.batches
        inferred_s = now.inferred_s - before.inferred_s
        return Speed(
            steps_per_s=(now.steps - before.steps) / span,
            episodes_per_s=(self.done - episodes) / span,
            mean_batch=(now.delivered - before.delivered) / batches if batches else None,
            cores_busy=min(1.0, (now.worked_s - before.worked_s) / span / self.cores),
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
            cores_busy=_share(total.worked_s, wall_s * self.cores),
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
        self.outcomes.update(episode.outcome for episode in event.done)
        self._sealed.update({episode.trial.id: episode for episode in event.done})

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
            self._recent.append(_Moment(at, self.work, self.done))
            while self._recent[0].time < at - WINDOW_S:
                self._recent.popleft()


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0 else None
