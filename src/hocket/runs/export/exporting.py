"""One way into all formats."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hocket.core.plugins import did_you_mean
from hocket.errors import ConfigError, UnknownNameError
from hocket.runs.export.chosen import Choice, ChosenRun, open_chosen
from hocket.runs.export.target import refuse_existing
from hocket.runs.export.watching import Silent, Watcher


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
    """Of LeRobot's videos: smaller is better and larger."""
    next_obs: bool = False
    """In HDF5: also what was observed after each action."""
    valid: float = 0.1
    """In HDF5: the part of each task's episodes in the mask `valid`."""
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
    place: Path,
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
    run = open_chosen(place, choice)
    if run.unfinished:
        watcher.note(
            f"The run is not finished: {run.unfinished} of its {len(run.recorded.trials)} trials "
            f"have not ended and are not in the export."
        )
    importlib.import_module(form.module).write(run, out, config, watcher)
    return run
