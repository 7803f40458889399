"""Reads a ledger: also one that another process is writing."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.data import Episode, Trial
from hocket.core.specs import EnvSpec
from hocket.records.folder import FolderLike, RunFolder
from hocket.records.ledger import schema
from hocket.records.ledger.episodes import COLUMNS, Episodes, Trials, gathered

_TRIAL = ", ".join(Trial._fields)
_ATTEMPTS = "attempts JOIN trials ON id = trial"
NEVER_MADE = ""
"""The error of an attempt that was numbered and never made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An attempt lost to a fault."""

    trial: Trial
    attempt: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLeg:
    """A process that worked on the run, or a site that took part in it."""

    host: str
    """Its machine, or the site's name."""
    provenance: Mapping[str, Any]
    """What its numbers depend on; empty where it ended before that was known."""
    episodes: int
    """Those of it that count."""


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

    def read(self, columns: Sequence[str] = COLUMNS) -> tuple[Trials, Episodes]:
        """All planned trials, and the episodes that count, in planned order, as of one moment.
        Where less than all `columns` is read there are numbers of episodes, and no episode."""
        with schema.translated(self.folder.ledger), self._lock:
            return gathered(
                self._connection.execute(
                    f"SELECT {_TRIAL}, {', '.join(columns)} FROM trials"
                    " LEFT JOIN episodes ON trial = id ORDER BY id"
                )
            )

    def trials(self) -> Trials:
        """All planned trials, in planned order."""
        return Trials.of(
            Trial(*row) for row in self._rows(f"SELECT {_TRIAL} FROM trials ORDER BY id")
        )

    def episodes(self) -> Episodes:
        """The episodes that count, in planned order."""
        return self.read()[1]

    def remaining(self) -> list[Trial]:
        """The planned trials without an episode, in planned order."""
        left = "id NOT IN (SELECT trial FROM episodes)"
        return [
            Trial(*row)
            for row in self._rows(f"SELECT {_TRIAL} FROM trials WHERE {left} ORDER BY id")
        ]

    def next_attempts(self) -> dict[str, int]:
        """The number of the next attempt at each trial that has had one, by trial id."""
        rows = self._rows(f"SELECT {_TRIAL}, MAX(attempt) + 1 FROM {_ATTEMPTS} GROUP BY trial")
        return {Trial(*trial).id: number for *trial, number in rows}

    def unsettled(self) -> list[tuple[Trial, int]]:
        """The attempts of which it is not known what became, at trials without an episode."""
        rows = self._rows(
            f"SELECT {_TRIAL}, attempt FROM {_ATTEMPTS} WHERE error IS NULL"
            " AND trial NOT IN (SELECT trial FROM episodes) ORDER BY trial, attempt"
        )
        return [(Trial(*trial), number) for *trial, number in rows]

    def unmade(self) -> int:
        """How many attempts were given a number and never made, at trials that have ended."""
        ((count,),) = self._rows(
            "SELECT COUNT(*) FROM attempts JOIN episodes USING (trial) WHERE attempts.error = ''"
            " AND attempts.attempt < episodes.attempt"
        )
        return int(count)

    def failures(self) -> list[Failure]:
        """The attempts that were lost to faults and not to a killed run, in planned order."""
        rows = self._rows(
            f"SELECT {_TRIAL}, attempt, error FROM {_ATTEMPTS} WHERE error <> ''"
            " ORDER BY trial, attempt"
        )
        return [
            Failure(trial=Trial(*trial), attempt=number, error=text)
            for *trial, number, text in rows
        ]

    def legs(self) -> list[KeptLeg]:
        """The legs of which episodes count, in the order in which they began."""
        rows = self._rows(
            "SELECT host, provenance, n FROM legs JOIN (SELECT COALESCE(site, leg) AS made,"
            " COUNT(*) AS n FROM attempts JOIN episodes USING (trial, attempt) GROUP BY made)"
            " ON made = leg ORDER BY leg"
        )
        return [
            KeptLeg(host=host, provenance=json.loads(known), episodes=count)
            for host, known, count in rows
        ]

    def specs(self) -> dict[tuple[str, str], EnvSpec]:
        """What the envs turned out to be, by suite and task."""
        rows = self._rows("SELECT suite, task, spec FROM specs")
        return {(suite, task): EnvSpec.from_plain(json.loads(spec)) for suite, task, spec in rows}

    def segments(self, table: str) -> list[Segment]:
        """The files that hold a table's rows, oldest first."""
        rows = self._rows("SELECT name, rows, level, digest FROM segments ORDER BY rowid")
        return [found for row in rows if (found := Segment(*row)).table == table]

    def attempt_folders(self) -> Iterator[tuple[Trial, int, Path, Episode | None]]:
        """Yield each folder that an attempt has left, with its trial and number, in planned order,
        and its episode where it is one; those of a run under way are among them."""
        if not self.folder.episodes.is_dir():
            return
        names, (planned, ended) = set(os.listdir(self.folder.episodes)), self.read()
        found = [(row, trial) for row, trial in enumerate(planned) if trial.slug in names]
        wanted = np.isin(ended.columns["places"], [row for row, _ in found])
        counted = {e.trial: e for e in ended.at(np.flatnonzero(wanted).tolist())}
        for _, trial in found:
            folder, episode = self.folder.episodes / trial.slug, counted.get(trial)
            if folder.is_dir():
                numbered = [path for path in folder.iterdir() if path.name.isdecimal()]
                for path in sorted(numbered, key=lambda path: int(path.name)):
                    number = int(path.name)
                    is_it = episode is not None and episode.attempt == number
                    yield trial, number, path, episode if is_it else None

    def close(self) -> None:
        """Give the connection back. Closing twice is safe."""
        self._connection.close()

    def __enter__(self) -> LedgerView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with schema.translated(self.folder.ledger), self._lock:
            return self._connection.execute(query).fetchall()
