"""The network of `flow`: flow matching with noisy denoising steps, which so have probabilities.

Sampling integrates a learnt velocity from noise to a chunk in K steps and adds Gaussian noise of a
learnt spread to each (Flow-Noise). The whole chain x_0 ... x_K is recorded: given it, the
log-probability of what was done is exact, a sum over K Gaussian steps. Later steps of a chain
depend on all of the chunk before, so probabilities of the executed actions cannot be told from the
rest: `is_factorised` is False.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from hocket.errors import ConfigError
from hocket.train.networks.actor import by_task, feature_size, features_of, mlp
from hocket.train.networks.contract import TASK, Acted, Evaluated, Shapes, Tensors
from hocket.train.networks.policies import FlowConfig

_LOG_2PI = math.log(2 * math.pi)
CHAIN = "chain"
"""Key of the extras that hold x_0 ... x_K, `[B, K + 1, T, A]`."""


class FlowActor(nn.Module):  # type: ignore[misc]
    """A velocity field and a critic for each task, from the state."""

    Config: ClassVar = FlowConfig
    is_factorised = False

    def __init__(self, shapes: Shapes, config: FlowConfig) -> None:
        super().__init__()
        self.chunk_length = config.chunk_length
        self.action_size = shapes.action_size
        self.inputs = tuple(k for k in sorted(shapes.observations) if k not in shapes.cameras)
        if not self.inputs:
            raise ConfigError("Policy 'flow' sees states only, and the env has none.")
        self._steps = config.denoising_steps
        self._features = config.features
        chunk = config.chunk_length * shapes.action_size
        self.noise_size = (config.denoising_steps + 1) * chunk
        size = feature_size(config.features, [shapes.observations[key] for key in self.inputs])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.fields = nn.ModuleList(
                mlp([size + chunk + 1, *config.hidden, chunk], last=1.0) for _ in shapes.tasks
            )
            self.critics = nn.ModuleList(
                mlp([size, *config.hidden, 1], last=1.0) for _ in shapes.tasks
            )
        self.log_std = nn.Parameter(torch.full((config.denoising_steps,), math.log(config.std)))
        self.register_buffer("mean", torch.zeros(len(shapes.tasks), size))
        self.register_buffer("scale", torch.ones(len(shapes.tasks), size))

    def act(self, observation: Tensors, noise: Tensor, *, deterministic: bool) -> Acted:
        """Samples a chain. Without noise it starts from zeros, the middle of the noise."""
        seen, task = self._see(observation), observation[TASK]
        shape = (len(noise), self._steps + 1, self.chunk_length, self.action_size)
        noise = torch.zeros_like(noise).view(shape) if deterministic else noise.view(shape)
        chain = [noise[:, 0]]
        for step in range(self._steps):
            mean = self._next_mean(seen, task, chain[-1], step)
            chain.append(mean + self.log_std[step].exp() * noise[:, step + 1])
        whole = torch.stack(chain, 1)
        return Acted(
            actions=chain[-1],
            log_prob=self._log_prob(seen, task, whole),
            value=self._value(seen, task),
            extras={CHAIN: whole},
        )

    def evaluate(self, observation: Tensors, actions: Tensor, extras: Tensors) -> Evaluated:
        seen, task = self._see(observation), observation[TASK]
        log_prob = self._log_prob(seen, task, extras[CHAIN])
        entropy = (0.5 + 0.5 * _LOG_2PI + self.log_std).sum() * self.action_size
        return Evaluated(
            log_prob=log_prob,
            entropy=entropy.expand(actions.shape[:2]),
            value=self._value(seen, task),
        )

    def value(self, observation: Tensors) -> Tensor:
        return self._value(self._see(observation), observation[TASK])

    def matching_loss(self, observation: Tensors, actions: Tensor, noise: Tensor) -> Tensor:
        """Returns the loss of flow matching on demonstrations: the velocity should lead from noise
        straight to the action. `noise` is `[B, T * A + 1]`; its last column, squashed, is the
        time."""
        seen, task = self._see(observation), observation[TASK]
        start = noise[:, :-1].view(actions.shape)
        time = torch.sigmoid(noise[:, -1])
        mixed = start + time[:, None, None] * (actions - start)
        return ((self._velocity(seen, task, mixed, time) - (actions - start)) ** 2).mean()

    def _see(self, observation: Tensors) -> Tensor:
        state = features_of(self._features, [observation[key] for key in self.inputs])
        task = observation[TASK]
        return (state - self.mean[task]) / self.scale[task]

    def _value(self, seen: Tensor, task: Tensor) -> Tensor:
        return by_task(self.critics, seen, task).squeeze(-1)

    def _velocity(self, seen: Tensor, task: Tensor, chunk: Tensor, time: Tensor) -> Tensor:
        joined = torch.cat((seen, chunk.flatten(1), time[:, None]), -1)
        return by_task(self.fields, joined, task).view(chunk.shape)

    def _next_mean(self, seen: Tensor, task: Tensor, chunk: Tensor, step: int) -> Tensor:
        time = torch.full((len(chunk),), step / self._steps, device=chunk.device)
        return chunk + self._velocity(seen, task, chunk, time) / self._steps

    def _log_prob(self, seen: Tensor, task: Tensor, chain: Tensor) -> Tensor:
        total = chain.new_zeros(chain.shape[0], self.chunk_length)
        for step in range(self._steps):
            off = chain[:, step + 1] - self._next_mean(seen, task, chain[:, step], step)
            scaled = off * (-self.log_std[step]).exp()
            total = total + (-0.5 * (scaled**2 + _LOG_2PI) - self.log_std[step]).sum(-1)
        return total
