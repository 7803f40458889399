"""What an update was like, averaged over its minibatches and summed over ranks."""

from __future__ import annotations

import torch

from hocket.train.learner.ranks import Ranks


class Measures:
    """Means by name. Parts of losses are already divided by the rows of all ranks: they are summed
    over ranks; what is the same on every rank is only noted.

    Numbers stay where they were computed until they are asked for: to read one waits for the
    device, and the device then waits for its next work.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._rows: dict[tuple[str, ...], list[torch.Tensor]] = {}
        """Of each minibatch, by the names of what was measured together."""

    def add(self, **parts: torch.Tensor) -> None:
        """One minibatch's share on this rank."""
        self._keep(parts, self._ranks.total(_row(parts)))

    def note(self, **values: torch.Tensor) -> None:
        """One minibatch's values, equal on all ranks."""
        self._keep(values, _row(values))

    def latest(self, name: str) -> float:
        """Of the last minibatch."""
        names = next(names for names in self._rows if name in names)
        return float(self._rows[names][-1][names.index(name)])

    def result(self) -> dict[str, float]:
        """Means over minibatches."""
        means = {}
        for names, rows in self._rows.items():
            columns = zip(*torch.stack(rows).tolist(), strict=True)
            for name, values in zip(names, columns, strict=True):
                means[name] = sum(values) / len(values)
        return means

    def _keep(self, named: dict[str, torch.Tensor], row: torch.Tensor) -> None:
        self._rows.setdefault(tuple(named), []).append(row)


def _row(values: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.stack([value.detach() for value in values.values()])
