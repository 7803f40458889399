"""How new weights reach the side that collects: raw numbers in shared memory, two slots.

The learner writes the slot that nobody reads, and the version last; the collecting side copies the
slot of the version that it saw, and begins again where a newer one was published meanwhile. So it
never acts with half of two versions, and neither side ever waits for the other. A side whose
network is on a GPU locks the block's pages, so that the GPU copies them itself and at full speed.

    word 0: version      then slot 0, slot 1: each published tensor, in order, 64-byte aligned
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping

import numpy as np
import torch
from safetensors.torch import save

from hocket.workers.shm import create_file, map_block

_HEAD = 64
"""Bytes before the first slot."""
_ALIGNED = 64
"""Arrays in packed memory begin at multiples of this many bytes, as every dtype needs."""
_NOTHING = -1
_ATTEMPTS = 1000
"""How often a read begins again before it gives up: publishing takes as long as copying, so that
more than a few can only be a fault."""


class WeightBlock:
    """Memory for the weights of one network. One side publishes, one side reads."""

    def __init__(self, like: Mapping[str, torch.Tensor], fd: int | None = None) -> None:
        """`like` gives names, shapes and dtypes; a file descriptor is the other side's block."""
        starts, offset = packed_starts({name: tensor.nbytes for name, tensor in like.items()})
        self.fd = create_file("hocket-weights", _HEAD + 2 * offset) if fd is None else fd
        if os.fstat(self.fd).st_size != _HEAD + 2 * offset:
            raise ValueError("The block of weights was made for another network.")
        self._map: mmap.mmap = map_block(self.fd)
        self._version = np.frombuffer(self._map, np.int64, 1)
        self._whole = whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self._is_locked: bool | None = None
        """True if a GPU may copy by itself; None before a GPU's first copy."""
        self._slots = [
            {
                name: _view(whole, _HEAD + slot * offset + starts[name], tensor)
                for name, tensor in like.items()
            }
            for slot in range(2)
        ]
        if fd is None:
            self._version[0] = _NOTHING

    @property
    def version(self) -> int:
        """The version of the weights published last; -1 before the first."""
        return int(self._version[0])

    def publish(self, parameters: Mapping[str, torch.Tensor], version: int) -> None:
        if self.version not in (_NOTHING, version - 1):
            # Slots alternate by version: one that is skipped would overwrite what is being read.
            raise ValueError(f"Version {version} cannot follow {self.version}.")
        self._copy(self._slots[version % 2], parameters)
        self._version[0] = version

    def read(self, into: Mapping[str, torch.Tensor]) -> int:
        """Copy the newest weights into these tensors, and return their version."""
        for _ in range(_ATTEMPTS):
            version = self.version
            self._copy(into, self._slots[version % 2])
            if self.version == version:
                return version
        raise RuntimeError("New weights are published faster than they can be copied.")

    def close(self) -> None:
        """Close the descriptor; the memory goes with its last user."""
        if self._is_locked:
            torch.cuda.cudart().cudaHostUnregister(self._whole.data_ptr())
            self._is_locked = False
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _copy(self, into: Mapping[str, torch.Tensor], source: Mapping[str, torch.Tensor]) -> None:
        """Copy all tensors, and wait until GPUs have done so."""
        gpus = {one.device for one in (*into.values(), *source.values()) if one.is_cuda}
        if gpus and self._is_locked is None:
            self._is_locked = _lock_pages(self._whole)
        with torch.no_grad():
            for name, tensor in into.items():
                tensor.copy_(source[name], non_blocking=True)
        for gpu in gpus:
            torch.cuda.current_stream(gpu).synchronize()


class ReceivedWeights:
    """Weights that come from elsewhere, whole. One thread takes them, another reads."""

    def __init__(self) -> None:
        self._newest: tuple[int, Mapping[str, torch.Tensor]] = (_NOTHING, {})

    @property
    def version(self) -> int:
        """The version of the newest weights; -1 before the first."""
        return self._newest[0]

    def take(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Make these the weights to act with, unless there are newer ones."""
        if version > self.version:
            self._newest = (version, weights)

    def read(self, into: Mapping[str, torch.Tensor]) -> int:
        version, weights = self._newest
        with torch.no_grad():
            for name, tensor in into.items():
                tensor.copy_(weights[name])
        return version


def packed_starts(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """The first byte of each array in packed memory, and how many bytes all need."""
    starts, offset = {}, 0
    for key, size in sizes.items():
        starts[key] = offset
        offset += -(-size // _ALIGNED) * _ALIGNED
    return starts, offset


def _lock_pages(memory: torch.Tensor) -> bool:
    """True if CUDA could lock the pages; otherwise copies are slower and just as right."""
    error = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), len(memory), 0)
    if int(error) == 0:
        return True
    with contextlib.suppress(RuntimeError):
        # The error waits for whoever launches next; this is who.
        torch.zeros(1, device="cuda")
    return False


def _view(whole: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    size = like.numel() * like.element_size()
    return whole[start : start + size].view(like.dtype).view(like.shape)


class PackedWeights:
    """The newest weights, as they travel: packed once for each version."""

    def __init__(self, block: WeightBlock, like: Mapping[str, torch.Tensor]) -> None:
        self._block = block
        self._copy = {name: torch.empty_like(one, device="cpu") for name, one in like.items()}
        self._version = -1
        self._data = b""

    @property
    def version(self) -> int:
        return self._block.version

    def newest(self) -> tuple[int, bytes]:
        """The version of the newest weights, and these as a safetensors file."""
        if self._version != self._block.version:
            self._version = self._block.read(self._copy)
            self._data = save(self._copy)
        return self._version, self._data
