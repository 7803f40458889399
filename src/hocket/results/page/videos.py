"""Videos beside what came of their episodes."""

from __future__ import annotations

from hocket.core.data import Episode
from hocket.results.page.markup import Markup, breakable, file_link, join, tag
from hocket.results.page.outcomes import Listed, camera_name
from hocket.results.page.posters import poster
from hocket.results.page.recorded import RecordedRun
from hocket.results.page.shell import Section

_MOST_CARDS = 48
_MOST_POSTERS = 48


def video_section(run: RecordedRun, listed: Listed) -> Section | None:
    """A card for each video, in planned order; None where nothing was filmed."""
    filmed = [(e, file) for e in listed.episodes for file in run.videos(e)]
    if not filmed:
        return None
    cards = [
        _card(run, episode, file, listed.anchors[episode.trial], with_poster=place < _MOST_POSTERS)
        for place, (episode, file) in enumerate(filmed[:_MOST_CARDS])
    ]
    more = len(filmed) - len(cards)
    words = f"{more:,} more are linked in the table of episodes."
    note = tag("p", words, class_="note") if more else None
    body = join(tag("div", *cards, class_="gallery"), note)
    return Section(
        anchor="videos",
        title="Videos",
        lead="They lie beside this page and are loaded when they are played.",
        body=body,
    )


def _card(
    run: RecordedRun, episode: Episode, file: str, anchor: str, *, with_poster: bool
) -> Markup:
    trial, kind = episode.trial, episode.outcome.value
    player = tag(
        "video",
        src=file_link(file),
        controls=True,
        muted=True,
        playsinline=True,
        preload="none",
        poster=poster(run.folder / file) if with_poster else None,
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
