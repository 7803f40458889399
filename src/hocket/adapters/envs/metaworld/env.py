"""One MetaWorld task as an env. Importing this loads MuJoCo and MetaWorld, but no OpenGL."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from hocket.adapters.envs.compiled import compiled, digest
from hocket.adapters.envs.metaworld import UPSIDE_DOWN, MetaWorldConfig
from hocket.adapters.envs.rendering import STATE_KEY, CameraEnv, no_gl_at_import
from hocket.core.contracts.env import LEROBOT, start_scheme
from hocket.core.data import Array
from hocket.errors import EnvError
from hocket.workers.env.simulator_model import MODEL_DIGEST

with no_gl_at_import():
    import metaworld
    import mujoco
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    from metaworld.sawyer_xyz_env import SawyerMocapBase
    from metaworld.types import Task

_ASSETS = Path(metaworld.__file__).parent / "assets"
_PATCHING = threading.Lock()
_INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
_PLAIN = (type(None), bool, int, float, str, np.generic, np.ndarray, dict, list, tuple)
_MODEL_FIELDS = ("body_pos", "body_quat", "site_pos", "site_quat")
"""What tasks move when they reset."""
LEROBOT_STATE = 4
"""The hand's place and the gripper's opening are all that LeRobot's env shows of the state."""
LEROBOT_CORNER2 = (0.75, 0.075, 0.7)
"""Where LeRobot's env hangs the camera corner2: nearer, as many papers do."""


class MetaWorldEnv(CameraEnv):
    """A task whose start depends on the seed alone, not on what the object did before.

    It steps without observing, takes snapshots and renders only the cameras in use. Success is
    `info["success"]`; as in MetaWorld itself, it does not end the episode.
    """

    _simulator = "MetaWorld"
    _camera_advice = " Set --env.cameras."

    def __init__(self, task: str, config: MetaWorldConfig) -> None:
        is_lerobots = config.layout == "lerobot"
        keys = camera_keys(config.cameras)
        super().__init__(task, config, keys, LEROBOT_STATE if is_lerobots else 39)
        with _compiling_once():
            self.sim: Any = ALL_V3_ENVIRONMENTS[task]()
            """MetaWorld's own env, of which this one takes steps and states."""
        self.sim.max_path_length = config.max_steps
        self.sim.seeded_rand_vec = True
        self.sim._set_task_called = True
        self.sim._partially_observable = config.hide_goal
        del self.sim.sawyer_observation_space  # cached with the goal hidden
        self._pristine = _copy_plain(self.sim)
        if is_lerobots:
            self.sim.model.camera("corner2").pos[:] = LEROBOT_CORNER2
        self._digest = digest(self.sim.model, self.sim.fullpath, _ASSETS, config.layout)
        self._fields = {name: getattr(self.sim.model, name).copy() for name in _MODEL_FIELDS}
        self.start: Array | None = None
        """The vector that MetaWorld laid the scene out by; None before the first reset."""
        self._state: Array = np.zeros(39)
        self.action_space = spaces.Box(-1.0, 1.0, (4,), np.float32)

    @property
    def facts(self) -> dict[str, str]:
        """What numbers depend on: the model before any layout, and the renderer."""
        return {MODEL_DIGEST: self._digest, **super().facts}

    def _begin(self, seed: int) -> None:
        first = self._draw(seed)
        if self._config.start_scheme == LEROBOT:
            # MetaWorld's own reset lays out twice, which LeRobot takes as it comes: the second
            # draw, and at first a picture in which what is fixed stands where the first put it.
            self._lay_out(self._place_next(), rehearsed=first)
        else:
            self._lay_out(first)

    def close(self) -> None:
        self.free_renderer()
        self.sim.close()

    def advance(self, action: Array) -> tuple[float, bool, bool, dict[str, Any]]:
        if self.start is None:
            raise EnvError(f"{self._task}: reset the env before its first step.")
        # In one dtype always: MetaWorld's arithmetic differs in the last bits between dtypes.
        values = np.asarray(action, dtype=np.float32)
        self._state, reward, terminated, truncated, info = self.sim.step(values)
        success = bool(info["success"])
        return float(reward), bool(terminated), bool(truncated), {**info, "success": success}

    def hold_action(self, last: Array | None) -> Array:
        """Stay: actions move the hand by differences, and the gripper keeps its effort."""
        action = np.zeros(4, np.float32)
        if last is not None:
            action[3] = last[3]
        return action

    def observe(self) -> dict[str, Array]:
        images = {key: self._image(self._keys[key]) for key in self._in_use}
        return {STATE_KEY: self._state[: self._state_size].copy(), **images}

    def get_state(self) -> Array:
        """How the scene was laid out, what MetaWorld remembers of the last step, and MuJoCo's
        state of integration. It may be given to another env of the same task."""
        if self.start is None:
            raise EnvError(f"{self._task}: reset the env before its state is taken.")
        sim = self.sim
        # bin-picking alone keeps this, from the step at which the object is first held.
        held_from = getattr(sim, "_target_to_obj_init", None)
        memory = [sim.curr_path_length, np.nan if held_from is None else held_from]
        return np.concatenate(
            (self.start, memory, sim._prev_obs, self._state, self._integration())
        ).astype(np.float64)

    def set_state(self, state: Array) -> None:
        sim = self.sim
        size = sim._random_reset_space.low.size
        sizes = (size, 2, 18, 39, mujoco.mj_stateSize(sim.model, _INTEGRATION))
        start, memory, previous, last, integration = self._parts(state, sizes)
        if self.start is None or not np.array_equal(start, self.start):
            self._lay_out(start)
        sim.curr_path_length = int(memory[0])
        if hasattr(sim, "_target_to_obj_init"):
            sim._target_to_obj_init = None if np.isnan(memory[1]) else float(memory[1])
        sim._prev_obs, sim._last_stable_obs, self._state = previous, last.copy(), last
        self._settle(integration)

    def _draw(self, seed: int) -> Array:
        """The layout that a seed means, by the task's own rule: some draw until a layout fits."""
        self._forget()
        self.sim._freeze_rand_vec = False
        source = start_scheme(self._config.start_scheme).seed(self._task, seed)
        self.sim.np_random, _ = seeding.np_random(source)
        return self._place_next()

    def _place_next(self) -> Array:
        self._place_things()  # nothing is drawn by where the hand is
        return np.array(self.sim._last_rand_vec, np.float64)

    def _place_things(self) -> Any:
        """MetaWorld's `reset_model`, with the hand left where it is: to move it costs as much as
        fifty steps."""
        self.sim._reset_hand = self._leave_hand
        try:
            return self.sim.reset_model()
        finally:
            del self.sim._reset_hand

    def _leave_hand(self, *_: Any, **__: Any) -> None:
        """What MetaWorld notes of the hand once it has moved it, and nothing else."""
        self.sim.init_tcp = self.sim.tcp_center

    def _lay_out(self, start: Array, rehearsed: Array | None = None) -> None:
        """Begin an episode as a newly made env would, which may have rehearsed another start."""
        self._forget()
        data = {
            "env_cls": type(self.sim),
            "rand_vec": start.copy(),
            "partially_observable": self._config.hide_goal,
        }
        self.sim.set_task(Task(env_name=self._task, data=pickle.dumps(data)))

        def rehearse() -> Any:
            del self.sim.reset_model
            if rehearsed is None:
                return self._place_things()
            # With the hand, whose steps let things settle: goals are drawn at their height.
            self.sim._last_rand_vec = rehearsed.copy()
            found = self.sim.reset_model()
            self.sim._last_rand_vec = start.copy()
            return found

        # MetaWorld resets its model twice, and MuJoCo's state in between: whatever the hand did the
        # first time is forgotten.
        self.sim.reset_model = rehearse
        self._state, _ = self.sim.reset()
        self.start = start.copy()
        if rehearsed is None:
            self._settle(self._integration())

    def _forget(self) -> None:
        """Undo all that earlier episodes left in the simulator, in its model and in MetaWorld."""
        _restore_plain(self.sim, self._pristine)
        for name, values in self._fields.items():
            getattr(self.sim.model, name)[:] = values
        mujoco.mj_resetData(self.sim.model, self.sim.data)
        mujoco.mj_forward(self.sim.model, self.sim.data)

    def _integration(self) -> Array:
        model, data = self.sim.model, self.sim.data
        values = np.empty(mujoco.mj_stateSize(model, _INTEGRATION))
        mujoco.mj_getState(model, data, values, _INTEGRATION)
        return values

    def _settle(self, integration: Array) -> None:
        """Set MuJoCo's state, and everything that it derives for images from it."""
        model, data = self.sim.model, self.sim.data
        mujoco.mj_setState(model, data, integration, _INTEGRATION)
        mujoco.mj_forward(model, data)
        # Solving again moved the solver's warm start; the next step must find it where it was.
        mujoco.mj_setState(model, data, integration, _INTEGRATION)

    def _image(self, camera: str) -> Array:
        is_turned = camera in UPSIDE_DOWN
        return self._picture(self.sim.model, self.sim.data, camera, upside_down=is_turned)


