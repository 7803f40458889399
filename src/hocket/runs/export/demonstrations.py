"""Episodes as data to learn from: each whole, all in planned order, one in memory at a time.

What a run did not keep of every step is observed again from the states of its simulator: an env
that defers its observation is looked at only where the policy asks, so between decisions there is
neither a picture nor a state of it. Workers put the simulator into each stored state and observe,
as they do to render a run's videos. Nothing is written into the run's folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hocket.core.data import Array, Episode, Ref, TaskInfo
from hocket.core.plugins import did_you_mean
from hocket.errors import HocketError, RunFolderError, UsageError
from hocket.records.folder import RunFolder
from hocket.records.parquet import read_table
from hocket.records.states import FILE, OBSERVATION_SINK, OBSERVATIONS_FILE, load_states
from hocket.records.steps import StepsConfig, load_steps
from hocket.records.video.encoder import FALLBACK_RATE, Quality, require_encoder
from hocket.records.video.rerender import Rendered, RenderJob
from hocket.records.video.sink import camera_name, rerender_record, videos_in
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.export import ChosenRun, ExportConfig, Watcher
from hocket.runs.video import rerender_episodes

_SHOWING, _WRITING = "showing again", "writing"
"""Stages that a watcher is told of."""
_WINDOW_EPISODES = 128
"""Episodes observed again at a time, so that the pictures of all never lie on the disk
together."""
_WINDOW_STEPS = 50_000
"""Steps loaded at a time: the table is read once for each such window."""
_SAME = 1e-5
"""How far a state that is observed again may be from the one that was recorded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demonstration:
    """An episode of N steps. Row i of `actions` was done after row i of `observations` was seen,
    and row i + 1 is what came of it."""

    episode: Episode
    task: TaskInfo
    actions: Array
    """float64 `[N, A]`."""
    rewards: Array
    terminated: Array
    truncated: Array
    success: Array | None
    """bool `[N]`; None where the env did not say at every step."""
    observations: Mapping[str, Array]
    """Arrays `[N + 1, ...]` by key, without pictures."""
    states: Array | None
    """The simulator's states, float64 `[N + 1, S]`."""
    cameras: Mapping[str, Path]
    """A lossless video of N + 1 pictures for each camera, by its key without `observation/`."""

    @property
    def length(self) -> int:
        return len(self.actions)

    @property
    def prompt(self) -> str:
        """What was to be done, in words; the task's name where the env has none."""
        return self.task.prompt or self.task.name


