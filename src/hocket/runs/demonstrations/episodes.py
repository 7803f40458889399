"""Episodes as data to learn from: each whole, all in planned order, one in memory at a time.

What a run did not keep of every step is observed again from the states of its simulator: an env
that defers its observation is looked at only where the policy asks, so between decisions there is
neither a picture nor a state of it. Workers put the simulator into each stored state and observe,
as they do to render a run's videos. Nothing is written into the run's folder.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hocket.core.data import Array, Episode, Ref, Trial
from hocket.core.plugins import did_you_mean
from hocket.core.specs import EnvSpec, TaskInfo
from hocket.errors import DamagedSegmentError, HocketError, RunFolderError, UsageError
from hocket.records.chunks import EXPERT, POLICY
from hocket.records.folder import RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.records.parquet import read_table
from hocket.records.step_rows import KeptStates, load_steps
from hocket.records.video.rerender import Rendered, RenderJob
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.demonstrations.chosen import ChosenRun, ExportConfig, Watcher, untimed
from hocket.runs.video import refuse_unknown_cameras, rerender_episodes
from hocket.workers.sinks.encoder import Quality, require_encoder
from hocket.workers.sinks.states import OBSERVATION_SINK, OBSERVATIONS_FILE
from hocket.workers.sinks.steps import Layout, read_layout, split_states
from hocket.workers.sinks.video import camera_name, rerender_record, videos_in

_SHOWING, _WRITING = "showing again", "writing"
"""Stages that a watcher is told of."""
_WINDOW_EPISODES = 128
"""Episodes observed again at a time, so that the pictures of all never lie on the disk
together."""
_WINDOW_STEPS = 50_000
"""Steps loaded at a time: the table is read once for each such window."""
_SAME = 1e-5
"""How far what is observed again may be from what was recorded."""


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
    prompt: str
    """What was to be done, in words; the task's name where the env has none."""
    label: str = ""
    """What somebody said of it; empty where nobody did."""
    intervention: Array | None = None
    """bool `[N]`: the steps that an expert did; None where none could take over."""

    @property
    def length(self) -> int:
        return len(self.actions)


