"""LeRobotDataset v3.0, a folder that LeRobot opens; LeRobot itself is not needed.

Frame i of an episode has what was observed before action i, and under `next.` what came of it:
`next.done` where the episode ended for whatever reason, `next.truncated` where that was a limit.
Keys with slashes become keys with dots: `observation/state` is `observation.state`, the camera
`observation/wrist_image` is `observation.images.wrist_image`. An env without a `state` has one made
of all its arrays, end to end by their keys, with a name for each number; only what LeRobot knows as
`observation.environment_state` stays by itself. Numbers are float32, as LeRobot wants them; whole
numbers that stay by themselves are int64.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hocket.core.data import Array
from hocket.errors import UsageError
from hocket.exports import new_folder, scratch_folder
from hocket.exports.lerobot.features import CameraFiles, Clip, PictureStats, Stats, VectorStats
from hocket.exports.lerobot.files import (
    DATA_MB,
    EpisodeRows,
    FrameFiles,
    write_info,
    write_labels,
    write_stats,
    write_tasks,
)
from hocket.runs.demonstrations.chosen import ChosenRun, ExportConfig, Watcher
from hocket.runs.demonstrations.episodes import Demonstration, Demonstrations
from hocket.runs.demonstrations.lerobot_names import number_names, picture_key
from hocket.system import machine
from hocket.workers.sinks.encoder import exact_rate
from hocket.workers.sinks.video import camera_name

VIDEO_MB = 200
"""Largest video file, in MiB; LeRobot's own default."""


def write(run: ChosenRun, out: Path, config: ExportConfig, watcher: Watcher) -> None:
    with new_folder(out) as root, scratch_folder(out) as scratch:
        demonstrations = Demonstrations(run, config, scratch, watcher)
        rate = exact_rate(demonstrations.rate())
        with DatasetWriter(root, rate, crf=config.crf) as writer:
            for demonstration in demonstrations:
                writer.add(demonstration)
            writer.finish(robot=",".join(run.recorded.suites))


class _Kind(NamedTuple):
    """What a feature is in every episode."""

    dtype: str
    shape: tuple[int, ...]
    names: list[str] | None
    """What each of its numbers is called, where they have names."""


