"""Corrects a policy that nobody can look into: a = base + scale * correction.

The base may be served over the wire and give no log-probabilities; only the correction is trained,
and it starts out near zero. The critic does not see the base's chunk, since at the end of an
episode nobody asks for one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from hocket.train.networks.actor import ChunkActor, by_task, mlp
from hocket.train.networks.contract import BASE, TASK, Shapes, Tensors
from hocket.train.networks.names import ActorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualConfig(ActorConfig):
    """A correction's settings; `std` is in units of the correction, before scaling."""

    scale: float = 0.2
    """How far an action may be moved, roughly."""


class ResidualActor(ChunkActor):
    """Gaussian around the base's chunk plus a learnt correction."""

    Config: ClassVar = ResidualConfig

    def __init__(self, shapes: Shapes, config: ResidualConfig) -> None:
        super().__init__(shapes, config)
        self._scale = config.scale
        size = self.mean.shape[1] + self.encoder.size + self.noise_size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.actors = nn.ModuleList(
                mlp([size, *config.hidden, self.noise_size], last=0.01) for _ in shapes.tasks
            )

    def _means(self, seen: Tensor, observation: Tensors) -> Tensor:
        base = observation[BASE].float()
        both = torch.cat((seen, base.flatten(1)), -1)
        correction = by_task(self.actors, both, observation[TASK])
        return base + self._scale * correction.view(base.shape)

    def _log_std(self) -> Tensor:
        return self.log_std + math.log(self._scale)
