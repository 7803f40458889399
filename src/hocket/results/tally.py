"""Counts what a run did: the one owner of its episodes and of its throughput."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.core.data import Episode
from hocket.core.events import (
    AttemptFailed,
    BatchInferred,
    ChunksExecuted,
    EpisodesSealed,
    Event,
    RunEnded,
    RunStarted,
)
from hocket.results.report import Throughput


class Tally:
    """A reader that keeps the episodes and adds up the work."""

    def __init__(self, concurrency: int = 1) -> None:
        self._concurrency = concurrency
        self._episodes: dict[str, Episode] = {}
        self._lanes = 0
        self._cores = 1
        self._steps = 0
        self._chunks = 0
        self._batches = 0
        self._failed_attempts = 0
        self._policy_s = 0.0
        self._cores_s = 0.0
        self._first: float | None = None
        self._last = 0.0
        self.complete = False

    @property
    def episodes(self) -> Sequence[Episode]:
        """Everything that has ended, earlier parts of the run included."""
        return list(self._episodes.values())

    def on(self, event: Event) -> None:
        """Reader: add up one event."""
        if isinstance(event, BatchInferred):
            self._first = event.began if self._first is None else self._first
            self._last = event.time
            self._batches += 1
            self._policy_s += event.ended - event.began
        elif isinstance(event, ChunksExecuted):
            self._last = event.time
            self._chunks += len(event.lanes)
            self._steps += sum(event.steps)
            self._cores_s += sum(event.busy)
        elif isinstance(event, EpisodesSealed):
            for episode in event.episodes:
                self._episodes[episode.trial.id] = episode
        elif isinstance(event, AttemptFailed):
            self._failed_attempts += 1
        elif isinstance(event, RunStarted):
            self._lanes, self._cores = event.lanes, event.cores
            self._episodes.update({episode.trial.id: episode for episode in event.done})
        elif isinstance(event, RunEnded):
            self.complete = event.complete

    def close(self) -> None:
        """Reader: nothing to close."""

    def throughput(self) -> Throughput:
        """What was done, over the time from the first batch to the last executed chunk."""
        wall_s = max(0.0, self._last - (self._first or 0.0))
        return Throughput(
            env_steps=self._steps,
            chunks=self._chunks,
            batches=self._batches,
            policy_busy=_share(self._policy_s, wall_s * self._concurrency),
            cores_busy=_share(self._cores_s, wall_s * self._cores),
            wall_s=wall_s,
            lanes=self._lanes,
            cores=self._cores,
            failed_attempts=self._failed_attempts,
        )


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0 else None
