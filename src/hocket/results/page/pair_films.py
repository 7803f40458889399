"""The films of two runs side by side, pair by pair: on the page that compares them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hocket.core.data import Trial
from hocket.records.folder import RunFolder
from hocket.records.step_rows import KeptStates
from hocket.results.comparing.compare import RunComparison, task_names
from hocket.results.comparing.side import Side
from hocket.results.page.document import as_json
from hocket.results.page.look import looks_into
from hocket.results.page.videos import poster
from hocket.results.page.widgets import Widget, code, note, section
from hocket.workers.sinks.video import videos_in

_MOST_PAIRS = 40
"""Pairs on a page: each has a picture of every camera on both sides."""
_MOST_INSIDE, _INSIDE = 200, 8 << 20
"""Pairs that a page looks inside of, and the bytes that this may take."""
_ORDER = ("only-a", "only-b", "error", "neither", "both", "pending")
"""Differing pairs first."""


def films_section(found: RunComparison, page: Path, kinds: Mapping[Trial, str]) -> Widget | None:
    """Both films of each pair that has one, for a page at the path `page`; None where no pair has
    any. `kinds` says how each pair ended."""
    films = {t: (videos_of(found.a, t), videos_of(found.b, t)) for t in found.trials}
    shown = [trial for trial, some in films.items() if any(some)]
    if not shown:
        return None
    shown.sort(key=lambda trial: _ORDER.index(kinds[trial]))
    names, cells = task_names(found.trials), {t: cell for cell, t in enumerate(found.trials)}
    sides = [(side, KeptStates(side.folder)) for side in (found.a, found.b)]
    pairs = [
        {
            "draw": "pair",
            "kind": kinds[trial],
            "name": f"{names[trial]}, seed {trial.seed}",
            "cell": cells.get(trial),
            "films": _films(sides, trial, films[trial], page),
        }
        for trial in shown[:_MOST_PAIRS]
    ]
    differing = [t for t in found.trials if kinds[t] in ("only-a", "only-b")]
    missing = sum(
        any(
            not film and _can_be_made(*side, trial)
            for side, film in zip(sides, films[trial], strict=True)
        )
        for trial in differing
    )
    lack = None
    if missing:
        lack = note(
            f"Of {len(differing):,} pairs that differ, {missing:,} lack a film on one side at "
            "least that can be made. Make them with ",
            code("hocket video RUN TRIAL"),
            ", then this page again.",
        )
    left_out = len(shown) - len(pairs)
    more = note(f"{left_out:,} more pairs have films.") if left_out else None
    lead = "Pairs that differ first; a is on the left. They are read from the run folders."
    return section("films", "Films side by side", lack, *pairs, more, lead=lead)


def pairs_of(found: RunComparison, page: Path, kinds: Mapping[Trial, str]) -> dict[int, Any]:
    """Both sides of pairs, by cell, to be looked into in step: those that differ first, as many as
    there is room for in one page."""
    cells = {trial: cell for cell, trial in enumerate(found.trials)}
    first = sorted(found.trials, key=lambda trial: _ORDER.index(kinds[trial]))
    both = [t for t in first if t in found.a.episodes and t in found.b.episodes][:_MOST_INSIDE]
    sides, room = [], _INSIDE
    for side in (found.a, found.b):
        made = [(trial, side.episodes[trial].attempt) for trial in both]
        is_kept = made and RunFolder.at(side.folder).ledger.exists()
        inside = looks_into(side.folder, made) if is_kept else iter(())
        sides.append({trial: look for (trial, _), look in inside})
    shown: dict[int, Any] = {}
    for trial in both:
        looks = [known[trial] for known in sides if trial in known]
        room -= sum(len(as_json(look)) for look in looks)
        if len(looks) == 2 and room > 0:
            shown[cells[trial]] = [
                {
                    "name": side.name,
                    "films": [_link(video, page) for video in videos_of(side, trial).values()],
                    "look": look,
                }
                for side, look in zip((found.a, found.b), looks, strict=True)
            ]
    return shown


def _link(video: Path, page: Path) -> str:
    return quote(Path(os.path.relpath(video, page.parent)).as_posix())


def videos_of(side: Side, trial: Trial) -> dict[str, Path]:
    """The videos of a trial's episode, by camera."""
    episode = side.episodes.get(trial)
    if episode is None:
        return {}
    return videos_in(RunFolder.at(side.folder).attempt(trial, episode.attempt))


def _can_be_made(side: Side, states: KeptStates, trial: Trial) -> bool:
    """True if a trial's episode can be filmed now."""
    episode = side.episodes.get(trial)
    return episode is not None and states.can_show(episode)


def _films(
    sides: Sequence[tuple[Side, KeptStates]],
    trial: Trial,
    films: tuple[dict[str, Path], dict[str, Path]],
    page: Path,
) -> list[Widget]:
    """For each camera the film of a and that of b, or what makes it."""
    found = []
    for camera in dict.fromkeys([*films[0], *films[1]]):
        for (side, states), letter, some in zip(sides, "ab", films, strict=True):
            episode, video = side.episodes.get(trial), some.get(camera)
            outcome = "not run yet" if episode is None else episode.verdict
            steps = "" if episode is None else f" · {episode.steps:,} steps"
            one: Widget = {
                "who": f"{letter}: {side.name}",
                "told": f"{outcome}{steps} · {camera}",
            }
            if video is not None:
                one |= {"source": _link(video, page), "poster": poster(video)}
            elif _can_be_made(side, states, trial):
                place = f"{side.folder.parent.name}/{side.name}"
                one["make"] = f"hocket video {place} {trial.id}"
            found.append(one)
    return found
