"""Pages of several runs: `compare --html` of two on the same trials, `jobs.html` of many."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.core.data import Outcome, Trial
from hocket.results.comparing.compare import RunComparison, bounds_text, signed, task_names
from hocket.results.comparing.config_diff import subject_differences
from hocket.results.comparing.paired import CLAIMS, Difference
from hocket.results.comparing.side import Side
from hocket.results.page.charts import (
    LONG,
    IntervalRow,
    extent,
    interval_chart,
    legend,
    nice_ceiling,
    share_bar,
    tiles,
)
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
from hocket.results.page.pair_films import films_section
from hocket.results.page.report_page import TICKS, score_row
from hocket.results.tables import number, percent
from hocket.system.durable import write_atomic

if TYPE_CHECKING:
    from hocket.results.arms import Arm, ArmTable

_MOST_TASKS = 120
_MOST_CELLS = 4000
_KINDS = {
    "both succeeded": "both",
    "only a": "only-a",
    "only b": "only-b",
    "neither": "neither",
}


def write_compare_page(found: RunComparison, path: str | Path) -> Path:
    target = Path(path).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, compare_page(found, target).encode())
    return target


def compare_page(found: RunComparison, target: Path) -> str:
    """The page at the path `target`: the verdict, differences per task, every pair, their films,
    and what the runs differ in."""
    sections = [
        _difference_section(found),
        _grid_section(found),
        films_section(found, target, functools.partial(_kind, found)),
        _runs_section(found),
    ]
    return document(
        title=f"{found.a.name} against {found.b.name}",
        kicker="hocket compare · differences are a - b",
        head=_hero(found),
        notes=_alerts(found),
        sections=[section for section in sections if section is not None],
    )


def _hero(found: RunComparison) -> Markup:
    overall, rates = found.comparison.overall, found.comparison.of == "success"
    unit = " points" if rates else ""
    left = join(
        tag(
            "div",
            signed(overall.value, percents=rates),
            tag("small", unit) if overall.value is not None else None,
            class_="big",
        ),
        tag(
            "p",
            f"{'success' if rates else 'return'} of a less that of b, 95 % interval ",
            tag("b", bounds_text(overall, percents=rates)),
            f", n = {overall.n:,} pairs",
            class_="big-note",
        ),
        tag("p", "A claim ", CLAIMS[found.comparison.tasks_as], ".", class_="big-note"),
    )
    right = join(_pair_bar(found), _tiles(found))
    who = f"a is {found.a.name} ({found.a.subject}), b is {found.b.name} ({found.b.subject})"
    return join(
        tag("p", who, class_="big-note"),
        tag("p", found.sentence, class_="verdict"),
        tag("div", tag("div", left), tag("div", right), class_="hero"),
    )


def _pair_bar(found: RunComparison) -> Markup | None:
    pairs = found.pairs
    if pairs is None or pairs.n == 0:
        return None
    counts = (pairs.both, pairs.only_a, pairs.only_b, pairs.neither)
    parts = dict(zip(_KINDS, map(float, counts), strict=True))
    entries = [(_KINDS[name], name, f"{int(count):,}") for name, count in parts.items()]
    return join(share_bar(parts, _KINDS), legend(entries))


def _tiles(found: RunComparison) -> Markup:
    overall, shown = found.comparison.overall, _shown(found)
    entries = [("a", shown(overall.a)), ("b", shown(overall.b)), ("pairs", f"{overall.n:,}")]
    if overall.p_value is not None:
        entries.append((f"p, {overall.test}", f"{overall.p_value:.2g}"))
    if found.comparison.needed and found.comparison.verdict == "undecided":
        what = "pairs needed" if found.comparison.tasks_as == "strata" else "tasks needed"
        entries.append((what, f"about {found.comparison.needed:,}"))
    return tiles((name, figure, None) for name, figure in entries)


def _shown(found: RunComparison) -> Callable[[float | None], str]:
    return percent if found.comparison.of == "success" else number


def _alerts(found: RunComparison) -> Markup:
    urgent = not (found.a.complete and found.b.complete)
    lines = [tag("p", note) for note in found.notes]
    return tag("div", *lines, class_="alert bad" if urgent else "alert")


def _difference_section(found: RunComparison) -> Section | None:
    comparison = found.comparison
    if comparison.overall.value is None:
        return None
    tasks = list(comparison.tasks)
    if len(tasks) > _MOST_TASKS:
        tasks = sorted(tasks, key=lambda each: -abs(each.value or 0.0))[:_MOST_TASKS]
    rates = comparison.of == "success"
    rows = [_interval_row(found, "overall", comparison.overall, strong=True)]
    rows += [_interval_row(found, each.task or "", each) for each in tasks]
    reach = nice_ceiling(max(0.01, *map(abs, extent(rows))))
    reach = min(1.0, reach) if rates else reach
    ticks = [(at, signed(at, percents=rates)) for at in (-reach, -reach / 2, 0.0, reach / 2, reach)]
    lead = "Right of the line a is better, left of it b; bars are 95 % intervals."
    if len(comparison.tasks) > len(tasks):
        lead += f" The {len(tasks)} largest of {len(comparison.tasks):,} tasks are shown."
    return Section(
        anchor="differences",
        title="Difference per task",
        lead=lead,
        body=interval_chart(rows, low=-reach, high=reach, ticks=ticks, zero=0.0),
    )


def _interval_row(
    found: RunComparison, label: str, each: Difference, *, strong: bool = False
) -> IntervalRow:
    rates, interval = found.comparison.of == "success", each.interval
    clear = interval is not None and (interval.low > 0 or interval.high < 0)
    kind = "neutral-grey" if not clear else "only-a" if (each.value or 0) > 0 else "only-b"
    p = "" if each.p_value is None else f", p = {each.p_value:.2g}"
    return IntervalRow(
        label=label,
        value=each.value,
        interval=interval,
        text=signed(each.value, percents=rates),
        bounds=bounds_text(each, percents=rates),
        count=f"n = {each.n:,}{p}",
        strong=strong,
        kind=kind,
    )


def _grid_section(found: RunComparison) -> Section | None:
    if found.pairs is None:
        return None
    names = task_names(found.trials)
    rows: dict[str, list[Trial]] = {}
    for trial in found.trials:
        rows.setdefault(names[trial], []).append(trial)
    fits = len(found.trials) <= _MOST_CELLS and len(rows) <= _MOST_TASKS
    shown = list(rows.items())[:_MOST_TASKS]
    lines = [_grid_row(found, name, some, single=fits) for name, some in shown]
    kind = "grid scroll long" if len(lines) > LONG else "grid"
    key: list[tuple[str, str, str]] = [(each, name, "") for name, each in _KINDS.items()]
    if found.excluded.errors:
        key.append(("error", "error on one side", ""))
    if found.excluded.pending:
        key.append(("pending", "not run yet", ""))
    lead = "A cell for each trial: the same task and seed in both runs."
    if not fits:
        lead = "For each task, the shares of its pairs."
    body = join(tag("div", *lines, class_=kind), legend(key))
    return Section(anchor="pairs", title="Every pair", lead=lead, body=body)


def _grid_row(found: RunComparison, name: str, trials: list[Trial], *, single: bool) -> Markup:
    label = tag("div", breakable(name), class_="grid-label", title=name)
    trials.sort(key=lambda trial: (trial.seed, trial.repeat))
    if single:
        cells = [_pair_cell(found, name, trial) for trial in trials]
        return tag("div", label, tag("div", *cells, class_="cells"), class_="g")
    counts = Counter(_kind(found, trial) for trial in trials)
    order = [*_KINDS.values(), "error", "pending"]
    bar = share_bar({kind: float(counts[kind]) for kind in order}, {kind: kind for kind in order})
    return tag("div", label, bar, class_="g")


def _pair_cell(found: RunComparison, name: str, trial: Trial) -> Markup:
    a, b = found.a.episodes.get(trial), found.b.episodes.get(trial)
    said = [each.outcome.value if each else "not run yet" for each in (a, b)]
    words = f"{name}, seed {trial.seed}: a {said[0]}, b {said[1]}"
    return tag("span", class_=f"k-{_kind(found, trial)}", title=words)


def _kind(found: RunComparison, trial: Trial) -> str:
    a, b = found.a.episodes.get(trial), found.b.episodes.get(trial)
    if a is None or b is None:
        return "pending"
    if Outcome.ERROR in (a.outcome, b.outcome):
        return "error"
    won_a, won_b = a.outcome is Outcome.SUCCESS, b.outcome is Outcome.SUCCESS
    if won_a == won_b:
        return "both" if won_a else "neither"
    return "only-a" if won_a else "only-b"


def _runs_section(found: RunComparison) -> Section:
    a, b = found.a, found.b
    rows = [
        ("run", _run_name(a), _run_name(b)),
        ("trials ended", _ended(a), _ended(b)),
        ("errors", f"{a.errors:,}", f"{b.errors:,}"),
        ("exactness", str(a.claim), str(b.claim)),
        *subject_differences(a.config, b.config),
    ]
    head = tag("tr", tag("th"), tag("th", "a"), tag("th", "b"))
    lines: list[Child] = [
        tag("tr", tag("td", name), tag("td", left, class_="long"), tag("td", right, class_="long"))
        for name, left, right in rows
    ]
    table = tag("table", tag("thead", head), tag("tbody", *lines))
    return Section(
        anchor="runs",
        title="The two runs",
        lead="Their trials are the same; this is what differs.",
        body=tag("div", table, class_="scroll"),
    )


def _run_name(side: Side) -> str:
    """The last two parts of a run's path, which find it; where on this machine it lies is nobody
    else's business."""
    return f"{side.folder.parent.name}/{side.name}"


