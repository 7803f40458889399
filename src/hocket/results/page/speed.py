"""How fast a run went, and where the time of its lanes and of the policy went."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hocket.results.page import widgets
from hocket.results.page.widgets import Widget
from hocket.results.recorded import RecordedRun
from hocket.results.timing import LaneWindow, RunTiming, concurrent_slots

_FEWEST_BINS, _BINS = 5, 90
_FEWEST_CHUNKS = 20
"""With fewer chunks, a rate over time says nothing."""
_MOST_SLOTS = 6
"""Batches under way at once that have a row each in the timeline."""
_KINDS = {
    "stepping": ("stepping", "stepping"),
    "observing": ("observing", "observing"),
    "waiting": ("waiting", "waiting for a batch"),
    "inferring": ("inferring", "waiting for the policy"),
    "handing over": ("handing", "messages, or waiting for a core"),
    "resetting": ("resetting", "resetting"),
    "done": ("done", "no trial left"),
}
_MOST_SITES = 20
"""Sites that have a bar each."""
_WINDOW_KEY = ("stepping", "observing", "waiting", "inferring", "handing over")


def speed_section(run: RecordedRun) -> Widget | None:
    """Throughput, shares and the timeline; None where no chunk is recorded."""
    timing = run.timing
    if timing is None or timing.wall_s <= 0:
        return None
    shares = timing.shares
    entries = [
        (kind, words, f"{100 * shares[name]:.1f} %")
        for name, (kind, words) in _KINDS.items()
        if shares[name] >= 0.0005
    ]
    lanes = "1 lane" if timing.lanes == 1 else f"{timing.lanes:,} lanes"
    return widgets.section(
        "time",
        "Where the time went",
        _bar(shares.items()),
        widgets.legend(entries),
        _policy_line(run, timing),
        *_sites(run, timing),
        *_pace(timing),
        *_timeline(timing),
        lead=f"What {lanes} did from the first observation on, {''.join(duration(timing.wall_s))}, "
        "as shares of their time. Resetting holds attempts that were lost, too.",
    )


def duration(seconds: float) -> tuple[str, str]:
    """Seconds as a figure and its unit."""
    if seconds < 120:
        return f"{seconds:,.1f}", " s"
    if seconds < 7200:
        return f"{seconds / 60:,.1f}", " min"
    return f"{seconds / 3600:,.1f}", " h"


def _bar(shares: Iterable[tuple[str, float]]) -> Widget:
    return widgets.bar((_KINDS[name][0], name, share) for name, share in shares)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.01 else f"{1e3 * seconds:.2g}"


def _policy_line(run: RecordedRun, timing: RunTiming) -> Widget:
    speed = run.report.throughput
    median, slow = map(_milliseconds, np.quantile(timing.infer_s, [0.5, 0.95]))
    entries = [
        ("a batch takes", median, f" ms, 95th {slow}"),
        ("mean batch", f"{timing.batch_sizes.mean():.1f}", " rows"),
        ("chunks", f"{timing.chunks:,}", f" in {timing.batches:,} batches"),
    ]
    if speed.policy_busy is not None:
        entries.insert(0, ("policy inferring", f"{100 * speed.policy_busy:.0f}", " % of the time"))
    if speed.cores_busy is not None:
        entries.append(("cores busy", f"{100 * speed.cores_busy:.0f}", " %"))
    return widgets.tiles(entries)


def _sites(run: RecordedRun, timing: RunTiming) -> list[Widget]:
    """The same shares for each machine, where the run was on several."""
    sites = run.about.get("sites")
    if not isinstance(sites, list) or not all(isinstance(site, dict) for site in sites):
        return []
    found: list[Widget] = []
    for site in sites[:_MOST_SITES]:
        first, lanes = int(site.get("first_lane", 0)), int(site.get("lanes", 0))
        spent = [timing.by_lane[n] for n in range(first, first + lanes) if n in timing.by_lane]
        if not spent:
            continue
        seconds = dict(zip(_KINDS, np.sum(spent, axis=0).tolist(), strict=False))
        busy = (seconds["stepping"] + seconds["observing"]) / (sum(seconds.values()) or 1.0)
        words = f"{site.get('name')}: {lanes} lanes, {100 * busy:.0f} % stepping and observing"
        found += [widgets.note(words, kind=""), _bar(seconds.items())]
    more = len(sites) - _MOST_SITES
    found += [widgets.note(f"and {more} more sites")] if more > 0 else []
    return [widgets.note("Sites, while they had trials", kind="h3"), *found] if found else []


def _pace(timing: RunTiming) -> list[Widget]:
    if timing.chunks < _FEWEST_CHUNKS:
        return []
    # Steps are known when their chunk ends: bins of few chunks would show nothing but that.
    bins = min(_BINS, max(_FEWEST_BINS, timing.chunks // 4))
    width_s, pace = timing.pace.per_second(bins)
    drawn: Widget = {
        "draw": "area",
        "values": np.round(pace, 2).tolist(),
        "label": "env steps a second",
        "axis": (
            "0",
            f"env steps a second; a point is {width_s:.2g} s",
            "".join(duration(timing.wall_s)),
        ),
    }
    return [widgets.note("Throughput over the run", kind="h3"), drawn]


def _timeline(timing: RunTiming) -> list[Widget]:
    window = timing.window
    if window is None or not len(window.chunks["lane"]):
        return []
    note = "" if window.whole else ", from the middle of the run"
    if window.lanes < timing.lanes:
        note += f", the first {window.lanes} of {timing.lanes:,} lanes"
    key = [(*_KINDS[name], "") for name in _WINDOW_KEY]
    return [
        widgets.note(f"Lanes against the policy{note}", kind="h3"),
        timeline(window),
        widgets.legend([*key, ("pending", "blank: resetting or done", "")]),
    ]


def timeline(window: LaneWindow) -> Widget:
    """Spans of each lane by kind, and below them the policy's, a row for each batch under way at
    once: rows of the drawing, begins and ends in parts of the window."""
    rows, length = window.chunks, (window.end - window.begin) or 1.0
    work = rows["executed"] - np.minimum(rows["busy_s"], rows["executed"] - rows["inferred"])
    seen = rows["executed"] - np.minimum(rows["observe_s"], rows["executed"] - work)
    # The first chunk of each batch tells of the batch.
    _, first = np.unique(rows["batch"], return_index=True)
    first = first[np.argsort(rows["batched"][first], kind="stable")]
    begins, ends = rows["batched"][first], rows["inferred"][first]
    slots = [min(slot, _MOST_SLOTS - 1) for slot in concurrent_slots(begins, ends)]
    policy = np.array(slots, np.int64) + window.lanes
    spans = (
        ("waiting", rows["lane"], rows["requested"], rows["batched"]),
        ("inferring", rows["lane"], rows["batched"], rows["inferred"]),
        ("handing", rows["lane"], rows["inferred"], work),
        ("stepping", rows["lane"], work, seen),
        ("observing", rows["lane"], seen, rows["executed"]),
        ("policy", policy, begins, ends),
    )

    def parts(times: Any) -> list[float]:
        shares = np.clip((times - window.begin) / length, 0, 1)
        return list(np.round(shares, 5).tolist())

    names = [f"lane {lane}" for lane in range(window.lanes)] + ["policy"]
    words = f"{length * 1e3:,.0f} ms" if length < 1 else f"{length:.3g} s"
    return {
        "draw": "timeline",
        "names": names + [""] * max(slots, default=0),
        "spans": [(kind, at.tolist(), parts(a), parts(b)) for kind, at, a, b in spans],
        "axis": (f"{window.begin:,.2f} s", f"{words} of the run", f"{window.end:,.2f} s"),
        "label": f"{window.lanes} lanes and the policy over {length:.3g} s",
    }
