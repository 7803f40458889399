"""Chunks drawn from recorded steps: what was seen at a step, and the actions that followed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hocket.core.data import Array
from hocket.train.data.store import Data
from hocket.train.networks.contract import PROMPT, TASK, Observations


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """A minibatch of B recorded chunks."""

    observation: Observations
    """As a network gets it."""
    actions: Tensor
    """The T actions that followed, `[B, T, A]`; the last one repeated where the episode ended."""
    mask: Tensor
    """Which of them are recorded and not repeated, `[B, T]` bool."""


class Windows:
    """Draws chunks of a length from recorded steps, every step as likely as any other."""

    def __init__(
        self,
        data: Data,
        chunk_length: int,
        *,
        history: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        """With a `history` above 1 each chunk has what was seen at so many consecutive steps."""
        self._data = data
        self._steps = np.arange(chunk_length)
        self._before = np.arange(1 - history, 1)
        self._device = device

    def __len__(self) -> int:
        """How many chunks there are: one for each recorded step."""
        return len(self._data)

    def draw(self, count: int, rng: torch.Generator) -> Array:
        """Draw rows with replacement, so that the next draw depends on `rng` alone."""
        rows: Array = torch.randint(len(self._data), (count,), generator=rng).numpy()
        return rows

    def actions_at(self, rows: Array) -> int:
        """How many recorded actions the chunks that began at these rows have."""
        left = self._data.last[rows] - rows + 1
        return int(np.minimum(left, len(self._steps)).sum())

    def at(self, rows: Array) -> Window:
        """Return the chunks that began at these rows."""
        data = self._data
        steps = rows[:, None] + self._steps
        last = data.last[rows][:, None]
        return Window(
            observation=self.seen(rows),
            actions=self._tensor(data.actions[np.minimum(steps, last)]),
            mask=self._tensor(steps <= last),
        )

    def seen(self, rows: Array, keys: Collection[str] | None = None) -> Observations:
        """Return what a network would have got at these rows: all of it, or these keys."""
        data, looked = self._data, rows
        if len(self._before) > 1:
            # Before the first step the first one is repeated, as workers do.
            looked = np.maximum(rows[:, None] + self._before, data.first[rows][:, None])
        arrays = {
            key: array[looked]
            for key, array in data.observations.items()
            if keys is None or key in keys
        }
        arrays |= {TASK: data.task[rows], PROMPT: data.prompt[rows]}
        tensors = {key: self._tensor(array) for key, array in arrays.items()}
        return Observations(tensors, data.texts)

    def _tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
