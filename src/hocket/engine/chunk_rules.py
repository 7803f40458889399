"""Which actions of a chunk an env executes before it asks for the next one.

A rule belongs to one attempt: it is made when the attempt begins and dropped when it ends. Rules
replace their arrays and never write into them, so `copy.copy` of a rule is a rule on its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from hocket.core.data import Array
from hocket.errors import ChunkShapeError, ConfigError

_LARGEST_EXPONENT = 700.0
"""`exp` of more overflows float64."""


class ChunkRule(Protocol):
    """Turns each newly inferred chunk into the actions to execute until the next decision."""

    def take(self, chunk: Array, executed: int) -> Array:
        """From a chunk `[T, A]`, and the env steps executed so far in this attempt, the actions
        `[k, A]` to execute next: float64, C-contiguous, not shared with `chunk`."""
        ...


@runtime_checkable
class SharedRule(Protocol):
    """A rule that keeps nothing: one serves all attempts, and takes many chunks at once."""

    def take_all(self, chunks: Array) -> Array:
        """`take` for chunks `[B, T, A]`: actions `[B, k, A]`, perhaps in the same memory."""
        ...


class ReplayFirst:
    """Executes the first `count` actions of each chunk; None means all of them."""

    def __init__(self, count: int | None = None) -> None:
        if count is not None:
            _check_count(count)
        self.count = count

    def take(self, chunk: Array, executed: int) -> Array:
        if self.count is not None:
            _check_length(chunk, self.count)
        return np.array(chunk[: self.count], dtype=np.float64, order="C")

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

    def take(self, chunk: Array, executed: int) -> Array:
        _check_length(chunk, self.count)
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
        answer: Array = sums[: self.count] / weights[: self.count]
        return answer


def make_rule(replan: int | None, ensemble: float | None) -> Callable[[], ChunkRule]:
    """Makes one rule for each attempt: `replan` actions of each chunk are executed (None: all of
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
