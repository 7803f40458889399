"""Several learners as one: sums over the processes that torchrun started, or over this one alone.

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
    def from_torchrun(cls) -> Ranks:
        """Joins the others where torchrun started this process."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        return cls(dist.get_rank(), size)

    @property
    def is_first(self) -> bool:
        """Whether this rank evaluates, logs and saves for all."""
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """Sums a tensor over ranks."""
        if self.size == 1:
            return value
        summed = value.detach().clone()
        dist.all_reduce(summed)
        return summed

    def count(self, value: float) -> float:
        """Sums a number over ranks."""
        return float(self.total(torch.tensor(value, dtype=torch.float64)))

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Makes each parameter's gradient the sum over ranks."""
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)

    def same_start(self, network: Any) -> None:
        """Gives all ranks the first one's weights."""
        if self.size > 1:
            for tensor in network.state_dict().values():
                dist.broadcast(tensor, 0)

    def close(self) -> None:
        """Leaves the others."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()
