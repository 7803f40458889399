"""What a LeRobotDataset has of its features beside rows: the cameras' videos, and statistics.

A camera's episodes follow each other in files of bounded size; one never lies in two files. They
are H.264 with a key picture at every second one, so that a training run may look at any picture
without decoding many.

Statistics are kept for an episode and for the whole dataset. Least, greatest, mean and deviation
are exact. Quantiles are exact too, up to a number of rows; in larger datasets they are those of
rows taken evenly from all. Pictures are counted in a histogram.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hocket.core.data import Array
from hocket.workers.sinks.encoder import decoded, require_encoder

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

FILES_IN_CHUNK = 1000
_ENCODER = "libx264"
_KEY_EVERY = 2
"""Pictures between key pictures; LeRobot's own videos have as many."""
QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_MOST_ROWS = 200_000
_LEVELS = 256
_FINEST = 160
"""Pictures are thinned out to about this many pixels a side, which hardly changes statistics."""

Stats = Mapping[str, Array]


def numbered_file(folder: Path, number: int, suffix: str) -> Path:
    """The path of a file by its number, in a folder that is there from now on."""
    chunk, file = divmod(number, FILES_IN_CHUNK)
    path = folder / f"chunk-{chunk:03d}" / f"file-{file:03d}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """The part of a camera's video that is one episode."""

    file: int
    """The number of the file, from 0."""
    begin_s: float
    end_s: float
    stats: PictureStats


class _VideoFile(NamedTuple):
    """The file that is being written."""

    container: OutputContainer
    stream: VideoStream


class CameraFiles:
    """All the video files of one camera, written in order, by one thread at a time."""

    def __init__(self, folder: Path, rate: Fraction, *, crf: int, limit: int, threads: int) -> None:
        """`limit` is in bytes."""
        self._av = require_encoder(_ENCODER)
        self._folder = folder
        self._rate = rate
        self._crf = crf
        self._limit = limit
        self._threads = threads
        self._number = -1
        self._frames = 0
        self._written = 0
        self._largest = 0
        self._file: _VideoFile | None = None
        self.size = (0, 0)
        """The height and the width of the pictures."""
        self.pixels = "yuv420p"

    def add(self, video: Path, length: int) -> Clip:
        """Append the first `length` pictures of a lossless video."""
        begin, before, stats = self._frames, self._written, PictureStats()
        looked_at = sampled(length)
        for index, frame in enumerate(decoded(video, length)):
            if index == 0 and self._is_full():
                self.close()
            if self._file is None:
                self._open(frame)
                begin, before = 0, 0
            if index in looked_at:
                stats.add(frame.to_ndarray(format="rgb24"))
            self._encode(frame, is_first=index == 0)
        self._largest = max(self._largest, self._written - before)
        return Clip(
            file=self._number,
            begin_s=float(begin / self._rate),
            end_s=float(self._frames / self._rate),
            stats=stats,
        )

    def close(self) -> None:
        """Finish the file that is being written. Closing twice is safe."""
        file, self._file = self._file, None
        if file is not None:
            try:
                self._mux(file, file.stream.encode())
            finally:
                file.container.close()

    def _is_full(self) -> bool:
        """True if another episode might make the file too large."""
        return self._file is not None and self._written + self._largest > self._limit

    def _open(self, frame: Any) -> None:
        self._number += 1
        self._frames = self._written = 0
        self.size = (frame.height, frame.width)
        # Half the resolution of colour needs even sides.
        self.pixels = "yuv444p" if frame.height % 2 or frame.width % 2 else "yuv420p"
        path = numbered_file(self._folder, self._number, "mp4")
        container = self._av.open(str(path), "w", format="mp4")
        options = {"preset": "veryfast", "crf": str(self._crf), "bf": "0"}
        stream = container.add_stream(_ENCODER, rate=self._rate, options=options)
        self._file = _VideoFile(container, stream)
        stream.height, stream.width = self.size
        stream.pix_fmt = self.pixels
        context = stream.codec_context
        context.time_base = 1 / self._rate
        context.gop_size = _KEY_EVERY
        context.thread_count = self._threads

    def _encode(self, frame: Any, *, is_first: bool) -> None:
        # Lossless pictures use all 256 levels; players take a video's to be 16 to 235.
        colours = self._av.video.reformatter
        picture = frame.reformat(
            format=self.pixels,
            dst_colorspace=colours.Colorspace.ITU601,
            dst_color_range=colours.ColorRange.MPEG,
        )
        picture.pts, picture.time_base = self._frames, 1 / self._rate
        kinds = self._av.video.frame.PictureType
        picture.pict_type = kinds.I if is_first else kinds.NONE
        assert self._file is not None
        self._mux(self._file, self._file.stream.encode(picture))
        self._frames += 1

    def _mux(self, file: _VideoFile, packets: Sequence[Packet[VideoStream]]) -> None:
        for packet in packets:
            self._written += packet.size
            file.container.mux(packet)


