"""What latency costs: runs with several delays on the same trials, in one report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.data import Outcome
from hocket.results import stats
from hocket.results.comparing.paired import Difference, compare_rates
from hocket.results.motion import Motion
from hocket.results.page.charts import IntervalRow, interval_chart
from hocket.results.page.markup import Markup, Section, document, join, tag
from hocket.results.report import Report
from hocket.results.tables import ResultTable, TableRow, number, percent, percent_range
from hocket.system.durable import write_atomic

_TICKS = [(share / 4, f"{25 * share} %") for share in range(5)]
_JUDGED = (Outcome.SUCCESS, Outcome.FAILURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayPoint:
    """One delay of a sweep."""

    delay: str
    """As it was asked for."""
    success: stats.Rate
    loss: Difference | None
    """Success against that without a delay, on the trials that both have; None for the run without
    a delay, and where there is none."""
    robot_s: stats.Mean
    """Seconds of robot time until success, of the episodes that succeeded: control steps by the
    env's control rate. Undefined where that is not known."""
    motion: Motion | None
    """How the robot moved; None where steps were not recorded."""

    @property
    def is_worse(self) -> bool:
        """Whether success is lower than without a delay, at p < 0.05."""
        loss = self.loss
        if loss is None or loss.value is None or loss.p_value is None:
            return False
        return loss.value < 0 and loss.p_value < 1 - stats.LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayReport:
    """Success against delay."""

    method: str
    points: tuple[DelayPoint, ...]

    @classmethod
    def build(
        cls,
        method: str,
        reports: Mapping[str, Report],
        motions: Mapping[str, Motion],
        rates: Mapping[tuple[str, str], float | None],
    ) -> DelayReport:
        """Put the reports of one sweep, by delay, side by side. `rates` are the control rates of
        the tasks, by suite and name."""
        base = next((report for name, report in reports.items() if _is_zero(name)), None)
        points = []
        for name, report in reports.items():
            seconds = [
                episode.steps / rate
                for episode in report.episodes
                if episode.outcome is Outcome.SUCCESS
                and (rate := rates.get((episode.trial.suite, episode.trial.task)))
            ]
            points.append(
                DelayPoint(
                    delay=name,
                    success=report.overall.success,
                    loss=None if base is None or report is base else paired(report, base),
                    robot_s=stats.mean(seconds),
                    motion=motions.get(name),
                )
            )
        return cls(method=method, points=tuple(points))

    @property
    def tolerated(self) -> str | None:
        """The largest delay up to which none lost significantly; None where nothing can be said:
        without a run that has no delay, or where the first one lost already."""
        found = None
        for point in self.points:
            if point.is_worse:
                break
            if point.loss is not None:
                found = point.delay
        return found

    @property
    def sentence(self) -> str:
        compared = [point for point in self.points if point.loss is not None]
        if not compared:
            return "There is no run without a delay to compare with: add 0 to --delay."
        n = min(point.loss.n for point in compared if point.loss is not None)
        if self.tolerated is None:
            first = compared[0].delay
            return f"A delay of {first} loses significantly already (McNemar, n = {n:,} pairs)."
        return (
            f"The largest delay without a significant loss is {self.tolerated} (McNemar against no "
            f"delay, n = {n:,} pairs, p < 0.05 each, not corrected for their number)."
        )

    def table(self) -> ResultTable:
        columns = (
            "delay",
            "n",
            "success",
            "95 %",
            "loss",
            "p",
            "age\n(steps)",
            "jump",
            "within\nchunks",
            "jerk",
            "robot s",
        )
        rows = tuple(TableRow(name=p.delay, cells=_cells(p), kind="group") for p in self.points)
        return ResultTable(columns=columns, rows=rows, footer=self.sentence)

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        points = [dataclasses.asdict(point) for point in self.points]
        return {"method": self.method, "tolerated": self.tolerated, "points": points}

    def save(self, folder: Path) -> None:
        """Write `delays.json` and `delays.html` into the folder that holds the runs' folders."""
        write_atomic(folder / "delays.json", json.dumps(self.to_json(), indent=2).encode())
        write_atomic(folder / "delays.html", self.page(folder.name).encode())

    def page(self, title: str) -> str:
        """The report as a page: a chart of success against delay, and the table."""
        links = join(
            tag("li", tag("a", f"delay {point.delay}", href=f"{job_name(point.delay)}/report.html"))
            for point in self.points
        )
        sections = [
            Section(
                anchor="success",
                title="Success against delay",
                lead="Dots are rates, bars their 95 % intervals, on the same trials.",
                body=interval_chart(
                    [_row(point) for point in self.points], low=0.0, high=1.0, ticks=_TICKS
                ),
            ),
            Section(anchor="numbers", title="Numbers", body=Markup(self.table().html())),
            Section(anchor="runs", title="Runs", body=tag("ul", links)),
        ]
        head = tag("p", self.sentence, class_="big-note")
        kicker = f"hocket eval --delay, --method {self.method}"
        return document(title=title, kicker=kicker, head=head, sections=sections)


def job_name(delay: str) -> str:
    """The name of the run with this delay, as a folder's."""
    return "delay-" + "".join(c if c.isalnum() or c in ".-" else "_" for c in delay)


def _is_zero(delay: str) -> bool:
    return delay.removesuffix("ms").strip("0.") == "" and delay[:1] == "0"


def paired(report: Report, base: Report) -> Difference:
    """Success in one run less that in another, on the trials that both judged."""
    others = {e.trial: e.outcome for e in base.episodes if e.outcome in _JUDGED}
    pairs = [
        (e.outcome is Outcome.SUCCESS, others[e.trial] is Outcome.SUCCESS, e.trial)
        for e in report.episodes
        if e.outcome in _JUDGED and e.trial in others
    ]
    ours, theirs = np.array([p[0] for p in pairs], bool), np.array([p[1] for p in pairs], bool)
    tasks = [f"{trial.suite}/{trial.task}" for _, _, trial in pairs]
    return compare_rates(ours, theirs, tasks).overall


def _cells(point: DelayPoint) -> tuple[str, ...]:
    success, loss, motion = point.success, point.loss, point.motion
    interval = success.interval
    return (
        f"{success.n:,}",
        percent(success.value),
        "" if interval is None else percent_range(interval.low, interval.high),
        "" if loss is None or loss.value is None else f"{100 * loss.value:+.1f}",
        "" if loss is None or loss.p_value is None else f"{loss.p_value:.2g}",
        "" if motion is None else number(motion.age),
        "" if motion is None else number(motion.jump),
        "" if motion is None else number(motion.change),
        "" if motion is None else number(motion.jerk),
        number(point.robot_s.value),
    )


def _row(point: DelayPoint) -> IntervalRow:
    interval = point.success.interval
    return IntervalRow(
        label=f"delay {point.delay}",
        value=point.success.value,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        text=percent(point.success.value),
        bounds="" if interval is None else percent_range(interval.low, interval.high),
        count=f"n = {point.success.n:,}",
        kind="neutral",
    )
