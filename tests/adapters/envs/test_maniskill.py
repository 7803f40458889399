"""ManiSkill's envs as rows, on a stand-in for BaseEnv's step and reset."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from hocket.adapters.envs.maniskill import ManiSkill, ManiSkillConfig, Simpler, SimplerConfig
from hocket.adapters.envs.maniskill.rows import ManiSkillRows
from hocket.core.contracts.batched import BatchedEnv
from hocket.core.data import Array, Ref
from hocket.errors import ConfigError, MissingExtraError, SuspensionError, UnknownNameError
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.testing import check_batched
from hocket.workers.suites import has_rows

ROWS = 4


class Controller:
    """Adds up targets, as ManiSkill's `use_target` controllers do, in a new tensor each time."""

    def __init__(self, rows: int) -> None:
        self._target_qpos = torch.zeros(rows, 2)

    def set_action(self, action: Any) -> None:
        self._target_qpos = self._target_qpos + 0.1 * action

    def reset(self) -> None:
        self._target_qpos = torch.zeros_like(self._target_qpos)  # of all rows


class Scene:
    def __init__(self, env: StandIn) -> None:
        self._env = env

    def step(self) -> None:
        """A tick of physics, after which contacts are known. What the solver remembers of them is
        lost where a state is set."""
        env = self._env
        env.cube[:, 7:9] = env.agent.controller._target_qpos - env.cube[:, :2]
        env.cube[:, :2] += 0.5 * env.cube[:, 7:9] * (1.0 - 0.1 * env.is_cold[:, None])
        env.is_cold[:] = 0.0
        env.grasped = env.cube[:, 0] > 0.5


class StandIn:
    """The operations of BaseEnv's `step` and `reset`, in their order."""

    gpu_sim_enabled = True
    device = "cpu"
    backend = SimpleNamespace(sim_backend="physx_cuda")
    control_freq = 20
    _max_episode_steps = 50

    def __init__(self, rows: int, *, settles: bool = False) -> None:
        self.unwrapped = self
        self.num_envs, self._settles = rows, settles
        self.agent = SimpleNamespace(controller=Controller(rows))
        self.scene = Scene(self)
        self.scene._gpu_fetch_all = lambda: None  # type: ignore[attr-defined]
        self.single_action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.cube, self.is_cold = torch.zeros(rows, 13), torch.zeros(rows)
        self.grasped = torch.zeros(rows, dtype=torch.bool)
        self._elapsed_steps = torch.zeros(rows, dtype=torch.int32)

    def get_language_instruction(self) -> list[str]:
        return ["push the cube"] * self.num_envs

    def step(self, action: Any) -> Any:
        self.agent.controller.set_action(action)
        self.scene.step()
        self._elapsed_steps += 1
        success = self.cube[:, 0] > 0.9
        info = {"elapsed_steps": self._elapsed_steps.clone(), "success": success}
        zeros = torch.zeros(self.num_envs, dtype=torch.bool)
        return self._obs(), -self.cube[:, 0].abs(), success.clone(), zeros, info

    def reset(self, seed: list[int], options: dict[str, Any]) -> Any:
        ids = options["env_idx"]
        self._batched_episode_rng = SimpleNamespace(
            rngs=[np.random.RandomState(each) for each in seed]
        )
        self._elapsed_steps[ids] = 0
        self.cube[ids] = 0.0
        with torch.random.fork_rng():
            torch.manual_seed(seed[0])
            self.cube[ids, :2] = torch.rand(len(ids), 2) * 0.1
        for row in ids.tolist():
            drawn = self._batched_episode_rng.rngs[row].uniform(0, 0.1)
            self.cube[row, 2] = drawn
        if self._settles:
            self.scene.step()
        self.agent.controller.reset()
        return self._obs(), {}

    def get_state_dict(self) -> dict[str, Any]:
        return {"actors": {"cube": self.cube.clone()}, "articulations": {}}

    def get_state(self) -> Any:
        return self.cube.clone()

    def set_state_dict(self, state: dict[str, Any], env_idx: Any) -> None:
        self.cube[env_idx] = state["actors"]["cube"]
        self.is_cold[env_idx] = 1.0

    def _obs(self) -> Any:
        parts = (self.cube[:, :3], self.agent.controller._target_qpos, self.grasped[:, None])
        return torch.cat(parts, 1).clone()

    def close(self) -> None:
        """Nothing to let go of."""


def rows_of(env: StandIn, *, is_exact: bool = False) -> ManiSkillRows:
    rows = ManiSkillRows(env, "PickCube-v1", is_exact=is_exact)
    rows.reset(np.arange(ROWS), ["PickCube-v1"] * ROWS, [3, 4, 5, 6])
    return rows


