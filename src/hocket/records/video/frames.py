"""Pictures in observations, as frames of a video."""

from __future__ import annotations

import numpy as np

from hocket.core.data import Array, Observation
from hocket.errors import ObservationError
from hocket.workers.spaces import is_image

_ROUNDING = 1e-3
"""A renderer's arithmetic may leave [0, 1] by this much."""


def cameras_in(observation: Observation) -> list[str]:
    """Keys that hold pictures: uint8 `[height, width, 1, 3 or 4]`, or floats in [0, 1] of 3 or 4
    channels. A float array of one channel is no picture: it may be a depth, in metres."""
    return [key for key, array in sorted(observation.items()) if _is_picture(array)]


def as_frame(key: str, array: Array, step: int) -> Array:
    """The picture as RGB, uint8 `[height, width, 3]`; alpha is left out, floats become 0 to 255.

    The frame may be the array itself.
    """
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or array.dtype.kind not in "uf":
        raise ObservationError(
            f"{key!r} at step {step} is {array.dtype} {array.shape}, which is no picture: uint8 or "
            f"floats, [height, width, 1, 3 or 4]."
        )
    if array.dtype != np.uint8:
        if not _is_in_unit_range(array):
            raise ObservationError(
                f"{key!r} at step {step} has values from {array.min()} to {array.max()}; a picture "
                f"of {array.dtype} has them in [0, 1]. Give uint8, or scale it."
            )
        array = np.rint(np.clip(array, 0, 1) * 255).astype(np.uint8)
    if array.shape[2] == 1:
        return np.repeat(array, 3, axis=2)
    return array if array.shape[2] == 3 else array[:, :, :3]


def _is_picture(array: Array) -> bool:
    if is_image(array):
        return True
    is_shaped = array.ndim == 3 and array.shape[2] in (3, 4) and min(array.shape[:2]) > 4
    return is_shaped and array.dtype.kind == "f" and _is_in_unit_range(array)


def _is_in_unit_range(array: Array) -> bool:
    # A NaN is not in it: no comparison with one is true.
    return bool(array.min() >= -_ROUNDING and array.max() <= 1 + _ROUNDING)
