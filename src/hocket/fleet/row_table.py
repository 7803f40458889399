"""What a host of many rows knows of each: one array for each fact, one entry for each row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hocket.contracts import RowSteps
from hocket.data import Array, TaskInfo
from hocket.wire import END_JUDGED, END_SUCCESS, END_TERMINATED, END_TRUNCATED

NO_LIMIT = np.iinfo(np.int64).max
_GROW = 2
_NOBODY = np.zeros(0, np.int64)


class RowTable:
    """Attempts, chunks and ends of all rows. Every method works on all of them at once: a step of
    a thousand rows costs a handful of array operations, and no loop."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.attempt = np.full(rows, -1, np.int64)
        """Number of the running attempt; -1: none."""
        self.home = np.zeros(rows, np.int64)
        """Which simulator the row's task is in."""
        self.steps = np.zeros(rows, np.int64)
        self.active = np.zeros(rows, np.bool_)
        """Has an action to execute."""
        self.chunk = np.full(rows, -1, np.int64)
        self.count = np.zeros(rows, np.int64)
        """Actions of the running chunk."""
        self.done = np.zeros(rows, np.int64)
        """Of these, executed."""
        self.began = np.zeros(rows, np.float64)
        """When the running chunk came."""
        self.together = -1
        """What `done` is for all active rows, where their chunks came at once; else -1."""
        self._due_in = 0
        """No active row comes to the end of its chunk in fewer steps."""
        self._limit_in = 0
        """No running attempt comes to its limit in fewer steps."""
        self.rewards = np.zeros((rows, 1), np.float64)
        self.success = np.full(rows, -1, np.int8)
        """Of the last step; -1 where the simulator did not say."""
        self.wants_final = np.zeros(rows, np.bool_)
        self._limit = np.full(rows, NO_LIMIT, np.int64)
        self._ends_at_success = np.zeros(rows, np.bool_)
        self._judged_last = np.zeros(rows, np.bool_)
        self._has_judged_last = False
        self._judged = np.zeros(rows, np.bool_)
        self._won = np.zeros(rows, np.bool_)

    def begin(
        self,
        rows: Array,
        attempts: Sequence[int],
        tasks: Sequence[TaskInfo],
        limits: Sequence[int],
        *,
        final: bool,
    ) -> None:
        """New attempts in these rows."""
        self.attempt[rows] = attempts
        self.steps[rows] = 0
        self.active[rows] = False
        self.success[rows] = -1
        self._judged[rows] = False
        self._won[rows] = False
        self.wants_final[rows] = final
        self._limit[rows] = [
            limit or task.max_steps or NO_LIMIT for limit, task in zip(limits, tasks, strict=True)
        ]
        self._limit_in = min(self._limit_in, int(self._limit[rows].min()))
        self._ends_at_success[rows] = [task.success_rule == "first" for task in tasks]
        self._judged_last[rows] = [task.success_rule == "final" for task in tasks]
        self._has_judged_last = bool(self._judged_last.any())

    def load(self, rows: Array, chunks: Sequence[int], counts: Array, now: float) -> None:
        """These rows have chunks to execute."""
        longest = int(counts.max())
        if longest > self.rewards.shape[1]:
            grown = np.zeros((self.rows, max(longest, _GROW * self.rewards.shape[1])))
            grown[:, : self.rewards.shape[1]] = self.rewards
            self.rewards = grown
        has_others = bool(np.count_nonzero(self.active))
        self.together = -1 if has_others else 0
        fewest = int(counts.min())
        self._due_in = min(self._due_in, fewest) if has_others else fewest
        self.chunk[rows] = chunks
        self.count[rows] = counts
        self.done[rows] = 0
        self.began[rows] = now
        self.active[rows] = True

    def place(self, rows: Array | slice) -> Array | int:
        """Which of its chunk's actions each of these rows is at, all of which are active."""
        return self.done[rows] if self.together < 0 else self.together

    def judge(self, rows: Array | slice, active: Array, result: RowSteps) -> tuple[Array, Array]:
        """Count one step of the active rows, which are `rows`; which of all rows have terminated
        by it, and which were truncated."""
        if isinstance(rows, slice) and self.together < 0:
            self.rewards[np.arange(self.rows), self.done] = result.rewards
        else:
            self.rewards[rows, self.place(rows)] = result.rewards[rows]
        self.steps += active
        self.done += active
        if self.together >= 0:
            self.together += 1
        terminated = result.terminated & active
        truncated = result.truncated & active
        if result.success is not None:
            succeeded = result.success & active
            self.success[rows] = succeeded[rows]
            self._judged |= active
            # Where the last step alone counts, an earlier success is forgotten.
            self._won &= ~(self._judged_last & active)
            self._won |= succeeded
            terminated |= succeeded & self._ends_at_success
        elif self._has_judged_last:
            self.success[rows] = -1
            self._won &= ~(self._judged_last & active)
        self._due_in -= 1
        self._limit_in -= 1
        if self._limit_in <= 0:
            truncated |= (self.steps >= self._limit) & active & ~terminated
            left = (self._limit - self.steps)[self.attempt >= 0]
            self._limit_in = int(left.min()) if len(left) else 0
        return terminated, truncated

    def recall(self, rows: Array, lacking: Array) -> None:
        """Chunks of these rows, a mask, end as soon as so many more steps were made."""
        self.count[rows] = np.minimum(self.count, self.done + lacking)[rows]
        self._due_in = 0

    def finished(self, active: Array, terminated: Array, truncated: Array) -> Array:
        """Numbers of the active rows whose chunks have ended, by themselves or with the episode."""
        has_ended = np.count_nonzero(terminated) or np.count_nonzero(truncated)
        if self._due_in > 0 and not has_ended:
            return _NOBODY
        is_done = (self.done >= self.count) & active | terminated | truncated
        left = (self.count - self.done)[self.active & ~is_done]
        self._due_in = int(left.min()) if len(left) else 0
        return np.flatnonzero(is_done)

    def ends(self, rows: Array, terminated: Array, truncated: Array) -> Array:
        """Flags `END_*` of these rows; 0 where the episode goes on."""
        flags = terminated[rows] * END_TERMINATED + truncated[rows] * END_TRUNCATED
        judged = self._judged[rows] * END_JUDGED + self._won[rows] * END_SUCCESS
        answer: Array = np.where(flags > 0, flags + judged, 0)
        return answer

    def packed_rewards(self, rows: Array) -> bytes:
        """Of each row's chunk, one after the other."""
        done = self.done[rows]
        if not len(rows):
            return b""
        longest = int(done.max())
        rewards = self.rewards[rows, :longest]
        if int(done.min()) == longest:
            return rewards.tobytes()
        packed: bytes = rewards[np.arange(longest) < done[:, None]].tobytes()
        return packed
