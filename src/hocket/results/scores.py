"""How episodes of a task, a suite or a run went, as values and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hocket.core.data import Episode, Outcome
from hocket.results import stats
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

    @classmethod
    def of(
        cls, episodes: Iterable[Episode], *, suite: str | None = None, task: str | None = None
    ) -> Score:
        """The score of episodes, errors counted apart."""
        everything = list(episodes)
        ended = [e for e in everything if e.outcome is not Outcome.ERROR]
        finished = sum(e.outcome is Outcome.FINISHED for e in ended)
        unmixed = ended if finished in (0, len(ended)) else []
        alike = unmixed if len({e.trial.suite for e in unmixed}) <= 1 else []
        return cls(
            suite=suite,
            task=task,
            n=len(ended),
            finished=finished,
            success=stats.rate_of_tasks(_rates(everything)),
            steps=stats.mean([e.steps for e in unmixed]),
            returns=stats.mean([e.total_reward for e in alike]),
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
        }


def _rates(episodes: Sequence[Episode]) -> list[stats.Rate]:
    """The success rate of each task among these episodes."""
    counts: dict[tuple[str, str], Counter[Outcome]] = {}
    for episode in episodes:
        task = (episode.trial.suite, episode.trial.task)
        counts.setdefault(task, Counter())[episode.outcome] += 1
    won, lost, error = Outcome.SUCCESS, Outcome.FAILURE, Outcome.ERROR
    return [stats.rate(of[won], of[won] + of[lost], errors=of[error]) for of in counts.values()]


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
