"""One row for each chunk: when it was asked for, inferred, delivered and executed, and by whom.

Times are seconds since the run's leg began; a run that was resumed has several legs, and batches
are numbered from 1 in each.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hocket.core.data import INTERVENTION, Episode, Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    BatchInferred,
    ChunksExecuted,
    Event,
)
from hocket.records.folder import FolderLike
from hocket.records.parquet import load_table, write_segment

SCHEMA = pa.schema(
    [
        ("trial", pa.string()),
        ("attempt", pa.int32()),
        ("leg", pa.int32()),
        ("chunk", pa.int32()),
        ("lane", pa.int32()),
        ("requested", pa.float64()),  # its observation had come
        ("batched", pa.float64()),  # its batch left for the policy
        ("inferred", pa.float64()),  # its batch came back
        ("delivered", pa.float64()),
        ("executed", pa.float64()),  # null for a chunk that was never executed
        ("batch", pa.int64()),
        ("batch_size", pa.int32()),  # padding included
        ("policy_version", pa.int64()),
        ("source", pa.string()),
        ("steps", pa.int32()),  # executed of it
        ("busy_s", pa.float64()),  # the worker's time for it, observing included
        ("observe_s", pa.float64()),
    ]
)


EXPERT, POLICY = "expert", "policy"
"""The sources of chunks where an expert may take over."""


@dataclass(slots=True)
class ChunkRow:
    """A chunk as far as it is known: the policy's side fills some fields, the worker's the rest."""

    chunk: int
    lane: int
    requested: float | None = None
    batched: float | None = None
    inferred: float | None = None
    delivered: float | None = None
    executed: float | None = None
    batch: int | None = None
    batch_size: int | None = None
    policy_version: int | None = None
    source: str | None = None
    steps: int = 0
    busy_s: float = 0.0
    observe_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EpisodeChunks:
    """The chunks of an ended episode."""

    trial: str
    attempt: int
    rows: Sequence[ChunkRow]


class ChunkRows:
    """A RowRecorder that follows the run and writes the chunks of the episodes that count.

    Chunks of an attempt that was lost are forgotten when it runs again; those of one that ended
    the trial as ERROR are kept.
    """

    table = "chunks"
    consumes: str | None = None

    def __init__(self, *, leg: int = 0) -> None:
        self._leg = leg
        self._rows: dict[tuple[Trial, int], list[ChunkRow]] = {}

    def on(self, event: Event) -> None:
        if isinstance(event, BatchInferred):
            self._inferred(event)
        elif isinstance(event, ChunksExecuted):
            self._executed(event)
        elif isinstance(event, AttemptsBegan):
            for key in zip(event.trials, event.attempts, strict=True):
                self._rows[key] = []
        elif isinstance(event, AttemptFailed) and event.again:
            self.forget(event.trial, event.attempt)

    def forget(self, trial: Trial, attempt: int) -> None:
        """Forget the chunks of an attempt that does not count."""
        self._rows.pop((trial, attempt), None)

    def take(self, episode: Episode) -> EpisodeChunks:
        rows = self._rows.pop((episode.trial, episode.attempt), [])
        return EpisodeChunks(episode.trial.id, episode.attempt, rows)

    def write(self, path: Path, taken: Sequence[EpisodeChunks]) -> int:
        sizes = [len(some.rows) for some in taken]
        rows = [row for some in taken for row in some.rows]
        columns: dict[str, Any] = {
            "trial": [some.trial for some in taken for _ in some.rows],
            "attempt": np.repeat(np.array([some.attempt for some in taken], np.int32), sizes),
            "leg": np.full(len(rows), self._leg, np.int32),
        }
        for field in dataclasses.fields(ChunkRow):
            columns[field.name] = list(map(operator.attrgetter(field.name), rows))
        return write_segment(path, SCHEMA, [pa.table(columns, schema=SCHEMA)])

    def close(self) -> None: ...

    def _inferred(self, event: BatchInferred) -> None:
        for i, chunk in enumerate(event.delivered):
            rows = self._rows.get((event.trials[i], event.attempts[i]))
            if chunk is None or rows is None:
                continue
            row = _row(rows, event.chunks[i], event.lanes[i])
            row.requested = event.ready[i]
            row.batched = event.began
            row.inferred = event.ended
            row.delivered = event.time
            row.batch = event.batch
            row.batch_size = event.size
            row.policy_version = chunk.version
            row.source = chunk.source
            if INTERVENTION in chunk.extras:
                row.source = EXPERT if chunk.extras[INTERVENTION] else POLICY

    def _executed(self, event: ChunksExecuted) -> None:
        for i, chunk in enumerate(event.chunks):
            rows = self._rows.get((event.trials[i], event.attempts[i]))
            if rows is None:
                continue
            row = _row(rows, chunk, event.lanes[i])
            row.executed = event.time
            row.steps = event.steps[i]
            row.busy_s = event.busy[i]
            row.observe_s = event.observed[i]


def load_chunks(folder: FolderLike, trials: Collection[Trial] | None = None) -> pa.Table:
    """The chunks of all episodes that count, or of these trials alone; the columns are SCHEMA's."""
    return load_table(folder, ChunkRows.table, SCHEMA, trials)


def _row(rows: list[ChunkRow], chunk: int, lane: int) -> ChunkRow:
    """The row of a chunk, begun where there is none. It is the last one, unless chunks overlap."""
    for row in reversed(rows):
        if row.chunk == chunk:
            return row
        if row.chunk < chunk:
            break
    rows.append(ChunkRow(chunk, lane))
    return rows[-1]
