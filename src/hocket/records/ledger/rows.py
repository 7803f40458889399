"""Rows that belong to episodes: recorded beside the ledger, counted with it.

A segment is written and made durable first, and named in the same transaction that commits its
episodes. So a counted episode always has all its rows, a row is never of an attempt that does not
count, and a segment without a name in the ledger is waste that a resumed run deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hocket.core.data import Episode
from hocket.core.events import Event


@dataclass(frozen=True, slots=True)
class Segment:
    """One durable file of rows."""

    name: str
    """Relative to the run folder, `chunks/part-....parquet`."""
    rows: int
    level: int
    """How often its rows were merged from smaller segments."""

    @property
    def table(self) -> str:
        return self.name.partition("/")[0]


class RowRecorder(Protocol):
    """Gathers one table's rows and writes them when the ledger says so."""

    @property
    def table(self) -> str:
        """Name of the table and of its folder."""
        ...

    @property
    def consumes(self) -> str | None:
        """Name of the file that a sink leaves in the attempt's folder for this table; deleted
        once its rows are committed."""
        ...

    def on(self, event: Event) -> None:
        """Follow the run, on the engine's thread."""
        ...

    def take(self, episode: Episode) -> Any:
        """Hand over what belongs to an ended episode and forget it; on the engine's thread."""
        ...

    def write(self, path: Path, taken: Sequence[Any]) -> int:
        """Make the rows of several episodes one durable file, and say how many they are; no file
        where there are none. On the ledger's thread, as `merge`."""
        ...

    def merge(self, path: Path, sources: Sequence[Path]) -> int:
        """Make one durable file of several, rows in order."""
        ...
