"""Chunks of rows that have ended, with their episodes or without, until they are posted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hocket.core.data import Array, Observation
from hocket.core.wire import END_OBSERVED, Executed, Failed, Message, Sealed
from hocket.workers.rows.moves import Ended
from hocket.workers.rows.recording import RowRecording
from hocket.workers.rows.sim import on_host
from hocket.workers.rows.table import RowTable


class RowEndings:
    """Collects what has ended, and posts it as one message."""

    def __init__(
        self,
        table: RowTable,
        recording: RowRecording,
        gather: Callable[[Sequence[int]], Mapping[str, Array]],
        post: Callable[[Message], None],
    ) -> None:
        """`gather` gives what the policy reads of some rows."""
        self._table = table
        self._recording = recording
        self._gather = gather
        self._post = post
        self._parts: list[Ended] = []
        self.final: dict[int, Observation] = {}
        """The observations at the ends of episodes, by row, until the row's next reset."""

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, ended: Ended, now: float) -> None:
        """Take chunks that have ended, by themselves or with their episodes."""
        self._table.halt(ended.rows, now)
        self._parts.append(ended)

    def cut(self, rows: Array, now: float) -> None:
        """Take chunks that were cut short; their episodes go on."""
        self.add(Ended(rows, np.zeros(len(rows), np.int64)), now)

    def tell(self) -> None:
        """Post all that was taken, and seal the recordings of episodes that ended."""
        if not self._parts:
            return
        rows, flags = self._parts[0]
        if len(self._parts) > 1:
            # The last first: most rows come to the end of their chunks, and then the parent finds
            # their rewards in one block.
            self._parts.reverse()
            rows, flags = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        self._parts.clear()
        table = self._table
        ends, ended = flags, rows[:0]
        if np.count_nonzero(flags):
            ends = table.ends(rows, flags)
            ended = rows[ends > 0]
            final = ended[table.wants_final[ended]]
            if len(final):
                self._observe(final)
                ends[(ends > 0) & table.wants_final[rows]] |= END_OBSERVED
        self._post(
            Executed(
                lanes=rows.tolist(),
                attempts=table.attempt[rows].tolist(),
                chunks=table.chunk[rows].tolist(),
                steps=table.done[rows].tolist(),
                rewards=table.packed_rewards(rows),
                ends=ends.tolist(),
                busy_s=(table.ended[rows] - table.began[rows]).tolist(),
                observe_s=[0.0] * len(rows),
                arrays=None,
            )
        )
        if len(ended):
            self._seal(ended, ends[ends > 0])

    def _observe(self, rows: Array) -> None:
        """Observe the ends of episodes. The lanes are free at once: what they saw last is kept
        here."""
        homes = self._table.home[rows]
        for home in np.unique(homes).tolist():  # Each may see other shapes.
            lanes = rows[homes == home].tolist()
            arrays = {key: on_host(array) for key, array in self._gather(lanes).items()}
            for index, row in enumerate(lanes):
                self.final[row] = {key: array[index] for key, array in arrays.items()}

    def _seal(self, rows: Array, ends: Array) -> None:
        """Seal recordings. This comes after the answer: the lanes are free already, and wait for no
        disk."""
        attempts = self._table.attempt[rows].tolist()
        self._table.attempt[rows] = -1
        for row, attempt, end in zip(rows.tolist(), attempts, ends.tolist(), strict=True):
            try:
                files = self._recording.seal(row, end)
            except (Exception, SystemExit) as exc:  # noqa: BLE001 - told to the parent
                self._recording.discard(np.array([row]))
                self._post(Failed.of(row, attempt, exc))
            else:
                self._post(Sealed(row, attempt, files))
