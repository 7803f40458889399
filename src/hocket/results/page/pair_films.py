"""The films of two runs side by side, pair by pair: on the page that compares them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from hocket.core.data import Trial
from hocket.records.folder import RunFolder
from hocket.results.comparing.compare import RunComparison, task_names
from hocket.results.comparing.side import Side
from hocket.results.page.markup import Markup, Section, breakable, join, tag
from hocket.results.page.videos import player
from hocket.workers.sinks.video import videos_in

_MOST_PAIRS = 40
"""Pairs on a page: each has a picture of every camera on both sides."""
_ORDER = ("only-a", "only-b", "error", "neither", "both", "pending")
"""Differing pairs first."""


def films_section(found: RunComparison, page: Path, kind: Callable[[Trial], str]) -> Section | None:
    """Both films of each pair that has one, for a page at the path `page`; None where no pair has
    any. `kind` is how a pair ended, as its cell says."""
    films = {t: (videos_of(found.a, t), videos_of(found.b, t)) for t in found.trials}
    shown = [trial for trial, some in films.items() if any(some)]
    if not shown:
        return None
    shown.sort(key=lambda trial: _ORDER.index(kind(trial)))
    names = task_names(found.trials)
    pairs = [
        _pair(found, names[trial], trial, kind(trial), films[trial], page)
        for trial in shown[:_MOST_PAIRS]
    ]
    differing = [t for t in found.trials if kind(t) in ("only-a", "only-b")]
    missing = sum(not all(films[trial]) for trial in differing)
    note = None
    if missing:
        note = tag(
            "p",
            f"Of {len(differing):,} pairs that differ, {missing:,} lack a film on one side at "
            "least. Make them with ",
            tag("code", "hocket video RUN --trial TRIAL"),
            ", then this page again.",
            class_="note",
        )
    left_out = len(shown) - len(pairs)
    more = tag("p", f"{left_out:,} more pairs have films.", class_="note") if left_out else None
    return Section(
        anchor="films",
        title="Films side by side",
        lead="Pairs that differ first; a is on the left. They are read from the run folders.",
        body=join(note, tag("div", *pairs), more),
    )


def videos_of(side: Side, trial: Trial) -> dict[str, Path]:
    """The videos of a trial's episode, by camera."""
    episode = side.episodes.get(trial)
    if episode is None:
        return {}
    return videos_in(RunFolder.at(side.folder).attempt(trial, episode.attempt))


def _pair(
    found: RunComparison,
    name: str,
    trial: Trial,
    kind: str,
    films: tuple[dict[str, Path], dict[str, Path]],
    page: Path,
) -> Markup:
    a, b = films
    rows = [
        tag(
            "div",
            _film(found.a, "a", trial, camera, a.get(camera), page),
            _film(found.b, "b", trial, camera, b.get(camera), page),
            class_="gallery",
        )
        for camera in dict.fromkeys([*a, *b])
    ]
    head = tag("h3", tag("i", class_=f"swatch k-{kind}"), " ", f"{name}, seed {trial.seed}")
    return tag("div", head, *rows, class_="pair")


def _film(
    side: Side, letter: str, trial: Trial, camera: str, video: Path | None, page: Path
) -> Markup:
    episode = side.episodes.get(trial)
    outcome = "not run yet" if episode is None else episode.outcome.value
    steps = "" if episode is None else f" · {episode.steps:,} steps"
    text = tag(
        "figcaption",
        breakable(f"{letter}: {side.name}"),
        tag("div", f"{outcome}{steps} · {camera}", class_="sub"),
    )
    if video is None:
        command = f"hocket video {side.folder.parent.name}/{side.name} --trial {trial.id}"
        return tag("figure", tag("p", "no film: ", tag("code", command)), text, class_="card")
    source = quote(Path(os.path.relpath(video, page.parent)).as_posix())
    return tag("figure", player(source, video), text, class_="card")
