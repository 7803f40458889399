"""The rows that make a step, and those of them that end by it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Array

_FLOAT = np.dtype(np.float64)
_FEW = 8
"""Rows of a mask, up to so many, are found faster one by one. Chosen by hand; no benchmark row."""


class Moving:
    """The rows that make a step.

    This runs after every step of the simulator, which takes 20 ms and leaves the processor's caches
    cold. There a numpy operation on a small array takes several times as long as a comparison of
    bytes, or arithmetic on one Python integer. So masks are looked at as bytes: a step that gives
    the same bytes as the last quiet one is quiet, and rows are found in the bits of an integer.
    """

    __slots__ = ("_bits", "_found", "_quiet", "_rows", "count", "is_judging", "mask")

    def __init__(self, mask: Array, count: int) -> None:
        """The mask must not be changed afterwards."""
        self.mask = mask
        """Which of all rows move, bool `[N]`."""
        self.count = count
        """How many they are."""
        self.is_judging = False
        """Whether the simulator judged the last quiet step."""
        self._rows: Array | None = None
        self._bits = -1
        """The bytes of the mask as one integer; -1 until it is needed."""
        self._quiet: tuple[bytes, bytes, bytes | None] | None = None
        """The bytes that a quiet step gave: terminated, truncated and success."""
        self._found: tuple[bytes, bytes, bytes | None] | None = None
        """The bytes that the last step gave which was not known to be quiet."""

    @property
    def rows(self) -> Array:
        if self._rows is None:
            self._rows = np.flatnonzero(self.mask)
        return self._rows

    def without(self, rows: Array) -> Moving:
        """The others of these rows; `rows` are all whose chunks ended with the last step."""
        mask = self.mask.copy()
        mask[rows] = False
        rest = Moving(mask, self.count - len(rows))
        if self._found is not None and self._found[2] is None:
            # Whatever was set in that step was set for rows that go, and rows that do not move are
            # given as they were: the rest may expect the same bytes again from a quiet step.
            rest._quiet = self._found
        return rest

    def is_quiet(self, result: RowSteps) -> bool:
        """Whether a step in which none of these rows terminated, was truncated or succeeded."""
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
        if any(mask is not None and self.find(mask) is not None for mask in result[1:4]):
            return False
        self._quiet, self.is_judging = found, is_judging
        return True

    def find(self, found: Array) -> Array | None:
        """Indices of these rows that are in a mask, in order; None where there are none."""
        data = found.tobytes()
        if len(data) != len(self.mask):  # A mask of other numbers than bool.
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
    """For each row `END_TERMINATED`, `END_TRUNCATED`, or 0 where the episode goes on."""


def with_room(array: Array, length: int) -> Array:
    """The array, grown along its first axis where it is shorter: at least twofold, so that chunks
    of ever more steps copy it only rarely."""
    known = len(array)
    if length <= known:
        return array
    grown = np.zeros((max(length, 2 * known), *array.shape[1:]), array.dtype)
    grown[:known] = array
    return grown


def as_bytes(rewards: Array) -> bytes:
    """Rewards as the bytes of float64, whatever numbers they were."""
    return (rewards if rewards.dtype is _FLOAT else rewards.astype(np.float64)).tobytes()
