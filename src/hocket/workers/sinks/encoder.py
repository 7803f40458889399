"""H.264 in MP4, one file for one camera: playable while it grows, seekable once it is sealed.

While a file grows it lies under its temporary name as a fragmented MP4, a fragment at least every
half second: after a crash it plays up to about the last second. Sealing copies the packets, without
encoding them again, into an MP4 whose index comes first, so that players and browsers can seek.
Below, the lossless kind is read again, one picture in memory at a time. It has a digest of its
packets in its comment: H.264 itself would show a changed bit as other pixels.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hocket.core.data import Array
from hocket.errors import MissingExtraError, RunFolderError
from hocket.system.durable import TEMPORARY, disk_error, publish, temporary
from hocket.workers.sinks.pictures import reformatted

if TYPE_CHECKING:
    import av

UNTIMED_RATE = 10.0
"""Frames per second of a video whose env does not say how fast it is controlled: slow enough to
follow every step. Who films it says so; nothing but a video to look at is ever made at it."""
_FRAGMENTED = {
    "movflags": "frag_keyframe+empty_moov+default_base_moof",
    "flush_packets": "1",  # what was muxed is in the file, not in a buffer that dies with us
}
_INDEX_FIRST = {"movflags": "faststart"}
_DIGEST = "comment"
"""The field of a file's metadata that has the digest of its packets."""
_ADVICE = (
    "the wheels of 'av' have it: pip install --force-reinstall --only-binary av 'av>=14'. To go on "
    "without video: --video none"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How pictures are compressed."""

    crf: int = 23
    """x264's constant rate factor: smaller gives better pictures and larger files; 18 is hard to
    tell from the original."""
    preset: str = "ultrafast"
    """x264's preset. Slower ones make files a third of the size, and take twice the time."""
    lossless: bool = False
    """Keep every pixel as it was, in RGB. For datasets: most players cannot show it."""

    @property
    def codec(self) -> str:
        return "libx264rgb" if self.lossless else "libx264"

    @property
    def pixels(self) -> str:
        return "rgb24" if self.lossless else "yuv420p"

    @property
    def options(self) -> dict[str, str]:
        """The encoder's options. It holds no frame back: what it was given is soon in the file."""
        common = {"bf": "0", "x264-params": "rc-lookahead=0"}
        if self.lossless:
            return {"preset": "ultrafast", "qp": "0", **common}
        return {"preset": self.preset, "crf": str(self.crf), **common}


def exact_rate(rate: float | None) -> Fraction:
    """Frames per second as the fraction that was meant: 29.97 is 2997/100, 33.3333 is 100/3."""
    if rate is None or not rate > 0:
        rate = UNTIMED_RATE
    return max(Fraction(rate).limit_denominator(10_000), Fraction(1, 10_000))


def require_encoder(codec: str = "libx264") -> Any:
    """PyAV, where it can encode with this codec; the error says what to install."""
    try:
        import av
    except ImportError as exc:
        raise MissingExtraError(
            f"Video needs the package 'av', which is not installed in {sys.executable}; {_ADVICE}."
        ) from exc
    try:
        av.codec.Codec(codec, "w")
    except av.codec.codec.UnknownCodecError as exc:
        raise MissingExtraError(
            f"Video needs the encoder {codec!r}, which the 'av' {av.__version__} in "
            f"{sys.executable} was built without; {_ADVICE}."
        ) from exc
    return av


class _Growing(NamedTuple):
    """A file that is being written."""

    container: av.container.OutputContainer
    stream: av.VideoStream
    converter: av.video.reformatter.VideoReformatter
    """One for all frames: making one for each, as the encoder would, takes longer than encoding."""


class VideoFile:
    """One camera's frames of one attempt, in order. Frame i is shown at i / rate seconds.

    Frames are RGB, uint8 `[height, width, 3]`, all of one size. An odd height or width is made
    even by repeating the last row or column, unless lossless.
    """

    def __init__(self, path: Path, rate: Fraction, quality: Quality) -> None:
        self.path = path
        self.frames = 0
        self._av = require_encoder(quality.codec)
        self._rate = rate
        self._quality = quality
        self._draft = temporary(path)
        self._growing: _Growing | None = None

    def write(self, frame: Array) -> None:
        if not self._quality.lossless:
            odd_rows, odd_columns = frame.shape[0] % 2, frame.shape[1] % 2
            if odd_rows or odd_columns:
                frame = np.pad(frame, ((0, odd_rows), (0, odd_columns), (0, 0)), mode="edge")
        try:
            if self._growing is None:
                self._growing = self._open(frame.shape)
            container, stream, converter = self._growing
            picture = self._av.VideoFrame.from_ndarray(frame, format="rgb24")
            if not self._quality.lossless:
                picture = reformatted(converter, picture, format=self._quality.pixels)
            picture.pts, picture.time_base = self.frames, 1 / self._rate
            container.mux(stream.encode(picture))
        except OSError as exc:
            raise disk_error(exc, self.path) from exc
        self.frames += 1

    def seal(self) -> bool:
        """Make the file durable under its name; false where no frame ever came."""
        if self._growing is None:
            return False
        try:
            self._growing.container.mux(self._growing.stream.encode())
            self._close()
            _finish(self._draft, self.path, is_lossless=self._quality.lossless)
            self._draft.unlink(missing_ok=True)
        except OSError as exc:
            raise disk_error(exc, self.path) from exc
        return True

    def discard(self) -> None:
        """Leave nothing behind. After `seal` and twice this is safe."""
        with contextlib.suppress(OSError):
            self._close()
        with contextlib.suppress(OSError):
            self._draft.unlink()

    def _open(self, shape: tuple[int, ...]) -> _Growing:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        container = self._av.open(str(self._draft), "w", format="mp4", options=_FRAGMENTED)
        stream = container.add_stream(
            self._quality.codec, rate=self._rate, options=self._quality.options
        )
        stream.height, stream.width = shape[:2]
        stream.pix_fmt = self._quality.pixels
        stream.codec_context.time_base = 1 / self._rate
        stream.codec_context.gop_size = max(1, int(self._rate / 2))
        # A worker has one core to itself, and there may be a hundred of them.
        stream.codec_context.thread_count = 1
        return _Growing(container, stream, self._av.video.reformatter.VideoReformatter())

    def _close(self) -> None:
        growing, self._growing = self._growing, None
        if growing is not None:
            growing.container.close()


def finish_draft(draft: Path) -> Path:
    """Make a whole file of what a process that died left of a video; return its path. Raises
    RunFolderError where there is no picture in it."""
    path = draft.with_name(draft.name.removeprefix(".").removesuffix(TEMPORARY))
    if draft != temporary(path) or path.suffix not in (".mp4", ".m4v"):
        raise RunFolderError(f"{str(draft)!r} is no video.")
    with _reading(draft):
        _finish(draft, path, is_lossless=path.name.endswith(".lossless.m4v"))
    return path


def frames_in(path: Path) -> int:
    """How many frames a whole video has, as its index tells."""
    with _reading(path) as av, av.open(str(path), format="mp4") as container:
        return int(container.streams.video[0].frames)


def _finish(draft: Path, path: Path, *, is_lossless: bool) -> None:
    """Copy what a growing file holds behind an index, and make that durable under its name."""
    import av

    indexed = path.with_name(f".{path.name}.indexed{TEMPORARY}")
    try:
        with (
            av.open(str(draft), format="mp4") as source,
            av.open(str(indexed), "w", format="mp4", options=_INDEX_FIRST) as container,
        ):
            old = source.streams.video[0]
            new = container.add_stream_from_template(old)
            if is_lossless:
                container.metadata[_DIGEST] = _digest_of(av, draft)
            copied = 0
            for packet in source.demux(old):
                if packet.dts is not None:  # the last one is empty, and says that there is no more
                    packet.stream = new
                    container.mux(packet)
                    copied += 1
        if not copied:
            raise RunFolderError(f"No picture of {str(draft)!r} is whole.")
        publish(indexed, path)
    finally:
        with contextlib.suppress(OSError):
            indexed.unlink(missing_ok=True)


def _digest_of(av: Any, path: Path) -> str:
    """The digest of a video's packets, which stay the same where they are copied."""
    digest = hashlib.blake2b(digest_size=16)
    with av.open(str(path), format="mp4") as container:
        for packet in container.demux(video=0):
            digest.update(bytes(packet))
    return f"blake2b {digest.hexdigest()}"


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """PyAV, whose errors about a file are turned into ours."""
    av = require_encoder()
    try:
        yield av
    except (av.error.FFmpegError, IndexError) as exc:
        raise RunFolderError(f"The pictures in {str(path)!r} cannot be read: {exc}") from exc


def decoded(path: Path, count: int) -> Iterator[Any]:
    """The first `count` frames of a video, as PyAV has them; fewer is an error, and so are packets
    that are not those that were written."""
    seen = 0
    with _reading(path) as av, av.open(str(path)) as container:
        known = container.metadata.get(_DIGEST)
        if known is not None and known != _digest_of(av, path):
            raise RunFolderError(
                f"The pictures in {str(path)!r} are damaged: its bytes are not those that were "
                f"written. Restore it from a copy of the run, or make them again where the env can "
                f"show them: hocket video RUN --images --again"
            )
        for frame in islice(container.decode(video=0), count):
            yield frame
            seen += 1
    if seen < count:
        raise RunFolderError(
            f"{str(path)!r} has {seen} pictures, its episode needs {count}. Make them again: "
            f"hocket video RUN --images --again"
        )


def read_pictures(path: Path, count: int) -> Iterator[Array]:
    """The first `count` pictures as RGB, uint8 `[height, width, 3]`."""
    for frame in decoded(path, count):
        yield frame.to_ndarray(format="rgb24")


def read_clip(path: Path, begin_s: float, count: int) -> Iterator[Array]:
    """`count` pictures as RGB of any video, from this second of it on."""
    seen = 0
    with _reading(path) as av, av.open(str(path)) as container:
        stream = container.streams.video[0]
        # The picture that is shown at `begin_s` begins at most half a picture before it.
        begin_s -= 0.5 / float(stream.average_rate)
        container.seek(max(0, int(begin_s / stream.time_base)), stream=stream)
        later = (frame for frame in container.decode(stream) if frame.time >= begin_s)
        for frame in islice(later, count):
            yield frame.to_ndarray(format="rgb24")
            seen += 1
    if seen < count:
        raise RunFolderError(f"{str(path)!r} has {seen} of {count} pictures of an episode.")


def size_of(path: Path) -> tuple[int, int]:
    """The height and the width of a video."""
    with _reading(path) as av, av.open(str(path)) as container:
        stream = container.streams.video[0]
        return int(stream.height), int(stream.width)
