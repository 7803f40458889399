"""The last few observations of each row, for policies that read more than one."""

from __future__ import annotations

import numpy as np

from hocket.core.data import Array, Signature
from hocket.workers.rows.sim import RowSim, on_host


class RowHistory:
    """Keeps `length` observations of consecutive control steps for each row, on the host, padded
    with the first of an attempt. With a length of 1 it keeps nothing."""

    def __init__(self, rows: int, length: int) -> None:
        self.length = length
        self._rows = rows
        self._arrays: dict[int, dict[str, Array]] = {}
        self._last = np.full(rows, -1, np.int64)
        """Step of each row's newest observation."""
        self._streak = np.zeros(rows, np.int64)
        """How many observations of consecutive steps each row has, the newest included."""

    def restart(self, home: int, rows: Array, sim: RowSim, reads: tuple[str, ...] | None) -> None:
        """Begin attempts with the observations of their resets."""
        if self.length == 1:
            return
        kept = self._arrays.setdefault(home, {})
        for key, array in sim.observe(rows, reads).items():
            values = on_host(array)
            if key not in kept:
                shape = (self._rows, self.length, *values.shape[1:])
                kept[key] = np.zeros(shape, values.dtype)
            kept[key][rows] = values[:, None]
        self._last[rows] = 0
        self._streak[rows] = 1

    def push(
        self, home: int, rows: Array, sim: RowSim, reads: tuple[str, ...] | None, steps: Array
    ) -> None:
        """Add what these rows see after their steps, and drop the oldest."""
        if not len(rows):
            return
        for key, array in sim.observe(rows, reads).items():
            kept = self._arrays[home][key]
            kept[rows, :-1] = kept[rows, 1:]
            kept[rows, -1] = on_host(array)
        follows = steps[rows] == self._last[rows] + 1
        self._streak[rows] = np.where(follows, self._streak[rows] + 1, 1)
        self._last[rows] = steps[rows]

    def lacks(self, steps: Array) -> Array:
        """How many more steps each row must be seen at before its history is whole."""
        if self.length == 1:
            return np.zeros(self._rows, np.int64)
        streak = np.where(steps == self._last, self._streak, 0)
        # Seen at every step since its reset, a row has a whole history, however short.
        answer: Array = np.where(streak == steps + 1, 0, np.maximum(0, self.length - streak))
        return answer

    def gather(self, rows: Array, homes: Array) -> dict[str, Array]:
        """The histories `[k, length, ...]` of these rows, oldest first; `homes` are the simulators
        that they are in."""
        found: dict[str, Array] = {}
        for home in np.unique(homes).tolist():
            is_here = homes == home
            for key, array in self._arrays[home].items():
                whole = found.setdefault(key, np.empty((len(rows), *array.shape[1:]), array.dtype))
                whole[is_here] = array[rows[is_here]]
        return found

    def signature(self, found: Signature) -> Signature:
        """The signature of one observation as that of a whole history."""
        if self.length == 1:
            return found
        return tuple((key, (self.length, *shape), dtype) for key, shape, dtype in found)
