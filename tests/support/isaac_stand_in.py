"""A stand-in for Isaac Lab's ManagerBasedRLEnv: the operations of its `step` and `reset`, on the
managers it has, in the order in which it performs them; with a point mass for physics."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch


class Scene:
    """One rigid object, whose pose and velocity are all that the simulator knows of a row."""

    def __init__(self, rows: int) -> None:
        self.pose = torch.zeros(rows, 7)
        self.velocity = torch.zeros(rows, 6)
        self.written = 0

    def get_state(self, is_relative: bool = False) -> dict[str, Any]:
        assert not is_relative
        parts = {"root_pose": self.pose.clone(), "root_velocity": self.velocity.clone()}
        return {"rigid_object": {"block": parts}, "articulation": {}}

    def reset_to(self, state: dict[str, Any], env_ids: Any, is_relative: bool = False) -> None:
        assert not is_relative
        block = state["rigid_object"]["block"]
        self.pose[env_ids], self.velocity[env_ids] = block["root_pose"], block["root_velocity"]

    def write_data_to_sim(self) -> None:
        self.written += 1

    def update(self, dt: float) -> None:
        """The stand-in's buffers are the simulator itself."""


class Sim:
    def __init__(self) -> None:
        self.forwards = 0

    def forward(self) -> None:
        self.forwards += 1


class ActionManager:
    def __init__(self, rows: int) -> None:
        self._action = torch.zeros(rows, 2)
        self._prev_action = torch.zeros(rows, 2)

    def process_action(self, action: Any) -> None:
        self._prev_action[:] = self._action
        self._action[:] = action

    def reset(self, ids: Any) -> None:
        self._action[ids] = 0.0
        self._prev_action[ids] = 0.0


class CommandManager:
    """Draws a new command for a row whose time is up."""

    def __init__(self, rows: int) -> None:
        self.time_left = torch.full((rows,), 5.0)
        self.command = torch.zeros(rows, 2)

    def compute(self, dt: float) -> None:
        self.time_left -= dt
        ids = (self.time_left <= 0).nonzero().squeeze(-1)
        if len(ids):
            self.command[ids] += 1.0
            self.time_left[ids] = 5.0

    def reset(self, ids: Any) -> None:
        self.time_left[ids] = 5.0
        self.command[ids] = torch.rand(len(ids), 2)


class RewardManager:
    def __init__(self, rows: int) -> None:
        self._episode_sums = {"near": torch.zeros(rows)}

    def compute(self, env: Any) -> Any:
        value = -env.scene.pose[:, :2].norm(dim=1)
        self._episode_sums["near"] += value
        return value


class TerminationManager:
    def __init__(self, env: Any) -> None:
        self._env = env
        rows = env.num_envs
        self.active_terms = ["time_out", "success"]
        self._term_dones = {name: torch.zeros(rows, dtype=torch.bool) for name in self.active_terms}
        self._truncated_buf = torch.zeros(rows, dtype=torch.bool)
        self._terminated_buf = torch.zeros(rows, dtype=torch.bool)

    def compute(self) -> Any:
        self._truncated_buf[:] = self._env.episode_length_buf >= self._env.limit
        self._terminated_buf[:] = self._env.scene.pose[:, 0] > 2.0
        self._term_dones["time_out"][:] = self._truncated_buf
        self._term_dones["success"][:] = self._terminated_buf
        return self._truncated_buf | self._terminated_buf

    @property
    def terminated(self) -> Any:
        return self._terminated_buf

    @property
    def time_outs(self) -> Any:
        return self._truncated_buf

    def get_term(self, name: str) -> Any:
        return self._term_dones[name]