@dataclass(slots=True)
class VectorStats:
    """The statistics of rows `[n, D]` that come bit by bit."""

    count: int = 0
    mean: Array = field(default_factory=lambda: np.zeros(0))
    squares: Array = field(default_factory=lambda: np.zeros(0))
    """The sum of squared differences from the mean."""
    least: Array = field(default_factory=lambda: np.zeros(0))
    greatest: Array = field(default_factory=lambda: np.zeros(0))
    _kept: list[Array] = field(default_factory=list)
    _stride: int = 1

    def add(self, rows: Array) -> None:
        """Add rows, at least one."""
        rows = rows.reshape(len(rows), -1)
        rows = rows.astype(np.float64)
        kept = rows[-self.count % self._stride :: self._stride].astype(np.float32)
        mean = rows.mean(axis=0)
        squares = ((rows - mean) ** 2).sum(axis=0)
        if not self.count:
            self.mean, self.squares = mean, squares
            self.least, self.greatest = rows.min(axis=0), rows.max(axis=0)
        else:
            apart, total = mean - self.mean, self.count + len(rows)
            self.squares += squares + apart**2 * (self.count * len(rows) / total)
            self.mean += apart * (len(rows) / total)
            self.least = np.minimum(self.least, rows.min(axis=0))
            self.greatest = np.maximum(self.greatest, rows.max(axis=0))
        self.count += len(rows)
        self._kept.append(kept)
        if sum(map(len, self._kept)) > _MOST_ROWS:
            self._kept, self._stride = [np.concatenate(self._kept)[::2]], self._stride * 2

    def finish(self) -> Stats:
        """The statistics that LeRobot keeps of a feature."""
        rows = np.concatenate(self._kept)
        found = {
            "min": self.least,
            "max": self.greatest,
            "mean": self.mean,
            "std": np.sqrt(self.squares / self.count),
            "count": np.array([self.count]),
        }
        quantiles = np.quantile(rows, list(QUANTILES.values()), axis=0)
        return {**found, **dict(zip(QUANTILES, quantiles.astype(np.float64), strict=True))}


@dataclass(slots=True)
class PictureStats:
    """The statistics of uint8 pictures `[height, width, 3]`, by channel, as numbers from 0 to 1."""

    count: int = 0
    """How many pictures were added."""
    histogram: Array = field(default_factory=lambda: np.zeros((3, _LEVELS), np.int64))

    def add(self, picture: Array) -> None:
        stride = max(1, max(picture.shape[:2]) // _FINEST)
        thin = picture[::stride, ::stride]
        for channel in range(3):
            self.histogram[channel] += np.bincount(thin[..., channel].ravel(), minlength=_LEVELS)
        self.count += 1

    def merge(self, other: PictureStats) -> None:
        self.histogram += other.histogram
        self.count += other.count

    def finish(self) -> Stats:
        """The statistics that LeRobot keeps of a camera, `[3, 1, 1]` each."""
        levels = np.arange(_LEVELS) / (_LEVELS - 1)
        weights = self.histogram / self.histogram.sum(axis=1, keepdims=True)
        mean = weights @ levels
        spread = np.sqrt(np.maximum(weights @ levels**2 - mean**2, 0))
        parts = np.cumsum(weights, axis=1)
        found = {
            "min": levels[(self.histogram > 0).argmax(axis=1)],
            "max": levels[_LEVELS - 1 - (self.histogram[:, ::-1] > 0).argmax(axis=1)],
            "mean": mean,
            "std": spread,
        }
        for name, share in QUANTILES.items():
            found[name] = levels[(parts >= share - 1e-12).argmax(axis=1)]
        shaped = {name: value.reshape(3, 1, 1) for name, value in found.items()}
        return {**shaped, "count": np.array([self.count])}


def sampled(length: int) -> set[int]:
    """The indices of the pictures that the statistics of an episode are made from: all of a short
    one, and some of a long one, evenly spread."""
    wanted = min(length, max(100, int(length**0.75)))
    return set(np.linspace(0, length - 1, wanted).round().astype(int).tolist())