@contextlib.contextmanager
def _compiling_once() -> Iterator[None]:
    """Make simulators inside this, and a model that was compiled before is not compiled again."""

    def initialize(sim: Any) -> tuple[Any, Any]:
        model = compiled(sim.fullpath, _ASSETS)
        # As gymnasium's own does, so that what it renders for itself fits.
        size = model.vis.global_
        size.offwidth = max(size.offwidth, sim.width)
        size.offheight = max(size.offheight, sim.height)
        return model, mujoco.MjData(model)

    # The class itself, since tasks are pickled by its name; one thread at a time.
    with _PATCHING:
        SawyerMocapBase._initialize_simulation = initialize
        try:
            yield
        finally:
            del SawyerMocapBase._initialize_simulation


def camera_keys(cameras: tuple[str, ...]) -> dict[str, str]:
    keys: dict[str, str] = {}
    for camera in cameras:
        if camera == "gripperPOV":
            keys["observation/wrist_image"] = camera
        elif "observation/image" not in keys:
            keys["observation/image"] = camera
        else:
            keys[f"observation/{camera}_image"] = camera
    return keys


def _copy_plain(sim: Any) -> dict[str, Any]:
    """A simulator's own plain attributes. Windows into MuJoCo's memory are left out: they follow
    the simulation by themselves."""
    return {
        name: copy.deepcopy(value)
        for name, value in vars(sim).items()
        if isinstance(value, _PLAIN) and not _is_window(value)
    }


def _restore_plain(sim: Any, pristine: dict[str, Any]) -> None:
    for name, value in list(vars(sim).items()):
        if name not in pristine and isinstance(value, _PLAIN) and not _is_window(value):
            delattr(sim, name)
    for name, value in pristine.items():
        setattr(sim, name, copy.deepcopy(value))


def _is_window(value: Any) -> bool:
    while isinstance(value, np.ndarray):
        if value.base is None:
            return False
        value = value.base
    return not isinstance(value, _PLAIN)
