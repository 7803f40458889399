"""Rows that go on while the policy thinks: when each is observed, and what it saw then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hocket.core.contracts.batched import HoldsRows
from hocket.core.data import Array
from hocket.core.wire import Execute
from hocket.errors import EnvError
from hocket.workers.rows.sim import RowSim, on_host


class RowLooks:
    """Says when rows are observed for their next decision and keeps what they saw, until the chunk
    comes that answers it; and which rows hold still meanwhile."""

    def __init__(self, rows: int) -> None:
        self.at = np.full(rows, -1, np.int64)
        """Steps of its running chunk after which each row is observed; -1 where it was."""
        self.begin = np.zeros(rows, np.int64)
        self._end = np.zeros(rows, np.int64)
        """Steps of its running chunk between which each row executes actions, and holds still in
        others."""
        self._asked = np.zeros(rows, np.int64)
        """The step of its attempt at which each row was observed last."""
        self._lead = np.zeros(rows, np.int64)
        """Steps between a row's observation and the first step of the chunk that answers it."""
        self._kept: dict[int, tuple[Mapping[str, Any], int]] = {}
        """By row: what was seen by all that looked with it, and its index there."""

    def load(self, message: Execute, rows: Array, counts: Array, steps: Array) -> Array:
        """Take what a message says of these rows, which have made `steps` of their attempts; return
        how many steps each makes with its chunk."""
        self.at[rows], before, after = np.array(message.courses, np.int64).T
        totals: Array = counts + before + after
        self.begin[rows], self._end[rows] = before, before + counts
        self._lead[rows] = steps - self._asked[rows]
        for row in rows.tolist():
            self._kept.pop(row, None)
        return totals

    def restart(self, rows: Array) -> None:
        """Forget what rows saw whose attempts begin anew."""
        self._asked[rows] = 0
        self.at[rows] = -1
        for row in rows.tolist():
            self._kept.pop(row, None)

    def due(self, rows: Array, done: Array, totals: Array, steps: Array) -> Array:
        """Return the rows that must be observed now and have steps of their chunks left; note the
        time of observation of those too that have none left, whom their reader observes."""
        is_due = self.at[rows] == done
        looking = rows[is_due]
        self._asked[looking] = steps[is_due]
        self.at[looking] = -1
        left: Array = looking[(done < totals)[is_due]]
        return left

    def keep(self, rows: Array, seen: Mapping[str, Any]) -> None:
        for index, row in enumerate(rows.tolist()):
            self._kept[row] = (seen, index)

    def gather(self, rows: Array, look: Callable[[Array], Mapping[str, Any]]) -> Mapping[str, Any]:
        """What the policy reads of these rows: what they saw when they were observed, or what they
        see now, where they wait."""
        kept = [self._kept.get(row) for row in rows.tolist()]
        first = kept[0]
        if first is not None and all(each is not None and each[0] is first[0] for each in kept):
            indices = np.array([each[1] for each in kept if each is not None])
            return {key: array[indices] for key, array in first[0].items()}
        is_now = np.array([each is None for each in kept])
        if is_now.all():
            return look(rows)
        parts: dict[str, list[Any]] = {}
        seen = look(rows[is_now]) if is_now.any() else {}
        at = 0
        for each in kept:
            source, index = (seen, at) if each is None else each
            at += each is None
            for key, array in source.items():
                parts.setdefault(key, []).append(on_host(array[index : index + 1])[0])
        return {key: np.stack(values) for key, values in parts.items()}

    def age(self, row: int, done: int, steps: int) -> int:
        """Steps between what a row's chunk answers, or what it saw last where it held still, and
        its last step; it has made `steps` in its attempt."""
        if self.is_held(row, done):
            return steps - 1 - int(self._asked[row])
        return int(self._lead[row]) + done - 1

    def is_held(self, row: int, done: int) -> bool:
        """True where a row held still in the last of `done` steps."""
        return not int(self.begin[row]) < done <= int(self._end[row])

    def actions(self, sim: RowSim, rows: Array, done: Array, tick: int) -> Array:
        """What these rows execute in the step `tick`, `[k, ...]`: actions of their chunks, or what
        the simulator says it means to hold still."""
        begin, end = self.begin[rows], self._end[rows]
        actions: Array = sim.chunks[tick][rows]
        holding = (done < begin) | (done >= end)
        if holding.any():
            if not isinstance(sim.env, HoldsRows):
                raise EnvError(
                    f"{type(sim.env).__name__} does not say what it means to hold still: it has "
                    "no method hold_actions(rows, last)."
                )
            still = rows[holding]
            actions[holding] = sim.env.hold_actions(still, sim.executed[still])
        return actions
