"""How each episode ended: a grid of tasks and seeds, and the table that it leads to.

The bounds on how much is shown keep a page of 100,000 episodes one that a browser opens at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hocket.core.data import Episode, Outcome, Trial
from hocket.results.page.charts import LONG, legend
from hocket.results.page.markup import Markup, breakable, file_link, join, table, tag
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
    key = [(kind, name, f"{count:,}") for name, (kind, count) in outcome_counts(run).items()]
    note = "A cell holds several trials: the fuller its colour, the more of them succeeded."
    return join(
        tag("div", *lines, class_=kind),
        legend(key),
        tag("p", note, class_="note") if together else None,
    )


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
    shown = table(heads, rows, numbers=numbers, id="episodes-table")
    return join(_filters(listed), tag("div", shown, class_="scroll tall"), note)


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
