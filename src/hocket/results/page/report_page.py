"""`report.html`: what a run means, on one page."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hocket.core.data import Outcome
from hocket.records.folder import RunFolder
from hocket.results.page.charts import (
    IntervalRow,
    extent,
    histogram,
    interval_chart,
    legend,
    nice_ceiling,
    share_bar,
    tiles,
)
from hocket.results.page.episodes import (
    MOST_TASKS,
    Listed,
    episode_table,
    outcome_counts,
    outcome_grid,
    shown_tasks,
)
from hocket.results.page.faults import fault_section, label_section
from hocket.results.page.markup import (
    Child,
    Markup,
    Section,
    document,
    join,
    tag,
)
from hocket.results.page.speed import duration, speed_section
from hocket.results.page.videos import video_section
from hocket.results.recorded import RecordedRun, open_recorded
from hocket.results.report import Report
from hocket.results.scores import Score
from hocket.results.tables import interval_text, number, percent
from hocket.system.durable import write_atomic

FILE_NAME = "report.html"
_PERCENTS = tuple((share / 100, f"{share} %") for share in (0, 25, 50, 75, 100))
TICKS = ((0.0, "0 %"), (0.25, "25"), (0.5, "50"), (0.75, "75"), (1.0, "100 %"))


def write_report_page(folder: str | Path, report: Report | None = None) -> Path:
    """Write `report.html` into a run folder, from what the folder holds; returns its path. A
    `report` just made from the same ledger saves making it again."""
    target = RunFolder.at(Path(folder)).root / FILE_NAME
    write_atomic(target, report_page(open_recorded(target.parent, report)).encode())
    return target


def report_page(run: RecordedRun) -> str:
    """The page of a run: one self-contained document, however many episodes there are."""
    listed = Listed.of(run)
    sections = [
        _success_section(run),
        Section(
            anchor="outcomes",
            title="Outcomes",
            lead="A row for each task, a cell for each trial by seed; a cell leads to its episode.",
            body=outcome_grid(run, listed),
        ),
        video_section(run, listed),
        label_section(run, listed),
        _length_section(run),
        speed_section(run),
        fault_section(run, listed),
        Section(anchor="episodes", title="Episodes", body=episode_table(run, listed)),
        _facts_section(run),
    ]
    return document(
        title=run.title,
        kicker=f"hocket report · {run.name}",
        head=_hero(run),
        notes=_alerts(run),
        sections=[section for section in sections if section is not None],
    )


def _hero(run: RecordedRun) -> Markup:
    score = run.report.overall
    counts = outcome_counts(run)
    parts = {name: float(count) for name, (_, count) in counts.items()}
    kinds = {name: kind for name, (kind, _) in counts.items()}
    entries = [(kind, name, f"{count:,}") for name, (kind, count) in counts.items()]
    right = join(share_bar(parts, kinds), legend(entries), _tiles(run))
    return tag("div", tag("div", *_headline(score)), tag("div", right), class_="hero")


def _headline(score: Score) -> Iterable[Child]:
    interval = score.success.interval
    if score.rate is not None and interval is not None:
        yield tag("div", f"{100 * score.rate:.1f}", tag("small", " %"), class_="big")
        bounds = interval_text(interval)
        yield tag(
            "p", "success, 95 % interval ", tag("b", bounds), f", n = {score.success.n:,}",
            class_="big-note",
        )  # fmt: skip
        if score.errors:
            worst = percent(score.rate_errors_as_failures)
            yield tag("p", f"{worst} if every error counted as a failure", class_="big-note")
        return
    if score.returns.value is not None:
        yield tag("div", number(score.returns.value), class_="big")
        spread = score.returns.interval
        bounds = f", 95 % interval {interval_text(spread, percents=False)}" if spread else ""
        yield tag("p", f"mean return{bounds}, n = {score.n:,}", class_="big-note")
        yield tag("p", "The env tells no success, so there is no rate.", class_="big-note")
        return
    yield tag("div", "-", class_="big")
    if score.n:
        yield tag(
            "p", "The envs tell no success, and unlike returns have no mean.", class_="big-note"
        )
        return
    yield tag("p", "no episode ended without an error, so there is no rate", class_="big-note")


def _tiles(run: RecordedRun) -> Markup:
    score, timing = run.report.overall, run.timing
    entries: list[tuple[str, str, str]] = [("episodes", f"{len(run.report.episodes):,}", "")]
    if len(run.report.tasks) > 1:
        entries.append(("tasks", f"{len(run.report.tasks):,}", ""))
    if score.steps.value is not None:
        entries.append(("mean length", f"{score.steps.value:,.1f}", " steps"))
    if timing is not None and timing.wall_s > 0:
        entries.append(("throughput", f"{timing.steps / timing.wall_s:,.0f}", " env steps/s"))
        entries.append(("time", *duration(timing.wall_s)))
        entries.append(("lanes", f"{timing.lanes:,}", ""))
    entries.append(("errors", f"{score.errors:,}", ""))
    return tiles(entries)


def _alerts(run: RecordedRun) -> Markup:
    report, alerts = run.report, []
    if not report.complete:
        alerts.append(
            tag(
                "p",
                tag("b", "Unfinished. "),
                f"{len(report.episodes):,} of {report.planned:,} planned trials have ended. Those "
                "that end early are no fair sample of all: finish the run with ",
                tag("code", f"hocket resume {run.folder.parent.name}/{run.name}"),
                " before you quote a rate.",
                class_="alert",
            )
        )
    if report.decision_told:
        alerts.append(tag("p", " ".join(report.decision_told), class_="alert"))
    if run.damage is not None:
        words = tag("b", "Where the time went is not known. ")
        alerts.append(tag("p", words, run.damage, class_="alert bad"))
    if report.overall.errors:
        alerts.append(
            tag(
                "p",
                tag("b", f"{report.overall.errors:,} trials ended as errors. "),
                "They are not in n; ",
                tag("a", "what happened", href="#errors"),
                ".",
                class_="alert bad",
            )
        )
    return join(alerts)


def _success_section(run: RecordedRun) -> Section:
    report, wanted = run.report, set(shown_tasks(run))
    judged = report.overall.success.n > 0 or report.overall.n == 0
    rows = [score_row("overall", report.overall, judged=judged, strong=True)]
    for suite in report.suites:
        if len(report.suites) > 1:
            rows.append(score_row(suite.suite or "", suite, judged=judged, strong=True))
        rows += [
            score_row(score.task or "", score, judged=judged)
            for score in report.tasks
            if score.suite == suite.suite and (suite.suite, score.task) in wanted
        ]
    hidden = len(report.tasks) - len(wanted)
    note = f" The {MOST_TASKS} lowest of {len(report.tasks):,} tasks are shown." if hidden else ""
    if judged:
        chart = interval_chart(rows, low=0.0, high=1.0, ticks=_PERCENTS)
        lead = f"Dots are rates, bars their 95 % Wilson intervals; errors are not in n.{note}"
        return Section(anchor="success", title="Success per task", body=chart, lead=lead)
    lead = f"Mean return, with its 95 % t-interval.{note}"
    return Section(anchor="success", title="Return per task", body=_returns(rows), lead=lead)


def _returns(rows: list[IntervalRow]) -> Markup:
    known = extent(rows)
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    low, high = min(low, 0.0), max(high, 0.0)
    low, high = (-nice_ceiling(-low) if low < 0 else 0.0), (nice_ceiling(high) if high > 0 else 0.0)
    high = high if high > low else low + 1.0
    ticks = [(at, number(at)) for at in dict.fromkeys((low, 0.0, (low + high) / 2, high))]
    return interval_chart(rows, low=low, high=high, ticks=ticks, zero=0.0)


def score_row(label: str, score: Score, *, judged: bool, strong: bool = False) -> IntervalRow:
    """A chart's row with the success rate, or the mean return where no success is `judged`."""
    errors = f", {score.errors:,} err" if score.errors else ""
    if judged:
        interval, value = score.success.interval, score.rate
        text = percent(value)
        kind, n = "success", score.success.n
    else:
        interval, value = score.returns.interval, score.returns.value
        text = number(value)
        kind, n = "finished", score.n
    return IntervalRow(
        label=label,
        value=value,
        interval=interval,
        text=text,
        bounds=interval_text(interval, percents=judged) if interval else "",
        count=f"n = {n:,}{errors}",
        strong=strong,
        kind=kind,
    )


