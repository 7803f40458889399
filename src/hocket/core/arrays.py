"""Turns arrays of any library into numpy's, and whatever names some envs into their indices."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from hocket.core.data import Array
from hocket.errors import UsageError


def as_numpy(value: Any) -> Any:
    """The value as a numpy array, wherever it lives; torch is recognised by its methods and never
    imported. What is not an array comes back as it is."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        tensor = value.detach().cpu()
        try:
            return tensor.numpy()
        except TypeError:  # bfloat16, which numpy does not have
            return tensor.float().numpy()
    if hasattr(value, "__array__") or isinstance(value, np.generic):
        return np.asarray(value)
    return value


def first_difference(one: Mapping[str, Array], other: Mapping[str, Array]) -> str | None:
    """The first key of which two observations differ, to the bit."""
    for key in sorted({*one, *other}):
        a, b = one.get(key), other.get(key)
        if a is None or b is None or a.shape != b.shape or a.tobytes() != b.tobytes():
            return key
    return None


def read_ids(given: Any, size: int | None) -> Array | None:
    """Indices of envs from an int, list, array, tensor or bool mask; None stands for all. With
    `size` None the number of envs is not known yet, and only the kind is checked."""
    if given is None:
        return None
    if isinstance(given, (set, frozenset, range)):
        given = sorted(given)
    array = np.asarray(as_numpy(given))
    if array.size == 0 and array.dtype.kind != "b":
        return np.zeros(0, dtype=np.intp)
    if array.dtype.kind == "b" and array.ndim:
        array = np.ravel(array)
        if size is not None and len(array) != size:
            raise UsageError(f"A mask of {len(array)} was given to reset; there are {size} envs.")
        return np.flatnonzero(array)
    if array.dtype.kind not in "iu":
        raise UsageError(
            f"reset takes None, an int, a list, an array, a tensor or a bool mask of envs, "
            f"not {given!r}."
        )
    ids = np.ravel(array).astype(np.intp)
    wrong = ids[(ids < 0) | (ids >= (sys.maxsize if size is None else size))]
    if len(wrong):
        raise UsageError(f"There is no env {wrong[0]}: they are numbered 0 to {(size or 1) - 1}.")
    return ids
