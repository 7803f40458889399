"""How episodes of a task, a suite or a run went, as values and as a table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hocket.core.data import Array, Episode, Outcome
from hocket.records.ledger.episodes import OUTCOMES, Episodes, Trials
from hocket.results import stats
from hocket.results.stats import Grouping
from hocket.results.tables import (
    UNDEFINED,
    ResultTable,
    TableRow,
    interval_text,
    number,
    percent,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How episodes of a task, a suite or a run went. `suite` and `task` are None where the
    episodes are of several."""

    suite: str | None
    task: str | None
    n: int
    """Episodes that ended without an error."""
    finished: int
    """How many of `n` had nothing to succeed at; the rate is over the others."""
    success: stats.Rate
    steps: stats.Mean
    """Undefined where the score is mixed: its n would be another than the rate's."""
    returns: stats.Mean
    """Undefined where the score is mixed or the episodes are of several suites: returns of unlike
    envs have no mean."""
    progress: stats.Mean
    """Of the episodes that told how far they came: shares of subgoals, or scores, 0 to 1."""

    @classmethod
    def of(
        cls,
        some: Iterable[Episode],
        rows: Array | None = None,
        *,
        suite: str | None = None,
        task: str | None = None,
        independent: bool = False,
    ) -> Score:
        """The score of episodes, or of those in some `rows`, errors counted apart. Those of one
        seed start alike, unless tasks are `independent`."""
        episodes = Episodes.of(some)
        known = episodes.columns
        rows = np.arange(len(episodes)) if rows is None else rows
        outcome = known["outcome"][rows]
        ended = rows[outcome != _ERROR]
        finished = int((outcome == _FINISHED).sum())
        unmixed = ended if finished in (0, len(ended)) else ended[:0]
        suites = {
            episodes.trials.kinds[kind][0] for kind in np.unique(episodes.trials.kind[unmixed])
        }
        alike = unmixed if len(suites) <= 1 else ended[:0]
        told, shared = rows[outcome != _FINISHED], (episodes.trials, independent)
        far = ended[~np.isnan(known["progress"][ended])]
        progress = _mean(known["progress"], far, *shared)
        if progress.interval is not None:
            within = stats.clipped(progress.interval, 0.0, 1.0)
            progress = dataclasses.replace(progress, interval=within)
        return cls(
            suite=suite,
            task=task,
            n=len(ended),
            finished=finished,
            success=rate_of_trials(
                _VALUE_OF[known["outcome"][told]],
                *_tasks_and_seeds(episodes.trials, told),
                independent=independent,
            ),
            steps=stats.mean(known["steps"][unmixed]),
            returns=_mean(known["total_reward"], alike, *shared),
            progress=progress,
        )

    @property
    def is_mixed(self) -> bool:
        """True if some episodes could succeed and others had nothing to succeed at."""
        return 0 < self.finished < self.n

    @property
    def errors(self) -> int:
        """Trials that no attempt brought to an end."""
        return self.success.errors

    @property
    def rate(self) -> float | None:
        """Success rate; None where nothing could succeed."""
        return self.success.value

    @property
    def rate_errors_as_failures(self) -> float | None:
        """The rate if every error had been a failure; None where nothing could succeed."""
        return None if self.finished and not self.success.n else self.success.errors_as_failures

    def to_json(self) -> dict[str, Any]:
        """A flat mapping of numbers, None where one is undefined."""
        names = {"suite": self.suite, "task": self.task}
        return {
            **{key: value for key, value in names.items() if value is not None},
            "n": self.n,
            "successes": self.success.successes,
            "finished": self.finished,
            "rate": self.rate,
            "interval": bounds(self.success.interval),
            "errors": self.errors,
            "rate_errors_as_failures": self.rate_errors_as_failures,
            "mean_steps": self.steps.value,
            "mean_return": self.returns.value,
            "return_interval": bounds(self.returns.interval),
            **(
                {
                    "progress": self.progress.value,
                    "progress_interval": bounds(self.progress.interval),
                    "progress_n": self.progress.n,
                }
                if self.progress.n
                else {}
            ),
        }


def rate_of_trials(
    values: Array, tasks: Array, seeds: Array, *, independent: bool = False
) -> stats.Rate:
    """The success rate of trials of which each task counts once: 1 is a success, 0 a failure, NaN
    an error. Where some start alike, the interval is that of as many trials as they are worth."""
    is_judged = ~np.isnan(values)
    counts = [
        np.bincount(tasks, weights).astype(int).tolist()
        for weights in (values == 1, is_judged, ~is_judged)
    ]
    found = stats.rate_of_tasks(
        [stats.rate(won, n, errors=errors) for won, n, errors in zip(*counts, strict=True)]
    )
    if found.interval is None or found.value is None:
        return found
    grouping = Grouping.of(tasks[is_judged], seeds[is_judged], independent=independent)
    if not grouping.is_shared:
        return found
    worth = grouping.effective(values[is_judged])
    ours = stats.wilson(found.value * worth, worth)
    assert ours is not None
    low, high = ours.low, ours.high
    if found.interval.method == stats.UNEVEN:
        low, high = min(low, found.interval.low), max(high, found.interval.high)
    shared = dataclasses.replace(ours, low=low, high=high, method=BY_SEED)
    return dataclasses.replace(found, interval=shared)


