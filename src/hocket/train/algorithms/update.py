"""What PPO and GRPO share: the passes and steps of an update.

The losses of policy and critic are clipped apart, so that the size of one does not decide how far
the other moves. A step that takes the policy further than `target_kl` is undone, and the policy
then stays as it is until the update ends, while the critic goes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from hocket.train.algorithms.cloning import Beside
from hocket.train.algorithms.ranks import Measures, Ranks
from hocket.train.algorithms.ratios import (
    Comparison,
    Ratio,
    clip_share,
    clipped_loss,
    compare,
    kl_estimate,
)
from hocket.train.algorithms.rollout import Segment
from hocket.train.config import UpdateConfig
from hocket.train.networks.contract import Evaluated, Trainable, trainable_parameters

_FASTER = 1.2
"""How much the pace grows after an update that was not stopped. Chosen by hand."""
_SLOWER = 0.25
"""The least share of its pace that a stopped update leaves. Chosen by hand."""
_LEARNT_FROM = (
    *("observation", "actions", "extras", "mask", "log_prob", "start_log_prob", "age"),
    *("reference_log_prob", "advantage", "returns", "start_value"),
)
"""The columns that steps read; picking a minibatch costs time for each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """What both algorithms compute of a minibatch."""

    seen: Evaluated
    mask: Tensor
    """Which actions' probabilities count, `[R, T]`."""
    ratio: Ratio
    count: Tensor
    """How many terms of `ratio` count on all ranks, at least 1."""
    policy: Tensor
    """The policy loss."""
    entropy: Tensor
    """The mean entropy of the actions that count."""


@dataclass(slots=True)
class Pace:
    """How far one step moves the policy, as a share of what the learning rate says. It shrinks
    while updates are stopped before their minibatches have all run, and grows back."""

    share: float = 1.0

    def adapt(self, ran: int, planned: int) -> None:
        """Learns from an update in which the policy made `ran` of the `planned` steps."""
        rate = _FASTER if ran == planned else max(_SLOWER, ran / planned)
        self.share = min(1.0, self.share * rate)


