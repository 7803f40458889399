"""Group-relative policy optimisation on chunks, top to bottom: no critic, but groups that started
from the same state and ended differently."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from hocket.train.algorithms.config import GRPOConfig
from hocket.train.algorithms.losses import (
    Comparison,
    clip_share,
    clipped_loss,
    compare,
    counted,
    evaluate_rows,
    joined,
    kl_estimate,
)
from hocket.train.algorithms.ranks import Measures, Ranks
from hocket.train.algorithms.rollout import make_rollout
from hocket.train.collect.plan import group_of
from hocket.train.collect.segments import LayoutError, Segment
from hocket.train.networks.contract import trainable_parameters

CLIP_HIGH = 0.28
"""How far a probability may grow where the settings do not say: further than `clip`, so that
unlikely actions that turned out well may grow more. The value is that of DAPO; no benchmark row."""


class GRPO:
    """Improves a network from groups of whole episodes. `reference` is the policy that training
    began with, which `kl_weight` holds the network to; None where nothing does."""

    def __init__(
        self,
        network: Any,
        optimizer: Any,
        config: GRPOConfig,
        comparison: Comparison,
        ranks: Ranks,
        reference: Any = None,
    ) -> None:
        self.network: Any = network
        self.optimizer = optimizer
        self.config = config
        self.comparison = comparison
        self.ranks = ranks
        self.reference: Any = reference
        self.clip_high = CLIP_HIGH if config.clip_high is None else config.clip_high

    def update(
        self, segments: Sequence[Segment], *, version: int, rng: torch.Generator
    ) -> dict[str, float]:
        """Improves the weights `version`, which the caller then calls `version + 1`, and returns
        what was measured."""
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
        """Returns rows `[R]`, each with the advantage of its whole episode in its group."""
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
        terms = ranks.total(ratio.counts.sum()).clamp(min=1.0)
        policy = clipped_loss(ratio, rows["advantage"], config.clip, self.clip_high).sum() / terms
        entropy = (seen.entropy * mask).sum() / ranks.total(mask.sum()).clamp(min=1)
        loss = policy - config.entropy * entropy
        if self.reference is not None:
            apart = joined(rows["reference_log_prob"] - seen.log_prob, mask, self.comparison.level)
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
            clip_share=clip_share(ratio, config.clip, self.clip_high) / terms,
        )
        measures.note(grad_norm=norm)


def group_advantages(returns: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Compares each member `[G]` of a group with the others: `(R - mean) / (std + epsilon)`."""
    exact = returns.to(torch.float64)
    spread = exact.std(unbiased=False)
    return ((exact - exact.mean()) / (spread + epsilon)).float()


def groups_of(segments: Sequence[Segment]) -> dict[Hashable, list[int]]:
    """Returns the indices of the members of each group: the same task and seed."""
    groups: dict[Hashable, list[int]] = {}
    for index, segment in enumerate(segments):
        if not segment.is_end or segment.chunk[0]:
            raise LayoutError(f"GRPO learns from whole episodes; {segment.trial.id} is a part.")
        groups.setdefault(group_of(segment.trial), []).append(index)
    return groups
