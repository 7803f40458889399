"""How each episode ended: a grid of tasks and seeds, the table that it leads to, videos and errors.

The bounds on how much is shown are chosen by hand, so that a page of 100,000 episodes stays a
page that a browser opens at once.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from hocket.core.data import Episode, Outcome, Trial
from hocket.results.page.charts import LONG, legend
from hocket.results.page.markup import Markup, Section, breakable, file_link, join, tag
from hocket.results.recorded import RecordedRun
from hocket.results.tables import number

MOST_CELLS = 2500
"""Trials in a grid with a cell for each; in a larger one a cell holds several."""
MOST_ROWS = 1500
"""Lines of the table of episodes."""
MOST_TASKS = 120
"""Tasks in a chart or grid; of more, those that did worst are shown."""
_POOLS = 50
"""Cells of a row that holds several trials in each."""
_ALIGNED = 60
"""Columns of a grid that still fit below their seeds."""
_MOST_FAULTS = 20
_LONGEST_TRACE = 8000
"""Characters of an error that are shown."""
_MOST_CARDS = 48
_NAMED = 6
"""Trials that are named where only some can be."""
_POSTER_WIDTH = 320


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The episodes that the table shows, each with its anchor."""

    episodes: tuple[Episode, ...]
    anchors: Mapping[Trial, str]

    @classmethod
    def of(cls, run: RecordedRun) -> Listed:
        """All episodes; where there are very many, those that tell most: errors, those with videos,
        failures."""
        episodes = list(run.report.episodes)
        anchors = {episode.trial: f"e{index}" for index, episode in enumerate(episodes)}
        if len(episodes) > MOST_ROWS:
            urgent = sorted(range(len(episodes)), key=lambda i: (_urgency(episodes[i]), i))
            episodes = [episodes[i] for i in sorted(urgent[:MOST_ROWS])]
        kept = {episode.trial: anchors[episode.trial] for episode in episodes}
        return cls(episodes=tuple(episodes), anchors=kept)


def _urgency(episode: Episode) -> int:
    if episode.outcome is Outcome.ERROR:
        return 0
    if any(file.endswith(".mp4") for file in episode.files):
        return 1
    return 2 if episode.outcome is Outcome.FAILURE else 3


def shown_tasks(run: RecordedRun) -> list[tuple[str, str]]:
    """Suite and task of each row, in planned order; where there are very many tasks, of those that
    did worst."""
    scores = list(run.report.tasks)
    if len(scores) > MOST_TASKS:
        worst = sorted(scores, key=lambda s: (s.rate is None, s.rate or 0.0))[:MOST_TASKS]
        kept = {(score.suite, score.task) for score in worst}
        scores = [score for score in scores if (score.suite, score.task) in kept]
    return [(score.suite or "", score.task or "") for score in scores]


