"""What the engine tells its readers: typed, frozen, and granular by batch, never by row.

Times are seconds since the run began (`time.perf_counter` less the start). Lists run in parallel:
`lanes[i]`, `trials[i]`, ... belong together. The two that come by the thousand are tuples, made in
a fraction of a dataclass's time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

from hocket.core.data import Array, Chunk, EnvSpec, Episode, Observation, PolicySpec, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """First event of a run."""

    trials: Sequence[Trial]
    """All that are planned, in planned order."""
    done: Sequence[Episode]
    """Those that an earlier part of the run already ended."""
    lanes: int
    cores: int
    policy: PolicySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptsBegan:
    """Attempts about to be dispatched: readers commit their numbers before any is sent."""

    time: float
    lanes: Sequence[int]
    trials: Sequence[Trial]
    attempts: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesReady:
    """Lanes were reset, and wait for their first chunk. For a further one they wait as soon as
    ChunksExecuted tells of the last, unless that ended the episode."""

    time: float
    lanes: Sequence[int]
    trials: Sequence[Trial]
    attempts: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecLearned:
    """An env told what it is; once for each task."""

    time: float
    suite: str
    spec: EnvSpec


class BatchInferred(NamedTuple):
    """One `infer` that came back, and the chunks delivered from it."""

    time: float
    """When the chunks were delivered to the lanes."""
    batch: int
    """Number of the batch in this run."""
    began: float
    ended: float
    lanes: Sequence[int]
    trials: Sequence[Trial]
    attempts: Sequence[int]
    chunks: Sequence[int]
    delivered: Sequence[Chunk | None]
    """None where the row failed or its attempt had ended meanwhile."""
    ready: Sequence[float]
    """When each row's observation had come."""
    size: int
    """Rows the policy worked on, padding included."""
    observations: Mapping[str, Array] | None = None
    """What each row saw, stacked `[B, ...]`, where the engine was asked to keep it."""


class ChunksExecuted(NamedTuple):
    """Chunks that lanes ran, with what came of each step."""

    time: float
    lanes: Sequence[int]
    trials: Sequence[Trial]
    attempts: Sequence[int]
    chunks: Sequence[int]
    steps: Sequence[int]
    """Executed of each chunk."""
    rewards: Sequence[Array]
    """Of each step, float64 `[k]`."""
    terminated: Sequence[bool]
    truncated: Sequence[bool]
    busy: Sequence[float]
    """Seconds that each lane's worker worked on the chunk, observing included."""
    observed: Sequence[float]
    """Of these, seconds spent observing."""
    final: Sequence[Observation | None]
    """What was observed at the end of an episode, where the engine was asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodesEnded:
    """Attempts that ended; their lanes are free. Files may still be on their way."""

    time: float
    lanes: Sequence[int]
    episodes: Sequence[Episode]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodesSealed:
    """Episodes with all their files durable: what a ledger may commit."""

    time: float
    episodes: Sequence[Episode]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """An attempt lost to a fault. The trial runs again where `again` is true."""

    time: float
    lane: int
    trial: Trial
    attempt: int
    error: str
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChanged:
    """A worker came, went, or was replaced."""

    time: float
    lanes: Sequence[int]
    state: str
    """`starting`, `up`, `lost`, `recycled`."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """Last event of a run."""

    time: float
    complete: bool
    """False after an interruption: planned trials are left."""
    notes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilmed:
    """An ended episode was filmed from its states, or could not be. Comes after RunEnded."""

    trial: Trial
    error: str | None
    done: int
    """Filmed so far, of `total`."""
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """Something that the user should know, in a sentence."""

    text: str


Event = Union[
    RunStarted,
    AttemptsBegan,
    LanesReady,
    SpecLearned,
    BatchInferred,
    ChunksExecuted,
    EpisodesEnded,
    EpisodesSealed,
    AttemptFailed,
    WorkerChanged,
    RunEnded,
    EpisodeFilmed,
    Noted,
]
