"""The files of a LeRobotDataset but for its videos: its frames, its episodes, and what it says of
itself in `meta/info.json`, `stats.json` and `tasks.parquet`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hocket.exports.lerobot.features import FILES_IN_CHUNK, Clip, Stats, numbered_file
from hocket.runs.demonstrations.lerobot_names import VERSION

_NUMBERED = "chunk-{chunk_index:03d}/file-{file_index:03d}"
"""How LeRobot finds what `numbered_file` names."""
DATA_MB = 100
"""Largest file of frames, in MiB; LeRobot's own default."""
_FLUSH_EPISODES = 64
"""Rows of episodes in memory at a time."""
_INDEX = "__index_level_0__"


def write_tasks(root: Path, numbers: Mapping[str, int]) -> None:
    """Write the numbers of the prompts. pandas reads the table with the prompts as its index: so
    LeRobot looks them up."""
    indices = pa.array(list(numbers.values()), pa.int64())
    table = pa.table({"task_index": indices, _INDEX: list(numbers)})
    path = root / "meta" / "tasks.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(_PANDAS)}), path)


def write_labels(root: Path, labels: Mapping[int, str]) -> None:
    """Write what people said of episodes to `meta/labels.jsonl`, which LeRobot does not read; no
    file where they said nothing."""
    if labels:
        lines = [{"episode_index": index, "label": label} for index, label in labels.items()]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (root / "meta" / "labels.jsonl").write_text(text, encoding="utf-8")


def _column(name: str | None, field: str | None, pandas: str, numpy: str) -> dict[str, Any]:
    """What pandas is told of a column."""
    said = {"pandas_type": pandas, "numpy_type": numpy, "metadata": None}
    return {"name": name, "field_name": field, **said}


_PANDAS = {
    "index_columns": [_INDEX],
    "column_indexes": [
        {**_column(None, None, "unicode", "object"), "metadata": {"encoding": "UTF-8"}}
    ],
    "columns": [
        _column("task_index", "task_index", "int64", "int64"),
        _column(None, _INDEX, "unicode", "object"),
    ],
    "creator": {"library": "pyarrow", "version": pa.__version__},
    "pandas_version": "2.2.3",
}


def write_info(
    root: Path,
    *,
    robot: str,
    rate: Fraction,
    counts: tuple[int, int, int],
    features: Mapping[str, Any],
    megabytes: tuple[int, int],
) -> None:
    """Write `info.json`. `counts` are the numbers of episodes, frames and tasks; `megabytes` bound
    the files of data and of video."""
    episodes, frames, tasks = counts
    has_videos = any(feature["dtype"] == "video" for feature in features.values())
    info = {
        "codebase_version": VERSION,
        "robot_type": robot,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": tasks,
        "chunks_size": FILES_IN_CHUNK,
        "data_files_size_in_mb": megabytes[0],
        "video_files_size_in_mb": megabytes[1],
        "fps": int(rate) if rate.denominator == 1 else float(rate),
        "splits": {"train": f"0:{episodes}"},
        "data_path": f"data/{_NUMBERED}.parquet",
        "video_path": f"videos/{{video_key}}/{_NUMBERED}.mp4" if has_videos else None,
        "features": features,
    }
    _write_json(root / "meta" / "info.json", info)


def write_stats(root: Path, stats: Mapping[str, Stats]) -> None:
    """Write the statistics of the whole dataset, by feature."""
    plain = {
        feature: {name: value.tolist() for name, value in values.items()}
        for feature, values in stats.items()
    }
    _write_json(root / "meta" / "stats.json", plain)


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=4, ensure_ascii=False), encoding="utf-8")


class FrameFiles:
    """`data/`: one row for each frame, an episode never in two files."""

    def __init__(self, root: Path, *, limit: int = DATA_MB << 20) -> None:
        self.count = 0
        """How many frames were written."""
        self._root = root
        self._limit = limit
        self._number = -1
        self._bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def add(self, columns: Mapping[str, pa.Array]) -> int:
        """Write an episode's frames; returns the number of the file that they are in."""
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
        """Finish the file. Closing twice is safe."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class EpisodeRows:
    """`meta/episodes/`: one row for each episode, with where it lies and its statistics."""

    def __init__(self, root: Path) -> None:
        self.count = 0
        """How many episodes were added."""
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
        """Add an episode: its frames `span` in the file of frames `file`, and its clips."""
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
        """Finish the file. Closing twice is safe."""
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
    path = numbered_file(root / folder, number, "parquet")
    return pq.ParquetWriter(path, schema, compression="snappy")
