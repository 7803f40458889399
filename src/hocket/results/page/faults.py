"""What went wrong in a run, on its page: errors, what attempts that were lost left of themselves,
and what people said of failures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hocket.core.data import Episode, Outcome, Trial
from hocket.records.evidence import KILLED, Evidence
from hocket.results import stats
from hocket.results.page import widgets
from hocket.results.page.document import file_link
from hocket.results.page.videos import poster
from hocket.results.page.widgets import Widget
from hocket.results.recorded import RecordedRun
from hocket.results.tables import interval_text, percent
from hocket.system.text import counted

_MOST_FAULTS = 20
_LONGEST_TRACE = 8000
"""Characters of an error that are shown."""
_LONGEST_ERROR = 4000
_FRAME = re.compile(r'^ +File "([^"]+)", line (\d+), in (.+)\n(?: {4}(.+))?', re.MULTILINE)
_OTHERS = re.compile(
    r"/(site|dist)-packages/|/lib/python\d|^<"
    r"|/hocket/(adapters|cli|core|engine|machines|records|runs|serve|system|train|workers)/"
)
"""Files that are no code of the user's."""
_LINKS = 8
"""Trials of an error that are linked to."""


def headline(text: str) -> str:
    """The line of an error that says most: the last one of a traceback that is not indented, or
    else the first line."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not any("Traceback" in line for line in lines):
        return lines[0] if lines else ""
    return next((line for line in reversed(lines) if not line.startswith(" ")), lines[-1])


def own_line(text: str) -> str | None:
    """The place in the user's own code that an error came from last, by its traceback; None where
    there is none but in hocket, Python and installed packages."""
    for path, line, name, words in reversed(_FRAME.findall(text)):
        if not _OTHERS.search(path):
            return f"{Path(path).name}, line {line}, {name}" + (f": {words}" if words else "")
    return None


def told_of(error: str) -> dict[str, Any]:
    """An error as the page shows it beside an attempt."""
    return {"error": _shortened(error, _LONGEST_ERROR), "own": own_line(error)}


def _shortened(text: str, most: int) -> str:
    """A text without its middle, where it is longer than that."""
    return text if len(text) <= most else f"{text[: most // 2]}\n  ...\n{text[-most // 2 :]}"


def faults_of(run: RecordedRun) -> list[tuple[str, list[tuple[Trial, str]]]]:
    """The trials that attempts were lost of and their errors, by what alike errors have in common;
    the most frequent first."""
    hits = [(failure.trial, failure.error) for failure in run.failures]
    known = {trial for trial, _ in hits}
    # Without a ledger, or where the last attempt never was lost, the episode alone tells.
    hits += [
        (episode.trial, episode.error or "no message")
        for episode in run.report.episodes.ended(Outcome.ERROR)
        if episode.trial not in known
    ]
    hits += [(each.trial, each.error) for each in run.evidence if each.error == KILLED]
    kinds: dict[str, list[tuple[Trial, str]]] = {}
    for trial, text in hits:
        kinds.setdefault(_alike(text), []).append((trial, text))
    return sorted(kinds.items(), key=lambda item: -len(item[1]))


def _alike(text: str) -> str:
    """What alike errors have in common: they differ in numbers and addresses."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)


def fault_section(run: RecordedRun) -> Widget | None:
    """What went wrong, each kind of error once; None where nothing did."""
    faults = faults_of(run)
    if not faults:
        return None
    attempts = sum(len(hits) for _, hits in faults)
    kinds = "one kind" if len(faults) == 1 else f"{len(faults):,} kinds"
    lead = f"{counted(attempts, 'attempt')} lost to {kinds} of error. Alike ones are shown once."
    shown = [_fault(run, kind, hits) for kind, hits in faults[:_MOST_FAULTS]]
    more = len(faults) - len(shown)
    note = widgets.note(f"{more:,} rarer kinds are in ledger.sqlite.") if more else None
    return widgets.section("errors", "Errors", *shown, note, lead=lead)


def _fault(run: RecordedRun, kind: str, hits: Sequence[tuple[Trial, str]]) -> Widget:
    trials, text = dict.fromkeys(trial for trial, _ in hits), hits[0][1]
    ended = sum(e.trial in trials for e in run.report.episodes.ended(Outcome.ERROR))
    head = (headline(text) or "no message")[:300]
    return {
        "draw": "fault",
        "headline": head,
        "counts": f"{counted(len(hits), 'attempt')} at {counted(len(trials), 'trial')}, "
        f"{ended:,} of which ended as error",
        "trials": [(run.trials.row(trial), trial.id) for trial in [*trials][:_LINKS]],
        "more": f" and {len(trials) - _LINKS:,} more" if len(trials) > _LINKS else "",
        "text": _shortened(text, _LONGEST_TRACE).strip("\n"),
        "own": own_line(text),
        "kept": [_kept(run, each) for each in run.evidence if _alike(each.error) == kind],
    }


def _kept(run: RecordedRun, kept: Evidence) -> Widget:
    """The videos of an attempt that was lost, and links to what else it recorded."""
    films = [file for file in kept.files if file.endswith(".mp4")]
    return {
        "name": f"{kept.trial.id}, attempt {kept.attempt + 1}",
        "cell": run.trials.row(kept.trial),
        "attempt": kept.attempt,
        "films": [(file_link(file), poster(run.folder / file)) for file in films],
        "files": [(Path(file).name, file_link(file)) for file in kept.files],
    }


def failure_section(run: RecordedRun) -> Widget | None:
    """Failures by how they ended, the most frequent first; None where there are none."""
    ways: dict[str, list[Episode]] = {}
    for episode in run.report.episodes.ended(Outcome.FAILURE):
        ways.setdefault(_way(episode), []).append(episode)
    if not ways:
        return None
    return widgets.section("failures", "How failures ended", _shares(run, "how", ways))


def label_section(run: RecordedRun) -> Widget | None:
    """A line for each label, the most frequent first; None where nobody labelled anything."""
    failures = run.report.episodes.ended(Outcome.FAILURE) if run.labels else []
    kinds: dict[str, list[Episode]] = {}
    for episode in failures:
        if label := run.labels.get(episode.trial.id):
            kinds.setdefault(label, []).append(episode)
    labelled = sum(map(len, kinds.values()))
    if not labelled:
        return None
    lead = f"{labelled:,} of {len(failures):,} failures have a label; shares are of these."
    if others := sum(e.trial.id in run.labels for e in run.report.episodes) - labelled:
        lead += f" {others:,} other episodes have one, too."
    table = _shares(run, "label", kinds)
    return widgets.section("labels", "What went wrong", table, lead=lead)


def _way(episode: Episode) -> str:
    """How a failure ended, and how far it had come where its env told."""
    if episode.diverged:
        return "diverged"
    end = "at the step limit" if episode.truncated else "ended by its env"
    if episode.progress is None:
        return end
    return f"{end}, {episode.progress:.0%} of the way".replace("%", " %")


def _shares(run: RecordedRun, head: str, groups: Mapping[str, Sequence[Episode]]) -> Widget:
    """A line for each group of failures, with its share of all of them and links to some."""
    total, rows = sum(map(len, groups.values())), []
    for name, some in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        rate = stats.rate(len(some), total)
        shown = percent(rate.value), interval_text(rate.interval)
        rows.append((name, [run.trials.row(episode.trial) for episode in some], *shown))
    return {"draw": "labels", "head": head, "rows": rows}
