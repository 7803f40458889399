"""What a flow policy's language model makes of an observation, made once for all rows that share
it, and differ in their noise alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from hocket.core.data import Batch, Row

FLOWS = ("pi0", "pi05", "smolvla")
"""Policies whose model encodes first, and then denoises in steps."""


def sharing(batch: Batch, rows: Sequence[Row]) -> list[int]:
    """For each row the first one that has its observation and prompt."""
    # States come first: they tell most rows apart before any picture is compared.
    arrays = sorted(batch.arrays.values(), key=lambda array: int(array.nbytes))
    firsts: list[int] = []
    for i, row in enumerate(rows):
        same = (
            first
            for first in dict.fromkeys(firsts)
            if rows[first].prompt == row.prompt
            and all(np.array_equal(array[first], array[i]) for array in arrays)
        )
        firsts.append(next(same, i))
    return firsts


@contextmanager
def shared_prefix(model: Any, firsts: Sequence[int]) -> Iterator[None]:
    """Let `model` encode only the rows that `sharing` names."""
    kept = sorted(set(firsts))
    places = torch.tensor([kept.index(first) for first in firsts])
    sample, step, config = model.sample_actions, model.denoise_step, model.config
    whole: dict[str, Any] = {}

    def sampled(*seen: Any, **settings: Any) -> Any:
        if settings.get("noise") is None:
            shape = (len(firsts), config.chunk_size, config.max_action_dim)
            settings["noise"] = model.sample_noise(shape, seen[2].device)
        return sample(*(_rows(part, torch.tensor(kept)) for part in seen), **settings)

    def stepped(*, x_t: Any, timestep: Any, **encoded: Any) -> Any:
        if not whole:
            whole.update((name, _rows(part, places)) for name, part in encoded.items())
        if timestep.ndim and len(timestep) < len(firsts):
            # LeRobot 0.4 has a time for each row that was encoded, all of them the same.
            timestep = timestep[:1].expand(len(firsts))
        return step(x_t=x_t, timestep=timestep, **whole)

    model.sample_actions, model.denoise_step = sampled, stepped
    try:
        yield
    finally:
        del model.sample_actions, model.denoise_step


def _rows(part: Any, places: Any) -> Any:
    """These rows of tensors, or of what holds some."""
    if isinstance(part, torch.Tensor):
        return part[places.to(part.device)]
    if isinstance(part, Mapping):
        return {key: _rows(value, places) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [_rows(value, places) for value in part]
    cache = copy.deepcopy(part)
    cache.batch_select_indices(places)
    return cache
