"""Tables as folders of Parquet segments: written whole, merged in a stream, loaded by the ledger.

pandas and polars read the folder directly (`chunks/*.parquet`). In a run that goes on, or that was
killed and not yet resumed, a segment may be there whose episodes do not count yet, or beside the
one that it was merged into; `load_table` and `read_table` know which ones count.

The ledger has a digest of each segment's bytes. Whoever reads one compares it first: a segment that
was cut or changed is refused, and never read as other numbers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from hocket.core.data import Trial
from hocket.errors import DamagedSegmentError, RunFolderError
from hocket.records.folder import FolderLike, RunFolder
from hocket.records.ledger.view import LedgerView, Segment
from hocket.system.durable import drafted

_ROW_GROUP = 64 * 1024
"""Most rows of a row group."""
FILES_GROUP = 1 << 20
"""Bytes of a row group whose cells hold files: as many are read to have one of them."""
_BATCH = 16 * 1024
"""Rows that `read_table` has in memory at a time."""
_COMPRESSION = "zstd"
_TEXT = ("trial", "source", "prompt", "layout")
"""Columns with few values; numbers are written faster without a dictionary."""
_TRIES = 10
"""How often segments are listed anew because one was merged into another meanwhile."""
_HASHED_AT_ONCE = 1 << 20
_NEEDLESS = {
    "steps": "Reports, comparisons and videos do not need the steps; datasets and replays do.",
    "chunks": "Success rates, comparisons and datasets do not need the chunks; timelines do.",
    "states": "Reports and comparisons do not need the states; films and replays do.",
}
"""For each table, what goes on without its rows."""

_sound: set[tuple[int, int, int, int, str]] = set()
"""Files whose digests this process has found right: device, number, size, time of the last change,
and digest. A table that is read in many windows is not hashed for each of them."""


def write_segment(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    """Make tables one durable file, or none where they have no rows; returns the number of rows."""
    rows = 0
    with ExitStack() as stack:
        writer = None
        for table in tables:
            if table.num_rows:
                writer = writer or stack.enter_context(_writer(path, schema))
                writer.write_table(table, row_group_size=_ROW_GROUP)
                rows += table.num_rows
    return rows


def digest_of(path: Path) -> str:
    """The digest of a file's bytes."""
    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while part := file.read(_HASHED_AT_ONCE):
            digest.update(part)
    return f"xxh3:{digest.hexdigest()}"


def merge_segments(path: Path, root: Path, sources: Sequence[Segment]) -> int:
    """Make one durable file of several segments of a run folder, rows in order, with a row group in
    memory at a time; returns the number of rows. A damaged one raises DamagedSegmentError."""
    rows = 0
    with ExitStack() as stack:
        for source in sources:
            _refuse_damaged(root, source)
        with _translated(root, sources):
            files = [stack.enter_context(pq.ParquetFile(root / source.name)) for source in sources]
        writer = stack.enter_context(_writer(path, files[0].schema_arrow))
        waiting: list[pa.Table] = []
        for source, file in zip(sources, files, strict=True):
            for group in range(file.num_row_groups):
                with _translated(root, [source]):
                    waiting.append(file.read_row_group(group, use_threads=False))
                rows += waiting[-1].num_rows
                if _is_full(waiting):
                    writer.write_table(pa.concat_tables(waiting))
                    waiting.clear()
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
    return rows


def _is_full(waiting: Sequence[pa.Table]) -> bool:
    """True if these are to be a row group."""
    if _has_files(waiting[0].schema):
        return bool(sum(table.nbytes for table in waiting) >= FILES_GROUP)
    return bool(sum(table.num_rows for table in waiting) >= _ROW_GROUP)


def load_table(
    folder: FolderLike,
    table: str,
    schema: pa.Schema,
    trials: Collection[Trial] | None = None,
) -> pa.Table:
    """The rows of the episodes that count, of all trials or of these alone; each episode's lie
    together and in order. The run may still go on."""
    filters = None
    if trials is not None:
        filters = [("trial", "in", [trial.id for trial in trials])]
        if not trials:
            return schema.empty_table()
    parts = []
    with ExitStack() as stack:
        for segment, file in _open_segments(stack, folder, table):
            with _translated(RunFolder.at(folder).root, [segment]):
                parts.append(pq.read_table(file, schema=schema, filters=filters))
    return pa.concat_tables(parts) if parts else schema.empty_table()


