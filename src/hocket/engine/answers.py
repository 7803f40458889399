"""Checks what a policy answered before anything is executed."""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket.core.arrays import as_numpy
from hocket.core.data import Actions, Answer, Array
from hocket.errors import ChunkShapeError, ChunkValueError

_REAL_KINDS = "fiu"


def check_answer(
    answer: Answer, *, rows: int, size: int, action_size: int | None, chunk_length: int, name: str
) -> Actions:
    """The answer to a batch of `size` rows, of which the first `rows` are real, as Actions whose
    arrays hold the real rows only.

    `action_size` None and `chunk_length` 0 leave A and T to the answer. Whether values are finite
    is a question of rows, not of the answer: see `finite_rows`.
    """
    given = answer if isinstance(answer, Actions) else Actions(values=answer)
    values = as_numpy(given.values)
    if not isinstance(values, np.ndarray):
        raise ChunkShapeError(
            f"Policy {name!r} returned a {type(given.values).__name__}; infer must return Actions "
            f"or an array [B, T, A]."
        )
    if values.dtype.kind not in _REAL_KINDS:
        raise ChunkValueError(
            f"Policy {name!r} returned actions of dtype {values.dtype}; actions must be real "
            f"numbers. Return floats (or integers) from infer."
        )
    if (
        values.ndim != 3
        or values.shape[0] != size
        or values.shape[1] < 1
        or (chunk_length and values.shape[1] != chunk_length)
        or values.shape[2] < 1
        or (action_size is not None and values.shape[2] != action_size)
    ):
        raise _shape_error(values.shape, size, action_size, chunk_length, name)
    if values is given.values and rows == size and not given.extras:
        return given
    extras = {key: _extra(key, value, rows, size, name) for key, value in given.extras.items()}
    return Actions(values[:rows], extras, given.version, given.source)


def finite_rows(values: Array) -> Array:
    """Which rows of `[B, ...]` hold finite numbers only, as bool `[B]`."""
    finite = np.isfinite(values)
    if finite.all():
        return np.ones(len(values), dtype=np.bool_)
    return np.asarray(finite.reshape(len(values), -1).all(axis=1))


def _extra(key: str, value: Any, rows: int, size: int, name: str) -> Array:
    array = as_numpy(value)
    if not isinstance(array, np.ndarray) or array.ndim < 1 or len(array) != size:
        what = f"shape {array.shape}" if isinstance(array, np.ndarray) else type(value).__name__
        raise ChunkShapeError(
            f"Policy {name!r} returned extra {key!r} as {what}; it must be an array with one row "
            f"for each of the batch's {size}."
        )
    kept: Array = array[:rows]
    return kept


def _shape_error(
    shape: tuple[int, ...], size: int, action_size: int | None, chunk_length: int, name: str
) -> ChunkShapeError:
    needed = f"({size}, {chunk_length or 'T'}, {'A' if action_size is None else action_size})"
    advice = "Return one chunk [T, A] for each row of the batch, in its order."
    if len(shape) == 3 and shape[0] == size:
        if chunk_length and shape[1] != chunk_length:
            advice = "Set the policy's chunk_length to what it returns, or cut its answer."
        elif action_size is not None and shape[2] != action_size:
            advice = f"Check the policy's action head: the env takes {action_size} numbers a step."
        else:
            advice = "T and A must be at least 1."
    return ChunkShapeError(f"Policy {name!r} returned actions {shape}; needed {needed}. {advice}")
