"""What waits to be learnt from: first in, first out, each parcel once, none too old.

Two rules keep staleness bounded without waste. The gate drops a parcel whose oldest chunk is more
than `max_staleness` versions behind, and counts it. So that the gate has nothing to do, the
throttle stops new episodes while as many are outstanding as the next `max_staleness + 1` updates
can use, and an update is held while an episode in flight would become too old by it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hocket.train.algorithms.rollout import Parcel, Segment

_NEVER = -1
_REMEMBERED = 100_000
"""Attempts whose next chunk is known. Far more than can be outstanding, so that what is forgotten
cannot come any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """How much is learnt from at once, and how old it may be."""

    batch: int
    """Episodes that an update learns from."""
    max_staleness: int
    """Versions that the oldest chunk of a segment may be behind when it is learnt from."""

    @property
    def outstanding(self) -> int:
        """Episodes that may be begun and not yet learnt from."""
        return (self.max_staleness + 1) * self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one update learns from."""

    segments: tuple[Segment, ...]
    dropped: int
    """Episodes that the gate refused since the last take."""
    staleness: int
    """Versions that the oldest chunk is behind."""
    mean_staleness: float
    """Versions that a chunk is behind on average."""

    @property
    def episodes(self) -> int:
        """Episodes that ended in it."""
        return sum(segment.is_end for segment in self.segments)


class SegmentQueue:
    """Owned by the learner. A parcel that was taken is gone."""

    def __init__(self, config: QueueConfig) -> None:
        self._config = config
        self._parcels: deque[Parcel] = deque()
        self._next_chunk: dict[tuple[str, int], int] = {}
        """The chunk that must come next, by attempt, so that nothing comes twice or out of
        order."""
        self._dropped = 0
        self.episodes = 0
        """Episodes that have ended and wait to be learnt from."""

    def put(self, parcel: Parcel) -> None:
        """Adds what was collected, once."""
        ended = sum(segment.is_end for segment in parcel)
        if self.episodes + ended > self._config.outstanding + self._config.batch:
            raise RuntimeError(
                f"{self.episodes + ended} episodes wait to be learnt from; the throttle allows "
                f"{self._config.outstanding}."
            )
        for segment in parcel:
            self._count(segment)
        self._parcels.append(parcel)
        self.episodes += ended

    def is_due(self, version: int, floor: int) -> bool:
        """Whether an update of this version may begin. `floor` is the oldest version among the
        episodes in flight: the update waits where they would become too old by it."""
        if self._fresh_episodes(version) < self._config.batch:
            return False
        return version + 1 - floor <= self._config.max_staleness or not self._config.max_staleness

    def take(self, version: int) -> Taken:
        """Takes what the update of this version learns from: a batch, and whatever would be too old
        for the next one."""
        segments: list[Segment] = []
        episodes = 0
        kept: deque[Parcel] = deque()
        while self._parcels:
            parcel = self._parcels.popleft()
            ended = sum(segment.is_end for segment in parcel)
            staleness = version - _oldest(parcel)
            if staleness > self._config.max_staleness:
                self._dropped += ended
                self.episodes -= ended
            elif episodes < self._config.batch or staleness == self._config.max_staleness:
                segments.extend(parcel)
                episodes += ended
                self.episodes -= ended
            else:
                kept.append(parcel)
        self._parcels = kept
        dropped, self._dropped = self._dropped, 0
        ages = [version - int(v) for segment in segments for v in segment.version]
        return Taken(
            segments=tuple(segments),
            dropped=dropped,
            staleness=max(ages, default=0),
            mean_staleness=sum(ages) / max(1, len(ages)),
        )

    def _fresh_episodes(self, version: int) -> int:
        return sum(
            sum(segment.is_end for segment in parcel)
            for parcel in self._parcels
            if version - _oldest(parcel) <= self._config.max_staleness
        )

    def _count(self, segment: Segment) -> None:
        key, first = (segment.trial.id, segment.attempt), int(segment.chunk[0])
        wanted = self._next_chunk.get(key, 0)
        if first != wanted:
            raise RuntimeError(
                f"Chunk {first} of {segment.trial.id} came where {wanted} was next: no chunk may "
                f"come twice."
            )
        self._next_chunk.pop(key, None)  # what was heard of last is forgotten last
        self._next_chunk[key] = _NEVER if segment.is_end else int(segment.chunk[-1]) + 1
        if len(self._next_chunk) > _REMEMBERED:
            del self._next_chunk[next(iter(self._next_chunk))]


def _oldest(parcel: Parcel) -> int:
    return min(segment.oldest for segment in parcel)
