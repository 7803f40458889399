"""One scene of ManiSkill's as an env, without a batch axis, and SimplerEnv's WidowX tasks as it has
them. Importing this loads no simulator."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from hocket.adapters.envs.maniskill import STARTS
from hocket.adapters.envs.rendering import LookingEnv
from hocket.adapters.envs.vector import flat_tree, host
from hocket.core.data import Array
from hocket.errors import (
    ConfigError,
    EnvError,
    MissingExtraError,
    UnknownNameError,
)
from hocket.system.venvs import vulkan


def make_scenes(task: str, count: int, arguments: Mapping[str, Any]) -> Any:
    """What ManiSkill registers under the name, with its wrappers. Nothing is downloaded."""
    vulkan.use()
    try:
        importlib.import_module("mani_skill.envs")  # registers the tasks
        from mani_skill.utils.assets.data import DATA_GROUPS, is_data_source_downloaded
        from mani_skill.utils.registration import REGISTERED_ENVS
    except ImportError as exc:
        raise MissingExtraError(
            f"ManiSkill cannot be imported: {exc}. Run: hocket venv maniskill, then give "
            f"--env-python venvs/maniskill/bin/python"
        ) from exc
    logging.getLogger("mani_skill ").setLevel(logging.ERROR)  # Its name ends in a space.
    if task not in REGISTERED_ENVS:
        raise UnknownNameError(f"ManiSkill registers no task {task!r}.")
    wanted = [
        source
        for name in REGISTERED_ENVS[task].asset_download_ids or ()
        for source in DATA_GROUPS.get(name, [name])
    ]
    if missing := [name for name in wanted if not is_data_source_downloaded(name)]:
        raise EnvError(
            f"{task} needs assets that are not at {os.environ.get('MS_ASSET_DIR', '~/.maniskill')} "
            f"(MS_ASSET_DIR). Run: {sys.executable} -m mani_skill.utils.download_asset "
            f"{' '.join(missing)}"
        )
    try:
        return gymnasium.make(task, num_envs=count, **arguments)
    except RuntimeError as exc:
        if "rendering device" not in str(exc) and "vk::" not in str(exc):
            raise ConfigError(f"ManiSkill cannot make {task}: {exc}") from exc
        reason = vulkan.probe(Path(sys.prefix)).reason or str(exc)
        raise EnvError(
            f"{task} cannot be built: SAPIEN makes even materials on a Vulkan device, and "
            f"{reason}. `hocket doctor` says more; `hocket venv maniskill` unpacks one for the CPU."
        ) from exc
    except (TypeError, NotImplementedError, AssertionError, KeyError) as exc:
        raise ConfigError(f"ManiSkill cannot make {task}: {exc}") from exc


class ManiSkillEnv(LookingEnv):
    """A task whose episodes follow from their seeds alone. ManiSkill lays a start out in the scene
    as the last episode left it: objects settle against a robot that still goes where it was sent,
    and a grasp is told of that ended. So the scene is built anew for each episode."""

    resumes_exactly = False
    _camera_advice = " Choose --env.obs-mode rgb."

    def __init__(self, made: Any, task: str) -> None:
        self._env: Any = made.unwrapped
        self._task = task
        self.action_space = self._env.single_action_space
        self.control_rate = float(self._env.control_freq)
        self.max_steps = getattr(made, "_max_episode_steps", None)
        self.prompt = instruction(self._env)
        self.facts = facts_of(self._env)
        pictures = self._env.obs_mode_struct.visual
        keys = [f"observation/sensor_data/{name}/rgb" for name in self._env._sensors]
        self._cameras = tuple(keys) if pictures.rgb else ()
        self._in_use = self._cameras
        self._info: dict[str, Any] = {}
        """What ManiSkill told of the last step; to ask for it again may count as a step."""

    def _options(self, seed: int) -> dict[str, Any]:
        """What a reset is told beside its seed."""
        del seed
        return {}

    def _begin(self, seed: int) -> None:
        told = {**self._options(seed), "reconfigure": True}
        with self._without_pictures():
            _, self._info = self._env.reset(seed=seed % 2**32, options=told)
        self.prompt = instruction(self._env)

    def advance(self, action: Array) -> tuple[float, bool, bool, dict[str, Any]]:
        with self._without_pictures():
            _, reward, ended, truncated, info = self._env.step(np.asarray(action, np.float32))
        self._info = info
        told = {key: host(value)[0] for key, value in info.items() if np.shape(value) == (1,)}
        if "success" in told:
            # Success ends an episode where the task's rule says so, and hocket follows the rule.
            ended = info.get("fail", [False])
        return float(reward[0]), bool(ended[0]), bool(truncated[0]), told

    def observe(self) -> dict[str, Any]:
        with contextlib.nullcontext() if self._in_use else self._without_pictures():
            seen = self._env.get_obs(self._info)
        tree = seen if isinstance(seen, Mapping) else {"state": seen}
        flat = {key: host(value)[0] for key, value in flat_tree(tree, "observation").items()}
        unseen = set(self._cameras) - set(self._in_use)
        found: dict[str, Any] = {key: value for key, value in flat.items() if key not in unseen}
        return {**found, "prompt": self.prompt} if self.prompt else found

    def get_state(self) -> Array:
        """Poses and velocities. What PhysX remembers of contacts is not told: pictures of a state
        are those of its moment, what would follow from it may differ."""
        state: Array = host(self._env.get_state())[0].astype(np.float64)
        return state

    def set_state(self, state: Array) -> None:
        import torch

        self._env.set_state(torch.as_tensor(state[None], dtype=torch.float32))

    def close(self) -> None:
        self._env.close()

    @contextlib.contextmanager
    def _without_pictures(self) -> Iterator[None]:
        """While it lasts, no camera is drawn, and all else is observed as before."""
        if not self._cameras or self._env.obs_mode == "pointcloud":
            yield
            return
        self._env._get_obs_sensor_data = lambda *_, **__: {}
        try:
            yield
        finally:
            del self._env._get_obs_sensor_data


def facts_of(env: Any) -> dict[str, str]:
    """What numbers depend on: the simulator's versions and where its physics runs."""
    found = {"sim_backend": str(env.backend.sim_backend)}
    for name in ("mani_skill", "sapien"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def instruction(env: Any) -> str:
    """What a task says in words that is to be done, if anything."""
    say = getattr(env, "get_language_instruction", None)
    return str(say()[0]) if callable(say) else ""


IMAGE_KEY = "observation/image"
_CAMERA = "observation/sensor_data/3rd_view_camera/rgb"
_OPEN, _CLOSED = 0.037, 0.015
"""Metres of a finger where the gripper is open, and closed."""
_DOWN = [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]
"""How Bridge's hand is turned where all of its angles are 0: downwards."""


class SimplerEnv(ManiSkillEnv):
    """One of the tasks, with Bridge's keys: `observation/image`, 480 x 640; `observation/state`,
    the hand's place before the robot's foot, its roll, pitch and yaw as Bridge counts them, a 0,
    and how far the gripper is open, 0 to 1. Beside them, for policies without eyes, poses
    (xyz, wxyz) in the world: `observation/hand`, `observation/source`, `observation/target`.

    Actions are differences of the place, in metres, of the three angles, in radians, and 1 for an
    open gripper, -1 for a closed one."""

    def __init__(self, made: Any, task: str) -> None:
        super().__init__(made, task)
        self._cameras = self._in_use = (IMAGE_KEY,)
        self.facts = {**self.facts, "assets_sha256": _digest_of_assets()}
        if (Path(os.environ.get("MS_ASSET_DIR", "")) / "STANDINS.md").is_file():
            self.notes = (
                "SimplerEnv's assets here have stand-ins for some meshes and textures (see their "
                "STANDINS.md): scores of image policies are not comparable with published ones.",
            )
        self._has_succeeded = False

    def _options(self, seed: int) -> dict[str, Any]:
        import torch

        return {"episode_id": torch.tensor([seed % STARTS])}

    def _begin(self, seed: int) -> None:
        self._has_succeeded = False
        super()._begin(seed)

    def advance(self, action: Array) -> tuple[float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated, told = super().advance(action)
        self._has_succeeded |= bool(told["success"])
        return reward, terminated, truncated, {**told, "success_once": self._has_succeeded}

    def observe(self) -> dict[str, Any]:
        import torch
        from mani_skill.utils.geometry.rotation_conversions import (
            matrix_to_euler_angles,
            quaternion_to_matrix,
        )

        env = self._env
        hand = env.agent.robot.links_map["ee_gripper_link"].pose
        place = env.agent.robot.pose.inv() * hand
        turn = quaternion_to_matrix(place.q) @ torch.tensor(_DOWN, device=place.q.device).T
        angles = matrix_to_euler_angles(turn, "ZYX").flip(-1)
        fingers = host(env.agent.robot.get_qpos())[0, -2:].astype(np.float64)
        opening = np.clip((fingers.mean() - _CLOSED) / (_OPEN - _CLOSED), 0.0, 1.0)
        found: dict[str, Any] = {
            "observation/state": np.array([*host(place.p)[0], *host(angles)[0], 0.0, opening]),
            "observation/hand": host(hand.raw_pose)[0],
            "observation/source": host(env.objs[env.source_obj_name].pose.raw_pose)[0],
            "observation/target": host(env.objs[env.target_obj_name].pose.raw_pose)[0],
            "prompt": self.prompt,
        }
        if self._in_use:
            found[IMAGE_KEY] = host(
                env.get_obs(self._info)["sensor_data"]["3rd_view_camera"]["rgb"]
            )[0]
        return found

    def hold_action(self, last: Array | None) -> Array:
        """Stay: actions are differences, and the gripper goes on as it was told; it is open where
        it was told nothing."""
        return np.array([0.0] * 6 + [1.0 if last is None else last[-1]], np.float32)


def _digest_of_assets() -> str:
    """The sha256 of all files from which the scenes are made."""
    from mani_skill import ASSET_DIR

    digest = hashlib.sha256()
    for folder in ("tasks/bridge_v2_real2sim_dataset", "robots/widowx"):
        for path in sorted((ASSET_DIR / folder).rglob("*")):
            if path.is_file():
                digest.update(f"{path.relative_to(ASSET_DIR)} {path.stat().st_size}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
