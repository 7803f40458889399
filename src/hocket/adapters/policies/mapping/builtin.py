"""The mappings that come with hocket, written as a user would write them in YAML.

The env's keys are OpenPI's own where an env can be asked for them; a user whose env has other names
copies one of these into a file and changes `from`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_IMAGE = {"resize": [224, 224], "dtype": "uint8"}

_DROID_REQUEST: Mapping[str, Any] = {
    "observation/exterior_image_1_left": {
        "from": "observation/exterior_image_1_left",
        **_IMAGE,
    },
    "observation/wrist_image_left": {"from": "observation/wrist_image_left", **_IMAGE},
    "observation/joint_position": {"from": "observation/joint_position", "size": 7},
    "observation/gripper_position": {"from": "observation/gripper_position", "size": 1},
}

BUILTIN: Mapping[str, Mapping[str, Any]] = {
    # Joint velocities and a gripper that is open or closed, as the DROID checkpoints answer.
    "droid": {
        "request": _DROID_REQUEST,
        "actions": {"slice": [0, 8], "gripper": {"threshold": 0.5}, "clip": [-1.0, 1.0]},
        "control_rate": 15,
        "replan": 8,
    },
    # Absolute joint targets in radians: nothing to clip.
    "droid-jointpos": {
        "request": _DROID_REQUEST,
        "actions": {"slice": [0, 8], "gripper": {"threshold": 0.5}},
        "control_rate": 15,
        "replan": 8,
    },
    # LIBERO's checkpoints saw the simulator's images turned by 180 degrees, which is upright.
    # An env that gives them upright already needs no turn; one that gives LIBERO's raw images
    # needs `libero-raw`.
    "libero": {
        "request": {
            "observation/image": {"from": "observation/image", **_IMAGE},
            "observation/wrist_image": {"from": "observation/wrist_image", **_IMAGE},
            "observation/state": {"from": "observation/state", "size": 8},
        },
        "actions": {"slice": [0, 7]},
        "control_rate": 20,
        "replan": 5,
    },
    "libero-raw": {
        "request": {
            "observation/image": {"from": "observation/image", "rotate": 180, **_IMAGE},
            "observation/wrist_image": {"from": "observation/wrist_image", "rotate": 180, **_IMAGE},
            "observation/state": {"from": "observation/state", "size": 8},
        },
        "actions": {"slice": [0, 7]},
        "control_rate": 20,
        "replan": 5,
    },
    "aloha": {
        "request": {
            "images/cam_high": {"from": "observation/image", "layout": "chw", **_IMAGE},
            "state": {"from": "observation/state", "size": 14},
        },
        "nested": ["images"],
        "actions": {"slice": [0, 14]},
        "control_rate": 50,
        "replan": 10,
    },
    "metaworld": {
        "request": {
            "observation/image": {"from": "observation/image", **_IMAGE},
            "observation/state": {"from": "observation/state", "dtype": "float32"},
        },
        "actions": {"slice": [0, 4], "clip": [-1.0, 1.0]},
    },
}
