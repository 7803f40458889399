"""ManiSkill's GPU-parallel envs as rows: `maniskill:PickCube-v1`.

The env's step moves all of its rows, so rows that wait are put back after it: their simulator state
through the env's state dict, their clocks, and everything that the robot's controllers keep for
them. Time limits are hocket's own (`--max-steps`, or the task's). Each row is reset alone with its
trial's seed, since tasks draw from torch's global generator, which ManiSkill seeds with the seed
of row 0.

The state is what PhysX gives out, in 32-bit floats; what its solver remembers of contacts is not in
it. Written against ManiSkill 3's documented interfaces and tested with a stand-in that performs the
operations of its `step` and `reset` in their order, not in SAPIEN itself.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hocket.adapters.envs.row_tensors import TensorRows, give_rows_back, host, pick, put, take_rows
from hocket.adapters.envs.vector import Vector, VectorConfig
from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Array
from hocket.errors import ConfigError, MissingExtraError


@dataclass(frozen=True, slots=True, kw_only=True)
class ManiSkillConfig(VectorConfig):
    obs_mode: str = "state"
    control_mode: str | None = None
    """None takes the robot's default."""
    sim_backend: str = "auto"
    max_steps: int = 100
    """ManiSkill's own limits are in a wrapper that knows one clock for all rows."""


class ManiSkill(Vector):
    Config: ClassVar = ManiSkillConfig

    def __init__(self, argument: str, config: ManiSkillConfig) -> None:
        if not argument:
            raise ConfigError("No task is named. Write maniskill:PickCube-v1, for one.")
        self._name = argument
        self._config = config

    def make_rows(self, task: str, rows: int) -> ManiSkillRows:
        """The env that ManiSkill registers under the name, without its wrappers."""
        try:
            importlib.import_module("mani_skill.envs")  # registers the tasks
        except ImportError as exc:
            raise MissingExtraError(
                f"ManiSkill cannot be imported: {exc}. Run: pip install mani_skill"
            ) from exc
        import gymnasium

        made: Any = gymnasium.make(
            task,
            num_envs=rows,
            obs_mode=self._config.obs_mode,
            control_mode=self._config.control_mode,
            sim_backend=self._config.sim_backend,
        )
        return ManiSkillRows(made.unwrapped, task)


class ManiSkillRows(TensorRows):
    def __init__(self, env: Any, task: str) -> None:
        super().__init__(env, task)
        self.action_space = env.single_action_space
        self._takes_rows = "env_idx" in inspect.signature(env.set_state_dict).parameters
        self.notes = (
            "ManiSkill's state dict is restored around each step; its solver's memory of contacts "
            "is not part of it.",
        )

    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        """Reset the rows one by one, each keyed by its own seed."""
        del tasks
        for row, seed in zip(rows.tolist(), seeds, strict=True):
            ids = self._ids([row])
            # Its reset clears velocities of all rows, and its controllers reset all of theirs.
            others = np.setdiff1d(np.arange(self.rows), [row] if self._seen else range(self.rows))
            with self._suspended(others):
                lead = self._lead_with(int(seed))
                seen, _ = self._env.reset(seed=[int(seed)], options={"env_idx": ids})
                if row:
                    self._lead_with(lead)
            self._see(seen, ids)

    def step(self, actions: Array, active: Array) -> RowSteps:
        with self._suspended(np.flatnonzero(~active)):
            seen, rewards, terminated, _, info = self._env.step(self._actions(actions, active))
        self._see(seen, self._ids(np.flatnonzero(active)))
        success, failed = info.get("success"), info.get("fail")
        if success is None:
            ended = host(terminated).astype(np.bool_)
        else:
            # Success ends an episode where the task's rule says so, and hocket follows the rule.
            ended = np.zeros(self.rows, np.bool_) if failed is None else host(failed) != 0
        return RowSteps(
            host(rewards).astype(np.float64),
            ended,
            np.zeros(self.rows, np.bool_),
            None if success is None else host(success) != 0,
            # They stay on their device until somebody asks.
            {key: value for key, value in info.items() if np.shape(value) == (self.rows,)},
        )

    def _take(self, ids: Any) -> tuple[Any, Any, Any]:
        env = self._env
        kept = take_rows([env.agent.controller], self.rows, ids, skip=[env, env.scene])
        return pick(env.get_state_dict(), ids), env._elapsed_steps[ids].clone(), kept

    def _give_back(self, ids: Any, taken: tuple[Any, Any, Any]) -> None:
        env = self._env
        state, clocks, kept = taken
        if self._takes_rows:
            env.set_state_dict(state, ids)
        else:
            env.set_state_dict(put(env.get_state_dict(), ids, state))
        env._elapsed_steps[ids] = clocks
        give_rows_back(ids, kept)

    def _lead_with(self, seed: int) -> int:
        """Set row 0's seed, which torch's generator is seeded with at a reset; return the old."""
        seeds = self._env._episode_seed
        old, seeds[0] = int(seeds[0]), seed
        return old
