"""How fast a run went, and where the time of its lanes and of the policy went."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hocket.core.data import Array
from hocket.results.page.charts import area_chart, legend, rectangle, share_bar, tiles
from hocket.results.page.markup import Markup, Section, join, tag
from hocket.results.recorded import RecordedRun
from hocket.results.timing import LaneWindow, RunTiming, concurrent_slots

_FEWEST_BINS, _BINS = 5, 90
_FEWEST_CHUNKS = 20
"""With fewer chunks, a rate over time says nothing."""
_WIDTH = 1000.0
"""Units across the timeline, which is drawn at any width."""
_ROW, _BAR = 16, 11
"""Heights in pixels."""
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


def speed_section(run: RecordedRun) -> Section | None:
    """Throughput, shares and the timeline; None where no chunk is recorded."""
    timing = run.timing
    if timing is None or timing.wall_s <= 0:
        return None
    shares = timing.shares
    kinds = {name: kind for name, (kind, _) in _KINDS.items()}
    entries = [
        (kind, words, f"{100 * shares[name]:.1f} %")
        for name, (kind, words) in _KINDS.items()
        if shares[name] >= 0.0005
    ]
    body = join(
        share_bar(shares, kinds),
        legend(entries),
        _policy_line(run, timing),
        _sites(run, timing, kinds),
        _pace(timing),
        _timeline(timing),
    )
    lanes = "1 lane" if timing.lanes == 1 else f"{timing.lanes:,} lanes"
    lead = (
        f"What {lanes} did from the first observation on, {''.join(duration(timing.wall_s))}, as "
        "shares of their time. Resetting holds attempts that were lost, too."
    )
    return Section(anchor="time", title="Where the time went", body=body, lead=lead)


def duration(seconds: float) -> tuple[str, str]:
    """Seconds as a figure and its unit."""
    if seconds < 120:
        return f"{seconds:,.1f}", " s"
    if seconds < 7200:
        return f"{seconds / 60:,.1f}", " min"
    return f"{seconds / 3600:,.1f}", " h"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.01 else f"{1e3 * seconds:.2g}"


def _policy_line(run: RecordedRun, timing: RunTiming) -> Markup:
    machine = run.about.get("machine")
    cores = machine.get("cores") if isinstance(machine, dict) else None
    median, slow = map(_milliseconds, np.quantile(timing.infer_s, [0.5, 0.95]))
    entries = [
        ("policy inferring", f"{100 * timing.policy_s / timing.wall_s:.0f}", " % of the time"),
        ("a batch takes", median, f" ms, 95th {slow}"),
        ("mean batch", f"{timing.batch_sizes.mean():.1f}", " rows"),
        ("chunks", f"{timing.chunks:,}", f" in {timing.batches:,} batches"),
    ]
    if isinstance(cores, int) and cores > 0:
        work = timing.lane_s["stepping"] + timing.lane_s["observing"]
        busy = work / (timing.wall_s * min(cores, max(1, timing.lanes)))
        entries.append(("cores stepping", f"{100 * min(1.0, busy):.0f}", f" % of {cores}"))
    return tiles(entries)


def _sites(run: RecordedRun, timing: RunTiming, kinds: dict[str, str]) -> Markup | None:
    """The same shares for each machine, where the run was on several."""
    sites = run.about.get("sites")
    if not isinstance(sites, list) or not all(isinstance(site, dict) for site in sites):
        return None
    rows = []
    for site in sites[:_MOST_SITES]:
        first, lanes = int(site.get("first_lane", 0)), int(site.get("lanes", 0))
        spent = [timing.by_lane[n] for n in range(first, first + lanes) if n in timing.by_lane]
        if not spent:
            continue
        seconds = dict(zip(_KINDS, np.sum(spent, axis=0).tolist(), strict=False))
        total = sum(seconds.values()) or 1.0
        busy = (seconds["stepping"] + seconds["observing"]) / total
        words = f"{site.get('name')}: {lanes} lanes, {100 * busy:.0f} % stepping and observing"
        shares = {name: part / total for name, part in seconds.items()}
        rows.append(join(tag("p", words), share_bar(shares, kinds)))
    more = len(sites) - _MOST_SITES
    note = tag("p", f"and {more} more sites") if more > 0 else None
    return join(tag("h3", "Sites, while they had trials"), *rows, note) if rows else None


def _pace(timing: RunTiming) -> Markup | None:
    if timing.chunks < _FEWEST_CHUNKS:
        return None
    # Steps are known when their chunk ends: bins of few chunks would show nothing but that.
    bins = min(_BINS, max(_FEWEST_BINS, timing.chunks // 4))
    width_s, pace = timing.pace.per_second(bins)
    end = "".join(duration(timing.wall_s))
    return join(
        tag("h3", "Throughput over the run"),
        area_chart(pace, width_s=width_s, label="env steps a second", end_label=end),
    )


def _timeline(timing: RunTiming) -> Markup | None:
    window = timing.window
    if window is None or not len(window.chunks["lane"]):
        return None
    note = "" if window.whole else ", from the middle of the run"
    lanes = (
        ""
        if window.lanes >= timing.lanes
        else f", the first {window.lanes} of {timing.lanes:,} lanes"
    )
    key = [(_KINDS[name][0], _KINDS[name][1], "") for name in _WINDOW_KEY]
    return join(
        tag("h3", f"Lanes against the policy{note}{lanes}"),
        timeline(window),
        legend([*key, ("pending", "blank: resetting or done", "")]),
    )


def timeline(window: LaneWindow) -> Markup:
    """A row for each lane, and below them the policy's, a row for each batch under way at once."""
    rows = window.chunks
    slots, begins, ends = _policy_slots(rows)
    count = window.lanes + (max(slots, default=-1) + 1)
    at = (np.array(slots) + window.lanes) * _ROW + (_ROW - _BAR) / 2 + 4
    drawing = tag(
        "svg",
        *_lanes(window, rows),
        tag("path", class_="k-policy", d=_path(window, begins, ends, at)),
        class_="plot",
        viewBox=f"0 0 {_WIDTH:.0f} {count * _ROW + 4}",
        preserveAspectRatio="none",
        style=f"height:{count * _ROW + 4}px",
        role="img",
        aria_label=f"{window.lanes} lanes and the policy over {window.end - window.begin:.3g} s",
    )
    names = [f"lane {lane}" for lane in range(window.lanes)]
    names += ["policy"] + [""] * (count - window.lanes - 1)
    labels = [tag("span", name, style=f"height:{_ROW}px") for name in names[:count]]
    return tag(
        "div",
        tag("div", *labels, class_="lane-names"),
        drawing,
        tag("div", *_scale(window), class_="x-axis"),
        class_="framed timeline",
    )


