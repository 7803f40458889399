"""The report of a site on an ended episode: checked, and in the form that the ledger takes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hocket.core.data import Episode, Outcome, Trial
from hocket.core.events import Event
from hocket.errors import WireError
from hocket.machines.protocol import SealedEpisode
from hocket.records.chunks import SCHEMA, ChunkRow, ChunkRows
from hocket.records.parquet import write_segment

_TIMES = ("requested", "batched", "inferred", "delivered", "executed")
_SITE = 24
"""Bits of a batch's number at its site; the site's number stands above them."""


def _code(kind: pa.DataType) -> str:
    """The numpy type in which a field travels; a text travels as its number in a list."""
    if pa.types.is_string(kind):
        return "<i2"
    # `to_pandas_dtype` would import pandas, which takes a second.
    return f"<{pa.array([], kind).to_numpy().dtype.str[1:]}"


_ROW = np.dtype([(f.name, _code(SCHEMA.field(f.name).type)) for f in dataclasses.fields(ChunkRow)])
"""A chunk's row as it travels. What is not known is NaN, or the least number."""
_NULLS: dict[str, Any] = {
    name: math.nan if dtype.kind == "f" else int(np.iinfo(dtype).min)
    for name, (dtype, *_) in (_ROW.fields or {}).items()
}


def packed_rows(rows: Sequence[ChunkRow]) -> tuple[bytes, list[str]]:
    """Rows as they travel, and the sources that they name by number."""
    sources = list(dict.fromkeys(row.source for row in rows if row.source is not None))
    numbers = {source: number for number, source in enumerate(sources)}

    def plain(row: ChunkRow, name: str) -> Any:
        value = getattr(row, name)
        if name == "source":
            value = numbers.get(value)
        return _NULLS[name] if value is None else value

    plain_rows = [tuple(plain(row, name) for name in _NULLS) for row in rows]
    return np.array(plain_rows, _ROW).tobytes(), sources


@dataclass(frozen=True, slots=True)
class SiteChunks:
    """The chunks of an ended episode, as its site counts lanes, batches and time."""

    trial: str
    attempt: int
    rows: bytes
    sources: Sequence[str]
    lane: int
    site: int
    shift: float

    def __len__(self) -> int:
        return len(self.rows) // _ROW.itemsize


class SiteRows(ChunkRows):
    """The chunks of episodes that were run at sites: lanes and batches are numbered over all of
    them, and times are the driver's. They stay bytes from the site to the file."""

    def __init__(self, *, leg: int = 0) -> None:
        super().__init__(leg=leg)
        self._chunks: dict[tuple[Trial, int], SiteChunks] = {}

    def on(self, event: Event) -> None:
        """Ignore the event: rows come with their episodes."""

    def put(
        self, trial: Trial, message: SealedEpisode, *, lane: int, site: int, shift: float
    ) -> None:
        """Keep the rows of an episode until it is taken. `lane` is the site's first one, `shift`
        the seconds that its clock lags."""
        rows, sources = message.rows, message.sources
        if len(rows) % _ROW.itemsize:
            raise WireError("A chunk has not the fields that a chunk has.")
        chunks = SiteChunks(trial.id, message.attempt, rows, sources, lane, site, shift)
        self._chunks[trial, message.attempt] = chunks

    def take(self, episode: Episode) -> Any:
        found = self._chunks.pop((episode.trial, episode.attempt), None)
        return found or SiteChunks(episode.trial.id, episode.attempt, b"", (), 0, 0, 0.0)

    def write(self, path: Path, taken: Sequence[Any]) -> int:
        some: list[SiteChunks] = [chunks for chunks in taken if len(chunks)]
        if not some:
            return 0
        rows = np.frombuffer(b"".join(chunks.rows for chunks in some), _ROW)
        sizes = [len(chunks) for chunks in some]

        def spread(values: Sequence[Any], dtype: Any) -> np.ndarray[Any, Any]:
            return np.repeat(np.array(values, dtype), sizes)

        columns: dict[str, Any] = {
            "trial": pa.array([chunks.trial for chunks in some], pa.string()).take(
                spread(range(len(some)), np.int64)
            ),
            "attempt": spread([chunks.attempt for chunks in some], np.int32),
            "leg": np.full(len(rows), self._leg, np.int32),
        }
        shift = spread([chunks.shift for chunks in some], np.float64)
        for name, null in _NULLS.items():
            values = rows[name]
            mask = np.isnan(values) if null != null else values == null
            if name in _TIMES:
                values = values + shift
            elif name == "lane":
                values = values + spread([chunks.lane for chunks in some], np.int32)
            elif name == "batch":
                values = values | spread([chunks.site << _SITE for chunks in some], np.int64)
            elif name == "source":
                columns[name] = _texts(values, [chunks.sources for chunks in some], sizes)
                continue
            columns[name] = pa.array(np.ascontiguousarray(values), mask=mask)
        return write_segment(path, SCHEMA, [pa.table(columns, schema=SCHEMA)])


def _texts(
    numbers: np.ndarray[Any, Any], lists: Sequence[Sequence[str]], sizes: Sequence[int]
) -> pa.Array:
    """The texts that each episode's rows name by their places in its list; null where there is no
    such place."""
    ends = np.cumsum([len(some) for some in lists])
    begins = np.repeat(ends - [len(some) for some in lists], sizes)
    places = begins + numbers
    mask = (numbers < 0) | (places >= np.repeat(ends, sizes))
    texts = pa.array(list(itertools.chain.from_iterable(lists)), pa.string())
    return texts.take(pa.array(places, mask=mask))


def episode_of(message: SealedEpisode, trial: Trial, files: tuple[str, ...]) -> Episode:
    """The episode that a site has sent, with the files that came."""
    return Episode(
        trial=trial,
        attempt=message.attempt,
        outcome=Outcome(message.outcome),
        steps=message.steps,
        total_reward=message.total_reward,
        terminated=message.terminated,
        truncated=message.truncated,
        chunks=message.chunks,
        seconds=message.seconds,
        files=files,
        progress=message.progress,
        told=message.told,
        remarks=tuple(message.remarks),
        diverged=message.diverged,
    )
