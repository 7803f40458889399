"""What the engine tells its readers. Events are frozen, and there is one for each batch of rows,
never one for each row.

Times are seconds since the run began (`time.perf_counter` less the start). Lists run in parallel:
`lanes[i]`, `trials[i]`, ... belong together. The two events that come by the thousand are
NamedTuples, which take a fraction of a dataclass's time to make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

from hocket.core.data import Array, Chunk, Episode, Observation, RowChecks, Trial
from hocket.core.specs import EnvSpec, PolicySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """First event of a run."""

    trials: Sequence[Trial]
    """All planned trials, in planned order."""
    done: Sequence[Episode]
    """Episodes that an earlier part of the run already ended."""
    lanes: int
    cores: int
    policy: PolicySpec
    independent_starts: bool = False
    """True if trials of one seed start independently of each other."""
    counts_cpu: bool = False
    """True if all workers are of this machine, below this process, so that their time is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialsPlanned:
    """More trials, after those that were planned: a run that ends by what it finds plans as it
    goes."""

    trials: Sequence[Trial]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptsBegan:
    """Attempts are about to be sent to their lanes. Readers commit their numbers first: the engine
    sends none before this event was taken."""

    time: float
    lanes: Sequence[int]
    trials: Sequence[Trial]
    attempts: Sequence[int]
    sites: Sequence[int | None] = ()
    """The legs of the sites that make them, where other machines do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesReady:
    """Lanes were reset, and wait for their first chunk. From then on a lane waits for its next
    chunk when ChunksExecuted tells that it has executed the last one, unless that ended the
    episode."""

    time: float
    lanes: Sequence[int]
    trials: Sequence[Trial]
    attempts: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecLearned:
    """A worker told what the env of a task is; once for each task."""

    time: float
    suite: str
    spec: EnvSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StartsCompared:
    """A trial of a suite was reset twice, before its first chunk."""

    time: float
    suite: str
    differs: str
    """The key of the observation that was another the second time; empty where none was."""


class BatchInferred(NamedTuple):
    """One `infer` came back, and its chunks were delivered to lanes."""

    time: float
    """When the chunks were delivered to the lanes."""
    batch: int
    """Number of the batch in this run."""
    began: float
    """When `infer` was called."""
    ended: float
    """When it returned."""
    lanes: Sequence[int]
    trials: Sequence[Trial]
    attempts: Sequence[int]
    chunks: Sequence[int]
    delivered: Sequence[Chunk | None]
    """None where the row failed or its attempt had ended meanwhile."""
    ready: Sequence[float]
    """When each row's observation had come."""
    size: int
    """Rows that the policy worked on, padding included."""
    observations: Mapping[str, Array] | None = None
    """The observations of the rows, stacked `[B, ...]`, where the engine was asked to keep them."""
    asked: Sequence[int] = ()
    """The step of its attempt at which each row was observed."""


class ChunksExecuted(NamedTuple):
    """Lanes executed chunks, each up to its end, the episode's, or a recall."""

    time: float
    lanes: Sequence[int]
    trials: Sequence[Trial]
    attempts: Sequence[int]
    chunks: Sequence[int]
    steps: Sequence[int]
    """How many steps of each chunk were executed."""
    rewards: Sequence[Array]
    """The rewards of each chunk's steps, float64 `[k]`."""
    terminated: Sequence[bool]
    truncated: Sequence[bool]
    busy: Sequence[float]
    """Seconds that each lane's worker worked on the chunk, observing included."""
    observed: Sequence[float]
    """Seconds of these that were spent observing."""
    final: Sequence[Observation | None]
    """The observation at the end of an episode, where the engine was asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoTold:
    """Envs told numbers in `info` at the steps of chunks whose ChunksExecuted follows, where the
    workers were asked for them."""

    time: float
    trials: Sequence[Trial]
    attempts: Sequence[int]
    chunks: Sequence[int]
    numbers: Sequence[Mapping[str, Array]]
    """Of each chunk by key: float64 `[k]`, NaN where a step did not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsChecked:
    """Rows were inferred again in another batch, and their bits compared."""

    time: float
    checks: RowChecks


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodesEnded:
    """Attempts ended, and their lanes are free. Their files may not be durable yet."""

    time: float
    lanes: Sequence[int]
    episodes: Sequence[Episode]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodesSealed:
    """All files of these episodes are durable: a ledger may commit them."""

    time: float
    episodes: Sequence[Episode]
    rows: Sequence[Mapping[str, bytes]] = ()
    """What files of rows would hold that were not written, of each episode by their names; empty
    where all are files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """An attempt was lost to a fault. The trial runs again where `again` is true."""

    time: float
    lane: int
    trial: Trial
    attempt: int
    error: str
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChanged:
    """A worker is starting, came up, was lost, or is being replaced."""

    time: float
    lanes: Sequence[int]
    state: str
    """`starting`, `up`, `lost`, `recycled`."""
    reason: str = ""


class WorkDone(NamedTuple):
    """Sums of what lanes and policies have done."""

    steps: int = 0
    executed: int = 0
    """Chunks that lanes ran."""
    delivered: int = 0
    """Chunks that batches gave; padding and failed rows are work for the policy, but no chunks."""
    batches: int = 0
    worked_s: float = 0.0
    inferred_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteState:
    """What one site of a run on many machines is and does."""

    name: str
    lanes: int
    """Its lanes; 0 until it is ready."""
    cores: int
    running: int
    """Attempts that it has begun and not ended."""
    episodes: int
    """Episodes of it that were accepted."""
    doing: str
    """What it does or waits for, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesChanged:
    """The sites of a run on many machines, and what all of them have done in this leg. Comes a few
    times a second at most."""

    time: float
    sites: Sequence[SiteState]
    done: WorkDone


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

    trial: Trial | None
    """None before the first of them."""
    error: str | None
    done: int
    """Filmed so far, of `total`."""
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """Something that the user should know, in a sentence."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Numbers of a training run, by curve."""

    env_steps: int
    """Where on the x axis they belong."""
    values: Mapping[str, float]


Event = Union[
    RunStarted,
    TrialsPlanned,
    AttemptsBegan,
    LanesReady,
    SpecLearned,
    StartsCompared,
    BatchInferred,
    InfoTold,
    ChunksExecuted,
    RowsChecked,
    EpisodesEnded,
    EpisodesSealed,
    AttemptFailed,
    WorkerChanged,
    SitesChanged,
    RunEnded,
    EpisodeFilmed,
    Noted,
    Measured,
]
