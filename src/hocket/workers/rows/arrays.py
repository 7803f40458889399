"""Arrays of batched simulators: numpy's, or on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hocket.core.data import Array, Observation, Signature
from hocket.errors import ObservationError


def on_host(value: Any) -> Array:
    """The values as numpy's, copied only where they live on a device."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def first_row(arrays: Mapping[str, Array]) -> Observation:
    """The first row of stacked arrays, on the host."""
    return {key: on_host(array[:1])[0] for key, array in arrays.items()}


def signature_of(row: Mapping[str, Array]) -> Signature:
    """Of one row's arrays on the host."""
    return tuple((key, row[key].shape, row[key].dtype.str) for key in sorted(row))


def choose(arrays: Mapping[str, Array], reads: tuple[str, ...] | None) -> dict[str, Array]:
    """The keys that the policy reads."""
    if reads is None:
        return dict(arrays)
    chosen = {}
    for key in reads:
        if key == "prompt":
            continue
        if key not in arrays:
            raise ObservationError(
                f"The observation has no key {key!r}, which the policy reads. It has: "
                f"{', '.join(sorted(arrays))}."
            )
        chosen[key] = arrays[key]
    return chosen
