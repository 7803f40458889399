"""Makes any torch module of chunks trainable: one that returns chunks gets a Gaussian around them,
one that tells its flow gets noise in each step of it, and both get a critic.

A module is what `core/contracts/module.py` describes, with what it may say of itself. Its own
parameters are trained where they require gradients.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hocket.core.contracts.module import Codes, Decodes, DrawsTimes, Encodes, HasVelocity
from hocket.errors import ConfigError, SpecMismatchError
from hocket.train.networks.actor import features_of, mlp, units_of
from hocket.train.networks.contract import BASE, PROMPT, TASK, Observations, Shapes, history_of
from hocket.train.networks.policies import FlowSampling
from hocket.train.networks.sampling import FlowNetwork, GaussianNetwork

_STEPS = 10
"""Steps of a flow where neither the module nor the user says. Flow policies such as pi0 and SmolVLA
take as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedConfig(FlowSampling):
    """Settings of what is added to a module."""

    std: float = 0.1
    """Spread of actions at the start, in units of half of each one's range; or of the noise that
    each step of a flow adds, in units of the noise that it begins with."""
    critic_features: str = ""
    """The module's submodule whose output the critic sees."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the critic's layers."""
    seed: int = 0
    """Seed of the critic's first weights."""

    def __post_init__(self) -> None:
        if self.std <= 0:
            raise ConfigError(f"std is {self.std}; it must be above 0.")


def wrap(module: nn.Module, shapes: Shapes, config: WrappedConfig) -> WrappedChunk:
    return (FlowChunk if isinstance(module, HasVelocity) else GaussianChunk)(module, shapes, config)


class WrappedChunk(nn.Module, ABC):  # type: ignore[misc]
    """What both kinds share: inputs, the critic and its features."""

    fresh = ("log_std",)
    noise_size: int

    def __init__(self, module: nn.Module, shapes: Shapes, config: WrappedConfig) -> None:
        super().__init__()
        self.module = module.eval()
        self.action_size = shapes.action_size
        self.history = history_of(module)
        self.inputs = _inputs(module, shapes)
        self.replan: int | None = getattr(module, "replan", None)
        self._states = tuple(key for key in self.inputs if key not in shapes.cameras)
        self._features_from = config.critic_features or getattr(module, "critic_features", "")
        self._captured: Tensor | None = None
        if self._features_from:
            self._submodule().register_forward_hook(self._capture)
        elif not self._states:
            raise ConfigError(
                "The env gives images alone, which the critic cannot see. Name a submodule whose "
                "output it shall see: --critic-features."
            )
        with torch.no_grad():
            example = self._example(shapes)
            chunk = self._first_chunk(example)
            seen = self._see(example)
        if chunk.ndim != 3 or chunk.shape[2] != shapes.action_size:
            raise SpecMismatchError(
                f"{type(module).__name__} answers one row with {tuple(chunk.shape)}; the env needs "
                f"chunks [1, T, {shapes.action_size}]."
            )
        self.chunk_length = chunk.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.seen_size = seen.shape[-1]
            self.critic = mlp([self.seen_size, *config.hidden, 1], last=1.0)

    def value(self, observation: Observations) -> Tensor:
        observation = _in_float32(observation)
        if self._features_from:
            self._run(observation)
        value: Tensor = self.critic(self._see(observation)).squeeze(-1)
        return value

    def _ran(self, observation: Observations) -> tuple[Any, Tensor, Tensor]:
        """What the module makes of an observation, the critic's values, and what that sees."""
        observation = _in_float32(observation)
        # The module first: the critic may see what it made of the observation.
        made, seen = self._run(observation), self._see(observation)
        return made, self.critic(seen).squeeze(-1), seen

    @abstractmethod
    def _first_chunk(self, observation: Observations) -> Tensor:
        """A chunk for one row, to know its shape by."""

    @abstractmethod
    def _run(self, observation: Observations) -> Any:
        """Run as much of the module as its features need."""

    def _see(self, observation: Observations) -> Tensor:
        """What the critic sees, in units of its own spread. A new critic's loss must not move what
        the module knows: no gradient flows back from it."""
        if not self._features_from:
            states = [observation[key] for key in self._states]
            return features_of("plain", states)
        if self._captured is None:
            raise ConfigError(f"The module never called its submodule {self._features_from!r}.")
        seen, self._captured = self._captured.detach().float(), None
        return nn.functional.layer_norm(seen, seen.shape[-1:])

    def _capture(self, _module: nn.Module, _given: Any, output: Any) -> None:
        seen = output[0] if isinstance(output, tuple) else output
        if not isinstance(seen, Tensor) or seen.ndim not in (2, 3):
            raise ConfigError(
                f"The submodule {self._features_from!r} does not give features [B, F] or [B, N, F]."
            )
        self._captured = seen.mean(1) if seen.ndim == 3 else seen

    def _submodule(self) -> nn.Module:
        try:
            found: nn.Module = self.module.get_submodule(self._features_from)
        except AttributeError:
            known = [name for name, _ in self.module.named_children()]
            raise ConfigError(
                f"The module has no submodule {self._features_from!r} for its critic. It has: "
                f"{', '.join(known) or 'none'}."
            ) from None
        return found

    def _example(self, shapes: Shapes) -> Observations:
        """One row of zeros, with which sizes are found out."""
        first = next(iter(self.module.parameters()), torch.zeros(()))
        past = (self.history,) if self.history > 1 else ()
        tensors = {
            key: torch.zeros(
                (1, *past, *shapes.observations[key].shape), dtype=_dtype(shapes, key)
            ).to(first.device)
            for key in self.inputs
        }
        index = torch.zeros(1, dtype=torch.int64, device=first.device)
        return _in_float32(Observations({**tensors, TASK: index, PROMPT: index}))


