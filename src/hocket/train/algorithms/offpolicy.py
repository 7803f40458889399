"""Soft actor-critic on chunks, which learns from all that was ever collected, and from recorded
episodes from the start, half of each minibatch each (RLPD).

A decision is a whole chunk, as far as it is executed: with k steps executed until the next one, the
critics' target is the sum of k discounted rewards and gamma^k times what the least of two critics
expects next, unless the episode ended for good. The policy follows the mean of all critics, keeps a
spread (where it has one of its own), and is held to recorded chunks as `bc` fits them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hocket.errors import ConfigError
from hocket.train.algorithms.cloning import Demonstrated
from hocket.train.algorithms.gradients import added, clipped
from hocket.train.algorithms.ranks import Measures, Ranks
from hocket.train.algorithms.stretches import Stretch
from hocket.train.config import TrainConfig
from hocket.train.data.replay import ReplayBuffer
from hocket.train.data.windows import Moves
from hocket.train.learner import checkpoint
from hocket.train.networks.actor import units_of
from hocket.train.networks.building import Description
from hocket.train.networks.contract import Observations, trainable_parameters
from hocket.train.networks.critics import ChunkCritics

_HIDDEN = (256, 256)
"""Widths of the critics' layers."""
_FOLLOWS = 0.005
"""How much of the way targets go to the critics in a step."""
_JUDGES = 2
"""Critics of which the least counts in a target."""
_EVERY = 2
"""The policy makes one step for so many of the critics."""
_FIRST_SPREAD_WEIGHT = 0.01


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampled:
    """Decisions of the policy as it is, with gradients."""

    actions: Tensor
    """Within the env's bounds, in units of half of their range: `[B, K, A]`."""
    outside: Tensor
    """How far they were outside of bounds: the mean of squares."""
    spread: Tensor
    """The mean logarithm of how likely each number was, with its sign turned round: an estimate of
    the entropy of a number, in those units."""


