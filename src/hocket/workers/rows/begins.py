"""Begins attempts in rows: at once, together with others that wait, or in rows that a second
simulator has reset meanwhile, whichever holds up the others least."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from hocket.core.contracts.batched import TakesRows
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Array, Observation, Trial
from hocket.core.wire import Begin, Message, Ready
from hocket.workers.rows.endings import RowRecording
from hocket.workers.rows.looks import RowLooks
from hocket.workers.rows.resets import WaitingResets, joined
from hocket.workers.rows.sim import RowHistory, RowSims
from hocket.workers.rows.table import RowTable
from hocket.workers.rows.twin import POLL_S, Asked, Twin

APART = 4.0
"""Steps that a reset must take for a second simulator to be built, which costs its memory. Chosen
by hand."""


class RowBegins:
    """The attempts that are to begin, and what each row was told to do."""

    def __init__(
        self,
        spec: WorkerSpec,
        clock: Callable[[], float],
        post: Callable[[Message], None],
        *,
        table: RowTable,
        sims: RowSims,
        recording: RowRecording,
        final: dict[int, Observation],
        history: RowHistory,
        looks: RowLooks | None,
    ) -> None:
        """`final` are the last observations of rows, until they begin anew."""
        self._spec = spec
        self._clock = clock
        self._post = post
        self._table = table
        self._sims = sims
        self._recording = recording
        self._final = final
        self._history = history
        self._looks = looks
        self._tasks = [""] * spec.lanes
        self._told: set[tuple[str, str]] = set()
        """Suite and task of the envs whose spec was posted."""
        self._resets = WaitingResets()
        self._twin: Twin | None = None
        self._ahead: Callable[[int], Sequence[Trial]] = lambda _: ()

    def task(self, lane: int) -> str:
        """The task of a lane that was reset."""
        return self._tasks[lane]

    def __bool__(self) -> bool:
        """Whether attempts wait, or resets are made beside the steps."""
        return bool(self._resets) or (self._twin is not None and self._twin.is_called)

    # -- What is asked ---------------------------------------------------------------------------

    def ask(self, message: Begin, step_s: float) -> None:
        """Begin these attempts, at once or, where a reset holds up others for longer than a step,
        in rows that are reset elsewhere, or together with those that end meanwhile."""
        if self._twin is None and self._resets.call_s > APART * step_s > 0:
            self._twin = self._make_twin(message)
        if self._twin is not None and self._are_at_home(message.trials):
            trials: list[Asked] = [(*trial,) for trial in message.trials]
            self._resets.add(message._replace(trials=trials), self._clock())
            self.go_on()
        elif self._twin is None and (self._resets or self._resets.setup_s > step_s > 0):
            self._resets.add(message, self._clock())
        else:
            self._begin(message)

    def _are_at_home(self, trials: Sequence[Asked]) -> bool:
        """Whether these are trials of the one simulator that has a second one."""
        return all(self._sims.has(suite, task, 0) for suite, task, _, _ in trials)

    def _make_twin(self, message: Begin) -> Twin | None:
        """A second simulator, where the only one there is takes over rows."""
        suite, task, _, _ = message.trials[0]
        if len(self._sims) != 1 or not isinstance(self._sims[0].env, TakesRows):
            return None
        return Twin(lambda: self._sims.build(suite, task), self._spec.lanes)

    def foresee(self, ahead: Callable[[int], Sequence[Trial]]) -> None:
        """Be told how to ask for the trials, so many, that begin next."""
        self._ahead = ahead

    def _next(self, count: int) -> list[Asked]:
        return [trial for trial in self._ahead(count) if self._are_at_home([trial])]

    def drop(self, lanes: Sequence[int], attempts: Sequence[int]) -> None:
        """Forget these attempts, where they wait."""
        self._resets.drop(lanes, attempts)

    # -- When ------------------------------------------------------------------------------------

    def due_s(self, running: int, coming: Sequence[tuple[float, int]], now: float) -> float:
        """Seconds until `go_on` had better be called, with so many rows in an episode, of which
        some are expected to get chunks, each with the time; 0 is now."""
        if self._twin is None:
            return self._resets.due_s(running, coming, now) if self._resets else inf
        if self._twin.is_busy:
            return POLL_S if self._resets else inf
        return 0.0

    def interrupts(self, is_called: Callable[[], bool]) -> Callable[[], bool]:
        """What says that steps had better end: a call, or a reset elsewhere that is done."""
        twin = self._twin
        if twin is None or not twin.is_called:
            return is_called
        return lambda: is_called() or not twin.is_busy

    def go_on(self) -> None:
        """Begin what waits and may begin."""
        twin = self._twin
        if twin is None:
            for message in self._resets.take():
                self._begin(message)
        elif not twin.is_busy:
            twin.collect()
            for message in self._resets.take(twin.ready):
                self._take_over(message, twin)
            twin.start(self._resets.trials(), self._next)

    def close(self) -> None:
        if self._twin is not None:
            self._twin.close()

    # -- Resets ----------------------------------------------------------------------------------

    def _begin(self, message: Begin) -> None:
        began = self._clock()
        homes = [self._sims.home(suite, task) for suite, task, _, _ in message.trials]
        build_s = self._clock() - began
        for home in dict.fromkeys(homes):
            mine = [(message, index) for index, other in enumerate(homes) if other == home]
            self._reset(joined(mine)[0], home, build_s)

    def _reset(self, message: Begin, home: int, build_s: float) -> None:
        """Reset rows of one simulator."""
        began, rows = self._clock(), np.asarray(message.lanes, np.int64)
        self._halt(rows, began)
        asked = self._clock()
        tasks, seeds = zip(*(trial[1:3] for trial in message.trials), strict=True)
        self._sims[home].env.reset(rows, list(tasks), list(seeds))
        self._resets.took(len(rows), self._clock() - asked)
        self._tell(message, home, began, build_s)

    def _take_over(self, message: Begin, twin: Twin) -> None:
        """Let the simulator go on where its second one has reset rows for these trials."""
        began, rows = self._clock(), np.asarray(message.lanes, np.int64)
        self._halt(rows, began)
        env, source = self._sims[0].env, [twin.ready.pop(trial) for trial in message.trials]
        assert isinstance(env, TakesRows)
        env.take_rows(rows, twin.env, np.asarray(source, np.int64))
        self._tell(message, 0, began, 0.0)

    def _halt(self, rows: Array, now: float) -> None:
        """End whatever these rows do."""
        table = self._table
        self._recording.discard(rows[table.attempt[rows] >= 0])
        running = rows[table.active[rows]]
        if len(running):
            table.halt(running, now)
            table.settle()

    def _tell(self, message: Begin, home: int, began: float, build_s: float) -> None:
        """Write down that these attempts have begun, in rows that were reset, and post it."""
        sim, lanes, attempts = self._sims[home], message.lanes, message.attempts
        rows = np.asarray(lanes, np.int64)
        trials = [Trial(*trial) for trial in message.trials]
        tasks = [self._sims.tasks[trial.suite, trial.task] for trial in trials]
        final, limits = message.final_observation, message.max_steps
        self._table.begin(rows, attempts, tasks, limits, final=final)
        self._table.home[rows] = home
        prompts = sim.prompts(rows, tasks)
        for lane, trial in zip(lanes, trials, strict=True):
            self._tasks[lane] = trial.task
            self._final.pop(lane, None)
            sim.learn(trial.task, lane, self._spec.reads)
        self._history.restart(home, rows, sim, self._spec.reads)
        if self._looks is not None:
            self._looks.restart(rows)
            sim.restart(rows)
        self._recording.open(sim, rows, attempts, trials, tasks, prompts, message.record)
        # A message has one spec: a task that is new gets a message of its own.
        for group in self._by_news(trials):
            spec = None
            new = (trials[group[0]].suite, trials[group[0]].task)
            if new not in self._told:
                self._told.add(new)
                found = sim.spec(tasks[group[0]], lanes[group[0]], self._spec.reads)
                spec = found.to_plain()
            self._post(
                Ready(
                    lanes=[lanes[index] for index in group],
                    attempts=[attempts[index] for index in group],
                    prompts=[prompts[index] for index in group],
                    spec=spec,
                    layout=None,
                    block=-1,
                    arrays=None,
                    build_s=build_s,
                    reset_s=self._clock() - began,
                )
            )

    def _by_news(self, trials: Sequence[Trial]) -> list[list[int]]:
        """Indices of trials: those of known tasks in one group, each new task in its own."""
        groups: dict[tuple[str, str] | None, list[int]] = {}
        for index, trial in enumerate(trials):
            task = (trial.suite, trial.task)
            groups.setdefault(None if task in self._told else task, []).append(index)
        return list(groups.values())