class Demonstrations:
    """The chosen episodes of a run, with what its tables lack made anew in `scratch`."""

    def __init__(
        self, run: ChosenRun, config: ExportConfig, scratch: Path, watcher: Watcher
    ) -> None:
        self._run = run
        self._config = config
        self._scratch = RunFolder.at(scratch)
        self._watcher = watcher
        self._tasks = _tasks(run, watcher)
        self._jobs: dict[str, RenderJob] = {}
        """Episodes that are to be observed again, by trial id."""
        self.episodes = [episode for episode in run.episodes if episode.steps > 0]
        if len(self.episodes) < len(run.episodes):
            empty = len(run.episodes) - len(self.episodes)
            watcher.note(f"{empty} episodes without a step are left out.")
        self._plan_missing()

    def _plan_missing(self) -> None:
        """Find out what the chosen episodes lack; those without steps are refused."""
        rows, states = _recorded_steps(self._run)
        shows_again = _shows_again(self._run)
        without = 0
        for episode in self._run.episodes:
            trial = episode.trial.id
            if rows.get(trial, 0) != episode.steps + 1:
                raise RunFolderError(
                    f"The steps of {trial} were not recorded (--record none?), so there is nothing "
                    f"to export of it. eval_info and perfetto need no steps."
                )
            folder = self._run.folder.attempt(episode.trial, episode.attempt)
            lacks_pictures = self._config.images and not videos_in(folder, lossless=True)
            lacks_states = states.get(trial, 0) < rows[trial]
            if lacks_states and not shows_again:
                raise RunFolderError(
                    f"{trial} was observed where the policy looked and not at every step, and its "
                    f"simulator, which has rows alone, cannot show it again. Record with "
                    f"--record full."
                )
            if (lacks_pictures or lacks_states) and shows_again and (folder / FILE).is_file():
                record = rerender_record(episode, images=lacks_pictures)
                self._jobs[trial] = RenderJob(episode=episode, states=folder / FILE, record=record)
            elif lacks_pictures:
                without += 1
        # With `full` every picture was kept, so an env without any has no camera.
        if without and self._run.config.get("record") != "full":
            self._watcher.note(
                f"No pictures were kept of {without} episodes, and there are no simulator states "
                f"to make them from: they are exported without. hocket eval --record full keeps "
                f"pictures."
            )

    def _observe(self, episodes: Sequence[Episode]) -> None:
        """Observe those of these episodes again that lack something; what comes of it lies in the
        scratch folder as in a run folder."""
        jobs = [self._jobs[e.trial.id] for e in episodes if e.trial.id in self._jobs]
        if not jobs:
            return
        require_encoder(Quality(lossless=True).codec)
        pictures = {"cameras": list(self._config.cameras), "lossless": True}
        sinks = (Ref(name="video", config=pictures), Ref(name=OBSERVATION_SINK))

        def on_rendered(rendered: Rendered) -> None:
            if rendered.error is not None:
                raise RunFolderError(
                    f"{rendered.job.episode.trial.id} cannot be shown again: {rendered.error}\n"
                    f"Record with --record full, or export with --no-images what was recorded."
                )
            self._watcher.advance(_SHOWING)

        run, workers = EvalConfig.recorded(self._run.config), self._config.workers
        rerender_episodes(run, self._scratch, jobs, sinks, on_rendered, workers=workers)

    def rate(self) -> float:
        """Control steps per second of all chosen tasks."""
        if self._config.fps is not None:
            return self._config.fps
        rates = {self._task(episode).control_rate for episode in self.episodes}
        if len(rates) > 1:
            raise UsageError(
                f"The tasks run at different rates ({', '.join(str(rate) for rate in rates)} steps "
                f"per second). Give --fps, or export them apart with --task."
            )
        rate = rates.pop()
        if rate is None:
            self._watcher.note(
                f"The env does not say how fast it is controlled; {FALLBACK_RATE:g} steps per "
                f"second are assumed. --fps says otherwise."
            )
        return rate or FALLBACK_RATE

    def __iter__(self) -> Iterator[Demonstration]:
        if self._jobs:
            self._watcher.stage(_SHOWING, len(self._jobs))
        self._watcher.stage(_WRITING, len(self.episodes))
        for window in _windows(self.episodes):
            self._observe(window)
            steps = _by_trial(self._run, window)
            for episode in window:
                yield self._demonstration(episode, steps.pop(episode.trial.id))
                again = self._scratch.attempt(episode.trial, episode.attempt)
                shutil.rmtree(again, ignore_errors=True)
                self._watcher.advance(_WRITING)

    def _demonstration(self, episode: Episode, steps: pa.Table) -> Demonstration:
        said = steps["success"].slice(1)
        path = self._run.folder.attempt(episode.trial, episode.attempt) / FILE
        return Demonstration(
            episode=episode,
            task=self._task(episode),
            actions=_matrix(steps["action"].slice(1)),
            rewards=steps["reward"].to_numpy()[1:],
            terminated=steps["terminated"].to_numpy()[1:],
            truncated=steps["truncated"].to_numpy()[1:],
            success=None if said.null_count else said.to_numpy(),
            observations=self._observations(episode, steps),
            states=load_states(path) if path.is_file() else None,
            cameras=self._cameras(episode) if self._config.images else {},
        )

    def _observations(self, episode: Episode, steps: pa.Table) -> dict[str, Array]:
        key, recorded = StepsConfig().state_key, steps["state"]
        file = self._scratch.attempt(episode.trial, episode.attempt) / OBSERVATIONS_FILE
        if not file.is_file():
            is_whole = recorded.null_count == 0
            return {key: _matrix(recorded)} if is_whole else {}
        with np.load(file, allow_pickle=False) as found:
            observed = {name: found[name] for name in found.files}
        if key in observed and recorded.null_count < len(recorded):
            _check_same(episode, observed[key], recorded)
        return observed

    def _cameras(self, episode: Episode) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in (self._run.folder, self._scratch):
            found |= videos_in(folder.attempt(episode.trial, episode.attempt), lossless=True)
        if not self._config.cameras or not found:
            return found
        names = [camera_name(key) for key in self._config.cameras]
        for name in names:
            if name not in found:
                raise UsageError(
                    f"There are no pictures of a camera {name!r}.{did_you_mean(name, found)} There "
                    f"are some of: {', '.join(found)}."
                )
        return {name: found[name] for name in names}

    def _task(self, episode: Episode) -> TaskInfo:
        trial = episode.trial
        return self._tasks.get((trial.suite, trial.task)) or TaskInfo(name=trial.task)


def _tasks(run: ChosenRun, watcher: Watcher) -> dict[tuple[str, str], TaskInfo]:
    """What the suites say of their tasks, where they can still be asked."""
    try:
        config = EvalConfig.recorded(run.config)
        tasks = Assembly(config).tasks()
    except (HocketError, ImportError) as exc:
        watcher.note(f"Prompts and control rates are not known, since the env cannot be had: {exc}")
        return {}
    return {(suite, info.name): info for suite, infos in tasks.items() for info in infos}


def _windows(episodes: Sequence[Episode]) -> Iterator[list[Episode]]:
    window: list[Episode] = []
    steps = 0
    for episode in episodes:
        if window and (len(window) == _WINDOW_EPISODES or steps + episode.steps > _WINDOW_STEPS):
            yield window
            window, steps = [], 0
        window.append(episode)
        steps += episode.steps
    if window:
        yield window


def _by_trial(run: ChosenRun, window: Sequence[Episode]) -> dict[str, pa.Table]:
    table = load_steps(run.folder, [episode.trial for episode in window])
    names = table["trial"].to_numpy(zero_copy_only=False)
    begins = np.flatnonzero(np.r_[True, names[1:] != names[:-1]])
    ends = np.r_[begins[1:], len(names)]
    return {
        names[begin]: table.slice(begin, end - begin)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    }


def _matrix(column: Any) -> Array:
    """A column of lists of one size, as `[rows, size]`."""
    flat = pc.list_flatten(column).to_numpy()
    rows: Array = flat.reshape(len(column), -1)
    return rows


def _check_same(episode: Episode, observed: Array, recorded: Any) -> None:
    """An env that changed since the run would give pictures that never were."""
    is_there = recorded.is_valid().to_numpy()
    expected = _matrix(recorded.filter(recorded.is_valid()))
    again = observed.reshape(len(observed), -1)[is_there]
    if again.shape != expected.shape or not np.allclose(
        again, expected, rtol=_SAME, atol=_SAME, equal_nan=True
    ):
        raise RunFolderError(
            f"Shown again, {episode.trial.id} is not what was recorded: its states differ. The env "
            f"has changed since, or does not restore its state in full."
        )


def _shows_again(run: ChosenRun) -> bool:
    try:
        return not Assembly(EvalConfig.recorded(run.config)).has_rows_alone
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
