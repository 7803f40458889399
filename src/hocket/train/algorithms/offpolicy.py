"""Actor and critics on chunks, which learn from all that was ever collected, and from recorded
episodes from the start, half of each minibatch each (RLPD).

A decision is a whole chunk, as far as it is executed: with k steps executed until the next one, the
critics' target is the sum of k discounted rewards and gamma^k times what the least of two critics
expects next, unless the episode ended for good. The policy is fitted to what was done, as `bc` fits
recorded chunks, the more the better the critics think that was than what it would do now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hocket.core.contracts.module import HasVelocity
from hocket.train.algorithms.cloning import Demonstrated, cloning_loss, flow_numbers
from hocket.train.algorithms.gradients import clipped
from hocket.train.algorithms.ranks import Measures, Ranks
from hocket.train.algorithms.stretches import Stretch
from hocket.train.config import TrainConfig
from hocket.train.data.replay import ReplayBuffer
from hocket.train.data.windows import Moves, Window
from hocket.train.learner import checkpoint
from hocket.train.networks.actor import units_of
from hocket.train.networks.building import Description
from hocket.train.networks.contract import TASK, Observations, trainable_parameters
from hocket.train.networks.critics import ChunkCritics

_HIDDEN = (256, 256)
"""Widths of the critics' layers."""
_FOLLOWS = 0.005
"""How much of the way targets go to the critics in a step."""
_JUDGES = 2
"""Critics of which the least counts in a target."""
_EVERY = 2
"""The policy makes one step for so many of the critics."""
_MOST = 3.0
"""How many spreads better than the policy counts, at most."""


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
            # Two of the same, and no copy: both see in the units of the one network.
            self.critics, self._targets = (
                ChunkCritics(
                    network,
                    description.shapes,
                    size=self.executed * description.shapes.action_size,
                    count=config.critics,
                    hidden=_HIDDEN,
                ).to(device)
                for _ in range(2)
            )
        self._targets.load_state_dict(self.critics.state_dict())
        self._targets.requires_grad_(requires_grad=False)
        self._own = list(self.critics.parameters())
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
                self._improve_policy(moves, rng, measures)
        return {**measures.result(), "replay": float(len(self.own)), "steps": float(steps)}

    def to_tensors(self) -> dict[str, Tensor]:
        """All of it that a checkpoint keeps beside the network and its optimizer."""
        self.own.sync()
        names = [str(index) for index in range(len(self._own))]
        return {
            "rows": torch.tensor(self.own.rows),
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
            expected = self._targets(moves.following, following.flatten(1))
            judges = torch.randperm(len(expected), generator=rng)[:_JUDGES].to(expected.device)
            next_value = expected[judges].min(0).values
            target = moves.reward + moves.discount * next_value
        taken = self._units(moves.actions[:, : self.executed]).clamp(-1, 1).flatten(1)
        found = self.critics(moves.observation, taken)
        loss = ((found - target) ** 2).mean(1).sum()
        self._critic_optimizer.zero_grad()
        loss.backward()
        self._critic_optimizer.step()
        with torch.no_grad():
            pairs = zip(self._targets.parameters(), self.critics.parameters(), strict=True)
            for mine, one in pairs:
                mine.lerp_(one, _FOLLOWS)
        measures.note(critic_loss=loss / len(found), value=found.mean(), target=target.mean())

    def _improve_policy(self, moves: Moves, rng: torch.Generator, measures: Measures) -> None:
        """Fit the policy to what was done, the more the better that was than what it does."""
        with torch.no_grad():
            sampled = self._sample(moves.observation, rng)
            taken = self._units(moves.actions[:, : self.executed]).clamp(-1, 1)
            both = [self.critics(moves.observation, one.flatten(1)) for one in (taken, sampled)]
            better = (both[0] - both[1]).mean(0)
            weight = (better / (better.std() + 1e-6)).clamp(max=_MOST).exp()
            weight = weight / weight.mean()
            noise = torch.zeros(len(weight), 0)
            if isinstance(self.network, HasVelocity):
                noise = torch.randn(len(weight), flow_numbers(self.network) + 1, generator=rng)
        low, high = self._middle - self._reach, self._middle + self._reach
        window = Window(
            observation=moves.observation,
            actions=moves.actions.clamp(low, high),
            mask=moves.mask * weight[:, None],
        )
        loss = cloning_loss(self.network, window, noise.to(weight.device)) / moves.mask.sum()
        found = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        longest = self.config.max_grad_norm
        whole, norm = clipped(found, self._parameters, Ranks(), longest)
        for parameter, one in zip(self._parameters, whole, strict=True):
            parameter.grad = one
        self._optimizer.step()
        measures.note(policy_loss=loss, better=better.mean(), policy_grad_norm=norm)

    def _sample(self, seen: Observations, rng: torch.Generator) -> Tensor:
        """What the policy would do, `[B, K, A]`, within bounds."""
        noise = torch.randn(len(seen[TASK]), self.network.noise_size, generator=rng)
        acted = self.network.act(seen, noise.to(self._reach.device), deterministic=False)
        return self._units(acted.actions[:, : self.executed]).clamp(-1, 1)

    def _units(self, actions: Tensor) -> Tensor:
        """Actions in units of half of their range."""
        return (actions - self._middle) / self._reach