def outcome_grid(run: RecordedRun, listed: Listed) -> Markup:
    """A row for each task, a cell for each trial, or for several where they are many."""
    ended = {episode.trial: episode for episode in run.report.episodes}
    rows: dict[tuple[str, str], list[Trial]] = {key: [] for key in shown_tasks(run)}
    for trial in run.trials:
        if (trial.suite, trial.task) in rows:
            rows[trial.suite, trial.task].append(trial)
    columns = sorted({(trial.seed, trial.repeat) for some in rows.values() for trial in some})
    together = sum(map(len, rows.values())) > MOST_CELLS
    aligned = not together and len(columns) <= _ALIGNED
    lines = [_heads([seed for seed, _ in columns])] if aligned else []
    for some in rows.values():
        some.sort(key=lambda trial: (trial.seed, trial.repeat))
        if together:
            size = max(1, -(-len(some) // _POOLS))
            cells = [_pool(some[i : i + size], ended) for i in range(0, len(some), size)]
        else:
            cells = [_cell(run, trial, ended.get(trial), listed.anchors) for trial in some]
        width = None
        if aligned:
            at = {column: index for index, column in enumerate(columns)}
            cells = _spread(cells, [at[trial.seed, trial.repeat] for trial in some])
            width = _width(len(columns))
        name = run.task_name(some[0]) if some else ""
        label = tag("div", breakable(name), class_="grid-label", title=name)
        kind = "cells aligned" if aligned else "cells"
        lines.append(tag("div", label, tag("div", *cells, class_=kind, style=width), class_="g"))
    kind = "grid pooled" if together else "grid"
    kind += " scroll long" if len(rows) > LONG else ""
    return join(tag("div", *lines, class_=kind), _key(run, together=together))


def _heads(seeds: Sequence[int]) -> Markup:
    """The seeds above their columns, or every fifth seed where there are many."""
    every = 1 if len(seeds) <= 12 else 5
    texts = [
        tag("span", str(seed) if index % every == 0 else None) for index, seed in enumerate(seeds)
    ]
    cells = tag("div", *texts, class_="cells aligned heads", style=_width(len(seeds)))
    return tag("div", tag("div"), cells, class_="g", aria_hidden="true")


def _width(columns: int) -> str:
    return f"--n:{max(columns, 12)}"


def _key(run: RecordedRun, *, together: bool) -> Markup:
    entries = [(kind, name, f"{count:,}") for name, (kind, count) in outcome_counts(run).items()]
    note = "A cell holds several trials: the fuller its colour, the more of them succeeded."
    return join(legend(entries), tag("p", note, class_="note") if together else None)


def outcome_counts(run: RecordedRun) -> dict[str, tuple[str, int]]:
    """The colour and the number of trials of each outcome that occurred, in the order in which
    outcomes are always shown, and of trials that have none yet."""
    counts = Counter(episode.outcome.value for episode in run.report.episodes)
    found = {kind: (kind, counts[kind]) for kind in _order(counts)}
    left = run.report.planned - len(run.report.episodes)
    return {**found, "not run yet": ("pending", left)} if left else found


def _order(counts: Mapping[str, int]) -> list[str]:
    return [outcome.value for outcome in Outcome if counts.get(outcome.value)]


def _cell(
    run: RecordedRun, trial: Trial, episode: Episode | None, anchors: Mapping[Trial, str]
) -> Markup:
    seed = f"seed {trial.seed}" + (f", repeat {trial.repeat}" if trial.repeat else "")
    if episode is None:
        return tag("span", class_="k-pending", title=f"{run.task_name(trial)}, {seed}: not run yet")
    words = f"{run.task_name(trial)}, {seed}: {episode.outcome.value}, {episode.steps:,} steps"
    kind = f"k-{episode.outcome.value}"
    if trial not in anchors:
        return tag("span", class_=kind, title=words)
    return tag("a", class_=kind, title=words, href=f"#{anchors[trial]}", aria_label=words)


def _spread(cells: Sequence[Markup], columns: Sequence[int]) -> list[Markup]:
    """The cells under the columns of their seeds, with gaps where a task has no such seed."""
    filled: list[Markup] = []
    for cell, column in zip(cells, columns, strict=True):
        filled += [tag("span")] * (column - len(filled))
        filled.append(cell)
    return filled


def _pool(trials: Sequence[Trial], ended: Mapping[Trial, Episode]) -> Markup:
    counts = Counter(ended[trial].outcome for trial in trials if trial in ended)
    judged = counts[Outcome.SUCCESS] + counts[Outcome.FAILURE]
    seeds = f"seeds {trials[0].seed} to {trials[-1].seed}"
    words = ", ".join(f"{count:,} {outcome.value}" for outcome, count in counts.items())
    title = f"{seeds}: {words or 'not run yet'}"
    if judged:
        share = f"--share:{100 * counts[Outcome.SUCCESS] / judged:.0f}%"
        return tag("span", class_="k-share", style=share, title=title)
    kind = "finished" if counts[Outcome.FINISHED] else "error" if counts else "pending"
    return tag("span", class_=f"k-{kind}", title=title)


def episode_table(run: RecordedRun, listed: Listed) -> Markup:
    """A line for each listed episode; the script above it filters."""
    heads = ("task", "seed", "outcome", "steps", "return", "chunks", "seconds", "attempts", "video")
    numbers = {"seed", "steps", "return", "chunks", "seconds", "attempts"}
    head = tag("tr", *(tag("th", name, class_="n" if name in numbers else None) for name in heads))
    rows = [_line(run, episode, listed.anchors[episode.trial]) for episode in listed.episodes]
    total = len(run.report.episodes)
    note = None
    if total > len(rows):
        note = tag(
            "p",
            f"{len(rows):,} of {total:,} are listed: errors first, then those with videos, then "
            "failures. All of them are in report.json and ledger.sqlite.",
            class_="note",
        )
    table = tag("table", tag("thead", head), tag("tbody", *rows), id="episodes-table")
    return join(_filters(listed), tag("div", table, class_="scroll tall"), note)


def _filters(listed: Listed) -> Markup:
    counts = Counter(episode.outcome.value for episode in listed.episodes)
    chips = [
        tag("button", tag("i", class_=f"swatch k-{kind}"), kind, type="button", data_filter=kind,
            aria_pressed="true")
        for kind in _order(counts)
    ]  # fmt: skip
    search = tag(
        "input", type="search", id="find", placeholder="find a task or seed", aria_label="Find"
    )
    count = tag("output", f"{len(listed.episodes):,} episodes", id="count")
    return tag("div", *chips, search, count, class_="filters")


def _line(run: RecordedRun, episode: Episode, anchor: str) -> Markup:
    trial = episode.trial
    seed = f"{trial.seed}.{trial.repeat}" if trial.repeat else str(trial.seed)
    kind = episode.outcome.value
    caption = f"{run.task_name(trial)}, seed {trial.seed}: {kind}"
    videos = [
        tag("a", camera_name(file), href=file_link(file), class_="film",
            data_caption=caption)
        for file in run.videos(episode)
    ]  # fmt: skip
    reward = None if episode.total_reward != episode.total_reward else episode.total_reward
    return tag(
        "tr",
        tag("td", breakable(run.task_name(trial))),
        tag("td", seed, class_="n"),
        tag("td", tag("span", kind, class_=f"badge k-{kind}")),
        tag("td", f"{episode.steps:,}", class_="n"),
        tag("td", number(reward), class_="n"),
        tag("td", f"{episode.chunks:,}", class_="n"),
        tag("td", f"{episode.seconds:,.1f}", class_="n"),
        tag("td", str(episode.attempt + 1), class_="n"),
        tag("td", *videos),
        id=anchor,
        data_outcome=kind,
    )


def camera_name(file: str) -> str:
    """The camera that a video file is named after."""
    return file.rpartition("/")[2].removesuffix(".mp4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of error, however often it happened."""

    text: str
    attempts: int
    """How many attempts were lost to it."""
    trials: tuple[Trial, ...]
    """The trials that it hit, in planned order."""
    ended: int
    """How many of these trials ended as ERROR."""

    @property
    def headline(self) -> str:
        """The line that says most: the last one of a traceback that is not indented, or else the
        first line."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        if not any("Traceback" in line for line in lines):
            return lines[0] if lines else "no message"
        return next((line for line in reversed(lines) if not line.startswith(" ")), lines[-1])


def faults_of(run: RecordedRun) -> list[Fault]:
    """The errors that attempts were lost to, alike ones together, the most frequent first."""
    ended = {e.trial for e in run.report.episodes if e.outcome is Outcome.ERROR}
    hits = [(failure.trial, failure.error) for failure in run.failures]
    known = {trial for trial, _ in hits}
    # Without a ledger, or where the last attempt never was lost, the episode alone tells.
    hits += [
        (episode.trial, episode.error or "no message")
        for episode in run.report.episodes
        if episode.trial in ended and episode.trial not in known
    ]
    kinds: dict[str, list[tuple[Trial, str]]] = {}
    for trial, text in hits:
        # Alike errors differ in numbers and addresses.
        kinds.setdefault(re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text), []).append((trial, text))
    faults = [
        Fault(
            text=some[0][1],
            attempts=len(some),
            trials=tuple(dict.fromkeys(trial for trial, _ in some)),
            ended=len(ended & {trial for trial, _ in some}),
        )
        for some in kinds.values()
    ]
    return sorted(faults, key=lambda fault: -fault.attempts)


def fault_section(run: RecordedRun, listed: Listed) -> Section | None:
    """What went wrong, each kind of error once; None where nothing did."""
    faults = faults_of(run)
    if not faults:
        return None
    attempts = sum(fault.attempts for fault in faults)
    kinds = "one kind" if len(faults) == 1 else f"{len(faults):,} kinds"
    lead = f"{_some(attempts, 'attempt')} lost to {kinds} of error. Alike ones are shown once."
    items = [
        _fault(fault, listed, is_open=index == 0)
        for index, fault in enumerate(faults[:_MOST_FAULTS])
    ]
    more = len(faults) - len(items)
    note = tag("p", f"{more:,} rarer kinds are in ledger.sqlite.", class_="note") if more else None
    return Section(anchor="errors", title="Errors", body=tag("div", *items, note), lead=lead)


def _fault(fault: Fault, listed: Listed, *, is_open: bool) -> Markup:
    hit = [
        tag("a", trial.id, href=f"#{listed.anchors[trial]}")
        if trial in listed.anchors
        else tag("span", trial.id)
        for trial in fault.trials[:6]
    ]
    trials = [piece for link in hit for piece in (link, ", ")][:-1]
    more = len(fault.trials) - len(hit)
    counts = f"{_some(fault.attempts, 'attempt')} at {_some(len(fault.trials), 'trial')}, "
    counts += f"{fault.ended:,} of which ended as error"
    text = fault.text
    if len(text) > _LONGEST_TRACE:
        text = f"{text[: _LONGEST_TRACE // 2]}\n  ...\n{text[-_LONGEST_TRACE // 2 :]}"
    return tag(
        "details",
        tag("summary", tag("code", fault.headline[:300]), tag("small", counts)),
        tag("p", *trials, f" and {more:,} more" if more else None, class_="note"),
        tag("pre", text.strip("\n")),
        open=is_open,
    )


def _some(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


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
        tag("b", f"{_some(len(missing), 'episode')} not filmed yet: "),
        f"{names}{more}. Make the videos with ",
        tag("code", f"hocket video {run.folder.parent.name}/{run.name}"),
        ", then this page with ",
        tag("code", f"hocket report {run.folder.parent.name}/{run.name}"),
        ".",
        class_="alert",
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
