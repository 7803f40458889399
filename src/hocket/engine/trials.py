"""The planned trials that wait for a lane."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from hocket.core.data import Trial

Task = tuple[str, str]
"""Suite and task: what a worker builds an env for."""


class TrialQueue:
    """Hands out planned trials, each once unless it is given back.

    A lane keeps its task while trials of it are left, since building an env costs far more than
    resetting one; otherwise it goes where most trials wait per lane that is already there. Which
    lane runs a trial has no influence on the trial. Trials may be added while a run goes on.
    """

    def __init__(self, trials: Iterable[Trial] = ()) -> None:
        self._waiting: dict[Task, deque[Trial]] = {}
        self._served_by: dict[int, Task] = {}
        self._lanes_on: Counter[Task] = Counter()
        self._left = 0
        self.add(trials)

    def __len__(self) -> int:
        return self._left

    def add(self, trials: Iterable[Trial]) -> None:
        """Plan more trials, after those of the same task."""
        for trial in trials:
            self._waiting.setdefault((trial.suite, trial.task), deque()).append(trial)
            self._left += 1

    def give_back(self, trial: Trial) -> None:
        """A trial whose attempt was lost: it is next in its task."""
        self._waiting[trial.suite, trial.task].appendleft(trial)
        self._left += 1

    def take(self, lane: int, live: Task | None) -> Trial | None:
        """The next trial for a lane whose worker has an env for `live`; None when none waits."""
        if not self._left:
            return None
        task = live if live is not None and self._waiting.get(live) else self._neediest()
        self._move(lane, task)
        self._left -= 1
        return self._waiting[task].popleft()

    def _neediest(self) -> Task:
        return max(
            (task for task, waiting in self._waiting.items() if waiting),
            key=lambda task: len(self._waiting[task]) / (1 + self._lanes_on[task]),
        )

    def _move(self, lane: int, task: Task) -> None:
        before = self._served_by.get(lane)
        if before == task:
            return
        if before is not None:
            self._lanes_on[before] -= 1
        self._served_by[lane] = task
        self._lanes_on[task] += 1
