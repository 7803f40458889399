"""Several learners that learn as one, and what they measure together.

Losses are sums over rows divided by the rows of all ranks, so that summed gradients are exactly
those of one process with all the data, however unevenly rows are spread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks:
    """This process among those that learn together."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @classmethod
    def from_torchrun(cls, device: str = "cpu") -> Ranks:
        """Join the others where torchrun started this process; `device` is where it learns."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        if not dist.is_initialized():
            # Numbers that ranks count lie on the CPU wherever the weights are.
            is_gpu = torch.device(device).type == "cuda"
            dist.init_process_group("cpu:gloo,cuda:nccl" if is_gpu else "gloo")
        return cls(dist.get_rank(), size)

    @property
    def is_first(self) -> bool:
        """True if this rank evaluates, logs and saves for all."""
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """Sum a tensor over ranks."""
        if self.size == 1:
            return value
        summed = value.detach().clone()
        dist.all_reduce(summed)
        return summed

    def count(self, value: float) -> float:
        """Sum a number over ranks."""
        return float(self.total(torch.tensor(value, dtype=torch.float64)))

    def least(self, value: int) -> int:
        """Return the smallest of the ranks' numbers."""
        if self.size == 1:
            return value
        found = torch.tensor(value)
        dist.all_reduce(found, op=dist.ReduceOp.MIN)
        return int(found)

    def sum_all(self, tensors: Iterable[Tensor]) -> None:
        """Make each tensor the sum over ranks."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def same_start(self, network: Any) -> None:
        """Give all ranks the first one's weights."""
        if self.size > 1:
            for tensor in network.state_dict().values():
                dist.broadcast(tensor, 0)

    def close(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def local_device(device: str) -> str:
    """Return the device of this process: where several share a machine, `cuda` is the GPU that
    torchrun gave to this one. A device with a number is taken as it is."""
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if device == "cuda" and local is not None else device


class Measures:
    """Means over the minibatches of an update, by name. Parts of losses are already divided by the
    rows of all ranks, so they are summed over ranks; what is the same on every rank is only noted.

    Numbers stay on the device where they were computed until they are asked for: reading one waits
    for the device, and the device then waits for its next work.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._rows: dict[tuple[str, ...], list[Tensor]] = {}
        """One row of numbers for each minibatch, by the names of what was measured together."""

    def add(self, **parts: Tensor) -> None:
        """Take this rank's parts of one minibatch's sums."""
        self._rows.setdefault(tuple(parts), []).append(self.ranks.total(_row(parts)))

    def note(self, **values: Tensor) -> None:
        """Take one minibatch's values that are equal on all ranks."""
        self._rows.setdefault(tuple(values), []).append(_row(values))

    def latest(self, name: str) -> float:
        """Return a value of the last minibatch that measured it."""
        names = next(names for names in self._rows if name in names)
        return float(self._rows[names][-1][names.index(name)])

    def result(self) -> dict[str, float]:
        means = {}
        for names, rows in self._rows.items():
            columns = zip(*torch.stack(rows).tolist(), strict=True)
            for name, values in zip(names, columns, strict=True):
                means[name] = sum(values) / len(values)
        return means


def _row(values: dict[str, Tensor]) -> Tensor:
    return torch.stack([value.detach() for value in values.values()])
