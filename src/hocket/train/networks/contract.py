"""What can be trained: a torch module of three methods.

    class MyPolicy(torch.nn.Module):
        Config = MyConfig                                  # a dataclass; its fields become flags
        def __init__(self, shapes: Shapes, config: MyConfig) -> None: ...
        def act(self, observation, noise, *, deterministic) -> Acted: ...
        def evaluate(self, observation, actions, extras) -> Evaluated: ...
        def value(self, observation) -> Tensor: ...

`observation` is `Observations`: tensors `[B, ...]` with the env's keys, and the prompt of each row
as text. A module that says `history = H` gets `[B, H, ...]`, oldest first. Images come as uint8
`[height, width, channels]`, and only cameras named in `inputs` are rendered, when a chunk is
decided on. What becomes of a text, and of its tokens, is the module's own affair.

Only parameters that require gradients are trained and saved with optimizer state; they and all
persistent buffers are published to the collecting side. Weights to begin with may lack a critic:
parameters whose names begin with `critic`, or with what a module lists as `fresh`, may be new.

A network acts and learns in evaluation mode, so that dropout and the like are off: a chunk's
probability must be the same when it is sampled and when it is learnt from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from hocket.core.specs import ActionSpec, ArraySpec

Tensors = Mapping[str, Tensor]
TASK = "task"
"""Key of the row's task, beside the env's own."""
PROMPT = "prompt"
"""Key of the row's prompt, beside the env's own."""
_WIDEST = 1e6
"""A range of actions beyond which bounds are those of the number's type."""
BASE = "base"
"""Key of the chunk that another policy proposed, `[T, A]`, in residual training."""


class Observations(dict[str, Tensor]):
    """What the rows of a batch saw, by the env's keys: `[B, ...]`, or `[B, H, ...]` with a history.

    Beside them, `task` is int64 `[B]`, an index into `Shapes.tasks`, and `prompt` is int64 `[B]`,
    an index into `texts`.
    """

    def __init__(self, tensors: Tensors, texts: Sequence[str] = ("",)) -> None:
        super().__init__(tensors)
        self.texts = texts
        """The prompts that rows of this batch may have, each once."""

    @property
    def prompts(self) -> list[str]:
        """The prompt of each row. On a GPU this waits for the device, so ask once for a call."""
        return [self.texts[index] for index in self[PROMPT].tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What a network must know of the env."""

    observations: Mapping[str, ArraySpec]
    """Shape and dtype of one observation, by key; without history."""
    action_size: int
    """A: numbers in an action."""
    tasks: tuple[str, ...]
    """Names of the tasks; a row's `task` is an index into them."""
    cameras: tuple[str, ...] = ()
    """Keys of `observations` that are images, uint8 `[height, width, channels]`."""
    bounds: tuple[tuple[float, float], ...] = ()
    """The lowest and highest value of each number of an action, -1 and 1 where it has none: the
    units of a network from scratch. Empty where one speaks in plain numbers."""

    def to_plain(self) -> dict[str, Any]:
        """The same as JSON's values."""
        return {
            "observations": {
                key: [list(spec.shape), spec.dtype] for key, spec in self.observations.items()
            },
            "action_size": self.action_size,
            "tasks": list(self.tasks),
            "cameras": list(self.cameras),
            "bounds": [list(pair) for pair in self.bounds],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Shapes:
        return cls(
            observations={
                key: ArraySpec(shape=tuple(shape), dtype=dtype)
                for key, (shape, dtype) in plain["observations"].items()
            },
            action_size=int(plain["action_size"]),
            tasks=tuple(plain["tasks"]),
            cameras=tuple(plain["cameras"]),
            bounds=tuple((low, high) for low, high in plain.get("bounds", ())),
        )


def bounds_of(action: ActionSpec) -> tuple[tuple[float, float], ...]:
    """The bounds of an env's actions, -1 and 1 where they mean nothing."""
    is_known = (action.high - action.low > 0) & (action.high - action.low < _WIDEST)
    low, high = np.where(is_known, action.low, -1.0), np.where(is_known, action.high, 1.0)
    return tuple(zip(low.tolist(), high.tolist(), strict=True))


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
    """True if the actions of a chunk are independent given the observation. If so, the executed
    ones have a probability of their own; if not, the whole chunk counts, unless the network says
    `tells_executed`: then the log-probabilities of the executed actions sum to what was done."""

    def act(self, observation: Observations, noise: Tensor, *, deterministic: bool) -> Acted:
        """Make chunks from noise `[B, noise_size]`; as they are evaluated if `deterministic`, which
        for most is the likeliest chunk whatever the noise is."""
        ...

    def evaluate(self, observation: Observations, actions: Tensor, extras: Tensors) -> Evaluated:
        """Evaluate given chunks again, with gradients; `extras` are those of `Acted`."""
        ...

    def value(self, observation: Observations) -> Tensor:
        """Estimate the return to expect from each observation, `[B]`."""
        ...


class Normalises(Protocol):
    """A network that sees features in units of their spread, which the learner measures."""

    normalise: bool
    """True if the learner measures them; otherwise the numbers stay as they were loaded."""
    states: tuple[str, ...]
    """Observation keys that `features` reads."""
    mean: Tensor
    """A buffer `[tasks, F]`: what is subtracted from the features of each task."""
    scale: Tensor
    """A buffer `[tasks, F]`: what they are divided by."""

    def features(self, observation: Observations) -> Tensor:
        """What is measured of each observation, `[B, F]`."""
        ...


def normaliser_of(network: Any) -> Normalises | None:
    """Return the network if its units are measured. By name: from Python 3.12 on `isinstance` does
    not find the buffers of a torch module that a Protocol names."""
    return network if getattr(network, "normalise", False) else None


def history_of(network: object) -> int:
    """H: consecutive control steps whose observations a network reads, the present included."""
    return getattr(network, "history", 1)


def trainable_parameters(network: Any) -> dict[str, Tensor]:
    """The parameters that require gradients, by name and in a fixed order."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def frozen_parameters(network: Any) -> dict[str, Tensor]:
    """The parameters that stay as they are. They are never published, and saved once."""
    return {name: p for name, p in network.named_parameters() if not p.requires_grad}


def published_tensors(network: Any) -> dict[str, Tensor]:
    """What the collecting side must follow, by name and in a fixed order: the parameters that are
    trained, and the buffers that are part of the weights."""
    saved = network.state_dict()
    buffers = {name: b for name, b in network.named_buffers() if name in saved}
    return {**trainable_parameters(network), **buffers}
