"""A policy without eyes for SimplerEnv's tasks: it takes the object and lets it go over the target.

It keeps nothing: what is to be done follows from where hand, object and target are, and from how
far the gripper is open.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import hocket
from hocket.core.data import Array
from hocket.core.specs import ArraySpec

HOVER, DROP, GRASP = 0.07, 0.015, 0.0
STEPS = 2
MOST = 0.03
"""Metres that the hand goes in a step."""
_POSE = ArraySpec(shape=(7,), dtype="<f4")


class Picker:
    spec = hocket.PolicySpec(
        chunk_length=STEPS,
        action_size=7,
        cameras=(),
        inputs={
            "observation/state": ArraySpec(shape=(8,), dtype="<f8"),
            "observation/hand": _POSE,
            "observation/source": _POSE,
            "observation/target": _POSE,
        },
        batch_invariant=True,
    )

    def infer(self, batch: Any) -> Array:
        seen = {key.rpartition("/")[2]: array for key, array in batch.arrays.items()}
        return np.stack(
            [
                act(seen["hand"][i], seen["source"][i], seen["target"][i], seen["state"][i, 7])
                for i in range(len(seen["hand"]))
            ]
        )

    def close(self) -> None: ...


def act(hand: Array, source: Array, target: Array, opening: float) -> Array:
    """The next actions `[STEPS, 7]`."""
    at, thing, goal = (np.asarray(pose[:3], np.float64) for pose in (hand, source, target))
    to_thing, to_goal = thing - at, goal - thing
    is_held = np.linalg.norm(to_thing) < 0.035 and opening < 0.9
    is_there = np.hypot(*to_goal[:2]) < 0.012
    grip = 1.0
    if is_there and not is_held:
        move = np.array([0.0, 0.0, 0.02])
    elif is_held:
        grip = -1.0
        is_high = thing[2] > goal[2] + 0.05
        if is_there:
            low = thing[2] - goal[2] - 0.02 - DROP
            move, grip = np.array([*to_goal[:2], -low]), 1.0 if low < 0.01 else -1.0
        elif is_high or np.hypot(*to_goal[:2]) < 0.03:
            move = np.array([*to_goal[:2], 0.0])
        else:
            move = np.array([0.0, 0.0, 0.03])
    else:
        is_over = np.hypot(*to_thing[:2]) < 0.008
        height = GRASP if is_over else HOVER
        move = to_thing + np.array([0.0, 0.0, height])
        if is_over and move[2] > -0.008:
            grip = -1.0
    action = np.zeros((STEPS, 7))
    move[:2] *= -1.0  # The robot looks the other way than the world's axes.
    action[:, :3] = np.clip(0.7 * move, -MOST * STEPS, MOST * STEPS) / STEPS
    action[:, 6] = grip
    return action
