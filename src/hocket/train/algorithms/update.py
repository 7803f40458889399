"""What PPO and GRPO share: the passes and steps of an update, ratios over executed actions,
corrections for stale data, clipping; and several learners that learn as one.

Losses are sums over rows divided by the rows of all ranks, so that summed gradients are exactly
those of one process with all the data, however unevenly rows are spread.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor

from hocket.train.algorithms.rollout import Segment
from hocket.train.config import Correction, Level, UpdateConfig
from hocket.train.networks.contract import Evaluated, Trainable, trainable_parameters


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


@dataclass(eq=False)
class Algorithm(ABC):
    """Improves a network from segments; `ranks` learn as one."""

    network: Any
    optimizer: Any
    config: UpdateConfig
    comparison: Comparison
    ranks: Ranks

    @property
    def clip_high(self) -> float:
        """How far a probability may grow in an update, as a share of itself."""
        return self.config.clip if self.config.clip_high is None else self.config.clip_high

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
                self.step(rows[part], measures, version)
                if self.config.target_kl and measures.latest("kl") > self.config.target_kl:
                    return measures.result()
        return measures.result()

    @abstractmethod
    def prepare(self, segments: Sequence[Segment], version: int) -> TensorDict:
        """Returns rows `[R]` with advantages, and what the weights `version` say of them."""

    @abstractmethod
    def step(self, rows: TensorDict, measures: Measures, version: int) -> None:
        """Makes one step of the optimizer on a minibatch."""

    def terms(self, rows: TensorDict) -> Terms:
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
        return Terms(
            seen=seen,
            mask=mask,
            ratio=ratio,
            count=count,
            policy=losses.sum() / count,
            entropy=(seen.entropy * mask).sum() / self.ranks.total(mask.sum()).clamp(min=1),
        )

    def descend(self, loss: Tensor, terms: Terms, measures: Measures, **parts: Tensor) -> None:
        """Moves the weights down the loss, and measures its `parts` too."""
        self.optimizer.zero_grad()
        loss.backward()
        parameters = list(trainable_parameters(self.network).values())
        self.ranks.sum_gradients(parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
        self.optimizer.step()
        ratio = terms.ratio
        measures.add(
            policy_loss=terms.policy,
            **parts,
            entropy=terms.entropy,
            kl=(kl_estimate(ratio.log) * ratio.counts).sum() / terms.count,
            clip_share=clip_share(ratio, self.config.clip, self.clip_high) / terms.count,
        )
        measures.note(grad_norm=norm)


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


class Ranks:
    """This process among those that learn together."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @classmethod
    def from_torchrun(cls) -> Ranks:
        """Joins the others where torchrun started this process."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        return cls(dist.get_rank(), size)

    @property
    def is_first(self) -> bool:
        """Whether this rank evaluates, logs and saves for all."""
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """Sums a tensor over ranks."""
        if self.size == 1:
            return value
        summed = value.detach().clone()
        dist.all_reduce(summed)
        return summed

    def count(self, value: float) -> float:
        """Sums a number over ranks."""
        return float(self.total(torch.tensor(value, dtype=torch.float64)))

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Makes each parameter's gradient the sum over ranks."""
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)

    def same_start(self, network: Any) -> None:
        """Gives all ranks the first one's weights."""
        if self.size > 1:
            for tensor in network.state_dict().values():
                dist.broadcast(tensor, 0)

    def close(self) -> None:
        """Leaves the others."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


class Measures:
    """Means over the minibatches of an update, by name. Parts of losses are already divided by the
    rows of all ranks, so they are summed over ranks; what is the same on every rank is only noted.

    Numbers stay on the device where they were computed until they are asked for: reading one waits
    for the device, and the device then waits for its next work.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._rows: dict[tuple[str, ...], list[Tensor]] = {}
        """One row of numbers for each minibatch, by the names of what was measured together."""

    def add(self, **parts: Tensor) -> None:
        """Takes this rank's parts of one minibatch's sums."""
        self._rows.setdefault(tuple(parts), []).append(self._ranks.total(_row(parts)))

    def note(self, **values: Tensor) -> None:
        """Takes one minibatch's values that are equal on all ranks."""
        self._rows.setdefault(tuple(values), []).append(_row(values))

    def latest(self, name: str) -> float:
        """Returns a value of the last minibatch."""
        names = next(names for names in self._rows if name in names)
        return float(self._rows[names][-1][names.index(name)])

    def result(self) -> dict[str, float]:
        """Returns the means over minibatches."""
        means = {}
        for names, rows in self._rows.items():
            columns = zip(*torch.stack(rows).tolist(), strict=True)
            for name, values in zip(names, columns, strict=True):
                means[name] = sum(values) / len(values)
        return means


def _row(values: dict[str, Tensor]) -> Tensor:
    return torch.stack([value.detach() for value in values.values()])
