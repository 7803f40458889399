"""What PPO and GRPO share: ratios over executed actions, corrections for stale data, clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Level = Literal["chunk", "action"]
Correction = Literal["none", "decoupled", "interpolated", "tis"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioConfig:
    """How new and old probabilities are compared."""

    level: Level = "chunk"
    """One ratio for a chunk's executed actions together, or one for each action."""
    correction: Correction = "none"
    truncate: float = 2.0
    """What `tis` cuts importance weights at."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ratio:
    """`log` of new over proximal probability, and the detached weight of each term."""

    log: Tensor
    weight: Tensor
    counts: Tensor
    """1.0 where a term counts: `[R]` at chunk level, `[R, T]` at action level."""


def joined(log_prob: Tensor, mask: Tensor, level: Level) -> Tensor:
    """Log-probabilities `[R, T]` of executed actions, summed over the chunk at chunk level."""
    kept = torch.where(mask, log_prob, 0.0)
    return kept.sum(-1) if level == "chunk" else kept


def compare(
    *,
    new: Tensor,
    start: Tensor,
    behaviour: Tensor,
    mask: Tensor,
    age: Tensor,
    config: RatioConfig,
) -> Ratio:
    """New log-probabilities against those that they must stay near.

    All are `[R, T]`: under the weights in training, under those at the start of the update, and
    under those that sampled. `age` `[R]` is how many versions the sampling weights are behind.
    """
    new, start, behaviour = (joined(x, mask, config.level) for x in (new, start, behaviour))
    counts = torch.ones_like(new) if config.level == "chunk" else mask.to(new.dtype)
    ones = torch.ones_like(new)
    if config.correction == "none":
        return Ratio(log=new - behaviour, weight=ones, counts=counts)
    if config.correction == "interpolated":
        # The update in the making is one version ahead of `start`: alpha = age / (age + 1).
        alpha = (age / (age + 1.0)).to(new.dtype)
        alpha = alpha if config.level == "chunk" else alpha[:, None]
        proximal = behaviour + alpha * (new.detach() - behaviour)
        return Ratio(log=new - proximal, weight=(proximal - behaviour).exp(), counts=counts)
    weight = (start - behaviour).exp()
    if config.correction == "tis":
        weight = weight.clamp(max=config.truncate)
    return Ratio(log=new - start, weight=weight, counts=counts)


def clipped_loss(ratio: Ratio, advantage: Tensor, low: float, high: float) -> Tensor:
    """The pessimist's policy loss of each term; `advantage` is `[R]`."""
    advantage = advantage if ratio.log.dim() == 1 else advantage[:, None]
    plain = ratio.log.exp()
    clipped = plain.clamp(1 - low, 1 + high)
    return -torch.minimum(plain * advantage, clipped * advantage) * ratio.weight * ratio.counts


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """Of old against new from samples of the old: never negative, exact in expectation."""
    return log_ratio.exp() - 1 - log_ratio


def clip_share(ratio: Ratio, low: float, high: float) -> Tensor:
    """Sum of terms outside of the clipping range."""
    plain = ratio.log.exp()
    outside = ((plain < 1 - low) | (plain > 1 + high)).to(ratio.counts.dtype)
    return (outside * ratio.counts).sum()
