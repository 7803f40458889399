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

from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Array, Observation, Signature
from hocket.core.wire import Begin, Describe, Discard, Execute, Failed, Message, Observed
from hocket.errors import ChunkValueError, WireError
from hocket.workers.rows.begins import RowBegins
from hocket.workers.rows.endings import RowEndings, RowNumbers, RowPictures, RowRecording
from hocket.workers.rows.findings import RowRemarks
from hocket.workers.rows.looks import RowLooks
from hocket.workers.rows.sim import RowHistory, RowSim, RowSims, on_host
from hocket.workers.rows.stepping import StepRule
from hocket.workers.rows.table import DIVERGED, Moving, RowEnds, RowTable
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
        self._remarks = RowRemarks(self._table, self._sims, post)
        self._endings = RowEndings(
            self._table, self._recording, self.gather, post, self._numbers, self._remarks
        )
        self._history = RowHistory(spec.lanes, spec.history)
        sees_all = spec.history > 1 or spec.slots > 1
        self._pictures = RowPictures(self._table, self._recording, sees_all=sees_all)
        self._looks = RowLooks(spec.lanes) if spec.slots > 1 else None
        """When rows are observed that go on meanwhile; None where none does."""
        self._has_looked = False
        self.rule = StepRule()
        self._begins = RowBegins(
            clock,
            post,
            table=self._table,
            sims=self._sims,
            endings=self._endings,
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
        except BaseException as exc:  # noqa: BLE001 - told to the parent, whatever it is
            self._fail(Failed.of(-1, -1, exc))

    def work(self, seconds: float, is_called: Callable[[], bool], *, awaits_all: bool) -> bool:
        """Make steps of the rows that have an action, until a chunk has ended (all of them, where
        all are awaited), `is_called` says so, or `seconds` are over; false where no step was made.

        However few the seconds, at least one step is made, unless chunks for more rows are about to
        come and the rule says to hold the step for them.
        """
        now = self._clock()
        if self._begins_due_s(now) <= 0.0:
            self._perform(self._begins.begin_waiting)
            return True
        if self._must_hold(now):
            return False
        until = now + seconds
        # Both change between calls alone, and to ask anew after each step would cost as much again.
        may_pause = bool(self._begins.waiting) or bool(self.rule.coming)
        self._has_looked = False
        failed: Failed | None = None
        try:
            self._obey()
            while len(self._table.moving().rows) and not self._rests():
                now = self._step()
                if now >= until or is_called() or self._has_looked:
                    break
                if self._endings and not awaits_all:
                    break
                if may_pause and (self._begins_due_s(now) <= 0.0 or self._must_hold(now)):
                    break
        except BaseException as exc:  # noqa: BLE001 - told to the parent, whatever it is
            failed = Failed.of(-1, -1, exc)
        try:
            self._endings.tell()
        except BaseException as exc:  # noqa: BLE001 - told to the parent, whatever it is
            # What broke first says more than what a broken simulator cannot do.
            failed = failed or Failed.of(-1, -1, exc)
        if failed is not None:
            self._fail(failed)
            self._table.halt(self._table.moving().rows, self._clock())
        self._table.publish()
        if self._took:
            self.rule.stepped(sorted(self._took)[len(self._took) // 2])
            self._took.clear()
        return True

    def _begins_due_s(self, now: float) -> float:
        """Seconds until attempts that wait should begin; 0 is now."""
        if not self._begins.waiting:
            return inf
        running = int(np.count_nonzero(self._table.attempt >= 0))
        if self._sims.are_together:
            # A reset disturbs whoever is in an episode; one that has ended is told, and the next
            # may come a moment later than those of others.
            return inf if running else self._begins.gathers_s(now)
        return self._begins.waiting.due_s(running, self.rule.coming, now)

    def _must_hold(self, now: float) -> bool:
        count = len(self._table.moving().rows)
        return not count or self._rests() or self.rule.hold_s(count, now) > 0

    def _rests(self) -> bool:
        """True while a row waits for a chunk that the others cannot step without."""
        table = self._table
        return self._sims.are_together and bool(((table.attempt >= 0) & ~table.active).any())

    def due_s(self) -> float | None:
        """Seconds until `work` has something to do; None until a message comes."""
        count, now = len(self._table.moving().rows), self._clock()
        held_s = self.rule.hold_s(count, now) if count and not self._rests() else None
        due_s = min(self._begins_due_s(now), inf if held_s is None else held_s)
        return None if due_s == inf else due_s

    @property
    def step_s(self) -> float | None:
        """Seconds of a step that takes as long for one row as for all; 0 before the first, None
        where each row costs its own."""
        is_shared = len(self._sims) == 1 and self._sims[0].shares_steps
        return self.rule.step_s if is_shared else None

    def gather(self, lanes: Sequence[int]) -> Mapping[str, Array]:
        """What the policy reads of these rows, stacked `[k, ...]`. They wait for a chunk, or their
        episodes have just ended."""
        rows = np.asarray(lanes, np.int64)
        return self._see(rows) if self._looks is None else self._looks.gather(rows, self._see)

    def _see(self, rows: Array) -> Mapping[str, Array]:
        homes = self._table.home[rows]
        if self._history.length > 1:
            seen: Mapping[str, Array] = self._history.gather(rows, homes)
        else:
            seen = self._sims.observe(rows, homes)
        self._remarks.look(rows, seen)
        return seen

    def arrays(self, lane: int, chunk: int = 0) -> Observation:
        del chunk  # What a row saw is kept until the chunk comes that answers it.
        if lane in self._endings.final:
            return self._endings.final[lane]
        return {key: on_host(array)[0] for key, array in self.gather([lane]).items()}

    def signature(self, lane: int) -> Signature:
        return self._history.signature(self._sims[int(self._table.home[lane])].signature(lane))

    def abandon(self, rows: Array | None = None) -> None:
        """Give up the attempts of these rows, or of all, and hand over what they leave."""
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
        if self._table.attempt[list(message.lanes)].tolist() != list(message.attempts):
            raise WireError("A chunk came for an attempt that is not running here.")
        self.rule.came(len(message.lanes))
        self._take(message)

    def _take(self, message: Execute) -> None:
        """Take chunks whose attempts are running."""
        rows = np.asarray(message.lanes, np.int64)
        counts = np.asarray(message.counts, np.int64)
        homes = self._table.home[rows]
        sim, is_one = self._sims[int(homes[0])], bool((homes == homes[0]).all())
        if isinstance(message.actions, np.ndarray):
            is_fit = is_one and sim.drive.takes(message.actions)
            if is_fit and self._remarks.passes(sim, rows, counts, message.actions):
                actions = message.actions.reshape(-1, *sim.drive.spec.shape)
                self._load(message, sim, rows, counts, actions)
                return
            packed = np.ascontiguousarray(message.actions, "<f8").tobytes()
            message = message._replace(actions=packed)
        if not is_one:
            self._take_apart(message, rows)
            return
        if not self._remarks.passes(sim, rows, counts, np.frombuffer(message.actions, "<f8")):
            if len(rows) > 1:
                self._take_apart(message, rows)
            else:
                self._table.load(rows, message.chunks, counts * 0, self._clock())
                self._endings.add(RowEnds(rows, np.array([DIVERGED])), self._clock())
            return
        try:
            actions = sim.drive.decode(message.actions, int(counts.sum()))
        except ChunkValueError as exc:
            if len(rows) > 1:
                self._take_apart(message, rows)
                return
            self.abandon(rows)
            self._post(Failed.of(int(rows[0]), message.attempts[0], exc))
            self._drop(rows)
            return
        self._load(message, sim, rows, counts, actions)

    def _take_apart(self, message: Execute, rows: Array) -> None:
        """Take the chunk of each row by itself: they are for several simulators, or some are no
        actions, which costs the attempts of these rows alone."""
        at = 0
        for index, home in enumerate(self._table.home[rows].tolist()):
            one = slice(index, index + 1)
            end = at + 8 * self._sims[home].drive.spec.size * message.counts[index]
            self._take(
                message._replace(
                    lanes=message.lanes[one],
                    attempts=message.attempts[one],
                    chunks=message.chunks[one],
                    counts=message.counts[one],
                    actions=message.actions[at:end],
                    courses=message.courses[one],
                )
            )
            at = end

    def _load(
        self, message: Execute, sim: RowSim, rows: Array, counts: Array, actions: Array
    ) -> None:
        """Take the chunks of rows of one simulator, actions `[sum of counts, ...]`."""
        table, looks = self._table, self._looks
        held, totals = np.zeros(len(rows), np.int64), counts
        if looks is not None:
            totals = looks.load(message, rows, counts, table.steps[rows])
            held = looks.begin[rows]
        sim.load(table.tick, rows, held, counts, actions)
        table.load(rows, message.chunks, totals, self._clock())
        if looks is not None:
            self._observe_due(looks, rows)
            # The delay was as long as a decision lasts, and the next answer is there at once.
            if len(empty := rows[totals == 0]):
                self._endings.cut(empty, self._clock())

    def _observe_due(self, looks: RowLooks, rows: Array) -> None:
        """Post what each of `rows` sees that must be observed now; the rows keep stepping."""
        table = self._table
        done, steps = table.done[rows], table.steps[rows]
        due = looks.due(rows, done, table.count[rows], steps)
        if not len(due):
            return
        self._has_looked = True
        homes = table.home[due]
        for home in np.unique(homes).tolist():  # Each may see other shapes.
            mine = due[homes == home]
            looks.keep(mine, self._see(mine))
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
        self._begins.waiting.drop(message.lanes, message.attempts)
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
        lacking = np.maximum(self._history.lacks(table.steps), self._pictures.lacks())
        table.recall(worded, lacking)
        rows = np.flatnonzero(worded & (table.done >= table.count))
        if len(rows):
            self._endings.cut(rows, self._clock())

    def _step(self) -> float:
        """Make one step in each simulator that has rows to move; return the time at its end."""
        table, tick, now = self._table, self._table.tick, 0.0
        if len(self._sims) == 1:
            return self._step_in(0, table.moving(), tick)
        for home in range(len(self._sims)):
            moving = table.moving_in(home)
            if len(moving.rows):
                now = self._step_in(home, moving, tick)
        return now

    def _step_in(self, home: int, moving: Moving, tick: int) -> float:
        table, sim, looks = self._table, self._sims[home], self._looks
        began = self._clock()
        self._pictures.choose(sim, moving.rows)
        if looks is None:
            result = sim.step(moving, tick)
        else:
            done = tick - table.since[moving.rows]
            result = sim.act(moving, looks.actions(sim, moving.rows, done, tick))
        now = self._clock()
        self._took.append(now - began)
        table.tick = tick + 1
        ended = table.judge(moving, result)
        if self._numbers is not None:
            self._numbers.add(moving.rows, table.done[moving.rows], result.numbers)
        if self._history.length > 1:
            self._remember(home, sim, moving.rows)
        if self._recording.is_on:
            self._recording.step(sim, table, moving.rows, ended, looks)
        if ended is not None:
            self._endings.add(ended, now)
        if looks is not None:
            rows = moving.rows
            if ended is not None:
                rows = rows[~np.isin(rows, ended.rows[ended.flags > 0])]
            self._observe_due(looks, rows)
        return now

    def _remember(self, home: int, sim: RowSim, rows: Array) -> None:
        """Observe the step just made, where it will be in a history that the policy reads."""
        table, length = self._table, self._history.length
        done = table.done[rows]
        is_seen = (table.count[rows] - done < length) | table.wants_final[rows]
        if self._looks is not None:
            to_look = self._looks.at[rows] - done
            is_seen |= (to_look >= 0) & (to_look < length)
        self._history.push(home, rows[is_seen], sim, table.steps)
