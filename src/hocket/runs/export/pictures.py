"""The lossless pictures of an episode, one in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hocket.core.data import Array
from hocket.errors import RunFolderError
from hocket.records.video.encoder import require_encoder


def decoded(path: Path, count: int) -> Iterator[Any]:
    """The first `count` frames of a video, as PyAV has them; fewer is an error."""
    av = require_encoder()
    seen = 0
    try:
        with av.open(str(path)) as container:
            for frame in container.decode(video=0):
                if seen == count:
                    return
                yield frame
                seen += 1
    except av.error.FFmpegError as exc:
        raise RunFolderError(f"The pictures in {str(path)!r} cannot be read: {exc}") from exc
    if seen < count:
        raise RunFolderError(
            f"{str(path)!r} has {seen} pictures, its episode needs {count}. Make them again: "
            f"hocket video RUN --images --again"
        )


def pictures(path: Path, count: int) -> Iterator[Array]:
    """The first `count` pictures as RGB, uint8 `[height, width, 3]`."""
    for frame in decoded(path, count):
        yield frame.to_ndarray(format="rgb24")


def size_of(path: Path) -> tuple[int, int]:
    """Height and width."""
    av = require_encoder()
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return int(stream.height), int(stream.width)
