"""Behaviour cloning: the policy is fitted to recorded chunks, alone (`bc`) or beside another
algorithm. The spread of its actions stays as it is: a demonstration does not say how to explore."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hocket.core.contracts.module import Codes, Encodes, HasVelocity
from hocket.train.algorithms.gradients import added, autocast, clipped
from hocket.train.algorithms.ranks import Measures, Ranks
from hocket.train.config import TrainConfig, UpdateConfig
from hocket.train.data.windows import Window, Windows
from hocket.train.networks.contract import trainable_parameters

_STEPS = 100
"""Most optimizer steps of an update that clones alone: weights are published, and clocks looked at,
between two updates."""
_NEAR = 0.1
"""Differences of actions below this count by their square, larger ones by their size, so that a few
odd demonstrations do not outweigh the rest. The recipe of the bundled clone has the same."""


def steps_of_update(config: TrainConfig, size: int, ranks: int) -> int:
    """Optimizer steps of each update of a run that clones alone, each of `size` chunks on every
    rank: as many in all, in equal parts, as the run's steps ask for."""
    whole = math.ceil(config.steps / (size * ranks))
    parts = math.ceil(whole / _STEPS)
    if config.algo == "dagger":  # rounds of corrections come between updates
        parts = (config.rounds + 1) * math.ceil(parts / (config.rounds + 1))
    return math.ceil(whole / parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrated:
    """Recorded chunks that a network is fitted to; `ranks` learn as one."""

    network: nn.Module
    windows: Windows
    config: UpdateConfig
    ranks: Ranks
    weight: float = 1.0
    """What the loss weighs beside others."""

    def gradients(
        self, count: int, rng: torch.Generator, measures: Measures
    ) -> list[Tensor | None]:
        """Draw `count` chunks on this rank; return the gradients of their weighted loss by trained
        parameter, None where it does not depend on one."""
        parameters = list(trainable_parameters(self.network).values())
        rows = self.windows.draw(count, rng)
        actions = self.ranks.count(self.windows.actions_at(rows))
        whole: list[Tensor | None] = [None] * len(parameters)
        total = torch.zeros((), device=parameters[0].device)
        # Drawn for all, so that it does not depend on how they are split.
        numbers = flow_numbers(self.network) + 1 if isinstance(self.network, HasVelocity) else 0
        noise = torch.randn(count, numbers, generator=rng)
        size = self.config.micro_batch or count
        for begin in range(0, count, size):
            window = self.windows.at(rows[begin : begin + size])
            drawn = noise[begin : begin + size].to(window.actions.device)
            with autocast(parameters[0].device, self.config.precision):
                loss = cloning_loss(self.network, window, drawn) / actions
            found = torch.autograd.grad(self.weight * loss, parameters, allow_unused=True)
            whole = added(whole, found)
            total += loss.detach().float()
        measures.add(cloning_loss=total)
        return whole


def cloning_loss(network: Any, window: Window, noise: Tensor) -> Tensor:
    """How far a network is from recorded chunks, summed over their actions: by flow matching where
    it tells its flow, else between its likeliest chunks and those recorded. `noise` is
    `[B, flow_numbers + 1]`, standard normal, where there is a flow."""
    actions, mask = window.actions, window.mask
    if isinstance(network, HasVelocity):
        return _counted(_matching(network, window, noise), mask)
    nothing = torch.zeros(len(actions), network.noise_size, device=actions.device)
    acted = network.act(window.observation, nothing, deterministic=True).actions
    if not acted.requires_grad:
        # A network that tells its likeliest chunk without gradients still tells probabilities.
        return -(network.evaluate(window.observation, actions, {}).log_prob * mask).sum()
    off = torch.nn.functional.smooth_l1_loss(acted, actions, beta=_NEAR, reduction="none")
    return _counted(off, mask)


def flow_numbers(network: Any) -> int:
    """Numbers that flow in a chunk."""
    size: int = getattr(network, "flow_size", network.action_size)
    return size * int(network.chunk_length)


def _matching(network: Any, window: Window, noise: Tensor) -> Tensor:
    """The velocity should lead from noise straight to the recorded chunk, at any time between."""
    actions, seen = window.actions, window.observation
    if isinstance(network, Codes):
        actions = network.code(actions)
    start, time = noise[:, :-1].view(actions.shape), network.times(noise[:, -1])
    mixed = start + time[:, None, None] * (actions - start)
    features = network.encode(seen) if isinstance(network, Encodes) else seen
    apart: Tensor = (network.velocity(features, mixed, time) - (actions - start)) ** 2
    return apart[..., : network.real_size]


def _counted(off: Tensor, mask: Tensor) -> Tensor:
    """Sum `[B, T, A]` over the actions that count, each the mean of its numbers."""
    return (off.mean(-1) * mask).sum()


@dataclass(eq=False)
class Cloning:
    """Fits a network to recorded chunks alone."""

    optimizer: torch.optim.Optimizer
    recorded: Demonstrated
    steps: int
    """Optimizer steps of an update."""

    def update(self, rng: torch.Generator) -> dict[str, float]:
        recorded, config = self.recorded, self.recorded.config
        measures = Measures(recorded.ranks)
        parameters = list(trainable_parameters(recorded.network).values())
        size = config.minibatch_of(recorded.network.chunk_length)
        for _ in range(self.steps):
            found = recorded.gradients(size, rng, measures)
            found, norm = clipped(found, parameters, recorded.ranks, config.max_grad_norm)
            for parameter, one in zip(parameters, found, strict=True):
                parameter.grad = one
            self.optimizer.step()
            measures.note(cloning_grad_norm=norm)
        return measures.result()