class Demonstrations:
    """The chosen episodes of a run, with what its tables lack made anew in `scratch`."""

    def __init__(
        self, run: ChosenRun, config: ExportConfig, scratch: Path, watcher: Watcher
    ) -> None:
        self._run = run
        self._config = config
        self._scratch = RunFolder.at(scratch)
        self._watcher = watcher
        with LedgerView.open(run.folder) as ledger:
            self._specs = ledger.specs()
        refuse_unknown_cameras(config.cameras, self._specs.values())
        self._shows_again = _shows_again(run)
        self._seen = _recorded_steps(run)
        self._states = KeptStates(run.folder)
        try:
            self._experts = _experts(run)
        except DamagedSegmentError:
            self._experts = {}
            watcher.note("The table of chunks is damaged: who acted is not known.")
        self._jobs: dict[str, RenderJob] = {}
        """Episodes that are to be observed again, by trial id."""
        self.episodes = [episode for episode in run.episodes if episode.steps > 0]
        if len(self.episodes) < len(run.episodes):
            empty = len(run.episodes) - len(self.episodes)
            watcher.note(f"{empty} episodes without a step are left out.")
        self._plan_missing()

    def _plan_missing(self) -> None:
        """Find out what the chosen episodes lack; what cannot be made up for is refused."""
        without = 0
        for episode in self._run.episodes:
            trial = episode.trial.id
            seen = self._seen.get(trial)
            if seen is None or seen.rows != episode.steps + 1:
                raise RunFolderError(
                    f"The steps of {trial} were not recorded (--record none?), so there is nothing "
                    f"to export of it. eval_info and perfetto need no steps."
                )
            folder = self._run.folder.attempt(episode.trial, episode.attempt)
            lacks_pictures = (
                self._config.images
                and may_have_cameras(self._spec(episode.trial))
                and not videos_in(folder, lossless=True)
            )
            lacks_numbers = seen.lacks(with_large=self._config.images)
            if self._can_show(episode):
                if lacks_pictures or lacks_numbers:
                    record = rerender_record(episode, images=lacks_pictures)
                    states = functools.partial(self._states.load, episode)
                    self._jobs[trial] = RenderJob(episode=episode, states=states, record=record)
                continue
            self._refuse_loss(episode.trial, seen, lacks_numbers)
            without += lacks_pictures
        # Where every picture was kept, an env without any has no camera.
        if without and self._run.config.get("record") not in ("data", "full"):
            self._watcher.note(
                f"No pictures were kept of {without} episodes, and there are no simulator states "
                f"to make them from: they are exported without. hocket eval --record full keeps "
                f"pictures."
            )

    def _spec(self, trial: Trial) -> EnvSpec:
        return self._specs[trial.suite, trial.task]

    def _can_show(self, episode: Episode) -> bool:
        is_possible = self._shows_again and "deferred" in self._spec(episode.trial).abilities
        return is_possible and self._states.has(episode)

    def _refuse_loss(self, trial: Trial, seen: _Seen, lacks: str | None) -> None:
        """Raise where something that the env observed is not in the dataset, nor can be."""
        if lacks is not None:
            raise RunFolderError(
                f"{trial.id} cannot be exported: {lacks}, and its simulator cannot show it again. "
                f"Record with --record full"
                + ("." if seen.states < seen.rows else ", or leave it out with --no-images.")
            )

    def _observe(self, episodes: Sequence[Episode]) -> None:
        """Observe the episodes again that lack something; what comes of it lies in the scratch
        folder as in a run folder."""
        jobs = [self._jobs[e.trial.id] for e in episodes if e.trial.id in self._jobs]
        if not jobs:
            return
        sinks: tuple[Ref, ...] = (Ref(name=OBSERVATION_SINK),)
        if self._config.images:
            require_encoder(Quality(lossless=True).codec)
            pictures = {"cameras": list(self._config.cameras), "lossless": True}
            sinks = (Ref(name="video", config=pictures), *sinks)

        def on_rendered(rendered: Rendered) -> None:
            if rendered.error is not None:
                raise RunFolderError(
                    f"{rendered.job.episode.trial.id} cannot be shown again: {rendered.error}\n"
                    f"Record with --record full, or export with --no-images what was recorded."
                )
            self._watcher.advance(_SHOWING)

        run, workers = EvalConfig.from_plain(self._run.config), self._config.workers
        rerender_episodes(
            run, Assembly(run), self._scratch, jobs, sinks, on_rendered, workers=workers
        )

    def rate(self) -> float:
        """Control steps per second of all chosen tasks."""
        if not self.episodes:
            raise UsageError("None of the chosen episodes has a step: there is nothing to export.")
        if self._config.fps is not None:
            return self._config.fps
        tasks = [self._spec(episode.trial).task for episode in self.episodes]
        for task in tasks:
            if not task.control_rate:
                raise UsageError(untimed(task.name))
        rates = {task.control_rate for task in tasks}
        if len(rates) > 1:
            raise UsageError(
                f"The tasks run at different rates ({', '.join(str(rate) for rate in rates)} steps "
                f"per second). Give --fps, or export them apart with --task."
            )
        (rate,) = rates
        assert rate is not None
        return rate

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
        task, prompt = self._spec(episode.trial).task, steps["prompt"][0].as_py()
        return Demonstration(
            episode=episode,
            task=task,
            actions=_matrix(steps["action"].slice(1)),
            rewards=steps["reward"].to_numpy()[1:],
            terminated=steps["terminated"].to_numpy()[1:],
            truncated=steps["truncated"].to_numpy()[1:],
            success=None if said.null_count else said.to_numpy(),
            observations=self._observations(episode, steps),
            states=self._states.load(episode),
            cameras=self._cameras(episode) if self._config.images else {},
            prompt=prompt or task.prompt or task.name,
            label=self._run.label(episode),
            intervention=self._intervention(episode, steps),
        )

    def _intervention(self, episode: Episode, steps: pa.Table) -> Array | None:
        chunks = self._experts.get(episode.trial.id)
        return None if chunks is None else np.isin(steps["chunk"].to_numpy()[1:], list(chunks))

    def _observations(self, episode: Episode, steps: pa.Table) -> dict[str, Array]:
        layout = self._seen[episode.trial.id].layout
        is_there = steps["state"].is_valid().to_numpy()
        states = steps["state"].drop_null()
        recorded = split_states(_matrix(states), layout) if len(states) else {}
        file = self._scratch.attempt(episode.trial, episode.attempt) / OBSERVATIONS_FILE
        if file.is_file():
            with np.load(file, allow_pickle=False) as found:
                observed = {name: found[name] for name in found.files}
            for key, rows in recorded.items():
                _check_same(episode, key, observed.get(key), rows, is_there)
        else:
            observed = recorded
        _refuse_equal_names(observed)
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


