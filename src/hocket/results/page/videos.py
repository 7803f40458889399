"""The videos of a run on its page: failures first, which are missing, and a picture of each."""

from __future__ import annotations

import base64
from fractions import Fraction
from pathlib import Path

from hocket.core.data import Episode, Outcome
from hocket.results.page.episodes import Listed, camera_name
from hocket.results.page.markup import Markup, Section, breakable, file_link, join, tag
from hocket.results.recorded import RecordedRun
from hocket.system.text import counted

_MOST_CARDS = 48
_NAMED = 6
"""Trials that are named where only some can be."""
_POSTER_WIDTH = 320


def video_section(run: RecordedRun, listed: Listed) -> Section | None:
    """A card for each video, failures first; None where there is none, and none is missing."""
    first = sorted(listed.episodes, key=lambda e: e.outcome is not Outcome.FAILURE)
    videos = [(e, file) for e in first for file in run.videos(e)]
    missing = _missing_videos(run)
    if not videos and missing is None:
        return None
    cards = [
        _card(run, episode, file, listed.anchors[episode.trial])
        for episode, file in videos[:_MOST_CARDS]
    ]
    more = len(videos) - len(cards)
    words = f"{more:,} more are linked in the table of episodes."
    note = tag("p", words, class_="note") if more else None
    body = join(missing, tag("div", *cards, class_="gallery"), note)
    return Section(
        anchor="videos",
        title="Videos",
        lead="Failures first. They lie beside this page and are loaded when they are played.",
        body=body,
    )


def _missing_videos(run: RecordedRun) -> Markup | None:
    missing = run.missing_videos
    if not missing:
        return None
    names = ", ".join(episode.trial.id for episode in missing[:_NAMED])
    more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
    return tag(
        "p",
        tag("b", f"{counted(len(missing), 'episode')} not filmed yet: "),
        f"{names}{more}. Make the videos with ",
        tag("code", f"hocket video {run.folder.parent.name}/{run.name}"),
        ", then this page with ",
        tag("code", f"hocket report {run.folder.parent.name}/{run.name}"),
        ".",
        class_="alert",
    )


def _card(run: RecordedRun, episode: Episode, file: str, anchor: str) -> Markup:
    trial, kind = episode.trial, episode.outcome.value
    words = f"seed {trial.seed} · {episode.steps:,} steps · {camera_name(file)}"
    text = join(
        tag("a", breakable(run.task_name(trial)), href=f"#{anchor}"),
        tag("div", tag("span", kind, class_=f"badge k-{kind}"), class_="sub"),
        tag("div", words, class_="sub"),
    )
    return screen(run, file, text, kind=kind)


def screen(run: RecordedRun, file: str, text: Markup, *, kind: str) -> Markup:
    """A video to be played, with what is said of it; `kind` is its outcome."""
    shown = player(file_link(file), run.folder / file)
    return tag("figure", shown, tag("figcaption", text), class_="card", data_outcome=kind)


def player(source: str, file: Path) -> Markup:
    """A video behind its poster, which is loaded once it is played."""
    video = tag(
        "video",
        src=source,
        controls=True,
        muted=True,
        playsinline=True,
        preload="none",
        poster=poster(file),
    )
    return tag("div", video, class_="screen")


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
