"""Lanes against the policy: who was stepping, waiting and inferring, chunk by chunk."""

from __future__ import annotations

import heapq

import numpy as np

from hocket.core.data import Array
from hocket.results.page.charts import rectangle
from hocket.results.page.markup import Markup, tag
from hocket.results.page.timing import Window

_WIDTH = 1000.0
_ROW, _BAR = 16, 11
_MOST_SLOTS = 6


def timeline(window: Window) -> Markup:
    """A row for each lane, and below them the policy's, a row for each batch under way at once."""
    rows = {name: window.chunks[name].to_numpy() for name in window.chunks.column_names}
    slots = _policy_slots(rows)
    count = window.lanes + (max(slots[0], default=-1) + 1)
    drawing = tag(
        "svg",
        *_lanes(window, rows),
        _policy(window, slots, window.lanes),
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


def _lanes(window: Window, rows: dict[str, Array]) -> list[Markup]:
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


def _policy_slots(rows: dict[str, Array]) -> tuple[list[int], Array, Array]:
    """Each batch once: its row among those under way at the same time, its begin and end."""
    _, first = np.unique(rows["batch"], return_index=True)
    first = first[np.argsort(rows["batched"][first], kind="stable")]
    begins, ends = rows["batched"][first], rows["inferred"][first]
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    slots: list[int] = []
    for begin, end in zip(begins, ends, strict=True):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        slot = heapq.heappop(free) if free else min(len(busy), _MOST_SLOTS - 1)
        heapq.heappush(busy, (end, slot))
        slots.append(slot)
    return slots, begins, ends


def _policy(window: Window, slots: tuple[list[int], Array, Array], lanes: int) -> Markup:
    at = (np.array(slots[0]) + lanes) * _ROW + (_ROW - _BAR) / 2 + 4
    return tag("path", class_="k-policy", d=_path(window, slots[1], slots[2], at))


def _path(window: Window, begin: Array, end: Array, at: Array) -> str:
    scale = _WIDTH / ((window.end - window.begin) or 1.0)
    left = np.clip((begin - window.begin) * scale, 0, _WIDTH)
    right = np.clip((end - window.begin) * scale, 0, _WIDTH)
    return "".join(
        rectangle(x, y, to - x, _BAR)
        for x, to, y in zip(left, right, at, strict=True)
        if to - x > 0.05
    )


def _scale(window: Window) -> list[Markup]:
    length = window.end - window.begin
    words = f"{length * 1e3:,.0f} ms" if length < 1 else f"{length:.3g} s"
    return [
        tag("span", f"{window.begin:,.2f} s"),
        tag("span", f"{words} of the run"),
        tag("span", f"{window.end:,.2f} s"),
    ]
