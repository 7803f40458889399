"""The Parquet files of a LeRobotDataset: its frames, and its episodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hocket.runs.export.lerobot_meta import FILES_IN_CHUNK, data_path
from hocket.runs.export.lerobot_stats import Stats
from hocket.runs.export.lerobot_video import Clip

DATA_MB = 100
_FLUSH_EPISODES = 64


class FrameFiles:
    """`data/`: one row for each frame, an episode never in two files."""

    def __init__(self, root: Path, *, limit: int = DATA_MB << 20) -> None:
        self.count = 0
        """Frames so far."""
        self._root = root
        self._limit = limit
        self._number = -1
        self._bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def add(self, columns: Mapping[str, pa.Array]) -> int:
        """Write an episode's frames; the number of the file that they are in."""
        table = pa.table(dict(columns))
        if self._writer is not None and self._bytes + table.nbytes > self._limit:
            self.close()
        if self._writer is None:
            self._number, self._bytes = self._number + 1, 0
            self._writer = _open(self._root, "data", self._number, table.schema)
        self._writer.write_table(table)
        self._bytes += table.nbytes
        self.count += table.num_rows
        return self._number

    def close(self) -> None:
        """Twice is safe."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class EpisodeRows:
    """`meta/episodes/`: one row for each episode, with where it lies and its statistics."""

    def __init__(self, root: Path) -> None:
        self.count = 0
        """Episodes so far."""
        self._root = root
        self._rows: list[dict[str, Any]] = []
        self._writer: pq.ParquetWriter | None = None

    def add(
        self,
        task: str,
        span: tuple[int, int],
        file: int,
        clips: Mapping[str, Clip],
        stats: Mapping[str, Stats],
    ) -> None:
        """One more episode: its frames `span` in a file of frames, and its clips."""
        row: dict[str, Any] = {
            "episode_index": self.count,
            "tasks": [task],
            "length": span[1] - span[0],
            "data/chunk_index": file // FILES_IN_CHUNK,
            "data/file_index": file % FILES_IN_CHUNK,
            "dataset_from_index": span[0],
            "dataset_to_index": span[1],
        }
        for key, clip in clips.items():
            row[f"videos/{key}/chunk_index"] = clip.file // FILES_IN_CHUNK
            row[f"videos/{key}/file_index"] = clip.file % FILES_IN_CHUNK
            row[f"videos/{key}/from_timestamp"] = clip.begin_s
            row[f"videos/{key}/to_timestamp"] = clip.end_s
        for feature, values in stats.items():
            row |= {f"stats/{feature}/{name}": value.tolist() for name, value in values.items()}
        # All episodes are in one file: a million of them would not fill it.
        row["meta/episodes/chunk_index"] = row["meta/episodes/file_index"] = 0
        self._rows.append(row)
        self.count += 1
        if len(self._rows) == _FLUSH_EPISODES:
            self._flush()

    def close(self) -> None:
        """Twice is safe."""
        self._flush()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _flush(self) -> None:
        if not self._rows:
            return
        schema = None if self._writer is None else self._writer.schema
        table = pa.Table.from_pylist(self._rows, schema=schema)
        self._rows = []
        if self._writer is None:
            self._writer = _open(self._root, "meta/episodes", 0, table.schema)
        self._writer.write_table(table)


def _open(root: Path, folder: str, number: int, schema: pa.Schema) -> pq.ParquetWriter:
    place = data_path(folder, "", "parquet")
    path = root / place.format(chunk=number // FILES_IN_CHUNK, file=number % FILES_IN_CHUNK)
    path.parent.mkdir(parents=True, exist_ok=True)
    return pq.ParquetWriter(path, schema, compression="snappy")
