"""Arrays to a device and back, each way in one copy.

Where the device is a GPU, every copy of its own waits for its turn there, and a learner on the same
GPU makes turns long. So arrays travel packed in page-locked memory, which the GPU reads without the
driver's help, and the host waits once, for the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from hocket.core.data import Array
from hocket.train.networks.contract import Tensors

_ALIGNED = 64


class Staging:
    """Memory on the way to one device. Uploaded arrays are valid until the next upload, and one
    upload is followed by one download before the next: the host has then waited for both."""

    def __init__(self, device: torch.device, *, is_packed: bool | None = None) -> None:
        """Arrays are packed where the device is a GPU, or wherever that is asked for."""
        self._device = device
        self._is_gpu = device.type == "cuda"
        self._is_packed = self._is_gpu if is_packed is None else is_packed
        self._up = self._page_locked(0)
        self._down = self._page_locked(0)

    def upload(self, arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """The arrays as tensors on the device."""
        if not self._is_packed:
            return {key: torch.from_numpy(a).to(self._device) for key, a in arrays.items()}
        places, size = _places({key: array.nbytes for key, array in arrays.items()})
        if len(self._up) < size:
            self._up = self._page_locked(size)
        packed = self._up.numpy()
        for key, array in arrays.items():
            part = packed[places[key] : places[key] + array.nbytes]
            part.view(array.dtype).reshape(array.shape)[...] = array
        there = self._up[:size].to(self._device, non_blocking=True)
        return {
            key: there[places[key] : places[key] + array.nbytes]
            .view(torch.from_numpy(np.empty(0, array.dtype)).dtype)
            .view(array.shape)
            for key, array in arrays.items()
        }

    def download(self, tensors: Tensors) -> dict[str, Array]:
        """The tensors as arrays of the caller's own, once the device has computed them."""
        if not self._is_packed:
            return {key: tensor.cpu().numpy() for key, tensor in tensors.items()}
        # The widest first: with no gaps between them, all lie at multiples of their width.
        order = sorted(tensors, key=lambda key: -tensors[key].element_size())
        flat = torch.cat([_bytes(tensors[key]) for key in order])
        if len(self._down) < len(flat):
            self._down = self._page_locked(len(flat))
        self._down[: len(flat)].copy_(flat, non_blocking=True)
        if self._is_gpu:
            torch.cuda.current_stream(self._device).synchronize()
        packed = self._down[: len(flat)].numpy().copy()
        arrays, place = {}, 0
        for key in order:
            like = torch.empty(0, dtype=tensors[key].dtype).numpy().dtype
            size = math.prod(tensors[key].shape) * like.itemsize
            arrays[key] = packed[place : place + size].view(like).reshape(tensors[key].shape)
            place += size
        return {key: arrays[key] for key in tensors}

    def _page_locked(self, size: int) -> torch.Tensor:
        # Twice what is needed now: batches grow.
        return torch.empty(2 * size, dtype=torch.uint8, pin_memory=self._is_gpu and size > 0)


def _places(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    places, offset = {}, 0
    for key, size in sizes.items():
        places[key] = offset
        offset += -(-size // _ALIGNED) * _ALIGNED
    return places, offset


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
