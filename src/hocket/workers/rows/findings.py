"""What is wrong with the numbers of rows: remarks about their attempts, and rows that diverged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from hocket.core.data import Array
from hocket.core.wire import Message, Remark
from hocket.workers.env import remarks
from hocket.workers.rows.sim import RowSim, RowSims, on_host
from hocket.workers.rows.table import DIVERGED, RowTable


class RowRemarks:
    """Looks at actions, at what policies see, at rewards, and at the states in which episodes end.
    What it finds is posted once for each attempt."""

    def __init__(self, table: RowTable, sims: RowSims, post: Callable[[Message], None]) -> None:
        self._table = table
        self._sims = sims
        self._post = post
        self._told: dict[int, set[str]] = {}
        """By row, of its attempt."""

    def forget(self, rows: Array) -> None:
        """Take note that attempts begin in these rows."""
        for row in rows.tolist():
            self._told.pop(row, None)

    def passes(self, sim: RowSim, rows: Array, counts: Array, actions: Array) -> bool:
        """True if all actions of these rows' chunks, one after the other, are finite."""
        flaw = sim.drive.flaw(actions)
        if flaw == "outside":
            is_out = sim.drive.strays(actions)
            self._remark(np.repeat(rows, counts)[is_out], remarks.of_actions)
        return flaw != "not finite"

    def look(self, rows: Array, seen: Mapping[str, Any]) -> None:
        """Look at what the policy is to be given of these rows; it may live on a device."""
        for key, array in seen.items():
            is_small = math.prod(array.shape) <= len(rows) * remarks.LARGEST
            if not (is_small and "float" in str(array.dtype)):
                continue
            with np.errstate(invalid="ignore"):
                # What is NaN or infinite is no number less itself, in any library.
                is_odd = array - array != 0
            if bool(is_odd.any()):
                hit = on_host(is_odd).reshape(len(rows), -1).any(axis=1)
                self._remark(rows[hit], partial(remarks.of_observation, key=key))

    def told(self, rows: Array, done: Array, rewards: Array) -> None:
        """Look at the rewards of these rows' chunks, one row after the other."""
        if not np.isfinite(rewards).all():
            self._remark(np.repeat(rows, done)[~np.isfinite(rewards)], remarks.of_reward)

    def diverged(self, rows: Array) -> Array:
        """The flags of those rows whose states, as episodes end, are NaN or infinite; 0 for the
        others, and where no state is to be seen."""
        flags, homes = np.zeros(len(rows), np.int64), self._table.home[rows]
        for home in np.unique(homes).tolist():
            sim, is_here = self._sims[home], homes == home
            if sim.keeps_states:
                flags[is_here] = DIVERGED * sim.has_diverged(rows[is_here])
        return flags

    def _remark(self, rows: Array, sentence: Callable[[str], str]) -> None:
        for row in np.unique(rows).tolist():
            text = sentence(self._sims[int(self._table.home[row])].task_of[row])
            told = self._told.setdefault(row, set())
            if text not in told:
                told.add(text)
                self._post(Remark(row, int(self._table.attempt[row]), text))