class GaussianChunk(WrappedChunk, GaussianNetwork):
    """Actions are Gaussian around the module's chunk."""

    def __init__(self, module: nn.Module, shapes: Shapes, config: WrappedConfig) -> None:
        if "noise_seeds" in inspect.signature(module.forward).parameters:
            raise ConfigError(
                f"{type(module).__name__} draws noise, so that the probability of what it drew is "
                f"not known. Give it a method `velocity` if its chunks flow from noise."
            )
        if type(module).forward is nn.Module.forward:
            raise ConfigError(
                f"{type(module).__name__} has no method forward(observation), which returns chunks "
                f"[B, T, A], and no velocity, by which they would flow from noise."
            )
        super().__init__(module, shapes, config)
        self.noise_size = self.chunk_length * self.action_size
        spreads = (config.std * units_of(shapes)[1]).log().repeat(self.chunk_length, 1)
        self.log_std = nn.Parameter(spreads)

    def _first_chunk(self, observation: Observations) -> Tensor:
        return self._run(observation)

    def _look(self, observation: Observations) -> tuple[Tensor, Tensor]:
        return self._ran(observation)[:2]

    def _run(self, observation: Observations) -> Tensor:
        chunk: Tensor = self.module(observation)
        return chunk.float() if chunk.dtype != torch.float64 else chunk


class FlowChunk(WrappedChunk, FlowNetwork):
    """Each step of the module's flow adds noise."""

    def __init__(self, module: nn.Module, shapes: Shapes, config: WrappedConfig) -> None:
        steps = int(getattr(module, "denoising_steps", _STEPS))
        self.flow_size = int(getattr(module, "flow_size", shapes.action_size))
        is_decoded = isinstance(module, Decodes)
        self.real_size = int(
            getattr(module, "real_size", self.flow_size if is_decoded else shapes.action_size)
        )
        super().__init__(module, shapes, config)
        self.sample_by(config, config.std, steps, self.seen_size)

    def encode(self, observation: Observations) -> Any:
        return self._run(_in_float32(observation))

    def times(self, drawn: Tensor) -> Tensor:
        if not isinstance(self.module, DrawsTimes):
            return FlowNetwork.times(self, drawn)
        times: Tensor = self.module.times(drawn)
        return times

    def _look(self, observation: Observations) -> tuple[Any, Tensor, Tensor]:
        made, value, seen = self._ran(observation)
        return made, value, self._spread(seen)

    def code(self, actions: Tensor) -> Tensor:
        """Where the flow should end for these actions."""
        if isinstance(self.module, Codes):
            end: Tensor = self.module.code(actions)
            return end
        if isinstance(self.module, Decodes):
            raise ConfigError(
                f"{type(self.module).__name__} flows in {self.flow_size} numbers of its own, and "
                f"does not say by `code` which of them recorded actions are: ppo and grpo improve "
                f"it, and recorded actions cannot be cloned."
            )
        return actions

    def velocity(self, features: Any, x_t: Tensor, t: Tensor) -> Tensor:
        found: Tensor = self.module.velocity(features, x_t, t)
        return found.to(x_t.dtype)

    def _first_chunk(self, observation: Observations) -> Tensor:
        length = getattr(self.module, "chunk_length", None)
        if not length:
            raise ConfigError(
                f"{type(self.module).__name__} must say how long its chunks are: `chunk_length`."
            )
        like = next(iter(self.module.parameters()))
        start = torch.zeros(1, length, self.flow_size, device=like.device)
        return self._decoded(self.velocity(self._run(observation), start, start[:, 0, 0]))

    def _run(self, observation: Observations) -> Any:
        return self.module.encode(observation) if isinstance(self.module, Encodes) else observation

    def _decoded(self, end: Tensor) -> Tensor:
        actions: Tensor = self.module.decode(end) if isinstance(self.module, Decodes) else end
        return actions


def _inputs(module: nn.Module, shapes: Shapes) -> tuple[str, ...]:
    """The keys that a module reads: those that it names, else all, with the cameras it names."""
    given = getattr(module, "inputs", None)
    cameras = getattr(module, "cameras", None)
    known = [key for key in sorted(shapes.observations) if key != BASE]
    wanted = known if given is None else list(given)
    if cameras is not None:
        wanted = [key for key in wanted if key not in shapes.cameras or key in cameras]
        wanted += [key for key in cameras if key not in wanted]
    missing = [key for key in wanted if key not in known]
    if missing:
        raise SpecMismatchError(
            f"{type(module).__name__} reads {missing[0]!r}, which the env does not give. It gives: "
            f"{', '.join(known)}."
        )
    return tuple(wanted)


def _dtype(shapes: Shapes, key: str) -> torch.dtype:
    return torch.from_numpy(np.empty(0, np.dtype(shapes.observations[key].dtype))).dtype


def _in_float32(observation: Observations) -> Observations:
    """The same, with numbers in the precision that modules have."""
    return Observations(
        {
            key: tensor.float() if tensor.dtype == torch.float64 else tensor
            for key, tensor in observation.items()
        },
        observation.texts,
    )