def read_table(folder: FolderLike, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of the episodes that count, a few thousand in memory at a time, each episode's
    together. The run may still go on: a file that is merged away meanwhile stays open here."""
    with ExitStack() as stack:
        for segment, file in _open_segments(stack, folder, table):
            with _translated(RunFolder.at(folder).root, [segment]):
                rows = pq.ParquetFile(file)
                yield from rows.iter_batches(_BATCH, columns=list(columns), use_threads=False)


class Place(NamedTuple):
    """Where the row of an episode lies, in a table with one for each."""

    segment: Segment
    group: int
    row: int


def find_rows(folder: FolderLike, table: str) -> dict[str, Place]:
    """Where the rows of the episodes that count lie, by trial id."""
    found: dict[str, Place] = {}
    with ExitStack() as stack:
        for segment, file in _open_segments(stack, folder, table):
            with _translated(RunFolder.at(folder).root, [segment]):
                rows = pq.ParquetFile(file)
                for group in range(rows.num_row_groups):
                    trials = rows.read_row_group(group, columns=["trial"], use_threads=False)
                    for row, trial in enumerate(trials["trial"].to_pylist()):
                        found[trial] = Place(segment, group, row)
    return found


def read_cell(folder: FolderLike, place: Place, column: str) -> Any:
    """The value of a column there; FileNotFoundError where the segment was merged meanwhile."""
    root = RunFolder.at(folder).root
    with (
        _translated(root, [place.segment]),
        pq.ParquetFile(root / place.segment.name) as file,
    ):
        group = file.read_row_group(place.group, columns=[column], use_threads=False)
        return group[column][place.row].as_py()


def find_damage(folder: FolderLike) -> list[str]:
    """A sentence on each segment of a run that was cut or changed since it was written."""
    found = []
    with LedgerView.open(folder) as ledger:
        for table in _NEEDLESS:
            for segment in ledger.segments(table):
                try:
                    _refuse_damaged(ledger.folder.root, segment)
                except DamagedSegmentError as exc:
                    found.append(str(exc))
                except FileNotFoundError:
                    found.append(str(_damage(ledger.folder.root, [segment], "it is missing")))
    return found


def _open_segments(
    stack: ExitStack, folder: FolderLike, table: str
) -> list[tuple[Segment, pa.OSFile]]:
    with LedgerView.open(folder) as ledger:
        root = ledger.folder.root
        for _ in range(_TRIES):
            with ExitStack() as opened:
                try:
                    files = [
                        (segment, opened.enter_context(pa.OSFile(str(root / segment.name))))
                        for segment in ledger.segments(table)
                    ]
                    for segment, _file in files:
                        _refuse_damaged(root, segment)
                except FileNotFoundError:
                    # Merged since it was listed; the ledger names what replaced it.
                    continue
                stack.push(opened.pop_all())
                return files
    path = RunFolder.at(folder).table(table)
    raise RunFolderError(
        f"A segment that the ledger names is missing from {str(path)!r}. Restore it from a copy of "
        f"the run."
    )


def _refuse_damaged(root: Path, segment: Segment) -> None:
    """Raise DamagedSegmentError where a segment is not what was written."""
    path = root / segment.name
    about = os.stat(path)
    mark = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, segment.digest)
    if mark not in _sound:
        if digest_of(path) != segment.digest:
            raise _damage(root, [segment], "its bytes are not those that were written")
        _sound.add(mark)


@contextlib.contextmanager
def _translated(root: Path, segments: Sequence[Segment]) -> Iterator[None]:
    """Raise Arrow's complaints about a file as ours."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as exc:
        raise _damage(root, segments, str(exc).partition("\n")[0]) from exc


def _damage(root: Path, segments: Sequence[Segment], what: str) -> DamagedSegmentError:
    names = " or ".join(repr(str(root / segment.name)) for segment in segments)
    rows = sum(segment.rows for segment in segments)
    return DamagedSegmentError(
        f"{names} is damaged: {what}. It holds {rows} rows of the table {segments[0].table!r}. "
        f"Restore it from a copy of the run. {_NEEDLESS.get(segments[0].table, '')}".rstrip()
    )


def _has_files(schema: pa.Schema) -> bool:
    """True if cells hold the bytes of files: they are written as they are."""
    return any(pa.types.is_binary(each.type) for each in schema)


@contextlib.contextmanager
def _writer(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Write a file, which is there and durable once all went well."""
    text = [name for name in _TEXT if name in schema.names]
    # The first bytes of numbers that follow each other are alike: side by side they take little.
    numbers = [f"{each.name}.list.element" for each in schema if pa.types.is_list(each.type)]
    with (
        drafted(path) as draft,
        # A writer that fails on a full disk would leave a file open that it has opened itself.
        pa.OSFile(str(draft), "wb") as file,
        pq.ParquetWriter(
            file,
            schema,
            compression="none" if _has_files(schema) else _COMPRESSION,
            use_dictionary=text,
            use_byte_stream_split=numbers,
            write_statistics=["trial"],
        ) as writer,
    ):
        yield writer
