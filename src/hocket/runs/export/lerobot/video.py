"""Videos of a LeRobotDataset: one camera's episodes after each other, in files of bounded size.

H.264 with a key picture at every second one, so that a training run may look at any picture
without decoding many. An episode never lies in two files.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from hocket.records.video.encoder import decoded, require_encoder
from hocket.runs.export.lerobot.stats import PictureStats, sampled

_ENCODER = "libx264"
_KEY_EVERY = 2
"""Pictures between key pictures; LeRobot's own videos have as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """The part of a camera's video that is one episode."""

    file: int
    """The number of the file, from 0."""
    begin_s: float
    end_s: float
    stats: PictureStats


class CameraFiles:
    """All the video files of one camera, written in order, by one thread at a time."""

    def __init__(self, pattern: str, rate: Fraction, *, crf: int, limit: int, threads: int) -> None:
        """`pattern` gives the path of a file, `{chunk}` and `{file}` in it; `limit` is in bytes."""
        self._av = require_encoder(_ENCODER)
        self._pattern = pattern
        self._rate = rate
        self._crf = crf
        self._limit = limit
        self._threads = threads
        self._number = -1
        self._frames = 0
        self._written = 0
        self._largest = 0
        self._container: Any = None
        self._stream: Any = None
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
            if self._container is None:
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
        container, self._container = self._container, None
        if container is not None:
            try:
                self._mux(self._stream.encode(), container)
            finally:
                container.close()
                self._stream = None

    def _is_full(self) -> bool:
        """Whether another episode might make the file too large."""
        return self._container is not None and self._written + self._largest > self._limit

    def _open(self, frame: Any) -> None:
        self._number += 1
        self._frames = self._written = 0
        self.size = (frame.height, frame.width)
        # Half the resolution of colour needs even sides.
        self.pixels = "yuv444p" if frame.height % 2 or frame.width % 2 else "yuv420p"
        path = Path(self._pattern.format(chunk=self._number // 1000, file=self._number % 1000))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._container = self._av.open(str(path), "w", format="mp4")
        options = {"preset": "veryfast", "crf": str(self._crf), "bf": "0"}
        self._stream = self._container.add_stream(_ENCODER, rate=self._rate, options=options)
        self._stream.height, self._stream.width = self.size
        self._stream.pix_fmt = self.pixels
        context = self._stream.codec_context
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
        self._mux(self._stream.encode(picture), self._container)
        self._frames += 1

    def _mux(self, packets: Any, container: Any) -> None:
        for packet in packets:
            self._written += packet.size
            container.mux(packet)
