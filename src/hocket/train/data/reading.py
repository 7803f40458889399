"""Reads demonstrations by the names that `--data` gives: run folders of hocket, and LeRobot
datasets. Of episodes that can succeed only those that did are taken."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hocket.core.data import Outcome
from hocket.errors import UsageError
from hocket.records.folder import RunFolder
from hocket.results.recorded import open_recorded
from hocket.runs.demonstrations.chosen import Choice, ExportConfig, Watcher, open_chosen
from hocket.runs.demonstrations.episodes import Demonstration, Demonstrations
from hocket.runs.demonstrations.lerobot_dataset import INFO
from hocket.system.scratch import ScratchFolder
from hocket.train.data.lerobot import read_dataset
from hocket.train.data.store import DataWriter, Recorded, Wanted, taught
from hocket.workers.sinks.encoder import read_pictures
from hocket.workers.sinks.video import camera_name

_TAKEN = ("success", "finished")
"""Outcomes that are learnt from."""
_JUDGED = ("failure",)
"""Those that a reward model learns from too."""


def append_data(folder: Path, wanted: Wanted, out: Path, watcher: Watcher) -> int:
    """Append what an expert did in a run folder to what was read before, unless it is there; return
    how many steps that is."""
    # Named as it lies in the run, which may be moved.
    writer = DataWriter(out, wanted, after=str(folder.relative_to(out.parent)))
    before = writer.steps
    try:
        for recorded in _of_run(folder, wanted, watcher):
            writer.add(recorded)
        writer.finish()
    finally:
        writer.close()
    return writer.steps - before


def read_data(names: Sequence[str], wanted: Wanted, out: Path, watcher: Watcher) -> None:
    """Read all that `names` name into the folder `out`, which is then whole or not there."""
    writer = DataWriter(out, wanted)
    try:
        for name in names:
            before = writer.episodes
            for recorded in _episodes(Path(name), wanted, watcher):
                writer.add(recorded)
            if writer.episodes == before:
                raise UsageError(
                    f"{name!r} has no successful episode of {', '.join(wanted.shapes.tasks)}: "
                    f"there is nothing to learn from."
                )
        writer.finish()
    except BaseException:
        writer.close()
        shutil.rmtree(out, ignore_errors=True)
        raise
    watcher.note(
        f"learning from {writer.episodes} recorded episodes, {writer.steps:,} steps, of "
        f"{', '.join(names)}"
    )


def _episodes(path: Path, wanted: Wanted, watcher: Watcher) -> Iterator[Recorded]:
    if RunFolder.at(path).ledger.is_file():
        return _of_run(path, wanted, watcher)
    if (path / INFO).is_file():
        return read_dataset(path, wanted, watcher)
    raise UsageError(
        f"{str(path)!r} is neither a run folder nor a LeRobot dataset (v3.0). `hocket collect` "
        f"makes either of them; a training run records no steps."
    )


def _of_run(path: Path, wanted: Wanted, watcher: Watcher) -> Iterator[Recorded]:
    known = {trial.task for trial in open_recorded(path).trials}
    tasks = tuple(task for task in wanted.shapes.tasks if task in known)
    if not tasks:
        raise UsageError(
            f"{str(path)!r} has episodes of {', '.join(sorted(known))}, and none of "
            f"{', '.join(wanted.shapes.tasks)}."
        )
    run = open_chosen(
        path, Choice(outcomes=(*_TAKEN, *_JUDGED[: wanted.judges]), tasks=tasks, first=wanted.first)
    )
    cameras = wanted.cameras
    config = ExportConfig(images=bool(cameras), cameras=cameras)
    with ScratchFolder("data") as scratch:
        for one in Demonstrations(run, config, scratch.path, watcher):
            is_expert = None if wanted.judges else one.intervention
            yield from taught(_recorded(one, wanted), is_expert)


def _recorded(one: Demonstration, wanted: Wanted) -> Recorded:
    count = one.length + wanted.judges
    actions = np.pad(one.actions, ((0, count - one.length), (0, 0)))
    outcome = one.episode.outcome
    films = {key: one.cameras.get(camera_name(key)) for key in wanted.cameras}
    return Recorded(
        name=one.episode.trial.id,
        task=wanted.shapes.tasks.index(one.episode.trial.task),
        prompt=one.prompt,
        rewards=one.rewards,
        terminated=bool(one.terminated[-1]),
        success=None if outcome is Outcome.FINISHED else outcome is Outcome.SUCCESS,
        actions=actions,
        observations={key: rows[:count] for key, rows in one.observations.items()},
        pictures={
            key: read_pictures(film, count) for key, film in films.items() if film is not None
        },
    )
