"""Many runs on one page: how each did, and the way to its own page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hocket.records.folder import write_atomic
from hocket.results.page.charts import interval_chart
from hocket.results.page.markup import (
    Child,
    Markup,
    Section,
    breakable,
    document,
    file_link,
    join,
    tag,
)
from hocket.results.page.report_page import score_row
from hocket.results.report import Report

FILE_NAME = "jobs.html"
_TICKS = ((0.0, "0 %"), (0.25, "25"), (0.5, "50"), (0.75, "75"), (1.0, "100 %"))

Made = tuple[str, "Report | None", "str | None"]
"""A run's name, and its report or else the reason why there is none."""


def write_jobs_page(folder: Path, runs: Sequence[Made]) -> Path:
    """Write `jobs.html` into the folder that holds the runs' folders."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / FILE_NAME
    write_atomic(target, jobs_page(folder.name, runs).encode())
    return target


def jobs_page(title: str, runs: Sequence[Made]) -> str:
    """The page: success of each run with its interval, then each run with its link or error."""
    reported = [(name, report) for name, report, _ in runs if report is not None]
    failed = [(name, error) for name, _, error in runs if error is not None]
    sections = [
        Section(
            anchor="success",
            title="Success per run",
            lead="Dots are rates, bars their 95 % Wilson intervals; errors are not in n.",
            body=interval_chart(
                [score_row(name, report.overall, judged=True) for name, report in reported],
                low=0.0,
                high=1.0,
                ticks=_TICKS,
            ),
        ),
        Section(anchor="runs", title="Runs", body=_links(reported)),
    ]
    if failed:
        sections.append(Section(anchor="failed", title="Not made", body=_failures(failed)))
    trials = sum(len(report.episodes) for _, report in reported)
    head = tag("p", f"{len(reported)} of {len(runs)} runs, {trials:,} episodes.", class_="big-note")
    return document(title=title, kicker="hocket eval --jobs", head=head, sections=sections)


def _links(reported: Sequence[tuple[str, Report]]) -> Markup:
    items: list[Child] = []
    for name, report in reported:
        state = "" if report.complete else " (not complete)"
        setting = f"{', '.join(report.config['env'])} · {report.config['policy']}{state}"
        link = tag("a", breakable(name), href=file_link(f"{name}/report.html"))
        items.append(tag("li", link, " ", tag("small", setting)))
    return tag("ul", *items)


def _failures(failed: Sequence[tuple[str, str]]) -> Markup:
    return join(*(tag("div", tag("h3", name), tag("pre", error)) for name, error in failed))
