"""One row of these tasks to look at: takes the states that a run kept, and shows them.

A run with rows is camera-free. Its episodes are rendered afterwards, here, from states of their own
steps; MuJoCo only derives the poses of bodies, and simulates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import mujoco
import numpy as np
from gymnasium import spaces

from hocket.adapters.envs.mjx import STATE_KEY, MjxTask
from hocket.adapters.envs.rendering import CameraEnv
from hocket.core.data import Array
from hocket.errors import EnvError
from hocket.workers.env.gl import GlConfig

IMAGE_KEY = "observation/image"
CAMERA = "view"
SIZE = 256
_GOAL = (0.2, 0.75, 0.3, 0.6)
_ARM = (0.85, 0.5, 0.2, 1.0)
_BLOCK = (0.35, 0.55, 0.85, 1.0)
_FLOOR = (0.32, 0.36, 0.42, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewConfig(GlConfig):
    """How a view looks."""

    size: int = SIZE
    render: str = "full"


class MjxView(CameraEnv):
    """An env that is set to states and rendered. A state is a row's: positions, speeds, goal."""

    _simulator = "MJX"

    def __init__(self, task: MjxTask) -> None:
        self._mjx_task = task
        self._model = _furnished(task)
        self._data = mujoco.MjData(self._model)
        self._goal = np.zeros(3)
        super().__init__(task.info.name, ViewConfig(), {IMAGE_KEY: CAMERA}, len(self._state()))
        self.use_cameras(())
        high = np.ones(self._model.nu, np.float32)
        self.action_space = spaces.Box(-high, high)

    def _begin(self, seed: int) -> None:
        qpos, goals = self._mjx_task.start([seed])
        self._show(qpos[0], np.zeros(self._model.nv), goals[0])

    def advance(self, action: Array) -> NoReturn:
        raise EnvError("This env shows what rows did. It is simulated as rows, many at once.")

    def get_state(self) -> Array:
        return np.concatenate([self._data.qpos, self._data.qvel, self._goal])

    def set_state(self, state: Array) -> None:
        at = self._model.nq
        self._show(state[:at], state[at:-3], state[-3:])

    def close(self) -> None:
        self.free_renderer()

    def observe(self) -> dict[str, Array]:
        images = {key: self._picture(self._model, self._data, CAMERA) for key in self._in_use}
        return {STATE_KEY: self._state(), **images}

    def _state(self) -> Array:
        rows = [np.asarray(part)[None] for part in (self._data.qpos, self._data.qvel, self._goal)]
        seen: Array = self._mjx_task.rules.observe(np, *rows)[0]
        return seen

    def _show(self, qpos: Array, qvel: Array, goal: Array) -> None:
        self._data.qpos[:], self._data.qvel[:], self._goal[:] = qpos, qvel, goal
        self._data.mocap_pos[0] = goal
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)


def _furnished(task: MjxTask) -> mujoco.MjModel:
    """The task's model with a floor, light, a camera and a mark at the goal."""
    spec = mujoco.MjSpec.from_string(task.xml())
    for geom in spec.geoms:
        geom.rgba = _ARM
        if geom.name == "block":
            geom.type, geom.rgba = mujoco.mjtGeom.mjGEOM_CYLINDER, _BLOCK
    world = spec.worldbody
    world.add_geom(
        type=mujoco.mjtGeom.mjGEOM_PLANE, size=[1, 1, 0.1], rgba=_FLOOR, contype=0, conaffinity=0
    )
    world.add_light(pos=[0.4, -0.6, 1.6], dir=[-0.2, 0.4, -1])
    mark = world.add_body(name="goal", mocap=True)
    size = [task.near, 0, 0]
    mark.add_geom(
        type=mujoco.mjtGeom.mjGEOM_SPHERE, size=size, rgba=_GOAL, contype=0, conaffinity=0
    )
    # From the side and above, with all that the arm can reach in sight.
    eye, ahead = np.array(task.eye), np.array([0.15, 0.0, 0.15]) - task.eye
    right = np.cross(ahead, [0.0, 0.0, 1.0])
    axes = [*right, *np.cross(right, ahead)]
    world.add_camera(name=CAMERA, pos=eye, xyaxes=axes, fovy=50)
    return spec.compile()
