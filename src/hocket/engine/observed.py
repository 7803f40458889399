"""Reads what a user's own vector loop holds: stacked observations, prompts, and ids of envs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from hocket.core.arrays import as_numpy
from hocket.core.data import Array
from hocket.errors import ObservationError, UsageError

if TYPE_CHECKING:
    import torch

Prompts = Union[str, Sequence[str]]
"""One text for all envs, or one for each."""


_ROOT = "observation/"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackedObservations:
    """The observations of N envs: flat slash keys, arrays `[N, ...]`."""

    arrays: Mapping[str, Array]
    size: int
    prompts: tuple[str, ...] | None
    """From the key `prompt`, where there is one."""
    device: torch.device | None
    """Where the caller's torch tensors live; None where they are numpy's."""


def read_observations(given: Any, keys: Sequence[str] | None) -> StackedObservations:
    """Flatten and check one call's observations, keeping `keys` (None keeps all).

    A plain array is `observation/state`, or `observation/image` where it is one; `x` stands for
    `observation/x` where the policy reads that, as with envs that hocket runs itself.
    """
    flat = dict(_flatten(_as_mapping(given), ""))
    text = flat.pop("prompt", None)
    tensors = (
        leaf for leaf in flat.values() if hasattr(leaf, "detach") and hasattr(leaf, "device")
    )
    device = next((leaf.device for leaf in tensors), None)
    if keys is not None:
        flat = {key: _find(key, flat) for key in keys}
    arrays = {key: _stacked(key, leaf) for key, leaf in flat.items()}
    sizes = {key: len(array) for key, array in arrays.items()}
    if not sizes or not all(sizes.values()):
        raise UsageError("act was given no observation: pass arrays with one row for each env.")
    if len(set(sizes.values())) > 1:
        raise UsageError(f"Arrays of one observation have different numbers of envs: {sizes}.")
    size = next(iter(sizes.values()))
    prompts = None if text is None else read_prompts(text, size)
    return StackedObservations(arrays=arrays, size=size, prompts=prompts, device=device)


def read_prompts(given: Any, size: int) -> tuple[str, ...]:
    """One text for each of `size` envs."""
    if isinstance(given, str):
        return (given,) * size
    texts = tuple(np.ravel(as_numpy(given)).tolist()) if np.ndim(given) else (given,)
    if len(texts) != size or not all(isinstance(text, str) for text in texts):
        raise UsageError(
            f"prompts must be one str, or one for each of the {size} envs, not {given!r}."
        )
    return texts


def same_kind(actions: Array, device: Any) -> Any:
    """float32 actions, as a torch tensor on the caller's device where the caller uses torch."""
    values = np.ascontiguousarray(actions, dtype=np.float32)
    if device is None:
        return values
    return sys.modules["torch"].from_numpy(values).to(device)


def _as_mapping(given: Any) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    array = as_numpy(given)
    if not isinstance(array, np.ndarray):
        raise UsageError(
            f"act takes a dict of stacked arrays [N, ...], or one such array, not a "
            f"{type(given).__name__}."
        )
    is_image = array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] in (1, 3, 4)
    return {f"{_ROOT}image" if is_image else f"{_ROOT}state": given}


def _find(key: str, flat: Mapping[str, Any]) -> Any:
    if key in flat:
        return flat[key]
    if key.startswith(_ROOT) and key[len(_ROOT) :] in flat:
        return flat[key[len(_ROOT) :]]
    raise ObservationError(
        f"The policy reads {key!r}, which the observation lacks. It has: "
        f"{', '.join(sorted(flat)) or 'nothing'}."
    )


def _flatten(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _stacked(key: str, value: Any) -> Array:
    array = np.asarray(as_numpy(value))
    if array.ndim < 1 or array.dtype.kind not in "fiub":
        raise UsageError(
            f"Observation {key!r} must be an array [N, ...] of numbers, not "
            f"{array.dtype} of shape {array.shape}."
        )
    return array
