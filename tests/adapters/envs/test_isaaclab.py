"""Isaac Lab's envs as rows, on a stand-in for its step and its managers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.adapters.envs.isaaclab import IsaacLab, IsaacLabConfig, IsaacRows
from hocket.core.data import Array
from hocket.errors import ConfigError, EnvError
from support.isaac_stand_in import StandIn, made

ROWS = 4


def rows_of(env: StandIn) -> IsaacRows:
    rows = IsaacRows(env, "task", "success")
    rows.reset(np.arange(ROWS), ["task"] * ROWS, [3, 4, 5, 6])
    return rows


def everything(env: Any, row: int) -> list[Any]:
    """All that the stand-in keeps of a row."""
    return [
        env.scene.pose[row].clone(),
        env.scene.velocity[row].clone(),
        env.episode_length_buf[row].clone(),
        env.action_manager._action[row].clone(),
        env.action_manager._prev_action[row].clone(),
        env.command_manager.time_left[row].clone(),
        env.command_manager.command[row].clone(),
        env.reward_manager._episode_sums["near"][row].clone(),
        env.observation_manager._buffer[row].clone(),
        env.termination_manager._terminated_buf[row].clone(),
    ]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return all(bool((a == b).all()) for a, b in zip(ours, theirs, strict=True))


def actions(turn: int) -> Array:
    return np.sin(np.arange(ROWS * 2) + turn).reshape(ROWS, 2).astype(np.float32)


def test_a_suspended_row_is_the_same_after_a_thousand_steps_of_others() -> None:
    env = StandIn(ROWS)
    rows = rows_of(env)
    active = np.array([True, False, True, True])
    before = everything(env, 1)
    seen = rows.observe(np.array([1]))["observation/policy"].clone()
    for turn in range(1000):
        rows.step(actions(turn // 100), active)
    assert same(everything(env, 1), before)
    assert (rows.observe(np.array([1]))["observation/policy"] == seen).all()
    assert env.episode_length_buf.tolist() == [1000, 0, 1000, 1000]
    assert env.own_resets == 0


def test_the_same_env_moves_rows_that_are_held_under_an_action() -> None:
    env = StandIn(ROWS)
    env.reset(env_ids=torch.arange(ROWS))
    before = everything(env, 1)
    env.step(torch.zeros(ROWS, 2))
    assert not same(everything(env, 1), before)


def test_the_recorder_gets_the_rows_that_moved_and_no_others() -> None:
    env = StandIn(ROWS)
    rows = rows_of(env)
    for turn in range(12):
        rows.step(actions(turn), np.arange(ROWS) % 3 != turn % 3)
    counts = [len(env.recorder_manager.episodes[row]) for row in range(ROWS)]
    assert counts == [8, 8, 8, 8]
    taken = [turn for turn in range(12) if turn % 3 != 1]
    kept = [value for _, value in env.recorder_manager.episodes[1]]
    assert all(
        np.allclose(value, actions(turn)[1]) for value, turn in zip(kept, taken, strict=True)
    )


def test_rows_that_end_are_not_reset_by_the_env_itself() -> None:
    env = StandIn(ROWS, limit=5)
    rows = rows_of(env)
    for _ in range(5):
        result = rows.step(actions(0), np.ones(ROWS, np.bool_))
    assert result.truncated.all()
    assert env.own_resets == 0
    assert env.episode_length_buf.tolist() == [5] * ROWS


def test_a_reset_is_keyed_by_its_seed_alone_and_touches_its_row_alone() -> None:
    env = StandIn(ROWS)
    rows = rows_of(env)
    for turn in range(7):
        rows.step(actions(turn), np.ones(ROWS, np.bool_))
    others = [everything(env, row) for row in (0, 1, 3)]
    rows.reset(np.array([2]), ["task"], [4])
    assert all(
        same(everything(env, row), kept) for row, kept in zip((0, 1, 3), others, strict=True)
    )
    twin = StandIn(ROWS)
    rows_of(twin)
    assert (env.scene.pose[2] == twin.scene.pose[1]).all()
    assert (env.command_manager.command[2] == twin.command_manager.command[1]).all()
    assert env.recorder_manager.exported[-1] == (2, 7)


def test_rows_are_put_back_even_where_the_step_raises() -> None:
    env = StandIn(ROWS)
    rows = rows_of(env)
    before = everything(env, 1)

    def broken(dt: float) -> None:
        raise RuntimeError("broken")

    env.command_manager.compute = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="broken"):
        rows.step(actions(0), np.array([True, False, True, True]))
    assert same(everything(env, 1), before)


def test_a_row_moves_as_it_moves_alone() -> None:
    env, alone = StandIn(ROWS), StandIn(1)
    rows = rows_of(env)
    single = IsaacRows(alone, "task", "success")
    single.reset(np.array([0]), ["task"], [5])
    rng = np.random.default_rng(0)
    for turn in range(40):
        active = rng.random(ROWS) < 0.5
        if not active.any():
            continue
        result = rows.step(actions(turn), active)
        if active[2]:
            expected = single.step(actions(turn)[[2]], np.ones(1, np.bool_))
            assert result.rewards[2] == pytest.approx(expected.rewards[0], abs=1e-6)
    assert torch.equal(env.scene.pose[2], alone.scene.pose[0])


class Steer:
    """Chunks of five that follow from what is seen."""

    def __init__(self) -> None:
        self.spec = hocket.PolicySpec(chunk_length=5, action_size=2, max_batch=8)

    def infer(self, batch: hocket.Batch) -> hocket.Actions:
        seen = batch.arrays["observation/policy"]
        push = 2.0 + np.sin(seen.sum(axis=1))
        return hocket.Actions(np.repeat(np.repeat(push[:, None, None], 5, 1), 2, 2))

    def close(self) -> None:
        """Nothing to let go of."""


def test_an_evaluation_runs_on_its_rows() -> None:
    report = hocket.evaluate(
        env="isaaclab:support.isaac_stand_in:make", policy=Steer(), lanes=3, episodes=7
    )
    assert report.overall.n == 7
    assert report.overall.rate == 1.0
    recorder = made[-1].recorder_manager
    by_hocket = sorted(episode.steps for episode in report.episodes)
    left = [len(steps) for steps in recorder.episodes.values()]
    assert sorted([count for _, count in recorder.exported] + left) == by_hocket


def test_the_name_must_be_a_factorys() -> None:
    with pytest.raises(ConfigError, match="make\\(rows\\)"):
        IsaacLab("Isaac-Lift-Cube-v0", IsaacLabConfig())


def test_isaac_sim_is_built_once_in_a_process() -> None:
    suite = IsaacLab("support.isaac_stand_in:make", IsaacLabConfig())
    suite.make_rows("task", 2)
    with pytest.raises(EnvError, match="hocket resume"):
        suite.make_rows("task", 2)
