"""Reads a LeRobotDataset v3.0 as episodes to learn from; LeRobot itself is not needed.

Names are those that hocket's own export gives: `observation.state` is `observation/state`, the
camera `observation.images.wrist_image` is `observation/wrist_image`, and the parts of a state that
was joined are found by the names of its numbers. A task is found by its prompt, or by its name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hocket.core.data import Array, TaskInfo
from hocket.errors import RunFolderError, UsageError
from hocket.runs.demonstrations.chosen import Watcher
from hocket.runs.demonstrations.lerobot_names import VERSION, number_names, picture_key
from hocket.train.data.store import Recorded, Wanted
from hocket.workers.sinks.encoder import read_clip
from hocket.workers.sinks.video import camera_name

INFO = Path("meta") / "info.json"
_STATE, _SUCCESS = "observation.state", "next.success"
_READING = "reading"


def read_dataset(root: Path, wanted: Wanted, watcher: Watcher) -> Iterator[Recorded]:
    """Read the successful episodes of `wanted.shapes.tasks`, the first ones of each, in order."""
    try:
        info = json.loads((root / INFO).read_text())
        if info["codebase_version"] != VERSION:
            raise UsageError(
                f"{str(root)!r} is a LeRobotDataset {info['codebase_version']}; {VERSION} is read. "
                f"LeRobot converts older ones."
            )
        episodes = _table(root, "meta/episodes").to_pylist()
        source = _Dataset(root, info, wanted)
        found = Counter[int]()
        watcher.stage(_READING, len(episodes))
        for episode in episodes:
            watcher.advance(_READING)
            prompt = episode["tasks"][0]
            task = _task_of(prompt, wanted.tasks, is_only=info["total_tasks"] == 1)
            if task is None or found[task] == wanted.first:
                continue
            rows = source.rows(episode)
            if _has_failed(rows):
                continue
            found[task] += 1
            yield source.recorded(episode, rows, task, prompt)
    except (OSError, ValueError, KeyError, pa.ArrowException) as exc:
        raise RunFolderError(f"The dataset {str(root)!r} cannot be read: {exc!r}") from exc


class _Dataset:
    """A dataset's files; the file of frames that was read last stays open."""

    def __init__(self, root: Path, info: Mapping[str, Any], wanted: Wanted) -> None:
        self._root = root
        self._info = info
        self._shapes = wanted.shapes
        self._cameras = wanted.cameras
        self._open: tuple[Path, pa.Table] | None = None

    def rows(self, episode: Mapping[str, Any]) -> pa.Table:
        """The frames of an episode."""
        path = self._root / self._info["data_path"].format(
            chunk_index=episode["data/chunk_index"], file_index=episode["data/file_index"]
        )
        if self._open is None or self._open[0] != path:
            self._open = (path, pq.read_table(path))
        table = self._open[1]
        return table.filter(pc.equal(table["episode_index"], episode["episode_index"]))

    def recorded(
        self, episode: Mapping[str, Any], rows: pa.Table, task: int, prompt: str
    ) -> Recorded:
        length = len(rows)
        states = [k for k in self._shapes.observations if k not in self._shapes.cameras]
        observations = {key: self._array(rows, key) for key in states}
        return Recorded(
            name=f"episode {episode['episode_index']} of {self._root}",
            task=task,
            prompt=prompt,
            actions=_matrix(rows["action"]),
            observations={key: array for key, array in observations.items() if array is not None},
            pictures={
                key: read_clip(*self._clip(episode, picture_key(camera_name(key))), length)
                for key in self._cameras
                if picture_key(camera_name(key)) in self._info["features"]
            },
        )

    def _array(self, rows: pa.Table, key: str) -> Array | None:
        """The array of an env's key, by its own name or as a part of the joined state."""
        name = camera_name(key)
        if f"observation.{name}" in rows.column_names:
            return _matrix(rows[f"observation.{name}"])
        joined = self._info["features"].get(_STATE, {}).get("names") or []
        wanted = number_names(name, self._shapes.observations[key].shape)
        if not set(wanted) <= set(joined):
            return None
        part: Array = _matrix(rows[_STATE])[:, [joined.index(one) for one in wanted]]
        return part

    def _clip(self, episode: Mapping[str, Any], feature: str) -> tuple[Path, float]:
        path = self._info["video_path"].format(
            video_key=feature,
            chunk_index=episode[f"videos/{feature}/chunk_index"],
            file_index=episode[f"videos/{feature}/file_index"],
        )
        return self._root / path, episode[f"videos/{feature}/from_timestamp"]


def _table(root: Path, folder: str) -> pa.Table:
    files = sorted((root / folder).glob("*/*.parquet"))
    if not files:
        raise RunFolderError(f"The dataset {str(root)!r} has no {folder}.")
    return pa.concat_tables([pq.read_table(file) for file in files])


def _task_of(prompt: str, tasks: Sequence[TaskInfo], *, is_only: bool) -> int | None:
    """The index of the task that is told so. The only task of a dataset may be told otherwise if
    the env has one task too."""
    for index, task in enumerate(tasks):
        if prompt in (task.prompt, task.name):
            return index
    return 0 if is_only and len(tasks) == 1 else None


def _has_failed(rows: pa.Table) -> bool:
    return _SUCCESS in rows.column_names and not pc.any(rows[_SUCCESS]).as_py()


def _matrix(column: Any) -> Array:
    """A column as `[rows, size]`; one of plain numbers has the size 1."""
    rows: Array
    if pa.types.is_nested(column.type):
        rows = pc.list_flatten(column).to_numpy().reshape(len(column), -1)
    else:
        rows = np.asarray(column.to_numpy())[:, None]
    return rows
