"""Pages of several runs: `compare --html` of two on the same trials, `jobs.html` of many."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.core.data import Outcome, Trial
from hocket.results.card import LETTERS
from hocket.results.comparing.compare import RunComparison, bounds_text
from hocket.results.comparing.config_diff import subject_differences
from hocket.results.comparing.paired import CLAIMS, Difference
from hocket.results.comparing.side import Side
from hocket.results.page import widgets
from hocket.results.page.document import document, file_link
from hocket.results.page.episodes import PENDING, plan_json
from hocket.results.page.pair_films import films_section, pairs_of
from hocket.results.page.widgets import Widget, alert, bold, link, note, section
from hocket.results.scores import bounds
from hocket.results.tables import number, percent, signed
from hocket.system.durable import write_atomic

if TYPE_CHECKING:
    from hocket.results.arms import ArmTable

_MOST_TASKS = 120
KINDS = {"both succeeded": "both", "only a": "only-a", "only b": "only-b", "neither": "neither"}


def write_compare_page(found: RunComparison, path: str | Path) -> Path:
    target = Path(path).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, compare_page(found, target).encode())
    return target


def compare_page(found: RunComparison, target: Path) -> str:
    """The page at the path `target`: the verdict, differences per task, every pair, their films,
    and what the runs differ in."""
    kinds = [_kind(found, trial) for trial in found.trials]
    by_trial = dict(zip(found.trials, kinds, strict=True))
    data = compare_data(found)
    films = (_pairs_section(found, Counter(kinds)), films_section(found, target, by_trial))
    data["sections"][-1:-1] = [each for each in films if each is not None]
    if found.pairs is not None:
        data["plan"] = plan_json(found.trials)
        data["pairs"] = pairs_of(found, target, by_trial)
        data["sides"] = ["".join(_letter(s, t) for t in found.trials) for s in (found.a, found.b)]
    return document(data, summary=found.results().html())


def compare_data(found: RunComparison) -> dict[str, Any]:
    """The verdict, differences per task, and what the runs differ in."""
    sections = [_difference_section(found), _runs_section(found)]
    urgent = not (found.a.complete and found.b.complete)
    return {
        "kind": "snapshot",
        "title": f"{found.a.name} against {found.b.name}",
        "kicker": "hocket compare · differences are a - b",
        "hero": _hero(found),
        "alerts": [alert(text, bad=urgent) for text in found.notes],
        "sections": [each for each in sections if each is not None],
    }


def _letter(side: Side, trial: Trial) -> str:
    episode = side.episodes.get(trial)
    return PENDING if episode is None else LETTERS[episode.outcome]


def _hero(found: RunComparison) -> Widget:
    overall, rates = found.comparison.overall, found.comparison.of == "success"
    what = "success" if rates else "return"
    notes = [
        [
            f"{what} of a less that of b, 95 % interval ",
            bold(bounds_text(overall, percents=rates)),
            f", n = {overall.n:,} pairs",
        ],
        f"A claim {CLAIMS[found.comparison.tasks_as]}.",
    ]
    body, pairs = [_tiles(found)], found.pairs
    if pairs is not None and pairs.n:
        counts = (pairs.both, pairs.only_a, pairs.only_b, pairs.neither)
        parts = [(kind, name, n) for (name, kind), n in zip(KINDS.items(), counts, strict=True)]
        key = [(kind, name, f"{n:,}") for kind, name, n in parts]
        body = [widgets.bar(parts), widgets.legend(key), *body]
    unit = " points" if rates and overall.value is not None else ""
    who = f"a is {found.a.name} ({found.a.subject}), b is {found.b.name} ({found.b.subject})"
    return {
        "big": (signed(overall.value, percents=rates), unit),
        "notes": notes,
        "body": body,
        "verdict": (who, found.sentence),
    }


def _tiles(found: RunComparison) -> Widget:
    overall = found.comparison.overall
    shown = percent if found.comparison.of == "success" else number
    entries = [("a", shown(overall.a)), ("b", shown(overall.b)), ("pairs", f"{overall.n:,}")]
    if overall.p_value is not None:
        entries.append((f"p, {overall.test}", f"{overall.p_value:.2g}"))
    if found.comparison.needed and found.comparison.verdict == "undecided":
        what = "pairs needed" if found.comparison.tasks_as == "strata" else "tasks needed"
        entries.append((what, f"about {found.comparison.needed:,}"))
    return widgets.tiles((name, figure, "") for name, figure in entries)


def _difference_section(found: RunComparison) -> Widget | None:
    comparison = found.comparison
    if comparison.overall.value is None:
        return None
    tasks = list(comparison.tasks)
    if len(tasks) > _MOST_TASKS:
        tasks = sorted(tasks, key=lambda each: -abs(each.value or 0.0))[:_MOST_TASKS]
    rates = comparison.of == "success"
    rows = [_interval_row("overall", comparison.overall, rates=rates, strong=True)]
    rows += [_interval_row(each.task or "", each, rates=rates) for each in tasks]
    lead = "Right of the line a is better, left of it b; bars are 95 % intervals."
    if len(comparison.tasks) > len(tasks):
        lead += f" The {len(tasks)} largest of {len(comparison.tasks):,} tasks are shown."
    chart = {"draw": "differences", "rows": rows, "rates": rates}
    return section("differences", "Difference per task", chart, lead=lead)


def _interval_row(label: str, each: Difference, *, rates: bool, strong: bool = False) -> Widget:
    interval, p = each.interval, "" if each.p_value is None else f", p = {each.p_value:.2g}"
    clear = interval is not None and (interval.low > 0 or interval.high < 0)
    return {
        "label": label,
        "value": each.value,
        "interval": bounds(interval),
        "texts": (
            signed(each.value, percents=rates),
            bounds_text(each, percents=rates),
            f"n = {each.n:,}{p}",
        ),
        "kind": "neutral-grey" if not clear else "only-a" if (each.value or 0) > 0 else "only-b",
        "strong": strong,
    }


def _pairs_section(found: RunComparison, counts: Counter[str]) -> Widget | None:
    if found.pairs is None:
        return None
    names = {**KINDS, "error on one side": "error", "not run yet": "pending"}
    key = [(kind, name, f"{counts[kind]:,}") for name, kind in names.items() if counts[kind]]
    lead = "A cell for each trial: the same task and seed in both runs. A click shows both in step."
    return section("outcomes", "Every pair", widgets.legend(key), lead=lead)


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


def _runs_section(found: RunComparison) -> Widget:
    a, b = found.a, found.b
    rows = [
        ("run", *(f"{side.folder.parent.name}/{side.name}" for side in (a, b))),
        ("trials ended", *(f"{len(s.episodes):,} of {len(s.trials):,}" for s in (a, b))),
        ("errors", f"{a.errors:,}", f"{b.errors:,}"),
        ("exactness", str(a.claim), str(b.claim)),
        *subject_differences(a.config, b.config),
    ]
    shown = {**widgets.table(("", "a", "b"), rows), "kind": "long"}
    lead = "Their trials are the same; this is what differs."
    return section("differ", "The two runs", shown, lead=lead)


def jobs_page(title: str, runs: ArmTable) -> str:
    """The page: success of each run with its interval, the numbers, and each run with its link or
    error."""
    reported = [(arm, arm.report) for arm in runs.arms if arm.report is not None]
    named = [(arm.name, report.overall.to_json(), False) for arm, report in reported]
    chart = {"draw": "scores", "named": named, "judged": True}
    lead = "Dots are rates, bars their 95 % Wilson intervals; errors are not in n."
    lines = []
    for arm, report in reported:
        state = "" if report.complete else " (not complete)"
        setting = f"{', '.join(report.config['env'])} · {report.config['policy']}{state}"
        lines.append([[link(arm.name, file_link(f"{arm.folder}/report.html"))], setting])
    failed = [
        part
        for name, why in runs.failed
        for part in (note(name, kind="h3"), {"draw": "pre", "text": why})
    ]
    sections = [
        section("success", "Success per run", chart, lead=lead),
        section("links", "Runs", widgets.table(("run", "settings"), lines)),
        *([section("failed", "Not made", *failed)] if failed else []),
    ]
    trials = sum(len(report.episodes) for _, report in reported)
    told = f"{len(reported)} of {len(runs.arms)} runs, {trials:,} episodes."
    data = {
        "kind": "snapshot",
        "title": title,
        "kicker": "hocket eval",
        "alerts": [alert(told)],
        "sections": sections,
    }
    return document(data, summary=runs.table().html())
