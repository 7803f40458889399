"""Where each array of an observation lies in a block of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.core.data import Array, Observation

_ALIGN = 64
"""Bytes of a cache line: no two arrays share one."""


class Entry(NamedTuple):
    """One array; a history above 1 is the first axis of its shape."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    offset: int


class Layout(NamedTuple):
    """The arrays of one lane lie one after the other in `stride` bytes; lanes follow each other."""

    entries: tuple[Entry, ...]
    stride: int

    @classmethod
    def of(cls, arrays: Mapping[str, Array], history: int) -> Layout:
        """A layout for observations like this one, `history` of them where that is above 1."""
        entries, offset = [], 0
        for key in sorted(arrays):
            array = arrays[key]
            shape = (history, *array.shape) if history > 1 else array.shape
            entries.append(Entry(key, shape, array.dtype.str, offset))
            size = array.nbytes * history
            offset += -(-size // _ALIGN) * _ALIGN
        return cls(tuple(entries), max(offset, _ALIGN))

    @classmethod
    def from_plain(cls, plain: Sequence[Any], stride: int) -> Layout:
        """The layout that a Ready message told."""
        return cls(tuple(Entry(k, tuple(s), d, o) for k, s, d, o in plain), stride)

    def views(self, memory: Any, lane: int) -> Observation:
        """One lane's arrays as views of the memory."""
        base = lane * self.stride
        return {
            key: np.ndarray(shape, dtype, memory, base + offset)
            for key, shape, dtype, offset in self.entries
        }
