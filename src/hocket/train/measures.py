"""What an update was like, averaged over its minibatches and summed over ranks."""

from __future__ import annotations

import torch

from hocket.train.ranks import Ranks


class Measures:
    """Means by name. Parts of losses are already divided by the rows of all ranks: they are summed
    over ranks; what is the same on every rank is only noted."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._values: dict[str, list[float]] = {}

    def add(self, **parts: torch.Tensor) -> None:
        """One minibatch's share on this rank."""
        whole = self._ranks.total(torch.stack([part.detach() for part in parts.values()]))
        for name, value in zip(parts, whole.tolist(), strict=True):
            self._values.setdefault(name, []).append(value)

    def note(self, **values: torch.Tensor) -> None:
        """One minibatch's values, equal on all ranks."""
        for name, value in values.items():
            self._values.setdefault(name, []).append(float(value.detach()))

    def latest(self, name: str) -> float:
        """Of the last minibatch."""
        return self._values[name][-1]

    def result(self) -> dict[str, float]:
        """Means over minibatches."""
        return {name: sum(values) / len(values) for name, values in self._values.items()}
