"""Gradients: of parts of a loss, summed over ranks and clipped, and in which precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hocket.train.algorithms.ranks import Ranks
from hocket.train.config import Precision


def autocast(device: torch.device, precision: Precision) -> Any:
    """A context in which a network computes with this precision; weights stay as they are."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def added(some: Sequence[Tensor | None], more: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Add gradients parameter by parameter; None is nothing."""
    return [b if a is None else a if b is None else a + b for a, b in zip(some, more, strict=True)]


def clipped(
    found: Sequence[Tensor | None], parameters: Sequence[Tensor], ranks: Ranks, longest: float
) -> tuple[list[Tensor | None], Tensor]:
    """Sum the gradients of a loss over all ranks and clip them to the norm `longest`; return their
    norm before that too. None stays where the loss does not reach a parameter; the numbers of each
    other lie as its parameter's do, which fused steps on a GPU want."""
    if ranks.size > 1:
        # What no row of this rank depends on may be in another's.
        found = [
            torch.zeros_like(parameter) if one is None else one.contiguous()
            for one, parameter in zip(found, parameters, strict=True)
        ]
    known = [one for one in found if one is not None]
    ranks.sum_all(known)
    norm = torch.nn.utils.get_total_norm(known)
    share = (longest / (norm + 1e-6)).clamp(max=1.0)
    pairs = zip(found, parameters, strict=True)
    return [None if one is None else _laid_as(like, one * share) for one, like in pairs], norm


def _laid_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """That of a convolution over pictures lies as the pictures do, channels last."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
