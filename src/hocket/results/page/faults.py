"""What went wrong in a run, each kind of error once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hocket.core.data import Outcome, Trial
from hocket.results.page.markup import Markup, tag
from hocket.results.page.outcomes import Listed
from hocket.results.page.recorded import RecordedRun
from hocket.results.page.shell import Section

_MOST_FAULTS = 20
_LONGEST_TRACE = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of error, however often it happened."""

    text: str
    attempts: int
    """Lost to it."""
    trials: tuple[Trial, ...]
    """That it hit, in planned order."""
    ended: int
    """Of these trials, how many ended as ERROR."""

    @property
    def headline(self) -> str:
        """The line that says most: of a traceback the last one that is not indented, of other
        text the first."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        if not any("Traceback" in line for line in lines):
            return lines[0] if lines else "no message"
        return next((line for line in reversed(lines) if not line.startswith(" ")), lines[-1])


def faults_of(run: RecordedRun) -> list[Fault]:
    """Errors of lost attempts, alike ones together, the most frequent first."""
    ended = {e.trial for e in run.report.episodes if e.outcome is Outcome.ERROR}
    hits = [(failure.trial, failure.error) for failure in run.failures]
    known = {trial for trial, _ in hits}
    # Without a ledger, or where the last attempt never was lost, the episode alone tells.
    hits += [
        (episode.trial, episode.error or "no message")
        for episode in run.report.episodes
        if episode.trial in ended and episode.trial not in known
    ]
    kinds: dict[str, list[tuple[Trial, str]]] = {}
    for trial, text in hits:
        kinds.setdefault(_kind(text), []).append((trial, text))
    faults = [
        Fault(
            text=some[0][1],
            attempts=len(some),
            trials=tuple(dict.fromkeys(trial for trial, _ in some)),
            ended=len(ended & {trial for trial, _ in some}),
        )
        for some in kinds.values()
    ]
    return sorted(faults, key=lambda fault: -fault.attempts)


def _kind(text: str) -> str:
    """What alike errors have in common: not their numbers and addresses."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)


def fault_section(run: RecordedRun, listed: Listed) -> Section | None:
    """What went wrong, each kind of error once; None where nothing did."""
    faults = faults_of(run)
    if not faults:
        return None
    attempts = sum(fault.attempts for fault in faults)
    kinds = "one kind" if len(faults) == 1 else f"{len(faults):,} kinds"
    lead = f"{_some(attempts, 'attempt')} lost to {kinds} of error. Alike ones are shown once."
    items = [
        _fault(fault, listed, is_open=place == 0)
        for place, fault in enumerate(faults[:_MOST_FAULTS])
    ]
    more = len(faults) - len(items)
    note = tag("p", f"{more:,} rarer kinds are in ledger.sqlite.", class_="note") if more else None
    return Section(anchor="errors", title="Errors", body=tag("div", *items, note), lead=lead)


def _fault(fault: Fault, listed: Listed, *, is_open: bool) -> Markup:
    hit = [
        tag("a", trial.id, href=f"#{listed.anchors[trial]}")
        if trial in listed.anchors
        else tag("span", trial.id)
        for trial in fault.trials[:6]
    ]
    trials = [piece for link in hit for piece in (link, ", ")][:-1]
    more = len(fault.trials) - len(hit)
    counts = f"{_some(fault.attempts, 'attempt')} at {_some(len(fault.trials), 'trial')}, "
    counts += f"{fault.ended:,} of which ended as error"
    text = fault.text
    if len(text) > _LONGEST_TRACE:
        text = f"{text[: _LONGEST_TRACE // 2]}\n  ...\n{text[-_LONGEST_TRACE // 2 :]}"
    return tag(
        "details",
        tag("summary", tag("code", fault.headline[:300]), tag("small", counts)),
        tag("p", *trials, f" and {more:,} more" if more else None, class_="note"),
        tag("pre", text.strip("\n")),
        open=is_open,
    )


def _some(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"
