"""What a run did not keep of every step is observed again, from the states of its simulator.

An env that defers its observation is looked at only where the policy asks, so between decisions
there is neither a picture nor a state of it. Workers put the simulator into each stored state and
observe: the same studio that films a run's videos. Nothing is written into the run's folder.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from hocket.core import machine
from hocket.core.data import Episode, Ref
from hocket.errors import RunFolderError
from hocket.records.folder import RunFolder
from hocket.records.states import FILE
from hocket.records.video.encoder import Quality, require_encoder
from hocket.records.video.rerender import Filmed, Job, RenderingConfig, film
from hocket.records.video.selection import restored
from hocket.records.video.sink import videos_in
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.export.chosen import ChosenRun, read_table
from hocket.runs.export.observing import SINK
from hocket.runs.export.watching import Watcher

if TYPE_CHECKING:
    from hocket.runs.export.exporting import ExportConfig

STAGE = "showing again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restaging:
    """What is to be shown again of the chosen episodes."""

    jobs: Mapping[str, Job]
    """By trial id."""
    without_pictures: Collection[str]
    """Trials of which there are no pictures, nor states to make them from."""


def plan_restaging(run: ChosenRun, config: ExportConfig) -> Restaging:
    """Find out what is missing; episodes without steps are refused."""
    rows, states = _recorded_steps(run)
    jobs: dict[str, Job] = {}
    without: list[str] = []
    for episode in run.episodes:
        trial = episode.trial.id
        if rows.get(trial, 0) != episode.steps + 1:
            raise RunFolderError(
                f"The steps of {trial} were not recorded (--record none?), so there is nothing to "
                f"export of it. eval_info and perfetto need no steps."
            )
        place = run.folder.attempt(episode.trial, episode.attempt)
        lacks_pictures = config.images and not videos_in(place, lossless=True)
        lacks_states = states.get(trial, 0) < rows[trial]
        if (lacks_pictures or lacks_states) and (place / FILE).is_file():
            record = restored(episode, images=lacks_pictures)
            jobs[trial] = Job(episode=episode, states=place / FILE, record=record)
        elif lacks_pictures:
            without.append(trial)
    return Restaging(jobs=jobs, without_pictures=without)


def restage(
    run: ChosenRun,
    config: ExportConfig,
    restaging: Restaging,
    episodes: Sequence[Episode],
    scratch: Path,
    watcher: Watcher,
) -> None:
    """Show those of these episodes that need it; what comes of it lies in `scratch` as in a run
    folder."""
    jobs = [job for e in episodes if (job := restaging.jobs.get(e.trial.id)) is not None]
    if not jobs:
        return
    require_encoder(Quality(lossless=True).codec)
    plain = EvalConfig.from_plain(run.config)
    pictures = {"cameras": list(config.cameras), "lossless": True}
    assembly = Assembly(plain)
    sinks = (Ref(name="video", config=pictures), Ref(name=SINK))
    spec = replace(assembly.worker(), sinks=sinks, folder=str(scratch))
    runtime = assembly.runtime(apart=True)
    rendering = RenderingConfig(
        workers=config.workers or machine.cores(), frame_timeout_s=plain.step_timeout_s
    )

    def on_filmed(filmed: Filmed) -> None:
        if filmed.error is not None:
            raise RunFolderError(
                f"{filmed.job.episode.trial.id} cannot be shown again: {filmed.error}\nRecord with "
                f"--record full, or export with --no-images what was recorded."
            )
        watcher.advance(STAGE)

    film(runtime, spec, jobs, rendering, on_filmed)


def _recorded_steps(run: ChosenRun) -> tuple[dict[str, int], dict[str, int]]:
    """Of each trial the number of recorded steps, the reset included, and of those with a state."""
    rows: dict[str, int] = {}
    states: dict[str, int] = {}
    for batch in read_table(run.folder, "steps", ["trial", "state"]):
        is_there = pa.table(
            {"trial": batch["trial"], "state": pc.cast(pc.is_valid(batch["state"]), pa.int64())}
        )
        counted = is_there.group_by("trial").aggregate([("state", "sum"), ("state", "count")])
        for row in counted.to_pylist():
            trial = row["trial"]
            rows[trial] = rows.get(trial, 0) + row["state_count"]
            states[trial] = states.get(trial, 0) + row["state_sum"]
    return rows, states


def attempt_in(scratch: Path, episode: Episode) -> Path:
    """Where what was shown again of an episode lies."""
    return RunFolder.at(scratch).attempt(episode.trial, episode.attempt)
