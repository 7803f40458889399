"""What things are called in a LeRobotDataset: of who writes one and of who reads one."""

from __future__ import annotations

import numpy as np

VERSION = "v3.0"


def number_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """A name for each number of an array: `goal_0`, `goal_1`, or `matrix_0_1`."""
    return ["_".join([name, *map(str, index)]) for index in np.ndindex(*shape)]


def picture_key(name: str) -> str:
    """The feature of a camera: that of `wrist_image` is `observation.images.wrist_image`."""
    return f"observation.images.{name}"
