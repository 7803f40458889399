"""Isaac Lab's manager-based envs as rows: `isaaclab:package.module:make`.

`make(rows)` builds a `ManagerBasedRLEnv` with that many envs, and starts Isaac Sim before it where
that is needed. Its step moves all envs, so rows that wait are put back after it: their scene state
through `scene.get_state` and `scene.reset_to`, and everything that the managers keep for them
(clocks, action targets, command timers, reward sums, histories). The env's own automatic reset
never happens: a row that ended stays where it is until hocket resets it. What its recorder manager
writes holds the rows that moved and no others.

The state of a scene is what PhysX gives out, in 32-bit floats; what its solver remembers of
contacts is not in it. Random numbers of interval events and observation noise come from one
generator for all rows, and so are not keyed by the trial; resets are, one row at a time.

Written against Isaac Lab 2's documented interfaces and tested with a stand-in that performs the
operations of its `step` and `reset` in their order, not in Isaac Sim itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hocket.adapters.envs.row_tensors import TensorRows, give_rows_back, host, pick, take_rows
from hocket.adapters.envs.vector import Vector, VectorConfig
from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Array
from hocket.errors import EnvError

_MANAGERS = (
    "action_manager",
    "command_manager",
    "event_manager",
    "observation_manager",
    "reward_manager",
    "termination_manager",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IsaacLabConfig(VectorConfig):
    success_term: str = "success"
    """The termination term that means success; episodes without such a term just finish."""


class IsaacLab(Vector):
    """The suite of the one task that a factory makes."""

    Config: ClassVar = IsaacLabConfig
    _prefix = "isaaclab"
    _makes = "ManagerBasedRLEnv"
    _is_made = False

    def make_rows(self, task: str, rows: int) -> IsaacRows:
        """Make the env, once: Isaac Sim holds one stage in a process."""
        if self._is_made:
            raise EnvError(
                "Isaac Sim cannot be built a second time in this process. Start the run again: "
                "`hocket resume` goes on where it was."
            )
        self._is_made = True
        return IsaacRows(self._make(rows), task, self._config.success_term)


class IsaacRows(TensorRows):
    def __init__(self, env: Any, task: str, success_term: str) -> None:
        super().__init__(getattr(env, "unwrapped", env), task)
        self.action_space = getattr(self._env, "single_action_space", None)
        if self.action_space is None:
            kind = type(self._env).__name__
            raise EnvError(f"{kind} has no single_action_space: is it a vector env?")
        terms = self._env.termination_manager.active_terms
        self._success = success_term if success_term in terms else None
        self._managers = [getattr(self._env, name, None) for name in _MANAGERS]
        self.notes = (
            "Isaac Lab's scene state is restored around each step; its solver's memory of contacts "
            "is not part of it.",
        )

    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        """Reset the rows one by one: a seed holds for the whole process."""
        del tasks
        others = np.setdiff1d(np.arange(self.rows), rows) if self._seen else np.array([], np.int64)
        with self._suspended(others):
            for row, seed in zip(rows.tolist(), seeds, strict=True):
                ids = self._ids([row])
                seen, _ = self._env.reset(seed=int(seed), env_ids=ids)
                self._see(seen, ids)

    def step(self, actions: Array, active: Array) -> RowSteps:
        env = self._env
        moving = self._ids(np.flatnonzero(active))
        with (
            self._suspended(np.flatnonzero(~active)),
            self._without_resets(),
            self._recording_only(moving),
        ):
            seen, rewards, terminated, truncated, _ = env.step(self._actions(actions, active))
            self._see(seen, moving)
            success = None
            if self._success is not None:
                success = host(env.termination_manager.get_term(self._success)).astype(np.bool_)
            return RowSteps(
                host(rewards).astype(np.float64),
                host(terminated).astype(np.bool_),
                host(truncated).astype(np.bool_),
                success,
            )

    def _take(self, ids: Any) -> tuple[Any, Any, Any]:
        env = self._env
        scene = pick(env.scene.get_state(is_relative=False), ids)
        kept = take_rows(self._managers, self.rows, ids, skip=[env, env.scene, env.sim])
        return scene, kept, env.episode_length_buf[ids].clone()

    def _give_back(self, ids: Any, taken: tuple[Any, Any, Any]) -> None:
        env = self._env
        scene, kept, clocks = taken
        env.scene.reset_to(scene, env_ids=ids, is_relative=False)
        env.scene.write_data_to_sim()
        env.sim.forward()
        give_rows_back(ids, kept)
        env.episode_length_buf[ids] = clocks

    @contextmanager
    def _without_resets(self) -> Any:
        """Tell the env that no row is done; which are is read from its termination manager."""
        manager = self._env.termination_manager
        compute = manager.compute

        def nobody() -> Any:
            return self._torch.zeros_like(compute())

        manager.compute = nobody
        try:
            yield
        finally:
            del manager.compute

    @contextmanager
    def _recording_only(self, ids: Any) -> Any:
        """Keep the env's recorder to these rows, where it would add to all."""
        manager = getattr(self._env, "recorder_manager", None)
        if manager is None or not len(manager.active_terms):
            yield
            return
        add = manager.add_to_episodes

        def add_some(key: str | None, value: Any, env_ids: Any = None) -> None:
            if env_ids is None and key is not None:
                value, env_ids = pick(value, ids), ids
            add(key, value, env_ids)

        manager.add_to_episodes = add_some
        try:
            yield
        finally:
            del manager.add_to_episodes
