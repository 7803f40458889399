"""A recorded run in the formats that other tools read.

One module per format, each with a function from chosen episodes of a run to a file or a folder:
LeRobotDataset v3, HDF5 in robomimic's layout, Rerun, LeRobot's ``eval_info.json``, and a timeline
for Perfetto. All of them stream: one episode is in memory at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hocket.core.data import Episode, Outcome
from hocket.core.plugins import did_you_mean
from hocket.errors import (
    ConfigError,
    MissingExtraError,
    RunFolderError,
    UnknownNameError,
    UsageError,
)
from hocket.records.folder import RunFolder
from hocket.results.recorded import RecordedRun, open_recorded
from hocket.system.durable import publish, sync_folder, temporary


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
        ...

    def advance(self, name: str) -> None:
        """One more piece of that part is done."""
        ...

    def note(self, text: str) -> None:
        """Tell the user something about the result."""
        ...


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


@dataclass(frozen=True, slots=True)
class Format:
    """A format, and the module whose `write(run, out, config, watcher)` makes it."""

    module: str
    about: str
    wants_errors: bool = False
    """Whether episodes that ended as errors have something to tell in it."""


FORMATS: Mapping[str, Format] = {
    "lerobot": Format("hocket.runs.export.lerobot", "LeRobotDataset v3.0, a folder"),
    "hdf5": Format("hocket.runs.export.hdf5", "HDF5 in robomimic's layout"),
    "rerun": Format("hocket.runs.export.rerun", "a recording for Rerun's viewer, .rrd"),
    "eval_info": Format("hocket.runs.export.eval_info", "LeRobot's eval_info.json"),
    "perfetto": Format(
        "hocket.runs.export.perfetto",
        "a timeline for Perfetto, JSON; .gz compresses",
        wants_errors=True,
    ),
}


def export_run(
    path: Path,
    to: str,
    out: Path,
    config: ExportConfig | None = None,
    watcher: Watcher | None = None,
) -> ChosenRun:
    """Write a run folder in a format of `FORMATS` to a path that does not exist yet."""
    config, watcher = config or ExportConfig(), watcher or Silent()
    form = FORMATS.get(to)
    if form is None:
        raise UnknownNameError(
            f"There is no format {to!r}.{did_you_mean(to, FORMATS)} Known: {', '.join(FORMATS)}."
        )
    out = out.absolute()
    refuse_existing(out)
    choice = config.choice
    if form.wants_errors and not choice.outcomes:
        choice = Choice(outcomes=("success", "failure", "finished", "error"), tasks=choice.tasks)
    run = open_chosen(path, choice)
    if run.unfinished:
        watcher.note(
            f"The run is not finished: {run.unfinished} of its {len(run.recorded.trials)} trials "
            f"have not ended and are not in the export."
        )
    importlib.import_module(form.module).write(run, out, config, watcher)
    return run


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


def require(module: str, package: str, what: str, *, extra: str) -> Any:
    """A module that a format needs; the error says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        if exc.name != module:
            raise RunFolderError(f"The package {module!r} cannot be imported: {exc}") from exc
        raise MissingExtraError(
            f"{what} the package {package!r}, which is not installed in {sys.executable}. Run: pip "
            f"install 'hocket[{extra}]'"
        ) from exc


def untimed(task: str) -> str:
    """The sentence on an env that does not say its rate, which a dataset has to."""
    return (
        f"The env of {task!r} does not say how fast it is controlled, neither as `control_rate` "
        f"nor in metadata['render_fps']. Say how many steps it takes a second: --fps N."
    )


def refuse_existing(path: Path) -> None:
    """Refuse a path that exists: an export never writes over anything."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{str(path)!r} exists already. Give another --out, or remove it first.")


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A draft to write to. It gets its name when all went well, and is deleted otherwise."""
    with _draft(path) as draft:
        yield draft
        publish(draft, path)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A draft as `new_file` gives it, for a folder."""
    with _draft(path) as draft:
        draft.mkdir()
        yield draft
        # Renaming a folder replaces an empty one without a word.
        refuse_existing(path)
        draft.rename(path)
        sync_folder(path.parent)


@contextlib.contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """A folder for what is needed only while the export goes on."""
    with _draft(beside.with_name(f"{beside.name}.scratch")) as folder:
        folder.mkdir()
        yield folder


@contextlib.contextmanager
def _draft(path: Path) -> Iterator[Path]:
    refuse_existing(path)
    draft = temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(draft)  # left by an export that was killed
        yield draft
    except OSError as exc:
        raise UsageError(f"The export to {str(path)!r} failed: {exc}.") from exc
    finally:
        with contextlib.suppress(OSError):
            _remove(draft)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
