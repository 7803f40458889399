"""`Suspendable`: rows of a batched simulator that wait without moving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hocket.core.arrays import read_ids
from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Array
from hocket.errors import SuspensionError, UsageError

GetRows = Callable[[Array], Any]
SetRows = Callable[[Array, Any], None]


class Suspendable:
    """Wraps a simulator that steps all its rows at once, so that some of them can stand still.

        envs = Suspendable(sim)
        envs.suspend([3, 7])
        obs, reward, terminated, truncated, info = envs.step(actions)
        envs.resume([3])

    A suspended row does not move, whatever the others do and for however long: its state is the
    same after a thousand steps, its clock stands still, it gets no reward and cannot end, and what
    `step` returns for it is what it saw last. Its actions are not used.

    There are two ways, and `suspension` says which one it is. `mask`: the simulator's own step
    takes a mask of the rows to move. `snapshot`: the state of the suspended rows is taken before
    each step and given back after it, which is as exact as that state. It must be all that a row
    is: physics, clocks, random numbers, counters of an automatic reset. A simulator that offers
    neither is refused; hocket never lets a row wait under an action that is meant to do nothing.

    `get_rows(rows) -> state` and `set_rows(rows, state)` are the simulator's own, or given here.
    Everything else of the simulator is reached as before. Not safe to use from several threads.
    """

    def __init__(
        self, sim: Any, *, get_rows: GetRows | None = None, set_rows: SetRows | None = None
    ) -> None:
        self._sim = sim
        self._rows = _count_rows(sim)
        self._get = get_rows or getattr(sim, "get_rows", None)
        self._set = set_rows or getattr(sim, "set_rows", None)
        self._suspended = np.zeros(self._rows, np.bool_)
        self._seen: Any = None
        if getattr(sim, "suspension", None) == "mask":
            self.suspension = "mask"
        elif callable(self._get) and callable(self._set):
            self.suspension = "snapshot"
        else:
            raise SuspensionError(
                f"Rows of {type(sim).__name__} cannot be suspended: it steps all of them at once, "
                f"and it has no get_rows(rows) and set_rows(rows, state) to put some back. Give "
                f"both to Suspendable(sim, get_rows=..., set_rows=...), covering all that a row "
                f"is, clocks included; or run the envs as processes of their own. (Actions that "
                f"are meant to do nothing would let physics, clocks and terminations go on.)"
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sim, name)

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def suspended(self) -> Array:
        """Which rows stand still, as a mask `[N]`."""
        return self._suspended.copy()

    def suspend(self, rows: Any) -> None:
        """Let these rows stand still: an index, a list, an array or tensor of them, or a mask."""
        self._suspended[read_ids(rows, self._rows)] = True

    def resume(self, rows: Any) -> None:
        """Let these rows move again, from where they stand."""
        self._suspended[read_ids(rows, self._rows)] = False

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Reset the simulator; arguments and answer are its own."""
        answer = self._sim.reset(*args, **kwargs)
        if isinstance(answer, tuple) and len(answer) == 2:
            self._seen = answer[0]
        return answer

    def step(self, actions: Any, active: Array | None = None) -> Any:
        """One step of the rows that are not suspended; with `active`, a mask `[N]`, of those in
        it. Returns what the simulator's step does, as gymnasium's five values or RowSteps."""
        moving = ~self._suspended if active is None else active & ~self._suspended
        held = np.flatnonzero(~moving)
        if len(held) == self._rows:
            raise UsageError("All rows are suspended: there is nothing to step. Resume some.")
        if self.suspension == "mask":
            answer = self._sim.step(actions, moving)
        elif not len(held):
            answer = self._sim.step(actions)
        else:
            answer = self._step_around(actions, held, int(np.argmax(moving)))
        return self._mend(answer, held)

    def _step_around(self, actions: Any, held: Array, mover: int) -> Any:
        assert self._get is not None
        assert self._set is not None
        states = self._get(held)
        try:
            # A row that will be put back takes the action of one that moves, which is valid.
            return self._sim.step(_with_rows(actions, held, actions[mover]))
        finally:
            self._set(held, states)

    def _mend(self, answer: Any, held: Array) -> Any:
        """The answer of a step, in which suspended rows show only what they saw last."""
        if isinstance(answer, RowSteps) or not isinstance(answer, tuple) or len(answer) != 5:
            return answer
        seen, rewards, terminated, truncated, info = answer
        if len(held):
            if self._seen is None:
                raise UsageError(
                    "A row was suspended before anything was observed. Reset through Suspendable."
                )
            seen = _keep_rows(seen, self._seen, held)
            rewards = _with_rows(rewards, held, 0)
            terminated = _with_rows(terminated, held, False)  # noqa: FBT003 - a value
            truncated = _with_rows(truncated, held, False)  # noqa: FBT003 - a value
            info = _without(info, held, self._rows)
        self._seen = seen
        return seen, rewards, terminated, truncated, info


def _count_rows(sim: Any) -> int:
    for name in ("rows", "num_envs"):
        count = getattr(sim, name, None)
        if isinstance(count, int):
            return count
    raise UsageError(f"{type(sim).__name__} does not say how many rows it has (rows, num_envs).")


def _with_rows(array: Any, rows: Array, value: Any) -> Any:
    """A copy in which these rows are `value`; the library of the array stays."""
    if hasattr(array, "at") and not isinstance(array, np.ndarray):
        return array.at[rows].set(value)
    copy = array.clone() if hasattr(array, "clone") else np.array(array)
    copy[rows] = value
    return copy


def _keep_rows(new: Any, old: Any, rows: Array) -> Any:
    """Observations, with these rows as they were; dicts and tuples of arrays too."""
    if isinstance(new, Mapping):
        return {key: _keep_rows(value, old[key], rows) for key, value in new.items()}
    if isinstance(new, tuple):
        return tuple(_keep_rows(a, b, rows) for a, b in zip(new, old, strict=True))
    return _with_rows(new, rows, old[rows])


def _without(info: Any, rows: Array, count: int) -> Any:
    """Marks of what happened (masks `[N]`, as gymnasium's `_key`) do not hold for these rows."""
    if not isinstance(info, Mapping):
        return info
    cleaned = {}
    for key, value in info.items():
        is_mask = hasattr(value, "dtype") and "bool" in str(value.dtype) and len(value) == count
        cleaned[key] = _with_rows(value, rows, False) if is_mask else value  # noqa: FBT003
    return cleaned
