"""Begins attempts in rows: at once, or together with others that wait, whichever holds up the
others least."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hocket.core.data import TaskInfo, Trial
from hocket.core.wire import TWICE, Begin, Message, Ready
from hocket.workers.rows.endings import RowEndings
from hocket.workers.rows.looks import RowLooks
from hocket.workers.rows.resets import WaitingResets, joined
from hocket.workers.rows.sim import RowHistory, RowSims
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
        """Reset rows of one simulator."""
        began, rows = self._clock(), np.asarray(message.lanes, np.int64)
        table = self._table
        self._endings.recording.discard(rows[table.attempt[rows] >= 0])
        table.halt(rows[table.active[rows]], began)
        asked = self._clock()
        tasks, seeds = map(list, zip(*(trial[1:3] for trial in message.trials), strict=True))
        sim = self._sims[home]
        sim.env.reset(rows, tasks, seeds)
        self.waiting.took(len(rows), self._clock() - asked)
        twice = [index for index, each in enumerate(message.record) if each.get(TWICE)]
        differs = {i: sim.reset_again(rows[i : i + 1], tasks[i], seeds[i]) for i in twice}
        self._tell(message, home, began, build_s, differs)

    def _tell(
        self,
        message: Begin,
        home: int,
        began: float,
        build_s: float,
        differs: Mapping[int, str],
    ) -> None:
        """Post that these attempts have begun, in rows that were reset. `differs`: index of an
        attempt that was reset twice to what differed then."""
        sim, lanes, attempts = self._sims[home], message.lanes, message.attempts
        trials = [Trial(*trial) for trial in message.trials]
        tasks = [self._sims.tasks[trial.suite, trial.task] for trial in trials]
        prompts = sim.prompts(np.asarray(lanes, np.int64), tasks)
        self._note(message, home, trials, tasks, prompts)
        # A message has one spec: a task that is new gets a message of its own.
        for group in self._by_news(trials):
            spec = None
            new = (trials[group[0]].suite, trials[group[0]].task)
            if new not in self._told:
                self._told.add(new)
                found = sim.spec(tasks[group[0]], lanes[group[0]])
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
                    differs=next((differs[index] for index in group if index in differs), None),
                )
            )

    def _note(
        self,
        message: Begin,
        home: int,
        trials: Sequence[Trial],
        tasks: Sequence[TaskInfo],
        prompts: Sequence[str],
    ) -> None:
        """Begin attempts in the table, in the histories and in the recordings."""
        sim, lanes, attempts = self._sims[home], message.lanes, message.attempts
        rows = np.asarray(lanes, np.int64)
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
        self._endings.recording.open(sim, rows, attempts, trials, tasks, prompts, message.record)

    def _by_news(self, trials: Sequence[Trial]) -> list[list[int]]:
        """Indices of trials: those of known tasks in one group, each new task in its own."""
        groups: dict[tuple[str, str] | None, list[int]] = {}
        for index, trial in enumerate(trials):
            task = (trial.suite, trial.task)
            groups.setdefault(None if task in self._told else task, []).append(index)
        return list(groups.values())