@pytest.fixture
def env() -> StandIn:
    return StandIn(ROWS)


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
    draws = env._batched_episode_rng.rngs[3]
    rows.reset(np.array([2]), ["PickCube-v1"], [4])
    assert all(
        same(everything(env, row), kept) for row, kept in zip((0, 1, 3), others, strict=True)
    )
    assert env._batched_episode_rng.rngs[3] is draws
    twin = StandIn(ROWS)
    rows_of(twin)
    assert (env.cube[2] == twin.cube[1]).all()


def test_an_observation_at_a_start_says_nothing_of_the_grasp_before(env: StandIn) -> None:
    rows = rows_of(env, is_exact=True)
    for _ in range(9):
        rows.step(np.ones((ROWS, 2), np.float32), np.ones(ROWS, np.bool_))
    assert env.grasped.all()
    rows.reset(np.arange(ROWS), ["PickCube-v1"] * ROWS, [3, 4, 5, 6])
    assert not rows.observe(np.arange(ROWS))["observation/state"][:, 5].any()


def test_exact_rows_that_others_left_behind_are_refused_until_their_reset(env: StandIn) -> None:
    rows = rows_of(env, is_exact=True)
    everyone, some = np.ones(ROWS, np.bool_), np.array([True, False, True, True])
    rows.step(actions(0), everyone)
    rows.step(actions(1), some)  # row 1 has no episode any more
    rows.step(actions(2), some)
    with pytest.raises(SuspensionError, match=r"Row 1 .*--env\.rows fast"):
        rows.step(actions(3), everyone)
    rows.reset(np.arange(ROWS), ["PickCube-v1"] * ROWS, [3, 4, 5, 6])
    rows.step(actions(3), everyone)
    assert not env.is_cold.any()


def test_exact_rows_keep_the_rules_of_batched_simulators() -> None:
    check_batched(lambda rows: ManiSkillRows(StandIn(rows), "PickCube-v1", is_exact=True))


def test_fast_rows_say_what_it_changes_that_they_wait() -> None:
    rows = ManiSkillRows(StandIn(1), "PickCube-v1", is_exact=False)
    assert float(rows.facts["change_by_waiting"].split()[0]) > 0
    assert "change_by_waiting" not in ManiSkillRows(StandIn(1), "x", is_exact=True).facts


def test_a_task_whose_reset_moves_all_rows_is_refused() -> None:
    with pytest.raises(SuspensionError, match="physx_cpu"):
        rows_of(StandIn(ROWS, settles=True), is_exact=True)


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
    assert rows_of(env, is_exact=True).suspension == "together"
    assert rows.rows == ROWS


def test_a_machine_with_cuda_steps_rows_and_one_without_makes_processes() -> None:
    ref = Ref(name="maniskill:PickCube-v1", config={"sim_backend": "physx_cuda"})
    assert has_rows(ref)
    assert not has_rows(Ref(name=ref.name, config={"sim_backend": "physx_cpu"}))
    assert ManiSkill.settle({})["sim_backend"] in ("physx_cpu", "physx_cuda")
    assert ManiSkill.settle({"sim_backend": "gpu"}) == {"sim_backend": "gpu"}
    with pytest.raises(ConfigError, match="on a CPU there are none"):
        ManiSkill.settle({"sim_backend": "physx_cpu", "rows": "fast"})
    suites = Assembly(EvalConfig(env=(ref.name,), policy="random")).suites
    assert suites[ref.name].config["sim_backend"] == ManiSkill.settle({})["sim_backend"]


def test_all_of_make_can_be_said() -> None:
    config = ManiSkillConfig(render_backend="none", kwargs='{"robot_uids": "fetch"}')
    assert config.arguments == {
        "obs_mode": "state",
        "sim_backend": "auto",
        "render_backend": "none",
        "robot_uids": "fetch",
    }
    for wrong in ("[]", "{"):
        with pytest.raises(ConfigError, match="JSON"):
            ManiSkillConfig(kwargs=wrong)
    with pytest.raises(ConfigError, match="rows"):
        ManiSkillConfig(rows="slow")  # type: ignore[arg-type]


def test_simpler_names_itself_as_the_port_and_counts_the_last_step() -> None:
    suite = Simpler("widowx", SimplerConfig())
    assert [info.max_steps for info in suite.tasks()] == [60, 60, 60, 120]
    assert {info.success_rule for info in suite.tasks()} == {"final"}
    assert all(info.prompt for info in suite.tasks())
    assert "ManiSkill 3 port" in suite.facts["simulator"]
    assert "ManiSkill 2" in suite.notes[0]
    with pytest.raises(UnknownNameError, match="widowx"):
        Simpler("google", SimplerConfig())


def test_without_maniskill_the_command_to_install_it_is_told() -> None:
    suite = ManiSkill("PickCube-v1", ManiSkillConfig())
    with pytest.raises(MissingExtraError, match="hocket venv maniskill"):
        suite.make_rows("PickCube-v1", 2)
    with pytest.raises(ConfigError, match="PickCube"):
        ManiSkill("", ManiSkillConfig())
