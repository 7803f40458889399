"""Gradients of several losses or of parts of one, and the precision they are computed with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hocket.train.config import Precision


def autocast(device: torch.device, precision: Precision) -> Any:
    """Return a context in which a network computes with this precision; weights stay as they
    are."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def added(some: Sequence[Tensor | None], more: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Add gradients parameter by parameter; None is nothing."""
    return [b if a is None else a if b is None else a + b for a, b in zip(some, more, strict=True)]
