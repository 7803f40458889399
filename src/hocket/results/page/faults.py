"""What went wrong in a run, on its page: errors, what attempts that were lost left of themselves,
and what people said of failures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hocket.core.data import Episode, Outcome, Trial
from hocket.records.evidence import KILLED, Evidence
from hocket.results import stats
from hocket.results.page.episodes import Listed
from hocket.results.page.markup import Markup, Section, breakable, file_link, join, tag
from hocket.results.page.videos import screen
from hocket.results.recorded import RecordedRun
from hocket.results.tables import interval_text, percent

_MOST_FAULTS = 20
_LONGEST_TRACE = 8000
"""Characters of an error that are shown."""
_LINKS = 8
"""Episodes of a label that are linked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of error, however often it happened."""

    text: str
    attempts: int
    """How many attempts were lost to it."""
    trials: tuple[Trial, ...]
    """The trials that it hit, in planned order."""
    ended: int
    """How many of these trials ended as ERROR."""
    evidence: tuple[Evidence, ...] = ()
    """What is kept of those attempts."""

    @property
    def headline(self) -> str:
        """The line that says most: the last one of a traceback that is not indented, or else the
        first line."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        if not any("Traceback" in line for line in lines):
            return lines[0] if lines else "no message"
        return next((line for line in reversed(lines) if not line.startswith(" ")), lines[-1])


def faults_of(run: RecordedRun) -> list[Fault]:
    """The errors that attempts were lost to, alike ones together, the most frequent first."""
    ended = {e.trial for e in run.report.episodes if e.outcome is Outcome.ERROR}
    hits = [(failure.trial, failure.error) for failure in run.failures]
    known = {trial for trial, _ in hits}
    # Without a ledger, or where the last attempt never was lost, the episode alone tells.
    hits += [
        (episode.trial, episode.error or "no message")
        for episode in run.report.episodes
        if episode.trial in ended and episode.trial not in known
    ]
    hits += [(each.trial, each.error) for each in run.evidence if each.error == KILLED]
    kinds: dict[str, list[tuple[Trial, str]]] = {}
    for trial, text in hits:
        kinds.setdefault(_alike(text), []).append((trial, text))
    faults = [
        Fault(
            text=some[0][1],
            attempts=len(some),
            trials=tuple(dict.fromkeys(trial for trial, _ in some)),
            ended=len(ended & {trial for trial, _ in some}),
            evidence=tuple(each for each in run.evidence if _alike(each.error) == kind),
        )
        for kind, some in kinds.items()
    ]
    return sorted(faults, key=lambda fault: -fault.attempts)


def _alike(text: str) -> str:
    """What alike errors have in common: they differ in numbers and addresses."""
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
        _fault(run, fault, listed, is_open=index == 0)
        for index, fault in enumerate(faults[:_MOST_FAULTS])
    ]
    more = len(faults) - len(items)
    note = tag("p", f"{more:,} rarer kinds are in ledger.sqlite.", class_="note") if more else None
    return Section(anchor="errors", title="Errors", body=tag("div", *items, note), lead=lead)


def _fault(run: RecordedRun, fault: Fault, listed: Listed, *, is_open: bool) -> Markup:
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
        _evidence(run, fault.evidence),
        open=is_open,
    )


def _evidence(run: RecordedRun, kept: Sequence[Evidence]) -> Markup | None:
    """The videos of attempts that were lost, and links to what else they recorded."""
    if not kept:
        return None
    cards = [
        screen(
            run,
            file,
            join(
                tag("div", breakable(f"{run.task_name(each.trial)}, seed {each.trial.seed}")),
                tag("div", f"attempt {each.attempt + 1}, up to its end", class_="sub"),
            ),
            kind=Outcome.ERROR.value,
        )
        for each in kept
        for file in each.files
        if file.endswith(".mp4")
    ]
    others = [
        tag("li", breakable(f"{each.trial.id}, attempt {each.attempt + 1}: "), *_links(each))
        for each in kept
    ]
    return join(
        tag("p", "What these attempts recorded up to their end:", class_="note"),
        tag("div", *cards, class_="gallery") if cards else None,
        tag("ul", *others),
    )


def _links(kept: Evidence) -> list[Markup | str]:
    links = [tag("a", Path(file).name, href=file_link(file)) for file in kept.files]
    return [piece for link in links for piece in (link, " ")]


def _some(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def label_section(run: RecordedRun, listed: Listed) -> Section | None:
    """A line for each label, the most frequent first; None where nobody labelled anything."""
    failures = [e for e in run.report.episodes if e.outcome is Outcome.FAILURE]
    kinds: dict[str, list[Episode]] = {}
    for episode in failures:
        if label := run.labels.get(episode.trial.id):
            kinds.setdefault(label, []).append(episode)
    labelled = sum(map(len, kinds.values()))
    if not labelled:
        return None
    heads = ("label", "failures", "share", "95 % interval", "episodes")
    head = tag(
        "tr", *(tag("th", name, class_="n" if name == "failures" else None) for name in heads)
    )
    ranked = sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = [_label_row(label, some, labelled, listed) for label, some in ranked]
    lead = f"{labelled:,} of {len(failures):,} failures have a label; shares are of these."
    if others := sum(e.trial.id in run.labels for e in run.report.episodes) - labelled:
        lead += f" {others:,} other episodes have one, too."
    body = tag(
        "div",
        tag("table", tag("thead", head), tag("tbody", *rows)),
        class_="scroll",
        id="label-table",
    )
    return Section(anchor="labels", title="What went wrong", body=body, lead=lead)


def _label_row(label: str, some: list[Episode], labelled: int, listed: Listed) -> Markup:
    rate = stats.rate(len(some), labelled)
    links = [
        tag("a", str(e.trial.seed), href=f"#{listed.anchors[e.trial]}", title=e.trial.id)
        for e in some
        if e.trial in listed.anchors
    ][:_LINKS]
    more = len(some) - len(links)
    return tag(
        "tr",
        tag("td", label),
        tag("td", f"{len(some):,}", class_="n"),
        tag("td", percent(rate.value)),
        tag("td", interval_text(rate.interval)),
        tag("td", *(join(link, " ") for link in links), f"and {more:,} more" if more else None),
    )
