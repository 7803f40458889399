"""Arrays of a request in shared memory, for a server that is a child of this process.

The client owns a few anonymous memory files and names one in the request; the server maps it
through the client's own `/proc` entry. A file is used by one request at a time, and one whose
request got no reply is given up, since the server may still read it.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from hocket.data import Array
from hocket.errors import WireError

_ALIGNMENT = 64
_KEPT = 8


class SharedArrays:
    """The client's side: places arrays, and says where."""

    def __init__(self) -> None:
        self._free: list[_File] = []

    def place(self, arrays: Mapping[str, Array]) -> Placed:
        """Copy arrays into a free file, larger than before where need be."""
        layout: list[tuple[str, tuple[int, ...], str, int]] = []
        end = 0
        for key, value in arrays.items():
            layout.append((key, value.shape, value.dtype.str, end))
            end += -(-value.nbytes // _ALIGNMENT) * _ALIGNMENT
        file = self._free.pop() if self._free else _File()
        file.grow(end)
        for (_, shape, dtype, offset), value in zip(layout, arrays.values(), strict=True):
            np.ndarray(shape, dtype, file.map, offset)[...] = value
        description = {
            "path": f"/proc/{os.getpid()}/fd/{file.number}",
            "file": [file.serial, file.size],
            "layout": layout,
        }
        return Placed(file, description)

    def release(self, placed: Placed) -> None:
        """The reply has come: the file may be used again."""
        if len(self._free) < _KEPT:
            self._free.append(placed.file)
        else:
            placed.file.close()

    def close(self) -> None:
        """Give all of it back."""
        while self._free:
            self._free.pop().close()


class _File:
    """One anonymous memory file."""

    _serials = itertools.count()

    def __init__(self) -> None:
        self.serial = next(self._serials)
        """Descriptors are reused by the system, serials never."""
        self.number = os.memfd_create("hocket-arrays")
        self.size = 0
        self.map: mmap.mmap = mmap.mmap(-1, 1)

    def grow(self, size: int) -> None:
        if size > self.size:
            self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            os.ftruncate(self.number, self.size)
            self.map = mmap.mmap(self.number, self.size)

    def close(self) -> None:
        os.close(self.number)


class Placed:
    """Arrays in a file, and the description that the server is sent."""

    __slots__ = ("description", "file")

    def __init__(self, file: _File, description: dict[str, Any]) -> None:
        self.file = file
        self.description = description

    def abandon(self) -> None:
        """No reply came: the server may still read, so the file is never used again."""
        self.file.close()


Maps = dict[tuple[int, int], mmap.mmap]


def read_shared(description: Any, maps: Maps) -> dict[str, Array]:
    """The server's side: read-only views of what a description names. `maps` keeps what is open."""
    try:
        serial, size = description["file"]
        if (serial, size) not in maps:
            while len(maps) >= 2 * _KEPT:
                del maps[next(iter(maps))]
            number = os.open(description["path"], os.O_RDONLY)
            try:
                maps[serial, size] = mmap.mmap(number, size, access=mmap.ACCESS_READ)
            finally:
                os.close(number)
        return {
            key: np.ndarray(shape, np.dtype(dtype), maps[serial, size], offset)
            for key, shape, dtype, offset in description["layout"]
        }
    except (OSError, KeyError, TypeError, ValueError) as exc:
        raise WireError(f"Shared arrays cannot be read: {exc!r}") from exc
