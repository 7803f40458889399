"""Builds the networks that are trained, from the name of a policy or from a saved description.

Nothing is imported that the user did not name: a saved network of a user's own class is built only
where that class is named again.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hocket.adapters.policies.reference import ACTION_SIZE, CHUNK_LENGTH, unpack
from hocket.core import plugins
from hocket.errors import ConfigError, SpecMismatchError
from hocket.train.config import TrainConfig
from hocket.train.learner import checkpoint
from hocket.train.networks.contract import BASE, Shapes

NETWORKS = {
    "hocket.train.actor:ChunkActor": "hocket.train.networks.actor:ChunkActor",
    "hocket.train.flow:FlowActor": "hocket.train.networks.actor:FlowActor",
    "hocket.train.residual:ResidualActor": "hocket.train.networks.actor:ResidualActor",
}
"""Where the classes live that a saved policy may name without the user naming them too. The keys
are what `policy.json` says: they are part of its format and stay when classes move."""
_CONTRACT = ("act", "evaluate", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What `policy.json` says: enough to build the network, not its weights."""

    network: str
    """The class, as a key of `NETWORKS` or as the user's own package.module:Class."""
    config: Mapping[str, Any]
    """The settings that the class is built with."""
    shapes: Shapes
    replan: int | None = None
    """How many actions of each chunk are executed; None for all."""
    base: str = ""
    """The policy whose actions a residual network corrects; empty without one."""
    base_config: Mapping[str, Any] = field(default_factory=dict)
    """The settings of that policy."""

    def to_plain(self) -> dict[str, Any]:
        """Returns the same as values that JSON knows."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        settings = {"config": dict(self.config), "base_config": dict(self.base_config)}
        return {**plain, **settings, "shapes": self.shapes.to_plain()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Description:
        """Reads what `to_plain` returned."""
        return cls(**{**plain, "shapes": Shapes.from_plain(plain["shapes"])})

    def build(self, named: str = "") -> Any:
        """Returns the network with first weights. `named` is the class that the user named."""
        if self.network not in NETWORKS and self.network != named:
            raise ConfigError(
                f"These weights belong to the class {self.network!r}, which is not imported "
                f"unasked. Name it: --policy.network {self.network}"
            )
        module, _, attribute = NETWORKS.get(self.network, self.network).partition(":")
        kind = getattr(importlib.import_module(module), attribute)
        values = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in self.config.items()
        }
        network = kind(self.shapes, kind.Config(**values))
        missing = [name for name in _CONTRACT if not callable(getattr(network, name, None))]
        if missing or not isinstance(network, torch.nn.Module):
            raise ConfigError(
                f"{self.network} cannot be trained: it must be a torch module with "
                f"{', '.join(_CONTRACT)}{f'; {missing[0]} is missing' if missing else ''}."
            )
        return network


def describe(config: TrainConfig, shapes: Shapes) -> Description:
    """Returns the description of the policy that a run is configured with."""
    if config.residual:
        base_length = shapes.observations[BASE].shape[0]
        residual: dict[str, Any] = {
            "chunk_length": base_length,
            "scale": config.residual_scale,
            "std": config.std or 0.3,
            "seed": config.seed,
        }
        return Description(
            network="hocket.train.residual:ResidualActor",
            config=residual,
            shapes=shapes,
            replan=config.replan,
            base=config.policy,
            base_config=config.policy_config,
        )
    if config.policy == "reference":
        reference: dict[str, Any] = {
            "chunk_length": CHUNK_LENGTH,
            "hidden": [256, 256, 256],
            "features": "metaworld",
            "std": config.std or 0.25,
            "seed": config.seed,
        }
        kind = "hocket.train.actor:ChunkActor"
        return Description(network=kind, config=reference, shapes=shapes, replan=config.replan)
    adapter = plugins.find("policies", config.policy)
    saved = Path(config.policy) / checkpoint.POLICY
    if saved.is_file():
        found = Description.from_plain(checkpoint.read_table(saved))
        return dataclasses.replace(found, shapes=shapes, replan=config.replan or found.replan)
    kind = getattr(adapter.build, "network", config.policy)
    plain = dataclasses.asdict(plugins.configure(adapter, config.policy_config))
    if config.std is not None and "std" in plain:
        plain["std"] = config.std
    return Description(network=kind, config=plain, shapes=shapes, replan=config.replan)


def make_network(config: TrainConfig, description: Description, start: Path | None) -> Any:
    """Returns the network with the weights that training begins with, or those of the checkpoint
    `start`. The learner and the collecting side both begin with this: later only the parameters
    that are trained are published."""
    network = description.build(config.policy)
    if start is not None:
        load_weights(network, start / checkpoint.WEIGHTS)
    if start is not None or config.residual:
        return network
    if config.policy == "reference":
        _load_reference(network, config, description.shapes)
    elif (Path(config.policy) / checkpoint.WEIGHTS).is_file():
        load_weights(network, Path(config.policy) / checkpoint.WEIGHTS)
    if config.weights:
        load_weights(network, Path(config.weights))
    return network


def load_weights(network: Any, path: Path) -> None:
    """Loads all of a network's weights from a safetensors file."""
    try:
        network.load_state_dict(checkpoint.read_tensors(path))
    except RuntimeError as exc:
        raise ConfigError(f"The weights {str(path)!r} are not this network's: {exc}") from exc


def _load_reference(network: Any, config: TrainConfig, shapes: Shapes) -> None:
    if shapes.action_size != ACTION_SIZE:
        raise SpecMismatchError("Policy 'reference' knows the tasks of MT10 only.")
    path = config.policy_config.get("weights") or str(
        resources.files("hocket.adapters.policies") / "weights" / "reference.npz"
    )
    try:
        with np.load(path, allow_pickle=False) as arrays:
            networks = unpack(dict(arrays))
    except (OSError, KeyError, ValueError) as exc:
        raise ConfigError(f"The weights of 'reference' in {path} cannot be read: {exc}") from exc
    with torch.no_grad():
        for index, task in enumerate(shapes.tasks):
            if task not in networks:
                raise SpecMismatchError(
                    f"Policy 'reference' knows the tasks of MT10 only, not {task!r}."
                    f"{plugins.did_you_mean(task, networks)} Use --policy actor to begin from "
                    f"scratch."
                )
            source = networks[task]
            network.mean[index] = torch.from_numpy(np.array(source.mean))
            network.scale[index] = torch.from_numpy(np.array(source.scale))
            linears = [m for m in network.actors[index] if isinstance(m, torch.nn.Linear)]
            for linear, (weight, bias) in zip(linears, source.layers, strict=True):
                linear.weight.copy_(torch.from_numpy(np.array(weight)))
                linear.bias.copy_(torch.from_numpy(np.array(bias)))
