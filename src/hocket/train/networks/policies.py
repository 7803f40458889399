"""What `--policy` may name where networks are trained: `actor`, `flow`, and a folder that
`hocket train` saved. Importing this needs no torch, so that `--help` is quick.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hocket.adapters.policies.rtc import continuations_of
from hocket.core import plugins
from hocket.core.contracts.policy import PREFIX, Policy
from hocket.core.data import Actions, Batch
from hocket.core.specs import EnvSpec
from hocket.errors import ConfigError, UsageError
from hocket.train.config import Inner, NoiseAt, Spread

if TYPE_CHECKING:
    from torch import nn

    from hocket.train.collect.policy import CollectingPolicy
    from hocket.train.networks.building import Description

FEATURES = ("plain", "metaworld")


@dataclass(frozen=True, kw_only=True)
class FlowSampling:
    """How chains of a flow are sampled, and what of them is learnt from: see `TrainConfig`."""

    noise_at: NoiseAt = "all"
    """As --noise-at."""
    inner: Inner = "executed"
    """As --inner."""
    spread: Spread = "step"
    """As --spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchConfig:
    """Settings of both networks that begin from scratch."""

    chunk_length: int = 8
    """T: actions in a chunk."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the layers of each network, the critic's included."""
    std: float = 0.5
    """Spread of actions at the start, in units of half of their range."""
    features: str = "plain"
    """What is made of the state: `plain` squashes large numbers, `metaworld` adds distances between
    hand, objects and goal."""
    seed: int = 0
    """Seed of the first weights."""

    def __post_init__(self) -> None:
        if self.chunk_length < 1 or self.std <= 0:
            raise ConfigError("chunk_length must be at least 1, and std above 0.")
        if self.features not in FEATURES:
            raise ConfigError(f"features is one of {', '.join(FEATURES)}, not {self.features!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorConfig(ScratchConfig):
    """Settings of `actor`."""

    train_std: bool = True
    """True if the spread is trained too."""
    images: bool = False
    """See through the env's cameras too."""
    normalise: bool = True
    """Measure mean and spread of the features while training, and see them in those units. Weights
    that training begins with keep their own."""
    limit: float | None = 10.0
    """Features are cut at this many spreads from their mean; None leaves them whole."""

    def __post_init__(self) -> None:
        ScratchConfig.__post_init__(self)
        if self.limit is not None and self.limit <= 0:
            raise ConfigError(f"limit is {self.limit}; it must be above 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowConfig(ScratchConfig, FlowSampling):
    """Settings of `flow`."""

    std: float = 0.1
    """Spread of the noise that each denoising step adds when sampling."""
    denoising_steps: int = 4
    """Steps from noise to a chunk."""

    def __post_init__(self) -> None:
        ScratchConfig.__post_init__(self)
        if self.denoising_steps < 1:
            raise ConfigError(f"denoising_steps is {self.denoising_steps}; it must be at least 1.")


class Actor:
    """The policy `actor`: a Gaussian chunk actor-critic from scratch."""

    Config: ClassVar[Any] = ActorConfig
    network = "hocket.train.networks.actor:ChunkActor"

    def __init__(self, argument: str, config: Any) -> None:
        raise UsageError(
            "This policy has no weights yet: give it to `hocket train`, and evaluate what comes of "
            "it, as in --policy runs/x/best."
        )


class Flow(Actor):
    """The policy `flow`: a small flow-matching policy from scratch."""

    Config: ClassVar[Any] = FlowConfig
    network = "hocket.train.networks.actor:FlowActor"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedConfig:
    """How saved weights are used."""

    sample: bool = False
    """Sample actions as in training, instead of taking the most likely ones."""
    network: str = ""
    """The class of the network as package.module:Class, where it is one of your own."""
    base: str = ""
    """The policy that these weights correct or steer, by the name that it was trained with."""
    base_python: str = ""
    """Interpreter for that policy, where it needs another one than this."""
    device: str = "cpu"
    """Where the network runs."""


class TrainedPolicy:
    """The policy `runs/x/best`: a network that `hocket train` saved."""

    Config: ClassVar = TrainedConfig

    def __init__(self, argument: str, config: TrainedConfig) -> None:
        from hocket.train.collect.policy import CollectingPolicy
        from hocket.train.learner import checkpoint
        from hocket.train.networks.building import Description, load_weights

        folder = Path(argument)
        if not (folder / checkpoint.POLICY).is_file():
            raise ConfigError(f"{argument!r} is no folder with a trained policy.")
        description = Description.from_plain(checkpoint.read_table(folder / checkpoint.POLICY))
        self._network: nn.Module = description.build(config.network)
        load_weights(self._network, folder / checkpoint.WEIGHTS)
        self._wrap = functools.partial(
            CollectingPolicy,
            shapes=description.shapes,
            evaluated_as=lambda trial: None if config.sample else trial,
            replan=description.replan,
            device=config.device,
            base=_base(description, config),
        )
        self._inner = self._wrap(self._network)
        self._continuing: CollectingPolicy | None = None
        """The same, where chunks go on from what is committed."""
        self.spec = self._inner.spec

    @property
    def continuations(self) -> tuple[str, ...]:
        return continuations_of(self._network)

    def continue_by(self, method: str, settings: Mapping[str, Any]) -> None:
        """Let chunks continue what is committed, where a batch says what that is."""
        from hocket.train.networks.sampling import ContinuingNetwork

        self._continuing = self._wrap(ContinuingNetwork(self._network, method, settings))

    def bind(self, spec: EnvSpec) -> None:
        self._inner.bind(spec)

    def infer(self, batch: Batch) -> Actions:
        if self._continuing is None or PREFIX not in batch.arrays:
            return Actions(self._inner.infer(batch).values)
        answer = self._continuing.infer(batch)
        # What was sampled, and not what was cut to the env's bounds, is continued.
        return Actions(answer.values, {PREFIX: answer.extras[PREFIX]})

    def close(self) -> None:
        self._inner.close()


def _base(description: Description, config: TrainedConfig) -> Policy | None:
    name = description.base
    if not name:
        return None
    if name != config.base:
        raise ConfigError(
            f"These weights go with the policy {name!r}, which is not loaded unasked. Name it: "
            f"--policy.base {name}"
        )
    settings = description.base_config
    if config.base_python:
        name, settings = f"sidecar:{name}", {"python": config.base_python, "config": dict(settings)}
    built: Policy = plugins.build("policies", name, settings)
    return built
