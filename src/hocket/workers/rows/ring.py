"""Values of rows by the step that they belong to, in memory of a fixed length."""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket.core.data import Array


class StepRing:
    """One value for each row and step, `[length, rows, ...]`. That of step t lies at t modulo the
    length, so what all rows have in one step lies side by side, whenever their chunks began."""

    def __init__(self, rows: int, shape: tuple[int, ...] = (), dtype: Any = np.float64) -> None:
        self._array = np.zeros((2, rows, *shape), dtype)

    def __getitem__(self, tick: int) -> Array:
        """The values of all rows in one step, a view `[rows, ...]`."""
        row: Array = self._array[tick % len(self._array)]
        return row

    def reserve(self, steps: int, tick: int) -> None:
        """Make room for `steps` steps before step `tick`, and as many from it on."""
        length = len(self._array)
        if 2 * steps <= length:
            return
        known = np.arange(tick - length // 2, tick + length // 2)
        grown = np.zeros((2 * max(steps, length), *self._array.shape[1:]), self._array.dtype)
        grown[known % len(grown)] = self._array[known % length]
        self._array = grown

    def put(self, rows: Array, first: Array, counts: Array, values: Array) -> None:
        """Set the values `[sum of counts, ...]` of `counts` steps from `first` on, one row after
        the other."""
        self._array[self._places(rows, first, counts)] = values

    def take(self, rows: Array, first: Array, counts: Array) -> Array:
        """The values of `counts` steps from `first` on, one row after the other."""
        values: Array = self._array[self._places(rows, first, counts)]
        return values

    def _places(self, rows: Array, first: Array, counts: Array) -> tuple[Array, Array]:
        ticks = np.arange(int(counts.sum())) + np.repeat(first - counts.cumsum() + counts, counts)
        return ticks % len(self._array), np.repeat(rows, counts)
