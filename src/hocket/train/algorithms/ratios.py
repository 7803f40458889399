"""How new and old probabilities are compared: ratios over executed actions, corrections for stale
data, clipping, and divergences."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.train.config import Correction, Level

_HEAVIEST = 10.0
"""What one term may weigh at most against a term of fresh data: else one
action that the newer weights find likely outweighs a whole minibatch."""
_FAR = 3.0
"""The logarithm of a ratio beyond which divergence grows in a straight line: an exponential
overflows, and one row's gradient then hides those of all others."""
_FARTHEST = 20.0
"""The logarithm of the largest ratio in a loss: a number whose exponential is still finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioRule:
    """How new and old probabilities are compared."""

    level: Level
    """One ratio for a chunk's executed actions together, or one for each action."""
    correction: Correction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ratio:
    """Ratios of new to proximal probabilities: `[R]` at chunk level, `[R, T]` at action level."""

    log: Tensor
    """The logarithm of each ratio."""
    weight: Tensor
    """How much each term weighs in the loss; without gradients."""
    counts: Tensor
    """1.0 where a term counts, 0.0 where an action was never executed."""


def joined(log_prob: Tensor, mask: Tensor, level: Level) -> Tensor:
    """Zero log-probabilities `[R, T]` of actions that do not count, and sum them to `[R]` at
    chunk level."""
    kept = torch.where(mask, log_prob, 0.0)
    return kept.sum(-1) if level == "chunk" else kept


def compare(
    *,
    new: Tensor,
    start: Tensor,
    behaviour: Tensor,
    mask: Tensor,
    how: RatioRule,
) -> Ratio:
    """Compare new log-probabilities with those that they must stay near.

    All are `[R, T]`: under the weights in training, under those at the start of the update, and
    under those that sampled."""
    new, start, behaviour = (joined(x, mask, how.level) for x in (new, start, behaviour))
    counts = torch.ones_like(new) if how.level == "chunk" else mask.to(new.dtype)
    if how.correction == "none":
        return Ratio(log=new - behaviour, weight=torch.ones_like(new), counts=counts)
    # Cut before the exponential: infinity times an advantage of zero would be no number.
    weight = (start - behaviour).clamp(max=math.log(_HEAVIEST)).exp()
    return Ratio(log=new - start, weight=weight, counts=counts)


def clipped_loss(ratio: Ratio, advantage: Tensor, low: float, high: float) -> Tensor:
    """The policy loss of each term, clipped to ratios from 1 - low to 1 + high where that makes it
    worse; `advantage` is `[R]`."""
    advantage = advantage if ratio.log.dim() == 1 else advantage[:, None]
    plain = ratio.log.clamp(max=_FARTHEST).exp()
    clipped = plain.clamp(1 - low, 1 + high)
    return -torch.minimum(plain * advantage, clipped * advantage) * ratio.weight * ratio.counts


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """Estimate the divergence of the new policy from the old from samples of the old: never
    negative, and exact in expectation while no ratio is far away. From there on it is a straight
    line of the same slope, so that its gradient stays finite and pulls back."""
    near = log_ratio.clamp(max=_FAR)
    return near.exp() * (1 + log_ratio - near) - 1 - log_ratio


def clip_share(ratio: Ratio, low: float, high: float) -> Tensor:
    """The number of terms outside of the clipping range."""
    plain = ratio.log.exp()
    outside = ((plain < 1 - low) | (plain > 1 + high)).to(ratio.counts.dtype)
    return (outside * ratio.counts).sum()
