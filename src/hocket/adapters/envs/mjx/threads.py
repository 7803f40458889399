"""Rows simulated by MuJoCo itself, in its own threads: no compilation, 64-bit floats.

Only rows that are active are simulated at all, each from its own state alone: a row's trajectory
is the same to the bit whatever the other rows do and however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import mujoco
import mujoco.rollout
import numpy as np

from hocket.adapters.envs.mjx import STATE_KEY, MjxTask
from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Array
from hocket.system import machine


class ThreadedRows:
    suspension = "mask"
    steps_cost_by_row = True
    """Rows that wait are not simulated, so that a step of a few costs a few."""

    def __init__(self, task: MjxTask, rows: int, threads: int = 0) -> None:
        self.rows = rows
        self.tasks = (task.info.name,)
        self._task = task
        self._model = mujoco.MjModel.from_xml_string(task.xml())
        count = threads or min(machine.cores(), rows)
        self._data = [mujoco.MjData(self._model) for _ in range(count)]
        self._pool = mujoco.rollout.Rollout(nthread=count if count > 1 else 0)
        size = mujoco.mj_stateSize(self._model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
        self._states = np.zeros((rows, size))
        """Time, which nothing depends on, positions and speeds of each row."""
        self._goals = np.zeros((rows, 3))
        high = np.ones(self._model.nu, np.float32)
        self.action_space = gymnasium.spaces.Box(-high, high)
        self.notes = (f"Simulated by MuJoCo {mujoco.__version__} in {count} threads.",)

    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        del tasks
        qpos, goals = self._task.start(seeds)
        self._states[rows] = 0.0
        self._states[rows, 1 : 1 + self._model.nq] = qpos
        self._goals[rows] = goals

    def step(self, actions: Array, active: Array) -> RowSteps:
        moving = np.flatnonzero(active)
        control = np.clip(actions[moving], -1.0, 1.0).astype(np.float64) * self._task.speed
        control = np.repeat(control[:, None], self._task.substeps, axis=1)
        states, _ = self._pool.rollout(
            self._model, self._data, self._states[moving], np.ascontiguousarray(control)
        )
        self._states[moving] = states[:, -1]
        qpos, _ = self._split(moving)
        apart = np.zeros(self.rows)
        apart[moving] = self._task.rules.distance(np, qpos, self._goals[moving])
        none = np.zeros(self.rows, np.bool_)
        return RowSteps(-apart, none, none, apart < self._task.near, {"distance": apart})

    def observe(self, rows: Array) -> dict[str, Array]:
        qpos, qvel = self._split(rows)
        return {STATE_KEY: self._task.rules.observe(np, qpos, qvel, self._goals[rows])}

    def get_rows(self, rows: Array) -> Array:
        return np.concatenate([self._states[rows, 1:], self._goals[rows]], axis=1)

    def set_rows(self, rows: Array, states: Array) -> None:
        self._states[rows, 1:], self._goals[rows] = states[:, :-3], states[:, -3:]

    def close(self) -> None:
        self._pool.close()

    def _split(self, rows: Array) -> tuple[Array, Array]:
        states, end = self._states[rows], 1 + self._model.nq
        return states[:, 1:end], states[:, end : end + self._model.nv]
