"""The numbers that a batched simulator tells of its rows, for the steps of their running chunks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hocket.core.data import Array
from hocket.workers.rows.sim import on_host


class RowNumbers:
    """Keeps what was told of each row since its chunk began."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._kept: dict[str, Array] = {}
        """By key `[longest, rows]`; NaN where a step did not tell."""
        self._longest = 1
        """Steps of the longest chunk so far, whoever told of it: all keys are told together."""

    def add(self, rows: Array, done: Array, numbers: Mapping[str, Array] | None) -> None:
        """Take what the step gave that these rows made as the `done`-th of their chunks."""
        told = {key: on_host(values) for key, values in (numbers or {}).items()}
        self._longest = max(self._longest, int(done.max()))
        for key in told:
            self._kept.setdefault(key, np.full((self._longest, self._rows), np.nan))
        for key, kept in self._kept.items():
            if self._longest > len(kept):
                more = np.full((self._longest, self._rows), np.nan)
                kept = self._kept[key] = np.concatenate([kept, more])
            kept[done - 1, rows] = told[key][rows] if key in told else np.nan

    def packed(self, rows: Array, done: Array) -> dict[str, bytes]:
        """What was told at the `done` steps of these rows' chunks, one row after the other, as it
        travels."""
        longest = int(done.max()) if len(done) else 0
        is_done = np.arange(longest) < done[:, None]
        return {key: kept[:longest, rows].T[is_done].tobytes() for key, kept in self._kept.items()}
