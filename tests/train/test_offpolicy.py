"""Learning from all that was collected, and from recordings from the start."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hocket.core.specs import ArraySpec
from hocket.errors import ConfigError, RunFolderError
from hocket.train.data.replay import ReplayBuffer
from hocket.train.data.store import DataWriter, Recorded, Wanted, open_data
from hocket.train.data.windows import Windows
from hocket.train.learner import checkpoint
from hocket.train.networks.contract import Shapes
from hocket.train.rewards import RewardError, Rewards
from train.test_cloning import demonstrate
from train.test_rewards import stretch
from train.test_training import records, run, same_weights, settings, success

GAMMA = 0.5
RLPD: dict[str, Any] = {"algo": "rlpd", "batch": 4, "replays": 4, "minibatch": 32, "steps": 200}


def seen(buffer: ReplayBuffer, count: int = 64) -> Any:
    return buffer.draw(count, torch.Generator().manual_seed(0))


def test_a_decision_is_worth_its_executed_steps_and_what_follows(tmp_path: Path) -> None:
    buffer = ReplayBuffer(tmp_path / "replay", GAMMA)
    cut = stretch(
        terminated=False, truncated=True, final={"observation/state": np.array([7.0])}, prompt="go"
    )
    buffer.add([stretch(), cut])
    drawn = seen(buffer)
    assert len(buffer) == 4
    told = {
        (state, prompt): (reward, discount, following, tuple(mask))
        for state, prompt, reward, discount, following, mask in zip(
            drawn.observation["observation/state"][:, 0].tolist(),
            drawn.observation.prompts,
            drawn.reward.tolist(),
            drawn.discount.tolist(),
            drawn.following["observation/state"][:, 0].tolist(),
            drawn.mask.tolist(),
            strict=True,
        )
    }
    first = (1.0 + 2.0 * GAMMA + 3.0 * GAMMA**2, GAMMA**3, 1.0, (True, True, True))
    assert told[0.0, ""] == told[0.0, "go"] == first
    assert told[1.0, ""][:2] == (4.0 + 5.0 * GAMMA, 0.0), "terminated: nothing follows"
    assert told[1.0, "go"] == (4.0 + 5.0 * GAMMA, GAMMA**2, 7.0, (True, True, False))


def test_what_was_collected_after_a_checkpoint_is_forgotten(tmp_path: Path) -> None:
    buffer = ReplayBuffer(tmp_path / "replay", GAMMA)
    buffer.add([stretch()])
    rows, before = buffer.rows, seen(buffer)
    buffer.add([stretch(prompt="later")])
    with open(tmp_path / "replay" / "rows.bin", "ab") as file:
        file.write(b"half a row of a process that was killed")
    again = ReplayBuffer(tmp_path / "replay", GAMMA, rows=rows)
    assert len(again) == 2
    assert torch.equal(seen(again).actions, before.actions)
    again.add([stretch(prompt="later")])
    assert set(seen(again).observation.prompts) == {"", "later"}
    with pytest.raises(RunFolderError, match="fewer than 99 rows"):
        ReplayBuffer(tmp_path / "replay", GAMMA, rows=99)


def recorded(**changes: Any) -> Recorded:
    plain: dict[str, Any] = {
        "name": "one",
        "task": 0,
        "prompt": "",
        "actions": np.arange(5.0)[:, None],
        "observations": {"observation/state": np.arange(5.0)[:, None]},
        "pictures": {},
        "rewards": np.ones(5),
    }
    return Recorded(**{**plain, **changes})


def windows(tmp_path: Path, *episodes: Recorded, reward: str = "env") -> Windows:
    state = {"observation/state": ArraySpec(shape=(1,), dtype="float32")}
    rewards = Rewards(reward)
    writer = DataWriter(
        tmp_path / "data",
        Wanted(
            shapes=Shapes(observations=state, action_size=1, tasks=("a",)),
            tasks=[],
            inputs=("observation/state",),
            first=None,
            reward=lambda one: rewards.of_recorded(one, 2),
        ),
    )
    for episode in episodes:
        writer.add(episode)
    writer.finish()
    return Windows(open_data(tmp_path / "data"), 3)


def test_recorded_decisions_end_with_their_episode(tmp_path: Path) -> None:
    found = windows(tmp_path, recorded(), recorded(terminated=False)).moves(
        np.array([0, 3, 4, 5, 8, 9]), 2, GAMMA
    )
    assert found.reward.tolist() == [1.5, 1.5, 1.0, 1.5, 1.0, 1.0]
    # The last row of an episode that was cut off is what was seen at its end.
    assert found.discount.tolist() == [0.25, 0.0, 0.0, 0.25, 0.5, 0.5]
    assert found.following["observation/state"][:, 0].tolist() == [2.0, 4.0, 4.0, 2.0, 4.0, 4.0]
    assert found.mask.sum(1).tolist() == [2, 2, 1, 2, 1, 1]


def test_recorded_success_is_worth_one_at_its_end(tmp_path: Path) -> None:
    rows = np.arange(5)
    found = windows(tmp_path, recorded(), reward="success").moves(rows, 2, GAMMA)
    assert found.reward.tolist() == [0.0, 0.0, 0.0, 0.5, 1.0]


def test_recordings_without_the_rewards_that_are_asked_for_are_refused() -> None:
    with pytest.raises(RewardError, match="no rewards of the env"):
        Rewards("env").of_recorded(recorded(rewards=None), 2)


def test_settings_of_others_are_refused() -> None:
    with pytest.raises(ConfigError, match="critics is 1; it must be at least 2"):
        settings(algo="rlpd", critics=1)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(demonstrate(tmp_path_factory.mktemp("shown") / "demos", episodes=3))


@pytest.mark.slow
def test_a_resumed_run_is_the_one_that_was_never_interrupted(tmp_path: Path, shown: str) -> None:
    named = {**RLPD, "data": (shown,), "checkpoint_every": 1}
    whole = run(tmp_path, "whole", **named)
    folders = checkpoint.checkpoints(whole.run)
    assert len(folders) >= 2
    killed = tmp_path / "killed"
    shutil.copytree(whole.run, killed)
    for later in checkpoint.checkpoints(killed)[1:]:
        shutil.rmtree(later)
    assert not same_weights(killed, whole.run)
    rest = run(tmp_path, "killed", resume=True, **named)
    assert same_weights(rest.run, whole.run)
    assert (
        records(rest, "update")[-1]["learn/replay"] == records(whole, "update")[-1]["learn/replay"]
    )


@pytest.mark.slow
def test_the_number_of_lanes_changes_nothing(tmp_path: Path, shown: str) -> None:
    one = run(tmp_path, "one", data=(shown,), **RLPD)
    two = run(tmp_path, "two", data=(shown,), **{**RLPD, "lanes": 2})
    assert same_weights(one.run, two.run)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_point_is_brought_home_from_few_demonstrations(
    tmp_path: Path, shown: str, mode: str
) -> None:
    named = {**RLPD, "steps": 1500, "replays": 10, "data": (shown,), "eval_every": 1500}
    result = run(tmp_path, mode=mode, eval_episodes=10, **named)
    assert result.complete
    assert success(result)[0] == 0.0
    assert success(result)[-1] >= 0.8


def test_a_policy_that_flows_is_weighed_too(tmp_path: Path, shown: str) -> None:
    named = {**RLPD, "policy": "flow", "policy_config": {"chunk_length": 4}, "steps": 60}
    result = run(tmp_path, **{**named, "replays": 1}, data=(shown,))
    assert all(np.isfinite(one["learn/policy_loss"]) for one in records(result, "update"))
    assert replace(settings(), algo="rlpd").settled(100).batch == 16
