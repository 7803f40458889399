"""How chunks are sampled, and how likely they are: Gaussian around a chunk of means, or by the
steps of a flow, each of which adds noise. Chunks that continue what is committed have no
probability, and are sampled in evaluations alone."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hocket.adapters.policies.rtc import Continuation
from hocket.core.contracts.policy import PREFIX
from hocket.train.networks.contract import Acted, Evaluated, Observations, Tensors

_LOG_2PI = math.log(2 * math.pi)
CHAIN = "chain"
"""Key of the extras that hold x_0 ... x_K, `[B, K + 1, T, A]`."""


class GaussianNetwork(nn.Module, ABC):  # type: ignore[misc]
    """Actions are Gaussian around a chunk of means, each with a spread of its own that does not
    depend on the observation, so the executed ones have a probability of their own."""

    is_factorised = True
    log_std: Tensor
    """Logarithms of the spreads, `[T, A]`."""

    def act(self, observation: Observations, noise: Tensor, *, deterministic: bool) -> Acted:
        mean, value = self._look(observation)
        actions = mean
        if not deterministic:
            actions = mean + self._log_std().exp() * noise.view(mean.shape)
        return Acted(actions=actions, log_prob=self._log_prob(actions - mean), value=value)

    def evaluate(self, observation: Observations, actions: Tensor, extras: Tensors) -> Evaluated:
        del extras
        mean, value = self._look(observation)
        log_prob = self._log_prob(actions - mean)
        entropy = (0.5 + 0.5 * _LOG_2PI + self._log_std()).sum(-1).expand(log_prob.shape)
        return Evaluated(log_prob=log_prob, entropy=entropy, value=value)

    @abstractmethod
    def _look(self, observation: Observations) -> tuple[Tensor, Tensor]:
        """Return the means `[B, T, A]`, and what the critic says `[B]`."""

    def _log_std(self) -> Tensor:
        return self.log_std

    def _log_prob(self, off: Tensor) -> Tensor:
        return _log_prob(off, self._log_std())


class FlowNetwork(nn.Module, ABC):  # type: ignore[misc]
    """Chunks flow from noise in K steps, each of which adds Gaussian noise of a learnt spread
    (Flow-Noise). The whole chain x_0 ... x_K is recorded: given it, the log-probability of what was
    done is exact, a sum over the steps. Later steps depend on all of the chunk before, so that
    probabilities of the executed actions cannot be told from the rest."""

    is_factorised = False
    chunk_length: int
    flow_size: int
    """Numbers of each action that flow."""
    log_std: Tensor
    """Logarithms of the spreads, `[K]`."""

    def act(self, observation: Observations, noise: Tensor, *, deterministic: bool) -> Acted:
        """Sample a chain. Without noise it starts from zeros, the middle of the noise."""
        seen, value = self._look(observation)
        shape = (len(noise), len(self.log_std) + 1, self.chunk_length, self.flow_size)
        noise = torch.zeros_like(noise).view(shape) if deterministic else noise.view(shape)
        chain, log_prob = [noise[:, 0]], noise.new_zeros(shape[0], self.chunk_length)
        for step in range(len(self.log_std)):
            mean = self._next_mean(seen, chain[-1], step)
            chain.append(mean + self.log_std[step].exp() * noise[:, step + 1])
            log_prob = log_prob + _log_prob(chain[-1] - mean, self.log_std[step])
        return Acted(
            actions=self._decoded(chain[-1]),
            log_prob=log_prob,
            value=value,
            extras={CHAIN: torch.stack(chain, 1)},
        )

    def evaluate(self, observation: Observations, actions: Tensor, extras: Tensors) -> Evaluated:
        seen, value = self._look(observation)
        chain = extras[CHAIN]
        log_prob = chain.new_zeros(len(chain), self.chunk_length)
        for step in range(len(self.log_std)):
            off = chain[:, step + 1] - self._next_mean(seen, chain[:, step], step)
            log_prob = log_prob + _log_prob(off, self.log_std[step])
        entropy = (0.5 + 0.5 * _LOG_2PI + self.log_std).sum() * self.flow_size
        return Evaluated(log_prob=log_prob, entropy=entropy.expand(actions.shape[:2]), value=value)

    @abstractmethod
    def velocity(self, features: Any, x_t: Tensor, t: Tensor) -> Tensor:
        """Return how fast chunks `x_t` `[B, T, A]` move at times `t` `[B]`."""

    @abstractmethod
    def _look(self, observation: Observations) -> tuple[Any, Tensor]:
        """Return what the flow reads of an observation, and what the critic says `[B]`."""

    def _decoded(self, end: Tensor) -> Tensor:
        """Return the actions that the end of a flow means."""
        return end

    def _next_mean(self, features: Any, chunk: Tensor, step: int) -> Tensor:
        time = torch.full((len(chunk),), step / len(self.log_std), device=chunk.device)
        return chunk + self.velocity(features, chunk, time) / len(self.log_std)


class ContinuingNetwork(nn.Module):  # type: ignore[misc]
    """Acts by the flow of another network, guided by what the observation says is committed."""

    def __init__(self, network: Any, method: str, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = network
        self.chunk_length: int = network.chunk_length
        self.inputs: tuple[str, ...] = network.inputs
        self.noise_size: int = network.noise_size
        self._continuation = Continuation(network, method, settings)

    def act(self, observation: Observations, noise: Tensor, *, deterministic: bool) -> Acted:
        """Sample from the first numbers of `noise`; without noise it starts from zeros, as the
        network itself does."""
        prefix = observation[PREFIX]
        start = noise[:, : prefix[0].numel()].view(prefix.shape)
        if deterministic:
            start = torch.zeros_like(start)
        actions = self._continuation.sample(observation, start)
        none = actions.new_zeros(actions.shape[:2])
        return Acted(actions=actions, log_prob=none, value=none[:, 0], extras={PREFIX: actions})


def _log_prob(off: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-probabilities `[..., T]` of actions `off` `[..., T, A]` their means."""
    return (-0.5 * ((off * (-log_std).exp()) ** 2 + _LOG_2PI) - log_std).sum(-1)
