"""Vector envs of torch's whose step moves all rows: what Isaac Lab's and ManiSkill's share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from hocket.core.data import Array
from hocket.workers.suites import control_rate_of


class TensorRows(ABC):
    """A vector env of torch's whose step moves all of its rows: what its batched envs share."""

    suspension = "snapshot"

    def __init__(self, env: Any, task: str) -> None:
        import torch

        self._torch = torch
        self._env = env
        self.rows = int(env.num_envs)
        self.tasks = (task,)
        self.control_rate = control_rate_of(env)
        self._seen: dict[str, Any] = {}
        """What each row saw when it moved last, by observation key."""

    def observe(self, rows: Array) -> Mapping[str, Array]:
        ids = self._ids(rows)
        return {key: tensor[ids] for key, tensor in self._seen.items()}

    def close(self) -> None:
        self._env.close()

    def _ids(self, rows: Any) -> Any:
        return self._torch.as_tensor(np.array(rows, np.int64), device=self._env.device)

    def _actions(self, actions: Array, active: Array) -> Any:
        """Actions for all rows: those that will be put back take the action of one that moves,
        which is valid."""
        given = np.array(actions, np.float32)
        given[~active] = given[int(np.argmax(active))]
        return self._torch.as_tensor(given, device=self._env.device)

    def _see(self, seen: Any, ids: Any) -> None:
        """Keep what these rows see; what a simulator says of the others belongs to no step of
        theirs."""
        tree = seen if isinstance(seen, Mapping) else {"state": seen}
        for key, tensor in flat_tree(tree, "observation").items():
            if key not in self._seen:
                self._seen[key] = tensor.clone()
            else:
                self._seen[key][ids] = tensor[ids]

    @contextmanager
    def _suspended(self, rows: Array) -> Iterator[None]:
        """Put these rows back where they were, whatever happens inside."""
        if not len(rows):
            yield
            return
        ids = self._ids(rows)
        taken = self._take(ids)
        try:
            yield
        finally:
            self._give_back(ids, taken)

    @abstractmethod
    def _take(self, ids: Any) -> Any:
        """All that these rows are, as the simulator keeps it."""

    @abstractmethod
    def _give_back(self, ids: Any, taken: Any) -> None:
        """Make these rows what they were when that was taken."""


def flat_tree(tree: Any, prefix: str) -> dict[str, Any]:
    """Nested dicts of tensors under slash keys."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(flat_tree(value, f"{prefix}/{key}"))
    return flat


def pick(tree: Any, rows: Any) -> Any:
    """Copies of some rows of every tensor in a tree of dicts."""
    if isinstance(tree, Mapping):
        return {key: pick(value, rows) for key, value in tree.items()}
    return tree[rows].clone()


def host(tensor: Any) -> Array:
    array: Array = tensor.detach().cpu().numpy()
    return array
