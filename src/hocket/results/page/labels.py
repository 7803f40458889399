"""What people said of failures: each label with its share of the failures that have one."""

from __future__ import annotations

from hocket.core.data import Episode, Outcome
from hocket.results import stats
from hocket.results.page.episodes import Listed
from hocket.results.page.markup import Markup, Section, join, tag
from hocket.results.recorded import RecordedRun
from hocket.results.tables import interval_text, percent

_LINKS = 8
"""Episodes of a label that are linked to."""


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
    rows = [_row(label, some, labelled, listed) for label, some in ranked]
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


def _row(label: str, some: list[Episode], labelled: int, listed: Listed) -> Markup:
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
