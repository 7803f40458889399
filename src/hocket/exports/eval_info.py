"""LeRobot's `eval_info.json`, as its own evaluation writes it, for scripts that read it.

What LeRobot has no key for stands beside its keys: seeds and lengths of the episodes, the interval
of each rate, and under `hocket` the policy and how many trials ended as errors, which count in no
rate.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hocket.core.data import Episode, Outcome
from hocket.exports import new_file
from hocket.records.parquet import read_table
from hocket.results.report import FILE_NAME, Report
from hocket.results.scores import Score
from hocket.runs.demonstrations.chosen import ChosenRun, ExportConfig, Watcher


@dataclass(slots=True)
class _Metrics:
    """Some episodes. `highest` lacks those whose steps were not recorded."""

    episodes: list[Episode] = field(default_factory=list)
    highest: list[float] = field(default_factory=list)
    videos: list[str] = field(default_factory=list)

    def add(self, episode: Episode, highest: float | None, videos: Sequence[str]) -> None:
        self.episodes.append(episode)
        if highest is not None:
            self.highest.append(highest)
        self.videos += videos

    @property
    def successes(self) -> list[bool]:
        """Without episodes at which nothing could succeed."""
        judged = (e.outcome for e in self.episodes if e.outcome is not Outcome.FINISHED)
        return [outcome is Outcome.SUCCESS for outcome in judged]

    def lists(self) -> dict[str, Any]:
        return {
            "sum_rewards": [_finite(episode.total_reward) for episode in self.episodes],
            "max_rewards": [_finite(value) for value in self.highest],
            "successes": self.successes,
            **self._beside,
            "seeds": [episode.trial.seed for episode in self.episodes],
            "lengths": [episode.steps for episode in self.episodes],
        }

    def means(self) -> dict[str, Any]:
        rate = _mean(self.successes)
        return {
            "avg_sum_reward": _mean([episode.total_reward for episode in self.episodes]),
            "avg_max_reward": _mean(self.highest),
            "pc_success": None if rate is None else rate * 100,
            "n_episodes": len(self.episodes),
            **self._beside,
        }

    @property
    def _beside(self) -> dict[str, Any]:
        """Films, and the interval of the success rate; of several tasks it is that of the mean of
        their rates."""
        interval = Score.of(self.episodes).success.interval
        ends = None if interval is None else [interval.low * 100, interval.high * 100]
        return {
            "video_paths": self.videos,
            "predicted_video_paths": [],
            "pc_success_interval": ends,
        }


def write(run: ChosenRun, out: Path, config: ExportConfig, watcher: Watcher) -> None:
    del config
    watcher.stage("reading", len(run.episodes))
    highest = _highest_rewards(run)
    tasks: dict[tuple[str, str], _Metrics] = {}
    groups: dict[str, _Metrics] = {}
    overall = _Metrics()
    for trial in run.recorded.trials:
        tasks.setdefault((trial.suite, trial.task), _Metrics())
    for episode in run.episodes:
        trial, best = episode.trial, highest.get(episode.trial.id)
        videos = [str(run.folder.root / file) for file in run.recorded.videos(episode)]
        group = groups.setdefault(_group(trial.suite, trial.task), _Metrics())
        for metrics in (tasks[trial.suite, trial.task], group, overall):
            metrics.add(episode, best, videos)
        watcher.advance("reading")
    info = {
        "per_task": _per_task(tasks),
        "per_group": {suite: metrics.means() for suite, metrics in groups.items()},
        "overall": {**overall.means(), **_seconds(run)},
        "hocket": _beside(run),
    }
    if len(overall.highest) < len(run.episodes):
        watcher.note("max_rewards lacks episodes: their steps were not recorded.")
    with new_file(out) as draft:
        draft.write_text(json.dumps(info, indent=2, allow_nan=False) + "\n")


def _per_task(tasks: dict[tuple[str, str], _Metrics]) -> list[dict[str, Any]]:
    """The metrics of each task that has an episode; tasks are numbered in each suite as they were
    planned."""
    numbers: Counter[str] = Counter()
    rows = []
    for (suite, task), metrics in tasks.items():
        number, numbers[suite] = numbers[suite], numbers[suite] + 1
        group = _group(suite, task)
        if group != suite:
            number = int(task.removeprefix(f"{group}_"))
        if metrics.episodes:
            row = {"task_group": group, "task_id": number, "task": task, "metrics": metrics.lists()}
            rows.append(row)
    return rows


def _group(suite: str, task: str) -> str:
    """What LeRobot's group of a task is called; a task of its own envs is GROUP_NUMBER."""
    return task.rpartition("_")[0] if suite.startswith("lerobot:") else suite


def _highest_rewards(run: ChosenRun) -> dict[str, float]:
    """The highest reward of each trial whose steps were recorded; the reset has no reward."""
    found: dict[str, float] = {}
    if not run.folder.ledger.exists():
        return found
    for batch in read_table(run.folder, "steps", ["trial", "step", "reward"]):
        rows = pa.table(batch).filter(pc.field("step") > 0)
        grouped = rows.group_by("trial").aggregate([("reward", "max")])
        for row in grouped.to_pylist():
            found[row["trial"]] = max(row["reward_max"], found.get(row["trial"], -math.inf))
    return found


def _seconds(run: ChosenRun) -> dict[str, Any]:
    """How long the run took, where its report says so."""
    if not (run.folder.root / FILE_NAME).exists():
        return {"eval_s": None, "eval_ep_s": None}
    wall_s = Report.load(run.folder.root).throughput.wall_s
    return {"eval_s": wall_s, "eval_ep_s": wall_s / max(1, len(run.episodes))}


def _beside(run: ChosenRun) -> dict[str, Any]:
    episodes = run.recorded.report.episodes
    return {
        "policy": run.config.get("policy"),
        "env": run.config.get("env"),
        "planned": len(run.recorded.trials),
        "errors": sum(episode.outcome is Outcome.ERROR for episode in episodes),
        "labels": {e.trial.id: run.label(e) for e in run.episodes if run.label(e)},
    }


def _mean(values: Sequence[float]) -> float | None:
    numbers = np.array(values, float)
    numbers = numbers[np.isfinite(numbers)]
    return float(numbers.mean()) if numbers.size else None


def _finite(value: float) -> float | None:
    """The value, or None for NaN and infinity, which JSON does not know."""
    return value if math.isfinite(value) else None
