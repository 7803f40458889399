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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moves:
    """B decisions and what came of them."""

    observation: Observations
    actions: Tensor
    """`[B, T, A]`."""
    mask: Tensor
    """Which of them were executed, `[B, T]` bool."""
    reward: Tensor
    """The rewards of the steps that were executed, discounted to the first: `[B]`."""
    discount: Tensor
    """What `following` is worth here, `[B]`: gamma to the power of the steps that were executed,
    and 0 where the episode ended for good."""
    following: Observations

    @staticmethod
    def joined(some: Moves, more: Moves) -> Moves:
        """The rows of both."""
        return Moves(
            observation=_joined(some.observation, more.observation),
            actions=torch.cat((some.actions, more.actions)),
            mask=torch.cat((some.mask, more.mask)),
            reward=torch.cat((some.reward, more.reward)),
            discount=torch.cat((some.discount, more.discount)),
            following=_joined(some.following, more.following),
        )


def _joined(some: Observations, more: Observations) -> Observations:
    tensors = {key: torch.cat((some[key], more[key])) for key in some if key != PROMPT}
    tensors[PROMPT] = torch.cat((some[PROMPT], more[PROMPT] + len(some.texts)))
    return Observations(tensors, (*some.texts, *more.texts))


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
        """`history`: consecutive steps whose observations each chunk has."""
        self.data = data
        self._steps = np.arange(chunk_length)
        self._before = np.arange(1 - history, 1)
        self._device = device

    def __len__(self) -> int:
        """Chunks: one for each recorded step."""
        return len(self.data)

    def draw(self, count: int, rng: torch.Generator) -> Array:
        """Draw rows with replacement, so that the next draw depends on `rng` alone."""
        rows: Array = torch.randint(len(self.data), (count,), generator=rng).numpy()
        return rows

    def actions_at(self, rows: Array) -> int:
        """Recorded actions of the chunks that began at these rows."""
        left = self.data.last[rows] - rows + 1
        return int(np.minimum(left, len(self._steps)).sum())

    def at(self, rows: Array) -> Window:
        """The chunks that began at these rows."""
        data = self.data
        steps = rows[:, None] + self._steps
        last = data.last[rows][:, None]
        return Window(
            observation=self.seen(rows),
            actions=self._tensor(data.actions[np.minimum(steps, last)]),
            mask=self._tensor(steps <= last),
        )

    def moves(self, rows: Array, steps: int, gamma: float) -> Moves:
        """The same as decisions, of whose chunks at most `steps` actions were executed. What was
        seen after an episode that was cut off is its last row, before which it ends."""
        data = self.data
        is_cut = ~data.terminated[rows]
        before = np.maximum(np.minimum(rows, data.last[rows] - 1), data.first[rows])
        rows = np.where(is_cut, before, rows)
        last, ages = data.last[rows], np.arange(steps)
        left = last - rows + ~is_cut
        counts = ages < left[:, None]
        executed = np.minimum(left, steps)
        goes_on = is_cut | (left > steps)
        chunk = np.minimum(rows[:, None] + self._steps, last[:, None])
        rewards = data.rewards[np.minimum(rows[:, None] + ages, last[:, None])]
        reward = (rewards * counts * gamma**ages).sum(1)
        return Moves(
            observation=self.seen(rows),
            actions=self._tensor(data.actions[chunk]),
            mask=self._tensor(self._steps < executed[:, None]),
            reward=self._tensor(reward.astype(np.float32)),
            discount=self._tensor((gamma**executed * goes_on).astype(np.float32)),
            following=self.seen(np.minimum(rows + executed, last)),
        )

    def seen(self, rows: Array, keys: Collection[str] | None = None) -> Observations:
        """What a network would have got at these rows: all of it, or these keys."""
        data, looked = self.data, rows
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
