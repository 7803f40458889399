"""Settings of the algorithms, each declared once: `hocket train` makes flags of them, and
`TrainConfig` inherits them. Importing this needs no torch, so that `--help` is quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hocket.errors import ConfigError

Level = Literal["chunk", "action"]
Correction = Literal["none", "decoupled", "interpolated", "tis"]


@dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """Settings of an update of the weights, which all algorithms share."""

    lr: float = 3e-4
    """Learning rate of Adam."""
    lr_end: float | None = None
    """Where the learning rate goes, in a straight line over all steps."""
    epochs: int = 6
    """Passes over a batch."""
    minibatches: int = 4
    """Parts of a batch in each pass."""
    clip: float = 0.2
    """How far a probability may move in an update, as a share of itself."""
    clip_high: float | None = None
    """How far it may grow; the default is clip for ppo, and 0.28 for grpo."""
    entropy: float = 0.0
    """Weight of a bonus for spread actions."""
    target_kl: float | None = 0.2
    """End an update early when the policy has moved this far, in nats."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    ratio: Level | None = None
    """Compare probabilities of a chunk's executed actions together, or action by action; the
    default is the latter where the policy can tell them apart."""
    correction: Correction | None = None
    """How data of older weights is made up for: none, decoupled (probabilities at the start of the
    update, recomputed), interpolated (the same, guessed from the age of the data) or tis (truncated
    importance weights). The default is decoupled for async, none for sync."""
    truncate: float = 2.0
    """What tis cuts importance weights at."""

    def __post_init__(self) -> None:
        check_at_least(self, epochs=1, minibatches=1)
        check_shares(self, ("clip", "clip_high"))


@dataclass(frozen=True, kw_only=True)
class PPOConfig(UpdateConfig):
    """Settings of PPO."""

    gamma: float = 0.995
    """Discount of one env step; a chunk of k steps discounts by its k-th power."""
    lam: float = 0.99
    """Decay of advantages over one env step."""
    clip_value: float | None = None
    """How far a value may move in an update; off by default."""
    value_weight: float = 0.5
    """Weight of the critic's loss."""
    value_only: int = 1
    """First updates that train the critic alone, for ppo: a critic that knows nothing spoils a good
    start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, value_only=0)
        check_shares(self, ("gamma", "lam"))


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(UpdateConfig):
    """Settings of GRPO."""

    group: int = 8
    """Episodes of a group, for grpo."""
    pin_version: bool = False
    """Hold all episodes of a group to the weights that the first of them began with."""
    kl_weight: float = 0.0
    """How strongly grpo holds the policy to the one that training began with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, group=2)


def check_at_least(settings: Any, **lowest: int) -> None:
    """Refuse settings that are below the lowest value given for their name."""
    for name, low in lowest.items():
        if getattr(settings, name) < low:
            raise ConfigError(f"{name} is {getattr(settings, name)}; it must be at least {low}.")


def check_shares(settings: Any, names: Sequence[str]) -> None:
    """Refuse settings that are set and not between 0 and 1."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"{name} is {value}; it must be between 0 and 1.")
