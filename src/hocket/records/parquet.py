"""Tables as folders of Parquet segments: written whole, merged in a stream, loaded by the ledger.

pandas and polars read the folder directly (`chunks/*.parquet`). In a run that goes on, or that was
killed and not yet resumed, a segment may be there whose episodes do not count yet, or beside the
one that it was merged into; `load_table` and `read_table` know which ones count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hocket.core.data import Trial
from hocket.errors import RunFolderError
from hocket.records.folder import (
    FolderLike,
    RunFolder,
    drafted,
    write_atomic,
)
from hocket.records.ledger.view import LedgerView

_ROW_GROUP = 64 * 1024
_BATCH = 16 * 1024
"""Rows that `read_table` has in memory at a time."""
_COMPRESSION = "zstd"
_TEXT = ("trial", "source")
"""Columns with few values; numbers are written faster without a dictionary."""
_TRIES = 10
"""How often segments are listed anew because one was merged into another meanwhile."""


def write_segment(path: Path, table: pa.Table) -> int:
    """Make a table one durable file, or none where it has no rows; returns the number of rows."""
    if table.num_rows == 0:
        return 0
    buffer = pa.BufferOutputStream()
    with _writer(buffer, table.schema) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP)
    write_atomic(path, memoryview(buffer.getvalue()))
    return int(table.num_rows)


def merge_segments(path: Path, sources: Sequence[Path]) -> int:
    """Make one durable file of several, rows in order, with a row group in memory at a time;
    returns the number of rows."""
    rows = 0
    with drafted(path) as draft, _writer(str(draft), pq.read_schema(sources[0])) as writer:
        waiting: list[pa.Table] = []
        for source in sources:
            with pq.ParquetFile(source) as file:
                for group in range(file.num_row_groups):
                    waiting.append(file.read_row_group(group, use_threads=False))
                    rows += waiting[-1].num_rows
                    if sum(table.num_rows for table in waiting) >= _ROW_GROUP:
                        writer.write_table(pa.concat_tables(waiting))
                        waiting.clear()
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
    return rows


def load_table(
    folder: FolderLike,
    table: str,
    schema: pa.Schema,
    trials: Collection[Trial] | None = None,
    *,
    filters: Sequence[tuple[str, str, Any]] = (),
) -> pa.Table:
    """The rows of the episodes that count: all, or those of these trials, or those that the filters
    let through; each episode's lie together and in order. The run may still go on."""
    if trials is not None:
        filters = [*filters, ("trial", "in", [trial.id for trial in trials])]
        if not trials:
            return schema.empty_table()
    with ExitStack() as stack:
        files = _open_segments(stack, folder, table)
        parts = [
            pq.read_table(file, schema=schema, filters=list(filters) or None) for file in files
        ]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def read_table(folder: FolderLike, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of the episodes that count, a few thousand in memory at a time, each episode's
    together. The run may still go on: a file that is merged away meanwhile stays open here."""
    with ExitStack() as stack:
        for file in _open_segments(stack, folder, table):
            segment = pq.ParquetFile(file)
            yield from segment.iter_batches(_BATCH, columns=list(columns), use_threads=False)


def _open_segments(stack: ExitStack, folder: FolderLike, table: str) -> list[pa.OSFile]:
    with LedgerView.open(folder) as ledger:
        for _ in range(_TRIES):
            with ExitStack() as opened:
                try:
                    files = [
                        opened.enter_context(pa.OSFile(str(ledger.folder.root / segment.name)))
                        for segment in ledger.segments(table)
                    ]
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


def _writer(target: Any, schema: pa.Schema) -> pq.ParquetWriter:
    text = [name for name in _TEXT if name in schema.names]
    return pq.ParquetWriter(target, schema, compression=_COMPRESSION, use_dictionary=text)
