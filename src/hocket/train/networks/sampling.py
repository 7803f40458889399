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
from hocket.train.networks.policies import FlowSampling

_LOG_2PI = math.log(2 * math.pi)
CHAIN = "chain"
"""Key of the extras that hold x_0 ... x_K, `[B, K + 1, T, A]`, or the two ends of the one step that
added noise."""
NOISY = "noisy"
"""Key of the extras that hold which step that was, `[B]`."""
_WIDEN = 3.0
"""How many times wider or narrower than a step's own spread that for an observation may be."""


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
        """The means `[B, T, A]`, and the critic's values `[B]`."""

    def _log_std(self) -> Tensor:
        return self.log_std

    def _log_prob(self, off: Tensor) -> Tensor:
        return _log_prob(off, self._log_std())


class FlowNetwork(nn.Module, ABC):  # type: ignore[misc]
    """Chunks flow from noise in K steps. With `noise_at` = `all` every step adds Gaussian noise of
    a learnt spread (Flow-Noise), and the whole chain x_0 ... x_K is recorded: given it, the
    log-probability of what was done is a sum over the steps. With `one` a single step does, drawn
    for each row; what it began and ended with is recorded, and it alone is learnt from.

    What the last step did to actions that were never executed, and to numbers that pad, moved
    nothing: it is left out, exactly. In the steps before, all of a chunk bears upon what is
    executed; `inner` says what of them counts.
    """

    is_factorised = False
    tells_executed = True
    chunk_length: int
    noise_size: int
    flow_size: int
    """Numbers of each action that flow."""
    real_size: int
    """The first of them, which actions are made of; the others pad."""
    log_std: Tensor
    """Logarithms of the spreads, `[K]`."""

    def sample_by(self, how: FlowSampling, std: float, steps: int, seen_size: int) -> None:
        """Say how chains of so many steps are sampled, once sizes are known. A spread for each
        observation is made of the `seen_size` numbers that the critic sees."""
        self._is_one, self._counts_all = how.noise_at == "one", how.inner == "all"
        self.log_std = nn.Parameter(torch.full((steps,), math.log(std)))
        chunk = self.chunk_length * self.flow_size
        self.noise_size = 2 * chunk + 1 if self._is_one else (steps + 1) * chunk
        self.spreads = nn.Linear(seen_size, steps) if how.spread == "observation" else None
        if self.spreads is not None:
            nn.init.zeros_(self.spreads.weight)
            nn.init.zeros_(self.spreads.bias)

    def times(self, drawn: Tensor) -> Tensor:
        """The times `[B]` that cloning learns at, of standard normal numbers `[B]`."""
        return torch.sigmoid(drawn)

    def act(self, observation: Observations, noise: Tensor, *, deterministic: bool) -> Acted:
        """Sample chains, which start from the first numbers of `noise`. If `deterministic` the
        steps add none, as where a flow is evaluated."""
        seen, value, log_std = self._look(observation)
        rows, steps = log_std.shape
        parts = noise[:, : self.noise_size - self._is_one]
        parts = parts.view(rows, -1, self.chunk_length, self.flow_size)
        chosen = (torch.special.ndtr(noise[:, -1]) * steps).long().clamp(max=steps - 1)
        chain, log_prob = [parts[:, 0]], noise.new_zeros(rows, self.chunk_length)
        for step in range(steps):
            at = torch.full_like(chosen, step)
            mean = self._next_mean(seen, chain[-1], at)
            if deterministic:
                chain.append(mean)
                continue
            added = parts[:, 1 if self._is_one else step + 1]
            after = mean + log_std[:, step, None, None].exp() * added
            told = self._step_log_prob(after - mean, at, log_std)
            if self._is_one:
                is_here = chosen == step
                after = torch.where(is_here[:, None, None], after, mean)
                told = torch.where(is_here[:, None], told, 0.0)
            chain.append(after)
            log_prob = log_prob + told
        extras: dict[str, Tensor] = {}
        if not deterministic and self._is_one:
            row = torch.arange(rows, device=noise.device)
            ends = [torch.stack(chain[:-1], 1)[row, chosen], torch.stack(chain[1:], 1)[row, chosen]]
            extras = {CHAIN: torch.stack(ends, 1), NOISY: chosen}
        elif not deterministic:
            extras = {CHAIN: torch.stack(chain, 1)}
        actions = self._decoded(chain[-1])
        return Acted(actions=actions, log_prob=log_prob, value=value, extras=extras)

    def evaluate(self, observation: Observations, actions: Tensor, extras: Tensors) -> Evaluated:
        seen, value, log_std = self._look(observation)
        chain = extras[CHAIN]
        steps = range(log_std.shape[1])
        noisy = [torch.full((len(chain),), step, device=chain.device) for step in steps]
        if self._is_one:
            noisy = [extras[NOISY]]
        log_prob = chain.new_zeros(len(chain), self.chunk_length)
        entropy = chain.new_zeros(len(chain))
        for index, at in enumerate(noisy):
            off = chain[:, index + 1] - self._next_mean(seen, chain[:, index], at)
            log_prob = log_prob + self._step_log_prob(off, at, log_std)
            entropy = entropy + 0.5 + 0.5 * _LOG_2PI + log_std.gather(1, at[:, None])[:, 0]
        entropy = (entropy * self.real_size)[:, None].expand(actions.shape[:2])
        return Evaluated(log_prob=log_prob, entropy=entropy, value=value)

    @abstractmethod
    def velocity(self, features: Any, x_t: Tensor, t: Tensor) -> Tensor:
        """How fast chunks `x_t` `[B, T, A]` move at times `t` `[B]`."""

    @abstractmethod
    def _look(self, observation: Observations) -> tuple[Any, Tensor, Tensor]:
        """What the flow reads of an observation, the critic's values `[B]`, and the logarithms of
        the spreads `[B, K]`."""

    def _spread(self, seen: Tensor) -> Tensor:
        """Logarithms of the spreads `[B, K]`, of what the critic sees `[B, F]`."""
        if self.spreads is None:
            return self.log_std.expand(len(seen), -1)
        return self.log_std + math.log(_WIDEN) * torch.tanh(self.spreads(seen))

    def _decoded(self, end: Tensor) -> Tensor:
        """The actions that the end of a flow means."""
        return end

    def _next_mean(self, features: Any, chunk: Tensor, at: Tensor) -> Tensor:
        """Where the steps `at` `[B]` lead without noise."""
        steps = len(self.log_std)
        return chunk + self.velocity(features, chunk, at.to(chunk.dtype) / steps) / steps

    def _step_log_prob(self, off: Tensor, at: Tensor, log_std: Tensor) -> Tensor:
        """What counts of the steps `at` `[B]`, which ended `off` `[B, T, flow_size]` from their
        means: `[B, T]`. What a whole chunk did is told by its first action, which is always
        executed."""
        spread = log_std.gather(1, at[:, None])[:, :, None].expand(off.shape)
        counted = _log_prob(off[..., : self.real_size], spread[..., : self.real_size])
        if not self._counts_all:
            return counted
        whole = torch.zeros_like(counted)
        whole[:, 0] = _log_prob(off, spread).sum(-1)
        return torch.where((at == len(self.log_std) - 1)[:, None], counted, whole)


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
        """Sample from the first numbers of `noise`, as the network itself does."""
        del deterministic
        prefix = observation[PREFIX]
        start = noise[:, : prefix[0].numel()].view(prefix.shape)
        actions = self._continuation.sample(observation, start)
        none = actions.new_zeros(actions.shape[:2])
        return Acted(actions=actions, log_prob=none, value=none[:, 0], extras={PREFIX: actions})


def _log_prob(off: Tensor, log_std: Tensor) -> Tensor:
    """Log-probabilities `[..., T]` of actions that are `off` `[..., T, A]` from their means."""
    return (-0.5 * ((off * (-log_std).exp()) ** 2 + _LOG_2PI) - log_std).sum(-1)
