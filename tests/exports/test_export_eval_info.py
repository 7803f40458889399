"""LeRobot's eval_info.json."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from hocket.core.data import Outcome
from hocket.records.step_rows import load_steps
from support.exported_runs import EPISODES, TOY, episodes_of, export, run_toy


def test_every_number_is_the_ledgers(image_run: Path, tmp_path: Path) -> None:
    export(image_run, "eval_info", tmp_path / "info.json")
    info = json.loads((tmp_path / "info.json").read_text())
    episodes = episodes_of(image_run)
    (task,) = info["per_task"]
    assert (task["task_group"], task["task_id"]) == ("toy:image", 0)
    metrics = task["metrics"]
    assert metrics["sum_rewards"] == [episode.total_reward for episode in episodes]
    assert metrics["successes"] == [e.outcome is Outcome.SUCCESS for e in episodes]
    assert metrics["seeds"] == [episode.trial.seed for episode in episodes]
    best = [max(load_steps(image_run, [e.trial])["reward"].to_pylist()[1:]) for e in episodes]
    assert metrics["max_rewards"] == best
    assert info["per_group"]["toy:image"]["n_episodes"] == EPISODES
    assert info["overall"]["pc_success"] == np.mean(metrics["successes"]) * 100
    assert info["overall"]["avg_max_reward"] == np.mean(best)
    assert info["overall"]["eval_s"] > 0


def test_errors_and_episodes_without_a_goal_count_in_no_rate(tmp_path: Path) -> None:
    settings = {"env_config": {**TOY, "judged": False, "raise_at": 2, "fault_seed": 4}}
    folder = run_toy(tmp_path / "run", "count", retries=0, **settings)
    export(folder, "eval_info", tmp_path / "info.json")
    info = json.loads((tmp_path / "info.json").read_text())
    assert info["overall"]["pc_success"] is None
    assert info["overall"]["n_episodes"] == EPISODES - 1
    assert info["hocket"]["errors"] == 1
