"""How fast a run went, and where the time of its lanes and of the policy went."""

from __future__ import annotations

import numpy as np

from hocket.results.page.charts import area_chart, legend, share_bar
from hocket.results.page.markup import Markup, join, tag
from hocket.results.page.recorded import RecordedRun
from hocket.results.page.shell import Section
from hocket.results.page.timeline import timeline
from hocket.results.page.timing import Timing

_FEWEST_BINS, _BINS = 5, 90
_FEWEST_CHUNKS = 20
"""Below them a rate over time says nothing."""
_KINDS = {
    "stepping": ("stepping", "stepping"),
    "observing": ("observing", "observing"),
    "waiting": ("waiting", "waiting for a batch"),
    "inferring": ("inferring", "waiting for the policy"),
    "handing over": ("handing", "messages, or waiting for a core"),
    "resetting": ("resetting", "resetting"),
    "done": ("done", "no trial left"),
}
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
    """A figure and its unit."""
    if seconds < 120:
        return f"{seconds:,.1f}", " s"
    if seconds < 7200:
        return f"{seconds / 60:,.1f}", " min"
    return f"{seconds / 3600:,.1f}", " h"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.01 else f"{1e3 * seconds:.2g}"


def _policy_line(run: RecordedRun, timing: Timing) -> Markup:
    machine = run.about.get("machine")
    cores = machine.get("cores") if isinstance(machine, dict) else None
    median, slow = map(_milliseconds, np.quantile(timing.infer_s, [0.5, 0.95]))
    tiles = [
        ("policy inferring", f"{100 * timing.policy_s / timing.wall_s:.0f}", " % of the time"),
        ("a batch takes", median, f" ms, 95th {slow}"),
        ("mean batch", f"{timing.batch_sizes.mean():.1f}", " rows"),
        ("chunks", f"{timing.chunks:,}", f" in {timing.batches:,} batches"),
    ]
    if isinstance(cores, int) and cores > 0:
        work = timing.lane_s["stepping"] + timing.lane_s["observing"]
        busy = work / (timing.wall_s * min(cores, max(1, timing.lanes)))
        tiles.append(("cores stepping", f"{100 * min(1.0, busy):.0f}", f" % of {cores}"))
    boxes = [
        tag("div", tag("dt", name), tag("dd", figure, tag("small", unit)))
        for name, figure, unit in tiles
    ]
    return tag("dl", *boxes, class_="tiles")


def _pace(timing: Timing) -> Markup | None:
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


def _timeline(timing: Timing) -> Markup | None:
    window = timing.window
    if window is None or window.chunks.num_rows == 0:
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
