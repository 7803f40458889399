"""The MuJoCo model and data behind an env: where they are, what they are, and if they are sound."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any, Protocol

import numpy as np

from hocket.core.data import Array

_INSIDE = (
    *("model", "_model", "sim", "_sim", "env", "_env"),
    *("unwrapped", "physics", "_physics", "ptr"),
)
"""Attributes behind which envs keep their MuJoCo model."""
_DATA = ("data", "_data")
"""The same of their MuJoCo data."""
_BAD = slice(4, 7)
"""MuJoCo's warnings of a position, a speed or an acceleration that is NaN or huge. With one of them
it begins anew from its first state, unasked."""
_DEPTH = 5
MODEL_DIGEST = "model_sha256"
"""The fact that tells a model's digest."""
_PARTS = ("opt", "vis", "stat")
"""Structures within a model."""


class SimulatorData(Protocol):
    """As much of MuJoCo's data as is looked at."""

    qpos: Array
    qvel: Array


def find_model(env: Any) -> Any:
    """The MuJoCo model behind an env; None where none is to be found."""
    return _find("MjModel", env, _INSIDE, _DEPTH)


def find_data(env: Any) -> SimulatorData | None:
    """The MuJoCo data behind an env; None where none is to be found."""
    found: SimulatorData | None = _find("MjData", env, (*_DATA, *_INSIDE), _DEPTH)
    return found


def warnings_in(data: SimulatorData | None) -> int:
    """How often MuJoCo has warned, since the data was reset, that a state was no state."""
    numbers = getattr(getattr(data, "warning", None), "number", None)
    return 0 if numbers is None else int(numbers[_BAD].sum())


def _find(kind: str, env: Any, inside: tuple[str, ...], depth: int) -> Any:
    if type(env).__name__ == kind:
        return env
    if depth == 0 or env is None:
        return None
    for name in inside:
        inner = None
        with contextlib.suppress(Exception):  # An env's own property may raise anything.
            inner = getattr(env, name, None)
        found = None if inner is env else _find(kind, inner, inside, depth - 1)
        if found is not None:
            return found
    return None


def model_digest(model: Any) -> str:
    """The sha256 of all numbers and names in a MuJoCo model, its meshes and textures included, but
    for the paths of the files that these came from: they are of a machine, not of the model."""
    digest = hashlib.sha256()
    for owner in (model, *(getattr(model, part) for part in _PARTS)):
        for name in sorted(dir(owner)):
            is_left_out = name.startswith("_") or "path" in name or name == "nbuffer"
            value = None if is_left_out else getattr(owner, name)
            if isinstance(value, np.ndarray):
                flat = np.ascontiguousarray(value).reshape(-1)
                told: memoryview | bytes = flat.view(np.uint8).data
            elif isinstance(value, (int, float, bytes)):
                told = repr(value).encode()
            else:
                continue
            digest.update(f"{name} {len(told)}\n".encode())
            digest.update(told)
    return digest.hexdigest()
