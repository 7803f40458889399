"""Where each array of an observation lies in a block of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.core.data import Array, Observation

_ALIGN = 64


class Place(NamedTuple):
    """One array: the shape has the history in front where there is one."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    offset: int


class Layout(NamedTuple):
    """The arrays of one lane, one after the other in `stride` bytes; lanes follow each other."""

    places: tuple[Place, ...]
    stride: int

    @classmethod
    def of(cls, arrays: Mapping[str, Array], history: int) -> Layout:
        """A layout for observations like this one, `history` of them where that is above 1."""
        places, offset = [], 0
        for key in sorted(arrays):
            array = arrays[key]
            shape = (history, *array.shape) if history > 1 else array.shape
            places.append(Place(key, shape, array.dtype.str, offset))
            size = array.nbytes * history
            offset += -(-size // _ALIGN) * _ALIGN
        return cls(tuple(places), max(offset, _ALIGN))

    @classmethod
    def from_plain(cls, plain: Sequence[Any], stride: int) -> Layout:
        """Out of a Ready message."""
        return cls(tuple(Place(k, tuple(s), d, o) for k, s, d, o in plain), stride)

    def views(self, memory: Any, lane: int) -> Observation:
        """One lane's arrays as views of the memory."""
        base = lane * self.stride
        return {
            key: np.ndarray(shape, dtype, memory, base + offset)
            for key, shape, dtype, offset in self.places
        }
