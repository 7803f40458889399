"""Memory that parent and worker share: blocks for arrays, and each worker's control page."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.core.data import Array, Observation
from hocket.errors import WireError

_HEADER = 8
_PER_LANE = 8
"""Words of 8 bytes: each lane has a cache line of its own, since two processes write to it."""
_PID, _EXIT, _MEMORY, _BEATS = 0, 1, 2, 3
_STEPS, _WORD = 0, 1
_EXITED = 1 << 32

STOP = 1
LOSES_DESCRIPTORS = not hasattr(os, "memfd_create")
"""True on macOS: a descriptor that is sent and then closed here before it was received is closed
there too, so that whoever sends one keeps it until it is known to have come."""
_SHRINK = getattr(fcntl, "F_SEAL_SHRINK", 0)
_ALIGN = 64
"""Bytes of a cache line: no two arrays share one."""


def create_block(name: str, size: int) -> int:
    """The file descriptor of `size` bytes of memory. Raises OSError where there is none.

    The pages are claimed here, so that full memory is an error at once and not a SIGBUS at some
    later write; and, where the system can, nobody can make it shorter, which would be one at some
    later read.
    """
    if not hasattr(os, "memfd_create"):
        return _create_nameless(size)
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except OSError:
        os.close(fd)
        raise
    return fd


def create_file(name: str, size: int) -> int:
    """Like `create_block`; where memory cannot be shared, it is a nameless file on disk."""
    try:
        return create_block(name, size) if size else os.memfd_create(name, os.MFD_CLOEXEC)
    except (OSError, AttributeError):
        return _create_nameless(size)


def _create_nameless(size: int) -> int:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(size))
        file.flush()
        return os.dup(file.fileno())


def map_block(fd: int) -> mmap.mmap:
    return mmap.mmap(fd, os.fstat(fd).st_size)


def map_sealed(fd: int, access: int = mmap.ACCESS_DEFAULT) -> mmap.mmap:
    """Map memory that another process made. Raises WireError unless it is sealed against shrinking:
    to read what is not there any more would end this process."""
    try:
        # Asked first: it fails for whatever is no memory, and waits for nobody.
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except (OSError, AttributeError):  # macOS has no seals
        seals = 0
    # A huge page that cannot be had would end whoever reads it.
    if not seals & _SHRINK or os.fstatvfs(fd).f_bsize != mmap.PAGESIZE:
        raise WireError("Memory of another process is not sealed against shrinking.")
    return mmap.mmap(fd, os.fstat(fd).st_size, access=access)


Memory = mmap.mmap | bytearray | memoryview
"""What arrays lie in: shared with another process, or not."""


class ArrayField(NamedTuple):
    """One array; a history above 1 is the first axis of its shape."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    offset: int


class Layout(NamedTuple):
    """The arrays of one lane lie one after the other in `stride` bytes; lanes follow each other."""

    entries: tuple[ArrayField, ...]
    stride: int

    @classmethod
    def of(cls, arrays: Mapping[str, Array], history: int) -> Layout:
        """A layout for observations like this one, `history` of them where that is above 1."""
        entries, offset = [], 0
        for key in sorted(arrays):
            array = arrays[key]
            shape = (history, *array.shape) if history > 1 else array.shape
            entries.append(ArrayField(key, shape, array.dtype.str, offset))
            size = array.nbytes * history
            offset += -(-size // _ALIGN) * _ALIGN
        return cls(tuple(entries), max(offset, _ALIGN))

    @classmethod
    def from_plain(cls, plain: Sequence[Any], stride: int) -> Layout:
        """A layout that another process tells of. Raises WireError for arrays of objects, and for
        arrays that lie outside of `stride` bytes: numpy takes a negative offset and reads what lies
        before."""
        entries = tuple(ArrayField(k, tuple(s), d, o) for k, s, d, o in plain)
        for key, shape, dtype, offset in entries:
            kind = np.dtype(str(dtype))
            sizes = (*shape, offset)
            if (
                kind.hasobject
                or not all(type(n) is int and n >= 0 for n in sizes)
                or offset + kind.itemsize * math.prod(shape) > stride
            ):
                raise WireError(f"The array {key!r} does not lie in its memory.")
        return cls(entries, stride)

    def views(self, memory: Any, lane: int) -> Observation:
        base = lane * self.stride
        return {
            key: np.ndarray(shape, dtype, memory, base + offset)
            for key, shape, dtype, offset in self.entries
        }


def word(chunk: int, code: int) -> int:
    return (chunk + 1) << 8 | code


class Control:
    """A worker's page of 64-bit words: its process id, how it ended, what it uses, and for each
    lane the steps executed (written by the worker) and the control word (written by the parent)."""

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory
        self._words = memoryview(memory).cast("q")

    @staticmethod
    def size(lanes: int) -> int:
        """Bytes of a page for this many lanes."""
        return (_HEADER + _PER_LANE * lanes) * 8

    @property
    def pid(self) -> int:
        """The worker's process id; 0 until it was forked."""
        return self._words[_PID]

    @pid.setter
    def pid(self, value: int) -> None:
        self._words[_PID] = value

    @property
    def exit_status(self) -> int | None:
        """How the worker ended, as `os.waitstatus_to_exitcode` gives it; None while it lives."""
        status = self._words[_EXIT]
        return status - _EXITED if status else None

    @exit_status.setter
    def exit_status(self, value: int) -> None:
        self._words[_EXIT] = value + _EXITED

    @property
    def memory(self) -> int:
        """Resident bytes of the worker as its zygote last saw them; 0 until then."""
        return self._words[_MEMORY]

    @property
    def beats(self) -> int:
        """How often the zygote has looked after the worker: once a second."""
        return self._words[_BEATS]

    def beat(self, memory: int) -> None:
        """Tell the parent, as the zygote, that the worker is looked after, and what it uses."""
        self._words[_MEMORY] = memory
        self._words[_BEATS] += 1

    def steps(self, lane: int) -> int:
        return self._words[_HEADER + lane * _PER_LANE + _STEPS]

    def count_step(self, lane: int) -> None:
        self._words[_HEADER + lane * _PER_LANE + _STEPS] += 1

    def word(self, lane: int) -> int:
        """The lane's control word; 0 is `go on`."""
        return self._words[_HEADER + lane * _PER_LANE + _WORD]

    def set_word(self, lane: int, value: int) -> None:
        """Set the word, which the worker reads between two steps of the lane."""
        self._words[_HEADER + lane * _PER_LANE + _WORD] = value

    def columns(self) -> tuple[memoryview, memoryview]:
        """The steps and the control words of all lanes, as two views of the page."""
        return self._words[_HEADER + _STEPS :: _PER_LANE], self._words[_HEADER + _WORD :: _PER_LANE]

    def command(self, lane: int, chunk: int) -> int:
        """The code of the control word if it is meant for this chunk, else 0."""
        value = self._words[_HEADER + lane * _PER_LANE + _WORD]
        return value & 0xFF if value >> 8 == chunk + 1 else 0

    def close(self) -> None:
        self._words.release()
        if isinstance(self._memory, mmap.mmap):
            self._memory.close()
