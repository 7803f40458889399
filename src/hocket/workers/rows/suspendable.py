"""`Suspendable`: rows of a batched simulator that wait without moving."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from hocket.core.arrays import read_ids
from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Array
from hocket.errors import EnvError, SuspensionError, UsageError

GetRows = Callable[[Array], Any]
SetRows = Callable[[Array, Any], None]

_ROW_NAMES = ("rows", "env_ids", "env_idx", "reset_mask")
"""What simulators call the rows to reset, as an argument or among a reset's `options`."""


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
    is: physics, clocks, random numbers, counters of an automatic reset (those of gymnasium's
    SyncVectorEnv are put back here). A simulator that offers neither is refused; hocket never lets
    a row wait under an action that is meant to do nothing.

    `get_rows(rows) -> state` and `set_rows(rows, state)` are the simulator's own, or given here.
    Everything else of the simulator is reached as before. Not safe to use from several threads.
    """

    def __init__(
        self, sim: Any, *, get_rows: GetRows | None = None, set_rows: SetRows | None = None
    ) -> None:
        self._sim = sim
        self.rows = _count_rows(sim)
        self._get = get_rows or getattr(sim, "get_rows", None)
        self._set = set_rows or getattr(sim, "set_rows", None)
        if callable(hold_actions := getattr(sim, "hold_actions", None)):
            self.hold_actions = hold_actions  # An ability: it is looked for, and not only called.
        self._suspended = np.zeros(self.rows, np.bool_)
        self._sight = _Sight(self.rows)
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

    def suspend(self, rows: Any) -> None:
        """Let these rows stand still: an index, a list, an array or tensor of them, or a mask."""
        self._suspended[read_ids(rows, self.rows)] = True

    def resume(self, rows: Any) -> None:
        """Let these rows move again, from where they stand."""
        self._suspended[read_ids(rows, self.rows)] = False

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Reset the simulator; arguments and answer are its own. The observations that it returns
        are those of all rows, or of the rows that were named: by a list or array as the first
        argument, or as `rows`, `env_ids`, `env_idx` or gymnasium's `reset_mask`, which may be among
        `options`."""
        named = _named_rows(kwargs, self.rows)
        answer = self._sim.reset(*args, **kwargs)
        if isinstance(answer, tuple) and len(answer) == 2:
            seen = answer[0]
            if _length(seen) in (None, self.rows):
                self._sight.put(seen, named)
            else:
                self._sight.put_some(
                    seen, _listed_rows(args, self.rows) if named is None else named
                )
        return answer

    def step(self, actions: Any, active: Array | None = None) -> Any:
        """One step of the rows that are not suspended; with `active`, a mask `[N]`, of those in
        it. Returns what the simulator's step does, as gymnasium's five values or RowSteps."""
        moving = ~self._suspended if active is None else active & ~self._suspended
        held = np.flatnonzero(~moving)
        if len(held) == self.rows:
            raise UsageError("All rows are suspended: there is nothing to step. Resume some.")
        if not callable(getattr(self._sim, "observe", None)):  # its step tells what rows see
            self._sight.require(held)
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
        with _unended(self._sim, held):
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
        for name, told in (("observations", seen), ("rewards", rewards), ("ends", terminated)):
            if _length(told) not in (None, self.rows):
                raise EnvError(
                    f"step() of {type(self._sim).__name__} gave {name} of {_length(told)} rows; it "
                    f"has {self.rows}."
                )
        if len(held):
            seen = self._sight.show(seen, held)
            rewards = _with_rows(rewards, held, 0)
            terminated = _with_rows(terminated, held, False)  # noqa: FBT003 - a value
            truncated = _with_rows(truncated, held, False)  # noqa: FBT003 - a value
            info = _without(info, held, self.rows)
        self._sight.put(seen, np.setdiff1d(np.arange(self.rows), held))
        return seen, rewards, terminated, truncated, info