@dataclass(eq=False)
class Algorithm(ABC):
    """Improves a network from segments; `ranks` learn as one."""

    network: Any
    optimizer: Any
    config: UpdateConfig
    comparison: Comparison
    ranks: Ranks
    pace: Pace = field(default_factory=Pace, kw_only=True)
    beside: Beside | None = field(default=None, kw_only=True)
    """Demonstrations that the policy is held to; None without."""

    def __post_init__(self) -> None:
        self._parameters = list(trainable_parameters(self.network).values())
        self.of_policy = set(range(len(self._parameters)))
        """The parameters that the policy depends on, by index: it stands still only with them."""

    @property
    def clip_high(self) -> float:
        """How far a probability may grow in an update, as a share of itself."""
        return self.config.clip if self.config.clip_high is None else self.config.clip_high

    def update(
        self, segments: Sequence[Segment], *, version: int, rng: torch.Generator
    ) -> dict[str, float]:
        """Improves the weights `version`, which the caller then calls `version + 1`, and returns
        what was measured."""
        rows = self.prepare(segments, version).select(*_LEARNT_FROM, strict=False)
        measures = Measures(self.ranks)
        parts = list(self._parts(len(rows), rng))
        is_moving = is_tried = self.moves_policy(version)
        policy_steps = value_steps = 0
        before: dict[int, Tensor] = {}
        for part in parts:
            some = rows[part.to(rows.device)]
            terms = self.terms(some, measures) if is_moving else None
            if terms is not None and self._is_far(measures):
                self._draw_back(before, 1.0)
                is_moving, terms = False, None
                policy_steps = max(0, policy_steps - 1)
            losses = self.losses(some, terms, measures)
            if not losses:
                break
            if terms is not None and self.beside is not None:
                losses["cloning"] = self.beside.loss(self.network, len(part), rng, measures)
            before = self.descend(losses, measures)
            policy_steps += terms is not None
            value_steps += "value" in losses
        if is_tried:
            self.pace.adapt(policy_steps, len(parts))
        return {
            **measures.result(),
            "minibatches": float(len(parts)),
            "policy_minibatches": float(policy_steps),
            "value_minibatches": float(value_steps),
            "pace": self.pace.share,
        }

    @abstractmethod
    def prepare(self, segments: Sequence[Segment], version: int) -> TensorDict:
        """Returns rows `[R]` with advantages, and what the weights `version` say of them."""

    @abstractmethod
    def moves_policy(self, version: int) -> bool:
        """Whether the update of this version trains the policy."""

    @abstractmethod
    def losses(
        self, rows: TensorDict, terms: Terms | None, measures: Measures
    ) -> dict[str, Tensor]:
        """Returns the losses of a minibatch that are left: `policy` where there are `terms`, and
        `value` where there is a critic."""

    def terms(self, rows: TensorDict, measures: Measures) -> Terms:
        """Compares the present weights with those at the start of the update, and with those that
        sampled."""
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
        count = self.ranks.total(ratio.counts.sum()).clamp(min=1.0)
        losses = clipped_loss(ratio, rows["advantage"], self.config.clip, self.clip_high)
        found = Terms(
            seen=seen,
            mask=mask,
            ratio=ratio,
            count=count,
            policy=losses.sum() / count,
            entropy=(seen.entropy * mask).sum() / self.ranks.total(mask.sum()).clamp(min=1),
        )
        measures.add(
            policy_loss=found.policy,
            entropy=found.entropy,
            kl=(kl_estimate(ratio.log) * ratio.counts).sum() / count,
            clip_share=clip_share(ratio, self.config.clip, self.clip_high) / count,
        )
        return found

    def _parts(self, count: int, rng: torch.Generator) -> Iterator[Tensor]:
        """The rows of each minibatch, pass by pass. All ranks make as many, and none is empty."""
        wanted = self.config.minibatches
        if wanted is None:
            wanted = round(self.ranks.count(count) / self.config.minibatch)
        parts = max(1, min(wanted, self.ranks.least(count)))
        for _ in range(self.config.epochs):
            yield from torch.randperm(count, generator=rng).tensor_split(parts)

    def _is_far(self, measures: Measures) -> bool:
        limit = self.config.target_kl
        # A divergence that is no number is not below the limit either.
        return bool(limit) and not measures.latest("kl") <= (limit or 0.0)

    def descend(self, losses: dict[str, Tensor], measures: Measures) -> dict[int, Tensor]:
        """Moves the weights down each loss, along its own clipped gradient, and returns what the
        policy was before that where it moved."""
        whole: list[Tensor | None] = [None] * len(self._parameters)
        for name, loss in losses.items():
            for i, one in enumerate(self._gradients(name, loss, measures)):
                known = whole[i]
                whole[i] = known if one is None else one if known is None else known + one
        is_moving = "policy" in losses
        for i, parameter in enumerate(self._parameters):
            parameter.grad = whole[i] if is_moving or i not in self.of_policy else None
        before: dict[int, Tensor] = {}
        if is_moving and self.config.target_kl:
            before = {i: self._parameters[i].detach().clone() for i in self.of_policy}
        self.optimizer.step()
        self._draw_back(before, 1.0 - self.pace.share)
        return before

    def _draw_back(self, before: dict[int, Tensor], share: float) -> None:
        """Takes the policy back by this share of its last step; the critic keeps the whole."""
        if share > 0:
            with torch.no_grad():
                for i, was in before.items():
                    self._parameters[i].lerp_(was, share)

    def reach(self, loss: Tensor) -> list[Tensor | None]:
        """Returns the gradient of a number for each parameter; None where it does not depend on
        it."""
        if not loss.requires_grad:
            return [None] * len(self._parameters)
        return list(
            torch.autograd.grad(loss, self._parameters, retain_graph=True, allow_unused=True)
        )

    def _gradients(self, name: str, loss: Tensor, measures: Measures) -> Sequence[Tensor | None]:
        """Returns the gradients of one loss over all ranks, clipped to the longest allowed; None
        for parameters that the loss does not reach."""
        found = self.reach(loss)
        if self.ranks.size > 1:
            found = [
                torch.zeros_like(parameter) if one is None else one.contiguous()
                for one, parameter in zip(found, self._parameters, strict=True)
            ]
        known = [one for one in found if one is not None]
        self.ranks.sum_all(known)
        norm = torch.nn.utils.get_total_norm(known)
        measures.note(**{f"{name}_grad_norm": norm})
        longest = (self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        return [None if one is None else one * longest for one in found]


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
