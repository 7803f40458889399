"""Embodiment mappings: from one env's observation to a server's request, and its actions back.

A mapping is any object with `request(observation, prompt) -> dict` and `actions(chunk) -> array`,
for one env at a time. It may also say `inputs` and `cameras` (the env's keys that it reads),
`action_size`, `control_rate` and `replan`. `open_mapping` finds one by name: built in (`droid`,
`libero`, `aloha`, `metaworld`), a YAML file, or `package.module:Class`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from hocket.adapters.policies.mapping.builtin import BUILTIN
from hocket.adapters.policies.mapping.images import as_uint8, resize, resize_with_pad
from hocket.adapters.policies.mapping.rules import RuleMapping, parse_mapping
from hocket.core.data import Array, EnvSpec, Observation
from hocket.core.plugins import did_you_mean
from hocket.errors import ConfigError, SpecMismatchError, UnknownNameError

__all__ = [
    "BUILTIN",
    "Embodiment",
    "Identity",
    "RuleMapping",
    "as_uint8",
    "check_env",
    "open_mapping",
    "parse_mapping",
    "resize",
    "resize_with_pad",
]


class Embodiment(Protocol):
    """One env's observation to a server's request, and a server's chunk to the env's actions."""

    def request(self, observation: Observation, prompt: str) -> dict[str, Any]: ...

    def actions(self, chunk: Array) -> Array: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Sends the env's keys as they are, and takes the server's actions as they come."""

    def request(self, observation: Observation, prompt: str) -> dict[str, Any]:
        return {**observation, "prompt": prompt}

    def actions(self, chunk: Array) -> Array:
        return chunk


def open_mapping(name: str) -> Embodiment:
    """The mapping that a name means; an empty name sends everything as it is."""
    if not name:
        return Identity()
    if name in BUILTIN:
        return parse_mapping(name, BUILTIN[name])
    if name.endswith((".yaml", ".yml")):
        return _from_file(Path(name))
    if ":" in name:
        return _from_class(name)
    raise UnknownNameError(
        f"No mapping is called {name!r}.{did_you_mean(name, BUILTIN)} Known: "
        f"{', '.join(BUILTIN)}; or give a .yaml file, or your own class as package.module:Class."
    )


def check_env(mapping: Embodiment, name: str, spec: EnvSpec) -> None:
    """Raise SpecMismatchError, with the key's name, where an env cannot feed a mapping."""
    inputs: Sequence[str] | None = getattr(mapping, "inputs", None)
    for key in inputs or ():
        if key not in spec.observations:
            raise SpecMismatchError(
                f"The mapping {name!r} reads {key!r}, which task {spec.task.name!r} does not give."
                f"{did_you_mean(key, spec.observations)} It gives: "
                f"{', '.join(sorted(spec.observations))}."
            )
    size = getattr(mapping, "action_size", None)
    if size is not None and size != spec.action.size:
        raise SpecMismatchError(
            f"The mapping {name!r} gives {size} numbers a step; task {spec.task.name!r} takes "
            f"{spec.action.size}."
        )


def _from_file(path: Path) -> RuleMapping:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"The mapping {os.fspath(path)!r} cannot be read: {exc}") from exc
    except yaml.YAMLError as exc:
        raise ConfigError(f"The mapping {os.fspath(path)!r} is no YAML: {exc}") from exc
    if not isinstance(data, Mapping):
        raise ConfigError(f"The mapping {os.fspath(path)!r} must be keys with values.")
    return parse_mapping(path.name, data)


def _from_class(name: str) -> Embodiment:
    module_name, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module_name), attribute, None)
    if found is None:
        raise UnknownNameError(f"Module {module_name!r} has no attribute {attribute!r}.")
    mapping: Embodiment = found() if isinstance(found, type) else found
    for method in ("request", "actions"):
        if not callable(getattr(mapping, method, None)):
            raise ConfigError(
                f"The mapping {name!r} has no {method}(). A mapping has "
                f"request(observation, prompt) -> dict and actions(chunk) -> array."
            )
    return mapping
