"""What can be trained: a torch module of three methods.

    class MyPolicy(torch.nn.Module):
        Config = MyConfig                                  # a dataclass; its fields become flags
        def __init__(self, shapes: Shapes, config: MyConfig) -> None: ...
        def act(self, observation, noise, *, deterministic) -> Acted: ...
        def evaluate(self, observation, actions, extras) -> Evaluated: ...
        def value(self, observation) -> Tensor: ...

Observations are dicts of tensors `[B, ...]` with the env's keys, and `task`, int64 `[B]`, the index
of each row's task in `Shapes.tasks`. Only parameters that require gradients are trained and saved
with optimizer state; they and all persistent buffers are published to the collecting side.

A network acts and learns in evaluation mode, so that dropout and the like are off: a chunk's
probability must be the same when it is sampled and when it is learnt from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from hocket.core.data import ArraySpec

Tensors = Mapping[str, Tensor]
TASK = "task"
"""Key of the row's task, beside the env's own."""
BASE = "base"
"""Key of the chunk that another policy proposed, `[T, A]`, in residual training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What a network must know of the env."""

    observations: Mapping[str, ArraySpec]
    """Shape and dtype of one observation, by key."""
    action_size: int
    """A: numbers in an action."""
    tasks: tuple[str, ...]
    """Names of the tasks; a row's `task` is an index into them."""
    cameras: tuple[str, ...] = ()
    """Keys of `observations` that are images, uint8 `[height, width, channels]`."""

    def to_plain(self) -> dict[str, Any]:
        """Returns the same as values that JSON knows."""
        return {
            "observations": {
                key: [list(spec.shape), spec.dtype] for key, spec in self.observations.items()
            },
            "action_size": self.action_size,
            "tasks": list(self.tasks),
            "cameras": list(self.cameras),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Shapes:
        """Reads what `to_plain` returned."""
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
    """The actions as sampled, `[B, T, A]`; the caller clips them to the env's bounds."""
    log_prob: Tensor
    """The log-probability of each action, `[B, T]`."""
    value: Tensor
    """The expected return from each observation, `[B]`, in rewards as the learner scales them."""
    extras: Tensors = field(default_factory=dict)
    """What `evaluate` needs beside the actions, such as a denoising chain: `[B, ...]`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluated:
    """What the present weights say of given chunks, with gradients."""

    log_prob: Tensor
    """The log-probability of each action, `[B, T]`."""
    entropy: Tensor
    """The entropy of each action's distribution, `[B, T]`."""
    value: Tensor
    """The expected return from each observation, `[B]`."""


class Trainable(Protocol):
    """A torch module that `hocket train` can improve."""

    chunk_length: int
    """T: actions in a chunk."""
    inputs: tuple[str, ...]
    """Observation keys that the network reads. Only the cameras among them are rendered."""
    noise_size: int
    """How many standard normal numbers `act` consumes for one row."""
    is_factorised: bool
    """Whether the actions of a chunk are independent given the observation. If so, the executed
    ones have a probability of their own; if not, the whole chunk counts."""

    def act(self, observation: Tensors, noise: Tensor, *, deterministic: bool) -> Acted:
        """Makes chunks from noise `[B, noise_size]`; the most likely ones if `deterministic`."""
        ...

    def evaluate(self, observation: Tensors, actions: Tensor, extras: Tensors) -> Evaluated:
        """Evaluates given chunks again, with gradients; `extras` are those of `Acted`."""
        ...

    def value(self, observation: Tensors) -> Tensor:
        """Estimates the return to expect from each observation, `[B]`."""
        ...


@runtime_checkable
class Normalises(Protocol):
    """A network that sees features in units of their spread, which the learner measures."""

    normalise: bool
    """Whether the learner measures them; otherwise the numbers stay as they were loaded."""
    states: tuple[str, ...]
    """Observation keys that `features` reads."""
    mean: Tensor
    """A buffer `[tasks, F]`: what is subtracted from the features of each task."""
    scale: Tensor
    """A buffer `[tasks, F]`: what they are divided by."""

    def features(self, observation: Tensors) -> Tensor:
        """Returns what is measured of each observation, `[B, F]`."""
        ...


def trainable_parameters(network: Any) -> dict[str, Tensor]:
    """Returns the parameters that require gradients, by name and in a fixed order."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def published_tensors(network: Any) -> dict[str, Tensor]:
    """Returns what the collecting side must follow, by name and in a fixed order: the parameters
    that are trained, and the buffers that are part of the weights."""
    saved = network.state_dict()
    buffers = {name: b for name, b in network.named_buffers() if name in saved}
    return {**trainable_parameters(network), **buffers}
