"""`jobs.html`: how each of many runs did, and the difference of each to their base."""

from __future__ import annotations

from hocket.results.arms import Arm, ArmTable
from hocket.results.page.charts import interval_chart
from hocket.results.page.markup import (
    Markup,
    Section,
    breakable,
    document,
    file_link,
    join,
    tag,
)
from hocket.results.page.report_page import TICKS, score_row


def jobs_page(title: str, table: ArmTable) -> str:
    """The page: success of each run with its interval, the numbers, and each run with its link or
    error."""
    reported = [(arm, arm.report) for arm in table.arms if arm.report is not None]
    rows = [score_row(arm.name, report.overall, judged=True) for arm, report in reported]
    sections = [
        Section(
            anchor="success",
            title="Success per run",
            lead="Dots are rates, bars their 95 % Wilson intervals; errors are not in n.",
            body=interval_chart(rows, low=0.0, high=1.0, ticks=TICKS),
        ),
        Section(anchor="numbers", title="Numbers", body=_numbers(table)),
        Section(anchor="runs", title="Runs", body=tag("ul", *(_link(arm) for arm, _ in reported))),
    ]
    if table.failed:
        errors = [tag("div", tag("h3", name), tag("pre", why)) for name, why in table.failed]
        sections.append(Section(anchor="failed", title="Not made", body=join(errors)))
    trials = sum(len(report.episodes) for _, report in reported)
    told = f"{len(reported)} of {len(table.arms)} runs, {trials:,} episodes."
    head = tag("p", told, class_="big-note")
    return document(title=title, kicker="hocket eval", head=head, sections=sections)


def _numbers(table: ArmTable) -> Markup:
    """The table, which is scrolled where the screen is narrower than its numbers."""
    return tag("div", Markup(table.table().html()), style="overflow-x:auto")


def _link(arm: Arm) -> Markup:
    assert arm.report is not None
    state = "" if arm.report.complete else " (not complete)"
    setting = f"{', '.join(arm.report.config['env'])} · {arm.report.config['policy']}{state}"
    link = tag("a", breakable(arm.name), href=file_link(f"{arm.folder}/report.html"))
    return tag("li", link, " ", tag("small", setting))
