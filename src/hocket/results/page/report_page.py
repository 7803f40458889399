"""`report.html`: what a run means, on one page."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket.core.data import Outcome
from hocket.records.folder import RunFolder
from hocket.results.page import widgets
from hocket.results.page.document import BESIDE, as_json, document, file_link
from hocket.results.page.episodes import CellsOfRun
from hocket.results.page.faults import failure_section, fault_section, label_section
from hocket.results.page.look import Look
from hocket.results.page.speed import duration, speed_section
from hocket.results.page.videos import filmed_note, missing_note
from hocket.results.page.widgets import Widget, alert, bold, code, link, section
from hocket.results.recorded import RecordedRun, open_recorded
from hocket.results.report import ONCE, SHARED, Report
from hocket.results.scores import Score
from hocket.results.tables import interval_text, number, percent
from hocket.system.durable import drafted, write_atomic

FILE_NAME = "report.html"
BUNDLE = "bundle.html"
LOOKS = "report_looks"
"""The folder beside a report with what is inside of its episodes."""
_MOST_INSIDE = 20_000
"""Episodes whose steps, returns and times lie in the page itself; those of more lie beside it."""


def write_report_page(folder: str | Path, report: Report | RecordedRun | None = None) -> Path:
    """Write `report.html` into a run folder, from what the folder holds; returns its path. A
    `report` just made from the same ledger saves making it again."""
    root = RunFolder.at(Path(folder)).root
    run = report if isinstance(report, RecordedRun) else open_recorded(root, report)
    cells, beside = CellsOfRun.of(run), root / BESIDE
    data = _data(run, cells)
    if len(run.trials) > _MOST_INSIDE:
        with drafted(beside) as draft, open(draft, "w", encoding="utf-8") as file:
            begin = "window.hocketColumns = {"
            for name, column in cells.columns():
                file.write(f'{begin}"{name}":{as_json(column)}')
                begin = ","
            file.write("};\n")
        data["beside"] = BESIDE
    else:
        beside.unlink(missing_ok=True)
        data["columns"] = dict(cells.columns())
    data |= {"looksAt": LOOKS, "looks": _write_looks(root / LOOKS, cells)}
    write_atomic(root / FILE_NAME, _document(run, data).encode())
    return root / FILE_NAME


def _write_looks(folder: Path, cells: CellsOfRun) -> list[str]:
    """Write what is inside of attempts into a folder beside the page, a script for each: nothing
    else is read by a page that is opened from disk. Returns their names."""
    names = []
    for name, look in cells.looks():
        folder.mkdir(exist_ok=True)
        write_atomic(folder / f"{name}.js", f'hocketLook("{name}",{as_json(look)});\n'.encode())
        names.append(name)
    for old in folder.glob("*.js"):
        if old.stem not in names:
            old.unlink()
    return names


def write_bundle(folder: str | Path, megabytes: float) -> Path:
    """Write `bundle.html`, a report in one file, with as many of its films inside as fit into so
    many megabytes, failures first."""
    run = open_recorded(RunFolder.at(Path(folder)).root)
    cells, room, inside = CellsOfRun.of(run), megabytes * 1e6, dict[str, str]()
    lost = [file for kept in run.evidence for file in kept.files if file.endswith(".mp4")]
    films = [*lost, *(file for some in cells.films.values() for file in some)]
    for file in films:
        film = base64.b64encode((run.folder / file).read_bytes()).decode()
        if len(film) <= room:
            room -= len(film)
            inside[file_link(file)] = f"data:video/mp4;base64,{film}"
    insides = dict[str, Look]()
    for name, look in cells.looks():
        if (size := len(as_json(look))) <= room:
            room -= size
            insides[name] = look
    told = {
        "columns": dict(cells.columns()),
        "insides": insides,
        "inside": inside,
        "bundled": (len(inside), len(films)),
    }
    target = run.folder / BUNDLE
    write_atomic(target, _document(run, {**_data(run, cells), **told}).encode())
    return target


def _document(run: RecordedRun, data: Mapping[str, Any]) -> str:
    summary = run.report.results().html()
    return document(data, summary=summary, beside="beside" in data or bool(data.get("looks")))


def report_data(folder: Path) -> dict[str, Any]:
    """All that a report tells of a run, for a page that is served: `columns` among it."""
    run = open_recorded(folder)
    cells = CellsOfRun.of(run)
    return {**_data(run, cells), "columns": dict(cells.columns())}


def _data(run: RecordedRun, cells: CellsOfRun) -> dict[str, Any]:
    films = (missing_note(run), filmed_note(run))
    big, unit, notes = _headline(run.report.overall)
    sections = [
        _success_section(run),
        section(
            "outcomes",
            "Outcomes",
            lead="A row for each task, a cell for each trial by seed; a cell opens its episode, "
            "j and k walk through failures and errors.",
        ),
        section(
            "videos",
            "Videos",
            *films,
            lead="Failures first. They lie beside this page and are loaded when they are played.",
        )
        if cells.films or any(films)
        else None,
        failure_section(run),
        label_section(run),
        _length_section(run),
        speed_section(run),
        fault_section(run),
        section("episodes", "Episodes"),
        _facts_section(run),
    ]
    return {
        **cells.to_json(),
        "name": run.name,
        "title": run.title,
        "kicker": f"hocket report · {run.name}",
        "hero": {"big": (big, unit), "notes": notes, "body": [_tiles(run)]},
        "alerts": _alerts(run),
        "sections": [one for one in sections if one is not None],
    }


def _headline(score: Score) -> tuple[str, str, list[Any]]:
    """The figure that stands first, its unit, and what is said of it."""
    interval = score.success.interval
    if score.rate is not None and interval is not None:
        text, n = bold(interval_text(interval)), f", n = {score.success.n:,}"
        notes: list[Any] = [["success, 95 % interval ", text, n]]
        if score.errors:
            worst = percent(score.rate_errors_as_failures)
            notes.append(f"{worst} if every error counted as a failure")
        return f"{100 * score.rate:.1f}", " %", notes
    if score.returns.value is not None:
        spread = score.returns.interval
        bounds = f", 95 % interval {interval_text(spread, percents=False)}" if spread else ""
        told = f"mean return{bounds}, n = {score.n:,}"
        why = "The env tells no success, so there is no rate."
        return number(score.returns.value), "", [told, why]
    if score.n:
        return "-", "", ["The envs tell no success, and unlike returns have no mean."]
    return "-", "", ["no episode ended without an error, so there is no rate"]


def _tiles(run: RecordedRun) -> Widget:
    score, speed = run.report.overall, run.report.throughput
    entries: list[tuple[str, str, str]] = [("episodes", f"{len(run.report.episodes):,}", "")]
    if len(run.report.tasks) > 1:
        entries.append(("tasks", f"{len(run.report.tasks):,}", ""))
    if score.steps.value is not None:
        entries.append(("mean length", f"{score.steps.value:,.1f}", " steps"))
    if speed.env_steps_per_s is not None:
        entries.append(("throughput", f"{speed.env_steps_per_s:,.0f}", " env steps/s"))
        entries.append(("time", *duration(speed.wall_s)))
        entries.append(("lanes", f"{speed.lanes:,}", ""))
    return widgets.tiles([*entries, ("errors", f"{score.errors:,}", "")])


def _alerts(run: RecordedRun) -> list[Widget]:
    report, alerts = run.report, []
    if not report.complete:
        alerts.append(
            alert(
                bold("Unfinished. "),
                f"{len(report.episodes):,} of {report.planned:,} planned trials have ended. Those "
                "that end early are no fair sample of all: finish the run with ",
                code(f"hocket resume {run.folder.parent.name}/{run.name}"),
                " before you quote a rate.",
            )
        )
    told = [" ".join(report.decision_told), *report.remarks_told]
    alerts += [alert(text) for text in told if text]
    if run.damage is not None:
        alerts.append(alert(bold("Where the time went is not known. "), run.damage, bad=True))
    if errors := report.overall.errors:
        words = bold(f"{errors:,} trials ended as errors. "), "They are not in n; "
        alerts.append(alert(*words, link("what happened", "#errors"), ".", bad=True))
    return alerts


def _success_section(run: RecordedRun) -> Widget:
    report = run.report
    judged = report.overall.success.n > 0 or report.overall.n == 0
    chart = {
        "draw": "results",
        "judged": judged,
        "overall": report.overall.to_json(),
        "suites": [score.to_json() for score in report.suites],
        "tasks": [score.to_json() for score in report.tasks],
    }
    if not judged:
        return section("success", "Return per task", chart, lead="Means, with 95 % t-intervals.")
    lead = "Dots are rates, bars their 95 % intervals; errors are not in n."
    lead = " ".join([lead, *(each for each in report.cautions if each in (ONCE, SHARED))])
    return section("success", "Success per task", chart, lead=lead)


def _length_section(run: RecordedRun) -> Widget:
    episodes = run.report.episodes
    ended = episodes.rows(*(each for each in Outcome if each is not Outcome.ERROR))
    cut = int(episodes.columns["truncated"][ended].sum())
    lead = f"{cut:,} of {len(ended):,} ended at a step limit (truncated)." if cut else None
    return section("lengths", "Episode lengths", lead=lead)


def _facts_section(run: RecordedRun) -> Widget:
    """How the run was made, enough to make it again: command, configuration, versions."""
    command = run.about.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    shown = shlex.join([Path(words[0]).name, *words[1:]]) if words else "not recorded"
    lists = [
        ("Configuration", run.report.config),
        ("Versions", run.about.get("versions") or {"hocket": run.report.version}),
        ("Machine", run.about.get("machine") or {}),
    ]
    claim = ("Exactness ", bold(str(run.report.exactness)), f": {run.report.claim.sentence}")
    return section(
        "run",
        "How it was run",
        {"draw": "pre", "text": shown},
        widgets.note(*claim),
        {"draw": "facts", "lists": lists},
    )
