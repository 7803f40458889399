"""Embodiment mappings: from one env's observation to a server's request, and its actions back.

A mapping is any object with `request(observation, prompt) -> dict` and `actions(chunk) -> array`,
for one env at a time. It may also say `inputs` and `cameras` (the env's keys that it reads),
`action_size`, `control_rate` and `replan`. `open_mapping` finds one by name: built in (`droid`,
`libero`, `aloha`, `metaworld`, `bridge`), a YAML file, or `package.module:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hocket.adapters.policies.mapping.rules import RuleMapping, find_key, parse_mapping
from hocket.core.data import Array, Observation
from hocket.core.plugins import did_you_mean, load_named
from hocket.core.specs import EnvSpec
from hocket.errors import ConfigError, SpecMismatchError, UnknownNameError
from hocket.system.bounded_yaml import read_yaml

_IMAGE = {"resize": [224, 224], "dtype": "uint8"}

# From OpenPI's own keys, or from those of Isaac Lab Arena's envs.
_DROID: Mapping[str, Any] = {
    "request": {
        "observation/exterior_image_1_left": {
            "from": "observation/exterior_image_1_left",
            "or": "camera_obs.external_camera_rgb",
            **_IMAGE,
        },
        "observation/wrist_image_left": {
            "from": "observation/wrist_image_left",
            "or": "camera_obs.wrist_camera_rgb",
            **_IMAGE,
        },
        "observation/joint_position": {
            "from": "observation/joint_position",
            "or": "policy.joint_pos",
            "size": 7,
        },
        "observation/gripper_position": {
            "from": "observation/gripper_position",
            "or": "policy.gripper_pos",
            "size": 1,
        },
    },
    "control_rate": 15,
    "replan": 8,
}


def _libero(rotate: int) -> Mapping[str, Any]:
    image = {"rotate": rotate, **_IMAGE}
    return {
        "request": {
            "observation/image": {"from": "observation/image", **image},
            "observation/wrist_image": {"from": "observation/wrist_image", **image},
            "observation/state": {"from": "observation/state", "size": 8},
        },
        "actions": {"slice": [0, 7]},
        "control_rate": 20,
        "replan": 5,
    }


BUILTIN: Mapping[str, Mapping[str, Any]] = {
    # Joint velocities and a gripper that is open or closed, as the DROID checkpoints answer.
    "droid": {
        **_DROID,
        "actions": {"slice": [0, 8], "gripper": {"threshold": 0.5}, "clip": [-1.0, 1.0]},
    },
    # Absolute joint targets in radians: nothing to clip.
    "droid-jointpos": {**_DROID, "actions": {"slice": [0, 8], "gripper": {"threshold": 0.5}}},
    # LIBERO's checkpoints saw the simulator's images turned by 180 degrees, which is upright.
    # An env that gives them upright already needs no turn; one that gives LIBERO's raw images
    # needs `libero-raw`.
    "libero": _libero(rotate=0),
    "libero-raw": _libero(rotate=180),
    "aloha": {
        "request": {
            "images/cam_high": {"from": "observation/image", "layout": "chw", **_IMAGE},
            "state": {"from": "observation/state", "size": 14},
        },
        "nested": ["images"],
        "actions": {"slice": [0, 14]},
        "control_rate": 50,
        "replan": 10,
    },
    # As SimplerEnv's evaluator asks a server of OpenPI's and uses its answer: the camera's picture
    # stretched, and a gripper that is open above a half.
    "bridge": {
        "request": {
            "observation/primary_image": {"from": "observation/image", "stretch": True, **_IMAGE},
            "observation/state": {"from": "observation/state", "size": 8},
        },
        "actions": {
            "slice": [0, 7],
            "axis_angle": 3,
            "gripper": {"threshold": 0.5, "opened": -1.0, "closed": 1.0},
        },
        "control_rate": 5,
        "replan": 4,
    },
    "metaworld": {
        "request": {
            "observation/image": {"from": "observation/image", **_IMAGE},
            "observation/state": {"from": "observation/state", "dtype": "float32"},
        },
        "actions": {"slice": [0, 4], "clip": [-1.0, 1.0]},
    },
}
"""The mappings that come with hocket, written as a user would write them in YAML. The env's keys
are OpenPI's own where an env can be asked for them; a user whose env has other names copies one of
these into a file and changes `from`."""


class Embodiment(Protocol):
    """One env's observation to a server's request, and a server's chunk to the env's actions."""

    def request(self, observation: Observation, prompt: str) -> dict[str, Any]: ...

    def actions(self, chunk: Array) -> Array: ...


class Identity:
    """The mapping that changes nothing: the env's keys out, the server's actions back."""

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
        return parse_mapping(Path(name).name, read_yaml(name, "The mapping"))
    if ":" in name:
        return _from_class(name)
    raise UnknownNameError(
        f"No mapping is called {name!r}.{did_you_mean(name, BUILTIN)} Known: "
        f"{', '.join(BUILTIN)}; or give a .yaml file, or your own class as package.module:Class."
    )


def spec_fields(mapping: Embodiment) -> dict[str, Any]:
    """The fields of a PolicySpec that a mapping determines; None where it does not say."""
    names = ("action_size", "cameras", "control_rate", "replan")
    return {name: getattr(mapping, name, None) for name in names}


def missing_key(error: str, sent: Mapping[str, Any]) -> str:
    """What helps where a server raised `error` for a request: what it was sent, and the built-in
    mapping that sends a key which the error names."""
    found = {
        key: name
        for name, rules in reversed(list(BUILTIN.items()))
        for key in rules["request"]
        if any(f"'{part}'" in error for part in (key, key.split("/")[0])) and key not in sent
    }
    hint = "".join(f" --policy.mapping {name} sends {key!r}." for key, name in found.items())
    return f"The server was sent {', '.join(map(repr, sent))}.{hint}"


def check_env(mapping: Embodiment, name: str, spec: EnvSpec) -> None:
    """Raise SpecMismatchError, with the key's name, where an env cannot feed a mapping."""
    given = spec.observations
    if isinstance(mapping, RuleMapping):
        key = mapping.missing(given)
    else:
        inputs: Sequence[str] = getattr(mapping, "inputs", None) or ()
        key = next((each for each in inputs if find_key(each, given) is None), None)
    if key is not None:
        raise SpecMismatchError(
            f"The mapping {name!r} reads {key!r}, which task {spec.task.name!r} does not give."
            f"{did_you_mean(key, given)} It gives: {', '.join(sorted(given))}."
        )
    size = getattr(mapping, "action_size", None)
    if size is not None and size != spec.action.size:
        raise SpecMismatchError(
            f"The mapping {name!r} gives {size} numbers a step; task {spec.task.name!r} takes "
            f"{spec.action.size}."
        )


def _from_class(name: str) -> Embodiment:
    mapping: Embodiment = load_named(name, "mapping")()
    for method in ("request", "actions"):
        if not callable(getattr(mapping, method, None)):
            raise ConfigError(
                f"The mapping {name!r} has no {method}(). A mapping has "
                f"request(observation, prompt) -> dict and actions(chunk) -> array."
            )
    return mapping


def padded(values: Array, pad: int) -> Array:
    """A batch's answers, with those of its last row for its padding."""
    return np.concatenate([values, np.repeat(values[-1:], pad, axis=0)]) if pad else values