VALUES = {Outcome.SUCCESS: 1.0, Outcome.FAILURE: 0.0, Outcome.ERROR: math.nan}
"""What a trial with this outcome counts in a rate; where there is nothing to succeed at, it is no
part of it."""
_VALUE_OF = np.array([VALUES.get(outcome, math.nan) for outcome in OUTCOMES])
_ERROR, _FINISHED = OUTCOMES.index(Outcome.ERROR), OUTCOMES.index(Outcome.FINISHED)
BY_SEED = "by seed"
"""The method of intervals that allow for trials that start alike."""


def _mean(column: Array, rows: Array, trials: Trials, independent: bool) -> stats.Mean:  # noqa: FBT001
    """The mean of a column over some rows, with an interval that allows for starts that they
    share."""
    values = column[rows]
    found = stats.mean(values)
    if found.interval is None or found.value is None:
        return found
    grouping = Grouping.of(*_tasks_and_seeds(trials, rows), independent=independent)
    if not grouping.is_shared:
        return found
    interval = stats.t_interval(found.value, *grouping.variance(values), level=found.interval.level)
    return dataclasses.replace(found, interval=interval)


def _tasks_and_seeds(trials: Trials, rows: Array) -> tuple[Array, Array]:
    return np.unique(trials.kind[rows], return_inverse=True)[1], trials.seed[rows]


def score_table(
    overall: Score, suites: Sequence[Score], tasks: Sequence[Score], *, footer: str = ""
) -> ResultTable:
    """Each suite with its tasks below, then all together; columns that say nothing are left out."""
    columns = [column for column in _COLUMNS if column.wanted([overall, *suites, *tasks])]

    def row(name: str | None, kind: Literal["group", "item", "total"], score: Score) -> TableRow:
        cells = tuple(column.cell(score) for column in columns)
        return TableRow(name=name or "", kind=kind, cells=cells)

    rows = []
    for suite in suites:
        rows.append(row(suite.suite, "group", suite))
        rows += [row(task.task, "item", task) for task in tasks if task.suite == suite.suite]
    rows.append(row("overall", "total", overall))
    headings = ("task", *(column.heading for column in columns))
    return ResultTable(columns=headings, rows=tuple(rows), footer=footer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    heading: str
    cell: Callable[[Score], str]
    wanted: Callable[[Sequence[Score]], bool] = lambda scores: True


def _is_judged(scores: Sequence[Score]) -> bool:
    return any(score.n > score.finished or not score.n for score in scores)


_COLUMNS = (
    _Column(heading="n", cell=lambda score: f"{score.success.n or score.n:,}"),
    _Column(
        heading="success",
        cell=lambda score: percent(score.rate),
        wanted=_is_judged,
    ),
    _Column(
        heading="95 % interval",
        cell=lambda score: interval_text(score.success.interval),
        wanted=_is_judged,
    ),
    _Column(
        heading="mean\nreturn",
        cell=lambda score: number(score.returns.value),
        wanted=lambda scores: any(score.finished for score in scores),
    ),
    _Column(
        heading="95 % interval\nof return",
        cell=lambda score: interval_text(score.returns.interval, percents=False),
        wanted=lambda scores: scores[0].n > 0 and scores[0].n == scores[0].finished,
    ),
    _Column(
        heading="progress",
        cell=lambda score: percent(score.progress.value),
        wanted=lambda scores: any(score.progress.n for score in scores),
    ),
    _Column(
        heading="95 % interval\nof progress",
        cell=lambda score: interval_text(score.progress.interval),
        wanted=lambda scores: any(score.progress.n for score in scores),
    ),
    _Column(
        heading="mean\nsteps",
        cell=lambda score: UNDEFINED if score.steps.value is None else f"{score.steps.value:,.1f}",
    ),
    _Column(heading="errors", cell=lambda score: f"{score.errors:,}"),
    _Column(
        heading="rate if\nerrors\nfailed",
        cell=lambda score: percent(score.rate_errors_as_failures) if score.errors else "",
        wanted=lambda scores: any(
            score.errors and score.rate_errors_as_failures is not None for score in scores
        ),
    ),
)


def bounds(interval: stats.Interval | None) -> list[float] | None:
    """An interval's ends, as JSON has them; None where it is undefined."""
    return None if interval is None else [interval.low, interval.high]
