"""Executes a worker's messages on a batched simulator: many lanes behind one step.

Messages are taken in order; between them `work` makes steps of all rows that have an action. A
row without one is suspended: it is in no step's mask, so it does not move, and it is not recorded,
timed or judged. What the policy reads of a row is observed when the row's batch leaves, not before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from hocket.core.contracts.batched import RowSteps
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Array, Observation, Signature
from hocket.core.wire import (
    Begin,
    Describe,
    Discard,
    Execute,
    Failed,
    Message,
    Observed,
)
from hocket.errors import ChunkValueError, WireError
from hocket.workers.rows.begins import RowBegins
from hocket.workers.rows.endings import RowEndings, RowRecording
from hocket.workers.rows.looks import RowLooks
from hocket.workers.rows.moves import Ended, Moving
from hocket.workers.rows.numbers import RowNumbers
from hocket.workers.rows.sim import RowHistory, RowSim, RowSims, on_host
from hocket.workers.rows.stepping import StepRule
from hocket.workers.rows.table import RowTable
from hocket.workers.shm import STOP, Control


class RowsHost:
    """Owns the batched simulators of a worker; a lane of the worker is a row in each of them."""

    def __init__(
        self,
        spec: WorkerSpec,
        control: Control,
        post: Callable[[Message], None],
        index: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._spec = spec
        self._post = post
        self._clock = clock
        steps, words = control.columns()
        self._table = RowTable(spec.lanes, np.asarray(steps))
        self._words = np.asarray(words)
        self._sims = RowSims(spec, index)
        self._recording = RowRecording(spec)
        self._numbers = RowNumbers(spec.lanes) if spec.tells else None
        self._endings = RowEndings(self._table, self._recording, self.gather, post, self._numbers)
        self._history = RowHistory(spec.lanes, spec.history)
        self._looks = RowLooks(spec.lanes) if spec.slots > 1 else None
        """When rows are observed that go on meanwhile; None where none does."""
        self._has_looked = False
        self._keeps_steps = (
            bool(spec.sinks) or spec.history > 1 or self._looks is not None or spec.tells
        )
        """Whether every step is looked at by someone."""
        self.rule = StepRule()
        self._begins = RowBegins(
            spec,
            clock,
            post,
            table=self._table,
            sims=self._sims,
            recording=self._recording,
            final=self._endings.final,
            history=self._history,
            looks=self._looks,
        )
        self._took: list[float] = []
        """Seconds of each step since `work` began."""
        self._performs: dict[type[Any], Callable[[Any], None]] = {
            Describe: lambda message: post(self._sims.suites.describe(message.suite)),
            Begin: lambda message: self._begins.ask(message, self.rule.step_s),
            Execute: self._execute,
            Discard: self._discard,
        }

    # -- For the link ----------------------------------------------------------------------------

    def perform(self, message: Message) -> None:
        """Do what a message asks. Whatever the simulator raises is posted as a failure of the whole
        worker: none of its rows can be trusted then."""
        task = self._performs.get(type(message))
        if task is None:
            raise WireError(f"A batched simulator cannot perform {type(message).__name__}.")
        self._perform(task, message)

    def _perform(self, task: Callable[..., None], *message: Message) -> None:
        try:
            task(*message)
            self._endings.tell()
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - told to the parent, whatever it is
            self._fail(Failed.of(-1, -1, exc))

    def work(self, seconds: float, is_called: Callable[[], bool], *, awaits_all: bool) -> bool:
        """Make steps of the rows that have an action, until a chunk has ended (all of them, where
        all are awaited), `is_called` says so, or `seconds` are over; false where no step was made.

        However few the seconds, at least one step is made, unless chunks for more rows are about to
        come and the rule says to hold the step for them.
        """
        now = self._clock()
        if self._begins and self._begins_due_s(now) <= 0.0:
            self._perform(self._begins.go_on)
            return True
        if self._must_hold(now):
            return False
        until = now + seconds
        self._has_looked = False
        failed: Failed | None = None
        try:
            self._obey()
            while self._table.moving().count:
                self._step(until, is_called)
                if is_called() or self._has_looked or (self._endings and not awaits_all):
                    break
                now = self._clock()
                is_over = now >= until or (self._begins and self._begins_due_s(now) <= 0.0)
                if is_over or self._must_hold(now):
                    break
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - told to the parent, whatever it is
            failed = Failed.of(-1, -1, exc)
        try:
            self._endings.tell()
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - told to the parent, whatever it is
            # What broke first says more than what a broken simulator cannot do.
            failed = failed or Failed.of(-1, -1, exc)
        if failed is not None:
            self._fail(failed)
            self._table.halt(self._table.moving().rows, self._clock())
        self._table.settle()
        if self._took:
            self.rule.stepped(sorted(self._took)[len(self._took) // 2])
            self._took.clear()
        return True

    def _begins_due_s(self, now: float) -> float:
        running = int(np.count_nonzero(self._table.attempt >= 0))
        return self._begins.due_s(running, self.rule.coming, now)

    def _must_hold(self, now: float) -> bool:
        count = self._table.moving().count
        return not count or (self.rule.is_expecting and self.rule.hold_s(count, now) > 0)

    def due_s(self) -> float | None:
        """Seconds until `work` has something to do; None until a message comes."""
        count, now = self._table.moving().count, self._clock()
        held_s = self.rule.hold_s(count, now) if count else None
        due_s = self._begins_due_s(now) if self._begins else inf
        due_s = min(due_s, inf if held_s is None else held_s)
        return None if due_s == inf else due_s

    @property
    def step_s(self) -> float | None:
        """Seconds of a step that takes as long for one row as for all; 0 before the first, None
        where each row costs its own."""
        return self.rule.step_s if self._sims.share_steps else None

    def gather(self, lanes: Sequence[int]) -> Mapping[str, Array]:
        """What the policy reads of these rows, stacked `[k, ...]`. They wait for a chunk, or their
        episodes have just ended."""
        rows = np.asarray(lanes, np.int64)
        return self._see(rows) if self._looks is None else self._looks.gather(rows, self._see)

    def _see(self, rows: Array) -> Mapping[str, Array]:
        """What these rows see now."""
        homes = self._table.home[rows]
        if self._history.length > 1:
            return self._history.gather(rows, homes)
        return self._sims.observe(rows, homes)

    def arrays(self, lane: int, chunk: int = 0) -> Observation:
        del chunk  # What a row saw is kept until the chunk comes that answers it.
        if lane in self._endings.final:
            return self._endings.final[lane]
        return {key: on_host(array)[0] for key, array in self.gather([lane]).items()}

    def signature(self, lane: int) -> Signature:
        found = self._sims[int(self._table.home[lane])].signature(self._begins.task(lane))
        return self._history.signature(found)

    def abandon(self, rows: Array | None = None) -> None:
        """Give up the attempts of these rows, or of all: what was recorded of them is kept where
        that was asked for."""
        lost = np.flatnonzero(self._table.attempt >= 0) if rows is None else rows
        for row, attempt, files in self._recording.abandon(lost):
            self.leave(row, attempt, files)

    def leave(self, lane: int, attempt: int, files: Sequence[str]) -> None:
        """Hand over what a lost attempt left, where the parent does not see the folder."""

    def _fail(self, failed: Failed) -> None:
        self.abandon()
        self._post(failed)

    def close(self) -> None:
        self._recording.discard(np.flatnonzero(self._table.attempt >= 0))
        self._sims.close()

    # -- Messages ------------------------------------------------------------------------------

    def _execute(self, message: Execute) -> None:
        rows = np.asarray(message.lanes, np.int64)
        counts = np.asarray(message.counts, np.int64)
        if self._table.attempt[rows].tolist() != list(message.attempts):
            raise WireError("A chunk came for an attempt that is not running here.")
        self.rule.came(len(rows))
        homes = self._table.home[rows]
        if self._looks is not None and isinstance(message.actions, np.ndarray):
            packed = np.ascontiguousarray(message.actions, "<f8").tobytes()
            message = message._replace(actions=packed)
        if isinstance(message.actions, np.ndarray):
            sim = self._sims[int(homes[0])]
            if (homes == homes[0]).all() and sim.drive.takes(message.actions):
                sim.load_block(rows, message.actions)
                self._table.load(rows, message.chunks, counts, self._clock())
                return
            packed = np.ascontiguousarray(message.actions, "<f8").tobytes()
            message = message._replace(actions=packed)
        if (homes == homes[0]).all():
            self._load(message, int(homes[0]), rows, counts)
            return
        offsets = np.concatenate([[0], np.cumsum(counts)])
        for index, home in enumerate(homes.tolist()):
            size = 8 * self._sims[home].drive.spec.size
            part = message._replace(
                lanes=[message.lanes[index]],
                attempts=[message.attempts[index]],
                chunks=[message.chunks[index]],
                counts=[message.counts[index]],
                actions=message.actions[size * offsets[index] : size * offsets[index + 1]],
                observe_at=message.observe_at[index : index + 1],
                holds=message.holds[index : index + 1],
            )
            self._load(part, home, rows[index : index + 1], counts[index : index + 1])

    def _load(self, message: Execute, home: int, rows: Array, counts: Array) -> None:
        """Take the chunks of rows of one simulator. Where some are no actions, halves are tried
        until the rows that sent them stand alone: only their attempts are lost."""
        sim = self._sims[home]
        try:
            actions = sim.drive.decode(message.actions, int(counts.sum()))
        except ChunkValueError as exc:
            if len(rows) == 1:
                self.abandon(rows)
                self._post(Failed.of(int(rows[0]), message.attempts[0], exc))
                self._drop(rows)
                return
            middle, cut = len(rows) // 2, int(counts[: len(rows) // 2].sum())
            cut *= 8 * sim.drive.spec.size
            for part, data in (
                (slice(0, middle), message.actions[:cut]),
                (slice(middle, len(rows)), message.actions[cut:]),
            ):
                half = message._replace(
                    attempts=message.attempts[part],
                    chunks=message.chunks[part],
                    actions=data,
                    observe_at=message.observe_at[part],
                    holds=message.holds[part],
                )
                self._load(half, home, rows[part], counts[part])
            return
        sim.load(rows, counts, actions)
        if self._looks is not None:
            counts = self._looks.load(message, rows, counts, self._table.steps[rows])
        self._table.load(rows, message.chunks, counts, self._clock())
        if self._looks is not None:
            self._observe_due(rows)
            # The delay was as long as a decision lasts, and the next answer is there at once.
            if len(empty := rows[counts == 0]):
                self._endings.cut(empty, self._clock())

    def _observe_due(self, rows: Array) -> None:
        """Tell what those of these rows see whose next decision is due, and let them go on."""
        assert self._looks is not None
        table = self._table
        done, steps = table.done[rows], table.steps[rows]
        due = self._looks.due(rows, done, table.count[rows], steps)
        if not len(due):
            return
        self._has_looked = True
        homes = table.home[due]
        for home in np.unique(homes).tolist():  # Each may see other shapes.
            mine = due[homes == home]
            self._looks.keep(mine, self._see(mine))
        self._post(
            Observed(
                lanes=due.tolist(),
                attempts=table.attempt[due].tolist(),
                chunks=table.chunk[due].tolist(),
                steps=table.done[due].tolist(),
                arrays=None,
            )
        )

    def _discard(self, message: Discard) -> None:
        self._begins.drop(message.lanes, message.attempts)
        rows = np.asarray(message.lanes, np.int64)
        rows = rows[self._table.attempt[rows] == message.attempts]
        running = rows[self._table.active[rows]]
        if len(running):
            # The fleet counts answers: one for each chunk that it sent.
            self._endings.cut(running, self._clock())
            self._endings.tell()
        self._drop(rows)

    def _drop(self, rows: Array) -> None:
        self._table.attempt[rows] = -1
        self._table.halt(rows[self._table.active[rows]], self._clock())
        self._table.settle()
        self._recording.discard(rows)

    # -- Steps ---------------------------------------------------------------------------------

    def _obey(self) -> None:
        """Read the control words: recalled chunks end with the step that was made last, or as soon
        as the row's history is whole."""
        if not np.count_nonzero(self._words):
            return
        table = self._table
        is_stop = self._words & 0xFF == STOP
        worded = (self._words >> 8 == table.chunk + 1) & is_stop & table.active
        lacking = self._history.lacks(table.steps)
        table.recall(worded, lacking)
        rows = np.flatnonzero(worded & (table.done >= table.count))
        if len(rows):
            self._endings.cut(rows, self._clock())

    def _step(self, until: float, is_called: Callable[[], bool]) -> None:
        """Make one step in each simulator that has rows to move, or several at once where only the
        last of them can end a chunk."""
        table = self._table
        if len(self._sims) == 1:
            # Steps are made one by one where someone looks at each (sinks, histories, the rule that
            # holds a step), or where the simulator has no mask and needs its actions copied.
            moving, sim, most = table.moving(), self._sims[0], table.quiet_steps
            if (
                most <= 0
                or self._keeps_steps
                or self.rule.is_expecting
                or not sim.takes_any(moving)
            ):
                self._step_in(0, moving)
                return
            stride = sim.stride(moving, table.together, most, until, self._clock, is_called)
            self._took += stride.took
            table.passed(stride.rewards, is_judging=moving.is_judging)
            self._judge(0, moving, stride.last)
            return
        for home in range(len(self._sims)):
            moving = table.moving_in(home)
            if moving.count:
                self._step_in(home, moving)

    def _step_in(self, home: int, moving: Moving) -> None:
        began = self._clock()
        sim, looks = self._sims[home], self._looks
        if looks is None:
            result = sim.step(moving, self._table.action_index(moving.rows))
        else:
            actions = looks.actions(sim, moving.rows, self._table.done[moving.rows])
            result = sim.act(moving, actions)
        self._took.append(self._clock() - began)
        self._judge(home, moving, result)

    def _judge(self, home: int, moving: Moving, result: RowSteps) -> None:
        table, sim = self._table, self._sims[home]
        ended = table.judge(moving, result)
        if self._numbers is not None:
            self._numbers.add(moving.rows, table.done[moving.rows], result.numbers)
        if self._keeps_steps:
            self._keep(home, sim, moving.rows, ended)
        finished = table.finished(moving, ended)
        if finished is not None:
            self._endings.add(finished, self._clock())
        if self._looks is not None:
            rows = moving.rows
            if ended is not None:
                rows = rows[~np.isin(rows, ended.rows)]
            self._observe_due(rows)

    def _keep(self, home: int, sim: RowSim, rows: Array, ended: Ended | None) -> None:
        """Observe and record the step just made, where anyone asked for it."""
        if self._history.length > 1:
            left = self._table.count[rows] - self._table.done[rows]
            is_seen = (left < self._history.length) | self._table.wants_final[rows]
            if self._looks is not None:
                to_look = self._looks.at[rows] - self._table.done[rows]
                is_seen |= (to_look >= 0) & (to_look < self._history.length)
            seen = rows[is_seen]
            self._history.push(home, seen, sim, self._spec.reads, self._table.steps)
        if self._recording.is_on:
            self._recording.step(sim, self._table, rows, ended, self._looks)
