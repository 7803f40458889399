"""Reads a LeRobotDataset v3.0 as episodes to learn from. A task is found by its prompt, or by its
name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hocket.core.data import Array
from hocket.runs.demonstrations.chosen import Watcher
from hocket.runs.demonstrations.lerobot_dataset import DatasetFiles, matrix, unreadable
from hocket.runs.demonstrations.lerobot_names import picture_key
from hocket.train.data.store import Recorded, Wanted, taught
from hocket.workers.sinks.video import camera_name

_SUCCESS = "next.success"
_READING = "reading"


def read_dataset(root: Path, wanted: Wanted, watcher: Watcher) -> Iterator[Recorded]:
    """Read the successful episodes of `wanted.shapes.tasks`, the first ones of each, in order."""
    try:
        source = DatasetFiles(root)
        found = Counter[int]()
        watcher.stage(_READING, len(source.episodes))
        for episode in source.episodes:
            watcher.advance(_READING)
            told = [_task_of(source, wanted, prompt) for prompt in episode["tasks"]]
            if all(task is None or found[task] == wanted.first for task in told):
                continue
            rows = source.rows(episode)
            if _has_failed(rows) and not wanted.judges:
                continue
            for begin, end, prompt in source.stretches(episode, rows):
                task = _task_of(source, wanted, prompt)
                if task is not None and found[task] != wanted.first:
                    found[task] += 1
                    part = rows.slice(begin, end - begin)
                    whole = _recorded(source, wanted, episode, part, task, prompt, begin)
                    acted = None if wanted.judges else _numbers(part, "intervention")
                    yield from taught(whole, acted)
    except (OSError, ValueError, KeyError, pa.ArrowException) as exc:
        raise unreadable(root, exc) from exc


def _task_of(source: DatasetFiles, wanted: Wanted, prompt: str) -> int | None:
    """The index of the task that is told so. The only task of a dataset may be told otherwise if
    the env has one task too."""
    for index, task in enumerate(wanted.tasks):
        if prompt in (task.prompt, task.name):
            return index
    return 0 if source.info["total_tasks"] == 1 and len(wanted.tasks) == 1 else None


def _recorded(
    source: DatasetFiles,
    wanted: Wanted,
    episode: Mapping[str, Any],
    rows: pa.Table,
    task: int,
    prompt: str,
    begin: int,
) -> Recorded:
    """The frames `rows` of an episode, which are those from `begin` on."""
    shapes = wanted.shapes
    states = [key for key in shapes.observations if key not in shapes.cameras]
    observations = {key: source.array(rows, key, shapes.observations[key].shape) for key in states}
    return Recorded(
        name=f"episode {episode['episode_index']} of {source.root}, from frame {begin} on",
        task=task,
        prompt=prompt,
        rewards=_numbers(rows, "next.reward"),
        # Without a word of its end, an episode that succeeded has ended by that.
        terminated=not _is_cut(rows),
        success=not _has_failed(rows),
        actions=matrix(rows["action"]),
        observations={key: array for key, array in observations.items() if array is not None},
        pictures={
            key: source.pictures(episode, rows, begin, feature)
            for key in wanted.cameras
            if (feature := picture_key(camera_name(key))) in source.features
        },
    )


def _numbers(rows: pa.Table, name: str) -> Array | None:
    return rows[name].to_numpy() if name in rows.column_names else None


def _is_cut(rows: pa.Table) -> bool:
    return "next.truncated" in rows.column_names and bool(rows["next.truncated"][-1].as_py())


def _has_failed(rows: pa.Table) -> bool:
    return _SUCCESS in rows.column_names and not pc.any(rows[_SUCCESS]).as_py()
