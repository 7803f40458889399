"""One batched simulator in a host: built, driven and observed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.core.contracts.batched import BatchedEnv, CostsByRow, RowSnapshots, RowSteps
from hocket.core.data import Array, ArraySpec, EnvSpec, Observation, Signature, TaskInfo
from hocket.errors import EnvError, SuspensionError
from hocket.workers.rows.arrays import choose, first_row, on_host, signature_of
from hocket.workers.rows.moves import Moving, as_bytes
from hocket.workers.spaces import Drive, is_image

WAYS = {
    "mask": "Rows that wait for a chunk are masked out of the simulator's step.",
    "snapshot": "Rows that wait for a chunk are put back to a snapshot after each step of others.",
}


class Stride(NamedTuple):
    """Some steps, made one after the other."""

    last: RowSteps
    """What the last one gave, which nobody has looked at yet."""
    rewards: Sequence[bytes]
    """Of all rows in each of those before it, float64."""
    took: Sequence[float]
    """Seconds of each."""


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
        self._chunks = np.zeros((1, rows, *action.shape), action.dtype)
        """All rows' actions of one step lie side by side."""
        self._actions = np.zeros((rows, *action.shape), action.dtype)
        self._last = self._actions
        """What the simulator was given last."""
        self._is_masked = env.suspension == "mask"
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
        self._make_room(longest)
        if int(counts.min()) == longest:
            blocks = actions.reshape(len(rows), longest, *actions.shape[1:])
            self._chunks[:longest, rows] = blocks.swapaxes(0, 1)
            return
        at = 0
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            self._chunks[:count, row] = actions[at : at + count]
            at += count

    def load_block(self, rows: Array, chunks: Array) -> None:
        """Chunks `[B, k, A]` for these rows, one for each."""
        count = chunks.shape[1]
        self._make_room(count)
        shape = (len(rows), count, *self._chunks.shape[2:])
        self._chunks[:count, rows] = chunks.reshape(shape).swapaxes(0, 1)

    def _make_room(self, longest: int) -> None:
        known = len(self._chunks)
        if longest > known:
            grown = np.zeros((longest, *self._chunks.shape[1:]), self._chunks.dtype)
            grown[:known] = self._chunks
            self._chunks = grown

    def step(self, moving: Moving, place: Array | int) -> RowSteps:
        """The action at this place of its chunk for each row that moves."""
        if isinstance(place, int) and self.takes_any(moving):
            self._last = self._chunks[place]
        else:
            rows = moving.rows
            self._actions[rows] = self._chunks[place, rows]
            self._last = self._actions
        return self.env.step(self._last, moving.mask)

    def takes_any(self, moving: Moving) -> bool:
        """Whether it does not matter what is in the actions of rows that do not move."""
        return self._is_masked or moving.count == len(moving.mask)

    def stride(
        self,
        moving: Moving,
        place: int,
        most: int,
        until: float,
        clock: Callable[[], float],
        is_called: Callable[[], bool],
    ) -> Stride:
        """Steps of rows that are all at this place of their chunks, as long as they are quiet, and
        `most` of them before the last; none after this time, or a call.

        What lies between two steps is kept short: after a step of 20 ms nothing of it is in the
        processor's caches, and each line costs ten times what it does in a busy loop.
        """
        step, chunks, mask = self.env.step, self._chunks, moving.mask
        rewards: list[bytes] = []
        took: list[float] = []
        last = place + most
        now = clock()
        while True:
            result = step(chunks[place], mask)
            began, now = now, clock()
            took.append(now - began)
            if place >= last or now >= until or is_called() or not moving.is_quiet(result):
                self._last = chunks[place]
                return Stride(result, rewards, took)
            rewards.append(as_bytes(result.rewards))
            place += 1

    def action(self, row: int) -> Array:
        """What a row that moved executed last."""
        action: Array = self._last[row]
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
