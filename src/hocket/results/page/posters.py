"""One small picture of a video, for the page to show before it is played."""

from __future__ import annotations

import base64
from fractions import Fraction
from pathlib import Path

_WIDTH = 320


def poster(path: Path) -> str | None:
    """The last frame that is easily found, as a `data:` address; None where a video has none."""
    import av

    try:
        with av.open(str(path)) as video:
            stream = video.streams.video[0]
            if stream.duration:
                # The keyframe before the end: how an episode ended says more than how it began.
                video.seek(int(stream.duration * 0.9), stream=stream)
            frame = next(video.decode(stream), None)
    except (av.FFmpegError, OSError, IndexError, StopIteration):
        return None
    if frame is None:
        return None
    height = max(2, round(frame.height * _WIDTH / frame.width / 2) * 2)
    small = frame.reformat(width=_WIDTH, height=height, format="yuvj420p")
    codec = av.CodecContext.create("mjpeg", "w")
    codec.width, codec.height, codec.pix_fmt = _WIDTH, height, "yuvj420p"
    codec.time_base = Fraction(1, 25)
    small.pts = 0
    packets = [*codec.encode(small), *codec.encode(None)]
    data = b"".join(bytes(packet) for packet in packets)
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}" if data else None
