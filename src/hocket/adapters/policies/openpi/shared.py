"""Arrays of a request in shared memory, where client and server are one user's on one machine.

The client owns a few anonymous memory files and names one in the request; the server maps it
through the client's `/proc` entry. Such a file is sealed against shrinking, so no client can pull
memory from under the server. It is used by one request at a time, and one whose request got no
reply is given up, since the server may still read it.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.data import Array
from hocket.errors import WireError

WORTH_BYTES = 1 << 17
"""Bytes of arrays from which sharing pays: smaller requests travel just as fast over the socket."""
_NAME = "hocket-arrays"
_ALIGNMENT = 64
"""Bytes: a cache line, so that no array begins inside of another's."""
_KEPT = 8
"""Free files that a client keeps for its next requests; a server keeps four times as many mapped.
Chosen by hand; no benchmark row."""


class SharedArraysError(WireError):
    """Shared arrays cannot be read; the same request with its arrays inside can."""


def this_machine() -> str | None:
    """Names machine, process namespace and user; None where memory cannot be shared."""
    if not hasattr(os, "memfd_create") or not hasattr(fcntl, "F_ADD_SEALS"):
        return None
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}/{os.getuid()}"
    except OSError:
        return None


class SharedArrays:
    """The client's side: copies arrays into memory files, and describes where they are."""

    def __init__(self) -> None:
        self._free: list[SharedFile] = []

    def write(self, arrays: Mapping[str, Array]) -> SharedFile:
        """Copy arrays into a free file, which grows where need be, and describe them there."""
        layout: list[tuple[str, tuple[int, ...], str, int]] = []
        end = 0
        for key, value in arrays.items():
            layout.append((key, value.shape, value.dtype.str, end))
            end += -(-value.nbytes // _ALIGNMENT) * _ALIGNMENT
        file = self._free.pop() if self._free else SharedFile()
        file.grow(end)
        for (_, shape, dtype, offset), value in zip(layout, arrays.values(), strict=True):
            np.ndarray(shape, dtype, file.map, offset)[...] = value
        file.description = {
            "path": f"/proc/{os.getpid()}/fd/{file.number}",
            "file": [file.serial, file.size],
            "layout": layout,
        }
        return file

    def release(self, file: SharedFile) -> None:
        """The reply has come: the file may be used again. One whose request got no reply is closed
        instead, since the server may still read it."""
        if len(self._free) < _KEPT:
            self._free.append(file)
        else:
            file.close()

    def close(self) -> None:
        while self._free:
            self._free.pop().close()


class SharedFile:
    """One anonymous memory file, this process's map of it, and what the server is told of it."""

    _serials = itertools.count(int.from_bytes(os.urandom(5), "little") << 16)

    def __init__(self) -> None:
        self.serial = next(self._serials)
        """Descriptors are reused by the system, serials never."""
        self.number = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(self.number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.size = 0
        self.map: mmap.mmap = mmap.mmap(-1, 1)
        self.description: dict[str, Any] = {}

    def grow(self, size: int) -> None:
        if size > self.size:
            self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            os.ftruncate(self.number, self.size)
            self.map = mmap.mmap(self.number, self.size)

    def close(self) -> None:
        os.close(self.number)


class SharedReader:
    """The server's side: read-only views of what clients wrote."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._maps: dict[tuple[str, int, int], mmap.mmap] = {}

    def read(self, description: Any) -> dict[str, Array]:
        """The arrays that a description names; SharedArraysError where it names none."""
        try:
            serial, size = description["file"]
            file = (str(description["path"]), int(serial), int(size))
            found = self._maps.get(file) or self._open(file)
            arrays = {}
            for key, shape, name, offset in description["layout"]:
                dtype = np.dtype(str(name))
                if dtype.kind not in "biuf":
                    raise ValueError(f"{key!r} has dtype {dtype}")
                # numpy checks the end of the buffer, not its beginning.
                if not all(type(n) is int and n >= 0 for n in (*shape, offset)):
                    raise ValueError(f"{key!r} lies at {offset!r} with shape {shape!r}")
                arrays[str(key)] = np.ndarray(shape, dtype, found, offset)
        except (OSError, KeyError, TypeError, ValueError, OverflowError) as exc:
            raise SharedArraysError(f"Shared arrays cannot be read: {exc!r}") from exc
        return arrays

    def _open(self, file: tuple[str, int, int]) -> mmap.mmap:
        path, _, size = file
        if not re.fullmatch(r"/proc/\d+/fd/\d+", path) or not 0 < size <= self._max_bytes:
            raise ValueError(f"{path!r} with {size} bytes is not for sharing")
        number = os.open(path, os.O_RDONLY)
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
            seals = fcntl.fcntl(number, fcntl.F_GET_SEALS)
            if not target.startswith(f"/memfd:{_NAME}") or not seals & fcntl.F_SEAL_SHRINK:
                raise ValueError(f"{path!r} is not for sharing")
            if os.fstat(number).st_size < size:
                raise ValueError(f"{path!r} is shorter than {size} bytes")
            found = mmap.mmap(number, size, access=mmap.ACCESS_READ)
        finally:
            os.close(number)
        while len(self._maps) >= 4 * _KEPT:
            del self._maps[next(iter(self._maps))]
        self._maps[file] = found
        return found
