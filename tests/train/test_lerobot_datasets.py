"""Datasets as LeRobot 0.6 writes them where it is told so: pictures among the frames, several tasks
in an episode, and columns of language."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hocket.core.specs import ArraySpec, TaskInfo
from hocket.errors import RunFolderError
from hocket.train.data.lerobot import read_dataset
from hocket.train.data.store import Recorded, Wanted
from hocket.train.networks.contract import Shapes
from hocket.workers.sinks.pictures import write_png
from support.exported_runs import Notes

LENGTH, SIZE = 6, 16
CAMERA = "observation.images.image"


def save(root: Path, told: list[list[str]], *, apart: bool = False) -> np.ndarray:
    """A dataset of an episode for each list, which has the prompt of every frame; its pictures."""
    rng = np.random.default_rng(7)
    prompts = sorted({prompt for each in told for prompt in each})
    pictures = rng.integers(0, 256, (len(told), LENGTH, SIZE, SIZE, 3), np.uint8)
    frames: list[dict[str, Any]] = []
    for index, each in enumerate(told):
        for frame, prompt in enumerate(each):
            file = root / "images" / f"{index}-{frame}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            write_png(file, pictures[index, frame])
            inside = {"bytes": file.read_bytes(), "path": file.name}
            outside = {"bytes": None, "path": str(file.relative_to(root))}
            frames.append(
                {
                    "episode_index": index,
                    "frame_index": frame,
                    "task_index": prompts.index(prompt),
                    "action": [float(index), float(frame)],
                    "observation.state": [float(frame)] * 3,
                    CAMERA: outside if apart else inside,
                    "language_events": [{"role": "user", "content": prompt, "timestamp": 0.0}],
                }
            )
    tables = {
        "data/chunk-000/file-000.parquet": frames,
        "meta/tasks.parquet": [
            {"task_index": i, "__index_level_0__": prompt} for i, prompt in enumerate(prompts)
        ],
        "meta/episodes/chunk-000/file-000.parquet": [
            {
                "episode_index": index,
                "tasks": list(dict.fromkeys(each)),
                "data/chunk_index": 0,
                "data/file_index": 0,
            }
            for index, each in enumerate(told)
        ],
    }
    for name, rows in tables.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), root / name)
    info = {
        "codebase_version": "v3.0",
        "fps": 10,
        "total_tasks": len(prompts),
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "features": {CAMERA: {"dtype": "image", "shape": [SIZE, SIZE, 3]}},
    }
    (root / "meta" / "info.json").write_text(json.dumps(info))
    return pictures


def read(root: Path, *tasks: str) -> list[Recorded]:
    picture = ArraySpec(shape=(SIZE, SIZE, 3), dtype="|u1")
    shapes = Shapes(
        observations={
            "observation/image": picture,
            "observation/state": ArraySpec(shape=(3,), dtype="<f4"),
        },
        action_size=2,
        tasks=tasks,
        cameras=("observation/image",),
    )
    infos = [TaskInfo(name=task, prompt=f"please {task}") for task in tasks]
    inputs = ("observation/image", "observation/state")
    wanted = Wanted(shapes=shapes, tasks=infos, inputs=inputs, first=None)
    return list(read_dataset(root, wanted, Notes()))


@pytest.mark.parametrize("apart", [False, True])
def test_pictures_among_the_frames_are_read(tmp_path: Path, apart: bool) -> None:
    pictures = save(tmp_path, [["push"] * LENGTH] * 2, apart=apart)
    found = read(tmp_path, "push")
    assert len(found) == 2
    for one, true in zip(found, pictures, strict=True):
        np.testing.assert_array_equal(list(one.pictures["observation/image"]), true)


def test_a_picture_that_is_none_is_named(tmp_path: Path) -> None:
    save(tmp_path, [["push"] * LENGTH], apart=True)
    (tmp_path / "images" / "0-3.png").write_bytes(b"no picture")
    (one,) = read(tmp_path, "push")
    with pytest.raises(RunFolderError, match=r"A picture of observation\.images\.image in"):
        list(one.pictures["observation/image"])


def test_each_part_of_an_episode_is_of_the_task_that_it_was_told(tmp_path: Path) -> None:
    pictures = save(tmp_path, [["please open"] * 4 + ["please push"] * 2, ["please open"] * LENGTH])
    found = read(tmp_path, "push", "open")
    assert [(one.task, one.prompt, len(one.actions)) for one in found] == [
        (1, "please open", 4),
        (0, "please push", 2),
        (1, "please open", 6),
    ]
    np.testing.assert_array_equal(found[1].actions, [[0, 4], [0, 5]])
    shown = list(found[1].pictures["observation/image"])
    np.testing.assert_array_equal(shown, pictures[0, 4:])
    # A task that nobody wants is left out, and what else is in the episode is not.
    assert [one.actions[0].tolist() for one in read(tmp_path, "push")] == [[0.0, 4.0]]
