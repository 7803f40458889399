"""Any `gymnasium.vector.VectorEnv` with its state exposed, as rows: `vector:package.module:make`.

`make(rows)` builds a vector env with `AutoresetMode.DISABLED`, whose `reset` takes gymnasium's
`options={"reset_mask": ...}` with a list of seeds (as `SyncVectorEnv` does) and that has

    get_rows(rows) -> array [k, S]      all that these rows are, clocks included
    set_rows(rows, states)

or a step that takes a mask itself, and then `suspension = "mask"`.

Beside it stands what vector envs of torch share whose step moves all rows: Isaac Lab's and
ManiSkill's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode

from hocket.core import plugins
from hocket.core.contracts.batched import BatchedEnv, RowSteps
from hocket.core.data import Array, SuccessRule
from hocket.core.outcomes import SUCCESS_KEYS, scores
from hocket.core.specs import TaskInfo
from hocket.errors import ConfigError, EnvError
from hocket.workers.rows.suspendable import Suspendable
from hocket.workers.suites import control_rate_of


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorConfig:
    """What a simulator of rows does not say of its task."""

    plain_texts: ClassVar[tuple[str, ...]] = ("prompt",)
    prompt: str = ""
    max_steps: int | None = None
    """None leaves the limit to the env's own."""
    success_rule: SuccessRule = "first"
    score_key: str = ""
    """Where its info tells a score, a number from 0 to 1."""
    success_at: float | None = None
    """The least score that is a success."""


class Vector:
    """The suite of the one task that a factory makes."""

    Config: ClassVar[type] = VectorConfig
    _prefix: ClassVar[str] = "vector"
    _makes: ClassVar[str] = "gymnasium VectorEnv"

    def __init__(self, argument: str, config: Any) -> None:
        if ":" not in argument:
            raise ConfigError(
                f"'{self._prefix}:{argument}' names no factory. Write "
                f"{self._prefix}:package.module:make, where make(rows) builds a {self._makes}."
            )
        self._name = argument
        self._config = config

    def tasks(self) -> Sequence[TaskInfo]:
        config = self._config
        return (
            TaskInfo(
                name=self._name,
                prompt=config.prompt,
                max_steps=config.max_steps,
                success_rule=config.success_rule,
                score_key=config.score_key,
                success_at=config.success_at,
            ),
        )

    def make_rows(self, task: str, rows: int) -> BatchedEnv:
        return VectorRows(self._make(rows), self.tasks()[0])

    def _make(self, rows: int) -> Any:
        return plugins.find("envs", self._name).build(rows)


class VectorRows:
    def __init__(self, env: Any, task: TaskInfo) -> None:
        self._env = Suspendable(env)
        mode = getattr(env, "metadata", {}).get("autoreset_mode")
        if mode is not None and mode != AutoresetMode.DISABLED:
            env.close()
            raise ConfigError(
                f"{type(env).__name__} resets its rows by itself ({mode}); hocket resets each row "
                f"with the seed of its next trial. Build it with "
                f"autoreset_mode=AutoresetMode.DISABLED."
            )
        self.suspension = self._env.suspension
        self.rows = self._env.rows
        self._task, self.tasks = task, (task.name,)
        self.action_space = env.single_action_space
        self.control_rate = control_rate_of(env)
        if hasattr(self._env, "hold_actions"):
            self.hold_actions = self._env.hold_actions
        self._seen: dict[str, Array] = {}
        self._ended = np.zeros(self.rows, np.bool_)
        """Rows whose simulator stands where an episode ended."""

    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        del tasks
        mask = np.isin(np.arange(self.rows), rows)
        by_row = dict(zip(rows.tolist(), map(int, seeds), strict=True))
        if not self._seen:
            # A vector env begins with all of its rows; those that nobody asked for wait.
            self._env.reset(seed=[by_row.get(row, 0) for row in range(self.rows)])
        given = [by_row.get(row) for row in range(self.rows)]
        seen, _ = self._env.reset(seed=given, options={"reset_mask": mask})
        self._see(seen, mask)
        self._ended[rows] = False

    def step(self, actions: Array, active: Array) -> RowSteps:
        if self.suspension == "snapshot" and self._ended.any():
            # Most envs may not be stepped where they ended, and a vector env steps all: until
            # their reset such rows stand where one stands that moves.
            over = np.flatnonzero(self._ended)
            mover = np.full(len(over), np.argmax(active))
            self._env.set_rows(over, self._env.get_rows(mover))
            self._ended[:] = False
        answer = self._env.step(actions, active)
        if not isinstance(answer, tuple) or len(answer) != 5 or not isinstance(answer[4], Mapping):
            kinds = [type(part).__name__ for part in answer] if isinstance(answer, tuple) else []
            raise EnvError(
                f"step() of the rows of {self.tasks[0]!r} gave a {type(answer).__name__} "
                f"({', '.join(kinds)}); it must return (observations, rewards, terminated, "
                f"truncated, info), with a dict as info, as gymnasium's vector envs do."
            )
        seen, rewards, terminated, truncated, info = answer
        self._see(seen, active)
        key = self._task.score_key
        if (told := info.get(key)) is not None:
            # A number of a row that tells none is NaN, as one that is none would be.
            rows = np.flatnonzero(info.get(f"_{key}", active) & active)
            scores(told, key, self._task, rows)
        self._ended |= np.asarray(terminated, np.bool_) | np.asarray(truncated, np.bool_)
        return RowSteps(
            np.asarray(rewards, np.float64),
            np.asarray(terminated, np.bool_),
            np.asarray(truncated, np.bool_),
            _success(info, active),
            _numbers(info, active),
        )

    def observe(self, rows: Array) -> dict[str, Array]:
        return {key: array[rows] for key, array in self._seen.items()}

    def close(self) -> None:
        self._env.close()

    def _see(self, seen: Any, mask: Array) -> None:
        tree = seen if isinstance(seen, Mapping) else {"state": seen}
        for key, value in tree.items():
            name = key if "/" in key else f"observation/{key}"
            array = np.asarray(value)
            if name not in self._seen:
                self._seen[name] = array.copy()
            else:
                self._seen[name][mask] = array[mask]


def _success(info: Mapping[str, Any], active: Array) -> Any:
    """What a vector env tells of success: gymnasium's masks say of which rows."""
    for key in SUCCESS_KEYS:
        told, is_told = info.get(key), info.get(f"_{key}", active)
        if isinstance(told, Mapping):
            return _unmasked(told)
        if told is not None and is_told[active].all():
            return np.asarray(told)
        if told is not None and is_told[active].any():
            found = np.full(len(active), None, object)
            for row in np.flatnonzero(is_told):
                found[row] = told[row]
            return found
    return None


def _unmasked(told: Mapping[str, Any]) -> dict[str, Any]:
    """Subgoals without gymnasium's masks: each step tells all of them."""
    return {
        key: _unmasked(value) if isinstance(value, Mapping) else value
        for key, value in told.items()
        if not (key.startswith("_") and key[1:] in told)
    }


def _numbers(info: Mapping[str, Any], active: Array) -> dict[str, Array]:
    """What a vector env tells of each row beside success."""
    found = {}
    for key, values in info.items():
        is_column = isinstance(values, np.ndarray) and values.shape == active.shape
        if is_column and values.dtype.kind in "biuf" and not key.startswith("_"):
            told = info.get(f"_{key}", active)
            found[key] = values if told[active].all() else np.where(told, values, np.nan)
    return found


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
