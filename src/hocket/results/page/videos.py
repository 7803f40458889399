"""The videos of a run, each beside what came of its episode."""

from __future__ import annotations

import base64
from fractions import Fraction
from pathlib import Path

from hocket.core.data import Episode
from hocket.results.page.episodes import Listed, camera_name
from hocket.results.page.markup import Markup, Section, breakable, file_link, join, tag
from hocket.results.recorded import RecordedRun

_MOST_CARDS = 48
_POSTER_WIDTH = 320


def video_section(run: RecordedRun, listed: Listed) -> Section | None:
    """A card for each video, in planned order; None where there is no video."""
    videos = [(e, file) for e in listed.episodes for file in run.videos(e)]
    if not videos:
        return None
    cards = [
        _card(run, episode, file, listed.anchors[episode.trial])
        for episode, file in videos[:_MOST_CARDS]
    ]
    more = len(videos) - len(cards)
    words = f"{more:,} more are linked in the table of episodes."
    note = tag("p", words, class_="note") if more else None
    body = join(tag("div", *cards, class_="gallery"), note)
    return Section(
        anchor="videos",
        title="Videos",
        lead="They lie beside this page and are loaded when they are played.",
        body=body,
    )


def _card(run: RecordedRun, episode: Episode, file: str, anchor: str) -> Markup:
    trial, kind = episode.trial, episode.outcome.value
    player = tag(
        "video",
        src=file_link(file),
        controls=True,
        muted=True,
        playsinline=True,
        preload="none",
        poster=poster(run.folder / file),
    )
    words = f"seed {trial.seed} · {episode.steps:,} steps · {camera_name(file)}"
    text = tag(
        "figcaption",
        tag("a", breakable(run.task_name(trial)), href=f"#{anchor}"),
        tag("div", tag("span", kind, class_=f"badge k-{kind}"), class_="sub"),
        tag("div", words, class_="sub"),
    )
    return tag(
        "figure", tag("div", player, class_="screen"), text, class_="card", data_outcome=kind
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
            frame = next(video.decode(stream), None)
    except (av.FFmpegError, OSError, IndexError, StopIteration):
        return None
    if frame is None:
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
