"""Proximal policy optimisation on chunks, top to bottom.

Advantages are generalised advantages in SMDP form: chunk c executes k_c steps, so its discount is
gamma^k_c and its trace (gamma lambda)^k_c, the same scale as if every step had been a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from hocket.train.algorithms.config import PPOConfig
from hocket.train.algorithms.losses import (
    Comparison,
    clip_share,
    clipped_loss,
    compare,
    counted,
    evaluate_rows,
    kl_estimate,
)
from hocket.train.algorithms.ranks import Measures, Ranks
from hocket.train.algorithms.rollout import Rollout, make_rollout
from hocket.train.collect.segments import LayoutError, Segment
from hocket.train.networks.contract import trainable_parameters


class PPO:
    """Improves a network from segments. `ranks` learn as one."""

    def __init__(
        self, network: Any, optimizer: Any, config: PPOConfig, comparison: Comparison, ranks: Ranks
    ) -> None:
        self.network: Any = network
        self.optimizer = optimizer
        self.config = config
        self.comparison = comparison
        self.ranks = ranks
        self.clip_high = config.clip if config.clip_high is None else config.clip_high

    def update(
        self, segments: Sequence[Segment], *, version: int, rng: torch.Generator
    ) -> dict[str, float]:
        """Improves the weights `version`, which the caller then calls `version + 1`, and returns
        what was measured."""
        rollout = make_rollout(segments, next(iter(self.network.parameters())).device)
        rows = self.prepare(rollout, version)
        measures = Measures(self.ranks)
        for _ in range(self.config.epochs):
            order = torch.randperm(len(rows), generator=rng).to(rows.device)
            for part in order.tensor_split(self.config.minibatches):
                self.step(rows[part], measures, value_only=version < self.config.value_only)
                if self.config.target_kl and measures.latest("kl") > self.config.target_kl:
                    return measures.result()
        return measures.result()

    def prepare(self, rollout: Rollout, version: int) -> TensorDict:
        """Returns rows `[R]` with advantages, returns, and what the present weights say of them."""
        with torch.no_grad():
            rows = rollout.rows
            seen = evaluate_rows(self.network, rows.reshape(-1))
            value = seen.value.reshape(rows.batch_size)
            bootstrap = torch.zeros(rows.batch_size[0], device=value.device)
            if rollout.has_final.any():
                known = self.network.value(rollout.final.to_dict())
                bootstrap = torch.where(rollout.has_final, known, bootstrap)
            found = smdp_advantages(
                rewards=rows["rewards"],
                executed=rows["executed"],
                value=value,
                terminated=rows["terminated"],
                valid=rows["valid"],
                bootstrap=bootstrap,
                gamma=self.config.gamma,
                lam=self.config.lam,
            )
            flat = rollout.flat(
                advantage=found.advantage,
                returns=found.returns,
                start_value=value,
                start_log_prob=seen.log_prob.reshape(rows["log_prob"].shape),
            )
            flat["age"] = version - flat["version"]
            flat["advantage"] = normalised(flat["advantage"], self.ranks)
        return flat

    def step(self, rows: TensorDict, measures: Measures, *, value_only: bool) -> None:
        """Makes one step of the optimizer on a minibatch."""
        config, ranks = self.config, self.ranks
        seen = evaluate_rows(self.network, rows)
        mask = counted(self.network, rows)
        ratio = compare(
            new=seen.log_prob,
            start=rows["start_log_prob"],
            behaviour=rows["log_prob"],
            mask=mask,
            age=rows["age"],
            how=self.comparison,
        )
        total_rows = ranks.count(len(rows))
        terms = ranks.total(ratio.counts.sum()).clamp(min=1.0)
        policy = clipped_loss(ratio, rows["advantage"], config.clip, self.clip_high).sum() / terms
        value = self._value_loss(seen.value, rows).sum() / total_rows
        entropy = (seen.entropy * mask).sum() / ranks.total(mask.sum()).clamp(min=1)
        loss = config.value_weight * value
        if not value_only:
            loss = loss + policy - config.entropy * entropy
        self.optimizer.zero_grad()
        loss.backward()
        parameters = list(trainable_parameters(self.network).values())
        ranks.sum_gradients(parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        self.optimizer.step()
        measures.add(
            policy_loss=policy,
            value_loss=value,
            entropy=entropy,
            kl=(kl_estimate(ratio.log) * ratio.counts).sum() / terms,
            clip_share=clip_share(ratio, config.clip, self.clip_high) / terms,
        )
        measures.note(grad_norm=norm)

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
    """Computes the generalised advantages of segments `[S, C]`.

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


def normalised(advantage: Tensor, ranks: Ranks) -> Tensor:
    """Shifts and scales advantages to mean 0 and spread 1 over the rows of all ranks."""
    count = max(1.0, ranks.count(len(advantage)))
    mean = ranks.total(advantage.sum()) / count
    variance = ranks.total(((advantage - mean) ** 2).sum()) / count
    return (advantage - mean) / (variance.sqrt() + 1e-8)