class _Sight:
    """What every row saw last, in copies of its own: a simulator may write into what it returned,
    and so may whoever it was returned to."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._tree: object = None
        self._is_known = np.zeros(rows, np.bool_)

    def require(self, rows: Array) -> None:
        """Raise where it is not known what these rows saw."""
        unknown = rows[~self._is_known[rows]].tolist()
        if not unknown:
            return
        if self._tree is None:
            raise UsageError(
                "A row was suspended before anything was observed. Reset through Suspendable."
            )
        raise UsageError(
            f"Row {unknown[0]} is suspended, and what it sees is not known: the last reset "
            "returned observations of some rows, and did not say of which. Name them in a list as "
            f"its first argument, or as {', '.join(_ROW_NAMES)}."
        )

    def put(self, seen: Any, rows: Array | None) -> None:
        """Keep what these rows see, None for all of them, of observations of all rows."""
        if rows is None or not self._is_known.any():
            self._tree, rows = _map(_copied, seen), np.arange(self._rows)
        else:
            self._tree = _map(lambda old, new: _put(old, rows, new[rows]), self._tree, seen)
        self._is_known[rows] = True

    def put_some(self, seen: Any, rows: Array | None) -> None:
        """Keep observations of these rows alone; where None says which, of no row it is known
        any more what it sees."""
        if rows is None or len(rows) != _length(seen):
            self._is_known[:] = False
            rows = np.zeros(0, np.intp)
        if self._tree is None:
            # Room for all rows, in the library of the arrays; what it holds is not known.
            self._tree = _map(lambda new: new[np.zeros(self._rows, np.intp)], seen)
        if len(rows):
            self._tree = _map(lambda old, new: _put(old, rows, new), self._tree, seen)
        self._is_known[rows] = True

    def show(self, seen: Any, rows: Array) -> Any:
        """A copy of observations, in which these rows see what they saw last."""
        self.require(rows)
        return _map(lambda new, old: _with_rows(new, rows, old[rows]), seen, self._tree)


def _count_rows(sim: Any) -> int:
    for name in ("rows", "num_envs"):
        count = getattr(sim, name, None)
        if isinstance(count, int):
            return count
    raise UsageError(f"{type(sim).__name__} does not say how many rows it has (rows, num_envs).")


def _named_rows(kwargs: Mapping[str, Any], count: int) -> Array | None:
    """The rows that a reset's keywords name; None where they name none. Read before the reset:
    gymnasium takes the mask out of the options."""
    options = kwargs.get("options")
    named = {**(options if isinstance(options, Mapping) else {}), **kwargs}
    found = [named[name] for name in _ROW_NAMES if named.get(name) is not None]
    return read_ids(found[0], count) if found else None


def _listed_rows(args: tuple[Any, ...], count: int) -> Array | None:
    """The rows that a reset's first argument lists; None where it is no list of rows."""
    if not args or args[0] is None or isinstance(args[0], int):
        return None  # a number in first position is a seed
    try:
        return read_ids(args[0], count)
    except UsageError:
        return None


def _length(tree: Any) -> int | None:
    """How many rows observations have; None where they do not say."""
    while isinstance(tree, (Mapping, tuple)) and len(tree):
        tree = next(iter(tree.values() if isinstance(tree, Mapping) else tree))
    shape: Any = getattr(tree, "shape", ())
    return int(shape[0]) if len(shape) else None


@contextmanager
def _unended(sim: Any, rows: Array) -> Iterator[None]:
    """Hide from gymnasium's SyncVectorEnv that these rows have ended, and keep it from believing
    that they end inside: it marks rows that await a reset beside their states, and neither steps
    such a row nor lets others step."""
    inner = getattr(sim, "unwrapped", sim)
    marks = getattr(inner, "_autoreset_envs", None)
    if marks is None:
        yield
        return
    before = marks[rows]
    marks[rows] = False
    try:
        yield
    finally:
        inner._autoreset_envs[rows] = before


def _map(change: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The tree of dicts and tuples with each array changed, together with those of like trees."""
    if isinstance(tree, Mapping):
        return {key: _map(change, value, *(o[key] for o in others)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_map(change, *parts) for parts in zip(tree, *others, strict=True))
    return change(tree, *others)


def _is_immutable(array: Any) -> bool:
    return hasattr(array, "at") and not isinstance(array, np.ndarray)  # as JAX's are


def _copied(array: Any) -> Any:
    """A copy; the library of the array stays."""
    if _is_immutable(array):
        return array
    return array.clone() if hasattr(array, "clone") else np.array(array)


def _put(array: Any, rows: Array, value: Any) -> Any:
    """The array with these rows set, in place where its library can."""
    if _is_immutable(array):
        return array.at[rows].set(value)
    array[rows] = value
    return array


def _with_rows(array: Any, rows: Array, value: Any) -> Any:
    """A copy in which these rows are `value`."""
    return _put(_copied(array), rows, value)


def _without(info: Any, rows: Array, count: int) -> Any:
    """Unset marks of what happened (masks `[N]`, as gymnasium's `_key`) for these rows."""
    if not isinstance(info, Mapping):
        return info
    cleaned = {}
    for key, value in info.items():
        is_mask = hasattr(value, "dtype") and "bool" in str(value.dtype) and len(value) == count
        cleaned[key] = _with_rows(value, rows, False) if is_mask else value  # noqa: FBT003
    return cleaned
