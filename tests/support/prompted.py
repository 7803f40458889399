"""An env of two goals that only the prompt tells apart, and networks that can read it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from hocket.train.networks.contract import Acted, Evaluated, Observations, Shapes, Tensors

STEPS = 2
WORDS = ("go to the left", "go to the right")


class TwoGoals(gymnasium.Env[Any, Any]):
    """Succeeds where both actions point to the side that the prompt names."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {"state": spaces.Box(-1, 1, (1,), np.float32), "prompt": spaces.Text(40)}
        )
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._goal, self._left, self._off = (seed or 0) % 2, STEPS, False
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        self._off |= bool((action[0] > 0) != (self._goal == 1))
        is_over = not self._left
        return self._see(), 0.0, is_over, False, {"success": is_over and not self._off}

    def _see(self) -> dict[str, Any]:
        return {"state": np.zeros(1, np.float32), "prompt": WORDS[self._goal]}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptConfig:
    reads: bool = True
    """Whether the network reads the prompt."""
    images: bool = False
    history: int = 1
    width: int = 16
    chunk_length: int = STEPS
    std: float = 0.7


class PromptActor(nn.Module):  # type: ignore[misc]
    """Reads prompts by their letters, and looks at what the env shows."""

    Config: ClassVar = PromptConfig
    is_factorised = True

    def __init__(self, shapes: Shapes, config: PromptConfig) -> None:
        super().__init__()
        self._reads = config.reads
        self.history = config.history
        self.chunk_length, self.action_size = config.chunk_length, shapes.action_size
        self.noise_size = config.chunk_length * shapes.action_size
        self.inputs = tuple(
            key
            for key in sorted(shapes.observations)
            if key not in shapes.cameras or (config.images and "wrist" not in key)
        )
        self.cameras = [key for key in self.inputs if key in shapes.cameras]
        states = [shapes.observations[key] for key in self.inputs if key not in self.cameras]
        seen = sum(math.prod(spec.shape) for spec in states) + len(self.cameras)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.letters = nn.EmbeddingBag(256, config.width)
            self.trunk = nn.Linear(config.width + self.history * seen, 2 * config.width)
            self.head = nn.Linear(2 * config.width, self.noise_size)
            self.critic = nn.Linear(2 * config.width, 1)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)
        self.log_std = nn.Parameter(torch.full((1,), math.log(config.std)))

    def act(self, observation: Observations, noise: Tensor, *, deterministic: bool) -> Acted:
        hidden = self._see(observation)
        mean = self._mean(hidden)
        actions = mean if deterministic else mean + self.log_std.exp() * noise.view(mean.shape)
        return Acted(
            actions=actions,
            log_prob=self._log_prob(mean, actions),
            value=self.critic(hidden).squeeze(-1),
        )

    def evaluate(self, observation: Observations, actions: Tensor, extras: Tensors) -> Evaluated:
        del extras
        hidden = self._see(observation)
        log_prob = self._log_prob(self._mean(hidden), actions)
        return Evaluated(
            log_prob=log_prob,
            entropy=self.log_std.expand(log_prob.shape),
            value=self.critic(hidden).squeeze(-1),
        )

    def value(self, observation: Observations) -> Tensor:
        return self.critic(self._see(observation)).squeeze(-1)

    def _see(self, observation: Observations) -> Tensor:
        texts = [text if self._reads else "?" for text in observation.prompts]
        letters = [torch.tensor(list(text.encode()), dtype=torch.int64) for text in texts]
        starts = torch.tensor([0, *(len(one) for one in letters[:-1])]).cumsum(0)
        parts = [self.letters(torch.cat(letters), starts)]
        for key in self.inputs:
            seen = observation[key]
            if key in self.cameras:
                assert seen.dtype == torch.uint8
                seen = seen.to(self.log_std.dtype).mean((-3, -2, -1)) / 255
            parts.append(seen.reshape(len(texts), -1).to(self.log_std.dtype))
        return torch.relu(self.trunk(torch.cat(parts, -1)))

    def _mean(self, hidden: Tensor) -> Tensor:
        return self.head(hidden).view(-1, self.chunk_length, self.action_size)

    def _log_prob(self, mean: Tensor, actions: Tensor) -> Tensor:
        off = (actions - mean) / self.log_std.exp()
        return (-0.5 * (off**2 + math.log(2 * math.pi)) - self.log_std).sum(-1)


class Watched(PromptActor):
    """Keeps what it was shown."""

    shown: ClassVar[list[tuple[str, Observations]]] = []

    def act(self, observation: Observations, noise: Tensor, *, deterministic: bool) -> Acted:
        self.shown.append(("act", observation))
        return super().act(observation, noise, deterministic=deterministic)

    def evaluate(self, observation: Observations, actions: Tensor, extras: Tensors) -> Evaluated:
        self.shown.append(("evaluate", observation))
        return super().evaluate(observation, actions, extras)

    def value(self, observation: Observations) -> Tensor:
        self.shown.append(("value", observation))
        return super().value(observation)
