"""The sinks of a batched simulator's worker: a recording for each row that has an attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Array, Observation, Outcome, TaskInfo, Trial
from hocket.core.wire import END_JUDGED, END_SUCCESS
from hocket.workers.attempt import Attempt
from hocket.workers.recording import Recording
from hocket.workers.rows.moves import Ended
from hocket.workers.rows.sim import RowSim
from hocket.workers.rows.table import RowTable


class RowRecording:
    """Feeds every row's tracks with the steps that the row executed, and with no others."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._rows: dict[int, tuple[Recording, Attempt]] = {}
        self._spare: list[Recording] = []
        self.is_on = bool(spec.sinks)

    def open(
        self,
        sim: RowSim,
        rows: Array,
        attempts: Sequence[int],
        trials: Sequence[Trial],
        tasks: Sequence[TaskInfo],
        prompts: Sequence[str],
        record: Sequence[Mapping[str, Any]],
    ) -> None:
        """Begin to record attempts, with their resets as step 0."""
        if not self.is_on:
            return
        for index, row in enumerate(rows.tolist()):
            recording = self._spare.pop() if self._spare else self._make()
            recording.prepare(tasks[index], record[index], sim.abilities)
            attempt = Attempt(
                trials[index], attempts[index], tasks[index], max_steps=0, final=False
            )
            recording.open(attempt, prompts[index], record[index])
            self._rows[row] = (recording, attempt)
        self._feed(sim, rows, None)

    def step(self, sim: RowSim, table: RowTable, rows: Array, ended: Ended | None) -> None:
        """Record the step that these rows have just made; some episodes may end with it."""
        ends: dict[int, int] = {}
        if ended is not None:
            ends.update(zip(ended.rows.tolist(), ended.flags.tolist(), strict=True))
        for row in rows.tolist():
            attempt = self._rows[row][1]
            attempt.steps = int(table.steps[row])
            attempt.success = table.succeeded(row)
            attempt.ends = ends.get(row, 0)
        self._feed(sim, rows, table)

    def seal(self, row: int, end: int) -> list[str]:
        """Make everything of an ended attempt durable; gives its files."""
        if row not in self._rows:
            return []
        recording, _ = self._rows[row]
        outcome = Outcome.FINISHED
        if end & END_JUDGED:
            outcome = Outcome.SUCCESS if end & END_SUCCESS else Outcome.FAILURE
        files = recording.seal(outcome)
        del self._rows[row]
        self._spare.append(recording)
        return files

    def discard(self, rows: Array) -> None:
        """Forget what was recorded of attempts that do not count."""
        for row in rows.tolist():
            found = self._rows.pop(row, None)
            if found is not None:
                found[0].discard()
                self._spare.append(found[0])

    def _make(self) -> Recording:
        return Recording(self._spec.sinks, self._spec.folder)

    def _feed(self, sim: RowSim, rows: Array, table: RowTable | None) -> None:
        """Give each row's tracks one record; without a table it is that of the reset."""
        ids = rows.tolist()
        looked = [row for row in ids if self._rows[row][0].observes_each_step or table is None]
        seen = sim.look(np.array(looked, np.int64)) if looked else {}
        seen_at = {row: index for index, row in enumerate(looked)}
        states: Array | None = None
        if sim.keeps_states and any(self._rows[row][0].needs.states for row in ids):
            states = sim.states(rows)
        for index, row in enumerate(ids):
            recording, attempt = self._rows[row]
            observation: Observation | None = None
            if row in seen_at:
                observation = {key: array[seen_at[row]] for key, array in seen.items()}
            recording.step(
                attempt,
                None if table is None else sim.action(row),
                0.0 if table is None else table.reward(row),
                chunk=-1 if table is None else int(table.chunk[row]),
                age=0 if table is None else int(table.done[row]) - 1,
                observation=observation,
                state=states[index] if states is not None else None,
            )
