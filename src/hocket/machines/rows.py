"""What a site says of an ended episode, checked, and as the run's ledger takes it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hocket.core.data import Episode, Outcome, Trial
from hocket.core.events import Event
from hocket.errors import WireError
from hocket.machines.protocol import SealedEpisode
from hocket.records.chunks import SCHEMA, ChunkRow, ChunkRows
from hocket.records.parquet import write_segment

_FIELDS = tuple(field.name for field in dataclasses.fields(ChunkRow))
_TIMES = ("requested", "batched", "inferred", "delivered", "executed")
_SITE = 24
"""Batches are numbered at each site: above so many bits stands the number of the site."""
_NULLABLE = frozenset((*_TIMES, "batch", "batch_size", "policy_version", "source"))
_ENDED = {outcome.value: outcome for outcome in Outcome if outcome is not Outcome.ERROR}


def plain_rows(rows: Sequence[ChunkRow]) -> list[list[Any]]:
    """Rows as they travel."""
    return [[getattr(row, name) for name in _FIELDS] for row in rows]


def _may_be(name: str) -> frozenset[type]:
    """The types that a field's values may have."""
    kind = SCHEMA.field(name).type
    found = str if pa.types.is_string(kind) else float if pa.types.is_floating(kind) else int
    return frozenset((found, type(None)) if name in _NULLABLE else (found,))


_TYPES = [_may_be(name) for name in _FIELDS]


@dataclass(frozen=True, slots=True)
class SiteChunks:
    """The chunks of an ended episode, as its site counts lanes, batches and time."""

    trial: str
    attempt: int
    columns: Sequence[Sequence[Any]]
    lane: int
    site: int
    shift: float

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0


class SiteRows(ChunkRows):
    """The chunks of episodes that were run at sites: lanes and batches are numbered over all of
    them, and times are the driver's. They stay columns from the site to the file."""

    def __init__(self, *, leg: int = 0) -> None:
        super().__init__(leg=leg)
        self._columns: dict[tuple[Trial, int], SiteChunks] = {}

    def on(self, event: Event) -> None:
        """Ignore the event: rows come with their episodes."""

    def put(
        self,
        trial: Trial,
        attempt: int,
        rows: Sequence[Sequence[Any]],
        *,
        lane: int,
        site: int,
        shift: float,
    ) -> None:
        """Keep the rows of an episode until it is taken. `lane` is the site's first one, `shift`
        the seconds that its clock lags."""
        columns = list(zip(*rows, strict=True))
        if rows and len(columns) != len(_FIELDS):
            raise WireError("A chunk has not the fields that a chunk has.")
        for values, may_be in zip(columns, _TYPES, strict=False):
            if not may_be.issuperset(map(type, values)):
                raise WireError("A chunk has not the fields that a chunk has.")
        chunks = SiteChunks(trial.id, attempt, columns, lane, site, shift)
        self._columns[trial, attempt] = chunks

    def forget(self, trial: Trial, attempt: int) -> None:
        self._columns.pop((trial, attempt), None)

    def take(self, episode: Episode) -> Any:
        found = self._columns.pop((episode.trial, episode.attempt), None)
        return found or SiteChunks(episode.trial.id, episode.attempt, (), 0, 0, 0.0)

    def write(self, path: Path, taken: Sequence[Any]) -> int:
        some: list[SiteChunks] = [chunks for chunks in taken if len(chunks)]
        sizes = [len(chunks) for chunks in some]

        def spread(values: Sequence[Any], dtype: Any) -> np.ndarray[Any, Any]:
            return np.repeat(np.array(values, dtype), sizes)

        shift = spread([chunks.shift for chunks in some], np.float64)
        columns: dict[str, Any] = {
            "trial": pa.array([chunks.trial for chunks in some], pa.string()).take(
                spread(range(len(some)), np.int64)
            ),
            "attempt": spread([chunks.attempt for chunks in some], np.int32),
            "leg": np.full(sum(sizes), self._leg, np.int32),
        }
        for i, name in enumerate(_FIELDS):
            values = list(itertools.chain.from_iterable(chunks.columns[i] for chunks in some))
            array = pa.array(values, SCHEMA.field(name).type)
            if name in _TIMES:
                array = pc.add(array, pa.array(shift))
            elif name == "lane":
                array = pc.add(array, pa.array(spread([c.lane for c in some], np.int32)))
            elif name == "batch":
                numbers = spread([chunks.site << _SITE for chunks in some], np.int64)
                array = pc.bit_wise_or(array, pa.array(numbers))
            columns[name] = array
        return write_segment(path, pa.table(columns, schema=SCHEMA))


def checked_episode(message: SealedEpisode, trial: Trial, files: tuple[str, ...]) -> Episode:
    """The episode that a site has sent, with the files that came; WireError where it is none."""
    numbers = (message.steps, message.chunks)
    if (
        message.outcome not in _ENDED
        or not all(type(number) is int and number >= 0 for number in numbers)
        or type(message.total_reward) is not float
        or type(message.seconds) is not float
    ):
        raise WireError(f"An episode of {trial.id} is not what an episode is.")
    return Episode(
        trial=trial,
        attempt=message.attempt,
        outcome=_ENDED[message.outcome],
        steps=message.steps,
        total_reward=message.total_reward,
        terminated=bool(message.terminated),
        truncated=bool(message.truncated),
        chunks=message.chunks,
        seconds=message.seconds,
        files=files,
    )
