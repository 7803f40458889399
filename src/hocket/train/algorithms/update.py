"""What PPO and GRPO share: the passes and steps of an update.

The losses of policy and critic are clipped apart, so that the size of one does not decide how far
the other moves. A step that takes the policy further than `target_kl` is undone, and the policy
then stays as it is until the update ends, while the critic goes on.

With `micro_batch` rows lie in the host's memory, and a step sums the gradients of that many at a
time: each loss is divided by what counts in the whole minibatch, so that the sum is the gradient of
the minibatch, and no more than a micro-batch ever lies on the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from hocket.train.algorithms.cloning import Demonstrated
from hocket.train.algorithms.gradients import added, autocast, clipped
from hocket.train.algorithms.ranks import Measures, Ranks
from hocket.train.algorithms.ratios import (
    Ratio,
    RatioRule,
    clip_share,
    clipped_loss,
    compare,
    kl_estimate,
)
from hocket.train.algorithms.stretches import PaddedStretches, Stretch, pad_stretches
from hocket.train.config import UpdateConfig
from hocket.train.networks.contract import (
    Evaluated,
    Observations,
    Trainable,
    trainable_parameters,
)

_FASTER, _FASTEST = 1.2, 8.0
"""How much the pace grows after an update that hardly moved the policy, and how far."""
_GOAL, _BAND = 0.15, 2.0
"""How far an update should move the policy on average, as a share of `target_kl`, and how many
times more or less is as good."""
_SLOWER = 0.25
"""The least share of its pace that a stopped update leaves."""
_LEARNT_FROM = (
    *("observation", "actions", "extras", "mask", "log_prob", "start_log_prob"),
    *("reference_log_prob", "advantage", "returns", "start_value"),
)
"""The columns that steps read; picking a minibatch costs time for each."""
_OF_POLICY = ("policy_loss", "entropy", "kl", "clip_share")
"""What is measured of the policy in each minibatch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Totals:
    """What the losses of a minibatch are divided by: its counts on all ranks, each at least 1."""

    rows: float
    actions: Tensor
    """Actions whose probabilities count."""
    terms: Tensor | float
    """Ratios that count: one for each such action, or one for each row."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """What both algorithms compute of a minibatch, or of a part of it."""

    seen: Evaluated
    mask: Tensor
    """Which actions' probabilities count, `[R, T]`."""
    ratio: Ratio
    policy: Tensor
    """This part of the policy loss."""
    entropy: Tensor
    """This part of the mean entropy of the actions that count."""


Sums = dict[str, Tensor]
"""What is measured of a minibatch, by name, summed over its parts."""
Gradients = dict[str, list[Tensor | None]]
"""The gradients of each loss, by its name: one for each parameter, None where it has none."""


@dataclass(slots=True)
class StepShare:
    """How far one step moves the policy, as a share of what the learning rate says. It shrinks
    where updates move the policy far, and more where they are stopped before their minibatches have
    all run; it grows where they hardly move it."""

    share: float = 1.0

    def adapt(self, ran: int, planned: int, moved: float) -> None:
        """Learn from an update in which the policy made `ran` of the `planned` steps, and was
        `moved` so far on average, in shares of what stops it."""
        rate = 1.0
        if ran < planned:
            rate = max(_SLOWER, ran / planned)
        elif moved > _GOAL * _BAND:
            rate = 1 / _FASTER
        elif moved < _GOAL / _BAND:
            rate = _FASTER
        self.share = min(_FASTEST, self.share * rate)


