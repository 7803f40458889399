"""What a track has in memory, written down now and then, so that a worker that dies leaves it."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from hocket.core.contracts.recorder import SPILL, StepRecord
from hocket.core.data import Array, Outcome
from hocket.core.wire import MAX_PIECE
from hocket.errors import RunFolderError
from hocket.system.durable import TEMPORARY, disk_error

SPILL_S = 0.05
"""Seconds between two writes: the most that a worker's death costs. A write takes some 0.2 ms, half
a per cent of that; an episode that is shorter writes nothing."""
_SPILL = f"{SPILL}{TEMPORARY}"


class NoTrack:
    """The track of an attempt of which a sink keeps nothing."""

    is_brief = True

    def step(self, record: StepRecord) -> None: ...

    def seal(self, outcome: Outcome) -> Sequence[str]:
        return ()

    def discard(self) -> None: ...


class Spill:
    """A hidden file beside another, to which arrays are appended. It needs no fsync: it outlives a
    process, not the machine."""

    def __init__(self, folder: Path, name: str, *, is_on: bool) -> None:
        """`name` is what the whole file will be called, in `folder`."""
        self._folder, self._name = folder, name
        self._file: IO[bytes] | None = None
        self._is_on = is_on
        self._next = time.monotonic() + SPILL_S

    @property
    def path(self) -> Path:
        return self._folder / f".{self._name}{_SPILL}"

    @property
    def is_due(self) -> bool:
        """True if what came since the last write should be written."""
        return self._is_on and time.monotonic() >= self._next

    def write(self, arrays: Sequence[Array]) -> None:
        packed = io.BytesIO()
        for array in arrays:
            np.lib.format.write_array(packed, array, allow_pickle=False)
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(self.path, "wb", buffering=0)  # noqa: SIM115 - closed below
            self._file.write(packed.getbuffer())
        except OSError as exc:
            raise disk_error(exc, self.path) from exc
        self._next = time.monotonic() + SPILL_S

    def close(self) -> None:
        """Delete it: its track is whole elsewhere, or is to leave nothing. Twice is safe."""
        self._is_on = False
        file, self._file = self._file, None
        if file is not None:
            file.close()
            with contextlib.suppress(OSError):
                # The folder stays: another track may be about to write into it.
                self.path.unlink(missing_ok=True)


@lru_cache(256)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What stands before an array in `.npy` format: to make it takes longer than all else."""
    packed = io.BytesIO()
    head = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(packed, head)
    return packed.getvalue()


def packed(*arrays: Array) -> bytes:
    """Arrays in `.npy` format, one after the other."""
    return b"".join([part for a in arrays for part in (_header(a.dtype, a.shape), a.tobytes())])


def leave_rows(path: Path, data: bytes, taken: dict[str, bytes] | None) -> list[str]:
    """Hand over what becomes rows of a table: laid into `taken`, or in a file, which is named then
    and deleted later. That needs no fsync, and no other name until it is whole: nobody reads it
    before it is named, but to see if it is whole. Folders and a file for each episode cost more
    than all else that is done for a short one."""
    if taken is not None and len(data) <= MAX_PIECE:
        taken[path.name] = data
        return []
    try:
        try:
            file = open(path, "wb")  # noqa: SIM115 - closed below
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(path, "wb")  # noqa: SIM115 - closed below
        with file:
            file.write(data)
    except OSError as exc:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise disk_error(exc, path) from exc
    return [str(path)]


def is_spill(path: Path, name: str) -> bool:
    """True if this is what was spilled of the file `name`."""
    return path.name == f".{name}{_SPILL}"


def read_spill(path: Path) -> list[Array]:
    """The arrays in it, but for a last one that was cut off; at least one."""
    arrays: list[Array] = []
    with open(path, "rb") as file:
        while True:
            try:
                arrays.append(np.lib.format.read_array(file, allow_pickle=False))
            except (ValueError, EOFError):
                break
    if not arrays:
        raise RunFolderError(f"Nothing was spilled to {str(path)!r}.")
    return arrays
