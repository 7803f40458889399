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
from torch import nn

from hocket.adapters.policies.reference import ACTION_SIZE, CHUNK_LENGTH, unpack
from hocket.core import plugins
from hocket.core.specs import PolicySpec
from hocket.engine.inferring.policy_thread import words
from hocket.errors import ConfigError, SpecMismatchError, UsageError
from hocket.train.config import OF_FLOWS, TrainConfig
from hocket.train.learner import checkpoint
from hocket.train.networks.actor import FARTHEST, ResidualConfig
from hocket.train.networks.contract import BASE, Shapes
from hocket.train.networks.lora import add_adapter
from hocket.train.networks.memory import twin
from hocket.train.networks.policies import ActorConfig
from hocket.train.networks.wrapped import WrappedConfig, wrap

_HOME = "hocket.train.networks.actor"
NETWORKS = tuple(
    f"{_HOME}:{name}" for name in ("ChunkActor", "FlowActor", "ResidualActor", "NoiseActor")
)
"""The classes that a saved policy may name without the user naming them too."""
_CONTRACT = ("act", "evaluate", "value")
_SETTINGS = "settings"
"""Key of the policy's own settings, where a torch module behind a policy is trained."""
_CRITIC = "critic"
"""How names of parameters begin that weights may lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What `policy.json` says: enough to build the network, not its weights."""

    network: str
    """The class, as `NETWORKS` has it or as the user's own package.module:Class."""
    config: Mapping[str, Any]
    """The settings that the class is built with."""
    shapes: Shapes
    replan: int | None = None
    """How many actions of each chunk are executed; None for all."""
    base: str = ""
    """The policy whose actions the network corrects, or whose noise it chooses; empty without."""
    base_config: Mapping[str, Any] = field(default_factory=dict)
    """The settings of that policy."""
    adapter: str = ""
    """What was added to the network, as in `--adapter`; empty without anything."""
    env_config: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the env that it learnt in, such as how pictures were rendered."""

    def to_plain(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        settings = {"config": dict(self.config), "base_config": dict(self.base_config)}
        return {**plain, **settings, "shapes": self.shapes.to_plain()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Description:
        return cls(**{**plain, "shapes": Shapes.from_plain(plain["shapes"])})

    def build(self, named: str = "") -> Any:
        """Return the network with first weights, and with its adapter if it has one. `named` is the
        class that the user named."""
        network = self.build_plain(named)
        if self.adapter:
            add_adapter(network, self.adapter)
        return network

    def build_plain(self, named: str = "") -> Any:
        if self.network not in NETWORKS and self.network != named:
            raise ConfigError(
                f"These weights belong to the class {self.network!r}, which is not imported "
                f"unasked. Name it: --policy.network {self.network}"
            )
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in self.config.items()
        }
        if _SETTINGS in values:
            # A module of the user's own draws its first weights, and is asked for a chunk.
            with torch.random.fork_rng(devices=[]), words():
                settings = values.pop(_SETTINGS)
                config = WrappedConfig(**values)
                torch.manual_seed(config.seed)
                return wrap(_module(self.network, settings), self.shapes, config)
        module, _, attribute = self.network.partition(":")
        kind = getattr(importlib.import_module(module), attribute)
        _require_config(self.network, kind)
        with words():
            network = kind(self.shapes, kind.Config(**values))
        missing = [name for name in _CONTRACT if not callable(getattr(network, name, None))]
        if missing or not isinstance(network, nn.Module):
            raise ConfigError(
                f"{self.network} cannot be trained: it must be a torch module with "
                f"{', '.join(_CONTRACT)}{f'; {missing[0]} is missing' if missing else ''}."
            )
        return network


def _require_config(name: str, kind: Any) -> None:
    """Refuse a class of the user's own that says nothing of how it is configured."""
    if not dataclasses.is_dataclass(getattr(kind, "Config", None)):
        raise ConfigError(
            f"{name} cannot be trained as it stands: it has no dataclass Config, with which "
            f"training builds it as {name.rpartition(':')[2]}(shapes, config). A module that "
            f"answers with chunks, and knows nothing of training, is named torch:{name}."
        )


def _module(name: str, settings: Mapping[str, Any]) -> Any:
    """Return the torch module behind the policy of this name, such as torch:... or lerobot:..."""
    adapter = plugins.find("policies", name)
    build: Any = adapter.build
    return build.module(adapter.argument, plugins.configure(adapter, settings))