def _lanes(window: LaneWindow, rows: Mapping[str, Array]) -> list[Markup]:
    at = rows["lane"] * _ROW + (_ROW - _BAR) / 2
    work = rows["executed"] - np.minimum(rows["busy_s"], rows["executed"] - rows["inferred"])
    seen = rows["executed"] - np.minimum(rows["observe_s"], rows["executed"] - work)
    spans = (
        ("waiting", rows["requested"], rows["batched"]),
        ("inferring", rows["batched"], rows["inferred"]),
        ("handing", rows["inferred"], work),
        ("stepping", work, seen),
        ("observing", seen, rows["executed"]),
    )
    return [
        tag("path", class_=f"k-{kind}", d=_path(window, begin, end, at))
        for kind, begin, end in spans
    ]


def _policy_slots(rows: Mapping[str, Array]) -> tuple[list[int], Array, Array]:
    """For each batch, its row among those under way at the same time, its begin and its end."""
    _, first = np.unique(rows["batch"], return_index=True)
    first = first[np.argsort(rows["batched"][first], kind="stable")]
    begins, ends = rows["batched"][first], rows["inferred"][first]
    slots = [min(slot, _MOST_SLOTS - 1) for slot in concurrent_slots(begins, ends)]
    return slots, begins, ends


def _path(window: LaneWindow, begin: Array, end: Array, at: Array) -> str:
    scale = _WIDTH / ((window.end - window.begin) or 1.0)
    left = np.clip((begin - window.begin) * scale, 0, _WIDTH)
    right = np.clip((end - window.begin) * scale, 0, _WIDTH)
    return "".join(
        rectangle(x, y, to - x, _BAR)
        for x, to, y in zip(left, right, at, strict=True)
        if to - x > 0.05
    )


def _scale(window: LaneWindow) -> list[Markup]:
    length = window.end - window.begin
    words = f"{length * 1e3:,.0f} ms" if length < 1 else f"{length:.3g} s"
    return [
        tag("span", f"{window.begin:,.2f} s"),
        tag("span", f"{words} of the run"),
        tag("span", f"{window.end:,.2f} s"),
    ]
