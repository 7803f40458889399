"""`--policy runs/x/best`: what `hocket train` saved, as a policy. Importing it needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hocket.core import plugins
from hocket.core.contracts.policy import Policy
from hocket.core.data import Actions, Batch, EnvSpec, PolicySpec
from hocket.errors import ConfigError

if TYPE_CHECKING:
    from hocket.train.networks.building import Description


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedConfig:
    """How saved weights are used."""

    sample: bool = False
    """Sample actions as in training, instead of taking the most likely ones."""
    network: str = ""
    """The class of the network as package.module:Class, where it is one of your own."""
    base: str = ""
    """The policy that a residual corrects, by the name that it was trained with."""
    base_python: str = ""
    """Interpreter for that policy, where it needs another one than this."""
    device: str = "cpu"


class TrainedPolicy:
    """A saved network, which acts alone."""

    Config: ClassVar = TrainedConfig

    def __init__(self, argument: str, config: TrainedConfig) -> None:
        from hocket.train.collect.policy import CollectingPolicy, Holding
        from hocket.train.learner import checkpoint
        from hocket.train.learner.weights import WeightBlock
        from hocket.train.networks.building import Description, load_weights
        from hocket.train.networks.contract import trainable_parameters

        folder = Path(argument)
        if not (folder / checkpoint.POLICY).is_file():
            raise ConfigError(f"{argument!r} is no folder with a trained policy.")
        description = Description.from_plain(checkpoint.read_table(folder / checkpoint.POLICY))
        network: Any = description.build(config.network)
        load_weights(network, folder / checkpoint.WEIGHTS)
        self._block = WeightBlock(trainable_parameters(network))
        self._block.publish(trainable_parameters(network), 0)
        self._inner = CollectingPolicy(
            network,
            description.shapes,
            self._block,
            Holding(is_deterministic=lambda _: not config.sample, held_by=lambda _: None),
            replan=description.replan,
            device=config.device,
            base=_base(description, config),
        )

    @property
    def spec(self) -> PolicySpec:
        return self._inner.spec

    def bind(self, spec: EnvSpec) -> None:
        """Keep to this env's bounds; refuse a task that was not trained."""
        self._inner.bind(spec)

    def infer(self, batch: Batch) -> Actions:
        return Actions(self._inner.infer(batch).values)

    def close(self) -> None:
        """Let go of the weights."""
        self._inner.close()
        self._block.close()


def _base(description: Description, config: TrainedConfig) -> Policy | None:
    name = description.base
    if not name:
        return None
    if name != config.base:
        raise ConfigError(
            f"These weights correct the policy {name!r}, which is not loaded unasked. Name it: "
            f"--policy.base {name}"
        )
    settings: Mapping[str, Any] = description.base_config
    if config.base_python:
        name, settings = f"sidecar:{name}", {"python": config.base_python, "config": dict(settings)}
    built: Policy = plugins.build("policies", name, settings)
    return built
