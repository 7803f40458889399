"""`reference-mjx`: analytic chunk policies for the MJX tasks, in numpy, without weights.

Both plan a chunk ahead with a model of the arm as pure geometry, and correct themselves at the next
observation. All arithmetic is element by element, so a row's answer does not depend on its batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hocket.adapters.envs.mjx import CONTROL_RATE, LINK, SHOULDER_Z, STATE_KEY
from hocket.core.data import Actions, Array, Batch
from hocket.core.specs import ArraySpec, PolicySpec
from hocket.errors import SpecMismatchError

_DT = 1 / CONTROL_RATE
_REACH_SPEED, _PUSH_SPEED = 2.0, 4.0
# With these the test of the tasks asks for a success rate of at least 0.8.
_STRIDE = 0.015
"""Metres that the hand moves in a step while it pushes."""
_CONTACT = 0.06 + np.sqrt(0.052**2 - 0.035**2)
"""From the wrist to the block's centre while both fingertips touch it."""
_CLEAR = _CONTACT + 0.05
"""From the wrist to the block's centre while the hand goes around it."""
_ALIGNED = 0.1
"""Radians off the line through block and goal from which the hand may push."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MjxReferenceConfig:
    chunk_length: int = 16
    max_batch: int = 4096


class MjxReference:
    """`reach` for observations of 12 numbers, `push` for those of 10."""

    Config: ClassVar = MjxReferenceConfig

    def __init__(self, argument: str = "", config: MjxReferenceConfig | None = None) -> None:
        del argument
        config = config or MjxReferenceConfig()
        self._length = config.chunk_length
        self.spec = PolicySpec(
            chunk_length=config.chunk_length,
            action_size=3,
            inputs={STATE_KEY: ArraySpec(shape=(-1,), dtype="<f4")},
            cameras=(),
            control_rate=CONTROL_RATE,
            max_batch=config.max_batch,
            batch_invariant=True,
        )

    def infer(self, batch: Batch) -> Actions:
        state = np.asarray(batch.arrays[STATE_KEY], np.float64)
        plans = {12: reach, 10: push}
        if state.shape[1] not in plans:
            raise SpecMismatchError(
                f"reference-mjx knows mjx:reach and mjx:push; a state of {state.shape[1]} numbers "
                f"is neither."
            )
        return Actions(plans[state.shape[1]](state, self._length))

    def close(self) -> None:
        """Nothing is held."""


def reach(state: Array, length: int) -> Array:
    """Joint speeds `[B, length, 3]` straight to the joints that put the tip on the goal."""
    joints, goal = state[:, :3], state[:, 9:12]
    flat = np.hypot(goal[:, 0], goal[:, 1])
    shoulder, elbow = _two_links(flat, goal[:, 2] - SHOULDER_Z, joints[:, 2])
    target = np.stack([np.arctan2(goal[:, 1], goal[:, 0]), shoulder, elbow], axis=1)
    left = _wrapped(target - joints)
    chunk = np.empty((len(state), length, 3))
    for step in range(length):
        chunk[:, step] = np.clip(left / (_REACH_SPEED * _DT), -1.0, 1.0)
        left = left - chunk[:, step] * _REACH_SPEED * _DT
    return chunk


def push(state: Array, length: int) -> Array:
    """Joint speeds `[B, length, 3]` around the block, to it, and then with it to the goal."""
    joints, block, goal = state[:, :3].copy(), state[:, 6:8].copy(), state[:, 8:10]
    chunk = np.empty((len(state), length, 3))
    for step in range(length):
        wrist, heading, block = _next_pose(_wrist(joints), block, goal)
        shoulder, elbow = _two_links(wrist[:, 0], wrist[:, 1], joints[:, 1])
        target = np.stack([shoulder, elbow, heading - shoulder - elbow], axis=1)
        chunk[:, step] = np.clip(_wrapped(target - joints) / (_PUSH_SPEED * _DT), -1.0, 1.0)
        joints = joints + chunk[:, step] * _PUSH_SPEED * _DT
    return chunk


def _next_pose(wrist: Array, block: Array, goal: Array) -> tuple[Array, Array, Array]:
    """The wrist's position and direction after a step, and the block's position then."""
    away = wrist - block
    near, angle = np.hypot(away[:, 0], away[:, 1]), np.arctan2(away[:, 1], away[:, 0])
    way = goal - block
    left = np.hypot(way[:, 0], way[:, 1])
    line = np.arctan2(way[:, 1], way[:, 0])
    off = _wrapped(line + np.pi - angle)
    is_behind = np.abs(off) < _ALIGNED
    # Around the block at a distance, facing it; in behind it once aligned, and on towards the goal.
    turn = np.clip(off, -1.5 * _STRIDE / _CLEAR, 1.5 * _STRIDE / _CLEAR)
    is_clear = near > _CLEAR - 0.01
    around = np.where(is_clear, angle + turn, angle)
    orbit = np.where(is_clear, np.maximum(near - _STRIDE, _CLEAR), near + _STRIDE)
    stride = np.minimum(_STRIDE, np.maximum(left, 0.0) + np.maximum(near - _CONTACT, 0.0))
    distance = np.where(is_behind, near - stride, orbit)
    angle = np.where(is_behind, angle + 0.3 * off, around)
    target = block + distance[:, None] * _unit(angle)
    pushed = np.where(is_behind & (distance < _CONTACT), _CONTACT - distance, 0.0)
    return target, angle + np.pi, block - pushed[:, None] * _unit(angle)


def _wrist(joints: Array) -> Array:
    return LINK * (_unit(joints[:, 0]) + _unit(joints[:, 0] + joints[:, 1]))


def _two_links(x: Array, y: Array, bent: Array) -> tuple[Array, Array]:
    """Angles of two equal links that end at a point, the elbow bent to the side it is on."""
    far = np.clip(np.hypot(x, y), 0.05, 2 * LINK - 1e-3)
    elbow = 2 * np.arccos(far / (2 * LINK))
    elbow = np.where(bent < 0, -elbow, elbow)
    return np.arctan2(y, x) - elbow / 2, elbow


def _unit(angle: Array) -> Array:
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _wrapped(angle: Array) -> Array:
    wrapped: Array = np.mod(angle + np.pi, 2 * np.pi) - np.pi
    return wrapped
