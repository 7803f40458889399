"""The MuJoCo model behind an env: where it is, and what it is."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import numpy as np

_INSIDE = (
    *("model", "_model", "sim", "_sim", "env", "_env"),
    *("unwrapped", "physics", "_physics", "ptr"),
)
"""Attributes behind which envs keep their MuJoCo model."""
_DEPTH = 5
MODEL_DIGEST = "model_sha256"
"""The fact that tells a model's digest."""
_PARTS = ("opt", "vis", "stat")
"""Structures within a model."""


def find_model(env: Any, depth: int = _DEPTH) -> Any:
    """The MuJoCo model behind an env; None where none is to be found."""
    if type(env).__name__ == "MjModel":
        return env
    if depth == 0 or env is None:
        return None
    for name in _INSIDE:
        inner = None
        with contextlib.suppress(Exception):  # An env's own property may raise anything.
            inner = getattr(env, name, None)
        model = None if inner is env else find_model(inner, depth - 1)
        if model is not None:
            return model
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
