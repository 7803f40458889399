"""Behaviour cloning: the policy is fitted to recorded chunks, alone (`bc`) or beside another
algorithm. The spread of its actions stays as it is: a demonstration does not say how to explore."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hocket.core.contracts.module import Encodes, HasVelocity
from hocket.train.algorithms.ranks import Measures, Ranks
from hocket.train.config import Precision, UpdateConfig
from hocket.train.data.windows import Window, Windows
from hocket.train.networks.contract import trainable_parameters

STEPS = 100
"""Optimizer steps of an update that clones alone: weights are published, and clocks looked at,
between two updates. Chosen by hand; no benchmark row."""
_NEAR = 0.1
"""Differences of actions below this count by their square, larger ones by their size, so that a few
odd demonstrations do not outweigh the rest. The recipe of the bundled clone has the same."""


def cloning_losses(
    network: Any, windows: Windows, count: int, rng: torch.Generator, config: UpdateConfig
) -> Iterator[Tensor]:
    """Draws recorded chunks, and yields losses of a micro-batch of them at a time, which add up to
    the mean over all: how far the network is from what was recorded."""
    rows = windows.draw(count, rng)
    # Drawn for all, so that it does not depend on how they are split.
    numbers = windows.chunk_size + 1 if isinstance(network, HasVelocity) else 0
    noise = torch.randn(count, numbers, generator=rng)
    recorded = windows.recorded(rows)
    size = config.micro_batch or count
    for begin in range(0, count, size):
        window = windows.at(rows[begin : begin + size])
        drawn = noise[begin : begin + size].to(window.actions.device)
        with autocast(window.actions.device, config.precision):
            loss = cloning_loss(network, window, drawn)
        loss = loss if config.precision == "fp32" else loss.float()
        yield loss * (window.mask.sum() / recorded)


def autocast(device: torch.device, precision: Precision) -> Any:
    """Returns a context in which a network computes with this precision; weights stay as they
    are."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def cloning_loss(network: Any, window: Window, noise: Tensor) -> Tensor:
    """Returns how far a network is from recorded chunks: flow matching where it tells its flow,
    else between the chunks that it finds most likely and those recorded. `noise` is
    `[B, T * A + 1]`, standard normal, where it is needed."""
    actions, mask = window.actions, window.mask
    if isinstance(network, HasVelocity):
        return _matching_loss(network, window, noise)
    nothing = torch.zeros(len(actions), network.noise_size, device=actions.device)
    acted = network.act(window.observation, nothing, deterministic=True).actions
    if not acted.requires_grad:
        # A network that tells its likeliest chunk without gradients still tells probabilities.
        found = network.evaluate(window.observation, actions, {}).log_prob
        return -(found * mask).sum() / mask.sum()
    off = torch.nn.functional.smooth_l1_loss(acted, actions, beta=_NEAR, reduction="none")
    return (off * mask[..., None]).sum() / (mask.sum() * actions.shape[-1])


def _matching_loss(network: Any, window: Window, noise: Tensor) -> Tensor:
    """The velocity should lead from noise straight to the recorded chunk, at any time between."""
    actions = window.actions
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
            total = torch.zeros(())
            losses = cloning_losses(
                self.network, self.windows, self.config.minibatch, rng, self.config
            )
            for loss in losses:
                (loss / self.ranks.size).backward()
                total = total + loss.detach().to(total.device) / self.ranks.size
            found = [one.grad for one in parameters if one.grad is not None]
            self.ranks.sum_all(found)
            norm = torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
            self.optimizer.step()
            measures.add(cloning_loss=total)
            measures.note(cloning_grad_norm=norm)
        return measures.result()