def _check_same(
    episode: Episode, key: str, observed: Array | None, recorded: Array, is_there: Array
) -> None:
    """An env that changed since the run would give pictures that never were."""
    again = np.empty(0) if observed is None else observed[is_there]
    if again.shape != recorded.shape or not np.allclose(
        again, recorded, rtol=_SAME, atol=_SAME, equal_nan=True
    ):
        raise RunFolderError(
            f"Shown again, {episode.trial.id} is not what was recorded: its {key!r} differs. The "
            f"env has changed since, or does not restore its state in full."
        )


def _refuse_equal_names(keys: Collection[str]) -> None:
    """Refuse arrays that formats would write under one name."""
    names: dict[str, str] = {}
    for key in keys:
        other = names.setdefault(camera_name(key), key)
        if other != key:
            raise UsageError(
                f"The env observes both {other!r} and {key!r}, which a dataset would have under "
                f"one name. Rename one of them."
            )


def may_have_cameras(spec: EnvSpec) -> bool:
    """Of rows the folder says only what the policy reads."""
    shapes = [array.shape for array in spec.observations.values()]
    has_pictures = any(len(shape) == 3 and shape[2] in (3, 4) for shape in shapes)
    return "batched" in spec.abilities or bool(spec.cameras) or has_pictures


def _shows_again(run: ChosenRun) -> bool:
    try:
        return not Assembly(EvalConfig.from_plain(run.config)).has_rows_alone
    except (HocketError, ImportError):
        return True  # Whoever needs the env will say that it cannot be had.


@dataclass(slots=True)
class _Seen:
    """What the table of steps has of an episode."""

    rows: int = 0
    """Its steps, the reset included."""
    states: int = 0
    """Those of them that were observed."""
    layout: Layout = field(default_factory=dict)

    def lacks(self, *, with_large: bool) -> str | None:
        """What is missing of its observations, in words; None where they are whole."""
        large = [key for key, array in self.layout.items() if not array.is_kept]
        if len(large) < len(self.layout) and self.states < self.rows:
            return "it was observed where the policy looked and not at every step"
        return f"its {large[0]!r} was too large to be recorded" if large and with_large else None


def _experts(run: ChosenRun) -> dict[str, set[int]]:
    """The chunks that an expert made, by trial, of those where one could."""
    found: dict[str, set[int]] = {}
    for batch in read_table(run.folder, "chunks", ["trial", "chunk", "source"]):
        for row in batch.filter(pc.is_in(batch["source"], pa.array([EXPERT, POLICY]))).to_pylist():
            chunks = found.setdefault(row["trial"], set())
            if row["source"] == EXPERT:
                chunks.add(row["chunk"])
    return found


def _recorded_steps(run: ChosenRun) -> dict[str, _Seen]:
    """What there is of each trial, by its id."""
    found: dict[str, _Seen] = {}
    layouts: dict[str, Layout] = {}
    for batch in read_table(run.folder, "steps", ["trial", "state", "layout"]):
        is_seen = pc.is_valid(batch["state"])
        columns = {"trial": batch["trial"], "layout": batch["layout"], "is_seen": is_seen}
        counted = pa.table(columns).group_by(["trial", "layout"])
        for row in counted.aggregate([("is_seen", "sum"), ("is_seen", "count")]).to_pylist():
            seen = found.setdefault(row["trial"], _Seen())
            seen.rows += row["is_seen_count"]
            seen.states += row["is_seen_sum"]
            text = row["layout"]
            seen.layout = layouts.setdefault(text, read_layout(text))
    return found
