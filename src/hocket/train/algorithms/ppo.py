"""Proximal policy optimisation on chunks. What it shares with GRPO is in `update.py`.

Advantages are generalised advantages in SMDP form: chunk c executes k_c steps, so its discount is
gamma^k_c and its trace (gamma lambda)^k_c, the same scale as if every step had been a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from hocket.train.algorithms.ranks import Ranks
from hocket.train.algorithms.stretches import LayoutError, Stretch
from hocket.train.algorithms.update import Algorithm, Sums, Terms, Totals, add_to
from hocket.train.config import PPOConfig
from hocket.train.networks.contract import TASK


class PPO(Algorithm):
    """Proximal policy optimisation: a critic tells how much better than expected a chunk was."""

    config: PPOConfig
    reward_scale: float = 1.0
    """What a reward of 1 is worth to the critic, which so sees returns of ordinary size."""

    def moves_policy(self, version: int) -> bool:
        return version >= self.config.value_only

    @property
    def critic_pace(self) -> float:
        whole, own = self.config.lr, self.config.critic_lr
        return own / whole if own is not None and whole else 1.0

    def prepare(self, stretches: Sequence[Stretch]) -> TensorDict:
        padded = self.padded(stretches)
        rows, valid = padded.rows, padded.rows["valid"]
        seen = self.look(rows[valid])
        value = torch.zeros(valid.shape, dtype=seen.value.dtype, device=valid.device)
        value[valid] = seen.value
        bootstrap = torch.zeros(len(valid), device=valid.device)
        if padded.has_final.any():
            known = self.look_at_values(padded.final)
            bootstrap = torch.where(padded.has_final, known, bootstrap)
        found = smdp_advantages(
            rewards=rows["rewards"] * self.reward_scale,
            executed=rows["executed"],
            value=value,
            terminated=rows["terminated"],
            valid=valid,
            bootstrap=bootstrap,
            gamma=self.config.gamma,
            lam=self.config.decay,
        )
        flat = padded.flat(advantage=found.advantage, returns=found.returns, start_value=value)
        flat["start_log_prob"] = seen.log_prob
        flat["advantage"] = normalised(flat["advantage"], self.ranks)
        self.of_policy = self._reached(flat)
        return flat

    def losses(
        self, rows: TensorDict, terms: Terms | None, totals: Totals, sums: Sums
    ) -> dict[str, Tensor]:
        found = self.value(rows["observation"]) if terms is None else terms.seen.value
        value = self._value_loss(found, rows).sum() / totals.rows
        add_to(sums, value_loss=value)
        losses = {"value": self.config.value_weight * value}
        if terms is not None:
            losses["policy"] = terms.policy - self.config.entropy * terms.entropy
        return losses

    def _reached(self, rows: TensorDict) -> set[int]:
        """Which parameters the policy depends on, by index, told by one row of each task. Those of
        tasks that are not there get no gradient, and count as the policy's."""
        tasks = rows["observation", TASK].tolist()
        by_policy, by_critic = set[int](), set[int]()
        for task in dict.fromkeys(tasks):
            first = tasks.index(task)
            seen = self.evaluate(rows[first : first + 1].to(self.device))
            for reached, number in ((by_policy, seen.log_prob), (by_critic, seen.value)):
                found = self.reach(number.sum())
                reached.update(i for i, one in enumerate(found) if one is not None)
        return set(range(len(self._parameters))) - (by_critic - by_policy)

    def _value_loss(self, value: Tensor, rows: TensorDict) -> Tensor:
        loss = (value - rows["returns"]) ** 2
        if self.config.clip_value is not None:
            near = rows["start_value"] + (value - rows["start_value"]).clamp(
                -self.config.clip_value, self.config.clip_value
            )
            loss = torch.maximum(loss, (near - rows["returns"]) ** 2)
        return 0.5 * loss


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advantages:
    """Advantages and returns of chunks, `[S, C]` float32, zero where padded."""

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
    """Compute the generalised advantages of stretches `[S, C]`.

    `rewards` are `[S, C, T]`, zero from `executed` on; `bootstrap` `[S]` is the value of the
    observation that follows each stretch, which counts unless the stretch ended by termination.
    """
    if rewards.shape[:2] != valid.shape or bootstrap.shape != valid.shape[:1]:
        raise LayoutError(
            f"rewards {tuple(rewards.shape)} and bootstrap {tuple(bootstrap.shape)} do not fit "
            f"stretches and chunks {tuple(valid.shape)}."
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
        # Padding comes after a stretch's last chunk: what follows that chunk is the bootstrap.
        advantage[:, c] = torch.where(valid[:, c], found, 0.0)
        next_advantage = torch.where(valid[:, c], found, next_advantage)
        next_value = torch.where(valid[:, c], value[:, c], next_value)
    returns = torch.where(valid, advantage + value, 0.0)
    return Advantages(advantage=advantage.float(), returns=returns.float())


def normalised(advantage: Tensor, ranks: Ranks) -> Tensor:
    """Shift and scale advantages to mean 0 and spread 1 over the rows of all ranks."""
    count = max(1.0, ranks.count(len(advantage)))
    mean = ranks.total(advantage.sum()) / count
    variance = ranks.total(((advantage - mean) ** 2).sum()) / count
    return (advantage - mean) / (variance.sqrt() + 1e-8)
