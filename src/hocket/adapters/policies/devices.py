"""Where a torch policy's numbers live: its device, its dtype, and host memory that is reused."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.core.data import Array
from hocket.errors import ConfigError

if TYPE_CHECKING:
    import torch


class HostBuffer:
    """One input's memory on the host, reused from batch to batch: page-locked beside a GPU, so
    that its copy there runs beside the host's work."""

    def __init__(self, array: Array, rows: int, device: torch.device, floats: torch.dtype) -> None:
        import torch

        self._like = (array.shape[1:], array.dtype)
        self._device = device
        is_float = array.dtype.kind == "f"
        # What numpy has not, bfloat16 above all, is float32 on the host, converted on the device.
        known = (torch.float16, torch.float32, torch.float64)
        exact = floats if floats in known else torch.float32
        dtype = exact if is_float else torch.from_numpy(np.empty(0, array.dtype)).dtype
        self._target = floats if is_float else dtype
        pinned = device.type == "cuda"
        self._host = torch.zeros((rows, *array.shape[1:]), dtype=dtype, pin_memory=pinned)
        self._view = self._host.numpy()

    def fits(self, array: Array, size: int) -> bool:
        """Whether these rows go in."""
        return self._like == (array.shape[1:], array.dtype) and size <= len(self._host)

    def fill(self, array: Array, size: int) -> torch.Tensor:
        """These rows on the device, the last one repeated up to `size`."""
        count = len(array)
        self._view[:count] = array
        self._view[count:size] = array[-1:]
        return self._host[:size].to(self._device, self._target, non_blocking=True)


def find_device(name: str) -> torch.device:
    """The device of this name, which must be there."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as exc:
        raise ConfigError(f"torch knows no device {name!r}: {exc}") from exc
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ConfigError(f"There is no device {name!r}: torch sees {count} CUDA devices.")
        return torch.device("cuda", device.index or 0)
    return device


def find_dtype(name: str) -> torch.dtype:
    """The floating-point dtype of this name."""
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigError(f"{name!r} is no floating-point dtype of torch's: use float32, bfloat16.")
    return dtype


def own_dtype(module: torch.nn.Module) -> torch.dtype:
    """What a module computes in, told by its first parameter."""
    import torch

    for parameter in module.parameters():
        if parameter.is_floating_point():
            return parameter.dtype
    return torch.float32


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Kernels that a module launches without naming a device go to the current one."""
    import torch

    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