class DatasetWriter:
    """Appends whole episodes; `finish` writes what is known only at the end."""

    def __init__(self, root: Path, rate: Fraction, *, crf: int, video_mb: int = VIDEO_MB) -> None:
        self._root = root
        self._rate = rate
        self._crf = crf
        self._video_mb = video_mb
        self._tasks: dict[str, int] = {}
        """The number of each prompt, as they come."""
        self._frames = FrameFiles(root)
        self._episodes = EpisodeRows(root)
        self._cameras: dict[str, CameraFiles] = {}
        self._pictures: dict[str, PictureStats] = {}
        self._vectors: dict[str, VectorStats] = {}
        self._kinds: dict[str, _Kind] = {}
        self._first = ""
        self._labels: dict[int, str] = {}
        """What somebody said of episodes, by their index."""
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def add(self, demo: Demonstration) -> None:
        """Append an episode; its features must be those of the ones before."""
        number, begin = self._episodes.count, self._frames.count
        columns, names = _columns(demo)
        task = self._tasks.setdefault(demo.prompt, len(self._tasks))
        columns |= self._indices(demo.length, number, begin, task)
        self._check(demo, columns, names)
        clips = self._append_videos(demo)
        file = self._frames.add({name: _as_arrow(rows) for name, rows in columns.items()})
        stats: dict[str, Stats] = {}
        for name, rows in columns.items():
            mine = VectorStats()
            mine.add(rows)
            self._vectors.setdefault(name, VectorStats()).add(rows)
            stats[name] = mine.finish()
        for name, clip in clips.items():
            self._pictures.setdefault(name, PictureStats()).merge(clip.stats)
            stats[name] = clip.stats.finish()
        if demo.label:
            self._labels[number] = demo.label
        self._episodes.add(demo.prompt, (begin, begin + demo.length), file, clips, stats)

    def finish(self, *, robot: str) -> None:
        """Close all files and write the dataset's own description."""
        self._close()
        vectors = {name: each.finish() for name, each in self._vectors.items()}
        cameras = {name: each.finish() for name, each in self._pictures.items()}
        write_stats(self._root, {**vectors, **cameras})
        write_tasks(self._root, self._tasks)
        write_labels(self._root, self._labels)
        write_info(
            self._root,
            robot=robot,
            rate=self._rate,
            counts=(self._episodes.count, self._frames.count, len(self._tasks)),
            features=self._features(),
            megabytes=(DATA_MB, self._video_mb),
        )

    def _close(self) -> None:
        self._frames.close()
        self._episodes.close()
        for camera in self._cameras.values():
            camera.close()
        if self._pool is not None:
            self._pool.shutdown()

    def _append_videos(self, demo: Demonstration) -> dict[str, Clip]:
        """Append the episode to every camera's video, with a thread for each camera."""
        if not self._cameras and demo.cameras:
            count = len(demo.cameras)
            limit, threads = self._video_mb << 20, max(1, machine.cores() // count)
            for name in demo.cameras:
                folder = self._root / "videos" / picture_key(name)
                self._cameras[name] = CameraFiles(
                    folder, self._rate, crf=self._crf, limit=limit, threads=threads
                )
            self._pool = ThreadPoolExecutor(count, thread_name_prefix="hocket-export")
        if self._pool is None:
            return {}
        under_way = {
            name: self._pool.submit(self._cameras[name].add, video, demo.length)
            for name, video in demo.cameras.items()
        }
        return {picture_key(name): job.result() for name, job in under_way.items()}

    def _indices(self, length: int, episode: int, begin: int, task: int) -> dict[str, Array]:
        frames = np.arange(length, dtype=np.int64)
        return {
            "timestamp": (frames / float(self._rate)).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full(length, episode, np.int64),
            "index": frames + begin,
            "task_index": np.full(length, task, np.int64),
        }

    def _check(
        self, demo: Demonstration, columns: Mapping[str, Array], names: Mapping[str, list[str]]
    ) -> None:
        """Refuse an episode whose features are not those of the first one."""
        kinds = {
            name: _Kind(str(rows.dtype), rows.shape[1:], names.get(name))
            for name, rows in columns.items()
        }
        kinds |= {picture_key(name): _Kind("video", (), None) for name in demo.cameras}
        if not self._kinds:
            self._kinds, self._first = kinds, demo.episode.trial.id
        for name in sorted(kinds.keys() | self._kinds.keys()):
            one, other = self._kinds.get(name), kinds.get(name)
            if one != other:
                raise UsageError(
                    f"{name!r} is {_kind_words(one)} in {self._first}, but {_kind_words(other)} in "
                    f"{demo.episode.trial.id}; a LeRobotDataset has one kind. Export them apart "
                    f"with --task or --camera, or leave pictures out with --no-images."
                )

    def _features(self) -> dict[str, Any]:
        features: dict[str, Any] = {}
        for name, camera in self._cameras.items():
            features[picture_key(name)] = _video_feature(camera, self._rate)
        for name, rows in self._vectors.items():
            kind = self._kinds[name]
            shape = [len(rows.mean)]
            features[name] = {"dtype": kind.dtype, "shape": shape, "names": kind.names}
        return features


_STATE, _ALONE = "state", "environment_state"


def _columns(demo: Demonstration) -> tuple[dict[str, Array], dict[str, list[str]]]:
    """An episode's features, and what their numbers are called where they have names."""
    seen = {camera_name(key): rows[: demo.length] for key, rows in demo.observations.items()}
    joined = {} if _STATE in seen else {n: rows for n, rows in seen.items() if n != _ALONE}
    columns: dict[str, Array] = {}
    names: dict[str, list[str]] = {}
    if joined:
        columns["observation.state"] = _join(demo, joined)
        names["observation.state"] = [
            part for name, rows in joined.items() for part in number_names(name, rows.shape[1:])
        ]
    for name, rows in seen.items():
        if name not in joined:
            columns[f"observation.{name}"] = _fitting(demo, name, rows)
    columns["action"] = _narrow(demo, "action", demo.actions)
    columns["next.reward"] = _narrow(demo, "reward", demo.rewards)
    columns["next.done"] = demo.terminated | demo.truncated
    columns["next.truncated"] = demo.truncated
    if demo.success is not None:
        columns["next.success"] = demo.success
    if demo.intervention is not None:
        columns["intervention"] = demo.intervention  # as LeRobot's own rollouts call it
    return columns, names


def _join(demo: Demonstration, parts: Mapping[str, Array]) -> Array:
    rows = [_narrow(demo, name, part.reshape(demo.length, -1)) for name, part in parts.items()]
    return np.concatenate(rows, axis=1)


def _fitting(demo: Demonstration, name: str, rows: Array) -> Array:
    """An array `[length, ...]` as rows of a dtype that LeRobot takes."""
    rows = rows.reshape(demo.length, -1)
    if rows.dtype.kind == "b":
        return rows
    if rows.dtype.kind in "iu" and rows.dtype != np.uint64:
        return rows.astype(np.int64)
    return _narrow(demo, name, rows)


def _narrow(demo: Demonstration, name: str, rows: Array) -> Array:
    """Rows as float32; numbers that are no such numbers, but for rounding, are refused."""
    with np.errstate(over="ignore"):
        narrow = rows.astype(np.float32)
    is_lost = np.isinf(narrow) & np.isfinite(rows)
    if rows.dtype.kind in "iu":
        is_lost = narrow.astype(np.float64) != rows
    if is_lost.any():
        raise UsageError(
            f"{name!r} of {demo.episode.trial.id} has {rows[is_lost][0]}, which LeRobot's float32 "
            f"cannot hold. Export it as HDF5."
        )
    return narrow


def _as_arrow(rows: Array) -> pa.Array:
    """A column; rows of one number are plain numbers, as LeRobot has them."""
    if rows.ndim == 1 or rows.shape[1] == 1:
        return pa.array(rows.reshape(-1))
    flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])


def _video_feature(camera: CameraFiles, rate: Fraction) -> dict[str, Any]:
    height, width = camera.size
    return {
        "dtype": "video",
        "shape": [height, width, 3],
        "names": ["height", "width", "channels"],
        "info": {
            "video.height": height,
            "video.width": width,
            "video.codec": "h264",
            "video.pix_fmt": camera.pixels,
            "video.is_depth_map": False,
            "video.fps": int(rate) if rate.denominator == 1 else float(rate),
            "video.channels": 3,
            "has_audio": False,
        },
    }


def _kind_words(kind: _Kind | None) -> str:
    if kind is None:
        return "missing"
    names = "" if kind.names is None else f"({', '.join(kind.names)})"
    return " ".join(filter(None, [kind.dtype, str(list(kind.shape) or ""), names]))
