"""What a learner measures of its data as it goes: the spread of returns, which rewards are scaled
by, and the mean and spread of what a network sees. Both are saved with a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hocket.train.algorithms.ranks import Ranks
from hocket.train.algorithms.stretches import Stretch
from hocket.train.networks.contract import TASK, Observations, Tensors, normaliser_of

_CONSTANT = 1e-4
"""A spread below this is that of a constant, which is not scaled."""


class Moments:
    """Running mean and variance of G groups of F numbers, over the data of all ranks."""

    def __init__(self, groups: int, size: int) -> None:
        self.count = torch.zeros(groups, dtype=torch.float64)
        self.mean = torch.zeros(groups, size, dtype=torch.float64)
        self.squares = torch.zeros(groups, size, dtype=torch.float64)
        """Sums of squared distances from the mean."""

    def add(self, group: int, values: Tensor, ranks: Ranks) -> None:
        """Take rows `[N, F]` of a group; there may be none on this rank."""
        values = values.double().cpu()
        count = ranks.count(len(values))
        if not count:
            return
        mean = ranks.total(values.sum(0)) / count
        squares = ranks.total(((values - mean) ** 2).sum(0))
        known = float(self.count[group])
        apart = mean - self.mean[group]
        self.count[group] += count
        self.mean[group] += apart * (count / (known + count))
        self.squares[group] += squares + apart**2 * (known * count / (known + count))

    @property
    def spread(self) -> Tensor:
        """The standard deviation `[G, F]`; 1 where there is hardly any, or no data."""
        found = (self.squares / self.count.clamp(min=1.0)[:, None]).sqrt()
        return torch.where(found > _CONSTANT, found, 1.0)

    def to_tensors(self) -> dict[str, Tensor]:
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.count, self.mean, self.squares = (
            tensors[key].clone() for key in ("count", "mean", "squares")
        )


class Statistics:
    """Both measures of one learner. What is None is not measured."""

    def __init__(self, network: object, *, scales_rewards: bool, gamma: float) -> None:
        self._network = normaliser_of(network)
        self._gamma = gamma
        self._returns = Moments(1, 1) if scales_rewards else None
        self._seen: Moments | None = None
        if self._network is not None:
            self._seen = Moments(*self._network.mean.shape)

    @property
    def reward_scale(self) -> float:
        """What rewards are multiplied by."""
        return 1.0 if self._returns is None else 1.0 / float(self._returns.spread)

    @property
    def is_new(self) -> bool:
        """True if what the network sees has never been measured."""
        return self._seen is not None and not self._seen.count.any()

    def add_returns(self, stretches: Sequence[Stretch], ranks: Ranks) -> None:
        """Measure the discounted sums of rewards at every step."""
        if self._returns is not None:
            sums = np.concatenate([_sums(stretch, self._gamma) for stretch in stretches])
            self._returns.add(0, torch.from_numpy(sums)[:, None], ranks)

    def add_seen(self, stretches: Sequence[Stretch], ranks: Ranks) -> None:
        """Measure what the network saw, and tell the network. The caller gives the weights a new
        version: probabilities of what was sampled hold for the old numbers."""
        if self._seen is not None and self._network is not None:
            self.add_observation(
                {
                    key: torch.from_numpy(np.concatenate([s.observation[key] for s in stretches]))
                    for key in (TASK, *self._network.states)
                },
                ranks,
            )

    def add_observation(self, observation: Tensors, ranks: Ranks) -> None:
        """The same, of observations `[B, ...]` with the keys that the network measures."""
        if self._seen is None or self._network is None:
            return
        device = self._network.mean.device
        there = {key: observation[key].to(device) for key in (TASK, *self._network.states)}
        with torch.no_grad():
            features = self._network.features(Observations(there))
        for task in range(len(self._seen.count)):
            self._seen.add(task, features[there[TASK] == task], ranks)
        self._network.mean.copy_(self._seen.mean)
        self._network.scale.copy_(self._seen.spread)

    def to_tensors(self) -> dict[str, Tensor]:
        return {
            f"{name}|{key}": tensor
            for name, moments in (("returns", self._returns), ("seen", self._seen))
            if moments is not None
            for key, tensor in moments.to_tensors().items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, moments in (("returns", self._returns), ("seen", self._seen)):
            if moments is not None:
                moments.load({key: tensors[f"{name}|{key}"] for key in moments.to_tensors()})


def _sums(stretch: Stretch, gamma: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Sums of rewards up to each executed step, older ones discounted."""
    length = stretch.rewards.shape[1]
    rewards = stretch.rewards[np.arange(length) < stretch.executed[:, None]]
    sums, total = np.empty(len(rewards)), 0.0
    for i, reward in enumerate(rewards):
        sums[i] = total = gamma * total + reward
    return sums
