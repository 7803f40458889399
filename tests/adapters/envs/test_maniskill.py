"""ManiSkill's envs as rows, on a stand-in for BaseEnv's step and reset."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from hocket.adapters.envs.maniskill import ManiSkill, ManiSkillConfig, ManiSkillRows
from hocket.core.contracts.batched import BatchedEnv
from hocket.core.data import Array
from hocket.errors import ConfigError, MissingExtraError

ROWS = 4


class Controller:
    """Adds up targets, as ManiSkill's `use_target` controllers do."""

    def __init__(self, rows: int) -> None:
        self._target_qpos = torch.zeros(rows, 2)

    def set_action(self, action: Any) -> None:
        self._target_qpos += 0.1 * action

    def reset(self) -> None:
        self._target_qpos[:] = 0.0


class Agent:
    def __init__(self, rows: int) -> None:
        self.controller = Controller(rows)


class StandIn:
    """The operations of BaseEnv's `step` and `reset`, in their order. `by_row` is how later
    versions set states: of some rows."""

    def __init__(self, rows: int, *, by_row: bool = True) -> None:
        self.num_envs = rows
        self.device = "cpu"
        self.scene = object()
        self.agent = Agent(rows)
        self.single_action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.cube = torch.zeros(rows, 13)
        self._elapsed_steps = torch.zeros(rows, dtype=torch.int32)
        self._episode_seed = np.zeros(rows, np.int64)
        if not by_row:
            self.set_state_dict = self._set_all  # type: ignore[method-assign, assignment]

    def step(self, action: Any) -> Any:
        self.agent.controller.set_action(action)
        self.cube[:, :2] += 0.5 * (self.agent.controller._target_qpos - self.cube[:, :2]) + 0.001
        self.cube[:, 7:9] += 0.01
        self._elapsed_steps += 1
        success = self.cube[:, 0] > 0.9
        info = {"elapsed_steps": self._elapsed_steps.clone(), "success": success}
        zeros = torch.zeros(self.num_envs, dtype=torch.bool)
        return self._obs(), -self.cube[:, 0].abs(), success.clone(), zeros, info

    def reset(self, seed: Any, options: Any) -> Any:
        ids = options["env_idx"]
        self._episode_seed[ids.numpy()] = seed
        self._elapsed_steps[ids] = 0
        self.cube[:, 7:] = 0.0  # `_clear_sim_state` knows no rows
        with torch.random.fork_rng():
            torch.manual_seed(int(self._episode_seed[0]))
            self.cube[ids, :2] = torch.rand(len(ids), 2) * 0.1
        self.agent.controller.reset()
        return self._obs(), {}

    def get_state_dict(self) -> dict[str, Any]:
        return {"actors": {"cube": self.cube.clone()}, "articulations": {}}

    def set_state_dict(self, state: dict[str, Any], env_idx: Any = None) -> None:
        self.cube[slice(None) if env_idx is None else env_idx] = state["actors"]["cube"]

    def _set_all(self, state: dict[str, Any]) -> None:
        self.cube[:] = state["actors"]["cube"]

    def _obs(self) -> Any:
        return torch.cat([self.cube[:, :2], self.agent.controller._target_qpos], 1).clone()

    def close(self) -> None:
        """Nothing to let go of."""


@pytest.fixture(params=[True, False], ids=["states by row", "all states"])
def env(request: pytest.FixtureRequest) -> StandIn:
    return StandIn(ROWS, by_row=request.param)


def rows_of(env: StandIn) -> ManiSkillRows:
    rows = ManiSkillRows(env, "PickCube-v1")
    rows.reset(np.arange(ROWS), ["PickCube-v1"] * ROWS, [3, 4, 5, 6])
    return rows


def everything(env: StandIn, row: int) -> list[Any]:
    parts = (env.cube, env._elapsed_steps, env.agent.controller._target_qpos)
    return [part[row].clone() for part in parts]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return all(bool((a == b).all()) for a, b in zip(ours, theirs, strict=True))


def actions(turn: int) -> Array:
    return np.sin(np.arange(ROWS * 2) + turn).reshape(ROWS, 2).astype(np.float32)


def test_a_suspended_row_is_the_same_after_a_thousand_steps_of_others(env: StandIn) -> None:
    rows = rows_of(env)
    before = everything(env, 1)
    seen = rows.observe(np.array([1]))["observation/state"].clone()
    for turn in range(1000):
        rows.step(actions(turn), np.array([True, False, True, True]))
    assert same(everything(env, 1), before)
    assert (rows.observe(np.array([1]))["observation/state"] == seen).all()
    assert env._elapsed_steps.tolist() == [1000, 0, 1000, 1000]


def test_a_reset_is_keyed_by_its_seed_alone_and_touches_its_row_alone(env: StandIn) -> None:
    rows = rows_of(env)
    for turn in range(5):
        rows.step(actions(turn), np.ones(ROWS, np.bool_))
    others = [everything(env, row) for row in (0, 1, 3)]
    rows.reset(np.array([2]), ["PickCube-v1"], [4])
    assert all(
        same(everything(env, row), kept) for row, kept in zip((0, 1, 3), others, strict=True)
    )
    twin = StandIn(ROWS)
    rows_of(twin)
    assert (env.cube[2] == twin.cube[1]).all()
    assert env._episode_seed[0] == 3


def test_a_row_moves_as_it_moves_alone(env: StandIn) -> None:
    rows, alone = rows_of(env), StandIn(1)
    single = ManiSkillRows(alone, "PickCube-v1")
    single.reset(np.array([0]), ["PickCube-v1"], [5])
    rng = np.random.default_rng(1)
    for turn in range(40):
        active = rng.random(ROWS) < 0.5
        if active.any():
            rows.step(actions(turn), active)
        if active[2]:
            single.step(actions(turn)[[2]], np.ones(1, np.bool_))
    assert torch.equal(env.cube[2], alone.cube[0])


def test_success_is_told_and_ends_nothing_by_itself(env: StandIn) -> None:
    rows = rows_of(env)
    for _ in range(30):
        result = rows.step(np.ones((ROWS, 2), np.float32), np.ones(ROWS, np.bool_))
    assert result.success is not None
    assert result.success.all()
    assert not result.terminated.any()


def test_it_is_a_batched_env(env: StandIn) -> None:
    rows: BatchedEnv = rows_of(env)
    assert rows.suspension == "snapshot"
    assert rows.rows == ROWS


def test_without_maniskill_the_command_to_install_it_is_told() -> None:
    suite = ManiSkill("PickCube-v1", ManiSkillConfig())
    assert suite.tasks()[0].max_steps == 100
    with pytest.raises(MissingExtraError, match="pip install mani_skill"):
        suite.make_rows("PickCube-v1", 2)
    with pytest.raises(ConfigError, match="PickCube"):
        ManiSkill("", ManiSkillConfig())
