"""Rows simulated by MJX, MuJoCo in JAX: one compiled function steps them all.

Rows out of the mask keep their state to the bit: the step chooses, row by row, between the new
state and the old. Shapes never change, so that nothing is compiled twice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

# A policy on the same GPU needs memory too; JAX would take most of it at its first use.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco import mjx

from hocket.adapters.envs.mjx import STATE_KEY, MjxTask
from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Array


class JaxRows:
    suspension = "mask"

    def __init__(self, task: MjxTask, rows: int) -> None:
        self.rows = rows
        self.tasks = (task.info.name,)
        self._task = task
        model = mujoco.MjModel.from_xml_string(task.xml())
        device = jax.devices()[0]
        self._is_on_host = device.platform == "cpu"
        self._step = _compiled(task, model, on_host=self._is_on_host)
        self._choose = jax.jit(lambda mask, new, old: jnp.where(mask[:, None], new, old))
        self._observe = jax.jit(
            lambda state, goal: task.rules.observe(
                jnp, state[:, : model.nq], state[:, model.nq :], goal
            )
        )
        self._state = jnp.zeros((rows, model.nq + model.nv))
        """Positions and speeds of each row."""
        self._goal = jnp.zeros((rows, 3))
        self._seen: Any = None
        self._nq = model.nq
        high = np.ones(model.nu, np.float32)
        self.action_space = gymnasium.spaces.Box(-high, high)
        self.notes = (
            f"Simulated by MJX {mujoco.__version__} on {device.device_kind}; the first step "
            f"compiles it for {rows} rows, which takes some seconds.",
        )

    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        del tasks
        qpos, goals = self._task.start(seeds)
        states = np.zeros((len(rows), self._state.shape[1]))
        states[:, : self._nq] = qpos
        self._put(rows, states, goals)

    def step(self, actions: Array, active: Array) -> RowSteps:
        self._state, self._seen, apart = self._step(
            self._state, self._goal, np.asarray(actions, np.float32), active
        )
        distance = np.asarray(apart).astype(np.float64)
        none = np.zeros(self.rows, np.bool_)
        return RowSteps(-distance, none, none, distance < self._task.near, {"distance": distance})

    def observe(self, rows: Array) -> dict[str, Array]:
        """On a GPU these are torch's tensors where torch is loaded: torch gathers the rows there,
        where the policy runs, and JAX compiles nothing for it."""
        if self._seen is None:
            self._seen = self._observe(self._state, self._goal)
        torch = None if self._is_on_host else sys.modules.get("torch")
        if torch is None:
            return {STATE_KEY: np.asarray(self._seen)[rows]}
        whole = torch.from_dlpack(self._seen)
        picked = whole[torch.as_tensor(rows, device=whole.device)]
        # JAX may use the memory again as soon as nobody here holds it, so the copy must be done.
        torch.cuda.current_stream(whole.device).synchronize()
        return {STATE_KEY: picked}

    def get_rows(self, rows: Array) -> Array:
        states, goals = np.asarray(self._state)[rows], np.asarray(self._goal)[rows]
        return np.concatenate([states, goals], axis=1)

    def set_rows(self, rows: Array, states: Array) -> None:
        self._put(rows, states[:, :-3], states[:, -3:])

    def close(self) -> None:
        """Release the arrays. Twice is safe."""
        self._seen = None

    def _put(self, rows: Array, states: Array, goals: Array) -> None:
        mask = np.isin(np.arange(self.rows), rows)
        wide = np.zeros((self.rows, states.shape[1]), np.float32)
        far = np.zeros((self.rows, 3), np.float32)
        wide[rows], far[rows] = states, goals
        self._state = self._choose(mask, wide, self._state)
        self._goal = self._choose(mask, far, self._goal)
        self._seen = None


def _compiled(task: MjxTask, model: mujoco.MjModel, *, on_host: bool) -> Any:
    """`(state, goal, actions, active) -> (state, seen, distance)`, all `[N, ...]`."""
    on_device = mjx.put_model(model)
    blank = mjx.make_data(on_device)

    def move(state: Any, action: Any) -> Any:
        data = blank.replace(
            qpos=state[: model.nq],
            qvel=state[model.nq :],
            ctrl=jnp.clip(action, -1.0, 1.0) * task.speed,
        )
        # Without a loop, a GPU gets the kernels of all substeps at once.
        data = jax.lax.fori_loop(
            0, task.substeps, lambda _, d: mjx.step(on_device, d), data, unroll=not on_host
        )
        return jnp.concatenate([data.qpos, data.qvel])

    def step(state: Any, goal: Any, actions: Any, active: Any) -> Any:
        moved = jnp.where(active[:, None], jax.vmap(move)(state, actions), state)
        qpos, qvel = moved[:, : model.nq], moved[:, model.nq :]
        seen = task.rules.observe(jnp, qpos, qvel, goal)
        return moved, seen, task.rules.distance(jnp, qpos, goal)

    return jax.jit(step)
