"""Begins attempts in rows: at once, or together with others that wait, whichever holds up the
others least."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hocket.core.data import Trial
from hocket.core.wire import TWICE, Begin, Message, Ready
from hocket.workers.rows.endings import RowEndings, RowStart
from hocket.workers.rows.looks import RowLooks
from hocket.workers.rows.resets import WaitingResets, joined
from hocket.workers.rows.sim import RowHistory, RowSim, RowSims
from hocket.workers.rows.table import RowTable


class RowBegins:
    """The attempts that are to begin, and what each row was told to do."""

    def __init__(
        self,
        clock: Callable[[], float],
        post: Callable[[Message], None],
        *,
        table: RowTable,
        sims: RowSims,
        endings: RowEndings,
        history: RowHistory,
        looks: RowLooks | None,
    ) -> None:
        self._clock = clock
        self._post = post
        self._table = table
        self._sims = sims
        self._endings = endings
        self._history = history
        self._looks = looks
        self._told: set[tuple[str, str]] = set()
        """Suite and task of the envs whose spec was posted."""
        self.waiting = WaitingResets()

    def ask(self, message: Begin, step_s: float) -> None:
        """Begin these attempts, at once or, where a reset holds up others for longer than a step,
        together with those that end meanwhile."""
        is_twice = any(each.get(TWICE) for each in message.record)
        if not is_twice and (self.waiting or self.waiting.setup_s > step_s > 0):
            self.waiting.add(message, self._clock())
        else:
            self._begin(message)

    def begin_waiting(self) -> None:
        for message in self.waiting.take():
            self._begin(message)

    def _begin(self, message: Begin) -> None:
        began = self._clock()
        homes = [self._sims.home(suite, task) for suite, task, _, _ in message.trials]
        build_s = self._clock() - began
        for home in dict.fromkeys(homes):
            mine = [(message, index) for index, other in enumerate(homes) if other == home]
            self._reset(joined(mine)[0], home, build_s)

    def _reset(self, message: Begin, home: int, build_s: float) -> None:
        """Reset rows of one simulator, and post that their attempts have begun."""
        began, sim = self._clock(), self._sims[home]
        differs = self._reset_rows(message, sim)
        starts = self._note(message, home)
        # A message has one spec: a task that is new gets a message of its own.
        for group in self._by_news(starts):
            trial, spec = group[0].trial, None
            if (trial.suite, trial.task) not in self._told:
                self._told.add((trial.suite, trial.task))
                spec = sim.spec(group[0].task, group[0].row).to_plain()
            self._post(
                Ready(
                    lanes=[start.row for start in group],
                    attempts=[start.attempt for start in group],
                    prompts=[start.prompt for start in group],
                    spec=spec,
                    layout=None,
                    block=-1,
                    arrays=None,
                    build_s=build_s,
                    reset_s=self._clock() - began,
                    differs=next((differs[s.row] for s in group if s.row in differs), None),
                )
            )

    def _reset_rows(self, message: Begin, sim: RowSim) -> dict[int, str]:
        """Reset rows, whatever they do; return what differed, by lane, of those reset twice."""
        table, rows = self._table, np.asarray(message.lanes, np.int64)
        self._endings.recording.discard(rows[table.attempt[rows] >= 0])
        table.halt(rows[table.active[rows]], self._clock())
        asked = self._clock()
        tasks, seeds = map(list, zip(*(trial[1:3] for trial in message.trials), strict=True))
        sim.env.reset(rows, tasks, seeds)
        self.waiting.took(len(rows), self._clock() - asked)
        return {
            lane: sim.reset_again(rows[i : i + 1], tasks[i], seeds[i])
            for i, lane in enumerate(message.lanes)
            if message.record[i].get(TWICE)
        }

    def _note(self, message: Begin, home: int) -> list[RowStart]:
        """Begin attempts in the table, in the histories and in the recordings."""
        sim, lanes, attempts = self._sims[home], message.lanes, message.attempts
        rows = np.asarray(lanes, np.int64)
        trials = [Trial(*trial) for trial in message.trials]
        tasks = [self._sims.tasks[trial.suite, trial.task] for trial in trials]
        prompts = sim.prompts(rows, tasks)
        final, limits = message.final_observation, message.max_steps
        self._table.begin(rows, attempts, tasks, limits, final=final)
        self._table.home[rows] = home
        for lane, trial in zip(lanes, trials, strict=True):
            self._endings.final.pop(lane, None)
            sim.learn(trial.task, lane)
        self._history.restart(home, rows, sim)
        if self._looks is not None:
            self._looks.restart(rows)
            sim.executed[rows] = 0
        starts = list(map(RowStart, lanes, attempts, trials, tasks, prompts, message.record))
        self._endings.recording.open(sim, starts)
        return starts

    def _by_news(self, starts: Sequence[RowStart]) -> list[list[RowStart]]:
        """Those of known tasks in one group, those of each new task in its own."""
        groups: dict[tuple[str, str] | None, list[RowStart]] = {}
        for start in starts:
            task = (start.trial.suite, start.trial.task)
            groups.setdefault(None if task in self._told else task, []).append(start)
        return list(groups.values())
