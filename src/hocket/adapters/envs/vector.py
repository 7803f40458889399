"""Any `gymnasium.vector.VectorEnv` with its state exposed, as rows: `vector:package.module:make`.

`make(rows)` builds a vector env with `AutoresetMode.DISABLED`, whose `reset` takes gymnasium's
`options={"reset_mask": ...}` with a list of seeds (as `SyncVectorEnv` does) and that has

    get_rows(rows) -> array [k, S]      all that these rows are, clocks included
    set_rows(rows, states)

or a step that takes a mask itself, and then `suspension = "mask"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode

from hocket.core import plugins
from hocket.core.contracts.batched import BatchedEnv, RowSteps
from hocket.core.data import Array, SuccessRule, TaskInfo
from hocket.errors import ConfigError
from hocket.workers.rows.suspendable import Suspendable
from hocket.workers.suites import control_rate_of

_SUCCESS_KEYS = ("success", "is_success")


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorConfig:
    """What a simulator of rows does not say of its task."""

    prompt: str = ""
    max_steps: int | None = None
    """None leaves the limit to the env's own."""
    success_rule: SuccessRule = "first"


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
            ),
        )

    def make_rows(self, task: str, rows: int) -> BatchedEnv:
        return VectorRows(self._make(rows), task)

    def _make(self, rows: int) -> Any:
        return plugins.find("envs", self._name).build(rows)


class VectorRows:
    def __init__(self, env: Any, task: str) -> None:
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
        self.tasks = (task,)
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
        seen, rewards, terminated, truncated, info = self._env.step(actions, active)
        self._see(seen, active)
        self._ended |= np.asarray(terminated, np.bool_) | np.asarray(truncated, np.bool_)
        success = next((info[key] for key in _SUCCESS_KEYS if key in info), None)
        return RowSteps(
            np.asarray(rewards, np.float64),
            np.asarray(terminated, np.bool_),
            np.asarray(truncated, np.bool_),
            None if success is None else np.asarray(success).astype(np.bool_),
            _numbers(info, self.rows),
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


def _numbers(info: Mapping[str, Any], rows: int) -> dict[str, Array]:
    """What a vector env tells of each row beside success: gymnasium's masks say of which rows."""
    found = {}
    for key, values in info.items():
        is_column = isinstance(values, np.ndarray) and values.shape == (rows,)
        if is_column and values.dtype.kind in "biuf" and not key.startswith("_"):
            told = info.get(f"_{key}")
            found[key] = values if told is None else np.where(told, values, np.nan)
    return found
