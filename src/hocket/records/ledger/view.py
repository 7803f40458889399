"""Reads a ledger: also one that another process is writing."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hocket.core.data import EnvSpec, Episode, Outcome, Trial
from hocket.records.folder import FolderLike, RunFolder
from hocket.records.ledger import schema

NEVER_MADE = ""
"""The error of an attempt that was numbered and never made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An attempt lost to a fault."""

    trial: Trial
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class Segment:
    """One durable file of rows."""

    name: str
    """Path relative to the run folder, `chunks/part-....parquet`."""
    rows: int
    level: int
    """How often its rows were merged from smaller segments."""
    digest: str
    """Of its bytes, as `hocket.records.parquet.digest_of` makes it."""

    @property
    def table(self) -> str:
        return self.name.partition("/")[0]


class LedgerView:
    """What a run's ledger says. Needs no lock; each method sees all that is committed by then."""

    def __init__(self, folder: RunFolder, connection: sqlite3.Connection) -> None:
        self.folder = folder
        self._connection = connection
        # One connection serves the engine's thread and whoever asks beside it.
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: FolderLike) -> LedgerView:
        folder = RunFolder.at(path)
        return cls(folder, schema.open_checked(folder.ledger, to_read=True))

    def meta(self) -> dict[str, Any]:
        """What is kept of the run as a whole: its configuration, and what was learnt since."""
        return {key: json.loads(text) for key, text in self._rows("SELECT key, value FROM meta")}

    def trials(self) -> list[Trial]:
        """All planned trials, in planned order."""
        return list(self._trials_by_row().values())

    def episodes(self) -> list[Episode]:
        """The episodes that count, in planned order."""
        trials = self._trials_by_row()
        rows = self._rows(f"SELECT {', '.join(Episode._fields)} FROM episodes ORDER BY trial")
        outcomes = {outcome.value: outcome for outcome in Outcome}
        return [
            Episode._make(
                (
                    trials[trial],
                    attempt,
                    outcomes[outcome],
                    steps,
                    # SQLite keeps a NaN as NULL.
                    math.nan if reward is None else reward,
                    bool(terminated),
                    bool(truncated),
                    *more,
                    tuple(json.loads(files)) if files != "[]" else (),
                )
            )
            for trial, attempt, outcome, steps, reward, terminated, truncated, *more, files in rows
        ]

    def remaining(self) -> list[Trial]:
        """The planned trials without an episode, in planned order."""
        ended = {row for (row,) in self._rows("SELECT trial FROM episodes")}
        return [trial for row, trial in self._trials_by_row().items() if row not in ended]

    def next_attempts(self) -> dict[str, int]:
        """The number of the next attempt at each trial that has had one, by trial id."""
        known = self._trials_by_row()
        rows = self._rows("SELECT trial, MAX(attempt) + 1 FROM attempts GROUP BY trial")
        return {known[trial].id: number for trial, number in rows}

    def unsettled(self) -> list[tuple[Trial, int]]:
        """The attempts of which it is not known what became, at trials without an episode."""
        known = self._trials_by_row()
        rows = self._rows(
            "SELECT trial, attempt FROM attempts WHERE error IS NULL"
            " AND trial NOT IN (SELECT trial FROM episodes) ORDER BY trial, attempt"
        )
        return [(known[row], number) for row, number in rows]

    def unmade(self) -> int:
        """How many attempts were given a number and never made, at trials that have ended."""
        ((count,),) = self._rows(
            "SELECT COUNT(*) FROM attempts JOIN episodes USING (trial) WHERE attempts.error = ''"
            " AND attempts.attempt < episodes.attempt"
        )
        return int(count)

    def failures(self) -> list[Failure]:
        """The attempts that were lost to faults and not to a killed run, in planned order."""
        known = self._trials_by_row()
        rows = self._rows(
            "SELECT trial, attempt, error FROM attempts WHERE error <> '' ORDER BY trial, attempt"
        )
        return [Failure(trial=known[row], attempt=number, error=text) for row, number, text in rows]

    def specs(self) -> dict[tuple[str, str], EnvSpec]:
        """What the envs turned out to be, by suite and task."""
        rows = self._rows("SELECT suite, task, spec FROM specs")
        return {(suite, task): EnvSpec.from_plain(json.loads(spec)) for suite, task, spec in rows}

    def segments(self, table: str) -> list[Segment]:
        """The files that hold a table's rows, oldest first."""
        rows = self._rows("SELECT name, rows, level, digest FROM segments ORDER BY rowid")
        return [found for row in rows if (found := Segment(*row)).table == table]

    def close(self) -> None:
        """Give the connection back. Closing twice is safe."""
        self._connection.close()

    def __enter__(self) -> LedgerView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _trials_by_row(self) -> Mapping[int, Trial]:
        rows = self._rows("SELECT id, suite, task, seed, repeat FROM trials ORDER BY id")
        return {row: Trial._make(trial) for row, *trial in rows}

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with schema.translated(self.folder.ledger), self._lock:
            return self._connection.execute(query).fetchall()
