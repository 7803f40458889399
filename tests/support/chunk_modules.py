"""Torch modules of chunks that know nothing of training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Regressor(nn.Module):  # type: ignore[misc]
    """Returns a chunk for the point env."""

    critic_features = "trunk"

    def __init__(self, chunk_length: int = 4, width: int = 32) -> None:
        super().__init__()
        self.chunk_length = chunk_length
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.trunk = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width))
            self.head = nn.Linear(width, 2 * chunk_length)

    def forward(self, observation: Any) -> Any:
        seen = torch.tanh(self.trunk(observation["observation/state"]))
        return 0.1 * self.head(seen).view(-1, self.chunk_length, 2)


class Drawn(Regressor):
    """The same with first weights as torch draws them, where nobody says a seed."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 2 * self.chunk_length)


class Flow(nn.Module):  # type: ignore[misc]
    """Tells the velocity of its chunks for the point env."""

    critic_features = "reader"
    denoising_steps = 3
    chunk_length = 4

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.reader = nn.Linear(2, width)
            self.field = nn.Sequential(nn.Linear(width + 9, width), nn.Tanh(), nn.Linear(width, 8))

    def encode(self, observation: Any) -> Any:
        return torch.tanh(self.reader(observation["observation/state"]))

    def velocity(self, features: Any, x_t: Any, t: Any) -> Any:
        joined = torch.cat((features, x_t.flatten(1), t[:, None]), -1)
        return self.field(joined).view(x_t.shape) - x_t


class Silent(nn.Module):  # type: ignore[misc]
    """A module that neither answers nor says how it is configured."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
