"""LeRobot's `eval_info.json`, as its own evaluation writes it, for scripts that read it.

What LeRobot has no key for stands beside its keys: seeds and lengths of the episodes, and under
`hocket` the policy and how many trials ended as errors, which no rate counts.
"""

from __future__ import annotations

import dataclasses
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
from hocket.records.parquet import read_table
from hocket.results.report import FILE_NAME, Report
from hocket.runs.demonstrations.chosen import ChosenRun, ExportConfig, Watcher
from hocket.runs.export import new_file


@dataclass(slots=True)
class _Metrics:
    """Lists with one number for each of some episodes. `successes` lacks episodes at which nothing
    could succeed, and `max_rewards` those whose steps were not recorded."""

    sum_rewards: list[float] = field(default_factory=list)
    max_rewards: list[float] = field(default_factory=list)
    successes: list[bool] = field(default_factory=list)
    video_paths: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def add(self, episode: Episode, highest: float | None, videos: Sequence[str]) -> None:
        self.sum_rewards.append(episode.total_reward)
        if highest is not None:
            self.max_rewards.append(highest)
        if episode.outcome is not Outcome.FINISHED:
            self.successes.append(episode.outcome is Outcome.SUCCESS)
        self.video_paths += videos
        self.seeds.append(episode.trial.seed)
        self.lengths.append(episode.steps)

    def lists(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "sum_rewards": [_finite(value) for value in self.sum_rewards],
            "max_rewards": [_finite(value) for value in self.max_rewards],
        }

    def means(self) -> dict[str, Any]:
        rate = _mean(self.successes)
        return {
            "avg_sum_reward": _mean(self.sum_rewards),
            "avg_max_reward": _mean(self.max_rewards),
            "pc_success": None if rate is None else rate * 100,
            "n_episodes": len(self.sum_rewards),
            "video_paths": self.video_paths,
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
        group = groups.setdefault(trial.suite, _Metrics())
        for metrics in (tasks[trial.suite, trial.task], group, overall):
            metrics.add(episode, best, videos)
        watcher.advance("reading")
    info = {
        "per_task": _per_task(tasks),
        "per_group": {suite: metrics.means() for suite, metrics in groups.items()},
        "overall": {**overall.means(), **_seconds(run)},
        "hocket": _beside(run),
    }
    if len(overall.max_rewards) < len(run.episodes):
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
        if metrics.sum_rewards:
            row = {"task_group": suite, "task_id": number, "task": task, "metrics": metrics.lists()}
            rows.append(row)
    return rows


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
