"""Proximal policy optimisation on chunks, top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from hocket.train.algorithms.advantages import smdp_advantages
from hocket.train.algorithms.batches import Rollout, make_rollout
from hocket.train.algorithms.losses import (
    RatioConfig,
    clip_share,
    clipped_loss,
    compare,
    kl_estimate,
)
from hocket.train.algorithms.measures import Measures
from hocket.train.collect.segments import Segment
from hocket.train.learner.ranks import Ranks
from hocket.train.networks.contract import Evaluated, Trainable, trainable_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig:
    """Settings of PPO."""

    gamma: float = 0.99
    """Discount of a step; a chunk of k steps discounts by gamma^k."""
    lam: float = 0.99
    epochs: int = 4
    minibatches: int = 4
    clip: float = 0.2
    clip_high: float = 0.2
    clip_value: float | None = None
    """How far a value may move in an update; None lets it."""
    value_weight: float = 0.5
    entropy: float = 0.0
    target_kl: float | None = None
    """Ends an update once the new policy is this far from the old."""
    max_grad_norm: float = 1.0
    value_only: int = 0
    """First updates that train the value alone: a critic that knows nothing spoils a good start."""
    ratio: RatioConfig = field(default_factory=RatioConfig)


class PPO:
    """Improves a network from segments. `ranks` learn as one."""

    def __init__(self, network: Any, optimizer: Any, config: PPOConfig, ranks: Ranks) -> None:
        self.network: Any = network
        self.optimizer = optimizer
        self.config = config
        self.ranks = ranks

    def update(
        self, segments: Sequence[Segment], *, version: int, rng: torch.Generator
    ) -> dict[str, float]:
        """One update of the weights `version`, which the caller then calls `version + 1`."""
        rollout = make_rollout(segments, _device(self.network))
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
        """Rows `[R]` with advantages, returns, and what the present weights say of them."""
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
        """One minibatch."""
        config, ranks = self.config, self.ranks
        seen = evaluate_rows(self.network, rows)
        mask = counted(self.network, rows)
        ratio = compare(
            new=seen.log_prob,
            start=rows["start_log_prob"],
            behaviour=rows["log_prob"],
            mask=mask,
            age=rows["age"],
            config=config.ratio,
        )
        total_rows = ranks.count(len(rows))
        terms = ranks.total(ratio.counts.sum()).clamp(min=1.0)
        policy = clipped_loss(ratio, rows["advantage"], config.clip, config.clip_high).sum() / terms
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
            clip_share=clip_share(ratio, config.clip, config.clip_high) / terms,
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


def evaluate_rows(network: Any, rows: TensorDict) -> Evaluated:
    """What the network says of rows now."""
    extras = rows["extras"].to_dict() if "extras" in rows.keys() else {}  # noqa: SIM118
    seen: Evaluated = network.evaluate(rows["observation"].to_dict(), rows["actions"], extras)
    return seen


def counted(network: Trainable, rows: TensorDict) -> Tensor:
    """Which actions' probabilities count: the executed ones, where they can be told apart."""
    mask: Tensor = rows["mask"]
    return mask if network.is_factorised else torch.ones_like(mask)


def normalised(advantage: Tensor, ranks: Ranks) -> Tensor:
    """With mean 0 and spread 1 over the rows of all ranks."""
    count = max(1.0, ranks.count(len(advantage)))
    mean = ranks.total(advantage.sum()) / count
    variance = ranks.total(((advantage - mean) ** 2).sum()) / count
    return (advantage - mean) / (variance.sqrt() + 1e-8)


def _device(network: Any) -> torch.device:
    device: torch.device = next(iter(network.parameters())).device
    return device
