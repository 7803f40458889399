"""The films of a run on its page: which are missing, and a picture of each."""

from __future__ import annotations

import base64
from fractions import Fraction
from pathlib import Path

from hocket.results.page.widgets import Widget, bold, code, note
from hocket.results.recorded import RecordedRun
from hocket.system.text import counted

_NAMED = 6
"""Trials that are named where only some can be."""
_POSTER_WIDTH = 320


def filmed_note(run: RecordedRun) -> Widget | None:
    """Of how many episodes the films were chosen that were made while they ran."""
    if not run.films:
        return None
    words = (
        f"{run.films['filmed']:,} of {run.films['ended']:,} episodes were filmed while they ran, "
        f"since their envs cannot be shown again; no more films can be made of this run."
    )
    if lacked := run.films["lacked"]:
        words += f" {counted(lacked, 'film')} did not fit into --video-mb and were not kept."
    return note(words)


def missing_note(run: RecordedRun) -> Widget | None:
    """Which films are still to be made, and how."""
    missing = run.missing_videos
    if not missing:
        return None
    names = ", ".join(episode.trial.id for episode in missing[:_NAMED])
    more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
    place = f"{run.folder.parent.name}/{run.name}"
    return note(
        bold(f"{counted(len(missing), 'episode')} not filmed yet: "),
        f"{names}{more}. Make the videos with ",
        code(f"hocket video {place}"),
        ", then this page with ",
        code(f"hocket report {place}"),
        ".",
        kind="alert",
    )


def poster(path: Path) -> str | None:
    """The picture that HTML calls a poster, shown before a video is played: its last key frame, as
    a `data:` address; None where a video has no frame."""
    import av

    try:
        with av.open(str(path)) as video:
            stream = video.streams.video[0]
            if stream.duration:
                # The keyframe before the end: how an episode ended says more than how it began.
                video.seek(int(stream.duration * 0.9), stream=stream)
            frame = next(video.decode(stream))
    except (av.FFmpegError, OSError, IndexError, StopIteration):
        return None
    height = max(2, round(frame.height * _POSTER_WIDTH / frame.width / 2) * 2)
    small = frame.reformat(width=_POSTER_WIDTH, height=height, format="yuvj420p")
    codec = av.CodecContext.create("mjpeg", "w")
    codec.width, codec.height, codec.pix_fmt = _POSTER_WIDTH, height, "yuvj420p"
    codec.time_base = Fraction(1, 25)
    small.pts = 0
    packets = [*codec.encode(small), *codec.encode(None)]
    data = b"".join(bytes(packet) for packet in packets)
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}" if data else None
