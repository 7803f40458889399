"""What is recorded of rows, and their chunks and episodes that ended, until they are posted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hocket.core.contracts.recorder import Sink
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Array, Observation, Trial
from hocket.core.specs import TaskInfo
from hocket.core.wire import END_OBSERVED, Executed, Failed, Message, Told, outcome_of
from hocket.workers.env.attempt import Attempt, Tracks, build_sinks
from hocket.workers.rows.findings import RowRemarks
from hocket.workers.rows.looks import RowLooks
from hocket.workers.rows.sim import RowSim, on_host
from hocket.workers.rows.table import RowEnds, RowTable


class RowStart(NamedTuple):
    """An attempt that has begun in a row."""

    row: int
    attempt: int
    trial: Trial
    task: TaskInfo
    prompt: str
    record: Mapping[str, Any]


class RowRecording:
    """Feeds every row's tracks with the steps that the row executed, and with no others."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._rows: dict[int, tuple[Tracks, Attempt]] = {}
        self.is_on = bool(spec.sinks)

    @cached_property
    def _sinks(self) -> list[Sink]:
        return build_sinks(self._spec.sinks)

    def open(self, sim: RowSim, starts: Sequence[RowStart]) -> None:
        """Begin to record attempts, with their resets as step 0."""
        if not self.is_on:
            return
        for row, number, trial, task, prompt, record in starts:
            tracks = Tracks(self._sinks, task, record, sim.abilities, self._spec.folder)
            attempt = Attempt(trial, number, task, max_steps=0, final=False)
            tracks.open(attempt, prompt)
            self._rows[row] = (tracks, attempt)
        self._feed(sim, np.array([start.row for start in starts], np.int64), None)

    def step(
        self,
        sim: RowSim,
        table: RowTable,
        rows: Array,
        ended: RowEnds | None,
        looks: RowLooks | None = None,
    ) -> None:
        """Record the step that these rows have just made; some episodes may end with it."""
        ends: dict[int, int] = {}
        if ended is not None:
            ends.update(zip(ended.rows.tolist(), ended.flags.tolist(), strict=True))
        steps = table.steps
        for row in rows.tolist():
            attempt = self._rows[row][1]
            attempt.steps = int(steps[row])
            attempt.success = table.succeeded(row)
            attempt.ends = ends.get(row, 0)
        self._feed(sim, rows, table, looks)

    def looks_at(self, rows: Array) -> bool:
        """True if what one of these rows sees is recorded at every step."""
        return self.is_on and any(self._rows[row][0].looks for row in rows.tolist())

    def seal(self, row: int, end: int) -> list[str]:
        """Make everything of an ended attempt durable; return its files."""
        if row not in self._rows:
            return []
        files = self._rows[row][0].seal(outcome_of(end))
        del self._rows[row]
        return files

    def discard(self, rows: Array) -> None:
        for row in rows.tolist():
            if row in self._rows:
                self._rows.pop(row)[0].discard()

    def abandon(self, rows: Array) -> Iterator[tuple[int, int, list[str]]]:
        """Give up attempts that are lost to an error; yield row, attempt and the files that each
        leaves, where it was asked to leave some."""
        for row in rows.tolist():
            if row in self._rows:
                tracks, attempt = self._rows.pop(row)
                yield row, attempt.number, tracks.abandon()

    def _feed(
        self, sim: RowSim, rows: Array, table: RowTable | None, looks: RowLooks | None = None
    ) -> None:
        """Give each row's tracks one record; without a table it is that of the reset."""
        ids = rows.tolist()
        looked = [row for row in ids if self._rows[row][0].looks or table is None]
        seen = sim.look(np.array(looked, np.int64)) if looked else {}
        seen_at = {row: index for index, row in enumerate(looked)}
        states: Array | None = None
        if sim.keeps_states and any(self._rows[row][0].needs.states for row in ids):
            states = sim.states(rows)
        counts = [0] * len(ids) if table is None else table.done[rows].tolist()
        for index, (row, done) in enumerate(zip(ids, counts, strict=True)):
            tracks, attempt = self._rows[row]
            observation: Observation | None = None
            if row in seen_at:
                observation = {key: array[seen_at[row]] for key, array in seen.items()}
            chunk, age = -1, 0
            if table is not None:
                chunk, age = int(table.chunk[row]), done - 1
                if looks is not None:
                    age = looks.age(row, done, attempt.steps)
                    chunk = -1 if looks.is_held(row, done) else chunk
            tracks.step(
                attempt,
                None if table is None else sim.last[row],
                0.0 if table is None else float(table.rewards[row]),
                chunk=chunk,
                age=age,
                observation=observation,
                state=states[index] if states is not None else None,
            )


