"""What training gives to whoever collects for it on other machines, and what it hears from there.
They are no part of this layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hocket.core.data import Episode, Trial
from hocket.core.events import Event
from hocket.records.program import Known
from hocket.train.algorithms.stretches import Stretch
from hocket.train.config import TrainConfig
from hocket.train.learner.weights import PackedWeights
from hocket.train.networks.building import Description


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gathered:
    """A stretch of an attempt has come from a site."""

    stretch: Stretch
    terms: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorRose:
    """A lower bound on the weight version of all that a site will still send; None where it is
    gone."""

    site: str
    floor: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkGrew:
    """What sites have done since this was told last."""

    steps: int
    worked_s: float
    inferred_s: float


SiteEvent = Event | Gathered | FloorRose | WorkGrew
Tell = Callable[[SiteEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collecting:
    """What is to be collected, and for whom."""

    config: TrainConfig
    run: Path
    tasks: Sequence[tuple[str, str]]
    """Suites and names of the tasks."""
    description: Description
    weights: PackedWeights
    wake: Callable[[], None]
    """Lets the engine here take a turn."""
    learn: Callable[[Mapping[str, Any]], None]
    """Told, on another thread, what sites there are."""
    program: Known
    """What the numbers depend on here: sites are held to it."""


class Sites(Protocol):
    """Collecting sites, as the trainer sees them: they do what `Trajectories` does, with what they
    send. The engine's thread calls them."""

    @property
    def lanes(self) -> int:
        """Lanes of all sites."""
        ...

    @property
    def in_flight(self) -> int:
        """Attempts that run at sites, as far as is known."""
        ...

    @property
    def floor(self) -> int:
        """No chunk that is still to come is older than this version."""
        ...

    def start(self) -> None:
        """Have sites started, and begin to hear them."""
        ...

    def add(self, trials: Sequence[Trial]) -> None:
        """Plan training trials."""
        ...

    def publish(self) -> None:
        """Take note that there are new weights."""
        ...

    def news(self) -> list[SiteEvent]:
        """What sites have said since this was asked last; raises what ended their driver."""
        ...

    def on(self, event: SiteEvent) -> list[Stretch]:
        """Follow one event, and return the stretch that it brings."""
        ...

    def seal(self, episode: Episode) -> Stretch | None:
        """Return the last stretch of an episode that counts; None if it was lost to errors."""
        ...

    def terms(self, episode: Episode) -> dict[str, float]:
        """Return what an episode that counts adds to the log; asked once, last."""
        ...

    def end(self) -> None:
        """Let the run be over for all sites, soon."""
        ...

    def close(self) -> None:
        """End the run for all sites, and wait for that. Closing twice is safe."""
        ...


class CollectsElsewhere(Protocol):
    """Other machines."""

    def collect(self, asked: Collecting) -> Sites:
        """The sites that collect for a run."""
        ...
