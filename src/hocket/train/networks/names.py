"""Names of networks that `hocket train` can begin with, and their settings. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hocket.errors import ConfigError, UsageError

FEATURES = ("plain", "metaworld")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorConfig:
    """A chunk actor-critic's settings."""

    chunk_length: int = 8
    """T: actions in a chunk."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the layers of actor and critic."""
    std: float = 0.5
    """Spread of actions at the start, in units of actions."""
    train_std: bool = True
    images: bool = False
    """See through the env's cameras too."""
    features: str = "plain"
    """What is made of the state: `plain` squashes large numbers, `metaworld` adds distances between
    hand, objects and goal."""
    seed: int = 0
    """Of the first weights."""

    def __post_init__(self) -> None:
        if self.chunk_length < 1 or self.std <= 0:
            raise ConfigError("chunk_length must be at least 1, and std above 0.")
        if self.features not in FEATURES:
            raise ConfigError(f"features is one of {', '.join(FEATURES)}, not {self.features!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowConfig:
    """A small flow-matching policy's settings."""

    chunk_length: int = 8
    """T: actions in a chunk."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the layers of the velocity field and of the critic."""
    denoising_steps: int = 4
    """From noise to a chunk."""
    std: float = 0.1
    """Spread of the noise that each denoising step adds when sampling."""
    features: str = "plain"
    """As those of `actor`."""
    seed: int = 0
    """Of the first weights."""

    def __post_init__(self) -> None:
        if self.chunk_length < 1 or self.denoising_steps < 1 or self.std <= 0:
            raise ConfigError("chunk_length and denoising_steps are at least 1, std is above 0.")
        if self.features not in FEATURES:
            raise ConfigError(f"features is one of {', '.join(FEATURES)}, not {self.features!r}.")


class Actor:
    """`actor`: a Gaussian chunk actor-critic from scratch."""

    Config: ClassVar = ActorConfig
    network = "hocket.train.networks.actor:ChunkActor"

    def __init__(self, argument: str, config: Any) -> None:
        raise UsageError(_UNTRAINED)


class Flow:
    """`flow`: a flow-matching policy from scratch."""

    Config: ClassVar = FlowConfig
    network = "hocket.train.networks.flow:FlowActor"

    def __init__(self, argument: str, config: Any) -> None:
        raise UsageError(_UNTRAINED)


_UNTRAINED = (
    "This policy has no weights yet: give it to `hocket train`, and evaluate what comes of it, as "
    "in --policy runs/x/best."
)