class OffPolicy:
    """Improves a network from `own` decisions, and from `recorded` ones."""

    def __init__(
        self,
        network: Any,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        description: Description,
        own: ReplayBuffer,
        recorded: Demonstrated | None,
    ) -> None:
        self.network, self.config = network, config
        self.own, self.recorded = own, recorded
        self.executed: int = description.replan or network.chunk_length
        self._optimizer = optimizer
        self._parameters = list(trainable_parameters(network).values())
        device = self._parameters[0].device
        middle, reach = units_of(description.shapes)
        self._middle, self._reach = middle.to(device), reach.to(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.critics = ChunkCritics(
                network,
                description.shapes,
                size=self.executed * description.shapes.action_size,
                count=config.critics,
                hidden=_HIDDEN,
            ).to(device)
        self._targets = copy.deepcopy(self.critics).requires_grad_(requires_grad=False)
        self._weight = torch.nn.Parameter(torch.tensor(math.log(_FIRST_SPREAD_WEIGHT)).to(device))
        """The logarithm of what a wider spread is worth."""
        self._own = [*self.critics.parameters(), self._weight]
        self._critic_optimizer = torch.optim.Adam(self._own, lr=config.lr, fused=True)

    def update(
        self, stretches: Sequence[Stretch], *, version: int, rng: torch.Generator
    ) -> dict[str, float]:
        """Take what was collected and make as many steps as it is worth."""
        self.own.add(stretches)
        steps = self.config.replays * sum(len(stretch) for stretch in stretches)
        for group in self._critic_optimizer.param_groups:
            group["lr"] = self._optimizer.param_groups[0]["lr"]
        measures = Measures(Ranks())
        for step in range(steps):
            moves = self._draw(rng)
            self._improve_critics(moves, rng, measures)
            if version >= self.config.value_only and step % _EVERY == 0:
                self._improve_policy(moves.observation, rng, measures)
        return {**measures.result(), "replay": float(len(self.own)), "steps": float(steps)}

    def to_tensors(self) -> dict[str, Tensor]:
        """All of it that a checkpoint keeps beside the network and its optimizer."""
        self.own.sync()
        names = [str(index) for index in range(len(self._own))]
        return {
            "rows": torch.tensor(self.own.rows),
            "weight": self._weight.detach(),
            **{f"critics|{k}": v for k, v in self.critics.state_dict().items()},
            **{f"targets|{k}": v for k, v in self._targets.state_dict().items()},
            **{
                f"adam|{k}": v
                for k, v in checkpoint.optimizer_tensors(self._critic_optimizer, names).items()
            },
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            part, _, key = name.partition("|")
            parts.setdefault(part, {})[key] = tensor
        self.critics.load_state_dict(parts["critics"])
        self._targets.load_state_dict(parts["targets"])
        with torch.no_grad():
            self._weight.copy_(tensors["weight"])
        names = [str(index) for index in range(len(self._own))]
        checkpoint.load_optimizer(self._critic_optimizer, names, parts.get("adam", {}))

    def _draw(self, rng: torch.Generator) -> Moves:
        """A minibatch: half of it recorded, where there are recordings."""
        count = self.config.minibatch or 128
        if self.recorded is None:
            return self.own.draw(count, rng)
        windows = self.recorded.windows
        rows = windows.draw(count // 2, rng)
        some = windows.moves(rows, self.executed, self.config.gamma)
        return Moves.joined(some, self.own.draw(count - count // 2, rng))

    def _improve_critics(self, moves: Moves, rng: torch.Generator, measures: Measures) -> None:
        with torch.no_grad():
            following = self._sample(moves.following, rng)
            expected = self._targets(moves.following, following.actions.flatten(1))
            judges = torch.randperm(len(expected), generator=rng)[:_JUDGES].to(expected.device)
            next_value = expected[judges].min(0).values
            target = moves.reward + moves.discount * next_value
        taken = self._units(moves.actions[:, : self.executed]).clamp(-1, 1).flatten(1)
        found = self.critics(moves.observation, taken)
        loss = ((found - target) ** 2).mean(1).sum()
        self._critic_optimizer.zero_grad()
        self._weight.grad = None
        loss.backward()
        self._critic_optimizer.step()
        with torch.no_grad():
            pairs = zip(self._targets.parameters(), self.critics.parameters(), strict=True)
            for mine, one in pairs:
                mine.lerp_(one, _FOLLOWS)
        measures.note(critic_loss=loss / len(found), value=found.mean(), target=target.mean())

    def _improve_policy(self, seen: Observations, rng: torch.Generator, measures: Measures) -> None:
        sampled = self._sample(seen, rng)
        if not sampled.actions.requires_grad:
            raise ConfigError(
                "This network samples its chunks without gradients, which rlpd learns by. Use ppo, "
                "or let `act` keep them."
            )
        value = self.critics(seen, sampled.actions.flatten(1)).mean(0)
        size = value.detach().abs().mean() + 1e-3
        loss = -value.mean() / size + sampled.outside
        if self.network.is_factorised:
            loss = loss - self._weight.exp().detach() * sampled.spread
            # Worth more while the spread is below what is wanted.
            off = sampled.spread.detach() - self.config.spread_target
            self._critic_optimizer.zero_grad()
            (self._weight * off).backward()
            self._critic_optimizer.step()
        found = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        ranks, longest = Ranks(), self.config.max_grad_norm
        whole, norm = clipped(found, self._parameters, ranks, longest)
        if self.recorded is not None and self.config.bc_weight:
            held = self.recorded.gradients(len(value) // 2, rng, measures)
            whole = added(whole, clipped(held, self._parameters, ranks, longest)[0])
        for parameter, one in zip(self._parameters, whole, strict=True):
            parameter.grad = one
        self._optimizer.step()
        measures.note(
            policy_value=value.mean(), policy_grad_norm=norm, spread=sampled.spread,
            spread_weight=self._weight.exp(),
        )  # fmt: skip

    def _sample(self, seen: Observations, rng: torch.Generator) -> Sampled:
        count = len(next(iter(seen.values())))
        noise = torch.randn(count, self.network.noise_size, generator=rng).to(self._reach.device)
        acted = self.network.act(seen, noise, deterministic=False)
        actions = self._units(acted.actions[:, : self.executed])
        inside = actions.clamp(-1, 1)
        told = acted.log_prob[:, : self.executed].mean() / len(self._reach)
        return Sampled(
            actions=inside,
            outside=((actions - inside) ** 2).mean(),
            spread=-told - self._reach.log().mean(),
        )

    def _units(self, actions: Tensor) -> Tensor:
        """Actions in units of half of their range."""
        return (actions - self._middle) / self._reach
