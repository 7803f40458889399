"""A torch module replayed as CUDA graphs: one for each shape of its inputs.

A large policy launches thousands of small kernels for one answer, and at small batches the launches
cost more than the arithmetic. A graph records them once and launches them all at once. Batches
must come in few shapes, so this goes with padding to fixed sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_WARM_UPS = 3
"""Calls before a capture, in which libraries choose their kernels and allocate."""


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A graph with the tensors that it reads and writes, which stay where they are."""

    graph: Any
    inputs: Mapping[str, torch.Tensor]
    seeds: torch.Tensor | None
    output: torch.Tensor


class Graphs:
    """Calls a module as it is, but through a graph. To be used by one thread at a time, on the
    device that is current, in inference mode. Parameters may change in place between calls."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._captured: dict[Any, Captured] = {}
        self._pool: Any = None

    def __call__(
        self, tensors: Mapping[str, torch.Tensor], noise_seeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The module's answer. It is overwritten by the next call of the same shape."""
        key = tuple((name, tuple(t.shape), t.dtype) for name, t in sorted(tensors.items()))
        found = self._captured.get(key)
        if found is None:
            found = self._captured[key] = self._capture(tensors, noise_seeds)
        for name, held in found.inputs.items():
            held.copy_(tensors[name], non_blocking=True)
        if found.seeds is not None and noise_seeds is not None:
            found.seeds.copy_(noise_seeds, non_blocking=True)
        found.graph.replay()
        return found.output

    def _capture(
        self, tensors: Mapping[str, torch.Tensor], noise_seeds: torch.Tensor | None
    ) -> Captured:
        import torch

        inputs = {name: tensor.clone() for name, tensor in tensors.items()}
        seeds = None if noise_seeds is None else noise_seeds.clone()
        extra = {} if seeds is None else {"noise_seeds": seeds}
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
        return Captured(graph, inputs, seeds, output)
