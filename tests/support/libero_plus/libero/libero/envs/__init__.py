"""An env with the outside of LIBERO-Plus': what is changed stands in the name of a file that may
not exist, and its pictures, prompt and success tell which variant it played from which start."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np


class OffScreenRenderEnv:
    def __init__(self, bddl_file_name: str, camera_heights: int, camera_widths: int) -> None:
        self.name = Path(bddl_file_name).stem
        self._size = (camera_heights, camera_widths, 3)
        digest = hashlib.sha256(self.name.encode()).digest()
        self._colour = digest[:3]
        self._wins = digest[3] % 2 == 1
        self.language_instruction = f"play {self.name}"

    def seed(self, seed: int) -> None:
        np.random.seed(seed)

    def reset(self) -> dict[str, Any]:
        self._steps, self._start = 0, np.zeros(1)
        return self._seen()

    def set_init_state(self, state: Any) -> dict[str, Any]:
        self._start = np.asarray(state)
        return self._seen()

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        self._steps += 1
        done = self._wins and self._steps == 15
        return self._seen(), float(done), done, {}

    def close(self) -> None: ...

    def _seen(self) -> dict[str, Any]:
        picture = np.zeros(self._size, np.uint8)
        picture[0, -1] = list(self._colour)  # robosuite's pictures stand on their heads
        return {
            "agentview_image": picture,
            "robot0_eye_in_hand_image": picture.copy(),
            "robot0_eef_pos": np.array([float(self._start[0]), self._steps, 0.0]),
            "robot0_eef_quat": np.array([0.0, 0.0, 0.0, 1.0]),
            "robot0_gripper_qpos": np.zeros(2),
        }
