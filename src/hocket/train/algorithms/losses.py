"""What PPO and GRPO share: ratios over executed actions, corrections for stale data, clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from hocket.train.algorithms.config import Correction, Level
from hocket.train.networks.contract import Evaluated, Trainable


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How new and old probabilities are compared."""

    level: Level
    """One ratio for a chunk's executed actions together, or one for each action."""
    correction: Correction
    truncate: float
    """What `tis` cuts importance weights at."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ratio:
    """Ratios of new to proximal probabilities: `[R]` at chunk level, `[R, T]` at action level."""

    log: Tensor
    """The logarithm of each ratio."""
    weight: Tensor
    """How much each term weighs in the loss; without gradients."""
    counts: Tensor
    """1.0 where a term counts, 0.0 where an action was never executed."""


def evaluate_rows(network: Any, rows: TensorDict) -> Evaluated:
    """Evaluates rows `[R]` under the network's present weights."""
    extras = rows["extras"].to_dict() if "extras" in rows.keys() else {}  # noqa: SIM118
    seen: Evaluated = network.evaluate(rows["observation"].to_dict(), rows["actions"], extras)
    return seen


def counted(network: Trainable, rows: TensorDict) -> Tensor:
    """Tells `[R, T]` which actions' probabilities count: the executed ones, where the network can
    tell actions apart."""
    mask: Tensor = rows["mask"]
    return mask if network.is_factorised else torch.ones_like(mask)


def joined(log_prob: Tensor, mask: Tensor, level: Level) -> Tensor:
    """Zeroes log-probabilities `[R, T]` of actions that do not count, and sums them to `[R]` at
    chunk level."""
    kept = torch.where(mask, log_prob, 0.0)
    return kept.sum(-1) if level == "chunk" else kept


def compare(
    *,
    new: Tensor,
    start: Tensor,
    behaviour: Tensor,
    mask: Tensor,
    age: Tensor,
    how: Comparison,
) -> Ratio:
    """Compares new log-probabilities with those that they must stay near.

    All are `[R, T]`: under the weights in training, under those at the start of the update, and
    under those that sampled. `age` `[R]` is how many versions the sampling weights are behind.
    """
    new, start, behaviour = (joined(x, mask, how.level) for x in (new, start, behaviour))
    counts = torch.ones_like(new) if how.level == "chunk" else mask.to(new.dtype)
    ones = torch.ones_like(new)
    if how.correction == "none":
        return Ratio(log=new - behaviour, weight=ones, counts=counts)
    if how.correction == "interpolated":
        # The update in the making is one version ahead of `start`: alpha = age / (age + 1).
        alpha = (age / (age + 1.0)).to(new.dtype)
        alpha = alpha if how.level == "chunk" else alpha[:, None]
        proximal = behaviour + alpha * (new.detach() - behaviour)
        return Ratio(log=new - proximal, weight=(proximal - behaviour).exp(), counts=counts)
    weight = (start - behaviour).exp()
    if how.correction == "tis":
        weight = weight.clamp(max=how.truncate)
    return Ratio(log=new - start, weight=weight, counts=counts)


def clipped_loss(ratio: Ratio, advantage: Tensor, low: float, high: float) -> Tensor:
    """Returns the policy loss of each term, clipped to ratios from 1 - low to 1 + high where that
    makes it worse; `advantage` is `[R]`."""
    advantage = advantage if ratio.log.dim() == 1 else advantage[:, None]
    plain = ratio.log.exp()
    clipped = plain.clamp(1 - low, 1 + high)
    return -torch.minimum(plain * advantage, clipped * advantage) * ratio.weight * ratio.counts


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """Estimates the divergence of the new policy from the old from samples of the old: never
    negative, exact in expectation."""
    return log_ratio.exp() - 1 - log_ratio


def clip_share(ratio: Ratio, low: float, high: float) -> Tensor:
    """Returns how many terms lie outside of the clipping range."""
    plain = ratio.log.exp()
    outside = ((plain < 1 - low) | (plain > 1 + high)).to(ratio.counts.dtype)
    return (outside * ratio.counts).sum()
