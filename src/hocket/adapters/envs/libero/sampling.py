"""When robosuite's sensors look, and what they saw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hocket.core.data import Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    poses: Array
    """MuJoCo's qpos from which the poses of bodies were derived."""
    fingers: Array
    """The gripper's joints, which are read one tick later."""
    alphas: Array
    """Which lamps shone, as opacities of their sites."""


class SamplingClock:
    """Tells at which tick of MuJoCo's the sensors are read.

    robosuite counts a sensor's time in floating point and from its last forced reading, so that
    they are read once in every control step, but at a tick before its end. Counting in the same
    way here finds the same tick.
    """

    def __init__(self, *, tick: float, period: float) -> None:
        self._tick = tick
        self._period = period
        self._elapsed = 0.0
        self._is_read = False

    def restart(self) -> None:
        """Begin an episode: sensors were read by force after the reset and in the start state."""
        self._elapsed = 2 * self._tick
        self._is_read = True

    def tick(self) -> bool:
        """Count one; true where sensors are read."""
        self._elapsed += self._tick
        reads = not self._is_read and self._period >= self._elapsed
        self._is_read = self._is_read or reads
        if self._elapsed >= self._period:
            self._elapsed %= self._period
            self._is_read = False
        return reads

    @property
    def state(self) -> Array:
        return np.array([self._elapsed, self._is_read], np.float64)

    @state.setter
    def state(self, numbers: Array) -> None:
        self._elapsed, self._is_read = float(numbers[0]), bool(numbers[1])
