"""What a LeRobotDataset says of itself: `meta/info.json`, `stats.json` and `tasks.parquet`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hocket.runs.export.lerobot_stats import Stats

VERSION = "v3.0"
FILES_IN_CHUNK = 1000
_INDEX = "__index_level_0__"


def data_path(folder: str, middle: str, suffix: str) -> str:
    """The path of a file in the dataset, to be formatted with `chunk` and `file`."""
    return f"{folder}/{middle}chunk-{{chunk:03d}}/file-{{file:03d}}.{suffix}"


class Tasks:
    """Prompts, numbered as they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, prompt: str) -> int:
        """Of a prompt, known or new."""
        return self._numbers.setdefault(prompt, len(self._numbers))

    def write(self, root: Path) -> None:
        """A table that pandas reads with the prompts as its index, which is how LeRobot looks
        them up."""
        numbers = list(self._numbers.values())
        table = pa.table({"task_index": pa.array(numbers, pa.int64()), _INDEX: list(self._numbers)})
        path = root / "meta" / "tasks.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(_PANDAS)}), path)


_PANDAS = {
    "index_columns": [_INDEX],
    "column_indexes": [
        {
            "name": None,
            "field_name": None,
            "pandas_type": "unicode",
            "numpy_type": "object",
            "metadata": {"encoding": "UTF-8"},
        }
    ],
    "columns": [
        {
            "name": "task_index",
            "field_name": "task_index",
            "pandas_type": "int64",
            "numpy_type": "int64",
            "metadata": None,
        },
        {
            "name": None,
            "field_name": _INDEX,
            "pandas_type": "unicode",
            "numpy_type": "object",
            "metadata": None,
        },
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
    """`counts` are of episodes, frames and tasks; `megabytes` bound files of data and of video."""
    episodes, frames, tasks = counts
    has_videos = any(feature["dtype"] == "video" for feature in features.values())
    names = {"chunk:": "chunk_index:", "file:": "file_index:"}

    def told(folder: str, middle: str, suffix: str) -> str:
        path = data_path(folder, middle, suffix)
        for ours, theirs in names.items():
            path = path.replace(ours, theirs)
        return path

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
        "data_path": told("data", "", "parquet"),
        "video_path": told("videos", "{video_key}/", "mp4") if has_videos else None,
        "features": features,
    }
    _write_json(root / "meta" / "info.json", info)


def write_stats(root: Path, stats: Mapping[str, Stats]) -> None:
    """Of the whole dataset, by feature."""
    plain = {
        feature: {name: value.tolist() for name, value in values.items()}
        for feature, values in stats.items()
    }
    _write_json(root / "meta" / "stats.json", plain)


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=4, ensure_ascii=False), encoding="utf-8")
