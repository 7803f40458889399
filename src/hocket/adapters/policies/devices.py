"""A torch policy's device: its name and dtype, host memory that batches reuse, and CUDA graphs.

A large policy launches thousands of small kernels for one answer, and at small batches the launches
cost more than the arithmetic. A graph records them once and launches them all at once. Batches
must come in few shapes, so this goes with padding to fixed sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.core.data import Array
from hocket.errors import ConfigError

if TYPE_CHECKING:
    import torch

_WARM_UPS = 3
"""Calls before a capture, in which libraries choose their kernels and allocate; PyTorch's own
examples of CUDA graphs use three."""


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
        return self._like == (array.shape[1:], array.dtype) and size <= len(self._host)

    def fill(self, array: Array, size: int) -> torch.Tensor:
        """These rows on the device, the last one repeated up to `size`."""
        count = len(array)
        self._view[:count] = array
        self._view[count:size] = array[-1:]
        return self._host[:size].to(self._device, self._target, non_blocking=True)


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A graph with the tensors that it reads and writes, which stay where they are."""

    graph: Any
    inputs: Mapping[str, torch.Tensor]
    output: torch.Tensor


class Graphs:
    """A module that is called through CUDA graphs. Use it on one thread at a time, on the current
    device, in inference mode. Parameters may change in place between calls."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._captured: dict[Any, Captured] = {}
        self._pool: Any = None

    def __call__(self, tensors: Mapping[str, torch.Tensor], **named: torch.Tensor) -> torch.Tensor:
        """The module's answer. It is overwritten by the next call of the same shape."""
        given = {**tensors, **named}
        key = tuple((name, tuple(t.shape), t.dtype) for name, t in sorted(given.items()))
        found = self._captured.get(key)
        if found is None:
            found = self._captured[key] = self._capture(tensors, named)
        for name, held in found.inputs.items():
            held.copy_(given[name], non_blocking=True)
        found.graph.replay()
        return found.output

    def _capture(
        self, tensors: Mapping[str, torch.Tensor], named: Mapping[str, torch.Tensor]
    ) -> Captured:
        import torch

        inputs = {name: tensor.clone() for name, tensor in tensors.items()}
        extra = {name: tensor.clone() for name, tensor in named.items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._module(inputs, **extra)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # One pool for all: only one graph runs at a time, so that they may share their memory.
        with torch.cuda.graph(graph, pool=self._pool):
            output = self._module(inputs, **extra)
        self._pool = self._pool or graph.pool()
        return Captured(graph, {**inputs, **extra}, output)


def find_device(name: str) -> torch.device:
    """The device of this name, which must be there."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as exc:
        raise ConfigError(f"torch knows no device {name!r}: {exc}") from exc
    if device.type == "cuda":
        count, index = torch.cuda.device_count(), device.index or 0
        if index >= count:
            raise ConfigError(f"There is no device {name!r}: torch sees {count} CUDA devices.")
        return torch.device("cuda", index)
    return device


def find_dtype(name: str) -> torch.dtype:
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigError(f"{name!r} is no floating-point dtype of torch's: use float32, bfloat16.")
    return dtype


def own_dtype(module: torch.nn.Module) -> torch.dtype:
    """What a module computes in: the dtype of its first floating-point parameter."""
    import torch

    floats = (one.dtype for one in module.parameters() if one.is_floating_point())
    return next(floats, torch.float32)


def keep_threads() -> None:
    """Keep the number of threads that torch was set to on the calling thread. OpenMP counts for
    each thread, and torch hands its own number down only when asked; before that, small products on
    a policy's thread wake other cores, which then spin."""
    import torch

    torch.get_num_threads()


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make a device the current one: kernels launched without naming a device go there."""
    import torch

    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