def _ended(side: Side) -> str:
    return f"{len(side.episodes):,} of {len(side.trials):,}"


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
        Section(
            anchor="numbers",
            title="Numbers",
            # It is scrolled where the screen is narrower than its numbers.
            body=tag("div", Markup(table.table().html()), style="overflow-x:auto"),
        ),
        Section(anchor="runs", title="Runs", body=tag("ul", *(_link(arm) for arm, _ in reported))),
    ]
    if table.failed:
        errors = [tag("div", tag("h3", name), tag("pre", why)) for name, why in table.failed]
        sections.append(Section(anchor="failed", title="Not made", body=join(errors)))
    trials = sum(len(report.episodes) for _, report in reported)
    told = f"{len(reported)} of {len(table.arms)} runs, {trials:,} episodes."
    head = tag("p", told, class_="big-note")
    return document(title=title, kicker="hocket eval", head=head, sections=sections)


def _link(arm: Arm) -> Markup:
    assert arm.report is not None
    state = "" if arm.report.complete else " (not complete)"
    setting = f"{', '.join(arm.report.config['env'])} · {arm.report.config['policy']}{state}"
    link = tag("a", breakable(arm.name), href=file_link(f"{arm.folder}/report.html"))
    return tag("li", link, " ", tag("small", setting))
