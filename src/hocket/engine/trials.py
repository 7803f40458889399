"""Trials: those that wait for a lane, and the attempt that each lane makes at one."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from hocket.core.data import Episode, Trial
from hocket.core.specs import EnvSpec
from hocket.core.wire import END_DIVERGED, END_TERMINATED, END_TRUNCATED, outcome_of
from hocket.engine.chunk_rules import ChunkRule

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

    @property
    def is_open(self) -> bool:
        """True if more trials may come though none waits: a run goes on until that is settled."""
        return False

    def number(self, trial: Trial) -> int | None:
        """The number of the attempt at a trial that was just taken; None leaves it to the engine,
        which counts them."""
        del trial
        return None

    def add(self, trials: Iterable[Trial]) -> None:
        """Plan more trials, after those of the same task."""
        for trial in trials:
            self._waiting.setdefault((trial.suite, trial.task), deque()).append(trial)
            self._left += 1

    def give_back(self, trial: Trial) -> None:
        """Plan a trial again whose attempt was lost: it is next in its task."""
        self._waiting[trial.suite, trial.task].appendleft(trial)
        self._left += 1

    def take(self, lane: int, live: Task | None) -> Trial | None:
        """The next trial for a lane whose worker has an env for `live`; None when none waits."""
        if not self._left:
            return None
        task = live if live is not None and self._waiting.get(live) else self._neediest()
        before = self._served_by.get(lane)
        if before != task:
            if before is not None:
                self._lanes_on[before] -= 1
            self._served_by[lane] = task
            self._lanes_on[task] += 1
        self._left -= 1
        return self._waiting[task].popleft()

    def _neediest(self) -> Task:
        return max(
            (task for task, waiting in self._waiting.items() if waiting),
            key=lambda task: len(self._waiting[task]) / (1 + self._lanes_on[task]),
        )


@runtime_checkable
class Refreshes(Protocol):
    """A TrialQueue that hears of trials while a run goes on."""

    def refresh(self) -> None:
        """Take in what has come since, before lanes get trials: once in each turn of the engine, on
        its thread."""


@dataclass(slots=True, eq=False)
class LaneState:
    """One lane's attempt, from its dispatch to its end. The engine alone changes it."""

    trial: Trial
    attempt: int
    rule: ChunkRule
    kind: int
    """What the duration of its chunks depends on: a number for each task, recorded or not."""
    began: float
    run: str
    """Names the engine's run among all that ask the policy."""
    session: str = field(init=False)
    """Names the attempt for policies that keep state for it."""
    noise: Callable[[int], int] | None = None
    """The noise seed of each chunk, once a policy asked for one."""
    chunk: int = 0
    """Index of the chunk that it waits for or executes."""
    steps: int = 0
    total: float = 0.0
    """Sum of its rewards."""
    prompt: str = ""
    queue: int = -1
    """Index of the signature of what it sees."""
    action_size: int = 0
    env: EnvSpec | None = None
    """What its env turned out to be, once it was reset."""
    ready_at: float = 0.0
    """When its last observation had come."""
    source: str = ""
    """Who made the chunk that it executes; empty once that is recalled."""
    remarks: tuple[str, ...] = ()
    """What the user is to be told of it, each sentence once."""

    def __post_init__(self) -> None:
        self.session = f"{self.trial.id}@{self.attempt} of {self.run}"

    @property
    def rate(self) -> float | None:
        """Control steps per second of its env, where that is known."""
        return None if self.env is None else self.env.task.control_rate

    def episode(self, end: int, now: float) -> Episode:
        """The attempt as an episode that ended with the flags `end` of the wire."""
        return Episode(
            trial=self.trial,
            attempt=self.attempt,
            outcome=outcome_of(end),
            steps=self.steps,
            total_reward=self.total,
            terminated=bool(end & END_TERMINATED),
            truncated=bool(end & END_TRUNCATED),
            chunks=self.chunk,
            seconds=now - self.began,
            remarks=self.remarks,
            diverged=bool(end & END_DIVERGED),
        )