def _length_section(run: RecordedRun) -> Section | None:
    ended = [e for e in run.report.episodes if e.outcome is not Outcome.ERROR]
    if not ended:
        return None
    groups = {
        outcome.value: [e.steps for e in ended if e.outcome is outcome]
        for outcome in Outcome
        if any(e.outcome is outcome for e in ended)
    }
    medians = [
        (kind, kind, f"median {statistics.median(steps):,.10g} steps, n = {len(steps):,}")
        for kind, steps in groups.items()
    ]
    cut = sum(e.truncated for e in ended)
    lead = f"{cut:,} of {len(ended):,} ended at a step limit (truncated)." if cut else None
    body = join(histogram(groups), legend(medians))
    return Section(anchor="lengths", title="Episode lengths", body=body, lead=lead)


def _facts_section(run: RecordedRun) -> Section:
    """How the run was made, enough to make it again: command, configuration, versions."""
    command = run.about.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    shown = shlex.join([Path(words[0]).name, *words[1:]]) if words else "not recorded"
    lists = [
        ("Configuration", _flat(run.report.config)),
        ("Versions", _flat(run.about.get("versions") or {"hocket": run.report.version})),
        ("Machine", _flat(run.about.get("machine") or {})),
    ]
    columns = [
        tag(
            "div",
            tag("h3", title),
            tag("dl", ((tag("dt", k), tag("dd", v)) for k, v in facts)),
        )
        for title, facts in lists
        if facts
    ]
    level = join(tag("b", run.report.exactness), ": ", run.report.claim.sentence)
    body = join(
        tag("pre", shown, class_="wrap"),
        tag("p", "Exactness ", level, class_="note"),
        tag("div", *columns, class_="facts"),
    )
    return Section(anchor="run", title="How it was run", body=body)


def _flat(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The names and values of settings; what is unset is left out, what is nested has a name with
    dots."""
    found: list[tuple[str, str]] = []
    for key, value in facts.items():
        if isinstance(value, Mapping):
            found += [(f"{key}.{inner}", text) for inner, text in _flat(value)]
        elif isinstance(value, (list, tuple)):
            found += [(str(key), ", ".join(map(str, value)))] if value else []
        elif isinstance(value, int) and key.endswith("_bytes"):
            found.append((key.removesuffix("_bytes"), f"{value / 2**30:.1f} GiB"))
        elif value is not None:
            found.append((str(key), str(value)))
    return found