def require_trainable(config: TrainConfig) -> None:
    """Refuse a policy that is no network, unless a correction of it is trained."""
    if config.has_base or config.policy == "reference":
        return
    adapter = plugins.find("policies", config.policy)
    build: Any = adapter.build
    is_network = isinstance(build, type) and issubclass(build, nn.Module)
    is_saved = _saved(config) is not None
    if is_network and not is_saved:
        _require_config(config.policy, build)
    if not (is_network or is_saved or hasattr(build, "network") or hasattr(build, "module")):
        raise UsageError(
            f"Policy {config.policy!r} is no network that can be trained here: it tells no "
            f"probabilities of its actions. Add --residual to train a correction of them, or begin "
            f"with reference, actor, flow, a folder such as runs/x/best, lerobot:FOLDER, or a "
            f"torch module of your own as package.module:Class or torch:package.module:Class."
        )


def cameras_of(config: TrainConfig) -> tuple[str, ...] | None:
    """Return the cameras that a network which is not built yet may want to see; None for all that
    the env has. Only those that it turns out to read are rendered while it is trained."""
    saved = _saved(config)
    if saved is not None:
        if saved.network in NETWORKS and not saved.config.get("images"):
            return ()  # it sees states alone, whatever cameras its env had
        return saved.shapes.cameras
    adapter = plugins.find("policies", config.policy)
    is_own = config.policy != "reference" and not hasattr(adapter.build, "network")
    settings = plugins.configure(adapter, config.policy_config)
    return None if getattr(settings, "images", is_own) else ()


def _saved(config: TrainConfig) -> Description | None:
    """The network in the folder that the policy names; None where it names none."""
    file = Path(config.policy) / checkpoint.POLICY
    return Description.from_plain(checkpoint.read_table(file)) if file.is_file() else None


def describe(
    config: TrainConfig,
    shapes: Shapes,
    start: Path | None = None,
    *,
    base: PolicySpec | None = None,
) -> Description:
    """Describe the policy that a run is configured with, or the one in the checkpoint `start` that
    it goes on from; `base` is corrected or steered by it."""
    found, env = _describe(config, shapes, start, base), dict(config.env_config)
    return dataclasses.replace(found, adapter=found.adapter or config.adapter, env_config=env)


def _describe(
    config: TrainConfig, shapes: Shapes, start: Path | None, base: PolicySpec | None
) -> Description:
    if start is not None:
        found = Description.from_plain(checkpoint.read_table(start / checkpoint.POLICY))
        return _in(shapes, found)
    if config.has_base:
        return _describe_beside(config, shapes, base)
    if config.policy == "reference":
        reference = ActorConfig(
            chunk_length=CHUNK_LENGTH,
            hidden=(256, 256, 256),
            features="metaworld",
            std=config.std or 0.25,
            normalise=False,
            seed=config.seed,
        )
        kind = f"{_HOME}:ChunkActor"
        settings = dataclasses.asdict(reference)
        return Description(network=kind, config=settings, shapes=shapes, replan=config.replan)
    adapter = plugins.find("policies", config.policy)
    saved = _saved(config)
    if saved is not None:
        replan = config.replan or saved.replan
        return _with_own_units(dataclasses.replace(_in(shapes, saved), replan=replan))
    if hasattr(adapter.build, "module"):
        return _describe_module(config, adapter, shapes)
    kind = getattr(adapter.build, "network", config.policy)
    plain = dataclasses.asdict(plugins.configure(adapter, config.policy_config))
    plain.update(_of_sampling(config, plain))
    made = Description(network=kind, config=plain, shapes=shapes, replan=config.replan)
    return _with_own_units(made) if config.weights else made


def _of_sampling(config: TrainConfig, plain: Mapping[str, Any]) -> dict[str, Any]:
    """What the user said of how actions are sampled, where the network has such settings."""
    said = {name: getattr(config, name) for name in ("std", *OF_FLOWS)}
    given = {name: value for name, value in said.items() if value is not None}
    unread = [name for name in given if name in OF_FLOWS and name not in plain]
    if unread:
        flag = unread[0].replace("_", "-")
        raise UsageError(f"--{flag} is of flows, and policy {config.policy!r} is none.")
    return {name: value for name, value in given.items() if name in plain}


def _describe_module(config: TrainConfig, adapter: Any, shapes: Shapes) -> Description:
    added = WrappedConfig(critic_features=config.critic_features, seed=config.seed)
    added = dataclasses.replace(added, **_of_sampling(config, dataclasses.asdict(added)))
    settings = dataclasses.asdict(plugins.configure(adapter, config.policy_config))
    return Description(
        network=config.policy,
        config={**dataclasses.asdict(added), _SETTINGS: settings},
        shapes=shapes,
        replan=config.replan,
    )