class RecorderManager:
    """Keeps the actions of each episode, and exports an episode when its env is reset."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.active_terms = ["actions"]
        self.episodes: dict[int, list[Any]] = {row: [] for row in range(env.num_envs)}
        self.exported: list[tuple[int, int]] = []

    def add_to_episodes(self, key: str | None, value: Any, env_ids: Any = None) -> None:
        if key is None:
            return
        ids = range(self._env.num_envs) if env_ids is None else env_ids.tolist()
        for place, row in enumerate(ids):
            self.episodes[row].append((key, value["applied"][place].clone()))

    def record_pre_step(self) -> None:
        self.add_to_episodes("actions", {"applied": self._env.action_manager._action})

    def record_post_step(self) -> None:
        self.add_to_episodes(None, None)

    def record_pre_reset(self, ids: Any) -> None:
        for row in ids.tolist():
            if self.episodes[row]:
                self.exported.append((row, len(self.episodes[row])))
            self.episodes[row] = []


class ObservationManager:
    """Two steps of history, in a buffer that each call shifts."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._buffer = torch.zeros(env.num_envs, 2, 4)

    def compute(self, update_history: bool = False) -> Any:
        now = torch.cat([self._env.scene.pose[:, :2], self._env.command_manager.command], 1)
        if update_history:
            self._buffer[:, 0] = self._buffer[:, 1].clone()
            self._buffer[:, 1] = now
        return {"policy": self._buffer.reshape(self._env.num_envs, -1).clone()}


class StandIn:
    """The env. `limit` is its own time-out, in steps."""

    def __init__(self, rows: int, limit: int = 1000) -> None:
        self.num_envs = rows
        self.limit = limit
        self.device = "cpu"
        self.single_action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.episode_length_buf = torch.zeros(rows, dtype=torch.long)
        self.scene, self.sim = Scene(rows), Sim()
        self.action_manager = ActionManager(rows)
        self.command_manager = CommandManager(rows)
        self.observation_manager = ObservationManager(self)
        self.termination_manager = TerminationManager(self)
        self.reward_manager = RewardManager(rows)
        self.recorder_manager = RecorderManager(self)
        self.own_resets = 0
        self.is_closed = False

    def step(self, action: Any) -> Any:
        self.action_manager.process_action(action.to(self.device))
        self.recorder_manager.record_pre_step()
        for _ in range(2):
            self.scene.write_data_to_sim()
            # Rows drift whatever their action is: a held row is not a still one.
            self.scene.velocity[:, :2] += 0.05 * self.action_manager._action + 0.01
            self.scene.pose[:, :2] += 0.05 * self.scene.velocity[:, :2]
            self.scene.update(dt=0.05)
        self.episode_length_buf += 1
        reset_buf = self.termination_manager.compute()
        terminated = self.termination_manager.terminated
        truncated = self.termination_manager.time_outs
        rewards = self.reward_manager.compute(self)
        self.recorder_manager.record_post_step()
        ids = reset_buf.nonzero(as_tuple=False).squeeze(-1)
        if len(ids):
            self.own_resets += len(ids)
            self.recorder_manager.record_pre_reset(ids)
            self._reset_idx(ids)
            self.scene.write_data_to_sim()
        self.command_manager.compute(dt=0.1)
        seen = self.observation_manager.compute(update_history=True)
        return seen, rewards, terminated, truncated, {}

    def reset(self, seed: int | None = None, env_ids: Any = None) -> Any:
        self.recorder_manager.record_pre_reset(env_ids)
        if seed is not None:
            torch.manual_seed(seed)
        self._reset_idx(env_ids)
        self.scene.write_data_to_sim()
        self.sim.forward()
        return self.observation_manager.compute(update_history=True), {}

    def _reset_idx(self, ids: Any) -> None:
        self.scene.pose[ids, :2] = torch.rand(len(ids), 2)
        self.scene.velocity[ids] = 0.0
        self.action_manager.reset(ids)
        self.command_manager.reset(ids)
        self.reward_manager._episode_sums["near"][ids] = 0.0
        self.observation_manager._buffer[ids] = 0.0
        self.episode_length_buf[ids] = 0

    def close(self) -> None:
        self.is_closed = True


made: list[StandIn] = []


def make(rows: int) -> StandIn:
    """What a user's factory does."""
    made.append(StandIn(rows, limit=40))
    return made[-1]
