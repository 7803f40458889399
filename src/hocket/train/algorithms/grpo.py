"""Group-relative policy optimisation on chunks: no critic, but groups that started from the same
state and ended differently. What it shares with PPO is in `update.py`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from hocket.train.algorithms.ratios import joined, kl_estimate
from hocket.train.algorithms.stretches import LayoutError, Stretch, group_of
from hocket.train.algorithms.update import Algorithm, Sums, Terms, Totals, add_to
from hocket.train.config import GRPOConfig

CLIP_HIGH = 0.28
"""How far a probability may grow where the settings do not say: further than `clip`, so that
unlikely actions that turned out well may grow more. The value is that of DAPO."""


@dataclass(eq=False)
class GRPO(Algorithm):
    """Improves a network from groups of whole episodes."""

    config: GRPOConfig
    reference: nn.Module | None = None
    """The policy that training began with, which `kl_weight` holds the network to; None where
    nothing does."""

    @property
    def clip_high(self) -> float:
        return CLIP_HIGH if self.config.clip_high is None else self.config.clip_high

    def prepare(self, stretches: Sequence[Stretch]) -> TensorDict:
        padded = self.padded(stretches)
        advantage = torch.zeros(len(stretches))
        for members in groups_of(stretches, self.config.group).values():
            returns = torch.tensor([stretches[i].total_reward for i in members])
            advantage[torch.tensor(members)] = group_advantages(returns)
        valid = padded.rows["valid"]
        flat = padded.flat(advantage=advantage.to(valid.device)[:, None].expand(valid.shape))
        flat["start_log_prob"] = self.look(flat).log_prob
        if self.reference is not None:
            flat["reference_log_prob"] = self.look(flat, self.reference).log_prob
        return flat

    def moves_policy(self, version: int) -> bool:
        del version
        return True

    def losses(
        self, rows: TensorDict, terms: Terms | None, totals: Totals, sums: Sums
    ) -> dict[str, Tensor]:
        if terms is None:
            return {}
        loss = terms.policy - self.config.entropy * terms.entropy
        if self.reference is not None:
            apart = rows["reference_log_prob"] - terms.seen.log_prob
            divergence = kl_estimate(joined(apart, terms.mask, self.comparison.level))
            distance = (divergence * terms.ratio.counts).sum() / totals.terms
            loss = loss + self.config.kl_weight * distance
            add_to(sums, kl_to_start=distance)
        return {"policy": loss}


def group_advantages(returns: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Compare each member `[G]` of a group with the others: `(R - mean) / (std + epsilon)`."""
    exact = returns.to(torch.float64)
    spread = exact.std(unbiased=False)
    return ((exact - exact.mean()) / (spread + epsilon)).float()


def groups_of(stretches: Sequence[Stretch], size: int) -> dict[Hashable, list[int]]:
    """The indices of the members of each group: the same task and seed."""
    groups: dict[Hashable, list[int]] = {}
    for index, stretch in enumerate(stretches):
        if not stretch.is_end or stretch.chunk[0]:
            raise LayoutError(f"GRPO learns from whole episodes; {stretch.trial.id} is a part.")
        groups.setdefault(group_of(stretch.trial, size), []).append(index)
    return groups