def _describe_beside(config: TrainConfig, shapes: Shapes, base: PolicySpec | None) -> Description:
    """The network that corrects or steers a policy, which stays as it is."""
    beside: ActorConfig | ResidualConfig
    if base is not None and config.steer:
        beside = ActorConfig(
            chunk_length=base.chunk_length or base.noise[0],
            std=config.std or 1.0 / FARTHEST,
            images=bool(shapes.cameras),
            seed=config.seed,
        )
    else:
        beside = ResidualConfig(
            chunk_length=shapes.observations[BASE].shape[0],
            scale=config.residual_scale,
            std=config.std or 0.3,
            seed=config.seed,
        )
    return Description(
        network=f"{_HOME}:{'ResidualActor' if config.residual else 'NoiseActor'}",
        config=dataclasses.asdict(beside),
        shapes=shapes,
        replan=config.replan,
        base=config.policy,
        base_config=config.policy_config,
    )


def _in(shapes: Shapes, saved: Description) -> Description:
    """A saved network in another env; it keeps the units of its actions."""
    there = dataclasses.replace(shapes, bounds=saved.shapes.bounds)
    return dataclasses.replace(saved, shapes=there)


def _with_own_units(found: Description) -> Description:
    """The same for a network that begins with weights, which hold in the units that they were
    trained in."""
    if "normalise" not in found.config:
        return found
    return dataclasses.replace(found, config={**found.config, "normalise": False})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Made:
    """The networks of a process."""

    network: nn.Module
    """The one to train, or to act with. There is no other with frozen parts of its own."""
    reference: nn.Module | None = None
    """The policy that training began with, also after a resume, where GRPO is held to it."""


def make_network(
    config: TrainConfig, description: Description, start: Path | None, *, refers: bool = False
) -> Made:
    """Build the network with the weights that training begins with, or those of the checkpoint
    `start`. Learner and collecting side both begin with it: later only what is trained is
    published. `refers`: the reference of GRPO is made too, if it has one."""
    refers = refers and config.algo == "grpo" and config.kl_weight > 0
    # A saved network of a class of the user's own is named beside its folder.
    network = description.build_plain(config.network_name)
    saved = _saved(config)
    is_adapted = saved is not None and bool(saved.adapter)
    if is_adapted:  # its weights are those of network and adapter
        add_adapter(network, description.adapter)
    if start is None or refers:
        _load_first(network, config, description.shapes)
    if description.adapter and not is_adapted:
        add_adapter(network, description.adapter)
    # Both on one device, where they can share what is frozen.
    reference = twin(network.to(config.device), config.device) if refers else None
    if start is not None:
        load_weights(network, start / checkpoint.WEIGHTS)
    return Made(network=network, reference=reference)


def _load_first(network: Any, config: TrainConfig, shapes: Shapes) -> None:
    """Load the weights that training begins with; a critic may be new."""
    if config.has_base:
        return
    saved = Path(config.policy) / checkpoint.WEIGHTS
    if config.policy == "reference":
        _load_reference(network, config, shapes)
    elif saved.is_file():
        load_weights(network, saved, may_be_fresh=True)
    if config.weights:
        load_weights(network, Path(config.weights), may_be_fresh=True)


def load_weights(network: Any, path: Path, *, may_be_fresh: bool = False) -> None:
    """Load all of a network's weights from a safetensors file, without its critic and what it calls
    `fresh` if these may be new."""
    given = checkpoint.read_weights(path)
    try:
        result = network.load_state_dict(given, strict=False)
    except RuntimeError as exc:
        raise ConfigError(f"The weights {str(path)!r} are not this network's: {exc}") from exc
    # What shares memory is saved once, under one of its names.
    state = network.state_dict()
    filled = {state[key].data_ptr() for key in given if key in state}
    fresh = (_CRITIC, *getattr(network, "fresh", ())) if may_be_fresh else ()
    missing = [
        key
        for key in result.missing_keys
        if state[key].data_ptr() not in filled and not key.startswith(fresh)
    ]
    wrong = [*(f"lack {k}" for k in missing), *(f"have {k}" for k in result.unexpected_keys)]
    if wrong:
        raise ConfigError(
            f"The weights {str(path)!r} are not this network's: they {', '.join(wrong[:4])}"
            f"{f' and {len(wrong) - 4} more' if len(wrong) > 4 else ''}."
        )


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
            linears = [m for m in network.actors[index] if isinstance(m, nn.Linear)]
            for linear, (weight, bias) in zip(linears, source.layers, strict=True):
                linear.weight.copy_(torch.from_numpy(np.array(weight)))
                linear.bias.copy_(torch.from_numpy(np.array(bias)))
