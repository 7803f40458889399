"""What a torch module may offer beside its chunks, for whoever looks into how it makes them:
real-time chunking guides each step of a flow, and training tells how likely each step was.

A module is called as `module(observation)` with a dict of tensors `[B, ...]`, and returns chunks
`[B, T, A]`. Where it offers `encode` and `velocity` too, its chunks are the end of a flow:

    features = module.encode(observation)
    x = noise                                        # [B, T, A], standard normal
    for step in range(steps):
        t = torch.full((B,), step / steps)
        x = x + module.velocity(features, x, t) / steps

A module may say of itself, as attributes: `chunk_length` (T), `inputs` and `cameras` (the keys that
it reads), `history` (control steps that it reads, H: tensors are then `[B, H, ...]`), `replan`
(actions of a chunk that are executed), `denoising_steps`, `real_size` (of the numbers that flow in
an action, how many are no padding), and `critic_features`: the name of a submodule whose output
`[B, F]` or `[B, N, F]` a critic can learn from when the module is trained.

Time runs from 0, where all is noise, to 1, where the chunk is: a model that counts the other way
round turns it around in its `velocity`. Importing this needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Encodes(Protocol):
    """A module that reads an observation once, for whatever is asked of it after."""

    def encode(self, observation: Mapping[str, Any]) -> Any:
        """What `velocity` needs of an observation: a tensor, or any value of the module's own."""


@runtime_checkable
class Decodes(Protocol):
    """A module whose flow is not in the env's actions, but in `flow_size` numbers of its own."""

    flow_size: int

    def decode(self, end: Any) -> Any:
        """The actions `[B, T, A]` that the end `[B, T, flow_size]` of a flow means."""


@runtime_checkable
class Codes(Protocol):
    """A module that knows the end of a flow which means recorded actions: without it, one that
    decodes cannot be cloned."""

    def code(self, actions: Any) -> Any:
        """The end `[B, T, flow_size]` of a flow that `decode` makes these actions of."""


@runtime_checkable
class DrawsTimes(Protocol):
    """A module whose own training has a rule for the times that it learns at."""

    def times(self, drawn: Any) -> Any:
        """Times `[B]` from 0 to 1, distributed as that rule says, of standard normal numbers."""


@runtime_checkable
class HasVelocity(Protocol):
    """A module whose chunks flow from noise."""

    def velocity(self, features: Any, x_t: Any, t: Any) -> Any:
        """How fast the chunks `x_t` `[B, T, A]` move at times `t` `[B]`: `[B, T, A]`, with
        gradients where they are asked for; A is `flow_size` where the module decodes. `features`
        are what `encode` returned, or the observation itself where the module has no `encode`."""
