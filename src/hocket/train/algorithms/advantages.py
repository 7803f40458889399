"""How much better than expected a chunk was: the SMDP form of generalised advantages, and groups.

Chunk c executes k_c steps, so its discount is gamma^k_c and its trace (gamma lambda)^k_c: the same
scale as if every step had been a decision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.train.collect.segments import LayoutError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advantages:
    """Both `[S, C]` float32, zero where padded."""

    advantage: Tensor
    returns: Tensor
    """What the value should have been."""


def smdp_advantages(
    *,
    rewards: Tensor,
    executed: Tensor,
    value: Tensor,
    terminated: Tensor,
    valid: Tensor,
    bootstrap: Tensor,
    gamma: float,
    lam: float,
) -> Advantages:
    """Generalised advantages of segments `[S, C]`.

    `rewards` are `[S, C, T]`, zero from `executed` on; `bootstrap` `[S]` is the value of the
    observation that follows each segment, which counts unless the segment ended by termination.
    """
    if rewards.shape[:2] != valid.shape or bootstrap.shape != valid.shape[:1]:
        raise LayoutError(
            f"rewards {tuple(rewards.shape)} and bootstrap {tuple(bootstrap.shape)} do not fit "
            f"segments and chunks {tuple(valid.shape)}."
        )
    exact = torch.float64
    value, going_on = value.to(exact), (~terminated).to(exact)
    ages = torch.arange(rewards.shape[2], device=rewards.device, dtype=exact)
    is_executed = ages < executed[..., None]
    reward = (rewards.to(exact) * is_executed * gamma**ages).sum(-1)
    discount, trace = gamma ** executed.to(exact), (gamma * lam) ** executed.to(exact)

    advantage = torch.zeros_like(value)
    next_value, next_advantage = bootstrap.to(exact), torch.zeros_like(bootstrap, dtype=exact)
    for c in reversed(range(valid.shape[1])):
        delta = reward[:, c] + discount[:, c] * going_on[:, c] * next_value - value[:, c]
        found = delta + trace[:, c] * going_on[:, c] * next_advantage
        # Padding comes after a segment's last chunk: what follows that chunk is the bootstrap.
        advantage[:, c] = torch.where(valid[:, c], found, 0.0)
        next_advantage = torch.where(valid[:, c], found, next_advantage)
        next_value = torch.where(valid[:, c], value[:, c], next_value)
    returns = torch.where(valid, advantage + value, 0.0)
    return Advantages(advantage=advantage.float(), returns=returns.float())


def group_advantages(returns: Tensor, epsilon: float = 1e-6) -> Tensor:
    """How each member `[G]` of a group did, against the others: `(R - mean) / (std + epsilon)`."""
    exact = returns.to(torch.float64)
    spread = exact.std(unbiased=False)
    return ((exact - exact.mean()) / (spread + epsilon)).float()
