"""The trials of a run as columns of numbers: a hundred thousand objects would take a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from hocket.core.data import Array, Trial
from hocket.records.ledger.episodes import Trials

Ask = Callable[..., list[tuple[Any, ...]]]
"""Gives the rows of a query."""


class Planned:
    """The trials that a ledger had when it was read, in planned order: trial i is cell i."""

    def __init__(self, tasks: Sequence[tuple[str, str]], columns: Array) -> None:
        """`columns` `[n, 4]` has the ledger's number, the task, seed and repeat of each trial."""
        self.tasks = list(tasks)
        self.ids, self.task_of, self.seeds, self.repeats = columns.T

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> Planned:
        """Trials in planned order, without a ledger."""
        if isinstance(trials, Trials):
            numbered = (np.arange(len(trials)), trials.kind, trials.seed, trials.repeat)
            return cls(trials.kinds, np.stack(numbered, axis=1).astype(np.int64))
        tasks = list(dict.fromkeys((trial.suite, trial.task) for trial in trials))
        number = {task: index for index, task in enumerate(tasks)}
        columns = [
            (cell, number[trial.suite, trial.task], trial.seed, trial.repeat)
            for cell, trial in enumerate(trials)
        ]
        return cls(tasks, np.array(columns, np.int64).reshape(-1, 4))

    def __len__(self) -> int:
        return len(self.ids)

    def to_json(self) -> dict[str, Any]:
        """The trials as the page is told of them; where they are planned seed by seed, as they
        mostly are, in three numbers."""
        found: dict[str, Any] = {"tasks": self.tasks, "n": len(self)}
        if self.is_regular:
            return {**found, "first": int(self.seeds[0]) if len(self) else 0}
        repeated = zip(self.seeds.tolist(), self.repeats.tolist(), strict=True)
        seeds = [seed if not repeat else f"{seed}.{repeat}" for seed, repeat in repeated]
        return {**found, "task": self.task_of.tolist(), "seed": seeds}

    def read_on(self, ask: Ask) -> Planned:
        """These trials and those that were planned since."""
        after = int(self.ids[-1]) if len(self) else -1
        # One text of numbers for each task: a row for each trial takes six times as long.
        rows = ask(
            "SELECT suite, task, group_concat(id), group_concat(seed), group_concat(repeat)"
            " FROM trials WHERE id > ? GROUP BY suite, task ORDER BY MIN(id)",
            (after,),
        )
        if not rows:
            return self
        tasks = list(dict.fromkeys([*self.tasks, *((suite, task) for suite, task, *_ in rows)]))
        number = {task: index for index, task in enumerate(tasks)}
        parts = [np.stack([self.ids, self.task_of, self.seeds, self.repeats], axis=1)]
        for suite, task, *texts in rows:
            ids, seeds, repeats = (numbers_in(text) for text in texts)
            same = np.full(len(ids), number[suite, task])
            parts.append(np.stack([ids, same, seeds, repeats], axis=1))
        columns = np.concatenate(parts)
        return Planned(tasks, columns[np.argsort(columns[:, 0], kind="stable")])

    def trial(self, cell: int) -> Trial:
        suite, task = self.tasks[int(self.task_of[cell])]
        return Trial(suite, task, int(self.seeds[cell]), int(self.repeats[cell]))

    def cells_of(self, numbers: Array) -> Array:
        """The cells of trials, by the ledger's numbers."""
        return np.searchsorted(self.ids, numbers)

    def cell(self, trial: Trial) -> int | None:
        """The cell of a trial. Those of a plan seed by seed are counted: a million would take a
        hundred megabytes."""
        if not self.is_regular:
            return self._by_trial.get(trial)
        try:
            turn = self.tasks.index((trial.suite, trial.task))
        except ValueError:
            return None
        cell = (trial.seed - int(self.seeds[0])) * len(self.tasks) + turn
        return cell if 0 <= cell < len(self) and not trial.repeat else None

    @cached_property
    def _by_trial(self) -> dict[Trial, int]:
        return {self.trial(cell): cell for cell in range(len(self))}

    def find(self, trial: str) -> int | None:
        """The cell of a trial, by its id."""
        return self._by_id.get(trial)

    @cached_property
    def _by_id(self) -> dict[str, int]:
        return {self.trial(cell).id: cell for cell in range(len(self))}

    @cached_property
    def is_regular(self) -> bool:
        """True if every task has its trials seed by seed, in turn, as most plans have."""
        turn = np.arange(len(self))
        count = max(1, len(self.tasks))
        seeds = (self.seeds[:1] if len(self) else 0) + turn // count
        return bool(
            (self.task_of == turn % count).all()
            and (self.seeds == seeds).all()
            and not self.repeats.any()
        )

    @cached_property
    def _sorted(self) -> tuple[list[tuple[str, str]], Array, Array]:
        """The tasks by name, the trials by task, seed and repeat, and their cells in that order."""
        names = sorted(self.tasks)
        rank = np.array([names.index(task) for task in self.tasks], np.int64)[self.task_of]
        order = np.lexsort((self.repeats, self.seeds, rank))
        return names, np.stack([rank, self.seeds, self.repeats])[:, order], order

    def matched(self, other: Planned) -> tuple[Array, Array] | None:
        """The cells here and there of the same trials, in one order; None where trials differ."""
        mine, theirs = self._sorted, other._sorted
        if mine[0] != theirs[0] or not np.array_equal(mine[1], theirs[1]):
            return None
        return mine[2], theirs[2]


NOTHING = Planned((), np.zeros((0, 4), np.int64))


def numbers_in(text: str) -> Array:
    """The whole numbers of a text with commas."""
    return np.array(text.split(","), np.int64)
