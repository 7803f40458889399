"""`episodes.parquet`: a row for each episode of a run that has too many for report.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hocket.errors import RunFolderError
from hocket.records.ledger.episodes import OUTCOMES, Episodes, value_of
from hocket.records.parquet import digest_of, write_segment

SCHEMA = pa.schema(
    [
        ("trial", pa.string()),
        ("suite", pa.string()),
        ("task", pa.string()),
        ("seed", pa.int64()),
        ("repeat", pa.int32()),
        ("outcome", pa.string()),
        ("steps", pa.int64()),
        ("return", pa.float64()),  # null where it was no number
        ("attempts", pa.int32()),
        ("error", pa.string()),
        ("progress", pa.float64()),  # null where none was told
        ("told", pa.string()),  # JSON, as are the remarks
        ("diverged", pa.bool_()),
        ("remarks", pa.string()),
    ]
)


def table_of(episodes: Episodes) -> pa.Table:
    """A row for each episode."""
    return pa.concat_tables([SCHEMA.empty_table(), *_tables(episodes)])


def write_episodes(path: Path, episodes: Episodes) -> str:
    """Write the file, whole or not at all; gives its digest."""
    write_segment(path, SCHEMA, _tables(episodes))
    return digest_of(path)


def _tables(episodes: Episodes) -> Iterator[pa.Table]:
    known, ends = episodes.columns, [*episodes.starts[1:], len(episodes)]
    for start, end, texts in zip(episodes.starts, ends, episodes.texts, strict=True):
        rows = slice(start, end)
        trials = episodes.trials.taken(rows)
        suites, tasks = zip(*(trials.kinds[kind] for kind in trials.kind.tolist()), strict=True)
        error, _, told, remarks = (text.split("\n") for text in texts)
        columns: dict[str, Any] = {
            "trial": [trial.id for trial in trials],
            "suite": suites,
            "task": tasks,
            "seed": trials.seed,
            "repeat": trials.repeat,
            "outcome": [OUTCOMES[code].value for code in known["outcome"][rows].tolist()],
            "steps": known["steps"][rows],
            "return": pa.array(known["total_reward"][rows], from_pandas=True),
            "attempts": known["attempt"][rows] + 1,
            "error": [value_of(text) for text in error],
            "progress": pa.array(known["progress"][rows], from_pandas=True),
            "told": told,
            "diverged": known["diverged"][rows],
            "remarks": remarks,
        }
        yield pa.table(columns, schema=SCHEMA)


def read_rows(path: Path, digest: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file with this digest; RunFolderError for another."""
    try:
        if digest_of(path) != digest:
            raise RunFolderError(
                f"{path} is not the file that the report beside it was made with. `hocket report` "
                f"makes both again where the run's ledger is there."
            )
        for batch in pq.ParquetFile(path).iter_batches(use_threads=False):
            for row in batch.to_pylist():
                told = {name: json.loads(row[name]) for name in ("told", "remarks")}
                yield {**row, **told}
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"Cannot read {path}: {error}.") from error