@dataclass(eq=False)
class Algorithm(ABC):
    """Improves a network from stretches; `ranks` learn as one."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    config: UpdateConfig
    comparison: RatioRule
    ranks: Ranks
    pace: StepShare = field(default_factory=StepShare, kw_only=True)
    beside: Demonstrated | None = field(default=None, kw_only=True)
    """Demonstrations that the policy is held to; None without."""

    def __post_init__(self) -> None:
        self._parameters = list(trainable_parameters(self.network).values())
        self.of_policy = set(range(len(self._parameters)))
        """The parameters that the policy depends on, by index: it stands still only with them."""
        self.texts: Sequence[str] = ("",)
        """The prompts of the batch that is learnt from."""

    @property
    def clip_high(self) -> float:
        """How far a probability may grow in an update, as a share of itself."""
        return self.config.clip if self.config.clip_high is None else self.config.clip_high

    @property
    def critic_pace(self) -> float:
        """How far one step moves what is the critic's alone, as a share of what the learning rate
        says."""
        return 1.0

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        found: torch.device = next(iter(self.network.parameters())).device
        return found

    def update(
        self, stretches: Sequence[Stretch], *, version: int, rng: torch.Generator
    ) -> dict[str, float]:
        """Improve the weights `version`, which become `version + 1`; return what was measured."""
        rows = self.prepare(stretches).select(*_LEARNT_FROM, strict=False)
        measures = Measures(self.ranks)
        parts = list(self._parts(rows, rng))
        is_moving = is_tried = self.moves_policy(version)
        policy_steps = value_steps = 0
        before: dict[int, Tensor] = {}
        for part in parts:
            some = rows[part.to(rows.device)]
            found = self.gradients(some, measures, moves_policy=is_moving)
            if found is None:
                self._draw_back(before, 1.0)
                is_moving = False
                policy_steps = max(0, policy_steps - 1)
                found = self.gradients(some, measures, moves_policy=False)
            if not found:
                break
            if is_moving and self.beside is not None:
                found["cloning"] = self.beside.gradients(len(part), rng, measures)
            before = self.descend(found, measures)
            policy_steps += is_moving
            value_steps += "value" in found
        measured = measures.result()
        if is_tried and self.config.target_kl:
            moved = measured["kl"] / self.config.target_kl
            self.pace.adapt(policy_steps, len(parts), moved)
        return {
            **measured,
            "minibatches": float(len(parts)),
            "policy_minibatches": float(policy_steps),
            "value_minibatches": float(value_steps),
            "pace": self.pace.share,
        }

    @abstractmethod
    def prepare(self, stretches: Sequence[Stretch]) -> TensorDict:
        """Lay out rows `[R]` with advantages, and what the present weights say of them."""

    @abstractmethod
    def moves_policy(self, version: int) -> bool:
        """True if the update of this version trains the policy."""

    @abstractmethod
    def losses(
        self, rows: TensorDict, terms: Terms | None, totals: Totals, sums: Sums
    ) -> dict[str, Tensor]:
        """Compute the losses of a part of a minibatch: `policy` where there are `terms`, `value`
        where there is a critic. What is measured is added to `sums`."""

    def gradients(
        self, rows: TensorDict, measures: Measures, *, moves_policy: bool = True
    ) -> Gradients | None:
        """Compute the gradients of a minibatch's losses on this rank; None if the last step took
        the policy too far, which is known before the last of them is computed."""
        totals = self.totals(rows)
        sums: Sums = {}
        found: Gradients = {}
        parts = self._micro_batches(rows)
        for number, part in enumerate(parts, 1):
            part = part.to(self.device)
            terms = self.terms(part, totals, sums) if moves_policy else None
            if terms is not None and number == len(parts):
                measures.add(**{key: sums.pop(key) for key in _OF_POLICY})
                if self._is_far(measures):
                    return None
            for name, loss in self.losses(part, terms, totals, sums).items():
                known = found.get(name, [None] * len(self._parameters))
                found[name] = added(known, self.reach(loss))
        if sums:
            measures.add(**sums)
        return found

    def totals(self, rows: TensorDict) -> Totals:
        """Count what a minibatch has on all ranks."""
        mask = counted(self.network, rows)
        actions = self.ranks.total(mask.sum()).clamp(min=1).to(self.device)
        count = self.ranks.count(len(rows))
        is_whole = self.comparison.level == "chunk"
        return Totals(
            rows=count,
            actions=actions,
            terms=max(1.0, count) if is_whole else actions,
        )

    def terms(self, rows: TensorDict, totals: Totals, sums: Sums) -> Terms:
        """Compare the present weights with those at the start of the update, and with those that
        sampled."""
        seen = self.evaluate(rows)
        mask = counted(self.network, rows)
        ratio = compare(
            new=seen.log_prob,
            start=rows["start_log_prob"],
            behaviour=rows["log_prob"],
            mask=mask,
            how=self.comparison,
        )
        losses = clipped_loss(ratio, rows["advantage"], self.config.clip, self.clip_high)
        found = Terms(
            seen=seen,
            mask=mask,
            ratio=ratio,
            policy=losses.sum() / totals.terms,
            entropy=(seen.entropy * mask).sum() / totals.actions,
        )
        add_to(
            sums,
            policy_loss=found.policy,
            entropy=found.entropy,
            kl=(kl_estimate(ratio.log) * ratio.counts).sum() / totals.terms,
            clip_share=clip_share(ratio, self.config.clip, self.clip_high) / totals.terms,
        )
        return found

    # -- the network -------------------------------------------------------------------------------

    def evaluate(self, rows: TensorDict, network: Any = None) -> Evaluated:
        """Evaluate rows `[R]` under a network's present weights: those in training, or others."""
        network = self.network if network is None else network
        extras = rows["extras"].to_dict() if "extras" in rows.keys() else {}  # noqa: SIM118
        with autocast(self.device, self.config.precision):
            seen: Evaluated = network.evaluate(
                Observations(rows["observation"].to_dict(), self.texts), rows["actions"], extras
            )
        if self.config.precision == "fp32":
            return seen
        return Evaluated(
            log_prob=seen.log_prob.float(), entropy=seen.entropy.float(), value=seen.value.float()
        )

    def value(self, observation: TensorDict) -> Tensor:
        """Estimate the returns to expect from observations `[R]`."""
        with autocast(self.device, self.config.precision):
            seen = Observations(observation.to_dict(), self.texts)
            found: Tensor = self.network.value(seen)
        return found if self.config.precision == "fp32" else found.float()

    def look(self, rows: TensorDict, network: Any = None) -> Evaluated:
        """Evaluate any number of rows without gradients; the answer lies where they lie."""
        with torch.no_grad():
            parts = self._micro_batches(rows)
            found = [self.evaluate(part.to(self.device), network) for part in parts]
        return Evaluated(
            log_prob=_joined([one.log_prob for one in found], rows),
            entropy=_joined([one.entropy for one in found], rows),
            value=_joined([one.value for one in found], rows),
        )

    def look_at_values(self, observation: TensorDict) -> Tensor:
        """Estimate any number of returns without gradients."""
        with torch.no_grad():
            parts = self._micro_batches(observation)
            found = [self.value(part.to(self.device)) for part in parts]
        return _joined(found, observation)

    def padded(self, stretches: Sequence[Stretch]) -> PaddedStretches:
        """Stretches side by side: where the network is, or in the host's memory where it gets them
        in micro-batches."""
        place = "cpu" if self.config.micro_batch else self.device
        padded = pad_stretches(stretches, place)
        self.texts = padded.texts
        return padded

    def _micro_batches(self, rows: TensorDict) -> Sequence[TensorDict]:
        """Rows in parts that are computed at once, each still where the rows lie."""
        size = self.config.micro_batch
        return [rows] if size is None else rows.split(size)

    def _parts(self, rows: TensorDict, rng: torch.Generator) -> Iterator[Tensor]:
        """The rows of each minibatch, pass by pass. All ranks make as many, and none is empty."""
        count, size = len(rows), self.config.minibatch_of(rows["actions"].shape[1])
        wanted = round(self.ranks.count(count) / size)
        parts = max(1, min(wanted, self.ranks.least(count)))
        for _ in range(self.config.epochs):
            yield from torch.randperm(count, generator=rng).tensor_split(parts)

    def _is_far(self, measures: Measures) -> bool:
        limit = self.config.target_kl
        # A divergence that is no number is not below the limit either.
        return bool(limit) and not measures.latest("kl") <= (limit or 0.0)

    def descend(self, found: Gradients, measures: Measures) -> dict[int, Tensor]:
        """Move the weights down each loss, along its own clipped gradient; return what the policy
        was before if it moved."""
        whole: list[Tensor | None] = [None] * len(self._parameters)
        for name, mine in found.items():
            mine, norm = clipped(mine, self._parameters, self.ranks, self.config.max_grad_norm)
            measures.note(**{f"{name}_grad_norm": norm})
            whole = added(whole, mine)
        is_moving = "policy" in found
        for i, parameter in enumerate(self._parameters):
            parameter.grad = whole[i] if is_moving or i not in self.of_policy else None
        policy = self.of_policy if is_moving and self.config.target_kl else set[int]()
        critic = set(range(len(whole))) - self.of_policy if self.critic_pace != 1 else set[int]()
        before = {i: self._parameters[i].detach().clone() for i in policy | critic}
        self.optimizer.step()
        self._draw_back({i: before.pop(i) for i in critic}, 1.0 - self.critic_pace)
        self._draw_back(before, 1.0 - self.pace.share)
        return before

    def _draw_back(self, before: dict[int, Tensor], share: float) -> None:
        """Take parameters back by this share of their last step, or on where that is below 0."""
        if share:
            with torch.no_grad():
                for i, was in before.items():
                    self._parameters[i].lerp_(was, share)

    def reach(self, loss: Tensor) -> list[Tensor | None]:
        """The gradient of a number by parameter; None where it does not depend on one."""
        if not loss.requires_grad:
            return [None] * len(self._parameters)
        return list(
            torch.autograd.grad(loss, self._parameters, retain_graph=True, allow_unused=True)
        )


def add_to(sums: Sums, **parts: Tensor) -> None:
    """Add parts of what is measured, without their gradients."""
    for name, part in parts.items():
        known = sums.get(name)
        sums[name] = part.detach() if known is None else known + part.detach()


def _joined(parts: list[Tensor], like: TensorDict) -> Tensor:
    whole = parts[0] if len(parts) == 1 else torch.cat([part.to(like.device) for part in parts])
    return whole.to(like.device)


def counted(network: Trainable, rows: TensorDict) -> Tensor:
    """Which actions' probabilities count, `[R, T]`: the executed ones, where the network tells
    theirs from the rest."""
    mask: Tensor = rows["mask"]
    tells = network.is_factorised or getattr(network, "tells_executed", False)
    return mask if tells else torch.ones_like(mask)
