"""The trials of a run as numbered cells, and what has become of each, read from its ledger.

Cells are numbered in planned order. Outcomes are letters: `S` success, `F` failure, `D` finished,
`E` error, `.` not ended. A ledger of 100,000 trials is read once; after that, only what is new.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hocket.core.data import Array
from hocket.errors import RunFolderError
from hocket.records.folder import RunFolder
from hocket.records.ledger import schema
from hocket.records.ledger.episodes import Trials, common_rows
from hocket.results import stats
from hocket.results.card import LETTERS as LETTER_OF
from hocket.results.comparing.paired import rate_difference
from hocket.results.scores import VALUES, bounds, rate_of_trials
from hocket.results.stats import Grouping

LETTERS = {outcome.value: letter for outcome, letter in LETTER_OF.items()}
PENDING, LOST = ".", "L"
_VALUES = {ord(LETTER_OF[outcome]): value for outcome, value in VALUES.items()}
_MOST_GAPS = 500
"""Trials that are asked for one by one; where more are missing, all since the first are read."""

_MOST_SIBLINGS = 50
"""Runs beside this one that are looked at, those that were written last."""


class EndedCell(NamedTuple):
    """An episode that the ledger has, or an attempt that was lost."""

    cell: int
    attempt: int
    outcome: str
    steps: int
    seconds: float
    total_reward: float | None
    error: str | None


class Cells:
    """What a ledger says of each trial, as of the last `update`. Closing twice is safe."""

    def __init__(self, folder: Path) -> None:
        self._path = RunFolder.at(folder).ledger
        self._connection = schema.open_checked(self._path, to_read=True)
        self._version: int | None = None
        self.plan = Trials.of(())
        self.outcomes = bytearray()
        self.counts: list[Counter[str]] = []
        """How the episodes of each task ended."""
        told = self._rows("SELECT value FROM meta WHERE key = 'independent_starts'")
        self.independent_starts = bool(told) and json.loads(told[0][0]) is True

    def update(self) -> list[EndedCell]:
        """Read what is new; returns the episodes that ended since the last time, and none at the
        first."""
        ((version,),) = self._rows("PRAGMA data_version")
        if version == self._version:
            return []
        is_first, self._version = self._version is None, version
        self._read_trials()
        if is_first:
            self._read_outcomes()
            return []
        return self._read_episodes()

    def last_failed(self, most: int) -> list[EndedCell]:
        """The failures and errors that ended last, oldest first."""
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM episodes e JOIN attempts a USING (trial, attempt)"
            " WHERE outcome IN ('failure', 'error')"
            " ORDER BY a.leg DESC, a.began + e.seconds DESC LIMIT ?",
            (most,),
        )
        return [self._ended(row) for row in reversed(rows)]

    def episode(self, cell: int) -> EndedCell | None:
        rows = self._rows(f"SELECT {_COLUMNS} FROM episodes e WHERE trial = ?", (cell + 1,))
        return self._ended(rows[0]) if rows else None

    def lost(self, most: int) -> list[EndedCell]:
        """The attempts that were lost, those that began last."""
        rows = self._rows(
            "SELECT trial, attempt, error FROM attempts WHERE error IS NOT NULL"
            " ORDER BY leg DESC, began DESC LIMIT ?",
            (most,),
        )
        return [
            EndedCell(trial - 1, attempt, LOST, 0, 0.0, None, error)
            for trial, attempt, error in reversed(rows)
        ]

    def lost_at(self, cell: int) -> dict[int, str]:
        """The attempts at a trial that were lost, with their errors."""
        query = "SELECT attempt, error FROM attempts WHERE trial = ? AND error <> ''"
        return dict(self._rows(f"{query} ORDER BY attempt", (cell + 1,)))

    def attempts(self, cell: int) -> int:
        """How many attempts at a trial have begun."""
        ((count,),) = self._rows("SELECT COUNT(*) FROM attempts WHERE trial = ?", (cell + 1,))
        return int(count)

    def planned(self) -> int:
        """How many trials there are, before they are read."""
        ((count,),) = self._rows("SELECT COUNT(*) FROM trials")
        return int(count)

    def rate(self) -> stats.Rate:
        """The success rate so far, every task counting once."""
        codes, plan = self._codes(), self.plan
        told = np.isin(codes, list(_VALUES))
        values = np.vectorize(_VALUES.get, otypes=[float])(codes[told])
        return rate_of_trials(
            values, plan.kind[told], plan.seed[told], independent=self.independent_starts
        )

    def task_rate(self, task: int) -> stats.Rate:
        counts = self.counts[task]
        return stats.rate(counts["S"], counts["S"] + counts["F"], errors=counts["E"])

    def compared(self, other: Cells) -> dict[str, Any] | None:
        """How much more often this run succeeds than another, on the trials that both have ended;
        None where there are none."""
        rows, others = common_rows(self.plan, other.plan)
        mine, theirs = self._codes()[rows], other._codes()[others]
        won, lost = ord("S"), ord("F")
        both = np.isin(mine, (won, lost)) & np.isin(theirs, (won, lost))
        if not both.any():
            return None
        grouping = Grouping.of(
            self.plan.kind[rows][both],
            self.plan.seed[rows][both],
            independent=self.independent_starts and other.independent_starts,
        )
        a, b = (mine[both] == won).astype(float), (theirs[both] == won).astype(float)
        found = rate_difference(a, b, grouping)
        return {
            "n": found.n,
            "mine": found.a,
            "theirs": found.b,
            "difference": found.value,
            "interval": bounds(found.interval),
        }

    def close(self) -> None:
        self._connection.close()

    # -- reading -------------------------------------------------------------------------------

    def _read_trials(self) -> None:
        """Read the trials that were planned since: the ledger numbers them from 1 on."""
        known = len(self.plan)
        # One text of numbers for each task: a row for each trial takes six times as long.
        rows = self._rows(
            "SELECT suite, task, group_concat(id), group_concat(seed), group_concat(repeat)"
            " FROM trials WHERE id > ? GROUP BY suite, task ORDER BY MIN(id)",
            (known,),
        )
        if not rows:
            return
        kinds = list(dict.fromkeys([*self.plan.kinds, *(row[:2] for row in rows)]))
        parts = [[_numbers_in(text) for text in texts] for _, _, *texts in rows]
        ids, seeds, repeats = (np.concatenate(column) for column in zip(*parts, strict=True))
        of = np.repeat([kinds.index(row[:2]) for row in rows], [len(part[0]) for part in parts])
        order = np.argsort(ids)
        new = zip(
            (self.plan.kind, self.plan.seed, self.plan.repeat), (of, seeds, repeats), strict=True
        )
        columns = [np.concatenate([column, more[order]]) for column, more in new]
        self.plan = Trials(kinds, *columns)
        self.counts += [Counter() for _ in range(len(kinds) - len(self.counts))]
        self.outcomes.extend(PENDING.encode() * (len(self.plan) - known))

    def _read_outcomes(self) -> None:
        """Read how each episode ended, and nothing else of it."""
        codes = self._codes().copy()
        rows = self._rows("SELECT outcome, group_concat(trial) FROM episodes GROUP BY outcome")
        for outcome, trials in rows:
            letter, cells = LETTERS[outcome], _numbers_in(trials) - 1
            codes[cells] = ord(letter)
            for task, count in enumerate(np.bincount(self.plan.kind[cells])):
                self.counts[task][letter] += int(count)
        self.outcomes[:] = codes.tobytes()

    def _codes(self) -> Array:
        return np.frombuffer(bytes(self.outcomes), np.uint8)

    def _read_episodes(self) -> list[EndedCell]:
        codes = self._codes()
        known = np.flatnonzero(codes != ord(PENDING))
        last = int(known[-1]) if len(known) else -1
        gaps = (np.flatnonzero(codes[: last + 1] == ord(PENDING)) + 1).tolist()
        # Trials end about in planned order: few are missing before the last one that is known.
        since, asked = last + 1, gaps
        if len(gaps) > _MOST_GAPS:
            since, asked = gaps[0] - 1, []
        marks = ", ".join("?" * len(asked))
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM episodes e WHERE trial > ? OR trial IN ({marks})"
            " ORDER BY trial",
            (since, *asked),
        )
        found = [self._ended(row) for row in rows if self._is_new(row[0])]
        for one in found:
            self.outcomes[one.cell] = ord(one.outcome)
            self.counts[int(self.plan.kind[one.cell])][one.outcome] += 1
        return found

    def _is_new(self, number: int) -> bool:
        return self.outcomes[number - 1] == ord(PENDING)

    def _ended(self, row: Sequence[Any]) -> EndedCell:
        return EndedCell(row[0] - 1, row[1], LETTERS[row[2]], *row[3:])

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with schema.translated(self._path):
            return self._connection.execute(query, tuple(values)).fetchall()


def _numbers_in(text: str) -> Array:
    """The whole numbers of a text with commas."""
    return np.array(text.split(","), np.int64)


_COLUMNS = (
    "e.trial, e.attempt, e.outcome, e.steps, e.seconds, e.total_reward,"
    " iif(e.diverged, 'Diverged: actions or states were NaN or infinite.', e.error)"
)


def plain_rate(rate: stats.Rate) -> dict[str, Any]:
    """A rate as pages are told of it."""
    return {
        "n": rate.n,
        "value": rate.value,
        "interval": bounds(rate.interval),
        "errors": rate.errors,
    }


def find_twin(folder: Path, mine: Cells) -> tuple[str, Cells] | None:
    """The run beside this one that had the same trials and was written before it last, with its
    cells; None where there is none."""
    siblings = []
    for ledger in folder.parent.glob(f"*/{RunFolder.at(folder).ledger.name}"):
        with contextlib.suppress(OSError):
            if ledger.parent != folder:
                siblings.append((ledger.stat().st_mtime, ledger.parent))
    began = (folder / "run.yaml").stat().st_mtime if (folder / "run.yaml").exists() else np.inf
    for written, sibling in sorted(siblings, reverse=True)[:_MOST_SIBLINGS]:
        if written > began:
            continue
        with contextlib.suppress(RunFolderError, sqlite3.Error):
            cells = Cells(sibling)
            if cells.planned() == len(mine.plan):
                cells.update()
                if len(common_rows(mine.plan, cells.plan)[0]) == len(mine.plan):
                    return sibling.name, cells
            cells.close()
    return None
