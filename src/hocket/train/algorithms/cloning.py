"""Behaviour cloning: the policy is fitted to recorded chunks, alone (`bc`) or beside another
algorithm. The spread of its actions stays as it is: a demonstration does not say how to explore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hocket.core.contracts.module import Encodes, HasVelocity
from hocket.train.algorithms.ranks import Measures, Ranks
from hocket.train.config import UpdateConfig
from hocket.train.data.windows import Window, Windows
from hocket.train.networks.contract import trainable_parameters

STEPS = 100
"""Optimizer steps of an update that clones alone: weights are published, and clocks looked at,
between two updates. Chosen by hand; no benchmark row."""
_NEAR = 0.1
"""Differences of actions below this count by their square, larger ones by their size, so that a few
odd demonstrations do not outweigh the rest. The recipe of the bundled clone has the same."""


def cloning_loss(network: Any, window: Window, rng: torch.Generator) -> Tensor:
    """Returns how far a network is from recorded chunks: flow matching where it tells its flow,
    else between the chunks that it finds most likely and those recorded."""
    actions, mask = window.actions, window.mask
    if isinstance(network, HasVelocity):
        return _matching_loss(network, window, rng)
    nothing = torch.zeros(len(actions), network.noise_size, device=actions.device)
    acted = network.act(window.observation, nothing, deterministic=True).actions
    if not acted.requires_grad:
        # A network that tells its likeliest chunk without gradients still tells probabilities.
        found = network.evaluate(window.observation, actions, {}).log_prob
        return -(found * mask).sum() / mask.sum()
    off = torch.nn.functional.smooth_l1_loss(acted, actions, beta=_NEAR, reduction="none")
    return (off * mask[..., None]).sum() / (mask.sum() * actions.shape[-1])


def _matching_loss(network: Any, window: Window, rng: torch.Generator) -> Tensor:
    """The velocity should lead from noise straight to the recorded chunk, at any time between."""
    actions = window.actions
    noise = torch.randn(len(actions), actions[0].numel() + 1, generator=rng).to(actions.device)
    start, time = noise[:, :-1].view(actions.shape), torch.sigmoid(noise[:, -1])
    mixed = start + time[:, None, None] * (actions - start)
    seen = window.observation
    features = network.encode(seen) if isinstance(network, Encodes) else seen
    found = network.velocity(features, mixed, time)
    off = (found - (actions - start)) ** 2
    return (off * window.mask[..., None]).sum() / (window.mask.sum() * actions.shape[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Demonstrations beside another algorithm."""

    windows: Windows
    weight: float

    def loss(self, network: Any, count: int, rng: torch.Generator, measures: Measures) -> Tensor:
        """Returns the weighted loss of `count` recorded chunks on this rank."""
        found = cloning_loss(network, self.windows.draw(count, rng), rng)
        measures.add(cloning_loss=found / measures.ranks.size)
        return self.weight * found / measures.ranks.size


@dataclass(eq=False)
class Cloning:
    """Fits a network to recorded chunks; `ranks` learn as one."""

    network: Any
    optimizer: Any
    config: UpdateConfig
    ranks: Ranks
    windows: Windows

    @property
    def seen(self) -> int:
        """Recorded steps that all ranks learn from in an update."""
        return STEPS * self.config.minibatch * self.ranks.size

    def update(self, rng: torch.Generator) -> dict[str, float]:
        """Improves the weights, and returns what was measured."""
        measures = Measures(self.ranks)
        parameters = list(trainable_parameters(self.network).values())
        for _ in range(STEPS):
            self.optimizer.zero_grad(set_to_none=True)
            window = self.windows.draw(self.config.minibatch, rng)
            loss = cloning_loss(self.network, window, rng) / self.ranks.size
            loss.backward()
            found = [one.grad for one in parameters if one.grad is not None]
            self.ranks.sum_all(found)
            norm = torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
            self.optimizer.step()
            measures.add(cloning_loss=loss.detach())
            measures.note(cloning_grad_norm=norm)
        return measures.result()
