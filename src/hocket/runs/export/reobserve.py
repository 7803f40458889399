"""Observes again what a run did not keep of every step, from the states of its simulator.

An env that defers its observation is looked at only where the policy asks, so between decisions
there is neither a picture nor a state of it. Workers put the simulator into each stored state and
observe, as they do to render a run's videos. Nothing is written into the run's folder.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from hocket.core.data import Episode, Ref
from hocket.errors import HocketError, RunFolderError
from hocket.records.folder import RunFolder
from hocket.records.observations import SINK
from hocket.records.parquet import read_table
from hocket.records.states import FILE
from hocket.records.video.encoder import Quality, require_encoder
from hocket.records.video.rerender import Rendered, RenderJob
from hocket.records.video.selection import rerender_record
from hocket.records.video.sink import videos_in
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.export import ChosenRun, ExportConfig, Watcher
from hocket.runs.video import rerender_episodes

STAGE = "showing again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What the chosen episodes lack, and how it is made."""

    jobs: Mapping[str, RenderJob]
    """Episodes to observe again, by trial id."""
    without_pictures: Collection[str]
    """Trials that have no pictures, nor states to make them from."""


def plan_missing(run: ChosenRun, config: ExportConfig) -> Missing:
    """Find out what is missing; episodes without steps are refused."""
    rows, states = _recorded_steps(run)
    shows_again = _shows_again(run)
    jobs: dict[str, RenderJob] = {}
    without: list[str] = []
    for episode in run.episodes:
        trial = episode.trial.id
        if rows.get(trial, 0) != episode.steps + 1:
            raise RunFolderError(
                f"The steps of {trial} were not recorded (--record none?), so there is nothing to "
                f"export of it. eval_info and perfetto need no steps."
            )
        folder = run.folder.attempt(episode.trial, episode.attempt)
        lacks_pictures = config.images and not videos_in(folder, lossless=True)
        lacks_states = states.get(trial, 0) < rows[trial]
        if lacks_states and not shows_again:
            raise RunFolderError(
                f"{trial} was observed where the policy looked and not at every step, and its "
                f"simulator, which has rows alone, cannot show it again. Record with --record full."
            )
        if (lacks_pictures or lacks_states) and shows_again and (folder / FILE).is_file():
            record = rerender_record(episode, images=lacks_pictures)
            jobs[trial] = RenderJob(episode=episode, states=folder / FILE, record=record)
        elif lacks_pictures:
            without.append(trial)
    return Missing(jobs=jobs, without_pictures=without)


def observe_missing(
    run: ChosenRun,
    config: ExportConfig,
    missing: Missing,
    episodes: Sequence[Episode],
    scratch: Path,
    watcher: Watcher,
) -> None:
    """Observe those of these episodes again that lack something; what comes of it lies in
    `scratch` as in a run folder."""
    jobs = [job for e in episodes if (job := missing.jobs.get(e.trial.id)) is not None]
    if not jobs:
        return
    require_encoder(Quality(lossless=True).codec)
    pictures = {"cameras": list(config.cameras), "lossless": True}
    sinks = (Ref(name="video", config=pictures), Ref(name=SINK))

    def on_rendered(rendered: Rendered) -> None:
        if rendered.error is not None:
            raise RunFolderError(
                f"{rendered.job.episode.trial.id} cannot be shown again: {rendered.error}\nRecord "
                f"with --record full, or export with --no-images what was recorded."
            )
        watcher.advance(STAGE)

    plain, folder = EvalConfig.from_plain(run.config), RunFolder.at(scratch)
    rerender_episodes(plain, folder, jobs, sinks, on_rendered, workers=config.workers)


def _shows_again(run: ChosenRun) -> bool:
    try:
        return not Assembly(EvalConfig.from_plain(run.config)).has_rows_alone
    except (HocketError, ImportError):
        return True  # Whoever needs the env will say that it cannot be had.


def _recorded_steps(run: ChosenRun) -> tuple[dict[str, int], dict[str, int]]:
    """For each trial, the number of recorded steps, the reset included, and of those with a
    state."""
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
    """The folder in `scratch` for what was observed again of an episode."""
    return RunFolder.at(scratch).attempt(episode.trial, episode.attempt)
