"""What a host of many rows knows about each: one array for each fact, one entry for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from hocket.core.arrays import as_numpy
from hocket.core.contracts.batched import RowSteps
from hocket.core.data import NOTHING_TOLD, Array, InfoValues
from hocket.core.outcomes import SUCCESS_KEYS, Goals, flags, scores, told_at_end
from hocket.core.specs import TaskInfo
from hocket.core.wire import (
    END_DIVERGED,
    END_JUDGED,
    END_SUCCESS,
    END_TERMINATED,
    END_TRUNCATED,
    Sealed,
)

DIVERGED = END_DIVERGED | END_TERMINATED | END_JUDGED
"""How the episode of a row ends whose actions or state are NaN or infinite."""
NO_LIMIT = np.iinfo(np.int64).max


class Moving(NamedTuple):
    """The rows that make a step."""

    mask: Array
    """bool `[N]`; never changed."""
    rows: Array
    """Their indices, in order."""


class RowEnds(NamedTuple):
    """Rows whose episodes have ended, or at least their chunks."""

    rows: Array
    flags: Array
    """For each row `END_TERMINATED`, `END_TRUNCATED`, or 0 where the episode goes on."""


class StepRing:
    """One value for each row and step, `[length, rows, ...]`. That of step t lies at t modulo the
    length, so what all rows have in one step lies side by side, whenever their chunks began."""

    def __init__(self, rows: int, shape: tuple[int, ...] = (), dtype: Any = np.float64) -> None:
        self._array = np.zeros((2, rows, *shape), dtype)

    def __getitem__(self, tick: int) -> Array:
        """The values of all rows in one step, a view `[rows, ...]`."""
        row: Array = self._array[tick % len(self._array)]
        return row

    def reserve(self, steps: int, tick: int) -> None:
        """Make room for `steps` steps before step `tick`, and as many from it on."""
        length = len(self._array)
        if 2 * steps <= length:
            return
        known = np.arange(tick - length // 2, tick + length // 2)
        grown = np.zeros((2 * max(steps, length), *self._array.shape[1:]), self._array.dtype)
        grown[known % len(grown)] = self._array[known % length]
        self._array = grown

    def put(self, rows: Array, first: Array, counts: Array, values: Array) -> None:
        """Set the values `[sum of counts, ...]` of `counts` steps from `first` on, row by row."""
        self._array[self._places(rows, first, counts)] = values

    def take(self, rows: Array, first: Array, counts: Array) -> Array:
        """The values of `counts` steps from `first` on, one row after the other."""
        return self._array[self._places(rows, first, counts)]

    def _places(self, rows: Array, first: Array, counts: Array) -> tuple[Array, Array]:
        ticks = np.arange(int(counts.sum())) + np.repeat(first - counts.cumsum() + counts, counts)
        return ticks % len(self._array), np.repeat(rows, counts)


class RowTable:
    """Attempts, chunks and ends of all rows. Every method works on all of them at once.

    Every active row moves in every step. So steps are counted once, in `tick`, for all of them:
    how far a row is in its chunk follows from the tick at which the chunk began.
    """

    def __init__(self, rows: int, counters: Array | None = None) -> None:
        """`counters` `[rows]`: where `publish` tells each row's steps since the table was made."""
        self.rows = rows
        self.tick = 0
        """Steps made since the table was made, by whichever rows."""
        self.attempt = np.full(rows, -1, np.int64)
        """Number of the running attempt; -1 where there is none."""
        self.home = np.zeros(rows, np.int64)
        """Index of the simulator that has the row's task."""
        self.active = np.zeros(rows, np.bool_)
        """The rows that have an action to execute. Only `load` and `halt` change it."""
        self.chunk = np.full(rows, -1, np.int64)
        self.count = np.zeros(rows, np.int64)
        """Actions of the running chunk."""
        self.began = np.zeros(rows, np.float64)
        """When the running chunk came."""
        self.ended = np.zeros(rows, np.float64)
        """When the last chunk had ended."""
        self.since = np.zeros(rows, np.int64)
        """The tick at which the last chunk came."""
        self._made = np.zeros(rows, np.int64)
        """Actions of the last chunk that were executed, of rows that are not active any more."""
        self._before = np.zeros(rows, np.int64)
        """Steps of the attempt before its last chunk."""
        self._earlier = np.zeros(rows, np.int64)
        """Steps of earlier attempts."""
        self._due = np.full(rows, NO_LIMIT, np.int64)
        """The tick at which the chunk ends, or the attempt is at its limit, if it comes to that."""
        self._next_due = NO_LIMIT
        """No active row is due before this tick."""
        self._counters = np.zeros(rows, np.int64) if counters is None else counters
        self._moving: Moving | None = None
        self._rewards = StepRing(rows)
        self._success: Array | None = None
        """The rows that succeeded at the last step, where the simulator judges."""
        self.wants_final = np.zeros(rows, np.bool_)
        self._limit = np.full(rows, NO_LIMIT, np.int64)
        self._ends_at_success = np.zeros(rows, np.bool_)
        self._judged_last = np.zeros(rows, np.bool_)
        """Rows of tasks in which only success at the last step counts."""
        self._has_judged_last = False
        self._judged = np.zeros(rows, np.bool_)
        self._won = np.zeros(rows, np.bool_)
        self._goals = Goals(rows)
        self._told: dict[int, InfoValues] = {}
        """What was told of each row at the end of its episode beside the outcome."""
        self._tasks: list[TaskInfo] = []
        self._task = np.zeros(rows, np.int64)
        """The index in `_tasks` of each row's task."""
        self._has_scores = False

    @property
    def steps(self) -> Array:
        """Steps of each row's attempt."""
        return self._before + self.done

    @property
    def done(self) -> Array:
        """Actions of its last chunk that each row has executed."""
        return np.where(self.active, self.tick - self.since, self._made)

    def publish(self) -> None:
        """Tell how many steps each row has made since the table was made."""
        np.add(self._earlier, self.steps, out=self._counters)

    @property
    def ends_next(self) -> bool:
        """True if a chunk, or an attempt by its limit, ends with the step that is next."""
        return self.tick + 1 >= self._next_due

    def moving(self) -> Moving:
        if self._moving is None:
            self._moving = Moving(self.active.copy(), np.flatnonzero(self.active))
        return self._moving

    def moving_in(self, home: int) -> Moving:
        """The rows of one simulator that move."""
        mask = self.active & (self.home == home)
        return Moving(mask, np.flatnonzero(mask))

    def halt(self, rows: Array, now: float) -> None:
        """Let these rows, which are active, have no action any more."""
        self._made[rows] = self.tick - self.since[rows]
        self.active[rows] = False
        self.ended[rows] = now
        self._moving = None

    def begin(
        self,
        rows: Array,
        attempts: Sequence[int],
        tasks: Sequence[TaskInfo],
        limits: Sequence[int],
        *,
        final: bool,
    ) -> None:
        """Begin new attempts in these rows, which are not active."""
        self.attempt[rows] = attempts
        self._earlier[rows] += self._before[rows] + self._made[rows]
        self._before[rows] = self._made[rows] = 0
        self._judged[rows] = False
        self._won[rows] = False
        self.wants_final[rows] = final
        self._limit[rows] = [
            limit or task.max_steps or NO_LIMIT for limit, task in zip(limits, tasks, strict=True)
        ]
        self._ends_at_success[rows] = [task.success_rule == "first" for task in tasks]
        self._judged_last[rows] = [task.success_rule == "final" for task in tasks]
        self._has_judged_last = bool(self._judged_last.any())
        self._tasks += [task for task in dict.fromkeys(tasks) if task not in self._tasks]
        self._task[rows] = [self._tasks.index(task) for task in tasks]
        self._has_scores = any(task.score_key for task in self._tasks)
        self._goals.restart(rows)

    def load(self, rows: Array, chunks: Sequence[int], counts: Array, now: float) -> None:
        """Take note of chunks for these rows, which are not active."""
        # What has ended is told after the others may have come to their ends too.
        self._rewards.reserve(int(counts.max()), self.tick)
        self._before[rows] += self._made[rows]
        self._made[rows] = 0
        self.since[rows] = self.tick
        self._due[rows] = self.tick + np.minimum(counts, self._limit[rows] - self._before[rows])
        self._find_next(self._next_due, rows)
        self.chunk[rows] = chunks
        self.count[rows] = counts
        self.began[rows] = now
        self.active[rows] = True
        self._moving = None

    def judge(self, moving: Moving, result: RowSteps) -> RowEnds | None:
        """Take the result of the step that these rows have just made; return the rows whose
        episodes or chunks it ended, None where none."""
        mask = moving.mask
        success, judged = self._read(moving, result)
        np.copyto(self._rewards[self.tick - 1], result.rewards, where=mask, casting="unsafe")
        self._success = success
        if self._has_judged_last:
            # Where the last step alone counts, an earlier success is forgotten.
            self._won &= ~(self._judged_last & mask)
        if success is not None:
            self._judged |= judged
        is_due = self.tick >= self._next_due
        if not (
            is_due
            or np.count_nonzero(result.terminated)
            or np.count_nonzero(result.truncated)
            or (success is not None and np.count_nonzero(success))
        ):
            return None
        terminated = np.logical_and(result.terminated, mask)
        truncated = np.logical_and(result.truncated, mask)
        if success is not None:
            succeeded = np.logical_and(success, mask)
            self._won |= succeeded
            terminated |= succeeded & self._ends_at_success
        flags = terminated * END_TERMINATED | truncated * END_TRUNCATED
        ended = terminated | truncated
        if is_due:
            due = mask & (self._due <= self.tick)
            flags[due & ~terminated & (self.steps >= self._limit)] |= END_TRUNCATED
            ended |= due
            self._find_next(NO_LIMIT, self.active & ~ended)
        rows = np.flatnonzero(ended)
        numbers = result.numbers or {}
        for row in np.flatnonzero(flags).tolist() if numbers else ():
            info = {key: as_numpy(values)[row] for key, values in numbers.items()}
            self._told[row] = told_at_end(info, self._tasks[self._task[row]])
        return RowEnds(rows, flags[rows]) if len(rows) else None

    def _read(self, moving: Moving, result: RowSteps) -> tuple[Array | None, Array]:
        """Which of the rows that move have succeeded, and of which that is said, both bool `[N]`;
        None where it is said of none."""
        said = result.success
        is_plain = isinstance(said, np.ndarray) and said.dtype == np.bool_ and said.ndim == 1
        if not self._has_scores and (said is None or is_plain):
            return cast("Array | None", said), moving.mask
        success, judged = np.zeros((2, self.rows), np.bool_)
        for number, task in enumerate(self._tasks):
            rows = moving.rows[self._task[moving.rows] == number]
            told = None if task.score_key in SUCCESS_KEYS else said
            score = (result.numbers or {}).get(task.score_key)
            if score is not None and len(some := rows[~np.isnan(as_numpy(score)[rows])]):
                won = self._goals.score(some, scores(score, task.score_key, task, some), task)
                if won is not None:
                    success[some], judged[some] = won, True
            if isinstance(told, np.ndarray) and told.dtype == object:
                rows = rows[[each is not None for each in told[rows]]]
            if told is not None and len(rows):
                self._goals.know(told, task)
                won = self._goals.reach(rows, flags(told, SUCCESS_KEYS[0], task, rows), task)
                success[rows], judged[rows] = won, True
        return success, judged

    def _find_next(self, known: int, rows: Array) -> None:
        self._next_due = int(self._due[rows].min(initial=known))

    def sealed(self, row: int, attempt: int, files: Sequence[str]) -> Sealed:
        """The message that says how a row's attempt has ended."""
        told = self._told.pop(row, NOTHING_TOLD)
        return Sealed(row, attempt, files, self._goals.progress(row), told)

    def succeeded(self, row: int) -> bool | None:
        """True where a row succeeded in the last step, its own; None where that is not judged."""
        return None if self._success is None else bool(self._success[row])

    @property
    def rewards(self) -> Array:
        """Those of the last step, `[N]`, of rows that moved in it."""
        return self._rewards[self.tick - 1]

    def recall(self, rows: Array, lacking: Array) -> None:
        """Let the chunks of these rows, a mask, end after `lacking` more steps, int `[rows]`."""
        self.count[rows] = np.minimum(self.count, self.done + lacking)[rows]
        self._due[rows] = np.minimum(self._due, self.since + self.count)[rows]
        self._find_next(self._next_due, rows)

    def ends(self, rows: Array, flags: Array) -> Array:
        """All flags `END_*` of these rows, given those of `judge`; 0 where the episode goes on."""
        judged = self._judged[rows] * END_JUDGED + self._won[rows] * END_SUCCESS
        return np.where(flags > 0, flags | judged, 0)

    def packed_rewards(self, rows: Array) -> bytes:
        """The rewards of these rows' chunks, one row after the other, as they travel."""
        return self._rewards.take(rows, self.since[rows], self.done[rows]).tobytes()
