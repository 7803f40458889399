"""Stands in for Isaac Lab's ManagerBasedRLEnv, with its conventions: callable terms, tensors bound
anew, time before rows in buffers, targets that `reset_to` rewrites and no reset clears."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch


class CircularBuffer:
    """A history `[time, rows, ...]`, filled with the first frame after a reset."""

    def __init__(self, length: int, rows: int) -> None:
        self._buffer, self._num_pushes = torch.zeros(length, rows, 4), torch.zeros(rows).long()
        self._need_reset, self._stack_dim_internal = True, None

    def append(self, data: Any) -> None:
        self._buffer.copy_(torch.cat([self._buffer[1:], data[None]]))
        if self._need_reset:
            self._buffer[:, self._num_pushes == 0] = data[self._num_pushes == 0]
            self._need_reset = False
        self._num_pushes += 1


class DelayBuffer:
    """A ring `[time, rows, ...]` whose place to write next is the same for all rows."""

    def __init__(self, lag: int, rows: int) -> None:
        self._buffer, self._num_pushes = torch.zeros(lag + 1, rows, 2), torch.zeros(rows).long()
        self._write_index = torch.zeros(1).long()

    def compute(self, data: Any) -> Any:
        self._buffer.index_copy_(0, self._write_index, data[None])
        at = self._write_index - self._num_pushes.clamp(max=len(self._buffer) - 1)
        self._num_pushes.add_(1)
        self._write_index.add_(1).remainder_(len(self._buffer))
        return self._buffer[at % len(self._buffer), torch.arange(len(data))]


class Term:
    """A command that is drawn again within an episode, or an action."""

    def __init__(self, env: StandIn) -> None:
        self.time_left = torch.zeros(env.num_envs)
        self.goal, self.raw = torch.zeros(2, env.num_envs, 2)

    def __call__(self) -> None: ...

    def _resample(self, ids: Any) -> None:
        self.time_left[ids] = torch.rand(len(ids)) + 0.5
        self.goal[ids] = torch.rand(len(ids), 2)


class StandIn:
    """The env, with what its scene and its managers do. `limit` is its own time-out, in steps."""

    seed = staticmethod(torch.manual_seed)

    def __init__(self, rows: int, limit: int = 40) -> None:
        self.num_envs, self.limit, self.device, self.own_resets = rows, limit, "cpu", 0
        self.single_action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.episode_length_buf = torch.zeros(rows, dtype=torch.long)
        self.pose, self.velocity, self.target = torch.zeros(3, rows, 2)
        self.scene = SimpleNamespace(actuator=DelayBuffer(2, rows), write_data_to_sim=int)
        self.scene.get_state = lambda is_relative: {"pose": self.pose, "velocity": self.velocity}
        self.scene.reset_to, self.sim, self.cfg = self._reset_to, SimpleNamespace(forward=int), None
        self.render_enabled = True
        self.action_manager = SimpleNamespace(_terms={"push": Term(self)})
        self.command_manager = SimpleNamespace(_terms={"goal": Term(self)})
        self.event_manager = SimpleNamespace(apply=None, _mode_term_cfgs={}, _mode_term_names={})
        self.observation_manager = SimpleNamespace(history=CircularBuffer(3, rows))
        self.termination_manager = SimpleNamespace(active_terms=["success"], compute=self._ends)
        self.termination_manager.get_term = lambda name: self.pose[:, 0] > 2.0

    def _reset_to(self, state: Any, env_ids: Any, is_relative: bool) -> None:
        self.pose[env_ids], self.velocity[env_ids] = state["pose"], state["velocity"]
        self.target[env_ids] = state["velocity"]

    def step(self, action: Any) -> Any:
        goal, push = self.command_manager._terms["goal"], self.action_manager._terms["push"]
        push.raw = action.clone()
        # Rows drift whatever their action is: a held row is not a still one.
        self.velocity += 0.1 * (self.target - self.velocity) + 0.02
        self.velocity += 0.1 * self.scene.actuator.compute(push.raw)
        self.pose += 0.1 * self.velocity
        self.episode_length_buf += 1
        self.own_resets += int(self.termination_manager.compute().sum())
        rewards = -(self.pose - goal.goal).norm(dim=1)
        goal.time_left = goal.time_left - 0.1
        goal._resample((goal.time_left <= 0).nonzero().flatten())
        return self._observe(), rewards, self.terminated, self.time_outs, {}

    def _ends(self) -> Any:
        self.time_outs = self.episode_length_buf >= self.limit
        self.terminated = self.pose[:, 0] > 2.0
        return self.time_outs | self.terminated

    def reset(self, seed: int, env_ids: Any = None) -> Any:
        torch.manual_seed(seed)
        ids = torch.arange(self.num_envs) if env_ids is None else env_ids
        self._reset_idx(ids)
        return self._observe(), {}

    def _reset_idx(self, ids: Any) -> None:
        self.pose[ids], self.velocity[ids] = torch.rand(len(ids), 2), 0.0
        history, self.episode_length_buf[ids] = self.observation_manager.history, 0
        history._num_pushes[ids] = self.scene.actuator._num_pushes[ids] = 0
        history._need_reset = True
        self.command_manager._terms["goal"]._resample(ids)

    def _observe(self) -> Any:
        history, goal = self.observation_manager.history, self.command_manager._terms["goal"].goal
        history.append(torch.cat([self.pose, goal], 1))
        return {"policy": history._buffer.movedim(0, 1).flatten(1)}

    def close(self) -> None: ...
