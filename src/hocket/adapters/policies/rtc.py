"""Chunks that continue what is committed: real-time chunking for any module that tells its flow.

While a flow takes noise to a chunk x in n steps, each step's guess of the end is pulled towards
what is left of the last chunk Y, by weights W that are 1 where actions are committed and fall to 0
where nothing was said (arXiv 2506.07339). With t from 0 (noise) to 1 (chunk):

    x1 = x + (1 - t) v(x, t)                                   the guess
    e  = W (Y - x1)
    g  = min(beta, (t^2 + (1 - t)^2) / (t (1 - t)))            beta at t = 0
    x += (v + g J' e) / n                                      J = d x1 / d x

`vjp` takes J by a backward pass through the module, `identity` takes it for the identity, which
needs none. `prefix` is for modules that were trained to begin with a prefix: committed actions are
set to what they are before and after each step, with the time of finished actions.

Arrays are as `Continues` has them; importing this needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hocket.core.contracts.module import Encodes, HasVelocity
from hocket.core.contracts.policy import DELAY, PREFIX, PREFIX_LENGTH
from hocket.core.data import Array, Row
from hocket.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

KEYS = (PREFIX, PREFIX_LENGTH, DELAY)
_STEPS = 10
"""Steps of a flow whose module does not say how many it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RtcConfig:
    """How chunks are guided to continue what is committed."""

    guidance: Literal["identity", "vjp"] = "identity"
    """identity: the pull is applied as it is. vjp: through a backward pass of the network."""
    schedule: Literal["exp", "linear", "ones", "zeros"] = "exp"
    """How the pull falls from the committed actions to the end of the last chunk; zeros pulls the
    committed ones alone."""
    weight: float = 5.0
    """Upper bound of the pull's factor (beta)."""
    steps: int = 0
    """Steps from noise to a chunk; 0 takes the module's own `denoising_steps`."""

    def __post_init__(self) -> None:
        if self.weight <= 0 or self.steps < 0:
            raise ConfigError("--rtc.weight is above 0, and --rtc.steps 0 or more.")


class Continuation:
    """Samples chunks of one module's flow so that they continue the committed actions."""

    def __init__(self, module: Any, method: str, settings: Mapping[str, Any]) -> None:
        self.config = RtcConfig(**settings)
        self.method, self.settings = method, settings
        self._module = module
        own = int(getattr(module, "denoising_steps", _STEPS))
        self._steps = self.config.steps or own

    def sample(self, observation: Mapping[str, Any], noise: Tensor) -> Tensor:
        """Chunks `[B, T, A]` from noise `[B, T, A]`; the observation has the arrays of `KEYS`."""
        module = self._module
        prefix = observation[PREFIX].to(noise.device, noise.dtype)
        length, delay = observation[PREFIX_LENGTH], observation[DELAY]
        seen = {key: value for key, value in observation.items() if key not in KEYS}
        seen = _like(observation, seen)
        features = module.encode(seen) if isinstance(module, Encodes) else seen

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            found: Tensor = module.velocity(features, x, t)
            return found

        if self.method == "prefix":
            return prefixed_flow(velocity, noise, self._steps, prefix, length, delay)
        weights = pull(length, delay, noise.shape[1], self.config.schedule).to(noise.dtype)
        return guided_flow(velocity, noise, self._steps, prefix, weights, self.config)


def continuations_of(module: object) -> tuple[str, ...]:
    """The methods by which a module's chunks can continue others. A module that was trained to
    begin with a prefix says `takes_prefix = True`: its `velocity` then takes a time for each
    action, `[B, T]`."""
    if not isinstance(module, HasVelocity):
        return ()
    return ("rtc", "prefix") if getattr(module, "takes_prefix", False) else ("rtc",)


def pull(length: Tensor, delay: Tensor, size: int, schedule: str) -> Tensor:
    """The weights W `[B, size]` of prefixes with `length` `[B]` actions, of which `delay` `[B]` are
    committed."""
    import torch

    index = torch.arange(size, device=length.device)[None].double()
    end = length.double()[:, None]
    start = torch.minimum(delay.double()[:, None], end)
    if schedule == "zeros":
        return (index < start).double()
    if schedule == "ones":
        return (index < end).double()
    falling = (end - index) / (end - start + 1)
    if schedule == "exp":
        falling = falling * torch.expm1(falling) / float(np.expm1(1.0))
    weights = torch.where(index < start, torch.ones_like(falling), falling)
    return torch.where(index < end, weights, torch.zeros_like(weights))


def gain(t: float, most: float) -> float:
    """The factor of the pull at time t."""
    return most if t == 0 else min(most, (t * t + (1 - t) ** 2) / (t * (1 - t)))


def guided_flow(
    velocity: Callable[[Tensor, Tensor], Tensor],
    noise: Tensor,
    steps: int,
    prefix: Tensor,
    weights: Tensor,
    config: RtcConfig,
) -> Tensor:
    """Chunks from noise `[B, T, A]`, pulled towards `prefix` by `weights` `[B, T]`."""
    import torch

    x, weights = noise, weights[:, :, None]
    for step in range(steps):
        t = step / steps
        time = torch.full((len(x),), t, device=x.device, dtype=x.dtype)
        if config.guidance == "vjp":
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                v = velocity(x, time)
                guess = x + (1 - t) * v
                error = (weights * (prefix - guess)).detach()
                (error,) = torch.autograd.grad(guess, x, error)
            x, v = x.detach(), v.detach()
        else:
            v = velocity(x, time)
            error = weights * (prefix - (x + (1 - t) * v))
        x = x + (v + gain(t, config.weight) * error) / steps
    return x


def prefixed_flow(
    velocity: Callable[[Tensor, Tensor], Tensor],
    noise: Tensor,
    steps: int,
    prefix: Tensor,
    length: Tensor,
    delay: Tensor,
) -> Tensor:
    """Chunks from noise that begin with the committed actions, which count as finished."""
    import torch

    index = torch.arange(noise.shape[1], device=noise.device)[None]
    is_given = (index < torch.minimum(length, delay)[:, None])[:, :, None]
    x = torch.where(is_given, prefix, noise)
    for step in range(steps):
        time = torch.full(x.shape[:2], step / steps, device=x.device, dtype=x.dtype)
        time = torch.where(is_given[:, :, 0], torch.ones_like(time), time)
        x = torch.where(is_given, prefix, x + velocity(x, time) / steps)
    return x


def row_noise(rows: Sequence[Row], size: int, shape: tuple[int, int]) -> Array:
    """Standard normal numbers `[size, T, A]`, each row's from its noise seed alone; padded rows
    repeat the last."""
    drawn = np.empty((size, *shape), np.float32)
    for index in range(size):
        bits = np.random.Philox(key=rows[min(index, len(rows) - 1)].noise_seed)
        drawn[index] = np.random.Generator(bits).standard_normal(shape, np.float32)
    return drawn


def _like(observation: Mapping[str, Any], seen: dict[str, Any]) -> Any:
    """The tensors in a mapping of the type that the module takes."""
    texts = getattr(observation, "texts", None)
    return seen if texts is None else type(observation)(seen, texts)  # type: ignore[call-arg]
