"""What sites deliver of an ended episode: its report, checked and in the form that the ledger
takes, and its files, in pieces.

The driver chooses every path. A site names files by their base names alone, and only such as the
run's recorders declare.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hocket.core.data import Episode, Outcome, Trial
from hocket.core.events import Event
from hocket.core.wire import Piece
from hocket.errors import WireError
from hocket.machines.leasing.entries import LeaseId
from hocket.machines.protocol import HASHER, FilePiece, SealedEpisode
from hocket.records.chunks import SCHEMA, ChunkRow, ChunkRows
from hocket.records.folder import RunFolder
from hocket.records.ledger.writer import ReceivesFiles
from hocket.records.parquet import write_segment
from hocket.workers.links.files import QUOTA, Incoming

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


@dataclass(slots=True)
class _Arriving:
    """The files of an attempt, as far as they have come."""

    incoming: Incoming | None = None
    """Writes those that no receiver takes."""
    held: list[str] = field(default_factory=list)
    """Files whose bytes a receiver has."""


class Receipts:
    """The files of a run's episodes on their way into its folder."""

    def __init__(
        self,
        folder: RunFolder,
        patterns: Sequence[str],
        receivers: Mapping[str, ReceivesFiles],
        quota: int = QUOTA,
    ) -> None:
        """`patterns` are the names that files may have, `receivers` take the bytes of some of them,
        `quota` is the most bytes of an attempt."""
        self._folder = folder
        self._root = str(folder.root)
        self._patterns = tuple(patterns)
        self._receivers = {
            file: receiver
            for file, receiver in receivers.items()
            if any(fnmatchcase(file, pattern) for pattern in patterns)
        }
        self._quota = quota
        self._arriving: dict[LeaseId, _Arriving] = {}

    def take(self, name: LeaseId, trial: Trial, piece: FilePiece) -> None:
        """Take one piece; WireError where it is not what may come."""
        arriving = self._arriving.setdefault(name, _Arriving())
        is_whole = piece.digest and not piece.begin and piece.name in self._receivers
        if is_whole and self._hold(arriving.held, trial, piece):
            return
        if arriving.incoming is None:
            arriving.incoming = Incoming(
                self._root, trial.slug, piece.attempt, self._patterns, self._quota, hasher=HASHER
            )
        # The ledger makes the files of many episodes durable at once.
        arriving.incoming.take(Piece(0, *piece[1:]), is_durable=False)

    def _hold(self, held: list[str], trial: Trial, piece: FilePiece) -> bool:
        """Give a file that has come whole to its receiver; false where it must be written."""
        if piece.name in held:
            raise WireError(f"The file {piece.name!r} has come twice.")
        if piece.digest != HASHER(piece.data).digest():
            raise WireError(f"The file {piece.name!r} did not arrive as it was sent.")
        try:
            is_held = self._receivers[piece.name].receive(trial, piece.attempt, piece.data)
        except ValueError as exc:
            raise WireError(f"{piece.name!r} of {trial.id} cannot be read: {exc}.") from None
        held += [piece.name] * is_held
        return is_held

    def finish(self, name: LeaseId, files: Sequence[str]) -> tuple[str, ...]:
        """The files of an attempt that have come, as they are named in the run folder, less
        those that a receiver has."""
        arriving = self._arriving.pop(name, _Arriving())
        incoming, held = arriving.incoming, arriving.held
        rest = [file for file in files if file not in held] if held else files
        if len(rest) + len(held) != len(files) or (rest and incoming is None):
            if incoming is not None:
                incoming.discard()
            raise WireError(f"Not all of the files {list(files)!r:.200} have come.")
        return () if incoming is None else tuple(incoming.finish(rest))

    def discard(self, name: LeaseId, trial: Trial) -> None:
        """Leave nothing of an attempt behind that will not count."""
        self.restart(name)
        self.forget(trial, name.attempt)
        shutil.rmtree(self._folder.attempt(trial, name.attempt), ignore_errors=True)

    def forget(self, trial: Trial, attempt: int) -> None:
        """Have receivers forget an attempt that will be no episode."""
        for receiver in self._receivers.values():
            receiver.forget(trial, attempt)

    def restart(self, name: LeaseId) -> None:
        """Forget what has come of an attempt so far."""
        arriving = self._arriving.pop(name, None)
        if arriving is not None and arriving.incoming is not None:
            arriving.incoming.discard()
