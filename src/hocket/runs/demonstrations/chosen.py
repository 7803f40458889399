"""Which episodes of a run are wanted, and what of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hocket.core.data import Episode, Outcome
from hocket.core.plugins import did_you_mean
from hocket.errors import ConfigError, UnknownNameError, UsageError
from hocket.records.folder import RunFolder
from hocket.results.recorded import RecordedRun, open_recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which episodes are exported."""

    outcomes: tuple[str, ...] = ()
    """Names of outcomes; none means every outcome but errors."""
    tasks: tuple[str, ...] = ()
    """Names of tasks; none means every task."""
    first: int | None = None
    """How many of each task are taken, the first by seed; None means all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """What of a run is exported, and how. Formats read what concerns them."""

    choice: Choice = field(default_factory=Choice)
    images: bool = True
    cameras: tuple[str, ...] = ()
    """Observation keys; none means every camera."""
    fps: float | None = None
    """Control steps per second; None takes what the env says."""
    crf: int = 20
    """Constant rate factor of LeRobot's videos: smaller gives better pictures, larger files."""
    next_obs: bool = False
    """HDF5 also has what was observed after each action."""
    valid: float = 0.1
    """The part of each task's episodes that HDF5 has in the mask `valid`, from 0 to below 1."""
    workers: int | None = None
    """Processes that show episodes again; None takes as many as there are cores."""

    def __post_init__(self) -> None:
        if self.fps is not None and not self.fps > 0:
            raise ConfigError(f"fps is {self.fps}; it must be above 0.")
        if not 0 <= self.valid < 1:
            raise ConfigError(f"valid is {self.valid}; it is a part of 1, below 1.")
        if not 0 <= self.crf <= 51:
            raise ConfigError(f"crf is {self.crf}; it lies between 0 and 51.")
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers is {self.workers}; it must be at least 1.")


class Watcher(Protocol):
    """Follows an export; it is told what is going on, and never asked."""

    def stage(self, name: str, total: int) -> None:
        """A part of the work begins, which has `total` pieces."""

    def advance(self, name: str) -> None:
        """One more piece of that part is done."""

    def note(self, text: str) -> None:
        """Tell the user something about the result."""


class Silent:
    """A watcher that tells nobody."""

    def stage(self, name: str, total: int) -> None: ...

    def advance(self, name: str) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRun:
    """A run and the episodes that were chosen, in planned order."""

    recorded: RecordedRun
    episodes: Sequence[Episode]

    @property
    def folder(self) -> RunFolder:
        return RunFolder.at(self.recorded.folder)

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.recorded.report.config)

    def label(self, episode: Episode) -> str:
        """What somebody said of an episode; empty where nobody did."""
        return self.recorded.labels.get(episode.trial.id, "")

    @property
    def unfinished(self) -> int:
        """How many planned trials have no episode."""
        return len(self.recorded.trials) - len(self.recorded.report.episodes)


def open_chosen(path: Path, choice: Choice) -> ChosenRun:
    """Read a run folder; a choice that leaves nothing is refused."""
    recorded = open_recorded(path)
    wanted = _outcomes(choice.outcomes)
    tasks = {trial.task for trial in recorded.trials}
    for task in choice.tasks:
        if task not in tasks:
            raise UnknownNameError(
                f"The run has no task {task!r}.{did_you_mean(task, tasks)} It has: "
                f"{', '.join(sorted(tasks))}."
            )
    episodes = [
        episode
        for episode in recorded.report.episodes
        if episode.outcome in wanted and (not choice.tasks or episode.trial.task in choice.tasks)
    ]
    if not episodes:
        raise UsageError(
            f"Of the {len(recorded.report.episodes)} episodes in {str(path)!r} none is "
            f"{' or '.join(outcome.value for outcome in wanted)}"
            f"{' in these tasks' if choice.tasks else ''}: there is nothing to export."
        )
    return ChosenRun(recorded=recorded, episodes=_first(episodes, choice.first))


def _first(episodes: Sequence[Episode], count: int | None) -> list[Episode]:
    """The first `count` episodes of each task by seed, in planned order."""
    if count is None:
        return list(episodes)
    by_task: dict[tuple[str, str], list[Episode]] = {}
    for episode in episodes:
        by_task.setdefault((episode.trial.suite, episode.trial.task), []).append(episode)
    kept = {
        episode.trial.id
        for some in by_task.values()
        for episode in sorted(some, key=lambda e: (e.trial.seed, e.trial.repeat))[:count]
    }
    return [episode for episode in episodes if episode.trial.id in kept]


def _outcomes(names: Sequence[str]) -> list[Outcome]:
    if not names:
        return [outcome for outcome in Outcome if outcome is not Outcome.ERROR]
    known = {outcome.value: outcome for outcome in Outcome}
    for name in names:
        if name not in known:
            raise UsageError(
                f"No outcome is called {name!r}.{did_you_mean(name, known)} They are: "
                f"{', '.join(known)}."
            )
    return [known[name] for name in names]


def untimed(task: str) -> str:
    """The sentence on an env that does not say its rate, which a dataset has to."""
    return (
        f"The env of {task!r} does not say how fast it is controlled, neither as `control_rate` "
        f"nor in metadata['render_fps']. Say how many steps it takes a second: --fps N."
    )
