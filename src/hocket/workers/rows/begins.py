"""Begins attempts in rows: at once, or together with others that wait, whichever holds up the
others least."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import inf
from statistics import median

import numpy as np

from hocket.core.data import Trial
from hocket.core.wire import TWICE, Begin, Message, Ready
from hocket.workers.rows.endings import RowEndings, RowStart
from hocket.workers.rows.looks import RowLooks
from hocket.workers.rows.sim import RowHistory, RowSim, RowSims
from hocket.workers.rows.table import RowTable

WINDOW = 16
"""Calls of which it is learnt what they cost."""
OUTLIER = 4.0
"""A call that took this many medians is left out: it compiled something, most likely."""
QUIET_S = 0.1
"""Rows that must begin together wait this long for more, once none is in an episode: those that
ended last are given their next trials within a turn of the engine's."""
LONGEST = 10.0
"""Rows wait for each other at most this many times what a call costs. In runs whose episodes end
one after the other they wait about three; the last rows of a run must not wait for nobody."""


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
        self._build_s = 0.0
        """Seconds that it took to build simulators for attempts that have not begun."""

    def ask(self, message: Begin, step_s: float) -> None:
        """Begin these attempts, at once or, where a reset holds up others for longer than a step,
        together with those that end meanwhile."""
        began = self._clock()
        for suite, task, _, _ in message.trials:
            self._sims.home(suite, task)
        self._build_s += self._clock() - began
        is_twice = any(each.get(TWICE) for each in message.record)
        is_due = is_twice or not (self.waiting or self.waiting.setup_s > step_s > 0)
        if not is_due or self._sims.are_together:
            self.waiting.add(message, self._clock())
        else:
            self._begin(message)

    def gathers_s(self, now: float) -> float:
        """Seconds until attempts that must begin together do: all rows have one, or those that
        have none are given none."""
        return 0.0 if len(self.waiting) == self._table.rows else self.waiting.quiet_s(now)

    def begin_waiting(self) -> None:
        for message in self.waiting.take():
            self._begin(message)

    def _begin(self, message: Begin) -> None:
        homes = [self._sims.home(suite, task) for suite, task, _, _ in message.trials]
        build_s, self._build_s = self._build_s, 0.0
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
            lane: sim.reset_again(rows, tasks, seeds, i)
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
        self._endings.remarks.forget(rows)
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


class WaitingResets:
    """The attempts that wait for each other to begin, where a reset holds up all rows of a
    simulator, and what resets have cost. No clock: time is an argument, in seconds.

    A batched simulator resets many rows in about the time of one, and steps none meanwhile. With c
    seconds for a call beside what each row of it costs, to reset now costs the rows in an episode c
    seconds each, and those whose chunks come in w seconds c - w; to wait costs each row that is to
    be reset the time that it waits. Where the second sum has come up to the first, the call is
    made: a call more often, or less often, would cost more of both together.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Begin, int, float]] = {}
        """By lane: the message, the lane's index in it, and since when."""
        self._took: deque[tuple[int, float]] = deque(maxlen=WINDOW)

    def __len__(self) -> int:
        return len(self._waiting)

    def took(self, rows: int, seconds: float) -> None:
        """Learn what a call for a number of rows cost."""
        self._took.append((rows, seconds))

    @property
    def setup_s(self) -> float:
        """Seconds of a call beside what each of its rows costs; 0 while one call alone is known."""
        if len(self._took) < 2:
            return 0.0
        most = OUTLIER * median(seconds for _, seconds in self._took)
        rows, seconds = np.array([each for each in self._took if each[1] <= most]).T
        by_row = 0.0
        if np.ptp(rows) > 0:
            by_row = float(np.cov(rows, seconds)[0, 1] / np.var(rows, ddof=1))
        setup_s = float(seconds.mean() - max(0.0, by_row) * rows.mean())
        return min(max(0.0, setup_s), float(seconds.min()))

    def add(self, message: Begin, now: float) -> None:
        """Let the attempts of a message wait."""
        for index, lane in enumerate(message.lanes):
            self._waiting[lane] = (message, index, now)

    def quiet_s(self, now: float) -> float:
        """Seconds until none has come for `QUIET_S`."""
        last = max((since for _, _, since in self._waiting.values()), default=-inf)
        return max(0.0, last + QUIET_S - now)

    def drop(self, lanes: Iterable[int], attempts: Iterable[int]) -> None:
        """Forget these attempts, where they wait."""
        for lane, attempt in zip(lanes, attempts, strict=True):
            found = self._waiting.get(lane)
            if found is not None and found[0].attempts[found[1]] == attempt:
                del self._waiting[lane]

    def due_s(self, running: int, coming: Sequence[tuple[float, int]], now: float) -> float:
        """Seconds until the call should be made; 0 is now. `running`: rows in an episode;
        `coming`: (time, rows) of expected chunks."""
        setup_s, count = self.setup_s, len(self._waiting)
        held_s = running * setup_s
        held_s -= sum(rows * min(setup_s, max(0.0, at - now)) for at, rows in coming)
        waited = [now - since for _, _, since in self._waiting.values()]
        left_s = (held_s - sum(waited)) / max(1, count)
        return max(0.0, min(left_s, LONGEST * setup_s - max(waited, default=0.0)))

    def take(self) -> list[Begin]:
        """All that wait, in as few messages as they fit in."""
        found = [(message, index) for message, index, _ in self._waiting.values()]
        self._waiting.clear()
        return joined(found)


def joined(found: Iterable[tuple[Begin, int]]) -> list[Begin]:
    """The attempts at these indices of their messages, in as few messages as they fit into."""
    groups: dict[bool, list[tuple[Begin, int]]] = {}
    for message, index in found:
        groups.setdefault(message.final_observation, []).append((message, index))
    return [
        group[0][0]._replace(
            lanes=[message.lanes[index] for message, index in group],
            attempts=[message.attempts[index] for message, index in group],
            trials=[message.trials[index] for message, index in group],
            max_steps=[message.max_steps[index] for message, index in group],
            record=[message.record[index] for message, index in group],
        )
        for group in groups.values()
    ]
