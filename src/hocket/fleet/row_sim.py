"""One batched simulator in a host: built, driven and observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hocket.contracts import BatchedEnv, CostsByRow, RowSnapshots, RowSteps
from hocket.data import Array, ArraySpec, EnvSpec, Observation, Signature, TaskInfo
from hocket.errors import EnvError, SuspensionError
from hocket.fleet.row_arrays import choose, first_row, on_host, signature_of
from hocket.fleet.spaces import Drive, is_image

WAYS = {
    "mask": "Rows that wait for a chunk are masked out of the simulator's step.",
    "snapshot": "Rows that wait for a chunk are put back to a snapshot after each step of others.",
}


class RowSim:
    """A simulator with the chunks that its rows execute."""

    def __init__(self, env: BatchedEnv, rows: int) -> None:
        if env.rows != rows:
            raise EnvError(f"The simulator has {env.rows} rows; it was asked for {rows}.")
        if env.suspension not in WAYS:
            raise SuspensionError(
                f"{type(env).__name__} says that its rows are suspended by {env.suspension!r}; "
                f"known ways are {' and '.join(WAYS)}. Rows never wait under an action."
            )
        self.env = env
        # Asked once: a look for a Protocol's methods costs more than a small batch.
        self.shares_steps = not (isinstance(env, CostsByRow) and env.steps_cost_by_row)
        """A step costs nearly the same for any number of rows."""
        self.drive = Drive(env.action_space)
        action = self.drive.spec
        self._chunks = np.zeros((rows, 1, *action.shape), action.dtype)
        self._actions = np.zeros((rows, *action.shape), action.dtype)
        self._seen: dict[str, Signature] = {}

    @property
    def keeps_states(self) -> bool:
        """Whether rows' states can be taken."""
        return isinstance(self.env, RowSnapshots)

    @property
    def abilities(self) -> tuple[str, ...]:
        """As EnvSpec has them."""
        can = {
            "deferred": True,
            "snapshot": self.keeps_states,
            "batched": True,
            "masked": self.env.suspension == "mask",
        }
        return tuple(name for name, is_there in can.items() if is_there)

    def load(self, rows: Array, counts: Array, actions: Array) -> None:
        """Chunks `[sum of counts, ...]` for these rows, one after the other."""
        longest = int(counts.max())
        if longest > self._chunks.shape[1]:
            grown = np.zeros((len(self._chunks), longest, *self._chunks.shape[2:]), actions.dtype)
            grown[:, : self._chunks.shape[1]] = self._chunks
            self._chunks = grown
        if int(counts.min()) == longest:
            self._chunks[rows, :longest] = actions.reshape(len(rows), longest, *actions.shape[1:])
            return
        at = 0
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            self._chunks[row, :count] = actions[at : at + count]
            at += count

    def splice(self, row: int, start: int, actions: Array) -> None:
        """Other actions for one row, from the place `start` of its chunk on."""
        end = start + len(actions)
        if end > self._chunks.shape[1]:
            more = np.zeros((len(self._chunks), end, *self._chunks.shape[2:]), actions.dtype)
            more[:, : self._chunks.shape[1]] = self._chunks
            self._chunks = more
        self._chunks[row, start:end] = actions

    def step(self, rows: Array | slice, active: Array, place: Array | int) -> RowSteps:
        """The action at this place of its chunk for each active row, which are `rows`."""
        if isinstance(rows, slice) and not isinstance(place, int):
            self._actions[:] = self._chunks[np.arange(len(place)), place]
        else:
            self._actions[rows] = self._chunks[rows, place]
        return self.env.step(self._actions, active)

    def action(self, row: int) -> Array:
        """What the row executed last."""
        action: Array = self._actions[row]
        return action

    def observe(self, rows: Array, reads: tuple[str, ...] | None) -> dict[str, Array]:
        """What the policy reads of these rows."""
        return choose(self.env.observe(rows), reads)

    def look(self, rows: Array) -> dict[str, Array]:
        """All that these rows see, on the host."""
        return {key: on_host(array) for key, array in self.env.observe(rows).items()}

    def states(self, rows: Array) -> Array:
        """The rows' states, on the host."""
        assert isinstance(self.env, RowSnapshots)
        return on_host(self.env.get_rows(rows)).astype(np.float64)

    def prompts(self, rows: Array, tasks: Sequence[TaskInfo]) -> list[str]:
        """The simulator's own where it has some, else the tasks'."""
        ask = getattr(self.env, "prompts", None)
        if ask is None:
            return [task.prompt for task in tasks]
        return [str(text) for text in ask(rows)]

    def learn(self, task: str, row: int, reads: tuple[str, ...] | None) -> None:
        """See once what rows of a task look like."""
        if task not in self._seen:
            self._seen[task] = signature_of(first_row(self.observe(np.array([row]), reads)))

    def signature(self, task: str) -> Signature:
        """Of a task that was seen."""
        return self._seen[task]

    def spec(self, task: TaskInfo, row: int, reads: tuple[str, ...] | None) -> EnvSpec:
        """What the simulator is, told by one row."""
        arrays: Observation = first_row(self.observe(np.array([row]), reads))
        notes: Any = getattr(self.env, "notes", ())
        return EnvSpec(
            task=task,
            action=self.drive.spec,
            observations=_specs(arrays),
            cameras=tuple(key for key in sorted(arrays) if is_image(arrays[key])),
            abilities=self.abilities,
            notes=(WAYS[self.env.suspension], *(str(note) for note in notes)),
        )


def _specs(arrays: Mapping[str, Array]) -> dict[str, ArraySpec]:
    return {
        key: ArraySpec(shape=array.shape, dtype=array.dtype.str)
        for key, array in sorted(arrays.items())
    }
