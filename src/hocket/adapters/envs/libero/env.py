"""One LIBERO task as an env. Importing this loads MuJoCo, robosuite and LIBERO, but no OpenGL."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

import numpy as np
from gymnasium import spaces

from hocket.adapters.envs.libero import CAMERAS, VLA_EVAL, LiberoConfig
from hocket.adapters.envs.libero.data import find_data
from hocket.adapters.envs.libero.sampling import SamplingClock, Seen
from hocket.adapters.envs.libero.simulation import RandomizationError, make_simulation, mujoco
from hocket.adapters.envs.rendering import STATE_KEY, CameraEnv, axis_angle
from hocket.core.contracts.env import LEROBOT
from hocket.core.data import Array
from hocket.errors import EnvError

CAMERA_KEYS = {"observation/image": CAMERAS[0], "observation/wrist_image": CAMERAS[1]}
_INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
_COLLISION_GROUP = 0
_STAND_STILL = np.array([0.0] * 6 + [-1.0])
_MOST_LAYOUTS = 1000
_VLA_EVAL_SEED = 7
"""What vla-eval's LIBERO seeds its env with, unless it is told otherwise."""
_FINGERS = 2
_GOAL = 12
"""The controller's goal: a position and a rotation matrix."""


class LiberoEnv(CameraEnv):
    """A task whose start depends on the seed alone: start state `seed` of the task, counted round.

    States, images and rewards equal those of LIBERO's own env to the bit; it is stepped here
    because LIBERO renders at every step. It steps without observing, takes snapshots and renders
    only the cameras in use. Success is `info["success"]` and ends the episode.
    """

    _simulator = "LIBERO"
    _hidden_groups = (_COLLISION_GROUP,)

    def __init__(self, suite: str, task: str, config: LiberoConfig) -> None:
        super().__init__(task, config, CAMERA_KEYS, 8)
        data = find_data()
        bddl_file = data.bddl_file(suite, task)
        self._starts = data.states(suite, task)
        self._read = {
            "bddl_sha256": hashlib.sha256(bddl_file.read_bytes()).hexdigest(),
            "start_states_sha256": hashlib.sha256(self._starts.tobytes()).hexdigest(),
            "assets": "LIBERO's",
        }
        if (data.assets.parent / "STANDINS.md").is_file():
            self._read["assets"] = "stand-ins"
            self._data_notes = (
                "LIBERO's data here has stand-ins for some textures and meshes (see its "
                "STANDINS.md): scores of image policies are not comparable with published ones.",
            )
        self.libero = make_simulation(str(bddl_file), hard_reset=config.hard_reset)
        """LIBERO's own env, of which this one takes the parts of a step."""
        self._clock = SamplingClock(
            tick=self.libero.model_timestep, period=1.0 / self.libero.control_freq
        )
        self._seen: Seen | None = None
        self.action_space = spaces.Box(-1.0, 1.0, (self.libero.action_dim,), np.float32)

    def _begin(self, seed: int) -> None:
        config = self._config
        if config.start_scheme == LEROBOT:
            index = seed - config.first_seed
            # LIBERO remembers what is open or on once more at each of LeRobot's resets, and draws
            # as often: three times in its first episode, since it resets an env that it makes.
            self._lay_out(seed, times=max(index, 0) + 3)
        elif config.start_scheme == VLA_EVAL:
            index = seed
            # Its env is made once, which draws, and reset before its first episode.
            self._lay_out(_VLA_EVAL_SEED, times=2)
        else:
            index = seed
            self._lay_out(config.scene_seed)
        self._start_in(self._starts[index % len(self._starts)])
        for _ in range(self._config.settle_steps):
            self.advance(_STAND_STILL)

    @property
    def facts(self) -> dict[str, str]:
        """What numbers depend on: the model as it was compiled, before any layout, the task's file
        and its start states; and the renderer."""
        return {**self._read, "model_sha256": self.libero.model_sha256, **super().facts}

    def close(self) -> None:
        self.free_renderer()
        self.libero.close()

    def advance(self, action: Array) -> tuple[float, bool, bool, dict[str, Any]]:
        if self._seen is None:
            raise EnvError(f"{self._task}: reset the env before its first step.")
        libero = self.libero
        command = np.array(action, np.float64)
        for tick in range(int(libero.control_timestep / libero.model_timestep)):
            # After a step of MuJoCo's, poses are still those from which it went: robosuite reads
            # them there, at one tick of each control step.
            poses = libero.tick(command, is_first=tick == 0)
            if self._clock.tick():
                self._seen = self._glimpse(poses)
        reward, _, _ = libero._post_action(command)
        success = bool(libero._check_success())
        return float(reward), success, False, {"success": success}

    def hold_action(self, last: Array | None) -> Array:
        """Stay: actions move the hand by differences, and the gripper goes on as it was told; it
        opens where it was told nothing."""
        action = np.zeros(self.action_space.shape or (), np.float32)
        action[-1] = -1.0 if last is None else last[-1]
        return action

    def observe(self) -> dict[str, Array]:
        return self._look(self._in_use)

    def get_state(self) -> Array:
        """What robosuite remembers, what was seen last, and MuJoCo's state of integration. It may
        be given to another env of the same task and scene seed."""
        if self._seen is None:
            raise EnvError(f"{self._task}: reset the env before its state is taken.")
        controller, gripper = self._robot.controller, self._robot.gripper
        integration = np.empty(mujoco.mj_stateSize(self._model, _INTEGRATION))
        mujoco.mj_getState(self._model, self._data, integration, _INTEGRATION)
        parts = (
            self._clock.state,
            controller.goal_pos,
            np.ravel(controller.goal_ori),
            np.broadcast_to(gripper.current_action, (_FINGERS,)),
            self._seen.alphas,
            self._seen.fingers,
            self._seen.poses,
            integration,
        )
        return np.concatenate(parts).astype(np.float64)

    def set_state(self, state: Array) -> None:
        if self._seen is None:
            self._lay_out(self._config.scene_seed)
        model, data, lamps = self._model, self._data, len(self._lamps)
        whole = mujoco.mj_stateSize(model, _INTEGRATION)
        sizes = (2, _GOAL, _FINGERS, lamps, _FINGERS, model.nq, whole)
        clock, goal, grip, alphas, fingers, poses, integration = self._parts(state, sizes)
        controller = self._robot.controller
        controller.goal_pos, controller.goal_ori = goal[:3], goal[3:].reshape(3, 3)
        controller.new_update = True
        self._robot.gripper.current_action = grip
        self._clock.state = clock
        self._seen = Seen(poses=poses, fingers=fingers, alphas=alphas)
        mujoco.mj_setState(model, data, integration, _INTEGRATION)
        self.libero._post_process()

    @property
    def _model(self) -> Any:
        return self.libero.sim.model._model

    @property
    def _data(self) -> Any:
        return self.libero.sim.data._data

    @property
    def _robot(self) -> Any:
        return self.libero.robots[0]

    def _lay_out(self, seed: int, *, times: int = 1) -> None:
        """Lay out the fixtures, and forget all that earlier episodes left behind. What is open or
        on is drawn so many times before, and stands as it was drawn last."""
        np.random.seed(seed)
        drawn = self.libero.object_property_initializers
        own = list(drawn)
        drawn[:] = own * times
        try:
            self._reset_until_placed()
        finally:
            drawn[:] = own
        gripper = self._robot.gripper
        gripper.current_action = np.zeros(gripper.dof)
        self._lamps = [
            self.libero.sim.model.site_name2id(site)
            for name in self.libero.visualization_sites_list
            for site, _ in self.libero.get_object(name).object_properties["vis_site_names"].values()
        ]

    def _reset_until_placed(self) -> None:
        for _ in range(_MOST_LAYOUTS):
            try:
                self.libero.reset()
                break
            except RandomizationError:
                continue
        else:
            raise EnvError(f"{self._task}: no layout was found; try another --env.scene-seed.")

    def _start_in(self, start: Array) -> None:
        size = 1 + self._model.nq + self._model.nv
        if start.shape != (size,):
            raise EnvError(
                f"{self._task}: its start states have {start.shape[0]} numbers, its scene needs "
                f"{size}. Data and LIBERO's version do not belong together."
            )
        sim = self.libero.sim
        sim.set_state_from_flattened(start)
        sim.forward()
        self.libero._check_success()
        self.libero._post_process()
        self._clock.restart()
        self._seen = self._glimpse(self._data.qpos.copy())

    def _glimpse(self, poses: Array) -> Seen:
        fingers = self._data.qpos[self._robot._ref_gripper_joint_pos_indexes]
        return Seen(
            poses=poses,
            fingers=np.array(fingers),
            alphas=np.array(self._model.site_rgba[self._lamps, 3]),
        )

    def _look(self, keys: Collection[str]) -> dict[str, Array]:
        """State and images of the moment that robosuite samples; leaves no trace."""
        if self._seen is None:
            raise EnvError(f"{self._task}: reset the env before it is observed.")
        model, data, seen = self._model, self._data, self._seen
        now, alphas = data.qpos.copy(), np.array(model.site_rgba[self._lamps, 3])
        data.qpos[:] = seen.poses
        model.site_rgba[self._lamps, 3] = seen.alphas
        # What depends on positions alone: the next step derives everything anew in any case.
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        hand = data.body(self._robot.robot_model.eef_name)
        position = data.site_xpos[self._robot.eef_site_id]
        state = np.concatenate([position, axis_angle(hand.xquat), seen.fingers])
        images = {key: self._image(CAMERA_KEYS[key]) for key in keys}
        data.qpos[:] = now
        model.site_rgba[self._lamps, 3] = alphas
        return {STATE_KEY: state, **images}

    def _image(self, camera: str) -> Array:
        image = self._picture(self._model, self._data, camera)
        return np.ascontiguousarray(image[:, ::-1]) if self._config.mirrored else image
