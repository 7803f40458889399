"""What becomes of a policy's answer: it is checked, and a rule says which actions of a chunk an env
executes before it asks for the next one.

A rule belongs to one attempt: it is made when the attempt begins and dropped when it ends. Rules
replace their arrays and never write into them, so `copy.copy` of a rule is a rule on its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from hocket.core.arrays import as_numpy
from hocket.core.data import Actions, Answer, Array
from hocket.errors import ChunkShapeError, ChunkValueError, ConfigError

_LARGEST_EXPONENT = 700.0
"""`exp` of more overflows float64."""
_REAL_KINDS = "fiu"
"""Kinds of numpy dtypes that hold real numbers."""


class ChunkRule(Protocol):
    """Turns each newly inferred chunk into the actions to execute until the next decision."""

    def take(self, chunk: Array, executed: int, first: int = 0, more: int = 0) -> Array:
        """From a chunk `[T, A]`, and the env steps executed in this attempt when its observation
        was taken, the actions `[k, A]` to execute next: float64, C-contiguous, not shared with
        `chunk`. Where the world goes on while the policy thinks, the `first` ones are left out, and
        `more` are executed beyond those of the rule."""

    def take_all(self, chunks: Array) -> Array | None:
        """`take` for chunks `[B, T, A]` of as many attempts: actions `[B, k, A]`, perhaps in the
        same memory. None where each attempt needs a rule of its own."""


class ReplayFirst:
    """Executes the first `count` actions of each chunk; None means all of them."""

    def __init__(self, count: int | None = None) -> None:
        if count is not None:
            _check_count(count)
        self.count = count

    def take(self, chunk: Array, executed: int, first: int = 0, more: int = 0) -> Array:
        stop = self.count
        if stop is not None:
            stop += more
            _check_length(chunk, stop)
        return np.array(chunk[first:stop], dtype=np.float64, order="C")

    def take_all(self, chunks: Array) -> Array:
        if self.count is not None:
            _check_length(chunks[0], self.count)
        return np.ascontiguousarray(chunks[:, : self.count], np.float64)


class TemporalEnsemble:
    """Averages everything that the attempt's chunks predict for a step (ACT's ensembling).

    Of the chunks that predict a step, oldest first, chunk i weighs `exp(-coefficient * i)`. So a
    positive coefficient trusts the oldest most, 0 trusts all alike, a negative one the newest.
    `count` actions are executed before the next inference.
    """

    def __init__(self, coefficient: float, count: int = 1) -> None:
        if isinstance(coefficient, bool) or not isinstance(coefficient, (int, float)):
            raise ConfigError(f"The ensemble coefficient must be a number, not {coefficient!r}.")
        if not math.isfinite(coefficient):
            raise ConfigError(
                f"The ensemble coefficient must be finite, not {coefficient}. ACT uses 0.01."
            )
        _check_count(count)
        self.coefficient = float(coefficient)
        self.count = count
        # Row j of each belongs to the env step `self._start + j` of the attempt.
        self._start = 0
        self._sums = np.zeros((0, 0))
        self._weights = np.zeros((0, 1))
        self._votes = np.zeros(0, dtype=np.intp)

    def take(self, chunk: Array, executed: int, first: int = 0, more: int = 0) -> Array:
        stop = self.count + more
        _check_length(chunk, stop)
        if executed < self._start:
            raise ValueError(f"The attempt went back from step {self._start} to {executed}.")
        length, size = chunk.shape
        gone = executed - self._start
        kept = self._votes[gone:]
        rows = max(length, len(kept))
        sums, weights = np.zeros((rows, size)), np.zeros((rows, 1))
        votes = np.zeros(rows, dtype=np.intp)
        if len(kept):
            sums[: len(kept)] = self._sums[gone:]
            weights[: len(kept)] = self._weights[gone:]
            votes[: len(kept)] = kept
        table = _weights(self.coefficient, int(votes[0]) + length)
        weight = table[votes[:length]]
        sums[:length] += weight * chunk
        weights[:length] += weight
        votes[:length] += 1
        self._start, self._sums, self._weights, self._votes = executed, sums, weights, votes
        answer: Array = sums[first:stop] / weights[first:stop]
        return answer

    def take_all(self, chunks: Array) -> None:
        """None: what was predicted before is the attempt's own."""


def make_rule(replan: int | None, ensemble: float | None) -> Callable[[], ChunkRule]:
    """What makes a rule for each attempt: `replan` actions of each chunk are executed (None: all of
    them, or one with ensembling), averaged with the coefficient `ensemble` where it is given."""
    make: Callable[[], ChunkRule]
    if ensemble is None:
        make = functools.partial(ReplayFirst, replan)
    else:
        make = functools.partial(TemporalEnsemble, ensemble, 1 if replan is None else replan)
    make()  # A bad value is the caller's error now, not the first attempt's later.
    return make


@functools.lru_cache(maxsize=64)
def _weights(coefficient: float, length: int) -> Array:
    if -coefficient * length > _LARGEST_EXPONENT:
        raise ConfigError(
            f"Ensemble coefficient {coefficient} over {length} predictions of one step is more "
            f"than a number can hold. Use a coefficient above {-_LARGEST_EXPONENT / length:.3g}."
        )
    table = np.array([[math.exp(-coefficient * i)] for i in range(length)])
    table.setflags(write=False)
    return table


def _check_count(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
        raise ConfigError(f"replan must be a whole number of actions, 1 or more, not {count!r}.")


def _check_length(chunk: Array, count: int) -> None:
    if len(chunk) < count:
        raise ChunkShapeError(
            f"replan asks to execute {count} actions of each chunk, but the policy's chunk has "
            f"{len(chunk)}. Set replan to {len(chunk)} or less."
        )


def check_answer(
    answer: Answer, *, rows: int, size: int, action_size: int | None, chunk_length: int, name: str
) -> Actions:
    """The answer to a batch of `size` rows, of which the first `rows` are real, as Actions whose
    arrays hold the real rows only.

    `action_size` None and `chunk_length` 0 leave A and T to the answer. Whether values are finite
    is a question of rows, not of the answer: see `finite_rows`.
    """
    given = answer if isinstance(answer, Actions) else Actions(values=answer)
    values: Any = given.values
    if not isinstance(values, np.ndarray):
        values = as_numpy(values)
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
