"""SimplerEnv's WidowX tasks as ManiSkill 3 has them. Importing this loads no simulator."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from hocket.adapters.envs.maniskill import STARTS
from hocket.adapters.envs.maniskill.env import ManiSkillEnv
from hocket.adapters.envs.row_tensors import host
from hocket.core.data import Array

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
