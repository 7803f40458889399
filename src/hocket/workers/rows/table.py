"""What a host of many rows knows about each: one array for each fact, one entry for each row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Array, TaskInfo
from hocket.core.wire import END_JUDGED, END_SUCCESS, END_TERMINATED, END_TRUNCATED
from hocket.workers.rows.moves import Ended, Moving, as_bytes, with_room

NO_LIMIT = np.iinfo(np.int64).max


class RowTable:
    """Attempts, chunks and ends of all rows. Every method works on all of them at once: a step of
    a thousand rows takes a handful of array operations, and no loop.

    Most of the time all rows that move got their chunks in one message, and make the same steps. So
    they are `together`: a step is counted in one number for all of them and its rewards are kept as
    bytes, instead of five operations on arrays of all rows. `settle` writes that into the arrays;
    it is called before anyone reads them, and before the set of rows that move changes.
    """

    def __init__(self, rows: int, counters: Array | None = None) -> None:
        """`counters` `[rows]` are kept up to date: each row's steps since the table was made."""
        self.rows = rows
        self.attempt = np.full(rows, -1, np.int64)
        """Number of the running attempt; -1 where there is none."""
        self.home = np.zeros(rows, np.int64)
        """Index of the simulator that has the row's task."""
        self.active = np.zeros(rows, np.bool_)
        """Which rows have an action to execute. Only `load` and `halt` change it."""
        self.chunk = np.full(rows, -1, np.int64)
        self.count = np.zeros(rows, np.int64)
        """Actions of the running chunk."""
        self.began = np.zeros(rows, np.float64)
        """When the running chunk came."""
        self.ended = np.zeros(rows, np.float64)
        """When the last chunk had ended."""
        self.together = -1
        """Actions that all active rows have executed of their chunks, where these came at once; -1
        where they did not."""
        self._steps = np.zeros(rows, np.int64)
        self._done = np.zeros(rows, np.int64)
        self._counters = np.zeros(rows, np.int64) if counters is None else counters
        self._ahead = 0
        """Steps that were counted for all active rows and not yet for each."""
        self._unsorted: list[bytes] = []
        """For each of these steps, the rewards of all rows, float64."""
        self._moving: Moving | None = None
        self._halted: list[tuple[Array, int, float]] = []
        """Rows that have no action any more, though `active` does not say so yet: with the number
        of these steps that they made, and the time."""
        self._due_in = 0
        """Steps until the first active row can come to the end of its chunk: a lower bound."""
        self._is_even = False
        """Whether all active rows come to the end of their chunks in just `_due_in` steps."""
        self._limit_in = 0
        """Steps until the first running attempt can come to its limit: a lower bound."""
        self._rewards = np.zeros((1, rows), np.float64)
        """The rewards of the running chunks, `[longest, rows]`."""
        self._success: Array | None = None
        """Which rows succeeded at the last step, where the simulator judges."""
        self.wants_final = np.zeros(rows, np.bool_)
        self._limit = np.full(rows, NO_LIMIT, np.int64)
        self._ends_at_success = np.zeros(rows, np.bool_)
        self._judged_last = np.zeros(rows, np.bool_)
        """Rows of tasks in which only success at the last step counts."""
        self._has_judged_last = False
        self._judged = np.zeros(rows, np.bool_)
        self._is_judging = False
        """Whether the simulator judged the steps that are not yet counted for each row."""
        self._won = np.zeros(rows, np.bool_)

    @property
    def steps(self) -> Array:
        self.settle()
        return self._steps

    @property
    def done(self) -> Array:
        """How many actions of its chunk each row has executed."""
        self.settle()
        return self._done

    def settle(self) -> None:
        """Count for each row the steps that were counted for all of them at once."""
        ahead = self._ahead
        if ahead:
            self._ahead = 0
            rewards = np.frombuffer(b"".join(self._unsorted)).reshape(ahead, self.rows)
            self._rewards[self.together - ahead : self.together] = rewards
            self._unsorted.clear()
            moved = ahead * self.active
            for rows, until, _ in self._halted:
                if until < ahead:
                    moved[rows] = until
            self._steps += moved
            self._done += moved
            self._counters += moved
            if self._is_judging:
                self._judged |= moved > 0
        if self._halted:
            for rows, _, now in self._halted:
                self.active[rows] = False
                self.ended[rows] = now
            self._halted.clear()

    def moving(self) -> Moving:
        if self._moving is None:
            self._moving = Moving(self.active.copy(), int(np.count_nonzero(self.active)))
        return self._moving

    def moving_in(self, home: int) -> Moving:
        self.settle()
        mask = self.active & (self.home == home)
        return Moving(mask, int(np.count_nonzero(mask)))

    def halt(self, rows: Array, now: float) -> None:
        """Let these rows, which are active, have no action any more."""
        self._halted.append((rows, self._ahead, now))
        if self._moving is None:
            self.settle()
        else:
            self._moving = self._moving.without(rows)

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
        self._steps[rows] = 0
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
        self.settle()
        has_others = bool(np.count_nonzero(self.active))
        self.together = -1 if has_others else 0
        fewest, longest = int(counts.min()), int(counts.max())
        self._rewards = with_room(self._rewards, longest)
        self._due_in = min(self._due_in, fewest) if has_others else fewest
        self._is_even = fewest == longest and not has_others
        self.chunk[rows] = chunks
        self.count[rows] = counts
        self._done[rows] = 0
        self.began[rows] = now
        self.active[rows] = True
        self._moving = None

    def action_index(self, rows: Array) -> Array | int:
        """Index of each active row's next action in its chunk, one number where all agree."""
        return self.done[rows] if self.together < 0 else self.together

    @property
    def quiet_steps(self) -> int:
        """How many steps of rows that are together need only be counted, by `passed`: no chunk ends
        and no limit is reached in them. (That the simulator ends an episode in one is for the
        caller to look out for.)"""
        is_plain = self.together >= 0 and not self._has_judged_last
        return min(self._due_in, self._limit_in) - 1 if is_plain else 0

    def passed(self, rewards: Sequence[bytes], *, is_judging: bool) -> None:
        """Count quiet steps of rows that are together, with the rewards of all rows in each."""
        count = len(rewards)
        if not count:
            return
        if is_judging != self._is_judging:
            self.settle()
            self._is_judging = is_judging
        self._unsorted.extend(rewards)
        self.together += count
        self._ahead += count
        self._due_in -= count
        self._limit_in -= count

    def judge(self, moving: Moving, result: RowSteps) -> Ended | None:
        """Count one step of these rows; gives those whose episodes it ended, None where none."""
        self._count(moving, result)
        self._due_in -= 1
        self._limit_in -= 1
        terminated, truncated = moving.find(result.terminated), moving.find(result.truncated)
        self._success = success = result.success
        if self._has_judged_last:
            # Where the last step alone counts, an earlier success is forgotten.
            self._won &= ~(self._judged_last & moving.mask)
        succeeded = None if success is None else moving.find(success)
        if succeeded is None and truncated is None and self._limit_in > 0:
            if terminated is None:
                return None
            return Ended(terminated, np.array([END_TERMINATED] * len(terminated)))
        flags = np.zeros(self.rows, np.int64)
        if succeeded is not None:
            self._won[succeeded] = True
            flags[succeeded[self._ends_at_success[succeeded]]] = END_TERMINATED
        if terminated is not None:
            flags[terminated] = END_TERMINATED
        if truncated is not None:
            flags[truncated] |= END_TRUNCATED
        if self._limit_in <= 0:
            flags[self._find_over(moving) & (flags & END_TERMINATED == 0)] |= END_TRUNCATED
        rows = np.flatnonzero(flags)
        return Ended(rows, flags[rows]) if len(rows) else None

    def _find_over(self, moving: Moving) -> Array:
        """A mask of these rows that have come to their limit."""
        steps = self.steps
        over: Array = (steps >= self._limit) & moving.mask
        left = (self._limit - steps)[self.attempt >= 0]
        left = left[left > 0]  # The others have ended, though that may not be posted yet.
        self._limit_in = int(left.min()) if len(left) else 0
        return over

    def _count(self, moving: Moving, result: RowSteps) -> None:
        is_judging = result.success is not None
        if is_judging != self._is_judging:
            self.settle()
            self._is_judging = is_judging
        if self.together >= 0:
            # Rows that do not move have no rewards here that anyone would read.
            self._unsorted.append(as_bytes(result.rewards))
            self.together += 1
            self._ahead += 1
            return
        rows, mask = moving.rows, moving.mask
        self._rewards[self._done[rows], rows] = result.rewards[rows]
        self._steps += mask
        self._done += mask
        self._counters += mask
        if is_judging:
            self._judged |= mask

    def succeeded(self, row: int) -> bool | None:
        """Whether a row succeeded in the last step, its own; None where that is not judged."""
        return None if self._success is None else bool(self._success[row])

    def reward(self, row: int) -> float:
        """The reward of the last step of a row, which moved in it."""
        return float(self._rewards[self.done[row] - 1, row])

    def recall(self, rows: Array, lacking: Array) -> None:
        """Let the chunks of these rows, a mask, end after `lacking` more steps, int `[rows]`."""
        self.count[rows] = np.minimum(self.count, self.done + lacking)[rows]
        self._due_in = 0
        self._is_even = False

    def finished(self, moving: Moving, ended: Ended | None) -> Ended | None:
        """The rows whose chunks have ended, by themselves or with the episode (`ended`, which
        `judge` gave); None where none has."""
        if self._due_in > 0:
            return ended
        if self._is_even and ended is None:
            return Ended(moving.rows, np.zeros(moving.count, np.int64))
        rows = moving.rows
        flags = np.zeros(self.rows, np.int64)
        if ended is not None:
            flags[ended.rows] = ended.flags
        flags = flags[rows]
        left = (self.count - self.done)[rows]
        goes_on = (left > 0) & (flags == 0)
        rest = left[goes_on]
        if not len(rest):
            return Ended(rows, flags)
        # Rows of other simulators were not looked at, so nothing is known about the next end.
        self._due_in = int(rest.min()) if moving is self._moving else 0
        return Ended(rows[~goes_on], flags[~goes_on]) if len(rest) < len(rows) else None

    def ends(self, rows: Array, flags: Array) -> Array:
        """All flags `END_*` of these rows, given those of `judge`; 0 where the episode goes on."""
        self.settle()
        judged = self._judged[rows] * END_JUDGED + self._won[rows] * END_SUCCESS
        answer: Array = np.where(flags > 0, flags + judged, 0)
        return answer

    def packed_rewards(self, rows: Array) -> bytes:
        """The rewards of these rows' chunks, one row after the other, as they travel."""
        done = self.done[rows]
        if not len(rows):
            return b""
        longest = int(done.max())
        rewards = self._rewards[:longest, rows].T
        if int(done.min()) == longest:
            return rewards.tobytes()
        packed: bytes = rewards[np.arange(longest) < done[:, None]].tobytes()
        return packed
