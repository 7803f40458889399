"""What a batched simulator is: many rows behind one step.

Whoever has a simulator that steps many envs in one call (Isaac Lab, ManiSkill, MJX ...) writes a
BatchedEnv and the BatchedSuite that makes it; hocket's own are adapters, and
`hocket.Suspendable` turns a simulator without a mask into one that has it. The simulator lives in
the engine's process, and each of its rows is a lane.

The simulator may also have `prompts(rows)`, a prompt for each row where the task's is not enough,
`control_rate` where the suite does not say it of the task, and `notes`, sentences that the user is
shown once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from hocket.core.data import Array
from hocket.core.specs import TaskInfo

if TYPE_CHECKING:
    import gymnasium


class RowSteps(NamedTuple):
    """What one step gave for every row, as arrays of numpy's. What stands in rows that were not
    active is never read."""

    rewards: Array
    """float `[N]`."""
    terminated: Array
    """bool `[N]`."""
    truncated: Array
    """bool `[N]`."""
    success: Array | Mapping[str, Any] | None = None
    """bool, or 0 and 1, `[N]`; subgoals are `[N, ...]`, or dicts of arrays. None where the
    simulator does not judge; in an array of objects, where it does not judge a row."""
    numbers: Mapping[str, Array] | None = None
    """What else it tells of each row, numbers or truth values `[N]` by name: terms of the reward,
    metrics, the score. NaN where a row did not tell. They may stay on a device."""


class BatchedEnv(Protocol):
    """Many rows behind one step. A row that is not active does not move: no physics, no clock, no
    termination, to the bit. Rows know nothing of each other, and none resets itself.

    Everything random in a row follows from the seed of its last reset. What `observe` gives may
    live on a device (torch, or any array with DLPack); all else is numpy's.
    """

    @property
    def rows(self) -> int:
        """N, the number of rows."""

    @property
    def tasks(self) -> Sequence[str]:
        """The tasks that rows may be reset to, side by side."""

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The action space of one row."""

    @property
    def suspension(self) -> str:
        """How rows are kept from moving: `mask`; `snapshot` where they are put back after each step
        of the others; or `together` where neither can be. Then no row moves while one that has an
        episode has no action, rows begin when none has an episode, and one that is not active has
        none: it is refused, by raising, if it is to move again before its reset."""

    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        """Begin anew in these rows, int `[k]`, and touch no other."""

    def step(self, actions: Array, active: Array) -> RowSteps:
        """Make one control step of the rows in the mask `[N]`, with actions `[N, ...]`."""

    def observe(self, rows: Array) -> Mapping[str, Array]:
        """What these rows see now, stacked `[k, ...]` under flat keys; changes nothing. The arrays
        are the caller's: a policy reads them while other rows step."""

    def close(self) -> None:
        """Release the simulator. Twice is safe."""


@runtime_checkable
class RowSnapshots(Protocol):
    """A batched simulator whose rows' whole state, clocks and random numbers included, can be
    taken and given back: one vector of numbers for each row, stacked `[k, S]`."""

    def get_rows(self, rows: Array) -> Array: ...

    def set_rows(self, rows: Array, states: Array) -> None: ...


@runtime_checkable
class Draws(Protocol):
    """A batched simulator that can leave pictures out of a step."""

    draws: bool
    """False while a step is made after which nobody looks."""


@runtime_checkable
class HoldsRows(Protocol):
    """A batched simulator that knows how its rows stay where they are for a step."""

    def hold_actions(self, rows: Array, last: Array) -> Array:
        """The actions `[k, ...]` of one step of staying, after the actions `last` `[k, ...]` of
        these rows; zeros right after a reset."""


@runtime_checkable
class CostsByRow(Protocol):
    """A batched simulator whose steps may cost by the row. Its step time is the sum over moving
    rows; otherwise a step costs the same for one row as for all."""

    @property
    def steps_cost_by_row(self) -> bool: ...


@runtime_checkable
class BatchedSuite(Protocol):
    """A suite whose tasks run as rows of one simulator. Its adapter is known by its class, before
    anything is built. Where it runs as single envs too, a static method `has_rows(settings)` says
    which; another one, `settle(settings)`, makes the choices in them that depend on the machine."""

    def tasks(self) -> Sequence[TaskInfo]: ...

    def make_rows(self, task: str, rows: int) -> BatchedEnv:
        """A simulator of this many rows that has this task at least."""
