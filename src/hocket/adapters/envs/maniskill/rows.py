"""Many scenes of ManiSkill's on one GPU, as rows.

The env's step moves all of its rows, and what PhysX remembers of contacts is not in the state that
it gives out: a row that is put back after a step loses its grip. So rows are not put back, unless
the user asks for it: those with a live trial step together or not at all, and begin together. Each
is reset alone with its trial's seed, since tasks draw from one generator of torch's for all rows
that a call resets.

Many rows need CUDA; written from ManiSkill 3.0.1's code, run with one row on a CPU, and tested with
a stand-in for many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hocket.adapters.envs.maniskill.env import facts_of, instruction
from hocket.adapters.envs.row_state import RowAxes, RowState
from hocket.adapters.envs.vector import TensorRows, host, pick
from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Array
from hocket.errors import SuspensionError

DRIFT_STEPS = 60
"""Steps over which it is measured what it changes that a row is put back before each."""


class ManiSkillRows(TensorRows):
    """`is_exact`: rows with a live trial step together, and none is put back."""

    def __init__(self, made: Any, task: str, *, is_exact: bool) -> None:
        env = made.unwrapped
        super().__init__(env, task)
        self.action_space = env.single_action_space
        self.max_steps = getattr(made, "_max_episode_steps", None)
        self.prompt = instruction(env)
        self.suspension = "together" if is_exact else "snapshot"
        self.facts = facts_of(env)
        self._controllers = RowState(
            {"controller": env.agent.controller},
            self.rows,
            axes=RowAxes(first=("mani_skill",)),
            skip=[env, env.scene],
        )
        self._everyone = np.arange(self.rows)
        self._is_late = np.zeros(self.rows, np.bool_)
        """Rows that others have moved with, though they had no action."""
        if not is_exact:
            drift = self.measure_drift()
            self.facts["change_by_waiting"] = (
                f"{drift:.2g} in a place (metres, quaternions, joints), after {DRIFT_STEPS} random "
                "steps from start 0 with a wait before each"
            )

    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        """Reset the rows one by one, each keyed by its own seed."""
        del tasks
        env, others = self._env, np.setdiff1d(self._everyone, rows)
        is_kept = self.suspension == "snapshot" and bool(self._seen)
        with self._suspended(others if is_kept else others[:0]):
            random = None if not self._seen else env._batched_episode_rng.rngs
            draws = {row: random[row] for row in others.tolist()} if random is not None else {}
            # What a reset says of contacts is from the last tick of physics, which has to be one
            # in which nothing is grasped.
            env.reset(seed=[0] * self.rows, options={"env_idx": self._ids(rows)})
            env.scene.step()
            if env.gpu_sim_enabled:
                env.scene._gpu_fetch_all()
            states = {}
            for row, seed in zip(rows.tolist(), seeds, strict=True):
                ids = self._ids([row])
                # All rows are told the seed: numpy's generator of a row would depend on its index.
                told = [int(seed) % 2**32] * self.rows
                seen, _ = env.reset(seed=told, options={"env_idx": ids})
                draws[row] = env._batched_episode_rng.rngs[row]
                self._see(seen, ids)
                states[row] = host(env.get_state())[row]
            for row, drawn in draws.items():
                env._batched_episode_rng.rngs[row] = drawn
        self._is_late[rows] = False
        ends = host(env.get_state())
        if any((ends[row] != state).any() for row, state in states.items()):
            raise SuspensionError(
                f"{self.tasks[0]} makes steps of physics for all rows when one is reset, so that "
                "its rows cannot begin alike: run it as scenes of their own, with "
                "--env.sim-backend physx_cpu."
            )

    def step(self, actions: Array, active: Array) -> RowSteps:
        still = np.flatnonzero(~active)
        if self.suspension == "together":
            if (active & self._is_late).any():
                raise SuspensionError(
                    f"Row {np.flatnonzero(active & self._is_late)[0]} was to wait while others of "
                    f"{self.tasks[0]} moved: ManiSkill moves all rows, and one that is put back "
                    "loses its contacts. Step all rows that have an episode, or choose "
                    "--env.rows fast."
                )
            self._is_late |= ~active
            still = still[:0]
        with self._suspended(still):
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
            success if success is None or isinstance(success, Mapping) else host(success),
            # They stay on their device until somebody asks.
            {key: value for key, value in info.items() if np.shape(value) == (self.rows,)},
        )

    def measure_drift(self, actions: Array | None = None) -> float:
        """The largest change of a place (metres, quaternions, joints) in row 0 that it makes to put
        it back before each of these actions `[T, A]`, random ones by default."""
        if actions is None:
            self.action_space.seed(0)
            actions = np.stack([self.action_space.sample() for _ in range(DRIFT_STEPS)])
        ends = []
        for waits in (False, True):
            self.reset(self._everyone, self.tasks, [0] * self.rows)
            for action in actions:
                with self._suspended(self._everyone if waits else self._everyone[:0]):
                    pass
                self._env.step(self._torch.as_tensor(np.stack([action] * self.rows)))
            ends.append(self._places())
        self._seen.clear()
        return float(np.abs(ends[1] - ends[0]).max())

    def _places(self) -> Array:
        """Poses of objects and robots, and joints, of row 0."""
        state = self._env.get_state_dict()
        parts = [host(pose)[0, :7] for pose in state.get("actors", {}).values()]
        for robot in state.get("articulations", {}).values():
            numbers = host(robot)[0]
            joints = (len(numbers) - 13) // 2
            parts += [numbers[:7], numbers[13 : 13 + joints]]
        return np.concatenate(parts)

    def _take(self, ids: Any) -> tuple[Any, Any, Any]:
        env = self._env
        kept = self._controllers.take(ids)
        return pick(env.get_state_dict(), ids), env._elapsed_steps[ids].clone(), kept

    def _give_back(self, ids: Any, taken: tuple[Any, Any, Any]) -> None:
        env = self._env
        state, clocks, kept = taken
        env.set_state_dict(state, ids)
        env._elapsed_steps[ids] = clocks
        self._controllers.give_back(ids, kept)
