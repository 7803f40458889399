"""The files of a LeRobotDataset v3.0, read without LeRobot.

Names are those that hocket's own export gives: `observation.state` is `observation/state`, the
camera `observation.images.wrist_image` is `observation/wrist_image`, and the parts of a state that
was joined are found by the names of its numbers.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hocket.core.data import Array
from hocket.errors import RunFolderError, UsageError
from hocket.runs.demonstrations.lerobot_names import VERSION, number_names
from hocket.workers.sinks.encoder import read_clip
from hocket.workers.sinks.video import camera_name

INFO = Path("meta") / "info.json"
_STATE = "observation.state"
_TEXT = (pa.string(), pa.large_string())


class DatasetFiles:
    """A dataset's files; the file of frames that was read last stays open. What is missing or
    damaged comes as OSError, ValueError, KeyError or one of pyarrow's; see `unreadable`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.info: Mapping[str, Any] = json.loads((root / INFO).read_text())
        if self.info["codebase_version"] != VERSION:
            raise UsageError(
                f"{str(root)!r} is a LeRobotDataset {self.info['codebase_version']}; {VERSION} is "
                f"read. LeRobot converts older ones."
            )
        self.features: Mapping[str, Any] = self.info["features"]
        self.episodes: list[dict[str, Any]] = _table(root, "meta/episodes").to_pylist()
        self._open: tuple[Path, pa.Table] | None = None

    def rows(self, episode: Mapping[str, Any]) -> pa.Table:
        """The frames of an episode."""
        path = self.root / self.info["data_path"].format(
            chunk_index=episode["data/chunk_index"], file_index=episode["data/file_index"]
        )
        if self._open is None or self._open[0] != path:
            self._open = (path, pq.read_table(path))
        table = self._open[1]
        return table.filter(pc.equal(table["episode_index"], episode["episode_index"]))

    def stretches(self, episode: Mapping[str, Any], rows: pa.Table) -> list[tuple[int, int, str]]:
        """The first frame and the end of each part of an episode that is of one task, and what
        that is told as."""
        if len(episode["tasks"]) == 1:
            return [(0, len(rows), episode["tasks"][0])]
        tasks = pq.read_table(self.root / "meta" / "tasks.parquet")
        text = next(c for c in tasks.columns if c.type in _TEXT).to_pylist()
        prompts = dict(zip(tasks["task_index"].to_pylist(), text, strict=True))
        told = rows["task_index"].to_numpy()
        edges = [0, *(np.flatnonzero(np.diff(told)) + 1).tolist(), len(told)]
        return [(begin, end, prompts[told[begin]]) for begin, end in pairwise(edges)]

    def array(self, rows: pa.Table, key: str, shape: tuple[int, ...]) -> Array | None:
        """The array of an env's key, by its own name or as a part of the joined state."""
        name = camera_name(key)
        if f"observation.{name}" in rows.column_names:
            return matrix(rows[f"observation.{name}"])
        joined = self.features.get(_STATE, {}).get("names") or []
        wanted = number_names(name, shape)
        if not set(wanted) <= set(joined):
            return None
        part: Array = matrix(rows[_STATE])[:, [joined.index(one) for one in wanted]]
        return part

    def pictures(
        self, episode: Mapping[str, Any], rows: pa.Table, begin: int, feature: str
    ) -> Iterator[Array]:
        """The pictures of a camera: of a film, or each for itself among the frames."""
        if self.features[feature]["dtype"] != "image":
            path, start_s = self._clip(episode, feature)
            return read_clip(path, start_s + begin / self.info["fps"], len(rows))
        return (self._picture(cell.as_py(), feature) for cell in rows[feature])

    def _picture(self, cell: Mapping[str, Any], feature: str) -> Array:
        import av

        try:
            data = cell["bytes"] or (self.root / cell["path"]).read_bytes()
            with av.open(io.BytesIO(data)) as container:
                picture: Array = next(container.decode(video=0)).to_ndarray(format="rgb24")
        except (OSError, ValueError, TypeError, StopIteration) as exc:
            raise RunFolderError(f"A picture of {feature} in {self.root} is none: {exc}") from exc
        return picture

    def _clip(self, episode: Mapping[str, Any], feature: str) -> tuple[Path, float]:
        path = self.info["video_path"].format(
            video_key=feature,
            chunk_index=episode[f"videos/{feature}/chunk_index"],
            file_index=episode[f"videos/{feature}/file_index"],
        )
        return self.root / path, episode[f"videos/{feature}/from_timestamp"]


def unreadable(root: Path, exc: Exception) -> RunFolderError:
    return RunFolderError(f"The dataset {str(root)!r} cannot be read: {exc!r}")


def matrix(column: Any) -> Array:
    """A column as `[rows, size]`; one of plain numbers has the size 1."""
    rows: Array
    if pa.types.is_nested(column.type):
        rows = pc.list_flatten(column).to_numpy().reshape(len(column), -1)
    else:
        rows = np.asarray(column.to_numpy())[:, None]
    return rows


def _table(root: Path, folder: str) -> pa.Table:
    files = sorted((root / folder).glob("*/*.parquet"))
    if not files:
        raise RunFolderError(f"The dataset {str(root)!r} has no {folder}.")
    return pa.concat_tables([pq.read_table(file) for file in files])
