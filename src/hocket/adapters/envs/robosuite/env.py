"""One robosuite task as an env. Importing this loads MuJoCo and robosuite, but no OpenGL."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from gymnasium import spaces

from hocket.adapters.envs.rendering import STATE_KEY, CameraEnv, axis_angle, no_gl_at_import
from hocket.adapters.envs.robosuite import CONTROL_RATE, RobosuiteConfig
from hocket.core.data import Array

logging.disable(logging.WARNING)  # It warns of robots and settings that nobody asked for.
with no_gl_at_import():
    import robosuite
logging.disable(logging.NOTSET)
logging.getLogger("robosuite_logs").setLevel(logging.ERROR)

_CAMERAS = {"observation/image": "agentview", "observation/wrist_image": "robot0_eye_in_hand"}
_COLLISION_GROUP = 0


class RobosuiteEnv(CameraEnv):
    """A task as robosuite makes it, which steps without rendering. It sees what robosuite tells, by
    robosuite's names (`observation/robot0_eef_pos`, `observation/object-state` ...), upright
    images, and `observation/state`, the hand's place, its axis times angle, and the fingers."""

    _simulator = "robosuite"
    _hidden_groups = (_COLLISION_GROUP,)

    def __init__(self, task: str, config: RobosuiteConfig) -> None:
        self._env: Any = robosuite.make(
            task,
            robots="Panda",
            controller_configs=robosuite.load_composite_controller_config(
                controller=config.controller, robot="Panda"
            ),
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            control_freq=CONTROL_RATE,
            ignore_done=True,
            seed=0,
        )
        self._seen: dict[str, Any] = {}
        low, high = self._env.action_spec
        self.action_space = spaces.Box(low.astype(np.float32), high.astype(np.float32))
        super().__init__(task, config, _CAMERAS, 6 + len(self._fingers))

    def _begin(self, seed: int) -> None:
        self._env.rng = np.random.default_rng(seed)
        # The one that is kept from the episode before goes on with that one's random numbers.
        self._env.placement_initializer = None
        self._seen = self._env.reset()

    def advance(self, action: Array) -> tuple[float, bool, bool, dict[str, Any]]:
        self._seen, reward, _, info = self._env.step(np.array(action, np.float64))
        success = bool(self._env._check_success())
        return float(reward), success, False, {**info, "success": success}

    def observe(self) -> dict[str, Array]:
        sim = self._env.sim
        # Some of its numbers are float32 at a reset alone.
        told = {
            f"observation/{key}": np.array(value, np.float64, ndmin=1)
            for key, value in self._seen.items()
        }
        images = {
            key: self._picture(sim.model._model, sim.data._data, _CAMERAS[key])
            for key in self._in_use
        }
        place, turn = self._seen["robot0_eef_pos"], np.roll(self._seen["robot0_eef_quat"], 1)
        return {
            **told,
            STATE_KEY: np.concatenate([place, axis_angle(turn), self._fingers]),
            **images,
        }

    @property
    def _fingers(self) -> Array:
        return np.array(self._seen.get("robot0_gripper_qpos", ()), np.float64)

    def hold_action(self, last: Array | None) -> Array:
        """Stay: actions move the hand by differences, and the gripper goes on as it was told; it
        opens where it was told nothing."""
        action = np.zeros(self.action_space.shape or (), np.float32)
        if self._env.robots[0].gripper["right"].dof:
            action[-1] = -1.0 if last is None else last[-1]
        return action

    def close(self) -> None:
        self.free_renderer()
        self._env.close()