class RowPictures:
    """In which steps pictures are drawn: those after which somebody may look at a row."""

    def __init__(self, table: RowTable, recording: RowRecording, *, sees_all: bool) -> None:
        """`sees_all`: rows are looked at in other steps than those that end a chunk."""
        self._table = table
        self._recording = recording
        self._sees_all = sees_all
        self._undrawn = np.zeros(table.rows, np.bool_)
        """Rows that made their last step without pictures."""

    def choose(self, sim: RowSim, rows: Array) -> None:
        """Tell a simulator that asks for it about the step that these rows make now."""
        if sim.drawing is None:
            return
        sim.drawing.draws = (
            self._sees_all
            or self._table.ends_next
            or bool(self._table.wants_final[rows].any())
            or self._recording.looks_at(rows)
        )
        self._undrawn[rows] = not sim.drawing.draws

    def lacks(self) -> Array:
        """How many more steps each row must make before it can be looked at."""
        return self._undrawn & (self._table.done > 0)


class RowNumbers:
    """The numbers that a simulator told of each row since its chunk began."""

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
        """What was told at the `done` steps of these rows' chunks, row after row, as it travels."""
        longest = int(done.max()) if len(done) else 0
        is_done = np.arange(longest) < done[:, None]
        return {key: kept[:longest, rows].T[is_done].tobytes() for key, kept in self._kept.items()}


class RowEndings:
    """Collects what has ended, and posts it as one message."""

    def __init__(
        self,
        table: RowTable,
        recording: RowRecording,
        gather: Callable[[Sequence[int]], Mapping[str, Array]],
        post: Callable[[Message], None],
        numbers: RowNumbers | None,
        remarks: RowRemarks,
    ) -> None:
        """`gather` gives what the policy reads of some rows; `numbers` are told too."""
        self.remarks = remarks
        self._table = table
        self.recording = recording
        self._gather = gather
        self._post = post
        self._numbers = numbers
        self._parts: list[RowEnds] = []
        self.final: dict[int, Observation] = {}
        """The observations at the ends of episodes, by row, until the row's next reset."""

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, ended: RowEnds, now: float) -> None:
        """Take chunks that have ended, by themselves or with their episodes."""
        self._table.halt(ended.rows, now)
        self._parts.append(ended)

    def cut(self, rows: Array, now: float) -> None:
        """Take chunks that were cut short; their episodes go on."""
        self.add(RowEnds(rows, np.zeros(len(rows), np.int64)), now)

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
            ends[ends > 0] |= self.remarks.diverged(ended)
            final = ended[table.wants_final[ended]]
            if len(final):
                self._observe(final)
                ends[(ends > 0) & table.wants_final[rows]] |= END_OBSERVED
        lanes, attempts, done = rows.tolist(), table.attempt[rows].tolist(), table.done[rows]
        chunks, steps = table.chunk[rows].tolist(), done.tolist()
        rewards = table.packed_rewards(rows)
        self.remarks.told(rows, done, np.frombuffer(rewards))
        if self._numbers is not None and (packed := self._numbers.packed(rows, done)):
            self._post(Told(lanes, attempts, chunks, steps, packed))
        self._post(
            Executed(
                lanes=lanes,
                attempts=attempts,
                chunks=chunks,
                steps=steps,
                rewards=rewards,
                ends=ends.tolist(),
                busy_s=(table.ended[rows] - table.began[rows]).tolist(),
                observe_s=[0.0] * len(rows),
                arrays=None,
            )
        )
        if len(ended):
            self._seal(ended, ends[ends > 0])

    def _observe(self, rows: Array) -> None:
        """Keep what lanes saw at the ends of episodes: the lanes themselves are free at once."""
        homes = self._table.home[rows]
        for home in np.unique(homes).tolist():  # Each may see other shapes.
            lanes = rows[homes == home].tolist()
            arrays = {key: on_host(array) for key, array in self._gather(lanes).items()}
            for index, row in enumerate(lanes):
                self.final[row] = {key: array[index] for key, array in arrays.items()}

    def _seal(self, rows: Array, ends: Array) -> None:
        """Seal recordings, after the answer: the lanes are free already, and wait for no disk."""
        attempts = self._table.attempt[rows].tolist()
        self._table.attempt[rows] = -1
        for row, attempt, end in zip(rows.tolist(), attempts, ends.tolist(), strict=True):
            try:
                files = self.recording.seal(row, end)
            except BaseException as exc:  # noqa: BLE001 - told to the parent
                self.recording.discard(np.array([row]))
                self._post(Failed.of(row, attempt, exc))
            else:
                self._post(self._table.sealed(row, attempt, files))
