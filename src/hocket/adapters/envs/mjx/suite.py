"""Small manipulation tasks, thousands of rows at once: `mjx:reach`, `mjx:push`, `mjx:all`.

Simulated by MJX (MuJoCo in JAX), on a GPU where JAX has one, or with `--env.backend c` by MuJoCo
itself in all the cores' threads. Neither library is imported before the first simulator is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hocket.adapters.envs.gl import backends
from hocket.adapters.envs.mjx.tasks import TASKS
from hocket.core.contracts.batched import BatchedEnv
from hocket.core.data import TaskInfo
from hocket.core.plugins import did_you_mean
from hocket.errors import UnknownNameError

if TYPE_CHECKING:
    from hocket.adapters.envs.mjx.view import MjxView


@dataclass(frozen=True, slots=True, kw_only=True)
class MjxConfig:
    """Who simulates."""

    backend: Literal["jax", "c"] = "jax"
    """`jax`: MJX, in 32-bit floats, compiled for the number of rows when it starts. `c`: MuJoCo's
    own threads, in 64-bit floats. Results of the two differ in the last digits."""
    threads: int = 0
    """Threads of the backend `c`; 0 takes one for each core."""


class Mjx:
    """The suite of both tasks, or of one."""

    Config: ClassVar = MjxConfig

    def __init__(self, argument: str, config: MjxConfig) -> None:
        if argument not in ("", "all", *TASKS):
            raise UnknownNameError(
                f"MJX has no task {argument!r}.{did_you_mean(argument, TASKS)} It has: "
                f"{', '.join(TASKS)}, and all."
            )
        self._names = tuple(TASKS) if argument in ("", "all") else (argument,)
        self._config = config

    def tasks(self) -> Sequence[TaskInfo]:
        return tuple(TASKS[name].info for name in self._names)

    def make_rows(self, task: str, rows: int) -> BatchedEnv:
        """A simulator of one task: each task has a model of its own."""
        made: Any
        if self._config.backend == "c":
            from hocket.adapters.envs.mjx.threads import ThreadedRows

            made = ThreadedRows(TASKS[task], rows, self._config.threads)
        else:
            from hocket.adapters.envs.mjx.jax import JaxRows

            made = JaxRows(TASKS[task], rows)
        env: BatchedEnv = made
        return env

    @staticmethod
    def prepare_worker(index: int) -> None:
        """Called first in each worker that renders: workers take turns over the EGL devices."""
        backends.set_worker(index)

    def make(self, task: str) -> MjxView:
        """One row to look at, for videos of what rows did."""
        from hocket.adapters.envs.mjx.view import MjxView

        return MjxView(TASKS[task])
