"""The rows that make a step, and those of them that end by it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Array

_FLOAT = np.dtype(np.float64)
_FEW = 8
"""So many rows of a mask are found one by one sooner than by array operations."""


class Moving:
    """The rows that make a step.

    What a processor finds after it has slept through a step is cold: bytes and numbers are at hand
    several times sooner than the array operations that would do the same.
    """

    __slots__ = ("_bits", "_found", "_quiet", "_rows", "count", "is_judging", "mask")

    def __init__(self, mask: Array, count: int) -> None:
        """The mask stays as it is."""
        self.mask = mask
        """Which of all rows they are."""
        self.count = count
        """How many."""
        self.is_judging = False
        """Whether the simulator judged the last quiet step."""
        self._rows: Array | None = None
        self._bits = -1
        self._quiet: tuple[bytes, bytes, bytes | None] | None = None
        """What a step gave by which none of these rows ended."""
        self._found: tuple[bytes, bytes, bytes | None] | None = None
        """What the last step gave that was looked at: rows that ended by it move no more."""

    @property
    def rows(self) -> Array:
        """Their numbers."""
        if self._rows is None:
            self._rows = np.flatnonzero(self.mask)
        return self._rows

    def without(self, rows: Array) -> Moving:
        """Those of them that are not in `rows`, which are all whose episodes have ended now."""
        mask = self.mask.copy()
        mask[rows] = False
        rest = Moving(mask, self.count - len(rows))
        if self._found is not None and self._found[2] is None:
            # None of the rest is in it, and rows that do not move stay as they are.
            rest._quiet = self._found
        return rest

    def is_quiet(self, result: RowSteps) -> bool:
        """Whether none of these rows terminated, was truncated or succeeded."""
        success = result.success
        found = (
            result.terminated.tobytes(),
            result.truncated.tobytes(),
            None if success is None else success.tobytes(),
        )
        if found == self._quiet:
            return True
        self._found = found
        is_judging = success is not None
        if self._quiet is not None and is_judging != self.is_judging:
            return False
        if any(mask is not None and self.find(mask) is not None for mask in result[1:]):
            return False
        self._quiet, self.is_judging = found, is_judging
        return True

    def find(self, found: Array) -> Array | None:
        """Numbers of these rows that are in a mask; None for none."""
        data = found.tobytes()
        if len(data) != len(self.mask):  # no mask of bytes
            found = found.astype(np.bool_)
            data = found.tobytes()
        if self._bits < 0:
            self._bits = int.from_bytes(self.mask.tobytes(), "little")
        bits = int.from_bytes(data, "little") & self._bits
        if not bits:
            return None
        if bits.bit_count() > _FEW:
            return np.flatnonzero(found & self.mask)
        rows = []
        while bits:
            rows.append((bits.bit_length() - 1) // 8)
            bits ^= 1 << (8 * rows[-1])
        return np.array(rows[::-1])


class Ended(NamedTuple):
    """Rows whose episodes have ended, or at least their chunks."""

    rows: Array
    flags: Array
    """Of each: `END_TERMINATED`, `END_TRUNCATED`, or 0 where the episode goes on."""


def as_bytes(rewards: Array) -> bytes:
    """Of float64, whatever they were."""
    return (rewards if rewards.dtype is _FLOAT else rewards.astype(np.float64)).tobytes()
