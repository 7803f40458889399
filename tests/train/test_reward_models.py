"""A classifier of success, learnt from recorded episodes, and a reward of other runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import evaluate
from hocket.errors import ConfigError, UsageError
from hocket.records.run_file import load_about
from hocket.train.algorithms.judging import LEFT_OUT, SHOWS, SHOWS_NOT, labels
from hocket.train.config import TrainConfig
from hocket.train.reward_terms import reward_terms
from hocket.train.rewards import Rewards
from train.test_cloning import demonstrate
from train.test_offpolicy import recorded
from train.test_rewards import stretch
from train.test_training import ENV, records, run


def test_only_the_end_of_a_success_shows_one() -> None:
    far, near, shown = SHOWS_NOT, LEFT_OUT, SHOWS
    assert labels(recorded()).tolist() == [far, near, near, near, shown]
    assert labels(recorded(success=False)).tolist() == [far] * 5


def test_a_folder_without_a_reward_model_is_no_reward(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--algo reward"):
        reward_terms(str(tmp_path))


def record(tmp_path: Path) -> tuple[str, str]:
    """Successes and failures."""
    demonstrate(tmp_path / "good", episodes=16)
    bad = tmp_path / "bad"
    evaluate(env=ENV, policy="zero", episodes=16, lanes=1, video="none", out=bad, progress=False)
    return str(tmp_path / "good"), str(bad)


@pytest.mark.slow
def test_a_reward_model_tells_successes_and_is_a_reward(tmp_path: Path) -> None:
    data = record(tmp_path)
    named: dict[str, Any] = {"algo": "reward", "steps": 3200, "eval_every": 3200, "minibatch": 32}
    model = run(tmp_path, "model", data=data, **named)
    judged = records(model, "judged")[-1]
    kept = json.loads((model.run / "judge.json").read_text())
    assert kept["n"] == judged["judge/n"] == 4
    assert kept["accuracy"] == 1.0
    assert 0.4 < kept["accuracy_low"] < 1.0
    (term,) = reward_terms(f"0.5*{model.run}")
    assert (term.is_model, term.weight) == (True, 0.5)
    rewards = Rewards(str(model.run))
    ends = {
        place: stretch(
            actions=np.zeros((2, 3, 2), np.float32),
            final={"observation/state": np.full(2, place, np.float32)},
            trial=stretch().trial._replace(task="make"),
        )
        for place in (0.0, 0.5)
    }
    given = {place: rewards.give(one).stretch.rewards for place, one in ends.items()}
    assert given[0.0][-1, 1] > 0.7 > 0.3 > given[0.5][-1, 1]
    assert all(np.count_nonzero(one) == 1 for one in given.values())
    trained = run(tmp_path, "trained", reward=str(model.run), steps=200)
    assert records(trained, "update")[0]["train/return"] is not None
    assert any("judge.json" in str(one) for one in json.dumps(load_about(trained.run)).split('"'))
    assert TrainConfig.from_plain(json.loads(json.dumps({"env": ["a"], "policy": "actor"})))


@pytest.mark.slow
def test_recordings_without_failures_are_refused(tmp_path: Path) -> None:
    good, _ = record(tmp_path)
    with pytest.raises(UsageError, match="at least 5 of each kind"):
        run(tmp_path, "model", data=(good,), algo="reward", steps=100)
