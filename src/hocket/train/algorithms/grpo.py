"""Group-relative policy optimisation on chunks, top to bottom: no critic, but groups that started
from the same state and ended differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict

from hocket.train.algorithms.advantages import group_advantages
from hocket.train.algorithms.batches import make_rollout
from hocket.train.algorithms.losses import (
    RatioConfig,
    clip_share,
    clipped_loss,
    compare,
    joined,
    kl_estimate,
)
from hocket.train.algorithms.measures import Measures
from hocket.train.algorithms.ppo import counted, evaluate_rows
from hocket.train.collect.segments import LayoutError, Segment
from hocket.train.learner.ranks import Ranks
from hocket.train.networks.contract import trainable_parameters

Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPOConfig:
    """Settings of GRPO."""

    epochs: int = 2
    minibatches: int = 4
    clip: float = 0.2
    clip_high: float = 0.28
    """Higher than `clip`: unlikely actions that turned out well may grow more."""
    entropy: float = 0.0
    kl_weight: float = 0.0
    """How strongly the policy is held to the one that training began with."""
    target_kl: float | None = None
    """Ends an update once the new policy is this far from the old."""
    max_grad_norm: float = 1.0
    ratio: RatioConfig = field(default_factory=RatioConfig)


class GRPO:
    """Improves a network from groups of whole episodes. `reference` is the frozen start."""

    def __init__(
        self, network: Any, optimizer: Any, config: GRPOConfig, ranks: Ranks, reference: Any = None
    ) -> None:
        self.network: Any = network
        self.optimizer = optimizer
        self.config = config
        self.ranks = ranks
        self.reference: Any = reference

    def update(
        self, segments: Sequence[Segment], *, version: int, rng: torch.Generator
    ) -> dict[str, float]:
        """One update of the weights `version`, which the caller then calls `version + 1`."""
        rows = self.prepare(segments, version)
        measures = Measures(self.ranks)
        for _ in range(self.config.epochs):
            order = torch.randperm(len(rows), generator=rng).to(rows.device)
            for part in order.tensor_split(self.config.minibatches):
                self.step(rows[part], measures)
                if self.config.target_kl and measures.latest("kl") > self.config.target_kl:
                    return measures.result()
        return measures.result()

    def prepare(self, segments: Sequence[Segment], version: int) -> TensorDict:
        """Rows `[R]`, each with the advantage of its whole episode in its group."""
        rollout = make_rollout(segments, next(iter(self.network.parameters())).device)
        advantage = torch.zeros(len(segments))
        for members in groups_of(segments).values():
            returns = torch.tensor([segments[i].total_reward for i in members])
            advantage[torch.tensor(members)] = group_advantages(returns)
        valid = rollout.rows["valid"]
        flat = rollout.flat(advantage=advantage.to(valid.device)[:, None].expand(valid.shape))
        with torch.no_grad():
            flat["start_log_prob"] = evaluate_rows(self.network, flat).log_prob
            if self.reference is not None:
                flat["reference_log_prob"] = evaluate_rows(self.reference, flat).log_prob
        flat["age"] = version - flat["version"]
        return flat

    def step(self, rows: TensorDict, measures: Measures) -> None:
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
        terms = ranks.total(ratio.counts.sum()).clamp(min=1.0)
        policy = clipped_loss(ratio, rows["advantage"], config.clip, config.clip_high).sum() / terms
        entropy = (seen.entropy * mask).sum() / ranks.total(mask.sum()).clamp(min=1)
        loss = policy - config.entropy * entropy
        if self.reference is not None:
            apart = joined(rows["reference_log_prob"] - seen.log_prob, mask, config.ratio.level)
            distance = (kl_estimate(apart) * ratio.counts).sum() / terms
            loss = loss + config.kl_weight * distance
            measures.add(kl_to_start=distance)
        self.optimizer.zero_grad()
        loss.backward()
        parameters = list(trainable_parameters(self.network).values())
        ranks.sum_gradients(parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        self.optimizer.step()
        measures.add(
            policy_loss=policy,
            entropy=entropy,
            kl=(kl_estimate(ratio.log) * ratio.counts).sum() / terms,
            clip_share=clip_share(ratio, config.clip, config.clip_high) / terms,
        )
        measures.note(grad_norm=norm)


def groups_of(segments: Sequence[Segment]) -> dict[Key, list[int]]:
    """Places of the members of each group: same task, same seed."""
    groups: dict[Key, list[int]] = {}
    for place, segment in enumerate(segments):
        if not segment.is_end or segment.chunk[0]:
            raise LayoutError(f"GRPO learns from whole episodes; {segment.trial.id} is a part.")
        trial = segment.trial
        groups.setdefault((trial.suite, trial.task, trial.seed), []).append(place)
    return groups
