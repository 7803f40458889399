"""What can be trained: a torch module of three methods.

    class MyPolicy(torch.nn.Module):
        Config = MyConfig                                  # a dataclass; its fields become flags
        def __init__(self, shapes: Shapes, config: MyConfig) -> None: ...
        def act(self, observation, noise, *, deterministic) -> Acted: ...
        def evaluate(self, observation, actions, extras) -> Evaluated: ...
        def value(self, observation) -> Tensor: ...

Observations are dicts of tensors `[B, ...]` with the env's keys, and `task`, int64 `[B]`, the place
of each row's task in `Shapes.tasks`. Only parameters that require gradients are trained, published
to the collecting side, and saved with optimizer state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from hocket.core.data import ArraySpec

Tensors = Mapping[str, Tensor]
TASK = "task"
"""Key of the row's task, beside the env's own."""
BASE = "base"
"""Key of the chunk that another policy proposed, `[T, A]`, in residual training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What the env turned out to be, as far as a network must know."""

    observations: Mapping[str, ArraySpec]
    action_size: int
    tasks: tuple[str, ...]
    cameras: tuple[str, ...] = ()
    """Keys of `observations` that are images, uint8 `[height, width, channels]`."""

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON knows."""
        observations = {
            key: [list(spec.shape), spec.dtype] for key, spec in self.observations.items()
        }
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            **plain,
            "observations": observations,
            "tasks": list(self.tasks),
            "cameras": list(self.cameras),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Shapes:
        """What `to_plain` gave."""
        return cls(
            observations={
                key: ArraySpec(shape=tuple(shape), dtype=dtype)
                for key, (shape, dtype) in plain["observations"].items()
            },
            action_size=int(plain["action_size"]),
            tasks=tuple(plain["tasks"]),
            cameras=tuple(plain["cameras"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Acted:
    """Chunks for a batch."""

    actions: Tensor
    """`[B, T, A]`, as sampled: clipping to the env's bounds is the caller's."""
    log_prob: Tensor
    """Of each action, `[B, T]`."""
    value: Tensor
    """`[B]`."""
    extras: Tensors = field(default_factory=dict)
    """What `evaluate` needs beside the actions, such as a denoising chain: `[B, ...]`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluated:
    """Chunks seen again under the present weights."""

    log_prob: Tensor
    """Of each action, `[B, T]`."""
    entropy: Tensor
    """Of each action's distribution, `[B, T]`."""
    value: Tensor
    """`[B]`."""


class Trainable(Protocol):
    """A torch module that `hocket train` can improve."""

    chunk_length: int
    inputs: tuple[str, ...]
    """Observation keys that it reads; of these, images are rendered."""
    noise_size: int
    """Standard normal numbers that `act` consumes for one row."""
    is_factorised: bool
    """Actions of a chunk are independent given the observation, so that the probability of the
    executed ones is that of the whole without the rest. Where False, all of the chunk counts."""

    def act(self, observation: Tensors, noise: Tensor, *, deterministic: bool) -> Acted:
        """Chunks from noise `[B, noise_size]`; the most likely ones where deterministic."""
        ...

    def evaluate(self, observation: Tensors, actions: Tensor, extras: Tensors) -> Evaluated:
        """Log-probabilities of given chunks, with gradients."""
        ...

    def value(self, observation: Tensors) -> Tensor:
        """Expected return from here, `[B]`."""
        ...


def trainable_parameters(network: Any) -> dict[str, Tensor]:
    """By name, in a fixed order."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}
