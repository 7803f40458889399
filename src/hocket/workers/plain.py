"""Turns specs into plain lists and dicts, as they travel in messages, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import ActionSpec, ArraySpec, EnvSpec, Ref, TaskInfo


def worker_spec_to_plain(spec: WorkerSpec) -> dict[str, Any]:
    """A WorkerSpec for the Open message."""
    plain = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    plain["suites"] = {name: _ref_to_plain(ref) for name, ref in spec.suites.items()}
    plain["sinks"] = [_ref_to_plain(ref) for ref in spec.sinks]
    return plain


def worker_spec_from_plain(plain: Mapping[str, Any]) -> WorkerSpec:
    """The WorkerSpec of an Open message."""
    values = dict(plain)
    values["suites"] = {name: Ref(**ref) for name, ref in values["suites"].items()}
    values["sinks"] = tuple(Ref(**ref) for ref in values["sinks"])
    for name in ("reads", "cameras"):
        values[name] = None if values[name] is None else tuple(values[name])
    return WorkerSpec(**values)


def env_spec_to_plain(spec: EnvSpec) -> dict[str, Any]:
    """An EnvSpec for the Ready message."""
    action = dataclasses.asdict(spec.action)
    for bound in ("low", "high"):
        action[bound] = np.asarray(action[bound], "<f8").tolist()
    return {
        "task": dataclasses.asdict(spec.task),
        "action": action,
        "observations": {k: dataclasses.asdict(v) for k, v in spec.observations.items()},
        "cameras": spec.cameras,
        "abilities": spec.abilities,
        "notes": spec.notes,
    }


def env_spec_from_plain(plain: Mapping[str, Any]) -> EnvSpec:
    """The EnvSpec of a Ready message."""
    action = dict(plain["action"])
    action["shape"] = tuple(action["shape"])
    for bound in ("low", "high"):
        action[bound] = np.array(action[bound], np.float64)
    return EnvSpec(
        task=TaskInfo(**plain["task"]),
        action=ActionSpec(**action),
        observations={
            key: ArraySpec(shape=tuple(value["shape"]), dtype=value["dtype"])
            for key, value in plain["observations"].items()
        },
        cameras=tuple(plain["cameras"]),
        abilities=tuple(plain["abilities"]),
        notes=tuple(plain["notes"]),
    )


def _ref_to_plain(ref: Ref) -> dict[str, Any]:
    return {"name": ref.name, "config": dict(ref.config)}
