"""What recorders are: readers follow the engine, sinks live in workers where frames are born."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from hocket.core.data import Array, Observation, Outcome, TaskInfo, Trial
from hocket.core.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkNeeds:
    """What a sink wants of the worker beyond actions and rewards."""

    observations: bool = False
    """An observation at every step, not only at decision points."""
    states: bool = False
    """A simulator state at every step, from envs with the snapshot ability."""
    cameras: tuple[str, ...] = ()
    """Image keys that it records, rendered at every step."""
    all_cameras: bool = False
    """Every camera that the env has, rendered at every step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStart:
    """What a sink is told when an attempt begins."""

    trial: Trial
    attempt: int
    task: TaskInfo
    prompt: str
    folder: str
    """Absolute path of this attempt's folder; the sink makes it on its first write."""
    record: Mapping[str, Any]
    """What the engine asks of this attempt (which cameras, video or not ...)."""
    abilities: tuple[str, ...] = ()
    """The env's, as EnvSpec has them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRecord:
    """One executed step, as a sink sees it. Step 0 is the reset: no action, no reward."""

    step: int
    action: Array | None
    reward: float
    terminated: bool
    truncated: bool
    success: bool | None
    chunk: int
    age: int
    """Steps since its chunk's observation was taken."""
    observation: Observation | None
    """Whole and flat, where one was taken at this step."""
    state: Array | None


class Track(Protocol):
    """One attempt's recording."""

    def step(self, record: StepRecord) -> None: ...

    def seal(self, outcome: Outcome) -> Sequence[str]:
        """Make all of it durable (flush, fsync, rename) and name the files, absolute."""
        ...

    def discard(self) -> None: ...


class Sink(Protocol):
    """A recorder that lives in the worker, where frames are born; built there by name."""

    @property
    def needs(self) -> SinkNeeds: ...

    def open(self, start: AttemptStart) -> Track: ...


@runtime_checkable
class Selective(Protocol):
    """A sink that needs more of some attempts than of others: asked before each reset."""

    def needs_of(
        self, task: TaskInfo, record: Mapping[str, Any], abilities: Collection[str]
    ) -> SinkNeeds: ...


class Reader(Protocol):
    """A recorder that follows the engine's events, in order, on the engine's thread."""

    def on(self, event: Event) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Durable(Protocol):
    """A reader whose work must not be lost: while it is behind, no new trial begins."""

    def behind(self) -> bool: ...
